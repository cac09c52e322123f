"""Writes census.json anew: `python -m hloracle.conformance.pin_census`. Review the diff: it is the proof that changes.

A graph's operations are `fixed + layers x per_layer`; both are measured on graphs of 2 and 3 layers
and confirmed on one of 40.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

from hloracle.conformance.checks import census_key
from hloracle.conformance.graphs import inspect
from hloracle.core.store import write_file
from hloracle.emitters.model import emit
from hloracle.reference.config import Config, Rope
from hloracle.reference.lower import lower

SMALL = Config(
    model_type="llama",
    num_hidden_layers=2,
    hidden_size=84,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=112,
    vocab_size=257,
    max_position_embeddings=1024,
    rms_norm_eps=3e-5,
    rope=Rope("default", 10000.0),
    tie_word_embeddings=False,
    attention_bias=False,
    mlp_bias=False,
)
CAPACITY, BUCKET = 64, 32


def census() -> dict[str, dict[str, dict[str, int]]]:
    """Every row of census.json, for the versions that are installed."""
    rows = {}
    for source, make in (("emitter", emit), ("oracle", lower)):
        for phase in ("decode", "prefill"):
            for head in ("logits", "token") if source == "emitter" else ("logits",):
                for attention_bias in (False, True):
                    for mlp_bias in (False, True):
                        config = dataclasses.replace(SMALL, attention_bias=attention_bias, mlp_bias=mlp_bias)

                        def ops(layers: int, config: Config = config) -> tuple[Counter[str], str]:
                            deep = dataclasses.replace(config, num_hidden_layers=layers)
                            graph = make(deep, phase, head, CAPACITY, BUCKET if phase == "prefill" else 0)  # noqa: B023
                            return Counter(inspect(graph).ops), census_key(source, graph, deep)  # noqa: B023

                        (two, key), (three, _), (forty, _) = ops(2), ops(3), ops(40)
                        per_layer = {k: three[k] - two[k] for k in sorted(three | two)}
                        fixed = {k: two[k] - 2 * per_layer[k] for k in per_layer}
                        if {k: fixed[k] + 40 * per_layer[k] for k in per_layer} != dict(forty):
                            raise ValueError(f"the census of {key} does not grow with the layers alone")
                        rows[key] = {
                            "fixed": {k: n for k, n in fixed.items() if n},
                            "per_layer": {k: n for k, n in per_layer.items() if n},
                        }
    return rows


if __name__ == "__main__":
    write_file(Path(__file__).with_name("census.json"), json.dumps(census(), indent=1) + "\n")
