"""The operation inside a wrong piece: which one a compiler gets wrong, and which one a graph has in place of another."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from models import PHASES, SOURCES, Changing, changed, interpreter, model, quick_xla

from hloracle.core.abi import Graph
from hloracle.core.tolerances import SAME_INPUTS
from hloracle.localize.anatomy import Anatomy, Subgraph
from hloracle.localize.operations import Found, by_itself, differ, miscompiled, tolerance
from hloracle.localize.unlike import MISPLACED, NOWHERE, unlike

Value = Callable[[str], np.ndarray]


@pytest.fixture(scope="module", autouse=True)
def _cache(cache: Path) -> None:
    """The models are in the session's cache."""


# ---- whether two results differ

INF, NAN = np.inf, np.nan


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (f32(1, 2, 3), f32(1, 2, 3)),
        (f32(1, 2, 1000.1), f32(1, 2, 1000)),
        (f32(1, 2.1, 1000), f32(1, 2, 1000)),
        (f32(-INF, 1), f32(-INF, 1)),
        (f32(NAN, 1, INF), f32(NAN, 1, INF)),
        (f32(NAN, -INF), f32(NAN, -INF)),
        (f32(0, 0), f32(0, -0.0)),
        (f32(), f32()),
        (np.float32(2), np.float32(2)),
        (np.int32([1, 2]), np.int32([1, 2])),
        (np.array([True]), np.array([True])),
    ],
    ids=str,
)
def test_alike(got: np.ndarray, expected: np.ndarray) -> None:
    assert not differ(np.asarray(got), np.asarray(expected))


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (f32(1, 2, 1000.3), f32(1, 2, 1000)),
        (f32(1, 2), f32(1, 2, 3)),
        (f32(1, 2), f32(1, 2)[None]),
        (f32(-1, 2), f32(1, 2)),
        (f32(INF, 1), f32(-INF, 1)),
        (f32(1, 1), f32(-INF, 1)),
        (f32(-1e30, 1), f32(-INF, 1)),
        (f32(INF, 1), f32(1, 1)),
        (f32(NAN, 1), f32(1, 1)),
        (f32(1, 1), f32(NAN, 1)),
        (f32(-INF, 1), f32(NAN, 1)),
        (f32(1e-30, 0), f32(0, 0)),
        (f32(0), f32(1e-30)),
        (np.int32([1, 3]), np.int32([1, 2])),
        (np.int32([2**30 + 1]), np.int32([2**30])),
        (np.array([True, False]), np.array([True, True])),
        (np.float32(2.1), np.float32(2)),
    ],
    ids=str,
)
def test_apart(got: np.ndarray, expected: np.ndarray) -> None:
    assert differ(np.asarray(got), np.asarray(expected))


def test_numbers_of_bfloat16_are_numbers() -> None:
    """numpy does not count them among its own."""
    import ml_dtypes

    expected = f32(1, 2, 1000).astype(ml_dtypes.bfloat16)
    assert not differ(expected, expected)
    assert not differ(f32(NAN, 1).astype(ml_dtypes.bfloat16), f32(NAN, 1).astype(ml_dtypes.bfloat16))
    assert not differ(f32(1, 2.0625, 1000).astype(ml_dtypes.bfloat16), expected)
    assert differ(f32(1, 2, 1032).astype(ml_dtypes.bfloat16), expected)


def test_tolerance() -> None:
    assert tolerance(f32(-8, 1, NAN, -INF)) == 8 * SAME_INPUTS
    assert tolerance(f32(NAN, INF)) == 0
    assert tolerance(f32()) == 0
    assert tolerance(np.int32([4])) == 4 * SAME_INPUTS


# ---- a compiler that gets an operation wrong


def first_miscompiled(
    change: Callable[[str], str] | None, source: str = "emitter", phase: str = "decode"
) -> tuple[str, Found] | None:
    """The first piece in which an operation is miscompiled: by a change of the text, or by XLA."""
    here = model("plain")
    anatomy = here.anatomy(source, phase)
    value, trusted = here.right(phase), here.bench(interpreter())
    suspect = here.bench(Changing(change) if change else quick_xla())
    for anchor in anatomy.anchors:
        found = miscompiled(anatomy, anatomy.subgraph(anchor), value, suspect, trusted)
        if found:
            return anchor, found
    return None


NAMED = r"(stablehlo\.)%s( |\()"
WRONG_OPERATIONS: list[tuple[str, Callable[[str], str], str]] = [
    ("exponential", lambda t: t.replace("stablehlo.exponential ", "stablehlo.exponential_minus_one "), "layers.0.self_attn.probs"),
    ("divide", lambda t: t.replace("stablehlo.divide", "stablehlo.multiply"), "layers.0.self_attn.probs"),
    ("subtract", lambda t: re.sub(r"(stablehlo\.subtract) (%\S+), (%\S+) : (tensor<\S*f32>)", r"\1 \3, \2 : \4", t), "layers.0.self_attn.probs"),
    ("rsqrt", lambda t: t.replace("stablehlo.rsqrt", "stablehlo.sqrt"), "layers.0.input_layernorm"),
    ("logistic", lambda t: t.replace("stablehlo.logistic", "stablehlo.tanh"), "layers.0.mlp.act"),
    ("reverse", lambda t: re.sub(r"stablehlo\.reverse (%\S+), dims = \S+ : (tensor<\S+>)", r"stablehlo.negate \1 : \2", t), "layers.0.self_attn.q_rope"),
    ("compare", lambda t: re.sub(r"compare( +)LE", r"compare\1LT", t), "layers.0.self_attn.scores"),
    ("select", lambda t: re.sub(r"select (%\S+), (%\S+), (%\S+) :", r"select \1, \3, \2 :", t), "layers.0.self_attn.scores"),
    ("reduce", lambda t: t.replace("applies stablehlo.maximum", "applies stablehlo.minimum"), "layers.0.self_attn.probs"),
    ("dynamic_update_slice", lambda t: re.sub(r"(dynamic_update_slice %\S+, %\S+, %\S+), (%\S+), (%\S+),", r"\1, \3, \2,", t), "k_cache.0"),
    ("dynamic_slice", lambda t: re.sub(r"(dynamic_slice %\S+), (%\S+), (%\S+), (sizes = \[1, 12\])", r"\1, \3, \2, \4", t), "embed_tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "anchor"), WRONG_OPERATIONS, ids=[w[0] for w in WRONG_OPERATIONS])
def test_a_miscompiled_operation(name: str, change: Callable[[str], str], anchor: str) -> None:
    found = first_miscompiled(change)
    assert found
    assert (found[0], found[1].step.name) == (anchor, f"stablehlo.{name}")
    shown = found[1]
    assert shown.graph is shown.step.graph
    assert list(shown.inputs) == [a.name for a in shown.graph.abi.arguments]
    assert all(v.shape == a.shape for v, a in zip(shown.inputs.values(), shown.graph.abi.arguments, strict=True))
    assert shown.expected is not None
    assert differ(shown.got, shown.expected)
    assert shown.tolerance == tolerance(shown.expected)
    assert shown.why == "changing computes it otherwise than interpreter, from the same operands"
    # What is shown is enough: the inputs, through the right backend, give what is expected.
    (again,) = model("plain").bench().run(shown.graph, shown.inputs.__getitem__)
    np.testing.assert_array_equal(again, shown.expected)


@pytest.mark.parametrize("source", SOURCES)
def test_a_product_of_one_shape(source: str) -> None:
    """One tile size is wrong: 20 terms, so down_proj, in the graph of either source."""

    def halved(text: str) -> str:
        return re.sub(
            r"(%\S+) = stablehlo\.dot_general (.*tensor<1x20xf32>, .* -> (tensor<1x12xf32>).*)",
            r"%half = stablehlo.dot_general \2\n    \1 = stablehlo.add %half, %half : \3",
            text,
        )

    found = first_miscompiled(halved, source)
    assert found
    assert (found[0], found[1].step.name) == ("layers.0.mlp.down_proj", "stablehlo.dot_general")


def test_two_right_compilers() -> None:
    """XLA against the interpreter, operation by operation and together: nothing."""
    assert first_miscompiled(None) is None


def test_wrong_only_together_with_others() -> None:
    """What a compiler fuses: alone each operation is right."""

    def fused(text: str) -> str:
        return (
            text.replace("stablehlo.exponential ", "stablehlo.exponential_minus_one ") if "subtract" in text else text
        )

    found = first_miscompiled(fused)
    assert found
    anchor, shown = found
    assert (anchor, shown.step.name) == ("layers.0.self_attn.probs", "stablehlo.exponential")
    assert shown.why.endswith("but only together with the operations before it")
    # The piece up to there: no more.
    assert "stablehlo.exponential" in shown.graph.text
    assert "stablehlo.divide" not in shown.graph.text
    assert list(shown.inputs) == [a.name for a in shown.graph.abi.arguments] == ["layers.0.self_attn.scores"]
    (again,) = model("plain").bench().run(shown.graph, shown.inputs.__getitem__)
    assert shown.expected is not None
    np.testing.assert_array_equal(again, shown.expected)


def test_an_operation_is_given_right_operands() -> None:
    """Two are wrong, and what follows the first is not judged by it."""

    def both(text: str) -> str:
        return text.replace("stablehlo.divide", "stablehlo.multiply").replace(
            "stablehlo.exponential ", "stablehlo.cosine "
        )

    found = first_miscompiled(both)
    assert found
    assert found[1].step.name == "stablehlo.exponential"
    here = model("plain")
    anatomy = here.anatomy("emitter", "decode")
    piece = anatomy.subgraph("layers.0.self_attn.probs")
    right = by_itself(anatomy.steps(piece), here.right("decode"), here.bench())
    (whole,) = here.bench().run(piece.graph, here.right("decode"))
    np.testing.assert_array_equal(right[-1], whole)


# ---- a graph that has another operation


def anatomies(wrong: Graph) -> tuple[Anatomy, Anatomy]:
    return Anatomy(wrong, model("plain").config), model("plain").anatomy("oracle", wrong.abi.phase)


def blamed(wrong: Graph, anchor: str) -> Found | None:
    here = model("plain")
    emitter, oracle = anatomies(wrong)
    piece = emitter.subgraph(anchor)
    return unlike(emitter, piece, oracle, here.right(wrong.abi.phase), here.bench(), last_of(emitter, piece))


def last_of(anatomy: Anatomy, piece: Subgraph) -> list[int]:
    """The result that is computed last: of a cache the whole that was written, or what is read from that."""
    ends = [-1 if end is None else end for end in anatomy.ends(piece)]
    return [ends.index(max(ends))]


def local(graph: Graph) -> dict[str, float]:
    """How far each anchor is off by itself."""
    here = model("plain")
    situation, bench, anatomy = here.situation(graph.abi.phase), here.bench(), Anatomy(graph, here.config)
    found = {}
    for anchor in anatomy.anchors:
        got = bench.run(anatomy.subgraph(anchor).graph, here.right(graph.abi.phase))
        found[anchor] = float(np.max(situation.errors(anchor, got[0])))
    return found


A = "layers.1.self_attn"
# The line that is changed: its scope, what is replaced and by what; the anchor; the operation that is blamed.
FAULTS: dict[str, tuple[str, str, str, str, str]] = {
    "softmax's denominator": (f"{A}.probs", "applies stablehlo.add", "applies stablehlo.maximum", f"{A}.probs", "reduce"),
    "softmax's operands": (f"{A}.probs", r"divide (%\S+), (%\S+) :", r"divide \2, \1 :", f"{A}.probs", "divide"),
    "softmax's function": (f"{A}.probs", "stablehlo.exponential ", "stablehlo.exponential_minus_one ", f"{A}.probs", "exponential_minus_one"),
    "eps before the mean": ("norm", r"add %norm.mul1, %\S+", "add %norm.mul1, %norm.red", "norm", "add"),
    "norm's weight forgotten": ("norm", r"multiply %norm.mul2, %\S+", "multiply %norm.mul2, %norm.mul2", "norm", "multiply"),
    "norm of another mean": ("norm", r"multiply %norm.red, %\S+", "multiply %norm.red, %norm.red", "norm", "multiply"),
    "activation": ("layers.1.mlp.act", "stablehlo.logistic", "stablehlo.tanh", "layers.1.mlp.act", "tanh"),
    "gate times itself": ("layers.1.mlp.act", r"multiply %l1_mlp_act.mul, %\S+", "multiply %l1_mlp_act.mul, %l1_mlp_act.mul", "layers.1.mlp.act", "multiply"),
    "residual": ("layers.1", "stablehlo.add", "stablehlo.subtract", "layers.1.post_attention_layernorm", "subtract"),
    "k for v": (f"{A}.v_proj", "self_attn.v_proj.weight", "self_attn.k_proj.weight", f"{A}.v_proj", "dot_general"),
    "gate for up": ("layers.1.mlp.up_proj", "mlp.up_proj.weight", "mlp.gate_proj.weight", "layers.1.mlp.up_proj", "dot_general"),
    "rope's sign": (f"{A}.q_rope", r"add (%\S+), (%\S+) :", r"subtract \1, \2 :", f"{A}.q_rope", "subtract"),
    "scale twice": (f"{A}.scores", r"multiply (%\S+), (%\S+) :", r"divide \1, \2 :", f"{A}.scores", "divide"),
}  # fmt: skip


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", FAULTS)
def test_another_operation(fault: str, phase: str) -> None:
    scope, old, new, anchor, operation = FAULTS[fault]
    wrong = changed(model("plain").graph("emitter", phase), old, new, scope)
    errors = local(wrong)
    assert next(a for a, e in errors.items() if not e <= 16) == anchor, "the fault is where the test says"
    found = blamed(wrong, anchor)
    assert found
    line = wrong.text.split("\n")[found.step.line - 1]
    assert f"stablehlo.{operation}" in line
    assert re.search(new if "\\" not in new else operation, line), "the line that was changed, and nothing upstream"
    assert found.step.text == line.strip()
    assert found.expected is None
    # A sum of which only the largest term is left, 1, is a number that the right graph has too.
    assert found.why in (NOWHERE, MISPLACED)
    # What shows it is the piece up to there.
    assert list(found.inputs) == [a.name for a in found.graph.abi.arguments]
    (again,) = model("plain").bench().run(found.graph, found.inputs.__getitem__)
    np.testing.assert_array_equal(again, found.got)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    ("constant", "new", "anchor", "operation"),
    [
        (r"dense<0.5> : tensor<2x\dx2x\d+xf32>", "0.25", "layers.0.self_attn.scores", "multiply"),
        (r"dense<3.0e-05> : tensor<\dxf32>", "3.0e-02", "layers.0.input_layernorm", "add"),
        (r"dense<0.0833\d+> : tensor<\dxf32>", "0.1", "layers.0.input_layernorm", "multiply"),
    ],
)
def test_a_wrong_constant_is_that_of_its_user(constant: str, new: str, anchor: str, operation: str, phase: str) -> None:
    graph = model("plain").graph("emitter", phase)
    old = re.search(constant, graph.text)
    assert old
    wrong = changed(graph, re.escape(old[0]), old[0].replace(old[0][6 : old[0].index(">")], new))
    found = blamed(wrong, anchor)
    assert found
    assert found.step.name == f"stablehlo.{operation}"
    assert found.step.anchor == anchor


MOVED: dict[str, tuple[str, str, str, str, str, str]] = {
    "cache's slot and head": ("decode", "layers.1.self_attn.k_cache", r"(update_slice %\S+, %\S+, %\S+), (%\S+), (%\S+),", r"\1, \3, \2,", "k_cache.1", "dynamic_update_slice"),
    "cache's slot in prefill": ("prefill", "layers.1.self_attn.k_cache", r"(update_slice %\S+, %\S+, %(\S+), %\S+), %\S+,", r"\1, %\2,", "k_cache.1", "dynamic_update_slice"),
    "mask": ("decode", "", "compare LE,", "compare LT,", "layers.0.self_attn.scores", "compare"),
    "causal mask": ("prefill", "", "compare LE,", "compare GE,", "layers.0.self_attn.scores", "compare"),
    "last row": ("prefill", "", r"%sub = stablehlo.subtract", "%sub = stablehlo.add", "norm", "add"),
    "heads of the context": ("prefill", f"{A}.context", r"dims = \[1, 0, 2, 3\]", "dims = [1, 2, 0, 3]", f"{A}.context", "transpose"),
}  # fmt: skip


@pytest.mark.parametrize("fault", MOVED)
def test_right_numbers_in_wrong_places(fault: str) -> None:
    phase, scope, old, new, anchor, operation = MOVED[fault]
    wrong = changed(model("plain").graph("emitter", phase), old, new, scope)
    found = blamed(wrong, anchor)
    assert found
    assert found.step.name == f"stablehlo.{operation}"
    assert found.step.text == wrong.text.split("\n")[found.step.line - 1].strip()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", ["plain", "one-kv-head", "one-of-each", "all-equal"])
def test_nothing_of_a_right_piece_is_strange(name: str, phase: str) -> None:
    """The two graphs are lowered differently everywhere, and nothing of that counts: only the last operation is left."""
    here = model(name)
    emitter, oracle = (here.anatomy(source, phase) for source in SOURCES)
    bench, texts = here.bench(), set()
    for anchor in emitter.anchors:
        piece = emitter.subgraph(anchor)
        if piece.graph.text not in texts:
            texts.add(piece.graph.text)
            found = unlike(emitter, piece, oracle, here.right(phase), bench, last_of(emitter, piece))
            assert found
            assert found.step == emitter.steps(piece)[-1], anchor


def test_a_piece_without_operations() -> None:
    """An anchor that is an argument, or a constant: nothing to blame."""
    here = model("plain")
    graph = here.graph("emitter", "decode")
    wrong = changed(
        graph, r"%norm\.mul3 = .*", '%norm.mul3 = stablehlo.constant dense<1.0> : tensor<1x12xf32> loc("norm")'
    )
    emitter, oracle = anatomies(wrong)
    assert emitter.steps(emitter.subgraph("norm")) == []
    assert unlike(emitter, emitter.subgraph("norm"), oracle, here.right("decode"), here.bench(), [0]) is None
    assert miscompiled(emitter, emitter.subgraph("norm"), here.right("decode"), here.bench(), here.bench()) is None


@pytest.mark.parametrize("phase", PHASES)
def test_values_that_are_not_finite(phase: str) -> None:
    """An overflow is found where it is made: an exponential of what was not shifted."""
    here = model("plain")
    wrong = changed(
        here.graph("emitter", phase),
        r"stablehlo.exponential %\S+",
        "stablehlo.exponential %l1_self_attn_scores.sel",
        f"{A}.probs",
    )
    emitter, oracle = anatomies(wrong)
    big = np.full(emitter.shape(f"{A}.scores"), 300, np.float32) + np.arange(emitter.keys, dtype=np.float32) / 2
    found = unlike(emitter, emitter.subgraph(f"{A}.probs"), oracle, lambda _: big, here.bench(), [0])
    assert found
    assert found.step.name in ("stablehlo.exponential", "stablehlo.divide")
