"""A cache whose files were all damaged: the verdict is the same, and the record says what was made anew."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hloracle.cli.main import invoke
from hloracle.conformance.context import Context
from hloracle.conformance.graphs.sources import oracle_of
from hloracle.core.cache import cache_root, noting
from hloracle.core.child import alone
from hloracle.emitters.model import emit
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.registry import from_hf

CHECK = ("check", "decode.mlir", "--model", "tiny-llama", "--tokens", "4", "--backend", "xla-cpu", "--out")
RUN = ("run", "tiny-llama", "--tokens", "4", "--capacity", "128", "--rounds", "0", "--out")


def byte(data: bytes) -> bytes:
    """One bit is another."""
    changed, at = bytearray(data), random.Random(data).randrange(len(data))
    changed[at] ^= 1
    return bytes(changed)


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def empty(data: bytes) -> bytes:
    return b""


def damage(how: Callable[[bytes], bytes]) -> set[str]:
    """Damage every file of the cache but locks and what is empty; returns the kinds of entry that they are of."""
    found = set()
    for path in sorted(cache_root().rglob("*")):
        if path.is_file() and path.suffix != ".lock" and (data := path.read_bytes()):
            path.write_bytes(how(data))
            found.add(path.relative_to(cache_root()).parts[0])
    return found


def judged(words: tuple[str, ...], out: Path) -> dict[str, Any]:
    assert invoke([*words, str(out)]) == 0
    return dict(json.loads((out / "report.json").read_text()))


def same(record: dict[str, Any]) -> Any:
    """What two runs have in common."""
    checks = [(check["id"], check["status"], check["figure"]) for check in record["checks"]]
    return record["verdict"], checks, record["anchors"], record["floors"], record["tokens"]


@pytest.mark.parametrize(
    "how", [byte, pytest.param(half, marks=pytest.mark.nightly), pytest.param(empty, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("words", [CHECK, pytest.param(RUN, marks=pytest.mark.nightly)], ids=lambda words: words[0])
def test_whatever_is_damaged_is_made_anew(
    words: tuple[str, ...], how: Callable[[bytes], bytes], empty_cache: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert invoke(["emit", "tiny-llama", "--phase", "decode", "-o", "decode.mlir"]) == 0
    with alone():  # the second run alone is in processes of its own, which have to tell what they find damaged
        first = judged(words, tmp_path / "first")
    assert first["damaged"] == []
    kinds = damage(how)
    capsys.readouterr()
    second = judged(words, tmp_path / "second")
    assert same(second) == same(first)
    # Of the hash of a large file there is an entry that is looked at only where the file is as it was.
    assert kinds - {name.split("/")[0] for name in second["damaged"]} <= {"digests"}
    assert "had been damaged and were made anew: " in capsys.readouterr().err
    with alone():
        third = judged(words, tmp_path / "third")
    assert (third["damaged"], same(third)) == ([], same(first))


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("how", [byte, half, empty, lambda data: data.replace(b"0", b"1", 1)])
def test_a_torn_graph_of_the_oracle_is_lowered_anew(
    how: Callable[[bytes], bytes], reuse: bool, empty_cache: Path
) -> None:
    """Also where outcomes are not taken from the cache: the oracle's graphs are."""
    config, context = from_hf(TINY["llama"]), Context(reuse=reuse)
    graphs = [emit(config, "decode", "logits", 32)]

    def text() -> tuple[str, int]:
        found, lowered = oracle_of(context, graphs, config)
        return found[0][0].text, lowered

    whole = text()
    assert text() == (whole[0], 0)
    assert damage(how) == {"oracle"}
    with noting() as damaged:
        assert text() == whole == (whole[0], 1)
    assert [name.split("/")[0] for name in damaged] == ["oracle"]
    assert text() == (whole[0], 0)
