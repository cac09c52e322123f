"""The prompts: each reaches the place it is there for, with a tokenizer and without."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from nightly import only
from tokenizer import CHAT as TEMPLATE
from tokenizer import add_words

from hloracle.conformance.questions import prompts
from hloracle.conformance.questions.prompts import CHAT, LONG, NON_ASCII, Prompt, Reach, Readable, suite
from hloracle.core.cache import entry_name, noting
from hloracle.core.child import ChildResult
from hloracle.core.errors import InputError
from hloracle.reference.fixtures.tiny import TINY, write_tiny
from hloracle.reference.model.contract import BUCKETS
from hloracle.reference.model.registry import from_hf

CONFIG = from_hf(TINY["llama"])
NAMES = ("chat", "one-token", "long", "non-ascii", "capacity")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    words = tuple(dict.fromkeys(re.findall(r"\w+|[^\w\s]+", f"The {CHAT} {LONG} {NON_ASCII} w9 w10 w11")))
    return add_words(write_tiny(tmp_path_factory.mktemp("spoken")), words, TEMPLATE)


@pytest.fixture(params=["plain", "spoken"])
def model(request: pytest.FixtureRequest) -> Path:
    return Path(request.getfixturevalue(request.param))


@pytest.mark.parametrize(("capacity", "count"), [(256, 48), (128, 8), (256, 1)])
def test_suite(model: Path, capacity: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if count != 48:  # one real child process is enough

        def here(function: Any, *arguments: Any, timeout: float, report: Any = None) -> ChildResult:
            return ChildResult(function(report, *arguments), 0.0, 0)

        monkeypatch.setattr(prompts, "run_in_child", here)
    found = suite(model, CONFIG, Reach(capacity), count)
    assert list(dict.fromkeys(p.name for p in found)) == list(NAMES)
    by_name = {p.name: p for p in found}
    assert len(by_name["one-token"].token_ids) == 1
    assert by_name["one-token"].bucket == BUCKETS[0]
    assert len(by_name["long"].token_ids) > 64
    first, again = found[:2]
    assert first.name == again.name == "chat"
    assert first.token_ids == again.token_ids
    assert first.bucket < again.bucket == max(b for b in BUCKETS if b <= capacity)
    assert len(by_name["capacity"].token_ids) + count - 1 == capacity, "the last token goes to the last slot"
    assert f"exactly at the last of {capacity}" in by_name["capacity"].why
    for prompt in found:
        assert len(prompt.token_ids) <= prompt.bucket <= capacity
        assert len(prompt.token_ids) + count - 1 <= capacity
        assert all(0 <= t < CONFIG.vocab_size for t in prompt.token_ids)
        assert prompt.why
    ids = [p.id for p in found]
    assert len(set(ids)) == len(ids)
    assert found == suite(model, CONFIG, Reach(capacity), count), "the same every time"


def test_every_bucket_is_reached(model: Path) -> None:
    assert {p.bucket for p in suite(model, CONFIG, Reach(256), 48)} == set(BUCKETS)


def test_texts(spoken: Path, plain: Path) -> None:
    found = {p.name: p for p in suite(spoken, CONFIG, Reach(256), 48)}
    assert found["chat"].text == CHAT
    readable = Readable(spoken)
    text = readable.text(found["chat"].token_ids)
    assert text is not None
    assert text.startswith("w9 Give me three")
    assert text.endswith("w10 w11"), "inside the model's own template"
    assert readable.pieces(found["one-token"].token_ids) == ["The"]
    assert {p.text for p in suite(plain, CONFIG, Reach(256), 48)} == {None}
    assert (Readable(plain).text([1]), Readable(plain).pieces([1])) == (None, None)


def test_texts_are_tokenized_once(spoken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = suite(spoken, CONFIG, Reach(256), 48)
    monkeypatch.setattr(prompts, "run_in_child", lambda *a, **k: pytest.fail("it is in the cache"))
    assert suite(spoken, CONFIG, Reach(256), 48) == found


@pytest.mark.parametrize("damaged", only(["one digit"], ["", "{}", "[" * 100_000, "one digit"]))
def test_damaged_texts_are_tokenized_anew(damaged: str, spoken: Path, empty_cache: Path) -> None:
    first = suite(spoken, CONFIG, Reach(256), 48)
    (entry,) = [path for path in (empty_cache / "prompts").rglob("*") if path.is_file() and path.suffix != ".lock"]
    whole = entry.read_text()
    last = max(i for i, c in enumerate(whole) if c.isdecimal())
    entry.write_text(f"{whole[:last]}{9 - int(whole[last])}{whole[last + 1 :]}" if damaged == "one digit" else damaged)
    with noting() as found:
        assert suite(spoken, CONFIG, Reach(256), 48) == first
    assert found == [entry_name(entry)]
    assert entry.read_text() == whole


def test_what_does_not_fit(plain: Path) -> None:
    with pytest.raises(InputError, match=r"--tokens: 8 tokens after the 97 of prompt 'long' do not fit 64 cache slots"):
        suite(plain, CONFIG, Reach(64), 8)
    found = suite(plain, CONFIG, Reach(64), 8, only_fitting=True)
    assert [p.name for p in found] == ["chat", "one-token", "non-ascii", "capacity"]
    assert len(found[-1].token_ids) == 57


def test_a_cache_larger_than_the_largest_prompt(plain: Path) -> None:
    found: dict[str, Prompt] = {p.name: p for p in suite(plain, CONFIG, Reach(1024), 48)}
    assert len(found["capacity"].token_ids) == BUCKETS[-1]
    assert "exactly" not in found["capacity"].why
