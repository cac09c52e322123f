"""Shows that Gemma of keras-hub 0.32.0 does not hand two of its arguments to its layers.

    python layer_norm_epsilon.py

`GemmaBackbone` does not give its layers `layer_norm_epsilon`, and `GemmaDecoderBlock` gives its attention
`query_head_dim_normalize=True` whatever it was given itself, as it was for Gemma 2 27B: False.
"""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"

from keras_hub.models import GemmaBackbone

backbone = GemmaBackbone(
    vocabulary_size=64, num_layers=1, num_query_heads=4, num_key_value_heads=2, hidden_dim=32, intermediate_dim=64,
    head_dim=16, layer_norm_epsilon=0.125, query_head_dim_normalize=False,
)  # fmt: skip
layer = backbone.transformer_layers[0]
print(
    "given 0.125, the last norm has", backbone.layer_norm.epsilon, "and a layer's has", layer.pre_attention_norm.epsilon
)
print("given False, attention has", layer.attention.query_head_dim_normalize)
