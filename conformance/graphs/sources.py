"""Where graphs come from: the bundled emitter, the oracle, files, a function of the user's, an installed package."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, overload

from hloracle import reference
from hloracle.backends.devices import CPU, Device
from hloracle.backends.named import load_entry_point
from hloracle.conformance.context import Context
from hloracle.conformance.graphs.facts import Inspected, inspect
from hloracle.conformance.graphs.files import fits, read_graph
from hloracle.conformance.matrix import EMITTER, FILE, ORACLE
from hloracle.core.abi import Graph
from hloracle.core.errors import InputError, ToolchainError, told
from hloracle.core.shown import shown
from hloracle.foreign.file import AbiFile, read_abi_file
from hloracle.production.choice import Choice, production_graph, untuned
from hloracle.reference.model.checkpoint import Checkpoint
from hloracle.reference.model.config import Config
from hloracle.reference.model.contract import GraphSpec, graph_abi

ENTRY_POINTS = "hloracle.sources"
NAME_IT = "give hloracle.source(it, name='mine')"


@dataclass(frozen=True)
class Request:
    """Which graph of a model a source is asked for.

    phase: `prefill`, of prompts of up to `bucket` tokens; `extend`, of up to `bucket` more tokens of a row; or `decode`, of one
      token a row; bucket is 0 then.
    head: what the graph answers with: `logits` f32[V], or `token` i32.
    capacity: slots S of the caches [L, K, S, D]. precision: what its weights are held in, such as `f32`.
    device: what it is written for. batch: rows B; of several, the caches are [L, B, K, S, D]. ring: layers with a window that is
      shorter than the capacity are in k_ring and v_ring [L, K, W, D], where position p is in slot p mod W, and the others alone in
      the caches. Where `model.kv` is `int8`, the caches are, and k_scale and v_scale [L, K, S] are beside them.
    """

    model: Checkpoint
    phase: str
    head: str
    capacity: int
    bucket: int = 0
    precision: str = "f32"
    device: Device = CPU
    batch: int = 1
    ring: bool = False

    @property
    def spec(self) -> GraphSpec:
        """Which graph of its model it is."""
        sizes = (self.capacity, self.bucket, self.batch)
        return GraphSpec(self.phase, self.head, *sizes, self.model.compute, self.ring, self.model.kv)

    @property
    def config(self) -> Config:
        """The model's config as `from_hf` reads it, whose fields are named by the keys of Hugging Face."""
        return self.model.config


class Source(Protocol):
    """Gives graphs of a model."""

    @property
    def name(self) -> str:
        """What it is called in a record: neither `oracle` nor anything with a slash."""
        ...

    @property
    def counts_as(self) -> str:
        """The source whose pinned counts of operations, products and tables hold for its graphs, such as `emitter`.

        It is empty for none, and then these checks are skipped.
        """
        ...

    def __call__(self, request: Request) -> Graph | None:
        """The graph, with its ABI; None where the source has no such one."""


@dataclass(frozen=True)
class Function:
    """A function as a source: see `source`."""

    name: str
    function: Callable[[Request], Graph | None]
    counts_as: str = ""

    def __call__(self, request: Request) -> Graph | None:
        return self.function(request)


@overload
def source(function: Callable[[Request], Graph | None], *, name: str = "", counts_as: str = "") -> Source: ...


@overload
def source(
    function: None = None, *, name: str = "", counts_as: str = ""
) -> Callable[[Callable[[Request], Graph | None]], Source]: ...


def source(function: Any = None, *, name: str = "", counts_as: str = "") -> Any:
    """Make a source of a function from a `Request` to a `Graph`, or to None where it has no such graph.

    Used as `@source`, or as `@source(name="mine")`. name: that of the function, if not given. counts_as: see `Source`.
    """
    if function is None:
        return lambda f: source(f, name=name, counts_as=counts_as)
    if not (name := name or _name(function)):
        raise InputError("has no name", shown(repr(function), 100), NAME_IT)
    return Function(name, function, counts_as)


def _name(function: Any) -> str:
    """What a source calls itself, or its function is called; empty for one without a name, such as a partial."""
    return str(getattr(function, "name", getattr(function, "__name__", "")))


@dataclass(frozen=True)
class Emitter:
    """The bundled emitter. choice: how it writes graphs, and how IREE compiles them; None takes what is taken everywhere."""

    choice: Choice | None = None
    name: str = EMITTER
    counts_as: str = EMITTER

    def __call__(self, request: Request) -> Graph | None:
        choice = self.choice
        if choice is None or request.device.remote != choice.on_device:
            held = (request.batch, request.precision, request.model.compute)
            choice = untuned("", False, request.device, *held)
        layout = request.model.layout(request.precision, choice.layout == "panels", choice.fused, request.batch)
        return production_graph(request.config, request.spec, layout, choice)


@dataclass(frozen=True)
class Files:
    """Graphs from files, each with its ABI file: those of one session, of one head and capacity.

    graphs: their texts, none of them parsed. emitter: the ABI file of the emitter that wrote them all, in place of one for
    each; the graphs are adapted to the contract once the model is known, see `read_foreign`.
    """

    paths: tuple[Path, ...]
    abi_paths: tuple[Path, ...]
    graphs: tuple[Graph, ...]
    emitter: AbiFile | None = None
    name: str = FILE
    counts_as: str = ""

    @property
    def compute(self) -> str:
        """What its graphs compute in, which is what the model has to be computed in; those that are adapted in float32."""
        return self.graphs[0].abi.compute if self.graphs else "f32"

    @property
    def kv(self) -> str:
        """What its graphs keep keys and values in; those that are adapted in float32."""
        return self.graphs[0].abi.kv if self.graphs else "compute"

    def __call__(self, request: Request) -> Graph | None:
        return next((g for g in self.graphs if specification(g) == request.spec), None)


def open_files(paths: Sequence[Path], abi_paths: Sequence[Path] = ()) -> Files:
    """Read graphs with their ABI files; `NAME.abi.json` beside each, if none are named.

    Raises InputError where a file cannot be read, or one session cannot run them all.
    """
    if emitter := _emitters(paths, abi_paths):
        return Files(tuple(paths), (emitter.path,) * len(paths), (), emitter)
    abi_paths = abi_paths or [path.parent / f"{path.stem}.abi.json" for path in paths]
    if len(abi_paths) != len(paths):
        raise InputError(
            f"is given {len(abi_paths)} times for {len(paths)} graphs", "--abi", "give one for each, in order"
        )
    graphs = [read_graph(path, abi) for path, abi in zip(paths, abi_paths, strict=True)]
    _one_session(graphs, [str(path) for path in paths])
    return Files(tuple(paths), tuple(abi_paths), tuple(graphs))


def _emitters(paths: Sequence[Path], abi_paths: Sequence[Path]) -> AbiFile | None:
    """The ABI file of the emitter of all graphs: the one that is named, or `abi.toml` beside them; None without one."""
    if not abi_paths:
        own = [path.parent / f"{path.stem}.abi.json" for path in paths]
        beside = {path.parent / "abi.toml" for path in own if not os.path.exists(path)}
        abi_paths = [path for path in beside if os.path.exists(path)]
    return read_abi_file(abi_paths[0]) if len(abi_paths) == 1 and abi_paths[0].suffix == ".toml" else None


def read_foreign(context: Context, files: Files, model: Checkpoint) -> Files:
    """The same with the graphs read and adapted to the contract. Called in a child process."""
    from hloracle.foreign.opening import open_graphs

    assert files.emitter
    context.report("reading the graphs, and adapting them")
    graphs = open_graphs(files.paths, files.emitter, model)
    _one_session(graphs, [str(path) for path in files.paths])
    return dataclasses.replace(files, graphs=tuple(graphs))


def chosen(sources: Iterable[Any]) -> tuple[Source, ...]:
    """Sources by name (`emitter`, or an entry point of `hloracle.sources`), or as values. Raises InputError."""
    found: list[Source] = []
    plugins = {e.name: e for e in entry_points(group=ENTRY_POINTS)}
    for one in sources:
        if isinstance(one, str):
            if one != EMITTER and one not in plugins:
                known = ", ".join([EMITTER, *plugins])
                raise InputError(
                    "is no source", shown(repr(one), 100), f"name some of: {known}; or give a function, or files"
                )
            found.append(Emitter() if one == EMITTER else _given(load_entry_point(plugins[one]), one))
        else:
            found.append(_given(one))
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise InputError("is given twice", f"source {name!r}", "give it once, or each another name")
        if not name or name == ORACLE or "/" in name:
            raise InputError("cannot be the name of a source here", repr(name), "give each another name")
    if not found:
        raise InputError("are none", "sources", f"give at least one, such as {EMITTER!r}")
    return tuple(found)


def _given(value: Any, name: str = "") -> Source:
    """A value as a source; one of an installed package is called what its entry point is."""
    if not callable(value):
        raise InputError(
            "is no source", shown(repr(value), 100), "give a function from hloracle.Request to hloracle.Graph"
        )
    given: Any = value
    if hasattr(given, "counts_as") and hasattr(given, "name"):
        found: Source = given
        return found if name in ("", found.name) else Function(name, found, found.counts_as)
    function: Callable[[Request], Graph | None] = given
    return source(function, name=name)


# ---- a source's graphs


def specification(graph: Graph) -> GraphSpec:
    """Which graph of its model it is."""
    abi = graph.abi
    return GraphSpec(abi.phase, abi.head, abi.capacity, abi.bucket, abi.batch, abi.compute, bool(abi.windowed), abi.kv)


def graphs_of(
    source: Source, request: Request, prompt: str, buckets: Sequence[int], heads: Sequence[str]
) -> list[Graph]:
    """All graphs that a source has for a run, held to the model's shapes.

    Raises InputError where it has none, where the ABI of one of them is no contract or does not fit the model.

    Args:
      request: of which phase, head and bucket vary. prompt: the phase of the graphs that a prompt goes through.
    """
    if isinstance(source, Files):
        for given, abi_path in zip(source.graphs, source.abi_paths, strict=True):
            if not given.inner:  # what is adapted was held to the model by its ABI file
                fits(given, abi_path, request.model)
        return list(source.graphs)
    found = []
    for head in heads:
        for phase, bucket in (("decode", 0), *((prompt, bucket) for bucket in buckets)):
            asked = dataclasses.replace(request, phase=phase, head=head, bucket=bucket)
            where = f"source {source.name}, {phase} {bucket or ''}".strip()
            ours = isinstance(source, Emitter)
            graph = source(asked) if ours else _asked(source, asked, where)
            if graph is None:
                continue
            if not ours:
                _valid(graph, where)
            if specification(graph) != asked.spec:
                what = f"gave the graph {specification(graph).name} of {graph.abi.capacity} slots"
                raise InputError(what, where, "give the graph that was asked for")
            if not ours:
                fits(graph, where, request.model)
            found.append(graph)
    if not found:
        raise InputError(
            "has no graph of the model", f"source {source.name}", "give a decode graph, a prefill graph, or both"
        )
    return found


def _asked(source: Source, request: Request, where: str) -> Graph | None:
    """What a source of somebody else's gives. Raises InputError where it raises, or gives something else."""
    try:
        graph: object = source(request)
    except (InputError, ToolchainError):
        raise
    except Exception as error:
        raise InputError(f"raised {told(error, place=True)}", where, "give a hloracle.Graph, or None") from error
    if graph is not None and not isinstance(graph, Graph):
        raise InputError(f"gave a {type(graph).__name__}", where, "give a hloracle.Graph, or None")
    return graph


def _valid(graph: Graph, where: str) -> None:
    """Raises InputError unless the ABI is a contract, as that of a file is: what runs a graph goes by it unasked."""
    try:
        graph.abi.validate()
    except ValueError as error:
        raise InputError(str(error), where, "give the ABI that belongs to this graph") from None


def _one_session(graphs: Sequence[Graph], places: Sequence[str]) -> None:
    """Raises InputError unless one session can run them all."""
    first = graphs[0].abi
    seen: dict[str, str] = {}
    for graph, place in zip(graphs, places, strict=True):
        abi = graph.abi
        for what, mine, other in (
            ("head", abi.head, first.head),
            ("capacity", abi.capacity, first.capacity),
            ("batch", abi.batch, first.batch),
            ("compute", abi.compute, first.compute),
            ("ring", abi.ring, first.ring),
            ("kv", abi.kv, first.kv),
        ):
            if mine != other:
                raise InputError(
                    f"its {what} is {mine}, and that of {places[0]} is {other}", place,
                    "check them one by one, or give graphs of one session",
                )  # fmt: skip
        does = abi.phase if abi.phase == "decode" else f"{abi.phase} of {abi.bucket} tokens"
        if does in seen:
            raise InputError(f"is a {does}, as {seen[does]} is", place, "give one graph of each phase and bucket")
        seen[does] = place


def production(graphs: Iterable[Graph]) -> Graph | None:
    """The graph that a session spends its time in: the decode that picks the token, or else the one with logits."""
    decodes = [g for g in graphs if g.abi.phase == "decode"]
    return min(decodes, key=lambda g: g.abi.head != "token", default=None)


# ---- the oracle's


def oracle_of(context: Context, graphs: Iterable[Graph], config: Config) -> tuple[Inspected, int]:
    """The oracle's graphs of the same contracts, with logits, and how many of them had to be lowered.

    What has none, such as a bucket beyond its caches, is left out. Called in a child process.
    """
    specs = dict.fromkeys(specification(graph)._replace(head="logits") for graph in graphs)
    found: Inspected = []
    lowered = 0
    for spec in specs:
        if _keeps_to_the_contract(config, spec):
            oracle, reused = _oracle_graph(context, config, spec)
            lowered += not reused
            found.append((oracle, inspect(oracle)))
    return found, lowered


def _keeps_to_the_contract(config: Config, spec: GraphSpec) -> bool:
    try:
        graph_abi(config, *spec[:4], None, *spec[4:])
    except InputError:
        return False
    return True


def _oracle_graph(context: Context, config: Config, spec: GraphSpec) -> tuple[Graph, bool]:
    """An oracle graph, and whether it was in the cache: by config, contract, JAX's version and the reference's own source."""
    folder = Path(str(reference.__file__)).parent
    files = [path for room in ("model", "oracle") for path in sorted((folder / room).glob("*.py"))]
    files.append(folder / "oracle" / "architectures" / f"{config.architecture}.py")
    parts: list[str | bytes] = [
        repr((config, tuple(spec))),
        metadata.version("jax"),
        metadata.version("jaxlib"),
        *(p.read_bytes() for p in files),
    ]
    # An outcome may have to be run again; a graph is what it is.
    entry = dataclasses.replace(context, reuse=True).entry("oracle", str, parts, changed_by=("reference",))
    name = f"{config.architecture}_{spec.name}"

    def lower() -> str:
        from hloracle.reference.oracle.lower import lower

        context.report(f"lowering the oracle's {name}")
        return lower(config, *spec).text

    text, reused = entry.get(lower)
    return Graph(name, text, graph_abi(config, *spec[:4], None, *spec[4:])), reused
