"""The words that name backends: what each is called, what it is a witness of, and what is refused."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from test_worker import XLA

import hloracle
from hloracle.backends import named, words
from hloracle.backends.devices import CPU, Device
from hloracle.conformance.context import Context
from hloracle.core.errors import InputError


@pytest.fixture(autouse=True)
def no_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python of a version would be here."""
    monkeypatch.setattr(words, "environment", lambda compiler, version: Path(f"/{compiler}-{version}/bin/python"))


@pytest.mark.parametrize(
    ("word", "name", "family", "title"),
    [
        ("iree", "iree-cpu", "iree", "IREE"),
        ("xla", "xla-cpu", "xla", "XLA"),
        ("stablehlo", "stablehlo", "stablehlo", "StableHLO's interpreter"),
        ("iree==3.12.0", "iree==3.12.0", "iree", "IREE 3.12.0"),
        ("xla==0.9.1", "xla==0.9.1", "xla", "XLA 0.9.1"),
        ("iree:--a --b=c", "iree:--a --b=c", "iree", "IREE with --a --b=c"),
        ("iree==3.12.0:--a=/b", "iree==3.12.0:--a=_b", "iree", "IREE 3.12.0 with --a=/b"),
        ("xla:--xla_a=1", "xla:--xla_a=1", "xla", "XLA with --xla_a=1"),
        ("pjrt:acme", "pjrt:acme", "xla", "PJRT acme"),
        ("pjrt@acme:acme", "pjrt:acme", "acme", "PJRT acme"),
        ("worker:true 'a/b c'", "worker:true 'a_b c'", "worker:true 'a_b c'", "worker:true 'a_b c'"),
        ("worker@iree:true", "worker@iree:true", "iree", "worker@iree:true"),
    ],
)
def test_what_a_word_names(word: str, name: str, family: str, title: str) -> None:
    (choice,) = named.chosen([word])
    assert (choice.name, choice.family, choice.title) == (name, family, title)


@pytest.mark.parametrize(
    ("word", "line"),
    [
        (w, f"{w!r}: is no backend; name one of iree-cpu, xla-cpu, stablehlo")
        for w in ("", "iree:", "iree@a:--b", "iree==", "stablehlo:", "pjrt:", "worker:", "command:", "command@a:b", "tpu:0")
    ]
    + [
        ("iree:data-tiling", "--backend iree:data-tiling: 'data-tiling': is no flag; "),
        ("worker:no-such-program x", "--backend worker:no-such-program x: is no program; "),
        ("pjrt:./acme", "--backend pjrt:./acme: no such file; "),
        ("worker:'", "--backend worker:': has no closing quotation; "),
        ("xla:'--a", "--backend xla:'--a: has no closing quotation; "),
    ],
)  # fmt: skip
def test_what_is_refused(word: str, line: str) -> None:
    with pytest.raises(InputError) as raised:
        named.chosen([word])
    assert str(raised.value).startswith(line)
    assert "\n" not in str(raised.value)


def test_no_other_version_on_an_emulated_gpu() -> None:
    with pytest.raises(InputError, match=r"--backend iree==3\.12\.0: runs on no emulated GPU"):
        named.chosen(["iree==3.12.0"], Device("emulated"))


@pytest.mark.parametrize(
    ("name", "command", "line"),
    [
        ("", ["true"], "'': is no name of a backend"),
        ("a/b", ["true"], "'a/b': is no name of a backend"),
        ("a", "true", "'true' of backend a: is no command"),
        ("a", [], "[] of backend a: is no command"),
        ("a", [3], "[3] of backend a: is no command"),
    ],
)
def test_what_is_no_worker(name: str, command: Any, line: str) -> None:
    with pytest.raises(InputError) as raised:
        hloracle.worker(name, command)
    assert str(raised.value).startswith(line)


def test_flags_and_versions_decide_what_is_kept() -> None:
    """And of a backend of which nobody knows when it changes nothing is."""
    known = ["iree-cpu", "iree==3.12.0", "iree==3.13.0", "iree:--a", "iree==3.12.0:--a", "iree==3.12.0:--b", "xla:--a"]
    entries = [Context(backends=named.chosen([word])).entry("x", bool, []) for word in known]
    assert len({entry.key for entry in entries}) == len(known)
    assert all(entry.writes for entry in entries)
    for word in ("pjrt:acme", "worker:true"):
        assert not Context(backends=named.chosen([word])).entry("x", bool, []).writes


def test_flags_reach_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA's come after those of the environment; IREE's stand in for the usual ones that they name."""
    monkeypatch.setenv("XLA_FLAGS", "--one")
    (xla,) = named.chosen(["xla==0.9.1:--two --three"])
    program = xla.open.args[1]  # type: ignore[attr-defined]
    assert program.environment()["XLA_FLAGS"] == "--one --two --three"
    assert program.command[0] == "/xla-0.9.1/bin/python"
    assert "PYTHONPATH" not in program.environment(), "it is of another environment"
    (iree,) = named.chosen(["iree:--iree-opt-level=O1 --a"], CPU)
    graph = hloracle.Graph("x", "", hloracle.Abi("x", (), ()), ("--b", "--iree-opt-level=O3"))
    flags = iree.open.args[1].flags_of(graph)  # type: ignore[attr-defined]
    assert flags[-3:] == ["--b", "--iree-opt-level=O1", "--a"]
    assert [f for f in flags if f.startswith("--iree-opt-level")] == ["--iree-opt-level=O1"]


@pytest.mark.nightly
def test_a_word_with_quotes_and_slashes_goes_through_a_run(tmp_path: Path) -> None:
    """It is in the record and on the page, in full but for the slashes."""
    program = tmp_path / "a <b> 'c' \"d\" & e.py"
    program.write_text(f"import os, sys; os.execv({sys.executable!r}, [{sys.executable!r}, {XLA[1]!r}])\n")
    word = f"worker@xla:{shlex.join([sys.executable, str(program)])}"
    record = hloracle.run("tiny-llama", backends=["xla-cpu", word], tokens=3, capacity=64, threads=1, quick=True)
    assert record.verdict.class_ == "conforms"
    ids = [c["id"] for c in record.data["configurations"]]
    assert f"emitter/{word.replace('/', '_')}" in ids
    folder = record.save(tmp_path / "out")
    assert hloracle.Record.load(folder / "report.json") == record
