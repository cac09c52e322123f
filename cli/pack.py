"""What a machine without network needs for a visit, in slices: `python -m hloracle.cli.pack FOLDER`.

Wheels of hloracle and of all that it depends on, at the versions of this environment but for another Python, and a model's
file. On the other machine, with all slices in one folder, `sh unpack.sh` puts them together and installs the wheels.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from hloracle.bench.device import JAX_FOLDER
from hloracle.cli.options import DEFAULT_MODEL
from hloracle.core.errors import InputError
from hloracle.core.files import write_file
from hloracle.core.program import run_command_line
from hloracle.reference.fixtures.named import SOURCE, resolve

# This file's own place, not that of the link through which it is imported.
CHECKOUT = Path(__file__).resolve().parents[1]
LOCK = CHECKOUT / "lock" / "environment.txt"
MIB = 1024 * 1024
# What a machine with a GPU has, built for its driver.
LEFT_OUT = ("torch",)
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (35, 34, 31, 28, 27, 26, 24, 17)] + [
    "manylinux2014_x86_64",
    "linux_x86_64",
]
UNPACK = """#!/bin/sh
# Puts the slices together in this folder, and installs the wheels into ./site for the Python that is named, or python3.
set -e
cd "$(dirname "$0")"
cat slice.* | tar x
install() { "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$@"; }
python=${1:-python3}
# The oracle's own JAX, which is of the processor, by itself: what times JAX on the device takes the one that is there.
mkdir -p jax; mv wheels/jax-*.whl wheels/jaxlib-*.whl jax 2>/dev/null || true
install site wheels/*.whl
if ls jax/*.whl >/dev/null 2>&1; then install %(jax)s jax/*.whl; fi
echo "PYTHONPATH=$PWD/site:$PWD/%(jax)s $python -m hloracle.cli.visit --model $PWD/model.gguf"
"""


def closure(roots: Iterable[str], left_out: Sequence[str]) -> dict[str, str]:
    """The distributions that these need here, themselves not included, and their versions."""
    found: dict[str, str] = {}
    left = [name for root in roots for name in needs(root)]
    while left:
        name = left.pop()
        if name in found or name in left_out or name.startswith(("nvidia-", "cuda-")) or name == "triton":
            continue
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform
        left += needs(name)
    return found


def needs(name: str) -> list[str]:
    """The distributions that one needs, without its extras."""
    requirements = (r for r in metadata.requires(name) or [] if "extra ==" not in r)
    return [re.sub(r"[-_.]+", "-", re.split(r"[ ;<>=!~\[(]", r, maxsplit=1)[0]).lower() for r in requirements]


def known_hashes(package: str) -> list[str]:
    """pip's options with the SHA-256 of each file of `NAME==VERSION` in lock/; none for a version that is not there."""
    locked = LOCK.read_text("utf-8") if LOCK.is_file() else ""
    found = re.search(rf"^{re.escape(package)} .*(?:\n .*)*", locked, re.MULTILINE)
    return re.findall(r"--hash=\S+", found[0]) if found else []


def download(packages: dict[str, str], python: str, folder: Path) -> tuple[list[str], list[str]]:
    """Wheels into `folder`; returns what there is none of, and what has no hash in lock/ to be held to.

    Raises InputError where pip cannot be run, and for a wheel that has another hash.
    """
    missing, unchecked = [], []
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder),
        "--python-version", python, "--implementation", "cp", *platforms,
    ]  # fmt: skip
    for name, version in packages.items():
        package = f"{name}=={version}"
        hashes = known_hashes(package)
        listed = ["--require-hashes"] if hashes else []
        asked = [*command, *listed, "--requirement", "/dev/stdin"]
        try:
            done = subprocess.run(
                asked, input=" ".join([package, *hashes]), capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise InputError(f"cannot be run ({error.strerror})", "pip", "install it") from None
        if "DO NOT MATCH THE HASHES" in done.stderr:
            fix = "see which index pip takes it from; `nox -s lock` writes what the index has"
            raise InputError(f"is another file than {LOCK.parent.name}/{LOCK.name} has", package, fix)
        if done.returncode:
            missing.append(package)
        elif not hashes:
            unchecked.append(package)
    return missing, unchecked


def own_wheel(folder: Path) -> None:
    """Build hloracle's own wheel into a folder. Raises InputError outside of a checkout."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(CHECKOUT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"its wheel is not built ({words})", CHECKOUT, "run this in a checkout of hloracle")


def slices(content: Path, out: Path, size: int) -> list[Path]:
    """`content` as a tar file, in pieces of at most `size` bytes."""
    made: list[Path] = []
    with TemporaryDirectory(dir=out) as folder:
        whole = Path(folder) / "all.tar"
        with tarfile.open(whole, "w") as tar:
            for path in sorted(content.iterdir()):
                tar.add(path, path.name)
        with whole.open("rb") as file:
            while piece := file.read(size):
                made.append(out / f"slice.{len(made):02}")
                write_file(made[-1], piece)
    return made


@click.command()
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option("--python", default="3.12", show_default=True, help="The version of Python on the other machine.")
@click.option("--mib", type=click.IntRange(1), default=60, show_default=True, help="The most that a slice takes.")
@click.option(
    "--model", default=DEFAULT_MODEL, show_default=True, help="A .gguf file, or a model that was made from one."
)
@click.option(
    "--leave-out",
    multiple=True,
    metavar="NAME",
    help="A package that the other machine has; may be given several times.",
)
def command(out: Path, python: str, mib: int, model: str, leave_out: tuple[str, ...]) -> int:
    """Put what a visit needs into slices in the folder OUT."""
    file = Path(model) if model.endswith(".gguf") else resolve(model) / SOURCE
    if not file.is_file():
        raise InputError("has no .gguf file", model, "name one that was made from one")
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("slice.*"):
        old.unlink()
    with TemporaryDirectory(dir=out) as folder:
        content = Path(folder)
        (content / "wheels").mkdir()
        own_wheel(content / "wheels")
        missing, unchecked = download(closure(["hloracle"], (*LEFT_OUT, *leave_out)), python, content / "wheels")
        shutil.copyfile(file, content / "model.gguf")
        made = slices(content, out, mib * MIB)
    write_file(out / "unpack.sh", UNPACK % {"jax": JAX_FOLDER})
    for name in missing:
        click.echo(f"no wheel of {name} for Python {python}: the other machine must have it", err=True)
    for name in unchecked:
        click.echo(f"{name} is not in {LOCK.parent.name}/: its wheel was held to no hash", err=True)
    click.echo("\n".join(str(path) for path in (*made, out / "unpack.sh")))
    return 0


if __name__ == "__main__":
    sys.exit(run_command_line(command, sys.argv[1:]))
