"""The right ways to write and compile production graphs, and the way that was found fastest on this machine.

`hloracle tune` measures them (`bench/tune.py`) and keeps the winner in a file. That file is believed only on the machine,
by the compiler and for the graphs that it was measured with, and only after a whole run with the winner conformed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hloracle import emitters
from hloracle.backends import iree
from hloracle.backends.devices import CPU, Device
from hloracle.core.abi import Graph
from hloracle.core.cache import Entry, digest
from hloracle.core.environment import cpu_name, host_cpu, installed
from hloracle.emitters.model import Emitter
from hloracle.reference.model.archive import weight_sources
from hloracle.reference.model.checkpoint import QUANTIZED, Checkpoint
from hloracle.reference.model.config import Config
from hloracle.reference.model.contract import GraphSpec

HOST = "host"
LAYOUTS = ("panels", "rows")
VERSION = "hloracle-tuned/2"
FOLDER = "tuned"  # of the cache


@dataclass(frozen=True)
class Build:
    """How IREE compiles the graphs of one phase.

    flags: a name in `iree.FLAG_SETS`. cpu: LLVM's name of the CPU that code is made for.
    """

    flags: str = "plain"
    cpu: str = HOST

    @property
    def all(self) -> tuple[str, ...]:
        """The flags that IREE's compiler is given."""
        cpu = () if self.cpu == HOST else (f"{iree.TARGET_CPU}={self.cpu}",)
        return (*iree.FLAG_SETS[self.flags], *cpu)

    def __str__(self) -> str:
        return self.flags if self.cpu == HOST else f"{self.flags} for {self.cpu}"


@dataclass(frozen=True)
class Choice:
    """How production graphs are written and compiled.

    layout: how float weights lie, `panels` or `rows`. fused: weights with the same input, such as q_proj and k_proj, are
    one. decode, prefill: how the graphs of that phase are compiled. on_device: see `MatrixBuilder`. graphs: see `Device`.
    """

    layout: str = "panels"
    fused: bool = False
    decode: Build = field(default_factory=Build)
    prefill: Build = field(default_factory=lambda: Build("packed"))
    on_device: bool = False
    graphs: bool = False

    def opened(self, device: Device) -> Device:
        """The device, driven as chosen."""
        return dataclasses.replace(device, graphs=self.graphs)

    @property
    def held(self) -> str:
        """How weights and caches are held, in words."""
        words = [self.layout, "fused" if self.fused else "", "on device" if self.on_device else ""]
        return " ".join(filter(None, [*words, "as graphs" if self.graphs else ""]))

    def build(self, phase: str) -> Build:
        """How the graphs of a phase are compiled."""
        return self.decode if phase == "decode" else self.prefill

    def with_build(self, phase: str, build: Build) -> Choice:
        """The same, with this phase compiled so."""
        return (
            dataclasses.replace(self, decode=build) if phase == "decode" else dataclasses.replace(self, prefill=build)
        )

    def __str__(self) -> str:
        return f"{self.held}, decode {self.decode}, prefill {self.prefill}"


def untuned(
    layout: str = "", fused: bool = False, device: Device = CPU, batch: int = 1, precision: str = "f32",
    compute: str = "f32",
) -> Choice:  # fmt: skip
    """What is taken where nothing was measured. Plain rows are compiled as the oracle's graphs, which have them too.

    Of several rows, a product reads plain rows of a float weight at nearly the memory's speed, and panels at a third of it. What
    is quantized is decoded while it is multiplied, which the compiler does for all rows at once in panels alone.

    What computes in less than float32 has plain rows, which are multiplied as they are. Data tiling is not asked for: IREE 3.13
    then compiles no product of bf16. See docs/toolchain-notes.md.

    Args:
      batch: the rows of a decode. precision: what weights are held in. compute: what the graphs compute in.
    """
    layout = layout or ("rows" if compute != "f32" else "")
    if device.remote:  # the threads of a warp read one row, each some of its columns
        return Choice(layout or "rows", fused, prefill=Build("plain"), on_device=True, graphs=device.graphs)
    if batch > 1:
        if compute != "f32":
            return Choice(layout, fused, decode=Build("spread"), prefill=Build("plain"))
        if precision in QUANTIZED:  # rows are unpacked first, and then multiplied as a prompt is
            return Choice(layout or "panels", fused, decode=Build("packed" if layout == "rows" else "unmoved"))
        return Choice(layout or "rows", fused, decode=Build("spread"))
    layout = layout or "panels"
    return Choice(layout, fused, prefill=Build("packed" if layout == "panels" else "plain"))


def production_graphs(
    checkpoint: Checkpoint, precision: str, choice: Choice, specs: Sequence[GraphSpec]
) -> list[Graph]:
    """The emitter's graphs of these, with the flags that IREE compiles them with."""
    layout = checkpoint.layout(precision, choice.layout == "panels", choice.fused, max(spec.batch for spec in specs))
    return [production_graph(checkpoint.config, spec, layout, choice) for spec in specs]


def production_graph(
    config: Config, spec: GraphSpec, layout: Mapping[str, str], choice: Choice
) -> Graph:  # fmt: skip
    """The emitter's graph, of weights that lie so."""
    graph = Emitter(on_device=choice.on_device).emit(config, *spec[:4], layout, *spec[4:])
    return dataclasses.replace(graph, flags=choice.build(spec.phase).all)


# ---- what was measured


@dataclass(frozen=True)
class Tuned:
    """What a file says, if there is one for this model and precision. ignored: why it is not believed, in words."""

    choice: Choice | None = None
    ignored: str = ""


def tuned_entry(checkpoint: Checkpoint, precision: str, device: Device = CPU) -> Entry[dict[str, Any]]:
    """Where the choice for a model of this shape is kept."""
    where = f"{device.kind}{device.index}" if device.remote else ""
    return Entry(FOLDER, digest(VERSION, repr(checkpoint.config), precision, where), dict[str, Any])


def circumstances(threads: int, device: Device = CPU) -> dict[str, Any]:
    """What a choice holds for. `graphs` is the code that decides what graphs and weights look like."""
    folder = Path(str(emitters.__file__)).parent
    code = (p.read_bytes() for p in sorted(folder.rglob("*.py")))
    where: dict[str, Any]
    if device.remote:
        where = {
            "device": device.name,
            "driver": device.facts.driver if device.facts else "",
            "target": device.target,
        }
    else:
        where = {"cpu": cpu_name(), "features": host_cpu(), "threads": threads}
    return {
        **where,
        "compiler": installed("iree-base-compiler"),
        "runtime": installed("iree-base-runtime"),
        "graphs": digest(*code, *weight_sources(), Path(str(iree.__file__)).read_bytes()),
    }


WORDS = {
    "device": "was measured on {0}, this is {1}",
    "driver": "was measured with the driver {0}, this is {1}",
    "target": "was measured with code for {0}, this is {1}",
    "cpu": "was measured on {0}, this is {1}",
    "features": "was measured on a CPU of the same name with other features",
    "threads": "was measured with {0} threads, these are {1}",
    "compiler": "was measured with iree-base-compiler {0}, this is {1}",
    "runtime": "was measured with iree-base-runtime {0}, this is {1}",
    "graphs": "was measured before graphs were written otherwise",
}


def tuned(checkpoint: Checkpoint, precision: str, threads: int, device: Device = CPU) -> Tuned:
    """What was found fastest for a model here. A file that cannot be believed is ignored, and says why."""
    entry = tuned_entry(checkpoint, precision, device)
    path, raw = entry.path, entry.load()
    if raw is None:
        return _ignored(path, "is damaged") if path.exists() else Tuned()
    try:
        for key, here in circumstances(threads, device).items():
            if raw["for"][key] != here:
                return _ignored(path, WORDS[key].format(str(raw["for"][key])[:60], here))
        return Tuned(_choice(raw["choice"], device))
    except (KeyError, TypeError, AttributeError, ValueError):
        return _ignored(path, "is damaged")


def keep(
    checkpoint: Checkpoint, precision: str, threads: int, choice: Choice, measured: list[dict[str, Any]],
    device: Device = CPU,
) -> Path:  # fmt: skip
    """Write down a choice with which a whole run conformed; returns where."""
    entry = tuned_entry(checkpoint, precision, device)
    entry.save({"for": circumstances(threads, device), "choice": dataclasses.asdict(choice), "measured": measured})
    return entry.path


def _choice(raw: dict[str, Any], device: Device) -> Choice:
    """Raises ValueError for what there is no such thing of: a file does not bring flags of its own."""
    builds = {phase: Build(**raw[phase]) for phase in iree.PHASE_FLAGS}
    choice = Choice(raw["layout"], raw["fused"], **builds, on_device=raw["on_device"], graphs=raw["graphs"])
    known = (
        choice.layout in LAYOUTS
        and all(isinstance(value, bool) for value in (choice.fused, choice.on_device, choice.graphs))
        and all(b.flags in iree.FLAG_SETS for b in builds.values())
        and choice.on_device == device.remote
        and (device.of_cuda or not choice.graphs)
    )
    if not known or not all(valid_cpu(b.cpu) for b in builds.values()):
        raise ValueError("unknown")
    return choice


def valid_cpu(name: object) -> bool:
    """Whether this can be the name of a CPU: the compiler knows whether it is."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= 40
        and name.replace("-", "").replace(".", "").replace("_", "").isalnum()
    )


def _ignored(path: Path, why: str) -> Tuned:
    return Tuned(ignored=f"{path.name} {why}: ignored; hloracle tune measures again")
