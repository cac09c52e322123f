"""The revision that a record names: it is right, and nothing of the checkout is run to find it out."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hloracle.core.revision import revision


def git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The working directory is a repository of one file, whose name is no text; returns its commit."""
    (tmp_path / "checkout").mkdir()
    monkeypatch.chdir(tmp_path / "checkout")
    monkeypatch.delenv("HLORACLE_COMMIT", raising=False)
    git("init", "--quiet")
    for setting in ("core.quotepath=false", "user.name=n", "user.email=e@e", "commit.gpgsign=false"):
        git("config", *setting.split("="))
    the_file().write_text("1")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    return git("rev-parse", "HEAD")


def the_file() -> Path:
    return Path(os.fsdecode(b"caf\xe9"))


def test_there_is_none_outside_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HLORACLE_COMMIT", raising=False)
    assert revision() is None
    monkeypatch.setenv("HLORACLE_COMMIT", "mine")
    assert revision() == "mine"


def test_a_changed_file_is_told(checkout: str) -> None:
    assert revision() == checkout
    the_file().write_text("2")
    assert revision() == f"{checkout}+"


@pytest.mark.parametrize("changed", [False, True])
def test_no_program_of_the_checkout_is_run(checkout: str, changed: bool, tmp_path: Path) -> None:
    """Hooks, a monitor of the file system and filters, also those of a config that the repository's own includes."""
    Path("notes.md").write_text("notes")
    git("add", "notes.md")
    ran, program = tmp_path / "ran", tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$0 $@" >> {ran}\ncat\n')
    program.chmod(0o755)
    for name in ("post-index-change", "query-watchman", "reference-transaction"):
        hook = Path(".git/hooks") / name
        hook.parent.mkdir(exist_ok=True)
        hook.symlink_to(program)
    included = Path(".git/more")
    included.write_text(f'[filter "more.of"]\n\tclean = {program}\n\tprocess = {program}\n\trequired = true\n')
    git("config", "include.path", "more")
    git("config", "core.fsmonitor", str(program))
    git("config", "filter.evil.clean", str(program))
    git("config", "filter.evil.required", "true")
    Path(".git/info").mkdir(exist_ok=True)
    Path(".git/info/attributes").write_text("* filter=evil\n*.md filter=more.of\n")
    for file in (the_file(), Path("notes.md")):
        os.utime(file, (1, 1))  # git has to look into it
    if changed:
        the_file().write_text("2")
    found = revision()
    assert not ran.exists(), ran.read_text()
    assert found == f"{checkout}+"  # notes.md is staged
    subprocess.run(["git", "status", "--porcelain"], capture_output=True, check=False)
    assert ran.exists(), "the test's own programs are never run"
