"""Replays the cases that were kept, each of which was a finding once: `python -m fuzz.kept [FILE...]`.

It prints a line of JSON for each: what is wrong, and what it said. `--keep` writes a finding of `out/fuzz/` down as one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.attempt import Stage
from fuzz.case import dumps, from_json
from fuzz.judge import findings
from fuzz.one import Result
from fuzz.pool import run_jobs
from fuzz.session import ENVIRONMENT, Session, chosen
from fuzz.stops import stopped

FOLDER = Path(__file__).parents[1] / "kept"
PATIENCE = 120.0  # seconds: what hangs does so for any time, and a machine that does much else beside may be slow
KEYS = ("target", "found", "sample", "arguments", "environment", "files", "gone")


@dataclass(frozen=True)
class Replay:
    """A kept case to be tried, by its file. children: see `stopped`."""

    path: Path
    children: bool = False


def read(path: Path) -> dict[str, Any]:
    """A kept case's file."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def replay(paths: Sequence[Path]) -> dict[str, Result]:
    """What comes of the cases of these files, by name. `raised` has what was said on stderr where nothing was raised."""
    kept = {path: read(path) for path in paths}
    session = Session(chosen(sorted({one["target"] for one in kept.values()})), 0)

    def work(stage: Stage, job: Replay) -> Result:
        from hloracle.cli.main import invoke

        one = kept[job.path]
        target = session.targets[one["target"]]
        case = from_json(one, session.samples[target.name][one["sample"]])
        with stopped(job.children):
            seen = stage.attempt(case, invoke)
        wrong = findings(seen, target.statuses, target.outputs, target.told, target.listed)
        return Result(seen.status, seen.seconds, tuple(wrong), seen.raised or seen.err)

    found = dict(run_jobs((Replay(path) for path in paths), work, 1, PATIENCE))
    crashed = [
        Replay(job.path, True) for job, r in found.items() if any(w.startswith("ends the process") for w in r.wrong)
    ]
    found |= {Replay(job.path): result for job, result in run_jobs(iter(crashed), work, 1, PATIENCE)}
    return {job.path.stem: result for job, result in found.items()}


def keep(finding: Path, name: str) -> Path:
    """Keep a finding that a session has written, under a name."""
    found = read(finding)
    path = FOLDER / f"{name}.json"
    path.write_text(dumps({key: found[key] for key in KEYS}))
    return path


if __name__ == "__main__":
    os.environ |= ENVIRONMENT
    if sys.argv[1:2] == ["--keep"]:
        print(keep(Path(sys.argv[2]), sys.argv[3]))
    else:
        given = [Path(word) for word in sys.argv[1:]] or sorted(FOLDER.glob("*.json"))
        for one, result in replay(given).items():
            print(
                json.dumps({"name": one, "status": result.status, "wrong": result.wrong, "said": result.raised[-2000:]})
            )
