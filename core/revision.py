"""The revision of the working directory, for a record to name.

The checkout may be anybody's, and git runs programs that a repository's own config names: hooks, a monitor of the file
system, filters. None of them is run for a name in a record.
"""

from __future__ import annotations

import os
import subprocess

SECONDS = 10
NOTHING_RUNS = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "protocol.allow=never")
# Of a filter of file contents: what it is to git without a program.
PLAIN = ("clean=", "smudge=", "process=", "required=false")


def revision() -> str | None:
    """The commit, with `+` where tracked files differ from it; HLORACLE_COMMIT says another. None where there is none."""
    if named := os.environ.get("HLORACLE_COMMIT"):
        return named
    try:
        settings = [*NOTHING_RUNS, *(f"{driver}.{plain}" for driver in _filters() for plain in PLAIN)]
        head = _git(settings, "rev-parse", "HEAD")
        # A refreshed index would be written, and a submodule has a config of its own.
        status = _git(
            settings, "--no-optional-locks", "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.decode() + ("+" if status else "")  # status holds file names, which may be of any bytes


def _filters() -> list[str]:
    """The filters that the repository's own config defines, such as `filter.lfs`; those of the user's config are the user's."""
    found: set[str] = set()
    for scope in ("--local", "--worktree"):
        asked = ["git", "config", scope, "--includes", "--null", "--name-only", "--get-regexp", r"^filter\."]
        done = subprocess.run(asked, capture_output=True, timeout=SECONDS, check=False)  # 1: there are none
        names = done.stdout.decode("utf-8", "surrogateescape").split("\0")
        found |= {name.rpartition(".")[0] for name in names if name}
    return sorted(found)


def _git(settings: list[str], *words: str) -> bytes:
    """What git prints. No object is fetched for it: that would run the remote's program."""
    options = [word for setting in settings for word in ("-c", setting)]
    environment = {**os.environ, "GIT_NO_LAZY_FETCH": "1"}
    done = subprocess.run(["git", *options, *words], capture_output=True, timeout=SECONDS, check=True, env=environment)
    return done.stdout.strip()
