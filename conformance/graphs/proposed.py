"""The ABI file of somebody else's emitter, proposed in a process of its own: parsers and compilers may crash."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hloracle.core.child import ChildDied, Report, run_in_child
from hloracle.core.errors import InputError
from hloracle.foreign.proposal.file import Limits, Proposal, written
from hloracle.reference.model.checkpoint import Checkpoint

BESIDE = 900  # seconds for what is no try: reading and compiling the graphs, and Hugging Face's values


def propose_abi(
    graphs: Sequence[Path], model: Checkpoint, name: str, limits: Limits, report: Report
) -> tuple[str, Proposal]:
    """The text of an ABI file of these graphs, and what it rests on.

    Args:
      name: of the model, as its user calls it.

    Raises InputError where a graph cannot be read.
    """
    timeout = limits.seconds + BESIDE
    try:
        found: Proposal = run_in_child(_propose, tuple(graphs), model, limits, timeout=timeout, report=report).value
    except ChildDied as died:
        if died.cause != "crash":
            raise
        where = ", ".join(map(str, graphs))
        fix = "look whether it is damaged, nested too deep, or too large"
        raise InputError("MLIR's parser or XLA crashes on it, or does not end", where, fix) from None
    return written(found, [path.name for path in graphs], Path(name).name), found


def _propose(report: Report, graphs: Sequence[Path], model: Checkpoint, limits: Limits) -> Proposal:
    from hloracle.foreign.proposal.propose import propose  # which imports JAX

    return propose(report, graphs, model, limits)
