"""Sampling: the scores that transformers' processors give, and what is drawn from them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from hloracle.core.errors import InputError, ToolchainError
from hloracle.production.sampling import Sampling, make_generator
from hloracle.reference.fixtures.tiny import write_tiny
from hloracle.reference.huggingface.truth import load_model

V = 257
# All at once: each rules out some of the tokens that the others leave.
ALL = Sampling(temperature=0.7, top_k=64, top_p=0.9, min_p=0.1, repetition_penalty=1.3, seed=3)
KINDS = ("usual", "flat", "wide", "narrow", "far", "tied", "halves", "holes")


def processors(sampling: Sampling) -> LogitsProcessorList:
    """What transformers' generate makes of the same options, in its order."""
    found: list[Any] = []
    if sampling.repetition_penalty != 1:
        found.append(RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty)))
    if sampling.temperature != 0:
        if sampling.temperature != 1:
            found.append(TemperatureLogitsWarper(float(sampling.temperature)))
        if sampling.top_k:
            found.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            found.append(TopPLogitsWarper(sampling.top_p))
        found.append(MinPLogitsWarper(sampling.min_p))
    return LogitsProcessorList(found)


def processed(steps: Iterable[Any], logits: np.ndarray, tokens: list[int]) -> np.ndarray:
    """What these processors make of the logits, one after the other."""
    scores = torch.tensor(logits.astype(np.float32))[None]
    fed = torch.tensor([tokens], dtype=torch.long)
    return np.asarray(LogitsProcessorList(steps)(cast(Any, fed), cast(Any, scores))[0].numpy())


def theirs(sampling: Sampling, logits: np.ndarray, tokens: list[int]) -> np.ndarray:
    return processed(processors(sampling), logits, tokens)


def made(kind: str, vocabulary: int, rng: np.random.Generator) -> np.ndarray:
    """Logits [V] of a kind."""
    logits = 3 * rng.standard_normal(vocabulary)
    match kind:
        case "flat":
            logits /= 3
        case "wide":
            logits *= 1e4
        case "narrow":
            logits *= 1e-4
        case "far":  # where float32 has few values, and many logits are equal
            logits = 1e6 + logits
        case "tied":
            logits = np.round(logits)
        case "halves":
            return logits.astype(ml_dtypes.bfloat16)
        case "holes":
            logits[rng.permutation(vocabulary)[: vocabulary // 2]] = -np.inf
    return logits.astype(np.float32)


def options(rng: np.random.Generator, vocabulary: int) -> Sampling:
    """Each option is on in half of the cases or more."""
    on = rng.random(5) < (0.8, 0.5, 0.6, 0.5, 0.6)
    return Sampling(
        temperature=float(rng.choice([0.1, 0.6, 0.7, 1.3, 5.0])) if on[0] else 1.0,
        top_k=int(rng.integers(1, 2 * vocabulary + 2)) if on[1] else 0,
        top_p=float(rng.choice([0.0, 1e-9, 0.3, 0.5, 0.9, 0.95, 0.99])) if on[2] else 1.0,
        min_p=float(rng.choice([1e-6, 0.02, 0.1, 1.0])) if on[3] else 0.0,
        repetition_penalty=float(rng.choice([0.8, 1.05, 1.3, 2.0])) if on[4] else 1.0,
    )


def agree(sampling: Sampling, logits: np.ndarray, tokens: list[int]) -> None:
    """Ours are theirs, bit for bit: a score is at most a product and a quotient of float32, each rounded once by both.

    Where top_p keeps some of several equal scores, their unstable sort keeps any of these. So many of them are kept by
    both, and ours have the lowest indices.
    """
    ours, others = sampling.scores(logits, tokens), theirs(sampling, logits, tokens)
    assert ours.dtype == np.float32
    assert ours.shape == logits.shape
    np.testing.assert_array_equal(np.sort(ours), np.sort(others))
    differ = np.flatnonzero(ours != others)
    if len(differ):
        assert sampling.top_p < 1
        divided = theirs(Sampling(sampling.temperature, repetition_penalty=sampling.repetition_penalty), logits, tokens)
        assert len(set(divided[differ].tolist())) == 1
        equal = ours[divided == divided[differ[0]]]
        assert np.isfinite(equal).tolist() == sorted(np.isfinite(equal), reverse=True)


@pytest.mark.parametrize("vocabulary", [1, 2, V, 1031])
@pytest.mark.parametrize("kind", KINDS)
def test_scores(kind: str, vocabulary: int) -> None:
    """Of many options, and of sequences with repeated tokens and with ids that the head does not have.

    The 1 is a seed with which every sum and ratio of probabilities is 6e-6 or more from its bound, so that the last bits
    of torch's float32 softmax, which depend on the machine, decide nothing.
    """
    rng = np.random.default_rng([1, vocabulary, KINDS.index(kind)])
    for _ in range(30):
        sampling, logits = options(rng, vocabulary), made(kind, vocabulary, rng)
        tokens = rng.integers(0, vocabulary + 2, rng.integers(1, 40)).tolist()
        sampling.validate()
        before = logits.copy()
        agree(sampling, logits, tokens)
        np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("top_p", [0.0, 0.1, 0.25, 0.3, 0.5, 0.7, 0.9, 1.0])
@pytest.mark.parametrize("count", [1, 2, 4, 10, 40])
def test_equal_probabilities(count: int, top_p: float) -> None:
    """Sums of them lie on the bound itself, where it decides that float32 is what is compared."""
    agree(Sampling(1.0, top_p=top_p), np.zeros(count, np.float32), [0])
    agree(Sampling(0.7, top_p=top_p, min_p=1.0), np.full(count, -3.5, np.float32), [0])


def test_top_k_keeps_all_that_tie_with_the_last() -> None:
    logits = np.array([1, 3, 2, 2, 2, 0], np.float32)
    assert np.isfinite(Sampling(1.0, top_k=2).scores(logits, [])).tolist() == [False, True, True, True, True, False]
    agree(Sampling(1.0, top_k=2), logits, [5])


def test_the_order_is_that_of_generate() -> None:
    """`processors` above has the steps, their options and their order from transformers itself."""
    mixin: Any = type("Bare", (transformers.GenerationMixin,), {"config": SimpleNamespace(is_encoder_decoder=False)})()
    for sampling in (
        ALL,
        Sampling(1.0, min_p=0.1),
        Sampling(0.5, top_k=4, top_p=0.3),
        Sampling(repetition_penalty=1.2),
    ):
        config = transformers.GenerationConfig(
            do_sample=sampling.temperature != 0,
            **{k: v for k, v in vars(sampling).items() if k != "seed" and (k, v) != ("temperature", 0.0)},
        )
        found = mixin._get_logits_processor(config, input_ids_seq_length=1)
        assert [(type(p), vars(p)) for p in found] == [(type(p), vars(p)) for p in processors(sampling)]


def cases() -> list[tuple[np.ndarray, list[int]]]:
    """Logits and tokens, for which the order of the steps of ALL shows.

    Before or after the temperature, the penalty differs by roundings alone, so that much is penalised; and top_k differs
    where quotients of different logits are equal, so that some logits are next to each other in float32.
    """
    rng = np.random.default_rng(0)
    found = [(made("flat", V, rng), rng.integers(0, V, 150).tolist()) for _ in range(20)]
    steps = np.arange(V, dtype=np.float32) * np.spacing(np.float32(1000))
    return found + [(rng.permutation(np.float32(first) + steps), [0]) for first in range(1000, 1008)]


def same(some: list[np.ndarray], others: list[np.ndarray]) -> bool:
    """Up to which of equal scores are kept."""
    return all(np.array_equal(np.sort(one), np.sort(other)) for one, other in zip(some, others, strict=True))


def test_every_other_order_gives_other_scores() -> None:
    """So that a comparison with `processors` fails for it. Of 5! orders one is right."""
    right, *wrong = itertools.permutations(processors(ALL))
    given = cases()
    ours = [ALL.scores(*case) for case in given]
    assert same(ours, [processed(right, *case) for case in given])
    for order in wrong:
        assert not same(ours, [processed(order, *case) for case in given]), [type(p).__name__ for p in order]


@pytest.mark.parametrize("left_out", range(5))
def test_every_step_counts(left_out: int) -> None:
    """So that a comparison with `processors` fails where one is left out."""
    steps = processors(ALL)
    del steps[left_out]
    assert not same([ALL.scores(*case) for case in cases()], [processed(steps, *case) for case in cases()])


def test_scores_of_a_model(tmp_path: Path) -> None:
    """Step by step what generate itself gives: the penalty is of the prompt's tokens too, and grows with the text."""
    model = load_model(write_tiny(tmp_path))
    prompt = torch.tensor([[5, 7, 5, 9]])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=True,
            max_new_tokens=6,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            **{k: v for k, v in vars(ALL).items() if k != "seed"},
        )
    sequence = out.sequences[0].tolist()
    assert len(out.scores) > 1
    for step, (logits, scores) in enumerate(zip(out.logits, out.scores, strict=True)):
        ours = ALL.scores(logits[0].numpy(), sequence[: prompt.shape[1] + step])
        np.testing.assert_array_equal(ours, scores[0].numpy())


def test_greedy() -> None:
    """The lowest index of the largest score, after the penalty; what would cut down the tokens changes nothing."""
    logits = np.array([1, 4, 5, 4, -1], np.float32)
    assert Sampling().choose(logits, [], None) == 2
    assert Sampling(repetition_penalty=2.0).choose(logits, [2, 2], None) == 1
    assert Sampling(top_k=1, top_p=0.0, min_p=1.0).choose(logits, [], None) == 2
    negative = np.array([-1, -1.5, -3], np.float32)
    assert Sampling(repetition_penalty=2.0).choose(negative, [0], None) == 1
    assert Sampling().choose(np.full(3, -np.inf, np.float32), [], None) == 0


def test_penalty_is_once_for_each_token() -> None:
    logits = np.array([4, -4, 4, 0], np.float32)
    scores = Sampling(repetition_penalty=2.0).scores(logits, [0, 0, 1, 0, 3])
    np.testing.assert_array_equal(scores, [2, -8, 4, 0])
    np.testing.assert_array_equal(Sampling(repetition_penalty=2.0).scores(logits, []), logits)


class Given(np.random.Generator):
    """Gives these numbers instead of random ones."""

    def __init__(self, numbers: Iterable[float]) -> None:
        super().__init__(np.random.PCG64(0))
        self.numbers = iter(numbers)

    def random(self, *args: Any, **kwargs: Any) -> Any:
        return next(self.numbers)


def distribution(sampling: Sampling, logits: np.ndarray, tokens: list[int]) -> np.ndarray:
    """transformers' probabilities [V]."""
    return np.asarray(torch.softmax(torch.tensor(theirs(sampling, logits, tokens)).double(), 0).numpy())


DRAWN = (Sampling(1.0), Sampling(2.5, top_k=9), Sampling(0.8, 12, 0.95, 0.01, 1.2))


@pytest.mark.parametrize("sampling", DRAWN)
def test_distribution_of_even_numbers(sampling: Sampling) -> None:
    """N numbers, evenly spaced from 0 to 1: an interval of length p holds N p of them, give or take less than one."""
    logits, tokens, n = made("usual", 17, np.random.default_rng(5)), [1, 2, 3], 4000
    even = Given((i + 0.5) / n for i in range(n))
    counts = Counter(sampling.choose(logits, tokens, even) for _ in range(n))
    found = np.array([counts[token] for token in range(17)])
    probabilities = distribution(sampling, logits, tokens)
    assert (np.abs(found - n * probabilities) <= 1).all()
    assert (found[probabilities == 0] == 0).all()


@pytest.mark.parametrize("sampling", DRAWN)
def test_distribution_of_a_seed(sampling: Sampling) -> None:
    """Hoeffding: a frequency of N draws is off by e or more with a probability of at most 2 exp(-2 N e^2).

    For all 17 tokens that is below 1e-6 with the e below, which is 0.036; other options of DRAWN differ by more.
    """
    logits, tokens, n = made("usual", 17, np.random.default_rng(5)), [1, 2, 3], 6000
    generator = make_generator(7)
    counts = Counter(sampling.choose(logits, tokens, generator) for _ in range(n))
    frequencies = np.array([counts[token] for token in range(17)]) / n
    bound = math.sqrt(math.log(2 * 17 / 1e-6) / (2 * n))
    assert np.abs(frequencies - distribution(sampling, logits, tokens)).max() < bound
    for other in DRAWN:
        if other != sampling:
            assert np.abs(frequencies - distribution(other, logits, tokens)).max() > bound


def test_ends_of_the_numbers() -> None:
    """0 and the largest number below 1 draw the first and the last token that is not ruled out."""
    logits = np.array([-np.inf, 1, 1, 1, -np.inf], np.float32)
    assert Sampling(1.0).choose(logits, [], Given([0.0])) == 1
    assert Sampling(1.0).choose(logits, [], Given([1 - 2**-53])) == 3


def test_same_seed_same_tokens() -> None:
    """One number of the generator for each token, so that a text goes on alike wherever it was interrupted."""
    logits = [made("usual", V, np.random.default_rng(i)) for i in range(50)]

    def text(seed: int) -> list[int]:
        generator = make_generator(seed)
        return [ALL.choose(each, [1, 2], generator) for each in logits]

    assert text(3) == text(3) != text(4)
    generator = make_generator(3)
    generator.random(20)
    assert [ALL.choose(each, [1, 2], generator) for each in logits[20:]] == text(3)[20:]


def test_a_seed_names_its_numbers() -> None:
    """Those of PCG64, which NumPy promises to keep: its top 53 bits. A text of a seed is the same in years."""
    raw = np.random.PCG64(11).random_raw(5)
    assert make_generator(11).random(5).tolist() == [(int(bits) >> 11) * 2.0**-53 for bits in raw]
    assert make_generator(0).random() == 0.6369616873214543


def test_a_drawn_token_needs_a_generator() -> None:
    with pytest.raises(ValueError, match="generator"):
        Sampling(1.0).choose(np.zeros(3, np.float32), [], None)


@pytest.mark.parametrize("temperature", [1e-30, 1e-40, 1e-46, 5e-324])
@pytest.mark.parametrize("shift", [-1e9, 0.0, 1e9])
def test_tiny_temperature_is_the_limit(temperature: float, shift: float) -> None:
    """The largest logits, in equal shares, where transformers' probabilities are NaN."""
    sampling = Sampling(temperature, top_p=0.9, min_p=0.1)
    sampling.validate()
    logits = np.array([-1e4, 0, 1e4, 1e4, -np.inf], np.float32) + np.float32(shift)
    scores = sampling.scores(logits, [0])
    assert np.isfinite(scores).tolist() == [False, False, True, True, False]
    assert sampling.choose(logits, [], Given([0.49])) == 2
    assert sampling.choose(logits, [], Given([0.51])) == 3


def test_largest_numbers_do_not_overflow() -> None:
    largest = float(np.finfo(np.float32).max)
    logits = np.array([largest, largest, -largest], np.float32)
    np.testing.assert_array_equal(Sampling(0.5).scores(logits, []), [0, 0, -np.inf])
    assert Sampling(0.5, 2, 0.9, 0.5).choose(logits, [], make_generator(0)) in (0, 1)
    assert Sampling(largest).choose(logits, [], make_generator(0)) in (0, 1, 2)


@pytest.mark.parametrize("sampling", [Sampling(), ALL])
def test_nan_is_refused(sampling: Sampling) -> None:
    with pytest.raises(ToolchainError, match=r"^run failed: the logits are not numbers$"):
        sampling.choose(np.array([0, np.nan, 1], np.float32), [], make_generator(0))


@pytest.mark.parametrize(("largest", "shown"), [(np.inf, "inf"), (-np.inf, "-inf")])
def test_an_infinite_largest_logit_is_refused(largest: float, shown: str) -> None:
    with pytest.raises(ToolchainError, match=rf"^run failed: the largest logit is {shown}, so that no token"):
        ALL.scores(np.array([largest, -np.inf], np.float32), [])


NAN, INF = float("nan"), float("inf")
INVALID: dict[str, tuple[str, list[Any], str]] = {
    "temperature": (
        "--temperature",
        [-0.1, NAN, INF, 1e39, 10**400, True, "1", None, np.float32(1)],
        "give a number from 0 up; 0 takes the largest logit",
    ),
    "top_k": ("--top-k", [-1, 2.0, NAN, False, "4", None], "give a whole number from 0 up; 0 keeps all tokens"),
    "top_p": ("--top-p", [-0.1, 1.1, NAN, INF, True, "0.9", None], "give a number from 0 to 1; 1 keeps all tokens"),
    "min_p": ("--min-p", [-1e-9, 2, NAN, -INF, False, "0", None], "give a number from 0 to 1; 0 keeps all tokens"),
    "repetition_penalty": (
        "--repetition-penalty",
        [0.0, -1.0, 1e-46, 1e39, NAN, INF, True, "1.2", None],
        "give a number above 0; 1 is no penalty",
    ),
    "seed": ("--seed", [-1, 1.0, NAN, True, "0", None], "give a whole number from 0 up"),
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, (_, values, _) in INVALID.items() for value in values]
)
def test_invalid_fields_are_refused(field: str, value: Any) -> None:
    flag, _, fix = INVALID[field]
    with pytest.raises(InputError) as raised:
        Sampling(**{field: value}).validate()
    assert (raised.value.where, raised.value.what, raised.value.fix) == (flag, f"is {value!r}", fix)


def test_every_field_is_checked() -> None:
    assert INVALID.keys() == vars(Sampling()).keys()


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), ALL, Sampling(2, 0, 0, 1, 3, 2**200), Sampling(5e-324), Sampling(1e30, 10**30, 1, 0, 1e-30)],
)
def test_valid_fields(sampling: Sampling) -> None:
    sampling.validate()
    choice = sampling.choose(np.zeros(5, np.float32), [1], make_generator(sampling.seed))
    assert 0 <= choice < 5
