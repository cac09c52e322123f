"""A graph from a file that is none, that is not its ABI's, or not the model's: one line, before anything runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from jaxlib.version import __version__ as jaxlib

from hloracle.conformance.graphs import files as file_graphs
from hloracle.conformance.graphs.files import fits, read_graph, refusal
from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.errors import InputError
from hloracle.emitters.model import emit
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.fixtures.tiny import TINY, write_tiny
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.registry import from_hf

CONFIG = from_hf(TINY["llama"])
DECODE, PREFILL = (emit(CONFIG, phase, "logits", 64, 32) for phase in ("decode", "prefill"))
PYTHON = re.compile(r"__\w+__|NoneType|object is not|not iterable|not subscriptable|Error|Traceback|Tensor\(")
PATH = Path("g.mlir")
GIVE = "give the ABI that belongs to this graph with --abi"
ANOTHER = 'name another one in the ABI\'s "function" key'
MEND = f"mend it, or write StableHLO as of jaxlib {jaxlib}"
MODEL = "name the model that the graph was written for"


def line_of(error: BaseException | None) -> str:
    assert isinstance(error, InputError)
    line = str(error)
    assert line.isprintable()
    assert not PYTHON.search(line), line
    return line


# ---- what is read


TEXT = "name a StableHLO text file"
FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", f": is empty; {TEXT}"),
    "blank": (b"\n \n", f": is empty; {TEXT}"),
    "bytecode": (b"ML\xefR\x01StableHLO\0", f": is not text but MLIR bytecode; {TEXT}: `stablehlo-translate --deserialize` writes one of it"),
    "binary": (b"\x7fELF\x02\x01\x01\0\0\xff", f": is not text (byte 0xff at offset 9 is no UTF-8); {TEXT}"),
    "a NUL": (b"module {\r\n  \0}", f":2:3: is not text (there is a NUL); {TEXT}"),
    "enormous": (b"// " + b"x" * 4096, f": has more than 4,096 bytes, and no more is read; {TEXT}"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_text(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_graphs, "LARGEST", 4096)
    content, line = FILES[name]
    path = tmp_path / "g.mlir"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_graph(path, tmp_path / "none")
    assert line_of(caught.value) == f"{path}{line}"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path, what in (
        (tmp_path / "none", "no such file"),
        (tmp_path, "cannot be read (Is a directory)"),
        (Path("a\0b"), "is no name of a file"),
        (tmp_path / ("x" * 300), "cannot be read (File name too long)"),
    ):
        with pytest.raises(InputError, match=f"{re.escape(what)}; {TEXT}"):
            read_graph(path, tmp_path / "none")


def test_a_graph_with_its_abi(tmp_path: Path) -> None:
    """Its lines and columns stay, whatever ends a line and whatever comes before the first."""
    path, abi = tmp_path / "g.mlir", tmp_path / "g.abi.json"
    path.write_bytes(b"\xef\xbb\xbf" + DECODE.text.replace("\n", "\r\n").encode())
    with pytest.raises(InputError, match=r"g\.abi\.json: no such file"):
        read_graph(path, abi)
    abi.write_text(DECODE.abi.to_json())
    assert read_graph(path, abi) == Graph("g", DECODE.text, DECODE.abi)


# ---- what is no graph of its ABI


def text(old: str, new: str) -> str:
    assert old in DECODE.text
    return DECODE.text.replace(old, new)


RESHAPE = '%1 = "stablehlo.reshape"(%a) : (tensor<3xf32>) -> tensor<4xf32>'
RESHAPED = f"module {{ func.func public @main(%a: tensor<3xf32>) {{\n  {RESHAPE}LOC\n  return\n}}}}"
FOUR = f"number of output elements (4) doesn't match expected number of elements (3); {MEND}"
# Taken for a location, from the name to what belongs to it.
HIDING = '{ func.func private @"loc("() attributes {b = ")"} '
AT_X = FOUR.replace(";", ', at loc("x");')
MAIN = "func.func public @main("
ALL = len(DECODE.abi.arguments)
EMBED = "model.embed_tokens.weight"
FUNCTIONS = "".join(f'func.func private @"f{i}"()\n' for i in range(7))
CALLED = "func.func private @other() { return }\n  func.func public @main("
GRAPHS: dict[str, tuple[str, str]] = {
    # parser and verifiers
    "no MLIR": ("once upon\na time", f":1:1: is not valid: custom op 'once' is unknown (tried 'builtin.once' as well); {MEND}"),
    "a name that is no UTF-8": (f'module {{ func.func private @"a\\E0"()\n {MAIN}) {{ return }} }}', ": has a name that is no UTF-8; write names in UTF-8"),
    "cut": ("module {\n", f":1:9: is not valid: expected operation name in quotes; {MEND}"),
    "an unknown operation": ("module {\n  stablehlo.softmax\n}", f":2:3: is not valid: custom op 'stablehlo.softmax' is unknown; {MEND}"),
    "an unknown dialect": ("module {\n  tosa.add\n}", f":2:3: is not valid: Dialect `tosa' not found for custom op 'tosa.add'; {MEND}"),
    "does not verify": (RESHAPED.replace("LOC", ""), f":2:8: is not valid: {FOUR}"),
    "does not verify in a scope": (RESHAPED.replace("LOC", ' loc("layers.0.q(rope"("x":1:2))'), f":2:8: is not valid: {FOUR}"),
    "does not verify in a source": (f'#loc7 = loc("model.py":300:1)\n{RESHAPED.replace("LOC", " loc(#loc7)")}', f":3:8: is not valid: {FOUR}"),
    "does not verify behind a name like a location": (RESHAPED.replace("{", HIDING, 1).replace("LOC", ' loc("x")'),
                                                      f":2:8: is not valid: {FOUR}"),
    "does not verify, who knows where": (RESHAPED.replace("LOC", ' loc(\n"x")'), f": is not valid: {AT_X}"),
    "two of one name": ("module {\n  func.func private @a()\n  func.func private @a()\n}",
                        f":3:3: is not valid: redefinition of symbol named 'a'; {MEND}"),
    "a call of nobody": ("module { func.func @main() {\n  call @b() : () -> ()\n  return } }",
                         f":2:3: is not valid: 'func.call' op 'b' does not reference a valid function; {MEND}"),
    "a long name": (f'module {{ "{"y" * 300}.x"() : () -> () }}',
                    ":1:314: is not valid: operation being parsed with an unregistered dialect. If this is intended, "
                    f"please use -allow-unregistered-dialect with the MLIR tool used; {MEND}"),
    # modules and functions
    "a module in another": (f"module {{ {DECODE.text} }}", ": holds a module inside a module; write one module"),
    "two modules": (f"{DECODE.text}\nmodule {{}}", ": holds 2 modules; write one module"),
    "nothing": ("// nothing", ": has no function @main; it has none; write it"),
    "of another name": (text("@main", "@forward"), f": has no function @main; it has @forward; {ANOTHER}"),
    "many others": (f"module {{ {FUNCTIONS} }}", f": has no function @main; it has @f0, @f1, @f2, @f3, @f4 and 2 more; {ANOTHER}"),
    "a name that turns": ('module { func.func private @"\u202e\\0A"() }', f": has no function @main; it has @\\u202e; {ANOTHER}"),
    "a declaration": ("module { func.func private @main() }", f": @main is declared and has no body; write one, or {ANOTHER}"),
    "private": (text(MAIN, "func.func private @main("), f": @main is private, so that nothing can call it; make it public, or {ANOTHER}"),
    "nested": (text(MAIN, "func.func nested @main("), f": @main is nested, so that nothing can call it; make it public, or {ANOTHER}"),
    "two blocks": ("module { func.func @main() {\n  cf.br ^a\n^a:\n  return } }",
                   ": @main has 2 blocks; write it as one: StableHLO branches inside operations"),
    # the signature
    "without arguments": ("module { func.func @main() { return } }",
                          f": @main has 0 arguments, and the ABI {ALL}: arguments[0] ({EMBED}), tensor<257x84xf32>, is missing; {GIVE}"),
    "one more": (re.sub(r"(\) -> \()", r", %more: tensor<?xf32>\1", DECODE.text, count=1),
                 f": @main has {ALL + 1} arguments, and the ABI {ALL}: the ABI has no arguments[{ALL}], tensor<?xf32>; {GIVE}"),
    "one more in between": (text(f"%{EMBED}:", f"%more: tensor<f32>, %{EMBED}:"),
                            f": @main has {ALL + 1} arguments, and the ABI {ALL}: arguments[0] ({EMBED}) is tensor<f32>, "
                            f"and the ABI says tensor<257x84xf32>; {GIVE}"),
    "f64": ("module { func.func @main(%a: tensor<257x84xf64>) { return } }",
            f": @main has 1 arguments, and the ABI {ALL}: arguments[0] ({EMBED}) is tensor<257x84xf64>, and the ABI says tensor<257x84xf32>; {GIVE}"),
    "a tuple": ("module { func.func @main(%a: tuple<tensor<f32>>) { return } }",
                f": @main has 1 arguments, and the ABI {ALL}: arguments[0] ({EMBED}) is tuple<tensor<f32>>, and the ABI says tensor<257x84xf32>; {GIVE}"),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_that_is_none(name: str) -> None:
    written, line = GRAPHS[name]
    assert line_of(refusal(dataclasses.replace(DECODE, text=written), PATH)) == f"g.mlir{line}"


def with_results(*results: Tensor) -> Graph:
    return dataclasses.replace(DECODE, abi=dataclasses.replace(DECODE.abi, results=results))


def test_results_that_are_not_the_abis() -> None:
    logits, k_cache, v_cache = DECODE.abi.results
    for graph, words in (
        (with_results(logits, k_cache), "@main has 3 results, and the ABI 2: the ABI has no results[2], tensor<3x2x64x16xf32>"),
        (with_results(logits, k_cache, dataclasses.replace(v_cache, shape=(3, 2, 64, 8))),
         "results[2] (v_cache) is tensor<3x2x64x16xf32>, and the ABI says tensor<3x2x64x8xf32>"),
        (with_results(Tensor("token", "token", (), "i32"), k_cache, v_cache),
         "results[0] (token) is tensor<257xf32>, and the ABI says tensor<i32>"),
    ):  # fmt: skip
        assert line_of(refusal(graph, PATH)) == f"g.mlir: {words}; {GIVE}"


FINE: dict[str, Graph] = {
    "as it is": DECODE,
    "a prefill": PREFILL,
    "without a module around it": dataclasses.replace(DECODE, text=DECODE.text[DECODE.text.index("func.func") : DECODE.text.rindex("}")]),
    "beside a private function": dataclasses.replace(DECODE, text=text(MAIN, CALLED)),
    "without donations": dataclasses.replace(DECODE, text=re.sub(r" \{tf\.aliasing_output = \d : i32\}", "", DECODE.text)),
    "other donations": with_results(*(dataclasses.replace(r, aliases=None) for r in DECODE.abi.results)),
    "f64 inside": dataclasses.replace(DECODE, text=text(
        "func.return ", "%wide = stablehlo.constant dense<0.1> : tensor<f64>\n    func.return ")),
    "a function that calls itself": dataclasses.replace(DECODE, text=text(
        MAIN, f"func.func private @again() {{\n    call @again() : () -> ()\n    return\n  }}\n  {MAIN}")),
    "of another name": dataclasses.replace(
        DECODE, text=text("@main", '@"a step"'), abi=dataclasses.replace(DECODE.abi, function="a step")),
}  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_what_gets_a_verdict(name: str) -> None:
    assert refusal(FINE[name], PATH) is None


# ---- what is not the model's


@pytest.fixture(scope="module")
def checkpoint(cache: Path) -> Checkpoint:
    return open_checkpoint(resolve("tiny-llama"))


def argument(index: int, **changes: object) -> Callable[[Abi], Abi]:
    def change(abi: Abi) -> Abi:
        arguments = list(abi.arguments)
        arguments[index] = dataclasses.replace(arguments[index], **changes)  # type: ignore[arg-type]
        return dataclasses.replace(abi, arguments=tuple(arguments))

    return change


def result(role: str, shape: tuple[int, ...]) -> Callable[[Abi], Abi]:
    """Of this shape, as an argument too."""

    def change(abi: Abi) -> Abi:
        changed = [[dataclasses.replace(t, shape=shape) if t.role == role else t for t in part]
                   for part in (abi.arguments, abi.results)]  # fmt: skip
        return dataclasses.replace(abi, arguments=tuple(changed[0]), results=tuple(changed[1]))

    return change


UP = next(i for i, a in enumerate(DECODE.abi.arguments) if a.name == "model.layers.0.mlp.up_proj.weight")
AXES = "give the caches these axes, in the graph and in its ABI"
OTHERS: dict[str, tuple[Graph, Callable[[Abi], Abi], str]] = {
    "a misspelt weight": (DECODE, argument(UP, name="model.layers.0.mlp.upproj.weight"),
                          "the model has no weight model.layers.0.mlp.upproj.weight, the nearest is "
                          f"model.layers.0.mlp.up_proj.weight; {MODEL}, and its --precision"),
    "a layer that is not there": (DECODE, argument(UP, name="model.layers.31.mlp.up_proj.weight"),
                                  "the model has no weight model.layers.31.mlp.up_proj.weight, the nearest is "
                                  f"model.layers.1.mlp.up_proj.weight; {MODEL}, and its --precision"),
    "a weight like no other": (DECODE, argument(0, name="wte"), f"the model has no weight wte; {MODEL}, and its --precision"),
    "a transposed weight": (DECODE, argument(0, shape=(84, 257)),
                            f"weight {EMBED} is [84, 257] f32, and in the model it is [257, 84] f32; {MODEL}, and its --precision"),
    "a narrow weight": (DECODE, argument(0, dtype="bf16"),
                        f"weight {EMBED} is [257, 84] bf16, and in the model it is [257, 84] f32; {MODEL}, and its --precision"),
    "logits": (PREFILL, result("logits", (256,)), f"logits are [256] f32, and in the model they are [257] f32; {MODEL}"),
    "layers and heads in one axis": (DECODE, lambda abi: result("v_cache", (1, 6, 64, 16))(result("k_cache", (1, 6, 64, 16))(abi)),
                                     "k_cache is [1, 6, 64, 16] f32, and in the model it is [3, 2, S, 16] f32: "
                                     f"layers, key/value heads, slots, numbers of each; {AXES}"),
    "slots before heads": (DECODE, result("k_cache", (3, 64, 2, 16)),
                           "k_cache is [3, 64, 2, 16] f32, and in the model it is [3, 2, S, 16] f32: "
                           f"layers, key/value heads, slots, numbers of each; {AXES}"),
    "narrow values": (DECODE, result("v_cache", (3, 2, 64, 8)),
                      "v_cache is [3, 2, 64, 8] f32, and in the model it is [3, 2, S, 16] f32: "
                      f"layers, key/value heads, slots, numbers of each; {AXES}"),
    "fewer slots than tokens": (PREFILL, lambda abi: result("v_cache", (3, 2, 31, 16))(result("k_cache", (3, 2, 31, 16))(abi)),
                                "tokens are 32, and the caches have 31 slots; give the caches a slot for each token"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_graph_of_another_model(name: str, checkpoint: Checkpoint) -> None:
    graph, change, line = OTHERS[name]
    with pytest.raises(InputError) as caught:
        fits(dataclasses.replace(graph, abi=change(graph.abi)), Path("g.abi.json"), checkpoint)
    assert line_of(caught.value) == f"g.abi.json: {line}"


@pytest.mark.parametrize("graph", [DECODE, PREFILL], ids=lambda graph: graph.abi.phase)
def test_a_graph_of_the_model(graph: Graph, checkpoint: Checkpoint) -> None:
    fits(graph, Path("g.abi.json"), checkpoint)


def test_caches_of_a_latent(tmp_path: Path) -> None:
    """Keys and values have widths of their own, and one head."""
    opened = open_checkpoint(write_tiny(tmp_path / "model", "deepseek_v3"))
    graph = emit(opened.config, "decode", "logits", 64)
    fits(graph, Path("g.abi.json"), opened)
    wrong = dataclasses.replace(graph, abi=result("v_cache", (2, 1, 64, 36))(graph.abi))
    with pytest.raises(
        InputError, match=re.escape("v_cache is [2, 1, 64, 36] f32, and in the model it is [2, 1, S, 8]")
    ):
        fits(wrong, Path("g.abi.json"), opened)
