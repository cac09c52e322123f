"""What each weight of somebody else's graph may be: tensors of the checkpoint, by names and by shapes.

Nothing is run here. What names and shapes leave open is decided in `trying.py`, by what computes right.

Legend: as in `expressions.axes_of`; X experts, M width of one.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hloracle.foreign.proposal.choices import IN_FIRST, INTERLEAVED, OUT_FIRST, PLUS_ONE, Option, Place
from hloracle.foreign.proposal.words import apart, is_bias, role_of, words_of
from hloracle.foreign.signature import Port
from hloracle.reference.model.config import Config
from hloracle.reference.model.expressions import axes_of
from hloracle.reference.model.registry import FAMILIES

_LOGITS = 10**6
_LAYER, _LAST = 1000, 10**6  # what orders are moved on by from layer to layer, and of what stands behind all
_STAGES = {
    **dict.fromkeys(("embed", "k", "kv", "qkv", "k_norm", "norm:pre:attn"), 0), "v": 1,
    **dict.fromkeys(("q", "q_norm", "o", "gate", "up", "gate_up", "down", "norm:post:attn", "norm:pre:mlp", "norm:post:mlp"), 2),
    **dict.fromkeys(("final_norm", "head"), _LOGITS),
}  # fmt: skip
_UNNAMED = re.compile(r"arg_?\d+|\d+")
_DIGITS = re.compile(r"\d+")
_GROUP = re.compile(r"\([^()]*\)|\S+")
_IN_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_LAYERED = re.compile(r"layer|block|_h_\d*$|_l_?\d*$|decoder")


@dataclass(frozen=True)
class Group:
    """Ports that one key of an ABI file stands for: one of each layer, or a single one."""

    key: str
    members: Mapping[int | None, Port] = field(hash=False)

    @property
    def port(self) -> Port:
        """The first of them."""
        return next(iter(self.members.values()))

    @property
    def layered(self) -> bool:
        """Whether there is one of each layer."""
        return None not in self.members

    def place(self, section: str) -> Place:
        """Its entry in a section."""
        return Place(section, self.key, self.port.index, self.port.type)


def name_of(port: Port) -> str:
    """The name by which a port is called in the file: one that somebody gave, or else its number."""
    given = [name for name in port.names if not _UNNAMED.fullmatch(name)]
    return given[0] if given else port.names[-1]


# ---- layers


def grouped(ports: Sequence[Port], layers: int, folded: bool = True) -> list[Group]:
    """Ports by the key that stands for them, with `{l}` where names count layers.

    Args:
      folded: also where names only count, and what they count has a period: `states[{9*l+1}]`.
    """
    names = {port: name_of(port) for port in ports}
    if len(set(names.values())) < len(ports):
        names = {port: port.names[-1] for port in ports}
    counted: dict[str, set[int]] = defaultdict(set)
    for name in names.values():
        for digits in _DIGITS.finditer(name):
            counted[name[: digits.start()]].add(int(digits[0]))
    groups: dict[str, dict[int | None, Port]] = {}
    alone: list[Port] = []
    for port, name in names.items():
        key, layer = _layered(name, counted, layers)
        if layer is None:
            alone.append(port)
        else:
            groups.setdefault(key, {})[layer] = port
    found = [Group(key, members) for key, members in groups.items()]
    rest = _folded({p: names[p] for p in alone}, layers) if folded and layers > 1 else []
    taken = {port for group in rest for port in group.members.values()}
    found += rest
    found += [Group(_escaped(names[port]), {None: port}) for port in alone if port not in taken]
    return sorted(found, key=lambda g: g.port.index)


def _layered(name: str, counted: Mapping[str, set[int]], layers: int) -> tuple[str, int | None]:
    """A name with its layer as `{l}`, and that layer; None where it has none."""
    for found in _DIGITS.finditer(name):
        before, after = name[: found.start()], name[found.end() :]
        numbers = counted[before]
        speaks = bool(_LAYERED.search(words_of(before)))
        first = min(numbers)
        if not after.strip("'\"]) ") and not speaks:
            continue  # it ends there, and may count anything
        if first in (0, 1) and numbers == set(range(first, first + layers)) and (first == 0 or speaks):
            variable = "{l}" if first == 0 else "{l+1}"
            return f"{_escaped(before)}{variable}{_escaped(after)}", int(found[0]) - first
    return name, None


def _folded(names: Mapping[Port, str], layers: int) -> list[Group]:
    """Groups of ports whose names only count them, where shapes come again with a period, once for each layer."""
    series: dict[tuple[str, str], dict[int, Port]] = defaultdict(dict)
    for port, name in names.items():
        if found := list(_DIGITS.finditer(name)):
            series[name[: found[-1].start()], name[found[-1].end() :]][int(found[-1][0])] = port
    groups = []
    for (before, after), numbered in series.items():
        numbers = sorted(numbered)
        types = [(numbered[n].shape, numbered[n].dtype) for n in numbers]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            continue
        start, period = _period(types, layers)
        for i in range(period):
            members: dict[int | None, Port] = {n: numbered[numbers[start + i + period * n]] for n in range(layers)}
            offset = numbers[start + i]
            inside = f"{period}*l+{offset}" if offset else f"{period}*l"
            groups.append(Group(f"{_escaped(before)}{{{inside}}}{_escaped(after)}", members))
        behind = numbers[start + period * layers :] if period else []
        for number in behind:  # which other numbers of layers would move
            offset = number - period * layers
            inside = f"{period}*L+{offset}" if offset else f"{period}*L"
            groups.append(Group(f"{_escaped(before)}{{{inside}}}{_escaped(after)}", {None: numbered[number]}))
    return groups


def _period(types: Sequence[object], layers: int) -> tuple[int, int]:
    """Where what comes again for each layer starts, and how long it is; of several the longest, then the first."""
    for period in range(len(types) // layers, 1, -1):
        for start in range(len(types) - period * layers + 1):
            if all(types[start + i] == types[start + i + period] for i in range(period * (layers - 1))):
                return start, period
    return 0, 0


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


# ---- tensors


@dataclass(frozen=True)
class Source:
    """Something of the checkpoint that an argument may be made of.

    text: an expression, with `{l}` for the layer. axes: its axes. sizes: of those that no letter says.
    roles: what names may call it. uses: the tensors, or the parts of them. order: where it stands in the checkpoint.
    cost: of taking it at all, as what is rarely done. layer: of a tensor of one layer.
    """

    text: str
    axes: str
    roles: frozenset[str]
    uses: frozenset[str]
    order: float
    layers: frozenset[int] = frozenset()
    sizes: Mapping[str, int] = field(default_factory=dict, hash=False)
    bias: bool = False
    cost: float = 0.0
    layer: int = 0

    @property
    def stage(self) -> int | None:
        """The first value that hangs on it: 0 the keys of its layer, 1 its values, 2 those of the next; then the logits.

        None where that is not known.
        """
        found = next((stage for role, stage in _STAGES.items() if role in self.roles), None)
        return found if found in (None, _LOGITS) else found + 2 * self.layer


def sources(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> list[Source]:
    """All that arguments may be made of: tensors, some joined, and parts of those that are joined in the checkpoint."""
    patterns: dict[str, tuple[set[int], tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        found = _IN_LAYER.fullmatch(name)
        pattern = f"model.layers.{{l}}.{found[2]}" if found else name
        layers, _ = patterns.setdefault(pattern, (set(), shape))
        if found:
            layers.add(int(found[1]))
    first = next((i for i, (layers, _) in enumerate(patterns.values()) if layers), 0)
    single = [
        _tensor(config, pattern, shape, frozenset(layers), order + _LAST * (order > first and not layers), patterns)
        for order, (pattern, (layers, shape)) in enumerate(patterns.items())
    ]
    return [*single, *_joined(config, single), *_parts(config, single, patterns)]


def _tensor(
    config: Config, pattern: str, shape: tuple[int, ...], layers: frozenset[int], order: int, all_: Collection[str]
) -> Source:  # fmt: skip
    axes, sizes = _axes(config, pattern, shape)
    roles = {role_of(pattern)}
    if pattern.endswith(("post_attention_layernorm.weight", "post_attention_layernorm.bias")):
        before = pattern.replace("post_attention_layernorm", "pre_feedforward_layernorm")
        first = pattern.replace("post_attention_layernorm", "input_layernorm")
        if before not in all_ and first in all_:  # it stands after attention and before the MLP
            roles.add("norm:pre:mlp")
    tied = config.tie_word_embeddings and pattern == "model.embed_tokens.weight"
    uses = frozenset() if tied else frozenset({pattern})
    if tied:
        roles.add("head")
    return Source(pattern, axes, frozenset(roles), uses, order, layers, sizes, pattern.endswith("bias"))


def _axes(config: Config, pattern: str, shape: tuple[int, ...]) -> tuple[str, dict[str, int]]:
    """How a tensor's axes are called, by its role, as far as the letters have these sizes; else a, b, c."""
    role, known = role_of(pattern), axes_of(config)
    D = {"q": "(N D)", "o": "(N D)", "k": "(K D)", "v": "(K D)"}.get(role, "")
    two = {"o": f"E {D}", "gate": "F E", "up": "F E", "down": "E F", "embed": "V E", "head": "V E"}
    axes = two.get(role, f"{D} E") if len(shape) == 2 else D
    if len(shape) == 2 and role == "gate_up":
        axes = "(two F) E"
    sizes = {**known, "two": 2}
    written = [math.prod(sizes.get(a, 0) for a in group.strip("()").split()) for group in _GROUP.findall(axes)]
    if tuple(written) == shape:
        return axes, {"two": 2} if "two" in axes else {}
    letters = "abcdefgh"[: len(shape)]
    return " ".join(letters), dict(zip(letters, shape, strict=True))


def _joined(config: Config, single: Sequence[Source]) -> Iterator[Source]:
    """Tensors that are often one: q, k and v; k and v; gate and up."""
    by_role: dict[tuple[str, bool, bool], Source] = {}
    for source in single:
        for role in source.roles & {"q", "k", "v", "gate", "up"}:
            if "norm" not in source.text and (role not in ("gate", "up") or source.axes in ("F E", "F")):
                by_role.setdefault((role, source.bias, bool(source.layers)), source)
    K, N = config.num_key_value_heads, config.num_attention_heads
    for bias in (False, True):
        inner = "" if bias else " E"
        for roles, axes, sizes, name in (
            ("qkv", f"(three N D){inner}" if K == N else f"o{'' if bias else ' E'}", {"three": 3}, "qkv"),
            ("kv", f"(two K D){inner}", {"two": 2}, "kv"),
        ):
            parts = [by_role.get((role, bias, True)) for role in roles]
            if found := _concat(parts):
                own = sizes if K == N or roles == "kv" else {"o": (N + 2 * K) * config.head_dim}
                yield replace(found, axes=axes, sizes=own, roles=frozenset({name}), bias=bias)
        for order in (("gate", "up"), ("up", "gate")):
            if found := _concat([by_role.get((role, bias, True)) for role in order]):
                cost = 0.0 if order[0] == "gate" else 0.6
                yield replace(found, axes=f"(two F){inner}", sizes={"two": 2}, roles=frozenset({"gate_up"}), cost=cost)


def _concat(parts: Sequence[Source | None]) -> Source | None:
    some = [p for p in parts if p is not None]
    if len(some) < len(parts) or len({p.layers for p in some}) > 1 or any(p.axes[0] not in "(F" for p in some):
        return None
    return replace(
        some[0], text=_concatenated([p.text for p in some]), uses=frozenset().union(*(p.uses for p in some)),
        cost=0.0, order=some[0].order,
    )  # fmt: skip


def _concatenated(names: Sequence[str]) -> str:
    """`concat(a, b)`, with what alone differs in braces, as `{q,k,v}_proj`."""
    words = [name.split(".") for name in names]
    differing = (
        [i for i, one in enumerate(zip(*words, strict=True)) if len(set(one)) > 1]
        if len(set(map(len, words))) == 1
        else []
    )
    if len(differing) == 1:
        at = differing[0]
        own = [w[at] for w in words]
        end = next((o for o in ("_proj", "") if all(x.endswith(o) for x in own)), "")
        middle = ",".join(x.removesuffix(end) for x in own)
        return f"concat({'.'.join([*words[0][:at], f'{{{middle}}}{end}', *words[0][at + 1 :]])})"
    return f"concat({', '.join(names)})"


def _parts(
    config: Config, single: Sequence[Source], patterns: Mapping[str, tuple[set[int], tuple[int, ...]]]
) -> Iterator[Source]:
    """Parts of tensors that the checkpoint holds joined: q, k and v of qkv_proj; gate and up of gate_up_proj."""
    for source in single:
        _, shape = patterns[source.text]
        role = role_of(source.text)
        if role == "qkv" and len(shape) == 2:
            ends = ["0", "N*D", "(N+K)*D", "(N+2*K)*D"]
            for i, (one, head) in enumerate(zip("qkv", "NKK", strict=True)):
                yield _part(source, f"[{ends[i]}:{ends[i + 1]}]", f"({head} D) E", one, i)
        elif role == "gate_up" and len(shape) == 2 and shape[0] == 2 * config.intermediate_size:
            for i, (one, part) in enumerate((("gate", "[0:F]"), ("up", "[F:2*F]"))):
                yield _part(source, part, "F E", one, i)
        elif role == "gate_up" and len(shape) == 3 and config.experts:
            M = config.experts.intermediate_size
            if shape[1] == 2 * M:
                sizes = {"x": shape[0], "m": M, "E": shape[2]}
                for i, (one, part) in enumerate((("gate", f"[:, 0:{M}]"), ("up", f"[:, {M}:{2 * M}]"))):
                    yield replace(_part(source, part, "x m E", one, i), sizes=sizes)


def _part(source: Source, part: str, axes: str, role: str, i: int) -> Source:
    return replace(
        source, text=f"{source.text} : {part}", axes=axes, sizes={}, roles=frozenset({role}),
        uses=frozenset({f"{source.text} {role}"}), order=source.order + i / 10,
    )  # fmt: skip


# ---- how a tensor may lie


def layouts(axes: str, sizes: Mapping[str, int], shape: Sequence[int]) -> list[tuple[str, float]]:
    """The orders and groupings of a tensor's axes that have a shape, with a cost for each: what is usual first."""
    groups = [group.strip("()").split() for group in _GROUP.findall(axes)]
    atoms = [atom for group in groups for atom in group]
    together = {(a, b) for group in groups for a, b in itertools.pairwise(group)}
    found: dict[str, tuple[str, float]] = {}
    for order in itertools.permutations(atoms):
        for placed in _placed(order, sizes, shape):
            cost = 0.0
            for group in placed:
                for a, b in itertools.pairwise(group):
                    cost += 0.0 if (a, b) in together else 2.0 if (b, a) in together else 3.0
            turned = [order.index(a) > order.index(b) for a, b in together]
            parted = [abs(order.index(a) - order.index(b)) > 1 for a, b in together]
            cost += 0.5 * sum(turned) + 0.3 * sum(parted)
            key = " ".join(str([a for a in group if sizes[a] > 1]) for group in placed)
            text = " ".join(_written(group) for group in placed)
            if key not in found or found[key][1] > cost:
                found[key] = (text, cost)
    return sorted(found.values(), key=lambda one: one[1])


def _placed(order: Sequence[str], sizes: Mapping[str, int], shape: Sequence[int]) -> Iterator[list[list[str]]]:
    """The ways to cut a row of axes so that the parts have the sizes of a shape."""
    if not shape:
        if not order:
            yield []
        return
    for count in range(len(order) + 1):
        size = math.prod(sizes[a] for a in order[:count])
        if size == shape[0]:
            for rest in _placed(order[count:], sizes, shape[1:]):
                yield [list(order[:count]), *rest]
        if size > shape[0]:
            break


def _written(group: Sequence[str]) -> str:
    return "1" if not group else group[0] if len(group) == 1 else f"({' '.join(group)})"


def rearrangement(axes: str, right: str, sizes: Mapping[str, int]) -> str:
    """The stage that brings axes into another order; empty where they are in it."""
    if axes == right:
        return ""
    groups, wanted = _GROUP.findall(axes), _GROUP.findall(right)
    if sorted(groups) == sorted(wanted) and len(groups) == 2:
        return "o i -> i o"
    said = [
        f", {name}={sizes[name]}" for name in sizes if len(name) > 1 and re.search(rf"\b{name}\b", f"{axes} {right}")
    ]
    return f"{axes} -> {right}{''.join(said)}"


# ---- weights


def weight_options(
    group: Group, config: Config, known: Sequence[Source], dtypes: Collection[str] = ("f32", "bf16", "f16")
) -> list[Option]:
    """What an argument that holds a weight may be, the likeliest first; none where no tensor has its shape."""
    port = group.port
    if port.dtype not in dtypes or len({(p.shape, p.dtype) for p in group.members.values()}) > 1:
        return []
    role, bias = role_of(group.key), is_bias(group.key)
    cast = "" if port.dtype == "f32" else f" : {port.dtype}"
    layers = {layer for layer in group.members if layer is not None}
    found: list[Option] = []
    for source in known:
        stacked = bool(source.layers) and not group.layered
        if group.layered and not layers <= source.layers:
            continue
        if stacked and (len(source.layers) < config.num_hidden_layers or port.shape[:1] != (config.num_hidden_layers,)):
            continue
        cost = source.cost + apart(role, source.roles)
        cost += (2.0 if role else 0.3) * (bias != source.bias)
        shape = port.shape[1:] if stacked else port.shape
        if stacked and "{l}" not in source.text:
            continue
        found += [
            replace(option, entries=(f"{'stack l : ' if stacked else ''}{option.entries[0]}{cast}",))
            for option in _laid_out(source, config, shape, cost)
        ]
    found.sort(key=lambda o: o.cost)
    least = found[0].cost if found else 0.0
    # Where a name says what it is, what it does not say is tried only if nothing else computes right.
    return [o for o in found if o.cost <= least + 3.2][:300]


def sources_for(groups: Sequence[Group], config: Config, known: Sequence[Source]) -> list[Source]:
    """The same, and the tensors of each layer by themselves where arguments show no layers: they differ, or there is one."""
    E = config.hidden_size
    lost = any(E in g.port.shape and not g.layered and not weight_options(g, config, known) for g in groups)
    return [*known, *(_of_layers(known) if lost else ())]


def _of_layers(known: Sequence[Source]) -> Iterator[Source]:
    for source in known:
        for layer in sorted(source.layers):
            yield replace(
                source, text=source.text.replace("{l}", str(layer)), layers=frozenset(),
                uses=frozenset(f"{one} {layer}" for one in source.uses), order=source.order + layer * _LAYER,
                cost=source.cost + 0.2, layer=layer,
            )  # fmt: skip


def _laid_out(source: Source, config: Config, shape: Sequence[int], cost: float) -> Iterator[Option]:
    sizes = {**axes_of(config), **source.sizes}
    for right, more in layouts(source.axes, sizes, shape)[:8]:
        stage = rearrangement(source.axes, right, source.sizes)
        text = f"{source.text} : {stage}" if stage else source.text
        option = Option((text,), cost + more, "", source.uses, _direction(source.axes, right), source.stage)
        yield option
        if source.roles & {"q", "k"} and not any("norm" in r for r in source.roles) and _whole_rope(config):
            apart_, put = source.axes.replace("D", "two h"), _paired(right)
            pairs = f"{source.text} : {apart_} -> {put}, two=2"
            yield replace(option, entries=(pairs,), tags=option.tags | {INTERLEAVED})
        if any("norm" in r for r in source.roles) and FAMILIES[config.architecture].one_plus_norms:
            yield replace(option, entries=(f"{text} : + 1",), tags=option.tags | {PLUS_ONE})


def _direction(axes: str, right: str) -> frozenset[str]:
    """Whether a matrix has its outputs or its inputs first; nothing of the embedding, nor of what is cut into heads."""
    groups, placed = _GROUP.findall(axes), _GROUP.findall(right)
    if len(groups) != 2 or "V" in axes or sorted(groups) != sorted(placed):
        return frozenset()
    return frozenset({OUT_FIRST if groups == placed else IN_FIRST})


def _whole_rope(config: Config) -> bool:
    return bool(config.ropes) and all(r.dim == config.head_dim for r in config.ropes)


def _paired(right: str) -> str:
    """Axes with `h two` in place of D."""
    return " ".join(
        group.replace("D", "h two") if group.startswith("(") else "(h two)" if group == "D" else group
        for group in _GROUP.findall(right)
    )


def in_order(
    groups: Sequence[tuple[Group, list[Option]]], known: Sequence[Source], read: Mapping[int, int]
) -> list[tuple[Group, list[Option]]]:
    """The same; where names say nothing, what is read first among arguments is likely what the checkpoint has first.

    Among arguments of one shape that counts more than among all.

    Args:
      read: the index of an argument -> where in the text it is read first.
    """
    order = {s.uses: s.order for s in known}
    alike: dict[object, list[int]] = defaultdict(list)
    nameless = [i for i, (group, options) in enumerate(groups) if options and not role_of(group.key)]
    for i in nameless:
        alike[groups[i][0].layered, groups[i][0].port.shape, groups[i][0].port.dtype].append(i)
    nameless.sort(key=lambda i: (read.get(groups[i][0].port.index, math.inf), i))
    for rows in alike.values():
        rows.sort(key=nameless.index)
    found = [list(options) for _, options in groups]
    for weight, rows in [(0.01, nameless), *((0.1, rows) for rows in alike.values())]:
        uses = sorted({o.uses for i in rows for o in found[i]}, key=lambda u: order.get(u, math.inf))
        for place, i in enumerate(rows):
            found[i] = [replace(o, cost=o.cost + weight * abs(uses.index(o.uses) - place)) for o in found[i]]
    return [
        (group, sorted(options, key=lambda o: o.cost)) for (group, _), options in zip(groups, found, strict=True)
    ]  # fmt: skip
