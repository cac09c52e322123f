"""MODEL arguments: directories, GGUF files, fixtures and tiny models, each a checkpoint that transformers loads too."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_files import write_gguf

from hloracle.core.child import run_in_child
from hloracle.core.errors import InputError
from hloracle.reference.fixtures import named as fixtures
from hloracle.reference.fixtures.named import FIXTURES, resolve
from hloracle.reference.fixtures.tiny import TINY, write_tiny
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.registry import FAMILIES

# --- names


@pytest.mark.parametrize("model", ["", "smollm", "tiny-", "tiny-mamba", "absent/folder", "w.safetensors", "~nobody/x"])
def test_unknown_name_lists_what_is_possible(model: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(model)
    message = str(caught.value)
    assert message.startswith(f"{model!r}: no such model; name a checkpoint directory, a .gguf file, or one of: ")
    assert all(name in message for name in FIXTURES)


def test_directory_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(tmp_path)
    assert resolve(str(tmp_path)) == tmp_path
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "tiny-llama", "qwen3")
    assert resolve("tiny-llama") == Path("tiny-llama")


def test_every_architecture_has_a_tiny_model() -> None:
    assert TINY.keys() == FAMILIES.keys()
    assert {f"tiny-{architecture}" for architecture in FAMILIES} < FIXTURES.keys()


def test_import_loads_no_framework() -> None:
    code = (
        "import sys, hloracle.reference.fixtures.named; "
        "print({'torch', 'transformers', 'gguf', 'jax'} & {name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("architecture", FAMILIES)
def test_tiny_is_built_once_and_loads_in_transformers(
    architecture: str, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    directory = resolve(f"tiny-{architecture}")
    assert directory.parent == empty_cache / "models"
    checkpoint = open_checkpoint(directory)
    assert sum(weight.size for _, weight in checkpoint.weights()) == FIXTURES[f"tiny-{architecture}"].parameters
    model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    assert model.dtype == torch.float32
    with torch.no_grad():
        assert model(torch.arange(7)[None]).logits.shape == (1, 7, checkpoint.config.vocab_size)

    monkeypatch.setattr(fixtures, "write_tiny", lambda *args: pytest.fail("built again"))
    assert resolve(f"tiny-{architecture}") == directory


# --- GGUF files


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
    weights = write_gguf(tmp_path / "Some Model.GGUF", Type.Q8_0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fixtures, "run_in_child", run_in_child)
    # What lies beside the file must not be taken for a module, a config or a tokenizer.
    for name in ("torch.py", "config.json", "tokenizer_config.json", "adapter_config.json"):
        (tmp_path / name).write_text("not to be read")
    said: list[str] = []
    directory = resolve("Some Model.GGUF", said.append)
    assert said == ["converting Some Model.GGUF"]
    loaded = open_checkpoint(directory).load("model.norm.weight")
    np.testing.assert_array_equal(loaded, weights["model.norm.weight"].astype(ml_dtypes.bfloat16).astype(np.float32))

    monkeypatch.setattr(fixtures, "run_in_child", lambda *args, **how: pytest.fail("converted again"))
    (tmp_path / "Some Model.GGUF").rename(tmp_path / "renamed.gguf")
    assert resolve("renamed.gguf", said.append) == directory
    assert len(said) == 1


def killed(*given: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def short_of_memory(*given: Any) -> None:
    raise MemoryError


def wrong(*given: Any) -> None:
    raise RuntimeError("two\nlines")


def test_error_in_the_child(tmp_path: Path, empty_cache: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, architecture="mamba", tokenizer=False)
    with pytest.raises(InputError) as caught:
        resolve(str(path))
    assert str(caught.value).startswith(f"{path}: architecture 'mamba' is not supported; ")
    assert _entries(empty_cache) == []


@pytest.mark.parametrize(
    ("conversion", "words"),
    [
        (killed, "cannot be converted (killed died (signal SIGKILL)); free some memory"),
        (short_of_memory, "cannot be converted (short_of_memory ran out of memory); free some memory"),
        (wrong, "cannot be converted (wrong failed: RuntimeError: two lines (test_fixtures.py:"),
        (wrong, "; use the model's Hugging Face checkpoint"),
    ],
)
def test_death_of_the_child(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch, conversion: Callable[..., None], words: str
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setattr(fixtures, "run_in_child", run_in_child)
    monkeypatch.setattr(fixtures, "conversion", conversion)
    with pytest.raises(InputError) as caught:
        resolve(str(path))
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert _entries(empty_cache) == []


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

    def convert(gguf: Path, directory: Path, precision: str = "f32") -> None:
        (directory / "copy").write_bytes(gguf.read_bytes())

    monkeypatch.setattr(fixtures, "_convert_in_child", convert)
    return {
        "requirement": "some-model==1.0",
        "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "member": "some_model/model.gguf",
        "member_sha256": hashlib.sha256(b"GGUF of some model").hexdigest(),
    }


def _packaged(**parts: str) -> fixtures.Packaged:
    return fixtures.Packaged("a model", 1, "MIT", 1_000_000, **parts)


def test_packaged_fixture(some_model: dict[str, Any], empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FIXTURES, "some-model", _packaged(**some_model))
    said: list[str] = []
    directory = resolve("some-model", said.append)
    assert said == ["downloading some-model==1.0 (1 MB)", "converting model.gguf"]
    assert (directory / "copy").read_bytes() == b"GGUF of some model"
    assert _entries(empty_cache) == [directory.name]

    monkeypatch.setattr(fixtures, "_download", lambda *args: pytest.fail("downloaded again"))
    assert resolve("some-model", said.append) == directory
    assert len(said) == 2


@pytest.mark.parametrize("precision", ["bf16", "f16", "int8", "int4"])
def test_packaged_fixture_in_a_precision(
    some_model: dict[str, Any], empty_cache: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """Integers are those of the file that it was converted from, which is kept; floats are rounded from what was made of it."""
    monkeypatch.setitem(FIXTURES, "some-model", _packaged(**some_model))
    asked: list[tuple[str, str]] = []
    convert = fixtures._convert_in_child

    def noted(gguf: Path, directory: Path, precision: str = "f32") -> None:
        asked.append((gguf.name, precision))
        convert(gguf, directory)
        if precision == "f32":
            write_tiny(directory)

    monkeypatch.setattr(fixtures, "_convert_in_child", noted)
    said: list[str] = []
    plain = resolve("some-model")
    assert (plain / "source.gguf").read_bytes() == b"GGUF of some model"
    found = resolve("some-model", said.append, precision)
    assert found != plain
    if precision in ("int8", "int4"):
        assert asked == [("model.gguf", "f32"), ("source.gguf", precision)]
        assert (found / "copy").read_bytes() == b"GGUF of some model"
    else:
        assert asked == [("model.gguf", "f32")]
        assert said == [f"writing some-model in {precision}"]
        assert open_checkpoint(found).config == open_checkpoint(plain).config
    assert not (found / "source.gguf").exists()
    assert len(_entries(empty_cache)) == 2


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
