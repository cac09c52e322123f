"""Values that are beyond their limit by little: float32's noise is measured there in more passes, and they are judged by that.

A floor is the largest of a few passes, and of some hundred thousand rows one is more sensitive than these show. What is far
beyond its limit, and whatever is no matter of noise, is wrong as it stands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from hloracle.conformance.checks.check import Check
from hloracle.conformance.questions.questions import Asked
from hloracle.conformance.runs.configurations import Outcome
from hloracle.core.child import Report
from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.reference.huggingface.anchor_truth import MANY_NUDGES, NUDGES, anchor_truths
from hloracle.reference.model.checkpoint import Checkpoint

# How many limits a value may be off for the noise to be asked again. In the row that this was made for, 25 passes had up to 2.5
# times the noise of 5.
LITTLE = 4.0
# Of the checks of a configuration, those that hold values to the floors of their rows.
OF_ROWS = ("caches", "streamed-logits", "prefill-equals-streaming")


def in_doubt(outcome: Outcome, bad: Sequence[Check], asked: Asked) -> list[str]:
    """The prompts and streams in which a configuration is beyond a limit by little; none if it is wrong anyhow.

    Args:
      bad: the checks of the configuration that failed or could not be made.
    """
    if not bad or any(not c.failed or c.kind not in OF_ROWS for c in bad):
        return []
    errors = [(id, slots.largest[0]) for id, slots in outcome.slots]
    for id, stream in outcome.streams.items():
        errors += [(id, error) for error in (*stream.heads, *stream.prefilled.values(), stream.apart or 0.0)]
    if any(slots.stayed for _, slots in outcome.slots) or not all(e <= LITTLE * ANCHOR_FLOORS for _, e in errors):
        return []
    open_ = {id for id, truth in asked.kept.items() if truth.compute == "f32" and truth.nudges == NUDGES}
    return list(dict.fromkeys(id for id, error in errors if error > ANCHOR_FLOORS and id in open_))


def measured_again(asked: Asked, ids: Collection[str], checkpoint: Checkpoint, report: Report) -> Asked:
    """The same question, with the noise of these sequences from more passes."""
    sequences = list(dict.fromkeys(asked.sequences[id] for id in ids))
    found = dict(zip(sequences, anchor_truths(checkpoint, sequences, report, MANY_NUDGES), strict=True))
    # Prompts that differ in their bucket alone have one truth.
    kept = {id: found.get(asked.sequences[id], truth) for id, truth in asked.kept.items()}
    return dataclasses.replace(asked, kept=kept)
