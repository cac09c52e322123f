"""A command line as a backend: IREE's own tools, tools that do something wrong, and files that cannot be used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_worker import A, B

import hloracle
from hloracle.backends import named
from hloracle.backends.command import CommandLine
from hloracle.backends.command_file import read_commands
from hloracle.backends.guarded import MEMORY_VARIABLE
from hloracle.conformance.context import Context
from hloracle.conformance.runs.gate_zero import gate_zero, sum_graph
from hloracle.core.abi import Abi, Tensor
from hloracle.core.errors import InputError, OutOfMemory, ToolchainError
from hloracle.core.scratch import PREFIX, Scratch
from hloracle.emitters.builder import Builder, TensorType

IREE = Path(__file__).parents[1] / "examples" / "command" / "iree.toml"
# A tool in NumPy: `tool.py compile GRAPH PROGRAM` and `tool.py run WHAT PROGRAM --in FILE… --out FILE…`.
TOOL = """
import os, shutil, signal, sys
import numpy as np
what, *words = sys.argv[1:]
if what == "compile":
    shutil.copy(*words)
    sys.exit()
inputs = [words[i + 1] for i, word in enumerate(words) if word == "--in"]
(output,) = [words[i + 1] for i, word in enumerate(words) if word == "--out"]
found = sum(np.load(name) for name in inputs)
if what == "leaves":
    print("warming up\\nacme: error: no licence\\nbye", file=sys.stderr)
    sys.exit(3)
if what == "crashes":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "eats":
    found = [b"x" * 2**24 for _ in range(10**6)]
if what == "nothing":
    sys.exit()
if what == "pipe":
    os.mkfifo(output)
    sys.exit()
if what == "text":
    open(output, "w").write("11 22 33 44")
    sys.exit()
np.save(output, {"shape": found[None], "dtype": found.astype("f8"), "pickle": np.array([{}])}.get(what, found))
"""


@pytest.fixture(autouse=True)
def tools_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """IREE's are beside Python."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)


COMPILE = ["{python}", "tool.py", "compile", "{graph}", "{program}"]


def described(folder: Path, what: str = "adds", compile: list[str] = COMPILE) -> Path:
    """The file that describes the tool, which stands beside it."""
    (folder / "tool.py").write_text(TOOL)
    run = ["{python}", "tool.py", what, "{program}", ["--in", "{input}"], ["--out", "{output}"]]
    path = folder / "acme.toml"
    text = f'name = "acme"\ncompile = {json.dumps(compile)}\nrun = {json.dumps(run)}\n'
    path.write_text(text.replace("{python}", sys.executable))
    return path


def opened(path: Path) -> CommandLine:
    return CommandLine(read_commands(path))


def added(backend: CommandLine) -> list[float]:
    (found,) = backend.load(sum_graph())([backend.keep(A), backend.upload(B)])
    values: list[float] = backend.download(found).tolist()
    return values


# ---- tools that behave


def test_irees_own_tools_pass_gate_zero() -> None:
    (choice,) = named.chosen([f"command:{IREE}"])
    assert (choice.name, choice.family, choice.identity) == ("iree-tools", "iree", None)
    assert gate_zero(Context(backends=(choice,)), "iree-tools").check.status == "passed"


@pytest.mark.nightly
def test_irees_own_tools_run_a_model() -> None:
    record = hloracle.run("tiny-llama", backends=["xla-cpu", f"command:{IREE}"], tokens=3, capacity=64, quick=True)
    assert record.verdict.class_ == "conforms"
    assert {c["backend"] for c in record.data["configurations"]} == {"xla-cpu", "iree-tools"}


def test_words_are_repeated_in_groups_and_files_are_removed(tmp_path: Path) -> None:
    backend = opened(described(tmp_path))
    assert added(backend) == [11, 22, 33, 44]
    call, kept = backend.load(sum_graph()), backend.keep(A)
    for _ in range(2):
        (found,) = call([kept, kept])
        assert backend.download(found).tolist() == [2, 4, 6, 8]
        del found
    folder = backend._scratch.folder
    assert [path.suffix for path in sorted(folder.iterdir())].count(".npy") == 1, "what is kept"
    del backend, call, kept
    assert not folder.exists()


def test_an_older_process_that_was_killed_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    script = "import os, signal, sys, tempfile; tempfile.tempdir = sys.argv[1]; from hloracle.core.scratch import Scratch; kept = Scratch(); os.kill(os.getpid(), signal.SIGKILL)"
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert len([*tmp_path.glob(f"{PREFIX}*")]) == 1
    first, second = Scratch(), Scratch()
    assert {first.folder, second.folder} == {*tmp_path.glob(f"{PREFIX}*")}


# ---- tools that do not


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("leaves", f"acme: {sys.executable} ended with exit status 3: acme: error: no licence"),
        ("crashes", f"acme: {sys.executable} ended with signal SIGKILL"),
        ("nothing", "acme wrote no file of the result sum"),
        ("pipe", "acme wrote no file of the result sum"),
        ("text", "acme wrote no .npy file of the result sum ("),
        ("pickle", "acme wrote no .npy file of the result sum ("),
        ("shape", "acme gave sum as [1, 4] float32, and it is [4] f32"),
        ("dtype", "acme gave sum as [4] float64, and it is [4] f32"),
    ],
)
def test_what_a_tool_does_wrong_is_an_error_in_one_line(what: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError) as raised:
        added(opened(described(tmp_path, what)))
    assert raised.value.stage == "run"
    assert raised.value.message.startswith(words)
    assert "\n" not in raised.value.message


def test_a_tool_that_hangs_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "acme.toml"
    path.write_text('name = "acme"\ntimeout = 0.1\nrun = ["sh", "-c", "sleep 999", "{graph}", "{input}", "{output}"]')
    with pytest.raises(ToolchainError, match=r"acme: sh took more than 0\.1 s") as raised:
        added(opened(path))
    assert raised.value.stage == "run"


def test_a_tool_that_takes_too_much_memory_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, "5e8")
    with pytest.raises(OutOfMemory, match="acme is out of memory"):
        added(opened(described(tmp_path, "eats")))


def test_a_compiler_that_writes_nothing(tmp_path: Path) -> None:
    path = described(tmp_path, compile=["true", "{graph}", "{program}"])
    with pytest.raises(ToolchainError, match="acme wrote no program") as raised:
        opened(path).load(sum_graph())
    assert raised.value.stage == "compile"


def test_bfloat16_is_not_asked_for(tmp_path: Path) -> None:
    b, type = Builder(), TensorType((4,), "bf16")
    value = b.argument(type)
    graph = b.graph("x", Abi("x", (Tensor("weight", "a", (4,), "bf16"),), (Tensor("tap", "b", (4,), "bf16"),)), [value])
    with pytest.raises(ToolchainError, match=r"acme takes \.npy files, and these have no bf16"):
        opened(described(tmp_path)).load(graph)
    import ml_dtypes

    with pytest.raises(ToolchainError, match=r"acme takes \.npy files, and these have no bf16"):
        opened(described(tmp_path)).keep(np.zeros(4, ml_dtypes.bfloat16))


# ---- files that cannot be used

RUN = 'run = ["true", "{graph}", "{input}", "{output}"]'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "is not TOML ("),
        ("", "is empty"),
        (f'name = "a"\nrunn = 1\n{RUN}', "has the key 'runn', which means nothing; keys are name, family, timeout, compile"),
        (RUN, "has no name; give a string as name"),
        (f"name = 3\n{RUN}", "has the name 3; give a string as name"),
        (f'name = "a/b"\n{RUN}', "has a slash in its name 'a/b'"),
        (f'name = "a"\nfamily = ""\n{RUN}', "has the family ''; give a string as family"),
        (f'name = "a"\ntimeout = 0\n{RUN}', "has a timeout of 0; give seconds, a number above 0"),
        (f'name = "a"\ntimeout = true\n{RUN}', "has a timeout of true"),
        ('name = "a"', "has no list of words as run"),
        ('name = "a"\nrun = "true {graph}"', "has no list of words as run"),
        ('name = "a"\nrun = ["true", 3]', "has 3 in run, which is no word"),
        (f'name = "a"\ncompile = []\n{RUN}', "has no list of words as compile"),
        (f'name = "a"\ncompile = ["true", "{{input}}"]\n{RUN}', "has {input} in compile, which means nothing; there are {graph}"),
        ('name = "a"\nrun = ["true", "{graph}", "{weights}"]', "has {weights} in run, which means nothing; there are {graph}"),
        ('name = "a"\nrun = ["true", "{graph}", "{input}"]', "run has no {output}"),
        (f'name = "a"\ncompile = ["true", "{{graph}}"]\n{RUN}', "run has no {program}"),
        ('name = "a"\nrun = ["no-such-tool", "{graph}"]', "names 'no-such-tool' in run, which is no program here"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "acme.toml"
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        named.chosen([f"command:{path}"])
    assert str(raised.value).startswith(f"{path}: {words}")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        named.chosen([f"command:{tmp_path / 'none.toml'}"])
