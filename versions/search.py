"""`hloracle bisect`: what is searched for, and how a release is tried."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hloracle import api
from hloracle.backends.environments import NotInstalled
from hloracle.backends.named import chosen
from hloracle.conformance.context import Progress
from hloracle.core.errors import InputError
from hloracle.versions.bisection import KINDS, Bisection, bisect, try_each
from hloracle.versions.case import Case, Given, read_case
from hloracle.versions.releases import COMPILERS, between, word_of
from hloracle.versions.replay import How, Tried
from hloracle.versions.replay import replay as attempt

# Judged beside the release, so that what is wrong on the release alone is its compiler's.
PEER = "xla-cpu"
# Stages at which a configuration failed: those that say that it does not compile, and one that says nothing of the graph.
REFUSED, UNTRIED = ("compile", "load"), "memory"


@dataclass(frozen=True)
class Search:
    """What is searched for.

    path: of a reproducer or a graph. case: what is read of it; None of a graph of a model, which `hloracle check` judges.
    package: whose releases. good, bad: the ends. flags: of the compiler. slower: how many times the good release's time is
    wrong too; 0 leaves times alone. model, abi: of a graph of a model. timeout: seconds of a release.
    every: try every release, in place of a search.
    """

    path: Path
    case: Case | None
    package: str
    good: str
    bad: str
    flags: tuple[str, ...]
    slower: float
    model: str | None
    abi: Path | None
    timeout: float
    threads: int
    every: bool = False

    def word(self, version: str) -> str:
        """The backend of a release."""
        return word_of(self.package, version, self.flags)

    def how(self, version: str) -> How:
        """How a release is tried: against the good one, where times matter."""
        against = self.word(self.good) if self.slower and version != self.good else ""
        return How(self.threads, self.timeout, against, self.slower)


def search(wanted: Search, progress: Progress) -> Bisection:
    """Find the first release that is wrong. Raises InputError for what cannot be searched."""
    if wanted.package not in COMPILERS:
        raise InputError("is no compiler's", f"--package {wanted.package}", f"name one of {', '.join(COMPILERS)}")
    with progress.stage("releases"):
        found = between(wanted.package, wanted.good, wanted.bad)

    def one(version: str) -> Tried:
        with progress.stage(f"{wanted.package} {version}") as stage:
            tried = _of_case(wanted, version, progress) if wanted.case else _of_model(wanted, version, progress)
            stage["detail"] = KINDS[tried.status]
        return tried

    return (try_each if wanted.every else bisect)(found, one)


def _of_case(wanted: Search, version: str, progress: Progress) -> Tried:
    assert wanted.case
    return attempt(wanted.case, wanted.word(version), wanted.how(version), progress)


def _of_model(wanted: Search, version: str, progress: Progress) -> Tried:
    """Whether the graph conforms on that release; then, where times matter, how fast it is on any numbers."""
    assert wanted.model
    try:
        chosen([wanted.word(version)])
    except NotInstalled as error:
        return Tried("untried", str(error))
    record = api.check(
        wanted.path, model=wanted.model, abi=wanted.abi, backends=(wanted.word(version), PEER), timeout=wanted.timeout,
        threads=wanted.threads, progress=Progress(progress.report),
    )  # fmt: skip
    tried = of_record(record)
    if tried.status != "right" or not wanted.how(version).against:
        return tried
    return attempt(read_case(wanted.path, Given()), wanted.word(version), wanted.how(version), progress)


def of_record(record: api.Record) -> Tried:
    """What a record says of the graph on the release; what is wrong on its peer alone is no fault of it."""
    bad = [c for c in record.data["checks"] if c["status"] in ("failed", "error") and c["backend"] != PEER]
    if not bad:
        return Tried("right", "" if record.passed else f"wrong on {PEER} alone")
    if gate := next((c for c in bad if c["kind"] == "gate-zero"), None):
        return Tried("untried", f"gate zero: {gate['detail'] or gate['figure']}")
    stages = {c["error"] for c in bad}
    if UNTRIED in stages:
        return Tried("untried", record.verdict.explanation)
    return Tried("refused" if stages & {*REFUSED} else "wrong", str(record.verdict))
