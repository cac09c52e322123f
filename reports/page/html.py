"""The page of a run: one file that needs nothing else, drawn from the record.

Its script searches and opens folds; without it everything can be read all the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from hloracle.core.record import Answer, Configuration, Prompt, Record, Reference
from hloracle.reports import text
from hloracle.reports.facts import (
    VERDICTS,
    answers_of,
    at_fault,
    by_status,
    closest_call,
    comparisons,
    differences,
    families,
    in_order,
    judged,
    noun,
    token_totals,
    took,
)
from hloracle.reports.page import charts, compiled, graphs, heat, spreads
from hloracle.reports.page.base import draw

EVIDENCE = 6  # observations that are shown before the rest is folded
STEPS_IN_A_ROW = 10  # of the token alignment: fits a laptop's screen


def render(record: Record) -> str:
    """The page of a valid record. Equal records give equal pages."""
    phases = graphs.side_by_side(record)
    verdict = VERDICTS[record["verdict"]["class"]]
    prompts = [_prompt(record, i) for i in range(len(record["prompts"]))]
    _open_one(prompts, record["verdict"]["prompt"])
    context = {
        "r": record,
        "judged": noun(judged(record)["title"]),
        "verdict": verdict,
        "sentence": _sentence(record),
        "comparisons": comparisons(record),
        "shown": EVIDENCE,
        "next": list(_next(record)),
        "matrix": _matrix(record),
        "witnesses": _witnesses(record),
        "totals": token_totals(record),
        "prompts": prompts,
        "checks": by_status(record["checks"]),
        "families": families(record),
        "verdicts": VERDICTS,
        "tally": _tally(record),
        "chain": charts.chain(record),
        "maps": heat.heat_maps(record),
        "floors": heat.floors(record),
        "logits": charts.logits(record),
        "spreads": spreads.spreads(record),
        "phases": phases,
        "wrong_shown": any(phase["wrong"] for phase in phases),
        "block": graphs.block(record),
        "links": {s["anchor"]: f"scope-{s['id']}" for phase in reversed(phases) for s in phase["scopes"]},
        "censuses": graphs.censuses(record),
        "targets": compiled.matrix(record),
        "speed": charts.speed(record),
        "took": took(record),
    }
    return draw("report.html.j2", context, script="report.js")


# ---- the verdict


def _sentence(record: Record) -> str:
    """What the verdict says of what: the family, device and precision, and the anchor that it names."""
    settings, verdict, row = record["settings"], record["verdict"], at_fault(record)
    words = VERDICTS[verdict["class"]]
    what = row["architecture"] if row else record["model"]["architecture"]
    if record["passed"] and (count := len({row["architecture"] for row in record["families"]})) > 1:
        what = f"{count} architectures"
    computed = f", computed in {settings['compute']}" if settings["compute"] != "f32" else ""
    computed += ", keys and values in int8" if settings["kv"] == "int8" else ""
    of = f"{what} on {settings['device']} in {settings['precision']}{computed}"
    anchor = row["anchor"] if row else verdict["anchor"]
    at = f", {words.at} {anchor}" if anchor else ""
    return f"{of}{at}: {words.meaning[0].lower()}{words.meaning[1:]}"


def _next(record: Record) -> Iterator[tuple[str, str, str]]:
    """What to do about a run that has not passed, as lead, words, and where on this page it is (empty if it is not)."""
    if record["passed"]:
        return
    verdict, row = record["verdict"], at_fault(record)
    architecture = row["architecture"] if row else record["model"]["architecture"]
    anchor = row["anchor"] if row else verdict["anchor"]
    yield *_advice(record, architecture, f"at {anchor}" if anchor else "from the top"), ""
    if row:
        yield f"See {row['model']}", VERDICTS[row["verdict"]].title.lower(), "#family-0"
    if (found := record["localization"]) is not None:
        if (op := found["operation"]) is not None:
            line = "" if op["line"] is None else f"line {op['line']} of "
            yield "See the first wrong operation", f"{op['name']}, {line}{op['graph']}", "#operation"
        if (repair := found["repair"]) is not None:
            yield "See what would put it right", text.repaired(repair), "#repair"
        if (reproducer := found["reproducer"]) is not None:
            words = "it shows the fault by itself" if reproducer["shown"] else "it did not show the fault by itself"
            yield "Run the reproducer", words, "#reproducer"
    for i, prompt in enumerate(record["prompts"]):
        if prompt["id"] == verdict["prompt"]:
            step = "" if verdict["step"] is None else f", step {verdict['step']}"
            yield "See the tokens side by side", f"{prompt['id']}{step}", f"#prompt-{i}"
    if any(column["status"] == "failed" for column in record["configurations"]):
        yield "See why configurations gave no result", "", "#configurations"
    if any(check["status"] in ("failed", "error") for check in record["checks"]):
        yield "See the checks that did not pass", "", "#checks"


def _advice(record: Record, architecture: str, at: str) -> tuple[str, str]:
    """What to do about a class of verdict, and where; of a graph that a user brought there is no source to read here."""
    own = f"emitters/architectures/{architecture}.py"
    oracle = f"reference/oracle/architectures/{architecture}.py"
    brought = judged(record)["brought"]
    nothing = "nothing about the graphs follows from this run"
    found: dict[str, tuple[str, str]] = {
        "reference-fault": ("Read the oracle beside the module in transformers", f"{oracle}, {at}"),
        "emitter-fault": ("Read the file beside the oracle’s graph", at)
        if brought
        else ("Read the emitter beside the oracle", f"{own} and {oracle}, {at}"),
        "compiler-fault": ("Reduce the graph on the compiler that is wrong", f"{at}; the same text is right elsewhere"),
        "device-fault": ("Reduce the graph on the device that is wrong", f"{at}; the same text is right elsewhere"),
        "invariant-broken": (
            "Mend the graph, or change the invariant with a reason",
            f"{at} of the file" if brought else f"{own}, {at}",
        ),
        "unsupported": ("Give a graph that a backend here can run", f"{at}; nothing is known of this one"),
        "out-of-memory": ("Run it with more memory, or a smaller model of this architecture", nothing),
        "timeout": ("Run it again with a larger --timeout", nothing),
        "harness-error": ("Mend the run first", nothing),
    }
    return found[record["verdict"]["class"]]


def _tally(record: Record) -> list[tuple[str, int]]:
    """How many checks have each status, without those that none has: what the verdict rests on first."""
    statuses = [check["status"] for check in record["checks"]]
    order = ("passed", "skipped") if record["passed"] else ("failed", "error", "skipped", "passed")
    return [(s, statuses.count(s)) for s in order if s in statuses]


# ---- the matrix


def _witnesses(record: Record) -> dict[str, Any]:
    """A row for each backend, with a cell for each source, None where it was not asked of that; no rows where there is one."""
    sources, matrix = record["sources"], record["matrix"]
    cells = {(cell["backend"], cell["source"]): cell for cell in matrix["cells"]}
    rows = [
        {"backend": backend, "cells": [cells.get((backend["name"], source["id"])) for source in sources]}
        for backend in matrix["backends"]
    ]
    return {"sources": sources, "rows": rows if len(rows) > 1 else []}


def _matrix(record: Record) -> dict[str, Any]:
    columns = in_order(record, record["configurations"])
    groups = [(s, n) for s in record["sources"] if (n := sum(c["source"] == s["id"] for c in columns))]
    starts = {next(c["id"] for c in columns if c["source"] == s["id"]) for s, _ in groups}
    rows = []
    for i, prompt in enumerate(record["prompts"]):
        compared = answers_of(record, prompt["id"])
        row = [_matrix_cell(prompt, c, compared.get(c["id"])) for c in columns]
        rows.append({"index": i, "prompt": prompt, "closest": closest_call(prompt), "cells": row})
    return {"columns": columns, "groups": groups, "rows": rows, "starts": starts}


def _matrix_cell(prompt: Prompt, column: Configuration, compared: Answer | None) -> dict[str, Any]:
    if compared is None:
        return {"state": "failed" if column["status"] == "failed" else "absent", "column": column["id"]}
    different = differences(prompt["reference"]["tokens"], compared["tokens"])
    return {
        "state": "differs" if different else "equal",
        "column": column["id"],
        "agreed": compared["agreed"],
        "total": compared["total"],
        "first": different[0] if different else 0,
    }


# ---- tokens side by side


def _prompt(record: Record, index: int) -> dict[str, Any]:
    prompt = record["prompts"][index]
    truth, compared = prompt["reference"], answers_of(record, prompt["id"])
    columns = {c["id"]: c for c in record["configurations"]}
    same = [name for name, answer in compared.items() if not differences(truth["tokens"], answer["tokens"])]
    # Configurations that are wrong in the same way are shown once.
    alike: dict[tuple[int, ...], list[str]] = {}
    for name, answer in compared.items():
        if name not in same:
            alike.setdefault(tuple(answer["tokens"]), []).append(name)
    differing, slips = [], []
    for names in alike.values():
        answer = compared[names[0]]
        different = differences(truth["tokens"], answer["tokens"])
        step = different[0]
        differing.append(_sequence(names, answer, set(different)))
        slips.append(
            {
                "names": names,
                "count": len(different),
                "step": step,
                "gap": truth["gaps"][step],
                "truth": _token(truth, step),
                "got": _token(answer, step),
            }
        )
    sequences = [_sequence([], truth, set()), *differing]
    limits = [limit for answer in compared.values() if (limit := text.value(answer["logit_limit"])) is not None]
    return {
        "index": index,
        "prompt": prompt,
        "same": same,
        "different": sum(len(names) for names in alike.values()),
        "slips": slips,
        "texts": sequences,
        "absent": [name for name in columns if name not in compared],
        "blocks": list(_blocks(truth, sequences)),
        "limit": max(limits, default=None),
        "open": False,
    }


def _open_one(prompts: Sequence[dict[str, Any]], named: str | None) -> None:
    """Unfold one prompt whose tokens differ: the one that the verdict names, or else the first."""
    differing = [p for p in prompts if p["different"]]
    for p in sorted(differing, key=lambda p: p["prompt"]["id"] != named)[:1]:
        p["open"] = True


def _token(entry: Answer | Reference, step: int) -> dict[str, Any]:
    if step >= len(entry["tokens"]):
        return {"id": None, "piece": ""}
    pieces = entry["pieces"]
    return {"id": entry["tokens"][step], "piece": pieces[step] if pieces else ""}


def _sequence(names: list[str], entry: Answer | Reference, different: set[int]) -> dict[str, Any]:
    """Tokens with their `state`: `same` or `diff`."""
    tokens = [{**_token(entry, i), "state": "diff" if i in different else "same"} for i in range(len(entry["tokens"]))]
    runs = []
    if different and entry["pieces"]:
        for state, group in itertools.groupby(tokens, key=lambda token: token["state"]):
            runs.append({"state": state, "text": "".join(token["piece"] for token in group)})
    return {"names": names, "tokens": tokens, "text": entry["text"], "runs": runs}


def _blocks(truth: Reference, sequences: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    total, missing = len(truth["tokens"]), {"id": None, "piece": "", "state": "diff"}
    for start in range(0, total, STEPS_IN_A_ROW):
        steps = range(start, min(start + STEPS_IN_A_ROW, total))
        rest = STEPS_IN_A_ROW - len(steps) if start else 0
        rows = [
            {"names": s["names"], "tokens": [s["tokens"][i] if i < len(s["tokens"]) else missing for i in steps]}
            for s in sequences
        ]
        yield {"steps": steps, "rows": rows, "gaps": [truth["gaps"][i] for i in steps], "rest": rest}
