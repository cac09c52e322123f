"""The ABI file: every mistake in one is one line that says what, where and what to write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hloracle.core.abi import DTYPE_BYTES, ENCODINGS, Abi
from hloracle.core.abi_file import FORM
from hloracle.core.errors import InputError
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.contract import graph_abi
from hloracle.reference.model.registry import from_hf

CONFIG = from_hf(TINY["llama"])
DECODE, PREFILL = (graph_abi(CONFIG, phase, "logits", 64, 32) for phase in ("decode", "prefill"))
# Entries of DECODE: 30 weights, the token, the position and the caches.
NORM, TOKEN, K_CACHE = 1, len(DECODE.arguments) - 4, len(DECODE.arguments) - 2
ENTRY = "its keys are role, name, shape, dtype, encoding, aliases"
TOP = "its keys are phase, arguments, results, function, positions, windowed"
ENCODED = "name a weight that is encoded WEIGHT.ENCODING: see docs/encodings.md"
DOCS = Path(__file__).parents[1] / "docs" / "abi.md"
PYTHON = re.compile(r"__\w+__|NoneType|object is not|not iterable|not subscriptable|Error|Traceback|Tensor\(|\bself\b")

Change = Callable[[Any], Any]


def put(*path: Any) -> Change:
    """Puts a value at a place: the last of what is given, at those before it."""
    *steps, key, value = path

    def change(raw: Any) -> None:
        for step in steps:
            raw = raw[step]
        raw[key] = value

    return change


def drop(*path: Any) -> Change:
    def change(raw: Any) -> None:
        for step in path[:-1]:
            raw = raw[step]
        del raw[path[-1]]

    return change


def move(key: str, old: int, new: int) -> Change:
    return lambda raw: raw[key].insert(new, raw[key].pop(old))


def refused(path: Path) -> str:
    """What is said of an ABI file, without its name."""
    with pytest.raises(InputError) as caught:
        Abi.from_file(path)
    line = str(caught.value)
    assert "\n" not in line
    assert line.isprintable()
    assert not PYTHON.search(line), line
    assert line.startswith(f"{path}")
    return line.removeprefix(f"{path}").removeprefix(": ")


TAP = {"role": "tap", "name": "norm", "shape": [84], "dtype": "f32"}
SIZE = "not a size from 1 to 2147483647"
ENTRIES: dict[str, tuple[Change, str]] = {
    # keys
    "a key of the top": (put("functions", "main"), f"has an unknown key 'functions'; did you mean 'function'? {TOP}"),
    "a key like no other": (put("version", 1), f"has an unknown key 'version'; take it out: {TOP}"),
    "a key of an argument": (put("arguments", NORM, "dtpye", "f32"),
                             f"arguments[1] has an unknown key 'dtpye'; did you mean 'dtype'? {ENTRY}"),
    "a key of a result": (put("results", 2, "donates", 3), f"results[2] has an unknown key 'donates'; take it out: {ENTRY}"),
    "a key that hides": (put("results", 2, "\ud800\n", 3),
                         f"results[2] has an unknown key '\\ud800\\n'; take it out: {ENTRY}"),
    "a very long key": (put("x" * 10**6, 3), f"has an unknown key '{'x' * 59}…'; take it out: {TOP}"),
    "no phase": (drop("phase"), f"has no 'phase'; write it: {TOP}"),
    "no shape": (drop("arguments", 3, "shape"), f"arguments[3] has no 'shape'; write it: {ENTRY}"),
    # types
    "phase a list": (put("phase", ["decode"]), f"phase is a list, not one of prefill, extend, decode; {FORM}"),
    "phase unknown": (put("phase", "train"), f"phase is 'train', not one of prefill, extend, decode; {FORM}"),
    "arguments an object": (put("arguments", {}), f"arguments is an object, not a list; {FORM}"),
    "results null": (put("results", None), f"results is null, not a list; {FORM}"),
    "an entry a list": (put("arguments", 3, ["weight"]), f"arguments[3] is a list, not an object; {FORM}"),
    "an entry null": (put("results", 0, None), f"results[0] is null, not an object; {FORM}"),
    "role unknown": (put("arguments", 0, "role", "bias"),
                     f"arguments[0].role is 'bias', not one of weight, token, tokens, position, length, row, total, k_cache, v_cache, k_ring, v_ring, k_scale, v_scale, state; {FORM}"),
    "role of a result": (put("results", 0, "role", "weight"),
                         f"results[0].role is 'weight', not one of token, logits, k_cache, v_cache, k_ring, v_ring, k_scale, v_scale, state, tap; {FORM}"),
    "role a number": (put("results", 0, "role", 1), f"results[0].role is 1, not one of token, logits, k_cache, v_cache, k_ring, v_ring, k_scale, v_scale, state, tap; {FORM}"),
    "name a number": (put("arguments", 0, "name", 3), f"arguments[0].name is 3, not a string; {FORM}"),
    "name empty": (put("arguments", 0, "name", ""), f"arguments[0].name is '', of 0 characters and not of 1 to 500; {FORM}"),
    "name too long": (put("arguments", 0, "name", "w" * 501),
                      f"arguments[0].name is '{'w' * 59}…', of 501 characters and not of 1 to 500; {FORM}"),
    "name of two lines": (put("arguments", 0, "name", "a\nb"), f"arguments[0].name is 'a\\nb', which cannot be printed; {FORM}"),
    "name a surrogate": (put("arguments", 0, "name", "\ud800"), f"arguments[0].name is '\\ud800', which cannot be printed; {FORM}"),
    "name that turns": (put("arguments", 0, "name", "a\u202eb"),
                        f"arguments[0].name is 'a\\u202eb', which cannot be printed; {FORM}"),
    "shape a string": (put("arguments", 0, "shape", "257x84"), f"arguments[0].shape is '257x84', not a list of sizes; {FORM}"),
    "shape a number": (put("arguments", 0, "shape", 84), f"arguments[0].shape is 84, not a list of sizes; {FORM}"),
    "shape of strings": (put("arguments", 0, "shape", ["a"]), f"arguments[0].shape[0] is 'a', {SIZE}; {FORM}"),
    "shape of bools": (put("arguments", 0, "shape", [257, True]), f"arguments[0].shape[1] is true, {SIZE}; {FORM}"),
    "shape of floats": (put("arguments", 0, "shape", [257.0, 84]), f"arguments[0].shape[0] is 257.0, {SIZE}; {FORM}"),
    "shape negative": (put("arguments", 0, "shape", [-1, 84]), f"arguments[0].shape[0] is -1, {SIZE}; {FORM}"),
    "shape of nothing": (put("results", 1, "shape", [3, 2, 0, 16]), f"results[1].shape[2] is 0, {SIZE}; {FORM}"),
    "shape huge": (put("arguments", 0, "shape", [2**63, 84]), f"arguments[0].shape[0] is 9223372036854775808, {SIZE}; {FORM}"),
    "dtype unknown": (put("arguments", 0, "dtype", "f8"), f"arguments[0].dtype is 'f8', not one of {', '.join(DTYPE_BYTES)}; {FORM}"),
    "dtype null": (put("arguments", 0, "dtype", None), f"arguments[0].dtype is null, not one of {', '.join(DTYPE_BYTES)}; {FORM}"),
    "encoding a list": (put("arguments", 0, "encoding", ["int8.low"]),
                        f"arguments[0].encoding is a list, not one of {', '.join(ENCODINGS)}; {FORM}"),
    "half an encoding": (put("arguments", 0, "encoding", "int8"),
                         f"arguments[0].encoding is 'int8', not one of {', '.join(ENCODINGS)}; {FORM}"),
    "alias a float": (put("results", 1, "aliases", 1.5), f"results[1].aliases is 1.5, not the index of an argument or null; {FORM}"),
    "alias a bool": (put("results", 1, "aliases", True), f"results[1].aliases is true, not the index of an argument or null; {FORM}"),
    "alias negative": (put("results", 1, "aliases", -2), f"results[1].aliases is -2, not the index of an argument or null; {FORM}"),
    "function empty": (put("function", ""), f"function is '', of 0 characters and not of 1 to 500; {FORM}"),
    "function null": (put("function", None), f"function is null, not a string; {FORM}"),
    "function a surrogate": (put("function", "\udcff"), f"function is '\\udcff', which cannot be printed; {FORM}"),
    # what an entry says of itself
    "a name of its own": (put("arguments", TOKEN, "name", "input_ids"),
                          f"arguments[{TOKEN}].name is 'input_ids', and its role 'token'; "
                          'write "name": "token": only weights and taps have names of their own'),
    "encoded by its name alone": (put("arguments", 0, "name", "w.bf16.panels"),
                                  f"arguments[0].encoding is 'plain', and its name is 'w.bf16.panels'; {ENCODED}"),
    "encoded otherwise": (put("arguments", 0, {**TAP, "role": "weight", "name": "w.bf16.panels", "encoding": "panels"}),
                          f"arguments[0].encoding is 'panels', and its name is 'w.bf16.panels'; {ENCODED}"),
    "an encoded token": (put("arguments", TOKEN, "encoding", "bf16"),
                         f"arguments[{TOKEN}].encoding is 'bf16', and it is no weight; {ENCODED}"),
    "an argument that aliases": (put("arguments", 0, "aliases", 1),
                                 "arguments[0].aliases is 1, and it is no result; say it at the result that takes over an argument's buffer"),
    # what has to be true of all together
    "no token": (drop("arguments", TOKEN),
                 f"a decode graph takes token, position, k_cache, v_cache after the weights, not position, k_cache, v_cache; {FORM}"),
    "no arguments": (put("arguments", []),
                     f"a decode graph takes token, position, k_cache, v_cache after the weights, not nothing; {FORM}"),
    "of the other phase": (put("phase", "prefill"),
                           f"a prefill graph takes tokens, length after the weights, not token, position, k_cache, v_cache; {FORM}"),
    "caches in another order": (move("arguments", K_CACHE, K_CACHE + 1),
                                f"a decode graph takes token, position, k_cache, v_cache after the weights, "
                                f"not token, position, v_cache, k_cache; {FORM}"),
    "very many tokens": (put("arguments", [DECODE.arguments[TOKEN].__dict__] * 1000),
                         "a decode graph takes token, position, k_cache, v_cache after the weights, "
                         f"not {', '.join(['token'] * 8)} and 992 more; {FORM}"),
    "a weight after the token": (move("arguments", TOKEN, 0),
                                 f"arguments[0] (token) stands before a weight, and the weights come first; {FORM}"),
    "a weight last": (move("arguments", 0, TOKEN + 3),
                      f"arguments[{TOKEN - 1}] (token) stands before a weight, and the weights come first; {FORM}"),
    "no results": (put("results", []),
                   f"the results are nothing, not token or logits, k_cache, v_cache, and taps after them; {FORM}"),
    "a tap in between": (lambda raw: raw["results"].insert(1, TAP),
                         f"the results are logits, tap, k_cache, v_cache, not token or logits, k_cache, v_cache, and taps after them; {FORM}"),
    "two heads": (lambda raw: raw["results"].append({**TAP, "role": "logits", "name": "logits"}),
                  f"the results are logits, k_cache, v_cache, logits, not token or logits, k_cache, v_cache, and taps after them; {FORM}"),
    "position a row": (put("arguments", TOKEN + 1, "shape", [1]),
                       f"arguments[{TOKEN + 1}] (position) is [1] i32, not of rank 0 and i32; {FORM}"),
    "token in 64 bits": (put("arguments", TOKEN, "dtype", "i64"),
                         f"arguments[{TOKEN}] (token) is a scalar i64, not of rank 0 and i32; {FORM}"),
    "logits in float64": (put("results", 0, "dtype", "f64"), f"results[0] (logits) is [257] f64, not of rank 1 and f32; {FORM}"),
    "a cache of two axes": (put("results", 1, "shape", [3, 64]), f"results[1] (k_cache) is [3, 64] f32, not of rank 4 and f32; {FORM}"),
    "caches of two lengths": (put("results", 1, "shape", [3, 2, 32, 16]),
                              f"caches have different shapes: arguments[{K_CACHE}] (k_cache) is [3, 2, 64, 16] f32, "
                              f"results[1] (k_cache) [3, 2, 32, 16] f32; {FORM}"),
    "a wider result": (put("results", 2, "shape", [3, 2, 64, 17]),
                       f"caches have different shapes: arguments[{K_CACHE}] (k_cache) is [3, 2, 64, 16] f32, "
                       f"results[2] (v_cache) [3, 2, 64, 17] f32; {FORM}"),
    "a weight twice": (put("arguments", 1, DECODE.arguments[0].__dict__),
                       f"arguments[0] and arguments[1] are both named model.embed_tokens.weight; {FORM}"),
    "a tap twice": (lambda raw: raw["results"].extend([TAP, TAP]), f"results[3] and results[4] are both named norm; {FORM}"),
    "alias of nothing": (put("results", 1, "aliases", 99), f"results[1] (k_cache) aliases argument 99, and there are {K_CACHE + 2}; {FORM}"),
    "alias of a weight": (put("results", 0, "aliases", 0),
                          f"results[0] (logits) aliases arguments[0] (model.embed_tokens.weight), a weight, which the next step needs as well; {FORM}"),
    "alias of another type": (put("results", 0, "aliases", K_CACHE),
                              f"results[0] (logits) aliases arguments[{K_CACHE}] (k_cache), which is [3, 2, 64, 16] f32 and not [257] f32; {FORM}"),
    "one buffer for both": (put("results", 2, "aliases", K_CACHE),
                            f"results[2] (v_cache) aliases arguments[{K_CACHE}] (k_cache), as results[1] (k_cache) does; {FORM}"),
}  # fmt: skip


@pytest.mark.parametrize("name", ENTRIES)
def test_a_mistake(name: str, tmp_path: Path) -> None:
    change, line = ENTRIES[name]
    raw = json.loads(DECODE.to_json())
    change(raw)
    path = tmp_path / "x.abi.json"
    path.write_text(json.dumps(raw))
    assert refused(path) == line


NAME_IT = "name the graph's .abi.json with --abi"
FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", f"is empty; {FORM}"),
    "blank": (b" \n\n", f"is empty; {FORM}"),
    "not UTF-8": (b'{"phase": "\xff"}', f"is not text (byte 0xff at offset 11 is no UTF-8); {FORM}"),
    "UTF-16": ("{}".encode("utf-16"), f"is not text (byte 0xff at offset 0 is no UTF-8); {FORM}"),
    "a NUL": (b'{\n "a\0"}', f"2:4: is not text (there is a NUL); {FORM}"),
    "not JSON": (b"{\n'phase'", f"is not JSON (Expecting property name enclosed in double quotes: line 2, column 1); {FORM}"),
    "the graph": (b"module @x {}", f"is not JSON (Expecting value: line 1, column 1); {FORM}"),
    "two values": (b"{} {}", f"is not JSON (Extra data: line 1, column 4); {FORM}"),
    "NaN": (b'{"phase": NaN}', f"phase is nan, not a finite number; {FORM}"),
    "a list": (b"[]", f"is a list, not an object; {FORM}"),
    "a string": (b'"decode"', f"is 'decode', not an object; {FORM}"),
    "null": (b"null", f"is null, not an object; {FORM}"),
    "deep": (b"[" * 100_000, f"is nested more than 100 deep; {FORM}"),
    "deep objects": (b'{"phase":' * 100_000, f"is nested more than 100 deep; {FORM}"),
    "5,000 digits": (b'{"phase": %s}' % (b"9" * 5000), f"holds a number of more than 40 digits; {FORM}"),
    "a key twice": (b'{"phase": "decode", "phase": "prefill"}', f"has the key 'phase' twice; {FORM}"),
    "an entry's key twice": (b'{"phase": "decode", "arguments": [{"role": "weight", "role": "token"}], "results": []}',
                             f"arguments[0] has the key 'role' twice; {FORM}"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_abi(name: str, tmp_path: Path) -> None:
    content, line = FILES[name]
    path = tmp_path / "x.abi.json"
    path.write_bytes(content)
    assert refused(path).lstrip(":") == line


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(tmp_path / "none") == f"no such file; {NAME_IT}"
    assert refused(tmp_path) == f"cannot be read (Is a directory); {NAME_IT}"
    path = tmp_path / "x.abi.json"
    path.write_text(DECODE.to_json())
    assert refused(path / "more") == f"cannot be read (Not a directory); {NAME_IT}"
    monkeypatch.setattr("hloracle.core.abi_file.LARGEST", 2**10)
    assert refused(path) == f"has more than 1,024 bytes, and no more is read; {NAME_IT}"


@pytest.mark.parametrize("abi", [DECODE, PREFILL], ids=lambda abi: abi.phase)
def test_what_may_be_left_out_and_how_it_may_be_written(abi: Abi, tmp_path: Path) -> None:
    """`encoding`, an empty `aliases` and `function`; with a byte order mark, in lines of Windows."""
    raw = json.loads(abi.to_json())
    del raw["function"]
    for entry in (*raw["arguments"], *raw["results"]):
        del entry["encoding"]
        if entry["aliases"] is None:
            del entry["aliases"]
    path = tmp_path / "x.abi.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(raw, indent=1).replace("\n", "\r\n").encode())
    assert Abi.from_file(path) == Abi.from_file(str(path)) == abi
    path.write_text(abi.to_json())
    assert Abi.from_file(path) == abi


def test_the_example_in_the_docs(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```json\n(.*?)^```", DOCS.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    path = tmp_path / "x.abi.json"
    path.write_text(example)
    abi = Abi.from_file(path)
    whole = graph_abi(CONFIG, "decode", "logits", 256)
    assert abi.arguments == (*whole.weights[:1], *whole.arguments[len(whole.weights) :])
    assert [r.role for r in abi.results] == [r.role for r in whole.results]
