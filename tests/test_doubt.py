"""What is beyond a limit by little is judged by the noise of more passes; what is wrong anyhow is not asked again."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import evidence as by_hand
import numpy as np
import pytest
from evidence import (
    CACHES,
    CONFIGURATIONS,
    LONG,
    STREAM,
    TRUTHS,
    a_run,
    both,
    matrix_of,
    on_prompt,
    on_slots,
    on_stream,
)
from models import model

from hloracle.conformance import judging
from hloracle.conformance.checks.of_configurations import configuration_checks
from hloracle.conformance.evidence import Evidence
from hloracle.conformance.questions import doubt
from hloracle.conformance.questions.doubt import LITTLE, in_doubt, measured_again
from hloracle.conformance.questions.questions import Asked
from hloracle.conformance.settings import Settings
from hloracle.conformance.verdict.verdict import decide
from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.reference.huggingface.anchor_truth import MANY_NUDGES, AnchorTruth, Sequenced, anchor_truths

ONE = CONFIGURATIONS[2]
LITTLE_OFF, FAR_OFF = ANCHOR_FLOORS + 1, LITTLE * ANCHOR_FLOORS + 1
HEADS = [0.5] * len(STREAM.tokens)


def asked(**fields: Any) -> Asked:
    kept = {id: AnchorTruth((1, 2), Path(id), False, **fields) for id in (*TRUTHS, STREAM.id)}
    return dataclasses.replace(by_hand.asked(), kept=kept)


def doubted(change: by_hand.Change, question: Asked | None = None) -> list[str]:
    question = question or asked()
    outcome = change(by_hand.outcome(ONE, streams=question.streams))
    checks = configuration_checks(outcome, TRUTHS, question.streams)
    return in_doubt(outcome, [c for c in checks if c.bad], question)


@pytest.mark.parametrize(
    ("change", "ids"),
    [
        (on_slots(anchor=CACHES[1], slot=5, error=LITTLE_OFF), [LONG.id]),
        (on_slots(STREAM.id, 1, CACHES[0], error=LITTLE_OFF), [STREAM.id]),
        (on_stream(heads=[*HEADS[:3], LITTLE_OFF, *HEADS[4:]]), [STREAM.id]),
        (on_stream(prefilled={1: 0.5, 4: LITTLE_OFF, 7: 0.5}), [STREAM.id]),
        (on_stream(apart=LITTLE_OFF), [STREAM.id]),
        (both(on_slots(anchor=CACHES[1], error=LITTLE_OFF), on_stream(apart=LITTLE_OFF)), [LONG.id, STREAM.id]),
    ],
)  # fmt: skip
def test_what_is_beyond_a_limit_by_little_is_in_doubt(change: by_hand.Change, ids: list[str]) -> None:
    assert doubted(change) == ids
    assert doubted(change, asked(nudges=MANY_NUDGES)) == [], "it was measured in more passes"
    assert doubted(change, asked(compute="bf16")) == [], "the floors of bf16 are of other passes"


@pytest.mark.parametrize(
    "change",
    [
        by_hand.right,
        on_slots(anchor=CACHES[1], error=FAR_OFF),
        on_slots(anchor=CACHES[1], error=math.nan),
        on_slots(anchor=CACHES[1], error=LITTLE_OFF, stayed="slot 1 of k_cache.0 changed"),
        both(on_slots(anchor=CACHES[1], error=LITTLE_OFF), on_stream(heads=[*HEADS[:-1], math.inf])),
        both(on_slots(anchor=CACHES[1], error=LITTLE_OFF), on_prompt(tokens=[5, 5, 5])),
        both(on_slots(anchor=CACHES[1], error=LITTLE_OFF), on_prompt(errors=[9 * by_hand.FLOOR] * 3)),
        both(on_slots(anchor=CACHES[1], error=LITTLE_OFF), by_hand.not_repeated()),
    ],
)
def test_what_is_wrong_anyhow_is_not(change: by_hand.Change) -> None:
    assert doubted(change) == []


@pytest.mark.parametrize(("then", "class_"), [(0.6, "conforms"), (LITTLE_OFF, "compiler-fault")])
def test_a_configuration_in_doubt_is_judged_once_more(
    monkeypatch: pytest.MonkeyPatch, then: float, class_: str
) -> None:
    """By the same question, but for the noise; a second time nothing is left open."""
    questions: list[Asked] = []

    def answer(_run: Any, configuration: Any, question: Asked) -> Any:
        found = by_hand.outcome(configuration, streams=question.streams)
        if configuration != ONE:
            return found
        questions.append(question)
        return on_slots(anchor=CACHES[1], error=LITTLE_OFF if len(questions) == 1 else then)(found)

    def again(question: Asked, ids: Any, *_: Any) -> Asked:
        assert list(ids) == [LONG.id]
        return dataclasses.replace(question, kept=asked(nudges=MANY_NUDGES).kept)

    monkeypatch.setattr(judging, "_outcome", answer)
    monkeypatch.setattr(judging, "measured_again", again)
    run = a_run(Evidence(truths=TRUTHS, asked=asked()), Settings("m"), model=model("plain").checkpoint)
    run.evidence.graphs = {"emitter": [], "oracle": []}
    judging.judge(run, *CONFIGURATIONS)
    found = run.evidence
    assert [q.kept[LONG.id].nudges for q in questions] == [4, MANY_NUDGES]
    assert decide(matrix_of(found.outcomes), found.checks, found.outcomes, TRUTHS).class_ == class_


def test_more_passes_of_the_same_sequence() -> None:
    checkpoint = model("plain").checkpoint
    sequences = {"one": Sequenced((3, 1, 4, 1, 5), 3), "other": Sequenced((2, 7), 2)}
    kept = dict(zip(sequences, anchor_truths(checkpoint, list(sequences.values())), strict=True))
    question = Asked(kept={**kept, "one again": kept["one"]}, sequences={**sequences, "one again": sequences["one"]})
    found = measured_again(question, ["one"], checkpoint, lambda _: None).kept
    assert found["other"] is kept["other"]
    assert found["one again"] is found["one"]
    assert found["one"].folder != kept["one"].folder
    more = []
    for anchor in ("layers.0.mlp.act", "k_cache.1", "lm_head"):
        np.testing.assert_array_equal(found["one"].values(anchor), kept["one"].values(anchor))
        noise, before = found["one"].noise(anchor), kept["one"].noise(anchor)
        assert np.all(noise >= before)
        more.append(np.any(noise > before))
    assert any(more), "twenty more passes have more noise somewhere"
    assert doubt.anchor_truths(checkpoint, [sequences["one"]], nudges=MANY_NUDGES)[0].reused
