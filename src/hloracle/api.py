"""The public functions: what `import hloracle` gives, and what the pytest plugin and `hloracle run`, `check`, `suite` call."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

from typing_extensions import Unpack

from hloracle.backends.choice import Choice as BackendChoice
from hloracle.backends.custom_calls import open_targets
from hloracle.backends.devices import open_device
from hloracle.backends.named import BUILT_IN, backends_on, chosen, make_backend
from hloracle.backends.session import Backend, Session
from hloracle.conformance.context import TIMEOUT_SECONDS, Context, Fault, Progress
from hloracle.conformance.graphs import sources as graph_sources
from hloracle.conformance.graphs.sources import open_files
from hloracle.conformance.matrix import EMITTER
from hloracle.conformance.project.file import NAME as PROJECT
from hloracle.conformance.project.file import Project, find_project
from hloracle.conformance.settings import Settings
from hloracle.core import record as records
from hloracle.core.abi import Graph
from hloracle.core.bounds import JOBS, SECONDS, THREADS
from hloracle.core.environment import threads_available
from hloracle.core.errors import InputError
from hloracle.core.folder import prepare_reproducer
from hloracle.core.shown import shown
from hloracle.production.choice import LAYOUTS, Choice, production_graphs, untuned
from hloracle.production.serving import Batch
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.archive import archive_of
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.contract import GraphSpec, check_contract, refuse_beside_int8

PathLike = str | os.PathLike[str]
ModelLike = PathLike | Checkpoint
SourceLike = str | graph_sources.Source | Callable[[graph_sources.Request], Graph | None]
BackendLike = str | Callable[[int], Backend] | BackendChoice
# What options may be, and how that is said. What is no key here is refused where it is used.
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("tokens", "capacity", "rounds", "bucket", "batch"), ((int,), "an int")),
    "threads": ((int, type(None)), f"an int from 1 to {THREADS}"),
    "jobs": ((int, type(None)), f"an int from 1 to {JOBS}"),
    **dict.fromkeys(("device", "cuda_target", "precision", "as_", "compute", "kv"), ((str,), "a string")),
    **dict.fromkeys(("reuse", "quick"), ((bool,), "True or False")),
    "timeout": ((int, float), "a number of seconds"),
    "fused": ((bool, type(None)), "True or False"),
    "out": ((str, os.PathLike, type(None)), "a folder"),
    "project": ((str, os.PathLike, type(None)), "the name of a file"),
}
_MOST = {"threads": THREADS, "jobs": JOBS}


class _Shared(TypedDict, total=False):
    device: str
    cuda_target: str
    timeout: float
    reuse: bool
    out: PathLike | None
    progress: Progress
    fault: Fault | None


class _Judged(_Shared, total=False):
    as_: str
    tokens: int
    precision: str
    threads: int | None
    quick: bool


class CheckOptions(_Judged, total=False):
    """What `check` takes besides: what `Options` says, without what a graph from a file says itself."""

    custom_calls: Sequence[str]
    project: PathLike | None


class SuiteOptions(_Judged, total=False):
    """What `suite` takes besides: what `Options` says.

    device, cuda_target, timeout, reuse, capacity, batch, compute, ring and kv hold for every run. The others are of the real model: a
    tiny one is given 48 tokens after each prompt, float32 weights and one thread, and 111 cache slots where no capacity is given.
    out: the folder of the reproducers, a family's in families/NAME.
    """

    capacity: int
    layout: str | None
    fused: bool | None
    rounds: int
    batch: int
    compute: str
    ring: bool
    kv: str


ALIKE = frozenset({"capacity", "batch", "compute", "ring", "kv"})  # of every run of a suite, and a setting by that name


class Options(CheckOptions, SuiteOptions, total=False):
    """What `run` takes besides.

    as_: the architecture that the model is one of, such as `llama`, where its config.json has a `model_type` of its own.
    tokens: how many are compared after each prompt; 48. capacity: cache slots of the graphs that a source is asked for; 256.
    precision: what the graphs hold weights in: `f32`, `bf16`, `f16`, `int8` or `int4`. layout, fused: how the bundled emitter
      lays float weights out (`panels`, `rows`), and whether those that are multiplied with the same values are one.
    batch: rows of the graphs that a source is asked for; 1. Of several, each has a sequence of its own, at its own position.
    compute: what the model is computed in: `f32`, `bf16` or `f16`. Of less than f32 errors are held to Hugging Face's in that type.
    ring: whether layers with a window that is shorter than the capacity have caches as long as their window; False.
    kv: what keys and values are kept in: `compute`, which is what the model is computed in, or `int8`, with a scale for each slot of each
      head. Of int8 errors are held to those of Hugging Face with keys and values rounded so.
    device, cuda_target: where IREE runs the graphs (`cpu`, `cuda:0`, …), and what is compiled for on CUDA.
    threads: of IREE, or of a backend of your own; all processors. XLA takes all cores, whatever is said here.
    timeout: seconds that a source on a backend may take; 1800.
    reuse: whether outcomes are taken from the cache; True. rounds: of the speed comparison; 0 leaves it out.
    quick: one bucket, and the anchors on one backend alone. out: the folder where a reproducer goes; none is written if not
      given. custom_calls: `TARGET=LIBRARY` of each custom_call that the graphs may have.
    project: the file that says what the graphs of your own are held to; `hloracle.toml` in the working directory, if there is
      one. The bundled emitter has its own.
    progress, fault: what the command line gives: who is told of the stages, and a deliberate fault. Not of the public API.
    """


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

    def __repr__(self) -> str:
        return f"<Record {self.data['verdict']['class']}: {self.data['model']['name']}>"

    @property
    def passed(self) -> bool:
        """Whether the graphs conform, near-ties included."""
        return self.data["passed"]

    @property
    def verdict(self) -> Verdict:
        """What follows from all of it: the class, the place, and what was compared."""
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
    model: ModelLike, sources: SourceLike | Sequence[SourceLike] = (EMITTER,),
    backends: BackendLike | Sequence[BackendLike] | None = None,
    **options: Unpack[Options],
) -> Record:  # fmt: skip
    """Judge the graphs that sources give of a model.

    Each source's graphs and the oracle's run on each backend, over several prompts, and are held to Hugging Face
    transformers: tokens, logits, caches, and the values at anchors.

    Args:
      model: a checkpoint directory, a .gguf file, a name that `hloracle models` lists, or a `Model`, which is its directory.
      sources: names (`emitter`, or an entry point of `hloracle.sources`), functions from `Request` to `Graph`, or what
        `@hloracle.source` makes of one. A single one need not be in a list, here and wherever there may be several.
      backends: words of docs/backends.md (`iree-cpu`, `iree==3.12.0`, an entry point of `hloracle.backends`, …), what `worker`
        gives, or classes that, called with a number of threads, give a `Backend`. IREE and XLA on the processor by default,
        and the device that `device` names.
      options: see `Options`.

    Raises InputError when the run cannot start, or an option would have no effect; whatever fails later is in the record.
    """
    from hloracle.conformance.run import run as run_all

    _known(options, Options, "run")
    opened = graph_sources.chosen(_several(sources))
    if not any(isinstance(source, graph_sources.Emitter) for source in opened):
        _without_effect(options, ("layout", "fused"), "what other sources write", f"name {EMITTER!r} among the sources")
    project = None
    if all(isinstance(source, graph_sources.Emitter) for source in opened):
        _without_effect(options, ("project",), "the bundled emitter", "name a source of your own")
    else:
        project = _project(options)
    context = _context(backends, options)
    return Record(run_all(_settings(model, options, context, project), context, opened))


def check(
    *graphs: PathLike, model: ModelLike | None = None, abi: PathLike | Sequence[PathLike] | None = None,
    backends: BackendLike | Sequence[BackendLike] | None = None, **options: Unpack[CheckOptions],
) -> Record:  # fmt: skip
    """Judge graphs from files against a model: a decode graph, prefill graphs, or those of one session together.

    This is `run` with the files as the source. A decode graph without a prefill is given the prompts token by token.

    Args:
      graphs: StableHLO text. abi: the ABI file of each graph, in order; what the project's file says, or else
        `NAME.abi.json` beside NAME.mlir, if not given.
      model, backends: see `run`; the model is the one that the project's file names, if not given.
      options: see `CheckOptions`.

    Raises InputError when a file cannot be used or does not fit the model, or an option would have no effect.
    """
    from hloracle.conformance.run import run as run_all

    _known(options, CheckOptions, "check")
    if not graphs:
        raise InputError("are none", "graphs", "name at least one file")
    save = "save it with Graph.save and give that name, or give hloracle.run a source that returns it"
    project = _project(options)
    model = _model_of(project) if model is None else model
    named = [] if abi is None else _several(abi)
    if not named and project:
        named = list(project.abi)
    files = open_files(
        [_file(graph, "a graph", save) for graph in graphs],
        [_file(one, "abi", "give that of the ABI file") for one in named],
    )
    context = _context(backends, options)
    settings = dataclasses.replace(_settings(model, options, context, project), compute=files.compute, kv=files.kv)
    return Record(run_all(settings, context, [files]))


def suite(
    families: str | Sequence[str] = (), model: ModelLike | None = None, jobs: int | None = None,
    keep: Callable[[str, Record], str] | None = None, **options: Unpack[SuiteOptions],
) -> Record:  # fmt: skip
    """Judge the bundled emitter on a tiny model of each family, and a real model in full beside them.

    Args:
      families: such as `llama`; all by default. model: the real one; none by default.
      jobs: families at a time; all processors.
      keep: is called with a family's name and record as each ends, and returns where the family's own page is, or "".
      options: see `SuiteOptions`.

    Returns the record of the real model, or without one of the first family, with a row for each.
    Raises InputError for no family, for a real model that cannot be run, and for an option that would have no effect.
    """
    from hloracle.conformance.suite import Told, run_suite, selected
    from hloracle.studies.mutants import counted

    _known(options, SuiteOptions, "suite")
    if model is None:
        of_the_model = SuiteOptions.__optional_keys__ - _Shared.__optional_keys__ - ALIKE
        _without_effect(options, sorted(of_the_model), "the tiny models", "give a model that is run beside them")
    _typed({"jobs": jobs})
    chosen_families = selected(_several(families))
    context = _context(None, options)
    real = _settings(model, options, context) if model is not None else None
    page = keep or (lambda name, record: "")
    told = Told(lambda name, record: page(name, Record(record)), counted)
    alike = {name: value for name, value in options.items() if name in ALIKE}
    return Record(run_suite(chosen_families, real, jobs or threads_available(), _out(options), told, context, alike))


def emit(
    model: ModelLike, phase: str = "decode", head: str = "logits", bucket: int = 64, capacity: int = 256,
    precision: str = "f32", batch: int = 1, compute: str = "f32", ring: bool = False, kv: str = "compute",
) -> Graph:  # fmt: skip
    """A graph of the bundled emitter, with its ABI.

    Args:
      phase: `decode`, `prefill`, or `extend`, which appends tokens to a row; bucket: tokens of a prefill or an extend, 32, 64,
        128 or 256. head: `logits` f32[V] or `token` i32; of a decode of several rows f32[B, V] or i32[B].
      capacity: slots S of the caches, [layers, K, S, D]. precision: what weights are held in.
      batch: rows B; of several, the caches are [layers, B, K, S, D].
      compute: what values between modules, caches and weights are of: `f32`, `bf16` or `f16`.
      ring: layers with a window W that is shorter than S are in k_ring and v_ring, [layers, K, W, D].
      kv: `int8` for caches of integers, with k_scale and v_scale [layers, K, S]; `compute` for caches of what it computes in.

    Raises InputError for an argument that no graph is written for, and as `open_model` does.
    """
    spec = GraphSpec(phase, head, capacity, bucket if phase != "decode" else 0, batch, compute, ring, kv)
    _, (graph,) = _emitted(model, precision, [spec])
    return graph


def open_model(model: ModelLike, precision: str = "f32", as_: str = "", compute: str = "f32") -> Checkpoint:
    """A checkpoint with its config: a directory, a .gguf file, or a name that `hloracle models` lists.

    Args:
      as_: the architecture that it is one of, such as `llama`, where its config.json has a `model_type` of its own.
      compute: what it is to be computed in: `f32`, or `bf16` or `f16`, of which all of its weights are then.

    Raises InputError where there is no such model, its config is not understood, or it is not to be had in the precision.
    """
    _typed({"precision": precision, "as_": as_, "compute": compute})
    return open_checkpoint(resolve(_named(model), precision=precision, as_=as_, compute=compute))


def open_session(
    model: ModelLike, capacity: int = 256, buckets: Sequence[int] = (32, 64, 128, 256), precision: str = "f32",
    backend: str = BUILT_IN[0], threads: int | None = None, compute: str = "f32", ring: bool = False,
    kv: str = "compute",
) -> Session:  # fmt: skip
    """A session on the bundled emitter's graphs, which pick the token themselves: greedy, of one sequence.

    Args:
      capacity: cache slots. buckets: the longest prompt of each prefill graph; those within the capacity are compiled.
      compute: what values between modules, caches and weights are of: `f32`, `bf16` or `f16`. ring, kv: see `emit`.

    Raises InputError as `emit` does and for a backend that is not built in, and ToolchainError where one fails.
    """
    _typed({"threads": threads, "capacity": capacity})
    specs = [
        GraphSpec("decode", "token", capacity, compute=compute, ring=ring, kv=kv),
        *(
            GraphSpec("prefill", "token", capacity, b, compute=compute, ring=ring, kv=kv)
            for b in buckets
            if b <= capacity
        ),
    ]
    return _opened(model, precision, specs, backend, threads)


def open_batch(
    model: ModelLike, batch: int = 4, capacity: int = 256, chunks: Sequence[int] = (64,), head: str = "logits",
    precision: str = "f32", backend: str = BUILT_IN[0], threads: int | None = None, compute: str = "f32", ring: bool = False,
    kv: str = "compute",
) -> Batch:  # fmt: skip
    """A batch on the bundled emitter's graphs: many sequences at once, each with its own length and its own sampling.

    Args:
      batch: rows, each of which holds a sequence. capacity: cache slots of a row.
      chunks: how many tokens of a prompt go at once; of several, the smallest that holds what is left. head: `logits`, or `token`
        where nothing is drawn, which is faster: the graphs then pick the most likely token themselves.
      compute: as of `open_session`; logits are float32 of any. ring, kv: see `emit`.

    Raises InputError as `emit` does and for a backend that is not built in, and ToolchainError where one fails.
    """
    _typed({"threads": threads, "capacity": capacity, "batch": batch})
    specs = [GraphSpec("decode", head, capacity, 0, batch, compute, ring, kv)]
    specs += [GraphSpec("extend", head, capacity, chunk, batch, compute, ring, kv) for chunk in dict.fromkeys(chunks)]
    return Batch(_opened(model, precision, specs, backend, threads))


def generate(
    model: ModelLike, prompt: str, count: int = 48, raw: bool = False, precision: str = "f32", as_: str = "",
    compute: str = "f32",
) -> Iterator[str]:  # fmt: skip
    """Continue a prompt at temperature 0, in pieces that are whole characters; ends at an end-of-text token.

    Args:
      count: at most so many tokens. raw: give the prompt as it is, without the model's chat template. as_, compute: see
        `open_model`.

    Raises InputError for what names no model. Raises, when the first piece is asked for, InputError for a model without a
    tokenizer, a prompt that is empty or too long, and as `open_model` does; and ToolchainError where IREE fails.
    """
    from hloracle.production.generate import Engine, Wanted, generate_text

    engine = Engine(EMITTER, BUILT_IN[0], threads_available(), precision, as_=as_, compute=compute)
    return generate_text(_named(model), Wanted(prompt, count, raw), engine)


def _opened(model: ModelLike, precision: str, specs: Sequence[GraphSpec], backend: str, threads: int | None) -> Session:
    opened, graphs = _emitted(model, precision, specs)
    weight = archive_of(opened, graphs[0].abi.weights).load
    return Session(make_backend(backend, threads or threads_available()), graphs, weight)


def _emitted(
    model: ModelLike, precision: str, specs: Sequence[GraphSpec]
) -> tuple[Checkpoint, list[Graph]]:  # fmt: skip
    """A model, and its graphs of these, which are looked at before the model is."""
    for spec in specs:
        _typed({"capacity": spec.capacity, "bucket": spec.bucket, "batch": spec.batch, "kv": spec.kv})
        check_contract(*spec[:5])
        refuse_beside_int8(spec.kv, spec.compute, spec.ring)
    first = specs[0]
    opened = open_model(model, precision, compute=first.compute)
    choice = untuned(batch=first.batch, precision=precision, compute=first.compute)
    return opened, production_graphs(opened, precision, choice, specs)


# ---- what options mean


def _named(model: Any) -> str:
    """What names a model. Raises InputError for what does not."""
    if isinstance(model, Checkpoint):
        return str(model.directory)
    if isinstance(model, str | os.PathLike):
        return os.fsdecode(model)
    what = "give a checkpoint directory, a .gguf file, a name that `hloracle models` lists, or a hloracle.Model"
    raise InputError("is no model", shown(repr(model), 100), what)


def _known(options: Mapping[str, Any], kind: Any, function: str) -> None:
    """Raises InputError for a key that is not one of the kind's: Python itself lets any through."""
    for key in options:
        if key not in kind.__optional_keys__:
            what = "has no effect in" if key in Options.__optional_keys__ else "is no option of"
            takes = ", ".join(sorted(kind.__optional_keys__ - {"fault", "progress"}))
            raise InputError(f"{what} hloracle.{function}", key, f"leave it out; there are {takes}")
    _typed(options)


def _typed(options: Mapping[str, Any]) -> None:
    """Raises InputError for an option that is of another type than it has: far below, it would fail in other words."""
    for key, value in options.items():
        types, words = _TYPES.get(key, ((object,), ""))
        wrong = not isinstance(value, types) or (isinstance(value, bool) and bool not in types and object not in types)
        if wrong or (key in _MOST and value is not None and not 0 < value <= _MOST[key]):
            raise InputError(f"is {shown(repr(value), 100)}", key, f"give {words}")


def _several(given: Any) -> list[Any]:
    """What is given as a list; a single name, function or class is a list of one."""
    if isinstance(given, str | os.PathLike) or callable(given) or not isinstance(given, Iterable):
        return [given]
    return list(given)


def _file(given: Any, what: str, instead: str) -> Path:
    """A file's path. Raises InputError for anything else."""
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"is of type {type(given).__name__}, not the name of a file", what, instead)
    return Path(os.fsdecode(given))


def _without_effect(options: Mapping[str, Any], keys: Sequence[str], on: str, instead: str) -> None:
    """Raises InputError for the first of these keys that is given."""
    for key in keys:
        if options.get(key) is not None:
            raise InputError(f"has no effect on {on}", key, f"leave it out, or {instead}")


def _out(options: _Shared) -> Path | None:
    """The folder of the reproducer. Raises InputError where none can be written: it would be missed after the work."""
    if (out := options.get("out")) is None:
        return None
    prepare_reproducer(Path(out))
    return Path(out)


def _project(options: _Shared) -> Project | None:
    """The project's file that is named, or else that of the working directory, if there is one."""
    given = cast(Options, options).get("project")
    return find_project(None if given is None else Path(given), Path())


def _model_of(project: Project | None) -> str:
    """The model that a project's file names. Raises InputError where it names none."""
    if project and project.model:
        return project.model
    what, where = ("has no `model`", project.path) if project else ("is not given", "model")
    raise InputError(what, where, f"name it with --model, or as `model` in {PROJECT}")


def _settings(model: ModelLike, options: _Shared, context: Context, project: Project | None = None) -> Settings:
    given = cast(Options, options)
    layout, fused = given.get("layout"), given.get("fused")
    if layout not in (None, *LAYOUTS):
        raise InputError(f"is {shown(repr(layout), 100)}", "--layout", f"give one of {', '.join(LAYOUTS)}")
    choice: Choice | None = None
    if layout or fused is not None:
        choice = untuned(
            layout or "", bool(fused), context.device, given.get("batch", 1), given.get("precision", "f32"),
            given.get("compute", "f32"),
        )  # fmt: skip
    return Settings(
        _named(model), given.get("tokens", 48), given.get("capacity", 256), given.get("precision", "f32"), choice,
        _out(options), given.get("rounds", 0), given.get("quick", False), as_=given.get("as_", ""),
        project=project, batch=given.get("batch", 1), compute=given.get("compute", "f32"),
        ring=given.get("ring", False), kv=given.get("kv", "compute"),
    )  # fmt: skip


def _context(backends: Any, options: _Shared) -> Context:
    given = cast(Options, options)
    device = open_device(given.get("device", "cpu"), given.get("cuda_target", ""))
    timeout = given.get("timeout", TIMEOUT_SECONDS)
    if not 0 < timeout <= SECONDS:
        raise InputError(f"is {timeout:g}", "--timeout", f"give a number of seconds, at most {SECONDS:.0f}")
    return Context(
        given.get("progress") or Progress(),
        chosen(backends_on(device) if backends is None else _several(backends), device),
        device,
        given.get("threads") or threads_available(),
        open_targets(_several(given.get("custom_calls", ()))),
        timeout,
        given.get("reuse", True),
        given.get("fault"),
    )
