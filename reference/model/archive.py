"""The weights of a checkpoint as a session's graphs take them, in one file that is mapped, not read.

Made once for each way to hold a checkpoint's weights; from then on a start costs no conversion and no copy, and the
memory that weights take is the file's own pages.
"""

from __future__ import annotations

import contextlib
import json
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hloracle.core.abi import Tensor
from hloracle.core.cache import build_directory, cache_root, digest
from hloracle.core.errors import InputError
from hloracle.core.given import refuse_if_exhausted
from hloracle.reference.model import encodings
from hloracle.reference.model.checkpoint import Checkpoint
from hloracle.reference.model.tensor_file import DTYPES, NAMES, write_tensors

FILE = "weights.safetensors"
VERSION = "2"
MADV_POPULATE_READ = 22  # which Python 3.11's mmap does not name


@dataclass(frozen=True)
class Archive:
    """An opened archive: name -> dtype, shape, and where its bytes begin."""

    path: Path
    data: np.ndarray
    tensors: dict[str, tuple[str, tuple[int, ...], int]]

    def load(self, name: str) -> np.ndarray:
        """One argument of a graph, as it lies in the file: what is written to it stays in this process."""
        dtype, shape, at = self.tensors[name]
        count = int(np.prod(shape)) * DTYPES[dtype].itemsize
        found: np.ndarray = np.asarray(self.data[at : at + count]).view(DTYPES[dtype]).reshape(shape)
        return found


def weight_sources() -> list[bytes]:
    """The code that makes the arguments of graphs of a checkpoint."""
    folder = Path(str(encodings.__file__)).parent
    names = ("checkpoint", "encodings", "precision", "registry", "weights")
    files = [*(folder / f"{name}.py" for name in names), folder.parent / "fixtures" / "gguf_blocks.py"]
    return [path.read_bytes() for path in files]


def archive_of(checkpoint: Checkpoint, weights: tuple[Tensor, ...]) -> Archive:
    """The archive of a checkpoint for graphs with these weight arguments, made if it has to be.

    It is hashed when it was written to, and not at each start: that would take a second per gigabyte.
    """
    held = json.dumps([(w.name, w.shape, w.dtype) for w in weights])
    entry = cache_root() / "archives" / digest(VERSION, checkpoint.digest, held, *weight_sources())[:32]

    def build(folder: Path) -> None:
        write_tensors(folder / FILE, {w.name: (NAMES[w.dtype], w.shape) for w in weights}, checkpoint.load)

    return open_archive(build_directory(entry, build) / FILE)


def _mapped(file: BinaryIO) -> mmap.mmap:
    """The whole file; what is written to it stays in this process. Its pages are asked for now, all at once."""
    found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    with contextlib.suppress(OSError):  # a kernel before Linux 5.14: they come one by one, when they are read
        found.madvise(MADV_POPULATE_READ)
    return found


def open_archive(path: Path) -> Archive:
    """Raises InputError when the file is not whole."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > path.stat().st_size:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(file.read(length))
            data = np.frombuffer(_mapped(file), np.uint8)[8 + length :]
        found = {
            name: (entry["dtype"], tuple(entry["shape"]), entry["data_offsets"][0])
            for name, entry in header.items() if name != "__metadata__"
        }  # fmt: skip
        end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
        if unknown := {dtype for dtype, _, _ in found.values()} - set(DTYPES):
            raise ValueError(f"dtype {min(unknown)}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        refuse_if_exhausted(error, path)
        raise InputError(f"is damaged ({error})", path, "remove it, and run again") from None
    if end != len(data):
        raise InputError(
            f"is cut short: {end} bytes are named, {len(data)} are there", path, "remove it, and run again"
        )
    return Archive(path, data, found)
