"""How long emitting takes. Run with `python -m pytest tests/bench_emit.py`; the suite does not collect it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hloracle.emitters.model import emit
from hloracle.reference.registry import from_hf

SMOLLM2 = Path(__file__).parent / "configs" / "smollm2-135m.json"


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_emit_30_layers(benchmark: BenchmarkFixture, phase: str) -> None:
    config = from_hf(json.loads(SMOLLM2.read_text()))
    graph = benchmark(emit, config, phase, "token", 256, 64)
    assert graph.text.count("stablehlo.dot_general") == 9 * 30 + 1
