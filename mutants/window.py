"""Sliding windows: how wide, in which layers, in which phase. The first value that a mask makes wrong is the scores."""

from __future__ import annotations

import dataclasses

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder, Visible
from hloracle.emitters.model import DecodeCache, LayerInputs, Weights
from hloracle.mutants.registry import Right, mutant
from hloracle.reference.model.config import Config

DECODE = "emitters.layers:LayerBuilder.visible_to_position"
PREFILL = "emitters.layers:LayerBuilder.visible_causal"
EFFECTIVE = "emitters.model:effective_window"
FIRST, SECOND = (f"layers.{layer}.self_attn.scores" for layer in (0, 1))

# ---- how wide


def widened(id: str, model: str, by: int, fault: str, anchor: str = FIRST) -> None:
    """Register windows that are `by` keys wider, in both phases."""

    @mutant(id, "window", fault, anchor=anchor, replaces=EFFECTIVE, model=model)
    def effective(right: Right[int | None], window: int | None, keys: int) -> int | None:
        return right(window and window + by, keys)


widened("window-with-one-more", "tiny-mistral", 1, "a query sees `window` keys before its own, so one too many")
widened("window-without-self", "tiny-starcoder2", -1, "a query sees one key less than the window has")
widened("window-with-one-more-late", "tiny-phi3", 1, "a query sees one key more than the window has")
widened(
    "window-twice-in-second-layer", "tiny-qwen2", 11, "the window reaches to both sides, so it is twice as wide", SECOND
)


@mutant(
    "window-decode-off-by-one", "window", "decode's window begins one slot too late",
    anchor=FIRST, replaces=DECODE, model="tiny-gpt_oss",
)  # fmt: skip
def decode_off_by_one(right: Right[Value], b: LayerBuilder, position: Value, slots: int, window: int | None) -> Value:
    return right(b, position, slots, window and window - 1)


@mutant(
    "window-prefill-off-by-one", "window", "prefill's window is a key too wide",
    anchor=FIRST, replaces=PREFILL, model="tiny-mixtral",
)  # fmt: skip
def prefill_off_by_one(right: Right[Value], b: LayerBuilder, length: int, window: int | None) -> Value:
    return right(b, length, window and window + 1)


# ---- whether at all


@mutant(
    "window-missing-decode", "window-missing", "decode sees everything before it",
    anchor=FIRST, replaces=DECODE, model="tiny-mistral",
)  # fmt: skip
def missing_decode(right: Right[Value], b: LayerBuilder, position: Value, slots: int, window: int | None) -> Value:
    return right(b, position, slots, None)


@mutant(
    "window-missing-prefill", "window-missing", "a prompt's token sees everything before it",
    anchor=FIRST, replaces=PREFILL, model="tiny-starcoder2",
)  # fmt: skip
def missing_prefill(right: Right[Value], b: LayerBuilder, length: int, window: int | None) -> Value:
    return right(b, length, None)


@mutant(
    "window-from-the-start-decode", "window", "decode sees the first `window` slots, not the last",
    anchor=FIRST, replaces=DECODE, model="tiny-mistral",
)  # fmt: skip
def from_the_start_decode(
    right: Right[Value], b: LayerBuilder, position: Value, slots: int, window: int | None
) -> Value:
    early = b.compare(b.iota((slots,), "i32"), b.i32(window or slots, (slots,)), "LT")
    return b.and_(right(b, position, slots, None), early)


@mutant(
    "window-not-causal-prefill", "window", "a prompt's token sees the keys after it as well",
    anchor=FIRST, replaces=PREFILL, model="tiny-mixtral",
)  # fmt: skip
def not_causal_prefill(right: Right[Value], b: LayerBuilder, length: int, window: int | None) -> Value:
    shape = (length, length)
    before = b.subtract(b.iota(shape, "i32", 0), b.i32(window or length, shape))
    return b.compare(b.iota(shape, "i32", 1), before, "GT")


# ---- in which layers


def seen(id: str, model: str, fault: str, windows: dict[int, int | None]) -> None:
    """Register a block whose layers see other windows than their own: layer -> keys, None for all."""
    anchor = f"layers.{min(windows)}.self_attn.scores"

    @mutant(id, "window-layers", fault, anchor=anchor, replaces="emitters.architectures.*:block", model=model)
    def other(right: Right[Value], b: LayerBuilder, x: Value, w: Weights, layer: LayerInputs, config: Config) -> Value:
        if layer.cache.layer in windows:
            layer = dataclasses.replace(layer, visible=Visible(visible(b, layer, windows[layer.cache.layer])))
        return right(b, x, w, layer, config)


def visible(b: LayerBuilder, layer: LayerInputs, window: int | None) -> Value:
    """The mask of a window, written where the scores are."""
    with b.scope("self_attn"), b.scope("scores"):
        if isinstance(layer.cache, DecodeCache):
            return b.visible_to_position(layer.cache.position, layer.visible.mask.shape[0], window)
        return b.visible_causal(layer.visible.mask.shape[0], window)


seen("window-on-early-layers", "tiny-qwen2", "the layers before max_window_layers have it", {0: 11, 1: None})
seen("window-layers-exchanged", "tiny-gemma2", "full layers have a window, and windowed ones none", {0: None, 1: 11})
seen("window-in-every-layer", "tiny-gemma3_text", "the full layers have a window too", {1: 11})
seen("window-in-no-layer", "tiny-olmo3", "no layer has a window", {0: None})
seen(
    "window-where-no-rope-is", "tiny-cohere2", "the layers without RoPE have it, not the turned ones", {0: None, 1: 11}
)
seen("window-in-second-layer-too", "tiny-gpt_oss", "every layer has it, not every second", {1: 11})
seen("window-in-sparse-layer", "tiny-qwen2_moe", "the layer with experts has it, not the one without", {0: None, 1: 11})
