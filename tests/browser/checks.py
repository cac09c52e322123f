"""What has to be true of every page. A check returns a line for each fault, and an empty list if all is well."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Locator, Page, PdfMargins

INSIDE = Path(__file__).with_name("checks.js").read_text("utf-8")
AXE = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
OPENED = "opened"  # the property in which a test says how long a page took to open
WIDTHS = (390, 768, 1280)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def ask(page: Page, check: str, argument: Any = None) -> Any:
    """Call a function of checks.js in the page."""
    return page.evaluate(f"argument => ({INSIDE}).{check}(argument)", argument)


def in_window(place: Locator) -> bool:
    """Whether it can be seen without scrolling, within a second."""
    return bool(place.evaluate(f"element => ({INSIDE}).comesIntoWindow(element)"))


def structure(page: Page) -> list[str]:
    """A title, headings in order, header cells with a scope, references to what is there."""
    wrong = [] if page.title().strip() else ["no title"]
    return wrong + [line for check in ("headings", "tables", "references") for line in ask(page, check)]


def links(page: Page) -> list[str]:
    """Each link inside the page leads to something that can be seen then, although it was in a closed fold."""
    return list(ask(page, "links"))


def skip_link(page: Page) -> list[str]:
    """Tab reaches it first, it can be seen then, and Enter puts the focus behind what it skips."""
    page.keyboard.press("Tab")
    if not page.evaluate("document.activeElement.matches('a[href^=\"#\"]:not(main *, nav *)')"):
        return ["Tab does not reach a skip link first"]
    wrong = [] if page.evaluate(f"({INSIDE}).uncovered(document.activeElement)") else ["the skip link cannot be seen"]
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    return wrong if ask(page, "focusIsAtTarget") else [*wrong, "the skip link does not move the focus"]


def tab_order(page: Page) -> list[str]:
    """With all folds open: Tab reaches everything that can be used, and it can be seen where the focus is."""
    ask(page, "openFolds")
    wrong: list[str] = []
    # Boxes that scroll are stops too, which Chromium finds by itself.
    for _ in range(2 * ask(page, "stops") + 100):
        page.keyboard.press("Tab")
        if (found := ask(page, "stop")) is None:
            break
        wrong += found
    return wrong + list(ask(page, "unreached"))


def folds(page: Page) -> list[str]:
    """Enter opens each fold and Space closes it."""
    wrong = []
    index = 0
    while ask(page, "focusFold", index):
        for key, opens in (("Enter", True), ("Space", False)):
            page.keyboard.press(key)
            if ask(page, "focusedFoldIsOpen") is not opens:
                wrong.append(f"{key} does not {'open' if opens else 'close'} the fold {_focused(page)}")
        index += 1
    return wrong


def _focused(page: Page) -> str:
    return str(page.evaluate(f"({INSIDE}).name(document.activeElement)"))


def fits(page: Page) -> list[str]:
    """With all folds open the page is not wider than the window."""
    ask(page, "openFolds")
    return list(ask(page, "overflow"))


def accessible(page: Page) -> list[str]:
    """axe-core finds nothing: all of its rules in the light scheme, contrast, which alone may differ, in the dark one."""
    page.evaluate(AXE)
    wrong = []
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        found = ask(page, "axe", {"tags": AXE_TAGS, "contrastAlone": scheme == "dark"})
        wrong += [f"{scheme}: {line}" for line in found]
    return wrong


def missing_without_script(page: Page, wanted: list[str]) -> list[str]:
    """On the page without script: the lines that it has with one and not now; controls are of no use without one."""
    found = {*ask(page, "texts"), *ask(page, "controls")}
    return [line for line in wanted if line not in found]


def schemes(page: Page) -> list[str]:
    """Light is light, and dark is dark."""
    wrong = []
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        if ((lightness := ask(page, "lightness")) > 0.5) is not (scheme == "light"):
            wrong.append(f"the {scheme} scheme's ground has the lightness {lightness:.2f}")
    return wrong


def printed(page: Page) -> list[str]:
    """On paper nothing is folded, and nothing is cut off."""
    ask(page, "watchPrinting")
    pdf = page.pdf(format="A4", margin=PdfMargins(top="1cm", right="1cm", bottom="1cm", left="1cm"))
    return ([] if pdf.startswith(b"%PDF-") else ["no PDF"]) + list(page.evaluate("window.onPaper"))


def injected(page: Page) -> list[str]:
    """No string of the record became an element, an attribute or a control character of the page, or ran."""
    wrong = list(ask(page, "injected"))
    if (mark := page.evaluate("window.pwned")) is not None:
        wrong.append(f"a script of the record ran (mark {mark})")
    return wrong
