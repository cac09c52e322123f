"""Checks of what a configuration returned, held to the reference; and of the reference itself.

They are functions of evidence that was gathered before, so each is tested by evidence that breaks it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from hloracle.conformance.checks.check import Check, Question, of_configuration
from hloracle.conformance.runs.configurations import Outcome, PromptOutcome
from hloracle.conformance.runs.returned import Stream
from hloracle.core.spread import NAMES, Spread, allowed, in_words, spread_of
from hloracle.core.tolerances import (
    ANCHOR_FLOORS,
    LOGIT_FLOORS,
    NARROW_ROUNDING,
    NARROW_ROWS,
    TRUTH_RELATIVE,
    TRUTH_RELATIVE_POSITION,
)
from hloracle.reference.huggingface.truth import IN_WORDS, Truth

# Step 0 is prefill's row (or the streamed prompt's last); the others are decode's.
LOGIT_PHASES = {"prefill": slice(0, 1), "decode": slice(1, None)}


def truth_check(truths: dict[str, Truth], positions: Mapping[str, int] | None = None) -> Check:
    """The truth is in its own noise: float32 and float64 choose the same tokens, a float32 rounding apart.

    Args:
      positions: of each prompt and what follows it; few, if not given.
    """
    logits = {id: _nan_last(t.single / float(np.max(np.abs(t.exact)))) for id, t in truths.items()}
    caches = {id: _nan_last(t.caches) for id, t in truths.items()}
    most = {id: max(TRUTH_RELATIVE, TRUTH_RELATIVE_POSITION * (positions or {}).get(id, 0)) for id in truths}
    other = [
        f"{id}: step {step} is {best}, not {token}, in float64"
        for id, t in truths.items()
        for step, (token, best) in enumerate(zip(t.tokens, np.argmax(t.exact, axis=1).tolist(), strict=True))
        if token != best and t.exact[step, best] - t.exact[step, token] > 2 * t.single
    ]
    # Without any noise the float64 truth would be the float32 one again, and nothing could be measured by it.
    other += [f"{id}: float32 and float64 are equal" for id, t in truths.items() if t.single == 0]
    # What is computed in less has more noise, or it was not computed in less.
    other += [f"{id}: {words}" for id, t in truths.items() if (words := _odd_noise(t))]
    holds = bool(truths) and all(max(logits[id], caches[id]) <= most[id] for id in truths) and not other
    title = "Hugging Face float32 agrees with its float64"
    worst, entry = (max(some.values(), default=np.inf) for some in (logits, caches))
    figure = f"{worst:.1e} of the largest logit, {entry:.1e} of the largest cache entry"
    detail = "; ".join(other) or "the float32 truth is further from float64 than float32 rounding explains"
    return Question("noise", title).judged(
        holds, figure, f"at most {max(most.values(), default=TRUTH_RELATIVE):.0e}", detail
    )


def _odd_noise(truth: Truth) -> str:
    """What is odd about the noise of less than float32, in words."""
    if not len(truth.narrow):
        return ""
    if not np.all(np.isfinite(truth.narrow)):
        return f"Hugging Face in {IN_WORDS[truth.compute]} gives values that are not finite, so it cannot be computed in that"
    return (
        "" if float(np.max(truth.narrow)) > truth.single else f"{IN_WORDS[truth.compute]} is not noisier than float32"
    )


def limit(truth: Truth) -> float:
    """How far a logit may be from the float64 truth."""
    return LOGIT_FLOORS * truth.floor


def mismatches(tokens: Sequence[int], truth: Truth) -> list[int]:
    """Steps at which a configuration chose another token than the truth."""
    return [i for i, (a, b) in enumerate(zip(tokens, truth.tokens, strict=False)) if a != b]


def is_near_tie(step: int, token: int, truth: Truth) -> bool:
    """Whether a right implementation may choose `token` here: its logit and the best one can each move by the limit.

    In bf16 and f16 by the noise itself: the limit would let through what no pass of Hugging Face is near to choose.
    """
    logits = truth.exact[step]
    return 0 <= token < len(logits) and bool(np.max(logits) - logits[token] <= truth.leads[step])


def configuration_checks(
    outcome: Outcome, truths: dict[str, Truth], streamed: Sequence[Stream] = (), batch: int = 1
) -> list[Check]:
    """What a configuration answered to its prompts, and to these streams.

    Tokens, logits of prefill and of decode, the caches, the streams' heads, the same calls again; of graphs with several rows, all
    prompts at once.

    Args:
      batch: the rows of its graphs.
    """

    def question(kind: str, title: str) -> Question:
        return of_configuration(outcome.configuration, kind, title)

    tokens = question("tokens", "tokens equal Hugging Face's")
    if outcome.status == "failed":
        return [tokens.error(outcome.message, outcome.stage)]
    absent = [p for p in truths if p not in outcome.prompts]
    agreed = total = 0
    notes = [f"{p} did not run" for p in absent]
    near: list[str] = []
    for name, result in outcome.prompts.items():
        truth = truths[name]
        steps = mismatches(result.tokens, truth)
        total += len(truth.tokens)
        agreed += len(result.tokens) - len(steps)
        if len(result.tokens) != len(truth.tokens):
            notes.append(f"{name}: {len(result.tokens)} tokens instead of {len(truth.tokens)}")
        ties = [is_near_tie(step, result.tokens[step], truth) for step in steps]
        # The first that is no near-tie, if there is one.
        for step in sorted(steps, key=lambda s: ties[steps.index(s)])[:1]:
            (near if all(ties) else notes).append(
                f"{name}: step {step} is {result.tokens[step]}, not {truth.tokens[step]} "
                f"(the truth's lead there is {truth.gaps[step]:.2g})"
            )
    holds = total > 0 and not notes
    checks = [tokens.judged(holds, f"{agreed} of {total}", f"{total} of {total}", "; ".join(notes))]
    if holds and near:
        told = "near-ties: " + "; ".join(near)
        checks = [dataclasses.replace(checks[0], limit="all but near-ties", detail=told)]
    if outcome.configuration.head == "logits":
        for phase, part in LOGIT_PHASES.items():
            asked_of = question(f"{phase}-logits", f"logits of {phase} against the float64 truth")
            checks.append(_logits(asked_of, outcome, truths, part))
    # A prefill alone is asked for one token, and what keeps no caches is given all of them each time.
    asked = any(len(t.tokens) > 1 for t in truths.values()) or any(s.heads for s in outcome.streams.values())
    decodes = outcome.decodes and asked
    checks += [_caches(outcome, truths, streamed, decodes), _repeats(outcome)]
    if batch > 1:
        checks += [_together(outcome, truths), _apart(outcome)]
    if streamed:
        checks.append(_streamed_heads(outcome, streamed, decodes))
        if decodes and any(s.lengths for s in streamed):
            checks.append(_streaming(outcome, streamed))
    return checks


def _logits(question: Question, outcome: Outcome, truths: dict[str, Truth], part: slice) -> Check:
    asked = {name for name, truth in truths.items() if truth.tokens[part]}
    if not asked and truths:
        return question.skipped("no prompt has such a step")
    # One error, and one spread in bf16 and f16, for each of the truth's steps: nothing is right because it was not measured.
    absent = [n for n in asked if n not in outcome.prompts or not _measured(outcome.prompts[n], truths[n])]
    if absent or not asked:
        return question.error(f"{min(absent, default='no prompt')} was not compared")
    ratios = {name: _in_floors(float(np.max(outcome.prompts[name].errors[part])), truths[name]) for name in asked}
    worst = max(sorted(ratios), key=lambda name: _nan_last(ratios[name]))
    holds = all(r <= LOGIT_FLOORS for r in ratios.values())
    figure, limit = f"{ratios[worst]:.2f} floors ({worst})", f"at most {LOGIT_FLOORS:g} floors"
    if spread := logits_spread(outcome, truths, part):
        holds = holds and spread.share <= 1
        figure, limit = f"{figure}; {in_words(spread.ratios)}", f"{limit}; {allowed()}"
    return question.judged(holds, figure, limit,
                  f"worst error {np.max(outcome.prompts[worst].errors[part]):.3g}, floor {truths[worst].floor:.3g}")  # fmt: skip


def _measured(answer: PromptOutcome, truth: Truth) -> bool:
    """Whether the logits of each of the truth's steps were."""
    steps = len(truth.tokens)
    return len(answer.errors) == steps and len(answer.spreads) == (0 if truth.compute == "f32" else steps)


def logits_spread(outcome: Outcome, truths: dict[str, Truth], part: slice) -> Spread | None:
    """How the errors of the logits of these steps are spread over all prompts; None in float32, and for too few steps."""
    found = [(outcome.prompts[name], truth) for name, truth in truths.items() if name in outcome.prompts]
    steps = [np.array(answer.spreads[part]).reshape(-1, len(NAMES)) for answer, _ in found]
    if sum(map(len, steps)) < NARROW_ROWS or any(truth.compute == "f32" for _, truth in found):
        return None
    exact = np.concatenate([np.asarray(truth.exact[part]) for _, truth in found])
    passes = np.concatenate([truth.spreads[:, part] for _, truth in found], axis=1)
    count = np.full(len(exact), exact.shape[1])
    return spread_of(np.concatenate(steps), passes, exact, count, NARROW_ROUNDING[found[0][1].compute])


def _caches(
    outcome: Outcome, truths: dict[str, Truth], streamed: Sequence[Stream], decodes: bool
) -> Check:  # fmt: skip
    """Every slot that was filled, in floors of its row; and every other one, bit for bit."""
    question = of_configuration(
        outcome.configuration,
        "caches",
        "every slot of both caches against the float64 truth, and slots that must stay, bit for bit",
    )
    found = outcome.slots
    # After each prompt, and after the steps that follow it; of a stream after decode and after prefill.
    wanted = Counter({name: 1 + (decodes and len(truth.tokens) > 1) for name, truth in truths.items()})
    wanted += Counter({s.id: (decodes and s.decodes) + bool(s.lengths) for s in streamed})
    layers = {anchor for _, slots in found for anchor in slots.worst}
    seen = Counter(name for name, slots in found if slots.worst.keys() == layers)
    if absent := [name for name, count in wanted.items() if seen[name] < count]:
        return question.error(f"{absent[0]} was not compared")
    if not layers:
        return question.skipped("its graphs return no caches") if found else question.error("nothing was compared")
    (error, anchor, slot), name = max((slots.largest, name) for name, slots in found)
    stayed = [f"{name}: {slots.stayed}" for name, slots in found if slots.stayed]
    wrong = min(((*at, name) for name, slots in found if (at := slots.first_wrong())), default=None)
    detail = [f"the first that is wrong is slot {wrong[0]} of {wrong[1]} ({wrong[2]})"] if wrong else []
    figure = f"{error:.2f} floors ({anchor}, slot {slot}, {name}), {len(found[0][1].worst)} caches of a layer"
    limit = f"at most {ANCHOR_FLOORS:g} floors"
    return question.judged(not wrong and not stayed, figure, limit, "; ".join([*detail, *stayed[:3]]))


def _repeats(outcome: Outcome) -> Check:
    """The same calls give the same bits. What differs is a finding, on whatever it runs."""
    question = of_configuration(
        outcome.configuration, "repeats", "the same calls on the same inputs give the same bits"
    )
    if outcome.repeated is None:
        return question.error("nothing was repeated")
    equal, apart = outcome.repeated
    figure = "bit for bit" if equal else f"up to {apart:.2g} apart"
    return question.judged(equal, figure, "bit for bit", "a second call on equal inputs gives something else")


def _together(outcome: Outcome, truths: dict[str, Truth]) -> Check:
    """All prompts at once, each in a row of its own."""
    title = "tokens of all prompts at once, each in a row, equal Hugging Face's"
    question = of_configuration(outcome.configuration, "together", title)
    found = outcome.rows.tokens if outcome.rows else {}
    if absent := [id for id, truth in truths.items() if len(found.get(id, ())) != len(truth.tokens)]:
        return question.error(f"{absent[0]} was not compared")
    if not truths:
        return question.error("nothing was compared")
    steps = {id: mismatches(found[id], truth) for id, truth in truths.items()}
    total = sum(len(truth.tokens) for truth in truths.values())
    wrong = [
        f"{id}: step {step} is {found[id][step]}, not {truth.tokens[step]}" for id, truth in truths.items()
        for step in steps[id] if not is_near_tie(step, found[id][step], truth)
    ]  # fmt: skip
    agreed, ties = total - sum(map(len, steps.values())), sum(map(len, steps.values())) - len(wrong)
    limit = f"{total} of {total}" if not ties else "all but near-ties"
    return question.judged(not wrong, f"{agreed} of {total}", limit, "; ".join(wrong[:3]))


def _apart(outcome: Outcome) -> Check:
    title = "a row depends on nothing in the others, and an idle one stays as it is, bit for bit"
    question = of_configuration(outcome.configuration, "rows-apart", title)
    if outcome.rows is None:
        return question.error("nothing was compared")
    return question.judged(not outcome.rows.apart, outcome.rows.apart or "bit for bit", "bit for bit", "")


def _streamed_heads(outcome: Outcome, streamed: Sequence[Stream], decodes: bool) -> Check:
    """Decode at every position of a sequence, and prefill of its beginnings."""
    what = "tokens" if outcome.configuration.head == "token" else "logits"
    title = f"{what} at every position of a sequence, and after its beginnings, against the float64 truth"
    question = of_configuration(outcome.configuration, "streamed-logits", title)
    heads = [
        (error, f"{phase}, position {position} of {name}")
        for name, stream in outcome.streams.items()
        for phase, errors in (("decode", dict(enumerate(stream.heads))), ("prefill", stream.prefilled))
        for position, error in ((n - (phase == "prefill"), e) for n, e in errors.items())
    ]
    # One error for each position and each length: nothing is taken for right because it was not measured.
    absent = [
        s.id for s in streamed
        if (one := outcome.streams.get(s.id)) is None
        or (decodes and s.decodes and len(one.heads) != len(s.tokens)) or set(one.prefilled) != set(s.lengths)
    ]  # fmt: skip
    if absent or not heads:
        return question.error(f"{next(iter(absent), 'no sequence')} was not compared")
    worst, where = max(heads, key=lambda head: _nan_last(head[0]))
    wrong = [where for error, where in heads if not error <= ANCHOR_FLOORS]
    figure = f"{worst:.2f} floors ({where}), {len(heads)} of them"
    if what == "tokens":
        figure = f"{len(heads) - len(wrong)} of {len(heads)}"
    limit = f"at most {ANCHOR_FLOORS:g} floors" if what == "logits" else f"{len(heads)} of {len(heads)}"
    return question.judged(not wrong, figure, limit, f"{len(wrong)} are wrong, the first {next(iter(wrong), '')}")


def _streaming(outcome: Outcome, streamed: Sequence[Stream]) -> Check:
    question = of_configuration(
        outcome.configuration, "prefill-equals-streaming", "prefill equals streaming the same tokens through decode"
    )
    found = [(_nan_last(s.apart), name) for name, s in outcome.streams.items() if s.apart is not None]
    if absent := {s.id for s in streamed if s.lengths and s.decodes} - {name for _, name in found}:
        return question.error(f"{min(absent)} was not compared")
    worst, name = max(found)
    holds = worst <= ANCHOR_FLOORS
    limit = f"at most {ANCHOR_FLOORS:g} floors"
    return question.judged(holds, f"{worst:.2f} floors ({name})", limit, "head or caches differ")


def _in_floors(distance: float, truth: Truth) -> float:
    return distance / truth.floor if truth.floor else float("inf") if distance else 0.0


def _nan_last(x: float) -> float:
    """NaN as the largest, so that it is the worst and not overlooked."""
    return float("inf") if np.isnan(x) else x
