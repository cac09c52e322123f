"""What the pages are held to notices what it is there for, on a small page that is right but for one thing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import checks
import chromium
import pytest
import test_pages
from pages import PageUnderTest
from playwright.sync_api import Page
from tabs import Misbehaved, Tabs

RIGHT = """<!DOCTYPE html>
<html lang="en"><head><title>Right</title><style>
body { background: #fff; color: #222; }
a { color: #04c; }
:focus-visible { outline: 2px solid #04c; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #eee; } a { color: #9bf; } }
@media print { details::details-content { content-visibility: visible; block-size: auto; } }
</style></head><body>
<a href="#main">Skip</a> <main id="main"><h1>One</h1><h2>Two</h2><p><a href="#inside">Inside</a></p>
<table><thead><tr><th scope="col">A</th><th scope="col">B</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>
<details><summary>Fold</summary><p id="inside">Folded words</p></details></main>
</body></html>
"""
BOX = "<div style='width:50px;overflow:hidden'><div style='width:200px'>words</div></div>"

CHECKS: dict[str, Callable[[Page], list[str]]] = {
    check.__name__: check
    for check in (
        checks.structure, checks.links, checks.skip_link, checks.tab_order, checks.folds, checks.fits,
        checks.accessible, checks.schemes, checks.printed, checks.injected,
    )
}  # fmt: skip

# A check, what is replaced by what, and words of the fault that it finds then.
WRONG = [
    ("structure", "<title>Right</title>", "", "no title"),
    ("structure", "<h2>Two</h2>", "<h1>Two</h1>", "2 headings of level 1"),
    ("structure", "<h2>Two</h2>", "<h3>Two</h3>", "“Two” follows a heading of level 1"),
    ("structure", "<h2>Two</h2>", "<h2> </h2>", "is empty"),
    ("structure", '<th scope="col">A</th>', "<th>A</th>", "“A” has no scope"),
    ("structure", "<h2>Two</h2>", "<table><tr><td>1</td></tr></table>", "“1” has no header cell"),
    ("structure", "<h2>Two</h2>", "<h2 id=inside>Two</h2>", "the id inside stands twice"),
    ("structure", "<h2>Two</h2>", "<h2 aria-labelledby=x>Two</h2>", "names x, which is not there"),
    ("links", 'href="#inside"', 'href="#x"', "leads to #x, which is not there"),
    ("links", '<p id="inside">', '<p id="inside" hidden>', "leads to #inside, which cannot be seen then"),
    ("links", '<a href="#inside">', '<a href="#inside" onclick="return false">', "which cannot be seen then"),
    ("skip_link", '<a href="#main">Skip</a>', "", "does not reach a skip link first"),
    ("skip_link", '<a href="#main">', '<a href="#main" onclick="return false">', "does not move the focus"),
    ("skip_link", '<a href="#main">', '<a href="#main" style="position:absolute;top:-9em">', "cannot be seen"),
    ("tab_order", "outline: 2px solid #04c", "outline: none", "“Skip” has no focus ring"),
    ("tab_order", "outline: 2px solid #04c", "outline: 2px solid transparent", "“Skip” has no focus ring"),
    ("tab_order", "<p><a", "<p style='overflow:hidden;width:2em'><a", "“Inside”: what holds it cuts its focus ring off"),
    ("tab_order", "<h1>", "<i style='position:fixed;inset:0'></i><h1>", "“Skip” cannot be seen when it has the focus"),
    ("tab_order", '<a href="#inside">', "<a href='#inside' onkeydown='event.preventDefault()'>", "not reach <summary>"),
    ("folds", "<summary>", "<summary onclick='event.preventDefault()'>", "Enter does not open the fold <summary>"),
    ("folds", "<summary>", "<summary onkeyup='event.preventDefault()'>", "Space does not close the fold <summary>"),
    ("fits", "<h2>", "<h2 style='width:1300px'>", "1308 px wide in 1280 px: <h2> “Two”"),
    ("fits", "<p id", "<p style='width:1300px' id", "wide in 1280 px: <p#inside> “Folded words”"),
    ("accessible", "color: #222", "color: #aaa", "light: color-contrast: h1"),
    ("accessible", "color: #eee", "color: #555", "dark: color-contrast: h1"),
    ("accessible", "Folded words", "<span style='color:#bbb'>words</span>", "light: color-contrast: span"),
    ("accessible", "<h2>", "<h2 role=x>", "light: aria-roles: h2"),
    ("schemes", "background: #111", "background: #eee", "the dark scheme's ground has the lightness 0.93"),
    ("schemes", "background: #fff", "background: #123", "the light scheme's ground has the lightness 0.13"),
    ("printed", "visible; block-size: auto", "hidden", "in a closed fold: <p#inside>"),
    ("printed", "<h2>Two</h2>", f"<h2>Two</h2>{BOX}", "“words” shows 50 of 200 px"),
    ("printed", "<h2>", "<h2 style='width:2000px'>", "px over the edge: <h2> “Two”"),
    ("injected", "<h2>", "<img alt=''><h2>", "<img> “” does not belong here"),
    ("injected", "<h2>", "<h2 onclick=x>", "has the attribute onclick"),
    ("injected", "<h2>", "<h2>\u202e", "<h2> “\u202eTwo” has hidden characters"),
    ("injected", "<h2>", "<h2 title='\u2066'>", "has hidden characters in title"),
    ("injected", 'href="#inside"', 'href="javascript:x"', "leads to javascript:x"),
    ("injected", "<h2>", "<script>window.pwned = 3</script><h2>", "a script of the record ran (mark 3)"),
]  # fmt: skip


def page_of(source: str, folder: Path) -> Path:
    file = folder / "page.html"
    file.write_text(source, "utf-8")
    return file


@pytest.mark.parametrize("check", CHECKS)
def test_nothing_is_found_where_all_is_right(tabs: Tabs, tmp_path: Path, check: str) -> None:
    with tabs.opened(page_of(RIGHT, tmp_path)) as page:
        assert CHECKS[check](page) == []


@pytest.mark.parametrize(("check", "right", "wrong", "words"), WRONG)
def test_is_found(tabs: Tabs, tmp_path: Path, check: str, right: str, wrong: str, words: str) -> None:
    assert RIGHT.count(right) == 1
    with tabs.opened(page_of(RIGHT.replace(right, wrong), tmp_path)) as page:
        found = CHECKS[check](page)
        assert [line for line in found if words in line], found


def test_what_only_a_script_shows_is_found(tabs: Tabs, tmp_path: Path) -> None:
    bar = "<div hidden><label>Find <input></label></div>"
    script = "<script>for (const e of document.querySelectorAll('[hidden]')) e.hidden = false</script>"
    source = RIGHT.replace("<h2>Two</h2>", f"<h2 hidden>Two</h2>{bar}").replace("</main>", f"</main>{script}")
    file = page_of(source, tmp_path)
    with tabs.opened(file) as page:
        wanted = checks.ask(page, "texts")
    with tabs.opened(file, script=False) as page:
        assert checks.missing_without_script(page, wanted) == ["Two"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("<img src='http://127.0.0.1:9/x.png' alt=''>", "request: http://127.0.0.1:9/x.png"),
        ("<link rel='stylesheet' href='other.css'>", "request: file://"),
        ("<script>console.log('said')</script>", "console: log: said"),
        ("<script>throw new Error('thrown')</script>", "exception: thrown"),
        ("<script>alert('asked')</script>", "dialog: asked"),
        ("<meta http-equiv=Content-Security-Policy content=\"default-src 'none'\"><p style='color: red'>", "console: error: "),
    ],
)  # fmt: skip
def test_what_a_page_must_not_do_is_noticed(tabs: Tabs, tmp_path: Path, source: str, words: str) -> None:
    with pytest.raises(Misbehaved) as noticed, tabs.opened(page_of(source, tmp_path)):
        pass
    assert str(noticed.value).startswith(words)


def test_what_a_page_must_not_do_later_is_noticed(tabs: Tabs, tmp_path: Path) -> None:
    source = "<a href='http://127.0.0.1:9/' target='_blank'>Out</a>"
    file = page_of(source, tmp_path)
    with pytest.raises(Misbehaved, match="window: "), tabs.opened(file) as page, page.expect_popup():
        page.get_by_role("link").click()


def test_a_slow_page_is_noticed(tabs: Tabs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_pages, "LIMIT_MS", 50)
    waits = "<script>for (const begin = performance.now(); performance.now() < begin + 60;);</script>"
    slow = PageUnderTest("slow", lambda folder: page_of(waits, folder))
    with pytest.raises(AssertionError, match="< 50"):
        test_pages.check_time(tabs, slow, slow.draw(tmp_path), lambda name, words: None)


# ---- finding the browser


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is all of the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROME_PATH", raising=False)
    return tmp_path


def program(path: Path, text: str = "") -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_browser_is_found(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = program(alone / "chromium")
    assert chromium.find(str(alone / "own")) == on_path
    own = program(alone / "own")
    assert chromium.find(own) == own
    named = program(alone / "named")
    monkeypatch.setenv("CHROME_PATH", named)
    assert chromium.find(own) == named


def test_a_missing_browser_is_said_in_one_line(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    program(alone / "apt-get")
    with pytest.raises(chromium.NoBrowser, match=r"^no Chrome or Chromium was found: install one \(.*\), or name it"):
        chromium.find_or_install(str(alone / "own"))
    monkeypatch.setenv("CHROME_PATH", "nowhere")
    with pytest.raises(chromium.NoBrowser, match=r"^CHROME_PATH=nowhere is not a program: "):
        chromium.find_or_install(str(alone / "own"))


def test_root_installs_the_browser(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    apt = program(alone / "apt-get", "exit 100")
    with pytest.raises(chromium.NoBrowser, match=r"^`apt-get update` ended with status 100, and no Chrome"):
        chromium.find_or_install(str(alone / "own"))
    program(Path(apt), f'[ "$2" = update ] && exit\necho > {alone}/chromium; /bin/chmod 755 {alone}/chromium')
    assert chromium.find_or_install(str(alone / "own")) == str(alone / "chromium")
