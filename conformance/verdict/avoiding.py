"""What avoids a compiler's fault: a flag of a short list, or barriers between the operations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from hloracle.backends.named import Choice, chosen
from hloracle.backends.reopened import Reopened
from hloracle.conformance.context import Context
from hloracle.core.abi import Graph
from hloracle.core.errors import InputError, ToolchainError

if TYPE_CHECKING:  # it imports JAX, which a run's first process does not need
    from hloracle.localize.draft import Case

# Less work for the optimizer, then single parts of it: what the compilers' own help names, of what has been at fault before.
IREE_FLAGS = (
    "--iree-opt-data-tiling=false", "--iree-llvmcpu-skip-intermediate-roundings=false",
    "--iree-llvmcpu-reassociate-fp-reductions=false", "--iree-global-opt-propagate-transposes=false",
    "--iree-llvmcpu-enable-ukernels=none", "--iree-opt-const-eval=false", "--iree-opt-level=O1", "--iree-opt-level=O0",
)  # fmt: skip
XLA_FLAGS = (
    "--xla_cpu_enable_fast_math=false",
    "--xla_backend_optimization_level=0",
    "--xla_disable_all_hlo_passes=true",
)


def avoiding(context: Context, case: Case, choice: Choice, shows: Callable[[Reopened, Graph], bool]) -> list[str]:
    """What of these a compiler is right with, in words. Nothing where its flags are not known.

    Args:
      choice: the backend that is wrong. shows: whether it shows the fault with this graph; raises ToolchainError where it does not
        run.
    """
    found = []
    for words, bench, graph in (*_by_flags(context, case, choice), *_by_barriers(context, case, choice)):
        context.report(f"trying it {words}")
        try:
            if not shows(bench, graph):
                found.append(words)
        except ToolchainError:  # it refuses the flag, or fails otherwise
            continue
    return found


def _by_flags(context: Context, case: Case, choice: Choice) -> list[tuple[str, Reopened, Graph]]:
    tools = choice.tools
    if tools is None:
        return []
    own = {flag.partition("=")[0] for flag in (*tools.program.flags, *tools.program.xla_flags)}
    found = []
    for flag in IREE_FLAGS if tools.compiler == "iree" else XLA_FLAGS:
        if flag.partition("=")[0] in own:
            continue
        if tools.compiler == "iree":
            graph = dataclasses.replace(case.graph, flags=(*_without(case.graph.flags, flag), flag))
            found.append((f"with {flag}", Reopened(partial(choice.apart, context.threads)), graph))
        elif not tools.version:
            try:
                (other,) = chosen([f"xla:{' '.join([*tools.program.xla_flags, flag])}"])
            except InputError:
                continue
            found.append((f"with {flag} in XLA_FLAGS", Reopened(partial(other.apart, context.threads)), case.graph))
    return found


def _without(flags: tuple[str, ...], flag: str) -> list[str]:
    return [one for one in flags if one.partition("=")[0] != flag.partition("=")[0]]


def _by_barriers(context: Context, case: Case, choice: Choice) -> list[tuple[str, Reopened, Graph]]:
    from jaxlib.mlir import ir

    from hloracle.localize.barriers import with_barriers

    if case.operations < 2:
        return []
    try:
        graph = with_barriers(case).graph
    except ir.MLIRError:
        return []
    return [
        ("with an optimization_barrier after each operation", Reopened(partial(choice.apart, context.threads)), graph)
    ]
