"""The summary of a run as a comment on a pull request: GitHub-flavoured Markdown."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence

from hloracle.core.errors import InputError
from hloracle.core.record import Configuration, Family, Localization, Prompt, Record, Status
from hloracle.reports import text
from hloracle.reports.facts import (
    VERDICTS,
    answers_of,
    by_status,
    closest_call,
    comparisons,
    differences,
    families,
    in_order,
    token_totals,
    took,
)

LIMIT = 60_000  # GitHub refuses a comment of 65,536 characters
KIND_MARKS = {"pass": "✅", "near": "🟡", "fail": "❌", "error": "⚠️"}
_STATUS_MARKS: dict[Status, str] = {"passed": "✅", "failed": "❌", "error": "⚠️", "skipped": "⏭️"}
# An underscore inside a word is one to Markdown too; a colon means something in a link or around an emoji's name.
_SPECIAL = re.compile(r"[\\`*~|\[\]#<>&$]|:(?=//|[\w+-]+:)|(?<=www)\.|(?<![^\W_])_+|_+(?![^\W_])")
_ADDRESS = re.compile(r"https?://[^\s<>\\]+")
_MENTION = re.compile(r"(?<!\w)@(?=\w)|@(?=[\w-]+\.\w)")  # of a name, or in an address of mail
_REFERENCE = re.compile(r"&#35;(?=\d)|(?<=GH)-(?=\d)", re.IGNORECASE)  # GitHub looks for #1 in what Markdown has become
_BLOCK = re.compile(r"[-+=](?=[\s=-]|$)|\d+(?P<end>[.)])(?=\s|$)")  # what makes a list or a rule of a line's beginning


def render(record: Record, link: str = "", note: str = "") -> str:
    """The summary of a valid record, of at most LIMIT characters whatever the record holds.

    What a reviewer needs first comes first: the verdict, what was compared, where it went wrong, the table, why, and last a
    line that leads to the report. `note` is a sentence of the caller's, in Markdown, under the verdict; `link` is where the report is.
    Raises InputError unless it is a web address.
    """
    verdict = record["verdict"]
    words = VERDICTS[verdict["class"]]
    lines = [
        *_mutant(record),
        f"## {KIND_MARKS[words.kind]} hloracle: {words.title}",
        "",
        prose(verdict["explanation"], 600),
        "",
        *_compared(record),
        *([note, ""] if note else []),
        " · ".join(_facts(record)),
        "",
        *_where(record),
        *_bad_families(record),
        *_matrix(record),
        *_without_result(record),
        *_checks(record),
        *_why(record),
        *_canary(record),
        *_speed(record),
        *report_at(link),
        *_families(record),
    ]
    return "\n".join(lines) + "\n"


def report_at(link: str, words: str = "The whole report") -> Iterable[str]:
    """The line that leads to the report, and nothing without a link. Raises InputError unless it is a web address."""
    if link and not _ADDRESS.fullmatch(link):
        raise InputError("is not a web address", text.one_line(link, 120), "give --link one that begins with https://")
    if link:
        yield f"[{words}](<{link}>)"
        yield ""


def prose(value: str, limit: int) -> str:
    """Text of the record as words: nothing in it is Markdown, HTML, a mention or a link."""
    escaped = _MENTION.sub("<code>@</code>", _escaped(value, limit))
    escaped = _REFERENCE.sub(lambda m: f"<code>{m[0]}</code>", escaped)
    if block := _BLOCK.match(escaped):
        at = block.start("end") if block["end"] else 0
        escaped = f"{escaped[:at]}&#{ord(escaped[at])};{escaped[at + 1 :]}"
    return escaped


def code(value: str, limit: int = 80) -> str:
    """Text of the record in a fixed pitch, where GitHub looks for no mention either."""
    return f"<code>{_escaped(value, limit)}</code>"


def _escaped(value: str, limit: int) -> str:
    return _SPECIAL.sub(lambda m: f"&#{ord(m[0][0])};" * len(m[0]), text.one_line(value, limit))


def _compared(record: Record) -> Iterable[str]:
    """A line each, what was not compared first."""
    for label, phrases in comparisons(record):
        shown = f"**{label}:**" if label == "Not compared" else f"{label}:"
        yield f"{shown} {prose(phrases, 600)}"
        yield ""


def _facts(record: Record) -> Iterable[str]:
    model, settings = record["model"], record["settings"]
    tokens = token_totals(record)
    statuses = [check["status"] for check in record["checks"]]
    counted = [f"{n} {'with an error' if s == 'error' else s}" for s in _STATUS_MARKS if (n := statuses.count(s))]
    yield f"**{prose(model['name'], 80)}** ({text.parameters(model['parameters'])} parameters)"
    yield f"{code(settings['device'])} {code(settings['precision'])}"
    all_compared = tokens["compared"] == tokens["planned"]
    missing = (
        "" if all_compared else f", in {tokens['compared']} of {tokens['planned']} pairs of prompt and configuration"
    )
    equal = f"{text.count(tokens['agreed'])} of {text.count(tokens['total'])} tokens equal{missing}"
    yield equal if tokens["total"] else "no token compared"
    yield f"checks: {', '.join(counted) or 'none ran'}"
    yield text.duration(took(record))


def _where(record: Record) -> Iterable[str]:
    verdict = record["verdict"]
    parts = [
        f"{VERDICTS[verdict['class']].at} {code(verdict['anchor'], 160)}" if verdict["anchor"] is not None else "",
        f"on prompt {code(verdict['prompt'])}" if verdict["prompt"] is not None else "",
        f"at step {verdict['step']}" if verdict["step"] is not None else "",
        f"in {code(verdict['operation'], 240)}" if verdict["operation"] is not None else "",
        "the fault depends on fusion" if verdict["fusion_dependent"] else "",
    ]
    if line := ", ".join(filter(None, parts)):
        yield f"**{line[0].upper()}{line[1:]}**"
        yield ""


def _why(record: Record) -> Iterable[str]:
    verdict, found = record["verdict"], record["localization"]
    if not record["passed"] and verdict["evidence"]:
        yield "Evidence:"
        yield from limited((f"- {prose(line, 300)}" for line in verdict["evidence"][:6]), 6_000, "more observations")
        yield ""
    if (sure := verdict["confidence"]) is not None:
        yield f"Confidence: **{sure['level']}**"
        yield from limited((f"- {prose(line, 300)}" for line in sure["because"][:6]), 3_000, "more reasons")
        yield ""
    if found is not None:
        yield from _repair(found)
    if found is not None and (reproducer := found["reproducer"]) is not None:
        shown = "shows the fault by itself" if reproducer["shown"] else "did not show the fault by itself"
        command = code(text.one_command(reproducer["command"]), 1_000)
        told = f" It is {prose(text.shown_by(reproducer), 600)}." if reproducer["backends"] else ""
        yield f"The reproducer {shown}.{told} In {code(reproducer['folder'] + '/', 120)}, beside the report: {command}"
        yield ""


def _repair(found: Localization) -> Iterable[str]:
    """The first line that should be another one, as a diff, and what else may be to blame."""
    if repair := found["repair"]:
        first = repair["lines"][0]
        yield f"What would put it right: {prose(text.repaired(repair), 600)}."
        yield ""
        yield f"- instead of {code(first['before'], 400)}"
        yield from (f"- it should be {code(line, 400)}" for line in first["after"][:4])
        yield ""
    if (operation := found["operation"]) and operation["origin"]:
        yield f"Written by {code(text.written_by(operation['origin']), 400)}"
        yield ""
    if others := text.others(found):
        yield "Or it is:"
        yield from (f"- {prose(text.candidate(one), 300)}" for one in others)
        yield ""


def _mutant(record: Record) -> Iterable[str]:
    if record["mutant"]:
        yield f"> ⚠️ **This run carries a deliberate fault**, the mutant {code(record['mutant'], 160)}. It says nothing about "
        yield "> the model, only whether the checks notice."
        yield ""


def _canary(record: Record) -> Iterable[str]:
    canary = record["canary"]
    if canary is None:
        yield "⏭️ No canary was run: nothing was broken on purpose to see that this run would notice."
    else:
        named = "no anchor" if canary["named"] is None else code(canary["named"], 120)
        mark, outcome = ("✅", "caught") if canary["caught"] else ("⚠️", "**missed**")
        yield f"{mark} Canary {outcome}: broken on purpose at {code(canary['anchor'], 120)}, named {named}."
    yield ""


def _bad_families(record: Record) -> Iterable[str]:
    """The models of a suite that do not pass, and what failed in them."""
    lines = []
    for row in record["families"]:
        if row["passed"]:
            continue
        at = f" at {code(row['anchor'], 100)}" if row["anchor"] else ""
        failed = f" ({', '.join(code(check['id'], 60) for check in row['failed'][:3])})" if row["failed"] else ""
        verdict = VERDICTS[row["verdict"]]
        lines.append(f"- {KIND_MARKS[verdict.kind]} {code(row['model'], 60)}: {verdict.title}{at}{failed}")
    if lines:
        yield from limited(lines, 1_500, "more models")
        yield ""


def _families(record: Record) -> Iterable[str]:
    """A table of a suite's models, folded, those that do not pass first."""
    rows = families(record)
    if not rows:
        return
    passed = sum(row["passed"] for row in rows)
    yield f"<details><summary>{text.count(passed)} of {text.plural(len(rows), 'model')} passed</summary>"
    yield ""
    yield "| family | tokens | worst anchor, in floors | op kinds | matmuls | mutants killed |"
    yield "| :-- | --: | :-- | --: | --: | --: |"
    yield from limited((_family(row) for row in rows), 5_000, "more models", row=True)
    yield ""
    if any(row["mutants"]["pinned"] for row in rows):
        yield "Mutants: what came of them elsewhere, with these very sources and packages."
        yield ""
    yield "</details>"
    yield ""


def _family(row: Family) -> str:
    worst, mutants = row["worst"], row["mutants"]
    tiny = row["model"] == f"tiny-{row['architecture']}"
    name = code(row["architecture"] if tiny else row["model"], 40)
    at = f"{text.figure(worst['floors'])} {code(worst['anchor'], 60)}" if worst else "not compared"
    counts = ("–" if n is None else text.count(n) for n in (row["op_kinds"], row["matmuls"]))
    killed = f"{mutants['killed']}/{mutants['total']}" if mutants["total"] else prose(mutants["reason"], 40)
    tokens = f"{row['tokens']['agreed']}/{row['tokens']['total']}"
    mark = KIND_MARKS[VERDICTS[row["verdict"]].kind]
    return f"| {mark} {name} | {tokens} | {at} | {' | '.join(counts)} | {killed} |"


def _matrix(record: Record) -> Iterable[str]:
    configurations = in_order(record, record["configurations"])[:16]
    if not record["prompts"] or not configurations:
        yield "⚠️ **Nothing was compared.**"
        yield ""
        return
    yield (
        "| prompt | closest call | "
        + " | ".join(code(configuration["id"], 40) for configuration in configurations)
        + " |"
    )
    yield "| :-- | --: |" + " :-- |" * len(configurations)
    # A comment may lose its last rows, so those that differ come first.
    prompts = sorted(record["prompts"], key=lambda prompt: _equal(record, prompt["id"]))
    yield from limited(
        (_matrix_row(record, prompt, configurations) for prompt in prompts), 14_000, "more prompts", row=True
    )
    yield ""
    if left_out := len(record["configurations"]) - len(configurations):
        yield f"{left_out} more configurations are in report.html."
        yield ""


def _equal(record: Record, prompt: str) -> bool:
    entry = record["tokens"].get(prompt)
    return entry is not None and entry["agreed"] == entry["total"]


def _matrix_row(record: Record, prompt: Prompt, configurations: Sequence[Configuration]) -> str:
    entries, row = answers_of(record, prompt["id"]), []
    for configuration in configurations:
        compared = entries.get(configuration["id"])
        if compared is None:
            row.append("⚠️ no result" if configuration["status"] == "failed" else "not compared")
        elif not (different := differences(prompt["reference"]["tokens"], compared["tokens"])):
            row.append(f"✅ {compared['agreed']}/{compared['total']}")
        else:
            mark = KIND_MARKS["near" if record["passed"] else "fail"]
            row.append(f"{mark} **{compared['agreed']}/{compared['total']}**, first at {different[0]}")
    call = closest_call(prompt)
    closest = "–" if call is None else f"{text.figure(call[1])} at {call[0]}"
    return f"| {code(prompt['id'], 60)} | {closest} | {' | '.join(row)} |"


def _without_result(record: Record) -> Iterable[str]:
    failed = [configuration for configuration in record["configurations"] if configuration["status"] == "failed"]
    if failed:
        rows = (f"- ⚠️ {code(configuration['id'])}: {prose(configuration['message'], 400)}" for configuration in failed)
        yield "**Configurations without a result**"
        yield ""
        yield from limited(rows, 8_000, "more configurations")
        yield ""


def _checks(record: Record) -> Iterable[str]:
    checks = [check for check in by_status(record["checks"]) if check["status"] != "passed"]
    if not checks:
        return
    yield "| check | result | measured | limit |"
    yield "| :-- | :-- | :-- | :-- |"
    rows = (
        f"| {code(check['id'], 60)} {prose(check['title'], 120)} | {_STATUS_MARKS[check['status']]} {check['status']} "
        f"| {prose(check['figure'] or check['detail'], 200)} | {prose(check['limit'], 200)} |"
        for check in checks
    )
    yield from limited(rows, 12_000, "more checks", row=True)
    yield ""


def _speed(record: Record) -> Iterable[str]:
    """Medians; of one process, in which they took turns."""
    contenders = record["speed"]["contenders"]
    medians = [(c["title"], statistics.median(c["ms_per_token"])) for c in contenders[:6] if c["ms_per_token"]]
    if medians:
        figures = (f"{prose(title, 60)} {text.figure(ms)} ms" for title, ms in medians)
        yield f"Decode, a token: {' · '.join(figures)}"
        yield ""


def limited(
    lines: Iterable[str], budget: int, noun: str, row: bool = False, where: str = "in report.html"
) -> Iterable[str]:
    """The lines that fit into `budget` characters, and how many did not."""
    left_out = 0
    for line in lines:
        budget -= len(line) + 1
        if budget >= 0 and not left_out:
            yield line
        else:
            left_out += 1
    if left_out:
        words = f"{text.count(left_out)} {noun} {where}"
        yield f"| {words} |" if row else f"- {words}"
