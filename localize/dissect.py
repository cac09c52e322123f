"""Where a wrong cell goes wrong: the first anchor, by itself and in its run, and the operation inside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from hloracle.backends.session import Backend, Session
from hloracle.core.abi import Graph
from hloracle.core.child import Report
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.tolerances import ANCHOR_FLOORS
from hloracle.localize.anatomy import Anatomy, Piece, Step, anatomy_of
from hloracle.localize.drive import drive
from hloracle.localize.operations import Found, by_itself, miscompiled, refused, unlike
from hloracle.localize.situation import Situation, Worst
from hloracle.localize.workbench import Workbench
from hloracle.reference.huggingface.anchor_truth import AnchorTruth
from hloracle.reference.model.anchors import anchors, split
from hloracle.reference.model.config import Config

Weight = Callable[[str], np.ndarray]
# Decode steps whose values are looked at, the failing one last: enough to see whether an error grows.
STEPS = 8
# In the order in which a session runs them.
PHASES = ("prefill", "decode")


@dataclass(frozen=True)
class Side:
    """One source's graphs on one backend: a prefill, a decode, or both.

    others: of other buckets, which a session that runs these has at hand too.
    """

    source: str
    backend: str
    graphs: tuple[Graph, ...]
    others: tuple[Graph, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.source}/{self.backend}"

    def graph(self, phase: str) -> Graph | None:
        return next((g for g in self.graphs if g.abi.phase == phase), None)


@dataclass(frozen=True)
class Question:
    """What is to be found out.

    suspect: what is wrong; trusted: what is right, and how it differs: another graph, or the same on another backend.
    length: of the prompt, with which the truth's sequence begins; its last token is at the step that failed.
    brief: the place is enough: by itself, no anchor is tried after the first wrong one, nor in a graph whose run is right,
      nor of what is trusted.
    """

    suspect: Side
    trusted: Side | None
    length: int
    bucket: int
    brief: bool = False

    @property
    def of_compiler(self) -> bool:
        return self.trusted is not None and self.trusted.source == self.suspect.source


@dataclass(frozen=True)
class Matrix:
    """Errors in floors of one cell's run: a row for each anchor, a column for each position."""

    phase: str
    positions: tuple[int, ...]
    anchors: tuple[str, ...]
    errors: np.ndarray

    def worst(self) -> dict[str, float]:
        return {a: float(np.nanmax(row)) for a, row in zip(self.anchors, self.errors, strict=True)}


@dataclass(frozen=True)
class Dissection:
    """What was found. Errors are in floors, by (phase, anchor); `found` is the operation, with what shows it."""

    phase: str
    anchor: str | None
    position: int | None
    first_accumulated: str | None
    first_local: str | None
    matrices: tuple[Matrix, ...]
    local: dict[tuple[str, str], float]
    peer: dict[tuple[str, str], float]
    found: Found | None
    worst: Worst | None
    reproducer: Found | None
    fusion_dependent: bool = False
    misused: bool = False  # the graph is right, and the session gave it something wrong
    notes: tuple[str, ...] = field(default=())


def run_tapped(
    side: Side, backend: Backend, weight: Weight, truth: AnchorTruth, config: Config, length: int, bucket: int,
    report: Report, chosen: Sequence[str] | None = None,
) -> list[Matrix]:  # fmt: skip
    """Run the sequence as a session runs it, on graphs whose anchors are results: the errors that have accumulated.

    Args:
      length: of the prompt; the truth's other tokens are decoded one by one.
      chosen: the anchors, all when None.
    """
    graphs, names = [], {}
    for graph in side.graphs:
        anatomy = anatomy_of(graph, config)
        taps = [a for a in anatomy.anchors if a != "token" and (chosen is None or a in chosen)]
        names[graph.abi.phase] = taps
        report(f"{side.id}: compiling {graph.name} with {len(taps)} taps")
        graphs.append(anatomy.tapped(taps))
    session = Session(backend, [*graphs, *side.others], weight)
    abi = graphs[0].abi
    matrices = []
    tokens, n = truth.tokens, len(truth.tokens)
    _use(session, tokens[: max(length, 1)][::-1], bucket)
    report(f"{side.id}: {length} tokens and {n - length} steps, looking at every anchor")

    def caches(situation: Situation, filled: int) -> dict[str, np.ndarray]:
        """What the caches that the graph returned are off by: k_cache.0 -> a figure for each slot that is filled."""
        found = {}
        for part, cache in zip(("k_cache", "v_cache"), session.caches(), strict=True):
            for layer in range(config.num_hidden_layers):
                anchor, slots = f"{part}.{layer}", cache[layer, :, :filled]
                whole = slots.shape[1] == filled  # what the session has not filled is as wrong as can be
                found[anchor] = situation.slot_errors(anchor, slots) if whole else np.full(filled, np.inf)
        return found

    def errors_of(situation: Situation, head: int | np.ndarray) -> dict[str, np.ndarray]:
        """Of the last call, by anchor; infinite where the session did not even run the graph that was asked for."""
        taps, wanted = session.taps(), names[situation.phase]
        if not taps.keys() >= set(wanted):
            return {a: np.full(len(situation.rows), np.inf) for a in wanted}
        found = {a: situation.errors(a, taps[a]) for a in wanted}
        if isinstance(head, np.ndarray) and "lm_head" in found:
            found["lm_head"] = np.maximum(found["lm_head"], situation.errors("lm_head", head))
        return found

    if "prefill" in names and length:
        situation = Situation(config, truth, "prefill", bucket, bucket, abi.capacity, length=length)
        rows = errors_of(situation, session.prefill(tokens[:length], bucket))
        for anchor, errors in caches(situation, length).items():
            rows[anchor] = np.maximum(rows[anchor], errors) if anchor in rows else errors
        last = np.full(length, np.nan)
        for anchor, errors in rows.items():
            if len(errors) == 1 < length:  # the head sees the last row alone
                rows[anchor] = np.append(last[:-1], errors)
        ordered = [a for a in anchors(config) if a in rows]
        matrices.append(Matrix("prefill", tuple(range(length)), tuple(ordered), np.stack([rows[a] for a in ordered])))
    elif "decode" in names and length:
        session.stream_prompt(tokens[:length])
    else:
        session.reset()
    if "decode" in names:
        columns: list[dict[str, float]] = []
        first = max(length, n - STEPS)
        for position in range(length, n):
            head = session.decode_step(tokens[position])
            if position < first:
                continue
            situation = Situation(config, truth, "decode", 1, abi.capacity, abi.capacity, length, position)
            column = {a: float(np.max(e)) for a, e in errors_of(situation, head).items()}
            if position == n - 1:
                for anchor, errors in caches(situation, position + 1).items():
                    column[anchor] = max(column.get(anchor, 0.0), float(np.max(errors)))
            columns.append(column)
        if columns:
            ordered = [a for a in anchors(config) if a in columns[-1]]
            errors = np.array([[c.get(a, np.nan) for c in columns] for a in ordered])
            matrices.append(Matrix("decode", tuple(range(first, n)), tuple(ordered), errors))
    return matrices


def _use(session: Session, tokens: Sequence[int], bucket: int) -> None:
    """Run another prompt first, and a step after it: what stays of it in a session must not show in the next one."""
    can = session.capabilities
    if can.buckets:
        session.prefill(tokens, bucket)
    if can.decodes and session.position < can.capacity:
        session.decode_step(tokens[0])


def local_errors(
    anatomy: Anatomy, situation: Situation, bench: Workbench, report: Report, stop: bool = False
) -> tuple[dict[str, float], dict[str, str]]:
    """Each anchor's error when all that it is computed from is right; and why one could not be had.

    Args:
      stop: after the first that is wrong.
    """
    found: dict[str, float] = {}
    failed: dict[str, str] = {}

    def value(name: str) -> np.ndarray:
        return situation.value(name, bench.weight)

    for anchor in anatomy.anchors:
        try:
            got = bench.run(anatomy.piece(anchor).graph, value)
        except ToolchainError as error:
            failed[anchor] = error.message
            continue
        found[anchor] = float(np.max(situation.errors(anchor, got[0])))
        layer, part = split(anchor)
        if len(got) > 1:
            assert layer is not None
            whole = float(np.max(situation.cache_errors(part, layer, got[1], all_slots=True)))
            found[anchor] = max(found[anchor], whole)
        if stop and not found[anchor] <= ANCHOR_FLOORS:
            break
    tail = anatomy.tail()
    if tail is not None:
        with suppress(ToolchainError):
            (logits,) = bench.run(tail.graph, value)
            found["lm_head"] = max(found.get("lm_head", 0.0), float(np.max(situation.errors("lm_head", logits))))
    for part, errors in _returned_errors(anatomy, situation, bench).items():
        for layer, off in enumerate(errors):
            anchor = f"{part}.{layer}"
            found[anchor] = max(found.get(anchor, 0.0), float(off))
    return found, failed


def _returned_errors(anatomy: Anatomy, situation: Situation, bench: Workbench) -> dict[str, np.ndarray]:
    """Of a cache that is not returned as its last layer left it, what each layer of it is off by."""
    found = {}
    for part in ("k_cache", "v_cache"):
        step = anatomy.returned(part)
        if step is not None:
            with suppress(ToolchainError):  # its pieces say what does not compile
                got = bench.run(step.graph, lambda name: situation.value(name, bench.weight))[0]
                last = situation.config.num_hidden_layers - 1
                found[part] = situation.cache_errors(part, last, got, all_slots=True)
    return found


def dissect(
    question: Question, truth: AnchorTruth, config: Config, weight: Weight, weights: frozenset[str],
    backends: Callable[[str], Backend], report: Report,
) -> Dissection:  # fmt: skip
    """Take the suspect apart. See `Question`."""
    suspect, trusted = question.suspect, question.trusted
    capacity = suspect.graphs[0].abi.capacity
    n = len(truth.tokens)
    situations = {
        "prefill": Situation(config, truth, "prefill", question.bucket, question.bucket, capacity, question.length),
        "decode": Situation(config, truth, "decode", 1, capacity, capacity, question.length, n - 1),
    }
    notes: list[str] = []
    backend = backends(suspect.backend)
    bench = Workbench(backend, weight, weights)
    peer_bench = bench
    if trusted is not None and trusted.backend != suspect.backend:
        peer_bench = Workbench(backends(trusted.backend), weight, weights)

    matrices: list[Matrix] = []
    try:
        matrices = run_tapped(suspect, backend, weight, truth, config, question.length, question.bucket, report)
    except ToolchainError as error:
        notes.append(f"{suspect.id} could not be run with taps: {error.message}")
    accumulated = {(m.phase, a): e for m in matrices for a, e in m.worst().items()}
    local: dict[tuple[str, str], float] = {}
    peer: dict[tuple[str, str], float] = {}
    parts: dict[str, Anatomy] = {}
    peers: dict[str, Anatomy] = {}
    for side, of in ((suspect, parts), (trusted, peers)):
        graphs = side.graphs if side else ()
        of.update({g.abi.phase: anatomy_of(g, config) for g in graphs if question.length or g.abi.phase == "decode"})

    def first(errors: dict[tuple[str, str], float]) -> tuple[str, str] | None:
        for phase in PHASES:
            for anchor in parts[phase].anchors if phase in parts else ():
                if not errors.get((phase, anchor), 0.0) <= ANCHOR_FLOORS:
                    return phase, anchor
        return None

    wrong = [p for p in PHASES if any(phase == p and not e <= ANCHOR_FLOORS for (phase, _), e in accumulated.items())]
    for side, into, of, on in ((suspect, local, parts, bench), (trusted, peer, peers, peer_bench)):
        for phase in (p for p in PHASES if side and p in of):
            if question.brief and (side is trusted or first(local) or (wrong and phase not in wrong)):
                continue
            graph = of[phase].graph
            report(f"{side.id if side else ''}: each anchor of {graph.name} by itself")
            errors, failed = local_errors(of[phase], situations[phase], on, report, stop=question.brief)
            into.update({(phase, a): e for a, e in errors.items()})
            if side is suspect and not matrices:  # what keeps a piece from running may be what keeps the whole from it
                into.update({(phase, a): float("inf") for a in failed})
            notes += [f"{a} of {graph.name} could not be run by itself: {m}" for a, m in failed.items()]
    missing = [a for phase in parts for a in peers.get(phase, parts[phase]).anchors if a not in parts[phase].values]
    notes += [f"{suspect.source}'s graph has no anchor {a}" for a in dict.fromkeys(missing)]

    worst_run, by_itself = first(accumulated), first(local)
    base = Dissection(
        phase=(by_itself or worst_run or ("decode", ""))[0],
        anchor=None,
        position=None,
        first_accumulated=worst_run[1] if worst_run else None,
        first_local=by_itself[1] if by_itself else None,
        matrices=tuple(matrices),
        local=local,
        peer=peer,
        found=None,
        worst=None,
        reproducer=None,
        notes=tuple(notes),
    )
    if by_itself:
        # What a graph does not have at all can only show in what should have read it; the first of them is the cause.
        phase, anchor = by_itself
        gone, reader = "", anchor
        while phase in peers and reader in peers[phase].values:
            read = [a.name for a in peers[phase].piece(reader).graph.abi.arguments]
            lost = next((a for a in read if a in missing and a not in parts[phase].values), "")
            if not lost:
                break
            gone = reader = lost
        if gone:
            note = f"{anchor} is computed from something else than {gone}, which the graph does not have"
            return replace(base, anchor=gone, notes=(*notes, note))
        return _inside(base, *by_itself, question, parts, peers, situations, bench, peer_bench, report)

    def driven() -> float:
        report("driving the graphs without a session")
        return drive(suspect.graphs, backend, weight, truth, config, question.length)

    return _without_local_error(base, worst_run, bool(matrices), parts, situations, bench, driven, report)


def _inside(
    base: Dissection, phase: str, anchor: str, question: Question, parts: dict[str, Anatomy],
    peers: dict[str, Anatomy], situations: dict[str, Situation], bench: Workbench, peer_bench: Workbench,
    report: Report,
) -> Dissection:  # fmt: skip
    """The operation inside the piece that is wrong by itself."""
    report(f"looking for the operation inside {anchor}")
    situation, anatomy = situations[phase], parts[phase]
    piece = anatomy.piece(anchor)

    def value(name: str) -> np.ndarray:
        return situation.value(name, bench.weight)

    found: Found | None = None
    notes = list(base.notes)
    try:
        got = bench.run(piece.graph, value)
    except ToolchainError:
        found = refused(anatomy, piece, bench)
        return replace(base, phase=phase, anchor=anchor, found=found, reproducer=found)
    try:
        if question.of_compiler:
            found = miscompiled(anatomy, piece, value, bench, peer_bench)
        elif phase in peers and anchor in peers[phase].values:
            found = unlike(anatomy, piece, peers[phase], value, bench)
    except (ToolchainError, InputError) as error:
        notes.append(f"the operations of {anchor} could not be run one by one: {error}")
    _, part = split(anchor)
    returned = anatomy.returned(part) if part in ("k_cache", "v_cache") else None
    if returned is not None and not _wrong(situation, anchor, got):
        found = _lost_on_return(anatomy, situation, returned, bench)
        return replace(base, phase=phase, anchor=anchor, found=found, reproducer=found, notes=tuple(notes))
    if anchor == "lm_head" and not _wrong(situation, anchor, got) and (tail := anatomy.tail()):
        found = _changed_on_return(anatomy, situation, tail, bench)
        rows = situation.rows[-1:]
        return replace(
            base, phase=phase, anchor=anchor, position=rows[0], found=found, reproducer=found, notes=tuple(notes)
        )
    # A graph that is wrong as written is shown by the whole piece, against the truth; a compiler by the operation.
    shown = found if found is not None and found.expected is not None else None
    padding = None
    if phase in peers and anchor in peers[phase].values:
        with suppress(ToolchainError):
            padding = peer_bench.run(peers[phase].piece(anchor).graph, value)[0]
    result, expected, tolerance = _right(situation, anchor, got, padding)
    if shown is None and (steps := anatomy.steps(piece)):
        step, why = (found.step, found.why) if found else (steps[-1], "the truth has another value there")
        inputs = {a.name: value(a.name).reshape(a.shape) for a in piece.graph.abi.arguments}
        shown = Found(step, piece.graph, inputs, expected, got[result], why, tolerance, result)
    rows = situation.rows
    if result == 1:  # of a cache, what attention reads is right
        worst: Worst | None = _furthest(got[1], expected)
        assert worst
        position = min(worst.index[2], rows[-1])
    else:
        worst = None if anchor == "token" else situation.worst(anchor, got[0])
        errors = situation.errors(anchor, got[0])
        position = rows[int(np.argmax(errors))] if len(errors) == len(rows) else rows[-1]
    return replace(
        base, phase=phase, anchor=anchor, position=position, found=found, worst=worst, reproducer=shown,
        notes=tuple(notes),
    )  # fmt: skip


def _wrong(situation: Situation, anchor: str, got: list[np.ndarray]) -> bool:
    """Whether any result of an anchor's piece is wrong."""
    layer, part = split(anchor)
    errors = [float(np.max(situation.errors(anchor, got[0])))]
    if len(got) > 1:
        assert layer is not None
        errors.append(float(np.max(situation.cache_errors(part, layer, got[1], all_slots=True))))
    return not max(errors) <= ANCHOR_FLOORS


def _furthest(got: np.ndarray, expected: np.ndarray) -> Worst:
    """The element that is furthest off."""
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    distance = np.where(got == expected, 0, np.where(np.isnan(distance), np.inf, distance))
    at = np.unravel_index(int(np.argmax(distance)), distance.shape)
    index = tuple(int(i) for i in at)
    return Worst(index, float(got[index]), float(expected[index]))


def _lost_on_return(anatomy: Anatomy, situation: Situation, step: Step, bench: Workbench) -> Found:
    """Every layer wrote to the cache what it should, and something else is returned."""

    def value(name: str) -> np.ndarray:
        return situation.value(name, bench.weight)

    got = bench.run(step.graph, value)[0]
    expected = situation.cache(step.anchor, situation.config.num_hidden_layers - 1)
    inputs = {a.name: value(a.name).reshape(a.shape) for a in step.graph.abi.arguments}
    why = "each layer wrote what it should, and this is not the cache that the last one left"
    limit = ANCHOR_FLOORS * float(np.max(situation.floors(f"{step.anchor}.0")))
    return Found(step, step.graph, inputs, expected, got, why, limit)


def _changed_on_return(anatomy: Anatomy, situation: Situation, tail: Piece, bench: Workbench) -> Found | None:
    """The logits are right at their anchor, and something else is returned: the first operation that changes them."""

    def value(name: str) -> np.ndarray:
        return situation.value(name, bench.weight)

    expected = situation.anchor("lm_head")
    steps = anatomy.steps(tail)
    results = by_itself(steps, value, bench)
    of_logits = [i for i, r in enumerate(results) if r.size == expected.size and r.dtype == expected.dtype]
    wrong = [i for i in of_logits if _wrong(situation, "lm_head", [results[i].reshape(expected.shape)])]
    if not wrong:
        return None
    index = wrong[0]
    graph, got = anatomy.prefix(tail, index), results[index]
    inputs = {a.name: value(a.name).reshape(a.shape) for a in graph.abi.arguments}
    why = "the logits are right at lm_head, and this changes them before they are returned"
    limit = ANCHOR_FLOORS * float(np.max(situation.floors("lm_head")[situation.rows[-1:]]))
    return Found(steps[index], graph, inputs, expected.reshape(got.shape), got, why, limit)


def _right(
    situation: Situation, anchor: str, got: list[np.ndarray], padding: np.ndarray | None
) -> tuple[int, np.ndarray, float]:
    """Which result of a piece is wrong, what it should be, and how far off is still right. `padding`: see `corrected`."""
    layer, part = split(anchor)
    if len(got) > 1 and float(np.max(situation.errors(anchor, got[0]))) <= ANCHOR_FLOORS:
        assert layer is not None
        limit = ANCHOR_FLOORS * float(np.max(situation.floors(anchor)))
        return 1, situation.cache(part, written=layer), limit
    expected, tolerance = situation.corrected(anchor, got[0], padding)
    return 0, expected.reshape(got[0].shape), tolerance


def _without_local_error(
    base: Dissection, worst_run: tuple[str, str] | None, ran: bool, parts: dict[str, Anatomy],
    situations: dict[str, Situation], bench: Workbench, driven: Callable[[], float], report: Report,
) -> Dissection:  # fmt: skip
    """Every anchor is right by itself: so it is the whole graph as compiled, or what the session gives it.

    Args:
      ran: the whole could be compiled and run, with taps.
      driven: the largest error, in floors, of the graphs when they are called without a session.
    """
    report("every anchor is right by itself: looking at whole graphs")
    for phase, anatomy in parts.items():
        anchor = _bisect(anatomy, situations[phase], bench, not ran, report)
        if anchor:
            note = "right by itself, wrong in the whole graph: it depends on what the compiler makes of both together"
            fused = ran and worst_run is None
            return replace(base, phase=phase, anchor=anchor, fusion_dependent=fused, notes=(*base.notes, note))
    if worst_run:
        phase, anchor = worst_run
        misused = driven() <= ANCHOR_FLOORS
        note = "each of its anchors is right by itself, and the whole is wrong without the session too"
        if misused:
            note = "the graphs are right when they are called without the session: it gives them something else"
        return replace(base, phase=phase, anchor=anchor, misused=misused, notes=(*base.notes, note))
    return replace(base, notes=(*base.notes, "nothing is wrong when looked at: the fault did not show again"))


def _bisect(anatomy: Anatomy, situation: Situation, bench: Workbench, refuses: bool, report: Report) -> str | None:
    """The first anchor at which the graph cut off there is wrong, given right inputs; None if the last one is right.

    Args:
      refuses: the whole does not compile, so that a part which does not is wrong too.
    """

    def value(name: str) -> np.ndarray:
        return situation.value(name, bench.weight)

    def wrong(anchor: str) -> bool:
        report(f"{anatomy.graph.name} cut off at {anchor}")
        try:
            got = bench.run(anatomy.cut(anchor), value)[0]
        except ToolchainError:
            return refuses
        return not float(np.max(situation.errors(anchor, got))) <= ANCHOR_FLOORS

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
