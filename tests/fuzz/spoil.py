"""Spoils bytes and words in ways that no form knows of; everything is drawn from the given generator."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from fuzz.case import FOLDER, LINK, PIPE

Spoiler = Callable[[random.Random, bytes], bytes]
LONG = 200_000
LARGEST = 300_000  # bytes of a file that is taken apart; a larger one has been made so, and is spoilt as bytes
NUMBERS = (
    b"0", b"-1", b"1e999", b"-0.0", b"1e-400", b"NaN", b"inf", b"2147483648", b"9223372036854775808", b"18446744073709551616",
    b"1" * 50, b"9" * 5000, b"0x7fffffff", b"1_000", b"0.1e5", b"00", b"+1", b"1.", b"\xd9\xa1",
)  # fmt: skip
BYTES = (
    b"\0", b"\xff", b"\x80", b"\xef\xbb\xbf", b"\r\n", b"\r", b"\x1b[31m", b"\xe2\x80\xae", b"\xed\xa0\x80", b"\\ud800", b"\\u0000",
    b"'", b'"', b'"""', b"{", b"}", b"[", b"]", b"[" * 300, b"{" * 300, b"(" * 3000, b"<" * 300, b"#", b"//", b"/*", b"\\", b"\n" * 50,
    b"%s%n", b"../../../etc/passwd", b"~nosuchuser", b"/dev/zero", b"{{", b"{%", b"\x7f", b"\xf4\x90\x80\x80", "\u2028".encode(),
)  # fmt: skip
WORDS = (
    "", " ", "\0", "\n", "\x1b[2J", "\ud800", "\u202egnp", "\ufeff", "nan", "inf", "-1", "0", "1e400", "9" * 400, "x" * 5000, "é" * 300,
    "../../x", "/", "/dev/zero", "/dev/null", "/proc/self/mem", ".", "..", "~", "~nosuchuser", "~nosuchuser/x", "a\0b", "a\nb", "%s", "{0}",
    "{}", "[", "*", "**", "?", "a/b", "-", "--", "-h", "--help", "True", "null", "None", "⅓", "١", "0x10", "1_0", "1.5", "x=y", ":", "a:b",
    "..\\x", "$HOME", "`id`", "$(id)", "<script>", "&amp;", "|", "[link](x)", "@user", "C:\\x", "file:///etc/passwd", "http://127.0.0.1:9/x",
)  # fmt: skip


def any_bytes(rng: random.Random, data: bytes) -> bytes:
    """Bytes changed, cut, repeated, moved or put in."""
    if not data:
        return rng.choice(BYTES)
    at, size = rng.randrange(len(data)), len(data)
    length = min(rng.choice((1, 2, 4, 8, 40, 300)), size - at)
    match rng.randrange(10):
        case 0:
            changed = bytearray(data)
            for _ in range(rng.choice((1, 1, 2, 8, 64))):
                changed[rng.randrange(size)] ^= 1 << rng.randrange(8)
            return bytes(changed)
        case 1:
            return data[:at]
        case 2:
            return data[:at] + data[at + length :]
        case 3:
            return data[:at] + data[at : at + length] * rng.choice((2, 2, 3, 500)) + data[at + length :]
        case 4:
            other = rng.randrange(size)
            return data[:at] + data[other : other + length] + data[at + length :]
        case 5:
            return data[:at] + rng.choice(BYTES) + data[at:]
        case 6:
            return data[:at] + rng.choice(BYTES) + data[at + length :]
        case 7:
            return data[:at] + rng.randbytes(length) + data[at + length :]
        case 8:
            return data[:at] + rng.choice((b"\0", b"\xff", b" ", b"\n")) * length + data[at + length :]
        case _:
            return rng.choice((b"", data[at:], data + data, data + rng.randbytes(40), b" " + data, b"\n\n", data[::-1]))


def numbers(rng: random.Random, data: bytes) -> bytes:
    """A number in a text replaced by an odd one."""
    import re

    found = list(re.finditer(rb"(?<![\w.])-?\d[\w.+-]*", data))
    if not found:
        return any_bytes(rng, data)
    one = rng.choice(found)
    return data[: one.start()] + rng.choice(NUMBERS) + data[one.end() :]


def lines(rng: random.Random, data: bytes) -> bytes:
    """Lines of a text left out, doubled, swapped or joined."""
    rows = data.split(b"\n")
    a, b = rng.randrange(len(rows)), rng.randrange(len(rows))
    match rng.randrange(5):
        case 0:
            del rows[a]
        case 1:
            rows.insert(b, rows[a])
        case 2:
            rows[a], rows[b] = rows[b], rows[a]
        case 3:
            rows[min(a, b) : max(a, b)] = []
        case _:
            rows[a : a + 2] = [b" ".join(rows[a : a + 2])]
    return b"\n".join(rows)


def whole_file(rng: random.Random, data: bytes) -> bytes:
    """Another thing in place of the file."""
    return rng.choice((
        b"", b"\n", b"{}", b"[]", b"null", b"0", b'""', b"\0" * 64, PIPE, FOLDER, LINK + b"nothing-there", LINK + b"/dev/zero",
        LINK + b".", LINK + b"/proc/version", b"PK\x05\x06" + b"\0" * 18, b"GGUF", b"ML\xefR", b"\x93NUMPY", b"\x1f\x8b\x08", b"#!/bin/sh\n",
    ))  # fmt: skip


def text(rng: random.Random, data: bytes) -> bytes:
    """Bytes, numbers or lines of a text."""
    return rng.choice((any_bytes, numbers, numbers, lines))(rng, data)


def odd_word(rng: random.Random, word: str = "") -> str:
    """A word that nobody expects, or one that is a little off."""
    if word and rng.random() < 0.4:
        at = rng.randrange(len(word))
        return rng.choice(
            (word[:at], word[at:], word + word, word.upper(), word[:at] + "\u0301" + word[at:], word + " ")
        )
    return rng.choice(WORDS)


def one_of(*spoilers: Spoiler) -> Spoiler:
    """One of these at a time."""
    return lambda rng, data: rng.choice(spoilers)(rng, data)


def weighted(rng: random.Random, choices: Sequence[tuple[float, Spoiler]]) -> Spoiler:
    """One of these, by weight."""
    return rng.choices([spoiler for _, spoiler in choices], [weight for weight, _ in choices])[0]
