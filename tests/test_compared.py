"""What a verdict says that it rests on: in each situation what was compared, and by name what was not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from evidence import (
    CAPACITY,
    CELLS,
    CLOSE,
    STREAM,
    TRUTHS,
    WRONG_TOKEN,
    Change,
    asked,
    failed,
    not_repeated,
    on_prompt,
    on_stream,
    outcome,
    right,
    truth,
)

from hloracle.backends.devices import Device
from hloracle.conformance.anchored import AnchorOutcome, Rows
from hloracle.conformance.cells import Cell
from hloracle.conformance.checks import Check
from hloracle.conformance.compared import NOTHING, Compared, compared
from hloracle.conformance.returned import Stream
from hloracle.conformance.run import cells_on
from hloracle.reference.truth import Truth

PHASES = ("prefill", "decode")
FILE = (Cell("file", "iree-cpu"), Cell("file", "xla-cpu"))
FILE_TOKEN = (Cell("file", "iree-cpu", "token"), Cell("file", "xla-cpu", "token"))
ONE_TOKEN = {id: truth((t.tokens[0],)) for id, t in TRUTHS.items()}
ALL = (
    "3 of 3 tokens after 2 prompts",
    "logits of decode at all 16 positions",
    "logits of prefill after prompts of 5 lengths",  # 1, 4 and 7 of the stream, and 9 and 3 of the prompts
    "both caches whole",
    "each of 8 tokens as input",
    "two equal calls bit for bit",
    "on IREE and XLA",
)


def of(
    cells: Sequence[Cell] = FILE, streams: Sequence[Stream] = (STREAM,), truths: dict[str, Truth] = TRUTHS,
    phases: Sequence[str] = PHASES, change: Change = right, checks: Sequence[Check] = (),
    anchored: Sequence[AnchorOutcome] = (),
) -> Compared:  # fmt: skip
    """Of these cells, of which the first is changed."""
    outcomes = [outcome(cell, truths, streams) for cell in cells]
    outcomes[0] = change(outcomes[0])
    return compared(outcomes, checks, asked(truths, streams), CAPACITY, phases, anchored)


def test_everything() -> None:
    found = of()
    assert found.phrases == ALL
    assert found.missing == ()
    assert of(CELLS) == found, (
        "the oracle's cells, and a graph that picks the token beside one with logits, say no more"
    )
    assert found.sentence("Equal") == "Equal in all that was compared."


def test_the_positions_that_were_not_compared_are_named() -> None:
    """Of a prompt of 9 tokens and one of 3, each with 3 tokens after it, the last of which is nobody's input."""
    found = of(streams=())
    assert found.phrases[1:4] == (
        "logits of decode at 4 of 16 positions",
        "logits of prefill after prompts of 2 lengths",
        "slots 0 to 10 of both caches",
    )
    assert found.missing == ("logits of decode at positions 0 to 2, 5 to 8, 11 to 15",)
    assert "each of" not in " ".join(found.phrases)
    words = "Not compared: logits of decode at positions 0 to 2, 5 to 8, 11 to 15. Equal in all that was compared."
    assert found.sentence("Equal") == words


@pytest.mark.parametrize(
    ("length", "missing", "slots"),
    [
        (15, ("logits of decode at positions 15",), "slots 0 to 14 of both caches"),
        (6, ("logits of decode at positions 6 to 8, 11 to 15",), "slots 0 to 10 of both caches"),
        (0, ("logits of decode at positions 0 to 2, 5 to 8, 11 to 15",), "slots 0 to 10 of both caches"),
    ],
)
def test_a_stream_that_ends_early(length: int, missing: tuple[str, ...], slots: str) -> None:
    found = of(streams=[Stream("stream", STREAM.tokens[:length], (), every_step=True)])
    assert found.missing == missing
    assert slots in found.phrases
    assert ("each of 8 tokens as input" in found.phrases) == (length >= 8)


def test_a_token_that_no_stream_has_is_not_claimed() -> None:
    assert "each of 8 tokens as input" not in of(streams=[dataclasses.replace(STREAM, tokens=(0, 1, 2, 3) * 4)]).phrases
    two = [dataclasses.replace(STREAM, tokens=(0, 1, 2, 3) * 4), Stream("other", (4, 5, 6, 7) * 4, (), every_step=True)]
    assert "each of 8 tokens as input" in of(streams=two).phrases


def test_only_some_cells_are_asked_everywhere() -> None:
    """A larger model's: of which it is true is said."""
    outcomes = [outcome(CELLS[1], TRUTHS, [STREAM]), *(outcome(c) for c in CELLS[2:])]
    found = compared(outcomes, [], asked(), CAPACITY, PHASES)
    assert found.phrases == tuple(
        f"{phrase}, on IREE alone" if "of decode at all" in phrase else phrase for phrase in ALL
    )


def test_a_graph_that_answers_with_a_token() -> None:
    found = of(FILE_TOKEN)
    assert found.phrases[1:3] == (
        "the token of decode at all 16 positions", "the token of prefill after prompts of 5 lengths",
    )  # fmt: skip
    assert found.missing == ("the logits: the graph answers with a token",)
    found = of(FILE_TOKEN, streams=())
    assert found.missing[1] == "the token of decode at positions 0 to 2, 5 to 8, 11 to 15"


def test_prefill_alone() -> None:
    """Nothing is said of a decode that is not there."""
    alone = Stream("stream", tuple(range(8)), tuple(range(1, 9)), every_step=True)
    without = on_stream(heads=[], slots=None, apart=None)
    found = of(FILE[:1], [alone], ONE_TOKEN, ("prefill",), without)
    assert found.missing == ()
    assert found.phrases[0] == "1 of 1 tokens after 2 prompts"
    assert "logits of prefill after prompts of 9 lengths" in found.phrases  # 1 to 8, and 9
    assert not [phrase for phrase in found.phrases if "decode" in phrase]
    longest = of(truths=ONE_TOKEN, streams=(), phases=("prefill",))
    assert "slots 0 to 8 of both caches" in longest.phrases


def test_decode_alone() -> None:
    """The head after a prompt is decode's as well, at its last token."""
    alone = on_stream(prefilled={}, prefilled_slots=None, apart=None)
    found = of(FILE[:1], [dataclasses.replace(STREAM, lengths=())], phases=("decode",), change=alone)
    assert not [phrase for phrase in found.phrases if "prefill" in phrase]
    assert "logits of decode at all 16 positions" in found.phrases
    assert of(phases=("decode",), streams=()).missing == ("logits of decode at positions 0 to 1, 5 to 7, 11 to 15",)


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
    oracle = [outcome(c) for c in CELLS if c.source == "oracle"]
    assert compared([], [], asked(), CAPACITY, PHASES) == compared(oracle, [], asked(), CAPACITY, PHASES) == NOTHING
    assert (NOTHING.phrases, NOTHING.missing) == ((), ())


def test_backends_by_name() -> None:
    assert of(FILE[:1]).phrases[-1] == "on IREE"
    assert of(cells_on(Device("cuda"))).phrases[-1] == "on IREE cuda and IREE and XLA"


# ---- what was looked at inside

ROWS = [Rows("prefill", [0], ["a", "b"], [[0.0], [0.0]]), Rows("decode", [0], ["a"], [[0.0]])]


def inside(**fields: Any) -> AnchorOutcome:
    return dataclasses.replace(AnchorOutcome(FILE[1], "first@32", "ran", ROWS), **fields)


@pytest.mark.parametrize(
    ("anchored", "phrase", "missing"),
    [
        (inside(), "values at 3 anchors", ""),
        (inside(missing=["norm in decode"]), "values at 3 anchors", "1 anchor that the graph does not name"),
        (inside(missing=["norm", "embed_tokens"]), "values at 3 anchors", "2 anchors that the graph does not name"),
        (inside(named=False, missing=["norm"]), "", "the values inside: the graph names no anchors"),
        (inside(status="failed", rows=[]), "", ""),
        (inside(cell=Cell("oracle", "xla-cpu")), "", ""),
    ],
)
def test_anchors(anchored: AnchorOutcome, phrase: str, missing: str) -> None:
    found = of(anchored=[anchored])
    assert [p for p in found.phrases if "anchor" in p] == [phrase] * bool(phrase)
    assert list(found.missing) == [missing] * bool(missing)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "file.probes",
            ("probes of its anchors on other inputs, 40 of 40", "probes of its anchors on other inputs: why"),
        ),
        ("harness.canary", ("a fault put in on purpose, which was found", "a fault put in on purpose: why")),
    ],
)
def test_probes_and_canary(name: str, said: tuple[str, str]) -> None:
    passed = Check(name, "", "passed", "40 of 40, at 0.1 of what is allowed", "")
    assert said[0] in of(checks=[passed]).phrases
    assert of(checks=[passed]).missing == ()
    skipped = Check(name, "", "skipped", "", "", "why")
    assert of(checks=[skipped]).missing == (said[1],)
    for status in ("failed", "error"):
        wrong = dataclasses.replace(passed, status=status)
        assert not [p for p in of(checks=[wrong]).phrases if p.startswith(said[0][:12])]
