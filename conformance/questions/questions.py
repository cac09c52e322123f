"""What every configuration is asked, and what Hugging Face answers: prompts, the tokens after them, streams, and the caches of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from hloracle.conformance.questions.prompts import Prompt, Reach
from hloracle.conformance.runs.returned import Stream, result_anchors, streams
from hloracle.core.child import Report
from hloracle.reference.huggingface.anchor_truth import AnchorTruth, Sequenced, anchor_truths
from hloracle.reference.huggingface.truth import Truth
from hloracle.reference.model.checkpoint import Checkpoint


@dataclass(frozen=True)
class Asked:
    """What a configuration is asked, and what it should answer.

    prompts: each with its truth, by its id. kept: by the id of a prompt or a stream, what its caches should hold; of a
    stream also the logits. inside: the prompt whose values are compared at every anchor, and what is fed with it.
    sequences: what Hugging Face was asked for `kept`.
    """

    prompts: list[Prompt] = field(default_factory=list)
    truths: dict[str, Truth] = field(default_factory=dict)
    kept: dict[str, AnchorTruth] = field(default_factory=dict)
    streams: list[Stream] = field(default_factory=list)
    inside: tuple[Prompt, Sequenced] | None = None
    sequences: dict[str, Sequenced] = field(default_factory=dict)

    def without_streams(self) -> Asked:
        """The prompts alone, for a configuration that is not asked at every position, or was before."""
        return dataclasses.replace(self, streams=[])

    def without_prompts(self) -> Asked:
        """The streams alone, for a configuration whose answers to the prompts are known."""
        return dataclasses.replace(self, prompts=[])


# Decode steps that are looked at inside: the first reads what prefill wrote, the others also what decode wrote.
STEPS = 4


def looked_into(
    prompts: Sequence[Prompt], truths: dict[str, Truth], slots: int, steps: int = STEPS
) -> tuple[Prompt, Sequenced]:
    """The prompt whose values are compared at every anchor, and what is fed with it: a few steps more, as far as the slots reach."""
    prompt = next((p for p in prompts if len(p.token_ids) > 1), prompts[0])
    tokens = (*prompt.token_ids, *truths[prompt.id].tokens[:steps])[:slots]
    return prompt, Sequenced(tokens, len(prompt.token_ids))


def ask(
    checkpoint: Checkpoint, prompts: Sequence[Prompt], truths: dict[str, Truth], reach: Reach,
    every_token: bool = True, report: Report | None = None,
) -> tuple[Asked, bool]:  # fmt: skip
    """The whole question, and whether all of its answers were in the cache.

    Raises InputError that names an anchor which by the config as it is read here has another shape than in transformers.

    Args:
      reach: of the graphs; one that decodes streams as far as the caches reach. every_token: see `streams`.
    """
    config = checkpoint.config
    # What a step is fed: the last token is nobody's input.
    fed = {p.id: (*p.token_ids, *truths[p.id].tokens[:-1]) for p in prompts}
    text = max(fed.values(), key=len, default=())
    slots = reach.capacity if reach.decodes else max(reach.buckets)
    found = streams(config, slots, reach.buckets, text, every_token, reach.in_parts)
    sequences = {p.id: Sequenced(fed[p.id], len(p.token_ids), result_anchors(config, head=False)) for p in prompts}
    sequences |= {s.id: Sequenced(s.tokens, 1, result_anchors(config, head=True)) for s in found}
    inside = looked_into(prompts, truths, reach.capacity, STEPS if reach.decodes else 0)
    # Prompts that differ only in their bucket have one truth. What is looked into later is computed with the rest.
    distinct = list(dict.fromkeys([*sequences.values(), inside[1]]))
    by_sequence = dict(zip(distinct, anchor_truths(checkpoint, distinct, report), strict=True))
    kept = {id: by_sequence[sequence] for id, sequence in sequences.items()}
    return Asked(list(prompts), truths, kept, found, inside, sequences), all(truth.reused for truth in kept.values())
