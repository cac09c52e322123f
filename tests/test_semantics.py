"""What operations mean, compared with StableHLO's interpreter and with XLA, and where neither can say so, with the specification."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import ml_dtypes
import numpy as np
import pytest
from graphs import run as run_on_xla

from hloracle.backends.words import interpreter
from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.bindings import names_read
from hloracle.core.errors import InputError
from hloracle.ops.case import Case
from hloracle.ops.descriptions import DESCRIPTIONS
from hloracle.ops.judge import judge
from hloracle.ops.suite import case_of, cases, operations
from hloracle.semantics.evaluate import evaluated
from hloracle.semantics.numbers import Unsupported, own_type, rounded
from hloracle.semantics.operations import OPERATIONS
from hloracle.semantics.reading import read

NAN, INF = float("nan"), float("inf")
# What the interpreter lacks or ends the process at: operations, types, and one product of no terms.
LACKS = (
    "real_dynamic_slice",
    "batch_norm_inference",
    "dot",
    "f8E4M3FN",
    "f8E5M2",
    "i4",
    "ui4",
    "no-terms",
    "no-space",
    "no-batch",
)
# It compares with TOTALORDER as without, convolves in the operands' type, whatever the result's, and takes large unsigned indices for
# negative ones. In all other cases of the suite that it can be asked of, it agrees.
DIFFERS = (
    "total-order", *(f"sort/{dtype}/special" for dtype in ("f32", "bf16", "f16", "f64")), "convolution/bf16-f32",
    "convolution/i8-i32", "index-ui32/largest", "far-ui32",
)  # fmt: skip
MOST = 4096  # elements: it takes a microsecond or more for each


def results(body: str, *arguments: np.ndarray, types: Sequence[str], result: str) -> np.ndarray:
    """What a function of one result returns, by the semantics."""
    given = ", ".join(f"%{i}: {type}" for i, type in enumerate(types))
    text = f"func.func @main({given}) -> ({result}) {{\n{body}\nreturn %r : {result}\n}}"
    (found,) = evaluated(read(text), arguments)
    return found


def interpreted(case: Case) -> bool:
    """Whether the interpreter can be asked of a case."""
    words = {part for piece in case.id.split("/") for part in (piece, *piece.split("-"))}
    ours = case.operation.startswith("stablehlo.") and not words & {*LACKS}
    small = sum(a.size for a in (*case.inputs, *(e.value for e in case.expected))) <= MOST
    divides = case.operation in ("stablehlo.divide", "stablehlo.remainder") and case.inputs[0].dtype.kind in "iu"
    by_zero = divides and not case.inputs[1].all()  # which ends the process
    return ours and small and not by_zero and not any(word in case.id for word in DIFFERS)


def graph_of(case: Case) -> Graph:
    results = tuple(Tensor("tap", f"r{i}", e.value.shape, e.dtype) for i, e in enumerate(case.expected))
    return Graph(case.id, case.text, Abi("decode", (), results))


def sampled(step: int) -> Iterator[Case]:
    """Of each operation every `step`-th case, from the first on."""
    count: Counter[str] = Counter()
    for description in DESCRIPTIONS:
        for form in description.forms():
            if count[description.operation] % step == 0:
                yield case_of(description, form)
            count[description.operation] += 1


def test_the_interpreter_agrees() -> None:
    """Of each operation that it has, with cases of all kinds: nothing is farther off than the case allows."""
    backend = interpreter().open(1)
    wrong, asked = [], set()
    for case in filter(interpreted, sampled(5)):
        buffers = [backend.upload(np.asarray(a, order="C")) for a in case.inputs]
        found = [backend.download(r) for r in backend.load(graph_of(case))(buffers)]
        judged = judge(case, found)
        asked.add(case.operation)
        if judged.status == "wrong":
            wrong.append(f"{case.id}: {judged.detail}")
    assert "\n".join(wrong) == ""
    lacking = {o for o in operations() if o.startswith("stablehlo.")} - asked
    assert lacking == {"stablehlo.real_dynamic_slice", "stablehlo.batch_norm_inference", "stablehlo.dot"}


@pytest.mark.parametrize(
    "name", ["real_dynamic_slice", "batch_norm_inference", "dot", "chlo.top_k", "chlo.next_after/f32/heads", "chlo.mulhi", "chlo.is_inf", "chlo.broadcast_add", "chlo.broadcast_compare", "chlo.square", "chlo.erf", "chlo.constant_like", "convert/f8E4M3FN-f32", "dot_general/f8E5M2-f8E5M2-f32", "func.call"]
)  # fmt: skip
def test_xla_agrees_where_there_is_no_interpreter(name: str) -> None:
    looked = 0
    for number, case in enumerate(cases([name])):
        if number % 5 == 0:
            judged = judge(case, run_on_xla(graph_of(case), *case.inputs))
            assert judged.status != "wrong", (case.id, judged.detail)
            looked += 1
    assert looked


def test_every_operation_of_the_suite_is_known() -> None:
    assert {*operations()} <= {*OPERATIONS}
    assert len(OPERATIONS) >= 80


# ---- by the specification


@pytest.mark.parametrize(
    ("name", "lhs", "rhs", "expected"),
    [
        ("maximum", NAN, 1.0, NAN), ("maximum", 1.0, NAN, NAN), ("minimum", NAN, -INF, NAN), ("minimum", 2.0, INF, 2.0),
        ("power", NAN, 0.0, 1.0), ("power", 1.0, NAN, 1.0), ("remainder", -7.5, 2.0, -1.5), ("remainder", 7.0, INF, 7.0),
        ("atan2", 0.0, -1.0, np.pi), ("divide", 1.0, 0.0, INF), ("divide", 0.0, 0.0, NAN),
    ],
)  # fmt: skip
def test_two_floats(name: str, lhs: float, rhs: float, expected: float) -> None:
    types = ["tensor<f32>"] * 2
    found = results(
        f"%r = stablehlo.{name} %0, %1 : tensor<f32>",
        np.float32(lhs),
        np.float32(rhs),
        types=types,
        result="tensor<f32>",
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("sign", NAN, NAN), ("sign", -0.0, -0.0), ("sign", -3.0, -1.0), ("round_nearest_afz", 2.5, 3.0), ("round_nearest_afz", -0.5, -1.0),
        ("round_nearest_even", 2.5, 2.0), ("round_nearest_even", -0.5, -0.0), ("sqrt", -1.0, NAN), ("logistic", -INF, 0.0), ("rsqrt", 0.0, INF),
    ],
)  # fmt: skip
def test_one_float(name: str, x: float, expected: float) -> None:
    found = results(
        f"%r = stablehlo.{name} %0 : tensor<f32>", np.float32(x), types=["tensor<f32>"], result="tensor<f32>"
    )
    np.testing.assert_array_equal(found, expected)
    assert np.signbit(found) == np.signbit(expected) or np.isnan(expected)


@pytest.mark.parametrize(
    ("low", "x", "high", "expected"),
    [(0.0, NAN, 1.0, NAN), (NAN, 0.5, 1.0, NAN), (0.0, 0.5, NAN, NAN), (2.0, 1.5, 1.0, 1.0), (0.0, -INF, 1.0, 0.0)],
)
def test_clamp(low: float, x: float, high: float, expected: float) -> None:
    """minimum(maximum(operand, min), max): the maximum wins where it is below the minimum."""
    text = "%r = stablehlo.clamp %0, %1, %2 : tensor<f32>"
    given = [np.float32(v) for v in (low, x, high)]
    found = results(text, *given, types=["tensor<f32>"] * 3, result="tensor<f32>")
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("direction", "kind", "lhs", "rhs", "expected"),
    [
        ("EQ", "FLOAT", NAN, NAN, False), ("NE", "FLOAT", NAN, NAN, True), ("LT", "FLOAT", NAN, 1.0, False), ("EQ", "FLOAT", 0.0, -0.0, True),
        ("LT", "TOTALORDER", -0.0, 0.0, True), ("EQ", "TOTALORDER", 0.0, -0.0, False), ("LT", "TOTALORDER", INF, NAN, True),
        ("LT", "TOTALORDER", -NAN, -INF, True), ("EQ", "TOTALORDER", NAN, NAN, True),
    ],
)  # fmt: skip
def test_compare(direction: str, kind: str, lhs: float, rhs: float, expected: bool) -> None:
    text = f"%r = stablehlo.compare {direction}, %0, %1, {kind} : (tensor<f32>, tensor<f32>) -> tensor<i1>"
    given = [np.copysign(np.float32(abs(v)), np.float32(v)) for v in (lhs, rhs)]
    found = results(text, *given, types=["tensor<f32>"] * 2, result="tensor<i1>")
    assert bool(found) is expected


def test_a_number_is_rounded_once() -> None:
    """ml_dtypes goes by way of float32, which makes a tie of what is just above one."""
    above = 1 + 2.0**-8 + 2.0**-40
    assert float(np.float64(above).astype(ml_dtypes.bfloat16)) == 1.0
    assert float(rounded(np.array(above), "bf16")) == 1 + 2.0**-7
    assert float(rounded(np.array(1 + 2.0**-8 - 2.0**-40), "bf16")) == 1.0
    assert float(rounded(np.array(1 + 2.0**-8), "bf16")) == 1.0  # a tie goes to the even one
    assert float(rounded(np.array(-1 - 2.0**-4 - 2.0**-40), "f8E4M3FN")) == -1.125
    assert np.isinf(rounded(np.array(1e300), "bf16"))
    assert np.isnan(rounded(np.array(NAN), "bf16"))


def test_bits_of_an_operand_as_wide_as_it_is() -> None:
    """Floats are held in float64, and their bits are those of their type."""
    found = results(
        "%r = stablehlo.bitcast_convert %0 : (tensor<2xbf16>) -> tensor<2xi16>", np.array([1.0, -2.0], ml_dtypes.bfloat16),
        types=["tensor<2xbf16>"], result="tensor<2xi16>",
    )  # fmt: skip
    np.testing.assert_array_equal(found, np.array([0x3F80, 0xC000 - 0x10000], np.int16))


def test_a_causal_convolution_sees_nothing_to_come() -> None:
    """Depthwise, as state-space models have it: a sum over the last few tokens."""
    rng = np.random.default_rng(0)
    x, kernel = rng.standard_normal((1, 3, 5)), rng.standard_normal((3, 1, 4))
    text = (
        '%r = "stablehlo.convolution"(%0, %1) {dimension_numbers = #stablehlo.conv<[b, f, 0]x[o, i, 0]->[b, f, 0]>, '
        "feature_group_count = 3 : i64, batch_group_count = 1 : i64, padding = dense<[[3, 0]]> : tensor<1x2xi64>} : "
        "(tensor<1x3x5xf64>, tensor<3x1x4xf64>) -> tensor<1x3x5xf64>"
    )
    found = results(text, x, kernel, types=["tensor<1x3x5xf64>", "tensor<3x1x4xf64>"], result="tensor<1x3x5xf64>")
    padded = np.pad(x, [(0, 0), (0, 0), (3, 0)])
    expected = [[[padded[0, c, t : t + 4] @ kernel[c, 0] for t in range(5)] for c in range(3)]]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("sizes", [(2, 0, 3), (5, 0, 0), (0, 4, 0)])
def test_ragged_dot(sizes: tuple[int, ...]) -> None:
    """Rows by groups, each with a matrix of its own: XLA has it on GPUs and TPUs alone."""
    rng = np.random.default_rng(1)
    rows, matrices = rng.standard_normal((5, 4)), rng.standard_normal((3, 4, 2))
    text = (
        '%r = "chlo.ragged_dot"(%0, %1, %2) {ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_batching_dimensions = [], '
        "rhs_batching_dimensions = [], lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], "
        "lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>} : "
        "(tensor<5x4xf64>, tensor<3x4x2xf64>, tensor<3xi32>) -> tensor<5x2xf64>"
    )
    types = ["tensor<5x4xf64>", "tensor<3x4x2xf64>", "tensor<3xi32>"]
    found = results(text, rows, matrices, np.array(sizes, np.int32), types=types, result="tensor<5x2xf64>")
    group = np.repeat(np.arange(3), sizes)
    np.testing.assert_allclose(
        found[: len(group)], np.einsum("rk,rkn->rn", rows[: len(group)], matrices[group]), rtol=1e-12
    )
    assert not found[len(group) :].any()


NARROW = np.arange(-8, 8)


@pytest.mark.parametrize(
    ("operation", "dtype", "expected"),
    [
        ("count_leading_zeros", "i4", [4 - int(n & 15).bit_length() for n in NARROW]),
        ("popcnt", "ui4", [int(n).bit_count() for n in range(16)]),
        ("not", "i4", ~NARROW),
        ("abs", "i4", np.where(NARROW == -8, -8, abs(NARROW))),  # the specification leaves the first one open
        ("negate", "i4", np.where(NARROW == -8, -8, -NARROW)),
        ("sign", "i4", np.sign(NARROW)),
    ],
)
def test_integers_of_four_bits(operation: str, dtype: str, expected: Sequence[int]) -> None:
    type, own = f"tensor<16x{dtype}>", own_type(dtype)
    values = (np.arange(16) if dtype == "ui4" else NARROW).astype(own)
    found = results(f"%r = stablehlo.{operation} %0 : {type}", values, types=[type], result=type)
    assert found.dtype == own
    np.testing.assert_array_equal(found.astype(int), expected)


@pytest.mark.parametrize(
    ("operation", "lhs", "rhs", "expected"),
    [
        ("shift_right_logical", [-1, -8, 4], [1, 3, 4], [7, 1, 0]),
        ("shift_right_arithmetic", [-1, -8, -8], [1, 2, 4], [-1, -2, -1]),
        ("shift_left", [3, 1, 1], [2, 3, 4], [-4, -8, 0]),
        ("power", [2, -1, 3], [-1, -3, 1], [0, -1, 3]),
        ("multiply", [3, 7, -8], [3, 2, 1], [-7, -2, -8]),
        ("divide", [-7, 7, 6], [2, -2, 4], [-3, -3, 1]),
        ("remainder", [-7, 7, 6], [2, -2, 4], [-1, 1, 2]),
    ],
)
def test_two_integers_of_four_bits(operation: str, lhs: list[int], rhs: list[int], expected: list[int]) -> None:
    type = "tensor<3xi4>"
    given = [np.array(x).astype(ml_dtypes.int4) for x in (lhs, rhs)]
    found = results(f"%r = stablehlo.{operation} %0, %1 : {type}", *given, types=[type, type], result=type)
    assert found.astype(int).tolist() == expected


def test_a_constant_that_the_bindings_do_not_read_is_named() -> None:
    text = """%c = stablehlo.constant dense<[(1.0, -2.0), (0.5, 4.0)]> : tensor<2xcomplex<f32>>
      %r = stablehlo.real %c : (tensor<2xcomplex<f32>>) -> tensor<2xf32>"""
    with pytest.raises(Unsupported, match="a constant of complex<f32>"):
        results(text, types=[], result="tensor<2xf32>")


def test_names_and_values_that_are_no_text() -> None:
    with pytest.raises(InputError, match="has a name that is no UTF-8"):
        read('func.func @"a\\FF"() { return }')
    with pytest.raises(InputError, match="has a name that is no UTF-8"):
        read('func.func @main() { %0 = stablehlo.constant {mhlo.a = {"\\FF" = 1}} dense<1> : tensor<i32>  return }')
    program = read('func.func @main() { %0 = stablehlo.constant {mhlo.a = "\\FF"} dense<1> : tensor<i32>  return }')
    assert program.function().operations[0].attributes["mhlo.a"] == '"\\FF"'


def test_other_errors_pass_where_names_are_read() -> None:
    with pytest.raises(RuntimeError, match="other"), names_read("a.mlir"):
        raise RuntimeError("other")


def test_what_is_not_known_is_named() -> None:
    text = "%r = stablehlo.fft %0, type = RFFT, length = [4] : (tensor<4xf32>) -> tensor<3xcomplex<f32>>"
    with pytest.raises(Unsupported, match=r"stablehlo\.fft"):
        results(text, np.zeros(4, np.float32), types=["tensor<4xf32>"], result="tensor<3xcomplex<f32>>")
    with pytest.raises(InputError, match="does not parse"):
        read("func.func @main() { return %0 }")
