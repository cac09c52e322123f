"""The workflows and the action hold to what keeps a pull request from a stranger harmless, and do what they are there for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hloracle.cli import main as cli
from hloracle.reports import comment

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
Workflow = dict[Any, Any]

# What may run besides shell, each at the one commit that was looked at.
ACTIONS = {
    "actions/attest-build-provenance": "a2bbfa25375fe432b6a289bc6b6cd05ecd0c4c32",
    "actions/checkout": "08c6903cd8c0fde910a37f88322edcfb5dd907a8",
    "actions/setup-python": "e797f83bcb11b83ae66e0230d6156d7c80228e7c",
    "actions/cache/restore": "0057852bfaa89a56745cba8c7296529d2fc39830",
    "actions/cache/save": "0057852bfaa89a56745cba8c7296529d2fc39830",
    "actions/download-artifact": "d3f86a106a0bac45b974a628896c90dbdf5c8093",
    "actions/upload-artifact": "ea165f8d65b6e75b540449e92b4886f43607fa02",
    "pypa/gh-action-pypi-publish": "dc37677b2e1c63e2034f94d8a5b11f265b73ba33",
}
# What each job may do. Whoever adds a permission writes it here too, and says in the workflow what for.
PERMISSIONS = {
    ("ci", "cpu"): {"contents": "read"},
    ("conformance", "action"): {"contents": "read"},
    ("conformance", "cpu"): {"contents": "read"},
    ("comment", "draw"): {"actions": "read", "contents": "read", "pull-requests": "read"},
    ("comment", "post"): {"pull-requests": "write"},
    ("nightly", "audit"): {"contents": "read"},
    ("nightly", "cpu"): {"contents": "read"},
    ("nightly", "faults"): {"contents": "read"},
    ("nightly", "fuzz"): {"contents": "read"},
    ("release", "attest"): {"attestations": "write", "id-token": "write"},
    ("release", "build"): {"contents": "read"},
    ("release", "publish"): {"id-token": "write"},
    ("release", "release"): {"contents": "write"},
}


def read(path: Path) -> Workflow:
    """YAML 1.1 takes the key `on` for true."""
    return dict(yaml.safe_load(path.read_text("utf-8")))


WORKFLOWS = {path.stem: read(path) for path in FILES}
ACTION = read(ROOT / "action.yml")
JOBS = [(name, job) for name, workflow in WORKFLOWS.items() for job in workflow["jobs"]]
each_workflow = pytest.mark.parametrize("name", WORKFLOWS)
each_job = pytest.mark.parametrize(("name", "job"), JOBS)


def events(workflow: Workflow) -> Any:
    return workflow[True]


def steps(name: str, job: str | None = None, uses: str = "") -> Iterator[dict[str, Any]]:
    for key, entry in WORKFLOWS[name]["jobs"].items():
        for step in entry["steps"]:
            if job in (None, key) and step.get("uses", "").startswith(uses):
                yield step


def step(name: str, title: str) -> dict[str, Any]:
    (found,) = (step for step in steps(name) if step.get("name") == title)
    return found


def strings(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        node = [*node.keys(), *node.values()]
    if isinstance(node, list):
        for entry in node:
            yield from strings(entry)
    elif isinstance(node, str):
        yield node


# ---- each of them


def test_there_are_these() -> None:
    assert list(WORKFLOWS) == ["ci", "comment", "conformance", "nightly", "release"]
    assert {name: workflow["name"] for name, workflow in WORKFLOWS.items()} == {name: name for name in WORKFLOWS}
    assert set(PERMISSIONS) == set(JOBS)


@pytest.mark.parametrize("path", [*FILES, ROOT / "action.yml"], ids=lambda path: path.stem)
def test_actions_are_pinned(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if "uses:" in line]
    used = ACTION["runs"]["steps"] if path.stem == "action" else list(steps(path.stem))
    assert len(lines) == sum("uses" in step for step in used)
    for line in lines:
        if line.strip() == "- uses: ./":  # the action of the checkout itself
            continue
        found = re.search(r"uses: ([\w/-]+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+$", line)
        assert found, line
        assert ACTIONS[found[1]] == found[2]


@each_workflow
def test_permissions_are_none_but_those_of_a_job(name: str) -> None:
    assert WORKFLOWS[name]["permissions"] == {}


@each_job
def test_jobs_have_what_they_need_and_end(name: str, job: str) -> None:
    entry = WORKFLOWS[name]["jobs"][job]
    assert entry["permissions"] == PERMISSIONS[name, job]
    assert 0 < entry["timeout-minutes"] <= 60
    assert re.fullmatch(r"ubuntu-\d\d\.\d\d", entry["runs-on"]), "a runner's image is named by its version"


@each_workflow
def test_runs_of_one_kind_do_not_pile_up(name: str) -> None:
    assert "github." in WORKFLOWS[name]["concurrency"]["group"]
    assert "cancel-in-progress" in WORKFLOWS[name]["concurrency"]


@each_workflow
def test_no_trigger_gives_a_strangers_code_a_token(name: str) -> None:
    allowed = {"comment": {"workflow_run"}, "nightly": {"schedule", "workflow_dispatch"}, "release": {"push"}}
    assert set(events(WORKFLOWS[name])) == allowed.get(name, {"push", "pull_request"})


@each_workflow
def test_no_expression_is_pasted_into_a_shell(name: str) -> None:
    """Neither an event's words nor any others: they come as environment variables, which no shell reads as code."""
    assert [step["run"] for step in steps(name) if "${{" in step.get("run", "")] == []


@each_workflow
def test_no_secret_but_the_token_of_the_run(name: str) -> None:
    assert [s for s in strings(WORKFLOWS[name]) if "secrets" in s] == []


@each_workflow
def test_the_checkout_keeps_no_token(name: str) -> None:
    for found in steps(name, uses="actions/checkout"):
        assert found["with"]["persist-credentials"] is False


@each_workflow
def test_pip_installs_what_is_locked(name: str) -> None:
    """From lock/, where each file has its hash, or the checkout; what sessions of nox install is in tests/test_lock.py."""
    lines = [
        line for found in steps(name) for line in found.get("run", "").splitlines() if re.search(r"\bpip3?\b", line)
    ]
    assert lines
    for line in lines:
        found = re.fullmatch(r"python -m pip install --require-hashes --no-deps -r (lock/\w+\.txt)", line.strip())
        assert found or line.strip() == "python -m pip install --no-deps --no-build-isolation .", line
        assert not found or (ROOT / found[1]).is_file()


@each_workflow
def test_artifacts_go_away(name: str) -> None:
    for found in steps(name, uses="actions/upload-artifact"):
        assert 0 < found["with"]["retention-days"] <= 14


@each_workflow
def test_shell_is_shell(name: str) -> None:
    for found in steps(name):
        if "run" in found:
            done = subprocess.run(["bash", "-n"], input=found["run"], text=True, capture_output=True, check=False)
            assert done.returncode == 0, f"{found.get('name')}: {done.stderr}"


# ---- those that run a pull request's code


@pytest.mark.parametrize("name", ["ci", "conformance"])
def test_a_pull_request_gets_nothing(name: str) -> None:
    assert all(may == "read" for (workflow, _), job in PERMISSIONS.items() if workflow == name for may in job.values())
    assert [s for s in strings(WORKFLOWS[name]) if re.search(r"github\.token|GITHUB_TOKEN", s)] == []


@pytest.mark.parametrize("name", ["ci", "conformance"])
def test_a_pull_request_saves_no_cache(name: str) -> None:
    saved = list(steps(name, uses="actions/cache/save"))
    assert saved
    for found in saved:
        assert "github.event_name == 'push'" in found["if"]
        assert "||" not in found["if"]
    restored = {found["with"]["path"]: found["with"]["key"] for found in steps(name, uses="actions/cache/restore")}
    for found in saved:
        same = re.sub(r"github\.sha", "steps.base.outputs.sha", found["with"]["key"])
        assert restored[found["with"]["path"]] == same, "what main saves is what a pull request looks for"


@pytest.mark.parametrize(("status", "fails"), [(0, False), (1, True), (2, False), (3, True), (127, True)])
def test_a_regression_fails_the_job_and_a_base_that_cannot_be_compared_does_not(
    status: int, fails: bool, tmp_path: Path
) -> None:
    found = step("conformance", "Compare with the base")
    assert "continue-on-error" not in found
    program = tmp_path / ".nox/environment/bin/hloracle"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho "$@" > arguments\nexit {status}\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", found["run"]], cwd=tmp_path, check=False
    )
    assert (done.returncode != 0) == fails
    assert " --fail-on regression " in (tmp_path / "arguments").read_text()


def test_what_a_failing_run_has_found_is_kept() -> None:
    job = WORKFLOWS["conformance"]["jobs"]["cpu"]
    titles = [step.get("name", step.get("run", "")) for step in job["steps"]]
    head = titles.index("nox -s conformance-cpu")
    kept = [step for step in job["steps"][head + 1 :] if not step.get("uses", "").startswith("actions/cache")]
    assert len(kept) == 8
    for found in kept:
        assert "!cancelled()" in found["if"], "without it a step runs only where all before it have passed"
        assert "continue-on-error" not in found


def test_a_run_that_hangs_leaves_time_to_say_so() -> None:
    """A step that runs out of time has failed; a job that does is over, whatever its steps would have kept."""
    job = WORKFLOWS["conformance"]["jobs"]["cpu"]
    runs = [step for step in job["steps"] if "nox -s" in step.get("run", "")]
    assert len(runs) == 2
    assert sum(step["timeout-minutes"] for step in runs) < job["timeout-minutes"]
    assert '"cancelled"' in WORKFLOWS["comment"]["jobs"]["draw"]["if"], "what a job may be called that is over"


# ---- the one that writes


def test_the_comment_runs_no_code_of_a_pull_request() -> None:
    for found in steps("comment", uses="actions/checkout"):
        assert found["with"].keys() == {"persist-credentials"}, "main, and nothing else"
    assert list(steps("comment", uses="actions/cache")) == [], "what is saved here would be main's"
    for found in steps("comment", uses="actions/setup-python"):
        assert "cache" not in found["with"]
    assert not [
        step for step in steps("comment") if re.search(r"git (checkout|fetch)|gh pr checkout", step.get("run", ""))
    ]


def test_what_reads_the_archive_has_no_token() -> None:
    for title in ("Install hloracle", "Draw the comment"):
        assert "GH_TOKEN" not in step("comment", title).get("env", {})
    assert [step["name"] for step in steps("comment", "post")] == [
        "Write the comment, over the one before if there is one"
    ]


def test_the_comment_follows_the_conformance_run() -> None:
    assert events(WORKFLOWS["comment"])["workflow_run"] == {"workflows": ["conformance"], "types": ["completed"]}
    (upload,) = (s for s in steps("conformance", uses="actions/upload-artifact") if s["with"]["name"] == "records")
    assert upload["with"]["path"] == "records/"
    assert "artifacts?name=records&" in step("comment", "Download the records")["run"]
    assert comment.MARKER in step("comment", "Write the comment, over the one before if there is one")["run"]


def test_installs_what_reports_need_and_no_more() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    assert {re.split("[<>=]", package)[0] for package in groups["reports"]} == {
        "click", "filelock", "jinja2", "platformdirs", "psutil", "pydantic", "rich", "setuptools"
    }  # fmt: skip
    assert "-r lock/reports.txt" in step("comment", "Install hloracle")["run"]


# ---- the one that publishes


def test_a_tag_alone_is_released() -> None:
    assert events(WORKFLOWS["release"]) == {"push": {"tags": ["v*"]}}
    assert WORKFLOWS["release"]["concurrency"]["cancel-in-progress"] is False, "half a release is none"


def test_a_release_reads_no_cache() -> None:
    """Other workflows write caches, on the word of less than a tag."""
    assert list(steps("release", uses="actions/cache")) == []
    for found in steps("release", uses="actions/setup-python"):
        assert "cache" not in found["with"]


def test_what_signs_or_publishes_runs_no_code_of_the_repository() -> None:
    for job, may in ((job, may) for (name, job), may in PERMISSIONS.items() if name == "release"):
        if "write" in may.values():
            assert not list(steps("release", job, uses="actions/checkout"))
            assert not list(steps("release", job, uses="actions/setup-python"))
        if "id-token" in may:
            assert not [found for found in steps("release", job) if "run" in found]
    jobs = WORKFLOWS["release"]["jobs"]
    assert [job for job in jobs if any("github.token" in text for text in strings(jobs[job]))] == ["release"]


def test_a_release_is_built_then_checked_then_signed_then_published() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    assert {name: job.get("needs") for name, job in jobs.items()} == {
        "build": None, "attest": "build", "publish": ["build", "attest"], "release": "publish"
    }  # fmt: skip
    sessions = [found["run"] for found in steps("release", "build") if found.get("run", "").startswith("nox")]
    assert sessions == ["nox -s dist", "nox -s released", "nox -s sbom"]
    assert jobs["publish"]["environment"] == "pypi"
    (publish,) = steps("release", "publish", uses="pypa/gh-action-pypi-publish")
    assert publish["with"] == {"attestations": True}, "no password: the index trusts this workflow in this environment"
    assert "continue-on-error" not in str(jobs)
    uploaded = {found["with"]["name"] for found in steps("release", "build", uses="actions/upload-artifact")}
    (attest,) = steps("release", "attest", uses="actions/attest-build-provenance")
    assert set(re.findall(r"built/(\w+)/", attest["with"]["subject-path"])) == uploaded == {"dist", "sbom"}


@pytest.mark.parametrize(
    ("tag", "passes"), [("v1.2.3", True), ("v1.2.4", False), ("v1.2.3.1", False), ("1.2.3", False)]
)
def test_the_tag_is_the_version(tag: str, passes: bool, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    script = step("release", "See that the tag is the version")["run"]
    environment = {"PATH": os.environ["PATH"], "GITHUB_REF_NAME": tag}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script], cwd=tmp_path, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode == 0) == passes, done.stderr
    assert ("::error::" in done.stdout) != passes


# ---- what users copy


def test_the_documented_workflow_is_as_safe() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/pull-requests.md").read_text(), re.MULTILINE | re.DOTALL)
    whole, own, part = (yaml.safe_load(block) for block in blocks)
    ((_, job),) = whole["jobs"].items()
    assert set(events(whole)) == {"pull_request"}
    assert (whole["permissions"], job["permissions"]) == ({}, {"contents": "read"})
    assert job["timeout-minutes"]
    assert whole["concurrency"]
    (ours,) = (found for found in job["steps"] if found.get("uses") == "OWNER/hloracle@COMMIT")
    required = {name for name, entry in ACTION["inputs"].items() if entry.get("required")}
    assert required <= set(ours["with"]) <= set(ACTION["inputs"])
    for found in [*job["steps"], *own, *part]:
        assert "${{" not in found.get("run", "")
        if "uses" in found and found is not ours:
            name, _, commit = found["uses"].partition("@")
            assert ACTIONS[name] == commit
            assert name != "actions/checkout" or found["with"]["persist-credentials"] is False
    (upload,) = (s for s in steps("conformance", uses="actions/upload-artifact") if s["with"]["name"] == "records")
    assert part[-1]["with"] == upload["with"]
    assert f"records/{comment.HEAD}" in part[0]["run"]


@pytest.mark.parametrize("file", [*FILES, ROOT / "docs" / "pull-requests.md"], ids=lambda file: file.stem)
def test_commands_and_options_are_there(file: Path) -> None:
    commands = re.sub(r" *\\?\n +(?=--)", " ", file.read_text())
    found = re.findall(r"hloracle (run|check|diff|annotate|comment) ((?:\S+ )*?-.*)", commands)
    assert found or file.stem in ("ci", "nightly", "release")
    for name, arguments in found:
        known = {option for parameter in cli.cli.commands[name].params for option in parameter.opts}
        assert set(re.findall(r"(?<= )--?[a-z][\w-]*|^-[\w-]+", arguments.split("`")[0])) <= known


# ---- what its shell does, with GitHub played by a script

GH = r"""#!/usr/bin/env python3
import json, os, sys
arguments = sys.argv[1:]
with open(os.environ["CALLS"], "a") as f:
    f.write(json.dumps(arguments) + "\n")
sys.stdout.write(os.environ.get("ANSWER", ""))
sys.exit(int(os.environ.get("STATUS", "0")))
"""


@pytest.fixture
def shell(tmp_path: Path) -> Any:
    """Runs a step of comment.yml as GitHub does; returns its status, what it asked GitHub, and its outputs."""
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)

    def run(title: str, **environment: str) -> tuple[int, list[Any], dict[str, str]]:
        for name in ("calls", "output"):
            (tmp_path / name).write_text("")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step("comment", title)["run"]],
            env={
                "PATH": f"{tmp_path}:{os.environ['PATH']}",
                "CALLS": str(tmp_path / "calls"),
                "GITHUB_OUTPUT": str(tmp_path / "output"),
                "GITHUB_REPOSITORY": "owner/repo",
                "RUNNER_TEMP": str(tmp_path),
                **environment,
            },
            cwd=tmp_path, text=True, capture_output=True, check=False,
        )  # fmt: skip
        calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
        outputs = dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())
        return done.returncode, calls, outputs

    return run


@pytest.mark.parametrize(("answer", "outputs"), [("7\n", {"pull": "7"}), ("", {}), ("7\n8\n", {}), ("x", {})])
def test_finds_the_one_pull_request(shell: Any, answer: str, outputs: dict[str, str]) -> None:
    head = 'stranger:$(touch pwned)"; echo pull=1'
    status, calls, found = shell("Find the pull request", ANSWER=answer, BASE="main", HEAD=head, SHA="a" * 40)
    assert (status, found) == (0, outputs)
    (arguments,) = calls
    assert arguments[:4] == ["api", "--method", "GET", "repos/owner/repo/pulls"]
    assert arguments[arguments.index(f"head={head}") - 1] == "--raw-field", "--field takes what follows an @ for a file"


def test_stops_where_github_does_not_answer(shell: Any) -> None:
    assert shell("Find the pull request", STATUS="1", BASE="main", HEAD="a:b", SHA="c")[::2] == (1, {})
    title = "Write the comment, over the one before if there is one"
    status, calls, _ = shell(title, STATUS="1", PULL="7", BODY="words")
    assert (status, len(calls)) == (1, 1), "not knowing whether there is one, it writes none"


def test_downloads_the_newest_archive(shell: Any, tmp_path: Path) -> None:
    status, calls, found = shell("Download the records", ANSWER="", RUN="5", STARTED="2025-11-21T05:12:44Z", MOST="100")
    assert (status, len(calls), found) == (0, 1, {})
    status, calls, found = shell(
        "Download the records", ANSWER="31", RUN="5", STARTED="2025-11-21T05:12:44Z", MOST="100"
    )
    assert [call[1] for call in calls] == [
        "repos/owner/repo/actions/runs/5/artifacts?name=records&per_page=100",
        "repos/owner/repo/actions/artifacts/31/zip",
    ]
    assert found == {"archive": str(tmp_path / "records.zip")}
    assert (tmp_path / "records.zip").read_text() == "31"


@pytest.mark.parametrize(
    ("answer", "method", "where"),
    [
        ("", "POST", "repos/owner/repo/issues/7/comments"),
        ("41\n", "PATCH", "repos/owner/repo/issues/comments/41"),
        ("41\n42\n", "PATCH", "repos/owner/repo/issues/comments/41"),
    ],
)
def test_writes_one_comment(shell: Any, answer: str, method: str, where: str) -> None:
    body = f'{comment.MARKER}\n"quoted" $(touch pwned) `x` \\ é\n'
    title = "Write the comment, over the one before if there is one"
    status, calls, _ = shell(title, ANSWER=answer, PULL="7", BODY=body)
    assert status == 0
    looked, wrote = calls
    assert "--paginate" in looked
    assert wrote == ["api", "--method", method, where, "--raw-field", f"body={body}", "--silent"]


# ---- the action that others use


(CHECK,) = (step for step in ACTION["runs"]["steps"] if step.get("name") == "Check the graphs")
FILES_OF_A_REPORT = ("report.html", "report.json", "summary.md", "junit.xml")
# Notes its arguments; `check` ends with STATUS and leaves a report, unless that is 2.
HLORACLE = """#!/bin/sh
for word in "$@"; do printf '%s\\0' "$word"; done > "$TOLD/$1"
[ "$1" = check ] || exit 0
if [ "$STATUS" != 2 ]; then mkdir -p "$OUT"; echo {} > "$OUT/report.json"; echo found > "$OUT/summary.md"; fi
exit "$STATUS"
"""


@pytest.fixture
def action(tmp_path: Path) -> Any:
    """Runs the step that checks, with these inputs; returns its status, and what `check` and `annotate` were told."""
    for name in ("hloracle/bin", "told", "work"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "hloracle/bin/hloracle").write_text(HLORACLE)
    (tmp_path / "hloracle/bin/hloracle").chmod(0o755)

    def told(command: str) -> list[str]:
        noted = tmp_path / "told" / command
        return noted.read_text().split("\0")[1:-1] if noted.is_file() else []

    def run(status: int = 0, **given: str) -> tuple[int, list[str], list[str]]:
        values = {name: entry.get("default", "") for name, entry in ACTION["inputs"].items()}
        values |= {"model": "tiny-llama"} | given
        inputs = {name: values[input_of(value)] for name, value in CHECK["env"].items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", CHECK["run"]],
            env={
                "PATH": os.environ["PATH"], "RUNNER_TEMP": str(tmp_path), "TOLD": str(tmp_path / "told"),
                "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "STATUS": str(status), **inputs,
            },
            cwd=tmp_path / "work", check=False,
        )  # fmt: skip
        return done.returncode, told("check"), told("annotate")

    return run


def input_of(expression: str) -> str:
    found = re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", expression)
    assert found, expression
    return found[1]


def test_the_inputs_are_those_that_are_used() -> None:
    used = {name for text in strings(ACTION["runs"]) for name in re.findall(r"inputs\.([\w-]+)", text)}
    assert used == set(ACTION["inputs"])
    for name, entry in ACTION["inputs"].items():
        assert entry["description"].endswith("."), name
        assert entry.get("required", False) != ("default" in entry), name


def test_the_page_has_the_inputs() -> None:
    page = (ROOT / "docs" / "pull-requests.md").read_text("utf-8")
    table = page.split("| input | is |\n| --- | --- |\n", 1)[1].split("\n\n", 1)[0]
    assert [re.findall(r"`([\w-]+)`", row)[0] for row in table.splitlines()] == list(ACTION["inputs"])


def test_the_action_pastes_nothing_into_a_shell() -> None:
    assert ACTION["runs"]["using"] == "composite"
    for found in ACTION["runs"]["steps"]:
        assert "${{" not in found.get("run", "")
        assert ("run" in found) == (found.get("shell") == "bash")
        done = subprocess.run(["bash", "-n"], input=found.get("run", ""), text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "continue-on-error" not in found
    assert [s for s in strings(ACTION) if re.search(r"secrets|github\.token|GITHUB_TOKEN", s)] == []


def test_the_action_keeps_the_report_of_a_check_that_fails() -> None:
    *_, upload = ACTION["runs"]["steps"]
    assert upload["if"] == "always()"
    assert 0 < upload["with"]["retention-days"] <= 14


def test_the_workflow_uses_the_action() -> None:
    (ours,) = steps("conformance", "action", uses="./")
    assert set(ours["with"]) <= set(ACTION["inputs"])
    names = [found["with"]["name"] for found in steps("conformance", uses="actions/upload-artifact")]
    assert ours["with"]["artifact"] not in names, "of one run no two artifacts have the same name"
    (download,) = steps("conformance", "action", uses="actions/download-artifact")
    assert download["with"]["name"] in names


@pytest.mark.parametrize("constraints", [False, True])
def test_the_action_installs_its_own_checkout(constraints: bool, tmp_path: Path) -> None:
    (install,) = (step for step in ACTION["runs"]["steps"] if step.get("name") == "Install hloracle")
    python = tmp_path / "hloracle/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@" >> "$RUNNER_TEMP/told"\n')
    python.chmod(0o755)
    here = tmp_path / "the action"
    here.mkdir()
    if constraints:
        (here / "constraints.txt").write_text("")
    environment = {"PYTHON": str(python), "RUNNER_TEMP": str(tmp_path), "GITHUB_ACTION_PATH": str(here)}
    subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", install["run"]],
        env={"PATH": os.environ["PATH"], **environment}, check=True,
    )  # fmt: skip
    held = f"--constraint {here}/constraints.txt " if constraints else ""
    assert (tmp_path / "told").read_text() == f"-m venv {tmp_path}/hloracle\n-m pip install {held}{here}\n"


def test_the_action_gives_each_line_as_one_argument(action: Any, tmp_path: Path) -> None:
    hostile = "$(touch pwned) `touch pwned`; touch pwned # \"quoted'.mlir"
    status, check, annotate = action(
        graphs=f"decode.mlir\n  {hostile}  \n\n--help", abi="a.json\n--json", backends="iree-cpu\nxla-cpu\n", tokens="8",
        model="--help", arguments="--threads=2\n--timeout\n60\n",
    )  # fmt: skip
    assert status == 0
    assert check == [
        "--model=--help", "--out=out", "--abi=a.json", "--abi=--json", "--backend=iree-cpu", "--backend=xla-cpu",
        "--tokens=8", "--threads=2", "--timeout", "60", "--", "decode.mlir", hostile, "--help",
    ]  # fmt: skip
    assert annotate == ["--", "out/report.json"], "of several graphs it does not know which one"
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["out"]


def test_the_action_leaves_to_the_project_what_it_says(action: Any) -> None:
    _, check, _ = action(graphs="decode.mlir", model="", project="mine.toml")
    assert check == ["--project=mine.toml", "--out=out", "--", "decode.mlir"]


@pytest.mark.parametrize("status", [0, 1, 2, 130])
def test_the_action_ends_with_the_status_of_the_check(action: Any, tmp_path: Path, status: int) -> None:
    out = tmp_path / "work/out"
    out.mkdir()
    for name in FILES_OF_A_REPORT:
        (out / name).write_text("of another check")
    ended, check, annotate = action(status, graphs="decode.mlir")
    assert ended == status
    assert check == ["--model=tiny-llama", "--out=out", "--", "decode.mlir"]
    assert annotate == ([] if status == 2 else ["--graph=decode.mlir", "--", "out/report.json"])
    summary = tmp_path / "summary"
    assert (summary.read_text() if summary.is_file() else "") == ("" if status == 2 else "found\n")


def test_what_the_action_says_is_understood(action: Any) -> None:
    """Its options are those of the command line."""
    _, check, annotate = action(graphs="decode.mlir", abi="a", backends="iree-cpu", tokens="8")
    for name, arguments in (("check", check), ("annotate", annotate)):
        command = cli.cli.commands[name]
        with command.make_context(name, list(arguments)) as context:
            assert "decode.mlir" in str(context.params)
