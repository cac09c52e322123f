"""What a mutant is, and how one is planted: by replacing functions of this process, and putting them back."""

from __future__ import annotations

import difflib
import functools
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from unittest import mock

from hloracle.core.errors import InputError

T = TypeVar("T")
# The function that a fault stands in for.
Right = Callable[..., T]

# The class of verdict that a fault of each part belongs to.
CLASSES = {
    "emitter": "emitter-fault",
    "reference": "reference-fault",
    "compiler": "compiler-fault",
    # The same graph is right on the processor.
    "device": "device-fault",
    # The graphs are right, and the session drives them wrongly: that says nothing about any graph.
    "session": "harness-error",
}
# Of a fault after which every value is the right one.
RIGHT_VALUES = "invariant-broken"


class Run(NamedTuple):
    """What is run to notice a mutant: a model, how its weights are held, the kind of device, the rows of its graphs, their cache
    slots (0 for as many as are usual), what they compute in, whether windowed layers have rings, and what keys and values are in."""

    model: str
    weights: str
    device: str = "cpu"
    batch: int = 1
    capacity: int = 0
    compute: str = "f32"
    ring: bool = False
    kv: str = "compute"


@dataclass(frozen=True)
class Mutant:
    """A deliberate fault.

    part: where it is planted: `emitter`, `reference`, `compiler`, `device` or `session`.
    class_: the verdict that it must get.
    model: the tiny model whose run has to notice it.
    anchor: on that model, the first anchor whose own computation, fed with right inputs, is wrong in prefill or
      decode; of what is left out, the first that the graph does not have; for a fault that changes no value, the anchor
      whose scope holds the offending operation. The sum in the middle of a layer is no anchor of its own and counts to
      `post_attention_layernorm`, which reads it, the choice of the row that the head sees to `norm`. Of a session's
      fault, the first anchor with a wrong value in the session's own run.
    installed: inside of it the fault is in force in this process.
    module: where it is written down.
    note: for a fault that the values of an ordinary run do not show, what must be looked at.
    weights: how the graphs of that run hold weights: `rows` or `panels` of float32, or a narrower precision; `+fused` behind
      it fuses them.
    batch: rows of the graphs of that run. capacity: cache slots of them; 0 for as many as are usual. compute: what they compute
      in; of less than f32 weights are in rows of that type. ring: whether their windowed layers have rings. kv: what keys and
      values are kept in.
    """

    id: str
    mechanism: str
    part: str
    fault: str
    class_: str
    anchor: str
    installed: Callable[[], AbstractContextManager[None]]
    module: str
    note: str = ""
    model: str = "tiny-llama"
    weights: str = "rows"
    batch: int = 1
    capacity: int = 0
    compute: str = "f32"
    ring: bool = False
    kv: str = "compute"

    @property
    def held(self) -> tuple[str, str, bool]:
        """The precision and the layout of that run, and whether weights are fused."""
        return held_as(self.weights)

    def __reduce__(self) -> tuple[Callable[[str], Mutant], tuple[str]]:
        return named, (self.id,)  # what plants it cannot be pickled

    @property
    def device(self) -> str:
        """The kind of device of that run. A device's fault is planted in one that everyone has."""
        return "simulated" if self.part == "device" else "cpu"

    @property
    def run(self) -> Run:
        """Which right run it is held to."""
        return Run(self.model, self.weights, self.device, self.batch, self.capacity, self.compute, self.ring, self.kv)

    @property
    def architecture(self) -> str:
        """The family of the model whose run has to notice it."""
        return self.model.removeprefix("tiny-")


MUTANTS: dict[str, Mutant] = {}


def held_as(weights: str) -> tuple[str, str, bool]:
    """The precision and the layout of a run whose weights are held so, and whether they are fused: see Mutant."""
    held, _, fused = weights.partition("+")
    precision, layout = ("f32", held) if held in ("rows", "panels") else (held, "panels")
    return precision, layout, bool(fused)


def named(id: str) -> Mutant:
    """The mutant of this id. Raises InputError for one that does not exist."""
    import hloracle.mutants  # which registers all of them  # noqa: F401

    if id not in MUTANTS:
        near = difflib.get_close_matches(id, MUTANTS, n=4, cutoff=0.4)
        raise InputError("no such mutant", repr(id), f"near it are: {', '.join(near or sorted(MUTANTS)[:4])}")
    return MUTANTS[id]


def mutant(
    id: str, mechanism: str, fault: str, *, anchor: str, replaces: str = "", part: str = "emitter", note: str = "",
    model: str = "tiny-llama", weights: str = "rows", class_: str = "", batch: int = 1, capacity: int = 0,
    compute: str = "f32", ring: bool = False, kv: str = "compute",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # fmt: skip
    """Register the function below as a mutant.

    Args:
      model, weights, batch, capacity, compute, ring, kv: the run that it is planted in.
      class_: the verdict that it must get, where that is not the one of its part.
      replaces: what it stands in for, as `module:name` below hloracle, e.g. `emitters.layers:LayerBuilder.rotary`; it
        gets the right function, then that one's arguments. `*` is the model's architecture. Several targets are separated
        by blanks. Without any, the function is a generator that plants the fault before its `yield` and takes it out
        after it.
    """

    def register(wrong: Callable[..., Any]) -> Callable[..., Any]:
        if id in MUTANTS:
            raise ValueError(f"mutant {id} stands twice")
        targets = replaces.replace("*", model.removeprefix("tiny-"))
        plant = (lambda: replaced(targets, wrong)) if targets else contextmanager(wrong)
        MUTANTS[id] = Mutant(
            id,
            mechanism,
            part,
            fault,
            class_ or CLASSES[part],
            anchor,
            plant,
            wrong.__module__,
            note,
            model,
            weights,
            batch,
            capacity,
            compute,
            ring,
            kv,
        )
        return wrong

    return register


@contextmanager
def replaced(targets: str, wrong: Callable[..., Any]) -> Iterator[None]:
    """`wrong(right, …)` in place of each function `right` that is a target. Only now are their modules imported.

    Raises TypeError unless it takes whatever a target takes.
    """

    def replacement(right: Callable[..., Any]) -> Callable[..., Any]:
        taken = inspect.signature(right).parameters.values()
        by_name = {p.name: p for p in taken if p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD)}
        inspect.signature(wrong).bind(right, *(p for p in taken if p.name not in by_name), **by_name)
        return functools.wraps(right)(lambda *arguments, **named: wrong(right, *arguments, **named))

    with ExitStack() as stack:
        for target in targets.split():
            name = f"hloracle.{target}"
            stack.enter_context(mock.patch(name.replace(":", "."), replacement(pkgutil.resolve_name(name))))
        yield
