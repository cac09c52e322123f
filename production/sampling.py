"""How the next token is drawn from logits: transformers' processors, in the order of its `generate`, in NumPy.

V: vocabulary. Each step may write into the float32 scores [V] that it gets: -inf for a token that it rules out. The
source is transformers 5.23: generation/logits_process.py, and `_get_logits_processor` in generation/utils.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hloracle.core.errors import InputError, ToolchainError

_SMALLEST, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
# Of each field: the types that it may have, the least and the greatest value, and what to give.
_LIMITS: dict[str, tuple[tuple[type, ...], float, float, str]] = {
    "temperature": ((int, float), 0, _LARGEST, "give a number from 0 up; 0 takes the largest logit"),
    "top_k": ((int,), 0, float("inf"), "give a whole number from 0 up; 0 keeps all tokens"),
    "top_p": ((int, float), 0, 1, "give a number from 0 to 1; 1 keeps all tokens"),
    "min_p": ((int, float), 0, 1, "give a number from 0 to 1; 0 keeps all tokens"),
    "repetition_penalty": ((int, float), _SMALLEST, _LARGEST, "give a number above 0; 1 is no penalty"),
    "seed": ((int,), 0, float("inf"), "give a whole number from 0 up"),
}


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen. The defaults take the largest logit.

    temperature: what the logits are divided by; 0 is greedy. Then nothing is drawn, and top_k, top_p and min_p
      change nothing, since none of them rules out the largest.
    top_k: how many of the largest scores are kept, and all that equal the smallest of them; 0 keeps all.
    top_p: the smallest set of the most probable tokens whose probabilities sum to this or more is kept, never none.
    min_p: a token is ruled out whose probability is below this share of the largest one's.
    repetition_penalty: what the logits of the sequence's tokens are divided by, or multiplied by where they are
      negative. It holds for greedy too.
    seed: of the generator that tokens are drawn with.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def validate(self) -> None:
        """InputError with the flag of the first field that has another type, is out of range or is NaN."""
        for name, (types, least, greatest, fix) in _LIMITS.items():
            value = getattr(self, name)
            fits = isinstance(value, types) and not isinstance(value, bool)
            if not (fits and least <= value <= greatest):  # NaN is in no range
                raise InputError(f"is {value!r}", f"--{name.replace('_', '-')}", fix)

    def scores(self, logits: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
        """What the token is chosen by: the logits, penalised; where one is drawn, also divided and cut down.

        Args:
          logits: [V], any float; rounded to float32 first, as in `generate`. They are left as they are.
          tokens: all of the sequence so far, the prompt's included.

        Returns float32 [V], -inf for a token that is ruled out. Raises ToolchainError where a logit is NaN, or where a
        token is to be drawn and the largest logit, penalised, is infinite.
        """
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # what is infinite or NaN is looked for
            scores = np.array(logits, np.float32)  # [V]
            if np.isnan(scores).any():
                raise ToolchainError("run", "the logits are not numbers")
            scores = _penalise(scores, tokens, self.repetition_penalty)
            if self.temperature == 0:
                return scores
            if not np.isfinite(scores.max()):
                raise ToolchainError("run", f"the largest logit is {scores.max()}, so that no token can be drawn")
            scores = _divide(scores, self.temperature)
            scores = _keep_top_k(scores, self.top_k)
            scores = _keep_top_p(scores, self.top_p)
            return _keep_min_p(scores, self.min_p)

    def choose(self, logits: np.ndarray, tokens: Sequence[int], generator: np.random.Generator | None) -> int:
        """The next token: greedy's is the lowest index of the largest score.

        A drawn one takes one uniform number of the generator, and is where the sum of the probabilities up to a token
        first exceeds it. The sum is sequential and in float64: what machines may differ in is the last bit of `exp`.
        Arguments and errors are those of `scores`; without a generator, a token that is to be drawn is a ValueError.
        """
        scores = self.scores(logits, tokens)
        if self.temperature == 0:
            return int(np.argmax(scores))
        if generator is None:
            raise ValueError("a token is drawn with a generator")
        sums = np.cumsum(np.exp(scores.astype(np.float64) - scores.max()))  # [V]
        # To the right of equal sums: a token of probability 0 adds nothing to the sum, and is never drawn.
        return int(np.searchsorted(sums, generator.random() * sums[-1], side="right"))


def make_generator(seed: int) -> np.random.Generator:
    """The generator of a seed. PCG64 by name: NumPy may change which one is its default."""
    return np.random.Generator(np.random.PCG64(seed))


def _penalise(scores: np.ndarray, tokens: Sequence[int], penalty: float) -> np.ndarray:
    """RepetitionPenaltyLogitsProcessor: once for each token, however often it occurs. Ids from V up have no logit."""
    seen = np.asarray(tokens, np.int64)
    seen = seen[seen < len(scores)]
    old, factor = scores[seen], np.float32(penalty)
    scores[seen] = np.where(old < 0, old * factor, old / factor)
    return scores


def _divide(scores: np.ndarray, temperature: float) -> np.ndarray:
    """TemperatureLogitsWarper. Where its quotients overflow, the distances from the largest score are divided.

    There transformers' probabilities are NaN. The distances have the same softmax, and the largest score becomes 0.
    """
    quotients: np.ndarray = scores / np.float32(temperature)
    if np.isfinite(quotients.max()):
        return quotients
    distances: np.ndarray = scores.astype(np.float64) - scores.max()
    return (distances / temperature).astype(np.float32)


def _keep_top_k(scores: np.ndarray, top_k: int) -> np.ndarray:
    """TopKLogitsWarper: all that equal the k-th largest score are kept with it."""
    if k := min(top_k, len(scores)):
        scores[scores < np.partition(scores, -k)[-k]] = -np.inf
    return scores


def _keep_top_p(scores: np.ndarray, top_p: float) -> np.ndarray:
    """TopPLogitsWarper, which sums from the least probable token up, in float64, and compares in float32.

    Of equal scores its unstable sort rules out any; here those with the lowest indices are kept. Its softmax is summed in
    float32: of 150,000 nearly equal logits, it keeps a few tokens more or less than their exact probabilities would.
    """
    if top_p < 1:
        ordered = np.sort(scores)
        sums = np.cumsum(_softmax(ordered), dtype=np.float64).astype(np.float32)
        out = min(int(np.count_nonzero(sums <= np.float32(1 - top_p))), len(scores) - 1)
        least = ordered[out]
        equal = np.flatnonzero(scores == least)
        scores[equal[np.count_nonzero(ordered[out:] == least) :]] = -np.inf
        scores[scores < least] = -np.inf
    return scores


def _keep_min_p(scores: np.ndarray, min_p: float) -> np.ndarray:
    """MinPLogitsWarper, which compares in float32."""
    if min_p > 0:
        probs = _softmax(scores)
        scores[probs < np.float32(min_p) * probs.max()] = -np.inf
    return scores


def _softmax(scores: np.ndarray) -> np.ndarray:
    """Probabilities in float32, as torch's are; computed in float64, so that rounding hides what machines differ in."""
    weights = np.exp(scores.astype(np.float64) - scores.max())
    probs: np.ndarray = weights / weights.sum()
    return probs.astype(np.float32)
