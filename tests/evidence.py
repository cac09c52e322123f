"""Evidence by hand: a truth, and outcomes of configurations that are right or wrong in a chosen place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from hloracle.conformance.checks.check import KINDS, Check, Question, Status
from hloracle.conformance.checks.of_configurations import configuration_checks, truth_check
from hloracle.conformance.context import Context
from hloracle.conformance.evidence import Evidence, Run
from hloracle.conformance.graphs.sources import Emitter
from hloracle.conformance.matrix import Configuration, Matrix, Witness
from hloracle.conformance.questions.prompts import Prompt
from hloracle.conformance.questions.questions import Asked
from hloracle.conformance.runs.configurations import Outcome, PromptOutcome
from hloracle.conformance.runs.returned import Slots, Stream, Streamed
from hloracle.conformance.settings import Settings
from hloracle.conformance.verdict.compared import Compared, compared
from hloracle.conformance.verdict.verdict import Verdict, decide
from hloracle.core.abi import Abi, Tensor
from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.reference.huggingface.truth import Truth

# Those of a run with the bundled emitter: its graphs that pick the token run on the first backend alone.
CONFIGURATIONS = (
    Configuration("emitter", "iree-cpu", "token"),
    *(Configuration(source, backend) for backend in ("iree-cpu", "xla-cpu") for source in ("emitter", "oracle")),
)
ON_CUDA = (
    Configuration("emitter", "iree-cuda", "token"),
    *(
        Configuration(source, backend)
        for backend in ("iree-cuda", "iree-cpu", "xla-cpu")
        for source in ("emitter", "oracle")
    ),
)
WITNESSES = (
    Witness("iree-cuda", "iree", "IREE cuda", device=True),
    Witness("iree-cpu", "iree", "IREE"),
    Witness("xla-cpu", "xla", "XLA", quick=True),
)
MATRIX = Matrix(WITNESSES)
V, CAPACITY = 8, 16
FLOOR = 2.0**-20
CACHES = ("k_cache.0", "k_cache.1", "v_cache.0", "v_cache.1")
LONG, SHORT = Prompt("first", 32, "", None, tuple(range(9))), Prompt("second", 64, "", None, (1, 2, 3))
# As a small model has them: as long as the cache, with every token.
STREAM = Stream("stream", tuple(range(V)) * 2, (1, 4, 7), every_step=True, bucket=32)


def abi(phase: str, bucket: int = 32, *taps: str) -> Abi:
    """Of a graph with logits, as far as it says what there is to compare."""
    inputs = {"prefill": [Tensor("tokens", "tokens", (bucket,), "i32")]}.get(phase, [])
    caches = [Tensor(part, part, (2, 1, CAPACITY, 4), "f32") for part in ("k_cache", "v_cache")]
    more = [Tensor("tap", tap, (4,), "f32") for tap in taps]
    return Abi(phase, tuple(inputs), (Tensor("logits", "logits", (V,), "f32"), *caches, *more))


# Of the two buckets of the prompts.
ABIS = (abi("prefill"), abi("prefill", 64), abi("decode"))


def truth(tokens: tuple[int, ...] = (3, 1, 4), lead: float = 1.0, floor: float = FLOOR) -> Truth:
    """The token's logit is 10, that of the next higher token `lead` less, the others 0; one is `floor` off in float32.

    So are the caches, whose largest entry is 1.
    """
    exact = np.zeros((len(tokens), V), np.float32)
    for step, token in enumerate(tokens):
        exact[step, token], exact[step, token + 1] = 10, 10 - lead
    logits = exact.copy()
    logits[0, 0] += floor
    return Truth(list(tokens), logits, exact, reused=False, caches=floor)


TRUTHS = {LONG.id: truth(), SHORT.id: truth((5, 2, 6))}
CLOSE = {**TRUTHS, "close@32": truth(lead=4 * FLOOR)}


def asked(
    truths: dict[str, Truth] = TRUTHS, streams: Sequence[Stream] = (STREAM,), prompts: Sequence[Prompt] = (LONG, SHORT)
) -> Asked:
    known = {p.id: p for p in (*prompts, Prompt("close", 32, "", None, (4, 3, 2)))}
    return Asked([known[id] for id in truths], truths, {}, list(streams))


def slots(slot: int = 0) -> Slots:
    """Every layer half a floor off at that slot."""
    return Slots(dict.fromkeys(CACHES, (0.5, slot, None)))


def outcome(configuration: Configuration, truths: dict[str, Truth] = TRUTHS, streams: Sequence[Stream] = ()) -> Outcome:
    """A configuration that is right everywhere."""
    prompts = {}
    for id, t in truths.items():
        errors = [t.floor] * len(t.tokens) if configuration.head == "logits" else []
        after = (slots(),) if len(t.tokens) == 1 else (slots(), slots(3))
        prompts[id] = PromptOutcome(list(t.tokens), errors, 0.1, after)
    floor = 1.0 if configuration.head == "logits" else 0.0
    streamed = {
        s.id: Streamed([floor] * len(s.tokens), dict.fromkeys(s.lengths, floor), slots(), slots(), 0.5) for s in streams
    }
    return Outcome(configuration, "ran", prompts, seconds=1.0, streams=streamed, repeated=(True, 0.0))


def check(
    id: str, title: str, status: Status, figure: str = "", limit: str = "", detail: str = "", **more: str
) -> Check:
    """A check by the id that a record has of it."""
    about, _, kind = id.rpartition(".")
    source, backend, *head = (
        f"{about}/".split("/")[: 2 + about.count("/token")]
        if KINDS[kind] not in ("toolchain", "reference", "harness")
        else ("", "")
    )
    return Check(
        kind,
        title,
        status,
        figure,
        limit,
        detail,
        source,
        backend,
        "".join(head) or ("logits" if backend and KINDS[kind] != "code" else ""),
        **more,
    )


def matrix_of(outcomes: Sequence[Outcome]) -> Matrix:
    """The backends of these, in their order."""
    names = {o.configuration.backend for o in outcomes}
    return Matrix(tuple(w for w in WITNESSES if w.name in names))


Change = Callable[[Outcome], Outcome]


def right(found: Outcome) -> Outcome:
    return found


def both(*changes: Change) -> Change:
    """One after the other."""

    def change(found: Outcome) -> Outcome:
        for one in changes:
            found = one(found)
        return found

    return change


def on_prompt(id: str = LONG.id, **fields: Any) -> Change:
    """Replaces fields of one prompt's outcome."""

    def change(found: Outcome) -> Outcome:
        prompt = dataclasses.replace(found.prompts[id], **fields)
        return dataclasses.replace(found, prompts={**found.prompts, id: prompt})

    return change


def on_stream(id: str = STREAM.id, **fields: Any) -> Change:
    """Replaces fields of what came of a stream."""

    def change(found: Outcome) -> Outcome:
        stream = dataclasses.replace(found.streams[id], **fields)
        return dataclasses.replace(found, streams={**found.streams, id: stream})

    return change


def on_slots(
    id: str = LONG.id, call: int = 0, anchor: str = "", slot: int = 0, error: float = 99.0, stayed: str = ""
) -> Change:  # fmt: skip
    """Changes what was found of the caches: after a prompt (0) or its steps (1); of a stream's decode (0) or prefill (1)."""
    wrong = None if error <= ANCHOR_FLOORS else slot

    def changed(old: Slots) -> Slots:
        return Slots(old.worst | ({anchor: (error, slot, wrong)} if anchor else {}), stayed or old.stayed)

    def change(found: Outcome) -> Outcome:
        if id in found.streams:
            field = ("slots", "prefilled_slots")[call]
            return on_stream(id, **{field: changed(getattr(found.streams[id], field))})(found)
        after = found.prompts[id].slots
        return on_prompt(id, slots=(*after[:call], changed(after[call]), *after[call + 1 :]))(found)

    return change


def not_repeated(apart: float = FLOOR) -> Change:
    return lambda found: dataclasses.replace(found, repeated=(False, apart))


def failed(stage: str) -> Change:
    return lambda found: Outcome(
        found.configuration, "failed", stage=stage, message=f"{stage} failed: the tool's words"
    )


WRONG_TOKEN = on_prompt(tokens=[3, 2, 4])
WRONG_LOGITS = on_prompt(errors=[FLOOR, 9 * FLOOR, FLOOR])
WRONG_SLOT = on_slots(anchor="v_cache.1", slot=2)
WRONG_POSITION = on_stream(heads=[1.0] * 9 + [99.0] * 7)
# Each thing that a configuration is held to, wrong alone.
WRONG: dict[str, Change] = {
    "tokens": WRONG_TOKEN,
    "logits": WRONG_LOGITS,
    "slot": WRONG_SLOT,
    "slot of a step": on_slots(call=1, anchor="k_cache.0", slot=9),
    "slot that must stay": on_slots(call=1, stayed="slot 4 of k_cache.0 changed"),
    "position": WRONG_POSITION,
    "length": on_stream(prefilled={1: 1.0, 4: 99.0, 7: 1.0}),
    "streamed slot": on_slots(STREAM.id, 0, "v_cache.0", 15),
    "prefilled slot": on_slots(STREAM.id, 1, "v_cache.0", 6),
    "apart": on_stream(apart=99.0),
    "second call": not_repeated(),
}


def gathered(
    changes: dict[str, Change] | None = None, truths: dict[str, Truth] = TRUTHS, configurations: Sequence[Configuration] = CONFIGURATIONS,
    streaming: Collection[Configuration] | None = None,
) -> tuple[list[Check], list[Outcome]]:  # fmt: skip
    """The checks and outcomes of a run whose configurations named in `changes` are changed.

    Args:
      streaming: the configurations that are given STREAM; all when None, as of a small model.
    """
    outcomes, checks = (
        [],
        [Question("gate-zero", "gate zero", backend="iree-cpu").judged(True, 1, 1), truth_check(truths)],
    )
    for configuration in configurations:
        given = [STREAM] if streaming is None or configuration in streaming else []
        found = (changes or {}).get(configuration.id, right)(outcome(configuration, truths, given))
        outcomes.append(found)
        checks += configuration_checks(found, truths, given)
    return checks, outcomes


def verdict(
    changes: dict[str, Change] | None = None, truths: dict[str, Truth] = TRUTHS, configurations: Sequence[Configuration] = CONFIGURATIONS,
    more: Sequence[Check] = (), streaming: Collection[Configuration] | None = None,
) -> Verdict:  # fmt: skip
    checks, outcomes = gathered(changes, truths, configurations, streaming)
    return decide(matrix_of(outcomes), [*more, *checks], outcomes, truths, rests_on(checks, outcomes, truths))


def rests_on(checks: Sequence[Check], outcomes: Sequence[Outcome], truths: dict[str, Truth] = TRUTHS) -> Compared:
    judged = {o.configuration.source for o in outcomes if not o.configuration.of_oracle}
    return compared(matrix_of(outcomes), outcomes, checks, asked(truths), dict.fromkeys(judged, ABIS))


def a_run(
    evidence: Evidence | None = None,
    settings: Settings | None = None,
    context: Context | None = None,
    model: Any = None,
    sources: Sequence[Any] = (Emitter(),),
) -> Run:
    """A run of the bundled emitter on IREE and XLA, that has gathered this evidence."""
    return Run(settings or Settings("m"), context or Context(), tuple(sources), model, evidence or Evidence())
