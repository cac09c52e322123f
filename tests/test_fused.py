"""Weights that are multiplied with the same values and taken as one: in emission, in checkpoints, and in what is counted."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import changed, interpreter, quick_xla, results
from nightly import only

from hloracle.conformance.graphs.listing import read
from hloracle.conformance.verdict.localization import weights_of
from hloracle.core.abi import Abi
from hloracle.core.errors import InputError
from hloracle.emitters.builder import TensorType
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.matrix import FusedPart, Matrix
from hloracle.emitters.model import emit
from hloracle.localize.anatomy import Anatomy
from hloracle.localize.probes import probe
from hloracle.localize.workbench import Workbench
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.fixtures.tiny import TINY, write_tiny
from hloracle.reference.model.archive import archive_of
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.config import Config
from hloracle.reference.model.contract import graph_abi
from hloracle.reference.model.encodings import ENCODINGS, PRECISIONS, argument_parts
from hloracle.reference.model.registry import from_hf
from hloracle.reference.model.weights import default_layout, fused, fusions, parts_in, taken_shapes, weight_shapes
from hloracle.reference.oracle.lower import lower

QKV = "model.layers.0.self_attn.q_proj-k_proj-v_proj.weight"
GATE_UP = "model.layers.0.mlp.gate_proj-up_proj.weight"
CAPACITY, BUCKET = 64, 32
PHASES = ("decode", "prefill")
LLAMA = from_hf(TINY["llama"])
# Three queries to a kv head, five; one kv head; as many kv heads as query heads, so that q, k and v have one shape; biases.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "three queries to a kv head": ("llama", {}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "five queries to a kv head": ("llama", {"num_attention_heads": 10}),
    "one kv head": ("llama", {"num_key_value_heads": 1}),
    "equal heads": ("llama", {"num_key_value_heads": 6}),
    "odd rows": ("llama", {"intermediate_size": 108, "head_dim": 12}),
    "qwen2": ("qwen2", {}),
    "gpt_oss": ("gpt_oss", {}),
    "shared experts": ("qwen2_moe", {}),
}


def layout_of(config: Config, precision: str) -> dict[str, str]:
    return fused(config, default_layout(config, precision))


# ---- what is fused


@pytest.mark.parametrize("architecture", TINY)
def test_what_a_family_can_fuse(architecture: str) -> None:
    """All but what its files hold as one already, and a latent's projections, of which none takes the same values."""
    config = from_hf(TINY[architecture])
    found = {name.split(".", 3)[3] for name in fusions(config)}
    qkv, mlp = "self_attn.q_proj-k_proj-v_proj.weight", "mlp.gate_proj-up_proj.weight"
    plain = {qkv, mlp}
    expected = {
        "phi3": set(),
        "starcoder2": {qkv},
        "glm4": {qkv},
        "mixtral": {qkv},
        "olmoe": {qkv},
        "gpt_oss": {qkv},
        "qwen2_moe": {*plain, "mlp.shared_expert.gate_proj-up_proj.weight"},
        "deepseek_v3": {mlp, "mlp.shared_experts.gate_proj-up_proj.weight"},
    }
    assert found == expected.get(architecture, plain)
    for name, parts in fusions(config).items():
        assert len(parts) == len(name.split("-"))
        assert set(parts) <= set(weight_shapes(config))
        assert {weight_shapes(config)[part][1:] for part in parts} == {(config.hidden_size,)}


def test_the_parts_of_a_weight() -> None:
    module = "model.layers.0.self_attn"
    assert parts_in(QKV) == tuple(f"{module}.{x}_proj.weight" for x in "qkv")
    for weight in weight_shapes(LLAMA):
        assert parts_in(weight) == (weight,)
    for encoding in ENCODINGS.values():
        for i, argument in enumerate(encoding.arguments(QKV)):
            assert argument_parts(argument) == (QKV, encoding.name, i)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_layout_with_fused_weights(precision: str) -> None:
    plain = default_layout(LLAMA, precision)
    found = fused(LLAMA, plain)
    parts = {part for name in fusions(LLAMA) for part in parts_in(name)}
    assert set(found) == (set(plain) - parts) | set(fusions(LLAMA))
    assert {found[name] for name in fusions(LLAMA)} == {plain[f"{GATE_UP.partition('-')[0]}.weight"]}


def test_parts_that_are_held_in_different_ways_stay_alone() -> None:
    plain = default_layout(LLAMA, "int4")
    k = QKV.replace("q_proj-k_proj-v_proj", "k_proj")
    for other in (plain | {k: "int8"}, {name: e for name, e in plain.items() if name != k}):
        found = fused(LLAMA, other)
        assert QKV not in found
        assert {part: found.get(part) for part in parts_in(QKV)} == {part: other.get(part) for part in parts_in(QKV)}
        assert GATE_UP in found


def test_rows_that_panels_do_not_fit_stay_alone() -> None:
    """Also where those of all parts together would."""
    config = from_hf({**TINY["llama"], "intermediate_size": 104})
    for precision in ("f32", "bf16"):
        found = fused(config, default_layout(config, precision))
        assert found[QKV].endswith("panels")
        assert found.get(GATE_UP, "") == ("" if precision == "f32" else "bf16")


@pytest.mark.parametrize(("architecture", "precision"), [("phi3", "int4"), ("llama", "rows")])
def test_nothing_to_fuse_is_refused(architecture: str, precision: str) -> None:
    config = from_hf(TINY[architecture])
    held = {} if precision == "rows" else default_layout(config, precision)
    with pytest.raises(InputError, match="--fused: fuses nothing in this model"):
        fused(config, held)


# ---- arguments


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_abi(precision: str) -> None:
    """A fused weight stands where its first part would; everything else stays in its place."""
    layout = layout_of(LLAMA, precision)
    abi = graph_abi(LLAMA, "decode", "logits", CAPACITY, 0, layout)
    plain = graph_abi(LLAMA, "decode", "logits", CAPACITY, 0, default_layout(LLAMA, precision))
    taken = list(dict.fromkeys(part for w in abi.weights for part in parts_in(w.weight)))
    assert taken == list(weight_shapes(LLAMA))
    assert abi.arguments[len(abi.weights) :] == plain.arguments[len(plain.weights) :]
    assert taken_shapes(LLAMA, layout)[QKV] == (96 + 32 + 32, 84)
    assert taken_shapes(LLAMA, ()) == weight_shapes(LLAMA)
    assert sum(w.nbytes for w in abi.weights) == sum(w.nbytes for w in plain.weights)
    abi.validate()


def test_an_abi_file(tmp_path: Path) -> None:
    abi = graph_abi(LLAMA, "decode", "logits", CAPACITY, 0, layout_of(LLAMA, "int4"))
    (tmp_path / "x.abi.json").write_text(abi.to_json())
    assert Abi.from_file(tmp_path / "x.abi.json") == abi


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_a_checkpoint_loads(precision: str) -> None:
    """The arguments of the parts, one after another; and what they stand for is the parts' rows."""
    opened = open_checkpoint(resolve("tiny-llama", precision=precision))
    layout = opened.layout(precision, fuse=True)
    abi = graph_abi(opened.config, "decode", "token", CAPACITY, 0, layout)
    for tensor in abi.weights:
        found = opened.load(tensor.name)
        assert found.shape == tensor.shape
        parts = [opened.load(tensor.name.replace(tensor.weight, part)) for part in parts_in(tensor.weight)]
        assert found.dtype == parts[0].dtype
        np.testing.assert_array_equal(found, np.concatenate(parts))
    for name in (QKV, GATE_UP):
        encoding = ENCODINGS[layout[name]]
        whole = encoding.decode([opened.load(argument) for argument in encoding.arguments(name)])
        np.testing.assert_array_equal(whole, np.concatenate([opened.load(part) for part in parts_in(name)]))


def test_an_archive_holds_fused_weights() -> None:
    opened = open_checkpoint(resolve("tiny-llama", precision="int4"))
    abi = graph_abi(opened.config, "decode", "token", CAPACITY, 0, opened.layout("int4", fuse=True))
    archive = archive_of(opened, abi.weights)
    for tensor in abi.weights:
        np.testing.assert_array_equal(archive.load(tensor.name), opened.load(tensor.name))
    plain = graph_abi(opened.config, "decode", "token", CAPACITY, 0, opened.layout("int4"))
    assert archive_of(opened, plain.weights).path != archive.path


# ---- products


def test_a_product_is_written_once_and_each_part_is_a_slice_in_its_own_scope() -> None:
    graph = emit(LLAMA, "decode", "logits", CAPACITY, 0, layout_of(LLAMA, "int4"))
    found: dict[str, list[str]] = {}
    for kind, scope in re.findall(r' = stablehlo\.(\w+).* loc\("layers\.0\.self_attn\.(\w+)"\)', graph.text):
        found.setdefault(scope, []).append(kind)
    assert found["q_proj"].count("reduce") == 1
    assert found["k_proj"] == found["v_proj"] == ["slice", "reshape"]


def test_parts_of_different_inputs_are_refused() -> None:
    """An architecture that did so must not offer to fuse them."""
    b, encoding = LayerBuilder(), ENCODINGS["bf16"]
    parts = tuple(b.argument(TensorType(t.shape, t.dtype), t.name) for t in encoding.tensors("w", (8, 4)))
    x, other = (b.argument(TensorType((1, 4), "f32"), name) for name in ("x", "other"))
    whole = Matrix((8, 4), "bf16", parts)
    with b.scope("q_proj"):
        assert b.linear(x, FusedPart(whole, 0, 6)).shape == (1, 6)
    with b.scope("k_proj"):
        assert b.linear(x, FusedPart(whole, 6, 8)).shape == (1, 2)
        with pytest.raises(ValueError, match=r"w\.bf16 is multiplied with x and other, in k_proj"):
            b.linear(other, FusedPart(whole, 6, 8))


def results_of(opened: Checkpoint, phase: str, layout: dict[str, str]) -> list[np.ndarray]:
    return results(
        quick_xla(), opened, emit(opened.config, phase, "logits", CAPACITY, BUCKET if phase == "prefill" else 0, layout)
    )


@cache
def model(name: str, precision: str, folder: Path) -> Checkpoint:
    architecture, options = MODELS[name]
    base = write_tiny(folder / name.replace(" ", "-"), architecture, **options)
    return open_checkpoint(resolve(str(base), precision=precision))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fused")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    ("name", "precision"),
    only([("biases", precision) for precision in ("f32", "bf16", "int4")], (
        (name, precision) for name in MODELS for precision in PRECISIONS
        if (name, precision) != ("odd rows", "f32") and (name == "biases" or precision in ("f32", "int4"))
    )),
)  # fmt: skip
def test_a_fused_graph_gives_what_the_separate_one_gives(name: str, precision: str, phase: str, folder: Path) -> None:
    opened = model(name, precision, folder)
    layout, plain = (dict(opened.layout(precision, fuse=fuse)) for fuse in (True, False))
    assert len(layout) < len(plain)
    found, expected = (results_of(opened, phase, held) for held in (layout, plain))
    for one, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, right, rtol=0, atol=1e-5 * np.abs(right).max())


@pytest.mark.parametrize("architecture", [name for name in TINY if fusions(from_hf(TINY[name]))])
def test_every_family_can_be_emitted_fused(architecture: str) -> None:
    """All parts take the same values: emission refuses anything else."""
    config = from_hf(TINY[architecture])
    for phase in PHASES:
        graph = emit(config, phase, "token", CAPACITY, BUCKET, layout_of(config, "int4"))
        assert {w.weight for w in graph.abi.weights} >= set(fusions(config))


# ---- graphs taken apart


@cache
def one_layer(precision: str, biased: bool, folder: Path) -> Checkpoint:
    options = {"num_hidden_layers": 1, "attention_bias": biased, "mlp_bias": biased}
    base = write_tiny(folder / f"one-{biased}", "llama", **options)
    return open_checkpoint(resolve(str(base), precision=precision))


def test_the_piece_of_a_part_holds_the_whole_product(folder: Path) -> None:
    """What it reads is the part's own input and the fused weight; no other part's value."""
    opened = one_layer("int4", False, folder)
    graph = emit(opened.config, "decode", "logits", CAPACITY, 0, opened.layout("int4", fuse=True))
    anatomy = Anatomy(graph, opened.config)
    arguments = ["layers.0.input_layernorm", *ENCODINGS["int4"].arguments(QKV)]
    for part in "qkv":
        piece = anatomy.subgraph(f"layers.0.self_attn.{part}_proj")
        assert [a.name for a in piece.graph.abi.arguments] == arguments
    nodes, _ = read(graph).blocks[0]
    drawn = {node["anchor"]: node["weights"] for node in nodes}
    assert drawn["layers.0.self_attn.q_proj"] == list(ENCODINGS["int4"].arguments(QKV))
    assert drawn["layers.0.self_attn.k_proj"] == drawn["layers.0.self_attn.v_proj"] == []


# Whose slice is another one; of which precision; with biases.
PROBED = only(
    [("k_proj", "f32", False)],
    [("", "int4", True), ("k_proj", "f32", False), ("k_proj", "int4", True), ("v_proj", "int4", False)],
)
SLICES = {"k_proj": r"96:128\]", "v_proj": r"128:160\]"}


@pytest.mark.parametrize(("part", "precision", "biased"), PROBED)
def test_probes_name_the_part_and_its_slice(part: str, precision: str, biased: bool, folder: Path) -> None:
    opened = one_layer(precision, biased, folder)
    config = opened.config
    graph = emit(config, "prefill", "logits", CAPACITY, 8, opened.layout(precision, fuse=True))
    anchor = f"layers.0.self_attn.{part}"
    if part:
        graph = changed(graph, SLICES[part], "80:112]", anchor)
    emitter, oracle = Anatomy(graph, config), Anatomy(lower(config, "prefill", "logits", CAPACITY, 8), config)
    bench = Workbench(interpreter(), opened.load, weights_of([graph], config))
    _, failures, worst, _ = probe(emitter, oracle, bench, lambda line: None)
    assert worst < 0.1
    assert [failure.anchor for failure in failures] == ([anchor] if part else [])
    for failure in failures:
        assert failure.found
        assert (failure.found.step.name, failure.found.step.anchor) == ("stablehlo.slice", anchor)
