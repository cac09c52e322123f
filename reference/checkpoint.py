"""A Hugging Face checkpoint directory: its weights as float32, checked against the config by name and shape.

A checkpoint is data: only safetensors is read, nothing is unpickled, no code from it is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import ml_dtypes  # noqa: F401  (registers bfloat16 with numpy, which safetensors then uses)
import numpy as np
import safetensors

from hloracle.core.errors import InputError
from hloracle.core.store import digest, file_digest
from hloracle.reference.config import Config
from hloracle.reference.registry import FAMILIES, load_config
from hloracle.reference.weights import stored, stored_shapes, weight_shapes

DTYPES = ("BF16", "F16", "F32")
# A weight that transformers recomputes, and old checkpoints still carry.
DERIVED_SUFFIX = ".rotary_emb.inv_freq"


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint. `files` maps the name of each tensor that is needed to the file that holds it."""

    directory: Path
    config: Config
    files: dict[str, Path]

    @cached_property
    def digest(self) -> str:
        """Identifies the model: config and the bytes of every weight file."""
        paths = sorted(set(self.files.values()))
        return digest((self.directory / "config.json").read_bytes(), *(file_digest(p) for p in paths))

    def load(self, name: str) -> np.ndarray:
        """One weight as a contiguous float32 array. Raises InputError if it holds a NaN or an infinity."""
        how = stored(self.config).get(name) if name not in self.files else None
        if how is None:
            return self._tensor(name)
        slices = (np.concatenate([self._tensor(part) for part in how.names(i)]) for i in range(how.count))
        if not how.sliced:
            return next(slices)
        whole = np.empty(weight_shapes(self.config)[name], np.float32)
        for i, slice in enumerate(slices):
            whole[i] = slice
        return whole

    def _tensor(self, name: str) -> np.ndarray:
        path = self.files[name]
        array = _read(path, name)
        # The sum of finite float32 weights is finite in float64, and one pass finds any NaN or infinity.
        with np.errstate(invalid="ignore"):  # inf - inf
            total = np.sum(array, dtype=np.float64)
        if not np.isfinite(total):
            bad = int(np.count_nonzero(~np.isfinite(array)))
            raise InputError(
                f"weight {name} has {bad} values that are not finite", path, "download or convert the model again"
            )
        return array

    def weights(self) -> Iterator[tuple[str, np.ndarray]]:
        """All weights in the order in which graphs take them, one at a time."""
        for name in weight_shapes(self.config):
            yield name, self.load(name)


def open_checkpoint(directory: Path) -> Checkpoint:
    """Open a directory with config.json and one or many safetensors files; names and shapes must match exactly.

    Raises InputError that lists what is missing, extra or misshapen, and in which file.
    """
    config = load_config(directory)
    found: dict[str, tuple[Path, tuple[int, ...]]] = {}
    for path in _weight_files(directory):
        try:
            with safetensors.safe_open(path, "np") as f:
                for name in f.keys():  # noqa: SIM118  (safe_open is not a mapping)
                    part = f.get_slice(name)
                    if name in found:
                        raise InputError(
                            f"weight {name} stands here and in {found[name][0].name}", path, "keep one of the two"
                        )
                    if part.get_dtype() not in DTYPES:
                        raise InputError(
                            f"weight {name} is of dtype {part.get_dtype()}",
                            path,
                            f"use a checkpoint with {', '.join(DTYPES)} weights",
                        )
                    found[name] = path, tuple(part.get_shape())
        except (OSError, safetensors.SafetensorError) as error:
            raise _unreadable(path, error) from None

    wanted = stored_shapes(config, frozenset(found))
    head, embedding = (found.get(name) for name in ("lm_head.weight", "model.embed_tokens.weight"))
    if config.tie_word_embeddings and head and embedding:
        # Some checkpoints store the tied head as well. transformers leaves one that differs untied.
        if not np.array_equal(_read(head[0], "lm_head.weight"), _read(embedding[0], "model.embed_tokens.weight")):
            raise InputError(
                "tie_word_embeddings is true, and lm_head.weight differs from model.embed_tokens.weight",
                directory,
                "set tie_word_embeddings to false, or remove lm_head.weight",
            )
        del found["lm_head.weight"]
    unread = FAMILIES[config.architecture].unread
    found = {
        name: at for name, at in found.items()
        if not name.endswith(DERIVED_SUFFIX) and not (unread and name not in wanted and re.match(unread, name))
    }  # fmt: skip
    fix = "use the weights that belong to this config.json"
    problems = [f"missing {name}" for name in wanted if name not in found]
    problems += [f"extra {name} in {found[name][0].name}" for name in found if name not in wanted]
    problems += [
        f"{name} in {found[name][0].name} is {list(found[name][1])}, not {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name][1] != shape
    ]
    if problems:
        shown = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise InputError(f"weights do not match config.json: {shown}", directory, fix)
    return Checkpoint(directory, config, {name: found[name][0] for name in wanted})


def _read(path: Path, name: str) -> np.ndarray:
    try:
        with safetensors.safe_open(path, "np") as f:
            return np.ascontiguousarray(f.get_tensor(name)).astype(np.float32)
    except (OSError, safetensors.SafetensorError) as error:
        raise _unreadable(path, error) from None


def _weight_files(directory: Path) -> list[Path]:
    # Where both are there, transformers reads the single file.
    single = directory / "model.safetensors"
    if single.is_file():
        return [single]
    index = directory / "model.safetensors.index.json"
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            paths = [directory / name for name in names]
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise InputError(f"is not a valid index ({error!r})", index, "restore the file") from None
        for path in paths:
            if path.parent != directory or not path.is_file():
                raise InputError(f"names {path.name}, which is not there", index, "download the missing file")
        return paths
    raise InputError(
        "has no model.safetensors", directory, "convert the weights to safetensors; other formats are not read"
    )


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(f"is damaged or cut short ({error})", path, "download or convert the file again")
