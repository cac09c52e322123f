"""An inference session: weights resident, caches threaded on the device, one head value read back per step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hloracle.core.abi import Abi, Graph
from hloracle.core.errors import InputError

Buffer = Any  # an array on a backend's device; opaque here


class Executable(Protocol):
    """A loaded graph: buffers in the order of the ABI's arguments -> buffers in the order of its results."""

    def __call__(self, arguments: Sequence[Buffer]) -> Sequence[Buffer]: ...


class Backend(Protocol):
    """A compiler with a device. Compiling and running may raise ToolchainError."""

    name: str

    def load(self, graph: Graph) -> Executable:
        """Compile (or take from the cache) and load."""

    def upload(self, array: np.ndarray) -> Buffer:
        """Copy an array to the device."""

    def download(self, buffer: Buffer) -> np.ndarray:
        """Copy a buffer back."""


@dataclass(frozen=True)
class Capabilities:
    """What a session can do. `head` is `token` or `logits`; `capacity` is in cache slots."""

    backend: str
    head: str
    buckets: tuple[int, ...]
    capacity: int
    vocab_size: int


class Session:
    """Greedy inference over one decode graph and any number of prefill graphs of the same model.

    Args:
      graphs: one decode graph, and prefill graphs with its head and capacity.
      weight: name -> float32 array; each is asked for once, uploaded, and dropped.
    """

    def __init__(self, backend: Backend, graphs: Sequence[Graph], weight: Callable[[str], np.ndarray]) -> None:
        (decode,) = (g for g in graphs if g.abi.phase == "decode")
        self._backend = backend
        self._abi = decode.abi
        self._decode = backend.load(decode)
        self._prefill = {g.abi.bucket: (backend.load(g), g.abi) for g in graphs if g.abi.phase == "prefill"}
        self._weights = {w.name: backend.upload(weight(w.name)) for w in decode.abi.weights}
        cache = decode.abi.arguments[decode.abi.argument("k_cache")]
        self._cache_shape = cache.shape
        self._vocab_size = next(w.shape[0] for w in decode.abi.weights)
        self._arguments = self._with_weights(decode.abi)
        self._prefill_arguments = {bucket: self._with_weights(abi) for bucket, (_, abi) in self._prefill.items()}
        self.position = 0  # cache slots filled
        self._caches: tuple[Buffer, Buffer] | None = None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            backend=self._backend.name,
            head=self._abi.head,
            buckets=tuple(sorted(self._prefill)),
            capacity=self._abi.capacity,
            vocab_size=self._vocab_size,
        )

    def reset(self) -> None:
        """Forget everything: the next decode step is at position 0, with caches of zeros."""
        self.position = 0
        self._caches = None

    def prefill(self, tokens: Sequence[int], bucket: int | None = None) -> int | np.ndarray:
        """Start over with a prompt; returns the head of its last token: a token id, or logits float32 [V].

        Args:
          bucket: which prefill graph to use; the smallest that fits when None.
        """
        self._check_tokens(tokens)
        fitting = [b for b in sorted(self._prefill) if b >= len(tokens)]
        if not fitting:
            largest = max(self._prefill, default=0)
            raise InputError(
                f"has {len(tokens)} tokens, more than the largest bucket of {largest}", "prompt", "shorten it"
            )
        bucket = bucket or fitting[0]
        padded = np.zeros(bucket, np.int32)
        padded[: len(tokens)] = tokens
        execute, _ = self._prefill[bucket]
        inputs = [self._backend.upload(padded), self._backend.upload(np.array(len(tokens), np.int32))]
        head, *caches = execute([*self._prefill_arguments[bucket], *inputs])
        self._caches = (caches[0], caches[1])
        self.position = len(tokens)
        return self._read(head)

    def decode_step(self, token: int) -> int | np.ndarray:
        """Append one token; returns the head after it: the next token id, or logits float32 [V]."""
        self._check_tokens([token])
        if self.position >= self._abi.capacity:
            raise InputError(
                f"all {self._abi.capacity} cache slots are filled", "decode", "use a larger --capacity, or fewer tokens"
            )
        # A cache that was given to a call is gone (donated), so an empty one is made for each sequence.
        k, v = self._caches or (self._zeros(), self._zeros())
        inputs = [self._backend.upload(np.array(n, np.int32)) for n in (token, self.position)]
        self._caches = None
        head, k, v = self._decode([*self._arguments, *inputs, k, v])
        self._caches = (k, v)
        self.position += 1
        return self._read(head)

    def stream_prompt(self, tokens: Sequence[int]) -> int | np.ndarray:
        """What `prefill` does, one decode step per token; needs no prefill graph."""
        self._check_tokens(tokens)
        self.reset()
        for token in tokens:
            head = self.decode_step(token)
        return head

    def caches(self) -> tuple[np.ndarray, np.ndarray]:
        """Copies of k_cache and v_cache, float32 [L, K, position, D]: the filled slots."""
        k, v = self._caches or (self._zeros(), self._zeros())
        return tuple(self._backend.download(c)[:, :, : self.position] for c in (k, v))  # type: ignore[return-value]

    def generate_greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """`count` tokens after the prompt, at temperature 0."""
        return list(self.generate_streaming_greedy(prompt, count))

    def generate_streaming_greedy(
        self, prompt: Sequence[int], count: int, bucket: int | None = None, through_decode: bool = False
    ) -> Iterator[int]:
        """The same tokens, each as soon as it is known.

        Args:
          bucket: which prefill graph to use; the smallest that fits when None.
          through_decode: stream the prompt through the decode graph too, instead of prefill.
        """
        if count < 1:
            raise InputError(f"is {count}", "number of tokens", "ask for at least one")
        if len(prompt) + count - 1 > self._abi.capacity:
            raise InputError(
                f"{len(prompt)} tokens and {count} new ones need {len(prompt) + count - 1} cache slots, "
                f"and there are {self._abi.capacity}",
                "prompt",
                "use a larger --capacity, a shorter prompt or fewer tokens",
            )
        token = greedy(self.stream_prompt(prompt) if through_decode else self.prefill(prompt, bucket))
        yield token
        for _ in range(count - 1):
            token = greedy(self.decode_step(token))
            yield token

    def _with_weights(self, abi: Abi) -> list[Buffer]:
        return [self._weights[w.name] for w in abi.weights]

    def _zeros(self) -> Buffer:
        return self._backend.upload(np.zeros(self._cache_shape, np.float32))

    def _read(self, head: Buffer) -> int | np.ndarray:
        value = self._backend.download(head)
        return int(value) if self._abi.head == "token" else value

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise InputError("is empty", "prompt", "give at least one token")
        # An index outside the table reads other memory on some devices, so it never reaches one.
        # It is also how a device argmax over NaN shows: it answers with the vocabulary's size.
        bad = [t for t in tokens if not 0 <= t < self._vocab_size]
        if bad:
            raise InputError(
                f"token {bad[0]} is outside the vocabulary of {self._vocab_size}", "tokens", "use the model's tokenizer"
            )


def greedy(head: int | np.ndarray) -> int:
    """The token of a head: itself, or the lowest index of the largest logit."""
    return head if isinstance(head, int) else int(np.argmax(head))
