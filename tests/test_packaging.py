"""The wheel: one package and its metadata, the data files inside, a command line that works outside the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hloracle.core.environment import tried

ROOT = Path(__file__).parents[1]
PACKAGES = tuple(sorted(path.name for path in (ROOT / "src" / "hloracle").iterdir() if path.is_symlink()))


def run(*command: object, cwd: Path, **environment: str) -> str:
    """stdout of a command; a failure shows what it said."""
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**os.environ, **environment},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools writes into the tree that it builds, and takes up what an older build left."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(
        ROOT / "src", source / "src", symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, wheel, cwd=folder)
    return folder


def test_installs_one_package(installed: Path) -> None:
    found = {path.name for path in installed.iterdir()} - {"bin"}
    assert found == {"hloracle", f"hloracle-{metadata.version('hloracle')}.dist-info"}


def test_holds_every_source_and_data_file(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    suffixes = {".py", ".json", ".toml", ".j2", ".css", ".js", ".cpp", ".h"}
    sources = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.suffix in suffixes]
    missing = [str(path.relative_to(ROOT)) for path in sources if f"hloracle/{path.relative_to(ROOT)}" not in names]
    assert len(sources) > len(PACKAGES)
    assert missing == []


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][extra] for extra in ("test", "browser", "lint")]
    return [Requirement(line) for lines in (project["dependencies"], *extras) for line in lines]


def test_tried_versions_lie_in_the_wheel_and_the_ranges(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("hloracle/core/constraints.txt").decode() == (ROOT / "constraints.txt").read_text()
    versions = {canonicalize_name(name): version for name, version in tried().items()}
    for requirement in requirements():
        name = canonicalize_name(requirement.name)
        assert name in versions or name == "hloracle", f"{name} is not in constraints.txt"
        assert requirement.specifier.contains(versions[name]), requirement


def test_the_lowest_session_takes_the_lower_ends() -> None:
    lowest = [Requirement(line) for line in re.findall(r'"([\w-]+==[\d.]+)"', (ROOT / "noxfile.py").read_text())]
    found = {requirement.name: str(requirement.specifier) for requirement in requirements()}
    assert len(lowest) == 6
    for requirement in lowest:
        version = str(requirement.specifier).removeprefix("==").removesuffix(".0")
        assert f">={version}" in found[requirement.name].split(","), requirement


def test_no_version_that_a_verdict_depends_on_is_the_only_one() -> None:
    """Exact versions would keep hloracle out of an environment that has its own."""
    assert not [str(r) for r in requirements() if "==" in str(r.specifier)]


def test_pyright_is_told_of_every_folder() -> None:
    """It enters no symbolic link that it comes upon, and says nothing of what it left out."""
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]["include"]
    assert included == ["src/hloracle/*.py", *(f"src/hloracle/{name}" for name in PACKAGES)]


def test_runs_as_a_module(installed: Path, tmp_path: Path) -> None:
    said = run(sys.executable, "-m", "hloracle", "--version", cwd=tmp_path, PYTHONPATH=str(installed))
    assert said == f"hloracle, version {metadata.version('hloracle')}\n"


def test_says_its_version_and_that_it_is_typed(installed: Path, tmp_path: Path) -> None:
    assert (installed / "hloracle" / "py.typed").is_file()
    said = run(
        sys.executable, "-c", "import hloracle; print(hloracle.__version__)", cwd=tmp_path, PYTHONPATH=str(installed)
    )
    assert said.strip() == metadata.version("hloracle")


@pytest.mark.parametrize("arguments", [["--help"], ["models"]])
def test_command_line_outside_the_checkout(installed: Path, tmp_path: Path, arguments: list[str]) -> None:
    """The installed copy is what runs, not the checkout that the tests' own environment points to."""
    # -S keeps the environment's .pth files, and so its editable install, out; its packages are named instead.
    packages = Path(metadata.distribution("click").locate_file("")).resolve()
    script = (
        f"import sys; sys.path[:0] = [{str(installed)!r}]; sys.path.append({str(packages)!r}); "
        "import hloracle.cli.main as cli; "
        f"assert cli.__file__.startswith({str(installed)!r}), cli.__file__; "
        f"sys.exit(cli.invoke({arguments!r}))"
    )
    said = run(sys.executable, "-P", "-S", "-c", script, cwd=tmp_path)
    assert ("Usage: hloracle" if arguments == ["--help"] else "smollm2-135m-instruct") in said


def test_console_script(installed: Path, tmp_path: Path) -> None:
    said = run(installed / "bin" / "hloracle", "--version", cwd=tmp_path, PYTHONPATH=str(installed))
    assert metadata.version("hloracle") in said


def test_pytest_finds_the_plugin(installed: Path, tmp_path: Path) -> None:
    said = run(sys.executable, "-m", "pytest", "--markers", cwd=tmp_path, PYTHONPATH=str(installed))
    assert "@pytest.mark.hloracle(" in said
