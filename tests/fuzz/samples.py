"""Files that are right, made by the project's own writers and by the helpers of the tests, with the command that reads them.

Each function runs in a process of its own, once: it may import JAX or torch, and may leave threads.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fuzz.case import Case

TESTS = Path(__file__).parents[1]
SMALL: dict[str, Any] = {
    "num_hidden_layers": 1, "hidden_size": 12, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
    "intermediate_size": 20, "vocab_size": 29,
}  # fmt: skip
CAPACITY = "8"
REPLAY = ("--backend", "xla-cpu")


def made(make: Callable[[Path], object], prefix: str = "") -> dict[str, bytes]:
    """The files that a function writes into a folder."""
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {prefix + str(path.relative_to(folder)): path.read_bytes() for path in paths}


def model(family: str = "llama", **overrides: Any) -> dict[str, bytes]:
    """A small checkpoint, in the folder `model`."""
    from hloracle.reference.fixtures.tiny import write_tiny

    return made(lambda folder: write_tiny(folder, family, **overrides), "model/")


def _small() -> dict[str, bytes]:
    return model(**SMALL)


def _emitted(files: Mapping[str, bytes], *options: str) -> dict[str, bytes]:
    """A decode graph of the model among these files, with its ABI."""
    from hloracle.cli.main import invoke

    def emit(folder: Path) -> None:
        Case(files, ()).write(folder)
        line = [
            "emit",
            str(folder / "model"),
            "--phase",
            "decode",
            "--capacity",
            CAPACITY,
            "-o",
            str(folder / "decode.mlir"),
        ]
        with contextlib.redirect_stdout(io.StringIO()):
            assert invoke([*line, *options]) == 0

    return {name: data for name, data in made(emit).items() if name.startswith("decode")}


def configs() -> list[Case]:
    """A config.json of each of some families, of which only the config is read."""
    families = (
        "llama",
        "gemma2",
        "gemma3_text",
        "qwen2_moe",
        "deepseek_v3",
        "gpt_oss",
        "phi3",
        "stablelm",
        "mixtral",
        "qwen3",
    )
    line = ("emit", "model", "--phase", "decode", "--capacity", CAPACITY, "-o", "out.mlir")
    return [Case(model(family), line) for family in families]


def weights() -> list[Case]:
    """A checkpoint whose numbers are all read before a graph is judged."""
    files = _small()
    return [Case(files | _emitted(files), ("check", "decode.mlir", "--model", "model", "--tokens", "4"))]


def sharded() -> list[Case]:
    """A checkpoint in two files with an index."""
    from shards import write_sharded

    files = made(lambda folder: write_sharded(folder, 2, "llama", **SMALL), "model/")
    return [Case(files | _emitted(_small()), ("check", "decode.mlir", "--model", "model", "--tokens", "4"))]


def own_graphs() -> list[Case]:
    """A graph of the contract, with its ABI beside it."""
    return weights()


def _foreign() -> tuple[dict[str, bytes], dict[str, bytes], str]:
    import jax
    from foreign_graph import ABI, text

    from hloracle.reference.model.checkpoint import open_checkpoint

    jax.config.update("jax_traceback_in_locations_limit", 0)  # an input is the same wherever this file lies
    files = model(**{**SMALL, "num_hidden_layers": 2})
    with tempfile.TemporaryDirectory() as folder:
        Case(files, ()).write(Path(folder))
        graph = text(open_checkpoint(Path(folder) / "model").config, 1, int(CAPACITY))
    return files, {"abi.toml": ABI.replace('file = "decode*"\n', "").encode()}, graph


CHECK_FOREIGN = ("check", "step.mlir", "--abi", "abi.toml", "--model", "model", "--tokens", "4")


def foreign_graphs() -> list[Case]:
    """A graph of another emitter, with the ABI file of it."""
    files, abi, graph = _foreign()
    return [Case({**files, **abi, "step.mlir": graph.encode()}, CHECK_FOREIGN)]


def bytecode() -> list[Case]:
    """The same as MLIR's bytecode, as a portable artifact, and as an archive of jax.export."""
    import jax
    import jax.numpy as jnp
    from jax import export
    from jax._src.interpreters import mlir as jax_mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    files, abi, graph = _foreign()
    with jax_mlir.make_ir_context():
        module = ir.Module.parse(graph)
        plain = io.BytesIO()
        module.operation.write_bytecode(plain)
        portable = stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version())
    exported = export.export(jax.jit(lambda x: x + 1))(jnp.zeros(3, jnp.float32)).serialize()
    forms = {"plain": plain.getvalue(), "portable": bytes(portable)}
    cases = [Case({**files, **abi, "step.mlir": data}, CHECK_FOREIGN) for data in forms.values()]
    replayed = {**forms, "exported": bytes(exported)}
    return cases + [Case({"step.mlir": data}, ("replay", "step.mlir", *REPLAY)) for data in replayed.values()]


def projects() -> list[Case]:
    """A project's file that has each of the rules."""
    files = _small()
    text = """\
model = "model"
abi = "decode.abi.json"

[invariants]
operations.forbidden = ["rng", "sort"]
custom_calls = []
dtypes = ["f32", "i32", "i1", "i64"]
largest_constant = "S * D"
tables = "rope"

[invariants.decode]
aliasing = { k_cache = "k_cache", v_cache = "v_cache" }
counts.dot_general = "9 * L + 1"
counts.total = "<= 120 * num_hidden_layers + 60"
counts.kinds = "<= 22"
"""
    files |= {**_emitted(files), "hloracle.toml": text.encode()}
    return [Case(files, ("check", "decode.mlir", "--tokens", "4"))]


def records() -> list[Case]:
    """Records of runs, which several commands read."""
    both = {"base.json": _record("conforms"), "head.json": _record("emitter-fault")}
    lines = (
        ("diff", "base.json", "head.json", "-o", "page.html", "--summary", "summary.md", "--fail-on", "change"),
        ("diff", "head.json", "base.json", "--json"),
        ("explorer", "head.json", "-o", "out"),
        ("annotate", "head.json"),
    )  # fmt: skip
    suite = {"base.json": _record("suite"), "head.json": _record("suite")}
    return [*(Case(both, line) for line in lines), Case(suite, lines[0])]


@functools.cache
def _record(name: str) -> bytes:
    return (TESTS / "records" / f"{name}.json").read_bytes()


def archives() -> list[Case]:
    """An archive of two records."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("head.json", _record("emitter-fault"))
        archive.writestr("base.json", _record("conforms"))
    return [Case({"records.zip": made.getvalue()}, ("comment", "records.zip", "-o", "comment.md"))]


def histories() -> list[Case]:
    """A history, drawn, listed and added to."""
    from history_rows import runs

    store = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in runs(6)).encode()
    files = {"store.jsonl": store, "report.json": _record("conforms")}
    option = ("--store", "store.jsonl")
    lines = (("list",), ("page", "-o", "page.html"), ("add", "report.json"))
    return [Case(files, ("history", *line, *option)) for line in lines]


def matrices() -> list[Case]:
    """A matrix of a fleet, listed."""
    text = """\
[run]
model = "tiny-*"
precision = ["f32", "bf16"]
backend = ["xla-cpu", ["iree-cpu", "xla-cpu"]]

[check]
graph = ["a.mlir", "b.mlir"]
model = "tiny-llama"
tokens = 4

[ops]
operation = ["add", "sort"]
"""
    return [Case({"MATRIX.toml": text.encode(), "a.mlir": b"", "b.mlir": b""}, ("fleet", "MATRIX.toml", "--list"))]


def fleets() -> list[Case]:
    """A fleet's record with the records of its jobs, added to a history."""
    key = "0123456789abcdef"
    job = {
        "key": key, "id": "run tiny-llama", "command": "run", "values": {"model": "tiny-llama"}, "status": "passed",
        "tries": [{"status": "passed", "words": "", "verdict": "conforms", "seconds": 1.5, "machine": "a"}], "lost": 0,
        "damaged": 0, "history": "P", "change": "new", "folder": f"jobs/{key}",
    }  # fmt: skip
    head: Any = {
        "schema": "hloracle-fleet/1", "name": "small", "matrix": "0" * 64, "date": "2025-11-21T05:12:00+00:00", "commit": None,
        "packages": {"jax": "0.10.2"}, "seconds": 3.0, "resumed": 0, "passed": True, "counts": {"passed": 1}, "gone": [],
    }  # fmt: skip
    from hloracle.reports.fleet.record import lines

    record = "".join(lines(head, [json.dumps(job)])).encode()
    files = {"fleet.json": record, f"jobs/{key}/report.json": _record("conforms")}
    return [Case(files, ("history", "add", "fleet.json", "--store", "store.jsonl"))]


SUM = """func.func @main(%a: tensor<3xf32>, %b: tensor<3xf32>) -> (tensor<f32>, tensor<3xf32>) {
  %0 = stablehlo.add %a, %b : tensor<3xf32>
  %1 = stablehlo.constant dense<1.0> : tensor<f32>
  return %1, %0 : tensor<f32>, tensor<3xf32>
}
"""


def _array(values: Sequence[float]) -> bytes:
    import numpy as np

    file = io.BytesIO()
    np.save(file, np.array(values, np.float32))
    return file.getvalue()


def reproducers() -> list[Case]:
    """A reproducer's folder."""
    about = {
        "function": "main", "inputs": ["0-x.npy", "0-x.npy"], "expected": "expected.npy", "result": 1, "tolerance": 0.0,
        "flags": ["--iree-opt-data-tiling"],
    }  # fmt: skip
    files = {
        "case/subgraph.mlir": SUM.encode(), "case/reproducer.json": json.dumps(about).encode(),
        "case/0-x.npy": _array([1, 2, 3]), "case/expected.npy": _array([2, 4, 6]),
    }  # fmt: skip
    return [Case(files, ("replay", "case", *REPLAY))]


def arrays() -> list[Case]:
    """Arrays for a graph's file."""
    files = {"sum.mlir": SUM.encode(), "x.npy": _array([1, 2, 3]), "y.npy": _array([2, 4, 6])}
    given = ("--inputs", "x.npy", "--inputs", "x.npy", "--expected", "y.npy", "--result", "1")
    return [Case(files, ("replay", "sum.mlir", *REPLAY, *given))]


def operation_tests() -> list[Case]:
    """Tests of operations that others wrote."""
    paths = sorted((TESTS / "ops_files" / "right").glob("*.mlir"))
    return [Case({"test.mlir": path.read_bytes()}, ("ops", "test.mlir", "--list")) for path in paths]


def own_operations() -> list[Case]:
    """The operations of a graph, listed."""
    return [Case(_emitted(_small()), ("ops", "--of", "decode.mlir", "--list"))]


def commands() -> list[Case]:
    """A tool's command line as a backend."""
    tool = (
        (TESTS.parent / "examples" / "command" / "iree.toml")
        .read_bytes()
        .replace(b"iree-compile", b"true")
        .replace(b"iree-run-module", b"true")
    )
    line = ("run", "model", "--backend", "command:tool.toml", "--capacity", "32", "--tokens", "4", "--rounds", "0")
    return [Case({**_small(), "tool.toml": tool}, line)]


def known_faults() -> list[Case]:
    """A list of known faults."""
    text = """\
[[fault]]
cases = ["sort/*/with-places/17x2-0/stable", "add/f32/large"]
family = "iree"
versions = ">=3.13,<3.14"
result = "wrong"
ulp = 1.5
reason = "ignores is_stable: equal keys come out in another order"
link = "docs/toolchain-notes.md#iree-ignores-is_stable-of-a-sort"
"""
    line = ("ops", "test.mlir", "--known", "known.toml", "--backend", "xla-cpu")
    return [Case({"known.toml": text.encode(), "test.mlir": operation_tests()[0].files["test.mlir"]}, line)]


def ggufs() -> list[Case]:
    """GGUF files of some architectures, converted."""
    from gguf_files import write_gguf

    small: dict[str, Any] = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    }  # fmt: skip
    line = ("emit", "model.gguf", "--phase", "decode", "--capacity", CAPACITY, "-o", "out.mlir")
    made_of = {
        "llama": made(lambda folder: write_gguf(folder / "model.gguf", **small, head_dim=16)),
        "qwen2": made(lambda folder: write_gguf(folder / "model.gguf", architecture="qwen2", **small)),
        "bare": made(lambda folder: write_gguf(folder / "model.gguf", tokenizer=False, **small, head_dim=16)),
    }  # fmt: skip
    return [Case(files, line) for files in made_of.values()]


def _talking(template: str) -> dict[str, bytes]:
    from tokenizer import add_words

    files = model(**{**SMALL, "vocab_size": 257})

    def make(folder: Path) -> None:
        Case(files, ()).write(folder)
        add_words(folder / "model", template=template)

    return made(make)


GENERATE = ("generate", "model", "-n", "4", "--backend", "xla-cpu", "--threads", "1")


def tokenizers() -> list[Case]:
    """A model with a tokenizer and a chat template, which is given a prompt."""
    from tokenizer import CHAT

    generation = {"model/generation_config.json": b'{"eos_token_id": [3, 5], "bos_token_id": 1}'}
    return [Case(_talking(t) | generation, (*GENERATE, "-p", "a b w7")) for t in (CHAT, "")]


def prompts() -> list[Case]:
    """The same, for its prompts."""
    return tokenizers()


def command_lines() -> list[Case]:
    """One command line of each kind that ends soon. No file has a report's name: where the words name its folder, it is replaced."""
    files = {**_small(), "head.json": _record("conforms"), "sum.mlir": SUM.encode(), "x.npy": _array([1, 2, 3])}
    files |= _emitted(files)
    lines = (
        "emit model --phase prefill --bucket 32 --capacity 32 --head token --precision f32 --layout rows --taps layers.* -o out.mlir",
        "emit model --phase decode --capacity 8 --precision f32 --layout rows --separate --gemm acme -o out.mlir --portable",
        "check decode.mlir --abi decode.abi.json --model model --tokens 4 --backend xla-cpu --timeout 5 --threads 1 --out o",
        "run model --tokens 4 --capacity 32 --rounds 0 --precision f32 --layout panels --device cpu --source emitter --threads 1 --out o",
        "replay sum.mlir --backend xla-cpu --inputs x.npy --inputs x.npy --expected x.npy --tolerance 1e-3 --result 1 --function main",
        "diff head.json head.json -o page.html --summary s.md --link https://example.org/a --fail-on regression",
        "history add head.json --commit abc --store store.jsonl",
        "annotate head.json --graph decode.mlir",
        "explorer head.json -o o",
        "ops add/f32/large --list --json",
        "ops --of decode.mlir --backend xla-cpu --timeout 5 --batch 3 --jobs 1 --reproducers none --out o",
        "mutants rope --list",
        "holes llama --list",
        "models",
    )
    return [Case(files, tuple(line.split())) for line in lines]


def environments() -> list[Case]:
    """Command lines that read variables, with each of them set."""
    variables = {
        "HLORACLE_DEVICE": "cpu", "HLORACLE_CUDA_TARGET": "", "HLORACLE_COMMIT": "abc", "HLORACLE_WORKER_MEMORY": "2000000000",
        "HLORACLE_CACHE": "own-cache", "COLUMNS": "80", "LINES": "24", "TERM": "dumb", "NO_COLOR": "1", "LANG": "C.UTF-8",
        "TMPDIR": "", "HOME": "/root", "XLA_FLAGS": "", "PYTHONWARNINGS": "", "HLORACLE_EMULATED_DEVICES": "1",
    }  # fmt: skip
    del variables["TMPDIR"]
    files = {**_small(), "head.json": _record("conforms"), "own-cache/.keep": b""}
    lines = (
        "run model --tokens 4 --capacity 32 --rounds 0 --out o", "run model --source emitter --precision bf16 --out o",
        "emit model --phase decode --capacity 8 -o out.mlir", "history add head.json --store store.jsonl",
        "emit model --phase decode --capacity 8 --precision f16 -o out.mlir", "models",
    )  # fmt: skip
    return [Case(files, tuple(line.split()), variables) for line in lines]
