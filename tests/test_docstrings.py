"""Every public function and class of the package says what it is for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OWN = "src/hloracle"  # what is exported, and the pytest plugin; the folders are links in it
PACKAGES = (OWN, *sorted(path.name for path in (ROOT / OWN).iterdir() if path.is_symlink()))
# What a mutant does its decorator says: `mutant`, or one that registers mutants of one kind.
SAY_SO = {"mutant", "oracle", "driver", "miscompiles", "rows", "ring", "kv", "wired", "blocks", "bf16", "f16"}

Definition = ast.FunctionDef | ast.ClassDef


@cache
def trees() -> dict[Path, ast.Module]:
    found = ((ROOT / package).glob("*.py" if package == OWN else "**/*.py") for package in PACKAGES)
    files = sorted(path for paths in found for path in paths)
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    found: dict[str, list[ast.ClassDef]] = {}
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def public(body: list[ast.stmt], owner: ast.ClassDef | None = None) -> Iterator[tuple[ast.ClassDef | None, Definition]]:
    """The public functions and classes, and those inside the classes."""
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield owner, node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, node)


def inherited(owner: ast.ClassDef | None, name: str) -> bool:
    """Whether a base class of the package documents a method of this name."""
    bases = [base.id for base in owner.bases if isinstance(base, ast.Name)] if owner else []
    for found in (one for base in bases for one in classes().get(base, [])):
        own = any(isinstance(n, ast.FunctionDef) and n.name == name and ast.get_docstring(n) for n in found.body)
        if own or inherited(found, name):
            return True
    return False


def is_mutant(node: Definition) -> bool:
    calls = (d for d in node.decorator_list if isinstance(d, ast.Call))
    return any(isinstance(call.func, ast.Name) and call.func.id in SAY_SO for call in calls)


def is_overload(node: Definition) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)


def undocumented(place: str) -> list[str]:
    """What has no docstring in a folder or file."""
    found = []
    for path, tree in trees().items():
        name = str(path.relative_to(ROOT))
        if name != place and not name.startswith(f"{place}/"):
            continue
        if not ast.get_docstring(tree):
            found.append(f"{name}: the module")
        for owner, node in public(tree.body):
            if not (ast.get_docstring(node) or inherited(owner, node.name) or is_mutant(node) or is_overload(node)):
                found.append(f"{name}:{node.lineno}: {f'{owner.name}.' if owner else ''}{node.name}")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_have_docstrings(package: str) -> None:
    missing = undocumented(package)
    assert not missing, "\n".join(missing)
