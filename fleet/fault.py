"""A job that does something wrong on purpose, to try a fleet: `python -m hloracle.fleet.fault KIND ATTEMPT MODULE [ARGUMENT]...`."""

from __future__ import annotations

import os
import runpy
import sys
import time


def main(kind: str, attempt: int, words: list[str]) -> None:
    """Crash; hang for ever; or be flaky, which is to fail the first time and run the module each other time."""
    print(f"a planted fault: {kind}", flush=True)
    if kind == "crash":
        os.abort()
    while kind == "hang":
        time.sleep(3600)
    if attempt == 1:
        sys.exit(1)
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
