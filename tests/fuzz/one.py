"""One input: how it is made of its seed, and what is wrong with what came of it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fuzz.attempt import Command, Observation, Stage
from fuzz.case import Case
from fuzz.judge import findings
from fuzz.targets import Target

Samples = Mapping[str, Sequence[Case]]
MOST_SPOILT = 3


@dataclass(frozen=True)
class Result:
    """What came of an input. wrong: what is not as it was promised; empty where all is well."""

    status: int | None
    seconds: float
    wrong: tuple[str, ...] = ()
    raised: str = ""


def steps(seed: int, target: Target, number: int) -> int:
    """How often an input is spoilt."""
    return _generator(seed, target, number).choice((1, 1, 1, 2, MOST_SPOILT))


def input_of(seed: int, target: Target, number: int, samples: Samples, left_out: frozenset[int] = frozenset()) -> Case:
    """The input of a seed, a target and a number: a sample that is spoilt some times, but for the times that are left out."""
    rng = _generator(seed, target, number)
    times = rng.choice((1, 1, 1, 2, MOST_SPOILT))
    case = rng.choice(samples[target.name])
    for time in range(times):
        each = random.Random(f"{seed}/{target.name}/{number}/{time}")
        if time not in left_out:
            case = target.spoilt(each, case)
    return case


def _generator(seed: int, target: Target, number: int) -> random.Random:
    return random.Random(f"{seed}/{target.name}/{number}")


def tried(stage: Stage, command: Command, target: Target, case: Case) -> Result:
    """Give an input to the command line and judge what comes of it."""
    seen = stage.attempt(case, command)
    wrong = findings(seen, target.statuses, target.outputs, target.told, target.listed)
    return Result(seen.status, seen.seconds, tuple(wrong), seen.raised)


def sample_wrong(seen: Observation, target: Target) -> str:
    """What is wrong with a sample, of which a target needs a right one; empty where it is right."""
    if seen.status in target.sample_statuses:
        return ""
    return f"a sample ends with status {seen.status}: {(seen.raised or seen.err).strip()[-2000:]}"
