"""Test files of others: which are read, what their checks say, and what is said of those that are malformed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from hloracle.cli.main import invoke
from hloracle.ops.files import read_tests
from hloracle.ops.files_case import Check, FileCase, checked
from hloracle.ops.files_rewrite import ITSELF, NOTHING, rewritten
from hloracle.ops.files_text import generic, modules
from hloracle.ops.running_read import signature
from hloracle.semantics.evaluate import evaluated
from hloracle.semantics.numbers import own_type
from hloracle.semantics.reading import read

FILES = Path(__file__).with_name("ops_files")
MALFORMED = len([*(FILES / "malformed").glob("*.mlir")])


def results_of(case: FileCase) -> list[np.ndarray]:
    """What a right backend gives."""
    found = evaluated(read(case.text), case.inputs)
    _, types = signature(case.text)
    return [array.astype(own_type(type.dtype)) for array, type in zip(found, types, strict=True)]


def in_folder(folder: str) -> list[FileCase]:
    found, malformed = read_tests([FILES / folder])
    assert not malformed
    return found


@pytest.mark.parametrize("case", in_folder("right"), ids=lambda case: Path(case.id).name)
def test_a_right_result_passes(case: FileCase) -> None:
    if case.refused:
        assert case.refused == (ITSELF if "itself" in case.id else NOTHING)
        return
    assert case.checks
    assert checked(case, results_of(case)).status in ("exact", "within")


@pytest.mark.parametrize("case", in_folder("wrong"), ids=lambda case: Path(case.id).name)
def test_a_wrong_expectation_is_found(case: FileCase) -> None:
    judged = checked(case, results_of(case))
    assert judged.status == "wrong"
    assert "\n" not in judged.detail


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("arguments", "has a main function with arguments"),
        ("attribute", "has a check.expect_close whose max_ulp_difference is no whole number"),
        ("bytes", "is not text"),
        ("check_used", "uses the result of a check"),
        ("elsewhere", "has a check elsewhere"),
        ("empty", "is empty"),
        ("integers", "has a check.expect_close of elements of type i32"),
        ("no_body", "calls @inputs, which has no body"),
        ("no_main", "has 2 functions and no @main"),
        ("no_module", "does not parse as StableHLO"),
        ("no_operands", "has a check.expect_eq of 0 operands"),
        ("no_return", "has a main function that ends with check.expect_eq"),
        ("operands", "has a check.expect_eq of 1 operands"),
        ("recursive", "is nested too deep, or calls itself"),
        ("types", "compares tensor<2xi32> with tensor<3xi32>"),
        ("unknown", "has a check.expect_nearly, which is not known"),
    ],
)
def test_what_is_malformed_gets_one_line(name: str, what: str) -> None:
    found, [error] = read_tests([FILES / "malformed" / f"{name}.mlir"])
    assert not found
    assert what in str(error)
    assert "\n" not in str(error)


def test_every_malformed_file_is_tested() -> None:
    _, malformed = read_tests([FILES / "malformed"])
    assert len(malformed) == MALFORMED


def test_what_inputs_gives_is_taken_and_what_is_expected_is_not() -> None:
    (case,) = (c for c in in_folder("right") if Path(c.id).name == "reduce_bf16.mlir")
    assert [(a.shape, a.dtype.name) for a in case.inputs] == [((2, 3), "bfloat16")]
    assert case.operation == "stablehlo.reduce"
    (check,) = case.checks
    assert isinstance(check.expected, np.ndarray)
    assert check.expected.astype(float).tolist() == [12, -20, 3]
    assert "check." not in case.text


def test_what_is_expected_may_be_computed() -> None:
    (case,) = (c for c in in_folder("right") if Path(c.id).name == "computed.mlir")
    (check,) = case.checks
    assert (check.got, check.expected) == (1, 0)


def test_what_is_computed_to_be_expected_is_asked_of_the_backend() -> None:
    """It is computed in float64 here: a backend that rounds each step gives another number, and is right."""
    (case,) = (c for c in in_folder("right") if Path(c.id).name == "steps.mlir")
    (check,) = case.checks
    assert (check.got, check.expected) == (1, 0)
    assert [a.tolist() for a in case.inputs] == [16777216.0]
    assert checked(case, [f32(0), f32(0)]).status == "exact"


@pytest.mark.parametrize(
    ("name", "inputs"), [("no_inputs", [[1, 2]]), ("dynamic_inputs", [[1.0, 2.0, 3.0, 4.0]]), ("comment", [[1, 2]])]
)
def test_what_is_constant_becomes_an_argument(name: str, inputs: list[object]) -> None:
    """Whether or not a function gives what is expected, and whether or not another operand says a shape."""
    (case,) = (c for c in in_folder("right") if Path(c.id).stem == name)
    assert [a.tolist() for a in case.inputs] == inputs


def test_integers_of_four_bits_are_integers() -> None:
    four = np.array([1, -8], ml_dtypes.int4)
    assert status(Check("eq", 0, four), [1, -8], ml_dtypes.int4) == "exact"
    assert status(Check("eq", 0, four), [1, 7], ml_dtypes.int4) == "wrong"


COMPOSITE = """
func.func private @double(%a: tensor<3xf32>) -> tensor<3xf32> {
  %r = stablehlo.add %a, %a : tensor<3xf32>
  return %r : tensor<3xf32>
}
func.func @main() {
  %a = stablehlo.constant dense<[1.0, -2.0, 3.5]> : tensor<3xf32>
  %r = CALL
  %e = stablehlo.constant dense<[2.0, -4.0, 7.0]> : tensor<3xf32>
  stablehlo.custom_call @check.expect_eq(%r, %e) {has_side_effect = true} : (tensor<3xf32>, tensor<3xf32>) -> ()
  return
}
"""


@pytest.mark.parametrize(
    ("call", "operation"),
    [
        ("call @double(%a) : (tensor<3xf32>) -> tensor<3xf32>", "stablehlo.add"),
        (
            'stablehlo.composite "acme.double" %a {decomposition = @double} : (tensor<3xf32>) -> tensor<3xf32>',
            "stablehlo.composite",
        ),
        ("stablehlo.negate %a : tensor<3xf32>", "stablehlo.negate"),
    ],
)
def test_a_case_is_about_the_operation_that_gives_what_is_checked(call: str, operation: str) -> None:
    """A function is not the operation, and neither is a composite's own name."""
    assert rewritten(COMPOSITE.replace("CALL", call)).operation == operation


def test_a_function_may_have_any_name() -> None:
    text = COMPOSITE.replace("CALL", 'call @"my double"(%a) : (tensor<3xf32>) -> tensor<3xf32>')
    assert '@"my double"(%arg0: tensor<3xf32>)' in rewritten(text.replace("@double", '@"my double"')).text


def test_modules_of_a_file_have_their_lines() -> None:
    names = [Path(c.id).name for c in in_folder("right") if "checks" in c.id]
    assert names == [f"checks.mlir:{line}" for line in (1, 13, 23, 33, 43)]


def test_comments_alone_are_no_module() -> None:
    assert modules("// RUN: something\n\n// -----\n// CHECK: nothing\n") == []


def test_a_type_that_does_not_end() -> None:
    """Read in time that grows with the text alone: with its square it would be minutes."""
    body = "from hloracle.ops.files_text import generic; text = 'check.expect_eq %0, %1 : tensor<' + 'x' * 400_000"
    subprocess.run([sys.executable, "-c", f"{body}; assert generic(text) == text"], check=True, timeout=60)


def test_a_check_across_lines_gets_its_generic_form() -> None:
    text = generic("check.expect_eq_const %0, dense<[1,\n  2]> : tensor<2xi8>")
    assert "stablehlo.constant dense<[1,\n  2]> : tensor<2xi8>" in text
    assert '"check.expect_eq_const"(%0, %check_at_0) : (tensor<2xi8>, tensor<2xi8>) -> ()' in text


def status(check: Check, got: list[float], dtype: object = np.float32) -> str:
    case = FileCase("a", "", "", (), (), checks=(check,))
    return checked(case, [np.array(got, dtype)]).status


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_checks_are_those_of_stablehlo() -> None:
    nan, inf = float("nan"), float("inf")
    # eq is IEEE's: zeros are equal, a NaN equals nothing
    assert status(Check("eq", 0, f32(0.0)), [-0.0]) != "wrong"
    assert status(Check("eq", 0, f32(nan)), [nan]) == "wrong"
    # almost_eq: both NaN, or of one sign and near
    assert status(Check("almost_eq", 0, f32(nan, inf, 1)), [nan, inf, 1.00009]) == "within"
    assert status(Check("almost_eq", 0, f32(inf)), [3e38]) == "wrong"
    assert status(Check("almost_eq", 0, f32(1e-6)), [-1e-6]) == "wrong"
    assert status(Check("almost_eq", 0, f32(1)), [1.0002]) == "wrong"
    assert status(Check("almost_eq", 0, f32(1), 1e-3), [1.0002]) == "within"
    # close: numbers of the type between the two
    one = np.float32(1)
    near = float(
        np.nextafter(np.nextafter(np.nextafter(one, 2, dtype=np.float32), 2, dtype=np.float32), 2, dtype=np.float32)
    )
    assert status(Check("close", 0, f32(1)), [near]) == "within"
    assert status(Check("close", 0, f32(1), most=2), [near]) == "wrong"
    assert status(Check("close", 0, f32(1), least=4, most=9), [near]) == "wrong"
    assert status(Check("close", 0, f32(nan, inf, 0)), [nan, inf, -0.0]) != "wrong"
    assert status(Check("close", 0, f32(inf)), [-inf]) == "wrong"
    tiny = float(np.finfo(np.float32).smallest_subnormal)
    assert status(Check("close", 0, f32(tiny)), [-2 * tiny]) == "within"
    assert status(Check("close", 0, f32(tiny)), [-3 * tiny]) == "wrong"


def test_close_counts_in_the_type_itself() -> None:
    f8 = ml_dtypes.float8_e4m3fn
    assert status(Check("close", 0, np.array([1.0], f8)), [1.375], f8) == "within"
    assert status(Check("close", 0, np.array([1.0], f8)), [1.5], f8) == "wrong"
    assert status(Check("close", 0, np.array([1 + 1j], np.complex64)), [1 + 1.001j], np.complex64) == "wrong"


def test_another_type_is_wrong() -> None:
    assert status(Check("eq", 0, f32(1)), [1.0], np.float64) == "wrong"


def test_a_folder_with_malformed_files_runs_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(FILES / "right" / "complex.mlir"), str(FILES / "malformed"), "--backend", "xla", "--jobs", "1"]
    assert invoke(["ops", *arguments, "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr().out
    assert "XLA" in printed
    assert "1/1" in printed
    assert printed.count("malformed ") == MALFORMED
    assert (tmp_path / "ops.html").is_file()


def test_malformed_files_alone_are_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["ops", str(FILES / "malformed" / "types.mlir"), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert invoke(["ops", str(FILES / "malformed"), "--out", str(tmp_path)]) == 2
    assert f"{MALFORMED} tests, and none that can be read" in capsys.readouterr().err
    assert not (tmp_path / "ops.json").exists()


@pytest.mark.parametrize("path", ["nowhere.mlir", "no/such/folder.mlir"])
def test_a_path_that_is_not_there_is_bad_input(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["ops", path]) == 2
    assert "no such file or folder" in capsys.readouterr().err


def test_a_folder_without_tests_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["ops", str(tmp_path)]) == 2
    assert "has no .mlir file" in capsys.readouterr().err
