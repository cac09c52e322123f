"""A checkpoint in another precision: a checkpoint directory again, whose weights are exactly what the graphs compute with.

Hugging Face in float32 over such a directory is the truth of a run in that precision, so that rounding is nobody's fault
and every other difference is somebody's. For int8 and int4 a second file holds the integers and the scales.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from hloracle.core.errors import InputError
from hloracle.reference.model.checkpoint import COMPUTE, ENCODED, Checkpoint, encoded_types
from hloracle.reference.model.encodings import ENCODINGS, NARROW, Layout
from hloracle.reference.model.registry import config_json
from hloracle.reference.model.tensor_file import NAMES, write_tensors
from hloracle.reference.model.weights import default_layout, matrices, stored

Given = Mapping[str, tuple[str, Callable[[], Sequence[np.ndarray]]]]

# What a checkpoint directory holds beside its weights.
BESIDE = (".json", ".jinja", ".model", ".txt")
INDEX = "model.safetensors.index.json"


def write_in_precision(base: Checkpoint, directory: Path, precision: str, given: Given | None = None) -> None:
    """Write `base`, rounded to a precision, into an empty directory; one tensor at a time.

    Args:
      given: weights that are in it already: their encoding, and what gives what they are made of.
    """
    given = given or {}
    for path in beside(base.directory):
        shutil.copyfile(path, directory / path.name)
    raw = config_json(directory)
    for key in {"dtype", "torch_dtype"} & raw.keys():  # in which transformers would load it
        raw[key] = {"bf16": "bfloat16", "f16": "float16"}.get(precision, "float32")
    (directory / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
    layout = default_layout(base.config, precision, panels=False)
    of = {
        tensor: layout[weight]
        for weight, tensors in _stored_as(base).items() if weight in layout and weight not in given
        for tensor in tensors
    }  # fmt: skip
    layout |= {weight: encoding for weight, (encoding, _) in given.items()}

    def parts(weight: str) -> Sequence[np.ndarray]:
        return given[weight][1]() if weight in given else ENCODINGS[layout[weight]].encode(base.load(weight))

    def rounded(name: str) -> np.ndarray:
        array = base.tensor(name)
        if name not in of:
            return array
        parts = ENCODINGS[of[name]].encode(array)
        found = ENCODINGS[of[name]].decode(parts)
        if not np.all(np.isfinite(found)):
            largest = np.max(np.abs(array))
            raise InputError(
                f"weight {name} has numbers as large as {largest:g}, which {precision} cannot hold", base.directory,
                "use another precision",
            )  # fmt: skip
        return parts[0] if precision in NARROW else found

    dtype = NAMES[precision] if precision in NARROW else "F32"
    types = {name: (dtype if name in of else "F32", base.shape(name)) for name in base.files}
    write_tensors(directory / "model.safetensors", types, rounded)
    if precision not in NARROW:
        write_encoded(directory, base, precision, layout, parts)


def write_for_compute(base: Checkpoint, directory: Path, compute: str) -> None:
    """Write `base` into an empty directory, with all weights rounded to what it is computed in; one tensor at a time.

    transformers in that type has norms and biases in it, too, so the float64 truth has to be over the same.
    """
    for path in beside(base.directory):
        shutil.copyfile(path, directory / path.name)
    raw = config_json(directory)
    for key in {"dtype", "torch_dtype"} & raw.keys():
        raw[key] = {"bf16": "bfloat16", "f16": "float16"}[compute]
    (directory / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
    (directory / COMPUTE).write_text(json.dumps(compute) + "\n", encoding="utf-8")

    def rounded(name: str) -> np.ndarray:
        array = base.tensor(name)
        (found,) = ENCODINGS[compute].encode(array)
        if not np.all(np.isfinite(found)):
            largest = np.max(np.abs(array))
            what = f"weight {name} has numbers as large as {largest:g}, which {compute} cannot hold"
            raise InputError(what, base.directory, "compute in another type")
        return found

    types = {name: (NAMES[compute], base.shape(name)) for name in base.files}
    write_tensors(directory / "model.safetensors", types, rounded)


def beside(directory: Path) -> list[Path]:
    """What a checkpoint directory holds besides its weights: the config, the tokenizer."""
    return sorted(p for p in directory.iterdir() if p.suffix in BESIDE and p.name != INDEX and p.is_file())


def write_encoded(
    directory: Path, checkpoint: Checkpoint, precision: str, layout: Layout,
    parts: Callable[[str], Sequence[np.ndarray]],
) -> None:  # fmt: skip
    """Write what the encoded weights are made of. `parts` gives those of one weight."""
    kept = lru_cache(maxsize=1)(parts)
    places = {
        argument: (weight, index)
        for weight, encoding in layout.items()
        for index, argument in enumerate(ENCODINGS[encoding].arguments(weight))
    }

    def tensor(argument: str) -> np.ndarray:
        weight, index = places[argument]
        return kept(weight)[index]

    write_tensors(
        directory / ENCODED, encoded_types(checkpoint.config, layout), tensor, metadata={"precision": precision}
    )


def _stored_as(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """Weight of the graphs -> the tensors in the checkpoint's files that hold it."""
    how = stored(checkpoint.config)
    return {
        name: [name] if name in checkpoint.files else [n for i in range(how[name].count) for n in how[name].names(i)]
        for name in matrices(checkpoint.config)
    }  # fmt: skip
