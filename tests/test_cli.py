"""The command line: what it refuses, in one line and with exit status 2, and what it leaves behind: nothing."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from gguf_files import write_gguf
from shards import write_sharded
from tokenizer import add_words as add_tokenizer

from hloracle.backends import iree
from hloracle.cli import main as cli
from hloracle.cli import options
from hloracle.conformance.checks.check import Question
from hloracle.conformance.context import Context
from hloracle.conformance.runs.gate_zero import Gate
from hloracle.core import folder
from hloracle.core.abi import Abi
from hloracle.core.cache import SEAL, tell_of_damage
from hloracle.core.child import ChildDied, alone
from hloracle.emitters.model import emit
from hloracle.reference.fixtures import tiny
from hloracle.reference.fixtures.named import FIXTURES, resolve
from hloracle.reference.fixtures.tiny import TINY, write_tiny
from hloracle.reference.model.anchors import anchors
from hloracle.reference.model.encodings import PRECISIONS, Layout
from hloracle.reference.model.registry import from_hf, load_config
from hloracle.reference.model.weights import default_layout, fused

Refused = Callable[..., str]
HLORACLE = (sys.executable, "-m", "hloracle.cli.main")
CONFIG = from_hf(TINY["llama"])


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command line that must end with status 2 and one line, which is returned."""

    def run(*arguments: str | Path) -> str:
        status = cli.invoke([str(a) for a in arguments])
        shown = capfd.readouterr()
        assert status == 2, shown
        assert shown.out == ""
        assert shown.err.startswith("hloracle: ")
        assert shown.err.count("\n") == 1, shown.err
        assert shown.err.endswith("\n")
        assert "Traceback" not in shown.err
        assert "Error(" not in shown.err
        return shown.err

    return run


def nothing_at(folder: Path) -> bool:
    return not folder.exists() or not list(folder.iterdir())


def leftovers(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.name.startswith(".") and p.name != SEAL and p.suffix != ".lock"]


# ---- a model that cannot be used


def edited_config(**changes: Any) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        write_tiny(folder / "model")
        path = folder / "model" / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        return folder / "model"

    return build


def edited_weights(
    change: Callable[[dict[str, np.ndarray]], None], shards: int = 1, **options: Any
) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        write_sharded(folder / "model", shards, **options)
        path = sorted((folder / "model").glob("*.safetensors"))[0]
        weights = {name: array.copy() for name, array in safetensors.numpy.load_file(path).items()}
        change(weights)
        safetensors.numpy.save_file(weights, path, metadata={"format": "pt"})
        return folder / "model"

    return build


def with_file(name: str, content: bytes | None) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        path = write_tiny(folder / "model") / name
        path.unlink() if content is None else path.write_bytes(content)
        return folder / "model"

    return build


def cut(name: str, share: float) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        path = write_tiny(folder / "model") / name
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
        return folder / "model"

    return build


def cut_gguf(folder: Path) -> Path:
    path = folder / "model.gguf"
    write_gguf(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    return path


def set_value(name: str, value: float) -> Callable[[dict[str, np.ndarray]], None]:
    def change(weights: dict[str, np.ndarray]) -> None:
        weights[name].flat[7] = value

    return change


NORM = "model.layers.1.post_attention_layernorm.weight"
BAD_MODELS: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "no such model": (lambda folder: folder / "absent", ("absent", "no such model")),
    "empty directory": (lambda folder: folder, ("has no config.json",)),
    "config is not JSON": (with_file("config.json", b"{'a': 1}"), ("config.json", "is not JSON")),
    "config is not an object": (with_file("config.json", b"[]"), ("config.json", "not a JSON object")),
    "config is not text": (with_file("config.json", b"\xff\xfe"), ("config.json", "is not text")),
    "unknown model_type": (edited_config(model_type="mamba"), ("'mamba' is not supported", "llama")),
    "unknown key": (edited_config(sliding_window=512), ("unknown key 'sliding_window'",)),
    "no weights": (with_file("model.safetensors", None), ("has no model.safetensors",)),
    "weights are no safetensors": (with_file("model.safetensors", b"pickle"), ("model.safetensors", "damaged")),
    "missing weight": (edited_weights(lambda w: w.pop(NORM)), (f"missing {NORM}",)),
    "missing weight of a shard": (
        edited_weights(lambda w: w.pop("model.embed_tokens.weight"), shards=2),
        ("missing model.embed_tokens.weight",),
    ),
    "extra weight": (
        edited_weights(lambda w: w.update(more=np.zeros(3, np.float32))),
        ("extra more in model.safetensors",),
    ),
    "weight whose name clears the screen": (
        edited_weights(lambda w: w.update({"\x1b[2Jmore\u202e": np.zeros(3, np.float32)})),
        (r"extra \x1b[2Jmore\u202e in model.safetensors",),
    ),
    "config with a number of 5000 digits": (
        with_file("config.json", b'{"rms_norm_eps": 1%s}' % (b"0" * 5000)),
        ("holds a number of more than 40 digits",),
    ),
    "config that is deep": (with_file("config.json", b"[" * 100_000), ("is nested more than 100 deep",)),
    "too many layers": (edited_config(num_hidden_layers=10**5), ("key 'num_hidden_layers' is not at most 512",)),
    "misshapen weight": (
        edited_weights(lambda w: w.update({NORM: np.zeros(85, np.float32)})),
        (f"{NORM} in model.safetensors is [85], not [84]",),
    ),
    "weights cut short": (cut("model.safetensors", 0.6), ("model.safetensors", "damaged or cut short")),
    "weights cut in their header": (cut("model.safetensors", 0.001), ("model.safetensors", "damaged or cut short")),
    "NaN": (
        edited_weights(set_value(NORM, float("nan"))),
        (f"weight {NORM} has 1 values that are not finite", "model.safetensors"),
    ),
    "infinity": (
        edited_weights(set_value("lm_head.weight", float("inf"))),
        ("weight lm_head.weight has 1 values that are not finite",),
    ),
    "NaN in a shard": (
        edited_weights(set_value("model.embed_tokens.weight", float("nan")), shards=2, dtype="bfloat16"),
        ("weight model.embed_tokens.weight", "model-00001-of-00002.safetensors"),
    ),
    "GGUF cut short": (cut_gguf, ("model.gguf", "cut short")),
    "GGUF of nothing": (lambda folder: folder / "absent.gguf", ("absent.gguf", "cannot be read")),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_run_refuses_a_model(
    name: str, refused: Refused, tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is compiled or computed, and a second time as the first."""
    monkeypatch.setattr("hloracle.conformance.run.gates", lambda *a: pytest.fail("this is long work"))
    build, words = BAD_MODELS[name]
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    model = build(folder)
    for _ in range(2):
        line = refused("run", model, "--out", out)
        for word in words:
            assert word in line, line
        assert "; " in line, "and what to do"
        assert nothing_at(out)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("name", ["unknown key", "missing weight", "no such model"])
def test_the_other_commands_refuse_it_too(name: str, refused: Refused, tmp_path: Path) -> None:
    build, words = BAD_MODELS[name]
    model = build(tmp_path)
    graph, abi = write_graph(tmp_path)
    output = tmp_path / "new.mlir"
    commands: list[tuple[str | Path, ...]] = [
        ("generate", model, "-p", "Hello"),
        ("check", graph, "--abi", abi, "--model", model, "--out", tmp_path / "out"),
        ("bench", model),
    ]
    if name != "missing weight":
        commands.append(("emit", model, "--phase", "decode", "-o", output))
    for command in commands:
        assert words[0] in refused(*command)
    assert not output.exists()
    assert nothing_at(tmp_path / "out")


def test_a_weight_that_is_not_finite_is_found_by_generate(refused: Refused, tmp_path: Path) -> None:
    model = edited_weights(set_value(NORM, float("nan")))(tmp_path)
    add_tokenizer(model)
    assert f"weight {NORM} has 1 values" in refused("generate", model, "-p", "a b")


def test_models_that_can_be_named(refused: Refused, tmp_path: Path) -> None:
    line = refused("run", "smollm3", "--out", tmp_path)
    for name in FIXTURES:
        assert name in line


@pytest.mark.parametrize("model", ["", "x" * 300, "a/b\0c", "/root/\udcff", "a\nb"])
def test_names_that_are_no_names(model: str, refused: Refused, tmp_path: Path) -> None:
    refused("run", model, "--out", tmp_path / "out")
    assert nothing_at(tmp_path / "out")


# ---- flags and commands


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tokens", "0"), ("--tokens: is 0",)),
        (("--tokens", "-1"), ("--tokens: is -1",)),
        (("--tokens", "many"), ("--tokens", "'many' is not a valid integer")),
        (("--tokens", "1000"), ("--tokens: is 1000", "256 cache slots")),
        (("--capacity", "7"), ("--capacity: is 7", "32")),
        (("--capacity", "0"), ("--capacity: is 0",)),
        (("--capacity", "4096"), ("--capacity: is 4,096, and the model has 1,024 positions",)),
        (("--capacity", "64", "--tokens", "8"), ("97", "64 cache slots")),
        (("--threads", "0"), ("--threads",)),
        (("--threads", "1000000"), ("--threads", "is not in the range 1<=x<=1024")),
        (("--threads", "9" * 5000), ("Invalid value for '--threads'", "…")),
        (("--capacity", "1000000000", "--tokens", "1000000000"), ("--capacity: is more than 131,072",)),
        (("--rounds", "1000000"), ("--rounds: is 1000000", "at most 1000")),
        (("--timeout", "nan"), ("--timeout", "is no number")),
        (("--timeout", "inf"), ("--timeout", "is not in the range 0.0<x<=604800.0")),
        (("--timeout", "0"), ("--timeout", "is not in the range")),
        (("--timeout", "1e308"), ("--timeout", "is not in the range")),
        (("--device", "tpu"), ("--device 'tpu': is no device", "use cpu, cuda, cuda:1, vulkan or emulated")),
        (("--device", "cuda:one"), ("--device 'cuda:one': is no device",)),
        (("--device", "cpu:0"), ("--device 'cpu:0'", "there is one processor")),
        (("--device", "hip"), ("--device 'hip': is no device",)),
        (("--cuda-target", "sm_80"), ("--cuda-target sm_80: is of CUDA alone",)),
        (("--precision", "f8"), ("--precision", "'f8' is not one of 'f32', 'bf16', 'f16', 'int8', 'int4'")),
        (("--layout", "columns"), ("--layout", "'columns' is not one of 'panels', 'rows'")),
        (("--layout", "rows", "--fused"), ("--fused: fuses nothing", "held so; leave it out")),
        (("--colour",), ("No such option", "--colour")),
        (("--tokens",), ("--tokens", "requires an argument")),
        (("more",), ("unexpected extra argument",)),
    ],
)
def test_run_refuses_flags(
    arguments: tuple[str, ...], words: tuple[str, ...], refused: Refused, tmp_path: Path
) -> None:
    line = refused("run", "tiny-llama", "--out", tmp_path / "out", *arguments)
    for word in words:
        assert word in line
    assert nothing_at(tmp_path / "out")


@pytest.mark.parametrize("source", ["emitter", "reference"])
def test_taps(source: str, tmp_path: Path) -> None:
    """The values at anchors as further results, in the order of computation, beside what the graph returns anyway."""

    def results(*taps: str) -> list[str]:
        path = tmp_path / "graph.mlir"
        assert cli.invoke(["emit", "tiny-llama", "--phase", "decode", "--source", source, *taps, "-o", str(path)]) == 0
        abi = Abi.from_file(path.with_suffix(".abi.json"))
        assert [r.role for r in abi.results[3:]] == ["tap"] * (len(abi.results) - 3)
        return [r.name for r in abi.results]

    every = list(anchors(load_config(resolve("tiny-llama"))))
    own = results()
    assert len(own) == 3
    assert results("--taps") == results("--taps", "all") == [*own, *every]
    assert results("--taps", "norm, layers.1.mlp.*") == [*own, *(a for a in every if "s.1.mlp." in a or a == "norm")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("prove",), "No such command 'prove'"),
        (("--colour",), "No such option"),
        (("emit", "tiny-llama", "-o", "x.mlir"), "Missing option '--phase'"),
        (("emit", "tiny-llama", "--phase", "decode"), "Missing option '-o'"),
        (("emit", "tiny-llama", "--phase", "train", "-o", "x.mlir"), "'train' is not one of"),
        (("emit", "tiny-llama", "--phase", "prefill", "--bucket", "48", "-o", "x.mlir"), "--bucket: is 48"),
        (("emit", "tiny-llama", "--phase", "prefill", "--capacity", "32", "-o", "x.mlir"), "bucket 64 does not fit"),
        (("emit", "tiny-llama", "--phase", "decode", "--capacity", "0", "-o", "x.mlir"), "--capacity: is 0"),
        (
            ("emit", "tiny-llama", "--phase", "decode", "--capacity", "1" + "0" * 20, "-o", "x.mlir"),
            "is more than 131,072",
        ),
        (("emit", "tiny-llama", "--phase", "prefill", "--bucket", "1" + "0" * 20, "-o", "x.mlir"), "--bucket: is 1000"),
        (("generate", "tiny-llama", "-p", "x", "-n", "1" + "0" * 20), "-n: is more than 131,072"),
        (("abi", "x.mlir", "--model", "tiny-llama", "--tries", "10000000"), "is not in the range 1<=x<=1000000"),
        (("abi", "x.mlir", "--model", "tiny-llama", "--timeout", "nan"), "is no number"),
        (("suite", "llama", "--jobs", "100000"), "is not in the range 1<=x<=256"),
        (("bench", "tiny-llama", "--rounds", "100000"), "is not in the range 1<=x<=1000"),
        (("bench", "tiny-llama", "--length", "100000000"), "is not in the range 1<=x<=131072"),
        (("emit", "tiny-llama", "--phase", "decode", "-o", "."), "names no file"),
        (("emit", "tiny-llama", "--phase", "decode", "--precision", "int2", "-o", "x.mlir"), "'int2' is not one of"),
        (("emit", "tiny-llama", "--phase", "decode", "--layout", "x", "-o", "x.mlir"), "'x' is not one of"),
        (
            ("emit", "tiny-llama", "--phase", "decode", "--precision", "int4", "--source", "reference", "-o", "x.mlir"),
            "--precision: is int4; the reference's graphs take float32 weights",
        ),
        (
            ("emit", "tiny-llama", "--phase", "decode", "--fused", "--source", "reference", "-o", "x.mlir"),
            "--fused: is given; the reference's graphs take weights one by one",
        ),
        (
            ("emit", "tiny-phi3", "--phase", "decode", "--fused", "-o", "x.mlir"),
            "--fused: fuses nothing in this model",
        ),
        (("emit", "tiny-mamba", "--phase", "decode", "--precision", "int4", "-o", "x.mlir"), "no such model"),
        (
            ("emit", "tiny-llama", "--phase", "decode", "--taps", "norm,layers.0.act", "-o", "x.mlir"),
            "layers.0.mlp.act",
        ),
        (("generate", "tiny-llama"), "--prompt: is not given; give one prompt, or --prompts with a file of many"),
        (("generate", "tiny-llama", "-p", "x", "--precision", "f64"), "'f64' is not one of"),
        (("generate", "tiny-llama", "-p", "x", "--precision", "int4"), "has no tokenizer.json"),
        (("generate", "tiny-llama", "-p", "x", "-n", "0"), "-n: is 0"),
        (("generate", "tiny-llama", "-p", "x"), "has no tokenizer.json"),
        (("check", "--model", "tiny-llama"), "Missing argument 'GRAPH...'"),
        (("check", "x.mlir", "--model", "tiny-llama"), "x.mlir: no such file; name a StableHLO text file"),
        (("check", "x.mlir"), "model: is not given; name it with --model"),
        (("bench", "tiny-llama", "--rounds", "0"), "--rounds"),
        (("fetch",), "Missing argument"),
        (("fetch", "tiny-mamba"), "no such model"),
        (("fetch", "tiny-llama", "--precision", ""), "'' is not one of"),
        (("fetch", "tiny-mamba", "--precision", "int4"), "no such model"),
    ],
)
def test_commands_refuse(
    arguments: tuple[str, ...], words: str, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused(*arguments)
    assert not list(tmp_path.glob("*.mlir*"))


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["--help"]) == 0
    text = capsys.readouterr().out
    for command in cli.cli.commands:
        assert f"  {command} " in text
        assert cli.invoke([command, "--help"]) == 0
    assert cli.invoke(["--version"]) == 0
    assert cli.invoke([]) == 0
    assert cli.invoke(["models"]) == 0
    assert "tiny-llama" in capsys.readouterr().out


def test_unknown_command_in_a_process() -> None:
    done = subprocess.run([*HLORACLE, "nonsense"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hloracle: No such command 'nonsense'. (see hloracle --help)\n"


@pytest.mark.parametrize("command", [("models",), ("fetch", "tiny-llama")])
def test_a_reader_that_has_seen_enough(command: tuple[str, ...]) -> None:
    with subprocess.Popen([*HLORACLE, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # type: ignore[union-attr]
        assert process.stderr.read() == b""  # type: ignore[union-attr]
        assert process.wait() == 0


# ---- places that cannot be written


@pytest.mark.parametrize("place", ["a file", "inside a file", "/proc", "/dev/null/x"])
def test_out_that_cannot_be_written(place: str, refused: Refused, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    out = {"a file": file, "inside a file": file / "out", "/proc": Path("/proc/hloracle")}.get(place, Path(place))
    line = refused("run", "tiny-llama", "--out", out)
    assert out.name in line
    graph, abi = write_graph(tmp_path)
    refused("check", graph, "--abi", abi, "--model", "tiny-llama", "--out", out)
    assert file.read_text() == "mine"


@pytest.mark.parametrize("place", ["a folder", "inside a file", "/proc/x.mlir", "beside a folder"])
def test_graph_that_cannot_be_written(place: str, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder.mlir").mkdir()
    (tmp_path / "graph.abi.json").mkdir()
    output = {"a folder": tmp_path / "folder.mlir", "inside a file": tmp_path / "file" / "x.mlir",
              "beside a folder": tmp_path / "graph.mlir"}.get(place, Path(place))  # fmt: skip
    before = sorted(tmp_path.rglob("*"))
    assert "cannot be written" in refused("emit", "tiny-llama", "--phase", "decode", "-o", output)
    assert sorted(tmp_path.rglob("*")) == before


def test_cache_that_cannot_be_written(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("HLORACLE_CACHE", str(tmp_path / "file" / "cache"))
    line = refused("run", "tiny-llama", "--out", tmp_path / "out")
    assert "cannot be written" in line
    assert nothing_at(tmp_path / "out")


@pytest.mark.parametrize("what", ["cache", "model"])
def test_folders_whose_path_is_not_utf8(
    what: str, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors opens no file there, and a run ended with a verdict about nothing."""
    odd = tmp_path / os.fsdecode(b"a\xff")
    if what == "cache":
        monkeypatch.setenv("HLORACLE_CACHE", str(odd))
    model = write_tiny(odd) if what == "model" else "tiny-llama"
    line = refused("run", model, "--out", tmp_path / "out")
    assert r"a\udcff: has a path that is not UTF-8, and safetensors opens no such file; rename the folder" in line
    assert nothing_at(tmp_path / "out")


def test_cache_in_the_home_of_nobody(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLORACLE_CACHE", "~nosuchuser/x")
    for arguments in (("fetch", "tiny-llama"), ("run", "tiny-llama", "--out", str(tmp_path / "out"))):
        assert "HLORACLE_CACHE: is '~nosuchuser/x', and there is no such user" in refused(*arguments)
    assert nothing_at(tmp_path / "out")


def fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, every file that the store writes is on a device without space."""

    def full(path: Path, data: bytes) -> int:
        path.touch()
        with open("/dev/full", "wb") as device:
            return device.write(data)

    monkeypatch.setattr(Path, "write_bytes", full)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device without space to write to")
def test_full_disk(refused: Refused, tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny(tmp_path / "model")
    add_tokenizer(model)
    output = tmp_path / "graph.mlir"
    fill_the_disk(monkeypatch)
    for command in (
        ("emit", model, "--phase", "decode", "-o", output),
        ("generate", model, "-p", "a b"),
    ):
        assert "the disk is full; free some space" in refused(*command)
    assert not output.exists()
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_while_a_model_is_cached(
    code: int, refused: Refused, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(tiny, "write_tensors", full)
    assert "the disk is full" in refused("fetch", "tiny-llama")
    assert not list(empty_cache.glob("models/*[!k]")), "only the lock is left"
    monkeypatch.undo()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 KB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", folder], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_really_full(
    tiny_disk: Path, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLORACLE_CACHE", str(tiny_disk / "cache"))
    assert "the disk is full" in refused("run", "tiny-llama", "--out", tmp_path / "out")
    assert leftovers(tiny_disk) == []
    assert nothing_at(tmp_path / "out")


# ---- toolchains and processes that fail


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "iree-compile"
    path.write_text("#!/bin/sh\necho 'graph.mlir:9:1: error: no' >&2\necho 'more lines' >&2\nexit 1\n")
    path.chmod(0o755)
    monkeypatch.setattr(iree, "compiler_path", lambda: str(path))
    return path


def test_generate_with_a_compiler_that_fails(
    no_compiler: Path, refused: Refused, tmp_path: Path, empty_cache: Path
) -> None:
    model = write_tiny(tmp_path / "model")
    add_tokenizer(model)
    line = refused("generate", model, "-p", "a b")
    assert "compile failed: graph.mlir:9:1: error: no (graph kept at " in line
    kept = Path(line.split("graph kept at ")[1].rstrip(")\n"))
    assert kept.read_text().startswith("module @llama_")
    assert kept.is_relative_to(empty_cache)


def test_a_process_that_dies(refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: Any, **__: Any) -> None:
        raise ChildDied("_lower died (signal SIGKILL)")

    monkeypatch.setattr("hloracle.production.emit.run_in_child", dies)
    output = tmp_path / "graph.mlir"
    line = refused("emit", "tiny-llama", "--phase", "decode", "--source", "reference", "-o", output)
    assert line == "hloracle: _lower died (signal SIGKILL)\n"
    assert not output.exists()


def test_what_was_damaged_is_not_told_beside_why_a_command_could_not_run(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any, **__: Any) -> None:
        tell_of_damage("truth/one")
        raise ChildDied("_lower died (signal SIGKILL)")

    monkeypatch.setattr("hloracle.production.emit.run_in_child", dies)
    line = refused("emit", "tiny-llama", "--phase", "decode", "--source", "reference", "-o", tmp_path / "graph.mlir")
    assert line == "hloracle: _lower died (signal SIGKILL)\n"


def test_two_processes_that_fetch(empty_cache: Path) -> None:
    command = [*HLORACLE, "fetch", "tiny-llama"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [(p.communicate(timeout=60), p.returncode) for p in both]
    assert answers[0] == answers[1]
    (out, err), status = answers[0]
    assert (err, status) == ("", 0)
    assert (Path(out.strip()) / "model.safetensors").is_file()
    assert [p.name for p in empty_cache.glob("models/*") if p.suffix != ".lock"] == [Path(out.strip()).name]


# ---- check


def write_graph(folder: Path, phase: str = "decode", layout: Layout | None = None, **changes: Any) -> tuple[Path, Path]:
    graph = emit(CONFIG, phase, "logits", 128, 32 if phase == "prefill" else 0, layout)
    path, abi = folder / "graph.mlir", folder / "graph.abi.json"
    path.write_text(graph.text)
    abi.write_text(json.dumps({**json.loads(graph.abi.to_json()), **changes}))
    return path, abi


def edit_abi(path: Path, part: str, index: int, **changes: Any) -> None:
    raw = json.loads(path.read_text())
    raw[part][index].update(changes)
    path.write_text(json.dumps(raw))


def remove(path: Path) -> None:
    path.unlink()


# More of the file: tests/test_abi.py; of what it says of the model: tests/test_file_graphs.py.
BAD_ABIS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (remove, "no such file"),
    "a folder": (lambda p: (p.unlink(), p.mkdir()), "cannot be read (Is a directory)"),
    "not JSON": (lambda p: p.write_text("{"), "is not JSON (Expecting property name"),
    "another key": (lambda p: edit_abi(p, "arguments", 0, layout="row"), "arguments[0] has an unknown key 'layout'"),
    "position is a row": (lambda p: edit_abi(p, "arguments", -3, shape=[1]), "(position) is [1] i32, not of rank 0"),
    "for another model": (lambda p: edit_abi(p, "arguments", 0, shape=[257, 64]), "in the model it is [257, 84] f32"),
    "a weight of another name": (lambda p: edit_abi(p, "arguments", 0, name="wte"), "the model has no weight wte"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_ABIS)
def test_check_refuses_an_abi(name: str, refused: Refused, tmp_path: Path) -> None:
    graph, abi = write_graph(tmp_path)
    damage, words = BAD_ABIS[name]
    damage(abi)
    line = refused("check", graph, "--abi", abi, "--model", "tiny-llama", "--out", tmp_path / "out")
    assert words in line
    assert "graph.abi.json" in line
    assert nothing_at(tmp_path / "out")


# What a graph holds its weights in -> what `check` is told, and what it says.
UP = "model.layers.0.mlp.up_proj.weight"
OTHER_PRECISIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "int4": ((), "in the model it is in float32"),
    "int8": (("--precision", "f32"), "in the model it is in float32"),
    "int8 as int4": (("--precision", "int4"), "in the model it is in int4"),
    "int4 as int8": (("--precision", "int8"), "in the model it is in int8"),
    "int4 as bf16": (("--precision", "bf16"), "in the model it is in float32"),
}


@pytest.mark.parametrize("name", OTHER_PRECISIONS)
def test_check_refuses_a_graph_of_another_precision(name: str, refused: Refused, tmp_path: Path) -> None:
    options, words = OTHER_PRECISIONS[name]
    graph, abi = write_graph(tmp_path, layout=default_layout(CONFIG, name.split()[0]))
    line = refused("check", graph, "--abi", abi, "--model", "tiny-llama", "--out", tmp_path / "out", *options)
    assert words in line
    assert "; name the model that the graph was written for, and its --precision" in line
    assert "graph.abi.json" in line
    assert nothing_at(tmp_path / "out")


def test_check_refuses_narrow_floats_of_a_model_of_float32(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the weights would be rounded is seen when they are read: nobody's fault but the command line's."""

    def passed(context: Context, backend: str) -> Gate:
        return Gate(Question("gate-zero", "gate zero", backend=backend).judged(True, 1, 1))

    monkeypatch.setattr("hloracle.conformance.run.gate_zero", passed)
    graph, abi = write_graph(tmp_path, layout=default_layout(CONFIG, "bf16"))
    out = tmp_path / "out"
    options = ("--tokens", "1", "--backend", "xla-cpu", "--out", out)
    with alone():
        line = refused("check", graph, "--abi", abi, "--model", "tiny-llama", *options)
    assert "is not of precision bf16; name the model that it was made from, with --precision" in line
    assert nothing_at(out)


@pytest.mark.parametrize(
    ("part", "changes", "words"),
    [
        ("nibbles", {"shape": [112, 21, 4]}, "and in the model it is [112, 21, 2] ui8"),
        ("nibbles", {"dtype": "i8"}, "is [112, 21, 2] i8, and in the model it is [112, 21, 2] ui8"),
        ("scale", {"dtype": "f16"}, "is [112, 21] f16, and in the model it is [112, 21] f32"),
        ("scale", {"name": "model.norm.weight.int4.scale"}, "and in the model it is in float32"),
        ("minimum", {"name": "wte.int4.minimum"}, "the model has no weight wte;"),
    ],
)
def test_check_refuses_an_encoded_weight(
    part: str, changes: dict[str, Any], words: str, refused: Refused, tmp_path: Path
) -> None:
    graph, abi = write_graph(tmp_path, layout=default_layout(CONFIG, "int4"))
    raw = json.loads(abi.read_text())
    (entry,) = (a for a in raw["arguments"] if a["name"] == f"{UP}.int4.{part}")
    entry.update(changes)
    abi.write_text(json.dumps(raw))
    command = ("check", graph, "--abi", abi, "--model", "tiny-llama", "--precision", "int4", "--out", tmp_path / "out")
    assert words in refused(*command)


JOINED = "model.layers.0.mlp.gate_proj-up_proj.weight.int4.scale"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shape": [112, 21]}, "is [112, 21] f32, and in the model it is [224, 21] f32"),
        (
            {"name": JOINED.replace("gate_proj-up_proj", "up_proj-gate_proj")},
            "the model has no weight model.layers.0.mlp.up_proj-gate_proj.weight, the nearest is",
        ),
        ({"name": JOINED.replace("int4", "int8"), "encoding": "int8.scale"}, "and in the model it is in int4"),
    ],
)
def test_check_refuses_a_fused_weight(changes: dict[str, Any], words: str, refused: Refused, tmp_path: Path) -> None:
    graph, abi = write_graph(tmp_path, layout=fused(CONFIG, default_layout(CONFIG, "int4")))
    raw = json.loads(abi.read_text())
    (entry,) = (a for a in raw["arguments"] if a["name"] == JOINED)
    entry.update(changes)
    abi.write_text(json.dumps(raw))
    command = ("check", graph, "--abi", abi, "--model", "tiny-llama", "--precision", "int4", "--out", tmp_path / "out")
    assert words in refused(*command)


@pytest.mark.parametrize("name", ["panels", "bf16.panels"])
def test_check_refuses_panels_that_do_not_fit(name: str, refused: Refused, tmp_path: Path) -> None:
    """Of 257 rows."""
    graph, abi = write_graph(tmp_path)
    edit_abi(abi, "arguments", 0, name=f"model.embed_tokens.weight.{name}", encoding=name, shape=[17, 84, 16])
    line = refused("check", graph, "--abi", abi, "--model", "tiny-llama", "--out", tmp_path / "out")
    assert f"weight model.embed_tokens.weight.{name} is [17, 84, 16] f32, and in the model it is" in line
    assert "[257, 84], which" in line


def test_check_refuses_groups_in_panels_of_a_model_that_has_floats(refused: Refused, tmp_path: Path) -> None:
    graph, abi = write_graph(tmp_path)
    name = "int4.panels.scale"
    edit_abi(abi, "arguments", 0, name=f"model.embed_tokens.weight.{name}", encoding=name, shape=[17, 21, 16])
    line = refused("check", graph, "--abi", abi, "--model", "tiny-llama", "--out", tmp_path / "out")
    assert f"weight model.embed_tokens.weight.{name} is [17, 21, 16] f32, and in the model it is in float32" in line


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (remove, "no such file"),
        (lambda p: p.write_bytes(b"ML\xefR\x01StableHLO"), "is not text"),
        (lambda p: (p.unlink(), p.mkdir()), "cannot be read"),
    ],
)
def test_check_refuses_a_file(damage: Any, words: str, refused: Refused, tmp_path: Path) -> None:
    graph, abi = write_graph(tmp_path)
    damage(graph)
    line = refused("check", graph, "--abi", abi, "--model", "tiny-llama", "--out", tmp_path / "out")
    assert words in line
    assert "graph.mlir" in line


@pytest.mark.parametrize("tokens", ["0", "-1", "129"])
def test_check_refuses_tokens(tokens: str, refused: Refused, tmp_path: Path) -> None:
    graph, abi = write_graph(tmp_path)
    out = tmp_path / "out"
    line = refused("check", graph, "--abi", abi, "--model", "tiny-llama", "--tokens", tokens, "--out", out)
    assert f"--tokens: is {tokens}" in line


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "prompt: is empty"),
        ("a " * 1000, "prompt: has 1,048 tokens with those that are asked for, and the model has 1,024 positions"),
        (" ", "makes no token of ' '; give another prompt"),
    ],
)
def test_generate_refuses_a_prompt(
    prompt: str, words: str, refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hloracle.production.generate.make_backend", lambda *a: pytest.fail("this is long work"))
    model = write_tiny(tmp_path / "model")
    add_tokenizer(model)
    assert words in refused("generate", model, "-p", prompt)


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json"])
def test_generate_refuses_a_damaged_file(name: str, refused: Refused, tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "model")
    add_tokenizer(model)
    (model / name).write_text("{'a'")
    refused("generate", model, "-p", "a b")


def test_two_runs_may_prepare_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one has removed the file that both try to write."""
    monkeypatch.setattr(folder, "write_file", lambda path, data: None)
    folder.prepare_folder(tmp_path)


@pytest.mark.parametrize("command", [["run", "nope"], ["check", "none.mlir", "--model", "tiny-llama"]])
def test_no_earlier_report_stays_where_a_run_cannot_start(command: list[str], refused: Refused, tmp_path: Path) -> None:
    """It would be taken for that of this run."""
    (tmp_path / "reproducer").mkdir()
    for name in (*folder.REPORTS, "reproducer/subgraph.mlir", "notes.txt"):
        (tmp_path / name).write_text("of an earlier run")
    refused(*command, "--out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_precisions_are_those_of_the_encodings() -> None:
    assert options.PRECISIONS == PRECISIONS
