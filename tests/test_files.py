"""Files that are written: whole or not at all, through links, and to devices and pipes as these are."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hloracle.cli.main import invoke
from hloracle.core.errors import InputError
from hloracle.core.files import is_special, write_file, writing
from hloracle.core.folder import begin_report, write_files


def _leftovers(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if not p.name.endswith(".lock"))


def _full(*args: object, **kwargs: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_write_file_replaces_and_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    write_file(path, "one")
    write_file(path, b"two")
    assert path.read_bytes() == b"two"
    (tmp_path / "plain").write_text("")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert _leftovers(path.parent) == ["report.json"]


def test_write_file_that_fails_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    write_file(path, "old")
    monkeypatch.setattr(os, "replace", _full)
    with pytest.raises(InputError, match="the disk is full"):
        write_file(path, "new")
    assert path.read_text() == "old"
    assert _leftovers(tmp_path) == ["report.json"]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError("1440 requested and 992 written"), "the disk is full; free some space"),  # as NumPy says it
        (OSError(errno.EIO, "Input/output error"), r"cannot be written \(input/output error\); look after the disk"),
        (OSError(errno.EFBIG, "File too large"), r"cannot be written \(file too large\); look after the disk"),
    ],
)
def test_a_disk_that_does_not_do_its_part(error: OSError, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"entry: {says}"), writing(tmp_path / "entry"):
        raise error


def test_files_are_written_all_or_none(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_text("of an earlier run")
    paths[1].unlink()
    paths[1].mkdir()
    with pytest.raises(InputError, match="b: cannot be written"):
        write_files(dict.fromkeys(paths, "new"))
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    write_files({paths[0]: "new", paths[2]: None})
    assert paths[0].read_text() == "new"


def test_a_folder_where_a_file_should_be(tmp_path: Path) -> None:
    (tmp_path / "report.json").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write_file(tmp_path / "report.json", "")


@pytest.mark.parametrize("mode", [0o600, 0o755])
def test_a_file_that_is_replaced_leaves_its_permissions(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(mode)
    write_file(path, "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", mode)


def test_a_link_is_written_through(tmp_path: Path) -> None:
    """It stays a link, whether or not something is at its end; so does a link to a link."""
    (tmp_path / "there").write_text("old")
    for link, target in (("link", "there"), ("dangling", "new/deep"), ("twice", "link")):
        (tmp_path / link).symlink_to(target)
    for link in ("link", "dangling", "twice"):
        write_file(tmp_path / link, link)
        assert (tmp_path / link).is_symlink()
        assert (tmp_path / link).read_text() == link
    assert (tmp_path / "there").read_text() == "twice"
    assert (tmp_path / "new" / "deep").read_text() == "dangling"
    assert _leftovers(tmp_path) == ["dangling", "link", "new", "there", "twice"]


def test_the_folder_of_a_report_may_be_a_dangling_link(tmp_path: Path) -> None:
    """The folder that it names is made, and the link stays one."""
    (tmp_path / "out").symlink_to("elsewhere/deep")
    begin_report(tmp_path / "out")
    write_file(tmp_path / "out" / "report.json", "{}")
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "elsewhere" / "deep" / "report.json").read_text() == "{}"
    assert _leftovers(tmp_path) == ["elsewhere", "out"]


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="cannot be written"):
        write_file(tmp_path / "loop", "")


def test_a_device_takes_the_bytes_and_stays_a_device(tmp_path: Path) -> None:
    before = os.stat("/dev/null")
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    for path in (Path("/dev/null"), link):
        assert is_special(path)
        write_file(path, "x")
    after = os.stat("/dev/null")
    assert stat.S_ISCHR(after.st_mode)
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    with pytest.raises(InputError, match="the disk is full"):
        write_file(Path("/dev/full"), "x")


def test_a_pipe_takes_the_bytes(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_file(pipe, "x" * 100_000)
    reader.join(10)
    assert read == ["x" * 100_000]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_emit_to_stdout_writes_the_graph_alone(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hloracle", "emit", "tiny-llama", "--phase", "decode", "-o", name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("module @")
    assert done.stdout.rstrip().endswith("}")
    assert "no ABI file was written" in done.stderr
    assert list(tmp_path.iterdir()) == []


RECORDS = Path(__file__).parent / "records"
WRITING = (
    ("emit", "tiny-llama", "--phase", "decode", "-o"),
    ("diff", str(RECORDS / "conforms.json"), str(RECORDS / "emitter-fault.json"), "-o"),
    ("comment", "-o"),
)
each_that_writes = pytest.mark.parametrize("command", WRITING, ids=lambda command: command[0])


@pytest.mark.parametrize("command", WRITING[1:], ids=lambda command: command[0])
def test_a_dash_is_stdout(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke([*command, "file"]) == 0
    capsys.readouterr()
    assert invoke([*command, "-"]) == 0
    assert capsys.readouterr().out == (tmp_path / "file").read_text()
    assert _leftovers(tmp_path) == ["file"]


def test_a_comparison_as_json_has_stdout_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([*WRITING[1], "-", "--json"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.startswith("hloracle: --json: cannot go to stdout together with")) == ("", True)


@each_that_writes
def test_what_commands_write_goes_into_a_pipe(command: tuple[str, ...], tmp_path: Path) -> None:
    assert invoke([*command, str(tmp_path / "file")]) == 0
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    assert invoke([*command, str(pipe)]) == 0
    reader.join(10)
    assert read == [(tmp_path / "file").read_text()]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@each_that_writes
def test_what_commands_write_leaves_a_device_a_device(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through a link, so that a wrong one would replace the link and not this machine's device."""
    place = tmp_path / "null"
    place.symlink_to("/dev/null")
    assert invoke([*command, str(place)]) == 0
    assert place.is_symlink(), capsys.readouterr().err
    assert _leftovers(tmp_path) == ["null"]
