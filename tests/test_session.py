"""The session contract on both backends: what is answered, in which order, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from hloracle.backends.named import make_backend
from hloracle.backends.session import Session, greedy
from hloracle.core.abi import Graph
from hloracle.core.errors import InputError, ToolchainError
from hloracle.emitters.model import emit
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint

BACKENDS = ("iree-cpu", "xla-cpu")
S, SMALL, LARGE, V = 128, 32, 64, 257
RNG = np.random.default_rng(3)
FIVE, FORTY = ([int(t) for t in RNG.integers(0, V, n)] for n in (5, 40))

Make = Callable[..., Session]


@pytest.fixture(scope="module")
def checkpoint(cache: Any) -> Checkpoint:
    return open_checkpoint(resolve("tiny-llama"))


@pytest.fixture(scope="module")
def make(checkpoint: Checkpoint) -> Make:
    """A session of (backend, head), made once; `buckets` and `decodes` say of which graphs."""
    made: dict[tuple[Any, ...], Session] = {}

    def session(
        backend: str, head: str = "logits", buckets: Sequence[int] = (SMALL, LARGE), decodes: bool = True
    ) -> Session:
        key = (backend, head, tuple(buckets), decodes)
        if key not in made:
            graphs = [emit(checkpoint.config, "prefill", head, S, b) for b in buckets]
            if decodes:
                graphs.append(emit(checkpoint.config, "decode", head, S))
            made[key] = Session(make_backend(backend, threads=2), graphs, checkpoint.load)
        made[key].reset()
        return made[key]

    return session


@pytest.fixture(params=BACKENDS)
def logits(request: pytest.FixtureRequest, make: Make) -> Session:
    return make(request.param)


@pytest.fixture(params=BACKENDS)
def token(request: pytest.FixtureRequest, make: Make) -> Session:
    return make(request.param, "token")


def test_what_it_can_do(logits: Session, token: Session) -> None:
    for found in (logits, token):
        assert (found.buckets, found.capacity, found.vocab_size, found.decodes) == ((SMALL, LARGE), S, V, True)


def test_heads(logits: Session, token: Session) -> None:
    head, id = logits.prefill(FIVE), token.prefill(FIVE)
    assert isinstance(head, np.ndarray)
    assert (head.shape, head.dtype) == ((V,), np.float32)
    assert type(id) is int
    assert id == greedy(head) == int(np.argmax(head))
    assert token.decode_step(id) == greedy(logits.decode_step(id))


def test_position(logits: Session) -> None:
    assert logits.position == 0
    logits.prefill(FIVE)
    assert logits.position == 5
    logits.decode_step(1)
    assert logits.position == 6
    assert [c.shape for c in logits.caches()] == [(3, 2, 6, 16)] * 2
    logits.reset()
    assert logits.position == 0
    assert [c.shape for c in logits.caches()] == [(3, 2, 0, 16)] * 2


def test_generate(token: Session, logits: Session) -> None:
    """Streaming or not, through prefill or through decode, from a token or from logits: the same tokens."""
    found = list(token.generate_streaming_greedy(FORTY, 9))
    assert len(found) == 9
    stream = token.generate_streaming_greedy(FORTY, 9)
    assert next(stream) == found[0], "the first token is there before the last"
    assert token.position == 40
    assert list(stream) == found[1:]
    assert list(token.generate_streaming_greedy(FORTY, 9, through_decode=True)) == found
    assert list(logits.generate_streaming_greedy(FORTY, 9)) == found


def test_backends_agree(make: Make) -> None:
    iree, xla = (make(backend) for backend in BACKENDS)
    np.testing.assert_allclose(iree.prefill(FORTY), xla.prefill(FORTY), atol=1e-4)
    for ours, theirs in zip(iree.caches(), xla.caches(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_prefill_equals_streaming(logits: Session) -> None:
    for prompt in (FIVE, FORTY):
        head, caches = logits.prefill(prompt), logits.caches()
        np.testing.assert_allclose(logits.stream_prompt(prompt), head, atol=1e-4)
        for ours, streamed in zip(caches, logits.caches(), strict=True):
            np.testing.assert_allclose(ours, streamed, atol=1e-5)


def test_buckets_agree(logits: Session) -> None:
    small, caches = logits.prefill(FIVE, SMALL), logits.caches()
    np.testing.assert_allclose(logits.prefill(FIVE, LARGE), small, atol=1e-4)
    for one, other in zip(caches, logits.caches(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    np.testing.assert_array_equal(logits.prefill(FIVE), small, "the smallest that fits, when none is named")


def test_a_prompt_is_not_changed_by_another(token: Session) -> None:
    alone = list(token.generate_streaming_greedy(FIVE, 6))
    longer = list(token.generate_streaming_greedy(FORTY, 6))
    assert longer != alone
    assert list(token.generate_streaming_greedy(FIVE, 6)) == alone
    list(token.generate_streaming_greedy(FORTY, 30))
    assert list(token.generate_streaming_greedy(FIVE, 6, through_decode=True)) == alone


def test_caches_are_copies(logits: Session) -> None:
    """What was read stays as it was, although the next step writes to the same memory."""
    logits.prefill(FIVE)
    before = logits.caches()
    kept = [c.copy() for c in before]
    for token in FORTY:
        logits.decode_step(token)
    logits.prefill(FORTY)
    for read, copy in zip(before, kept, strict=True):
        np.testing.assert_array_equal(read, copy)


def test_whole_caches(logits: Session) -> None:
    """All slots, those that nothing filled as well: zeros, but for a prefill's padding."""
    logits.prefill(FIVE)
    filled, whole = logits.caches(), logits.caches(whole=True)
    assert [c.shape for c in whole] == list(logits.cache_shapes) == [(3, 2, S, 16)] * 2
    for some, every in zip(filled, whole, strict=True):
        np.testing.assert_array_equal(every[:, :, :5], some)
        assert not every[:, :, SMALL:].any()
        assert np.isfinite(every).all()
    logits.reset()
    assert not any(c.any() for c in logits.caches(whole=True))


def test_caches_to_begin_with(logits: Session) -> None:
    """What is in a slot that nothing filled does not show, stays where nobody writes, and is not written to itself."""
    given = [RNG.normal(0, 1, shape).astype(np.float32) for shape in logits.cache_shapes]
    kept = [c.copy() for c in given]
    logits.reset()
    expected = [logits.decode_step(t) for t in FIVE]
    logits.reset(given)
    assert logits.position == 0
    for token, head in zip(FIVE, expected, strict=True):
        np.testing.assert_array_equal(logits.decode_step(token), head)
    for before, same, after in zip(kept, given, logits.caches(whole=True), strict=True):
        np.testing.assert_array_equal(same, before)
        np.testing.assert_array_equal(after[:, :, 5:], before[:, :, 5:])
        assert (after[:, :, :5] != before[:, :, :5]).any(axis=-1).all()
    logits.reset()
    assert not any(c.any() for c in logits.caches(whole=True)), "they were for one sequence"


def test_what_fills_a_bucket_does_not_show(logits: Session) -> None:
    head = logits.prefill(FIVE)
    before = logits.caches(whole=True)
    logits.padding = V - 1
    try:
        np.testing.assert_array_equal(logits.prefill(FIVE), head)
    finally:
        logits.padding = 0
    for old, new in zip(before, logits.caches(whole=True), strict=True):
        np.testing.assert_array_equal(new[:, :, :5], old[:, :, :5])
        assert (new[:, :, 5:SMALL] != old[:, :, 5:SMALL]).any(), "the padding was another token"


def test_a_head_that_was_read_stays(logits: Session) -> None:
    first = logits.prefill(FIVE)
    assert isinstance(first, np.ndarray)
    kept = first.copy()
    for token in FORTY:
        logits.decode_step(token)
    np.testing.assert_array_equal(first, kept)


# ---- the edge of the caches


def test_the_last_slot(token: Session) -> None:
    token.stream_prompt((FORTY * 4)[: S - 1])
    assert token.position == S - 1
    assert 0 <= int(token.decode_step(1)) < V
    assert token.position == S
    with pytest.raises(InputError, match="all 128 cache slots are filled"):
        token.decode_step(1)
    assert token.position == S, "and nothing was lost"
    assert token.caches()[0].shape[2] == S


def test_generate_to_the_last_slot(token: Session) -> None:
    assert len(list(token.generate_streaming_greedy(FORTY, S - 40 + 1))) == S - 40 + 1
    assert token.position == S
    with pytest.raises(InputError, match=r"40 tokens and 90 new ones need 129 cache slots, and there are 128"):
        list(token.generate_streaming_greedy(FORTY, S - 40 + 2))


def test_last_slot_is_as_right_as_the_others(make: Make) -> None:
    prompt = (FORTY * 4)[:S]
    iree, xla = (make(backend).stream_prompt(prompt) for backend in BACKENDS)
    np.testing.assert_allclose(iree, xla, atol=1e-4)


# ---- what is refused


def test_prompt_longer_than_the_largest_bucket(token: Session) -> None:
    prompt = (FORTY * 2)[: LARGE + 1]
    with pytest.raises(InputError, match="has 65 tokens, more than the largest bucket of 64"):
        token.prefill(prompt)
    with pytest.raises(InputError, match="65 tokens"):
        list(token.generate_streaming_greedy(prompt, 1))
    assert 0 <= int(token.prefill(prompt[:LARGE])) < V
    assert 0 <= int(token.stream_prompt(prompt)) < V, "decode needs no bucket"


def test_prompt_longer_than_the_caches(token: Session) -> None:
    with pytest.raises(InputError, match="has 129 tokens, more than the 128 cache slots"):
        token.stream_prompt((FORTY * 4)[: S + 1])


@pytest.mark.parametrize("bucket", [1, 16, 33, 128, -32, 0])
def test_no_such_bucket(bucket: int, token: Session) -> None:
    with pytest.raises(InputError, match=f"bucket {bucket}: is not one of this session's; use one of .32, 64."):
        token.prefill(FIVE, bucket)


def test_bucket_that_is_too_small(token: Session) -> None:
    with pytest.raises(InputError, match="bucket 32: is too small for 40 tokens"):
        token.prefill(FORTY, SMALL)


@pytest.mark.parametrize("bad", [-1, V, 10**6])
def test_token_outside_the_vocabulary(bad: int, token: Session) -> None:
    calls: tuple[Callable[[], Any], ...] = (
        lambda: token.prefill([1, bad]),
        lambda: token.decode_step(bad),
        lambda: token.stream_prompt([1, bad]),
        lambda: list(token.generate_streaming_greedy([bad], 2)),
    )
    for call in calls:
        with pytest.raises(InputError, match=f"token {bad} is outside the vocabulary of 257"):
            call()


def test_empty_prompt(token: Session) -> None:
    for call in (token.prefill, token.stream_prompt, lambda prompt: list(token.generate_streaming_greedy(prompt, 1))):
        with pytest.raises(InputError, match="prompt: is empty"):
            call([])


@pytest.mark.parametrize("count", [0, -1])
def test_no_tokens_asked_for(count: int, token: Session) -> None:
    with pytest.raises(InputError, match=f"is {count}"):
        list(token.generate_streaming_greedy(FIVE, count))


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_a_decode_graph(backend: str, make: Make) -> None:
    session = make(backend, "token", (SMALL,), False)
    assert not session.decodes
    first = session.prefill(FIVE)
    assert list(session.generate_streaming_greedy(FIVE, 1)) == [first]
    # A step is a prefill of all tokens then, and a streamed prompt starts over.
    assert session.decode_step(7) == session.prefill([*FIVE, 7])
    assert session.stream_prompt(FIVE) == first
    session.reset()
    assert session.decode_step(FIVE[0]) == session.prefill(FIVE[:1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_a_prefill_graph(backend: str, make: Make) -> None:
    session = make(backend, "token", ())
    assert session.buckets == ()
    with pytest.raises(InputError, match="has no prefill graph"):
        session.prefill(FIVE)
    found = list(session.generate_streaming_greedy(FIVE, 4, through_decode=True))
    assert found == list(make(backend, "token").generate_streaming_greedy(FIVE, 4))


def test_graphs_of_different_models_do_not_mix(checkpoint: Checkpoint) -> None:
    one, other = emit(checkpoint.config, "decode", "token", S), emit(checkpoint.config, "decode", "logits", S)
    with pytest.raises(ValueError, match="share their head, capacity, batch, rings"):
        Session(make_backend("xla-cpu", 1), [one, other], checkpoint.load)


# ---- what can go wrong below


class Numpy:
    """A backend whose graphs are Python functions."""

    name = "numpy"

    def __init__(self, *functions: Callable[..., Any]) -> None:
        self.functions = list(functions)

    def load(self, graph: Graph) -> Callable[..., Any]:
        function = self.functions.pop(0)
        return lambda arguments: function(*arguments[len(graph.abi.weights) :])

    def upload(self, array: np.ndarray) -> np.ndarray:
        return array

    keep = upload

    def download(self, buffer: np.ndarray) -> np.ndarray:
        return buffer


@pytest.mark.parametrize(("head", "answer"), [("token", np.int32(V)), ("logits", np.full(V, np.nan, np.float32))])
def test_generate_refuses_a_head_that_is_no_number(head: str, answer: Any, checkpoint: Checkpoint) -> None:
    session = Session(
        Numpy(lambda token, position, k, v: (answer, k, v)),
        [emit(checkpoint.config, "decode", head, S)],
        lambda name: np.zeros(1, np.float32),
    )
    assert greedy(session.decode_step(1)) in (V, 0)
    with pytest.raises(ToolchainError, match="not numbers"):
        list(session.generate_streaming_greedy(FIVE, 3, through_decode=True))


@pytest.mark.parametrize(("given", "words"), [((1, 2), "2 results"), (None, "a NoneType"), (iter("abc"), "a str_")])
def test_what_a_backend_gives_is_counted(given: Any, words: str, checkpoint: Checkpoint) -> None:
    graph = emit(checkpoint.config, "decode", "logits", S)
    session = Session(Numpy(lambda *inputs: given), [graph], lambda name: np.zeros(1, np.float32))
    with pytest.raises(ToolchainError, match=f"the backend gave {words}.*, and the ABI has 3"):
        session.decode_step(1)


def test_a_call_that_fails_leaves_no_half_of_a_state(checkpoint: Checkpoint) -> None:
    """Its caches were given away: going on with empty ones in the middle of a text would be silently wrong."""
    fails = [False, False, True]

    def step(token: Any, position: Any, k: Any, v: Any) -> Any:
        if fails.pop(0):
            raise ToolchainError("run", "the device is gone")
        return np.int32(int(position)), k, v

    session = Session(
        Numpy(step), [emit(checkpoint.config, "decode", "token", S)], lambda name: np.zeros(1, np.float32)
    )
    assert [session.decode_step(1), session.decode_step(1)] == [0, 1]
    with pytest.raises(ToolchainError, match="the device is gone"):
        session.decode_step(1)
    assert session.position == 0
    fails[:] = [False]
    assert session.decode_step(1) == 0


# ---- caches that are not of one shape


@pytest.fixture(params=BACKENDS)
def latent(request: pytest.FixtureRequest, cache: Any) -> Session:
    """A model whose k_cache holds latents, and whose v_cache the dimensions of its keys that are turned."""
    checkpoint = open_checkpoint(resolve("tiny-deepseek_v3"))
    graphs = [emit(checkpoint.config, "prefill", "logits", 48, 32), emit(checkpoint.config, "decode", "logits", 48)]
    return Session(make_backend(request.param, threads=2), graphs, checkpoint.load)


def test_caches_of_different_widths(latent: Session) -> None:
    """Each starts with zeros of its own shape, is filled by prefill or by decode, and comes back."""
    streamed = latent.stream_prompt(FIVE)  # begins with caches of zeros
    caches = latent.caches()
    assert [c.shape for c in caches] == [(2, 1, 5, 36), (2, 1, 5, 8)]
    assert all(np.abs(c).max(axis=(1, 3)).min() > 0 for c in caches), "each slot of each layer is filled"
    np.testing.assert_allclose(latent.prefill(FIVE), streamed, atol=1e-4)
    for prefilled, one in zip(latent.caches(), caches, strict=True):
        np.testing.assert_allclose(prefilled, one, atol=1e-5)
    latent.decode_step(7)
    for after, before in zip(latent.caches(), caches, strict=True):
        assert after.shape == (*before.shape[:2], 6, before.shape[3])
        np.testing.assert_allclose(after[:, :, :5], before, atol=1e-5)
    latent.reset()
    assert [c.shape for c in latent.caches()] == [(2, 1, 0, 36), (2, 1, 0, 8)]
    # What it had seen is forgotten: the same prompt is answered alike.
    np.testing.assert_allclose(latent.stream_prompt(FIVE), streamed, atol=1e-6)
