"""What several commands share: their options, and how they show that they work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from hloracle.core.console import terminal

DEFAULT_MODEL = "smollm2-135m-instruct"
# As in reference/model/encodings.py, which imports more than a command line needs to be parsed.
PRECISIONS = ("f32", "bf16", "f16", "int8", "int4")
MODEL_HELP = """MODEL is a Hugging Face checkpoint directory, a .gguf file, or a name that `hloracle models` lists."""
Option = Callable[[Callable[..., int]], Callable[..., int]]


def model_argument(default: str | None = None) -> Option:
    """The argument MODEL, as MODEL_HELP says; it has to be given where there is no default."""
    return click.argument("model", default=default, required=default is None)


def out_option(files: str = "report.json, report.html, summary.md and junit.xml") -> Option:
    """`--out`, the folder `out` by default. files: what the command writes there, in words for its help."""
    return click.option(
        "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out"), show_default=True,
        help=f"Folder for {files}.",
    )  # fmt: skip


def precision_option() -> Option:
    """`--precision`, one of PRECISIONS, with float32 as the default."""
    return click.option(
        "--precision", type=click.Choice(PRECISIONS), default="f32", show_default=True,
        help="What weights are held in: all sums are float32, and the truth is Hugging Face's over the same weights.",
    )  # fmt: skip


def layout_option(default: str | None = None) -> Option:
    """`--layout`, `panels` or `rows`; without a default None stands for what `hloracle tune` found."""
    words = "How floats lie: 16 rows side by side, which is read faster; or as in the checkpoint."
    return click.option(
        "--layout", type=click.Choice(["panels", "rows"]), default=default, show_default=default is not None,
        help=words if default else f"{words} When not given, what `hloracle tune` found here, or else panels.",
    )  # fmt: skip


def joined_option(default: bool | None = None) -> Option:
    """`--joined/--separate`; without a default None stands for what `hloracle tune` found."""
    return click.option(
        "--joined/--separate", "joined", default=default, show_default=default is not None,
        help="Whether weights that are multiplied with the same values, such as q_proj, k_proj and v_proj, are one.",
    )  # fmt: skip


def device_options(function: Callable[..., int]) -> Callable[..., int]:
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


def threads_option() -> Option:
    """`--threads`, at least 1; None where it is not given, which a command reads as `threads_available()`."""
    return click.option(
        "--threads", type=click.IntRange(1), default=None, help="CPU threads; all that are available when not given."
    )


timeout_option: Option = click.option(
    "--timeout", type=float, default=1800, show_default=True, metavar="SECONDS",
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
            terminal.print(f"[green]✓[/] {stage:<28} [dim]{seconds:6.1f} s{'  reused' if reused else ''}[/]")

        yield Progress(lambda line: status.update(f"[dim]{line}[/]"), finished)


def prepare_folder(out: Path) -> None:
    """Find out before the work, not after it, that the report cannot be written."""
    from hloracle.core.cache import write_file

    write_file(out / ".hloracle", "")
    (out / ".hloracle").unlink()
