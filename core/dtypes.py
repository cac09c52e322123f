"""What NumPy has for the dtypes of an ABI."""

from __future__ import annotations

from typing import Any

import numpy as np

_NUMPY = {
    "f64": "float64", "f32": "float32", "f16": "float16", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
    "ui64": "uint64", "ui32": "uint32", "ui16": "uint16", "ui8": "uint8", "i1": "bool",
}  # fmt: skip


def numpy_type(dtype: str) -> np.dtype[Any]:
    """Of an ABI's dtype. ml_dtypes, which has bfloat16, is imported here: emitting does without."""
    if dtype == "bf16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(_NUMPY[dtype])


def dtype_of(type: np.dtype[Any]) -> str:
    """What an ABI calls a NumPy type."""
    return "bf16" if type.name == "bfloat16" else next(dtype for dtype, name in _NUMPY.items() if name == type.name)


def largest(type: np.dtype[Any]) -> float:
    """The largest finite number of a floating type."""
    import ml_dtypes

    return float(ml_dtypes.finfo(type).max)  # type: ignore[no-untyped-call]
