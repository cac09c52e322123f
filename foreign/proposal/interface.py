"""What the other arguments of somebody else's graph may be, and its results: by shapes, types and names.

Legend: B rows, T tokens of a call, S cache slots; the others as in `expressions.axes_of`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hloracle.foreign.file import Entry
from hloracle.foreign.proposal.candidates import Group, grouped, name_of
from hloracle.foreign.proposal.choices import KEYS_INTERLEAVED, UNKNOWN, Choice, Option
from hloracle.foreign.proposal.words import words_of
from hloracle.foreign.signature import Port, Signature
from hloracle.reference.model.config import Config
from hloracle.reference.model.expressions import axes_of

_TOKENS = re.compile(r"tok|ids|_inputs?_")
_POSITIONS = re.compile(r"pos|start|index|offset|step|_cur_|_idx_|_time_|slot|_i_|_t_")
_LENGTHS = re.compile(r"len|size|count|num|_end_|filled|_n_")
_VALID = re.compile(r"mask|segment|valid")
_CACHE = re.compile(r"cache|_kv?c?_|_vc?_|key|value|past|state|_kv")
_RANDOM = re.compile(r"rng|seed|key|random")
_KEYS = re.compile(r"_k\d*_|key|_kc_|_ck_|k_cache|cache_k")
_VALUES = re.compile(r"_v\d*_|value|_vc_|_cv_|v_cache|cache_v")
_MASK = re.compile(r"mask|bias|causal")
# The orders of a cache's axes that are most usual; any other costs more the further it is from the nearest of them.
_USUAL = ("L kv B S K D", "L kv B K S D", "B L kv S K D")


@dataclass(frozen=True)
class Sizes:
    """Of a graph. phase: `prefill`, `decode` or `forward`."""

    phase: str
    B: int
    T: int


@dataclass(frozen=True)
class Interface:
    """A graph's arguments that may be weights, and what may be said of all else."""

    sizes: Sizes
    weights: tuple[Group, ...]
    choices: tuple[Choice, ...]


def interface_of(signature: Signature, config: Config, fits: Mapping[Port, bool]) -> Interface:
    """What is known of a function by its types and names.

    Args:
      fits: of each argument whether a weight has its shape; those that have none are inputs.
    """
    return _Reader(signature, config, fits).interface()


class _Reader:
    def __init__(self, signature: Signature, config: Config, fits: Mapping[Port, bool]) -> None:
        self._signature, self._config = signature, config
        self._axes = axes_of(config)
        self._fits = fits
        self._h = config.ropes[0].dim // 2 if config.ropes else 0
        self.logits = self._find_logits()
        self.returned = [
            r for r in signature.results
            if r not in self.logits and self._like_cache(r)
        ]  # fmt: skip
        types = {(r.shape, r.dtype) for r in self.returned}
        self.given = [
            a for a in signature.arguments
            if self._like_cache(a) and ((a.shape, a.dtype) in types or not fits[a])
            and (not fits[a] or bool(_CACHE.search(words_of(name_of(a)))))
        ]  # fmt: skip
        self.sizes = Sizes("", 1, 1)
        self.sizes = self._sizes()

    def _like_cache(self, port: Port) -> bool:
        """Whether it has the axes of keys or values, and one of slots beside them."""
        shape, (L, K, D) = list(port.shape), (self._axes[a] for a in "LKD")
        for own in ([K, D], [K * D], [L * K, D]):
            if not Counter(own) - Counter(shape) and len(shape) > len(own):
                return _is_float(port) and 3 <= len(shape) <= 7
        return False

    # ---- sizes

    def _find_logits(self) -> list[Port]:
        V = self._config.vocab_size
        found = [r for r in self._signature.results if r.shape[-1:] == (V,) and _is_float(r) and len(r.shape) <= 3]
        return found[:1]

    def _sizes(self) -> Sizes:
        integers = [a.shape for a in self._signature.arguments if _is_integer(a) and 0 < len(a.shape) <= 2]
        flat = [shape[0] for shape in integers if len(shape) == 1]
        cached = bool(self.returned)
        shape = self.logits[0].shape if self.logits else ()
        if len(shape) == 3:
            B, T = shape[:2]
            wide = [s for s in integers if len(s) == 2 and s[0] == B]
            T = max([T, *(s[1] for s in wide)])
        elif wide := [s for s in integers if len(s) == 2]:
            B, T = max(wide, key=math.prod)
        elif flat and max(flat) > 1:
            n = max(flat)
            rows = bool(self.given) and all(self._rows(port, n) for port in (*self.given, *self.returned))
            B, T = (n, 1) if rows else (1, n)
        else:
            B, T = 1, 1
        phase = "forward" if not cached else "decode" if T == 1 and self.given else "prefill"
        return Sizes(phase, B, T)

    def _rows(self, port: Port, n: int) -> bool:
        """Whether a cache has an axis of n rows besides all others."""
        return n in port.shape and any(
            "B" in text for text, _ in [*self._layouts(port, False, n), *self._layouts(port, True, n)]
        )

    # ---- all

    def interface(self) -> Interface:
        signature, phase = self._signature, self.sizes.phase
        cached = set(self.given)
        inputs = [a for a in signature.arguments if a not in cached and not self._fits[a]]
        weights = [a for a in signature.arguments if a not in cached and self._fits[a]]
        L = self._config.num_hidden_layers
        section = f"{phase}.inputs"
        choices: list[Choice] = []
        integers = 0
        states = self._states()
        for group in grouped(inputs, L, folded=False):
            options = self._input(group, integers, states)
            integers += _is_integer(group.port)
            choices.append(Choice((group.place(section),), tuple(options)))
        choices += self._cache_choices()
        rest = [r for r in signature.results if r not in set(self.returned)]
        for group in grouped(rest, L, folded=False):
            options = self._result(group.port, states)
            choices.append(Choice((group.place(f"{phase}.results"),), tuple(options)))
        return Interface(self.sizes, tuple(grouped(weights, L)), tuple(choices))

    def _states(self) -> dict[tuple[object, ...], str]:
        """Types of what is given and returned, and no cache: the state that is only handed on."""
        results = {(r.shape, r.dtype) for r in self._signature.results if r.dtype.startswith("ui")}
        found: dict[tuple[object, ...], str] = {}
        for a in self._signature.arguments:
            if (a.shape, a.dtype) in results:
                found[a.shape, a.dtype] = f"state.{re.sub(r'[^0-9A-Za-z]+', '_', name_of(a)).strip('_') or 'state'}"
        return found

    # ---- inputs

    def _input(self, group: Group, before: int, states: Mapping[tuple[object, ...], str]) -> list[Option]:
        port, words = group.port, words_of(group.key)
        if state := states.get((port.shape, port.dtype)):
            return [_option(state, 0.0)]
        if port.dtype in ("ui32", "ui64") and _RANDOM.search(words):
            return [_option(0, 0.3, "a random key, which changes nothing at temperature 0")]
        found: list[Option] = []
        if _is_float(port):
            found += self._tables(port, words)
        if port.dtype == "i1" or _MASK.search(words):
            found += self._masks(port)
        if _is_integer(port):
            found += self._integers(port, words, before)
        return sorted(found, key=lambda o: o.cost) or [_option(UNKNOWN, 9.0)]

    def _integers(self, port: Port, words: str, before: int) -> list[Option]:
        """before: how many integers stand before it, which says what it is where its name does not."""
        phase, B, T = self.sizes.phase, self.sizes.B, self.sizes.T
        token, position, length, valid = (
            bool(p.search(words)) for p in (_TOKENS, _POSITIONS, _LENGTHS, _VALID)
        )  # fmt: skip
        silent = not (token or position or length or valid)

        def costs(own: bool, place: int, otherwise: float) -> float:
            """Of what a name says, of what it says nothing of, and of what it says otherwise."""
            return 0.0 if own else 0.4 + abs(before - place) if silent else otherwise

        rows = _row_axes(port.shape, B)
        offered: list[tuple[str | int, float]]
        if phase == "decode" and rows is not None:
            offered = [
                ("token", costs(token, 0, 1.5)), ("position", costs(position, 1, 0.7)),
                ("position + 1", costs(length and not position, 2, 0.8)), (1, 0.0 if valid else 2.0), (0, 2.2),
            ]  # fmt: skip
        elif phase != "decode" and rows is not None and T > 1:
            offered = [
                ("length", costs(length and not position, 1, 0.6)), (0, 0.1 if position else 0.9),
                ("length - 1", 0.4 if position else 0.8), ("T", 1.5), (1, 1.8),
            ]  # fmt: skip
        else:
            rows = _labelled(port.shape, [("B", B), ("T", T)])
            if phase == "decode" or rows is None:
                return []
            offered = [
                ("tokens", costs(token and not valid, 0, 1.5)), ("positions", costs(position, 1, 1.5)),
                ("valid", costs(valid, 2, 1.8)),
            ]  # fmt: skip
        stage = f" : {rows}" if rows else ""
        return [
            _option(
                f"{what}{stage}" if isinstance(what, str) else what,
                cost,
                uses=str(what) if what in ("token", "tokens") else "",
            )
            for what, cost in offered
        ]

    def _masks(self, port: Port) -> list[Option]:
        B, T = self.sizes.B, self.sizes.T
        found: list[Option] = []
        for key in ("U", "S"):
            if key == "U" and self.sizes.phase == "decode":
                continue
            axes = _mask_axes(port.shape, B, T, key)
            if axes is None:
                continue
            own = 0.0 if (port.shape[-1] == T) == (key == "U") else 3.0
            said = ["", "(inverted)"] if not _is_float(port) else ["", "(-1e9)"]
            for i, text in enumerate(said):
                found.append(_option(f"causal_mask{text} : {axes}", own + i * 0.6))
            if any(self._config.windows):
                found.append(_option(f"window_mask : {axes}", own + 0.8))
        return found

    def _tables(self, port: Port, words: str) -> list[Option]:
        h, shape = self._h, port.shape
        if not h:
            return []
        T, B = self.sizes.T, self.sizes.B
        found = []
        if shape == (h,):
            found.append(_option("inv_freq : h", 0.0 if "freq" in words else 0.4))
        for what in ("cos", "sin"):
            for width, size in (("D", 2 * h), ("h", h)):
                if shape[-1:] != (size,) or len(shape) < 2:
                    continue
                cost = 0.0 if what in words else 0.5 if "rope" in words or "rot" in words else 1.5
                for axes in (_labelled(shape[:-1], [("B", B), ("T", T)]), "S" if len(shape) == 2 else None):
                    if axes is not None:
                        more = 0.5 if axes == "S" and shape[0] == T else 0.0
                        found.append(_option(f"{what} : {axes} {width}", cost + more, uses=f"{what} table"))
        E = self._axes["E"]
        if shape[-1:] == (E,) and (axes := _labelled(shape[:-1], [("B", B), ("T", T)])):
            found.append(_option(f"embeddings : {axes} E", 0.2))
        return found

    # ---- caches

    def _layouts(
        self, port: Port, layered: bool, rows: int | None = None, pair: bool = False
    ) -> list[tuple[str, float]]:
        """The ways to name a cache's axes, the likeliest first. layered: it is of one layer."""
        B = rows or self.sizes.B
        names = [*(() if layered else ("L",)), *(("kv",) if pair else ()), "K", "S", "D"]
        if B > 1:
            names.append("B")
        sizes = {**self._axes, "kv": 2, "B": B}
        found: dict[str, float] = {}
        if not len(names) - 1 <= len(port.shape) <= len(names) + 2:
            return []
        for axes in _named(port.shape, tuple(names), sizes):
            flat = " ".join(axes).replace("(", "").replace(")", "").split()
            slots = port.shape[next(i for i, a in enumerate(axes) if a == "S")]
            if slots < self.sizes.T:
                continue
            text = " ".join(axes)
            cost = min(_inversions(flat, usual.split()) * 0.3 + 0.02 * i for i, usual in enumerate(_USUAL))
            found[text] = min(cost + 0.5 * ("(" in text), found.get(text, math.inf))
        return sorted(found.items(), key=lambda one: one[1])[:6]

    def _cache_choices(self) -> list[Choice]:
        """One choice for keys and values of all arguments and results, or one for each where they are of other types."""
        if not (self.returned or self.given):
            return []
        L, phase = self._config.num_hidden_layers, self.sizes.phase
        inputs, results = _groups(self.given, L), _groups(self.returned, L)
        found: list[Option] = []
        for one, other in itertools.product(_arranged(inputs, L), _arranged(results, L)):
            named = [*one, *other]
            patterns = self._patterns(named)
            # Keys and values of all layers stand in the same order on both sides.
            differ = 1.0 * (len(inputs) == len(results) and [n[1:] for n in one] != [n[1:] for n in other])
            for pattern, cost, tags in patterns:
                entries, more = _cache_entries(named, pattern, KEYS_INTERLEAVED in tags)
                found.append(Option(entries, cost + more + differ, "", frozenset(), tags))
        places = (*(g.place(f"{phase}.inputs") for g in inputs), *(g.place(f"{phase}.results") for g in results))
        if phase != "decode" and inputs:  # new caches may as well be zeros
            found += [
                replace(o, entries=(*(0 for _ in inputs), *o.entries[len(inputs) :]), cost=o.cost + 1.0) for o in found
            ]
        found = sorted({o.entries: o for o in sorted(found, key=lambda o: -o.cost)}.values(), key=lambda o: o.cost)[:60]
        return [Choice(places, tuple(found) or (Option((UNKNOWN,) * len(places), 9.0),))]

    def _patterns(
        self, named: Sequence[tuple[Group, str, int | None]]
    ) -> list[tuple[Mapping[Port, str], float, frozenset[str]]]:
        """Axes for each port, by its type, with a cost and the conventions."""
        types: dict[tuple[object, ...], list[Port]] = {}
        layouts: dict[tuple[object, ...], list[tuple[str, float]]] = {}
        for group, part, layer in named:
            layered = group.layered or layer is not None
            for port in group.members.values():
                key = (port.shape, layered, part == "cache")
                types.setdefault(key, []).append(port)
                layouts.setdefault(key, self._layouts(port, layered, pair=part == "cache"))
        found: list[tuple[Mapping[Port, str], float, frozenset[str]]] = []
        for chosen in itertools.product(*layouts.values()):
            axes = {port: text for (text, _), ports in zip(chosen, types.values(), strict=True) for port in ports}
            found.append((axes, sum(cost for _, cost in chosen), frozenset()))
        found.sort(key=lambda one: one[1])
        if named:
            found += [(axes, cost, frozenset({KEYS_INTERLEAVED})) for axes, cost, _ in found[:4]]
        return found[:24]

    # ---- results

    def _result(self, port: Port, states: Mapping[tuple[object, ...], str]) -> list[Option]:
        B, T = self.sizes.B, self.sizes.T
        if state := states.get((port.shape, port.dtype)):
            return [_option(state, 0.0)]
        if port in self.logits:
            lead = port.shape[:-1]
            axes = _labelled(lead, [("B", B), ("T", T)]) if T > 1 else _labelled(lead, [("B", B), ("1", 1)])
            if axes is None and B == 1 and len(lead) <= 1:
                axes = "1" if lead else ""
            return [_option(f"logits : {f'{axes} V'.strip()}", 0.0)] if axes is not None else [_option(UNKNOWN, 9.0)]
        if _is_integer(port) and not self.logits and (rows := _row_axes(port.shape, B)) is not None:
            return [_option(f"token{f' : {rows}' if rows else ''}", 0.0), _option("ignored", 1.0)]
        return [_option("ignored", 0.3, "it is neither logits nor a cache")]


# ---- axes


def _option(entry: Entry, cost: float, why: str = "", uses: str = "") -> Option:
    return Option((entry,), cost, why, frozenset({uses} if uses else ()))


def _is_float(port: Port) -> bool:
    return port.dtype in ("f32", "bf16", "f16")


def _is_integer(port: Port) -> bool:
    return port.dtype != "i1" and port.dtype.startswith(("i", "ui"))


def _row_axes(shape: Sequence[int], B: int) -> str | None:
    """The axes of one number for each row; None of any other shape."""
    if math.prod(shape) not in (1, B):
        return None
    if not shape:
        return ""
    return _labelled(shape, [("B", B)]) if B > 1 or len(shape) <= 2 else None


def _labelled(shape: Sequence[int], axes: Sequence[tuple[str, int]]) -> str | None:
    """Axes of a shape, where these stand in this order and all others have one element; None where it is no such shape."""
    wanted = list(axes)
    found: list[str] = []
    for i, size in enumerate(shape):
        left = len(shape) - i
        while wanted and wanted[0][1] == 1 and size != 1 and len(wanted) > 1:
            wanted.pop(0)
        if wanted and size == wanted[0][1] and (size > 1 or left <= len(wanted) or wanted[0][0] == "B"):
            found.append(wanted.pop(0)[0])
        elif size == 1:
            found.append("1")
        else:
            return None
    return " ".join(found) if all(size == 1 for _, size in wanted) else None


def _mask_axes(shape: Sequence[int], B: int, T: int, key: str) -> str | None:
    """Axes of a mask: the last is of keys, the one before it of queries."""
    if not shape or len(shape) > 5:
        return None
    found = [key]
    if len(shape) > 1:
        if shape[-2] not in (1, T) or (shape[-2] == 1 and T > 1):
            return None
        found.insert(0, "T" if T > 1 else "1")
    elif T > 1:
        return None
    lead = _labelled(shape[:-2], [("B", B)])
    return None if lead is None else f"{lead} {' '.join(found)}".strip()


def _named(shape: Sequence[int], names: tuple[str, ...], sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """The ways to give axes these names by their sizes; S may have any, and B may be the first axis of one element."""
    if not shape:
        if not names:
            yield []
        return
    size, rest = shape[0], shape[1:]
    for name in names:
        left = tuple(n for n in names if n != name)
        if name == "S" or sizes[name] == size:
            yield from ([name, *more] for more in _named(rest, left, sizes))
    for one, other in (("K", "D"), ("L", "K"), ("B", "K")):
        if one in names and other in names and sizes[one] * sizes[other] == size:
            left = tuple(n for n in names if n not in (one, other))
            yield from ([f"({one} {other})", *more] for more in _named(rest, left, sizes))
    if size == 1:
        own = "B" if sizes["B"] == 1 and "B" not in names else "1"
        later = {**sizes, "B": 0} if own == "B" else sizes
        yield from ([own, *more] for more in _named(rest, names, later))


def _inversions(axes: Sequence[str], usual: Sequence[str]) -> int:
    rank = [usual.index(a) for a in axes if a in usual]
    return sum(a > b for i, a in enumerate(rank) for b in rank[i + 1 :])


# ---- which cache is which


def _groups(ports: Sequence[Port], layers: int) -> list[Group]:
    return grouped(ports, layers, folded=False)


Arranged = list[tuple[Group, str, int | None]]


def _arranged(groups: Sequence[Group], layers: int) -> list[Arranged]:
    """The ways to take caches: each with what it is (`k_cache`, `v_cache`, `cache`) and its layer, where it is of one."""
    count = len(groups)
    if count == 0:
        return [[]]
    two = ("k_cache", "v_cache")
    if count == 1:
        return [[(groups[0], "cache", None)]]
    found: list[Arranged] = []
    if count == 2 and groups[0].layered == groups[1].layered:
        for a, b in (two, two[::-1]):
            found.append([(groups[0], a, None), (groups[1], b, None)])
    if any(g.layered for g in groups):
        return found
    if count == 2 * layers:
        for first in (two, two[::-1]):
            found.append([(g, first[i % 2], i // 2) for i, g in enumerate(groups)])
            found.append([(g, first[i // layers], i % layers) for i, g in enumerate(groups)])
    if count == layers:
        found.append([(g, "cache", i) for i, g in enumerate(groups)])
    return found


def _cache_entries(
    named: Arranged, axes: Mapping[Port, str], interleaved: bool
) -> tuple[tuple[Entry, ...], float]:  # fmt: skip
    """What is written for each group; and what it costs to call them so: keys come first where names do not say it."""
    entries: list[Entry] = []
    cost = 0.0
    for i, (group, what, layer) in enumerate(named):
        words = words_of(group.key)
        says = "k_cache" if _KEYS.search(words) else "v_cache" if _VALUES.search(words) else ""
        if says:
            cost += 0.0 if says == what else 1.0
        elif not says and what == "v_cache" and i == 0:
            cost += 0.4
        number = ".{l}" if group.layered else "" if layer is None else f".{layer}"
        paired = "(interleaved)" if interleaved and what != "v_cache" else ""
        entries.append(f"{what}{number}{paired} : {axes[group.port]}")
    return tuple(entries), cost
