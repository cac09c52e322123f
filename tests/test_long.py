"""Contexts that are longer than a graph takes tokens: attention to a block of keys at a time, and prompts in parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from models import quick_xla
from nightly import only
from test_rows import FEW, S, T, alone, assert_alike, in_rows, sequences, session, tiny, write

from hloracle.backends.named import make_backend
from hloracle.backends.session import Session
from hloracle.conformance.checks.census import census_key, census_pin
from hloracle.conformance.graphs.facts import inspect
from hloracle.conformance.questions.prompts import Reach, suite
from hloracle.conformance.runs.beside import Beside, session_of
from hloracle.conformance.runs.returned import streams
from hloracle.core.abi import Graph
from hloracle.core.child import alone as one_process
from hloracle.core.errors import InputError
from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.emitters import layers
from hloracle.emitters import model as emitter
from hloracle.emitters.model import Emitter, emit
from hloracle.localize.anatomy import Anatomy, peer_of
from hloracle.localize.dissect import local_errors
from hloracle.localize.probes import probe
from hloracle.localize.situation import ReferenceRun
from hloracle.localize.workbench import Workbench
from hloracle.mutants import MUTANTS
from hloracle.reference.huggingface.anchor_truth import anchor_truth
from hloracle.reference.model.anchors import anchors, products
from hloracle.reference.model.contract import BUCKETS, GraphSpec, refuse_beyond_positions
from hloracle.reference.model.registry import FAMILIES
from hloracle.reference.model.weights import weight_shapes

LONG = 300  # slots: more than a block, and no whole number of them


@pytest.fixture
def blocks_of_24(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller than a part, larger than the windows; the last of 64 slots' has 16 keys of its own."""
    for module in (layers, emitter):
        monkeypatch.setattr(module, "BLOCK", 24)


# ---- graphs that attend to a block of keys at a time


@pytest.mark.usefixtures("blocks_of_24")
@pytest.mark.parametrize("family", only(FEW, FAMILIES))
def test_rows_in_blocks_give_what_their_sequences_give_alone(family: str) -> None:
    checkpoint, backend = tiny(family), quick_xla()
    some = sequences(checkpoint)
    wanted = alone(session("oracle", checkpoint, backend, 0), some)
    many = session("emitter", checkpoint, backend, 3)
    assert_alike(in_rows(many, some), wanted)


@pytest.mark.usefixtures("blocks_of_24")
@pytest.mark.parametrize("family", only(["deepseek_v3"], FEW))
def test_rows_in_blocks_on_iree(family: str) -> None:
    checkpoint, some = tiny(family), sequences(tiny(family))
    wanted = alone(session("oracle", checkpoint, quick_xla(), 0), some)
    assert_alike(in_rows(session("emitter", checkpoint, make_backend("iree-cpu", 2), 3), some), wanted)


def test_which_graphs_attend_in_blocks() -> None:
    config = tiny("llama").config

    def loops(spec: GraphSpec, on_device: bool = False) -> int:
        graph = Emitter(on_device=on_device).emit(config, *spec[:4], None, spec.batch)
        return inspect(graph).ops.get("while", 0)

    long = GraphSpec("extend", "logits", LONG, T)
    assert loops(long) == config.num_hidden_layers
    assert loops(long._replace(batch=3)) == config.num_hidden_layers
    assert loops(long, on_device=True) == 0
    assert loops(long._replace(capacity=layers.BLOCK)) == 0
    assert loops(GraphSpec("decode", "logits", LONG)) == 0
    assert loops(GraphSpec("prefill", "logits", LONG, T)) == 0


@pytest.mark.parametrize("slots", [300, 512, 600, 4096])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss"])
def test_the_census_of_blocks(family: str, slots: int) -> None:
    """It is of any number of slots; without the key it would be that of attention to all keys at once."""
    config = tiny(family).config
    graph = emit(config, "extend", "logits", slots, BUCKETS[-1])
    assert census_key("emitter", graph.abi, config).endswith("/blocks")
    assert not census_key("oracle", graph.abi, config).endswith("/blocks")
    pin, ops = census_pin("emitter", graph, config), inspect(graph).ops
    assert pin
    assert {op for op in {*pin, *ops} if pin.get(op, 0) != ops.get(op, 0)} <= {"constant"}
    assert ops["constant"] <= pin["constant"]


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "deepseek_v3"])
def test_products_of_a_graph_in_blocks(family: str) -> None:
    """What the last turn left is multiplied after the loop: one product with that of each turn, unless it is another one."""
    config = tiny(family).config
    graph = emit(config, "extend", "logits", LONG, BUCKETS[-1])
    assert sum(inspect(graph).matmuls.values()) == sum(products(config).values())
    *_, last = (line for line in graph.text.splitlines() if "dot_general" in line and ".loop#" in line)
    shares, kind = re.findall(r"%[\w.#]+", last)[1], re.findall(r"tensor<[\dx]+xf32>", last)[0]
    heads, rows, _ = re.findall(r"\d+", kind)[:3]
    dimensions = "batching_dims = [0] x [0], contracting_dims = [2] x [2]"
    types = f"({kind}, {kind}) -> tensor<{heads}x{rows}x{rows}xf32>"
    other = f"%other = stablehlo.dot_general {shares}, {shares}, {dimensions} : {types}"
    twice = f"%other = {last.partition(' = ')[2]}"
    for line, count in ((other, 1), (twice, 2)):  # of two that are alike, none is the last turn's
        more = inspect(replace(graph, text=graph.text.replace(last, f"{last}\n{line}")))
        assert not more.error
        assert sum(more.matmuls.values()) == sum(products(config).values()) + count


@pytest.mark.parametrize("family", ["llama", "gemma2", "deepseek_v3"])
def test_probes_of_a_graph_without_scores(family: str) -> None:
    """The oracle's are taken as a part of what they are for; read as a value, they would be other ones than the graph computes."""
    checkpoint = tiny(family)
    config = checkpoint.config
    graph, oracle = (
        write(source, checkpoint, GraphSpec("extend", "logits", LONG, T)) for source in ("emitter", "oracle")
    )
    bench = Workbench(quick_xla(), checkpoint.load, frozenset(weight_shapes(config)))
    mine = Anatomy(graph, config)
    assert not any(anchor.endswith((".scores", ".probs")) for anchor in mine.anchors)
    count, failures, _, left = probe(mine, peer_of(mine, oracle), bench, lambda line: None)
    assert (failures, left) == ([], [])
    assert count > 20
    _, failures, _, _ = probe(mine, Anatomy(oracle, config), bench, lambda line: None, locate=False)
    assert {f.anchor.partition(".self_attn.")[2] for f in failures} == {"context"}


@pytest.mark.parametrize("id", [m.id for m in MUTANTS.values() if m.capacity])
def test_a_fault_of_blocks_is_first_wrong_at_its_anchor(id: str) -> None:
    mutant = MUTANTS[id]
    checkpoint = tiny(mutant.architecture)
    config, n = checkpoint.config, mutant.capacity - 3
    tokens = np.random.default_rng(4).integers(0, config.vocab_size, n).tolist()
    with one_process():
        truth = anchor_truth(checkpoint, tokens)
    bench = Workbench(quick_xla(), checkpoint.load, frozenset(weight_shapes(config)))
    situation = ReferenceRun(truth, config, checkpoint.load, n, 64).prompt("extend", mutant.capacity)
    spec = GraphSpec("extend", "token", mutant.capacity, 64)
    with mutant.installed():
        wrong = write("emitter", checkpoint, spec)
    for graph, expected in ((write("emitter", checkpoint, spec), []), (wrong, [mutant.anchor])):
        errors, failed = local_errors(Anatomy(graph, config), situation, bench)
        assert not failed
        assert [a for a in anchors(config) if not errors.get(a, 0.0) <= ANCHOR_FLOORS][:1] == expected


# ---- prompts in parts


def both(capacity: int = S) -> list[Graph]:
    config = tiny("llama").config
    prompts = [emit(config, phase, "logits", capacity, T) for phase in ("prefill", "extend")]
    return [emit(config, "decode", "logits", capacity), *prompts]


def test_a_session_takes_a_prompt_whole_where_it_can_and_else_in_parts() -> None:
    tokens = sequences(tiny("llama"))[0].tokens
    here = Session(quick_xla(), both(), tiny("llama").load)
    apart = partial(Session, quick_xla(), weight=tiny("llama").load)
    whole, parts = apart(both()[:2]), apart([both()[0], both()[2]])
    called: list[str] = []
    for call in (*here._prefill.values(), *here._extend.values()):
        execute, phase = call.execute, call.abi.phase
        object.__setattr__(call, "execute", lambda given, e=execute, p=phase: called.append(p) or e(given))
    for n, expected in ((T, ["prefill"]), (T + 1, ["extend"] * 2), (S, ["extend"] * 2), (1, ["prefill"])):
        called.clear()
        head = here.prefill(tokens[:n])
        assert called == expected
        np.testing.assert_array_equal(head, (whole if n <= T else parts).prefill(tokens[:n]))
        assert here.position == n
    with pytest.raises(InputError, match=f"has {S + 1} tokens, more than the {S} cache slots"):
        here.prefill([1] * (S + 1))


def test_a_prompt_in_pieces_of_one_row() -> None:
    """A session of one row that is judged is given a prompt in parts, in others every other time, over what was there before."""
    some = sequences(tiny("llama"))
    wanted = alone(session("oracle", tiny("llama"), quick_xla(), 0), some)
    here = session_of(quick_xla(), [both()[0], both()[2]], tiny("llama").load)
    assert isinstance(here, Beside)
    pieces: list[list[int]] = []
    extend = here.extend
    here.extend = lambda tokens, *more: pieces[-1].append(len(tokens)) or extend(tokens, *more)  # type: ignore[method-assign]
    for s, right in zip(some * 2, wanted * 2, strict=True):
        pieces.append([])
        heads = [here.prefill(s.tokens[: s.prompt], T), *map(here.decode_step, s.tokens[s.prompt :])]
        assert_alike([(heads, here.caches())], [right])
    assert len({len(p) for p in pieces}) > 1
    assert type(session_of(quick_xla(), both()[:2], tiny("llama").load)) is Session


def test_a_prompt_of_several_parts_fills_the_cache(tmp_path: Path) -> None:
    config = tiny("llama").config
    found = {p.name: p for p in suite(tmp_path, config, Reach(1000, BUCKETS, in_parts=True), 48)}
    assert len(found["capacity"].token_ids) == 1000 - 48 + 1
    assert found["capacity"].bucket == BUCKETS[-1]
    assert "exactly at the last of 1000" in found["capacity"].why
    whole = {p.name: p for p in suite(tmp_path, config, Reach(1000), 48)}
    assert found["capacity"].token_ids[: BUCKETS[-1]] == whole["capacity"].token_ids
    assert {name: found[name] for name in found if name != "capacity"} == {
        n: whole[n] for n in whole if n != "capacity"
    }


def lengths(family: str, in_parts: bool) -> list[Sequence[int]]:
    return [s.lengths for s in streams(tiny(family).config, LONG, (32, 64), (), every_token=False, in_parts=in_parts)]


def test_beginnings_that_are_longer_than_the_bucket() -> None:
    assert lengths("llama", False) == [tuple(range(1, 65)), tuple(range(1, 33))]
    assert lengths("llama", True) == [(*range(1, 66), 182, 300), tuple(range(1, 33))]
    assert lengths("phi3", True) == lengths("phi3", False), "beyond its turning point a stream says nothing of a prompt"


def test_more_slots_than_positions() -> None:
    refuse_beyond_positions(tiny("llama").config, 1024)
    with pytest.raises(
        InputError, match=r"--capacity: is 1,025, and the model has 1,024 positions; ask for at most as many"
    ):
        refuse_beyond_positions(tiny("llama").config, 1025)
    refuse_beyond_positions(tiny("seed_oss").config, 1025)  # dynamic
