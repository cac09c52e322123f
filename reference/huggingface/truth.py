"""The truth: Hugging Face transformers in float32 at temperature 0, and the same in float64 to know its noise.

Cached by content of the weights, the prompt and the library versions, so that it moves only when
something real moved. torch and transformers are imported only where a model is run.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hloracle.core.cache import build_directory, cache_root, digest, is_whole, remove_damaged
from hloracle.core.child import Report, run_in_child
from hloracle.core.environment import versions
from hloracle.core.errors import InputError
from hloracle.core.given import refuse_if_exhausted
from hloracle.core.spread import LARGEST, row_spreads
from hloracle.core.tolerances import LOGIT_FLOORS, NARROW_LARGEST
from hloracle.reference.huggingface.in_int8 import caches_in_int8
from hloracle.reference.model.checkpoint import Checkpoint
from hloracle.reference.model.config import Config
from hloracle.reference.model.registry import load_config
from hloracle.reference.model.weights import loaded_otherwise

TRUTH_VERSION = "6"
PACKAGES = ("torch", "transformers")
TIMEOUT_SECONDS = 3600
# Float32 passes over a prompt's tokens that measure the noise besides the plain one: see `nudged_embeddings`. One alone
# is one draw: where a value hangs on a single sensitive number, such as a probability between two keys that score alike,
# transformers may happen to be right, and an implementation with the usual noise then looks far off. Measured by passes
# held to each other, with twice their noise: over 300 random models the worst of 6000 prompts was 20 floors away with
# the plain pass alone, and 7 with two more.
NUDGES = 2
# Passes in bf16 or f16, where that is what the model is computed in; the plain one is among them.
NARROW_PASSES = 5
# The same of a model with experts. A choice among experts that is a near-tie falls either way, and then all that follows of its token
# is off by far more than roundings explain: of so many passes one shows it, if it is likely enough to be met in a graph.
NARROW_PASSES_OF_EXPERTS = 16
NARROW_VERSION = "2"  # of what is kept of them
NARROW = {"bf16": "bfloat16", "f16": "float16"}
IN_WORDS = {"f32": "float32", **NARROW, "int8": "float32 with keys and values in int8"}
# Of the numbers of the embeddings, that many are the next one above or below in a further pass in bf16 or f16. The rounding
# of one number is off by 0.29 of what lies between two neighbours, as root mean square: this is 0.35, one rounding's worth.
NARROW_NUDGED = 1 / 8
# The most tokens of a prompt that transformers is given at once: what its attention needs grows with them times the keys, and
# 4,096 in float64 take 1.2 GB for each matrix of 9 heads' scores.
PART = 1024
# What reading an entry raises when something in it is missing, cut short or not what it should be.
DAMAGED = (OSError, ValueError, KeyError, TypeError, EOFError)

# Takes what a module returned, or what it was given.
Keep = Callable[[Any], None]


@dataclass(frozen=True)
class Truth:
    """What the model says after a prompt.

    tokens: the greedy continuation; it does not stop at an end-of-text token.
    logits: float32 [tokens, V], what each token was chosen from.
    exact: the same in float64 over the same tokens, rounded to float32 [tokens, V].
    nudged: the largest distance from `exact` of float32 passes over the same tokens whose embeddings were nudged.
    caches: the largest distance of these passes' keys and values of the prompt from the float64 ones, in units of the
      largest of those. Their noise does not follow from the logits', which come from the last row alone.
    compute: what the model is computed in, or `int8` where keys and values alone are kept in that. spreads: where that is less than
      float32, how the distances from `exact` are spread at each step: of the plain pass in float32, and of those in it, float32
      [1 + passes, tokens, 4]; else empty.
    """

    tokens: list[int]
    logits: np.ndarray
    exact: np.ndarray
    reused: bool
    nudged: float = 0.0
    caches: float = 0.0
    compute: str = "f32"
    spreads: np.ndarray = field(default_factory=lambda: np.zeros((0, 0, 4), np.float32))

    @property
    def gaps(self) -> np.ndarray:
        """The lead of the best logit over the second best, float32 [tokens]."""
        top = np.partition(self.exact, -2, axis=1)[:, -2:]
        return np.asarray(top[:, 1] - top[:, 0])

    @property
    def single(self) -> float:
        """The noise of float32 itself: the largest distance between any float32 pass's logits and the float64 ones."""
        return float(np.maximum(np.max(np.abs(self.logits - self.exact)), self.nudged))

    @property
    def narrow(self) -> np.ndarray:
        """The largest distance from `exact` of any pass in what the model is computed in, float32 [tokens]; empty in float32."""
        return np.asarray(np.max(self.spreads[1:, :, LARGEST], axis=0, initial=0.0))

    @property
    def floor(self) -> float:
        """What errors are counted in: the noise of float32. Of what is computed in less, what makes the limit of as many floors
        the multiple of that type's noise that is allowed.
        """
        if not len(self.narrow):
            return self.single
        return max(self.single, NARROW_LARGEST / LOGIT_FLOORS * float(np.max(self.narrow)))

    @property
    def leads(self) -> np.ndarray:
        """What the lead of a step's best logit has to exceed for its token to be decided, float32 [tokens].

        Either of two logits may be off by what right ones are; in bf16 and f16 by the noise of any step.
        """
        if len(self.narrow):
            return np.full_like(self.narrow, 2 * max(float(np.max(self.narrow)), self.single))
        return np.full(len(self.tokens), 2 * LOGIT_FLOORS * self.floor, np.float32)


def truths(
    checkpoint: Checkpoint, prompts: Sequence[Sequence[int]], count: int, report: Report | None = None
) -> list[Truth]:
    """The truth for each prompt (token ids), computed in a child process where it is not cached."""
    entries = [_entry(checkpoint, prompt, count) for prompt in prompts]
    kept = {entry: _load(entry) for entry in entries}
    missing = {str(e): list(p) for e, p in zip(entries, prompts, strict=True) if kept[e] is None}
    if missing:
        for entry in missing:
            remove_damaged(Path(entry))
        arguments = (checkpoint.directory, missing, count, checkpoint.held_to)
        run_in_child(_compute, *arguments, timeout=TIMEOUT_SECONDS, report=report)
    return [kept[entry] or _computed(entry) for entry in entries]


def _entry(checkpoint: Checkpoint, prompt: Sequence[int], count: int) -> Path:
    # From its turning point on, the truth is taken step by step.
    question = json.dumps([list(prompt), count, checkpoint.config.turning_point])
    return versioned_entry("truth", checkpoint.digest, question, TRUTH_VERSION, *narrow_passes(checkpoint))


def narrow_passes(checkpoint: Checkpoint) -> list[str]:
    """How the noise of less than float32 is measured, for the name of an entry; nothing in float32."""
    said = [NARROW_VERSION, str(passes_of(checkpoint.config)), str(NARROW_NUDGED)]
    return said if checkpoint.held_to != "f32" else []


def passes_of(config: Config) -> int:
    """How many passes in less than float32 measure its noise."""
    return NARROW_PASSES_OF_EXPERTS if config.experts else NARROW_PASSES


def versioned_entry(kind: str, *question: str) -> Path:
    """Where the cache keeps these versions' answer to a question; other versions' answers stand beside it."""
    named = "-".join(f"{name}-{version}" for name, version in versions(PACKAGES).items())
    return cache_root() / kind / digest(*question)[:32] / named


def _load(entry: Path) -> Truth | None:
    """What the cache holds, or None where it holds nothing whole."""
    if not is_whole(entry):
        return None
    try:
        about = json.loads((entry / "truth.json").read_text())
        tokens, nudged, caches = about["tokens"], float(about["nudged"]), float(about["caches"])
        logits, exact = (np.load(entry / f"{name}.npy", mmap_mode="r") for name in ("logits", "exact"))
        spreads = [str(about["compute"]), np.load(entry / "spreads.npy")] if "compute" in about else []
    except DAMAGED as error:
        refuse_if_exhausted(error, entry)
        return None
    return Truth(tokens, logits, exact, True, nudged, caches, *spreads)


def damaged(entry: Path) -> InputError:
    """What to say when an entry was whole and is not any more."""
    return InputError("was removed or damaged while it was being used", entry, "run again")


def _computed(entry: Path) -> Truth:
    """The truth that was computed a moment ago."""
    found = _load(entry)
    if found is None:
        raise damaged(entry)
    return dataclasses.replace(found, reused=False)


def _compute(report: Report, directory: Path, missing: dict[str, list[int]], count: int, compute: str) -> None:
    import torch

    # One thread: sums are taken in the same order on every machine, and the other cores are free to compile.
    torch.set_num_threads(1)
    found: dict[str, tuple[list[int], np.ndarray]] = {}
    others: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    model, turning = load_model(directory), load_config(directory).turning_point
    for number, (entry, prompt) in enumerate(missing.items(), 1):
        report(f"Hugging Face float32, prompt {number} of {len(missing)}")
        found[entry] = tokens, _ = greedy(model, prompt, count, turning)
        others[entry] = []
        for nudge in range(1, 1 + NUDGES):
            with nudged_embeddings(model, nudge):
                others[entry].append(teacher_forced(model, prompt, tokens, turning))
    asked = {entry: (missing[entry], tokens) for entry, (tokens, _) in found.items()}
    narrow = _narrow(report, directory, compute, asked) if compute != "f32" else {}
    # In place, tensor by tensor: the float32 and the float64 model are never both whole.
    model = model.double()
    with float64_throughout():
        for number, (entry, (tokens, logits)) in enumerate(found.items(), 1):
            report(f"Hugging Face float64, prompt {number} of {len(found)}")
            exact, caches = teacher_forced(model, missing[entry], tokens, turning)
            each = np.full(len(exact), exact.shape[1])
            spreads = [row_spreads(np.abs(some - exact), each) for some in (logits, *narrow.get(entry, ()))]
            exact, scale = exact.astype(np.float32), np.max(np.abs(caches)) or 1.0
            near = others.pop(entry)
            about = {
                "tokens": tokens,
                # numpy's max: a pass that overflows says so, whichever one it is.
                "nudged": float(np.max([np.max(np.abs(logits - exact)) for logits, _ in near])),
                "caches": float(np.max([np.max(np.abs(kept - caches)) for _, kept in near]) / scale),
            }
            arrays = {"logits": logits, "exact": exact}
            if entry in narrow:
                about["compute"], arrays["spreads"] = compute, np.stack(spreads)
            build_directory(Path(entry), partial(_write, about, arrays))


def _narrow(
    report: Report, directory: Path, compute: str, asked: Mapping[str, tuple[Sequence[int], Sequence[int]]]
) -> dict[str, list[np.ndarray]]:
    """The logits of every pass in less than float32, over each prompt and what followed it."""
    model, config = load_model(directory, NARROW.get(compute, "float32")), load_config(directory)
    found: dict[str, list[np.ndarray]] = {entry: [] for entry in asked}
    with caches_in_int8(model, config) if compute == "int8" else nullcontext():
        for number, (entry, fed) in enumerate(asked.items(), 1):
            report(f"Hugging Face {IN_WORDS[compute]}, prompt {number} of {len(asked)}")
            for nudge in range(passes_of(config)):
                with nudged_embeddings(model, nudge):
                    found[entry].append(teacher_forced(model, *fed, config.turning_point)[0])
    return found


def _write(about: dict[str, Any], arrays: Mapping[str, np.ndarray], folder: Path) -> None:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array.astype(np.float32))
    (folder / "truth.json").write_text(json.dumps(about))


def load_model(directory: Path, dtype: str = "float32", attention: str | None = "eager") -> Any:
    """transformers' model of a checkpoint directory, in evaluation mode. Only safetensors, no remote code, no TF32.

    attention: how it is implemented; None for what transformers takes for this architecture by itself.
    Raises InputError unless its weights are exactly those of the directory: transformers makes up one that is missing.
    """
    import torch
    import transformers

    # Whoever wants products of float32 rounded to TF32 or bfloat16 can ask PyTorch for it in many places.
    torch.set_float32_matmul_precision("highest")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        found: Any = transformers.AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=getattr(torch, dtype),
            attn_implementation=attention,
            experts_implementation="eager",  # the others are for some dtypes and devices only
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        refuse_if_exhausted(error, directory)
        raise InputError(f"transformers cannot load it ({error})", directory, "check the checkpoint's files") from error
    model, loaded = found
    if problems := loaded_otherwise(loaded):
        raise InputError(f"transformers loads other weights ({problems})", directory, "check the checkpoint's files")
    return model.eval()


def greedy(model: Any, prompt: Sequence[int], count: int, turning: int | None = None) -> tuple[list[int], np.ndarray]:
    """`count` greedy tokens and the logits, float32 [count, V], that each was chosen from. turning: see `parts`."""
    tokens: list[int] = []
    logits: list[np.ndarray] = []
    for out in _steps(model, prompt, tokens, count, turning):
        row = out.logits[0, -1].float().numpy()
        tokens.append(int(np.argmax(row)))
        logits.append(row.copy())
    return tokens, np.stack(logits)


def parts(tokens: int, turning: int | None) -> list[tuple[int, int]]:
    """Where the parts begin and end in which transformers is given so many tokens.

    turning: the length beyond which RoPE's angles depend on the sequence's length: all of a longer one are given at once.
    """
    size = tokens if turning is not None and tokens > turning else PART
    return [(start, min(start + size, tokens)) for start in range(0, tokens, size)]


def _fed(model: Any, tokens: Sequence[int], cache: Any, kept: int = 1) -> Any:
    """What the model gives for the next tokens; kept: how many of the last rows of logits."""
    import torch

    with torch.inference_mode():
        return model(torch.tensor([list(tokens)]), past_key_values=cache, use_cache=True, logits_to_keep=kept)


def _steps(
    model: Any, prompt: Sequence[int], tokens: Sequence[int], count: int, turning: int | None = None
) -> Iterator[Any]:
    """After the prompt, then after each of the tokens; `tokens` may grow meanwhile."""
    forget_angles(model)
    cache = None
    for start, end in parts(len(prompt), turning):
        out = _fed(model, prompt[start:end], cache)
        cache = out.past_key_values
    yield out
    for step in range(count - 1):
        out = _fed(model, [tokens[step]], out.past_key_values)
        yield out


def forget_angles(model: Any) -> None:
    """Undo what the last sequence did to RoPE: `dynamic` keeps the angles of the longest one, whatever comes next."""
    for module in model.modules():
        types = getattr(module, "rope_type", "")
        # Some have a set of angles for each type of layer.
        sets = (
            {f"{layer_type}_": kind for layer_type, kind in types.items()} if isinstance(types, dict) else {"": types}
        )
        for prefix in (prefix for prefix, kind in sets.items() if kind == "dynamic"):
            setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)
            setattr(module, f"{prefix}inv_freq", getattr(module, f"{prefix}original_inv_freq"))


def teacher_forced(
    model: Any, prompt: Sequence[int], tokens: Sequence[int], turning: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The logits [len(tokens), V] that each of `tokens` should come from, and the caches of the prompt as one vector.

    Both are in the model's dtype, bfloat16 and float16 as float32. The vector holds every layer's keys and values, of a windowed layer the last ones.

    Args:
      turning: the length beyond which RoPE's angles depend on the sequence's length. A longer sequence goes token by
        token, because one pass over it would not compute what decode steps do.
    """
    import torch

    def kept(cache: Any) -> Any:
        return as_numpy(torch.cat([
            t[..., : len(prompt), :].ravel() for layer in cache.layers for t in (layer.keys, layer.values)
        ]))  # fmt: skip

    if turning is not None and len(prompt) + len(tokens) > turning:
        caches: list[np.ndarray] = []
        rows: list[np.ndarray] = []
        for out in _steps(model, prompt, tokens, len(tokens), turning):
            caches = caches or [np.array(kept(out.past_key_values))]
            rows.append(np.array(as_numpy(out.logits[0, -1])))
        return np.stack(rows), caches[0]
    forget_angles(model)
    fed, cache = [*prompt, *tokens[:-1]], None
    before = len(fed) - len(tokens) if len(fed) > PART else 0
    for start, end in parts(before, None):
        cache = _fed(model, fed[start:end], cache).past_key_values
    out = _fed(model, fed[before:], cache, kept=len(tokens))
    return as_numpy(out.logits[0]), kept(out.past_key_values)


def as_numpy(tensor: Any) -> np.ndarray:
    """A tensor's values; those of bfloat16, which NumPy has not, and of float16 as float32."""
    return np.asarray((tensor.float() if tensor.dtype.itemsize < 4 else tensor).numpy())


@contextmanager
def hooked(model: Any, outputs: Mapping[str, Keep], inputs: Mapping[str, Keep]) -> Iterator[None]:
    """While this holds, a forward pass gives the named modules' outputs, and others' first inputs, to what keeps them.

    Raises InputError that names a module the model does not have.
    """
    named = dict(model.named_modules())
    unknown = [name for name in (*outputs, *inputs) if name not in named]
    if unknown:
        raise InputError(f"has no module {unknown[0]}", type(model).__name__, "use a name of model.named_modules()")

    def after(keep: Keep) -> Callable[[Any, Any, Any], None]:
        return lambda _module, _inputs, output: keep(output)

    def before(keep: Keep) -> Callable[[Any, Any], None]:
        return lambda _module, inputs: keep(inputs[0])

    hooks = [named[name].register_forward_hook(after(keep)) for name, keep in outputs.items()]
    hooks += [named[name].register_forward_pre_hook(before(keep)) for name, keep in inputs.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def first(output: Any) -> Any:
    """The tensor that a module returned, or the first of several."""
    return output[0] if isinstance(output, tuple) else output


@contextmanager
def nudged_embeddings(model: Any, seed: int) -> Iterator[None]:
    """While this holds, every number of the embeddings is the next one above or below, at random; with seed 0 itself.

    What comes of it is as right as float32 can be: every implementation is off by one rounding somewhere early. But all
    later roundings fall otherwise, so each seed is another draw of float32's noise. Of a model in bfloat16 or float16 only
    some numbers are nudged: see NARROW_NUDGED.
    """
    import torch

    def nudge(_module: Any, _inputs: Any, output: Any) -> Any:
        drawn = torch.rand(output.shape, generator=torch.Generator().manual_seed(seed))
        if output.dtype.itemsize < 4:
            # Less than one and a half of what lies between neighbours, and more than half of it: rounded, the next one.
            step = 0.7 * torch.finfo(output.dtype).eps * (drawn < NARROW_NUDGED)
            return (output.float() * (1 + torch.where(drawn < NARROW_NUDGED / 2, step, -step))).to(output.dtype)
        up = drawn < 0.5
        return torch.nextafter(output, torch.where(up, torch.inf, -torch.inf).to(output.dtype))

    hook = model.get_input_embeddings().register_forward_hook(nudge) if seed else None
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()


def float64_throughout() -> AbstractContextManager[object]:
    """While this holds, what a float64 model casts to float32 is cast to float64.

    Whatever the model's dtype, transformers computes RoPE's angles, RMSNorm and the softmax in float32, and the float64
    truth would carry a quarter of the noise that it is to measure. Only the dtypes that are asked for change: the
    formulas, and RoPE's frequencies, stay transformers' own, so that an error in ours cannot hide here.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    def widened(argument: Any) -> Any:
        return torch.float64 if argument is torch.float32 else argument

    class Float64(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.float:
                func = torch.Tensor.double
            named = {name: widened(argument) for name, argument in (kwargs or {}).items()}
            return func(*map(widened, args), **named)

    return Float64()
