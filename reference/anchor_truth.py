"""The truth at every anchor: transformers' own values over one sequence in float64, and float32's noise there.

Cached like the truth, by content of the weights, the tokens and the library versions. torch is imported only where a
model is run. Legend: n tokens; the rest as in `anchors.py`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hloracle.core.child import Report, run_in_child
from hloracle.core.errors import InputError
from hloracle.core.store import build_directory
from hloracle.reference.anchors import anchor_shape, anchors, split
from hloracle.reference.checkpoint import Checkpoint
from hloracle.reference.config import Config
from hloracle.reference.truth import (
    DAMAGED,
    TIMEOUT_SECONDS,
    Keep,
    damaged,
    float64_throughout,
    hooked,
    load_model,
    nudged_embeddings,
    versioned_entry,
)

ANCHOR_TRUTH_VERSION = "2"
# As in the truth, more because a floor here is that of one row and not of a prompt. Measured in the same way, as models
# of which some row is wrongly beyond its limit: 13 in 100 with the plain pass alone, 0.4 with two more, 0 with four.
NUDGES = 4
# What a cache holds of a layer is that layer's own value under another name.
SAME_AS = {"k_cache": "self_attn.k_rope", "v_cache": "self_attn.v_proj"}
# No module returns these: they are what a module takes,
INPUT_OF = {"self_attn.context": "self_attn.o_proj", "mlp.act": "mlp.down_proj"}
# or are seen where attention is computed.
IN_ATTENTION = ("self_attn.q_rope", "self_attn.k_rope", "self_attn.scores", "self_attn.probs")
# What stands where a key comes after the query. transformers adds the lowest finite number to such a score.
MASKED = {"self_attn.scores": -np.inf, "self_attn.probs": 0.0}
UNSUPPORTED = "use a supported architecture"

# Takes an anchor's value in one pass: [n, ...], a row per token.
KeepRows = Callable[[str, np.ndarray], None]


@dataclass(frozen=True)
class AnchorTruth:
    """What the model computes at every anchor.

    tokens: the sequence: a prompt and what followed it; n tokens.
    folder: the cache entry.
    reused: it was there already.
    """

    tokens: tuple[int, ...]
    folder: Path
    reused: bool

    def values(self, anchor: str) -> np.ndarray:
        """The float64 pass rounded to float32, [n, ...]: a row per token, mapped from the file.

        q_proj, q_rope [n, N, D]; k_proj, v_proj, k_rope and the caches [n, K, D]; scores, probs [n, K, G, n], where a
        key after the query has the score -inf and the probability 0; lm_head [n, V]; everything else [n, width].
        Raises InputError that names an anchor the model does not have.
        """
        stored = self._stored(anchor)
        with _whole(self.folder):
            return _kept(self.folder, stored)

    def noise(self, anchor: str) -> np.ndarray:
        """The largest distance in each row between any float32 pass and the float64 pass, float32 [n].

        Of scores and probs only visible keys count. Raises InputError that names an anchor the model does not have.
        """
        return np.asarray(self._noise[self._names.index(self._stored(anchor))])

    def _stored(self, anchor: str) -> str:
        stored = _stored_as(anchor)
        if stored not in self._names:
            raise InputError("is not an anchor of this model", anchor, "use a name that `anchors(config)` lists")
        return stored

    @cached_property
    def _names(self) -> list[str]:
        with _whole(self.folder):
            return _names(self.folder)

    @cached_property
    def _noise(self) -> np.ndarray:
        with _whole(self.folder):
            return _mapped(self.folder, "noise")  # [stored anchors, n]


def anchor_truth(checkpoint: Checkpoint, tokens: Sequence[int], report: Report | None = None) -> AnchorTruth:
    """The truth at every anchor over a whole sequence (token ids), computed in a child process where not cached."""
    sequence, V = tuple(tokens), checkpoint.config.vocab_size
    if not sequence:
        raise InputError("is empty", "token sequence", "give at least one token")
    if not 0 <= min(sequence) <= max(sequence) < V:
        raise InputError(f"has an id outside 0..{V - 1}", "token sequence", "use the model's own tokenizer")
    # What is whole by one reading of the config is damaged by another, which must not remove it under its readers.
    shapes = json.dumps(_shapes(checkpoint.config, len(sequence)))
    folder = versioned_entry("anchors", checkpoint.digest, json.dumps(sequence), shapes, ANCHOR_TRUTH_VERSION)
    found = AnchorTruth(sequence, folder, reused=True)
    if _is_whole(found, checkpoint.config):
        return found
    shutil.rmtree(folder, ignore_errors=True)  # what is damaged is computed anew
    _kept.cache_clear()
    run_in_child(_compute, checkpoint, sequence, folder, timeout=TIMEOUT_SECONDS, report=report)
    if not _is_whole(found, checkpoint.config):
        raise damaged(folder)
    return dataclasses.replace(found, reused=False)


def row_shape(config: Config, anchor: str, keys: int) -> tuple[int, ...]:
    """The shape of one token's row; scores and probs span `keys` tokens."""
    shape = anchor_shape(config, _stored_as(anchor), 1, keys)
    _, part = split(anchor)
    if part in MASKED:
        K, _, G, S = shape
        return K, G, S
    return shape if part == "lm_head" else shape[1:]


def _stored_as(anchor: str) -> str:
    layer, part = split(anchor)
    return f"layers.{layer}.{SAME_AS[part]}" if part in SAME_AS else anchor


# ---- what the cache holds: about.json, noise.npy, and a file for each anchor that is stored


def _names(folder: Path) -> list[str]:
    """The anchors that have a file, in the order of the rows of noise.npy."""
    return list(json.loads((folder / "about.json").read_text())["anchors"])


def _mapped(folder: Path, name: str) -> np.ndarray:
    return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))


# Each map holds a file open, of which a process may have some thousand.
_kept = lru_cache(maxsize=256)(_mapped)


def _is_whole(found: AnchorTruth, config: Config) -> bool:
    n = len(found.tokens)
    try:
        names = _names(found.folder)
        shapes = {name: _mapped(found.folder, name).shape for name in (*names, "noise")}
    except DAMAGED:
        return False
    return shapes == _shapes(config, n)


def _shapes(config: Config, n: int) -> dict[str, tuple[int, ...]]:
    """What an entry holds for n tokens: the shape of each file."""
    expected = {name: (n, *row_shape(config, name, n)) for name in _all_stored(config)}
    return {**expected, "noise": (len(expected), n)}


def _all_stored(config: Config) -> list[str]:
    return [anchor for anchor in anchors(config) if _stored_as(anchor) == anchor]


@contextmanager
def _whole(folder: Path) -> Iterator[None]:
    """Reading here an entry that was whole when it was opened: if it is not any more, say so."""
    try:
        yield
    except DAMAGED as error:
        raise damaged(folder) from error


# ---- in the child process


def _compute(report: Report, checkpoint: Checkpoint, tokens: tuple[int, ...], folder: Path) -> None:
    import torch

    torch.set_num_threads(1)  # as in the truth: the same sums on every machine
    build_directory(folder, lambda empty: _write(report, checkpoint, tokens, empty))


def _write(report: Report, checkpoint: Checkpoint, tokens: tuple[int, ...], folder: Path) -> None:
    """Run all passes. What the first ones save, the last compares and replaces: memory holds one value at a time."""
    config, names, noise = checkpoint.config, _all_stored(checkpoint.config), {}
    singles = range(1 + NUDGES)

    def keep(number: int) -> KeepRows:
        return lambda anchor, single: np.save(folder / f"{anchor}.{number}.npy", single)

    def compare(anchor: str, exact: np.ndarray) -> None:
        files = [folder / f"{anchor}.{number}.npy" for number in singles]
        noise[anchor] = np.max([row_noise(anchor, np.load(file), exact) for file in files], axis=0)
        for file in files:
            file.unlink()
        np.save(folder / f"{anchor}.npy", masked(anchor, exact).astype(np.float32))

    model = load_model(checkpoint.directory)
    for number in singles:
        _forward(
            model, config, tokens, keep(number), lambda layer: report(f"Hugging Face float32 anchors, {layer}"), number
        )
    # In place, tensor by tensor: the float32 and the float64 model are never both whole.
    model = model.double()
    with float64_throughout():
        _forward(model, config, tokens, compare, lambda layer: report(f"Hugging Face float64 anchors, {layer}"))
    np.save(folder / "noise.npy", np.stack([noise[name] for name in names]).astype(np.float32))
    (folder / "about.json").write_text(json.dumps({"tokens": tokens, "anchors": names}))


def row_noise(anchor: str, single: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The largest distance in each row between two passes [n, ...], among visible keys: float64 [n]."""
    causal = split(anchor)[1] in MASKED
    noise = np.empty(len(exact))
    for i, (a, b) in enumerate(zip(single, exact, strict=True)):
        seen = slice(i + 1) if causal else slice(None)
        noise[i] = np.max(np.abs(a[..., seen] - b[..., seen]))
    return noise


def masked(anchor: str, rows: np.ndarray) -> np.ndarray:
    """Rows [n, ...], with scores -inf and probs 0 at keys after the query, whatever number transformers has there."""
    _, part = split(anchor)
    if part not in MASKED:
        return rows
    index = np.arange(len(rows))
    visible = index <= index[:, None, None, None]  # [n, 1, 1, n]
    return np.where(visible, rows, MASKED[part])


def _forward(
    model: Any, config: Config, tokens: tuple[int, ...], keep: KeepRows, report: Callable[[str], None], nudge: int = 0
) -> None:
    """One pass over the sequence: gives each stored anchor's value to `keep` as soon as it is computed.

    Args:
      nudge: the seed of `nudged_embeddings`; the embeddings that are kept are those before it.

    Raises InputError that names an anchor which the pass did not come by, or which is not finite.
    """
    import torch

    n, wanted = len(tokens), dict.fromkeys(_all_stored(config))

    def record(anchor: str, rows: Any) -> None:
        shape = (n, *row_shape(config, anchor, n))
        if rows.numel() != math.prod(shape):
            what = f"is {list(rows.shape)} in transformers, and {list(shape)} by the config as it is understood here"
            raise InputError(what, anchor, "correct the config, or how it is read")
        value = np.ascontiguousarray(rows.numpy().reshape(shape))
        if not np.all(np.isfinite(value)):
            raise InputError(
                f"{anchor} has values that are not finite", model.name_or_path, "use weights of a usual size"
            )
        keep(anchor, value)
        wanted.pop(anchor, None)
        layer, part = split(anchor)
        if layer is not None and not part:
            report(f"layer {layer + 1} of {config.num_hidden_layers}")

    def to_record(anchor: str) -> Keep:
        return lambda rows: record(anchor, rows)

    outputs, inputs = {}, {}
    for anchor in wanted:
        layer, part = split(anchor)
        if part in INPUT_OF:
            inputs[f"model.layers.{layer}.{INPUT_OF[part]}"] = to_record(anchor)
        elif part not in IN_ATTENTION:
            outputs["lm_head" if part == "lm_head" else f"model.{anchor}"] = to_record(anchor)
    nudged = nudged_embeddings(model, nudge)
    with hooked(model, outputs, inputs), nudged, recorded_attention(model, record), torch.inference_mode():
        model(torch.tensor([tokens]), use_cache=False)
    if wanted:
        raise InputError(f"does not compute {next(iter(wanted))}", type(model).__name__, UNSUPPORTED)


@contextmanager
def recorded_attention(model: Any, record: Callable[[str, Any], None]) -> Iterator[None]:
    """While this holds, eager attention gives q_rope, k_rope, scores and probs to `record(anchor, rows)`.

    Scores are not returned by transformers and are computed again, as `eager_attention_forward` does.
    """
    import torch

    modeling = sys.modules[type(model).__module__]
    eager = modeling.eager_attention_forward

    def recording(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, **others: Any
    ) -> tuple[Any, Any]:
        output, probs = eager(module, query, key, value, attention_mask, scaling=scaling, **others)
        keys = key.repeat_interleave(module.num_key_value_groups, dim=1)  # [1, N, n, D]
        scores = torch.matmul(query, keys.transpose(2, 3)) * scaling  # [1, N, n, n]
        if attention_mask is not None:
            scores = scores + attention_mask
        # An architecture may do more to its scores: a soft cap, a sink. Then these are not what it attends by.
        if not torch.allclose(torch.softmax(scores, dim=-1), probs, atol=1e-6):
            layer = f"layers.{module.layer_idx}.self_attn"
            raise InputError(f"{layer}.probs are not the softmax of {layer}.scores", type(model).__name__, UNSUPPORTED)
        for anchor, heads in zip(IN_ATTENTION, (query, key, scores, probs), strict=True):
            # Query head h reads kv head h // G, so that the head axis N is [K, G].
            record(f"layers.{module.layer_idx}.{anchor}", heads[0].transpose(0, 1))  # [n, heads, ...]
        return output, probs

    modeling.eager_attention_forward = recording  # type: ignore[attr-defined]
    try:
        yield
    finally:
        modeling.eager_attention_forward = eager  # type: ignore[attr-defined]
