"""Reads Hugging Face's `config.json` strictly: a key that is not understood may be a mechanism that is not computed.

Every key is read, ignored by name, or has the one value that changes nothing; any other is unknown, and named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hloracle.core.bounds import LAYERS
from hloracle.core.errors import InputError
from hloracle.reference.model.config import Config, Rope

# Keys that do not change what the model computes at inference, with a prompt and a cache.
IGNORED_KEYS = frozenset(
    "_attn_implementation_autoset _name_or_path architectures attention_dropout auto_map bos_token_id "
    "cache_implementation chunk_size_feed_forward dtype embd_pdrop embedding_dropout eos_token_id finetuning_task "
    "hidden_dropout id2label initializer_range is_encoder_decoder is_llama_config label2id model_type "
    "output_attentions output_hidden_states output_router_logits pad_token_id pretraining_tp problem_type resid_pdrop "
    "residual_dropout return_dict router_aux_loss_coef router_jitter_noise tokenizer_class torch_dtype "
    "transformers.js_config transformers_version unsloth_version use_cache".split()
)
# Keys that change the computation unless they have one of these values, whatever the architecture.
FIXED_KEYS: dict[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "rope_interleaved": (False,),
    "use_bidirectional_attention": (None, False),
}
ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
_TYPES = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
_YARN = {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale"}
ROPE_KEYS: dict[str, frozenset[str]] = {
    "default": _TYPES,
    "linear": _TYPES | {"factor"},
    "dynamic": _TYPES | {"factor"},
    "llama3": _TYPES | {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": _TYPES | _YARN | {"mscale_all_dim", "truncate"},
    "longrope": _TYPES
    | {"factor", "attention_factor", "short_factor", "long_factor", "original_max_position_embeddings"},
}
# The most that a key of a whole number may say, so that a graph is written in seconds and its sizes fit an i32: a hundred
# times the widest layer that is published. The graph of 512 layers, four times the deepest model's, takes 7 s.
LARGEST = 2**24
LARGEST_OF = {
    "num_hidden_layers": LAYERS, "num_attention_heads": 1024, "n_shared_experts": 64,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 2048),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "v_head_dim"), 2**16),
    # Positions, and layers that need not be there.
    **dict.fromkeys(
        ("max_position_embeddings", "original_max_position_embeddings", "sliding_window", "max_window_layers"), 2**31 - 1
    ),
}  # fmt: skip
LARGEST_ROPE = 4096  # of a head's dimensions: a graph holds their angles at every position
# Of a number that need not be whole: graphs compute in float32, without subnormal numbers.
LEAST_FLOAT, LARGEST_FLOAT = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
REQUIRED: Any = object()
FULL, SLIDING = "full_attention", "sliding_attention"


class Keys:
    """A config's keys, each of which must be read, ignored by name, or have a value that changes nothing."""

    def __init__(self, raw: dict[str, Any], where: object) -> None:
        self.raw, self.where, self.fixed = raw, where, dict(FIXED_KEYS)
        self.read: set[str] = set(IGNORED_KEYS)

    def error(self, what: str, fix: str = "correct the key, or use another model") -> InputError:
        """What to raise for a key that cannot be used; it names the file."""
        return InputError(what, self.where, fix)

    def get(
        self, key: str, kind: type, missing: Any = REQUIRED, null: Any = REQUIRED, zero: bool = False
    ) -> Any:  # fmt: skip
        """The value of `key`, checked to be of `kind`; numbers have to be positive.

        Args:
          missing: transformers' own default for a key that it may omit. null: what it takes null for; as if missing.
          zero: 0 is as good.
        """
        self.read.add(key)
        value: Any = self.raw.get(key)
        if value is None:
            other = null if key in self.raw and null is not REQUIRED else missing
            if other is REQUIRED:
                raise self.error(f"key {key!r} is missing")
            return other
        if kind in (int, float) and type(value) in (int, kind):
            return self._number(key, value, kind, zero)
        if type(value) is not kind:
            raise self.error(f"key {key!r} is {value!r}, not of type {kind.__name__}")
        return value

    def _number(self, key: str, value: float, kind: type, zero: bool) -> float:
        least, most = (1, LARGEST_OF.get(key, LARGEST)) if kind is int else (LEAST_FLOAT, LARGEST_FLOAT)
        if least <= value <= most or (zero and value == 0):
            return kind(value)  # type: ignore[no-any-return]
        if not 0 < value < math.inf:
            raise self.error(f"key {key!r} is {value}, not a positive finite number")
        bound = f"at most {most:,}" if kind is int else f"from {least:.2g} to {most:.2g}, as float32 holds it"
        raise self.error(f"key {key!r} is not {bound}")

    def fix(self, **values: Sequence[Any] | Any) -> None:
        """More keys that are understood with these values only; several of them as a tuple."""
        self.fixed |= {key: value if isinstance(value, tuple) else (value,) for key, value in values.items()}

    def ignore(self, keys: str) -> None:
        """More keys that change nothing, or that transformers does not read for this architecture."""
        self.read |= set(keys.split())

    def activation(self, key: str = "hidden_act", missing: Any = REQUIRED) -> str:
        """The name of the activation, which is one of those that are supported."""
        name: str = self.get(key, str, missing)
        if name not in ACTIVATIONS:
            raise self.error(f"key {key!r} is {name!r}, and only {' and '.join(map(repr, ACTIVATIONS))} are supported")
        return name

    def numbers(self, key: str, count: int, positive: bool = False) -> tuple[float, ...] | None:
        """A list of `count` numbers, or None where there is no such key."""
        found = self.get(key, list, None)
        if found is None:
            return None
        numbers = all(type(n) in (int, float, bool) and _in_float32(n) for n in found)
        if len(found) != count or not numbers or (positive and min(found) <= 0):
            raise self.error(f"key {key!r} is not a list of {count} {'positive numbers' if positive else 'numbers'}")
        return tuple(float(n) for n in found)

    def layer_types(self, layers: int, missing: Callable[[int], bool]) -> tuple[bool, ...]:
        """Which layers see a window only.

        Args:
          missing: says it of a layer where the config has no such list.
        """
        found = self.get("layer_types", list, None)
        if found is None:
            return tuple(missing(layer) for layer in range(layers))
        if len(found) != layers or not all(name in (FULL, SLIDING) for name in found):
            raise self.error(f"key 'layer_types' is not a list of {layers} times {FULL!r} or {SLIDING!r}")
        return tuple(name == SLIDING for name in found)

    def hold(self, config: Config) -> None:
        """Raises InputError for a number of the config, made from several keys, that is none of float32."""
        for part in (config, *config.ropes, config.experts, config.latent):
            for name, value in vars(part).items() if part else ():
                if isinstance(value, float) and not _in_float32(value):
                    raise self.error(f"{name} comes to {value:g}, which float32 does not hold")

    def unknown(self) -> tuple[str, ...]:
        """The keys that nothing has read, in order. Raises InputError for one that is fixed to another value."""
        for key, values in self.fixed.items():
            if key not in self.read and self.raw.get(key, values[0]) not in values:
                supported = " or ".join(map(repr, values))
                raise self.error(f"key {key!r} is {self.raw[key]!r}, and only {supported} is supported")
        return tuple(sorted(set(self.raw) - self.read - set(self.fixed)))


def _in_float32(number: float) -> bool:
    return number == 0 or LEAST_FLOAT <= abs(number) <= LARGEST_FLOAT


@dataclass(frozen=True)
class RopeDefaults:
    """What transformers takes for an architecture whose config does not say, and what the architecture has at all.

    theta: the base of the angles. interleaved: pairs are (2i, 2i+1). types: those that are supported.
    partial: the default of `partial_rotary_factor`; None where the architecture turns whole heads.
    original: the default of an `original_max_position_embeddings` outside of the RoPE settings.
    """

    theta: float = 10000.0
    partial: float | None = None
    interleaved: bool = False
    types: tuple[str, ...] = tuple(ROPE_KEYS)
    original: int | None = None


PLAIN = RopeDefaults()


def rope(keys: Keys, head_dim: int, defaults: RopeDefaults = PLAIN) -> Rope:
    """RoPE settings, in the form of transformers 5 (`rope_parameters`) or the older one (`rope_theta`, `rope_scaling`)."""
    new, old = keys.get("rope_parameters", dict, None), keys.get("rope_scaling", dict, None)
    outer = keys.get("rope_theta", float, None)
    if new is not None and old is not None and old != new:
        raise keys.error("has both 'rope_parameters' and 'rope_scaling', and they differ", "keep one of the two")
    inner = dict(new if new is not None else old or {})
    own = inner.get("rope_theta")
    if outer is not None and own is not None and outer != own:
        raise keys.error(f"has rope_theta {outer} and, in the RoPE settings, {own}", "keep one of the two")
    partial = None if defaults.partial is None else keys.get("partial_rotary_factor", float, defaults.partial)
    # Where it stands outside, it takes precedence.
    original = keys.get("original_max_position_embeddings", int, defaults.original)
    return _one_rope(
        keys, inner, head_dim, replace(defaults, theta=outer or defaults.theta, partial=partial, original=original)
    )


def rope_per_layer_type(keys: Keys, head_dim: int, thetas: dict[str, float], local: str = "") -> dict[str, Rope]:
    """A set of RoPE settings for each type of layer; an older config scales that of the `full_attention` layers only.

    Args:
      thetas: transformers' default by type of layer. local: the older key of the windowed layers' own theta.
    """
    new, old = keys.get("rope_parameters", dict, None), keys.get("rope_scaling", dict, None)
    if old and "rope_type" not in old:
        raise keys.error(
            "key 'rope_scaling' has no 'rope_type', and transformers does not read 'type' in its place here"
        )
    # As transformers does it: the older key of the base is the full layers' own.
    outer = {FULL: keys.get("rope_theta", float, None), SLIDING: keys.get(local, float, None) if local else None}
    found, sets = {}, Keys(new or {}, keys.where)
    for kind, theta in thetas.items():
        inner = dict(sets.get(kind, dict, {}))
        if kind == FULL:
            inner |= old or {}
        if not inner.get("truncate", True):
            # `_compute_yarn_parameters` looks for it beside the sets.
            raise keys.error("key 'truncate' is False, which transformers does not read in a layer type's own set")
        found[kind] = _one_rope(keys, inner, head_dim, RopeDefaults(outer[kind] or theta))
    unknown = sorted(set(new or {}) - set(thetas))
    if unknown:
        raise keys.error(
            f"unknown key {', '.join(map(repr, unknown))} in 'rope_parameters', which has one set per layer type"
        )
    return found


def _one_rope(keys: Keys, raw: dict[str, Any], head_dim: int, defaults: RopeDefaults) -> Rope:
    """One set of RoPE settings."""
    inner = Keys(raw, keys.where)
    kind = inner.get("rope_type", str, inner.get("type", str, "default"))
    if kind not in defaults.types:
        raise keys.error(f"rope_type {kind!r} is not supported", f"use a model with one of {sorted(defaults.types)}")
    unknown = sorted(set(raw) - ROPE_KEYS[kind])
    # transformers copies the model's length here when the key is absent from a scaled config.
    unknown = [key for key in unknown if key != "original_max_position_embeddings" or kind not in ("default", "linear")]
    if unknown:
        raise keys.error(f"unknown RoPE key {', '.join(map(repr, unknown))} for rope_type {kind!r}")
    share = inner.get("partial_rotary_factor", float, defaults.partial or 1.0)
    if defaults.partial is None and share != 1.0:
        raise keys.error("key 'partial_rotary_factor' is not 1, which is not supported")
    if share > 1:
        raise keys.error(f"key 'partial_rotary_factor' is {share}, and RoPE turns a part of a head")
    dim = int(head_dim * share)
    if dim % 2 or not dim:
        raise keys.error(f"RoPE turns {dim} of {head_dim} dimensions, and it turns pairs")
    if dim > LARGEST_ROPE:
        raise keys.error(f"RoPE turns {dim:,} dimensions of a head, more than {LARGEST_ROPE:,}")
    longest = keys.get("max_position_embeddings", int)
    found = Rope(kind, inner.get("rope_theta", float, defaults.theta), dim, defaults.interleaved)
    if kind == "default":
        return found
    pretrained: int = defaults.original or inner.get("original_max_position_embeddings", int, longest)
    divisors = {  # of each type's formula
        "dynamic": ("the number of turned dimensions less 2", dim - 2),
        "yarn": ("the logarithm of 'rope_theta'", math.log(found.theta)),
        "longrope": ("the logarithm of 'original_max_position_embeddings'", math.log(pretrained)),
    }
    what, divisor = divisors.get(kind, ("", 1))
    if divisor == 0:
        raise keys.error(f"rope_type {kind!r} divides by {what}, which is 0 here")
    factor = inner.get("factor", float, longest / pretrained if kind in ("yarn", "longrope") else REQUIRED)
    more: dict[str, Any] = {"factor": factor}
    if kind == "dynamic":
        more["original_max_position_embeddings"] = longest
    elif kind == "llama3":
        more |= {key: inner.get(key, float) for key in ("low_freq_factor", "high_freq_factor")}
        more["original_max_position_embeddings"] = pretrained
        low, high = more["low_freq_factor"], more["high_freq_factor"]
        if high <= low:
            raise keys.error(f"RoPE's high_freq_factor {high} is not above low_freq_factor {low}")
    elif kind == "yarn":
        mscale, of_all = (inner.get(key, float, None) for key in ("mscale", "mscale_all_dim"))
        usual = yarn_mscale(factor, mscale) / yarn_mscale(factor, of_all) if mscale and of_all else yarn_mscale(factor)
        more |= {
            "original_max_position_embeddings": pretrained,
            "attention_factor": inner.get("attention_factor", float, usual),
            "beta_fast": inner.get("beta_fast", float, 32.0),
            "beta_slow": inner.get("beta_slow", float, 1.0),
            "truncate": inner.get("truncate", bool, True),
        }
    elif kind == "longrope":
        usual = math.sqrt(1 + math.log(factor) / math.log(pretrained)) if factor > 1 else 1.0
        short, long = (inner.numbers(key, dim // 2, positive=True) for key in ("short_factor", "long_factor"))
        if short is None or long is None:
            raise keys.error("rope_type 'longrope' needs 'short_factor' and 'long_factor'")
        more |= {
            "original_max_position_embeddings": pretrained,
            "attention_factor": inner.get("attention_factor", float, usual),
            "short_factor": short,
            "long_factor": long,
        }
    return Rope(kind, found.theta, dim, defaults.interleaved, **more)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """What YaRN multiplies by for a context that is `factor` times as long. Source: `_compute_yarn_parameters`."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
