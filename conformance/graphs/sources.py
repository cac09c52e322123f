"""The graphs of a run: which ones each source needs, where they come from, and which ones the report shows."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from hloracle import reference
from hloracle.conformance.evidence import Evidence, Progress, Settings
from hloracle.conformance.graphs.facts import Inspected, inspect
from hloracle.conformance.graphs.listing import Reading, read
from hloracle.core.abi import Graph
from hloracle.core.cache import cache_root, digest, write_file
from hloracle.core.child import ChildDied, Report, run_in_child
from hloracle.core.errors import InputError, ToolchainError
from hloracle.mutants import MUTANTS, planted
from hloracle.production.choice import Choice, production_graphs
from hloracle.reference.model.checkpoint import Checkpoint
from hloracle.reference.model.config import Config
from hloracle.reference.model.contract import graph_abi, graph_name

PREPARE_SECONDS = 900


def specifications(settings: Settings, head: str) -> list[tuple[str, str, int, int]]:
    """(phase, head, capacity, bucket) of the graphs that one source needs for one head."""
    prefills = [("prefill", head, settings.capacity, bucket) for bucket in settings.buckets]
    return [("decode", head, settings.capacity, 0), *prefills]


def emit_all(checkpoint: Checkpoint, settings: Settings, choice: Choice) -> list[Graph]:
    """Every production graph of a run."""
    specs = [spec for head in ("logits", "token") for spec in specifications(settings, head)]
    return production_graphs(checkpoint, settings.precision, choice, specs)


def prepare(
    config: Config, settings: Settings, emitted: list[Graph], report: Report | None = None
) -> tuple[dict[str, Inspected], int]:
    """Both sources' graphs, parsed and walked, and how many of the oracle's had to be lowered."""
    entries = [(spec, _oracle_entry(config, spec)) for spec in specifications(settings, "logits")]
    # A fault in the reference would lower other graphs under the same names.
    faulty = settings.mutant and MUTANTS[settings.mutant].part == "reference"
    missing = sum(bool(faulty) or not entry.is_file() for _, entry in entries)
    mutant = settings.mutant if faulty else ""
    both = run_in_child(_prepare, config, emitted, entries, mutant, timeout=PREPARE_SECONDS, report=report).value
    return both, missing


def _oracle_entry(config: Config, spec: tuple[str, str, int, int]) -> Path:
    """Where an oracle graph is kept: by config, arguments, JAX's version and the reference's own source."""
    folder = Path(str(reference.__file__)).parent
    files = [path for room in ("model", "oracle") for path in sorted((folder / room).glob("*.py"))]
    files.append(folder / "oracle" / "architectures" / f"{config.architecture}.py")
    source = [path.read_bytes() for path in files]
    key = digest(repr((config, spec)), metadata.version("jax"), metadata.version("jaxlib"), *source)
    return cache_root() / "oracle" / f"{key[:32]}.mlir"


def _prepare(
    report: Report, config: Config, emitted: list[Graph], entries: list[tuple[tuple[str, str, int, int], Path]],
    mutant: str,
) -> dict[str, Inspected]:  # fmt: skip
    oracle = [_oracle_graph(report, config, spec, entry, mutant) for spec, entry in entries]
    report("parsing and walking the graphs")
    return {source: [(g, inspect(g)) for g in graphs] for source, graphs in (("emitter", emitted), ("oracle", oracle))}


def _oracle_graph(
    report: Report, config: Config, spec: tuple[str, str, int, int], entry: Path, mutant: str = ""
) -> Graph:  # fmt: skip
    """The oracle's graph, from its entry in the cache or lowered anew."""
    phase, head, capacity, bucket = spec
    name = graph_name(config, phase, head, bucket)
    if entry.is_file() and not mutant:
        return Graph(name, entry.read_text(), graph_abi(config, phase, head, capacity, bucket))
    from hloracle.reference.oracle.lower import lower

    report(f"lowering the oracle's {name}")
    with planted(mutant):
        graph = lower(config, phase, head, capacity, bucket)
    if not mutant:
        write_file(entry, graph.text)
    return graph


def oracle_of(graphs: Sequence[Graph], config: Config, report: Report) -> Inspected:
    """The oracle's graphs of the same contracts, with logits; what has none, such as a bucket beyond its caches, is left out.

    Called in a child process.
    """
    found: Inspected = []
    for abi in (graph.abi for graph in graphs):
        spec = (abi.phase, "logits", abi.capacity, abi.bucket if abi.phase == "prefill" else 0)
        with contextlib.suppress(InputError):
            oracle = _oracle_graph(report, config, spec, _oracle_entry(config, spec))
            found.append((oracle, inspect(oracle)))
    return found


def production(graphs: dict[str, Inspected]) -> Graph:
    """The graph that a session spends its time in."""
    return next(g for g, _ in graphs["emitter"] if (g.abi.phase, g.abi.head) == ("decode", "token"))


# ---- for the reader


def show_graphs(evidence: Evidence, config: Config, progress: Progress) -> None:
    """Read the graphs that the report sets side by side: of each phase one of each source, the same one of both."""
    chosen = chosen_graphs(evidence)
    with progress.stage("read the graphs") as stage:
        try:
            found = run_in_child(_read, chosen, timeout=PREPARE_SECONDS, report=progress.report)
            evidence.shown = found.value
        except (ChildDied, ToolchainError, InputError) as error:  # the verdict stands without
            stage["detail"] = str(error)


def chosen_graphs(evidence: Evidence) -> list[tuple[str, Graph]]:
    """The graphs that the report sets side by side, with their sources."""
    return [
        (source, graph)
        for phase in ("decode", "prefill") for source in evidence.graphs if (graph := _shown(evidence, source, phase))
    ]  # fmt: skip


def _shown(evidence: Evidence, source: str, phase: str) -> Graph | None:
    """The graph that was taken apart, or one as that; or else the smallest that gives logits."""
    graphs = [g for g, facts in evidence.graphs[source] if g.abi.phase == phase and not facts.error]
    found = evidence.localization
    name = found.operation["graph"] if found and found.operation else ""
    bucket = found.plan.prompt.bucket if found else 0

    def unlike(graph: Graph) -> tuple[bool, bool, bool]:
        return graph.name != name, phase == "prefill" and graph.abi.bucket != bucket, graph.abi.head != "logits"

    return min(graphs, key=unlike, default=None)


def _read(report: Report, chosen: list[tuple[str, Graph]]) -> list[tuple[str, Graph, Reading]]:
    report("reading the graphs")
    return read_all(chosen)


def read_all(graphs: Sequence[tuple[str, Graph]]) -> list[tuple[str, Graph, Reading]]:
    """Called in a child process."""
    return [(source, graph, read(graph)) for source, graph in graphs]
