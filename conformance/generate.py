"""Text from a prompt, on compiled graphs with the argmax on the device."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from hloracle.backends.session import Session
from hloracle.conformance.cells import make_backend
from hloracle.conformance.prompts import encode, load_tokenizer
from hloracle.core.abi import Graph
from hloracle.core.errors import InputError
from hloracle.emitters.model import emit
from hloracle.reference.archive import archive_of
from hloracle.reference.checkpoint import open_checkpoint
from hloracle.reference.contract import BUCKETS, bucket_for
from hloracle.reference.fixtures import resolve


def generate_text(
    model: str, prompt: str, count: int, raw: bool, source: str, backend: str, threads: int, precision: str
) -> Iterator[str]:
    """The continuation in pieces that are whole characters. Stops at an end-of-text token."""
    if count < 1:
        raise InputError(f"is {count}", "-n", "ask for at least one token")
    directory = resolve(model, precision=precision)
    checkpoint = open_checkpoint(directory)
    tokenizer = load_tokenizer(directory)
    ids = encode(tokenizer, prompt, chat=not raw) if prompt else []
    bucket = bucket_for(len(ids))
    capacity = BUCKETS[-1]
    while capacity < len(ids) + count - 1:
        capacity *= 2
    make: Callable[..., Graph] = partial(emit, layout=checkpoint.layout(precision))
    if source == "reference":  # over the same weights, in float32
        from hloracle.reference.lower import lower

        make = lower
    graphs = [make(checkpoint.config, "decode", "token", capacity)]
    graphs.append(make(checkpoint.config, "prefill", "token", capacity, bucket))
    stops = end_of_text(directory)
    weight = archive_of(checkpoint, graphs[0].abi.weights).load if backend == "iree-cpu" else checkpoint.load
    session = Session(make_backend(backend, threads), graphs, weight)
    tokens: list[int] = []
    shown = ""
    for token in session.generate_streaming_greedy(ids, count):
        if token in stops:
            break
        tokens.append(token)
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        # A character may take several tokens; until it is whole, decoding ends in the replacement character.
        if not text.endswith("\ufffd"):
            yield text[len(shown) :]
            shown = text
    rest = tokenizer.decode(tokens, skip_special_tokens=True)
    if rest != shown:
        yield rest[len(shown) :]


def end_of_text(directory: Path) -> set[int]:
    """The tokens at which transformers' generate stops: generation_config.json's, else config.json's."""
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if path.is_file():
            try:
                stop = json.loads(path.read_text()).get("eos_token_id")
            except (ValueError, AttributeError) as error:
                raise InputError(f"is not valid JSON ({error})", path, "restore the file") from None
            if stop is not None:
                return set(stop) if isinstance(stop, list) else {stop}
    return set()
