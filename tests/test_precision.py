"""A model in another precision: a directory whose floats are what graphs compute with, and which is refused otherwise."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from shards import write_sharded

from hloracle.cli import main as cli
from hloracle.core.cache import SEAL
from hloracle.core.errors import InputError
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.fixtures.tiny import write_tiny
from hloracle.reference.huggingface.truth import load_model
from hloracle.reference.model.checkpoint import ENCODED, QUANTIZED, Checkpoint, open_checkpoint
from hloracle.reference.model.encodings import ENCODINGS, PRECISIONS
from hloracle.reference.model.weights import default_layout, matrices, weight_shapes

OTHERS = PRECISIONS[1:]
INTEGERS = ("int8", "int4")
DOWN = "model.layers.1.mlp.down_proj.weight"
EMBEDDING = "model.embed_tokens.weight"


def arguments(checkpoint: Checkpoint, weight: str, encoding: str) -> list[np.ndarray]:
    return [checkpoint.load(name) for name in ENCODINGS[encoding].arguments(weight)]


def holds(base: Checkpoint, found: Checkpoint, precision: str) -> None:
    """`found` is `base` in a precision: each matrix by its encoding, and everything else as it was."""
    assert found.config == base.config
    layout = found.layout(precision)
    assert set(layout) <= set(matrices(base.config))
    for name, weight in found.weights():
        if name not in layout:
            np.testing.assert_array_equal(weight, base.load(name), err_msg=name)
            continue
        parts = arguments(found, name, layout[name])
        expected = ENCODINGS[layout[name]].encode(base.load(name))
        for part, right in zip(parts, expected, strict=True):
            assert part.dtype == right.dtype
            np.testing.assert_array_equal(part, right, err_msg=name)
        np.testing.assert_array_equal(ENCODINGS[layout[name]].decode(parts), weight, err_msg=name)
        assert (weight != base.load(name)).any(), name


def entries(cache: Path) -> list[str]:
    return [p.name for p in (cache / "models").iterdir() if p.suffix != ".lock"]


# ---- what is written


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", {}),
    "sharded": ("llama", {"attention_bias": True}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "groups that do not fit": ("llama", {"intermediate_size": 114, "vocab_size": 258}),
    "an expert in each tensor": ("mixtral", {}),
    "norms of heads": ("stablelm", {}),
    "sliced, biased and transposed": ("gpt_oss", {}),
}
SHARDS = {"sharded": 3, "tied": 2}


@pytest.mark.parametrize("precision", OTHERS)
@pytest.mark.parametrize("name", MODELS)
def test_weights_in_a_precision(name: str, precision: str, tmp_path: Path) -> None:
    architecture, options = MODELS[name]
    base = write_sharded(tmp_path, SHARDS.get(name, 1), architecture, **options)
    found = open_checkpoint(resolve(str(base), precision=precision))
    assert found.directory != base
    holds(open_checkpoint(base), found, precision)
    assert sorted(p.suffix for p in found.directory.iterdir() if p.name != SEAL) == [".json"] + [".safetensors"] * (
        1 + (precision in INTEGERS)
    )


@pytest.mark.parametrize("precision", OTHERS)
@pytest.mark.parametrize("architecture", ["llama", "mixtral"])
def test_what_transformers_reads(architecture: str, precision: str) -> None:
    """Its float32 weights are those of the graphs."""
    found = open_checkpoint(resolve(f"tiny-{architecture}", precision=precision))
    theirs = load_model(found.directory).state_dict()
    for name, weight in found.weights():
        np.testing.assert_array_equal(theirs[name].numpy(), weight, err_msg=name)


@pytest.mark.parametrize("architecture", ["mixtral", "qwen2_moe", "deepseek_v3"])
@pytest.mark.parametrize("precision", OTHERS)
def test_what_keeps_float32(precision: str, architecture: str) -> None:
    """Routers choose: a rounded one would choose others."""
    base = open_checkpoint(resolve(f"tiny-{architecture}"))
    layout = default_layout(base.config, precision)
    kept = {re.sub(r".*\.(?=\w+\.\w+$)", "", name) for name in weight_shapes(base.config) if name not in layout}
    assert all("norm." in name or name.endswith(("bias", "gate.weight")) for name in kept), kept
    assert "gate.weight" in kept


@pytest.mark.parametrize("precision", INTEGERS)
def test_what_tokens_are_chosen_by_is_in_int8(precision: str) -> None:
    layout = open_checkpoint(resolve("tiny-llama", precision=precision)).layout(precision)
    heads = {EMBEDDING, "lm_head.weight"}
    assert {layout[name] for name in heads} == {"int8"}
    assert {encoding for name, encoding in layout.items() if name not in heads} == {precision}


def test_groups_that_do_not_fit_keep_float32(tmp_path: Path) -> None:
    """114 columns: four do not divide them."""
    base = write_tiny(tmp_path, intermediate_size=114)
    layout = open_checkpoint(resolve(str(base), precision="int4")).layout("int4")
    assert DOWN not in layout
    assert DOWN.replace("down", "up") in layout


def test_panels_that_do_not_fit_are_rows() -> None:
    """Of 257 rows."""
    checkpoint = open_checkpoint(resolve("tiny-llama", precision="bf16"))
    panels, rows = (checkpoint.layout("bf16", panels) for panels in (True, False))
    assert (panels[DOWN], panels[EMBEDDING]) == ("bf16", "bf16")  # 84 rows, 257 rows
    assert panels["model.layers.1.mlp.up_proj.weight"] == "bf16.panels"
    assert set(rows.values()) == {"bf16"}
    assert rows.keys() == panels.keys() == set(matrices(checkpoint.config))
    assert checkpoint.layout("f32", False) == {}
    assert set(checkpoint.layout("f32").values()) == {"panels"}


def test_what_stands_beside_weights_goes_with_them(tmp_path: Path) -> None:
    base = write_sharded(tmp_path, 2)
    for name in ("tokenizer.json", "chat_template.jinja", "tokenizer.model", "merges.txt", "readme.md", "other.bin"):
        (base / name).write_text(name)
    (base / "folder.json").mkdir()
    found = resolve(str(base), precision="int8")
    assert sorted(p.name for p in found.iterdir() if p.name != SEAL) == [
        "chat_template.jinja", "config.json", ENCODED, "merges.txt", "model.safetensors", "tokenizer.json",
        "tokenizer.model",
    ]  # fmt: skip
    assert (found / "config.json").read_bytes() == (base / "config.json").read_bytes()


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "generation_config.json"])
def test_what_stands_beside_the_same_weights_is_its_own(name: str, tmp_path: Path) -> None:
    """Two directories with equal weights, or one that was given another tokenizer since."""
    base = write_tiny(tmp_path)
    resolve(str(base), precision="int8")
    for text in ("{}", '{"a": 1}'):
        (base / name).write_text(text)
        assert (resolve(str(base), precision="int8") / name).read_text() == text


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_that_are_of_the_precision_already(dtype: str, tmp_path: Path) -> None:
    precision = {"bfloat16": "bf16", "float16": "f16"}[dtype]
    base = open_checkpoint(write_tiny(tmp_path, dtype=dtype))
    found = open_checkpoint(resolve(str(tmp_path), precision=precision))
    for name, weight in base.weights():
        np.testing.assert_array_equal(found.load(name), weight, err_msg=name)
        # And it could be judged as it is.
        for argument, encoding in ((f"{DOWN}.{precision}", precision),):
            np.testing.assert_array_equal(base.load(argument), ENCODINGS[encoding].encode(base.load(DOWN))[0])


# ---- how it is asked for


def test_it_is_written_once(empty_cache: Path) -> None:
    said: list[str] = []
    first = resolve("tiny-llama", said.append, "int4")
    assert resolve("tiny-llama", said.append, "int4") == first
    assert said == ["writing tiny-llama in int4"]
    assert len(entries(empty_cache)) == 2
    assert len({resolve("tiny-llama", precision=p) for p in PRECISIONS}) == len(PRECISIONS)


@pytest.mark.parametrize("precision", INTEGERS)
def test_a_directory_in_this_precision_is_itself(precision: str) -> None:
    derived = resolve("tiny-llama", precision=precision)
    assert resolve(str(derived), precision=precision) == derived
    assert resolve(str(derived)) == derived, "float32 that happens to be on a grid"


@pytest.mark.parametrize(
    ("precision", "other"), [("int8", "int4"), ("int4", "int8"), ("int4", "bf16"), ("int8", "f16")]
)
def test_a_directory_in_another_precision(precision: str, other: str) -> None:
    """Rounded twice it would be a model that nobody named."""
    derived = resolve("tiny-llama", precision=precision)
    with pytest.raises(InputError, match=f"is in {precision} already; name the model that it was made from") as caught:
        resolve(str(derived), precision=other)
    assert str(derived) in str(caught.value)


@pytest.mark.parametrize("precision", ["", "int2", "F32", "fp16"])
def test_no_such_precision(precision: str) -> None:
    with pytest.raises(InputError, match="no such precision; use one of f32, bf16, f16, int8, int4") as caught:
        resolve("tiny-llama", precision=precision)
    assert repr(precision) in str(caught.value)


@pytest.mark.parametrize("precision", INTEGERS)
def test_a_directory_that_is_not_quantized_has_no_layout_of_integers(precision: str) -> None:
    checkpoint = open_checkpoint(resolve("tiny-llama"))
    with pytest.raises(
        InputError, match=re.escape(f"has no {ENCODED}; name the model, and --precision {precision} makes one")
    ):
        checkpoint.layout(precision)


@pytest.mark.parametrize("precision", QUANTIZED)
def test_graphs_of_several_rows_have_groups_in_panels(precision: str) -> None:
    """Where they fit: the same integers in another order, and the file's own encoding elsewhere."""
    checkpoint = open_checkpoint(resolve("tiny-llama", precision=precision))
    one, several = (checkpoint.layout(precision, batch=batch) for batch in (1, 8))
    assert one == checkpoint.layout(precision, panels=False, batch=8) == checkpoint.encoded
    up, shapes = "model.layers.1.mlp.up_proj.weight", matrices(checkpoint.config)
    assert (several[up], several[DOWN], several[EMBEDDING]) == (f"{precision}.panels", precision, "int8")
    for name, encoding in several.items():
        assert encoding.endswith(".panels") == (shapes[name][0] % 16 == 0)
        parts = arguments(checkpoint, name, encoding)
        assert [(p.shape, p.flags.c_contiguous) for p in parts] == [
            (tuple(shape), True) for shape, _ in ENCODINGS[encoding].types(shapes[name])
        ]
        np.testing.assert_array_equal(ENCODINGS[encoding].decode(parts), checkpoint.load(name), err_msg=name)
    other = next(p for p in QUANTIZED if p != precision)
    with pytest.raises(InputError, match=f"weight {re.escape(up)} is not of precision {other}"):
        arguments(checkpoint, up, f"{other}.panels")


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name != "panels"])
def test_an_encoding_that_would_round(encoding: str) -> None:
    checkpoint = open_checkpoint(resolve("tiny-llama"))
    weight = "model.layers.1.self_attn.q_proj.weight"
    precision = encoding.removesuffix(".panels")
    with pytest.raises(InputError, match=f"weight {re.escape(weight)} is not of precision {precision}; name the model"):
        checkpoint.load(ENCODINGS[encoding].arguments(weight)[0])


def test_the_digest_is_of_the_integers_as_well(tmp_path: Path) -> None:
    base = write_tiny(tmp_path / "model")
    derived = resolve(str(base), precision="int4")
    (tmp_path / "floats").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "floats" / name).write_bytes((derived / name).read_bytes())
    assert open_checkpoint(tmp_path / "floats").digest != open_checkpoint(derived).digest


def test_fetch(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["fetch", "tiny-llama", "--precision", "int4"]) == 0
    assert capsys.readouterr().out == f"{resolve('tiny-llama', precision='int4')}\n"


# ---- a model that cannot be written


def spoiled(folder: Path, name: str, value: float) -> Path:
    directory = write_tiny(folder)
    weights = load_file(directory / "model.safetensors")
    weights[name].flat[3] = value
    save_file(weights, directory / "model.safetensors")
    return directory


@pytest.mark.parametrize("name", [DOWN, "model.norm.weight"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
def test_a_model_that_is_not_finite(precision: str, value: float, name: str, tmp_path: Path, empty_cache: Path) -> None:
    base = spoiled(tmp_path / "model", name, value)
    with pytest.raises(InputError, match=f"weight {re.escape(name)} has 1 values that are not finite"):
        resolve(str(base), precision=precision)
    assert entries(empty_cache) == []


@pytest.mark.parametrize(("precision", "value"), [("f16", 1e5), ("bf16", 3.4e38)])
def test_a_weight_beyond_the_range(precision: str, value: float, tmp_path: Path, empty_cache: Path) -> None:
    """An infinity in the derived model would be this command's own doing."""
    base = spoiled(tmp_path / "model", DOWN, value)
    with pytest.raises(InputError, match=re.escape(DOWN)) as caught:
        resolve(str(base), precision=precision)
    assert "\n" not in str(caught.value)
    assert entries(empty_cache) == []


# ---- a second file that is not what was written


def replaced(name: str, array: np.ndarray | None) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        found = {**load_file(path), name: array}
        save_file({n: a for n, a in found.items() if a is not None}, path, metadata={"precision": "int4"})

    return damage


def cut(kept: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:kept])

    return damage


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def unnamed(path: Path) -> None:
    save_file(load_file(path), path)


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "of no precision": (unnamed, "is of precision ''; convert the model again"),
    "empty": (cut(0), "is damaged or cut short"),
    "cut in its header": (cut(200), "is damaged or cut short"),
    "cut by a byte": (cut(-1), "is damaged or cut short"),
    "a folder": (folder_instead, "cannot be read (Is a directory)"),
    "another model's": (replaced("model.layers.9.mlp.up_proj.weight.int8.scale", np.ones((112, 21), np.float32)),
                        "holds model.layers.9.mlp.up_proj.weight.int8.scale, which this model has not"),
    "no matrix": (replaced("model.norm.weight.int8.scale", np.ones(21, np.float32)),
                  "holds model.norm.weight.int8.scale, which this model has not"),
    "a router": (replaced("model.layers.0.mlp.gate.weight.int8.scale", np.ones((5, 21), np.float32)), "has not"),
    "a plain weight": (replaced(DOWN, np.ones((84, 112), np.float32)), f"holds {DOWN}, which this model has not"),
    "narrow floats": (replaced(f"{DOWN}.bf16", np.ones((84, 112), ml_dtypes.bfloat16)), "has not"),
    "two encodings of one": (replaced(f"{DOWN}.int8.low", np.zeros((84, 7, 8), np.int8)), "has not"),
    "a part is missing": (replaced(f"{DOWN}.int4.scale", None), f"{DOWN}.int4.scale is missing, not"),
    "another shape": (replaced(f"{DOWN}.int4.scale", np.ones((84, 14), np.float32)), f"{DOWN}.int4.scale is"),
    "another dtype": (replaced(f"{DOWN}.int4.scale", np.ones((84, 7), np.float16)), f"{DOWN}.int4.scale is"),
    "signed nibbles": (replaced(f"{DOWN}.int4.nibbles", np.zeros((84, 7, 8), np.int8)), f"{DOWN}.int4.nibbles is"),
}  # fmt: skip


@pytest.fixture
def int4(tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    derived, copy = resolve("tiny-llama", precision="int4"), tmp_path / "int4"
    copy.mkdir()
    for path in derived.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_second_file(name: str, int4: Path) -> None:
    damage, words = DAMAGE[name]
    damage(int4 / ENCODED)
    with pytest.raises(InputError) as caught:
        open_checkpoint(int4)
    message = str(caught.value)
    assert message.startswith(f"{int4 / ENCODED}: ")
    assert words in message
    assert "\n" not in message


def test_a_scale_that_is_not_finite(int4: Path) -> None:
    scale = np.ones((84, 7), np.float32)
    scale[5, 2] = np.nan
    replaced(f"{DOWN}.int4.scale", scale)(int4 / ENCODED)
    checkpoint = open_checkpoint(int4)
    with pytest.raises(InputError, match=re.escape(f"{DOWN}.int4.scale is not finite")):
        checkpoint.load(f"{DOWN}.int4.scale")


def test_cut_short_after_it_was_opened(int4: Path) -> None:
    checkpoint = open_checkpoint(int4)
    cut(-1)(int4 / ENCODED)
    with pytest.raises(InputError, match="is damaged or cut short"):
        checkpoint.load(f"{DOWN}.int4.scale")


def test_a_config_for_which_groups_do_not_fit(int4: Path) -> None:
    """The second file of a model whose rows its groups divide."""
    raw = json.loads((int4 / "config.json").read_text())
    write_tiny(int4, intermediate_size=114)
    assert json.loads((int4 / "config.json").read_text()) != raw
    with pytest.raises(InputError, match=re.escape(ENCODED)):
        open_checkpoint(int4)
