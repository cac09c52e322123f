"""Spoils command lines, prompts and variables of the environment."""

from __future__ import annotations

import random
from dataclasses import replace

from fuzz.case import Case
from fuzz.spoil import odd_word

# What would run a program, install a package, or take a GPU or minutes; and what a file may be replaced by on purpose.
NOT_GIVEN = ("==", "worker:", "command:", "pjrt:", "emulated", "cuda", "vulkan", "--pin", "--no-cache")
OTHERS = (
    "--help",
    "--json",
    "--force",
    "--stream",
    "--raw",
    "--tokens",
    "--nothing",
    "-",
    "--",
    "--out",
    "-o",
    "--abi",
    "--project",
    "--model",
)


def _word(rng: random.Random, word: str = "") -> str:
    """A word as a system may give it to a program: without a NUL, in the bytes of a file's name."""
    return odd_word(rng, word).replace("\0", "").encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")


def arguments(rng: random.Random, case: Case) -> Case:
    """A word of the command line replaced, left out, doubled or put in."""
    words = list(case.arguments)
    if len(words) < 2:
        return case
    at = rng.randrange(1, len(words))
    match rng.randrange(6):
        case 0:
            del words[at]
        case 1:
            words.insert(at, words[rng.randrange(len(words))])
        case 2:
            words.insert(at, rng.choice(OTHERS))
        case 3 if words[at].lstrip("-").isdecimal():
            words[at] = rng.choice(
                ("0", "-1", "1", "3", "100000", "2147483648", "99999999999999999999", "1e3", "nan", "٣")
            )
        case _:
            words[at] = _word(rng, words[at])
    if any(bad in word for word in words for bad in NOT_GIVEN):
        return case
    return replace(case, arguments=tuple(words))


def prompt(rng: random.Random, case: Case) -> Case:
    """Another prompt."""
    words = list(case.arguments)
    at = words.index("-p") + 1
    given = rng.choice(
        (
            _word(rng),
            _word(rng, words[at]),
            "a " * rng.choice((10, 300, 5000)),
            chr(rng.randrange(1, 0x11000)) * 3,
            "<unk>",
        )
    )
    words[at] = given.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
    return replace(case, arguments=(*words, "--raw") if rng.random() < 0.3 else tuple(words))


def environment(rng: random.Random, case: Case) -> Case:
    """A variable with another value."""
    name = rng.choice(list(case.environment))
    value = rng.choice(
        (_word(rng), _word(rng, case.environment[name]), "", "1", "0", "-1", "o", "report.json", "model/config.json")
    )
    if any(bad in value for bad in NOT_GIVEN):
        return case
    return replace(case, environment={**case.environment, name: value})
