"""How a release is tried: what a record of a graph of a model says of it, and what a search is refused for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from records import conforms, failing

from hloracle import api
from hloracle.cli import main as cli
from hloracle.conformance.context import Progress
from hloracle.versions import search as module
from hloracle.versions.replay import Tried
from hloracle.versions.search import PEER, Search, of_record, search

WORD = "iree==3.12.0"


def record(**check: Any) -> api.Record:
    """A record of which one check on the release fails, or whatever is said of it."""
    data: Any = conforms()
    if check:
        data |= {"passed": False, "verdict": failing()["verdict"]}
        data["checks"][0] |= {"status": "failed", "backend": WORD, "kind": "tokens", "error": "", **check}
    return api.Record(data)


@pytest.mark.parametrize(
    ("check", "status"),
    [
        ({}, "right"),
        ({"kind": "tokens"}, "wrong"),
        ({"backend": PEER}, "right"),
        ({"backend": ""}, "wrong"),
        ({"status": "error", "error": "compile"}, "refused"),
        ({"status": "error", "error": "load"}, "refused"),
        ({"status": "error", "error": "run"}, "wrong"),
        ({"status": "error", "error": "timeout"}, "wrong"),
        ({"status": "error", "error": "memory"}, "untried"),
        ({"status": "error", "kind": "gate-zero"}, "untried"),
        ({"status": "error", "kind": "gate-zero", "backend": PEER}, "right"),
        ({"status": "skipped"}, "right"),
    ],
)
def test_what_a_record_says_of_the_release(check: dict[str, Any], status: str) -> None:
    assert of_record(record(**check)).status == status


def wanted(model: str | None, slower: float = 0.0) -> Search:
    return Search(Path("g.mlir"), None, "iree-base-compiler", "3.11.0", "3.13.0", ("--a",), slower, model, None, 60, 1)


def test_a_graph_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def check(path: Path, **options: Any) -> api.Record:
        asked.append(options["backends"])
        return record() if "3.11.0" in options["backends"][0] else record(kind="tokens")

    monkeypatch.setattr(module, "between", lambda package, good, bad: ["3.11.0", "3.12.0", "3.13.0"])
    monkeypatch.setattr(module, "chosen", lambda words: ())
    monkeypatch.setattr(module.api, "check", check)
    found = search(wanted("tiny-llama"), Progress())
    assert found.first == "3.12.0"
    assert asked == [(f"iree=={v}:--a", PEER) for v in ("3.11.0", "3.13.0", "3.12.0")]


def test_times_are_held_against_the_good_release() -> None:
    assert wanted("m", 1.5).how("3.12.0").against == "iree==3.11.0:--a"
    assert wanted("m", 1.5).how("3.11.0").against == "", "itself"
    assert wanted("m").how("3.12.0").against == ""


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g.mlir").write_text(
        "func.func @main(%a: tensor<f32>) -> tensor<f32> {\n  return %a : tensor<f32>\n}\n"
    )
    command = ["bisect", str(tmp_path / "g.mlir"), "--good", "1", "--bad", "2"]
    for more, words in (
        (["--package", "numpy"], "is no compiler's"),
        (["--package", "jaxlib", "--abi", "x.toml"], "give --model too"),
        (["--package", "jaxlib", "--model", "tiny-llama", "--tolerance", "1"], "has no effect beside --model"),
    ):
        assert cli.invoke([*command, *more]) == 2
        assert words in capsys.readouterr().err


def test_a_release_is_tried_as_replay_tries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    words: list[str] = []

    def attempt(case: Any, word: str, *_: Any) -> Tried:
        words.append(word)
        return Tried("right" if "3.11.0" in word else "refused")

    monkeypatch.setattr(module, "between", lambda package, good, bad: ["3.11.0", "3.13.0"])
    monkeypatch.setattr(module, "attempt", attempt)
    case: Any = object()
    found = search(Search(Path("r"), case, "jaxlib", "3.11.0", "3.13.0", (), 0.0, None, None, 60, 1), Progress())
    assert (found.first, words) == ("3.13.0", ["xla==3.11.0", "xla==3.13.0"])
