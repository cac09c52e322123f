"""The search for the first wrong release: whichever releases are wrong or cannot be tried, it names no other than it saw."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from hloracle.core.errors import InputError
from hloracle.versions import releases as module
from hloracle.versions.bisection import Bisection, bisect, try_each
from hloracle.versions.releases import before, between, releases, word_of
from hloracle.versions.replay import Status, Tried

RELEASES = ["3.5.0", "3.6.0", "3.7.0", "3.7.1", "3.8.0", "3.9.0", "3.10.0"]
LETTERS: dict[str, Status] = {"r": "right", "w": "wrong", "c": "refused", "s": "slower", "u": "untried"}


def search(letters: str, how: Callable[..., Bisection] = bisect) -> Bisection:
    """What comes of it where each release is what its letter says."""
    names = RELEASES[: len(letters)]
    asked: list[str] = []

    def attempt(release: str) -> Tried:
        asked.append(release)
        return Tried(LETTERS[letters[names.index(release)]])

    found = how(names, attempt)
    assert asked == list(found.tried), "each once"
    return found


@pytest.mark.parametrize("first", range(1, 7))
def test_the_first_wrong_release(first: int) -> None:
    found = search("r" * first + "w" * (7 - first))
    assert (found.first, found.passed_over) == (RELEASES[first], ())
    assert len(found.tried) <= 5
    assert (
        found.words
        == f"It is wrong in {RELEASES[first]}, and is right in {RELEASES[first - 1]}, the release before it."
    )


def test_whatever_each_release_is() -> None:
    """Wrong and right may alternate: what is claimed is what was seen."""
    for middle in itertools.product("rwu", repeat=5):
        letters = f"r{''.join(middle)}w"
        found = search(letters)
        at = RELEASES.index(found.first)
        before = at - 1 - len(found.passed_over)
        assert letters[at] == "w"
        assert letters[before] == "r"
        assert set(letters[before + 1 : at]) <= {"u"}
        assert {found.first, RELEASES[before], *found.passed_over} <= set(found.tried)


def test_releases_that_cannot_be_tried_are_said() -> None:
    found = search("ruuww")
    assert found.passed_over == ("3.6.0", "3.7.0")
    assert found.words == (
        "It is wrong in 3.7.1, and is right in 3.5.0. Between them is 3.6.0, 3.7.0, which cannot be tried."
    )


def test_another_kind_of_wrong_is_said() -> None:
    assert search("rrcww").words.endswith("In 3.8.0 it is wrong: that may be another fault.")
    assert search("rcccc").words == "It does not compile in 3.6.0, and is right in 3.5.0, the release before it."
    assert search("rs").words == "It is slower in 3.6.0, and is right in 3.5.0, the release before it."


@pytest.mark.parametrize(
    ("letters", "words"),
    [
        ("wrw", "already is wrong in 3.5.0, the oldest release tried. Nothing is known of older ones"),
        ("crr", "already does not compile in 3.5.0, the oldest release tried. It is right in 3.7.0."),
        ("rwr", "is right in 3.7.0 too"),
        ("uww", "cannot be tried in 3.5.0"),
        ("rru", "cannot be tried in 3.7.0"),
        ("uwu", "cannot be tried in 3.5.0 and 3.7.0"),
    ],
)
def test_ends_with_nothing_between(letters: str, words: str) -> None:
    found = search(letters)
    assert words in found.words
    assert (found.first, found.passed_over) == ("", ())
    assert list(found.tried) == ["3.5.0", "3.7.0"], "the ends alone"


@pytest.mark.parametrize(
    ("letters", "first", "passed_over", "words"),
    [
        (
            "rwwrw", "3.6.0", (),
            "It is right in 3.5.0, the oldest release that can be tried, and then is wrong in 3.6.0, and then is right in 3.7.1, "
            "and then is wrong in 3.8.0.",
        ),
        (
            "rucr", "3.7.0", ("3.6.0",),
            "It is right in 3.5.0, the oldest release that can be tried, and then does not compile in 3.7.0, and then is right in "
            "3.7.1. It cannot be tried in 3.6.0.",
        ),
        ("rrr", "", (), "It is right in 3.5.0, the oldest release that can be tried."),
        ("wwr", "", (), "It is wrong in 3.5.0, the oldest release that can be tried, and then is right in 3.7.0."),
        ("uu", "", (), "It cannot be tried in any of them."),
    ],
)  # fmt: skip
def test_every_release(letters: str, first: str, passed_over: tuple[str, ...], words: str) -> None:
    found = search(letters, try_each)
    assert list(found.tried) == RELEASES[: len(letters)]
    assert (found.first, found.passed_over, found.words) == (first, passed_over, words)


# ---- releases


def pip_says(monkeypatch: pytest.MonkeyPatch, status: int, stdout: str, stderr: str = "") -> None:
    def run(command: list[str], **_: Any) -> Any:
        return subprocess.CompletedProcess(command, status, stdout, stderr)

    monkeypatch.setattr(module.subprocess, "run", run)


LISTED = "iree-base-compiler (3.10.0)\nAvailable versions: 3.10.0, 3.9.0, 3.7.1, 3.7.0\n  INSTALLED: 3.9.0\n"


def test_releases_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    pip_says(monkeypatch, 0, LISTED, "WARNING: pip index is currently an experimental command.")
    assert releases("iree-base-compiler") == ["3.7.0", "3.7.1", "3.9.0", "3.10.0"]
    assert between("iree-base-compiler", "3.7.1", "3.10.0") == ["3.7.1", "3.9.0", "3.10.0"]
    assert before("iree-base-compiler", "3.9.0") == "3.7.1"
    for version in ("3.7.0", "3.8.0"):
        with pytest.raises(InputError, match="no release with one before it"):
            before("iree-base-compiler", version)


@pytest.mark.parametrize(
    ("good", "bad"), [("3.8.0", "3.10.0"), ("3.7.0", "4.0"), ("3.9.0", "3.7.0"), ("3.9.0", "3.9.0")]
)
def test_ends_that_are_none(good: str, bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_says(monkeypatch, 0, LISTED)
    with pytest.raises(InputError, match=r"no release that pip finds|not older"):
        between("iree-base-compiler", good, bad)


def test_a_package_that_pip_does_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    pip_says(monkeypatch, 1, "", "WARNING: x\nERROR: No matching distribution found for jaxlib")
    with pytest.raises(InputError, match="No matching distribution"):
        releases("jaxlib")


def test_the_word_of_a_release() -> None:
    assert word_of("iree-base-runtime", "3.9.0", ("--a", "--b=c")) == "iree==3.9.0:--a --b=c"
    assert word_of("jaxlib", "0.9.1") == "xla==0.9.1"
