"""Keys and values in int8: each slot of each head is rounded by its own scale, in every phase alike."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from test_ring import junk

from hloracle.backends.named import make_backend
from hloracle.backends.session import Session
from hloracle.cli.main import cli
from hloracle.conformance.runs.beside import Beside, apart
from hloracle.conformance.runs.returned import after_prompt, changed
from hloracle.core import int8
from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.cache import cache_root
from hloracle.core.child import alone as one_process
from hloracle.core.errors import InputError
from hloracle.core.kept import as_kept, bits, by_position
from hloracle.core.spread import RMS
from hloracle.emitters.builder import TensorType, Value
from hloracle.emitters.layers import LayerBuilder
from hloracle.emitters.model import Emitter
from hloracle.localize.anatomy import Anatomy
from hloracle.localize.inputs import share_of
from hloracle.reference.fixtures.tiny import TINY, write_tiny
from hloracle.reference.huggingface.anchor_truth import anchor_truth
from hloracle.reference.huggingface.truth import truths
from hloracle.reference.model.checkpoint import Checkpoint, open_checkpoint
from hloracle.reference.model.contract import graph_abi, graph_name
from hloracle.reference.model.registry import from_hf
from hloracle.reference.oracle.layers import dequantized, quantized
from hloracle.reference.oracle.lower import lower

S, T, B = 40, 12, 3
# Of the largest logit: where float32's roundings take a number over the middle of two steps, it is a step off.
CLOSE = 2e-3
# Queries of a head that are no power of two, widths that are odd, windows that prompts are longer than.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 10},
    "gpt_oss": {"sliding_window": 7},
    "gemma3_text": {"sliding_window": 7},
    "deepseek_v3": {},
}


@functools.cache
def checkpoint(family: str) -> Checkpoint:
    return open_checkpoint(write_tiny(cache_root() / f"kv-{family}", family, **FAMILIES[family]))


@functools.cache
def session(family: str, source: str, batch: int = 1, kv: str = "int8", backend: str = "xla-cpu") -> Session:
    model = checkpoint(family)
    specs = [("decode", 0), ("extend", T), *((("prefill", T),) if batch == 1 else ())]
    write = lower if source == "oracle" else functools.partial(Emitter().emit, layout=None)
    graphs = [write(model.config, phase, "logits", S, n, batch=batch, kv=kv) for phase, n in specs]
    return Session(make_backend(backend, 1), graphs, model.load)


def tokens(family: str, seed: int = 3) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, checkpoint(family).config.vocab_size, S)]


def assert_same(head: Any, wanted: Any) -> None:
    assert np.max(np.abs(head - wanted)) <= CLOSE * max(float(np.max(np.abs(wanted))), 1.0)


def assert_same_caches(one: Session, other: Session, row: int = 0) -> None:
    """A step apart at most, and few numbers are."""
    for mine, wanted in zip(one.caches(row=row), other.caches(row=row), strict=True):
        steps = np.abs(mine - wanted) / (np.max(np.abs(wanted), axis=-1, keepdims=True, initial=1e-30) / 127)
        assert np.max(steps, initial=0) < 1.1
        assert np.mean(steps > 0.1) < 0.01


# ---- rounding


def awkward() -> np.ndarray:
    """[T, K, D] with ordinary rows, and with zeros, ties, one number alone, tiny ones, and what is no number."""
    x = np.random.default_rng(1).normal(0, 1, (9, 3, 10)).astype(np.float32)
    x[1] = 0
    x[2, 0] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -126.5, 3.5]
    x[3] = 0
    x[3, 1, 4] = -5
    x[4] *= 1e-30
    x[5, 2, 3] = np.nan
    x[6, 1, 0] = np.inf
    x[7] *= 1e30
    x[8, 0] = 2.0**-149  # a scale of which is 0
    return x


def test_the_quantizer() -> None:
    steps, scale = int8.quantized(awkward())
    assert steps.dtype == np.int8
    assert scale.dtype == np.float32
    assert scale.shape == (9, 3)
    assert steps[2, 0].tolist() == [127, 0, 2, 2, 0, -2, -2, 126, -126, 4]  # a tie goes to the even one
    assert scale[2, 0] == 1
    assert not steps[1].any()
    assert not scale[1].any()
    assert steps[3, 1].tolist() == [0, 0, 0, 0, -127, 0, 0, 0, 0, 0]
    assert np.abs(steps).max() == 127
    there = int8.dequantized(steps, scale)
    assert np.isnan(there[5, 2]).all(), "a number that is none shows"
    assert np.isnan(there[6, 1]).all()
    fine = np.ones((9, 3), bool)
    fine[5, 2] = fine[6, 1] = fine[8, 0] = False
    assert np.isfinite(there[fine]).all()
    off = np.abs(there - awkward())[fine] / np.maximum(scale, np.float32(1e-38))[fine][:, None]
    assert off.max() <= 0.5001


def emitted(x: np.ndarray, backend: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    b = LayerBuilder(None, False, "f32")
    value = b.argument(TensorType(x.shape, "f32"), "x")
    steps, scale = b.quantized(value)
    results: list[Value] = [steps, scale, b.dequantized(steps, scale)]
    abi = Abi(
        "decode",
        (Tensor("tap", "x", x.shape, "f32"),),
        tuple(Tensor("tap", f"r{i}", r.shape, r.dtype) for i, r in enumerate(results)),
    )
    on = make_backend(backend, 1)
    found = on.load(b.graph("quantizer", abi, results))([on.upload(x)])
    steps, scale, there = (np.array(on.download(r)) for r in found)
    return steps, scale, there


def of_oracle(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    import jax

    steps, scale = jax.jit(quantized)(x)
    return np.asarray(steps), np.asarray(scale), np.asarray(jax.jit(dequantized)(steps, scale))


@pytest.mark.parametrize("how", ["iree-cpu", "xla-cpu", "oracle"])
def test_graphs_round_as_the_quantizer_does(how: str) -> None:
    x = awkward()
    steps, scale, there = of_oracle(x) if how == "oracle" else emitted(x, how)
    wanted, scales = int8.quantized(x)
    normal = np.ones((9, 3), bool)
    normal[8, 0] = False  # a compiler may take what is below the smallest normal number for 0
    np.testing.assert_array_equal(steps[normal], wanted[normal])
    np.testing.assert_allclose(scale[normal][:, 0], scales[normal], rtol=1e-6)
    np.testing.assert_allclose(there[normal], int8.dequantized(wanted, scales)[normal], rtol=1e-6)
    assert np.isfinite(there[8, 0]).all()


def test_hugging_face_is_rounded_alike() -> None:
    import torch

    from hloracle.reference.huggingface.in_int8 import kept, rounded

    x = awkward()
    fine = np.delete(x, [5, 6, 8], axis=0)
    np.testing.assert_array_equal(rounded(torch.tensor(fine)).numpy(), int8.rounded(fine))
    assert torch.isnan(rounded(torch.tensor(x[5, 2]))).all()
    config = from_hf(TINY["deepseek_v3"])
    assert config.latent
    own = config.latent.qk_nope_head_dim
    key = torch.randn(1, 4, 5, own + config.latent.qk_rope_head_dim)
    mine, value = kept(config, key, key)
    assert torch.equal(mine[..., :own], key[..., :own]), "heads' own keys are made of latents, which are rounded"
    np.testing.assert_array_equal(mine[..., own:].numpy(), int8.rounded(key[..., own:].numpy()))
    assert value is key


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_what_graphs_are_held_to(family: str) -> None:
    """Hugging Face whose attention reads what caches in int8 hold; what comes before it is as exact as float32 has it."""
    mine = dataclasses.replace(checkpoint(family), kv="int8")
    assert mine.digest != checkpoint(family).digest
    with one_process():
        truth = anchor_truth(mine, tokens(family)[:20])
        (plain,) = truths(mine, [tokens(family)[:9]], 4)
    assert (truth.compute, plain.compute) == ("int8", "int8")
    for part in ("k_cache", "v_cache"):
        values = np.asarray(truth.values(f"{part}.0"))
        steps = np.sqrt(np.mean((np.max(np.abs(values), axis=-1) / 127) ** 2))
        off = np.sqrt(np.mean(truth.spreads(f"{part}.0")[1:, :, RMS] ** 2))
        assert 0.2 < off / steps < 0.4, "evenly spread over a step, 0.29"
        assert np.max(truth.spreads(f"{part}.0")[0]) < 1e-4, "in float32 it is not rounded"
    exact = ["k_rope", "kv_a_layernorm" if family == "deepseek_v3" else "v_proj"]
    for anchor in ("embed_tokens", *(f"layers.0.self_attn.{part}" for part in exact)):
        assert np.max(truth.spreads(anchor)) < 1e-4, anchor
    for anchor in ("layers.0.self_attn.scores", "layers.0.self_attn.context", "layers.1", "lm_head"):
        assert np.max(truth.spreads(anchor)[1:]) > 30 * np.max(truth.spreads(anchor)[0]), anchor
    assert np.max(plain.spreads[1:]) > 30 * np.max(plain.spreads[0])


# ---- all phases


@pytest.mark.parametrize("family", FAMILIES)
def test_the_emitter_and_the_oracle(family: str) -> None:
    one, other = (session(family, source) for source in ("emitter", "oracle"))
    given = tokens(family)
    assert_same(*(which.prefill(given[:T], T) for which in (one, other)))
    assert_same_caches(one, other)
    assert_same(*(which.extend(given[T : T + 5]) for which in (one, other)))
    assert_same(*(which.extend(given[T + 5 : 2 * T + 5]) for which in (one, other)))
    for token in given[2 * T + 5 :]:
        assert_same(*(which.decode_step(token) for which in (one, other)))
    assert_same_caches(one, other)


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_in_chunks_and_token_by_token(family: str) -> None:
    """Attention reads what the cache will hold, also of the tokens that are written in the same call."""
    one, given = session(family, "emitter"), tokens(family)
    whole = one.prefill(given[:T], T)
    kept = one.caches()
    for cuts in ((5, T), (1, 2, T), tuple(range(1, T + 1))):
        one.reset(junk(one))
        for start, end in zip((0, *cuts), cuts, strict=False):
            head = one.extend(given[start:end]) if end - start > 1 else one.decode_step(given[start])
        assert_same(head, whole)
        for mine, wanted in zip(one.caches(), kept, strict=True):
            assert np.mean(np.abs(mine - wanted) > 1e-4) < 0.01


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_it_is_about_what_caches_in_float32_give(family: str) -> None:
    one, other = (session(family, "emitter", kv=kv) for kv in ("int8", "compute"))
    given = tokens(family)
    heads = [which.prefill(given[:T], T) for which in (one, other)]
    off = np.max(np.abs(heads[0] - heads[1])) / np.max(np.abs(heads[1]))
    assert 1e-5 < off < 0.1
    for mine, wanted in zip(one.caches(), other.caches(), strict=True):
        half = np.max(np.abs(wanted[0]), axis=-1, keepdims=True) / 254
        assert np.all(np.abs(mine - wanted)[0] <= 1.001 * half), "the first layer's are rounded, and no more"
        assert np.mean(mine[0] != wanted[0]) > 0.5


@pytest.mark.parametrize("source", ["emitter", "oracle"])
@pytest.mark.parametrize("family", ["llama", "gpt_oss", "deepseek_v3"])
def test_rows_are_what_each_is_alone(family: str, source: str) -> None:
    rows, alone = session(family, source, B), session(family, source)
    rows.reset(junk(rows))
    given = [tokens(family, row) for row in range(B)]
    for row in range(B):
        rows.extend(given[row][: 3 + row], row=row)
    for step in range(6):
        fed = {r: given[r][rows.positions[r]] for r in range(B) if (step + r) % 3}
        found = rows.step(fed)
    for row in range(B):
        alone.reset(junk(alone))
        for token in given[row][: rows.positions[row]]:
            head = alone.decode_step(token)
        if row in fed:
            assert_same(found[row], head)
        for mine, wanted in zip(rows.caches(row=row), alone.caches(), strict=True):
            assert np.mean(np.abs(mine - wanted) > 1e-4) < 0.01


def test_rows_hear_nothing_of_each_other_and_idle_ones_stay_bit_for_bit() -> None:
    one = session("llama", "emitter", B)
    assert apart(one, (tokens("llama")[:5], tokens("llama")[5:8]), T) == ""


def test_a_long_prompt_in_blocks() -> None:
    model = checkpoint("llama")
    found = []
    for write in (Emitter().emit, lower):
        graph = write(model.config, "extend", "logits", 300, 32, kv="int8")
        one = Session(make_backend("xla-cpu", 1), [graph], model.load)
        given = [int(t) for t in np.random.default_rng(4).integers(0, model.config.vocab_size, 290)]
        for start in range(0, 290, 32):
            head = one.extend(given[start : start + 32])
        found.append(head)
    assert_same(*found)


def test_what_is_no_number_shows() -> None:
    one = session("llama", "emitter")
    caches = junk(one)
    caches[0][0, 1, 2, 3] = np.nan
    one.reset(caches)
    assert np.isnan(one.caches(whole=True)[0][0, 1, 2]).all()
    one.position = 4
    assert np.isnan(one.decode_step(5)).any()


# ---- the session


def test_caches_by_position_and_back() -> None:
    abi = graph_abi(checkpoint("llama").config, "decode", "logits", S, kv="int8")
    caches = [np.random.default_rng(i).normal(0, 1, s).astype(np.float32) for i, s in enumerate(abi.cache_shapes)]
    kept = as_kept(abi, caches)
    assert [k.dtype.name for k in kept] == ["int8", "int8", "float32", "float32"]
    for there, cache in zip(by_position(abi, kept, 3), caches, strict=True):
        np.testing.assert_array_equal(there, int8.rounded(cache))
    assert [b.shape for b in bits(abi, kept, 3)] == [(*c.shape[:-1], c.shape[-1] + 4) for c in caches]


def test_a_session_shows_what_its_caches_stand_for() -> None:
    one = session("llama", "emitter", B)
    caches = junk(one)
    one.reset(caches)
    for row in range(B):
        for mine, given in zip(one.caches(whole=True, row=row), caches, strict=True):
            np.testing.assert_array_equal(mine, one.held(given)[:, row])
    one.clear(1)
    assert not any(b.any() for b in one.bits(1)), "integers and scales"
    assert all(b.any() for b in one.bits(2))


def test_caches_take_a_quarter() -> None:
    config = from_hf(TINY["llama"])
    sizes = [sum(r.nbytes for r in graph_abi(config, "decode", "token", S, kv=kv).state) for kv in ("compute", "int8")]
    assert sizes[1] / sizes[0] == (config.head_dim + 4) / (4 * config.head_dim)


def test_graphs_of_one_session_keep_alike() -> None:
    model = checkpoint("llama")
    graphs = [Emitter().emit(model.config, "decode", "logits", S, kv=kv) for kv in ("int8", "compute")]
    with pytest.raises(ValueError, match="share"):
        Session(make_backend("xla-cpu", 1), graphs, model.load)


# ---- checks that fail


def test_a_scale_that_changes_is_noticed_where_the_numbers_are_the_same() -> None:
    """Of zeros with any scale, and of any integers with the scale 0, the numbers are 0."""
    abi = graph_abi(checkpoint("llama").config, "decode", "logits", S, kv="int8")
    zeros = as_kept(abi, [np.zeros(shape, np.float32) for shape in abi.cache_shapes])
    before = bits(abi, zeros, 0)
    assert changed(before, bits(abi, zeros, 0), slice(None)) == ""
    for which, words in ((2, "slot 7 of k_cache.1"), (1, "slot 7 of v_cache.1")):
        other = [k.copy() for k in zeros]
        other[which][1, 2, 7] = 3
        values = (by_position(abi, kept, 0) for kept in (zeros, other))
        assert changed(*values, slice(None)) == "", "which numbers do not show"
        assert changed(before, bits(abi, other, 0), slice(None)) == words


@pytest.mark.parametrize("which", range(4))
def test_what_prefill_leaves_behind_the_bucket(which: int) -> None:
    one = session("llama", "emitter")
    one.prefill(tokens("llama")[:5], T)
    assert after_prompt(one, one.caches(whole=True), 5, T) == ""
    assert one._caches is not None
    found = [np.array(one._backend.download(c)) for c in one._caches]
    found[which][0, 0, T + 1] = 1
    one._caches = tuple(map(one._backend.upload, found))
    assert (
        after_prompt(one, one.caches(whole=True), 5, T)
        == f"{'kv'[which % 2]}_cache is not zero from slot {T} on, behind the bucket"
    )
    one.reset()


def test_a_row_whose_idle_scale_changes() -> None:
    class Wrong(Beside):
        def step(self, given: Any) -> Any:
            found = super().step(given)
            assert self._caches is not None
            *caches, scale = (np.array(self._backend.download(c)) for c in self._caches)
            if 1 not in given:
                scale[0, 1, 0, 0] += 1
            self._caches = tuple(map(self._backend.upload, (*caches, scale)))
            return found

    model = checkpoint("llama")
    graphs = [
        Emitter().emit(model.config, p, "logits", S, n, None, B, kv="int8") for p, n in (("decode", 0), ("extend", T))
    ]
    wrong = Wrong(make_backend("xla-cpu", 1), graphs, model.load)
    assert apart(wrong, (tokens("llama")[:5], tokens("llama")[5:8]), T) == "row 1 is idle, and its v_cache changes"


def shares(change: Any) -> float:
    """What a graph's integers and numbers are apart of the oracle's, of what is allowed."""
    graph = Emitter().emit(checkpoint("llama").config, "decode", "logits", S, kv="int8")
    x = np.random.default_rng(0).normal(0, 1, (2, 3, S, 16)).astype(np.float32)
    steps, scale = int8.quantized(x)
    mine, own = change(x, steps.copy(), scale.copy())
    found = [
        (int8.dequantized(mine, own), int8.dequantized(steps, scale)),
        (mine, steps),
        (own[..., None], scale[..., None]),
    ]
    return max(share_of("k_cache.0", got, expected, graph) for got, expected in found)


def flipped(x: np.ndarray, steps: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    steps[0, 1, 5, 3] += 1
    return steps, scale


def cut_off(x: np.ndarray, steps: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.trunc(x / scale[..., None]).astype(np.int8), scale


def two_steps(x: np.ndarray, steps: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    steps[0, 1, 5, 3] += 2
    return steps, scale


def other_scale(x: np.ndarray, steps: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scale[0, 1, 5] *= 1.001
    return steps, scale


def test_equal_inputs_give_equal_integers_but_for_a_few() -> None:
    assert shares(lambda x, steps, scale: (steps, scale)) == 0
    assert 0 < shares(flipped) <= 1, "next to the middle of two integers either may be taken"
    for wrong in (cut_off, two_steps, other_scale):
        assert shares(wrong) > 1, wrong.__name__


# ---- what stands in a graph


@pytest.mark.parametrize("phase", ["decode", "prefill", "extend"])
def test_a_cache_is_an_anchor_with_its_integers_and_scales_beside(phase: str) -> None:
    config = checkpoint("llama").config
    for write in (Emitter().emit, lower):
        anatomy = Anatomy(write(config, phase, "logits", S, T if phase != "decode" else 0, kv="int8"), config)
        first = anatomy.subgraph("k_cache.0").graph
        assert first.abi.results[0].dtype == "f32"
        second = anatomy.subgraph("v_cache.1").graph.abi
        if phase != "extend":
            assert anatomy.targets("k_cache.0") == ["k_cache.0", "k_cache.0+", "k_scale.0+"]
            taken = {a.name: a.dtype for a in second.arguments}
            assert (taken["v_cache.0+"], taken["v_scale.0+"]) == ("i8", "f32")
            assert all(anatomy.returned(role) is None for role in anatomy.graph.abi.caches)


# ---- the ABI


def abi(phase: str = "decode", batch: int = 1) -> Abi:
    return graph_abi(
        checkpoint("llama").config, phase, "logits", S, T if phase != "decode" else 0, batch=batch, kv="int8"
    )


def test_the_abi_of_scales(tmp_path: Path) -> None:
    one, rows = abi(), abi(batch=B)
    assert one.caches == ("k_cache", "v_cache", "k_scale", "v_scale")
    assert (one.kv, one.compute, one.capacity, rows.batch) == ("int8", "f32", S, B)
    assert [r.type for r in one.results[1:]] == [f"[3, 4, {S}, 10] i8"] * 2 + [f"[3, 4, {S}] f32"] * 2
    assert [r.aliases for r in rows.results[1:]] == [len(rows.arguments) - n for n in (4, 3, 2, 1)]
    for graph in (one, rows, abi("prefill"), abi("extend", B)):
        graph.validate()
        (tmp_path / "a.abi.json").write_text(graph.to_json())
        assert Abi.from_file(tmp_path / "a.abi.json") == graph
    name = graph_name(checkpoint("llama").config, "decode", "token", 0, 2, kv="int8")
    assert name == "llama_decode_token_batch_2_kv_int8"


def with_result(index: int, **changes: Any) -> Abi:
    one = abi("prefill")
    results = [dataclasses.replace(r, **changes) if i == index else r for i, r in enumerate(one.results)]
    return dataclasses.replace(one, results=tuple(results))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: dataclasses.replace(abi("prefill"), results=abi("prefill").results[:-1]), "not token or logits, k_cache, v_cache, k_scale, v_scale"),
        (lambda: dataclasses.replace(abi("prefill"), results=abi("prefill").results[:3]), "k_cache.* i8, not of rank 4 and f32"),
        (lambda: with_result(1, dtype="f32"), "not of rank 4 and i8"),
        (lambda: with_result(3, dtype="i8"), "not of rank 3 and f32"),
        (lambda: with_result(4, shape=(3, 4, S - 1)), "the caches have slots"),
        (lambda: dataclasses.replace(abi(), windowed=(0,)), "rings|k_ring"),
    ],
)  # fmt: skip
def test_an_abi_that_is_none(wrong: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        wrong().validate()


# ---- refusals


@pytest.mark.parametrize(
    "arguments",
    [
        ["emit", "tiny-mistral", "--phase", "decode", "-o", "x.mlir"],
        ["run", "tiny-mistral", "--rounds", "0"],
        ["suite", "mistral"],
        ["generate", "tiny-mistral", "-p", "a"],
        ["bench", "tiny-mistral"],
    ],
)
@pytest.mark.parametrize(("flags", "where"), [(["--ring"], "--ring"), (["--compute", "bf16"], "--compute")])
def test_commands_refuse_what_does_not_go_together(
    arguments: list[str], flags: list[str], where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, [*arguments, "--kv", "int8", *flags])
    assert isinstance(result.exception, InputError) or result.exit_code == 2
    said = f"{result.output} {result.exception}"
    assert where in said
    assert "int8" in said


def test_an_unknown_kind() -> None:
    import hloracle

    with pytest.raises(InputError, match="--kv"):
        hloracle.emit("tiny-llama", kv="int4")
    with pytest.raises(InputError, match="--kv"):
        hloracle.run("tiny-llama", kv="int4")


def test_graph() -> None:
    graph: Graph = __import__("hloracle").emit("tiny-llama", capacity=64, kv="int8")
    assert graph.abi.kv == "int8"
