"""The history: what is kept of each run, one line of JSON a run, in a file that stands beside the code.

JSON lines and not a database: a history has some thousand runs at most, and a file of lines can be read by a person,
reviewed in a diff, merged by git (`merge=union` in .gitattributes), and mended in an editor. Lines are ASCII, so that no
control or bidirectional character of a record can disturb any of these.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, cast

from hloracle.core import record as record_types
from hloracle.core.cache import digest
from hloracle.core.errors import InputError
from hloracle.core.files import locked, write_file
from hloracle.core.given import parse_json, read_bytes
from hloracle.core.record import Phase, Record
from hloracle.core.typed import problem, schema_text
from hloracle.reports.facts import VERDICTS, badness, limits_of, of_limit, token_totals, took
from hloracle.reports.history.row import (
    FAILING,
    LEFT_OUT,
    LONGEST,
    SCHEMA,
    Checks,
    Families,
    Graph,
    Model,
    Ratio,
    Row,
    Settings,
    Source,
    Speed,
    WorstAnchor,
)  # fmt: skip
from hloracle.reports.page.heat import values_of
from hloracle.reports.record import load, with_named_floats
from hloracle.reports.text import moment, one_line

SCHEMA_FILE = Path(__file__).with_name("history.schema.json")
LARGEST = 64 * 2**20  # bytes; a run has some 3 KiB


def schema() -> str:
    """What history.schema.json has to hold."""
    return schema_text(Row, "https://hloracle.invalid/history/5", "hloracle history, version 5: one line of the store")


def add(store: Path, reports: Sequence[Path], commit: str | None = None) -> list[tuple[Row, bool]]:
    """Append the runs of records to the store, which need not exist yet; returns each with whether it is new.

    A run that the store has stays as it is. All are appended or none, and two processes may append at once.

    Args:
      commit: the revision that was judged, in place of what the records say.

    Raises InputError for a record or a line of the store that cannot be read, when the store cannot be written, and for
    a run that is already there under another commit.
    """
    if commit is not None and not commit.strip():
        raise InputError("is empty", "--commit", "name the revision that was judged")
    rows = [_kept(path, commit) for path in reports]
    file = Path(os.path.realpath(store))  # of a symbolic link its file is written, not the link
    with locked(file.with_name(f".{file.name}")):
        text = _text(store) if store.exists() else ""
        known = {row["run"]: row for row in _rows(text, store)}
        added, lines = [], ""
        for row in rows:
            there = known.setdefault(row["run"], row)
            if commit is not None and there["commit"] != row["commit"]:
                found = "without a commit" if there["commit"] is None else f"as commit {there['commit']}"
                fix = "remove its line to add it as another"
                raise InputError(f"the run {row['run'][:12]} is there already, {found}", store, fix)
            added.append((there, there is row))
            lines += _line(row) if there is row else ""
        if lines:
            write_file(file, text + ("" if not text or text.endswith("\n") else "\n") + lines)
    return added


def read(store: Path) -> list[Row]:
    """The runs of the store from the oldest to the newest, by the time at which they began.

    Raises InputError that names the file, and the line that is wrong.
    """
    rows = {row["run"]: row for row in _rows(_text(store), store)}
    return sorted(rows.values(), key=lambda row: str(row["date"]))


def row_of(record: Record, commit: str | None = None) -> Row:
    """What the history keeps of a valid record. What was not measured is null, never zero. No string is long."""
    verdict, environment = record["verdict"], record["environment"]
    statuses: list[str] = [check["status"] for check in record["checks"]]
    row = {
        "schema": SCHEMA,
        "run": digest(json.dumps(record, sort_keys=True, separators=(",", ":"))),
        "commit": environment["commit"] if commit is None else commit,
        "date": _utc(environment["date"]),
        "mutant": record["mutant"],
        "sources": [_kept_of(Source, source) for source in record["sources"]],
        "model": _kept_of(Model, record["model"]),
        "settings": _kept_of(Settings, record["settings"]),
        "verdict": {
            "class": verdict["class"],
            "anchor": verdict["anchor"],
            "not_compared": verdict["not_compared"][:LEFT_OUT],
        },
        "tokens": token_totals(record),
        "families": _families(record),
        "checks": {status: statuses.count(status) for status in Checks.__annotations__},
        "logit": _worst_logit(record),
        "anchor": _worst_anchor(record),
        "graphs": list(_graphs(record)),
        "speed": _speed(record),
        "peak_bytes": record["memory"]["peak_bytes"] or None,
        "seconds": round(took(record), 3) if record["timings"] else None,
        "cpu": environment["cpu"],
        "hloracle": environment["hloracle"],
        "packages": environment["packages"],
    }
    return cast(Row, with_named_floats(_cut(row)))


def _kept_of(kept: type, node: Any) -> dict[str, Any]:
    """Of a part of the record what the history's own type has, under the same names."""
    return {key: node[key] for key in kept.__annotations__}


# ---- the store


def _kept(path: Path, commit: str | None) -> Row:
    row = row_of(load(path), commit)
    try:
        _check(row)
    except ValueError as error:
        raise InputError(f"cannot be kept ({error})", path, "name a report.json that hloracle wrote") from None
    return row


def _line(row: Row) -> str:
    return json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n"


def _text(store: Path) -> str:
    if not store.exists():
        raise InputError("no such file", store, "add a run to it with `hloracle history add REPORT.json`")
    fix = "name a file that `hloracle history add` wrote"
    data = read_bytes(store, LARGEST, fix)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"is not text ({one_line(str(error), 120)})", store, fix) from None


def _rows(text: str, store: Path) -> Iterator[Row]:
    seen: dict[str, Row] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), start=1):
        where, fix = f"{store}, line {number}", "mend this line or remove it"
        try:
            row = parse_json(line.encode(), where, fix)
            _check(row)
            # git's union of two branches may bring a line twice.
            if seen.setdefault(row["run"], row) != row:
                raise ValueError("its run stands further up, and differs")
        except (InputError, ValueError) as error:
            words = error.what if isinstance(error, InputError) else str(error)
            raise InputError(f"is no run of a history ({one_line(words, 200)})", where, fix) from None
        yield row


def _check(row: Any) -> None:
    """Raises ValueError unless this is a line of this version that agrees with itself."""
    schema = row.get("schema") if isinstance(row, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"the schema is {one_line(repr(schema), 60)}, not {SCHEMA!r}")
    if found := problem(Row, row):
        raise ValueError(one_line(found, 200))
    if sum(source["judged"] for source in row["sources"]) == 0:
        raise ValueError("sources: none is judged")
    if (families := row["families"]) is not None:
        if families["passed"] + len(families["failing"]) > families["total"]:
            raise ValueError(f"families: {families['passed']} of {families['total']} passed, and some others did not")
        if VERDICTS[row["verdict"]["class"]].passed and families["passed"] < families["total"]:
            raise ValueError(f"the verdict is {row['verdict']['class']!r}, and some of the families did not pass")
    tokens = row["tokens"]
    for part, some, whole in (
        ("agreed", tokens["agreed"], tokens["total"]), ("compared", tokens["compared"], tokens["planned"])
    ):  # fmt: skip
        if some > whole:
            raise ValueError(f"tokens: {some} {part} of {whole}")


# ---- a row


def _cut(node: Any) -> Any:
    """Whatever holds strings, with each of them cut."""
    if isinstance(node, dict):
        return {_cut(key): _cut(entry) for key, entry in node.items()}
    if isinstance(node, list):
        return [_cut(entry) for entry in node]
    return node[: LONGEST - 1] + "…" if isinstance(node, str) and len(node) > LONGEST else node


def _utc(date: str) -> str:
    """In one form and one zone, so that dates are in order as strings are."""
    found = moment(date)
    return found.isoformat(timespec="seconds") if found else date[: len("2025-11-21T05:12")]


def _six_digits(x: float) -> float:
    return float(f"{x:.6g}")


def _families(record: Record) -> Families | None:
    """How many models of a suite pass, and which do not, by name."""
    rows = record["families"]
    bad = [row["model"] for row in rows if not row["passed"]]
    return {"passed": len(rows) - len(bad), "total": len(rows), "failing": bad[:FAILING]} if rows else None


def _worst_logit(record: Record) -> float | None:
    answers = [answer for entry in record["tokens"].values() for answer in entry["configurations"].values()]
    shares = [share for answer in answers if (share := of_limit(answer)) is not None]
    return _six_digits(max(shares, key=badness)) if shares else None


def _worst_anchor(record: Record) -> WorstAnchor | None:
    limits = limits_of(record)
    values = [value for matrix in record["anchors"] for value in values_of(matrix, limits)]
    if not values:
        return None
    worst = max(values, key=lambda value: badness(value.share))
    return {"name": worst.anchor, "share": _six_digits(worst.share)}


def _graphs(record: Record) -> Iterator[Graph]:
    groups: dict[tuple[str, Phase], list[record_types.Graph]] = {}
    for graph in record["graphs"]:
        groups.setdefault((graph["source"], graph["phase"]), []).append(graph)
    for (source, phase), graphs in groups.items():
        one = min(graphs, key=lambda graph: (graph["head"] != "logits", graph["bucket"] or 0))
        yield {
            "source": source,
            "phase": phase,
            "op_total": one["op_total"],
            "digest": digest(*sorted(graph["digest"] for graph in graphs))[:16],
        }


def _speed(record: Record) -> Speed:
    """The rounds' medians, and how many times as fast as its first peer the first contender is, round by round."""
    speed = record["speed"]
    timed = [contender for contender in speed["contenders"] if contender["ms_per_token"]]
    return {
        "reason": speed["reason"],
        "contenders": [
            {"id": c["id"], "title": c["title"], "ms_per_token": _six_digits(median(c["ms_per_token"]))} for c in timed
        ],
        "ratio": _ratio(timed[0], timed[1]) if len(timed) > 1 else None,
    }


def _ratio(ours: record_types.Contender, peer: record_types.Contender) -> Ratio | None:
    ratios = [theirs / mine for theirs, mine in zip(peer["ms_per_token"], ours["ms_per_token"], strict=True)]
    if not all(0 < ratio < math.inf for ratio in ratios):
        return None
    middle, least, most = map(_six_digits, (median(ratios), min(ratios), max(ratios)))
    return {"peer": peer["id"], "median": middle, "least": least, "most": most}


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema(), "utf-8")
