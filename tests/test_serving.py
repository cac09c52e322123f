"""Many sequences at once: whatever joins, leaves and is cancelled beside it, a sequence gives what it gives alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from models import quick_xla

from hloracle.backends.session import Buffer, Executable, Session
from hloracle.core.abi import Graph
from hloracle.core.errors import InputError
from hloracle.emitters.model import emit
from hloracle.production.sampling import Sampling
from hloracle.production.serving import CANCELLED, LENGTH, NOT_NUMBERS, STOP, Batch, Generation
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint

S, T, B, V = 48, 32, 3, 257
DRAWN = Sampling(temperature=0.9, top_p=0.95, seed=5)


@cache
def checkpoint() -> Checkpoint:
    return open_checkpoint(resolve("tiny-llama"))


@cache
def graphs(batch: int, head: str, prompts: bool) -> tuple[Graph, ...]:
    config = checkpoint().config
    decode = emit(config, "decode", head, S, 0, None, batch)
    return (decode, emit(config, "extend", head, S, T, None, batch)) if prompts else (decode,)


@cache
def session(batch: int = B, head: str = "logits", prompts: bool = True) -> Session:
    return Session(quick_xla(), graphs(batch, head, prompts), checkpoint().load)


def batch(size: int = B, head: str = "logits", prompts: bool = True) -> Batch:
    return Batch(session(size, head, prompts))


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, V, length).tolist()


def drained(batch: Batch) -> None:
    for _ in batch.run():
        pass


@cache
def alone(seed: int, length: int, count: int, sampling: Sampling = Sampling()) -> list[int]:  # noqa: B008  (it is frozen)
    here = batch(1)
    found = here.join(prompt(seed, length), count, sampling)
    drained(here)
    return found.generated


def test_a_sequence_is_what_the_session_generates() -> None:
    """Held to greedy generation by whole prefill, which the rest of the harness holds to Hugging Face."""
    config = checkpoint().config
    whole = Session(
        quick_xla(), [emit(config, "decode", "token", S), emit(config, "prefill", "token", S, T)], checkpoint().load
    )
    assert alone(1, 20, 12) == list(whole.generate_streaming_greedy(prompt(1, 20), 12))


@pytest.mark.parametrize("prompts", [True, False], ids=["chunks", "streamed"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_more_sequences_than_rows(size: int, prompts: bool) -> None:
    here = batch(size, prompts=prompts)
    wanted = {here.join(prompt(i, 3 + 6 * i), 5 + i): (i, 3 + 6 * i, 5 + i) for i in range(6)}
    told: dict[Generation, list[int]] = {g: [] for g in wanted}
    for generation, token in here.run():
        told[generation].append(token)
    for generation, (seed, length, count) in wanted.items():
        assert told[generation] == generation.generated == alone(seed, length, count)
        assert generation.tokens == [*prompt(seed, length), *generation.generated]
        assert generation.ended == LENGTH
    assert not here.busy


def test_what_is_drawn_depends_on_the_seed_alone() -> None:
    here = batch()
    again = [here.join(prompt(2, 9), 10, DRAWN) for _ in range(4)]
    other = here.join(prompt(2, 9), 10, Sampling(temperature=0.9, top_p=0.95, seed=6))
    greedy = here.join(prompt(2, 9), 10)
    drained(here)
    assert [g.generated for g in again] == [alone(2, 9, 10, DRAWN)] * 4
    assert greedy.generated == alone(2, 9, 10)
    assert other.generated != again[0].generated


def test_it_ends_after_a_stop_token() -> None:
    tokens = alone(3, 7, 8)
    at = next(i for i, t in enumerate(tokens) if t not in tokens[:i] and i > 1)
    here = batch()
    found = here.join(prompt(3, 7), 8, stop=[tokens[at], 256])
    beside = here.join(prompt(4, 5), 8)
    drained(here)
    assert (found.generated, found.ended) == (tokens[: at + 1], STOP)
    assert (beside.generated, beside.ended) == (alone(4, 5, 8), LENGTH)


def test_cancelled_at_any_token() -> None:
    for after in range(4):
        here = batch(2)
        kept = [here.join(prompt(5, 40), 6), here.join(prompt(6, 4), 6)]
        last = here.join(prompt(7, 10), 6)
        for _ in range(after):
            here.step()
        kept[0].cancel()
        drained(here)
        assert kept[0].ended == CANCELLED
        assert len(kept[0].generated) < 6
        assert kept[1].generated == alone(6, 4, 6)
        assert last.generated == alone(7, 10, 6), "it took the row that was freed"
    here = batch(1)
    waits = [here.join(prompt(8, 4), 3) for _ in range(2)]
    waits[1].cancel()
    drained(here)
    assert (waits[0].ended, waits[1].ended, waits[1].generated) == (LENGTH, CANCELLED, [])


def test_several_turns_on_one_cache() -> None:
    here = batch()
    found = here.join(prompt(9, 6), 4, keep=True)
    beside = [here.join(prompt(10 + i, 11), 9) for i in range(4)]
    drained(here)
    first = found.generated
    more = prompt(20, 5)
    here.turn(found, more, 7)
    drained(here)
    assert [g.generated for g in beside] == [alone(10 + i, 11, 9) for i in range(4)]
    assert found.generated == _alone([*prompt(9, 6), *first, *more], 7)
    found.cancel()
    row = found.row
    assert row is not None
    here.leave(found)
    assert found.row is None
    assert here.join(prompt(11, 3), 3) is not found
    drained(here)


def _alone(tokens: list[int], count: int) -> list[int]:
    here = batch(1)
    found = here.join(tokens, count)
    drained(here)
    return found.generated


Spoil = Callable[[np.ndarray], np.ndarray]


class Spoiling:
    """XLA, with NaN in one row's logits and caches from one of its decode steps on."""

    name = "xla-cpu"

    def __init__(self, row: int, step: int) -> None:
        self.row, self.step, self.steps = row, step, 0

    def load(self, graph: Graph) -> Executable:
        right = quick_xla().load(graph)

        def execute(arguments: Any) -> Any:
            results = [np.array(quick_xla().download(r)) for r in right(arguments)]
            if graph.abi.phase == "decode":
                self.steps += 1
                if self.steps == self.step:
                    results[0][self.row] = np.nan
                    for cache in results[1:]:
                        cache[:, self.row, :, 20:] = np.nan
            return [quick_xla().upload(r) for r in results]

        return execute

    def upload(self, array: np.ndarray) -> Buffer:
        return quick_xla().upload(array)

    def keep(self, array: np.ndarray) -> Buffer:
        return quick_xla().keep(array)

    def download(self, buffer: Buffer) -> np.ndarray:
        return quick_xla().download(buffer)


def test_what_is_no_number_ends_its_sequence_alone_and_leaves_nothing_behind() -> None:
    here = Batch(Session(Spoiling(0, 3), graphs(2, "logits", True), checkpoint().load))
    found = [here.join(prompt(i, 5), 8) for i in range(3)]
    drained(here)
    assert (found[0].ended, len(found[0].generated)) == (NOT_NUMBERS, 3)
    assert [g.generated for g in found[1:]] == [alone(1, 5, 8), alone(2, 5, 8)], "the third is in the spoiled row"


def test_what_is_refused() -> None:
    here = batch()
    for arguments, line in (
        (([],), "prompt: is empty; give at least one token"),
        (([V],), f"tokens: token {V} is outside the vocabulary of {V}; use the model's tokenizer"),
        (([1], 0), "count: is 0; ask for at least one token"),
        (([1] * 40, 10), "prompt: 40 tokens and 10 new ones need 49 cache slots, and there are 48; "
                         "use a larger capacity, a shorter prompt or fewer tokens"),
        (([1], 3, Sampling(top_p=2)), "--top-p: is 2; give a number from 0 to 1; 1 keeps all tokens"),
    ):  # fmt: skip
        with pytest.raises(InputError) as caught:
            here.join(*arguments)  # type: ignore[arg-type]
        assert str(caught.value) == line
    assert not here.busy
    with pytest.raises(InputError, match="sampling: needs logits"):
        batch(head="token").join([1], 3, DRAWN)
    found = here.join([1], 3)
    with pytest.raises(InputError, match="generation: has not ended"):
        here.turn(found, [1])
    drained(here)
    here.step()
    with pytest.raises(InputError, match="generation: has left its row"):
        here.turn(found, [1])


def schedule(seed: int, size: int) -> None:
    """Joins, leaves, cancels and turns at steps that the seed draws: each sequence gives what it gives alone."""
    rng = np.random.default_rng(seed)
    here, wanted = batch(size), list[tuple[Generation, int, int, int]]()
    for _ in range(60):
        if rng.random() < 0.25:
            name, length, count = (int(rng.integers(n)) for n in (1000, 40, 8))
            wanted.append((here.join(prompt(name, length + 1), count + 1), name, length + 1, count + 1))
        if wanted and rng.random() < 0.05:
            wanted[int(rng.integers(len(wanted)))][0].cancel()
        here.step()
    drained(here)
    assert len(wanted) > 5
    for generation, name, length, count in wanted:
        assert generation.generated == alone(name, length, count)[: len(generation.generated)]
        assert generation.ended == CANCELLED or len(generation.generated) == count


@pytest.mark.parametrize("size", [1, 2, 3])
def test_schedules(size: int) -> None:
    for seed in range(3):
        schedule(seed, size)
