"""The public functions: what `import hloracle` gives, and what the command line and the pytest plugin call."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from typing_extensions import Unpack

from hloracle.backends.custom_calls import open_targets
from hloracle.backends.devices import open_device
from hloracle.backends.named import BUILT_IN, backends_on, chosen, make_backend
from hloracle.backends.session import Session
from hloracle.conformance.context import TIMEOUT_SECONDS, Context, Fault, Progress
from hloracle.conformance.graphs import sources as graph_sources
from hloracle.conformance.graphs.sources import open_files
from hloracle.conformance.matrix import EMITTER
from hloracle.conformance.settings import Settings
from hloracle.core import record as records
from hloracle.core.abi import Graph
from hloracle.core.environment import threads_available
from hloracle.core.errors import InputError
from hloracle.production.choice import Choice, production_graphs, untuned
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.archive import archive_of
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint

PathLike = str | os.PathLike[str]


class Options(TypedDict, total=False):
    """What `run`, `check` and `suite` take besides.

    tokens: how many are compared after each prompt; 48. capacity: cache slots of the graphs that a source is asked for; 256.
    precision: what the graphs hold weights in: `f32`, `bf16`, `f16`, `int8` or `int4`. layout, fused: how the bundled emitter
      lays float weights out (`panels`, `rows`), and whether those that are multiplied with the same values are one.
    device, cuda_target: where IREE runs the graphs (`cpu`, `cuda:0`, …), and what is compiled for on CUDA.
    threads: of a backend; all processors. timeout: seconds that a source on a backend may take; 1800.
    reuse: whether outcomes are taken from the cache; True. rounds: of the speed comparison; 0 leaves it out.
    quick: one bucket, and the anchors on one backend alone. out: the folder where a reproducer goes; none is written if not
      given. custom_calls: `TARGET=LIBRARY` of each custom_call that the graphs may have.
    progress: is told of the stages. fault: a deliberate fault that the run carries, to see it noticed.
    """

    tokens: int
    capacity: int
    precision: str
    layout: str | None
    fused: bool | None
    device: str
    cuda_target: str
    threads: int | None
    timeout: float
    reuse: bool
    rounds: int
    quick: bool
    out: PathLike | None
    custom_calls: Sequence[str]
    progress: Progress
    fault: Fault | None


@dataclass(frozen=True)
class Verdict:
    """What follows from all checks of a run; as a string it is one paragraph.

    class_: such as `conforms` or `emitter-fault`; docs/checks.md lists them. explanation: in a sentence.
    anchor, operation: the first value that is wrong, and the operation that made it. sure: `certain`, `likely`, `possible`, or
      empty for a verdict that passes; because: the observations that it rests on.
    compared, not_compared: in phrases, what was compared and what was not.
    """

    class_: str
    explanation: str
    anchor: str | None
    operation: str | None
    sure: str
    because: tuple[str, ...]
    compared: tuple[str, ...]
    not_compared: tuple[str, ...]

    def __str__(self) -> str:
        words = f"{self.class_}: {self.explanation}"
        if self.anchor:
            words += f" First wrong: {self.anchor}" + (f", {self.operation}." if self.operation else ".")
        if self.sure:
            words += f" How sure: {self.sure} ({'; '.join(self.because)})."
        return words


@dataclass(frozen=True)
class Record:
    """Everything that a run found. `data` is the record itself, whose form reports/report.schema.json describes."""

    data: records.Record

    @property
    def passed(self) -> bool:
        """Whether the graphs conform, near-ties included."""
        return self.data["passed"]

    @property
    def verdict(self) -> Verdict:
        found = self.data["verdict"]
        sure = found["confidence"]
        return Verdict(
            found["class"], found["explanation"], found["anchor"], found["operation"],
            sure["level"] if sure else "", tuple(sure["because"]) if sure else (),
            tuple(found["compared"]), tuple(found["not_compared"]),
        )  # fmt: skip

    def save(self, folder: PathLike) -> Path:
        """Write report.html, report.json, summary.md and junit.xml to a folder, and return the folder.

        Files of an earlier run are replaced. Raises InputError where one cannot be written.
        """
        from hloracle.reports.record import write_all

        write_all(self.data, Path(folder))
        return Path(folder)

    @staticmethod
    def load(path: PathLike) -> Record:
        """Read a report.json. Raises InputError that says what is wrong with the file."""
        from hloracle.reports.record import load

        return Record(load(Path(path)))


def run(
    model: PathLike, sources: Sequence[Any] = (EMITTER,), backends: Sequence[Any] | None = None,
    **options: Unpack[Options],
) -> Record:  # fmt: skip
    """Judge the graphs that sources give of a model.

    Each source's graphs and the oracle's run on each backend, over several prompts, and are held to Hugging Face
    transformers: tokens, logits, caches, and the values at anchors.

    Args:
      model: a checkpoint directory, a .gguf file, or a name that `hloracle models` lists.
      sources: names (`emitter`, or an entry point of `hloracle.sources`), functions from `Request` to `Graph`, or what
        `@hloracle.source` makes of one.
      backends: names (`iree-cpu`, `xla-cpu`, or an entry point of `hloracle.backends`), or classes that, called with a number
        of threads, give a `Backend`. Both compilers by default, and the device that `device` names.
      options: see `Options`.

    Raises InputError when the run cannot start; whatever fails later is in the record.
    """
    from hloracle.conformance.run import run as run_all

    context = _context(backends, options)
    return Record(run_all(_settings(model, options, context), context, graph_sources.chosen(sources)))


def check(
    *graphs: PathLike, model: PathLike, abi: PathLike | Sequence[PathLike] | None = None,
    backends: Sequence[Any] | None = None, **options: Unpack[Options],
) -> Record:  # fmt: skip
    """Judge graphs from files against a model: a decode graph, prefill graphs, or those of one session together.

    This is `run` with the files as the source. A decode graph without a prefill is given the prompts token by token.

    Args:
      graphs: StableHLO text. abi: the ABI file of each graph, in order; `NAME.abi.json` beside NAME.mlir, if not given.
      model, backends, options: see `run`.

    Raises InputError when a file cannot be used, or does not fit the model.
    """
    from hloracle.conformance.run import run as run_all

    if not graphs:
        raise InputError("are none", "graphs", "name at least one file")
    named = [abi] if isinstance(abi, str | os.PathLike) else list(abi or ())
    files = open_files([Path(graph) for graph in graphs], [Path(one) for one in named])
    context = _context(backends, options)
    return Record(run_all(_settings(model, options, context), context, [files]))


def suite(
    families: Sequence[str] = (), model: PathLike | None = None, jobs: int | None = None,
    told: Any = None, **options: Unpack[Options],
) -> Record:  # fmt: skip
    """Judge the bundled emitter on a tiny model of each family, and a real model in full beside them.

    Args:
      families: such as `llama`; all by default. model: the real one; none by default.
      jobs: families at a time; all processors. told: what is done with a family's record as it comes: see `Told`.
      options: see `Options`; `out` is the folder of the families' pages.

    Returns the record of the real model, or without one of the first family, with a row for each.
    """
    from hloracle.conformance.suite import Told, run_suite, selected

    context = _context(None, options)
    out = Path(options.get("out") or "out")
    real = _settings(model, options, context) if model is not None else None
    found = run_suite(selected(families), real, jobs or threads_available(), out, told or Told(), context)
    return Record(found)


def emit(
    model: PathLike, phase: str = "decode", head: str = "logits", bucket: int = 64, capacity: int = 256,
    precision: str = "f32",
) -> Graph:  # fmt: skip
    """A graph of the bundled emitter, with its ABI.

    Args:
      phase: `decode` or `prefill`; bucket: tokens of a prefill. head: `logits` f32[V] or `token` i32.
      capacity: slots S of the caches, [layers, K, S, D]. precision: what weights are held in.
    """
    opened = open_model(model, precision)
    spec = (phase, head, capacity, bucket if phase == "prefill" else 0)
    return production_graphs(opened, precision, untuned(), [spec])[0]


def open_model(model: PathLike, precision: str = "f32") -> Checkpoint:
    """A checkpoint with its config: a directory, a .gguf file, or a name that `hloracle models` lists."""
    return open_checkpoint(resolve(str(model), precision=precision))


def open_session(
    model: PathLike, capacity: int = 256, buckets: Sequence[int] = (32, 64, 128, 256), precision: str = "f32",
    backend: str = BUILT_IN[0], threads: int | None = None,
) -> Session:  # fmt: skip
    """A session on the bundled emitter's graphs, which pick the token themselves: greedy, of one sequence.

    Args:
      capacity: cache slots. buckets: the longest prompt of each prefill graph; those within the capacity are compiled.
    """
    opened = open_model(model, precision)
    specs = [("decode", "token", capacity, 0), *(("prefill", "token", capacity, b) for b in buckets if b <= capacity)]
    graphs = production_graphs(opened, precision, untuned(), specs)
    weight = archive_of(opened, graphs[0].abi.weights).load
    return Session(make_backend(backend, threads or threads_available()), graphs, weight)


def generate(model: PathLike, prompt: str, count: int = 48, raw: bool = False, precision: str = "f32") -> Iterator[str]:
    """Continue a prompt at temperature 0, in pieces that are whole characters; ends at an end-of-text token.

    Args:
      count: at most so many tokens. raw: give the prompt as it is, without the model's chat template.
    """
    from hloracle.production.generate import Engine, generate_text

    engine = Engine(EMITTER, BUILT_IN[0], threads_available(), precision)
    return generate_text(str(model), prompt, count, raw, engine)


# ---- what options mean


def _settings(model: PathLike, options: Options, context: Context) -> Settings:
    layout, fused = options.get("layout"), options.get("fused")
    choice: Choice | None = None
    if layout or fused is not None:
        choice = untuned(layout or "", bool(fused), context.device)
    out = options.get("out")
    return Settings(
        str(model), options.get("tokens", 48), options.get("capacity", 256), options.get("precision", "f32"), choice,
        Path(out) if out is not None else None, options.get("rounds", 0), options.get("quick", False),
    )  # fmt: skip


def _context(backends: Sequence[Any] | None, options: Options) -> Context:
    device = open_device(options.get("device", "cpu"), options.get("cuda_target", ""))
    timeout = options.get("timeout", TIMEOUT_SECONDS)
    if not timeout > 0:
        raise InputError(f"is {timeout:g}", "--timeout", "give a number of seconds")
    return Context(
        options.get("progress") or Progress(),
        chosen(backends_on(device) if backends is None else backends, device),
        device,
        options.get("threads") or threads_available(),
        open_targets(options.get("custom_calls", ())),
        timeout,
        options.get("reuse", True),
        options.get("fault"),
    )
