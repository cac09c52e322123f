"""Exports google-tunix's Llama3 (Flax NNX) with its cache of each layer: prefill of 64 tokens and decode, capacity 256.

    python export.py --model DIR --out DIR

DIR holds a Hugging Face checkpoint of Llama; tunix's own loader reads it. Both graphs are the model's call, as tunix's
sampler makes it:

    (params, input_tokens, positions, cache, attention_mask) -> (logits, cache)

Writes prefill and decode, each as text with the names of its arguments as locations (.mlir) and as an archive of
jax.export (.jax). The graphs take the weights as arguments; logits.npy is what tunix itself computes with them, without
a cache, for the tokens 0, 1, 2, ….

Llama3 and Qwen3 of tunix 0.1.7 take `rope_theta` in their configuration and never use it: RoPE's theta is always
1,000,000, and there is no scaling; rope_theta.py shows it. The graphs of a checkpoint that says otherwise are wrong,
and are exported all the same.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import export
from jax.tree_util import keystr

# `import tunix` brings its trainers and all that they need. A stub with the package's path leaves its models.
stub = types.ModuleType("tunix")
stub.__path__ = list(importlib.util.find_spec("tunix").submodule_search_locations)
sys.modules["tunix"] = stub

from tunix.models.llama3.model import ModelConfig  # noqa: E402
from tunix.models.llama3.params import create_model_from_safe_tensors  # noqa: E402

BUCKET, CAPACITY = 64, 256


def main() -> None:
    parser = argparse.ArgumentParser(description="Exports google-tunix's Llama3.")
    parser.add_argument("--model", type=Path, required=True, help="the checkpoint's directory")
    parser.add_argument("--out", type=Path, required=True, help="where the files go")
    options = parser.parse_args()

    config = config_of(json.loads((options.model / "config.json").read_text()))
    model = create_model_from_safe_tensors(str(options.model), config, dtype=jnp.float32)

    options.out.mkdir(parents=True, exist_ok=True)
    for name, tokens in (("prefill", BUCKET), ("decode", 1)):
        exported = exported_of(model, tokens)
        (options.out / f"{name}.mlir").write_text(exported.mlir_module())
        (options.out / f"{name}.jax").write_bytes(exported.serialize())
    tokens = jnp.arange(BUCKET)[None]
    logits, _ = model(tokens, tokens, None, jnp.tril(jnp.ones((1, BUCKET, BUCKET), jnp.bool_)))
    np.save(options.out / "logits.npy", logits)


def config_of(config: dict) -> ModelConfig:
    """tunix's configuration of a Hugging Face configuration."""
    return ModelConfig(
        num_layers=config["num_hidden_layers"],
        vocab_size=config["vocab_size"],
        embed_dim=config["hidden_size"],
        hidden_dim=config["intermediate_size"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        rope_theta=config["rope_parameters"]["rope_theta"],
        norm_eps=config["rms_norm_eps"],
        weight_tying=config["tie_word_embeddings"],
    )


def exported_of(model: nnx.Module, tokens: int) -> export.Exported:
    """The graph for so many tokens at once."""
    graphdef, state = nnx.split(model)
    config = model.config
    # A flat dictionary of dotted names: an archive of jax.export has none whose keys are numbers, as those of layers.
    leaves, tree = jax.tree.flatten_with_path(nnx.to_pure_dict(state))
    params = {keystr(path, simple=True, separator="."): jax.typeof(leaf) for path, leaf in leaves}

    def call(
        params: dict, input_tokens: jax.Array, positions: jax.Array, cache: dict, attention_mask: jax.Array
    ) -> tuple[jax.Array, dict]:
        state = jax.tree.unflatten(tree, [params[keystr(path, simple=True, separator=".")] for path, _ in leaves])
        return nnx.merge(graphdef, state)(input_tokens, positions, cache, attention_mask)

    def ints(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    keys = jax.ShapeDtypeStruct((1, CAPACITY, config.num_kv_heads, config.head_dim), jnp.float32)
    layer = {"end_index": ints(1), "k": keys, "v": keys}
    return export.export(jax.jit(call, donate_argnames="cache"))(
        params,
        ints(1, tokens),
        ints(1, tokens),
        {f"layer_{i}": layer for i in range(config.num_layers)},
        jax.ShapeDtypeStruct((1, tokens, CAPACITY), jnp.bool_),
    )


if __name__ == "__main__":
    main()
