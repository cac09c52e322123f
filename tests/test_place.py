"""What is taken apart, and what the verdict says of the place: from evidence by hand."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from evidence import FLOOR, TRUTHS, WRONG_LOGITS, WRONG_TOKEN, Change, failed, gathered, on_prompt, verdict

from hloracle.backends.devices import CPU
from hloracle.conformance.cells import Cell, CellOutcome
from hloracle.conformance.checks import Check
from hloracle.conformance.evidence import Evidence
from hloracle.conformance.localization import Localization, Plan, confidence, plan, sequence
from hloracle.conformance.prompts import Prompt
from hloracle.conformance.reproducer import Reproducer
from hloracle.conformance.run import FIRST, _only_the_token_is_wrong, _settled, cells_on
from hloracle.conformance.verdict import Verdict, place

LONG, SHORT = Prompt("first", 32, "", None, tuple(range(9))), Prompt("second", 64, "", None, (1, 2, 3))
PROMPTS = [LONG, SHORT]
EMITTER, ORACLE = Cell("emitter", "xla-cpu"), Cell("oracle", "xla-cpu")
ANCHOR = "layers.0.mlp.act"
STATIC = Check("emitter.abi", "an invariant", "failed", "1", "0", "donates {}", "k_cache.0", "func.func at line 1")


def planned(changes: dict[str, Change], prompts: list[Prompt] = PROMPTS) -> Plan | None:
    checks, outcomes = gathered(changes)
    return plan(checks, outcomes, prompts, TRUTHS)


def pair(found: Plan | None) -> tuple[str, str | None]:
    assert found
    return found.suspect.id, found.trusted.id if found.trusted else None


BOTH_EMITTER = ("emitter/xla-cpu", "emitter/iree-cpu", "emitter/iree-cpu/token")
BOTH_ORACLE = ("oracle/xla-cpu", "oracle/iree-cpu")


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (BOTH_EMITTER, ("emitter/xla-cpu", "oracle/xla-cpu")),
        (BOTH_ORACLE, ("oracle/xla-cpu", "emitter/xla-cpu")),
        (("emitter/iree-cpu", "oracle/iree-cpu"), ("emitter/iree-cpu", "emitter/xla-cpu")),
        (("oracle/iree-cpu",), ("oracle/iree-cpu", "oracle/xla-cpu")),
        (("oracle/xla-cpu",), ("oracle/xla-cpu", "oracle/iree-cpu")),
        (BOTH_EMITTER + BOTH_ORACLE, ("oracle/xla-cpu", None)),
    ],
)
def test_what_is_taken_apart(wrong: tuple[str, ...], expected: tuple[str, str | None]) -> None:
    changes = {id: on_prompt(tokens=[3, 2, 4]) if id.endswith("token") else WRONG_LOGITS for id in wrong}
    assert pair(planned(changes)) == expected


def test_nothing_wrong_nothing_taken_apart() -> None:
    assert planned({}) is None


def test_the_shortest_prompt_that_fails() -> None:
    found = planned(dict.fromkeys(("emitter/xla-cpu", "emitter/iree-cpu"), WRONG_LOGITS))
    assert found
    assert (found.prompt, found.step) == (LONG, 1)  # only the first prompt fails, at its second step
    second = on_prompt("second@64", errors=[9 * FLOOR, FLOOR, FLOOR])
    both = lambda o: second(WRONG_LOGITS(o))  # noqa: E731
    found = planned({"emitter/xla-cpu": both, "emitter/iree-cpu": both})
    assert found
    assert (found.prompt, found.step) == (SHORT, 0)


def test_a_prompt_of_one_token_is_chosen_last() -> None:
    one = dataclasses.replace(SHORT, token_ids=(1,))
    second = on_prompt("second@64", errors=[9 * FLOOR, FLOOR, FLOOR])
    both = lambda o: second(WRONG_LOGITS(o))  # noqa: E731
    found = planned({"emitter/xla-cpu": both, "emitter/iree-cpu": both}, [LONG, one])
    assert found
    assert found.prompt == LONG


def test_a_cell_that_gave_nothing_fails_on_every_prompt() -> None:
    found = planned({"emitter/iree-cpu": failed("compile")})
    assert found
    assert (found.suspect.id, found.prompt, found.step) == ("emitter/iree-cpu", SHORT, 0)


def test_sequence_ends_at_the_failing_step() -> None:
    truth = TRUTHS["first@32"]
    at = Plan(EMITTER, ORACLE, LONG, 0, "")
    assert sequence(at, truth) == [*range(9), 3]
    assert sequence(dataclasses.replace(at, step=2), truth) == [*range(9), 3, 1]
    # The last token is nobody's input.
    assert sequence(dataclasses.replace(at, step=3), truth) == [*range(9), 3, 1]


# ---- the place


def localized(**fields: Any) -> Localization:
    operation = {"name": "stablehlo.logistic", "value": "%x", "line": 7, "graph": "decode", "why": "it is"}
    errors = [{"anchor": ANCHOR, "phase": "decode", "accumulated": 99.0, "local": 99.0, "peer": 0.5}]
    found = Localization(
        Plan(EMITTER, ORACLE, LONG, 1, "the oracle's graph is right"), "decode", ANCHOR, 9, ANCHOR, ANCHOR, errors, [],
        [], operation, None, False, False,
    )  # fmt: skip
    return dataclasses.replace(found, **fields)


def placed(found: Localization | None, *more: Check) -> Verdict:
    changes = dict.fromkeys(("emitter/xla-cpu", "emitter/iree-cpu"), WRONG_LOGITS)
    checks, outcomes = gathered(changes)
    return place(verdict(changes, more=more), [*more, *checks], found, outcomes)


def test_a_place_with_its_operation() -> None:
    found = placed(localized())
    assert (found.class_, found.anchor) == ("emitter-fault", ANCHOR)
    assert found.operation == "stablehlo.logistic %x at line 7 of decode"
    assert found.sure
    assert found.sure[0] == "certain"
    assert not found.fusion_dependent


def test_no_place() -> None:
    for nothing in (None, localized(anchor=None, first_local=None, first_accumulated=None, operation=None)):
        found = placed(nothing)
        assert (found.class_, found.anchor, found.operation) == ("emitter-fault", None, None)
        assert found.sure == ("possible", ["no place was found"])


def test_an_invariant_has_a_place_too() -> None:
    found = placed(None, STATIC)
    assert (found.anchor, found.operation) == ("k_cache.0", "func.func at line 1")
    assert found.sure
    assert found.sure[0] == "certain"
    assert "emitter.abi is read from the graph as it is written" in found.sure[1][0]
    uncompiled = dataclasses.replace(STATIC, id="emitter/iree-cuda.compiles")
    assert placed(None, uncompiled).sure == (
        "certain", ["emitter/iree-cuda.compiles is where the compiler stops: donates {}"],
    )  # fmt: skip
    # What was found by running it is nearer to the fault.
    assert placed(localized(), STATIC).anchor == ANCHOR


def test_a_misused_graph_is_the_harness() -> None:
    found = placed(localized(misused=True, first_local=None, operation=None))
    assert (found.class_, found.anchor) == ("harness-error", ANCHOR)
    # But a graph that is not as its ABI says is itself to blame.
    assert placed(localized(misused=True, first_local=None, operation=None), STATIC).class_ == "emitter-fault"


def test_fusion_dependent() -> None:
    found = placed(localized(fusion_dependent=True, first_local=None, first_accumulated=None, operation=None))
    assert (found.class_, found.fusion_dependent, found.anchor) == ("compiler-fault", True, ANCHOR)
    assert found.sure
    assert found.sure[0] == "likely"


def test_a_pass_has_no_place() -> None:
    checks, outcomes = gathered()
    found = place(verdict(), checks, None, outcomes)
    assert (found.class_, found.anchor, found.sure) == ("conforms", None, None)


@pytest.mark.parametrize(
    ("fields", "level"),
    [
        ({}, "certain"),
        ({"operation": None}, "likely"),
        ({"operation": None, "reproducer": Reproducer("r", [], "c", True, "")}, "certain"),
        ({"operation": None, "reproducer": Reproducer("r", [], "c", False, "")}, "likely"),
        ({"first_accumulated": "embed_tokens"}, "likely"),
        ({"first_accumulated": None}, "certain"),
        ({"first_local": None}, "likely"),
        ({"anchor": None, "first_local": None, "first_accumulated": None}, "possible"),
    ],
)
def test_how_sure(fields: dict[str, Any], level: str) -> None:
    outcomes: list[CellOutcome] = []
    assert confidence(localized(**fields), outcomes, set())[0] == level


def test_the_canary_comes_first() -> None:
    dead = Check("harness.canary", "a fault put in on purpose", "failed", "nothing", "norm", "")
    found = verdict(more=(dead,))
    assert (found.class_, found.passed) == ("harness-error", False)
    skipped = Check("harness.canary", "a fault put in on purpose", "skipped", "", "", "no right graph")
    assert verdict(more=(skipped,)).passed


def test_only_the_token_is_wrong_on_one_compiler() -> None:
    """The graph that picks the token is right on XLA, so the compiler's choice of it is wrong."""
    changes = {"emitter/iree-cpu/token": on_prompt(tokens=[3, 2, 4])}
    on_xla = Cell("emitter", "xla-cpu", "token")
    assert verdict(changes).class_ == "emitter-fault"
    assert verdict(changes, cells=(*cells_on(CPU), on_xla)).class_ == "compiler-fault"
    changes["emitter/xla-cpu/token"] = on_prompt(tokens=[3, 2, 4])
    assert verdict(changes, cells=(*cells_on(CPU), on_xla)).class_ == "emitter-fault"


ON_XLA = {"emitter/xla-cpu": WRONG_LOGITS}
ORACLE_ON_XLA = {"oracle/xla-cpu": WRONG_LOGITS}
TOKEN = {"emitter/iree-cpu/token": WRONG_TOKEN}
BROKEN = (Check("emitter.one-matmul-each", "one product for each weight", "failed", "9", "8", ""),)
WRONG_ORACLE = (Check("oracle.one-matmul-each", "one product for each weight", "failed", "9", "8", ""),)
LATER = (
    Check("emitter.probes", "", "failed", "", "", ""), Check("emitter.caches-in-place", "", "failed", "", "", ""),
    Check("emitter.caches-in-place", "", "error", "", "", ""),
)  # fmt: skip
OUTCOMES: tuple[Change, ...] = (lambda found: found, WRONG_LOGITS, WRONG_TOKEN, failed("compile"))
UNLIKE_STREAMING = on_prompt(head_distance=99 * FLOOR)
ON_IREE = (Cell("emitter", "iree-cpu", "token"), Cell("emitter", "iree-cpu"), Cell("oracle", "iree-cpu"))


def settled(changes: dict[str, Change], cells: tuple[Cell, ...], more: tuple[Check, ...] = ()) -> bool:
    checks, outcomes = gathered(changes, cells=cells)
    evidence = Evidence(checks=[*checks, *more], outcomes=outcomes)
    found = _settled(evidence, CPU)
    # A cell that was left out is not one that was right: XLA need not be asked for the production graph.
    assert not found or not _only_the_token_is_wrong(evidence, CPU)
    return found


def whatever_comes(
    changes: dict[str, Change], cells: tuple[Cell, ...], more: tuple[Check, ...] = ()
) -> set[tuple[str, str]]:  # fmt: skip
    """The classes that a run can end in, with and without what is left, whatever that shows."""
    left = [cell for cell in cells_on(CPU) if cell not in cells]
    found = {("without", verdict(changes, cells=cells, more=more).class_)}
    every = [(*OUTCOMES, UNLIKE_STREAMING) if cell == Cell("emitter", "iree-cpu") else OUTCOMES for cell in left]
    for shown in itertools.product(*every):
        known = changes | {cell.id: change for cell, change in zip(left, shown, strict=True)}
        for later in ((), *((check,) for check in LATER)):
            found.add(("with", verdict(known, more=(*more, *later)).class_))
    return found


def only(class_: str) -> set[tuple[str, str]]:
    return {("without", class_), ("with", class_)}


@pytest.mark.parametrize(
    ("changes", "more", "class_"),
    [
        (ON_XLA, (), "emitter-fault"),
        ({"emitter/xla-cpu": failed("compile")}, (), "emitter-fault"),
        (ON_XLA, BROKEN, "emitter-fault"),
        ({}, BROKEN, "emitter-fault"),
        ({}, WRONG_ORACLE, "reference-fault"),
        (ON_XLA, WRONG_ORACLE, "reference-fault"),
        # What these show depends on what is left.
        ({}, (), ""),
        (ORACLE_ON_XLA, (), ""),
        (ORACLE_ON_XLA, BROKEN, ""),
        (ON_XLA | ORACLE_ON_XLA, (), ""),
    ],
)
def test_what_xla_settles(changes: dict[str, Change], more: tuple[Check, ...], class_: str) -> None:
    """Then a small run looks no further, and whatever it would have seen on IREE, the verdict's class is the same."""
    assert settled(changes, FIRST, more) == bool(class_)
    if class_:
        assert whatever_comes(changes, FIRST, more) == only(class_)
    else:
        assert len({class_ for when, class_ in whatever_comes(changes, FIRST, more) if when == "with"}) > 1


@pytest.mark.parametrize("changes", [ORACLE_ON_XLA, ON_XLA | ORACLE_ON_XLA])
@pytest.mark.parametrize("on_iree", OUTCOMES)
def test_what_settles_an_oracle_that_is_wrong_on_xla(changes: dict[str, Change], on_iree: Change) -> None:
    """Whose fault it is IREE says, and it needs none but the oracle's graph there."""
    known, cells = changes | {"oracle/iree-cpu": on_iree}, (*FIRST, Cell("oracle", "iree-cpu"))
    assert settled(known, cells)
    assert whatever_comes(known, cells) == only("compiler-fault" if on_iree is OUTCOMES[0] else "reference-fault")


@pytest.mark.parametrize("changes", [{}, TOKEN])
@pytest.mark.parametrize("first", OUTCOMES)
def test_what_the_logits_on_iree_settle(changes: dict[str, Change], first: Change) -> None:
    """The graph is right on XLA and its logits wrong on IREE: the oracle's graph there says nothing new."""
    known, cells = changes | {"emitter/iree-cpu": first}, (*FIRST, *ON_IREE[:2])
    wrong = first is not OUTCOMES[0]
    assert settled(known, cells) == wrong
    assert not settled(changes, (*FIRST, ON_IREE[0]))
    if wrong:
        assert {verdict(known | {"oracle/iree-cpu": second}).class_ for second in OUTCOMES} == {"compiler-fault"}
        assert verdict(known, cells=cells).class_ == "compiler-fault"


def test_prefill_unlike_streaming_settles_nothing() -> None:
    """XLA does not stream, so only the oracle on IREE tells the compiler's fault from the emitter's."""
    known = {"emitter/iree-cpu": UNLIKE_STREAMING}
    assert not settled(known, (*FIRST, *ON_IREE[:2]))
    assert verdict(known).class_ == "emitter-fault"
    assert verdict(known | {"oracle/iree-cpu": WRONG_LOGITS}).class_ == "compiler-fault"


def test_nothing_settles_before_xla_has_run() -> None:
    assert not settled({}, FIRST[:1], BROKEN)
    assert not settled(ON_XLA, FIRST[:1])
