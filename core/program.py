"""A command line as a program: its signals, and its errors as one line on stderr and an exit status."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import sys
from types import FrameType

import click

from hloracle.core.cache import damage_line, noting
from hloracle.core.child import ChildDied, kill_descendants
from hloracle.core.console import say, terminal, unwritten
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.given import EXHAUSTED, MORE
from hloracle.core.scratch import keep_here
from hloracle.core.shown import shown

# Files that may be open at once: 256 anchors are mapped, and macOS allows 256 in all until a program asks for more.
OPEN_FILES = 1024
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LONGEST = 4000  # characters of a line


class Interrupted(BaseException):
    """Ctrl-C. click answers KeyboardInterrupt with an empty line of its own."""


def run_program(command: click.Command, name: str | None = None) -> None:
    """Run this process's command line and end the process with its exit status.

    Args:
      name: what the program is called; as it was called when not given.
    """
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it, and a shell for what runs behind it
            signal.signal(number, _interrupt)
    # As in child processes: `hloracle generate` imports JAX in this one.
    os.environ["JAX_PLATFORMS"] = "cpu"
    allow_open_files()
    keep_here()
    sys.exit(run_command_line(command, sys.argv[1:], name))


def allow_open_files() -> None:
    """Let this process and its children open OPEN_FILES files at once, or as many as it may ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # then it stays as it is, and who needs more says so
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run_command_line(command: click.Command, arguments: list[str], name: str | None = None) -> int:
    """Run a command line; returns the exit status. Whatever the user gave wrong is one line on stderr."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file's name need not be text: it is escaped, as it is on stderr
        sys.stdout.reconfigure(errors="backslashreplace")
    with noting() as damaged:
        status = _status(command, arguments, name)
    if status != 2 and (line := damage_line(damaged)):  # else the one line is that of what went wrong
        say(line)
    return _failed_stdout(why) if (why := unwritten()) else status


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise Interrupted


def _status(command: click.Command, arguments: list[str], name: str | None) -> int:
    try:
        return int(command.main(arguments, prog_name=name, standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        return _fail(f"{shown(error.format_message(), LONGEST // 2)} (see hloracle --help)")
    except (InputError, ToolchainError, ChildDied) as error:
        return _fail(str(error))
    except (Interrupted, KeyboardInterrupt, click.Abort):
        for number in STOPPING:  # a second one would cut the cleaning up short
            if signal.getsignal(number) is _interrupt:
                signal.signal(number, signal.SIG_IGN)
        kill_descendants()
        if terminal.is_terminal:  # on which ^C stands in this line
            terminal.print()
        say("interrupted")
        return 130
    except MemoryError:
        return _fail("memory: this process got no more of it; free some, or ask for something smaller")
    except OSError as error:
        if why := unwritten(error):
            return _failed_stdout(why)
        # A name that is too long, a folder that may not be entered: whatever no part of ours has met by itself.
        name = shown(os.fsdecode(error.filename), 300) if isinstance(error.filename, str | bytes) else "a file"
        fix = MORE if error.errno in EXHAUSTED else "name one that can be used"
        return _fail(f"{name}: {error.strerror or error}; {fix}")


def _failed_stdout(why: str) -> int:
    return _fail(f"stdout: cannot be written ({why}); free some space, or send it elsewhere")


def _fail(line: str) -> int:
    say(shown(line, LONGEST))
    return 2
