"""The tiny models: transformers' own weights by name and shape, and built to expose mistakes."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from nightly import only

from hloracle.reference.fixtures.tiny import TINY, write_tiny
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.config import Config
from hloracle.reference.model.registry import FAMILIES, from_hf
from hloracle.reference.model.weights import stored_shapes

# Those whose hidden size is what all heads together are wide: transformers computes one from the other, or its o_proj
# is a square (olmoe).
SQUARE = ("phi3", "stablelm", "olmoe")
PROMPT = 97  # tokens of the longest one that every model is run on


def tiny(architecture: str) -> Config:
    return from_hf(TINY[architecture])


@cache
def transformers_shapes(architecture: str, folder: Path) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor that transformers' own model of this config saves."""
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers.AutoConfig.for_model(**copy.deepcopy(TINY[architecture]))
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    transformers.logging.set_verbosity_warning()
    (file,) = folder.glob("*.safetensors")
    with safetensors.safe_open(file, "np") as f:
        return {name: tuple(f.get_slice(name).get_shape()) for name in f.keys()}  # noqa: SIM118


@pytest.mark.parametrize("architecture", FAMILIES)
def test_stored_as_transformers_stores_it(architecture: str, tmp_path: Path) -> None:
    """Every tensor that its own class writes, by name and shape, and none besides."""
    theirs = dict(transformers_shapes(architecture, tmp_path))
    if tiny(architecture).tie_word_embeddings:
        theirs.pop("lm_head.weight", None)
    assert stored_shapes(tiny(architecture)) == theirs


@pytest.mark.parametrize("architecture", FAMILIES)
def test_loads_without_a_word(architecture: str, tmp_path: Path) -> None:
    """transformers takes each weight as it is written: nothing is missing, unexpected or misshapen."""
    import torch
    from transformers import AutoModelForCausalLM

    directory = write_tiny(tmp_path, architecture)
    model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")
    assert {kind: list(info[kind]) for kind in kinds} == {kind: [] for kind in kinds}
    assert type(model).__name__ == TINY[architecture]["architectures"][0]
    assert model.dtype == torch.float32
    ours, theirs = dict(open_checkpoint(directory).weights()), model.state_dict()
    for name, weight in ours.items():
        stacked = [theirs[n] for n in theirs if n.startswith(f"{name.removesuffix('weight')}norms.")]
        found = theirs[name] if name in theirs else torch.stack(stacked)
        np.testing.assert_array_equal(found.numpy(), weight, err_msg=name)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_sizes_that_must_not_be_mixed_up_differ(architecture: str) -> None:
    config = tiny(architecture)
    N, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    sizes = {"hidden": config.hidden_size, "vocabulary": config.vocab_size}
    if any(not layer.sparse for layer in config.layers):
        sizes["intermediate"] = config.intermediate_size
    if config.experts:
        sizes |= {"expert": config.experts.intermediate_size, "experts": config.experts.num_experts}
        sizes["chosen"] = config.experts.num_experts_per_tok
        if config.experts.shared_intermediate_size:
            sizes["shared"] = config.experts.shared_intermediate_size
    if config.latent:
        # Of keys and queries, of values; what RoPE turns and what it does not; both ranks.
        latent = config.latent
        sizes |= {"queries": N * D, "values": N * latent.v_head_dim, "turned": latent.qk_rope_head_dim}
        sizes |= {"kept": latent.qk_nope_head_dim, "value": latent.v_head_dim, "kv rank": latent.kv_lora_rank}
        sizes["q rank"] = latent.q_lora_rank or 0
    else:
        assert N // K == 3
        sizes |= {"queries": N * D, "keys": K * D, "head": D}
    if architecture in SQUARE:
        assert sizes.pop("queries") == config.hidden_size
    assert len(set(sizes.values())) == len(sizes), sizes
    assert config.vocab_size % 2 == 1
    assert config.norm_eps not in (1e-5, 1e-6), "of no class a default"


@pytest.mark.parametrize("architecture", SQUARE)
def test_transformers_demands_a_square(architecture: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = {**copy.deepcopy(TINY[architecture]), "hidden_size": 84, "head_dim": 16}
    with pytest.raises(Exception, match=r"multiple|divisible|shape|size|length"):  # noqa: PT012
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw))
        assert model.model.layers[0].self_attn.head_dim == 16, "size"
        model(torch.arange(5)[None])


@pytest.mark.parametrize("architecture", FAMILIES)
def test_windows_and_turning_points_are_crossed(architecture: str) -> None:
    config = tiny(architecture)
    assert all(window is None or window < PROMPT // 4 for window in config.windows)
    assert config.turning_point is None or config.turning_point < PROMPT // 2
    for rope in config.ropes:
        # What is scaled is scaled inside of a prompt.
        assert rope.original_max_position_embeddings <= 64


# What each row has in one layer or another: full attention or a window, RoPE or none, a dense MLP or experts.
KINDS: dict[str, set[str]] = {
    **{name: {"full", "window", "dense"} for name in ("qwen2", "qwen3", "gemma2", "gemma3_text", "olmo3")},
    **{name: {"window", "dense"} for name in ("mistral", "phi3", "starcoder2")},
    **{name: {"full", "window", "unturned", "dense"} for name in ("smollm3", "cohere2")},
    "mixtral": {"window", "sparse"},
    "qwen2_moe": {"full", "window", "dense", "sparse"},
    **{name: {"full", "dense", "sparse"} for name in ("qwen3_moe", "deepseek_v3")},
    "olmoe": {"full", "sparse"},
    "gpt_oss": {"full", "window", "sparse"},
}


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_layer_of_each_kind(architecture: str) -> None:
    layers = tiny(architecture).layers
    found = {"window" if layer.window else "full" for layer in layers}
    found |= {"sparse" if layer.sparse else "dense" for layer in layers}
    found |= {"unturned" for layer in layers if layer.rope is None}
    assert found == KINDS.get(architecture, {"full", "dense"})


# What a plain model would not show: each is away from the value that changes nothing.
OPTIONS = {
    "attn_logit_softcapping": ("gemma2",),
    "final_logit_softcapping": ("gemma2",),
    "clip_qkv": ("olmoe",),
    "use_parallel_residual": (),
    "mlp_bias": ("granite", "starcoder2"),
    "norm_bias": ("stablelm", "starcoder2"),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options_that_are_on(option: str) -> None:
    assert tuple(a for a in FAMILIES if getattr(tiny(a), option)) == OPTIONS[option]


def test_multipliers_are_not_one() -> None:
    granite = tiny("granite")
    multipliers = (granite.embedding_multiplier, granite.residual_multiplier, granite.logits_multiplier)
    assert len({1.0, granite.head_dim**-0.5, granite.scaling, *multipliers}) == 6
    for architecture in ("cohere", "cohere2"):
        assert tiny(architecture).logits_multiplier != 1
    for architecture in ("gemma", "gemma2", "gemma3_text"):
        assert tiny(architecture).embedding_multiplier != 1
    for architecture in ("gemma2", "gemma3_text"):
        assert tiny(architecture).scaling != tiny(architecture).head_dim ** -0.5
    for architecture in ("gemma3_text", "olmo3"):
        assert len({rope.theta for rope in tiny(architecture).ropes}) == 2
    experts = tiny("deepseek_v3").experts
    assert experts is not None
    assert 1 < experts.topk_group < experts.n_group
    assert experts.routed_scaling_factor != 1


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_weight_is_random(architecture: str, tmp_path: Path) -> None:
    """No norm of ones, no bias of zeros, no two weights alike, and no row of one like another."""
    seen = set()
    found = safetensors.numpy.load_file(write_tiny(tmp_path, architecture) / "model.safetensors")
    for name, weight in found.items():
        assert weight.std() > 0.01, name
        offset = FAMILIES[architecture].one_plus_norms
        center = 1.0 if name.endswith("sinks") else 0.0
        if "norm" in name and name.endswith("weight"):
            of_heads = any(kind in name for kind in (".q_norm.", ".k_norm.", ".q_layernorm.", ".k_layernorm."))
            center = (1.5 if of_heads else 8.0 if offset and name == "model.norm.weight" else 1.0) - offset
        assert abs(weight.mean() - center) < 4 * weight.std() / weight.size**0.5, name
        assert len({row.tobytes() for row in weight}) == len(weight), name
        seen.add(weight.tobytes())
    assert len(seen) == len(found)


def test_biases_are_random_too(tmp_path: Path) -> None:
    found = dict(open_checkpoint(write_tiny(tmp_path, attention_bias=True, mlp_bias=True)).weights())
    biases = {name: weight for name, weight in found.items() if name.endswith(".bias")}
    assert len(biases) == 7 * 3
    assert all(weight.std() > 0.09 for weight in biases.values())


@pytest.mark.parametrize("architecture", only(["llama", "gpt_oss", "deepseek_v3"], FAMILIES))
def test_decodes_without_ties(tmp_path: Path, architecture: str) -> None:
    """Greedy tokens do not hang on rounding, and what is decoded does not soon go round in circles."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(write_tiny(tmp_path, architecture))
    rng = np.random.default_rng(3)
    gaps, chosen = [], set()
    for length in (6, 70):
        prompt = torch.tensor(rng.integers(0, 257, (1, length)))
        options = {"max_new_tokens": 32, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
        run = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
        top = torch.cat(run.logits).topk(2).values
        gaps += (top[:, 0] - top[:, 1]).tolist()
        chosen |= set(run.sequences[0, length:].tolist())
    assert len(chosen) >= 24
    # Float32's own error of these logits is below 1e-4.
    assert np.mean(np.array(gaps) > 1e-3) > 0.96
    assert np.mean(np.array(gaps) > 1e-4) > 0.98


@pytest.mark.parametrize("architecture", ["llama", "gpt_oss", "deepseek_v3"])
def test_depends_on_its_seed_only(tmp_path: Path, architecture: str) -> None:
    def load(name: str, **options: Any) -> dict[str, np.ndarray]:
        return dict(open_checkpoint(write_tiny(tmp_path / name, architecture, **options)).weights())

    plain, other = load("a"), load("b", seed=1)
    for name, weight in plain.items():
        assert (weight != other[name]).any()
    tied = load("c", tie_word_embeddings=True)
    for name, weight in tied.items():
        if name == "model.embed_tokens.weight":
            # Narrower, so that no token predicts itself: the same numbers times another gain.
            np.testing.assert_allclose(weight * 4, plain[name], rtol=1e-6)
        else:
            np.testing.assert_array_equal(weight, plain[name])


@pytest.mark.parametrize(
    "rope", [TINY["llama"]["rope_parameters"], {"rope_type": "default", "rope_theta": 5e5}], ids=["llama3", "default"]
)
def test_in_the_old_rope_form(tmp_path: Path, rope: dict[str, Any]) -> None:
    from transformers import AutoConfig

    old, new = (write_tiny(tmp_path / name, rope_parameters=rope) for name in ("old", "new"))
    raw = json.loads((old / "config.json").read_text())
    scaling = raw.pop("rope_parameters")
    raw["rope_theta"] = scaling.pop("rope_theta")
    raw["rope_scaling"] = None if scaling == {"rope_type": "default"} else scaling
    (old / "config.json").write_text(json.dumps(raw))
    assert open_checkpoint(old).config == open_checkpoint(new).config
    assert AutoConfig.from_pretrained(old).rope_parameters == AutoConfig.from_pretrained(new).rope_parameters
