"""Random models that are right go through the whole of a run, which has to find nothing wrong: no false alarms.

`python -m hloracle.studies.false_alarms --count 200 --jobs 2`; `--seed N` runs one again, `--first N` goes on from there, and
`--compute bf16` has graphs compute in that. A model follows from its seed. Interrupted, it sums up what ended.
Exit status: 0 no alarm, 1 an alarm, 2 could not run, 130 interrupted.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np

from hloracle.backends.named import chosen
from hloracle.backends.plain import NO_OPTIMIZER, environment, xla_flags
from hloracle.conformance.context import Context, Progress
from hloracle.conformance.run import run
from hloracle.conformance.settings import Settings
from hloracle.conformance.verdict.verdict import PASSING
from hloracle.core.cache import cache_root
from hloracle.core.child import Report, alone
from hloracle.core.console import terminal
from hloracle.core.pool import run_each
from hloracle.core.program import run_program
from hloracle.core.record import Record
from hloracle.core.tolerances import ANCHOR_FLOORS, LOGIT_FLOORS
from hloracle.mutants import named
from hloracle.reference.fixtures.tiny import TINY_DTYPES, write_tiny
from hloracle.reports.facts import of_limit
from hloracle.reports.page.spreads import shares
from hloracle.studies.study import compute_option

TIMEOUT_SECONDS = 600
# A truth that float32 cannot tell is refused, and says nothing about the harness: more of them than this share of the
# models would leave too little of what was meant to be tried.
MOST_REFUSED = 0.1
BACKENDS = ("iree-cpu", "xla-cpu")


def looks(backend: str = BACKENDS[0]) -> tuple[tuple[str, str, str, str], ...]:
    """What looks inside a model, as the kind, source, backend and head of a check; a run that left one out has not judged it.

    Args:
      backend: where the emitter's graphs are looked into.
    """
    of_graphs = ("anchors", "caches", "streamed-logits")
    return (
        ("canary", "", "", ""), ("probes", "emitter", "", ""), ("anchors", "oracle", "xla-cpu", "logits"),
        *((kind, "emitter", backend, "logits") for kind in of_graphs),
    )  # fmt: skip


VOCABULARIES = (17, 31, 63, 97, 129, 211, 257, 383, 509, 599)  # prime or odd: nothing divides them evenly
INTERMEDIATES = (5, 12, 29, 48, 67, 96, 113, 171, 211)
# What the largest error of a run is told of, and its limit in floors.
LIMITS = {"logits": LOGIT_FLOORS, "anchors": ANCHOR_FLOORS}
SPREADS = "spreads"  # of what computes in less than float32, which has margins instead


Item = tuple[int, str, str, tuple[str, ...]]  # a seed, a deliberate fault, what is computed in, and on what


@dataclass(frozen=True)
class Model:
    """A right model: what write_tiny takes, and the run that judges it."""

    seed: int
    dtype: str
    config: dict[str, Any]
    capacity: int
    tokens: int


@dataclass(frozen=True)
class Trial:
    """What came of one model.

    refused: why its truth cannot be told in float32, or empty. alarms: all that was found wrong with it.
    worst: of each of LIMITS, the largest error as a share of its limit.
    """

    seed: int
    verdict: str
    refused: str
    alarms: tuple[str, ...]
    worst: dict[str, float]
    seconds: float


# ---- models


def draw_model(seed: int) -> Model:
    """The model of a seed: its sizes, its RoPE, its flags, and how it is run."""
    rng = np.random.default_rng(seed)

    def one_of(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    kv_heads = int(rng.integers(1, 4))
    heads, head_dim = kv_heads * one_of(1, 2, 3, 5), 2 * int(rng.integers(2, 17))
    # transformers wants a multiple of the heads. An odd one is not head_dim, which is even: so no projection is square,
    # which would hide that it is transposed.
    odd = [n for n in range(1, 40, 2) if 9 <= heads * n <= 160]
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": _log_uniform(rng, 1e2, 1e6)}
    if rng.random() < 0.5:
        low = float(rng.uniform(0.5, 2))
        rope |= {
            "rope_type": "llama3",
            "factor": _log_uniform(rng, 1.5, 32),
            "low_freq_factor": low,
            "high_freq_factor": low * float(rng.uniform(1.5, 8)),
            "original_max_position_embeddings": int(rng.integers(8, 512)),
        }
    config = {
        "num_hidden_layers": int(rng.integers(1, 4)),
        "hidden_size": heads * one_of(*odd),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": one_of(*INTERMEDIATES),
        "vocab_size": one_of(*VOCABULARIES),
        "rms_norm_eps": _log_uniform(rng, 1e-6, 1e-2),
        "rope_parameters": rope,
        "tie_word_embeddings": bool(rng.random() < 0.4),
        "attention_bias": bool(rng.random() < 0.3),
        "mlp_bias": bool(rng.random() < 0.3),
    }
    return Model(seed, one_of(*TINY_DTYPES), config, capacity=one_of(32, 64), tokens=int(rng.integers(3, 7)))


def draw_weight(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """One weight of a model: of a size that its kind has in all layers, and now and then of an odd shape by itself.

    Real checkpoints have them all: norms and biases of one value, tensors that are nearly nothing, a channel that is
    far larger than the others.
    """
    module, part = name.split(".")[-2:]
    kind = np.random.default_rng([seed, zlib.crc32(f"{module}.{part}".encode())])
    own = np.random.default_rng([seed, zlib.crc32(name.encode())])
    values: np.ndarray = own.standard_normal(shape)
    form = own.random()
    if part == "bias":
        return values * _log_uniform(kind, 0.01, 3) * (form >= 0.2)
    if module.endswith("norm"):
        values = 1 + values / 4
        if form < 0.2:
            values[...] = 1
        elif form < 0.3:
            values *= _log_uniform(own, 1e-3, 0.1)
        elif form < 0.4:
            values *= _log_uniform(own, 2, 8)
        elif form < 0.5:
            values[own.integers(shape[0])] *= 30
        return values
    values *= _log_uniform(kind, 0.05, 8) / math.sqrt(shape[-1])
    if form < 0.06:
        values[...] = values.flat[0]
    elif form < 0.12:
        values[..., own.integers(shape[-1])] *= 30
    elif form < 0.16 and module not in ("embed_tokens", "lm_head"):  # without these two there is nothing to compare
        values[...] = 0
    return values


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(math.exp(rng.uniform(math.log(low), math.log(high))))


# ---- runs


def run_models(
    seeds: Sequence[int], jobs: int, report: Report, mutant: str = "",
    done: Callable[[Trial], None] = lambda trial: None, compute: str = "f32", backends: Sequence[str] = BACKENDS,
) -> list[Trial]:  # fmt: skip
    """Each seed's model through a run of its own, `jobs` at a time; in the order of `seeds`.

    Args:
      mutant: a deliberate fault that every run carries, to see that it alarms. compute: what every run computes in, and backends:
        on what.
    """
    found: dict[int, Trial] = {}

    def finish(item: Item, record: Record | str, seconds: float) -> None:
        seed, *_ = item
        found[seed] = trial_of(seed, record, seconds, backends[0])
        done(found[seed])
        report(f"{len(found)} of {len(seeds)} models, last seed {seed}")

    items = [(seed, mutant, compute, tuple(backends)) for seed in seeds]
    run_each(_judged, items, jobs, TIMEOUT_SECONDS, report, finish)
    return [found[seed] for seed in seeds]


def _judged(report: Report, item: Item) -> Record:
    """The record of a run on a seed's model, in a child process; the model is written where it is thrown away."""
    seed, mutant, compute, backends = item
    model = draw_model(seed)
    directory = cache_root() / f"seed-{seed}"
    write_tiny(directory, seed=model.seed, dtype=model.dtype, draw=draw_weight, **model.config)
    settings = Settings(str(directory), model.tokens, model.capacity, early_exit=True, compute=compute)
    with alone():
        return run(settings, Context(Progress(report), chosen(backends), fault=named(mutant) if mutant else None))


def trial_of(seed: int, record: Record | str, seconds: float, backend: str = BACKENDS[0]) -> Trial:
    """What a record, or the reason why there is none, says of a model that is right; backend: the first of the run's."""
    if isinstance(record, str):
        return Trial(seed, "crashed", "", (record,), {}, seconds)
    verdict = record["verdict"]["class"]
    bad = [c for c in record["checks"] if c["status"] not in ("passed", "skipped")]
    truth = [c for c in bad if c["kind"] == "noise"]
    # What a configuration is held to is the truth, so with a truth that is refused it says nothing; all others do.
    if truth and all(c in truth or c["head"] for c in bad):
        return Trial(seed, verdict, f"{truth[0]['figure']}: {truth[0]['detail']}", (), {}, seconds)
    alarms = [f"{c['id']}: {c['figure'] or c['status']} ({c['detail']})" for c in bad]
    skipped = [c for c in record["checks"] if c["status"] == "skipped"]
    alarms += [f"{c['id']} was skipped without a reason" for c in skipped if not c["detail"]]
    looked = {(c["kind"], c["source"], c["backend"], c["head"]) for c in record["checks"] if c not in skipped}
    alarms += [f"{' '.join(filter(None, look))} did not look" for look in looks(backend) if look not in looked]
    if verdict not in PASSING:
        alarms.append(f"{verdict}: {record['verdict']['explanation']}")
    return Trial(seed, verdict, "", tuple(alarms), worst_shares(record), seconds)


def worst_shares(record: Record) -> dict[str, float]:
    """How near a run came to an alarm: the largest errors as shares of their limits."""
    answers = [answer for row in record["tokens"].values() for answer in row["configurations"].values()]
    errors = [float(e) for rows in record["anchors"] for row in rows["errors"] for e in row if e is not None]
    spreads = [share for one in record["spreads"] for share in shares(one).values()]
    return {
        **({SPREADS: max(spreads)} if spreads else {}),
        "logits": max((ratio for a in answers if (ratio := of_limit(a)) is not None), default=math.nan),
        "anchors": max(errors, default=math.nan) / ANCHOR_FLOORS,
    }


# ---- what is said of them


def _too_many_refused(trials: Sequence[Trial]) -> bool:
    """Whether more than MOST_REFUSED of the models were refused; of fewer than ten models, more than one."""
    return sum(bool(t.refused) for t in trials) > MOST_REFUSED * max(len(trials), 1 / MOST_REFUSED)


def line_of(trial: Trial) -> str:
    """What came of one model."""
    if trial.alarms:
        return f"seed {trial.seed} ALARM: {'; '.join(trial.alarms)}"
    if trial.refused:
        return f"seed {trial.seed} refused: {trial.refused}"
    share = f", spreads {trial.worst[SPREADS]:.2g} of the margin" if SPREADS in trial.worst else ""
    return f"seed {trial.seed} {trial.verdict}, {trial.seconds:.0f} s{share}"


def summary(trials: Sequence[Trial], seconds: float) -> str:
    """One line: how many were judged, refused and alarmed, how near the right ones came to an alarm, and the time."""
    judged = [t for t in trials if not t.refused]
    alarms = sum(bool(t.alarms) for t in judged)
    near = sum(t.verdict == "near-tie" for t in judged)
    worst = []
    for name, limit in LIMITS.items():
        share, seed = max(((t.worst[name], t.seed) for t in judged if name in t.worst), default=(math.nan, -1))
        worst.append(f"{name} {share * limit:.2f} floors, {share:.2g} of the limit (seed {seed})")
    spread, seed = max(
        ((s, t.seed) for t in judged if not math.isnan(s := t.worst.get(SPREADS, math.nan))), default=(0.0, -1)
    )
    if spread:
        worst.append(f"spreads {spread:.2g} of the margin (seed {seed})")
    return (
        f"{len(judged)} judged ({near} near-tie), {len(trials) - len(judged)} refused, {alarms} alarms; "
        f"worst: {'; '.join(worst)}; {seconds:.0f} s"
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--count",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    help="Models to try, of the seeds from --first on.",
)
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option("--seed", "seeds", type=click.IntRange(0), multiple=True, help="Run this model alone; may be repeated.")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True, help="Runs at a time.")
@click.option("--mutant", default="", help="Plant a deliberate fault in every run, to see that it alarms.")
@click.option(
    "--backend", "backends", type=click.Choice(BACKENDS), multiple=True, default=BACKENDS, show_default=True,
    help="What runs them; xla-cpu alone is quicker, and says nothing of IREE.",
)  # fmt: skip
@compute_option
def command(
    count: int, first: int, seeds: tuple[int, ...], jobs: int, mutant: str, compute: str, backends: tuple[str, ...]
) -> int:
    """Run random models that are right, and exit with 1 if anything is found wrong with one of them."""
    if mutant:
        named(mutant)
    started, trials = time.monotonic(), list[Trial]()

    def done(trial: Trial) -> None:
        trials.append(trial)
        click.echo(line_of(trial))

    asked = list(dict.fromkeys(seeds)) or range(first, first + count)
    try:
        with (
            # Hundreds of models that nobody asks for again must not stay. A worker that was interrupted may still be writing.
            TemporaryDirectory(prefix="hloracle-", ignore_cleanup_errors=True) as folder,
            environment("HLORACLE_CACHE", folder),
            xla_flags(NO_OPTIMIZER),
            terminal.status("starting") as status,
        ):

            def report(line: str) -> None:
                status.update(f"[dim]{line}[/]")

            run_models(asked, jobs, report, mutant, done, compute, tuple(dict.fromkeys(backends)))
    finally:  # also of what an interruption leaves
        click.echo(summary(trials, time.monotonic() - started))
    if not seeds and _too_many_refused(trials):
        click.echo(f"more than {MOST_REFUSED:.0%} of the models were refused: too little was tried")
        return 1
    return 1 if any(t.alarms for t in trials) else 0


if __name__ == "__main__":
    run_program(command)
