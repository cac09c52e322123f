"""lock/: what CI installs, file by file, agrees with pyproject.toml and constraints.txt, and each file has its hash."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hloracle.core.environment import tried

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "lock"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FILES = {path.stem: path.read_text() for path in sorted(LOCK.iterdir())}
HASH = "    --hash=sha256:[0-9a-f]{64}"


def load_noxfile() -> Any:
    spec = spec_from_file_location("noxfile", ROOT / "noxfile.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NOX = load_noxfile()


def locked(*names: str) -> dict[str, Requirement]:
    """Package -> what is locked of it: one version for every Python and platform."""
    lines = [line.removesuffix(" \\") for name in names for line in FILES[name].splitlines() if line[0] not in "# "]
    found = {requirement.name: requirement for requirement in map(Requirement, lines)}
    assert len(found) == len(lines), "a package is there twice"
    return found


def exact(requirement: Requirement) -> str:
    (specifier,) = requirement.specifier
    assert specifier.operator == "=="
    return specifier.version


def test_there_are_these() -> None:
    assert set(FILES) == {"environment", "torch-cpu", "torch-cuda", *PROJECT["dependency-groups"]}
    assert set(NOX.GROUPS) == set(PROJECT["dependency-groups"])


@pytest.mark.parametrize("name", FILES)
def test_every_package_has_one_version_and_hashes(name: str) -> None:
    """No other lines: an option such as an index's address would be one."""
    entry = rf"[a-z0-9-]+==\S+( ; [^\\\n]+)?( \\\n{HASH})+\n"
    assert re.fullmatch(rf"# Written by `nox -s lock`\.\n({entry})+", FILES[name]), f"lock/{name}.txt"


def test_holds_the_versions_that_were_tried() -> None:
    found = locked("environment", "torch-cuda")
    for name, version in tried().items():
        assert exact(found[canonicalize_name(name)]) == version, f"{name}: run `nox -s lock`"


@pytest.mark.parametrize(
    "group", ["dependencies", "test", "browser", "lint", "nox", "reports", "tools", "build-system"]
)
def test_holds_what_the_project_asks_for(group: str) -> None:
    files = [group] if group in FILES else ["environment", "torch-cuda"]
    asked = {
        **PROJECT["dependency-groups"], **PROJECT["project"]["optional-dependencies"],
        "dependencies": PROJECT["project"]["dependencies"], "build-system": PROJECT["build-system"]["requires"],
    }[group]  # fmt: skip
    found = locked(*files)
    for requirement in map(Requirement, asked):
        version = exact(found[canonicalize_name(requirement.name)])
        assert requirement.specifier.contains(version), f"{requirement}: run `nox -s lock`"


@pytest.mark.parametrize("name", sorted(PROJECT["dependency-groups"]))
def test_a_package_has_one_version_in_all_files(name: str) -> None:
    environment = locked("environment", "torch-cuda")
    both = {package: found for package, found in locked(name).items() if package in environment}
    assert both
    for package, found in both.items():
        assert exact(found) == exact(environment[package])


def test_torch_without_cuda_is_the_same_version() -> None:
    assert exact(locked("torch-cpu")["torch"]) == exact(locked("torch-cuda")["torch"]) + "+cpu"
    assert set(locked("torch-cpu")) == {"torch"}
    assert not [name for name in locked("environment") if name.startswith(("torch", "nvidia", "cuda", "triton"))]


@pytest.mark.parametrize(
    ("platform", "machine", "version", "said"),
    [
        ("linux", "x86_64", (3, 11), ""),
        ("linux", "x86_64", (3, 13), ""),
        ("linux", "x86_64", (3, 14), "Python 3.14"),
        ("linux", "aarch64", (3, 11), "Linux on aarch64"),
        ("darwin", "arm64", (3, 11), "Darwin on arm64"),
    ],
)
def test_says_which_machines_it_is_not_for(
    platform: str, machine: str, version: tuple[int, int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NOX.sys, "platform", platform)
    monkeypatch.setattr(NOX.sys, "version_info", version)
    monkeypatch.setattr(NOX.platform, "machine", lambda: machine)
    monkeypatch.setattr(NOX.platform, "system", platform.capitalize)
    assert NOX.unlocked() == said


@pytest.mark.parametrize("damage", ["hash", "version"])
def test_pip_refuses_another_file(damage: str, tmp_path: Path) -> None:
    """pip itself is asked, about a file with one requirement of the lock and no network."""
    requirement = "click==8.5.1 \\\n    --hash=sha256:" + "0" * 64 if damage == "hash" else "click>=8"
    (tmp_path / "lock.txt").write_text(requirement + "\n")
    (tmp_path / "click-8.5.1-py3-none-any.whl").write_bytes(b"not what was locked")
    pip = [sys.executable, "-m", "pip", "download", "--no-index", "--no-deps", "--find-links", str(tmp_path)]
    command = [*pip, "--require-hashes", "-r", str(tmp_path / "lock.txt"), "--dest", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert ("DO NOT MATCH THE HASHES" if damage == "hash" else "must have their versions pinned") in done.stderr
