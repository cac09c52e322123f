"""An inference session: weights resident, caches threaded on the device, one head value read back per step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hloracle.core import int8
from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.dtypes import numpy_type
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.kept import as_kept, bits, by_position
from hloracle.core.rings import held

IDLE = -1  # the position of a row that takes no token
Buffer = Any  # an array on a backend's device; opaque here


class Executable(Protocol):
    """A loaded graph: buffers in the order of the ABI's arguments -> buffers in the order of its results."""

    def __call__(self, arguments: Sequence[Buffer]) -> Sequence[Buffer]: ...


class Backend(Protocol):
    """A compiler with a device. Compiling and running may raise ToolchainError. What inherits `keep` copies there too.

    A backend may have `facts`, what it says of itself: `name`, `version` and `device`, for a reader; `programs`, what it made
    of each graph that it loaded; and `peak_bytes`, the most memory that a process of its own had.
    """

    name: str

    def load(self, graph: Graph) -> Executable:
        """Compile (or take from the cache) and load."""
        ...

    def upload(self, array: np.ndarray) -> Buffer:
        """Copy an array to the device."""

    def keep(self, array: np.ndarray) -> Buffer:
        """An array that nobody writes to any more, on the device: in place where that can be."""
        return self.upload(array)

    def download(self, buffer: Buffer) -> np.ndarray:
        """Copy a buffer back."""
        ...


@dataclass(frozen=True)
class Call:
    """A loaded graph with its weights in place. Raises ToolchainError where a backend gives another number of results."""

    execute: Executable
    weights: Sequence[Buffer]
    abi: Abi

    @property
    def taps(self) -> list[str]:
        """The names of the results that come after head and caches."""
        return [r.name for r in self.abi.results if r.role == "tap"]

    def __call__(self, *inputs: Buffer) -> Sequence[Buffer]:
        found, count = self.execute([*self.weights, *inputs]), len(self.abi.results)
        if not isinstance(found, Sequence) or len(found) != count:
            given = f"{len(found)} results" if isinstance(found, Sequence) else f"a {type(found).__name__}"
            raise ToolchainError("run", f"the backend gave {given}, and the ABI has {count}")
        return found


class Session:
    """Greedy inference over a decode graph, and any number of graphs that a prompt goes through, of the same model.

    It has the rows of its graphs, each with a sequence of its own; what names none is about row 0, which is all that most graphs
    have. A prompt goes through the smallest prefill graph that holds it, or else in chunks through extend graphs, or else is
    streamed through decode.

    Args:
      graphs: with one head, capacity and batch; without a decode graph, `prefill` is all there is.
      weight: a weight argument's name -> its array; each is asked for once, and kept in place where that can be.

    Attributes:
      capacity: cache slots of a row. batch: the rows. positions: how many slots of each row are filled.
      cache_shapes: of k_cache and of v_cache, of one row [L, K, S, D]: by position, also where graphs keep rings. vocab_size: V.
      kv: `int8` where caches are, else `compute`.
      head: `token` or `logits`, what its steps give.
      buckets: of the graphs that a prompt goes through, the smallest first; chunks: of those that extend a row.
      decodes: whether there is a decode graph; without one, a step is a prefill of all tokens.
    """

    def __init__(self, backend: Backend, graphs: Sequence[Graph], weight: Callable[[str], np.ndarray]) -> None:
        self._abi = graphs[0].abi
        same = _shared(self._abi)
        if any(_shared(g.abi) != same for g in graphs):
            raise ValueError("graphs of one session share their head, capacity, batch, rings and what keys are kept in")
        self._backend = backend
        self.capacity, self.batch, self.vocab_size = self._abi.capacity, self._abi.batch, _vocab_size(self._abi)
        self.cache_type, self.kv = numpy_type(self._abi.compute), self._abi.kv
        self.cache_shapes = self._abi.cache_shapes
        # A dict, to keep the checkpoint's order: weights are read front to back.
        names = dict.fromkeys(w.name for g in graphs for w in g.abi.weights)
        weights = {name: backend.keep(weight(name)) for name in names}
        self._prefill: dict[int, Call] = {}
        self._extend: dict[int, Call] = {}
        self._decode: Call | None = None
        for graph in graphs:
            call = Call(backend.load(graph), [weights[w.name] for w in graph.abi.weights], graph.abi)
            if graph.abi.phase == "decode":
                self._decode = call
            else:
                (self._prefill if graph.abi.phase == "prefill" else self._extend)[graph.abi.bucket] = call
        self.buckets, self.decodes = tuple(sorted({*self._prefill, *self._extend})), self._decode is not None
        self.chunks, self.head = tuple(sorted(self._extend)), self._abi.head
        self._tokens: list[int] = []  # of the prompt
        self.padding = 0  # the token that fills a bucket behind a prompt: any, for it must not show
        self.positions = [0] * self.batch
        self._caches: tuple[Buffer, ...] | None = None  # then what is only handed on
        self._taps: dict[str, Buffer] = {}

    @property
    def position(self) -> int:
        """Cache slots that are filled in row 0; may be set, where what the others hold does not matter."""
        return self.positions[0]

    @position.setter
    def position(self, filled: int) -> None:
        """Take so many slots of row 0 for filled."""
        self.positions[0] = filled

    def reset(self, caches: Sequence[np.ndarray] | None = None) -> None:
        """Forget everything: the next step of each row is at position 0, with caches of zeros.

        Args:
          caches: k_cache and v_cache to begin with instead: no slot of them is filled, so what they hold must not show.
        """
        self._forget()
        if caches is not None:
            kept = as_kept(self._abi, [np.asarray(cache).astype(self.cache_type, copy=False) for cache in caches])
            self._caches = (*map(self._backend.upload, kept), *self._zeros(self._abi.state[len(kept) :]))

    def prefill(self, tokens: Sequence[int], bucket: int | None = None, row: int = 0) -> int | np.ndarray:
        """Start a row over with a prompt; returns the head of its last token: a token id, or logits float32 [V].

        Args:
          bucket: which graph to use; the smallest that fits when None, and of extend graphs else the largest, once and again.
        """
        self.check_tokens(tokens)
        if self.chunks and (bucket or len(tokens)) > max(self._prefill, default=0):
            return self._in_chunks(tokens, bucket, row)
        bucket = self._bucket(len(tokens), bucket)
        padded = np.full(bucket, self.padding, np.int32)
        padded[: len(tokens)] = tokens
        upload = self._backend.upload
        self._forget()
        call = self._prefill[bucket]
        head = self._keep(call, call(upload(padded), upload(np.array(len(tokens), np.int32))))
        self.position, self._tokens = len(tokens), list(tokens)
        return self._read(head)

    def _in_chunks(self, tokens: Sequence[int], bucket: int | None, row: int) -> int | np.ndarray:
        self._check_fits(tokens)
        self._check_rows([row])
        self.positions[row] = 0
        done = 0
        while done < len(tokens):
            size = bucket or next((b for b in self.chunks if b >= len(tokens) - done), self.chunks[-1])
            head = self.extend(tokens[done : done + size], bucket, row, len(tokens))
            done += size
        return head

    def extend(
        self, tokens: Sequence[int], bucket: int | None = None, row: int = 0, total: int | None = None
    ) -> int | np.ndarray:
        """Append tokens to a row, all at once; returns the head after the last of them.

        Args:
          bucket: which extend graph to use; the smallest that fits when None.
          total: how many tokens the whole prompt has, of which these are a part; as many as are filled then, when None. RoPE that
            depends on a sequence's length turns by it.
        """
        self.check_tokens(tokens)
        self._check_rows([row])
        bucket = self._bucket(len(tokens), bucket, self._extend)
        position = self.positions[row]
        filled = position + len(tokens)
        if filled > self.capacity:
            what = f"{filled} tokens need as many cache slots, and there are {self.capacity}"
            raise InputError(what, "prompt", "use a larger --capacity, or fewer tokens")
        padded = np.full(bucket, self.padding, np.int32)
        padded[: len(tokens)] = tokens
        total = max(total or 0, filled)
        given = {"tokens": padded, "length": len(tokens), "position": position, "row": row, "total": total}
        head = self._call(self._extend[bucket], given)
        self.positions[row] = filled
        return self._read(head)

    def decode_step(self, token: int, row: int = 0) -> int | np.ndarray:
        """Append one token; returns the head after it: the next token id, or logits float32 [V]."""
        return self.step({row: token})[row]

    def step(self, tokens: Mapping[int, int]) -> dict[int, int | np.ndarray]:
        """Append one token to each of these rows; returns the head after it in each. Other rows stay as they are."""
        self.check_tokens([*tokens.values()])
        self._check_rows(tokens)
        if self._decode is None:
            return {0: self.prefill([*self._tokens, *tokens.values()])}
        if any(self.positions[row] >= self.capacity for row in tokens):
            what = f"all {self.capacity} cache slots are filled"
            raise InputError(what, "decode", "use a larger --capacity, or fewer tokens")
        if self.batch == 1:
            given: dict[str, Any] = {"token": tokens[0], "position": self.position}
        else:
            given = {
                "token": [tokens.get(row, 0) for row in range(self.batch)],
                "position": [self.positions[row] if row in tokens else IDLE for row in range(self.batch)],
            }
        head = self._call(self._decode, given)
        for row in tokens:
            self.positions[row] += 1
        if self.batch == 1:
            return {0: self._read(head)}
        heads = self._backend.download(head)
        return {row: int(heads[row]) if self._abi.head == "token" else np.array(heads[row]) for row in tokens}

    def stream_prompt(self, tokens: Sequence[int], row: int = 0) -> int | np.ndarray:
        """What `prefill` does, one decode step per token; needs no prefill graph."""
        self.check_tokens(tokens)
        self._check_fits(tokens)
        self._check_rows([row])
        if self.batch == 1:
            self._forget()
        self.positions[row] = 0
        for token in tokens:
            head = self.decode_step(token, row)
        return head

    def caches(self, whole: bool = False, row: int = 0) -> tuple[np.ndarray, ...]:
        """Copies of a row's k_cache and v_cache, [L, K, position, D]: the filled slots; or all S of them.

        float32, which holds what a narrower cache does. None without caches. NaN where a ring has no slot of a position: see `holds`.
        """
        slots = slice(None) if whole else slice(self.positions[row])
        found = by_position(self._abi, self._kept(row), self.positions[row])
        # Copied, because some backends give a view of memory that the next call writes to.
        return tuple(np.array(self._wide(c[:, :, slots])) for c in found)

    def bits(self, row: int = 0) -> tuple[np.ndarray, ...]:
        """What makes a row's caches what they are, bit for bit, with all S slots: uint8 [L, K, S, bytes] of each. See `caches`."""
        return tuple(np.array(b) for b in bits(self._abi, self._kept(row), self.positions[row]))

    def _kept(self, row: int) -> list[np.ndarray]:
        """A row's caches, rings and scales as they are: memory that the next call may write to."""
        state = self._zeros(self._abi.state) if self._caches is None else self._caches
        found = [self._backend.download(c) for c in state[: len(self._abi.caches)]]
        return [c if self.batch == 1 else c[:, row] for c in found]

    def holds(self, row: int = 0) -> np.ndarray:
        """Which positions of a row `caches` has something of, filled or not: bool [L, S]. A ring has no other than its last W ones."""
        layers = self.cache_shapes[0][0] if self.cache_shapes else 0
        return held(self._abi, layers, self.positions[row])

    def held(self, cache: np.ndarray) -> np.ndarray:
        """What the caches make of numbers: float32 again, rounded to what they hold."""
        if self.kv == "int8":
            return int8.rounded(np.asarray(cache, np.float32))
        return self._wide(np.asarray(cache).astype(self.cache_type))

    def _wide(self, cache: np.ndarray) -> np.ndarray:
        return cache.astype(np.float32) if self.cache_type.itemsize < 4 else cache

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raises InputError for no tokens, and for one outside the vocabulary."""
        if not tokens:
            raise InputError("is empty", "prompt", "give at least one token")
        # An index outside the table reads other memory on some devices, so it never reaches one.
        bad = [t for t in tokens if not 0 <= t < self.vocab_size]
        if bad:
            raise InputError(
                f"token {bad[0]} is outside the vocabulary of {self.vocab_size}", "tokens", "use the model's tokenizer"
            )

    def clear(self, row: int) -> None:
        """Fill a row with zeros, where it may hold what is no number: what attention does not see, it multiplies by 0."""
        self._check_rows([row])
        self.positions[row] = 0
        if self._caches is not None:
            count = len(self._abi.caches)
            caches = [np.array(self._backend.download(c)) for c in self._caches[:count]]
            for cache in caches:
                (cache if self.batch == 1 else cache[:, row])[:] = 0
            self._caches = (*map(self._backend.upload, caches), *self._caches[count:])

    def _forget(self) -> None:
        self.positions, self._tokens = [0] * self.batch, []
        self._caches = None
        self._taps = {}

    def _call(self, call: Call, given: Mapping[str, Any]) -> Buffer:
        """Call a graph that takes the state; gives its head."""
        inputs = [self._backend.upload(np.array(given[a.name], np.int32)) for a in call.abi.inputs]
        # A cache that was given to a call is gone (donated), so an empty one is made for each sequence.
        state = self._zeros(self._abi.state) if self._caches is None else self._caches
        positions = self.positions
        self._forget()  # if the call fails, the caches are gone as well
        head = self._keep(call, call(*inputs, *state))
        self.positions = positions
        return head

    def _keep(self, call: Call, results: Sequence[Buffer]) -> Buffer:
        """Keep what a call returns for the next one; gives its head."""
        head, count = results[0], len(self._abi.state)
        self._caches = tuple(results[1 : 1 + count])
        self._taps = dict(zip(call.taps, results[1 + count :], strict=True))
        return head

    def taps(self) -> dict[str, np.ndarray]:
        """Copies of the values at anchors of the last call, if its graph was made to return them."""
        return {name: self._backend.download(value) for name, value in self._taps.items()}

    def generate_streaming_greedy(
        self, prompt: Sequence[int], count: int, through_decode: bool = False
    ) -> Iterator[int]:
        """`count` tokens after the prompt, at temperature 0, each as soon as it is known.

        Args:
          through_decode: stream the prompt through the decode graph too, instead of prefill.
        """
        if count < 1:
            raise InputError(f"is {count}", "number of tokens", "ask for at least one")
        if len(prompt) + count - 1 > self.capacity:
            raise InputError(
                f"{len(prompt)} tokens and {count} new ones need {len(prompt) + count - 1} cache slots, "
                f"and there are {self.capacity}",
                "prompt",
                "use a larger --capacity, a shorter prompt or fewer tokens",
            )
        token = self._chosen(self.stream_prompt(prompt) if through_decode else self.prefill(prompt))
        yield token
        for _ in range(count - 1):
            token = self._chosen(self.decode_step(token))
            yield token

    def _chosen(self, head: int | np.ndarray) -> int:
        token = greedy(head)
        if not 0 <= token < self.vocab_size or (isinstance(head, np.ndarray) and np.isnan(head[token])):
            raise ToolchainError("run", "the logits are not numbers")
        return token

    def _bucket(self, length: int, bucket: int | None, calls: Mapping[int, Call] | None = None) -> int:
        """The bucket that was asked for, or the smallest that fits; InputError when there is none."""
        buckets = sorted(self._prefill if calls is None else calls)
        if not buckets:
            raise InputError("has no prefill graph", "session", "give it one, or stream the prompt through decode")
        if length > buckets[-1]:
            what = f"has {length} tokens, more than the largest bucket of {buckets[-1]}"
            raise InputError(what, "prompt", "shorten it")
        if bucket is None:
            return min(b for b in buckets if b >= length)
        if bucket not in buckets:
            raise InputError("is not one of this session's", f"bucket {bucket}", f"use one of {buckets}")
        if bucket < length:
            raise InputError(f"is too small for {length} tokens", f"bucket {bucket}", "use a larger one")
        return bucket

    def _zeros(self, state: Sequence[Tensor]) -> tuple[Buffer, ...]:
        return tuple(self._backend.upload(np.zeros(t.shape, numpy_type(t.dtype))) for t in state)

    def _read(self, head: Buffer) -> int | np.ndarray:
        value = self._backend.download(head)
        return int(value) if self._abi.head == "token" else value

    def _check_rows(self, rows: Iterable[int]) -> None:
        for row in rows:
            if not 0 <= row < self.batch:
                fix = f"give one from 0 to {self.batch - 1}" if self.batch > 1 else "the session has row 0 alone"
                raise InputError(f"is none of the {self.batch}", f"row {row}", fix)

    def _check_fits(self, tokens: Sequence[int]) -> None:
        if len(tokens) > self.capacity:
            raise InputError(
                f"has {len(tokens)} tokens, more than the {self.capacity} cache slots", "prompt",
                "shorten it, or use a larger --capacity",
            )  # fmt: skip


def greedy(head: int | np.ndarray) -> int:
    """The token of a head: itself, or the lowest index of the largest logit.

    Where a logit is NaN, a device's argmax answers with the vocabulary's size, and numpy's with that logit.
    """
    return head if isinstance(head, int) else int(np.argmax(head))


def _shared(abi: Abi) -> tuple[Any, ...]:
    """What the graphs of one session have in common."""
    return abi.head, abi.capacity, abi.batch, abi.windowed, abi.ring, abi.kv


def _vocab_size(abi: Abi) -> int:
    if abi.head == "logits":
        return abi.results[0].shape[-1]
    for weight in abi.weights:
        if "embed_tokens.weight" in weight.name:
            return weight.shape[0] * (weight.shape[-1] if "panels" in weight.encoding.split(".") else 1)
    raise InputError("has no weight embed_tokens.weight", "graph", "judge one that answers with logits")
