"""`hloracle generate`: the text that transformers' own generate gives, piece by piece or at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tokenizer import CHAT, V, add_bytes, add_words

from hloracle.cli import main as cli
from hloracle.core.abi import Graph
from hloracle.core.errors import InputError
from hloracle.production import choice as choices
from hloracle.production import generate as module
from hloracle.production.choice import Choice, keep, production_graphs, untuned
from hloracle.production.generate import Engine, end_of_text, generate_text
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.fixtures.tiny import write_tiny
from hloracle.reference.huggingface.tokenizer import encode, load_tokenizer
from hloracle.reference.huggingface.truth import load_model
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint

COUNT = 10


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokens are words, without a chat template."""
    return add_words(write_tiny(tmp_path_factory.mktemp("words")))


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with one."""
    return add_words(write_tiny(tmp_path_factory.mktemp("chat")), template=CHAT)


def theirs(directory: Path, ids: list[int], count: int = COUNT) -> list[int]:
    """What transformers' generate adds."""
    import torch

    model = load_model(directory)
    fed = torch.tensor([ids])
    out = model.generate(
        fed, attention_mask=torch.ones_like(fed), do_sample=False, max_new_tokens=count, pad_token_id=0
    )
    return [int(t) for t in out[0, len(ids) :]]


def ours(directory: Path, prompt: str, count: int = COUNT, raw: bool = False, **more: str) -> str:
    source, backend = more.get("source", "emitter"), more.get("backend", "iree-cpu")
    return "".join(
        generate_text(str(directory), prompt, count, raw, Engine(source, backend, 2, more.get("precision", "f32")))
    )


def expected(directory: Path, prompt: str, *, inside_template: bool) -> str:
    tokenizer = load_tokenizer(directory)
    ids = encode(tokenizer, prompt, chat=inside_template)
    return str(tokenizer.decode(theirs(directory, ids), skip_special_tokens=True))


def test_text_is_that_of_transformers(words: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = expected(words, "a w5 b w7", inside_template=False)
    assert len(text.split()) == COUNT
    for more in ((), ("--stream",), ("--raw",), ("--source", "reference", "--backend", "xla-cpu")):
        assert cli.invoke(["generate", str(words), "-p", "a w5 b w7", "-n", str(COUNT), *more]) == 0
        shown = capfd.readouterr()
        assert (shown.out, shown.err) == (f"{text}\n", ""), more


def test_chat_template(chat: Path, words: Path) -> None:
    inside = ours(chat, "a w5")
    assert inside == expected(chat, "a w5", inside_template=True) == ours(words, "w9 a w5 w10 w11")
    raw = ours(chat, "a w5", raw=True)
    assert raw == ours(words, "a w5") == expected(chat, "a w5", inside_template=False)
    assert raw != inside


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("as_list", [False, True])
def test_stops_where_transformers_stops(name: str, as_list: bool, words: Path, tmp_path: Path) -> None:
    free = ours(words, "a w5 b").split()
    stop = load_tokenizer(words).convert_tokens_to_ids(free[4])
    first = free.index(free[4])
    model = add_words(write_tiny(tmp_path))
    path = model / name
    raw = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**raw, "eos_token_id": [stop, 999] if as_list else stop}))
    assert end_of_text(model) == ({stop, 999} if as_list else {stop})
    assert ours(model, "a w5 b").split() == free[:first]
    ids = encode(load_tokenizer(model), "a w5 b", chat=False)
    assert len(theirs(model, ids)) == first + 1


def test_no_end_of_text(words: Path) -> None:
    assert end_of_text(words) == set()
    assert len(ours(words, "a", count=40).split()) == 40


class Fixed:
    """A session that says what it was told to."""

    tokens: ClassVar[list[int]] = []

    def __init__(self, *_: Any) -> None:
        pass

    def generate_streaming_greedy(self, ids: list[int], count: int) -> Iterator[int]:
        yield from self.tokens[:count]


@pytest.fixture
def spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of bytes, whose session is Fixed."""
    monkeypatch.setattr(module, "Session", Fixed)
    monkeypatch.setattr(module, "make_backend", lambda *a: None)
    return add_bytes(write_tiny(tmp_path))


SENTENCES = ("h\u00e9llo", "\U0001f30a\U0001f30a \u6771\u4eac", "e\u0301 \u0915\u094d", "\u00fc", "plain")


@pytest.mark.parametrize("text", SENTENCES)
def test_pieces_are_whole_characters(text: str, spelled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = text.encode()
    monkeypatch.setattr(Fixed, "tokens", list(data))
    pieces = list(generate_text(str(spelled), "a", len(data), True, Engine("emitter", "iree-cpu", 1)))
    assert pieces == list(text), "one character at a time, each as soon as it is whole"


def test_text_that_ends_inside_a_character(spelled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = "a\U0001f30a".encode()[:-1]
    monkeypatch.setattr(Fixed, "tokens", list(data))
    pieces = list(generate_text(str(spelled), "a", len(data), True, Engine("emitter", "iree-cpu", 1)))
    assert pieces == ["a", "\ufffd"], "what is there of it is shown as what transformers shows"


def test_special_tokens_are_not_shown(spelled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fixed, "tokens", [*b"ab", V - 1, *b"c"])
    assert ours(spelled, "a") == "abc"
    (spelled / "generation_config.json").write_text(json.dumps({"eos_token_id": V - 1}))
    assert ours(spelled, "a") == "ab"


def test_long_texts_get_a_larger_cache(spelled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def emitted(checkpoint: Checkpoint, precision: str, choice: Choice, specs: list[tuple[Any, ...]]) -> list[Graph]:
        asked.extend(specs)
        return production_graphs(checkpoint, precision, choice, specs[:1])

    monkeypatch.setattr(module, "production_graphs", emitted)
    monkeypatch.setattr(Fixed, "tokens", [*b"a"])
    ours(spelled, "a" * 40, count=300, backend="xla-cpu")
    assert asked == [("decode", "token", 512, 0), ("prefill", "token", 512, 64)]


def test_what_was_tuned_here_is_taken_or_ignored_with_a_word(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, told = [], []
    monkeypatch.setattr(choices, "FOLDER", str(tmp_path))

    def emitted(checkpoint: Checkpoint, precision: str, choice: Choice, specs: list[tuple[Any, ...]]) -> list[Graph]:
        taken.append(choice)
        return production_graphs(checkpoint, precision, choice, specs)

    monkeypatch.setattr(module, "production_graphs", emitted)
    checkpoint = open_checkpoint(words)
    keep(checkpoint, "f32", 1, untuned("rows"), [])
    texts = [
        "".join(generate_text(str(words), "a w5", 3, False, Engine("emitter", "iree-cpu", threads), told.append))
        for threads in (1, 2)
    ]
    assert texts[0] == texts[1]
    assert taken == [untuned("rows"), untuned()]
    assert len(told) == 1
    assert "with 1 threads, these are 2" in told[0]


@pytest.mark.parametrize(("precision", "source"), [("int4", "emitter"), ("bf16", "emitter"), ("int8", "reference")])
def test_text_in_a_precision(precision: str, source: str, words: Path) -> None:
    """That of transformers over the same weights, from the emitter's graphs and from the reference's."""
    prompt = "a w5 b w7"
    derived = resolve(str(words), precision=precision)
    assert ours(words, prompt, precision=precision, source=source, backend="xla-cpu") == expected(
        derived, prompt, inside_template=False
    )


@pytest.mark.parametrize("count", [0, -3])
def test_nothing_asked_for(count: int, words: Path) -> None:
    with pytest.raises(InputError, match=f"-n: is {count}"):
        ours(words, "a", count=count)
