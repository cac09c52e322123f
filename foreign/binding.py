"""An ABI file held to the signature of a graph: what each argument is given, and what each result is.

Legend: B rows, T tokens of a call, S cache slots, U the call's own tokens as keys; the others as `axes_of` has them.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hloracle.core.formula import names_in
from hloracle.core.shown import quoted
from hloracle.foreign.file import AbiFile, Entry, Phase
from hloracle.foreign.signature import Port, Signature
from hloracle.reference.model.expressions import STAGE, Names, substituted, tensors_in, typed

PAIR = {"kv": ("k_cache", "v_cache"), "vk": ("v_cache", "k_cache")}
ROTARY = ("cos", "sin", "inv_freq")
MASKS = ("causal_mask", "window_mask")
CACHE = re.compile(r"(k_cache|v_cache|cache)(?:\.(\d+))?(?:\((interleaved)\))?")
_MASK = re.compile(r"(causal_mask|window_mask)(?:\((.*)\))?")
_ROTARY = re.compile(r"(cos|sin|inv_freq)(?:\.(\d+))?")
_STATE = re.compile(r"state\.(\w+)")
_BRACES = re.compile(r"\{([^{}]*)\}")
_VARIABLE = re.compile(r"\b[le]\b")
# Axes with those in parentheses that lie in one, and the sizes of some.
_AXES = re.compile(r"(?:\w+|\(\s*\w+(?:\s+\w+)*\s*\))(?:\s+(?:\w+|\(\s*\w+(?:\s+\w+)*\s*\)))*")
_SIZE = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*([1-9][0-9]{0,17})\s*")
AXIS = re.compile(r"\([^()]*\)|\S+")
_OPENING, _CLOSING = "\0", "\1"  # a brace of a key that is one, and begins no arithmetic
FLOATS = ("f64", "f32", "f16", "bf16")
INTEGERS = ("i32", "i64", "ui32", "ui64", "i16", "ui16", "i8", "ui8")
REAL = ("logits", *ROTARY, "embeddings")
# What a formula of integers may use, by phase, and the axes that it has.
SCALARS = {"decode": ("token", "position"), "prefill": ("length",), "forward": ("length",)}
VECTORS = ("tokens", "positions")
KINDS = "token, tokens, position, positions, length, causal_mask, cos, sin, embeddings, valid, k_cache, v_cache, cache, state.NAME, a constant"


@dataclass(frozen=True)
class Weight:
    """An argument that holds a weight: an expression over the checkpoint's tensors."""

    port: Port
    expression: str


@dataclass(frozen=True)
class Value:
    """An argument or a result that is something of the model.

    what: `formula`, `constant`, `causal_mask`, `window_mask`, `valid`, `cos`, `sin`, `embeddings`, `k_cache`, `v_cache`,
      `cache`, `state`, and of results `logits`, `token`, `ignored`.
    layer: of a cache or of RoPE tables. text: the formula, the name of a state, what a mask hides by, or `interleaved` of a
      cache whose keys have RoPE's pairs side by side.
    constant: numbers. axes: the pattern of its axes; empty where it has one element for each row at most.
    """

    port: Port
    what: str
    layer: int | None = None
    text: str = ""
    constant: Any = None
    axes: str = ""


@dataclass(frozen=True)
class Binding:
    """A graph's function with what all its arguments and results are. sizes: B, T, S and so on."""

    signature: Signature
    phase: str
    arguments: tuple[Weight | Value, ...]
    results: tuple[Value, ...]
    sizes: Mapping[str, int]
    start: Mapping[str, Entry]

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The arguments that hold weights, in the graph's order."""
        return tuple(a for a in self.arguments if isinstance(a, Weight))

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The other arguments."""
        return tuple(a for a in self.arguments if isinstance(a, Value))


def bind(
    abi: AbiFile, phase: Phase, signature: Signature, names: Names, shapes: Mapping[str, tuple[int, ...]]
) -> Binding:
    """Find what each argument and each result of a function is.

    Args:
      shapes: of the checkpoint's tensors.

    Raises InputError that names the ABI file, and the first entry or argument that does not fit.
    """
    try:
        inputs = _expanded(phase.inputs, f"{phase.name}.inputs", names, ())
        weights = _expanded(abi.weights, "weights", names, shapes)
        arguments: list[Weight | Value] = []
        sizes = dict(names.axes)
        entries = {**inputs, **weights}
        if twice := set(inputs) & set(weights):
            raise ValueError(f"{quoted(min(twice))} stands in weights and in {phase.name}.inputs")
        matched = _matched(signature.arguments, entries, f"{phase.name}.inputs or weights", "argument")
        for port, (key, place, entry) in matched.items():
            if place == "weights":
                arguments.append(_weight(port, str(entry), names, shapes))
            else:
                arguments.append(_value(port, f"{place}.{quoted(key)}", entry, phase.name, names))
        entries = _expanded(phase.results, f"{phase.name}.results", names, ())
        matched = _matched(signature.results, entries, f"{phase.name}.results", "result")
        results = [
            _value(port, f"{place}.{quoted(key)}", entry, phase.name, names)
            for port, (key, place, entry) in matched.items()
        ]
        if phase.name == "decode":
            sizes["T"] = 1
        inputs_ = [a for a in arguments if isinstance(a, Value)]
        for value in (*inputs_, *results):
            _unify(value, sizes)
        _complete(results, phase.name)
        _handed_on(inputs_, results, phase.name, abi.state)
    except ValueError as error:
        what, *fix = error.args
        raise abi.wrong(what, *fix) from None
    return Binding(signature, phase.name, tuple(arguments), tuple(results), sizes, abi.state)


def phase_of(abi: AbiFile, signature_names: Sequence[str], stem: str) -> list[Phase]:
    """The phases that a graph may be of: whose function it has, and whose pattern its file's name fits."""
    import fnmatch

    return [
        p for p in abi.phases.values()
        if p.function in signature_names and (not p.file or fnmatch.fnmatch(stem, p.file))
    ]  # fmt: skip


def sides(axes: str) -> tuple[str, str]:
    """The axes of an entry without the sizes after it: those of the contract where it says them (`A -> B`), and the graph's."""
    pattern = axes.split(",")[0]
    left, _, right = pattern.rpartition("->")
    return left.strip(), right.strip()


# All below raise ValueError: what is wrong and, where there is more to say, what to do.


def _expanded(
    entries: Mapping[str, Any], place: str, names: Names, shapes: Any
) -> dict[str, tuple[str, str, Entry]]:  # fmt: skip
    """Name of an argument -> the key, the section and the entry of it, with `l` and `e` put in."""
    found: dict[str, tuple[str, str, Entry]] = {}
    for key, entry in entries.items():
        pattern = key.replace("{{", _OPENING).replace("}}", _CLOSING)
        loops = dict.fromkeys(v for inside in _BRACES.findall(pattern) for v in _VARIABLE.findall(inside))
        rows: list[dict[str, int]] = [{}]
        for variable in loops:
            rows = [{**row, variable: i} for row in rows for i in range(names.ranges[variable])]
        some = False
        for row in rows:
            try:
                name = substituted(pattern, {**names.axes, **row}).replace(_OPENING, "{").replace(_CLOSING, "}")
                value = substituted(entry, row) if isinstance(entry, str) else entry
                if loops and place == "weights" and not all(t in shapes for t in tensors_in(str(value), names)):
                    continue  # a layer of another kind
            except ValueError as error:
                raise ValueError(f"{place}.{quoted(key)}: {error}") from None
            some = True
            if name in found:
                raise ValueError(f"{place}.{quoted(key)} and {quoted(found[name][0])} are both of {quoted(name)}")
            found[name] = (key, place, value)
        if not some:
            first = substituted(str(entry), rows[0] if rows else {})
            what = "layer" if rows else "expert"
            raise ValueError(f"{place}.{quoted(key)}: no {what} of the model has {quoted(first)}")
    return found


def _matched(
    ports: Sequence[Port], entries: Mapping[str, tuple[str, str, Entry]], where: str, what: str
) -> dict[Port, tuple[str, str, Entry]]:
    """What is said of each argument or result; all are said something of, and all that is said is of one."""
    found: dict[Port, tuple[str, str, Entry]] = {}
    used: dict[str, Port] = {}
    for port in ports:
        own = [name for name in port.names if name in entries]
        if not own:
            known = [name for name in entries if name not in used]
            near = difflib.get_close_matches(port.names[0][:200], known, 1)
            called = " or ".join(quoted(n) for n in port.names)
            raise ValueError(
                f"nothing is said of {port}",
                f"write it into {where}, as {called}" + (f"; {quoted(near[0])} is near" if near else ""),
            )
        if len(own) > 1:
            raise ValueError(f"{port} is said twice: as {quoted(own[0])} and as {quoted(own[1])}")
        if own[0] in used:
            raise ValueError(
                f"{quoted(own[0])} is the name of {used[own[0]].index} and of {port.index}", "use positions"
            )
        used[own[0]] = port
        found[port] = entries[own[0]]
    mine = {entries[name][:2] for name in used}
    for name, (key, place, _) in entries.items():
        if place != "weights" and (key, place) not in mine:  # a graph need not take all weights
            raise ValueError(
                f"{place}.{quoted(key)} is said of no {what}: none is called {quoted(name)}", _called(ports)
            )
    return found


def _called(ports: Sequence[Port]) -> str:
    some = ", ".join(quoted(port.names[0]) for port in ports[:8])
    return f"take it out, or name one of {some}{' and so on' if len(ports) > 8 else ''}" if ports else "take it out"


def _weight(port: Port, expression: str, names: Names, shapes: Mapping[str, tuple[int, ...]]) -> Weight:
    try:
        shape, dtype = typed(expression, names, shapes)
    except ValueError as error:
        raise ValueError(f"weights: {quoted(expression)}, for {port}: {error}") from None
    if (shape, dtype) != (port.shape, port.dtype):
        raise ValueError(
            f"weights: {quoted(expression)} is {list(shape)} {dtype}, and {port} is {list(port.shape)} {port.dtype}",
            _towards(shape, dtype, port),
        )
    return Weight(port, expression)


def _towards(shape: tuple[int, ...], dtype: str, port: Port) -> str:
    if sorted(shape) == sorted(port.shape) and shape != port.shape:
        letters = "abcdefgh"[: len(shape)]
        order = [letters[list(shape).index(n)] for n in port.shape]
        if len(set(order)) == len(order):
            return f"rearrange it: ` : {' '.join(letters)} -> {' '.join(order)}`"
    if shape == port.shape:
        return f"cast it: ` : {port.dtype}`"
    return "rearrange, slice, pad or stack it until it fits"


def _value(port: Port, place: str, entry: Entry, phase: str, names: Names) -> Value:
    found = _said(port, place, entry, phase, names)
    wanted = (
        FLOATS if found.what in (*REAL, "k_cache", "v_cache", "cache") else INTEGERS if found.what == "token" else ()
    )
    if wanted and port.dtype not in wanted:
        raise ValueError(f"{place} is {found.what}, and {port} is none of {', '.join(wanted)}")
    return found if found.axes else replace(found, axes=_usual(found.what, found.layer, port, place))


def _said(port: Port, place: str, entry: Entry, phase: str, names: Names) -> Value:
    if not isinstance(entry, str):
        _fits(entry, port, place)
        if place.split(".")[1] == "results":
            raise ValueError(f"{place} is a constant, and a result is none")
        return Value(port, "constant", constant=entry)
    source, *stages = entry.split(STAGE)
    source, axes = source.strip(), " ".join(stages[0].split()) if stages else ""
    if len(stages) > 1:
        raise ValueError(f"{place} has {len(stages)} stages", "write one: the axes")
    if found := CACHE.fullmatch(source):
        if found[3] and found[1] == "v_cache":
            raise ValueError(f"{place} interleaves values, which RoPE does not turn", "write v_cache")
        return Value(port, found[1], _layer(found[2], names, place), found[3] or "", axes=axes)
    if found := _STATE.fullmatch(source):
        return Value(port, "state", text=found[1], axes=axes)
    if place.split(".")[1] == "results":
        if source in ("logits", "token", "ignored"):
            return Value(port, source, axes=axes)
        raise ValueError(
            f"{place} is {quoted(source)}", "write logits, token, k_cache, v_cache, cache, state.NAME or ignored"
        )
    if found := _MASK.fullmatch(source):
        _hides(found[2], port, place)
        return Value(port, found[1], text=found[2] or "", axes=axes)
    if found := _ROTARY.fullmatch(source):
        return Value(port, found[1], _layer(found[2], names, place), axes=axes)
    if source in ("embeddings", "valid"):
        return Value(port, source, axes=axes)
    known = {*SCALARS[phase], *VECTORS, "T", "S", *names.all}
    try:
        if wrong := names_in(source) - known:
            raise ValueError(f"{quoted(min(wrong))} is not known in {phase}")
        if port.dtype not in FLOATS and "/" in source.replace("//", ""):
            raise ValueError(f"{quoted(source)} divides, and {port} is no float; write //")
    except ValueError as error:
        near = difflib.get_close_matches(source[:100], [*known, *MASKS, *ROTARY, "embeddings", "k_cache"], 1)
        raise ValueError(
            f"{place}: {error}", f"did you mean {near[0]!r}?" if near else f"write one of {KINDS}"
        ) from None
    return Value(port, "formula", text=source, axes=axes)


def _fits(constant: Any, port: Port, place: str) -> None:
    """Whether numbers can be an argument: as many as it has, or as NumPy broadcasts them, and as its dtype holds them."""
    numbers: list[Any] = []
    shape: tuple[int, ...] = ()

    def collect(some: Any, axis: int) -> None:
        nonlocal shape
        if not isinstance(some, list):
            numbers.append(some)
            return
        shape = shape if len(shape) > axis else (*shape, len(some))
        for one in some:
            collect(one, axis + 1)

    collect(constant, 0)
    ends = zip(reversed(shape), reversed(port.shape), strict=False)
    broadcasts = len(shape) <= len(port.shape) and all(a in (1, b) for a, b in ends)
    if not broadcasts and len(numbers) != math.prod(port.shape):
        raise ValueError(f"{place} has the shape {list(shape)}, and {port} {list(port.shape)}")
    if port.dtype not in FLOATS:
        unsigned, bits = port.dtype.startswith("ui") or port.dtype == "i1", int(port.dtype.strip("ui"))
        low, high = (0, 2**bits) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        if wrong := [n for n in numbers if not (low <= n < high and n == int(n))]:
            raise ValueError(f"{place} has {wrong[0]:g}, which {port} cannot hold")


def _hides(text: str | None, port: Port, place: str) -> None:
    """Whether a mask of this dtype can hide so."""
    if text is None:
        return
    if port.dtype not in FLOATS:
        if text != "inverted":
            raise ValueError(f"{place} hides by {quoted(text)}, and {port} is no float", "write (inverted), or nothing")
        return
    try:
        right = float(text) < 0
    except ValueError:
        right = False
    if not right:
        raise ValueError(f"{place} hides by {quoted(text)}", "write a negative number, such as (-1e9)")


def _usual(what: str, layer: int | None, port: Port, place: str) -> str:
    """The axes of a value of which none are said. Raises ValueError where they do not follow."""
    rank = len(port.shape)
    if what in ("ignored", "constant", "state") or math.prod(port.shape) == 1:
        return ""
    usual = {"logits": "V", "formula": "T", "inv_freq": "h"}.get(what, "") if rank == 1 else ""
    if what in ("k_cache", "v_cache") and rank == (4 if layer is None else 3):
        usual = "L K S D" if layer is None else "K S D"
    if not usual:
        raise ValueError(f"{place} says no axes, and {port} has {rank}", "name them, such as ` : B T`")
    return usual


def _layer(digits: str | None, names: Names, place: str) -> int | None:
    if digits is None:
        return None
    if len(digits) > 9 or int(digits) >= names.ranges["l"]:
        raise ValueError(f"{place} is of layer {digits[:20]}, and the model has {names.ranges['l']}")
    return int(digits)


def _unify(value: Value, sizes: dict[str, int]) -> None:
    """Hold a value's axes to its shape, and learn the sizes of those that nobody has said yet."""
    shape, what = value.port.shape, f"{value.port}"
    if not value.axes:
        return
    left, pattern = sides(value.axes)
    _, *given = value.axes.split(",")
    for side in (left, pattern) if "->" in value.axes else (pattern,):
        letters = re.findall(r"\w+", side)
        if not _AXES.fullmatch(side) or any(a.isdigit() and a != "1" for a in letters):
            raise ValueError(f"{what}: {quoted(value.axes)} is no list of axes", "name them, such as ` : B S (K D)`")
        if twice := [a for a in letters if a != "1" and letters.count(a) > 1]:
            raise ValueError(f"{what}: {quoted(side)} has the axis {twice[0]} twice")
    said: dict[str, int] = {}
    for one in given:
        if not (found := _SIZE.fullmatch(one)):
            raise ValueError(f"{what}: {quoted(one.strip())} is no size", "write such as `, two=2`")
        said[found[1]] = int(found[2])
    here = said | sizes
    if value.what == "logits" and said.get("V", 0) > sizes["V"]:
        here["V"] = said["V"]  # a padded vocabulary, whose first V are the model's
    axes = AXIS.findall(pattern)
    if len(axes) != len(shape):
        raise ValueError(
            f"{what} has {len(shape)} axes, and {quoted(pattern)} {len(axes)}",
            "name each axis, 1 for one of one element",
        )
    for axis, size in zip(axes, shape, strict=True):
        inside = axis.strip("()").split()
        own = {a: 1 if a == "1" else 2 if a in PAIR else here.get(a) for a in inside}
        open_ = [a for a, n in own.items() if n is None]
        known = math.prod(n for n in own.values() if n is not None)
        if len(open_) == 1 and known and size % known == 0 and open_[0].isupper():
            sizes[open_[0]] = size // known
        elif len(open_) == 1 and known and size % known == 0:
            pass
        elif open_:
            raise ValueError(
                f"{what}: the sizes of {' and '.join(open_)} in {quoted(pattern)} are not known", "say them: `, two=2`"
            )
        elif known != size:
            raise ValueError(
                f"{what}: axis {axis} of {quoted(pattern)} has {known}, and there are {size}",
                f"if the vocabulary is padded, say how far: `, V={size}`"
                if value.what == "logits" and axis == "V" and size > known
                else "name the axes in their order",
            )


def _complete(results: Sequence[Value], phase: str) -> None:
    """One head; and each cache once. That one is missing is a check's to say, which names the graph: see `state.py`."""
    place = f"{phase}.results"
    heads = [r for r in results if r.what in ("logits", "token")]
    if not heads:
        raise ValueError(f"{place} has neither logits nor token", "say which result is which")
    if len(heads) > 1:
        raise ValueError(f"{place} has both {heads[0].port} and {heads[1].port} as {heads[1].what}", "ignore one")
    there = [(name, r.layer) for r in results for name in PAIR["kv"] if r.what in ("cache", name)]
    if twice := [one for one in there if there.count(one) > 1]:
        name, layer = twice[0]
        raise ValueError(f"{place} has {name}{'' if layer is None else f'.{layer}'} twice", "ignore one")
    for name in PAIR["kv"] if there else ():
        of = {layer for one, layer in there if one == name}
        if len(of - {None}) < len(of) > 1:
            raise ValueError(f"{place} has {name} whole and by layer")


def _handed_on(inputs: Sequence[Value], results: Sequence[Value], phase: str, start: Mapping[str, Entry]) -> None:
    """What a step returns, the next one takes; and of state it is known what it starts with."""
    returned: dict[str, Value] = {}
    for value in results:
        if value.what == "state" and returned.setdefault(value.text, value) is not value:
            raise ValueError(f"{phase}.results has state.{value.text} twice", "ignore one")
    for value in (v for v in inputs if v.what == "state"):
        name = value.text
        if name not in start:
            raise ValueError(f"state.{name} starts with nothing", f"write [state] with `{name} = 0`, or what it is")
        _fits(start[name], value.port, f"state.{quoted(name)}")
        if name in returned and value.port.type != returned[name].port.type:
            raise ValueError(f"state.{name} is {value.port} as an argument, and {returned[name].port} as a result")
