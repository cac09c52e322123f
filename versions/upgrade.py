"""`hloracle upgrade`: the same graphs judged on two versions of a compiler, and measured in turns.

Both runs have the backend under one name, so that their records can be compared like any two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hloracle.backends.compiled import Program
from hloracle.backends.named import Choice, chosen
from hloracle.conformance.context import Context, Progress
from hloracle.conformance.matrix import EMITTER
from hloracle.conformance.run import run
from hloracle.conformance.runs.gate_zero import gate_zero
from hloracle.conformance.runs.speed import CONTEXT
from hloracle.conformance.runs.speed import TOKENS as SPEED_TOKENS
from hloracle.conformance.settings import QUICK_CAPACITY, Settings
from hloracle.conformance.suite import dead
from hloracle.core import record as records
from hloracle.core.child import ChildDied, Report, alone, run_in_child, threads
from hloracle.core.environment import untried
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.folder import prepare_folder
from hloracle.production.choice import production_graphs, untuned
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.contract import GraphSpec
from hloracle.reference.model.registry import FAMILIES
from hloracle.reports.compare.comparison import compare
from hloracle.reports.compare.files import write_comparison
from hloracle.reports.compare.upgrade import Row, row_of, write_index
from hloracle.reports.record import write_all
from hloracle.versions.measure import Measured, measured

TINY = "tiny-"
MODEL_SECONDS, MEASURE_SECONDS = 3600, 1800
# What both versions are judged beside, by their family: it takes turns with them, too.
PEERS = {"xla": "iree-cpu"}
USUAL_PEER = "xla-cpu"
# What a worker says of itself -> the package that this is the version of.
PACKAGES = {
    "iree": {"version": "iree-base-compiler", "runtime": "iree-base-runtime"},
    "xla": {"version": "jaxlib"},
}
# What decides how fast a contender is, by its backend.
_OF = {"iree": ["iree-base-compiler", "iree-base-runtime"], "xla": ["jax", "jaxlib"]}
PACKAGES_OF = {**_OF, "iree-cpu": _OF["iree"], "xla-cpu": _OF["xla"]}
HUGGING_FACE = ["transformers", "torch"]
SIDES = ("base", "head")


@dataclass(frozen=True)
class Upgrade:
    """What is asked for. base, head: words of backends of one family. rounds: in which decode steps take turns.

    threads: of a backend, where the model is not tiny. timeout: seconds of a configuration.
    """

    base: str
    head: str
    models: tuple[str, ...]
    out: Path
    jobs: int
    rounds: int
    threads: int
    timeout: float


def all_models(real: str = "") -> tuple[str, ...]:
    """The tiny model of every family, and the real one that is named."""
    return (*(f"{TINY}{family}" for family in FAMILIES), *([real] if real else []))


def upgrade(wanted: Upgrade, progress: Progress) -> list[Row]:
    """Judge, measure and compare each model; writes the pages and records, and returns a row for each model.

    A model that cannot be run has a row that says why. Raises InputError for versions that cannot be tried at all.
    """
    prepare_folder(wanted.out)
    opened = [chosen([word])[0] for word in (wanted.base, wanted.head)]
    if opened[0].family != opened[1].family:
        raise InputError("are of two compilers", f"{wanted.base} and {wanted.head}", "name two versions of one")
    with progress.stage("versions"):
        facts = [_facts(choice, progress.report) for choice in opened]
    folders = _folders(wanted.models, wanted.out)
    found = _judge_all(wanted, opened, folders, progress)
    rows: list[Row] = []
    for model in wanted.models:
        sides = found[model]
        if isinstance(sides, str):
            rows.append(Row(model, why=sides))
        else:
            with progress.stage(f"timed, {model}"):
                pair = _with_measures(wanted, opened, model, sides, progress)
            pair = [_of_version(record, said, opened[0].family) for record, said in zip(pair, facts, strict=True)]
            rows.append(_written(model, pair, folders[model], wanted.out))
        write_index(rows, (wanted.base, wanted.head), wanted.out)
    return rows


def _folders(models: Sequence[str], out: Path) -> dict[str, Path]:
    """Where each model's pages go: its name, which may be a path, as a folder's."""
    return {model: out / "models" / "".join(c if c.isalnum() or c in "-_." else "_" for c in model) for model in models}


def _facts(choice: Choice, report: Report) -> dict[str, Any]:
    """What a backend says of itself. Raises InputError where it cannot be tried."""
    context = Context(Progress(report), (choice,))
    check = gate_zero(context, choice.name).check
    if check.status != "passed":
        raise InputError(f"cannot be tried ({check.detail or check.figure})", choice.name, "name another version")
    found: dict[str, Any] = context.child(_described, choice.name, timeout=MEASURE_SECONDS).value
    return found


def _described(context: Context, name: str) -> dict[str, Any]:
    return dict(getattr(context.backend(name), "facts", {}))


# ---- judged


def _judge_all(
    wanted: Upgrade, opened: Sequence[Choice], folders: dict[str, Path], progress: Progress
) -> dict[str, list[records.Record] | str]:
    """Of each model the two records, or why there are none: the base's first, so that the head's finds the same in the cache."""
    done = 0

    def both(model: str) -> list[records.Record] | str:
        nonlocal done
        try:
            found = [
                _judged(_settings(model, folders[model] / side), _context(wanted, model, choice), progress.report)
                for side, choice in zip(SIDES, opened, strict=True)
            ]
        except InputError as error:
            return str(error)
        finally:
            done += 1
            progress.report(f"{done} of {len(wanted.models)} models judged, last {model}")
        return found

    with progress.stage("judged"), threads(min(wanted.jobs, len(wanted.models))) as pool:
        futures: dict[str, Future[Any]] = {model: pool.submit(both, model) for model in wanted.models}
        return {model: future.result() for model, future in futures.items()}


def _settings(model: str, out: Path) -> Settings:
    """As `hloracle suite` runs it: a tiny model quickly, and any other whole."""
    if model.startswith(TINY):
        return Settings(model, capacity=QUICK_CAPACITY, out=out, quick=True, rounds=0, choice=untuned())
    return Settings(model, out=out, rounds=0, choice=untuned())


def _context(wanted: Upgrade, model: str, choice: Choice) -> Context:
    """The version under its family's name, beside its peer."""
    peer = chosen([PEERS.get(choice.family, USUAL_PEER)])
    backends = (dataclasses.replace(choice, name=choice.family), *peer)
    return Context(backends=backends, threads=_threads(wanted, model), timeout=wanted.timeout)


def _threads(wanted: Upgrade, model: str) -> int:
    """A tiny model's steps are over before a second thread wakes: with two, their times spread twice as far."""
    return 1 if model.startswith(TINY) else wanted.threads


def _judged(settings: Settings, context: Context, report: Report) -> records.Record:
    """The record of a run, in a process of its own. What ends that process is looked for in a process for each part."""
    why = ""
    for isolated in (False, True):
        try:
            found: records.Record = run_in_child(_run, settings, context, isolated, timeout=MODEL_SECONDS).value
            return found
        except (ChildDied, ToolchainError) as error:
            why = str(error)
            report(f"{settings.model}: {why}")
    return dead(settings, context, why)


def _run(report: Report, settings: Settings, context: Context, isolated: bool) -> records.Record:
    if isolated:
        return run(settings, context)
    with alone():  # a process for each part would take as long to start as a tiny model takes
        return run(settings, context)


# ---- measured


def _with_measures(
    wanted: Upgrade, opened: Sequence[Choice], model: str, pair: Sequence[records.Record], progress: Progress
) -> list[records.Record]:
    """The two records with what was measured of both in turns."""
    family = opened[0].family
    peer = chosen([PEERS.get(family, USUAL_PEER)])
    choices = [dataclasses.replace(c, name=f"{side}:{c.name}") for side, c in zip(SIDES, opened, strict=True)]
    context = Context(
        Progress(progress.report), (*choices, *peer), threads=_threads(wanted, model), timeout=wanted.timeout
    )
    rounds = wanted.rounds if all(record["passed"] for record in pair) else 0
    try:
        specs = _specs(pair[1])
        found: Measured = context.child(_measure, model, specs, rounds, timeout=MEASURE_SECONDS).value
    except (ChildDied, ToolchainError) as error:
        found = Measured((), str(error))
    return [_measured(record, found, i, family) for i, record in enumerate(pair)]


def _specs(record: records.Record) -> dict[str, GraphSpec]:
    """The emitted graphs that pick the token, decode first, by id."""
    capacity = record["settings"]["capacity"]
    own = [g for g in record["graphs"] if g["source"] == EMITTER and g["head"] == "token"]
    own.sort(key=lambda g: g["phase"] != "decode")
    return {g["id"]: GraphSpec(g["phase"], "token", capacity, g["bucket"] or 0) for g in own}


def _measure(context: Context, model: str, specs: dict[str, GraphSpec], rounds: int) -> Measured:
    from hloracle.reference.oracle.lower import lower

    if not specs:
        return Measured((), "no graph was judged")
    directory = resolve(model, context.report)
    checkpoint = open_checkpoint(directory)
    emitted = production_graphs(checkpoint, "f32", untuned(), list(specs.values()))
    oracle = lower(checkpoint.config, "decode", "logits", next(iter(specs.values())).capacity)
    return measured(context, directory, (dict(zip(specs, emitted, strict=True)), oracle), rounds)


def _measured(record: records.Record, found: Measured, version: int, family: str) -> records.Record:
    """A record with the speed of its version, and with what it took to compile."""
    contenders = [
        {**dataclasses.asdict(c), "packages": PACKAGES_OF.get(c.backend, HUGGING_FACE)}
        for c in found.of(version, family)
    ]
    if record["model"]["name"].startswith(TINY):  # what its process holds are libraries
        contenders = [{**c, "resident_bytes": None} for c in contenders]
    speed = {
        "reason": "" if contenders else found.reason,
        "context": CONTEXT if contenders else 0,
        "tokens": SPEED_TOKENS if contenders else 0,
        "contenders": contenders,
    }
    rows = [_with_programs(row, found.programs[version], family) for row in record["configurations"]]
    return cast(records.Record, {**record, "speed": speed, "configurations": rows})


def _with_programs(row: records.Configuration, made: Mapping[str, Program], backend: str) -> records.Configuration:
    """A configuration's row with the compile times that were taken in turns, and without any that were not."""
    if row["backend"] != backend or "programs" not in row:
        return row
    timed = row.copy()
    timed["programs"] = [
        {**p, "seconds": made[p["graph"]].seconds if p["graph"] in made else None} for p in row["programs"]
    ]
    return timed


def _of_version(record: records.Record, facts: Mapping[str, Any], family: str) -> records.Record:
    """A record that names the versions that its backend says it is of, in place of this process's."""
    said = {package: str(facts[key]) for key, package in PACKAGES.get(family, {}).items() if key in facts}
    packages = {**record["environment"]["packages"], **said}
    environment = {**record["environment"], "packages": packages, "untried": untried(packages)}
    return cast(records.Record, {**record, "environment": environment})


def _written(model: str, pair: Sequence[records.Record], folder: Path, out: Path) -> Row:
    """The reports of both runs and the page that compares them; and the row of the index."""
    try:
        for side, record in zip(SIDES, pair, strict=True):
            write_all(record, folder / side)
        comparison = compare(*pair)
        page = folder / "diff.html"
        write_comparison(comparison, [folder / side / "report.json" for side in SIDES], page, None, "")
    except (InputError, ValueError) as error:  # of one model, which takes no other with it
        return Row(model, why=str(error))
    return row_of(model, comparison, page.relative_to(out).as_posix())
