"""Tabs in which pages are opened from disk and watched: whatever a page does that it must not do is a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Dialog, Page, Request


class Misbehaved(AssertionError):
    """What a page did: a request, words on the console, an exception, a dialog, a window, a download."""


class Tabs:
    """A browser's tabs without a network, one for each way to open a page: a new one takes a process of its own."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._tabs: dict[tuple[bool, bool], _Tab] = {}

    @contextmanager
    def opened(self, file: Path, *, script: bool = True, policy: bool = True) -> Iterator[Page]:
        """The page of a file, newly loaded at 1280 x 800; `policy`: its content policy is in force.

        Raises Misbehaved when it is left, with a line for everything that the page did and must not do.
        """
        if (script, policy) not in self._tabs:
            context = self._browser.new_context(java_script_enabled=script, bypass_csp=not policy, offline=True)
            self._tabs[script, policy] = _Tab(context.new_page())
        tab = self._tabs[script, policy]
        tab.page.set_viewport_size({"width": 1280, "height": 800})
        tab.page.emulate_media(media="null", color_scheme="light")
        tab.begin(file)
        try:
            yield tab.page
        finally:
            seen = tab.end()
        if seen:
            raise Misbehaved("\n".join(dict.fromkeys(seen)))


class _Tab:
    def __init__(self, page: Page) -> None:
        self.page = page
        self._seen: list[str] = []
        self._file = ""
        page.on("request", self._request)
        # A violation of the content policy is an error on the console.
        page.on("console", lambda message: self._seen.append(f"console: {message.type}: {message.text[:300]}"))
        page.on("pageerror", lambda error: self._seen.append(f"exception: {str(error)[:300]}"))
        page.on("dialog", self._dialog)
        page.on("popup", self._window)
        page.on("download", lambda download: self._seen.append(f"download: {download.url[:200]}"))

    def begin(self, file: Path) -> None:
        self._seen = []
        self._file = file.as_uri()
        self.page.goto(self._file)

    def end(self) -> list[str]:
        seen = self._seen
        self._file = "about:blank"
        self.page.goto(self._file)
        return seen

    def _request(self, request: Request) -> None:
        if request.url.partition("#")[0] != self._file and not request.url.startswith("data:"):
            self._seen.append(f"request: {request.url[:200]}")

    def _dialog(self, dialog: Dialog) -> None:
        self._seen.append(f"dialog: {dialog.message[:200]}")
        dialog.dismiss()

    def _window(self, page: Page) -> None:
        self._seen.append(f"window: {page.url[:200]}")
        page.close()
