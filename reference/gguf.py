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
from hloracle.reference.config import Rope
from hloracle.reference.registry import FAMILIES, from_hf
from hloracle.reference.rope import inverse_frequencies
from hloracle.reference.tiny import as_readable_as_the_config
from hloracle.reference.weights import weight_shapes

# Keys of `ARCHITECTURE.` in a GGUF file that either become config keys or are checked through the weights' shapes.
# As in a config, a key that is not understood may be a mechanism that is not computed.
GGUF_KEYS = frozenset(
    [
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "tensor_data_layout",
        "vocab_size",
    ]
)
GGUF_FIXED_KEYS = {"expert_count": 0, "expert_used_count": 0, "rope.scaling.type": "none"}
GGUF_FLOATS = ("F32", "F16", "BF16")
# Keys of transformers' config for a GGUF file that say nothing about the model.
GGUF_CONFIG_EXTRAS = ("_model_name_or_path", "_name_or_path", "quantization_config", "unk_token_id")


def convert_gguf(gguf: Path, directory: Path) -> None:
    """Write a GGUF file as a checkpoint directory: config, weights, tokenizer and chat template.

    Dequantized weights become bfloat16. A file without quantized weights is kept exactly: each weight
    takes the narrowest of bfloat16, float16 and float32 that holds all its values.

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
        _check_tensors(reader, raw, gguf)
        dtype = torch.float32 if types.issubset(GGUF_FLOATS) else torch.bfloat16
        model = transformers.AutoModelForCausalLM.from_pretrained(**source, config=config, dtype=dtype)
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
    if architecture not in FAMILIES:
        raise InputError(
            f"architecture {architecture!r} is not supported",
            path,
            f"use a model of one of these: {', '.join(sorted(FAMILIES))}",
        )
    own = {key.removeprefix(f"{architecture}."): key for key in reader.fields if key.startswith(f"{architecture}.")}
    for key in sorted(own.keys() - GGUF_KEYS):
        value = _field(reader, own[key])
        if key not in GGUF_FIXED_KEYS or value != GGUF_FIXED_KEYS[key]:
            raise InputError(
                f"key {own[key]!r} is {value!r}, and it is not known what that computes",
                path,
                "use another model, or its Hugging Face checkpoint",
            )
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
    if not found or np.all(found[0] == 1):
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
        raise InputError(
            "rope_freqs.weight is not the RoPE scaling of Llama 3", path, "use the model's Hugging Face checkpoint"
        )
    raw["rope_parameters"] = {"rope_type": "llama3", "rope_theta": theta, **scaling}


def _check_tensors(reader: Any, raw: dict[str, Any], path: Path) -> None:
    """Names and shapes both ways: transformers skips a tensor it does not know, and makes up one that is missing."""
    import gguf

    config = from_hf(raw, path)
    (architecture,) = (arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == config.architecture)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    wanted = {names.get_name(name, (".weight", ".bias")): shape for name, shape in weight_shapes(config).items()}
    found = {tensor.name: tuple(int(n) for n in reversed(tensor.shape)) for tensor in reader.tensors}
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


def _narrowest(tensor: Any) -> Any:
    import torch

    for dtype in (torch.bfloat16, torch.float16):
        narrow = tensor.to(dtype)
        if torch.equal(narrow.to(tensor.dtype), tensor):
            return narrow
    return tensor


def _child(gguf: Path, directory: Path) -> int:
    """Convert, and report an error as one line of JSON: the three parts of an InputError."""
    try:
        convert_gguf(gguf, directory)
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
    sys.exit(_child(Path(sys.argv[1]), Path(sys.argv[2])))
