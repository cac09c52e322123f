"""A fleet from its matrix to its report."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from hloracle.core.files import locked, writing
from hloracle.core.folder import remove_files
from hloracle.fleet.driver import conduct
from hloracle.fleet.journal import Journal
from hloracle.fleet.matrix import Job, Matrix
from hloracle.fleet.on_ray import connected
from hloracle.fleet.outcome import Outcome
from hloracle.fleet.process import unpack
from hloracle.fleet.report import JOBS, JUNIT, PAGE, RECORD, histories, write_report
from hloracle.reports.fleet.record import Head

BEFORE = "before.json"  # the record of the fleet before
KEY = re.compile("[0-9a-f]{16}")  # a job's folder


def run_fleet(matrix: Matrix, address: str | None, out: Path, resume: bool, tell: Callable[[Outcome], None]) -> Head:
    """Run all jobs of a matrix, or with `resume` those that are not done, and write the report.

    Args:
      address: of the cluster; None starts Ray on this machine. tell: is told of each job that is done.

    Raises InputError where it cannot start; whatever goes wrong with a job is in the report.
    """
    with locked(out / ".fleet"):
        if not resume:
            _begin(out)
        journal, before = Journal(out, matrix, resume), histories(out / BEFORE)
        with contextlib.closing(journal):
            for outcome in journal.outcomes():
                tell(outcome)

            def keep(job: Job, files: bytes) -> None:
                with writing(folder := out / JOBS / job.key):
                    shutil.rmtree(folder, ignore_errors=True)
                    if files:
                        unpack(files, folder)

            if any(job.key not in journal.done for job in matrix):
                with connected(address, matrix) as engine:
                    conduct(matrix, engine, journal, keep, tell)
            return write_report(matrix, journal, before, out)


def _begin(out: Path) -> None:
    """Keep the record of the fleet before, and remove all else that it has left: it would be taken for this one's."""
    with writing(out):
        if (out / RECORD).is_file():
            os.replace(out / RECORD, out / BEFORE)
        remove_files(out / name for name in (PAGE, JUNIT))
        for folder in (out / JOBS).glob("*"):
            if KEY.fullmatch(folder.name):
                shutil.rmtree(folder, ignore_errors=True)
