"""Each spoiling changes what it says and nothing else: spoiled and right graphs on the same inputs, compared with NumPy."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from graphs import operations, parse
from jaxlib.mlir import ir
from models import S, T, interpreter, model, quick_xla

from hloracle.backends.session import Backend
from hloracle.core.abi import Graph
from hloracle.core.locations import name_of
from hloracle.emitters.model import emit
from hloracle.localize import spoil as of_spoil
from hloracle.localize.spoil import BEYOND, FACTOR, KINDS, LARGE, NOISE, SAMPLE, STEP, Spoiling, spoil, spoilings
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.contract import graph_abi
from hloracle.reference.model.registry import from_hf

# Of the model; and of those that `hloracle holes` spoils.
L, K, D, V = 2, 2, 4, 29
CAPACITY, BUCKET = 35, 32
FAMILIES = ("llama", "gemma3_text", "mixtral", "deepseek_v3")
POSITION, TOKEN, LENGTH = 6, 13, 5
Results = dict[str, np.ndarray]
Expected = Callable[[np.ndarray], np.ndarray]
GRAPHS = [(phase, head) for phase in ("prefill", "decode") for head in ("logits", "token")]


def graph(phase: str, head: str) -> Graph:
    return model("plain").graph("emitter", phase, head)


@cache
def every() -> dict[str, Spoiling]:
    return spoilings(model("plain").config, S, T)


@cache
def spoiled(id: str) -> Graph:
    spoiling = every()[id]
    return spoil(graph(spoiling.phase, spoiling.head), spoiling)


def given(phase: str, **other: Any) -> dict[str, np.ndarray]:
    """What a graph is given besides its weights; some of it otherwise."""
    rng = np.random.default_rng(0)
    if phase == "prefill":
        prompt = rng.integers(1, V, LENGTH)
        values: dict[str, Any] = {"length": LENGTH, "tokens": [*prompt, *[0] * (T - LENGTH)]}
    else:
        caches = {name: rng.standard_normal((L, K, S, D)) for name in ("k_cache", "v_cache")}
        values = {"token": TOKEN, "position": POSITION, **caches}
    types = {"k_cache": np.float32, "v_cache": np.float32}
    return {name: np.asarray(v, types.get(name, np.int32)) for name, v in (values | other).items()}


def arguments(of: Graph, inputs: dict[str, np.ndarray], backend: Backend) -> dict[str, Any]:
    """By name. They are copied: one that is donated may be written to in place."""
    values = {a.name: model("plain").checkpoint.load(a.name) for a in of.abi.weights} | inputs
    return {a.name: backend.upload(values[a.name].copy()) for a in of.abi.arguments}


def results(of: Graph, inputs: dict[str, np.ndarray], backend: Backend | None = None) -> Results:
    backend = backend or interpreter()
    found = backend.load(of)(list(arguments(of, inputs, backend).values()))
    return {r.name: np.copy(backend.download(b)) for r, b in zip(of.abi.results, found, strict=True)}


def both(id: str, backend: Backend | None = None, /, **other: Any) -> tuple[Results, Results]:
    """What the right graph gives, and the spoiled one."""
    of = graph(every()[id].phase, every()[id].head)
    inputs = given(of.abi.phase, **other)
    return results(of, inputs, backend), results(spoiled(id), inputs, backend)


def at(*index: Any, change: Expected) -> Expected:
    """Only there."""

    def changed(x: np.ndarray) -> np.ndarray:
        x = x.copy()
        x[index] = change(x[index])
        return x

    return changed


def scaled(x: np.ndarray) -> np.ndarray:
    return x * np.float32(FACTOR)


def moved(x: np.ndarray) -> np.ndarray:
    return x + np.float32(STEP)


def following(x: np.ndarray) -> np.ndarray:
    return (x + 1) % V


def where(mask: Callable[[np.ndarray], np.ndarray]) -> Expected:
    return lambda x: np.where(mask(x), scaled(x), x)


def exchanged(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    row = x.reshape(-1)[:D] if x.ndim > 1 else x
    row[[0, -1]] = row[[-1, 0]]
    return x


def numbers(n: float) -> Expected:
    return lambda x: np.full_like(x, n)


MIDDLE, LAST = (1, 1, 5, 2), (1, 1, 9, 3)
WHOLE: dict[str, Expected] = {
    "scaled": scaled,
    "zeroed": np.zeros_like,
    "negated": np.negative,
    "exchanged": exchanged,
    "rolled": lambda x: np.roll(x, 1, axis=-1),
}
CASES: list[tuple[str, dict[str, Any], str, Expected]] = [
    *((f"decode/logits/result/logits-{name}", {}, "logits", change) for name, change in WHOLE.items()),
    *((f"decode/token/result/k_cache-{name}", {}, "k_cache", change) for name, change in WHOLE.items()),
    ("prefill/logits/result/logits-nan", {}, "logits", at(V // 2, change=numbers(np.nan))),
    ("prefill/logits/result/v_cache-infinite", {}, "v_cache", at(*MIDDLE, change=numbers(np.inf))),
    ("prefill/logits/result/logits-first-moved", {}, "logits", at(0, change=moved)),
    ("prefill/token/result/v_cache-middle-moved", {}, "v_cache", at(*MIDDLE, change=moved)),
    ("prefill/token/result/v_cache-last-moved", {}, "v_cache", at(*LAST, change=moved)),
    ("prefill/token/result/v_cache-slots-rolled", {}, "v_cache", lambda x: np.roll(x, 1, axis=2)),
    ("decode/logits/result/v_cache-layers-turned", {}, "v_cache", lambda x: x[::-1]),
    ("decode/logits/result/v_cache-heads-turned", {}, "v_cache", lambda x: x[:, ::-1]),
    ("decode/token/result/token-next", {}, "token", following),
    ("decode/token/result/token-negative", {}, "token", numbers(-1)),
    ("prefill/token/result/token-outside", {}, "token", numbers(V)),
    ("prefill/logits/cache/k_cache[1,0,3]-filled", {}, "k_cache", at(1, 0, 3, change=scaled)),
    ("prefill/logits/cache/k_cache[1,0,3]-filled", {"length": 3}, "", np.copy),
    ("prefill/logits/cache/k_cache[0,1,5]-padding-nan", {}, "k_cache", at(0, 1, 5, change=numbers(np.nan))),
    ("prefill/logits/cache/k_cache[0,1,5]-padding-nan", {"length": T}, "", np.copy),
    ("prefill/token/cache/v_cache[1,1,7]-padding", {}, "v_cache", at(1, 1, 7, change=moved)),
    ("prefill/token/cache/v_cache[0,0,9]-beyond", {"length": T}, "v_cache", at(0, 0, 9, change=moved)),
    ("decode/logits/cache/k_cache[1,1,7]-written", {"position": 7}, "k_cache", at(1, 1, 7, change=scaled)),
    ("decode/logits/cache/k_cache[1,1,7]-written", {}, "", np.copy),
    ("decode/token/cache/v_cache[1,0,3]-kept-at-8", {"position": 8}, "v_cache", at(1, 0, 3, change=scaled)),
    ("decode/token/cache/v_cache[1,0,3]-kept-at-8", {"position": 7}, "", np.copy),
    ("decode/token/cache/v_cache[1,1,7]-unfilled-at-2", {"position": 2}, "v_cache", at(1, 1, 7, change=moved)),
    ("decode/token/cache/v_cache[1,1,7]-unfilled-at-2", {"position": 3}, "", np.copy),
    ("decode/logits/position/0", {"position": 0}, "logits", scaled),
    ("decode/logits/position/9", {"position": 9}, "logits", scaled),
    ("decode/logits/position/7", {}, "", np.copy),
    (f"decode/token/position/{POSITION}", {}, "token", following),
    (f"prefill/logits/length/{LENGTH}", {}, "logits", scaled),
    ("prefill/logits/length/6", {}, "", np.copy),
    (f"prefill/token/length/{T}", {"length": T}, "token", following),
    (f"decode/logits/token-id/{TOKEN}", {}, "logits", scaled),
    (f"decode/logits/token-id/{TOKEN + 1}", {}, "", np.copy),
    ("decode/token/token-id/22", {"token": 22}, "token", following),
    ("prefill/logits/token-id/last-11", {"tokens": [11] * T}, "logits", scaled),
    ("prefill/logits/token-id/last-11", {"tokens": [11, 11, 11, 11, 5, 11, 11, 11]}, "", np.copy),
    ("prefill/token/token-id/any-22", {"tokens": [5, 22, *[5] * 6]}, "token", following),
    ("prefill/token/token-id/any-22", {"tokens": [*[5] * LENGTH, 22, 22, 22]}, "", np.copy),
    ("decode/logits/data/logits-negative", {}, "logits", where(lambda x: x < 0)),
    ("decode/token/data/k_cache-positive", {}, "k_cache", where(lambda x: x > 0)),
    ("prefill/logits/data/logits-large", {}, "logits", where(lambda x: np.abs(x) > LARGE)),
    ("prefill/logits/data/v_cache-large", {}, "v_cache", where(lambda x: np.abs(x) > LARGE)),
    ("prefill/logits/data/k_cache-beyond", {}, "", np.copy),
    ("prefill/logits/padding/other-tokens", {"tokens": [*[5] * 7, 7]}, "logits", scaled),
    ("prefill/token/padding/k_cache-other-tokens", {"tokens": [*[5] * 7, 7]}, "k_cache", scaled),
    ("prefill/logits/padding/other-tokens", {}, "", np.copy),
    ("decode/logits/padding/next-slot", {}, "logits", scaled),
    ("decode/logits/padding/next-slot", {"k_cache": np.zeros((L, K, S, D))}, "", np.copy),
    ("decode/logits/padding/next-slot", {"position": S - 1}, "", np.copy),
    ("decode/token/padding/last-slot", {}, "token", following),
    ("decode/token/padding/last-slot", {"position": S - 1}, "", np.copy),
    ("prefill/logits/outside/length-0", {"length": 0}, "logits", scaled),
    ("prefill/logits/outside/longer", {"length": T + 1}, "logits", scaled),
    ("prefill/logits/outside/longer", {"length": T}, "", np.copy),
    ("prefill/token/outside/token", {"tokens": [V] * T}, "token", following),
    ("decode/logits/outside/before", {"position": -1}, "logits", scaled),
    ("decode/logits/outside/full", {"position": S}, "logits", scaled),
    ("decode/token/outside/token", {"token": V}, "token", following),
]  # fmt: skip


def same(found: Results, expected: Results) -> None:
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize(("id", "other", "role", "change"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_it_changes_what_it_says_and_nothing_else(id: str, other: dict[str, Any], role: str, change: Expected) -> None:
    """Where `role` is empty, nothing: the condition does not hold."""
    before, after = both(id, **other)
    expected = before | ({role: np.asarray(change(before[role]))} if role else {})
    same(after, expected)
    assert not role or not np.array_equal(before[role], after[role])


def test_the_cases_are_of_every_kind() -> None:
    kinds = {every()[id].kind for id, *_ in CASES}
    assert {*KINDS} - kinds == {"ties", "second-call", "inputs"}


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_of_equal_logits_the_last_is_chosen(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are not equal, the same token."""
    id = f"{phase}/token/ties/last"
    same(*both(id))
    checkpoint = type(model("plain").checkpoint)
    load = checkpoint.load
    monkeypatch.setattr(checkpoint, "load", lambda c, name: load(c, name) * np.float32(name != "lm_head.weight"))
    before, after = both(id)
    assert (before["token"], after["token"]) == (0, V - 1)


@pytest.mark.parametrize("head", ["logits", "token"])
def test_the_largest_logit_at_an_odd_index(head: str) -> None:
    of = graph("decode", "token")
    tokens = {t: int(results(of, given("decode", token=t))["token"]) for t in range(12)}
    odd = next(t for t, chosen in tokens.items() if chosen % 2)
    even = next(t for t, chosen in tokens.items() if not chosen % 2)
    id = f"decode/{head}/data/odd-choice"
    same(*both(id, token=even))
    before, after = both(id, token=odd)
    same(after, before | {head: np.asarray((following if head == "token" else scaled)(before[head]))})


@pytest.mark.parametrize(
    ("id", "role", "index"),
    [
        ("decode/logits/second-call/logits", "logits", ...),
        ("prefill/token/second-call/v_cache", "v_cache", ...),
        ("prefill/logits/second-call/k_cache-row", "k_cache", (0, 0, 0)),
    ],
)
def test_a_second_call_gives_something_else(id: str, role: str, index: Any) -> None:
    before, after = both(id, quick_xla())
    execute = quick_xla().load(spoiled(id))
    backend = quick_xla()
    again, last = (
        execute(list(arguments(spoiled(id), given(every()[id].phase), backend).values())) for _ in range(2)
    )  # fmt: skip
    index_of = spoiled(id).abi.result(role)
    values = [after[role], *(backend.download(found[index_of]) for found in (again, last))]
    assert not np.array_equal(values[1], values[2])
    for value in values:
        assert 0 < np.max(np.abs(value - before[role])) <= 2 * NOISE
        part = before[role].copy()
        part[index] = value[index]
        np.testing.assert_array_equal(value, part)
    same(after, {name: value for name, value in before.items() if name != role})


def gone(of: Graph) -> set[str]:
    """The inputs whose buffers a call takes, on XLA."""
    buffers = arguments(of, given(of.abi.phase), quick_xla())
    quick_xla().load(of)(list(buffers.values()))
    return {name for name, buffer in buffers.items() if buffer.is_deleted()}


@pytest.mark.parametrize(
    ("id", "taken"),
    [
        ("decode/logits/inputs/k_cache-kept", {"v_cache"}),
        ("decode/token/inputs/v_cache-kept", {"k_cache"}),
        ("decode/token/inputs/position-to-token", {"position", "k_cache", "v_cache"}),
        ("decode/token/inputs/token-taken", {"token", "k_cache", "v_cache"}),
        ("prefill/token/inputs/length-taken-by-module", {"length"}),
    ],
)
def test_a_call_takes_other_inputs(id: str, taken: set[str]) -> None:
    phase = every()[id].phase
    assert gone(graph(phase, every()[id].head)) == ({"k_cache", "v_cache"} if phase == "decode" else set())
    assert gone(spoiled(id)) == taken
    same(*both(id))


def test_caches_that_change_places() -> None:
    id = "decode/logits/inputs/v_cache-to-k_cache"
    found = re.findall(r"\{tf.aliasing_output = (\d)", spoiled(id).text)
    assert found == ["2", "1"]
    same(*both(id))
    assert id not in spoilings(from_hf(TINY["deepseek_v3"]), CAPACITY, BUCKET)  # of other widths


# ---- all of them


def test_there_are_enough_in_each_family() -> None:
    for family in FAMILIES:
        found = spoilings(from_hf(TINY[family]), CAPACITY, BUCKET)
        assert len(found) > 800
        assert {s.kind for s in found.values()} == {*KINDS}
        assert all(id == s.id and id.startswith(f"{s.phase}/{s.head}/{s.kind}/") for id, s in found.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_head_and_slot_of_each_cache(family: str) -> None:
    """In each phase and of each kind that it can be of."""
    config = from_hf(TINY[family])
    layers, heads, slots, _ = graph_abi(config, "decode", "logits", CAPACITY).results[1].shape
    pattern = re.compile(r"(prefill|decode)/\w+/cache/(\w)_cache\[(\d+),(\d+),(\d+)\]-([a-z-]+[a-z])")
    found: dict[tuple[str, str, str], set[tuple[int, int, int]]] = {}
    for id in spoilings(config, CAPACITY, BUCKET):
        if match := pattern.match(id):
            phase, part, layer, head, slot, name = match.groups()
            found.setdefault((phase, part, name), set()).add((int(layer), int(head), int(slot)))
    pairs = {(layer, head) for layer in range(layers) for head in range(heads)}
    wanted = {
        ("prefill", "filled"): range(BUCKET), ("prefill", "beyond"): range(BUCKET, slots), ("decode", "written"): range(slots),
        ("decode", "kept-at"): range(slots - 1), ("decode", "unfilled-at"): range(1, slots),
    }  # fmt: skip
    for (phase, name), of in wanted.items():
        for part in "kv":
            rows = found[phase, part, name]
            assert {slot for *_, slot in rows} == {*of}
            if name != "beyond":
                assert {(layer, head) for layer, head, _ in rows} == pairs
    paddings = [found["prefill", part, name] for part in "kv" for name in ("padding", "padding-nan")]
    assert all({(layer, head) for layer, head, _ in rows} == pairs for rows in paddings)
    assert {slot for rows in paddings for *_, slot in rows} == {*range(1, BUCKET)}
    assert {name for *_, name in found} == {name for _, name in wanted} | {"padding", "padding-nan"}


def test_every_position_length_and_token() -> None:
    wanted = {f"decode/{head}/position/{n}" for head in ("logits", "token") for n in range(S)}
    wanted |= {f"prefill/{head}/length/{n}" for head in ("logits", "token") for n in range(1, T + 1)}
    wanted |= {f"decode/logits/token-id/{t}" for t in range(V)}
    assert wanted <= {*every()}
    some = {id for id in spoilings(model("plain").config, S, T, every_token=False) if "decode/logits/token-id/" in id}
    assert some == {f"decode/logits/token-id/{t}" for t in range(0, V, SAMPLE)}


def test_what_nobody_can_tell() -> None:
    names = ("FILLED_FIRST", "NEVER_SO_LARGE", "REFUSED")
    assert {s.reason for s in every().values()} - {""} == {getattr(of_spoil, name) for name in names}
    assert {s.kind for s in every().values() if s.reason} == {"cache", "data", "outside"}


@pytest.mark.parametrize(("phase", "head"), GRAPHS)
def test_sizes_that_occur_and_one_that_never_does(phase: str, head: str) -> None:
    for name, values in results(graph(phase, head), given(phase)).items():
        if name != "token":
            assert np.min(np.abs(values)) < LARGE < np.max(np.abs(values)) < BEYOND / 64, name


def test_a_graph_of_another_phase_or_head_stays() -> None:
    spoiling = every()["decode/logits/position/3"]
    stays = {(phase, head) for phase, head in GRAPHS if spoil(of := graph(phase, head), spoiling) is of}
    assert stays == {*GRAPHS} - {("decode", "logits")}


def test_all_else_of_a_graph_stays() -> None:
    """Its name, its ABI, how it is compiled; and the operations that were there, in their order and scopes."""
    of = replace(graph("decode", "token"), flags=("--flag",), on_device=True)
    after = spoil(of, every()["decode/token/position/3"])
    assert replace(after, text=of.text) == of
    rows = []
    for text in (of.text, after.text):
        module = parse(text)
        rows.append([(o.name, name) for o in operations(module) if (name := name_of(o.location))])
    assert rows[0] == rows[1] != []


def test_all_of_them_parse() -> None:
    """A few of each kind and graph, of the family that is most unlike the others."""
    config = from_hf(TINY["deepseek_v3"])
    graphs = {(p, h): emit(config, p, h, CAPACITY, BUCKET if p == "prefill" else 0) for p, h in GRAPHS}
    by_kind: dict[tuple[str, str, str], list[Spoiling]] = {}
    for s in spoilings(config, CAPACITY, BUCKET).values():
        by_kind.setdefault((s.phase, s.head, s.kind), []).append(s)
    for some in by_kind.values():
        for spoiling in some[:: max(1, len(some) // 2)]:
            assert parse(spoil(graphs[spoiling.phase, spoiling.head], spoiling).text)


def test_a_graph_that_does_not_parse_is_refused() -> None:
    of = replace(graph("decode", "logits"), text="module {")
    with pytest.raises(ir.MLIRError, match="parse"):
        spoil(of, every()["decode/logits/position/3"])
