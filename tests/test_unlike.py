"""Which operation is named where only its numbers tell: of tables, masks, ranks, loops, and what is put in another order."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from models import S, T, changed, model, with_tables

from hloracle.core.abi import Graph
from hloracle.emitters.model import emit
from hloracle.localize.anatomy import Anatomy
from hloracle.localize.known_numbers import KnownNumbers, is_uniform
from hloracle.localize.operations import Found
from hloracle.localize.unlike import ARRANGED, COUNTED, MISPLACED, OTHER_ROWS, OTHER_TABLE, other_table, unlike
from hloracle.mutants import MUTANTS
from hloracle.reference.oracle.lower import lower

Q_ROPE = "layers.0.self_attn.q_rope"


@pytest.fixture(scope="module", autouse=True)
def _cache(cache: Path) -> None:
    """The models are in the session's cache."""


def emitted(name: str, phase: str, fault: str = "") -> Graph:
    """A graph of a small model; with a mutant's fault where one is named."""
    here = model(name)
    if not fault:
        return here.graph("emitter", phase)
    with MUTANTS[fault].installed():
        return emit(here.config, phase, "logits", S, T if phase == "prefill" else 0)


def found(
    name: str, wrong: Graph, anchor: str, results: tuple[int, ...] = (0,), look: Callable[..., Found | None] = unlike
) -> Found | None:
    here = model(name)
    phase = wrong.abi.phase
    mine, right = Anatomy(wrong, here.config), here.anatomy("oracle", phase)
    return look(mine, mine.subgraph(anchor), right, here.right(phase), here.bench(), results)


# ---- tables


@pytest.mark.parametrize(("phase", "kind"), [("prefill", "broadcast_in_dim"), ("decode", "dynamic_slice")])
def test_a_table_of_other_numbers(phase: str, kind: str) -> None:
    """It is named, and not the product with it; also where a number that is put in would do the same."""
    wrong = with_tables(emitted("plain", phase), lambda table: 1.25 * table)
    for look in (unlike, other_table):
        blamed = found("plain", wrong, Q_ROPE, look=look)
        assert blamed
        assert (blamed.step.name, blamed.why, blamed.by) == (f"stablehlo.{kind}", OTHER_TABLE, "likeness")


def test_a_right_table_is_no_other_one() -> None:
    for phase in ("prefill", "decode"):
        assert found("plain", emitted("plain", phase), Q_ROPE, look=other_table) is None
    # What is one number throughout is no table: the other graph may well do without it.
    assert found("plain", emitted("plain", "prefill"), "layers.0.input_layernorm", look=other_table) is None


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_both_tables_in_one_are_no_other_table(phase: str) -> None:
    """Somebody else's graph may take cosines and sines from one constant; another operation of it is wrong."""
    wrong = changed(emitted("plain", phase), r"add (%\S+), (%\S+) :", r"subtract \1, \2 :", Q_ROPE)
    wrong = with_one_table(wrong)
    for look in (unlike, other_table):
        blamed = found("plain", wrong, Q_ROPE, look=look)
        assert (blamed.step.name if blamed else "") == ("stablehlo.subtract" if look is unlike else "")


def with_one_table(graph: Graph) -> Graph:
    """A graph whose two tables of RoPE stand in one constant, one behind the other."""
    lines = graph.text.split("\n")
    places = [i for i, line in enumerate(lines) if 'dense<"0x' in line]
    tables = [
        re.search(r'(%\S+) = stablehlo.constant dense<"0x([0-9A-F]+)"> : tensor<(\d+)x(\d+)x(\d+)xf32>', lines[i])
        for i in places
    ]
    first, second = tables
    assert first
    assert second
    n, pairs, half = (int(first[i]) for i in (3, 4, 5))
    both = f'    %both = stablehlo.constant dense<"0x{first[2]}{second[2]}"> : tensor<{2 * n}x{pairs}x{half}xf32>'
    for at, (place, table) in enumerate(zip(places, (first, second), strict=True)):
        part = f"[{at * n}:{at * n + n}, 0:{pairs}, 0:{half}]"
        types = f"(tensor<{2 * n}x{pairs}x{half}xf32>) -> tensor<{n}x{pairs}x{half}xf32>"
        lines[place] = f"    {table[1]} = stablehlo.slice %both {part} : {types}"
    lines[places[0]] = f"{both}\n{lines[places[0]]}"
    return replace(graph, text="\n".join(lines))


def test_a_table_in_another_arrangement() -> None:
    """All its numbers are right, and so are those that it is multiplied with."""
    rolled = with_tables(emitted("plain", "prefill"), lambda table: np.roll(table, -1, axis=0))
    blamed = found("plain", rolled, Q_ROPE)
    assert blamed
    assert (blamed.step.name, blamed.why) == ("stablehlo.broadcast_in_dim", ARRANGED)
    assert "-> tensor<8x4x2x2xf32>" in blamed.step.text


def test_what_is_put_in_another_order_before_a_table() -> None:
    wrong = emitted("plain", "prefill", "rope-interleaved")
    blamed = found("plain", wrong, Q_ROPE)
    assert blamed
    assert blamed.step.name in ("stablehlo.transpose", "stablehlo.reshape")
    assert blamed.why == MISPLACED
    assert blamed.step.line < wrong.text[: wrong.text.index("stablehlo.multiply %l0_self_attn_q_rope")].count("\n") + 1


def test_rows_of_a_right_table_that_are_not_asked_for() -> None:
    """The table is right, and a step is turned as the first one."""
    wrong = changed(emitted("plain", "decode"), r"(dynamic_slice %c\d+), %position, (%\S+),", r"\1, \2, \2,", count=2)
    blamed = found("plain", wrong, Q_ROPE)
    assert blamed
    assert (blamed.step.name, blamed.why) == ("stablehlo.dynamic_slice", OTHER_ROWS)
    assert blamed.step.text == next(line.strip() for line in wrong.text.split("\n") if "dynamic_slice %c" in line)
    assert found("plain", wrong, Q_ROPE, look=other_table) is None


@pytest.mark.parametrize("capacity", [S, T])  # a chunk of T takes some rows of the table, or each of them
def test_the_place_at_which_rows_are_taken(capacity: int) -> None:
    """What makes it is named, where an operation does: of a chunk that is turned as if it began at 0."""
    here, sizes = model("plain"), (capacity, T)
    run = here.run()
    with MUTANTS["chunk-rope-from-zero"].installed():
        wrong = emit(here.config, "extend", "logits", *sizes)
    right = Anatomy(lower(here.config, "extend", "logits", *sizes), here.config)
    situation = run.prompt("extend", capacity)
    mine = Anatomy(wrong, here.config)
    blamed = unlike(
        mine, mine.subgraph(Q_ROPE), right, lambda name: situation.value(name, here.checkpoint.load), here.bench(), [0]
    )
    assert blamed
    assert blamed.step.type.endswith("i32>")
    assert blamed.why == OTHER_ROWS


# ---- masks and ranks


def test_a_rank_is_of_what_was_compared() -> None:
    """The weights of the wrong experts: what is named is where they are compared, and no sum of what is larger."""
    wrong = changed(
        emitted("experts", "prefill"),
        r"compare GT, (\S+), (\S+), FLOAT",
        r"compare LT, \1, \2, FLOAT",
        "layers.1.mlp.routing",
    )
    wrong = changed(wrong, r"compare GE, (\S+), (\S+), FLOAT", r"compare LE, \1, \2, FLOAT", "layers.1.mlp.routing")
    blamed = found("experts", wrong, "layers.1.mlp.routing")
    assert blamed
    assert (blamed.step.name, blamed.why) == ("stablehlo.compare", COUNTED)
    assert "FLOAT" in blamed.step.text


# ---- which of several results


def test_where_no_result_is_wrong_there_is_none_to_blame() -> None:
    assert found("plain", emitted("plain", "prefill"), "k_cache.0", ()) is None


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_scales_that_are_returned_as_they_were_taken(phase: str) -> None:
    """What takes them is named, and not the return, which takes that."""
    config, sizes = model("plain").config, (S, T if phase == "prefill" else 0)
    right = emit(config, phase, "logits", *sizes, kv="int8")
    assert [Anatomy(right, config).returned(role) for role in ("k_cache", "k_scale", "v_scale")] == [None] * 3
    with MUTANTS["kv-scale-not-returned"].installed():
        wrong = emit(config, phase, "logits", *sizes, kv="int8")
    anatomy = Anatomy(wrong, config)
    assert anatomy.returned("k_cache") is None
    for role in ("k_scale", "v_scale"):
        returned = anatomy.returned(role)
        assert returned
        assert returned.passed_on
        step = returned.step
        assert step.name == "stablehlo.reshape"
        assert step.text == wrong.text.split("\n")[step.line - 1].strip()
        assert step.value in wrong.text[wrong.text.index("func.return") :].split(" : ")[0]


def test_the_result_that_is_wrong_decides() -> None:
    """Keys are attended to as they are, and written to the wrong slot."""
    wrong = changed(
        emitted("plain", "prefill"),
        r"(update_slice %\S+, %\S+, %(\S+), %\S+), %\S+,",
        r"\1, %\2,",
        "layers.1.self_attn.k_cache",
    )
    blamed = found("plain", wrong, "k_cache.1", (1,))
    assert blamed
    assert blamed.step.name == "stablehlo.dynamic_update_slice"


# ---- numbers


def test_known_numbers() -> None:
    rng = np.random.default_rng(0)
    whole, other = rng.normal(size=(6, 7)).astype(np.float32), rng.normal(size=(5, 9)).astype(np.float32)
    known = KnownNumbers([whole, other], [np.array(3)])
    assert known.have(-whole.T)
    assert known.have(whole[:4], whole=False)
    assert not known.have(whole[:4], whole=True)
    assert not known.have(1.5 * whole)
    assert known.share(np.concatenate([whole.ravel(), 1.5 * whole.ravel()])) == pytest.approx(0.5, abs=0.02)
    assert known.share(np.full(3, np.nan)) == 1.0
    assert known.have_together(np.tile(whole, 2))
    assert not known.have_together(whole[:4])
    assert known.have_of_several(np.concatenate([whole.ravel(), other.ravel()]))
    assert not known.have_of_several(whole[:4])
    assert not known.have_of_several(np.concatenate([whole.ravel(), 1.5 * whole.ravel()]))
    assert known.placed(whole[None]) is True
    assert known.placed(whole[::-1]) is False
    assert known.placed(whole[:4]) is None
    assert known.placed(np.array(3)) is True
    assert known.placed(np.array(4)) is False


def test_uniform() -> None:
    assert is_uniform(np.zeros((2, 3)))
    assert is_uniform(np.array(5))
    assert not is_uniform(np.array([0.0, 1.0]))
    assert not is_uniform(np.zeros(0))
