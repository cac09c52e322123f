"""Whose fault it is: a class, decided from the fields of checks over a matrix of sources and backends.

Two references, Hugging Face and the oracle, have to agree before anything is judged by them. Compilers count by family. A
graph that is wrong on every family that ran it is its source's fault; one that is right on one family and wrong on another
is the other compiler's; one that is right on the processor and wrong on a device, by the same compiler, is the device's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hloracle.conformance.checks.check import LEFT_OPEN, TELLING, Check
from hloracle.conformance.checks.of_configurations import is_near_tie, mismatches
from hloracle.conformance.matrix import ORACLE, Configuration, Matrix, graph_of
from hloracle.conformance.runs.configurations import Outcome
from hloracle.conformance.verdict.compared import NOTHING, Compared
from hloracle.reference.huggingface.truth import IN_WORDS, Truth

PASSING = ("conforms", "near-tie")
# Why a configuration has no answer -> the class of that, and its words. Nothing is known then of whether a graph is right.
UNANSWERED = {
    "memory": ("out-of-memory", "Out of memory, so nothing is known of the graph there"),
    "timeout": (
        "timeout",
        "The graph did not end in the time it was given (--timeout), so nothing is known of it there",
    ),
}
# What a configuration has to have passed for a run to pass.
NEEDED = ("tokens", "caches", "repeats")


@dataclass(frozen=True)
class Verdict:
    """What follows from all checks of a run.

    class_: a row of the table in docs/checks.md. prompt, step: where tokens first parted, if they did.
    anchor, operation: the first thing that is wrong. sure: how sure that is, and why; None for a verdict that passes.
    compared, not_compared: in phrases, what the verdict rests on, and what it says nothing of.
    """

    class_: str
    explanation: str
    evidence: tuple[str, ...] = ()
    prompt: str | None = None
    step: int | None = None
    anchor: str | None = None
    operation: str | None = None
    sure: tuple[str, list[str]] | None = None
    fusion_dependent: bool = False
    compared: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the class is one of PASSING, as a near tie is: then the command exits with 0."""
        return self.class_ in PASSING


Finding = tuple[str, str]  # a class, and its explanation


def decide(
    matrix: Matrix, checks: Sequence[Check], outcomes: Sequence[Outcome], truths: dict[str, Truth],
    rests_on: Compared = NOTHING,
) -> Verdict:  # fmt: skip
    """The first class that the evidence supports, nearest to the source first."""
    seen = _Seen(matrix, tuple(checks), tuple(outcomes), truths)
    # A failure is shown by every check that failed; a pass by those that came nearest to failing.
    telling = seen.bad or [c for c in checks if c.about in TELLING]
    evidence = tuple(f"{c.id}: {c.figure or c.status}{f' ({c.detail})' if c.detail else ''}" for c in telling)
    prompt, step = first_parting(outcomes, truths)
    class_, explanation = next(filter(None, (rule(seen) for rule in RULES)), ("", ""))
    if not class_ and step is not None:
        class_, words = (
            "near-tie",
            f"Tokens differ only where the truth's own lead is inside the noise of {seen.computed_in}, and nothing else",
        )
        explanation = rests_on.sentence(words)
    elif not class_:
        class_, explanation = (
            "conforms",
            rests_on.sentence(f"Equal to Hugging Face, but for {seen.noise},"),
        )
    return Verdict(
        class_, explanation, evidence, prompt, step, compared=rests_on.phrases, not_compared=rests_on.missing
    )  # fmt: skip


@dataclass(frozen=True)
class _Seen:
    """The evidence of a run, with what follows from it for each configuration."""

    matrix: Matrix
    checks: tuple[Check, ...]
    outcomes: tuple[Outcome, ...]
    truths: dict[str, Truth]

    @property
    def computed_in(self) -> str:
        """The type whose noise tokens are judged by, in words."""
        computes = {truth.compute for truth in self.truths.values()}
        return next((IN_WORDS[c] for c in computes if c != "f32"), IN_WORDS["f32"])

    @property
    def noise(self) -> str:
        """The noise of that type, in words."""
        in_int8 = any(truth.compute == "int8" for truth in self.truths.values())
        return f"the noise of {self.computed_in}" if in_int8 else f"{self.computed_in}'s noise"

    @cached_property
    def bad(self) -> list[Check]:
        """The checks that failed or could not be made."""
        return [c for c in self.checks if c.bad]

    def of_judged(self, about: str, *kinds: str) -> list[Check]:
        """The bad checks about the judged sources' graphs that read them, or probe them."""
        return [c for c in self.bad if c.about == about and c.source != ORACLE and (not kinds or c.kind in kinds)]

    def of_oracle(self, about: str, *kinds: str) -> list[Check]:
        """The bad checks about the oracle's own graphs, of these kinds or of any."""
        return [c for c in self.bad if c.about == about and c.source == ORACLE and (not kinds or c.kind in kinds)]

    @cached_property
    def broken(self) -> list[Check]:
        """The invariants that the judged graphs break; one that could not be checked is not a broken one."""
        return [c for c in self.of_judged("writing") if c.failed]

    @cached_property
    def reasons(self) -> dict[Configuration, list[Check]]:
        """The bad checks of each configuration that gave an answer."""
        answered = [
            o.configuration for o in self.outcomes if not (o.status == "failed" and o.stage in (*UNANSWERED, "process"))
        ]
        return {one: [c for c in self.bad if c.configuration == one] for one in answered}

    @cached_property
    def wrong(self) -> dict[Configuration, list[Check]]:
        """A check that could not be made says nothing of a graph, unless the graph did not run: it is neither right nor wrong."""
        dead = {o.configuration for o in self.outcomes if o.status == "failed"}
        return {
            one: found for one, found in self.reasons.items()
            if found and (one in dead or any(c.failed for c in found))
        }  # fmt: skip

    @cached_property
    def right(self) -> list[Configuration]:
        """The configurations that gave an answer and have no bad check."""
        return [one for one, found in self.reasons.items() if not found]

    # ---- witnesses

    def witnesses(self, source: str, head: str, among: Iterable[Configuration]) -> list[str]:
        """The families on which a source's graphs of a head are among these: on the processor, or where they ran on a device alone."""
        known = [c for c in self.reasons if (c.source, c.head) == (source, head)]
        found = []
        for family in dict.fromkeys(self.matrix.family(c) for c in known):
            own = [c for c in known if self.matrix.family(c) == family]
            processors = [c for c in own if not self.matrix.on_device(c)]
            if any(c in among for c in processors or own):
                found.append(family)
        return found

    def groups(self) -> list[tuple[str, str]]:
        """The judged sources with their heads: logits before tokens, because a token's graph is also that of its logits."""
        pairs = dict.fromkeys((c.source, c.head) for c in self.reasons if not c.of_oracle)
        return sorted(pairs, key=lambda pair: pair[1] == "token")

    def name(self, configuration: Configuration) -> str:
        return self.matrix[configuration.backend].title


# ---- the rules: each gives a finding, or leaves it to the next one


def _distrusted(seen: _Seen) -> Finding | None:
    gates = [c for c in seen.checks if c.about == "toolchain"]
    if gates and all(c.bad for c in gates):
        return "harness-error", f"The toolchain does not run the simplest graphs{_said(gates[0])}."
    if any(c.kind == "canary" for c in seen.bad):
        return "harness-error", "A fault put in on purpose was not caught: nothing here can be trusted."
    return None


def _said(check: Check) -> str:
    """What a tool said of a check that is bad, as the end of a sentence."""
    return f" ({check.id}: {check.detail})" if check.detail else ""


def _unreadable(seen: _Seen) -> Finding | None:
    if invalid := seen.of_judged("writing", "parse"):
        return "emitter-fault", f"The emitted graph is not valid{_said(invalid[0])}."
    if beyond := seen.of_judged("writing", "supported"):
        return "unsupported", f"No backend here runs what the graph asks for: {beyond[0].detail}."
    if seen.of_oracle("writing", "parse"):
        return "reference-fault", "The oracle's graph is not valid."
    if seen.outcomes and seen.truths:
        return None
    if seen.broken and not seen.outcomes:
        return "emitter-fault", f"The emitted graph breaks an invariant, and was not run: {seen.broken[0].title}."
    return "harness-error", "Nothing was compared."


def _contract(seen: _Seen) -> Finding | None:
    """What a graph does with its state, its arguments and its masks is wrong whatever the reference says."""
    if broken := [c for c in seen.bad if c.about == "contract" and c.failed]:
        first = broken[0].detail.partition("; ")[0]
        return "emitter-fault", f"The graph does not do what its ABI file says of it: {first}."
    return None


def _doubtful_reference(seen: _Seen) -> Finding | None:
    if any(c.about == "reference" for c in seen.bad):
        return "harness-error", "The truth is not reliable: its float32 and float64 disagree."
    return None


def _unanswered(seen: _Seen) -> Finding | None:
    """What is wrong where it was compared is wrong, whatever another configuration did not answer."""
    if any(c.failed for found in seen.wrong.values() for c in found):
        return None
    if died := [o for o in seen.outcomes if o.stage == "process"]:
        return "harness-error", f"The result of {died[0].configuration.id} is missing: {died[0].message}."
    for stage, (class_, words) in UNANSWERED.items():
        if these := [f"{o.configuration.id}: {o.message}" for o in seen.outcomes if o.stage == stage]:
            return class_, f"{words}. {'; '.join(these)}."
    return None


def _oracle(seen: _Seen) -> Finding | None:
    """Hugging Face and the oracle have to agree before anything is judged by them."""
    wrong = seen.witnesses(ORACLE, "logits", seen.wrong)
    if wrong and not seen.witnesses(ORACLE, "logits", seen.right):
        return "reference-fault", "Hugging Face and the JAX oracle differ; nothing can be judged against it."
    if broken := seen.of_oracle("writing"):
        return "reference-fault", f"The oracle's graph breaks an invariant: {broken[0].title}."
    return None


def _refused(seen: _Seen) -> Finding | None:
    judged = [o for o in seen.outcomes if not o.configuration.of_oracle]
    if judged and all(o.status == "failed" and o.configuration in seen.wrong for o in judged) and not seen.broken:
        return "unsupported", f"No backend here compiles and runs the graph: {judged[0].message}."
    return None


def _left_open(seen: _Seen) -> Finding | None:
    """Over a graph that leaves its values open, compilers may differ and each be right."""
    judged = [c for one, found in seen.wrong.items() if not one.of_oracle for c in found if c.failed]
    drawn = seen.of_judged("writing", "random")
    if drawn and any(c.about == "repeats" for c in judged):
        return "emitter-fault", f"The graph draws random numbers, so no two calls are equal: {drawn[0].detail}."
    if judged and (left_open := [c for c in seen.broken if c.kind in LEFT_OPEN]):
        return (
            "emitter-fault",
            f"The values are wrong, and compilers need not agree on such a graph: {left_open[0].detail}.",
        )
    return None


def _source(seen: _Seen) -> Finding | None:
    """A graph that is wrong on every family that ran it, and where the oracle's is not: the fault is its source's."""
    doubtful = seen.witnesses(ORACLE, "logits", seen.wrong)
    for source, head in seen.groups():
        wrong = [f for f in seen.witnesses(source, head, seen.wrong) if f not in doubtful]
        if (
            not wrong
            or seen.witnesses(source, head, seen.right)
            or (head == "token" and (source, "logits") in seen.groups())
        ):
            continue
        # In the order in which the run asks: a compiler that answers in a moment is asked first.
        these = [c for c in seen.wrong if (c.source, c.head) == (source, head) and seen.matrix.family(c) in wrong]
        these.sort(key=lambda c: (seen.matrix.on_device(c), not seen.matrix[c.backend].quick))
        if all(c.about == "repeats" for one in these for c in seen.wrong[one]):
            return (
                "emitter-fault",
                f"Two calls on equal inputs do not give the same values ({these[0].id}), on any compiler.",
            )
        where = " and on ".join(dict.fromkeys(map(seen.name, these))) + (" alike" if len(wrong) > 1 else "")
        if any(Configuration(ORACLE, c.backend) in seen.right for c in these):
            judged = graph_of(source).replace("'s graph", "'s")
            return "emitter-fault", f"The oracle's graph is right and {judged} is wrong on {where}."
        if len(seen.matrix.backends) == 1:
            return "emitter-fault", f"The graph is wrong on {these[0].id}, the only compiler that ran it."
        return "emitter-fault", f"The graph is wrong on {where}."
    return None


def _token(seen: _Seen) -> Finding | None:
    """A graph that picks the token is that of its logits and a choice; where the logits are right, the choice is wrong."""
    for source, head in seen.groups():
        wrong = [c for c in seen.wrong if (c.source, c.head) == (source, head) and head == "token"]
        if seen.witnesses(source, head, seen.right) or all(
            c.about == "repeats" for one in wrong for c in seen.wrong[one]
        ):
            continue
        dead = {o.configuration for o in seen.outcomes if o.status == "failed"}
        if any(replace(c, head="logits") in seen.right and c not in dead for c in wrong):
            return "emitter-fault", "The graph with logits is right, and the one that picks the token is wrong."
    return None


def _meaning(seen: _Seen) -> Finding | None:
    """Compilers give right values, and the graph as it is written does not mean them."""
    if wrong := [c for c in seen.of_judged("meaning") if c.failed]:
        words = "As StableHLO's interpreter evaluates it the graph is wrong, whatever compilers make of it"
        return "emitter-fault", f"{words}: {wrong[0].detail}."
    return None


def _probes(seen: _Seen) -> Finding | None:
    if differ := [c for c in seen.of_judged("probes") if c.failed]:
        words = (
            f"On inputs that no prompt gives the graph does not compute what the oracle names so: {differ[0].detail}."
        )
        return "emitter-fault", words
    return None


def _invariants(seen: _Seen) -> Finding | None:
    if not seen.broken:
        return None
    title = seen.broken[0].title
    where = ", ".join(dict.fromkeys(c.id for c in seen.right if not c.of_oracle))
    if not where:
        return "emitter-fault", f"The emitted graph breaks an invariant: {title}."
    wrong = ", ".join(c.id for c in seen.wrong if not c.of_oracle)
    but = f" and wrong elsewhere ({wrong})" if wrong else ""
    return "invariant-broken", f"The values are right ({where}){but}, and the graph breaks an invariant: {title}."


def _compiler(seen: _Seen) -> Finding | None:
    """Right on one family and wrong on another; or right on the processor and wrong on a device."""
    groups = [*seen.groups(), (ORACLE, "logits")]
    wrong = [(c, r) for pair in groups for c, r in seen.wrong.items() if (c.source, c.head) == pair]
    dead = {o.configuration for o in seen.outcomes if o.status == "failed"}
    # The processor first: what is wrong there too is no device's fault. Wrong values before what does not run, for which
    # nobody is misled. Of the device's, what picks the token last.
    order = sorted(wrong, key=lambda w: (seen.matrix.on_device(w[0]), w[0] in dead, w[0].head == "token"))
    for one, reasons in order:
        on_device, own = seen.matrix.on_device(one), seen.matrix.family(one)
        if all(c.about == "repeats" for c in reasons):
            class_ = "device-fault" if on_device else "compiler-fault"
            return class_, f"Two calls on equal inputs do not give the same values ({one.id})."
        outcome = next(o for o in seen.outcomes if o.configuration == one)
        elsewhere = [c for c in seen.matrix.elsewhere(one) if c in seen.right]
        judged = graph_of(one.source).replace("the", "The", 1)
        at_home = [c for c in elsewhere if seen.matrix.family(c) == own]
        if on_device and at_home and outcome.stage != "compile":
            return (
                "device-fault",
                f"{judged} is right on {seen.name(at_home[0])} cpu and wrong on {seen.name(one)} ({one.id}).",
            )
        if outcome.status == "failed":
            return "compiler-fault", f"A graph that is valid fails on {seen.name(one)} ({one.id})."
        if elsewhere:
            right = seen.name(elsewhere[0])
            return (
                "compiler-fault",
                f"{judged} is right on {right} and wrong on {seen.name(one)} ({one.id}).",
            )
    return None


def _gate(seen: _Seen) -> Finding | None:
    """A backend that does not run the simplest graphs, where another does."""
    broken = [c for c in seen.bad if c.about == "toolchain"]
    if not broken:
        return None
    silent = [c for c in broken if c.error in UNANSWERED]
    if len(silent) == len(broken):  # it had no memory or no time, which accuses nobody
        class_, words = UNANSWERED[silent[0].error]
        return class_, f"{words}. {silent[0].backend}: {silent[0].detail}."
    first = next(c for c in broken if c not in silent)
    return "compiler-fault", f"{first.backend} does not run the simplest graphs{_said(first)}."


def _code(seen: _Seen) -> Finding | None:
    bad = [c for c in seen.bad if c.about == "code"]
    silent = [c for c in bad if c.error in UNANSWERED]
    if silent and len(silent) == len(bad):  # it had no memory or no time, which accuses nobody
        class_, words = UNANSWERED[silent[0].error]
        return class_, f"{words}. {silent[0].detail}."
    if found := [c for c in bad if c not in silent]:
        return "compiler-fault", f"The compiler breaks what it has to keep: {found[0].title}."
    return None


def _left_over(seen: _Seen) -> Finding | None:
    """Nothing is known that explains these; and nothing passes of which something was not compared."""
    if seen.bad:
        what = "failed that no fault explains" if seen.bad[0].failed else "could not be made"
        return "harness-error", f"A check {what}: {seen.bad[0].title}."
    passed = {(c.configuration, c.kind) for c in seen.checks if c.status == "passed"}
    for outcome in seen.outcomes:
        one = outcome.configuration
        # A graph without caches returns none that could be compared.
        wanted = [
            kind for kind in NEEDED if kind != "caches" or any(s.worst for _, s in outcome.slots) or not outcome.slots
        ]
        if any((one, kind) not in passed for kind in wanted) or seen.truths.keys() - outcome.prompts.keys():
            return "harness-error", f"Configuration {one.id} was not compared on every prompt."
    return None


Rule = Callable[[_Seen], Finding | None]
RULES: tuple[Rule, ...] = (
    _distrusted, _contract, _unreadable, _doubtful_reference, _unanswered, _oracle, _refused, _left_open, _source, _probes, _meaning, _invariants,
    _token, _compiler, _gate, _code, _left_over,
)  # fmt: skip


def first_parting(outcomes: Sequence[Outcome], truths: dict[str, Truth]) -> tuple[str | None, int | None]:
    """The prompt and step at which a configuration first chose another token; a real mismatch before a near-tie."""
    partings = [
        (is_near_tie(step, result.tokens[step], truths[name]), step, name)
        for outcome in outcomes
        for name, result in outcome.prompts.items()
        for step in mismatches(result.tokens, truths[name])
    ]
    if not partings:
        return None, None
    _, step, name = min(partings)
    return name, step
