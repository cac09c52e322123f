"""The record of a run: its schema, what has to be true of it beyond the schema, and the files made from it."""

from __future__ import annotations

import functools
import json
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

import jsonschema
from jsonschema.exceptions import ValidationError, best_match

from hloracle.core.cache import write_file
from hloracle.core.errors import InputError
from hloracle.reports.facts import VERDICTS, Record, cells_of, differences, limits_of, of_limit
from hloracle.reports.text import one_line

SCHEMA = "hloracle-report/5"
OLDER = ("hloracle-report/4", "hloracle-report/3", "hloracle-report/2")

LARGEST = 2**63 - 1  # what other readers of JSON can hold

# A list of numbers as json writes it, a number a line. Strings have no line break there, so none is touched.
_NUMBERS = re.compile(r'\[\n +([^][{}"]+)\n +\]')


@functools.cache
def _validator() -> Any:
    schema = json.loads(resources.files("hloracle.reports").joinpath("report.schema.json").read_text("utf-8"))
    extended = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"items": _items})  # type: ignore[no-untyped-call]
    return extended(schema)


# What is valid by its type alone. A matrix may have a million numbers, and jsonschema needs 10 µs for each.
_BY_TYPE = {"#/$defs/figure": {float, int, type(None)}, "#/$defs/float": {float, int}}


def _items(validator: Any, items: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """The keyword `items`: a list of nothing but numbers is looked at as a whole."""
    known = _BY_TYPE.get(items.get("$ref"), set[type]())
    if not (isinstance(instance, list) and known.issuperset(map(type, instance))):
        yield from jsonschema.Draft202012Validator.VALIDATORS["items"](validator, items, instance, schema)


# What settings say that version 4 did not say, or not from its beginning: there was no other layout, and nothing else could
# be asked for.
EARLIER = {
    "layout": "rows", "joined": False, "builds": dict.fromkeys(("decode", "prefill"), "not recorded"), "chosen": "untuned", "ignored": "",
    "backends": ["iree-cpu", "xla-cpu"], "custom_calls": [], "on_device": False,
    "arithmetic": dict.fromkeys(("truth", "device"), "not recorded"), "timeout": None,
}  # fmt: skip


def validate(record: Record) -> None:
    """Raises ValueError, one line that begins with the path, unless this is a record that agrees with itself."""
    if problem := next(_not_json(record, ()), None):
        raise ValueError(problem)
    if error := best_match(_validator().iter_errors(record)):
        raise ValueError(f"{_path(error.absolute_path)}: {_message(error)}")
    if problem := next(_contradictions(record), None):
        raise ValueError(problem)


def load(path: Path) -> Record:
    """Read a record of this version or of the three before. Raises InputError that names the file and what is wrong with it."""
    fix = "name a report.json that this version of hloracle wrote"
    try:
        record = json.loads(path.read_text("utf-8"), parse_constant=_no_constant)
    except FileNotFoundError:
        raise InputError("no such file", path, fix) from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"is not a readable JSON file ({one_line(str(error), 120)})", path, fix) from None
    found = record.get("schema") if isinstance(record, dict) else None
    if found in OLDER:
        try:
            _bring_up_to_date(record)
        except (KeyError, TypeError, AttributeError, OverflowError):
            raise InputError(f"is not a valid record of {found!r}", path, fix) from None
        found = SCHEMA
    if found != SCHEMA:
        words = "names no schema" if found is None else f"has the schema {one_line(repr(found), 60)}"
        raise InputError(f"{words}, not {SCHEMA!r}", path, fix)
    try:
        validate(record)
    except ValueError as error:
        raise InputError(f"is not a valid record ({error})", path, fix) from None
    return dict(record)


def _bring_up_to_date(record: Record) -> None:
    """Make a record of an older version one of this version: what it did not measure was not measured."""
    if record["schema"] == "hloracle-report/2":
        _from_version_2(record)
    if record["schema"] != "hloracle-report/4":
        _from_version_3(record)
    _from_version_4(record)
    record["schema"] = SCHEMA


def _from_version_4(record: Record) -> None:
    for key, value in EARLIER.items():
        record["settings"].setdefault(key, value)
    record["environment"].setdefault("device", None)
    record.setdefault("compiled", [])
    record["verdict"] |= {"compared": None, "not_compared": None}


def _from_version_3(record: Record) -> None:
    record["model"]["architecture"] = record["model"].pop("model_type")
    record["settings"]["lean"] = False
    record["families"] = []


def _from_version_2(record: Record) -> None:
    for graph in record["graphs"]:
        graph |= {"flops": None, "bytes": None, "digest": ""}
    begin = 0.0
    for timing in record["timings"]:
        timing |= {"begin": round(begin, 3), "parts": []}
        begin += timing["seconds"]
    speed = {"reason": f"the record is of {record['schema']}", "context": 0, "tokens": 0, "contenders": []}
    record |= {"listings": [], "block": None, "speed": speed}
    record["environment"]["commit"] = None


FAMILY_FILES = ("report.json", "report.html")


def write_family(record: Record, directory: Path, name: str) -> str:
    """Write the record of a suite's family to families/NAME/, with its page where it has not passed; `` or the page's place.

    Files of an earlier run are removed first. Raises ValueError for an invalid record, InputError as `write_all`.
    """
    from hloracle.reports.page import html

    record = _with_named_floats(record)
    validate(record)
    folder = f"families/{name}"
    drawn = {"report.json": to_json(record)}
    if not record["passed"]:
        drawn["report.html"] = html.render(record)
    _remove(directory / folder / file for file in FAMILY_FILES)
    for file, content in drawn.items():
        write_file(directory / folder / file, content)
    return "" if record["passed"] else f"{folder}/report.html"


def remove_family(directory: Path, name: str) -> None:
    """Remove what an earlier run has left of a family: what `write_family` wrote, and its reproducer."""
    folder = directory / "families" / name
    _remove(folder / file for file in FAMILY_FILES)
    shutil.rmtree(folder / "reproducer", ignore_errors=True)


def write_all(record: Record, directory: Path) -> dict[str, Path]:
    """Write report.json, report.html, summary.md and junit.xml; returns where each of them is.

    All of them are drawn before the first is written, and those of an earlier run are removed first:
    whatever fails, no file is half written and no two are of different runs. Equal records give equal files.
    Floats that JSON has no word for are written as `NaN`, `Infinity` and `-Infinity`.

    Raises ValueError for an invalid record, InputError when a file cannot be written.
    """
    from hloracle.reports import junit, summary
    from hloracle.reports.page import html

    record = _with_named_floats(record)
    validate(record)
    drawn = {
        "report.json": to_json(record),
        "report.html": html.render(record),
        "summary.md": summary.render(record),
        "junit.xml": junit.render(record),
    }
    paths = {name: directory / name for name in drawn}
    _remove(paths.values())
    try:
        for name, path in paths.items():
            write_file(path, drawn[name])
    except BaseException:
        _remove(paths.values())
        raise
    return paths


def to_json(record: Record) -> str:
    """The record as report.json holds it."""
    written = json.dumps(_with_named_floats(record), indent=1, allow_nan=False)
    return _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", written) + "\n"


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError:  # not a file, or not ours: writing to it says so in better words
            continue


def _with_named_floats(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _with_named_floats(entry) for key, entry in node.items()}
    if isinstance(node, list | tuple):
        return [_with_named_floats(entry) for entry in node]
    if isinstance(node, float) and not math.isfinite(node):
        return "NaN" if math.isnan(node) else "Infinity" if node > 0 else "-Infinity"
    return node


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _path(parts: Iterable[str | int]) -> str:
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier():
            path += f".{part}" if path else part
        else:
            path += f"[{json.dumps(one_line(part, 80))}]"
    return path or "the record"


def _message(error: ValidationError) -> str:
    if isinstance(error.instance, dict | list) and error.validator not in ("required", "additionalProperties"):
        return f"{'an object' if isinstance(error.instance, dict) else 'a list'} does not belong here"
    return one_line(str(error.message), 200)


def _not_json(node: Any, path: tuple[str | int, ...]) -> Iterator[str]:
    """What the schema's types are too generous for: keys that are not strings, array scalars, NaN, endless integers."""
    if isinstance(node, dict):
        for key, entry in node.items():
            if isinstance(key, str):
                yield from _not_json(entry, (*path, key))
            else:
                yield f"{_path(path)}: the key {one_line(repr(key), 60)} is not a string"
    elif isinstance(node, list):
        for index, entry in enumerate(node):
            yield from _not_json(entry, (*path, index))
    elif isinstance(node, float) and not math.isfinite(node):
        yield f"{_path(path)}: JSON has no {node}; write it as a string"
    elif isinstance(node, int) and abs(node) > LARGEST:
        yield f"{_path(path)}: is an integer of more than 64 bits"
    elif not (node is None or isinstance(node, str | int | float)):
        yield f"{_path(path)}: a {type(node).__name__} is not JSON"


def _contradictions(record: Record) -> Iterator[str]:
    """What a record may not say of itself, each as one line that begins with the path."""
    for part, key in (
        ("prompts", "id"),
        ("cells", "id"),
        ("checks", "id"),
        ("graphs", "id"),
        ("floors", "anchor"),
        ("families", "model"),
    ):
        seen: set[str] = set()
        for i, entry in enumerate(record[part]):
            if entry[key] in seen:
                yield f"{_path((part, i, key))}: {one_line(entry[key], 80)!r} stands twice"
            seen.add(entry[key])
    yield from _token_contradictions(record)
    for i, cell in enumerate(record["cells"]):
        if cell["agreed"] > cell["total"]:
            yield f"cells[{i}].agreed: {cell['agreed']} of {cell['total']}"
    for i, graph in enumerate(record["graphs"]):
        if (total := sum(graph["ops"].values())) != graph["op_total"]:
            yield f"graphs[{i}].op_total: is {graph['op_total']}, and the operations are {total}"
        if (kinds := sum(n > 0 for n in graph["ops"].values())) != graph["op_kinds"]:
            yield f"graphs[{i}].op_kinds: is {graph['op_kinds']}, and there are {kinds} kinds of operation"
    yield from _graph_contradictions(record)
    yield from _anchor_contradictions(record)
    yield from _family_contradictions(record)
    yield from _verdict_contradictions(record)
    yield from _compared_contradictions(record)


def _token_contradictions(record: Record) -> Iterator[str]:
    truths = {p["id"]: p["truth"] for p in record["prompts"]}
    for i, prompt in enumerate(record["prompts"]):
        yield from _lengths(prompt["truth"], ("pieces", "gaps"), ("prompts", i, "truth"))
    heads = {cell["id"]: cell["head"] for cell in record["cells"]}
    for prompt, entry in record["tokens"].items():
        path: tuple[str | int, ...] = ("tokens", prompt)
        if prompt not in truths:
            yield f"{_path(path)}: there is no such prompt"
            continue
        truth = truths[prompt]["tokens"]
        if entry["total"] != len(truth):
            yield f"{_path((*path, 'total'))}: is {entry['total']}, and the truth has {len(truth)} tokens"
        absent = heads.keys() - entry["cells"].keys()
        worst = 0 if absent else min((cell["agreed"] for cell in entry["cells"].values()), default=0)
        if entry["agreed"] != worst:
            yield f"{_path((*path, 'agreed'))}: is {entry['agreed']}, and the worst cell's is {worst}"
        for name, cell in entry["cells"].items():
            where = (*path, "cells", name)
            if name not in heads:
                yield f"{_path(where)}: there is no such cell"
            yield from _lengths(cell, ("pieces",), where)
            if len(cell["errors"]) != (wanted := 0 if heads.get(name) == "token" else len(cell["tokens"])):
                yield f"{_path((*where, 'errors'))}: {len(cell['errors'])} for {wanted} tokens with logits"
            if cell["near_ties"] > cell["disagreements"]:
                yield f"{_path((*where, 'near_ties'))}: {cell['near_ties']} of {cell['disagreements']} disagreements"
            different = differences(truth, cell["tokens"])
            first = different[0] if different else None
            if cell["total"] != len(truth):
                yield f"{_path((*where, 'total'))}: is {cell['total']}, and the truth has {len(truth)} tokens"
            elif cell["agreed"] > len(truth) - len(different):
                yield f"{_path((*where, 'agreed'))}: is {cell['agreed']}, and {len(different)} tokens differ"
            elif not different and cell["agreed"] != len(truth):
                yield f"{_path((*where, 'agreed'))}: is {cell['agreed']}, and no token differs"
            ended = first is not None and first >= len(cell["tokens"])
            if cell["first_mismatch"] != first and not (ended and cell["first_mismatch"] is None):
                yield f"{_path((*where, 'first_mismatch'))}: is {cell['first_mismatch']}, and the first is {first}"


def _graph_contradictions(record: Record) -> Iterator[str]:
    graphs = {graph["id"] for graph in record["graphs"]}
    for i, graph in enumerate(record["graphs"]):
        if (graph["flops"] is None) != (graph["bytes"] is None):
            yield f"graphs[{i}].bytes: of flops and bytes one is known and the other is not"
    listed: set[str] = set()
    for i, listing in enumerate(record["listings"]):
        if (name := listing["graph"]) not in graphs:
            yield f"listings[{i}].graph: there is no graph {one_line(name, 80)!r}"
        if name in listed:
            yield f"listings[{i}].graph: {one_line(name, 80)!r} stands twice"
        listed.add(name)
        scopes: set[str] = set()
        for j, scope in enumerate(listing["scopes"]):
            if scope["anchor"] in scopes:
                yield f"listings[{i}].scopes[{j}].anchor: {one_line(scope['anchor'], 80)!r} stands twice"
            scopes.add(scope["anchor"])
            if (scope["flops"] is None) != (scope["bytes"] is None):
                yield f"listings[{i}].scopes[{j}].bytes: of flops and bytes one is known and the other is not"
    if record["block"] is not None:
        if record["block"]["graph"] not in graphs:
            yield f"block.graph: there is no graph {one_line(record['block']['graph'], 80)!r}"
        n = len(record["block"]["nodes"])
        for i, (begin, end) in enumerate(record["block"]["edges"]):
            if not begin < end < n:
                yield f"block.edges[{i}]: leads from {begin} to {end} of {n} nodes"
    contenders = record["speed"]["contenders"]
    if len({len(contender["ms_per_token"]) for contender in contenders}) > 1:
        yield "speed.contenders: some have more rounds than others"
    measured = any(contender["ms_per_token"] for contender in contenders)
    if measured == bool(record["speed"]["reason"]):
        yield f"speed.reason: is {'there, and something' if measured else 'empty, and nothing'} was measured"


def _anchor_contradictions(record: Record) -> Iterator[str]:
    for i, matrix in enumerate(record["anchors"]):
        if (rows := len(matrix["errors"])) != (n := len(matrix["anchors"])):
            yield f"anchors[{i}].errors: {rows} rows for {n} anchors"
        for j, row in enumerate(matrix["errors"]):
            if len(row) != (n := len(matrix["positions"])):
                yield f"anchors[{i}].errors[{j}]: {len(row)} for {n} positions"
    localization = record["localization"]
    if localization is None:
        return
    if (reproducer := localization["reproducer"]) is not None:
        paths: dict[tuple[str | int, ...], str] = {("folder",): reproducer["folder"]}
        paths |= {("files", i): name for i, name in enumerate(reproducer["files"])}
        for key, path in paths.items():
            if _leaves(path):
                yield f"{_path(('localization', 'reproducer', *key))}: {one_line(path, 80)!r} leaves the report's folder"


def _family_contradictions(record: Record) -> Iterator[str]:
    rows, model = record["families"], record["model"]
    if rows and (rows[0]["model"], rows[0]["architecture"]) != (model["name"], model["architecture"]):
        yield "families[0].model: is not this record's own"
    for i, row in enumerate(rows):
        if row["passed"] != VERDICTS[row["verdict"]].passed:
            yield f"families[{i}].passed: is {row['passed']}, and the verdict is {row['verdict']!r}"
        if record["passed"] and not row["passed"]:
            yield f"families[{i}].passed: {one_line(row['model'], 80)!r} has not passed, and the run has"
        for key, part, whole in (("tokens", "agreed", "total"), ("mutants", "killed", "total")):
            if row[key][part] > row[key][whole]:
                yield f"families[{i}].{key}.{part}: {row[key][part]} of {row[key][whole]}"
        if bool(row["mutants"]["total"]) == bool(row["mutants"]["reason"]):
            yield f"families[{i}].mutants.reason: is there, and mutants were planted, or neither is"
        if row["passed"]:
            yield from (f"families[{i}].{line}" for line in _against_passing(row))
    if rows and not record["passed"] and all(row["passed"] for row in rows):
        yield "families: all have passed, and the run has not"


def _against_passing(row: Record) -> Iterator[str]:
    if row["anchor"] is not None:
        yield "anchor: is there, and the model has passed"
    if row["failed"]:
        yield f"failed: {one_line(row['failed'][0]['id'], 80)!r} is there, and the model has passed"
    if not row["tokens"]["total"]:
        yield "tokens: nothing was compared, and the model has passed"
    if row["verdict"] == "conforms" and row["tokens"]["agreed"] != row["tokens"]["total"]:
        yield f"tokens.agreed: {row['tokens']['agreed']} of {row['tokens']['total']}, and the model conforms"
    if (worst := row["worst"]) is not None and not float(worst["floors"]) <= worst["limit"]:
        yield f"worst.floors: {worst['floors']} is over the limit {worst['limit']}, and the model has passed"


def _leaves(path: str) -> bool:
    """Whether a path may lead out of the folder that it is relative to, on any system."""
    parts = PurePosixPath(path.replace("\\", "/"))
    return parts.is_absolute() or ".." in parts.parts or ":" in path


def _lengths(entry: Record, names: Sequence[str], path: tuple[str | int, ...]) -> Iterator[str]:
    for name in names:
        if entry[name] is not None and len(entry[name]) != len(entry["tokens"]):
            yield f"{_path((*path, name))}: {len(entry[name])} for {len(entry['tokens'])} tokens"


def _compared_contradictions(record: Record) -> Iterator[str]:
    compared, not_compared = (record["verdict"][key] for key in ("compared", "not_compared"))
    if (compared is None) != (not_compared is None):
        yield "verdict.not_compared: of what was compared and what was not, one is known and the other is not"
    if compared and not record["prompts"]:
        yield "verdict.compared: is there, and no prompt was run"
    if compared == [] and record["passed"]:
        yield "verdict.compared: is empty, and the run has passed"


def _verdict_contradictions(record: Record) -> Iterator[str]:
    name, checks = record["verdict"]["class"], record["checks"]
    if record["passed"] != VERDICTS[name].passed:
        yield f"passed: is {record['passed']}, and the verdict is {name!r}"
    if not record["passed"]:
        return
    for key in ("anchor", "operation", "confidence"):
        if record["verdict"][key] is not None:
            yield f"verdict.{key}: is there, and the run has passed"
    if record["localization"] is not None:
        yield "localization: is there, and the run has passed"
    if record["canary"] is not None and not record["canary"]["caught"]:
        yield "canary.caught: is False, and the run has passed"
    limits = limits_of(record)
    for i, matrix in enumerate(record["anchors"]):
        for j, (anchor, row) in enumerate(zip(matrix["anchors"], matrix["errors"], strict=True)):
            if (limit := limits.get(anchor)) is None:
                yield f"anchors[{i}].anchors[{j}]: {one_line(anchor, 80)!r} has no floor, and the run has passed"
                continue
            for k, error in enumerate(row):
                if error is not None and not float(error) <= limit:
                    yield f"anchors[{i}].errors[{j}][{k}]: {error} is over the limit {limit}, and the run has passed"
    for i, check in enumerate(checks):
        if check["status"] in ("failed", "error"):
            yield f"checks[{i}].status: {one_line(check['id'], 80)!r} is {check['status']!r}, and the run has passed"
    for i, cell in enumerate(record["cells"]):
        if cell["status"] == "failed":
            yield f"cells[{i}].status: {one_line(cell['id'], 80)!r} is 'failed', and the run has passed"
    for prompt, entry in record["tokens"].items():
        for cell_name, cell in entry["cells"].items():
            ratio = of_limit(cell)
            if ratio is not None and not ratio <= 1:
                where = _path(("tokens", prompt, "cells", cell_name, "logit_error"))
                yield f"{where}: {cell['logit_error']} is over the limit, and the run has passed"
    missing = [p["id"] for p in record["prompts"] if not cells_of(record, p["id"])]
    if missing:
        yield f"tokens: the prompt {one_line(missing[0], 80)!r} was not compared, and the run has passed"
    if not record["prompts"]:
        yield "tokens: nothing was compared, and the run has passed"
    if not any(check["status"] == "passed" for check in checks):
        yield "checks: none has passed, and the run has"
    if name == "conforms":
        for prompt, entry in record["tokens"].items():
            if entry["agreed"] != entry["total"]:
                where = _path(("tokens", prompt, "agreed"))
                yield f"{where}: {entry['agreed']} of {entry['total']}, and the run conforms"
