"""What a decoder-only model computes, as a frozen set of mechanisms. No name of an architecture decides anything here.

Names are those of Hugging Face's config keys where there is one for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding. `type` is transformers' `rope_type`; the rest are its parameters.

    dim: how many of a head's dimensions are turned; the first ones.
    interleaved: pairs are (2i, 2i+1), not (i, i+dim/2).
    original_max_position_embeddings: beyond it `dynamic` and `longrope` turn by other angles.
    attention_factor: cos and sin are multiplied by it.
    """

    type: str
    theta: float
    dim: int
    interleaved: bool = False
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    @property
    def turning_point(self) -> int | None:
        """The length beyond which a sequence is turned by other angles; None where they never change."""
        return self.original_max_position_embeddings if self.type in ("dynamic", "longrope") else None


@dataclass(frozen=True)
class Layer:
    """What one layer does that another may not.

    rope: None where queries and keys are not turned. window: keys that a query sees, itself included; None for all
    before it. sparse: its MLP is a mixture of experts.
    """

    rope: Rope | None
    window: int | None = None
    sparse: bool = False


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: how many there are, how wide each is, and how a token chooses.

    norm_topk_prob: the chosen experts' weights are divided by their sum, to which norm_topk_eps is added.
    scoring: `softmax` over all experts,
    `softmax-of-chosen`, or `sigmoid`. n_group, topk_group: only experts of the best `topk_group` groups can be chosen.
    shared_intermediate_size: of the expert that every token goes through; 0 without one.
    swiglu_limit, swiglu_alpha: of a clamped SwiGLU; 0 for the plain one.
    """

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    scoring: str = "softmax"
    norm_topk_prob: bool = False
    norm_topk_eps: float = 0.0
    n_group: int = 1
    topk_group: int = 1
    routed_scaling_factor: float = 1.0
    shared_intermediate_size: int = 0
    swiglu_limit: float = 0.0
    swiglu_alpha: float = 0.0


@dataclass(frozen=True)
class Latent:
    """Attention whose keys and values are made from a narrow vector per token, which is what the cache holds.

    q_lora_rank: None where queries come from the hidden state directly. rope_interleave: pairs are given as (2i, 2i+1),
    and lie as (i, i+qk_rope_head_dim/2) once they are turned. eps: of the norms in between.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rope_interleave: bool
    eps: float = 1e-6


@dataclass(frozen=True)
class Config:
    """What a decoder-only model computes.

    architecture: the name of its files in `reference/oracle/architectures/` and `emitters/architectures/`.
    norm_eps: of every norm. scaling: what attention scores are multiplied by.
    qk_norm: what the norm of queries and keys spans: nothing (``), one `head` with the same weights for all, each head
    with weights of its `own`, or `all` at once.
    num_key_value_heads: 1 with a latent, which all heads read.
    """

    architecture: str
    layers: tuple[Layer, ...]
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    norm_eps: float
    scaling: float
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    norm_bias: bool = False
    attention_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: str = ""
    clip_qkv: float | None = None
    use_parallel_residual: bool = False
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_multiplier: float = 1.0
    experts: Experts | None = None
    latent: Latent | None = None

    @property
    def num_hidden_layers(self) -> int:
        """L."""
        return len(self.layers)

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The different RoPE settings of its layers."""
        return tuple(dict.fromkeys(layer.rope for layer in self.layers if layer.rope))

    @property
    def turning_point(self) -> int | None:
        """The least length beyond which the angles of any layer depend on the sequence's length."""
        return min((rope.turning_point for rope in self.ropes if rope.turning_point is not None), default=None)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The different windows of its layers; None stands for all keys."""
        return tuple(dict.fromkeys(layer.window for layer in self.layers))

    @property
    def cache_widths(self) -> tuple[int, int]:
        """Numbers per slot and kv head in k_cache and in v_cache."""
        if self.latent:
            return self.latent.kv_lora_rank, self.latent.qk_rope_head_dim
        return self.head_dim, self.head_dim

    def cache_shapes(self, capacity: int, batch: int = 1) -> dict[str, tuple[int, ...]]:
        """[L, K, S, ...] of `k_cache` and `v_cache`, with S = `capacity` slots; of several rows, [L, B, K, S, ...]."""
        return self._shapes(("k_cache", "v_cache"), self.num_hidden_layers, capacity, batch)

    def scale_shapes(self, capacity: int, batch: int = 1) -> dict[str, tuple[int, ...]]:
        """[L, K, S] of `k_scale` and `v_scale`, of caches in int8; of several rows, [L, B, K, S]."""
        shapes = self._shapes(("k_scale", "v_scale"), self.num_hidden_layers, capacity, batch)
        return {name: shape[:-1] for name, shape in shapes.items()}

    def held_shapes(self, capacity: int, batch: int = 1) -> dict[str, tuple[int, ...]]:
        """The same where windowed layers have rings: of `k_cache` and `v_cache` with the others, of `k_ring` and `v_ring` with W slots.

        What has no layers is left out.
        """
        windowed = self.windowed(capacity)
        others = self.num_hidden_layers - len(windowed)
        return {
            **(self._shapes(("k_cache", "v_cache"), others, capacity, batch) if others else {}),
            **(self._shapes(("k_ring", "v_ring"), len(windowed), self.ring(capacity), batch) if windowed else {}),
        }

    def _shapes(self, names: Sequence[str], layers: int, slots: int, batch: int) -> dict[str, tuple[int, ...]]:
        heads = (layers, *((batch,) if batch > 1 else ()), self.num_key_value_heads, slots)
        return {name: (*heads, width) for name, width in zip(names, self.cache_widths, strict=True)}

    def windowed(self, capacity: int) -> tuple[int, ...]:
        """The layers with a window that is shorter than so many slots: they may have rings."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.window is not None and layer.window < capacity)

    def ring(self, capacity: int) -> int:
        """Slots W of a ring of these layers: as many as the longest of their windows has keys; 0 where there are none."""
        return max((self.layers[i].window or 0 for i in self.windowed(capacity)), default=0)
