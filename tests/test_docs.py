"""README, CONTRIBUTING, CHANGELOG, SECURITY and docs/ against the code: their links, paths, commands, and tables."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from hloracle.cli.main import cli
from hloracle.conformance.checks.check import KINDS
from hloracle.mutants import MUTANTS
from hloracle.reference.fixtures.gguf import ARCHITECTURES
from hloracle.reference.fixtures.named import about
from hloracle.reference.model.registry import FAMILIES
from hloracle.reports.facts import VERDICTS

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")), *DOCS]
FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
README_LINES = 180

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCED.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """The fragments by which GitHub links to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows(page: Path, first: str) -> list[list[str]]:
    """The cells of the table whose head begins with `first`."""
    table = page.read_text("utf-8").split(f"| {first} |", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pages
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("https://", "http://")):
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        assert not fragment or fragment in anchors(file), f"{page.name}: {target}"


@pages
def test_paths_are_there(page: Path) -> None:
    """Of those that begin with a folder of the tree; an X in one stands for a name."""
    for path in names(prose(page)):
        folder = path.partition("/")[0]
        if (
            re.fullmatch(r"[\w.*/-]+/[\w.*/-]*", path)
            and folder != "out"
            and (ROOT / folder).is_dir()
            and not re.search(r"\bX\b", path)
        ):
            assert any(ROOT.glob(path.rstrip("/"))), f"{page.name}: {path}"


@pages
def test_commands_are_there(page: Path) -> None:
    """Commands and their options, sessions of nox, and modules that are run."""
    text = page.read_text("utf-8")
    code = "\n".join([block for _, block in FENCED.findall(text)] + names(prose(page)))
    sessions = re.findall(r"^def (\w+)\(session|\(name=\"([\w-]+)\"", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    known = {name for pair in sessions for name in pair}
    for session in re.findall(r"\bnox -s ([\w-]+)", code):
        assert session in known, f"{page.name}: nox -s {session}"
    for module in re.findall(r"\bpython -m (hloracle[\w.]+)", code):
        assert find_spec(module), f"{page.name}: python -m {module}"
    for name, arguments in re.findall(r"(?:^|\s)hloracle ([a-z]+)\b(.*)", re.sub(r"\\\n", " ", code)):
        assert name in cli.commands, f"{page.name}: hloracle {name}"
        assert options(arguments) <= known_options(cli.commands[name]), f"{page.name}: hloracle {name}{arguments}"


def options(arguments: str) -> set[str]:
    return set(re.findall(r"(?<!\S)(--?[a-z][\w-]*)", re.split(r"[#|>`]", arguments)[0]))


def known_options(command: click.Command) -> set[str]:
    """The options of a command, and of a group those of all its commands."""
    below = command.commands.values() if isinstance(command, click.Group) else []
    own = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*(known_options(one) for one in below)) | {"--help", "-h"}


def test_pages_that_the_code_names_are_there() -> None:
    for file in ROOT.glob("[a-z]*/**/*.py"):
        for path in re.findall(r"docs/[\w-]+\.md", file.read_text("utf-8")):
            assert (ROOT / path).is_file(), f"{file.relative_to(ROOT)}: {path}"


def test_readme_is_short_and_links_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert len(readme.splitlines()) <= README_LINES
    assert [page.name for page in DOCS if f"(docs/{page.name})" not in readme] == []


def test_the_architectures_are_those_of_the_registry() -> None:
    page = ROOT / "docs" / "architectures.md"
    table = rows(page, "`model_type`")
    assert [names(row[0])[0] for row in table] == list(FAMILIES)
    for name, said in ((names(row[0])[0], row[1]) for row in table):
        assert about(name) == said
    text = page.read_text("utf-8")
    assert f"There are {len(FAMILIES)}." in text
    assert f"{len(FAMILIES)} architectures (" in (ROOT / "README.md").read_text("utf-8")
    listed = re.search(r"transformers reads right:(.*?)\n\n", text, re.DOTALL)
    assert listed
    assert names(listed[1]) == list(ARCHITECTURES)


def test_the_classes_of_verdicts_are_all_there() -> None:
    short = [name for row in rows(ROOT / "README.md", "verdict") for name in names(row[0])]
    assert sorted(short) == sorted(VERDICTS)
    long = {names(row[0])[0]: row[1] for row in rows(ROOT / "docs" / "checks.md", "class")}
    kinds = {"passes": ("pass", "near"), "failure": ("fail",), "error": ("error",)}
    assert long.keys() == VERDICTS.keys()
    assert all(VERDICTS[name].kind in kinds[kind] for name, kind in long.items())


def test_every_kind_of_check_is_there() -> None:
    tables = (ROOT / "docs" / "checks.md").read_text("utf-8").split("| check |")[1:]
    cells = [line.split("|")[1] for table in tables for line in table.split("\n\n", 1)[0].splitlines()[2:]]
    assert {name.rpartition(".")[2] for cell in cells for name in names(cell)} == set(KINDS)


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "docs/how-it-works.md"])
def test_the_mutants_are_counted(page: str) -> None:
    found = re.findall(r"(\d+) (?:mutants|deliberate faults)(?: over\s+(\d+))?", (ROOT / page).read_text("utf-8"))
    assert found
    for faults, mechanisms in found:
        assert int(faults) == len(MUTANTS)
        assert not mechanisms or int(mechanisms) == len({m.mechanism for m in MUTANTS.values()})
