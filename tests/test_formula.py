"""Arithmetic in files: what it gives, and that nothing else is evaluated."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from hloracle.core.formula import evaluate, names_in, number, whole

NAMES = {"N": 6, "D": 16, "position": 5, "eps": 0.5}
GIVES = {
    "3": 3, "1.5": 1.5, "1e-5": 1e-5, "-2": -2, "+2": 2, "- -2": 2, "N": 6, " N * D ": 96, "(N+2)*D": 128, "7 / 2": 3.5,
    "7 // 2": 3, "-7 // 2": -4, "7 % 4": 3, "sqrt(D)": 4.0, "sqrt(N*N) / 2": 3.0, "position + 1": 6, "1 - eps": 0.5, "2-3-4": -5,
}  # fmt: skip


@pytest.mark.parametrize("formula", GIVES)
def test_gives(formula: str) -> None:
    assert evaluate(formula, NAMES) == GIVES[formula]


def test_of_arrays() -> None:
    given = {"position": np.array([[4], [9]]), "S": 8}
    np.testing.assert_array_equal(evaluate("(position + 1) % S", given), [[5], [2]])


@pytest.mark.parametrize("formula", ["position / (S - 8)", "position // 0", "position % 0"])
def test_arrays_are_not_divided_by_zero_either(formula: str) -> None:
    with pytest.raises(ValueError, match="division by zero"):
        evaluate(formula, {"position": np.array([4, 9]), "S": 8})


def test_names() -> None:
    assert names_in("sqrt(N) * D + N - 1") == {"N", "D"}
    assert names_in("3") == set()


ARITHMETIC = "is no arithmetic of numbers, names, + - * / // %, parentheses and sqrt"
WRONG = {
    "": "'' is no arithmetic",
    "1 +": "'1 +' is no arithmetic",
    "a b": "'a b' is no arithmetic",
    "N, D": "'N, D' is no arithmetic",
    "'N'": "\"'N'\" is no arithmetic",
    "N[0]": "'N[0]' is no arithmetic",
    "N if D else 1": f"'N if D else 1' {ARITHMETIC}",
    "2 ** 9": f"'2 ** 9' {ARITHMETIC}",
    "N.real": f"'N.real' {ARITHMETIC}",
    "2j": f"'2j' {ARITHMETIC}",
    "True": f"'True' {ARITHMETIC}",
    "not N": f"'not N' {ARITHMETIC}",
    "exp(N)": f"'exp(N)' {ARITHMETIC}",
    "sqrt()": f"'sqrt()' {ARITHMETIC}",
    "sqrt(N)(D)": f"'sqrt(N)(D)' {ARITHMETIC}",
    "sqrt(-N)": "sqrt of -6, which is negative",
    "M + 1": "'M' is not known here; there are D, N, eps, position",
    "1 / (N - 6)": "'1 / (N - 6)' cannot be computed (division by zero)",
    "N // 0": "'N // 0' cannot be computed (division by zero)",
    "N % 0": "'N % 0' cannot be computed (division by zero)",
    "1e300 * 10 / " + "9" * 400: f"'1e300 * 10 / {'9' * 46}…' cannot be computed (int too large to convert to float)",
    "9" * 501: f"'{'9' * 59}…' has more than 500 characters",
    "(" * 220 + "1" + ")" * 220: f"'{'(' * 59}…' is no arithmetic",
    "a\0b": "'a\\x00b' is no arithmetic",
}


@pytest.mark.parametrize("formula", WRONG)
def test_says_what_is_wrong(formula: str) -> None:
    """Without a warning of Python's, too."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the message is compared)
        evaluate(formula, NAMES)
    assert str(caught.value) == WRONG[formula]


@pytest.mark.parametrize(
    "formula",
    ["2if 1else 3", "1is 1", "0x", "1__0", "N(D)", "-" * 499 + "1", "1" + "+1" * 249, "(" * 90 + "1" + ")" * 90],
)
def test_raises_nothing_else(formula: str) -> None:
    with contextlib.suppress(ValueError):
        assert abs(evaluate(formula, NAMES)) <= 250


def test_whole_numbers() -> None:
    assert whole("D / 2", NAMES) == 8
    assert isinstance(whole("D / 2", NAMES), int)
    assert whole("10*" * 17 + "10", {}) == 10**18
    for formula, said in {
        "D / 3": "'D / 3' is 5.333333333333333, no whole number",
        "1e999": "'1e999' is inf, no whole number",
        "1e999 - 1e999": "'1e999 - 1e999' is nan, no whole number",
        "10*" * 18 + "10": f"'{'10*' * 18 + '10'}' is larger than any size",
        "1e200": "'1e200' is larger than any size",
        "9" * 480: f"'{'9' * 59}…' is larger than any size",
    }.items():
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            whole(formula, NAMES)
        assert str(caught.value) == said


def test_finite_numbers() -> None:
    assert number("sqrt(D) + 1", NAMES) == 5.0
    for formula in ("1e999", "1e999 - 1e999", "9" * 480):
        with pytest.raises(ValueError, match="is too large, or no number"):
            number(formula, NAMES)


def test_the_root_of_a_vector_is_none() -> None:
    with pytest.raises(ValueError, match="sqrt is of a number alone"):
        evaluate("sqrt(position)", {"position": np.arange(3)})
