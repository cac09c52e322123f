"""What every page is drawn with: the templates, how strings get into them, and what a page may do.

Strings of a record reach a page through the templates' `finalize` alone, which makes control and format characters
visible, and through Jinja2's escaping.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape

from hloracle.reports import text

FOLD = 320  # characters of a string that are shown before it is folded
CUT = 60_000  # characters of a string that are in the page at all

_STATUS_KINDS = {"passed": "pass", "failed": "fail", "error": "error", "skipped": "skip"}


def draw(template: str, context: dict[str, Any], styles: Sequence[str] = (), script: str = "") -> str:
    """A page that stands alone: `styles` follow what all pages have in common, and nothing but `script` runs.

    The content policy names the digests of both, and lets nothing in from outside.
    """
    style = "".join(_read(name) for name in ("report.css", *styles))
    sources = {"style-src": style, **({"script-src": _read(script)} if script else {})}
    policy = "".join(f"{kind} 'sha256-{_digest(source)}'; " for kind, source in sources.items())
    page = {
        "policy": Markup(f"default-src 'none'; {policy}img-src data:; base-uri 'none'; form-action 'none'"),
        "style": Markup(style),
        "script": Markup(sources.get("script-src", "")),
    }
    return _environment().get_template(template).render(context | page)


def _digest(source: str) -> str:
    """As a content policy names it."""
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = (
        "count",
        "plural",
        "signed",
        "figure",
        "share",
        "duration",
        "size",
        "parameters",
        "one_line",
        "piece",
        "si",
        "shown_by",
        "others",
    )
    environment.filters |= {name: getattr(text, name) for name in names}
    environment.filters |= {
        "fold": fold,
        "chip": chip,
        "plain": _plain,
        "times": _times,
        "digits": _digits,
        "kind": _STATUS_KINDS.__getitem__,
        "number": lambda value, form: getattr(text, form)(value),
    }
    return environment


def _read(name: str) -> str:
    return resources.files("hloracle.reports").joinpath("templates", name).read_text("utf-8")


def _finalize(value: Any) -> Any:
    if value is None:
        raise ValueError("a missing value has reached the page")
    return text.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def fold(value: str, limit: int = FOLD) -> Markup:
    """A string of any length in an element of its own; a long one shows its beginning and opens to the rest."""
    shown = _controls_marked(value[:CUT])
    if len(value) <= limit:
        return Markup('<bdi class="text">{}</bdi>').format(shown)
    rest = f" The last {text.count(len(value) - CUT)} are only in report.json." if len(value) > CUT else ""
    return Markup(
        '<details class="long"><summary><bdi class="text">{}…</bdi>'
        ' <span class="more">all {} characters</span></summary><bdi class="text">{}</bdi>{}</details>'
    ).format(_controls_marked(value[:limit]), text.count(len(value)), shown, rest)


def _controls_marked(value: str) -> Markup:
    """The escaped text, control and format characters visible and set apart."""
    if value.isascii() and value.isprintable():
        return escape(value)
    runs = itertools.groupby(value, key=lambda char: text.visible(char) == char)
    pieces = [(plain, text.visible("".join(run))) for plain, run in runs]
    marked = Markup('<span class="ctl">{}</span>')
    return Markup("").join(escape(piece) if plain else marked.format(piece) for plain, piece in pieces)


def chip(value: str, limit: int = 14) -> Markup:
    """A token's text: spaces and controls visible, cut to `limit` characters."""
    shown = text.piece(value[:limit]) + ("…" if len(value) > limit else "")
    return Markup("").join(
        Markup('<span class="sp">{}</span>').format(char) if char in "␣⏎⇥" else escape(char) for char in shown
    )


def _times(ratio: float) -> str:
    return text.figure(ratio) + ("×" if math.isfinite(ratio) else "")


def _digits(number: text.Number) -> str:
    """A float32 in as many digits as tell it from its neighbours."""
    x = text.value(number)
    return text.figure(number) if x is None or not math.isfinite(x) else f"{x:.9g}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
