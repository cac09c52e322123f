"""Base against head: what is a regression, what is only a change, and what is neither."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from edits import (
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
    records,
    setting,
    slower,
    wrong_token,
)
from records import ALL, JUDGED, Record, check_of, column_of, conforms, failing, hostile, near_tie, prompt_of

from hloracle.core.errors import InputError
from hloracle.reports.compare.change import SEVERITIES, capital, names, percent
from hloracle.reports.compare.comparison import as_json, compare
from hloracle.reports.compare.tokens import compare_prompts
from hloracle.reports.facts import VERDICTS
from hloracle.reports.record import to_json

PROMPT = prompt_of(conforms())["id"]
TOKENS = len(prompt_of(conforms())["reference"]["tokens"])
OTHER = "oracle/xla-cpu"


def answer(record: Record, configuration: str = JUDGED) -> Record:
    """A configuration's answer to the prompt that is edited."""
    return record["tokens"][PROMPT]["configurations"][configuration]


# ---- the contract


@pytest.mark.parametrize("name", ALL)
def test_identical_records(name: str) -> None:
    comparison = compare(ALL[name](), ALL[name]())
    assert comparison.changes == ()
    kind = VERDICTS[comparison.head["verdict"]["class"]].kind
    assert comparison.title == {"error": "Not judged", "fail": "Still wrong"}.get(kind, "Nothing changed")


@pytest.mark.parametrize("base", ALL)
@pytest.mark.parametrize("head", ["conforms", "emitter-fault", "empty", "failing-suite"])
def test_any_two_records(base: str, head: str) -> None:
    pair = ALL[base](), ALL[head]()
    pair[1]["model"]["architecture"] = pair[0]["model"]["architecture"]
    before = copy.deepcopy(pair)
    comparison = compare(*pair)
    assert pair == before
    order = [list(SEVERITIES).index(change.severity) for change in comparison.changes]
    assert order == sorted(order)
    assert bool(comparison.of("regression")) == (comparison.title == "Not safe")
    if pair[0]["passed"] and not pair[1]["passed"]:
        assert comparison.of("regression")
    assert all(len(change.words) < 600 for change in comparison.changes)
    json.loads(to_json(as_json(comparison)), parse_constant=pytest.fail)


@pytest.mark.parametrize("kind", ["tokens", "decode-logits", "anchors", "caches"])
@pytest.mark.parametrize(("near_tie", "severity"), [(True, "worse"), (False, "regression")])
def test_these_three_and_nothing_else(near_tie: bool, severity: str, kind: str) -> None:
    base, head = conforms(), conforms()
    slower(1.0)(base)
    both(drop_check(kind), wrong_token(near_tie), slower())(head)
    comparison = compare(base, head)
    by_kind = {change.kind: change for change in comparison.changes}
    assert {kind: change.severity for kind, change in by_kind.items()} == {
        "check": "regression", "tokens": severity, "speed": "regression",
    }  # fmt: skip
    assert len(comparison.changes) == 3
    assert by_kind["check"].words == f"the check “{JUDGED}.{kind}” is gone"
    assert by_kind["tokens"].words.startswith(f"{PROMPT} in {JUDGED}: the token at step 1 is ")
    assert by_kind["speed"].words == "llama decodes 15 % slower"
    assert comparison.title == "Not safe"
    assert all(change.words in comparison.sentence for change in comparison.changes)


def test_other_architectures_are_refused() -> None:
    base, head = records(lambda record: record["model"].update(architecture="qwen3"))
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
        ("emitter-fault", "compiler-fault", "changed"),
        ("emitter-fault", "timeout", "changed"),
        ("conforms", "out-of-memory", "regression"),
    ],
)
def test_a_verdict_that_nothing_else_accounts_for(before: str, after: str, severity: str) -> None:
    base, head = conforms(), conforms()
    classed(before)(base)
    classed(after)(head)
    comparison = compare(base, head)
    assert found(comparison) == [("verdict", severity)]
    if not head["passed"]:
        unknown = VERDICTS[after].kind == "error"
        assert comparison.title == ("Not safe" if base["passed"] else "Not judged" if unknown else "Still wrong")


def test_a_verdict_that_follows_from_another_change_is_not_said_twice() -> None:
    assert found(pair(wrong_token(near_tie=False))) == [("tokens", "regression")]
    # A check that is gone makes no verdict.
    assert found(pair(both(drop_check("census", "emitter"), classed("emitter-fault")))) == [
        ("verdict", "regression"), ("check", "regression"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"anchor": "norm"}, "anchor"),
        ({"step": 7, "prompt": "x"}, "prompt and step"),
        ({"confidence": {"level": "possible", "because": []}}, "confidence"),
        ({"fusion_dependent": True}, "fusion dependent"),
    ],
)
def test_the_same_fault_elsewhere(fields: dict[str, Any], words: str) -> None:
    comparison = pair(lambda record: record["verdict"].update(fields), failing)
    assert [c.words for c in comparison.changes] == [f"the same fault is found with another {words}"]
    assert comparison.title == "Still wrong"


# ---- checks


@pytest.mark.parametrize(
    ("before", "after", "severity"),
    [
        *((status, None, "regression") for status in ("passed", "failed", "error", "skipped")),
        *(("passed", status, "regression") for status in ("failed", "error", "skipped")),
        *(("skipped", status, "regression") for status in ("failed", "error")),
        *((None, status, "regression") for status in ("failed", "error")),
        *((status, "skipped", "worse") for status in ("failed", "error")),
        *((status, "passed", "better") for status in ("failed", "error", "skipped", None)),
        ("failed", "error", "changed"),
        ("error", "failed", "changed"),
        (None, "skipped", "changed"),
    ],
)
def test_what_becomes_of_a_check(before: str | None, after: str | None, severity: str) -> None:
    both_records = failing(), failing()
    for record, status in zip(both_records, (before, after), strict=True):
        check = check_of(record, "census", "emitter")
        check["status"] = status or "passed"
        if status is None:
            record["checks"].remove(check)
    changes = compare(*both_records).changes
    assert [(c.kind, c.severity, c.subject) for c in changes] == [("check", severity, "emitter.census")]


def test_figures_of_checks() -> None:
    passing = pair(lambda record: check_of(record).update(figure="another"))
    assert passing.changes == ()
    assert [check.id for check in passing.checks if check.quiet] == [f"{JUDGED}.tokens"]
    limit = pair(lambda record: check_of(record).update(limit="at most 9 floors"))
    assert found(limit) == [("check", "changed")]
    assert limit.changes[0].after == "at most 9 floors"
    bad = pair(lambda record: next(c for c in record["checks"] if c["status"] == "failed").update(figure="x"), failing)
    assert "fails by another figure" in bad.changes[0].words
    # Where the canary is put is no limit.
    assert pair(lambda record: check_of(record, "canary", "harness").update(limit="layers.1")).changes == ()


@pytest.mark.parametrize("canary", [None, {"caught": False}])
def test_the_canary(canary: dict[str, Any] | None) -> None:
    def edit(record: Record) -> None:
        record["canary"] = canary and record["canary"] | canary

    assert found(pair(edit)) == [("canary", "regression")]


def test_a_check_that_fails_by_a_token_stands_with_it() -> None:
    base, head = records(wrong_token(near_tie=False))
    check_of(head)["status"] = "failed"
    (change,) = compare(base, head).changes
    assert (change.kind, change.also) == ("tokens", (f"the check “{JUDGED}.tokens” fails",))
    # One that is gone is another observation: nobody would look at that token again.
    drop_check("tokens")(head)
    assert found(compare(base, head)) == [("tokens", "regression"), ("check", "regression")]


def test_a_check_of_anchors_that_is_gone_with_them() -> None:
    own = [m for m in conforms()["anchors"] if m["configuration"] != JUDGED]
    (change,) = pair(both(drop_check("anchors"), lambda record: record.update(anchors=own))).changes
    assert (change.kind, change.also) == ("anchors", (f"the check “{JUDGED}.anchors” is gone",))


# ---- what was not compared

LEFT_OUT = "the logits: the graph answers with a token"


def leaves_out(*phrases: str) -> Edit:
    return lambda record: record["verdict"].update(not_compared=list(phrases))


def test_what_is_not_compared_any_more_is_a_regression() -> None:
    comparison = pair(leaves_out(LEFT_OUT), valid=True)
    assert [(c.severity, c.words) for c in comparison.changes] == [("regression", f"not compared any more: {LEFT_OUT}")]
    (change,) = compare(comparison.head, comparison.base).changes
    assert (change.severity, change.words) == ("better", f"now compared, and was not: {LEFT_OUT}")
    stopped = pair(both(leaves_out(LEFT_OUT), classed("timeout")), valid=True)
    assert found(stopped) == [("verdict", "regression")]
    assert stopped.unjudged[0] == LEFT_OUT
    same = compare(comparison.head, comparison.head)
    assert (same.changes, same.unjudged[0]) == ((), LEFT_OUT)


# ---- what the two runs are


def test_another_checkpoint_is_said_first() -> None:
    comparison = pair(both(lambda record: record["model"].update(digest="0" * 64), floor(3.0)))
    assert found(comparison) == [("model", "worse")]
    assert comparison.caveats[0].startswith("The two runs are of different checkpoints.")
    assert {prompt.state for prompt in comparison.prompts} == {"another model"}


@pytest.mark.parametrize(
    ("edit", "severity", "loud"),
    [
        (setting("device", "cuda"), "worse", True),
        (setting("precision", "bf16"), "worse", True),
        (setting("capacity", 512), "worse", True),
        (setting("tokens", 2), "regression", True),
        (setting("tokens", 96), "changed", True),
        (setting("buckets", [32, 64, 128, 256, 512]), "changed", False),
        (setting("threads", 99), "note", False),
        (setting("timeout", 60), "note", False),
    ],
)
def test_settings(edit: Edit, severity: str, loud: bool) -> None:
    comparison = pair(edit)
    assert {(c.kind, c.severity) for c in comparison.changes} == {("settings", severity)}
    assert bool(comparison.caveats) == loud


def test_mutants() -> None:
    comparison = pair(lambda record: record.update(mutant="rope-sign"))
    assert found(comparison) == [("mutant", "worse")]
    assert comparison.caveats[0].startswith("Head carries a deliberate fault, the mutant rope-sign: ")


def test_the_environment_is_no_change() -> None:
    def edit(record: Record) -> None:
        record["environment"] |= {"commit": "0" * 40, "date": "2099-12-01T00:00:00", "python": "3.99.1"}
        record["environment"]["packages"] |= {"numpy": "99.4.2", "new": "1"}

    comparison = pair(edit)
    assert [c.subject for c in comparison.changes] == ["python", "new", "numpy"]
    assert comparison.title == "Nothing changed"
    assert "; only the environment differs" in comparison.sentence
    assert pair(environment("date", "2001-01-01T00:00:00")).caveats == (
        "The base's run is the younger one. Are the two records the right way round?",
    )
    assert pair(environment("date", "yesterday")).caveats == ()


# ---- tokens, prompts and configurations


def test_a_token_that_is_right_again() -> None:
    comparison = compare(near_tie(), conforms())
    assert found(comparison) == [("tokens", "better")]
    assert comparison.title == "Safe"


def test_configurations_that_changed_alike_are_one_change() -> None:
    columns = [c["id"] for c in conforms()["configurations"]]
    (change,) = pair(both(*(wrong_token(configuration=id) for id in columns[:2])), valid=True).changes
    assert set(change.configurations) == set(columns[:2])
    assert (
        f"{PROMPT} in every configuration: "
        in pair(both(*(wrong_token(configuration=c) for c in columns))).changes[0].words
    )


@pytest.mark.parametrize(
    ("before", "after", "severity"),
    [
        (wrong_token(False, steps=(1,)), wrong_token(False, steps=(2,)), "regression"),  # as many as before
        (wrong_token(True, steps=(1,)), wrong_token(True, steps=(2,)), "worse"),
        (wrong_token(True, steps=(1,)), wrong_token(False, steps=(1, 2)), "regression"),
        (wrong_token(False, steps=(1, 2)), wrong_token(False, steps=(1,)), "better"),
    ],
)
def test_a_token_that_left_the_reference(before: Edit, after: Edit, severity: str) -> None:
    base, head = conforms(), conforms()
    before(base)
    after(head)
    assert [c.severity for c in compare(base, head).changes if c.kind == "tokens"] == [severity]


def test_tokens_that_are_missing_at_the_end() -> None:
    def edit(record: Record) -> None:
        one = answer(record)
        one |= {key: one[key] and one[key][:-1] for key in ("tokens", "pieces", "errors")} | {
            "agreed": one["agreed"] - 1
        }
        record["tokens"][PROMPT]["agreed"] -= 1
        classed("emitter-fault")(record)

    comparison = pair(edit, valid=True)
    assert found(comparison) == [("tokens", "regression")]
    (diff,) = [diff for prompt in comparison.prompts for diff in prompt.tokens]
    assert [(step.step, step.after.words) for step in diff.steps] == [(TOKENS - 1, "no token")]


def test_a_prompt_that_is_no_longer_run() -> None:
    def edit(record: Record) -> None:
        record["prompts"].remove(prompt_of(record))
        del record["tokens"][PROMPT]
        record["anchors"] = [matrix for matrix in record["anchors"] if matrix["prompt"] != PROMPT]

    assert ("prompt", "regression") in found(pair(edit, valid=True))
    assert ("prompt", "better") in found(compare(*reversed(records(edit))))
    base, head = records(wrong_token(near_tie=False))
    edit(base)
    assert ("prompt", "regression") in found(compare(base, head))
    assert [p.id for p in compare_prompts(base, head)] == [p["id"] for p in head["prompts"]]


def test_a_configuration_that_gives_no_result_is_one_change() -> None:
    def edit(record: Record) -> None:
        for entry in record["tokens"].values():
            del entry["configurations"][JUDGED]
            entry["agreed"] = 0
        column = column_of(record)
        column |= {"status": "failed", "message": "signal 11"}
        record["anchors"] = [matrix for matrix in record["anchors"] if matrix["configuration"] != JUDGED]
        for check in record["checks"]:
            if check["id"].startswith(f"{JUDGED}."):
                check["status"] = "error"
        classed("harness-error")(record)

    base, head = records(edit)
    (change,) = compare(base, head).changes
    assert (change.kind, change.severity, change.detail) == ("configuration", "regression", "signal 11")
    assert f"the check “{JUDGED}.tokens” no longer runs: it ends with an error" in change.also
    back = compare(head, base)
    assert ("configuration", "better") in found(back)
    assert not back.of("regression", "worse")


def test_another_reference_and_another_prompt() -> None:
    def edit(record: Record) -> None:
        for entry in [prompt_of(record)["reference"], *record["tokens"][PROMPT]["configurations"].values()]:
            entry["tokens"][1] += 1

    (change,) = pair(edit, valid=True).changes
    assert (change.kind, change.severity) == ("reference", "worse")
    assert change.words == f"the truth of {PROMPT} is another from step 1 on"

    def asked(record: Record) -> None:
        edit(record)
        prompt_of(record)["token_ids"][0] += 1

    assert found(pair(asked)) == [("prompt", "changed")]


# ---- logits, anchors and floors


@pytest.mark.parametrize("share", [1.01, 400.0, "NaN", "Infinity"])
def test_logits_over_their_limit(share: Any) -> None:
    assert found(pair(logit_error(share))) == [("logits", "regression")]
    assert found(compare(*reversed(records(logit_error(share))))) == [("logits", "better")]


def test_logits_that_come_nearer_or_are_no_longer_compared() -> None:
    assert found(pair(logit_error(0.95))) == [("logits", "worse")]
    assert found(pair(logit_error(0.45))) == []  # most of the room is left
    nothing = dict.fromkeys(("logit_error", "logit_floor", "logit_limit"))

    def none(record: Record) -> None:
        for entry in record["tokens"].values():
            entry["configurations"][JUDGED] |= nothing

    (change,) = pair(none).changes
    assert (change.kind, change.severity, change.after) == ("logits", "regression", "none")
    (change,) = pair(lambda record: answer(record).update(nothing)).changes
    assert change.words == f"the logits of {JUDGED} are no longer compared on {PROMPT}"


def anchor_error(size: float | str) -> Edit:
    def edit(record: Record) -> None:
        record["anchors"][0]["errors"][3][0] = size
        classed("emitter-fault")(record)

    return edit


@pytest.mark.parametrize("size", [1e9, "NaN", "Infinity"])
def test_an_anchor_over_its_limit(size: float | str) -> None:
    (change,) = pair(anchor_error(size)).changes
    matrix = conforms()["anchors"][0]
    assert (change.kind, change.severity) == ("anchors", "regression")
    assert change.detail.startswith(f"the worst: {matrix['anchors'][3]}, {matrix['prompt']} at position")


def test_anchors_that_are_no_longer_compared() -> None:
    changes = pair(lambda record: record.update(anchors=[])).changes
    assert {(c.kind, c.severity) for c in changes} == {("anchors", "regression")}
    assert f"the anchors of {JUDGED} are no longer compared" in [c.words for c in changes]

    def one(record: Record) -> None:
        errors = record["anchors"][0]["errors"]
        errors[3] = [None] * len(errors[3])

    (change,) = pair(one).changes
    assert "is no longer compared in" in change.words
    # A run that is wrong is taken apart, and compares more than one that conforms.
    assert not [c for c in compare(failing(), conforms()).of("regression") if c.kind == "anchors"]


@pytest.mark.parametrize(
    ("factor", "moved"), [(1.09, False), (0.92, False), (1.11, True), (0.9, True), (0.0, True), (math.inf, True)]
)
def test_floors_that_move(factor: float, moved: bool) -> None:
    assert found(pair(floor(factor))) == ([("floors", "changed")] if moved else [])


def test_floors_elsewhere_and_limits_that_were_raised() -> None:
    comparison = pair(both(floor(2.0), environment("cpu", "another")))
    assert {c.kind: c.severity for c in comparison.changes} == {"floors": "note", "environment": "note"}
    assert found(pair(lambda record: record["floors"][3].update(limit=999.0))) == [("floors", "worse")]


# ---- graphs


def test_a_graph_that_changed() -> None:
    comparison = pair(edited_graph)
    (change,) = comparison.changes
    assert (change.kind, change.severity, change.subject) == ("graph", "changed", "emitter")
    assert comparison.title == "Safe"
    listed = [graph for graph in comparison.graphs.changed if graph.text]
    assert all(next(row.mark for row in graph.text.scopes[0].rows) == "new" for graph in listed if graph.text)
    assert all(graph.ops["slice"][1] - graph.ops["slice"][0] == 1 for graph in comparison.graphs.changed)


@pytest.mark.parametrize(
    ("fields", "severity"),
    [
        ({"weights": 5, "digest": "f" * 64}, "changed"),
        ({"digest": "f" * 64}, "changed"),
        ({"flops": 5, "bytes": 5}, "note"),  # the same text, counted otherwise
    ],
)
def test_a_figure_of_a_graph(fields: dict[str, Any], severity: str) -> None:
    def edit(record: Record) -> None:
        graph = next(graph for graph in record["graphs"] if graph["flops"] is not None)
        graph |= fields

    (change,) = pair(edit).changes
    assert (change.kind, change.severity) == ("graph", severity)


def test_graphs_that_come_and_go() -> None:
    id = next(g["id"] for g in conforms()["graphs"] if g["bucket"] == 64)
    base, head = records(lambda record: record.update(graphs=[g for g in record["graphs"] if g["id"] != id]))
    assert found(compare(base, head)) == [("graph", "regression")]
    assert found(compare(head, base)) == [("graph", "changed")]
    head["settings"]["buckets"].remove(64)
    assert [c.kind for c in compare(base, head).of("note")] == ["graph"]


# ---- words


def test_words() -> None:
    assert names([]) == ""
    assert names(list("abcde")) == "a, b, c and 2 more"
    assert [percent(ratio) for ratio in (1.15, 0.8, 1.0042, 3.0)] == ["15 %", "20 %", "0.42 %", "200 %"]
    assert capital("the check") == "The check"
    assert capital("chat@64 in") == "chat@64 in"
    base, head = hostile(), hostile()
    del head["checks"][0]
    (change,) = compare(base, head).changes
    assert change.words.isprintable()
    assert len(change.words) < 120
