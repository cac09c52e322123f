"""Random models that are right raise no alarm, in whole runs; a wrong one does. All 200: see CONTRIBUTING."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloracle.backends.plain import NO_OPTIMIZER, xla_flags
from hloracle.conformance.checks.of_configurations import truth_check
from hloracle.conformance.questions.prompts import Reach, suite
from hloracle.conformance.runs.inside import canary_anchor
from hloracle.core.abi import Abi, Graph
from hloracle.core.child import Report, alone
from hloracle.core.program import run_command_line
from hloracle.mutants import MUTANTS
from hloracle.reference.fixtures.tiny import TINY, TINY_DTYPES, write_tiny
from hloracle.reference.huggingface.truth import truths
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.registry import from_hf
from hloracle.reference.model.tensor_file import DTYPES
from hloracle.reference.model.weights import weight_shapes
from hloracle.studies import false_alarms as module
from hloracle.studies.false_alarms import (
    BACKENDS,
    Trial,
    command,
    draw_model,
    draw_weight,
    looks,
    run_models,
    summary,
    trial_of,
    worst_shares,
)

# Seeds of right models that have raised an alarm, and what it was.
REGRESSIONS = {
    # One head attends to two keys by scores of some 2000 that are nearly equal, and transformers' one float32 pass
    # happened to be 46 times as exact there as the oracle on XLA: noise is measured by several passes now.
    110: "oracle/xla-cpu.anchors and emitter/iree-cpu.anchors",
    # The canary was put where a projection of zeros makes everything zero, and stays zero.
    14: "harness.canary",
    # Its caches carry ten times the noise of its logits, relative to their size, and had the logits' floor.
    104: "emitter/iree-cpu.prefill-equals-streaming",
}
# Besides them: one layer, a tied head, float16, a hidden size of 9.
FIXED = (3,)
WRONG = "float64-norm"


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [*REGRESSIONS, *FIXED])
def test_no_alarm(seed: int) -> None:
    with xla_flags(NO_OPTIMIZER):  # as in the whole command
        (trial,) = run_models([seed], 1, lambda line: None)
    assert (trial.verdict, trial.refused, trial.alarms) == ("conforms", "", ())
    for name, share in trial.worst.items():
        assert 0 <= share < 1, name
    assert trial.seconds > 0


def cancelling(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Weights of usual sizes, but each MLP adds two equal numbers times a million and minus a million."""
    values = np.random.default_rng([seed, *shape]).standard_normal(shape) / shape[-1] ** 0.5
    if name.endswith(("gate_proj.weight", "up_proj.weight")):
        values[-1] = values[0]
    if name.endswith("down_proj.weight"):
        values[:, 0], values[:, -1] = 1e6, -1e6
    return values


def test_a_model_that_float32_cannot_tell_is_refused(tmp_path: Path) -> None:
    write_tiny(tmp_path / "model", draw=cancelling, mlp_bias=False)
    checkpoint = open_checkpoint(tmp_path / "model")
    with alone():
        prompts = suite(checkpoint.directory, checkpoint.config, Reach(64), 4, only_fitting=True)
        found = truths(checkpoint, [p.token_ids for p in prompts], 4)
    checked = truth_check({p.id: truth for p, truth in zip(prompts, found, strict=True)})
    assert checked.status == "failed"
    trial = trial_of(18, record({"id": checked.id, **dataclasses.asdict(checked)}, verdict="harness-error"), 1.0)
    assert (trial.verdict, trial.alarms, trial.worst) == ("harness-error", (), {})
    assert "of the largest logit" in trial.refused
    assert summary([trial], 1.0).startswith("0 judged (0 near-tie), 1 refused, 0 alarms;")


def test_a_wrong_model_alarms(capfd: pytest.CaptureFixture[str]) -> None:
    """The whole command, with a fault planted."""
    before = os.environ["HLORACLE_CACHE"]
    assert run_command_line(command, ["--seed", str(FIXED[0]), "--jobs", "1", "--mutant", WRONG]) == 1
    out = capfd.readouterr().out.splitlines()
    assert out[0].startswith(f"seed {FIXED[0]} ALARM: ")
    assert "invariant-broken" in out[0]
    assert out[1].startswith("1 judged (0 near-tie), 0 refused, 1 alarms; worst: logits ")
    assert os.environ["HLORACLE_CACHE"] == before
    assert WRONG in MUTANTS


# ---- models


def test_models_are_drawn_from_their_seed_alone() -> None:
    models = [draw_model(seed) for seed in range(200)]
    assert models == [draw_model(seed) for seed in range(200)]
    configs = [from_hf({**TINY["llama"], **m.config}) for m in models]
    assert {c.num_hidden_layers for c in configs} == {1, 2, 3}
    assert {c.num_key_value_heads for c in configs} == {1, 2, 3}
    assert {c.num_attention_heads // c.num_key_value_heads for c in configs} == {1, 2, 3, 5}
    assert {c.head_dim for c in configs} == set(range(4, 33, 2))
    assert all(c.hidden_size % c.num_attention_heads == 0 for c in configs)
    assert all(c.hidden_size != c.num_attention_heads * c.head_dim for c in configs)
    assert all(c.vocab_size % 2 for c in configs)
    assert min(c.vocab_size for c in configs) == 17
    assert {rope.type for c in configs for rope in c.ropes} == {"default", "llama3"}
    assert {(c.tie_word_embeddings, c.attention_bias, c.mlp_bias) for c in configs} == {
        (a, b, c) for a in (False, True) for b in (False, True) for c in (False, True)
    }
    assert {m.dtype for m in models} == set(TINY_DTYPES)
    assert {m.capacity for m in models} == {32, 64}
    assert {m.tokens for m in models} == {3, 4, 5, 6}
    for low, high, values in (
        (1e-6, 1e-2, [c.norm_eps for c in configs]),
        (1e2, 1e6, [rope.theta for c in configs for rope in c.ropes]),
    ):
        assert low <= min(values) < 4 * low
        assert high / 4 < max(values) <= high


def test_weights_are_of_all_sizes_and_shapes() -> None:
    """Constant, zero, tiny and huge tensors, and one channel above the others; all finite in every dtype."""
    scales, forms = [], set()
    for seed in range(40):
        model = draw_model(seed)
        for name, shape in weight_shapes(from_hf({**TINY["llama"], **model.config})).items():
            weight = draw_weight(name, shape, seed)
            np.testing.assert_array_equal(weight, draw_weight(name, shape, seed))
            for dtype in TINY_DTYPES.values():
                assert np.isfinite(weight.astype(DTYPES[dtype]).astype(np.float64)).all()
            kind = "norm" if "norm" in name else name.rpartition(".")[2]
            size = float(np.max(np.abs(weight)))
            if not size:
                forms.add((kind, "zeros"))
            elif not np.ptp(weight):
                forms.add((kind, "constant"))
            elif size > 8 * np.median(np.abs(weight)) and kind == "norm":
                forms.add((kind, "outlier"))
            if kind == "weight" and np.ptp(weight):
                scales.append(float(np.std(weight)) * shape[-1] ** 0.5)
    assert forms == {
        ("bias", "zeros"),
        ("weight", "zeros"),
        ("weight", "constant"),
        ("norm", "constant"),
        ("norm", "outlier"),
    }
    assert min(scales) < 0.06
    assert max(scales) > 7.5


def test_the_canary_is_put_where_something_is() -> None:
    """What a projection of zeros gives stays zero when it is spoiled."""

    @dataclasses.dataclass
    class Rows:
        dead: tuple[str, ...]

        def values(self, anchor: str) -> np.ndarray:
            # Of a masked score only its being masked is known; a row that is no token's of the prompt does not count.
            return np.array(
                [[1, 1], [0, -np.inf], [5, 5]] if anchor in self.dead else [[0, 0], [0, 2], [0, 0]], np.float32
            )

    order = ("embed_tokens", "norm", "lm_head", "token")
    graphs = [Graph("g", str(i), Abi("prefill", (), ())) for i in range(50)]

    def chosen(*dead: str) -> set[str]:
        truth: Any = Rows(dead)
        return {canary_anchor(g, order, truth, 2) for g in graphs}

    assert chosen() == {"embed_tokens", "norm", "lm_head"}
    assert chosen("norm") == {"embed_tokens", "lm_head"}
    assert chosen("norm", "lm_head") == {"embed_tokens"}


# ---- what is said of a record


def check(id: str, status: str = "passed", detail: str = "", figure: str = "1") -> dict[str, Any]:
    about, _, kind = id.rpartition(".")
    source, backend = (*about.split("/"), "")[:2] if kind not in ("noise", "canary", "process") else ("", "")
    fields = {"kind": kind, "source": source, "backend": backend, "head": "logits" if backend else ""}
    return {"id": id, "status": status, "figure": figure, "limit": "1", "detail": detail, **fields}


def looking(kind: str, source: str, backend: str, head: str) -> dict[str, Any]:
    return check(f"{'/'.join(filter(None, (source, backend))) or 'harness'}.{kind}")


def record(*more: dict[str, Any], verdict: str = "conforms") -> dict[str, Any]:
    """A record as far as it is read here, with the given checks instead of those of the same id."""
    checks = {c["id"]: c for c in [check("reference.noise"), *(looking(*look) for look in looks()), *more]}
    configurations = {
        "emitter/iree-cpu": {"logit_error": 2.0, "logit_limit": 8.0},
        "emitter/iree-cpu/token": {"logit_error": None, "logit_limit": None},
    }
    return {
        "verdict": {"class": verdict, "explanation": "why"},
        "checks": list(checks.values()),
        "tokens": {"one@32": {"configurations": configurations}},
        "anchors": [{"errors": [[None, 4.0], [8.0, 1.0]]}],
        "spreads": [],
    }


def test_a_right_record() -> None:
    trial = trial_of(7, record(check("emitter.census", "skipped", "no pin")), 3.0)
    assert trial == Trial(7, "conforms", "", (), {"logits": 0.25, "anchors": 0.5}, 3.0)
    assert not trial_of(7, record(verdict="near-tie"), 1.0).alarms


ALARMS: dict[str, tuple[dict[str, Any] | str, list[str]]] = {
    "verdict": (record(verdict="emitter-fault"), ["emitter-fault: why"]),
    "failed": (record(check("emitter/iree-cpu.tokens", "failed", "why")), ["emitter/iree-cpu.tokens: 1 (why)"]),
    "error": (record(check("harness.process", "error", "died", "")), ["harness.process: error (died)"]),
    "no reason": (record(check("emitter.census", "skipped")), ["emitter.census was skipped without a reason"]),
    "no canary": (record(check("harness.canary", "skipped", "why")), ["canary did not look"]),
    "crashed": ("_judged died (signal SIGSEGV)", ["_judged died (signal SIGSEGV)"]),
    # With a truth that is refused, only what is held to it says nothing.
    "refused and wrong": (
        record(
            check("reference.noise", "failed", "why"), check("emitter.f64", "failed", "f64"), verdict="harness-error"
        ),
        ["reference.noise: 1 (why)", "emitter.f64: 1 (f64)", "harness-error: why"],
    ),
}


@pytest.mark.parametrize("case", ALARMS)
def test_alarms(case: str) -> None:
    found, expected = ALARMS[case]
    trial = trial_of(7, found, 1.0)
    assert (list(trial.alarms), trial.refused) == (expected, "")


def test_a_record_without_what_looks_inside_alarms() -> None:
    found = record()
    found["checks"] = [c for c in found["checks"] if c["kind"] == "noise"]
    assert trial_of(7, found, 1.0).alarms == tuple(f"{' '.join(filter(None, look))} did not look" for look in looks())


def test_refused() -> None:
    bad = [check("reference.noise", "failed", "why"), check("oracle/xla-cpu.decode-logits", "failed", "far")]
    trial = trial_of(7, record(*bad, check("harness.canary", "skipped", "why"), verdict="harness-error"), 1.0)
    assert (trial.refused, trial.alarms) == ("1: why", ())


def test_shares_of_nothing_are_no_number() -> None:
    found = worst_shares(record() | {"tokens": {}, "anchors": []})
    assert np.isnan([found["logits"], found["anchors"]]).all()


# ---- the loop


def stub(monkeypatch: pytest.MonkeyPatch, refused: Sequence[int] = (), alarming: Sequence[int] = ()) -> list[int]:
    """Trials by hand instead of runs; returns the seeds that were asked for."""
    asked: list[int] = []

    def run_each(
        function: Any,
        items: Sequence[tuple[int, str, str, tuple[str, ...]]],
        jobs: int,
        timeout: float,
        report: Report,
        done: Callable[..., None],
    ) -> None:
        for item in items:
            seed, *_ = item
            asked.append(seed)
            bad = (
                check("reference.noise", "failed", "why") if seed in refused else check("emitter.f64", "failed", "why")
            )
            wrong = seed in refused or seed in alarming
            done(item, record(*([bad] if wrong else [])), 1.0)

    monkeypatch.setattr(module, "run_each", run_each)
    return asked


def test_count_is_of_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stub(monkeypatch)
    assert run_command_line(command, ["--count", "3"]) == 0
    assert asked == [0, 1, 2]
    assert run_command_line(command, ["--count", "2", "--first", "7"]) == 0
    assert asked[3:] == [7, 8]


def test_on_one_backend_the_emitter_is_looked_into_there() -> None:
    """A run on XLA alone has not judged what nobody looked into on XLA."""
    assert {look[2] for look in looks("xla-cpu")} == {"", "xla-cpu"}
    found = trial_of(7, record(), 1.0, "xla-cpu")
    assert found.alarms == tuple(
        f"{kind} emitter xla-cpu logits did not look" for kind in ("anchors", "caches", "streamed-logits")
    )


@pytest.mark.parametrize(("flags", "expected"), [([], BACKENDS), (["--backend", "xla-cpu"], ("xla-cpu",))])
def test_what_runs_them(monkeypatch: pytest.MonkeyPatch, flags: list[str], expected: tuple[str, ...]) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(module, "run_models", lambda *given: asked.append(given[-1]))
    assert run_command_line(command, ["--count", "1", *flags]) == 0
    assert asked == [expected]


def test_what_ended_before_an_interruption_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As it ends, and summed up: a run of an hour is not lost with its last minute."""
    stub(monkeypatch)
    run_each = module.run_each

    def interrupted(function: Any, items: Sequence[Any], *rest: Any) -> None:
        run_each(function, items[:2], *rest)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run_each", interrupted)
    assert run_command_line(command, ["--count", "5"]) == 130
    out = capfd.readouterr().out.splitlines()
    assert out[:2] == ["seed 0 conforms, 1 s", "seed 1 conforms, 1 s"]
    assert out[2].startswith("2 judged (0 near-tie), 0 refused, 0 alarms;")


def test_a_line_says_how_near_the_margins_a_model_came() -> None:
    trial = Trial(4, "near-tie", "", (), {"spreads": 0.456}, 20.4)
    assert module.line_of(trial) == "seed 4 near-tie, 20 s, spreads 0.46 of the margin"


@pytest.mark.parametrize(
    ("arguments", "refused", "alarming", "status", "words"),
    [
        (["--count", "5"], [], [], 0, "5 judged (0 near-tie), 0 refused, 0 alarms; worst: logits 2.00 floors, 0.25 of"),
        (["--count", "5"], [1], [], 0, "seed 1 refused: 1: why"),
        (["--count", "5"], [], [4], 1, "seed 4 ALARM: emitter.f64: 1 (why)"),
        (["--seed", "9", "--seed", "9"], [], [], 0, "1 judged"),
        (["--seed", "9"], [], [9], 1, "seed 9 ALARM"),
        (["--count", "20"], range(3), [], 1, "more than 10% of the models were refused"),
    ],
)
def test_exit_status_and_what_is_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str], refused: Sequence[int],
    alarming: Sequence[int], status: int, words: str,
) -> None:  # fmt: skip
    stub(monkeypatch, refused, alarming)
    assert run_command_line(command, arguments) == status
    shown = capfd.readouterr()
    assert words in shown.out
    assert shown.err == ""


def test_its_cache_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    before, seen = os.environ["HLORACLE_CACHE"], []
    stub(monkeypatch)
    monkeypatch.setattr(module, "summary", lambda *a: seen.append(Path(os.environ["HLORACLE_CACHE"])) or "")
    run_each = module.run_each

    def looking(*arguments: Any) -> None:
        folder = Path(os.environ["HLORACLE_CACHE"])
        (folder / "something").mkdir()
        seen.append(folder)
        run_each(*arguments)

    monkeypatch.setattr(module, "run_each", looking)
    assert run_command_line(command, ["--seed", "1"]) == 0
    assert seen[0] != Path(before)
    assert not seen[0].exists()
    assert os.environ["HLORACLE_CACHE"] == before == str(seen[1])


def test_a_mutant_that_does_not_exist(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(command, ["--seed", "1", "--mutant", "no-such"]) == 2
    assert "no such mutant" in capfd.readouterr().err
