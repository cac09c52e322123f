"""The emitted graphs of published models' shapes: what they are made of, their ABI, and how they come about."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from graphs import main, operations, parse
from jaxlib.mlir import ir
from nightly import only

from hloracle.backends.iree import CPU_FLAGS, iree_compile
from hloracle.core.abi import Graph
from hloracle.emitters.model import emit
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.anchors import anchor_of, products
from hloracle.reference.model.config import Config
from hloracle.reference.model.contract import BUCKETS
from hloracle.reference.model.registry import FAMILIES, from_hf
from hloracle.reference.model.weights import weight_shapes
from hloracle.reference.oracle.lower import lower

CONFIGS = Path(__file__).parent / "configs"
MODELS = ("smollm2-135m", "llama-3.2-1b")
PHASES = ("prefill", "decode")


def model(name: str) -> Config:
    """Of a published config, or a tiny model of an architecture."""
    return from_hf(TINY[name] if name in TINY else json.loads((CONFIGS / f"{name}.json").read_text()))


def emitted(config: Config, phase: str, head: str = "logits") -> Graph:
    return emit(config, phase, head, capacity=256, bucket=32)


def census(text: str) -> Counter[str]:
    """How often each operation occurs, those in regions too."""
    module = parse(text)
    return Counter(o.name for o in operations(module))


def donations(module: ir.Module) -> dict[int, int]:
    """Argument -> the result that takes over its buffer."""
    function = main(module)
    listed = ir.ArrayAttr(function.attributes["arg_attrs"]) if "arg_attrs" in function.attributes else ()
    attributes = [ir.DictAttr(a) for a in listed]
    key = "tf.aliasing_output"
    return {i: ir.IntegerAttr(a[key]).value for i, a in enumerate(attributes) if key in a}


# ---- what the graphs are made of


@pytest.mark.parametrize(("name", "dots", "weights"), [("smollm2-135m", 271, 272), ("llama-3.2-1b", 145, 146)])
def test_decode_with_logits(name: str, dots: int, weights: int) -> None:
    config = model(name)
    graph = emitted(config, "decode")
    counts = census(graph.text)
    kinds = {k for k in counts if k.startswith("stablehlo.")}
    assert "stablehlo.return" in kinds, "regions are counted"
    assert len(kinds) <= 20, sorted(kinds)
    assert counts["stablehlo.dot_general"] == dots == 9 * config.num_hidden_layers + 1
    assert len(graph.abi.weights) == weights == 9 * config.num_hidden_layers + 2
    assert counts["func.func"] == 1


@pytest.mark.parametrize("head", ["token", "logits"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", only(["smollm2-135m"], MODELS))
def test_smaller_than_the_oracles(name: str, phase: str, head: str) -> None:
    ours = census(emitted(model(name), phase, head).text)
    oracles = census(lower(model(name), phase, head, 256, 32).text)
    assert ours.total() < oracles.total()
    assert ours["stablehlo.dot_general"] == oracles["stablehlo.dot_general"]


@pytest.mark.parametrize("head", ["token", "logits"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", [*MODELS, *FAMILIES])
def test_no_foreign_operation_and_no_float64(name: str, phase: str, head: str) -> None:
    module = parse(emitted(model(name), phase, head).text)
    for operation in operations(module):
        assert operation.name.startswith(("stablehlo.", "func.", "builtin."))
        assert operation.name != "stablehlo.custom_call"
        for value in operation.results:
            assert re.search(r"(\d+x|<)(f32|i32|i1)>$", str(value.type)), str(operation)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", [*MODELS, *FAMILIES])
def test_every_argument_is_used(name: str, phase: str) -> None:
    graph = emitted(model(name), phase)
    module = parse(graph.text)
    values = main(module).regions[0].blocks[0].arguments
    uses = {a.name: len(list(v.uses)) for a, v in zip(graph.abi.arguments, values, strict=True)}
    assert not [name for name, count in uses.items() if count == 0]
    # Each weight is read once, tied embeddings twice: as the table, and as the head.
    often = {w.name: uses[w.name] for w in graph.abi.weights if uses[w.name] != 1}
    assert often == ({"model.embed_tokens.weight": 2} if model(name).tie_word_embeddings else {})


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_products_are_those_of_the_parts(architecture: str, phase: str) -> None:
    """Each anchor has as many dot_general as it is said to need; a bias of experts is one more."""
    config = model(architecture)
    module = parse(emitted(config, phase).text)
    found = Counter(
        anchor_of(o.location.name_str) for o in operations(module) if o.name == "stablehlo.dot_general"
    )  # fmt: skip
    assert found == products(config)


@pytest.mark.parametrize("architecture", [a for a in FAMILIES if model(a).experts])
def test_a_token_reads_its_own_experts_alone(architecture: str) -> None:
    config = model(architecture)
    assert config.experts
    every, chosen = config.experts.num_experts, config.experts.num_experts_per_tok
    for phase, tokens, used in (("decode", 1, chosen), ("prefill", 32, every)):
        module = parse(emitted(config, phase).text)
        inside = [o for o in operations(module) if "mlp.experts" in str(o.location)]
        first = next(o for o in inside if o.name == "stablehlo.dot_general")
        assert str(first.results[0].type) == f"tensor<{tokens}x{used}x{2 * config.experts.intermediate_size}xf32>"
        gathered = [o for o in inside if o.name == "stablehlo.gather"]
        weights = 4 if architecture == "gpt_oss" else 2
        sparse = sum(layer.sparse for layer in config.layers)
        assert len(gathered) == (weights * sparse if phase == "decode" else 0)


def test_all_experts_are_not_gathered() -> None:
    config = from_hf({**TINY["mixtral"], "num_experts_per_tok": TINY["mixtral"]["num_local_experts"]})
    assert census(emitted(config, "decode").text)["stablehlo.gather"] == 0


def test_untied_embeddings_add_a_weight_and_no_product() -> None:
    tied = model("smollm2-135m")
    untied = dataclasses.replace(tied, tie_word_embeddings=False)
    first, second = emitted(tied, "decode"), emitted(untied, "decode")
    assert {w.name for w in second.abi.weights} - {w.name for w in first.abi.weights} == {"lm_head.weight"}
    assert len(second.abi.weights) == len(first.abi.weights) + 1
    assert census(first.text) == census(second.text)


@pytest.mark.parametrize(
    ("key", "per_layer"), [("attention_bias", 3), ("attention_out_bias", 1), ("mlp_bias", 3), ("norm_bias", 2)]
)
def test_biases_add_weights_and_no_product(key: str, per_layer: int) -> None:
    # Llama's norms have no biases; starcoder2's do.
    plain = model("smollm2-135m") if key != "norm_bias" else dataclasses.replace(model("starcoder2"), norm_bias=False)
    biased = dataclasses.replace(plain, **{key: True})
    first, second = emitted(plain, "decode"), emitted(biased, "decode")
    count = per_layer * plain.num_hidden_layers + (key == "norm_bias")
    assert len(second.abi.weights) == len(first.abi.weights) + count
    more = census(second.text) - census(first.text)
    assert more["stablehlo.add"] == count
    assert more["stablehlo.dot_general"] == 0


@pytest.mark.parametrize("bucket", BUCKETS)
def test_prefill_of_each_bucket(bucket: int) -> None:
    config = model("smollm2-135m")
    graph = emit(config, "prefill", "logits", capacity=256, bucket=bucket)
    module = parse(graph.text)
    counts = Counter(o.name for o in operations(module))
    assert counts["stablehlo.dot_general"] == 9 * config.num_hidden_layers + 1
    assert (graph.abi.bucket, graph.abi.capacity) == (bucket, 256)
    # The largest product is of one row, whatever the bucket.
    (head,) = (o for o in operations(module) if o.name == "stablehlo.dot_general" and "lm_head" in str(o.location))
    assert str(head.results[0].type) == "tensor<1x49152xf32>"


# ---- the ABI


@pytest.mark.parametrize("head", ["token", "logits"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("source", [emit, lower])
@pytest.mark.parametrize("name", ["smollm2-135m", *FAMILIES])
def test_abi(name: str, source: Callable[..., Graph], phase: str, head: str) -> None:
    """The text's arguments, results and donations are the ABI's, in the emitter's graph and in the oracle's."""
    config = model(name)
    graph = source(config, phase, head, 256, 32)
    abi = graph.abi
    abi.validate()
    module = parse(graph.text)
    types = ir.FunctionType(main(module).attributes["function_type"].value)
    for written, declared in ((types.inputs, abi.arguments), (types.results, abi.results)):
        assert [str(t) for t in written] == [f"tensor<{'x'.join([*map(str, d.shape), d.dtype])}>" for d in declared]
    assert {w.name: w.shape for w in abi.weights} == weight_shapes(config)
    donated = donations(module)
    assert donated == {r.aliases: i for i, r in enumerate(abi.results) if r.aliases is not None}
    caches = ("k_cache", "v_cache") if phase == "decode" else ()
    assert {abi.arguments[i].role for i in donated} == set(caches)
    assert abi.function == "main"
    sizes = {r.role: r.shape for r in abi.results if r.role in ("k_cache", "v_cache")}
    layers, heads = config.num_hidden_layers, config.num_key_value_heads
    assert sizes == {role: (layers, heads, 256, width) for role, width in zip(sizes, config.cache_widths, strict=True)}


def test_abi_of_latents() -> None:
    """One for all heads, and what the keys' RoPE has turned: not as wide as the other."""
    abi = emitted(model("deepseek_v3"), "decode").abi
    assert abi.arguments[abi.argument("k_cache")].shape == (2, 1, 256, 36)
    assert abi.arguments[abi.argument("v_cache")].shape == (2, 1, 256, 8)


@pytest.mark.parametrize("shape", [(2, 1, 256, 9), (2, 1, 128, 8), (2, 2, 256, 8), (1, 1, 256, 8), (2, 1, 256)])
def test_caches_that_do_not_belong_together(shape: tuple[int, ...]) -> None:
    """They may differ in width, as long as an argument and its result do not."""
    abi = emitted(model("deepseek_v3"), "decode").abi
    results = [dataclasses.replace(r, shape=shape, aliases=None) if r.role == "v_cache" else r for r in abi.results]
    with pytest.raises(ValueError, match=r"different shapes|of rank 4"):
        dataclasses.replace(abi, results=tuple(results)).validate()


# ---- how they come about

EMIT_AND_LIST = """
import hashlib, json, sys
from pathlib import Path
from hloracle.emitters.model import emit
from hloracle.reference.model.registry import from_hf
config = from_hf(json.loads(Path(sys.argv[1]).read_text()))
digests = [hashlib.sha256(emit(config, p, h, 256, 32).text.encode()).hexdigest()
           for p in ("prefill", "decode") for h in ("token", "logits")]
print(json.dumps({"digests": digests, "modules": sorted(sys.modules)}))
"""


@pytest.fixture(scope="module")
def two_processes() -> list[dict[str, list[str]]]:
    """What EMIT_AND_LIST prints in two processes that hash strings differently."""
    command = [sys.executable, "-c", EMIT_AND_LIST, str(CONFIGS / "smollm2-135m.json")]
    answers = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        answers.append(json.loads(subprocess.run(command, capture_output=True, check=True, env=environment).stdout))
    return answers


def test_deterministic(two_processes: list[dict[str, list[str]]]) -> None:
    config = model("smollm2-135m")
    here = [
        hashlib.sha256(emitted(config, phase, head).text.encode()).hexdigest()
        for phase in PHASES
        for head in ("token", "logits")
    ]
    assert len(set(here)) == 4
    assert [answer["digests"] for answer in two_processes] == [here, here]


def test_imports(two_processes: list[dict[str, list[str]]]) -> None:
    """Emitting needs the standard library and numpy."""
    modules = two_processes[0]["modules"]
    ours = {m.removeprefix("hloracle.") for m in modules if m.startswith("hloracle.")}
    assert {m for m in ours if not m.startswith(("core", "emitters", "reference.model"))} <= {"reference"}
    bare = [sys.executable, "-c", "import sys, json, numpy; print(json.dumps(sorted(sys.modules)))"]
    present = json.loads(subprocess.run(bare, capture_output=True, check=True).stdout)
    extra = {m.partition(".")[0] for m in set(modules) - set(present)} - sys.stdlib_module_names
    assert extra <= {"hloracle", "numpy"}


# ---- a larger model's shapes, without its weights


@pytest.mark.parametrize("phase", only(["decode"], PHASES))
def test_1b_shapes_compile_on_iree(phase: str, tmp_path: Path) -> None:
    graph = emit(model("llama-3.2-1b"), phase, "token", capacity=256, bucket=256)
    source = tmp_path / "graph.mlir"
    source.write_text(graph.text)
    assert len(iree_compile(source, CPU_FLAGS)) > 10_000
