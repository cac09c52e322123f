"""What every test stands on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import filelock
import pytest

from hloracle.backends.plain import PLAIN_XLA

# Its tests need a browser, and run when they are named: `nox -s browser`.
collect_ignore = ["browser"]
pytest.register_assert_rewrite("page_text")

# XLA without its optimizer compiles in a fifth of the time, and most tests do little else. Set before JAX reads it; what
# is in the environment comes first: see docs/tests.md.
os.environ.setdefault("XLA_FLAGS", " ".join(PLAIN_XLA))
# As importing jax sets it: whatever imports jaxlib before it would have it tell of its clients on stderr.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

# Where tests are started in the background, or with nohup, they would hand on to the programs that they stop that a signal is ignored.
for number, answer in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, answer)

# A run small enough for a test: five configurations, six prompts, buckets of 32, 64 and 128.
SMALL_RUN = ("run", "tiny-llama", "--tokens", "8", "--capacity", "128", "--threads", "2", "--rounds", "2")


def pytest_report_header() -> str:
    return "tests/browser: a session of its own, `nox -s browser`"


def _shared(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder of the whole session, that of xdist's workers all together."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cache of the whole session: an empty folder, never the user's own."""
    folder = _shared(tmp_path_factory, "cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HLORACLE_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def truth_here() -> Iterator[None]:
    """Transformers answers, and reads a GGUF file, in the test's own process: importing it takes longer than that."""
    from hloracle.core.child import ChildResult
    from hloracle.reference.fixtures import adapted, named
    from hloracle.reference.huggingface import anchor_truth, truth

    def here(function: Callable[..., Any], *arguments: Any, timeout: float, report: Any = None) -> ChildResult:
        with mock.patch.dict(os.environ):  # what it sets is of its own process
            return ChildResult(function(report or (lambda line: None), *arguments), 0.0, None)

    with pytest.MonkeyPatch.context() as patch:
        for module in (truth, anchor_truth, named, adapted):
            patch.setattr(module, "run_in_child", here)
        yield


@pytest.fixture(autouse=True)
def environment_stays(cache: Path) -> Iterator[None]:
    """What a test leaves in the environment, another one would find: what is cached is keyed by some of it."""

    def ours() -> dict[str, str]:
        return {n: v for n, v in os.environ.items() if n.startswith(("HLORACLE_", "IREE_", "JAX_", "XLA_"))}

    before = ours()
    yield
    assert ours() == before


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    folder = tmp_path / "own-cache"
    monkeypatch.setenv("HLORACLE_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def small_run(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that SMALL_RUN has written, with every configuration run and nothing reused."""
    from hloracle.cli import main as cli

    out = _shared(tmp_path_factory, "small-run")
    with filelock.FileLock(f"{out}.lock"):
        if not (out / "report.json").is_file():
            assert cli.invoke([*SMALL_RUN, "--out", str(out)]) == 0
    return out


@pytest.fixture
def small_record(small_run: Path) -> dict[str, Any]:
    """SMALL_RUN's record."""
    return dict(json.loads((small_run / "report.json").read_text()))
