"""The truth at every anchor: transformers' own values over one sequence in float64, and float32's noise there.

Cached like the truth, by content of the weights, the tokens and the library versions. torch is imported only where a
model is run. Legend: n tokens; the rest as in `anchors.py`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from hloracle.core.cache import build_directory, cache_root, is_whole, remove_damaged
from hloracle.core.child import Report, run_in_child
from hloracle.core.errors import InputError
from hloracle.core.files import writing
from hloracle.core.given import refuse_if_exhausted
from hloracle.core.scratch import folder_in
from hloracle.core.spread import row_spreads
from hloracle.reference.huggingface.in_int8 import kept, latents_in_int8, rounded
from hloracle.reference.huggingface.truth import (
    DAMAGED,
    IN_WORDS,
    NARROW,
    TIMEOUT_SECONDS,
    Keep,
    as_numpy,
    damaged,
    first,
    float64_throughout,
    forget_angles,
    hooked,
    load_model,
    narrow_passes,
    nudged_embeddings,
    parts,
    passes_of,
    versioned_entry,
)
from hloracle.reference.model.anchors import CACHES, anchor_shape, anchors, split
from hloracle.reference.model.checkpoint import Checkpoint
from hloracle.reference.model.config import Config
from hloracle.reference.model.registry import FAMILIES, part_of

ANCHOR_TRUTH_VERSION = "6"
# As in the truth, more because a floor here is that of one row and not of a prompt. Measured in the same way, as models
# of which some row is wrongly beyond its limit: 13 in 100 with the plain pass alone, 0.4 with two more, 0 with four.
NUDGES = 4
# Where a graph is beyond a limit by little. Some rows are more sensitive than others, and then five passes say too little: of a
# right graph of SmolLM2 in int4, one row of 60 caches was 18.4 times as far off as they, and 10.3 times as far off as twenty-five.
MANY_NUDGES = 24
# What stands where a key is hidden from the query. transformers adds the lowest finite number to such a score.
MASKED = {"self_attn.scores": -np.inf, "self_attn.probs": 0.0}
HIDDEN = float(np.finfo(np.float32).min) / 2  # a score below is such a key's
UNSUPPORTED = "use a supported architecture"

# Takes an anchor's value in one pass: [n, ...], a row per token.
KeepRows = Callable[[str, np.ndarray], None]


@dataclass(frozen=True)
class AnchorTruth:
    """What the model computes at every anchor.

    tokens: the sequence: a prompt and what followed it; n tokens.
    folder: the cache entry.
    reused: it was there already.
    compute: what the model is computed in, or `int8` where keys and values alone are kept in that.
    nudges: how many passes in float32 there were beside the plain one.
    """

    tokens: tuple[int, ...]
    folder: Path
    reused: bool
    compute: str = "f32"
    nudges: int = NUDGES

    def values(self, anchor: str) -> np.ndarray:
        """The float64 pass rounded to float32, [n, ...]: a row per token, mapped from the file.

        In each row what one query token has: q_proj [n, N, D], the caches [n, K, D], scores and probs [n, K, G, n],
        where a hidden key has the score -inf and the probability 0, lm_head [n, V], and so on (`row_shape`).
        Raises InputError that names an anchor the model does not have.
        """
        self._known(anchor)
        with _whole(self.folder):
            return _kept(self.folder, anchor)

    def noise(self, anchor: str) -> np.ndarray:
        """The largest distance in each row between any float32 pass and the float64 pass, float32 [n].

        Of scores and probs only visible keys count. Raises InputError that names an anchor the model does not have.
        """
        self._known(anchor)
        return np.asarray(self._noise[self._names.index(anchor)])

    def spreads(self, anchor: str) -> np.ndarray:
        """How the errors of each row are spread, of a pass in float32 and then of those in what the model is computed in.

        float32 [1 + passes, n, 4]: see `row_spreads`. Only where it is computed in less than float32.
        """
        self._known(anchor)
        return np.asarray(self._spreads[:, self._names.index(anchor)])

    def _known(self, anchor: str) -> None:
        if anchor not in self._names:
            raise InputError("is not an anchor of this model", anchor, "use a name that `anchors(config)` lists")

    @cached_property
    def _names(self) -> list[str]:
        with _whole(self.folder):
            return _names(self.folder)

    @cached_property
    def _noise(self) -> np.ndarray:
        with _whole(self.folder):
            return _mapped(self.folder, "noise")  # [anchors, n]

    @cached_property
    def _spreads(self) -> np.ndarray:
        with _whole(self.folder):
            return _mapped(self.folder, "spreads")  # [passes, anchors, n, 4]


@dataclass(frozen=True)
class Sequenced:
    """A sequence of token ids, of which the first `prompt` are given at once and the others one by one; all at once when 0.

    Only where RoPE's angles depend on the sequence's length does `prompt` change anything. anchors: those that are asked
    for; all when empty.
    """

    tokens: tuple[int, ...]
    prompt: int = 0
    anchors: tuple[str, ...] = ()


def anchor_truth(
    checkpoint: Checkpoint, tokens: Sequence[int], report: Report | None = None, prompt: int = 0
) -> AnchorTruth:
    """The truth at every anchor over a whole sequence (token ids), computed in a child process where not cached.

    Args:
      prompt: see Sequenced.
    """
    return anchor_truths(checkpoint, [Sequenced(tuple(tokens), prompt)], report)[0]


def anchor_truths(
    checkpoint: Checkpoint, sequences: Sequence[Sequenced], report: Report | None = None, nudges: int = NUDGES
) -> list[AnchorTruth]:
    """The truth of each sequence at the anchors that it asks for; the model is loaded once for all that are not cached.

    Args:
      nudges: passes in float32 beside the plain one, from which the noise is.
    """
    questions = [_question(checkpoint, sequence, nudges) for sequence in sequences]
    whole = [is_whole(folder) for folder, _ in questions]
    missing = {folder: asked for (folder, asked), there in zip(questions, whole, strict=True) if not there}
    if missing:
        for folder in missing:
            remove_damaged(folder)
        _kept.cache_clear()
        run_in_child(_compute, checkpoint, missing, nudges, timeout=TIMEOUT_SECONDS, report=report)
    for folder in missing:
        if not is_whole(folder):
            raise damaged(folder)
    return [
        AnchorTruth(asked.tokens, folder, there, checkpoint.held_to, nudges)
        for (folder, asked), there in zip(questions, whole, strict=True)
    ]


def _question(checkpoint: Checkpoint, asked: Sequenced, nudges: int) -> tuple[Path, Sequenced]:
    """Where the cache keeps the answer; and what is asked, with the anchors named and a prompt of at least one token."""
    config = checkpoint.config
    tokens, prompt, V, turning = asked.tokens, asked.prompt, config.vocab_size, config.turning_point
    if not tokens:
        raise InputError("is empty", "token sequence", "give at least one token")
    if not 0 <= min(tokens) <= max(tokens) < V:
        raise InputError(f"has an id outside 0..{V - 1}", "token sequence", "use the model's own tokenizer")
    # What is whole by one reading of the config is damaged by another, which must not remove it under its readers.
    wanted = asked.anchors or anchors(config)
    shapes = json.dumps(_shapes(config, len(tokens), wanted))
    if turning is None or len(tokens) <= turning:
        prompt = 0
    key = (json.dumps(tokens), *([str(prompt)] if prompt else []), shapes, ANCHOR_TRUTH_VERSION)
    key += (*narrow_passes(checkpoint), *([f"{nudges} nudges"] if nudges != NUDGES else []))
    folder = versioned_entry("anchors", checkpoint.digest, *key)
    return folder, Sequenced(tokens, prompt or len(tokens), wanted)


def row_shape(config: Config, anchor: str, keys: int) -> tuple[int, ...]:
    """The shape of one token's row; scores and probs span `keys` tokens."""
    shape = anchor_shape(config, anchor, 1, keys)
    _, part = split(anchor)
    if part in MASKED:
        K, _, G, S = shape
        return K, G, S
    if part in CACHES:
        K, _, D = shape
        return K, D
    return shape if part == "lm_head" else shape[1:]


def visible(config: Config, anchor: str, query: int) -> slice:
    """The keys that a query of this anchor's layer sees."""
    layer, _ = split(anchor)
    window = config.layers[layer].window if layer is not None else None
    return slice(0 if window is None else max(0, query + 1 - window), query + 1)


# ---- what the cache holds: about.json, noise.npy, and a file for each anchor that is stored


def _names(folder: Path) -> list[str]:
    """The anchors that have a file, in the order of the rows of noise.npy."""
    return list(json.loads((folder / "about.json").read_text())["anchors"])


def _mapped(folder: Path, name: str) -> np.ndarray:
    return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))


# Each map holds a file open, of which a process may have some thousand.
_kept = lru_cache(maxsize=256)(_mapped)


def _shapes(config: Config, n: int, wanted: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """What an entry holds for n tokens: the shape of each file."""
    expected = {name: (n, *row_shape(config, name, n)) for name in wanted}
    return {**expected, "noise": (len(expected), n)}


@contextmanager
def _whole(folder: Path) -> Iterator[None]:
    """Reading here an entry that was whole when it was opened: if it is not any more, say so."""
    try:
        yield
    except DAMAGED as error:
        refuse_if_exhausted(error, folder)
        raise damaged(folder) from error


# ---- in the child process

_File = Callable[[str], Path]  # where a pass keeps an anchor's values


def _compute(report: Report, checkpoint: Checkpoint, questions: dict[Path, Sequenced], nudges: int) -> None:
    """Run all passes. What the float32 ones save, the float64 one compares: memory holds one value at a time."""
    import torch

    torch.set_num_threads(1)  # as in the truth: the same sums on every machine
    config = checkpoint.config
    root = cache_root() / "anchors"
    with ExitStack() as stack:
        with writing(root):
            root.mkdir(parents=True, exist_ok=True)
            passes = stack.enter_context(folder_in(root, "passes"))

        def saved(question: int, anchor: str, nudge: int) -> Path:
            return passes / f"{question}-{anchor}.{nudge}.npy"

        def passing(precision: str, question: int) -> Callable[[str], None]:
            many = f", sequence {question + 1} of {len(questions)}" if len(questions) > 1 else ""
            return lambda layer: report(f"Hugging Face {precision} anchors{many}, {layer}")

        model = load_model(checkpoint.directory)
        for i, asked in enumerate(questions.values()):
            for nudge in range(1 + nudges):

                def keep(anchor: str, single: np.ndarray, at: tuple[int, int] = (i, nudge)) -> None:
                    with writing(root):
                        np.save(saved(at[0], anchor, at[1]), single)

                _Pass(model, config, passing("float32", i), nudge).over(asked, keep)
        single = passed = 1 + nudges
        if (compute := checkpoint.held_to) != "f32":
            passed += passes_of(config)
            less = model if compute == "int8" else load_model(checkpoint.directory, NARROW[compute])
            for i, asked in enumerate(questions.values()):
                for nudge in range(passes_of(config)):

                    def keep_less(anchor: str, values: np.ndarray, at: tuple[int, int] = (i, single + nudge)) -> None:
                        with writing(root):
                            np.save(saved(at[0], anchor, at[1]), values)

                    one = _Pass(less, config, passing(IN_WORDS[compute], i), nudge, in_int8=compute == "int8")
                    one.over(asked, keep_less)
            del less
        # In place, tensor by tensor: the float32 and the float64 model are never both whole.
        model = model.double()
        with float64_throughout():
            for i, (entry, asked) in enumerate(questions.items()):

                def write(folder: Path, i: int = i, asked: Sequenced = asked) -> None:
                    files = [partial(saved, i, nudge=nudge) for nudge in range(passed)]
                    _write(model, config, asked, (files[:single], files[single:]), folder, passing("float64", i))

                build_directory(entry, write)


def _write(
    model: Any, config: Config, asked: Sequenced, saved: tuple[Sequence[_File], Sequence[_File]], folder: Path,
    report: Callable[[str], None],
) -> None:  # fmt: skip
    """The float64 pass, and its distance from what the others saved: those in float32, and those in less."""
    noise: dict[str, np.ndarray] = {}
    spreads: dict[str, np.ndarray] = {}

    def compare(anchor: str, exact: np.ndarray) -> None:
        single, less = ([of(anchor) for of in some] for some in saved)
        noise[anchor] = np.max([row_noise(anchor, np.load(file), exact) for file in single], axis=0)
        if less:
            count = counted(anchor, masked(anchor, exact))
            off = (row_distances(anchor, np.load(file), exact) for file in (single[0], *less))
            spreads[anchor] = np.stack([row_spreads(rows, count) for rows in off])
        for file in (*single, *less):
            file.unlink()
        np.save(folder / f"{anchor}.npy", masked(anchor, exact).astype(np.float32))

    _Pass(model, config, report).over(asked, compare)
    np.save(folder / "noise.npy", np.stack([noise[name] for name in asked.anchors]).astype(np.float32))
    if spreads:
        np.save(folder / "spreads.npy", np.stack([spreads[name] for name in asked.anchors], axis=1).astype(np.float32))
    (folder / "about.json").write_text(json.dumps({"anchors": asked.anchors}))


def counted(anchor: str, rows: np.ndarray) -> np.ndarray:
    """How many values of each row [n, ...] say something of errors: of scores and probs those of visible keys. int64 [n]"""
    flat = np.asarray(rows).reshape(len(rows), -1)
    _, part = split(anchor)
    if part not in MASKED:
        return np.full(len(rows), flat.shape[1], np.int64)
    return np.asarray(np.count_nonzero(flat != MASKED[part], axis=1))


def row_noise(anchor: str, single: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The largest distance in each row between two passes [n, ...], among visible keys: float64 [n]."""
    return np.asarray(np.max(row_distances(anchor, single, exact), axis=1), np.float64)


def row_distances(anchor: str, single: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The distances in each row between two passes [n, ...], 0 at hidden keys: [n, all values of a row]."""
    single, exact = masked(anchor, single), masked(anchor, exact)
    with np.errstate(invalid="ignore"):
        distance = np.abs(np.where(single == exact, 0, single - exact))
    return np.asarray(distance.reshape(len(distance), -1))


def masked(anchor: str, rows: np.ndarray) -> np.ndarray:
    """Rows [n, ...], with scores -inf and probs 0 at hidden keys, whatever number transformers has there.

    Which keys a window hides transformers itself says: a config that is read wrongly must not hide them as well.
    """
    _, part = split(anchor)
    if part not in MASKED:
        return rows
    later = np.triu(np.ones((len(rows), rows.shape[-1]), bool), 1)[:, None, None, :]
    return np.where(later | (rows < HIDDEN), MASKED[part], rows)


@dataclass(frozen=True)
class _Pass:
    """One pass of transformers' model over a sequence. nudge: the seed of `nudged_embeddings`. in_int8: it reads keys and values as caches
    in int8 have them.
    """

    model: Any
    config: Config
    report: Callable[[str], None]
    nudge: int = 0
    in_int8: bool = False

    def over(self, asked: Sequenced, keep: KeepRows) -> None:
        """The sequence, its prompt in as few `parts` as can be and each further token by itself: gives anchors' values to `keep`."""
        forget_angles(self.model)
        tokens, prompt, wanted = asked.tokens, asked.prompt, asked.anchors
        first = parts(prompt, self.config.turning_point)
        if first == [(0, len(tokens))]:
            self._forward(tokens, 0, None, wanted, keep)
            return
        several: dict[str, list[np.ndarray]] = {anchor: [] for anchor in wanted}

        def append(anchor: str, some: np.ndarray) -> None:
            several[anchor].append(some)

        cache = None
        for start, end in [*first, *((i, i + 1) for i in range(prompt, len(tokens)))]:
            cache = self._forward(tokens[start:end], start, cache or True, wanted, append)
        n = len(tokens)
        for anchor, rows in several.items():
            if split(anchor)[1] in MASKED:  # each token came with the keys that there were
                rows = [
                    np.pad(some, [(0, 0)] * 3 + [(0, n - some.shape[-1])]) for some in rows
                ]  # hidden, as later ones
            keep(anchor, np.concatenate(rows))

    def _forward(self, tokens: Sequence[int], start: int, cache: Any, chosen: Sequence[str], keep: KeepRows) -> Any:
        """One call of the model: gives each chosen anchor's value to `keep` once it is computed, and returns the cache.

        The embeddings that are kept are those before the nudge.

        Args:
          start: the position of the first token. cache: of what came before, True for a new one, None to do without.

        Raises InputError that names an anchor which the call did not come by, or which is not finite.
        """
        import torch

        model = self.model
        n, wanted = len(tokens), dict.fromkeys(chosen)
        heads_first = FAMILIES[self.config.architecture].heads_first

        def record(anchor: str, value: Any) -> None:
            if anchor not in wanted:
                return
            layer, part = split(anchor)
            shape = (n, *row_shape(self.config, anchor, start + n))
            if value.numel() != math.prod(shape):
                what = (
                    f"is {list(value.shape)} in transformers, and {list(shape)} by the config as it is understood here"
                )
                raise InputError(what, anchor, "correct the config, or how it is read")
            value = value[0].transpose(0, 1) if part in heads_first else value
            rows = np.array(as_numpy(value), order="C").reshape(shape)
            if not np.all(np.isfinite(rows)):
                raise InputError(
                    f"{anchor} has values that are not finite", model.name_or_path, "use weights of a usual size"
                )
            keep(anchor, rows)
            del wanted[anchor]
            last = "" if f"layers.{layer}" in chosen else CACHES[-1]  # of a layer, of those that are chosen
            if layer is not None and part == last:
                self.report(f"layer {layer + 1} of {self.config.num_hidden_layers}")

        outputs, inputs = _sources(self.config, record, self.in_int8)
        nudged = nudged_embeddings(model, self.nudge)
        attention = recorded_attention(model, self.config, start, record, wanted, self.in_int8)
        # Their norms' own outputs are recorded before they are rounded.
        latents = latents_in_int8(model, self.config) if self.in_int8 else nullcontext()
        with hooked(model, outputs, inputs), nudged, attention, latents, torch.inference_mode():
            found = model(
                torch.tensor([list(tokens)]), past_key_values=None if cache is True else cache, use_cache=cache is not None,
                logits_to_keep=0 if "lm_head" in wanted else 1,
            )  # fmt: skip
            record("lm_head", found.logits)
        if wanted:
            raise InputError(f"does not compute {next(iter(wanted))}", type(model).__name__, UNSUPPORTED)
        return found.past_key_values


def _sources(
    config: Config, record: Callable[[str, Any], None], in_int8: bool = False
) -> tuple[dict[str, Keep], dict[str, Keep]]:  # fmt: skip
    """The modules whose outputs, and those whose inputs, are anchors; what attention computes is not among them."""
    outputs: dict[str, Keep] = {}
    inputs: dict[str, Keep] = {}

    def to_record(*names: str) -> Keep:
        def keep(output: Any) -> None:
            for name in names:
                cached = in_int8 and split(name)[1] in CACHES
                record(name, rounded(first(output)) if cached else first(output))

        return keep

    for anchor in anchors(config):
        layer, part = split(anchor)
        source, _, name = part_of(config, part).source.partition(" ") if layer is not None else ("", "", "")
        if source == "input":
            module = anchor.rpartition(".")[0]
            # StarCoder 2 has its own name for the last projection.
            name = next(n for n in (name, "c_proj") if f"{module}.{n}" in anchors(config))
            inputs[f"model.{module}.{name}"] = to_record(anchor)
        elif source == "routing":
            router = next(a for a in (f"layers.{layer}.mlp.{n}" for n in ("gate", "router")) if a in anchors(config))
            outputs[f"model.{router}"] = _routing(router, anchor, record)
        elif part == "embed_tokens" and config.embedding_multiplier != 1:
            inputs["model.layers.0"] = to_record(anchor)  # some multiply it after the lookup
        elif not source and part != "lm_head" and f"model.{anchor}" not in outputs:
            outputs[f"model.{anchor}"] = to_record(anchor)
        if part == "self_attn.kv_a_layernorm":  # what the cache holds of it
            outputs[f"model.{anchor}"] = to_record(anchor, f"k_cache.{layer}")
    return outputs, inputs


def _routing(router: str, anchor: str, record: Callable[[str, Any], None]) -> Keep:
    """A router's logits, and what it makes of them: how much of each expert, in place of a list of the chosen ones."""

    def keep(output: Any) -> None:
        logits, weights, chosen = output  # [n, X], [n, A], [n, A]
        record(router, logits)
        record(anchor, logits.new_zeros(logits.shape).scatter(1, chosen, weights.to(logits.dtype)))

    return keep


@contextmanager
def recorded_attention(
    model: Any, config: Config, start: int, record: Callable[[str, Any], None], wanted: Collection[str] | None = None,
    in_int8: bool = False,
) -> Iterator[None]:  # fmt: skip
    """While this holds, eager attention gives what it takes and computes to `record(anchor, rows)`.

    Scores are not returned by transformers and are computed again, as `eager_attention_forward` does.

    Args:
      start: the position of the first query token.
      wanted: the anchors that are recorded; all when None. What nobody wants is not computed.
      in_int8: it reads keys and values as caches in int8 have them.
    """
    import torch

    modeling = sys.modules[type(model).__module__]
    eager = modeling.eager_attention_forward

    def recording(
        module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, **others: Any
    ) -> tuple[Any, Any]:
        turned_key = key  # by RoPE, before it is kept
        key, value = kept(config, key, value) if in_int8 else (key, value)
        output, probs = eager(module, query, key, value, attention_mask, scaling=scaling, **others)
        layer, n = module.layer_idx, query.shape[2]
        # Keys of this call, and those that a windowed layer's cache has let go of.
        fresh, gone = slice(key.shape[2] - n, None), start + n - key.shape[2]
        inside = [f"layers.{layer}.self_attn.{name}" for name in ("scores", "probs")]
        if wanted is None or any(name in wanted for name in inside):
            scores = _scores(module, query, key, attention_mask, scaling, others.get("softcap"))
            _attends_by(module, scores, probs)
            if (
                scores.dtype.itemsize < 4
            ):  # a hidden one is as low as float32's are, or -inf where two of float16 add up
                hides = scores <= torch.finfo(scores.dtype).min / 2
                scores = scores.float().masked_fill(hides, torch.finfo(torch.float32).min)
            for name, heads, hidden in zip(inside, (scores, probs), (torch.finfo(scores.dtype).min, 0.0), strict=True):
                # Query head h reads kv head h // G, so that the head axis N is [K, G].
                record(name, torch.nn.functional.pad(heads[0].transpose(0, 1), (gone, 0), value=hidden))
        if config.latent:  # of the heads' own keys only the turned part, which they share, is an anchor
            turned = config.latent.qk_nope_head_dim
            query, key, turned_key = query[..., turned:], key[:, :1, :, turned:], turned_key[:, :1, :, turned:]
            record(f"v_cache.{layer}", key[0, :, fresh].transpose(0, 1))
        else:
            record(f"k_cache.{layer}", key[0, :, fresh].transpose(0, 1))
            record(f"v_cache.{layer}", value[0, :, fresh].transpose(0, 1))
        record(f"layers.{layer}.self_attn.q_rope", query[0].transpose(0, 1))  # [n, heads, ...]
        record(f"layers.{layer}.self_attn.k_rope", turned_key[0, :, fresh].transpose(0, 1))
        return output, probs

    modeling.eager_attention_forward = recording  # type: ignore[attr-defined]
    try:
        yield
    finally:
        modeling.eager_attention_forward = eager  # type: ignore[attr-defined]


def _scores(module: Any, query: Any, key: Any, attention_mask: Any, scaling: float, softcap: float | None) -> Any:
    """Attention's scores [1, N, n, keys], hidden ones as low as can be."""
    import torch

    keys = key.repeat_interleave(module.num_key_value_groups, dim=1)  # [1, N, keys, D]
    scores = torch.matmul(query, keys.transpose(2, 3)) * scaling
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if attention_mask is not None:
        scores = scores + attention_mask
    return scores


def _attends_by(module: Any, scores: Any, probs: Any) -> None:
    """Raises InputError unless probs are the softmax of scores: an architecture may do more to its scores."""
    import torch

    sinks = getattr(module, "sinks", None)
    every = scores if sinks is None else torch.cat([scores, sinks.view(1, -1, 1, 1).expand_as(scores[..., :1])], -1)
    again = torch.softmax(every.float() if every.dtype.itemsize < 4 else every, dim=-1)[..., : scores.shape[-1]]
    roundings = 1e-6 if every.dtype.itemsize >= 4 else 4 * torch.finfo(every.dtype).eps
    if not torch.allclose(again, probs.to(again.dtype), atol=roundings):
        where = f"layers.{module.layer_idx}.self_attn"
        raise InputError(f"{where}.probs are not the softmax of {where}.scores", type(module).__name__, UNSUPPORTED)
