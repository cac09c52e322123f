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
from hloracle.ops.suite import case_of, cases, context, forms, operations
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
    return [case_of(*form) for _, *form in [*forms()][::29]]


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


def of_one(arguments: str, body: str, result: str) -> Case:
    """The case of the only operation of a graph."""
    (case,) = cases_of(f"func.func @main({arguments}) -> {result} {{\n{body}\nreturn %r : {result}\n}}").cases
    return case


def reduced(dtype: str, count: int, computation: str, first: str) -> tuple[str, str, str]:
    """A reduction of so many elements."""
    lines = f"""%i = stablehlo.constant dense<{first}> : tensor<{dtype}>
      %r = stablehlo.reduce(%x init: %i) applies stablehlo.{computation} across dimensions = [1]
        : (tensor<7x{count}x{dtype}>, tensor<{dtype}>) -> tensor<7x{dtype}>"""
    return f"%x: tensor<7x{count}x{dtype}>", lines, f"tensor<7x{dtype}>"


def dot(lhs: str, rhs: str, result: str) -> tuple[str, str, str]:
    line = f"%r = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({lhs}, {rhs}) -> {result}"
    return f"%a: {lhs}, %b: {rhs}", line, result


def scattered(dtype: str, updates: int, body: str) -> tuple[str, str, str]:
    table, rows = f"tensor<9x4x{dtype}>", f"tensor<{updates}x4x{dtype}>"
    line = f"""%r = "stablehlo.scatter"(%x, %i, %u) ({{
      ^bb0(%a: tensor<{dtype}>, %b: tensor<{dtype}>):
        {body}
      }}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
        scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false, indices_are_sorted = false}}
      : ({table}, tensor<{updates}x1xi32>, {rows}) -> {table}"""
    return f"%x: {table}, %i: tensor<{updates}x1xi32>, %u: {rows}", line, table


CONVOLVED = """%r = stablehlo.convolution(%a, %w) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {}
  {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
  : (tensor<1x6x8xbf16>, tensor<64x6x3xbf16>) -> tensor<1x64x6xbf16>"""
RUNNING = """%i = stablehlo.constant dense<0.0> : tensor<bf16>
  %r = "stablehlo.reduce_window"(%x, %i) ({
  ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
    %c = stablehlo.add %a, %b : tensor<bf16>
    stablehlo.return %c : tensor<bf16>
  }) {window_dimensions = array<i64: 1, 300>, padding = dense<[[0, 0], [299, 0]]> : tensor<2x2xi64>}
  : (tensor<2x300xbf16>, tensor<bf16>) -> tensor<2x300xbf16>"""
ADDED = "%c = stablehlo.add %a, %b : tensor<bf16>\n stablehlo.return %c : tensor<bf16>"


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(dot("tensor<4x256xbf16>", "tensor<256x16xbf16>", "tensor<4x16xbf16>"), id="dot-bf16"),
        pytest.param(dot("tensor<4x4096xbf16>", "tensor<4096x16xbf16>", "tensor<4x16xbf16>"), id="dot-bf16-4096"),
        pytest.param(dot("tensor<4x2048xf16>", "tensor<2048x16xf16>", "tensor<4x16xf16>"), id="dot-f16"),
        pytest.param(dot("tensor<4x2048xf32>", "tensor<2048x16xf32>", "tensor<4x16xf32>"), id="dot-f32"),
        pytest.param(reduced("bf16", 2048, "add", "0.0"), id="reduce-add-bf16"),
        pytest.param(reduced("f32", 48, "add", "-1.0"), id="reduce-add-f32"),
        pytest.param(reduced("bf16", 40, "multiply", "1.0"), id="reduce-multiply-bf16"),
        pytest.param(reduced("f16", 300, "maximum", "0xFC00"), id="reduce-maximum-f16"),
        pytest.param(("%x: tensor<2x300xbf16>", RUNNING, "tensor<2x300xbf16>"), id="reduce_window-bf16"),
        pytest.param(
            ("%a: tensor<1x6x8xbf16>, %w: tensor<64x6x3xbf16>", CONVOLVED, "tensor<1x64x6xbf16>"), id="convolution-bf16"
        ),
        pytest.param(scattered("bf16", 200, ADDED), id="scatter-add-bf16"),
    ],
)
def test_zeros_and_negated_results_of_a_graphs_operation_are_wrong(graph: tuple[str, str, str]) -> None:
    case = of_one(*graph)
    (expected,) = case.expected
    assert judge(case, nearest(case)).status == "exact"
    assert judge(case, [np.zeros(expected.value.shape, own_type(expected.dtype))]).status == "wrong"
    assert judge(case, [-nearest(case)[0]]).status == "wrong"


def test_a_sum_may_be_rounded_to_bf16_after_each_term() -> None:
    case = of_one(*reduced("bf16", 1024, "add", "0.0"))
    added = np.zeros(7, BF16)
    for terms in case.inputs[0].T:
        added = added + terms
    assert judge(case, [added]).status == "within"


def test_the_terms_of_a_convolution_are_those_of_one_output_feature() -> None:
    case = of_one("%a: tensor<1x6x8xbf16>, %w: tensor<64x6x3xbf16>", CONVOLVED, "tensor<1x64x6xbf16>")
    sizes = 18 * np.abs(case.inputs[0]).astype(float).max() * np.abs(case.inputs[1]).astype(float).max()
    assert (case.expected[0].absolute < sizes * 18 * 2**-8 / (1 - 18 * 2**-8)).all()


def test_what_no_bound_judges_is_skipped_with_the_reason() -> None:
    arguments, body, result = reduced("bf16", 300, "multiply", "1.0")
    found = cases_of(f"func.func @main({arguments}) -> {result} {{\n{body}\nreturn %r : {result}\n}}")
    assert not found.cases
    assert "off by as much as it is" in found.skipped["stablehlo.reduce"]


def test_the_bound_of_a_sum_takes_no_sign_of_a_constant() -> None:
    ones = "[1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0]"
    body = f"""%w = stablehlo.constant dense<{ones}> : tensor<8xf32>
      %r = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST]
        : (tensor<4x8xf32>, tensor<8xf32>) -> tensor<4xf32>"""
    (expected,) = of_one("%a: tensor<4x8xf32>", body, "tensor<4xf32>").expected
    (begun,) = of_one(*reduced("f32", 48, "add", "-1.0")).expected
    for one in (expected, begun):
        assert one.absolute is not None
        assert (one.absolute > 0).all()


def test_an_unstable_sort_may_put_equal_keys_in_any_order() -> None:
    text = """func.func @main(%a: tensor<1024xbf16>, %i: tensor<1024xi32>) -> (tensor<1024xbf16>, tensor<1024xi32>) {
      %0:2 = "stablehlo.sort"(%a, %i) ({
        ^bb0(%x: tensor<bf16>, %y: tensor<bf16>, %p: tensor<i32>, %q: tensor<i32>):
          %c = stablehlo.compare GT, %x, %y, FLOAT : (tensor<bf16>, tensor<bf16>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
      }) {dimension = 0 : i64, is_stable = STABLE} : (tensor<1024xbf16>, tensor<1024xi32>) -> (tensor<1024xbf16>, tensor<1024xi32>)
      return %0#0, %0#1 : tensor<1024xbf16>, tensor<1024xi32>
    }"""
    (case,) = cases_of(text.replace("STABLE", "false")).cases
    keys, places = (a.astype(float) for a in case.inputs)
    turned = np.lexsort((-np.arange(1024), -keys))  # equal keys in the reverse order
    results = [case.inputs[0][turned], case.inputs[1][turned]]
    assert (case.expected[1].value != places[turned]).any()
    assert judge(case, results).status == "exact"
    assert judge(case, [results[0][::-1], results[1]]).status == "wrong"
    (stable,) = cases_of(text.replace("STABLE", "true")).cases
    assert judge(stable, results).status == "wrong"


def test_a_scatter_may_put_several_updates_in_any_order() -> None:
    put = of_one(*scattered("f32", 16, "stablehlo.return %b : tensor<f32>"))
    _, indices, _ = put.inputs
    rows, counts = np.unique(indices, return_counts=True)
    (expected,) = put.expected
    assert expected.open is not None
    np.testing.assert_array_equal(expected.open[:, 0], np.isin(np.arange(9), rows[counts > 1]))
    added = of_one(*scattered("f32", 16, ADDED.replace("bf16", "f32")))
    assert added.expected[0].open is None


@pytest.mark.parametrize(
    ("operation", "operands", "open"),
    [
        ("abs", 1, lambda a: a == -8),
        ("add", 2, lambda a, b: (a + b > 7) | (a + b < -8)),
        ("divide", 2, lambda a, b: (b == 0) | ((a == -8) & (b == -1))),
        ("shift_left", 2, lambda a, b: (b < 0) | (b >= 4)),
    ],
)
def test_what_is_open_of_integers_of_four_bits(operation: str, operands: int, open: Callable[..., np.ndarray]) -> None:
    type = "tensor<64xi4>"
    names = ["%a", "%b"][:operands]
    values = [np.repeat(np.arange(-8, 8), 4), np.tile(np.arange(-8, 8), 4)]
    text = f"""func.func @main({", ".join(f"{n}: {type}" for n in names)}) -> {type} {{
      %r = stablehlo.{operation} {", ".join(names)} : {type}
      return %r : {type}
    }}"""
    (case,) = cases_of(text, held=lambda number: values[number].astype(ml_dtypes.int4)).cases
    (expected,) = case.expected
    assert expected.open is not None
    np.testing.assert_array_equal(expected.open, open(*values[:operands]))


def test_one_operation_that_cannot_be_read_stops_no_other() -> None:
    found = cases_of("""func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
      %c = stablehlo.constant dense<[(1.0, -2.0), (0.5, 4.0)]> : tensor<2xcomplex<f32>>
      %r = stablehlo.real %c : (tensor<2xcomplex<f32>>) -> tensor<2xf32>
      %0 = stablehlo.add %a, %r : tensor<2xf32>
      return %0 : tensor<2xf32>
    }""")
    assert [case.operation for case in found.cases] == ["stablehlo.add"]
    assert "stablehlo.real" in found.skipped
