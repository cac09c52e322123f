"""A Hugging Face checkpoint directory: its weights as float32 or encoded, checked against the config by name and shape.

A checkpoint is data: only safetensors is read, nothing is unpickled, no code from it is run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import ml_dtypes  # noqa: F401  (registers bfloat16 with numpy, which safetensors then uses)
import numpy as np
import safetensors

from hloracle.core.cache import digest, known_digest
from hloracle.core.errors import InputError
from hloracle.core.files import refuse_other_than_utf8
from hloracle.core.given import opened, read_json
from hloracle.core.shown import shown
from hloracle.reference.model.config import Config
from hloracle.reference.model.encodings import (
    ENCODINGS,
    NARROW,
    Layout,
    argument_parts,
    exactly,
    of_precision,
    part_in_panels,
)
from hloracle.reference.model.expressions import is_expression, load, names_of
from hloracle.reference.model.registry import FAMILIES, LARGEST_CONFIG, RESTORE, load_config
from hloracle.reference.model.tensor_file import NAMES
from hloracle.reference.model.weights import (
    default_layout,
    fused,
    in_panels,
    matrices,
    mismatches,
    parts_in,
    stored,
    stored_shapes,
    weight_shapes,
)

DTYPES = ("BF16", "F16", "F32")
LARGEST_INDEX = 64 * 2**20  # bytes; that of DeepSeek V3, of 91,991 tensors, has 9 MB
# What the encoded weights of a quantized checkpoint are made of; transformers reads the float ones, which are the same.
ENCODED = "encoded.safetensors"
QUANTIZED = ("int8", "int4")
# Beside the weights of a directory whose model is to be computed in less than float32: in what, alone.
COMPUTE = "compute.json"
# Beside the config.json of a directory that stands for another one: what differs there, as an Adapted.
ADAPTED = "hloracle.json"
# A weight that transformers recomputes, and old checkpoints still carry.
DERIVED_SUFFIX = ".rotary_emb.inv_freq"


@dataclass(frozen=True)
class Adapted:
    """How the config.json of a checkpoint differs from that which the user named (`reference/fixtures/adapted.py`).

    directory_name: the last part of the path that the user named, or empty. own_type: what that config.json calls the
    model, where it was opened as another architecture; else None. ignored_keys: of that config.json; nothing reads them.
    """

    directory_name: str = ""
    own_type: str | None = None
    ignored_keys: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What a directory's file has of it."""
        return json.dumps(asdict(self)) + "\n"

    @staticmethod
    def of(directory: Path) -> Adapted:
        """What a directory has word of. It is told and decides nothing, so a file of another form is none of ours."""
        try:
            found = read_json(directory / ADAPTED, LARGEST_CONFIG, RESTORE)
            name, own_type, keys = found["directory_name"], found["own_type"], found["ignored_keys"]
        except (InputError, KeyError, TypeError):
            return Adapted()
        words = isinstance(name, str) and isinstance(own_type, str | None) and isinstance(keys, list)
        return Adapted(name, own_type, tuple(keys)) if words and all(isinstance(k, str) for k in keys) else Adapted()


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint.

    files: the name of each tensor that is needed -> the file that holds it. precision, encoded: what a quantized checkpoint
    is in, and how its weights are held beside their floats; empty for any other. adapted: how it differs from what was named.
    compute: what the model is computed in, by graphs and by transformers: all of its weights are of that type then. kv: what graphs of it
    keep keys and values in, one of `abi.KV`.
    """

    directory: Path
    config: Config
    files: dict[str, Path] = field(repr=False)
    precision: str = ""
    encoded: Layout = field(default_factory=dict, repr=False)
    adapted: Adapted = field(default_factory=Adapted, repr=False)
    compute: str = "f32"
    kv: str = "compute"

    @property
    def held_to(self) -> str:
        """Whose noise graphs of it are held to: that of what it is computed in, or `int8`, of float32 with keys and values in that."""
        return "int8" if self.kv == "int8" else self.compute

    @cached_property
    def digest(self) -> str:
        """Identifies the model: config and the bytes of every weight file; and what it is computed in."""
        paths = {*self.files.values()} | ({self.directory / ENCODED} if self.encoded else set())
        less = [self.compute] if self.compute != "f32" else []
        less += [f"kv {self.kv}"] if self.kv != "compute" else []
        return digest((self.directory / "config.json").read_bytes(), *(known_digest(p) for p in sorted(paths)), *less)

    def layout(self, precision: str, panels: bool = True, fuse: bool = False, batch: int = 1) -> Layout:
        """How graphs of a precision hold this checkpoint's weights. Raises InputError for a quantized one that it lacks.

        Args:
          panels: where they fit; for quantized weights, in graphs of several rows only. fuse: see `fused`.
          batch: the rows of the graphs.
        """
        if self.compute != "f32":  # in rows of that type, which are multiplied as they are
            held: Layout = default_layout(self.config, self.compute, panels=False)
        elif precision not in QUANTIZED:
            held = default_layout(self.config, precision, panels)
        elif self.precision == precision:
            held = in_panels(self.config, self.encoded) if panels and batch > 1 else self.encoded
        else:
            is_in = f"is in {self.precision}" if self.precision else f"has no {ENCODED}"
            raise InputError(is_in, self.directory, f"name the model, and --precision {precision} makes one")
        return fused(self.config, held) if fuse else held

    def load(self, name: str) -> np.ndarray:
        """One argument of a graph: a weight as a contiguous float32 array, or what an encoded or fused one is made of.

        Raises InputError if it holds a NaN or an infinity, or is not of the precision that the name says.
        """
        if is_expression(name):
            return load(name, names_of(self.config), self.load)
        weight, encoding, index = argument_parts(name)
        if len(parts := parts_in(weight)) > 1:
            return np.concatenate([self.load(part + name.removeprefix(weight)) for part in parts])
        if not encoding:
            return self._weight(name)
        if self.encoded.get(weight) == encoding:
            found = _get(self.directory / ENCODED, name)
            if found.dtype == np.float32 and not np.all(np.isfinite(found)):
                raise InputError(f"{name} is not finite", self.directory / ENCODED, "convert the model again")
            return found
        if self.encoded.get(weight) == (plain := of_precision(encoding)):
            return part_in_panels(self.load(ENCODINGS[plain].arguments(weight)[index]))
        return exactly(ENCODINGS[encoding], self._weight(weight), weight, self.directory)[index]

    def _weight(self, name: str) -> np.ndarray:
        how = stored(self.config).get(name) if name not in self.files else None
        if how is None:
            return self.tensor(name)
        slices = (np.concatenate([self.tensor(part) for part in how.names(i)]) for i in range(how.count))
        if not how.sliced:
            return next(slices)
        whole = np.empty(weight_shapes(self.config)[name], np.float32)
        for i, slice in enumerate(slices):
            whole[i] = slice
        return whole

    def tensor(self, name: str) -> np.ndarray:
        """What a file holds under this name, contiguous float32. Raises InputError if it holds a NaN or an infinity."""
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

    def shape(self, name: str) -> tuple[int, ...]:
        """Of what a file holds under this name."""
        return stored_shapes(self.config, frozenset(self.files))[name]

    def check(self) -> None:
        """Look at every number once. Raises InputError that names a weight which is not finite, or not what is encoded."""
        for name, array in self.weights():
            if encoding := ENCODINGS.get(self.encoded.get(name, "")):
                parts = [self.load(argument) for argument in encoding.arguments(name)]
                if not np.array_equal(encoding.decode(parts), array):
                    what = f"weight {name} is not what model.safetensors has"
                    raise InputError(what, self.directory / ENCODED, "convert the model again")

    def weights(self) -> Iterator[tuple[str, np.ndarray]]:
        """All weights in the order in which graphs take them, one at a time."""
        for name in weight_shapes(self.config):
            yield name, self.load(name)


def open_checkpoint(directory: Path, config: Config | None = None) -> Checkpoint:
    """Open a directory with config.json and one or many safetensors files; names and shapes must match exactly.

    Args:
      config: what to take in place of what config.json says.

    Raises InputError that lists what is missing, extra or misshapen, and in which file.
    """
    refuse_other_than_utf8(directory)
    config = config or load_config(directory)
    found: dict[str, tuple[Path, tuple[int, ...]]] = {}
    for path in _weight_files(directory):
        for name, (dtype, shape) in _types(path)[0].items():
            if name in found:
                raise InputError(f"weight {name} stands here and in {found[name][0].name}", path, "keep one of the two")
            if dtype not in DTYPES:
                fix = f"use a checkpoint with {', '.join(DTYPES)} weights"
                raise InputError(f"weight {name} is of dtype {dtype}", path, fix)
            found[name] = path, shape

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
    places = {name: f" in {path.name}" for name, (path, _) in found.items()}
    if problems := mismatches(wanted, {name: shape for name, (_, shape) in found.items()}, places):
        fix = "use the weights that belong to this config.json"
        raise InputError(f"weights do not match config.json: {problems}", directory, fix)
    precision, encoded = _open_encoded(directory / ENCODED, config) if (directory / ENCODED).exists() else ("", {})
    files = {name: found[name][0] for name in wanted}
    adapted, compute = Adapted.of(directory), computed_in(directory)
    return Checkpoint(directory, config, files, precision, encoded, adapted, compute)


def computed_in(directory: Path) -> str:
    """What a checkpoint directory says that its model is computed in; float32 where it says nothing."""
    path = directory / COMPUTE
    if not path.exists():
        return "f32"
    found = read_json(path, LARGEST_CONFIG, RESTORE)
    if found not in NARROW:
        raise InputError(f"says {shown(str(found))}", path, f"write one of {', '.join(NARROW)}, or remove it")
    return str(found)


def encoded_types(config: Config, layout: Layout) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name -> dtype and shape of each tensor in a quantized checkpoint's second file."""
    return {
        tensor.name: (NAMES[tensor.dtype], tensor.shape)
        for weight, shape in matrices(config).items() if weight in layout
        for tensor in ENCODINGS[layout[weight]].tensors(weight, shape)
    }  # fmt: skip


def _open_encoded(path: Path, config: Config) -> tuple[str, Layout]:
    """The precision of the second file, and how it holds the weights; every name, dtype and shape in it is looked at."""
    found, metadata = _types(path)
    precision = metadata.get("precision", "")
    if precision not in QUANTIZED:
        raise InputError(f"is of precision {precision!r}", path, "convert the model again")
    layout: dict[str, str] = {}
    for name in found:
        weight, encoding, _ = argument_parts(name)
        if (
            encoding not in QUANTIZED
            or weight not in matrices(config)
            or layout.setdefault(weight, encoding) != encoding
        ):
            raise InputError(f"holds {name}, which this model has not", path, "convert the model again")
        if not ENCODINGS[encoding].fits(matrices(config)[weight]):
            raise InputError(f"holds {name} in groups that do not fit", path, "convert the model again")
    wanted = encoded_types(config, layout)
    for name, type in wanted.items():
        if found.get(name) != type:
            raise InputError(f"{name} is {found.get(name, 'missing')}, not {type}", path, "convert the model again")
    return precision, layout


def _types(path: Path) -> tuple[dict[str, tuple[str, tuple[int, ...]]], dict[str, str]]:
    """Name -> dtype and shape of each tensor in a file; and the file's metadata."""
    try:
        with safetensors.safe_open(path, "np") as f:
            slices = {name: f.get_slice(name) for name in f.keys()}  # noqa: SIM118  (safe_open is not a mapping)
            return {
                name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()
            }, f.metadata() or {}
    except (OSError, safetensors.SafetensorError) as error:
        raise _unreadable(path, error) from None


def _read(path: Path, name: str) -> np.ndarray:
    return _get(path, name).astype(np.float32, copy=False)


def _get(path: Path, name: str) -> np.ndarray:
    try:
        with safetensors.safe_open(path, "np") as f:
            return np.ascontiguousarray(f.get_tensor(name))
    except (OSError, safetensors.SafetensorError) as error:
        raise _unreadable(path, error) from None


def _weight_files(directory: Path) -> list[Path]:
    # Where both are there, transformers reads the single file.
    single = directory / "model.safetensors"
    if single.is_file():
        return [single]
    index = directory / "model.safetensors.index.json"
    if index.exists():
        raw = read_json(index, LARGEST_INDEX, RESTORE)
        places = raw.get("weight_map") if isinstance(raw, dict) else None
        if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
            raise InputError("has no weight_map of file names", index, RESTORE)
        names = sorted(set(places.values()))
        for name in names:
            if os.path.basename(name) != name or not os.path.isfile(directory / name):  # which takes any string
                raise InputError(f"names {shown(name)}, which is not there", index, "download the missing file")
        return [directory / name for name in names]
    raise InputError(
        "has no model.safetensors", directory, "convert the weights to safetensors; other formats are not read"
    )


def _unreadable(path: Path, error: Exception) -> InputError:
    fix = "download or convert the file again"
    with opened(path, fix):  # of one that cannot be opened, safetensors says that it is not there, whatever the reason
        return InputError(f"is damaged or cut short ({error})", path, fix)
