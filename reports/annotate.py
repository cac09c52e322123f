"""A run as annotations on a pull request: GitHub's workflow commands, for its runner to read from a step's output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hloracle.core.record import Check, Family, Record
from hloracle.reports import text
from hloracle.reports.facts import VERDICTS, at_fault, comparisons, judged, layer_of

LIMIT = 10  # GitHub shows so many of a step's errors, warnings and notices each
MODELS = 4  # of a suite that have one each, beside the first
TITLE, LINE = 120, 400  # characters of a title, and of each line below it

_COMMANDS = {"pass": "notice", "near": "warning", "fail": "error", "error": "error"}
# Status of a check -> its command, and the words for those that there is no room for.
_STATUSES = {
    "failed": ("error", "checks failed"),
    "error": ("warning", "checks ended with an error"),
    "skipped": ("notice", "checks were skipped"),
}
# Whose text is wrong, where it is a text that stands in the tree.
_FOLDERS = {"emitter-fault": "emitters", "invariant-broken": "emitters", "reference-fault": "reference/oracle"}


def render(record: Record, root: Path, graph: Path | None = None) -> str:
    """The verdict and each check that did not pass of a valid record, a command a line.

    The verdict points to where the first wrong operation comes from, if that file is in `root`, the checkout: a line of
    `graph`, the file that `hloracle check` judged, or the scope that the emitter or the reference enters there.
    """
    verdict = VERDICTS[record["verdict"]["class"]]
    first = _COMMANDS[verdict.kind]
    lines = [_command(first, *_verdict(record), **_place(record, root, graph))]
    row = at_fault(record)
    bad = [r for r in record["families"][1:] if not r["passed"] and r is not row]
    places = [_place_of(r["verdict"], r["architecture"], r["anchor"], root) for r in bad]
    models = [_command("error", *_family(r), **place) for r, place in zip(bad, places, strict=True)]
    lines += _fitting("error", models, MODELS, "models do not conform")
    errors = len(lines) if first == "error" else 0
    for status, (command, words) in _STATUSES.items():
        room = LIMIT - (errors if command == "error" else int(command == first))
        checks = [_command(command, *_check(check)) for check in record["checks"] if check["status"] == status]
        lines += _fitting(command, checks, room, words)
    return "".join(f"{line}\n" for line in lines)


def _fitting(command: str, lines: list[str], room: int, words: str) -> list[str]:
    """The lines, or of more than `room` the first, and one that says how many more there are of what."""
    if len(lines) <= room:
        return lines
    more = f"hloracle: {text.count(len(lines) - room + 1)} more {words}"
    return [*lines[: room - 1], _command(command, more, "report.html has all of them.")]


def _verdict(record: Record) -> Iterator[str]:
    verdict, found, row = record["verdict"], record["localization"], at_fault(record)
    mutant = f" (deliberate: mutant {record['mutant']})" if record["mutant"] else ""
    words = VERDICTS[verdict["class"]]
    yield f"hloracle: {words.title}{mutant}"
    yield verdict["explanation"]
    yield from (f"{label}: {phrases}" for label, phrases in comparisons(record))
    of = f" of {row['model']}" if row else ""
    if (anchor := row["anchor"] if row else verdict["anchor"]) is not None:
        yield f"{words.at.capitalize()} {anchor}{of}"
    if verdict["operation"] is not None:
        yield f"Operation: {verdict['operation']}"
    if verdict["prompt"] is not None:
        step = "" if verdict["step"] is None else f", step {verdict['step']}"
        yield f"Prompt: {verdict['prompt']}{step}"
    if verdict["confidence"] is not None:
        yield f"Confidence: {verdict['confidence']['level']}"
    if found is not None and (repair := found["repair"]) is not None:
        yield f"Repair: {text.repaired(repair)}"
    if found is not None and found["reproducer"] is not None:
        yield f"Reproducer: {found['reproducer']['folder']}/, beside the report"


def _family(row: Family) -> Iterator[str]:
    words = VERDICTS[row["verdict"]]
    yield f"hloracle: {row['model']}: {words.title}"
    yield row["explanation"]
    if row["anchor"] is not None:
        yield f"{words.at.capitalize()} {row['anchor']}"


def _check(check: Check) -> Iterator[str]:
    yield f"{check['id']} ({check['status']}): {check['title']}"
    if check["figure"]:
        yield f"Measured {check['figure']}, limit {check['limit'] or 'none'}"
    if check["detail"]:
        yield check["detail"]


def _command(command: str, title: str, *lines: str, **place: str) -> str:
    """https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands"""
    properties = {"title": text.one_line(title, TITLE), **place}
    named = ",".join(f"{name}={_escaped_property(value)}" for name, value in properties.items())
    message = "\n".join(text.one_line(line, LINE) for line in lines) or properties["title"]
    return f"::{command} {named}::{_escaped(message)}"


def _escaped(value: str) -> str:
    """As `escapeData` of https://github.com/actions/toolkit/blob/main/packages/core/src/command.ts."""
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escaped_property(value: str) -> str:
    return _escaped(value).replace(":", "%3A").replace(",", "%2C")


def _place(record: Record, root: Path, graph: Path | None) -> dict[str, str]:
    """The `file` and `line` that the first wrong operation comes from, as far as they are known."""
    operation = record["localization"] and record["localization"]["operation"]
    if graph is not None:
        mine = operation if operation and operation["graph"] == graph.stem else None
        line = {"line": str(mine["line"])} if mine and mine["line"] is not None else {}
        return {"file": graph.as_posix()} | line
    if judged(record)["brought"]:
        return {}
    verdict, row = record["verdict"], at_fault(record)
    if row is None and _FOLDERS.get(verdict["class"]) == "emitters":
        for origin in operation["origin"] if operation else ():  # the innermost that is in this checkout
            path = Path(origin["file"])
            if path.parts[:1] == ("emitters",) and ".." not in path.parts and (root / path).is_file():
                return {"file": path.as_posix(), "line": str(origin["line"])}
    if row:
        return _place_of(row["verdict"], row["architecture"], row["anchor"], root)
    return _place_of(verdict["class"], record["model"]["architecture"], verdict["anchor"], root)


def _place_of(class_: str, architecture: str, anchor: str | None, root: Path) -> dict[str, str]:
    folder = _FOLDERS.get(class_)
    # A record may come from anywhere: a word of it becomes part of a path only if it can be a module's name.
    if folder is None or not re.fullmatch(r"[a-z0-9_]+", architecture):
        return {}
    own = Path(folder) / "architectures" / f"{architecture}.py"
    if not (root / own).is_file():
        return {}
    scope = layer_of(anchor or "")[1].rpartition(".")[2]
    for path in (own, *(Path(folder) / name for name in ("layers.py", "mlp.py", "model.py"))):
        lines = _lines_of_scope(root / path, scope) if scope else []
        if len(lines) == 1:
            return {"file": path.as_posix(), "line": str(lines[0])}
        if lines:  # several mechanisms have it, and which one this is nobody knows here
            return {"file": path.as_posix()}
    return {"file": own.as_posix()}


def _lines_of_scope(path: Path, scope: str) -> list[int]:
    """The lines on which a file enters an anchor's scope."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [i for i, line in enumerate(lines, 1) if f'scope("{scope}")' in line]
