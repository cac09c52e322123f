"""The suite of single operations: what is in it, that it is always the same, and that a wrong result is noticed."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from jaxlib.mlir import ir

from hloracle.core.errors import InputError
from hloracle.ops.case import Case, Expected
from hloracle.ops.descriptions import DESCRIPTIONS
from hloracle.ops.judge import distance, judge
from hloracle.ops.of_graph import cases_of
from hloracle.ops.suite import case_of, cases, context, operations
from hloracle.semantics.numbers import held, own_type, rounded

GOLDENS = Path(__file__).parent / "goldens"
BF16 = ml_dtypes.bfloat16


@dataclass(frozen=True)
class Looked:
    """What the tests keep of a case: all of them together would take gigabytes."""

    id: str
    operation: str
    digest: str
    parses: bool
    sentence: bool
    types: frozenset[str]
    judges: bool


def digest(case: Case) -> str:
    """Of all that a case is made of."""
    arrays = [*case.inputs]
    for e in case.expected:
        arrays += [e.value, *(a for a in (e.open, e.absolute) if a is not None)]
    parts = [
        case.id,
        case.text,
        case.tests,
        case.reason,
        *(str(e.ulp) + e.dtype + str(e.signed) for e in case.expected),
    ]
    whole = hashlib.sha256("\0".join(parts).encode())
    for array in arrays:
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()


def looked_at(case: Case) -> Looked:
    with context():
        parses = bool(ir.Module.parse(case.text).operation.verify())
    judged = [e.ulp is not None and (not e.value.size or e.open is None or not e.open.all()) for e in case.expected]
    types = frozenset(e.dtype for e in case.expected)
    return Looked(case.id, case.operation, digest(case), parses, bool(case.tests and case.reason), types, any(judged))


@pytest.fixture(scope="module")
def suite() -> list[Looked]:
    return [looked_at(case) for case in cases()]


@pytest.fixture(scope="module")
def sample() -> list[Case]:
    """Every 29th case."""
    forms = [(description, form) for description in DESCRIPTIONS for form in description.forms()]
    return [case_of(description, form) for description, form in forms[::29]]


def one(id: str) -> Case:
    (found,) = (case for case in cases([id]) if case.id == id)
    return found


def nearest(case: Case) -> list[np.ndarray]:
    """What a perfect backend gives."""
    return [rounded(e.value, e.dtype).astype(own_type(e.dtype)) for e in case.expected]


# ---- the suite


def test_a_case_that_compares_nothing_does_not_pass() -> None:
    case = Case(
        "none", "stablehlo.add", "", (), (Expected(np.zeros(3), None), Expected(np.zeros(3), open=np.ones(3, bool)))
    )
    found = judge(case, [np.zeros(3, np.float32), np.zeros(3, np.float32)])
    assert (found.status, found.detail) == ("wrong", "the case compares nothing")


def test_how_many_there_are(suite: list[Looked]) -> None:
    assert len(operations()) >= 100
    assert len(suite) >= 6000
    assert {case.operation for case in suite} == {*operations()}
    assert min(Counter(case.operation for case in suite).values()) >= 5


def test_identifiers_are_unique(suite: list[Looked]) -> None:
    twice = [id for id, count in Counter(case.id for case in suite).items() if count > 1]
    assert not twice


def test_every_module_parses_and_verifies(suite: list[Looked]) -> None:
    """As it is printed: what a backend reads is the printed text."""
    assert not [case.id for case in suite if not case.parses]


def test_every_case_says_what_it_is_about(suite: list[Looked]) -> None:
    assert not [case.id for case in suite if not case.sentence]
    assert all(d.says and d.bound.reason for d in DESCRIPTIONS)


def test_every_case_judges_something(suite: list[Looked]) -> None:
    """A case whose every element is open shows nothing but that the backend lives: a few of single elements are so."""
    assert not [case.id for case in suite if not case.judges]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64", "i1", "i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64", "f8E4M3FN", "f8E5M2", "i4"])  # fmt: skip
def test_every_type_occurs(suite: list[Looked], dtype: str) -> None:
    assert sum(dtype in case.types for case in suite) >= 20


def test_it_is_always_the_same(suite: list[Looked]) -> None:
    """A case is the same whether or not the others are made before it."""
    known = {case.id: case.digest for case in suite}
    for name in ("add", "scatter", "chlo.erf/f32", "sort/f32/special", "while"):
        again = list(cases([name]))
        assert again
        assert all(digest(case) == known[case.id] for case in again)


def test_names_choose() -> None:
    assert {c.operation for c in cases(["stablehlo.add"])} == {"stablehlo.add"}
    assert [c.id for c in cases(["add/f32/scores"])] == ["add/f32/scores"]
    assert {c.id.split("/")[1] for c in cases(["add/bf16"])} == {"bf16"}
    assert not list(cases(["ad"]))


def test_perfect_results_are_exact(sample: list[Case]) -> None:
    for case in sample:
        assert judge(case, nearest(case)).status == "exact", case.id


def test_a_planted_result_is_noticed(sample: list[Case]) -> None:
    """In any case of floats, a judged element that is far off; of integers, one that is another."""
    planted = 0
    for case in sample:
        for place, expected in enumerate(case.expected):
            where = np.ones(expected.value.shape, bool) if expected.open is None else ~expected.open
            if expected.value.dtype == np.float64:
                where = where & np.isfinite(expected.value) & (np.abs(expected.value) < 100)
            if not where.any():
                continue
            at = tuple(np.argwhere(where)[-1])
            results = nearest(case)
            wrong = results[place].copy()
            value = expected.value[at]
            wrong[at] = (
                not value if wrong.dtype == bool else value + 400 if value.dtype == np.float64 else int(value) ^ 1
            )
            results[place] = wrong
            assert judge(case, results).status == "wrong", case.id
            planted += 1
    assert planted > 200


def test_what_overflows_is_open() -> None:
    case = one("add/i8/special")
    lhs, rhs = (a.astype(int) for a in case.inputs)
    (expected,) = case.expected
    assert expected.open is not None
    np.testing.assert_array_equal(expected.open, (lhs + rhs > 127) | (lhs + rhs < -128))


@pytest.mark.parametrize(
    ("id", "open"),
    [
        ("divide/i32/special", lambda a, b: (b == 0) | ((a == -(2**31)) & (b == -1))),
        ("shift_left/ui8/special", lambda a, b: b >= 8),
        ("convert/f32-i8/special", lambda a: ~((np.trunc(a) >= -128) & (np.trunc(a) <= 127))),
    ],
)
def test_what_the_specification_leaves_open(id: str, open: Callable[..., np.ndarray]) -> None:
    case = one(id)
    (expected,) = case.expected
    assert expected.open is not None
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(expected.open, open(*(np.asarray(a).astype(np.float64) for a in case.inputs)))


def test_a_subnormal_result_may_be_zero() -> None:
    """Processors flush them; but half of the smallest normal number may not become another normal number."""
    case = one("multiply/f32/special")
    least = float(np.finfo(np.float32).smallest_normal)
    results = nearest(case)
    small = np.abs(results[0]) < least
    flushed = np.where(small, np.float32(0), results[0])
    assert judge(case, [flushed]).status in ("exact", "within")
    (at,) = np.argwhere(small & (results[0] != 0) & (case.expected[0].open is None or ~case.expected[0].open))[0]
    results[0][at] = 3 * least
    assert judge(case, results).status == "wrong"


# ---- the judge


def judged(value: list[float], result: np.ndarray, **how: object) -> tuple[str, float]:
    expected = dataclasses.replace(Expected(np.array(value)), **how)
    found = judge(Case("c", "o", "", (), (expected,)), [result])
    return found.status, found.ulp


@pytest.mark.parametrize(
    ("value", "result", "how", "expected"),
    [
        ([1.0], np.float32([1.0]), {}, ("exact", 0.0)),
        ([1.0], np.float32([1 + 2**-23]), {}, ("wrong", 1.0)),
        ([1.0], np.float32([1 + 2**-23]), {"ulp": 1.0}, ("within", 1.0)),
        ([1.0], np.array([1.0078125], BF16), {"ulp": 1.0}, ("within", 1.0)),
        ([1.0], np.float16([1.0 + 3 * 2**-10]), {"ulp": 2.0}, ("wrong", 3.0)),
        ([1 + 2**-24], np.float32([1.0]), {"ulp": 0.5}, ("exact", 0.5)),
        ([np.nan], np.float32([np.nan]), {}, ("exact", 0.0)),
        ([np.nan], np.float32([1.0]), {"ulp": 1e9}, ("wrong", np.inf)),
        ([1.0], np.float32([np.nan]), {"ulp": 1e9}, ("wrong", np.inf)),
        ([np.inf], np.float32([np.inf]), {}, ("exact", 0.0)),
        ([np.inf], np.float32([-np.inf]), {"ulp": 1e9}, ("wrong", np.inf)),
        ([np.inf], np.float32([3e38]), {"ulp": 1e9}, ("wrong", np.inf)),
        ([1e39], np.float32([np.inf]), {}, ("exact", 0.0)),
        ([0.0], np.float32([-0.0]), {}, ("exact", 0.0)),
        ([0.0], np.float32([-0.0]), {"signed": True}, ("wrong", np.inf)),
        ([1.0, 2.0], np.float32([9.0, 2.0]), {"open": np.array([True, False])}, ("exact", 0.0)),
        ([0.0], np.float32([1e-6]), {"absolute": np.array([1e-5])}, ("within", 1e-6 * 2**149)),
        ([2.0**-149], np.float32([2.0**-148]), {"ulp": 1.0}, ("within", 1.0)),
        ([1.0], np.float64([1.0]), {"dtype": "f32"}, ("wrong", np.inf)),
        ([1.0], np.float32([[1.0]]), {}, ("wrong", np.inf)),
        ([1.0], np.float32([9.0]), {"ulp": None}, ("wrong", np.inf)),
    ],
)  # fmt: skip
def test_judged(value: list[float], result: np.ndarray, how: dict[str, object], expected: tuple[str, float]) -> None:
    status, ulp = judged(value, result, **how)
    assert status == expected[0]
    assert ulp == pytest.approx(expected[1], rel=1e-6)


def test_a_number_of_results() -> None:
    case = Case("c", "o", "", (), (Expected(np.zeros(2)),))
    assert judge(case, []).detail == "0 results instead of 1"


def test_integers_are_exact() -> None:
    case = Case("c", "o", "", (), (Expected(np.array([[1, 2], [3, 4]]), dtype="i64"),))
    assert judge(case, [np.array([[1, 2], [3, 4]])]).status == "exact"
    found = judge(case, [np.array([[1, 2], [9, 4]])])
    assert (found.status, found.ulp) == ("wrong", 6.0)
    assert found.detail == "result 0[1, 0] is 9 instead of 3; 1 of 4 elements are wrong"


def test_what_was_found_where() -> None:
    case = Case("c", "o", "", (), (Expected(np.array([[1.0, 2.0]]), 1.0, dtype="f32"),))
    found = judge(case, [np.float32([[1.0, 2.5]])])
    assert found.detail.startswith("result 0[0, 1] is 2.5 instead of 2.0, 2.097e+06 ULP off at most; 1 of 2")
    assert found.share > 1


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64", "f8E5M2", "f8E4M3FN"])
def test_the_next_number_is_one_ulp_away(dtype: str) -> None:
    """Of either side of a power of two, where the ULP of the expected value counts."""
    own = own_type(dtype)
    values = np.array([1.0, 1.5, 0.25, -3.0, 28.0], own)
    up = np.nextafter(values, np.array(np.inf if dtype != "f8E4M3FN" else 448, own))
    off = distance(held(values, dtype), up)
    np.testing.assert_array_equal(off[:3], 1.0)
    assert off[3] in (0.5, 1.0)


# ---- a graph's own operations


@pytest.fixture(scope="module")
def llama() -> str:
    return (GOLDENS / "llama-decode.mlir").read_text()


def test_operations_of_a_graph(llama: str) -> None:
    found = cases_of(llama)
    assert not found.skipped
    names = Counter(case.operation for case in found.cases)
    assert names["stablehlo.dot_general"] > 3
    assert {"stablehlo.reduce", "stablehlo.rsqrt", "stablehlo.dynamic_update_slice"} <= {*names}
    assert len({case.text for case in found.cases}) == len(found.cases)
    assert len({case.id for case in found.cases}) == len(found.cases)
    for case in found.cases:
        assert judge(case, nearest(case)).status == "exact"


def test_they_are_the_same_each_time(llama: str) -> None:
    first, second = (cases_of(llama).cases for _ in range(2))
    assert [digest(c) for c in first] == [digest(c) for c in second]


def test_what_values_really_held() -> None:
    text = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { %0 = stablehlo.negate %x : tensor<2xf32> return %0 : tensor<2xf32> }"
    real = np.float32([3.0, -4.0])
    (case,) = cases_of(text, held=lambda number: real if number == 0 else None).cases
    np.testing.assert_array_equal(case.inputs[0], real)
    np.testing.assert_array_equal(case.expected[0].value, -real)


def test_regions_of_loops_and_functions() -> None:
    """What is in a loop's body or in a called function is tried as well; the loop itself is what its regions are."""
    text = """
      func.func @main(%x: tensor<3xf32>, %n: tensor<i32>) -> tensor<3xf32> {
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %w:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<3xf32>
          cond { %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1> stablehlo.return %c : tensor<i1> }
          do {
            %one = stablehlo.constant dense<1> : tensor<i32>
            %j = stablehlo.add %i, %one : tensor<i32>
            %z = func.call @inner(%y) : (tensor<3xf32>) -> tensor<3xf32>
            stablehlo.return %j, %z : tensor<i32>, tensor<3xf32>
          }
        return %w#1 : tensor<3xf32>
      }
      func.func private @inner(%x: tensor<3xf32>) -> tensor<3xf32> {
        %0 = stablehlo.sine %x : tensor<3xf32>
        return %0 : tensor<3xf32>
      }"""
    found = cases_of(text)
    assert sorted(c.operation for c in found.cases) == ["stablehlo.add", "stablehlo.compare", "stablehlo.sine"]
    (add,) = (c for c in found.cases if c.operation == "stablehlo.add")
    assert "dense<1>" in add.text  # a constant stays one
    assert len(add.inputs) == 1


def test_indices_are_inside() -> None:
    text = (GOLDENS / "llama-prefill.mlir").read_text()
    for case in cases_of(text).cases:
        if case.operation == "stablehlo.gather":
            table, indices = case.inputs
            assert ((indices >= 0) & (indices < table.shape[0])).all()


def test_a_sum_by_way_of_another_type_is_a_sum() -> None:
    """As PyTorch exports sums in 16 bits: its steps round, though it is none of the known reductions."""
    text = """func.func @main(%x: tensor<48xbf16>) -> tensor<bf16> {
      %zero = stablehlo.constant dense<0.0> : tensor<bf16>
      %0 = "stablehlo.reduce"(%x, %zero) ({
      ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
        %c = stablehlo.convert %a : (tensor<bf16>) -> tensor<f32>
        %d = stablehlo.convert %b : (tensor<bf16>) -> tensor<f32>
        %e = stablehlo.add %c, %d : tensor<f32>
        %f = stablehlo.convert %e : (tensor<f32>) -> tensor<bf16>
        stablehlo.return %f : tensor<bf16>
      }) {dimensions = array<i64: 0>} : (tensor<48xbf16>, tensor<bf16>) -> tensor<bf16>
      return %0 : tensor<bf16>
    }"""
    (case,) = cases_of(text).cases
    exact = np.sum(case.inputs[0].astype(np.float64))
    assert judge(case, [np.asarray(exact, BF16)]).status in ("exact", "within")
    assert judge(case, [np.asarray(exact + 30, BF16)]).status == "wrong"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("func.func @main(%x: tensor<2xcomplex<f32>>) -> tensor<2xf32> { %0 = stablehlo.real %x : (tensor<2xcomplex<f32>>) -> tensor<2xf32> return %0 : tensor<2xf32> }", "real numbers"),
        ("func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> { %0 = stablehlo.negate %x : tensor<?xf32> return %0 : tensor<?xf32> }", "static shape"),
        ("func.func @main(%x: tensor<1xi32>) -> tensor<3xf32> { %0 = stablehlo.dynamic_iota %x, dim = 0 : (tensor<1xi32>) -> tensor<3xf32> return %0 : tensor<3xf32> }", "no constant"),
    ],
)  # fmt: skip
def test_why_an_operation_is_skipped(text: str, why: str) -> None:
    found = cases_of(text)
    assert not found.cases
    (said,) = found.skipped.values()
    assert why in said


def test_what_has_no_case() -> None:
    text = """func.func @main(%x: tensor<4xf32>) -> tensor<3xcomplex<f32>> {
      %0 = stablehlo.fft %x, type = RFFT, length = [4] : (tensor<4xf32>) -> tensor<3xcomplex<f32>>
      return %0 : tensor<3xcomplex<f32>>
    }"""
    found = cases_of(text)
    assert not found.cases
    assert found.skipped == {"stablehlo.fft": "it has no meaning here"}
    with pytest.raises(InputError, match="does not parse"):
        cases_of("nothing")
