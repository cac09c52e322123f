"""What is done with a test file's text before MLIR reads it: it is cut into modules, and check operations get their generic form.

MLIR as jaxlib has it does not know StableHLO's check dialect, and reads of an unknown dialect generic operations alone.
"""

from __future__ import annotations

import re

from hloracle.localize.text import code_of

_SPLIT = re.compile(r"^[ \t]*// -----.*$", re.MULTILINE)
_COMMENTED = re.compile(r"//[^\n]*")
_VALUE, _TENSOR = r"%[\w$.-]+(?:#\d+)?", r"tensor<[^<>]*(?:<[^<>]*>[^<>]*)?>"
_ATTRIBUTE = r"(\w+)\s*=\s*([-+\w.]+)(?:\s*:\s*\w+)?"
_PRETTY = re.compile(
    rf"(?<![\w\"@.])check\.(?P<kind>\w+)\s*(?P<lhs>{_VALUE})\s*,\s*(?P<rhs>{_VALUE}|dense<[^>]*>)"
    rf"(?P<more>(?:\s*,\s*{_ATTRIBUTE})*)\s*:\s*(?P<type>{_TENSOR})(?:\s*,\s*(?:{_TENSOR}))?"
    rf"(?P<dictionary>\s*\{{[^}}]*\}})?"
)


def modules(text: str) -> list[tuple[str, int]]:
    """The modules of a file, and the line in which each begins: `// -----` stands between them."""
    found, at = [], 0
    for cut in [*_SPLIT.finditer(text), None]:
        end = cut.start() if cut else len(text)
        if _COMMENTED.sub("", text[at:end]).strip():
            first = end - len(text[at:end].lstrip())
            found.append((text[at:end], text.count("\n", 0, first) + 1))
        at = cut.end() if cut else end
    return found


def generic(text: str) -> str:
    """The same module with its check operations as MLIR reads them; comments and strings stay as they are."""
    pieces, at = [], 0
    for found in _PRETTY.finditer(code_of(text)):
        pieces += [text[at : found.start()], _generic(text, found)]
        at = found.end()
    return "".join([*pieces, text[at:]])


def _generic(text: str, found: re.Match[str]) -> str:
    """found: in the text without comments and strings, which has every place where the text has it."""
    kind, lhs, rhs, type, more, dictionary = (
        text[max(found.start(name), 0) : max(found.end(name), 0)]
        for name in ("kind", "lhs", "rhs", "type", "more", "dictionary")
    )
    pairs = re.findall(_ATTRIBUTE, f"{more} {dictionary}")
    attributes = f" {{{', '.join(f'{name} = {_number(value)}' for name, value in pairs)}}}" if pairs else ""
    before = ""
    if not rhs.startswith("%"):
        constant, rhs = rhs, f"%check_at_{found.start()}"
        before = f"{rhs} = stablehlo.constant {constant} : {type}\n  "
    return f'{before}"check.{kind}"({lhs}, {rhs}){attributes} : ({type}, {type}) -> ()'


def _number(value: str) -> str:
    return value if re.fullmatch(r"[-+]?\d+", value) else f"{value} : f64"
