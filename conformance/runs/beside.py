"""What is asked of graphs of several rows besides: that each row gives what its sequence gives alone.

A session of several rows is asked as one sequence's: the judged one is in a row, and the rows beside it have others of their own.
What reads another row's tokens, position or caches is wrong then, in what is compared of the judged one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hloracle.backends.session import Backend, Session, greedy
from hloracle.core.abi import CACHES, Graph

PIECES = 3  # of a prompt, or one less where two cuts fall together
IDLE = 1 / 4  # how often a row beside the judged one takes no token


def session_of(backend: Backend, graphs: Sequence[Graph], weight: Callable[[str], np.ndarray]) -> Session:
    """A session of these graphs that is asked as one of a single sequence is, however many rows they have."""
    in_parts = any(graph.abi.phase == "extend" for graph in graphs)
    return (Beside if graphs[0].abi.batch > 1 or in_parts else Session)(backend, graphs, weight)


class Beside(Session):
    """The same calls as of a session of one row; what names a row is about that row, as in any session.

    Each sequence is in another row than the one before it.

    Attributes:
      judged: the row of the sequence. before: what that row held before the last prompt, bit for bit: see `Session.bits`.
    """

    def __init__(self, backend: Backend, graphs: Sequence[Graph], weight: Callable[[str], np.ndarray]) -> None:
        super().__init__(backend, graphs, weight)
        self.judged, self._prompts = 0, 0
        self.before: tuple[np.ndarray, ...] = ()
        self._rng = np.random.default_rng(5)

    def reset(self, caches: Sequence[np.ndarray] | None = None) -> None:
        """Begin a sequence in the next row; caches: of that row [L, K, S, D], and those beside it have the negated ones; or all."""
        self.judged = (self.judged + 1) % self.batch
        if caches is None:
            self.positions[self.judged] = 0
            return
        judged = np.arange(self.batch) == self.judged
        if self.batch > 1 and caches[0].shape == self.cache_shapes[0]:
            caches = [np.where(judged[:, None, None, None], c[:, None], -c[:, None]) for c in caches]
        super().reset(caches)
        # Each at another position.
        self.positions = [0 if mine else (7 * row + 3) % self.capacity for row, mine in enumerate(judged)]

    def again(self) -> None:
        """Let what follows be done as after every other call of this: the same pieces, beside the same tokens."""
        self._prompts, self._rng = 1, np.random.default_rng(5)

    def prefill(self, tokens: Sequence[int], bucket: int | None = None, row: int | None = None) -> int | np.ndarray:
        """Start over with a prompt, in the next row: all at once as far as the bucket reaches, and every other time in pieces."""
        if row is not None:
            return super().prefill(tokens, bucket, row)
        self.check_tokens(tokens)
        self._check_fits(tokens)
        self.reset()
        self.before = self.bits()
        bucket, n = self._bucket(1, bucket, self._extend), len(tokens)
        self._prompts += 1
        cuts = {*range(0, n, bucket), n}
        if self._prompts % 2 == 0:
            cuts |= {int(self._rng.integers(n)) for _ in range(PIECES - 1)}
        for start, end in pairwise(sorted(cuts)):
            if self.decodes:
                self._step({})
            head = self.extend(tokens[start:end], bucket, self.judged, n)
        return head

    def decode_step(self, token: int, row: int | None = None) -> int | np.ndarray:
        """Append one token to the judged row, while those beside it take others, or none."""
        return self._step({self.judged: token})[self.judged] if row is None else super().decode_step(token, row)

    def stream_prompt(self, tokens: Sequence[int], row: int | None = None) -> int | np.ndarray:
        """What `prefill` does, one decode step per token."""
        if row is not None:
            return super().stream_prompt(tokens, row)
        self.check_tokens(tokens)
        self._check_fits(tokens)
        self.reset()
        for token in tokens:
            head = self.decode_step(token)
        return head

    def caches(self, whole: bool = False, row: int | None = None) -> tuple[np.ndarray, ...]:
        """Copies of the judged row's."""
        return super().caches(whole, self.judged if row is None else row)

    def bits(self, row: int | None = None) -> tuple[np.ndarray, ...]:
        """What makes the judged row's what they are."""
        return super().bits(self.judged if row is None else row)

    def holds(self, row: int | None = None) -> np.ndarray:
        """Which positions the judged row's have."""
        return super().holds(self.judged if row is None else row)

    def _step(self, judged: dict[int, int]) -> dict[int, int | np.ndarray]:
        """A step of the judged row, or of none, with the rows beside it."""
        for row in range(self.batch):
            if row == self.judged or self._rng.random() < IDLE:
                continue
            if self.positions[row] == self.capacity:
                self.positions[row] = 0
            judged[row] = int(self._rng.integers(self.vocab_size))
        return self.step(judged) if judged else {}


@dataclass(frozen=True)
class Rows:
    """What rows give beside one another.

    tokens: by the id of a sequence, what followed each of its tokens while all sequences were in the batch at once.
    apart: the first thing by which a row depends on what is in another one, in words; empty where nothing does.
    """

    tokens: dict[str, list[int]]
    apart: str


Fed = tuple[Sequence[int], Sequence[int]]  # a prompt, and what follows it


def together(session: Session, sequences: Mapping[str, Fed], bucket: int) -> dict[str, list[int]]:
    """All sequences at once, as many as there are rows, and the next one as soon as a row is free.

    Each joins at another step than the ones beside it, its prompt in chunks.

    Args:
      sequences: by id. bucket: of the graph that prompts go through.
    Returns what followed the prompt and each of the other tokens, by id.
    """
    waiting, running = list(sequences), dict[int, str]()
    found: dict[str, list[int]] = {id: [] for id in sequences}
    while waiting or running:
        free = next((row for row in range(session.batch) if row not in running), None)
        if waiting and free is not None:
            id = waiting.pop(0)
            running[free] = id
            found[id].append(greedy(_prompt(session, sequences[id][0], bucket, free)))
        ended = [row for row, id in running.items() if len(found[id]) > len(sequences[id][1])]
        for row in ended:
            del running[row]
        fed = {row: sequences[id][1][len(found[id]) - 1] for row, id in running.items()}
        for row, head in (session.step(fed) if fed else {}).items():
            found[running[row]].append(greedy(head))
    return found


def _prompt(session: Session, tokens: Sequence[int], bucket: int, row: int) -> int | np.ndarray:
    return session.prefill(tokens, bucket, row) if session.buckets else session.stream_prompt(tokens, row)


def apart(session: Session, fed: Fed, bucket: int) -> str:
    """By what the first row depends on what is in the others, in words: it runs beside idle rows, and beside rows full of NaN.

    Both have to give the same bits, and an idle row has to stay as it is.
    """
    tokens, following = fed
    rng = np.random.default_rng(13)
    shapes = ((s[0], session.batch, *s[1:]) for s in session.cache_shapes)
    junk = [session.held(rng.normal(0, 1, shape).astype(np.float32)) for shape in shapes]
    rounds: list[list[np.ndarray]] = []
    for noisy in (False, True):
        held = [array.copy() for array in junk]
        for array in held if noisy else ():
            array[:, 1:] = np.nan
        session.reset(held)
        session.positions = [0] * session.batch  # so that what a row holds is looked at alike before and after
        before = {row: session.bits(row) for row in range(1, session.batch)}
        heads = [np.asarray(_prompt(session, tokens, bucket, 0))]
        for token in following:
            session.positions[1:] = [session.capacity // 2] * (session.batch - 1)
            others = {row: (token + row) % session.vocab_size for row in range(1, session.batch)} if noisy else {}
            heads.append(np.asarray(session.step({0: token, **others})[0]))
        rounds.append([*heads, *session.bits(0)])
        session.positions[1:] = [0] * (session.batch - 1)
        for row in range(1, session.batch) if not noisy else ():
            for part, mine, old in zip(CACHES, session.bits(row), before[row], strict=True):
                if mine.tobytes() != old.tobytes():
                    return f"row {row} is idle, and its {part} changes"
    for i, (one, other) in enumerate(zip(*rounds, strict=True)):
        if np.ascontiguousarray(one).tobytes() != np.ascontiguousarray(other).tobytes():
            what = f"the head after {len(tokens) + i} tokens" if i <= len(following) else CACHES[i - len(following) - 1]
            return f"{what} of row 0 is another one where the other rows hold NaN"
    return ""
