"""docs/injected-faults.md: the table of faults as a page, which nobody writes by hand."""

from __future__ import annotations

from pathlib import Path

from hloracle.core.files import write_file
from hloracle.studies.injected.table import COMMANDS, ROWS, Row

PAGE = Path(__file__).resolve().parents[2] / "docs" / "injected-faults.md"
HEAD = """# Injected faults

`nox -s injected-faults` injects these {count} faults into whole commands, and fails where one ends in another way than
stands here: full disks, torn entries of the cache, killed and hanging processes, no memory, compilers and workers that do
something else, clocks that jump, and commands that are stopped. Each row is a real command in a folder of its own, with a warm cache of
its own in which only what the fault needs is missing.

Of each row one judge (`studies/injected/judge.py`) asks:

- The fault came about.
- The command ends, with the status and the outcome of the table, and without a traceback. Status 2 comes with one line
  on stderr and without a report; a verdict comes with a report. No report of an earlier run stands there as if it were
  of this one.
- A few seconds later no process of it runs any more. Nothing is left in the temporary folder, in the home, beside the
  report and in the cache but whole entries and locks. A command that was killed with SIGKILL cannot tidy up; the next
  one does.
- Once the fault is lifted, the same command on the same cache conforms, finds no entry damaged, and leaves nothing.

A file system of its own, in a mount namespace, is what makes a disk full or read-only. Where nothing may be mounted, such
rows are skipped, and the study does not pass. An error of a disk and a quota are raised inside of Python instead, as is
what happens at a function (`studies/injected/hook.py`): the fault is in the process that calls it, whichever it is.

{commands}

| command | fault |
| --- | --- |
{counts}
"""


def outcome(row: Row) -> str:
    """What has to come of a fault, in words."""
    expected = row.expected
    if expected.status < 0:
        return "the command is gone; what it had started ends, too, and the next one tidies up"
    if expected.status == 130:
        return "`interrupted`, status 130"
    if expected.status == 2:
        return f"one line, status 2: {_shown(expected.says)}"
    if row.command == "ops" and expected.status:
        return f"new failures: `{expected.says}`"
    if expected.anew:
        what = "stderr says" if row.command == "ops" else "the record says"
        return f"`{expected.verdict}`; the entries are made anew, and {what} so"
    says = f": {_shown(expected.says)}" if expected.says else ""
    quiet = "; nobody can read what was printed" if expected.quiet else ""
    return f"`{expected.verdict}`{says}{quiet}"


def _shown(pattern: str) -> str:
    return f"`… {pattern.replace('.*', ' … ').replace('|', ' or ')} …`"


def text() -> str:
    """The whole page."""
    lines = []
    for name, words in COMMANDS.items():
        rows = [row for row in ROWS if row.command == name]
        lines += [f"## {name}", "", f"`hloracle {' '.join(words)}`", "", "| id | stage | fault | outcome |"]
        lines += ["| --- | --- | --- | --- |"]
        lines += [f"| {row.id} | {row.stage} | {row.what}{_more(row)} | {outcome(row)} |" for row in rows]
        lines.append("")
    counts = "\n".join(f"| `{name}` | {sum(row.command == name for row in ROWS)} |" for name in COMMANDS)
    commands = "The faults by command:"
    return HEAD.format(count=len(ROWS), commands=commands, counts=counts) + "\n" + "\n".join(lines).rstrip() + "\n"


def _more(row: Row) -> str:
    return f" (`{' '.join(row.more)}`)" if row.more else ""


def write_page() -> None:
    """Write the page."""
    write_file(PAGE, text())
