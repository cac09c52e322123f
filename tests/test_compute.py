"""Graphs that compute in bf16 and f16: how their errors are spread, what is held to that, and what is caught."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from evidence import truth

from hloracle.conformance.checks.of_configurations import is_near_tie, truth_check
from hloracle.core.abi import Graph
from hloracle.core.errors import InputError
from hloracle.core.spread import LARGEST, MEDIAN, P99, RMS, Figures, Spread, over_rows, row_spreads, spread_of
from hloracle.core.tolerances import NARROW_MARGINS, NARROW_ROUNDING
from hloracle.emitters.model import emit
from hloracle.localize.inputs import LARGE, SCALES, scales, share_of
from hloracle.mutants import MUTANTS
from hloracle.production.choice import production_graphs, untuned
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.huggingface.truth import Truth
from hloracle.reference.model.checkpoint import COMPUTE, open_checkpoint
from hloracle.reference.model.contract import GraphSpec
from hloracle.reference.model.registry import FAMILIES, from_hf
from hloracle.reference.model.weights import default_layout
from hloracle.reports.page.html import render
from hloracle.reports.record import validate
from hloracle.reports.text import share

NARROW = ("bf16", "f16")
CONFIG = from_hf(TINY["llama"])
TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
RECORDS = Path(__file__).parent / "records"


def graph(compute: str, phase: str = "decode", architecture: str = "llama") -> Graph:
    config = from_hf(TINY[architecture])
    layout = default_layout(config, compute, panels=False)
    return emit(config, phase, "logits", 32, 0 if phase == "decode" else 32, layout, 1, compute)


# ---- how errors are spread


def test_figures_of_rows() -> None:
    off = np.zeros((2, 400))
    off[0, :200] = np.arange(1, 201)
    found = row_spreads(off, np.array([200, 400]))
    assert found[0, RMS] == pytest.approx(np.sqrt(np.mean(np.arange(1, 201) ** 2)))
    assert (found[0, MEDIAN], found[0, P99], found[0, LARGEST]) == (101, 199, 200)
    assert not found[1].any()


def test_rows_together() -> None:
    """What is usual, the median, one row makes least of."""
    found = over_rows(np.array([[3.0, 3, 3, 3], [0, 0, 0, 5]]), np.array([1, 3]))
    assert found.tolist() == [1.5, 0.75, 1.5, 5]


def spread(factor: float, rms: float = 1.0) -> Spread:
    """Of a graph whose errors are `factor` times those of the worst pass of Hugging Face."""
    values, count = np.full((8, 100), 1000.0), np.full(8, 100)
    passes = np.stack([np.full((8, 4), x) for x in (1e-3, 8.0, 10.0)])
    own = np.full((8, 4), 10.0) * factor
    own[:, RMS] *= rms
    return spread_of(own, passes, values, count, NARROW_ROUNDING["bf16"])


def test_a_graph_is_held_to_the_worst_pass() -> None:
    assert spread(1).ratios == pytest.approx((1, 1, 1, 1))
    assert spread(1).share == pytest.approx(1 / min(NARROW_MARGINS))
    assert spread(min(NARROW_MARGINS) * 0.99).share <= 1
    assert spread(min(NARROW_MARGINS) * 1.01).share > 1
    assert spread(1, rms=NARROW_MARGINS[RMS] * 1.01).share > 1
    assert spread(1, rms=float("nan")).share == np.inf


def test_where_hugging_face_is_exact_one_rounding_is_none_too_much() -> None:
    values, count = np.ones((8, 4)), np.full(8, 4)
    passes = np.zeros((3, 8, 4))
    once = np.tile(NARROW_ROUNDING["bf16"] * np.array([0.41, 0.5, 1, 1]), (8, 1))
    assert spread_of(once, passes, values, count, NARROW_ROUNDING["bf16"]).share <= 1
    assert spread_of(10 * once, passes, values, count, NARROW_ROUNDING["bf16"]).share > 1


# ---- the truth


def narrow_truth(noise: float) -> Truth:
    found = truth()
    steps = len(found.tokens)
    spreads = np.stack([np.full((steps, 4), x, np.float32) for x in (1e-6, noise, noise / 2)])
    return dataclasses.replace(found, compute="bf16", spreads=spreads)


def test_tokens_are_judged_by_the_noise_of_the_type() -> None:
    found = narrow_truth(0.6)  # the lead is 1
    single = truth()
    other = int(np.argsort(single.exact[0])[-2])
    assert not is_near_tie(0, other, single)
    assert is_near_tie(0, other, found)
    assert not is_near_tie(0, other, narrow_truth(0.4))


@pytest.mark.parametrize(("noise", "words"), [(0.0, "is not noisier"), (float("nan"), "not finite")])
def test_noise_that_is_odd_is_refused(noise: float, words: str) -> None:
    assert truth_check({"a": narrow_truth(0.01)}).status == "passed"
    check = truth_check({"a": narrow_truth(noise)})
    assert check.failed
    assert words in check.detail


# ---- on the same inputs


@pytest.mark.parametrize("compute", NARROW)
def test_one_rounding_more_is_told_on_the_same_inputs(compute: str) -> None:
    of, rng = graph(compute), np.random.default_rng(0)
    exact = rng.normal(0, 1, (32, 48))
    right = exact.astype(TYPES[compute])
    twice = (right.astype(np.float32) * np.float32(1 + 2 * NARROW_ROUNDING[compute])).astype(TYPES[compute])
    assert share_of("layers.0", right, right, of) == 0
    assert share_of("layers.0", twice, right, of) > 1
    few = right.copy()
    few[0, 0] = twice[0, 0]
    assert share_of("layers.0", few, right, of) <= 1


def test_infinity_and_the_largest_number_are_a_rounding_apart() -> None:
    of = graph("f16")
    assert share_of("layers.0", np.float16([[np.inf, 1]]), np.float16([[65504, 1]]), of) == 0
    assert share_of("layers.0", np.float16([[np.inf, 1]]), np.float16([[30000, 1]]), of) > 1


def test_bf16_is_probed_beyond_f16() -> None:
    assert (scales("f32"), scales("f16"), scales("bf16")) == (SCALES, SCALES, (*SCALES, LARGE))
    assert float(np.finfo(np.float16).max) < LARGE


# ---- graphs


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_caches_and_weights_are_of_the_type(architecture: str, phase: str) -> None:
    found = graph("bf16", phase, architecture)
    assert found.abi.compute == "bf16"
    assert found.name.endswith("_bf16")
    assert {r.dtype for r in found.abi.results[1:]} == {"bf16"}
    assert found.abi.results[0].dtype == "f32"


@pytest.mark.parametrize("architecture", FAMILIES)
def test_rows_and_blocks_of_keys_are_of_the_type(architecture: str) -> None:
    config = from_hf(TINY[architecture])
    layout = default_layout(config, "bf16", panels=False)
    for phase, bucket, capacity, batch in (("extend", 32, 64, 3), ("extend", 32, 512, 1), ("decode", 0, 64, 3)):
        found = emit(
            config, phase, "logits", min(capacity, config.max_position_embeddings), bucket, layout, batch, "bf16"
        )
        assert {r.dtype for r in found.abi.results if r.name in ("k_cache", "v_cache")} == {"bf16"}


@pytest.mark.parametrize("compute", NARROW)
@pytest.mark.parametrize("batch", [1, 3])
def test_no_production_graph_is_compiled_with_data_tiling(compute: str, batch: int) -> None:
    """With which IREE 3.13 compiles no product of bf16, and says nothing that names it."""
    checkpoint = open_checkpoint(resolve("tiny-llama", compute=compute))
    specs = [
        GraphSpec("decode", "token", 64, 0, batch, compute),
        GraphSpec("extend" if batch > 1 else "prefill", "token", 64, 32, batch, compute),
    ]
    graphs = production_graphs(checkpoint, "f32", untuned(batch=batch, compute=compute), specs)
    assert {a.dtype for g in graphs for a in g.abi.arguments if a.role in ("weight", "k_cache")} == {compute, "f32"}
    assert not [g.name for g in graphs if any("data-tiling" in flag for flag in g.flags)]


def test_a_model_that_is_computed_in_less_is_named_so() -> None:
    """Its directory is the model, as long as what it is computed in is said again."""
    directory = resolve("tiny-llama", compute="bf16")
    assert resolve(str(directory), compute="bf16") == directory
    with pytest.raises(InputError, match="is computed in bf16; add --compute bf16"):
        resolve(str(directory))
    with pytest.raises(InputError, match="is computed in bf16; name the model that it was made from"):
        resolve(str(directory), compute="f16")


def test_sums_are_of_float32() -> None:
    """Products give float32, and nothing is added up in less."""
    text = graph("bf16").text
    products = [line for line in text.splitlines() if "dot_general" in line]
    sums = [line for line in text.splitlines() if "stablehlo.reduce" in line]
    assert products
    assert all(line.rstrip().split(" loc(")[0].endswith("xf32>") for line in products)
    assert not [line for line in sums if "bf16" in line]


PLANTED = [m for m in MUTANTS.values() if m.compute != "f32"]


@pytest.mark.parametrize("mutant", PLANTED, ids=[m.id for m in PLANTED])
def test_a_mutant_of_precision_is_planted(mutant: object) -> None:
    assert isinstance(mutant, type(PLANTED[0]))
    right = graph(mutant.compute, "prefill", mutant.architecture).text
    with mutant.installed():
        assert graph(mutant.compute, "prefill", mutant.architecture).text != right
    assert graph(mutant.compute, "prefill", mutant.architecture).text == right


def test_there_are_mutants_of_precision() -> None:
    assert len(PLANTED) >= 12
    assert {m.mechanism for m in PLANTED} == {"narrow-sum", "narrow-value", "narrow-range"}


# ---- checkpoints


@pytest.mark.parametrize("compute", NARROW)
def test_all_weights_are_rounded(compute: str) -> None:
    opened = open_checkpoint(resolve("tiny-llama", compute=compute))
    plain = open_checkpoint(resolve("tiny-llama"))
    assert opened.compute == compute
    assert opened.digest != plain.digest
    for name in ("model.norm.weight", "model.layers.0.mlp.up_proj.weight"):
        expected = plain.tensor(name).astype(TYPES[compute]).astype(np.float32)
        assert np.array_equal(opened.tensor(name).astype(np.float32), expected)


def test_other_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such type"):
        resolve("tiny-llama", compute="f8")
    with pytest.raises(InputError, match="--precision"):
        resolve("tiny-llama", precision="int8", compute="bf16")
    for path in resolve("tiny-llama", compute="bf16").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / COMPUTE).write_text(json.dumps("f8"))
    with pytest.raises(InputError, match=r"bf16, f16"):
        open_checkpoint(tmp_path)


# ---- the page


def recorded(graph: float) -> dict[str, object]:
    figures = {name: {"rms": x, "median": x, "p99": x, "largest": x} for name, x in (
        ("float32", 1e-6), ("narrow", 0.01), ("graph", graph), ("limit", 0.03),
    )}  # fmt: skip
    return {
        "configuration": "emitter/iree-cpu",
        "phase": "decode",
        "anchor": "logits",
        "rows": 8,
        "scale": 1.0,
        **figures,
    }


@pytest.mark.parametrize(("off", "words"), [(0.01, "within the margins"), (0.05, "1 configuration beyond the margins")])
def test_the_page_has_the_three_distributions(off: float, words: str) -> None:
    record = json.loads((RECORDS / "conforms.json").read_text())
    assert "How errors are spread" not in render(record)
    record["spreads"] = [recorded(off), recorded(off) | {"anchor": "layers.0"}]
    record["settings"]["compute"] = "bf16"
    page = render(record)
    for text in ("How errors are spread", "Hugging Face, float32", "Hugging Face, bfloat16", "emitter/iree-cpu", words):
        assert text in page
    assert page.count('class="fluid spread ') == 4, "both of Hugging Face, what is accepted, and the graph"
    assert re.findall(r"0\.03 <span class=\"muted at\">(.*?)</span>", page) == ["3×"] * 4, "how many times that is"


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (0.0, "0 %"),
        (0.001, "under 1 %"),
        (0.333, "33 %"),
        (0.9999, "99 %"),
        (1.0, "100 %"),
        (1.001, "101 %"),
        (math.inf, "∞"),
    ],
)
def test_a_share_of_what_is_accepted(part: float, words: str) -> None:
    """None that is beyond reads as if it were within."""
    assert share(part) == words


def test_a_record_that_passes_has_no_spread_beyond_its_limit() -> None:
    record = json.loads((RECORDS / "conforms.json").read_text())
    record["spreads"] = [recorded(0.01)]
    validate(record)
    record["spreads"] = [recorded(0.05)]
    with pytest.raises(ValueError, match=r"spreads\[0\]\.graph\.rms: 0\.05 is over the limit 0\.03"):
        validate(record)


def test_figures_are_named() -> None:
    assert Figures._fields == ("rms", "median", "p99", "largest")
