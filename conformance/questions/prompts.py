"""The prompts that every pair of implementations is held to. Each reaches a place where graphs go wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from hloracle.core.cache import Entry, digest, file_digest
from hloracle.core.child import Report, run_in_child
from hloracle.core.errors import InputError
from hloracle.reference.huggingface.tokenizer import encode, has_tokenizer, load_tokenizer, refuse_unknown
from hloracle.reference.model.config import Config
from hloracle.reference.model.contract import BUCKETS, bucket_for

SUITE_VERSION = "1"
CHAT = "Give me three short tips for staying focused while working."
ONE = "The"
LONG = (
    "A lighthouse keeper on a small island writes a letter to his sister every week. He tells her about the weather, "
    "the ships that pass at night, the birds that nest under the gallery, and the books he reads when the fog is so "
    "thick that nobody would see the light anyway. This week he has something new to tell. On Tuesday morning, just "
    "after sunrise, he found a wooden box on the beach, and inside the box there was"
)
NON_ASCII = "Übersetze ins Englische: «Später fließt die Donau ins Schwarze Meer.» 東京は何がおいしい？ 🌊 Ответ:"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


@dataclass(frozen=True)
class Prompt:
    """One prompt in one bucket; `id` is `name@bucket`."""

    name: str
    bucket: int
    why: str
    text: str | None
    token_ids: tuple[int, ...]

    @property
    def id(self) -> str:
        """The key of a prompt in a bucket: in truths, in what a configuration answers, and in a record."""
        return f"{self.name}@{self.bucket}"


@dataclass(frozen=True)
class Reach:
    """What graphs can be asked: as much as fits their cache slots and the buckets of a prompt's graphs.

    decodes: whether they decode. in_parts: whether a prompt may be longer than the largest bucket, and go through it in parts.
    """

    capacity: int
    buckets: Sequence[int] = BUCKETS
    decodes: bool = True
    in_parts: bool = False

    @property
    def prompt(self) -> int:
        """The longest prompt."""
        return (
            self.capacity
            if self.in_parts
            else max((b for b in self.buckets if b <= self.capacity), default=BUCKETS[-1])
        )


def suite(
    directory: Path, config: Config, reach: Reach, count: int, report: Report | None = None, only_fitting: bool = False
) -> list[Prompt]:
    """The prompts for a model: texts through its tokenizer, or seeded random tokens where it has none.

    Args:
      count: the tokens that follow each prompt.
      only_fitting: leave out a prompt that does not fit, instead of raising InputError.
    """
    capacity = reach.capacity
    buckets = [b for b in reach.buckets if b <= capacity]
    fill = min(capacity - count + 1, reach.prompt)
    texts = _tokenized(directory, fill, report) if has_tokenizer(directory) else _random(config, fill)
    prompts = []
    whys = {
        "chat": "the model's own chat template",
        "one-token": "a prompt of one token: the whole prefill is padding but the first row",
        "long": "more than 64 tokens",
        "non-ascii": "text that takes several tokens a character",
        "capacity": f"its {count} tokens end exactly at the last of {capacity} cache slots"
        if fill + count - 1 == capacity
        else f"as long as a prompt can be, in {capacity} cache slots",
    }
    for name, (text, ids) in texts.items():
        ids = ids[:fill] if name == "capacity" else ids
        refuse_unknown(ids, config.vocab_size, directory)
        if len(ids) + count - 1 > capacity or len(ids) > reach.prompt:
            if only_fitting:
                continue
            raise InputError(
                f"{count} tokens after the {len(ids)} of prompt {name!r} do not fit {capacity} cache slots",
                "--tokens",
                "ask for fewer tokens or give a larger --capacity",
            )
        bucket = bucket_for(min(len(ids), max(buckets or BUCKETS)), buckets or BUCKETS)
        prompts.append(Prompt(name, bucket, whys[name], text, tuple(ids)))
        if name == "chat":
            largest = max(buckets, default=0)
            if largest > prompts[-1].bucket:
                prompts.append(Prompt(name, largest, "the same prompt, mostly padding", text, tuple(ids)))
    for bucket in (b for b in buckets if b not in {p.bucket for p in prompts}):
        for p in [p for p in prompts if len(p.token_ids) <= bucket][:1]:
            prompts.append(dataclasses.replace(p, bucket=bucket, why="the same prompt, so that this bucket is reached"))
    return prompts


class Readable:
    """Token ids as text for people, where the checkpoint has a tokenizer."""

    def __init__(self, directory: Path) -> None:
        self._tokenizer: Any = None
        if has_tokenizer(directory):
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

    def pieces(self, tokens: Sequence[int]) -> list[str] | None:
        """The text of each token; one that is part of a character shows a stand-in."""
        if self._tokenizer is None:
            return None
        return [self._tokenizer.decode([t], skip_special_tokens=False) for t in tokens]

    def text(self, tokens: Sequence[int]) -> str | None:
        """The text of all tokens together, special ones included; None without a tokenizer.

        A character that takes several tokens is whole here, and not in `pieces`.
        """
        if self._tokenizer is None:
            return None
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))


Texts = dict[str, tuple[str | None, list[int]]]


def _random(config: Config, fill: int) -> Texts:
    """Prompts of the same lengths for a model without a tokenizer; the capacity prompt is cut to fit later."""
    lengths = {"chat": 41, "one-token": 1, "long": 97, "non-ascii": 29, "capacity": max(fill, BUCKETS[-1])}
    rng = np.random.default_rng(0)
    return {name: (None, rng.integers(0, config.vocab_size, n).tolist()) for name, n in lengths.items()}


def _tokenized(directory: Path, fill: int, report: Report | None) -> Texts:
    """Texts and their token ids, by the tokenizer's content."""
    files = [directory / name for name in TOKENIZER_FILES]
    content = [f"{f.name} {file_digest(f)}" for f in files if f.is_file()]
    key = digest(SUITE_VERSION, metadata.version("transformers"), str(fill), *content)
    entry: Entry[Texts] = Entry("prompts", key, Texts)
    found, _ = entry.get(lambda: run_in_child(_tokenize, directory, fill, timeout=600, report=report).value)
    return found


def _tokenize(report: Report, directory: Path, fill: int) -> Texts:
    tokenizer = load_tokenizer(directory)
    found: Texts = {
        "chat": (CHAT, encode(tokenizer, CHAT, chat=True)),
        "one-token": (ONE, encode(tokenizer, ONE, chat=False)[-1:]),
        "long": (LONG, encode(tokenizer, LONG, chat=False)),
        "non-ascii": (NON_ASCII, encode(tokenizer, NON_ASCII, chat=False)),
    }
    story = encode(tokenizer, LONG + " " + NON_ASCII + "\n\n", chat=False)
    filled = (story * (fill // len(story) + 1))[:fill]
    found["capacity"] = (tokenizer.decode(filled), filled)
    return found
