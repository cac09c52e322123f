"""A session: inputs of all targets in turn for a given time, and what was found, shrunk and written down."""

from __future__ import annotations

import importlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.attempt import Command, Stage
from fuzz.case import Case, as_json, dumps
from fuzz.judge import kind
from fuzz.one import Result, Samples, input_of, sample_wrong, steps, tried
from fuzz.pool import SECONDS, in_a_child, run_jobs
from fuzz.stops import IMPORTED, stopped
from fuzz.targets import BY_NAME, Target
from hloracle.reference.fixtures.gguf import QUIET

RATE = 20_000 / (20 * 60)  # inputs a second: the goal
MOST_WRITTEN = 3  # of a kind
# Of what converts GGUF files, in a process that sets it before it imports anything; and of JAX, as `run_program` has it.
ENVIRONMENT = {**QUIET, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "1"}
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """The input of a target with this number; its spoilings that are left out. children: see `stopped`."""

    target: str
    number: int
    left_out: frozenset[int] = frozenset()
    children: bool = False


@dataclass
class Found:
    """What a session has found: inputs by target, seconds by target, and each finding with its job.

    hung: what did not end in time, and did when it was tried again, as on a machine that stood still meanwhile.
    """

    seed: int
    inputs: Counter[str] = field(default_factory=Counter)
    statuses: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, tuple[float, int]] = field(default_factory=dict)
    findings: list[tuple[Job, Result]] = field(default_factory=list)
    hung: list[tuple[Job, Result]] = field(default_factory=list)
    took: float = 0.0

    def rate(self) -> float:
        """Inputs a second."""
        return sum(self.inputs.values()) / max(self.took, 1e-9)


class Session:
    """Targets with their samples, made and tried once."""

    def __init__(self, targets: Sequence[Target], seed: int, jobs: int = 1, seconds: float = SECONDS) -> None:
        self.targets = {target.name: target for target in targets}
        self.found = Found(seed)
        self.jobs, self.seconds = jobs, seconds
        for name in IMPORTED:
            importlib.import_module(name)
        self.samples: Samples = {name: in_a_child(target.samples) for name, target in self.targets.items()}

    def work(self, stage: Stage, job: Job) -> Result:
        """Try one input, in a worker."""
        with stopped(job.children):
            case = input_of(self.found.seed, self.targets[job.target], job.number, self.samples, job.left_out)
            return tried(stage, _invoke(), self.targets[job.target], case)

    def check_samples(self) -> list[str]:
        """What is wrong with the samples: a target whose samples are refused would test nothing."""

        def try_sample(stage: Stage, job: tuple[str, int]) -> Result:
            name, number = job
            with stopped():
                seen = stage.attempt(self.samples[name][number], _invoke())
            wrong = sample_wrong(seen, self.targets[name])
            return Result(seen.status, seen.seconds, (wrong,) if wrong else ())

        all_of = [(name, i) for name, samples in self.samples.items() for i in range(len(samples))]
        return [
            f"{job[0]}: {w}" for job, result in run_jobs(iter(all_of), try_sample, self.jobs, 60) for w in result.wrong
        ]

    def run(self, until: Callable[[Found], bool], tell: Tell) -> Found:
        """Try inputs until that says that it is enough. Targets take turns by the time that they have taken."""
        found, started = self.found, time.monotonic()
        numbers = Counter[str]()
        spent = dict.fromkeys(self.targets, 0.0)

        def jobs() -> Iterator[Job]:
            while not until(found):
                name = min(spent, key=lambda name: spent[name])
                spent[name] += 1e-3  # until it is known what its last input took
                numbers[name] += 1
                yield Job(name, numbers[name] - 1)

        for job, result in run_jobs(jobs(), self.work, self.jobs, self.seconds):
            found.inputs[job.target] += 1
            found.statuses[job.target, result.status] += 1
            found.took = time.monotonic() - started
            spent[job.target] += result.seconds
            found.seconds[job.target] += result.seconds  # type: ignore[assignment]
            found.slowest[job.target] = max(found.slowest.get(job.target, (0.0, 0)), (result.seconds, job.number))
            if result.wrong and (result := self.again(job, result)).wrong:
                found.findings.append((job, result))
                tell(f"{job.target} {job.number}: {'; '.join(result.wrong)}")
        return found

    def again(self, job: Job, result: Result) -> Result:
        """What comes of an input once more: of one that hung, whether it does again; of one that ended its worker, whether it
        does with the processes of its own that hloracle would have.
        """
        hung = result if any(words.startswith("does not end") for words in result.wrong) else None
        if hung:
            (result,) = self.results([job])
        if any(words.startswith("ends the process") for words in result.wrong):
            (result,) = self.results([Job(job.target, job.number, job.left_out, children=True)])
        if hung and not result.wrong:
            self.found.hung.append((job, hung))
        return result

    def results(self, jobs: Sequence[Job]) -> list[Result]:
        """What comes of these, in order."""
        found = dict(run_jobs(iter(jobs), self.work, 1, self.seconds + (40 if any(j.children for j in jobs) else 0)))
        return [found[job] for job in jobs]

    def shrunk(self, job: Job, result: Result) -> Job:
        """The same with each of its spoilings left out that it does not need to be a finding of its kind."""
        for step in range(steps(self.found.seed, self.targets[job.target], job.number)):
            fewer = Job(job.target, job.number, job.left_out | {step}, job.children)
            (other,) = self.results([fewer])
            if {kind(w) for w in self.again(fewer, other).wrong} & {kind(w) for w in result.wrong}:
                job = fewer
        return job

    def write(self, folder: Path) -> list[str]:
        """Write the findings, at most some of each kind; returns a line for each kind."""
        of_kind: dict[str, list[tuple[Job, Result]]] = {}
        for job, result in self.found.findings:
            of_kind.setdefault(f"{job.target}: {kind(result.wrong[0])}", []).append((job, result))
        lines = []
        for number, some in enumerate(of_kind.values()):
            job, result = some[0]
            hangs = any("does not end" in words for words in result.wrong)
            small = job if hangs else self.shrunk(job, result)
            repeat = f"nox -s fuzz -- --only {job.target} --seed {self.found.seed} --number {job.number}"
            lines.append(f"{job.target}: {'; '.join(result.wrong)}  [{len(some)} times; {repeat}]")
            case = input_of(self.found.seed, self.targets[job.target], job.number, self.samples, small.left_out)
            kept = {"target": job.target, "found": "; ".join(result.wrong), "repeat": repeat, "raised": result.raised}
            folder.mkdir(parents=True, exist_ok=True)
            sample = nearest(case, self.samples[job.target])
            told = {"sample": self.samples[job.target].index(sample), **as_json(case, sample)}
            (folder / f"{job.target}-{number}.json").write_text(dumps({**kept, **told}))
        return lines


def nearest(case: Case, samples: Sequence[Case]) -> Case:
    """The sample with most of a case's files."""
    return max(samples, key=lambda s: sum(s.files.get(name) == data for name, data in case.files.items()))


def _invoke() -> Command:
    from hloracle.cli.main import invoke

    return invoke


def chosen(names: Sequence[str]) -> list[Target]:
    """Targets by name; all of them without a name."""
    return [BY_NAME[name] for name in names or BY_NAME]


def table(found: Found) -> str:
    """A line for each target: inputs, statuses, and the slowest of them."""
    rows = []
    for name, count in found.inputs.items():
        statuses = ", ".join(f"{n} with {s}" for (of, s), n in sorted(found.statuses.items(), key=str) if of == name)
        seconds, number = found.slowest[name]
        rows.append(f"{name:<22} {count:>7} inputs: {statuses}; the slowest, {number}, took {seconds:.1f} s")
    return "\n".join(rows)


def summary(found: Found) -> str:
    """The last line: how many inputs, how fast, and how many of them are findings."""
    return json.dumps({"seed": found.seed, "inputs": sum(found.inputs.values()), "seconds": round(found.took, 1),
                       "per_second": round(found.rate(), 2), "findings": len(found.findings), "hung_once": len(found.hung)})  # fmt: skip
