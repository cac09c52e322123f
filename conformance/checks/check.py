"""A check: one question with a figure, a limit and a status."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from hloracle.conformance.matrix import Configuration

Status = Literal["passed", "failed", "skipped", "error"]
About = Literal[
    "toolchain", "reference", "harness", "writing", "probes", "answers", "repeats", "code", "contract", "meaning"
]

# What a project alone may state of its graphs: compilers give the same values whether it holds or not.
STATED = ("operations", "custom-calls", "dtypes", "constants", "aliasing", "counts")
# What each kind of check is about. `writing` is read from the graphs before they run: an invariant. `probes` holds single
# computations of a source to the oracle's. `answers` and `repeats` are about what a configuration returns, and returns
# again. `code` is about what a compiler makes of a graph that does not run here. `contract` holds what somebody else's graph
# does to what its ABI file says of it: whatever breaks it is found before anything is held to the reference. `meaning` is
# what StableHLO's interpreter makes of a source's graphs.
KINDS: dict[str, About] = {
    "gate-zero": "toolchain",
    "noise": "reference",
    **dict.fromkeys(("canary", "process", "localization", "anchors-by-number"), "harness"),
    **dict.fromkeys(
        (
            "parse", "supported", "abi", "donations", "random", "reductions", "custom-call", "f64", "dialects",
            "arguments-used", "caches-donated", "census", "matmuls", "weights", "tables", "op-kinds", "fewer-ops",
            "caches-in-place", "read-backs", "shapes", *STATED,
        ),
        "writing",
    ),
    **dict.fromkeys(
        (
            "state-returned", "position-matters", "cache-written", "padding-hidden", "unused-slots", "mask-hides",
            "inputs-matter",
        ),
        "contract",
    ),
    "probes": "probes",
    "interpreter": "meaning",
    **dict.fromkeys(
        (
            "tokens", "prefill-logits", "decode-logits", "caches", "streamed-logits", "prefill-equals-streaming", "anchors",
            "together", "rows-apart",
        ),
        "answers",
    ),
    "repeats": "repeats",
    **dict.fromkeys(("compiles", "arithmetic"), "code"),
}  # fmt: skip

# Of a graph that fails one of these, compilers may give different values and each be right.
LEFT_OPEN = ("abi", "random", "reductions")
# A session that trusts these in vain reads a buffer that another call has overwritten.
DONATED = ("donations", "caches-donated")
# What a pass shows: the checks that came nearest to failing are among these.
TELLING = ("answers", "repeats", "probes", "meaning", "harness")


@dataclass(frozen=True)
class Check:
    """The answer to a `Question`.

    status: `skipped` has its reason in `detail`; neither `skipped` nor `error` counts as passed.
    figure, limit: what was measured, and what it is held to, in words for a reader of the report.
    anchor, operation: where in the graph the first thing stands that breaks the check, if that is known.
    candidate: whether another operation than this one may break it.
    error: of an error, its cause where that is known: the stage at which a configuration failed.
    missing: what the check leaves out, in words.
    """

    kind: str
    title: str
    status: Status
    figure: str = ""
    limit: str = ""
    detail: str = ""
    source: str = ""
    backend: str = ""
    head: str = ""
    anchor: str = ""
    operation: str = ""
    candidate: bool = False
    error: str = ""
    missing: str = ""

    @property
    def id(self) -> str:
        """The check's name in a record: what it is about, and its kind."""
        about = "/".join(filter(None, [self.source, self.backend, "token" if self.head == "token" else ""]))
        return f"{about or self.about}.{self.kind}"

    @property
    def about(self) -> About:
        """What its kind is about, by KINDS; KeyError for a kind that is not in it."""
        return KINDS[self.kind]

    @property
    def bad(self) -> bool:
        """Whether it counts against a run: it failed, or could not be made."""
        return self.status in ("failed", "error")

    @property
    def failed(self) -> bool:
        """Whether what was measured is beyond its limit; a check that could not be made has not failed."""
        return self.status == "failed"

    @property
    def configuration(self) -> Configuration | None:
        """The configuration that it is about, if it is about one."""
        return Configuration(self.source, self.backend, self.head) if self.head else None


@dataclass(frozen=True)
class Question:
    """What a check asks: its kind, a title for a reader, and what it is about.

    source: whose graphs; backend: where they run; head: of a configuration. Each is empty where it is about none.
    """

    kind: str
    title: str
    source: str = ""
    backend: str = ""
    head: str = ""

    def judged(self, holds: bool, figure: object, limit: object, detail: str = "", anchor: str = "") -> Check:
        """Passed or failed; detail and anchor are those of a failure."""
        status: Status = "passed" if holds else "failed"
        told = ("", "") if holds else (detail, anchor)
        return Check(
            **asdict(self), status=status, figure=str(figure), limit=str(limit), detail=told[0], anchor=told[1]
        )

    def counted(self, right: int, total: int, detail: str = "", anchor: str = "", what: str = "") -> Check:
        """Passed if there are some, and all of them are right. what: they are, in words."""
        figure, limit = f"{right} of {total}{what}", f"{total} of {total}{what}"
        return self.judged(0 < right == total, figure, limit, detail, anchor)

    def skipped(self, reason: str) -> Check:
        """The check does not apply here, or was left out; why."""
        return Check(**asdict(self), status="skipped", detail=reason)

    def error(self, detail: str, error: str = "", anchor: str = "") -> Check:
        """The check could not be made."""
        return Check(**asdict(self), status="error", detail=detail, error=error, anchor=anchor)


def of_configuration(configuration: Configuration, kind: str, title: str) -> Question:
    """What is asked of a source on a backend."""
    return Question(kind, title, configuration.source, configuration.backend, configuration.head)
