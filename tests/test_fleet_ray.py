"""Fleets on Ray itself: on one machine, and on two nodes of which one is killed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from nightly import nightly

from hloracle.fleet.trial import Cluster, cluster, wait_for
from hloracle.reports.fleet.record import jobs_in

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="hloracle[fleet] is not installed")

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


@pytest.mark.parametrize("number", [signal.SIGINT, nightly(signal.SIGTERM)])
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
def nodes(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes on this machine, each with a cache of its own."""
    with cluster({zone: tmp_path / f"cache-{zone}" for zone in "ab"}) as found:
        yield found


OPERATIONS = [f"{name}/f32" for name in ("divide", "maximum", "minimum", "negate", "abs", "sign", "floor", "ceil")]


@pytest.mark.nightly
def test_a_node_is_killed_and_nothing_is_lost(nodes: Cluster, tmp_path: Path) -> None:
    matrix, out = write(tmp_path, [*OPERATIONS, "add/f32", "multiply/f32"]), tmp_path / "out"
    process = fleet(matrix, "--address", nodes.address, "--out", out, environment=nodes.environment)
    journal = out / "fleet.jsonl"
    wait_for(lambda: journal.exists() and len(journal.read_text().splitlines()) >= 4, 300)
    nodes.kill("b")
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 1, errors
    found = statuses(out)
    assert found == {**dict.fromkeys(OPERATIONS, "passed"), "add/f32": "crashed", "multiply/f32": "flaky"}
    machines = {one["machine"] for job in jobs_in(out / "fleet.json") for one in job["tries"]}
    assert len(machines) == 2


@pytest.mark.nightly
def test_the_driver_is_killed_and_taken_up_again(nodes: Cluster, tmp_path: Path) -> None:
    matrix, out = write(tmp_path, OPERATIONS), tmp_path / "out"
    words = (matrix, "--address", nodes.address, "--out", out)
    process = fleet(*words, environment=nodes.environment)
    journal = out / "fleet.jsonl"
    wait_for(lambda: journal.exists() and len(journal.read_text().splitlines()) >= 4, 300)
    process.kill()
    process.communicate()
    done = [line for line in journal.read_text().splitlines() if '"key"' in line]
    process = fleet(*words, "--resume", environment=nodes.environment)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert statuses(out) == dict.fromkeys(OPERATIONS, "passed")
    assert [line for line in journal.read_text().splitlines() if '"key"' in line][: len(done)] == done
