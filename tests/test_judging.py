"""Which configurations a run has, a quick one too, and which of them are asked at every position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import evidence as by_hand
import pytest
from evidence import ABIS, CONFIGURATIONS, STREAM, a_run, check, matrix_of
from models import model

from hloracle.backends.devices import Device, compiled_for
from hloracle.conformance import judging as module
from hloracle.conformance.evidence import Evidence, Run
from hloracle.conformance.graphs.facts import GraphFacts, Inspected
from hloracle.conformance.graphs.sources import Files
from hloracle.conformance.matrix import Configuration
from hloracle.conformance.questions.questions import Asked
from hloracle.conformance.runs import code_generation, compiling
from hloracle.conformance.runs.code_generation import Compiled
from hloracle.conformance.runs.configurations import Outcome
from hloracle.conformance.settings import Settings
from hloracle.conformance.verdict.verdict import decide
from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.errors import ToolchainError

IDS = [configuration.id for configuration in CONFIGURATIONS]
XLA, IREE, TOKEN = "emitter/xla-cpu", "emitter/iree-cpu", "emitter/iree-cpu/token"
ORACLE_XLA, ORACLE_IREE = "oracle/xla-cpu", "oracle/iree-cpu"


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Configurations that compute nothing: those that are asked, in order; `wrong` are found to be so.

    small: whether the model is. streamed: the configurations that are asked at every position, in order.
    """
    found: dict[str, Any] = {"asked": [], "streamed": [], "wrong": {}, "small": True}

    def answer(run: Run, configuration: Configuration, asked: Asked) -> Outcome:
        found["asked"].append(configuration.id)
        found["streamed"] += [configuration.id] * bool(asked.streams)
        return found["wrong"].get(configuration.id, by_hand.right)(
            by_hand.outcome(configuration, streams=asked.streams)
        )

    monkeypatch.setattr(module, "_outcome", answer)
    monkeypatch.setattr(module, "is_small", lambda config: found["small"])
    return found


def graphs(*heads: str) -> Inspected:
    """Graphs with these heads, as far as they say which configurations there are."""
    found = []
    for head in heads:
        for abi in ABIS:
            results = (Tensor(head, head, (), "i32"), *abi.results[1:])
            found.append((Graph(f"{abi.phase}_{head}", "", Abi(abi.phase, abi.arguments, results)), GraphFacts()))
    return found


def judged(heads: Sequence[str] = ("logits", "token"), **how: Any) -> Run:
    """A run of the bundled emitter whose configurations were all judged."""
    evidence = Evidence(truths=by_hand.TRUTHS, asked=by_hand.asked())
    evidence.graphs = {"emitter": graphs(*heads), "oracle": graphs("logits")}
    run = a_run(evidence, Settings("m", **how), model=model("plain").checkpoint)
    module.judge_all(run)
    return run


def class_of(run: Run) -> str:
    evidence = run.evidence
    return decide(matrix_of(evidence.outcomes), evidence.checks, evidence.outcomes, evidence.truths).class_


def test_every_configuration_is_judged(answers: dict[str, Any]) -> None:
    assert class_of(judged()) == "conforms"
    assert answers["asked"] == IDS


def test_a_quick_run_leaves_the_oracle_to_the_quick_backend(answers: dict[str, Any]) -> None:
    assert class_of(judged(quick=True)) == "conforms"
    assert answers["asked"] == [id for id in IDS if id != "oracle/iree-cpu"]


@pytest.mark.parametrize("configuration", IDS)
@pytest.mark.parametrize("wrong", [by_hand.WRONG_TOKEN, by_hand.failed("compile")])
@pytest.mark.parametrize("quick", [False, True])
def test_one_configuration_is_wrong(
    quick: bool, wrong: by_hand.Change, configuration: str, answers: dict[str, Any]
) -> None:
    answers["wrong"][configuration] = wrong
    passed = class_of(judged(quick=quick)) in ("conforms", "near-tie")
    # A quick run asks the oracle on IREE where a judged graph is wrong there: it tells whose fault that is.
    asked = [id for id in IDS if id != "oracle/iree-cpu" or not quick]
    if quick and configuration.startswith("emitter/iree-cpu"):
        asked.append("oracle/iree-cpu")
    # The graph that picks the token alone is wrong: XLA says whose fault that is.
    asked += ["emitter/xla-cpu/token"] * (configuration == "emitter/iree-cpu/token")
    assert answers["asked"] == asked
    assert passed == (configuration == "oracle/iree-cpu" and quick)


# ---- at every position


def asked_of(answers: dict[str, Any], small: bool, **wrong: by_hand.Change) -> list[str]:
    answers["small"] = small
    answers["wrong"] |= wrong
    judged()
    return list(answers["streamed"])


def test_all_configurations_of_a_small_model_stream(answers: dict[str, Any]) -> None:
    assert asked_of(answers, small=True) == IDS


def test_of_a_larger_one_the_emitters_on_iree(answers: dict[str, Any]) -> None:
    assert asked_of(answers, small=False) == ["emitter/iree-cpu"]
    assert answers["asked"] == IDS


@pytest.mark.parametrize(
    "wrong", [by_hand.WRONG_POSITION, by_hand.on_stream(apart=99.0), by_hand.on_slots(STREAM.id, 0, "k_cache.0", 12)]
)
def test_what_only_a_stream_shows_every_other_configuration_is_asked(
    wrong: by_hand.Change, answers: dict[str, Any]
) -> None:
    """Each with logits, once more: graph or compiler, emitter or oracle."""
    others = ["oracle/iree-cpu", "emitter/xla-cpu", "oracle/xla-cpu"]
    assert asked_of(answers, False, **{"emitter/iree-cpu": wrong}) == ["emitter/iree-cpu", *others]
    assert answers["asked"] == [*IDS, *others]


@pytest.mark.parametrize(
    ("ids", "class_"),
    [
        (("emitter/iree-cpu",), "compiler-fault"),
        (("emitter/iree-cpu", "oracle/iree-cpu"), "compiler-fault"),
        (("emitter/iree-cpu", "emitter/xla-cpu"), "emitter-fault"),
        (("emitter/iree-cpu", "emitter/xla-cpu", "oracle/iree-cpu", "oracle/xla-cpu"), "reference-fault"),
    ],
)
def test_whose_fault_a_stream_shows(ids: tuple[str, ...], class_: str, answers: dict[str, Any]) -> None:
    def wrong(found: Outcome) -> Outcome:
        return by_hand.WRONG_POSITION(found) if found.streams else found  # nothing is wrong where no prompt goes

    answers["wrong"] = dict.fromkeys(ids, wrong)
    answers["small"] = False
    assert class_of(judged()) == class_


@pytest.mark.parametrize("stage", ["compile", "memory", "timeout", "process"])
def test_a_configuration_that_gave_nothing_is_not_asked_again(stage: str, answers: dict[str, Any]) -> None:
    wrong = {"emitter/iree-cpu": by_hand.WRONG_POSITION, "oracle/xla-cpu": by_hand.failed(stage)}
    assert asked_of(answers, False, **wrong) == ["emitter/iree-cpu", "oracle/iree-cpu", "emitter/xla-cpu"]


def test_a_configuration_that_failed_is_no_reason_to_ask_the_others(answers: dict[str, Any]) -> None:
    """It was not asked: it says nothing of positions."""
    wrong = {"emitter/iree-cpu": by_hand.failed("compile")}
    assert asked_of(answers, False, **wrong) == ["emitter/iree-cpu"]


@pytest.mark.parametrize("small", [True, False])
def test_configurations_of_files(small: bool, answers: dict[str, Any]) -> None:
    """Those of a small model are judged side by side, everywhere."""
    answers["small"] = small
    answers["wrong"] = {"file/xla-cpu": by_hand.WRONG_LOGITS}
    evidence = Evidence(truths=by_hand.TRUTHS, asked=by_hand.asked())
    evidence.graphs = {"file": graphs("logits"), "oracle": graphs("logits")}
    run = a_run(evidence, sources=[Files((), (), ())], model=model("plain").checkpoint)
    module.judge_all(run)
    ids = ["file/iree-cpu", "oracle/iree-cpu", "file/xla-cpu", "oracle/xla-cpu"]
    assert [o.configuration.id for o in evidence.outcomes] == ids
    assert sorted(answers["streamed"]) == (sorted(ids) if small else ["file/iree-cpu"])
    assert [c.id for c in evidence.checks if c.status != "passed"] == ["file/xla-cpu.decode-logits"]


def test_what_else_is_known_of_a_configuration_stays(answers: dict[str, Any]) -> None:
    """What is read from a module on the way to the device, and what was seen inside: no answer takes their place."""
    configuration = Configuration("emitter", "iree-cuda")
    others = [check("emitter/iree-cuda.arithmetic", "", "failed"), check("emitter/iree-cuda.anchors", "", "failed")]
    evidence = Evidence(checks=list(others), truths=by_hand.TRUTHS, asked=by_hand.asked())
    run = a_run(evidence, model=model("plain").checkpoint)
    for everywhere in (False, True):
        module.judge(run, configuration, everywhere=everywhere)
        assert evidence.checks[:2] == others
        assert len({c.id for c in evidence.checks}) == len(evidence.checks) > 2


def test_what_is_judged_again_takes_the_place_of_what_was(answers: dict[str, Any]) -> None:
    """No check stands twice, and none of the first time is left."""
    answers["small"] = False
    answers["wrong"] = {"emitter/iree-cpu": by_hand.WRONG_POSITION}
    evidence = judged().evidence
    ids = [check.id for check in evidence.checks]
    assert len(ids) == len(set(ids))
    assert sorted(o.configuration.id for o in evidence.outcomes) == sorted(IDS)
    streaming = {o.configuration.id for o in evidence.outcomes if o.streams}
    assert streaming == {id.rpartition(".")[0] for id in ids if id.endswith(".streamed-logits")}
    assert streaming == {c.id for c in CONFIGURATIONS if c.head == "logits"}


# ---- a run that ends as soon as the verdict's class is known

# Is it the oracle or the compiler? The other compiler is asked at once; then the judged graph on it.
ORACLE_FIRST = [XLA, ORACLE_XLA, ORACLE_IREE, "device", TOKEN, IREE]


@pytest.mark.parametrize(
    ("wrong", "asked"),
    [
        pytest.param((), [XLA, ORACLE_XLA, "probes", "device", TOKEN, IREE, ORACLE_IREE], id="nothing is wrong"),
        pytest.param((XLA,), [XLA, ORACLE_XLA], id="the graph"),
        pytest.param((TOKEN,), [XLA, ORACLE_XLA, "probes", "device", TOKEN, IREE, ORACLE_IREE], id="the graph that picks the token"),
        pytest.param((XLA, ORACLE_XLA), ORACLE_FIRST, id="everything on one compiler"),
        pytest.param((ORACLE_XLA,), ORACLE_FIRST, id="the oracle on one compiler"),
        pytest.param((ORACLE_XLA, ORACLE_IREE), [XLA, ORACLE_XLA, ORACLE_IREE], id="the oracle"),
        pytest.param((IREE,), [XLA, ORACLE_XLA, "probes", "device", TOKEN, IREE], id="one compiler"),
    ],
)  # fmt: skip
def test_a_run_ends_where_its_class_is_known(
    wrong: tuple[str, ...], asked: list[str], answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "probe", lambda run: answers["asked"].append("probes"))
    monkeypatch.setattr(module, "on_device", lambda run: answers["asked"].append("device"))
    answers["wrong"] = dict.fromkeys(wrong, by_hand.WRONG_LOGITS)
    judged(early_exit=True)
    assert answers["asked"] == asked


def test_a_source_without_logits_is_asked_for_its_token(
    answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "probe", lambda run: None)
    monkeypatch.setattr(module, "on_device", lambda run: None)
    judged(["token"], early_exit=True)
    assert answers["asked"] == [f"{XLA}/token", ORACLE_XLA, TOKEN, ORACLE_IREE]


# ---- what is compiled for a device that nothing runs on


def test_once_a_compiler_has_not_ended_the_others_are_given_a_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be waited for one after the other."""
    given: list[float] = []

    def hangs(graph: Graph, device: Device, stream: bool, seconds: float) -> bool:
        given.append(seconds)
        raise ToolchainError("timeout" if len(given) > 1 else "compile", "no")

    monkeypatch.setattr(compiling, "precompile", hangs)
    patience = compiling.Patience(600)
    for _ in range(4):
        with pytest.raises(ToolchainError):
            patience.precompiled(graphs("token")[0][0], compiled_for("cuda"), False)
    assert given == [600, 600, 60, 60]


@pytest.mark.parametrize(
    ("quick", "message", "asked"),
    [
        (True, "", ["emitter"]),
        (True, "error: no", ["emitter", "oracle"]),
        (False, "", ["emitter", "oracle"]),
        (False, "error: no", ["emitter", "oracle"]),
    ],
)
def test_a_quick_run_compiles_the_oracle_where_a_judged_graph_does_not(
    quick: bool, message: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells a graph that is wrong from a compiler that is."""

    def compile_for(source: str, graph: Graph, device: Device, seconds: float) -> Compiled:
        return Compiled(source, graph.name, device.kind, device.target, 0.0, message, () if message else ("fma f32",))

    monkeypatch.setattr(compiling, "compile_for", compile_for)
    monkeypatch.setattr(code_generation, "compile_for", compile_for)
    monkeypatch.setattr(compiling, "_modules", lambda run, patience: [])
    monkeypatch.setattr(compiling, "reference", lambda run: None)
    evidence = Evidence(graphs={"emitter": graphs("token"), "oracle": graphs("token")})
    some = [("emitter", graph, compiled_for("cuda")) for graph, _ in evidence.graphs["emitter"]]
    compiling.truth_and_modules(a_run(evidence, Settings("m", quick=quick), model=model("plain").checkpoint), some)
    assert len(evidence.compiled) == len(asked) * len(some)
    assert list(dict.fromkeys(row.source for row in evidence.compiled)) == asked
    found = {c.id: c.status for c in evidence.checks if c.kind == "compiles"}
    assert found == {f"{source}/iree-cuda.compiles": "failed" if message else "passed" for source in asked}
