"""An inference session: weights resident, caches threaded on the device, one head value read back per step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.dtypes import numpy_type
from hloracle.core.errors import InputError, ToolchainError

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
    """A loaded graph with its weights in place; `taps` names the results that come after head and caches.

    Raises ToolchainError where a backend gives another number of results.
    """

    execute: Executable
    weights: Sequence[Buffer]
    taps: Sequence[str]
    results: int

    def __call__(self, *inputs: Buffer) -> Sequence[Buffer]:
        found = self.execute([*self.weights, *inputs])
        if not isinstance(found, Sequence) or len(found) != self.results:
            given = f"{len(found)} results" if isinstance(found, Sequence) else f"a {type(found).__name__}"
            raise ToolchainError("run", f"the backend gave {given}, and the ABI has {self.results}")
        return found


class Session:
    """Greedy inference over a decode graph and any number of prefill graphs of the same model.

    Args:
      graphs: with one head and capacity; without a decode graph, `prefill` is all there is.
      weight: a weight argument's name -> its array; each is asked for once, and kept in place where that can be.

    Attributes:
      capacity: cache slots. position: how many of them are filled. cache_shapes: [L, K, S, D] of k_cache and of v_cache.
      vocab_size: V. buckets: of the prefill graphs, the smallest first. decodes: whether there is a decode graph; without one,
        a step is a prefill of all tokens.
    """

    def __init__(self, backend: Backend, graphs: Sequence[Graph], weight: Callable[[str], np.ndarray]) -> None:
        self._abi = graphs[0].abi
        if any((g.abi.head, g.abi.capacity) != (self._abi.head, self._abi.capacity) for g in graphs):
            raise ValueError("graphs of one session share their head and capacity")
        self._backend = backend
        self.capacity, self.vocab_size = self._abi.capacity, _vocab_size(self._abi)
        self.cache_shapes = [self._abi.results[self._abi.result(name)].shape for name in self._abi.caches]
        # A dict, to keep the checkpoint's order: weights are read front to back.
        names = dict.fromkeys(w.name for g in graphs for w in g.abi.weights)
        weights = {name: backend.keep(weight(name)) for name in names}
        self._prefill: dict[int, Call] = {}
        self._decode: Call | None = None
        for graph in graphs:
            taps = [r.name for r in graph.abi.results if r.role == "tap"]
            call = Call(backend.load(graph), [weights[w.name] for w in graph.abi.weights], taps, len(graph.abi.results))
            if graph.abi.phase == "decode":
                self._decode = call
            else:
                self._prefill[graph.abi.bucket] = call
        self.buckets, self.decodes = tuple(sorted(self._prefill)), self._decode is not None
        self._tokens: list[int] = []  # of the prompt
        self.padding = 0  # the token that fills a bucket behind a prompt: any, for it must not show
        self.position = 0  # cache slots filled
        self._caches: tuple[Buffer, ...] | None = None  # then what is only handed on
        self._taps: dict[str, Buffer] = {}

    def reset(self, caches: Sequence[np.ndarray] | None = None) -> None:
        """Forget everything: the next decode step is at position 0, with caches of zeros.

        Args:
          caches: k_cache and v_cache to begin with instead: no slot of them is filled, so what they hold must not show.
        """
        self.position, self._tokens = 0, []
        self._caches = None
        self._taps = {}
        if caches is not None:
            self._caches = (*map(self._backend.upload, caches), *self._zeros(self._abi.state[len(self.cache_shapes) :]))

    def prefill(self, tokens: Sequence[int], bucket: int | None = None) -> int | np.ndarray:
        """Start over with a prompt; returns the head of its last token: a token id, or logits float32 [V].

        Args:
          bucket: which prefill graph to use; the smallest that fits when None.
        """
        self._check_tokens(tokens)
        bucket = self._bucket(len(tokens), bucket)
        padded = np.full(bucket, self.padding, np.int32)
        padded[: len(tokens)] = tokens
        upload = self._backend.upload
        self.reset()
        call = self._prefill[bucket]
        head = self._keep(call, call(upload(padded), upload(np.array(len(tokens), np.int32))))
        self.position, self._tokens = len(tokens), list(tokens)
        return self._read(head)

    def decode_step(self, token: int) -> int | np.ndarray:
        """Append one token; returns the head after it: the next token id, or logits float32 [V]."""
        self._check_tokens([token])
        if self._decode is None:
            return self.prefill([*self._tokens, token])
        if self.position >= self.capacity:
            raise InputError(
                f"all {self.capacity} cache slots are filled", "decode", "use a larger --capacity, or fewer tokens"
            )
        # A cache that was given to a call is gone (donated), so an empty one is made for each sequence.
        state = self._zeros(self._abi.state) if self._caches is None else self._caches
        position, upload = self.position, self._backend.upload
        self.reset()  # if the call fails, the caches are gone as well
        call = self._decode
        head = self._keep(call, call(upload(np.array(token, np.int32)), upload(np.array(position, np.int32)), *state))
        self.position = position + 1
        return self._read(head)

    def stream_prompt(self, tokens: Sequence[int]) -> int | np.ndarray:
        """What `prefill` does, one decode step per token; needs no prefill graph."""
        self._check_tokens(tokens)
        if len(tokens) > self.capacity:
            raise InputError(
                f"has {len(tokens)} tokens, more than the {self.capacity} cache slots", "prompt",
                "shorten it, or use a larger --capacity",
            )  # fmt: skip
        self.reset()
        for token in tokens:
            head = self.decode_step(token)
        return head

    def caches(self, whole: bool = False) -> tuple[np.ndarray, ...]:
        """Copies of k_cache and v_cache, float32 [L, K, position, D]: the filled slots; or all S of them. None without caches."""
        slots = slice(None) if whole else slice(self.position)
        state = self._zeros(self._abi.state) if self._caches is None else self._caches
        # Copied, because some backends give a view of memory that the next call writes to.
        return tuple(np.array(self._backend.download(c)[:, :, slots]) for c in state[: len(self.cache_shapes)])

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

    def _bucket(self, length: int, bucket: int | None) -> int:
        """The bucket that was asked for, or the smallest that fits; InputError when there is none."""
        if not self.buckets:
            raise InputError("has no prefill graph", "session", "give it one, or stream the prompt through decode")
        if length > self.buckets[-1]:
            what = f"has {length} tokens, more than the largest bucket of {self.buckets[-1]}"
            raise InputError(what, "prompt", "shorten it")
        if bucket is None:
            return min(b for b in self.buckets if b >= length)
        if bucket not in self.buckets:
            raise InputError("is not one of this session's", f"bucket {bucket}", f"use one of {list(self.buckets)}")
        if bucket < length:
            raise InputError(f"is too small for {length} tokens", f"bucket {bucket}", "use a larger one")
        return bucket

    def _zeros(self, state: Sequence[Tensor]) -> tuple[Buffer, ...]:
        return tuple(self._backend.upload(np.zeros(t.shape, numpy_type(t.dtype))) for t in state)

    def _read(self, head: Buffer) -> int | np.ndarray:
        value = self._backend.download(head)
        return int(value) if self._abi.head == "token" else value

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise InputError("is empty", "prompt", "give at least one token")
        # An index outside the table reads other memory on some devices, so it never reaches one.
        bad = [t for t in tokens if not 0 <= t < self.vocab_size]
        if bad:
            raise InputError(
                f"token {bad[0]} is outside the vocabulary of {self.vocab_size}", "tokens", "use the model's tokenizer"
            )


def greedy(head: int | np.ndarray) -> int:
    """The token of a head: itself, or the lowest index of the largest logit.

    Where a logit is NaN, a device's argmax answers with the vocabulary's size, and numpy's with that logit.
    """
    return head if isinstance(head, int) else int(np.argmax(head))


def _vocab_size(abi: Abi) -> int:
    if abi.head == "logits":
        return abi.results[0].shape[0]
    for weight in abi.weights:
        if "embed_tokens.weight" in weight.name:
            return weight.shape[0] * (weight.shape[2] if weight.encoding.endswith("panels") else 1)
    raise InputError("has no weight embed_tokens.weight", "graph", "judge one that answers with logits")
