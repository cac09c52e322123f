"""What came of one case on one backend, and which of it counts as a failure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from hloracle.core.errors import OutOfMemory, ToolchainError
from hloracle.reports.ops.record import Result as Result

# What each means, in the order in which a table has them.
MEANINGS: Final[dict[Result, str]] = {
    "exact": "every element is the right value, rounded once to the result's type",
    "within": "no element is farther off than the case allows",
    "wrong": "an element is farther off than the case allows",
    "crash": "the compiler or the runtime ended without an answer",
    "hang": "it did not end in time, and was ended",
    "fails": "it compiles, and reports an error when it is loaded or run",
    "does-not-compile": "the compiler reports an error",
    "unsupported": "the compiler does not know the operation, the type or the version of StableHLO",
    "skipped": "it was not tried, for the reason that is given",
}
TITLES: Final[dict[Result, str]] = {**{r: r for r in MEANINGS}, "does-not-compile": "does not compile"}
PASSES: Final[tuple[Result, ...]] = ("exact", "within")
# What a list of known faults has to name. What is unsupported or skipped is no failure, and no pass either.
FAILURES: Final[tuple[Result, ...]] = ("wrong", "crash", "hang", "fails", "does-not-compile")
# Of these there are values, or an end, that a command shows to somebody else.
SHOWN: Final[tuple[Result, ...]] = ("wrong", "crash", "hang")

# As parsers and compilers say that they do not know an operation, an attribute or a version: MLIR, StableHLO's
# deserializer and its interpreter, XLA.
_UNKNOWN = re.compile(
    r"custom op '[^']*' is unknown|unregistered operation|[Uu]nsupported op\b|unknown attribute|"
    r"[Ff]ailed to (?:legalize|deserialize).*?\bversion\b|unsupported .*?StableHLO.*? version|"
    r"Op not implemented|is unknown \(tried"
)  # fmt: skip
# As StableHLO's interpreter says so, which then ends its process.
_REFUSED = re.compile(r"[Uu]nsupported op\b|Op not implemented")
KILLED = ("SIGKILL", "SIGTERM")  # by whoever runs out of memory, or of patience
# As a compiler that runs as a program of its own says that it crashed: what came out of it is a trace, and no diagnostic.
_CRASHED = re.compile(
    r"exit status -\d+|signal SIG[A-Z]+|[Pp]lease report issues to|PLEASE submit a bug report|Stack dump:|Assertion [`']"
)


@dataclass(frozen=True)
class Outcome:
    """What came of a case on a backend.

    ulp: how far the farthest element is off, in ULP of its type; None where there are no values. normal: the same among elements that
      are no subnormal numbers; None where the results are no floats. share: of what the case allows, how much is used; above 1 it
      is wrong.
    words: why it is no pass, in one line; empty for a pass.
    beside: other cases of the module in which it is wrong, where it is right by itself.
    starved: it was not tried because the backend got no memory for it.
    """

    case: str
    operation: str
    result: Result
    ulp: float | None = None
    normal: float | None = None
    share: float | None = None
    words: str = ""
    beside: tuple[str, ...] = ()
    starved: bool = False

    @property
    def passed(self) -> bool:
        """Whether it gave right values."""
        return self.result in PASSES

    @property
    def failed(self) -> bool:
        """Whether it counts as a failure, where it is not known."""
        return self.result in FAILURES

    @property
    def lasting(self) -> bool:
        """Whether it may be kept: it would come of the case by itself again, however fast or full the machine is."""
        depends = self.result in ("hang", "skipped") or (
            self.result == "crash" and any(killed in self.words for killed in KILLED)
        )
        return not (depends or self.beside)

    @property
    def title(self) -> str:
        """In words, such as `within 2 ULP`."""
        return f"within {self.ulp:.3g} ULP" if self.result == "within" and self.ulp is not None else TITLES[self.result]


class Ended(Exception):
    """A backend's process ended, or was ended, without an answer. result: `crash` or `hang`."""

    def __init__(self, result: Result, message: str) -> None:
        super().__init__(result, message)
        self.result: Result = result
        self.message = message


# Where a module was, which is no file of the reader's.
_PLACE = re.compile(r"(?:/[^\s:]+/)?[\w.-]*(?:\.mlir|/fd/\d+):(?=\d+:\d+: )")


def of_error(error: ToolchainError | Ended) -> tuple[Result, str]:
    """The result that an error of a backend stands for, and its words in one line.

    They are looked at as a whole, before they are cut: a trace may stand behind what the compiler read.
    """
    text = " ".join(_PLACE.sub("", error.message).split())
    words = one_line(text)
    if isinstance(error, Ended):
        return ("unsupported" if error.result == "crash" and _REFUSED.search(text) else error.result), words
    if isinstance(error, OutOfMemory):
        return "skipped", words
    if _CRASHED.search(text):
        return "crash", one_line(f"the compiler crashed: {text}")
    if _UNKNOWN.search(text):
        return "unsupported", words
    return ("does-not-compile" if error.stage == "compile" else "fails"), words


def one_line(text: str, limit: int = 400) -> str:
    """The text on one line, cut."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
