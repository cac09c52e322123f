"""Other versions of a compiler: each in a virtual environment of its own, made once and kept in the cache."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from hloracle.core.cache import SEAL, cache_root, digest, remove_damaged
from hloracle.core.errors import InputError
from hloracle.core.files import below, locked, write_file, writing
from hloracle.core.given import refuse_if_exhausted

# What a version of a compiler is installed as; ml_dtypes is for bfloat16, where the packages do not bring it.
PACKAGES = {
    "iree": ("iree-base-compiler=={}", "iree-base-runtime=={}", "numpy", "ml_dtypes"),
    "xla": ("jax=={}", "jaxlib=={}", "numpy"),
}

VERSION = re.compile(r"[0-9][0-9A-Za-z.+!-]*")
INSTALL_SECONDS = 1200
INSTALLED = "installed.json"  # what pip installed, each file with its SHA-256


class NotInstalled(InputError):
    """A version that is not to be had here, which says nothing of what it would do."""


def environment(compiler: str, version: str) -> Path:
    """The Python of an environment with this version; the first time it is installed with pip, as pip is configured.

    Raises NotInstalled where it cannot be: PIP_FIND_LINKS and PIP_NO_INDEX, for one, have pip take it from a folder of wheels.
    """
    if not VERSION.fullmatch(version):
        raise InputError("is no version", f"{compiler}=={version}", "give one such as 3.12.0")
    packages = [package.format(version) for package in PACKAGES[compiler]]
    # A virtual environment belongs to its folder, and to the Python that it was made with.
    key = digest(*packages, sys.version, str(Path(sys.executable).resolve()))
    folder = cache_root() / "environments" / f"{compiler}-{version}-{key[:8]}"
    python = folder / "bin" / "python"
    with locked(folder):
        if not _whole(folder):
            with writing(folder):
                remove_damaged(folder)
                _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], compiler, version)
                pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
                with TemporaryDirectory() as beside:
                    report = Path(beside) / "report.json"
                    install = ["install", "--quiet", "--no-compile", "--report", str(report), *packages]
                    _run([*pip, *install], compiler, version)
                    write_file(folder / INSTALLED, json.dumps(_installed(report), indent=1) + "\n")
                    write_file(folder / SEAL, _state(folder))  # last
    return python


def _whole(folder: Path) -> bool:
    """Whether an environment is as it was installed, and not written to since: to hash it all would take seconds each time."""
    try:
        return (folder / SEAL).read_text("utf-8") == _state(folder)
    except (OSError, ValueError) as error:
        refuse_if_exhausted(error, folder)
        return False


def _state(folder: Path) -> str:
    """What tells that none of its files was written to. What Python compiles as it runs is left out."""
    found = []
    for path in below(folder):
        if path.is_file() and path.suffix != ".pyc" and path != folder / SEAL:
            about = path.stat()
            found.append([path.relative_to(folder).as_posix(), about.st_size, about.st_mtime_ns])
    return digest(json.dumps(found))


def _installed(report: Path) -> list[dict[str, str]]:
    """What pip reports to have installed. Addresses are left out, because an index's may hold a password."""
    found = []
    for row in json.loads(report.read_text("utf-8"))["install"]:
        about, download = row["metadata"], row["download_info"]
        file = unquote(urlsplit(download["url"]).path).rpartition("/")[2]
        archive = download["archive_info"]
        sha256 = (
            archive["hashes"]["sha256"] if "hashes" in archive else archive["hash"].removeprefix("sha256=")
        )  # pip 22
        found.append({"name": about["name"], "version": about["version"], "file": file, "sha256": sha256})
    return sorted(found, key=lambda row: row["name"].lower())


def _run(command: list[str], compiler: str, version: str) -> None:
    where, fix = f"{compiler}=={version}", "name a version that pip finds: `pip index versions` lists them"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"was not installed within {INSTALL_SECONDS} s", where, "try again") from None
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if "ERROR" in line] or lines[-1:]
        raise NotInstalled(f"cannot be installed ({errors[-1] if errors else 'pip says nothing'})", where, fix)
