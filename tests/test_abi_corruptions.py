"""ABI files that are corrupted at random: each is refused in one line, or says what it said, or says something else in full."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import jax
import pytest
from foreign_graph import ABI, B, text
from models import model

from hloracle.core.errors import InputError
from hloracle.foreign.adapter import Adapter
from hloracle.foreign.binding import Binding, bind
from hloracle.foreign.file import read_abi_file
from hloracle.foreign.opening import shapes_of, signatures_of
from hloracle.foreign.signature import Signature
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.expressions import names_of

COUNT, SLOTS, TOKENS = 200, 10, 8
PYTHON = re.compile(
    r"__\w+__|NoneType|object is not|not iterable|not subscriptable|Error|Traceback|datetime|\bself\b|jnp\.|numpy"
)
# Whole values that stand where an expression or a constant should.
VALUES = (
    "0", "-1", "1e400", "nan", "-inf", "true", "[]", "[1, [2]]", "{}", "{a = 1}", "2026-01-01T00:00:00Z", "9" * 30, "0x" + "f" * 5000,
    '""', '"\\u0000"', '"\\u202e"', "''", '"' + "(" * 300 + '"', '"x' + " : n e -> e n" * 30 + '"', "'''a\nb'''", '"é : B T"',
    '"{l}"', '"{l/0}"', '"{' + "9*" * 200 + '9}"', '"10**10**10"', '"' + "10*" * 150 + '10"', '"position // 0"', '"sqrt(-1)"',
    '"stack l : ' + "stack l : " * 30 + 'model.norm.weight"', '"model.norm.weight : pad 0 to 999999999999"',
    '"concat(model.layers.{l}.mlp.{gate,up}_proj.weight, axis=99999999999999999999)"', '"model.norm.weight / 0"',
    '"model.norm.weight : E -> E ' + "1 " * 100 + '"', '"model.norm.weight : (a b) -> a b, a=0"', '"cache : B L kv S K D, S=0"',
    '"cache.9 : B S"', '"k_cache : (((("', '"causal_mask(nan) : S"', '"state.nothing"', '"token : B 1 1 1 1"', '"logits : B T V V"',
    '"model.layers.{q,k}.weight"', '"model.norm.weight : [0:0]"', '"model.norm.weight : [-99:99:0]"', '"window_mask : B S"',
)  # fmt: skip
CHARACTERS = "\0\n\"'[]{}().:,=->+*/ lL019éA\u202e\ud7ff#\\"


def _character(rng: random.Random, text: str) -> str:
    i = rng.randrange(len(text))
    return text[:i] + rng.choice(["", rng.choice(CHARACTERS), text[i] + rng.choice(CHARACTERS)]) + text[i + 1 :]


def _lines(change: Callable[[random.Random, list[str]], None]) -> Callable[[random.Random, str], str]:
    def corrupt(rng: random.Random, text: str) -> str:
        lines = text.split("\n")
        change(rng, lines)
        return "\n".join(lines)

    return corrupt


def _delete(rng: random.Random, lines: list[str]) -> None:
    del lines[rng.randrange(len(lines))]


def _double(rng: random.Random, lines: list[str]) -> None:
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))


def _swap(rng: random.Random, lines: list[str]) -> None:
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]


def _entry(rng: random.Random, lines: list[str]) -> int:
    return rng.choice([i for i, line in enumerate(lines) if " = " in line])


def _value(rng: random.Random, lines: list[str]) -> None:
    i = _entry(rng, lines)
    lines[i] = f"{lines[i].partition(' = ')[0]} = {rng.choice(VALUES)}"


def _values_swapped(rng: random.Random, lines: list[str]) -> None:
    i, j = _entry(rng, lines), _entry(rng, lines)
    (a, _, b), (c, _, d) = lines[i].partition(" = "), lines[j].partition(" = ")
    lines[i], lines[j] = f"{a} = {d}", f"{c} = {b}"


def _word(rng: random.Random, lines: list[str]) -> None:
    """A word of one line in place of a word of another."""
    i = _entry(rng, lines)
    words = re.findall(r"\w+|[^\w\s]", rng.choice(lines)) or ["x"]
    found = [m.span() for m in re.finditer(r"\w+|[^\w\s]", lines[i])]
    start, end = rng.choice(found)
    lines[i] = lines[i][:start] + rng.choice(words) + lines[i][end:]


def _table(rng: random.Random, lines: list[str]) -> None:
    lines[rng.randrange(len(lines))] = rng.choice(
        [
            "[weights.more]",
            "[[decode]]",
            "[prefill.inputs.x]",
            "[state]\nx = 1",
            "[x" * 40,
            "[decode.results]",
            "[forward]",
        ]
    )


KINDS = (_character, *map(_lines, (_delete, _double, _swap, _value, _value, _values_swapped, _word, _word, _table)))


@cache
def signatures() -> dict[str, Signature]:
    config = model("plain").config
    found = {phase: text(config, n, SLOTS) for phase, n in (("decode", 1), ("prefill", TOKENS))}
    return {phase: signatures_of(source, Path(f"{phase}.mlir"))["main"] for phase, source in found.items()}


def bindings(path: Path) -> dict[str, Binding]:
    """What comes of an ABI file, up to the graphs that are run."""
    here = model("plain")
    abi = read_abi_file(path)
    names, shapes = names_of(here.config), shapes_of(here.checkpoint)
    return {
        name: bind(abi, phase, signatures()[name], names, shapes)
        for name, phase in abi.phases.items()
        if name in signatures()
    }


def adapts(binding: Binding) -> None:
    """Whether the contract can be made of it. Raises ValueError."""
    adapter = Adapter(binding, model("plain").config, SLOTS)
    abi = adapter.abi()
    given = [
        jax.ShapeDtypeStruct(a.shape, "int32" if a.dtype == "i32" else "float32")
        for a in abi.arguments
        if a.role != "weight"
    ]
    scalar = jax.ShapeDtypeStruct((), "int32")
    returned = [jax.ShapeDtypeStruct(p.shape, "float32") for p in binding.signature.results]
    if adapter.embeds:
        given.append(jax.ShapeDtypeStruct((adapter.config.vocab_size, adapter.config.hidden_size), "float32"))
    jax.eval_shape(adapter.inputs, scalar, *given)
    jax.eval_shape(adapter.results, scalar, scalar, *returned)


def corrupted(seed: int) -> str:
    rng = random.Random(seed)
    found = ABI
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        found = rng.choice(KINDS)(rng, found)
    return found


def outcome(content: str, path: Path) -> str:
    """refused, as before, other, or impossible: what the graphs' own run would say."""
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    try:
        found = bindings(path)
    except InputError as error:
        line = str(error)
        assert line.isprintable(), line
        assert not PYTHON.search(line), line
        assert line.startswith(str(path)), line
        assert len(line) < 2500
        return "refused"
    if found == right(path.parent):
        return "as before"
    try:
        for binding in found.values():
            adapts(binding)
    except ValueError as error:
        said = str(error.args[0])
        assert said.isprintable(), said
        assert not PYTHON.search(said), said
        return "impossible"
    return "other"


@cache
def right(folder: Path) -> dict[str, Binding]:
    path = folder / "right.toml"
    path.write_text(ABI)
    return bindings(path)


def test_the_file_itself(tmp_path: Path) -> None:
    found = right(tmp_path)
    assert sorted(found) == ["decode", "prefill"]
    assert found["decode"].sizes["B"] == B
    for binding in found.values():
        adapts(binding)


def test_corruptions(tmp_path: Path) -> None:
    begin = time.monotonic()
    counts = Counter(outcome(corrupted(seed), tmp_path / "abi.toml") for seed in range(COUNT))
    assert counts.total() == COUNT
    assert counts["refused"] > COUNT // 2
    assert time.monotonic() - begin < 60


def test_corruptions_of_the_command(tmp_path: Path) -> None:
    """Exit status 2 and one line, before anything is compiled."""
    directory = resolve("tiny-llama")
    config = open_checkpoint(directory).config
    (tmp_path / "decode.mlir").write_text(text(config, 1, SLOTS))
    path = tmp_path / "bad.toml"
    seeds = [seed for seed in range(COUNT) if seed % 40 == 3 and outcome(corrupted(seed), path) == "refused"]
    files = [ABI.replace("position", "poistion"), "version = 2\n\0", *map(corrupted, seeds)]
    for content in files[:4]:
        path.write_bytes(content.encode())
        command = (
            sys.executable,
            "-m",
            "hloracle.cli.main",
            "check",
            "decode.mlir",
            "--abi",
            "bad.toml",
            "--model",
            str(directory),
        )
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 2, done.stderr
        *progress, line = done.stderr.splitlines()
        assert line.startswith("hloracle: bad.toml")
        assert "Traceback" not in done.stderr
        assert not [one for one in progress if one.startswith("hloracle:")]


@pytest.mark.nightly
def test_many_more_corruptions(tmp_path: Path) -> None:
    for seed in range(COUNT, 20 * COUNT):
        outcome(corrupted(seed), tmp_path / "abi.toml")


@pytest.mark.nightly
def test_every_value_everywhere(tmp_path: Path) -> None:
    lines = ABI.split("\n")
    for i, line in enumerate(lines):
        if " = " in line:
            for value in VALUES:
                changed = f"{line.partition(' = ')[0]} = {value}"
                outcome("\n".join([*lines[:i], changed, *lines[i + 1 :]]), tmp_path / "abi.toml")
