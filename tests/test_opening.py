"""Graphs of other emitters opened together: which phase each is of, and one line where that is not said or not so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import toy
from foreign_graph import ABI, text
from graphs import run
from models import S, T, model

from hloracle.backends.session import Session
from hloracle.backends.xla import XlaCpu
from hloracle.core.abi import Graph
from hloracle.core.errors import InputError
from hloracle.emitters.model import emit
from hloracle.foreign.file import read_abi_file
from hloracle.foreign.opening import open_graphs
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import open_checkpoint


def opened(folder: Path, abi: str, **graphs: str) -> list[Graph]:
    (folder / "abi.toml").write_text(abi)
    paths = []
    for name, content in graphs.items():
        paths.append(folder / f"{name}.mlir")
        paths[-1].write_text(content)
    return open_graphs(paths, read_abi_file(folder / "abi.toml"), model("plain").checkpoint)


def refused(folder: Path, abi: str, **graphs: str) -> str:
    with pytest.raises(InputError) as caught:
        opened(folder, abi, **graphs)
    line = str(caught.value)
    assert line.isprintable()
    return line.removeprefix(f"{folder}/")


def decode(slots: int = S) -> str:
    return text(model("plain").config, 1, slots)


def prefill(tokens: int = T, slots: int = S) -> str:
    return text(model("plain").config, tokens, slots)


def test_both_phases_have_the_capacity_of_decode(tmp_path: Path) -> None:
    first, second = opened(tmp_path, ABI, decode=decode(16), prefill=prefill(T, S))
    assert [g.name for g in (first, second)] == ["decode", "prefill"]
    assert [(g.abi.phase, g.abi.capacity, g.rows) for g in (first, second)] == [("decode", 16, 2), ("prefill", 16, 2)]
    for graph in (first, second):
        graph.abi.validate()


def test_the_phase_follows_from_what_a_graph_takes(tmp_path: Path) -> None:
    """Where no `file` says it: one of several tokens is no decode, and one of a single token is."""
    without = "\n".join(line for line in ABI.split("\n") if not line.startswith("file = "))
    assert [g.abi.phase for g in opened(tmp_path, without, a=prefill(), b=decode())] == ["prefill", "decode"]


MISTAKES = {
    "no function": (ABI.replace('file = "decode*"', 'function = "step"'), "x",
                    "x.mlir: is called like none of prefill*; mend `file` in the ABI file"),
    "no functions": (ABI.replace('file = "decode*"', 'function = "step"').replace('file = "prefill*"', 'function = "run"'), "x",
                     "x.mlir: has none of @run (prefill), @step (decode); it has @main; name its function in the ABI file"),
    "another name": (ABI, "x", "x.mlir: is called like none of prefill*, decode*; mend `file` in the ABI file"),
    "another model": (ABI.replace("model.norm.weight", "model.norm.bias"), "decode", "abi.toml: weights: 'model.norm.bias', for "),
    "axes": (ABI.replace("logits : B 1 V", "logits : B 1 X"), "decode",
             "abi.toml: decode: result[0] (tensor<2x1x29xf32>): the axes 'B 1 X' are not those of logits; write it as docs/abi.md says"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake(name: str, tmp_path: Path) -> None:
    abi, stem, said = MISTAKES[name]
    assert refused(tmp_path, abi, **{stem: decode()}).startswith(said)


def test_a_graph_that_fits_two_phases(tmp_path: Path) -> None:
    twice = ABI.replace("[prefill", "[forward").replace('file = "prefill*"', "") + ABI[
        ABI.index("[prefill]") :
    ].replace('file = "prefill*"', "")
    said = refused(tmp_path, twice, a=prefill())
    assert said == 'a.mlir: fits prefill and forward; say which files are of which phase: `file = "decode*"`'


def test_a_text_that_is_none(tmp_path: Path) -> None:
    assert refused(tmp_path, ABI, decode="module { foo.bar }").startswith("decode.mlir:1:10: is not valid: ")
    assert refused(tmp_path, ABI, decode="module { }") == (
        "decode.mlir: has none of @main (prefill), @main (decode); it has none; name its function in the ABI file"
    )


def test_weights_that_are_held_in_an_encoding(tmp_path: Path) -> None:
    """A graph that takes int8 and scales, all in one order of its own, computes what it does with arguments of the contract."""
    quantized = open_checkpoint(resolve("tiny-llama", precision="int8"))
    graph = emit(quantized.config, "decode", "logits", S, 0, quantized.layout("int8"))
    entries = {
        "weights": [(i, a.name) for i, a in enumerate(graph.abi.arguments) if a.role == "weight"],
        "decode.inputs": [(i, a.role) for i, a in enumerate(graph.abi.arguments) if a.role != "weight"],
        "decode.results": [(i, r.role) for i, r in enumerate(graph.abi.results)],
    }
    tables = (f"[{table}]\n" + "".join(f'"{i}" = "{name}"\n' for i, name in of) for table, of in entries.items())
    (tmp_path / "abi.toml").write_text("version = 2\n" + "".join(tables))
    (tmp_path / "decode.mlir").write_text(graph.text)
    [opened] = open_graphs([tmp_path / "decode.mlir"], read_abi_file(tmp_path / "abi.toml"), quantized)
    answers = []
    for one in (graph, opened):
        session = Session(XlaCpu(), [one], quantized.load)
        session.reset()
        answers.append([np.asarray(session.decode_step(t)) for t in (3, 1, 4, 1, 5)])
    np.testing.assert_array_equal(*answers)


KEY = """
[state]
key = [0, 7]

[decode.inputs]
key = "state.key"
"""


def test_state_that_prefill_does_not_return(tmp_path: Path) -> None:
    """It begins with the first step after the prompt, as it would without one."""
    abi = toy.ABI.replace("[decode.inputs]", KEY).replace("[decode.results]", '[decode.results]\n3 = "state.key"')
    texts = {"prefill": toy.text("prefill"), "decode": toy.text("decode", keyed=True)}
    prefill_, decode_ = toy.opened(tmp_path, texts, abi)
    assert [r.name for r in prefill_.abi.results] == [r.name for r in decode_.abi.results]

    def call(graph: Graph, *inputs: np.ndarray) -> list[np.ndarray]:
        return run(graph, *(toy.checkpoint().load(w.name) for w in graph.abi.weights), *inputs)

    tokens = np.arange(3, 3 + toy.T, dtype=np.int32)
    _, *state = call(prefill_, tokens, np.int32(4))
    assert state[-1].tolist() == [0, 7]
    for position in (4, 5):
        _, *state = call(decode_, tokens[position], np.int32(position), *state)
    assert state[-1].tolist() == [2, 9]


def test_forward_beside_another(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        toy.opened(tmp_path, {phase: toy.text(phase) for phase in ("decode", "forward")})
    line = f"{tmp_path}/forward.mlir: is a forward graph, which hands no cache on to another; check it by itself"
    assert str(caught.value) == line


def test_state_of_two_types(tmp_path: Path) -> None:
    abi = toy.ABI.replace("[decode.inputs]", KEY).replace("[decode.results]", '[decode.results]\n3 = "state.key"')
    head, _, tail = abi.rpartition("[prefill.results]")
    tail = tail.replace('2 = "v_cache : L S K D"', '2 = "state.key"')
    abi = f"{head}[prefill.results]{tail}"
    texts = {"prefill": toy.text("prefill"), "decode": toy.text("decode", keyed=True)}
    with pytest.raises(InputError) as caught:
        toy.opened(tmp_path, texts, abi)
    assert (
        "abi.toml: state.key is result[2] (tensor<2x16x2x4xf32>) in prefill, and result[3] (tensor<2xui32>) in decode; "
        in str(caught.value)
    )
