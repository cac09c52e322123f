"""Exports keras-hub's Mistral (JAX backend) with its combined cache: prefill of 64 tokens and decode, capacity 256.

    python export.py --model DIR --out DIR

DIR holds a Hugging Face checkpoint of Mistral. Its weights are set into keras-hub's variables by hand, without a
preset. Both graphs are `MistralCausalLM.call_with_cache`, which keras-hub's own `generate()` calls:

    (variables, token_ids, cache, cache_update_index) -> (logits, hidden_states, cache)

Writes prefill and decode, each as text with the names of its arguments as locations (.mlir) and as an archive of
jax.export (.jax), and variables.txt, which says what number i of `variables` is. The graphs take the weights as
arguments; logits.npy is what keras-hub itself computes with them, without a cache, for the tokens 0, 1, 2, ….
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"  # before keras is imported

import jax
import keras
import numpy as np
from jax import export
from keras_hub.models import MistralBackbone, MistralCausalLM
from safetensors.numpy import load_file

BUCKET, CAPACITY = 64, 256

# Of a variable's path, behind `transformer_layer_N/`: the tensor of the checkpoint, behind `model.layers.N.`.
TENSORS = {
    "self_attention/query/kernel": "self_attn.q_proj.weight",
    "self_attention/key/kernel": "self_attn.k_proj.weight",
    "self_attention/value/kernel": "self_attn.v_proj.weight",
    "self_attention/attention_output/kernel": "self_attn.o_proj.weight",
    "self_attention_layernorm/scale": "input_layernorm.weight",
    "feedforward_intermediate_dense/kernel": "mlp.up_proj.weight",
    "feedforward_gate_dense/kernel": "mlp.gate_proj.weight",
    "feedforward_output_dense/kernel": "mlp.down_proj.weight",
    "feedforward_layernorm/scale": "post_attention_layernorm.weight",
}


def main(model_of: Callable[..., Any], value_of: Callable[..., np.ndarray]) -> None:
    """Export a model, made by the one function of a configuration and filled by the other."""
    parser = argparse.ArgumentParser(description="Exports a model of keras-hub.")
    parser.add_argument("--model", type=Path, required=True, help="the checkpoint's directory")
    parser.add_argument("--out", type=Path, required=True, help="where the files go")
    options = parser.parse_args()

    model = model_of(json.loads((options.model / "config.json").read_text()))
    tensors = load_file(options.model / "model.safetensors")
    for variable in model.variables:
        variable.assign(value_of(variable.path, variable.shape, tensors))

    options.out.mkdir(parents=True, exist_ok=True)
    lines = [f"{i} {v.path} {list(v.shape)}\n" for i, v in enumerate(model.variables)]
    (options.out / "variables.txt").write_text("".join(lines))
    for name, tokens in (("prefill", BUCKET), ("decode", 1)):
        exported = exported_of(model, tokens)
        (options.out / f"{name}.mlir").write_text(exported.mlir_module())
        (options.out / f"{name}.jax").write_bytes(exported.serialize())
    tokens = np.arange(BUCKET)[None]
    np.save(options.out / "logits.npy", model({"token_ids": tokens, "padding_mask": np.ones_like(tokens)}))


def model_of(config: Mapping[str, Any]) -> MistralCausalLM:
    """keras-hub's model of a Hugging Face configuration."""
    if config["rope_parameters"]["rope_type"] != "default" or config["tie_word_embeddings"]:
        raise SystemExit("keras-hub's Mistral has one kind of RoPE, and an output matrix of its own")
    backbone = MistralBackbone(
        vocabulary_size=config["vocab_size"],
        num_layers=config["num_hidden_layers"],
        num_query_heads=config["num_attention_heads"],
        num_key_value_heads=config["num_key_value_heads"],
        hidden_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"],
        head_dim=config["head_dim"],
        rope_max_wavelength=config["rope_parameters"]["rope_theta"],
        layer_norm_epsilon=config["rms_norm_eps"],
        sliding_window=config["sliding_window"],
        dtype="float32",
    )
    return MistralCausalLM(backbone, preprocessor=None)


def value_of(path: str, shape: tuple[int, ...], tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """What a variable holds: kernels are [in, out] here, not [out, in], and heads have an axis of their own."""
    if path == "token_embedding/embeddings":
        return tensors["model.embed_tokens.weight"]
    if path == "token_embedding/reverse_embeddings":
        return tensors["lm_head.weight"].T
    if path == "sequence_output_layernorm/scale":
        return tensors["model.norm.weight"]
    layer, rest = path.removeprefix("transformer_layer_").split("/", 1)
    return tensors[f"model.layers.{layer}.{TENSORS[rest]}"].T.reshape(shape)


def exported_of(model: Any, tokens: int) -> export.Exported:
    """The graph for so many tokens at once."""
    backbone = model.backbone
    cache = (1, backbone.num_layers, 2, CAPACITY, backbone.num_key_value_heads, backbone.head_dim)

    def call_with_cache(
        variables: list, token_ids: jax.Array, cache: jax.Array, cache_update_index: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        with keras.StatelessScope(zip(model.variables, variables, strict=True)):
            return model.call_with_cache(token_ids, cache, cache_update_index)

    return export.export(jax.jit(call_with_cache))(
        [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in model.variables],
        jax.ShapeDtypeStruct((1, tokens), "int32"),
        jax.ShapeDtypeStruct(cache, "float32"),
        jax.ShapeDtypeStruct((), "int32"),
    )


if __name__ == "__main__":
    main(model_of, value_of)
