"""Strings and numbers made fit to be read: nothing that a prompt says can hide or disturb what is shown."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from hloracle.core.record import Candidate, Localization, Origin, Repair, Reproducer

# Format, surrogate, private and unassigned characters, and the two line separators: drawn as nothing, as a box,
# or, for the bidirectional controls, as another order of the characters around them.
_NAMED = {"Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_SPACES = {" ": "␣", "\n": "⏎", "\t": "⇥"}

Number = float | int | str | None


def visible(text: str) -> str:
    """The text with every control and format character shown: ␀ for a C0 control, ⟨U+202E⟩ for the others.

    Newlines and tabs stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(char: str) -> str:
    code = ord(char)
    if char in "\n\t":
        return char
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if 0x80 <= code < 0xA0 or unicodedata.category(char) in _NAMED:
        return f"⟨U+{code:04X}⟩"
    return char


def piece(text: str) -> str:
    """A token's text with its spaces shown too, and with something for a combining mark to stand on."""
    shown = "".join(_SPACES.get(char) or _visible(char) for char in text)
    return f"◌{shown}" if shown and unicodedata.category(shown[0]).startswith("M") else shown


def one_line(text: str, limit: int) -> str:
    """The visible text on one line, of at most `limit` characters."""
    line = visible(" ".join(text[: limit * 4].split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def moment(date: str) -> datetime | None:
    """A record's date in UTC, which it is in where it names no zone; None where it is no date."""
    try:
        found = datetime.fromisoformat(date)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def one_command(command: str) -> str:
    """A shell command whose lines end in backslashes on one line."""
    return command.replace("\\\n", " ")


def shown_by(reproducer: Reproducer) -> str:
    """Which backends show what a reproducer is of: `shown by A; not shown by B and C; not known of D`; empty without any."""
    parts = []
    for words, shows in (("shown by", True), ("not shown by", False), ("not known of", None)):
        titles = [one_line(on["title"], 120) for on in reproducer["backends"] if on["shows"] is shows]
        if titles:
            *most, last = titles
            parts.append(f"{words} {', '.join(most)} and {last}" if most else f"{words} {last}")
    return "; ".join(parts)


def repaired(repair: Repair) -> str:
    """What puts a graph right, and whether it passes then, e.g. `line 206 of decode: `maximum` should be `multiply`; with that emitter/xla-cpu passes`."""
    first = repair["lines"][0]
    more = f" and {plural(repair['count'] - 1, 'more line')}" if repair["count"] > 1 else ""
    at = f"line {first['line']} of {first['graph']}{more}: {repair['change']}"
    passes = "passes" if repair["conforms"] else f"still does not pass ({repair['detail']})"
    return f"{at}; with that {one_line(repair['configuration'], 80)} {passes}"


def written_by(origin: Sequence[Origin]) -> str:
    """The lines of Python that an operation comes from, the innermost first."""
    return ", ".join(f"{one['file']}:{one['line']} ({one['function']})" for one in origin)


def others(found: Localization) -> list[Candidate]:
    """What else than the operation that is named may be to blame; nothing where a change of that one alone helps."""
    named = found["operation"]
    place = (named["name"], named["line"]) if named else None
    return [] if found["sole"] else [one for one in found["candidates"] if (one["name"], one["line"]) != place]


def candidate(one: Candidate) -> str:
    """An operation that may be to blame, and what it should be."""
    at = f" at line {one['line']}" if one["line"] is not None else ""
    return f"{one['name']}{at}: {one['words']}"


def count(number: int) -> str:
    """A whole number with commas between thousands: `1,024`."""
    return f"{number:,}"


def plural(number: int, noun: str) -> str:
    """A count with its noun, which takes an s unless there is one of it: `1 token`, `1,024 tokens`."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def signed(number: int) -> str:
    """A difference with its sign, and `=` where there is none: `+3`, `−1,024` with U+2212."""
    return f"+{count(number)}" if number > 0 else f"−{count(-number)}" if number < 0 else "="


def value(number: Number) -> float | None:
    """A figure of the record as a float: `NaN` and `Infinity` are strings there."""
    return None if number is None else float(number)


def figure(number: Number) -> str:
    """Three significant digits; `NaN` and `∞` by name."""
    x = value(number)
    if x is None:
        return "not measured"
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    if x == 0:
        return "0"
    if not 1e-3 <= abs(x) < 1e5:
        mantissa, exponent = f"{x:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{x:.3g}" if abs(x) < 1000 else f"{x:,.0f}"


def share(part: float) -> str:
    """A part in percent, rounded away from 100: what is beyond it, or within, stays so."""
    if not math.isfinite(part):
        return figure(part)
    if 0 < part < 0.01:
        return "under 1 %"
    return f"{(math.ceil if part > 1 else math.floor)(100 * part)} %"


def duration(seconds: float) -> str:
    """Seconds in the unit that a reader would use: `<1 ms`, `12 ms`, `3.4 s`, `2 min 05 s`."""
    if seconds < 0.001:
        return "0 s" if seconds == 0 else "<1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def size(number: int) -> str:
    """A number of bytes in binary units."""
    x, unit = _scaled(number, 1024, ("KiB", "MiB", "GiB", "TiB"))
    return f"{x:.3g} {unit}" if unit else f"{number} B"


def si(number: int) -> str:
    """A count with a decimal prefix before its unit: `288 M`, `1.2 k`."""
    x, prefix = _scaled(number, 1000, "kMGTP")
    return f"{x:.3g} {prefix}" if prefix else f"{number} "


def parameters(number: int) -> str:
    """A number of parameters: 134.5 M."""
    x, letter = _scaled(number, 1000, "KMB")
    return f"{x:.1f} {letter}" if letter else str(number)


def _scaled(number: int, step: int, units: Iterable[str]) -> tuple[float, str]:
    """The number in the unit in which it has at most three digits before the point; `` where it has them in none."""
    x, unit = float(number), ""
    for larger in units:
        if x < 999.5:
            break
        x, unit = x / step, larger
    return x, unit
