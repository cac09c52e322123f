"""Writes a safetensors file one tensor at a time, so that no more than one is in memory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from hloracle.core.dtypes import numpy_type

# What safetensors calls the dtypes of an ABI, and what NumPy has for those.
NAMES = {"f32": "F32", "f16": "F16", "bf16": "BF16", "i8": "I8", "ui8": "U8"}
DTYPES = {name: numpy_type(dtype) for dtype, name in NAMES.items()}
# Where data begins at a multiple of this, a runtime may use it as it lies in the file.
ALIGNMENT = 64

Types = Mapping[str, tuple[str, tuple[int, ...]]]


def write_tensors(
    path: Path, types: Types, tensor: Callable[[str], np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write the tensors of these names, dtypes (as safetensors calls them) and shapes, each as it is asked for.

    Those of whole multiples of ALIGNMENT come first, in the order of `types`, so that they are aligned.
    """

    def size(name: str) -> int:
        dtype, shape = types[name]
        return math.prod(shape) * DTYPES[dtype].itemsize

    names = sorted(types, key=lambda name: size(name) % ALIGNMENT != 0)
    header: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    at = 0
    for name in names:
        dtype, shape = types[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size(name)]}
        at += size(name)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            array = np.asarray(tensor(name), order="C")  # ascontiguousarray makes a vector of a scalar
            dtype, shape = types[name]
            if (array.dtype, array.shape) != (DTYPES[dtype], shape):
                raise ValueError(f"{name} is {array.dtype.name} {array.shape}, not {types[name]}")
            file.write(array.data if array.dtype.name != "bfloat16" else array.view(np.uint16).data)
