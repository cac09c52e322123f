"""Many sequences at once: they join and leave a session's rows at any step, each with its own length and its own sampling.

No sequence depends on what is beside it: what it gives is what it gives alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hloracle.backends.session import Session
from hloracle.core.errors import InputError
from hloracle.production.sampling import Sampling, make_generator

# Why a generation ended.
LENGTH, STOP, CANCELLED, NOT_NUMBERS = "length", "stop", "cancelled", "the logits are not numbers"


@dataclass(eq=False)
class Generation:
    """A sequence in a batch, from `Batch.join`.

    tokens: all of the sequence, the prompt included. generated: of these, what the last turn gave, a stop token included.
    ended: empty as long as it goes on; then `length`, `stop`, `cancelled` or `the logits are not numbers`.
    row: of the session; None while it waits for one, and once it has left.
    """

    sampling: Sampling
    stop: frozenset[int]
    keep: bool
    tokens: list[int]
    count: int
    generated: list[int] = field(default_factory=list)
    ended: str = ""
    row: int | None = None
    _left: deque[int] = field(default_factory=deque, repr=False)  # what was not given to the graphs yet
    _total: int = 0  # tokens of the turn's prompt and all before it
    _random: np.random.Generator | None = field(default=None, repr=False)

    def cancel(self) -> None:
        """End it: its row is free from the next step on, unless it is kept for another turn."""
        self.ended = self.ended or CANCELLED


class Batch:
    """Generates many sequences over the rows of a session, which is driven by nobody else.

    Args:
      session: of graphs that decode, with extend graphs for the prompts, or prefill graphs where it has one row. Its heads are
        logits where anything is drawn.

    Attributes:
      session, capacity: cache slots of a row.
    """

    def __init__(self, session: Session) -> None:
        self.session, self.capacity = session, session.capacity
        self._waiting: deque[Generation] = deque()
        self._rows: list[Generation | None] = [None] * session.batch
        self._spoiled: set[int] = set()  # rows that hold what is no number
        session.reset()

    def join(
        self, tokens: Sequence[int], count: int = 48, sampling: Sampling | None = None, stop: Sequence[int] = (),
        keep: bool = False,
    ) -> Generation:  # fmt: skip
        """A sequence that begins with this prompt, at the next step at which a row is free.

        Args:
          count: at most so many tokens follow. sampling: how they are drawn; the most likely ones, if not given.
          stop: tokens after which it ends. keep: it keeps its row when it ends, for another turn, until it leaves.

        Raises InputError for a prompt that is empty, does not fit with what follows it, or has a token outside the vocabulary.
        """
        sampling = sampling or Sampling()
        sampling.validate()
        if (sampling.temperature or sampling.repetition_penalty != 1) and self.session.head == "token":
            raise InputError("needs logits", "sampling", "open the batch with head='logits'")
        found = Generation(sampling, frozenset(stop), keep, [], 0, _random=make_generator(sampling.seed))
        self._turn(found, tokens, count)
        self._waiting.append(found)
        return found

    def turn(self, generation: Generation, tokens: Sequence[int], count: int = 48) -> None:
        """Let a sequence that was kept go on with more tokens behind what it has, on the same cache.

        Raises InputError as `join` does, and for a sequence that has not ended, or has left.
        """
        if not generation.ended or generation.row is None:
            what = "has not ended" if not generation.ended else "has left its row"
            raise InputError(what, "generation", "let it end first, and join it with keep=True")
        if generation.ended == NOT_NUMBERS:
            raise InputError(f"ended because {NOT_NUMBERS}", "generation", "let it leave, and join another one")
        self._turn(generation, tokens, count)

    def leave(self, generation: Generation) -> None:
        """Give up the row of a sequence, which ends with that."""
        generation.cancel()
        if generation.row is not None:
            self._rows[generation.row] = None
            generation.row = None

    def _turn(self, generation: Generation, tokens: Sequence[int], count: int) -> None:
        if count < 1:
            raise InputError(f"is {count}", "count", "ask for at least one token")
        whole = len(generation.tokens) + len(tokens)
        self.session.check_tokens(tokens)
        if whole + count - 1 > self.capacity:
            raise InputError(
                f"{whole} tokens and {count} new ones need {whole + count - 1} cache slots, and there are {self.capacity}",
                "prompt", "use a larger capacity, a shorter prompt or fewer tokens",
            )  # fmt: skip
        filled = self.session.positions[generation.row] if generation.row is not None else 0
        generation.tokens = [*generation.tokens, *tokens]
        generation._left = deque(generation.tokens[filled:])
        generation._total, generation.count = whole, count
        generation.generated, generation.ended = [], ""

    def run(self) -> Iterator[tuple[Generation, int]]:
        """Step until every sequence has ended: gives each and its next token, as soon as it is known."""
        while self.busy:
            yield from self.step()

    @property
    def busy(self) -> bool:
        """Whether any sequence goes on, or waits."""
        return bool(self._waiting) or any(g is not None and not g.ended for g in self._rows)

    def step(self) -> list[tuple[Generation, int]]:
        """One chunk of the prompt that has waited longest, and one token in each row that goes on."""
        self._admit()
        found: list[tuple[Generation, int]] = []
        going = [g for g in self._rows if g is not None and not g.ended]
        if prompted := next((g for g in going if len(g._left) > 1 or (g._left and not g.generated)), None):
            found += self._chunk(prompted)
        # Its first token is told before the next one is computed.
        going = [g for g in going if g is not prompted and not g.ended]
        fed = {g.row: g for g in going if g.row is not None and g.generated}
        heads = self.session.step({row: g._left.popleft() for row, g in fed.items()}) if fed else {}
        found += [
            (fed[row], token) for row, head in heads.items() if (token := self._chosen(fed[row], head)) is not None
        ]
        return found

    def _admit(self) -> None:
        for row, generation in enumerate(self._rows):
            if generation is not None and generation.ended and not generation.keep:
                generation.row, self._rows[row] = None, None
        self._waiting = deque(g for g in self._waiting if not g.ended)
        # In the order in which they came, and those whose prompts are under way before those that begin.
        for row in range(self.session.batch):
            if self._rows[row] is None and self._waiting:
                if row in self._spoiled:  # attention multiplies what it does not see by 0
                    self.session.clear(row)
                    self._spoiled.discard(row)
                generation = self._waiting.popleft()
                generation.row, self._rows[row] = row, generation
                self.session.positions[row] = 0

    def _chunk(self, generation: Generation) -> list[tuple[Generation, int]]:
        """Give the graphs as much of a prompt as one of them takes."""
        session, left = self.session, generation._left
        assert generation.row is not None, "it has a row by now"
        if not session.chunks and session.buckets and not session.positions[generation.row]:  # of one row
            head = session.prefill(list(left))
            left.clear()
        elif not session.chunks:
            head = session.decode_step(left.popleft(), generation.row)
        else:
            part = [left.popleft() for _ in range(min(len(left), session.chunks[-1]))]
            head = session.extend(part, None, generation.row, generation._total)
        if left:
            return []
        token = self._chosen(generation, head)
        return [] if token is None else [(generation, token)]

    def _chosen(self, generation: Generation, head: int | np.ndarray) -> int | None:
        """The next token of a sequence, which may end with it; None where there is none."""
        known = bool(np.isfinite(head.max())) if isinstance(head, np.ndarray) else 0 <= head < self.session.vocab_size
        if not known:
            generation.ended = NOT_NUMBERS
            assert generation.row is not None, "it has a row by now"
            self._spoiled.add(generation.row)
            return None
        if isinstance(head, np.ndarray):
            token = generation.sampling.choose(head, generation.tokens, generation._random)
        else:
            token = head
        generation.tokens.append(token)
        generation.generated.append(token)
        generation._left.append(token)
        if token in generation.stop:
            generation.ended = STOP
        elif len(generation.generated) == generation.count:
            generation.ended = LENGTH
        return token
