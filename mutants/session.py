"""Sessions that drive right graphs wrongly. No graph is at fault, so nothing may be said of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from hloracle.backends.session import Backend, Buffer, Call, Session
from hloracle.core.abi import Graph
from hloracle.mutants.registry import Right, mutant

PREFILL = "backends.session:Session.prefill"
DECODE = "backends.session:Session.decode_step"
INIT = "backends.session:Session.__init__"

Head = int | np.ndarray

driver = partial(mutant, part="session")


@contextmanager
def given(session: Session, change: Callable[[Any], Any], argument: int, phase: str = "decode") -> Iterator[None]:
    """The graph gets another value than the session means to give it: one argument after the weights."""

    def changed(call: Call) -> Call:
        def execute(arguments: Sequence[Buffer]) -> Sequence[Buffer]:
            place, backend = len(call.weights) + argument, session._backend
            value = np.array(change(backend.download(arguments[place])), np.int32)
            return call.execute([*arguments[:place], backend.upload(value), *arguments[place + 1 :]])

        return dataclasses.replace(call, execute=execute)

    calls = session._prefill if phase == "prefill" else session._decode
    wrong = {bucket: changed(c) for bucket, c in calls.items()} if isinstance(calls, dict) else calls and changed(calls)
    with mock.patch.object(session, f"_{phase}", wrong):
        yield


# ---- position and length


@driver(
    "session-position-next", "session-position", "decode is told position + 1",
    anchor="layers.0.self_attn.q_rope", replaces=DECODE,
)  # fmt: skip
def position_next(right: Right[Head], session: Session, token: int, row: int = 0) -> Head:
    with given(session, lambda position: position + 1, argument=1):
        return right(session, token, row)


@driver(
    "session-position-stays", "session-position", "the position advances at every second decode step only",
    anchor="layers.0.self_attn.q_rope", replaces=DECODE,
)  # fmt: skip
def position_stays(right: Right[Head], session: Session, token: int, row: int = 0) -> Head:
    with given(session, lambda position: position - position % 2, argument=1):
        return right(session, token, row)


@driver("session-length-before", "session-length", "prefill is told length - 1", anchor="norm", replaces=PREFILL)
def length_before(
    right: Right[Head], session: Session, tokens: Sequence[int], bucket: int | None = None, row: int = 0
) -> Head:
    with given(session, lambda length: length - 1, argument=1, phase="prefill"):
        return right(session, tokens, bucket, row)


@driver(
    "session-length-of-bucket", "session-length", "prefill is told the bucket's length", anchor="norm", replaces=PREFILL
)
def length_of_bucket(
    right: Right[Head], session: Session, tokens: Sequence[int], bucket: int | None = None, row: int = 0
) -> Head:
    with given(session, lambda length: session._bucket(len(tokens), bucket), argument=1, phase="prefill"):
        return right(session, tokens, bucket, row)


# ---- tokens


@driver(
    "session-padding-left",
    "session-padding",
    "the prompt is padded on the left",
    anchor="embed_tokens",
    replaces=PREFILL,
)
def padding_left(
    right: Right[Head], session: Session, tokens: Sequence[int], bucket: int | None = None, row: int = 0
) -> Head:
    with given(session, lambda padded: np.roll(padded, -len(tokens)), argument=0, phase="prefill"):
        return right(session, tokens, bucket, row)


@driver(
    "session-bucket-too-small", "session-bucket", "the smallest bucket is taken, and the prompt cut to it",
    anchor="embed_tokens", replaces=PREFILL,
)  # fmt: skip
def bucket_too_small(
    right: Right[Head], session: Session, tokens: Sequence[int], bucket: int | None = None, row: int = 0
) -> Head:
    smallest = min(session.buckets)
    return right(session, tokens[:smallest], smallest, row)


@driver(
    "session-token-of-before", "session-token", "decode is fed the token of the step before",
    anchor="embed_tokens", replaces=DECODE,
)  # fmt: skip
def token_of_before(right: Right[Head], session: Session, token: int, row: int = 0) -> Head:
    before: int = vars(session).get("token_before", token)
    vars(session)["token_before"] = token
    return right(session, before, row)


# ---- caches


@driver(
    "session-caches-of-first-prompt", "session-caches", "a second prompt decodes on the first one's caches",
    anchor="k_cache.0", replaces=PREFILL,
)  # fmt: skip
def caches_of_first_prompt(
    right: Right[Head], session: Session, tokens: Sequence[int], bucket: int | None = None, row: int = 0
) -> Head:
    stale = session._caches
    head = right(session, tokens, bucket, row)
    session._caches = stale or session._caches
    return head


@driver(
    "session-caches-swapped", "session-caches", "decode is given values for keys and keys for values",
    anchor="k_cache.0", replaces=DECODE,
)  # fmt: skip
def caches_swapped(right: Right[Head], session: Session, token: int, row: int = 0) -> Head:
    if session._caches:
        session._caches = session._caches[::-1]
    head = right(session, token, row)
    if session._caches:
        session._caches = session._caches[::-1]
    return head


@driver(
    "session-caches-dropped", "session-caches", "each decode step begins with empty caches",
    anchor="k_cache.0", replaces=DECODE,
)  # fmt: skip
def caches_dropped(right: Right[Head], session: Session, token: int, row: int = 0) -> Head:
    session._caches = None
    return right(session, token, row)


# ---- weights


def bound(id: str, fault: str, anchor: str, names: tuple[str, str]) -> None:
    """Register a session that binds two weights of equal shape in the wrong order."""
    other = {names[0]: names[1], names[1]: names[0]}

    @driver(id, "session-weights", fault, anchor=anchor, replaces=INIT)
    def init(
        right: Right[Any], session: Session, backend: Backend, graphs: Sequence[Graph],
        weight: Callable[[str], np.ndarray],
    ) -> None:  # fmt: skip
        def misnamed(name: str) -> np.ndarray:
            return weight(other.get(name, name))

        right(session, backend, graphs, misnamed)


bound(
    "session-weights-gate-up", "gate and up of layer 1 are bound to each other's place", "layers.1.mlp.gate_proj",
    ("model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight"),
)  # fmt: skip
bound(
    "session-weights-norms", "layer 2's first norm and the final norm are bound to each other's place",
    "layers.2.input_layernorm",
    ("model.layers.2.input_layernorm.weight", "model.norm.weight"),
)  # fmt: skip


# ---- what is read back


@driver(
    "session-head-of-before", "session-head", "the head of the step before is read", anchor="lm_head",
    replaces="backends.session:Session._read",
)  # fmt: skip
def head_of_before(right: Right[Head], session: Session, head: Buffer) -> Head:
    now = right(session, head)
    before: Head = vars(session).get("head_before", now)
    vars(session)["head_before"] = now
    return before
