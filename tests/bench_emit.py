"""How long emitting takes. `nox -s tests-nightly` runs it by itself, after the tests: `python -m pytest tests/bench_emit.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hloracle.emitters.model import emit
from hloracle.reference.model.registry import from_hf
from hloracle.reference.model.weights import default_layout

SMOLLM2 = Path(__file__).parent / "configs" / "smollm2-135m.json"


@pytest.mark.parametrize("weights", ["rows", "panels", "int4"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_emit_30_layers(benchmark: BenchmarkFixture, phase: str, weights: str) -> None:
    config = from_hf(json.loads(SMOLLM2.read_text()))
    layout = default_layout(config, "int4" if weights == "int4" else "f32", weights != "rows")
    graph = benchmark(emit, config, phase, "token", 256, 64, layout)
    # Where a weight is not in rows, a token's product with it is a sum; the head's is a token's in either phase.
    as_sums = 0 if weights == "rows" else 7 * 30 if phase == "decode" else 0
    head = weights == "rows"
    halves = (
        7 * 30 if (phase, weights) == ("prefill", "int4") else 0
    )  # each is a product with either half of the groups
    assert graph.text.count("stablehlo.dot_general") == 9 * 30 - as_sums + halves + head
