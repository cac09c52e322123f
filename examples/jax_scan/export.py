"""Exports a Llama in plain JAX: `lax.scan` over stacked weights, bfloat16 weights, float32 sums, batches of 2.

    python export.py --model DIR --out DIR

writes decode (1 token a row) and prefill (64 tokens a row) three times each: NAME.mlir (text with the names of arguments
and results), NAME.mlirbc (portable StableHLO bytecode) and NAME.jax (what `jax.export.deserialize` reads; only where
flatbuffers is installed). Needs jax. Of the checkpoint directory it reads config.json alone. The graphs take matrices as
bfloat16, so they are exact for a checkpoint whose matrices have bfloat16 values; norms stay float32.

Letters: B rows, T tokens of a row in this call, S cache slots, L layers, N query heads, K kv heads, D head size, E hidden
size, F intermediate size, V vocabulary.
"""

import argparse
import json
import math
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import export, lax

B, S, BUCKET = 2, 256, 64
PHASES = {"decode": 1, "prefill": BUCKET}
f32, bf16 = jnp.float32, jnp.bfloat16
product = partial(jnp.einsum, precision=lax.Precision.HIGHEST, preferred_element_type=f32)


def frequencies(c):
    """The angle per position of each pair of dimensions: [D/2]"""
    rope = c["rope_parameters"]
    f = 1 / rope["rope_theta"] ** (jnp.arange(0, c["head_dim"], 2, dtype=f32) / c["head_dim"])
    if rope["rope_type"] == "default":
        return f
    assert rope["rope_type"] == "llama3", rope["rope_type"]
    low, high, old = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    keep = jnp.clip((old * f / (2 * math.pi) - low) / (high - low), 0, 1)
    return keep * f + (1 - keep) * f / rope["factor"]


def norm(x, weight, eps):
    return weight * (x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps))


def turn(x, angle):
    """x [B, T, heads, D], angle [T, D/2]"""
    a, b = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def step(c, params, cache, tokens, start):
    """tokens [B, T] at positions start, start + 1, ... of every row -> the logits of all, and the cache with them."""
    T, eps, K, D = tokens.shape[1], c["rms_norm_eps"], c["num_key_value_heads"], c["head_dim"]
    position = start + jnp.arange(T)
    angle = position[:, None].astype(f32) * frequencies(c)
    visible = jnp.arange(S) <= position[:, None]  # [T, S]

    def block(x, layer):
        p, k_cache, v_cache = layer
        h = norm(x, p["attn_norm"], eps)
        q, k, v = (product("bte,ehd->bthd", h, p[name].astype(f32)) for name in ("wq", "wk", "wv"))
        k_cache = lax.dynamic_update_slice(k_cache, turn(k, angle), (0, start, 0, 0))
        v_cache = lax.dynamic_update_slice(v_cache, v, (0, start, 0, 0))
        q = turn(q, angle).reshape(B, T, K, -1, D)
        scores = product("btkgd,bskd->bkgts", q, k_cache) / math.sqrt(D)
        probs = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1)
        h = product("bkgts,bskd->btkgd", probs, v_cache).reshape(B, T, -1, D)
        x = x + product("bthd,hde->bte", h, p["wo"].astype(f32))
        h = norm(x, p["mlp_norm"], eps)
        gate, up = (product("bte,ef->btf", h, p["w_gate_up"][i].astype(f32)) for i in (0, 1))
        return x + product("btf,fe->bte", jax.nn.silu(gate) * up, p["w_down"].astype(f32)), (k_cache, v_cache)

    x = params["embed"][tokens].astype(f32)
    x, (k, v) = lax.scan(block, x, (params["layers"], cache["k"], cache["v"]))
    x = norm(x, params["norm"], eps)
    head = params["embed"].T if "head" not in params else params["head"]
    return {"logits": product("bte,ev->btv", x, head.astype(f32)), "cache": {"k": k, "v": v}}


def shapes(c):
    """What `step` takes, as shapes."""
    L, E, F, V, D = (
        c[key] for key in ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "head_dim")
    )
    N, K = c["num_attention_heads"], c["num_key_value_heads"]

    def matrix(*shape):
        return jax.ShapeDtypeStruct(shape, bf16)

    def vector(*shape):
        return jax.ShapeDtypeStruct(shape, f32)

    layers = {
        "attn_norm": vector(L, E),
        "wq": matrix(L, E, N, D),
        "wk": matrix(L, E, K, D),
        "wv": matrix(L, E, K, D),
        "wo": matrix(L, N, D, E),
        "mlp_norm": vector(L, E),
        "w_gate_up": matrix(L, 2, E, F),
        "w_down": matrix(L, F, E),
    }
    params = {"embed": matrix(V, E), "layers": layers, "norm": vector(E)}
    if not c.get("tie_word_embeddings"):
        params["head"] = matrix(E, V)
    return params, {name: jax.ShapeDtypeStruct((L, B, S, K, D), f32) for name in "kv"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a directory with config.json")
    parser.add_argument("--out", type=Path, required=True, help="the directory to write to")
    arguments = parser.parse_args()
    config = json.loads((arguments.model / "config.json").read_text())
    if config["model_type"] != "llama":
        raise SystemExit(f"this is a Llama, not a {config['model_type']}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    params, cache = shapes(config)
    for phase, T in PHASES.items():

        def main(params, cache, tokens, start):
            return step(config, params, cache, tokens, start)

        tokens, start = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((B, T), ()))
        jitted = jax.jit(main, donate_argnames="cache")
        exported = export.export(jitted, platforms=["cpu"])(params, cache, tokens, start)
        (arguments.out / f"{phase}.mlirbc").write_bytes(exported.mlir_module_serialized)
        if find_spec("flatbuffers"):
            (arguments.out / f"{phase}.jax").write_bytes(exported.serialize())
        text = jitted.lower(params, cache, tokens, start).as_text(debug_info=True)
        (arguments.out / f"{phase}.mlir").write_text(text)


if __name__ == "__main__":
    main()
