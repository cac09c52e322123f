"""Many models in one run: their rows, the verdict of all, and what is kept of those that do not pass."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
import threading
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import records
from records import failing_suite as failing_suite_sample
from records import suite as suite_sample

from hloracle.cli import main as cli
from hloracle.cli import show
from hloracle.conformance import run as run_module
from hloracle.conformance import suite
from hloracle.conformance.context import Context, Progress
from hloracle.conformance.evidence import Evidence, Run
from hloracle.conformance.graphs.facts import GraphFacts
from hloracle.conformance.graphs.sources import Emitter
from hloracle.conformance.settings import QUICK_CAPACITY, Settings
from hloracle.conformance.suite import FamilyRun, Told
from hloracle.core.child import ChildDied, ChildResult, Report
from hloracle.core.console import Output
from hloracle.core.errors import InputError
from hloracle.core.files import locked
from hloracle.core.record import Check
from hloracle.emitters.model import emit
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.registry import FAMILIES, from_hf
from hloracle.reports.record import load, validate, write_family

Record = dict[str, Any]
REAL = Settings("smollm2-135m-instruct")


def real_one(record: Record) -> Record:
    """The record as if it were of the real model."""
    record["model"]["name"] = REAL.model
    return record


def sample() -> Record:
    return real_one(records.conforms())


def failing_sample() -> Record:
    return real_one(records.failing())


def near_tie_sample() -> Record:
    return real_one(records.near_tie())


def of(name: str, record: Record) -> Record:
    """The record as if it were of a family's tiny model."""
    found = copy.deepcopy(record)
    found["model"] |= {"name": f"tiny-{name}", "architecture": name, "digest": name}
    return found


KILLED: dict[str, Any] = {
    "qwen3": {"killed": 17, "total": 18, "pinned": False, "reason": ""},
    "llama": {"killed": 30, "total": 30, "pinned": True, "reason": ""},
}


def run_suite(families: Sequence[str], real: Settings | None, told: Told, context: Context | None = None) -> Record:
    return dict(suite.run_suite(families, real, 2, Path("out"), told, context or Context()))


class Stub:
    """In place of processes and of the real model's run: answers that are there already."""

    def __init__(self, patch: pytest.MonkeyPatch, answers: dict[str, Record | str], real: Record | None = None) -> None:
        self.answers, self.kept, self.real = answers, dict[str, Record](), real
        self.told, self.finished = list[str](), list[Any]()
        patch.setattr(suite, "run_each", self.each)
        patch.setattr(suite, "run_in_child", self.run)

    def each(
        self, function: Any, items: Sequence[FamilyRun], jobs: int, timeout: float, report: Any, done: Any
    ) -> None:
        self.items, self.jobs = list(items), jobs
        for item in reversed(items):  # they end in no order
            done(item, self.answers[item[0].model.removeprefix("tiny-")], 2.5)

    def run(
        self, function: Any, settings: Settings, context: Context, began: float, *, timeout: float, report: Report
    ) -> ChildResult:
        assert self.real is not None
        self.busy = settings.busy
        report("compile, 1 of 2")
        report(suite.FINISHED + json.dumps(["compile", 2.0, False]))
        return ChildResult(copy.deepcopy(self.real), 7.5, 1)

    def keep(self, name: str, record: Record) -> str:
        self.kept[name] = record
        return "" if record["passed"] else f"families/{name}/report.html"

    def suite(self, real: Settings | None = None) -> Record:
        progress = Progress(self.told.append, lambda *done: self.finished.append(done))
        told = Told(self.keep, lambda name: KILLED.get(name, suite._not_run(name)))
        return run_suite(list(self.answers), real, told, Context(progress, threads=2))


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stub]:
    return lambda answers, real=None: Stub(monkeypatch, answers, real)


# ---- the rows


def test_a_row_says_what_the_record_says(stub: Callable[..., Stub]) -> None:
    found = stub({"llama": of("llama", sample()), "qwen3": of("qwen3", sample())}).suite()
    validate(found)
    llama, qwen3 = found["families"]
    emitted = {(g["phase"], g["head"]): g for g in sample()["graphs"] if g["source"] == "emitter"}
    assert (llama["architecture"], llama["model"], llama["digest"]) == ("llama", "tiny-llama", "llama")
    assert (llama["verdict"], llama["passed"], llama["anchor"], llama["failed"]) == ("conforms", True, None, [])
    total = sum(c["total"] for c in sample()["configurations"])
    assert llama["tokens"] == {"agreed": total, "total": total}
    assert llama["op_kinds"] == emitted["decode", "logits"]["op_kinds"]
    assert llama["matmuls"] == emitted["decode", "token"]["ops"]["dot_general"]
    assert llama["weights"] == emitted["decode", "token"]["weights"]
    assert llama["seconds"] == 2.5
    assert llama["mutants"] == {"killed": 30, "total": 30, "pinned": True, "reason": ""}
    assert qwen3["mutants"] == {"killed": 17, "total": 18, "pinned": False, "reason": ""}
    errors = [e for m in found["anchors"] for row in m["errors"] for e in row if e is not None]
    assert llama["worst"]["floors"] == max(errors)
    assert llama["worst"]["limit"] == next(
        f["limit"] for f in found["floors"] if f["anchor"] == llama["worst"]["anchor"]
    )


def test_the_order_is_that_of_the_question(stub: Callable[..., Stub]) -> None:
    names = ("qwen3", "llama", "gemma")
    made = stub({name: of(name, sample()) for name in names}, sample())
    assert [row["architecture"] for row in made.suite()["families"]] == [*names]
    whole = made.suite(REAL)
    assert [row["model"] for row in whole["families"]] == [REAL.model, *(f"tiny-{name}" for name in names)]
    assert whole["families"][0]["mutants"]["reason"]
    assert whole["model"]["name"] == REAL.model
    assert list(made.kept) == [*reversed(names)]


def test_how_families_are_judged(stub: Callable[..., Stub]) -> None:
    made = stub({name: of(name, sample()) for name in ("llama", "qwen3")})
    made.suite()
    first, context = made.items[0]
    assert (first.model, first.tokens, first.capacity, context.threads) == ("tiny-llama", 48, QUICK_CAPACITY, 1)
    assert (first.quick, first.rounds, context.reuse, first.out) == (True, 0, True, Path("out/families/llama"))
    for settings, _ in made.items:
        settings.validate()


@pytest.mark.parametrize(
    ("capacity", "buckets", "phase"), [(48, (32,), "prefill"), (111, (64,), "prefill"), (300, (64,), "extend")]
)
def test_how_families_are_judged_with_other_slots(capacity: int, buckets: tuple[int, ...], phase: str) -> None:
    settings, _ = suite.family_run("llama", None, Context(), {"capacity": capacity})
    assert (settings.capacity, settings.buckets, settings.prompt) == (capacity, buckets, phase)


@pytest.mark.parametrize(
    ("alike", "words"),
    [
        ({"capacity": 40}, "--tokens: is 48, more than the 40 cache slots"),
        ({"capacity": 60_000}, "--capacity: is 60,000, and tiny-llama has 1,024 positions; ask for at most as many"),
        (
            {"capacity": 48, "ring": True},
            "--ring: needs a layer with a window of less than 48 slots, and llama has none",
        ),
    ],
)
def test_slots_that_a_tiny_model_cannot_have(alike: dict[str, Any], words: str) -> None:
    """Refused before anything runs, which would be a report of a model without an answer."""
    with pytest.raises(InputError, match=re.escape(words)):
        suite.run_suite(["llama"], None, 1, None, Told(), Context(), alike)


def test_no_worst_where_nothing_was_compared() -> None:
    record = sample()
    record["anchors"] = []
    assert suite.worst_anchor(record) is None


def test_nan_and_the_nearest_to_its_limit_are_the_worst() -> None:
    record = sample()
    a, b = record["floors"][0], record["floors"][1]
    a["limit"] = 2.0
    matrix = {"configuration": "c", "anchors": [a["anchor"], b["anchor"]], "errors": [[1.9], [7.0]]}
    record["anchors"] = [matrix]
    assert suite.worst_anchor(record) == {"floors": 1.9, "anchor": a["anchor"], "limit": 2.0, "configuration": "c"}
    matrix["errors"] = [[1.9], [math.nan]]
    worst = suite.worst_anchor(record)
    assert worst is not None
    assert worst["anchor"] == b["anchor"]


# ---- the verdict of all


def test_all_conform(stub: Callable[..., Stub]) -> None:
    found = stub({"llama": of("llama", sample())}, sample()).suite(REAL)
    validate(found)
    assert (found["passed"], found["verdict"]["class"]) == (True, "conforms")
    assert found["verdict"]["explanation"].endswith(" 2 of 2 models conform.")


def test_what_was_not_compared_of_any_model_comes_first(stub: Callable[..., Stub]) -> None:
    real, partial = sample(), sample()
    partial["verdict"]["not_compared"] = ["logits of decode at positions 0 to 3"]
    names = ("llama", "qwen3")
    found = stub({name: of(name, partial) for name in names} | {"gemma": of("gemma", sample())}, real).suite(REAL)
    validate(found)
    phrases = ["of 2 other models, logits of decode at positions 0 to 3"]
    assert found["verdict"]["not_compared"] == phrases
    words = real["verdict"]["explanation"]
    assert found["verdict"]["explanation"] == f"Not compared: {phrases[0]}. {words} 4 of 4 models conform."
    # What was not compared of the record's own model stays where it is, and is said once.
    own = ["the values inside: the graph names no anchors"]
    real["verdict"] |= {"not_compared": own, "explanation": f"Not compared: {own[0]}. {words}"}
    found = stub({"llama": of("llama", partial)}, real).suite(REAL)
    validate(found)
    assert found["verdict"]["explanation"] == (
        f"Not compared: {own[0]}; of tiny-llama, {partial['verdict']['not_compared'][0]}. {words} 2 of 2 models conform."
    )


def test_one_model_says_nothing_of_others(stub: Callable[..., Stub]) -> None:
    found = stub({"llama": of("llama", sample())}).suite()
    assert found["verdict"] == sample()["verdict"]
    assert len(found["families"]) == 1


def test_a_wrong_family_is_the_verdict_of_all(stub: Callable[..., Stub]) -> None:
    answers = {"llama": of("llama", sample()), "qwen3": of("qwen3", failing_sample())}
    found = stub(answers, sample()).suite(REAL)
    validate(found)
    assert not found["passed"]
    verdict = found["verdict"]
    assert (verdict["class"], verdict["anchor"], verdict["prompt"]) == ("emitter-fault", None, None)
    assert (
        "smollm2-135m-instruct conforms, but 1 of 3 models does not: tiny-qwen3 (emitter-fault at "
        in verdict["explanation"]
    )
    assert verdict["evidence"][0].startswith("tiny-qwen3, emitter-fault at layers.2.self_attn.q_rope: ")
    row = found["families"][2]
    assert row["anchor"] == "layers.2.self_attn.q_rope"
    assert row["report"] == "families/qwen3/report.html"
    configuration = "emitter/iree-cpu"
    failed = {"emitter.probes", f"{configuration}.tokens", f"{configuration}.decode-logits", f"{configuration}.caches"}
    assert failed < {check["id"] for check in row["failed"]}
    assert row["failed"] == [check for check in failing_sample()["checks"] if check["status"] == "failed"]
    assert row["tokens"]["agreed"] < row["tokens"]["total"]


def test_both_wrong(stub: Callable[..., Stub]) -> None:
    found = stub({"qwen3": of("qwen3", failing_sample())}, failing_sample()).suite(REAL)
    validate(found)
    assert found["verdict"]["anchor"] == "layers.2.self_attn.q_rope"
    assert found["verdict"]["explanation"].endswith(
        " Beside smollm2-135m-instruct, so is wrong: tiny-qwen3 (emitter-fault at layers.2.self_attn.q_rope)."
    )


def test_only_the_real_model_is_wrong(stub: Callable[..., Stub]) -> None:
    found = stub({"qwen3": of("qwen3", sample())}, failing_sample()).suite(REAL)
    validate(found)
    assert not found["passed"]
    assert found["verdict"] == failing_sample()["verdict"]


def test_a_near_tie_of_one_is_one_of_all(stub: Callable[..., Stub]) -> None:
    found = stub({"qwen3": of("qwen3", near_tie_sample())}, sample()).suite(REAL)
    validate(found)
    assert (found["passed"], found["verdict"]["class"]) == (True, "near-tie")
    assert found["verdict"]["explanation"].endswith(" 2 of 2 models pass, 1 by a near tie.")


def test_a_family_that_dies_is_a_row(stub: Callable[..., Stub]) -> None:
    found = stub({"llama": of("llama", sample()), "qwen3": "judged died (signal SIGSEGV)"}, sample()).suite(REAL)
    validate(found)
    assert not found["passed"]
    assert found["verdict"]["class"] == "harness-error"
    row = found["families"][2]
    assert (row["verdict"], row["passed"]) == ("harness-error", False)
    assert row["report"] == "families/qwen3/report.html"
    (failed,) = row["failed"]
    assert (failed["status"], failed["detail"]) == ("error", "judged died (signal SIGSEGV)")


def test_a_record_that_cannot_be_written_takes_no_other_with_it(stub: Callable[..., Stub]) -> None:
    made = stub({"llama": of("llama", sample()), "qwen3": of("qwen3", sample())}, sample())

    def keep(name: str, record: Record) -> str:
        if name == "qwen3":
            raise ValueError("configurations[0].agreed: 3 of 2")
        return ""

    found = run_suite(["llama", "qwen3"], REAL, Told(keep))
    validate(found)
    assert not found["passed"]
    assert [row["passed"] for row in found["families"]] == [True, True, False]
    assert made.items
    assert "its record is not valid: configurations[0].agreed: 3 of 2" in found["families"][2]["explanation"]


def test_the_first_family_that_dies_has_the_record(stub: Callable[..., Stub]) -> None:
    found = stub({"qwen3": "it died", "llama": of("llama", sample())}).suite()
    validate(found)
    assert (found["model"]["name"], found["verdict"]["class"]) == ("tiny-qwen3", "harness-error")
    assert [row["passed"] for row in found["families"]] == [False, True]


def test_a_family_whose_model_cannot_be_read_ends_it(
    stub: Callable[..., Stub], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(*_: Any, **__: Any) -> None:
        raise InputError("cannot be read", "tiny-qwen3", "give it")

    monkeypatch.setattr(suite, "resolve", unread)
    with pytest.raises(InputError, match="tiny-qwen3: cannot be read"):
        stub({"llama": of("llama", sample()), "qwen3": "it died"}).suite()


def test_a_family_that_died_has_a_record(tmp_path: Path) -> None:
    found = suite.dead(*suite.family_run("llama", tmp_path, Context()), "judged died (signal SIGKILL)")
    validate(found)
    assert (found["verdict"]["class"], found["passed"]) == ("harness-error", False)
    assert "SIGKILL" in found["verdict"]["explanation"]
    assert write_family(found, tmp_path, "llama") == "families/llama/report.html"


def test_a_real_model_that_cannot_be_run_ends_it(stub: Callable[..., Stub], monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as a family has ended."""
    made = stub({name: of(name, sample()) for name in ("llama", "qwen3")})

    def refused(*_: Any, **__: Any) -> ChildResult:
        raise InputError("no such model", "'absent'", "name another")

    def each(function: Any, items: Sequence[FamilyRun], jobs: int, timeout: float, report: Any, done: Any) -> None:
        time.sleep(0.3)
        made.each(function, items, jobs, timeout, report, done)

    monkeypatch.setattr(suite, "run_in_child", refused)
    monkeypatch.setattr(suite, "run_each", each)
    with pytest.raises(InputError, match="no such model"):
        made.suite(REAL)
    assert made.kept == {}


def test_a_real_model_whose_process_dies(stub: Callable[..., Stub], monkeypatch: pytest.MonkeyPatch) -> None:
    made = stub({"llama": of("llama", sample())}, sample())

    def dies(*_: Any, **__: Any) -> ChildResult:
        raise ChildDied("judged_beside died (signal SIGKILL)")

    monkeypatch.setattr(suite, "run_in_child", dies)
    gone = {**failing_sample(), "verdict": {**failing_sample()["verdict"], "class": "harness-error"}}
    monkeypatch.setattr(suite, "dead", lambda settings, context, why: gone if "SIGKILL" in why else {})
    found = run_suite(["llama"], REAL, Told(made.keep))
    assert (found["passed"], found["verdict"]["class"]) == (False, "harness-error")


def test_what_is_told_of_both(stub: Callable[..., Stub]) -> None:
    """A line for what runs side by side, a line for each that is finished; and a lock while nothing may be timed."""
    made = stub({"llama": of("llama", sample())}, sample())
    made.suite(REAL)
    assert "compile, 1 of 2" in made.told[-1]
    assert any(line.startswith("1 of 1 families, last llama") for line in made.told)
    assert [done[0] for done in made.finished] == ["compile", "tiny-llama", "families"]
    assert made.busy is not None
    assert not made.busy.parent.exists()


def test_nothing_is_timed_as_long_as_it_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(Context, "child", lambda *_, **__: seen.append("timed") or ChildResult([], 1.0, 1))
    graph = emit(from_hf(TINY["llama"]), "decode", "logits", 64)
    evidence = Evidence(graphs={source: [(graph, GraphFacts())] for source in ("emitter", "oracle")})
    model: Any = types.SimpleNamespace(directory=tmp_path)
    told: list[str] = []
    context, settings = Context(Progress(told.append)), Settings("m", busy=tmp_path / "busy")
    run = Run(settings, context, (Emitter(),), model, evidence)
    with locked(tmp_path / "busy"):
        thread = threading.Thread(target=run_module.compare_speed, args=(run, types.SimpleNamespace(passed=True)))
        thread.start()
        while not told:
            time.sleep(0.01)
        time.sleep(0.2)
        assert (seen, told) == ([], [run_module.WAIT])
    thread.join(10)
    assert seen == ["timed"]


def test_families_by_name() -> None:
    assert suite.selected(()) == list(FAMILIES)
    assert suite.selected(("qwen3", "llama", "qwen3")) == ["qwen3", "llama"]
    with pytest.raises(InputError, match=r"'tiny-llama': is no family; name some of: .*llama"):
        suite.selected(("tiny-llama",))


def test_families_are_a_stage_with_parts(stub: Callable[..., Stub]) -> None:
    found = stub({name: of(name, sample()) for name in ("llama", "qwen3")}).suite()
    (stage,) = [t for t in found["timings"] if t["stage"] == "families"]
    assert {part["name"] for part in stage["parts"]} == {"llama", "qwen3"}
    assert all(part["begin"] >= stage["begin"] for part in stage["parts"])


# ---- what is written


def test_a_record_of_its_own_and_a_page_where_it_does_not_pass(tmp_path: Path) -> None:
    assert write_family(failing_sample(), tmp_path, "llama") == "families/llama/report.html"
    folder = tmp_path / "families" / "llama"
    assert sorted(p.name for p in folder.iterdir()) == ["report.html", "report.json"]
    assert write_family(sample(), tmp_path, "llama") == ""
    assert [p.name for p in folder.iterdir()] == ["report.json"]
    assert load(folder / "report.json") == sample()


@pytest.mark.parametrize(("make", "status"), [(suite_sample, 0), (failing_suite_sample, 1)])
def test_the_command(
    make: Callable[[], Record], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    asked: list[Any] = []

    def run_suite(*arguments: Any) -> Record:
        asked.extend(arguments)
        return make()

    monkeypatch.setattr(suite, "run_suite", run_suite)
    stale = tmp_path / "families" / "qwen3" / "report.html"
    stale.parent.mkdir(parents=True)
    stale.write_text("of an earlier run")
    assert cli.invoke(["suite", "--out", str(tmp_path), "--threads", "2", "--rounds", "3"]) == status
    assert asked[0] == list(FAMILIES)
    assert asked[1] == Settings("smollm2-135m-instruct", out=tmp_path, rounds=3)
    assert (asked[-2].threads, asked[-1]) == (2, {"batch": 1, "compute": "f32", "ring": False, "kv": "compute"})
    assert not stale.exists()
    assert load(tmp_path / "report.json")["families"] == make()["families"]
    printed = capsys.readouterr().out
    assert printed.count("✓") == sum(row["passed"] for row in make()["families"])
    assert ("✗ mistral" in printed) == bool(status)


def test_named_families_run_without_the_real_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def run_suite(families: list[str], real: Settings | None, *rest: Any) -> Record:
        assert (families, real) == (["qwen3"], None)
        asked.append(rest[-1])
        return suite_sample()

    monkeypatch.setattr(suite, "run_suite", run_suite)
    for more in ([], ["--capacity", "300"]):
        assert cli.invoke(["suite", "qwen3", "--out", str(tmp_path), "--json", *more]) == 0
        assert json.loads(capsys.readouterr().out)["families"] == suite_sample()["families"]
    assert [alike.get("capacity") for alike in asked] == [None, 300]


def test_what_cannot_run_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["suite", "bert", "--out", str(tmp_path)]) == 2
    assert "hloracle: 'bert': is no family" in capsys.readouterr().err
    assert cli.invoke(["suite", "--rounds", "-1", "--out", str(tmp_path)]) == 2
    assert "--rounds" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--rounds", "--threads"])
def test_families_alone_take_no_flag_of_the_real_model(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.invoke(["suite", "qwen3", flag, "2", "--out", str(tmp_path)]) == 2
    assert (
        capsys.readouterr().err
        == f"hloracle: {flag}: has no effect on families alone: it is of the real model; leave it out\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(suite, "run_each", interrupted)
    assert cli.invoke(["suite", "llama", "--out", str(tmp_path)]) == 130
    assert not (tmp_path / "report.json").exists()


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    record = failing_suite_sample()
    record["families"][1]["mutants"] = KILLED["qwen3"]
    died = suite.dead(*suite.family_run("gpt_oss", Path(), Context()), "it died")
    record["families"].append(suite.row_of(died, 1.0, suite._not_run("gpt_oss"), ""))
    show.print_families(record, Path("out"), Output(highlight=False))
    lines = capsys.readouterr().out.splitlines()
    heading = " ".join(
        " ".join(words) for words in itertools.zip_longest(*(line.split() for line in lines[:2]), fillvalue="")
    )
    assert all(
        word in heading for word in ("family", "tokens", "worst", "anchor,", "floors", "kinds", "matmuls", "killed")
    )
    (row,) = [line for line in lines if line.startswith("✗ mistral")]
    worst = record["families"][1]["worst"]
    figures = [f"{worst['floors']:.2f}", worst["anchor"], "21", "9", "17/18"]
    assert row.split() == ["✗", "mistral", "768/768", *figures]
    (row,) = [line for line in lines if line.startswith("✗ gpt_oss")]
    assert row.split()[2:6] == ["0/0", "not", "compared", "–"]
    (row,) = [line for line in lines if line.startswith("✓ llama")]
    assert row.endswith("not run")
    told = "\n".join(lines)
    assert "tiny-mistral emitter-fault at layers.2.self_attn.q_rope: The oracle's graph is right" in told
    assert "failed  emitter/iree-cpu/token.tokens: 18 of 24" in told
    assert "report: out/families/mistral/report.html" in told
    assert "emitter-fault: The first model conforms, but 1 of 2 does not" in " ".join(told.split())


def test_checks_of_which_there_is_the_same_to_say_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    record = failing_suite_sample()
    failed = record["families"][1]["failed"][0]
    row: dict[str, Any] = {**failed, "status": "skipped", "figure": "", "detail": "it has [no] counts"}
    record["families"][1]["failed"] = cast(
        list[Check],
        [{**row, "id": "a.census"}, failed, {**row, "id": "a.tables"}, {**row, "id": "b", "detail": "other"}],
    )
    show.print_families(record, Path("out"), Output(highlight=False))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(" skipped")]
    assert lines == [" skipped  a.census, a.tables: it has [no] counts", " skipped  b: other"]


# ---- one family, really run


@pytest.mark.nightly
def test_a_family_through_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["suite", "qwen3", "--out", str(tmp_path)]) == 0
    record = load(tmp_path / "report.json")
    (row,) = record["families"]
    assert row["architecture"] == record["model"]["architecture"] == "qwen3"
    assert row["tokens"]["agreed"] == row["tokens"]["total"] == 960
    assert 0 < row["worst"]["floors"] < row["worst"]["limit"]
    assert load(tmp_path / "families/qwen3/report.json")["model"] == record["model"]
    assert "✓ qwen3" in capsys.readouterr().out
