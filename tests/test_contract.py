"""What somebody else's graph does with its state, its arguments and its masks is looked at, and no reference is needed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small
import toy
from models import quick_xla

from hloracle.backends.named import Choice
from hloracle.cli import main as cli
from hloracle.conformance.checks.check import Check
from hloracle.conformance.checks.of_contract import TITLES, contract_checks, state_returned
from hloracle.conformance.context import Context
from hloracle.conformance.evidence import Run
from hloracle.conformance.graphs.facts import GraphFacts
from hloracle.conformance.looking import look_at_contract
from hloracle.conformance.runs import contract
from hloracle.conformance.runs.own import Bench, Own, Results, congruent, difference
from hloracle.conformance.settings import Settings
from hloracle.core.abi import Graph
from hloracle.core.child import ChildDied, TimedOut, alone
from hloracle.core.errors import ToolchainError
from hloracle.core.tolerances import HIDDEN, HIDDEN_NARROW
from hloracle.foreign.apart import apart
from hloracle.reports.record import load

CONTEXT = Context(backends=(Choice("xla-cpu", "xla", lambda threads: quick_xla(), "XLA", quick=True),))

CACHES = '"kv[0]" = "k_cache : L S K D"\n"kv[1]" = "v_cache : L S K D"'
RETURNED = '1 = "k_cache : L S K D"\n2 = "v_cache : L S K D"'
KEY = '[state]\nkey = [3, 4]\n[decode.inputs]\nkey = "state.key"'
# The same of each layer by itself.
OWN = "\n".join(f'"kv[{i}]" = "{"kv"[i % 2]}_cache.{i // 2} : S K D"' for i in range(2 * toy.L))
LAYERS = "\n".join(f'{i + 1} = "{"kv"[i % 2]}_cache.{i // 2} : S K D"' for i in range(2 * toy.L))


def looked(graphs: list[Graph]) -> dict[str, Check]:
    """The checks of graphs by their kinds."""
    seen = contract._looked(CONTEXT, [(g, ()) for g in graphs], toy.checkpoint())
    return {c.kind: c for c in contract_checks("file", seen)}


def test_right_graphs(tmp_path: Path) -> None:
    found = looked(toy.opened(tmp_path, {phase: toy.text(phase) for phase in ("decode", "prefill")}))
    assert [*found] == [*TITLES] == [*contract.KINDS]
    assert {kind: c.detail for kind, c in found.items() if c.status != "passed"} == {}
    weights = 9 * toy.L + 3
    assert found["inputs-matter"].figure == f"{2 * weights + 6 + 3} of {2 * weights + 6 + 3}"
    assert found["unused-slots"].figure == "0 of the largest value"


FAULTS = [
    ("decode", "position", "position-matters", "decode gives the same logits at position 3 and at position 9"),
    ("decode", "rope", "position-matters", "decode writes the same keys for a token at position 3 and at position 9"),
    ("decode", "row", "cache-written", "decode at position 0 leaves slot 0 of v_cache as it was, in layer 1"),
    ("decode", "part of a row", "cache-written", "decode at position 0 leaves a part of slot 0 of k_cache as it was, in every layer"),
    ("decode", "slot", "cache-written", "decode at position 0 changes slot 1 of k_cache.0"),
    ("decode", "weight", "inputs-matter", "decode gives the same whatever `model.layers.1.mlp.up_proj.weight` is"),
    ("decode", "argument", "inputs-matter", "decode gives the same whatever `cache_len` is"),
    ("decode", "mask", "inputs-matter", "decode gives the same whatever `mask` is"),
    ("decode", "window", "mask-hides", "with what is in slot 10 of layer 0, behind its window of 5 (decode at position 15)"),
    ("decode", "unused slots", "unused-slots", "with what is in slot 9 of the caches, which no call has filled (decode at position 8)"),
    ("prefill", "position", "inputs-matter", "prefill of 8 tokens gives the same whatever `positions` is"),
    ("prefill", "rope", "position-matters", "prefill of 8 tokens gives a token the same keys at position 0 and at position 1"),
    ("prefill", "row", "cache-written", "prefill of 8 tokens leaves zeros in slot 0 of v_cache.1"),
    ("prefill", "weight", "inputs-matter", "prefill of 8 tokens gives the same whatever `model.layers.1.mlp.up_proj.weight` is"),
    ("prefill", "later", "mask-hides", "with token 5, which stands behind it (prefill of 8 tokens)"),
    ("prefill", "window", "mask-hides", "with token 0, behind the window of 5 in layer 0 (prefill of 8 tokens)"),
    ("prefill", "padding", "padding-hidden", "with the tokens behind a prompt of 6 (prefill of 8 tokens)"),
]  # fmt: skip


@pytest.mark.parametrize(("phase", "fault", "kind", "words"), FAULTS, ids=[f"{p}-{f}" for p, f, _, _ in FAULTS])
def test_a_fault_is_found(phase: str, fault: str, kind: str, words: str, tmp_path: Path) -> None:
    found = looked(toy.opened(tmp_path, {phase: toy.text(phase, fault)}))
    # A verdict names the first.
    assert next(c.kind for c in found.values() if c.bad) == kind
    assert found[kind].status == "failed"
    assert words in found[kind].detail


def test_a_graph_that_answers_with_a_token(tmp_path: Path) -> None:
    """Its caches show what the token does not."""
    abi = toy.ABI.replace('0 = "logits : B V"', '0 = "token : B"')
    right, wrong = (toy.text("decode", fault, picks=True) for fault in ("", "unused slots"))
    assert not any(c.bad for c in looked(toy.opened(tmp_path, {"decode": right}, abi)).values())
    found = looked(toy.opened(tmp_path, {"decode": wrong}, abi))
    assert "with what is in slot 9 of the caches" in found["unused-slots"].detail


TAKES = toy.ABI.replace(
    'length = "length"\n[prefill.results]',
    """length = "length"
"kv[0]" = "k_cache : L S K D"
"kv[1]" = "v_cache : L S K D"
[prefill.results]""",
)


def test_where_a_token_tells_little(tmp_path: Path) -> None:
    """What only the last layer reads has to be quite another for another token."""
    abi = toy.ABI.replace('0 = "logits : B V"', '0 = "token : B"').replace(CACHES, OWN, 1).replace(RETURNED, LAYERS, 1)
    found = looked(toy.opened(tmp_path, {"decode": toy.text("decode", picks=True, layered=True)}, abi))
    assert {k: c.detail for k, c in found.items() if c.bad} == {}


def test_the_rows_that_are_not_compared_are_told(tmp_path: Path) -> None:
    (graph,) = toy.opened(tmp_path, {"decode": toy.text("decode")})
    found = state_returned("file", [dataclasses.replace(graph, rows=4)])
    assert (found.status, found.missing) == (
        "passed",
        "at each call the other 3 of 4 rows: each row is compared in turn",
    )
    assert state_returned("file", [dataclasses.replace(graph, rows=1)]).missing == ""


def test_caches_that_prefill_is_given(tmp_path: Path) -> None:
    right, wrong = (toy.text("prefill", fault, takes=True) for fault in ("", "unused slots"))
    found = looked(toy.opened(tmp_path, {"prefill": right}, TAKES))
    assert {k: c.status for k, c in found.items()} == dict.fromkeys(TITLES, "passed")
    found = looked(toy.opened(tmp_path, {"prefill": wrong}, TAKES))
    assert "with what is in `kv[0]`, which no call has filled" in found["unused-slots"].detail


def test_a_graph_without_caches(tmp_path: Path) -> None:
    found = looked(toy.opened(tmp_path, {"forward": toy.text("forward")}))
    none = {k: c.detail for k, c in found.items() if c.status == "skipped"}
    assert none.pop("unused-slots") == "prefill of 8 tokens takes no caches"
    assert none == dict.fromkeys(
        ("position-matters", "cache-written", "mask-hides"), "prefill of 8 tokens returns no caches"
    )
    assert all(found[kind].status == "passed" for kind in ("padding-hidden", "inputs-matter"))
    assert (
        looked(toy.opened(tmp_path, {"forward": toy.text("forward", "all tokens")}))["padding-hidden"].status
        == "failed"
    )


def test_what_is_not_finite_tells_nothing(tmp_path: Path) -> None:
    """Its configurations say so."""
    found = looked(toy.opened(tmp_path, {"decode": toy.text("decode", "not a number")}))
    assert {(c.status, c.detail) for c in found.values()} == {("skipped", "what decode returns is not all finite")}


def test_two_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy, "S", 2)
    found = looked(toy.opened(tmp_path, {"decode": toy.text("decode")}))
    assert {(c.status, c.detail) for c in found.values()} == {("skipped", "the caches of decode have 2 slots")}


def test_what_is_not_finite_differs_from_all_else() -> None:
    """Whichever of the two calls gave it; and it is equal to itself."""
    right, logits, cache = np.ones(3), "the logits change to or from what is not finite", np.ones((2, 1, 4, 2))
    for wrong in (np.array([1, np.nan, 1]), np.array([1, np.inf, 1]), np.full(3, np.nan)):
        for one, other in ((right, wrong), (wrong, right)):
            assert difference(Results(one, (), ()), Results(other, (), ()), slice(None)) == (np.inf, logits)
        assert difference(Results(wrong, (), ()), Results(wrong, (), ()), slice(None)) == (0.0, "nothing changes")
    spoiled = cache.copy()
    spoiled[1, 0, 2] = np.nan
    for one, other in ((cache, spoiled), (spoiled, cache)):
        found = difference(Results(right, (one, cache), ()), Results(right, (other, cache), ()), slice(1, 4))
        assert found == (np.inf, "slot 2 of k_cache.1 changes to or from what is not finite")


def test_equal_calls_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What draws random numbers has no slot that shows."""
    count = iter(range(10**6))
    right = Own.call

    def call(self: Own, *arguments: Any) -> Results:
        found = right(self, *arguments)
        return dataclasses.replace(found, head=found.head + next(count))

    monkeypatch.setattr(Own, "call", call)
    found = looked(toy.opened(tmp_path, {"decode": toy.text("decode")}))
    assert {(c.status, c.detail) for c in found.values()} == {("skipped", "two equal calls of decode differ")}


def test_state_of_its_own(tmp_path: Path) -> None:
    """It may count positions itself: none is given to it out of turn."""
    abi = toy.ABI.replace("[decode.inputs]", KEY).replace("[decode.results]", '[decode.results]\n3 = "state.key"')
    found = looked(toy.opened(tmp_path, {"decode": toy.text("decode", keyed=True)}, abi))
    assert not any(c.bad for c in found.values())
    reason = "decode hands on state of its own, which may know the position"
    assert {found[kind].detail for kind in ("position-matters", "mask-hides")} == {reason}
    assert found["cache-written"].figure == "3 of 3"


def test_what_is_not_used_is_told_elsewhere(tmp_path: Path) -> None:
    """`arguments-used` finds it in the text; of what is used, something changes nothing."""
    (graph,) = toy.opened(tmp_path, {"decode": toy.text("decode", "weight")})
    name = "model.layers.1.mlp.up_proj.weight"
    seen = contract._looked(CONTEXT, [(graph, (name,))], toy.checkpoint())
    assert seen["inputs-matter"].wrong == []
    taken = next(t for t in graph.takes if t.name == "cache_len")
    (graph,) = toy.opened(tmp_path, {"decode": toy.text("decode", "argument")})
    seen = contract._looked(CONTEXT, [(graph, (f"argument {taken.index}",))], toy.checkpoint())
    assert seen["inputs-matter"].wrong == []


# ---- a graph in two


def test_a_graph_in_two(tmp_path: Path) -> None:
    """What is given, and what comes of it, are what the whole graph gives."""
    (graph,) = toy.opened(tmp_path, {"decode": toy.text("decode")})
    backend, model = quick_xla(), toy.checkpoint()
    own = Own(Bench(backend, model), graph)
    rng = np.random.default_rng(0)
    caches = [rng.normal(0, 1, (toy.L, toy.K, toy.S, toy.D)).astype(np.float32) for _ in range(2)]
    given = [np.int32(7), np.int32(5), *caches]
    weights = [model.load(w.name) for w in graph.abi.weights]
    whole = [
        backend.download(r) for r in backend.load(graph)([*map(backend.upload, [*weights, *map(np.asarray, given)])])
    ]
    parts = own.call(own.inputs(7, 5, *caches), 5)
    for one, other in zip(whole, (parts.head, *parts.caches), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="is not adapted to the contract"):
        apart(dataclasses.replace(graph, inner=""))


def test_the_same_row_is_judged() -> None:
    found = [congruent(1, 8, 0, 15), congruent(4, 8, 0, 15), congruent(4, 3, 0, 15), congruent(4, 2, 1, 5)]
    assert found == [7, 4, 7, 2]
    assert congruent(4, 3, 16, 15, 6) == 11  # at least 6 away, and a multiple of 4


def test_whole_integers_of_64_bits() -> None:
    backend = quick_xla()
    assert backend.download(backend.upload(np.array([2**40]))).tolist() == [2**40]


def test_some_weights_of_every_kind_and_layer() -> None:
    names = [f"model.layers.{i}.{kind}.weight" for i in range(10) for kind in ("q", "k", "v", "o")] + ["embed", "norm"]
    found = contract._tried(names, 16)
    assert len(found) == 16
    assert {"embed", "norm"} <= {one for (one,) in found}
    assert len({one.split(".")[2] for (one,) in found if one.startswith("model")}) > 5
    assert len(contract._tried(names)) == len(names)
    experts = [f"model.layers.{i}.mlp.experts.{e}.up_proj.weight" for i in range(2) for e in range(4)]
    assert [len(some) for some in contract._tried(experts)] == [4, 4]


@pytest.mark.parametrize(
    ("types", "limit"), [("tensor<2xf32>", HIDDEN), ("tensor<2xbf16>", HIDDEN_NARROW), ("tensor<f16>", HIDDEN_NARROW)]
)
def test_roundings_are_wider_where_numbers_are_narrow(types: str, limit: float, tmp_path: Path) -> None:
    (graph,) = toy.opened(tmp_path, {"decode": toy.text("decode")})
    graph = dataclasses.replace(graph, text=f"{graph.text}// {types}\n")
    assert Own(Bench(quick_xla(), toy.checkpoint()), graph).limit == limit


# ---- state that is not returned

LOST = [
    ("1 = \"k_cache : L S K D\"\n2 = \"v_cache : L S K D\"\n\n[forward]", '1 = "k_cache : L S K D"\n2 = "ignored"\n\n[forward]',
     "decode takes the cache `kv[1]` and never returns it"),
    ("1 = \"k_cache : L S K D\"\n2 = \"v_cache : L S K D\"\n\n[forward]", '1 = "ignored"\n2 = "ignored"\n\n[forward]',
     "decode takes the cache `kv[0]` and never returns it; decode takes the cache `kv[1]` and never returns it"),
    ("[decode.inputs]", KEY, "decode takes `key` as state.key and never returns it"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "words"), LOST, ids=["values", "both", "state"])
def test_state_is_lost(old: str, new: str, words: str, tmp_path: Path) -> None:
    assert toy.ABI.count(old) == 1
    text = toy.text("decode", keyed="key" in new)
    abi = toy.ABI.replace(old, new)
    if "key" in new:
        abi = abi.replace("[decode.results]", '[decode.results]\n3 = "ignored"')
    check = state_returned("file", toy.opened(tmp_path, {"decode": text}, abi))
    assert (check.status, check.detail) == ("failed", words)


def test_a_layer_of_it_is_lost(tmp_path: Path) -> None:
    """What each layer takes and returns is its own."""
    abi = toy.ABI.replace(CACHES, OWN, 1).replace(RETURNED, LAYERS, 1)
    text = toy.text("decode", layered=True)
    assert state_returned("file", toy.opened(tmp_path, {"decode": text}, abi)).status == "passed"
    lost = abi.replace('4 = "v_cache.1 : S K D"', '4 = "ignored"')
    check = state_returned("file", toy.opened(tmp_path, {"decode": text}, lost))
    assert check.detail == "decode takes the cache `kv[3]` and never returns it"


def test_prefill_returns_nothing(tmp_path: Path) -> None:
    """Alone it need not; beside a decode it has to."""
    head, _, tail = toy.ABI.rpartition("[prefill.results]")
    lost = (
        head
        + "[prefill.results]"
        + tail.replace('"k_cache : L S K D"', '"ignored"').replace('"v_cache : L S K D"', '"ignored"')
    )
    texts = {phase: toy.text(phase) for phase in ("prefill", "decode")}
    assert state_returned("file", toy.opened(tmp_path, {"prefill": texts["prefill"]}, lost)).status == "passed"
    assert (
        state_returned("file", toy.opened(tmp_path, texts, lost)).detail == "prefill never returns k_cache and v_cache"
    )


# ---- in a run


@pytest.fixture
def no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*arguments: object) -> None:
        raise ChildDied("there is no reference")

    monkeypatch.setattr("hloracle.conformance.runs.compiling.truths", none)


@pytest.mark.parametrize(
    ("fault", "old", "new", "words"),
    [
        # The place is looked for in what the reference gives; without one, the verdict stands.
        ("position", "", "", "decode gives the same logits at position 3 and at position 9"),
        ("", *LOST[0]),
    ],
    ids=["position", "state"],
)
def test_a_verdict_without_a_reference(
    fault: str, old: str, new: str, words: str, no_reference: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    toy.opened(tmp_path, {"decode": toy.text("decode", fault)}, toy.ABI.replace(old, new) if old else toy.ABI)
    command = ["check", str(tmp_path / "decode.mlir"), "--model", str(toy.checkpoint().directory), "--tokens", "4"]
    with alone():
        status = cli.invoke([*command, "--backend", "xla-cpu", "--out", str(tmp_path / "out")])
    assert status == 1
    record = load(tmp_path / "out" / "report.json")
    assert record["verdict"]["class"] == "emitter-fault"
    sentence = f"The graph does not do what its ABI file says of it: {words}."
    assert record["verdict"]["explanation"] == sentence
    assert sentence in " ".join(capsys.readouterr().out.split())
    made = {c["kind"]: c["status"] for c in record["checks"] if c["kind"] in ("state-returned", *TITLES)}
    assert made["state-returned"] == ("passed" if fault else "failed")
    assert {status for kind, status in made.items() if kind in TITLES} == (
        {"failed", "skipped"} if fault else {"skipped"}
    )
    asked = any(c["kind"] == "process" for c in record["checks"])
    assert asked == bool(fault), "what loses its state is not run any further"


def test_what_does_not_run_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that refuses the graph is its configuration's to report."""
    graphs = toy.opened(tmp_path, {"decode": toy.text("decode")})

    def refused(*arguments: object) -> None:
        raise ToolchainError("compile", "no")

    monkeypatch.setattr("hloracle.conformance.looking.run_contract", refused)
    found = Run(Settings(model="toy"), CONTEXT, (), toy.checkpoint())
    found.evidence.graphs = {"file": [(g, GraphFacts()) for g in graphs]}
    look_at_contract(found)
    assert next((c.kind, c.status) for c in found.evidence.checks) == ("state-returned", "passed")
    assert {(c.status, c.detail) for c in found.evidence.checks[1:]} == {
        ("skipped", str(ToolchainError("compile", "no")))
    }


def test_a_process_that_dies_is_no_skip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = toy.opened(tmp_path, {"decode": toy.text("decode")})

    def died(*arguments: object) -> None:
        raise TimedOut("it did not end within 1 s")

    monkeypatch.setattr("hloracle.conformance.looking.run_contract", died)
    found = Run(Settings(model="toy"), CONTEXT, (), toy.checkpoint())
    found.evidence.graphs = {"file": [(g, GraphFacts()) for g in graphs]}
    look_at_contract(found)
    assert {c.kind: c.status for c in found.evidence.checks[1:]} == dict.fromkeys(TITLES, "error")


def test_graphs_of_the_contract_are_not_asked() -> None:
    found = Run(Settings(model="toy"), CONTEXT, (), toy.checkpoint())
    found.evidence.graphs = {"emitter": [(g, GraphFacts()) for g in small.graphs()]}
    look_at_contract(found)
    assert found.evidence.checks == []
