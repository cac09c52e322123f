"""The comparison's page, its summary for a pull request, and the command that writes them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from edits import both, drop_check, edited_graph, slower, wrong_token
from page_text import Page, stands_alone, told
from records import ALL, HOSTILE, Record, check_of, conforms, failing, hostile, near_tie, without_results

from hloracle.cli import main as cli
from hloracle.core.errors import InputError
from hloracle.reports.compare import page as diff_page
from hloracle.reports.compare import summary as compare_summary
from hloracle.reports.compare.comparison import compare
from hloracle.reports.record import to_json
from hloracle.reports.summary import LIMIT

Pair = tuple[Record, Record]


def contract() -> Pair:
    """A check that is gone, a near tie and a slower graph."""
    base, head = conforms(), conforms()
    slower(1.0)(base)
    both(drop_check("census", "emitter"), wrong_token(), slower())(head)
    return base, head


def everything() -> Pair:
    """Something of every part of the page."""
    base, head = contract()
    edited_graph(head)
    head["floors"][10]["relative"] *= 1.4
    check_of(head, "caches")["figure"] = "another"
    check_of(head, "repeats")["limit"] = "another"
    head["environment"]["packages"] |= {"numpy": "99"}
    head["speed"]["contenders"][0]["resident_bytes"] = 2 * base["speed"]["contenders"][0]["resident_bytes"] + 10**6
    return base, head


def other_model() -> Pair:
    """Runs that cannot wholly be compared."""
    base, head = everything()
    head["mutant"], head["model"]["digest"] = "rope-sign", "0" * 64
    head["settings"] |= {"capacity": 512, "tokens": 2}
    return base, head


def hostile_pair() -> Pair:
    """Two hostile records that differ in much."""
    base, head = hostile(), hostile()
    base["model"]["digest"] = "0" * 64
    for i, check in enumerate(head["checks"]):
        check["status"] = ("passed", "failed", "skipped", "error")[i % 4]
    for listing in head["listings"]:
        listing["scopes"][0]["ops"].append({"op": HOSTILE, "type": HOSTILE, "line": 9, "text": f"%x = y {HOSTILE}"})
    for graph in head["graphs"]:
        graph |= {"digest": "0" * 64, "weights": 1}
    head["environment"]["packages"] = {HOSTILE: "1"}
    return base, head


def against(base: str, head: str) -> Callable[[], Pair]:
    """Two records by name."""

    def make() -> Pair:
        pair = ALL[base](), ALL[head]()
        pair[1]["model"]["architecture"] = pair[0]["model"]["architecture"]
        return pair

    make.__name__ = f"{base}-{head}"
    return make


PAIRS: list[Callable[[], Pair]] = [
    contract, everything, other_model, hostile_pair, *(against("conforms", name) for name in ALL),
    *(against(name, "conforms") for name in ("emitter-fault", "empty", "suite", "hostile")), against("suite", "failing-suite"),
]  # fmt: skip


def drawn(make: Callable[[], Pair]) -> str:
    return diff_page.render(compare(*make()))


@pytest.mark.parametrize("make", PAIRS, ids=lambda make: make.__name__)
def test_page_and_summary_of_any_two_records(make: Callable[[], Pair]) -> None:
    source = drawn(make)
    stands_alone(source)
    told(source)
    assert len(source) < 2_000_000
    assert drawn(make) == source
    written = compare_summary.render(compare(*make()), "https://example.org/run?a=1")
    assert len(written) < LIMIT
    assert written.count("<details>") == written.count("</details>")
    assert written.endswith("[The whole report](<https://example.org/run?a=1>)\n")
    prose = re.sub(r"```.*?```", "", written, flags=re.DOTALL)
    for table in re.findall(r"(?:^\|.*\n)+", prose, re.MULTILINE):
        assert len({row.count("|") for row in table.splitlines() if "on the page" not in row}) == 1


# ---- the page


def test_page_says_it_in_one_sentence() -> None:
    text = Page(drawn(contract)).text
    assert "2 regressions: the check “emitter.census” is gone; llama decodes 15 % slower. " in text
    assert text.index("1 thing got worse: ") < text.index("Head Near tie") < text.index("Base Conforms")
    same = Page(drawn(against("conforms", "conforms"))).text
    graphs = len(conforms()["graphs"])
    assert "Nothing changed" in same
    assert f"No graph changed: {graphs} graphs, each with the same text." in same
    wrong = Page(drawn(against("emitter-fault", "emitter-fault"))).text
    assert wrong.index("Still wrong") < wrong.index("Head Emitter fault")
    assert f"first wrong at {failing()['verdict']['anchor']}" in wrong


def test_caveats_stand_above_everything() -> None:
    text = Page(drawn(other_model)).text
    first = text.index("Head carries a deliberate fault, the mutant rope-sign")
    assert first < text.index("The two runs are of different checkpoints.") < text.index("base against head", first)
    assert "Not judged: speed: another checkpoint" in text


def test_the_graphs_text_is_a_diff() -> None:
    rows = re.findall(r'<tr class="(gone|new|same)">.*?<td class="pm">(.?)</td>', drawn(everything))
    assert rows[0] == ("new", "+")
    base, head = conforms(), conforms()
    op = head["listings"][0]["scopes"][2]["ops"][0]
    op["text"] = op["text"].replace("stablehlo.", "other.")
    source = diff_page.render(compare(base, head))
    assert re.search("<mark>[^<]*stablehlo", source)
    assert re.search("<mark>[^<]*other", source)


def test_every_reason_for_comparing_by_agreement_alone_is_named() -> None:
    base, head = conforms(), conforms()
    head["prompts"][0]["token_ids"][0] += 1
    head["prompts"][1]["reference"]["tokens"][0] += 1
    text = Page(diff_page.render(compare(base, head))).text
    assert "2 prompts with another prompt or another reference: only how many" in text


def test_many_changes_are_folded() -> None:
    base, head = conforms(), conforms()
    base["checks"] += [base["checks"][0] | {"id": f"more-{i}"} for i in range(40)]
    text = Page(diff_page.render(compare(base, head))).text
    assert "40 regressions: the check “more-0” is gone, and 39 more checks" in text
    assert "15 more changes" in text


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((), ""),
        ((3,), "layer 3"),
        ((0, 1, 2, 5), "layers 0–2, 5"),
        (tuple(range(0, 40, 2)), "layers 0, 2, 4, 6, 8, 10, 12, 14, and 12 more"),
    ],
)
def test_layers_in_words(numbers: tuple[int, ...], words: str) -> None:
    assert diff_page.layers(numbers) == words


def test_hostile_text_is_shown_and_does_nothing() -> None:
    source = drawn(hostile_pair)
    assert "<script" not in source
    assert "<img" not in source
    assert HOSTILE[:60] in Page(source).text
    written = compare_summary.render(compare(*hostile_pair()))
    prose, fenced = re.sub(r"```.*?```", "", written, flags=re.DOTALL), re.findall(r"```.*?```", written, re.DOTALL)
    assert not [mark for mark in ("<script", "<img", "](", "http:", "\u202e", "\n# heading") if mark in prose]
    assert all(block.count("`") == 6 and "\u202e" not in block for block in fenced)


def test_very_much_text_fits() -> None:
    base, head = conforms(), conforms()
    for record, op in ((base, "add"), (head, "multiply")):
        for listing in record["listings"]:
            listing["scopes"] = [
                {"anchor": f"a{i}", "layers": [], "flops": 0, "bytes": 0, "ops": [
                    {"op": op, "type": "", "line": j, "text": f"%{j} = {op} {'<' * 300}"} for j in range(50)
                ]}
                for i in range(60)
            ]  # fmt: skip
    source = diff_page.render(compare(base, head))
    assert len(source) < 2_000_000
    assert "and 100 more lines." in Page(source).text
    base["checks"] += [base["checks"][0] | {"id": f"k{i} {HOSTILE}"} for i in range(500)]
    head["environment"]["packages"] = {f"{i} {HOSTILE}": HOSTILE for i in range(300)}
    written = compare_summary.render(compare(base, head))
    assert len(written) < LIMIT
    assert "more changes on the page" in written


# ---- the summary


def test_summary_says_what_happened() -> None:
    written = compare_summary.render(compare(*contract()))
    assert written.startswith("## ❌ hloracle: Not safe\n\n2 regressions: the check “emitter.census” is gone; ")
    assert "| **head** | 🟡 Near tie | " in written
    assert "| ❌ regression | **llama decodes 15 % slower**<br>" in written
    assert "The whole report" not in written
    assert compare_summary.render(compare(*other_model())).startswith("> ⚠️ **Head carries a deliberate fault")
    assert "## ⚠️ hloracle: Look twice" in compare_summary.render(compare(conforms(), near_tie()))
    assert "gave no result" in compare_summary.render(compare(conforms(), without_results()))
    assert "\n+ %new = stablehlo.slice " in compare_summary.render(compare(*everything()))
    with pytest.raises(InputError, match="is not a web address"):
        compare_summary.render(compare(*contract()), "javascript:alert(1)")


# ---- the command


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., list[str]]:
    def write(base: Record, head: Record) -> list[str]:
        paths = [tmp_path / "base.json", tmp_path / "head.json"]
        for path, record in zip(paths, (base, head), strict=True):
            path.write_text(to_json(record), "utf-8")
        return [str(path) for path in paths]

    return write


def test_files(files: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, summary = tmp_path / "out" / "diff.html", tmp_path / "out" / "diff.md"
    arguments = [*files(*contract()), "-o", str(page), "--summary", str(summary), "--link", "https://example.org/"]
    assert cli.invoke(["diff", *arguments]) == 0
    assert page.read_text("utf-8") == drawn(contract)
    assert summary.read_text("utf-8") == compare_summary.render(compare(*contract()), "https://example.org/")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("regression  The check “emitter.census” is gone (passed: ")
    assert lines[-3].startswith("Not safe: 2 regressions: ")
    assert lines[-2:] == [str(page), str(summary)]


def test_json(files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["diff", *files(conforms(), without_results()), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert printed["schema"] == "hloracle-diff/3"
    assert printed["counts"]["regression"] == sum(c["severity"] == "regression" for c in printed["changes"]) > 0
    assert printed["head"]["class"] == "harness-error"


@pytest.mark.parametrize(
    ("make", "regression", "change"),
    [
        (against("conforms", "conforms"), 0, 0),
        (contract, 1, 1),
        (against("conforms", "near-tie"), 0, 1),
        (against("emitter-fault", "conforms"), 0, 1),
    ],
)
def test_exit_status(make: Callable[[], Pair], regression: int, change: int, files: Callable[..., list[str]]) -> None:
    arguments = ["diff", *files(*make())]
    assert cli.invoke([*arguments, "--fail-on", "never"]) == 0
    assert cli.invoke([*arguments, "--fail-on", "regression"]) == regression
    assert cli.invoke([*arguments, "--fail-on", "change"]) == change


def test_the_exit_status_stands_when_nobody_reads_on(files: Callable[..., list[str]]) -> None:
    arguments = ["diff", *files(*contract()), "--fail-on", "regression"]
    script = f"import sys; from hloracle.cli import main as cli; sys.exit(cli.invoke({arguments!r}))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=writer, stderr=subprocess.PIPE, check=False, timeout=120
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--link", "https://example.org"], "--link: would be in no file; give --summary too"),
        (["--summary", "{}/d.md", "--link", "ftp://x"], "is not a web address"),
        (["-o", "{}/out/../base.json"], "base.json: -o would overwrite it"),
        (["--summary", "{}/head.json"], "head.json: --summary would overwrite it"),
        (["-o", "{}/d", "--summary", "{}/d"], "d: -o would overwrite it"),
        (["-o", "{}/base.json/x"], "x: cannot be written"),
        (["--fail-on", "warning"], "--fail-on"),
    ],
)
def test_what_is_refused(
    more: list[str], words: str, files: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = files(*contract())
    before = {path: Path(path).read_bytes() for path in arguments}
    assert cli.invoke(["diff", *arguments, *(word.format(tmp_path) for word in more)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert said.err.count("\n") == 1
    assert {path: Path(path).read_bytes() for path in arguments} == before


def test_needs_no_compiler_and_no_model(files: Callable[..., list[str]], tmp_path: Path) -> None:
    """A workflow that only compares installs click, jinja2, pydantic and a few others."""
    absent = "jax jaxlib torch transformers iree numpy ml_dtypes safetensors gguf accelerate"
    arguments = ["diff", *files(*contract()), "-o", str(tmp_path / "d.html"), "--summary", str(tmp_path / "d.md")]
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({absent!r}.split())); "
        f"from hloracle.cli import main as cli; sys.exit(cli.invoke({arguments!r}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "d.html").is_file()
