"""The graphs of examples/ that need no library of their own are exported anew, and open by the ABI files beside them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from graphs import parse
from nightly import only

from hloracle.core.abi import Graph
from hloracle.foreign.file import read_abi_file
from hloracle.foreign.opening import open_graphs
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import open_checkpoint

EXAMPLES = Path(__file__).parents[1] / "examples"
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "olmo2", "phi3")


def exported(script: str, model: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> Path:
    """The folder that an example's script writes to, run in this process."""
    path = EXAMPLES / script
    spec: Any = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    monkeypatch.setattr(sys, "argv", [str(path), "--model", str(resolve(model)), "--out", str(folder), *more])
    spec.loader.exec_module(module)
    module.main()
    return folder


def opened(folder: Path, names: tuple[str, ...], abi: str, model: str) -> list[Graph]:
    graphs = open_graphs(
        [folder / name for name in names], read_abi_file(EXAMPLES / abi), open_checkpoint(resolve(model))
    )
    for graph in graphs:
        graph.abi.validate()
        parse(graph.text)
    return graphs


def kinds(graphs: list[Graph]) -> list[tuple[str, str, int, int]]:
    return [(g.abi.phase, g.abi.head, g.abi.capacity, g.rows) for g in graphs]


@pytest.mark.parametrize("family", only(["llama", "qwen2", "qwen3", "phi3"], FAMILIES))
def test_by_hand(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = f"tiny-{family}"
    folder = exported("by_hand/emit.py", model, tmp_path, monkeypatch)
    graphs = opened(folder, ("decode.mlir", "prefill.mlir"), f"by_hand/{family}.abi.toml", model)
    assert kinds(graphs) == [("decode", "logits", 256, 1), ("prefill", "logits", 256, 1)]
    if family == "llama":
        (ragged,) = opened(folder, ("ragged.mlir",), "by_hand/llama_ragged.abi.toml", model)
        assert kinds([ragged]) == [("decode", "logits", 256, 4)]


def test_by_hand_interleaved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = exported("by_hand/emit.py", "tiny-llama", tmp_path, monkeypatch, "--interleaved")
    graphs = opened(folder, ("decode.mlir", "prefill.mlir"), "by_hand/llama_interleaved.abi.toml", "tiny-llama")
    assert kinds(graphs) == [("decode", "logits", 256, 1), ("prefill", "logits", 256, 1)]


def test_jax_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each form that it is written in."""
    folder = exported("jax_scan/export.py", "tiny-llama", tmp_path, monkeypatch)
    for form in ("mlir", "mlirbc", "jax"):
        graphs = opened(folder, (f"decode.{form}", f"prefill.{form}"), "jax_scan/abi.toml", "tiny-llama")
        assert kinds(graphs) == [("decode", "logits", 256, 2), ("prefill", "logits", 256, 2)]
