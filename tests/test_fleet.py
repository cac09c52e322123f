"""Fleets: what a matrix says, how a driver takes what becomes of jobs, and what stands in the report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from hloracle.cli.fleet import commands
from hloracle.cli.main import cli, invoke
from hloracle.core.errors import InputError
from hloracle.fleet import driver, moved, on_ray, process
from hloracle.fleet.driver import Finished, Lost, conduct
from hloracle.fleet.journal import Journal
from hloracle.fleet.matrix import TIMEOUT_SECONDS, Job, Matrix, Place, read_matrix
from hloracle.fleet.outcome import Attempt, Outcome
from hloracle.fleet.report import histories, write_report
from hloracle.reports.fleet import record as form
from hloracle.reports.fleet.page import MOST_CELLS, Drawn, render

MODELS = ("tiny-llama", "tiny-mistral", "smollm2")
SMALL = '[run]\nmodel = "tiny-*"\nprecision = ["f32", "bf16"]\n'


def matrix_of(text: str, folder: Path) -> Matrix:
    path = folder / "m.toml"
    path.write_text(text)
    return read_matrix(path, commands(cli), MODELS)


# ---- the matrix


def test_a_list_is_an_axis_and_a_pattern_fits_models(tmp_path: Path) -> None:
    jobs = list(matrix_of(SMALL, tmp_path))
    assert [job.id for job in jobs] == [
        "run tiny-llama precision=f32", "run tiny-llama precision=bf16",
        "run tiny-mistral precision=f32", "run tiny-mistral precision=bf16",
    ]  # fmt: skip
    assert len({job.key for job in jobs}) == 4


def test_the_words_of_a_command(tmp_path: Path) -> None:
    text = """
    [run]
    model = "tiny-llama"
    backend = [["iree==3.12.0", "xla-cpu"]]
    no-cache = true
    rounds = 0
    [random-models]
    architecture = "llama"
    [[place]]
    match = { command = "run" }
    cpus = 3
    """
    matrix = matrix_of(text, tmp_path)
    run, models = (matrix.words(job, 1) for job in matrix)
    assert run == [
        "hloracle", "run", "tiny-llama", "--backend", "iree==3.12.0", "--backend", "xla-cpu", "--no-cache", "--rounds", "0",
        "--threads", "3", "--out", "{out}",
    ]  # fmt: skip
    assert models == ["hloracle.studies.random_models", "llama", "--jobs", "1"]


def test_files_are_found_beside_the_matrix(tmp_path: Path) -> None:
    for name in ("a.mlir", "b.mlir"):
        (tmp_path / name).write_text("")
    text = '[check]\ngraph = ["*.mlir", ["a.mlir", "b.mlir"]]\nmodel = "tiny-llama"\n'
    matrix = matrix_of(text, tmp_path)
    words = [matrix.words(job, 1)[2:-6] for job in matrix]
    a, b = str(tmp_path / "a.mlir"), str(tmp_path / "b.mlir")
    assert words == [[a], [b], [a, b]]
    assert [matrix.inputs(job) for job in matrix] == words


def test_exclusions_places_and_faults(tmp_path: Path) -> None:
    text = (
        SMALL
        + """
    [[exclude]]
    model = "*mistral"
    precision = ["bf16", "f16"]
    [[place]]
    memory = "1.5 GB"
    [[place]]
    match = { precision = "bf16" }
    gpus = 1
    labels = { gpu = "h100" }
    timeout = 90
    [[fault]]
    match = { model = "tiny-mistral" }
    kind = "hang"
    """
    )
    found = {job.id: job for job in matrix_of(text, tmp_path)}
    assert list(found) == [
        "run tiny-llama precision=f32", "run tiny-llama precision=bf16", "run tiny-mistral precision=f32"
    ]  # fmt: skip
    f32, bf16, mistral = found.values()
    assert f32.place == mistral.place == Place(memory=1_500_000_000)
    assert bf16.place == Place(gpus=1, memory=1_500_000_000, labels=(("gpu", "h100"),))
    assert [job.timeout for job in found.values()] == [TIMEOUT_SECONDS, 90, TIMEOUT_SECONDS]
    assert [job.fault for job in found.values()] == [None, None, "hang"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("[", "is not TOML"),
        ("[fleet]\nretries = 1\n", "has no command"),
        ("[rum]\n", "has an unknown table 'rum'; there are run, check"),
        ("run = 3\n", "run is no table"),
        ("[run]\nmodle = 'x'\n", "run has an unknown key 'modle'; there are"),
        ("[[run]]\nmodel = 'x'\n[[run]]\nout = 'x'\n", r"run\[1\] has an unknown key 'out'"),
        ("[run]\nmodel = []\n", "run.model has no value"),
        ("[run]\nmodel = {a = 1}\n", "run.model is"),
        ("[run]\nmodel = 'none-*'\n", "'none-\\*' fits nothing"),
        ("[run]\nmodel = 'x'\nno-cache = 'yes'\n", "run.no-cache is 'yes'; write true or false"),
        ("[run]\nmodel = 'x'\nprecision = true\n", "run.precision is true"),
        ("[[run]]\nmodel = 'x'\n[[run]]\nmodel = 'x'\n", "has 'run x' twice"),
        ("[run]\nmodel = 'x'\n[[exclude]]\nmodel = '*'\n", "has no job left"),
        ("[run]\nmodel = 'x'\n[[place]]\nmemory = '8 bytes'\n", "'8 bytes' is no size"),
        ("[run]\nmodel = 'x'\n[[place]]\ncpus = 0\n", r"place\[0\].cpus"),
        ("[run]\nmodel = 'x'\n[fleet]\nretries = 'many'\n", "fleet.retries: Input should be a valid integer"),
        ("[run]\nmodel = 'x'\n[[fault]]\nkind = 'melt'\nmatch = {}\n", r"fault\[0\].kind"),
        (
            "[run]\nmodel = ['a', 'b']\ntokens = [" + ", ".join(map(str, range(600_000))) + "]\n",
            "bytes, and no more is read",
        ),
    ],
)
def test_a_matrix_that_is_wrong(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        matrix_of(text, tmp_path)


def test_a_matrix_of_too_many_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloracle.fleet.matrix.MOST_JOBS", 3)
    with pytest.raises(InputError, match="more than 3 jobs"):
        matrix_of(SMALL, tmp_path)


def test_every_key_of_a_command_is_one_of_its_options(tmp_path: Path) -> None:
    """Nothing that asks for another thing than a verdict can be written, such as a list or a folder."""
    found = commands(cli)
    assert set(found) == {"run", "check", "suite", "ops", "mutants", "random-models"}
    for command in found.values():
        assert not {"out", "json", "list", "pin", "help"} & set(command.options)
    assert {"no-cache"} <= found["run"].flags
    assert {"project", "graph"} <= found["check"].paths
    assert not found["mutants"].writes
    assert not found["random-models"].writes


def test_list_prints_the_command_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.toml").write_text('[run]\nmodel = "tiny-llama"\n')
    assert invoke(["fleet", str(tmp_path / "m.toml"), "--list"]) == 0
    assert capsys.readouterr().out == "hloracle run tiny-llama --threads 1 --out {out}\n"


# ---- the driver


class Engine:
    """Gives what is said of each job's runs, one after the other; where nothing is said, it passes."""

    def __init__(self, said: dict[str, list[str | Lost]], room: int = 2) -> None:
        self.said, self.rooms, self.running, self.started, self.most = said, room, [], [], 0
        self.die_after = 10**9

    def room(self, place: Place) -> int:
        return self.rooms

    def start(self, job: Job, attempt: int) -> None:
        self.running.append(job)
        self.started.append((job.id, attempt))
        self.most = max(self.most, len(self.running))

    def drop(self, job: Job) -> None:
        self.running.remove(job)

    def wait(self, seconds: float) -> Sequence[Finished]:
        if not self.running or not self.rooms:
            return []
        self.die_after -= 1
        if self.die_after < 0:
            raise KeyboardInterrupt
        job = self.running.pop(0)
        told = self.said.get(job.id, [])
        result = told.pop(0) if told else "passed"
        return [Finished(job, result if isinstance(result, Lost) else ran(result), b"files")]


def ran(status: Any, verdict: str = "", words: str = "words") -> Attempt:
    return Attempt(status, words, verdict, 1.5, "vm/1")


def conducted(matrix: Matrix, engine: Engine, out: Path, resume: bool = False) -> dict[str, Outcome]:
    journal = Journal(out, matrix, resume)
    try:
        conduct(matrix, engine, journal, lambda job, files: None, lambda outcome: None)
        return {outcome.id: outcome for outcome in journal.outcomes()}
    finally:
        journal.close()


LLAMA, BF16, MISTRAL = "run tiny-llama precision=f32", "run tiny-llama precision=bf16", "run tiny-mistral precision=f32"


def test_what_does_not_pass_is_run_again(tmp_path: Path) -> None:
    said: dict[str, list[str | Lost]] = {
        LLAMA: ["failed", "passed"], BF16: ["crashed", "crashed", "passed"], MISTRAL: ["refused", "passed"]
    }  # fmt: skip
    found = conducted(matrix_of(SMALL, tmp_path), Engine(said), tmp_path)
    assert {id: outcome.status for id, outcome in found.items()} == {
        LLAMA: "flaky", BF16: "crashed", MISTRAL: "refused", "run tiny-mistral precision=bf16": "passed",
    }  # fmt: skip
    assert [len(found[id].attempts) for id in (LLAMA, BF16, MISTRAL)] == [2, 2, 1]


def test_no_more_is_started_than_twice_what_there_is_room_for(tmp_path: Path) -> None:
    matrix = matrix_of("[run]\nmodel = 'x'\ntokens = [" + ", ".join(map(str, range(1, 51))) + "]\n", tmp_path)
    engine = Engine({}, room=4)
    assert len(conducted(matrix, engine, tmp_path)) == 50
    assert engine.most == 8


def test_a_machine_that_is_gone_counts_for_nothing(tmp_path: Path) -> None:
    gone = Lost("NodeDiedError")
    found = conducted(matrix_of(SMALL, tmp_path), Engine({LLAMA: [gone, gone], BF16: [gone] * 3}), tmp_path)
    assert (found[LLAMA].status, found[LLAMA].lost, len(found[LLAMA].attempts)) == ("passed", 2, 1)
    assert (found[BF16].status, found[BF16].lost) == ("lost", 3)
    assert "NodeDiedError" in found[BF16].last.words


def test_jobs_that_no_machine_can_hold_any_more_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "NOWHERE_SECONDS", 0.0)
    engine = Engine({})
    matrix, journal = matrix_of(SMALL, tmp_path), Journal(tmp_path, matrix_of(SMALL, tmp_path), False)
    told: list[str] = []

    def tell(outcome: Outcome) -> None:
        told.append(outcome.status)
        engine.rooms = 0

    conduct(matrix, engine, journal, lambda job, files: None, tell)
    assert told == ["passed", "lost", "lost", "lost"]
    assert engine.running == []
    journal.close()


def test_a_driver_that_died_is_taken_up_again(tmp_path: Path) -> None:
    matrix, engine = matrix_of(SMALL, tmp_path), Engine({})
    engine.die_after = 2
    with pytest.raises(KeyboardInterrupt):
        conducted(matrix, engine, tmp_path)
    with (tmp_path / "fleet.jsonl").open("a") as file:
        file.write('{"key": "half a li')
    again = Engine({})
    found = conducted(matrix, again, tmp_path, resume=True)
    assert len(found) == 4
    assert len(again.started) == 2
    assert {id for id, _ in again.started} == {id for id, _ in engine.started[2:]} | {"run tiny-mistral precision=bf16"}
    assert conducted(matrix, Engine({}), tmp_path, resume=True) == found


def test_what_was_lost_is_no_more_done(tmp_path: Path) -> None:
    matrix = matrix_of(SMALL, tmp_path)
    conducted(matrix, Engine({LLAMA: [Lost("gone")] * 3}), tmp_path)
    again = Engine({})
    found = conducted(matrix, again, tmp_path, resume=True)
    assert again.started == [(LLAMA, 1)]
    assert [outcome.status for outcome in found.values()] == ["passed"] * 4


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda journal: journal.unlink(), "no fleet was begun there"),
        (lambda journal: journal.write_text('{"schema": "other"}\n'), "is not of .* as it is now"),
        (lambda journal: journal.write_text(journal.read_text() + "[]\n"), "is no line of a journal"),
        (lambda journal: journal.write_bytes(journal.read_bytes() + b"\xff\n"), "is no line of a journal"),
        (lambda journal: (journal.parent / "m.toml").write_text(SMALL + "tokens = 3\n"), "is not of .* as it is now"),
    ],
)
def test_a_journal_that_cannot_be_gone_on_with(damage: Any, words: str, tmp_path: Path) -> None:
    conducted(matrix_of(SMALL, tmp_path), Engine({}), tmp_path)
    damage(tmp_path / "fleet.jsonl")
    with pytest.raises(InputError, match=words):
        Journal(tmp_path, read_matrix(tmp_path / "m.toml", commands(cli), MODELS), resume=True)


# ---- a job's process


def run_words(words: list[str], timeout: float = 60) -> process.Ended:
    return process.run_job(words, timeout, {}, "vm")


def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> list[str]:
    (tmp_path / "a_job.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return ["a_job"]


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        ("print('all right')", "passed", "all right"),
        ("import sys; print('not'); sys.exit(1)", "failed", "not"),
        ("import sys; print('bad input', file=sys.stderr); sys.exit(2)", "refused", "bad input"),
        ("import os; os.abort()", "crashed", "ended with signal SIGABRT; the last line was: it said nothing"),
        ("raise SystemExit(77)", "crashed", "ended with exit status 77"),
        ("print('\\x1b[31mred')", "passed", "\\x1b[31mred"),
    ],
)
def test_how_a_job_ends(code: str, status: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = run_words(module(tmp_path, monkeypatch, code))
    assert ended.attempt.status == status
    assert words in ended.attempt.words
    process.unpack(ended.files, tmp_path / "kept")
    assert (tmp_path / "kept" / "log.txt").is_file()


def gone(pid: int) -> bool:
    """Whether a process has ended within ten seconds."""
    until = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
        time.sleep(0.05)
    return time.monotonic() < until


def test_a_job_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 1)
    code = f"""
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
time.sleep(600)
"""
    ended = run_words(module(tmp_path, monkeypatch, code), timeout=3)
    assert ended.attempt.status == "hung"
    assert "did not end within 3 s" in ended.attempt.words
    pid = int((tmp_path / "pid").read_text())
    assert gone(pid)


def test_a_job_ends_with_who_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = module(
        tmp_path,
        monkeypatch,
        f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)",
    )
    code = f"from hloracle.fleet.process import run_job; run_job({words}, 600, {{}}, 'vm')"
    driver = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.05)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    pid = int((tmp_path / "pid").read_text())
    assert gone(pid)


def test_a_record_says_what_became_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = {"verdict": {"class": "emitter-fault", "explanation": "It is wrong."}, "damaged": ["a", "b"]}
    code = (
        f"import pathlib, sys; pathlib.Path(sys.argv[1], 'report.json').write_text({json.dumps(record)!r}); sys.exit(1)"
    )
    attempt = run_words([*module(tmp_path, monkeypatch, code), "{out}"]).attempt
    assert (attempt.status, attempt.verdict, attempt.words, attempt.damaged) == (
        "failed",
        "emitter-fault",
        "It is wrong.",
        2,
    )


def test_files_of_another_machine_stay_in_their_folder(tmp_path: Path) -> None:
    import io
    import tarfile

    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        about = tarfile.TarInfo("../outside")
        tar.addfile(about, io.BytesIO(b""))
    with pytest.raises(tarfile.OutsideDestinationError):
        process.unpack(data.getvalue(), tmp_path / "in")
    assert not (tmp_path / "outside").exists()


# ---- what is moved


def test_an_input_is_taken_where_it_is_the_same_and_brought_where_it_is_not(empty_cache: Path, tmp_path: Path) -> None:
    graph = tmp_path / "decode.mlir"
    graph.write_text("module")
    (tmp_path / "decode.abi.json").write_text("{}")
    asked = moved.input_of(graph)
    packed = moved.pack(tmp_path, moved.companions(graph))
    assert moved.here(asked, None) == str(graph)
    (tmp_path / "decode.abi.json").write_text("{ }")  # another machine has another one
    assert moved.here(asked, None) is None
    brought = moved.here(asked, packed)
    assert brought is not None
    assert Path(brought).read_text() == "module"
    assert Path(brought).with_name("decode.abi.json").read_text() == "{}"
    assert moved.here(asked, None) == brought


def test_entries_go_from_one_cache_to_another(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hloracle.core.cache import Entry, build_directory, is_whole

    def make(folder: Path) -> None:
        (folder / "logits.npy").write_bytes(b"logits")

    build_directory(empty_cache / "truth" / "question" / "torch-2", make)
    Entry("oracle", "0" * 40, str).save("module")
    Entry("configurations", "0" * 40, str).save("not to be moved")
    names = sorted(moved.entries())
    assert names == ["oracle/" + Entry("oracle", "0" * 40, str).path.name, "truth/question/torch-2"]
    packed = moved.pack(empty_cache, names)
    monkeypatch.setenv("HLORACLE_CACHE", str(tmp_path / "other"))
    assert moved.entries() == set()
    for _ in range(2):
        moved.take(packed)
        assert sorted(moved.entries()) == names
    assert is_whole(tmp_path / "other" / "truth" / "question" / "torch-2")
    assert Entry("oracle", "0" * 40, str).load() == "module"


def test_whether_a_cache_is_shared(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = moved.mark()
    assert moved.shares(marker)
    monkeypatch.setenv("HLORACLE_CACHE", str(tmp_path / "other"))
    assert not moved.shares(marker)


# ---- machines


def node(**labels: str) -> dict[str, Any]:
    return {"Alive": True, "Resources": {"CPU": 4.0, "memory": 8e9}, "Labels": labels, "NodeManagerHostname": "vm"}


def test_what_no_machine_has_is_said_at_once(tmp_path: Path) -> None:
    text = SMALL + '[[place]]\nmatch = { precision = "bf16" }\nlabels = { gpu = "h100" }\n'
    matrix = matrix_of(text, tmp_path)
    on_ray.refuse_unplaceable(matrix, [node(), node(gpu="h100")])
    with pytest.raises(InputError, match="needs 1 cores, gpu=h100, and no machine has that: there is vm with 4 cores"):
        on_ray.refuse_unplaceable(matrix, [node(gpu="a100"), {**node(gpu="h100"), "Alive": False}])
    for needs in ("cpus = 5", "gpus = 1", 'memory = "9 GB"'):
        with pytest.raises(InputError, match="no machine has that"):
            on_ray.refuse_unplaceable(matrix_of(f"{SMALL}[[place]]\n{needs}\n", tmp_path), [node()])


@pytest.mark.parametrize("address", ["10.1.2.3:6379", "cluster.example:6379", "[2001:db8::1]:6379"])
def test_another_machine_has_to_ask_for_a_token(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with pytest.raises(InputError, match="no token is asked for"):
        on_ray.refuse_without_token(address)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(InputError, match="no token is asked for"):
        on_ray.refuse_without_token(address)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    on_ray.refuse_without_token(address)


@pytest.mark.parametrize("address", ["auto", "localhost:6379", "127.0.0.1:6379", "[::1]:6379"])
def test_this_machine_need_not(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    on_ray.refuse_without_token(address)


def test_rays_client_is_refused() -> None:
    with pytest.raises(InputError, match="is that of Ray's client"):
        on_ray.refuse_without_token("ray://127.0.0.1:10001")


# ---- the report


def reported(text: str, said: dict[str, list[str | Lost]], out: Path, before: dict[str, str]) -> form.Head:
    matrix = matrix_of(text, out)
    journal = Journal(out, matrix, False)
    conduct(matrix, Engine(said), journal, lambda job, files: None, lambda outcome: None)
    head = write_report(matrix, journal, before, out)
    journal.close()
    return head


def test_the_history_of_each_job_and_what_is_new(tmp_path: Path) -> None:
    first = reported(SMALL, {LLAMA: ["failed", "failed"], BF16: ["crashed", "passed"]}, tmp_path, {})
    assert (first["passed"], first["counts"]) == (False, {"failed": 1, "flaky": 1, "passed": 2})
    before = histories(tmp_path / "fleet.json") | {"0" * 16: "P"}
    second = reported(SMALL, {MISTRAL: ["hung", "hung"], BF16: ["crashed"] * 2}, tmp_path, before)
    assert second["gone"] == ["0" * 16]
    found = {job["id"]: (job["status"], job["history"], job["change"]) for job in form.jobs_in(tmp_path / "fleet.json")}
    assert found == {
        LLAMA: ("passed", "FP", "fixed"),
        BF16: ("crashed", "KC", "other failure"),
        MISTRAL: ("hung", "PH", "new failure"),
        "run tiny-mistral precision=bf16": ("passed", "PP", ""),
    }
    page = (tmp_path / "fleet.html").read_text()
    assert "2 of 4 jobs pass" in page
    assert "1 new failure, 1 fails in another way, 1 fixed, 0 new, 1 gone" in page
    assert page.index("run tiny-mistral precision=f32") < page.index("run tiny-llama precision=bf16")


def test_the_record_is_of_its_schema(tmp_path: Path) -> None:
    from hloracle.core.typed import problem

    reported(SMALL, {LLAMA: ["failed", "failed"]}, tmp_path, {})
    record = json.loads((tmp_path / "fleet.json").read_text())
    assert problem(form.FleetRecord, record) == ""
    assert form.SCHEMA_FILE.read_text() == form.schema()


def test_the_junit_file(tmp_path: Path) -> None:
    import xml.etree.ElementTree as ET

    reported(SMALL, {LLAMA: ["failed", "failed"], BF16: ["crashed", "passed"], MISTRAL: ["hung"] * 2}, tmp_path, {})
    root = ET.parse(tmp_path / "junit.xml").getroot()
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("4", "2", "1")
    kinds = {case.get("name"): [child.tag for child in case] for case in root.iter("testcase")}
    assert kinds == {
        LLAMA: ["failure"], BF16: ["failure"], MISTRAL: ["error"], "run tiny-mistral precision=bf16": []
    }  # fmt: skip


def test_the_history_takes_the_records_of_all_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = matrix_of(SMALL, tmp_path)
    jobs = list(matrix)
    for job, name in zip(jobs, ("conforms", "emitter-fault"), strict=False):
        (folder := tmp_path / "jobs" / job.key).mkdir(parents=True)
        (folder / "report.json").write_bytes((Path(__file__).parent / "records" / f"{name}.json").read_bytes())
    reported(SMALL, {}, tmp_path, {})
    add = ["history", "add", str(tmp_path / "fleet.json"), "--store", str(tmp_path / "store.jsonl")]
    assert invoke(add) == invoke(add) == 0
    assert [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()] == [
        "2 added, 0 there already", "0 added, 2 there already"
    ]  # fmt: skip


def test_a_page_of_hostile_words_and_of_many_jobs(tmp_path: Path) -> None:
    head = reported(SMALL, {}, tmp_path, {})
    row = next(form.jobs_in(tmp_path / "fleet.json"))
    drawn = Drawn()
    evil: form.Job = {
        **row, "id": "<script>alert(1)</script>", "status": "failed",
        "tries": [{"status": "failed", "words": "<img src=x>", "verdict": "", "seconds": 1.0, "machine": "<b>"}],
    }  # fmt: skip
    drawn.add(evil)
    for number in range(MOST_CELLS + 10):
        drawn.add({**row, "values": {"model": f"m{number // 100}", "tokens": str(number)}})
    page = render(head, drawn)
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "m40" in page
    assert len(page) < 1_000_000


@pytest.mark.parametrize("text", ['{"key"\n', '{"key": 1}\n', '{"key": "0", "id": "x"},\n'])
def test_a_record_before_that_is_damaged(text: str, tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_text(text)
    with pytest.raises(InputError, match="is no job of a fleet"):
        histories(tmp_path / "fleet.json")
