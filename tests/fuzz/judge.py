"""What hloracle promises of an input, whatever it is: one clear line, the right status, nothing left behind."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection

from fuzz.attempt import Observation

LOCK = "work/.*.lock"  # of a file that several processes may write to: it stays
MEMORY = 2 * 2**30  # bytes that reading a small file may take
# As `InputError` says it, and as click does of a command line.
FORM = re.compile(r"hloracle: (?:.*\S: \S.*; \S.*|.* \(see hloracle --help\))")
# The last line of a traceback: what nobody has thought of, in place of words for the user.
INTERNAL = re.compile(
    r"\b(?:Type|Key|Attribute|Index|Value|Assertion|Recursion|UnboundLocal|ZeroDivision|Overflow|UnicodeEncode|UnicodeDecode"
    r"|NotImplemented|Runtime|Memory|Name|Lookup|Syntax)Error\b|StopIteration|object at 0x|got no more of it|__\w+__|NoneType"
    r"|object is not|not iterable|not subscriptable|\bdatetime\b"
)


def findings(
    seen: Observation, statuses: Collection[int], outputs: Collection[str], told: str = "", listed: str = ""
) -> list[str]:
    """What is wrong, a line for each.

    Args:
      statuses: that the command may end with on spoilt input.
      outputs: patterns of the files that it may leave with any status but 2.
      told: a pattern of what may be quoted from somebody else's error, such as a template's.
      listed: what each of several lines may begin with in place of the program's name.
    """
    if seen.status is None:
        last = seen.raised.strip().splitlines()[-1] if seen.raised.strip() else "an exception"
        return [f"raises {last}"]
    wrong: list[str] = []
    lines = seen.err.splitlines()
    if seen.status not in statuses:
        wrong.append(f"ends with status {seen.status}, and not with one of {sorted(statuses)}")
    if seen.status == 2:
        if listed and lines and all(line.startswith(listed) for line in lines):
            lines = [f"hloracle: {line.removeprefix(listed)}" for line in lines]
        else:
            wrong += [] if len(lines) == 1 else [_not_one(lines)]
        wrong += [words for line in lines for words in _line(line, told)]
    elif strange := [line for line in lines if not line.startswith("hloracle: ")]:
        wrong.append(f"says on stderr {strange[0][:200]!r}")
    if "Traceback (most recent call last)" in seen.err + seen.out:
        wrong.append("prints a traceback")
    if any(not line.isprintable() for line in lines):
        wrong.append("prints control characters on stderr")
    allowed = () if seen.status == 2 else outputs
    for name in seen.left:
        if fnmatch.fnmatchcase(name, LOCK):
            continue
        place, _, rest = name.partition("/")
        if place == "tmp" or not any(fnmatch.fnmatchcase(rest, pattern) for pattern in allowed):
            wrong.append(f"leaves {name}")
    if seen.processes:
        wrong.append(f"leaves {seen.processes} processes")
    if seen.grown > MEMORY:
        wrong.append(f"takes {seen.grown / 2**30:.1f} GiB of memory")
    return wrong


def _not_one(lines: list[str]) -> str:
    return f"says {len(lines)} lines on stderr" + (f": {' | '.join(lines)[:300]!r}" if lines else "")


def _line(line: str, told: str) -> list[str]:
    """What is wrong with a line that says why a command could not run."""
    if not FORM.fullmatch(line):
        return [f"does not say what, where and what to do: {line[:300]!r}"]
    if (found := INTERNAL.search(line)) and not (told and re.search(told, line)):
        return [f"names an error of the program ({found[0]}): {line[:300]!r}"]
    return []


def kind(finding: str) -> str:
    """What two findings of one cause have in common: words without numbers and quotations."""
    return re.sub(r"0x[0-9a-f]+|\d+", "N", re.sub(r"'[^']*'|\"[^\"]*\"", "…", finding))[:120]
