"""The ABI file of another emitter, as it is written: every mistake in one is one line that says what, where and what to write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hloracle.core.errors import InputError
from hloracle.foreign.file import FORM, AbiFile, Phase, read_abi_file

RIGHT = """\
version = 2

[weights]
"params['embed']" = "model.embed_tokens.weight"
"l{l}.wq" = "model.layers.{l}.self_attn.q_proj.weight : n e -> e n"

[state]
rng = [0, 7]

[decode]
function = "step"
file = "decode*"

[decode.inputs]
token = "token : B 1"
rng = "state.rng"
mask = [[1, 0], [0, 1]]
scale = -inf

[decode.results]
0 = "logits : B 1 V"

[forward.inputs]
[forward.results]
"""
PYTHON = re.compile(r"__\w+__|NoneType|object is not|not iterable|not subscriptable|Error|Traceback|datetime|\bself\b")
KNOWN = "there are version, weights, state, prefill, decode, forward"


def read(text: str, folder: Path) -> AbiFile:
    path = folder / "abi.toml"
    path.write_text(text)
    return read_abi_file(path)


def refused(text: str | bytes, folder: Path) -> str:
    path = folder / "abi.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        read_abi_file(path)
    line = str(caught.value)
    assert "\n" not in line
    assert line.isprintable()
    assert not PYTHON.search(line), line
    return line.removeprefix(f"{path}").removeprefix(": ")


def test_what_a_file_says(tmp_path: Path) -> None:
    found = read(RIGHT, tmp_path)
    assert found == AbiFile(
        tmp_path / "abi.toml",
        {"params['embed']": "model.embed_tokens.weight", "l{l}.wq": "model.layers.{l}.self_attn.q_proj.weight : n e -> e n"},
        {
            "decode": Phase("decode", {"token": "token : B 1", "rng": "state.rng", "mask": [[1, 0], [0, 1]], "scale": float("-inf")},
                            {"0": "logits : B 1 V"}, "step", "decode*"),
            "forward": Phase("forward", {}, {}, "main", ""),
        },
        {"rng": [0, 7]},
    )  # fmt: skip
    assert str(found.wrong("is odd")) == f"{tmp_path / 'abi.toml'}: is odd; {FORM}"


CHANGES: dict[str, tuple[str, str, str]] = {
    # the file
    "no version": ("version = 2", "", "version is missing; write `version = 2` at the top"),
    "another version": ("version = 2", "version = 3", "version is 3; write `version = 2` at the top"),
    "a version in quotes": ("version = 2", 'version = "2"', "version is '2'; write `version = 2` at the top"),
    "a huge version": ("version = 2", f"version = {'9' * 4000}", f"version holds a number of more than 40 digits; {FORM}"),
    "a huge hex version": ("version = 2", f"version = 0x{'f' * 9000}", f"version holds a number of more than 40 digits; {FORM}"),
    "a version of a day": ("version = 2", "version = 2026-01-01", "version is 2026-01-01; write `version = 2` at the top"),
    "an unknown table": ("[weights]", "[weigths]", "the file has an unknown key 'weigths'; did you mean 'weights'?"),
    "a table like no other": ("version = 2", "version = 2\nqqq = 1", f"the file has an unknown key 'qqq'; take it out: {KNOWN}"),
    "weights in quotes": ("[weights]", 'weights = "model"\n[x]', f"the file has an unknown key 'x'; take it out: {KNOWN}"),
    # weights
    "a weight of a number": ('"model.embed_tokens.weight"', "3", f"weights.\"params['embed']\" is 3, not an expression in quotes; {FORM}"),
    "a weight of a list": ('"model.embed_tokens.weight"', "[1]", f"weights.\"params['embed']\" is a list, not an expression in quotes; {FORM}"),
    "dots without quotes": ('"params[\'embed\']"', "params.embed",
                            "weights.'params' is a table; put the key in quotes if it has dots: 'params.…'"),
    "no name": ('"params[\'embed\']"', '""', f"weights has an entry without a name; {FORM}"),
    "a long name": ('"params[\'embed\']"', f'"{"x" * 501}"', f"weights.'{'x' * 59}…' has more than 500 characters; {FORM}"),
    "a long expression": ("model.embed_tokens.weight", "x" * 501, f"weights.\"params['embed']\" has more than 500 characters; {FORM}"),
    "a name that hides": ("params['embed']", "a\\u0000\\u202e", f"weights.'a\\x00\\u202e' cannot be printed; {FORM}"),
    "an expression of lines": ("model.embed_tokens.weight", "a\\nb", f"weights.\"params['embed']\" cannot be printed; {FORM}"),
    # state
    "state of words": ("rng = [0, 7]", 'rng = "zero"', "state.'rng' is 'zero', not a number or a list; write what it starts with: `NAME = 0`"),
    "state of two words": ("rng = [0, 7]", '"r g" = 0', "state.'r g' is no name of a word; write what it starts with: `NAME = 0`"),
    "state a table": ("rng = [0, 7]", "rng = {a = 0}", "state.'rng' is a table; put the key in quotes if it has dots: 'rng.…'"),
    "state of nobody": ("rng = [0, 7]", "rgn = 0", "state.'rgn' is no argument's; write state.rgn where it is taken, or take it out"),
    # phases
    "no inputs": ("[forward.inputs]", "", "forward has no inputs; write [forward.inputs]"),
    "no results": ("[forward.results]", "", "forward has no results; write [forward.results]"),
    "an unknown key": ("function =", "functoin =", "decode has an unknown key 'functoin'; did you mean 'function'?"),
    "a function of a number": ('"step"', "7", f"decode.function is 7, not a string; {FORM}"),
    "a function without a name": ('"step"', '""', f"decode.function has 0 characters, and not 1 to 500; {FORM}"),
    "a long file": ('"decode*"', f'"{"*" * 501}"', f"decode.file has 501 characters, and not 1 to 500; {FORM}"),
    "inputs a list": ("[forward.inputs]", "[forward]\ninputs = []", f"forward.inputs is a list, not a table; {FORM}"),
    # constants
    "NaN": ("-inf", "nan", f"decode.inputs.'scale' is nan, neither an expression nor a constant; {FORM}"),
    "a day": ("-inf", "2026-01-01", f"decode.inputs.'scale' is 2026-01-01, neither an expression nor a constant; {FORM}"),
    "more than 64 bits": ("-inf", "-9223372036854775809", f"decode.inputs.'scale' is a number of more than 64 bits; {FORM}"),
    "an empty list": ("[[1, 0], [0, 1]]", "[]", f"decode.inputs.'mask' is an empty list; {FORM}"),
    "a ragged list": ("[[1, 0], [0, 1]]", "[[1, 0], [0]]", f"decode.inputs.'mask' is a list of unlike things; {FORM}"),
    "a list of words": ("[[1, 0], [0, 1]]", '["1"]', f"decode.inputs.'mask' is '1', neither an expression nor a constant; {FORM}"),
    "a list of tables": ("[[1, 0], [0, 1]]", "[{a = 1}]", f"decode.inputs.'mask' is a table, neither an expression nor a constant; {FORM}"),
    "a deep list": ("[[1, 0], [0, 1]]", "[" * 50 + "1" + "]" * 50, f"decode.inputs.'mask' is a list that is nested too deep; {FORM}"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_mistake(name: str, tmp_path: Path) -> None:
    old, new, line = CHANGES[name]
    assert old in RIGHT
    assert refused(RIGHT.replace(old, new, 1), tmp_path) == line


def test_a_file_without_a_phase(tmp_path: Path) -> None:
    said = "has no phase; write a table for each that the emitter has: prefill, decode, forward"
    assert refused("version = 2\n[weights]\n", tmp_path) == said
    assert refused("version = 2\ndecode = 3\n", tmp_path) == f"decode is 3, not a table; {FORM}"
    assert refused("version = 2\nweights = 3\n", tmp_path) == f"weights is 3, not a table; {FORM}"


FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", f"is empty; {FORM}"),
    "not UTF-8": (b'version = "\xff"', f"is not text (byte 0xff at offset 11 is no UTF-8); {FORM}"),
    "a NUL": (b"version = 2\na\0", f":2:2: is not text (there is a NUL); {FORM}"),
    "JSON": (b'{"phase": "decode"}', f"is not TOML (Invalid statement (at line 1, column 1)); {FORM}"),
    "twice": (b"a = 1\na = 2", f"is not TOML (Cannot overwrite a value (at end of document)); {FORM}"),
    "deep": (b"a = " + b"[" * 100_000, f"is nested more than 100 deep; {FORM}"),
    "deep names": (b"a" + b".a" * 50_000 + b" = 1", f"is nested more than 100 deep; {FORM}"),
    "large": (b"# " + b"x" * 2**20, f"has more than 1,048,576 bytes, and no more is read; {FORM}"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_abi(name: str, tmp_path: Path) -> None:
    content, line = FILES[name]
    said = refused(content, tmp_path)
    assert said.lstrip(":") == line.lstrip(":") or (
        name == "large" and said.startswith("has more than 1,048,576 bytes")
    )


def test_a_number_of_5000_digits(tmp_path: Path) -> None:
    assert refused(b"version = " + b"9" * 5000, tmp_path) == f"holds a number of more than 40 digits; {FORM}"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file; name the emitter's ABI file with --abi"):
        read_abi_file(tmp_path / "none.toml")
