"""A graph taken apart says what the whole graph says: every anchor is found, and every part computes what it should."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from models import LENGTH, PHASES, SHAPES, SOURCES, T, changed, interpreter, model, quick_xla

from hloracle.backends.session import Backend
from hloracle.backends.xla import XlaCpu
from hloracle.core.abi import Abi, Graph
from hloracle.core.errors import InputError
from hloracle.localize.anatomy import Anatomy, Subgraph
from hloracle.localize.annotate import variant
from hloracle.localize.text import without_locations
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.anchors import anchors, split
from hloracle.reference.model.registry import from_hf
from hloracle.reference.oracle.lower import lower

BACKENDS: dict[str, Callable[[], Backend]] = {
    "interpreter": interpreter,
    "xla-cpu": cache(XlaCpu),
    "xla-cpu quick": quick_xla,
}
GRAPHS = [f"{source}-{phase}" for source in SOURCES for phase in PHASES]
Value = Callable[[str], np.ndarray]


def of(id: str, name: str = "plain", head: str = "logits") -> Anatomy:
    return model(name).anatomy(*id.split("-"), head)


@cache
def inputs(name: str) -> Value:
    """Whatever a graph may be given, by an argument's name: seeded, and different for each name."""
    here = model(name)
    abi = here.graph("emitter", "decode").abi
    shapes = {a.name: a.shape for a in abi.arguments}

    def value(argument: str) -> np.ndarray:
        if argument in here.weights:
            return here.checkpoint.load(argument)
        rng = np.random.default_rng([ord(c) for c in argument])
        if argument == "tokens":
            return rng.integers(0, here.config.vocab_size, T).astype(np.int32)
        scalars = {"length": LENGTH, "position": here.capacity - 3, "token": 2}
        if argument in scalars:
            return np.array(scalars[argument], np.int32)
        return rng.normal(0, 1, shapes[argument]).astype(np.float32)

    return value


def evaluate(graph: Graph, value: Value, backend: str = "interpreter") -> dict[str, np.ndarray]:
    """Results by name."""
    on = BACKENDS[backend]()
    results = on.load(graph)([on.upload(value(a.name)) for a in graph.abi.arguments])
    return {t.name: on.download(r) for t, r in zip(graph.abi.results, results, strict=True)}


@cache
def tapped(id: str, name: str = "plain", backend: str = "interpreter") -> dict[str, np.ndarray]:
    """Every result of a graph with all its anchors tapped."""
    return evaluate(of(id, name).with_outputs(), inputs(name), backend)


def first_of(found: Mapping[str | int, np.ndarray], value: Value) -> Value:
    """What has been found already, else `value`."""
    return lambda name: found[name] if name in found else value(name)


def same(found: np.ndarray, expected: np.ndarray, *, bits: bool = False, place: object = "") -> None:
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), place
    finite = np.abs(expected[np.isfinite(expected)])
    tolerance = 0 if bits or found.dtype.kind in "bi" else 2**-18 * np.max(finite, initial=0.0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance, err_msg=str(place))


# ---- anchors


@pytest.mark.parametrize("id", GRAPHS)
@pytest.mark.parametrize("name", SHAPES)
def test_every_anchor_is_found(name: str, id: str) -> None:
    anatomy = of(id, name)
    assert anatomy.anchors == anchors(anatomy.config)
    assert len(set(anatomy.values.values())) == len(anatomy.values)
    for anchor, value in anatomy.values.items():
        assert ir.RankedTensorType(value.type).element_type == ir.F32Type.get(value.type.context), anchor
        wanted = tuple(n for n in anatomy.shape(anchor) if n != 1)
        assert tuple(n for n in ir.RankedTensorType(value.type).shape if n != 1) == wanted


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", SHAPES)
def test_both_sources_have_the_same_values_there(name: str, phase: str) -> None:
    """Of several values of a scope that have the anchor's shape, the right one."""
    found, expected = tapped(f"emitter-{phase}", name), tapped(f"oracle-{phase}", name)
    shape = of(f"emitter-{phase}", name).shape
    assert list(found)[3:] == list(expected)[3:] == list(anchors(model(name).config))
    for anchor in anchors(model(name).config):
        same(found[anchor].reshape(shape(anchor)), expected[anchor].reshape(shape(anchor)), place=anchor)


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_tapped_is_what_the_head_and_the_caches_are_made_of(name: str) -> None:
    for id in GRAPHS:
        found, phase = tapped(id, name), id.split("-")[1]
        same(found["lm_head"].reshape(-1), found["logits"], bits=True)
        filled = T if phase == "prefill" else model(name).capacity
        for part in ("k_cache", "v_cache"):
            for layer in range(model(name).config.num_hidden_layers):
                whole = found[part][layer, :, :filled]
                same(found[f"{part}.{layer}"].reshape(whole.shape), whole, bits=True)


@pytest.mark.parametrize("id", GRAPHS)
def test_the_token_is_an_anchor_of_a_graph_that_picks_it(id: str) -> None:
    anatomy = of(id, head="token")
    assert anatomy.anchors == (*anchors(anatomy.config), "token")
    piece = anatomy.subgraph("token")
    assert [a.name for a in piece.graph.abi.arguments] == ["lm_head"]
    logits = np.float32([-3, 2, 7, 7, 1, *[0] * 24])
    assert evaluate(piece.graph, lambda _: logits)["token"] == 2
    whole = evaluate(anatomy.graph, inputs("plain"))["token"]
    assert evaluate(anatomy.cut("token"), inputs("plain"))["token"] == whole
    assert "token" not in of(id).anchors


def test_a_function_of_another_name_among_others() -> None:
    """Its lines are counted from the beginning of the file."""
    graph = model("plain").graph("emitter", "decode")
    other = "  func.func private @main(%a: tensor<f32>) -> tensor<f32> {\n    func.return %a : tensor<f32>\n  }\n"
    text = graph.text.replace("@main", "@other").replace("  func.func public", f"{other}  func.func public", 1)
    anatomy = Anatomy(replace(graph, text=text, abi=replace(graph.abi, function="other")), model("plain").config)
    assert anatomy.anchors == anchors(anatomy.config)
    check_lines(anatomy, anatomy.subgraph("norm"))
    assert evaluate(anatomy.cut("norm"), inputs("plain"))["norm"].shape == (1, 12)


def printed(graph: Graph, **how: bool) -> Graph:
    with mlir.make_ir_context():
        module = ir.Module.parse(graph.text)
        return replace(graph, text=module.operation.get_asm(enable_debug_info=True, **how))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "how",
    [{}, {"use_local_scope": True}, {"print_generic_op_form": True}],
    ids=["aliases", "in place", "generic"],
)
def test_locations_in_every_form_that_mlir_prints(how: dict[str, bool], source: str) -> None:
    """Without further options, mlir-opt names locations at the end of the file."""
    graph = printed(model("plain").graph(source, "decode"), **how)
    anatomy = Anatomy(graph, model("plain").config)
    assert anatomy.anchors == anchors(anatomy.config)
    piece = anatomy.subgraph("layers.1.self_attn.probs")
    check_lines(anatomy, piece)


def test_locations_that_are_more_than_a_name() -> None:
    """As JAX writes them: with the place in Python behind the name, or of several at once."""
    graph = model("plain").graph("emitter", "decode")
    text = re.sub(r'loc\("(norm)"\)', r'loc("\1"(callsite("f"("a.py":1:2) at fused["b.py":3:4, "c"])))', graph.text)
    assert text != graph.text
    anatomy = Anatomy(replace(graph, text=text), model("plain").config)
    assert anatomy.anchors == anchors(anatomy.config)
    check_lines(anatomy, anatomy.subgraph("norm"))


@pytest.mark.parametrize(
    ("line", "bare"),
    [
        ("%0 = a %x : f32 loc(unknown)", "%0 = a %x : f32"),
        ("%0 = a %x : f32 loc(#loc12)", "%0 = a %x : f32"),
        ('f(%x: f32 loc(#loc1), %y: f32 loc("y)")) -> f32 {', "f(%x: f32, %y: f32) -> f32 {"),
        ("#loc3 = loc(callsite(#loc1 at #loc2))", ""),
        ('%0 = a {b = "loc("} : f32 loc("a)(\\"(") // loc(', '%0 = a {b = "loc("} : f32 // loc('),
        # JAX writes call stacks, as deep as they are.
        (f"%0 = a : f32 loc({'callsite(' * 90}unknown{')' * 90})", "%0 = a : f32"),
        ("%0 = a : f32 loc(callsite(", "%0 = a : f32 loc(callsite("),
    ],
)
def test_text_without_locations(line: str, bare: str) -> None:
    assert without_locations(line) == bare
    filled = without_locations(line, filled=" ")
    assert len(filled) == len(line) or not bare, "columns stay"
    assert "".join(filled.split()) == "".join(bare.split())


def test_a_table_in_a_line_with_a_location() -> None:
    """Millions of characters: a search that tries each of them again never ends."""
    table = f'%0 = stablehlo.constant dense<"0x{"00" * 2**20}"> : tensor<262144xf32>'
    assert without_locations(f"{table} loc(unknown)") == table


@pytest.mark.parametrize("id", GRAPHS)
def test_without_locations_there_are_no_anchors(id: str) -> None:
    graph = of(id).graph
    bare = Anatomy(replace(graph, text=re.sub(r" loc\([^()]*\)", "", graph.text)), model("plain").config)
    assert bare.anchors == ()
    with pytest.raises(InputError, match="has no anchor norm"):
        bare.subgraph("norm")
    for name, value in evaluate(bare.with_outputs(), inputs("plain")).items():
        same(value, tapped(id)[name], bits=True)


def without(id: str, *lost: str) -> Anatomy:
    """The anatomy of a graph whose last value of each scope in `lost` is outside of every scope."""
    graph = of(id).graph
    lines = graph.text.split("\n")
    for anchor in lost:
        last = max(i for i, line in enumerate(lines) if line.endswith(f'loc("{anchor}")'))
        lines[last] = lines[last].partition(" loc(")[0]
    return Anatomy(replace(graph, text="\n".join(lines)), model("plain").config)


@pytest.mark.parametrize("more", [(), ("mlp.down_proj",)])
@pytest.mark.parametrize("id", GRAPHS)
def test_the_sum_in_the_middle_of_a_block_does_not_stand_in_for_its_output(id: str, more: tuple[str, ...]) -> None:
    lost = ["layers.0", *(f"layers.0.{part}" for part in more)]
    anatomy = without(id, *lost)
    assert set(anchors(anatomy.config)) - set(anatomy.anchors) == set(lost)
    # What reads it is computed from what comes before.
    reader = "layers.1.input_layernorm"
    piece, found = anatomy.subgraph(reader).graph, tapped(id)
    assert "layers.0" not in [a.name for a in piece.abi.arguments]
    same(evaluate(piece, first_of(found, inputs("plain")))[reader], found[reader])


def test_what_does_not_parse() -> None:
    graph = of("emitter-decode").graph
    with pytest.raises(InputError, match="does not parse") as error:
        Anatomy(replace(graph, text=graph.text.replace("stablehlo.rsqrt", "stablehlo.rsqr")), model("plain").config)
    assert "\n" not in str(error.value)


def test_an_anchor_that_is_not_there() -> None:
    anatomy = of("emitter-decode")
    for method in (
        anatomy.subgraph,
        anatomy.cut,
        lambda a: anatomy.with_outputs([a]),
        lambda a: anatomy.spoiled(a, 2.0),
    ):
        with pytest.raises(InputError, match=r"has no anchor layers\.7"):
            method("layers.7")


# ---- pieces


def chain(anatomy: Anatomy, value: Value, backend: str = "interpreter") -> Iterator[tuple[str, np.ndarray]]:
    """Every anchor from the anchors before it, and the caches between the layers: each piece's results feed the next."""
    made: dict[str, np.ndarray] = {}
    for anchor in anatomy.anchors:
        piece = anatomy.subgraph(anchor)
        assert anchor not in [a.name for a in piece.graph.abi.arguments]
        found = evaluate(piece.graph, first_of(made, value), backend)
        made |= found
        yield from found.items()


@pytest.mark.parametrize("id", GRAPHS)
@pytest.mark.parametrize("name", SHAPES)
def test_pieces_together_are_the_whole(name: str, id: str) -> None:
    found = dict(chain(of(id, name), inputs(name)))
    whole = tapped(id, name)
    for anchor in anchors(model(name).config):
        same(found[anchor], whole[anchor], place=anchor)
    last = model(name).config.num_hidden_layers - 1
    for part in ("k_cache", "v_cache"):
        same(found[f"{part}.{last}+"], whole[part], place=part)


@pytest.mark.parametrize("id", ["emitter-prefill", "oracle-decode"])
def test_pieces_together_are_the_whole_on_xla(id: str) -> None:
    whole = tapped(id, backend="xla-cpu")
    for anchor, value in chain(of(id), inputs("plain"), "xla-cpu quick"):
        if anchor in whole:
            same(value, whole[anchor], place=anchor)


@pytest.mark.parametrize("id", GRAPHS)
def test_a_piece_takes_anchors_weights_and_inputs(id: str) -> None:
    anatomy = of(id, "biases")
    known = {a.name for a in anatomy.graph.abi.arguments}
    before: set[str] = set()
    used: set[str] = set()
    for anchor in anatomy.anchors:
        abi = anatomy.subgraph(anchor).graph.abi
        names = [a.name for a in abi.arguments]
        assert len(set(names)) == len(names)
        assert set(names) <= known | before, anchor
        assert abi.function == "main"
        before |= {r.name for r in abi.results}
        used |= set(names)
    assert known <= used, "every weight and input is read by a piece"


def operations(anatomy: Anatomy, anchor: str) -> list[str]:
    return [p.operation.name.partition(".")[2] for p in anatomy.subgraph(anchor).parts]


@pytest.mark.parametrize("phase", PHASES)
def test_a_piece_is_no_more_than_it_must_be(phase: str) -> None:
    anatomy = of(f"emitter-{phase}")
    assert operations(anatomy, "layers.1.mlp.act") == ["logistic", "multiply", "multiply"]
    assert operations(anatomy, "layers.0.self_attn.q_proj") == ["dot_general", "reshape"]
    # The sum in the middle of a block is no anchor: both that read it begin with it.
    assert operations(anatomy, "layers.0") == ["add", "add"]
    assert [a.name for a in anatomy.subgraph("layers.0").graph.abi.arguments] == [
        "embed_tokens", "layers.0.self_attn.o_proj", "layers.0.mlp.down_proj",
    ]  # fmt: skip


@pytest.mark.parametrize("id", GRAPHS)
def test_equal_pieces_of_two_layers_have_equal_texts(id: str) -> None:
    """So that each is compiled once."""
    anatomy = of(id, "biases")
    for anchor in (a for a in anatomy.anchors if split(a)[0] == 1):
        part = split(anchor)[1]
        if part not in ("k_cache", "v_cache"):  # these have the layer as a constant
            first = f"layers.0.{part}".rstrip(".")
            assert anatomy.subgraph(anchor).graph.text == anatomy.subgraph(first).graph.text, anchor


@pytest.mark.parametrize("id", GRAPHS)
def test_pieces_do_not_depend_on_what_was_asked_before(id: str) -> None:
    anatomy = of(id)
    forward = {a: anatomy.subgraph(a).graph for a in anatomy.anchors}
    anatomy.with_outputs()
    anatomy.spoiled("norm", 3.0)
    assert {a: anatomy.subgraph(a).graph for a in reversed(anatomy.anchors)} == forward


# ---- steps


def check_lines(anatomy: Anatomy, piece: Subgraph) -> None:
    lines = anatomy.graph.text.splitlines()
    steps = anatomy.steps(piece)
    assert steps
    for step in steps:
        assert lines[step.line - 1].strip() == step.text
        assert step.name in step.text
        assert step.text.startswith("%")
        assert re.fullmatch(r"%[\w.]+", step.value)
    assert [s.line for s in steps] == sorted({s.line for s in steps})


@pytest.mark.parametrize("id", ["emitter-decode", "oracle-prefill"])
def test_steps_one_by_one_are_the_piece(id: str) -> None:
    anatomy = of(id)
    value = first_of(dict(chain(anatomy, inputs("plain"))), inputs("plain"))
    texts = set()
    for anchor in anatomy.anchors:
        piece = anatomy.subgraph(anchor)
        if piece.graph.text in texts:
            continue
        texts.add(piece.graph.text)
        check_lines(anatomy, piece)
        results: list[np.ndarray] = []
        for i, step in enumerate(anatomy.steps(piece)):
            names = [a.name for a in step.graph.abi.arguments]
            assert all(isinstance(o, str) or o < i for o in step.operands)
            operands = [value(o) if isinstance(o, str) else results[o] for o in step.operands]
            (result,) = evaluate(step.graph, dict(zip(names, operands, strict=True)).__getitem__).values()
            results.append(result)
            bare = result.astype(np.int32) if result.dtype == bool else result
            kind = {"float32": "f32", "int32": "i32", "bool": "i1"}[result.dtype.name]
            assert step.type == f"tensor<{'x'.join([*map(str, bare.shape), kind])}>"
            (again,) = evaluate(anatomy.prefix(piece, i), value).values()
            same(again, result, bits=True, place=(anchor, step.name))
        # A cache's piece also gives the whole cache, which may come before the layer's share of it.
        last = evaluate(piece.graph, value)
        for expected in last.values():
            assert any(r.shape == expected.shape and np.array_equal(r, expected) for r in results), anchor


@pytest.mark.parametrize("id", GRAPHS)
def test_steps_stand_in_their_anchor(id: str) -> None:
    anatomy = of(id)
    for anchor in ("layers.1.self_attn.probs", "layers.0.mlp.act", "layers.1.self_attn.o_proj", "k_cache.1"):
        found = {s.anchor for s in anatomy.steps(anatomy.subgraph(anchor))}
        # The layers' numbers are in no layer.
        assert found == ({anchor, ""} if (anchor, id) == ("k_cache.1", "emitter-decode") else {anchor})


def test_lines_are_those_of_the_file() -> None:
    """One known line, found by hand."""
    anatomy = of("emitter-decode")
    (line,) = [i for i, t in enumerate(anatomy.graph.text.split("\n"), 1) if " %l1_mlp_act.logistic = " in t]
    step = anatomy.steps(anatomy.subgraph("layers.1.mlp.act"))[0]
    assert (step.line, step.value, step.name) == (line, "%l1_mlp_act.logistic", "stablehlo.logistic")
    assert step.type == "tensor<1x20xf32>"


def test_a_step_holds_its_constants() -> None:
    """The epsilon belongs to the sum that it is added in; no constant is a step."""
    anatomy = of("emitter-prefill")
    steps = anatomy.steps(anatomy.subgraph("norm"))
    assert "stablehlo.constant" not in [s.name for s in steps]
    (add,) = [s for s in steps if s.name == "stablehlo.add"]
    assert len(add.graph.abi.arguments) == len(add.operands) == 1
    assert "3.000000e-05" in add.graph.text or "2.99999" in add.graph.text


# ---- whole graphs


@pytest.mark.parametrize("id", GRAPHS)
def test_taps_do_not_change_what_a_graph_computes(id: str) -> None:
    """To the last bit, on XLA; and the graph that ships is not touched."""
    anatomy = of(id)
    before = str(anatomy.graph.text)
    found, plain = tapped(id, backend="xla-cpu"), evaluate(anatomy.graph, inputs("plain"), "xla-cpu")
    assert list(found)[:3] == list(plain) == ["logits", "k_cache", "v_cache"]
    for name, value in plain.items():
        same(found[name], value, bits=True, place=name)
    anatomy.with_outputs()
    assert anatomy.graph.text == before == model("plain").graph(*id.split("-")).text
    assert evaluate(anatomy.graph, inputs("plain")).keys() == plain.keys()


@pytest.mark.parametrize("id", GRAPHS)
def test_the_abi_of_a_tapped_graph(id: str) -> None:
    anatomy = of(id)
    chosen = ["norm", "layers.0.mlp.act", "k_cache.1"]
    graph = anatomy.with_outputs(chosen)
    abi = Abi(graph.abi.phase, graph.abi.arguments, graph.abi.results)
    abi.validate()
    assert abi.arguments == anatomy.graph.abi.arguments
    assert abi.results[:3] == anatomy.graph.abi.results
    assert [(r.role, r.name) for r in abi.results[3:]] == [("tap", c) for c in chosen]
    found = evaluate(graph, inputs("plain"))
    for tap in abi.results[3:]:
        assert found[tap.name].shape == tap.shape
        same(found[tap.name], tapped(id)[tap.name], bits=True)
    donated = re.findall(r"tf.aliasing_output = \d", anatomy.graph.text)
    assert re.findall(r"tf.aliasing_output = \d", graph.text) == donated
    assert len(donated) == (2 if abi.phase == "decode" else 0)


@pytest.mark.parametrize("id", GRAPHS)
def test_a_tapped_graph_has_its_anchors(id: str) -> None:
    """It may be written to a file, and that be judged."""
    anatomy = of(id)
    again = Anatomy(anatomy.with_outputs(), anatomy.config)
    assert again.anchors == anatomy.anchors
    check_lines(again, again.subgraph("layers.0.self_attn.probs"))
    probs = "layers.1.self_attn.probs"
    same(evaluate(again.cut(probs), inputs("plain"))[probs], tapped(id)[probs], bits=True)


@pytest.mark.parametrize("id", GRAPHS)
def test_a_graph_cut_off_is_its_tap(id: str) -> None:
    anatomy = of(id)
    for anchor in anatomy.anchors:
        graph = anatomy.cut(anchor)
        assert [r.name for r in graph.abi.results] == [anchor]
        assert {a.name for a in graph.abi.arguments} <= {a.name for a in anatomy.graph.abi.arguments}
        same(evaluate(graph, inputs("plain"))[anchor], tapped(id)[anchor], bits=True, place=anchor)


def test_a_graph_cut_off_takes_no_more_than_it_needs() -> None:
    names = {a.name for a in of("emitter-decode").cut("layers.0.self_attn.q_rope").abi.arguments}
    layer = "model.layers.0"
    assert names == {
        "model.embed_tokens.weight", f"{layer}.input_layernorm.weight", f"{layer}.self_attn.q_proj.weight",
        "token", "position",
    }  # fmt: skip


@pytest.mark.parametrize("id", ["emitter-prefill", "oracle-decode"])
def test_spoiled_changes_that_anchor_and_nothing_before(id: str) -> None:
    anatomy, right = of(id), tapped(id)
    order = list(anatomy.anchors)
    for i, anchor in enumerate(order):
        graph = anatomy.spoiled(anchor, 1.5)
        assert graph.abi == anatomy.graph.abi
        wrong = Anatomy(graph, anatomy.config)
        assert wrong.anchors == anatomy.anchors
        found = evaluate(wrong.with_outputs(), inputs("plain"))
        for earlier in order[:i]:
            same(found[earlier], right[earlier], bits=True, place=(anchor, earlier))
        same(found[anchor], right[anchor] * np.float32(1.5), bits=True, place=anchor)
        # It reaches the results: a fault that nothing reads would not be one.
        assert any(not np.array_equal(found[r], right[r]) for r in ("logits", "k_cache", "v_cache")), anchor
    assert anatomy.graph.text == model("plain").graph(*id.split("-")).text


@pytest.mark.parametrize("id", GRAPHS)
def test_every_graph_that_is_written_verifies(id: str) -> None:
    anatomy = of(id)
    graphs = itertools.chain(
        [anatomy.with_outputs(), anatomy.spoiled("norm", 2.0)],
        (anatomy.subgraph(a).graph for a in anatomy.anchors),
        (s.graph for s in anatomy.steps(anatomy.subgraph("layers.0.self_attn.scores"))),
    )
    for graph in graphs:
        with mlir.make_ir_context():
            assert ir.Module.parse(graph.text).operation.verify()


def test_every_graph_that_is_written_is_compiled_as_the_whole_is() -> None:
    """With data tiling IREE 3.9 loses a mask: without the whole's flags no part of it would show that."""
    flags = ("--iree-opt-data-tiling",)
    graph = replace(model("plain").graph("emitter", "prefill"), flags=flags)
    anatomy = Anatomy(graph, model("plain").config)
    piece = anatomy.subgraph("layers.0.self_attn.scores")
    written = [anatomy.with_outputs(), anatomy.spoiled("norm", 2.0), piece.graph, anatomy.prefix(piece, 2)]
    written += [anatomy.whole_prefix(piece, 2), variant(graph, [0]), *(s.graph for s in anatomy.steps(piece))]
    assert {g.flags for g in written} == {flags}
    assert replace(graph, flags=()).identity != graph.identity


def test_a_change_of_the_text_is_a_change_of_the_anatomy() -> None:
    """Nothing is kept between graphs of one name."""
    graph = model("plain").graph("emitter", "decode")
    wrong = Anatomy(changed(graph, "stablehlo.logistic", "stablehlo.tanh"), model("plain").config)
    assert operations(wrong, "layers.0.mlp.act")[0] == "tanh"
    assert operations(wrong, "layers.1.mlp.act")[0] == "logistic"


def test_an_operation_with_several_results_is_a_step_for_each_that_is_used() -> None:
    """JAX sorts keys together with their places, and goes on with the places: a router's top k."""
    config = from_hf(TINY["mixtral"])
    anatomy = Anatomy(lower(config, "decode", "logits", 32), config)
    piece = anatomy.subgraph("layers.0.mlp.routing")
    steps = anatomy.steps(piece)
    [sort] = [i for i, step in enumerate(steps) if step.name == "stablehlo.sort"]
    assert steps[sort].graph.abi.results[0].dtype == "i32"
    assert any(sort in step.operands for step in steps)
    assert [anatomy.prefix(piece, i).abi.results[0].dtype for i in range(len(steps))] == [
        step.graph.abi.results[0].dtype for step in steps
    ]


# ---- values of other types

OTHERS = {
    "token": "%t = stablehlo.after_all : !stablehlo.token",
    "tuple": "%t = stablehlo.tuple {x}, {x} : tuple<tensor<{n}f32>, tensor<{n}f32>>",
    "dynamic": "%t = stablehlo.add {x}, {x} : (tensor<{n}f32>, tensor<{n}f32>) -> tensor<{unknown}f32>",
    "complex": "%t = stablehlo.complex {x}, {x} : tensor<{n}complex<f32>>",
    "mask": "%t = stablehlo.compare EQ, {x}, {x} : (tensor<{n}f32>, tensor<{n}f32>) -> tensor<{n}i1>",
    "bits": "%t = stablehlo.bitcast_convert {x} : (tensor<{n}f32>) -> tensor<{n}ui32>",
}


@pytest.mark.parametrize("line", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("value", ["%norm.mul3", "%l1_self_attn_k_cache.dus", "%l1_self_attn_k_cache.r2"])
def test_a_value_of_another_type_is_no_anchors(value: str, line: str) -> None:
    """Though it is the last of its scope, and of the anchor's or the cache's shape."""
    graph, right = model("plain").graph("emitter", "decode"), of("emitter-decode")
    (old,) = (o for o in graph.text.split("\n") if o.strip().startswith(f"{value} = "))
    n, location = re.findall(r"tensor<((?:\d+x)+)f32>( loc\(.*\))$", old)[0]
    new = line.format(x=value, n=n, unknown=re.sub(r"\d+", "?", n)) + location
    anatomy = Anatomy(replace(graph, text=graph.text.replace(old, f"{old}\n{new}")), right.config)
    assert anatomy.anchors == right.anchors
    assert anatomy.with_outputs().abi == right.with_outputs().abi
    for anchor in right.anchors:
        assert anatomy.subgraph(anchor).graph == right.subgraph(anchor).graph


@pytest.mark.parametrize(
    "lines",
    [
        ["%s = stablehlo.tuple {x}, {x} : tuple<{t}, {t}>",
         "%u = stablehlo.get_tuple_element %s[1] : (tuple<{t}, {t}>) -> {t}"],
        ["%s = stablehlo.complex {x}, {x} : tensor<1x20xcomplex<f32>>", "%v = stablehlo.add %s, %s : tensor<1x20xcomplex<f32>>",
         "%w = stablehlo.subtract %v, %s : tensor<1x20xcomplex<f32>>",
         "%u = stablehlo.imag %w : (tensor<1x20xcomplex<f32>>) -> {t}"],
        ["%s = stablehlo.constant dense<[1, 20]> : tensor<2xi32>",
         "%d = stablehlo.dynamic_reshape {x}, %s : ({t}, tensor<2xi32>) -> tensor<?x?xf32>",
         "%u = stablehlo.dynamic_reshape %d, %s : (tensor<?x?xf32>, tensor<2xi32>) -> {t}"],
    ],
    ids=["tuple", "complex", "dynamic"],
)  # fmt: skip
def test_what_no_graph_can_be_given_belongs_to_the_operation_that_uses_it(lines: list[str]) -> None:
    graph, anchor = model("plain").graph("emitter", "decode"), "layers.1.mlp.act"
    (old,) = (line for line in graph.text.split("\n") if "stablehlo.logistic" in line and anchor in line)
    operand, type = re.findall(r"logistic (%\S+) : (\S+)", old)[0]
    new = [f'{line} loc("{anchor}")'.format(x=operand, t=type) for line in lines]
    text = graph.text.replace(old, "\n".join([*new, old.replace(operand, "%u")]))
    anatomy, right = Anatomy(replace(graph, text=text), model("plain").config), of("emitter-decode").subgraph(anchor)
    piece = anatomy.subgraph(anchor)
    first, *others = anatomy.steps(piece)
    check_lines(anatomy, piece)
    assert first.text.startswith("%u = ")
    assert [s.name for s in others] == ["stablehlo.logistic", *["stablehlo.multiply"] * 2]
    assert (first.operands, others[0].operands) == (("layers.1.mlp.gate_proj",), (0,))
    assert first.graph.text.count("stablehlo.") == len(lines)
    if "dynamic" in first.name:
        return  # which the interpreter does not compute
    x = np.linspace(-3, 3, 20, dtype=np.float32).reshape(1, 20)
    for one in (first.graph, anatomy.prefix(piece, 0)):
        (result,) = evaluate(one, lambda _: x).values()
        same(result, x)
    same(evaluate(piece.graph, lambda _: x)[anchor], evaluate(right.graph, lambda _: x)[anchor])


# ---- what comes after the logits


@pytest.mark.parametrize("id", GRAPHS)
@pytest.mark.parametrize("head", ["logits", "token"])
def test_no_tail_where_the_logits_are_returned(head: str, id: str) -> None:
    source, _ = id.split("-")
    if source == "emitter" or head == "logits":
        assert of(id, "plain", head).tail() is None


@pytest.mark.parametrize("phase", PHASES)
def test_the_tail(phase: str) -> None:
    """From the logits' anchor to what is returned, step by step."""
    graph = model("plain").graph("emitter", phase)
    (logits,) = set(re.findall(r"func\.return (%\S+),", graph.text))
    more = f"    %twice = stablehlo.add {logits}, {logits} : tensor<29xf32>\n    %tail = stablehlo.tanh %twice : tensor<29xf32>\n"
    text = graph.text.replace(f"    func.return {logits},", f"{more}    func.return %tail,")
    anatomy = Anatomy(replace(graph, text=text), model("plain").config)
    assert anatomy.anchors == of(f"emitter-{phase}").anchors
    tail = anatomy.tail()
    assert tail
    assert (tail.anchor, [a.name for a in tail.graph.abi.arguments]) == ("lm_head", ["lm_head"])
    x = np.linspace(-1, 1, 29, dtype=np.float32)
    (result,) = evaluate(tail.graph, lambda name: x).values()
    same(result, np.tanh(2 * x))
    assert [s.name for s in anatomy.steps(tail)] == ["stablehlo.add", "stablehlo.tanh"]
    (half,) = evaluate(anatomy.prefix(tail, 0), lambda name: x).values()
    same(half, 2 * x, bits=True)


# ---- private functions


def in_functions(graph: Graph) -> Graph:
    """The body moved to a private function, and each of its logistics to one more, as jax.jit's lowering does."""
    names = [a.name for a in graph.abi.arguments]
    signature, _, body = graph.text.partition(") -> (")
    results = re.findall(r"tensor<[^>]*>", body.partition("{\n")[0])
    types = re.findall(r"%\S+: (tensor<[^>]*>)", signature)
    act = re.findall(r"stablehlo\.logistic %\S+ : (tensor<[^>]*>)", body)[0]
    body = re.sub(r"stablehlo\.logistic (%\S+) : \S+", rf"func.call @act(\1) : ({act}) -> {act}", body)
    head, _, rest = signature.partition("  func.func public @main(")
    arguments = ", ".join(f"%a{i}" for i in range(len(names)))
    entry = ", ".join(f"%a{i}: {t}" for i, t in enumerate(types))
    returned = ", ".join(f"%r#{i}" for i in range(len(results)))
    kinds = f"({', '.join(types)}) -> ({', '.join(results)})"
    main = (
        f"  func.func public @main({entry}) -> ({', '.join(results)}) {{\n    %r:{len(results)} = func.call @body({arguments}) : "
        f"{kinds}\n    func.return {returned} : {', '.join(results)}\n  }}\n"
    )
    function = (
        f"  func.func private @act(%x: {act}) -> {act} {{\n    %y = stablehlo.logistic %x : {act}\n"
        f"    func.return %y : {act}\n  }}\n"
    )
    plain = re.sub(r" \{tf\.aliasing_output = \d : i32\}", "", f"  func.func private @body({rest}) -> ({body}")
    return replace(graph, text=f"{head}{main}{function}{plain}")


@pytest.mark.parametrize("phase", PHASES)
def test_a_graph_in_private_functions_has_the_same_anatomy(phase: str) -> None:
    here = model("plain")
    graph = here.graph("emitter", phase)
    assert "func.call" in in_functions(graph).text
    anatomy, right = Anatomy(in_functions(graph), here.config), of(f"emitter-{phase}")
    assert anatomy.anchors == right.anchors
    found, expected = evaluate(anatomy.with_outputs(), inputs("plain")), tapped(f"emitter-{phase}")
    assert list(found) == list(expected)
    for name, value in expected.items():
        same(found[name], value, place=name)
    for anchor in ("layers.0.mlp.act", "layers.1.self_attn.probs", "lm_head"):
        mine, others = ([s.name for s in a.steps(a.subgraph(anchor))] for a in (anatomy, right))
        assert mine == others
