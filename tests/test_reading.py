"""Graphs in the forms in which people have them: read as text, with the names by which an ABI file may call what they take."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graphs import parse, run
from jax import export
from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hloracle.core.abi import Abi, Graph
from hloracle.core.errors import InputError
from hloracle.foreign import reading
from hloracle.foreign.opening import signatures_of
from hloracle.foreign.reading import NAME_IT, read_text
from hloracle.foreign.signature import quoted_symbol, ssa_names

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Y = np.full(3, 2, np.int32)


def step(params: dict[str, Any], token: Any) -> dict[str, Any]:
    return {"logits": params["w"] * token, "cache": (params["w"].sum(), token + 1)}


SHAPES = ({"w": jax.ShapeDtypeStruct((2, 3), jnp.float32)}, jax.ShapeDtypeStruct((3,), jnp.int32))


@cache
def exported() -> export.Exported:
    return export.export(jax.jit(step), platforms=["cpu"])(*SHAPES)


def text() -> str:
    return jax.jit(step).lower(*SHAPES).as_text(debug_info=True)


def bytecode() -> bytes:
    buffer = io.BytesIO()
    module = parse(text())
    with module.context:
        module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def artifact(version: str) -> bytes:
    found: bytes = stablehlo.serialize_portable_artifact_str(text(), version)
    return found


OLD = stablehlo.get_minimum_version()
FORMS: dict[str, Callable[[], bytes]] = {
    "text": lambda: text().encode(),
    "text after a byte order mark": lambda: b"\xef\xbb\xbf" + text().encode(),
    "text after a comment": lambda: "// é\n".encode() + text().encode(),
    "text of Windows": lambda: text().replace("\n", "\r\n").encode(),
    "bytecode": bytecode,
    "a portable artifact": lambda: artifact(stablehlo.get_current_version()),
    "an old portable artifact": lambda: artifact(OLD),
    "bytecode of jax.export": lambda: exported().mlir_module_serialized,
    "an archive of jax.export": lambda: bytes(exported().serialize()),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form(form: str, tmp_path: Path) -> None:
    """It computes what it did; its arguments and results have their names, where the form keeps them."""
    path = tmp_path / "g"
    path.write_bytes(FORMS[form]())
    found = read_text(path)
    (signature,) = signatures_of(found, path).values()
    assert signature.function == "main"
    assert [(p.shape, p.dtype) for p in signature.arguments] == [((2, 3), "f32"), ((3,), "i32")]
    assert [p.type for p in signature.results] == ["tensor<f32>", "tensor<3xi32>", "tensor<2x3xf32>"]
    if "artifact" not in form:  # VHLO's versions drop what names arguments from some
        assert "params['w']" in signature.arguments[0].names
    assert signature.arguments[1].names[-1] == "1"
    total, more, product = run(Graph("g", found, Abi("decode", (), ())), X, Y)
    np.testing.assert_array_equal(product, X * Y)
    np.testing.assert_array_equal(more, Y + 1)
    assert total == X.sum()


def test_results_have_the_names_that_jax_gives_them(tmp_path: Path) -> None:
    path = tmp_path / "g.mlir"
    path.write_text(text())
    (signature,) = signatures_of(read_text(path), path).values()
    assert [p.names[0] for p in signature.results] == ["result['cache'][0]", "result['cache'][1]", "result['logits']"]
    assert str(signature.results[0]) == "result['cache'][0] (tensor<f32>)"


# ---- damage


def refused(data: bytes, folder: Path) -> str:
    path = folder / "g.mlirbc"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        signatures_of(read_text(path), path)
    line = str(caught.value)
    assert line.isprintable()
    return line.removeprefix(f"{path}")


@pytest.mark.parametrize("form", [name for name in FORMS if "text" not in name])
def test_what_is_cut(form: str, tmp_path: Path) -> None:
    data = FORMS[form]()
    for end in (len(data) - 100, len(data) // 2, 5):
        said = refused(data[:end], tmp_path)
        assert re.match(
            r"(:\d+:\d+)?: (cannot be read as MLIR bytecode \(|is no archive of jax.export, or is damaged|is not text \()",
            said,
        )
        assert said.endswith(NAME_IT)


def test_what_is_no_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(b"", tmp_path) == f": is empty; {NAME_IT}"
    assert refused(b"\x7fELF\xff", tmp_path) == f": is not text (byte 0xff at offset 4 is no UTF-8); {NAME_IT}"
    assert refused(b"module { foo.bar }", tmp_path).startswith(":1:10: is not valid: ")
    assert refused(b"\x20\0\0\0ML\xefRjunk", tmp_path).startswith(": is no archive of jax.export, or is damaged; ")
    monkeypatch.setattr(reading, "LARGEST", 100)
    assert refused(text().encode(), tmp_path) == f": has more than 100 bytes, and no more is read; {NAME_IT}"
    with pytest.raises(InputError, match="no such file"):
        read_text(tmp_path / "none")


SPENT = """
import time
from hloracle.foreign import reading
def spend():
    end = time.process_time() + 0.4
    while time.process_time() < end:
        pass
spend()
with reading._bounded(2**30, 0.2):
    {within}
spend()
print("goes on")
"""


@pytest.mark.parametrize(("within", "said", "status"), [("pass", "goes on\n", 0), ("spend()", "", -signal.SIGPROF)])
def test_the_time_that_bytecode_may_take(within: str, said: str, status: int) -> None:
    """What the process has spent before, and spends after it, does not count."""
    done = subprocess.run([sys.executable, "-c", SPENT.format(within=within)], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == (said, status), done.stderr


def test_an_archive_for_two_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    two = dataclasses.replace(exported(), nr_devices=2)
    monkeypatch.setattr(export, "deserialize", lambda data: two)
    assert refused(bytes(exported().serialize()), tmp_path) == ": is for 2 devices; export it for one"


# ---- signatures


def signature(source: str) -> dict[str, Any]:
    return {name: [p.names for p in s.arguments] for name, s in signatures_of(source, Path("g.mlir")).items()}


ARGUMENTS = {
    "ssa names": ("%token: tensor<i32>, %l0.wq: tensor<2x3xf32>", [("token", "0"), ("l0.wq", "1")]),
    "numbers": ("%arg0: tensor<i32>, %1: tensor<i32>", [("arg0", "0"), ("1",)]),
    "locations": ("%a: tensor<i32> loc(\"params['x']\")", [("a", "params['x']", "0")]),
    "attributes": ('%a: tensor<i32> {jax.arg_info = "x[0]"}', [("a", "x[0]", "0")]),
    "all of it": ('%a: tensor<i32> {x.y = {z = "%b: ) }"}} loc("p")', [("a", "p", "0")]),
    "comments": ("%a: tensor<i32>, // %no: tensor<i32>)\n %b: tensor<i32>", [("a", "0"), ("b", "1")]),
    "nothing": ("", []),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("function", ["main", "step.1$", "my step"])
def test_the_names_of_arguments(function: str, name: str) -> None:
    arguments, wanted = ARGUMENTS[name]
    source = f"""\
// func.func @{function}(%wrong: tensor<i32>) {{
module {{
  func.func @before(%wrong: tensor<i32>, %w: tensor<i32>) {{ return }}
  func.func @{quoted_symbol(function)}({arguments}) {{ return }}
}}"""
    assert signature(source)[function] == wanted


def test_a_name_that_has_to_be_escaped() -> None:
    assert quoted_symbol('a"b\\é') == '"a\\22b\\5C\\C3\\A9"'
    assert signature('module { func.func @"a\\22b"(%x: tensor<i32>) { return } }') == {'a"b': [("x", "0")]}
    assert list(ssa_names("nothing of the kind", "main")) == []


def test_the_functions_that_can_be_called() -> None:
    """Those that are private, declared or of several blocks are none, whether or not all say what they are."""
    body = """\
  func.func @main(%a: tensor<i32>) -> tensor<i32> { return %a : tensor<i32> }
  func.func KIND @helper(%a: tensor<?xi32>) { return }
  func.func private @declared(tensor<*xi32>)
  func.func @blocks(%a: i32) {
    cf.br ^a
  ^a:
    return
  }
"""
    for kind in ("private", "nested"):
        assert list(signature("module {\n" + body.replace("KIND", kind) + "}")) == ["main"]
    assert list(signature("module { func.func public @f() { return } func.func @g() { return } }")) == ["f", "g"]


@pytest.mark.parametrize(("type", "said"), [
    ("tensor<?xf32>", "the graph: argument 0 is tensor<?xf32>; give it known sizes, and a dtype that weights have"),
    ("tensor<2xcomplex<f32>>", "the graph: argument 0 is tensor<2xcomplex<f32>>; give it known sizes, and a dtype that weights have"),
    ("tensor<2xi4>", "the graph: argument 0 is tensor<2xi4>; give it known sizes, and a dtype that weights have"),
    ("f32", "the graph: argument 0 is f32; give it known sizes, and a dtype that weights have"),
])  # fmt: skip
def test_types_that_no_buffer_has(type: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        signature(f"module {{ func.func @main(%a: {type}) {{ return }} }}")
    assert str(caught.value) == said


@pytest.mark.parametrize(
    "name",
    [
        'func.func @"a\\E0"() {',
        'func.func private @"a\\E0"() func.func @main() {',
        'func.func @main(%a: tensor<i32> {jax.arg_info = "\\E0"}) {',
    ],
)
def test_names_that_are_no_text(name: str) -> None:
    with pytest.raises(InputError) as caught:
        signature(f"module {{ {name} return }} }}")
    assert str(caught.value) == "g.mlir: has a name that is no UTF-8; write names in UTF-8"


def test_the_text_keeps_its_locations() -> None:
    with mlir.make_ir_context():
        module = ir.Module.parse('module { func.func @main(%a: tensor<f32> loc("x")) { return loc("y") } }')
        printed = reading.printed(module)
    assert 'loc("x")' in printed
    assert 'loc("y")' in printed
    assert "#loc" not in printed
