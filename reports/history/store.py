"""The history: what is kept of each run, one line of JSON a run, in a file that stands beside the code.

JSON lines and not a database: a history has some thousand runs at most, and a file of lines can be read by a person,
reviewed in a diff, merged by git (`merge=union` in .gitattributes), and mended in an editor. Lines are ASCII, so that no
control or bidirectional character of a record can disturb any of these.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any

import jsonschema
from jsonschema.exceptions import best_match

from hloracle.core.cache import digest, locked, write_file
from hloracle.core.errors import InputError
from hloracle.reports.facts import VERDICTS, Record, badness, judged, limits_of, of_limit, share, token_totals, took
from hloracle.reports.record import LARGEST, load
from hloracle.reports.text import one_line

SCHEMA = "hloracle-history/3"
OLDER = ("hloracle-history/2", "hloracle-history/1")
LONGEST = 200  # characters of a string that are kept
FAILING = 40  # models of a suite that do not pass, by name
LEFT_OUT = 20  # phrases of what was not compared

Row = dict[str, Any]


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
    """What the history keeps of a valid record. What was not measured is null, never zero."""
    model, settings, environment = record["model"], record["settings"], record["environment"]
    statuses = [check["status"] for check in record["checks"]]
    found = environment["commit"] if commit is None else commit
    return {
        "schema": SCHEMA,
        "run": digest(json.dumps(record, sort_keys=True, separators=(",", ":"))),
        "commit": None if found is None else _cut(found),
        "date": _utc(environment["date"]),
        "mutant": _cut(record["mutant"]) if "mutant" in record else None,
        "judged": judged(record),
        "model": {
            **{key: _cut(model[key]) for key in ("name", "architecture", "digest")},
            "parameters": model["parameters"],
        },
        "settings": {
            **{key: _cut(settings[key]) for key in ("device", "precision")},
            **{key: settings[key] for key in ("threads", "tokens", "capacity", "buckets")},
        },
        "verdict": {
            "class": record["verdict"]["class"],
            "passed": record["passed"],
            "anchor": None if record["verdict"]["anchor"] is None else _cut(record["verdict"]["anchor"]),
            "not_compared": _not_compared(record),
        },
        "tokens": token_totals(record),
        "families": _families(record),
        "checks": {status: statuses.count(status) for status in ("passed", "failed", "error", "skipped")},
        "logit": _worst_logit(record),
        "anchor": _worst_anchor(record),
        "floor": _floor(record),
        "graphs": list(_graphs(record)),
        "speed": _speed(record),
        "peak_bytes": record["memory"]["peak_bytes"] or None,
        "seconds": round(took(record), 3) if record["timings"] else None,
        "cpu": _cut(environment["cpu"]),
        "hloracle": _cut(environment["hloracle"]),
        "packages": {_cut(name): _cut(version) for name, version in environment["packages"].items()},
    }


# ---- the store


def _kept(path: Path, commit: str | None) -> Row:
    row = row_of(load(path), commit)
    try:
        _check(json.loads(_line(row)))
    except ValueError as error:
        raise InputError(f"cannot be kept ({error})", path, "name a report.json that hloracle wrote") from None
    return row


def _line(row: Row) -> str:
    return json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n"


def _text(store: Path) -> str:
    try:
        return store.read_bytes().decode()
    except FileNotFoundError:
        raise InputError("no such file", store, "add a run to it with `hloracle history add REPORT.json`") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = one_line(str(error), 120)
        raise InputError(f"cannot be read ({reason})", store, "name a file that `hloracle history add` wrote") from None


def _rows(text: str, store: Path) -> Iterator[Row]:
    seen: dict[str, Row] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), start=1):
        try:
            row = json.loads(line, parse_float=_finite, parse_constant=_finite, parse_int=_short)
            _bring_up_to_date(row)
            _check(row)
            # git's union of two branches may bring a line twice.
            if seen.setdefault(row["run"], row) != row:
                raise ValueError("its run stands further up, and differs")
        except (ValueError, RecursionError) as error:
            words = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
            reason = f"is no run of a history ({one_line(words, 200)})"
            raise InputError(reason, f"{store}, line {number}", "mend this line or remove it") from None
        yield row


def _bring_up_to_date(row: Any) -> None:
    """Make a line of an older version one of this version: no other models were measured, what was left out is not known."""
    if not isinstance(row, dict) or row.get("schema") not in OLDER:
        return
    model, verdict = row.get("model"), row.get("verdict")
    if not isinstance(model, dict) or not isinstance(verdict, dict):
        return
    if row["schema"] == "hloracle-history/1":
        row["families"] = None
        model["architecture"] = model.pop("model_type", None)
    verdict["not_compared"] = None
    row["schema"] = SCHEMA


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not JSON, or too large")
    return number


def _short(text: str) -> int:
    number = int(text)
    if abs(number) > LARGEST:
        raise ValueError(f"{one_line(text, 20)} is an integer of more than 64 bits")
    return number


@functools.cache
def _validator() -> Any:
    schema = json.loads(resources.files("hloracle.reports.history").joinpath("history.schema.json").read_text("utf-8"))
    return jsonschema.Draft202012Validator(schema)


def _check(row: Any) -> None:
    """Raises ValueError unless this is a line of this version that agrees with itself."""
    schema = row.get("schema") if isinstance(row, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"the schema is {one_line(repr(schema), 60)}, not {SCHEMA!r}")
    if error := best_match(_validator().iter_errors(row)):
        raise ValueError(f"{one_line(error.json_path, 80)}: {one_line(str(error.message), 120)}")
    if row["verdict"]["passed"] != VERDICTS[row["verdict"]["class"]].passed:
        raise ValueError(f"passed is {row['verdict']['passed']}, and the verdict is {row['verdict']['class']!r}")
    if (families := row["families"]) is not None:
        if families["passed"] + len(families["failing"]) > families["total"]:
            raise ValueError(f"families: {families['passed']} of {families['total']} passed, and some others did not")
        if row["verdict"]["passed"] and families["passed"] < families["total"]:
            raise ValueError("passed is true, and some of the families did not pass")
    for part, whole in (("agreed", "total"), ("compared", "planned")):
        if row["tokens"][part] > row["tokens"][whole]:
            raise ValueError(f"tokens: {row['tokens'][part]} {part} of {row['tokens'][whole]}")


# ---- a row


def _cut(value: str) -> str:
    return value if len(value) <= LONGEST else value[: LONGEST - 1] + "…"


def _utc(date: str) -> str:
    """In one form and one zone, so that dates are in order as strings are."""
    try:
        moment = datetime.fromisoformat(date)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        return date[: len("2025-11-21T05:12")]


def _figure(x: float) -> float | str:
    """Six digits; what JSON has no word for by name, as in a record."""
    return float(f"{x:.6g}") if math.isfinite(x) else "NaN" if math.isnan(x) else "Infinity" if x > 0 else "-Infinity"


def _families(record: Record) -> Row | None:
    """How many models of a suite pass, and which do not, by name."""
    rows = record["families"]
    bad = [_cut(row["model"]) for row in rows if not row["passed"]]
    return {"passed": len(rows) - len(bad), "total": len(rows), "failing": bad[:FAILING]} if rows else None


def _not_compared(record: Record) -> list[str] | None:
    phrases = record["verdict"]["not_compared"]
    return None if phrases is None else [_cut(phrase) for phrase in phrases[:LEFT_OUT]]


def _worst_logit(record: Record) -> Row | None:
    found = [
        (ratio, name, prompt)
        for prompt, entry in record["tokens"].items()
        for name, cell in entry["cells"].items()
        if (ratio := of_limit(cell)) is not None
    ]
    if not found:
        return None
    ratio, cell, prompt = max(found, key=lambda entry: badness(entry[0]))
    return {"share": _figure(ratio), "cell": _cut(cell), "prompt": _cut(prompt)}


def _worst_anchor(record: Record) -> Row | None:
    limits = limits_of(record)
    worst: tuple[float, Any, str, Record] | None = None
    for matrix in record["anchors"]:
        for anchor, errors in zip(matrix["anchors"], matrix["errors"], strict=True):
            for error in errors:
                part = share(error, limits.get(anchor))
                if part is not None and (worst is None or badness(part) > badness(worst[0])):
                    worst = part, error, anchor, matrix
    if worst is None:
        return None
    part, error, anchor, matrix = worst
    return {
        "name": _cut(anchor),
        "floors": _figure(float(error)),
        "share": _figure(part),
        "cell": _cut(matrix["cell"]),
        "phase": matrix["phase"],
    }


def _floor(record: Record) -> float | str | None:
    """A floor that is NaN counts as infinite: it is no small one."""
    floors = [badness(float(floor["relative"])) for floor in record["floors"]]
    return _figure(median(floors)) if floors else None


def _graphs(record: Record) -> Iterator[Row]:
    groups: dict[tuple[str, str], list[Record]] = {}
    for graph in record["graphs"]:
        groups.setdefault((graph["source"], graph["phase"]), []).append(graph)
    for (source, phase), graphs in groups.items():
        one = min(graphs, key=lambda graph: (graph["head"] != "logits", graph["bucket"] or 0))
        digests = sorted(graph["digest"] for graph in graphs)
        yield {
            "source": source,
            "phase": phase,
            **{key: one[key] for key in ("op_total", "op_kinds", "flops", "bytes", "text_bytes")},
            "digest": digest(*digests)[:16] if all(digests) else "",
        }


def _speed(record: Record) -> Row:
    """The rounds' medians, and how many times as fast as its first peer the first contender is, round by round."""
    speed = record["speed"]
    timed = [contender for contender in speed["contenders"] if contender["ms_per_token"]]
    return {
        "reason": _cut(speed["reason"]),
        "contenders": [
            {
                "id": _cut(contender["id"]),
                "title": _cut(contender["title"]),
                "ms_per_token": float(f"{median(contender['ms_per_token']):.6g}"),
                "resident_bytes": contender["resident_bytes"],
            }
            for contender in timed
        ],
        "ratio": _ratio(timed[0], timed[1]) if len(timed) > 1 else None,
    }


def _ratio(ours: Record, peer: Record) -> Row | None:
    ratios = [theirs / mine for theirs, mine in zip(peer["ms_per_token"], ours["ms_per_token"], strict=True)]
    if not all(0 < ratio < math.inf for ratio in ratios):
        return None
    median_, least, most = (float(f"{x:.6g}") for x in (median(ratios), min(ratios), max(ratios)))
    return {"peer": _cut(peer["id"]), "median": median_, "least": least, "most": most, "rounds": len(ratios)}
