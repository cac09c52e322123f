"""Values held to a type: the first thing that is wrong, on one line that begins with where it is, and the type as a schema.

Nothing is converted: a string is no number, and a number is no truth value. Values may come from anywhere.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from hloracle.core.shown import path_words, said, shown

_EXPECTED: Final = "Input should be "


def problem(of: Any, value: Any) -> str:
    """What is wrong with a value of a TypedDict; empty where it is one."""
    try:
        _adapter(of, False).validate_python([value])
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        place = _place([value], found[0]["loc"])
        # Of a union each member says what it expects.
        said = dict.fromkeys(e["msg"] for e in found if _place([value], e["loc"]) == place)
        words = " or ".join([next(iter(said)), *(other.removeprefix(_EXPECTED) for other in list(said)[1:])])
        return f"{path_words(place[1:]) or 'the record'}: {shown(words + _instead(found[0]), 240)}"
    return ""


def _instead(error: Any) -> str:
    """What is there in place of what should be."""
    value = error["input"]
    if not error["msg"].startswith(_EXPECTED):
        return ""
    if isinstance(value, dict | list | tuple | set):
        return f", not a {type(value).__name__}"
    # An integer may have more digits than Python writes, and a string more characters than are worth a copy.
    if isinstance(value, str | int):
        return f", not {value[:40]!r}" if isinstance(value, str) else ""
    return f", not {value!r}" if isinstance(value, float | None) else f", not {said(value)}"


def _place(value: Any, loc: Sequence[str | int]) -> tuple[str | int, ...]:
    """The part of a location that leads through the value, with the key that is missing or has to; the rest names types."""
    path: list[str | int] = []
    for part in loc:
        if isinstance(value, dict):
            path.append(part)
            if part not in value:
                break
            value = value[part]
        elif isinstance(value, list) and isinstance(part, int):
            path.append(part)
            value = value[part]
    return tuple(path)


def schema_text(of: Any, id: str, title: str) -> str:
    """The JSON Schema of a TypedDict as its file has it, with the docstrings as descriptions."""
    found = _adapter(of, True).json_schema(schema_generator=_Untitled)["$defs"]
    head = {"$schema": GenerateJsonSchema.schema_dialect, "$id": id}
    return json.dumps(head | found.pop(of.__name__) | {"title": title, "$defs": found}, indent=1) + "\n"


class _Untitled(GenerateJsonSchema):
    """Fields have no titles: they would repeat their names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@functools.cache
def _adapter(of: Any, documented: bool) -> TypeAdapter[Any]:
    """Of lists of a type: a configuration can be given to those, and reaches all that is in them."""
    # To read docstrings takes ten times as long as all else.
    config = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=documented)
    return TypeAdapter(list[of], config=config)  # pyright: ignore[reportInvalidTypeForm]
