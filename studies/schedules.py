"""Sequences that join, leave and are cancelled at steps drawn at random, over the rows of a batch: each has to give, token for
token, what it gives alone.

    python -m hloracle.studies.schedules [--count 200] [--first 0] [--ring] [--kv int8] [FAMILY...]

What a sequence gives alone comes from graphs of one row without rings, into which its prompt goes as a whole; with keys and values
kept in the same. Exit status 0 if all
sequences are equal, but for near-ties; 1 otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import click
import numpy as np

from hloracle.backends.named import make_backend
from hloracle.backends.session import Backend, Session, greedy
from hloracle.conformance.suite import selected, with_rings
from hloracle.core.abi import KV
from hloracle.core.child import Report
from hloracle.core.console import terminal
from hloracle.core.environment import threads_available
from hloracle.core.pool import run_each
from hloracle.core.program import run_program
from hloracle.emitters.model import emit
from hloracle.production.sampling import Sampling, make_generator
from hloracle.production.serving import CANCELLED, Batch, Generation
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.contract import refuse_beside_int8

# Windows, RoPE that turns at a length, a mixture of experts, sinks, latents, and none of them.
FAMILIES = ("llama", "gemma3_text", "phi3", "qwen3_moe", "gpt_oss", "deepseek_v3")
BATCHES = (2, 3, 4, 5, 6, 7, 8)
# The largest capacity is one that rows attend to in blocks.
CAPACITIES, CHUNKS, WHOLE = (40, 64, 97, 300), (24, 32, 64), 256
STEPS, JOINS, CANCELS = 50, 0.35, 0.06
# Of the largest logit: two graphs' float32 roundings of these models are up to 3e-6 of it apart, each way.
TIE = 1e-5
# And where keys and values are in int8, and a number between two steps may be taken for either, some hundred times that.
TIE_IN_INT8 = 1e-3
ITEM_SECONDS = 900


@dataclass(frozen=True)
class Setup:
    """Graphs, and the seeds of the schedules that run on them. ring: windowed layers of the batch's graphs are in rings. kv: what all
    keep keys and values in.
    """

    family: str
    batch: int
    capacity: int
    chunk: int
    seeds: tuple[int, ...]
    ring: bool = False
    kv: str = "compute"

    @property
    def tie(self) -> float:
        """How far apart two right logits may be, of the largest."""
        return TIE_IN_INT8 if self.kv == "int8" else TIE


@dataclass
class Found:
    """What came of schedules. wrong: of each sequence that differs, how to see it again."""

    schedules: int = 0
    sequences: int = 0
    tokens: int = 0
    cancelled: int = 0
    ties: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        """Count another one's as well."""
        for name in ("schedules", "sequences", "tokens", "cancelled", "ties"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.wrong += other.wrong


@dataclass(frozen=True)
class Alone:
    """Graphs of one row, in which each sequence has all of it."""

    session: Session

    def follow(self, generation: Generation, prompt: Sequence[int]) -> tuple[list[int], list[np.ndarray]]:
        """What follows a prompt, and the logits that each token was chosen from."""
        sampling, tokens = generation.sampling, list(prompt)
        random = make_generator(sampling.seed)
        head = self.session.prefill(tokens)
        found, heads = list[int](), list[np.ndarray]()
        for _ in range(len(generation.generated)):
            assert isinstance(head, np.ndarray)
            heads.append(head)
            found.append(sampling.choose(head, tokens, random))
            tokens.append(found[-1])
            if len(found) < len(generation.generated):
                head = self.session.decode_step(found[-1])
        return found, heads


def run_setup(report: Report, setup: Setup) -> Found:
    """All schedules of a setup."""
    report(f"{setup.family}, {setup.batch} rows of {setup.capacity} slots, chunks of {setup.chunk}")
    checkpoint, backend = open_checkpoint(resolve(f"tiny-{setup.family}")), make_backend("iree-cpu", 1)
    config, S = checkpoint.config, setup.capacity
    graphs = [
        emit(config, "decode", "logits", S, 0, None, setup.batch, ring=setup.ring, kv=setup.kv),
        emit(config, "extend", "logits", S, min(setup.chunk, S), None, setup.batch, ring=setup.ring, kv=setup.kv),
    ]
    session, alone = Session(backend, graphs, checkpoint.load), Alone(_alone(checkpoint, backend, S, setup.kv))
    found = Found()
    for seed in setup.seeds:
        found.add(_schedule(session, alone, setup, seed))
    return found


def _alone(checkpoint: Checkpoint, backend: Backend, capacity: int, kv: str) -> Session:
    phases = (("decode", 0), ("prefill", min(WHOLE, capacity)))
    graphs = [emit(checkpoint.config, phase, "logits", capacity, bucket, kv=kv) for phase, bucket in phases]
    return Session(backend, graphs, checkpoint.load)


def _schedule(session: Session, alone: Alone, setup: Setup, seed: int) -> Found:
    rng, S = np.random.default_rng(seed), setup.capacity
    batch, joined = Batch(session), list[tuple[Generation, list[int]]]()
    longest = min(S - 2, WHOLE)
    for _ in range(STEPS):
        if rng.random() < JOINS:
            prompt = rng.integers(0, session.vocab_size, rng.integers(1, longest + 1)).tolist()
            count = int(rng.integers(1, min(S - len(prompt) + 1, 16) + 1))
            sampling = Sampling(temperature=0.8, top_p=0.95, seed=seed) if rng.random() < 0.25 else Sampling()
            joined.append((batch.join(prompt, count, sampling), prompt))
        if joined and rng.random() < CANCELS:
            joined[int(rng.integers(len(joined)))][0].cancel()
        batch.step()
    for _ in batch.run():
        pass
    found = Found(1, len(joined))
    for generation, prompt in joined:
        found.cancelled += generation.ended == CANCELLED
        found.tokens += len(generation.generated)
        if not generation.generated:
            continue
        right, heads = alone.follow(generation, prompt)
        at = next((i for i, (a, b) in enumerate(zip(generation.generated, right, strict=True)) if a != b), None)
        if at is None:
            continue
        if not generation.sampling.temperature and _is_tie(heads[at], generation.generated[at], setup.tie):
            found.ties += 1
        else:
            where = f"{setup.family}, {setup.batch} rows of {S} slots, chunks of {setup.chunk}, seed {seed}"
            where += ", with rings" if setup.ring else ""
            where += f", keys in {setup.kv}" if setup.kv != "compute" else ""
            found.wrong.append(f"{where}: token {at} after a prompt of {len(prompt)}")
    return found


def _is_tie(logits: np.ndarray, token: int, tie: float) -> bool:
    """Whether rounding may make this token the largest."""
    lead = float(logits[greedy(logits)] - logits[token])
    return lead <= 2 * tie * float(np.max(np.abs(logits)))


def setups(families: Sequence[str], count: int, first: int, ring: bool = False, kv: str = "compute") -> list[Setup]:
    """So many schedules, dealt to every family and batch; capacities and chunks in turns."""
    kinds = [(family, batch) for batch in BATCHES for family in families]
    seeds: dict[tuple[str, int], list[int]] = {kind: [] for kind in kinds}
    for i in range(count):
        seeds[kinds[i % len(kinds)]].append(first + i)
    return [
        Setup(family, batch, CAPACITIES[(i + batch) % len(CAPACITIES)], CHUNKS[i % len(CHUNKS)], tuple(mine), ring, kv)
        for i, ((family, batch), mine) in enumerate(seeds.items()) if mine
    ]  # fmt: skip


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("families", nargs=-1)
@click.option("--count", type=click.IntRange(1), default=200, show_default=True, help="Schedules.")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option("--jobs", type=click.IntRange(1), default=threads_available, help="Setups at a time; one for each core.")
@click.option("--ring", is_flag=True, help="Keep windowed layers of a batch in rings: of families that have any.")
@click.option("--kv", type=click.Choice(KV), default="compute", help="What keys and values are kept in.")
def command(families: Sequence[str], count: int, first: int, jobs: int, ring: bool, kv: str) -> int:
    """Run random schedules over the rows of batches, and hold each sequence to what it gives alone."""
    chosen = selected(families) if families else list(FAMILIES)
    refuse_beside_int8(kv, "f32", ring)
    if ring and not families:
        chosen = with_rings(chosen)
    total: dict[str, Found] = {family: Found() for family in chosen}

    def finish(setup: Setup, answer: Found | str, seconds: float) -> None:
        found = answer if isinstance(answer, Found) else Found(wrong=[f"{setup}: died: {answer}"])
        total[setup.family].add(found)
        for line in found.wrong:
            click.echo(line)

    with terminal.status("running schedules"):
        run_each(run_setup, setups(chosen, count, first, ring, kv), jobs, ITEM_SECONDS, lambda line: None, finish)
    for family, found in total.items():
        click.echo(
            f"{family}: {found.schedules} schedules, {found.sequences} sequences, {found.cancelled} of them cancelled, "
            f"{found.tokens} tokens, {found.ties} near-ties, {len(found.wrong)} wrong"
        )
    wrong = sum(len(found.wrong) for found in total.values())
    count = sum(found.schedules for found in total.values())
    click.echo(
        f"{count} schedules: {'every sequence is what it is alone' if not wrong else f'{wrong} sequences are wrong'}"
    )
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    run_program(command)
