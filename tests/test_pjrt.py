"""PJRT plugins: a real one, found by its file and by its name, and libraries that are none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from test_worker import A, B

import hloracle
from hloracle.backends import named
from hloracle.conformance.context import Context
from hloracle.conformance.runs.gate_zero import gate_zero, sum_graph
from hloracle.core.errors import InputError, ToolchainError

PACKAGE = "xla-cpu-pjrt==0.0.1"
LIBRARY = "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so"
NONE = "int other(void) { return 1; }"
ABORTS = """
#include <stdio.h>
#include <stdlib.h>
void *GetPjrtApi(void) { fprintf(stderr, "starting\\nacme: no device\\n"); abort(); }
"""
# As pjrt_c_api.h lays it out: sizes, and a version that no framework has.
ANOTHER_VERSION = """
#include <stddef.h>
struct version { size_t struct_size; void *extension_start; int major, minor; };
struct api { size_t struct_size; void *extension_start; struct version version; void *functions[200]; };
static struct api api = {sizeof(struct api), NULL, {sizeof(struct version), NULL, 99, 1}, {NULL}};
void *GetPjrtApi(void) { return &api; }
"""


def compiled(folder: Path, source: str) -> Path:
    """A shared library of C."""
    library = folder / "acme.so"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    try:
        subprocess.run(command, input=source, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("there is no C compiler, cc")
    return library


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (None, "Failed to open "),
        (NONE, "GetPjrtApi not found in "),
        (ABORTS, "pjrt:acme ended without an answer (signal SIGABRT): acme: no device"),
        (ANOTHER_VERSION, "Mismatched PJRT plugin PJRT API major version (99)"),
    ],
)  # fmt: skip
def test_a_library_that_is_no_plugin_is_an_error_in_one_line(source: str | None, words: str, tmp_path: Path) -> None:
    library = compiled(tmp_path, source) if source else tmp_path / "acme.so"
    if not source:
        library.write_text("no library")
    with pytest.raises(ToolchainError) as raised:
        named.make_backend(f"pjrt:{library}", 1)
    assert raised.value.stage == "load"
    assert words in raised.value.message
    assert "\n" not in raised.value.message
    assert "JAX_PLATFORMS" not in raised.value.message


def test_a_plugin_that_nobody_brings() -> None:
    check = gate_zero(Context(backends=named.chosen(["pjrt:acme"])), "pjrt:acme").check
    assert check.status == "error"
    assert "'acme' is not in the list of known backends" in check.detail


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match=r"--backend pjrt:/nowhere/acme\.so: no such file"):
        named.chosen(["pjrt:/nowhere/acme.so"])


# ---- a real one


@pytest.fixture(scope="module")
def site(cache: Path) -> Path:
    """A folder with the package of a plugin: XLA's own for the processor."""
    folder = cache / "plugin"
    with FileLock(f"{folder}.lock"):
        if not (folder / LIBRARY).is_file():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
            subprocess.run([*pip, "--target", str(folder), PACKAGE], check=True, capture_output=True)
    return folder


ENTRY = """
from jax._src import xla_bridge

def initialize():
    print("a plugin that talks")
    xla_bridge.register_plugin("acme", library_path="{library}")
"""


@pytest.fixture
def by_name(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same plugin in a package that JAX finds by its entry point."""
    (tmp_path / "acme_plugin.py").write_text(ENTRY.format(library=site / LIBRARY))
    info = tmp_path / "acme_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[jax_plugins]\nacme = acme_plugin\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return "pjrt:acme"


def sums(word: str) -> list[float]:
    backend = named.make_backend(word, 1)
    (found,) = backend.load(sum_graph())([backend.keep(A), backend.upload(B)])
    values: list[float] = backend.download(found).tolist()
    return values


@pytest.mark.nightly
def test_a_plugin_by_its_name(by_name: str) -> None:
    assert sums(by_name) == [11, 22, 33, 44]
    assert gate_zero(Context(backends=named.chosen([by_name])), by_name).check.status == "passed"


@pytest.mark.nightly
def test_a_plugin_by_its_library(site: Path) -> None:
    """It is a witness of XLA's family, unless it is said to be another's."""
    library = site / LIBRARY
    assert sums(f"pjrt:{library}") == [11, 22, 33, 44]
    for word, family in ((f"pjrt:{library}", "xla"), (f"pjrt@acme:{library}", "acme")):
        (choice,) = named.chosen([word])
        assert (choice.name, choice.family) == ("pjrt:xla_cpu_pjrt", family)


@pytest.mark.nightly
def test_a_plugin_is_judged_as_any_backend(site: Path) -> None:
    record = hloracle.run(
        "tiny-llama", backends=[f"pjrt:{site / LIBRARY}"], tokens=3, capacity=64, threads=1, quick=True
    )
    assert record.verdict.class_ == "conforms"
    assert {c["backend"] for c in record.data["configurations"]} == {"pjrt:xla_cpu_pjrt"}
