"""What each encoding holds, and how the arguments that hold it are called."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloracle.core import abi as core_abi
from hloracle.core.abi import Abi
from hloracle.core.dtypes import numpy_type
from hloracle.core.errors import InputError
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.contract import graph_abi
from hloracle.reference.model.encodings import ENCODINGS, argument_parts, exactly, group_of, of_precision
from hloracle.reference.model.registry import from_hf

DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "i8", "uint8": "ui8"}
# Groups of 32, 4, 16 and 32; odd numbers of rows, one row, more groups than rows; a weight of all experts.
GROUPED = ((5, 96), (3, 84), (7, 112), (1, 32), (2, 320), (3, 5, 16))
PANELS = ((32, 3), (48, 84), (16, 1))
GROUPED_IN_PANELS = ((32, 96), (48, 84), (16, 4), (16, 112))
MATRICES = ((5, 7), (1, 3), (3, 5, 2))


def shapes_of(name: str) -> tuple[tuple[int, ...], ...]:
    if of_precision(name) in ("int8", "int4"):
        return GROUPED_IN_PANELS if name.endswith("panels") else GROUPED
    return PANELS if name.endswith("panels") else MATRICES


SHAPES = {name: shapes_of(name) for name in ENCODINGS}
CASES = [pytest.param(name, shape, id=f"{name}-{shape}") for name, shapes in SHAPES.items() for shape in shapes]
WEIGHT = "model.layers.1.mlp.up_proj.weight"
CONFIG = from_hf(TINY["llama"])


def random(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(0, 0.3, shape).astype(np.float32)


def groups(weight: np.ndarray) -> np.ndarray:
    return weight.reshape(*weight.shape[:-1], -1, group_of(weight.shape[-1]))


def on_grid(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A weight that the encoding holds exactly: every group has its extremes, and steps that are powers of two."""
    rng, step = np.random.default_rng([3, *shape]), 2.0 ** -np.arange(2, 9)
    name = of_precision(name)
    of = (*groups(np.empty(shape)).shape,)
    steps = rng.choice(step, of[:-1])[..., None]
    if name == "int8":
        integers = rng.integers(-127, 128, of)
        integers[..., 1] = 127 * rng.choice([-1, 1], of[:-1])
        return (integers * steps).reshape(shape).astype(np.float32)
    if name == "int4":
        integers = rng.integers(0, 16, of)
        integers[..., 0], integers[..., -1] = 15, 0
        return ((integers + rng.integers(-9, 9, (*of[:-1], 1))) * steps).reshape(shape).astype(np.float32)
    dtype = numpy_type(name) if name != "panels" else np.dtype(np.float32)
    return random(shape).astype(dtype).astype(np.float32)


def round_trip(name: str, weight: np.ndarray) -> np.ndarray:
    encoding = ENCODINGS[name]
    return encoding.decode(encoding.encode(weight))


# ---- what is held


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_a_weight_of_its_precision_is_held_exactly(name: str, shape: tuple[int, ...]) -> None:
    weight = on_grid(name, shape)
    found = round_trip(name, weight)
    assert (found.dtype, found.shape) == (np.float32, shape)
    np.testing.assert_array_equal(found, weight)
    assert len(np.unique(weight)) > 1


@pytest.mark.parametrize("shape", PANELS)
def test_panels_hold_any_float32(shape: tuple[int, ...]) -> None:
    weight = random(shape)
    weight.flat[:3] = -0.0, 1e-45, np.finfo(np.float32).max
    np.testing.assert_array_equal(round_trip("panels", weight).view(np.int32), weight.view(np.int32))


def test_the_rows_of_a_panel_lie_side_by_side() -> None:
    weight = np.arange(32 * 3, dtype=np.float32).reshape(32, 3)
    (panels,) = ENCODINGS["panels"].encode(weight)
    np.testing.assert_array_equal(panels[1, 2], weight[16:, 2])


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_panels_of_groups_hold_the_same_numbers_in_another_order(name: str) -> None:
    """Entry [p, ..., r] of a part is entry [16p + r, ...] of the one that is not in panels."""
    weight = random((48, 84))
    in_rows, in_panels = (ENCODINGS[of].encode(weight) for of in (name, f"{name}.panels"))
    for rows, panels in zip(in_rows, in_panels, strict=True):
        assert panels.shape == (3, *rows.shape[1:], 16)
        for row in (0, 15, 16, 47):
            np.testing.assert_array_equal(panels[row // 16, ..., row % 16], rows[row])
    in_panels[0][1, 2, 1, 5] ^= 1  # another integer is another weight, of that row and column alone
    changed = ENCODINGS[f"{name}.panels"].decode(in_panels) != ENCODINGS[name].decode(in_rows)
    assert np.argwhere(changed).tolist() == [[16 + 5, 2 * 4 + 1]]


@pytest.mark.parametrize(("columns", "group"), [(32, 32), (96, 32), (84, 4), (112, 16), (40, 8), (6, 2), (7, 1)])
def test_group_of(columns: int, group: int) -> None:
    assert group_of(columns) == group


@pytest.mark.parametrize("value", [0.0, 0.3, -0.7], ids=["zeros", "positive", "negative"])
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_groups_of_equal_numbers(name: str, value: float) -> None:
    """No scale is no division by zero; the groups beside them keep theirs."""
    weight = on_grid(name, (3, 64))
    weight[1, 32:] = value
    with np.errstate(all="raise"):
        found = round_trip(name, weight)
    # 127 times a number's 127th part is rounded twice.
    np.testing.assert_allclose(found[1, 32:], np.float32(value), rtol=2**-23 if name == "int8" else 0, atol=0)
    found[1, 32:] = weight[1, 32:]
    np.testing.assert_array_equal(found, weight)


@pytest.mark.parametrize("shape", GROUPED)
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_integers_are_off_by_half_a_step_at_most(name: str, shape: tuple[int, ...]) -> None:
    weight = random(shape)
    within = groups(weight)
    step = np.abs(within).max(-1) / 127 if name == "int8" else (within.max(-1) - within.min(-1)) / 15
    error = np.abs(groups(round_trip(name, weight)) - within).max(-1)
    rounding = 2**-23 * np.abs(within).max(-1)
    assert (error <= step / 2 + rounding).all()
    assert error.max() > step.max() / 8, "it is rounded at all"


def test_the_halves_of_a_group() -> None:
    """As in GGUF's blocks: the first half of a group in the low nibbles, or in the first of two arrays."""
    weight = np.arange(16, dtype=np.float32).reshape(1, 16)
    nibbles, scale, minimum = ENCODINGS["int4"].encode(weight)
    np.testing.assert_array_equal(nibbles[0, 0], [i | (i + 8) << 4 for i in range(8)])
    assert (scale.item(), minimum.item()) == (1, 0)
    low, high, scale = ENCODINGS["int8"].encode(weight * 127 / 15)
    np.testing.assert_array_equal(low[0, 0], np.rint(weight[0, :8] * 127 / 15))
    np.testing.assert_array_equal(high[0, 0], np.rint(weight[0, 8:] * 127 / 15))


# ---- the arguments


def test_encodings_are_the_abis() -> None:
    parts = [t.encoding for e in ENCODINGS.values() for t in e.tensors(WEIGHT, SHAPES[e.name][0])]
    assert sorted(["plain", *parts]) == sorted(core_abi.ENCODINGS)
    assert len(set(parts)) == len(parts)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_tensors_are_what_encode_gives(name: str, shape: tuple[int, ...]) -> None:
    encoding = ENCODINGS[name]
    tensors, parts = encoding.tensors(WEIGHT, shape), encoding.encode(random(shape))
    assert [(t.shape, t.dtype) for t in tensors] == [(p.shape, DTYPES[p.dtype.name]) for p in parts]
    assert [t.name for t in tensors] == encoding.arguments(WEIGHT) == [f"{WEIGHT}.{t.encoding}" for t in tensors]
    assert {(t.role, t.weight, t.aliases) for t in tensors} == {("weight", WEIGHT, None)}
    assert sum(t.nbytes for t in tensors) == sum(p.nbytes for p in parts)
    assert all(p.flags.c_contiguous for p in parts)


@pytest.mark.parametrize("weight", [WEIGHT, "lm_head.weight", "model.layers.0.mlp.experts.gate_up_proj", "bf16"])
def test_argument_parts(weight: str) -> None:
    assert argument_parts(weight) == (weight, "", 0)
    for name, encoding in ENCODINGS.items():
        for i, argument in enumerate(encoding.arguments(weight)):
            assert argument_parts(argument) == (weight, name, i)


@pytest.mark.parametrize(
    ("name", "fitting", "others"),
    [
        ("panels", [(16, 1), (32, 7)], [(16,), (15, 16), (24, 3), (2, 16, 4)]),
        ("bf16.panels", [(16, 1)], [(8, 32), (16, 16, 16)]),
        ("f16", [(1, 1), (3, 5, 7)], [(16,)]),
        ("int8", [(1, 4), (3, 84), (2, 3, 32)], [(32,), (32, 2), (32, 7), (4, 4, 6)]),
        ("int4", [(1, 4), (3, 84), (2, 3, 32)], [(32,), (32, 2), (32, 7), (4, 4, 6)]),
        ("int8.panels", [(16, 4), (48, 84)], [(16,), (15, 32), (24, 32), (16, 2), (2, 16, 32)]),
        ("int4.panels", [(16, 4), (48, 84)], [(16,), (15, 32), (24, 32), (16, 2), (2, 16, 32)]),
    ],
)
def test_fits(name: str, fitting: list[tuple[int, ...]], others: list[tuple[int, ...]]) -> None:
    fits = ENCODINGS[name].fits
    assert [fits(shape) for shape in (*fitting, *others)] == [True] * len(fitting) + [False] * len(others)
    for shape in fitting:
        assert round_trip(name, random(shape)).shape == shape


# ---- exactly


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_exactly_is_encode(name: str, shape: tuple[int, ...]) -> None:
    weight = on_grid(name, shape)
    for found, expected in zip(
        exactly(ENCODINGS[name], weight, WEIGHT, "here"), ENCODINGS[name].encode(weight), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name != "panels"])
@pytest.mark.parametrize("value", [1 + 2.0**-20, 1e30, 1e-30], ids=["fine", "large", "small"])
def test_exactly_refuses_what_would_be_rounded(name: str, value: float) -> None:
    """One number of a weight that is otherwise of that precision: too fine, beyond float16's range, or below it."""
    weight = on_grid(name, SHAPES[name][0])
    weight.flat[-1] = value
    with pytest.raises(InputError) as caught:
        exactly(ENCODINGS[name], weight, WEIGHT, "here")
    precision = name.removesuffix(".panels")
    assert str(caught.value).startswith(f"here: weight {WEIGHT} is not of precision {precision}; ")


def test_a_float_that_bfloat16_has_and_float16_has_not() -> None:
    weight = np.full((1, 3), 2.0**100, np.float32)
    assert exactly(ENCODINGS["bf16"], weight, WEIGHT, "here")[0].dtype == ml_dtypes.bfloat16
    with pytest.raises(InputError, match="is not of precision f16"):
        exactly(ENCODINGS["f16"], weight, WEIGHT, "here")


# ---- in an ABI's file


def layout_of(name: str) -> dict[str, str]:
    """One weight that the encoding fits."""
    return {"model.layers.1.self_attn.q_proj.weight": name}


@pytest.mark.parametrize("name", ENCODINGS)
def test_abi_file(name: str, tmp_path: Path) -> None:
    plain, found = (graph_abi(CONFIG, "decode", "logits", 64, 0, layout) for layout in ({}, layout_of(name)))
    found.validate()
    assert len(found.weights) == len(plain.weights) + len(ENCODINGS[name].parts) - 1
    assert list(dict.fromkeys(w.weight for w in found.weights)) == [w.name for w in plain.weights]
    assert found.arguments[-4:] == plain.arguments[-4:]
    (tmp_path / "x.abi.json").write_text(found.to_json())
    assert Abi.from_file(tmp_path / "x.abi.json") == found


REFUSED: list[tuple[str, Callable[[dict[str, Any]], Any], str]] = [
    ("another name", lambda a: a.update(name="w"), "is 'int8.low', and its name is 'w'"),
    ("another part", lambda a: a.update(encoding="int8.high"), "is 'int8.high', and its name is 'model"),
    ("run together", lambda a: a.update(name="wint8.low"), "is 'int8.low', and its name is 'wint8.low'"),
    ("half an encoding", lambda a: a.update(encoding="int8"), "is 'int8', not one of plain, panels"),
    ("no encoding", lambda a: a.update(encoding="int2.low"), "is 'int2.low', not one of plain, panels"),
    ("not a string", lambda a: a.update(encoding=["int8.low"]), "is a list, not one of plain, panels"),
    ("not a weight", lambda a: a.update(role="token", name="token"), "is 'int8.low', and it is no weight"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_abi_file_is_refused(change: Callable[[dict[str, Any]], Any], words: str, tmp_path: Path) -> None:
    abi = graph_abi(CONFIG, "decode", "logits", 64, 0, layout_of("int8"))
    raw = json.loads(abi.to_json())
    (entry,) = (a for a in raw["arguments"] if a.get("encoding") == "int8.low")
    change(entry)
    path = tmp_path / "x.abi.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(InputError) as caught:
        Abi.from_file(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert f".encoding {words}" in message
    assert "\n" not in message


def test_a_result_that_is_encoded(tmp_path: Path) -> None:
    raw = json.loads(graph_abi(CONFIG, "decode", "logits", 64).to_json())
    raw["results"][0] |= {"encoding": "bf16"}
    (tmp_path / "x.abi.json").write_text(json.dumps(raw))
    with pytest.raises(InputError, match="encoding is 'bf16', and it is no weight"):
        Abi.from_file(tmp_path / "x.abi.json")


def test_the_weight_of_an_argument() -> None:
    (tensor,) = ENCODINGS["bf16.panels"].tensors(WEIGHT, (16, 3))
    assert tensor.weight == WEIGHT
    assert dataclasses.replace(tensor, encoding="plain").weight == f"{WEIGHT}.bf16.panels"
