"""Computations on inputs that no prompt reaches: right ones agree, and what only overflows or only ties shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from models import PHASES, SHAPES, SOURCES, Changing, changed, interpreter, model, quick_xla
from planting import planted

from hloracle.conformance import context as context_module
from hloracle.conformance.checks.check import Check
from hloracle.conformance.context import Context
from hloracle.conformance.runs.probes import run_probes
from hloracle.core.abi import Graph
from hloracle.core.child import ChildDied, alone
from hloracle.core.errors import ToolchainError
from hloracle.core.tolerances import MASKED_BELOW, SAME_INPUTS
from hloracle.emitters.model import emit
from hloracle.localize.anatomy import Anatomy
from hloracle.localize.inputs import SCALES, inputs, share_of
from hloracle.localize.probes import Failure, _both, probe
from hloracle.localize.workbench import Workbench
from hloracle.reference.fixtures.tiny import write_tiny
from hloracle.reference.model.anchors import anchors, split
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.oracle.lower import lower

A = "layers.1.self_attn"
INF, NAN = np.inf, np.nan


@pytest.fixture(scope="module", autouse=True)
def _cache(cache: Path) -> None:
    """The models are in the session's cache."""


def probed_graph(graph: Graph, name: str = "plain") -> tuple[int, list[Failure], float]:
    here = model(name)
    oracle = here.anatomy("oracle", graph.abi.phase)
    return probe(Anatomy(graph, here.config), oracle, here.bench(), lambda line: None)[:3]


# ---- right graphs


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", SHAPES)
def test_right_graphs_agree(name: str, phase: str) -> None:
    count, failures, worst = probed_graph(model(name).graph("emitter", phase, "token"), name)
    assert failures == []
    assert worst < 0.1, "far from what is allowed"
    # One of each part; the caches of both layers, and what the second layer reads from the first.
    assert count == (22 if model(name).config.num_hidden_layers == 1 else 27)


def test_right_graphs_agree_on_xla() -> None:
    """Where sums are in another order."""
    here = model("plain")
    bench = here.bench(quick_xla())
    emitter, oracle = (here.anatomy(source, "prefill") for source in SOURCES)
    count, failures, worst, _ = probe(emitter, oracle, bench, lambda line: None)
    assert (count, failures) == (26, [])
    assert worst < 0.1


def test_equal_computations_are_probed_once() -> None:
    lines: list[str] = []
    here = model("plain")
    emitter = here.anatomy("emitter", "decode", "token")
    count, _, _, _ = probe(emitter, here.anatomy("oracle", "decode"), here.bench(), lines.append)
    assert len(lines) == count < len(emitter.anchors)
    parts = {split(line.split()[1])[1] for line in lines}
    assert parts == {split(a)[1] for a in anchors(here.config)} | {"token"}


@pytest.mark.parametrize("weights", [("up_proj", "gate_proj"), ("v_proj", "k_proj")])
@pytest.mark.parametrize("layer", [0, 1])
def test_equal_texts_of_other_weights(layer: int, weights: tuple[str, str]) -> None:
    """Two projections of one shape have one text, whichever weight they take."""
    mine, other = weights
    graph = model("plain").graph("emitter", "decode")
    wrong = changed(graph, rf"(general.*model\.layers\.{layer}\.\S*){mine}\.weight,", rf"\1{other}.weight,")
    (failure,) = probed_graph(wrong)[1]
    assert failure.anchor.startswith(f"layers.{layer}.")
    assert failure.anchor.endswith(mine)


def test_weights_of_another_layer() -> None:
    graph = model("plain").graph("emitter", "decode")
    wrong = changed(graph, r"(general.*)model\.layers\.1\.mlp.up_proj", r"\1model.layers.0.mlp.up_proj")
    assert [f.anchor for f in probed_graph(wrong)[1]] == ["layers.1.mlp.up_proj"]


@pytest.mark.parametrize("hidden", ["-1.0e+30", "-3.40282347E+38"])
def test_scores_may_be_hidden_behind_any_number(hidden: str) -> None:
    """That softmax makes 0 of, at every scale."""
    graph = model("plain").graph("emitter", "prefill")
    text = graph.text.replace("dense<0xFF800000> : tensor<2x8x2x8xf32>", f"dense<{hidden}> : tensor<2x8x2x8xf32>")
    assert text != graph.text
    assert probed_graph(replace(graph, text=text))[1] == []


# ---- what no prompt reaches

# The phase, the scope of the line that is changed, what is replaced and by what; where it is found, at which scale.
FAULTS: dict[str, tuple[str, str, str, str, str, float]] = {
    "overflow": ("prefill", f"{A}.probs", r"exponential %\S+", "exponential %l1_self_attn_scores.sel", f"{A}.probs", 300.0),
    "overflow by the sign": ("decode", f"{A}.probs", "stablehlo.subtract", "stablehlo.add", f"{A}.probs", 300.0),
    "no epsilon": ("decode", "norm", r"rsqrt %norm.add", "rsqrt %norm.mul1", "norm", 1e-3),
    "epsilon outside the root": ("prefill", "norm", r"rsqrt %norm.add", "rsqrt %norm.mul1", "norm", 1e-3),
    "hidden too little": ("decode", "", r"dense<0xFF800000> : tensor<2x1x2x10xf32>", "dense<-50.0> : tensor<2x1x2x10xf32>", "layers.0.self_attn.scores", 1.0),
    "activation": ("decode", "layers.1.mlp.act", "stablehlo.logistic", "stablehlo.tanh", "layers.1.mlp.act", 1.0),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_probes_find(fault: str) -> None:
    phase, scope, old, new, anchor, scale = FAULTS[fault]
    wrong = changed(model("plain").graph("emitter", phase, "token"), old, new, scope)
    _, failures, worst = probed_graph(wrong)
    assert worst < 0.1, "the others agree"
    (failure,) = failures
    assert (failure.anchor, failure.phase) == (anchor, phase)
    assert failure.share > 1
    assert failure.scale == scale
    assert failure.found
    assert failure.found.step.text == wrong.text.split("\n")[failure.found.step.line - 1].strip()
    assert failure.found.step.anchor in (anchor, "")  # a constant stands in no scope
    assert re.search(new.replace("\\1", "").split("%")[0].strip(), failure.found.step.text)


def test_the_largest_of_nothing_but_negative_logits() -> None:
    graph = model("plain").graph("emitter", "decode", "token")
    wrong = changed(graph, r"^( *)(%token.red = \S+ init: )%c\d+", r"\1%zero = stablehlo.constant dense<0.0> : tensor<f32>\n\1\2%zero", "token")  # fmt: skip
    (failure,) = probed_graph(wrong)[1]
    assert (failure.anchor, failure.scale, failure.share) == ("token", 300.0, INF)


def test_the_last_of_equal_logits() -> None:
    graph = model("plain").graph("emitter", "decode", "token")
    wrong = graph.text
    for old, new in [
        ("dense<29> : tensor<29xi32>", "dense<-1> : tensor<29xi32>"),
        ("dense<29> : tensor<i32>", "dense<-1> : tensor<i32>"),
        ("applies stablehlo.minimum", "applies stablehlo.maximum"),
    ]:
        assert wrong.count(old) == 1
        wrong = wrong.replace(old, new)
    (failure,) = probed_graph(replace(graph, text=wrong))[1]
    assert (failure.anchor, failure.scale, failure.found) == ("token", 1.0, None)


def test_the_last_of_all_logits() -> None:
    """An argmax that leaves out the end of the vocabulary."""
    graph = model("plain").graph("emitter", "decode", "token")
    (iota,) = [line for line in graph.text.split("\n") if "%token.iota = " in line]
    last = "".join(["[", ", ".join(["29" if i == 28 else str(i) for i in range(29)]), "]"])
    wrong = replace(graph, text=graph.text.replace(iota, f'    %token.iota = stablehlo.constant dense<{last}> : tensor<29xi32> loc("token")'))  # fmt: skip
    (failure,) = probed_graph(wrong)[1]
    assert (failure.anchor, failure.scale) == ("token", 1e-3)


def test_the_operation_is_named() -> None:
    wrong = changed(
        model("plain").graph("emitter", "prefill"), "stablehlo.logistic", "stablehlo.tanh", "layers.0.mlp.act"
    )
    (failure,) = probed_graph(wrong)[1]
    assert failure.found
    assert failure.found.step.name == "stablehlo.tanh"
    assert failure.sole
    # To divide by the root is as right as to multiply with its reciprocal: either operation may be what is wrong.
    one_of_two = changed(model("plain").graph("emitter", "prefill"), "stablehlo.rsqrt", "stablehlo.sqrt", "norm")
    (failure,) = probed_graph(one_of_two)[1]
    assert failure.found
    assert (failure.anchor, failure.sole) == ("norm", False)


def test_every_layer_is_probed() -> None:
    """Equal pieces are one; one that is wrong is another."""
    for layer in (0, 1):
        wrong = changed(model("plain").graph("emitter", "decode"), "stablehlo.logistic", "stablehlo.tanh", f"layers.{layer}.mlp.act")  # fmt: skip
        assert [f.anchor for f in probed_graph(wrong)[1]] == [f"layers.{layer}.mlp.act"]


def test_a_cache_written_for_another_layer() -> None:
    graph = model("plain").graph("emitter", "prefill")
    wrong = changed(graph, r"(dus, %\S+), %c\d+, (%c\d+),", r"\1, \2, \2,", "layers.1.self_attn.v_cache")
    assert wrong != graph
    assert [f.anchor for f in probed_graph(wrong)[1]] == ["v_cache.1"]


# ---- inputs


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("scale", SCALES)
def test_both_graphs_are_given_the_same(scale: float, phase: str) -> None:
    here = model("biases")
    emitter, oracle = (here.anatomy(source, phase) for source in SOURCES)
    ours, theirs = (inputs(a, here.checkpoint.load, scale) for a in (emitter, oracle))
    for anchor in emitter.anchors:
        for anatomy in (emitter, oracle):
            for argument in anatomy.subgraph(anchor).graph.abi.arguments:
                value = ours(argument.name)
                np.testing.assert_array_equal(value, theirs(argument.name))
                np.testing.assert_array_equal(value, ours(argument.name))
                assert value.dtype == {"f32": np.float32, "i32": np.int32}[argument.dtype]
                assert value.size == np.prod(argument.shape)


def test_inputs_are_of_their_scale_and_not_equal() -> None:
    here = model("plain")
    for scale in SCALES:
        value = inputs(here.anatomy("emitter", "decode"), here.checkpoint.load, scale)
        names = [a for a in anchors(here.config) if split(a)[0] in (0, None) and a != "lm_head"]
        for name in names:
            drawn = value(name)
            if "probs" in name:
                np.testing.assert_allclose(drawn.sum(axis=-1), 1, rtol=1e-5)
            else:
                assert 0.1 < np.std(drawn[np.isfinite(drawn)]) / scale < 3, name
        # Those of a shape are told apart: what takes one for the other is seen.
        bytes_ = [value(n).tobytes() for n in names]
        assert len(set(bytes_)) == len(bytes_)
        assert np.isneginf(value("layers.0.self_attn.scores")).any()
        assert np.isfinite(value("layers.0.self_attn.scores")).any(axis=-1).all()


@pytest.mark.parametrize("phase", PHASES)
def test_attention_is_given_what_a_mask_leaves(phase: str) -> None:
    """A graph may hide slots once more; of what is seen nothing is 0."""
    here = model("windows")
    anatomy = here.anatomy("oracle", phase)
    value = inputs(anatomy, here.checkpoint.load, 1.0)
    first = int(value("position")) if phase == "decode" else 0
    for layer, of in enumerate(here.config.layers):
        probs = value(f"layers.{layer}.self_attn.probs")  # [K, T, G, S]
        keys, queries = np.arange(probs.shape[3])[None], first + np.arange(probs.shape[1])[:, None]
        seen = (keys <= queries) & (keys > queries - (of.window or probs.shape[3]))
        np.testing.assert_array_equal(probs > 0, np.broadcast_to(seen[None, :, None], probs.shape))


def test_indices_are_inside() -> None:
    for name in SHAPES:
        here = model(name)
        prefill, decode = (inputs(here.anatomy("emitter", phase), here.checkpoint.load, 1.0) for phase in PHASES)
        assert 0 < prefill("length") < 8, "a prompt that does not fill its bucket"
        assert 0 < decode("position") < here.capacity - 1
        for value in (prefill("tokens"), decode("token")):
            assert (value >= 0).all()
            assert (value < here.config.vocab_size).all()


def test_logits_for_the_choice_of_the_token() -> None:
    for name in SHAPES:
        here = model(name)
        tied, negative, last = (
            inputs(here.anatomy("emitter", "decode"), here.checkpoint.load, s)("lm_head") for s in SCALES
        )
        assert (tied == tied.max()).sum() > 1
        assert negative.max() < 0
        assert np.argmax(last) == len(last) - 1
        assert (last == last.max()).sum() == 1


# ---- shares


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("got", "expected", "share"),
    [
        (f32(1, 2, 4), f32(1, 2, 4), 0),
        (f32(1, 2, 4 + 4 * SAME_INPUTS), f32(1, 2, 4), 1),
        (f32(1, 2 + 2 * SAME_INPUTS, 4), f32(1, 2, 4), 0.5),
        (f32(0, 0), f32(0, 0), 0),
        (f32(0, 1e-30), f32(0, 0), INF),
        (f32(NAN, 1), f32(2, 1), INF),
        (f32(2, 1), f32(NAN, 1), INF),
        (f32(INF, 1), f32(INF, 1), 0),
        (f32(INF, 1), f32(3, 1), INF),
        (f32(3, 1), f32(INF, 1), INF),
        (f32(-INF, 1), f32(INF, 1), INF),
        (f32(INF, INF), f32(INF, INF), 0),
    ],
)
def testshare_of(got: np.ndarray, expected: np.ndarray, share: float) -> None:
    assert share_of("layers.0", got, expected) == pytest.approx(share)
    # Each row by itself, whatever axes of one element there are.
    rows = np.stack([expected, expected])
    assert share_of("layers.0", np.stack([got, expected])[None], rows) == pytest.approx(share)


def test_share_of_a_small_row() -> None:
    expected = np.stack([f32(1000, 2), f32(1, 2)])
    got = expected.copy()
    got[1, 0] += 4 * SAME_INPUTS
    assert share_of("norm", got, expected) == pytest.approx(2)


def test_share_of_scores() -> None:
    anchor = "layers.0.self_attn.scores"
    expected = f32(5, -INF, 3)
    assert share_of(anchor, f32(5, -INF, 3), expected) == 0
    assert share_of(anchor, f32(5, 5 - MASKED_BELOW, 3), expected) == 0
    assert share_of(anchor, f32(5, 6 - MASKED_BELOW, 3), expected) == INF
    assert share_of(anchor, f32(5, NAN, 3), expected) == INF
    assert share_of(anchor, f32(5, -INF, -INF), expected) == INF
    assert share_of(anchor, f32(5, -INF, 3.01), expected) > 1
    assert share_of("layers.0.self_attn.probs", f32(5, -1e9, 3), expected) == INF


def test_share_of_tokens() -> None:
    assert share_of("token", np.int32(3), np.int32(3)) == 0
    assert share_of("token", np.int32(3), np.int32(4)) == INF


# ---- the check


@pytest.fixture
def checkpoint(cache: Path) -> Checkpoint:
    return model("plain").checkpoint


@pytest.fixture
def on_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "backend", lambda self, name: interpreter())


def pairs(change: Callable[[Graph], Graph] = lambda graph: graph, head: str = "token") -> list[tuple[Graph, Graph]]:
    here = model("plain")
    return [(change(here.graph("emitter", phase, head)), here.graph("oracle", phase)) for phase in PHASES]


def probed(
    graphs: list[tuple[Graph, Graph]], checkpoint: Checkpoint, source: str = "emitter", reuse: bool = True
) -> tuple[Check, bool]:
    return run_probes(Context(reuse=reuse), source, graphs, checkpoint, source == "emitter")


@pytest.mark.usefixtures("on_the_interpreter")
def test_the_check_and_its_cache(checkpoint: Checkpoint, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with alone():
        (check, reused), (again, reused_then) = (probed(pairs(), checkpoint) for _ in range(2))
        assert (reused, reused_then) == (False, True)
        assert check == again
        assert (check.id, check.status) == ("emitter.probes", "passed")
        assert check.figure.startswith(f"{check.limit}, at 0.0")
        assert not probed(pairs(), checkpoint, reuse=False)[1], "asked to run whatever there is"
        with monkeypatch.context() as patch:
            patch.setattr(context_module, "versions", lambda packages: {"jax": "2"})
            assert not probed(pairs(), checkpoint)[1]
        monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
        assert not probed(pairs(), checkpoint)[1]


@pytest.mark.usefixtures("on_the_interpreter")
def test_the_check_of_a_wrong_graph(checkpoint: Checkpoint, empty_cache: Path) -> None:
    def wrong(graph: Graph) -> Graph:
        return changed(graph, "stablehlo.logistic", "stablehlo.tanh", "layers.1.mlp.act") if graph.abi.phase == "decode" else graph  # fmt: skip

    with alone():
        for reused in (False, True):
            check, found = probed(pairs(wrong), checkpoint)
            assert found == reused
            assert (check.status, check.anchor) == ("failed", "layers.1.mlp.act")
            assert check.operation.startswith("stablehlo.tanh %l1_mlp_act.logistic at line ")
            assert check.operation.endswith(" of llama_decode_token")
            assert "layers.1.mlp.act of llama_decode_token with inputs times" in check.detail
            agreed, _, count = check.figure.split(",")[0].partition(" of ")
            assert int(agreed) == int(count) - 1
            assert ", those at 0." in check.figure, "how far the wrong one is off is not what the others took"


@pytest.mark.usefixtures("on_the_interpreter")
def test_nothing_compared_does_not_pass(checkpoint: Checkpoint, empty_cache: Path) -> None:
    with alone():
        check, _ = probed([], checkpoint)
    assert check.status == "failed"


# ---- of graphs that somebody else wrote


def without_names(*kept: str) -> Callable[[Graph], Graph]:
    """The graph without locations, but for these anchors'."""

    def change(graph: Graph) -> Graph:
        lines = [
            line if line.endswith(tuple(f'loc("{a}")' for a in kept)) else re.sub(r' loc\("[^"]*"\)$', "", line)
            for line in graph.text.split("\n")
        ]
        return replace(graph, text="\n".join(lines))

    return change


@pytest.mark.parametrize("head", ["logits", "token"])
@pytest.mark.usefixtures("on_the_interpreter")
def test_the_check_of_a_file(head: str, checkpoint: Checkpoint, empty_cache: Path) -> None:
    """What it names is compared; a wrong piece is found; and where it names nothing, nothing is said."""
    with alone():
        whole, _ = probed(pairs(head=head), checkpoint, "file")
        assert (whole.id, whole.status, whole.missing) == ("file.probes", "passed", "")
        for reused in (False, True):
            none, found = probed(pairs(without_names(), head), checkpoint, "file")
            assert (none.id, none.status, found) == ("file.probes", "skipped", reused)
            assert "the graph names none, and none was found" in none.detail
        ours, _ = probed(pairs(without_names(), head), checkpoint)
        assert ours.status == "failed", "ours has to name them all"


@pytest.mark.parametrize("head", ["logits", "token"])
@pytest.mark.usefixtures("on_the_interpreter")
def test_a_file_that_names_some_anchors(head: str, checkpoint: Checkpoint, empty_cache: Path) -> None:
    """A piece is compared where both read the same anchors; one that begins further up is left out, and not wrong."""
    named = ("layers.1.mlp.up_proj", "layers.1.mlp.gate_proj", "layers.1.mlp.act")
    some = without_names(*named)

    def wrong(graph: Graph) -> Graph:
        return some(changed(graph, "stablehlo.logistic", "stablehlo.tanh", "layers.1.mlp.act"))

    with alone():
        right, _ = probed(pairs(some, head), checkpoint, "file")
        assert (right.status, right.limit) == ("passed", "2 of 2"), "act in prefill and in decode"
        assert right.missing.startswith(
            "probes of what is computed from other values than in the oracle: layers.1.mlp."
        )
        graphs = [pair[0].name for pair in pairs(some, head)]
        assert {f"layers.1.mlp.{part} of {graph}" for part in ("up_proj", "gate_proj") for graph in graphs} <= {
            *right.missing.partition(": ")[2].split(", ")
        }
        bad, _ = probed(pairs(wrong, head), checkpoint, "file")
        assert (bad.status, bad.anchor) == ("failed", "layers.1.mlp.act")


@pytest.mark.parametrize(
    "error", [ToolchainError("compile", "cannot be legalized"), ChildDied("_run died (signal SIGSEGV)")]
)
def test_a_toolchain_that_fails_is_no_pass(
    error: Exception, checkpoint: Checkpoint, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Context, "child", fails)
    check, reused = probed(pairs(), checkpoint)
    assert (check.status, reused) == ("error", False)
    assert str(error) in check.detail
    assert not list(empty_cache.rglob("*.json")), "and is not kept"


def test_a_compiler_that_gets_it_wrong_is_wrong_on_both_sides() -> None:
    """What is asked is whether two graphs are the same computation, not whether the compiler is right."""
    here = model("plain")
    bench = here.bench(Changing(lambda t: t.replace("stablehlo.rsqrt", "stablehlo.sqrt")))
    _, failures, _, _ = probe(
        here.anatomy("emitter", "decode"), here.anatomy("oracle", "decode"), bench, lambda line: None
    )
    assert failures == []


def test_the_operation_of_the_first_piece_that_differs() -> None:
    """The others are named, and nothing is looked for in them; nor anywhere, where a place is known already."""
    here = model("plain")
    graph = here.graph("emitter", "decode")
    wrong = Anatomy(replace(graph, text=graph.text.replace("stablehlo.rsqrt", "stablehlo.sqrt")), here.config)
    oracle = here.anatomy("oracle", "decode")
    for locate in (True, False):
        _, failures, _, _ = probe(wrong, oracle, here.bench(), lambda line: None, locate)
        assert [f.anchor for f in failures] == [
            *(f"layers.{i}.{norm}" for i in (0, 1) for norm in ("input_layernorm", "post_attention_layernorm")), "norm",
        ]  # fmt: skip
        assert failures[0].found is None or failures[0].found.step.name == "stablehlo.sqrt"
        assert [f.found is not None for f in failures] == [locate, *[False] * 4]


@pytest.mark.parametrize("fault", ["", "routing-ties-to-last"])
def test_the_first_of_equal_experts(fault: str, tmp_path: Path) -> None:
    """No prompt gives a router equal logits; which one is chosen then is to be transformers' choice all the same."""
    anchor, checkpoint = "layers.0.mlp.routing", open_checkpoint(write_tiny(tmp_path / "tiny", "mixtral"))
    config = checkpoint.config
    with planted(fault):
        emitter = Anatomy(emit(config, "decode", "logits", 32), config)
    oracle = Anatomy(lower(config, "decode", "logits", 32), config)
    bench = Workbench(quick_xla(), checkpoint.load, frozenset())
    got, expected = _both(emitter, oracle, emitter.subgraph(anchor), bench, SCALES[0])
    assert (share_of(anchor, got[0], expected[0]) > 1) == bool(fault)
