"""What a verdict says that it rests on: in each situation what was compared, and by name what was not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from evidence import (
    ABIS,
    CLOSE,
    CONFIGURATIONS,
    ON_CUDA,
    STREAM,
    TRUTHS,
    WRONG_TOKEN,
    Change,
    abi,
    asked,
    check,
    failed,
    matrix_of,
    not_repeated,
    on_prompt,
    on_stream,
    outcome,
    right,
    truth,
)

from hloracle.conformance.checks.check import Check
from hloracle.conformance.matrix import Configuration
from hloracle.conformance.runs.inside import AnchorOutcome, Rows
from hloracle.conformance.runs.returned import Stream
from hloracle.conformance.verdict.compared import NOTHING, Compared, compared
from hloracle.core.abi import Abi
from hloracle.reference.huggingface.truth import Truth

FILE = (Configuration("file", "iree-cpu"), Configuration("file", "xla-cpu"))
FILE_TOKEN = (Configuration("file", "iree-cpu", "token"), Configuration("file", "xla-cpu", "token"))
ONE_TOKEN = {id: truth((t.tokens[0],)) for id, t in TRUTHS.items()}
PREFILL = "logits of prefill after 5 of the 96 lengths that its 2 buckets take"  # 1, 4, 7 of the stream, and 9 and 3
REST = "slots 11 to 15 of both caches"
LEFT = "logits of prefill after 91 of the 96 lengths that its 2 buckets take"
ALL = (
    "3 of 3 tokens after each of 2 prompts",
    "logits of decode at all 16 positions",
    PREFILL,
    "both caches whole",
    "each of 8 tokens as input",
    "two equal calls bit for bit",
    "on IREE and XLA",
)


def of(
    configurations: Sequence[Configuration] = FILE, streams: Sequence[Stream] = (STREAM,), truths: dict[str, Truth] = TRUTHS,
    abis: Sequence[Abi] = ABIS, change: Change = right, checks: Sequence[Check] = (),
    anchored: Sequence[AnchorOutcome] = (),
) -> Compared:  # fmt: skip
    """Of these configurations, of which the first is changed."""
    outcomes = [outcome(configuration, truths, streams) for configuration in configurations]
    outcomes[0] = change(outcomes[0])
    judged = next(c.source for c in configurations if not c.of_oracle)
    return compared(matrix_of(outcomes), outcomes, checks, asked(truths, streams), {judged: abis}, anchored)


def test_everything() -> None:
    found = of()
    assert found.phrases == ALL
    assert found.missing == (LEFT,)
    assert of(CONFIGURATIONS) == found, (
        "the oracle's configurations, and a graph that picks the token beside one with logits, say no more"
    )
    assert found.sentence("Equal") == f"Not compared: {LEFT}. Equal in all that was compared."


def test_every_length() -> None:
    every = [
        Stream("every", STREAM.tokens, tuple(range(1, bucket + 1)), every_step=True, bucket=bucket)
        for bucket in (4, 16)
    ]
    truths: dict[str, Truth] = {}
    found = of(streams=every[1:], abis=(abi("prefill", 16), abi("decode")), truths=truths)
    assert "logits of prefill after all 16 lengths that it takes" in found.phrases
    assert found.missing == ()
    assert found.sentence("Equal") == "Equal in all that was compared."
    two = (abi("prefill", 4), abi("prefill", 16), abi("decode"))
    assert of(streams=every[1:], abis=two, truths=truths).missing == (
        "logits of prefill after 4 of the 20 lengths that its 2 buckets take",
    ), "a length in one bucket says nothing of another's graph"
    every[0] = dataclasses.replace(every[0], id="small")
    assert of(streams=every, abis=two, truths=truths).missing == ()


def test_what_a_graph_returns_besides_is_not_compared() -> None:
    found = of(abis=(*ABIS, abi("decode", 0, "hidden", "norm")))
    assert found.missing == (LEFT, "what the graph returns besides: hidden, norm")


def test_the_positions_that_were_not_compared_are_named() -> None:
    """Of a prompt of 9 tokens and one of 3, each with 3 tokens after it, the last of which is nobody's input."""
    found = of(streams=())
    assert found.phrases[1:4] == (
        "logits of decode at 4 of 16 positions",
        "logits of prefill after 2 of the 96 lengths that its 2 buckets take",
        "slots 0 to 10 of both caches",
    )
    assert found.missing == (
        "logits of decode at positions 0 to 2, 5 to 8, 11 to 15",
        "logits of prefill after 94 of the 96 lengths that its 2 buckets take",
        "slots 11 to 15 of both caches",
    )
    assert "each of" not in " ".join(found.phrases[1:])
    words = (
        "Not compared: logits of decode at positions 0 to 2, 5 to 8, 11 to 15; logits of prefill after 94 of the 96 "
    )
    assert found.sentence("Equal").startswith(words)


@pytest.mark.parametrize(
    ("length", "missing", "slots"),
    [
        (15, ("logits of decode at positions 15", "slots 15 of both caches"), "slots 0 to 14 of both caches"),
        (6, ("logits of decode at positions 6 to 8, 11 to 15", REST), "slots 0 to 10 of both caches"),
        (0, ("logits of decode at positions 0 to 2, 5 to 8, 11 to 15", REST), "slots 0 to 10 of both caches"),
    ],
)
def test_a_stream_that_ends_early(length: int, missing: tuple[str, ...], slots: str) -> None:
    found = of(streams=[Stream("stream", STREAM.tokens[:length], (), every_step=True)])
    assert tuple(m for m in found.missing if "prefill" not in m) == missing
    assert slots in found.phrases
    assert ("each of 8 tokens as input" in found.phrases) == (length >= 8)


def test_a_token_that_no_stream_has_is_not_claimed() -> None:
    assert "each of 8 tokens as input" not in of(streams=[dataclasses.replace(STREAM, tokens=(0, 1, 2, 3) * 4)]).phrases
    two = [dataclasses.replace(STREAM, tokens=(0, 1, 2, 3) * 4), Stream("other", (4, 5, 6, 7) * 4, (), every_step=True)]
    assert "each of 8 tokens as input" in of(streams=two).phrases


def test_only_some_cells_are_asked_everywhere() -> None:
    """A larger model's: of which it is true is said."""
    outcomes = [outcome(CONFIGURATIONS[1], TRUTHS, [STREAM]), *(outcome(c) for c in CONFIGURATIONS[2:])]
    found = compared(matrix_of(outcomes), outcomes, [], asked(), {"emitter": ABIS})
    assert found.phrases == tuple(
        f"{phrase}, on IREE alone" if "of decode" in phrase or "of prefill" in phrase else phrase for phrase in ALL
    )


def test_a_graph_that_answers_with_a_token() -> None:
    found = of(FILE_TOKEN)
    assert found.phrases[1:3] == (
        "the token of decode at all 16 positions", PREFILL.replace("logits", "the token"),
    )  # fmt: skip
    assert found.missing == ("the logits: the graph answers with a token", LEFT.replace("logits", "the token"))
    found = of(FILE_TOKEN, streams=())
    assert found.missing[1] == "the token of decode at positions 0 to 2, 5 to 8, 11 to 15"


def test_prefill_alone() -> None:
    """Nothing is said of a decode that is not there."""
    alone = Stream("stream", tuple(range(8)), tuple(range(1, 9)), every_step=True, bucket=32)
    without = on_stream(heads=[], slots=None, apart=None)
    found = of(FILE[:1], [alone], ONE_TOKEN, ABIS[:1], without)
    # Of 1 to 8, 9 and 3 tokens; the second prompt's bucket is another graph's.
    assert found.missing == (
        "logits of prefill after 22 of the 32 lengths that it takes",
        "slots 9 to 31 of both caches",
    )
    assert found.phrases[0] == "1 of 1 tokens after each of 2 prompts"
    assert "logits of prefill after 10 of the 32 lengths that it takes" in found.phrases
    assert not [phrase for phrase in found.phrases if "decode" in phrase]
    longest = of(truths=ONE_TOKEN, streams=(), abis=ABIS[:1])
    assert "slots 0 to 8 of both caches" in longest.phrases


def test_decode_alone() -> None:
    """The head after a prompt is decode's as well, at its last token."""
    alone = on_stream(prefilled={}, prefilled_slots=None, apart=None)
    found = of(FILE[:1], [dataclasses.replace(STREAM, lengths=())], abis=ABIS[2:], change=alone)
    assert not [phrase for phrase in found.phrases if "prefill" in phrase]
    assert "logits of decode at all 16 positions" in found.phrases
    assert of(abis=ABIS[2:], streams=()).missing == ("logits of decode at positions 0 to 1, 5 to 7, 11 to 15", REST)


@pytest.mark.parametrize(
    ("change", "tokens"),
    [
        (WRONG_TOKEN, "5 of 6 tokens after 2 prompts"),
        (on_prompt("second@64", tokens=[5]), "4 of 6 tokens after 2 prompts"),
    ],
)
def test_the_cell_that_agrees_least_is_told_of(change: Change, tokens: str) -> None:
    assert of(change=change).phrases[0] == tokens


def test_prompts_of_other_lengths_of_answers() -> None:
    truths = {**CLOSE, "second@64": truth((5,))}
    assert of(truths=truths).phrases[0] == "7 of 7 tokens after 3 prompts"
    assert of(truths={"first@32": truth()}).phrases[0] == "3 of 3 tokens after 1 prompt"


def test_two_calls_that_differ_are_not_equal() -> None:
    assert "two equal calls bit for bit" in of().phrases
    for change in (not_repeated(), lambda o: dataclasses.replace(o, repeated=None)):
        assert "two equal calls bit for bit" not in of(change=change).phrases


@pytest.mark.parametrize("stage", ["compile", "memory", "timeout", "process"])
def test_a_cell_that_failed_compared_nothing(stage: str) -> None:
    assert of(change=failed(stage)).phrases[-1] == "on XLA"
    assert of(FILE[:1], change=failed(stage)) == NOTHING


def test_nothing_was_compared() -> None:
    oracle = [outcome(c) for c in CONFIGURATIONS if c.source == "oracle"]
    assert (
        compared(matrix_of([]), [], [], asked(), {"emitter": ABIS})
        == compared(matrix_of(oracle), oracle, [], asked(), {"emitter": ABIS})
        == NOTHING
    )
    assert (NOTHING.phrases, NOTHING.missing) == ((), ())


def test_backends_by_name() -> None:
    assert of(FILE[:1]).phrases[-1] == "on IREE"
    assert of(ON_CUDA).phrases[-1] == "on IREE cuda, IREE and XLA"


# ---- what was looked at inside

VALUES = "values at 3 anchors, on XLA alone"
ROWS = [Rows("prefill", [0], ["a", "b"], [[0.0], [0.0]]), Rows("decode", [0], ["a"], [[0.0]])]


def inside(**fields: Any) -> AnchorOutcome:
    return dataclasses.replace(AnchorOutcome(FILE[1], "first@32", "ran", ROWS), **fields)


@pytest.mark.parametrize(
    ("anchored", "phrase", "missing"),
    [
        (inside(), VALUES, ""),
        (inside(by_number=True), "values at 3 anchors, found by number, on XLA alone", ""),
        (inside(missing=["norm in decode"]), VALUES, "1 anchor that no operation of the graph gives: norm in decode"),
        (
            inside(missing=["norm in decode", "mlp.act in decode"]),
            VALUES,
            "2 anchors that no operation of the graph gives, such as norm in decode",
        ),
        (inside(named=False, missing=["norm"]), "", "the values inside: no anchors were found"),
        (inside(status="failed", rows=[]), "", ""),
        (inside(configuration=Configuration("oracle", "xla-cpu")), "", ""),
    ],
)
def test_anchors(anchored: AnchorOutcome, phrase: str, missing: str) -> None:
    found = of(anchored=[anchored])
    assert [p for p in found.phrases if "anchor" in p] == [phrase] * bool(phrase)
    assert [m for m in found.missing if m != LEFT] == [missing] * bool(missing)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "file.probes",
            (
                "probes of its anchors on other inputs, 40 of 40, on XLA alone",
                "probes of its anchors on other inputs: why",
            ),
        ),
        ("harness.canary", ("a fault put in on purpose, which was found", "a fault put in on purpose: why")),
    ],
)
def test_probes_and_canary(name: str, said: tuple[str, str]) -> None:
    passed = check(name, "", "passed", "40 of 40, at 0.1 of what is allowed", "")
    assert said[0] in of(checks=[passed]).phrases
    assert of(checks=[passed]).missing == (LEFT,)
    assert of(checks=[dataclasses.replace(passed, missing="a part")]).missing == (LEFT, "a part")
    skipped = check(name, "", "skipped", "", "", "why")
    assert of(checks=[skipped]).missing == (LEFT, said[1])
    for status in ("failed", "error"):
        wrong = dataclasses.replace(passed, status=status)
        assert not [p for p in of(checks=[wrong]).phrases if p.startswith(said[0][:12])]


def test_of_several_sources_each_is_told_of() -> None:
    """What was seen of the first is not claimed of the second, which has decode alone, and names no anchors."""
    mine = Configuration("mine", "xla-cpu")
    outcomes = [outcome(FILE[1], TRUTHS, [STREAM]), outcome(mine, TRUTHS, [dataclasses.replace(STREAM, lengths=())])]
    probes = [check("file.probes", "", "passed", "40 of 40"), check("mine.probes", "", "skipped", "", "", "no anchors")]
    looked = [inside(), dataclasses.replace(inside(named=False, missing=["norm"]), configuration=mine)]
    abis = {"file": ABIS, "mine": ABIS[2:]}
    found = compared(matrix_of(outcomes), outcomes, probes, asked(TRUTHS, [STREAM]), abis, looked)
    assert "3 of 3 tokens after each of 2 prompts" in found.phrases
    assert {"of file: values at 3 anchors", f"of file: {PREFILL}"} < set(found.phrases)
    assert "of file: probes of its anchors on other inputs, 40 of 40" in found.phrases
    assert found.missing == (
        f"of file: {LEFT}",
        "of mine: the values inside: no anchors were found",
        "of mine: probes of its anchors on other inputs: no anchors",
    )


def test_a_source_that_gave_no_answer_was_not_compared() -> None:
    mine = outcome(Configuration("mine", "xla-cpu"))
    outcomes = [outcome(FILE[1]), failed("compile")(mine)]
    found = compared(matrix_of(outcomes), outcomes, [], asked(), {"file": ABIS, "mine": ABIS})
    assert "of mine: everything" in found.missing
    assert all(phrase.startswith("of file: ") for phrase in found.phrases)
