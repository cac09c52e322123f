"""The third witness: a sample of a graph's anchors, evaluated by StableHLO's interpreter."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from models import PHASES, SHAPES, interpreter, model

from hloracle.backends.words import interpreter as the_interpreter
from hloracle.backends.worker import Worker
from hloracle.conformance.checks.check import Check
from hloracle.conformance.runs.interpreted import Interpreted, interpreter_check
from hloracle.conformance.verdict.compared import LOOKED
from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.errors import ToolchainError
from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.localize.anatomy import anatomy_of
from hloracle.localize.witness import MOST, evaluations, word_of
from hloracle.localize.word import Word
from hloracle.localize.workbench import Workbench


@pytest.fixture(scope="module", autouse=True)
def _cache(cache: Path) -> None:
    """The models are in the session's cache."""


def words(graph: Graph, name: str = "plain") -> dict[str, Word]:
    here = model(name)
    run, anatomy = here.run(), anatomy_of(graph, here.config)
    capacity = graph.abi.capacity
    decode = graph.abi.phase == "decode"
    situation = run.step(capacity, len(run.truth.tokens) - 1) if decode else run.prompt("prefill", capacity)
    bench = Workbench(interpreter(), run.weight, here.weights)
    value = partial(situation.value, weight=bench.weight)
    return {a: word_of(anatomy.subgraph(a), situation, value, bench) for a in anatomy.anchors}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", SHAPES)
def test_it_has_every_anchor_of_a_right_graph_right(name: str, phase: str) -> None:
    found = words(model(name).graph("emitter", phase), name)
    assert found
    assert all(word.right for word in found.values()), found


def test_what_a_graph_means_and_no_compiler_may_compute() -> None:
    """A rounding that a compiler may leave out: as the graph is written, it is there."""
    right = model("plain").graph("emitter", "decode")
    logistic = r"( *)(%\S+) = stablehlo\.logistic (%\S+) : tensor<(\S+)xf32>(.*)\n"

    def rounded(m: re.Match[str]) -> str:
        narrow, wide = f"tensor<{m[4]}xbf16>", f"tensor<{m[4]}xf32>"
        return (
            f"{m[1]}%n = stablehlo.convert {m[3]} : ({wide}) -> {narrow}{m[5]}\n"
            f"{m[1]}%w = stablehlo.convert %n : ({narrow}) -> {wide}{m[5]}\n"
            f"{m[1]}{m[2]} = stablehlo.logistic %w : {wide}{m[5]}\n"
        )

    found = words(replace(right, text=re.sub(logistic, rounded, right.text, count=1)))
    assert [a for a, word in found.items() if word.wrong] == ["layers.0.mlp.act"]


def test_work_that_would_take_minutes_is_not_begun() -> None:
    here = model("plain")
    graph = here.graph("emitter", "decode")
    cost = {a: evaluations(anatomy_of(graph, here.config).subgraph(a)) for a in anatomy_of(graph, here.config).anchors}
    assert 0 < cost["embed_tokens"] < cost["layers.0.self_attn.q_proj"] < cost["lm_head"] < MOST
    weight = next(w for w in graph.abi.weights if w.name.endswith("layers.0.self_attn.q_proj.weight"))
    assert cost["layers.0.self_attn.q_proj"] >= int(np.prod(weight.shape)), "one multiplication for each weight"


# ---- the check


def checked(*found: Word) -> Check:
    return interpreter_check("emitter", [Interpreted("decode", [*found], 9)])


def test_the_check() -> None:
    right, silent = Word("decode", "norm", 0.5), Word("decode", "lm_head", None, "it died (signal SIGABRT)")
    check = checked(right, silent)
    assert (check.status, check.figure) == (
        "passed",
        "1 of 9 anchors, at most 0.50 floors off (norm, decode); it has no word on 1 that it was asked of, such as lm_head",
    )
    wrong = checked(right, Word("decode", "embed_tokens", 99.0))
    assert (wrong.status, wrong.anchor) == ("failed", "embed_tokens")
    assert wrong.detail == "embed_tokens of decode is 99 floors off, from right inputs"
    assert checked(Word("decode", "norm", float("nan"))).status == "failed", "NaN is within no limit"


def test_nothing_is_no_pass() -> None:
    assert checked().status == "skipped"
    silent = checked(Word("decode", "norm", None, "it died (signal SIGABRT)"))
    assert (silent.status, silent.detail) == ("skipped", "it died (signal SIGABRT)")
    assert "interpreter" in dict(LOOKED), "a run says whether it was asked"


def test_a_word_is_right_up_to_the_limit() -> None:
    assert Word("decode", "norm", ANCHOR_FLOORS).right
    assert Word("decode", "norm", np.nextafter(ANCHOR_FLOORS, 99)).wrong
    assert not Word("decode", "norm", None).right
    assert not Word("decode", "norm", None).wrong


# ---- as a process of its own


def of_one(line: str, type: str) -> Graph:
    tensors = Tensor("tap", "x", (3,), "f32"), Tensor("tap", "y", (3,), "f32")
    text = f"func.func public @main(%x: {type}) -> {type} {{\n  {line}\n  return %y : {type}\n}}\n"
    return Graph("one", text, Abi("decode", tensors[:1], tensors[1:]))


def test_an_operation_that_it_lacks_ends_the_worker_and_not_us() -> None:
    backend = the_interpreter().open(1)
    assert isinstance(backend, Worker)
    x = np.array([0.5, 1.0, 2.0], np.float32)
    (y,) = backend.load(of_one("%y = stablehlo.exponential %x : tensor<3xf32>", "tensor<3xf32>"))([backend.upload(x)])
    assert np.allclose(backend.download(y), np.exp(x), rtol=1e-6)
    custom = of_one("%y = stablehlo.custom_call @nobody(%x) : (tensor<3xf32>) -> tensor<3xf32>", "tensor<3xf32>")
    with pytest.raises(ToolchainError, match=r"stablehlo ended without an answer|nobody|custom_call"):
        backend.load(custom)([backend.upload(x)])
