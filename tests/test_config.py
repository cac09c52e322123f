"""A config is read strictly: what is not understood is refused by name."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published import PUBLISHED

from hloracle.core.errors import InputError
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.config import Config, Layer, Rope
from hloracle.reference.model.registry import FAMILIES, from_hf, load_config
from hloracle.reference.model.rope import decode_tables, prefill_tables
from hloracle.reference.model.weights import weight_shapes

CONFIGS = Path(__file__).parent / "configs"
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 3.0}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
# Keys that say nothing of what is computed, and one without which nothing can be said.
NOTHING = ("architectures", "bos_token_id", "eos_token_id", "pad_token_id")
MISSING = object()
BIASES = ("attention_bias", "mlp_bias", "use_qkv_bias", "use_bias", "qkv_bias", "attention_out_bias")


def _theirs(raw: dict[str, Any]) -> Any:
    """transformers' config; it writes into what it is given."""
    import transformers

    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        return transformers.AutoConfig.for_model(**copy.deepcopy(raw))
    finally:
        transformers.logging.set_verbosity(before)


def _meta_model(raw: dict[str, Any]) -> Any:
    """transformers' model of a config, without its weights' values."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(_theirs(raw))


def _raw(**changes: Any) -> dict[str, Any]:
    raw = {**TINY["llama"], "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, **changes}
    return {key: value for key, value in raw.items() if value is not MISSING}


def _published(name: str) -> dict[str, Any]:
    return json.loads((CONFIGS / name).read_text())


def test_llama_3_2_1b() -> None:
    rope = Rope(
        "llama3", 500000.0, 64, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    )  # fmt: skip
    assert from_hf(_published("llama-3.2-1b.json")) == Config(
        architecture="llama",
        layers=(Layer(rope),) * 16,
        hidden_size=2048,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        intermediate_size=8192,
        vocab_size=128256,
        max_position_embeddings=131072,
        norm_eps=1e-5,
        scaling=0.125,
        tie_word_embeddings=True,
    )


def test_smollm2_135m() -> None:
    config = from_hf(_published("smollm2-135m.json"))
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (30, 576, 1536)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.tie_word_embeddings) == (49152, True)
    assert config.ropes == (Rope("default", 100000.0, 64),)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published(name: str) -> None:
    """Each is accepted, and says the same after transformers has filled in what it leaves out."""
    raw = PUBLISHED[name]
    config = from_hf(raw)
    assert from_hf(_theirs(raw).to_dict()) == config


def test_published_are_of_every_family() -> None:
    assert {raw["model_type"] for raw in PUBLISHED.values()} == FAMILIES.keys()


def test_what_published_configs_say() -> None:
    def config(name: str) -> Config:
        return from_hf(PUBLISHED[name])

    assert config("Mistral-7B-v0.1").windows == (4096,)
    assert config("Mistral-7B-v0.3").windows == (None,)
    assert (config("Mistral-Nemo-Base-2407").head_dim, config("Mistral-Nemo-Base-2407").scaling) == (128, 128**-0.5)
    assert config("Qwen2.5-7B-Instruct").windows == (None,)
    assert config("Qwen2.5-7B-with-yarn").ropes[0].attention_factor == pytest.approx(1.1386294361119891)
    assert (config("gemma-2b").hidden_act, config("gemma-2b").embedding_multiplier) == (
        "gelu_pytorch_tanh",
        45.25483322143555,
    )
    assert config("gemma-2-27b").scaling == 144**-0.5
    gemma = config("gemma-3-1b-it")
    assert [i for i, layer in enumerate(gemma.layers) if layer.window is None] == [5, 11, 17, 23]
    assert [(rope.theta, rope.type) for rope in gemma.ropes] == [(10000.0, "default"), (1000000.0, "default")]
    assert [rope.type for rope in config("gemma-3-4b-text").ropes] == ["default", "linear"]
    assert config("Phi-3-mini-128k-instruct").turning_point == 4096
    assert config("Phi-3-mini-128k-instruct").ropes[0].attention_factor == pytest.approx(1.1902380714238083)
    assert config("Phi-4-mini-instruct").ropes[0].dim == 96
    assert [rope.type for rope in config("Olmo-3-7B").ropes] == ["default", "yarn"]
    assert [i for i, layer in enumerate(config("SmolLM3-3B").layers) if layer.rope is None] == list(range(3, 36, 4))
    assert config("granite-3.1-8b-instruct").logits_multiplier == 1 / 16
    assert config("c4ai-command-r-plus").qk_norm == "own"
    assert all((layer.rope is None) == (layer.window is None) for layer in config("c4ai-command-r7b-12-2024").layers)
    assert config("stablelm-2-12b").use_parallel_residual
    assert config("GLM-4-9B-0414").ropes == (Rope("default", 10000.0, 64, interleaved=True),)
    assert all(layer.sparse for layer in config("Qwen3-30B-A3B").layers)
    gpt = config("gpt-oss-20b")
    assert [layer.window for layer in gpt.layers[:2]] == [128, None]
    assert (gpt.ropes[0].truncate, gpt.attention_out_bias) == (False, True)
    deepseek = config("DeepSeek-V3")
    assert [layer.sparse for layer in deepseek.layers[:4]] == [False, False, False, True]
    assert deepseek.scaling == pytest.approx(192**-0.5 * (0.1 * 3.6888794541139363 + 1) ** 2)
    assert deepseek.ropes[0].attention_factor == 1.0
    assert deepseek.cache_widths == (512, 64)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_reads_what_transformers_writes(architecture: str) -> None:
    """Every key that it writes, whole or what differs from its defaults, is understood and means the same."""
    config, theirs = from_hf(TINY[architecture]), _theirs(TINY[architecture])
    assert from_hf(theirs.to_dict()) == config
    assert from_hf(json.loads(theirs.to_json_string(use_diff=True))) == config


def _attempt(raw: dict[str, Any]) -> tuple[Config | None, str]:
    """Our reading, or why it is refused."""
    try:
        return from_hf(raw), ""
    except InputError as error:
        return None, str(error)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_defaults_are_those_of_transformers(architecture: str) -> None:
    """A key that may be omitted, each by itself and all together, says what transformers says in its place."""
    raw, omitted = TINY[architecture], []
    for key in raw.keys() - {*NOTHING, "model_type"}:
        without = {k: v for k, v in raw.items() if k != key}
        config, refusal = _attempt(without)
        if config is None:
            assert refusal.startswith(f"config: key '{key}' is missing")
            continue
        assert from_hf(_theirs(without).to_dict()) == config, key
        omitted.append(key)
    assert "tie_word_embeddings" in omitted
    bare = {k: v for k, v in raw.items() if k not in omitted}
    assert from_hf(_theirs(bare).to_dict()) == from_hf(bare)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_null_is_what_transformers_takes_it_for(architecture: str) -> None:
    """Where both take it."""
    accepted = []
    for key in TINY[architecture].keys() - {*NOTHING, "model_type"}:
        null = {**TINY[architecture], key: None}
        config, _ = _attempt(null)
        try:
            theirs = _theirs(null).to_dict()
        except Exception:
            continue
        if config is not None:
            assert from_hf(theirs) == config, key
            accepted.append(key)
    assert accepted


@pytest.mark.parametrize("architecture", FAMILIES)
def test_mechanisms_are_those_of_transformers(architecture: str) -> None:
    """What can be asked of its config and of its modules, layer by layer."""
    raw = TINY[architecture]
    config, theirs, model = from_hf(raw), _theirs(raw), _meta_model(raw).model
    same = "hidden_size num_attention_heads intermediate_size vocab_size max_position_embeddings tie_word_embeddings"
    for key in same.split():
        assert getattr(config, key) == getattr(theirs, key), key
    act = theirs.hidden_activation if hasattr(theirs, "hidden_activation") else theirs.hidden_act
    assert config.hidden_act == act
    kinds = getattr(theirs, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    window = getattr(theirs, "sliding_window", None) or None
    assert [layer.window for layer in config.layers] == [window if k == "sliding_attention" else None for k in kinds]
    for layer, module in zip(config.layers, model.layers, strict=True):
        attention = module.self_attn
        assert config.scaling == pytest.approx(attention.scaling, rel=1e-12)
        if not config.latent:
            assert config.head_dim == attention.head_dim
            assert config.num_attention_heads // config.num_key_value_heads == attention.num_key_value_groups
        assert layer.sparse == any(hasattr(module.mlp, name) for name in ("gate", "router", "experts"))
        projections = (getattr(attention, name, None) for name in ("q_proj", "qkv_proj", "q_a_proj"))
        assert config.attention_bias == (next(p for p in projections if p is not None).bias is not None)
        assert config.attention_out_bias == (attention.o_proj.bias is not None)
    norms = [m for name, m in model.named_modules() if "norm" in name.split(".")[-1] and "_a_" not in name]
    eps = {getattr(m, "variance_epsilon", None) or getattr(m, "eps", None) for m in norms} - {None}
    assert eps == {config.norm_eps}


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ({"rope_type": "default", "rope_theta": 5e5}, {"rope_theta": 5e5}),
        ({"rope_type": "default", "rope_theta": 5e5}, {"rope_theta": 500000, "rope_scaling": None}),
        ({**LLAMA3, "rope_theta": 5e5}, {"rope_theta": 5e5, "rope_scaling": LLAMA3}),
        ({**LLAMA3, "rope_theta": 5e5}, {"rope_theta": 5e5, "rope_scaling": {**LLAMA3, "type": "llama3"}}),
    ],
    ids=["default", "default-null", "llama3", "llama3-both-names"],
)
def test_old_and_new_rope_forms_are_equal(new: dict[str, Any], old: dict[str, Any]) -> None:
    assert from_hf(_raw(rope_parameters=new)) == from_hf(_raw(rope_parameters=MISSING, **old))


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"model_type": "mamba"},
        "model_type 'mamba' is not supported; use a model of one of these types: cohere, cohere2, deepseek_v3",
    ),
    ({"model_type": MISSING}, "model_type None is not supported"),
    ({"model_type": ["llama"]}, "model_type ['llama'] is not supported"),
    ({"logit_scale": 2.0, "attn_gate": None}, "unknown key 'attn_gate', 'logit_scale'"),
    ({"hidden_size": MISSING}, "key 'hidden_size' is missing"),
    ({"hidden_size": None}, "key 'hidden_size' is missing"),
    ({"hidden_size": "84"}, "key 'hidden_size' is '84', not of type int"),
    ({"hidden_size": 84.0}, "key 'hidden_size' is 84.0, not of type int"),
    ({"hidden_size": 0}, "key 'hidden_size' is 0, not a positive finite number"),
    ({"num_hidden_layers": True}, "key 'num_hidden_layers' is True, not of type int"),
    ({"num_attention_heads": -6}, "key 'num_attention_heads' is -6, not a positive finite number"),
    ({"num_key_value_heads": 4}, "num_attention_heads 6 is not a multiple of num_key_value_heads 4"),
    ({"head_dim": 15}, "head_dim 15 is odd"),
    ({"rms_norm_eps": float("nan")}, "key 'rms_norm_eps' is nan, not a positive finite number"),
    ({"rms_norm_eps": float("inf")}, "key 'rms_norm_eps' is inf, not a positive finite number"),
    ({"rms_norm_eps": 10**400}, "key 'rms_norm_eps' is not from 1.2e-38 to 3.4e+38, as float32 holds it"),
    ({"rms_norm_eps": 1e300}, "key 'rms_norm_eps' is not from 1.2e-38 to 3.4e+38, as float32 holds it"),
    ({"rms_norm_eps": 1e-40}, "key 'rms_norm_eps' is not from 1.2e-38 to 3.4e+38, as float32 holds it"),
    ({"hidden_size": 10**400}, "key 'hidden_size' is not at most 16,777,216"),
    ({"vocab_size": 10**18}, "key 'vocab_size' is not at most 16,777,216"),
    ({"head_dim": 2**16 + 2}, "key 'head_dim' is not at most 65,536"),
    ({"head_dim": 2**16}, "RoPE turns 65,536 dimensions of a head, more than 4,096"),
    ({"num_hidden_layers": 513}, "key 'num_hidden_layers' is not at most 512"),
    ({"num_attention_heads": 10**5}, "key 'num_attention_heads' is not at most 1,024"),
    ({"max_position_embeddings": 2**31}, "key 'max_position_embeddings' is not at most 2,147,483,647"),
    ({"rms_norm_eps": 0}, "key 'rms_norm_eps' is 0, not a positive finite number"),
    ({"tie_word_embeddings": 1}, "key 'tie_word_embeddings' is 1, not of type bool"),
    ({"hidden_act": "gelu"}, "key 'hidden_act' is 'gelu', and only 'silu' and 'gelu_pytorch_tanh' are supported"),
    ({"quantization_config": {"quant_method": "awq"}}, "key 'quantization_config' is"),
    ({"rope_interleaved": True}, "key 'rope_interleaved' is True"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=["-".join(changes) for changes, _ in REFUSED])
def test_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        from_hf(_raw(**changes), "some/config.json")
    assert str(caught.value).startswith("some/config.json: ")
    assert words in str(caught.value)


ROPE_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"rope_parameters": "default"}, "key 'rope_parameters' is 'default', not of type dict"),
    ({"rope_parameters": {"rope_type": "proportional"}}, "rope_type 'proportional' is not supported"),
    ({"rope_parameters": {"type": "su", "factor": 2.0}}, "rope_type 'su' is not supported"),
    ({"rope_parameters": {"type": "linear"}}, "key 'factor' is missing"),
    ({"rope_parameters": {"type": "dynamic", "factor": 0}}, "key 'factor' is 0, not a positive finite number"),
    ({"rope_parameters": {"type": "linear", "factor": 2.0, "truncate": True}}, "unknown RoPE key 'truncate'"),
    ({"rope_parameters": {"type": "longrope"}}, "rope_type 'longrope' needs 'short_factor' and 'long_factor'"),
    (
        {"rope_parameters": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 7}},
        "key 'long_factor' is not a list of 8 positive numbers",
    ),
    *(
        (
            {"rope_parameters": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 8, key: [*[1.0] * 7, n]}},
            f"key '{key}' is not a list of 8 positive numbers",
        )
        for key in ("short_factor", "long_factor") for n in ("1", 0, -1.0, 10**400)
    ),
    (
        {"rope_parameters": {**LONGROPE, "original_max_position_embeddings": 1}},
        "rope_type 'longrope' divides by the logarithm of 'original_max_position_embeddings', which is 0 here",
    ),
    ({"max_position_embeddings": 1, "rope_parameters": LONGROPE}, "rope_type 'longrope' divides by the logarithm of"),
    (
        {"rope_parameters": DYNAMIC, "head_dim": 2},
        "rope_type 'dynamic' divides by the number of turned dimensions less 2, which is 0 here",
    ),
    (
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1}},
        "rope_type 'yarn' divides by the logarithm of 'rope_theta', which is 0 here",
    ),
    ({"rope_parameters": {"rope_type": "linear", "factor": 5e-324}}, "key 'factor' is not from 1.2e-38 to 3.4e+38"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 2, "beta_fast": 1e308}}, "key 'beta_fast' is not from 1.2e-38"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 2, "mscale": 1e308}}, "key 'mscale' is not from 1.2e-38"),
    (
        {"rope_parameters": {"rope_type": "yarn", "factor": 3e38, "mscale": 3e38, "mscale_all_dim": 1e-37}},
        "attention_factor comes to 2.65791e+39, which float32 does not hold",
    ),
    ({"rope_parameters": {"rope_theta": 1e308}}, "key 'rope_theta' is not from 1.2e-38 to 3.4e+38"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 10**400}}, "key 'factor' is not from 1.2e-38 to 3.4e+38"),
    ({"partial_rotary_factor": 0.5}, "unknown key 'partial_rotary_factor'"),
    ({"rope_parameters": {"rope_type": "default", "factor": 8.0}}, "unknown RoPE key 'factor'"),
    ({"rope_parameters": {**LLAMA3, "beta_fast": 32}}, "unknown RoPE key 'beta_fast'"),
    ({"rope_parameters": {**LLAMA3, "factor": None}}, "key 'factor' is missing"),
    ({"rope_parameters": {**LLAMA3, "factor": "8"}}, "key 'factor' is '8', not of type float"),
    ({"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}, "is not above low_freq_factor"),
    ({"rope_parameters": {**LLAMA3, "partial_rotary_factor": 0.5}}, "'partial_rotary_factor' is not 1"),
    ({"rope_parameters": {**LLAMA3, "rope_theta": -1.0}}, "key 'rope_theta' is -1.0"),
    ({"rope_theta": 5e5}, "has rope_theta 500000.0 and, in the RoPE settings, 10000.0"),
    ({"rope_scaling": LLAMA3}, "has both 'rope_parameters' and 'rope_scaling', and they differ"),
    ({"rope_theta": "10000"}, "key 'rope_theta' is '10000', not of type float"),
]  # fmt: skip


EDGES = (1.2e-38, 3.4e38)
EXTREME_ROPES: list[dict[str, Any]] = [
    {},
    *({"rope_type": type, "factor": factor} for type in ("linear", "dynamic", "yarn") for factor in EDGES),
    *({**LLAMA3, "factor": factor} for factor in EDGES),
    *({**LONGROPE, "short_factor": [factor] * 8} for factor in (*EDGES, 5e-324)),
    *(
        {"rope_type": "yarn", "factor": 2.0, key: edge}
        for key in ("beta_fast", "beta_slow", "mscale")
        for edge in EDGES
    ),
]


def test_tables_are_finite_where_a_config_is_taken() -> None:
    """And NumPy warns of nothing: a warning is an error here. 64 positions are beyond a first context of 32."""
    taken = set[str]()
    for theta, rope, positions in itertools.product((*EDGES, 1.5), EXTREME_ROPES, (32, 2048)):
        raw = _raw(rope_parameters={"rope_theta": theta, **rope}, max_position_embeddings=positions)
        try:
            config = from_hf(raw, "some/config.json")
        except InputError:
            continue
        taken.add(rope.get("rope_type", "default"))
        for found in config.ropes:
            for tables in (decode_tables(found, 64), prefill_tables(found, 64)):
                assert np.isfinite(tables.cos).all(), (theta, rope)
                assert np.isfinite(tables.sin).all(), (theta, rope)
    assert taken == {"default", "linear", "dynamic", "yarn", "llama3", "longrope"}


@pytest.mark.parametrize(("changes", "words"), ROPE_REFUSED, ids=["-".join(changes) for changes, _ in ROPE_REFUSED])
def test_rope_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        from_hf(_raw(**changes), "some/config.json")
    assert str(caught.value).startswith("some/config.json: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{'model_type': 'llama'}", "is not JSON"),
        (b"", "is empty"),
        (b'{"model_type": "llama"', "is not JSON"),
        (b"\xff\xfe{}", "is not text"),
        (b"\xef\xbb\xbf{}", "begins with a byte order mark"),
        (b'{"hidden_size": 1, "hidden_size": 2}', "has the key 'hidden_size' twice"),
        (b'{"rms_norm_eps": 1e999}', "rms_norm_eps is inf, not a finite number"),
        (b"[]", "is not a JSON object"),
        (b"{}", "model_type None is not supported"),
        (b'{"model_type": "llama", "rope_theta": 1' + b"0" * 5000 + b"}", "holds a number of more than 40 digits"),
        (b"[" * 100_000, "is nested more than 100 deep"),
        (b"[" * 101 + b"]" * 101, "is nested more than 100 deep"),
        (b"[" * 100 + b"]" * 100, "is not a JSON object"),
    ],
)
def test_config_json_that_cannot_be_read(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        load_config(tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such model"):
        load_config(tmp_path / "absent")


def test_directory_without_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json"):
        load_config(tmp_path)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_unknown_key(architecture: str) -> None:
    """An unknown key is an unknown mechanism, also if it is null, and inside of the RoPE settings."""
    with pytest.raises(InputError, match="unknown key 'attn_gate'"):
        from_hf({**TINY[architecture], "attn_gate": None})
    raw = copy.deepcopy(TINY[architecture])
    settings = raw["rope_parameters"]
    settings.get("full_attention", settings)["wavelength"] = 1.0
    with pytest.raises(InputError, match="unknown RoPE key 'wavelength'"):
        from_hf(raw)


# A value that is not supported, of a key that is otherwise understood: one or more for each family.
UNSUPPORTED: list[tuple[str, dict[str, Any], str]] = [
    *(
        (architecture, {"quantization_config": {"quant_method": "fp8"}}, "key 'quantization_config' is")
        for architecture in FAMILIES
    ),
    *(
        (architecture, {"hidden_activation" if "hidden_activation" in row else "hidden_act": "relu"}, "is 'relu', and only")
        for architecture, row in TINY.items()
    ),
    ("mistral", {"sliding_window": 0}, "key 'sliding_window' is 0, not a positive finite number"),
    ("mistral", {"num_key_value_heads": MISSING}, "key 'num_key_value_heads' is missing"),
    ("qwen2", {"use_mrope": True}, "key 'use_mrope' is True, and only False is supported"),
    ("qwen2", {"layer_types": ["sliding_attention"]}, "key 'layer_types' is not a list of 2 times 'full_attention' or"),
    ("qwen2", {"layer_types": ["full_attention", "chunked_attention"]}, "key 'layer_types' is not a list of 2 times"),
    ("qwen2", {"sliding_window": None, "layer_types": ["sliding_attention"] * 2}, "a sliding window, and no 'sliding_window'"),
    ("qwen3", {"layer_types": "full_attention"}, "key 'layer_types' is 'full_attention', not of type list"),
    ("gemma", {"use_bidirectional_attention": True}, "key 'use_bidirectional_attention' is True"),
    ("gemma2", {"sliding_window": None}, "has layers with a sliding window, and no 'sliding_window'"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "key 'query_pre_attn_scalar' is 0, not a positive finite number"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "key 'use_bidirectional_attention' is True"),
    (
        "gemma3_text", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        "unknown key 'rope_theta', 'rope_type' in 'rope_parameters', which has one set per layer type",
    ),
    *(
        (
            architecture, {"rope_parameters": {**TINY[architecture]["rope_parameters"], kind: settings}},
            f"key '{kind}' is {settings!r}, not of type dict",
        )
        for architecture in ("gemma3_text", "olmo3")
        for kind in ("full_attention", "sliding_attention")
        for settings in ("default", ["default"], 1.0, [])
    ),
    ("phi3", {"attention_bias": True}, "key 'attention_bias' is True, and only False is supported"),
    ("phi3", {"lm_head_bias": True}, "key 'lm_head_bias' is True, and only False is supported"),
    ("phi3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_type 'linear' is not supported"),
    ("phi3", {"partial_rotary_factor": 0.2, "rope_parameters": None}, "RoPE turns 3 of 16 dimensions"),
    (
        "phi3", {"original_max_position_embeddings": 1},
        "rope_type 'longrope' divides by the logarithm of 'original_max_position_embeddings', which is 0 here",
    ),
    ("olmo3", {"layer_types": ["full_attention"] * 3}, "key 'layer_types' is not a list of 2 times"),
    (
        "olmo3",
        {"rope_parameters": {"full_attention": {**TINY["olmo3"]["rope_parameters"]["full_attention"], "truncate": False}}},
        "key 'truncate' is False, which transformers does not read in a layer type's own set",
    ),
    ("smollm3", {"no_rope_layers": [1]}, "key 'no_rope_layers' is not a list of 2 numbers"),
    ("smollm3", {"no_rope_layers": [1, 10**400]}, "key 'no_rope_layers' is not a list of 2 numbers"),
    ("smollm3", {"no_rope_layers": [1, "0"]}, "key 'no_rope_layers' is not a list of 2 numbers"),
    ("smollm3", {"no_rope_layer_interval": 0}, "key 'no_rope_layer_interval' is 0, not a positive finite number"),
    ("granite", {"logits_scaling": 0.0}, "key 'logits_scaling' is 0.0, not a positive finite number"),
    ("cohere", {"use_qk_norm": "yes"}, "key 'use_qk_norm' is 'yes', not of type bool"),
    ("cohere2", {"use_parallel_block": False}, "key 'use_parallel_block' is False, and only True is supported"),
    ("cohere2", {"position_embedding_type": "alibi"}, "key 'position_embedding_type' is 'alibi', and only 'rope_gptj'"),
    ("cohere2", {"layer_norm_eps": MISSING}, "key 'layer_norm_eps' is missing"),
    ("stablelm", {"head_dim": 14}, "head_dim 14 is not hidden_size / num_attention_heads, 16"),
    ("stablelm", {"hidden_size": 94}, "hidden_size 94 is not a multiple of num_attention_heads 6"),
    ("stablelm", {"partial_rotary_factor": 0.2}, "RoPE turns 3 of 16 dimensions, and it turns pairs"),
    ("stablelm", {"partial_rotary_factor": 1.5}, "key 'partial_rotary_factor' is 1.5, and RoPE turns a part"),
    ("stablelm", {"partial_rotary_factor": 1e38}, "key 'partial_rotary_factor' is 1e+38, and RoPE turns a part"),
    ("stablelm", {"partial_rotary_factor": 0.125, "rope_parameters": DYNAMIC}, "rope_type 'dynamic' divides by the number"),
    ("starcoder2", {"norm_type": "rms_norm"}, "key 'norm_type' is 'rms_norm', and only 'layer_norm' is supported"),
    ("granite", {"logits_scaling": 3e38}, "logits_multiplier comes to 3.33333e-39, which float32 does not hold"),
    ("qwen3_moe", {"num_experts": 10**9}, "key 'num_experts' is not at most 2,048"),
    ("glm4", {"partial_rotary_factor": 0}, "key 'partial_rotary_factor' is 0, not a positive finite number"),
    ("mixtral", {"num_experts_per_tok": 6}, "num_experts_per_tok 6 is more than the 5 experts"),
    ("qwen2_moe", {"mlp_only_layers": [2]}, "key 'mlp_only_layers' is [2], not a list of layers below 2"),
    ("qwen2_moe", {"mlp_only_layers": ["0"]}, "key 'mlp_only_layers' is ['0'], not a list of layers below 2"),
    ("qwen3_moe", {"mlp_only_layers": [-1]}, "key 'mlp_only_layers' is [-1], not a list of layers below 2"),
    ("qwen3_moe", {"decoder_sparse_step": 0}, "key 'decoder_sparse_step' is 0, not a positive finite number"),
    ("qwen3_moe", {"num_experts": MISSING}, "key 'num_experts' is missing"),
    *(
        ("qwen3_moe", {"num_experts": MISSING, "num_local_experts": count}, f"key 'num_local_experts' is {count!r}, not ")
        for count in ("8", 8.5, 0)
    ),
    ("qwen3_moe", {"num_local_experts": 8}, "num_local_experts 8 is not num_experts 7, for which it stands"),
    ("deepseek_v3", {"num_local_experts": 12}, "num_local_experts 12 is not n_routed_experts 9, for which it stands"),
    ("deepseek_v3", {"num_local_experts": 9.0}, "key 'num_local_experts' is 9.0, not of type int"),
    ("deepseek_v3", {"num_local_experts": None}, "key 'num_local_experts' is missing"),
    ("olmoe", {"clip_qkv": -1.0}, "key 'clip_qkv' is -1.0, not a positive finite number"),
    ("gpt_oss", {"rope_parameters": MISSING}, "key 'rope_parameters' is missing"),
    ("gpt_oss", {"num_experts_per_tok": 0}, "key 'num_experts_per_tok' is 0, not a positive finite number"),
    ("deepseek_v3", {"scoring_func": "softmax"}, "key 'scoring_func' is 'softmax', and only 'sigmoid' is supported"),
    ("deepseek_v3", {"first_k_dense_replace": -1}, "key 'first_k_dense_replace' is -1, not a positive finite number"),
    ("deepseek_v3", {"first_k_dense_replace": 1.5}, "key 'first_k_dense_replace' is 1.5, not of type int"),
    ("deepseek_v3", {"n_group": 4}, "n_routed_experts 9 are not 4 groups of two or more (n_group)"),
    ("deepseek_v3", {"n_group": 9}, "n_routed_experts 9 are not 9 groups of two or more (n_group)"),
    ("deepseek_v3", {"n_group": 0}, "key 'n_group' is 0, not a positive finite number"),
    ("deepseek_v3", {"head_dim": 22}, "head_dim 22 is not qk_rope_head_dim 8"),
    ("deepseek_v3", {"topk_group": 4}, "topk_group 4 is more than the 3 groups"),
    ("deepseek_v3", {"num_experts_per_tok": 7}, "num_experts_per_tok 7 is more than the chosen groups have"),
    ("deepseek_v3", {"num_key_value_heads": 2}, "num_key_value_heads 2 is not num_attention_heads 6"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("architecture", "changes", "words"), UNSUPPORTED, ids=[f"{a}-{'-'.join(c)}" for a, c, _ in UNSUPPORTED]
)
def test_unsupported(architecture: str, changes: dict[str, Any], words: str) -> None:
    raw = {key: value for key, value in {**TINY[architecture], **changes}.items() if value is not MISSING}
    with pytest.raises(InputError) as caught:
        from_hf(raw, "some/config.json")
    assert str(caught.value).startswith("some/config.json: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("architecture", "key"), [("qwen3_moe", "num_experts"), ("deepseek_v3", "n_routed_experts")])
def test_num_local_experts_is_another_name(architecture: str, key: str) -> None:
    """The one that transformers goes by where a config has both."""
    raw = TINY[architecture]
    assert from_hf({**raw, "num_local_experts": raw[key]}) == from_hf(raw)
    assert from_hf({**{k: v for k, v in raw.items() if k != key}, "num_local_experts": raw[key]}) == from_hf(raw)
    assert getattr(_theirs({**raw, "num_local_experts": 3}), key) == 3


@pytest.mark.parametrize("architecture", ["gemma3_text", "olmo3"])
def test_a_type_of_layer_without_settings_has_the_default_ones(architecture: str) -> None:
    settings = TINY[architecture]["rope_parameters"]
    without = {"full_attention": settings["full_attention"]}
    null, absent = (
        {**TINY[architecture], "rope_parameters": sets} for sets in ({**without, "sliding_attention": None}, without)
    )
    assert from_hf(null) == from_hf(absent) == from_hf(_theirs(absent).to_dict())


def test_heads_of_cohere2_are_as_wide_as_it_says() -> None:
    raw = TINY["cohere2"]
    assert raw["hidden_size"] != raw["num_attention_heads"] * 16
    config = from_hf(raw)
    assert (config.head_dim, config.scaling) == (16, 0.25)
    assert from_hf(_theirs(raw).to_dict()) == config
    theirs = {name: tuple(weight.shape) for name, weight in _meta_model(raw).named_parameters()}
    assert weight_shapes(config) == theirs


def _older(raw: dict[str, Any]) -> dict[str, Any]:
    """The config with RoPE as transformers wrote it before version 5."""
    raw = copy.deepcopy(raw)
    settings = raw.pop("rope_parameters")
    if "full_attention" in settings:
        sliding = settings["sliding_attention"]
        assert sliding.keys() == {"rope_type", "rope_theta"}
        if raw["model_type"] == "gemma3_text":
            raw["rope_local_base_freq"] = sliding["rope_theta"]
        else:
            # It had no key for another base of the windowed layers.
            settings["full_attention"] |= {"rope_theta": 500000.0}
        settings = settings["full_attention"]
    raw["rope_theta"] = settings.pop("rope_theta")
    if "partial_rotary_factor" in settings:
        raw["partial_rotary_factor"] = settings.pop("partial_rotary_factor")
    raw["rope_scaling"] = None if settings == {"rope_type": "default"} else settings
    return raw


@pytest.mark.parametrize("named", ["rope_type", "type"])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_older_form_of_rope(architecture: str, named: str) -> None:
    new = copy.deepcopy(TINY[architecture])
    if architecture == "olmo3":
        for settings in new["rope_parameters"].values():
            settings["rope_theta"] = 500000.0
    old = _older(new)
    assert "rope_parameters" not in old
    if old["rope_scaling"] and named != "rope_type":
        old["rope_scaling"][named] = old["rope_scaling"].pop("rope_type")
        if architecture in ("gemma3_text", "olmo3"):
            assert _theirs(old).rope_parameters["full_attention"]["rope_type"] == "default"
            with pytest.raises(InputError, match="transformers does not read 'type' in its place here"):
                from_hf(old)
            return
    assert from_hf(old) == from_hf(new)
    assert from_hf(_theirs(old).to_dict()) == from_hf(new)


def test_weight_shapes_of_llama_3_2_1b() -> None:
    shapes = weight_shapes(from_hf(_published("llama-3.2-1b.json")))
    assert len(shapes) == 1 + 16 * 9 + 1
    assert "lm_head.weight" not in shapes
    assert shapes["model.embed_tokens.weight"] == (128256, 2048)
    assert shapes["model.layers.15.self_attn.k_proj.weight"] == (512, 2048)
    assert shapes["model.layers.15.mlp.down_proj.weight"] == (2048, 8192)


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_weight_shapes_are_those_of_transformers(architecture: str, tied: bool, biased: bool) -> None:
    """Of its modules: with experts' weights fused, as graphs take them."""
    raw = {**TINY[architecture], "tie_word_embeddings": tied}
    raw |= {key: biased for key in raw if key in BIASES and architecture != "phi3"}
    model = _meta_model(raw)
    theirs = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    # A buffer of the router, and a norm of each head by itself.
    theirs |= {n: tuple(w.shape) for n, w in model.named_buffers() if n.endswith("e_score_correction_bias")}
    for name in [n for n in theirs if n.endswith(".norms.0.weight")]:
        heads = [n for n in theirs if n.startswith(name.removesuffix("0.weight"))]
        theirs[name.replace(".norms.0", "")] = (len(heads), *theirs[name])
        for head in heads:
            del theirs[head]
    assert weight_shapes(from_hf(raw)) == theirs
