"""Tiny checkpoints whose weights stand in several files, as large models' do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from hloracle.reference.fixtures.tiny import write_tiny


def write_sharded(directory: Path, shards: int, *arguments: Any, **options: Any) -> Path:
    """What `write_tiny` writes; with more than one shard, in that many safetensors files and an index."""
    write_tiny(directory, *arguments, **options)
    if shards == 1:
        return directory
    whole = directory / "model.safetensors"
    weights = dict(sorted(load_file(whole).items()))
    whole.unlink()
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    weight_map = {name: names[i * shards // len(weights)] for i, name in enumerate(weights)}
    for file in names:
        part = {name: weight for name, weight in weights.items() if weight_map[name] == file}
        save_file(part, directory / file, metadata={"format": "pt"})
    index = {"metadata": {"total_size": sum(w.nbytes for w in weights.values())}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    return directory
