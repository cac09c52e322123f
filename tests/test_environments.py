"""The environments of other versions: made once, with a list of what pip installed and its hashes."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hloracle.backends import environments
from hloracle.core.cache import SEAL, noting

METADATA = "Metadata-Version: 2.1\nName: tiny\nVersion: {}\n"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that stands for a compiler, in a folder that pip takes it from."""
    info, path = "tiny-1.0.dist-info", tmp_path / "wheels" / "tiny-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny.py", "")
        archive.writestr(f"{info}/METADATA", METADATA.format("1.0"))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    monkeypatch.setenv("HLORACLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(environments.PACKAGES, "iree", ("tiny=={}",))
    return path


def test_what_was_installed_is_listed_with_its_hash(wheel: Path) -> None:
    python = environments.environment("iree", "1.0")
    listed = python.parents[1] / environments.INSTALLED
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert json.loads(listed.read_text()) == [{"name": "tiny", "version": "1.0", "file": wheel.name, "sha256": sha256}]
    wheel.unlink()
    assert environments.environment("iree", "1.0") == python, "it is made once"
    listed.unlink()
    with pytest.raises(environments.NotInstalled, match=r"iree==1\.0: cannot be installed"):
        environments.environment("iree", "1.0")


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: next(folder.rglob("tiny.py")).write_text("x = 1"),
        lambda folder: next(folder.rglob("tiny.py")).unlink(),
        lambda folder: (folder / "installed.json").write_text(""),
        lambda folder: (folder / SEAL).unlink(),
        lambda folder: (folder / SEAL).write_text(""),
    ],
)
def test_one_that_is_damaged_is_made_anew(damage: Callable[[Path], object], wheel: Path) -> None:
    folder = environments.environment("iree", "1.0").parents[1]
    (next(folder.rglob("tiny.py")).parent / "__pycache__").mkdir(exist_ok=True)
    (next(folder.rglob("tiny.py")).parent / "__pycache__" / "tiny.cpython-311.pyc").write_bytes(b"")  # as it runs
    with noting() as none:
        environments.environment("iree", "1.0")
    damage(folder)
    with noting() as found:
        assert environments.environment("iree", "1.0").exists()
    assert (none, found) == ([], [f"environments/{folder.name}"])
    assert next(folder.rglob("tiny.py")).read_text() == ""


@pytest.mark.parametrize("archive", [{"hashes": {"sha256": "0" * 64}}, {"hash": f"sha256={'0' * 64}"}])
def test_no_address_is_kept(archive: dict[str, object], tmp_path: Path) -> None:
    """That of an index may hold a password. pip 22 writes hashes in another form."""
    report = tmp_path / "report.json"
    url = "https://user:secret@index.example/a/tiny-1.0%2Bcpu-py3-none-any.whl"
    about = {"name": "tiny", "version": "1.0+cpu"}
    row = {"metadata": about, "download_info": {"url": url, "archive_info": archive}}
    report.write_text(json.dumps({"install": [row]}))
    (found,) = environments._installed(report)
    assert found == {**about, "file": "tiny-1.0+cpu-py3-none-any.whl", "sha256": "0" * 64}
