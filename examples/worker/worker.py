"""A worker of your own: it runs graphs on the StableHLO interpreter that jaxlib carries (docs/workers.md)."""

import base64
import itertools
import json
import sys
from pathlib import Path

import numpy as np
from jax._src.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

NUMPY = {"f32": "float32", "i32": "int32", "i1": "bool"}  # as far as a model in float32 needs them
stablehlo.register_interpreter_dialect(context := make_ir_context())
programs, arrays, numbers = {}, {}, map(str, itertools.count())


def given(argument):
    """An array: by its name, in the request itself, or in a file of its bare bytes."""
    if isinstance(argument, str):
        return arrays[argument]
    data = base64.b64decode(argument["data"]) if "data" in argument else Path(argument["file"]).read_bytes()
    return np.frombuffer(data, NUMPY[argument["dtype"]]).reshape(argument["shape"])


def kept(things, thing):
    """The name by which later requests ask for it."""
    things[name := next(numbers)] = thing
    return name


def written(array, file):
    array.tofile(file)
    return {"dtype": {name: dtype for dtype, name in NUMPY.items()}[array.dtype.name], "shape": array.shape}


def answer(do, request):
    if do == "describe":
        return {"protocol": 1, "name": "Example", "version": "1"}
    if do == "load":
        return {"loaded": kept(programs, ir.Module.parse(Path(request["graph"]).read_bytes(), context))}
    if do == "upload":
        return {"array": kept(arrays, given(request))}
    if do == "download":
        return written(arrays[request["array"]], request["file"])
    with context:  # call
        arguments = [ir.DenseElementsAttr.get(np.array(given(a))) for a in request["arguments"]]
        results, read = map(np.array, stablehlo.eval_module(programs[request["loaded"]], arguments)), request["read"]
    return {"results": [written(r, read[str(i)]) if str(i) in read else kept(arrays, r) for i, r in enumerate(results)]}


for request in map(json.loads, sys.stdin):
    try:
        found = answer(request["do"], request)
    except Exception as error:
        found = {"error": {"stage": "run", "message": str(error)}}
    for name in request.get("free", []):
        del arrays[name]
    print(json.dumps({"id": request["id"], **found}), flush=True)
