"""A project's file, as it is written: docs/project-file.md has the language. What it says is held to graphs in checks/of_rules.py."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

from typing_extensions import is_typeddict

from hloracle.conformance.matrix import EMITTER
from hloracle.conformance.project.form import ProjectFile
from hloracle.core.errors import InputError
from hloracle.core.formula import names_in
from hloracle.core.given import read_toml
from hloracle.core.shown import quoted
from hloracle.core.typed import problem

NAME = "hloracle.toml"
LARGEST = 2**20  # bytes
FORM = "write it as docs/project-file.md says"
PHASES = ("prefill", "extend", "decode")
# What is counted besides operations of one kind.
COUNTED = ("total", "kinds", "products", "weights")
# The kinds of StableHLO's operations.
OPERATIONS = frozenset(
    "abs add after_all all_gather all_reduce all_to_all and async_done async_start atan2 batch_norm_grad "
    "batch_norm_inference batch_norm_training bitcast_convert broadcast broadcast_in_dim case cbrt ceil cholesky clamp "
    "collective_broadcast collective_permute compare complex composite concatenate constant convert convolution cosine "
    "count_leading_zeros create_token cross-replica-sum custom_call divide dot dot_general dynamic_broadcast_in_dim "
    "dynamic_conv dynamic_gather dynamic_iota dynamic_pad dynamic_reshape dynamic_slice dynamic_update_slice einsum "
    "exponential exponential_minus_one fft floor gather get_dimension_size get_tuple_element if imag infeed iota "
    "is_finite log log_plus_one logistic map maximum minimum multiply negate not optimization_barrier or outfeed pad "
    "partition_id popcnt power real real_dynamic_slice recv reduce reduce_precision reduce_scatter reduce_window "
    "remainder replica_id reshape return reverse rng rng_bit_generator round_nearest_afz round_nearest_even rsqrt scatter "
    "select select_and_scatter send set_dimension_size shift_left shift_right_arithmetic shift_right_logical sign sine "
    "slice sort sqrt subtract tan tanh torch_index_select transpose triangular_solve tuple unary_einsum "
    "uniform_dequantize uniform_quantize while xor".split()
)
# StableHLO's element types, and the types of what is no tensor.
DTYPES = (
    *(f"{sign}{bits}" for sign in ("i", "ui") for bits in (2, 4, 8, 16, 32, 64)), "i1", "bf16", "f16", "f32", "f64", "tf32",
    "f4E2M1FN", "f6E2M3FN", "f6E3M2FN", "f8E3M4", "f8E4M3", "f8E4M3FN", "f8E4M3FNUZ", "f8E4M3B11FNUZ", "f8E5M2",
    "f8E5M2FNUZ", "f8E8M0FNU", "complex<f32>", "complex<f64>", "!stablehlo.token",
)  # fmt: skip
_BOUND = re.compile(r"(<=|>=)?\s*(.*)", re.DOTALL)


@dataclass(frozen=True)
class Bound:
    """How many there have to be: a formula, and `<=` or `>=` where there may be fewer, or more.

    place: the entry that says so, such as `invariants.decode.counts.add`.
    """

    place: str
    relation: str
    formula: str

    def holds(self, count: int, limit: int) -> bool:
        """Whether so many are as many as stated. limit: what the formula gives."""
        return {"": count == limit, "<=": count <= limit, ">=": count >= limit}[self.relation]

    def words(self, limits: object) -> str:
        """What is accepted, for a reader."""
        return {"": "", "<=": "at most ", ">=": "at least "}[self.relation] + str(limits)


@dataclass(frozen=True)
class Rules:
    """What one table states. None, or nothing in a mapping, states nothing.

    phase: whose graphs they are about; empty for all. file: where they stand, as a reader calls it.
    aliasing: result -> argument, each a name or a number. tables: constant tables are RoPE's.
    """

    phase: str = ""
    file: str = NAME
    allowed: tuple[str, ...] | None = None
    forbidden: tuple[str, ...] = ()
    custom_calls: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    largest_constant: Bound | None = None
    aliasing: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, Bound] = field(default_factory=dict)
    tables: bool = False

    @property
    def bounds(self) -> Iterator[Bound]:
        """All that is a formula."""
        yield from self.counts.values()
        if self.largest_constant:
            yield self.largest_constant


@dataclass(frozen=True)
class Project:
    """What a project's file says. model, abi: what its graphs compute, and their ABI files; empty where it does not say."""

    path: Path
    model: str = ""
    abi: tuple[Path, ...] = ()
    rules: tuple[Rules, ...] = ()


def find_project(given: Path | None, folder: Path) -> Project | None:
    """The project's file that is given, or else the one in a folder; None where there is none.

    Raises InputError as `read_project` does.
    """
    path = given or folder / NAME
    return read_project(path) if given or path.is_file() else None


@cache
def bundled(source: str) -> tuple[Rules, ...]:
    """What the graphs of the emitter, or of a source that is counted as another one, are held to: the file beside its code."""
    package = "hloracle.emitters" if source == EMITTER else "hloracle.reference.oracle"
    return read_project(Path(str(resources.files(package) / NAME))).rules


def read_project(path: Path) -> Project:
    """Raises InputError that names the file, the entry in it, and what would fit."""
    raw = read_toml(path, LARGEST, f"name the project's {NAME} with --project", FORM)
    try:
        _known(ProjectFile, raw, "")
        if wrong := problem(ProjectFile, raw):
            raise ValueError(wrong)
        return _project(path, raw)
    except ValueError as error:
        what, *fix = error.args
        raise InputError(what, path, *(fix or [FORM])) from None


# All below raise ValueError: what is wrong and, where there is more to say than FORM, what to do.


def _known(form: Any, raw: Mapping[str, Any], place: str) -> None:
    hints = get_type_hints(form)
    for key, value in raw.items():
        if key not in hints:
            raise ValueError(f"{place or 'the file'} has an unknown key {quoted(key)}", nearest(key, hints))
        if is_typeddict(hints[key]) and isinstance(value, dict):
            _known(hints[key], value, f"{place}.{key}".strip("."))


def nearest(word: str, known: Collection[str]) -> str:
    """What to write in place of an unknown word: the one that is meant, or else one of the first of all."""
    near = difflib.get_close_matches(word[:100], known, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known)[:60])}"


def _project(path: Path, raw: Mapping[str, Any]) -> Project:
    stated = raw.get("invariants", {})
    tables = {"": {k: v for k, v in stated.items() if k not in PHASES}}
    tables |= {phase: stated[phase] for phase in PHASES if phase in stated}
    abi = raw.get("abi", [])
    return Project(
        path,
        _model(raw.get("model", ""), path.parent),
        tuple(path.parent / name for name in ([abi] if isinstance(abi, str) else abi)),
        tuple(_rules(phase, table, path.name) for phase, table in tables.items() if table),
    )


def _model(text: str, folder: Path) -> str:
    """A path from the file's own folder, where there is one or only a path can be meant; else a name."""
    path = os.path.join(folder, os.path.expanduser(text))
    is_path = os.path.exists(path) or "/" in text or text.endswith(".gguf")  # which takes any string
    return path if text and is_path else text


def _rules(phase: str, raw: Mapping[str, Any], file: str) -> Rules:
    place = "invariants" + f".{phase}" * bool(phase)
    operations = raw.get("operations", {})
    if "operations" in raw and len(operations) != 1:
        raise ValueError(f"{place}.operations has {len(operations)} keys", "write `allowed` or `forbidden`")
    for key, kinds in operations.items():
        _all_known(kinds, OPERATIONS, f"{place}.operations.{key}", "operation of StableHLO")
    _all_known(raw.get("dtypes", ()), DTYPES, f"{place}.dtypes", "dtype")
    counts = raw.get("counts", {})
    _all_known(counts, {*COUNTED, *OPERATIONS}, f"{place}.counts", "operation of StableHLO")
    aliasing = {result: str(argument) for result, argument in raw.get("aliasing", {}).items()}
    if twice := [a for a in aliasing.values() if list(aliasing.values()).count(a) > 1]:
        raise ValueError(f"{place}.aliasing names {quoted(twice[0])} twice", "give each argument to one result")
    largest = f"{place}.largest_constant"
    return Rules(
        phase, file,
        allowed=_listed(operations.get("allowed")),
        forbidden=tuple(operations.get("forbidden", ())),
        custom_calls=_listed(raw.get("custom_calls")),
        dtypes=_listed(raw.get("dtypes")),
        largest_constant=_bound(largest, raw["largest_constant"], ("<=",)) if "largest_constant" in raw else None,
        aliasing=aliasing,
        counts={what: _bound(f"{place}.counts.{what}", text) for what, text in counts.items()},
        tables="tables" in raw,
    )  # fmt: skip


def _listed(raw: list[str] | None) -> tuple[str, ...] | None:
    return None if raw is None else tuple(raw)


def _all_known(words: Collection[str], known: Collection[str], place: str, what: str) -> None:
    for word in words:
        if word not in known:
            raise ValueError(f"{place}: {quoted(word)} is no {what}", nearest(word, known))


def _bound(place: str, given: int | str, relations: tuple[str, ...] = ("", "<=", ">=")) -> Bound:
    found = _BOUND.fullmatch(str(given).strip())
    assert found  # which takes any text
    relation, formula = found[1] or relations[0], found[2]
    if relation not in relations:
        raise ValueError(f"{place} is {quoted(str(given))}", "give the most that there may be")
    try:
        names_in(formula)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    return Bound(place, relation, formula)
