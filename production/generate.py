"""Text from a prompt, on compiled graphs with the argmax on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hloracle.backends.devices import CPU, Device
from hloracle.backends.named import built_in, make_backend
from hloracle.backends.session import Session
from hloracle.core.bounds import CAPACITY
from hloracle.core.errors import InputError
from hloracle.core.given import read_json
from hloracle.production.choice import Tuned, production_graphs, tuned, untuned
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.huggingface.tokenizer import encode, load_tokenizer, refuse_unknown
from hloracle.reference.model.archive import archive_of
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.contract import BUCKETS, bucket_for
from hloracle.reference.model.registry import LARGEST_CONFIG, RESTORE


@dataclass(frozen=True)
class Engine:
    """What computes a text: the graphs of a source in a precision, on a backend.

    device: where IREE runs them. as_: the architecture that they are of, where the model's config.json says another.
    """

    source: str
    backend: str
    threads: int
    precision: str = "f32"
    device: Device = CPU
    as_: str = ""


def generate_text(
    model: str, prompt: str, count: int, raw: bool, engine: Engine, tell: Callable[[str], None] = lambda line: None
) -> Iterator[str]:
    """The continuation in pieces that are whole characters. Stops at an end-of-text token.

    Args:
      raw: give the prompt as it is, without the model's chat template.
      tell: gets a line that is for the user and not of the text.
    """
    precision, device = engine.precision, engine.device
    if count < 1:
        raise InputError(f"is {count}", "-n", "ask for at least one token")
    if count > CAPACITY:
        raise InputError(f"is more than {CAPACITY:,}", "-n", "ask for fewer tokens")
    directory = resolve(model, precision=precision, as_=engine.as_)
    checkpoint = open_checkpoint(directory)
    tokenizer = load_tokenizer(directory)
    ids = encode(tokenizer, prompt, chat=not raw) if prompt else []
    bucket = bucket_for(len(ids))
    refuse_unknown(ids, checkpoint.config.vocab_size, directory)
    capacity = BUCKETS[-1]
    while capacity < len(ids) + count - 1:
        capacity *= 2
    specs = [("decode", "token", capacity, 0), ("prefill", "token", capacity, bucket)]
    if engine.source == "reference":  # over the same weights, in float32
        from hloracle.reference.oracle.lower import lower

        graphs = [lower(checkpoint.config, *spec) for spec in specs]
    else:
        found = tuned(checkpoint, precision, engine.threads, device) if engine.backend == device.backend else Tuned()
        if found.ignored:
            tell(found.ignored)
        choice = found.choice or untuned(device=device)
        device = choice.opened(device)
        graphs = production_graphs(checkpoint, precision, choice, specs)
    stops = end_of_text(directory)
    mapped = built_in(engine.backend, device).family == "iree"  # which keeps what is mapped in place
    weight = archive_of(checkpoint, graphs[0].abi.weights).load if mapped else checkpoint.load
    session = Session(make_backend(engine.backend, engine.threads, device), graphs, weight)
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
        if path.exists():
            raw = read_json(path, LARGEST_CONFIG, RESTORE)
            if not isinstance(raw, dict):
                raise InputError("is not a JSON object", path, RESTORE)
            stop = raw.get("eos_token_id")
            stops = stop if isinstance(stop, list) else [] if stop is None else [stop]
            if not all(type(token) is int for token in stops):
                raise InputError("key 'eos_token_id' is neither a token's id nor a list of such", path, RESTORE)
            if stops:
                return set(stops)
    return set()
