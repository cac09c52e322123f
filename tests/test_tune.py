"""`hloracle tune`: what is right and fastest is kept, what is wrong is said, and a file is believed only where it holds."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from evidence import a_run
from nightly import only
from rich.console import Console

from hloracle.backends import iree
from hloracle.backends.devices import CPU, Device, Facts, open_device
from hloracle.backends.named import chosen as backends_of
from hloracle.bench import contenders, show, tune
from hloracle.bench.contenders import Spec, Task, on_session
from hloracle.bench.tune import Candidate, Judge, Tuning, first_choice, is_faster, others, run_tune
from hloracle.cli import main as cli
from hloracle.conformance.context import Context, Progress
from hloracle.conformance.evidence import Evidence
from hloracle.conformance.matrix import Configuration
from hloracle.conformance.run import choose
from hloracle.conformance.runs.configurations import Outcome
from hloracle.conformance.runs.returned import Slots
from hloracle.conformance.settings import QUICK_CAPACITY, Settings
from hloracle.core.child import alone
from hloracle.core.errors import InputError
from hloracle.production import choice as choices
from hloracle.production.choice import (
    Build,
    Choice,
    circumstances,
    keep,
    production_graphs,
    tuned,
    tuned_entry,
    untuned,
    valid_cpu,
)
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.contract import GraphSpec

GPU = Device("cuda", 0, "sm_89", facts=Facts("an H100", (9, 0), 80 << 30, "CUDA 13.0"))
CONFORMS = {"verdict": {"class": "conforms"}, "passed": True}
OTHER = Choice("rows", False, Build("O3", "x86-64-v3"), Build("plain"))
DECODE = GraphSpec("decode", "token", 32, 0)
PREFILL = GraphSpec("prefill", "token", 32, 32)


@pytest.fixture
def checkpoint() -> Checkpoint:
    return open_checkpoint(resolve("tiny-llama"))


@pytest.fixture(autouse=True)
def nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices of a test's own: others run beside it."""
    monkeypatch.setattr(choices, "FOLDER", str(tmp_path))


# ---- a choice


def test_graphs_are_written_and_compiled_as_chosen(checkpoint: Checkpoint) -> None:
    decode, prefill = production_graphs(checkpoint, "f32", OTHER, [DECODE, PREFILL])
    assert all(w.encoding == "plain" for w in decode.abi.weights)
    assert decode.flags == ("--iree-opt-level=O3", "--iree-llvmcpu-target-cpu=x86-64-v3")
    assert prefill.flags == ()
    decode, prefill = production_graphs(checkpoint, "f32", untuned(), [DECODE, PREFILL])
    assert {w.encoding for w in decode.abi.weights} == {"plain", "panels"}
    assert decode.flags == ()
    assert prefill.flags == iree.FLAG_SETS["packed"]


def test_a_graphs_own_flags_stand_in_for_those_of_the_same_name(checkpoint: Checkpoint) -> None:
    (graph,) = production_graphs(checkpoint, "f32", OTHER, [DECODE])
    flags = iree.flags_of(graph)
    names = [flag.partition("=")[0] for flag in flags]
    assert len(set(names)) == len(names)  # the compiler takes each of them once
    assert {"--iree-opt-level=O3", "--iree-llvmcpu-target-cpu=x86-64-v3"} <= set(flags)
    assert iree.flags_of(dataclasses.replace(graph, flags=())) == iree.CPU_FLAGS


@pytest.mark.parametrize("name", only(["packed", "spread"], sorted(iree.FLAG_SETS)))
def test_every_set_of_flags_compiles(name: str, checkpoint: Checkpoint) -> None:
    choice = untuned().with_build("decode", Build(name))
    (graph,) = production_graphs(checkpoint, "f32", choice, [DECODE])
    iree.precompile(graph)


def test_every_phase_has_a_first_set_and_others() -> None:
    for phase, names in iree.PHASE_FLAGS.items():
        assert set(names) <= set(iree.FLAG_SETS)
        assert untuned().build(phase) == Build(names[0])


# ---- the file


def test_what_is_kept_is_found_again(checkpoint: Checkpoint) -> None:
    assert tuned(checkpoint, "f32", 2) == choices.Tuned()
    keep(checkpoint, "f32", 2, OTHER, [])
    assert tuned(checkpoint, "f32", 2) == choices.Tuned(OTHER)
    assert tuned(checkpoint, "int4", 2) == choices.Tuned()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"for": {"cpu": "Some Other CPU"}}, "was measured on Some Other CPU"),
        ({"for": {"features": "other"}}, "other features"),
        ({"for": {"threads": 64}}, "with 64 threads, these are 2"),
        ({"for": {"compiler": "1.0"}}, "with iree-base-compiler 1.0, this is"),
        ({"for": {"runtime": "1.0"}}, "with iree-base-runtime 1.0, this is"),
        ({"for": {"graphs": "other"}}, "before graphs were written otherwise"),
        ({"choice": {"layout": "columns"}}, "is damaged"),
        ({"choice": {"decode": {"flags": "--iree-plugin=evil", "cpu": "host"}}}, "is damaged"),
        ({"choice": {"decode": {"flags": "plain", "cpu": "host --output=/etc/passwd"}}}, "is damaged"),
        ({"choice": {"decode": {"flags": "plain", "more": 1}}}, "is damaged"),
        ({"choice": None}, "is damaged"),
        ({"for": None}, "is damaged"),
    ],
)
def test_a_stale_or_foreign_file_is_ignored_with_a_word(
    change: dict[str, Any], words: str, checkpoint: Checkpoint
) -> None:
    path, entry = keep(checkpoint, "f32", 2, OTHER, []), tuned_entry(checkpoint, "f32")
    raw = entry.load()
    assert raw
    for key, value in change.items():
        raw[key] = {**raw[key], **value} if isinstance(value, dict) else value
    entry.save(raw)
    found = tuned(checkpoint, "f32", 2)
    assert found.choice is None
    assert words in found.ignored
    assert path.name in found.ignored
    assert "hloracle tune" in found.ignored


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff", '{"schema": "hloracle-tuned/1"}', "[" * 100_000])
def test_a_damaged_file_is_ignored_with_a_word(text: str, checkpoint: Checkpoint) -> None:
    path = keep(checkpoint, "f32", 2, OTHER, [])
    path.write_text(text, encoding="latin-1")
    found = tuned(checkpoint, "f32", 2)
    assert found.choice is None
    assert "ignored" in found.ignored


def test_of_every_circumstance_there_is_a_word() -> None:
    assert set(choices.WORDS) == {*circumstances(1), *circumstances(1, GPU)}


def test_of_a_device_its_own_is_kept(checkpoint: Checkpoint) -> None:
    """And what was measured on another device, driver or for another target is ignored."""
    assert GPU.facts
    as_graphs = dataclasses.replace(untuned(device=GPU), graphs=True)
    keep(checkpoint, "f32", 2, OTHER, [])
    assert tuned(checkpoint, "f32", 2, GPU) == choices.Tuned()
    keep(checkpoint, "f32", 2, as_graphs, [], GPU)
    assert tuned(checkpoint, "f32", 2) == choices.Tuned(OTHER)
    found = tuned(checkpoint, "f32", 64, GPU).choice  # threads are not what it runs on
    assert found == as_graphs
    assert found.opened(GPU) == dataclasses.replace(GPU, graphs=True)
    newer = dataclasses.replace(GPU.facts, driver="CUDA 14.0")
    for other, words in (
        (dataclasses.replace(GPU, target="sm_80"), "with code for sm_89, this is sm_80"),
        (dataclasses.replace(GPU, facts=newer), "with the driver CUDA 13.0, this is CUDA 14.0"),
        (dataclasses.replace(GPU, facts=Facts("an L4", (8, 9))), "on an H100, this is an L4"),
    ):
        found_of_other = tuned(checkpoint, "f32", 2, other)
        assert found_of_other.choice is None
        assert words in found_of_other.ignored


@pytest.mark.parametrize(
    ("choice", "device"),
    [
        (OTHER, GPU),  # a graph for the processor has a step wait for what the device reads back
        (untuned(device=GPU), CPU),
        (dataclasses.replace(untuned(device=GPU), graphs=True), Device("vulkan")),
    ],
)
def test_a_choice_of_another_kind_of_device_is_ignored(choice: Choice, device: Device, checkpoint: Checkpoint) -> None:
    keep(checkpoint, "f32", 2, choice, [], device)
    found = tuned(checkpoint, "f32", 2, device)
    assert found.choice is None
    assert "is damaged" in found.ignored


@pytest.mark.parametrize("name", ["", "a b", "x;y", "-" * 50, "a/b", "--x=y", 3, None])
def test_what_is_no_name_of_a_cpu(name: object) -> None:
    assert not valid_cpu(name)


def on(device: Device, threads: int = 1) -> Context:
    return Context(
        backends=backends_of([device.backend, "iree-cpu", "xla-cpu"], device), device=device, threads=threads
    )


def choices_of(settings: Settings, checkpoint: Checkpoint, context: Context) -> Evidence:
    """What a run has found of how its graphs are written and compiled."""
    run = a_run(settings=settings, context=context, model=checkpoint)
    choose(run)
    return run.evidence


def test_a_run_takes_what_was_asked_for_or_kept_or_says_why_not(checkpoint: Checkpoint) -> None:
    def chosen(threads: int = 2, **settings: Any) -> tuple[Choice, str, str]:
        evidence = choices_of(Settings("m", **settings), checkpoint, Context(threads=threads))
        return evidence.choice, evidence.chosen, evidence.ignored

    assert chosen() == (untuned(), "untuned", "")
    keep(checkpoint, "f32", 2, OTHER, [])
    assert chosen() == (OTHER, "tuned", "")
    assert chosen(quick=True) == (untuned(), "untuned", "")
    assert chosen(choice=untuned("rows")) == (untuned("rows"), "asked", "")
    choice, how, ignored = chosen(threads=3)
    assert (choice, how) == (untuned(), "untuned")
    assert "with 2 threads, these are 3" in ignored


# ---- what is tried, and what beats what


def test_untuned_a_device_is_driven_as_it_was_opened(checkpoint: Checkpoint) -> None:
    for device in (GPU, dataclasses.replace(GPU, graphs=True)):
        evidence = choices_of(Settings("m"), checkpoint, on(device))
        assert evidence.choice.opened(device) == device


def test_every_thing_is_tried_by_itself() -> None:
    first = first_choice(["x86-64-v3", "host"])
    assert first.decode == Build("plain", "x86-64-v3")
    layouts, fused, graphs, flags, cpus = others(first, "decode", "f32", ["x86-64-v3", "host"])
    assert [c.layout for c in layouts] == ["rows"]
    assert [c.fused for c in fused] == [True]
    assert graphs == []
    assert [c.decode for c in flags] == [Build("O3", "x86-64-v3"), Build("packed", "x86-64-v3")]
    assert [c.decode for c in cpus] == [Build("plain", "host")]
    assert all(c.prefill == first.prefill for c in (*layouts, *fused, *flags, *cpus))


def test_what_is_tried_on_a_gpu() -> None:
    """How its commands are submitted too, once: a device is opened for both phases."""
    first = first_choice(["host"], GPU)
    layouts, fused, graphs, flags, cpus = others(first, "decode", "f32", ["host"], GPU)
    assert [c.layout for c in layouts] == ["panels"]
    assert [c.fused for c in fused] == [True]
    assert [c.graphs for c in graphs] == [True]
    assert [c.decode for c in flags] == [Build("O3")]
    assert cpus == []
    tried = (*layouts, *fused, *graphs, *flags)
    assert all(c.on_device for c in tried)
    assert not any(c.graphs for c in (*layouts, *fused, *flags))
    assert [len(found) for found in others(first, "prefill", "f32", ["host"], GPU)] == [0, 0, 0, 1, 0]
    assert [len(found) for found in others(first, "decode", "f32", ["host"], Device("vulkan"))] == [1, 1, 0, 1, 0]


@pytest.mark.parametrize(("phase", "precision"), [("decode", "int4"), ("decode", "int8"), ("prefill", "f32")])
def test_weights_lie_one_way_in_both_phases(phase: str, precision: str) -> None:
    layouts, *_ = others(untuned(), phase, precision, ["host"])
    assert layouts == []


@pytest.mark.parametrize(
    ("ms", "than", "wins"),
    [
        ([10, 10, 10, 10, 10], [12, 12, 12, 12, 12], True),
        ([10, 10, 10, 10, 10], [10.2, 10.2, 10.2, 10.2, 10.2], False),  # less than two runs of one module differ by
        ([10, 10, 10, 10, 30], [12, 12, 12, 12, 12], True),
        ([10, 10, 10, 30, 30], [12, 12, 12, 12, 12], False),  # slower twice
        ([10, 10, 20], [12, 12, 12], False),
        ([], [], False),
    ],
)
def test_what_is_faster(ms: list[float], than: list[float], wins: bool) -> None:
    assert is_faster(ms, than) is wins


# ---- the whole


def be_small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CAPACITY", 64), ("PROMPT", 64), ("TOKENS", 4), ("CONTEXT", 16), ("STEPS", 4)):
        monkeypatch.setattr(tune, name, value)
    monkeypatch.setattr(iree, "PHASE_FLAGS", {"decode": ("plain", "O3"), "prefill": ("packed", "packed-moved")})
    monkeypatch.setattr(tune, "Settings", functools.partial(Settings, capacity=QUICK_CAPACITY, quick=True))


@pytest.mark.nightly
def test_the_whole(checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One set of flags gives other tokens, one does not compile; the rest is timed, and what is kept conforms."""
    right = Judge.wrong

    def wrong(judge: Judge, candidate: Candidate) -> tuple[str, str]:
        if candidate.phase == "decode" and candidate.choice.decode.flags == "O3":
            return "wrong", "3 of 48 tokens"
        if candidate.phase == "prefill" and candidate.choice.prefill.flags == "packed-moved":
            return "failed", "iree-compile ended with signal SIGSEGV"
        return right(judge, candidate)

    monkeypatch.setattr(Judge, "wrong", wrong)
    be_small(monkeypatch)
    with alone():
        status = cli.invoke(["tune", "tiny-llama", "--precision", "f32", "--rounds", "3", "--threads", "2", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert status == 0
    (row,) = found["precisions"]
    by = {(r["phase"], r["layout"], r["build"]): r for r in row["candidates"]}
    assert [r["status"] for r in row["candidates"]].count("chosen") == 2
    assert {r["detail"] for r in row["candidates"] if r["status"] == "wrong"} >= {"3 of 48 tokens"}
    assert any(r["status"] == "failed" and "SIGSEGV" in r["detail"] for r in row["candidates"])
    assert all(not r["ms"] for r in row["candidates"] if r["status"] in ("wrong", "failed"))
    assert all(len(r["ms"]) == 3 for r in row["candidates"] if r["status"] in ("slower", "faster"))
    assert ("decode", "rows", "plain") in by
    assert Path(row["file"]) == tuned_entry(checkpoint, "f32").path
    assert str(tuned(checkpoint, "f32", 2).choice) == row["choice"]
    text = io.StringIO()
    show.print_tuned(found, Console(file=text, width=100))
    assert "3 of 48 tokens" in text.getvalue()
    assert "which conforms" in text.getvalue()


@pytest.mark.nightly
def test_the_whole_on_a_device(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """The emulated one, where what is submitted as graphs is given as faster; a run then takes it."""

    def times(judge: Judge, candidates: Sequence[Candidate]) -> tuple[list[list[float]], str]:
        return [[1.0 if c.choice.graphs else 2.0] * judge.rounds for c in candidates], ""

    monkeypatch.setattr(Judge, "times", times)
    be_small(monkeypatch)
    judged: list[Context] = []
    monkeypatch.setattr(tune, "run", lambda _, context: judged.append(context) or CONFORMS)
    command = ["tune", "tiny-llama", "--device", "emulated", "--precision", "f32", "--threads", "2", "--json"]
    with alone():
        assert cli.invoke(command) == 0
    (row,) = json.loads(capsys.readouterr().out)["precisions"]
    assert [(r["layout"], r["status"]) for r in row["candidates"] if r["phase"] == "decode"] == [
        ("rows on device", "right"),
        ("panels on device", "slower"),
        ("rows fused on device", "failed"),  # fuses nothing in this model
        ("rows on device as graphs", "chosen"),
        ("rows on device as graphs", "slower"),
    ]
    device = open_device("emulated")
    assert (judged[0].device, judged[0].names[0]) == (device, "iree-emulated")
    assert Path(row["file"]) == tuned_entry(checkpoint, "f32", device).path
    evidence = choices_of(Settings("tiny-llama"), checkpoint, on(device, threads=2))
    assert (str(evidence.choice), evidence.chosen) == (row["choice"], "tuned")
    assert evidence.choice.opened(device).graphs


def test_a_device_is_timed_as_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a stream or with graphs, as the emulated driver is asked for."""
    opened: list[Device] = []

    class Opened(Exception):
        pass

    def make(name: str, threads: int, device: Device) -> Any:
        opened.append(device)
        raise Opened

    monkeypatch.setattr(contenders, "make_backend", make)
    device = Device("emulated", target="sm_80")
    task = Task("tiny-llama", (4,), (), 2, 1, device)
    for graphs in (False, True):
        choice = dataclasses.replace(untuned(device=device), graphs=graphs)
        with pytest.raises(Opened):
            on_session(task, Spec("emitter", "", "f32", choice))
    assert [d.graphs for d in opened] == [False, True]


def _other_token(found: Outcome) -> None:
    for prompt in found.prompts.values():
        prompt.tokens[-1] += 1


def _other_slot(found: Outcome) -> None:
    id, prompt = next(iter(found.prompts.items()))
    worst = {**prompt.slots[0].worst, "k_cache.0": (99.0, 1, 1)}
    found.prompts[id] = dataclasses.replace(prompt, slots=(Slots(worst), *prompt.slots[1:]))


def test_what_a_candidate_gets_wrong_is_found(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever runs it: it is held to the truth's tokens and caches, and to its own second answer."""
    judge, candidate = _judge(checkpoint, monkeypatch), Candidate("decode", untuned())
    assert judge.wrong(candidate) == ("", "")
    right = tune.run_configuration

    def spoiled(spoil: Callable[[Outcome], None]) -> Callable[..., Outcome]:
        def run_configuration(*arguments: Any, **named: Any) -> Outcome:
            outcome = right(*arguments, **named)
            assert not outcome.streams, "all the candidates of a precision would take long"
            spoil(outcome)
            return outcome

        return run_configuration

    for spoil, words in (
        (_other_token, "tokens: "),
        (_other_slot, "caches: the first that is wrong is slot 1 of k_cache.0"),
    ):
        monkeypatch.setattr(tune, "run_configuration", spoiled(spoil))
        status, why = judge.wrong(candidate)
        assert status == "wrong"
        assert words in why
    monkeypatch.setattr(
        tune, "run_configuration", lambda *a, **n: dataclasses.replace(right(*a, **n), repeated=(False, 1e-9))
    )
    assert judge.wrong(candidate) == (
        "wrong",
        "up to 1e-09 apart repeats: a second call on equal inputs gives something else",
    )
    failed = Outcome(Configuration("emitter", "iree-cpu"), "failed", message="no such CPU")
    monkeypatch.setattr(tune, "run_configuration", lambda *_, **__: failed)
    assert judge.wrong(candidate) == ("failed", "no such CPU")


def _judge(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> Judge:
    found: list[Judge] = []

    def first(judge: Judge, *_: Any) -> None:
        found.append(judge)

    monkeypatch.setattr(tune, "_fastest", first)
    result = run_tune(Tuning("tiny-llama", ("f32",), ("host",), 2, 3), Progress())
    assert result["precisions"][0]["verdict"] == "no candidate gives the right tokens"
    assert result["precisions"][0]["file"] == ""
    return found[0]


def test_what_does_not_conform_is_not_kept(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    record = {"verdict": {"class": "compiler-fault"}, "passed": False}
    monkeypatch.setattr(tune, "_fastest", lambda *_: OTHER)
    monkeypatch.setattr(tune, "run", lambda settings, progress: record)
    found = run_tune(Tuning("tiny-llama", ("f32",), ("host",), 2, 3), Progress())
    assert found["precisions"][0]["verdict"] == "compiler-fault"
    assert not tuned_entry(checkpoint, "f32").path.exists()
    text = io.StringIO()
    show.print_tuned(found, Console(file=text, width=100))
    assert "nothing was kept" in text.getvalue()
    assert cli.invoke(["tune", "tiny-llama", "--precision", "f32"]) == 1


def test_a_bad_cpu_is_refused() -> None:
    with pytest.raises(InputError, match="--target-cpu"):
        run_tune(Tuning("tiny-llama", ("f32",), ("a b",), 2, 3), Progress())
    with pytest.raises(
        InputError, match=r"--target-cpu x86-64-v3: is of the processor; leave it out of --device cuda:0"
    ):
        run_tune(Tuning("tiny-llama", ("f32",), ("x86-64-v3",), 2, 3, GPU), Progress())
