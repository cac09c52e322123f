"""Products with weights that are held otherwise, and looks at their rows: as with the plain float32 weight that they stand for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import operations, parse, run
from models import quick_xla, results
from nightly import only
from stablehlo_interpreter import Interpreter

from hloracle.backends.iree import FLAG_SETS, IreeCpu, compile_to_stream, flags_of, iree_compile
from hloracle.backends.session import Backend, _vocab_size
from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.errors import ToolchainError
from hloracle.emitters.builder import TensorType, Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.matrix import FEW, QUANTIZED_PANELS, STRATEGIES, Matrix
from hloracle.emitters.model import emit
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.anchors import anchor_of, products
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.contract import graph_abi
from hloracle.reference.model.encodings import ENCODINGS, NARROW, PRECISIONS, of_precision
from hloracle.reference.model.registry import from_hf
from hloracle.reference.model.weights import default_layout, matrices

DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "i8", "uint8": "ui8", "int32": "i32"}
# Groups of 32, 4 and 16, dealt to one to four hands; one row, one group, an odd number of rows; more columns than rows and the other way round.
GROUPED = ((5, 96), (37, 84), (7, 112), (1, 32), (2, 320), (3, 256))
PANELS = ((32, 3), (48, 84), (16, 1))
# Groups of 32, 4 and 16, one of them alone and a panel alone.
GROUPED_PANELS = ((32, 96), (48, 84), (16, 112), (16, 4))
SHAPES = {
    name: GROUPED if name in ("int8", "int4") else GROUPED_PANELS if name in QUANTIZED_PANELS else
    PANELS if name.endswith("panels") else ((5, 7), (37, 84), (1, 3))
    for name in ENCODINGS
}  # fmt: skip
CASES = [pytest.param(name, shape, id=f"{name}-{shape}") for name, shapes in SHAPES.items() for shape in shapes]
# With all of 0, 15, 16 and a last row that is none of these.
TABLES = {name: (48, 84) if name.endswith("panels") else (37, 84) for name in ENCODINGS}
EXPERTS = (19, 6, 16)
ATOL = 4e-6  # as in test_layers


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def graph_of(
    build: Callable[[LayerBuilder, Matrix, Value], Value], name: str, shape: tuple[int, ...], x: np.ndarray
) -> Graph:
    b, encoding = LayerBuilder(), ENCODINGS[name]
    tensors = encoding.tensors("w", shape)
    parts = tuple(b.argument(TensorType(t.shape, t.dtype), t.name) for t in tensors)
    operand = b.argument(TensorType(x.shape, DTYPES[x.dtype.name]), "x")
    result = build(b, Matrix(shape, name, parts), operand)
    arguments = (*tensors, Tensor("weight", "x", x.shape, DTYPES[x.dtype.name]))
    return b.graph("matrix", Abi("decode", arguments, (Tensor("tap", "y", result.shape, result.dtype),)), [result])


@cache
def held(name: str, shape: tuple[int, ...]) -> tuple[list[np.ndarray], np.ndarray]:
    """A weight's arguments, and what they stand for."""
    parts = ENCODINGS[name].encode(random(*shape, seed=7))
    return parts, ENCODINGS[name].decode(parts)


def evaluate(graph: Graph, *arguments: np.ndarray, backend: Backend | None = None) -> np.ndarray:
    if backend is None:
        return run(graph, *arguments)[0]
    (found,) = backend.load(graph)([backend.upload(a) for a in arguments])
    return backend.download(found)


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(found, expected, rtol=0, atol=ATOL * max(1, np.abs(expected).max()))


def decoded(name: str, found: np.ndarray, weight: np.ndarray) -> None:
    """Bit for bit, but for int4's product and sum, which XLA rounds once."""
    assert found.shape == weight.shape
    rounding = 2.0**-23 * np.abs(weight).max() if of_precision(name) == "int4" else 0
    np.testing.assert_allclose(found, weight, rtol=0, atol=rounding)


# ---- products


def product(b: LayerBuilder, weight: Matrix, x: Value) -> Value:
    return b.product(x, weight)


# Enough for a prompt in every encoding.
MANY = FEW + 1


@pytest.mark.parametrize("tokens", [1, 5, MANY])
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_product(name: str, shape: tuple[int, ...], tokens: int) -> None:
    parts, weight = held(name, shape)
    x = random(tokens, shape[1])
    graph = graph_of(product, name, shape, x)
    close(evaluate(graph, *parts, x), x.astype(np.float64) @ weight.T.astype(np.float64))


@pytest.mark.parametrize("tokens", [1, 5, MANY])
@pytest.mark.parametrize("name", ENCODINGS)
def test_product_on_the_interpreter(name: str, tokens: int) -> None:
    """Which says what the operations mean, and takes arguments of every dtype."""
    shape = SHAPES[name][1]
    parts, weight = held(name, shape)
    x = random(tokens, shape[1])
    found = evaluate(graph_of(product, name, shape, x), *parts, x, backend=Interpreter())
    close(found, x.astype(np.float64) @ weight.T.astype(np.float64))


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_a_prompt_and_a_token_agree(name: str, shape: tuple[int, ...]) -> None:
    parts, _ = held(name, shape)
    x = random(5, shape[1], seed=4)
    prompt = evaluate(graph_of(product, name, shape, x), *parts, x)
    one = graph_of(product, name, shape, x[:1])
    for i in range(5):
        close(evaluate(one, *parts, x[i : i + 1]), prompt[i : i + 1])


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_projection_with_a_bias(name: str) -> None:
    """`linear`, which is what architectures call."""
    shape = TABLES[name]
    parts, weight = held(name, shape)
    for tokens in (1, 3):
        x = random(tokens, shape[1])
        graph = graph_of(lambda b, w, x: b.linear(x, w, b.f32(0.5, (w.shape[0],))), name, shape, x)
        close(evaluate(graph, *parts, x), x @ weight.T + np.float32(0.5))


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_tokens_product_is_a_sum_and_a_prompts_is_dot_general(name: str) -> None:
    """A weight of one token is read once: where it is not, it is written to memory as float32 first."""
    few = FEW if name in QUANTIZED_PANELS else 1
    for tokens, wanted in ((1, "reduce"), (few, "reduce"), (few + 1, "dot_general")):
        text = graph_of(product, name, TABLES[name], random(tokens, 84)).text
        kinds = set(re.findall(r"stablehlo\.(dot_general|reduce)\b", text))
        assert kinds == {wanted}


@pytest.mark.parametrize("name", QUANTIZED_PANELS)
def test_groups_in_panels_give_what_groups_in_rows_give(name: str) -> None:
    """And do not where a part is read as if it were in rows."""
    shape, plain = (48, 96), of_precision(name)
    x = random(8, shape[1])
    rows, panels = held(plain, shape), held(name, shape)
    np.testing.assert_array_equal(rows[1], panels[1])
    expected = evaluate(graph_of(product, plain, shape, x), *rows[0], x)
    graph = graph_of(product, name, shape, x)
    close(evaluate(graph, *panels[0], x), expected)
    for wrong, part in enumerate(rows[0]):
        misread = [part.reshape(p.shape) if i == wrong else p for i, p in enumerate(panels[0])]
        with pytest.raises(AssertionError):
            close(evaluate(graph, *misread, x), expected)


@pytest.mark.parametrize("name", QUANTIZED_PANELS)
def test_few_tokens_do_not_write_the_weight_to_memory(name: str) -> None:
    """Of 8 tokens IREE writes less than a tenth of the weight's float32 numbers, and of a prompt all of them."""
    N, K = 512, 576

    def written(tokens: int) -> int:
        graph = graph_of(product, name, (N, K), random(tokens, K))
        text = compile_to_stream(dataclasses.replace(graph, flags=FLAG_SETS["unmoved"]))
        return sum(map(int, re.findall(r"%c(\d+)", " ".join(re.findall(r"stream\.resource\.alloca.*", text)))))

    assert written(8) < N * K * 4 / 10
    assert written(FEW + 1) >= N * K * 4


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize(("groups", "hands"), [(1, 1), (2, 2), (3, 3), (7, 1), (18, 3), (64, 4)])
def test_groups_are_dealt_to_as_many_hands_as_come_out_even(name: str, groups: int, hands: int) -> None:
    shape = (5, 32 * groups)
    text = graph_of(product, name, shape, random(1, shape[1])).text
    assert text.count(f"-> tensor<5x{groups // hands}xf32>") == (hands if hands > 1 else 0) * (
        2 if name == "int4" else 1
    )
    assert text.count("stablehlo.reduce(") == 1


def dispatches(name: str, shape: tuple[int, int]) -> int:
    """Of one token's product with a bias, and something added to it."""
    x = random(1, shape[1])

    def build(b: LayerBuilder, w: Matrix, x: Value) -> Value:
        return b.add(b.linear(x, w, b.f32(0.5, (w.shape[0],))), b.part(x, 1, 0, w.shape[0]))

    return compile_to_stream(graph_of(build, name, shape, x)).count("stream.cmd.dispatch ")


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_one_tokens_product_is_one_dispatch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many hands IREE writes some terms to memory."""
    assert dispatches(name, (96, 576)) == dispatches(name, (96, 2048)) == 1
    monkeypatch.setattr("hloracle.emitters.matrix.HANDS", 16)
    assert dispatches(name, (96, 2048)) > 1


def test_every_encoding_has_strategies_that_were_measured() -> None:
    assert STRATEGIES.keys() == ENCODINGS.keys()
    for name, strategies in STRATEGIES.items():
        for strategy in (strategies.token, strategies.prompt):
            assert re.search(r"\d", strategy.measured), name


# ---- rows


@pytest.mark.parametrize("name", ENCODINGS)
def test_rows(name: str) -> None:
    shape = TABLES[name]
    parts, weight = held(name, shape)
    indices = np.array([[0], [15], [16], [shape[0] - 1], [15], [31]], np.int32)
    graph = graph_of(lambda b, w, i: b.rows(w, i), name, shape, indices)
    decoded(name, evaluate(graph, *parts, indices), weight[indices[:, 0]])


@pytest.mark.parametrize("name", ENCODINGS)
def test_row(name: str) -> None:
    shape = TABLES[name]
    parts, weight = held(name, shape)
    graph = graph_of(lambda b, w, i: b.row(w, i), name, shape, np.array(0, np.int32))
    for index in (0, 15, 16, shape[0] - 1):
        found = evaluate(graph, *parts, np.array(index, np.int32))
        decoded(name, found, weight[index : index + 1])


@pytest.mark.parametrize("name", [name for name in ENCODINGS if not name.endswith("panels")])
def test_rows_of_experts(name: str) -> None:
    parts, weight = held(name, EXPERTS)
    indices = np.array([[18], [0], [15]], np.int32)
    graph = graph_of(lambda b, w, i: b.rows(w, i), name, EXPERTS, indices)
    decoded(name, evaluate(graph, *parts, indices), weight[[18, 0, 15]])


@pytest.mark.parametrize(
    ("name", "shape"),
    [*CASES, *((name, EXPERTS) for name in ENCODINGS if not name.endswith("panels"))],
)
def test_dense(name: str, shape: tuple[int, ...]) -> None:
    parts, weight = held(name, shape)
    x = np.zeros(shape, np.float32)
    graph = graph_of(lambda b, w, x: b.add(b.dense(w), x), name, shape, x)
    decoded(name, evaluate(graph, *parts, x), weight)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_as_many_groups_as_a_half_has_columns(name: str) -> None:
    """16 of each, in the rows of experts: a scale of each group, and not of each column of a half."""
    shape = (2, 3, 512)
    x = np.zeros(shape, np.float32)
    weight = random(*shape) * np.arange(1, 17, dtype=np.float32).repeat(32)  # each group of another size
    parts = ENCODINGS[name].encode(weight)
    assert parts[-1].shape == (2, 3, 16)
    graph = graph_of(lambda b, w, x: b.add(b.dense(w), x), name, shape, x)
    (found,) = run(graph, *parts, x)
    np.testing.assert_allclose(found, ENCODINGS[name].decode(parts), atol=ATOL * 16)


@pytest.mark.parametrize("name", ENCODINGS)
def test_dense_on_the_interpreter(name: str) -> None:
    """Bit for bit what `decode` gives."""
    shape = TABLES[name]
    parts, weight = held(name, shape)
    x = np.zeros(shape, np.float32)
    graph = graph_of(lambda b, w, x: b.add(b.dense(w), x), name, shape, x)
    np.testing.assert_array_equal(evaluate(graph, *parts, x, backend=Interpreter()), weight)


# ---- whole graphs

MODELS = ("tiny-llama", "tiny-mixtral", "tiny-deepseek_v3")
PHASES = ("decode", "prefill")
CAPACITY, BUCKET = 64, 32
WHOLE = [(model, precision) for model in MODELS for precision in PRECISIONS]
# Each model, and each precision, in every run of the tests.
SOME = [("tiny-llama", "f32"), ("tiny-llama", "int4"), ("tiny-mixtral", "bf16"), ("tiny-mixtral", "int8"), ("tiny-deepseek_v3", "f16")]  # fmt: skip


def checkpoint(model: str, precision: str) -> Checkpoint:
    return open_checkpoint(resolve(model, precision=precision))


def emitted(opened: Checkpoint, phase: str, precision: str | None) -> Graph:
    layout = opened.layout(precision) if precision else {}
    return emit(opened.config, phase, "logits", CAPACITY, BUCKET if phase == "prefill" else 0, layout)


@cache
def plain(model: str, precision: str, phase: str) -> list[np.ndarray]:
    """What the graph of plain float32 weights gives, over the weights of this precision."""
    opened = checkpoint(model, precision)
    return results(quick_xla(), opened, emitted(opened, phase, None))


def as_plain(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, right, rtol=0, atol=1e-5 * np.abs(right).max())


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("model", "precision"), only(SOME, WHOLE))
def test_a_graph_gives_what_the_plain_one_gives(model: str, precision: str, phase: str) -> None:
    opened = checkpoint(model, precision)
    graph = emitted(opened, phase, precision)
    assert any(w.encoding != "plain" for w in graph.abi.weights)
    as_plain(results(quick_xla(), opened, graph), plain(model, precision, phase))


def test_a_graph_on_iree() -> None:
    """Of unsigned bytes and of signed ones, in sums that are fused."""
    opened = checkpoint("tiny-llama", "int4")
    graph = emitted(opened, "decode", "int4")
    assert {w.dtype for w in graph.abi.weights} == {"f32", "i8", "ui8"}
    as_plain(results(IreeCpu(1), opened, graph), plain("tiny-llama", "int4", "decode"))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("model", "precision"), WHOLE)
def test_what_a_graph_is_made_of(model: str, precision: str, phase: str) -> None:
    opened = checkpoint(model, precision)
    graph = emitted(opened, phase, precision)
    graph.abi.validate()
    module = parse(graph.text)
    dtypes = {w.dtype for w in graph.abi.weights} | {"i32", "i1"}
    for operation in operations(module):
        assert operation.name.startswith(("stablehlo.", "func.", "builtin."))
        assert operation.name != "stablehlo.custom_call"
        for value in operation.results:
            kind: Any = re.search(r"(?:x|<)([a-z]+\d+)>$", str(value.type))
            assert kind[1] in dtypes, str(operation)
    # A prompt's products are all dot_general; of a token's, those with caches, and with the experts that are looked up.
    scopes = [anchor_of(o.location.name_str) for o in operations(module) if o.name == "stablehlo.dot_general"]
    wanted = products(opened.config)
    assert set(scopes) <= set(wanted)
    if phase == "prefill":
        assert {a for a in wanted if a not in scopes} <= {"lm_head"}


@pytest.mark.parametrize("name", ["", *ENCODINGS])
def test_a_vocabulary_is_as_long_as_its_embedding_whatever_holds_it(name: str) -> None:
    """Of a graph that answers with tokens, a session learns it from there."""
    config = checkpoint("tiny-llama", "f32").config
    table = "model.embed_tokens.weight"
    assert table in matrices(config)
    rows = 272 if name.endswith("panels") else 257
    abi = graph_abi(config, "decode", "token", CAPACITY)
    tensors = ENCODINGS[name].tensors(table, (rows, 84)) if name else [abi.weights[0]]
    assert abi.weights[0].name == table
    assert _vocab_size(Abi("decode", (*tensors, *abi.arguments[1:]), abi.results)) == rows


@pytest.mark.parametrize("precision", only(["f32"], PRECISIONS))
def test_a_prompt_of_a_wide_model_compiles(precision: str, tmp_path: Path) -> None:
    """A look-up of rows that is fused with the norm after it needs more stack than IREE allows."""
    config = from_hf({**TINY["llama"], "hidden_size": 2048, "num_hidden_layers": 1, "vocab_size": 64})
    graph = emit(config, "prefill", "token", 64, 64, default_layout(config, precision))
    source = tmp_path / "prompt.mlir"
    source.write_text(graph.text)
    assert iree_compile(source, flags_of(graph))
    if precision in ("f32", *NARROW):
        (barrier,) = (line for line in graph.text.splitlines() if "optimization_barrier %embed_tokens" in line)
        source.write_text(graph.text.replace(barrier, "").replace(barrier.split()[0], barrier.split()[3]))
        with pytest.raises(ToolchainError, match="stack allocation limit"):
            iree_compile(source, flags_of(graph))


@pytest.mark.parametrize("name", QUANTIZED_PANELS)
def test_products_that_are_returned_and_multiplied_compile(name: str, tmp_path: Path) -> None:
    """As where a graph returns its anchors. IREE would make one dispatch of a product, what follows it and what is returned."""
    rows, columns = 1536, 576
    arguments = [Tensor("token", "x", (64, columns), "f32")]
    b = LayerBuilder()
    x = b.argument(TensorType((64, columns), "f32"), "x")
    weights = []
    for which in ("gate", "up"):
        tensors = ENCODINGS[name].tensors(which, (rows, columns))
        arguments += tensors
        weights.append(
            Matrix((rows, columns), name, tuple(b.argument(TensorType(t.shape, t.dtype), t.name) for t in tensors))
        )
    gate, up = (b.linear(x, weight) for weight in weights)
    results = [gate, up, b.multiply(b.silu(gate), up)]
    abi = Abi(
        "gate-zero", tuple(arguments), tuple(Tensor("tap", f"{i}", r.shape, "f32") for i, r in enumerate(results))
    )
    graph = dataclasses.replace(b.graph("mlp", abi, results), flags=FLAG_SETS["packed"])
    source = tmp_path / "mlp.mlir"
    source.write_text(graph.text)
    assert iree_compile(source, flags_of(graph))
