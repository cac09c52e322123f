"""The browser of the session and the pages that are opened in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checks import OPENED
from chromium import NoBrowser, find
from nightly import only
from pages import PAGES, PageUnderTest
from playwright.sync_api import Error, sync_playwright
from tabs import Tabs


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", default="out/browser", metavar="DIR",
                     help="where pictures of all pages go (default: out/browser)")  # fmt: skip


def _screenshots(config: pytest.Config) -> Path:
    return config.rootpath / str(config.getoption("--screenshots"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Pictures of an earlier session are removed once, before xdist's workers begin."""
    if not hasattr(session.config, "workerinput"):
        for old in _screenshots(session.config).glob("*.png"):
            old.unlink()


@pytest.fixture(scope="session")
def tabs() -> Iterator[Tabs]:
    """The tabs of one browser for the whole session. Without a browser nothing is tested, so the session ends there."""
    with sync_playwright() as playwright:
        try:
            program = find(playwright.chromium.executable_path)
            launched = playwright.chromium.launch(executable_path=program)
        except NoBrowser as missing:
            pytest.exit(str(missing), returncode=2)
        except Error as error:
            pytest.exit(f"{program} did not start: {error.message.splitlines()[0]}", returncode=2)
        yield Tabs(launched)
        launched.close()


@pytest.fixture(scope="session")
def draw(tmp_path_factory: pytest.TempPathFactory) -> Callable[[PageUnderTest], Path]:
    """Gives a page's file; it is drawn once."""
    files: dict[str, Path] = {}

    def drawn(page: PageUnderTest) -> Path:
        if page.name not in files:
            files[page.name] = page.draw(tmp_path_factory.mktemp(page.name))
        return files[page.name]

    return drawn


# Pages that are drawn by the same code as another, and differ in the record alone.
AT_NIGHT = {"near-tie", "broken", "file", "unsupported", "suite", "diff-same", "history"}


@pytest.fixture(
    scope="session", params=only([p for p in PAGES if p.name not in AT_NIGHT], PAGES), ids=[page.name for page in PAGES]
)
def under_test(request: pytest.FixtureRequest) -> PageUnderTest:
    """Each of the pages."""
    page: PageUnderTest = request.param
    return page


@pytest.fixture
def file(under_test: PageUnderTest, draw: Callable[[PageUnderTest], Path]) -> Path:
    """The file of each of the pages."""
    return draw(under_test)


@pytest.fixture(scope="session")
def screenshots(request: pytest.FixtureRequest) -> Path:
    """The folder for pictures."""
    folder = _screenshots(request.config)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for name in ("passed", "failed") for report in terminalreporter.stats.get(name, [])]
    lines = [str(words) for report in reports for name, words in report.user_properties if name == OPENED]
    if lines:
        terminalreporter.section("time to DOMContentLoaded")
        for line in sorted(set(lines)):
            terminalreporter.line(line)
