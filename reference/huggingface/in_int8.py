"""transformers' model with keys and values in int8: each is rounded as a cache of integers and scales keeps it, and read so.

The largest of a slot and a head is 127 steps, and the others are whole numbers of them. Each slot is rounded by itself, so that it
is all the same whether that is done when it is kept or when it is read. Imports torch where a model is run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hloracle.reference.model.config import Config

MOST = 127


def rounded(x: Any) -> Any:
    """A tensor [..., D] as whole numbers of steps, of which the largest of D has 127."""
    import torch

    step = x.abs().amax(-1, keepdim=True) / MOST
    whole = torch.round(x / torch.where(step > 0, step, torch.ones_like(step)))
    return whole.clamp(-MOST, MOST) * step


def kept(config: Config, key: Any, value: Any) -> tuple[Any, Any]:
    """Keys and values [1, heads, S, D] that attention is given, as a cache in int8 has them.

    Of latents, which are rounded before heads' own keys and values are made of them, the keys' turned part alone.
    """
    import torch

    if config.latent:
        own = config.latent.qk_nope_head_dim
        return torch.cat([key[..., :own], rounded(key[..., own:])], -1), value
    return rounded(key), rounded(value)


@contextmanager
def latents_in_int8(model: Any, config: Config) -> Iterator[None]:
    """While this holds, the latents that keys and values are made of are rounded."""
    named = dict(model.named_modules()) if config.latent else {}
    norms = [module for name, module in named.items() if name.endswith(".self_attn.kv_a_layernorm")]
    hooks = [norm.register_forward_hook(lambda _module, _inputs, output: rounded(output)) for norm in norms]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def caches_in_int8(model: Any, config: Config) -> Iterator[None]:
    """While this holds, eager attention reads keys and values as a cache in int8 has them."""
    modeling = sys.modules[type(model).__module__]
    eager = modeling.eager_attention_forward

    def reading(module: Any, query: Any, key: Any, value: Any, *others: Any, **named: Any) -> Any:
        return eager(module, query, *kept(config, key, value), *others, **named)

    modeling.eager_attention_forward = reading  # type: ignore[attr-defined]
    try:
        with latents_in_int8(model, config):
            yield
    finally:
        modeling.eager_attention_forward = eager  # type: ignore[attr-defined]
