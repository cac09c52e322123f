"""Graphs of several rows, and graphs that extend a row: each row gives what its sequence gives alone, however it is cut."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from evidence import TRUTHS, outcome
from graphs import operations, parse
from models import FAMILY_SHAPES, SHAPES, TOKENS, Model, model, quick_xla
from nightly import only

from hloracle.backends.iree import FLAG_SETS
from hloracle.backends.named import make_backend
from hloracle.backends.session import IDLE, Backend, Session
from hloracle.conformance.checks.of_configurations import configuration_checks
from hloracle.conformance.matrix import Configuration
from hloracle.conformance.runs.beside import Beside, Rows, apart, session_of, together
from hloracle.core.abi import CACHES, Abi, Graph
from hloracle.core.child import alone as one_process
from hloracle.core.errors import InputError
from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.emitters import model as emitter
from hloracle.emitters.model import emit
from hloracle.localize.anatomy import Anatomy
from hloracle.localize.dissect import local_errors
from hloracle.localize.situation import JUDGED, ReferenceRun, Situation
from hloracle.localize.text import anchor_at
from hloracle.localize.workbench import Workbench
from hloracle.mutants import MUTANTS
from hloracle.production.choice import production_graphs, untuned
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.huggingface.anchor_truth import anchor_truth
from hloracle.reference.model.anchors import anchors, split
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.contract import GraphSpec, graph_abi
from hloracle.reference.model.registry import FAMILIES
from hloracle.reference.model.weights import weight_shapes
from hloracle.reference.oracle.lower import lower

S, T, B = 64, 32, 3
# Of the largest logit: two compilers' float32 graphs of these models differ by up to 3e-6 of it, and another row's by 0.01 and more.
APART = 2e-5
FEW = ("llama", "gemma3_text", "phi3", "gpt_oss", "qwen3_moe", "deepseek_v3")


@cache
def tiny(family: str) -> Checkpoint:
    return open_checkpoint(resolve(f"tiny-{family}"))


def write(source: str, checkpoint: Checkpoint, spec: GraphSpec) -> Graph:
    if source == "oracle":
        return lower(checkpoint.config, *spec)
    return emit(checkpoint.config, *spec[:4], None, *spec[4:])


def session(source: str, checkpoint: Checkpoint, backend: Backend, batch: int, head: str = "logits") -> Session:
    prompt = "prefill" if batch == 0 else "extend"
    specs = [GraphSpec("decode", head, S, 0, max(batch, 1)), GraphSpec(prompt, head, S, T, max(batch, 1))]
    return Session(backend, [write(source, checkpoint, spec) for spec in specs], checkpoint.load)


@dataclass(frozen=True)
class Sequenced:
    """A sequence, how many of its tokens are the prompt, and where that is cut."""

    tokens: list[int]
    prompt: int
    cuts: tuple[int, ...]

    @property
    def parts(self) -> list[list[int]]:
        return [self.tokens[a:b] for a, b in pairwise((0, *self.cuts, self.prompt))]


def sequences(checkpoint: Checkpoint) -> list[Sequenced]:
    """One ends at the last slot; one is cut where a window and RoPE's angles turn; one has a prompt of one token."""
    rng, V = np.random.default_rng(1), checkpoint.config.vocab_size
    longest = min(T, checkpoint.config.turning_point or T)
    turn = next((w for w in checkpoint.config.windows if w and w < longest - 1), longest // 2)
    return [
        Sequenced(rng.integers(0, V, n).tolist(), prompt, cuts)
        for n, prompt, cuts in ((S, longest, (turn, turn + 1)), (50, longest - 3, (1, 7)), (37, 1, ()))
    ]


def alone(one: Session, some: Sequence[Sequenced]) -> list[tuple[list[Any], Any]]:
    """The heads from the prompt's last token on, and the caches, of each sequence in a session of its own."""
    found = []
    for s in some:
        heads = [one.prefill(s.tokens[: s.prompt], T), *map(one.decode_step, s.tokens[s.prompt :])]
        found.append((heads, one.caches()))
    return found


def in_rows(many: Session, some: Sequence[Sequenced], seed: int = 2) -> list[tuple[list[Any], Any]]:
    """The same of all of them at once, each in its row, at steps and in pauses that the seed draws."""
    rng = np.random.default_rng(seed)
    heads: list[list[Any]] = [[] for _ in some]
    parts = [list(s.parts) for s in some]
    many.positions = [0] * many.batch
    while any(many.positions[row] < len(s.tokens) for row, s in enumerate(some)):
        row = int(rng.integers(len(some)))
        if parts[row]:
            head = many.extend(parts[row].pop(0), T, row, some[row].prompt)
            heads[row] += [] if parts[row] else [head]
        fed = {
            r: s.tokens[many.positions[r]] for r, s in enumerate(some)
            if not parts[r] and many.positions[r] < len(s.tokens) and rng.random() < 0.7
        }  # fmt: skip
        for r, head in (many.step(fed) if fed else {}).items():
            heads[r].append(head)
    return [(h, many.caches(row=r)) for r, h in enumerate(heads)]


def assert_alike(found: Sequence[tuple[list[Any], Any]], wanted: Sequence[tuple[list[Any], Any]]) -> None:
    for (heads, caches), (right, kept) in zip(found, wanted, strict=True):
        scale = max(float(np.max(np.abs(h))) for h in right)
        assert max(float(np.max(np.abs(a - b))) for a, b in zip(heads, right, strict=True)) <= APART * scale
        for mine, other in zip(caches, kept, strict=True):
            assert mine.shape == other.shape
            assert float(np.max(np.abs(mine - other))) <= APART * float(np.max(np.abs(other)))


@pytest.mark.parametrize(
    ("source", "family"),
    only(
        [*(("emitter", f) for f in FEW), ("oracle", "gpt_oss"), ("oracle", "deepseek_v3")],
        itertools.product(("emitter", "oracle"), FAMILIES),
    ),
)
def test_each_row_gives_what_its_sequence_gives_alone(source: str, family: str) -> None:
    checkpoint, backend = tiny(family), quick_xla()
    some = sequences(checkpoint)
    wanted = alone(session("oracle", checkpoint, backend, 0), some)
    assert_alike(in_rows(session(source, checkpoint, backend, B), some), wanted)


@pytest.mark.parametrize("family", only(["gpt_oss"], FEW))
def test_rows_on_iree(family: str) -> None:
    checkpoint, some = tiny(family), sequences(tiny(family))
    wanted = alone(session("oracle", checkpoint, quick_xla(), 0), some)
    assert_alike(in_rows(session("emitter", checkpoint, make_backend("iree-cpu", 2), B), some), wanted)


def quantized(precision: str, backend: Backend, batch: int, prompt: str) -> Session:
    checkpoint = open_checkpoint(resolve("tiny-llama", precision=precision))
    specs = [GraphSpec("decode", "logits", S, 0, batch), GraphSpec(prompt, "logits", S, T, batch)]
    choice = untuned(batch=batch, precision=precision)
    return Session(backend, production_graphs(checkpoint, precision, choice, specs), checkpoint.load)


@pytest.mark.parametrize(
    ("compiler", "precision"),
    only([("iree-cpu", "int4"), ("xla-cpu", "int8")], itertools.product(["iree-cpu", "xla-cpu"], ["int4", "int8"])),
)
def test_rows_of_quantized_weights(compiler: str, precision: str) -> None:
    """Which several rows read in panels, in decode and in chunks alike, and one row does not."""
    backend = make_backend("iree-cpu", 2) if compiler == "iree-cpu" else quick_xla()
    some = sequences(tiny("llama"))
    many = quantized(precision, backend, B, "extend")
    wanted = alone(quantized(precision, quick_xla(), 1, "prefill"), some)
    assert_alike(in_rows(many, some), wanted)
    with pytest.raises(AssertionError):
        assert_alike(
            wanted, alone(quantized("int8" if precision == "int4" else "int4", quick_xla(), 1, "prefill"), some)
        )


def test_how_rows_of_quantized_weights_are_written_and_compiled() -> None:
    checkpoint = open_checkpoint(resolve("tiny-llama", precision="int4"))
    specs = [GraphSpec("decode", "token", S, 0, 8), GraphSpec("extend", "token", S, T, 8)]
    decode, extend = production_graphs(checkpoint, "int4", untuned(batch=8, precision="int4"), specs)
    for graph in (decode, extend):
        assert {w.encoding.rpartition(".")[0] for w in graph.abi.weights} == {"", "int8", "int4", "int4.panels"}
        assert "--iree-global-opt-propagate-transposes=false" in graph.flags
    (rows,) = production_graphs(checkpoint, "int4", untuned("rows", batch=8, precision="int4"), specs[:1])
    assert {w.encoding.rpartition(".")[0] for w in rows.abi.weights} == {"", "int8", "int4"}
    assert rows.flags == FLAG_SETS["packed"]


@pytest.mark.parametrize(("family", "kept"), [("llama", {}), ("llama", {"kv": "int8"}), ("mistral", {"ring": True})])
@pytest.mark.parametrize(("phase", "bucket"), [("decode", 0), ("extend", T)])
@pytest.mark.parametrize("source", ["emitter", "oracle"])
def test_what_each_layer_writes_to_a_cache_is_found(
    source: str, phase: str, bucket: int, family: str, kept: dict[str, Any]
) -> None:
    """Also where it is written as rows of slots: else a wrong write is laid to the return, as if each layer's were right."""
    checkpoint = tiny(family)
    anatomy = Anatomy(write(source, checkpoint, GraphSpec(phase, "logits", S, bucket, B, **kept)), checkpoint.config)
    for layer in range(checkpoint.config.num_hidden_layers):
        for part in CACHES:
            assert f"{part}.{layer}+" in anatomy.targets(f"{part}.{layer}")
    assert [anatomy.returned(role) for role in anatomy.graph.abi.caches] == [None] * len(anatomy.graph.abi.caches)


def test_rows_in_another_order_are_not_taken_for_the_cache() -> None:
    """They have as many elements: held to the cache's, every right slot of them would be wrong."""
    config = tiny("llama").config
    graph = write("emitter", tiny("llama"), GraphSpec("decode", "logits", S, 0, B))
    rows, cache, other = "tensor<1152x16xf32>", "tensor<3x3x2x64x16xf32>", "tensor<3x3x64x2x16xf32>"
    right = f"= stablehlo.reshape %l0_self_attn_k_cache.put : ({rows}) -> {cache} "
    assert right in graph.text
    turned = f"= stablehlo.transpose %turned, dims = [0, 1, 3, 2, 4] : ({other}) -> {cache} "
    before = f"%turned = stablehlo.reshape %l0_self_attn_k_cache.put : ({rows}) -> {other}\n    "
    lines = [before + line.replace(right, turned) if right in line else line for line in graph.text.splitlines()]
    # The transpose is outside of the anchor: what is in it is rows alone.
    lines = [line.replace(' loc("layers.0.self_attn.k_cache")', "") if before in line else line for line in lines]
    anatomy = Anatomy(replace(graph, text="\n".join(lines)), config)
    assert anatomy.targets("k_cache.0") == ["k_cache.0"]
    assert anatomy.targets("k_cache.1") == ["k_cache.1", "k_cache.1+"]


@pytest.mark.parametrize("source", ["emitter", "oracle"])
def test_one_row_is_extended_without_an_axis_of_rows(source: str) -> None:
    checkpoint, some = tiny("llama"), sequences(tiny("llama"))
    wanted = alone(session("oracle", checkpoint, quick_xla(), 0), some)
    one = session(source, checkpoint, quick_xla(), 1)
    for i, s in enumerate(some):
        one.reset()
        heads = [one.extend(part, T, total=s.prompt) for part in s.parts][-1:]
        heads += map(one.decode_step, s.tokens[s.prompt :])
        assert_alike([(heads, one.caches())], wanted[i : i + 1])


def test_a_chunk_whose_padding_has_no_slots_is_written_where_it_belongs() -> None:
    """At the end of the cache fewer slots are left than the graph takes tokens."""
    checkpoint = tiny("llama")
    tokens = sequences(checkpoint)[0].tokens
    many, wanted = (session(source, checkpoint, quick_xla(), 2) for source in ("emitter", "oracle"))
    for one in (many, wanted):
        one.prefill(tokens[: S - 5], T, 1)
        one.extend(tokens[S - 5 : S - 2], T, 1)
        one.extend(tokens[S - 2 :], T, 1)
    assert many.positions == [0, S]
    for mine, other in zip(many.caches(row=1), wanted.caches(row=1), strict=True):
        assert float(np.max(np.abs(mine - other))) <= APART * float(np.max(np.abs(other)))


# ---- the session


@pytest.fixture(scope="module")
def rows() -> Session:
    return session("emitter", tiny("llama"), quick_xla(), B, "token")


def test_what_is_refused(rows: Session) -> None:
    rows.reset()
    with pytest.raises(InputError, match=r"prompt: has 65 tokens, more than the 64 cache slots"):
        rows.prefill([1] * (S + 1), row=1)
    rows.prefill([1] * S, row=1)
    with pytest.raises(InputError, match=r"decode: all 64 cache slots are filled"):
        rows.step({0: 1, 1: 1})
    with pytest.raises(InputError, match=r"prompt: 65 tokens need as many cache slots, and there are 64"):
        rows.extend([1], row=1)
    with pytest.raises(InputError, match=r"tokens: token 257 is outside the vocabulary"):
        rows.step({0: 257})
    with pytest.raises(InputError, match="row 3: is none of the 3"):
        rows.step({3: 1})
    with pytest.raises(InputError, match=r"row -1: is none of the 3"):
        rows.prefill([1], row=-1)
    assert rows.positions == [0, S, 0]


def test_a_prompt_goes_in_chunks(rows: Session) -> None:
    tokens = sequences(tiny("llama"))[0].tokens
    rows.reset()
    head = rows.prefill(tokens[:50], row=2)
    rows.reset()
    assert rows.stream_prompt(tokens[:50], row=0) == head
    assert rows.positions == [50, 0, 0]


def test_graphs_of_other_batches_do_not_mix() -> None:
    graphs = [write("emitter", tiny("llama"), GraphSpec("decode", "token", S, 0, batch)) for batch in (2, 3)]
    with pytest.raises(ValueError, match="batch"):
        Session(quick_xla(), graphs, tiny("llama").load)


# ---- the contract


def test_the_abi_of_several_rows() -> None:
    config = tiny("llama").config
    for phase in ("decode", "extend"):
        abi = graph_abi(config, phase, "logits", S, T, None, B)
        abi.validate()
        assert (abi.batch, abi.capacity, abi.bucket) == (B, S, T if phase == "extend" else 0)
        assert all(r.aliases is not None for r in abi.results[1:])
    one = graph_abi(config, "extend", "token", S, T)
    one.validate()
    assert [a.name for a in one.inputs] == ["tokens", "length", "position"]
    turning = graph_abi(tiny("phi3").config, "extend", "token", S, T, None, B)
    turning.validate()
    assert [a.name for a in turning.inputs] == ["tokens", "length", "position", "row", "total"]


def test_more_slots_than_a_graph_counts() -> None:
    with pytest.raises(InputError, match="decode: 1024 rows of 1,048,576 slots are more than the 2"):
        graph_abi(tiny("llama").config, "decode", "token", 2**20, 0, None, 1024)


def changed(abi: Abi, name: str, **fields: Any) -> Abi:
    arguments = tuple(replace(a, **fields) if a.name == name else a for a in abi.arguments)
    return replace(abi, arguments=arguments)


@pytest.mark.parametrize(("phase", "name", "shape", "words"), [
    ("decode", "token", (), "is a scalar i32, not of rank 1 and i32"),
    ("decode", "position", (B + 1,), r"is \[4\] i32, and the caches have 3 rows"),
    ("extend", "position", (B,), r"is \[3\] i32, not of rank 0 and i32"),
])  # fmt: skip
def test_an_abi_whose_rows_do_not_fit(phase: str, name: str, shape: tuple[int, ...], words: str) -> None:
    abi = changed(graph_abi(tiny("llama").config, phase, "logits", S, T, None, B), name, shape=shape)
    with pytest.raises(ValueError, match=words):
        abi.validate()


def test_an_extend_without_its_row() -> None:
    abi = graph_abi(tiny("llama").config, "extend", "logits", S, T, None, B)
    abi = replace(abi, arguments=tuple(a for a in abi.arguments if a.name != "row"))
    with pytest.raises(ValueError, match="an extend graph takes"):
        abi.validate()


# ---- what is looked into


def situations(here: Model, batch: int) -> dict[str, Situation]:
    run = ReferenceRun(here.truth, here.config, here.checkpoint.load, 5, 4, batch)
    return {"extend": run.prompt("extend", here.capacity), "decode": run.step(here.capacity, len(TOKENS) - 1)}


# Each phase of every shape is of each run of the tests, from one source.
EACH = [*((name, 3) for name in (*SHAPES, *FAMILY_SHAPES)), ("plain", 2), ("plain", 5)]


@pytest.mark.parametrize(
    ("source", "name", "batch", "phase"),
    only(
        [(s, *one, p) for s, p in (("emitter", "decode"), ("oracle", "extend")) for one in EACH],
        [(s, *one, p) for s in ("emitter", "oracle") for one in EACH for p in ("extend", "decode")],
    ),
)
def test_right_graphs_are_right_at_every_anchor(source: str, name: str, batch: int, phase: str) -> None:
    here = model(name)
    situation = situations(here, batch)[phase]
    graph = write(
        source, here.checkpoint, GraphSpec(phase, "token", here.capacity, 4 if phase == "extend" else 0, batch)
    )
    anatomy = Anatomy(graph, here.config)
    for anchor in anatomy.anchors:
        assert anchor == "token" or situation.anchor(anchor).shape == anatomy.shape(anchor)
        assert not situation.errors(anchor, situation.anchor(anchor).copy()).any()
    found, failed = local_errors(anatomy, situation, here.bench(quick_xla()))
    assert not failed
    assert {a: e for a, e in found.items() if not e <= ANCHOR_FLOORS} == {}
    assert {*found} >= {*anatomy.anchors}


def test_a_wrong_row_is_seen() -> None:
    """What counts is the judged row; the others have other values, and the last is idle."""
    here = model("plain")
    situation = situations(here, 4)["decode"]
    assert (situation.rows, situation.positions) == ([6], [3, 6, 9, IDLE])
    for anchor in ("layers.0.self_attn.probs", "k_cache.1", "layers.1", "lm_head"):
        right = situation.anchor(anchor)
        for row in range(4):
            assert (row == JUDGED) or not np.array_equal(right[row], right[JUDGED])
            value = right.copy()
            value[row].flat[0] += 1
            errors = situation.errors(anchor, value)
            assert (errors.max() > ANCHOR_FLOORS) == (row == JUDGED), (anchor, row)
        value = right.copy()
        value[JUDGED].flat[0] += 1
        assert situation.worst(anchor, value).index[0] == JUDGED
        mended, _ = situation.corrected(anchor, value)
        assert not situation.errors(anchor, mended).any()
    whole = situation.cache("v_cache", 1)
    assert not situation.cache_errors("v_cache", 1, whole.copy()).any()
    for row, slot in ((0, 3), (0, 5), (1, 2), (1, 8), (3, 0)):  # what is written, what is not, and the idle row
        wrong = whole.copy()
        wrong[0, row, 0, slot] += 1
        assert situation.cache_errors("v_cache", 1, wrong)[0] > ANCHOR_FLOORS, (row, slot)


# Of each mechanism the first is of each run of the tests.
OF_ROWS = [m for m in MUTANTS.values() if m.batch > 1 or m.ring or (m.kv == "int8" and not m.note)]
FIRST = {(m.part, m.mechanism): m.id for m in reversed(OF_ROWS)}.values()


@pytest.mark.parametrize("id", only(FIRST, [m.id for m in OF_ROWS]))
def test_a_fault_of_rows_is_first_wrong_at_its_anchor(id: str) -> None:
    """Of both phases, fed with right inputs: in a cache with slots enough, in a chunk that is not full. So are those of rings."""
    mutant, S = MUTANTS[id], 64
    n = 48 if mutant.ring else 46  # half of a prompt of 44 ends where a ring of 11 slots does
    source = "oracle" if mutant.part == "reference" else "emitter"
    checkpoint = replace(tiny(mutant.architecture), kv=mutant.kv)
    config = checkpoint.config
    tokens = np.random.default_rng(4).integers(0, config.vocab_size, n).tolist()
    with one_process():
        truth = anchor_truth(checkpoint, tokens, prompt=n - 2)
    rows = mutant.batch
    T, prompt = (32, "extend") if rows > 1 else (64, "prefill")
    run = ReferenceRun(truth, config, checkpoint.load, n - 2, T, rows, mutant.ring, mutant.kv)
    bench = Workbench(quick_xla(), checkpoint.load, frozenset(weight_shapes(config)))
    wrong: list[str] = []
    with mutant.installed():
        graphs = [
            write(
                source, checkpoint, GraphSpec(p, "token", S, T * (p != "decode"), rows, ring=mutant.ring, kv=mutant.kv)
            )
            for p in (prompt, "decode")
        ]
    for graph in graphs:
        phase = graph.abi.phase
        # A ring that is full, and one that is not; but for angles that turn by the prompt's length.
        steps = [run.step(S, at) for at in (n - 1, *([5] if mutant.ring and not config.turning_point else []))]
        first: list[str] = []
        for situation in steps if phase == "decode" else [run.prompt(phase, S)]:
            errors, failed = local_errors(Anatomy(graph, config), situation, bench)
            assert not failed
            first += [a for a in anchors(config) if not errors.get(a, 0.0) <= ANCHOR_FLOORS][:1]
        wrong += dict.fromkeys(first)
    assert {*wrong} == {mutant.anchor}


@pytest.mark.parametrize("family", ["phi3", "llama"])
@pytest.mark.parametrize("source", ["emitter", "oracle"])
def test_what_is_written_is_gathered_behind_a_barrier(source: str, family: str) -> None:
    """Of a slice, as Phi-3's values are, IREE 3.13 gathers other rows on CUDA: see docs/toolchain-notes.md."""
    spec = GraphSpec("extend", "logits", S, T, B)
    config = tiny(family).config
    if source == "oracle":
        graph = lower(config, *spec)
    else:
        graph = emitter.Emitter(on_device=True).emit(config, *spec[:4], None, spec.batch)
    module = parse(graph.text)
    gathers = [op for op in operations(module) if op.name == "stablehlo.gather" and split(anchor_at(op))[1] in CACHES]
    of_tokens = [op.operands[0] for op in gathers if op.operands[0].type.shape[0] == T]
    assert len(of_tokens) == 2 * config.num_hidden_layers
    assert {value.owner.name for value in of_tokens} == {"stablehlo.optimization_barrier"}


# ---- a session as one sequence's, and what is asked of rows besides


def beside(graphs: Sequence[Graph]) -> Beside:
    found = session_of(quick_xla(), graphs, tiny("llama").load)
    assert isinstance(found, Beside)
    return found


@cache
def pair(head: str = "logits") -> tuple[Graph, Graph]:
    specs = (GraphSpec("decode", head, S, 0, B), GraphSpec("extend", head, S, T, B))
    return write("emitter", tiny("llama"), specs[0]), write("emitter", tiny("llama"), specs[1])


def test_a_sequence_beside_others_is_what_it_is_alone() -> None:
    some = sequences(tiny("llama"))
    wanted = alone(session("oracle", tiny("llama"), quick_xla(), 0), some)
    here = beside(pair())
    taken = []
    for s, right in zip(some * 2, wanted * 2, strict=True):
        heads = [here.prefill(s.tokens[: s.prompt], T), *map(here.decode_step, s.tokens[s.prompt :])]
        assert_alike([(heads, here.caches())], [right])
        taken.append(here.judged)
    assert len({*taken}) == B, "each row has its turn"


def test_right_rows_are_apart_and_give_all_their_tokens_together() -> None:
    s = sequences(tiny("llama"))
    here = beside(pair())
    assert apart(here, (s[1].tokens[:20], s[1].tokens[20:30]), T) == ""
    fed = {
        str(i): (one.tokens[: one.prompt], one.tokens[one.prompt : one.prompt + 6]) for i, one in enumerate([*s, *s])
    }
    found = together(here, fed, T)
    assert {id: len(tokens) for id, tokens in found.items()} == dict.fromkeys(fed, 7)
    assert found["0"] == found["3"]


class WritesIdle(emitter.BatchCache):
    """Takes every row for one that is not idle."""

    def _write(self, b: Any, cache: Any, new: Any) -> Any:
        self.position = b.maximum(self.position, b.i32(0, self.position.shape))
        return super()._write(b, cache, new)


class ReadsFirst(emitter.BatchCache):
    """Every row attends to what is in the first one."""

    def _write(self, b: Any, cache: Any, new: Any) -> Any:
        cache, mine = super()._write(b, cache, new)
        return cache, b.broadcast_in_dim(b.reshape(b.part(mine, 0, 0, 1), mine.shape[1:]), mine.shape, (1, 2, 3))


class ReadsLast(emitter.BatchCache):
    """Every row adds nothing but 0 times what is in the last one: which shows where that is no number."""

    def _write(self, b: Any, cache: Any, new: Any) -> Any:
        cache, mine = super()._write(b, cache, new)
        last = b.reshape(b.part(mine, 0, mine.shape[0] - 1, mine.shape[0]), mine.shape[1:])
        nothing = b.multiply(last, b.f32(0.0, last.shape))
        return cache, b.add(mine, b.broadcast_in_dim(nothing, mine.shape, (1, 2, 3)))


@pytest.mark.parametrize(("wrong", "words"), [
    (WritesIdle, "row 1 is idle, and its k_cache changes"),
    (ReadsLast, "the head after 21 tokens of row 0 is another one where the other rows hold NaN"),
])  # fmt: skip
def test_rows_that_are_not_apart(wrong: type, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitter, "BatchCache", wrong)
    here = beside([emit(tiny("llama").config, "decode", "logits", S, 0, None, B), pair()[1]])
    s = sequences(tiny("llama"))[1]
    assert apart(here, (s.tokens[:20], s.tokens[20:24]), T) == words


def test_rows_that_read_another_one_give_other_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    s = sequences(tiny("llama"))
    fed = {str(i): (one.tokens[: one.prompt], one.tokens[one.prompt : one.prompt + 6]) for i, one in enumerate(s)}
    right = together(beside(pair()), fed, T)
    monkeypatch.setattr(emitter, "BatchCache", ReadsFirst)
    wrong = together(beside([emit(tiny("llama").config, "decode", "logits", S, 0, None, B), pair()[1]]), fed, T)
    assert wrong != right


def test_the_checks_of_rows() -> None:
    found, truths = outcome_of_rows()
    status = {c.kind: c.status for c in configuration_checks(found, truths, batch=3)}
    assert (status["together"], status["rows-apart"]) == ("passed", "passed")
    id = next(iter(truths))
    other = {**found.rows.tokens, id: [*found.rows.tokens[id][:-1], (found.rows.tokens[id][-1] + 1) % 5]}  # type: ignore[union-attr]
    for rows, together_is, apart_is in (
        (Rows(other, ""), "failed", "passed"),
        (Rows({}, ""), "error", "passed"),
        (Rows({**other, id: other[id][:-1]}, ""), "error", "passed"),
        (replace(found.rows, apart="row 1 is idle, and its k_cache changes"), "passed", "failed"),  # type: ignore[type-var]
        (None, "error", "error"),
    ):
        status = {c.kind: c.status for c in configuration_checks(replace(found, rows=rows), truths, batch=3)}
        assert (status["together"], status["rows-apart"]) == (together_is, apart_is)


def outcome_of_rows() -> Any:
    found, truths = outcome(Configuration("emitter", "xla-cpu")), TRUTHS
    rows = Rows({id: list(t.tokens) for id, t in truths.items()}, "")
    return replace(found, rows=rows), truths


def test_idle_is_no_position() -> None:
    assert IDLE < 0
