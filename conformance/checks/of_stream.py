"""Checks of a decode graph in IREE's stream form, where every allocation and copy is explicit."""

from __future__ import annotations

import re

from hloracle.conformance.checks.check import Check, Question
from hloracle.conformance.matrix import EMITTER
from hloracle.core.abi import Graph

STREAM_CONSTANT = re.compile(r"(%\S+) = arith\.constant (\d+) : index")
# `stream.cmd.copy %source[%offset], %target[%offset], %length : ...`
STREAM_COPY = re.compile(r"stream\.cmd\.copy .*, (%\S+) : ")
# A buffer that a call makes for its results, as a donated cache never is: `...resource<external>{%length}`
STREAM_RESULT = re.compile(r"stream\.resource\.alloca? .*!stream\.resource<external>\{(%[^\s,}]+)\}")
# Before IREE schedules them, copies have these names; the text that is judged holds none.
STREAM_UNSCHEDULED = re.compile(r"stream\.(?:async\.(?:copy|clone|update|slice)|tensor\.(?:clone|update|slice))\b")


def caches_in_place(graph: Graph, stream_text: str, source: str = EMITTER) -> Check:
    """IREE's stream form of a decode graph copies nothing as large as one layer's keys or values, nor makes a buffer for it.

    The graph's head is the token: other results are the caches only.
    """
    question = Question("caches-in-place", "no copy of a cache in IREE's stream form of decode", source)
    caches = [graph.abi.results[graph.abi.result(name)] for name in graph.abi.caches]
    layer_bytes = min(cache.nbytes // cache.shape[0] for cache in caches)
    whole = max(cache.nbytes for cache in caches)
    sizes = {name: int(size) for name, size in STREAM_CONSTANT.findall(stream_text)}

    def largest(lengths: list[str]) -> int:
        # A length that is not a constant cannot be bounded, so it counts as a whole cache.
        return max((sizes.get(name, whole) for name in lengths), default=0)

    copy, made = largest(STREAM_COPY.findall(stream_text)), largest(STREAM_RESULT.findall(stream_text))
    unread = stream_text.count("stream.cmd.copy") - len(STREAM_COPY.findall(stream_text))
    unread += len(STREAM_UNSCHEDULED.findall(stream_text))
    dispatches = stream_text.count("stream.cmd.dispatch")
    holds = dispatches > 0 and max(copy, made) < layer_bytes and not unread
    figure = f"largest copy {copy} bytes, largest new result {made} bytes, {dispatches} dispatches"
    detail = "a whole layer's cache, or more, is copied or written anew"
    if unread or not dispatches:
        detail = f"{unread} copies and {dispatches} dispatches: this stream form cannot be judged"
    return question.judged(holds, figure, f"less than {layer_bytes} bytes", detail, "k_cache.0")


def read_backs(stream_text: str, source: str = EMITTER) -> Check:
    """A step reads nothing back before it is done: what a device had to give first, everything after would wait for."""
    question = Question("read-backs", "decode reads nothing back in the midst of a step", source)
    main = stream_text.partition("util.func public @")[2]
    found, dispatches = main.count("stream.resource.load"), main.count("stream.cmd.dispatch")
    detail = "the host waits for a number of the device's, such as where a dynamic_slice begins, and goes on with it"
    if not dispatches:
        detail = "this stream form cannot be judged"
    return question.judged(
        dispatches > 0 and not found, f"{found} numbers, {dispatches} dispatches", "0 numbers", detail
    )
