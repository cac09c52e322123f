"""Exports keras-hub's Gemma, as export.py exports its Mistral.

    python export_gemma.py --model DIR --out DIR

Gemma of keras-hub holds keys in another order than values: element i of a key's first half stands beside element i of
its second half. Queries have the same order, so the scores do not change; the cache does.

`GemmaBackbone` of keras-hub 0.32.0 does not hand its `layer_norm_epsilon` to its layers: all norms but the last take
1e-6; layer_norm_epsilon.py shows it. The graphs of a checkpoint that says otherwise are wrong, and are exported all the
same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from export import main
from keras_hub.models import GemmaBackbone, GemmaCausalLM

# Of a variable's path, behind `decoder_block_N/`: the tensor of the checkpoint, behind `model.layers.N.`.
TENSORS = {
    "pre_attention_norm/scale": "input_layernorm.weight",
    "attention/query/kernel": "self_attn.q_proj.weight",
    "attention/key/kernel": "self_attn.k_proj.weight",
    "attention/value/kernel": "self_attn.v_proj.weight",
    "attention/attention_output/kernel": "self_attn.o_proj.weight",
    "pre_ffw_norm/scale": "post_attention_layernorm.weight",
    "ffw_gating/kernel": "mlp.gate_proj.weight",
    "ffw_gating_2/kernel": "mlp.up_proj.weight",
    "ffw_linear/kernel": "mlp.down_proj.weight",
}


def model_of(config: Mapping[str, Any]) -> GemmaCausalLM:
    """keras-hub's model of a Hugging Face configuration."""
    backbone = GemmaBackbone(
        vocabulary_size=config["vocab_size"],
        num_layers=config["num_hidden_layers"],
        num_query_heads=config["num_attention_heads"],
        num_key_value_heads=config["num_key_value_heads"],
        hidden_dim=config["hidden_size"],
        intermediate_dim=2 * config["intermediate_size"],  # keras-hub counts both halves
        head_dim=config["head_dim"],
        layer_norm_epsilon=config["rms_norm_eps"],
        dtype="float32",
    )
    return GemmaCausalLM(backbone, preprocessor=None)


def value_of(path: str, shape: tuple[int, ...], tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """What a variable holds: queries, keys and values take [heads, in, head_dim], all else is [in, out]."""
    if path == "token_embedding/embeddings":
        return tensors["model.embed_tokens.weight"]
    if path == "final_normalization/scale":
        return tensors["model.norm.weight"]
    layer, rest = path.removeprefix("decoder_block_").split("/", 1)
    tensor = tensors[f"model.layers.{layer}.{TENSORS[rest]}"]
    if rest in ("attention/query/kernel", "attention/key/kernel", "attention/value/kernel"):
        heads, width, head_dim = shape
        return tensor.reshape(heads, head_dim, width).swapaxes(1, 2)
    return tensor.T.reshape(shape)


if __name__ == "__main__":
    main(model_of, value_of)
