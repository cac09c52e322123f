"""What a person is shown: nothing that somebody else wrote reaches the terminal as it is, and what cannot be written is no verdict."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.table import Table

from hloracle.core import console
from hloracle.core.console import Output, harmless, say, verdict_stands
from hloracle.core.errors import InputError, told
from hloracle.core.shown import printable, quoted, shown

HLORACLE = (sys.executable, "-m", "hloracle.cli.main")
EVIL = "a\x1b[2J\x07\r\u202eb\ud800"
SAFE = r"a\x1b[2J\x07\r\u202eb\ud800"
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no device without space to write to")


def test_somebody_elses_words() -> None:
    assert printable(EVIL) == SAFE
    assert printable("Später 東京 🌊") == "Später 東京 🌊"
    assert shown(f"x\n {EVIL}") == rf"x {SAFE.replace(chr(92) + 'r', ' ')}"
    assert shown("x" * 500, 9) == "xxxxxxxx…"
    assert quoted(EVIL) == f"'{SAFE}'"


@pytest.mark.parametrize("error", [InputError(EVIL, EVIL, EVIL), InputError("is wrong", Path(EVIL), "mend it")])
def test_an_error_is_one_line_that_can_be_printed(error: InputError) -> None:
    assert str(error).isprintable()
    assert told(ValueError(EVIL)).isprintable()


def test_tables_and_colours_are_printed_and_escapes_are_not() -> None:
    file = StringIO()
    out = Output(file=file, force_terminal=True, color_system="standard", highlight=False, width=60)
    table = Table(EVIL)
    table.add_row(EVIL)
    out.print(f"[red]{EVIL}[/]\nand a line")
    out.print(table)
    found = file.getvalue()
    assert "\x1b[31m" in found
    assert "\x1b[2J" not in found
    assert not {"\x07", "\r", "\u202e", "\ud800"} & set(found)
    assert "a\\x1b" in found  # rich takes some controls out by itself
    assert "\nand a line\n" in found


def test_a_line_on_stderr(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    say(EVIL)
    assert capfd.readouterr().err == f"hloracle: {SAFE}\n"
    monkeypatch.setattr(sys, "stderr", None)
    say("to nobody")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_text_that_a_model_has_written(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    text = "one\n\ttwo \x1b[2J\x9b \U0001f468\u200d\U0001f469"
    assert harmless(text) == (text.replace("\x1b", r"\x1b").replace("\x9b", r"\x9b") if terminal else text)


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def unbuffered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", request.param)


def process(script: str, stdout: str = os.devnull, stderr: str = os.devnull) -> int:
    """The exit status of a command line, whose streams go to these files."""
    with open(stdout, "w") as out, open(stderr, "w") as err:
        return subprocess.run([sys.executable, "-c", script], stdout=out, stderr=err, check=False).returncode


COMMAND = """
import click, sys
from hloracle.core.console import Output, say, terminal, verdict_stands
from hloracle.core.errors import InputError
from hloracle.core.program import Interrupted, run_program

@click.command()
def command():
    {body}

run_program(command)
"""
VERDICT = "with verdict_stands(): Output().print('conforms ' * 5000)\n    return {status}"


@needs_full
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("raise InputError('is wrong', 'this', 'mend it')", 2),
        ("raise Interrupted", 130),
        ("say('a line'); terminal.print('another'); return 1", 1),
        ("say('a line'); return 0", 0),
        ("raise click.UsageError('no')", 2),
    ],
)
def test_a_full_stderr_changes_no_exit_status(unbuffered: None, body: str, status: int) -> None:
    assert process(COMMAND.format(body=body), stderr=str(FULL)) == status


@needs_full
@pytest.mark.parametrize("status", [0, 1])
def test_a_verdict_stands_though_stdout_is_full(unbuffered: None, status: int, tmp_path: Path) -> None:
    script = COMMAND.format(body=VERDICT.format(status=status))
    assert process(script, str(FULL), str(tmp_path / "err")) == status
    line = (tmp_path / "err").read_text()
    assert line.startswith("hloracle: stdout: cannot be written (no space left on device); ")
    assert line.count("\n") == 1
    assert process(script, str(FULL), str(FULL)) == status


@needs_full
@pytest.mark.parametrize("body", ["click.echo('x')", "print('x')", "Output().print('x')", "print('x' * 100000)"])
def test_what_stdout_does_not_take_is_said_and_no_success(unbuffered: None, body: str, tmp_path: Path) -> None:
    assert process(COMMAND.format(body=body), str(FULL), str(tmp_path / "err")) == 2
    line = (tmp_path / "err").read_text()
    assert (
        line == "hloracle: stdout: cannot be written (no space left on device); free some space, or send it elsewhere\n"
    )


def test_an_error_of_something_else_is_no_error_of_stdout() -> None:
    with pytest.raises(FileNotFoundError), verdict_stands():
        raise FileNotFoundError(2, "No such file", "template")
    assert console.unwritten() == ""


@pytest.mark.parametrize("closed", ["1", "2", "12"])
def test_streams_that_are_closed(closed: str) -> None:
    shell = " ".join([sys.executable, "-m", "hloracle.cli.main", "nonsense", *(f"{fd}>&-" for fd in closed)])
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr + done.stdout
