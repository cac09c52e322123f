"""What goes from one machine to another: files that a job names, and entries of the cache, which are named by their content.

Where machines share the driver's cache folder, no entry is moved; a file that is there with the same bytes is not moved either.
"""

from __future__ import annotations

import io
import os
import secrets
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hloracle.core.cache import SEAL, build_directory, cache_root, digest, known_digest
from hloracle.core.files import writing

# Entries that take long to make and say nothing of the machine: the reference's values and the oracle's graphs.
KINDS = ("truth", "anchors", "oracle", "prompts", "finite")
MOST_BYTES = 1 << 30  # of the entries that one job leaves for others
INPUTS = "inputs"


@dataclass(frozen=True, slots=True)
class Input:
    """A file or a folder of the driver's machine that a job names, with the ABI files beside it. digest: of all their bytes."""

    path: str
    digest: str


def input_of(path: Path) -> Input:
    """The input at a path that is there."""
    return Input(str(path), _digest(path))


def companions(path: Path) -> list[str]:
    """The names of an input and of what is read beside it: a graph's ABI file, or that of its emitter."""
    beside = () if path.is_dir() else (f"{path.stem}.abi.json", "abi.toml")
    return [path.name, *(name for name in beside if (path.parent / name).is_file())]


def pack(root: Path, names: Iterable[str]) -> bytes:
    """Files and folders under `root` as one tar; those that are gone are left out. Links are packed as what they lead to."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", dereference=True) as tar:
        for name in names:
            if (root / name).exists():
                tar.add(root / name, arcname=name)
    return data.getvalue()


def here(asked: Input, packed: bytes | None) -> str | None:
    """Where an input is on this machine: at its own path with the same bytes, or in the cache, where `packed` is put.

    None where it is in neither and nothing is packed.
    """
    path, entry = Path(asked.path), cache_root() / INPUTS / asked.digest[:32]
    if path.exists() and _digest(path) == asked.digest:
        return asked.path
    if packed is None and not (entry / SEAL).is_file():
        return None
    build_directory(entry, lambda folder: _extract(packed or b"", folder))
    return str(entry / path.name)


def shares(marker: str) -> bool:
    """Whether this machine's cache is the folder in which the driver has put a marker."""
    return (cache_root() / marker).exists()


def mark() -> str:
    """Put a marker into this machine's cache; returns its name, for `shares`. Whoever does removes it."""
    path = cache_root() / f"fleet-{secrets.token_hex(8)}"
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return path.name


def entries() -> set[str]:
    """The names of the entries in this machine's cache that may be moved."""
    root, found = cache_root(), set()
    for kind in KINDS:
        for path in (root / kind).rglob(SEAL):
            found.add(path.parent.relative_to(root).as_posix())
        for path in (root / kind).glob("*.json"):
            found.add(path.relative_to(root).as_posix())
    return found


def take(packed: bytes) -> None:
    """Put packed entries into this machine's cache, those that it has not. They are sealed: what is not whole is made anew."""
    root = cache_root()
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=root, prefix=".taken-") as name:
            taken = Path(name)
            _extract(packed, taken)
            for path in [p.parent for p in taken.rglob(SEAL)] + [p for k in KINDS for p in (taken / k).glob("*.json")]:
                there = root / path.relative_to(taken)
                if not there.exists():
                    there.parent.mkdir(parents=True, exist_ok=True)
                    _move(path, there)


def small_enough(names: Sequence[str]) -> list[str]:
    """As many of these entries as may be moved."""
    root, left, found = cache_root(), MOST_BYTES, []
    for name in names:
        path = root / name
        files = [path] if path.is_file() else list(path.rglob("*"))
        left -= sum(file.stat().st_size for file in files if file.is_file())
        if left >= 0:
            found.append(name)
    return found


def _move(path: Path, there: Path) -> None:
    try:
        os.replace(path, there)
    except OSError:
        if not there.exists():  # another job has put it there meanwhile
            raise


def _extract(packed: bytes, folder: Path) -> None:
    """They come from another machine: nothing is written outside of the folder."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(folder, filter="data")


def _digest(path: Path) -> str:
    parts: list[str] = []
    for name in companions(path):
        there = path.parent / name
        files = [there] if there.is_file() else sorted(file for file in there.rglob("*") if file.is_file())
        for file in files:
            parts += [file.relative_to(path.parent).as_posix(), known_digest(file)]
    return digest(*parts)
