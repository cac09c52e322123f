"""Shows that Llama3 and Qwen3 of google-tunix 0.1.7 do not use the `rope_theta` of their configuration.

    python rope_theta.py

`Attention` calls `apply_rope` without it, so that the default of 1,000,000 holds. Llama 3 wants 500,000, which tunix's
own `ModelConfig.llama3p2_1b()` says; Qwen3-4B-2507 wants 5,000,000. Qwen2 of tunix does it right.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types

import jax.numpy as jnp
from flax import nnx

stub = types.ModuleType("tunix")
stub.__path__ = list(importlib.util.find_spec("tunix").submodule_search_locations)
sys.modules["tunix"] = stub

SIZES = {
    "num_layers": 1, "vocab_size": 64, "embed_dim": 32, "hidden_dim": 64, "num_heads": 4, "head_dim": 16,
    "num_kv_heads": 2, "norm_eps": 1e-6,
}  # fmt: skip

for name in ("llama3", "qwen3", "qwen2"):
    module = importlib.import_module(f"tunix.models.{name}.model")
    logits = []
    for theta in (10_000, 500_000):
        model = getattr(module, name.capitalize())(module.ModelConfig(**SIZES, rope_theta=theta), rngs=nnx.Rngs(0))
        tokens = jnp.arange(32)[None]
        logits.append(model(tokens, tokens, None, jnp.tril(jnp.ones((1, 32, 32), jnp.bool_)))[0])
    print(name, "the same logits with two thetas:", bool((logits[0] == logits[1]).all()))
