"""Graphs of other emitters, exported anew by the scripts in examples/, each in its library's own environment: they have to
conform, and of the faults that are planted in their text each has to be noticed and put in its place.

    python -m hloracle.studies.foreign [--faults 12] [--seed 0] [CASE...]

Exit status 0 if all conform, all faults are noticed, at least 90 in 100 at the exact anchor, and the others at one that is
computed from it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from hloracle.conformance.context import Context, Progress
from hloracle.conformance.graphs.sources import open_files
from hloracle.conformance.run import run
from hloracle.conformance.settings import Settings
from hloracle.core.cache import build_directory, cache_root, digest
from hloracle.core.child import Report
from hloracle.core.console import terminal
from hloracle.core.environment import threads_available
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.files import write_file
from hloracle.core.pool import run_each
from hloracle.core.program import run_program
from hloracle.core.record import Record
from hloracle.reference.fixtures.named import resolve

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SECONDS = 900
TOKENS = 8
ENOUGH = 0.9


@dataclass(frozen=True)
class Case:
    """What is exported, and how it is judged.

    folder: in examples/. model: as hloracle names it; changes: to its config, as JSON, where the library knows nothing else;
      precision: of the checkpoint. export: what runs there; files: of what it writes, those that are judged together.
    """

    name: str
    folder: str
    model: str
    files: tuple[str, ...]
    abi: str = "abi.toml"
    export: tuple[str, ...] = ("export.py",)
    precision: str = "f32"
    changes: str = ""


BOTH = ("decode.mlir", "prefill.mlir")
CASES = (
    Case("torchax-llama", "torchax", "tiny-llama", ("forward.jax",)),
    Case("torchax-qwen2", "torchax", "tiny-qwen2", ("forward.mlirbc",), "abi-qwen2.toml"),
    Case("keras-hub-mistral", "keras_hub", "tiny-mistral", ("decode.jax", "prefill.jax")),
    Case("keras-hub-gemma", "keras_hub", "tiny-gemma", ("decode.jax", "prefill.jax"), "abi-gemma.toml",
         ("export_gemma.py",), changes='{"rms_norm_eps": 1e-6}'),
    Case("tunix-llama", "tunix", "tiny-llama", ("decode.jax", "prefill.jax"),
         changes='{"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}'),
    Case("jax-scan", "jax_scan", "tiny-llama", ("decode.mlirbc", "prefill.mlirbc"), precision="bf16"),
    *(
        Case(f"by-hand-{family}", "by_hand", f"tiny-{family}", BOTH, f"{family}.abi.toml", ("emit.py",))
        for family in ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "olmo2", "phi3")
    ),
    Case("by-hand-ragged", "by_hand", "tiny-llama", ("ragged.mlir",), "llama_ragged.abi.toml", ("emit.py",)),
    Case(
        "by-hand-interleaved", "by_hand", "tiny-llama", BOTH, "llama_interleaved.abi.toml", ("emit.py", "--interleaved")
    ),
)  # fmt: skip
Item = tuple[Case, int | None]  # the seed of a fault; None for the right graphs


# ---- what is exported


def model_of(case: Case) -> Path:
    """The checkpoint's directory."""
    directory = resolve(case.model, precision=case.precision)
    if not case.changes:
        return directory
    config = json.loads((directory / "config.json").read_text()) | json.loads(case.changes)

    def build(folder: Path) -> None:
        write_file(folder / "config.json", json.dumps(config))
        os.link(directory / "model.safetensors", folder / "model.safetensors")

    return build_directory(cache_root() / "models" / f"{directory.name}-{digest(case.changes)[:8]}", build)


def exported(case: Case, report: Report) -> tuple[Path, Path]:
    """The folder of the exported files, and the checkpoint's."""
    folder, model = EXAMPLES / case.folder, model_of(case)
    wanted = folder / "requirements.txt"
    python = _environment(wanted, report) if wanted.exists() else Path(sys.executable)
    parts = [path.read_bytes() for path in sorted(folder.glob("*.py"))]
    key = digest(str(case.export), str(python), (model / "config.json").read_bytes(), model.name, *parts)

    def build(out: Path) -> None:
        report(f"{case.name}: exporting")
        command = [
            str(python),
            str(folder / case.export[0]),
            *case.export[1:],
            "--model",
            str(model),
            "--out",
            str(out),
        ]
        _call(command)

    return build_directory(cache_root() / "foreign" / f"{key[:32]}-2", build), model


def _environment(requirements: Path, report: Report) -> Path:
    """The Python of a virtual environment with these packages, made if it has to be."""
    entry = cache_root() / "environments" / digest(requirements.read_bytes(), sys.version)[:32]
    python = entry / "bin" / "python"
    if not (entry / "installed").exists():
        report(f"installing {requirements.parent.name}'s packages")
        venv.create(entry, with_pip=True, clear=True)
        _call([str(python), "-m", "pip", "install", "-q", "--no-compile", "--no-deps", "-r", str(requirements)])
        write_file(entry / "installed", "")
    return python


def _call(command: Sequence[str]) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "XLA_FLAGS")} | {
        "JAX_PLATFORMS": "cpu"
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise ToolchainError("export", (done.stderr or done.stdout).strip()[-2000:])


# ---- what is judged


@dataclass(frozen=True)
class Judged:
    """What came of a case's graphs, right or with a fault in one of them.

    verdict: its class. anchor: the first that was found wrong. expected: those that the changed line computes; consumers: those
      that are computed from one of these. what: the fault.
    """

    verdict: str
    anchor: str = ""
    expected: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()
    what: str = ""

    @property
    def exact(self) -> bool:
        """Whether the anchor is one that the changed line computes."""
        return self.anchor in self.expected

    @property
    def near(self) -> bool:
        """Whether it is computed from one of those."""
        return self.anchor in self.consumers


def judged(report: Report, item: Item) -> Judged:
    """Judge a case's graphs; of a fault, look first that it changes anything."""
    case, seed = item
    folder, model = exported(case, report)
    with tempfile.TemporaryDirectory(prefix="hloracle-") as temporary:
        paths = [folder / name for name in case.files]
        fault = None
        if seed is not None:
            from hloracle.studies.foreign_faults import planted

            fault = planted(EXAMPLES / case.folder / case.abi, paths, model, seed, Path(temporary), report)
            paths = fault.paths
        record = _record(case, paths, model, report)
    verdict = record["verdict"]
    if fault is None:
        return Judged(verdict["class"])
    return Judged(verdict["class"], verdict["anchor"] or "", fault.expected, fault.consumers, fault.what)


def _record(case: Case, paths: Sequence[Path], model: Path, report: Report) -> Record:
    settings = Settings(str(model), TOKENS, 0, case.precision, quick=True)
    files = open_files(paths, [EXAMPLES / case.folder / case.abi])
    return run(settings, Context(Progress(report)), [files])


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, metavar="CASE")
@click.option("--faults", "count", type=click.IntRange(0), default=12, show_default=True, help="Faults in each case.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the first fault.")
@click.option(
    "--jobs", type=click.IntRange(1), default=threads_available, help="At a time; one for each core if not given."
)
def command(names: Sequence[str], count: int, seed: int, jobs: int) -> int:
    """Export and judge graphs of other emitters, and plant faults in their text."""
    known = {case.name: case for case in CASES}
    if unknown := [name for name in names if name not in known]:
        raise InputError("is no case", unknown[0], f"name some of: {', '.join(known)}")
    cases = [known[name] for name in names or known]
    for case in cases:
        exported(case, lambda line: terminal.print(line))
    items: list[Item] = [(case, None) for case in cases]
    items += [(case, seed + i) for case in cases for i in range(count)]
    found: dict[Item, Judged] = {}

    def finish(item: Item, answer: Judged | str, seconds: float) -> None:
        case, number = item
        if isinstance(answer, str):
            answer = Judged(f"died: {answer}")
        found[item] = answer
        click.echo(f"{case.name}{'' if number is None else f' {number}'}, {seconds:.1f} s: {_words(answer, number)}")

    with terminal.status("judging"):
        run_each(judged, items, jobs, SECONDS, lambda line: None, finish)
    return _summary(cases, found)


def _words(answer: Judged, seed: int | None) -> str:
    if seed is None or not answer.what:
        return answer.verdict
    place = "exact" if answer.exact else "consumer" if answer.near else f"expected {', '.join(answer.expected[:3])}"
    return f"{answer.verdict} at {answer.anchor or 'no anchor'} ({place}): {answer.what}"


def _summary(cases: Sequence[Case], found: dict[Item, Judged]) -> int:
    right = [found[case, None].verdict == "conforms" for case in cases]
    of_faults = [answer for (_, seed), answer in found.items() if seed is not None]
    noticed = [
        a
        for a in of_faults
        if a.verdict not in ("conforms", "near-tie", "harness-error") and not a.verdict.startswith("died")
    ]
    exact, near = [a for a in noticed if a.exact], [a for a in noticed if not a.exact and a.near]
    click.echo(f"{sum(right)} of {len(right)} cases conform")
    if of_faults:
        click.echo(
            f"{len(noticed)} of {len(of_faults)} faults noticed, {len(exact)} at the exact anchor, {len(near)} at one that is "
            f"computed from it, {len(noticed) - len(exact) - len(near)} elsewhere"
        )
    good = all(right) and len(noticed) == len(of_faults) == len(exact) + len(near)
    return 0 if good and len(exact) >= ENOUGH * len(of_faults) else 1


if __name__ == "__main__":
    run_program(command)
