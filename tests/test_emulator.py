"""The emulated driver: PTX instructions against numpy, kernels whose threads work together, each fault by its code."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloracle.emulator import library

Array = np.ndarray[Any, Any]
Reference = Callable[..., Any]

BLOCK, WARP = 1024, 32
LANE = np.arange(WARP)
SIGNED, UNSIGNED, FLOATS = ("s16", "s32", "s64"), ("u16", "u32", "u64"), ("f32", "f64", "f16", "bf16")
INTEGERS = (*SIGNED, *UNSIGNED)
DTYPES: dict[str, Any] = {
    **{t: np.dtype(f"{'i' if t[0] == 's' else 'u'}{int(t[1:]) // 8}") for t in INTEGERS},
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": ml_dtypes.bfloat16,
}  # fmt: skip
COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
KERNEL = """.version 8.4
.target sm_89
.address_size 64
{outside}
.visible .entry kernel({parameters}) {{
.reg .pred %p<4>; .reg .b32 %r<10>; .reg .f32 %f<10>; .reg .b64 %d<10>; .reg .b32 %tid;
mov.u32 %tid, %tid.x;
{addresses}
{body}
ret;
}}"""


class CudaError(Exception):
    """A function of the driver and the code that it returns."""


class Driver:
    """A CUDA driver, as much of it as a kernel needs that reads and writes arrays."""

    def __init__(self, path: str | Path) -> None:
        self._cuda = ctypes.CDLL(str(path))
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._cuda, name)(*arguments):
            raise CudaError(name, code)

    def launch(self, ptx: str, *arrays: Array, grid: int = 1, block: int = WARP, shared: int = 0) -> None:
        """Run the kernel on copies of the arrays, and copy them back."""
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ptx.encode())
        buffers = [ctypes.c_uint64() for _ in arrays]
        for array, buffer in zip(arrays, buffers, strict=True):
            self.call("cuMemAlloc_v2", ctypes.byref(buffer), ctypes.c_size_t(array.nbytes))
            self.call("cuMemcpyHtoD_v2", buffer, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes))
        parameters = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
        self.call("cuModuleGetFunction", ctypes.byref(kernel), module, b"kernel")
        self.call("cuLaunchKernel", kernel, grid, 1, 1, block, 1, 1, shared, None, parameters, None)
        for array, buffer in zip(arrays, buffers, strict=True):
            self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(array.ctypes.data), buffer, ctypes.c_size_t(array.nbytes))
            self.call("cuMemFree_v2", buffer)
        self.call("cuModuleUnload", module)

    def apply(self, instructions: str, result: Any, **inputs: Array) -> Array:
        """What the instructions leave in %out, with an element of each input in the register of its name."""
        registers = {**inputs, "out": np.zeros_like(next(iter(inputs.values())), result)}
        body = [".reg .b32 %index; mov.u32 %r0, %ctaid.x; mad.lo.u32 %index, %r0, 1024, %tid;"]
        for n, (name, array) in enumerate(registers.items()):
            bits = array.itemsize * 8
            body += [f".reg .b{bits} %{name}; mad.wide.u32 %d{n}, %index, {array.itemsize}, %d{n};"]
            body += [f"ld.global.b{bits} %{name}, [%d{n}];"] if name != "out" else []
        body += [instructions, f"st.global.b{bits} [%d{n}], %out;"]
        count = len(registers["out"])
        self.launch(
            ptx("\n".join(body), len(registers)), *registers.values(), block=min(count, BLOCK), grid=-(-count // BLOCK)
        )
        return registers["out"]


def ptx(body: str, arrays: int = 0, outside: str = "") -> str:
    """A module whose kernel has the addresses of its arrays in %d0, %d1 and so on, and the thread's number in %tid."""
    parameters = ", ".join(f".param .u64 array{n}" for n in range(arrays))
    addresses = " ".join(f"ld.param.u64 %d{n}, [array{n}];" for n in range(arrays))
    return KERNEL.format(outside=outside, parameters=parameters, addresses=addresses, body=body)


@pytest.fixture(scope="module")
def path(cache: Path) -> Path:
    return library()


@pytest.fixture(scope="module")
def driver(path: Path) -> Driver:
    return Driver(path)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The references divide by zero and overflow, on purpose."""
    with np.errstate(all="ignore"):
        yield


def integers(t: str, seed: int) -> Array:
    """Every pair of the limits among the first of seeds 0 and 1; then small ones, then any."""
    rng, limits, signed = np.random.default_rng(seed), np.iinfo(DTYPES[t]), t[0] == "s"
    found = rng.integers(limits.min, limits.max, BLOCK, DTYPES[t], endpoint=True)
    corners = np.array([0, 1, 2, limits.max, limits.min, limits.max - 1, -1 if signed else 7], DTYPES[t])
    found[:49] = (np.repeat, np.tile)[seed % 2](corners, 7)
    found[49:200] = rng.integers(-100 if signed else 0, 100, 151)
    return found


def floats(t: str, seed: int) -> Array:
    """Every pair of the special values among the first of seeds 0 and 1; then of many magnitudes."""
    rng = np.random.default_rng(seed)
    found = (rng.standard_normal(BLOCK) * np.exp2(rng.integers(-12, 12, BLOCK))).astype(DTYPES[t])
    corners = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, 1.5, 2.5]).astype(DTYPES[t])
    found[:100] = (np.repeat, np.tile)[seed % 2](corners, 10)
    return found


def wrapped(values: Sequence[int], dtype: Any) -> Array:
    """Python's integers modulo the type's size."""
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    return np.array([v % (1 << 64) for v in values], np.uint64).astype(unsigned).view(dtype)


def clamped(values: Array, t: str) -> Array:
    """The nearest integers of the type; 0 of NaN."""
    limits = np.iinfo(DTYPES[t])
    found = [0 if v != v else int(max(min(v, limits.max), limits.min)) for v in values.tolist()]
    return np.array(found, object).astype(DTYPES[t])


def assert_same(found: Array, expected: Any) -> None:
    """Equal to the bit; but any NaN is as good as another."""
    expected = np.broadcast_to(expected, found.shape)
    assert found.dtype == expected.dtype
    if found.dtype.kind not in "iu":
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        found, expected = (np.where(np.isnan(v), 0, v.astype(np.float64)).view(np.uint64) for v in (found, expected))
    np.testing.assert_array_equal(found, expected)


# ---- integers, against Python's own


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def extracted(v: SimpleNamespace) -> int:
    """bfe: the field's m bits from n on; above what there is of it, its highest bit if that is a sign."""
    if not v.m:
        return 0
    last = min(v.n + v.m - 1, v.bits - 1)
    field = (v.a % (1 << v.bits)) >> v.n & (1 << v.m) - 1
    kept = max(0, last - v.n + 1)
    negative = v.signed and v.a >> last & 1
    return field - (1 << kept) if negative else field


def inserted(v: SimpleNamespace) -> int:
    mask = ((1 << v.m) - 1) << v.n
    return v.b & ~mask | v.a << v.n & mask


def permuted(v: SimpleNamespace) -> int:
    """prmt: each four bits of c select a byte of b and a, or its sign."""
    data, found = (v.b << 32 | v.a).to_bytes(8, "little"), []
    for shift in (0, 4, 8, 12):
        selector = v.c >> shift & 15
        byte = data[selector & 7]
        found.append((255 if byte & 128 else 0) if selector & 8 else byte)
    return int.from_bytes(found, "little")


def dot(v: SimpleNamespace) -> int:
    a, b = (np.array([x], np.uint32).view(np.int8).tolist() for x in (v.a, v.b))
    return v.c + sum(x * y for x, y in zip(a, b, strict=True))


BITS, WIDE, NARROW = ("u16", "u32", "u64"), ("u32", "u64"), ("u16", "s16", "u32", "s32")
# The types; the instructions, of a type {t} of {w} bits; the result's type if it is another; and what they compute.
# a, b and c are any numbers, d is a divisor, n a place that may lie beyond the last bit, and m a length.
INTEGER_CASES: list[tuple[Sequence[str], str, str, Reference]] = [
    (INTEGERS, "add.{t} %out, %a, %b;", "", lambda v: v.a + v.b),
    (INTEGERS, "sub.{t} %out, %a, %b;", "", lambda v: v.a - v.b),
    (INTEGERS, "mul.lo.{t} %out, %a, %b;", "", lambda v: v.a * v.b),
    (INTEGERS, "mul.hi.{t} %out, %a, %b;", "", lambda v: v.a * v.b >> v.bits),
    (NARROW, "mul.wide.{t} %out, %a, %b;", "wide", lambda v: v.a * v.b),
    (INTEGERS, "mad.lo.{t} %out, %a, %b, %c;", "", lambda v: v.a * v.b + v.c),
    (INTEGERS, "min.{t} %out, %a, %b;", "", lambda v: min(v.a, v.b)),
    (INTEGERS, "max.{t} %out, %a, %b;", "", lambda v: max(v.a, v.b)),
    (INTEGERS, "div.{t} %out, %a, %d;", "", lambda v: quotient(v.a, v.d)),
    (INTEGERS, "rem.{t} %out, %a, %d;", "", lambda v: v.a - quotient(v.a, v.d) * v.d),
    (SIGNED, "neg.{t} %out, %a;", "", lambda v: -v.a),
    (SIGNED, "abs.{t} %out, %a;", "", lambda v: abs(v.a)),
    (BITS, "and.b{w} %out, %a, %b;", "", lambda v: v.a & v.b),
    (BITS, "or.b{w} %out, %a, %b;", "", lambda v: v.a | v.b),
    (BITS, "xor.b{w} %out, %a, %b;", "", lambda v: v.a ^ v.b),
    (BITS, "not.b{w} %out, %a;", "", lambda v: ~v.a),
    (BITS, "shl.b{w} %out, %a, %n;", "", lambda v: v.a << v.n),
    (INTEGERS, "shr.{t} %out, %a, %n;", "", lambda v: v.a >> v.n),
    (WIDE, "popc.b{w} %out, %a;", "u32", lambda v: v.a.bit_count()),
    (WIDE, "clz.b{w} %out, %a;", "u32", lambda v: v.bits - v.a.bit_length()),
    (WIDE, "bfind.{t} %out, %a;", "u32", lambda v: v.a.bit_length() - 1),
    (WIDE, "brev.b{w} %out, %a;", "", lambda v: int(f"{v.a:0{v.bits}b}"[::-1], 2)),
    ((*WIDE, "s32", "s64"), "bfe.{t} %out, %a, %n, %m;", "", extracted),
    (WIDE, "bfi.b{w} %out, %a, %b, %n, %m;", "", inserted),
    (["u32"], "shf.l.wrap.b32 %out, %a, %b, %n;", "", lambda v: (v.b << 32 | v.a) << v.n % 32 >> 32),
    (["u32"], "shf.r.wrap.b32 %out, %a, %b, %n;", "", lambda v: (v.b << 32 | v.a) >> v.n % 32),
    (["u32"], "shf.l.clamp.b32 %out, %a, %b, %n;", "", lambda v: (v.b << 32 | v.a) << min(v.n, 32) >> 32),
    (["u32"], "shf.r.clamp.b32 %out, %a, %b, %n;", "", lambda v: (v.b << 32 | v.a) >> min(v.n, 32)),
    (["u32"], "prmt.b32 %out, %a, %b, %c;", "", permuted),
    (["u32"], "lop3.b32 %out, %a, %b, %c, 0xE8;", "", lambda v: v.a & v.b | v.a & v.c | v.b & v.c),
    (["u32"], "dp4a.s32.s32 %out, %a, %b, %c;", "", dot),
    (["u64"], "mov.b64 {{%r1, %r2}}, %a; mov.b64 {{%r3, %r4}}, %b;\n"
     "add.cc.u32 %r1, %r1, %r3; addc.u32 %r2, %r2, %r4; mov.b64 %out, {{%r1, %r2}};", "", lambda v: v.a + v.b),
    (["u64"], "mov.b64 {{%r1, %r2}}, %a; mov.b64 {{%r3, %r4}}, %b;\n"
     "sub.cc.u32 %r1, %r1, %r3; subc.u32 %r2, %r2, %r4; mov.b64 %out, {{%r1, %r2}};", "", lambda v: v.a - v.b),
]  # fmt: skip


def opcode(instructions: str) -> str:
    """The instruction that is the point of them: what lanes do together, or the last one."""
    together = re.search(r"(shfl|vote|match|redux|brx|activemask)[\w.]+", instructions)
    return together[0] if together else re.findall(r"^ *(\w[\w.]+) ", instructions.replace(";", "\n"), re.MULTILINE)[-1]


def named(rows: Sequence[tuple[Any, ...]], place: int) -> list[Any]:
    """The rows as parameters, each named after the instructions at its place."""
    return [pytest.param(*row, id=opcode(row[place])) for row in rows]


@pytest.mark.parametrize(
    ("t", "instructions", "result", "reference"),
    named([(t, i.format(t=t, w=t[1:]), result, f) for types, i, result, f in INTEGER_CASES for t in types], 1),
)
def test_integers(t: str, instructions: str, result: str, reference: Reference, driver: Driver) -> None:
    bits, rng = int(t[1:]), np.random.default_rng(3)
    inputs = {name: integers(t, seed) for seed, name in enumerate("abc")}
    # A quotient by zero, and of the lowest number by -1, is not defined.
    inputs["d"] = np.where((inputs["b"] == 0) | (inputs["b"] == -1), 7, inputs["b"]).astype(DTYPES[t])
    inputs["n"], inputs["m"] = (rng.integers(0, end, BLOCK).astype(np.uint32) for end in (bits + 20, bits + 1))
    inputs = {name: array for name, array in inputs.items() if re.search(rf"%{name}\b", instructions)}
    rows = zip(*(array.tolist() for array in inputs.values()), strict=True)
    values = [SimpleNamespace(bits=bits, signed=t[0] == "s", **dict(zip(inputs, row, strict=True))) for row in rows]
    dtype = DTYPES[{"": t, "wide": f"{t[0]}{2 * bits}"}.get(result, result)]
    assert_same(driver.apply(instructions, dtype, **inputs), wrapped([reference(v) for v in values], dtype))


@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize("t", INTEGERS)
def test_integers_compared(comparison: str, t: str, driver: Driver) -> None:
    a = integers(t, 0)
    b = np.where(np.arange(BLOCK) % 3 == 0, a, integers(t, 1))
    found = driver.apply(f"setp.{comparison}.{t} %p1, %a, %b; selp.u32 %out, 1, 0, %p1;", np.uint32, a=a, b=b)
    assert_same(found, COMPARISONS[comparison](a, b).astype(np.uint32))


# ---- floats


def nearest(value: Fraction, dtype: Any) -> float:
    """The value rounded to the type once, half to even."""
    limits, size = ml_dtypes.finfo(dtype), abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    unit = Fraction(2) ** int(max(exponent, limits.minexp) - limits.nmant)
    return float(round(value / unit) * unit)


def fused(a: Array, b: Array, c: Array) -> Array:
    found = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
    for n in np.flatnonzero(np.isfinite(found)):
        exact = Fraction(float(a[n])) * Fraction(float(b[n])) + Fraction(float(c[n]))
        # The sign of a zero is that of the sum in float64, where each product of zeros has its own.
        found[n] = nearest(exact, a.dtype) if exact else found[n]
    return found.astype(a.dtype)


def larger(a: Array, b: Array) -> Array:
    """The number where there is one, and zero above its negative."""
    found = np.where(a == b, np.where(np.signbit(a), b, a), np.where(a > b, a, b))
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, found)).astype(a.dtype)


def towards_zero(exact: Array, dtype: Any) -> Array:
    rounded = exact.astype(dtype)
    above = np.abs(rounded.astype(np.float64)) > np.abs(exact)
    return np.where(above, np.nextafter(rounded, dtype(0)), rounded)


FLOAT_CASES: list[tuple[Sequence[str], str, Reference]] = [
    (FLOATS, "add.rn.{t} %out, %a, %b;", lambda a, b, c: a + b),
    (FLOATS, "sub.rn.{t} %out, %a, %b;", lambda a, b, c: a - b),
    (FLOATS, "mul.rn.{t} %out, %a, %b;", lambda a, b, c: a * b),
    (FLOATS, "fma.rn.{t} %out, %a, %b, %c;", fused),
    (FLOATS, "max.{t} %out, %a, %b;", lambda a, b, c: larger(a, b)),
    (FLOATS, "min.{t} %out, %a, %b;", lambda a, b, c: -larger(-a, -b)),
    (("f32", "f16", "bf16"), "max.NaN.{t} %out, %a, %b;",
     lambda a, b, c: np.where(np.isnan(a) | np.isnan(b), np.nan, larger(a, b)).astype(a.dtype)),
    (FLOATS, "abs.{t} %out, %a;", lambda a, b, c: np.abs(a)),
    (FLOATS, "neg.{t} %out, %a;", lambda a, b, c: -a),
    (("f32", "f64"), "div.rn.{t} %out, %a, %b;", lambda a, b, c: a / b),
    (("f32", "f64"), "sqrt.rn.{t} %out, %a;", lambda a, b, c: np.sqrt(a)),
    (("f32", "f64"), "rcp.rn.{t} %out, %a;", lambda a, b, c: 1 / a),
    # Approximate on a GPU; here as near as float32 comes.
    (["f32"], "ex2.approx.f32 %out, %a;", lambda a, b, c: np.exp2(a.astype(np.float64)).astype(np.float32)),
    (["f32"], "add.rz.f32 %out, %a, %b;",
     lambda a, b, c: towards_zero(a.astype(np.float64) + b, np.float32)),
    (["f32"], "add.sat.f32 %out, %a, %b;",
     lambda a, b, c: np.where(np.isnan(a + b), 0, np.clip(a + b, 0, 1)).astype(np.float32) + np.float32(0)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("t", "instruction", "reference"),
    named([(t, i.format(t=t), reference) for types, i, reference in FLOAT_CASES for t in types], 1),
)
def test_floats(t: str, instruction: str, reference: Reference, driver: Driver) -> None:
    inputs = {name: floats(t, seed) for seed, name in enumerate("abc")}
    assert_same(driver.apply(instruction, DTYPES[t], **inputs), reference(**inputs))


@pytest.mark.parametrize("comparison", [*COMPARISONS, *(f"{name}u" for name in COMPARISONS), "num", "nan"])
@pytest.mark.parametrize("t", FLOATS)
def test_floats_compared(comparison: str, t: str, driver: Driver) -> None:
    """With a NaN all comparisons fail but those whose name ends in u."""
    a, b = floats(t, 0), floats(t, 1)
    unordered = np.isnan(a) | np.isnan(b)
    holds = {"num": ~unordered, "nan": unordered}.get(comparison)
    if holds is None:
        holds = COMPARISONS[comparison[:2]](a, b)
        holds = holds | unordered if comparison.endswith("u") else holds & ~unordered
    found = driver.apply(f"setp.{comparison}.{t} %p1, %a, %b; selp.u32 %out, 1, 0, %p1;", np.uint32, a=a, b=b)
    assert_same(found, holds.astype(np.uint32))


def test_pairs_of_halves(driver: Driver) -> None:
    a, b = (np.random.default_rng(seed).standard_normal(2 * BLOCK).astype(np.float16) for seed in (0, 1))
    found = driver.apply("mul.f16x2 %out, %a, %b;", np.uint32, a=a.view(np.uint32), b=b.view(np.uint32))
    assert_same(found.view(np.float16), a * b)


# ---- conversions


@pytest.mark.parametrize("t", INTEGERS)
@pytest.mark.parametrize("source", ["f32", "f64"])
@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
def test_floats_to_integers(mode: str, source: str, t: str, driver: Driver) -> None:
    a = floats(source, 0) * np.exp2(np.random.default_rng(1).integers(0, 40, BLOCK)).astype(DTYPES[source])
    to_integer = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode]
    assert_same(driver.apply(f"cvt.{mode}.{t}.{source} %out, %a;", DTYPES[t], a=a), clamped(to_integer(a), t))
    assert_same(driver.apply(f"cvt.{mode}.{source}.{source} %out, %a;", DTYPES[source], a=a), to_integer(a))


@pytest.mark.parametrize("source", INTEGERS)
def test_integers_to_floats(source: str, driver: Driver) -> None:
    a = integers(source, 0)
    for t in ("f32", "f64"):
        assert_same(driver.apply(f"cvt.rn.{t}.{source} %out, %a;", DTYPES[t], a=a), a.astype(DTYPES[t]))


@pytest.mark.parametrize("t", INTEGERS)
@pytest.mark.parametrize("source", INTEGERS)
def test_integers_to_integers(source: str, t: str, driver: Driver) -> None:
    a = integers(source, 0)
    assert_same(driver.apply(f"cvt.{t}.{source} %out, %a;", DTYPES[t], a=a), a.astype(DTYPES[t]))
    assert_same(driver.apply(f"cvt.sat.{t}.{source} %out, %a;", DTYPES[t], a=a), clamped(a, t))


@pytest.mark.parametrize(
    ("instruction", "t", "reference"),
    [
        ("cvt.u32.u8", "u32", lambda a: a & 255),
        ("cvt.s32.s8", "s32", lambda a: a.astype(np.int8).astype(np.int32)),
        ("cvt.s8.s32", "s32", lambda a: a.astype(np.int8).astype(np.int32)),
        ("cvt.rn.f16.f32", "f16", lambda a: a.view(np.float32).astype(np.float16)),
        ("cvt.rn.bf16.f32", "bf16", lambda a: a.view(np.float32).astype(ml_dtypes.bfloat16)),
        ("cvt.rz.f16.f32", "f16", lambda a: towards_zero(a.view(np.float32).astype(np.float64), np.float16)),
    ],
    ids=lambda value: value if isinstance(value, str) else "of-bits",
)
def test_narrower(instruction: str, t: str, reference: Reference, driver: Driver) -> None:
    """Of any 32 bits, and of floats that are subnormal as float16."""
    a = np.random.default_rng(0).integers(0, 1 << 32, 4 * BLOCK, np.uint32)
    a[:BLOCK], a[BLOCK : 2 * BLOCK] = (v.view(np.uint32) for v in (floats("f32", 0), floats("f32", 2) / (1 << 16)))
    assert_same(driver.apply(f"{instruction} %out, %a;", DTYPES[t], a=a), reference(a))


@pytest.mark.parametrize("t", ["f16", "bf16"])
def test_every_value_of_16_bits(t: str, driver: Driver) -> None:
    a = np.arange(1 << 16, dtype=np.uint16).view(DTYPES[t])
    assert_same(driver.apply(f"cvt.f32.{t} %out, %a;", np.float32, a=a), a.astype(np.float32))


def test_a_pair_of_bf16(driver: Driver) -> None:
    """The first operand is the upper half."""
    a, b = (np.nan_to_num(floats("f32", seed)) for seed in (0, 1))
    upper, lower = (v.astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32) for v in (a, b))
    assert_same(driver.apply("cvt.rn.bf16x2.f32 %out, %a, %b;", np.uint32, a=a, b=b), upper << 16 | lower)


def test_float64_and_float32(driver: Driver) -> None:
    wide, narrow = floats("f64", 0) * 1e30, floats("f32", 0)
    assert_same(driver.apply("cvt.rn.f32.f64 %out, %a;", np.float32, a=wide), wide.astype(np.float32))
    assert_same(driver.apply("cvt.f64.f32 %out, %a;", np.float64, a=narrow), narrow.astype(np.float64))


# ---- the lanes of a warp


def bits_of(holds: Array) -> Array:
    """A mask of the lanes for which it holds, for each warp."""
    return (holds.astype(np.uint64) << LANE.astype(np.uint64)).sum(-1, keepdims=True).astype(np.uint32)


def matching(a: Array) -> Array:
    return bits_of(a[:, :, None] == a[:, None, :])[:, :, 0]


def halves(reduce: Reference, a: Array) -> Array:
    """The same of the lower and the upper 16 lanes, each by itself."""
    both = [np.broadcast_to(reduce(half), half.shape) for half in (a[:, :16], a[:, 16:])]
    return np.concatenate(both, 1)


BELOW = 1 << 31
HALF = "mov.u32 %r1, %laneid; setp.lt.u32 %p2, %r1, 16; selp.b32 %r2, 0xffff, 0xffff0000, %p2;"
IS_BELOW = "setp.lt.u32 %p1, %a, 0x80000000;"
AS_NUMBER = "selp.u32 %out, 1, 0, %p3;"
# What a warp computes of a [warp, lane], whose first warp is of zeros and whose second of the largest number.
WARP_CASES: list[tuple[str, Reference]] = [
    *((f"shfl.sync.bfly.b32 %out, %a, {n}, 31, -1;", lambda a, n=n: a[:, LANE ^ n]) for n in (1, 4, 16)),
    *((f"shfl.sync.down.b32 %out, %a, {n}, 31, -1;",
       lambda a, n=n: a[:, np.where(LANE + n < 32, LANE + n, LANE)]) for n in (1, 4, 16)),
    *((f"shfl.sync.up.b32 %out, %a, {n}, 0, -1;",
       lambda a, n=n: a[:, np.where(LANE - n >= 0, LANE - n, LANE)]) for n in (1, 4, 16)),
    *((f"shfl.sync.idx.b32 %out, %a, {n}, 31, -1;", lambda a, n=n: a[:, [n]]) for n in (0, 5, 31)),
    # Segments of eight lanes; and the predicate that tells whether the lane was inside of its own.
    ("shfl.sync.down.b32 %out, %a, 3, 0x181f, -1;",
     lambda a: a[:, np.where(LANE % 8 + 3 < 8, LANE + 3, LANE)]),
    ("shfl.sync.down.b32 %r1|%p3, %a, 3, 0x181f, -1; selp.u32 %out, 1, 0, %p3;", lambda a: LANE % 8 + 3 < 8),
    ("and.b32 %r1, %a, 31; shfl.sync.idx.b32 %out, %a, %r1, 31, -1;",
     lambda a: np.take_along_axis(a, (a & 31).astype(np.int64), 1)),
    (f"{IS_BELOW} vote.sync.ballot.b32 %out, %p1, -1;", lambda a: bits_of(a < BELOW)),
    (f"{IS_BELOW} vote.sync.all.pred %p3, %p1, -1; {AS_NUMBER}", lambda a: (a < BELOW).all(1, keepdims=True)),
    (f"{IS_BELOW} vote.sync.any.pred %p3, %p1, -1; {AS_NUMBER}", lambda a: (a < BELOW).any(1, keepdims=True)),
    (f"{IS_BELOW} vote.sync.all.pred %p3, !%p1, -1; {AS_NUMBER}", lambda a: (a >= BELOW).all(1, keepdims=True)),
    (f"{IS_BELOW} vote.sync.uni.pred %p3, %p1, -1; {AS_NUMBER}",
     lambda a: ((a < BELOW) == (a < BELOW)[:, :1]).all(1, keepdims=True)),
    ("and.b32 %r1, %a, 3; match.any.sync.b32 %out, %r1, -1;", lambda a: matching(a & 3)),
    ("match.all.sync.b32 %out|%p3, %a, -1;", lambda a: np.where((a == a[:, :1]).all(1, keepdims=True), 2**32 - 1, 0)),
    ("redux.sync.add.u32 %out, %a, -1;", lambda a: a.sum(1, np.uint32, keepdims=True)),
    ("redux.sync.min.u32 %out, %a, -1;", lambda a: a.min(1, keepdims=True)),
    ("redux.sync.max.s32 %out, %a, -1;", lambda a: a.view(np.int32).max(1, keepdims=True).view(np.uint32)),
    ("redux.sync.xor.b32 %out, %a, -1;", lambda a: np.bitwise_xor.reduce(a, 1, keepdims=True)),
    # Each half of the warp by itself, which is how tiles of fewer lanes than a warp are written.
    (f"{HALF} redux.sync.add.u32 %out, %a, %r2;", lambda a: halves(lambda h: h.sum(1, np.uint32, keepdims=True), a)),
    (f"{HALF} {IS_BELOW} vote.sync.ballot.b32 %out, %p1, %r2;",
     lambda a: bits_of(a < BELOW) & np.where(LANE < 16, 0xffff, 0xffff0000).astype(np.uint32)),
    (f"{HALF} setp.lt.u32 %p1, %a, 0x10000000; vote.sync.any.pred %p3, %p1, %r2; {AS_NUMBER}",
     lambda a: halves(lambda h: (h < BELOW >> 3).any(1, keepdims=True), a)),
    (f"{HALF} and.b32 %r1, %a, 3; match.any.sync.b32 %out, %r1, %r2;",
     lambda a: matching(a & 3) & np.where(LANE < 16, 0xffff, 0xffff0000).astype(np.uint32)),
    # Lanes that went apart, and come together again.
    ("mov.u32 %r1, 0; mov.u32 %r2, 0; and.b32 %r3, %a, 15;\n"
     "again: setp.ge.u32 %p1, %r2, %r3; @%p1 bra done; add.u32 %r1, %r1, %r2; add.u32 %r2, %r2, 1; bra again;\n"
     "done: shfl.sync.bfly.b32 %out, %r1, 1, 31, -1;", lambda a: ((a & 15) * ((a & 15) - 1) // 2)[:, LANE ^ 1]),
    (f"{IS_BELOW} mov.u32 %out, 7; @%p1 add.u32 %out, %out, %a; @!%p1 mul.lo.u32 %out, %a, 3;",
     lambda a: np.where(a < BELOW, 7 + a, a * np.uint32(3))),
    (f"{HALF} mov.u32 %out, 0; @%p2 bra low; activemask.b32 %out; bra done; low: activemask.b32 %out;\ndone:",
     lambda a: np.where(LANE < 16, 0xffff, 0xffff0000)),
    ("and.b32 %r1, %a, 3; table: .branchtargets case0, case1, case2, case3;\nbrx.idx %r1, table;\n"
     "case0: mov.u32 %r2, 10; bra done; case1: mov.u32 %r2, 11; bra done; case2: mov.u32 %r2, 12; bra done;\n"
     "case3: mov.u32 %r2, 13;\ndone: shfl.sync.bfly.b32 %out, %r2, 1, 31, -1;", lambda a: (a & 3)[:, LANE ^ 1] + 10),
]  # fmt: skip


@pytest.mark.parametrize(("instructions", "reference"), named(WARP_CASES, 0))
def test_lanes(instructions: str, reference: Reference, driver: Driver) -> None:
    a = integers("u32", 2).reshape(-1, WARP)
    a[0], a[1] = 0, 2**32 - 1
    expected = np.broadcast_to(reference(a), a.shape).astype(np.uint32)
    assert_same(driver.apply(instructions, np.uint32, a=a.ravel()).reshape(a.shape), expected)


@pytest.mark.parametrize(("late", "expected"), [(1, (120 + 800, 376 + 800)), (17, (120, 376 + 800))])
def test_parts_of_a_warp_wait_for_their_own(late: int, expected: tuple[int, int], driver: Driver) -> None:
    """Lanes that have all bits of `late` come later: a half waits for its own lanes, and not for the other half's."""
    body = f"""{HALF} mov.u32 %r3, %tid; and.b32 %r4, %tid, {late}; setp.eq.u32 %p1, %r4, {late}; @%p1 bra later;
together: redux.sync.add.u32 %r5, %r3, %r2; bra done;
later: add.u32 %r3, %r3, 100; bra together;
done: mad.wide.u32 %d0, %tid, 4, %d0; st.global.u32 [%d0], %r5;"""
    found = np.zeros(WARP, np.uint32)
    driver.launch(ptx(body, 1), found)
    assert_same(found, np.repeat(expected, 16).astype(np.uint32))


# ---- matrices and copies into shared memory


@pytest.mark.parametrize(
    ("kind", "dtype", "depth"), [("f16", "f16", 16), ("bf16", "bf16", 16), ("tf32", "f32", 8), ("s8", np.int8, 32)]
)
def test_matrices(kind: str, dtype: Any, depth: int, driver: Driver) -> None:
    """Where each lane holds what is as the PTX manual says under mma.m16n8k16 and its like."""
    rng, dtype, sums = np.random.default_rng(0), np.dtype(DTYPES.get(dtype, dtype)), "s32" if kind == "s8" else "f32"
    a, b, c = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((16, depth), (depth, 8), (16, 8)))
    group, place, packed = LANE[:, None] // 4, LANE[:, None] % 4, 4 // dtype.itemsize
    element = place * packed + np.arange(packed)  # [lane, element of a register]
    left = np.stack([a[group + r % 2 * 8, element + r // 2 * 4 * packed] for r in range(4)], 1).astype(dtype)
    right = np.stack([b[element + r * 4 * packed, group] for r in range(2)], 1).astype(dtype)
    row, column = group + np.array([0, 0, 8, 8]), place * 2 + np.array([0, 1, 0, 1])
    found = c[row, column].astype(DTYPES[sums])
    body = f"""mad.wide.u32 %d0, %tid, 16, %d0; mad.wide.u32 %d1, %tid, 8, %d1; mad.wide.u32 %d2, %tid, 16, %d2;
.reg .{sums} %c<4>;
ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%d0]; ld.global.v2.b32 {{%r5, %r6}}, [%d1];
ld.global.v4.{sums} {{%c0, %c1, %c2, %c3}}, [%d2];
mma.sync.aligned.m16n8k{depth}.row.col.{sums}.{kind}.{kind}.{sums}
  {{%c0, %c1, %c2, %c3}}, {{%r1, %r2, %r3, %r4}}, {{%r5, %r6}}, {{%c0, %c1, %c2, %c3}};
st.global.v4.{sums} [%d2], {{%c0, %c1, %c2, %c3}};"""
    driver.launch(ptx(body, 3), np.ascontiguousarray(left), np.ascontiguousarray(right), found)
    assert_same(found, (a @ b + c)[row, column].astype(DTYPES[sums]))


SHARED = ".shared .align 16 .b8 memory[512];"
# %r1 is the thread's 16 bytes of shared memory, and %d0 and %d1 are those of two arrays.
SIXTEEN_BYTES = """mov.u32 %r1, memory; mad.lo.u32 %r1, %tid, 16, %r1;
mad.wide.u32 %d0, %tid, 16, %d0; mad.wide.u32 %d1, %tid, 16, %d1;"""


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count: int, trans: str, driver: Driver) -> None:
    """Each lane names a row, here not in their order, and is given two neighbours of each matrix."""
    rows, found = np.arange(256, dtype=np.uint16).reshape(WARP, 8), np.zeros((WARP, 4, 2), np.uint16)
    registers = ", ".join(f"%r{n + 4}" for n in range(count))
    body = f"""{SIXTEEN_BYTES} cp.async.cg.shared.global [%r1], [%d0], 16; cp.async.wait_all; bar.sync 0;
xor.b32 %r2, %tid, 5; mov.u32 %r1, memory; mad.lo.u32 %r1, %r2, 16, %r1;
mov.b32 %r4, 0; mov.b32 %r5, 0; mov.b32 %r6, 0; mov.b32 %r7, 0;
ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [%r1];
st.global.v4.b32 [%d1], {{%r4, %r5, %r6, %r7}};"""
    driver.launch(ptx(body, 2, SHARED), rows, found)
    matrices = rows[LANE ^ 5].reshape(4, 8, 8)[:count]
    expected = (matrices.transpose(0, 2, 1) if trans else matrices).reshape(count, WARP, 2).transpose(1, 0, 2)
    assert_same(found[:, :count], expected)
    assert not found[:, count:].any()


@pytest.mark.parametrize("partly", [False, True])
@pytest.mark.parametrize(("cache_operator", "size"), [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)])
def test_cp_async(cache_operator: str, size: int, partly: bool, driver: Driver) -> None:
    """What is not read is zero; what lies behind it stays as it was, which in fresh memory is 0xFF."""
    source, found = np.random.default_rng(0).integers(1, 255, (WARP, 16), np.uint8), np.zeros((WARP, 16), np.uint8)
    body = f"""{SIXTEEN_BYTES} rem.u32 %r2, %tid, {size + 1};
cp.async.{cache_operator}.shared.global [%r1], [%d0], {size}{", %r2" if partly else ""};
cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r1]; st.global.v4.b32 [%d1], {{%r4, %r5, %r6, %r7}};"""
    driver.launch(ptx(body, 2, SHARED), source, found)
    byte, read = np.arange(16), (LANE % (size + 1) if partly else np.full(WARP, size))[:, None]
    assert_same(found, np.where(byte < read, source, np.where(byte < size, 0, 255)).astype(np.uint8))


# ---- threads that work together, calls, and the spaces of memory

# Each block writes its part in reverse through shared memory, and all add to one number and find the largest.
TOGETHER = """.reg .b64 %shared; mov.u64 %shared, memory; mul.wide.u32 %d2, %tid, 4; add.u64 %d3, %shared, %d2;
mov.u32 %r1, %ctaid.x; mad.lo.u32 %r2, %r1, 256, %tid; st.shared.u32 [%d3], %r2; bar.sync 0;
sub.u32 %r3, 255, %tid; mad.wide.u32 %d4, %r3, 4, %shared; ld.shared.u32 %r4, [%d4];
mad.wide.u32 %d5, %r2, 4, %d0; st.global.u32 [%d5], %r4;
atom.global.add.u32 %r5, [%d1], %r2; red.shared.max.s32 [memory+1024], %r2; bar.sync 0;
cvta.shared.u64 %d6, %shared; ld.u32 %r6, [%d6+1024]; red.global.max.u32 [%d1+4], %r6;"""


@pytest.mark.parametrize("setting", ["", "ORDER=reverse", "THREADS=3"])
def test_blocks_and_barriers(setting: str, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, value = setting.partition("=")
    if name:
        monkeypatch.setenv(f"HLORACLE_EMULATED_{name}", value)
    found, sums = np.zeros((4, 256), np.uint32), np.zeros(2, np.uint32)
    source = ptx(TOGETHER, 2, ".extern .shared .align 16 .b8 memory[];")
    driver.launch(source, found, sums, grid=4, block=256, shared=1028)
    np.testing.assert_array_equal(found, np.arange(1024).reshape(4, 256)[:, ::-1])
    np.testing.assert_array_equal(sums, [1023 * 512, 1023])


@pytest.mark.parametrize(("order", "last"), [("", 3), ("reverse", 0)])
def test_the_order_of_blocks(order: str, last: int, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that depends on it gives another result, so that one run each way shows it."""
    monkeypatch.setenv("HLORACLE_EMULATED_ORDER", order)
    found = np.zeros(1, np.uint32)
    driver.launch(ptx("mov.u32 %r1, %ctaid.x; st.global.u32 [%d0], %r1;", 1), found, grid=4)
    assert found == last


@pytest.mark.parametrize(
    ("instruction", "before", "after"),
    [
        ("atom.global.add.u32 %r1, [%d0], %tid;", 5, 5 + 255 * 128),
        ("red.global.min.s32 [%d0], %tid;", 7, 0),
        ("red.global.and.b32 [%d0], %tid;", 255, 0),
        ("red.global.or.b32 [%d0], %tid;", 256, 511),
        ("red.global.xor.b32 [%d0], %tid;", 3, 3),
        ("atom.global.inc.u32 %r1, [%d0], 99;", 0, 56),
        ("atom.global.dec.u32 %r1, [%d0], 99;", 0, 44),
        ("atom.global.exch.b32 %r1, [%d0], 77;", 5, 77),
        ("atom.global.cas.b32 %r1, [%d0], 5, 9;", 5, 9),
        ("atom.global.cas.b32 %r1, [%d0], 5, 9;", 6, 6),
        ("red.global.add.f32 [%d0], 0f3F000000;", 0, int(np.float32(128).view(np.uint32))),
        ("red.global.add.u64 [%d0], 0x80000000;", 1, 1 + (256 << 31)),
    ],
)
def test_atomics(instruction: str, before: int, after: int, driver: Driver) -> None:
    """Of 256 threads on one place."""
    found = np.array([before], np.uint64)
    driver.launch(ptx(instruction, 1), found, block=256)
    assert int(found[0]) == after


TWICE = """.func (.param .b32 result) twice(.param .b32 x) {
.reg .b32 %r<4>; .reg .pred %p<2>;
ld.param.b32 %r1, [x]; setp.gt.u32 %p1, %r1, 100; @%p1 bra large;
add.u32 %r1, %r1, %r1; st.param.b32 [result], %r1; ret;
large: mov.u32 %r2, 5; st.param.b32 [result], %r2; ret; }"""
THREAD = np.arange(200)


@pytest.mark.parametrize(
    ("outside", "body", "expected"),
    [
        pytest.param(
            TWICE, "{ .param .b32 a; .param .b32 b; st.param.b32 [a], %tid; call.uni (b), twice, (a);"
            " ld.param.b32 %r1, [b]; }", np.where(THREAD > 100, 5, 2 * THREAD), id="call",
        ),
        pytest.param(
            "", ".local .align 16 .b8 own[32]; mov.u64 %d1, own; cvta.local.u64 %d2, %d1;"
            " st.v4.u32 [%d2], {1, %tid, 2, 3}; ld.local.u32 %r1, [%d1+4];", THREAD, id="local",
        ),
        pytest.param(
            ".const .align 4 .u32 table[4] = {1, 2, 30, 4};",
            "and.b32 %r2, %tid, 3; mov.u64 %d1, table; mad.wide.u32 %d1, %r2, 4, %d1; ld.const.u32 %r1, [%d1];",
            np.array([1, 2, 30, 4])[THREAD % 4], id="const",
        ),
    ],
)  # fmt: skip
def test_calls_and_memory(outside: str, body: str, expected: Array, driver: Driver) -> None:
    found = np.zeros(200, np.uint32)
    store = "mad.wide.u32 %d0, %tid, 4, %d0; st.global.u32 [%d0], %r1;"
    driver.launch(ptx(body + store, 1, outside), found, block=200)
    np.testing.assert_array_equal(found, expected)


# ---- what is refused, each in a process of its own: a fault breaks the context for good

CHILD = """import ast, sys, numpy, test_emulator
try:
    driver = test_emulator.Driver(sys.argv[1])
    driver.launch(sys.argv[2], numpy.zeros(32, numpy.uint32), **ast.literal_eval(sys.argv[3]))
except test_emulator.CudaError as error:
    print(*error.args)
"""


def alone(path: Path, source: str, settings: dict[str, str] | None = None, **launch: int) -> tuple[str, str]:
    """Which function of the driver fails with what code, if one does, and what is said on stderr."""
    variables = {f"HLORACLE_EMULATED_{name}": value for name, value in (settings or {}).items()}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), source, repr(launch)], cwd=Path(__file__).parent, check=True,
        capture_output=True, text=True, env={**os.environ, **variables},
    )  # fmt: skip
    return done.stdout.strip(), done.stderr


DYNAMIC = ".extern .shared .align 16 .b8 memory[];"
LAUNCH, LOAD = "cuLaunchKernel", "cuModuleLoadData"


@pytest.mark.parametrize(
    ("body", "outside", "launch", "error", "words"),
    [
        pytest.param(*row[1:], id=row[0])
        for row in [
            ("beyond", "mad.wide.u32 %d0, %tid, 4, %d0; ld.global.u32 %r1, [%d0+4];", "", {}, f"{LAUNCH} 700",
             "ld.global.u32"),
            ("null", "mov.u64 %d1, 0; st.global.u32 [%d1], %tid;", "", {}, f"{LAUNCH} 700", "st.global.u32"),
            ("misaligned", "ld.global.u32 %r1, [%d0+2];", "", {}, f"{LAUNCH} 716", "ld.global.u32"),
            ("shared", "st.shared.u32 [memory+4096], %tid;", DYNAMIC, {"shared": 4096}, f"{LAUNCH} 700",
             "st.shared.u32"),
            ("local", ".local .align 4 .b8 own[16]; mov.u64 %d1, own; st.local.u32 [%d1+64], %tid;", "", {},
             f"{LAUNCH} 700", "st.local.u32"),
            ("trap", "trap;", "", {}, f"{LAUNCH} 719", "trap"),
            ("stuck", "setp.lt.u32 %p1, %tid, 16; @%p1 bra other; bar.sync 0; bra done;\n"
             "other: shfl.sync.idx.b32 %r1, %tid, 0, 31, -1;\ndone:", "", {}, f"{LAUNCH} 719", "never arrive"),
            ("instruction", "frobnicate.u32 %r1, %tid;", "", {}, f"{LOAD} 218", "frobnicate.u32 %r1"),
            ("modifier", "add.frob.u32 %r1, %tid, %tid;", "", {}, f"{LOAD} 218", 'modifier "frob" not supported'),
            ("large block", "", "", {"block": 1025}, f"{LAUNCH} 1", "more than 1024 threads"),
            ("much shared", "", "", {"shared": 50000}, f"{LAUNCH} 1", "more shared memory than the kernel may use"),
            ("odd row", "mov.u32 %r1, memory; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1+8];", SHARED, {},
             f"{LAUNCH} 716", "ldmatrix"),
            ("copy beyond", "mov.u32 %r1, memory; cp.async.ca.shared.global [%r1+512], [%d0], 16;", SHARED, {},
             f"{LAUNCH} 700", "cp.async"),
        ]
    ],
)  # fmt: skip
def test_faults(body: str, outside: str, launch: dict[str, int], error: str, words: str, path: Path) -> None:
    found, said = alone(path, ptx(body, 1, outside), **launch)
    assert found == error
    assert words in said


@pytest.mark.parametrize(
    ("target", "settings", "error", "words"),
    [
        ("sm_90", {}, f"{LOAD} 218", "the PTX is for sm_90 and the device's compute capability is 8.9"),
        ("sm_90", {"CAPABILITY": "9.0"}, "", ""),
        ("sm_89", {"CAPABILITY": "8.0"}, f"{LOAD} 218", "capability is 8.0"),
        ("sm_89", {"MEMORY": "127"}, "cuMemAlloc_v2 2", ""),
        ("sm_89", {"MEMORY": "4096"}, "", ""),
        ("sm_89", {"DEVICES": "0"}, "cuInit 100", ""),
        ("sm_89", {"TRACE": "1"}, "", "launch kernel grid 1,1,1 block 32,1,1 shared 0"),
    ],
)
def test_settings(target: str, settings: dict[str, str], error: str, words: str, path: Path) -> None:
    found, said = alone(path, ptx("", 1).replace("sm_89", target), settings)
    assert found == error
    assert words in said
    assert said or not words
