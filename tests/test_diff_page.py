"""The comparison's page, its summary for a pull request, and the command that writes them."""

from __future__ import annotations

import copy
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
from test_reports_sample import (
    HOSTILE,
    SAMPLES,
    broken_sample,
    empty_sample,
    failing_sample,
    hostile_sample,
    near_tie_sample,
    sample,
)

from hloracle.cli import main as cli
from hloracle.core.errors import InputError
from hloracle.reports.compare import page as diff_page
from hloracle.reports.compare import summary as compare_summary
from hloracle.reports.compare.comparison import compare
from hloracle.reports.facts import Record
from hloracle.reports.record import OLDER, to_json
from hloracle.reports.summary import LIMIT

Pair = tuple[Record, Record]


def contract() -> Pair:
    base, head = sample(), sample()
    both(drop_check("emitter.census"), wrong_token(), slower())(head)
    return base, head


def everything() -> Pair:
    base, head = contract()
    edited_graph(head)
    head["floors"][100]["relative"] *= 1.4
    head["checks"][0]["figure"] = "another"
    head["checks"][5]["expected"] = "another"
    head["environment"]["packages"] |= {"numpy": "2.4.2"}
    head["speed"]["contenders"][0]["resident_bytes"] *= 2
    return base, head


def other_model() -> Pair:
    base, head = everything()
    head |= {"mutant": "rope-sign"}
    head["model"]["digest"] = "0" * 64
    head["settings"] |= {"capacity": 512, "tokens": 8}
    return base, head


def hostile() -> Pair:
    base, head = hostile_sample(), hostile_sample()
    base["model"]["digest"] = "0" * 64
    del head["mutant"]
    for i, check in enumerate(head["checks"]):
        check["status"] = ("passed", "failed", "skipped", "error")[i % 4]
    head["checks"] = head["checks"][1:]
    for listing in head["listings"]:
        listing["scopes"][0]["ops"].append({"op": HOSTILE, "type": HOSTILE, "line": 9, "text": f"%x = y {HOSTILE}"})
    for graph in head["graphs"]:
        graph |= {"digest": HOSTILE, "scopes": {HOSTILE: {HOSTILE: 5}}, "weights": 1}
    head["environment"]["packages"] = {HOSTILE: "1"}
    head["cells"][0] |= {"status": "failed"}
    return base, head


def against(first: Callable[[], Record], second: Callable[[], Record]) -> Callable[[], Pair]:
    def make() -> Pair:
        base, head = first(), second()
        head["model"]["architecture"] = base["model"]["architecture"]
        return base, head

    make.__name__ = f"{first.__name__}-{second.__name__}"
    return make


PAIRS: list[Callable[[], Pair]] = [
    contract,
    everything,
    other_model,
    hostile,
    *(against(make, make) for make in SAMPLES),
    *(against(sample, make) for make in SAMPLES[1:]),
    *(against(make, sample) for make in SAMPLES[1:]),
]


def drawn(make: Callable[[], Pair]) -> str:
    return diff_page.render(compare(*make()))


# ---- the page


@pytest.mark.parametrize("make", PAIRS)
def test_page_is_well_formed_and_alone(make: Callable[[], Pair]) -> None:
    source = drawn(make)
    stands_alone(source)
    assert len(source) < 2_000_000
    assert drawn(make) == source


@pytest.mark.parametrize("make", PAIRS)
def test_page_can_be_read_without_seeing_it(make: Callable[[], Pair]) -> None:
    told(drawn(make))


def test_page_says_it_in_one_sentence() -> None:
    text = Page(drawn(contract)).text
    assert text.index("Not safe") < text.index(
        "2 regressions: the check “emitter.census” is gone; llama decodes 15 % slower. "
    )
    assert text.index("1 thing got worse: ") < text.index("Head Near tie") < text.index("Base Conforms")
    assert "Safe Nothing got worse; the emitted graph changed in 1 scope." in Page(drawn(_edited)).text
    same = Page(drawn(against(sample, sample))).text
    assert "Nothing changed 1,440 tokens, 14 checks and 11 graphs are the same in both runs." in same
    assert "No token changed where both runs compared it: 1,440 tokens." in same
    assert "None of 549 measured floors moved by more than 10 %." in same
    assert "No graph changed: 11 graphs, each with the same text." in same
    wrong = Page(drawn(against(failing_sample, failing_sample))).text
    assert wrong.index("Still wrong") < wrong.index("Head Emitter fault")
    assert "first wrong at layers.3.self_attn.q_rope" in wrong


def _edited() -> Pair:
    base, head = sample(), sample()
    edited_graph(head)
    return base, head


def test_severity_is_a_word_and_a_shape() -> None:
    source = drawn(everything) + drawn(against(failing_sample, sample))
    words = ("Regression", "Worse", "Changed", "Better", "By the environment")
    drawings = [
        set(re.findall(rf'<span class="status \w+">\s*(<svg(?:(?!</svg>).)*</svg>)\s*<span>{word}</span>', source))
        for word in words
    ]
    assert [len(drawing) for drawing in drawings] == [1] * len(words)
    assert len(set.union(*drawings)) == len(words)


def test_caveats_stand_above_everything() -> None:
    text = Page(drawn(other_model)).text
    first = text.index("Head carries a deliberate fault, the mutant rope-sign")
    assert first < text.index("The two runs are of different checkpoints.") < text.index("base against head", first)
    assert "the first 8 are held together" in text
    assert "Not judged: speed: another checkpoint" in text


def test_the_graphs_text_is_a_diff() -> None:
    source = drawn(everything)
    page = Page(source)
    assert "layers.*.self_attn.q_rope layers 0–29 −1 +2" in page.text
    rows = re.findall(r'<tr class="(gone|new|same)">.*?<td class="pm">(.?)</td>', source)
    assert rows[:4] == [("same", ""), ("gone", "−"), ("new", "+"), ("new", "+")]
    folds = [attrs for tag, attrs in page.tags if tag == "details"]
    assert sum("open" in attrs for attrs in folds) == 2  # the first prompt and the first scope


def test_names_alone() -> None:
    base, head = sample(), sample()
    for scope in head["listings"][1]["scopes"]:
        for op in scope["ops"]:
            op["text"] = op["text"].replace("%lm_head.dot", "%lm_head.product")
    head["graphs"][1]["digest"] = "0" * 64
    comparison = compare(base, head)
    assert (
        comparison.changes[0].words
        == "the emitted graph differs in names of values alone, as far as its operations are listed"
    )
    words = "Of what is listed only names of values changed, in 1 line of 20: every listed operation is the same."
    assert words in Page(diff_page.render(comparison)).text
    # More text than names can make up for.
    longer = {**head, "graphs": [*head["graphs"][:1], head["graphs"][1] | {"text_bytes": 10**6}, *head["graphs"][2:]]}
    assert compare(base, longer).changes[0].words == "the emitted graph has another text, in what is not listed"
    assert "The text differs in what is not listed" in Page(diff_page.render(compare(base, longer))).text
    head["listings"] = base["listings"]
    text = Page(diff_page.render(compare(base, head))).text
    assert "Every listed operation is the same. The text differs in what is not listed" in text


def test_other_values_by_the_same_names_and_texts_that_have_nothing_in_common() -> None:
    base, head = sample(), sample()

    def ops(*lines: str) -> list[Record]:
        return [{"op": "x", "type": "", "line": None, "text": line} for line in lines]

    for record, one, other, op in ((base, "%1", "%2", "add"), (head, "%2", "%1", "multiply")):
        scopes = record["listings"][1]["scopes"]
        scopes[0]["ops"] = ops(f"{one} = f %a", f"{other} = g %b", "%3 = h %1")
        scopes[-1]["ops"] = ops(*(f"%{i} = {op} %{op}{i}" for i in range(600)))
    text = Page(diff_page.render(compare(base, head))).text
    assert "≠%3 = h %1 reads other values by the same names" in text
    assert "too much differs to be compared line by line: 600 and 600 operations" in text


def test_what_differs_within_a_line_is_marked() -> None:
    base, head = sample(), sample()
    for scope in head["listings"][1]["scopes"]:
        for op in scope["ops"]:
            op["text"] = (
                op["text"].replace("dims = [0, 1]", "dims = [0, 2]").replace("stablehlo.rsqrt", "stablehlo.sqrt")
            )
    source = diff_page.render(compare(base, head))
    assert "<mark>stablehlo.rsqrt</mark>" in source
    assert "<mark>stablehlo.sqrt</mark>" in source


def test_the_rule_of_speed_stands_on_the_page() -> None:
    text = Page(drawn(contract)).text
    assert (
        "each round of the head is slower than every round of the base, and the medians are more than 5 % apart" in text
    )
    assert "5 against 5 rounds of one speed lie so by luck once in 252" in text
    assert "0.959 (0.959–0.959)" in text
    same = Page(drawn(against(sample, sample))).text
    assert "Not shown to be slower or faster: llama, decode, emitter on IREE." in same
    assert "slower would have shown from 1.05× on" in same
    failing = Page(drawn(against(sample, failing_sample))).text
    assert "Speed was not judged: the head has no times (the graphs are wrong)." in failing


def test_many_changes_are_folded() -> None:
    base, head = sample(), sample()
    base["checks"] += [base["checks"][0] | {"id": f"more-{i}"} for i in range(40)]
    text = Page(diff_page.render(compare(base, head))).text
    assert "40 regressions: the check “more-0” is gone, and 39 more checks" in text
    assert "15 more changes" in text


def test_steps_beyond_the_first_are_counted() -> None:
    base, head = sample(), sample()
    for i in range(30):
        head["tokens"]["chat@64"]["cells"]["emitter/iree-cpu"]["tokens"][i] = 1
    assert "and 6 more steps." in Page(diff_page.render(compare(base, head))).text


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((), ""),
        ((3,), "layer 3"),
        ((0, 1, 2, 5), "layers 0–2, 5"),
        ((4, 2), "layers 2, 4"),
        (tuple(range(0, 40, 2)), "layers 0, 2, 4, 6, 8, 10, 12, 14, and 12 more"),
    ],
)
def test_layers_in_words(numbers: tuple[int, ...], words: str) -> None:
    assert diff_page.layers(numbers) == words


def test_hostile_text_is_shown_and_does_nothing() -> None:
    source = drawn(hostile)
    page = Page(source)
    assert "<script" not in source
    assert "<img" not in source
    assert HOSTILE[:60] in page.text
    hidden = re.compile("[\u202a-\u202e\u2066-\u2069\u200b\ufeff\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
    assert hidden.search(source) is None


def test_a_page_of_very_much_text_is_no_larger_than_another() -> None:
    base, head = sample(), sample()
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
    text = Page(source).text
    assert text.count("−50 +50") == 240
    assert "and 100 more lines." in text


def test_tokens_that_were_not_compared_step_by_step() -> None:
    base, head = sample(), sample()
    for prompt in head["prompts"][:2]:
        prompt["token_ids"][0] = 1
    text = Page(diff_page.render(compare(base, head))).text
    assert "No token changed where both runs compared it: 960 tokens." in text
    words = "2 prompts with another prompt: only how many tokens agree with the truth was compared, and that did not change."
    assert words in text
    head["model"]["digest"] = "0" * 64
    text = Page(diff_page.render(compare(base, head))).text
    assert "No token changed" not in text
    assert "6 prompts with another model: " in text


def test_memory_that_is_halved() -> None:
    base, head = sample(), sample()
    head["speed"]["contenders"][0]["resident_bytes"] //= 2
    assert "less by more than 5 %" in Page(diff_page.render(compare(base, head))).text


# ---- the summary


def summarized(make: Callable[[], Pair], link: str = "") -> str:
    return compare_summary.render(compare(*make()), link)


@pytest.mark.parametrize("make", PAIRS)
def test_summary_fits_and_is_well_formed(make: Callable[[], Pair]) -> None:
    written = summarized(make, "https://example.org/run?a=1")
    assert len(written) < LIMIT
    assert written.count("<details>") == written.count("</details>")
    assert written.count("```") % 2 == 0
    assert written.endswith("[The whole report](<https://example.org/run?a=1>)\n")
    prose = re.sub(r"```.*?```", "", written, flags=re.DOTALL)
    for table in re.findall(r"(?:^\|.*\n)+", prose, re.MULTILINE):
        assert len({row.count("|") for row in table.splitlines() if "on the page" not in row}) == 1


def test_summary_says_what_happened() -> None:
    written = summarized(contract)
    assert written.startswith("## ❌ hloracle: Not safe\n\n2 regressions: the check “emitter.census” is gone; ")
    assert "| **head** | 🟡 Near tie | <code>4b68c0c2f1d0…</code> |" in written
    assert "| ❌ regression | **llama decodes 15 % slower**<br>" in written
    assert "The whole report" not in written
    assert summarized(against(sample, sample)).startswith("## ✅ hloracle: Nothing changed\n\n1,440 tokens, ")
    assert summarized(other_model).startswith("> ⚠️ **Head carries a deliberate fault, the mutant rope-sign: ")
    assert "## ⚠️ hloracle: Look twice" in summarized(against(sample, near_tie_sample))
    assert "gave no result" in summarized(against(sample, broken_sample))
    assert "is no longer run" in summarized(against(sample, empty_sample))
    assert "⏭️ Not judged: speed: " in summarized(against(sample, failing_sample))
    assert "\n+ %x = stablehlo.slice " in summarized(everything)


def test_summary_is_not_led_astray() -> None:
    written = summarized(hostile)
    prose, fenced = re.sub(r"```.*?```", "", written, flags=re.DOTALL), re.findall(r"```.*?```", written, re.DOTALL)
    for mark in ("<script", "<img", "](", "http:", "\u202e", "\n# heading"):
        assert mark not in prose
    assert re.search(r"(?<!>)@octocat", re.sub(r"<code>.*?</code>", "", prose)) is None
    assert fenced
    assert all(block.count("`") == 6 and "\u202e" not in block for block in fenced)


def test_summary_of_very_many_things_fits() -> None:
    base, head = hostile()
    base["checks"] += [base["checks"][0] | {"id": f"k{i} {HOSTILE}", "status": "passed"} for i in range(100, 600)]
    head["environment"]["packages"] = {f"{i} {HOSTILE}": HOSTILE for i in range(300)}
    scope = head["listings"][0]["scopes"][0]
    scope["ops"] = [{"op": "x", "type": "", "line": 1, "text": f"%{i} = {i} {HOSTILE}"} for i in range(500)]
    written = compare_summary.render(compare(base, head))
    assert len(written) < LIMIT
    assert "more changes on the page" in written
    assert "more differences on the page" in written


def test_summary_leads_only_to_the_web() -> None:
    with pytest.raises(InputError, match="is not a web address"):
        summarized(contract, "javascript:alert(1)")


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
    assert summary.read_text("utf-8") == summarized(contract, "https://example.org/")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("regression  The check “emitter.census” is gone (passed: 10 of 10 graphs → not there)")
    assert lines[-3].startswith("Not safe: 2 regressions: ")
    assert lines[-2:] == [str(page), str(summary)]
    assert sorted(path.name for path in page.parent.iterdir()) == ["diff.html", "diff.md"]


def test_json(files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["diff", *files(sample(), broken_sample()), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert printed["schema"] == "hloracle-diff/1"
    assert printed["counts"]["regression"] == sum(c["severity"] == "regression" for c in printed["changes"]) == 5
    assert printed["head"] == {"class": "harness-error", "passed": False, "commit": sample()["environment"]["commit"]}


@pytest.mark.parametrize(
    ("make", "regression", "change"),
    [
        (against(sample, sample), 0, 0),
        (_edited, 0, 1),
        (contract, 1, 1),
        (against(sample, near_tie_sample), 0, 1),
        (against(failing_sample, sample), 0, 1),
    ],
)
def test_exit_status(make: Callable[[], Pair], regression: int, change: int, files: Callable[..., list[str]]) -> None:
    arguments = ["diff", *files(*make())]
    assert cli.invoke(arguments) == 0
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


def test_the_environment_fails_nothing(files: Callable[..., list[str]]) -> None:
    head = sample()
    head["environment"]["packages"]["numpy"] = "9"
    assert cli.invoke(["diff", *files(sample(), head), "--fail-on", "change"]) == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--link", "https://example.org"], "--link: would be in no file; give --summary too"),
        (["--summary", "{}/d.md", "--link", "ftp://x"], "is not a web address"),
        (["-o", "{}/base.json"], "base.json: -o would overwrite it"),
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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.json", "head.json"]


def test_records_that_cannot_be_compared(
    files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    head = sample()
    head["model"]["architecture"] = "qwen3"
    arguments = files(sample(), head)
    assert cli.invoke(["diff", *arguments]) == 2
    assert "head.json: is of a 'qwen3' model and the base's record of a 'llama' one; " in capsys.readouterr().err
    assert cli.invoke(["diff", arguments[0], str(tmp_path / "absent.json")]) == 2
    assert "absent.json: no such file" in capsys.readouterr().err


def test_a_record_of_the_version_before(
    files: Callable[..., list[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    older = copy.deepcopy(sample()) | {"schema": OLDER[-1]}
    older["model"]["model_type"] = older["model"].pop("architecture")
    for key in ("listings", "block", "speed", "families"):
        del older[key]
    for graph in older["graphs"]:
        for key in ("flops", "bytes", "digest"):
            del graph[key]
    for timing in older["timings"]:
        del timing["begin"], timing["parts"]
    del older["environment"]["commit"]
    for key in ("lean", "layout", "joined"):
        del older["settings"][key]
    page = tmp_path / "d.html"
    head = sample()
    head["settings"]["layout"] = "rows"  # as the older one's are
    assert cli.invoke(["diff", *files(older, head), "-o", str(page), "--fail-on", "change"]) == 0
    assert "speed: the base has no times (the record is of hloracle-report/2)" in capsys.readouterr().out
    assert "their texts are not in both records" in page.read_text("utf-8")


def test_needs_no_compiler_and_no_model(files: Callable[..., list[str]], tmp_path: Path) -> None:
    """A workflow that only compares installs click, jinja2 and a few others."""
    absent = "jax jaxlib torch transformers iree numpy ml_dtypes safetensors gguf accelerate"
    arguments = ["diff", *files(*contract()), "-o", str(tmp_path / "d.html"), "--summary", str(tmp_path / "d.md")]
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({absent!r}.split())); "
        f"from hloracle.cli import main as cli; sys.exit(cli.invoke({arguments!r}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "d.html").is_file()
