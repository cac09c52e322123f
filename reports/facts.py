"""What a record says, for whoever draws or compares it: its classes in words, and its values read one way everywhere."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict, TypeVar

from hloracle.core.record import Answer, Check, Configuration, Family, Graph, Prompt, Record, Source
from hloracle.reports.text import Number, one_line, value

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
        """Whether a run of this class has passed, as a near tie has; a record that says otherwise is refused."""
        return self.kind in ("pass", "near")


# In the order in which they are shown.
VERDICTS: dict[str, Verdict] = {
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


def answers_of(record: Record, prompt: str) -> dict[str, Answer]:
    """The answers of the configurations that were compared on a prompt. Of no tokens at all there is no comparison."""
    entry = record["tokens"].get(prompt)
    return {name: answer for name, answer in entry["configurations"].items() if answer["total"]} if entry else {}


def comparisons(record: Record) -> list[tuple[str, str]]:
    """What was not compared, if anything, then what was, and how config.json was read where that is not as it is.

    Each is a label and a sentence, which says in a suite whose it is.
    """
    verdict = record["verdict"]
    rows, missing = record["families"], verdict["not_compared"]
    whose = f"of {one_line(record['model']['name'], 60)}: " if len(rows) > 1 else ""
    own = rows[0]["not_compared"] if rows else missing  # those of a suite's other models follow, and say whose they are
    left = "; ".join([*([whose + "; ".join(own)] if own else []), *missing[len(own) :]])
    return [
        *([("Not compared", left)] if left else []),
        ("Compared", whose + "; ".join(verdict["compared"] or ["nothing"])),
        *([("Config", whose + told)] if (told := config_words(record)) else []),
    ]


def config_words(record: Record) -> str:
    """How the model's config.json was read; empty where it was read as it is."""
    model, most = record["model"], 20
    keys = [one_line(key, 60) for key in model["ignored_keys"][:most]]
    if left := len(model["ignored_keys"]) - len(keys):
        keys.append(f"{left} more")
    read = f"read as {model['architecture']}, in place of {one_line(str(model['own_type']), 60)}"
    without = (
        f"without {', '.join(keys)}: transformers reads no such key, and a short prompt gives the same bits without"
    )
    return "; ".join([*([read] if model["own_type"] is not None else []), *([without] if keys else [])])


def judged(record: Record) -> Source:
    """The first of the sources whose graphs the verdict is about."""
    return next(source for source in record["sources"] if source["judged"])


def source_of(record: Record, id: str) -> Source:
    """A source by its id."""
    return next(source for source in record["sources"] if source["id"] == id)


def checked(record: Record, check: Check) -> str:
    """The configuration that a check is about, by its id; empty where it is about none."""
    about = check["source"], check["backend"], check["head"]
    found = (c["id"] for c in record["configurations"] if (c["source"], c["backend"], c["head"]) == about)
    return next(found, "")


def noun(title: str) -> str:
    """A source's title in a sentence: `emitted graph`, `JAX oracle's graph`."""
    return title if title[1:2].isupper() else title[:1].lower() + title[1:]


def at_fault(record: Record) -> Family | None:
    """The row of the first model that is wrong, in the record of a suite whose own model is not."""
    rows = record["families"]
    if record["passed"] or not rows or not rows[0]["passed"]:
        return None
    return next((row for row in rows if not row["passed"]), None)


def families(record: Record) -> list[Family]:
    """The rows of a suite, those that did not pass first."""
    return sorted(record["families"], key=lambda row: bool(row["passed"]))


class TokenTotals(TypedDict):
    """Tokens that are the reference's and tokens in all, over all prompts and configurations.

    Of the pairs of both so many were compared, and so many planned.
    """

    agreed: int
    total: int
    compared: int
    planned: int


def token_totals(record: Record) -> TokenTotals:
    """The tokens of a whole run."""
    answers = [answer for prompt in record["prompts"] for answer in answers_of(record, prompt["id"]).values()]
    return {
        "agreed": sum(answer["agreed"] for answer in answers),
        "total": sum(answer["total"] for answer in answers),
        "compared": len(answers),
        "planned": len(record["prompts"]) * len(record["configurations"]),
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


def of_limit(answer: Answer) -> float | None:
    """An answer's logit error as a multiple of its limit: NaN or infinite where the error is; None if not measured."""
    return share(answer["logit_error"], value(answer["logit_limit"]))


def share(error: Number, limit: float | None) -> float | None:
    """An error as a multiple of its limit: NaN or infinite where the error is; None if there is no error or no limit."""
    found = value(error)
    if found is None or limit is None:
        return None
    return found / limit if limit else math.inf if found else 0.0


def worst_share(row: Family) -> float | None:
    """The worst anchor of a suite's row as a multiple of its limit; None where none was compared."""
    worst = row["worst"]
    return share(worst["floors"], float(worst["limit"])) if worst else None


def badness(x: float | None) -> float:
    """For comparing errors: what was not measured is better than anything, and nothing is worse than NaN."""
    return -1.0 if x is None else math.inf if math.isnan(x) else x


S = TypeVar("S", Configuration, Graph)


def in_order(record: Record, some: Sequence[S]) -> list[S]:
    """Configurations or graphs by source, as the record has those, and what is compared in full first."""
    order = [source["id"] for source in record["sources"]]
    return sorted(some, key=lambda one: (order.index(one["source"]), one["head"] == "token"))


def closest_call(prompt: Prompt) -> tuple[int, float] | None:
    """The step at which the reference's two best tokens are nearest to each other, and by how much they are apart."""
    gaps = [(float(gap), step) for step, gap in enumerate(prompt["reference"]["gaps"]) if gap is not None]
    finite = [pair for pair in gaps if not math.isnan(pair[0])]
    if not finite:
        return None
    gap, step = min(finite)
    return step, gap


def by_status(checks: Sequence[Check]) -> list[Check]:
    """The checks, those that did not pass first."""
    order = ("failed", "error", "skipped", "passed")
    return sorted(checks, key=lambda check: order.index(check["status"]))
