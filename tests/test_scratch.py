"""What a program leaves when it is stopped amid its work: nothing, and what one that was killed has left goes with the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hloracle.core.scratch import PREFIX, folder_in, noted

PROGRAM = """
import signal, sys, tempfile, time
from pathlib import Path

import click

from hloracle.core.cache import build_directory, write_file
from hloracle.core.child import run_in_child
from hloracle.core.program import run_program
from hloracle.core.scratch import folder_in

def build(folder):
    (folder / "half").write_text("x")
    tempfile.mkstemp()
    with folder_in(Path("work"), "passes") as passes:
        (passes / "half").write_text("x")
        Path("ready").touch()
        time.sleep(600)

def work(report):
    build_directory(Path("work/torch-1"), build)

@click.command()
@click.option("--wait", is_flag=True)
def command(wait):
    write_file(Path("work/whole"), "x")
    if wait:
        run_in_child(work, timeout=600)

if __name__ == "__main__":
    # A test run behind a shell may have been told to ignore Ctrl-C, and would hand that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_program(command, "hloracle")
"""


class Program:
    """The program above, in a folder of its own, with a child that is in the midst of its work."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.temporary = folder, folder / "temporary"
        self.temporary.mkdir()
        (folder / "program.py").write_text(PROGRAM)

    def start(self, *before: str, wait: bool = True) -> subprocess.Popen[str]:
        given = (sys.executable, "program.py", *(["--wait"] if wait else []))
        return subprocess.Popen(
            [*before, *given], cwd=self.folder, env={**os.environ, "TMPDIR": str(self.temporary)}, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def ready(self) -> None:
        until = time.monotonic() + 60
        while not (self.folder / "ready").exists():
            assert time.monotonic() < until
            time.sleep(0.02)

    @property
    def left(self) -> list[str]:
        found = [*self.temporary.iterdir(), *(self.folder / "work").iterdir()]
        return sorted(p.name for p in found if p.suffix != ".lock" and p.name != "whole")


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_program_that_is_stopped_leaves_nothing(program: Program, number: int) -> None:
    with program.start() as process:
        program.ready()
        assert len(program.left) == 3
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "hloracle: interrupted\n")
    assert program.left == []


def test_what_a_killed_program_has_left_goes_with_the_next_one(program: Program) -> None:
    with program.start() as process:
        program.ready()
        process.kill()
        process.communicate(timeout=30)
    assert len(program.left) == 3
    with program.start(wait=False) as process:
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0
    assert program.left == []
    assert (program.folder / "work" / "whole").read_text() == "x"


def test_a_program_goes_on_where_its_terminal_does_not(program: Program) -> None:
    with program.start("nohup") as process:
        program.ready()
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 130
    assert program.left == []


def test_what_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert noted(tmp_path / "x") == tmp_path / "x", "there is no program"
    with folder_in(tmp_path, "name") as folder:
        assert folder.name.startswith(".name-")
    assert not folder.exists()
    monkeypatch.setenv("TMPDIR", str(tmp_path / f"{PREFIX}gone"))
    with pytest.raises(FileNotFoundError):
        noted(tmp_path / "x")
    (tmp_path / f"{PREFIX}full").mkdir()
    (tmp_path / f"{PREFIX}full" / "notes").symlink_to("/dev/full")
    monkeypatch.setenv("TMPDIR", str(tmp_path / f"{PREFIX}full"))
    assert noted(tmp_path / "x") == tmp_path / "x", "it may lie on another disk"
