"""How many operations of each kind a graph of a model has: pinned in census.json, which `pin_census` writes."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from functools import cache
from importlib import resources
from typing import Any

from hloracle.conformance.checks.check import Question
from hloracle.core.abi import Abi, Graph
from hloracle.emitters.matrix import STRATEGIES, hands_of
from hloracle.emitters.model import in_blocks
from hloracle.reference.model.anchors import anchors
from hloracle.reference.model.config import Config, Layer
from hloracle.reference.model.contract import effective_window
from hloracle.reference.model.encodings import Shape, argument_parts
from hloracle.reference.model.rope import prefill_tables
from hloracle.reference.model.weights import parts_in

# Checks that hold for sources with pinned counts alone, and their titles.
PINNED = {
    "census": "operations of each kind are those pinned in census.json",
    "matmuls": "products: those of each layer's parts, and the head's",
    "weights": "weights: those of each layer's parts, the embedding, the last norm and an untied head",
    "op-kinds": "op kinds of the decode graphs",
    "tables": "constant tables are the RoPE tables of float64 angles, rounded once",
    "fewer-ops": "fewer operations than the oracle",
}
NOT_PINNED = "no counts are pinned for the graphs of this source"
# What a graph needs to find its own place in tables and caches, and to read a layer of them.
ON_DEVICE_KINDS = {"gather", "scatter", "slice"}
# And what it needs for rows that are each at a position of their own, or are idle.
BATCH_KINDS = {"gather", "scatter", "slice", "optimization_barrier"}
# And to find a position's slot in a ring.
RING_KINDS = {"remainder", "minimum"}
# And to keep keys and values in int8: the largest of a head, whole steps between two limits, and numbers again.
INT8_KINDS = {"abs", "round_nearest_even", "minimum", "convert"}


def pinned(kind: str, source: str) -> Question:
    """What is asked of sources with pinned counts alone: a kind in PINNED."""
    return Question(kind, PINNED[kind], source)


@cache
def _pins() -> dict[str, dict[str, Any]]:
    return dict(json.loads((resources.files("hloracle.conformance.checks") / "census.json").read_text()))


# The fields of Config that only say how large or how strong something is: they change no operation.
SIZES = frozenset(
    "architecture layers hidden_size num_attention_heads num_key_value_heads head_dim intermediate_size vocab_size "
    "max_position_embeddings norm_eps scaling tie_word_embeddings experts latent".split()
)


def census_key(source: str, abi: Abi, config: Config, on_device: bool = False) -> str:
    """The row of census.json that pins this graph: what the operations depend on besides the number of layers.

    What computes in bf16 or f16 has the row of float32, and the one that this row names as `narrow`; what keeps keys and values in int8,
    the one that it names as `int8`.
    """
    usual = {f.name: f.default for f in dataclasses.fields(Config)}
    options = []
    for name, default in usual.items():
        value = getattr(config, name)
        if name not in SIZES and value != default:
            options.append(name if not isinstance(value, str) else f"{name}={value}")
    slots = abi.bucket if abi.phase == "prefill" else abi.capacity
    masks = {effective_window(window, slots) is not None for window in config.windows}
    options += ["partial"] if _partial(config) else []
    options += ["windowed" if masks == {True} else "some-windowed"] if True in masks else []
    if abi.phase != "decode":
        options += ["turning" for rope in config.ropes if len(prefill_tables(rope, slots).cos) > 1]
    if len(config.ropes) > 1:
        options.append(f"{len(config.ropes)}-ropes")
    if experts := config.experts:
        several = {"norm_topk_prob": experts.norm_topk_prob, "groups": experts.n_group > 1}
        several |= {"routed_scaling_factor": experts.routed_scaling_factor != 1}
        several |= {"one-chosen": experts.num_experts_per_tok == 1}
        several |= {"all-chosen": experts.num_experts_per_tok == experts.num_experts}
        options += [name for name, found in several.items() if found]
    if config.latent:
        options += [name for name in ("q_lora_rank", "rope_interleave") if getattr(config.latent, name)]
    options += ["on-device"] if on_device else []
    options += ["batch"] if abi.batch > 1 else []
    options += ["ring"] if abi.windowed else []
    blocks = {"blocks": abi.capacity if "k_cache" in abi.caches else 0}
    blocks |= {"ring-blocks": abi.ring + abi.bucket if abi.windowed else 0}
    options += [name for name, keys in blocks.items() if source == "emitter" and in_blocks(abi, on_device, keys)]
    return "/".join([config.architecture, source, abi.phase, abi.head, *options])


def layer_kind(layer: Layer, abi: Abi) -> str:
    """What the number of a layer's operations depends on."""
    ring = abi.windowed and effective_window(layer.window, abi.capacity) is not None
    words = ["sparse" if layer.sparse else "dense", "" if layer.rope else "without RoPE", "in a ring" if ring else ""]
    return " ".join(filter(None, words))


def census_pin(source: str, graph: Graph, config: Config) -> dict[str, int] | None:
    """The pinned number of operations of each kind, or None where this kind of graph has no pin.

    JAX leaves out broadcasts along axes of one element, so the oracle's census is pinned for models with
    more than one kv head, or a latent. With one layer of a kind, constants coincide that otherwise do not.
    """
    rows = _rows(census_key(source, graph.abi, config, graph.on_device), graph.abi)
    held = held_ops(graph, config)
    kinds = Counter(layer_kind(layer, graph.abi) for layer in config.layers)
    narrow = source == "oracle" and config.num_key_value_heads == 1 and not config.latent
    known = bool(rows) and set(kinds) <= set(rows[0]["layers"])
    if not known or held is None or config.num_hidden_layers < 2 or narrow:
        return None
    pin: Counter[str] = Counter()
    # What is written out for each row of a batch, in each layer; the pin is of two rows.
    further = (graph.abi.batch - 2) * config.num_hidden_layers
    for row in rows:
        pin.update(row["fixed"])
        for kind, count in kinds.items():
            pin.update({op: count * n for op, n in row["layers"].get(kind, {}).items()})
        pin.update({op: further * n for op, n in row.get("rows", {}).items()})
    pin.update(held)
    return {op: n for op, n in pin.items() if n}


def _rows(key: str, abi: Abi) -> list[dict[str, Any]]:
    """The rows of census.json that a graph's operations are together; none where it has no pin."""
    row = _pins().get(key)
    if row is None or (abi.compute, abi.kv) == ("f32", "compute"):
        return [row] if row else []
    more = "int8" if abi.kv == "int8" else "narrow"
    return [row, _pins()[row[more]]] if more in row else []


def op_kinds_for(config: Config) -> set[str]:
    """The kinds of operation that this model's mechanisms need and Llama's do not."""
    caps = (config.attn_logit_softcapping, config.final_logit_softcapping)
    needs = {
        "and": any(config.windows),
        "tanh": any(caps) or config.hidden_act == "gelu_pytorch_tanh",
        "slice": _partial(config) or bool(config.latent) or _fused(config) or bool(config.experts),
        "concatenate": _partial(config),
        "minimum": config.clip_qkv is not None or bool(config.experts and config.experts.swiglu_limit),
        "transpose": bool(config.latent),
        "gather": bool(config.experts),
        "convert": bool(config.experts),
        "optimization_barrier": bool(config.experts),
    }
    return {kind for kind, needed in needs.items() if needed}


def mechanism_kinds(graph: Graph, config: Config) -> set[str]:
    """The kinds that a graph's mechanisms, and how it holds weights, need and a Llama's of plain weights do not."""
    kinds = op_kinds_for(config) | held_kinds(graph, config)
    kinds |= ON_DEVICE_KINDS if graph.on_device else set()
    kinds |= {"convert"} if graph.abi.compute != "f32" else set()
    kinds |= RING_KINDS if graph.abi.windowed else set()
    kinds |= INT8_KINDS if graph.abi.kv == "int8" else set()
    return kinds | (BATCH_KINDS if graph.abi.batch > 1 else set())


def _partial(config: Config) -> bool:
    """Whether RoPE turns a part of a head's numbers only."""
    return any(rope.dim < config.head_dim for rope in config.ropes) and not config.latent


def _fused(config: Config) -> bool:
    """Whether one product gives what two or three parts of a layer take."""
    return any("qkv_proj" in anchor or "gate_up_proj" in anchor for anchor in anchors(config))


# ---- weights that are not held as they are


def uses(
    weight: str, phase: str, config: Config, on_device: bool = False, tokens: int = 1, few: int = 1
) -> list[str]:  # fmt: skip
    """What a graph does with a matrix: `row`, `rows`: looks them up; `token`, `prompt`: multiplies with it; `dense`.

    Args:
      tokens: those of a decode, one of each row, or of a prompt. few: as many are multiplied as one is.
    """
    token = phase == "decode" and tokens == 1
    # Of a prompt, the last token alone has logits.
    head = "prompt" if phase == "decode" and tokens > few else "token"
    if weight.endswith("embed_tokens.weight"):
        return ["row" if token and not on_device else "rows", *([head] if config.tie_word_embeddings else [])]
    if weight == "lm_head.weight":
        return [head]
    if experts := config.experts:
        few = token and experts.num_experts_per_tok < experts.num_experts
        if ".experts." in weight:
            return ["rows" if few else "dense"]
    if weight.endswith("kv_b_proj.weight"):
        return ["dense"]
    return ["token" if tokens <= few else "prompt"]


def held_key(weight: str, encoding: str, use: str, part: Shape) -> str:
    """The row of census.json that pins what a graph needs for a weight that is held otherwise, or fused of several.

    Args:
      part: the shape of its first argument.
    """
    parts = len(parts_in(weight))
    hands = hands_of(part[-2]) if use == "token" and encoding in ("int8", "int4") else 1
    # The sums of one panel are in the product's shape already.
    one = use == "token" and encoding.endswith("panels") and part[0] == 1
    return f"held/{encoding}/{use}" + f"/{parts}" * (parts > 1) + f"/{hands} hands" * (hands > 1) + "/one panel" * one


def held_ops(graph: Graph, config: Config) -> Counter[str] | None:
    """How many more operations of each kind a graph has, or fewer, because of how it holds weights; None without a pin.

    A graph that computes in bf16 or f16 is pinned with its weights in that type. Fused ones have no pin there.
    """
    found: Counter[str] = Counter()
    if graph.abi.compute != "f32":
        return None if any(len(parts_in(a.weight)) > 1 for a in graph.abi.weights) else found
    for argument in graph.abi.weights:
        weight, encoding, part = argument_parts(argument.name)
        if not encoding or part:
            continue
        tokens = graph.abi.batch if graph.abi.phase == "decode" else graph.abi.bucket
        for use in uses(weight, graph.abi.phase, config, graph.on_device, tokens, STRATEGIES[encoding].few):
            row = _pins().get(held_key(weight, encoding, use, argument.shape))
            if row is None:
                return None
            found.update(row["fixed"])
    return found


def held_kinds(graph: Graph, config: Config) -> set[str]:
    """The kinds of operation that these are, and that a Llama of plain weights does not have."""
    llama = _pins()["llama/emitter/decode/logits"]
    usual = {*llama["fixed"], *(op for layer in llama["layers"].values() for op in layer)}
    return {op for op, n in (held_ops(graph, config) or {}).items() if n > 0} - usual
