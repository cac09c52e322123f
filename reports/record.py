"""The record of a run: what has to be true of it beyond its type, and the files made from it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, cast

from hloracle.core.errors import InputError
from hloracle.core.folder import remove_reproducer, write_files
from hloracle.core.given import parse_json, read_bytes
from hloracle.core.record import SCHEMA, Answer, Family, Record, Speed
from hloracle.core.shown import path_words
from hloracle.core.typed import problem, schema_text
from hloracle.reports.facts import VERDICTS, answers_of, differences, limits_of, of_limit
from hloracle.reports.text import one_line

SCHEMA_FILE = Path(__file__).with_name("report.schema.json")
LARGEST = 32 * 2**20  # bytes of a record: some twenty times that of a model with 30 layers
FIX = "name a report.json that this version of hloracle wrote"

# A list of numbers as json writes it, a number a line. Strings have no line break there, so none is touched.
_NUMBERS = re.compile(r'\[\n +([^][{}"]+)\n +\]')


def schema() -> str:
    """What reports/report.schema.json has to hold."""
    _, _, version = SCHEMA.partition("/")
    return schema_text(Record, f"https://hloracle.invalid/report/{version}", f"hloracle run record, version {version}")


def validate(record: Any) -> None:
    """Raises ValueError, one line that begins with the path, unless this is a record that agrees with itself."""
    if found := problem(Record, record) or next(_contradictions(record), ""):
        raise ValueError(found)


def load(path: Path) -> Record:
    """Read a record. Raises InputError that names the file and what is wrong with it."""
    return parse(read_bytes(path, LARGEST, FIX), path)


def parse(data: bytes, where: Path | str) -> Record:
    """The record that a file holds. Raises InputError that says of `where` what is wrong with it."""
    record = parse_json(data, where, FIX)
    found = record.get("schema") if isinstance(record, dict) else None
    if found != SCHEMA:
        words = "names no schema" if found is None else f"has the schema {one_line(repr(found), 60)}"
        raise InputError(f"{words}, not {SCHEMA!r}", where, FIX)
    try:
        validate(record)
    except ValueError as error:
        raise InputError(f"is not a valid record ({error})", where, FIX) from None
    return cast(Record, record)


def write_family(record: Record, directory: Path, name: str) -> str:
    """Write the record of a suite's family to families/NAME/, with its page where it has not passed; `` or the page's place.

    Files of an earlier run are removed first. Raises ValueError for an invalid record, InputError as `write_all`.
    """
    from hloracle.reports.page import html

    record = with_named_floats(record)
    validate(record)
    folder = f"families/{name}"
    page = None if record["passed"] else html.render(record)
    _replace(directory / folder, {"report.json": to_json(record), "report.html": page})
    return f"{folder}/report.html" if page else ""


def remove_family(directory: Path, name: str) -> None:
    """Remove what an earlier run has left of a family: what `write_family` wrote, and its reproducer."""
    folder = directory / "families" / name
    _replace(folder, {"report.json": None, "report.html": None})
    remove_reproducer(folder / "reproducer")


def write_all(record: Record, directory: Path) -> dict[str, Path]:
    """Write report.json, report.html, summary.md and junit.xml; returns where each of them is.

    All of them are drawn before the first is written, and those of an earlier run are removed first:
    whatever fails, no file is half written and no two are of different runs. An earlier run's reproducer is removed where
    this record names none. Equal records give equal files.
    Floats that JSON has no word for are written as `NaN`, `Infinity` and `-Infinity`.

    Raises ValueError for an invalid record, InputError when a file cannot be written.
    """
    from hloracle.reports import junit, summary
    from hloracle.reports.page import html

    record = with_named_floats(record)
    validate(record)
    drawn = {
        "report.json": to_json(record),
        "report.html": html.render(record),
        "summary.md": summary.render(record),
        "junit.xml": junit.render(record),
    }
    if record["localization"] is None or record["localization"]["reproducer"] is None:
        remove_reproducer(directory / "reproducer")
    _replace(directory, drawn)
    return {name: directory / name for name in drawn}


def to_json(record: Mapping[str, Any]) -> str:
    """A record as report.json holds it, or whatever else is written like one."""
    written = json.dumps(with_named_floats(record), indent=1, allow_nan=False)
    return _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", written) + "\n"


def _replace(folder: Path, files: Mapping[str, str | None]) -> None:
    """Put these in place of the files of an earlier run: all or none."""
    write_files({folder / name: content for name, content in files.items()})


def with_named_floats(node: Any) -> Any:
    """Whatever holds floats, with those that JSON has no word for by name."""
    if isinstance(node, dict):
        return {key: with_named_floats(entry) for key, entry in node.items()}
    if isinstance(node, list | tuple):
        return [with_named_floats(entry) for entry in node]
    if isinstance(node, float) and not math.isfinite(node):
        return "NaN" if math.isnan(node) else "Infinity" if node > 0 else "-Infinity"
    return node


def _contradictions(record: Record) -> Iterator[str]:
    """What a record may not say of itself, each as one line that begins with the path."""
    yield from _twice(record)
    yield from _source_contradictions(record)
    yield from _matrix_contradictions(record)
    yield from _token_contradictions(record)
    for i, configuration in enumerate(record["configurations"]):
        if configuration["agreed"] > configuration["total"]:
            yield f"configurations[{i}].agreed: {configuration['agreed']} of {configuration['total']}"
    yield from _graph_contradictions(record)
    yield from _speed_contradictions(record["speed"])
    yield from _anchor_contradictions(record)
    yield from _family_contradictions(record)
    yield from _verdict_contradictions(record)


def _twice(record: Record) -> Iterator[str]:
    """Whatever has a name has it alone."""
    named: dict[str, list[str]] = {
        **{f"{part}[{{}}].id": [entry["id"] for entry in cast(Any, record)[part]]
           for part in ("sources", "prompts", "configurations", "checks", "graphs")},
        "matrix.backends[{}].name": [backend["name"] for backend in record["matrix"]["backends"]],
        "floors[{}].anchor": [floor["anchor"] for floor in record["floors"]],
        "families[{}].model": [family["model"] for family in record["families"]],
        "listings[{}].graph": [listing["graph"] for listing in record["listings"]],
        **{f"listings[{i}].scopes[{{}}].anchor": [scope["anchor"] for scope in listing["scopes"]]
           for i, listing in enumerate(record["listings"])},
    }  # fmt: skip
    for path, names in named.items():
        seen: set[str] = set()
        for i, name in enumerate(names):
            if name in seen:
                yield f"{path.format(i)}: {one_line(name, 80)!r} stands twice"
            seen.add(name)


def _source_contradictions(record: Record) -> Iterator[str]:
    known = {source["id"] for source in record["sources"]}
    if not any(source["judged"] for source in record["sources"]):
        yield "sources: none is judged"
    for part in ("configurations", "graphs", "compiled", "anchors"):
        for i, entry in enumerate(cast(Any, record)[part]):
            if entry["source"] not in known:
                yield f"{part}[{i}].source: there is no source {one_line(entry['source'], 80)!r}"
    if (found := record["localization"]) is not None and found["source"] not in known:
        yield f"localization.source: there is no source {one_line(found['source'], 80)!r}"


def _matrix_contradictions(record: Record) -> Iterator[str]:
    sources = {source["id"] for source in record["sources"]}
    backends = {backend["name"] for backend in record["matrix"]["backends"]}
    for i, cell in enumerate(record["matrix"]["cells"]):
        where = f"matrix.cells[{i}]"
        for key, word, known in (("source", cell["source"], sources), ("backend", cell["backend"], backends)):
            if word not in known:
                yield f"{where}.{key}: there is no {key} {one_line(word, 80)!r}"
        if record["passed"] and cell["state"] != "right":
            yield f"{where}.state: is {cell['state']!r}, and the run has passed"


def _token_contradictions(record: Record) -> Iterator[str]:
    references = {p["id"]: p["reference"] for p in record["prompts"]}
    for i, prompt in enumerate(record["prompts"]):
        truth = prompt["reference"]
        for part, some in (("pieces", truth["pieces"]), ("gaps", truth["gaps"])):
            if some is not None and len(some) != len(truth["tokens"]):
                yield f"prompts[{i}].reference.{part}: {len(some)} for {len(truth['tokens'])} tokens"
    heads = {configuration["id"]: configuration["head"] for configuration in record["configurations"]}
    for id, entry in record["tokens"].items():
        path = ("tokens", id)
        if id not in references:
            yield f"{path_words(path)}: there is no such prompt"
            continue
        reference = references[id]["tokens"]
        if entry["total"] != len(reference):
            yield f"{path_words((*path, 'total'))}: is {entry['total']}, and the reference has {len(reference)} tokens"
        absent = heads.keys() - entry["configurations"].keys()
        worst = 0 if absent else min((answer["agreed"] for answer in entry["configurations"].values()), default=0)
        if entry["agreed"] != worst:
            yield f"{path_words((*path, 'agreed'))}: is {entry['agreed']}, and the worst configuration's is {worst}"
        for name, answer in entry["configurations"].items():
            where = (*path, "configurations", name)
            if name not in heads:
                yield f"{path_words(where)}: there is no such configuration"
            for key, words in _answer_contradictions(answer, reference, heads.get(name) == "token"):
                yield f"{path_words((*where, key))}: {words}"


def _answer_contradictions(answer: Answer, reference: Sequence[int], token_head: bool) -> Iterator[tuple[str, str]]:
    """A key of the answer, and what is wrong there."""
    tokens, errors, agreed = answer["tokens"], answer["errors"], answer["agreed"]
    if (pieces := answer["pieces"]) is not None and len(pieces) != len(tokens):
        yield "pieces", f"{len(pieces)} for {len(tokens)} tokens"
    if len(errors) != (wanted := 0 if token_head else len(tokens)):
        yield "errors", f"{len(errors)} for {wanted} tokens with logits"
    if answer["near_ties"] > answer["disagreements"]:
        yield "near_ties", f"{answer['near_ties']} of {answer['disagreements']} disagreements"
    different = differences(reference, tokens)
    first = different[0] if different else None
    if answer["total"] != len(reference):
        yield "total", f"is {answer['total']}, and the reference has {len(reference)} tokens"
    elif agreed > len(reference) - len(different):
        yield "agreed", f"is {agreed}, and {len(different)} tokens differ"
    elif not different and agreed != len(reference):
        yield "agreed", f"is {agreed}, and no token differs"
    ended = first is not None and first >= len(tokens)
    if answer["first_mismatch"] != first and not (ended and answer["first_mismatch"] is None):
        yield "first_mismatch", f"is {answer['first_mismatch']}, and the first is {first}"


def _graph_contradictions(record: Record) -> Iterator[str]:
    graphs = {graph["id"] for graph in record["graphs"]}
    for i, graph in enumerate(record["graphs"]):
        if (total := sum(graph["ops"].values())) != graph["op_total"]:
            yield f"graphs[{i}].op_total: is {graph['op_total']}, and the operations are {total}"
        if (kinds := sum(n > 0 for n in graph["ops"].values())) != graph["op_kinds"]:
            yield f"graphs[{i}].op_kinds: is {graph['op_kinds']}, and there are {kinds} kinds of operation"
        if (graph["flops"] is None) != (graph["bytes"] is None):
            yield f"graphs[{i}].bytes: of flops and bytes one is known and the other is not"
    for i, listing in enumerate(record["listings"]):
        if (name := listing["graph"]) not in graphs:
            yield f"listings[{i}].graph: there is no graph {one_line(name, 80)!r}"
        for j, scope in enumerate(listing["scopes"]):
            if (scope["flops"] is None) != (scope["bytes"] is None):
                yield f"listings[{i}].scopes[{j}].bytes: of flops and bytes one is known and the other is not"
    if record["block"] is not None:
        if record["block"]["graph"] not in graphs:
            yield f"block.graph: there is no graph {one_line(record['block']['graph'], 80)!r}"
        n = len(record["block"]["nodes"])
        for i, (begin, end) in enumerate(record["block"]["edges"]):
            if not begin < end < n:
                yield f"block.edges[{i}]: leads from {begin} to {end} of {n} nodes"


def _speed_contradictions(speed: Speed) -> Iterator[str]:
    contenders = speed["contenders"]
    if len({len(contender["ms_per_token"]) for contender in contenders}) > 1:
        yield "speed.contenders: some have more rounds than others"
    measured = any(contender["ms_per_token"] for contender in contenders)
    if measured == bool(speed["reason"]):
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
                yield f"{path_words(('localization', 'reproducer', *key))}: {one_line(path, 80)!r} leaves the report's folder"


def _family_contradictions(record: Record) -> Iterator[str]:
    rows, model = record["families"], record["model"]
    if rows and (rows[0]["model"], rows[0]["architecture"]) != (model["name"], model["architecture"]):
        yield "families[0].model: is not this record's own"
    for i, row in enumerate(rows):
        if row["passed"] != VERDICTS[row["verdict"]].passed:
            yield f"families[{i}].passed: is {row['passed']}, and the verdict is {row['verdict']!r}"
        if record["passed"] and not row["passed"]:
            yield f"families[{i}].passed: {one_line(row['model'], 80)!r} has not passed, and the run has"
        tokens, mutants = row["tokens"], row["mutants"]
        if tokens["agreed"] > tokens["total"]:
            yield f"families[{i}].tokens.agreed: {tokens['agreed']} of {tokens['total']}"
        if mutants["killed"] > mutants["total"]:
            yield f"families[{i}].mutants.killed: {mutants['killed']} of {mutants['total']}"
        if bool(mutants["total"]) == bool(mutants["reason"]):
            yield f"families[{i}].mutants.reason: is there, and mutants were planted, or neither is"
        if row["passed"]:
            yield from (f"families[{i}].{line}" for line in _against_passing(row))
    if rows and not record["passed"] and all(row["passed"] for row in rows):
        yield "families: all have passed, and the run has not"


def _against_passing(row: Family) -> Iterator[str]:
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


def _verdict_contradictions(record: Record) -> Iterator[str]:
    verdict = record["verdict"]
    if record["passed"] != VERDICTS[verdict["class"]].passed:
        yield f"passed: is {record['passed']}, and the verdict is {verdict['class']!r}"
    if verdict["compared"] and not record["prompts"]:
        yield "verdict.compared: is there, and no prompt was run"
    if record["passed"]:
        yield from (f"{line}, and the run has passed" for line in _against_the_pass(record))


def _against_the_pass(record: Record) -> Iterator[str]:
    """What no run has that has passed."""
    verdict = record["verdict"]
    named = {key: value for key, value in verdict.items() if key in ("anchor", "operation", "confidence")}
    yield from (f"verdict.{key}: is there" for key, value in named.items() if value is not None)
    if not verdict["compared"]:
        yield "verdict.compared: is empty"
    if record["localization"] is not None:
        yield "localization: is there"
    if record["canary"] is not None and not record["canary"]["caught"]:
        yield "canary.caught: is False"
    yield from _anchors_over(record)
    yield from _spreads_over(record)
    for i, check in enumerate(record["checks"]):
        if check["status"] in ("failed", "error"):
            yield f"checks[{i}].status: {one_line(check['id'], 80)!r} is {check['status']!r}"
    if not any(check["status"] == "passed" for check in record["checks"]):
        yield "checks: none has passed"
    for i, configuration in enumerate(record["configurations"]):
        if configuration["status"] == "failed":
            yield f"configurations[{i}].status: {one_line(configuration['id'], 80)!r} is 'failed'"
    for prompt, entry in record["tokens"].items():
        if verdict["class"] == "conforms" and entry["agreed"] != entry["total"]:
            yield f"{path_words(('tokens', prompt, 'agreed'))}: {entry['agreed']} of {entry['total']}"
        for name, answer in entry["configurations"].items():
            if (ratio := of_limit(answer)) is not None and not ratio <= 1:
                where = path_words(("tokens", prompt, "configurations", name, "logit_error"))
                yield f"{where}: {answer['logit_error']} is over the limit"
    if missing := [p["id"] for p in record["prompts"] if not answers_of(record, p["id"])]:
        yield f"tokens: the prompt {one_line(missing[0], 80)!r} was not compared"
    if not record["prompts"]:
        yield "tokens: nothing was compared"


def _spreads_over(record: Record) -> Iterator[str]:
    for i, spread in enumerate(record["spreads"]):
        for name, limit in spread["limit"].items():
            if not float(got := cast(Any, spread["graph"])[name]) <= float(cast(Any, limit)):
                yield f"spreads[{i}].graph.{name}: {got} is over the limit {limit}"


def _anchors_over(record: Record) -> Iterator[str]:
    limits = limits_of(record)
    for i, matrix in enumerate(record["anchors"]):
        for j, (anchor, row) in enumerate(zip(matrix["anchors"], matrix["errors"], strict=True)):
            if (limit := limits.get(anchor)) is None:
                yield f"anchors[{i}].anchors[{j}]: {one_line(anchor, 80)!r} has no floor"
                continue
            for k, error in enumerate(row):
                if error is not None and not float(error) <= limit:
                    yield f"anchors[{i}].errors[{j}][{k}]: {error} is over the limit {limit}"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema(), "utf-8")
