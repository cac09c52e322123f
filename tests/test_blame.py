"""The operation that is to blame is named, its line is written as it should be, and whole graphs are put right."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from models import model

from hloracle.core.abi import Graph
from hloracle.localize.anatomy import Anatomy
from hloracle.localize.blame import Blame, Named, blame, found_by_likeness, found_by_repair
from hloracle.localize.calls import WRONG, Call, calls_of, probes_of
from hloracle.localize.mend import Mended, Mender
from hloracle.localize.patch import as_diff, lines_with, patched
from hloracle.localize.suspect import Suspect
from hloracle.repair.changes.missing import followed_by_one

PHASES = ("prefill", "decode")


def right(phase: str, name: str = "plain") -> Graph:
    return model(name).graph("emitter", phase)


def line(phase: str, value: str, name: str = "plain") -> str:
    """The line of the right graph that defines a value, without its indent."""
    (found,) = [one.strip() for one in right(phase, name).text.splitlines() if one.strip().startswith(f"%{value} = ")]
    return found


def wrong(phase: str, value: str, old: str, new: str, name: str = "plain") -> Graph:
    """The emitter's graph with one line changed."""
    graph, before = right(phase, name), line(phase, value, name)
    assert before.count(old) == 1
    return dataclasses.replace(graph, text=graph.text.replace(before, before.replace(old, new)))


def suspect(graph: Graph, name: str = "plain", probed: bool = True) -> Suspect:
    here = model(name)
    anatomy = Anatomy(graph, here.config)
    oracle = here.anatomy("oracle", graph.abi.phase) if probed else None
    calls = calls_of(here.run(), graph.abi.phase, here.capacity)
    return Suspect(anatomy, [*calls, *probes_of(anatomy, oracle, here.checkpoint.load)])


def blamed(graph: Graph, name: str = "plain", probed: bool = True) -> tuple[Suspect, Blame]:
    found = suspect(graph, name, probed)
    (anchor, *_) = found.wrong()
    return found, blame(found, anchor, 60)


def told(found: tuple[Suspect, Blame]) -> list[tuple[str, str]]:
    """What each candidate's operation is called, and what it should be."""
    plain = found[0].plain
    named = [Named.of(plain, candidate) for candidate in found[1].candidates]
    return [(one.text.partition(" = ")[0].removeprefix("%"), one.words) for one in named]


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "biases",
        "one-kv-head",
        "one-layer-tied",
        "one-of-each",
        "all-equal",
        "windows",
        "experts",
        "sinks",
        "latent",
    ],
)
@pytest.mark.parametrize("phase", PHASES)
def test_nothing_is_wrong_with_a_right_graph(name: str, phase: str) -> None:
    found = suspect(right(phase, name), name)
    assert found.wrong() == []
    assert max(off for a in found.anchors if not np.isnan(off := found.off(a))) <= 1


# The line of a value, what of it is changed into what, and the words for it.
FAULTS = {
    "operation": ("l1_mlp_act.mul1", "multiply", "maximum", "layers.1.mlp.act", "`maximum` should be `multiply`"),
    "wire": ("l1_mlp_act.mul1", "%l1_mlp_act.mul,", "%l0_mlp_act.mul,", "layers.1.mlp.act", "operand 0 should be %l1_mlp_act.mul, not %l0_mlp_act.mul"),
    "weight": (
        "l0_mlp_gate_proj.dot", "%model.layers.0.mlp.gate_proj.weight", "%model.layers.0.mlp.up_proj.weight", "layers.0.mlp.gate_proj",
        "operand 1 should be model.layers.0.mlp.gate_proj.weight, not model.layers.0.mlp.up_proj.weight",
    ),
    "constant": ("c4", "dense<0.08333333333333333>", "dense<0.25>", "layers.0.input_layernorm", "the constant should be 0.0833333"),
}  # fmt: skip


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", FAULTS)
def test_it_names_the_operation_and_writes_its_line(fault: str, phase: str) -> None:
    value, old, new, anchor, words = FAULTS[fault]
    if fault == "constant":  # its name is another one in each phase
        value, *_ = re.findall(r"%(\S+) = stablehlo.constant dense<0.0833", right(phase).text)
    graph = wrong(phase, value, old, new)
    found, came = blamed(graph)
    assert came.anchor == anchor
    assert told((found, came))[0] == (value, words)
    assert came.only
    lines = lines_with(found.anatomy, came.candidates[0].repairs[0].edit)
    assert lines
    if fault == "constant":
        assert suspect(patched(graph, lines)).wrong() == []
    else:
        assert patched(graph, lines).text == right(phase).text


def test_a_value_of_another_layer_blames_what_takes_it() -> None:
    """And no operation of that layer, though the subgraph has them."""
    graph = wrong("decode", "l1_self_attn_probs.sub", "%l1_self_attn_scores.sel", "%l0_self_attn_scores.mul")
    found, came = blamed(graph)
    assert came.anchor == "layers.1.self_attn.probs"
    assert told((found, came))[0] == (
        "l1_self_attn_probs.sub", "operand 0 should be %l1_self_attn_scores.sel, not %l0_self_attn_scores.mul",
    )  # fmt: skip
    places = {c.place for c in came.candidates} | {*found.subject(came.anchor).blamed}
    assert not [p for p in places if found.plain.scopes[p].startswith("layers.0")]


def test_a_constant_of_all_layers_is_told_from_its_use_in_one() -> None:
    """Another constant at one place; the constant itself is right everywhere else."""
    graph = right("decode")
    zero, infinity = (
        re.findall(rf"%(\S+) = stablehlo.constant dense<{n}> : tensor<f32>", graph.text)[0]
        for n in (r"0\.0", "0xFF800000")
    )
    found, came = blamed(wrong("decode", "norm.red", f"init: %{zero})", f"init: %{infinity})"))
    assert told((found, came))[0] == ("norm.red", f"operand 1 should be %{zero}, not %{infinity}")


def test_one_operation_too_many() -> None:
    """It is taken out, and what took its result takes what it took."""
    graph = right("decode")
    before = line("decode", "l1_mlp_act.mul1")
    twice = '%l1_mlp_act.more = stablehlo.cosine %l1_mlp_act.mul : tensor<1x20xf32> loc("layers.1.mlp.act")'
    text = graph.text.replace(
        f"    {before}", f"    {twice}\n    {before.replace('%l1_mlp_act.mul,', '%l1_mlp_act.more,')}"
    )
    found, came = blamed(dataclasses.replace(graph, text=text))
    assert told((found, came))[0] == ("l1_mlp_act.more", "without this `cosine`")
    lines = lines_with(found.anatomy, came.candidates[0].repairs[0].edit)
    assert lines
    assert patched(found.anatomy.graph, lines).text == graph.text


def test_a_factor_that_the_graph_has_elsewhere() -> None:
    """The scores of one layer are not scaled."""
    graph = right("decode")
    before = line("decode", "l1_self_attn_scores.mul")
    text = graph.text.replace(f"    {before}\n", "").replace("%l1_self_attn_scores.mul", "%l1_self_attn_scores.dot")
    scale = before.split(", ")[1].split(" ")[0]
    found = blamed(dataclasses.replace(graph, text=text))
    assert told(found)[0] == ("l1_self_attn_scores.dot", f"`multiply` with {scale} is missing after it")


def test_a_number_that_is_missing() -> None:
    """No layer's scores are scaled: the patch puts a factor in, with a constant of its own."""
    text = right("decode").text
    scale = line("decode", "l1_self_attn_scores.mul").split(", ")[1].split(" ")[0]
    lines = [one for one in text.splitlines() if "_self_attn_scores.mul = " not in one and f" {scale} = " not in one]
    unscaled = "\n".join(lines).replace("_self_attn_scores.mul", "_self_attn_scores.dot")
    found, came = blamed(dataclasses.replace(right("decode"), text=unscaled))
    ((value, words), *_) = told((found, came))
    assert came.anchor == "layers.0.self_attn.scores"
    assert value in ("l0_self_attn_scores.r", "l0_self_attn_scores.dot")  # to scale the queries is the same
    assert re.fullmatch(r"`multiply` with 0\.\d+ is missing after it", words)
    changed = lines_with(found.anatomy, came.candidates[0].repairs[0].edit)
    assert changed
    assert suspect(patched(found.anatomy.graph, changed)).wrong() == found.wrong()[1:]


def test_a_reduction_and_what_it_begins_with() -> None:
    graph = right("decode")
    before = line("decode", "l1_self_attn_probs.red1")
    (zero,) = re.findall(r"init: (%\S+)\)", before)
    one = "    %begin = stablehlo.constant dense<0xFF800000> : tensor<f32>\n"
    after = before.replace("stablehlo.add", "stablehlo.maximum").replace(zero, "%begin")
    found, came = blamed(dataclasses.replace(graph, text=graph.text.replace(f"    {before}", f"{one}    {after}")))
    words = "the reduction by `maximum` should be one by `add`, which begins with 0"
    assert told((found, came))[0] == ("l1_self_attn_probs.red1", words)
    lines = lines_with(found.anatomy, came.candidates[0].repairs[0].edit)
    assert lines
    assert suspect(patched(found.anatomy.graph, lines)).wrong() == []


def test_what_no_prompt_shows() -> None:
    """An epsilon that rules small values alone: the reference's are right, and other inputs show it."""
    (value,) = re.findall(r"%(l1_post_attention_layernorm.add) = stablehlo.add", right("decode").text)
    graph = wrong("decode", value, "stablehlo.add", "stablehlo.maximum")
    assert suspect(graph, probed=False).off("layers.1.post_attention_layernorm") < WRONG
    found, came = blamed(graph)
    assert (came.anchor, told((found, came))[0]) == (
        "layers.1.post_attention_layernorm",
        (value, "`maximum` should be `add`"),
    )


def test_what_overflows_is_infinite_here_too() -> None:
    """A softmax that does not take the largest score away is right in float64, and not in the graph's float32."""
    before = line("decode", "l1_self_attn_probs.exponential")
    operand = before.rpartition("exponential ")[2].partition(" :")[0]
    found = suspect(wrong("decode", "l1_self_attn_probs.exponential", operand, "%l1_self_attn_scores.sel"))
    assert found.wrong() == ["layers.1.self_attn.probs"]


def test_what_only_rounding_makes_wrong_is_not_repaired() -> None:
    """A large number that is added and taken away again: nothing of that shows where nothing is rounded."""
    before = line("decode", "l1_mlp_act.mul1")
    lost = [
        before.replace("%l1_mlp_act.mul1 =", "%kept ="),
        '%large = stablehlo.constant dense<1.0e+05> : tensor<1x20xf32> loc("layers.1.mlp.act")',
        '%more = stablehlo.add %kept, %large : tensor<1x20xf32> loc("layers.1.mlp.act")',
        '%l1_mlp_act.mul1 = stablehlo.subtract %more, %large : tensor<1x20xf32> loc("layers.1.mlp.act")',
    ]
    graph = dataclasses.replace(right("decode"), text=right("decode").text.replace(before, "\n    ".join(lost)))
    found = suspect(graph)
    assert found.wrong() == []
    assert blame(found, "layers.1.mlp.act", 60) == Blame("layers.1.mlp.act", (), 0, 0, False)


def test_a_layer_of_which_nothing_is_known_is_no_model() -> None:
    found = suspect(wrong("decode", "l0_mlp_act.mul1", "multiply", "maximum"))
    alike = blame(found, "layers.0.mlp.act", 60).candidates[0].like
    assert alike == "layers.1.mlp.act"
    telling, found._calls = found._calls, []
    unknown = suspect(found.anatomy.graph)
    unknown._calls = [Silent(call) for call in telling]
    assert np.isnan(unknown.off("layers.1.mlp.act"))
    assert blame(unknown, "layers.0.mlp.act", 60).candidates[0].like == ""


class Silent:
    """A call of which nothing is known in layer 1."""

    def __init__(self, call: Call) -> None:
        self.value, self.error, self._call = call.value, call.error, call

    def tells(self, anatomy: Anatomy, anchor: str) -> bool:
        return "layers.1" not in anchor and self._call.tells(anatomy, anchor)


def test_a_table_with_the_wrong_sign() -> None:
    """Floats are held in float64, and written in the type that the table has."""
    graph = right("decode")
    (before,) = [one for one in graph.text.splitlines() if one.strip().startswith('%c2 = stablehlo.constant dense<"0x')]
    digits = re.findall(r"0x([0-9A-F]+)", before)[0]
    turned = (-np.frombuffer(bytes.fromhex(digits), np.float32)).tobytes().hex().upper()
    found = mended(dataclasses.replace(graph, text=graph.text.replace(digits, turned)))
    assert found
    assert suspect(found.graphs[0]).wrong() == []


def mended(*graphs: Graph, name: str = "plain") -> Mended | None:
    here = model(name)
    mender = Mender(here.run(), [here.graph("oracle", phase) for phase in PHASES], lambda words: None)
    suspected = mender.suspect(graphs[0])
    came = mender.blame(graphs[0], suspected.wrong()[0])
    return mender.mended(graphs, (graphs[0], came.candidates[0].repairs[0].edit), "words")


def everywhere(phase: str, pattern: str, new: str) -> Graph:
    graph = right(phase)
    text, count = re.subn(pattern, new, graph.text)
    assert count > 1
    return dataclasses.replace(graph, text=text)


def test_the_same_mistake_in_every_layer_and_graph_is_mended() -> None:
    graphs = [everywhere(phase, r"stablehlo\.rsqrt", "stablehlo.sqrt") for phase in PHASES]
    found = mended(*graphs)
    assert found
    assert [g.text for g in found.graphs] == [right(phase).text for phase in PHASES]
    assert len(found.lines) == sum(right(phase).text.count("stablehlo.rsqrt") for phase in PHASES)
    assert found.diff.count("\n-    %") == found.diff.count("\n+    %") == len(found.lines)
    assert "--- a/llama_prefill_8_logits.mlir\n+++ b/llama_prefill_8_logits.mlir\n" in found.diff


def test_two_mistakes_are_mended_one_after_the_other() -> None:
    graph = wrong("decode", "l0_mlp_act.mul1", "multiply", "add")
    before = line("decode", "l1_self_attn_probs.div")
    graph = dataclasses.replace(graph, text=graph.text.replace(before, before.replace("divide", "multiply")))
    found = mended(graph)
    assert found
    assert found.graphs[0].text == right("decode").text


def test_what_no_change_of_one_operation_mends() -> None:
    graph = wrong("decode", "l1_mlp_act.mul1", "multiply", "atan2")
    before = line("decode", "l1_mlp_act.logistic")
    graph = dataclasses.replace(graph, text=graph.text.replace(before, before.replace("logistic %", "cosine %")))
    found, came = blamed(graph)
    assert came.candidates == ()
    assert found_by_repair(found, came) is None
    like = found_by_likeness(found, came.anchor)  # in layer 0 it is right
    assert like
    assert (like.step.value, like.by) == ("%l1_mlp_act.logistic", "likeness")
    assert (
        like.why == "it is computed otherwise than in layers.0.mlp.act, which is right, from what is computed as there"
    )


def test_new_values_have_names_that_are_free() -> None:
    """Where values are numbered, a name may not begin with a digit and go on with letters."""
    anatomy = model("plain").anatomy("oracle", "decode")
    plain = anatomy.plain()
    place = next(
        i for i, o in enumerate(plain.block.operations) if o.name == "stablehlo.multiply" and plain.lines[i][0]
    )
    for edit in followed_by_one(plain, place):
        lines = lines_with(anatomy, edit)
        assert lines
        assert re.match(r"\s*%new", lines[0].after[0])
        again = patched(anatomy.graph, lines)
        Anatomy(again, anatomy.config)
        taken = [*re.findall(r"%new[\w.]*", again.text), "%new_0"]
        text = again.text.replace(taken[0], taken[0] + "x")
        Anatomy(dataclasses.replace(again, text=text), anatomy.config)


def test_a_rounding_after_a_conversion_is_another_conversion() -> None:
    """Of the same name as the operation before it, and of other types."""
    graph = right("decode")
    before = line("decode", "l1_mlp_act.mul1")
    wide = [
        before.replace("%l1_mlp_act.mul1 =", "%kept ="),
        '%half = stablehlo.convert %kept : (tensor<1x20xf32>) -> tensor<1x20xbf16> loc("layers.1.mlp.act")',
        '%l1_mlp_act.mul1 = stablehlo.convert %half : (tensor<1x20xbf16>) -> tensor<1x20xf32> loc("layers.1.mlp.act")',
    ]
    anatomy = Anatomy(
        dataclasses.replace(graph, text=graph.text.replace(before, "\n    ".join(wide))), model("plain").config
    )
    plain = anatomy.plain()
    place = next(i for i, (_, text) in enumerate(plain.lines) if text.startswith("%l1_mlp_act.mul1 ="))
    (edit,) = [e for e in followed_by_one(plain, place) if "bf16" in e.words]
    lines = lines_with(anatomy, edit)
    assert lines
    assert ["f16>" in one.partition(" loc")[0].rpartition("->")[2] for one in lines[0].after] == [False, True, False]


def test_a_diff_that_patch_takes() -> None:
    graph = right("decode")
    other = wrong("decode", "l1_mlp_act.mul1", "multiply", "maximum")
    diff = as_diff(other, graph, "decode.mlir").splitlines()
    assert diff[:2] == ["--- a/decode.mlir", "+++ b/decode.mlir"]
    assert [one[:1] for one in diff].count("-") == 2
    assert as_diff(graph, graph, "decode.mlir") == ""
    cut, mended = (dataclasses.replace(g, text="a\nb" if g is other else "a\nc") for g in (other, graph))
    end = "\\ No newline at end of file"
    assert as_diff(cut, mended, "x.mlir").splitlines()[3:] == [" a", "-b", end, "+c", end]


def test_each_line_knows_what_wrote_it() -> None:
    graph = right("decode")
    lines = graph.text.splitlines()
    assert {i for i, one in enumerate(lines, 1) if " = " in one and one.startswith("    %")} - {
        i for i, one in enumerate(lines, 1) if one.startswith("    %model") or (": tensor" in one and " = stablehlo" not in one and "\"stablehlo" not in one)
    } == {*graph.origins}  # fmt: skip
    number = next(i for i, one in enumerate(lines, 1) if one.strip().startswith("%l1_mlp_act.mul1 = "))
    first, *others = graph.origins[number]
    source = (model("plain").checkpoint.directory, first.file, first.line)
    assert first.file.startswith("emitters/")
    assert source
    assert any(one.file == "emitters/architectures/llama.py" for one in others)
