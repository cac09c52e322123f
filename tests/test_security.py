"""SECURITY.md names whatever can make hloracle run code, read a file or write one, and hloracle does what is said there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import transformers
from test_docs import ROOT, known_options, names, prose

from hloracle.backends import named, words
from hloracle.cli.main import cli
from hloracle.conformance.graphs import sources
from hloracle.core.cache import cache_root
from hloracle.core.errors import InputError
from hloracle.reference.huggingface.tokenizer import encode

PAGE = ROOT / "SECURITY.md"
NAMED = {word for name in names(prose(PAGE)) for word in (name, name.split()[0])}
# Options that take a number, a switch or a word of a list: none makes hloracle load, run, read or write what it names.
PLAIN = set(
    """
    --as --batch --beside --bucket --capacity --commit --compute --context --every --fail-on --function --fused --gemm --head --help
    --jobs --json --kind --layers --kv --layout --length --link --list --min-p --mutant --no-cache --part --phase --portable
    --precision --prompt --ratio --raw --real --repetition-penalty --result --resume --ring --rounds --seed --separate --slower --stop
    --stream --taps --temperature --threads --timeout --tokens --tolerance --top-k --top-p --tries --version -h -n -p
    """.split()
)


def test_every_option_is_said_to_be_harmless_or_named() -> None:
    found = {option for option in known_options(cli) if option.startswith("-")} | {"--hloracle-out"}
    assert sorted(found - PLAIN - NAMED) == [], "say in SECURITY.md what it trusts, or list it in PLAIN"
    assert sorted(PLAIN - found) == [], "there is no such option any more"
    assert sorted(PLAIN & NAMED) == []
    assert sorted(name for name in NAMED if re.fullmatch(r"--?[a-z-]+", name) and name not in found) == []


def test_every_variable_is_named() -> None:
    files = [
        ROOT / "noxfile.py",
        *ROOT.glob("src/hloracle/*.py"),
        *ROOT.glob("[a-z]*/**/*.py"),
        *ROOT.glob("emulator/*.*"),
    ]
    read = [file for file in files if file.relative_to(ROOT).parts[0] not in ("tests", "examples")]
    found = {name for file in read for name in re.findall(r"HLORACLE_[A-Z_]*[A-Z]", file.read_text("utf-8"))}
    assert len(found) > 6
    missing = {name for name in found if not name.startswith("HLORACLE_EMULATED")} - NAMED
    assert sorted(missing) == []
    assert "HLORACLE_EMULATED_…" in NAMED


def test_every_group_of_entry_points_is_named() -> None:
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert {named.ENTRY_POINTS, sources.ENTRY_POINTS, *own} <= NAMED


def test_every_kind_of_backend_is_named() -> None:
    """As `KINDS_OF_WORDS` has them, in whose sentence they stand."""
    kinds = set(re.findall(r"\b(pjrt|command|worker):", words.KINDS_OF_WORDS))
    assert kinds == {"pjrt", "command", "worker"}
    assert kinds <= {name.partition(":")[0] for name in NAMED if ":" in name}


def test_everything_that_downloads_is_named() -> None:
    """A file of ours that runs pip or the like, or opens an address."""
    pattern = re.compile(
        r"\"(pip|uv|npm|apt-get|curl|wget)\"|urlopen|requests\.get\(|snapshot_download|hf_hub_download"
    )
    folders = {path.name for path in (ROOT / "src" / "hloracle").iterdir() if path.is_dir()}
    files = [file for folder in sorted(folders) for file in (ROOT / folder).rglob("*.py")]
    found = {str(file.relative_to(ROOT)) for file in files if pattern.search(file.read_text("utf-8"))}
    assert found == {
        "backends/environments.py", "cli/pack.py", "reference/fixtures/named.py", "studies/foreign.py",
        "versions/releases.py",
    }, "say in SECURITY.md what the new download is held to"  # fmt: skip


def test_nothing_of_a_checkpoint_is_unpickled_or_run() -> None:
    """Wherever transformers opens one: from files that are here, safetensors, without code that comes with it."""
    for file in [*ROOT.glob("reference/**/*.py"), *ROOT.glob("production/**/*.py"), *ROOT.glob("bench/*.py")]:
        text = file.read_text("utf-8")
        assert not re.search(r"pickle\.load|torch\.load|trust_remote_code=True|allow_pickle=True", text), file
        calls = re.findall(r"(Auto\w+)\.from_pretrained\(((?:[^()]|\([^()]*\))*)\)", text)
        for kind, arguments in calls:
            if file.name == "gguf.py":
                continue  # alone in a folder, and offline
            assert "trust_remote_code=False" in arguments, f"{file}: {kind}"
            assert "local_files_only=True" in arguments, f"{file}: {kind}"
            assert kind != "AutoModelForCausalLM" or "use_safetensors=True" in arguments, file


@pytest.mark.parametrize(
    "template",
    [
        "{{ ().__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% set _ = messages.append(1) %}",
    ],
)
def test_a_chat_template_is_rendered_in_a_sandbox(template: str) -> None:
    from tokenizers import Tokenizer, models

    tokenizer: Any = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")))
    tokenizer.chat_template = template
    with pytest.raises(InputError, match=r"its chat template fails .*Error: .* unsafe"):
        encode(tokenizer, "hello", chat=True)


def test_the_cache_is_the_users_own_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HLORACLE_CACHE", raising=False)
    assert Path.home() in cache_root().parents
