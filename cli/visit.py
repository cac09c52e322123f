"""What needs a GPU, in one go and in a given time: `python -m hloracle.cli.visit`.

A GPU may be lent for minutes. So what matters most comes first, each part has a limit, what is found is written down at once,
and a part that there is no time for is said to be missing. Without a GPU, `--device simulated` tries the script itself.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from hloracle.backends.devices import Device, open_device
from hloracle.backends.named import backends_on, chosen
from hloracle.bench.device import Measured, bandwidth, emitted, emitted_of_size, measured, oracle, traced, transformers
from hloracle.bench.tune import FASTER
from hloracle.cli import options
from hloracle.cli.options import DEFAULT_MODEL, PRECISIONS
from hloracle.conformance.context import Context, Progress
from hloracle.conformance.run import run
from hloracle.conformance.settings import Settings
from hloracle.conformance.suite import Told, family_run, run_families, selected
from hloracle.core.bounds import SECONDS
from hloracle.core.child import ChildDied, run_in_child, threads
from hloracle.core.environment import describe, threads_available
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.files import write_file
from hloracle.core.program import run_program
from hloracle.core.record import Record
from hloracle.mutants import MUTANTS
from hloracle.production.choice import untuned
from hloracle.reference.fixtures.synthetic import SYNTHETIC
from hloracle.reference.model.registry import from_hf
from hloracle.reference.model.weights import default_layout
from hloracle.reports.record import write_all

T = TypeVar("T")
SCHEMA = "hloracle-visit/1"
MINUTES = 9.0
# Seconds for a whole run of the default model: with an H200 and 16 cores it took 240 and, from their cache, 115.
WHOLE = 420.0
F32 = "emitter f32"
# Decode alone, with weights that are not loaded from anywhere.
SIZES = (("synthetic-llama-1b", ("f32", "bf16", "int4")), ("synthetic-llama-3b", ("bf16", "int4")))
# One of each mechanism that a device might compile otherwise.
SAMPLE = (
    "norm-sum", "rope-interleaved", "scale-missing", "mask-not-causal", "act-gelu", "last-row-next", "residual-mlp-dropped",
)  # fmt: skip


@dataclass
class Visit:
    """What a visit has found so far. A row of its `rows` is what, its result, and whether it is as it should be."""

    device: Device
    model: str
    out: Path
    deadline: float
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def row(self, what: str, result: str, right: bool | None = None) -> None:
        """Print a row, and write down at once all that was found."""
        self.found.setdefault("rows", []).append((what, result, right))
        write_file(self.out / "visit.json", json.dumps(self.found, indent=1, default=str) + "\n")
        click.echo(f"{'' if right is None else 'ok ' if right else 'NOT '}{what}: {result}")

    def part(self, name: str, least: float, work: Callable[[], T]) -> T | None:
        """What the work gives, if there is time for it; what goes wrong in it is a row, and the visit goes on.

        least: seconds that it takes at least.
        """
        if self.left < least:
            self.row(name, f"not done: {max(self.left, 0):.0f} s were left", False)
            return None
        begun = time.monotonic()
        try:
            return work()
        except (InputError, ToolchainError, ChildDied) as error:
            self.row(name, " ".join(str(error).split()), False)
            return None
        finally:
            self.found.setdefault("seconds", {})[name] = round(time.monotonic() - begun, 1)

    def limit(self, most: float) -> float:
        """The seconds that something may take: `most`, or what is left."""
        return max(5.0, min(most, self.left))


def visit(visit: Visit, brief: bool = False) -> bool:
    """Every part; whether all was done and all was right."""
    visit.part("conformance f32", 60, lambda: _judged(visit, "f32", WHOLE))
    _speed(visit)
    visit.part("families", 60, lambda: _families(visit, ["llama"] if brief else selected(())))
    _precisions(visit)
    visit.part("mutants", 30, lambda: _mutants(visit))
    if not brief:
        _sizes(visit)
        _layouts(visit)
    return all(right is not False for *_, right in visit.found["rows"])


def _record(report: Callable[[str], None], settings: Settings, context: Context) -> Record:
    return run(settings, context.telling(report))


def _context(visit: Visit, threads: int) -> Context:
    return Context(backends=chosen(backends_on(visit.device), visit.device), device=visit.device, threads=threads)


def _judged(visit: Visit, precision: str, seconds: float) -> None:
    """A whole run of the real model on the device; its report goes to a folder of its own."""
    folder = visit.out / precision
    settings = Settings(visit.model, precision=precision, out=folder, rounds=0)
    context = _context(visit, threads_available())
    record = run_in_child(_record, settings, context, timeout=visit.limit(seconds)).value
    write_all(record, folder)
    found = [c for c in record["configurations"] if c["backend"] == visit.device.backend]
    words = ", ".join(f"{c['id']} {c['agreed']}/{c['total']}" for c in found)
    good = [c for c in record["checks"] if c["status"] == "passed"]
    words += f"; {len(good)} of {len(record['checks'])} checks"
    visit.row(f"{precision}: {record['verdict']['class']}", words, record["passed"])


def _families(visit: Visit, names: list[str]) -> None:
    settings = [family_run(name, visit.out, _context(visit, 1)) for name in names]

    def keep(name: str, record: Record) -> str:
        write_file(visit.out / "families" / f"{name}.json", json.dumps(record, default=str))
        return ""

    begun = time.monotonic()
    records, rows = run_families(settings, threads_available(), Told(keep), Progress(), lambda line: None)
    bad = [row["architecture"] for row in rows if not row["passed"]]
    agreed, total = (
        sum(c[key] for r in records.values() for c in r["configurations"] if c["backend"] == visit.device.backend)
        for key in ("agreed", "total")
    )
    words = f"{len(rows) - len(bad)} of {len(rows)} pass, {agreed}/{total} tokens, {time.monotonic() - begun:.0f} s"
    visit.row("families", words + (f"; not {', '.join(bad)}" if bad else ""), not bad)


def _precisions(visit: Visit) -> None:
    """Side by side where there are processors enough: most of it is Hugging Face's truth, which is computed on them."""

    def judge(precision: str) -> None:
        visit.part(f"conformance {precision}", 45, lambda: _judged(visit, precision, 200))

    with threads(4 if threads_available() >= 8 else 1) as pool:
        judged = [pool.submit(judge, precision) for precision in PRECISIONS[1:]]
        for one in judged:
            one.result()


# ---- speed


def _speed(visit: Visit) -> None:
    visit.part("bandwidth", 20, lambda: _bandwidth(visit))
    plain = _timed(visit, F32, emitted, visit.model, "f32", visit.device)
    if visit.device.kind == "cuda":
        as_graphs = dataclasses.replace(visit.device, graphs=True)
        other = _timed(visit, f"{F32}, CUDA graphs", emitted, visit.model, "f32", as_graphs)
        if plain and other and plain.median and other.median and plain.median >= FASTER * other.median:
            visit.device = as_graphs
        visit.row("from here on", "CUDA graphs" if visit.device.graphs else "a stream")
        visit.part("a step", 15, lambda: _traced(visit))
    wanted: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
        ("Hugging Face float32", transformers, (visit.model, "f32", visit.device)),
        ("JAX oracle f32", oracle, (visit.model, visit.device)),
        *((f"emitter {p}", emitted, (visit.model, p, visit.device)) for p in PRECISIONS[1:]),
        ("Hugging Face bfloat16", transformers, (visit.model, "bf16", visit.device)),
    ]
    for name, function, arguments in wanted:
        _timed(visit, name, function, *arguments)


def _bandwidth(visit: Visit) -> None:
    visit.found["bandwidth"] = run_in_child(bandwidth, visit.device, timeout=visit.limit(60)).value
    visit.row("bandwidth", f"{visit.found['bandwidth'] / 1e9:.0f} GB/s, read by PyTorch")


def _traced(visit: Visit) -> None:
    plain = dataclasses.replace(visit.device, graphs=False)  # of which each kernel is traced
    found = run_in_child(traced, visit.model, "f32", plain, timeout=visit.limit(90)).value
    visit.found["traced"] = dataclasses.asdict(found)
    longest = ", ".join(f"{count:.0f} {kind} {ms:.2f} ms" for kind, (count, ms) in list(found.kinds.items())[:3])
    visit.row(
        "a step",
        f"the GPU computes for {found.ms:.2f} ms, in {found.kernels:.0f} kernels and copies; longest: {longest}",
    )


def _timed(visit: Visit, name: str, function: Callable[..., Any], *arguments: Any) -> Measured | None:
    def work() -> Measured:
        found = measured(name, function, *arguments, seconds=visit.limit(90), report=lambda line: None)
        visit.found.setdefault("speed", {})[name] = dataclasses.asdict(found)
        if found.median is None:
            visit.row(name, found.failure, False)
            return found
        rate = found.bytes / found.median * 1000
        share = f", {rate / visit.found['bandwidth']:.2f} of the bandwidth" if visit.found.get("bandwidth") else ""
        spread = f" ({1000 / max(found.ms):.0f} to {1000 / min(found.ms):.0f})"
        prefill = f", a prompt of 128 in {min(found.prefill_ms):.1f} ms" if found.prefill_ms else ""
        visit.row(name, f"{1000 / found.median:.0f} tokens/s{spread}{share}{prefill}")
        return found

    return visit.part(name, 15, work)


def _sizes(visit: Visit) -> None:
    for model, precisions in SIZES:
        config = from_hf(SYNTHETIC[model])
        for precision in precisions:
            layout = default_layout(config, precision, panels=False)
            _timed(visit, f"{model} {precision}", emitted_of_size, config, layout, visit.device)


def _layouts(visit: Visit) -> None:
    """How else weights may lie."""
    plain = untuned(device=visit.device)
    for name, choice in (
        ("panels", dataclasses.replace(plain, layout="panels")), ("fused", dataclasses.replace(plain, fused=True))
    ):  # fmt: skip
        _timed(visit, f"{F32}, {name}", emitted, visit.model, "f32", visit.device, choice)


# ---- deliberate faults


def _mutants(visit: Visit) -> None:
    def planted(id: str) -> str:
        mutant = MUTANTS[id]
        settings = Settings(mutant.model, 4, 32, choice=untuned(device=visit.device), early_exit=True)
        context = dataclasses.replace(_context(visit, 1), fault=mutant)
        verdict = run_in_child(_record, settings, context, timeout=visit.limit(90)).value["verdict"]
        return "" if verdict["class"] == mutant.class_ else f"{id} is {verdict['class']}"

    with threads(min(threads_available(), len(SAMPLE))) as pool:
        tried = [pool.submit(planted, id) for id in SAMPLE]
        wrong = [one.result() for one in tried if one.result()]
    words = f"{len(SAMPLE) - len(wrong)} of {len(SAMPLE)} caught in their class"
    visit.row("mutants, a sample", words + (f"; {', '.join(wrong)}" if wrong else ""), not wrong)


# ---- the program


@click.command()
@click.option("--device", default="cuda", show_default=True, metavar="cuda[:N]", help="What is visited.")
@click.option("--cuda-target", default="", metavar="sm_NN", help="What is compiled for, instead of what fits it.")
@click.option(
    "--model", default=DEFAULT_MODEL, show_default=True, help="A name, a checkpoint directory or a .gguf file."
)
@click.option(
    "--minutes",
    type=options.Number(0.5, SECONDS / 60),
    default=MINUTES,
    show_default=True,
    help="All of it takes at most so long.",
)
@click.option("--brief", is_flag=True, help="One family instead of all: to try the script itself.")
@options.out("records, reports and visit.json")
def command(device: str, cuda_target: str, model: str, minutes: float, brief: bool, out: Path) -> int:
    """Check and measure everything on a GPU: conformance in each precision, all families, speed against Hugging Face and JAX.

    What is found is printed, and goes to a folder, at once. Exits with 0 only if all of it was done and right.
    """
    begun = time.monotonic()
    opened = open_device(device, cuda_target)
    facts = opened.facts
    out.mkdir(parents=True, exist_ok=True)
    known = {"schema": SCHEMA, "device": str(opened), "facts": dataclasses.asdict(facts) if facts else None}
    known |= {"target": opened.target, "environment": describe()}
    found = Visit(opened, model, out, begun + 60 * minutes, known)
    capability = f", compute capability {'.'.join(map(str, facts.capability))}" if facts and facts.capability else ""
    where = f"{opened.name}{capability}, compiled for {opened.target or opened.kind}"
    found.row("device", f"{where}, {facts.driver}" if facts and facts.driver else where)
    right = visit(found, brief)
    click.echo(f"{time.monotonic() - begun:.0f} s on {opened}")
    return 0 if right else 1


if __name__ == "__main__":
    run_program(command)
