"""What is taken apart, and what the verdict says of the place: from evidence by hand."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from evidence import (
    ABIS,
    CONFIGURATIONS,
    FLOOR,
    LONG,
    MATRIX,
    SHORT,
    STREAM,
    TRUTHS,
    WRONG_LOGITS,
    WRONG_POSITION,
    WRONG_SLOT,
    WRONG_TOKEN,
    Change,
    a_run,
    asked,
    both,
    check,
    failed,
    gathered,
    not_repeated,
    on_prompt,
    on_slots,
    on_stream,
    outcome,
    right,
    verdict,
)

from hloracle.conformance.checks.check import Check
from hloracle.conformance.checks.of_configurations import configuration_checks
from hloracle.conformance.evidence import Evidence
from hloracle.conformance.graphs.facts import GraphFacts, Inspected
from hloracle.conformance.judging import _only_the_token_is_wrong
from hloracle.conformance.judging import settled as is_settled
from hloracle.conformance.matrix import Configuration, Matrix
from hloracle.conformance.runs.configurations import Outcome
from hloracle.conformance.verdict.localization import Failing, Localization, Plan, plan
from hloracle.conformance.verdict.place import confidence, narrowed, place
from hloracle.conformance.verdict.repair import Repair
from hloracle.conformance.verdict.reproducer import Reproducer
from hloracle.conformance.verdict.verdict import Verdict, decide
from hloracle.core.abi import Graph
from hloracle.localize.word import Word

EMITTER, ORACLE = Configuration("emitter", "xla-cpu"), Configuration("oracle", "xla-cpu")
ANCHOR = "layers.0.mlp.act"
STATIC = check(
    "emitter.abi", "an invariant", "failed", "1", "0", "donates {}", anchor="k_cache.0", operation="func.func at line 1"
)


AT = Failing(LONG, 1, (*LONG.token_ids, 3), 9)
ON_BOTH = ("emitter/xla-cpu", "emitter/iree-cpu")


def planned(changes: dict[str, Change], **other: Any) -> Plan | None:
    return plan(MATRIX, *gathered(changes), asked(**other))


def failing(change: Change, **other: Any) -> Failing:
    """Where the emitter's graph, wrong on both compilers, is taken apart."""
    found = planned(dict.fromkeys(ON_BOTH, change), **other)
    assert found
    assert found.suspect == EMITTER
    return found.at


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


SECOND = on_prompt(SHORT.id, errors=[9 * FLOOR, FLOOR, FLOOR])


def test_the_shortest_prompt_that_fails() -> None:
    assert failing(WRONG_LOGITS) == AT  # only the first prompt fails, at its second step
    assert failing(both(WRONG_LOGITS, SECOND)) == Failing(SHORT, 0, (1, 2, 3, 5), 3)


def test_a_prompt_of_one_token_is_chosen_last() -> None:
    one = dataclasses.replace(SHORT, token_ids=(1,))
    assert failing(both(WRONG_LOGITS, SECOND), prompts=(LONG, one)) == AT
    assert failing(SECOND, prompts=(LONG, one)) == Failing(one, 0, (1, 5), 1)


def test_a_cell_that_gave_nothing_fails_on_every_prompt() -> None:
    found = planned({"emitter/iree-cpu": failed("compile")})
    assert found
    assert (found.suspect.id, found.at.prompt, found.at.step) == ("emitter/iree-cpu", SHORT, 0)


@pytest.mark.parametrize("stage", ["memory", "timeout"])
def test_a_cell_without_an_answer_is_not_taken_apart_nor_taken_for_right(stage: str) -> None:
    assert planned({"emitter/iree-cpu": failed(stage)}) is None
    found = planned({"emitter/iree-cpu": WRONG_TOKEN, "emitter/xla-cpu": failed(stage)})
    assert pair(found) == ("emitter/iree-cpu", None)


@pytest.mark.parametrize(
    ("change", "step"),
    [
        (on_prompt(tokens=[9, 1, 4]), 0),
        (on_prompt(errors=[FLOOR, FLOOR, 9 * FLOOR]), 2),
        # Slot 9 is filled by the step that is fed the first token after the nine of the prompt, slot 10 by the next.
        (on_slots(anchor="k_cache.0", slot=2), 0),
        (on_slots(anchor="k_cache.0", slot=8), 0),
        (on_slots(call=1, anchor="k_cache.0", slot=9), 1),
        (on_slots(call=1, anchor="v_cache.1", slot=10), 2),
        # Of what has no place the first step is looked at.
        (on_slots(call=1, stayed="slot 0 of k_cache.0 changed"), 0),
        (not_repeated(), 0),
    ],
)  # fmt: skip
def test_the_first_failing_step(change: Change, step: int) -> None:
    following = (3, 1)[: max(step, 1)]  # the last token is nobody's input
    assert failing(change) == Failing(LONG, step, (*LONG.token_ids, *following), 9)


T = STREAM.tokens
SPOILED = "slot 5 of v_cache.0 changed"


@pytest.mark.parametrize(
    ("change", "length", "tokens"),
    [
        # Decode at a position: what came before is given at once.
        (on_stream(heads=[1.0] * 9 + [99.0] * 7), 9, T[:10]),
        (on_stream(heads=[99.0] + [1.0] * 15), 0, T[:1]),
        (on_stream(heads=[1.0] * 15 + [float("nan")]), 15, T),
        (on_slots(STREAM.id, 0, "v_cache.0", 5), 5, T[:6]),
        # A slot that a later step spoiled: the first with a wrong head, or else the last.
        (both(on_stream(heads=[1.0] * 9 + [99.0] * 7), on_slots(STREAM.id, 0, "v_cache.0", 5, stayed=SPOILED)), 9, T[:10]),
        (on_slots(STREAM.id, 0, "v_cache.0", 5, stayed=SPOILED), 15, T),
        # Prefill after a length: there is no step.
        (on_stream(prefilled={1: 1.0, 4: 99.0, 7: float("nan")}), 4, T[:4]),
        (on_slots(STREAM.id, 1, "v_cache.0", 6), 7, T[:7]),
        # Both: prefill alone shows it.
        (both(on_stream(heads=[1.0] * 3 + [99.0] * 13), on_stream(prefilled={1: 1.0, 4: 1.0, 7: 99.0})), 7, T[:7]),
    ],
)  # fmt: skip
def test_the_first_place_of_a_stream(change: Change, length: int, tokens: tuple[int, ...]) -> None:
    found = failing(change)
    assert (found.length, found.tokens, found.step) == (length, tokens, len(tokens) - length)
    assert (found.prompt.token_ids, found.prompt.bucket) == (tokens[:length], 32)
    # A prompt that shows something wrong is nearer to what a user does.
    assert failing(both(change, WRONG_LOGITS)) == AT


def test_decode_alone_is_taken_apart_where_its_stream_first_fails() -> None:
    """It is given prompts token by token as well."""
    alone = on_stream(prefilled={}, heads=[1.0] * 4 + [99.0] * 12)
    assert failing(both(alone, WRONG_LOGITS)).tokens == T[:5]


def test_of_another_emitters_graph_a_whole_bucket_is_taken_apart() -> None:
    """Where it fails as well: of what that graph makes of padding nothing is known."""
    checks, outcomes = gathered({"emitter/xla-cpu": both(on_stream(prefilled={4: 99.0, 16: 99.0}), WRONG_LOGITS)})
    streams = (dataclasses.replace(STREAM, bucket=16),)
    found = plan(MATRIX, checks, outcomes, asked(streams=streams), past=2)
    assert found
    assert (found.at.length, found.at.tokens, found.at.prompt.bucket) == (16, T, 16)
    # One that is right there fails because of its padding.
    checks, outcomes = gathered({"emitter/xla-cpu": both(on_stream(prefilled={4: 99.0, 16: 1.0}), WRONG_LOGITS)})
    found = plan(MATRIX, checks, outcomes, asked(streams=streams), past=2)
    assert found
    assert found.at == AT


# ---- without anything taken apart


def narrowed_by(change: Change) -> tuple[str | None, str] | None:
    return narrowed(gathered({"emitter/xla-cpu": change})[1])


def test_the_caches_alone_narrow_the_place() -> None:
    several = both(
        *(on_slots(anchor=a, slot=slot) for a, slot in [("v_cache.1", 2), ("k_cache.1", 2), ("k_cache.0", 7)])
    )
    anchor, words = narrowed_by(several) or ("", "")
    assert anchor == "k_cache.1"
    assert (
        "from slot 2 on, the layers before it are right there: the fault is between the attention of layer 0 and"
        in words
    )
    anchor, words = narrowed_by(on_slots(STREAM.id, 1, "v_cache.0", 0)) or ("", "")
    assert anchor == "v_cache.0"
    assert "in the embedding, or in what comes before what layer 0 writes" in words
    anchor, words = narrowed_by(WRONG_LOGITS) or ("", "")
    assert anchor is None
    assert "the fault comes after what the last layer writes" in words


# ---- the place


def localized(**fields: Any) -> Localization:
    operation = {"name": "stablehlo.logistic", "value": "%x", "line": 7, "graph": "decode", "why": "it is"}
    errors = [{"anchor": ANCHOR, "phase": "decode", "accumulated": 99.0, "local": 99.0, "peer": 0.5}]
    found = Localization(
        Plan(EMITTER, ORACLE, AT, "the oracle's graph is right"), "decode", ANCHOR, 9, ANCHOR, ANCHOR, errors, [],
        [], operation, None, False, False, None, by="repair", sole=True,
    )  # fmt: skip
    return dataclasses.replace(found, **fields)


def placed(found: Localization | None, *more: Check, change: Change = WRONG_LOGITS) -> Verdict:
    changes = dict.fromkeys(ON_BOTH, change)
    checks, outcomes = gathered(changes)
    return place(MATRIX, verdict(changes, more=more), [*more, *checks], found, outcomes)


def test_a_place_with_its_operation() -> None:
    found = placed(localized())
    assert (found.class_, found.anchor) == ("emitter-fault", ANCHOR)
    assert found.operation == "stablehlo.logistic %x at line 7 of decode"
    assert found.sure
    assert found.sure[0] == "certain"
    assert not found.fusion_dependent


# ---- the third witness

RIGHT, WRONG = Word("decode", ANCHOR, 0.5), Word("decode", ANCHOR, 99.0)
SILENT = Word("decode", ANCHOR, None, "stablehlo ended without an answer (signal SIGABRT)")


def test_compilers_that_are_wrong_together_convict_no_graph() -> None:
    found = placed(localized(interpreted=RIGHT))
    assert found.class_ == "compiler-fault"
    assert "interpreter computes layers.0.mlp.act right from the emitter's graph" in found.explanation
    assert "and xla-cpu does not, from the same inputs; no compiler that ran the graph" in found.explanation
    open_ = check("emitter.random", "nothing draws random numbers", "failed", "1", "0", "rng")
    assert placed(localized(interpreted=RIGHT), open_).class_ == "emitter-fault", (
        "compilers need not agree on such a graph"
    )
    assert found.sure
    assert any("interpreter, asked of layers.0.mlp.act, computes it 0.5 floors off" in why for why in found.sure[1])


@pytest.mark.parametrize("word", [None, WRONG, SILENT])
def test_a_graph_that_the_interpreter_has_wrong_too_is_at_fault(word: Word | None) -> None:
    found = placed(localized(interpreted=word))
    assert found.class_ == "emitter-fault"
    assert found.sure
    assert (word is SILENT) == any("gives no answer on it: stablehlo ended" in why for why in found.sure[1])


def of_one(suspect: Configuration, word: Word | None, *configurations: Configuration) -> Verdict:
    """The verdict where this configuration alone has wrong values."""
    changes = {suspect.id: WRONG_LOGITS}
    checks, outcomes = gathered(changes, configurations=configurations or CONFIGURATIONS)
    twin = Configuration(suspect.source, "iree-cpu" if suspect.backend == "xla-cpu" else "xla-cpu")
    found = localized(plan=Plan(suspect, twin, AT, ""), interpreted=word)
    return place(MATRIX, decide(MATRIX, checks, outcomes, TRUTHS), checks, found, outcomes)


def test_a_compiler_that_happens_to_be_right_acquits_no_graph() -> None:
    """As one that leaves out a rounding which the graph asks for."""
    for word in (None, RIGHT, SILENT):
        assert of_one(EMITTER, word).class_ == "compiler-fault"
    found = of_one(EMITTER, WRONG)
    assert found.class_ == "emitter-fault"
    assert (
        "wrong at layers.0.mlp.act, as on xla-cpu. That it is right on iree-cpu acquits no graph" in found.explanation
    )
    assert of_one(ORACLE, WRONG).class_ == "reference-fault"


def test_the_reference_is_acquitted_by_the_interpreter() -> None:
    changes = dict.fromkeys(("oracle/xla-cpu", "oracle/iree-cpu"), WRONG_LOGITS)
    checks, outcomes = gathered(changes)
    plan_of = Plan(ORACLE, None, AT, "")
    for word, class_ in ((RIGHT, "compiler-fault"), (WRONG, "reference-fault"), (SILENT, "reference-fault")):
        found = localized(plan=plan_of, interpreted=word)
        assert place(MATRIX, verdict(changes), checks, found, outcomes).class_ == class_


def test_one_family_of_compilers_and_the_interpreter() -> None:
    """Where one family ran alone, the interpreter decides; without its word nobody does."""
    alone = [Configuration(source, "xla-cpu") for source in ("emitter", "oracle")]
    checks, outcomes = gathered(dict.fromkeys((c.id for c in alone), WRONG_LOGITS), configurations=alone)
    matrix = Matrix(tuple(b for b in MATRIX.backends if b.name == "xla-cpu"))
    decided = decide(matrix, checks, outcomes, TRUTHS)
    for word, class_ in ((RIGHT, "compiler-fault"), (WRONG, "reference-fault"), (SILENT, "harness-error")):
        found = place(matrix, decided, checks, localized(plan=Plan(ORACLE, None, AT, ""), interpreted=word), outcomes)
        assert found.class_ == class_
        assert (word is SILENT) == ("has no word (stablehlo ended without" in found.explanation)


def test_one_family_of_compilers_is_not_certain_of_a_graph() -> None:
    """Where the interpreter has no word: the same compiler may be right on the oracle's graph and wrong on this one."""
    alone = [Configuration(source, "xla-cpu") for source in ("emitter", "oracle")]
    checks, outcomes = gathered({EMITTER.id: WRONG_LOGITS}, configurations=alone)
    matrix = Matrix(tuple(b for b in MATRIX.backends if b.name == "xla-cpu"))
    decided = decide(matrix, checks, outcomes, TRUTHS)
    for word, level in ((None, "certain"), (WRONG, "certain"), (SILENT, "likely")):
        found = place(matrix, decided, checks, localized(interpreted=word), outcomes)
        assert found.sure
        assert (found.class_, found.sure[0]) == ("emitter-fault", level)


def test_no_place() -> None:
    for nothing in (None, localized(anchor=None, first_local=None, first_accumulated=None, operation=None)):
        found = placed(nothing)
        assert (found.class_, found.anchor, found.operation) == ("emitter-fault", None, None)
        assert found.sure == ("possible", [(narrowed_by(WRONG_LOGITS) or ("", ""))[1]])
    found = placed(None, change=WRONG_SLOT)
    assert (found.anchor, found.operation) == ("v_cache.1", None)
    assert found.sure
    assert found.sure[0] == "possible"


@pytest.mark.parametrize(
    ("change", "more"),
    [
        (right, (check("emitter.census", "", "failed", "", ""),)),
        (not_repeated(), ()),
        (on_slots(call=1, stayed="slot 4 of k_cache.0 changed"), ()),
        (failed("process"), ()),
    ],
)
def test_what_the_values_say_nothing_of_is_nowhere(change: Change, more: tuple[Check, ...]) -> None:
    found = placed(None, *more, change=change)
    assert (found.anchor, found.sure) == (None, ("possible", ["no place was found"]))


def test_an_invariant_has_a_place_too() -> None:
    found = placed(None, STATIC)
    assert (found.anchor, found.operation) == ("k_cache.0", "func.func at line 1")
    assert found.sure
    assert found.sure[0] == "certain"
    assert "emitter.abi is read from the graph as it is written" in found.sure[1][0]
    uncompiled = dataclasses.replace(STATIC, kind="compiles", backend="iree-cuda")
    assert placed(None, uncompiled).sure == (
        "certain", ["emitter/iree-cuda.compiles is where the compiler stops: donates {}"],
    )  # fmt: skip
    # What was found by running it is nearer to the fault.
    assert placed(localized(), STATIC).anchor == ANCHOR


def test_what_breaks_the_abi_files_word_has_a_place_too() -> None:
    """What was seen comes first in why; no place makes it another class."""
    broken = check("emitter.position-matters", "", "failed", "", "", "decode gives the same; and more")
    said = "emitter.position-matters: decode gives the same"
    alone = placed(None, broken, change=right)
    assert (alone.class_, alone.anchor, alone.sure) == ("emitter-fault", None, ("certain", [said]))
    found = placed(localized(), broken)
    assert (found.class_, found.anchor) == ("emitter-fault", ANCHOR)
    assert found.sure
    assert (found.sure[0], found.sure[1][0]) == ("certain", said)
    assert len(found.sure[1]) > 1
    for fields in ({"misused": True, "first_local": None, "operation": None}, {"fusion_dependent": True}):
        assert placed(localized(**fields), broken).class_ == "emitter-fault"


def test_a_misused_graph_is_the_harness() -> None:
    found = placed(localized(misused=True, first_local=None, operation=None))
    assert (found.class_, found.anchor) == ("harness-error", ANCHOR)
    # But a graph that is not as its ABI says is to blame itself.
    assert placed(localized(misused=True, first_local=None, operation=None), STATIC).class_ == "emitter-fault"
    stated = check("emitter.operations", "what a project states", "failed", "sine", "none", anchor="norm")
    assert placed(localized(misused=True, first_local=None, operation=None), stated).class_ == "harness-error"


def test_an_operation_without_an_anchor_is_a_place() -> None:
    operation = "stablehlo.sine %x at line 7 of decode"
    stated = check("emitter.operations", "what a project states", "failed", "sine", "none", operation=operation)
    found = placed(None, stated, change=lambda outcome: outcome)
    assert (found.class_, found.anchor, found.operation) == ("invariant-broken", None, operation)
    assert found.sure
    assert found.sure[0] == "certain"
    assert placed(None, stated, STATIC, change=lambda outcome: outcome).anchor == STATIC.anchor


def test_an_operation_that_no_experiment_shows_is_likely() -> None:
    """Its anchor is as sure as before; a check that names no operation has nothing to be unsure of."""
    operation = "stablehlo.sine %x at line 7 of decode"
    probes = check("emitter.probes", "", "failed", "", "", "norm of decode", anchor="norm", operation=operation)
    for candidate, level in ((False, "certain"), (True, "likely")):
        found = placed(None, dataclasses.replace(probes, candidate=candidate), change=right)
        assert (found.class_, found.anchor, found.operation) == ("emitter-fault", "norm", operation)
        assert found.sure
        assert found.sure[0] == level
        assert ("no experiment shows that it is this operation and no other one" in found.sure[1]) == candidate
    unnamed = dataclasses.replace(probes, operation="", candidate=True)
    assert (placed(None, unnamed, change=right).sure or ("",))[0] == "certain"


def test_an_operation_comes_from_the_check_that_knows_one() -> None:
    """Two checks name an anchor, and one of them an operation in it; one that names another anchor's says nothing of it."""
    counted = check("emitter.matmuls", "", "failed", "9", "8", "decode has 9", anchor="norm")
    operation = "stablehlo.sine %x at line 7 of decode"
    probes = check("emitter.probes", "", "failed", "", "", "norm of decode", anchor="norm", operation=operation)
    probes = dataclasses.replace(probes, candidate=True)
    found = placed(None, counted, probes, change=right)
    assert (found.anchor, found.operation) == ("norm", operation)
    assert found.sure
    assert found.sure[0] == "likely"
    assert [line.partition(" ")[0] for line in found.sure[1][:2]] == ["emitter.matmuls", "emitter.probes"]
    elsewhere = placed(None, counted, dataclasses.replace(probes, anchor="lm_head"), change=right)
    assert (elsewhere.anchor, elsewhere.operation, (elsewhere.sure or ("",))[0]) == ("norm", None, "certain")


FUSED = localized(fusion_dependent=True, first_local=None, first_accumulated=None, operation=None)


def test_fusion_dependent() -> None:
    found = placed(FUSED)
    assert (found.class_, found.fusion_dependent, found.anchor) == ("compiler-fault", True, ANCHOR)
    assert found.sure
    assert found.sure[0] == "likely"


@pytest.mark.parametrize("id", ["file.abi", "file.random", "file.reductions", "file.donations", "file.caches-donated"])
def test_what_a_graph_leaves_open_may_depend_on_fusion(id: str) -> None:
    found = placed(FUSED, check(id, "an invariant", "failed", "1", "0", "what was seen"))
    assert (found.class_, found.fusion_dependent) == ("emitter-fault", True)


def test_a_pass_has_no_place() -> None:
    checks, outcomes = gathered()
    found = place(MATRIX, verdict(), checks, None, outcomes)
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
        ({"sole": False}, "likely"),
        ({"repair": Repair("x", [], 1, "", "emitter/xla-cpu", True, "")}, "certain"),
        ({"repair": Repair("x", [], 1, "", "emitter/xla-cpu", False, "tokens: 3 of 4")}, "likely"),
        ({"by": "witness", "sole": False}, "certain"),
        ({"by": "likeness"}, "likely"),
    ],
)
def test_how_sure(fields: dict[str, Any], level: str) -> None:
    outcomes: list[Outcome] = []
    assert confidence(localized(**fields), outcomes, set())[0] == level


@pytest.mark.parametrize(("source", "named"), [("file", "the file's graph"), ("mine", "the graph of mine")])
def test_what_it_rests_on_names_the_source_as_every_sentence_does(source: str, named: str) -> None:
    on = [Configuration(source, backend) for backend in ("iree-cpu", "xla-cpu")]
    outcomes = [dataclasses.replace(gathered({})[1][0], configuration=one) for one in on]
    found = localized(plan=Plan(on[0], None, AT, ""))
    assert f"{named} is wrong on iree-cpu and xla-cpu alike" in confidence(found, outcomes, set(on))[1]


def test_the_canary_comes_first() -> None:
    dead = check("harness.canary", "a fault put in on purpose", "failed", "nothing", "norm", "")
    found = verdict(more=(dead,))
    assert (found.class_, found.passed) == ("harness-error", False)
    skipped = check("harness.canary", "a fault put in on purpose", "skipped", "", "", "no right graph")
    assert verdict(more=(skipped,)).passed


def test_only_the_token_is_wrong_on_one_compiler() -> None:
    """The graph that picks the token is right on XLA, so the compiler's choice of it is wrong."""
    changes = {"emitter/iree-cpu/token": on_prompt(tokens=[3, 2, 4])}
    on_xla = Configuration("emitter", "xla-cpu", "token")
    assert verdict(changes).class_ == "emitter-fault"
    assert verdict(changes, configurations=(*CONFIGURATIONS, on_xla)).class_ == "compiler-fault"
    changes["emitter/xla-cpu/token"] = on_prompt(tokens=[3, 2, 4])
    assert verdict(changes, configurations=(*CONFIGURATIONS, on_xla)).class_ == "emitter-fault"


FIRST = (Configuration("emitter", "xla-cpu"), Configuration("oracle", "xla-cpu"))
ON_XLA = {"emitter/xla-cpu": WRONG_LOGITS}
ORACLE_ON_XLA = {"oracle/xla-cpu": WRONG_LOGITS}
TOKEN = {"emitter/iree-cpu/token": WRONG_TOKEN}
BROKEN = (check("emitter.matmuls", "one product for each weight", "failed", "9", "8", ""),)
WRONG_ORACLE = (check("oracle.matmuls", "one product for each weight", "failed", "9", "8", ""),)
WRONG_PROBE = (check("emitter.probes", "", "failed", "", "", ""),)
LATER = (
    check("emitter.caches-in-place", "", "failed", "", "", ""),
    check("emitter.caches-in-place", "", "error", "", "", ""),
)
NOT_COMPILED = failed("compile")
# Each check of a configuration failed alone, and what gives no check at all.
OUTCOMES: tuple[Change, ...] = (
    right, WRONG_TOKEN, WRONG_LOGITS, WRONG_SLOT, WRONG_POSITION, on_stream(apart=99.0), not_repeated(), NOT_COMPILED,
)  # fmt: skip
ON_IREE = (
    Configuration("emitter", "iree-cpu", "token"),
    Configuration("emitter", "iree-cpu"),
    Configuration("oracle", "iree-cpu"),
)


@cache
def of_cell(configuration: Configuration, change: Change) -> tuple[Outcome, tuple[Check, ...]]:
    found = change(outcome(configuration, TRUTHS, [STREAM]))
    return found, tuple(configuration_checks(found, TRUTHS, [STREAM]))


def class_of(
    changes: dict[str, Change],
    configurations: Sequence[Configuration] = CONFIGURATIONS,
    more: Sequence[Check] = (),
) -> str:
    """The verdict's, as `verdict` finds it: here from some ten thousand combinations."""
    found = [of_cell(configuration, changes.get(configuration.id, right)) for configuration in configurations]
    return decide(MATRIX, [*more, *(c for _, checks in found for c in checks)], [o for o, _ in found], TRUTHS).class_


def settled(
    changes: dict[str, Change], configurations: tuple[Configuration, ...], more: tuple[Check, ...] = ()
) -> bool:
    checks, outcomes = gathered(changes, configurations=configurations)
    facts: Inspected = [(Graph("g", "", a), GraphFacts()) for a in ABIS]
    evidence = Evidence(checks=[*checks, *more], outcomes=outcomes, graphs={"emitter": facts, "oracle": facts})
    run = a_run(evidence)
    found = is_settled(run)
    # A configuration that was left out is not one that was right: XLA need not be asked for the production graph.
    assert not found or not _only_the_token_is_wrong(run, "emitter")
    return found


def whatever_comes(
    changes: dict[str, Change], configurations: Sequence[Configuration], more: tuple[Check, ...] = ()
) -> set[tuple[str, str]]:  # fmt: skip
    """The classes that a run can end in, with and without what is left, whatever that shows."""
    left = [configuration for configuration in CONFIGURATIONS if configuration not in configurations]
    found = {("without", class_of(changes, configurations, more))}
    # The probes come first where XLA shows nothing wrong, and what is known of the stream form before any configuration on IREE.
    later = [(), *((WRONG_PROBE,) if ON_XLA.keys() & changes else ())]
    later += [(check,) for check in LATER if ON_IREE[0] not in configurations]
    for shown in itertools.product(OUTCOMES, repeat=len(left)):
        # Such a run takes XLA's word for the source: if IREE had the graph right, the fault would be XLA's.
        if changes.keys() & ON_XLA.keys() and (ON_IREE[1], right) in zip(left, shown, strict=True):
            continue
        known = changes | {configuration.id: change for configuration, change in zip(left, shown, strict=True)}
        found |= {("with", class_of(known, more=(*more, *check))) for check in later}
    return found


def only(class_: str) -> set[tuple[str, str]]:
    return {("without", class_), ("with", class_)}


@pytest.mark.parametrize(
    ("changes", "more", "class_"),
    [
        *(({"emitter/xla-cpu": change}, (), "emitter-fault") for change in OUTCOMES[1:-1]),
        (ON_XLA, BROKEN, "emitter-fault"),
        ({}, WRONG_PROBE, "emitter-fault"),
        ({}, (*WRONG_PROBE, *BROKEN), "emitter-fault"),
        ({}, BROKEN, "invariant-broken"),
        ({}, WRONG_ORACLE, "reference-fault"),
        (ON_XLA, WRONG_ORACLE, "reference-fault"),
        # What these show depends on what is left.
        ({}, (), ""),
        ({"emitter/xla-cpu": NOT_COMPILED}, (), ""),
        *(({"oracle/xla-cpu": change}, (), "") for change in OUTCOMES[1:]),
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
    """IREE says whose fault it is. If the oracle's graph is wrong there too, no other graph need be asked."""
    known, configurations = changes | {"oracle/iree-cpu": on_iree}, (*FIRST, Configuration("oracle", "iree-cpu"))
    assert settled(known, configurations) == (on_iree is not right)
    if on_iree is not right:
        assert whatever_comes(known, configurations) == only("reference-fault")


@pytest.mark.parametrize("changes", [{}, TOKEN])
@pytest.mark.parametrize("first", OUTCOMES)
def test_what_the_logits_on_iree_settle(changes: dict[str, Change], first: Change) -> None:
    """The graph is right on XLA and its logits wrong on IREE: the oracle's graph there says nothing new."""
    known, configurations = changes | {"emitter/iree-cpu": first}, (*FIRST, *ON_IREE[:2])
    wrong = first is not OUTCOMES[0]
    assert settled(known, configurations) == wrong
    assert not settled(changes, (*FIRST, ON_IREE[0]))
    if wrong:
        assert whatever_comes(known, configurations) == only("compiler-fault")


@pytest.mark.parametrize("token", [right, WRONG_TOKEN, NOT_COMPILED])
@pytest.mark.parametrize("first", OUTCOMES)
def test_what_iree_settles_of_a_graph_that_xla_does_not_take(first: Change, token: Change) -> None:
    known = {"emitter/xla-cpu": NOT_COMPILED}
    known |= {"emitter/iree-cpu": first, "emitter/iree-cpu/token": token}
    configurations, none = (*FIRST, *ON_IREE[:2]), first is token is NOT_COMPILED
    assert settled(known, configurations) == (first is not right)
    if first is not right:
        assert whatever_comes(known, configurations) == only("unsupported" if none else "emitter-fault")


def test_nothing_settles_before_xla_has_run() -> None:
    assert not settled({}, FIRST[:1], BROKEN)
    assert not settled(ON_XLA, FIRST[:1])
