"""Somebody else's words, such as the name of a tensor or a compiler's message, as a person may be shown them.

They may hold anything: an escape sequence would be carried out by the terminal, half of a surrogate pair can be written nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def printable(text: str) -> str:
    """The text with an escape for each character that cannot be printed, the ends of lines too."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(text: str, limit: int = 200) -> str:
    """Someone else's words on one line of at most `limit` characters, with an escape for each that cannot be printed."""
    return printable(cut(" ".join(text[: limit * 4].split()), limit))


def quoted(text: str) -> str:
    """A string of someone else's in quotation marks, cut after 60 characters."""
    return repr(cut(text, 60))


def said(value: Any) -> str:
    """A value of somebody's TOML or JSON, in words that are not Python's."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return "nothing" if value is None else cut(str(value).lower() if isinstance(value, bool) else str(value), 60)


def cut(text: str, limit: int) -> str:
    """The text, or as much of it as fits into so many characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def path_words(parts: Iterable[str | int]) -> str:
    """A path into a value, as it is written in JavaScript; empty for the value itself."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier():
            path += f".{part}" if path else part
        else:
            path += f"[{json.dumps(shown(part, 80))}]"
    return path
