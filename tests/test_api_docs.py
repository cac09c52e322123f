"""The examples of docs/api.md run as they are written, in their order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hloracle.core.child import alone

PAGE = Path(__file__).parents[1] / "docs" / "api.md"


def test_examples(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(examples) == 10
    names: dict[str, object] = {"__name__": "docs"}
    with alone():  # processes of their own would import JAX again and again
        for i, example in enumerate(examples):
            exec(compile(example, f"{PAGE.name}, example {i + 1}", "exec"), names)
