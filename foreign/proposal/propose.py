"""Proposes the ABI file of somebody else's emitter, from names, types and what computes right.

Imports JAX; for a process of its own.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hloracle.core.abi import DTYPE_BYTES
from hloracle.core.errors import InputError
from hloracle.foreign.file import PHASES, Entry, read_abi_file
from hloracle.foreign.opening import bound, shapes_of, signatures_of
from hloracle.foreign.proposal.candidates import grouped, in_order, sources, sources_for, weight_options
from hloracle.foreign.proposal.choices import PLAIN, UNKNOWN, Choice, Option, Place
from hloracle.foreign.proposal.errors import Error
from hloracle.foreign.proposal.file import Limits, Proposal, Said, Verified, written
from hloracle.foreign.proposal.interface import Interface, interface_of
from hloracle.foreign.proposal.trying import Loaded, Picked, Search, Subject, Trial
from hloracle.foreign.reading import read_text
from hloracle.foreign.signature import Port, Signature, quoted_symbol, ssa_names
from hloracle.reference.huggingface.anchor_truth import AnchorTruth, Sequenced, anchor_truths
from hloracle.reference.model.anchors import CACHES, anchors, split
from hloracle.reference.model.checkpoint import Checkpoint
from hloracle.reference.model.expressions import names_of

TOKENS = 8  # of the sequence that graphs are tried with
LONGEST = 64  # the same where a window has to be left, to tell masks apart
MEMORY = 4  # how many times the weights may be in memory, in the forms that were tried
DOUBTED = 60  # tries of other weights than those with which another graph computes right
NEAR = 0.5  # options that cost so much more than the one that was taken may be meant as well

_VALUE = re.compile(r"%([\w$.\-]+)")
Report = Callable[[str], None]
Names = tuple[Place, ...]


@dataclass(frozen=True)
class _Read:
    """A graph with the choices that its ABI file has to make: those of weights, and its own."""

    subject: Subject
    interface: Interface
    weights: tuple[Choice, ...]

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (*self.weights, *self.interface.choices)

    @property
    def known(self) -> bool:
        return all(choice.known for choice in self.choices)


def propose(report: Report, paths: Sequence[Path], model: Checkpoint, limits: Limits) -> Proposal:
    """What an ABI file of these graphs may say, which are of one emitter and of this model. Called in a child process.

    Raises InputError that names a file which cannot be read.
    """
    report("reading the graphs")
    read = [_read(path, model) for path in paths]
    _one_emitter(read)
    run = _Run(report, model, limits, read)
    if any(r.known for r in read):
        for one in run.order:
            run.look(one)
    said = sorted(
        (s for r in read for choice in r.choices for s in run.said(choice)),
        key=lambda s: (s.place.section, s.place.index),
    )
    proposal = Proposal(tuple(dict.fromkeys(said)), _phases(read), tuple(run.verified), run.tries, run.tokens)
    return replace(proposal, refused=_refused(proposal, read, model))


class _Run:
    """Looks for what computes right, graph by graph, and keeps what it has found."""

    def __init__(self, report: Report, model: Checkpoint, limits: Limits, read: Sequence[_Read]) -> None:
        self._report, self._model, self._limits = report, model, limits
        self._until = time.monotonic() + limits.seconds
        # A prefill shows most at once.
        self.order = sorted((r for r in read if r.known), key=lambda r: r.subject.phase == "decode")
        self.fixed: dict[Names, Option] = {}
        self.verified: list[Verified] = []
        self.tries = 0
        # Of a choice, what else was run in its place: its entries, and whether it computes the same.
        self._others: dict[Names, list[tuple[Option, bool]]] = {}
        ports = [p for r in read for p in r.subject.signature.arguments]
        size = sum(int(np.prod(p.shape)) * DTYPE_BYTES[p.dtype] for p in ports)
        self._loaded = Loaded(model, MEMORY * size)
        windows = [w for w in model.config.windows if w is not None]
        masked = any("window_mask" in str(o.entries) for r in read for c in r.choices for o in c.options)
        self.tokens = min(min(windows) + 2, LONGEST) if windows and masked else TOKENS

    def look(self, read: _Read) -> None:
        """Look for what one graph computes right with; weights that another has shown stay, unless nothing does with them."""
        name = read.subject.path.name
        truth = self._truth()
        self._report(f"{name}: compiling it")
        trial = Trial(
            read.subject, self._model, names_of(self._model.config), shapes_of(self._model), truth, self._loaded
        )
        kept = tuple(
            Choice(c.places, (self.fixed[c.places],)) if c.places in self.fixed else c for c in read.choices
        )  # fmt: skip
        best: tuple[Search, Picked, Error] | None = None
        for choices in dict.fromkeys((kept, read.choices)):
            # Weights with which another graph computes right are not doubted for long.
            tries = self._limits.tries if best is None else min(DOUBTED, self._limits.tries)
            search = self._search(trial, choices, tries, name)
            found = search.best()
            self.tries += len(search.seen)
            if found and (best is None or search.seen[found].score < best[2].score):
                best = search, found, search.seen[found]
            if best and best[2].close:
                break
        if best is None:
            self.verified.append(Verified(name, Error(why="no assignment fits the types of all its arguments")))
            return
        search, picked, error = best
        self.verified.append(Verified(name, error))
        for choice, j in zip(search.choices, picked, strict=True):
            if len(choice.options) > 1 or choice.places not in self.fixed:
                self.fixed[choice.places] = choice.options[j]
        if error.close:
            self._doubt(search, picked, error)

    def _search(self, trial: Trial, choices: Sequence[Choice], tries: int, name: str) -> Search:
        def run(picked: Picked) -> Error:
            return trial.error(entries_of(choices, picked))

        def place(picked: Picked, choice: Choice) -> int:
            ports = [p.index for p in _ports(trial.subject.signature, choice, self._model.config.num_hidden_layers)]
            return trial.reach(entries_of(choices, picked), ports)

        def report(line: str) -> None:
            self._report(f"{name}: {line}")

        return Search(choices, run, tries, self._until, report, place)

    def _doubt(self, search: Search, picked: Picked, error: Error) -> None:
        """Run what else would fit in the place of each guess: what computes the same is said to."""
        for i, choice in enumerate(search.choices):
            for j in _near(choice, choice.options[picked[i]]):
                other = search.instead(picked, i, j)
                if other is None or (other not in search.seen and time.monotonic() > self._until):
                    continue
                before = len(search.seen)
                another = search.tried(other)
                self.tries += len(search.seen) - before
                same = another.close and another.score[1] <= error.score[1] + 0.5 * len(error.relative)
                self._others.setdefault(choice.places, []).append((choice.options[j], same))

    def said(self, choice: Choice) -> list[Said]:
        """The entries of a choice, with how sure each is."""
        option = self.fixed.get(choice.places, choice.options[0])
        tried = self._others.get(choice.places)
        near = [(choice.options[j], None) for j in _near(choice, option)] if tried is None else tried
        found = []
        for i, place in enumerate(choice.places):
            others = {str(o.entries[i]): same for o, same in near if o.entries[i] != option.entries[i]}
            found.append(Said(place, option.entries[i], tuple(others.items()), option.why))
        return found

    def _truth(self) -> AnchorTruth:
        """Hugging Face's caches and logits over some tokens."""
        config = self._model.config
        asked = tuple(a for a in anchors(config) if split(a)[1] in CACHES or a == "lm_head")
        tokens = np.random.default_rng(11).integers(0, config.vocab_size, self.tokens).tolist()
        self._report("asking Hugging Face")
        return anchor_truths(self._model, [Sequenced(tuple(tokens), 0, asked)], self._report)[0]


def _ports(signature: Signature, choice: Choice, layers: int) -> list[Port]:
    """The arguments that a weight's choice is of."""
    (place,) = choice.places
    first = signature.arguments[place.index]
    groups = grouped(signature.arguments, layers)
    return next(([*g.members.values()] for g in groups if g.key == place.key), [first])


def _near(choice: Choice, option: Option) -> list[int]:
    """The options that names and types leave as well: two at most."""
    least = max(option.cost, min(o.cost for o in choice.options))
    found = [
        j for j, o in enumerate(choice.options)
        if o.entries != option.entries and o.cost < least + NEAR and not o.tags - option.tags - PLAIN
    ]  # fmt: skip
    return found[:2]


def entries_of(choices: Sequence[Choice], picked: Picked) -> dict[str, dict[str, Entry]]:
    """What an assignment says, by the sections of an ABI file."""
    entries: dict[str, dict[str, Entry]] = {}
    for choice, j in zip(choices, picked, strict=True):
        for place, entry in zip(choice.places, choice.options[j].entries, strict=True):
            entries.setdefault(place.section, {})[place.key] = entry
    return entries


def _refused(proposal: Proposal, read: Sequence[_Read], model: Checkpoint) -> str:
    """Why the file is refused where it says all; empty where it is not."""
    if proposal.unknown:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "abi.toml"
        path.write_text(written(proposal, [], ""), encoding="utf-8")
        try:
            abi = read_abi_file(path)
            for one in read:
                bound(one.subject.path, one.subject.text, abi, model)
        except InputError as error:
            return error.what
    return ""


# ---- reading


def _read(path: Path, model: Checkpoint) -> _Read:
    text = read_text(path)
    signature = _main_function(signatures_of(text, path), path)
    config = model.config
    groups = grouped(signature.arguments, config.num_hidden_layers)
    known = sources_for(groups, config, sources(config, shapes_of(model)))
    fits: dict[Port, bool] = {}
    for group in groups:
        fits |= dict.fromkeys(group.members.values(), bool(weight_options(group, config, known)))
    interface = interface_of(signature, config, fits)
    offered = in_order(
        [(group, weight_options(group, config, known)) for group in interface.weights],
        known,
        _read_first(text, signature),
    )
    weights = tuple(
        Choice((group.place("weights"),), tuple(options) or (Option((UNKNOWN,), 9.0),)) for group, options in offered
    )
    return _Read(Subject(path, text, signature, interface.sizes.phase), interface, weights)


def _read_first(text: str, signature: Signature) -> dict[int, int]:
    """Where in a function's text each argument is read first: layers are written in the order of computation."""
    written = list(ssa_names(text, signature.function))
    found = re.search(rf"@{re.escape(quoted_symbol(signature.function))}\s*\(", text)
    if not found or len(written) != len(signature.arguments):
        return {}
    index = {name: i for i, name in enumerate(written)}
    times = dict.fromkeys(index, 0)
    first: dict[int, int] = {}
    for use in _VALUE.finditer(text, found.start()):
        name = use[1]
        if name in index and index[name] not in first:
            times[name] += 1
            if times[name] == 2:  # once in the signature
                first[index[name]] = use.start()
        if len(first) == len(index):
            break
    return first


def _main_function(signatures: Mapping[str, Signature], path: Path) -> Signature:
    """The function that takes the weights: the one with most arguments."""
    if not signatures:
        raise InputError("has no function", path, "name a graph of a model")
    return max(signatures.values(), key=lambda s: len(s.arguments))


def _one_emitter(read: Sequence[_Read]) -> None:
    """Raises InputError where two graphs are of one phase and of different functions: one file cannot say both."""
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
        pattern = ""
        if all(s.startswith(phase) for s in stems) and not any(s.startswith(phase) for s in others):
            pattern = f"{phase}*"
        elif len(stems) == 1 and not set("*?[") & set(stems[0]):
            pattern = stems[0]
        found[phase] = functions[phase], pattern if same else ""
    return found
