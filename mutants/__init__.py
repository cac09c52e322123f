"""Deliberate faults, each with what a harness must say of it: a test that the harness would notice.

A fault is planted in this process only, and a process inherits none from the one that started it. Caches go by what
a graph, a compiler or the reference ought to be, not by what a fault makes of it: give each fault a cache of its own.
"""

from hloracle.mutants import (  # noqa: F401  (each registers its faults)
    attention,
    cache,
    compiler,
    config,
    experts,
    fused,
    gemma,
    head,
    hygiene,
    joined,
    latent,
    layernorm,
    mask,
    matrix,
    mlp,
    norm,
    parallel,
    projection,
    qk_norm,
    reference,
    residual,
    rope,
    rope_sets,
    session,
    sinks,
    softcap,
    tuned,
    window,
)
from hloracle.mutants.registry import MUTANTS, Mutant, named, planted

__all__ = ["MUTANTS", "Mutant", "named", "planted"]
