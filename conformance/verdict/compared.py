"""What a verdict rests on, in words: built from what was compared, and from nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from hloracle.conformance.checks.check import Check
from hloracle.conformance.checks.of_configurations import mismatches
from hloracle.conformance.matrix import Matrix
from hloracle.conformance.questions.questions import Asked
from hloracle.conformance.runs.configurations import Outcome
from hloracle.conformance.runs.inside import AnchorOutcome
from hloracle.core.abi import Abi
from hloracle.reference.huggingface.anchor_truth import NUDGES


@dataclass(frozen=True)
class Compared:
    """What was compared, and what was not, each a phrase that stands by itself."""

    phrases: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def sentence(self, claim: str) -> str:
        """What is claimed of all that was compared; begun by what it says nothing of."""
        return f"{without(self.missing)}{claim} in all that was compared."


NOTHING = Compared()
# What looks into graphs, besides the values at anchors, in words.
LOOKED = (
    ("probes", "probes of its anchors on other inputs"),
    ("interpreter", "what StableHLO's interpreter evaluates"),
    ("canary", "a fault put in on purpose"),
)


def without(missing: Sequence[str]) -> str:
    """How a sentence begins that says nothing of these."""
    return f"Not compared: {'; '.join(missing)}. " if missing else ""


def compared(
    matrix: Matrix, outcomes: Sequence[Outcome], checks: Sequence[Check], asked: Asked, abis: Mapping[str, Sequence[Abi]],
    anchored: Sequence[AnchorOutcome] = (),
) -> Compared:  # fmt: skip
    """What the configurations of the graphs that are judged were held to; of several sources, what holds of one alone as such.

    Args:
      matrix: the backends of the run. abis: of the judged graphs, by source. anchored: what was looked at inside.
    """
    found = {}
    nothing = Compared((), ("everything",)) if len(abis) > 1 else NOTHING
    for source, of_source in abis.items():
        own = [o for o in outcomes if o.configuration.source == source and o.status != "failed"]
        # Whatever names no source is about the run.
        about = [c for c in checks if c.source in (source, "")]
        inside = [o for o in anchored if o.configuration.source == source and o.status != "failed"]
        found[source] = _of_source(matrix, own, about, asked, of_source, inside) if own else nothing
    return Compared(
        _told({source: each.phrases for source, each in found.items()}),
        _told({source: each.missing for source, each in found.items()}),
    )


def _told(phrases: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """What is said of one source alone, and of which; then what is said of all."""
    lists = list(phrases.values())
    shared = [phrase for phrase in (lists[0] if lists else []) if all(phrase in some for some in lists)]
    alone = [f"of {source}: {phrase}" for source, some in phrases.items() for phrase in some if phrase not in shared]
    return (*alone, *shared)


def _of_source(
    matrix: Matrix, configurations: Sequence[Outcome], checks: Sequence[Check], asked: Asked, abis: Sequence[Abi],
    anchored: Sequence[AnchorOutcome],
) -> Compared:  # fmt: skip
    """What the configurations of one source were held to; at least one gave an answer."""
    logits = [o for o in configurations if o.configuration.head == "logits"]
    heads = [o for o in configurations if o.streams] or logits
    everywhere = dict.fromkeys(o.configuration.backend for o in configurations)

    def only(*backends: str) -> str:
        """Where not all backends had a part in it, or another one did it."""
        return "" if set(backends) == everywhere.keys() else f", on {matrix.named(backends)} alone"

    # Of a larger model one configuration is asked at every position, and the others only if that is wrong.
    some = dict.fromkeys(o.configuration.backend for o in logits or configurations if o.streams) or everywhere
    phrases = [_tokens(configurations, asked)]
    missing = []
    phases = {abi.phase for abi in abis}
    capacity = max(abi.capacity for abi in abis)
    buckets = sorted({abi.bucket for abi in abis if abi.phase != "decode"})
    positions, lengths = _positions(logits or configurations, asked, phases)
    what = "logits" if logits else "the token"
    if not logits:
        missing.append("the logits: the graph answers with a token")
    if "decode" in phases:
        every = len(positions) == capacity
        of = f"all {capacity}" if every else f"{len(positions)} of {capacity}"
        phrases.append(f"{what} of decode at {of} positions{only(*some)}")
        if not every:
            missing.append(f"{what} of decode at positions {_ranges(set(range(capacity)) - positions)}")
    if buckets:
        # Each of its graphs takes prompts of one token up to its bucket. An ABI file calls it so that keeps no caches.
        whole = "extend" if "extend" in phases else "prefill" if any(abi.caches for abi in abis) else "forward"
        fit, longer = [n for bucket, n in lengths if n <= bucket], {n for bucket, n in lengths if n > bucket}
        left = sum(buckets) - len(fit)
        of = f"{len(fit)} of the" if left else "all"
        taken = f"{sum(buckets)} lengths that {'it takes' if len(buckets) == 1 else f'its {len(buckets)} buckets take'}"
        phrases.append(f"{what} of {whole} after {of} {taken}{only(*some)}")
        if left:
            missing.append(f"{what} of {whole} after {left} of the {taken}")
        if longer:
            many = _count(len(longer), "longer prompt")
            phrases.append(f"{what} of {whole} after {many}, of up to {max(longer)} tokens, part by part{only(*some)}")
    if all(abi.caches for abi in abis):
        filled = _filled(heads or configurations, asked, phases)
        slots = capacity if "decode" in phases else max(buckets)
        ring = max(abi.ring for abi in abis)
        last = f", the last {ring} where a layer has a ring" if ring else ""
        phrases.append(
            ("both caches whole" if filled >= capacity else f"slots 0 to {filled - 1} of both caches") + last
        )
        if filled < slots:
            missing.append(f"slots {_ranges(range(filled, slots))} of both caches")
    if held := dict.fromkeys(r.name for abi in abis for r in abi.results if r.role == "state"):
        missing.append(f"state that the graph hands on: {', '.join(held)}")
    if taps := list(dict.fromkeys(r.name for abi in abis for r in abi.results if r.role == "tap")):
        missing.append(f"what the graph returns besides: {', '.join(taps)}")
    seen = {t for s in asked.streams for t in s.tokens if any(s.id in o.streams for o in configurations)}
    vocabulary = next((t.exact.shape[1] for t in asked.truths.values()), 0)
    if len(seen) == vocabulary:
        phrases.append(f"each of {vocabulary} tokens as input")
    batch = max(abi.batch for abi in abis)
    if batch > 1 and all(o.rows for o in configurations):
        phrases.append(f"all prompts at once in {batch} rows, and each row beside others at other positions")
    if again := [truth for truth in asked.kept.values() if truth.nudges > NUDGES]:
        many = _count(len({truth.folder for truth in again}), "sequence")
        phrases.append(f"float32's noise of {many} in {1 + again[0].nudges} passes")
    if all(o.repeated and o.repeated[0] for o in configurations):
        phrases.append("two equal calls bit for bit")
    for inside in anchored[:1]:
        if inside.named:
            count = sum(len(rows.anchors) for rows in inside.rows)
            how = ", found by number" if inside.by_number else ""
            phrases.append(f"values at {count} anchors{how}{only(inside.configuration.backend)}")
            missing += [f"the values inside {phase}" for phase in sorted(phases - {r.phase for r in inside.rows})]
        else:
            missing.append("the values inside: no anchors were found")
        if inside.named and inside.missing:
            such = f"{', such as' if len(inside.missing) > 1 else ':'} {inside.missing[0]}"
            missing.append(f"{_count(len(inside.missing), 'anchor')} that no operation of the graph gives{such}")
    for kind, words in LOOKED:
        check = next((c for c in checks if c.kind == kind), None)
        if check is not None and check.status == "skipped":
            missing.append(f"{words}: {check.detail}")
        elif check is not None and check.status == "passed":
            told = {
                "canary": "which was found", "probes": check.figure.partition(",")[0] + only(matrix.quick),
                "interpreter": check.figure.partition(",")[0],
            }  # fmt: skip
            phrases.append(f"{words}, {told[kind]}")
    missing += [check.missing for check in checks if check.missing]
    return Compared((*filter(None, phrases), f"on {matrix.named(everywhere)}"), tuple(missing))


def _tokens(configurations: Sequence[Outcome], asked: Asked) -> str:
    """Of the configuration that agrees least."""

    def agreed(outcome: Outcome) -> int:
        return sum(len(r.tokens) - len(mismatches(r.tokens, asked.truths[id])) for id, r in outcome.prompts.items())

    total = sum(len(t.tokens) for t in asked.truths.values())
    worst, prompts = min(map(agreed, configurations)), _count(len(asked.truths), "prompt")
    each = {len(t.tokens) for t in asked.truths.values()}
    if worst == total and len(each) == 1 < len(asked.truths):
        (n,) = each
        return f"{n} of {n} tokens after each of {prompts}"
    return f"{worst} of {total} tokens after {prompts}"


def _positions(
    configurations: Sequence[Outcome], asked: Asked, phases: Set[str]
) -> tuple[set[int], set[tuple[int, int]]]:
    """Where decode's head was compared; and prefill's, in which bucket after how many tokens; over all configurations."""
    positions: set[int] = set()
    lengths: set[tuple[int, int]] = set()
    bucket = {s.id: s.bucket for s in asked.streams}
    for outcome in configurations:
        for prompt in (p for p in asked.prompts if p.id in outcome.prompts):
            n, steps = len(prompt.token_ids), len(outcome.prompts[prompt.id].tokens)
            whole = phases - {"decode"}
            if whole:
                lengths.add((prompt.bucket, n))
            if "decode" in phases:  # without a graph of a prompt its last token is decode's as well
                positions |= set(range(n - (not whole), n - 1 + steps))
        for id, streamed in outcome.streams.items():
            positions |= set(range(len(streamed.heads)))
            lengths |= {(bucket[id], n) for n in streamed.prefilled}
    return positions, lengths


def _filled(configurations: Sequence[Outcome], asked: Asked, phases: Collection[str]) -> int:
    """How many slots of the caches were filled and compared."""
    longest = 0
    for outcome in configurations:
        for prompt in (p for p in asked.prompts if p.id in outcome.prompts and outcome.prompts[p.id].slots):
            steps = len(outcome.prompts[prompt.id].tokens) - 1 if "decode" in phases else 0
            longest = max(longest, len(prompt.token_ids) + steps)
        for streamed in outcome.streams.values():
            longest = max(longest, len(streamed.heads) if streamed.slots else 0, *streamed.prefilled, 0)
    return longest


def _ranges(numbers: Iterable[int]) -> str:
    """`0, 3 to 7`"""
    found: list[list[int]] = []
    for n in sorted(numbers):
        if found and found[-1][-1] == n - 1:
            found[-1][1:] = [n]
        else:
            found.append([n])
    return ", ".join(" to ".join(map(str, run)) for run in found)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' if n != 1 else ''}"
