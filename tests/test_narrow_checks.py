"""What decides of a graph that computes in bf16: the margins of its logits, the canary, the contract, the truth's passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidence import LONG, SHORT, V, on_prompt, outcome, truth

from hloracle.conformance.checks.of_configurations import configuration_checks
from hloracle.conformance.graphs.sources import open_files
from hloracle.conformance.matrix import Configuration
from hloracle.conformance.runs.configurations import Outcome
from hloracle.conformance.runs.inside import CANARY_FACTOR, NARROW_CANARY_FACTOR, canary_factor
from hloracle.conformance.settings import Settings
from hloracle.core.child import ChildResult
from hloracle.core.errors import InputError
from hloracle.core.spread import Figures, row_spreads
from hloracle.core.tolerances import NARROW_MARGINS
from hloracle.emitters.model import emit
from hloracle.production.choice import untuned
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.huggingface import truth as module
from hloracle.reference.huggingface.anchor_truth import AnchorTruth
from hloracle.reference.huggingface.truth import Truth, truths
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.registry import from_hf
from hloracle.reference.model.weights import default_layout

CONFIG = from_hf(TINY["llama"])
LOGITS = Configuration("emitter", "xla-cpu")
NOISE = 0.25  # more than a rounding of the logits, of which the largest is 10


def narrow(tokens: tuple[int, ...]) -> Truth:
    """Two passes in bf16, of which the worst is off by NOISE at each step."""
    found = truth(tokens)
    spreads = np.stack([np.full((len(tokens), 4), x, np.float32) for x in (1e-6, NOISE, NOISE / 2)])
    return dataclasses.replace(found, compute="bf16", spreads=spreads)


TRUTHS = {LONG.id: narrow((3, 1, 4, 1, 5, 2, 6, 5, 3)), SHORT.id: narrow((5, 2, 6))}


def spread(*factors: float) -> Outcome:
    """A graph whose figures are so many times the worst pass's, at every step."""
    found = outcome(LOGITS, TRUTHS)
    one = Figures._make(NOISE * factor for factor in factors)
    for id, t in TRUTHS.items():
        found = on_prompt(id, spreads=(one,) * len(t.tokens), errors=[one.largest] * len(t.tokens))(found)
    return found


def status(found: Outcome) -> dict[str, str]:
    return {c.kind: c.status for c in configuration_checks(found, TRUTHS, ()) if c.kind.endswith("logits")}


def test_a_graph_within_all_margins_conforms() -> None:
    # Of the two prompts prefill has two rows, which say nothing of how errors are spread.
    assert status(spread(*NARROW_MARGINS)) == {"prefill-logits": "passed", "decode-logits": "passed"}


@pytest.mark.parametrize("figure", range(4))
def test_each_figure_has_a_margin(figure: int) -> None:
    factors = [1.0] * 4
    factors[figure] = NARROW_MARGINS[figure] * 1.01
    assert status(spread(*factors))["decode-logits"] == "failed"


@pytest.mark.parametrize("left", [0, 1])
def test_spreads_that_were_not_measured_do_not_pass(left: int) -> None:
    found = spread(*NARROW_MARGINS)
    one = found.prompts[LONG.id].spreads[:left]
    assert status(on_prompt(LONG.id, spreads=one)(found)) == {"prefill-logits": "error", "decode-logits": "error"}


def test_errors_that_are_no_numbers_are_beyond_all_margins() -> None:
    assert status(spread(float("nan"), 1, 1, 1))["decode-logits"] == "failed"


# ---- the canary


@dataclasses.dataclass(frozen=True)
class Fake(AnchorTruth):
    """Values of 1, whose noise is a share of them."""

    share: float = 0.01

    def values(self, anchor: str) -> np.ndarray:
        return np.ones((4, CONFIG.hidden_size), np.float32)

    def noise(self, anchor: str) -> np.ndarray:
        return np.full(4, 1e-6, np.float32)

    def spreads(self, anchor: str) -> np.ndarray:
        return np.full((3, 4, 4), self.share, np.float32)


def test_a_canary_is_off_by_more_than_is_accepted() -> None:
    """Of a value that is noisy, as behind a choice of experts, by more than of another."""
    asked = (1, 2, 3, 4), Path(), False
    assert canary_factor(Fake(*asked), CONFIG, "norm") == CANARY_FACTOR
    assert canary_factor(Fake(*asked, "bf16"), CONFIG, "norm") == NARROW_CANARY_FACTOR
    noisy = canary_factor(Fake(*asked, "bf16", share=0.5), CONFIG, "norm")
    assert noisy - 1 > NARROW_MARGINS[-1] * 0.5


# ---- the contract


def written(folder: Path, phase: str, compute: str) -> Path:
    layout = default_layout(CONFIG, compute, panels=False)
    graph = emit(CONFIG, phase, "logits", 32, 0 if phase == "decode" else 32, layout, 1, compute)
    return graph.save(folder / f"{phase}.{compute}.mlir")[0]


def test_graphs_of_a_session_compute_in_one_type(tmp_path: Path) -> None:
    decode = written(tmp_path, "decode", "bf16")
    assert open_files([decode]).compute == open_files([decode, written(tmp_path, "prefill", "bf16")]).compute == "bf16"
    assert open_files([written(tmp_path, "decode", "f32")]).compute == "f32"
    with pytest.raises(InputError, match=r"its compute is f16, and that of .* is bf16"):
        open_files([decode, written(tmp_path, "prefill", "f16")])


@pytest.mark.parametrize("role", ["k_cache", "v_cache", "logits"])
def test_caches_are_of_one_type_and_logits_float32(role: str) -> None:
    abi = emit(CONFIG, "prefill", "logits", 32, 32, default_layout(CONFIG, "bf16", panels=False), 1, "bf16").abi
    abi.validate()
    results = tuple(dataclasses.replace(r, dtype="f16") if r.role == role else r for r in abi.results)
    with pytest.raises(ValueError, match=r"not of rank"):
        dataclasses.replace(abi, results=results).validate()


def test_panels_are_refused() -> None:
    Settings("tiny-llama", compute="bf16").validate()
    with pytest.raises(InputError, match="--layout"):
        Settings("tiny-llama", choice=untuned("panels"), compute="bf16").validate()


# ---- the truth


@pytest.mark.parametrize("compute", ["bf16", "f16"])
def test_the_noise_is_of_several_passes_in_the_type(compute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def here(function: Callable[..., Any], *arguments: Any, timeout: float, report: Any = None) -> ChildResult:
        calls.append(1)
        return ChildResult(function(lambda line: None, *arguments), 0.0, 0)

    monkeypatch.setattr(module, "run_in_child", here)
    checkpoint = open_checkpoint(resolve("tiny-llama", compute=compute))
    (found,) = truths(checkpoint, [[5, 9, 200, 31]], 3)
    assert found.spreads.shape == (1 + module.NARROW_PASSES, 3, 4)
    assert found.exact.shape[1] == CONFIG.vocab_size > V
    assert np.all(found.narrow > 10 * found.single)
    assert len({float(x) for x in found.spreads[1:, 0, 0]}) == module.NARROW_PASSES, "no two passes are one"
    each = np.full(3, found.exact.shape[1])
    plain = row_spreads(np.abs(np.asarray(found.logits) - found.exact), each)
    np.testing.assert_allclose(found.spreads[0], plain, rtol=0.1)  # `exact` is rounded to float32
    del calls[:]
    (again,) = truths(checkpoint, [[5, 9, 200, 31]], 3)
    assert again.reused
    assert not calls
    assert np.array_equal(again.spreads, found.spreads)
