"""A command line as a program: its signals, and its errors as one line on stderr and an exit status."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import click

from hloracle.core.cache import damage_line, noting
from hloracle.core.child import ChildDied, kill_descendants
from hloracle.core.console import terminal
from hloracle.core.errors import InputError, ToolchainError


class Interrupted(BaseException):
    """Ctrl-C. click answers KeyboardInterrupt with an empty line of its own."""


def run_program(command: click.Command, name: str | None = None) -> None:
    """Run this process's command line and end the process with its exit status.

    Args:
      name: what the program is called; as it was called when not given.
    """

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    # As in child processes: `hloracle generate` imports JAX in this one.
    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.exit(run_command_line(command, sys.argv[1:], name))


def run_command_line(command: click.Command, arguments: list[str], name: str | None = None) -> int:
    """Run a command line; returns the exit status. Whatever the user gave wrong is one line on stderr."""
    with noting() as damaged:
        status = _status_of(command, arguments, name)
    if line := damage_line(damaged):
        click.echo(f"hloracle: {line}", err=True)
    return status


def _status_of(command: click.Command, arguments: list[str], name: str | None) -> int:
    try:
        return int(command.main(arguments, prog_name=name, standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        return _fail(f"{error.format_message()} (see hloracle --help)")
    except (InputError, ToolchainError, ChildDied) as error:
        return _fail(str(error))
    except (Interrupted, KeyboardInterrupt, click.Abort):
        kill_descendants()
        # On a terminal, ^C stands in this line.
        terminal.print("\nhloracle: interrupted" if terminal.is_terminal else "hloracle: interrupted")
        return 130
    except OSError as error:
        # A name that is too long, a folder that may not be entered: whatever no part of ours has met by itself.
        return _fail(f"{error.filename or 'a file'}: {error.strerror or error}; name one that can be used")


def _fail(line: str) -> int:
    click.echo(f"hloracle: {' '.join(line.split())}", err=True)
    return 2
