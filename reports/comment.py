"""The comment on a pull request, drawn from records that the pull request's own run left: whatever is in them.

A run of a stranger's code can leave anything in place of a record. So nothing is unpacked, sizes are looked at before
anything else, only what is valid is drawn, and what cannot be drawn is a sentence in the comment, not an error: the
comment of the run before must not be left standing as if it were this one's.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from hloracle.core.errors import InputError
from hloracle.core.record import Record
from hloracle.reports import summary
from hloracle.reports.compare import summary as compare_summary
from hloracle.reports.compare.comparison import compare
from hloracle.reports.record import LARGEST, parse

MARKER = "<!-- hloracle -->"  # how the next run finds the comment
WHOSE = "<sub>Drawn from records that the pull request's own run has left.</sub>"
HEAD, BASE = "head.json", "base.json"  # in the archive
# Bytes of the comment. Linux passes 128 KiB in one environment variable, and in one it comes to who writes it; GitHub's
# own limit, of characters, is kept by what draws it.
MOST = 120_000


def render(archive: Path | None, link: str = "") -> str:
    """The comment as Markdown: how head differs from base; of head alone where there is no base to compare it with.

    Args:
      archive: a zip file with `head.json` and `base.json`; None where the run left none.
      link: where the run is.
    Raises InputError unless `link` is a web address.
    """
    at = "\n".join(summary.report_at(link, "The run"))  # the caller's: a wrong one is no fault of the records
    try:
        drawn = _drawn(archive, link)
    except InputError as error:
        drawn = _nothing(f"{error.where} {error.what}.", at)
    # A record can be valid and yet hold what no drawing was made for, such as a number of a thousand digits.
    except Exception as error:
        drawn = _nothing(f"The run's record cannot be drawn ({type(error).__name__}).", at)
    if len(f"{MARKER}\n{drawn}".encode()) > MOST:
        drawn = _nothing("What there is to say is too long for a comment.", at)
    return f"{MARKER}\n{drawn}"


def _drawn(archive: Path | None, link: str) -> str:
    if archive is None:
        raise InputError("has left no record that can be taken: its log says why", "The run", "")
    head = _record(archive, HEAD)
    try:
        base = _record(archive, BASE)
        drawn = compare_summary.render(compare(base, head, "The run's record"), link)
    except InputError as error:
        drawn = _alone(head, link, f"{error.where} {error.what}.")
    except Exception as error:
        drawn = _alone(head, link, f"The comparison cannot be drawn ({type(error).__name__}).")
    return f"{drawn}\n{WHOSE}\n"


def _alone(head: Record, link: str, why: str) -> str:
    return summary.render(head, link, f"**Not compared with the base.** {summary.prose(why, 400)}")


def _record(archive: Path, name: str) -> Record:
    """Raises InputError, in words for the comment, unless the archive has it and it is valid."""
    whose = "The run's record" if name == HEAD else "The base's record"
    try:
        with zipfile.ZipFile(archive) as files, files.open(name) as file:
            data = file.read(LARGEST + 1)
    except KeyError:
        raise InputError("is not there", whose, "") from None
    except Exception as error:  # zipfile has no exception of its own for half of what can be wrong with an archive
        raise InputError(f"cannot be read ({type(error).__name__})", whose, "") from None
    if len(data) > LARGEST:
        raise InputError(f"is larger than {LARGEST:,} bytes", whose, "")
    return parse(data, whose)


def _nothing(words: str, at: str) -> str:
    return f"## ⚠️ hloracle: Nothing is known\n\n{summary.prose(words, 400)}\n\n{at}"
