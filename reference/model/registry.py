"""The architectures: how each one's config is read, what its layers go through, and how its files differ.

A row for each `model_type` of transformers, whose modeling files are the source of every detail. Below this file
nothing knows which architecture it is in: `Config` says what to compute, `architectures/` spells out in which order.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hloracle.core.errors import InputError
from hloracle.core.given import parse_json, read_bytes, refuse_special
from hloracle.reference.model import parsers
from hloracle.reference.model.config import Config, Layer
from hloracle.reference.model.keys import Keys
from hloracle.reference.model.parts import PARTS, Part, Weight

LARGEST_CONFIG = 16 * 2**20  # bytes; the longest are lists of the labels of a classifier
RESTORE = "restore the file that came with the model"

PartsOf = Callable[[Config, Layer], Sequence[str]]


@dataclass(frozen=True)
class Family:
    """One architecture.

    parse: reads its config. parts: what a layer goes through, in order (see `parts.py`).
    own: parts that are not as in `parts.py`. stored: how files name, or slice, what graphs take as one.
    heads_first: values that transformers has as [heads, tokens, ...]. unread: pattern of weights that it does not read.
    one_plus_norms: its norms multiply by 1 + weight.
    """

    parse: Callable[[Keys], Config]
    parts: PartsOf
    own: Mapping[str, Part] = field(default_factory=dict)
    stored: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    heads_first: tuple[str, ...] = ()
    unread: str = ""
    one_plus_norms: bool = False

    def read(self, raw: dict[str, Any], where: object) -> tuple[Config, tuple[str, ...]]:
        """A config as this architecture's, whatever its `model_type`; and the keys that are not understood.

        Raises InputError that names `where` and the key, for a key that is understood and has no value that is supported.
        """
        keys = Keys(raw, where)
        config = self.parse(keys)
        keys.hold(config)
        return config, keys.unknown()


# ---- what a layer goes through


def _named(module: str, parts: str) -> tuple[str, ...]:
    return tuple(f"{module}.{part}" for part in parts.split())


_PROJECTIONS = _named("self_attn", "q_proj k_proj v_proj")
_QK_NORM = _named("self_attn", "q_norm k_norm")
_TURNED = _named("self_attn", "q_rope k_rope")
_ATTEND = ("k_cache", "v_cache", *_named("self_attn", "scores probs context o_proj"))
_ATTENTION = (*_PROJECTIONS, *_TURNED, *_ATTEND)
_NORMED = (*_PROJECTIONS, *_QK_NORM, *_TURNED, *_ATTEND)
_MLP = _named("mlp", "gate_proj up_proj act down_proj")
_FUSED_MLP = _named("mlp", "gate_up_proj act down_proj")
_EXPERTS = _named("mlp", "gate routing experts")
_SHARED_EXPERT = (*_named("mlp.shared_expert", "gate_proj up_proj act down_proj"), "mlp.shared_expert_gate", "mlp")


def _pre_norm(attention: Sequence[str] = _ATTENTION, mlp: Sequence[str] = _MLP) -> PartsOf:
    return lambda config, layer: ("input_layernorm", *attention, "post_attention_layernorm", *mlp)


def _sandwich(attention: Sequence[str]) -> PartsOf:
    return lambda config, layer: (
        "input_layernorm", *attention, "post_attention_layernorm", "pre_feedforward_layernorm", *_MLP,
        "post_feedforward_layernorm",
    )  # fmt: skip


def _post_norm(config: Config, layer: Layer) -> tuple[str, ...]:
    return (*_NORMED, "post_attention_layernorm", *_MLP, "post_feedforward_layernorm")


def _some_sparse(attention: Sequence[str], shared: Sequence[str] = ()) -> PartsOf:
    """Where some layers have a mixture of experts, and beside it a shared one."""
    return lambda config, layer: (
        "input_layernorm", *attention, "post_attention_layernorm", *((*_EXPERTS, *shared) if layer.sparse else _MLP)
    )  # fmt: skip


def _turned_or_not(config: Config, layer: Layer) -> tuple[str, ...]:
    return (*_PROJECTIONS, *(_TURNED if layer.rope else ()), *_ATTEND)


def _normed_or_not(names: Sequence[str]) -> Callable[[Config], tuple[str, ...]]:
    return lambda config: (*_PROJECTIONS, *(names if config.qk_norm else ()), *_TURNED, *_ATTEND)


def _stablelm_parts(config: Config, layer: Layer) -> tuple[str, ...]:
    second = () if config.use_parallel_residual else ("post_attention_layernorm",)
    attention = _normed_or_not(_named("self_attn", "q_layernorm k_layernorm"))(config)
    return ("input_layernorm", *attention, *second, *_MLP)


def _deepseek_v3_parts(config: Config, layer: Layer) -> Sequence[str]:
    assert config.latent
    queries = "q_a_proj q_a_layernorm q_b_proj" if config.latent.q_lora_rank else "q_proj"
    attention = (*_named("self_attn", f"{queries} kv_a_proj_with_mqa kv_a_layernorm"), *_TURNED, *_ATTEND)
    shared = (*_named("mlp.shared_experts", "gate_proj up_proj act down_proj"), "mlp")
    return _some_sparse(attention, shared)(config, layer)


_QKV = ("self_attn.qkv_proj", *_TURNED, *_ATTEND)
# transformers joins the experts' weights when it loads them, as graphs take them.
_BY_EXPERT = {
    "mlp.experts.gate_up_proj": ("mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight"),
    "mlp.experts.down_proj": ("mlp.experts.{}.down_proj.weight",),
}
_MIXTRAL_STORED = {
    "mlp.gate.weight": ("block_sparse_moe.gate.weight",),
    "mlp.experts.gate_up_proj": ("block_sparse_moe.experts.{}.w1.weight", "block_sparse_moe.experts.{}.w3.weight"),
    "mlp.experts.down_proj": ("block_sparse_moe.experts.{}.w2.weight",),
}
_STABLELM_STORED = {f"self_attn.{x}_layernorm.weight": (f"self_attn.{x}_layernorm.norms.{{}}.weight",) for x in "qk"}


def _other(part: str, *weights: Weight, more_matmuls: int = 0) -> Part:
    """A part with other weights, or with more products."""
    usual = PARTS[part]
    return replace(usual, weights=weights or usual.weights, matmuls=usual.matmuls + more_matmuls)


_GPT_OSS = {
    "self_attn.probs": _other("self_attn.probs", Weight("self_attn.sinks", "N")),
    "mlp.router": _other("mlp.router", Weight("weight", "X E"), Weight("bias", "X")),
    "mlp.experts": _other(
        "mlp.experts", Weight("gate_up_proj", "X E 2*M"), Weight("gate_up_proj_bias", "X 2*M"),
        Weight("down_proj", "X M E"), Weight("down_proj_bias", "X E"), more_matmuls=1,
    ),
}  # fmt: skip
_DEEPSEEK_V3 = {
    "self_attn.q_proj": _other("self_attn.q_proj", Weight("weight", "N*D E")),
    "mlp.gate": _other("mlp.gate", Weight("weight", "X E"), Weight("e_score_correction_bias", "X")),
    # One half of its product makes keys, and so scores, the other one values.
    "self_attn.scores": _other("self_attn.scores", Weight("self_attn.kv_b_proj.weight", "N*P+N*U R"), more_matmuls=2),
    "self_attn.context": _other("self_attn.context", more_matmuls=1),
}

FAMILIES: dict[str, Family] = {
    "llama": Family(parsers.llama, _pre_norm()),
    "mistral": Family(parsers.mistral, _pre_norm()),
    "qwen2": Family(parsers.qwen2, _pre_norm()),
    "qwen3": Family(parsers.qwen3, _pre_norm(_NORMED)),
    "gemma": Family(parsers.gemma, _pre_norm(), one_plus_norms=True),
    "gemma2": Family(parsers.gemma2, _sandwich(_ATTENTION), one_plus_norms=True),
    "gemma3_text": Family(parsers.gemma3, _sandwich(_NORMED), heads_first=_QK_NORM, one_plus_norms=True),
    "phi3": Family(parsers.phi3, _pre_norm(_QKV, _FUSED_MLP)),
    "olmo2": Family(parsers.olmo2, _post_norm),
    "olmo3": Family(parsers.olmo3, _post_norm),
    "smollm3": Family(
        parsers.smollm3,
        lambda config, layer: ("input_layernorm", *_turned_or_not(config, layer), "post_attention_layernorm", *_MLP),
    ),
    "granite": Family(parsers.granite, _pre_norm()),
    "cohere": Family(
        parsers.cohere, lambda config, layer: ("input_layernorm", *_normed_or_not(_QK_NORM)(config), *_MLP)
    ),
    "cohere2": Family(
        parsers.cohere2, lambda config, layer: ("input_layernorm", *_turned_or_not(config, layer), *_MLP)
    ),
    "stablelm": Family(
        parsers.stablelm, _stablelm_parts, stored=_STABLELM_STORED,
        heads_first=_named("self_attn", "q_layernorm k_layernorm"),
    ),
    "starcoder2": Family(parsers.starcoder2, _pre_norm(mlp=_named("mlp", "c_fc act c_proj"))),
    "glm4": Family(
        parsers.glm4,
        lambda config, layer: (
            "input_layernorm", *_ATTENTION, "post_self_attn_layernorm", "post_attention_layernorm", *_FUSED_MLP,
            "post_mlp_layernorm",
        ),
    ),
    "seed_oss": Family(parsers.seed_oss, _pre_norm()),
    "mixtral": Family(parsers.mixtral, _pre_norm(mlp=_EXPERTS), stored=_MIXTRAL_STORED),
    "qwen2_moe": Family(parsers.qwen2_moe, _some_sparse(_ATTENTION, _SHARED_EXPERT), stored=_BY_EXPERT),
    "qwen3_moe": Family(parsers.qwen3_moe, _some_sparse(_NORMED), stored=_BY_EXPERT),
    "olmoe": Family(parsers.olmoe, _pre_norm(_NORMED, _EXPERTS), stored=_BY_EXPERT),
    "gpt_oss": Family(parsers.gpt_oss, _pre_norm(mlp=_named("mlp", "router routing experts")), own=_GPT_OSS),
    "deepseek_v3": Family(
        parsers.deepseek_v3, _deepseek_v3_parts, own=_DEEPSEEK_V3, stored=_BY_EXPERT,
        unread=r"model\.layers\.61\.",
    ),
}  # fmt: skip


def parts_of(config: Config, layer: int) -> Sequence[str]:
    """What a layer goes through, in order."""
    return FAMILIES[config.architecture].parts(config, config.layers[layer])


def part_of(config: Config, name: str) -> Part:
    """The shape, the weights and the source of a part of this architecture's layers."""
    return FAMILIES[config.architecture].own.get(name) or PARTS[name]


# ---- from a file


def load_config(directory: Path) -> Config:
    """Read `directory/config.json`. Raises InputError that names the file and the key."""
    return from_hf(config_json(directory), directory / "config.json")


def config_json(directory: Path) -> dict[str, Any]:
    """What `directory/config.json` holds. Raises InputError where that is no JSON object."""
    path = directory / "config.json"
    if not directory.is_dir():
        raise InputError(
            "no such model", directory, "name a checkpoint directory, a .gguf file, or one of `hloracle models`"
        )
    if not path.exists():
        raise InputError(
            "has no config.json", directory, "name a Hugging Face checkpoint directory (config.json, *.safetensors)"
        )
    for other in directory.iterdir():  # transformers opens some of them
        refuse_special(other, "remove it")
    data = read_bytes(path, LARGEST_CONFIG, RESTORE)
    if data.startswith(codecs.BOM_UTF8):
        raise InputError("begins with a byte order mark, which transformers does not read", path, "save it without one")
    raw = parse_json(data, path, RESTORE)
    if not isinstance(raw, dict):
        raise InputError("is not a JSON object", path, RESTORE)
    return raw


def from_hf(raw: dict[str, Any], where: object = "config") -> Config:
    """A Config from the dict that Hugging Face saves, each key of which is known. `where` is named in errors."""
    family = family_of(raw)
    if family is None:
        raise unsupported(raw, where)
    config, unknown = family.read(raw, where)
    if unknown:
        raise unknown_keys(unknown, where)
    return config


def family_of(raw: dict[str, Any]) -> Family | None:
    """The architecture that a config names, or None where that is none of ours."""
    model_type = raw.get("model_type")
    return FAMILIES.get(model_type) if isinstance(model_type, str) else None


def unsupported(raw: dict[str, Any], where: object, instead: str = "") -> InputError:
    """What to raise for a config that names no architecture of ours. instead: what else can be done, before `use`."""
    fix = f"{instead}use a model of one of these types: {', '.join(sorted(FAMILIES))}"
    return InputError(f"model_type {raw.get('model_type')!r} is not supported", where, fix)


def unknown_keys(keys: Sequence[str], where: object, why: str = "") -> InputError:
    """What to raise for keys of a config that nobody knows. why: what speaks against leaving them out of account."""
    return InputError(
        f"unknown key {', '.join(map(repr, keys))}{why}", where,
        "an unknown key may be an unsupported mechanism: remove it if it changes nothing, or use another model",
    )  # fmt: skip
