"""The registry of deliberate faults: each one is planted, does what it says where it says, and leaves nothing behind."""

from __future__ import annotations

import ast
import importlib
import inspect as python_inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nightly import nightly
from planting import planted

from hloracle import mutants as package
from hloracle.backends.devices import Device
from hloracle.backends.iree import IreeCpu, IreeDevice
from hloracle.backends.session import Session
from hloracle.backends.xla import XlaCpu
from hloracle.conformance.graphs.facts import inspect
from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.errors import InputError, ToolchainError
from hloracle.emitters.builder import TensorType, Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.model import Emitter, emit
from hloracle.mutants import MUTANTS, Mutant
from hloracle.mutants.registry import Run, held_as, replaced
from hloracle.reference.fixtures.tiny import TINY, write_tiny
from hloracle.reference.model import registry
from hloracle.reference.model.anchors import anchor_of, anchor_shape, anchors, split
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.config import Config
from hloracle.reference.model.encodings import ENCODINGS
from hloracle.reference.model.registry import FAMILIES
from hloracle.reference.model.weights import default_layout, fused, parts_in, taken_shapes
from hloracle.reference.oracle.lower import lower
from hloracle.studies.mutants import LATE

CAPACITY = 64
LLAMA = Run("tiny-llama", "rows")
GRAPHS = tuple((phase, head) for phase in ("decode", "prefill") for head in ("logits", "token"))
# Above the noise of two compilations, below every fault whose mutant has no note.
DISTANCE = 1e-5
# Faults that change no value, or too little for any run to show.
SILENT = {m.id for m in MUTANTS.values() if m.mechanism in ("donation", "foreign-operation", "float64")}
SILENT |= {"matmul-duplicated", "matmul-dead", "softmax-without-maximum", "rope-tables-float32", "routing-ties-to-last"}
CLASSES = {"emitter-fault", "invariant-broken", "reference-fault", "compiler-fault", "harness-error"}


# Of each mechanism in each part the first mutant is of every run of the tests; the others are nightly.
FIRST = {(m.part, m.mechanism): m.id for m in reversed(MUTANTS.values())}.values()


def of(*parts: str, rings: bool = True) -> Any:
    """A test for every mutant of these parts. Those of several rows are `test_rows.py`'s, those of more slots `test_long.py`'s, and those that compute in
    less than float32 `test_compute.py`'s. The values of those with rings are `test_rows.py`'s, too, as are all with keys in int8.
    """
    some = [m for m in MUTANTS.values() if m.part in parts and m.batch == 1 and not m.capacity and m.compute == "f32"]
    some = [m for m in some if m.kv == "compute"]
    some = [m for m in some if rings or not m.ring]
    return pytest.mark.parametrize("mutant", [(pytest.param if m.id in FIRST else nightly)(m, id=m.id) for m in some])


def tiny(run: Run = LLAMA) -> Config:
    """Read anew, since some faults are of the reading."""
    return registry.from_hf(TINY[run[0].removeprefix("tiny-")])


def layout(run: Run) -> dict[str, str]:
    precision, how, fuse = held_as(run[1])
    found = default_layout(tiny(run), precision, how == "panels")
    return fused(tiny(run), found) if fuse else found


def bucket(run: Run) -> int:
    return 64 if run[0] in LATE else 32


def emitted(phase: str, head: str = "logits", run: Run = LLAMA) -> Graph:
    return emit(tiny(run), phase, head, CAPACITY, bucket(run), layout(run), ring=run.ring)


def lowered(phase: str, run: Run = LLAMA) -> Graph:
    return lower(tiny(run), phase, "logits", CAPACITY, bucket(run), ring=run.ring)


@cache
def right(source: str, phase: str, head: str = "logits", run: Run = LLAMA) -> Graph:
    """Without any fault; to be asked for before one is planted."""
    return emitted(phase, head, run) if source == "emitter" else lowered(phase, run)


# ---- the registry


def test_ids_and_mechanisms() -> None:
    assert len(MUTANTS) >= 100
    assert len({m.mechanism for m in MUTANTS.values()}) >= 18
    for id, mutant in MUTANTS.items():
        assert id == mutant.id
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", id), id
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", mutant.mechanism), id
        assert mutant.fault
        assert not mutant.fault.endswith(".")
    faults = Counter((m.part, m.model, m.fault) for m in MUTANTS.values())
    assert max(faults.values()) == 1, faults.most_common(1)


def test_parts() -> None:
    counts = Counter(m.part for m in MUTANTS.values())
    assert counts["emitter"] >= 60
    assert min(counts[part] for part in ("reference", "compiler", "session")) >= 6
    assert counts["device"] >= 4
    assert set(counts) == {"emitter", "reference", "compiler", "device", "session"}
    held = Counter(m.weights for m in MUTANTS.values())
    plain = {"rows", "panels", "bf16", "f16", "int8", "int4"}
    assert set(held) == {*plain, *(f"{weights}+fused" for weights in ("panels", "bf16", "int8", "int4"))}
    assert {m.part for m in MUTANTS.values() if m.weights != "rows"} == {"emitter"}


def test_where_faults_are() -> None:
    """Not all at the beginning of the model: localization is tested in every layer, and in one phase only."""
    layers = Counter(split(m.anchor)[0] for m in MUTANTS.values())
    assert min(layers[i] for i in (0, 1, 2, None)) >= 8
    assert len({split(m.anchor)[1] for m in MUTANTS.values()}) >= 18


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "llama"])
def test_each_family_has_faults_of_its_own(family: str) -> None:
    """In the emitter, and in what both sides believe or in the oracle; and not all at one place."""
    own = [m for m in MUTANTS.values() if m.architecture == family]
    assert len(own) >= 3
    assert {m.part for m in own} == {"emitter", "reference"}
    assert len({m.anchor for m in own}) >= 2


def test_a_module_of_faults_stands_for_itself() -> None:
    """What comes of its mutants is kept by its own content and the registry's: so it uses no other module of faults."""
    for path in Path(str(package.__file__)).parent.glob("[!_]*.py"):
        imported = (
            node.module or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
        )
        assert {name for name in imported if "mutants" in name} <= {"hloracle.mutants.registry"}, path.name
    assert {m.module for m in MUTANTS.values()} == {
        f"hloracle.mutants.{path.stem}" for path in Path(str(package.__file__)).parent.glob("[!_]*.py")
    } - {"hloracle.mutants.registry"}


def test_anchor_and_class() -> None:
    for mutant in MUTANTS.values():
        if mutant.part != "device":
            assert mutant.anchor in (*anchors(tiny(mutant.run)), "token"), mutant.id
            assert mutant.class_ in CLASSES, mutant.id
            # What changes a value is not said to leave them right.
            assert mutant.class_ != "invariant-broken" or mutant.id in SILENT, mutant.id


def test_each_takes_what_it_replaces_takes() -> None:
    """Of those that run at night alone, a call would say so then."""
    for mutant in MUTANTS.values():
        with mutant.installed():
            pass
    with pytest.raises(TypeError), replaced("emitters.matrix:MatrixBuilder._per_group", lambda right, b, x: x):
        pass


def test_an_unknown_mutant_is_refused_with_what_is_near() -> None:
    with pytest.raises(InputError, match="rope-interleaved"):
        planted("rope-interleave")


def test_no_mutant_plants_nothing() -> None:
    before = everything()
    with planted(""):
        inside = everything()
    assert inside == before


# ---- planting


def everything() -> dict[str, dict[str, Any]]:
    """Every attribute of the modules that are patched, and of their classes."""
    modules = "emitters.builder emitters.layers emitters.matrix emitters.mlp emitters.model "
    modules += (
        "reference.oracle.layers reference.oracle.mlp reference.oracle.model reference.oracle.lower reference.model.registry "
        "reference.model.rope backends.session backends.iree backends.xla "
    )
    modules += " ".join(
        f"{side}.architectures.{name}" for side in ("emitters", "reference.oracle") for name in FAMILIES
    )
    found: dict[str, dict[str, Any]] = {}
    for name in modules.split():
        module = importlib.import_module(f"hloracle.{name}")
        found[name] = dict(vars(module))
        for attribute, value in vars(module).items():
            if python_inspect.isclass(value) and value.__module__ == module.__name__:
                found[f"{name}.{attribute}"] = dict(vars(value))
    return found


@of("emitter", "reference", "compiler", "session")
def test_plant_restores(mutant: Mutant) -> None:
    before = everything()
    with planted(mutant.id):
        inside = everything()
    changed = [name for name in before if inside[name] != before[name]]
    assert changed
    # Once a graph is emitted, what runs and judges it is right: see Settings.mutant_at_work.
    assert mutant.part != "emitter" or all(name.startswith("emitters.") for name in changed)
    assert everything() == before
    with pytest.raises(ZeroDivisionError), planted(mutant.id):
        raise ZeroDivisionError
    assert everything() == before


# ---- the emitter


@of("emitter")
def test_an_emitter_fault_is_in_the_text(mutant: Mutant) -> None:
    expected = {graph: right("emitter", *graph, mutant.run) for graph in GRAPHS}
    with planted(mutant.id):
        wrong = {graph: emitted(*graph, mutant.run) for graph in GRAPHS}
    changed = {graph for graph in GRAPHS if wrong[graph].text != expected[graph].text}
    assert changed
    errors = {inspect(wrong[graph]).error for graph in changed}
    assert bool(errors - {""}) == (mutant.id == "does-not-verify")
    named = {phase for phase in ("decode", "prefill") if phase in mutant.id.split("-")}
    assert not named or {phase for phase, _ in changed} == named
    assert all(emitted(*graph, mutant.run).text == expected[graph].text for graph in GRAPHS)


def scopes(text: str) -> dict[str, list[str]]:
    """Anchor -> the kinds of its operations."""
    found: dict[str, list[str]] = {}
    for kind, scope in re.findall(r'(?m)^ +%\S+ = "?([\w.]+).* loc\("(.*)"\)$', text):
        found.setdefault(anchor_of(scope), []).append(kind)
    return found


@pytest.mark.parametrize(
    "id",
    ["custom-call", "chlo-operation", "optimization-barrier", "float64-norm", "matmul-duplicated", "matmul-dead"],
)
def test_operations_change_at_the_anchor_only(id: str) -> None:
    with planted(id):
        wrong = scopes(emitted("decode").text)
    before = scopes(right("emitter", "decode").text)
    assert {anchor for anchor in before if before[anchor] != wrong[anchor]} == {MUTANTS[id].anchor}


@pytest.mark.parametrize("id", ["donation-dropped", "donation-exchanged", "donation-not-in-abi"])
def test_donations(id: str) -> None:
    with planted(id):
        graph = emitted("decode", "token")
    assert scopes(graph.text) == scopes(right("emitter", "decode", "token").text)
    facts = inspect(graph)
    assert facts.abi_mismatch == ()
    assert bool(facts.donations) == (id != "donation-not-in-abi")


# ---- what the faults do, on XLA


@cache
def backend() -> XlaCpu:
    """XLA that optimizes nothing: it compiles in a fifth of the time."""
    xla = XlaCpu()
    xla._options.executable_build_options.debug_options.xla_backend_optimization_level = 0
    xla._options.env_option_overrides = [("xla_cpu_use_fusion_emitters", False)]
    return xla


@cache
def checkpoint(model: str, folder: Path) -> Checkpoint:
    return open_checkpoint(write_tiny(folder / model, model.removeprefix("tiny-")))


def held(opened: Checkpoint, layout: dict[str, str]) -> Iterator[np.ndarray]:
    """The weights as the arguments of a graph hold them."""
    for name in taken_shapes(opened.config, layout):
        weight = np.concatenate([opened.load(part) for part in parts_in(name)])
        yield from ENCODINGS[layout[name]].encode(weight) if name in layout else [weight]


@cache
def inputs(phase: str, run: Run, folder: Path, short: bool) -> list[np.ndarray]:
    """The weights, and a prompt that nearly fills its bucket or a token at position 45 after caches of noise."""
    opened, rng = checkpoint(run[0], folder), np.random.default_rng(1)
    config = opened.config
    if phase == "prefill":
        tokens = rng.integers(0, config.vocab_size, bucket(run)).astype(np.int32)
        # Beyond the point from which on RoPE's angles are others, as the bucket is, or short of it.
        length = (config.turning_point or 0) - 4 if short else bucket(run) - 11
        given = [tokens, np.array(length, np.int32)]
    else:
        shapes = config.cache_shapes(CAPACITY).values()
        caches = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        given = [np.array(77, np.int32), np.array(45, np.int32), *caches]
    return [*held(opened, layout(run)), *given]


def values(graph: Graph, run: Run, folder: Path, short: bool = False) -> dict[str, list[np.ndarray]]:
    """Anchor -> its value, its scope's last operation of that shape; of a cache, also what the graph returns."""
    last: dict[str, tuple[str, str]] = {}
    config, keys = tiny(run), bucket(run) if graph.abi.phase == "prefill" else CAPACITY
    queries = keys if graph.abi.phase == "prefill" else 1
    shapes = {a: squeezed(anchor_shape(config, a, queries, keys)) for a in anchors(config)}
    line = re.compile(r'(?m)^ +(%\S+) = ("?[\w.]+).*(tensor<[^<>]*>) loc\("(.*)"\)$')
    fitting: set[str] = set()
    for name, kind, type, scope in line.findall(graph.text):
        anchor, shape = anchor_of(scope), tuple(int(n) for n in re.findall(r"\d+(?=x)", type))
        # A config that is read wrongly gives all of them other shapes.
        fits = squeezed(shape) == shapes.get(anchor) or anchor not in fitting
        if not kind.endswith("constant") and fits:
            last[anchor] = name, type
        if squeezed(shape) == shapes.get(anchor):
            fitting.add(anchor)
    names, types = zip(*last.values(), strict=True)
    text = re.sub(r"\) -> \((.*)\) \{", lambda m: f") -> ({m[1]}, {', '.join(types)}) {{", graph.text, count=1)
    returned = rf"\1return \2, {', '.join(names)} : \3, {', '.join(types)}\4"
    # Not a region's: those return with `stablehlo.return`.
    text = re.sub(r"(?m)^( +(?:func\.)?)return (%.*) : (tensor.*?)( loc\(.*)?$", returned, text, count=1)
    # Copies: XLA may take over a numpy array as it is, and then write to a cache that is donated.
    arguments = [backend().upload(a.copy()) for a in inputs(graph.abi.phase, run, folder, short)]
    _, k_cache, v_cache, *taps = map(backend().download, backend().load(Graph(graph.name, text, graph.abi))(arguments))
    found = {anchor: [tap] for anchor, tap in zip(last, taps, strict=True)}
    for layer in range(len(k_cache)):
        found[f"k_cache.{layer}"].append(k_cache[layer])
        found[f"v_cache.{layer}"].append(v_cache[layer])
    return found


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


@cache
def right_values(source: str, phase: str, run: Run, folder: Path, short: bool) -> dict[str, list[np.ndarray]]:
    return values(right(source, phase, run=run), run, folder, short)


def differs(wrong: np.ndarray, right: np.ndarray) -> bool:
    """Beyond noise. Reshaped first: a config that is read wrongly has other heads."""
    wrong, finite = wrong.reshape(right.shape), np.isfinite(right)
    if not np.array_equal(wrong[~finite], right[~finite]) or not np.isfinite(wrong[finite]).all():
        return True
    return bool(np.max(np.abs(wrong[finite] - right[finite])) > DISTANCE * np.max(np.abs(right[finite])))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutants")


@pytest.fixture(scope="module", autouse=True)
def own_cache(cache: Path, folder: Path) -> Iterator[None]:
    """What is compiled here is not optimized, which the cache's key does not say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HLORACLE_CACHE", str(folder / "cache"))
        yield


@of("emitter", "reference", rings=False)
def test_the_first_wrong_value_is_at_the_anchor(mutant: Mutant, folder: Path) -> None:
    """In the phases in which a value is wrong, nothing before the anchor is, and its own value is."""
    if mutant.mechanism == "invalid" or mutant.id == "custom-call":
        pytest.skip("nothing compiles it")
    if mutant.mechanism == "argmax":
        pytest.skip("the token is no anchor: test_tokens")
    source, run = "emitter" if mutant.part == "emitter" else "oracle", mutant.run
    order, first = anchors(tiny(run)), None
    lengths = [("decode", False), ("prefill", False)]
    lengths += [("prefill", True)] if tiny(run).turning_point else []
    for phase, short in lengths:
        before = right(source, phase, run=run)
        with planted(mutant.id):
            graph = emitted(phase, run=run) if source == "emitter" else lowered(phase, run)
        if graph.text == before.text:
            continue
        expected, found = right_values(source, phase, run, folder, short), values(graph, run, folder, short)
        there = [anchor for anchor in order if anchor in found and anchor in expected]
        wrong = (a for a in there if any(differs(*pair) for pair in zip(found[a], expected[a], strict=True)))
        if first := next(wrong, None):
            break
    if mutant.id in SILENT:
        assert first is None
    elif mutant.anchor in there:
        assert first == mutant.anchor
    else:  # the fault leaves no operation in its anchor's scope: then a later value is the first that shows it
        assert first in order[order.index(mutant.anchor) :]


def alone(build: Callable[[LayerBuilder, Value], Value], x: np.ndarray) -> np.ndarray:
    """What a builder's function makes of one value."""
    b = LayerBuilder()
    result = build(b, b.argument(TensorType(x.shape, "f32"), "x"))
    arguments, results = (Tensor("weight", "x", x.shape, "f32"),), (Tensor("tap", "y", result.shape, result.dtype),)
    graph = b.graph("probe", Abi("decode", arguments, results), [result])
    (y,) = backend().load(graph)([backend().upload(x)])
    return backend().download(y)


@pytest.mark.parametrize(
    ("id", "logits", "token", "wrong"),
    [
        ("argmax-ties-to-last", {3: 2.0, 9: 2.0}, 3, 9),
        ("argmax-padded-vocabulary", dict.fromkeys(range(70), -1.0), 0, 70),
        ("argmax-vocabulary-cut", {69: 2.0, 3: 1.0}, 69, 3),
        ("argmax-of-magnitude", {5: -3.0, 3: 2.0}, 3, 5),
    ],
)
def test_tokens(id: str, logits: dict[int, float], token: int, wrong: int) -> None:
    x = np.zeros(70, np.float32)
    x[list(logits)] = list(logits.values())
    assert alone(LayerBuilder.argmax, x) == token
    with planted(id):
        assert alone(LayerBuilder.argmax, x) == wrong


def test_softmax_of_large_scores() -> None:
    x = np.array([[[[1.0, 2.0, 200.0]]]], np.float32)
    assert np.isfinite(alone(LayerBuilder.softmax, x)).all()
    with planted("softmax-without-maximum"):
        assert np.isnan(alone(LayerBuilder.softmax, x)).any()


# ---- the reference


@of("reference")
def test_a_reference_fault_is_in_the_lowered_text(mutant: Mutant) -> None:
    run, phases = mutant.run, ("decode", "prefill")
    oracles, emitters = ([right(source, phase, run=run).text for phase in phases] for source in ("oracle", "emitter"))
    with planted(mutant.id):
        assert [lowered(phase, run).text for phase in phases] != oracles
        same = [emitted(phase, run=run).text for phase in phases] == emitters
    # Both sides believe a config that is read wrongly; any other fault is the oracle's alone.
    assert same == (mutant.mechanism != "config")


# ---- compilers


@contextmanager
def compiling(module: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The texts that a backend would compile, in place of compiling."""
    texts: list[str] = []

    def compiled(text: str, *arguments: object) -> None:
        texts.append(text)
        raise ToolchainError("compile", "not compiled: this is a test")

    with monkeypatch.context() as patch:
        patch.setattr(f"hloracle.backends.{module}.compiled", compiled)
        yield texts


@of("device")
def test_a_devices_fault_changes_what_is_compiled_for_it(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or, of one that shows when it runs, nothing."""
    device, changed = IreeDevice(Device("simulated")), 0
    for phase, head in GRAPHS:
        graph = Emitter(on_device=True).emit(tiny(), phase, head, CAPACITY, 32)
        with compiling("iree", monkeypatch) as texts, planted(mutant.id), pytest.raises(ToolchainError):
            device.load(graph)
        (text,) = texts
        assert not inspect(Graph(graph.name, text, graph.abi)).error
        changed += text != graph.text
    assert bool(changed) == (mutant.id != "device-kernel-fails")


@of("compiler")
def test_a_compiler_fault_changes_what_is_compiled(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "xla" if mutant.id.startswith("xla-") else "iree"
    loads = {"xla": XlaCpu, "iree": lambda: IreeCpu(1)}[module]()
    changed, stopped = 0, 0
    for graph in (right("emitter", *graph) for graph in GRAPHS):
        with compiling(module, monkeypatch) as texts, planted(mutant.id):
            with pytest.raises(ToolchainError):
                loads.load(graph)
            stopped += not texts
            changed += bool(texts) and texts[0] != graph.text
            assert not texts or not inspect(Graph(graph.name, texts[0], graph.abi)).error
        assert inspect(graph).error == ""
    assert changed or stopped
    assert bool(stopped) == (mutant.mechanism == "compiler-crash")


def test_a_compiler_fault_is_found_again_in_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few operations under other names, without locations, as MLIR prints them."""
    text = """module @slice {
  func.func public @main(%arg0: tensor<1xf32>) -> tensor<1xf32> {
    %0 = stablehlo.rsqrt %arg0 : tensor<1xf32>
    return %0 : tensor<1xf32>
  }
}
"""
    with compiling("iree", monkeypatch) as texts, planted("iree-rsqrt-float16"), pytest.raises(ToolchainError):
        IreeCpu(1).load(Graph("slice", text, right("emitter", "decode").abi))
    assert "f16" in texts[0]
    assert inspect(Graph("slice", texts[0], right("emitter", "decode").abi)).error == ""


def test_a_fused_fault_vanishes_when_the_value_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    template = """module @slice {{
  func.func public @main(%a: tensor<1x112xf32>, %w: tensor<84x112xf32>) -> ({types}) {{
    %act = stablehlo.multiply %a, %a : tensor<1x112xf32>
    %y = stablehlo.dot_general %act, %w, contracting_dims = [1] x [1], precision = [HIGHEST, HIGHEST] : (tensor<1x112xf32>, tensor<84x112xf32>) -> tensor<1x84xf32>
    return {values} : {types}
  }}
}}
"""
    one = template.format(values="%y", types="tensor<1x84xf32>")
    two = template.format(values="%y, %act", types="tensor<1x84xf32>, tensor<1x112xf32>")
    for text, found in ((one, True), (two, False)):
        with compiling("iree", monkeypatch) as texts, planted("iree-product-fused"), pytest.raises(ToolchainError):
            IreeCpu(1).load(Graph("slice", text, right("emitter", "decode").abi))
        assert ("bf16" in texts[0]) == found


# ---- sessions


def answers(folder: Path) -> list[np.ndarray]:
    """The logits of two prompts, the second too long for the smallest bucket, and of two steps after each."""
    config = tiny()
    graphs = [emit(config, "decode", "logits", CAPACITY)]
    graphs += [emit(config, "prefill", "logits", CAPACITY, bucket) for bucket in (8, 32)]
    session = Session(backend(), graphs, checkpoint(LLAMA[0], folder).load)
    found = []
    for prompt in ([3, 141, 59, 26, 5], list(range(40, 60))):
        found += [session.prefill(prompt), session.decode_step(7), session.decode_step(200)]
    return [np.asarray(head) for head in found]


@of("session")
def test_a_session_fault_changes_answers_and_no_graph(mutant: Mutant, folder: Path) -> None:
    expected, graphs = answers(folder), [right("emitter", *graph) for graph in GRAPHS]
    with planted(mutant.id):
        assert [emitted(*graph) for graph in GRAPHS] == graphs
        found = answers(folder)
    assert any(differs(a, b) for a, b in zip(found, expected, strict=True))
    assert not any(differs(a, b) for a, b in zip(answers(folder), expected, strict=True))
