"""Fleets on Ray itself: on one machine, and on two nodes of which one is killed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from hloracle.reports.fleet.record import jobs_in

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="hloracle[fleet] is not installed")

TOKEN = "0123456789abcdef0123456789abcdef"
# Jobs of some seconds each: an operation on the interpreter.
MATRIX = """
[ops]
operation = {operations}
backend = "stablehlo"
no-cache = true

[[fault]]
match = {{ operation = "add/f32" }}
kind = "crash"
[[fault]]
match = {{ operation = "subtract/f32" }}
kind = "hang"
[[fault]]
match = {{ operation = "multiply/f32" }}
kind = "flaky"

[fleet]
timeout = {timeout}
"""


def write(folder: Path, operations: list[str], timeout: float = 60, more: str = "") -> Path:
    path = folder / "matrix.toml"
    path.write_text(MATRIX.format(operations=json.dumps(operations), timeout=timeout) + more)
    return path


def fleet(*words: object, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hloracle", "fleet", *map(str, words)]
    known = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**known, **(environment or {})}
    )  # fmt: skip


def statuses(out: Path) -> dict[str, str]:
    return {job["values"]["operation"]: job["status"] for job in jobs_in(out / "fleet.json")}


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def test_on_this_machine(tmp_path: Path) -> None:
    """What crashes, hangs and is flaky is told; a second fleet knows the first; and nothing of Ray's is left."""
    before = children()
    operations = ["add/f32", "subtract/f32", "multiply/f32", "divide/f32"]
    matrix = write(tmp_path, operations, timeout=25)
    process = fleet(matrix, "--out", tmp_path / "out")
    told, errors = process.communicate(timeout=400)
    assert process.returncode == 1, errors
    assert errors == ""
    assert statuses(tmp_path / "out") == dict(zip(operations, ("crashed", "hung", "flaky", "passed"), strict=True))
    assert "1 of 4 jobs passed, 1 crashed, 1 flaky, 1 hung; took" in told
    folders = [tmp_path / "out" / job["folder"] for job in jobs_in(tmp_path / "out" / "fleet.json")]
    assert all((folder / "log.txt").is_file() for folder in folders)
    assert any((folder / "ops.json").is_file() for folder in folders)
    process = fleet(matrix, "--out", tmp_path / "out", "--resume")
    again, _ = process.communicate(timeout=100)
    assert again.partition("; took")[0] == told.partition("; took")[0]
    assert children() <= before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_ends_all_and_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    before = children()
    matrix = write(tmp_path, ["divide/f32", "subtract/f32"])  # the second hangs
    process = fleet(matrix, "--out", tmp_path / "out")
    journal = tmp_path / "out" / "fleet.jsonl"
    wait_for(lambda: journal.exists() and len(journal.read_text().splitlines()) == 2, 200)
    process.send_signal(number)
    assert process.communicate(timeout=60)[1] == "hloracle: interrupted\n"
    assert process.returncode == 130
    assert children() <= before
    (tmp_path / "again.toml").write_text(matrix.read_text())
    assert not (tmp_path / "out" / "fleet.json").exists()


def test_a_label_that_no_machine_has(tmp_path: Path) -> None:
    matrix = write(tmp_path, ["divide/f32"], more='[[place]]\nlabels = { gpu = "h100" }\n')
    process = fleet(matrix, "--out", tmp_path / "out")
    errors = process.communicate(timeout=200)[1]
    assert process.returncode == 2
    assert "needs 1 cores, gpu=h100, and no machine has that" in errors
    assert len(errors.splitlines()) == 1


# ---- two nodes


@pytest.fixture
def cluster() -> Iterator[dict[str, Any]]:
    """Two nodes on this machine, each with a label, a core and a cache of its own. Its address, and how to kill one."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # the names of sockets are short
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_TMPDIR": folder,
    }  # fmt: skip
    ray = str(Path(sys.executable).with_name("ray"))
    port, nodes = 20_000 + os.getpid() % 10_000, {}
    for zone, where in (
        ("a", ["--head", f"--port={port}", "--include-dashboard=false"]),
        ("b", [f"--address=127.0.0.1:{port}"]),
    ):
        how = [
            "--node-ip-address=127.0.0.1",
            "--num-cpus=1",
            f"--labels=zone={zone}",
            "--object-store-memory=100000000",
            "--block",
        ]
        nodes[zone] = subprocess.Popen(
            [ray, "start", *where, *how, "--disable-usage-stats"] if zone == "a" else [ray, "start", *where, *how],
            env={**environment, "HLORACLE_CACHE": f"{folder}/cache-{zone}"}, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        wait_for(partial(has_raylet, nodes[zone].pid), 60)
        time.sleep(3)

    def kill(zone: str) -> None:
        for process in [*psutil.Process(nodes[zone].pid).children(recursive=True), psutil.Process(nodes[zone].pid)]:
            if "raylet" in process.name():
                process.kill()

    yield {"address": f"127.0.0.1:{port}", "environment": environment, "kill": kill}
    for node in nodes.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(node.pid).children(recursive=True):
                process.kill()
        node.kill()
        node.wait()
    shutil.rmtree(folder, ignore_errors=True)


def has_raylet(pid: int) -> bool:
    return any("raylet" in process.name() for process in psutil.Process(pid).children(recursive=True))


OPERATIONS = [f"{name}/f32" for name in ("divide", "maximum", "minimum", "negate", "abs", "sign", "floor", "ceil")]


@pytest.mark.nightly
def test_a_node_is_killed_and_nothing_is_lost(cluster: dict[str, Any], tmp_path: Path) -> None:
    matrix, out = write(tmp_path, [*OPERATIONS, "add/f32", "multiply/f32"]), tmp_path / "out"
    process = fleet(matrix, "--address", cluster["address"], "--out", out, environment=cluster["environment"])
    journal = out / "fleet.jsonl"
    wait_for(lambda: journal.exists() and len(journal.read_text().splitlines()) >= 4, 300)
    cluster["kill"]("b")
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 1, errors
    found = statuses(out)
    assert found == {**dict.fromkeys(OPERATIONS, "passed"), "add/f32": "crashed", "multiply/f32": "flaky"}
    machines = {one["machine"] for job in jobs_in(out / "fleet.json") for one in job["tries"]}
    assert len(machines) == 2


@pytest.mark.nightly
def test_the_driver_is_killed_and_taken_up_again(cluster: dict[str, Any], tmp_path: Path) -> None:
    matrix, out = write(tmp_path, OPERATIONS), tmp_path / "out"
    words = (matrix, "--address", cluster["address"], "--out", out)
    process = fleet(*words, environment=cluster["environment"])
    journal = out / "fleet.jsonl"
    wait_for(lambda: journal.exists() and len(journal.read_text().splitlines()) >= 4, 300)
    process.kill()
    process.communicate()
    done = [line for line in journal.read_text().splitlines() if '"key"' in line]
    process = fleet(*words, "--resume", environment=cluster["environment"])
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert statuses(out) == dict.fromkeys(OPERATIONS, "passed")
    assert [line for line in journal.read_text().splitlines() if '"key"' in line][: len(done)] == done


def wait_for(what: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.2)
