"""The form of an emitter's ABI file as types. abi.schema.json is generated from them: `python -m hloracle.foreign.form`.

Editors show it while such a file is written. What no type can say is checked in `file.py` and `binding.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Required

from pydantic import Field
from typing_extensions import TypedDict

from hloracle.core.typed import schema_text
from hloracle.foreign.file import LONGEST

SCHEMA_FILE = Path(__file__).with_name("abi.schema.json")

Name = Annotated[str, Field(min_length=1, max_length=LONGEST)]
Constant = int | float | bool | list[Any]
Weight = Annotated[
    str,
    Field(
        max_length=LONGEST,
        pattern=r"^\s*[\w(]",
        description="SOURCE, then stages after ` : `. SOURCE is a tensor as transformers names it, `concat(a, b)`, or `stack l : ...` of "
        "either. Stages: a rearrangement (`(N D) E -> E N D`), arithmetic (`+ 1`), a slice (`[0:N*D]`), `pad 0 to 512`, or a dtype (bf16).",
    ),
]
Input = Annotated[
    Annotated[str, Field(min_length=1, max_length=LONGEST)] | Constant,
    Field(
        description="A formula over token, position, tokens, positions, length, T and S (`position + 1`), causal_mask, window_mask, "
        "valid, cos, sin, inv_freq, embeddings, k_cache, v_cache, cache (of a layer: `k_cache.3`) or state.NAME, with its axes after "
        "` : ` (`causal_mask : B 1 T S`); or a constant."
    ),
]
Result = Annotated[
    str,
    Field(
        max_length=LONGEST,
        pattern=r"^\s*(logits|token|ignored|(k_cache|v_cache|cache)(\.(\d+|\{[^{}]*\}))?(\(interleaved\))?|state\.\w+)\s*( : .*)?$",
        description="logits, token, k_cache, v_cache, cache (of a layer: `k_cache.3`), state.NAME or ignored, with its axes after ` : ` "
        "(`logits : B T V`).",
    ),
]


class PhaseForm(TypedDict, total=False):
    """What the graphs of a phase take and return, besides weights."""

    function: Name
    """The name of the function, without @; main by default."""
    file: Name
    """A pattern of the names of this phase's files, such as `decode*`."""
    inputs: Required[dict[Name, Input]]
    """Argument = what it is. Arguments are named as in the text, by location, by jax.arg_info, or by position."""
    results: Required[dict[Name, Result]]
    """Result = what it is. Results are named by jax.result_info, or by position."""


class AbiForm(TypedDict, total=False):
    """What each argument and result of an emitter's graphs is, in terms of the model.

    Axes: B rows, T tokens of the call, S cache slots, L layers, N query heads, K kv heads, D head_dim, E hidden_size,
    F intermediate_size, V vocab_size, `kv` the pair of keys and values, 1 an axis of one element.
    """

    version: Required[Literal[2]]
    """Of this form."""
    weights: dict[Name, Weight]
    """Argument = an expression over the checkpoint's tensors. `{l}` and `{e}` in a key stand for each layer and each expert."""
    state: dict[Annotated[str, Field(pattern=r"^\w+$")], Constant]
    """NAME = what state.NAME, which is only handed on, starts with."""
    prefill: PhaseForm
    """Takes the tokens of a prompt, and fills the caches."""
    decode: PhaseForm
    """Takes one token at a position, and the caches before it."""
    forward: PhaseForm
    """Takes all tokens, and has no cache."""


def schema() -> str:
    """What abi.schema.json has to hold."""
    return schema_text(AbiForm, "https://hloracle.invalid/abi/2", "hloracle ABI file of an emitter, version 2")


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema(), encoding="utf-8")
