"""State that a graph takes and never returns: the next step would not have it. Read off its ABI file, held to its signature."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hloracle.core.abi import CACHES
from hloracle.foreign.binding import PAIR, Binding, Value

Part = tuple[str, int]  # a cache, and a layer of it


def hands_on_caches(binding: Binding) -> bool:
    """Whether a graph returns keys and values, or takes them and so has to."""
    return any(parts_of([v], 1) for v in (*binding.inputs, *binding.results))


def never_returned(binding: Binding, layers: int, in_session: bool = False) -> tuple[str, ...]:
    """The state that a graph takes and never returns, and what of it, each in words; empty for none.

    Args:
      in_session: another graph of its session takes caches, so that this one has to return them whatever it takes.
    """
    returned = parts_of(binding.results, layers)
    found, told = [], set()
    for value in binding.inputs:
        taken = parts_of([value], layers)
        if missing := taken - returned:
            told |= missing
            what = "" if missing == taken else f"{_named(missing, layers)} of "
            found.append(f"{binding.phase} takes {what}the cache `{value.port.readable}` and never returns it")
        elif value.what == "state" and value.text not in {r.text for r in binding.results if r.what == "state"}:
            found.append(f"{binding.phase} takes `{value.port.readable}` as state.{value.text} and never returns it")
    whole = {(name, layer) for name in CACHES for layer in range(layers)}
    if missing := (whole - returned - told) if (returned or in_session) and binding.phase != "forward" else set():
        found.append(f"{binding.phase} never returns {_named(missing, layers)}")
    return tuple(found)


def parts_of(values: Iterable[Value], layers: int) -> set[Part]:
    """The caches that these are, layer by layer."""
    found: set[Part] = set()
    for value in values:
        names: Sequence[str] = ()
        if value.what == "cache":
            names = next((PAIR[p] for p in PAIR if p in re.findall(r"\w+", value.axes)), CACHES)
        elif value.what in CACHES:
            names = (value.what,)
        own = range(layers) if value.layer is None else (value.layer,)
        found |= {(name, layer) for name in names for layer in own}
    return found


def _named(parts: Iterable[Part], layers: int) -> str:
    """`k_cache`, or `layers 1, 2 of k_cache`."""
    words = []
    for name in CACHES:
        some = sorted(layer for cache, layer in parts if cache == name)
        if some:
            which = f"layer{'s' if len(some) > 1 else ''} {', '.join(map(str, some))} of "
            words.append(("" if len(some) == layers else which) + name)
    return " and ".join(words)
