"""The parts that layers are made of: the shape of each one's value, its weights, and where transformers has the value.

Shapes are written in letters, products of them with `*`:
T query tokens, S keys (T in prefill, cache slots in decode), N/K query/kv heads, G = N/K, D head_dim, U width of a
value, E hidden, F intermediate, V vocab; of a mixture of experts X experts, A of them per token, M intermediate, H
intermediate of the shared one; of latent attention Q and R ranks of queries and of keys and values, P dimensions of a
head without RoPE; C and Z widths of k_cache and v_cache: D, or with a latent R and the dimensions of a head with RoPE.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from hloracle.reference.model.config import Config


@dataclass(frozen=True)
class Weight:
    """`name` is relative to the part, or to the layer if it has a dot; `flag`: the field of Config it depends on."""

    name: str
    shape: str
    flag: str = ""


@dataclass(frozen=True)
class Part:
    """A named value inside a layer.

    terms: the longest sum that an element is made of. matmuls: how many dot_general compute it.
    source: where transformers has it: `` the module's output, `input NAME` what a module takes, or what attention is
    given or computes (`query`, `key`, `value`, `scores`, `probs`), or `routing` for a router's choice.
    """

    shape: str
    weights: tuple[Weight, ...] = ()
    terms: str = "E"
    matmuls: int = 0
    source: str = ""


def _linear(shape: str, out: str, inner: str, bias: str = "") -> Part:
    weights = (Weight("weight", f"{out} {inner}"), *([Weight("bias", out, bias)] if bias else []))
    return Part(shape, weights, terms=inner, matmuls=1)


def _norm(shape: str = "T E", weight: str = "E", bias: bool = True) -> Part:
    more = (Weight("bias", weight, "norm_bias"),) if bias else ()
    return Part(shape, (Weight("weight", weight), *more), terms=weight.split()[-1])


def _gated_mlp(width: str, bias: str = "") -> dict[str, Part]:
    """An MLP whose intermediate size has this letter."""
    return {
        "gate_proj": _linear(f"T {width}", width, "E", bias),
        "up_proj": _linear(f"T {width}", width, "E", bias),
        "act": Part(f"T {width}", terms="E", source="input down_proj"),
        "down_proj": _linear("T E", "E", width, bias),
    }


_MLP, _SHARED = _gated_mlp("F", "mlp_bias"), _gated_mlp("H")
_ATTENTION = {
    "q_proj": _linear("T N D", "N*D", "E", "attention_bias"),
    "k_proj": _linear("T K D", "K*D", "E", "attention_bias"),
    "v_proj": _linear("T K D", "K*D", "E", "attention_bias"),
    "qkv_proj": _linear("T N*D+K*D+K*D", "N*D+K*D+K*D", "E"),
    "q_norm": _norm("T N D", "q_norm", bias=False),
    "k_norm": _norm("T K D", "k_norm", bias=False),
    "q_rope": Part("T N Z", source="query"),
    "k_rope": Part("T K Z", source="key"),
    "scores": Part("K T G S", terms="E", matmuls=1, source="scores"),
    "probs": Part("K T G S", terms="E S", source="probs"),
    "context": Part("T N*U", terms="E S", matmuls=1, source="input o_proj"),
    "o_proj": _linear("T E", "E", "N*U", "attention_out_bias"),
    # Latent attention
    "q_a_proj": _linear("T Q", "Q", "E", "attention_bias"),
    "q_a_layernorm": _norm("T Q", "Q", bias=False),
    "q_b_proj": _linear("T N P+Z", "N*P+N*Z", "Q"),
    "kv_a_proj_with_mqa": _linear("T R+Z", "R+Z", "E", "attention_bias"),
    "kv_a_layernorm": _norm("T R", "R", bias=False),
}
PARTS: dict[str, Part] = {
    "": Part("T E", terms="F"),  # a block's output is down_proj's and what came before
    "k_cache": Part("K S C", source="key"),
    "v_cache": Part("K S Z", source="value"),
    **{f"self_attn.{name}": part for name, part in _ATTENTION.items()},
    "self_attn.q_layernorm": _ATTENTION["q_norm"],
    "self_attn.k_layernorm": _ATTENTION["k_norm"],
    **{f"mlp.{name}": part for name, part in _MLP.items()},
    "mlp.gate_up_proj": _linear("T 2*F", "2*F", "E"),
    "mlp.c_fc": _MLP["gate_proj"],
    "mlp.c_proj": _MLP["down_proj"],
    # A mixture of experts
    "mlp.gate": Part("T X", (Weight("weight", "X E"),), matmuls=1),
    "mlp.router": _linear("T X", "X", "E", "attention_bias"),
    "mlp.routing": Part("T X", source="routing"),
    "mlp.experts": Part(
        "T E", (Weight("gate_up_proj", "X 2*M E"), Weight("down_proj", "X E M")), terms="M*A", matmuls=2
    ),
    **{f"mlp.shared_expert.{name}": part for name, part in _SHARED.items()},
    **{f"mlp.shared_experts.{name}": part for name, part in _SHARED.items()},
    "mlp.shared_expert_gate": _linear("T 1", "1", "E"),
    "mlp": Part("T E", terms="F"),
    **dict.fromkeys((
        "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
        "post_self_attn_layernorm", "post_mlp_layernorm",
    ), _norm()),
}  # fmt: skip


@lru_cache(maxsize=64)
def _sizes(config: Config) -> dict[str, int]:
    N, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    C, Z = config.cache_widths
    sizes = {"N": N, "K": K, "G": N // K, "D": D, "U": D, "C": C, "Z": Z}
    sizes |= {"E": config.hidden_size, "F": config.intermediate_size, "V": config.vocab_size}
    if experts := config.experts:
        sizes |= {"X": experts.num_experts, "A": experts.num_experts_per_tok}
        sizes |= {"M": experts.intermediate_size, "H": experts.shared_intermediate_size}
    if latent := config.latent:
        sizes |= {"Q": latent.q_lora_rank or 0, "R": latent.kv_lora_rank, "P": latent.qk_nope_head_dim}
        sizes["U"] = latent.v_head_dim
    return sizes


def shape(config: Config, letters: str, queries: int = 0, keys: int = 0) -> tuple[int, ...]:
    """The numbers that letters stand for; `queries` is T and `keys` S."""
    if letters in ("q_norm", "k_norm"):
        heads, D = ("N" if letters == "q_norm" else "K"), "D"
        letters = {"head": D, "own": f"{heads} {D}", "all": f"{heads}*{D}"}[config.qk_norm]
    sizes = _sizes(config) | {"T": queries, "S": keys}

    def number(word: str) -> int:
        return sum(
            math.prod(int(factor) if factor.isdigit() else sizes[factor] for factor in term.split("*"))
            for term in word.split("+")
        )

    return tuple(number(word) for word in letters.split())
