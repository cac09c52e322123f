"""The history page: one file that needs nothing else, drawn from the lines of the store.

Runs of one model on one device in one precision make a series. A series' drawings share one axis, its runs from the
oldest to the newest, a column each. Runs with a deliberate fault are no part of a series.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hloracle.reports import text
from hloracle.reports.facts import SOURCES, VERDICTS, badness
from hloracle.reports.history.charts import Columns, changed, drawings, graph_of, lanes
from hloracle.reports.history.store import SCHEMA, Row
from hloracle.reports.page.axes import bins_of, every
from hloracle.reports.page.base import draw

DRAWN = 200  # columns of a drawing: more runs share columns
LEAST = 12  # columns, so that three runs are not drawn as planks
SERIES = 24  # that are drawn, the latest first
ROWS = 600  # of all tables of numbers together
TIPS = 1200  # columns of all series together that say what they hold
EVENTS = 40  # of a series that are listed
MUTANTS = 100  # runs with a deliberate fault that are listed
APART, APART_ON_A_PHONE = 4.5, 20  # percent of a drawing's width that two numbers above it need
FEW = 8  # changes of one kind: of more, those to something that was there before are left out

_COMMIT = re.compile(r"[0-9a-f]{8,64}(\+?)")


def render(rows: Sequence[Row]) -> str:
    """The page of a history's rows, which are in order. Equal rows give equal pages."""
    together: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["mutant"] is None:
            together.setdefault(_series_of(row), []).append(row)
    # The sort is stable, so that those of one moment stay in the order of the store.
    ordered = sorted(together.values(), key=lambda runs: str(runs[-1]["date"]), reverse=True)
    drawn = ordered[:SERIES]
    most = max(ROWS // max(len(drawn), 1), 10)
    tips = TIPS // max(len(drawn), 1)
    mutants = [row for row in reversed(rows) if row["mutant"] is not None]
    context = {
        "schema": SCHEMA,
        "count": len(rows),
        "dates": [_day(rows[0]), _day(rows[-1])] if rows else [],
        "series": [_series(i, runs, most, tips) for i, runs in enumerate(drawn)],
        "left_out": len(ordered) - len(drawn),
        "mutants": [_mutant(row) for row in mutants[:MUTANTS]],
        "mutants_left_out": max(len(mutants) - MUTANTS, 0),
    }
    return draw("history.html.j2", context, styles=["history.css"])


def _series_of(row: Row) -> tuple[str, ...]:
    return row["model"]["name"], row["settings"]["device"], row["settings"]["precision"], row["judged"]


def short(commit: str | None) -> str:
    """A commit as people name it: seven digits, and `+` where the tree had changes."""
    if commit is None:
        return "no commit"
    found = _COMMIT.fullmatch(commit)
    return commit[:7] + found[1] if found else text.one_line(commit, 12)


def _day(row: Row) -> str:
    return str(row["date"])[: len("2025-11-21")]


def _series(index: int, runs: list[Row], most: int, tips: int) -> dict[str, Any]:
    bins = bins_of(len(runs), DRAWN)
    columns = Columns(runs, bins, max(len(bins), LEAST))
    processors = _letters(row["cpu"] for row in runs)
    events, notes = _events(runs)
    marks = _marks(events, columns)
    contenders, sources = _contenders(runs), _sources(runs)
    model, device, precision, judged = _series_of(runs[-1])
    return {
        "id": f"series-{index}",
        "model": model,
        "device": device,
        "precision": precision,
        "file": judged == "file",
        "count": len(runs),
        "passed": sum(row["verdict"]["passed"] for row in runs),
        "newest": _newest(runs),
        "span": columns.span,
        "binned": max(map(len, bins)) if len(runs) > DRAWN else 0,
        "lanes": lanes(columns, processors),
        "processors": [{"letter": letter, "cpu": cpu} for cpu, letter in processors.items()],
        "marks": marks,
        "drawings": drawings(columns, processors),
        "labels": _labels(columns),
        "tips": [_tip([runs[i] for i in bin_]) for bin_ in bins] if len(bins) <= tips else [],
        "events": events[::-1][:EVENTS],
        "events_left_out": max(len(events) - EVENTS, 0),
        "notes": notes,
        "contenders": [{"title": title} for title in contenders.values()],
        "sources": sources,
        "rows": [_numbers(row, list(contenders), sources, processors) for row in runs[::-1][:most]],
        "rows_left_out": max(len(runs) - most, 0),
    }


def _sources(runs: Sequence[Row]) -> list[str]:
    return [source for source in SOURCES if any(graph_of(row, source) for row in runs)]


def _letters(cpus: Iterable[str]) -> dict[str, str]:
    """A letter for each processor, in the order in which they came."""
    names = dict.fromkeys(cpus)
    return {name: chr(ord("A") + i) if i < 26 else f"#{i + 1}" for i, name in enumerate(names)}


def _contenders(runs: Sequence[Row]) -> dict[str, str]:
    """The contenders of a speed comparison, those of the newest run first: id -> title."""
    found = {c["id"]: c["title"] for row in reversed(runs) for c in row["speed"]["contenders"]}
    return dict(itertools.islice(found.items(), 4))


def _labels(columns: Columns) -> list[dict[str, Any]]:
    """The names of some columns, counted from the newest; of every second one, `alternate`, there is no room on a phone."""
    n = len(columns.bins)
    labels = []
    month = _day(columns.runs[0])[:4] != _day(columns.runs[-1])[:4]
    for k, back in enumerate(every(n, max(1, 8 * n // columns.span))):
        i = n - 1 - back
        row = columns.runs[columns.bins[i][-1]]
        last = i + 1 == columns.span  # its name would stand out over the page's edge
        place = {"x": "100", "anchor": "end"} if last else {"x": columns.middle(i), "anchor": "middle"}
        when = _day(row)[:7] if month else _day(row)[5:]
        labels.append({**place, "commit": short(row["commit"]), "when": when, "alternate": k % 2 == 1})
    return labels


# ---- the newest run, in words


def _newest(runs: Sequence[Row]) -> dict[str, Any]:
    row = runs[-1]
    state, _ = CHANGES["Verdict"]
    alike = list(itertools.takewhile(lambda r: state(r) == state(row), reversed(runs)))
    ratio = row["speed"]["ratio"]
    ours = row["speed"]["contenders"][0] if row["speed"]["contenders"] else None
    titles = {c["id"]: c["title"] for c in row["speed"]["contenders"]}
    judged = graph_of(row, row["judged"])
    oracle = graph_of(row, "oracle")
    return {
        "verdict": VERDICTS[row["verdict"]["class"]],
        "anchor": row["verdict"]["anchor"] or "",
        "not_compared": "; ".join(row["verdict"]["not_compared"] or ()),
        "commit": short(row["commit"]),
        "date": row["date"][:16].replace("T", " "),
        "runs": len(alike),
        "since": "" if len(alike) == len(runs) else short(alike[-1]["commit"]),
        "tokens": row["tokens"],
        "families": row["families"] or {},
        "checks": [(name, n) for name, n in row["checks"].items() if n],
        "worst": row["anchor"] or {},
        "logit": row["logit"] or {},
        "tokens_per_second": 1000 / ours["ms_per_token"] if ours else "",
        "ratio": ratio or {},
        "peer": titles.get(ratio["peer"], ratio["peer"]) if ratio else "",
        "reason": row["speed"]["reason"],
        "operations": judged or {},
        "flops": text.si(judged["flops"]) if judged and judged["flops"] is not None else "",
        "oracle": oracle or {},
    }


# ---- what changed


def _events(runs: Sequence[Row]) -> tuple[list[dict[str, Any]], list[str]]:
    """What is not as in the run before, the oldest first; and in words what of it is left out."""
    found = []
    for i, (before, after) in enumerate(itertools.pairwise(_with_known(runs)), start=1):
        for kind, (state, words) in CHANGES.items():
            if state(before) != state(after) and (told := words(before, after)):
                event = {"at": i, "kind": kind, "words": told, "number": "", "new": True}
                event |= {"commit": short(after["commit"]), "day": _day(after), "state": state(after)}
                found.append(event)
    notes = []
    for kind in DRAWN_AS_LINES:
        some = [event for event in found if event["kind"] == kind]
        if len(some) > FEW:
            known = [CHANGES[kind][0](runs[0])]
            for event in some:
                event["new"] = event["state"] not in known
                known.append(event["state"])
            notes.append(f"{kind} changed {len(some)} times; shown is only what had not been there before.")
    return [event for event in found if event["new"]], notes


def _marks(events: Sequence[dict[str, Any]], columns: Columns) -> list[dict[str, Any]]:
    """A line for each column in which the surroundings changed. Gives those events the number that stands at it.

    Lines that are too near for a number each have those of all of them above the first. For those that are `alternate`
    there is no room on a phone.
    """
    marks: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["kind"] in DRAWN_AS_LINES:
            n = columns.column(event["at"])
            marks.setdefault(n, {"at": n, "number": len(marks) + 1, "x": 100 * n / columns.span, "label": ""})
            event["number"] = str(marks[n]["number"])
    first: dict[str, Any] | None = None
    shown = -math.inf
    for mark in marks.values():
        if first is None or mark["x"] - first["x"] >= APART:
            first = mark
            mark["alternate"] = mark["x"] - shown < APART_ON_A_PHONE
            shown = shown if mark["alternate"] else mark["x"]
        one, last = first["number"], mark["number"]
        first["label"] = str(one) if one == last else f"{one}–{last}"
    return [
        mark | {"x": f"{mark['x']:.4g}", "anchor": "start" if mark["x"] < APART else "middle"}
        for mark in marks.values()
    ]


def _verdict_words(before: Row, after: Row) -> str:
    def named(row: Row) -> str:
        at = f" at {text.one_line(row['verdict']['anchor'], 80)}" if row["verdict"]["anchor"] else ""
        return VERDICTS[row["verdict"]["class"]].title + at

    return f"{named(after)}, after {named(before)}"


def _not_compared_words(before: Row, after: Row) -> str:
    old, new = (row["verdict"]["not_compared"] for row in (before, after))
    if old is None or new is None:  # nobody knows
        return ""
    parts = (("not any more", new, old), ("now, and was not", old, new))
    told = {words: [phrase for phrase in some if phrase not in others] for words, some, others in parts}
    return "; ".join(f"{words}: {_some(phrases, 120)}" for words, phrases in told.items() if phrases)


def _with_known(runs: Iterable[Row]) -> Iterator[Row]:
    """Each run with the last graph of each source and phase that it or a run before it had: some get to no graph."""
    known: dict[tuple[str, str], Row] = {}
    for row in runs:
        known = known | {(graph["source"], graph["phase"]): graph for graph in row["graphs"]}
        yield row | {"known": known}


def _families_words(before: Row, after: Row) -> str:
    old, new = before["families"], after["families"]
    if new is None:
        return f"{old['total']} models were judged, then one"
    told = [] if old is None else [m for m in old["failing"] if m not in new["failing"]]
    bad = [m for m in new["failing"] if old is None or m not in old["failing"]]
    words = [f"{new['passed']} of {text.plural(new['total'], 'model')} pass"]
    words += [f"after {old['passed']} of {old['total']}"] if old else ["after a run of one"]
    words += [f"not {_some(bad)}"] if bad else []
    words += [f"again {_some(again)}"] if (again := [m for m in told if old and new["total"] >= old["total"]]) else []
    return ", ".join(words)


def _some(words: Sequence[str], limit: int = 40) -> str:
    more = f" and {len(words) - 3} more" if len(words) > 3 else ""
    return ", ".join(text.one_line(word, limit) for word in words[:3]) + more


def _graph_words(before: Row, after: Row) -> str:
    told: dict[str, dict[str, list[str]]] = {}
    for source, phase in after["known"]:
        old, new = graph_of(before, source, phase), graph_of(after, source, phase)
        if words := _one_graph_words(before["known"].get((source, phase)), old, new):
            told.setdefault(SOURCES[source], {}).setdefault(words, []).append(phase)
    lists = {name: [f"{' and '.join(p)} {words}" for words, p in found.items()] for name, found in told.items()}
    return "; ".join(f"{name}: {', '.join(words)}" for name, words in lists.items())


def _one_graph_words(known: Row | None, old: Row | None, new: Row | None) -> str:
    if new is None:
        return "gone" if old else ""
    if known is None:
        return "new"
    if not changed(known, new):
        return "" if old else "back unchanged"
    a, b = text.count(known["op_total"]), text.count(new["op_total"])
    return f"another text of {b} operations as before" if a == b else f"{a} → {b} operations"


def _versions(row: Row) -> dict[str, str]:
    return {"hloracle": row["hloracle"], **row["packages"]}


def _differing(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Each entry that is not the same, as `name old → new`."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    told = [
        f"{text.one_line(name, 40)} {text.one_line(str(before.get(name, 'none')), 60)} → "
        f"{text.one_line(str(after.get(name, 'none')), 60)}"
        for name in names[:6]
    ]
    return "; ".join(told) + (f"; {len(names) - 6} more" if len(names) > 6 else "")


def _settings(row: Row) -> dict[str, Any]:
    settings = row["settings"]
    buckets = " ".join(map(str, settings["buckets"]))
    return {"tokens": settings["tokens"], "capacity": settings["capacity"], "buckets": buckets}


def _processor(row: Row) -> tuple[str, int]:
    return row["cpu"], row["settings"]["threads"]


def _processor_words(before: Row, after: Row) -> str:
    (old, few), (new, many) = _processor(before), _processor(after)
    told = [f"{text.one_line(old, 80)} → {text.one_line(new, 80)}"] if old != new else []
    return "; ".join(told + ([f"{few} → {text.plural(many, 'thread')}"] if few != many else []))


def _weights(row: Row) -> dict[str, str]:
    return {"SHA-256": row["model"]["digest"][:12]}


def _told(of: Callable[[Row], dict[str, Any]]) -> tuple[Callable[[Row], Any], Callable[[Row, Row], str]]:
    return of, lambda before, after: _differing(of(before), of(after))


# Kind -> what of a row it is about, and how its change is told.
CHANGES: dict[str, tuple[Callable[[Row], Any], Callable[[Row, Row], str]]] = {
    "Verdict": (lambda row: (row["verdict"]["class"], row["verdict"]["anchor"]), _verdict_words),
    "Compared": (lambda row: row["verdict"]["not_compared"], _not_compared_words),
    "Models": (lambda row: row["families"], _families_words),
    "Graph": (lambda row: row["graphs"], _graph_words),
    "Processor": (_processor, _processor_words),
    "Versions": _told(_versions),
    "Weights": _told(_weights),
    "Settings": _told(_settings),
}
DRAWN_AS_LINES = ("Processor", "Versions", "Weights", "Settings")


# ---- numbers


def _tip(runs: Sequence[Row]) -> str:
    """What a column holds, a line each: of several runs the worst, the range of speeds, the newest graph."""
    first, last = runs[0], runs[-1]
    name = f"{short(last['commit'])}, {last['date'][:16].replace('T', ' ')}"
    lines = [name if len(runs) == 1 else f"{len(runs)} runs, {short(first['commit'])} to {name}"]
    lines += [", ".join(VERDICTS[c].title for c in dict.fromkeys(row["verdict"]["class"] for row in runs))]
    if tokens := [row["tokens"] for row in runs if row["tokens"]["total"]]:
        worst = max(tokens, key=lambda t: int(t["total"] - t["agreed"]))
        lines.append(f"{text.count(worst['agreed'])} of {text.count(worst['total'])} tokens equal")
    for part, words in (("anchor", "anchor"), ("logit", "logit")):
        if found := [row[part] for row in runs if row[part]]:
            worst = max(found, key=lambda f: badness(float(f["share"])))
            at = f" at {text.one_line(worst['name'], 60)}" if part == "anchor" else ""
            lines.append(f"worst {words}{at}: {text.figure(worst['share'])} of its limit")
    if ratios := [row["speed"]["ratio"] for row in runs if row["speed"]["ratio"]]:
        low, high = min(r["least"] for r in ratios), max(r["most"] for r in ratios)
        speed = (
            f"{text.figure(ratios[-1]['median'])}× the peer’s speed " if len(runs) == 1 else "times the peer’s speed: "
        )
        lines.append(f"{speed}({text.figure(low)}–{text.figure(high)})")
    if graph := graph_of(last, last["judged"]):
        lines.append(f"decode: {text.count(graph['op_total'])} operations")
    return "\n".join(lines)


def _mutant(row: Row) -> dict[str, Any]:
    return _numbers(row, [], [], {}) | {"mutant": row["mutant"], "model": row["model"]["name"]}


def _numbers(row: Row, contenders: Sequence[str], sources: Sequence[str], processors: dict[str, str]) -> dict[str, Any]:
    """A line of the table; what was not measured is a dash."""
    tokens, ratio = row["tokens"], row["speed"]["ratio"]
    speeds = {c["id"]: text.figure(1000 / c["ms_per_token"]) for c in row["speed"]["contenders"]}
    counts = [graph_of(row, source) for source in sources]
    return {
        "commit": short(row["commit"]),
        "date": row["date"][:16].replace("T", " "),
        "verdict": VERDICTS[row["verdict"]["class"]],
        "at": row["verdict"]["anchor"] or "",
        "tokens": f"{text.count(tokens['agreed'])}/{text.count(tokens['total'])}" if tokens["total"] else "–",
        "partly": tokens["compared"] < tokens["planned"],
        "models": f"{row['families']['passed']}/{row['families']['total']}" if row["families"] else "–",
        "checks": f"{row['checks']['passed']}/{sum(row['checks'].values())}",
        "anchor": row["anchor"]["name"] if row["anchor"] else "",
        "anchor_share": text.figure(row["anchor"]["share"]) if row["anchor"] else "–",
        "logit_share": text.figure(row["logit"]["share"]) if row["logit"] else "–",
        "floor": "–" if row["floor"] is None else text.figure(row["floor"]),
        "speeds": [speeds.get(name, "–") for name in contenders],
        "ratio": f"{text.figure(ratio['median'])}×" if ratio else "–",
        "range": f"{text.figure(ratio['least'])}–{text.figure(ratio['most'])}" if ratio else "–",
        "operations": [text.count(graph["op_total"]) if graph else "–" for graph in counts],
        "peak": "–" if row["peak_bytes"] is None else text.size(row["peak_bytes"]),
        "seconds": "–" if row["seconds"] is None else text.duration(row["seconds"]),
        "processor": processors.get(row["cpu"], ""),
    }
