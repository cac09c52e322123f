"""Whether keys of a config.json that nobody here knows change what transformers computes.

Two things are looked at, because either alone can err. The sources that read a config must not name the key: but a source
may make a name from parts. The values must be the same bits with the key and without it: but a prompt may be too short for
a mechanism to show.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from hloracle.core.child import Report
from hloracle.core.errors import InputError, told
from hloracle.reference.huggingface.truth import greedy, load_model, teacher_forced

PROMPT, STEPS = 32, 4  # tokens
MODELS = "transformers.models."
# Parts of transformers that no logit of a text model depends on, whatever they read from a config: how text is made from
# logits, pictures and sound, tokenizers, losses, many devices. Quantized checkpoints are refused before.
ELSEWHERE = tuple(
    f"transformers.{part}" for part in (
        "audio_utils", "data.", "distributed.", "feature_extraction", "generation.", "image_", "loss.", "models.auto.",
        "processing_utils", "quantizers.", "safetensors_conversion", "tokenization", "trainer", "utils.chat", "utils.dummy",
        "video_",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What was found of keys. readers: key -> the file of transformers that names it. equal: all bits are, without the keys.

    Where a file names one, nothing was computed.
    """

    readers: dict[str, str]
    equal: bool


def look(report: Report, architecture: str, keys: Sequence[str], whole: Path, rest: Path) -> Found:
    """Whether transformers reads keys, and whether it computes the same bits without them.

    Args:
      architecture: that both are opened as.
      keys: those of `whole`'s config.json that `rest`'s lacks.
      whole, rest: checkpoint directories with the same weights.

    Raises InputError where transformers cannot compute with them.
    """
    import torch

    report("looking for what reads unknown keys")
    if readers := reading(architecture, keys):
        return Found(readers, equal=False)
    torch.set_num_threads(1)  # sums in one order
    try:
        report("Hugging Face with all keys")
        before = _values(whole)
        report("Hugging Face without unknown keys")
        return Found({}, equal=_values(rest) == before)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"transformers fails on it ({told(error)})", whole, "restore the file") from error


def _values(directory: Path) -> tuple[list[int], list[bytes]]:
    """The tokens that a model says after a short prompt, and the bits of all logits and of both caches."""
    model = load_model(directory)
    prompt = np.random.default_rng(0).integers(model.config.vocab_size, size=PROMPT).tolist()
    tokens, logits = greedy(model, prompt, STEPS)
    return tokens, [array.tobytes() for array in (logits, *teacher_forced(model, prompt, tokens))]


# ---- sources


def reading(architecture: str, keys: Sequence[str]) -> dict[str, str]:
    """Key -> the file of transformers that names it, for those that one names where an architecture's config is read.

    In the architecture's own files, and in those that define configs, any name counts: of an attribute, an argument, a
    class. In what all architectures share it has to be an attribute of something called a config, or the key as a string.
    """
    found: dict[str, str] = {}
    for name, path in _sources(architecture):
        own = name.startswith(MODELS) or name.rpartition(".")[2].startswith("configuration_")
        named = _named(path, own)
        found |= {key: path.name for key in keys if key in named and key not in found}
    return {key: found[key] for key in keys if key in found}


def _sources(architecture: str) -> list[tuple[str, Path]]:
    """The modules that an architecture's model is made with, its own first, and the file of each."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    config = CONFIG_MAPPING[architecture]
    package = config.__module__.rpartition(".")[0]
    MODEL_FOR_CAUSAL_LM_MAPPING.get(config, None)  # which imports the module, and all that it uses
    for module in ("modeling_rope_utils", "masking_utils", "cache_utils"):
        importlib.import_module(f"transformers.{module}")
    files = {
        name: Path(file) for name, module in sys.modules.items()
        if name.startswith("transformers.") and not name.startswith(ELSEWHERE)
        and (file := getattr(module, "__file__", None)) and file.endswith(".py")
        # Another architecture's may have been imported before, and reads no config of this one.
        and (not name.startswith(MODELS) or name.startswith(f"{package}."))
    }  # fmt: skip
    return sorted(files.items(), key=lambda item: (not item[0].startswith(package), item[0]))


@cache
def _named(path: Path, every: bool) -> frozenset[str]:
    return frozenset(_names(ast.parse(path.read_text(encoding="utf-8")), every))


def _names(tree: ast.AST, every: bool) -> Iterator[str]:
    """What a source may read a config by: strings, and attributes of a config; or every name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if every or "config" in of:
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif every and isinstance(node, ast.Name):
            yield node.id
        elif every and isinstance(node, ast.arg | ast.keyword) and node.arg:
            yield node.arg
        elif every and isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def is_of_transformers(own_type: object) -> bool:
    """Whether transformers has a model of this type itself. Its sources say so; they are not imported."""
    spec = importlib.util.find_spec("transformers")
    folder = Path(spec.origin).parent / "models" / "auto" if spec and spec.origin else Path()
    files = [path for name in ("auto_mappings.py", "configuration_auto.py") if (path := folder / name).is_file()]
    return isinstance(own_type, str) and any(own_type in _named(path, False) for path in files)
