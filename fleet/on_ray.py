"""Ray as the engine: which machines there are, what runs on which, and what comes of a machine that is gone."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import queue
import signal
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import psutil

from hloracle.core.cache import cache_root
from hloracle.core.environment import PACKAGES, threads_available, versions
from hloracle.core.errors import InputError, told
from hloracle.core.program import STOPPING
from hloracle.core.revision import revision
from hloracle.core.shown import shown
from hloracle.fleet import moved
from hloracle.fleet.driver import Finished, Lost
from hloracle.fleet.matrix import Job, Matrix, Place
from hloracle.fleet.moved import Input
from hloracle.fleet.outcome import Attempt
from hloracle.fleet.process import Ended, run_job

TOKEN = "`ray get-auth-token --generate` makes one: copy it to each machine, and set RAY_AUTH_MODE=token there and here"
LOOK_SECONDS = 5.0  # for how long what is known of the machines is taken for true
SHARE_OF_MEMORY = 0.1  # for what jobs leave, until the driver has written it down

Ref = Any  # to an object of Ray's


class Task(TypedDict):
    """What a machine is told of a job. Of plain types, which Ray packs in a tenth of the time that pickling takes.

    inputs: the paths that its words name on the driver's machine, with their digests. packed: refs to these, in order. entries: for
    each ref the names of the entries that it holds. marker: see `moved.shares`. packages: the versions that the driver has.
    """

    words: list[str]
    timeout: float
    environment: dict[str, str]
    marker: str
    packages: dict[str, str]
    inputs: list[tuple[str, str]]
    packed: list[Ref]
    entries: list[tuple[list[str], Ref]]


Answer = tuple[tuple[Ended, list[str]], bytes]
Run = Callable[[Task], Answer]


class Ray:
    """A cluster that this process is connected to: see `connected`."""

    def __init__(self, ray: Any, matrix: Matrix, marker: str, run: Run) -> None:
        self._ray, self._matrix, self._marker = ray, matrix, marker
        self.environment = {"HLORACLE_COMMIT": commit} if (commit := revision()) else {}
        self._packages = versions(PACKAGES)
        self._running: dict[Ref, tuple[Job, Ref]] = {}
        self._nodes: list[Mapping[str, Any]] = []
        self._looked = -LOOK_SECONDS
        self._made: dict[str, list[tuple[list[str], Ref]]] = defaultdict(list)  # by model
        self._ended: queue.SimpleQueue[tuple[Ref, Future[Any]]] = queue.SimpleQueue()
        self._at = cache(lambda place: ray.remote(max_retries=0, num_returns=2, **_options(place))(run))
        self._put = cache(lambda path: ray.put(moved.pack(Path(path).parent, moved.companions(Path(path)))))
        self._digests = cache(lambda path: (path, moved.input_of(Path(path)).digest))

    def room(self, place: Place) -> int:
        """How many jobs with these needs all machines hold at a time."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._nodes, self._looked = [node for node in self._ray.nodes() if node["Alive"]], time.monotonic()
        return sum(_holds(node, place) for node in self._nodes)

    def start(self, job: Job, attempt: int) -> None:
        """Hand it to Ray, which places it."""
        elsewhere = len(self._nodes) > 1
        paths = self._matrix.inputs(job) if elsewhere else []
        task: Task = {
            "words": self._matrix.words(job, attempt),
            "timeout": job.timeout,
            "environment": self.environment,
            "marker": self._marker,
            "packages": self._packages,
            "inputs": [self._digests(path) for path in paths],
            "packed": [self._put(path) for path in paths],
            "entries": self._made[job.model] if elsewhere else [],
        }
        ref, made = self._at(job.place).remote(task)
        self._running[ref] = job, made
        # `ray.wait` would look through all that run each time that one ends.
        ref.future().add_done_callback(lambda future: self._ended.put((ref, future)))

    def drop(self, job: Job) -> None:
        """Cancel its run."""
        for ref in [ref for ref, (running, _) in self._running.items() if running.key == job.key]:
            del self._running[ref]
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.cancel(ref, force=True)

    def wait(self, seconds: float) -> Sequence[Finished]:
        """All that have ended, once one has."""
        found = list[tuple[Ref, Future[Any]]]()
        with contextlib.suppress(queue.Empty):
            found.append(self._ended.get(timeout=seconds))
            while True:
                found.append(self._ended.get_nowait())
        return [self._finished(ref, future) for ref, future in found if ref in self._running]

    def cancel(self) -> None:
        """End all that runs."""
        for job, _ in list(self._running.values()):
            self.drop(job)

    def _finished(self, ref: Ref, future: Future[Any]) -> Finished:
        job, made = self._running.pop(ref)
        errors = self._ray.exceptions
        try:
            ended: Ended
            names: list[str]
            ended, names = future.result()
        except errors.OutOfMemoryError:
            return Finished(job, Attempt("crashed", "Ray killed it: its machine was out of memory", "", 0.0, ""))
        except errors.RayTaskError as error:
            return Finished(
                job, Attempt("refused", f"it could not be run: {shown(str(error.cause), 300)}", "", 0.0, "")
            )
        except errors.RayError as error:  # what runs in the worker is ours, and a job's crash is its own process's
            return Finished(job, Lost(type(error).__name__))
        if names:
            self._made[job.model].append((names, made))
        return Finished(job, ended.attempt, ended.files)


@contextmanager
def connected(address: str | None, matrix: Matrix, run: Run | None = None, cores: int = 0) -> Iterator[Ray]:
    """Start Ray on this machine, or connect to the cluster at an address; all that runs there for us ends with this.

    Args:
      run: what is done of a job on a machine, in place of running it. cores: as many as this machine is said to have.

    Raises InputError where Ray is not installed or not reached, an address is not this machine's and no token is set, or what a
    job needs no machine has.
    """
    if address is not None:
        refuse_without_token(address)
    try:
        import ray
    except ImportError:
        raise InputError("is not installed", "Ray, which a fleet runs on", 'pip install "hloracle[fleet]"') from None
    where, fix = "Ray", "see that this machine has memory and ports left"
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address is None:
        memory = int(psutil.virtual_memory().total * SHARE_OF_MEMORY)
        how |= {"num_cpus": cores or threads_available(), "object_store_memory": memory, "include_dashboard": False}
    else:
        where, fix = (
            f"--address {address}",
            "give what `ray start --head` printed, and set the token of that cluster here",
        )
    try:
        with _nothing_printed(), _own_signals():
            ray.init(address=address or "local", **how)
    except Exception as error:  # of many kinds: an address that is none, nobody there, another token, no room
        raise InputError(f"is not reached ({told(error)})", where, fix) from None
    marker = moved.mark()
    engine = Ray(ray, matrix, marker, run or _on_machine)
    try:
        nodes: Any = ray.nodes
        refuse_unplaceable(matrix, nodes())
        # Ray prints there, in a thread of its own, what it hears of machines that are gone.
        with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
            yield engine
    finally:
        (cache_root() / marker).unlink(missing_ok=True)
        engine.cancel()
        ray.shutdown()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray answers signals itself from then on: SIGTERM with a C++ stack trace (seen with 2.60)."""
    os.environ["RAY_DISABLE_FAILURE_SIGNAL_HANDLER"] = "1"
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _nothing_printed() -> Iterator[None]:
    """What Ray's C++ writes to stderr while it connects, over and over, the error says in the end."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def refuse_without_token(address: str) -> None:
    """Raises InputError for the address of another machine where no token is set: whoever reaches such a cluster runs what he
    likes on it.
    """
    where = f"--address {address}"
    if address.startswith("ray://"):
        raise InputError("is that of Ray's client", where, "run it on a machine of the cluster, with its HOST:PORT")
    if _is_here(address) or os.environ.get("RAY_AUTH_MODE") == "token":
        return
    raise InputError("is of another machine, and no token is asked for", where, TOKEN)


def _is_here(address: str) -> bool:
    """Whether an address is this machine's."""
    host = (address.rpartition(":")[0] or address).strip("[]")
    if host in ("auto", "local", "localhost"):
        return True
    own = {found.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for found in addresses}
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback or host in own
    return False


def refuse_unplaceable(matrix: Matrix, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Raises InputError that names what jobs need and no machine has."""
    alive = [node for node in nodes if node["Alive"]]
    for place in matrix.places:
        if not any(_holds(node, place) for node in alive):
            job = next(job for job in matrix if job.place == place)
            there = "; ".join(_described(node) for node in alive)
            raise InputError(
                f"needs {place}, and no machine has that: there is {there}", f"{matrix.path}: {job.id}",
                "change [[place]], or start a machine that has it",
            )  # fmt: skip


def _options(place: Place) -> dict[str, Any]:
    """What Ray is told of a job's needs."""
    needs = {"num_cpus": place.cpus, "num_gpus": place.gpus, "label_selector": dict(place.labels)}
    return {**needs, "memory": place.memory} if place.memory else needs


def _holds(node: Mapping[str, Any], place: Place) -> int:
    """How many jobs with these needs a machine holds at a time."""
    if any(node["Labels"].get(key) != value for key, value in place.labels):
        return 0
    needs = {"CPU": place.cpus, "GPU": place.gpus, "memory": place.memory}
    return int(min(node["Resources"].get(key, 0) // need for key, need in needs.items() if need))


def _described(node: Mapping[str, Any]) -> str:
    resources = node["Resources"]
    gpus = [f"{resources['GPU']:g} GPUs"] if "GPU" in resources else []
    labels = [f"{key}={value}" for key, value in node["Labels"].items() if key != "ray.io/node-id"]
    cores, memory = f"{resources.get('CPU', 0):g} cores", f"{int(resources.get('memory', 0)):,} bytes"
    return f"{node['NodeManagerHostname']} with {', '.join([cores, *gpus, memory, *labels])}"


def _on_machine(task: Task) -> Answer:
    """On the machine where it runs: how it ended, with the names of the entries that it made, and these, packed.

    Raises InputError where the machine has other versions, or not what the job names.
    """
    import ray
    from ray.exceptions import RayError

    name = f"{socket.gethostname()}/{ray.get_runtime_context().get_node_id()[:6]}"
    if other := [f"{p} {v}" for p, v in versions(PACKAGES).items() if task["packages"][p] != v]:
        raise InputError(
            f"has other versions than the driver ({', '.join(other)})", name, "install the same on all machines"
        )
    words = list(task["words"])
    for asked, ref in zip((Input(*one) for one in task["inputs"]), task["packed"], strict=True):
        path = moved.here(asked, None) or moved.here(asked, ray.get(ref))
        words = [path or word if word == asked.path else word for word in words]
    shared = moved.shares(task["marker"])
    before = set() if shared else moved.entries()
    for names, ref in [] if shared else task["entries"]:
        if not before.issuperset(names):
            with contextlib.suppress(RayError):  # its machine is gone: they are made here
                moved.take(ray.get(ref))
    before = set() if shared else moved.entries()
    ended = run_job(words, task["timeout"], task["environment"], name)
    made = [] if shared else moved.small_enough(sorted(moved.entries() - before))
    return (ended, made), moved.pack(cache_root(), made) if made else b""
