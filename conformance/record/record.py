"""The record of a run, from the evidence: the one thing that reports are drawn from. Its form is core/record.py's."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, Literal, TypeVar, cast

import numpy as np

from hloracle.backends.devices import KINDS, Device
from hloracle.conformance.checks.check import Check
from hloracle.conformance.checks.of_configurations import LOGIT_PHASES, is_near_tie, limit, logits_spread, mismatches
from hloracle.conformance.evidence import Run
from hloracle.conformance.graphs.facts import GraphFacts
from hloracle.conformance.graphs.listing import Reading, Scope
from hloracle.conformance.graphs.sources import Emitter, Files, Source
from hloracle.conformance.matrix import ORACLE, Configuration
from hloracle.conformance.questions.prompts import Prompt, Readable
from hloracle.conformance.runs.code_generation import Compiled
from hloracle.conformance.runs.configurations import Outcome
from hloracle.conformance.runs.inside import AnchorOutcome, Rows
from hloracle.conformance.runs.speed import CONTEXT, Contender
from hloracle.conformance.runs.speed import TOKENS as SPEED_TOKENS
from hloracle.conformance.verdict.agreement import cells, sentences
from hloracle.conformance.verdict.localization import Localization
from hloracle.conformance.verdict.repair import Repair
from hloracle.conformance.verdict.reproducer import Reproducer
from hloracle.conformance.verdict.verdict import Verdict
from hloracle.core import record
from hloracle.core.abi import Graph
from hloracle.core.cache import digest
from hloracle.core.environment import MemoryWatch, describe
from hloracle.core.spread import Spread
from hloracle.core.tolerances import ANCHOR_FLOORS, NARROW_ROWS
from hloracle.reference.huggingface.truth import Truth
from hloracle.reference.model.anchors import split
from hloracle.reference.model.config import Config
from hloracle.reference.model.weights import parts_in, weight_shapes

T = TypeVar("T")
REFERENCE_ARITHMETIC = "float32, and float64 for its noise, by PyTorch on the processor, no TF32"


def _filled(form: type[T], value: Any, **others: Any) -> T:
    """A typed dictionary of the record, from the attributes of the same names; and from what else is given by name."""
    return cast(T, {key: others[key] if key in others else getattr(value, key) for key in form.__annotations__})


def record_of(run: Run, verdict: Verdict, memory: MemoryWatch, damaged: list[str]) -> record.Record:
    """See core/record.py."""
    settings, context, evidence, checkpoint = run.settings, run.context, run.evidence, run.model
    config, found, device = checkpoint.config, evidence.localization, run.context.device
    readable = Readable(checkpoint.directory)
    return {
        "schema": record.SCHEMA,
        "passed": verdict.passed,
        "mutant": context.fault.id if context.fault else "",
        "verdict": _verdict(verdict),
        "model": {
            "name": settings.model,
            "directory_name": checkpoint.adapted.directory_name or checkpoint.directory.name,
            "digest": checkpoint.digest,
            "architecture": config.architecture,
            "own_type": checkpoint.adapted.own_type,
            "ignored_keys": list(checkpoint.adapted.ignored_keys),
            "parameters": sum(int(np.prod(shape)) for shape in weight_shapes(config).values()),
            "config": _flat(config),
        },
        "settings": {
            "device": str(device),
            "precision": settings.precision if settings.compute == "f32" else settings.compute,
            "compute": cast(Literal["f32", "bf16", "f16"], settings.compute),
            "kv": cast(Literal["compute", "int8"], checkpoint.kv),
            "ring": next((abi.ring for abi in evidence.abis), 0),
            "layout": evidence.choice.layout,
            "fused": evidence.choice.fused,
            "on_device": evidence.choice.on_device,
            "arithmetic": {"reference": REFERENCE_ARITHMETIC, "device": evidence.arithmetic},
            "builds": {
                "decode": str(evidence.choice.build("decode")),
                "prefill": str(evidence.choice.build("prefill")),
            },
            "chosen": cast(Literal["untuned", "tuned", "asked"], evidence.chosen),
            "ignored": evidence.ignored,
            "tokens": settings.tokens,
            "capacity": evidence.capacity if evidence.abis else settings.capacity,
            "buckets": list(evidence.buckets),
            "threads": context.threads,
            "quick": settings.quick,
            "backends": list(context.names),
            "timeout": context.timeout,
            "custom_calls": [
                {"target": t.name, "library": t.library.name, "sha256": t.sha256} for t in context.targets
            ],
        },
        "sources": _sources(run),
        "prompts": [_prompt(p, evidence.truths.get(p.id), readable) for p in evidence.prompts],
        "tokens": {id: _tokens(id, truth, evidence.outcomes, readable) for id, truth in evidence.truths.items()},
        "configurations": [_configuration(run, o, not (settings.busy or settings.quick)) for o in evidence.outcomes],
        "matrix": _matrix(run),
        "checks": [check_row(c) for c in evidence.checks],
        "anchors": [_rows(o.configuration, o.prompt, r) for o in evidence.anchored for r in o.rows]
        + ([_rows(found.plan.suspect, found.plan.at.prompt.id, r) for r in found.rows] if found else []),
        "floors": cast(
            list[record.Floor], next((o.floors for o in evidence.anchored if o.floors), found.floors if found else [])
        ),
        "spreads": spread_rows(evidence.outcomes, evidence.truths, evidence.anchored),
        "compiled": compiled_rows(evidence.compiled),
        "localization": _localization(found) if found else None,
        "canary": _canary(evidence.anchored),
        "graphs": [
            _graph_row(source, g, f, next((r for s, shown, r in evidence.shown if (s, shown) == (source, g)), None))
            for source, graphs in evidence.graphs.items()
            for g, f in graphs
        ],
        "listings": [_listing(source, graph, reading, _layer(verdict)) for source, graph, reading in evidence.shown],
        "block": _block(evidence.shown, _layer(verdict), found.phase if found else ""),
        "speed": _speed(run),
        "timings": cast(list[record.Timing], context.progress.timings),
        "reused": [
            *(t["stage"] for t in context.progress.timings if t["reused"]),
            *(f"{o.configuration.id}, streams" for o in evidence.outcomes if o.streams_reused),
        ],
        "damaged": damaged,
        "memory": {
            "peak_bytes": memory.peak_bytes,
            "processes": [{"name": name, "peak_bytes": n} for name, n in memory.at_peak],
        },
        "environment": cast(record.Environment, {**describe(), "device": _device(device)}),
        "families": [],  # of a run of one model; those of many are in suite.py
    }


def _verdict(verdict: Verdict) -> record.Verdict:
    level, because = verdict.sure or ("", [])
    return _filled(
        record.Verdict,
        verdict,
        **{"class": verdict.class_},
        compared=list(verdict.compared),
        not_compared=list(verdict.not_compared),
        evidence=list(verdict.evidence),
        confidence={"level": level, "because": because} if verdict.sure else None,
    )


def _matrix(run: Run) -> record.Matrix:
    matrix, found = run.matrix, cells(run.evidence)
    return {
        "backends": [
            _filled(record.Witness, matrix[b.name], said=gate.said, passed=gate.check.status == "passed")
            for b, gate in run.evidence.gates
        ],
        "cells": [_filled(record.Cell, cell) for cell in found],
        "sentences": sentences(matrix, found, run.evidence),
    }


def _sources(run: Run) -> list[record.Source]:
    """The judged sources, and the oracle where it gave graphs."""
    found: list[record.Source] = [
        {"id": s.name, "title": _title(s), "judged": True, "brought": isinstance(s, Files)} for s in run.sources
    ]
    if run.evidence.graphs.get(ORACLE) or not run.evidence.graphs:
        found.insert(0, {"id": ORACLE, "title": "JAX oracle's graph", "judged": False, "brought": False})
    return found


def _title(source: Source) -> str:
    return "Emitted graph" if isinstance(source, Emitter) else f"{source.name.capitalize()}'s graph"


def check_row(check: Check) -> record.Check:
    """A check for the record."""
    return _filled(record.Check, check)


def compiled_rows(rows: Sequence[Compiled]) -> list[record.Compiled]:
    """What came of graphs that were compiled for targets that nothing was run on."""
    return [
        _filled(
            record.Compiled, row, compiler=KINDS[row.kind].compiler, status="compiled" if row.ok else "failed",
            arithmetic=list(row.arithmetic),
        )
        for row in rows
    ]  # fmt: skip


def _device(device: Device) -> record.RemoteDevice | None:
    """What IREE ran the judged graphs on, where that is not the processor."""
    facts = device.facts
    if not device.remote:
        return None
    capability = ".".join(map(str, facts.capability)) if facts and facts.capability else None
    return {
        "name": facts.name if facts else device.kind, "target": device.target or None, "capability": capability,
        "memory_bytes": facts.memory if facts else None, "driver": facts.driver if facts else "",
        "submitted": ("as graphs" if device.graphs else "on a stream") if device.of_cuda else "",
    }  # fmt: skip


def _flat(config: Config) -> dict[str, record.Scalar]:
    """The config for a reader: no lists, and nothing that is not used."""
    found = {k: v for k, v in dataclasses.asdict(config).items() if k not in ("layers", "experts", "latent")}
    for name, some in (("experts", config.experts), ("latent", config.latent)):
        found |= {f"{name}.{k}": v for k, v in dataclasses.asdict(some).items()} if some else {}
    names = {rope: "rope" if len(config.ropes) == 1 else f"rope-{i}" for i, rope in enumerate(config.ropes, 1)}
    for rope, name in names.items():
        usual = dataclasses.asdict(type(rope)("", 0.0, 0))
        used = {k: v for k, v in dataclasses.asdict(rope).items() if v != usual[k]}
        found |= {f"{name}.{k}": ", ".join(map(str, v)) if isinstance(v, tuple) else v for k, v in used.items()}
    kinds = [
        ", ".join([
            names[layer.rope] if layer.rope else "no RoPE", f"window {layer.window}" if layer.window else "all keys",
            *(["experts"] if layer.sparse else []),
        ])
        for layer in config.layers
    ]  # fmt: skip
    runs = [(kind, len(list(same))) for kind, same in itertools.groupby(kinds)]
    return {
        **found,
        "num_hidden_layers": len(kinds),
        "layers": "; ".join(f"{count} x ({kind})" for kind, count in runs),
    }


def _rows(configuration: Configuration, prompt: str, rows: Rows) -> record.Anchors:
    return _filled(record.Anchors, rows, configuration=configuration.id, source=configuration.source, prompt=prompt)


def spread_rows(
    outcomes: Sequence[Outcome], truths: dict[str, Truth], anchored: Sequence[AnchorOutcome]
) -> list[record.Spread]:
    """How errors are spread, of the logits and of each kind of anchor, in each configuration and phase that was compared."""
    rows: list[record.Spread] = []
    for outcome in outcomes:
        for phase, part in LOGIT_PHASES.items():
            if found := logits_spread(outcome, truths, part):
                rows.append(_spread(outcome.configuration, phase, "logits", found))
    for looked_at in anchored:
        for matrix in looked_at.rows:
            worst: dict[str, str] = {}
            for anchor, one in matrix.spreads.items():
                kind = split(anchor)[1]
                if one.rows >= NARROW_ROWS and one.share >= matrix.spreads[worst.setdefault(kind, anchor)].share:
                    worst[kind] = anchor
            rows += [_spread(looked_at.configuration, matrix.phase, a, matrix.spreads[a]) for a in worst.values()]
    return rows


def _spread(configuration: Configuration, phase: str, anchor: str, spread: Spread) -> record.Spread:
    figures = {"float32": spread.single, "narrow": spread.narrow, "graph": spread.graph, "limit": spread.limits}
    found = {name: cast(record.Figures, some._asdict()) for name, some in figures.items()}
    return _filled(record.Spread, spread, configuration=configuration.id, phase=phase, anchor=anchor, **found)


def _localization(found: Localization) -> record.Localization:
    plan, written = found.plan, found.reproducer
    return _filled(
        record.Localization,
        found,
        configuration=plan.suspect.id,
        source=plan.suspect.source,
        reason=plan.reason,
        prompt=plan.at.prompt.id,
        step=plan.at.step,
        interpreted=_filled(record.Word, found.interpreted) if found.interpreted else None,
        reproducer=_reproducer(written) if written else None,
        candidates=[_filled(record.Candidate, candidate) for candidate in found.candidates],
        repair=_repair(found.repair) if found.repair else None,
    )


def _repair(repair: Repair) -> record.Repair:
    return _filled(record.Repair, repair, lines=[_filled(record.ChangedLine, line) for line in repair.lines])


def _reproducer(written: Reproducer) -> record.Reproducer:
    backends = [_filled(record.ReproducerOn, backend) for backend in written.backends]
    return _filled(record.Reproducer, written, backends=backends)


def _canary(anchored: Sequence[AnchorOutcome]) -> record.Canary | None:
    # Of several the one that was missed, if any was.
    for canary in sorted((o.canary for o in anchored if o.canary), key=lambda canary: canary.caught):
        detail = f"Off by a factor of {canary.factor:g} there: {canary.worst:.3g} floors, where {ANCHOR_FLOORS:g} are allowed"
        return _filled(record.Canary, canary, detail=detail)
    return None


def _prompt(prompt: Prompt, truth: Truth | None, readable: Readable) -> record.Prompt:
    tokens = truth.tokens if truth else []
    reference: record.Reference = {
        "tokens": tokens,
        "pieces": readable.pieces(tokens),
        "text": readable.text(tokens),
        "gaps": [round(float(g), 6) for g in truth.gaps] if truth else [],
    }
    return _filled(record.Prompt, prompt, prompt=prompt.name, token_ids=list(prompt.token_ids), reference=reference)


def _tokens(id: str, truth: Truth, outcomes: Sequence[Outcome], readable: Readable) -> record.Answers:
    answers: dict[str, record.Answer] = {}
    for outcome in outcomes:
        if id not in outcome.prompts:
            continue
        result = outcome.prompts[id]
        steps = mismatches(result.tokens, truth)
        answers[outcome.configuration.id] = {
            "agreed": len(result.tokens) - len(steps),
            "total": len(truth.tokens),
            "tokens": result.tokens,
            "pieces": readable.pieces(result.tokens),
            "text": readable.text(result.tokens),
            "first_mismatch": steps[0] if steps else None,
            "logit_error": float(np.max(result.errors)) if result.errors else None,
            "logit_floor": truth.floor if result.errors else None,
            "logit_limit": limit(truth) if result.errors else None,
            "errors": [float(f"{e:.4g}") for e in result.errors],
            "disagreements": len(steps),
            "near_ties": sum(is_near_tie(s, result.tokens[s], truth) for s in steps),
            "largest_gap": max((float(truth.gaps[s]) for s in steps), default=None),
        }
    # A configuration that did not run agrees on nothing.
    agreed = min((a["agreed"] for a in answers.values()), default=0) if len(answers) == len(outcomes) else 0
    return {"agreed": agreed, "total": len(truth.tokens), "configurations": answers}


def _configuration(run: Run, outcome: Outcome, by_itself: bool) -> record.Configuration:
    results, truths = outcome.prompts, run.evidence.truths
    total = sum(len(t.tokens) for t in truths.values())
    seconds = sum(r.seconds for r in results.values())
    return {
        "id": outcome.configuration.id,
        "source": outcome.configuration.source,
        "backend": outcome.configuration.backend,
        "head": cast(record.Head, outcome.configuration.head),
        "status": cast(Literal["ran", "reused", "failed"], outcome.status),
        "message": outcome.message,
        "agreed": sum(len(r.tokens) - len(mismatches(r.tokens, truths[name])) for name, r in results.items()),
        "total": total,
        "seconds": round(outcome.seconds, 3),
        # Only the production configuration is run as it would be used; the others also compare logits.
        "tokens_per_second": round(total / seconds, 1)
        if seconds and by_itself and outcome.configuration.head == "token"
        else None,
        "peak_bytes": outcome.peak_bytes,
        "programs": _programs(run, outcome),
    }


def _programs(run: Run, outcome: Outcome) -> list[record.Program]:
    """What the compiler made of a configuration's graphs; nothing where its backend does not say."""
    source = outcome.configuration.source
    return [
        {"graph": _graph_id(source, graph), "seconds": made.seconds, "bytes": made.size}
        for graph, _ in run.evidence.graphs[source]
        if (made := outcome.programs.get(graph.name))
    ]


def _graph_id(source: str, graph: Graph) -> str:
    abi = graph.abi
    return "/".join([source, abi.phase, *([str(abi.bucket)] if abi.phase != "decode" else []), abi.head])


def _graph_row(source: str, graph: Graph, facts: GraphFacts, reading: Reading | None) -> record.Graph:
    abi = graph.abi
    return {
        "id": _graph_id(source, graph),
        "source": source,
        "phase": cast(record.Phase, abi.phase),
        "head": cast(record.Head, abi.head),
        "bucket": abi.bucket if abi.phase != "decode" else None,
        "ops": facts.ops,
        "op_total": facts.total,
        "op_kinds": len(facts.ops),
        "weights": len({part for weight in abi.weights for part in parts_in(weight.weight)}),
        "flops": _total([scope.flops for scope in reading.scopes]) if reading else None,
        "bytes": _total([scope.bytes for scope in reading.scopes]) if reading else None,
        "text_bytes": len(graph.text.encode()),
        "digest": digest(graph.text),
        "scopes": facts.scopes,
    }


def _total(figures: Sequence[int | None]) -> int | None:
    """Their sum; None where one of them is not known."""
    known = [n for n in figures if n is not None]
    return sum(known) if len(known) == len(figures) else None


# ---- the graphs as a reader goes through them


def _layer(verdict: Verdict) -> int:
    """The layer that is shown where all are alike: the one that is wrong."""
    return (split(verdict.anchor)[0] if verdict.anchor else None) or 0


def _listing(source: str, graph: Graph, reading: Reading, layer: int) -> record.Listing:
    """The scopes in the order of computation; of layers that are alike, `layer` or else the first stands for all."""
    alike: dict[tuple[str, str], dict[int | None, Scope]] = {}
    for scope in reading.scopes:
        number, part = split(scope.anchor)
        key = (scope.anchor, "") if number is None else (f"layers.*.{part}", scope.signature)
        alike.setdefault(key, {})[number] = scope
    scopes: list[record.Scope] = []
    for layers in alike.values():
        scope = layers.get(layer) or next(iter(layers.values()))
        scopes.append(_filled(record.Scope, scope, layers=sorted(n for n in layers if n is not None)))
    return {"graph": _graph_id(source, graph), "name": graph.name, "scopes": scopes}


def _block(shown: Sequence[tuple[str, Graph, Reading]], layer: int, phase: str) -> record.Block | None:
    """A layer of the judged graph: of the phase that was taken apart, or else of the one listed first."""
    for source, graph, reading in sorted(shown, key=lambda entry: entry[1].abi.phase != phase):
        if source != ORACLE and layer in reading.blocks:
            nodes, edges = reading.blocks[layer]
            return {"graph": _graph_id(source, graph), "layer": layer, "nodes": nodes, "edges": edges}
    return None


# What decides how fast a graph runs, besides itself: the packages of its backend's compiler.
PACKAGES = {"xla": ["jax", "jaxlib"], "iree": ["iree-base-compiler", "iree-base-runtime"]}


def _speed(run: Run) -> record.Speed:
    evidence = run.evidence
    return {
        "reason": "" if evidence.speed else evidence.speed_reason,
        "context": CONTEXT if evidence.speed else 0,
        "tokens": SPEED_TOKENS if evidence.speed else 0,
        "contenders": [_contender(run, contender) for contender in evidence.speed],
    }


def _contender(run: Run, contender: Contender) -> record.Contender:
    family = run.context.matrix[contender.backend].family if contender.backend else ""
    packages = PACKAGES.get(family, []) if family else ["transformers", "torch"]
    return _filled(record.Contender, contender, packages=packages)
