"""The run as a JUnit report, for the systems that read nothing else."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

from hloracle.core.record import Check, Class, Configuration, Family, Record
from hloracle.reports import text
from hloracle.reports.facts import VERDICTS, answers_of, comparisons, differences, took

# What XML 1.0 has no way to write, not even as a reference.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(record: Record) -> str:
    """Suites `verdict`, `checks`, `families` where there are many models, and for each configuration one with a test case for every prompt.

    The suite `verdict` says in properties, and its test case in words, what was compared and what was not. A near tie is no
    failure: the verdict has passed. What did not run is skipped or an error, never a pass. Of a configuration
    the time is known, of a single prompt or check it is not. Valid by the schema of Jenkins' xUnit plugin, `junit-10.xsd`.
    """
    root = ET.Element("testsuites", name="hloracle")
    verdict = _suite(root, record, "verdict", [_verdict(record)])
    verdict.insert(0, _properties(record))
    if record["families"]:
        _suite(root, record, "families", [case for row in record["families"] for case in _family(row)])
    _suite(root, record, "checks", [_check(check) for check in record["checks"]])
    for configuration in record["configurations"]:
        seconds = configuration["seconds"] if configuration["status"] == "ran" else None
        _suite(root, record, f"tokens.{configuration['id']}", list(_tokens(record, configuration)), seconds)
    for key in ("tests", "failures", "errors"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    root.set("time", _seconds(took(record)))
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(
    root: ET.Element, record: Record, name: str, cases: list[ET.Element], seconds: float | None = None
) -> ET.Element:
    suite = ET.SubElement(
        root,
        "testsuite",
        name=clean(name),
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        errors=str(sum(case.find("error") is not None for case in cases)),
        skipped=str(sum(case.find("skipped") is not None for case in cases)),
    )
    # JUnit's time has no zone, and readers take it for UTC.
    if moment := text.moment(record["environment"]["date"]):
        suite.set("timestamp", moment.strftime("%Y-%m-%dT%H:%M:%S"))
    if seconds is not None:
        suite.set("time", _seconds(seconds))
    suite.extend(cases)
    return suite


def _properties(record: Record) -> ET.Element:
    pairs = {"mutant": record["mutant"]} if record["mutant"] else {}
    pairs |= {label.lower().replace(" ", "-"): phrases for label, phrases in comparisons(record)}
    properties = ET.Element("properties")
    for name, value in pairs.items():
        ET.SubElement(properties, "property", name=name, value=clean(value))
    return properties


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}"


def _case(suite: str, name: str, outcome: str = "", kind: str = "", message: str = "", detail: str = "") -> ET.Element:
    case = ET.Element("testcase", classname=clean(f"hloracle.{suite}"), name=clean(name))
    if outcome == "system-out":
        ET.SubElement(case, outcome).text = clean("\n".join(filter(None, (message, detail))))
    elif outcome:
        element = ET.SubElement(case, outcome, type=kind, message=clean(text.one_line(message, 400)))
        # GitLab shows the text alone, others the attribute alone.
        element.text = clean("\n".join(filter(None, (message, detail))))
    return case


def _outcome(class_: Class) -> str:
    """Of a verdict that does not pass: an error where nothing is known of the graph."""
    return "error" if VERDICTS[class_].kind == "error" else "failure"


def clean(value: str) -> str:
    """The text without what XML cannot hold."""
    return _NOT_XML.sub("", value)


def _verdict(record: Record) -> ET.Element:
    """Named alike in every run, so that a run is compared with the one before; its type is the verdict's class."""
    verdict = record["verdict"]
    outcome = "system-out" if record["passed"] else _outcome(verdict["class"])
    where = {key: value for key, value in verdict.items() if key in ("anchor", "operation", "prompt", "step")}
    lines = [f"{label.lower()}: {phrases}" for label, phrases in comparisons(record)]
    lines += [f"{key}: {value}" for key, value in where.items() if value is not None]
    if (sure := verdict["confidence"]) is not None:
        lines.append(f"confidence: {sure['level']}")
    if record["localization"] and (repair := record["localization"]["repair"]):
        lines.append(f"repair: {text.repaired(repair)}")
    if record["localization"] and (reproducer := record["localization"]["reproducer"]):
        lines.append(f"reproducer, in {reproducer['folder']}/: {text.one_command(reproducer['command'])}")
        if told := text.shown_by(reproducer):
            lines.append(f"reproducer: {told}")
    message = f"{verdict['class']}: {verdict['explanation']}"
    if record["mutant"]:
        message = f"mutant {text.one_line(record['mutant'], 120)}: {message}"
    return _case("verdict", "verdict", outcome, verdict["class"], message, "\n".join([*lines, *verdict["evidence"]]))


def _family(row: Family) -> Iterator[ET.Element]:
    """A case for the model, and one for each of its checks that did not pass."""
    outcome = "" if row["passed"] else _outcome(row["verdict"])
    at = "" if row["anchor"] is None else f"anchor: {row['anchor']}"
    case = _case("families", row["model"], outcome, row["verdict"], f"{row['verdict']}: {row['explanation']}", at)
    case.set("time", _seconds(row["seconds"]))
    yield case
    for check in row["failed"]:
        case = _check(check)
        case.set("classname", "hloracle.families")
        case.set("name", clean(f"{row['model']} {check['id']}"))
        yield case


def _check(check: Check) -> ET.Element:
    outcome = {"passed": "", "failed": "failure", "error": "error", "skipped": "skipped"}[check["status"]]
    message = f"{check['title']}: measured {check['figure'] or 'nothing'}, limit {check['limit'] or 'none'}"
    if outcome == "skipped":
        message = f"{check['title']}: {check['detail'] or check['figure']}"
        return _case("checks", check["id"], outcome, "skipped", message)
    return _case("checks", check["id"], outcome, check["status"], message, check["detail"])


def _tokens(record: Record, configuration: Configuration) -> Iterator[ET.Element]:
    suite = f"tokens.{configuration['id']}"
    for prompt in record["prompts"]:
        compared = answers_of(record, prompt["id"]).get(configuration["id"])
        if compared is None and configuration["status"] == "failed":
            yield _case(suite, prompt["id"], "error", "no-result", configuration["message"] or "no result")
        elif compared is None:
            yield _case(suite, prompt["id"], "skipped", "not-compared", "not compared")
        elif not (different := differences(prompt["reference"]["tokens"], compared["tokens"])):
            yield _case(suite, prompt["id"])
        else:
            words = f"{compared['agreed']} of {compared['total']} tokens equal, first differs at step {different[0]}"
            yield _case(suite, prompt["id"], "system-out" if record["passed"] else "failure", "tokens-differ", words)
