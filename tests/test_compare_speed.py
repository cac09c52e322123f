"""Base against head: speed and memory."""

from __future__ import annotations

import random

import pytest
from edits import (
    Edit,
    both,
    edited_graph,
    environment,
    found,
    packages,
    pair,
    setting,
    slower,
)
from records import Record, conforms

from hloracle.reports.compare.comparison import compare
from hloracle.reports.compare.speed import APART, RESIDENT, Speed, compare_speed

# ---- speed


def timed(ours: list[float], *peers: list[float]) -> Record:
    record = conforms()
    contenders = record["speed"]["contenders"][: 1 + len(peers)]
    rows = zip(contenders, (ours, *peers), strict=True)
    return record | {"speed": record["speed"] | {"contenders": [c | {"ms_per_token": ms} for c, ms in rows]}}


def noisy(rng: random.Random, ours: float, scatter: float = 0.015, luck: float = 0.01, rounds: int = 5) -> Record:
    """A run on a machine that is up to a quarter faster or slower as a whole, whose rounds drift together by some percent,
    and scatter by themselves, and in whose process each contender has its own luck."""
    whole = rng.uniform(0.75, 1.25)
    lucks = [rng.gauss(1, luck) for _ in range(3)]
    times: list[list[float]] = [[], [], []]
    for _ in range(rounds):
        drift = whole * rng.uniform(0.95, 1.05)
        for row, ms, lucky in zip(times, (ours, 24.2, 54.8), lucks, strict=True):
            row.append(ms * lucky * drift * rng.gauss(1, scatter))
    return timed(*times)


# Measured on two cores of a shared Xeon, three runs of one graph in one evening: the rounds of a run, in units of a peer's,
# scatter by 8 to 12 %, so that the medians of two runs are 2 to 8.5 % apart.
BUSY = {"scatter": 0.07, "luck": 0.0}


# Assumed of a quiet one: the rounds of a process are alike, and processes are not.
QUIET = {"scatter": 0.004, "luck": 0.01}


def two_runs(noise: dict[str, float], factor: float, seeds: int) -> list[Speed]:
    rngs = map(random.Random, range(seeds))
    return [compare_speed(noisy(rng, 23.2, **noise), noisy(rng, 23.2 * factor, **noise)) for rng in rngs]


@pytest.mark.parametrize("noise", [BUSY, QUIET, {}], ids=["busy", "quiet", "between"])
def test_false_alarms_are_rarer_than_one_in_a_hundred(noise: dict[str, float]) -> None:
    """Busy, the medians alone are often apart; quiet, the rounds alone are."""
    outcomes = [speed.outcome for speed in two_runs(noise, 1.0, 600)]
    assert outcomes.count("slower") < 6
    assert outcomes.count("faster") < 6
    assert set(outcomes) <= {"slower", "faster", "same"}


@pytest.mark.parametrize("noise", [QUIET, {}], ids=["quiet", "between"])
def test_fifteen_percent_are_noticed(noise: dict[str, float]) -> None:
    assert [speed.outcome for speed in two_runs(noise, 1.15, 200)].count("slower") >= 198


def test_what_could_not_be_seen_is_said() -> None:
    found = two_runs(BUSY, 1.15, 200)
    assert sum(speed.outcome == "slower" or bool(speed.blurred) for speed in found) > 190
    assert sum(speed.outcome == "slower" for speed in found) < 100
    assert not any(speed.blurred for speed in two_runs(QUIET, 1.0, 200))
    peer = [10.0] * 5
    base, head = timed([10, 10, 10, 10, 12], peer), timed([11.5, 11.5, 11.5, 11.5, 11], peer)
    comparison = compare(base, head)
    words = "a change of less than 25.5 % would not have shown against oracle on XLA"
    assert comparison.unjudged == (f"speed: {words}",)
    assert comparison.sentence.endswith(f"; of speed, {words}")
    assert comparison.title == "Nothing changed"


def test_of_several_peers_the_smallest_change_is_said() -> None:
    base = timed([10.0] * 5, [10.0] * 5, [20.0] * 5)
    (change,) = compare(base, timed([14.1] * 5, [10.0] * 5, [21.2] * 5)).changes
    assert change.words == "llama decodes at least 33 % slower"
    assert change.after == "0.665 (0.665–0.665) of Hugging Face float32"
    (change,) = compare(base, timed([5.0] * 5, [10.0] * 5, [18.0] * 5)).changes
    assert change.words == "llama decodes at least 80 % faster"


def test_a_slow_machine_is_no_slow_graph() -> None:
    def edit(record: Record) -> None:
        for contender in record["speed"]["contenders"]:
            contender["ms_per_token"] = [ms * 1.8 for ms in contender["ms_per_token"]]

    assert pair(edit).changes == ()


def test_rounds_that_overlap_are_not_apart() -> None:
    peer = [10.0] * 5
    base = timed([10, 10, 10, 10, 11], peer)
    assert compare_speed(base, timed([12, 12, 12, 12, 10.9], peer)).outcome == "same"
    assert compare_speed(base, timed([12, 12, 12, 12, 11.1], peer)).outcome == "slower"
    speed = compare_speed(base, timed([12, 12, 12, 12, 10.9], peer))
    assert speed.peers[0].visible == pytest.approx(1.2 * 11 / 10.9)


def test_medians_have_to_be_apart_too() -> None:
    peer = [10.0] * 5
    base = timed([10.0] * 5, peer)
    assert compare_speed(base, timed([10 * (1 + APART) * 0.999] * 5, peer)).outcome == "same"
    assert compare_speed(base, timed([10 * (1 + APART) * 1.001] * 5, peer)).outcome == "slower"
    assert compare_speed(base, timed([10 / (1 + APART) * 0.999] * 5, peer)).outcome == "faster"


def test_one_peers_luck_moves_only_one_ratio() -> None:
    base = timed([10.0] * 5, [10.0] * 5, [20.0] * 5)
    assert compare_speed(base, timed([10.0] * 5, [8.0] * 5, [20.0] * 5)).outcome == "same"
    assert compare_speed(base, timed([12.0] * 5, [10.0] * 5, [20.0] * 5)).outcome == "slower"


def test_a_faster_graph_is_better() -> None:
    base, head = conforms(), conforms()
    slower(1.0)(base)
    slower(0.8)(head)
    (change,) = compare(base, head).changes
    assert (change.severity, change.words) == ("better", "llama decodes 25 % faster")


def _rounds(rounds: int) -> Edit:
    def edit(record: Record) -> None:
        for contender in record["speed"]["contenders"]:
            contender["ms_per_token"] = contender["ms_per_token"][:rounds]

    return edit


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (environment("cpu", "another"), "another processor ("),
        (environment("cores", 99), "another number of cores ("),
        (setting("threads", 99), "another number of threads ("),
        (setting("capacity", 512), "another number of cache slots (128, then 512)"),
        (lambda r: r["model"].update(digest="0" * 64), "another checkpoint"),
        (lambda r: r["speed"].update(context=32), "another number of prompt tokens (16, then 32)"),
        (lambda r: r["speed"].update(tokens=4), "another number of steps in a round (8, then 4)"),
        (
            lambda r: r["speed"]["contenders"][0].update(id="file"),
            "another graph was timed (emitter/iree-cpu/token, then file)",
        ),
        (
            lambda r: r["speed"].update(contenders=[], reason="--rounds is 0"),
            "the head has no times (--rounds is 0)",
        ),
        (_rounds(0), "the head has no rounds"),
        (_rounds(2), "too few rounds: 5 against 2 are apart by luck once in 21"),
        (lambda r: r["speed"].update(contenders=r["speed"]["contenders"][:1]), "the two runs have no peer in common"),
        (
            packages(jax="99", torch="99"),
            "no peer is the same in both runs (oracle on XLA: jax is 99, was ",
        ),
        (
            lambda r: r["environment"].update(packages={}),
            "no peer is the same in both runs (oracle on XLA: the version of jax is not recorded; "
            "Hugging Face float32: the version of transformers is not recorded)",
        ),
    ],
)
def test_speed_that_is_not_judged_says_why(edit: Edit, reason: str) -> None:
    comparison = pair(both(slower(2.0), edit))
    assert comparison.speed.outcome == ""
    assert any(words.startswith(f"speed: {reason}") for words in comparison.unjudged)
    assert not any(change.kind == "speed" and change.severity == "regression" for change in comparison.changes)


def other_oracle(record: Record) -> None:
    graph = next(g for g in record["graphs"] if (g["source"], g["phase"]) == ("oracle", "decode"))
    graph["digest"] = "0" * 64


def test_another_peer_is_judged_by() -> None:
    comparison = pair(both(slower(), packages(jaxlib="99")))
    assert [peer.reason[:12] for peer in comparison.speed.peers] == ["jaxlib is 99", ""]
    assert comparison.speed.outcome == "slower"
    # A reference that was edited is another peer.
    comparison = pair(both(slower(), other_oracle))
    assert [peer.reason for peer in comparison.speed.peers] == ["its graph changed too", ""]
    assert comparison.changes[0].before.endswith("of Hugging Face float32")


def test_what_was_not_judged_is_not_called_safe_in_silence() -> None:
    comparison = pair(both(edited_graph, environment("cpu", "another")))
    assert comparison.title == "Safe"
    assert comparison.sentence == "nothing got worse; the emitted graph changed in 1 scope; speed was not judged"


def test_speed_that_is_no_longer_measured() -> None:
    comparison = pair(lambda r: r["speed"].update(contenders=[], reason="--rounds is 0"))
    assert found(comparison) == [("speed", "worse")]


# ---- memory


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(1 + 0.9 * RESIDENT, []), (1 + 1.1 * RESIDENT, [("memory", "regression")]), (0.5, [("memory", "better")])],
)
def test_memory_of_the_graph(factor: float, expected: list[tuple[str, str]]) -> None:
    def edit(record: Record) -> None:
        ours = record["speed"]["contenders"][0]
        ours["resident_bytes"] = int(ours["resident_bytes"] * factor)

    assert found(pair(edit)) == expected


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.2, []), (1.3, [("memory", "worse")]), (0.5, [("memory", "better")])]
)
def test_memory_of_the_run(factor: float, expected: list[tuple[str, str]]) -> None:
    def edit(record: Record) -> None:
        record["memory"]["peak_bytes"] = int(record["memory"]["peak_bytes"] * factor)

    assert found(pair(edit)) == expected

    def reused(record: Record) -> None:
        edit(record)
        record["timings"][4]["reused"] = not record["timings"][4]["reused"]

    comparison = pair(reused)
    assert comparison.changes == ()
    assert "Peak of the whole run: the runs took other stages from the cache" in comparison.unjudged


def test_memory_that_was_not_measured() -> None:
    comparison = pair(lambda r: r["speed"]["contenders"][0].update(resident_bytes=None))
    assert comparison.changes == ()
    assert "emitter on IREE, loaded: not measured in the head" in comparison.unjudged
