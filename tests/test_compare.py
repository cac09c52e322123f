"""Base against head: what is a regression, what is only a change, and what is neither."""

from __future__ import annotations

import copy
import functools
import json
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from test_reports_sample import (
    CELLS,
    SAMPLES,
    TOKENS,
    _disagree,
    empty_sample,
    failing_sample,
    hostile_sample,
    near_tie_sample,
    sample,
)

from hloracle.core.errors import InputError
from hloracle.reports.compare.change import SEVERITIES, capital, names, percent
from hloracle.reports.compare.comparison import Comparison, as_json, compare
from hloracle.reports.compare.graphs import compare_graphs
from hloracle.reports.compare.speed import APART, RESIDENT, compare_speed
from hloracle.reports.compare.texts import compare_texts
from hloracle.reports.compare.tokens import compare_prompts
from hloracle.reports.compare.values import FLOOR_MOVED
from hloracle.reports.record import Record, to_json, validate

EMITTED = "emitter/iree-cpu"
Edit = Callable[[Record], None]


def pair(edit: Edit, make: Callable[[], Record] = sample, valid: bool = False) -> Comparison:
    """A record against itself with one edit; `valid` holds that the edited one is a record."""
    base, head = make(), make()
    edit(head)
    if valid:
        validate(head)
    return compare(base, head)


def found(comparison: Comparison) -> list[tuple[str, str]]:
    """What matters: everything but the environment."""
    return [(c.kind, c.severity) for c in comparison.changes if c.severity != "note"]


def drop_check(id: str) -> Edit:
    def edit(record: Record) -> None:
        record["checks"] = [check for check in record["checks"] if check["id"] != id]

    return edit


def wrong_token(step: int = 5, near_tie: bool = True, cell: str = EMITTED) -> Edit:
    """One token that differs: a near-tie, or with the verdict that follows from it."""

    def edit(record: Record) -> None:
        _disagree(record, "chat@64", cell, (step,))
        record["tokens"]["chat@64"]["cells"][cell]["near_ties"] = int(near_tie)
        record["verdict"]["class"] = "near-tie" if near_tie else "emitter-fault"
        record["passed"] = near_tie

    return edit


def slower(factor: float = 1.15) -> Edit:
    def edit(record: Record) -> None:
        ours = record["speed"]["contenders"][0]
        ours["ms_per_token"] = [round(ms * factor, 4) for ms in ours["ms_per_token"]]

    return edit


def both(*edits: Edit) -> Edit:
    def edit(record: Record) -> None:
        for one in edits:
            one(record)

    return edit


# ---- the contract


@pytest.mark.parametrize("make", SAMPLES)
def test_identical_records(make: Callable[[], Record]) -> None:
    comparison = compare(make(), make())
    assert comparison.changes == ()
    assert comparison.severity == ""
    assert comparison.title == ("Nothing changed" if make()["passed"] else "Still wrong")
    timed = "" if make()["speed"]["contenders"] else "; speed was not judged"
    assert comparison.sentence.endswith(f"are the same in both runs{timed}")


@pytest.mark.parametrize(("near_tie", "severity"), [(True, "worse"), (False, "regression")])
def test_these_three_and_nothing_else(near_tie: bool, severity: str) -> None:
    comparison = pair(both(drop_check("buckets"), wrong_token(near_tie=near_tie), slower()), valid=True)
    by_kind = {change.kind: change for change in comparison.changes}
    assert len(comparison.changes) == len(by_kind) == 3
    assert {kind: change.severity for kind, change in by_kind.items()} == {
        "check": "regression", "tokens": severity, "speed": "regression",
    }  # fmt: skip
    assert by_kind["check"].words == "the check “buckets” is gone"
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
    head["model"]["model_type"] = base["model"]["model_type"]
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
    head["model"]["model_type"] = "qwen3"
    with pytest.raises(InputError, match=r"head\.json: is of a 'qwen3' model and the base's record of a 'llama' one; "):
        compare(base, head, "head.json")


# ---- the verdict


def classed(name: str, **fields: Any) -> Edit:
    def edit(record: Record) -> None:
        record["verdict"] |= {"class": name, "anchor": None, "operation": None, "confidence": None, **fields}
        record["passed"] = name in ("conforms", "near-tie")

    return edit


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
    ],
)
def test_a_verdict_that_nothing_else_accounts_for(before: str, after: str, severity: str) -> None:
    base, head = sample(), sample()
    classed(before)(base)
    classed(after)(head)
    comparison = compare(base, head)
    assert found(comparison) == [("verdict", severity)]
    if not head["passed"]:
        assert comparison.title in ("Not safe", "Still wrong")


def test_a_verdict_that_follows_from_another_change_is_not_said_twice() -> None:
    assert found(pair(wrong_token(near_tie=False))) == [("tokens", "regression")]
    # A check that is gone makes no verdict.
    assert found(pair(both(drop_check("buckets"), classed("emitter-fault")))) == [
        ("verdict", "regression"), ("check", "regression"),
    ]  # fmt: skip


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


# ---- tokens


def test_a_token_that_is_right_again() -> None:
    comparison = compare(near_tie_sample(), sample())
    (change,) = comparison.changes
    assert (change.kind, change.severity) == ("tokens", "better")
    assert comparison.title == "Safe"


def test_a_token_that_was_and_is_wrong() -> None:
    def edit(record: Record) -> None:
        cell = record["tokens"]["chat@64"]["cells"][EMITTED]
        cell["tokens"][5], cell["pieces"][5] = 7, " Rome"

    assert found(pair(edit, failing_sample, valid=True)) == [("tokens", "changed")]


def test_cells_that_changed_alike_are_one_change() -> None:
    def edit(record: Record) -> None:
        for cell in CELLS[2:]:
            wrong_token(cell=cell)(record)

    (change,) = pair(edit, valid=True).changes
    assert change.cells == CELLS[2:]
    assert "emitter/xla-cpu, emitter/iree-cpu and emitter/iree-cpu/token" in change.words


def test_every_cell() -> None:
    def edit(record: Record) -> None:
        for cell in CELLS:
            wrong_token(cell=cell)(record)

    assert "chat@64 in every cell: " in pair(edit).changes[0].words


def test_a_second_disagreement_that_is_no_near_tie() -> None:
    def edit(record: Record) -> None:
        _disagree(record, "long@128", "emitter/iree-cpu", (21, 30))
        record["passed"], record["verdict"]["class"] = False, "emitter-fault"

    changes = pair(edit, near_tie_sample, valid=True).changes
    assert [(c.kind, c.severity) for c in changes] == [("tokens", "regression")]


def test_tokens_that_are_missing_at_the_end() -> None:
    def edit(record: Record) -> None:
        cell = record["tokens"]["chat@64"]["cells"][EMITTED]
        cell |= {key: cell[key][:40] for key in ("tokens", "pieces", "errors")} | {"agreed": 40}
        record["tokens"]["chat@64"]["agreed"] = 40
        classed("emitter-fault")(record)

    comparison = pair(edit, valid=True)
    assert found(comparison) == [("tokens", "regression")]
    (diff,) = [diff for prompt in comparison.prompts for diff in prompt.tokens]
    assert [step.step for step in diff.steps] == list(range(40, 48))
    assert {step.after.words for step in diff.steps} == {"no token"}


def test_tokens_without_text() -> None:
    def edit(record: Record) -> None:
        wrong_token()(record)
        for cell in record["tokens"]["chat@64"]["cells"].values():
            cell["pieces"] = None

    assert "step 5 is token " in pair(edit).changes[0].words


def test_a_prompt_that_is_no_longer_run() -> None:
    def edit(record: Record) -> None:
        del record["prompts"][0], record["tokens"]["chat@64"]

    (change,) = pair(edit, valid=True).changes
    assert (change.kind, change.severity, change.subject) == ("prompt", "regression", "chat@64")
    assert found(compare(*reversed(_records(edit)))) == [("prompt", "better")]


def _records(edit: Edit) -> tuple[Record, Record]:
    base, head = sample(), sample()
    edit(head)
    return base, head


def test_a_new_prompt_that_is_wrong() -> None:
    base, head = sample(), sample()
    wrong_token(near_tie=False)(head)
    del base["prompts"][0], base["tokens"]["chat@64"]
    assert ("prompt", "regression") in found(compare(base, head))
    wrong_token(step=9)(head := sample())
    assert ("prompt", "worse") in found(compare(base, head))


def test_one_comparison_that_is_lost() -> None:
    def edit(record: Record) -> None:
        del record["tokens"]["chat@64"]["cells"][EMITTED]
        record["tokens"]["chat@64"]["agreed"] = 0
        classed("harness-error")(record)

    changes = pair(edit, valid=True).changes
    assert [(c.kind, c.severity, c.words) for c in changes] == [
        ("tokens", "regression", "chat@64 is no longer compared in emitter/iree-cpu")
    ]


def test_a_cell_that_gives_no_result_is_one_change() -> None:
    def edit(record: Record) -> None:
        for entry in record["tokens"].values():
            del entry["cells"][EMITTED]
            entry["agreed"] = 0
        record["cells"][3] |= {"status": "failed", "message": "signal 11"}
        record["anchors"] = []
        record["checks"] += [record["checks"][0] | {"id": f"{EMITTED}.tokens", "status": "error"}]
        classed("harness-error")(record)

    base, head = sample(), sample()
    edit(head)
    base["checks"] += [base["checks"][0] | {"id": f"{EMITTED}.tokens"}]
    validate(head)
    (change,) = compare(base, head).changes
    assert (change.kind, change.severity, change.detail) == ("cell", "regression", "signal 11")
    assert change.also == ("the check “emitter/iree-cpu.tokens” no longer runs: it ends with an error",)
    back = compare(head, base)
    assert ("cell", "better") in found(back)
    assert not back.of("regression", "worse")


def test_a_cell_that_is_no_longer_run() -> None:
    def edit(record: Record) -> None:
        record["cells"] = [cell for cell in record["cells"] if cell["id"] != "oracle/iree-cpu"]
        for entry in record["tokens"].values():
            del entry["cells"]["oracle/iree-cpu"]

    assert found(pair(edit)) == [("cell", "regression")]
    assert found(compare(*reversed(_records(edit)))) == [("cell", "changed")]


def test_another_truth() -> None:
    def edit(record: Record) -> None:
        for entry in [record["prompts"][0]["truth"], *record["tokens"]["chat@64"]["cells"].values()]:
            entry["tokens"][9] = 1

    comparison = pair(edit, valid=True)
    (change,) = comparison.changes
    assert (change.kind, change.severity) == ("truth", "worse")
    assert change.words == "the truth of chat@64 is another from step 9 on"
    assert comparison.title == "Look twice"


def test_another_prompt_is_compared_by_its_agreement() -> None:
    def edit(record: Record) -> None:
        record["prompts"][0]["token_ids"][0] = 1
        record["prompts"][0]["truth"]["tokens"][9] = 1
        for cell in record["tokens"]["chat@64"]["cells"].values():
            cell["tokens"][9] = 1

    assert found(pair(edit)) == [("prompt", "changed")]
    assert set(found(pair(both(edit, wrong_token())))) == {("prompt", "changed"), ("tokens", "worse")}


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
    assert [(c.kind, c.severity, c.subject) for c in changes] == [("check", severity, "buckets")]


def test_figures_of_passing_checks_are_no_change() -> None:
    comparison = pair(lambda record: record["checks"][2].update(figure="at most 0.44 of the limit"))
    assert comparison.changes == ()
    assert [check.id for check in comparison.checks if check.quiet] == ["logits"]


def test_what_a_check_expects() -> None:
    comparison = pair(lambda record: record["checks"][2].update(expected="at most 2"))
    assert found(comparison) == [("check", "changed")]
    assert (comparison.changes[0].before, comparison.changes[0].after) == ("at most 1", "at most 2")


def test_where_the_canary_is_put_is_no_expectation() -> None:
    base, head = sample(), sample()
    base["checks"][2] |= {"id": "harness.canary", "expected": "layers.1"}
    head["checks"][2] |= {"id": "harness.canary", "expected": "layers.2"}
    assert compare(base, head).changes == ()


@pytest.mark.parametrize(("canary", "severity"), [(None, "regression"), ({"caught": False}, "regression")])
def test_the_canary(canary: dict[str, Any] | None, severity: str) -> None:
    def edit(record: Record) -> None:
        record["canary"] = canary and record["canary"] | canary

    assert found(pair(edit)) == [("canary", severity)]


def test_a_check_that_fails_by_a_token_stands_with_it() -> None:
    base, head = sample(), sample()
    for record in (base, head):
        record["checks"].append(record["checks"][1] | {"id": f"{EMITTED}.tokens"})
    wrong_token(near_tie=False)(head)
    head["checks"][-1]["status"] = "failed"
    (change,) = compare(base, head).changes
    assert change.kind == "tokens"
    assert change.also == ("the check “emitter/iree-cpu.tokens” fails",)
    # One that is gone is another observation: nobody would look at that token again.
    del head["checks"][-1]
    assert found(compare(base, head)) == [("tokens", "regression"), ("check", "regression")]


# ---- logits and anchors


def logit_error(share: Any, prompt: str = "chat@64") -> Edit:
    def edit(record: Record) -> None:
        cell = record["tokens"][prompt]["cells"][EMITTED]
        cell["logit_error"] = share if isinstance(share, str) else share * cell["logit_limit"]
        if isinstance(share, str) or share > 1:
            classed("emitter-fault")(record)

    return edit


@pytest.mark.parametrize("share", [1.01, 400.0, "NaN", "Infinity"])
def test_logits_over_their_limit(share: Any) -> None:
    comparison = pair(logit_error(share))
    assert found(comparison) == [("logits", "regression")]
    base, head = sample(), sample()
    logit_error(share)(base)
    assert found(compare(base, head)) == [("logits", "better")]


def test_logits_that_come_nearer() -> None:
    assert found(pair(logit_error(0.7))) == []  # not twice as near: it was 0.414
    assert found(pair(logit_error(0.95))) == [("logits", "worse")]
    base, head = sample(), sample()
    for prompt in base["tokens"]:
        logit_error(0.1, prompt)(base)
        logit_error(0.3, prompt)(head)
    assert compare(base, head).changes == ()  # most of the room is left


def test_logits_that_are_no_longer_compared() -> None:
    def edit(record: Record) -> None:
        for entry in record["tokens"].values():
            entry["cells"][EMITTED] |= dict.fromkeys(("logit_error", "logit_floor", "logit_limit"))

    (change,) = pair(edit).changes
    assert (change.kind, change.severity, change.after) == ("logits", "regression", "none")


def anchor_error(size: Any, anchor: str = "layers.3.mlp.act") -> Edit:
    def edit(record: Record) -> None:
        matrix = record["anchors"][0]
        matrix["errors"][matrix["anchors"].index(anchor)][4] = size
        if isinstance(size, str) or size > 8:
            classed("emitter-fault")(record)

    return edit


@pytest.mark.parametrize("size", [8.1, 1e9, "NaN", "Infinity"])
def test_an_anchor_over_its_limit(size: Any) -> None:
    comparison = pair(anchor_error(size))
    (change,) = comparison.changes
    assert (change.kind, change.severity) == ("anchors", "regression")
    assert change.detail.startswith("the worst: layers.3.mlp.act, chat@64 at position 4")


def test_anchors_that_are_no_longer_compared() -> None:
    (change,) = pair(lambda record: record.update(anchors=[])).changes
    assert (change.kind, change.severity) == ("anchors", "regression")
    assert change.words == "the anchors of emitter/iree-cpu are no longer compared"

    def one(record: Record) -> None:
        record["anchors"][0]["errors"][7] = [None] * 10

    (change,) = pair(one).changes
    assert change.words == "k_cache.0 of emitter/iree-cpu is no longer compared in prefill"


def test_what_a_localization_compared_is_not_missed() -> None:
    """A run that is wrong is taken apart, and compares more than one that conforms."""
    comparison = compare(failing_sample(), sample())
    assert not comparison.of("regression", "worse")
    assert {c.subject for c in comparison.of("note") if c.kind == "anchors"} == {"emitter/xla-cpu", "oracle/iree-cpu"}


def test_a_check_of_anchors_that_is_gone_with_them() -> None:
    base, head = sample(), sample()
    base["checks"].append(base["checks"][2] | {"id": f"{EMITTED}.anchors"})
    head["anchors"] = []
    (change,) = compare(base, head).changes
    assert (change.kind, change.also) == ("anchors", ("the check “emitter/iree-cpu.anchors” is gone",))


# ---- floors


def floor(factor: float, index: int = 100) -> Edit:
    return lambda record: record["floors"][index].update(relative=record["floors"][index]["relative"] * factor)


@pytest.mark.parametrize(
    ("factor", "moved"), [(1.09, False), (0.92, False), (1.11, True), (0.9, True), (0.0, True), (math.inf, True)]
)
def test_floors_that_move(factor: float, moved: bool) -> None:
    assert found(pair(floor(factor))) == ([("floors", "changed")] if moved else [])
    assert FLOOR_MOVED == 0.1


def test_a_floor_that_was_nothing() -> None:
    base, head = sample(), sample()
    base["floors"][3]["relative"] = 0.0
    (diff,) = compare(base, head).floors.moved
    assert diff.ratio == math.inf


def test_floors_of_logits_move_too() -> None:
    def edit(record: Record) -> None:
        for cell in record["tokens"]["chat@64"]["cells"].values():
            if cell["logit_floor"] is not None:
                cell["logit_floor"] *= 2
                cell["logit_limit"] *= 2
                cell["logit_error"] *= 2

    (change,) = pair(edit).changes
    assert (change.kind, change.detail) == ("floors", "the most at logits of chat@64")


def test_another_machine_has_other_floors() -> None:
    def edit(record: Record) -> None:
        floor(2.0)(record)
        record["environment"]["cpu"] = "another"

    comparison = pair(edit)
    assert {c.kind: c.severity for c in comparison.changes} == {"floors": "note", "environment": "note"}


def test_a_limit_that_was_raised() -> None:
    comparison = pair(lambda record: record["floors"][3].update(limit=32.0))
    assert found(comparison) == [("floors", "worse")]
    assert (comparison.changes[0].before, comparison.changes[0].after) == ("8 floors", "32 floors")


# ---- graphs


def edited_graph(record: Record) -> None:
    """The emitter's rotation by two operations in place of one, in every graph."""
    for listing in record["listings"]:
        for scope in listing["scopes"] if listing["graph"].startswith("emitter") else []:
            if scope["anchor"].endswith("q_rope"):
                line = "%x = stablehlo.slice %l0_q_rope [0:1] : tensor<1x9x1x32xf32>"
                scope["ops"][1:2] = [
                    {"op": "slice", "type": "1x9x1x32xf32", "line": 200, "text": line},
                    {"op": "concatenate", "type": "1x9x2x32xf32", "line": 201,
                     "text": "%l0_q_rope_1 = stablehlo.concatenate %x, %x, dim = 2 : tensor<1x9x2x32xf32>"},
                ]  # fmt: skip
    for graph in record["graphs"]:
        if graph["source"] == "emitter":
            ops = {op: n for op, n in graph["ops"].items() if op != "reverse"}
            ops |= {"slice": 60, "concatenate": ops.get("concatenate", 0) + 60}
            graph |= {"ops": ops, "op_total": sum(ops.values()), "op_kinds": len(ops), "digest": "e" * 64}


def test_a_graph_that_changed() -> None:
    comparison = pair(edited_graph)
    (change,) = comparison.changes
    assert (change.kind, change.severity, change.subject) == ("graph", "changed", "emitter")
    assert change.detail.startswith("layers.*.self_attn.q_rope; ")
    decode = next(graph for graph in comparison.graphs.changed if graph.id == "emitter/decode/logits")
    assert decode.ops == {"reverse": (60, 0), "slice": (0, 60), "concatenate": (0, 60)}
    assert decode.what == "changed in 1 scope"
    assert decode.text is not None
    (scope,) = decode.text.scopes
    assert (scope.scope, scope.layers, scope.gone, scope.new) == ("layers.*.self_attn.q_rope", tuple(range(30)), 1, 2)
    assert [row.mark for row in scope.rows] == ["same", "gone", "new", "new", *["same"] * 4]


@pytest.mark.parametrize("key", ["weights", "flops", "bytes"])
def test_a_figure_of_a_graph(key: str) -> None:
    comparison = pair(lambda record: record["graphs"][0].update({key: 5}))
    (change,) = comparison.changes
    assert (change.subject, change.words) == ("oracle", "the oracle's graph changed")


def test_an_older_record_has_no_flops_and_no_digest() -> None:
    base = sample()
    for graph in base["graphs"]:
        graph |= {"flops": None, "bytes": None, "digest": ""}
    base |= {"listings": [], "block": None}
    base["speed"] |= {"reason": "the record is of hloracle-report/2", "contenders": []}
    comparison = compare(base, sample())
    assert comparison.changes == ()
    assert comparison.unjudged == ("speed: the base has no times (the record is of hloracle-report/2)",)
    assert comparison.graphs.equal_texts == 0


def test_flops_that_are_no_number() -> None:
    base, head = sample(), sample()
    base["graphs"][0]["flops"] = head["graphs"][0]["flops"] = "NaN"
    assert compare(base, head).changes == ()
    head["graphs"][0]["flops"] = "Infinity"
    assert found(compare(base, head)) == [("graph", "changed")]


def test_a_text_that_differs_in_what_is_not_listed() -> None:
    comparison = pair(lambda record: record["graphs"][1].update(digest="f" * 64))
    (change,) = comparison.changes
    assert change.words == "the emitted graph has another text, in what is not listed"
    comparison = pair(lambda record: record["graphs"][2].update(digest="f" * 64))
    assert comparison.changes[0].words == "the emitted graph has another text; its operations are not listed"


def test_graphs_that_come_and_go() -> None:
    def drop(record: Record) -> None:
        record["graphs"] = [graph for graph in record["graphs"] if graph["id"] != "oracle/prefill-32/logits"]

    base, head = _records(drop)
    assert found(compare(base, head)) == [("graph", "regression")]
    assert found(compare(head, base)) == [("graph", "changed")]
    head["settings"]["buckets"] = [64, 128, 256]
    comparison = compare(base, head)
    assert found(comparison) == [("settings", "changed")]
    assert [c.kind for c in comparison.of("note")] == ["graph"]


# ---- a graph's text


def listing(text: str, layers: int = 0) -> Record:
    """Scopes as `anchor:` lines, each followed by its operations."""
    scopes: list[Record] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.endswith(":"):
            anchor = line[:-1]
            numbers = list(range(layers)) if anchor.startswith("layers.") else []
            scopes.append({"anchor": anchor, "layers": numbers, "flops": 0, "bytes": 0, "ops": []})
        else:
            op = line.split(" = ")[1].split(" ")[0]
            scopes[-1]["ops"].append({"op": op, "type": "4xf32", "line": None, "text": line})
    return {"graph": "g", "name": "g", "scopes": scopes}


BEFORE = """
embed_tokens:
  %0 = dynamic_slice %arg0, %arg9 : tensor<4xf32>
layers.0.input_layernorm:
  %1 = multiply %0, %0 : tensor<4xf32>
  %c = constant dense<0.0> : tensor<f32>
  %2 = reduce(%1 init: %c) : tensor<f32>
  %3 = rsqrt %2 : tensor<f32>
  %4 = multiply %0, %3 : tensor<4xf32>
layers.0.q_proj:
  %5 = dot_general %4, %arg1 : tensor<4xf32>
layers.0.k_proj:
  %6 = dot_general %4, %arg2 : tensor<4xf32>
layers.0:
  %7 = add %5, %6 : tensor<4xf32>
norm:
  %99 = multiply %97, %97 : tensor<4xf32>
"""


def text_diff(*edits: tuple[str, str], before: str = BEFORE) -> Any:
    after = before
    for old, new in edits:
        assert old in after
        after = after.replace(old, new)
    return compare_texts(listing(before, 3), listing(after, 3))


def test_a_text_against_itself() -> None:
    diff = text_diff()
    assert (diff.scopes, diff.renamed, diff.lines) == ((), 0, 10)


def test_a_renumbering_is_no_change() -> None:
    after = BEFORE
    for n in reversed(range(1, 100)):
        after = after.replace(f"%{n} ", f"%{n + 7} ").replace(f"%{n},", f"%{n + 7},").replace(f"%{n})", f"%{n + 7})")
    diff = compare_texts(listing(BEFORE, 3), listing(after.replace("%c ", "%c_3 ").replace("%c)", "%c_3)"), 3))
    assert diff.scopes == ()
    assert diff.renamed == 9


def test_an_inserted_operation_renumbers_and_shows_alone() -> None:
    diff = text_diff(
        ("%4 = multiply %0, %3", "%4 = sqrt %3 : tensor<f32>\n%5 = multiply %0, %4"),
        ("%7 = add %5, %6", "%8 = add %6, %7"),
        ("%6 = dot_general %4", "%7 = dot_general %5"),
        ("%5 = dot_general %4", "%6 = dot_general %5"),
        ("%99 = multiply %97, %97", "%102 = multiply %100, %100"),
    )
    (scope,) = diff.scopes
    assert scope.scope == "layers.*.input_layernorm"
    changed = [(row.mark, row.text.split(" : ")[0]) for row in scope.rows if row.mark != "same"]
    # What reads the new value reads another one than before.
    assert changed == [
        ("gone", "%4 = multiply %0, %3"), ("new", "%4 = sqrt %3"), ("new", "%5 = multiply %0, %4"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("edits", "scopes"),
    [
        (
            [("%4 = multiply %0, %3", "%4 = multiply %1, %3")],
            ["layers.*.input_layernorm"],
        ),  # another value of the scope
        ([("%6 = dot_general %4", "%6 = dot_general %0")], ["layers.*.k_proj"]),  # another scope's value
        ([("%7 = add %5, %6", "%7 = add %6, %5")], ["layers.*"]),  # two values exchanged
        ([("dense<0.0>", "dense<1.0>")], ["layers.*.input_layernorm"]),  # a constant
        ([("rsqrt", "sqrt")], ["layers.*.input_layernorm"]),
        ([("%99 = multiply %97, %97", "%99 = multiply %97, %96")], ["norm"]),  # two unlisted values for one
    ],
)
def test_what_is_read_counts(edits: list[tuple[str, str]], scopes: list[str]) -> None:
    assert [scope.scope for scope in text_diff(*edits).scopes] == scopes


def test_weights_that_are_exchanged() -> None:
    diff = text_diff(("%arg1", "%swap"), ("%arg2", "%arg1"), ("%swap", "%arg2"))
    assert [scope.scope for scope in diff.scopes] == ["layers.*.q_proj", "layers.*.k_proj"]
    assert [row.mark for row in diff.scopes[0].rows] == ["gone", "new"]


def test_a_value_that_has_taken_anothers_name() -> None:
    before = "a:\n%1 = add %arg0, %arg0\n%2 = add %arg1, %arg1\n%3 = exponential %1"
    after = "a:\n%2 = add %arg0, %arg0\n%1 = add %arg1, %arg1\n%3 = exponential %1"
    (scope,) = compare_texts(listing(before), listing(after)).scopes
    assert [row.mark for row in scope.rows] == ["same", "same", "other"]


def test_a_constant_is_its_value() -> None:
    before = "a:\n%c = constant 1\n%c1 = constant 1\n%1 = add %arg0, %c\n%2 = add %1, %c1"
    after = "a:\n%c = constant 1\n%c1 = constant 1\n%1 = add %arg0, %c1\n%2 = add %1, %c"
    assert compare_texts(listing(before), listing(after)).scopes == ()


def test_a_constant_that_changed_is_shown_once() -> None:
    (scope,) = text_diff(("dense<0.0>", "dense<1.0>")).scopes
    assert [row.mark for row in scope.rows] == ["same", "gone", "new", "same", "same", "same"]
    before = "a:\n%c = constant 1\n%c1 = constant 2\n%1 = add %c, %c1\n%2 = add %1, %c1"
    (scope,) = compare_texts(listing(before), listing(before.replace("%1, %c1", "%1, %c"))).scopes
    assert [row.text for row in scope.rows if row.mark == "new"] == ["%2 = add %1, %c"]


def test_what_is_put_in_place_of_another_is_shown_once() -> None:
    diff = text_diff(("%1 = multiply %0, %0", "%1 = power %0, %arg9"))
    (scope,) = diff.scopes
    assert [row.mark for row in scope.rows] == ["gone", "new", "same", "same", "same", "same"]


def test_one_layer_that_is_no_longer_like_the_others() -> None:
    before, after = listing(BEFORE, 3), listing(BEFORE, 3)
    scope = next(s for s in after["scopes"] if s["anchor"] == "layers.0.input_layernorm")
    scope["layers"] = [0, 2]
    other = copy.deepcopy(scope) | {"anchor": "layers.1.input_layernorm", "layers": [1]}
    other["ops"][3] = {"op": "sqrt", "type": "f32", "line": 9, "text": "%33 = sqrt %2 : tensor<f32>"}
    other["ops"][4]["text"] = other["ops"][4]["text"].replace("%3", "%33")
    after["scopes"].insert(2, other)
    (diff,) = compare_texts(before, after).scopes
    assert (diff.scope, diff.layers, diff.gone, diff.new) == ("layers.*.input_layernorm", (1,), 1, 1)


def test_scopes_that_come_and_go() -> None:
    head = BEFORE.replace("layers.0.q_proj:\n", "layers.0.q_proj_new:\n")
    diff = compare_texts(listing(BEFORE, 3), listing(head, 3))
    assert {(s.scope, s.gone, s.new) for s in diff.scopes} == {
        ("layers.*.q_proj", 1, 0), ("layers.*.q_proj_new", 0, 1), ("layers.*", 1, 1),
    }  # fmt: skip


def test_long_texts() -> None:
    def of(line: Callable[[int], str]) -> Record:
        return listing("a:\n" + "\n".join(f"%{n} = {line(n)} : tensor<{n % 3}xf32>" for n in range(1, 4000)))

    many = of(lambda n: f"add %{n - 1}, %arg0")
    (scope,) = compare_texts(many, of(lambda n: f"{'subtract' if n == 2000 else 'add'} %{n - 1}, %arg0")).scopes
    assert (scope.gone, scope.new) == (1, 1)
    assert [row.skipped for row in scope.rows if row.mark == "…"] == [1996, 1996]
    (scope,) = compare_texts(many, of(lambda n: f"{'negate' if n % 50 == 0 else 'add'} %{n - 1}, %arg0")).scopes
    assert (scope.gone, scope.new) == (79, 79)
    (scope,) = compare_texts(many, of(lambda n: f"op{n * 7919 % 5003} %arg0")).scopes
    assert scope.reason == "too much differs to be compared line by line: 3,999 and 3,999 operations"


@pytest.mark.parametrize("seed", range(60))
def test_lines_are_aligned_as_well_as_can_be(seed: int) -> None:
    """The longest common subsequence, by the plain recursion over all prefixes."""
    rng = random.Random(seed)
    a, b = ([rng.choice("abc") for _ in range(rng.randrange(12))] for _ in range(2))
    longest = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            longest[i + 1][j + 1] = longest[i][j] + 1 if x == y else max(longest[i][j + 1], longest[i + 1][j])
    before, after = (listing("a:\n" + "\n".join(f"%{i} = {op} %arg0" for i, op in enumerate(ops))) for ops in (a, b))
    diff = compare_texts(before, after)
    gone, new = ([sum(getattr(s, side) for s in diff.scopes)] for side in ("gone", "new"))
    assert (gone, new) == ([len(a) - longest[-1][-1]], [len(b) - longest[-1][-1]])


@pytest.mark.parametrize(
    "text", ["", "%", "% = %", "100 %", "no names at all", '%1:2 = x.y(%a#1) {z = "%q"}', "a = %b = c"]
)
def test_odd_lines(text: str) -> None:
    one = listing("a:\n%0 = add %arg0")
    other = copy.deepcopy(one)
    other["scopes"][0]["ops"].append({"op": "x", "type": "", "line": None, "text": text})
    other["scopes"].append({"anchor": "layers." + "9" * 5000, "layers": [0], "flops": 0, "bytes": 0, "ops": []})
    assert compare_texts(other, other).scopes == ()
    assert len(compare_texts(one, other).scopes) == 1
    assert len(compare_texts(other, one).scopes) == 1


# ---- speed


_sample = functools.cache(sample)


def timed(ours: list[float], *peers: list[float]) -> Record:
    record = _sample()
    contenders = record["speed"]["contenders"][: 1 + len(peers)]
    rows = zip(contenders, (ours, *peers), strict=True)
    return record | {"speed": record["speed"] | {"contenders": [c | {"ms_per_token": ms} for c, ms in rows]}}


def noisy(rng: random.Random, ours: float, rounds: int = 5) -> Record:
    """A run on a machine that is up to a quarter faster or slower as a whole, whose rounds drift together by some percent
    and scatter by 1.5 % each, twice what a quiet machine's do, and in whose process each contender has its own luck of 1 %."""
    whole = rng.uniform(0.75, 1.25)
    lucks = [rng.gauss(1, 0.01) for _ in range(3)]
    times: list[list[float]] = [[], [], []]
    for _ in range(rounds):
        drift = whole * rng.uniform(0.95, 1.05)
        for row, ms, luck in zip(times, (ours, 24.2, 54.8), lucks, strict=True):
            row.append(ms * luck * drift * rng.gauss(1, 0.015))
    return timed(*times)


def test_false_alarms_are_rarer_than_one_in_a_hundred() -> None:
    outcomes = [compare_speed(noisy(rng := random.Random(seed), 23.2), noisy(rng, 23.2)).outcome for seed in range(600)]
    assert outcomes.count("slower") < 6
    assert outcomes.count("faster") < 6
    assert set(outcomes) <= {"slower", "faster", "same"}


def test_fifteen_percent_are_noticed() -> None:
    outcomes = [
        compare_speed(noisy(rng := random.Random(seed), 23.2), noisy(rng, 23.2 * 1.15)).outcome for seed in range(200)
    ]
    assert outcomes.count("slower") >= 198


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
    comparison = pair(slower(0.8))
    (change,) = comparison.changes
    assert (change.severity, change.words) == ("better", "llama decodes 25 % faster")


def _environment(key: str, value: Any) -> Edit:
    return lambda record: record["environment"].update({key: value})


def _packages(**versions: str) -> Edit:
    return lambda record: record["environment"]["packages"].update(versions)


def _setting(key: str, value: Any) -> Edit:
    return lambda record: record["settings"].update({key: value})


def _rounds(rounds: int) -> Edit:
    def edit(record: Record) -> None:
        for contender in record["speed"]["contenders"]:
            contender["ms_per_token"] = contender["ms_per_token"][:rounds]

    return edit


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (_environment("cpu", "another"), "another processor (AMD EPYC 9554 64-Core Processor, then another)"),
        (_environment("cores", 4), "another number of cores (2, then 4)"),
        (_setting("threads", 1), "another number of threads (2, then 1)"),
        (_setting("capacity", 512), "another number of cache slots (256, then 512)"),
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
            _packages(jax="0.11.0", torch="2.14.0"),
            "no peer is the same in both runs (oracle on XLA: jax is 0.11.0, was 0.10.2; "
            "Hugging Face float32: torch is 2.14.0, was 2.13.0)",
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
    assert f"speed: {reason}" in comparison.unjudged
    assert not any(change.kind == "speed" and change.severity == "regression" for change in comparison.changes)


def test_another_peer_is_judged_by() -> None:
    comparison = pair(both(slower(), _packages(jaxlib="0.11.0")))
    assert [peer.reason for peer in comparison.speed.peers] == ["jaxlib is 0.11.0, was 0.10.2", ""]
    assert comparison.speed.outcome == "slower"
    # A reference that was edited is another peer.
    comparison = pair(both(slower(), lambda r: r["graphs"][0].update(digest="0" * 64)))
    assert [peer.reason for peer in comparison.speed.peers] == ["its graph changed too", ""]
    assert comparison.changes[0].before.endswith("of Hugging Face float32")


def test_what_was_not_judged_is_not_called_safe_in_silence() -> None:
    comparison = pair(both(edited_graph, _environment("cpu", "another")))
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
        record["timings"][4]["reused"] = True

    comparison = pair(reused)
    assert comparison.changes == ()
    assert comparison.unjudged == ("Peak of the whole run: the runs took other stages from the cache",)


def test_memory_that_was_not_measured() -> None:
    comparison = pair(lambda r: r["speed"]["contenders"][0].update(resident_bytes=None))
    assert comparison.changes == ()
    assert [entry.id for entry in comparison.memory] == ["peak"]
    assert [m.reason for m in compare(empty_sample(), empty_sample()).memory] == ["not measured"]


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
        (_setting("device", "cuda"), "worse", True),
        (_setting("precision", "bf16"), "worse", True),
        (_setting("capacity", 512), "worse", True),
        (_setting("tokens", 8), "regression", True),
        (_setting("tokens", 96), "changed", True),
        (_setting("buckets", [32, 64, 128, 256, 512]), "changed", False),
        (_setting("threads", 4), "note", False),
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
    comparison = pair(_environment("date", "2024-01-01T00:00:00"))
    assert comparison.caveats == ("The base's run is the younger one. Are the two records the right way round?",)


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
    assert capital("chat@64 in") == "chat@64 in"


def test_all_prompts_are_there_once() -> None:
    base, head = sample(), sample()
    del base["prompts"][2]
    ids = [prompt.id for prompt in compare_prompts(base, head)]
    assert ids == [prompt["id"] for prompt in head["prompts"]]
    assert len(compare_graphs(base, head).changed) == 0
    assert TOKENS == 48
