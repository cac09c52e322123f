"""Two records' tokens, prompt by prompt and configuration by configuration.

Every step is given the truth's tokens before it, so that each is compared by itself, also after one that differs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from hloracle.core.record import Answer, Prompt, Record, Reference
from hloracle.reports import text
from hloracle.reports.compare.change import Change, name, names
from hloracle.reports.facts import answers_of


@dataclass(frozen=True)
class Token:
    """`id` is None where a configuration ended before; `piece` where the model has no tokenizer."""

    id: int | None
    piece: str | None

    @property
    def words(self) -> str:
        """As it stands in a sentence."""
        if self.id is None:
            return "no token"
        return f"“{name(text.piece(self.piece[:40]), 40)}”" if self.piece else f"token {self.id}"


@dataclass(frozen=True)
class Step:
    """A step whose token is another; `gap` is the truth's lead over its second best there."""

    step: int
    truth: Token
    before: Token
    after: Token
    gap: float | None


@dataclass(frozen=True)
class TokensDiff:
    """Configurations whose tokens changed in the same way on one prompt.

    Args:
      agreed: tokens equal to the truth's, before and after, each as how many of how many.
      near_ties: of the head's disagreements, those where the truth's own lead is inside the noise.
      tied: all of them are.
      severity: as of a Change.
    """

    configurations: tuple[str, ...]
    agreed: tuple[tuple[int, int], tuple[int, int]]
    near_ties: int
    tied: bool
    steps: tuple[Step, ...]
    severity: str


@dataclass(frozen=True)
class PromptDiff:
    """`state` is `same`, `gone`, `new`, or what keeps its steps from being compared: `another model`, `another prompt`,
    `another reference`.

    Args:
      counts: configuration -> tokens equal to the truth's and how many there are, before and after; None where not compared.
      lost: configurations that were compared on it and no longer are, although both run.
      found: the other way round.
    """

    id: str
    state: str
    counts: dict[str, tuple[tuple[int, int] | None, tuple[int, int] | None]]
    lost: tuple[str, ...]
    found: tuple[str, ...]
    tokens: tuple[TokensDiff, ...]
    moved: int | None  # the first step of another reference


def compare_prompts(base: Record, head: Record) -> tuple[PromptDiff, ...]:
    """The head's prompts in order, then those that only the base has."""
    before, after = ({prompt["id"]: prompt for prompt in record["prompts"]} for record in (base, head))
    ran = [{c["id"] for c in record["configurations"] if c["status"] != "failed"} for record in (base, head)]
    return tuple(_prompt(base, head, id, before.get(id), after.get(id), ran) for id in dict.fromkeys([*after, *before]))


def _prompt(
    base: Record, head: Record, id: str, before: Prompt | None, after: Prompt | None, ran: Sequence[set[str]]
) -> PromptDiff:
    old, new = answers_of(base, id), answers_of(head, id)
    counts = {
        configuration: (_count(old.get(configuration)), _count(new.get(configuration)))
        for configuration in dict.fromkeys([*new, *old])
    }
    if before is None or after is None:
        return PromptDiff(id, "new" if before is None else "gone", counts, (), (), (), None)
    lost = tuple(configuration for configuration in old if configuration not in new and configuration in ran[1])
    found = tuple(configuration for configuration in new if configuration not in old and configuration in ran[0])
    moved = None
    if base["model"]["digest"] != head["model"]["digest"]:
        state = "another model"
    elif before["token_ids"] != after["token_ids"]:
        state = "another prompt"
    else:
        truths = before["reference"]["tokens"], after["reference"]["tokens"]
        moved = next((i for i, (a, b) in enumerate(zip(*truths, strict=False)) if a != b), None)
        state = "same" if moved is None else "another reference"
    shared = [configuration for configuration in new if configuration in old]
    tokens = _by_step(after["reference"], old, new, shared) if state == "same" else _by_count(old, new, shared)
    return PromptDiff(id, state, counts, lost, found, tuple(tokens), moved)


def _count(answer: Answer | None) -> tuple[int, int] | None:
    return (answer["agreed"], answer["total"]) if answer else None


def _by_step(
    truth: Reference, old: dict[str, Answer], new: dict[str, Answer], configurations: Sequence[str]
) -> Iterator[TokensDiff]:
    groups: dict[tuple[object, ...], list[str]] = {}
    for configuration in configurations:
        a, b = old[configuration], new[configuration]
        if any(_token(a, i).id != _token(b, i).id for i in range(min(a["total"], b["total"]))):
            key = tuple((*c["tokens"], c["agreed"], c["total"], c["disagreements"], c["near_ties"]) for c in (a, b))
            groups.setdefault(key, []).append(configuration)
    for alike in groups.values():
        before, after = old[alike[0]], new[alike[0]]
        steps = tuple(
            Step(i, _token(truth, i), *pair, text.value(truth["gaps"][i]))
            for i in range(min(before["total"], after["total"]))
            if (pair := (_token(before, i), _token(after, i)))[0].id != pair[1].id
        )
        wrong = any(step.after.id != step.truth.id == step.before.id for step in steps)
        right = any(step.before.id != step.truth.id == step.after.id for step in steps)
        # Which of the head's disagreements are near ties it does not say, only how many.
        severity = ("worse" if _tied(after) else "regression") if wrong else "better" if right else "changed"
        yield _diff(alike, before, after, steps, severity)


def _by_count(old: dict[str, Answer], new: dict[str, Answer], configurations: Sequence[str]) -> Iterator[TokensDiff]:
    groups: dict[tuple[object, ...], list[str]] = {}
    for configuration in configurations:
        a, b = old[configuration], new[configuration]
        if a["disagreements"] != b["disagreements"] or _missed(a) != _missed(b):
            key = *_rates(a), a["agreed"], a["total"], *_rates(b), b["agreed"], b["total"], b["near_ties"]
            groups.setdefault(key, []).append(configuration)
    for alike in groups.values():
        before, after = old[alike[0]], new[alike[0]]
        (missed, beyond), (was_missed, was_beyond) = _rates(after), _rates(before)
        severity = "changed"
        if beyond > was_beyond:
            severity = "regression"
        elif missed != was_missed:
            severity = "worse" if missed > was_missed else "better"
        yield _diff(alike, before, after, (), severity)


def _missed(answer: Answer) -> int:
    return max(answer["total"] - answer["agreed"], answer["disagreements"])


def _tied(answer: Answer) -> bool:
    """Inside the noise either of the two tokens is right, and the next change decides."""
    return _missed(answer) == answer["near_ties"]


def _rates(answer: Answer) -> tuple[float, float]:
    """Of an answer's tokens, how many are not the truth's, and how many of them are no near ties."""
    missed = _missed(answer)
    return missed / answer["total"], (missed - answer["near_ties"]) / answer["total"]


def _diff(
    configurations: Sequence[str], before: Answer, after: Answer, steps: tuple[Step, ...], severity: str
) -> TokensDiff:
    agreed = (before["agreed"], before["total"]), (after["agreed"], after["total"])
    return TokensDiff(tuple(configurations), agreed, after["near_ties"], _tied(after), steps, severity)


def _token(entry: Answer | Reference, step: int) -> Token:
    if step >= len(entry["tokens"]):
        return Token(None, None)
    return Token(entry["tokens"][step], entry["pieces"][step] if entry["pieces"] else None)


# ---- what is said of it


def prompt_changes(
    base: Record, head: Record, prompts: Sequence[PromptDiff], gone: Collection[str]
) -> Iterator[Change]:
    """Configurations that are `gone` have a change of their own, which says it all."""
    for prompt in prompts:
        id = name(prompt.id, 60)
        if prompt.state == "gone":
            if set(prompt.counts) - set(gone) or not prompt.counts:
                words = f"the prompt {id} is no longer run"
                yield Change("prompt", "regression", prompt.id, words, _compared_in(prompt, 0), "not there")
            continue
        if prompt.state == "new":
            short = [
                configuration for configuration, (_, after) in prompt.counts.items() if after and after[0] < after[1]
            ]
            bad = bool(short) and not head["passed"]
            words = f"the prompt {id} is new" + (f", and its tokens differ in {names(short)}" if short else "")
            severity = "regression" if bad else "worse" if short else "better"
            yield Change("prompt", severity, prompt.id, words, "not there", _compared_in(prompt, 1))
        elif prompt.state == "another prompt":
            yield Change("prompt", "changed", prompt.id, f"the prompt {id} has other tokens")
        elif prompt.state == "another reference":
            words = f"the truth of {id} is another from step {prompt.moved} on"
            why = "what was right is right no longer, whatever the graphs compute"
            yield Change("reference", "worse", prompt.id, words, detail=why)
        if prompt.lost:
            words = f"{id} is no longer compared in {names(prompt.lost)}"
            yield Change(
                "tokens", "regression", prompt.id, words, "compared", "not compared",
                configurations=prompt.lost, lost="part",
            )  # fmt: skip
        if prompt.found:
            words = f"{id} is now compared in {names(prompt.found)}"
            yield Change("tokens", "better", prompt.id, words, "not compared", "compared", configurations=prompt.found)
        for diff in prompt.tokens:
            yield _tokens_change(prompt, diff)


def _tokens_change(prompt: PromptDiff, diff: TokensDiff) -> Change:
    id, compared = name(prompt.id, 60), sum(after is not None for _, after in prompt.counts.values())
    everywhere = len(diff.configurations) == compared > 1
    configurations = "every configuration" if everywhere else names(diff.configurations)
    detail = ""
    if len(diff.steps) == 1:
        (step,) = diff.steps
        right = " again" if diff.severity == "better" else ""
        words = f"{id} in {configurations}: the token at step {step.step} is {step.after.words}{right}, was {step.before.words}"
        if step.gap is not None:
            detail = f"the truth's lead over its second best is {text.figure(step.gap)} there"
    elif diff.steps:
        words = f"{text.plural(len(diff.steps), 'token')} of {id} changed in {configurations}, first at step {diff.steps[0].step}"
    else:
        shares = [n / total for n, total in diff.agreed]
        how = "fewer" if shares[1] < shares[0] else "more" if shares[1] > shares[0] else "as many"
        words = f"{id} in {configurations}: {how} tokens are the truth's"
    if diff.severity == "worse" and diff.tied:
        ties = "a near tie" if diff.near_ties == 1 else "near ties"
        detail = "; ".join(filter(None, [detail, f"inside the measured noise: {ties}"]))
    before, after = (f"{text.count(n)} of {text.count(total)} equal" for n, total in diff.agreed)
    return Change("tokens", diff.severity, prompt.id, words, before, after, detail, configurations=diff.configurations)


def _compared_in(prompt: PromptDiff, side: int) -> str:
    return f"compared in {text.plural(sum(pair[side] is not None for pair in prompt.counts.values()), 'configuration')}"
