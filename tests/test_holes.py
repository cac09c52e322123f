"""The count of what was noticed: what is a hole and what is not, how it is told and kept, and one spoiling judged in full."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hloracle.cli import main as cli
from hloracle.core.child import Report
from hloracle.core.errors import InputError
from hloracle.localize.spoil import KINDS, REFUSED
from hloracle.studies import holes, study
from hloracle.studies.holes import (
    CAPACITY,
    FAMILIES,
    JUDGES,
    Judgement,
    Outcome,
    all_of,
    pins,
    problems,
    selected,
    tally,
)

SPOILED, EXPLAINED = "decode/logits/position/3", "decode/logits/outside/full"
NOTICED, PASSED = Judgement("emitter-fault", "emitter/xla-cpu.streams"), Judgement("conforms")


def outcome(run: Judgement = NOTICED, check: Judgement = NOTICED, id: str = SPOILED, **more: Any) -> Outcome:
    return Outcome("llama", id, {"run": run, "check": check}, 1.5, **more)


def test_noticed_by_both() -> None:
    assert problems([outcome()]) == []
    assert [outcome().state(judge) for judge in JUDGES] == ["noticed", "noticed"]


@pytest.mark.parametrize("class_", ["conforms", "near-tie", "harness-error"])
def test_what_passes_or_blames_hloracle_is_a_hole(class_: str) -> None:
    found = outcome(check=Judgement(class_, "harness.canary"))
    assert problems([found]) == [f"llama {SPOILED}: not noticed by check: {class_} (harness.canary)"]
    assert [found.state(judge) for judge in JUDGES] == ["noticed", "missed"]


def test_a_crash_notices_nothing() -> None:
    crash = Judgement("crashed", "it died")
    for id in (SPOILED, EXPLAINED):
        assert problems([outcome(crash, PASSED if id == EXPLAINED else NOTICED, id)]) == [
            f"llama {id}: run crashed: it died"
        ]


def test_a_reason_has_to_be_true() -> None:
    assert problems([outcome(PASSED, PASSED, EXPLAINED)]) == []
    assert outcome(PASSED, PASSED, EXPLAINED).state("run") == "explained"
    found = outcome(PASSED, NOTICED, EXPLAINED)
    assert problems([found]) == [f"llama {EXPLAINED}: check says {NOTICED}, so it is not true that {REFUSED}"]
    assert found.state("check") == "missed"


def test_nothing_spoiled_proves_nothing() -> None:
    assert problems([]) == ["nothing was spoiled"]


def test_tally() -> None:
    found = tally([outcome(), outcome(PASSED), outcome(PASSED, PASSED, EXPLAINED)], "run")
    assert found == {("position", "llama"): {"noticed": 1, "missed": 1}, ("outside", "llama"): {"explained": 1}}


def test_selected() -> None:
    assert selected([]) == [(family, id) for family in FAMILIES for id in all_of(family)]
    assert len(selected([])) >= 1500
    assert {family for family, _ in selected(["mixtral", "mixtral"])} == {"mixtral"}
    assert {id.split("/")[2] for _, id in selected(["llama"], ["ties", "length"])} == {"ties", "length"}
    with pytest.raises(InputError, match=r"'no-such': is no architecture; see `hloracle models`"):
        selected(["no-such"])
    with pytest.raises(InputError, match="'no-such': is no kind of spoiling"):
        selected([], ["no-such"])


# ---- how they are judged


def record(class_: str, *bad: tuple[str, str, str]) -> dict[str, Any]:
    checks = [{"id": "emitter.parse", "kind": "parse", "status": "passed", "detail": ""}]
    for id, status, detail in bad:
        checks.append({"id": id, "kind": id.rpartition(".")[2], "status": status, "detail": detail})
    return {"verdict": {"class": class_}, "checks": checks}


def answering(answer: Any) -> Any:
    def judge(report: Report) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return judge


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (record("conforms"), Judgement("conforms")),
        (
            record("emitter-fault", ("emitter.abi", "failed", ""), ("x", "error", "")),
            Judgement("emitter-fault", "emitter.abi"),
        ),
        (record("harness-error", ("harness.process", "error", "it died")), Judgement("crashed", "it died")),
        (InputError("is wrong", "it", "mend it"), Judgement("crashed", "it: is wrong; mend it")),
    ],
)
def test_what_is_kept_of_a_record(answer: Any, expected: Judgement) -> None:
    with holes.alone():
        assert holes._asked(lambda line: None, answering(answer)) == expected


def test_a_bug_of_ours_is_a_crash() -> None:
    with holes.alone():
        found = holes._asked(lambda line: None, answering(KeyError("oops")))
    assert found.class_ == "crashed"
    assert "KeyError: 'oops'" in found.because


def each(answers: dict[Any, Any]) -> Any:
    """Stands in for run_each."""

    def run_each(function: Any, items: Sequence[Any], jobs: int, timeout: float, report: Report, done: Any) -> None:
        for item in items:
            done(item, answers[item], 1.5)

    return run_each


@pytest.mark.parametrize("bad", ["_right died", {"run": PASSED, "check": NOTICED}])
def test_a_wrong_model_is_refused(bad: Any, monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    """Where what is right does not conform, an alarm would say nothing."""
    monkeypatch.setattr(study, "run_each", each({"llama": bad}))
    with pytest.raises(InputError, match="tiny-llama: does not conform with nothing spoiled"):
        holes.run_holes([("llama", SPOILED)], 1, lambda line: None)


def test_outcomes_are_kept_but_not_crashes(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    items = [("llama", SPOILED), ("llama", EXPLAINED), ("llama", "decode/logits/position/4")]
    answers = {"llama": {"run": PASSED, "check": PASSED}, **{item: {"run": NOTICED, "check": PASSED} for item in items}}
    answers[items[2]] = "it died"
    monkeypatch.setattr(study, "run_each", each(answers))
    first = holes.run_holes(items, 1, lambda line: None)
    assert [o.by["check"] for o in first] == [PASSED, PASSED, Judgement("crashed", "it died")]
    again = holes.run_holes(items, 1, lambda line: None)
    assert [o.reused for o in again] == [True, True, False]
    assert [dataclasses.replace(o, reused=False) for o in again] == first
    assert not any(o.reused for o in holes.run_holes(items, 1, lambda line: None, reuse=False))


def test_other_code_asks_another_question(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    monkeypatch.setattr(study, "run_each", each({"llama": {"run": PASSED, "check": PASSED}, ("llama", SPOILED): {"run": NOTICED, "check": NOTICED}}))  # fmt: skip
    key = holes.pin_key("llama")
    holes.run_holes([("llama", SPOILED)], 1, lambda line: None)
    monkeypatch.setattr(holes, "common", lambda family: "other")
    assert not holes.run_holes([("llama", SPOILED)], 1, lambda line: None)[0].reused
    assert holes.pin_key("llama") != key


# ---- what is written down


def all_right(family: str) -> list[Outcome]:
    return [
        Outcome(family, id, dict.fromkeys(JUDGES, PASSED if s.reason else NOTICED), 1.0)
        for id, s in all_of(family).items()
    ]


def test_pins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(holes, "PINS", tmp_path / "holes.json")
    found = pins(all_right("llama"))
    reasons = sum(bool(s.reason) for s in all_of("llama").values())
    noticed = len(all_of("llama")) - reasons
    assert found == {"llama": {"noticed": noticed, "explained": reasons, "of": holes.pin_key("llama")}}
    study.write_pins(holes.PINS, {"mixtral": {"noticed": 1, "explained": 2, "of": "x"}})
    study.write_pins(holes.PINS, found)
    assert list(json.loads(holes.PINS.read_text())) == ["mixtral", "llama"]
    assert holes.PINS.read_text().count("\n") == 4
    monkeypatch.setenv("XLA_FLAGS", "--other")
    with pytest.raises(InputError, match="XLA_FLAGS"):
        study.write_pins(holes.PINS, found)


def test_what_is_not_whole_is_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    whole = all_right("llama")
    with pytest.raises(InputError, match="not all of its spoilings"):
        pins(whole[1:])
    with pytest.raises(InputError, match="not noticed by run"):
        pins([*whole[1:], outcome(PASSED)])


# ---- the command


def command(monkeypatch: pytest.MonkeyPatch, outcomes: Sequence[Outcome], *arguments: str) -> int:
    monkeypatch.setattr(holes, "run_holes", lambda items, jobs, report, reuse: list(outcomes))
    return cli.invoke(["holes", *arguments])


def test_it_tells_how_many_and_which(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    some = [outcome(), outcome(PASSED), outcome(PASSED, PASSED, EXPLAINED, reused=True)]
    assert command(monkeypatch, some) == 1
    found = capsys.readouterr().out
    assert "by run: noticed / explained / missed" in found
    rows = [line.split(maxsplit=1) for line in found.splitlines()]
    for kind, by_run, by_check in (
        ("position", "1 / 0 / 1", "2 / 0 / 0"), ("outside", "0 / 1 / 0", "0 / 1 / 0"), ("all", "1 / 1 / 1", "2 / 1 / 0"),
    ):  # fmt: skip
        assert [row[1].strip() for row in rows if row and row[0] == kind] == [by_run, by_check]
    assert "3 spoilings, 1 problems; 1 reused from the cache" in found
    assert f"llama {SPOILED}: not noticed by run: conforms" in found


def test_it_exits_with_0_where_all_is_as_it_should_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(holes, "PINS", tmp_path / "holes.json")
    assert command(monkeypatch, all_right("llama"), "llama", "--pin") == 0
    assert list(json.loads(holes.PINS.read_text())) == ["llama"]
    capsys.readouterr()
    assert command(monkeypatch, [outcome()], "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    (row,) = found["spoilings"]
    assert (row["spoiling"], row["kind"], row["run"]["state"]) == (SPOILED, "position", "noticed")
    assert row["check"] == {"state": "noticed", "class": "emitter-fault", "because": NOTICED.because}


def test_the_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["holes", "llama", "--list", "--kind", "outside"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == sum(s.kind == "outside" for s in all_of("llama").values())
    assert all(line.startswith("llama ") and line.endswith(f" – {REFUSED}") for line in lines)


def test_every_family_has_every_kind() -> None:
    for family in FAMILIES:
        assert {s.kind for s in all_of(family).values()} == {*KINDS}
    assert str(CAPACITY - 1) in {id.rpartition("/")[2] for id in all_of("llama")}


@pytest.mark.nightly
def test_one_is_judged_in_full() -> None:
    """By `run` and by `check`, beside the right model and one that nobody can tell from it."""
    items = [("llama", "decode/logits/position/3"), ("llama", "prefill/logits/outside/longer")]
    found = holes.run_holes(items, 1, lambda line: None, reuse=False)
    assert problems(found) == []
    assert [[o.by[judge].class_ for judge in JUDGES] for o in found] == [["emitter-fault"] * 2, ["conforms"] * 2]
