"""One test for each row of README's table, and for what must never pass."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from evidence import (
    CLOSE,
    CONFIGURATIONS,
    FLOOR,
    MATRIX,
    ON_CUDA,
    TRUTHS,
    WRONG,
    WRONG_LOGITS,
    WRONG_TOKEN,
    Change,
    asked,
    check,
    failed,
    gathered,
    not_repeated,
    on_prompt,
    on_slots,
    on_stream,
    verdict,
)

from hloracle.conformance.checks.check import Check, Question
from hloracle.conformance.matrix import Configuration, Matrix, Witness
from hloracle.conformance.runs.configurations import Outcome
from hloracle.conformance.verdict.localization import plan
from hloracle.conformance.verdict.place import place
from hloracle.conformance.verdict.verdict import PASSING, decide
from hloracle.core.errors import OutOfMemory

FILE = (Configuration("file", "iree-cpu"), Configuration("file", "xla-cpu"))
FILE_TOKEN = (Configuration("file", "iree-cpu", "token"), Configuration("file", "xla-cpu", "token"))


def wrong(*ids: str, change: Change = WRONG_LOGITS) -> dict[str, Change]:
    return dict.fromkeys(ids, change)


def broken(id: str, status: str = "failed") -> tuple[Check, ...]:
    return (check(id, "an invariant", status, "2", "1", "what was seen"),)


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda configuration: str(configuration.id))
def test_a_check_that_could_not_be_made_accuses_nobody(configuration: Configuration) -> None:
    found = verdict(more=[check(f"{configuration.id}.anchors", "values inside", "error", "", "", "it died")])
    assert (found.class_, found.explanation) == ("harness-error", "A check could not be made: values inside.")
    wrong = verdict({"emitter/xla-cpu": WRONG_TOKEN, "emitter/iree-cpu": WRONG_TOKEN}, more=[
        check(f"{configuration.id}.anchors", "values inside", "error", "", "", "it died")])  # fmt: skip
    assert wrong.class_ == "emitter-fault"


def test_conforms() -> None:
    found = verdict()
    assert (found.class_, found.passed) == ("conforms", True)
    assert (found.prompt, found.step) == (None, None)
    # A pass shows what it rests on: what came nearest to failing, in every configuration.
    assert {line.partition(":")[0] for line in found.evidence} == {
        f"{configuration.id}.{name}"
        for configuration in CONFIGURATIONS
        for name in ("tokens", "prefill-logits", "decode-logits", "caches", "repeats", "streamed-logits",
                     "prefill-equals-streaming")
        if configuration.head == "logits" or name not in ("prefill-logits", "decode-logits")
    }  # fmt: skip
    left = "logits of prefill after 91 of the 96 lengths that its 2 buckets take"
    assert found.explanation.startswith(f"Not compared: {left}. Equal to Hugging Face, but for float32's noise")
    assert (found.compared[0], found.not_compared) == ("3 of 3 tokens after each of 2 prompts", (left,))


def test_near_tie() -> None:
    found = verdict({"emitter/iree-cpu": on_prompt("close@32", tokens=[3, 2, 4])}, CLOSE)
    assert (found.class_, found.passed, found.prompt, found.step) == ("near-tie", True, "close@32", 1)


def test_near_tie_of_the_graph_that_picks_the_token() -> None:
    found = verdict({"emitter/iree-cpu/token": on_prompt("close@32", tokens=[3, 2, 4])}, CLOSE)
    assert found.class_ == "near-tie"


def test_a_third_token_is_no_near_tie() -> None:
    """The truth's two best are close, and a configuration chose neither."""
    found = verdict({"emitter/iree-cpu/token": on_prompt("close@32", tokens=[3, 7, 4])}, CLOSE)
    assert (found.class_, found.step) == ("emitter-fault", 1)


@pytest.mark.parametrize("token", [-1, 8, 257])
def test_no_token_at_all_is_no_near_tie(token: int) -> None:
    """A device's argmax over NaN is the vocabulary's size."""
    assert not verdict({"emitter/iree-cpu/token": on_prompt("close@32", tokens=[3, token, 4])}, CLOSE).passed


def test_a_near_tie_hides_no_later_mismatch() -> None:
    found = verdict({"emitter/iree-cpu/token": on_prompt("close@32", tokens=[4, 7, 4])}, CLOSE)
    assert (found.class_, found.step) == ("emitter-fault", 1)
    assert "step 1 is 7, not 1" in found.evidence[0]


def test_reference_fault() -> None:
    everywhere = wrong(*(configuration.id for configuration in CONFIGURATIONS), change=WRONG_TOKEN)
    found = verdict({id: change for id, change in everywhere.items() if id.startswith("oracle")})
    assert found.class_ == "reference-fault"
    assert verdict(everywhere).class_ == "reference-fault"


def test_reference_fault_of_a_graph_that_does_not_parse() -> None:
    assert verdict(more=broken("oracle.parse")).class_ == "reference-fault"


def test_reference_fault_of_an_invariant() -> None:
    found = verdict(more=broken("oracle.census"))
    assert found.class_ == "reference-fault"
    assert "invariant" in found.explanation


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_emitter_fault(change: Change) -> None:
    found = verdict(wrong("emitter/iree-cpu", "emitter/iree-cpu/token", "emitter/xla-cpu", change=change))
    assert found.class_ == "emitter-fault"
    if change is WRONG["second call"]:
        assert "do not give the same values" in found.explanation
        return
    assert "The oracle's graph is right" in found.explanation
    assert "on XLA and on IREE alike" in found.explanation


@pytest.mark.parametrize("id", ["emitter.parse", "file.parse"])
def test_emitter_fault_of_a_graph_that_does_not_parse(id: str) -> None:
    found = verdict(more=broken(id))
    assert (found.class_, found.evidence) == ("emitter-fault", (f"{id}: 2 (what was seen)",))


def test_emitter_fault_of_what_no_prompt_reaches() -> None:
    found = verdict(more=broken("emitter.probes"))
    assert (found.class_, found.explanation) == (
        "emitter-fault", "On inputs that no prompt gives the graph does not compute what the oracle names so: what was seen.",
    )  # fmt: skip


def test_emitter_fault_of_random_numbers() -> None:
    """What they give is no value of the model's, however right it may look."""
    found = verdict(wrong("emitter/iree-cpu", change=not_repeated()), more=broken("emitter.random"))
    assert found.class_ == "emitter-fault"
    assert "draws random numbers" in found.explanation


def test_random_numbers_that_change_nothing() -> None:
    """Two calls agree, so nothing is said of them."""
    found = verdict(more=broken("emitter.random"))
    assert found.class_ == "invariant-broken"
    assert "two calls" not in found.explanation


# ---- what compilers need not agree on

OPEN = ["file.abi", "file.random", "file.reductions"]
DONATED = ["file.donations", "file.caches-donated"]


@pytest.mark.parametrize("configurations", [FILE, FILE_TOKEN], ids=["logits", "token"])
@pytest.mark.parametrize("id", OPEN)
def test_no_compiler_is_blamed_for_what_a_graph_leaves_open(id: str, configurations: tuple[Configuration, ...]) -> None:
    for these in (configurations[:1], configurations[1:], configurations):
        found = verdict(
            wrong(*(c.id for c in these), change=WRONG_TOKEN), configurations=configurations, more=broken(id)
        )
        assert found.class_ == "emitter-fault"
        assert found.explanation == "The values are wrong, and compilers need not agree on such a graph: what was seen."
    found = verdict(configurations=configurations, more=broken(id))
    assert found.class_ == "invariant-broken"


@pytest.mark.parametrize("id", OPEN)
def test_what_is_left_open_is_not_why_a_compiler_refuses(id: str) -> None:
    found = verdict(wrong(FILE[0].id, change=failed("compile")), configurations=FILE, more=broken(id))
    assert found.class_ == "invariant-broken"


@pytest.mark.parametrize("id", DONATED)
def test_no_compiler_is_blamed_for_a_donation(id: str) -> None:
    on_iree, on_xla = (verdict(wrong(c.id), configurations=FILE, more=broken(id)) for c in FILE)
    assert (on_iree.class_, on_xla.class_) == ("invariant-broken", "invariant-broken")
    assert "(file/xla-cpu) and wrong elsewhere (file/iree-cpu)" in on_iree.explanation


# ---- an invariant

INVARIANTS = [
    "emitter.census", "emitter.caches-in-place", "emitter.abi", "emitter.donations", "file.f64", "file.operations",
    "file.counts",
]  # fmt: skip


@pytest.mark.parametrize("id", INVARIANTS)
def test_invariant_broken(id: str) -> None:
    """The values are right: no fault of any value is what the class says."""
    found = verdict(more=broken(id))
    assert (found.class_, found.passed, found.evidence) == ("invariant-broken", False, (f"{id}: 2 (what was seen)",))
    assert "The values are right (emitter/iree-cpu/token, " in found.explanation


def test_invariant_broken_where_only_another_compiler_is_wrong() -> None:
    """A donation too many: what the session reads again is gone, on the compiler that takes it."""
    iree = [c.id for c in CONFIGURATIONS if c.backend == "iree-cpu" and c.source == "emitter"]
    found = verdict(wrong(*iree, change=WRONG_TOKEN), more=broken("emitter.donations"))
    assert found.class_ == "invariant-broken"
    assert "(emitter/xla-cpu)" in found.explanation


@pytest.mark.parametrize("id", INVARIANTS)
@pytest.mark.parametrize("more", [(), ("emitter/iree-cpu", "emitter/iree-cpu/token")], ids=["xla", "everywhere"])
def test_an_invariant_hides_no_value_that_is_wrong(id: str, more: tuple[str, ...]) -> None:
    found = verdict(wrong("emitter/xla-cpu", *more), more=broken(id))
    if more or id == "emitter.abi":
        assert found.class_ == "emitter-fault"
    else:
        assert "wrong elsewhere (emitter/xla-cpu)" in found.explanation


def test_emitter_fault_of_an_invariant_before_anything_ran() -> None:
    assert decide(MATRIX, broken("file.abi"), [], {}).class_ == "emitter-fault"


# ---- what has no answer


@pytest.mark.parametrize("id", ["emitter.supported", "file.supported"])
@pytest.mark.parametrize("ran", [True, False])
def test_unsupported(id: str, ran: bool) -> None:
    checks, outcomes = gathered() if ran else ([], [])
    found = decide(MATRIX, [*broken(id), *checks], outcomes, TRUTHS if ran else {})
    assert (found.class_, found.passed) == ("unsupported", False)
    assert "No backend here runs what the graph asks for: what was seen." in found.explanation


@pytest.mark.parametrize("stage", ["compile", "load", "run"])
@pytest.mark.parametrize("configurations", [FILE, FILE_TOKEN], ids=["logits", "token"])
def test_unsupported_of_what_no_compiler_takes(configurations: tuple[Configuration, ...], stage: str) -> None:
    everywhere = wrong(*(c.id for c in configurations), change=failed(stage))
    found = verdict(everywhere, configurations=configurations)
    assert found.class_ == "unsupported"
    assert f"{stage} failed: the tool's words" in found.explanation
    # An invariant that it breaks may be why.
    assert verdict(everywhere, configurations=configurations, more=broken("file.f64")).class_ == "emitter-fault"
    # One compiler takes it, so that the other one has no excuse.
    assert (
        verdict(wrong(configurations[0].id, change=failed(stage)), configurations=configurations).class_
        == "compiler-fault"
    )


def test_emitter_fault_on_the_only_compiler() -> None:
    found = verdict(wrong(FILE[0].id), configurations=FILE[:1])
    assert found.class_ == "emitter-fault"
    assert found.explanation == "The graph is wrong on file/iree-cpu, the only compiler that ran it."


SILENT = {"memory": "out-of-memory", "timeout": "timeout", "process": "harness-error"}


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda c: c.id)
@pytest.mark.parametrize(("stage", "class_"), SILENT.items())
def test_a_cell_without_an_answer(stage: str, class_: str, configuration: Configuration) -> None:
    found = verdict({configuration.id: failed(stage)})
    assert (found.class_, found.passed) == (class_, False)
    assert configuration.id in found.explanation
    everywhere = verdict(wrong(*(c.id for c in CONFIGURATIONS), change=failed(stage)))
    assert (everywhere.class_, everywhere.passed) == (class_, False)


@pytest.mark.parametrize("stage", SILENT)
@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_no_answer_of_one_cell_hides_what_is_wrong_in_another(stage: str, change: Change) -> None:
    silent = wrong("emitter/iree-cpu", change=failed(stage))
    assert verdict(silent | wrong("emitter/xla-cpu", change=change)).class_ == "emitter-fault"
    assert verdict(silent | wrong("oracle/xla-cpu", "oracle/iree-cpu", change=change)).class_ == "reference-fault"
    assert verdict(silent | wrong("oracle/iree-cpu", change=change)).class_ == "compiler-fault"
    # Nor is the configuration without an answer taken for a right one, or for one that is wrong as well.
    xla = verdict(wrong("emitter/xla-cpu", change=failed(stage)) | wrong("emitter/iree-cpu", change=change))
    assert "right on XLA" not in xla.explanation
    assert "on XLA and" not in xla.explanation


def test_of_what_has_no_answer_the_worst_is_said() -> None:
    """A process that died may hide anything; out of memory is said before a time that was too short."""
    stages = ["timeout", "memory", "process"]
    changes: dict[str, Change] = {}
    for configuration, stage in zip(CONFIGURATIONS, stages, strict=False):
        changes |= {configuration.id: failed(stage)}
        assert verdict(changes).class_ == SILENT[stage]


def test_emitter_fault_of_the_graph_that_picks_the_token() -> None:
    found = verdict(wrong("emitter/iree-cpu/token", change=WRONG_TOKEN))
    assert found.class_ == "emitter-fault"
    assert "picks the token" in found.explanation


@pytest.mark.parametrize("configurations", [FILE, FILE_TOKEN], ids=["logits", "token"])
def test_emitter_fault_of_a_file(configurations: tuple[Configuration, ...]) -> None:
    found = verdict(wrong(*(c.id for c in configurations), change=WRONG_TOKEN), configurations=configurations)
    assert found.class_ == "emitter-fault"
    assert "oracle" not in found.explanation


@pytest.mark.parametrize(
    "ids",
    [
        ("emitter/iree-cpu",),
        ("oracle/iree-cpu",),
        ("emitter/iree-cpu", "emitter/iree-cpu/token"),
        ("emitter/iree-cpu", "emitter/iree-cpu/token", "oracle/iree-cpu"),
    ],
)
@pytest.mark.parametrize("change", [c for name, c in WRONG.items() if name != "second call"])
def test_compiler_fault(ids: tuple[str, ...], change: Change) -> None:
    found = verdict(wrong(*ids, change=change))
    assert found.class_ == "compiler-fault"
    assert "right on XLA and wrong on IREE" in found.explanation


@pytest.mark.parametrize("id", ["emitter/iree-cpu", "emitter/iree-cpu/token", "oracle/iree-cpu"])
def test_compiler_fault_of_two_calls_that_differ(id: str) -> None:
    """By a bit, on any backend: the graph draws nothing, so its inputs decide what it gives."""
    found = verdict(wrong(id, change=not_repeated(2.0**-149)))
    assert found.class_ == "compiler-fault"
    assert f"do not give the same values ({id})" in found.explanation


@pytest.mark.parametrize("configurations", [FILE, FILE_TOKEN], ids=["logits", "token"])
@pytest.mark.parametrize("wrong_on", [0, 1])
def test_compiler_fault_of_a_file(configurations: tuple[Configuration, ...], wrong_on: int) -> None:
    assert (
        verdict(wrong(configurations[wrong_on].id, change=WRONG_TOKEN), configurations=configurations).class_
        == "compiler-fault"
    )


def test_a_family_of_compilers_alone_accuses_no_reference() -> None:
    """Its own fault would look as the reference's, whichever and however many of one family they are."""
    for names in (["mine"], ["mine", "mine-2"]):
        configurations = [Configuration(source, name) for source in ("emitter", "oracle") for name in names]
        checks, outcomes = gathered(wrong(*(c.id for c in configurations)), configurations=configurations)
        matrix = Matrix(tuple(Witness(name, "mine", name) for name in names))
        found = place(matrix, decide(matrix, checks, outcomes, TRUTHS), checks, None, outcomes)
        assert found.class_ == "harness-error"
        assert f"wrong on {' and '.join(names)}. No other family of compilers ran it" in found.explanation


def test_what_a_tool_said_stands_in_the_verdict() -> None:
    crashed = dataclasses.replace(
        broken("mine.gate-zero", "error")[0], backend="mine", detail="RuntimeError: my compiler crashed"
    )
    assert "(mine.gate-zero: RuntimeError: my compiler crashed)" in verdict(more=(crashed,)).explanation
    invalid = dataclasses.replace(broken("emitter.parse")[0], detail="3:1: expected an operation")
    assert "(emitter.parse: 3:1: expected an operation)" in verdict(more=(invalid,)).explanation


def test_compiler_fault_beside_another_of_its_family() -> None:
    """A vendor's XLA plugin beside jaxlib's own: each is named by its own name, and the right one is not accused."""
    plugin = Witness("vendor", "xla", "vendor")
    for others in ((), (Configuration("emitter", "iree-cpu"), Configuration("oracle", "iree-cpu"))):
        configurations = [*others, *(Configuration(s, b) for b in ("xla-cpu", "vendor") for s in ("emitter", "oracle"))]
        ids = ("emitter/vendor", "oracle/vendor")
        checks, outcomes = gathered(wrong(*ids, change=WRONG_TOKEN), configurations=configurations)
        found = decide(Matrix((*MATRIX.backends, plugin)), checks, outcomes, TRUTHS)
        assert found.class_ == "compiler-fault"
        assert "right on XLA and wrong on vendor (emitter/vendor)" in found.explanation


def test_compiler_fault_of_xla() -> None:
    """The oracle's graph, run by IREE, agrees with Hugging Face."""
    assert verdict(wrong("oracle/xla-cpu")).class_ == "compiler-fault"


@pytest.mark.parametrize("stage", ["compile", "load", "run"])
@pytest.mark.parametrize("ids", [("emitter/iree-cpu",), ("emitter/iree-cpu/token",), ("oracle/iree-cpu",)])
def test_compiler_fault_of_a_toolchain_that_fails(ids: tuple[str, ...], stage: str) -> None:
    found = verdict(wrong(*ids, change=failed(stage)), more=broken("emitter.caches-in-place", "error"))
    assert found.class_ == "compiler-fault"
    assert any("the tool's words" in line for line in found.evidence)


def test_harness_error_of_gate_zero() -> None:
    checks, outcomes = gathered({})
    others = [c for c in checks if c.kind != "gate-zero"]
    found = decide(MATRIX, [*broken("xla-cpu.gate-zero", "error"), *others], outcomes, TRUTHS)
    assert found.class_ == "harness-error"
    assert "what was seen" in found.evidence[0]


def test_a_backend_that_does_not_pass_gate_zero_is_at_fault_where_another_does() -> None:
    passing = dataclasses.replace(broken("xla-cpu.gate-zero")[0], status="passed", backend="xla-cpu", detail="")
    failing = dataclasses.replace(
        broken("x.gate-zero", "error")[0], backend="vendor", detail="it died (signal SIGABRT)"
    )
    found = verdict(more=(passing, failing))
    assert found.class_ == "compiler-fault"
    assert "vendor does not run the simplest graphs" in found.explanation
    assert "SIGABRT" in found.explanation
    for stage, class_ in (("memory", "out-of-memory"), ("timeout", "timeout"), ("process", "compiler-fault")):
        assert verdict(more=(passing, dataclasses.replace(failing, error=stage))).class_ == class_
    wrong_graph = verdict(wrong("emitter/xla-cpu", "emitter/iree-cpu"), more=(passing, failing))
    assert wrong_graph.class_ == "emitter-fault", "what is wrong with the graph comes first"


def test_harness_error_of_the_truth() -> None:
    assert verdict(wrong("oracle/xla-cpu"), more=broken("reference.noise")).class_ == "harness-error"


@pytest.mark.parametrize("status", ["failed", "error"])
def test_harness_error_of_a_check_that_no_fault_explains(status: str) -> None:
    assert verdict(more=broken("emitter/xla-cpu/token.tokens", status)).class_ == "harness-error"


def test_an_invariant_that_could_not_be_checked_does_not_pass() -> None:
    assert verdict(more=broken("emitter.caches-in-place", "error")).class_ == "harness-error"


# ---- nothing compared never passes


def test_nothing_at_all() -> None:
    assert decide(MATRIX, [], [], {}).class_ == "harness-error"


def test_no_truth() -> None:
    assert verdict(truths={}).class_ == "harness-error"


def test_no_cell() -> None:
    assert verdict(configurations=()).class_ == "harness-error"


def test_a_cell_without_checks() -> None:
    checks, outcomes = gathered()
    for configuration in CONFIGURATIONS:
        found = decide(MATRIX, [c for c in checks if not c.id.startswith(f"{configuration.id}.")], outcomes, TRUTHS)
        assert found.class_ == "harness-error", configuration.id


def test_a_cell_whose_check_was_skipped() -> None:
    checks, outcomes = gathered()
    skipped = [dataclasses.replace(c, status="skipped") if c.id == "emitter/xla-cpu.tokens" else c for c in checks]
    assert decide(MATRIX, skipped, outcomes, TRUTHS).class_ == "harness-error"


HOLES: dict[str, Change] = WRONG | {
    "no prompt": lambda found: dataclasses.replace(found, prompts={}),
    "one prompt": lambda found: dataclasses.replace(found, prompts={"first@32": found.prompts["first@32"]}),
    "no token": on_prompt(tokens=[]),
    "too few tokens": on_prompt(tokens=[3, 1]),
    "too many tokens": on_prompt(tokens=[3, 1, 4, 4]),
    "no slots": on_prompt(slots=()),
    "no stream": lambda found: dataclasses.replace(found, streams={}),
    "no head": on_stream(heads=[], prefilled={}),
    "one call": lambda found: dataclasses.replace(found, repeated=None),
    **{stage: failed(stage) for stage in ("compile", "process", "memory", "timeout")},
}


@pytest.mark.parametrize(
    ("configuration", "hole"),
    [
        pytest.param(configuration, hole, id=f"{name} of {configuration.id}")
        for configuration in CONFIGURATIONS
        for name, hole in HOLES.items()
        if configuration.head == "logits" or name != "logits"
    ],
)
def test_a_hole_in_any_cell_does_not_pass(configuration: Configuration, hole: Change) -> None:
    assert verdict({configuration.id: hole}).class_ not in PASSING


@pytest.mark.parametrize("configuration", [c for c in CONFIGURATIONS if c.head == "logits"], ids=lambda c: c.id)
@pytest.mark.parametrize("errors", [[], [FLOOR], [FLOOR, np.nan, FLOOR], [np.nan, 0.0, 0.0], [0.0, 0.0, np.inf]])
def test_logits_that_are_missing_or_no_numbers_do_not_pass(configuration: Configuration, errors: list[float]) -> None:
    assert verdict({configuration.id: on_prompt(errors=errors)}).class_ not in PASSING


# ---- on a device


@pytest.mark.parametrize("change", [WRONG_TOKEN, WRONG_LOGITS, failed("run"), failed("load")])
@pytest.mark.parametrize(
    "ids",
    [
        ("emitter/iree-cuda", "emitter/iree-cuda/token"),
        ("emitter/iree-cuda", "emitter/iree-cuda/token", "oracle/iree-cuda"),
        ("oracle/iree-cuda",),
    ],
)
def test_right_on_the_processor_and_wrong_on_the_device(ids: tuple[str, ...], change: Change) -> None:
    found = verdict(wrong(*ids, change=change), configurations=ON_CUDA)
    assert (found.class_, found.passed) == ("device-fault", False)
    assert "right on IREE cpu and wrong on IREE cuda" in found.explanation


def test_all_right_on_the_device() -> None:
    assert verdict(configurations=ON_CUDA).class_ == "conforms"


def test_a_device_that_is_out_of_memory_has_done_nothing_wrong() -> None:
    """Nothing is taken apart then; what is wrong beside it is."""

    def full(found: Outcome) -> Outcome:
        return Outcome(found.configuration, "failed", stage="memory", message=str(OutOfMemory("cuda:0")))

    changes = wrong("emitter/iree-cuda/token", change=full)
    found = verdict(changes, configurations=ON_CUDA)
    assert found.class_ == "out-of-memory"
    assert "emitter/iree-cuda/token: cuda:0 is out of memory" in found.explanation
    assert plan(MATRIX, *gathered(changes, configurations=ON_CUDA), asked()) is None
    changes |= wrong("emitter/iree-cpu")
    assert verdict(changes, configurations=ON_CUDA).class_ == "compiler-fault"
    taken = plan(MATRIX, *gathered(changes, configurations=ON_CUDA), asked())
    assert taken
    assert taken.suspect.id == "emitter/iree-cpu"


def test_wrong_on_the_processor_too() -> None:
    """Then it is the compiler's, and wrong on XLA too, the graph's."""
    alike = ("emitter/iree-cuda", "emitter/iree-cpu")
    assert verdict(wrong(*alike), configurations=ON_CUDA).class_ == "compiler-fault"
    assert verdict(wrong(*alike, "emitter/xla-cpu"), configurations=ON_CUDA).class_ == "emitter-fault"
    assert (
        verdict(wrong("oracle/xla-cpu", "oracle/iree-cpu", *alike), configurations=ON_CUDA).class_ == "reference-fault"
    )


def test_what_does_not_compile_for_the_device_is_the_compilers() -> None:
    assert (
        verdict(wrong("emitter/iree-cuda", change=failed("compile")), configurations=ON_CUDA).class_ == "compiler-fault"
    )


def test_only_the_devices_token_is_wrong() -> None:
    """The same graph on the processor tells."""
    on_cpu = Configuration("emitter", "iree-cpu", "token")
    only = {"emitter/iree-cuda/token": WRONG_TOKEN}
    assert verdict(only, configurations=(*ON_CUDA, on_cpu)).class_ == "device-fault"
    both = only | {on_cpu.id: WRONG_TOKEN}
    assert (
        verdict(both, configurations=(*ON_CUDA, on_cpu, Configuration("emitter", "xla-cpu", "token"))).class_
        == "compiler-fault"
    )


@pytest.mark.parametrize("change", [on_stream(apart=99.0), on_slots(call=1, stayed="slot 0 of k_cache.0 changed")])
def test_only_the_device_breaks_what_its_caches_must_keep(change: Change) -> None:
    """The same graphs do not on the processor."""
    assert verdict({"emitter/iree-cuda": change}, configurations=ON_CUDA).class_ == "device-fault"


@pytest.mark.parametrize(
    "id", ["emitter/iree-cuda.compiles", "oracle/iree-cuda.compiles", "emitter/iree-cuda.arithmetic"]
)
def test_what_a_target_is_not_compiled_for(id: str) -> None:
    found = verdict(more=broken(id))
    assert (found.class_, found.passed) == ("compiler-fault", False)


@pytest.mark.parametrize(
    ("error", "class_"), [("timeout", "timeout"), ("memory", "out-of-memory"), ("", "compiler-fault")]
)
def test_a_target_for_which_the_compiler_did_not_end(error: str, class_: str) -> None:
    question = Question("compiles", "every graph compiles for cuda", "emitter", "iree-cuda")
    assert verdict(more=[question.error("iree-compile did not end", error)]).class_ == class_


@pytest.mark.parametrize("id", ["emitter.read-backs", "emitter.caches-in-place"])
def test_a_step_that_waits_for_the_device(id: str) -> None:
    assert verdict(more=broken(id), configurations=ON_CUDA).class_ == "invariant-broken"


@pytest.mark.parametrize("configuration", [c for c in ON_CUDA if c.backend == "iree-cuda"], ids=lambda c: c.id)
@pytest.mark.parametrize("apart", [2.0**-149, 9 * FLOOR, float("nan"), float("inf")])
def test_a_device_that_does_not_repeat_itself(apart: float, configuration: Configuration) -> None:
    """Right on the processor, and another value now and then: however little it is, nothing explains it."""
    found = verdict({configuration.id: not_repeated(apart)}, configurations=ON_CUDA)
    assert found.class_ == "device-fault"
    assert f"do not give the same values ({configuration.id})" in found.explanation


def test_a_device_that_was_not_asked_twice() -> None:
    assert not verdict(
        {"oracle/iree-cuda": lambda o: dataclasses.replace(o, repeated=None)}, configurations=ON_CUDA
    ).passed
