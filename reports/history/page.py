"""The history page: one file that needs nothing else, drawn from the lines of the store.

Runs of one model on one device in one precision make a series. A series' drawings share one axis, its newest runs from
the oldest to the newest, a column each. Runs with a deliberate fault are no part of a series.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hloracle.reports import text
from hloracle.reports.facts import VERDICTS
from hloracle.reports.history.charts import drawings, lanes, middle, processor_of, span_of
from hloracle.reports.history.row import SCHEMA, Graph, Row, Source
from hloracle.reports.page.axes import every
from hloracle.reports.page.base import draw

DRAWN = 300  # runs of a series, the newest
SERIES = 24  # that are drawn, the latest first
ROWS = 600  # of all tables of numbers together
EVENTS = 40  # of a series that are listed
LABELS = 4  # columns that are named

_COMMIT = re.compile(r"[0-9a-f]{8,64}(\+?)")


def render(rows: Sequence[Row]) -> str:
    """The page of a history's rows, which are in order. Equal rows give equal pages."""
    together: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if not row["mutant"]:
            together.setdefault(_series_of(row), []).append(row)
    # The sort is stable, so that those of one moment stay in the order of the store.
    ordered = sorted(together.values(), key=lambda runs: str(runs[-1]["date"]), reverse=True)
    drawn = ordered[:SERIES]
    most = max(ROWS // max(len(drawn), 1), 10)
    context = {
        "schema": SCHEMA,
        "count": len(rows),
        "dates": [_day(rows[0]), _day(rows[-1])] if rows else [],
        "series": [_series(i, runs, most) for i, runs in enumerate(drawn)],
        "left_out": len(ordered) - len(drawn),
        "mutants": sum(bool(row["mutant"]) for row in rows),
    }
    return draw("history.html.j2", context, styles=["history.css"])


def _series_of(row: Row) -> tuple[str, ...]:
    return row["model"]["name"], row["settings"]["device"], row["settings"]["precision"], judged(row)["title"]


def short(commit: str | None) -> str:
    """A commit as people name it: seven digits, and `+` where the tree had changes."""
    if commit is None:
        return "no commit"
    found = _COMMIT.fullmatch(commit)
    return commit[:7] + found[1] if found else text.one_line(commit, 12)


def _day(row: Row) -> str:
    return str(row["date"])[: len("2025-11-21")]


def _minute(row: Row) -> str:
    return str(row["date"])[: len("2025-11-21T05:12")].replace("T", " ")


def _series(index: int, kept: list[Row], most: int) -> dict[str, Any]:
    """A series' newest runs; `most` is how many have a line in the table."""
    runs = kept[-DRAWN:]
    events = _events(runs)
    contenders, sources = _contenders(runs), _sources_of(runs)
    model, device, precision, source = _series_of(runs[-1])
    return {
        "id": f"series-{index}",
        "model": model,
        "device": device,
        "precision": precision,
        "source": source,
        "count": len(runs),
        "passed": sum(VERDICTS[row["verdict"]["class"]].passed for row in runs),
        "newest": _newest(runs),
        "span": span_of(runs),
        "lanes": lanes(runs),
        "marks": sorted({event["at"] for event in events if event["kind"] in DRAWN_AS_LINES}),
        "drawings": drawings(runs),
        "labels": _labels(runs),
        "events": events[::-1][:EVENTS],
        "events_left_out": max(len(events) - EVENTS, 0),
        "contenders": list(contenders.values()),
        "sources": sources,
        "rows": [numbers(row, list(contenders), sources) for row in runs[::-1][:most]],
        "undrawn": len(kept) - len(runs),
    }


def judged(row: Row) -> Source:
    """The first of the sources whose graphs the verdict is about."""
    return next(source for source in row["sources"] if source["judged"])


def _graph_of(row: Row, source: str, phase: str = "decode") -> Graph | None:
    """What the row keeps of a source's graphs of a phase."""
    return next((g for g in row["graphs"] if (g["source"], g["phase"]) == (source, phase)), None)


def _sources_of(runs: Sequence[Row]) -> list[Source]:
    """The sources of any of the runs, each once, as the newest that has it calls it."""
    found = {source["id"]: source for row in runs for source in row["sources"]}
    return [source for source in found.values() if any(_graph_of(row, source["id"]) for row in runs)]


def _contenders(runs: Sequence[Row]) -> dict[str, str]:
    """The contenders of a speed comparison, those of the newest run first: id -> title."""
    found = {c["id"]: c["title"] for row in reversed(runs) for c in row["speed"]["contenders"]}
    return dict(itertools.islice(found.items(), 4))


def _labels(runs: Sequence[Row]) -> list[dict[str, Any]]:
    """The names of some columns, counted from the newest: as many as there is room for on a phone."""
    n, span = len(runs), span_of(runs)
    labels = []
    for back in every(n, max(1, LABELS * n // span)):
        i = n - 1 - back
        last = i + 1 == span  # its name would stand out over the page's edge
        place = {"x": "100", "anchor": "end"} if last else {"x": middle(i, span), "anchor": "middle"}
        labels.append({**place, "commit": short(runs[i]["commit"]), "when": _day(runs[i])})
    return labels


# ---- the newest run, in words


def _newest(runs: Sequence[Row]) -> dict[str, Any]:
    row = runs[-1]
    state, _ = CHANGES["Verdict"]
    alike = list(itertools.takewhile(lambda r: state(r) == state(row), reversed(runs)))
    speed = row["speed"]
    titles = {c["id"]: c["title"] for c in speed["contenders"]}
    return {
        "row": row,
        "verdict": VERDICTS[row["verdict"]["class"]],
        "commit": short(row["commit"]),
        "date": _minute(row),
        "runs": len(alike),
        "since": "" if len(alike) == len(runs) else short(alike[-1]["commit"]),
        "peer": titles.get(speed["ratio"]["peer"], speed["ratio"]["peer"]) if speed["ratio"] else "",
        "graph": _graph_of(row, judged(row)["id"]),
    }


# ---- what changed


def _events(runs: Sequence[Row]) -> list[dict[str, Any]]:
    """What is not as in the run before, the oldest first; of processors, which come and go, only what is new."""
    found = []
    processors = {processor_of(runs[0])}
    for i, (before, after) in enumerate(itertools.pairwise(_with_known(runs)), start=1):
        for kind, (state, words) in CHANGES.items():
            back = kind == "Processor" and processor_of(after) in processors
            if state(before) != state(after) and not back and (told := words(before, after)):
                place = {"at": i, "commit": short(after["commit"]), "day": _day(after)}
                found.append(place | {"kind": kind, "words": told})
        processors.add(processor_of(after))
    return found


def _verdict_words(before: _Known, after: _Known) -> str:
    def named(row: Row) -> str:
        at = f" at {text.one_line(row['verdict']['anchor'], 80)}" if row["verdict"]["anchor"] else ""
        return VERDICTS[row["verdict"]["class"]].title + at

    return f"{named(after)}, after {named(before)}"


def _not_compared_words(before: _Known, after: _Known) -> str:
    old, new = (row["verdict"]["not_compared"] for row in (before, after))
    parts = (("not any more", new, old), ("now, and was not", old, new))
    told = {words: [phrase for phrase in some if phrase not in others] for words, some, others in parts}
    return "; ".join(f"{words}: {_some(phrases, 120)}" for words, phrases in told.items() if phrases)


class _Known(Row):
    """A row, and what is known of graphs when it was made."""

    known: dict[tuple[str, str], Graph]


def _with_known(runs: Iterable[Row]) -> Iterator[_Known]:
    """Each run with the last graph of each source and phase that it or a run before it had: some get to no graph."""
    known: dict[tuple[str, str], Graph] = {}
    for row in runs:
        known = {**known, **{(graph["source"], graph["phase"]): graph for graph in row["graphs"]}}
        yield {**row, "known": known}


def _families_words(before: _Known, after: _Known) -> str:
    old, new = before["families"], after["families"]
    if new is None:
        return f"{old['total'] if old else 0} models were judged, then one"
    failed = old["failing"] if old else []
    again = [m for m in failed if m not in new["failing"] and old and new["total"] >= old["total"]]
    bad = [m for m in new["failing"] if m not in failed]
    words = [f"{new['passed']} of {text.plural(new['total'], 'model')} pass"]
    words += [f"after {old['passed']} of {old['total']}"] if old else ["after a run of one"]
    words += [f"not {_some(bad)}"] if bad else []
    words += [f"again {_some(again)}"] if again else []
    return ", ".join(words)


def _some(words: Sequence[str], limit: int = 40) -> str:
    more = f" and {len(words) - 3} more" if len(words) > 3 else ""
    return ", ".join(text.one_line(word, limit) for word in words[:3]) + more


def _graph_words(before: _Known, after: _Known) -> str:
    titles = {source["id"]: text.one_line(source["title"], 60) for source in after["sources"]}
    told: dict[str, dict[str, list[str]]] = {}
    for source, phase in after["known"]:
        old, new = _graph_of(before, source, phase), _graph_of(after, source, phase)
        if words := _one_graph_words(before["known"].get((source, phase)), old, new):
            told.setdefault(titles.get(source, source), {}).setdefault(words, []).append(phase)
    lists = {name: [f"{' and '.join(p)} {words}" for words, p in found.items()] for name, found in told.items()}
    return "; ".join(f"{name}: {', '.join(words)}" for name, words in lists.items())


def _one_graph_words(known: Graph | None, old: Graph | None, new: Graph | None) -> str:
    if new is None:
        return "gone" if old else ""
    if known is None:
        return "new"
    if known["digest"] == new["digest"]:
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


def _processor_words(before: _Known, after: _Known) -> str:
    (old, few), (new, many) = processor_of(before), processor_of(after)
    told = [f"{text.one_line(old, 80)} → {text.one_line(new, 80)}"] if old != new else []
    return "; ".join(told + ([f"{few} → {text.plural(many, 'thread')}"] if few != many else []))


def _weights(row: Row) -> dict[str, str]:
    return {"SHA-256": row["model"]["digest"][:12]}


def _told(of: Callable[[Row], dict[str, Any]]) -> tuple[Callable[[Row], Any], Callable[[_Known, _Known], str]]:
    return of, lambda before, after: _differing(of(before), of(after))


# Kind -> what of a row it is about, and how its change is told.
CHANGES: dict[str, tuple[Callable[[Row], Any], Callable[[_Known, _Known], str]]] = {
    "Verdict": (lambda row: (row["verdict"]["class"], row["verdict"]["anchor"]), _verdict_words),
    "Compared": (lambda row: row["verdict"]["not_compared"], _not_compared_words),
    "Models": (lambda row: row["families"], _families_words),
    "Graph": (lambda row: row["graphs"], _graph_words),
    "Processor": (processor_of, _processor_words),
    "Versions": _told(_versions),
    "Weights": _told(_weights),
    "Settings": _told(_settings),
}
DRAWN_AS_LINES = ("Processor", "Versions", "Weights", "Settings")


# ---- numbers


def numbers(row: Row, contenders: Sequence[str], sources: Sequence[Source]) -> dict[str, Any]:
    """A line of the table; what was not measured is a dash."""
    tokens, ratio = row["tokens"], row["speed"]["ratio"]
    speeds = {c["id"]: text.figure(1000 / c["ms_per_token"]) for c in row["speed"]["contenders"]}
    counts = [_graph_of(row, source["id"]) for source in sources]
    checks = row["checks"]
    return {
        "commit": short(row["commit"]),
        "date": _minute(row),
        "verdict": VERDICTS[row["verdict"]["class"]],
        "tokens": f"{text.count(tokens['agreed'])}/{text.count(tokens['total'])}" if tokens["total"] else "–",
        "partly": tokens["compared"] < tokens["planned"],
        "models": f"{row['families']['passed']}/{row['families']['total']}" if row["families"] else "–",
        "checks": f"{checks['passed']}/{checks['passed'] + checks['failed'] + checks['error'] + checks['skipped']}",
        "anchor": row["anchor"]["name"] if row["anchor"] else "",
        "anchor_share": text.figure(row["anchor"]["share"]) if row["anchor"] else "–",
        "logit_share": "–" if row["logit"] is None else text.figure(row["logit"]),
        "speeds": [speeds.get(name, "–") for name in contenders],
        "ratio": f"{text.figure(ratio['median'])}×" if ratio else "–",
        "range": f"{text.figure(ratio['least'])}–{text.figure(ratio['most'])}" if ratio else "–",
        "operations": [text.count(graph["op_total"]) if graph else "–" for graph in counts],
        "peak": "–" if row["peak_bytes"] is None else text.size(row["peak_bytes"]),
        "seconds": "–" if row["seconds"] is None else text.duration(row["seconds"]),
        "processor": row["cpu"],
    }
