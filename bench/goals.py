"""The speed targets of the emitted graphs, as ratios of two contenders within a round, and the ratios measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Figures = dict[str, Any]
PROMPT = 256


@dataclass(frozen=True)
class Target:
    """A ratio that is to be at least `least`.

    ratios: gives one figure for each round; none where a contender that it needs did not take part.
    """

    what: str
    least: float
    ratios: Callable[[Figures], list[float]]


def _ms(figures: Figures, contender: str, kind: str, at: int) -> list[float]:
    row = figures["contenders"].get(contender)
    return next((e["ms"] for e in row[kind] if e["at"] == at), []) if row else []


def faster(kind: str, contender: str, than: str, at: int | None = None) -> Callable[[Figures], list[float]]:
    """How many times as fast, at a position or length; the first position when None."""

    def ratios(figures: Figures) -> list[float]:
        place = figures["contexts"][0] if at is None else at
        ours, theirs = (_ms(figures, one, kind, place) for one in (contender, than))
        return [b / a for a, b in zip(ours, theirs, strict=False)]

    return ratios


def of_bandwidth(contender: str) -> Callable[[Figures], list[float]]:
    """The share of the machine's read bandwidth that a decode step reads its weights with."""

    def ratios(figures: Figures) -> list[float]:
        row = figures["contenders"].get(contender)
        ms = _ms(figures, contender, "decode", figures["contexts"][0])
        return [row["read_bytes"] / (m / 1000) / b for m, b in zip(ms, figures["bandwidth"], strict=False) if b]

    return ratios


F32 = "emitter/f32"
TARGETS = (
    Target("f32 decode, share of the read bandwidth", 0.8, of_bandwidth(F32)),
    Target("f32 decode against the oracle on XLA", 1.25, faster("decode", F32, "oracle/f32")),
    Target("f32 decode against Hugging Face f32", 4.0, faster("decode", F32, "transformers/f32")),
    Target("bf16 decode against our f32", 1.5, faster("decode", "emitter/bf16", F32)),
    Target("int8 decode against our f32", 2.0, faster("decode", "emitter/int8", F32)),
    Target("int4 decode against our f32", 2.5, faster("decode", "emitter/int4", F32)),
    Target("int4 decode against llama.cpp, same file", 1.0, faster("decode", "emitter/int4", "llama.cpp")),
    Target("f32: a batch of rows against one row", 3.0, faster("decode", f"{F32}/batch", F32)),
    Target("int4: a batch of rows against one row", 3.0, faster("decode", "emitter/int4/batch", "emitter/int4")),
    Target(f"prefill of {PROMPT} against the oracle on XLA", 1.0, faster("prefill", F32, "oracle/f32", PROMPT)),
    Target(f"prefill of {PROMPT} against Hugging Face f32", 1.5, faster("prefill", F32, "transformers/f32", PROMPT)),
)
# Where a step is all reading, as in larger models.
LARGE = (
    Target("f32 decode, share of the read bandwidth", 0.85, of_bandwidth(F32)),
    Target("int4 decode against our f32", 3.0, faster("decode", "emitter/int4", F32)),
)
OF_MODEL = {"synthetic-llama-1b": LARGE, "synthetic-llama-3b": LARGE}


def targets(figures: Figures) -> list[dict[str, Any]]:
    """Each target with what was measured: the ratios, their median and their range."""
    found = []
    for target in OF_MODEL.get(figures["model"], TARGETS):
        ratios = [round(r, 4) for r in target.ratios(figures)]
        found.append({"what": target.what, "least": target.least, "ratios": ratios, **summary(ratios)})
    if figures["model"] in OF_MODEL:  # there is no text that means anything, and no GGUF file
        return found
    ours, theirs = (figures["contenders"].get(id, {}).get("agreed") for id in ("emitter/int4", "llama.cpp"))
    counts = [float(ours["equal"])] if ours and theirs else []
    # More than theirs: where theirs are all equal, as many.
    least = min(theirs["equal"] + 1, theirs["total"]) if theirs else None
    what = "int4: tokens that agree, and llama.cpp's"
    found.append({"what": what, "least": least, "ratios": counts, **summary(counts)})
    return found


def summary(values: Sequence[float]) -> dict[str, float | None]:
    """The median and the range of the rounds' figures; None where there are none."""
    if not values:
        return {"median": None, "min": None, "max": None}
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}
