"""Writes census.json anew: `python -m hloracle.studies.pin_census`. Review the diff: it is the proof that changes.

A graph's operations are some that are fixed and, of each kind of layer, as many as there are layers of it. They are
measured on graphs with two and three layers of a kind, and confirmed on one with four.

A graph in bf16 has those of the same graph in float32, and more conversions. How many more is one of a few rows, which the
row of float32 names. It is measured in bf16 and confirmed in f16. So it is with what keeps keys and values in int8.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hloracle.conformance import checks
from hloracle.conformance.checks.census import census_key, held_key, layer_kind, uses
from hloracle.conformance.graphs.facts import inspect
from hloracle.core.cache import digest
from hloracle.emitters.model import Emitter, emit
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.config import Config, Layer
from hloracle.reference.model.contract import GraphSpec, graph_abi
from hloracle.reference.model.encodings import ENCODINGS, NARROW
from hloracle.reference.model.registry import from_hf
from hloracle.reference.model.weights import default_layout, taken_shapes
from hloracle.reference.oracle.lower import lower
from hloracle.studies.study import write_rows

# Other options that checkpoints of an architecture have, besides those of its tiny model.
_DEFAULT_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
VARIANTS: dict[str, Sequence[dict[str, Any]]] = {
    "llama": [{"attention_bias": True}, {"mlp_bias": True}, {"attention_bias": True, "mlp_bias": True}],
    "qwen3": [{"attention_bias": False}],
    "phi3": [{"sliding_window": None, "partial_rotary_factor": 1.0, **_DEFAULT_ROPE}],
    "granite": [{"attention_bias": False, "mlp_bias": False}],
    "cohere": [{"use_qk_norm": False}],
    "stablelm": [
        {"qk_layernorm": norm, "use_qkv_bias": bias, "use_parallel_residual": parallel}
        for norm in (False, True) for bias in (False, True) for parallel in (False, True)
    ],
    "seed_oss": [_DEFAULT_ROPE],
    "glm4": [{"partial_rotary_factor": 1.0}],
    **{name: [{"num_experts_per_tok": 1}] for name in ("mixtral", "gpt_oss")},
    "qwen2_moe": [{"norm_topk_prob": True}],
    "qwen3_moe": [{"norm_topk_prob": False}, {"use_sliding_window": True, "sliding_window": 11}],
    "olmoe": [{"clip_qkv": None}],
    "deepseek_v3": [
        {"attention_bias": False},
        {"attention_bias": False, "q_lora_rank": None},
        {"rope_interleave": False},
    ],
}  # fmt: skip
CAPACITY, BUCKET = 128, 64
LONG = 384  # slots that attention goes to in blocks
WIDE = 300  # keys of a window, of which a ring and a chunk are, too
# The oracle writes some of a batch out for each row, which is pinned of two, and how it grows is seen with more. The emitter writes the
# same for any number; with this one, no other constant is equal to it.
FEW_ROWS, MORE_ROWS, ANY_ROWS = 2, 5, 61
STEPS = (
    ("prefill", False, CAPACITY), ("decode", False, CAPACITY), ("decode", True, CAPACITY),
    *(("extend", rows, capacity) for rows in (False, True) for capacity in (CAPACITY, LONG)),
)  # fmt: skip


def graphs() -> Iterator[tuple[str, bool, GraphSpec, Config]]:
    """(source, whether its graphs find their own place, which graph, config) of every row, in float32 before bf16 and int8.

    In these those of the emitter alone, and without rings: to make as many of the others again takes too long.
    """
    for source, on_device, spec, config in _in_float32():
        yield source, on_device, spec, config
        if source == "emitter" and not spec.ring:
            yield source, on_device, spec._replace(compute=NARROW[0]), config
            yield source, on_device, spec._replace(kv="int8"), config


def _in_float32() -> Iterator[tuple[str, bool, GraphSpec, Config]]:
    for architecture, raw in TINY.items():
        for changes in ({}, *VARIANTS.get(architecture, ())):
            config = from_hf({**raw, **changes})
            each = [*itertools.product((config, *others(config)), STEPS, (False, True))]
            wide = [windows_of(one, WIDE) for one in (config, *others(config))] if any(config.windows) else []
            in_blocks = [("extend", rows, LONG) for rows in (False, True)]
            for one, (phase, rows, capacity), ring in [*each, *itertools.product(wide, in_blocks, (True,))]:
                if ring and not one.windowed(capacity):
                    continue
                spec = GraphSpec(phase, "logits", capacity, BUCKET if phase != "decode" else 0, ring=ring)
                for on_device, head in itertools.product((False, True), ("logits", "token")):
                    yield "emitter", on_device, spec._replace(head=head, batch=ANY_ROWS if rows else 1), one
                yield "oracle", False, spec._replace(batch=FEW_ROWS if rows else 1), one


def others(config: Config) -> Iterator[Config]:
    """The config as in graphs of fewer keys than its windows, or than its angles turn at; and with angles that do turn."""
    wide = windows_of(config, 4096).layers
    kinds: list[dict[str, Any]] = [{"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": BUCKET - 8}]
    kinds += [{}, {"original_max_position_embeddings": 4096}] if config.turning_point else [{}]
    # Of several sets of angles, those of the first alone may turn, too.
    turned = dict.fromkeys((tuple(config.ropes), tuple(config.ropes[:1])))
    for layers, changes, ropes in itertools.product((config.layers, wide), kinds, turned):
        yield dataclasses.replace(config, layers=tuple(
            dataclasses.replace(layer, rope=dataclasses.replace(layer.rope, **changes)) if layer.rope in ropes else layer
            for layer in layers
        ))  # fmt: skip


def windows_of(config: Config, keys: int) -> Config:
    """The config with windows of so many keys where it has any."""
    layers = (dataclasses.replace(layer, window=layer.window and keys) for layer in config.layers)
    return dataclasses.replace(config, layers=tuple(layers))


def census() -> dict[str, dict[str, Any]]:
    """Every row of census.json, for the versions that are installed."""
    rows: dict[str, dict[str, Any]] = {}
    others: dict[str, dict[str, dict[str, Any]]] = {"narrow": {}, "int8": {}}
    for source, on_device, spec, config in graphs():
        abi = graph_abi(config, *spec[:4], None, *spec[4:])
        key = census_key(source, abi, config, on_device)
        kind = "int8" if spec.kv == "int8" else "narrow" if spec.compute != "f32" else ""
        if not kind and key not in rows:
            rows[key] = measured(source, on_device, spec, config)
        elif kind and kind not in rows[key]:
            more = difference(measured(source, on_device, spec, config), rows[key])
            rows[key][kind] = name = f"{kind}/{digest(json.dumps(more, sort_keys=True))[:8]}"
            others[kind][name] = more
    return rows | others["narrow"] | others["int8"]


def measured(source: str, on_device: bool, spec: GraphSpec, config: Config) -> dict[str, Any]:
    """The row of a graph: what is fixed, what each kind of layer has, and of several rows what each row more has."""
    key, abi = f"{config.architecture}'s {source} {spec.name}", graph_abi(config, *spec[:4], None, *spec[4:])

    def ops(layers: Sequence[Layer], batch: int = spec.batch, compute: str = spec.compute) -> Counter[str]:
        deep, of = dataclasses.replace(config, layers=tuple(layers)), spec._replace(batch=batch, compute=compute)
        if source == "oracle":
            return Counter(inspect(lower(deep, *of)).ops)
        layout = default_layout(deep, compute, panels=False) if compute != "f32" else None
        return Counter(inspect(Emitter(on_device=on_device).emit(deep, *of[:4], layout, *of[4:])).ops)

    all_kinds = list(dict.fromkeys(config.layers))
    twice = ops(all_kinds * 2)
    kinds: dict[str, Counter[str]] = {}
    for layer in all_kinds:
        more = ops([*all_kinds * 2, layer])
        grown = {op: more[op] - twice[op] for op in more | twice if more[op] != twice[op]}
        kinds[layer_kind(layer, abi)] = Counter(grown)
    fixed = dict(twice)
    for layer in all_kinds * 2:
        for op, n in kinds[layer_kind(layer, abi)].items():
            fixed[op] = fixed.get(op, 0) - n

    def predicted(layers: Sequence[Layer]) -> dict[str, int]:
        found = Counter(fixed)
        for layer in layers:
            found.update(kinds[layer_kind(layer, abi)])
        return {op: n for op, n in found.items() if n}

    if spec.ring:  # caches and rings are both numbered from 0 on: of these constants there may be fewer
        short = (ops(some)["constant"] - predicted(some)["constant"] for some in (all_kinds, all_kinds * 4))
        fixed["constant"] += max(0, *short)
    four = ops(all_kinds * 4, compute=spec.compute if spec.compute == "f32" else NARROW[-1])
    of_four = predicted(all_kinds * 4)
    if spec.ring and four["constant"] < of_four["constant"]:
        of_four["constant"] = four["constant"]
    if of_four != dict(four):
        raise ValueError(f"the census of {key} does not grow with the layers alone")
    row: dict[str, Any] = {
        "fixed": {op: n for op, n in sorted(fixed.items()) if n},
        "layers": {kind: dict(sorted(counts.items())) for kind, counts in kinds.items()},
    }
    if spec.batch == FEW_ROWS and (grown := _by_row(key, ops, all_kinds)):
        row["rows"] = grown
    return row


def difference(more: dict[str, Any], less: dict[str, Any]) -> dict[str, Any]:
    """The row of which `more` has more than `less`; what is none is left out."""

    def counts(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
        return {op: n for op in sorted({*a, *b}) if (n := a.get(op, 0) - b.get(op, 0))}

    row: dict[str, Any] = {
        "fixed": counts(more["fixed"], less["fixed"]),
        "layers": {kind: counts(more["layers"][kind], less["layers"][kind]) for kind in more["layers"]},
    }
    if grown := counts(more.get("rows", {}), less.get("rows", {})):
        row["rows"] = grown
    return row


def _by_row(key: str, ops: Callable[..., Counter[str]], layers: Sequence[Layer]) -> dict[str, int]:
    """How many more operations each layer has for each row more."""
    two, three, many = (ops([*layers] * 2, batch) for batch in (FEW_ROWS, FEW_ROWS + 1, MORE_ROWS))
    count = 2 * len(layers)
    grown = {op: n // count for op in sorted(three | two) if (n := three[op] - two[op])}
    predicted = Counter(two)
    predicted.update({op: n * count * (MORE_ROWS - FEW_ROWS) for op, n in grown.items()})
    if {op: n for op, n in predicted.items() if n} != {op: n for op, n in many.items() if n}:
        raise ValueError(f"the census of {key} does not grow with the rows alone")
    return grown


Q = "model.layers.0.self_attn.q_proj.weight"
JOINED = ("model.layers.0.self_attn.q_proj-k_proj-v_proj.weight", "model.layers.0.mlp.gate_proj-up_proj.weight")
# A model with each use of a weight, of sizes that panels fit and a look-up of one expert; and weights fused of two and three.
HELD: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    *(
        # Groups that are dealt to three hands, to one, two and four.
        ("llama", {"vocab_size": 272, "hidden_size": hidden}, (*alone, *JOINED))
        for hidden, alone in ((84, (Q, "model.embed_tokens.weight")), (32, (Q,)), (64, (Q,)), (128, (Q,)))
    ),
    ("mixtral", {}, ("model.layers.0.mlp.experts.gate_up_proj",)),
    ("deepseek_v3", {}, ("model.layers.0.self_attn.kv_b_proj.weight",)),
    # A panel alone: one kv head of 16.
    ("llama", {"num_key_value_heads": 1, "head_dim": 16}, ("model.layers.0.self_attn.k_proj.weight",)),
)


def held() -> dict[str, dict[str, Any]]:
    """A row for each encoding and use: by how much a graph grows when one weight is held so."""
    rows: dict[str, dict[str, Any]] = {}
    for architecture, changes, weights in HELD:
        config = from_hf({**TINY[architecture], **changes})
        for weight, encoding, phase in itertools.product(weights, ENCODINGS.values(), ("prefill", "decode")):
            if not encoding.fits(taken_shapes(config, {weight})[weight]):
                continue
            spec = (config, phase, "logits", CAPACITY, BUCKET if phase == "prefill" else 0)
            plain, with_it = (Counter(inspect(emit(*spec, layout)).ops) for layout in ({}, {weight: encoding.name}))
            grown = {op: with_it[op] - plain[op] for op in sorted(with_it | plain) if with_it[op] != plain[op]}
            (use,) = uses(weight, phase, config, tokens=spec[4] or 1)
            part, _ = encoding.types(taken_shapes(config, {weight})[weight])[0]
            found = rows.setdefault(held_key(weight, encoding.name, use, part), {"fixed": grown, "layers": {}})
            if found["fixed"] != grown:
                raise ValueError(f"the census of {encoding.name} in {use} depends on the weight: {weight}")
    return rows


if __name__ == "__main__":
    write_rows(Path(str(checks.__file__)).with_name("census.json"), census() | held())
