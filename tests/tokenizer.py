"""Tokenizers for the tiny models, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

V = 257
CHAT = "{% for m in messages %}w9 {{ m['content'] }} w10{% endfor %}{% if add_generation_prompt %} w11{% endif %}"


def add_words(model: Path, words: tuple[str, ...] = ("a", "b"), template: str = "") -> Path:
    """A word for each token id: `<unk>`, then `words`, then w3, w4, ..."""
    vocabulary = {word: i for i, word in enumerate(("<unk>", *words))}
    vocabulary |= {f"w{i}": i for i in range(len(vocabulary), V)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return _save(tokenizer, model, template)


def add_bytes(model: Path) -> Path:
    """A token for each byte, and <|end|>, which is special."""
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    table = bytes_to_unicode()
    assert set(table.values()) == set(letters)
    tokenizer = Tokenizer(models.BPE({table[i]: i for i in range(256)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    assert tokenizer.token_to_id("<|end|>") == V - 1
    return _save(tokenizer, model, "")


def _save(tokenizer: Tokenizer, model: Path, template: str) -> Path:
    tokenizer.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    if template:
        (model / "chat_template.jinja").write_text(template)
    return model
