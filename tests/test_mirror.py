"""The reference and the emitter of an architecture say the same, in the same order."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from graphs import anchors as scopes
from graphs import parse

from hloracle.core.abi import Graph
from hloracle.emitters.model import emit
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.anchors import anchor_of, anchors, split
from hloracle.reference.model.config import Config
from hloracle.reference.model.registry import FAMILIES, from_hf
from hloracle.reference.oracle.lower import lower

ROOT = Path(__file__).parents[1]
SIDES = ("reference/oracle", "emitters")
# Where the two have one file each: a file of each architecture, and what architectures share.
FILES = [*(f"architectures/{architecture}.py" for architecture in FAMILIES), "mlp.py"]
# A config says this much more than a row of TINY: mechanisms that its two layers do not have.
OTHERS: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "qwen3": {"attention_bias": False, "use_sliding_window": False},
    "smollm3": {"use_sliding_window": False},
    "cohere": {"use_qk_norm": False},
    "stablelm": {"qk_layernorm": False, "use_parallel_residual": True},
    "starcoder2": {"use_bias": False, "sliding_window": None},
    "qwen2_moe": {"mlp_only_layers": [1]},
    "qwen3_moe": {"mlp_only_layers": [], "use_sliding_window": True, "sliding_window": 11},
    "olmoe": {"clip_qkv": None, "norm_topk_prob": True},
    "deepseek_v3": {"q_lora_rank": None, "rope_interleave": False, "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1},
}  # fmt: skip
CONFIGS = {**{a: TINY[a] for a in FAMILIES}, **{f"{a}-other": {**TINY[a], **more} for a, more in OTHERS.items()}}


def tiny(name: str) -> Config:
    return from_hf(CONFIGS[name])


@cache
def text(source: Callable[..., Graph], name: str, phase: str, head: str) -> str:
    return source(tiny(name), phase, head, 64, 32 if phase == "prefill" else 0).text


@cache
def places(source: Callable[..., Graph], name: str, phase: str, head: str) -> list[str]:
    """The anchors in the order in which operations enter them; what stands in no anchor is left out."""
    known = {*anchors(tiny(name)), "token"}
    module = parse(text(source, name, phase, head))
    found = (anchor_of(scope) for scope in scopes(module))
    return [anchor for anchor, _ in itertools.groupby(anchor for anchor in found if anchor in known)]


@pytest.mark.parametrize("head", ["token", "logits"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", CONFIGS)
def test_anchors(name: str, phase: str, head: str) -> None:
    """Emitter and oracle enter the same anchors, and they are those that the registry lists, in its order."""
    emitted, oracle = (places(source, name, phase, head) for source in (emit, lower))
    listed = [*anchors(tiny(name)), *(["token"] if head == "token" else [])]
    # A layer's output, and that of an MLP of two parts, is what its last operation computes.
    last = {anchor: i for i, anchor in enumerate(emitted)}
    assert sorted(last, key=last.__getitem__) == listed
    again = {anchor for anchor in emitted if emitted.count(anchor) > 1}
    assert all(split(anchor)[1] in ("", "mlp") for anchor in again), again
    assert emitted == oracle


@pytest.mark.parametrize("source", [emit, lower])
@pytest.mark.parametrize("name", CONFIGS)
def test_scopes(name: str, source: Callable[..., Graph]) -> None:
    """What stands in no anchor stands in a module of a layer, or in no scope at all."""
    config = tiny(name)
    known = {*anchors(config), "token", ""}
    module = parse(text(source, name, "decode", "token"))
    others = {scope for scope in scopes(module) if anchor_of(scope) not in known}
    assert all(re.fullmatch(r"layers\.\d+\.(self_attn|mlp|mlp\.shared_experts?)", scope) for scope in others), others


PER_LAYER = [
    "input_layernorm",
    *(f"self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "q_rope", "k_rope")),
    "k_cache",
    "v_cache",
    *(f"self_attn.{part}" for part in ("scores", "probs", "context", "o_proj")),
    "",
    "post_attention_layernorm",
    *(f"mlp.{part}" for part in ("gate_proj", "up_proj", "act", "down_proj")),
    "",
]


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("source", [emit, lower])
def test_anchors_of_llama(source: Callable[..., Graph], phase: str) -> None:
    """Each name once per layer."""
    count = tiny("llama").num_hidden_layers
    layers = [
        f"{part}.{i}" if part.endswith("cache") else f"layers.{i}.{part}".rstrip(".")
        for i in range(count)
        for part in PER_LAYER
    ]
    assert places(source, "llama", phase, "token") == ["embed_tokens", *layers, "norm", "lm_head", "token"]


@pytest.mark.parametrize("head", ["token", "logits"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", CONFIGS)
def test_oracle_graph_is_one_function_that_names_no_file(name: str, phase: str, head: str) -> None:
    """A private function would keep the call stack it was traced from, and paths would make the text the machine's."""
    written = text(lower, name, phase, head)
    assert written.count("func.func") == 1
    assert "/" not in written
    assert ".py" not in written


# ---- the files


def functions(path: Path) -> list[str]:
    return [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]


def calls(path: Path) -> list[list[str]]:
    """Of each function the scopes that it enters, in order."""
    found = []
    for function in ast.parse(path.read_text()).body:
        if isinstance(function, ast.FunctionDef):
            opened = (
                item.context_expr for node in ast.walk(function) if isinstance(node, ast.With) for item in node.items
            )
            entered = sorted((e.lineno, ast.literal_eval(e.args[0])) for e in opened if isinstance(e, ast.Call))
            found.append([name for _, name in entered])
    return found


@pytest.mark.parametrize("file", FILES)
def test_functions(file: str) -> None:
    """The same functions, in the same order, that enter the same scopes."""
    reference, emitter = (ROOT / side / file for side in SIDES)
    assert functions(reference) == functions(emitter)
    assert calls(reference) == calls(emitter)
    assert ("block" in functions(reference)) == (file != "mlp.py")


@pytest.mark.parametrize("side", SIDES)
def test_every_family_has_its_file_and_every_file_its_family(side: str) -> None:
    found = {path.stem for path in (ROOT / side / "architectures").glob("*.py")} - {"__init__"}
    assert found == FAMILIES.keys()
    assert functions(ROOT / side / "architectures" / "__init__.py") == []


@pytest.mark.parametrize("side", SIDES)
def test_short(side: str) -> None:
    lines = {file: len((ROOT / side / file).read_text().splitlines()) for file in FILES}
    assert {file: count for file, count in lines.items() if count > 100} == {}


def siblings(text: str) -> set[str]:
    """Architectures that a file imports, in whatever form."""
    named: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            named |= {f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names}
    return {part for name in named for part in name.split(".") if part in FAMILIES or part == "architectures"}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_imports_no_sibling(side: str, architecture: str) -> None:
    assert siblings((ROOT / side / "architectures" / f"{architecture}.py").read_text()) == set()


@pytest.mark.parametrize(
    "line",
    [
        "from hloracle.reference.oracle.architectures.llama import block",
        "from hloracle.reference.oracle.architectures import llama",
        "import hloracle.emitters.architectures.llama as other",
        "from . import llama",
        "from .llama import norm",
        "def f():\n    from hloracle.emitters.architectures import llama",
    ],
)
def test_imports_of_siblings_are_seen(line: str) -> None:
    assert siblings(line)


# ---- below the registry nothing knows the architecture

# What reads a config, what writes one, and what brings an older record up to date.
KNOW_MODEL_TYPE = {
    *(f"reference/model/{file}.py" for file in ("registry", "keys")),
    *(f"reference/fixtures/{file}.py" for file in ("tiny", "synthetic", "random_model", "gguf", "adapted")),
    *("reports/record.py", "reports/history/store.py"),
}


def test_model_type_is_known_to_the_registry_only() -> None:
    folders = ("core", "reference", "emitters", "backends", "localize", "mutants", "conformance", "reports")
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".json", ".j2"}
    ]
    assert len(files) > 150
    found = {str(path.relative_to(ROOT)) for path in files if "model_type" in path.read_text()}
    assert found <= KNOW_MODEL_TYPE, found - KNOW_MODEL_TYPE
    assert "reference/model/registry.py" in found


def names(source: str) -> set[str]:
    """Of variables, parameters and keyword arguments."""
    nodes = list(ast.walk(ast.parse(source)))
    arguments = {n.arg for n in nodes if isinstance(n, ast.arg | ast.keyword) and n.arg}
    return arguments | {n.id for n in nodes if isinstance(n, ast.Name)}


def test_model_type_is_a_key_and_architecture_a_name() -> None:
    """Outside of the registry, which reads the key, what it says is called the architecture."""
    found = {file for file in KNOW_MODEL_TYPE if "model_type" in names((ROOT / file).read_text())}
    assert found == {"reference/model/registry.py"}


@pytest.mark.parametrize("side", SIDES)
def test_mechanisms_name_no_architecture(side: str) -> None:
    """No branch on a name, in what architectures share: only docstrings and comments say where a formula is from."""
    for file in ("layers.py", "mlp.py", "model.py"):
        tree = ast.parse((ROOT / side / file).read_text())
        documentation = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and isinstance(node.body[0], ast.Expr)
        }
        strings = {
            n.value for n in ast.walk(tree)
            if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in documentation
        }  # fmt: skip
        assert not strings & FAMILIES.keys()
