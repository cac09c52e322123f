"""One test for each row of DESIGN's table, and for what must never pass."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from evidence import (
    CELLS,
    CLOSE,
    FLOOR,
    TRUTHS,
    WRONG_LOGITS,
    WRONG_TOKEN,
    Change,
    failed,
    gathered,
    on_prompt,
    verdict,
)

from hloracle.backends.devices import Device
from hloracle.conformance.cells import Cell, CellOutcome
from hloracle.conformance.checks import Check
from hloracle.conformance.localization import plan
from hloracle.conformance.prompts import Prompt
from hloracle.conformance.run import cells_on
from hloracle.conformance.verdict import PASSING, decide
from hloracle.core.errors import OutOfMemory

ON_CUDA = cells_on(Device("cuda"))
FILE = (Cell("file", "iree-cpu"), Cell("file", "xla-cpu"))
FILE_TOKEN = (Cell("file", "iree-cpu", "token"), Cell("file", "xla-cpu", "token"))


def wrong(*ids: str, change: Change = WRONG_LOGITS) -> dict[str, Change]:
    return dict.fromkeys(ids, change)


def broken(id: str, status: str = "failed") -> tuple[Check, ...]:
    return (Check(id, "an invariant", status, "2", "1", "what was seen"),)


def test_conforms() -> None:
    found = verdict()
    assert (found.class_, found.passed) == ("conforms", True)
    assert (found.prompt, found.step) == (None, None)
    # A pass shows what it rests on: the tokens and logits of every cell.
    assert {line.split(".")[0] for line in found.evidence} == {cell.id for cell in CELLS}


def test_near_tie() -> None:
    found = verdict({"emitter/iree-cpu": on_prompt("close@32", tokens=[3, 2, 4])}, CLOSE)
    assert (found.class_, found.passed, found.prompt, found.step) == ("near-tie", True, "close@32", 1)


def test_near_tie_of_the_graph_that_picks_the_token() -> None:
    found = verdict({"emitter/iree-cpu/token": on_prompt("close@32", tokens=[3, 2, 4])}, CLOSE)
    assert found.class_ == "near-tie"


def test_a_third_token_is_no_near_tie() -> None:
    """The truth's two best are close, and a cell chose neither."""
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
    everywhere = wrong(*(cell.id for cell in CELLS), change=WRONG_TOKEN)
    found = verdict({id: change for id, change in everywhere.items() if id.startswith("oracle")})
    assert found.class_ == "reference-fault"
    assert verdict(everywhere).class_ == "reference-fault"


def test_reference_fault_of_a_graph_that_does_not_parse() -> None:
    assert verdict(more=broken("oracle.parse")).class_ == "reference-fault"


def test_reference_fault_of_an_invariant() -> None:
    found = verdict(more=broken("oracle.census"))
    assert found.class_ == "reference-fault"
    assert "invariant" in found.explanation


@pytest.mark.parametrize("change", [WRONG_TOKEN, WRONG_LOGITS])
def test_emitter_fault(change: Change) -> None:
    found = verdict(wrong("emitter/iree-cpu", "emitter/iree-cpu/token", "emitter/xla-cpu", change=change))
    assert found.class_ == "emitter-fault"
    assert "The oracle's graph is right" in found.explanation
    assert "on XLA and on IREE alike" in found.explanation


@pytest.mark.parametrize("id", ["emitter.parse", "file.parse", "emitter.census", "emitter.caches-in-place", "file.f64"])
def test_emitter_fault_of_an_invariant(id: str) -> None:
    found = verdict(more=broken(id))
    assert (found.class_, found.evidence) == ("emitter-fault", (f"{id}: 2 (what was seen)",))


def test_emitter_fault_of_an_invariant_before_anything_ran() -> None:
    assert decide(broken("file.abi"), [], {}).class_ == "emitter-fault"


def test_emitter_fault_of_the_graph_that_picks_the_token() -> None:
    found = verdict(wrong("emitter/iree-cpu/token", change=WRONG_TOKEN))
    assert found.class_ == "emitter-fault"
    assert "picks the token" in found.explanation


def test_emitter_fault_of_prefill_and_decode() -> None:
    """XLA does not stream the prompts, so nothing says that the compiler is to blame."""
    assert verdict({"emitter/iree-cpu": on_prompt(head_distance=1.0)}).class_ == "emitter-fault"


@pytest.mark.parametrize("cells", [FILE, FILE_TOKEN], ids=["logits", "token"])
def test_emitter_fault_of_a_file(cells: tuple[Cell, ...]) -> None:
    found = verdict(wrong(*(c.id for c in cells), change=WRONG_TOKEN), cells=cells)
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
def test_compiler_fault(ids: tuple[str, ...]) -> None:
    found = verdict(wrong(*ids, change=WRONG_TOKEN))
    assert found.class_ == "compiler-fault"
    assert "right on XLA and wrong on IREE" in found.explanation


@pytest.mark.parametrize("cells", [FILE, FILE_TOKEN], ids=["logits", "token"])
@pytest.mark.parametrize("wrong_on", [0, 1])
def test_compiler_fault_of_a_file(cells: tuple[Cell, ...], wrong_on: int) -> None:
    assert verdict(wrong(cells[wrong_on].id, change=WRONG_TOKEN), cells=cells).class_ == "compiler-fault"


def test_compiler_fault_of_xla() -> None:
    """The oracle's graph, run by IREE, agrees with Hugging Face."""
    assert verdict(wrong("oracle/xla-cpu")).class_ == "compiler-fault"


@pytest.mark.parametrize("stage", ["compile", "load", "run"])
@pytest.mark.parametrize("ids", [("emitter/iree-cpu",), ("emitter/iree-cpu/token",), ("oracle/iree-cpu",)])
def test_compiler_fault_of_a_toolchain_that_fails(ids: tuple[str, ...], stage: str) -> None:
    found = verdict(wrong(*ids, change=failed(stage)), more=broken("emitter.caches-in-place", "error"))
    assert found.class_ == "compiler-fault"
    assert any("the tool's words" in line for line in found.evidence)


def test_harness_error_when_a_process_died() -> None:
    found = verdict(wrong("emitter/xla-cpu", change=failed("process")) | wrong("emitter/iree-cpu"))
    assert found.class_ == "harness-error"
    assert "emitter/xla-cpu" in found.explanation


def test_harness_error_of_gate_zero() -> None:
    found = verdict(more=broken("gate-zero.xla-cpu", "error"))
    assert found.class_ == "harness-error"
    assert "what was seen" in found.evidence[0]


def test_harness_error_of_the_truth() -> None:
    assert verdict(wrong("oracle/xla-cpu"), more=broken("truth.noise")).class_ == "harness-error"


@pytest.mark.parametrize("status", ["failed", "error"])
def test_harness_error_of_a_check_that_no_fault_explains(status: str) -> None:
    assert verdict(more=broken("another.check", status)).class_ == "harness-error"


def test_an_invariant_that_could_not_be_checked_does_not_pass() -> None:
    assert verdict(more=broken("emitter.caches-in-place", "error")).class_ == "harness-error"


# ---- nothing compared never passes


def test_nothing_at_all() -> None:
    assert decide([], [], {}).class_ == "harness-error"


def test_no_truth() -> None:
    assert verdict(truths={}).class_ == "harness-error"


def test_no_cell() -> None:
    assert verdict(cells=()).class_ == "harness-error"


def test_a_cell_without_checks() -> None:
    checks, outcomes = gathered()
    for cell in CELLS:
        found = decide([c for c in checks if not c.id.startswith(f"{cell.id}.")], outcomes, TRUTHS)
        assert found.class_ == "harness-error", cell.id


def test_a_cell_whose_check_was_skipped() -> None:
    checks, outcomes = gathered()
    skipped = [dataclasses.replace(c, status="skipped") if c.id == "emitter/xla-cpu.tokens" else c for c in checks]
    assert decide(skipped, outcomes, TRUTHS).class_ == "harness-error"


@pytest.mark.parametrize("cell", CELLS, ids=[c.id for c in CELLS])
@pytest.mark.parametrize(
    "change",
    [
        lambda found: dataclasses.replace(found, prompts={}),
        lambda found: dataclasses.replace(found, prompts={"first@32": found.prompts["first@32"]}),
        on_prompt(tokens=[]),
        on_prompt(tokens=[3, 1]),
        on_prompt(tokens=[3, 1, 4, 4]),
        WRONG_TOKEN,
        failed("compile"),
        failed("process"),
    ],
    ids=["no prompt", "one prompt", "no token", "too few tokens", "too many tokens", "token", "compile", "process"],
)
def test_a_hole_in_any_cell_does_not_pass(cell: Cell, change: Change) -> None:
    assert verdict({cell.id: change}).class_ not in PASSING


@pytest.mark.parametrize("cell", [c for c in CELLS if c.head == "logits"], ids=lambda c: c.id)
@pytest.mark.parametrize("errors", [[], [FLOOR], [FLOOR, np.nan, FLOOR], [np.nan, 0.0, 0.0], [0.0, 0.0, np.inf]])
def test_logits_that_are_missing_or_no_numbers_do_not_pass(cell: Cell, errors: list[float]) -> None:
    assert verdict({cell.id: on_prompt(errors=errors)}).class_ not in PASSING


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
    found = verdict(wrong(*ids, change=change), cells=ON_CUDA)
    assert (found.class_, found.passed) == ("device-fault", False)
    assert "right on IREE cpu and wrong on IREE cuda" in found.explanation


def test_all_right_on_the_device() -> None:
    assert verdict(cells=ON_CUDA).class_ == "conforms"


@pytest.mark.parametrize("beside", [{}, wrong("emitter/iree-cpu")])
def test_a_device_that_is_out_of_memory_has_done_nothing_wrong(beside: dict[str, Change]) -> None:
    """Nothing is taken apart then; and of what is wrong beside it no class is said, as all has to run first."""

    def full(found: CellOutcome) -> CellOutcome:
        return CellOutcome(found.cell, "failed", stage="memory", message=str(OutOfMemory("cuda:0")))

    changes = beside | wrong("emitter/iree-cuda/token", change=full)
    found = verdict(changes, cells=ON_CUDA)
    assert found.class_ == "harness-error"
    assert found.explanation.startswith(
        "There is no result of emitter/iree-cuda/token.tokens: cuda:0 is out of memory: "
    )
    taken = plan(*gathered(changes, cells=ON_CUDA), [Prompt("first", 32, "", None, (1, 2))], TRUTHS)
    assert (taken.suspect.id if taken else "") == "".join(beside)


def test_wrong_on_the_processor_too() -> None:
    """Then it is the compiler's, and wrong on XLA too, the graph's."""
    alike = ("emitter/iree-cuda", "emitter/iree-cpu")
    assert verdict(wrong(*alike), cells=ON_CUDA).class_ == "compiler-fault"
    assert verdict(wrong(*alike, "emitter/xla-cpu"), cells=ON_CUDA).class_ == "emitter-fault"
    assert verdict(wrong("oracle/xla-cpu", "oracle/iree-cpu", *alike), cells=ON_CUDA).class_ == "reference-fault"


def test_what_does_not_compile_for_the_device_is_the_compilers() -> None:
    assert verdict(wrong("emitter/iree-cuda", change=failed("compile")), cells=ON_CUDA).class_ == "compiler-fault"


def test_only_the_devices_token_is_wrong() -> None:
    """The same graph on the processor tells."""
    on_cpu = Cell("emitter", "iree-cpu", "token")
    only = {"emitter/iree-cuda/token": WRONG_TOKEN}
    assert verdict(only, cells=(*ON_CUDA, on_cpu)).class_ == "device-fault"
    both = only | {on_cpu.id: WRONG_TOKEN}
    assert verdict(both, cells=(*ON_CUDA, on_cpu, Cell("emitter", "xla-cpu", "token"))).class_ == "compiler-fault"


def test_only_the_device_streams_otherwise() -> None:
    """Prefill and decode of the same graphs agree on the processor."""
    apart = {"emitter/iree-cuda": on_prompt(head_distance=1.0, cache_distance=0.0)}
    found = verdict(apart, cells=ON_CUDA)
    assert found.class_ == "device-fault"


@pytest.mark.parametrize(
    "id", ["emitter/iree-cuda.compiles", "oracle/iree-cuda.compiles", "emitter/iree-cuda.arithmetic"]
)
def test_what_a_target_is_not_compiled_for(id: str) -> None:
    found = verdict(more=broken(id))
    assert (found.class_, found.passed) == ("compiler-fault", False)


@pytest.mark.parametrize("id", ["emitter.read-backs", "emitter.caches-in-place"])
def test_a_step_that_waits_for_the_device(id: str) -> None:
    assert verdict(more=broken(id), cells=ON_CUDA).class_ == "emitter-fault"


def test_a_device_that_does_not_repeat_itself() -> None:
    """Right on the processor, and wrong only now and then."""
    noisy = on_prompt(repeat_distance=9 * FLOOR)
    assert verdict({"oracle/iree-cuda": noisy}, cells=ON_CUDA).class_ == "device-fault"
    assert verdict({"oracle/iree-cuda": on_prompt(repeat_distance=7 * FLOOR)}, cells=ON_CUDA).class_ == "conforms"
    assert (
        verdict({"oracle/iree-cuda": on_prompt(repeat_distance=float("nan"))}, cells=ON_CUDA).class_ == "device-fault"
    )


def test_a_device_that_was_not_asked_twice() -> None:
    every = lambda found: dataclasses.replace(  # noqa: E731
        found, prompts={id: dataclasses.replace(p, repeat_distance=None) for id, p in found.prompts.items()}
    )
    assert not verdict({"oracle/iree-cuda": every}, cells=ON_CUDA).passed
