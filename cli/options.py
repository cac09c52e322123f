"""What several commands share: their options, and how they show that they work."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from hloracle.core.bounds import JOBS, SECONDS, THREADS
from hloracle.core.console import Output, terminal
from hloracle.core.environment import threads_available
from hloracle.core.files import is_special

DEFAULT_MODEL = "smollm2-135m-instruct"
# As in reference/model/encodings.py, which imports more than a command line needs to be parsed.
PRECISIONS = ("f32", "bf16", "f16", "int8", "int4")
COMPUTE = ("f32", "bf16", "f16")  # as in core/abi.py
KV = ("compute", "int8")
MODEL_HELP = """MODEL is a Hugging Face checkpoint directory, a .gguf file, or a name that `hloracle models` lists."""
Option = Callable[[Callable[..., int]], Callable[..., int]]


class Number(click.FloatRange):
    """A number in a range; NaN is in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number that a word stands for."""
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            self.fail("is no number", param, ctx)
        return found


def seconds(least: float = 0.0) -> Number:
    """More than 0 seconds, or at least so many."""
    return Number(least, SECONDS, min_open=not least)


def model(default: str | None = None) -> Option:
    """The argument MODEL, as MODEL_HELP says; it has to be given where there is no default."""
    # A default of None would be one for click, and no model would be missing.
    return click.argument("model", required=True) if default is None else click.argument("model", default=default)


as_: Option = click.option(
    "--as", "as_", metavar="ARCHITECTURE", default="",
    help="What the model is by its weights and config, where its config.json has a model_type of its own.",
)  # fmt: skip


def out(files: str = "report.json, report.html, summary.md and junit.xml") -> Option:
    """`--out`, the folder `out` by default. files: what the command writes there, in words for its help."""
    return click.option(
        "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out"), show_default=True,
        help=f"Folder for {files}.",
    )  # fmt: skip


def several(flag: str, name: str, type: Any, default: Sequence[Any], words: str, **more: Any) -> Option:
    """An option that may be given several times. Each value counts once; numbers are put in order."""

    def once(context: click.Context, parameter: click.Parameter, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(sorted(set(values)) if isinstance(type, click.IntRange) else dict.fromkeys(values))

    return click.option(
        flag, name, type=type, multiple=True, default=default, show_default=True, callback=once,
        help=f"{words}; may be given several times.", **more,
    )  # fmt: skip


project: Option = click.option(
    "--project", type=click.Path(path_type=Path), metavar="FILE",
    help="What graphs of your own are held to besides their values (docs/project-file.md). By default hloracle.toml in the "
    "working directory, if there is one.",
)  # fmt: skip
precision: Option = click.option(
    "--precision", type=click.Choice(PRECISIONS), default="f32", show_default=True,
    help="What weights are held in: all sums are float32, and the truth is Hugging Face's over the same weights.",
)  # fmt: skip
precisions: Option = several(
    "--precision", "precisions", click.Choice(PRECISIONS), PRECISIONS, "What weights of the emitted graphs are held in"
)


def layout(default: str | None = None) -> Option:
    """`--layout`, `panels` or `rows`; without a default None stands for what `hloracle tune` found."""
    words = "How floats, and integers in graphs of several rows, lie: 16 rows side by side, which is read faster; or as in the checkpoint."
    return click.option(
        "--layout", type=click.Choice(["panels", "rows"]), default=default, show_default=default is not None,
        help=words if default else f"{words} When not given, what `hloracle tune` found here, or else panels.",
    )  # fmt: skip


def fused(name: str, default: bool | None = None) -> Option:
    """`--fused/--separate`; without a default None stands for what `hloracle tune` found."""
    return click.option(
        "--fused/--separate", name, default=default, show_default=default is not None,
        help="Whether weights that are multiplied with the same values, such as q_proj, k_proj and v_proj, are one.",
    )  # fmt: skip


def device(function: Callable[..., int]) -> Callable[..., int]:
    """`--device` and `--cuda-target`: see `open_device`."""
    device = click.option(
        "--device", default="cpu", show_default=True, envvar="HLORACLE_DEVICE", show_envvar=True,
        metavar="cpu|cuda[:N]|vulkan[:N]|emulated",
        help="Where IREE runs the graphs; `emulated` is a GPU's code, interpreted on the processor.",
    )  # fmt: skip
    target = click.option(
        "--cuda-target", default="", metavar="sm_NN", envvar="HLORACLE_CUDA_TARGET", show_envvar=True,
        help="What is compiled for on CUDA, instead of the highest that the compiler knows and the device runs.",
    )  # fmt: skip
    return device(target(function))


threads: Option = click.option(
    "--threads", type=click.IntRange(1, THREADS), default=threads_available,
    help="CPU threads of IREE, and of what is timed beside it; XLA takes all cores. All that are available when not given.",
)  # fmt: skip
jobs: Option = click.option(
    "--jobs", type=click.IntRange(1, JOBS), default=threads_available,
    help="How many run at a time; all processors by default.",
)  # fmt: skip
as_json: Option = click.option(
    "--json", "as_json", is_flag=True, help="Print what was found as JSON, instead of a table."
)
source: Option = click.option(
    "--source", type=click.Choice(["emitter", "reference"]), default="emitter", show_default=True,
    help="Who writes the graphs.",
)  # fmt: skip
sources: Option = click.option(
    "--source", "sources", multiple=True, metavar="NAME", default=("emitter",), show_default=True,
    help="Whose graphs are judged: emitter, the bundled one, or a source of an installed package; may be given several times.",
)  # fmt: skip
backends: Option = click.option(
    "--backend", "backends", multiple=True, metavar="WORD",
    help="What compiles graphs and runs them; may be given several times: iree-cpu, xla-cpu, stablehlo (its interpreter), one "
    "of an installed package, a version such as iree==3.12.0 (made when it is first named), flags such as "
    "'iree:--iree-opt-data-tiling', both in one, a PJRT plugin as pjrt:NAME or pjrt:LIBRARY, a tool's command line as "
    "command:FILE, or a program as worker:COMMAND (docs/backends.md). By default iree-cpu and xla-cpu, and the device where "
    "one is named.",
)  # fmt: skip
tokens: Option = click.option(
    "--tokens", type=int, default=48, show_default=True, help="Tokens to compare after each prompt."
)
rounds: Option = click.option(
    "--rounds", type=int, default=5, show_default=True, help="Rounds of the speed comparison; 0 for none."
)
reuse: Option = click.option(
    "--no-cache", "reuse", is_flag=True, default=True, flag_value=False,
    help="Run everything, also that whose outcome is in the cache.",
)  # fmt: skip
pin: Option = click.option("--pin", is_flag=True, help="Write down in mutants/ what came of them.")


def capacity(default: int | None = 256, by_default: str = "") -> Option:
    """`--capacity`. by_default: what stands in its help where the default depends on the model."""
    return click.option(
        "--capacity",
        type=int,
        default=default,
        show_default=by_default or True,
        help="Slots of the key and value caches.",
    )


batch: Option = click.option(
    "--batch", type=int, default=1, show_default=True, metavar="B",
    help="Rows of the graphs: B sequences at once, each at its own position. Prompts then go in chunks, into one row each.",
)  # fmt: skip
compute: Option = click.option(
    "--compute", type=click.Choice(COMPUTE), default="f32", show_default=True,
    help="What values between modules, caches and weights are of: all of them, so --precision is left out, or the same. Sums and "
    "logits stay float32, and of less than f32 what is judged is held to Hugging Face in the same type.",
)  # fmt: skip
ring: Option = click.option(
    "--ring", is_flag=True,
    help="Keep only the last W keys and values of layers that attend within a window of W, where W is less than the slots.",
)  # fmt: skip
kv: Option = click.option(
    "--kv", type=click.Choice(KV), default="compute", show_default=True,
    help="What keys and values are kept in: in what is computed in, or with int8 in 8 bits, with a scale for each slot of each head. Caches "
    "are then about a quarter as large, and what is judged is held to Hugging Face with keys and values rounded so.",
)  # fmt: skip
timeout: Option = click.option(
    "--timeout", type=seconds(), default=1800, show_default=True, metavar="SECONDS",
    help="What a graph on a backend may take; after one that does not end, the others are given a tenth of it.",
)  # fmt: skip


@contextmanager
def progress_shown() -> Iterator[Any]:
    """A spinner with the current step, and a line per finished stage, on a terminal; nothing in a pipe."""
    from hloracle.conformance.context import Progress

    if not terminal.is_terminal:
        yield Progress()
        return
    with terminal.status("starting") as status:

        def finished(stage: str, seconds: float, reused: bool) -> None:
            terminal.print(
                f"[green]✓[/] {escape(f'{stage:<28}')} [dim]{seconds:6.1f} s{'  reused' if reused else ''}[/]"
            )

        yield Progress(lambda line: status.update(f"[dim]{escape(line)}[/]"), finished)


def written(*paths: Path) -> None:
    """Print where files were written, of those that have a place: not of what went to stdout or a device."""
    for path in paths:
        if not is_special(path):
            click.echo(path)


def tell(found: Any, as_json: bool, words: Callable[[Console], None]) -> None:
    """Print what was found: as JSON, or in words."""
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        words(Output(highlight=False))
