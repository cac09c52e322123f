"""`hloracle generate`: the text that transformers' own generate gives, piece by piece or at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tokenizer import CHAT, V, add_bytes, add_words

from hloracle.backends.session import Session
from hloracle.cli import main as cli
from hloracle.core.abi import Graph
from hloracle.core.errors import InputError
from hloracle.production import choice as choices
from hloracle.production import generate as module
from hloracle.production.choice import Choice, keep, production_graphs, untuned
from hloracle.production.generate import Engine, Wanted, end_of_text, generate_many, generate_text, read_prompts
from hloracle.production.sampling import Sampling
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.fixtures.tiny import write_tiny
from hloracle.reference.huggingface.tokenizer import encode, load_tokenizer
from hloracle.reference.huggingface.truth import load_model
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.contract import GraphSpec

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
        generate_text(
            str(directory), Wanted(prompt, count, raw), Engine(source, backend, 2, more.get("precision", "f32"))
        )
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
    """A session of one row that says what it was told to."""

    tokens: ClassVar[list[int]] = []
    capacity, batch, vocab_size, head, chunks, buckets = 2**20, 1, V, "token", (), (32,)

    def __init__(self, *_: Any) -> None:
        self.positions = [0]
        self._left = iter(self.tokens)

    def reset(self) -> None:
        pass

    def check_tokens(self, tokens: Sequence[int]) -> None:
        pass

    def prefill(self, tokens: list[int]) -> int:
        self.positions = [len(tokens)]
        return next(self._left)

    def step(self, tokens: dict[int, int]) -> dict[int, int]:
        return {0: next(self._left)}


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
    pieces = list(generate_text(str(spelled), Wanted("a", len(data), True), Engine("emitter", "iree-cpu", 1)))
    assert pieces == list(text), "one character at a time, each as soon as it is whole"


def test_text_that_ends_inside_a_character(spelled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = "a\U0001f30a".encode()[:-1]
    monkeypatch.setattr(Fixed, "tokens", list(data))
    pieces = list(generate_text(str(spelled), Wanted("a", len(data), True), Engine("emitter", "iree-cpu", 1)))
    assert pieces == ["a", "\ufffd"], "what is there of it is shown as what transformers shows"


def test_special_tokens_are_not_shown(spelled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fixed, "tokens", [*b"ab", V - 1, *b"c"])
    assert ours(spelled, "a", count=4) == "abc"
    (spelled / "generation_config.json").write_text(json.dumps({"eos_token_id": V - 1}))
    assert ours(spelled, "a", count=4) == "ab"


def test_long_texts_get_a_larger_cache(spelled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def emitted(checkpoint: Checkpoint, precision: str, choice: Choice, specs: list[tuple[Any, ...]]) -> list[Graph]:
        asked.extend(specs)
        return production_graphs(checkpoint, precision, choice, specs[:1])

    monkeypatch.setattr(module, "production_graphs", emitted)
    monkeypatch.setattr(Fixed, "tokens", [*b"a"] * 300)
    ours(spelled, "a" * 40, count=300, backend="xla-cpu")
    assert asked == [GraphSpec("decode", "token", 512, 0), GraphSpec("prefill", "token", 512, 64)]


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
        "".join(generate_text(str(words), Wanted("a w5", 3), Engine("emitter", "iree-cpu", threads), told.append))
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


@pytest.mark.parametrize(
    ("compute", "source", "batch"), [("bf16", "emitter", 1), ("bf16", "emitter", 2), ("f16", "reference", 1)]
)
def test_text_that_is_computed_in_less(
    compute: str, source: str, batch: int, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs of that type, with their caches, over weights rounded to it; no token of this prompt is near to another."""
    prompt, sessions = "a w5 b w7", []
    monkeypatch.setattr(module, "Session", lambda *given: sessions.append(Session(*given)) or sessions[-1])
    engine = Engine(source, "xla-cpu", 1, batch=batch, compute=compute)
    found = [one["text"] for one in generate_many(str(words), [Wanted(prompt, COUNT)] * batch, engine)]
    rounded = resolve(str(words), compute=compute)
    assert found == [expected(rounded, prompt, inside_template=False)] * batch
    assert [str(session.cache_type) for session in sessions] == [{"bf16": "bfloat16", "f16": "float16"}[compute]]


@pytest.mark.parametrize(("source", "batch"), [("emitter", 1), ("emitter", 2), ("reference", 1)])
def test_text_with_keys_and_values_in_int8(
    source: str, batch: int, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, sessions = "a w5 b w7", []
    monkeypatch.setattr(module, "Session", lambda *given: sessions.append(Session(*given)) or sessions[-1])
    engine = Engine(source, "xla-cpu", 1, batch=batch, kv="int8")
    found = [one["text"] for one in generate_many(str(words), [Wanted(prompt, COUNT)] * batch, engine)]
    assert len(found) == batch
    assert len({*found}) == 1, "each row gives what it gives alone"
    assert found[0]
    assert [session.kv for session in sessions] == ["int8"]


def test_what_is_computed_in_less_has_all_weights_in_that(words: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named with it or not; any other precision is refused, by the command too."""
    asked = ["generate", str(words), "-p", "a w5", "-n", "2", "--backend", "xla-cpu", "--compute", "bf16"]
    assert cli.invoke([*asked, "--precision", "bf16"]) == 0
    same = capsys.readouterr().out
    assert cli.invoke(asked) == 0
    assert capsys.readouterr().out == same
    assert cli.invoke([*asked, "--precision", "int8"]) == 2
    assert capsys.readouterr().err == (
        "hloracle: --precision: is int8, and weights are in what is computed in; use bf16\n"
    )


def test_nothing_is_tuned_for_what_is_computed_in_less(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was measured of graphs whose sums and caches are float32."""
    taken = []

    def emitted(checkpoint: Checkpoint, precision: str, choice: Choice, specs: list[tuple[Any, ...]]) -> list[Graph]:
        taken.append(choice)
        return production_graphs(checkpoint, precision, choice, specs)

    monkeypatch.setattr(module, "production_graphs", emitted)
    monkeypatch.setattr(module, "tuned", lambda *_: pytest.fail("asked for what was measured"))
    list(generate_text(str(words), Wanted("a w5", 2), Engine("emitter", "iree-cpu", 1, compute="bf16")))
    assert taken == [untuned(compute="bf16")]


@pytest.mark.parametrize("count", [0, -3])
def test_nothing_asked_for(count: int, words: Path) -> None:
    with pytest.raises(InputError, match=f"-n: is {count}"):
        ours(words, "a", count=count)


# ---- drawn, and many at once


def test_what_is_drawn_and_what_it_ends_before(words: Path) -> None:
    plain = ours(words, "a w5 b w7", count=12)
    engine = Engine("emitter", "xla-cpu", 1)

    def text(wanted: Wanted) -> str:
        return "".join(generate_text(str(words), wanted, engine))

    drawn = Wanted("a w5 b w7", 12, sampling=Sampling(temperature=1.5, seed=3))
    assert text(drawn) == text(drawn) != plain
    stop = plain.split()[3]
    assert text(Wanted("a w5 b w7", 12, stop=(stop, "never"))) == plain[: plain.index(stop)]
    assert text(Wanted("a w5 b w7", 12, stop=("never",))) == plain


def test_a_stop_is_held_back_until_it_is_known(spelled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fixed, "tokens", list(b"abxabyz"))
    engine = Engine("emitter", "iree-cpu", 1)
    assert list(generate_text(str(spelled), Wanted("a", 7, True, stop=("aby",)), engine)) == ["abx"]
    assert list(generate_text(str(spelled), Wanted("a", 7, True, stop=("yy", "yx")), engine)) == [*"abxab", "yz"]


LINES = [
    {"prompt": "a w5 b w7", "count": 9},
    {"prompt": "w9", "count": 3},
    {"prompt": "b b w2", "temperature": 1.2, "seed": 4, "count": 6},
    {"prompt": "w1 w2 w3 w4", "count": 12, "raw": True},
    {"prompt": "b", "count": 5, "repetition_penalty": 1.3},
]


def test_many_at_once_are_each_what_it_is_alone(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)) + "\n\n")
    found = {}
    for batch in ("1", "2", "5"):
        asked = ["generate", str(words), "--prompts", str(path), "--batch", batch, "--backend", "xla-cpu"]
        assert cli.invoke(asked) == 0
        found[batch] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found["1"] == found["2"] == found["5"]
    for line, answer in zip(LINES, found["2"], strict=True):
        assert answer["prompt"] == line["prompt"]
        assert answer["ended"] == "length"
        assert len(answer["tokens"]) == line["count"]
        if line.keys() <= {"prompt", "count", "raw"}:
            raw = bool(line.get("raw"))
            assert answer["text"] == ours(words, str(line["prompt"]), count=line["count"], raw=raw)


BAD: dict[str, str] = {
    "[1]": "is no JSON object",
    "{": "is not JSON (Expecting property name enclosed in double quotes: line 1, column 2)",
    '{"count": 3}': "has no prompt",
    '{"prompt": 3}': "prompt is 3, not a string",
    '{"prompt": "a", "count": true}': "count is true, not a whole number",
    '{"prompt": "a", "count": 0}': "count is 0",
    '{"prompt": "a", "stop": "b"}': 'stop is "b", not a list',
    '{"prompt": "a", "stop": [1]}': "stop is not a list of strings",
    '{"prompt": "a", "stop": [""]}': "stop is empty",
    '{"prompt": "a", "top_p": 2}': "top_p is 2",
    '{"prompt": "a", "temperature": "hot"}': "temperature is 'hot'",
    '{"prompt": "a", "heat": 1}': "has an unknown key 'heat'",
}


@pytest.mark.parametrize("line", BAD)
def test_a_line_that_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "fine"}}\n\n{line}\n')
    with pytest.raises(InputError) as caught:
        read_prompts(path)
    assert str(caught.value).startswith(f"{path}:3: {BAD[line]}; ")


def test_flags_that_do_not_go_together(words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n')
    for flags, line in (
        ([], "--prompt: is not given; give one prompt, or --prompts with a file of many"),
        (["-p", "a", "--prompts", str(path)], "--prompt: is given beside --prompts; give one prompt, or --prompts with a file of many"),
        (["--prompts", str(path), "-n", "3"], "-n: has no effect beside --prompts; write it into the lines of the file"),
        (["--prompts", str(path), "--top-k", "3"], "--top-k: has no effect beside --prompts; write it into the lines of the file"),
        (["--prompts", str(path), "--batch", "0"], "--batch: is 0; give 1 to 1,024 rows"),
        (["-p", "a", "--top-p", "nan"], "--top-p: is nan; give a number from 0 to 1; 1 keeps all tokens"),
    ):  # fmt: skip
        assert cli.invoke(["generate", str(words), *flags]) == 2
        assert capsys.readouterr().err == f"hloracle: {line}\n"
