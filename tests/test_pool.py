"""Many runs in a few processes: each gets its answer, whatever comes of the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from hloracle.backends import iree
from hloracle.backends.plain import NO_OPTIMIZER, plain_compilers
from hloracle.core.child import Report, alone, run_in_child
from hloracle.core.errors import InputError
from hloracle.core.pool import run_each


def process_id(report: Report) -> int:
    return os.getpid()


def work(report: Report, item: str) -> tuple[str, bool]:
    """The item in capitals, and whether what would have a process of its own runs in this one."""
    what, _, note = item.partition(" ")
    if what == "input":
        raise InputError("is bad", "item", "give another")
    if what == "bug":
        raise ValueError("a bug")
    if what == "die" or (what == "die-once" and not Path(note).exists()):
        if note:
            Path(note).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "platforms":
        return os.environ.get("JAX_PLATFORMS", ""), True
    with alone():
        return what.upper(), run_in_child(process_id, timeout=30).value == os.getpid()


def answers(items: list[str], jobs: int = 2) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def done(item: str, answer: Any, seconds: float) -> None:
        assert item not in found
        assert 0 <= seconds < 60
        found[item] = answer

    run_each(work, items, jobs, 60, lambda line: None, done)
    assert found.keys() == set(items)
    return found


def test_answers_and_reasons() -> None:
    found = answers(["a", "input", "b", "bug", "c"])
    assert [found[k] for k in "abc"] == [("A", True), ("B", True), ("C", True)]
    assert found["input"] == "item: is bad; give another"
    assert found["bug"].startswith("work failed: ValueError: a bug (test_pool.py:")


def test_jax_is_kept_on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert answers(["platforms"])["platforms"] == ("cpu", True)


def test_one_that_dies_takes_no_other_with_it() -> None:
    found = answers(["a", "die", "b"])
    assert [found[k] for k in "ab"] == [("A", True), ("B", True)]
    assert found["die"] == "work died (signal SIGKILL)"


def test_what_died_is_tried_again(tmp_path: Path) -> None:
    once = f"die-once {tmp_path / 'died'}"
    assert answers([once, "a"], jobs=1) == {once: ("DIE-ONCE", True), "a": ("A", True)}
    assert (tmp_path / "died").exists()


def test_nothing() -> None:
    assert answers([]) == {}


def test_what_else_runs_lives_on() -> None:
    """A worker that dies ends the other workers, and nothing beside them."""
    with subprocess.Popen(["sleep", "60"]) as beside:
        assert answers(["a", "die"])["a"] == ("A", True)
        assert beside.poll() is None
        beside.kill()


def test_plain_compilers_are_keyed_as_such() -> None:
    before, flags = iree.CPU_FLAGS, os.environ.get("XLA_FLAGS")
    with plain_compilers():
        assert before != iree.CPU_FLAGS
        assert "target-cpu=generic" in " ".join(iree.CPU_FLAGS)
        assert NO_OPTIMIZER in os.environ["XLA_FLAGS"]
    assert before == iree.CPU_FLAGS
    assert os.environ.get("XLA_FLAGS") == flags


def note(report: Report, path: str) -> None:
    """Say which process this is, and wait to be ended."""
    Path(path).write_text(str(os.getpid()))
    signal.pause()


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    path = tmp_path / "worker"
    os.mkfifo(path)
    code = f"import test_pool as t; t.run_each(t.note, [{str(path)!r}], 1, 600, print, print)"
    # A worker imports the main module again; this one has none.
    with subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent) as parent:
        worker = psutil.Process(int(path.read_text()))
        parent.kill()
    assert psutil.wait_procs([worker], timeout=60)[1] == []
