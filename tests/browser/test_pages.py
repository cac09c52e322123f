"""Every page in a real browser, opened from disk: what has to be true of all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import checks
import pytest
from pages import LARGE, PageUnderTest
from tabs import Misbehaved, Tabs

LIMIT_MS = 1000  # until DOMContentLoaded
TALLEST = 3000  # CSS pixels of a picture


def test_opens_in_a_second(
    tabs: Tabs,
    under_test: PageUnderTest,
    draw: Callable[[PageUnderTest], Path],
    record_property: Callable[[str, object], None],
) -> None:
    check_time(tabs, under_test, draw(under_test), record_property)


def test_the_largest_opens_in_a_second(
    tabs: Tabs, draw: Callable[[PageUnderTest], Path], record_property: Callable[[str, object], None]
) -> None:
    check_time(tabs, LARGE, draw(LARGE), record_property)


def check_time(tabs: Tabs, page: PageUnderTest, file: Path, say: Callable[[str, object], None]) -> None:
    """The better of two: the machine may be busy with other things as well."""
    with tabs.opened(file) as tab:
        times = [checks.ask(tab, "opened")]
        tab.reload()
        times.append(checks.ask(tab, "opened"))
    say(checks.OPENED, f"{page.name:10} {min(times):4.0f} ms  {file.stat().st_size / 1024:5.0f} KiB")
    assert min(times) < LIMIT_MS


def test_structure(tabs: Tabs, file: Path) -> None:
    with tabs.opened(file) as page:
        assert checks.structure(page) == []


def test_links_lead_to_what_can_be_seen(tabs: Tabs, file: Path) -> None:
    with tabs.opened(file) as page:
        assert checks.links(page) == []


def test_links_lead_there_without_script(tabs: Tabs, file: Path) -> None:
    with tabs.opened(file, script=False) as page:
        assert checks.links(page) == []


def test_skip_link(tabs: Tabs, file: Path) -> None:
    with tabs.opened(file) as page:
        assert checks.skip_link(page) == []


def test_tab_reaches_everything(tabs: Tabs, file: Path) -> None:
    with tabs.opened(file) as page:
        assert checks.tab_order(page) == []


def test_folds_by_keyboard(tabs: Tabs, file: Path) -> None:
    with tabs.opened(file) as page:
        assert checks.folds(page) == []


def test_accessible(tabs: Tabs, file: Path) -> None:
    with tabs.opened(file) as page:
        assert checks.accessible(page) == []


def test_reads_the_same_without_script(tabs: Tabs, file: Path) -> None:
    with tabs.opened(file) as page:
        wanted = checks.ask(page, "texts")
    assert wanted
    with tabs.opened(file, script=False) as page:
        assert checks.missing_without_script(page, wanted) == []


def test_prints_all(tabs: Tabs, file: Path) -> None:
    with tabs.opened(file) as page:
        assert checks.printed(page) == []


def test_nothing_of_the_record_runs(tabs: Tabs, file: Path) -> None:
    with tabs.opened(file) as page:
        assert checks.injected(page) == []


def test_nothing_of_the_record_runs_even_without_the_content_policy(tabs: Tabs, file: Path) -> None:
    with tabs.opened(file, policy=False) as page:
        assert checks.injected(page) == []


def test_content_policy_is_in_force(tabs: Tabs, file: Path) -> None:
    foreign = "document.body.append(Object.assign(document.createElement('script'), {text: 'throw new Error()'}))"
    with pytest.raises(Misbehaved) as noticed, tabs.opened(file) as page:
        page.evaluate(foreign)
    assert "Content Security Policy" in str(noticed.value)
    assert "exception" not in str(noticed.value)


def test_looks(tabs: Tabs, under_test: PageUnderTest, file: Path, screenshots: Path) -> None:
    """On a phone, a tablet and a laptop: pictures for people to look at, a page that fits, and dark that is dark."""
    wrong = []
    with tabs.opened(file) as page:
        for width in checks.WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            height = min(TALLEST, page.evaluate("document.documentElement.scrollHeight"))
            # A window as tall as the page: Playwright's pictures of full pages take many times as long.
            page.set_viewport_size({"width": width, "height": height})
            for scheme in checks.SCHEMES:
                page.emulate_media(color_scheme=scheme)
                checks.ask(page, "drawn")
                page.screenshot(path=screenshots / f"{under_test.name}-{width}-{scheme}.png")
            wrong += checks.schemes(page)
        for width in checks.WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            wrong += [f"at {width} px: {line}" for line in checks.fits(page)]
    assert wrong == []
