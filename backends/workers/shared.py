"""What workers and hloracle's own process do alike with a compiler. Standard library alone."""

from __future__ import annotations

import mmap
import shutil
import tempfile
from pathlib import Path
from typing import Any

ENTRY = "main"  # what XLA and StableHLO's interpreter call the function that they run
# As errors for want of memory read: of IREE and its devices anywhere in the text, of XLA as it begins.
IREE_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "CUDA_ERROR_OUT_OF_MEMORY", "VK_ERROR_OUT_OF_DEVICE_MEMORY")
XLA_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
ROOM = (
    1 << 26
)  # bytes: its temporary files of a tiny model take 0.1 MB; with less than this left, want of room may be the cause


def out_of_room() -> str:
    """The folder of temporary files where its disk is all but full; else empty.

    A compiler that fails there may blame a file of its own that it could not write whole, and so seems to be at fault.
    """
    folder = tempfile.gettempdir()
    return folder if shutil.disk_usage(folder).free < ROOM else ""


def iree_module(runtime: Any, instance: Any, path: Path) -> Any:
    """A module in a file, mapped.

    IREE's own `VmModule.mmap` opens the file for writing, too, which fails in a cache that can only be read.
    """
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return runtime.VmModule.wrap_buffer(instance, mapped, close_buffer=True)


def entered_at_main(ir: Any, module: Any, function: str) -> Any:
    """The module with this function called `main`; another `main` gets a new name.

    ir: `jaxlib.mlir.ir`, of whichever version.
    """
    if "sym_name" not in module.operation.attributes:  # JAX's compiler asks for it
        module.operation.attributes["sym_name"] = ir.StringAttr.get("graph")
    if function == ENTRY:
        return module
    symbols = ir.SymbolTable(module.operation)
    if ENTRY in symbols:
        ir.SymbolTable.replace_all_symbol_uses(ENTRY, f"{ENTRY}.{function}", module.operation)
        ir.SymbolTable.set_symbol_name(symbols[ENTRY], f"{ENTRY}.{function}")
    ir.SymbolTable.replace_all_symbol_uses(function, ENTRY, module.operation)
    ir.SymbolTable.set_symbol_name(ir.SymbolTable(module.operation)[function], ENTRY)
    return module


def refuse_callbacks(ir: Any, module: Any) -> None:
    """Raise ValueError for a module that calls a Python function of the process that traced it.

    It is not here, and XLA does not look: a number of the graph's is taken for the place of a function in an empty list, and
    what lies there is called.
    """
    found: list[str] = []

    def visit(operation: Any) -> Any:
        if "call_target_name" in operation.attributes:
            target = ir.StringAttr(operation.attributes["call_target_name"]).value
            if target.startswith("xla_") and "python" in target:
                found.append(target)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    if found:
        raise ValueError(f"custom_call @{found[0]} calls back into the Python that traced it")


def first_error(printed: str) -> str:
    """The first line of a compiler's that speaks of an error, or its first one; empty where it printed nothing."""
    lines = [line for line in printed.splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[0] if lines else "")
