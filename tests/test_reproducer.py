"""What is written to show a fault shows it, with the tools it names, in the folder that it is in; and a right one passes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from models import interpreter, model

from hloracle.backends.iree import compiler_path
from hloracle.conformance.verdict import reproducer as module
from hloracle.conformance.verdict.reproducer import ON_IREE, ON_XLA, Reproducer, Way, write_reproducer
from hloracle.core.abi import Graph
from hloracle.core.errors import InputError
from hloracle.localize.anatomy import Anatomy, Step
from hloracle.localize.operations import Found
from hloracle.localize.workbench import Workbench

Wrong = Callable[[np.ndarray], np.ndarray]
ON = pytest.mark.parametrize("way", [ON_IREE, ON_XLA], ids=["iree", "xla"])


@pytest.fixture(scope="module", autouse=True)
def _cache(cache: Path) -> None:
    """The models are in the session's cache."""


def anatomy(phase: str = "decode") -> Anatomy:
    return model("plain").anatomy("emitter", phase)


def step(anchor: str, name: str, phase: str = "decode") -> Step:
    here = anatomy(phase)
    return next(s for s in here.steps(here.subgraph(anchor)) if s.name == f"stablehlo.{name}")


def value(name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Positive, so that it has a root."""
    rng = np.random.default_rng([ord(c) for c in name])
    if dtype == "i32":
        return np.array(rng.integers(0, 5, shape), np.int32)
    if dtype == "i1":
        return np.array(rng.random(shape) < 0.5)
    return np.array(rng.uniform(1, 2, shape), np.float32)


def found(step: Step, graph: Graph | None = None, wrong: Wrong | None = None, result: int = 0) -> Found:
    """A finding of which the expected result is right, or `wrong` is done to it."""
    graph = graph or step.graph
    inputs = {a.name: value(a.name, a.shape, a.dtype) for a in graph.abi.arguments}
    right = Workbench(interpreter(), inputs.__getitem__, frozenset()).run(graph, inputs.__getitem__)[result]
    expected = wrong(right.copy()) if wrong else right
    return Found(step, graph, inputs, expected, right, "it was made so", 1e-4, result)


def by_hand(folder: Path, found: Reproducer) -> tuple[int, str]:
    """Exit status and output of the command, as a reader runs it: in the folder, with the tools on the PATH."""
    path = f"{Path(sys.executable).parent}:{Path(compiler_path()).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        found.command, shell=True, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def one_off(expected: np.ndarray) -> np.ndarray:
    expected[(-1,) * expected.ndim] += 1
    return expected


# ---- what it does

OPERATIONS = {
    "rsqrt": ("norm", "rsqrt"),
    # A scalar stays one: the tools would refuse a vector of one element in its place.
    "scalars": ("k_cache.0", "dynamic_update_slice"),
    "a row by its index": ("embed_tokens", "dynamic_slice"),
    "booleans in, -inf out": ("layers.0.self_attn.scores", "select"),
    "a product": ("layers.1.mlp.down_proj", "dot_general"),
}


CASES = [pytest.param(o, ON_IREE, id=f"{o}-iree") for o in OPERATIONS]
CASES += [pytest.param(o, ON_XLA, id=f"{o}-xla") for o in ("scalars", "booleans in, -inf out")]


@pytest.mark.parametrize(("operation", "way"), CASES)
def test_a_fault_shows(operation: str, way: Way, tmp_path: Path) -> None:
    folder = tmp_path / "reproducer"
    shown = write_reproducer(folder, found(step(*OPERATIONS[operation]), wrong=one_off), way, "an anchor")
    assert shown.shown, shown.output
    assert "[FAILED]" in shown.output
    assert str(tmp_path) not in shown.output
    if operation == "scalars" and way is ON_IREE:  # once is enough
        status, output = by_hand(folder, shown)
        assert status != 0
        assert "[FAILED]" in output


@pytest.mark.parametrize(("operation", "way"), CASES)
def test_what_is_right_passes(operation: str, way: Way, tmp_path: Path) -> None:
    folder = tmp_path / "reproducer"
    shown = write_reproducer(folder, found(step(*OPERATIONS[operation])), way, "an anchor")
    assert not shown.shown
    assert "[SUCCESS]" in shown.output, shown.output
    if operation == "scalars" and way is ON_IREE:
        assert by_hand(folder, shown)[0] == 0


@ON
def test_booleans(way: Way, tmp_path: Path) -> None:
    for wrong in (None, np.logical_not):
        what = found(step("layers.0.self_attn.scores", "compare"), wrong=wrong)
        shown = write_reproducer(tmp_path / "r", what, way, "a")
        assert shown.shown == (wrong is not None), shown.output
        assert ("[FAILED]" if wrong else "[SUCCESS]") in shown.output


def token_off(expected: np.ndarray) -> np.ndarray:
    return expected + 1


def test_a_token(tmp_path: Path) -> None:
    """An integer: no tolerance makes one token another."""
    here = model("plain").anatomy("emitter", "decode", "token")
    piece = here.subgraph("token")
    for wrong in (None, token_off):
        what = replace(found(here.steps(piece)[-1], piece.graph, wrong), tolerance=0.0)
        shown = write_reproducer(tmp_path / "r", what, ON_IREE, "token")
        assert shown.shown == (wrong is not None), shown.output
        assert ("[FAILED]" if wrong else "[SUCCESS]") in shown.output


@ON
def test_a_result_that_is_no_number(way: Way, tmp_path: Path) -> None:
    """It is equal to no number."""
    right = found(step("norm", "rsqrt"))
    inputs = {name: -v for name, v in right.inputs.items()}
    wrong = replace(right, inputs=inputs, got=np.full_like(right.got, np.nan))
    shown = write_reproducer(tmp_path / "r", wrong, way, "a")
    assert shown.shown, shown.output
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == sorted(shown.files)
    if way is ON_IREE:
        mended = write_reproducer(tmp_path / "r", replace(wrong, inputs=right.inputs), way, "a")
        assert not mended.shown
        assert "[SUCCESS]" in mended.output


@ON
def test_one_of_several_results_is_compared(way: Way, tmp_path: Path) -> None:
    """A cache's piece also has the whole cache."""
    here = anatomy()
    piece = here.subgraph("k_cache.0")
    for wrong in (None, one_off) if way is ON_IREE else (one_off,):
        what = found(here.steps(piece)[-1], piece.graph, wrong, 1)
        shown = write_reproducer(tmp_path / "r", what, way, "k_cache.0")
        assert shown.shown == (wrong is not None), shown.output
        assert ("[FAILED]" if wrong else "[SUCCESS]") in shown.output


@ON
def test_what_does_not_compile(way: Way, tmp_path: Path) -> None:
    """There is nothing to compare: that it compiles is what is expected."""
    right = replace(found(step("norm", "rsqrt")), inputs={}, expected=None, got=np.zeros(0))
    compiles = write_reproducer(tmp_path / "r", right, way, "norm")
    assert not compiles.shown, compiles.output
    text = right.graph.text.replace(
        "-> tensor<1xf32> {", "-> tensor<1xf32> {\n  %x = stablehlo.custom_call @no() : () -> tensor<1xf32>"
    )
    assert text != right.graph.text
    refused = write_reproducer(
        tmp_path / "r",
        replace(right, graph=replace(right.graph, text=text.replace("return %0", "return %x"))),
        way,
        "norm",
    )
    assert refused.shown, refused.output
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == sorted(refused.files)


def test_within_the_tolerance(tmp_path: Path) -> None:
    what = found(step("norm", "rsqrt"), wrong=lambda e: e + np.float32(1e-3))
    assert write_reproducer(tmp_path / "r", what, ON_IREE, "a").shown
    assert not write_reproducer(tmp_path / "r", replace(what, tolerance=2e-3), ON_IREE, "a").shown


# ---- what is written


@pytest.fixture
def not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled: what is written does not depend on what it does."""
    monkeypatch.setattr(module, "_run", lambda work, command, python: (1, "[FAILED]"))


@ON
@pytest.mark.usefixtures("not_run")
def test_the_files(way: Way, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "reproducer"
    what = found(step("layers.0.self_attn.scores", "select"))
    shown = write_reproducer(folder, what, way, "layers.0.self_attn.scores")
    assert (shown.folder, shown.shown) == ("reproducer", True)
    assert sorted(shown.files) == sorted(p.name for p in folder.iterdir()), "all, and nothing else"
    assert list(folder.parent.iterdir()) == [folder], "nothing is left beside it"
    graph = (folder / "subgraph.mlir").read_text()
    assert graph.startswith(
        "// stablehlo.select in layers.0.self_attn.scores: it was made so\n// %l0_self_attn_scores.sel ="
    )
    assert graph.endswith(what.graph.text)
    order = [f for f in shown.files if f[0].isdigit()]
    for file, (name, value) in zip(order, what.inputs.items(), strict=True):
        saved = np.load(folder / file)
        np.testing.assert_array_equal(saved, value)
        assert (saved.shape, saved.dtype) == (value.shape, value.dtype), name
    np.testing.assert_array_equal(np.load(folder / "expected.npy"), what.expected)
    assert [shown.command.index(f) for f in order] == sorted(shown.command.index(f) for f in order)
    assert all(f in shown.command for f in (*order, "subgraph.mlir", "expected.npy"))
    assert shown.command in (folder / "reproduce.sh").read_text()
    assert "--expected" not in shown.command, "a flag that a release does not know would look like the fault"
    assert oct(folder.stat().st_mode & 0o777) == oct(0o777 & ~_umask()), "as readable as any other folder"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.usefixtures("not_run")
def test_shapes_and_layouts_are_kept(tmp_path: Path) -> None:
    what = found(step("k_cache.0", "dynamic_update_slice"))
    strided = {n: np.asfortranarray(v) if v.ndim else v for n, v in what.inputs.items()}
    write_reproducer(tmp_path / "r", replace(what, inputs=strided, expected=what.got[..., ::-1]), ON_IREE, "a")
    for file in (tmp_path / "r").glob("*.npy"):
        header = np.load(file)
        assert header.flags.c_contiguous, "the tools read files in this order only"
    assert sorted(np.load(f).ndim for f in (tmp_path / "r").glob("[0-9]*.npy")) == [0, 0, 4, 4]
    np.testing.assert_array_equal(np.load(tmp_path / "r" / "expected.npy"), what.got[..., ::-1])


AWKWARD = ["k_cache.3+", "model.layers.0.mlp.up_proj.weight", "a b", "../../etc", "ü'\"$(x)", "-rf", "", "0"]


def test_awkward_names(tmp_path: Path) -> None:
    """A file's name is an argument's, as far as every shell and file system takes it."""
    operand = value("x", (3,), "f32")
    lines = [f"%{i}: tensor<3xf32>" for i in range(len(AWKWARD))]
    text = f"func.func @main({', '.join(lines)}) -> tensor<3xf32> {{\n  return %0 : tensor<3xf32>\n}}"
    what = found(step("norm", "rsqrt"))
    what = replace(what, graph=replace(what.graph, text=text), inputs=dict.fromkeys(AWKWARD, operand), expected=operand)
    shown = write_reproducer(tmp_path / "a folder" / "with 'quotes'", what, ON_IREE, "layers.0\n+ more")
    files = [f for f in shown.files if f[0].isdigit()]
    assert len(set(files)) == len(AWKWARD)
    assert all(set(f) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") for f in files)
    assert "[SUCCESS]" in shown.output, shown.output
    assert sorted(p.name for p in (tmp_path / "a folder" / "with 'quotes'").iterdir()) == sorted(shown.files)


@pytest.mark.usefixtures("not_run")
def test_a_title_of_one_line_each(tmp_path: Path) -> None:
    """What a compiler said may have many; the rest would not be a comment any more."""
    what = replace(found(step("norm", "rsqrt")), why="two\nlines")
    write_reproducer(tmp_path / "r", what, ON_IREE, "norm\nmodule")
    text = (tmp_path / "r" / "subgraph.mlir").read_text()
    head = text[: text.index(what.graph.text)]
    assert all(line.startswith("//") for line in head.splitlines())


@pytest.mark.usefixtures("not_run")
def test_an_older_one_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "reproducer"
    folder.mkdir()
    for name in ("subgraph.mlir", "9-old.npy", "subgraph.vmfb"):
        (folder / name).write_text("old")
    shown = write_reproducer(folder, found(step("norm", "rsqrt")), ON_IREE, "norm")
    assert sorted(p.name for p in folder.iterdir()) == sorted(shown.files)


def test_one_that_cannot_be_written_leaves_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(work: Path, command: str, python: Path) -> tuple[int, str]:
        raise RuntimeError

    monkeypatch.setattr(module, "_run", fails)
    folder = tmp_path / "reproducer"
    folder.mkdir()
    (folder / "subgraph.mlir").write_text("old")
    with pytest.raises(RuntimeError):
        write_reproducer(folder, found(step("norm", "rsqrt")), ON_IREE, "norm")
    assert [p.read_text() for p in folder.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_of_the_user_s_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not a reproducer that hloracle wrote"):
        write_reproducer(tmp_path / "r", found(step("norm", "rsqrt")), ON_IREE, "norm")
    assert [p.name for p in (tmp_path / "r").iterdir()] == ["notes.txt"]


# ---- tools that do not answer


@ON
def test_a_graph_that_does_not_compile_shows_nothing_by_itself(way: Way, tmp_path: Path) -> None:
    what = found(step("norm", "rsqrt"))
    shown = write_reproducer(
        tmp_path / "r", replace(what, graph=replace(what.graph, text="module { nonsense }")), way, "norm"
    )
    assert not shown.shown
    assert shown.output
    assert str(tmp_path) not in shown.output
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == sorted(shown.files)


def test_a_command_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of it does not name a folder of this machine."""
    monkeypatch.setattr(module, "RUN_SECONDS", 0.01)
    shown = write_reproducer(tmp_path / "r", found(step("norm", "rsqrt")), ON_IREE, "norm")
    assert not shown.shown
    assert "took more than" in shown.output
    assert str(Path(sys.executable).parent) not in shown.output
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == sorted(shown.files)


def test_what_takes_too_long_ends_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUN_SECONDS", 0.1)
    status, said = module._run(tmp_path, "sh -c 'sleep 0.5; touch late' && true", tmp_path)
    assert (status, said) == (None, "it took more than 0.1 s")
    time.sleep(0.8)
    assert not (tmp_path / "late").exists()


def test_long_output_is_cut_and_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "x" * 9000 + "\n" + "line\n" * 500 + "[FAILED] result[0]\n"
    monkeypatch.setattr(module, "_in_session", lambda *_: (1, said))
    shown = write_reproducer(tmp_path / "r", found(step("norm", "rsqrt")), ON_IREE, "norm")
    assert shown.shown
    assert len(shown.output) < 30_000
