"""The page of a comparison: base against head, one file that needs nothing else.

Strings of the records reach it as they reach the report: see html.py. It has no script.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from hloracle.core.record import Record
from hloracle.reports import text
from hloracle.reports.compare.change import SEVERITIES, Change, capital
from hloracle.reports.compare.comparison import TITLES, Comparison
from hloracle.reports.compare.families import FamilyDiff
from hloracle.reports.compare.graphs import FIGURES, Figure, GraphDiff
from hloracle.reports.compare.speed import APART, ratios
from hloracle.reports.compare.texts import Row, ScopeDiff
from hloracle.reports.compare.tokens import PromptDiff
from hloracle.reports.compare.values import FLOOR_MOVED
from hloracle.reports.facts import VERDICTS, token_totals, worst_share
from hloracle.reports.page.base import draw

ROWS = 25  # of the table of changes that are not folded
STEPS = 24  # of a prompt that are shown
SCOPES = 60  # of a graph's text that are shown
LINES = 400  # of a scope
ROW = 200  # characters that a row takes besides its line
TEXTS = 600_000  # characters of all lines: browsers, and those who are sent it, want a page of at most 2 MB
FLOORS = 30  # that moved

# Severity -> the shape and the colour of its mark; the word stands beside it.
MARKS = {
    "regression": ("fail", "fail"),
    "worse": ("error", "near"),
    "changed": ("delta", "delta"),
    "better": ("pass", "pass"),
    "note": ("skip", "skip"),
}
# Kind of change -> the part of the page that shows it.
_PARTS = {
    "tokens": ("tokens", "prompt", "reference", "configuration"),
    "checks": ("check", "canary", "compared"),
    "families": ("family",),
    "margins": ("logits", "anchors", "floors"),
    "graphs": ("graph",),
    "speed": ("speed", "memory", "program"),
    "runs": ("verdict", "mutant", "model", "settings", "environment"),
}


def render(comparison: Comparison) -> str:
    """The page of a comparison. Equal comparisons give equal pages."""
    found = comparison
    changes = [_change(change) for change in found.changes if change.severity != "note"]
    context = {
        "c": found,
        "kind": TITLES[found.title],
        "marks": MARKS,
        "meanings": SEVERITIES,
        "used": [severity for severity in SEVERITIES if any(row["severity"] == severity for row in changes)],
        "sides": [(who, VERDICTS[r["verdict"]["class"]], r) for who, r in (("Head", found.head), ("Base", found.base))],
        "facts": list(_facts(found)),
        "changes": [changes[:ROWS], changes[ROWS:]],
        "notes": [_change(change) for change in found.of("note")],
        "prompts": [(prompt, _worst(prompt)) for prompt in found.prompts if prompt.tokens],
        "steps": STEPS,
        "by_agreement": [prompt for prompt in found.prompts if prompt.state.startswith("another")],
        "families": [_family(diff) for diff in found.families],
        "loud": [check for check in found.checks if not check.quiet],
        "quiet": [check for check in found.checks if check.quiet],
        "margins": [(title, rows) for title, rows in (("Logits", found.logits), ("Anchors", found.anchors)) if rows],
        "floors": found.floors.moved[:FLOORS],
        "figures": _figures(found),
        "graphs": _graph_groups(found.graphs.changed),
        "texts": _texts(found),
        "ratios": ratios,
        "pairs": [("Settings", "Setting", found.settings), ("Environment", "Of", found.environment)],
        "rule": {"apart": APART, "floor": FLOOR_MOVED},
    }
    return draw("diff.html.j2", context, styles=["diff.css"])


def _change(change: Change) -> dict[str, Any]:
    href = next((f"#{part}" for part, kinds in _PARTS.items() if change.kind in kinds), "#main")
    href = "#runs" if change.subject == "families" else href  # one run is no suite: nothing to hold together
    return {**vars(change), "words": capital(change.words), "href": href}


def _facts(c: Comparison) -> Iterator[tuple[str, str, str]]:
    """What a run comes to in a few numbers: their name, the base's and the head's."""
    yield "Tokens equal", _tokens_equal(c.base), _tokens_equal(c.head)
    yield "Checks passed", _checks_passed(c.base), _checks_passed(c.head)
    if c.families:
        yield "Models that pass", _models_passed(c.base), _models_passed(c.head)


def _tokens_equal(record: Record) -> str:
    tokens = token_totals(record)
    return f"{text.count(tokens['agreed'])} of {text.count(tokens['total'])}" if tokens["total"] else "none compared"


def _checks_passed(record: Record) -> str:
    statuses = [check["status"] for check in record["checks"]]
    return f"{statuses.count('passed')} of {len(statuses)}" if statuses else "none ran"


def _models_passed(record: Record) -> str:
    rows = record["families"]
    return f"{sum(row['passed'] for row in rows)} of {len(rows)}"


# ---- tokens and numbers


def _worst(prompt: PromptDiff) -> str:
    return min((diff.severity for diff in prompt.tokens), key=list(SEVERITIES).index)


def _family(diff: FamilyDiff) -> dict[str, Any]:
    sides = [row and {"row": row, "verdict": VERDICTS[row["verdict"]], "share": worst_share(row)} for row in diff.rows]
    return {"diff": diff, "sides": sides}


# ---- graphs


def _figures(c: Comparison) -> dict[str, Any]:
    """Each graph that changed, with the figures that did in one of them."""
    before, after = ({graph["id"]: graph for graph in record["graphs"]} for record in (c.base, c.head))
    keys: list[Figure] = [key for key in FIGURES if any(key in graph.figures for graph in c.graphs.changed)]
    rows = []
    for graph in c.graphs.changed:
        pairs = [(before[graph.id][key], after[graph.id][key]) for key in keys]
        cells = [_figure(key, *pair, key in graph.figures) for key, pair in zip(keys, pairs, strict=True)]
        rows.append({"graph": graph, "cells": cells})
    return {"names": [FIGURES[key] for key in keys], "rows": rows}


def _figure(key: str, before: text.Number, after: text.Number, differs: bool) -> dict[str, Any]:
    shown = [text.size(int(n)) if key == "text_bytes" and n is not None else text.figure(n) for n in (before, after)]
    if differs and shown[0] == shown[1]:  # in three digits: then in all
        shown = [f"{text.value(n):,.0f}" for n in (before, after)]
    return {"differs": differs, "before": shown[0], "after": shown[1]}


def _graph_groups(changed: Sequence[GraphDiff]) -> list[dict[str, Any]]:
    """Graphs whose operations changed alike, with the kinds that did, those that changed most first."""
    groups: dict[tuple[tuple[str, int, int], ...], list[str]] = {}
    for graph in changed:
        rows = sorted(((op, *pair) for op, pair in graph.ops.items()), key=lambda row: (-abs(row[2] - row[1]), row[0]))
        groups.setdefault(tuple(rows), []).append(graph.id)
    return [{"ids": ids, "ops": ops} for ops, ids in groups.items() if ops]


def _texts(c: Comparison) -> list[dict[str, Any]]:
    texts = []
    room = TEXTS
    # Those that show something first; the first of them is open.
    for graph in sorted(c.graphs.changed, key=lambda graph: not (graph.text and graph.text.scopes)):
        if graph.text is None:
            continue
        scopes = []
        for scope in graph.text.scopes[:SCOPES]:
            sizes = list(itertools.accumulate(len(escape(_short(row.text))) + ROW for row in scope.rows[:LINES]))
            shown = sum(size <= room for size in sizes)
            room -= sizes[shown - 1] if shown else 0
            scopes.append(_scope(scope, shown))
        more = len(graph.text.scopes) - len(scopes)
        texts.append({"graph": graph, "text": graph.text, "scopes": scopes, "more": more})
    return texts


def _scope(scope: ScopeDiff, shown: int) -> dict[str, Any]:
    rows = _marked(scope.rows[:shown])
    return {"scope": scope, "layers": layers(scope.layers), "rows": rows, "more": len(scope.rows) - len(rows)}


def layers(numbers: Sequence[int]) -> str:
    """Layers in words: `layer 3`, `layers 0–2, 5`."""
    if not numbers:
        return ""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    shown = [f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    more = f", and {text.count(len(shown) - 8)} more" if len(shown) > 8 else ""
    return f"{'layer' if len(numbers) == 1 else 'layers'} {', '.join(shown[:8])}{more}"


def _marked(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows with what differs within a line set apart, where as many lines went as came."""
    shown = [{"row": row, "parts": (_short(row.text), "", "")} for row in rows]
    runs = [(mark, len(list(run))) for mark, run in itertools.groupby(rows, key=lambda row: row.mark)]
    at = 0
    for (mark, size), following in itertools.pairwise([*runs, ("", 0)]):
        if mark == "gone" and following == ("new", size):
            for i in range(at, at + size):
                pair = _apart(_short(rows[i].text), _short(rows[i + size].text))
                shown[i]["parts"], shown[i + size]["parts"] = pair
        at += size
    return shown


def _short(line: str) -> str:
    return text.one_line(line, 400)


Parts = tuple[str, str, str]


def _apart(a: str, b: str) -> tuple[Parts, Parts]:
    """Two lines in three parts each: the same beginning, what differs, the same end."""
    begin = _common(a, b)
    end = _common(a[begin:][::-1], b[begin:][::-1])
    # Whole words: half a name that is marked is read as another name.
    while begin and (a[begin - 1].isalnum() or a[begin - 1] in "_.%"):
        begin -= 1
    while end and (a[-end].isalnum() or a[-end] in "_."):
        end -= 1
    return _cut(a, begin, end), _cut(b, begin, end)


def _common(a: str, b: str) -> int:
    """How long the two strings' common beginning is."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _cut(line: str, begin: int, end: int) -> Parts:
    return line[:begin], line[begin : len(line) - end], line[len(line) - end :]
