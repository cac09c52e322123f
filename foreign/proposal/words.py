"""What the name of a weight says of it: its role in the model, in whichever convention it is written.

A role is `q`, `k`, `v`, `qkv`, `kv`, `o`, `gate`, `up`, `gate_up`, `down`, `embed`, `head`, `q_norm`, `k_norm`,
`final_norm`, or `norm` with where it stands: `norm:pre:attn`, `norm:post:mlp`, `norm::attn`. Empty where a name says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_WORDS = re.compile(r"[A-Z]?[a-z]+\d*|[A-Z]+(?![a-z])\d*|\d+")
_ATTENTION = re.compile(r"attn|attention|_sa_")
_MLP = re.compile(r"mlp|ffn?_|ffw|feed_?forward|moe|expert|dense_\d|_ff_")
_NORM = re.compile(r"norm|_ln_?\d?_|_ln_?f_|layer_?norm|rms")
# In the order in which they are looked for: the first that is found is meant.
_ROLES = tuple(
    (role, re.compile(pattern))
    for role, pattern in (
        ("qkv", r"qkv|query_key_value|c_attn|in_proj"),
        ("gate_up", r"gate_?up|gate_and_up|up_?gate|gating_einsum|_w13_|_wi_fused_"),
        ("kv", r"_[wb]?kv_|key_value"),
        ("q", r"_(w|b|to_)?q_|query"),
        ("k", r"_(w|b|to_)?k_|_key_"),
        ("v", r"_(w|b|to_)?v_|_value_"),
    )
)
_OUT = re.compile(r"_[wb]o_|_o_|_out_|output|attn_vec|_c_proj_|_proj_|_dense_|_post_|_linear_")
_GATE = re.compile(r"gate|gating|_w1_|_wi_0_")
_UP = re.compile(r"_[wb]?_?up_|_w3_|_wi_1_|_wi_|intermediate|_c_fc_|_fc1_|_fc_in_|linear1|lin1")
_DOWN = re.compile(r"down|_w2_|_fc2_|_fc_out_|linear2|lin2")
_HEAD = re.compile(r"head|unembed|reverse|logits|readout|decoder_out|output_proj")
_EMBEDDING = re.compile(r"embed|wte|_tok_|token")
_BIAS = re.compile(r"bias|_b_|_b[qkvo]_|_bqkv_|_b\d_|beta")


def words_of(name: str) -> str:
    """The words of a name in small letters, between underscores: `layers[0].attnNorm` is `_layers_0_attn_norm_`."""
    return "".join(f"_{word.lower()}" for word in _WORDS.findall(name)) + "_"


def is_bias(name: str) -> bool:
    """Whether a name says that it is one of a bias."""
    return bool(_BIAS.search(words_of(name)))


def role_of(name: str) -> str:
    """The role that a name speaks of; empty where it speaks of none."""
    words = words_of(name)
    attention, mlp = bool(_ATTENTION.search(words)), bool(_MLP.search(words))
    if _NORM.search(words):
        return _norm(words, attention, mlp)
    for role, pattern in _ROLES:
        if pattern.search(words):
            return role
    if _GATE.search(words):
        return "gate"
    if _DOWN.search(words):
        return "down"
    if _UP.search(words):
        return "up"
    if mlp and _OUT.search(words):
        return "down"
    if _HEAD.search(words):
        return "head"
    if re.search(r"_[wb]o_|_o_proj_", words) or (attention and _OUT.search(words)):
        return "o"
    if _EMBEDDING.search(words):
        return "embed"
    return "head" if "_output_" in words else ""


def _norm(words: str, attention: bool, mlp: bool) -> str:
    if re.search(r"_(q|query)_?(layer|head)?_?(norm|ln)|_q_", words):
        return "q_norm"
    if re.search(r"_(k|key)_?(layer|head)?_?(norm|ln)|_k_", words):
        return "k_norm"
    if re.search(r"_input_|_ln_?1_|norm_?1_", words):
        return "norm:pre:attn"
    if re.search(r"_ln_?2_|norm_?2_", words):
        return "norm:pre:mlp"
    when = "post" if "post" in words else "pre" if "pre_" in words else ""
    if mlp or attention:
        # `self_attn.post_norm` and `post_attention_norm`: what stands nearest to `norm` would say more, and rarely differs
        return f"norm:{when}:{'mlp' if mlp else 'attn'}"
    return "final_norm"


def apart(wanted: str, offered: Collection[str]) -> float:
    """How badly the role that a name speaks of fits the roles of a tensor: 0 where it does, 1 where it says nothing."""
    if not wanted:
        return 1.0
    if wanted in offered:
        return 0.0
    if wanted.startswith("norm:") and wanted.split(":")[1] == "":
        # `attn_norm` stands before attention, unless there is none before it.
        place = wanted.split(":")[2]
        return next((c for when, c in (("pre", 0.0), ("post", 0.8)) if f"norm:{when}:{place}" in offered), 4.0)
    if "norm" in wanted and any("norm" in one for one in offered):
        return 2.0
    return 4.0
