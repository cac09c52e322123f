"""What a record says, for whoever draws or compares it: its classes in words, and its values read one way everywhere."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hloracle.reports.text import Number, one_line, value

Record = dict[str, Any]

_LAYER = re.compile(r"layers\.(\d{1,9})(?:\.(.+))?|(\w+)\.(\d{1,9})", re.DOTALL)


@dataclass(frozen=True)
class Verdict:
    """A class of verdict in words.

    meaning: a sentence that stays true however little a run has compared; what it has compared is in its record.
    kind: `pass`, `near`, `fail`, or `error` where nothing is known of whether the graph is right.
    at: the words before the anchor that a verdict names.
    """

    title: str
    meaning: str
    kind: str
    at: str = "first wrong at"

    @property
    def passed(self) -> bool:
        return self.kind in ("pass", "near")


# In the order in which they are shown.
SOURCES = {"oracle": "JAX oracle's graph", "emitter": "Emitted graph", "file": "The file's graph"}

BACKENDS = {
    "interpreter": "Interpreter", "xla-cpu": "XLA cpu", "iree-cpu": "IREE cpu", "iree-cuda": "IREE cuda",
    "iree-vulkan": "IREE vulkan", "iree-emulated": "IREE cuda, emulated", "iree-simulated": "IREE simulated",
}  # fmt: skip

VERDICTS = {
    "conforms": Verdict(
        "Conforms", "What was compared agrees with Hugging Face; nothing is said of anything else.", "pass"
    ),
    "near-tie": Verdict(
        "Near tie",
        "Tokens differ only where the truth's own two best are closer than the measured noise; what else was compared "
        "agrees with Hugging Face.",
        "near",
    ),
    "reference-fault": Verdict(
        "Reference fault", "The JAX oracle differs from Hugging Face, or its graph is not valid.", "fail"
    ),
    "emitter-fault": Verdict(
        "Emitter fault", "By all that was compared, the graph itself is at fault: it is wrong, or not valid.", "fail"
    ),
    "compiler-fault": Verdict(
        "Compiler fault",
        "By all that was compared, a compiler is at fault: its program is wrong or not the same twice, or it refuses a "
        "valid graph.",
        "fail",
    ),
    "device-fault": Verdict(
        "Device fault", "A graph is right on one device and wrong on another, or not the same twice.", "fail"
    ),
    "invariant-broken": Verdict(
        "Invariant broken",
        "The graph breaks a stated invariant; of what was compared, nothing is wrong.",
        "fail",
        "broken at",
    ),
    "unsupported": Verdict(
        "Unsupported",
        "No backend here can run what the graph asks for, so whether it is right is not known.",
        "error",
        "not supported at",
    ),
    "out-of-memory": Verdict(
        "Out of memory",
        "A configuration did not have the memory that it needs, so whether the graph is right is not known.",
        "error",
        "stopped at",
    ),
    "timeout": Verdict(
        "Timeout",
        "A configuration did not end in the time that it was given, so whether the graph is right is not known.",
        "error",
        "stopped at",
    ),
    "harness-error": Verdict(
        "Harness error", "The comparison is incomplete or in doubt: nothing follows from it.", "error"
    ),
}


def differences(truth: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """The steps whose token is not the truth's; one that is missing differs."""
    return [i for i, token in enumerate(truth) if i >= len(tokens) or tokens[i] != token]


def cells_of(record: Record, prompt: str) -> dict[str, Record]:
    """The cells that were compared on a prompt. Of no tokens at all there is no comparison."""
    entry = record["tokens"].get(prompt)
    return {name: cell for name, cell in entry["cells"].items() if cell["total"]} if entry else {}


def comparisons(record: Record) -> list[tuple[str, str]]:
    """What was not compared, if anything, and then what was, each as a label and a sentence; of a suite whose it is."""
    verdict = record["verdict"]
    if verdict["compared"] is None:
        return [("Compared", "not recorded: the record is of an older version")]
    rows, missing = record["families"], verdict["not_compared"]
    whose = f"of {one_line(record['model']['name'], 60)}: " if len(rows) > 1 else ""
    own = rows[0]["not_compared"] if rows else missing  # those of a suite's other models follow, and say whose they are
    left = "; ".join([*([whose + "; ".join(own)] if own else []), *missing[len(own) :]])
    return [
        *([("Not compared", left)] if left else []), ("Compared", whose + "; ".join(verdict["compared"] or ["nothing"]))
    ]  # fmt: skip


def judged(record: Record) -> str:
    """The source of the graphs that were judged: `emitter`, or `file`."""
    return "file" if any(part["source"] == "file" for part in record["cells"] + record["graphs"]) else "emitter"


def at_fault(record: Record) -> Record | None:
    """The row of the first model that is wrong, in the record of a suite whose own model is not."""
    rows = record["families"]
    if record["passed"] or not rows or not rows[0]["passed"]:
        return None
    return next((row for row in rows if not row["passed"]), None)


def families(record: Record) -> list[Record]:
    """The rows of a suite, those that did not pass first."""
    return sorted(record["families"], key=lambda row: bool(row["passed"]))


def token_totals(record: Record) -> dict[str, int]:
    """Tokens that are the truth's and tokens in all, over all prompts and cells; pairs that were `compared`, `planned`."""
    compared = [cell for prompt in record["prompts"] for cell in cells_of(record, prompt["id"]).values()]
    return {
        "agreed": sum(cell["agreed"] for cell in compared),
        "total": sum(cell["total"] for cell in compared),
        "compared": len(compared),
        "planned": len(record["prompts"]) * len(record["cells"]),
    }


def took(record: Record) -> float:
    """Seconds from the beginning to the end of the last stage."""
    return float(max((timing["begin"] + timing["seconds"] for timing in record["timings"]), default=0.0))


def layer_of(anchor: str) -> tuple[int | None, str]:
    """An anchor's layer, None outside of all layers, and what it is in there: (3, `mlp.act`), (3, `k_cache`), (3, ``)."""
    found = _LAYER.fullmatch(anchor)
    if found is None:
        return None, anchor
    layer, part, outer, outer_layer = found.groups()
    return (int(outer_layer), outer) if outer else (int(layer), part or "")


def limits_of(record: Record) -> dict[str, float]:
    """Anchor -> the error that is accepted there, in floors."""
    return {floor["anchor"]: float(floor["limit"]) for floor in record["floors"]}


def of_limit(cell: Record) -> float | None:
    """A cell's logit error as a multiple of its limit: NaN or infinite where the error is; None if not measured."""
    return share(cell["logit_error"], value(cell["logit_limit"]))


def share(error: Number, limit: float | None) -> float | None:
    """An error as a multiple of its limit: NaN or infinite where the error is; None if there is no error or no limit."""
    found = value(error)
    if found is None or limit is None:
        return None
    return found / limit if limit else math.inf if found else 0.0


def worst_share(row: Record) -> float | None:
    """The worst anchor of a suite's row as a multiple of its limit; None where none was compared."""
    worst = row["worst"]
    return share(worst["floors"], float(worst["limit"])) if worst else None


def badness(x: float | None) -> float:
    """For comparing errors: what was not measured is better than anything, and nothing is worse than NaN."""
    return -1.0 if x is None else math.inf if math.isnan(x) else x


def in_order(cells: Sequence[Record]) -> list[Record]:
    """Cells or graphs by source, what is compared in full first, and the backend that is taken for right first."""
    return sorted(
        cells,
        key=lambda cell: (
            list(SOURCES).index(cell["source"]),
            cell["head"] == "token",
            list(BACKENDS).index(cell["backend"]) if cell.get("backend") in BACKENDS else len(BACKENDS),
        ),
    )


def closest_call(prompt: Record) -> tuple[int, float] | None:
    """The step at which the truth's two best tokens are nearest to each other, and by how much they are apart."""
    gaps = [(float(gap), step) for step, gap in enumerate(prompt["truth"]["gaps"]) if gap is not None]
    finite = [pair for pair in gaps if not math.isnan(pair[0])]
    if not finite:
        return None
    gap, step = min(finite)
    return step, gap


def by_status(checks: Sequence[Record]) -> list[Record]:
    """The checks, those that did not pass first."""
    order = ("failed", "error", "skipped", "passed")
    return sorted(checks, key=lambda check: order.index(check["status"]))
