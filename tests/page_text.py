"""What a page has to be, whichever it is: looked at as text."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Every tag with its attributes, the text outside <style> and <script>, and whether the tags are balanced."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice: {attrs}"
        self.tags.append((tag, dict(attrs)))
        if tag == "p":
            assert "p" not in self.open
        if tag in ("div", "p", "table", "details", "dl", "ul", "ol", "section"):
            assert not {"p", "span", "code", "a", "summary", "h1", "h2", "h3"} & set(self.open), f"{tag} in {self.open}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert "svg" in self.open, f"<{tag}/> outside a drawing"
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.words.append(data)

    def attributes(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.tags if name in attrs]

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def stands_alone(source: str, script: str = "") -> None:
    """A page is well formed, leads nowhere else, and lets nothing run or in but its own style and `script`."""
    page = Page(source)
    names = {tag for tag, _ in page.tags}
    assert not names & {"img", "iframe", "object", "embed", "form", "base", "image", "use"}
    for tag, attrs in page.tags:
        assert not any(name.startswith("on") or name in ("style", "src", "srcset", "action") for name in attrs), tag
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    for href in page.attributes("href"):
        family = re.fullmatch(
            r"families/[a-z0-9_]+/report\.html", href
        )  # beside the page, and only when it was written
        assert family or href == "data:," or (href.startswith("#") and href[1:] in ids), href
    (style,) = re.findall(r"<style>(.*?)</style>", source, re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    assert re.findall(r"<script[^>]*>(.*?)</script>", source, re.DOTALL) == ([script] if script else [])
    digests = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (style, script)]
    (policy,) = [a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digests[0]}'; "
        + (f"script-src 'sha256-{digests[1]}'; " if script else "")
        + "img-src data:; base-uri 'none'; form-action 'none'"
    )


def told(source: str) -> None:
    """A page can be read without seeing it: headings in steps, headers of tables, and names for what is drawn or scrolls."""
    page = Page(source)
    assert ("html", {"lang": "en"}) in page.tags
    assert all("scope" in attrs for tag, attrs in page.tags if tag == "th")
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    assert all(attrs.get("aria-label") for _, attrs in page.tags if attrs.get("role") == "img")
    regions = [attrs for _, attrs in page.tags if attrs.get("role") == "region"]
    assert all(attrs.get("tabindex") == "0" for attrs in regions)
    names = [attrs.get("aria-label") for attrs in regions]
    assert all(names)
    assert len(names) == len(set(names))


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
