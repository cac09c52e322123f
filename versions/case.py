"""What is tried on a compiler: a graph, what it takes, and what is right.

Imports nothing heavy: graphs are parsed in a process of their own, because MLIR's parser crashes on what is nested too deep.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from typing_extensions import TypedDict

from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.child import ChildDied, Report, run_in_child
from hloracle.core.dtypes import dtype_of, numpy_type
from hloracle.core.errors import InputError
from hloracle.core.given import read_json, refuse_special
from hloracle.core.shown import shown
from hloracle.core.typed import problem

if TYPE_CHECKING:  # it imports JAX
    from hloracle.foreign.signature import Port

GRAPH, CASE = "subgraph.mlir", "reproducer.json"
LARGEST_CASE = 2**20  # bytes
PARSE_SECONDS = 300
FIX = "name a reproducer's folder, or a graph's file"
# Of a flag in a reproducer, which may be a stranger's: IREE's compiler runs, loads or writes to a file that a flag names.
FLAG = re.compile(r"--[\w-]+(=[\w.,:+=-]*)?", re.ASCII)


class CaseFile(TypedDict):
    """A reproducer's reproducer.json. inputs, expected: names of files in the folder."""

    function: str
    inputs: list[str]
    expected: str | None
    result: int
    tolerance: float
    flags: list[str]


@dataclass(frozen=True)
class Case:
    """A graph with what it takes and what is right.

    inputs: `.npy` files of its arguments, in order; none where it is only compiled. expected: the file of the right result,
    where it is known. result: which of the graph's results that is. tolerance: how far from it is still right.
    """

    graph: Graph
    inputs: tuple[Path, ...] = ()
    expected: Path | None = None
    result: int = 0
    tolerance: float = 0.0


@dataclass(frozen=True)
class Given:
    """What a person says of a graph's file. function: its only one, where none is named."""

    inputs: tuple[Path, ...] = ()
    expected: Path | None = None
    tolerance: float = 0.0
    result: int = 0
    function: str = ""


def read_case(path: Path, given: Given) -> Case:
    """A reproducer's folder, or a graph's file with what is given of it.

    Raises InputError for what cannot be used: before anything is compiled, so that it is taken for no compiler's fault.
    """
    flags: tuple[str, ...] = ()
    if path.is_dir():
        if given != Given():
            raise InputError(
                "says itself what it takes and what is right", path, "leave out --inputs, --expected and such"
            )
        path, given, flags = _of_folder(path)
    try:
        text, function, arguments, results = run_in_child(_parsed, path, given.function, timeout=PARSE_SECONDS).value
    except ChildDied as died:
        raise InputError(
            f"cannot be parsed ({died})", path, "look whether it is nested too deep, or too large"
        ) from None
    abi = Abi("", arguments, results, function)
    case = Case(
        Graph(path.stem, text, abi, flags), given.inputs, given.expected, given.result, given.tolerance
    )  # fmt: skip
    _check(case)
    return case


def _of_folder(folder: Path) -> tuple[Path, Given, tuple[str, ...]]:
    """The graph of a reproducer, what is given of it, and its own flags of IREE's compiler."""
    file = folder / CASE
    found = read_json(file, LARGEST_CASE, FIX)
    if wrong := problem(CaseFile, found):
        raise InputError(f"is not a reproducer's ({wrong})", file, FIX)
    case = cast(CaseFile, found)
    if outside := next((n for n in [*case["inputs"], case["expected"] or ""] if Path(n).name != n), None):
        raise InputError(f"names {outside!r}, which is not in its folder", file, "name files of the folder")
    if odd := next((flag for flag in case["flags"] if not FLAG.fullmatch(flag)), None):
        raise InputError(f"has a flag that may name a file ({shown(odd)})", file, "look at its reproduce.sh")
    if libraries := sorted(folder.glob("*.so")):
        what = f"calls functions of {libraries[0].name}, which is not loaded here"
        raise InputError(what, folder, "run its reproduce.sh")
    given = Given(
        tuple(folder / name for name in case["inputs"]),
        folder / case["expected"] if case["expected"] else None,
        case["tolerance"],
        case["result"],
        case["function"],
    )
    return folder / GRAPH, given, tuple(case["flags"])


def _parsed(
    report: Report, path: Path, function: str
) -> tuple[str, str, tuple[Tensor, ...], tuple[Tensor, ...]]:  # fmt: skip
    """A graph's text, its function, and what that takes and gives."""
    from hloracle.foreign.opening import signatures_of
    from hloracle.foreign.reading import read_text

    text = read_text(path)
    signatures = signatures_of(text, path)
    names = [function] if function else list(signatures) if len(signatures) == 1 else ["main"]
    if names[0] not in signatures:
        has = ", ".join(f"@{name}" for name in signatures) or "no function that can be called"
        raise InputError(f"has no function @{names[0]}; it has {has}", path, "name one with --function")
    found = signatures[names[0]]

    def tensors(ports: Sequence[Port], role: str) -> tuple[Tensor, ...]:
        return tuple(Tensor(role, f"{role} {p.index}", p.shape, p.dtype) for p in ports)

    return text, found.function, tensors(found.arguments, "argument"), tensors(found.results, "result")


def _check(case: Case) -> None:
    """Raises InputError where files do not fit the graph."""
    abi, where = case.graph.abi, case.graph.name
    if case.inputs and len(case.inputs) != len(abi.arguments):
        what = f"takes {len(abi.arguments)} arguments, and {len(case.inputs)} are given"
        raise InputError(what, where, "give one .npy file for each, in order")
    if not 0 <= case.result < len(abi.results):
        raise InputError(f"has {len(abi.results)} results", f"{where}: result {case.result}", "count them from 0")
    if case.expected and len(case.inputs) != len(abi.arguments):
        raise InputError("is nothing to compare with", case.expected, "give --inputs too: what the graph takes")
    for path, tensor in zip(case.inputs, abi.arguments, strict=False):
        load_array(path, tensor)
    if case.expected:
        load_array(case.expected, abi.results[case.result])


def load_array(path: Path, tensor: Tensor) -> np.ndarray:
    """An array of a `.npy` file, mapped. Raises InputError unless it is of the tensor's shape and dtype.

    NumPy has no word for bfloat16, and writes it as two bytes.
    """
    refuse_special(path, "name a file that numpy.save wrote")
    try:
        with np.errstate(over="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about headers as Python 2 wrote them
            found = np.load(path, mmap_mode="r", allow_pickle=False)
    # NumPy evaluates the header as a literal of Python, which fails in more ways than it says.
    except Exception as error:
        raise InputError(f"is no array that can be read ({_words(error)})", path, "write it with numpy.save") from None
    if not isinstance(found, np.ndarray):  # an archive of arrays
        raise InputError("is an archive, and not an array", path, "write the array with numpy.save")
    wanted = numpy_type(tensor.dtype)
    if found.dtype.kind == "V" and found.dtype.itemsize == wanted.itemsize:
        found = found.view(wanted)
    if (found.shape, found.dtype) != (tensor.shape, wanted):
        given = f"is {list(found.shape)} {_dtype(found.dtype)}"
        raise InputError(f"{given}, and {tensor.name} is {tensor.type}", path, "write the array that the graph has")
    return found


def _words(error: Exception) -> str:
    """NumPy's words, where they are for a person; else what is wrong."""
    words = str(error)
    return words if isinstance(error, OSError | ValueError) and "<" not in words else "its header is damaged"


def _dtype(dtype: np.dtype) -> str:
    try:
        return dtype_of(dtype)
    except StopIteration:
        return str(dtype)
