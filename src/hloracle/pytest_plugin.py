"""The pytest plugin: a fixture that judges graphs, a marker with what it is given, and the folder of its reports.

pytest loads it in every session where hloracle is installed, so the library is imported by the test that needs it.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hloracle import Record

OUT = "out/pytest"
MARKER = (
    "hloracle(model=..., tokens=..., ...): what the fixture `hloracle` gives to hloracle.check and hloracle.run, unless "
    "the call says otherwise; on a test, a class or a module"
)
LONGEST = 120  # characters of a folder's name; a file system takes 255 bytes


class NonConforming(AssertionError):
    """The graphs that a test gave do not conform, or nothing is known of them; the text is the verdict."""


# As pytest's own outcomes: the line of the summary has no room for the name of this module.
NonConforming.__module__ = "builtins"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--hloracle-out`, and the same as an option of the configuration file."""
    what = "folder for the reports of the fixture `hloracle`, with a folder for each test"
    parser.getgroup("hloracle").addoption(
        "--hloracle-out", metavar="FOLDER", help=f"{what} ({OUT}, unless the option hloracle_out is set)"
    )
    parser.addini("hloracle_out", f"{what}, relative to the root directory", default=OUT)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(name="hloracle")
def hloracle_fixture(request: pytest.FixtureRequest) -> Judge:
    """Checks graphs and sources as the module does, fails the test where they do not conform, and keeps the report."""
    return Judge(request.node)


class Judge:
    """The fixture `hloracle` of one test."""

    def __init__(self, test: pytest.Item) -> None:
        self._test = test
        self._calls = 0

    def check(self, *graphs: str | Path, **settings: Any) -> Record:
        """`hloracle.check`: its record, where the graphs conform.

        Args:
          settings: those of `hloracle.check` but `out`, on top of what the test's markers say.

        Raises NonConforming with the verdict where they do not; the test fails on what cannot be used.
        """
        __tracebackhide__ = True
        return self._judged("check", graphs, settings)

    def run(
        self, model: str | Path | None = None, sources: Sequence[Any] | None = None,
        backends: Sequence[Any] | None = None, **settings: Any,
    ) -> Record:  # fmt: skip
        """`hloracle.run`: its record, where all sources conform. The rest is as `check` has it."""
        __tracebackhide__ = True
        given = {"model": model, "sources": sources, "backends": backends}
        return self._judged("run", (), {k: v for k, v in given.items() if v is not None} | settings)

    def __getattr__(self, name: str) -> Any:
        """Anything else of the package, whose name the fixture's hides in a test: `hloracle.emit`."""
        import hloracle

        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(hloracle, name)

    def _judged(self, name: str, graphs: Sequence[str | Path], settings: dict[str, Any]) -> Record:
        __tracebackhide__ = True
        import hloracle
        from hloracle import InputError
        from hloracle.core.folder import begin_report

        judge: Callable[..., Record] = getattr(hloracle, name)
        settings = _taken(name, self._marked()) | settings
        settings = _project(self._test.config, name, settings.get("sources")) | settings
        if "out" in settings:
            pytest.fail("out: is the test's own folder; leave it out, and name another place with --hloracle-out")
        if "model" not in settings and not (name == "check" and "project" in settings):
            pytest.fail("no model is named: give model=..., or mark the test with hloracle(model=...)")
        folder = self._next_folder()
        try:
            begin_report(folder)
            record = judge(*graphs, **settings, out=folder)
            report = record.save(folder) / "report.html"
        except InputError as error:
            raise pytest.fail.Exception(str(error)) from None
        shown = _shown(report, self._test.config)
        found = {"verdict": record.verdict.class_, "anchor": record.verdict.anchor, "report": shown}
        self._test.user_properties += [
            (f"hloracle-{name}", value) for name, value in found.items() if value is not None
        ]
        if not record.passed:
            raise NonConforming(_words(record, shown))
        return record

    def _marked(self) -> dict[str, Any]:
        """What the markers say: a test's own before its class's, and that before its module's."""
        found: dict[str, Any] = {}
        for mark in reversed(list(self._test.iter_markers("hloracle"))):
            if mark.args:
                pytest.fail("the marker hloracle takes keywords alone, as in hloracle(model=...)")
            found |= mark.kwargs
        return found

    def _next_folder(self) -> Path:
        """The test's folder; of its second call the folder `2` in that, and so on."""
        self._calls += 1
        folder = _out(self._test.config) / folder_name(self._test.nodeid)
        return folder if self._calls == 1 else folder / str(self._calls)


def _taken(name: str, marked: dict[str, Any]) -> dict[str, Any]:
    """What `check` or `run` takes of a marker, which may be for both; and what neither knows, which is refused there."""
    from hloracle import CheckOptions, Options

    takes = {
        "check": {"model", "abi", "backends"} | CheckOptions.__optional_keys__,
        "run": {"model", "sources", "backends"} | Options.__optional_keys__,
    }
    return {
        key: value for key, value in marked.items() if key in takes[name] or not any(key in t for t in takes.values())
    }


def _project(config: pytest.Config, name: str, sources: Any) -> dict[str, Any]:
    """The project's file, where the root directory has one, of graphs that it is about: tests may be run from any folder."""
    path = config.rootpath / "hloracle.toml"
    some = sources if isinstance(sources, list | tuple) else [sources or "emitter"]
    own = name == "check" or any(source != "emitter" for source in some)
    return {"project": path} if own and path.is_file() else {}


def folder_name(test: str) -> str:
    """The name of a test's folder, another one for each id: where a letter has to go, its hash tells it from others."""
    plain = test.replace("::", "--").replace("/", "-")
    name = re.sub(r"[^\w.-]+", "-", plain, flags=re.ASCII).strip(".-")[:LONGEST]
    return name if name == plain and "-" not in test else f"{name}-{hashlib.sha256(test.encode()).hexdigest()[:8]}"


def _out(config: pytest.Config) -> Path:
    given: str | None = config.getoption("hloracle_out")
    if given:
        return config.invocation_params.dir / given
    return config.rootpath / str(config.getini("hloracle_out"))


def _shown(path: Path, config: pytest.Config) -> str:
    """A path as a person would type it."""
    start = config.invocation_params.dir
    return os.path.relpath(path, start) if path.is_relative_to(start) else str(path)


def _words(record: Record, report: str) -> str:
    """The verdict, each thing that one looks for on a line of its own."""
    from hloracle.reports.facts import VERDICTS

    verdict = record.verdict
    lines = [f"{verdict.class_}: {verdict.explanation}"]
    if verdict.anchor is not None:
        lines.append(f"{VERDICTS[record.data['verdict']['class']].at} {verdict.anchor}")
    if verdict.operation is not None:
        lines.append(f"operation: {verdict.operation}")
    if verdict.sure:
        lines.append(f"how sure: {verdict.sure}: {'; '.join(verdict.because)}")
    return "\n".join([*lines, f"report: {report}"])
