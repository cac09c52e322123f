"""Base against head: what is a regression, what is only a change, and what is neither."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from edits import (
    EMITTED,
    Edit,
    both,
    classed,
    drop_check,
    edited_graph,
    environment,
    floor,
    found,
    logit_error,
    pair,
    setting,
    slower,
    with_checks,
    wrong_token,
)
from test_reports_sample import (
    CELLS,
    SAMPLES,
    failing_sample,
    hostile_sample,
    sample,
)

from hloracle.core.errors import InputError
from hloracle.reports.compare.change import SEVERITIES, capital, names, percent
from hloracle.reports.compare.comparison import as_json, compare
from hloracle.reports.compare.graphs import compare_graphs
from hloracle.reports.compare.tokens import compare_prompts
from hloracle.reports.facts import VERDICTS, Record
from hloracle.reports.record import to_json, validate

# ---- the contract


@pytest.mark.parametrize("make", SAMPLES)
def test_identical_records(make: Callable[[], Record]) -> None:
    comparison = compare(make(), make())
    assert comparison.changes == ()
    assert comparison.severity == ""
    kind = VERDICTS[make()["verdict"]["class"]].kind
    assert comparison.title == {"error": "Not judged", "fail": "Still wrong"}.get(kind, "Nothing changed")
    timed = "" if make()["speed"]["contenders"] else "; speed was not judged"
    assert comparison.sentence.endswith(f"are the same in both runs{timed}")


@pytest.mark.parametrize(
    "check", ["emitter.census", *(f"{EMITTED}.{name}" for name in ("tokens", "decode-logits", "anchors", "caches"))]
)
@pytest.mark.parametrize(("near_tie", "severity"), [(True, "worse"), (False, "regression")])
def test_these_three_and_nothing_else(near_tie: bool, severity: str, check: str) -> None:
    base, head = with_checks(sample()), with_checks(sample())
    both(drop_check(check), wrong_token(near_tie=near_tie), slower())(head)
    validate(head)
    comparison = compare(base, head)
    by_kind = {change.kind: change for change in comparison.changes}
    assert len(comparison.changes) == len(by_kind) == 3
    assert {kind: change.severity for kind, change in by_kind.items()} == {
        "check": "regression", "tokens": severity, "speed": "regression",
    }  # fmt: skip
    assert by_kind["check"].words == f"the check “{check}” is gone"
    assert by_kind["tokens"].words == "chat@64 in emitter/iree-cpu: the token at step 5 is “␣Lyon”, was “␣Paris”"
    assert (by_kind["tokens"].before, by_kind["tokens"].after) == ("48 of 48 equal", "47 of 48 equal")
    assert by_kind["speed"].words == "llama decodes 15 % slower"
    assert comparison.title == "Not safe"
    for change in comparison.changes:
        assert change.words in comparison.sentence


def test_the_sentence_of_a_safe_change() -> None:
    comparison = pair(edited_graph)
    assert (comparison.title, comparison.sentence) == (
        "Safe", "nothing got worse; the emitted graph changed in 1 scope",
    )  # fmt: skip


@pytest.mark.parametrize(("a", "b"), [(a, b) for a in SAMPLES for b in SAMPLES])
def test_any_two_records(a: Callable[[], Record], b: Callable[[], Record]) -> None:
    base, head = a(), b()
    head["model"]["architecture"] = base["model"]["architecture"]
    before = copy.deepcopy((base, head))
    comparison = compare(base, head)
    assert (base, head) == before
    order = [list(SEVERITIES).index(change.severity) for change in comparison.changes]
    assert order == sorted(order)
    assert bool(comparison.of("regression")) == (comparison.title == "Not safe")
    if base["passed"] and not head["passed"]:
        assert comparison.of("regression")
    assert all(len(change.words) < 600 for change in comparison.changes)
    json.loads(to_json(as_json(comparison)), parse_constant=pytest.fail)
    assert to_json(as_json(compare(base, head))) == to_json(as_json(comparison))


def test_other_architectures_are_refused() -> None:
    base, head = sample(), sample()
    head["model"]["architecture"] = "qwen3"
    with pytest.raises(InputError, match=r"head\.json: is of a 'qwen3' model and the base's record of a 'llama' one; "):
        compare(base, head, "head.json")


# ---- the verdict


@pytest.mark.parametrize(
    ("before", "after", "severity"),
    [
        ("conforms", "emitter-fault", "regression"),
        ("near-tie", "harness-error", "regression"),
        ("conforms", "near-tie", "worse"),
        ("near-tie", "conforms", "better"),
        ("compiler-fault", "conforms", "better"),
        ("compiler-fault", "near-tie", "better"),
        ("emitter-fault", "compiler-fault", "changed"),
        ("emitter-fault", "timeout", "changed"),
        ("conforms", "invariant-broken", "regression"),
        ("conforms", "out-of-memory", "regression"),
        ("unsupported", "conforms", "better"),
    ],
)
def test_a_verdict_that_nothing_else_accounts_for(before: str, after: str, severity: str) -> None:
    base, head = sample(), sample()
    classed(before)(base)
    classed(after)(head)
    comparison = compare(base, head)
    assert found(comparison) == [("verdict", severity)]
    if not head["passed"]:
        unknown = VERDICTS[after].kind == "error"
        assert comparison.title == ("Not safe" if base["passed"] else "Not judged" if unknown else "Still wrong")
        words = comparison.changes[0].words
        if base["passed"]:
            assert words.startswith("nothing is known of the head" if unknown else "the head does not conform")
        else:
            assert words == ("the verdict is another" if unknown else "another fault is found")


def test_a_verdict_that_follows_from_another_change_is_not_said_twice() -> None:
    assert found(pair(wrong_token(near_tie=False))) == [("tokens", "regression")]
    # A check that is gone makes no verdict.
    assert found(pair(both(drop_check("emitter.census"), classed("emitter-fault")))) == [
        ("verdict", "regression"), ("check", "regression"),
    ]  # fmt: skip


def test_what_makes_no_verdict_does_not_stand_for_it() -> None:
    base, head = sample(), sample()
    classed("emitter-fault")(base)
    drop_check("emitter.census")(base)
    assert found(compare(base, head)) == [("verdict", "better"), ("check", "better")]
    base["checks"].append(head["checks"][5] | {"status": "failed"})
    assert found(compare(base, head)) == [("check", "better")]
    assert found(pair(both(logit_error(0.95), classed("near-tie")))) == [("verdict", "worse"), ("logits", "worse")]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"anchor": "norm"}, "anchor"),
        ({"operation": None, "step": 7}, "operation and step"),
        ({"confidence": {"level": "possible", "because": []}}, "confidence"),
        ({"fusion_dependent": True}, "fusion dependent"),
    ],
)
def test_the_same_fault_elsewhere(fields: dict[str, Any], words: str) -> None:
    comparison = pair(lambda record: record["verdict"].update(fields), failing_sample)
    (change,) = comparison.changes
    assert (change.kind, change.severity) == ("verdict", "changed")
    assert change.words == f"the same fault is found with another {words}"
    assert comparison.title == "Still wrong"


# ---- checks


def status_of(index: int, status: str | None) -> Edit:
    def edit(record: Record) -> None:
        if status is None:
            del record["checks"][index]
        else:
            record["checks"][index]["status"] = status

    return edit


@pytest.mark.parametrize(
    ("before", "after", "severity"),
    [
        ("passed", "failed", "regression"),
        ("passed", "error", "regression"),
        ("passed", "skipped", "regression"),
        ("passed", None, "regression"),
        ("failed", None, "regression"),
        ("error", None, "regression"),
        ("skipped", None, "regression"),
        ("skipped", "failed", "regression"),
        ("skipped", "error", "regression"),
        (None, "failed", "regression"),
        (None, "error", "regression"),
        ("failed", "skipped", "worse"),
        ("error", "skipped", "worse"),
        ("failed", "error", "changed"),
        ("error", "failed", "changed"),
        (None, "skipped", "changed"),
        (None, "passed", "better"),
        ("failed", "passed", "better"),
        ("error", "passed", "better"),
        ("skipped", "passed", "better"),
    ],
)
def test_what_becomes_of_a_check(before: str | None, after: str | None, severity: str) -> None:
    base, head = failing_sample(), failing_sample()
    status_of(5, before)(base)
    status_of(5, after)(head)
    changes = compare(base, head).changes
    assert [(c.kind, c.severity, c.subject) for c in changes] == [("check", severity, "emitter.census")]


def test_figures_of_passing_checks_are_no_change() -> None:
    comparison = pair(lambda record: record["checks"][2].update(figure="3.52 floors (capacity@256)"))
    assert comparison.changes == ()
    assert [check.id for check in comparison.checks if check.quiet] == [f"{EMITTED}.decode-logits"]


def test_figures_of_failing_checks_are() -> None:
    base, head = failing_sample(), failing_sample()
    base["checks"][1]["figure"], head["checks"][1]["figure"] = "5 of 6 prompts differ", "900 of 1,440"
    (change,) = compare(base, head).changes
    assert (change.severity, change.words) == ("changed", f"the check “{EMITTED}.tokens” fails by another figure")
    assert (change.before, change.after) == ("5 of 6 prompts differ", "900 of 1,440")


def test_what_a_check_expects() -> None:
    comparison = pair(lambda record: record["checks"][2].update(expected="at most 9 floors"))
    assert found(comparison) == [("check", "changed")]
    assert (comparison.changes[0].before, comparison.changes[0].after) == ("at most 8 floors", "at most 9 floors")


def test_where_the_canary_is_put_is_no_expectation() -> None:
    base, head = sample(), sample()
    base["checks"][2] |= {"id": "harness.canary", "expected": "layers.1"}
    head["checks"][2] |= {"id": "harness.canary", "expected": "layers.2"}
    assert compare(base, head).changes == ()


@pytest.mark.parametrize("canary", [None, {"caught": False}])
def test_the_canary(canary: dict[str, Any] | None) -> None:
    def edit(record: Record) -> None:
        record["canary"] = canary and record["canary"] | canary

    assert found(pair(edit)) == [("canary", "regression")]


def test_a_check_that_fails_by_a_token_stands_with_it() -> None:
    base, head = sample(), sample()
    wrong_token(near_tie=False)(head)
    head["checks"][1]["status"] = "failed"
    (change,) = compare(base, head).changes
    assert change.kind == "tokens"
    assert change.also == ("the check “emitter/iree-cpu.tokens” fails",)
    # One that is gone is another observation: nobody would look at that token again.
    del head["checks"][1]
    assert found(compare(base, head)) == [("tokens", "regression"), ("check", "regression")]


# ---- what was not compared

LEFT_OUT = "the logits: the graph answers with a token"


def leaves_out(*phrases: str) -> Edit:
    return lambda record: record["verdict"].update(not_compared=list(phrases))


def test_what_is_not_compared_any_more_is_a_regression() -> None:
    comparison = pair(leaves_out(LEFT_OUT), valid=True)
    (change,) = comparison.changes
    assert (change.kind, change.severity, change.words) == (
        "compared", "regression", f"not compared any more: {LEFT_OUT}",
    )  # fmt: skip
    assert comparison.title == "Not safe"
    assert LEFT_OUT not in comparison.unjudged
    (change,) = compare(comparison.head, comparison.base).changes
    assert (change.severity, change.words) == ("better", f"now compared, and was not: {LEFT_OUT}")


def test_what_a_run_did_not_get_to_is_no_change_by_itself() -> None:
    comparison = pair(both(leaves_out(LEFT_OUT), classed("timeout")), valid=True)
    assert found(comparison) == [("verdict", "regression")]
    assert comparison.unjudged[0] == LEFT_OUT
    assert found(compare(comparison.head, comparison.base)) == [("verdict", "better")]


def test_what_neither_run_compares_is_not_judged() -> None:
    base, head = sample(), sample()
    leaves_out(LEFT_OUT)(base)
    leaves_out(LEFT_OUT)(head)
    comparison = compare(base, head)
    assert comparison.changes == ()
    assert comparison.unjudged[0] == LEFT_OUT
    # Of a base that compared nothing at all, or does not say, nothing is lost.
    for before in ([], None):
        base["verdict"] |= {"compared": before, "not_compared": before}
        comparison = compare(base, head)
        assert comparison.changes == ()
        assert comparison.unjudged[0] == LEFT_OUT
    leaves_out(*(f"part {i}: it is long" for i in range(30)))(head)
    assert compare(base, head).unjudged[7:9] == ("part 7: it is long", "and 22 more comparisons")


def test_a_head_that_does_not_say_what_it_compared() -> None:
    comparison = pair(lambda record: record["verdict"].update(compared=None, not_compared=None))
    assert comparison.changes == ()
    assert comparison.unjudged == (
        "what the head's run did not compare: its record is of an older version and does not say",
    )  # fmt: skip


# ---- what the two runs are


def test_another_checkpoint_is_said_first() -> None:
    def edit(record: Record) -> None:
        record["model"]["digest"] = "0" * 64
        record["prompts"][0]["truth"]["tokens"][3] = 1
        for cell in record["tokens"]["chat@64"]["cells"].values():
            cell["tokens"][3] = 1
        floor(3.0)(record)

    comparison = pair(edit)
    assert found(comparison) == [("model", "worse")]
    assert comparison.caveats[0].startswith("The two runs are of different checkpoints.")
    assert {prompt.state for prompt in comparison.prompts} == {"another model"}
    assert "floors: another checkpoint has other noise" in comparison.unjudged


def test_another_configuration() -> None:
    comparison = pair(lambda record: record["model"]["config"].update(rope_theta=10000.0, new=[1]))
    (change,) = comparison.changes
    assert change.words == "the model's configuration differs in rope_theta and new"


@pytest.mark.parametrize(
    ("edit", "severity", "loud"),
    [
        (setting("device", "cuda"), "worse", True),
        (setting("precision", "bf16"), "worse", True),
        (setting("capacity", 512), "worse", True),
        (setting("tokens", 8), "regression", True),
        (setting("tokens", 96), "changed", True),
        (setting("buckets", [32, 64, 128, 256, 512]), "changed", False),
        (setting("threads", 4), "note", False),
        (setting("timeout", 60), "note", False),
        (setting("timeout", None), "note", False),
    ],
)
def test_settings(edit: Edit, severity: str, loud: bool) -> None:
    comparison = pair(edit)
    assert {(c.kind, c.severity) for c in comparison.changes} == {("settings", severity)}
    assert bool(comparison.caveats) == loud


def test_fewer_tokens_are_compared_as_far_as_they_go() -> None:
    def edit(record: Record) -> None:
        record["settings"]["tokens"] = 8
        for prompt in record["prompts"]:
            truth = prompt["truth"]
            truth |= {key: truth[key][:8] for key in ("tokens", "pieces", "gaps")}
            entry = record["tokens"][prompt["id"]]
            entry |= {"agreed": 8, "total": 8}
            for cell in entry["cells"].values():
                cell |= {key: cell[key][:8] for key in ("tokens", "pieces", "errors")} | {"agreed": 8, "total": 8}
        for cell in record["cells"]:
            cell |= {"agreed": 48, "total": 48}

    comparison = pair(edit, valid=True)
    assert found(comparison) == [("settings", "regression")]
    assert comparison.counts["token"] == 8 * 6 * len(CELLS)
    assert found(compare(comparison.head, comparison.base)) == [("settings", "changed")]


def test_mutants() -> None:
    comparison = pair(lambda record: record.update(mutant="rope-sign"))
    assert found(comparison) == [("mutant", "worse")]
    assert comparison.caveats[0].startswith("Head carries a deliberate fault, the mutant rope-sign: ")
    base, head = sample(), sample()
    base["mutant"] = head["mutant"] = "rope-sign"
    comparison = compare(base, head)
    assert comparison.changes == ()
    assert len(comparison.caveats) == 2


def test_the_environment_is_no_change() -> None:
    def edit(record: Record) -> None:
        record["environment"] |= {"commit": "0" * 40, "date": "2025-12-01T00:00:00", "python": "3.12.1"}
        record["environment"]["packages"] |= {"numpy": "2.4.2", "new": "1"}
        record["timings"][5] |= {"seconds": 500.0}

    comparison = pair(edit)
    assert [c.subject for c in comparison.changes] == ["python", "new", "numpy"]
    assert comparison.severity == ""
    assert comparison.title == "Nothing changed"
    assert comparison.sentence.endswith("; only the environment differs")
    assert [stage.seconds for stage in comparison.stages if stage.seconds[0] != stage.seconds[1]] == [(14.6, 500.0)]


def test_records_the_wrong_way_round() -> None:
    comparison = pair(environment("date", "2024-01-01T00:00:00"))
    assert comparison.caveats == ("The base's run is the younger one. Are the two records the right way round?",)
    # By the moment, and not by how it is written: both are of 05:12:44 UTC or later.
    for date in ("2025-11-21T00:12:44-05:00", "2025-11-21T05:12:45", "yesterday", ""):
        assert pair(environment("date", date)).caveats == ()
    assert pair(environment("date", "2025-11-21T06:12:44+02:00")).caveats


def test_stages_that_come_twice() -> None:
    def edit(record: Record) -> None:
        record["timings"].append(record["timings"][0] | {"seconds": 9.0})

    stages = [stage for stage in pair(edit).stages if stage.name == "checkpoint"]
    assert [stage.seconds for stage in stages] == [(0.04, 0.04), (None, 9.0)]


def test_hostile_records_in_words() -> None:
    base, head = hostile_sample(), hostile_sample()
    del head["checks"][0]
    (change,) = compare(base, head).changes
    assert change.words.isprintable()
    assert len(change.words) < 120


# ---- words


def test_words() -> None:
    assert names([]) == ""
    assert names(["a"]) == "a"
    assert names(["a", "b"]) == "a and b"
    assert names(list("abcde")) == "a, b, c and 2 more"
    assert [percent(ratio) for ratio in (1.15, 0.8, 1.0042, 1.2345, 3.0, 1e6)] == [
        "15 %", "20 %", "0.42 %", "23.4 %", "200 %", "1.00e8 %",
    ]  # fmt: skip
    assert capital("the check") == "The check"
    assert capital("not compared any more: x") == "Not compared any more: x"
    assert capital("both runs carry") == "Both runs carry"
    assert capital("chat@64 in") == "chat@64 in"


def test_all_prompts_are_there_once() -> None:
    base, head = sample(), sample()
    del base["prompts"][2]
    ids = [prompt.id for prompt in compare_prompts(base, head)]
    assert ids == [prompt["id"] for prompt in head["prompts"]]
    assert len(compare_graphs(base, head).changed) == 0
