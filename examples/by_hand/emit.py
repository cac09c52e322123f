"""Writes StableHLO for the decoder models of a Hugging Face checkpoint directory. No dependencies; reads config.json.

    python emit.py --model DIR --out DIR

writes OUT/decode.mlir (one token) and OUT/prefill.mlir (a prompt of up to 64 tokens), and for llama also OUT/ragged.mlir
(one token in each of 4 sequences). Families: llama, qwen2, qwen3, mistral, gemma2, gemma3_text, olmo2, phi3. Each family
has the weight layout of the runtime that it was written for: see STYLES, and FAMILY.abi.toml beside this file.

Letters in comments: M tokens of a call, S cache slots, L layers, N query heads, K kv heads, G = N/K, D head size,
E hidden size, F intermediate size, V vocabulary.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

SLOTS, BUCKET, ROWS = 256, 64, 4
MASKED = -1.0e30


@dataclass(frozen=True)
class Style:
    """How a family is wired, and how its weights lie."""

    layout: str = "io"  # io: [in, out]; oi: [out, in]; heads: q, k, v are [E, heads, D], and wo is [N, D, E]
    fused_qkv: bool = False  # one matrix wqkv
    fused_mlp: bool = False  # one matrix w_gate_up
    stacked: bool = False  # one argument blocks.NAME for all layers, with L first
    table: bool = False  # cos and sin are tables in the graph; without it they are computed from the position
    interleaved: bool = False  # RoPE turns the pairs (2i, 2i+1), as in Meta's files; without it (i, i + D/2)
    named: bool = False  # operations have locations
    donated: bool = False  # caches are updated in place
    norms: str = "pre"  # pre: before attention and MLP; post: after them; both
    qk_norm: str = ""  # head: of each head; all: of all heads at once
    plus_one: bool = False  # norms multiply by 1 + weight; where the weight comes with 1 added already, this is false
    act: str = "silu"


STYLES = {
    "llama": Style(donated=True),
    "qwen2": Style(fused_qkv=True),
    "qwen3": Style(layout="heads", named=True, qk_norm="head"),
    "mistral": Style(fused_mlp=True, stacked=True, table=True),
    "gemma2": Style(layout="oi", fused_mlp=True, norms="both", act="gelu"),  # its norms come with 1 added
    "gemma3_text": Style(layout="oi", norms="both", qk_norm="head", plus_one=True, act="gelu"),
    "olmo2": Style(layout="oi", fused_qkv=True, norms="post", qk_norm="all"),
    "phi3": Style(table=True),
}


# ---- the text of operations


class Value(NamedTuple):
    name: str
    shape: tuple[int, ...]
    kind: str = "f32"

    @property
    def type(self) -> str:
        return f"tensor<{''.join(f'{n}x' for n in self.shape)}{self.kind}>"


def listed(numbers: object) -> str:
    return "[" + ", ".join(str(n) for n in numbers) + "]"


class Text:
    """The lines of a function's body. Every method adds one or a few, and returns the value."""

    def __init__(self, named: bool) -> None:
        self.lines: list[str] = []
        self.named, self.place = named, ""

    def put(self, text: str, shape: object, kind: str = "f32", types: object = None) -> Value:
        """An operation. types: of its operands, where they are written out."""
        out = Value(f"%{len(self.lines)}", tuple(shape), kind)
        signature = out.type if types is None else f"({', '.join(v.type for v in types)}) -> {out.type}"
        where = f' loc("{self.place}")' if self.named and self.place else ""
        self.lines.append(f"    {out.name} = {text}{'' if text[-1] == ',' else ' :'} {signature}{where}")
        return out

    def const(self, x: float | int, shape: object = ()) -> Value:
        text, kind = (f"{x:.9e}", "f32") if isinstance(x, float) else (str(x), "i32")
        return self.put(f"stablehlo.constant dense<{text}>", shape, kind)

    def data(self, numbers: list[float], *shape: int) -> Value:
        """A constant, as hexadecimal bytes."""
        text = struct.pack(f"<{len(numbers)}f", *numbers).hex().upper()
        return self.put(f'stablehlo.constant dense<"0x{text}">', shape)

    def spread(self, x: Value, shape: object, dims: object = None) -> Value:
        """x broadcast to shape; its axes are the last ones of shape, or dims."""
        dims = range(len(shape) - len(x.shape), len(shape)) if dims is None else dims
        return self.put(f"stablehlo.broadcast_in_dim {x.name}, dims = {listed(dims)}", shape, x.kind, [x])

    def one(self, op: str, x: Value) -> Value:
        return self.put(f"stablehlo.{op} {x.name}", x.shape, x.kind)

    def two(self, op: str, x: Value, y: Value | float | int, dims: object = None) -> Value:
        """x and y, where y may be a number or may have fewer axes: see spread."""
        if not isinstance(y, Value):
            y = self.const(y, x.shape)
        elif y.shape != x.shape:
            y = self.spread(y, x.shape, dims)
        return self.put(f"stablehlo.{op} {x.name}, {y.name}", x.shape, x.kind)

    def compare(self, op: str, x: Value, y: Value) -> Value:
        return self.put(f"stablehlo.compare {op}, {x.name}, {y.name}, SIGNED", x.shape, "i1", [x, y])

    def select(self, chosen: Value, x: Value, y: Value) -> Value:
        return self.put(f"stablehlo.select {chosen.name}, {x.name}, {y.name} : {chosen.type},", x.shape, x.kind)

    def dot(self, x: Value, y: Value, over: tuple, batch: tuple = ((), ())) -> Value:
        """A product; over and batch: the axes of x and of y. The result has the batch axes, then x's, then y's."""
        rest = [[n for i, n in enumerate(v.shape) if i not in (*over[j], *batch[j])] for j, v in enumerate((x, y))]
        shape = [x.shape[i] for i in batch[0]] + rest[0] + rest[1]
        batching = f"batching_dims = {listed(batch[0])} x {listed(batch[1])}, " if batch[0] else ""
        contracting = f"contracting_dims = {listed(over[0])} x {listed(over[1])}"
        return self.put(f"stablehlo.dot_general {x.name}, {y.name}, {batching}{contracting}", shape, "f32", [x, y])

    def reduce(self, op: str, x: Value, start: float) -> Value:
        """Over the last axis, which goes."""
        first, last = self.const(start), len(x.shape) - 1
        text = f"stablehlo.reduce({x.name} init: {first.name}) applies stablehlo.{op} across dimensions = [{last}]"
        return self.put(text, x.shape[:-1], "f32", [x, first])

    def reshape(self, x: Value, *shape: int) -> Value:
        return x if x.shape == shape else self.put(f"stablehlo.reshape {x.name}", shape, x.kind, [x])

    def slice(self, x: Value, axis: int, start: int, end: int) -> Value:
        bounds = [(start, end) if i == axis else (0, n) for i, n in enumerate(x.shape)]
        text = f"stablehlo.slice {x.name} {listed(f'{a}:{b}' for a, b in bounds)}"
        return self.put(text, [b - a for a, b in bounds], x.kind, [x])

    def join(self, values: list[Value], axis: int) -> Value:
        shape = list(values[0].shape)
        shape[axis] = sum(v.shape[axis] for v in values)
        names = ", ".join(v.name for v in values)
        return self.put(f"stablehlo.concatenate {names}, dim = {axis}", shape, values[0].kind, values)

    def rows(self, table: Value, ids: Value) -> Value:
        """table [A, B], ids [M] -> [M, B]"""
        numbers = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1"
        sizes = f"slice_sizes = array<i64: 1, {table.shape[1]}>"
        text = f'"stablehlo.gather"({table.name}, {ids.name}) <{{dimension_numbers = #stablehlo.gather<{numbers}>, '
        return self.put(f"{text}{sizes}}}>", (ids.shape[0], table.shape[1]), "f32", [table, ids])

    def write(self, cache: Value, update: Value, layer: int, position: Value) -> Value:
        """cache [L, S, K, D], update [1, K, D], written to slot `position` of a layer."""
        zero, layer, piece = self.const(0), self.const(layer), self.reshape(update, 1, 1, *update.shape[1:])
        starts = [layer, position, zero, zero]
        text = ", ".join(v.name for v in (cache, piece, *starts))
        return self.put(f"stablehlo.dynamic_update_slice {text}", cache.shape, "f32", [cache, piece, *starts])

    def write_each(self, cache: Value, update: Value, layer: int, positions: Value) -> Value:
        """cache [B, L, S, K, D], update [B, K, D], row b's written to slot positions[b] of a layer."""
        B = update.shape[0]
        row = self.put("stablehlo.iota dim = 0", (B, 1), "i32")
        places = self.join([row, self.const(layer, (B, 1)), self.reshape(positions, B, 1)], 1)
        numbers = "update_window_dims = [1, 2], inserted_window_dims = [0, 1, 2], scatter_dims_to_operand_dims = "
        attributes = f"scatter_dimension_numbers = #stablehlo.scatter<{numbers}[0, 1, 2], index_vector_dim = 1>"
        body = "{ ^bb0(%a: tensor<f32>, %b: tensor<f32>): stablehlo.return %b : tensor<f32> }"
        text = f'"stablehlo.scatter"({cache.name}, {places.name}, {update.name}) '
        text += f"<{{{attributes}, indices_are_sorted = true, unique_indices = true}}> ({body})"
        return self.put(text, cache.shape, "f32", [cache, places, update])


# ---- RoPE


def single(x: float) -> float:
    """x rounded to float32."""
    return struct.unpack("f", struct.pack("f", x))[0]


def frequencies(rope: dict, dim: int, long: bool = False) -> list[float]:
    """The angle per position of each pair of dimensions. They are rounded where transformers rounds them."""
    kind, theta, factor = rope.get("rope_type", "default"), rope["rope_theta"], rope.get("factor") or 1.0
    plain = [single(1 / single(theta ** single(i / dim))) for i in range(0, dim, 2)]
    if kind == "longrope":
        return [f / by for f, by in zip(plain, rope["long_factor" if long else "short_factor"], strict=True)]
    if kind == "linear":
        return [f / factor for f in plain]
    if kind == "default":
        return plain
    old = rope["original_max_position_embeddings"]
    if kind == "llama3":  # by how often a pair turns in the old context
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        keep = [(old * f / (2 * math.pi) - low) / (high - low) for f in plain]
    elif kind == "yarn":  # the same, linear in the number of the pair
        turns = (rope.get("beta_fast") or 32, rope.get("beta_slow") or 1)
        low, high = (dim * math.log(old / (t * 2 * math.pi)) / (2 * math.log(theta)) for t in turns)
        low, high = max(math.floor(low), 0), min(math.ceil(high), dim - 1)
        keep = [1 - (i - low) / max(high - low, 0.001) for i in range(dim // 2)]
    else:
        raise SystemExit(f"RoPE {kind} is not supported")
    keep = [min(max(k, 0.0), 1.0) for k in keep]
    return [k * f + (1 - k) * f / factor for k, f in zip(keep, plain, strict=True)]


def attention_factor(rope: dict, config: dict) -> float:
    """What cos and sin are multiplied by."""
    kind = rope.get("rope_type", "default")
    if rope.get("attention_factor") is not None or kind not in ("yarn", "longrope"):
        return float(rope.get("attention_factor") or 1.0)
    if kind == "yarn":
        return 0.1 * math.log(rope["factor"]) + 1.0
    old = config["original_max_position_embeddings"]
    factor = config["max_position_embeddings"] / old
    return math.sqrt(1 + math.log(factor) / math.log(old)) if factor > 1 else 1.0


# ---- the model


class Model:
    """One model; each of its methods writes a part of a graph."""

    def __init__(self, config: dict, interleaved: bool) -> None:
        family = config["model_type"]
        if family not in STYLES:
            raise SystemExit(f"{family} is not supported; these are: {', '.join(STYLES)}")
        if "rope_parameters" not in config or config.get("mlp_bias"):
            raise SystemExit("a config.json without rope_parameters, or with mlp_bias, is not supported")
        self.config, self.family = config, family
        self.style = replace(STYLES[family], interleaved=interleaved)
        self.L, self.E, self.V = config["num_hidden_layers"], config["hidden_size"], config["vocab_size"]
        self.N, self.K, self.F = (
            config[key] for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size")
        )
        self.D = config.get("head_dim") or self.E // self.N
        self.eps, self.tied = float(config["rms_norm_eps"]), config.get("tie_word_embeddings", False)
        gemma = family.startswith("gemma")
        self.scale = float(config["query_pre_attn_scalar"] if gemma else self.D) ** -0.5
        self.embedding_scale = math.sqrt(self.E) if gemma else 1.0
        self.cap, self.final_cap = config.get("attn_logit_softcapping"), config.get("final_logit_softcapping")
        self.out_bias = bool(config.get("attention_bias"))
        self.qkv_bias = self.out_bias or family == "qwen2"

    def window(self, layer: int) -> int | None:
        c = self.config
        if self.family in ("mistral", "phi3"):
            return c.get("sliding_window")
        if self.family in ("qwen2", "qwen3"):
            return c["sliding_window"] if c.get("use_sliding_window") and layer >= c["max_window_layers"] else None
        return c["sliding_window"] if "sliding" in self.layer_type(layer) else None

    def layer_type(self, layer: int) -> str:
        every = {"gemma2": 2, "gemma3_text": 6}.get(self.family, 1)
        types = self.config.get("layer_types")
        return types[layer] if types else ("full_attention" if (layer + 1) % every == 0 else "sliding_attention")

    # -- arguments

    def weights(self) -> dict[str, Value]:
        """Every weight, in the order of the arguments: layer by layer, then the norm, the head, the embedding."""
        s, E, F, V = self.style, self.E, self.F, self.V
        Q, KV = self.N * self.D, self.K * self.D

        def matrix(rows: int, columns: int) -> tuple[int, int]:
            return (columns, rows) if s.layout == "oi" else (rows, columns)

        layer: dict[str, tuple[int, ...]] = {}
        if s.norms != "post":
            layer["attn_norm"] = (E,)
        if s.fused_qkv:
            layer["wqkv"] = matrix(E, Q + 2 * KV)
            layer |= {"bqkv": (Q + 2 * KV,)} if self.qkv_bias else {}
        else:
            for x, heads in (("q", self.N), ("k", self.K), ("v", self.K)):
                split = s.layout == "heads"
                layer[f"w{x}"] = (E, heads, self.D) if split else matrix(E, heads * self.D)
                if self.qkv_bias:
                    layer[f"b{x}"] = (heads, self.D) if split else (heads * self.D,)
        if s.qk_norm:
            layer["q_norm"], layer["k_norm"] = ((self.D,), (self.D,)) if s.qk_norm == "head" else ((Q,), (KV,))
        layer["wo"] = (self.N, self.D, E) if s.layout == "heads" else matrix(Q, E)
        layer |= {"bo": (E,)} if self.out_bias else {}
        layer |= {"post_attn_norm": (E,)} if s.norms != "pre" else {}
        layer |= {"mlp_norm": (E,)} if s.norms != "post" else {}
        layer |= {"w_gate_up": matrix(E, 2 * F)} if s.fused_mlp else {"w_gate": matrix(E, F), "w_up": matrix(E, F)}
        layer["w_down"] = matrix(F, E)
        layer |= {"post_mlp_norm": (E,)} if s.norms != "pre" else {}
        if s.stacked:
            shapes = {f"blocks.{name}": (self.L, *shape) for name, shape in layer.items()}
        else:
            shapes = {f"l{i}.{name}": shape for i in range(self.L) for name, shape in layer.items()}
        shapes |= {"final_norm": (E,)} | ({} if self.tied else {"head": matrix(E, V)}) | {"embed": (V, E)}
        return {name: Value(f"%{name}", shape) for name, shape in shapes.items()}

    def weight(self, layer: int, name: str) -> Value:
        if not self.style.stacked:
            return self.given[f"l{layer}.{name}"]
        whole = self.given[f"blocks.{name}"]
        return self.t.reshape(self.t.slice(whole, 0, layer, layer + 1), *whole.shape[1:])

    # -- parts of a block

    def linear(self, x: Value, w: Value, bias: Value | None = None) -> Value:
        """x [M, in...] -> [M, out...]"""
        if self.style.layout == "oi":
            y = self.t.dot(x, w, ((1,), (1,)))
        else:
            axes = range(len(x.shape) - 1)
            y = self.t.dot(x, w, ([i + 1 for i in axes], list(axes)))
        return y if bias is None else self.t.two("add", y, bias)

    def norm(self, x: Value, w: Value) -> Value:
        t, n = self.t, x.shape[-1]
        mean = t.two("multiply", t.reduce("add", t.two("multiply", x, x), 0.0), 1.0 / n)
        factor = t.one("rsqrt", t.two("add", mean, self.eps))
        y = t.two("multiply", x, factor, range(len(x.shape) - 1))
        return t.two("multiply", y, t.two("add", w, 1.0) if self.style.plus_one else w)

    def angles(self, positions: Value, length: Value | None) -> dict[str, tuple[Value, Value]]:
        """cos and sin of each layer type at positions [M]: [M, R/2]. length: of a prompt; else each is its row's last."""
        c, t, out = self.config, self.t, {}
        parameters = c["rope_parameters"]
        for kind in sorted({self.layer_type(i) for i in range(self.L)}):
            rope = parameters.get(kind, parameters)
            R, factor = int(self.D * rope.get("partial_rotary_factor", 1.0)), attention_factor(rope, c)
            if not self.style.table:
                f = t.data(frequencies(rope, R), R // 2)
                shape = (positions.shape[0], R // 2)
                place = t.put(f"stablehlo.convert {positions.name}", positions.shape, "f32", [positions])
                angle = t.two("multiply", t.spread(place, shape, [0]), f)
                pair = [t.one("cosine", angle), t.one("sine", angle)]
                out[kind] = tuple(pair if factor == 1 else (t.two("multiply", x, factor) for x in pair))
                continue
            pair = [self.table(f, rope, R, factor, positions) for f in (math.cos, math.sin)]
            if rope.get("rope_type") == "longrope":  # a longer sequence has other angles, at all its positions
                many = t.two("add", positions, 1) if length is None else t.spread(length, positions.shape)
                many = t.spread(many, pair[0].shape, [0])
                is_long = t.compare("GT", many, t.const(c["original_max_position_embeddings"], many.shape))
                long = [self.table(f, rope, R, factor, positions, True) for f in (math.cos, math.sin)]
                pair = [t.select(is_long, x, y) for x, y in zip(long, pair, strict=True)]
            out[kind] = tuple(pair)
        return out

    def table(self, f, rope: dict, R: int, factor: float, positions: Value, long: bool = False) -> Value:
        rows = [factor * f(p * x) for p in range(SLOTS) for x in frequencies(rope, R, long)]
        return self.t.rows(self.t.data(rows, SLOTS, R // 2), positions)

    def turn(self, x: Value, cos: Value, sin: Value) -> Value:
        """RoPE of x [M, heads, D]."""
        t, (M, heads, D), h = self.t, x.shape, cos.shape[1]
        if self.style.interleaved:
            pairs = t.reshape(x, M, heads, D // 2, 2)
            a, b = (t.reshape(t.slice(pairs, 3, i, i + 1), M, heads, D // 2) for i in (0, 1))
        else:
            a, b = t.slice(x, 2, 0, h), t.slice(x, 2, h, 2 * h)
        cos, sin = (t.spread(v, a.shape, [0, 2]) for v in (cos, sin))
        first = t.two("subtract", t.two("multiply", a, cos), t.two("multiply", b, sin))
        second = t.two("add", t.two("multiply", b, cos), t.two("multiply", a, sin))
        if self.style.interleaved:
            return t.reshape(t.join([t.reshape(v, M, heads, D // 2, 1) for v in (first, second)], 3), M, heads, D)
        return t.join([first, second] + ([t.slice(x, 2, 2 * h, D)] if 2 * h < D else []), 2)

    def qkv(self, x: Value, i: int, cos: Value, sin: Value) -> list[Value]:
        """x [M, E] -> q [M, N, D], k and v [M, K, D], turned by RoPE."""
        t, M, out = self.t, x.shape[0], []
        heads = {"q": self.N, "k": self.K, "v": self.K}
        if self.style.fused_qkv:
            y, at = self.linear(x, self.weight(i, "wqkv"), self.weight(i, "bqkv") if self.qkv_bias else None), 0
        for name, n in heads.items():
            t.place = f"blk{i}/attn/{name}"
            if self.style.fused_qkv:
                part, at = t.slice(y, 1, at, at + n * self.D), at + n * self.D
            else:
                bias = self.weight(i, f"b{name}") if self.qkv_bias else None
                part = self.linear(x, self.weight(i, f"w{name}"), bias)
            if self.style.qk_norm == "all" and name != "v":
                part = self.norm(part, self.weight(i, f"{name}_norm"))
            part = t.reshape(part, M, n, self.D)
            if self.style.qk_norm == "head" and name != "v":
                part = self.norm(part, self.weight(i, f"{name}_norm"))
            out.append(part if name == "v" else self.turn(part, cos, sin))
        t.place = f"blk{i}/attn"
        return out

    def attend(self, q: Value, k: Value, v: Value, visible: Value) -> Value:
        """q [M, N, D], k and v [S, K, D] of one sequence or [M, S, K, D] of M, visible [M, S] -> [M, N, D]"""
        t, (M, N, D), each = self.t, q.shape, len(k.shape) == 4
        q = t.reshape(q, M, self.K, N // self.K, D)
        batch = ((0, 1), (0, 2)) if each else ((1,), (1,))
        scores = t.two("multiply", t.dot(q, k, ((3,), (3 if each else 2,)), batch), self.scale)
        scores = self.capped(scores, self.cap)  # [M, K, G, S] of each, or else [K, M, G, S]
        mask = t.spread(visible, scores.shape, [0 if each else 1, 3])
        scores = t.select(mask, scores, t.const(MASKED, scores.shape))
        top = t.reduce("maximum", scores, MASKED)
        e = t.one("exponential", t.two("subtract", scores, top, [0, 1, 2]))
        p = t.two("divide", e, t.reduce("add", e, 0.0), [0, 1, 2])
        out = t.dot(p, v, ((3,), (1 if each else 0,)), ((0, 1), (0, 2)) if each else ((0,), (1,)))
        if not each:
            shape = (M, self.K, N // self.K, D)
            out = t.put(f"stablehlo.transpose {out.name}, dims = [1, 0, 2, 3]", shape, "f32", [out])
        return t.reshape(out, M, N, D)

    def mlp(self, x: Value, i: int) -> Value:
        t = self.t
        if self.style.fused_mlp:
            y = self.linear(x, self.weight(i, "w_gate_up"))
            gate, up = t.slice(y, 1, 0, self.F), t.slice(y, 1, self.F, 2 * self.F)
        else:
            gate, up = (self.linear(x, self.weight(i, name)) for name in ("w_gate", "w_up"))
        if self.style.act == "silu":
            gate = t.two("multiply", gate, t.one("logistic", gate))
        else:  # gelu, by tanh
            cube = t.two("multiply", t.two("multiply", t.two("multiply", gate, gate), gate), 0.044715)
            inner = t.one("tanh", t.two("multiply", t.two("add", gate, cube), math.sqrt(2 / math.pi)))
            gate = t.two("multiply", t.two("multiply", gate, 0.5), t.two("add", inner, 1.0))
        return self.linear(t.two("multiply", gate, up), self.weight(i, "w_down"))

    def body(self, tokens: Value, positions: Value, masks: dict, store, length: Value | None = None) -> Value:
        """tokens and positions [M] -> x [M, E]. store: keeps a layer's k and v, and returns those to look at."""
        t, s = self.t, self.style
        x = t.rows(self.given["embed"], tokens)
        x = x if self.embedding_scale == 1 else t.two("multiply", x, self.embedding_scale)
        angles = self.angles(positions, length)
        for i in range(self.L):
            t.place = f"blk{i}/attn"
            h = x if s.norms == "post" else self.norm(x, self.weight(i, "attn_norm"))
            q, k, v = self.qkv(h, i, *angles[self.layer_type(i)])
            h = self.attend(q, *store(i, k, v), masks[self.window(i)])
            h = h if s.layout == "heads" else t.reshape(h, h.shape[0], self.N * self.D)
            h = self.linear(h, self.weight(i, "wo"), self.weight(i, "bo") if self.out_bias else None)
            x = t.two("add", x, h if s.norms == "pre" else self.norm(h, self.weight(i, "post_attn_norm")))
            t.place = f"blk{i}/mlp"
            h = self.mlp(x if s.norms == "post" else self.norm(x, self.weight(i, "mlp_norm")), i)
            x = t.two("add", x, h if s.norms == "pre" else self.norm(h, self.weight(i, "post_mlp_norm")))
        t.place = "head"
        return x

    def logits(self, x: Value) -> Value:
        """x [M, E] -> [M, V]"""
        x = self.norm(x, self.given["final_norm"])
        x = self.t.dot(x, self.given["embed"], ((1,), (1,))) if self.tied else self.linear(x, self.given["head"])
        return self.capped(x, self.final_cap)

    def capped(self, x: Value, cap: float | None) -> Value:
        t = self.t
        return t.two("multiply", t.one("tanh", t.two("divide", x, float(cap))), float(cap)) if cap else x

    def masks(self, seen: Value, query: Value, key: Value) -> dict[int | None, Value]:
        """For each window of the layers: seen [M, S], less what lies before the window. query and key: positions."""
        t, out = self.t, {}
        for window in {self.window(i): None for i in range(self.L)}:
            near = window and t.compare("GT", key, t.two("subtract", query, window))
            out[window] = t.two("and", seen, near) if near else seen
        return out

    # -- graphs

    def function(self, name: str, inputs: list[Value], write) -> str:
        """The text of a module with one function. write: writes its body, and returns the results."""
        self.t, self.given = Text(self.style.named), self.weights()
        results = write()
        cached = [v.name for v in inputs if len(v.shape) > 1] if self.style.donated else []
        alias = {name: f" {{tf.aliasing_output = {i} : i32}}" for i, name in enumerate(cached, 1)}
        every = [*self.given.values(), *inputs]
        arguments = ",\n    ".join(f"{v.name}: {v.type}{alias.get(v.name, '')}" for v in every)
        types = ", ".join(v.type for v in results)
        self.t.lines.append(f"    return {', '.join(v.name for v in results)} : {types}")
        head = f"module @{self.family} {{\n  func.func @{name}(\n    {arguments}\n  ) -> ({types}) {{"
        return "\n".join([head, *self.t.lines, "  }", "}", ""])

    def decode(self) -> str:
        """One token in slot `pos`; cache_len slots are full after it."""
        token, pos, full = (Value(f"%{name}", (), "i32") for name in ("token", "pos", "cache_len"))
        caches = [Value(f"%{x}c", (self.L, SLOTS, self.K, self.D)) for x in "kv"]

        def write() -> list[Value]:
            t, now = self.t, list(caches)
            slot = t.put("stablehlo.iota dim = 1", (1, SLOTS), "i32")
            query = t.spread(pos, slot.shape)
            masks = self.masks(t.compare("LT", slot, t.spread(full, slot.shape)), query, slot)

            def store(layer: int, *new: Value) -> list[Value]:
                now[:] = [t.write(cache, x, layer, pos) for cache, x in zip(now, new, strict=True)]
                return [t.reshape(t.slice(c, 0, layer, layer + 1), SLOTS, self.K, self.D) for c in now]

            x = self.body(t.reshape(token, 1), t.reshape(pos, 1), masks, store)
            return [t.reshape(self.logits(x), self.V), *now]

        return self.function("decode", [token, pos, full, *caches], write)

    def ragged(self) -> str:
        """One token in each of ROWS sequences, each at its own position."""
        tokens, pos = (Value(f"%{name}", (ROWS,), "i32") for name in ("tokens", "pos"))
        caches = [Value(f"%{x}c", (ROWS, self.L, SLOTS, self.K, self.D)) for x in "kv"]

        def write() -> list[Value]:
            t, now = self.t, list(caches)
            slot = t.put("stablehlo.iota dim = 1", (ROWS, SLOTS), "i32")
            query = t.spread(pos, slot.shape, [0])
            masks = self.masks(t.compare("LE", slot, query), query, slot)

            def store(layer: int, *new: Value) -> list[Value]:
                now[:] = [t.write_each(cache, x, layer, pos) for cache, x in zip(now, new, strict=True)]
                return [t.reshape(t.slice(c, 1, layer, layer + 1), ROWS, *c.shape[2:]) for c in now]

            return [self.logits(self.body(tokens, pos, masks, store)), *now]

        return self.function("decode_ragged", [tokens, pos, *caches], write)

    def prefill(self) -> str:
        """A prompt of real_len tokens, padded to BUCKET: the logits of its last token, and new caches."""
        tokens, positions = (Value(f"%{name}", (BUCKET,), "i32") for name in ("tokens", "positions"))
        length = Value("%real_len", (), "i32")

        def write() -> list[Value]:
            t, kept, shape = self.t, [], (BUCKET, BUCKET)
            query, key = (t.spread(positions, shape, [axis]) for axis in (0, 1))
            real = t.compare("LT", t.put("stablehlo.iota dim = 1", shape, "i32"), t.spread(length, shape))
            masks = self.masks(t.two("and", t.compare("LE", key, query), real), query, key)

            def store(_: int, *new: Value) -> tuple[Value, ...]:
                kept.append(new)
                return new

            x = self.body(tokens, positions, masks, store, length)
            last, zero = t.two("subtract", length, 1), t.const(0)
            text = f"stablehlo.dynamic_slice {x.name}, {last.name}, {zero.name}, sizes = [1, {self.E}]"
            logits = t.reshape(self.logits(t.put(text, (1, self.E), "f32", [x, last, zero])), self.V)
            caches, nothing = [], t.const(0.0)
            for values in zip(*kept, strict=True):
                whole = t.join([t.reshape(v, 1, *v.shape) for v in values], 0)
                text = f"stablehlo.pad {whole.name}, {nothing.name}, low = [0, 0, 0, 0], "
                text += f"high = [0, {SLOTS - BUCKET}, 0, 0], interior = [0, 0, 0, 0]"
                caches.append(t.put(text, (self.L, SLOTS, self.K, self.D), "f32", [whole, nothing]))
            return [logits, *caches]

        return self.function("prefill", [tokens, positions, length], write)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a directory with config.json")
    parser.add_argument("--out", type=Path, required=True, help="the directory to write to")
    parser.add_argument("--interleaved", action="store_true", help="RoPE pairs as in Meta's files (llama)")
    arguments = parser.parse_args()
    model = Model(json.loads((arguments.model / "config.json").read_text()), arguments.interleaved)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in ("decode", "prefill") + (("ragged",) if model.family == "llama" else ()):
        (arguments.out / f"{name}.mlir").write_text(getattr(model, name)())


if __name__ == "__main__":
    main()
