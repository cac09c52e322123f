"""Which weights a model has, by the parts of its layers: their names and shapes, and how a checkpoint stores them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache

from hloracle.core.errors import InputError
from hloracle.reference.model.config import Config
from hloracle.reference.model.encodings import ENCODINGS, NARROW
from hloracle.reference.model.expressions import is_expression
from hloracle.reference.model.parts import Weight, shape
from hloracle.reference.model.registry import FAMILIES, part_of, parts_of

NORM = (Weight("weight", "E"), Weight("bias", "E", "norm_bias"))


@dataclass(frozen=True)
class Stored:
    """How files hold a weight that graphs take as one: under another name, or in slices along its first axis.

    A slice may come in several tensors that are to be joined along their first axis.
    patterns: their names, with `{}` for the number of the slice.
    """

    patterns: tuple[str, ...]
    count: int

    @property
    def sliced(self) -> bool:
        """Whether the weight comes in slices."""
        return "{}" in self.patterns[0]

    def names(self, slice: int) -> list[str]:
        """The tensors that one slice is joined from."""
        return [pattern.format(slice) for pattern in self.patterns]


@lru_cache(maxsize=64)
def weight_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight, in the order in which graphs take them. Linear weights are [out, in]."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, config.hidden_size)}

    def add(module: str, weights: tuple[Weight, ...], layer: str = "") -> None:
        for weight in weights:
            if not weight.flag or getattr(config, weight.flag):
                owner = layer if "." in weight.name else module
                shapes[f"{owner}.{weight.name}"] = shape(config, weight.shape)

    for layer in range(config.num_hidden_layers):
        for part in parts_of(config, layer):
            path = f"model.layers.{layer}"
            add(f"{path}.{part}", part_of(config, part).weights, path)
    add("model.norm", NORM)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return shapes


# What is added, multiplied or chosen by keeps float32 whatever the precision: routers, norms, biases.
_KEPT = ("norm.weight", "layernorm.weight", "bias", ".gate.weight", ".router.weight", "shared_expert_gate.weight")


@lru_cache(maxsize=64)
def matrices(config: Config) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the weights that a precision is asked for: those of products, and the embedding."""
    return {
        name: size for name, size in weight_shapes(config).items() if len(size) > 1 and not name.endswith(_KEPT)
    }  # fmt: skip


def default_layout(config: Config, precision: str, panels: bool = True) -> dict[str, str]:
    """How the matrices of a model are held in a precision, where nothing else is known of them.

    int4 leaves what tokens are looked up in and chosen by in int8, as the makers of GGUF files do.
    """
    heads = ("embed_tokens.weight", "lm_head.weight")

    def candidates(name: str) -> tuple[str, ...]:
        if precision in NARROW:
            return (f"{precision}.panels", precision) if panels else (precision,)
        if precision == "f32":
            return ("panels",) if panels else ()
        return ("int8",) if name.endswith(heads) else (precision,)

    found = {
        name: next((e for e in candidates(name) if ENCODINGS[e].fits(size)), "") for name, size in matrices(config).items()
    }  # fmt: skip
    return {name: encoding for name, encoding in found.items() if encoding}


def in_panels(config: Config, layout: Mapping[str, str]) -> dict[str, str]:
    """The layout with quantized weights in panels, where these fit."""
    shapes = matrices(config)
    return {
        name: f"{encoding}.panels" if ENCODINGS[f"{encoding}.panels"].fits(shapes[name]) else encoding
        for name, encoding in layout.items()
    }


# Parts of a layer that every family multiplies with the same values, so that one product can be that of all of them.
JOINS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@lru_cache(maxsize=64)
def fusions(config: Config) -> dict[str, tuple[str, ...]]:
    """The weights that graphs can take as one, their rows one after another: `…self_attn.q_proj-k_proj-v_proj.weight`."""
    names = (
        f"{weight.removesuffix(f'{parts[0]}.weight')}{'-'.join(parts)}.weight"
        for weight in matrices(config) for parts in JOINS if weight.endswith(f".{parts[0]}.weight")
    )  # fmt: skip
    return {name: parts_in(name) for name in names if set(parts_in(name)) <= set(matrices(config))}


def parts_in(weight: str) -> tuple[str, ...]:
    """The weights that a fused one holds, in order; any other weight is its only one."""
    if "-" not in weight or is_expression(weight):
        return (weight,)
    module, parts, end = weight.rsplit(".", 2)
    return tuple(f"{module}.{part}.{end}" for part in parts.split("-"))


def fused(config: Config, layout: Mapping[str, str]) -> dict[str, str]:
    """The layout with fused weights in place of their parts, where all parts are held in one encoding.

    Raises InputError where there is nothing to fuse.
    """
    held = {name: {layout.get(part, "") for part in parts} for name, parts in fusions(config).items()}
    whole = {name: next(iter(found)) for name, found in held.items() if len(found) == 1 and "" not in found}
    if not whole:
        raise InputError("fuses nothing in this model, held so", "--fused", "leave it out")
    gone = {part for name in whole for part in parts_in(name)}
    return {name: encoding for name, encoding in layout.items() if name not in gone} | whole


def taken_shapes(config: Config, layout: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight as graphs of a layout take them: a fused one where its first part would stand."""
    whole = {part: name for name, parts in fusions(config).items() if name in layout for part in parts}
    shapes: dict[str, tuple[int, ...]] = {}
    for part, (rows, *columns) in weight_shapes(config).items():
        name = whole.get(part, part)
        shapes[name] = (rows + (shapes[name][0] if name in shapes else 0), *columns)
    return shapes


@lru_cache(maxsize=64)
def stored(config: Config) -> dict[str, Stored]:
    """The weights that files hold under other names, or in slices: name -> how."""
    patterns = FAMILIES[config.architecture].stored
    return {
        name: Stored(
            tuple(name.removesuffix(ours) + pattern for pattern in theirs), size[0] if "{}" in theirs[0] else 1
        )
        for name, size in weight_shapes(config).items() for ours, theirs in patterns.items() if name.endswith(ours)
    }  # fmt: skip


def stored_shapes(config: Config, found: Set[str] = frozenset()) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor that a checkpoint's files hold; one that is `found` as it is counts as that."""
    how, shapes = stored(config), {}
    for name, size in weight_shapes(config).items():
        if name not in how or name in found:
            shapes[name] = size
        elif not how[name].sliced:
            shapes[how[name].patterns[0]] = size
        else:
            parts = len(how[name].patterns)
            one = size[1:] if parts == 1 else (size[1] // parts, *size[2:])
            shapes |= dict.fromkeys((n for i in range(how[name].count) for n in how[name].names(i)), one)
    return shapes


def mismatches(
    wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], places: Mapping[str, str]
) -> str:
    """What is missing, extra or misshapen among the tensors that were found, in words; empty where nothing is.

    Args:
      places: of a tensor that was found, what is said of where it is.
    """
    problems = [f"missing {name}" for name in wanted if name not in found]
    problems += [f"extra {name}{places[name]}" for name in found if name not in wanted]
    problems += [
        f"{name}{places[name]} is {list(found[name])}, not {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    return "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")


def loaded_otherwise(info: Mapping[str, Collection[object]]) -> str:
    """What transformers did not load as it is, of its `output_loading_info`, in words: it makes up what is missing."""
    kinds = ((kind.replace("_", " "), sorted(map(str, names))) for kind, names in info.items() if names)
    return "; ".join(f"{kind}: {', '.join(names[:4])}" for kind, names in kinds)
