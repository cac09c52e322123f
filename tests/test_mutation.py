"""The count of what was noticed: what is a kill and what is not, and a few mutants through whole runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hloracle.cli import main as cli
from hloracle.conformance.context import Context
from hloracle.conformance.evidence import Settings
from hloracle.core.child import Report
from hloracle.core.errors import InputError
from hloracle.mutants import MUTANTS, Mutant
from hloracle.mutants.registry import Run
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.registry import FAMILIES
from hloracle.studies import mutants as mutation
from hloracle.studies import study
from hloracle.studies.changed_operations import changed_lines
from hloracle.studies.mutants import Trial, problems, selected

MUTANT = MUTANTS["norm-sum"]
CAUGHT = Trial(MUTANT.id, "emitter-fault", MUTANT.anchor, "stablehlo.rsqrt", "certain", "exact", 1.0)
CLEAN = {"passed": True, "tokens": {"p@32": {"configurations": {"emitter/iree-cpu": {"errors": [1.0]}}}}}
CONSUMERS = {MUTANT.anchor: {"layers.0.self_attn.q_proj"}}
HELD = ("rows", "panels", "bf16", "f16", "int8", "int4")


def record(class_: str = "emitter-fault", anchor: str | None = MUTANT.anchor, **more: Any) -> dict[str, Any]:
    verdict = {"class": class_, "anchor": anchor, "operation": None, "confidence": None}
    return {**CLEAN, "passed": class_ in ("conforms", "near-tie"), "verdict": verdict, "checks": [], **more}


def trial(found: dict[str, Any] | str) -> Trial:
    return mutation._trial(MUTANT.id, found if isinstance(found, str) else (found, None), 1.0, (CLEAN, CONSUMERS))


def test_caught_at_its_place() -> None:
    found = trial(record())
    assert (found.verdict, found.place, found.killed, found.right) == ("emitter-fault", "exact", True, True)
    assert problems([found]) == []


@pytest.mark.parametrize("class_", ["conforms", "near-tie"])
def test_a_pass_is_a_survivor(class_: str) -> None:
    found = trial(record(class_, None))
    assert not found.killed
    assert problems([found]) == ["norm-sum survived: every logit is the right one, bit for bit"]


def test_a_survivor_that_changes_something_says_so() -> None:
    other = {"p@32": {"configurations": {"emitter/iree-cpu": {"errors": [1.5]}}}}
    assert trial(record("conforms", None, tokens=other)).detail == "logits differ, within their limits"


def test_a_crash_is_no_kill() -> None:
    for found in (
        trial("norm-sum died (signal SIGSEGV)"),
        trial(
            record(
                "harness-error",
                checks=[{"id": "harness.process", "kind": "process", "status": "error", "detail": "it died"}],
            )
        ),
    ):
        assert (found.verdict, found.killed, found.right) == ("crashed", False, False)
        assert "norm-sum crashed" in problems([found])[0]


def test_another_class_is_a_problem() -> None:
    found = trial(record("compiler-fault"))
    assert found.killed
    assert not found.right
    assert problems([found]) == ["norm-sum is compiler-fault, not emitter-fault"]


def test_the_direct_consumer_counts_for_a_few() -> None:
    found = trial(record(anchor="layers.0.self_attn.q_proj"))
    assert (found.place, found.right) == ("consumer", True)
    assert problems([found] + [CAUGHT] * 19) == []
    assert problems([found] + [CAUGHT] * 18) == ["1 of 19 are placed at a consumer, more than 5%"]


def test_another_operation_counts_for_a_few_of_all() -> None:
    """A fault of which there is none to name is none of those."""
    missed, right = dataclasses.replace(CAUGHT, exact=False), dataclasses.replace(CAUGHT, exact=True)
    rest = [CAUGHT] * (len(MUTANTS) - 100)
    assert problems([missed] * 10 + [right] * 90 + rest) == []
    (problem,) = problems([missed] * 11 + [right] * 89 + rest)
    assert problem == "another operation is named in 11 of 100, more than 10%: norm-sum"
    assert problems([missed] * 11) == []


@pytest.mark.parametrize("anchor", [None, "norm"])
def test_elsewhere_is_a_problem(anchor: str | None) -> None:
    found = trial(record(anchor=anchor))
    assert found.place == "elsewhere"
    assert not found.right
    assert "is placed at" in problems([found])[0]


def test_nothing_run_proves_nothing() -> None:
    assert problems([]) == ["no mutant was run"]


def test_selected() -> None:
    assert selected([]) == list(MUTANTS.values())
    assert next(iter(selected(["norm-sum", "norm-mean"]))).id == "norm-sum"
    assert {m.part for m in selected(["session"])} == {"session"}
    assert {m.model for m in selected(["gemma2"])} == {"tiny-gemma2"} == {m.model for m in selected(["tiny-gemma2"])}
    with pytest.raises(InputError, match="no-such"):
        selected(["no-such"])


def test_a_wrong_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the right model does not conform, a mutant's alarm would say nothing."""

    wrong = record("emitter-fault")
    wrong["verdict"]["explanation"] = "it is wrong"
    for answer in ((wrong, CONSUMERS), "_right died (signal SIGSEGV)"):
        monkeypatch.setattr(study, "run_each", lambda f, items, *a, answer=answer: a[-1](items[0], answer, 1.0))
        with pytest.raises(
            InputError, match=r"tiny-llama: does not conform without any fault: (it is wrong|_right died)"
        ) as caught:
            mutation.run_mutants([MUTANT], 1, lambda line: None, reuse=False)
        assert str(caught.value).endswith("run `hloracle run tiny-llama --precision f32 --layout rows`")


@pytest.mark.parametrize(
    ("weights", "options"),
    [
        ("rows", "--precision f32 --layout rows"), ("panels", "--precision f32 --layout panels"),
        ("int4", "--precision int4 --layout panels"), ("bf16", "--precision bf16 --layout panels"),
        ("panels+fused", "--precision f32 --layout panels --fused"),
        ("int4+fused", "--precision int4 --layout panels --fused"),
    ],
)  # fmt: skip
def test_how_a_run_holds_its_weights(weights: str, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a mutant, and that of the right model beside it."""
    asked: list[tuple[Settings, Context]] = []
    monkeypatch.setattr(mutation, "run", lambda *arguments: asked.append(arguments) or {})
    monkeypatch.setattr(mutation, "_consumers", lambda of: {})
    monkeypatch.setattr(mutation, "_exact", lambda mutant, record: None)
    mutant = next(m for m in MUTANTS.values() if m.run == Run("tiny-llama", weights) and m.part == "emitter")
    mutation._judged(lambda line: None, mutant.id)
    mutation._right(lambda line: None, mutant.run)
    found = [
        (
            f"--precision {s.precision} --layout {c.layout}{' --fused' * c.fused}",
            s.model,
            x.fault.id if x.fault else "",
        )
        for s, x in asked
        if (c := s.choice)
    ]
    assert found == [(options, "tiny-llama", id) for id in (mutant.id, "")]
    assert mutation._command(mutant.run) == f"hloracle run tiny-llama {options}"


def test_each_mutant_is_held_to_a_right_run_with_weights_held_alike(
    monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    """What differs from it is then the fault's doing, and not the rounding's."""
    right: list[Any] = []
    clean = {
        weights: {"p@32": {"configurations": {"emitter/iree-cpu": {"errors": [n]}}}} for n, weights in enumerate(HELD)
    }

    def each(function: Any, items: Sequence[Any], jobs: int, timeout: float, report: Report, done: Any) -> None:
        for item in items:
            weights = item[1] if function is mutation._right else MUTANTS[item].weights
            if function is mutation._right:
                right.append(item)
                done(item, (record("conforms", None, tokens=clean[weights]), {}), 1.0)
            else:
                done(item, (record("conforms", None, tokens=clean[weights]), None), 1.0)

    monkeypatch.setattr(study, "run_each", each)
    mutants = [next(m for m in MUTANTS.values() if m.run == Run("tiny-llama", weights)) for weights in HELD]
    found = mutation.run_mutants([*mutants, mutants[0]], 1, lambda line: None, reuse=False)
    assert right == [Run("tiny-llama", weights) for weights in HELD]
    assert {t.detail for t in found} == {"every logit is the right one, bit for bit"}


# ---- what is kept


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HLORACLE_CACHE", str(tmp_path / "cache"))
    mutation.common.cache_clear()
    return tmp_path / "cache" / "mutants"


def caught(mutant: Mutant) -> Trial:
    return dataclasses.replace(CAUGHT, id=mutant.id, verdict=mutant.class_, anchor=mutant.anchor)


def keep(trial: Trial) -> None:
    mutation._entry(trial.mutant).save(trial)


def planting(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any]) -> list[str]:
    """The ids that are planted, each of which comes out as its answer or as caught; the right models conform."""
    ids: list[str] = []

    def each(function: Any, items: Sequence[str], jobs: int, timeout: float, report: Report, done: Any) -> None:
        for item in items:
            if function is mutation._right:
                done(item, (record("conforms", None), {}), 1.0)
            else:
                ids.append(item)
                answer = answers.get(item) or record(MUTANTS[item].class_, MUTANTS[item].anchor)
                done(item, answer if isinstance(answer, str) else (answer, None), 1.0)

    monkeypatch.setattr(study, "run_each", each)
    return ids


def run(*ids: str, reuse: bool = True) -> list[Trial]:
    return mutation.run_mutants([MUTANTS[id] for id in ids], 1, lambda line: None, reuse=reuse)


def test_an_outcome_is_reused(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = planting(monkeypatch, {})
    first, second = run("norm-sum")[0], run("norm-sum", "norm-centered")
    assert planted == ["norm-sum", "norm-centered"]
    assert second[0] == dataclasses.replace(first, reused=True)
    assert [t.mutant.id for t in second] == planted
    assert run("norm-sum", reuse=False)[0] == first
    assert planted[2:] == ["norm-sum"]


def test_a_survivor_is_kept_and_a_crash_is_not(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = planting(monkeypatch, {"norm-sum": record("conforms", None), "norm-centered": "died"})
    for _ in range(2):
        assert [t.verdict for t in run("norm-sum", "norm-centered")] == ["conforms", "crashed"]
    assert planted == ["norm-sum", "norm-centered", "norm-centered"]


def test_a_damaged_entry_is_planted_again(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = planting(monkeypatch, {})
    for text in ("", "[]", '{"verdict": "x"}'):
        run("norm-sum")
        [entry] = own_cache.glob("*.json")
        entry.write_text(text)
    run("norm-sum")
    assert planted == ["norm-sum"] * 4


def test_the_outcomes_of_a_family(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known only while each of its mutants is known; what was noticed elsewhere, or in another class, does not count."""
    monkeypatch.setattr(mutation, "PINS", Path("none.json"))
    own = [m for m in MUTANTS.values() if m.architecture == "mistral"]
    for mutant in own:
        assert mutation.outcomes("mistral") is None
        keep(caught(mutant))
    assert mutation.outcomes("mistral") == (len(own), len(own), False)
    keep(dataclasses.replace(caught(own[0]), place="elsewhere"))
    keep(dataclasses.replace(caught(own[1]), verdict="harness-error"))
    assert mutation.outcomes("mistral") == (len(own) - 2, len(own), False)
    assert mutation.outcomes("no-family") is None


def test_what_was_pinned_is_known_while_nothing_has_changed(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "outcomes.json"
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(mutation, "PINS", file)
    with pytest.raises(InputError, match=r"^llama: not all of its mutants have been planted; run `hloracle mutants ll"):
        mutation.pins(FAMILIES)
    for mutant in MUTANTS.values():
        keep(caught(mutant))
    pins = mutation.pins(FAMILIES)
    assert list(pins) == list(FAMILIES)
    assert sum(int(pin["total"]) for pin in pins.values()) == len(MUTANTS)
    for path in own_cache.glob("*.json"):
        path.unlink()
    study.write_pins(file, pins)
    assert list(json.loads(file.read_text())) == list(FAMILIES)
    killed = pins["mistral"]["killed"]
    assert mutation.outcomes("mistral") == (killed, killed, True)
    # What has come of one of them here, something else, is not told by what came of all elsewhere.
    (other, *_) = (m for m in MUTANTS.values() if m.architecture == "mistral")
    keep(dataclasses.replace(caught(other), verdict="conforms"))
    assert mutation.outcomes("mistral") is None
    keep(caught(other))
    assert mutation.outcomes("mistral") == (killed, killed, True)
    monkeypatch.setattr(mutation, "CAPACITY", 33)
    assert mutation.outcomes("mistral") is None
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    with pytest.raises(InputError, match="XLA_FLAGS: is '--xla_cpu_enable_fast_math=true'; unset it"):
        study.write_pins(file, pins)


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        ("core/child.py", True),
        ("reference/oracle/layers.py", True),
        ("reference/oracle/architectures/llama.py", True),
        ("reference/oracle/architectures/gemma2.py", False),
        ("emitters/architectures/llama.py", True),
        ("emitters/architectures/gemma2.py", False),
        ("localize/dissect.py", True),
        ("conformance/checks/check.py", True),
        ("conformance/checks/census.json", True),
        ("backends/iree.py", True),
        ("mutants/norm.py", True),
        ("mutants/registry.py", True),
        ("mutants/window.py", False),
    ],
)
def test_what_decides_an_outcome(changed: str, again: bool, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, read = mutation._entry(MUTANT), Path.read_bytes
    path = Path(mutation.__file__).parent.parent / changed
    assert path.is_file()
    monkeypatch.setattr(Path, "read_bytes", lambda p: read(p) + b"#" * (p == path))
    mutation.common.cache_clear()
    assert (mutation._entry(MUTANT) != before) == again
    mutation.common.cache_clear()


def test_packages_and_flags_decide_an_outcome(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = mutation._entry(MUTANT)
    monkeypatch.setattr(mutation, "TOKENS", 5)
    assert mutation._entry(MUTANT) != before
    monkeypatch.undo()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert mutation._entry(MUTANT) != before
    monkeypatch.undo()
    monkeypatch.setattr(mutation, "versions", lambda: {"jax": "0"})
    mutation.common.cache_clear()
    assert mutation._entry(MUTANT) != before
    mutation.common.cache_clear()


# ---- on the command line


def test_listing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["mutants", "--list", "rope"]) == 0
    out = capsys.readouterr().out
    # Whole ids, one on a line, however wide the terminal is: they are copied into the next command.
    assert [line.split()[0] for line in out.splitlines()] == [m.id for m in MUTANTS.values() if m.mechanism == "rope"]


def test_an_unknown_one_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["mutants", "no-such"], ["run", "tiny-llama", "--mutant", "no-such"]):
        assert cli.invoke(arguments) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert "no-such" in err


def fake(trials: dict[str, Trial]) -> Callable[..., list[Trial]]:
    def run(
        mutants: Sequence[Any], jobs: int, report: Report, done: Callable[[Trial], None], reuse: bool
    ) -> list[Trial]:
        found = [trials.get(m.id, dataclasses.replace(caught(m), reused=reuse)) for m in mutants]
        for t in found:
            done(t)
        return found

    return run


def test_status_and_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(mutation, "run_mutants", fake({}))
    assert cli.invoke(["mutants", "norm-sum"]) == 0
    out = capsys.readouterr().out
    assert "1 mutants over 1 mechanisms: 1 caught" in out
    assert "1 reused from the cache" in out
    assert cli.invoke(["mutants", "norm-sum", "--no-cache"]) == 0
    assert "0 reused from the cache" in capsys.readouterr().out
    survivor = dataclasses.replace(CAUGHT, verdict="conforms", anchor=None, place="elsewhere", detail="unseen")
    monkeypatch.setattr(mutation, "run_mutants", fake({"norm-sum": survivor}))
    assert cli.invoke(["mutants", "norm-sum"]) == 1
    out = capsys.readouterr().out
    assert "survived" in out
    assert "norm-sum survived: unseen" in out
    assert cli.invoke(["mutants", "norm-sum", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == ["norm-sum survived: unseen"]
    assert found["trials"][0]["expected"] == {"class": "emitter-fault", "anchor": "layers.0.input_layernorm"}


def test_a_row_for_each_family(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    beside = dataclasses.replace(caught(MUTANTS["window-missing-decode"]), place="consumer")
    monkeypatch.setattr(mutation, "run_mutants", fake({beside.mutant.id: beside}))
    assert cli.invoke(["mutants", "mistral", "norm-sum"]) == 1  # one at a consumer is more than a few
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if "/" in line}
    count = len(selected(["mistral"]))
    assert rows["mistral"] == [f"{count}/{count}", str(count), str(count - 1), "1"]
    assert rows["llama"] == ["1/1", "1", "1", "0"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("id", "operation"),
    [
        ("norm-sum", "stablehlo.reduce"), ("oracle-act-relu", ""), ("iree-refuses-reverse", "stablehlo.reverse"),
        ("session-caches-swapped", ""), ("softcap-final-dropped", ""),
    ],
)  # fmt: skip
def test_through_a_whole_run(id: str, operation: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One of each part, and one of another family; `nox -s mutants` runs them all."""
    assert cli.invoke(["mutants", id, "--jobs", "1", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["trials"]
    assert found["place"] == "exact"
    assert (found["operation"] or "").startswith(operation)


def _changed(id: str, name: str) -> tuple[list[str], frozenset[int] | None]:
    """The lines of a mutant's graph, and those that its fault changed of them."""
    mutant = MUTANTS[id]
    (right,) = mutation._graphs(mutant, name)
    with mutant.installed():
        (wrong,) = mutation._graphs(mutant, name)
    config = open_checkpoint(resolve(mutant.model)).config
    return wrong.text.splitlines(), changed_lines(right, wrong, mutant.anchor, config)


def test_the_operation_is_one_that_the_fault_changed() -> None:
    """Of a mutant that leaves out the mean: what takes the sum is, and whatever comes after it is not."""
    lines, changed = _changed(MUTANT.id, "llama_decode_logits")
    assert changed
    for line in {*changed, 1, min(changed) - 1, max(changed) + 1, len(lines) - 1}:
        verdict = {
            "class": MUTANT.class_, "anchor": MUTANT.anchor, "operation": f"x %y at line {line} of llama_decode_logits"
        }  # fmt: skip
        assert mutation._exact(MUTANT, {"verdict": verdict}) is (line in changed)


@pytest.mark.parametrize(
    ("id", "name", "values"),
    [
        pytest.param("gqa-first-kv-head", "llama_decode_logits", {"sl", "bc", "dot"}, id="what is put in between, and what takes it"),
        pytest.param("softmax-without-maximum", "llama_decode_logits", {"exponential"}, id="what takes what is left out"),
        pytest.param("cache-keys-and-values-swapped-prefill", "llama_prefill_32_logits", {"return"}, id="the return"),
        pytest.param("kv-scale-not-returned", "llama_prefill_32_logits_kv_int8", {"%r"}, id="what gives the return its value"),
        pytest.param("does-not-verify", "llama_decode_logits", {"logistic"}, id="a text that does not parse"),
    ],
)  # fmt: skip
def test_which_operations_a_fault_changed(id: str, name: str, values: set[str]) -> None:
    lines, changed = _changed(id, name)
    assert changed is not None
    told = [lines[number - 1].strip().removeprefix("func.").partition(" ")[0] for number in changed]
    assert {one.rpartition(".")[2].rstrip("0123456789") for one in told} == values


def test_there_is_none_to_name_where_the_graph_has_no_such_value() -> None:
    mutant = MUTANTS["shared-expert-forgotten"]
    verdict = {"class": mutant.class_, "anchor": mutant.anchor, "operation": None}
    assert mutation._exact(mutant, {"verdict": verdict}) is None


def test_a_graph_is_as_itself() -> None:
    (right,) = mutation._graphs(MUTANT, "llama_decode_logits")
    config = open_checkpoint(resolve(MUTANT.model)).config
    assert changed_lines(right, right, MUTANT.anchor, config) == frozenset()
