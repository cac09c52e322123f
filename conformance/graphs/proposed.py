"""The ABI file of somebody else's emitter, proposed: the model is opened here, and the graphs in a process of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hloracle.core.child import ChildDied, Report, run_in_child
from hloracle.core.errors import InputError
from hloracle.foreign.proposal import Limits, Proposal, written
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import open_checkpoint

BESIDE = 900  # seconds for what is no try: reading and compiling the graphs, and Hugging Face's values


def propose_abi(
    graphs: Sequence[Path], report: Report, model: str, precision: str = "f32", tries: int = 1000, seconds: float = 600
) -> tuple[str, Proposal]:
    """The text of the file, and what it rests on. Raises InputError where a graph or the model cannot be read."""
    checkpoint = open_checkpoint(resolve(model, report, precision))
    try:
        found = run_in_child(
            _propose, tuple(graphs), checkpoint, Limits(tries, seconds), timeout=seconds + BESIDE, report=report
        )
    except ChildDied as died:
        if died.cause != "crash":
            raise
        where = ", ".join(map(str, graphs))
        raise InputError(
            "MLIR's parser or XLA crashes on it", where, "look whether it is nested too deep, or too large"
        ) from None
    proposal: Proposal = found.value
    return written(proposal, [path.name for path in graphs], Path(model).name), proposal


def _propose(report: Report, *arguments: object) -> Proposal:
    from hloracle.foreign.proposing import propose  # which imports JAX

    return propose(report, *arguments)  # type: ignore[arg-type]
