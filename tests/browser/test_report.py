"""The report in a real browser: what a reader does with it first."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import checks
import pytest
import records
from pages import PAGES, PageUnderTest
from playwright.sync_api import Page, expect
from tabs import Tabs

Draw = Callable[[PageUnderTest], Path]
REPORT = {page.name: page for page in PAGES}
WRONG = records.failing()["verdict"]["anchor"]


@pytest.fixture
def failing(draw: Draw) -> Path:
    """The report of a run whose emitter is wrong."""
    return draw(REPORT["failing"])


def test_the_first_screen_says_what_is_wrong_and_where(tabs: Tabs, failing: Path) -> None:
    with tabs.opened(failing) as page:
        assert checks.in_window(page.locator("h1"))
        assert checks.in_window(page.get_by_text(WRONG, exact=True).first)
        assert page.evaluate("scrollY") == 0


@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_one_click_leads_to_the_wrong_operation_in_both_graphs(tabs: Tabs, failing: Path, script: bool) -> None:
    with tabs.opened(failing, script=script) as page:
        link = page.locator("a[href='#wrong-op']").first
        assert checks.in_window(link)
        link.click()
        expect_both_graphs(page)


def expect_both_graphs(page: Page) -> None:
    """The wrong operation can be seen in the column of either graph."""
    places = page.locator("[data-wrong]")
    columns = set()
    for place in places.all():
        assert checks.in_window(place)
        columns.add(place.evaluate("place => place.closest('td, th').cellIndex"))
    assert len(columns) == 2


def visible_rows(page: Page) -> list[str]:
    """Of the operations that can be seen: their texts, after those of their scopes."""
    rows: list[str] = page.locator("table.ops tbody tr").evaluate_all(
        "rows => rows.filter(row => row.checkVisibility()).map(row =>"
        " row.closest('details').querySelector('summary').textContent + row.textContent)"
    )
    return rows


def open_folds(page: Page) -> list[bool]:
    return [bool(fold.evaluate("fold => fold.open")) for fold in page.locator("details").all()]


def test_search_shows_what_it_finds_and_counts_it(tabs: Tabs, failing: Path) -> None:
    with tabs.opened(failing) as page:
        folds, rows = open_folds(page), visible_rows(page)
        box = page.get_by_role("searchbox")
        told = page.get_by_role("status")
        box.fill("Q_rope")  # at once: typed, what is found for its beginning would stand there for a moment
        expect(told).to_have_text(re.compile(r"^[1-9]\d* operations? in [1-9]\d* scopes?$"))
        found = visible_rows(page)
        assert f"{len(found)} operation" in told.inner_text()
        assert [row for row in found if "q_rope" not in row.lower()] == []

        box.fill("no operation has this in its name")
        expect(told).to_have_text("nothing found")
        assert visible_rows(page) == []

        box.press("Escape")
        expect(box).to_have_value("")
        expect(told).to_have_text("")
        assert open_folds(page) == folds
        assert visible_rows(page) == rows


def test_links_lead_there_after_a_search_for_something_else(tabs: Tabs, failing: Path) -> None:
    with tabs.opened(failing) as page:
        page.get_by_role("searchbox").fill("embed_tokens")
        expect(page.get_by_role("status")).to_have_text(re.compile(r"\d"))
        page.evaluate("scrollTo(0, 0)")
        page.locator("a[href='#wrong-op']").first.click()
        expect_both_graphs(page)


def test_folds_open_and_close_all_at_once(tabs: Tabs, failing: Path) -> None:
    with tabs.opened(failing) as page:
        page.get_by_role("button", name="Open all").click()
        every = len(visible_rows(page))
        assert every == page.locator("table.ops tbody tr").count()
        page.get_by_role("button", name="Close all").click()
        assert visible_rows(page) == []


def test_a_hostile_record_adds_no_script(tabs: Tabs, draw: Draw, failing: Path) -> None:
    scripts = []
    for file in (failing, draw(REPORT["hostile"])):
        with tabs.opened(file) as page:
            scripts.append(page.locator("script").all_text_contents())
    assert scripts[0] == scripts[1]


def test_hostile_strings_are_shown(tabs: Tabs, draw: Draw) -> None:
    """They are harmless because they are text, not because they were left out."""
    with tabs.opened(draw(REPORT["hostile"])) as page:
        lines = "\n".join(checks.ask(page, "texts"))
        assert "</script><script>window.pwned=1;alert(1)</script>" in lines
        assert "⟨U+202E⟩" in lines
