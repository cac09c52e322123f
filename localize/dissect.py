"""Finds where a wrong configuration goes wrong: the first wrong anchor, and the operation inside it.

An anchor is looked at in two ways: in a run of the whole graph, where errors accumulate, and by itself on right inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from hloracle.backends.session import IDLE, Backend, Session
from hloracle.backends.words import INTERPRETER
from hloracle.core.abi import SCALES, Graph, cache_of
from hloracle.core.child import Report
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.int8 import MOST
from hloracle.core.spread import Spread
from hloracle.core.tolerances import ANCHOR_FLOORS, NARROW_ROWS
from hloracle.localize.anatomy import Anatomy, Returned, Step, Subgraph, anatomy_of, peer_of
from hloracle.localize.blame import Blame, Named, found_by_likeness, found_by_repair
from hloracle.localize.drive import drive
from hloracle.localize.mend import Mended, Mender
from hloracle.localize.operations import Found, by_itself, inputs_of, miscompiled, refused, wrong_in_the_whole
from hloracle.localize.situation import (
    JUDGED,
    ReferenceRun,
    Situation,
    Worst,
    distance,
    slot_errors,
    spread_over,
)
from hloracle.localize.unlike import other_table, unlike
from hloracle.localize.witness import evaluations, word_of
from hloracle.localize.word import Word
from hloracle.localize.workbench import Workbench
from hloracle.reference.model.anchors import CACHES, anchors, split
from hloracle.reference.model.contract import PHASES, PROMPT
from hloracle.repair.subject import CANNOT

# Decode steps whose values are looked at, the failing one last: enough to see whether an error grows.
STEPS = 8
MOST_NAMED = 3  # operations that may be to blame


@dataclass(frozen=True)
class Side:
    """The graphs of one source on one backend: a prefill, a decode, or both.

    others: graphs of other buckets, which a session that runs these has too.
    """

    source: str
    backend: str
    graphs: tuple[Graph, ...]
    others: tuple[Graph, ...] = ()

    @property
    def id(self) -> str:
        """`SOURCE/BACKEND`, as messages name this side."""
        return f"{self.source}/{self.backend}"

    def graph(self, phase: str) -> Graph | None:
        """The graph of a phase, if this side has one."""
        return next((g for g in self.graphs if g.abi.phase == phase), None)


@dataclass(frozen=True)
class Question:
    """What a dissection is to find out.

    suspect: the side that is wrong. trusted: the side that is right: graphs of another source, or the same graphs on
      another backend.
    early_exit: stop when the first wrong anchor is known: no anchor after it is tried by itself, no graph whose run is
      right, and none of the trusted side.
    repairs: of a source's fault, put its graphs right.
    """

    suspect: Side
    trusted: Side | None
    early_exit: bool = False
    repairs: bool = True

    @property
    def of_compiler(self) -> bool:
        """Whether both sides have the same graphs, so that a compiler is at fault and not a source."""
        return self.trusted is not None and self.trusted.source == self.suspect.source


@dataclass(frozen=True)
class Matrix:
    """The errors of one graph's run, in noise floors: a row for each anchor, a column for each position.

    errors: float64 [anchors, positions]; NaN where an anchor has no value at a position.
    spreads: of what computes in less than float32, how the errors of an anchor are spread over the rows that are compared.
    """

    phase: str
    positions: tuple[int, ...]
    anchors: tuple[str, ...]
    errors: np.ndarray
    spreads: dict[str, Spread] = field(default_factory=dict)

    def worst(self) -> dict[str, float]:
        """The largest error of each anchor."""
        return {a: float(np.nanmax(row)) for a, row in zip(self.anchors, self.errors, strict=True)}


# Floors of an error by itself that is taken for roundings: to become what is not allowed it would have to grow fourfold. It decides
# which anchor is named, and not whether one is wrong.
ROUNDINGS = ANCHOR_FLOORS / 4


@dataclass(frozen=True)
class Dissection:
    """What a dissection found.

    anchor, position: the first wrong anchor of `phase`, and the token at which it is wrong; None where nothing is known.
    first_accumulated, first_local: the first wrong anchor of the whole run, and of the anchors by themselves.
    matrices: the errors of the whole run. local, peer: the error of each (phase, anchor) by itself, in noise floors, of
      the suspect and of the trusted side.
    found: the wrong operation. worst: the element of the anchor that is furthest off. reproducer: what shows the fault.
    fusion_dependent: every anchor is right by itself, and wrong only as the compiler fuses it with others.
    misused: the graphs are right, and the session gave them wrong inputs.
    interpreted: what StableHLO's interpreter computes of the suspect's graph at `anchor`, where that is wrong by itself.
    candidates: the operations whose change makes the anchor right, the best first. sole: there is one alone.
    mended: the suspect's graphs put right, beginning with the first candidate; None where that was not tried, or not reached.
    notes: what else a reader has to know, in sentences.
    """

    phase: str
    first_accumulated: str | None
    first_local: str | None
    matrices: tuple[Matrix, ...]
    local: dict[tuple[str, str], float]
    peer: dict[tuple[str, str], float]
    notes: tuple[str, ...]
    anchor: str | None = None
    position: int | None = None
    found: Found | None = None
    worst: Worst | None = None
    reproducer: Found | None = None
    fusion_dependent: bool = False
    misused: bool = False
    interpreted: Word | None = None
    candidates: tuple[Named, ...] = ()
    sole: bool = False
    mended: Mended | None = None


def run_with_outputs(
    side: Side, backend: Backend, run: ReferenceRun, report: Report, chosen: Sequence[str] | None = None
) -> list[Matrix]:
    """Run the sequence as a session runs it, on graphs that return the values at anchors: the accumulated errors.

    Args:
      chosen: the anchors whose values are returned, all when None. Caches are looked at in any case.
    """
    graphs, names = [], {}
    for graph in side.graphs:
        anatomy = anatomy_of(graph, run.config)
        outputs = [a for a in anatomy.anchors if a != "token" and (chosen is None or a in chosen)]
        names[graph.abi.phase] = outputs
        report(f"{side.id}: compiling {graph.name} with {len(outputs)} intermediate outputs")
        graphs.append(anatomy.with_outputs(outputs))
    session = Session(backend, [*graphs, *side.others], run.weight)
    run = run.of(graphs[0].abi)
    tokens, length = run.truth.tokens, run.length
    _use(session, tokens[: max(length, 1)][::-1], run.bucket)
    report(f"{side.id}: {length} tokens and {len(tokens) - length} steps, looking at every anchor")
    watched = _Watched(session, run, names)
    matrices = []
    if phase := next((p for p in PROMPT if p in names and length), ""):
        matrices.append(watched.prompt(phase))
    elif "decode" in names and length:
        session.stream_prompt(tokens[:length])
    else:
        session.reset()
    if "decode" in names and length < len(tokens):
        matrices.append(watched.steps())
    return matrices


@dataclass(frozen=True)
class _Watched:
    """A session of graphs that return values at anchors. names: those anchors, by phase."""

    session: Session
    run: ReferenceRun
    names: dict[str, list[str]]

    def prompt(self, phase: str) -> Matrix:
        """Run the prompt: a column for each of its tokens; of an extend for each of the last part of it."""
        run, tokens, session = self.run, self.run.truth.tokens[: self.run.length], self.session
        situation = run.prompt(phase, session.capacity)
        if phase == "prefill":
            row, head = 0, session.prefill(tokens, run.bucket)
        else:
            row, first = min(JUDGED, session.batch - 1), run.begun
            session.positions[row] = 0
            for start in range(0, first, run.bucket):
                session.extend(tokens[start : min(start + run.bucket, first)], run.bucket, row, len(tokens))
            head = session.extend(tokens[first:], run.bucket, row, len(tokens))
        columns = situation.rows
        rows = self._errors(situation, head)
        for anchor, errors in self._cache_errors(row, len(tokens)).items():
            if (
                anchor in rows
            ):  # of an extend also of what was there before; what a ring holds no more has a figure here alone
                which = situation.counted_rows(anchor)
                errors[which] = np.fmax(errors[which], rows[anchor])
            rows[anchor] = errors[columns]
        for anchor, errors in rows.items():
            if len(errors) == 1 < len(columns):  # the head sees the last row alone
                rows[anchor] = np.append(np.full(len(columns) - 1, np.nan), errors)
        ordered = [a for a in anchors(run.config) if a in rows]
        errors = np.stack([rows[a] for a in ordered])
        return Matrix(phase, tuple(columns), tuple(ordered), errors, self._spread([situation], [self.session.taps()]))

    def steps(self) -> Matrix:
        """Decode the other tokens one by one: a column for each of the last STEPS."""
        run, n = self.run, len(self.run.truth.tokens)
        columns: list[dict[str, float]] = []
        seen: list[tuple[Situation, dict[str, np.ndarray]]] = []
        first = max(run.length, n - STEPS)
        if self.session.batch > 1:  # another prompt was there
            self.session.positions = [0] * self.session.batch
        for position in range(run.length, n):
            situation = run.step(self.session.capacity, position)
            head = self._step(situation)
            if position < first:
                continue
            if run.truth.compute != "f32":
                seen.append((situation, self.session.taps()))
            column = {a: float(np.max(e)) for a, e in self._errors(situation, head).items()}
            if position == n - 1:
                for anchor, errors in self._cache_errors(min(JUDGED, self.session.batch - 1), position + 1).items():
                    column[anchor] = max(column.get(anchor, 0.0), float(np.nanmax(errors)))
            columns.append(column)
        ordered = [a for a in anchors(run.config) if a in columns[-1]]
        errors = np.array([[c.get(a, np.nan) for c in columns] for a in ordered])
        spreads = self._spread(*zip(*seen, strict=True))
        for i, anchor in enumerate(ordered):  # one row of a step says nothing of how errors are spread; all steps do
            if anchor in spreads and spreads[anchor].rows >= NARROW_ROWS:
                errors[i, -1] = np.fmax(errors[i, -1], spreads[anchor].floors)
        return Matrix("decode", tuple(range(first, n)), tuple(ordered), errors, spreads)

    def _spread(
        self, situations: Sequence[Situation] = (), taps: Sequence[dict[str, np.ndarray]] = ()
    ) -> dict[str, Spread]:
        """How errors are spread over all rows of these calls, by anchor; of a cache over those of the last one."""
        if self.run.truth.compute == "f32":
            return {}
        found: dict[str, Spread] = {}
        for anchor in (a for a in self.names[situations[0].phase] if all(a in some for some in taps)):
            which = slice(-1, None) if split(anchor)[1] in CACHES else slice(None)
            calls = zip(situations[which], taps[which], strict=True)
            rows, spreads = zip(*(s.row_spreads(anchor, some[anchor]) for s, some in calls), strict=True)
            together = [row for some in rows for row in some]
            found[anchor] = spread_over(self.run.truth, self.run.config, anchor, together, np.concatenate(spreads))
        return found

    def _step(self, situation: Situation) -> int | np.ndarray:
        """Decode in each row of the batch what the situation has there; gives the heads of all rows, or the only one."""
        session, tokens, weight = self.session, self.run.truth.tokens, self.run.weight
        if session.batch == 1:
            return session.decode_step(tokens[situation.position])
        if session.positions[JUDGED] != situation.position and session.buckets:
            session.prefill(tokens[: situation.position], self.run.bucket, JUDGED)
        elif session.positions[JUDGED] != situation.position:
            session.stream_prompt(tokens[: situation.position], JUDGED)
        given = situation.value("token", weight).tolist()
        # What the other rows hold is not looked at here.
        active = {row: position for row, position in enumerate(situation.positions) if position != IDLE}
        for row, position in active.items():
            session.positions[row] = position
        found = session.step({row: given[row] for row in active})
        return np.stack([np.asarray(found.get(row, found[JUDGED])) for row in range(session.batch)])

    def _errors(self, situation: Situation, head: int | np.ndarray) -> dict[str, np.ndarray]:
        """Of the last call, by anchor; infinite where the session did not even run the graph that was asked for."""
        outputs, wanted = self.session.taps(), self.names[situation.phase]
        if not outputs.keys() >= set(wanted):
            return {a: np.full(len(situation.rows), np.inf) for a in wanted}
        found = {a: situation.errors(a, outputs[a]) for a in wanted}
        if isinstance(head, np.ndarray) and "lm_head" in found:
            found["lm_head"] = np.maximum(found["lm_head"], situation.errors("lm_head", head))
        return found

    def _cache_errors(self, row: int, filled: int) -> dict[str, np.ndarray]:
        """The errors of a row's returned caches: `k_cache.0` and so on -> a figure for each slot that is filled.

        NaN for a position that a ring holds no more.
        """
        run, found = self.run, {}
        holds = self.session.holds(row)[:, :filled]
        for part, cache in zip(CACHES, self.session.caches(row=row), strict=False):
            for layer in range(run.config.num_hidden_layers):
                anchor, slots = f"{part}.{layer}", cache[layer, :, :filled]
                whole = slots.shape[1] == filled  # what the session has not filled is as wrong as can be
                found[anchor] = np.full(filled, np.nan if whole else np.inf)
                if whole:
                    which = np.flatnonzero(holds[layer])
                    found[anchor][which] = slot_errors(run.truth, run.config, anchor, slots, which)
        return found


def _use(session: Session, tokens: Sequence[int], bucket: int) -> None:
    """Run another prompt first, and a step after it: what stays of it in a session must not show in the next one."""
    if session.buckets:
        session.prefill(tokens, bucket)
    if session.decodes and session.position < session.capacity:
        session.decode_step(tokens[0])


def local_errors(
    anatomy: Anatomy, situation: Situation, bench: Workbench, stop: bool = False
) -> tuple[dict[str, float], dict[str, str]]:
    """Each anchor's error, in noise floors, on right inputs; and the compiler's message for each that cannot be run.

    Args:
      stop: after the first that is wrong.
    """
    found: dict[str, float] = {}
    failed: dict[str, str] = {}
    value = partial(situation.value, weight=bench.weight)
    for anchor in anatomy.anchors:
        try:
            got = bench.run(anatomy.subgraph(anchor).graph, value)
        except ToolchainError as error:
            failed[anchor] = error.message
            continue
        found[anchor] = situation.error_of(anchor, got)
        if stop and not found[anchor] <= ANCHOR_FLOORS:
            break
    tail = anatomy.tail()
    if tail is not None:
        with suppress(ToolchainError):
            off = situation.error_of("lm_head", bench.run(tail.graph, value))
            found["lm_head"] = max(found.get("lm_head", 0.0), off)
    for role in anatomy.graph.abi.caches:
        returned = anatomy.returned(role)
        if returned is None:  # it is returned as its last layer left it
            continue
        with suppress(ToolchainError):  # its subgraphs say what does not compile
            last = situation.config.num_hidden_layers - 1
            errors = situation.cache_errors(role, last, bench.run(returned.step.graph, value)[0])
            for layer, off in zip(situation.layers(role), errors, strict=True):
                anchor = f"{cache_of(role)}.{layer}"
                found[anchor] = max(found.get(anchor, 0.0), float(off))
    return found, failed


@dataclass(frozen=True)
class _Apart:
    """A side with its graphs taken apart, by phase, and the workbench that runs their subgraphs."""

    side: Side | None
    parts: dict[str, Anatomy]
    bench: Workbench

    def has(self, phase: str, anchor: str) -> bool:
        return phase in self.parts and anchor in self.parts[phase].values


@dataclass(frozen=True)
class _Scene:
    """All that a dissection looks at. situations: of each phase, the call whose values are known.

    witness: the workbench of StableHLO's interpreter. mender: of the suspect's graphs.
    """

    question: Question
    suspect: _Apart
    trusted: _Apart
    situations: dict[str, Situation]
    witness: Callable[[], Workbench]
    mender: Mender
    report: Report

    def first_wrong(self, errors: dict[tuple[str, str], float]) -> tuple[str, str] | None:
        """The first (phase, anchor) of the suspect whose error is beyond the limit."""
        for phase in PHASES:
            for anchor in self.suspect.parts[phase].anchors if phase in self.suspect.parts else ():
                if not errors.get((phase, anchor), 0.0) <= ANCHOR_FLOORS:
                    return phase, anchor
        return None

    def missing(self) -> list[str]:
        """The anchors that a graph of the suspect lacks, of those that the trusted side has in this phase."""
        return [
            a for phase, mine in self.suspect.parts.items()
            for a in self.trusted.parts.get(phase, mine).anchors if a not in mine.values
        ]  # fmt: skip


def dissect(
    question: Question, run: ReferenceRun, weights: frozenset[str], backends: Callable[[str], Backend], report: Report
) -> Dissection:
    """Take the suspect apart: see `Question`.

    Args:
      run: the sequence at whose last token the suspect failed.
      weights: the names of the suspect's weights, as they are and as its graphs take them.
      backends: opens a backend by its name.
    """
    scene = _scene(question, run, weights, backends, report)
    suspect = question.suspect
    matrices: list[Matrix] = []
    notes: list[str] = []
    try:
        matrices = run_with_outputs(suspect, scene.suspect.bench.backend, run, report)
    except ToolchainError as error:
        notes.append(f"{suspect.id} could not be run with intermediate outputs: {error.message}")
    accumulated = {(m.phase, a): e for m in matrices for a, e in m.worst().items()}
    local, peer, failures = _local_errors(scene, accumulated, ran=bool(matrices))
    notes += failures
    notes += [f"{suspect.source}'s graph has no anchor {a}" for a in dict.fromkeys(scene.missing())]

    worst_run, by_itself = scene.first_wrong(accumulated), scene.first_wrong(local)
    base = Dissection(
        phase=(by_itself or worst_run or ("decode", ""))[0],
        first_accumulated=worst_run[1] if worst_run else None,
        first_local=by_itself[1] if by_itself else None,
        matrices=tuple(matrices),
        local=local,
        peer=peer,
        notes=tuple(notes),
    )
    if by_itself:
        phase, anchor = by_itself
        if gone := _cause_that_is_missing(scene, phase, anchor):
            note = f"{anchor} is computed from something else than {gone}, which the graph does not have"
            return replace(base, anchor=gone, notes=(*notes, note))
        return _inside(scene, base, phase, anchor)

    def driven() -> float:
        report("driving the graphs without a session")
        return drive(suspect.graphs, scene.suspect.bench.backend, run)

    return _without_local_error(scene, base, worst_run, driven)


def _scene(
    question: Question, run: ReferenceRun, weights: frozenset[str], backends: Callable[[str], Backend], report: Report
) -> _Scene:
    suspect, trusted = question.suspect, question.trusted
    capacity = suspect.graphs[0].abi.capacity
    bench = Workbench(backends(suspect.backend), run.weight, weights)
    other = bench
    if trusted is not None and trusted.backend != suspect.backend:
        other = Workbench(backends(trusted.backend), run.weight, weights)

    def by_phase(side: Side | None) -> dict[str, Graph]:
        return {g.abi.phase: g for g in (side.graphs if side else ()) if run.length or g.abi.phase == "decode"}

    run = run.of(suspect.graphs[0].abi)
    situations = {phase: run.prompt(phase, capacity) for phase in PROMPT}
    situations["decode"] = run.step(capacity, len(run.truth.tokens) - 1)
    witness = functools.cache(lambda: Workbench(backends(INTERPRETER), run.weight, weights))
    oracles = {g.identity: g for g in trusted.graphs} if trusted and trusted.source != suspect.source else {}
    mender = Mender(run, tuple(oracles.values()), report)
    mine = {phase: anatomy_of(g, run.config) for phase, g in by_phase(suspect).items()}
    theirs = {p: peer_of(mine[p], g) if p in mine else anatomy_of(g, run.config) for p, g in by_phase(trusted).items()}
    sides = _Apart(suspect, mine, bench), _Apart(trusted, theirs, other)
    return _Scene(question, *sides, situations, witness, mender, report)


def _local_errors(
    scene: _Scene, accumulated: dict[tuple[str, str], float], ran: bool
) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float], list[str]]:
    """The error of each (phase, anchor) by itself, of the suspect and of the trusted side; and what could not be run.

    Args:
      ran: the whole could be compiled and run.
    """
    stop = scene.question.early_exit
    wrong = {phase for (phase, _), error in accumulated.items() if not error <= ANCHOR_FLOORS}
    local: dict[tuple[str, str], float] = {}
    peer: dict[tuple[str, str], float] = {}
    notes: list[str] = []
    for apart, into in ((scene.suspect, local), (scene.trusted, peer)):
        for phase in (p for p in PHASES if p in apart.parts):
            if stop and (into is peer or scene.first_wrong(local) or (wrong and phase not in wrong)):
                continue
            graph = apart.parts[phase].graph
            scene.report(f"{apart.side.id if apart.side else ''}: each anchor of {graph.name} by itself")
            errors, failed = local_errors(apart.parts[phase], scene.situations[phase], apart.bench, stop)
            into.update({(phase, a): e for a, e in errors.items()})
            if into is local and not ran:  # what keeps a subgraph from running may be what keeps the whole from it
                into.update({(phase, a): float("inf") for a in failed})
            notes += [f"{a} of {graph.name} could not be run by itself: {m}" for a, m in failed.items()]
    return local, peer, notes


def _cause_that_is_missing(scene: _Scene, phase: str, anchor: str) -> str:
    """The anchor that the suspect lacks and a wrong one should have read, or "".

    What a graph does not have at all can only show in what should have read it; the first of them is the cause.
    """
    mine = scene.suspect.parts[phase]
    gone, reader, missing = "", anchor, set(scene.missing()) - mine.values.keys()
    if mine.graph.written:  # somebody else's graph may well have no such value: then it has none in any layer
        there = {split(a)[1] for a in mine.values}
        missing = {a for a in missing if split(a)[1] in there}
    while scene.trusted.has(phase, reader):
        read = [a.name for a in scene.trusted.parts[phase].subgraph(reader).graph.abi.arguments]
        lost = next((a for a in read if a in missing), "")
        if not lost:
            break
        gone = reader = lost
    return gone


def _inside(scene: _Scene, base: Dissection, phase: str, anchor: str) -> Dissection:
    """The operation inside the subgraph that is wrong by itself."""
    word = _interpreted(scene, base, anchor)
    together = (
        word is not None and word.right and not scene.question.of_compiler
    )  # the graph is right, compilers are not
    phase = word.phase if word and together else phase
    scene.report(f"looking for the operation inside {anchor}")
    situation, anatomy, bench = scene.situations[phase], scene.suspect.parts[phase], scene.suspect.bench
    subgraph, value = anatomy.subgraph(anchor), partial(situation.value, weight=bench.weight)
    peer = scene.trusted.parts[phase] if scene.trusted.has(phase, anchor) else None
    base = replace(base, phase=phase, anchor=anchor, interpreted=word)
    found: Found | None = None
    try:
        got = bench.run(subgraph.graph, value)
    except ToolchainError:
        found = refused(anatomy, subgraph, value, bench)
        return replace(base, found=found, reproducer=found)
    try:
        if scene.question.of_compiler:
            found = miscompiled(anatomy, subgraph, value, bench, scene.trusted.bench)
        elif together:
            found = miscompiled(anatomy, subgraph, value, bench, scene.witness())
        else:
            blame: Blame | None = None
            with suppress(*CANNOT):  # what has no meaning in NumPy
                base, found, blame = _blamed(scene, base, anatomy, anchor)
            if peer and (found is None or (blame and blame.invented)):
                off = situation.errors_by_result(anchor, got)
                wrong = [i for i, error in enumerate(off) if not error <= ANCHOR_FLOORS]
                look = unlike if found is None else other_table
                found = look(anatomy, subgraph, peer, value, bench, wrong) or found
    except (ToolchainError, InputError) as error:
        note = f"the operations of {anchor} could not be run one by one: {error}"
        base = replace(base, notes=(*base.notes, note))
    right = not _wrong(situation, anchor, got)
    for returned in map(anatomy.returned, situation.written(anchor) if right else ()):
        if returned is not None and (lost := _lost_on_return(situation, returned, bench)):
            return replace(base, found=lost, reproducer=lost)
    if anchor == "lm_head" and right and (tail := anatomy.tail()):
        found = _changed_on_return(anatomy, situation, tail, bench)
        return replace(base, position=situation.rows[-1], found=found, reproducer=found)
    # A graph that is wrong as written is shown by the whole subgraph, against the truth; a compiler by the operation.
    shown = found if found is not None and found.expected is not None else None
    padding = None
    if peer:
        with suppress(ToolchainError):
            padding = scene.trusted.bench.run(peer.subgraph(anchor).graph, value)[0]
    result, expected, tolerance = _right(situation, anchor, got, padding)
    if shown is None and (steps := anatomy.steps(subgraph)):
        step, why = (found.step, found.why) if found else (steps[-1], "the truth has another value there")
        inputs = inputs_of(subgraph.graph, value)
        shown = Found(step, subgraph.graph, inputs, expected, got[result], why, tolerance, result)
    rows = situation.rows
    worst: Worst | None
    if result:  # of a cache, what attention reads is right
        worst = _furthest(got[result].reshape(expected.shape), expected)
        position = min(worst.index[2], rows[-1])
    else:
        worst = None if anchor == "token" else situation.worst(anchor, got[0])
        errors = situation.errors(anchor, got[0])
        position = rows[int(np.argmax(errors))] if len(errors) == len(rows) else rows[-1]
    return replace(base, position=position, found=found, worst=worst, reproducer=shown)


def _blamed(
    scene: _Scene, base: Dissection, anatomy: Anatomy, anchor: str
) -> tuple[Dissection, Found | None, Blame | None]:
    """The operation whose change makes an anchor right, where there is one; and what would put all graphs right.

    And what came of looking for it, where changes were tried.
    """
    mender, graph = scene.mender, anatomy.graph
    suspect = mender.suspect(graph)
    if suspect.is_right(anchor):
        note = f"{anchor} is right where nothing is rounded, so that no change of an operation was tried"
        return replace(base, notes=(*base.notes, note)), None, None
    blame = mender.blame(graph, anchor)
    if not blame.candidates:
        note = f"no change of one operation makes {anchor} right: {blame.tried} were tried"
        if not blame.tried:
            note = f"{anchor} has an operation that cannot be evaluated in NumPy, so that no change of it was tried"
        elif blame.ended:
            note += ", until the time for that was over"
        return replace(base, notes=(*base.notes, note)), found_by_likeness(suspect, anchor), blame
    best = blame.candidates[0]
    plain = anatomy.plain()
    named = [Named.of(plain, c) for c in blame.candidates[:MOST_NAMED]]
    mended = None
    if scene.question.repairs and not graph.written:
        scene.report("putting the graphs right")
        side = scene.question.suspect
        mended = mender.mended((*side.graphs, *side.others), (graph, best.repairs[0].edit), named[0].words)
    found = found_by_repair(suspect, blame)
    return replace(base, candidates=tuple(named), sole=blame.only, mended=mended), found, blame


def _interpreted(scene: _Scene, base: Dissection, anchor: str) -> Word | None:
    """What the interpreter computes there, in the phase that is less work of those in which it is wrong by itself.

    None where what is wrong is no subgraph of its own: a cache that is returned otherwise than it was written.
    """
    asked = []
    for phase, anatomy in scene.suspect.parts.items():
        if base.local.get((phase, anchor), 0.0) <= ANCHOR_FLOORS:
            continue
        found = _wrong_subgraph(scene, phase, anatomy, anchor)
        if found is not None:
            asked.append((evaluations(found), phase, found))
    if not asked:
        return None
    _, phase, subgraph = min(asked, key=lambda one: one[:2])
    scene.report(f"StableHLO's interpreter computes {anchor} of {phase}")
    try:
        bench = scene.witness()
    except ToolchainError as error:
        return Word(phase, anchor, None, error.message)
    return word_of(
        subgraph, scene.situations[phase], partial(scene.situations[phase].value, weight=bench.weight), bench
    )


def _wrong_subgraph(scene: _Scene, phase: str, anatomy: Anatomy, anchor: str) -> Subgraph | None:
    """Which subgraph the suspect computes wrong where an anchor is wrong by itself: its own, or what comes after the last."""
    situation, bench, subgraph = scene.situations[phase], scene.suspect.bench, anatomy.subgraph(anchor)
    try:
        if _wrong(situation, anchor, bench.run(subgraph.graph, partial(situation.value, weight=bench.weight))):
            return subgraph
    except ToolchainError:
        return subgraph
    return anatomy.tail() if anchor == "lm_head" else None


def _wrong(situation: Situation, anchor: str, got: Sequence[np.ndarray]) -> bool:
    """Whether any result of an anchor's subgraph is wrong."""
    return not situation.error_of(anchor, got) <= ANCHOR_FLOORS


def _furthest(got: np.ndarray, expected: np.ndarray) -> Worst:
    """The element that is furthest off."""
    off = distance(got, expected)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(off)), off.shape))
    return Worst(index, float(got[index]), float(expected[index]))


def _lost_on_return(situation: Situation, returned: Returned, bench: Workbench) -> Found | None:
    """Every layer wrote to the cache, or its scales, what it should, and something else is returned; None where that is right too."""
    step = returned.step
    value, last = partial(situation.value, weight=bench.weight), situation.config.num_hidden_layers - 1
    got = bench.run(step.graph, value)[0]
    if float(np.max(situation.cache_errors(step.anchor, last, got))) <= ANCHOR_FLOORS:
        return None
    expected = situation.cache(step.anchor, last)
    inputs = inputs_of(step.graph, value)
    why = "each layer wrote what it should, and this is not what the last one left"
    first = f"{cache_of(step.anchor)}.{situation.layers(step.anchor)[0]}"
    limit = ANCHOR_FLOORS * float(np.max(situation.floors(first)))
    if situation.kv == "int8":
        limit = limit / MOST if step.anchor in SCALES else 1.0
    # Of several operations that make it, nothing shows which is wrong.
    return Found(
        step, step.graph, inputs, expected, got, why, limit, by="witness" if returned.passed_on else "likeness"
    )


def _changed_on_return(anatomy: Anatomy, situation: Situation, tail: Subgraph, bench: Workbench) -> Found | None:
    """The logits are right at their anchor, and something else is returned: the first operation that changes them."""
    value = partial(situation.value, weight=bench.weight)
    expected = situation.anchor("lm_head")
    steps = anatomy.steps(tail)
    results = by_itself(steps, value, bench)
    of_logits = [i for i, r in enumerate(results) if r.size == expected.size and r.dtype == expected.dtype]
    wrong = [i for i in of_logits if _wrong(situation, "lm_head", [results[i].reshape(expected.shape)])]
    if not wrong:
        return None
    index = wrong[0]
    graph, got = anatomy.prefix(tail, index), results[index]
    why = "the logits are right at lm_head, and this changes them before they are returned"
    limit = ANCHOR_FLOORS * float(np.max(situation.floors("lm_head")[situation.rows[-1:]]))
    return Found(steps[index], graph, inputs_of(graph, value), expected.reshape(got.shape), got, why, limit)


def _right(
    situation: Situation, anchor: str, got: list[np.ndarray], padding: np.ndarray | None
) -> tuple[int, np.ndarray, float]:
    """Which result of a subgraph is wrong, what it should be, and how far off is still right. `padding`: see `corrected`."""
    layer, _ = split(anchor)
    own, *of_caches = situation.errors_by_result(anchor, got)
    if of_caches and own <= ANCHOR_FLOORS:
        assert layer is not None
        roles, which = situation.written(anchor), int(np.argmax(of_caches))
        limit = ANCHOR_FLOORS * float(np.max(situation.floors(anchor)))
        if situation.kv == "int8":  # the next integer, or as much of a scale
            limit = limit / MOST if roles[which] in SCALES else 1.0
        return 1 + which, situation.cache(roles[which], written=layer), limit
    expected, tolerance = situation.corrected(anchor, got[0], padding)
    return 0, expected.reshape(got[0].shape), tolerance


def _without_local_error(
    scene: _Scene, base: Dissection, worst_run: tuple[str, str] | None, driven: Callable[[], float]
) -> Dissection:
    """Every anchor is right by itself: so it is the whole graph as compiled, or what the session gives it.

    Args:
      worst_run: the first (phase, anchor) that is wrong in the run of the whole.
      driven: the largest error, in noise floors, of the graphs when they are called without a session.
    """
    scene.report("every anchor is right by itself: looking at whole graphs")
    ran = bool(base.matrices)
    suspect = scene.question.suspect
    for phase, anatomy in scene.suspect.parts.items():
        anchor = _bisect(scene, anatomy, scene.situations[phase], refuses=not ran)
        if anchor:
            note = "right by itself, wrong in the whole graph: it depends on what the compiler makes of both together"
            fused = ran and worst_run is None
            base = replace(base, phase=phase, anchor=anchor, fusion_dependent=fused, notes=(*base.notes, note))
            return _inside_the_whole(scene, base)
    if worst_run:
        phase, anchor = worst_run
        returned = [e for m in base.matrices for a, e in m.worst().items() if a == "lm_head" or split(a)[1] in CACHES]
        if all(error <= ANCHOR_FLOORS for error in returned):  # what graphs return tells nothing of the session, then
            if apart := _furthest_by_itself(scene, base, phase, anchor):
                anchor, error = apart
                note = (
                    f"the errors of its anchors add up; the largest by itself is that of {anchor}, {error:.1f} floors"
                )
            else:
                note = "each of its anchors is right by itself, and together they are not"
            return replace(base, phase=phase, anchor=anchor, notes=(*base.notes, note))
        misused = driven() <= ANCHOR_FLOORS
        note = "each of its anchors is right by itself, and the whole is wrong without the session too"
        if misused:
            note = "the graphs are right when they are called without the session: it gives them something else"
        return replace(base, phase=phase, anchor=anchor, misused=misused, notes=(*base.notes, note))
    if not ran and not scene.question.early_exit and (refusal := _refused_whole(suspect, scene.suspect.bench)):
        note = f"no part of {refusal.step.graph.name} is refused by itself"
        return replace(base, reproducer=refusal, notes=(*base.notes, note))
    return replace(base, notes=(*base.notes, "nothing is wrong when looked at: the fault did not show again"))


def _furthest_by_itself(scene: _Scene, base: Dissection, phase: str, last: str) -> tuple[str, float] | None:
    """The anchor up to a last one whose error by itself is the largest, if that is more than roundings make."""
    order = scene.suspect.parts[phase].anchors
    errors = {a: base.local.get((phase, a), 0.0) for a in order[: order.index(last) + 1]}
    anchor = max(errors, key=errors.__getitem__)
    return (anchor, errors[anchor]) if errors[anchor] > ROUNDINGS else None


def _refused_whole(suspect: Side, bench: Workbench) -> Found | None:
    """The first graph of a side that its backend does not compile, where no part of it shows that."""
    for graph in (*suspect.graphs, *suspect.others):
        try:
            bench.load(graph)
        except ToolchainError as error:
            step = Step("func.func", graph, (), "", 0, "")
            why = f"{bench.backend.name} refuses {graph.name}: {error.message}"
            return Found(step, graph, {}, None, np.zeros(0), why)
    return None


def _inside_the_whole(scene: _Scene, base: Dissection) -> Dissection:
    """The operation of the anchor that a compiler gets wrong only with all that comes before it."""
    if not scene.question.of_compiler or scene.question.early_exit:
        return base
    assert base.anchor
    scene.report(f"looking for the operation inside {base.anchor}, in the whole graph")
    anatomy, bench, situation = scene.suspect.parts[base.phase], scene.suspect.bench, scene.situations[base.phase]
    value = partial(situation.value, weight=bench.weight)
    try:
        found = wrong_in_the_whole(anatomy, anatomy.subgraph(base.anchor), value, bench, scene.trusted.bench)
    except (ToolchainError, InputError) as error:
        note = f"the operations of {base.anchor} could not be run in the whole graph: {error}"
        return replace(base, notes=(*base.notes, note))
    return replace(base, found=found, reproducer=found)


def _bisect(scene: _Scene, anatomy: Anatomy, situation: Situation, refuses: bool) -> str | None:
    """The first anchor at which the graph cut off there is wrong, given right inputs; None if the last one is right.

    Args:
      refuses: the whole does not compile, so that a part which does not is wrong too.
    """
    bench = scene.suspect.bench
    value = partial(situation.value, weight=bench.weight)

    def wrong(anchor: str) -> bool:
        scene.report(f"{anatomy.graph.name} cut off at {anchor}")
        try:
            return _wrong(situation, anchor, bench.run(anatomy.cut(anchor), value))
        except ToolchainError:
            return refuses

    order = [a for a in anatomy.anchors if a != "token"]
    if not order or not wrong(order[-1]):
        return None
    low, high = -1, len(order) - 1  # right at low, wrong at high
    while high - low > 1:
        middle = (low + high) // 2
        if wrong(order[middle]):
            high = middle
        else:
            low = middle
    return order[high]
