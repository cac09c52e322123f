"""Proposes the ABI file of somebody else's emitter, from names, types and what computes right.

Imports JAX; for a process of its own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hloracle.core.abi import DTYPE_BYTES
from hloracle.core.errors import InputError
from hloracle.core.given import shown
from hloracle.foreign.candidates import UNKNOWN, Choice, Group, Option, grouped, in_order, sources, weight_options
from hloracle.foreign.file import PHASES, Entry
from hloracle.foreign.interface import Interface, interface_of
from hloracle.foreign.opening import shapes_of, signatures_of
from hloracle.foreign.reading import read_text
from hloracle.foreign.signature import Port, Signature
from hloracle.foreign.trying import Error, Found, Loaded, Picked, Subject, Trial, search
from hloracle.reference.huggingface.anchor_truth import Sequenced, anchor_truths
from hloracle.reference.model.anchors import CACHES, anchors, split
from hloracle.reference.model.checkpoint import Checkpoint
from hloracle.reference.model.expressions import names_of

TOKENS = 12  # of the sequence that graphs are tried with
MEMORY = 4  # how many times the weights may be in memory, in the forms that were tried

Report = Callable[[str], None]


@dataclass(frozen=True)
class Said:
    """An entry of the file. certain: names and types left nothing else. others: what else would fit."""

    section: str
    key: str
    entry: Entry
    certain: bool
    others: tuple[str, ...]
    why: str
    type: str


@dataclass(frozen=True)
class Proposal:
    """What was found. errors: by the name of the graph's file. phases: phase -> its function, and its file's pattern or ''."""

    said: tuple[Said, ...]
    phases: Mapping[str, tuple[str, str]]
    errors: Mapping[str, Error]
    tries: int

    @property
    def unknown(self) -> tuple[Said, ...]:
        """What nothing fits."""
        return tuple(s for s in self.said if s.entry == UNKNOWN)


@dataclass(frozen=True)
class _Read:
    """A graph with the choices that its ABI file has to make: those of weights, and its own."""

    subject: Subject
    interface: Interface
    weights: tuple[Choice, ...]

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (*self.weights, *self.interface.choices)


def propose(report: Report, paths: Sequence[Path], model: Checkpoint, tries: int, seconds: float) -> Proposal:
    """What an ABI file of these graphs may say, of one emitter and a model. Called in a child process.

    Args:
      tries: how many assignments may be run. seconds: how long it may look for them.

    Raises InputError that names a file which cannot be read.
    """
    until = time.monotonic() + seconds
    report("reading the graphs")
    read = [_read(path, model) for path in paths]
    _one_of_each(read)
    known = [r for r in read if all(c.known for c in r.choices)]
    errors: dict[str, Error] = {}
    fixed: dict[tuple[tuple[str, str], ...], Option] = {}
    count = 0
    # A prefill shows most at once.
    for one in sorted(known, key=lambda r: r.subject.phase == "decode"):
        found, choices = _tried(report, one, model, fixed, (tries - count, until))
        count += found.tries
        errors[one.subject.path.name] = found.error
        for choice, j in zip(choices, found.picked, strict=True):
            fixed[choice.keys] = choice.options[j]
    said: dict[tuple[str, str], Said] = {}
    for r in read:
        for choice in r.choices:
            picked = fixed.get(choice.keys, choice.options[0])
            said |= {(s.section, s.key): s for s in _said(choice, picked, r.subject.signature)}
    return Proposal(tuple(said.values()), _phases(read), errors, count)


def _tried(
    report: Report, read: _Read, model: Checkpoint, fixed: Mapping[object, Option], limits: tuple[int, float]
) -> tuple[Found, Sequence[Choice]]:
    """The best of a graph's choices; weights that another graph has shown stay, unless nothing computes right with them."""
    config = model.config
    asked = tuple(a for a in anchors(config) if split(a)[1] in CACHES or a == "lm_head")
    tokens = np.random.default_rng(11).integers(0, config.vocab_size, TOKENS).tolist()
    report("asking Hugging Face")
    truth = anchor_truths(model, [Sequenced(tuple(tokens), 0, asked)], report)[0]
    size = sum(int(np.prod(p.shape)) * DTYPE_BYTES[p.dtype] for p in read.subject.signature.arguments)
    name = read.subject.path.name
    report(f"{name}: compiling it")
    trial = Trial(read.subject, model, names_of(config), shapes_of(model), truth, Loaded(model, MEMORY * size))
    kept = [Choice(c.keys, (fixed[c.keys],)) if c.keys in fixed else c for c in read.choices]
    count, until = limits
    found = None
    for choices in (kept, read.choices) if any(c.keys in fixed for c in read.choices) else (read.choices,):

        def run(picked: Picked, choices: Sequence[Choice] = choices) -> Error:
            return trial.error(_entries(choices, picked))

        another = search(choices, run, count, until, lambda line: report(f"{name}: {line}"))
        if found is None or another.error.score < found[0].error.score:
            found = another, choices
        if found[0].error.close:
            break
    assert found
    return found


def _entries(choices: Sequence[Choice], picked: Picked) -> dict[str, dict[str, Entry]]:
    entries: dict[str, dict[str, Entry]] = {}
    for choice, j in zip(choices, picked, strict=True):
        for (section, key), entry in zip(choice.keys, choice.options[j].entries, strict=True):
            entries.setdefault(section, {})[key] = entry
    return entries


# ---- reading


def _read(path: Path, model: Checkpoint) -> _Read:
    text = read_text(path)
    signature = _main_function(signatures_of(text, path), path)
    config = model.config
    known, L = sources(config, shapes_of(model)), config.num_hidden_layers
    fits: dict[Port, bool] = {}
    for group in grouped(signature.arguments, L):
        fits |= dict.fromkeys(group.members.values(), bool(weight_options(group, config, known)))
    interface = interface_of(signature, config, fits)
    offered = in_order([(group, weight_options(group, config, known)) for group in interface.weights], known)
    weights = tuple(
        Choice((("weights", group.key),), tuple(options) or (Option((UNKNOWN,), 9.0),)) for group, options in offered
    )
    return _Read(Subject(path, text, signature, interface.sizes.phase), interface, weights)


def _main_function(signatures: Mapping[str, Signature], path: Path) -> Signature:
    """The function that takes the weights: the one with most arguments."""
    if not signatures:
        raise InputError("has no function", path, "name a graph of a model")
    return max(signatures.values(), key=lambda s: len(s.arguments))


def _one_of_each(read: Sequence[_Read]) -> None:
    """Raises InputError where two graphs are of one phase and say it by different functions."""
    seen: dict[str, _Read] = {}
    for one in read:
        other = seen.setdefault(one.subject.phase, one)
        mine, theirs = one.subject.signature.function, other.subject.signature.function
        if mine != theirs:
            raise InputError(
                f"is a {one.subject.phase} graph of @{mine}, and {other.subject.path.name} one of @{theirs}",
                one.subject.path, "propose a file for each",
            )  # fmt: skip


def _phases(read: Sequence[_Read]) -> dict[str, tuple[str, str]]:
    """Of each phase its function, and where several have the same one, a pattern of its files."""
    functions = {r.subject.phase: r.subject.signature.function for r in read}
    found = {}
    for phase in (p for p in PHASES if p in functions):
        stems = [r.subject.path.stem for r in read if r.subject.phase == phase]
        others = [r.subject.path.stem for r in read if r.subject.phase != phase]
        same = sum(f == functions[phase] for f in functions.values()) > 1
        pattern = f"{phase}*" if all(s.startswith(phase) for s in stems) and not any(s.startswith(phase) for s in others) else ""
        pattern = pattern or (stems[0] if len(stems) == 1 and not re.search(r"[*?\[]", stems[0]) else "")
        found[phase] = functions[phase], pattern if same else ""
    return found


def _said(choice: Choice, option: Option, signature: Signature) -> list[Said]:
    """The entries of a choice, with how sure each is."""
    near = [
        o for o in choice.options
        if o.entries != option.entries and o.cost < max(option.cost, choice.options[0].cost) + CERTAIN
        and not o.tags - option.tags - {"[out, in]", "[in, out]"}
    ]  # fmt: skip
    plain = not option.tags - {"[out, in]", "[in, out]"}
    certain = option.cost < CERTAIN and not near and plain
    found = []
    for i, (section, key) in enumerate(choice.keys):
        others = tuple(dict.fromkeys(_shown(o.entries[i]) for o in near if o.entries[i] != option.entries[i]))[:2]
        found.append(Said(section, key, option.entries[i], certain or (plain and not others and option.cost < CERTAIN), others, option.why, _type(key, signature)))
    return found


CERTAIN = 0.5


def _shown(entry: Entry) -> str:
    return entry if isinstance(entry, str) else str(entry)


def _type(key: str, signature: Signature) -> str:
    return next((p.type for p in (*signature.arguments, *signature.results) if key in p.names), "")
