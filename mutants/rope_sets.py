"""RoPE beyond Llama's: which settings a layer has, which dimensions are turned, and angles that depend on the length."""

from __future__ import annotations

import dataclasses

import numpy as np

from hloracle.emitters.builder import Value
from hloracle.emitters.layers import LayerBuilder, RopeRows
from hloracle.emitters.model import DecodeCache, LayerInputs, Weights
from hloracle.mutants.registry import Right, mutant
from hloracle.reference.model.config import Config, Rope
from hloracle.reference.model.rope import RopeTables, decode_tables, prefill_tables

BOTH = "emitters.model:decode_tables emitters.model:prefill_tables"
DECODE, PREFILL = BOTH.split()
ROWS = "emitters.layers:LayerBuilder.rope_rows"
ROTARY = "emitters.layers:LayerBuilder.rotary"
FIRST, SECOND = (f"layers.{layer}.self_attn.q_rope" for layer in (0, 1))

# Where neither queries nor keys are turned, the cache is the first value that shows it, and it should hold turned keys.
NO_KEY = "layers.0.self_attn.k_rope"

# ---- which settings a layer has


def turned(id: str, model: str, fault: str, anchor: str, sets: dict[int, int | None]) -> None:
    """Register a block whose layers are turned as others are: layer -> the layer whose RoPE it has, None for none."""

    @mutant(id, "rope-set", fault, anchor=anchor, replaces="emitters.architectures.*:block", model=model)
    def other(right: Right[Value], b: LayerBuilder, x: Value, w: Weights, layer: LayerInputs, config: Config) -> Value:
        if (place := layer.cache.layer) in sets:
            like = sets[place]
            layer = dataclasses.replace(layer, rope=None if like is None else rows(b, layer, config.layers[like].rope))
        return right(b, x, w, layer, config)


def rows(b: LayerBuilder, layer: LayerInputs, rope: Rope | None) -> RopeRows | None:
    """The rows of some RoPE, written where queries are turned."""
    if rope is None:
        return None
    slots = layer.visible.mask.shape[0]
    with b.scope("self_attn"), b.scope("q_rope"):
        if isinstance(layer.cache, DecodeCache):
            return b.rope_rows(decode_tables(rope, slots), rope.interleaved, layer.cache.position, None)
        return b.rope_rows(prefill_tables(rope, slots), rope.interleaved, None, None)


turned(
    "rope-sets-exchanged",
    "tiny-gemma3_text",
    "full layers turn by local angles, windowed by global",
    FIRST,
    {0: 1, 1: 0},
)
turned("rope-local-everywhere", "tiny-gemma3_text", "full layers turn by the local angles too", SECOND, {1: 0})
turned("rope-yarn-everywhere", "tiny-olmo3", "windowed layers have YaRN as well", FIRST, {0: 1})
turned("rope-on-every-layer", "tiny-smollm3", "layers without RoPE are turned", "k_cache.1", {1: 0})
turned("rope-off-the-wrong-layer", "tiny-smollm3", "the turned layers are the others", NO_KEY, {0: None, 1: 0})
turned("rope-on-full-layers", "tiny-cohere2", "layers without a window are turned as well", "k_cache.1", {1: 0})
turned("rope-on-no-layer", "tiny-cohere2", "windowed layers are not turned either", NO_KEY, {0: None})

# ---- which tables


def tabled(
    id: str, model: str, fault: str, anchor: str = FIRST, types: tuple[str, ...] = (), only: str = BOTH, theta: float = 1.0,
    **changes: object,
) -> None:  # fmt: skip
    """Register tables of other settings, of RoPE of some types or of all. theta: power that the base is raised to."""

    @mutant(id, "rope-settings", fault, anchor=anchor, replaces=only, model=model)
    def tables(right: Right[RopeTables], rope: Rope, length: int) -> RopeTables:
        if rope.type in types or not types:
            rope = dataclasses.replace(rope, theta=rope.theta**theta, **changes)  # type: ignore[arg-type]
        return right(rope, length)


tabled(
    "rope-linear-forgotten",
    "tiny-gemma3_text",
    "positions of full layers are not divided",
    SECOND,
    ("linear",),
    type="default",
)
tabled(
    "rope-linear-inverted",
    "tiny-gemma3_text",
    "positions are multiplied by the factor",
    SECOND,
    ("linear",),
    factor=1 / 8,
)
tabled("rope-yarn-forgotten", "tiny-qwen2", "YaRN is left out", types=("yarn",), type="default", attention_factor=1.0)
tabled("rope-yarn-unscaled", "tiny-qwen2", "YaRN's factor for cos and sin is left out", attention_factor=1.0)
tabled(
    "rope-yarn-unscaled-decode", "tiny-olmo3", "decode's cos and sin are not multiplied by YaRN's factor", SECOND, ("yarn",),
    only=DECODE, attention_factor=1.0,
)  # fmt: skip
tabled("rope-yarn-truncated", "tiny-gpt_oss", "YaRN's bounds are rounded to whole pairs", truncate=True)
tabled("rope-yarn-is-linear", "tiny-deepseek_v3", "every frequency is divided, as linear scaling does", type="linear")
tabled("rope-theta-of-another", "tiny-mixtral", "the base is a million, as Mixtral's own models have it", theta=1.5)
tabled("rope-theta-doubled", "tiny-seed_oss", "the base is squared", theta=2.0)
tabled("rope-of-whole-head", "tiny-stablelm", "all dimensions of a head are turned", dim=16)
tabled("rope-exponents-of-whole-head", "tiny-glm4", "the frequencies are those of a whole head", theta=0.5)
tabled(
    "rope-long-forgotten",
    "tiny-phi3",
    "long prompts have the short factors too",
    only=PREFILL,
    long_factor=(1.0, 1.1, 1.2, 1.4, 1.7, 2.0),
)
tabled("rope-unscaled", "tiny-phi3", "cos and sin are not multiplied by LongRoPE's factor", attention_factor=1.0)
tabled(
    "rope-short-decode",
    "tiny-phi3",
    "decode never takes the long factors",
    only=DECODE,
    original_max_position_embeddings=1024,
)
tabled("rope-dynamic-forgotten", "tiny-seed_oss", "the base does not grow beyond the trained length", type="default")
tabled("rope-dynamic-factor", "tiny-seed_oss", "the base grows by the plain ratio of lengths", factor=1.0)


@mutant(
    "rope-long-by-bucket-prefill", "rope-length", "prefill takes the bucket's length for the prompt's",
    anchor=FIRST, replaces=ROWS, model="tiny-phi3",
)  # fmt: skip
def by_bucket_prefill(
    right: Right[RopeRows], b: LayerBuilder, tables: RopeTables, interleaved: bool, start: Value | None,
    length: Value | None,
) -> RopeRows:  # fmt: skip
    return right(b, tables, interleaved, start, length and b.i32(tables.cos.shape[1]))


@mutant(
    "rope-dynamic-of-capacity-decode", "rope-length", "decode's angles are those of a sequence that fills the cache",
    anchor=FIRST, replaces=DECODE, model="tiny-seed_oss",
)  # fmt: skip
def of_capacity_decode(right: Right[RopeTables], rope: Rope, length: int) -> RopeTables:
    tables = prefill_tables(rope, length)
    return RopeTables(tables.cos[-1:], tables.sin[-1:])


@mutant(
    "rope-dynamic-next-prefill", "rope-length", "prefill's base is that of a sequence one longer",
    anchor=FIRST, replaces=ROWS, model="tiny-seed_oss",
)  # fmt: skip
def next_prefill(
    right: Right[RopeRows], b: LayerBuilder, tables: RopeTables, interleaved: bool, start: Value | None,
    length: Value | None,
) -> RopeRows:  # fmt: skip
    return right(b, tables, interleaved, start, length and b.add(length, b.i32(1)))


# ---- which dimensions


def paired(id: str, model: str, fault: str, interleaved: bool) -> None:
    """Register RoPE that takes the other dimensions for pairs."""

    @mutant(id, "rope-pairs", fault, anchor=FIRST, replaces=ROWS, model=model)
    def other(
        right: Right[RopeRows], b: LayerBuilder, tables: RopeTables, given: bool, start: Value | None,
        length: Value | None,
    ) -> RopeRows:  # fmt: skip
        return right(b, tables, interleaved, start, length)


HALVES, PAIRS = "pairs are (i, i + D/2), as Llama's", "pairs are (2i, 2i+1), as GPT-J's"
paired("rope-halves-not-pairs", "tiny-cohere", HALVES, interleaved=False)
paired("rope-halves-not-pairs-windowed", "tiny-cohere2", HALVES, interleaved=False)
paired("rope-halves-not-pairs-partial", "tiny-glm4", HALVES, interleaved=False)
paired("rope-pairs-not-halves", "tiny-qwen3", PAIRS, interleaved=True)
paired("rope-pairs-not-halves-partial", "tiny-stablelm", PAIRS, interleaved=True)


@mutant(
    "rope-last-dimensions", "rope-pairs", "the last dimensions of a head are turned, not the first",
    anchor=FIRST, replaces=ROTARY, model="tiny-stablelm",
)  # fmt: skip
def last_dimensions(right: Right[Value], b: LayerBuilder, x: Value, rope: RopeRows) -> Value:
    D, R = x.shape[2], int(np.prod(rope.cos.shape[1:]))
    turned = right(b, b.part(x, 2, D - R, D), rope)
    return b.concatenate([b.part(x, 2, 0, D - R), turned], 2)


@mutant(
    "rope-rest-dropped-last-layer", "rope-pairs", "layer 1's keys are 0 where they are not turned",
    anchor="layers.1.self_attn.k_rope", replaces=ROTARY, model="tiny-glm4",
)  # fmt: skip
def rest_dropped_last_layer(right: Right[Value], b: LayerBuilder, x: Value, rope: RopeRows) -> Value:
    y, R = right(b, x, rope), int(np.prod(rope.cos.shape[1:]))
    if b.anchor != "layers.1.self_attn.k_rope":
        return y
    T, N, D = y.shape
    return b.concatenate([b.part(y, 2, 0, R), b.f32(0.0, (T, N, D - R))], 2)
