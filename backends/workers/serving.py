"""The worker's side of the protocol in docs/workers.md, for a runtime that is called from Python.

Requests are lines of JSON on stdin, answers are lines of JSON on stdout; arrays are files of their bare bytes.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PROTOCOL = 1
SMALL = 2**12  # bytes of an array that travels in the line itself
NUMPY = {
    "f64": "float64", "f32": "float32", "f16": "float16", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
    "ui64": "uint64", "ui32": "uint32", "ui16": "uint16", "ui8": "uint8", "i1": "bool",
}  # fmt: skip
# Where a request fails that says nothing of it itself.
STAGES = {"compile": "compile", "load": "load", "upload": "load", "describe": "load"}


class Failed(Exception):
    """What the runtime cannot do with a graph: a result, and not the worker's end.

    stage: `compile`, `load`, `run` or `memory`.
    """

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(stage, message)
        self.stage, self.message = stage, message


class Runtime:
    """What a worker runs graphs with. Whatever its methods raise becomes an answer; `Failed` says in which stage.

    compiles: whether `compile` makes a file that `load` takes again in another process.
    """

    compiles = False

    def describe(self) -> dict[str, str]:
        """`name`, `family`, `version` and, where it is not the processor, `device`."""
        raise NotImplementedError

    def compile(self, graph: Path, function: str, flags: list[str]) -> bytes:
        """A program, from a file of StableHLO's text."""
        raise NotImplementedError

    def load(self, path: Path, function: str, flags: list[str]) -> Any:
        """A program. path: of what `compile` made; of a graph where it compiles nothing."""
        raise NotImplementedError

    def upload(self, array: np.ndarray) -> Any:
        """An array of the runtime's own, a copy."""
        raise NotImplementedError

    def keep(self, array: np.ndarray) -> Any:
        """The same of an array that nobody writes to, a call neither: in place where that can be."""
        return self.upload(array)

    def call(self, program: Any, arguments: list[Any]) -> list[Any]:
        """What the program gives for these arrays."""
        raise NotImplementedError

    def download(self, array: Any) -> np.ndarray:
        """An array of the runtime's as NumPy has it."""
        raise NotImplementedError


def serve(open_runtime: Callable[[], Runtime]) -> None:
    """Answer requests until there are no more. What prints to stdout meanwhile prints to stderr."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    worker = _Worker(open_runtime)
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"id": request["id"], **_answer(worker, request)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _answer(worker: _Worker, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return worker.answer(request)
    except Failed as error:
        stage, message = error.stage, error.message
    except MemoryError:
        stage, message = "memory", "the worker is out of memory"
    except Exception as error:
        stage, message = STAGES.get(request["do"], "run"), f"{type(error).__name__}: {error}"
    return {"error": {"stage": stage, "message": message}}


class _Worker:
    """A method for each request: what is asked -> the answer."""

    def __init__(self, open_runtime: Callable[[], Runtime]) -> None:
        self._open, self._opened = open_runtime, False
        self._programs: dict[str, Any] = {}
        self._arrays: dict[str, Any] = {}
        self._count = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        for name in request.get("free", ()):
            self._arrays.pop(name, None)
        if not self._opened:  # here, so that a runtime that cannot be opened is an answer
            self._runtime, self._opened = self._open(), True
        found: dict[str, Any] = getattr(self, request["do"])(request)
        return found

    def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"protocol": PROTOCOL, "compiles": self._runtime.compiles, **self._runtime.describe()}

    def compile(self, request: dict[str, Any]) -> dict[str, Any]:
        program = self._runtime.compile(Path(request["graph"]), request["function"], request["flags"])
        Path(request["program"]).write_bytes(program)
        return {}

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        path = Path(request["program"] if self._runtime.compiles else request["graph"])
        return {"loaded": self._keep(self._programs, self._runtime.load(path, request["function"], request["flags"]))}

    def upload(self, request: dict[str, Any]) -> dict[str, Any]:
        take = self._runtime.keep if request.get("kept") else self._runtime.upload
        return {"array": self._keep(self._arrays, take(_array(request)))}

    def call(self, request: dict[str, Any]) -> dict[str, Any]:
        given = [
            self._arrays[a] if isinstance(a, str) else self._runtime.upload(_array(a)) for a in request["arguments"]
        ]
        results = self._runtime.call(self._programs[request["loaded"]], given)
        files = request.get("read", {})  # of the results that are read at once, by their number
        return {
            "results": [
                self._read(result, files[str(i)]) if str(i) in files else self._keep(self._arrays, result)
                for i, result in enumerate(results)
            ]
        }

    def download(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._read(self._arrays[request["array"]], request["file"])

    def _read(self, array: Any, file: str) -> dict[str, Any]:
        found = np.asarray(self._runtime.download(array))
        type = {"dtype": _dtype_of(found.dtype), "shape": list(found.shape)}
        if found.nbytes <= SMALL:
            return {**type, "data": base64.b64encode(found.tobytes()).decode()}
        found.tofile(file)
        return type

    def _keep(self, things: dict[str, Any], thing: Any) -> str:
        self._count += 1
        things[name := str(self._count)] = thing
        return name


def _array(given: dict[str, Any]) -> np.ndarray:
    """The array that a request holds, or whose file it names: then in memory that is the file's."""
    type, shape = _numpy_type(given["dtype"]), tuple(given["shape"])
    if "data" in given:
        return np.frombuffer(bytearray(base64.b64decode(given["data"])), type).reshape(shape)
    return np.asarray(np.memmap(given["file"], type, "r+", shape=shape))


def _numpy_type(dtype: str) -> np.dtype[Any]:
    if dtype == "bf16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(NUMPY[dtype])


def _dtype_of(type: np.dtype[Any]) -> str:
    return "bf16" if type.name == "bfloat16" else next(dtype for dtype, name in NUMPY.items() if name == type.name)


def end_with_parent() -> None:
    """Have Linux end this process when the thread that started it ends: a runtime that hangs sees no end of its requests."""
    if sys.platform == "linux":
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
