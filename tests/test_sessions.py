"""The sessions of noxfile.py that install, audit and build: what they ask other programs to do."""

from __future__ import annotations

import tarfile
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_lock import FILES, NOX, ROOT


class Failed(Exception):
    pass


class Session:
    """Notes what it is asked to do, and does nothing."""

    def __init__(self, folder: Path, answers: str = "") -> None:
        self.virtualenv = SimpleNamespace(location=str(folder))
        self.answers, self.asked, self.said = answers, list[str](), list[str]()

    def install(self, *words: str, **how: Any) -> None:
        self.asked.append(" ".join(words))

    def run(self, *words: str, **how: Any) -> str:
        self.asked.append(" ".join(words))
        return self.answers

    def log(self, line: str) -> None:
        self.said.append(line)

    warn = log

    def error(self, line: str) -> None:
        raise Failed(line)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(NOX, "WHEELS", "")
    return tmp_path


@pytest.mark.parametrize(
    ("listed", "torch"),
    [("2.14.1, 2.13.0+cpu, 2.13.0", "cpu"), ("2.14.1, 2.13.0", "cuda"), ("2.13.0+cu130, 2.13.0", "cuda")],
)
def test_the_environment_is_what_is_locked(
    listed: str, torch: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NOX, "unlocked", lambda: "")
    session = Session(folder, f"torch (2.14.1)\nAvailable versions: {listed}\n")
    NOX.environment(session)
    locked = "--no-compile --no-deps --require-hashes -r lock/{}.txt"
    installs = [asked for asked in session.asked if "-r " in asked or "-e " in asked]
    editable = "--no-deps --no-build-isolation -e ."
    assert installs == [locked.format("environment"), locked.format(f"torch-{torch}"), editable]
    assert "python -m pip check" in session.asked
    session.asked.clear()
    NOX.environment(session)
    assert session.asked == [], "it is there"


def test_without_a_lock_the_environment_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NOX, "unlocked", lambda: "Python 3.14")
    session = Session(folder)
    NOX.environment(session)
    assert session.asked == ["--no-compile -c constraints.txt -e .[test,browser,lint,fleet]"]
    assert session.said[-1] == (
        "lock/ is not for Python 3.14: versions are those of constraints.txt, and no file is held to a hash"
    )


def test_without_a_network_the_environment_takes_the_wheels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "a-1-py3-none-any.whl").write_bytes(b"")
    monkeypatch.setattr(NOX, "WHEELS", str(folder))
    session = Session(folder)
    NOX.environment(session)
    assert all(asked.startswith("--no-index --no-deps") for asked in session.asked)
    assert not [asked for asked in session.asked if "require-hashes" in asked]


def test_the_audit_is_of_all_that_is_locked(folder: Path) -> None:
    """A package of which the service knows nothing is skipped without --strict, and the audit passes."""
    session = Session(folder)
    NOX.audit(session)
    (audit,) = (asked for asked in session.asked if asked.startswith("pip-audit"))
    assert " --strict " in audit
    assert {name for name in FILES if f"lock/{name}.txt" in audit} == set(FILES) - {"torch-cpu"}


def test_an_archive_depends_on_its_files_alone(tmp_path: Path) -> None:
    made = []
    for name, times in (("a", (1, 2)), ("b", (4, 3))):
        path = tmp_path / f"{name}.tar.gz"
        with tarfile.open(path, "w:gz") as tar:
            for member, time in sorted(zip(("x/one", "x/two"), times, strict=True), key=lambda pair: pair[1]):
                about = tarfile.TarInfo(member)
                about.size, about.mtime, about.uid, about.uname, about.mode = 3, time, time, name, 0o600
                tar.addfile(about, BytesIO(member[-3:].encode()))
        NOX.normalize(path, 1_700_000_000)
        made.append(path.read_bytes())
    assert made[0] == made[1]
    with tarfile.open(fileobj=BytesIO(made[0])) as tar:
        assert [(m.name, m.mtime, m.mode) for m in tar] == [(f"x/{n}", 1_700_000_000, 0o644) for n in ("one", "two")]
        file = tar.extractfile("x/two")
        assert file is not None
        assert file.read() == b"two"
