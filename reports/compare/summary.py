"""A comparison as a comment on a pull request: GitHub-flavoured Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from hloracle.core.record import Record
from hloracle.reports import text
from hloracle.reports.compare.change import Change, capital
from hloracle.reports.compare.comparison import TITLES, Comparison
from hloracle.reports.compare.texts import ScopeDiff
from hloracle.reports.facts import VERDICTS
from hloracle.reports.summary import KIND_MARKS, code, limited, prose, report_at

_limited = partial(limited, where="on the page")

MARKS = {"regression": "❌", "worse": "⚠️", "changed": "🔷", "better": "✅", "note": "⚙️"}
_LINES = 40  # of the graph's text
_FENCE = "```"


def render(comparison: Comparison, link: str = "") -> str:
    """The comparison in at most summary.LIMIT characters, whatever the records hold.

    `link` leads to the whole page. Raises InputError unless it is a web address.
    """
    c = comparison
    lines = [
        *(f"> ⚠️ **{prose(line, 400)}**\n" for line in c.caveats),
        f"## {KIND_MARKS[TITLES[c.title][0]]} hloracle: {c.title}",
        "",
        f"{prose(c.sentence[:1].upper() + c.sentence[1:], 1_200)}.",
        "",
        *_sides(c),
        *_changes(c.of("regression", "worse", "changed", "better")),
        *(f"⏭️ Not judged: {prose(line, 200)}  " for line in c.unjudged),
        *([""] if c.unjudged else []),
        *_text(c),
        *_notes(c.of("note")),
        *report_at(link),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _sides(c: Comparison) -> Iterable[str]:
    yield "| | verdict | commit | model |"
    yield "| :-- | :-- | :-- | :-- |"
    for who, record in (("**head**", c.head), ("base", c.base)):
        verdict = VERDICTS[record["verdict"]["class"]]
        where = f", {verdict.at} {code(a, 120)}" if (a := record["verdict"]["anchor"]) is not None else ""
        commit = record["environment"]["commit"]
        shown = code(commit, 13) if commit is not None else "not known"
        yield f"| {who} | {KIND_MARKS[verdict.kind]} {verdict.title}{where} | {shown} | {_model(record)} |"
    yield ""


def _model(record: Record) -> str:
    settings = record["settings"]
    return f"{prose(record['model']['name'], 60)}, {code(settings['device'], 20)} {code(settings['precision'], 20)}"


def _changes(changes: Sequence[Change]) -> Iterable[str]:
    if not changes:
        return
    yield "| | change | base | head |"
    yield "| :-- | :-- | :-- | :-- |"
    rows = (
        f"| {MARKS[c.severity]} {c.severity} | {_words(c)} | {prose(c.before, 160) or '–'} | {prose(c.after, 160) or '–'} |"
        for c in changes
    )
    yield from _limited(rows, 24_000, "more changes", row=True)
    yield ""


def _words(change: Change) -> str:
    words = prose(capital(change.words), 300)
    words = f"**{words}**" if change.severity == "regression" else words
    more = "; ".join([*([change.detail] if change.detail else []), *(f"also: {line}" for line in change.also)])
    return f"{words}<br><sub>{prose(more, 300)}</sub>" if more else words


def _text(c: Comparison) -> Iterable[str]:
    """The first scope whose operations changed, as a diff."""
    found = next(((g.text, g.text.scopes[0]) for g in c.graphs.changed if g.text and g.text.scopes), None)
    if found is None or not (rows := list(_diff(found[1]))):
        return
    graph, scope = found
    more = f", and {text.plural(len(graph.scopes) - 1, 'more scope')}" if len(graph.scopes) > 1 else ""
    where = code(scope.scope or "outside of every scope", 120)
    yield f"<details><summary>The graph's text: {where} of {code(graph.graph, 80)}{more}</summary>"
    yield ""
    yield f"{_FENCE}diff"
    yield from rows[:_LINES]
    if len(rows) > _LINES:
        yield f"  and {text.plural(len(rows) - _LINES, 'more line')}"
    yield _FENCE
    yield ""
    yield "</details>"
    yield ""


def _diff(scope: ScopeDiff) -> Iterable[str]:
    signs = {"gone": "-", "new": "+", "same": " ", "other": "!"}
    for row in scope.rows:
        if row.mark == "…":
            yield f"  … {text.plural(row.skipped, 'equal operation')}"
        else:
            # Nothing in a fence is Markdown, apart from the fence itself.
            remark = "  (reads other values by the same names)" if row.mark == "other" else ""
            yield f"{signs[row.mark]} {text.one_line(row.text, 240).replace('`', 'ˋ')}{remark}"


def _notes(notes: Sequence[Change]) -> Iterable[str]:
    if notes:
        yield "<details><summary>The environment differs</summary>"
        yield ""
        lines = (
            f"- {prose(c.words, 160)}: {prose(c.before, 120) or '–'}, then {prose(c.after, 120) or '–'}" for c in notes
        )
        yield from _limited(lines, 6_000, "more differences")
        yield ""
        yield "</details>"
        yield ""
