"""A fleet on two nodes of Ray on this machine: the same is found when a node is killed, and when the driver is.

    python -m hloracle.fleet.trial [--models 24] [--out FOLDER]

Each model is run with two layouts, two faults are planted into its graphs, and an operation is tried beside: 120 jobs for all 24
models, of which five crash, three hang and two are flaky on purpose. Both nodes have one core, a label and the same cache. The
matrix is run

1. on the nodes, with a driver that is killed in the midst, and one that takes it up again; this fills the cache;
2. without Ray, two jobs at a time: the fastest that this machine has;
3. on the nodes again, which gives what a fleet takes more;
4. on the nodes, of which one is killed in the midst.

All three reports of fleets have to be equal but for times, machines and what was in the cache.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import psutil

from hloracle.core.cache import cache_root
from hloracle.core.program import run_program
from hloracle.fleet.journal import NAME as JOURNAL
from hloracle.reports.fleet.record import Job, jobs_in
from hloracle.studies.mutants import selected

TOKEN = "0123456789abcdef0123456789abcdef"  # of a cluster that no other machine reaches
ZONES = ("a", "b")
START_SECONDS = 60
TIMEOUT_SECONDS, HANG_SECONDS = 1800, 20
# What words of a job say of its time and of what the cache had.
VARIES = re.compile(r"; \d+ reused from the cache| in [\d.]+ s|, \d+ from the cache")
MUTANTS = 2  # of each model; all have three
MODELS = (
    "qwen3", "mistral", "gemma", "llama", "qwen2", "gpt_oss", "gemma2", "olmo2", "mixtral", "phi3", "gemma3_text", "olmo3",
    "smollm3", "granite", "cohere", "cohere2", "stablelm", "starcoder2", "glm4", "seed_oss", "qwen2_moe", "qwen3_moe", "olmoe",
    "deepseek_v3",
)  # fmt: skip
# One of three models hangs, one is flaky, and the others of the first ten crash: of all 24 that makes 3, 2 and 5.
FAULTS = {
    "crash": ("qwen3", "llama", "gemma2", "mixtral", "phi3"), "hang": ("mistral", "qwen2", "olmo2"), "flaky": ("gemma", "gpt_oss"),
}  # fmt: skip
OPERATIONS = (
    "add", "divide", "maximum", "minimum", "negate", "abs", "sign", "floor", "ceil", "subtract", "multiply", "sqrt", "rsqrt",
    "tanh", "exponential", "log", "power", "cosine", "sine", "logistic", "select", "transpose", "reshape", "reverse",
)  # fmt: skip
RUN = """\
[run]
model = [{models}]
layout = ["panels", "rows"]
tokens = 4
capacity = 128
rounds = 0
backend = "xla-cpu"

[mutants]
mutant = [{mutants}]

[ops]
operation = [{operations}]
backend = "stablehlo"

[fleet]
timeout = {timeout}

[[place]]
match = {{ command = "run", model = [{hang}], layout = "rows" }}
timeout = {hang_timeout}
"""
FAULT = """
[[fault]]
match = {{ command = "run", model = [{models}], layout = "rows" }}
kind = "{kind}"
"""


def matrix_text(models: int) -> str:
    """The matrix of so many models: five jobs for each."""

    def listed(names: Sequence[str], form: str = '"tiny-{}"') -> str:
        return ", ".join(form.format(name) for name in names)

    planted = [mutant.id for name in MODELS[:models] for mutant in selected((name,))[:MUTANTS]]
    text = RUN.format(
        models=listed(MODELS[:models]), mutants=listed(planted, '"{}"'), operations=listed(OPERATIONS[:models], '"{}/f32"'),
        hang=listed(FAULTS["hang"]), timeout=TIMEOUT_SECONDS, hang_timeout=HANG_SECONDS,
    )  # fmt: skip
    return text + "".join(FAULT.format(models=listed(names), kind=kind) for kind, names in FAULTS.items())


# ---- two nodes


@dataclass(frozen=True)
class Cluster:
    """Two nodes on this machine. environment: what a driver needs to be let in. nodes: zone -> `ray start`."""

    address: str
    environment: dict[str, str]
    nodes: dict[str, subprocess.Popen[bytes]]

    def kill(self, zone: str) -> None:
        """Kill a node as if its machine had been switched off."""
        for process in psutil.Process(self.nodes[zone].pid).children(recursive=True):
            if "raylet" in process.name():
                process.kill()


@contextmanager
def cluster(caches: dict[str, Path]) -> Iterator[Cluster]:
    """Two nodes with a core each, labelled `zone=a` and `zone=b`. caches: zone -> the node's cache folder."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # the names of sockets are short
    known = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment = {**known, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_TMPDIR": folder}
    ray, address = str(Path(sys.executable).with_name("ray")), f"127.0.0.1:{20_000 + os.getpid() % 10_000}"
    head = ["--head", f"--port={address.partition(':')[2]}", "--include-dashboard=false", "--disable-usage-stats"]
    how = ["--node-ip-address=127.0.0.1", "--num-cpus=1", "--object-store-memory=100000000", "--block"]
    found = Cluster(address, environment, {})
    try:
        for zone in ZONES:
            found.nodes[zone] = subprocess.Popen(
                [ray, "start", *(head if zone == "a" else [f"--address={address}"]), *how, f"--labels=zone={zone}"],
                env={**environment, "HLORACLE_CACHE": str(caches[zone])}, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            wait_for(partial(_has_raylet, found.nodes[zone].pid), START_SECONDS)
            time.sleep(3)
        yield found
    finally:
        for node in found.nodes.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in psutil.Process(node.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
            node.kill()
            node.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _has_raylet(pid: int) -> bool:
    return any("raylet" in process.name() for process in psutil.Process(pid).children(recursive=True))


def wait_for(what: Callable[[], bool], seconds: float) -> None:
    """Wait until something holds. Raises TimeoutError where it does not."""
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            raise TimeoutError("it did not come to that")
        time.sleep(0.2)


# ---- the fleets


def start_fleet(*words: object, environment: dict[str, str]) -> subprocess.Popen[str]:
    """A driver of its own process."""
    command = [sys.executable, "-m", "hloracle", "fleet", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def done(out: Path) -> int:
    """How many jobs a fleet's journal has."""
    journal = out / JOURNAL
    return sum(line.startswith('{"key"') for line in journal.read_text().splitlines()) if journal.is_file() else 0


def planned(job: Job) -> str:
    """The status that a job has to have."""
    values = job["values"]
    if (job["command"], values.get("layout")) == ("run", "rows"):
        for kind, status in (("crash", "crashed"), ("hang", "hung"), ("flaky", "flaky")):
            if values["model"].removeprefix("tiny-") in FAULTS[kind]:
                return status
    return "passed"


def found_by(out: Path) -> dict[str, Any]:
    """What a fleet's report says of each job, but for times, machines, what was in the cache, and the fleets before."""
    return {
        job["id"]: (job["status"], [(one["status"], one["verdict"], VARIES.sub("", one["words"])) for one in job["tries"]])
        for job in jobs_in(out / "fleet.json")
    }  # fmt: skip


def without_ray(matrix: Path, folder: Path) -> float:
    """Seconds that the commands of a matrix take, two at a time, each run as often as a fleet would."""
    listed = subprocess.run(
        [sys.executable, "-m", "hloracle", "fleet", matrix, "--list"], check=True, capture_output=True, text=True
    )

    def one(number: int, line: str) -> None:
        for attempt in (1, 2):
            out, words = folder / f"{number}-{attempt}", line.split()
            out.mkdir(parents=True)
            if words[0] == "hloracle.fleet.fault":
                words[2] = str(attempt)
            process = subprocess.Popen(
                [sys.executable, "-m", *(word.replace("{out}", str(out)) for word in words)],
                cwd=out, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            try:
                code: int | None = process.wait(HANG_SECONDS if words[1] == "hang" else TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                code = None
            if code == 0:
                return

    began = time.monotonic()
    with ThreadPoolExecutor(len(ZONES)) as pool:
        list(pool.map(one, *zip(*enumerate(listed.stdout.splitlines()), strict=True)))
    return time.monotonic() - began


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--models", type=click.IntRange(3, len(MODELS)), default=len(MODELS), show_default=True,
    help="Of each there are five jobs.",
)  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/fleet-trial"), show_default=True, help="Folder for the reports of the fleets.")  # fmt: skip
def command(models: int, out: Path) -> int:
    """Run a matrix in these four ways, and hold the reports to one another."""
    out.mkdir(parents=True, exist_ok=True)
    path, wrong = (out / "matrix.toml").absolute(), list[str]()
    path.write_text(matrix_text(models))

    def fleet(name: str, amid: Callable[[Cluster, subprocess.Popen[str]], None] | None = None) -> float:
        with cluster(dict.fromkeys(ZONES, cache_root())) as nodes:
            words = (path, "--address", nodes.address, "--out", out / name)
            began = time.monotonic()
            process = start_fleet(*words, environment=nodes.environment)
            if amid is not None:
                wait_for(lambda: done(out / name) >= 5 * models // 2 or process.poll() is not None, 24 * 3600)
                amid(nodes, process)
            said, errors = process.communicate()
            if process.returncode == -signal.SIGKILL:
                click.echo(f"{name}: after {done(out / name)} jobs the driver is gone, and another one goes on")
                process = start_fleet(*words, "--resume", environment=nodes.environment)
                said, errors = process.communicate()
            seconds = time.monotonic() - began
        click.echo(f"{name}: {next((line for line in said.splitlines() if ' jobs passed' in line), said)}")
        if process.returncode != 1 or errors:
            wrong.append(f"{name}: exit status {process.returncode}, and {errors!r} on stderr")
        return seconds

    fleet("driver-killed", lambda nodes, process: process.kill())
    plain = without_ray(path, out / "without-ray")
    shutil.rmtree(out / "without-ray")
    whole = fleet("whole")
    click.echo(f"without Ray {plain:.1f} s, with Ray {whole:.1f} s: {100 * (whole / plain - 1):+.1f} %")
    fleet("node-killed", lambda nodes, process: nodes.kill("b"))
    expected = found_by(out / "whole")
    for name in ("whole", "node-killed", "driver-killed"):
        found, jobs = found_by(out / name), list(jobs_in(out / name / "fleet.json"))
        wrong += [f"{name}: {job['id']} is {job['status']}" for job in jobs if job["status"] != planned(job)]
        if len(found) != 5 * models:
            wrong.append(f"{name}: has {len(found)} jobs")
        wrong += [
            f"{name}: {id}: {found.get(id)}, and without a kill {was}"
            for id, was in expected.items()
            if found.get(id) != was
        ]
    for words in wrong:
        click.echo(words)
    click.echo(
        f"{len(wrong)} are wrong" if wrong else f"all three reports of {5 * models} jobs say the same, as planned"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    run_program(command)
