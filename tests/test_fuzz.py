"""The fuzzer notices whatever a command may not do, makes each input again, and takes no check that did not run for a pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fuzz import __main__ as program
from fuzz.case import FOLDER, LINK, PIPE, Case, as_json, from_json
from fuzz.judge import findings, kind
from fuzz.one import Observation, Result, input_of, steps
from fuzz.planted import PLANTED
from fuzz.session import Found, Session
from fuzz.targets import TARGETS, Target

TESTS = Path(__file__).parent
SMALL = Target("small", lambda: [Case({"a.json": b'{"a": [1, 2]}', "b": b"text"}, ("x",))], {"a.json": TARGETS[0].spoilers["model/config.json"]})  # fmt: skip


def fuzz(*words: str) -> list[Any]:
    """What a module of the fuzzer prints, in a process of its own: workers are forked from it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, timeout=600, check=True, env=environment
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def planted() -> dict[str, Any]:
    return {row["name"]: row for row in fuzz("fuzz.planted")}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(name: str, planted: dict[str, Any]) -> None:
    wanted, found = PLANTED[name][1], planted[name]["wrong"]
    assert any(wanted in line for line in found) if wanted else found == []


def test_where_it_hangs_is_told(planted: dict[str, Any]) -> None:
    assert "planted.py" in planted["hang"]["raised"]


def test_an_input_is_made_again() -> None:
    samples = {"small": list(SMALL.samples())}
    inputs = [input_of(7, SMALL, number, samples) for number in range(40)]
    assert inputs == [input_of(7, SMALL, number, samples) for number in range(40)]
    assert inputs != [input_of(8, SMALL, number, samples) for number in range(40)]
    assert len({case.files["a.json"] for case in inputs}) > 20


def test_a_spoiling_is_left_out() -> None:
    samples = {"small": list(SMALL.samples())}
    number = next(n for n in range(40) if steps(7, SMALL, n) == 1)
    assert input_of(7, SMALL, number, samples, frozenset([0])) == samples["small"][0]


@pytest.mark.parametrize("target", [t for t in TARGETS if t.spoil_case], ids=lambda target: target.name)
def test_no_command_line_runs_a_strangers_program(target: Target) -> None:
    samples = {target.name: [Case({}, ("run", "model", "--backend", "xla-cpu", "-p", "a"), {"HLORACLE_DEVICE": "cpu"})]}
    for number in range(300):
        case = input_of(1, target, number, samples)
        words = " ".join([*case.arguments, *case.environment.values()])
        assert not any(bad in words for bad in ("worker:", "command:", "==", "\0"))


def test_a_case_is_kept(tmp_path: Path) -> None:
    sample = Case({"a": b"1", "b": b"2", "gone": b"3"}, ("x",))
    case = Case(
        {"a": b"1", "b": b"\xff", "link": LINK + b"a", "pipe": PIPE, "folder": FOLDER, "in/it": b""},
        ("y", "\udcff"),
        {"K": "v"},
    )
    kept = json.loads(json.dumps(as_json(case, sample)))
    assert "a" not in kept["files"]
    assert from_json(kept, sample) == case
    case.write(tmp_path)
    assert (tmp_path / "link").read_bytes() == b"1"
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "folder").is_dir()


def test_words_of_others_may_be_quoted() -> None:
    seen = Observation(2, err="hloracle: m: its tokenizer fails (TypeError: x); restore it\n")
    assert findings(seen, (2,), ())
    assert findings(seen, (2,), (), told="its tokenizer fails") == []
    listed = Observation(2, err="malformed a: is odd; mend it\nmalformed b: is odd; mend it\n")
    assert findings(listed, (2,), ())
    assert findings(listed, (2,), (), listed="malformed ") == []


def test_findings_of_a_kind() -> None:
    assert kind("leaves work/a 12") == kind("leaves work/a 7")
    assert kind("raises 'a'") == kind("raises 'b'") != kind("raises TypeError")


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What a session of one target finds; nothing is tried."""
    found: dict[str, Any] = {"inputs": 0, "wrong": (), "samples": [], "took": 60.0}

    def init(self: Session, targets: Any, seed: int, jobs: int) -> None:
        self.found, self.targets = Found(seed), {}

    def run(self: Session, *arguments: Any) -> Found:
        self.found.inputs.update({t.name: found["inputs"] for t in TARGETS})
        self.found.slowest = {t.name: (1.0, 0) for t in TARGETS}
        self.found.took = found["took"]
        self.found.findings = [(program.Job("abi", 1), Result(0, 1.0, (w,))) for w in found["wrong"]]
        return self.found

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(Session, "__init__", init)
    monkeypatch.setattr(Session, "check_samples", lambda self: found["samples"])
    monkeypatch.setattr(Session, "write", lambda self, folder: list(found["wrong"]))
    monkeypatch.setattr(Session, "run", run)
    return found


HANGS, ENDS = "does not end within 20 s", "ends the process (signal SIGXCPU)"


@pytest.mark.parametrize(
    ("first", "more", "children", "wrong", "hung"),
    [
        ("raises KeyError", [], [], "raises KeyError", 0),
        (HANGS, [""], [False], "", 1),
        (HANGS, [HANGS], [False], HANGS, 0),
        (ENDS, [""], [True], "", 0),
        (ENDS, [ENDS], [True], ENDS, 0),
        (HANGS, [ENDS, ""], [False, True], "", 1),
        (HANGS, [ENDS, ENDS], [False, True], ENDS, 0),
    ],
)
def test_what_hangs_or_ends_its_worker_is_tried_again(
    first: str, more: list[str], children: list[bool], wrong: str, hung: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the processes of its own that hloracle would have, where it ended the worker."""
    tried: list[bool] = []

    def results(self: Session, jobs: list[program.Job]) -> list[Result]:
        tried.extend(job.children for job in jobs)
        return [Result(2, 1.0, (words,) * bool(words)) for words in [more[len(tried) - 1]]]

    session = Session.__new__(Session)
    session.found = Found(0)
    monkeypatch.setattr(Session, "results", results)
    found = session.again(program.Job("abi", 1), Result(None, 1.0, (first,)))
    assert (tried, found.wrong, len(session.found.hung)) == (children, (wrong,) * bool(wrong), hung)


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"inputs": 1000}, 0, '"findings": 0'),
        ({"inputs": 1000, "wrong": ("raises KeyError",)}, 1, "raises KeyError"),
        ({"inputs": 0}, 1, "no input was tried of config"),
        ({"inputs": 1}, 1, "inputs a second are fewer than the goal, 16.7"),
        ({"inputs": 1000, "samples": ["abi: a sample ends with status 2"]}, 1, "a sample ends with status 2"),
    ],
)
def test_what_is_no_pass(session: dict[str, Any], changes: dict[str, Any], status: int, words: str) -> None:
    session |= changes
    done = CliRunner().invoke(program.command, ["--seed", "5", "--minutes", "1"])
    assert done.exit_code == status, done.output
    assert done.output.startswith("seed 5\n")
    assert words in done.output
