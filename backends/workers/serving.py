"""The worker's side of the protocol in docs/workers.md, for a runtime that is written in Python.

Requests are lines of JSON on stdin, answers are lines of JSON on stdout; arrays are files of their bare bytes.
"""

import base64
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

PROTOCOL = 1
SMALL = 2**12  # bytes of an array that travels in the line itself
DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
    "ui64": "uint64", "ui32": "uint32", "ui16": "uint16", "ui8": "uint8", "i1": "bool",
}  # fmt: skip


class Failed(Exception):
    """What the runtime cannot do with a graph: a result, and not the worker's end.

    stage: `compile`, `load`, `run` or `memory`.
    """

    def __init__(self, stage, message):
        super().__init__(stage, message)
        self.stage, self.message = stage, message


class Runtime:
    """What a worker runs graphs with. Whatever its methods raise becomes an answer; `Failed` says in which stage.

    compiles: whether `compile` makes a file that `load` takes again in another process.
    """

    compiles = False

    def describe(self):
        """A dict: `name`, `family`, `version` and, where it is not the processor, `device`."""
        raise NotImplementedError

    def compile(self, graph, function, flags):
        """The bytes of a program, from the path of a graph in StableHLO's text."""
        raise NotImplementedError

    def load(self, path, function, flags):
        """A program. path: of what `compile` made; of a graph where it compiles nothing."""
        raise NotImplementedError

    def upload(self, array):
        """An array of the runtime's own, a copy."""
        raise NotImplementedError

    def keep(self, array):
        """The same of an array that nobody writes to, a call neither: in place where that can be."""
        return self.upload(array)

    def call(self, program, arguments):
        """What the program gives for these arrays, a list of such."""
        raise NotImplementedError

    def download(self, array):
        """A NumPy array."""
        raise NotImplementedError


def serve(runtime):
    """Answer requests until there are no more. What prints to stdout meanwhile prints to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    worker = _Worker(runtime)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = worker.answer(request)
        except Failed as error:
            answer = {"error": {"stage": error.stage, "message": error.message}}
        except MemoryError:
            answer = {"error": {"stage": "memory", "message": "the worker is out of memory"}}
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            answer = {"error": {"stage": worker.stages.get(request["do"], "run"), "message": message}}
        answers.write(json.dumps({"id": request["id"], **answer}) + "\n")
        answers.flush()
        if request["do"] == "close":
            return


class _Worker:
    stages = {"compile": "compile", "load": "load", "upload": "load", "describe": "load"}

    def __init__(self, runtime):
        self._runtime = runtime
        self._programs, self._arrays, self._count = {}, {}, 0

    def answer(self, request):
        for name in request.get("free", ()):
            self._arrays.pop(name, None)
        return getattr(self, request["do"])(request)

    def describe(self, request):
        return {"protocol": PROTOCOL, "compiles": self._runtime.compiles, **self._runtime.describe()}

    def compile(self, request):
        began = time.monotonic()
        program = self._runtime.compile(Path(request["graph"]), request["function"], request["flags"])
        seconds = time.monotonic() - began
        Path(request["program"]).write_bytes(program)
        return {"seconds": seconds}

    def load(self, request):
        path = Path(request["program"] if self._runtime.compiles else request["graph"])
        return {"loaded": self._keep(self._programs, self._runtime.load(path, request["function"], request["flags"]))}

    def upload(self, request):
        array = _array(request)
        take = self._runtime.keep if request.get("kept") else self._runtime.upload
        return {"array": self._keep(self._arrays, take(array))}

    def call(self, request):
        given = [
            self._arrays[a] if isinstance(a, str) else self._runtime.upload(_array(a)) for a in request["arguments"]
        ]
        results = self._runtime.call(self._programs[request["loaded"]], given)
        files = request.get("read", {})  # those that are read at once, and where to, by their number
        return {
            "results": [
                self._read(result, files[str(i)]) if str(i) in files else self._keep(self._arrays, result)
                for i, result in enumerate(results)
            ]
        }

    def download(self, request):
        return self._read(self._arrays[request["array"]], request["file"])

    def _read(self, array, file):
        found = np.asarray(self._runtime.download(array))
        what = {"dtype": _dtype_name(found.dtype), "shape": list(found.shape)}
        if found.nbytes <= SMALL:
            return {**what, "data": base64.b64encode(found.tobytes()).decode()}
        found.tofile(file)
        return {**what, "file": file}

    def close(self, request):
        return {}

    def _keep(self, things, thing):
        self._count += 1
        name = str(self._count)
        things[name] = thing
        return name


def _array(request):
    """The array of a request: of its data, or of a file, in memory that is the file's."""
    dtype, shape = _numpy_dtype(request["dtype"]), tuple(request["shape"])
    if "data" in request:
        return np.frombuffer(bytearray(base64.b64decode(request["data"])), dtype).reshape(shape)
    return np.asarray(np.memmap(request["file"], dtype, "r+", shape=shape))


def _numpy_dtype(name):
    if name == "bf16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(DTYPES[name])


def _dtype_name(dtype):
    names = {np.dtype(numpy): name for name, numpy in DTYPES.items()} | {}
    return "bf16" if dtype.name == "bfloat16" else names[dtype]


def end_with_parent():
    """Have Linux end this process when the one that started it dies: a runtime that hangs reads no end of its requests."""
    if sys.platform == "linux":
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
