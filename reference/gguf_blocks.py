"""The blocks of a GGUF file's quantized tensors, as they are: Q8_0 is our int8, Q4_0 and Q4_1 are our int4."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hloracle.core.errors import InputError
from hloracle.reference.checkpoint import Checkpoint
from hloracle.reference.encodings import ENCODINGS, GROUP

# GGUF's type -> our encoding, and the bytes of a block of 32.
TYPES = {"Q8_0": ("int8", 34), "Q4_0": ("int4", 18), "Q4_1": ("int4", 20)}

Parts = list[np.ndarray]


def blocks(tensor: Any) -> Parts:
    """What the encoding of a gguf.ReaderTensor is made of; scales and minima become float32, the integers stay.

    A block is a float16 scale, in Q4_1 a float16 minimum, and the integers: in 4 bits, the first half of the 32 in the low
    nibbles. Q4_0's are 8 too large: its minimum is -8 scales, exactly. Source: ggml-quants.c, dequantize_row_q*.
    """
    kind = tensor.tensor_type.name
    encoding, size = TYPES[kind]
    shape = tuple(int(n) for n in reversed(tensor.shape))
    raw = np.ascontiguousarray(tensor.data).view(np.uint8).reshape(*shape[:-1], shape[-1] // GROUP, size)
    scale = raw[..., :2].copy().view(np.float16)[..., 0].astype(np.float32)
    if encoding == "int8":
        half = GROUP // 2
        return [np.ascontiguousarray(raw[..., at : at + half]).view(np.int8) for at in (2, 2 + half)] + [scale]
    if kind == "Q4_0":
        return [np.ascontiguousarray(raw[..., 2:]), scale, -8 * scale]
    return [np.ascontiguousarray(raw[..., 4:]), scale, raw[..., 2:4].copy().view(np.float16)[..., 0].astype(np.float32)]


def blocks_by_weight(
    tensors: dict[str, Any], names: dict[str, tuple[str, ...]], checkpoint: Checkpoint, precision: str, path: Path
) -> dict[str, tuple[str, Callable[[], Parts]]]:
    """Weight -> its encoding, and what gives its blocks, for those that the file holds in this precision or in int8.

    Args:
      tensors: the file's, by name. names: of a weight, the tensors that it is joined from, along the axis before rows.
      checkpoint: the same model in float32.
    """
    found = {}
    for weight, parts in names.items():
        kinds = {tensors[name].tensor_type.name for name in parts}
        encoding = TYPES.get(next(iter(kinds)), ("", 0))[0]
        if len(kinds) == 1 and encoding in (precision, "int8"):
            found[weight] = encoding, _reader(weight, encoding, [tensors[name] for name in parts], checkpoint, path)
    return found


def _reader(weight: str, encoding: str, tensors: list[Any], checkpoint: Checkpoint, path: Path) -> Callable[[], Parts]:
    def read() -> Parts:
        several = [blocks(tensor) for tensor in tensors]
        parts = several[0] if len(several) == 1 else [np.concatenate(p, axis=1) for p in zip(*several, strict=True)]
        floats = checkpoint.load(weight)
        for arranged in (parts, *_turned(parts, checkpoint)):
            if np.array_equal(ENCODINGS[encoding].decode(arranged), floats):
                return arranged
        raise InputError(
            f"{tensors[0].name} is not what transformers makes of it", path, "use the model's Hugging Face checkpoint"
        )

    return read


def _turned(parts: Parts, checkpoint: Checkpoint) -> list[Parts]:
    """Rows as transformers has them where llama.cpp turns neighbours: each head's even rows, then its odd ones."""
    config, N = checkpoint.config, len(parts[0])
    return [
        [part.reshape(heads, -1, 2, *part.shape[1:]).swapaxes(1, 2).reshape(part.shape) for part in parts]
        for heads in dict.fromkeys((config.num_attention_heads, config.num_key_value_heads)) if heads * config.head_dim == N
    ]  # fmt: skip
