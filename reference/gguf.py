"""A GGUF file as a checkpoint directory, through transformers' own reader: run in a child process by `fixtures.py`."""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hloracle.core.errors import InputError
from hloracle.core.store import cache_root
from hloracle.reference.checkpoint import open_checkpoint
from hloracle.reference.config import Config, Rope
from hloracle.reference.registry import from_hf
from hloracle.reference.rope import inverse_frequencies
from hloracle.reference.tiny import as_readable_as_the_config
from hloracle.reference.weights import matrices, weight_shapes

# GGUF's names of the architectures that transformers reads right. A Mistral is a `llama` there.
ARCHITECTURES = (
    "gemma2", "gemma3", "llama", "phi3", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "stablelm", "starcoder2",
)  # fmt: skip
# Those that it reads, and reads wrong (docs/toolchain-notes.md).
WRONG = {"gpt-oss": "transformers leaves its experts, biases and sinks out and makes others up"}
GGUF_FLOATS = ("F32", "F16", "BF16")
# Keys of transformers' config for a GGUF file that say nothing about the model.
GGUF_CONFIG_EXTRAS = ("_model_name_or_path", "_name_or_path", "quantization_config", "unk_token_id")
# Of a key: whatever it says changes nothing; a file without it cannot be read; the tensors' shapes say the same.
ANYTHING, NEEDED, IN_SHAPES = object(), object(), object()
CHECKPOINT = "use the model's Hugging Face checkpoint"


def quantized_gguf(gguf: Path, directory: Path, precision: str) -> None:
    """Write a GGUF file as a checkpoint directory in int8 or int4. Blocks of that precision, and of int8, stay as they are."""
    from hloracle.reference.gguf_blocks import blocks_by_weight
    from hloracle.reference.precision import write_in_precision

    # Inside: whoever removes a directory that was not finished removes this as well.
    with tempfile.TemporaryDirectory(prefix=".float32.", dir=directory) as beside:
        convert_gguf(gguf, Path(beside), exact=True)
        base = open_checkpoint(Path(beside))
        reader = _open_gguf(gguf)
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        names = _tensor_names(base.config, _field(reader, "general.architecture"))
        names = {weight: names[weight] for weight in matrices(base.config)}
        write_in_precision(base, directory, precision, blocks_by_weight(tensors, names, base, precision, gguf))


def convert_gguf(gguf: Path, directory: Path, exact: bool = False) -> None:
    """Write a GGUF file as a checkpoint directory: config, weights, tokenizer and chat template.

    Dequantized weights become bfloat16, unless they are to be exact. A file without quantized weights is kept exactly:
    each weight takes the narrowest of bfloat16, float16 and float32 that holds all its values.

    Raises InputError unless every tensor and every `ARCHITECTURE.` key of the file has its place in the checkpoint.
    """
    reader = _open_gguf(gguf)
    types = {tensor.tensor_type.name for tensor in reader.tensors}

    import torch
    import transformers
    from safetensors.torch import save_file

    transformers.logging.disable_progress_bar()
    # Alone in a folder: beside the file there may be an adapter or a tokenizer, which transformers would read as well.
    with tempfile.TemporaryDirectory(prefix="hloracle-") as alone:
        (Path(alone) / "model.gguf").symlink_to(gguf)
        source: dict[str, Any] = {"pretrained_model_name_or_path": alone, "gguf_file": "model.gguf"}
        config = transformers.AutoConfig.from_pretrained(**source)
        raw = {key: value for key, value in config.to_dict().items() if key not in GGUF_CONFIG_EXTRAS}
        _restore_llama3_scaling(reader, raw, gguf)
        understood = from_hf(raw, gguf)
        _check_keys(reader, understood, gguf)
        _check_tensors(reader, understood, gguf)
        dtype = torch.float32 if exact or types.issubset(GGUF_FLOATS) else torch.bfloat16
        found: Any = transformers.AutoModelForCausalLM.from_pretrained(
            **source, config=config, dtype=dtype, output_loading_info=True
        )
        model, loaded = found
        _check_loaded(loaded, gguf)
        if "tokenizer.ggml.model" in reader.fields:
            transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(directory)

    state = model.state_dict()
    if raw["tie_word_embeddings"]:
        del state["lm_head.weight"]
    state = {name: _narrowest(tensor).contiguous() for name, tensor in state.items()}
    raw["architectures"] = [type(model).__name__]
    raw["dtype"] = str(state["model.embed_tokens.weight"].dtype).removeprefix("torch.")
    (directory / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    model.generation_config.save_pretrained(directory)
    weights = directory / "model.safetensors"
    save_file(state, weights, metadata={"format": "pt"})
    as_readable_as_the_config(weights)

    checkpoint = open_checkpoint(directory)
    try:
        for _ in checkpoint.weights():
            pass
    except InputError as error:
        raise InputError(error.what, gguf, error.fix) from None


def _open_gguf(path: Path) -> Any:
    """A gguf.GGUFReader of the file, whose tensors all lie inside it and whose architecture is supported."""
    import gguf

    try:
        reader = gguf.GGUFReader(path)
        ends = [int(tensor.data_offset + tensor.n_bytes) for tensor in reader.tensors]
        architecture = _field(reader, "general.architecture")
    # The reader checks nothing of its own: a damaged file shows as whatever numpy says about it.
    except Exception as error:
        raise InputError(f"is damaged or cut short ({error})", path, "download the file again") from None
    size = path.stat().st_size
    if max(ends, default=0) > size:
        raise InputError(f"is cut short: {max(ends)} bytes are named, {size} are there", path, "download it again")
    if architecture not in ARCHITECTURES:
        reason = f": {WRONG[architecture]}" if architecture in WRONG else ""
        raise InputError(
            f"architecture {architecture!r} is not supported{reason}",
            path,
            f"use a model of one of these: {', '.join(ARCHITECTURES)}; or its Hugging Face checkpoint",
        )
    if architecture == "llama" and _field(reader, "general.name") == "mistral":
        raise InputError("transformers cannot read a llama whose general.name is 'mistral'", path, CHECKPOINT)
    return reader


def _field(reader: Any, key: str) -> Any:
    field = reader.get_field(key)
    return None if field is None else field.contents()


def _restore_llama3_scaling(reader: Any, raw: dict[str, Any], path: Path) -> None:
    """Put into the config the RoPE scaling that llama.cpp keeps only as its result, the tensor `rope_freqs.weight`.

    That tensor is the unscaled frequency of each pair over the scaled one, and transformers ignores it. Of the
    parameters behind it, `factor` is its largest value and the rest are those of every Llama 3.1, 3.2 and 3.3.
    Source: llama.cpp, convert_hf_to_gguf.py, LlamaModel.generate_extra_tensors.
    """
    found = [tensor.data for tensor in reader.tensors if tensor.name == "rope_freqs.weight"]
    if raw["model_type"] != "llama" or not found or np.all(found[0] == 1):
        return
    scaling: dict[str, Any] = {
        "factor": float(np.max(found[0])),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    theta = float(raw["rope_parameters"]["rope_theta"])
    default = inverse_frequencies(Rope("default", theta, raw["head_dim"]))  # [D/2]
    expected = default / inverse_frequencies(Rope("llama3", theta, raw["head_dim"], **scaling))
    # llama.cpp computes it in float32, in a handful of steps.
    if found[0].shape != expected.shape or not np.allclose(found[0], expected, rtol=1e-5, atol=0):
        raise InputError("rope_freqs.weight is not the RoPE scaling of Llama 3", path, CHECKPOINT)
    raw["rope_parameters"] = {"rope_type": "llama3", "rope_theta": theta, **scaling}


def _stated(config: Config) -> dict[str, tuple[Any, Any]]:
    """What the `ARCHITECTURE.` keys of a model's file have to be, and what a file without the key means.

    Source of what a missing key means: llama.cpp, `load_hparams` and `load_arch_hparams` of its models.
    """
    gemma2, gemma3 = config.architecture == "gemma2", config.architecture == "gemma3_text"
    heads, hidden, count = config.num_attention_heads, config.hidden_size, config.num_hidden_layers
    window = max((window or 0 for window in config.windows), default=0)
    wide, narrow = ([x.rope for x in config.layers if (x.window is None) is full and x.rope] for full in (True, False))
    theta, narrow_theta = (wide or narrow)[0].theta, (narrow or wide)[0].theta
    scaled = sorted({rope.type for rope in config.ropes} - {"default", "llama3"})
    # What a Gemma's scores are multiplied by stands nowhere: llama.cpp knows the 27B ones by their number of layers.
    narrower = (gemma2 and count == 46) or (gemma3 and count == 62)
    keys = {
        "attention.head_count": (heads, NEEDED),
        "attention.head_count_kv": (config.num_key_value_heads, heads),
        "attention.key_length": (config.head_dim, hidden // heads),
        "attention.scale": (config.scaling, (hidden // heads if narrower else config.head_dim) ** -0.5),
        "attention.sliding_window": (window, 4096 if gemma2 else 0),
        "attention.value_length": (config.head_dim, hidden // heads),
        "attn_logit_softcapping": (config.attn_logit_softcapping or 0, 50.0 if gemma2 else 0),
        "block_count": (count, NEEDED),
        "context_length": (config.max_position_embeddings, NEEDED),
        "embedding_length": (hidden, IN_SHAPES),
        "expert_count": (0, 0),
        "expert_used_count": (0, 0),
        "feed_forward_length": (config.intermediate_size, IN_SHAPES),
        "final_logit_softcapping": (config.final_logit_softcapping or 0, 30.0 if gemma2 else 0),
        "rope.dimension_count": (config.ropes[0].dim, config.head_dim),
        "rope.freq_base": (theta, 10000.0),
        "rope.freq_base_swa": (narrow_theta, 10000.0 if gemma3 else theta),
        "rope.scaling.attn_factor": (1, 1),
        "rope.scaling.factor": (1, 1),
        # Said of a model without scaling, they change nothing.
        "rope.scaling.finetuned": (ANYTHING, ANYTHING),
        "rope.scaling.original_context_length": (ANYTHING, ANYTHING),
        "rope.scaling.type": (", ".join(scaled) or "none", "none"),
        "tensor_data_layout": ("Meta AI original pth", ANYTHING),
        "vocab_size": (config.vocab_size, IN_SHAPES),
        f"attention.layer_norm{'' if config.norm_bias else '_rms'}_epsilon": (config.norm_eps, NEEDED),
    }
    if config.architecture == "stablelm":
        keys["use_parallel_residual"] = (config.use_parallel_residual, IN_SHAPES)
    if experts := config.experts:
        keys["expert_count"] = (experts.num_experts, NEEDED)
        keys["expert_used_count"] = (experts.num_experts_per_tok, NEEDED)
        keys["expert_feed_forward_length"] = (experts.intermediate_size, IN_SHAPES)
        if experts.shared_intermediate_size:
            keys["expert_shared_feed_forward_length"] = (experts.shared_intermediate_size, IN_SHAPES)
    return keys


def _check_keys(reader: Any, config: Config, path: Path) -> None:
    """Hold what a file says to what transformers made of it: it ignores many keys, and takes a default of its own."""
    prefix = f"{_field(reader, 'general.architecture')}."
    own = {key.removeprefix(prefix): key for key in reader.fields if key.startswith(prefix)}
    stated = _stated(config)
    for key in sorted(own.keys() - stated.keys()):
        raise InputError(
            f"key {own[key]!r} is {_field(reader, own[key])!r}, and it is not known what that computes",
            path,
            "use another model, or its Hugging Face checkpoint",
        )
    for key, (taken, meant) in stated.items():
        found = _field(reader, own[key]) if key in own else meant
        if found is NEEDED:
            raise InputError(f"key {prefix + key!r} is not there", path, CHECKPOINT)
        if found not in (ANYTHING, IN_SHAPES) and taken is not ANYTHING and not _equal(found, taken):
            means = "is" if key in own else "is not there, which means"
            what = f"key {prefix + key!r} {means} {found!r}, and transformers takes {taken!r} for it"
            raise InputError(what, path, CHECKPOINT)


def _equal(found: Any, taken: Any) -> bool:
    """GGUF keeps numbers that are not whole as float32."""
    if type(found) in (int, float) and type(taken) in (int, float):
        return bool(np.float32(found) == np.float32(taken))
    return bool(found == taken)


def _tensor_names(config: Config, architecture: str) -> dict[str, tuple[str, ...]]:
    """Weight -> the tensors of a model's file that it is joined from."""
    import gguf

    (known,) = (number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names: Any = gguf.get_tensor_name_map(known, config.num_hidden_layers)

    def of(name: str) -> tuple[str, ...]:
        if name.endswith(".gate_up_proj"):  # of all experts, which have no `.weight`
            halves = (f"{name.removesuffix('gate_up_proj')}{half}_proj" for half in ("gate", "up"))
            return tuple(f"{names.get_name(half)}.weight" for half in halves)
        if name.endswith(".experts.down_proj"):
            return (f"{names.get_name(name)}.weight",)
        return (names.get_name(name, (".weight", ".bias")),)

    return {name: of(name) for name in weight_shapes(config)}


def _tensor_shapes(config: Config, architecture: str) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor in a model's file."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensors in _tensor_names(config, architecture).items():
        shape = weight_shapes(config)[name]
        if len(tensors) > 1:
            shape = (shape[0], shape[1] // 2, shape[2])
        if name.endswith(".shared_expert_gate.weight"):
            shape = shape[1:]
        shapes |= dict.fromkeys(tensors, shape)
    return shapes


def _check_tensors(reader: Any, config: Config, path: Path) -> None:
    """Names and shapes both ways: transformers skips a tensor it does not know, and makes up one that is missing."""
    architecture = _field(reader, "general.architecture")
    wanted = _tensor_shapes(config, architecture)
    found = {tensor.name: tuple(int(n) for n in reversed(tensor.shape)) for tensor in reader.tensors}
    if architecture == "llama":
        found.pop("rope_freqs.weight", None)
    problems = [f"missing {name}" for name in wanted if name not in found]
    problems += [f"extra {name}" for name in found if name not in wanted]
    problems += [
        f"{name} is {list(found[name])}, not {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    if problems:
        shown = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise InputError(
            f"tensors do not match the file's own keys: {shown}", path, "use another model, or its whole file"
        )


def _check_loaded(loaded: dict[str, Any], path: Path) -> None:
    """Every weight came from the file: transformers makes up one that it finds no tensor for."""
    problems = [
        f"{kind.replace('_', ' ')}: {', '.join(map(str, sorted(names)[:4]))}" for kind, names in loaded.items() if names
    ]
    if problems:
        raise InputError(f"transformers loads other weights ({'; '.join(problems)})", path, CHECKPOINT)


def _narrowest(tensor: Any) -> Any:
    import torch

    for dtype in (torch.bfloat16, torch.float16):
        narrow = tensor.to(dtype)
        if torch.equal(narrow.to(tensor.dtype), tensor):
            return narrow
    return tensor


def _child(gguf: Path, directory: Path, precision: str) -> int:
    """Convert, and report an error as one line of JSON: the three parts of an InputError."""
    try:
        if precision == "f32":
            convert_gguf(gguf, directory)
        else:
            quantized_gguf(gguf, directory, precision)
    except InputError as error:
        report = error
    except Exception as error:
        # safetensors has its own exception for it, in which only the text is left.
        if getattr(error, "errno", None) == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(error):
            fix = "free some space, or set HLORACLE_CACHE to another disk"
            report = InputError("the disk is full", cache_root(), fix)
        else:
            what = f"cannot be converted ({type(error).__name__}: {error})"
            report = InputError(what, gguf, "use another model, or its Hugging Face checkpoint")
    else:
        return 0
    print(json.dumps({"what": report.what, "where": report.where, "fix": report.fix}), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(_child(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
