"""The comment on a pull request, from archives that mean well and from those that do not."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from records import HOSTILE, Record, conforms, failing, hostile

from hloracle.cli import main as cli
from hloracle.core.errors import InputError
from hloracle.reports import comment, summary
from hloracle.reports.comment import BASE, HEAD, MARKER, MOST, WHOSE, render
from hloracle.reports.compare import summary as compare_summary
from hloracle.reports.compare.comparison import compare
from hloracle.reports.record import to_json

LINK = "https://github.com/owner/repo/actions/runs/1"


def archive(folder: Path, **records: Record | bytes | None) -> Path:
    """The artifact of a run: `head` and `base`, each a record or the bytes in place of one."""
    path = folder / "records.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as files:
        for name, record in records.items():
            if record is not None:
                files.writestr(f"{name}.json", record if isinstance(record, bytes) else to_json(record))
    return path


def knows_nothing(written: str) -> bool:
    return written.startswith(f"{MARKER}\n## ⚠️ hloracle: Nothing is known\n") and f"[The run](<{LINK}>)" in written


def test_head_against_base(tmp_path: Path) -> None:
    base, head = conforms(), failing()
    written = render(archive(tmp_path, head=head, base=base), LINK)
    assert written == f"{MARKER}\n{compare_summary.render(compare(base, head), LINK)}\n{WHOSE}\n"
    assert f"(<{LINK}>)" in written


def other_model() -> Record:
    record = conforms()
    record["model"]["architecture"] = "qwen3"
    return record


@pytest.mark.parametrize(
    ("base", "why"),
    [
        (None, "The base's record is not there."),
        (b"{}", "The base's record names no schema, not 'hloracle-report/11'."),
        (b'{"schema": "hloracle-report/1"}', "The base's record has the schema 'hloracle-report/1', not"),
        (
            b'{"schema": "@octocat <img>"}',
            "The base's record has the schema '<code>@</code>octocat &#60;img&#62;', not",
        ),
        (other_model(), "The run's record is of a 'llama' model and the base's record of a 'qwen3' one."),
    ],
)
def test_head_alone_says_that_it_is(tmp_path: Path, base: Record | bytes | None, why: str) -> None:
    written = render(archive(tmp_path, head=failing(), base=base), LINK)
    (line,) = [line for line in written.splitlines() if line.startswith("**Not compared with the base.** ")]
    assert why in line
    alone = summary.render(failing(), LINK, line)
    assert written == f"{MARKER}\n{alone}\n{WHOSE}\n"


def overflow(*_: Any) -> None:
    raise OverflowError("a number that nobody thought of")


def test_a_comparison_that_fails_leaves_the_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comment, "compare", overflow)
    written = render(archive(tmp_path, head=failing(), base=conforms()), LINK)
    assert "**Not compared with the base.** The comparison cannot be drawn (OverflowError)." in written
    assert "## ❌ hloracle: Emitter fault" in written


def test_a_run_that_left_nothing(tmp_path: Path) -> None:
    written = render(None, LINK)
    assert knows_nothing(written)
    assert "The run has left no record that can be taken: its log says why." in written
    written = render(archive(tmp_path, base=conforms()), LINK)
    assert knows_nothing(written)
    assert "The run's record is not there." in written


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b'{"schema": "hloracle-report/12"}', "has the schema 'hloracle-report/12', not 'hloracle-report/11'."),
        (b"\xff", "is not text"),
        (b'{"schema": "hloracle-report/11"}', "is not a valid record"),
        (b'{"a":' * 90_000, "is nested more than 100 deep"),
    ],
)
def test_a_record_that_is_none(tmp_path: Path, head: bytes, why: str) -> None:
    written = render(archive(tmp_path, head=head), LINK)
    assert knows_nothing(written)
    assert f"The run's record {why}" in written
    assert str(tmp_path) not in written
    assert "/tmp" not in written


def test_a_valid_record_that_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comment.summary, "render", overflow)
    written = render(archive(tmp_path, head=conforms()), LINK)
    assert knows_nothing(written)
    assert "The run's record cannot be drawn (OverflowError)." in written


def nested(depth: int) -> bytes:
    """A record whose configuration is deep."""
    text = to_json(conforms() | {"model": conforms()["model"] | {"config": {"deep": "HERE"}}})
    return text.replace('"HERE"', '{"a":' * depth + "1" + "}" * depth).encode()


@pytest.mark.parametrize("depth", [200, 600, 900, 980, 100_000])
def test_a_record_that_is_deep(tmp_path: Path, depth: int) -> None:
    written = render(archive(tmp_path, head=nested(depth)), LINK)
    assert knows_nothing(written) or "## ✅ hloracle: Conforms" in written


# ---- archives


def test_a_record_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """64 MB of spaces are 64 KB in the archive."""
    path = archive(tmp_path, head=b" " * (2 * comment.LARGEST))
    assert path.stat().st_size < 100_000
    written = render(path, LINK)
    assert knows_nothing(written)
    assert "The run's record is larger than 33,554,432 bytes." in written


def lying_about_its_size(path: Path) -> None:
    """The directory says that the record has ten bytes."""
    data = bytearray(path.read_bytes())
    start = data.rindex(b"PK\x01\x02")
    struct.pack_into("<L", data, start + 24, 10)
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[200] ^= 0xFF
    path.write_bytes(bytes(data))


def encrypted(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.rindex(signature) + offset] |= 1
    path.write_bytes(bytes(data))


def of_another_method(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        struct.pack_into("<H", data, data.rindex(signature) + offset, 99)
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "spoil",
    [
        lying_about_its_size,
        cut,
        flipped,
        encrypted,
        of_another_method,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\x00" * 10_000),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
def test_an_archive_that_is_none(tmp_path: Path, spoil: Callable[[Path], Any]) -> None:
    path = archive(tmp_path, head=conforms())
    spoil(path)
    written = render(path, LINK)
    assert knows_nothing(written)
    assert "The run's record " in written


def test_other_files_of_the_archive_are_left_alone(tmp_path: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as files:
        for name in ("../../outside", "/tmp/outside", "hloracle.py", "sub/head.json"):
            files.writestr(name, "evil")
        link = zipfile.ZipInfo(BASE)
        link.external_attr = 0o120777 << 16
        files.writestr(link, "/etc/passwd")
        files.writestr(HEAD, to_json(conforms()))
    path = tmp_path / "records.zip"
    path.write_bytes(data.getvalue())
    written = render(path, LINK)
    assert "The base's record is not JSON" in written
    assert "root:" not in written
    assert list(tmp_path.iterdir()) == [path]


# ---- words


@pytest.mark.parametrize("base", [None, hostile(), conforms()])
def test_hostile_words_stay_words(tmp_path: Path, base: Record | None) -> None:
    head = hostile()
    if base is not None:
        head["model"]["architecture"] = base["model"]["architecture"]
    written = render(archive(tmp_path, head=head, base=base), LINK)
    rest = written.removeprefix(MARKER)
    for evil in ("<script", "<img", "<!--", "](http", "http:", "\u202e", "\n# heading", MARKER):
        assert evil not in rest
    assert len(written.encode()) <= MOST


def test_a_comment_never_outgrows_what_carries_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of the environment: 128 KiB on Linux, with its name."""
    assert MOST + 1_000 < 128 * 1024
    path = archive(tmp_path, head=conforms())
    whole = render(path, LINK)
    monkeypatch.setattr(comment, "MOST", len(whole.encode()) - 1)
    written = render(path, LINK)
    assert knows_nothing(written)
    assert "too long for a comment" in written


def test_a_wrong_link_is_the_callers_mistake(tmp_path: Path) -> None:
    for link in ("file:///etc/passwd", "no", HOSTILE):
        with pytest.raises(InputError, match="is not a web address"):
            render(archive(tmp_path, head=conforms()), link)


# ---- the command


def test_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, out = archive(tmp_path, head=failing(), base=conforms()), tmp_path / "comment.md"
    assert cli.invoke(["comment", str(path), "--link", LINK, "-o", str(out)]) == 0
    assert out.read_text() == render(path, LINK)
    assert cli.invoke(["comment", "-o", str(out)]) == 0
    assert out.read_text() == render(None)
    assert capfd.readouterr() == ("", ""), "what it prints would be read by the runner"
    assert cli.invoke(["comment", str(tmp_path / "none.zip"), "-o", str(out)]) == 2
    assert capfd.readouterr().err.startswith(f"hloracle: {tmp_path / 'none.zip'}: no such file; ")
