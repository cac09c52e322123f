"""Work in a child process: answers, errors, crashes, time limits and Ctrl-C."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import children
import psutil
import pytest
from nightly import nightly

from hloracle.backends.iree import compiler_path
from hloracle.core import child as module
from hloracle.core.cache import SEAL
from hloracle.core.child import ChildDied, TimedOut, alone, kill_descendants, run_in_child, side_by_side, threads
from hloracle.core.errors import InputError, ToolchainError


def run(function: Callable[..., Any], *arguments: Any, timeout: float = 60, report: Any = None) -> Any:
    return run_in_child(function, *arguments, timeout=timeout, report=report).value


def gone(pid: int, seconds: float = 5) -> bool:
    """Whether a process ends within some seconds; one that nobody has waited for counts as ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.02)
                continue
        return True
    return False


def test_value() -> None:
    found = run_in_child(children.add, 2, 3, timeout=60)
    assert found.value == 5
    assert 0 < found.seconds < 60
    assert found.peak_bytes > 1e6


def test_it_is_another_process() -> None:
    assert run(children.process_id) != os.getpid()


@pytest.mark.parametrize(("given", "found"), [("", "cpu"), ("cuda,cpu", "cuda,cpu")])
def test_jax_is_kept_on_the_processor_unless_told_otherwise(
    given: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no command line of ours has said so, and before what is called is imported."""
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if given:
        monkeypatch.setenv("JAX_PLATFORMS", given)
    assert run(children.jax_platforms) == found
    assert os.environ.get("JAX_PLATFORMS", "") == given


def test_a_value_larger_than_a_pipe() -> None:
    assert len(run(children.big, 5_000_000)) == 5_000_000


def test_reports_arrive_in_order() -> None:
    lines: list[str] = []
    assert run(children.reports, 5, report=lines.append) == "done"
    assert lines == [f"step {i}" for i in range(5)]
    assert run(children.reports, 5) == "done", "nobody has to listen"


def test_input_error_passes_through() -> None:
    with pytest.raises(InputError) as caught:
        run(children.bad_input)
    assert str(caught.value) == "model.safetensors: weight is missing; download it again"
    assert (caught.value.what, caught.value.where) == ("weight is missing", "model.safetensors")


def test_what_it_was_given_is_let_go_before_an_error_passes_through() -> None:
    """A view that is left in the error's traceback ends Python 3.12.1 with a crash, and makes 3.13 complain."""
    with pytest.raises(InputError) as caught:
        run(children.bad_input)
    held = [e.frame.f_locals["call"] for e in caught.traceback if "call" in e.frame.f_locals]
    (view,) = [one for one in held if isinstance(one, memoryview)]
    with pytest.raises(ValueError, match="released"):
        len(view)


def test_toolchain_error_passes_through() -> None:
    with pytest.raises(ToolchainError) as caught:
        run(children.bad_toolchain)
    assert (caught.value.stage, caught.value.message) == ("compile", "no such op")
    assert caught.value.artifact == "/kept/graph.mlir"


@pytest.mark.parametrize("which", ["hloracle.core.child._start", "multiprocessing.connection.Pipe"])
def test_a_process_that_cannot_be_started(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(which, refuse)
    with pytest.raises(
        InputError, match=r"a process of hloracle's: cannot be started .resource temporarily unavailable.; end"
    ):
        run(children.add, 1, 2)


@pytest.mark.parametrize(
    ("function", "arguments", "words", "cause"),
    [
        (children.bug, (), r"bug failed: ValueError: one line and another \(children\.py:\d+\)", ""),
        (children.out_of_memory, (), "out_of_memory ran out of memory", "memory"),
        (children.not_picklable, (), "not_picklable failed: TypeError: cannot pickle '_thread.lock' object .*", ""),
        (children.no_segment, (), "no_segment ran out of memory", "memory"),
        (children.no_fork, (), "no_fork ran out of memory", "memory"),
        (children.leave, (3,), r"leave died \(exit status 3\)", ""),
        (children.leave, (0,), r"leave died \(exit status 0\)", ""),
        (children.leave_at_once, (4,), r"leave_at_once died \(exit status 4\)", ""),
        (children.kill_itself, (signal.SIGKILL,), r"kill_itself died \(signal SIGKILL\)", "killed"),
        (children.kill_itself, (signal.SIGSEGV,), r"kill_itself died \(signal SIGSEGV\)", "crash"),
        (children.kill_itself, (signal.SIGABRT,), r"kill_itself died \(signal SIGABRT\)", "crash"),
        (children.add, (children.DiesWhenRead(), 1), r"add died \(exit status 6\)", ""),
        (children.spoil_a_message, (), r"spoil_a_message died \(exit status 5\)", ""),
    ],
)
def test_no_answer(
    function: Callable[..., Any], arguments: tuple[Any, ...], words: str, cause: str, capfd: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    with pytest.raises(ChildDied) as caught:
        run(function, *arguments)
    assert re.fullmatch(words, str(caught.value)), caught.value
    assert caught.value.cause == cause
    assert not isinstance(caught.value, TimedOut)
    assert time.monotonic() - started < 20
    assert capfd.readouterr().err == "", "the one line is all there is to say"


def test_what_it_writes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    """It is there when the process has ended; of one that a library ends, its caller says what became of it, in one line."""
    run(children.write_and_leave, "a note\n", 0)
    assert capfd.readouterr() == ("", "a note\n")
    with pytest.raises(ChildDied, match=r"write_and_leave died \(signal SIGABRT\)"):
        run(children.write_and_leave, "terminate called\n", signal.SIGABRT)
    assert capfd.readouterr() == ("", "")


def test_a_text_that_speaks_of_main_is_no_call_of_it() -> None:
    """JAX writes such a location for what `python -m` lowers. The main module, pytest's, is not imported for it."""
    assert run(children.main_and, 'loc("tools/__main__.py":1:2)') == ("", 'loc("tools/__main__.py":1:2)')


def test_what_another_process_cannot_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    here = ModuleType("only_here")
    given = type("given", (), {"__module__": "only_here"})
    monkeypatch.setattr(here, "given", given, raising=False)
    monkeypatch.setitem(sys.modules, "only_here", here)
    with pytest.raises(InputError, match=r"cannot be read in another process \(ModuleNotFoundError: .*only_here"):
        run(children.add, given(), 1)


SCRIPT = """
from hloracle.core.child import run_in_child

def answer(report):
    return 42

{guard}print(run_in_child(answer, timeout=60).value)
"""


@pytest.mark.parametrize(("guard", "said"), [('if __name__ == "__main__": ', "42"), ("", "put what it runs under `if")])
def test_a_script_that_is_imported_for_what_it_defines(guard: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(guard=guard))
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=False)
    assert said in (done.stderr if done.returncode else done.stdout)
    assert (done.returncode == 0) == bool(guard)


def test_a_child_that_dies_before_it_has_read_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(process: Any, needs_main: bool) -> None:
        process.start()
        process.kill()

    monkeypatch.setattr(module, "_start", start)
    with pytest.raises(ChildDied, match=r"add died .signal SIGKILL."):
        run(children.add, b"x" * 50_000_000, b"", timeout=10)


def test_arguments_that_cannot_be_sent() -> None:
    with pytest.raises(TypeError, match="pickle"):
        run(children.add, threading.Lock(), 1)
    assert not multiprocessing.active_children()


def test_time_limit() -> None:
    started = time.monotonic()
    with pytest.raises(TimedOut, match=r"kill_itself took more than 1 s and was stopped"):
        run(children.kill_itself, 0, timeout=1.2)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("error", [ChildDied("it died", "memory"), TimedOut("it took long")])
def test_why_there_is_no_answer_comes_through_a_pipe(error: ChildDied) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), found.cause) == (type(error), str(error), error.cause)


@pytest.mark.parametrize("then", ["wait", "die", "fail"])
def test_grandchildren_go_with_it(then: str, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    with pytest.raises(ChildDied):
        run(children.sleep_beside_a_grandchild, note, then, timeout=3)
    for pid in map(int, note.read_text().split()):
        assert gone(pid)


def test_kill_descendants() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"]) as shell:
        while not (sleeping := psutil.Process(shell.pid).children()):
            time.sleep(0.01)
        kill_descendants()
        assert shell.wait(5) == -signal.SIGKILL
        assert all(gone(p.pid) for p in sleeping)


def test_kill_descendants_though_one_has_just_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends between being listed and being killed keeps nobody else alive."""
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"]) as shell:
        while not (sleeping := psutil.Process(shell.pid).children()):
            time.sleep(0.01)
        kill = psutil.Process.kill

        def ended(process: psutil.Process) -> None:
            kill(process)
            if process in sleeping:
                raise psutil.NoSuchProcess(process.pid)

        monkeypatch.setattr(psutil.Process, "kill", ended)
        kill_descendants()
        assert shell.wait(5) == -signal.SIGKILL


def test_kill_descendants_though_one_would_start_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started after the listing is killed too, or never starts."""
    with subprocess.Popen(["sh", "-c", "read go; sleep 60 & wait"], stdin=subprocess.PIPE) as shell:
        assert shell.stdin
        listed = psutil.Process.children
        late: list[psutil.Process] = []

        def children(process: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
            found = listed(process, recursive)
            if process.pid == shell.pid and not late:
                os.write(shell.stdin.fileno(), b"go\n")
                until = time.monotonic() + 0.5
                while not late and time.monotonic() < until:
                    late.extend(listed(process))
                    time.sleep(0.01)
            return found

        monkeypatch.setattr(psutil.Process, "children", children)
        kill_descendants()
        assert shell.wait(5) == -signal.SIGKILL
        assert all(gone(p.pid) for p in late)


def test_kill_descendants_of_any_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of processes that is longer than Python's stack."""
    killed: list[int] = []

    def kill(pid: int) -> list[int]:
        killed.append(pid)
        return [pid + 1] if pid < 5000 else []

    with subprocess.Popen(["sleep", "60"]) as sleeping:
        monkeypatch.setattr(
            module, "_kill", lambda process: kill(1 if isinstance(process, psutil.Process) else process)
        )
        kill_descendants([sleeping.pid])
        sleeping.kill()
    assert killed == [*range(1, 5001)]


def test_no_process_group_is_killed_for_a_process_that_never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("this is our own"))
    module._kill_group(multiprocessing.get_context("spawn").Process())


def test_only_some_descendants() -> None:
    with subprocess.Popen(["sleep", "60"]) as one, subprocess.Popen(["sleep", "60"]) as other:
        kill_descendants([one.pid])
        assert one.wait(5) == -signal.SIGKILL
        assert other.poll() is None
        other.kill()


def test_a_child_of_a_child_goes_with_it(tmp_path: Path) -> None:
    """Each has a process group of its own."""
    note = tmp_path / "pid"
    with pytest.raises(ChildDied, match="took more than"):
        run(children.run_one_that_sleeps, note, timeout=8)
    assert gone(int(note.read_text()))


@pytest.mark.parametrize("nested", [False, True])
def test_a_child_ends_with_the_process_that_started_it(nested: bool, tmp_path: Path) -> None:
    """Killed, that one ends nobody itself."""
    note = tmp_path / "pid"
    function = children.run_one_that_sleeps if nested else children.sleep_and_tell
    start = multiprocessing.get_context("spawn").Process(
        target=run_in_child, args=(function, note), kwargs={"timeout": 60}
    )
    start.start()
    until = time.monotonic() + 30
    while not (note.exists() and note.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    assert start.pid
    os.kill(start.pid, signal.SIGKILL)
    start.join()
    assert gone(int(note.read_text()))


def test_a_child_that_is_held_still_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """As one that is about to be killed when its parent is killed. In a session of its own the kernel lets go of none."""
    note = tmp_path / "pid"
    script = f"import children; children.start_one_that_waits({str(note)!r})"
    command, folder = [sys.executable, "-c", script], Path(children.__file__).parent
    with subprocess.Popen(command, cwd=folder, start_new_session=True) as parent:
        until = time.monotonic() + 30
        while not (note.exists() and note.read_text()) and time.monotonic() < until:
            time.sleep(0.02)
        child = psutil.Process(int(note.read_text()))
        child.suspend()
        parent.kill()
    try:
        assert gone(child.pid)
    finally:
        with suppress(psutil.NoSuchProcess):
            child.kill()


# ---- what threads do beside


def test_what_threads_do_is_waited_for() -> None:
    with threads(2) as pool:
        slow = pool.submit(subprocess.run, ("sleep", "0.2"), check=True)
        bad = pool.submit(int, "no number")
    assert slow.result().returncode == 0
    with pytest.raises(ValueError, match="no number"):
        bad.result()


@pytest.mark.parametrize("early", [KeyboardInterrupt, InputError])
def test_what_ends_it_early_ends_what_threads_do(early: type[BaseException]) -> None:
    """And what waits to be begun is not begun."""
    submitted: list[Future[Any]] = []

    def end_early() -> None:
        with threads(1) as pool:
            submitted.extend(pool.submit(subprocess.run, ("sleep", "600"), check=False) for _ in range(2))
            while not psutil.Process().children():
                time.sleep(0.01)
            raise early("it", "somewhere", "do that") if early is InputError else early

    started = time.monotonic()
    with pytest.raises(early):
        end_early()
    assert time.monotonic() - started < 20
    running, waiting = submitted
    assert running.result().returncode == -signal.SIGKILL
    assert waiting.cancelled()


def test_work_side_by_side() -> None:
    """In order of the work, whatever ends first; what one raises is raised."""
    ended: list[str] = []

    def one(name: str, seconds: float) -> str:
        time.sleep(seconds)
        ended.append(name)
        return name

    work = [partial(one, "slow", 0.3), partial(one, "quick", 0.0)]
    assert side_by_side(work) == ["slow", "quick"]
    assert ended == ["quick", "slow"]
    with alone():
        assert side_by_side(work) == ["slow", "quick"]
    assert ended[2:] == ["slow", "quick"], "where there are no children they come one after the other"
    with pytest.raises(ValueError, match="no number"):
        side_by_side([partial(one, "quick", 0.0), partial(int, "no number")])


# ---- Ctrl-C


# A compiler that does not end on a model's graph, however fast the machine is. What is tried first is smaller.
ENDLESS = """#!/bin/sh
[ "$(wc -c <"$1")" -lt 20000 ] || sleep 600
exec {compiler} "$@"
"""


class Running:
    """`hloracle run` as a person starts it: in a process group of its own, as a terminal makes it."""

    def __init__(self, folder: Path, cache: Path, *more: str) -> None:
        self.cache, self.out = cache, folder / "out"
        wrapped = folder / "tools" / "iree-compile"
        wrapped.parent.mkdir()
        wrapped.write_text(ENDLESS.format(compiler=shlex.quote(compiler_path())))
        wrapped.chmod(0o755)
        # A test run in the background of a shell may have been told to ignore Ctrl-C, and would hand that on.
        start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        start += "from hloracle.cli.main import main; main()"
        command = [sys.executable, "-c", start, "run", "tiny-llama", "--out", str(self.out), *more]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "HLORACLE_CACHE": str(self.cache), "IREE_TOOL_PATH": str(wrapped.parent)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.seen: dict[int, psutil.Process] = {}

    def wait_for(self, what: str) -> None:
        """Until a process of this name or with this in its command line works for the run."""
        until = time.monotonic() + 60
        while time.monotonic() < until and self.process.poll() is None:
            for process in psutil.Process(self.process.pid).children(recursive=True):
                self.seen[process.pid] = process
                with suppress(psutil.Error):
                    if what in " ".join(process.cmdline()):
                        return
            time.sleep(0.02)
        raise AssertionError(f"there was no {what}: {self.process.communicate()}")

    def stop(self, send: Callable[[int, int], None], number: int) -> tuple[int, str, str, float]:
        for process in psutil.Process(self.process.pid).children(recursive=True):
            self.seen[process.pid] = process
        started = time.monotonic()
        send(self.process.pid, number)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err, time.monotonic() - started

    def leftovers(self) -> list[str]:
        """Temporary files and folders, and files without their end."""
        found = [p for root in (self.cache, self.out) if root.exists() for p in root.rglob("*")]
        return [str(p) for p in found if p.name.startswith(".") and p.suffix != ".lock" and p.name != SEAL]


@pytest.fixture(scope="module")
def interrupted_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all of them: the next run has to make do with what an interrupted one has left."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def running(tmp_path: Path, interrupted_cache: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(*more: str) -> Running:
        started.append(Running(tmp_path, interrupted_cache, *more))
        return started[-1]

    yield start
    for one in started:
        with suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.communicate()


@pytest.mark.parametrize(
    ("during", "send", "number"),
    [
        nightly("spawn_main", os.killpg, signal.SIGINT, id="as a child starts"),
        pytest.param("sleep 600", os.killpg, signal.SIGINT, id="while compiling"),
        nightly("sleep 600", os.kill, signal.SIGINT, id="to the run alone"),
        nightly("sleep 600", os.kill, signal.SIGTERM, id="SIGTERM"),
        nightly("sleep 600", os.kill, signal.SIGHUP, id="SIGHUP"),
    ],
)
def test_interrupt(during: str, send: Any, number: int, running: Callable[..., Running]) -> None:
    run = running("--tokens", "8", "--capacity", "128")
    run.wait_for(during)
    status, out, err, seconds = run.stop(send, number)
    assert (status, out, err) == (130, "", "hloracle: interrupted\n")
    assert seconds < 20
    assert all(gone(pid) for pid in run.seen)
    assert run.leftovers() == []
    assert not list(run.out.glob("*")), "no report is half written"
