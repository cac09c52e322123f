"""Text from prompts, on compiled graphs: from one as it grows, or from many at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hloracle.backends.devices import CPU, Device
from hloracle.backends.named import built_in, make_backend
from hloracle.backends.session import Session
from hloracle.core.bounds import CAPACITY
from hloracle.core.errors import InputError, ToolchainError
from hloracle.core.given import as_text, parse_json, read_bytes, read_json
from hloracle.core.shown import quoted, shown
from hloracle.production.choice import Tuned, production_graphs, tuned, untuned
from hloracle.production.sampling import Sampling
from hloracle.production.serving import NOT_NUMBERS, STOP, Batch, Generation
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.huggingface.tokenizer import encode, load_tokenizer, refuse_unknown
from hloracle.reference.model.archive import archive_of
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.contract import BUCKETS, GraphSpec, bucket_for, refuse_beside_int8, refuse_without_rings
from hloracle.reference.model.registry import LARGEST_CONFIG, RESTORE

LARGEST_PROMPTS = 2**28  # bytes of a file of prompts
ONE_A_LINE = 'write one object a line, such as {"prompt": "The sea", "count": 20}'


@dataclass(frozen=True)
class Engine:
    """What computes a text: the graphs of a source in a precision, on a backend.

    device: where IREE runs them. as_: the architecture that they are of, where the model's config.json says another.
    batch: how many texts at once. compute: what values between modules, caches and weights are of. ring: layers with a window that is
    shorter than the capacity keep no more than it. kv: what keys and values are kept in.
    """

    source: str
    backend: str
    threads: int
    precision: str = "f32"
    device: Device = CPU
    as_: str = ""
    batch: int = 1
    compute: str = "f32"
    ring: bool = False
    kv: str = "compute"


@dataclass(frozen=True)
class Wanted:
    """A text that is asked for: at most `count` tokens after a prompt.

    raw: give the prompt as it is, without the model's chat template. stop: what the text ends before.
    """

    prompt: str
    count: int = 48
    raw: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()

    def validate(self) -> None:
        """Raises InputError that names the flag."""
        if self.count < 1:
            raise InputError(f"is {self.count}", "-n", "ask for at least one token")
        if self.count > CAPACITY:
            raise InputError(f"is more than {CAPACITY:,}", "-n", "ask for fewer tokens")
        if "" in self.stop:
            raise InputError("is empty", "--stop", "give the text that it ends before")
        self.sampling.validate()


class Text:
    """The text of a generation as it grows."""

    def __init__(self, tokenizer: Any, wanted: Wanted, generation: Generation, ends: set[int]) -> None:
        self.wanted, self.generation = wanted, generation
        self._tokenizer, self._ends = tokenizer, ends
        self._shown = ""

    @property
    def tokens(self) -> list[int]:
        """What was generated, without an end-of-text token."""
        found = self.generation.generated
        return found[:-1] if found and found[-1] in self._ends else found

    def more(self) -> str:
        """What there is now and was not before: whole characters that are no part of what the text ends before.

        The generation ends where that is found.
        """
        text: str = self._tokenizer.decode(self.tokens, skip_special_tokens=True)
        if found := [at for stop in self.wanted.stop if (at := text.find(stop)) >= 0]:
            text = text[: min(found)]
            self.generation.ended = STOP
        elif not self.generation.ended:
            # A character may take several tokens; until it is whole, decoding ends in the replacement character.
            if text.endswith("\ufffd"):
                return ""
            text = text[: len(text) - self._held_back(text)]
        piece, self._shown = text[len(self._shown) :], text
        return piece

    def _held_back(self, text: str) -> int:
        """How many characters at the end may be the beginning of what the text ends before."""
        return max((n for stop in self.wanted.stop for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)

    def result(self) -> dict[str, Any]:
        """The whole of it, once it has ended."""
        return {
            "prompt": self.wanted.prompt, "text": self._shown, "tokens": self.tokens, "ended": self.generation.ended,
        }  # fmt: skip


def generate_text(
    model: str, wanted: Wanted, engine: Engine, tell: Callable[[str], None] = lambda line: None
) -> Iterator[str]:
    """The continuation in pieces that are whole characters. Ends at an end-of-text token.

    Args:
      tell: gets a line that is for the user and not of the text.
    """
    batch, (text,) = _joined(model, [wanted], engine, tell)
    while batch.busy:
        batch.step()
        if piece := text.more():
            yield piece
    if text.generation.ended == NOT_NUMBERS:
        raise ToolchainError("run", NOT_NUMBERS)


def generate_many(
    model: str, wanted: Sequence[Wanted], engine: Engine, tell: Callable[[str], None] = lambda line: None
) -> Iterator[dict[str, Any]]:
    """The texts in the order in which they were asked for, each as soon as it and those before it have ended.

    As many are generated at once as the engine's batch has rows. Each is what it is alone.
    """
    batch, texts = _joined(model, wanted, engine, tell)
    of = {text.generation: text for text in texts}
    first = 0
    while first < len(texts):
        for generation, _ in batch.step():
            of[generation].more()
        while first < len(texts) and texts[first].generation.ended:
            yield texts[first].result()
            first += 1


def _joined(
    model: str, wanted: Sequence[Wanted], engine: Engine, tell: Callable[[str], None]
) -> tuple[Batch, list[Text]]:
    """A batch that generates these texts, none of which has begun."""
    for one in wanted:
        one.validate()
    refuse_beside_int8(engine.kv, engine.compute, engine.ring)
    directory = resolve(model, precision=engine.precision, as_=engine.as_, compute=engine.compute)
    checkpoint = open_checkpoint(directory)
    tokenizer = load_tokenizer(directory)
    ids = [encode(tokenizer, one.prompt, chat=not one.raw) if one.prompt else [] for one in wanted]
    for tokens, one in zip(ids, wanted, strict=True):
        bucket_for(min(len(tokens), BUCKETS[-1]))  # refuses an empty one
        refuse_unknown(tokens, checkpoint.config.vocab_size, directory)
        _refuse_too_long(checkpoint, len(tokens) + one.count)
    drawn = any(one.sampling != Sampling() for one in wanted)
    longest = max(len(tokens) for tokens in ids)
    capacity = BUCKETS[-1]
    while capacity < max(len(tokens) + one.count - 1 for tokens, one in zip(ids, wanted, strict=True)):
        capacity *= 2
    head, batch = "logits" if drawn else "token", min(engine.batch, len(wanted))
    whole = batch == 1 and longest <= BUCKETS[-1]
    bucket = bucket_for(min(longest, BUCKETS[-1]))
    if engine.ring:
        refuse_without_rings(checkpoint.config, capacity)
    decode = GraphSpec("decode", head, capacity, 0, batch, engine.compute, engine.ring, engine.kv)
    prompt = decode._replace(phase="prefill" if whole else "extend", bucket=bucket)
    session = _session(checkpoint, [decode, prompt], engine, tell)
    ends = end_of_text(directory)
    found = Batch(session)
    texts = [
        Text(tokenizer, one, found.join(tokens, one.count, one.sampling, sorted(ends)), ends)
        for tokens, one in zip(ids, wanted, strict=True)
    ]
    return found, texts


def _refuse_too_long(checkpoint: Checkpoint, length: int) -> None:
    most = checkpoint.config.max_position_embeddings
    if length > most:
        what = f"has {length:,} tokens with those that are asked for, and the model has {most:,} positions"
        raise InputError(what, "prompt", "shorten it, or ask for fewer tokens")


def _session(
    checkpoint: Checkpoint, specs: Sequence[GraphSpec], engine: Engine, tell: Callable[[str], None]
) -> Session:
    precision, device = engine.precision, engine.device
    if engine.source == "reference":  # over the same weights, which it takes in float32
        from hloracle.reference.oracle.lower import lower

        graphs = [lower(checkpoint.config, *spec) for spec in specs]
    else:
        batch, here = specs[0].batch, engine.backend == device.backend
        measured = here and batch == 1 and engine.compute == "f32" and engine.kv == "compute"
        found = tuned(checkpoint, precision, engine.threads, device) if measured else Tuned()
        if found.ignored:
            tell(found.ignored)
        choice = found.choice or untuned(device=device, batch=batch, precision=precision, compute=engine.compute)
        device = choice.opened(device)
        graphs = production_graphs(checkpoint, precision, choice, specs)
    mapped = built_in(engine.backend, device).family == "iree"  # which keeps what is mapped in place
    weight = archive_of(checkpoint, graphs[0].abi.weights).load if mapped else checkpoint.load
    return Session(make_backend(engine.backend, engine.threads, device), graphs, weight)


# ---- a file of prompts


def read_prompts(path: Path) -> list[Wanted]:
    """A file of JSON objects, one a line. Raises InputError that names the line and the key.

    The keys are the fields of `Wanted`, of which `prompt` alone is needed, and those of `Sampling`.
    """
    text = as_text(read_bytes(path, LARGEST_PROMPTS, ONE_A_LINE), path, ONE_A_LINE)
    lines = [(f"{path}:{i}", line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    return [_wanted(parse_json(line.encode(), where, ONE_A_LINE), where) for where, line in lines]


_DRAWN = tuple(f.name for f in fields(Sampling))
_TYPES = {
    "prompt": (str, "a string"),
    "count": (int, "a whole number"),
    "raw": (bool, "true or false"),
    "stop": (list, "a list"),
}
_FLAGS = {"-n": "count"}


def _wanted(raw: Any, where: str) -> Wanted:
    if not isinstance(raw, dict):
        raise InputError("is no JSON object", where, ONE_A_LINE)
    for key, value in raw.items():
        if key not in (*_TYPES, *_DRAWN):
            raise InputError(
                f"has an unknown key {quoted(key)}", where, f"the keys are {', '.join((*_TYPES, *_DRAWN))}"
            )
        type_, words = _TYPES.get(key, (type(value), ""))
        if type(value) is not type_:
            raise InputError(f"{key} is {shown(json.dumps(value), 60)}, not {words}", where, ONE_A_LINE)
    stop = raw.get("stop", [])
    if not all(isinstance(one, str) for one in stop):
        raise InputError("stop is not a list of strings", where, ONE_A_LINE)
    if "prompt" not in raw:
        raise InputError("has no prompt", where, ONE_A_LINE)
    sampling = Sampling(**{key: raw[key] for key in _DRAWN if key in raw})
    found = Wanted(raw["prompt"], raw.get("count", 48), raw.get("raw", False), sampling, tuple(stop))
    try:
        found.validate()
    except InputError as error:
        key = _FLAGS.get(error.where, error.where.removeprefix("--").replace("-", "_"))
        raise InputError(f"{key} {error.what}", where, error.fix) from None
    return found


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
