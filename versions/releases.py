"""The releases of a package that pip finds, as pip is configured: a registry, or a folder of wheels."""

from __future__ import annotations

import re
import subprocess
import sys

from hloracle.core.errors import InputError

# A package -> the compiler that a backend's word names.
COMPILERS = {
    "iree-base-compiler": "iree",
    "iree-base-runtime": "iree",
    "jax": "xla",
    "jaxlib": "xla",
}
LIST_SECONDS = 300
_AVAILABLE = re.compile(r"^Available versions: (.+)$", re.MULTILINE)


def word_of(package: str, version: str, flags: tuple[str, ...] = ()) -> str:
    """The word of a backend: `iree==3.12.0:--flag`."""
    return f"{COMPILERS[package]}=={version}" + (f":{' '.join(flags)}" if flags else "")


def releases(package: str) -> list[str]:
    """The final releases for this Python, the oldest first. Raises InputError where pip finds none."""
    command = [sys.executable, "-m", "pip", "index", "versions", "--disable-pip-version-check", package]
    fix = "look what `pip index versions` says, and at pip's configuration"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(f"was not listed within {LIST_SECONDS} s", package, fix) from None
    found = _AVAILABLE.search(done.stdout)
    if done.returncode or not found:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line]
        raise InputError(f"cannot be listed ({lines[-1] if lines else 'pip says nothing'})", package, fix)
    return found[1].split(", ")[::-1]


def between(package: str, good: str, bad: str) -> list[str]:
    """The releases from one to another, both among them. Raises InputError where one is not there, or they are in no order."""
    found = releases(package)
    for flag, version in (("--good", good), ("--bad", bad)):
        if version not in found:
            raise InputError("is no release that pip finds", f"{flag} {version}", f"name one of {', '.join(found)}")
    if found.index(good) >= found.index(bad):
        raise InputError("is not older than the bad one", f"--good {good}", "give an older one, or exchange the two")
    return found[found.index(good) : found.index(bad) + 1]


def before(package: str, version: str) -> str:
    """The release before this one. Raises InputError where pip finds none, or not this one."""
    found = releases(package)
    if version not in found[1:]:
        raise InputError(
            "is no release with one before it", f"{package}=={version}", f"name one of {', '.join(found[1:])}"
        )
    return found[found.index(version) - 1]
