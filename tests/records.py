"""Records of real runs, which `python -m hloracle.studies.pin_records` makes, and what is made of copies of them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hloracle.core.record import Check, Configuration, Prompt
from hloracle.reports.facts import VERDICTS

# As the tests edit it: with keys and values that no record has.
Record = dict[str, Any]
Make = Callable[[], Record]

FOLDER = Path(__file__).parent / "records"
HOSTILE = (
    "<script>alert(1)</script> \"'&amp; |`*_[x](http://evil.example)</style><img src=x onerror=y> @octocat"
    "\u202egnp.exe\u2066\x00\x07\x1b[31m\x7f\x85\u200b\ud800\ufeff\n\n# heading\n" + "long " * 200
)


@functools.cache
def _text(name: str) -> str:
    return (FOLDER / f"{name}.json").read_text("utf-8")


def pinned(name: str) -> Record:
    """A copy of a record that a run wrote, by the class of its verdict, or `check` or `suite`."""
    found: Record = json.loads(_text(name))
    return found


def conforms() -> Record:
    """A whole run of a model that conforms."""
    return pinned("conforms")


def failing() -> Record:
    """A whole run with a fault in the emitter, which was found and taken apart."""
    return pinned("emitter-fault")


def suite() -> Record:
    """Two families that conform."""
    return pinned("suite")


def failing_suite() -> Record:
    """Two families of which the second does not conform: its row is that of a run with a fault."""
    record, fault = suite(), failing()
    record["families"][1] |= {
        "verdict": "emitter-fault",
        "passed": False,
        "anchor": fault["verdict"]["anchor"],
        "explanation": fault["verdict"]["explanation"],
        "failed": [check for check in fault["checks"] if check["status"] == "failed"][:3],
        "report": "families/mistral/report.html",
    }
    record["passed"] = False
    record["verdict"] |= {"class": "emitter-fault", "explanation": "The first model conforms, but 1 of 2 does not."}
    return record


def near_tie() -> Record:
    """A run in which one token differs within the noise."""
    record = conforms()
    disagree(record, steps=(1,), near_ties=1)
    record["verdict"] |= {"class": "near-tie", "explanation": "Tokens differ only within the noise."}
    return record


def without_results() -> Record:
    """A run in which the judged configurations gave no result."""
    record = conforms()
    for column in record["configurations"]:
        if column["id"] == JUDGED or column["head"] == "token":
            column |= {"status": "failed", "message": "the compiler ended with signal 11", "agreed": 0}
            for entry in record["tokens"].values():
                del entry["configurations"][column["id"]]
                entry["agreed"] = 0
    record |= {"anchors": [], "canary": None, "passed": False}
    record["verdict"] |= {"class": "harness-error", "explanation": "A process died, so its result is missing."}
    record["speed"] |= {"reason": "the run did not pass", "contenders": []}
    return record


def empty() -> Record:
    """A run that stopped before anything was compared."""
    record = conforms()
    record |= {key: [] for key in ("prompts", "configurations", "checks", "anchors", "floors", "compiled", "graphs")}
    record |= {"listings": [], "timings": [], "tokens": {}, "block": None, "canary": None, "passed": False}
    record["verdict"] |= {"class": "harness-error", "compared": [], "explanation": "Nothing was compared."}
    record["memory"] = {"peak_bytes": 0, "processes": []}
    record["speed"] |= {"reason": "the run did not get so far", "contenders": []}
    return record


def of_class(name: str) -> Record:
    """A record with a verdict: a run's own, or one whose class was changed where no small run can get it."""
    if name in ("near-tie", "emitter-fault", "conforms"):
        return {"near-tie": near_tie, "emitter-fault": failing, "conforms": conforms}[name]()
    if name in PLANTED:
        return pinned(name)
    record = without_results() if VERDICTS[name].kind == "error" else failing()
    record["verdict"] |= {"class": name, "explanation": f"It is {name}."}
    return record


PLANTED = ("reference-fault", "compiler-fault", "invariant-broken", "harness-error")

# ---- the parts that tests edit

JUDGED = "emitter/iree-cpu"


def prompt_of(record: Record) -> Prompt:
    """The prompt with the most tokens after it; of several the last."""
    found: Prompt = max(reversed(record["prompts"]), key=lambda p: len(p["reference"]["tokens"]))
    return found


def column_of(record: Record, id: str = JUDGED) -> Configuration:
    """A configuration."""
    found: Configuration = next(c for c in record["configurations"] if c["id"] == id)
    return found


def check_of(record: Record, kind: str = "tokens", about: str = JUDGED) -> Check:
    """A check by its kind and what it is about."""
    found: Check = next(c for c in record["checks"] if c["id"] == f"{about}.{kind}")
    return found


def disagree(
    record: Record, configuration: str = JUDGED, steps: tuple[int, ...] = (1,), near_ties: int = 0, prompt: str = ""
) -> None:
    """Make a configuration's tokens differ at some steps of a prompt, and all that follows from it but the verdict."""
    prompt = prompt or prompt_of(record)["id"]
    reference = next(p["reference"] for p in record["prompts"] if p["id"] == prompt)
    entry = record["tokens"][prompt]
    answer = entry["configurations"][configuration]
    before = answer["agreed"]
    answer["tokens"] = [t + 1 if i in steps else t for i, t in enumerate(reference["tokens"])]
    answer["pieces"] = reference["pieces"] and [f"{p}'" if i in steps else p for i, p in enumerate(reference["pieces"])]
    answer |= {
        "agreed": answer["total"] - len(steps),
        "first_mismatch": min(steps, default=None),
        "disagreements": len(steps),
        "near_ties": near_ties,
        "largest_gap": max((reference["gaps"][i] for i in steps), default=None),
    }
    entry["agreed"] = min(a["agreed"] for a in entry["configurations"].values())
    column_of(record, configuration)["agreed"] += answer["agreed"] - before


# ---- hostile strings

# Values that are one of a few words, and keys of objects that are the form's own.
FIXED = {
    "schema",
    "compute",
    "kv",
    "class",
    "level",
    "phase",
    "head",
    "status",
    "state",
    "chosen",
    "verdict",
    "error",
    "report",
    "date",
    "digest",
}
NAMED = {"tokens", "configurations", "config", "packages", "ops", "scopes"}  # objects whose keys are data


def hostile() -> Record:
    """The record of a fault in which every string is hostile; equal strings stay equal, and others apart."""
    renamed: dict[str, str] = {}

    def rename(value: str) -> str:
        if not value or value in ("NaN", "Infinity", "-Infinity"):
            return value
        return renamed.setdefault(value, f"{len(renamed)} {HOSTILE}")

    def spoil(node: Any, key: str = "") -> Any:
        if isinstance(node, dict):
            data = key in NAMED
            return {rename(k) if data else k: spoil(v, "" if data else k) for k, v in node.items()}
        if isinstance(node, list):
            return [spoil(entry, key if isinstance(entry, str) else "") for entry in node]
        return rename(node) if isinstance(node, str) and key not in FIXED else node

    record: Record = spoil(failing())
    if reproducer := record["localization"]["reproducer"]:
        reproducer |= {"folder": "<x-folder>", "files": ["<x-file>"]}
    return record


ALL: dict[str, Make] = {
    **{name: functools.partial(of_class, name) for name in VERDICTS},
    "check": functools.partial(pinned, "check"),
    "suite": suite,
    "failing-suite": failing_suite,
    "without-results": without_results,
    "empty": empty,
    "hostile": hostile,
}
