"""Tokenizers and chat templates of others: what fails, does not end, or makes no tokens of the model's, is bad input."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nightly import only
from tokenizer import add_words

from hloracle.cli import main as cli
from hloracle.reference.fixtures.tiny import write_tiny
from hloracle.reference.huggingface import tokenizer as module

LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
Change = Callable[[dict[str, Any]], object]


def more(by: int) -> Change:
    return lambda raw: raw["model"].update(vocab={word: i + by for word, i in raw["model"]["vocab"].items()})


def nothing(raw: dict[str, Any]) -> None:
    raw["model"]["vocab"].clear()


TEMPLATES = {
    "{% if %}": "its chat template fails (TemplateSyntaxError: ",
    "{{ raise_exception('\x1b[2J no') }}": r"its chat template fails (TemplateError: \x1b[2J no)",
    "{{ ''.__class__.__mro__ }}": "its chat template fails (SecurityError: ",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "its chat template fails (RecursionError: ",
    "{{ 1 // 0 }}": "its chat template fails (ZeroDivisionError: ",
    "{{ '' }}": "its tokenizer makes no token of 'a b'",
    LOOP: "its chat template fails: it took more than 1 s",
}
FILES: dict[str, tuple[Change | bytes, str]] = {
    "no word": (nothing, "its tokenizer fails ("),
    "ids of no token": (more(257), "makes token 259 of a prompt, and vocab_size is 257"),
    "huge ids": (more(2**31), "of a prompt, and vocab_size is 257"),
    "no JSON": (b"{", "its tokenizer does not load ("),
    "deep": (b"[" * 100_000, "its tokenizer does not load ("),
    "no kind of a model": (lambda raw: raw["model"].update(type="Other"), "its tokenizer does not load ("),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return add_words(write_tiny(tmp_path / "model"))


def refused(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert cli.invoke([str(a) for a in arguments]) == 2
    shown = capfd.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1), shown
    assert shown.err[:-1].isprintable()
    return shown.err


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_that_is_not_used(
    template: str, model: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENCODING_SECONDS", 1.0)
    (model / "chat_template.jinja").write_text(template)
    assert TEMPLATES[template] in refused(capfd, "generate", model, "-p", "a b")


def test_a_template_that_does_not_end_is_not_worked_on(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENCODING_SECONDS", 0.5)
    (model / "chat_template.jinja").write_text(LOOP)
    before = threading.active_count()
    with pytest.raises(module.InputError, match=r"took more than 0 s; restore"):
        module.encode(module.load_tokenizer(model), "a", chat=True)
    until = time.monotonic() + 20
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.05)
    assert threading.active_count() <= before


@pytest.mark.parametrize("name", FILES)
def test_a_tokenizer_that_is_not_used(name: str, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    change, words = FILES[name]
    path = model / "tokenizer.json"
    if isinstance(change, bytes):
        path.write_bytes(change)
    else:
        raw = json.loads(path.read_text())
        change(raw)
        path.write_text(json.dumps(raw))
    assert words in refused(capfd, "generate", model, "-p", "a b")


@pytest.mark.parametrize("name", only(["no word"], ["no word", "ids of no token"]))
def test_run_does_not_use_it_either(
    name: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    change, words = FILES[name]
    raw = json.loads((model / "tokenizer.json").read_text())
    assert callable(change)
    change(raw)
    (model / "tokenizer.json").write_text(json.dumps(raw))
    options = ("--out", tmp_path / "out", "--tokens", "1", "--capacity", "128", "--rounds", "0", "--backend", "xla-cpu")
    assert words.partition("259")[0] in refused(capfd, "run", model, *options)
    assert not list((tmp_path / "out").iterdir())
