"""Checkpoints as people have them: keys that nobody knows, and forks of an architecture under a name of their own."""

from __future__ import annotations

import ast
import copy
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from records import conforms
from rich.console import Console
from tokenizer import add_words

import hloracle
from hloracle.cli import main as cli
from hloracle.cli.show import print_record
from hloracle.core.child import ChildDied, ChildResult, alone
from hloracle.core.errors import InputError
from hloracle.reference.fixtures import adapted
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.fixtures.tiny import TINY, write_tiny
from hloracle.reference.huggingface import unread
from hloracle.reference.huggingface.truth import greedy, load_model
from hloracle.reference.huggingface.unread import is_of_transformers, reading
from hloracle.reference.model.checkpoint import ADAPTED, Adapted, open_checkpoint
from hloracle.reference.model.registry import FAMILIES
from hloracle.reports import annotate, junit, summary
from hloracle.reports.page import html

FORK: dict[str, Any] = {
    "model_type": "mygpt", "architectures": ["MyGptForCausalLM"], "auto_map": {"AutoConfig": "configuration_mygpt.MyGpt"},
}  # fmt: skip


def model(folder: Path, architecture: str = "llama", remove: tuple[str, ...] = (), **changes: Any) -> Path:
    """A tiny model with another config.json: keys that are added, and keys that it lacks."""
    path = write_tiny(folder / "a model", architecture) / "config.json"
    raw = {key: value for key, value in json.loads(path.read_text()).items() if key not in remove}
    path.write_text(json.dumps({**raw, **changes}))
    return path.parent


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert "hloracle-" not in message, "a folder that is gone"
    return message


def no_child(*arguments: Any, **options: Any) -> ChildResult:
    pytest.fail("transformers was asked again")


# ---- a key that nobody knows


def test_a_key_that_nothing_reads_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = model(tmp_path, attn_gate={"a": [1, None]}, logit_scale=2.0)
    (directory / "modeling.py").write_text("raise SystemExit")
    before = contents(directory)
    found = resolve(str(directory))
    assert contents(directory) == before, "the directory is the user's"
    checkpoint = open_checkpoint(found)
    assert checkpoint.adapted == Adapted("a model", None, ("attn_gate", "logit_scale"))
    assert checkpoint.config == open_checkpoint(resolve("tiny-llama")).config
    raw = json.loads((found / "config.json").read_text())
    assert raw == {k: v for k, v in json.loads(before["config.json"]).items() if k not in ("attn_gate", "logit_scale")}
    assert (found / "model.safetensors").is_symlink()
    assert not (found / "modeling.py").exists()
    answers = [greedy(load_model(folder), [1, 2, 3], 3) for folder in (directory, found)]
    assert answers[0][0] == answers[1][0]
    assert (answers[0][1] == answers[1][1]).all()

    monkeypatch.setattr(adapted, "run_in_child", no_child)
    assert resolve(str(directory)) == found
    assert resolve(str(found)) == found, "it has no unknown key"


def test_the_answer_is_that_of_these_weights_and_of_this_place(tmp_path: Path) -> None:
    directory = model(tmp_path / "one", attn_gate=1)
    found = resolve(str(directory))
    elsewhere = resolve(str(model(tmp_path / "two", attn_gate=1)))
    assert elsewhere != found
    assert (elsewhere / "model.safetensors").resolve().is_relative_to(tmp_path / "two")
    write_tiny(tmp_path / "other", seed=1)
    (directory / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    assert resolve(str(directory)) != found


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"sliding_window": 512}, "unknown key 'sliding_window': cache_utils.py of transformers reads 'sliding_window'; "),
        ({"attn_gate": 1, "num_labels": 3, "sliding_window": None},
         "unknown key 'attn_gate', 'num_labels', 'sliding_window': configuration_utils.py of transformers reads 'num_labels'; "
         "cache_utils.py of transformers reads 'sliding_window'; "),
        ({"attn_implementation": "my-org/my-kernel"}, "of transformers reads 'attn_implementation'; "),
        ({"query_states": 1}, "unknown key 'query_states': modeling_llama.py of transformers reads 'query_states'; "),
    ],
)  # fmt: skip
def test_a_key_that_a_source_names_is_refused(
    tmp_path: Path, keys: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = model(tmp_path, **keys)
    monkeypatch.setattr(unread, "load_model", lambda *_: pytest.fail("such a model is not loaded"))
    message = refusal(lambda: resolve(str(directory)))
    assert message.startswith(f"{directory}/config.json: unknown key ")
    assert told in message
    assert message.endswith("remove it if it changes nothing, or use another model")
    monkeypatch.setattr(adapted, "run_in_child", no_child)
    assert refusal(lambda: resolve(str(directory))) == message


def test_a_key_that_changes_values_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known to be read; here nobody finds where."""
    monkeypatch.setattr(unread, "reading", lambda *_: {})
    directory = model(tmp_path, sliding_window=4)
    assert "unknown key 'sliding_window': transformers computes other values without it; " in refusal(
        lambda: resolve(str(directory))
    )
    directory = model(tmp_path / "two", sliding_window=4, attn_gate=1)
    assert "transformers computes other values without them; " in refusal(lambda: resolve(str(directory)))


def test_a_key_that_breaks_transformers_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "reading", lambda *_: {})
    directory = model(tmp_path, to_dict=5)
    assert "unknown key 'to_dict': transformers " in refusal(lambda: resolve(str(directory)))


def test_a_process_that_dies_says_nothing_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*arguments: Any, **options: Any) -> ChildResult:
        raise ChildDied("look ran out of memory", "memory")

    directory = model(tmp_path, beside_a_crash=1)
    with monkeypatch.context() as patch:
        patch.setattr(adapted, "run_in_child", dies)
        assert "unknown key 'beside_a_crash': look ran out of memory; " in refusal(lambda: resolve(str(directory)))
    assert open_checkpoint(resolve(str(directory))).adapted.ignored_keys == ("beside_a_crash",)


@pytest.mark.parametrize(
    "keys",
    [
        {"": 1}, {" \t ": 1}, {"a b\n": None}, {"\ud800": 1}, {"x" * 10**5: 1}, {"<script>": "&"}, {"__class__": 5},
        {"__dict__": {}}, {"self": 1}, {"update": 3}, {"text_config": {"hidden_size": 8}}, {"attn_gate": math.nan},
        {"attn_gate": 10**4000}, {"attn_gate": "\ud800"}, {"trust_remote_code": True}, {"push_to_hub": True},
        {"attn_gate": json.loads("[" * 900 + "]" * 900)}, {"pruned_heads": {"0": [0]}}, {"use_kernels": True},
    ],
    ids=lambda keys: ascii(next(iter(keys)))[:20],
)  # fmt: skip
def test_strange_keys_and_values_end_in_a_model_or_in_one_line(tmp_path: Path, keys: dict[str, Any]) -> None:
    directory = model(tmp_path, **keys)
    try:
        found, refused = open_checkpoint(resolve(str(directory))), ""
    except InputError as error:
        found, refused = None, str(error)
    if found is None:
        assert "\n" not in refused
        assert any(words in refused for words in ("unknown key", "is nested", "holds a number", "not a finite number"))
    else:
        assert found.adapted.ignored_keys == tuple(keys)
        record = told_of(*keys)
        for render in (html.render, summary.render, junit.render):
            render(record)


def test_values_that_are_wrong_come_first(tmp_path: Path) -> None:
    """As without a key that nobody knows; and where there are no weights, nothing can be compared."""
    directory = model(tmp_path, attn_gate=1, hidden_act="relu")
    assert "key 'hidden_act' is 'relu'" in refusal(lambda: resolve(str(directory)))
    directory = model(tmp_path / "two", attn_gate=1)
    (directory / "model.safetensors").unlink()
    told = "unknown key 'attn_gate', and no values to compare (has no model.safetensors)"
    assert told in refusal(lambda: resolve(str(directory)))


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_another_precision_has_word_of_it(tmp_path: Path, precision: str) -> None:
    found = open_checkpoint(resolve(str(model(tmp_path, attn_gate=1)), precision=precision))
    assert found.adapted == Adapted("a model", None, ("attn_gate",))


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 10**5, '{"directory_name": "x"}', '{"directory_name": 1, "own_type": 2, "ignored_keys": 3}',
             '{"directory_name": "x", "own_type": null, "ignored_keys": [1]}'],
)  # fmt: skip
def test_a_file_of_another_form_says_nothing(tmp_path: Path, text: str) -> None:
    directory = model(tmp_path)
    (directory / ADAPTED).write_text(text)
    assert open_checkpoint(resolve(str(directory))).adapted == Adapted()


# ---- what reads it


@pytest.mark.parametrize("architecture", FAMILIES)
def test_what_is_known_is_read_and_what_is_made_up_is_not(architecture: str) -> None:
    known = ("hidden_size", "num_attention_heads", "vocab_size", "rope_parameters", "layer_types", "head_dim")
    found = reading(architecture, (*known, "attn_gate", "mup_enabled", "use_flash_attention"))
    assert found.keys() == {*known}
    name = architecture.removesuffix("_text")
    assert reading(architecture, ("lm_head",)) == {"lm_head": f"modeling_{name}.py"}


def test_a_source_of_the_architecture_comes_before_a_shared_one() -> None:
    assert reading("mistral", ("sliding_window",)) == {"sliding_window": "configuration_mistral.py"}


@pytest.mark.parametrize(
    ("source", "own", "shared"),
    [
        ("config.gate", True, True), ("self.config.gate", True, True), ("text_config.gate", True, True),
        ("getattr(config, 'gate', 1)", True, True), ("config['gate']", True, True), ("self.gate", True, False),
        ("gate", True, False), ("f(gate=1)", True, False), ("def f(gate): ...", True, False), ("def gate(): ...", True, False),
        ("class A:\n  gate: int = 3", True, False), ("# config.gate", False, False), ("'a gate'", False, False),
        ("'''config.gate'''", False, False), ("config.gates", False, False),
    ],
)  # fmt: skip
def test_what_counts_as_read(source: str, own: bool, shared: bool) -> None:
    tree = ast.parse(source)
    assert ("gate" in set(unread._names(tree, True)), "gate" in set(unread._names(tree, False))) == (own, shared)


def test_which_types_transformers_has() -> None:
    assert all(map(is_of_transformers, [*FAMILIES, "mamba", "arcee", "gpt2", "EvollaModel"]))
    assert not any(map(is_of_transformers, ["mygpt", "", None, ["llama"], 3, "../llama"]))


# ---- a fork


def test_a_fork_is_opened_as_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = model(tmp_path, **FORK)
    before = contents(directory)
    monkeypatch.setattr(adapted, "run_in_child", no_child)
    found = hloracle.open_model(str(directory), as_="llama")
    assert contents(directory) == before
    assert found.adapted == Adapted("a model", "mygpt", ())
    assert found.config == open_checkpoint(resolve("tiny-llama")).config
    raw = json.loads((found.directory / "config.json").read_text())
    assert raw["model_type"] == "llama"
    assert not raw.keys() & {"architectures", "auto_map"}
    assert type(load_model(found.directory)).__name__ == "LlamaForCausalLM"
    assert hloracle.open_model(found).adapted == found.adapted


def test_a_fork_with_a_key_that_nothing_reads(tmp_path: Path) -> None:
    directory = model(tmp_path, **FORK, attn_gate=1)
    assert hloracle.open_model(directory, as_="llama").adapted == Adapted("a model", "mygpt", ("attn_gate",))
    directory = model(tmp_path / "two", **FORK, sliding_window=64)
    told = "unknown key 'sliding_window': cache_utils.py of transformers reads"
    assert told in refusal(lambda: hloracle.open_model(directory, as_="llama"))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_without_as_those_that_fit_are_named(tmp_path: Path, architecture: str) -> None:
    directory = model(tmp_path, architecture, **FORK)
    names = adapted.fitting(directory, json.loads((directory / "config.json").read_text()))
    # Of Gemma all but the norms looks like Llama.
    assert names[1 if architecture == "gemma" else 0] == architecture
    others = f" ({', '.join(names[1:])} would fit as well)" if names[1:] else ""
    assert refusal(lambda: resolve(str(directory))).startswith(
        f"{directory}/config.json: model_type 'mygpt' is not supported; add --as {names[0]} if it is one, which its config and "
        f"weights fit{others}, or use a model of one of these types: cohere, "
    )


def test_none_is_named_where_transformers_has_the_model_or_none_fits(tmp_path: Path) -> None:
    assert "--as" not in refusal(lambda: resolve(str(model(tmp_path, model_type="arcee"))))
    assert "--as" not in refusal(lambda: resolve(str(model(tmp_path / "two", remove=("hidden_size",), **FORK))))
    directory = model(tmp_path / "three", **FORK)
    (directory / "model.safetensors").unlink()
    assert "--as" not in refusal(lambda: resolve(str(directory)))


@pytest.mark.parametrize(
    ("changes", "as_", "told"),
    [
        (FORK, "qwen2", "--as qwen2: does not fit {}/a model (weights do not match config.json: missing"),
        (FORK, "qwen2", "; try --as llama or --as "),
        (FORK, "cohere", "--as cohere: does not fit {}/a model (key 'layer_norm_eps' is missing); try --as llama"),
        ({**FORK, "hidden_size": "x"}, "llama", "name the architecture that its config and weights are of"),
        (FORK, "lama", "--as lama: is no architecture that is supported; name one of cohere, "),
        (FORK, "x" * 10**4, "is no architecture that is supported; name one of cohere, "),
        ({}, "llama", "--as llama: is what config.json says already; leave it out"),
        ({"model_type": "arcee"}, "llama", "--as llama: is given for a 'arcee', which transformers has itself; leave it out"),
        ({}, "mistral", "--as mistral: is given for a 'llama', which transformers has itself; leave it out"),
    ],
)  # fmt: skip
def test_as_what_it_is_not(tmp_path: Path, changes: dict[str, Any], as_: str, told: str) -> None:
    directory = model(tmp_path, **changes)
    assert told.format(tmp_path) in refusal(lambda: resolve(str(directory), as_=as_))


@pytest.mark.parametrize(("model_type", "told"), [(None, "None"), (["a"], "['a']"), ("", ""), ("\ud800", "\ud800")])
def test_a_model_type_of_any_form(tmp_path: Path, model_type: Any, told: str) -> None:
    found = hloracle.open_model(model(tmp_path, model_type=model_type), as_="llama")
    assert found.adapted.own_type == told


def test_as_of_another_type_is_refused_by_name(tmp_path: Path) -> None:
    wrongs: list[Any] = [3, None, ["llama"]]
    for wrong in wrongs:
        assert refusal(partial(hloracle.open_model, tmp_path, as_=wrong)).startswith("as_: is ")
        assert refusal(partial(hloracle.run, tmp_path, as_=wrong)).startswith("as_: is ")


# ---- whole runs


def test_a_run_of_a_fork_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Graph, check, record, and all that is drawn from it."""
    directory = model(tmp_path, **FORK, attn_gate=1, z_loss=2)
    graph = str(tmp_path / "decode.mlir")
    arguments = ["emit", str(directory), "--as", "llama", "--phase", "decode", "--capacity", "64", "-o", graph]
    assert cli.invoke(arguments) == 0
    arguments = ["check", graph, "--model", str(directory), "--tokens", "3", "--backend", "xla-cpu"]
    capsys.readouterr()
    assert cli.invoke([*arguments, "--out", str(tmp_path / "out")]) == 2
    assert "add --as llama if it is one" in capsys.readouterr().err
    with alone():
        assert cli.invoke([*arguments, "--out", str(tmp_path / "out"), "--as", "llama"]) == 0
    words = "read as llama, in place of mygpt; without attn_gate, z_loss: transformers reads no such key"
    assert words in capsys.readouterr().out
    told = hloracle.Record.load(tmp_path / "out" / "report.json").data["model"]
    assert (told["architecture"], told["own_type"], told["ignored_keys"]) == (
        "llama",
        "mygpt",
        ["attn_gate", "z_loss"],
    )
    assert told["directory_name"] == "a model"
    page = (tmp_path / "out" / "report.html").read_text()
    assert "mygpt" in page
    assert "attn_gate" in page

    with alone():
        record = hloracle.check(graph, model=directory, as_="llama", tokens=3, backends=["xla-cpu"])
    assert record.passed, record.verdict
    assert record.data["model"] == told


def test_a_run_of_a_model_whose_config_is_as_it_is_says_nothing() -> None:
    record = conforms()
    assert (record["model"]["own_type"], record["model"]["ignored_keys"]) == (None, [])
    assert "Config:" not in summary.render(record)


def told_of(*keys: str, own_type: str | None = None) -> Any:
    record = copy.deepcopy(conforms())
    record["model"]["ignored_keys"], record["model"]["own_type"] = list(keys), own_type
    return record


def test_every_report_says_what_was_ignored(tmp_path: Path) -> None:
    record = told_of("attn_gate", "z_loss", own_type="mygpt")
    console = Console(record=True, width=200)
    print_record(record, tmp_path, console)
    shown = [html.render(record), summary.render(record), junit.render(record), annotate.render(record, tmp_path)]
    for text in [*shown, console.export_text()]:
        for word in ("mygpt", "attn", "z_loss", "read as llama"):
            assert word.replace("_", "") in text.replace("&#95;", "").replace("_", ""), text[:200]


def test_a_thousand_keys_are_counted() -> None:
    told = summary.render(told_of(*(f"key{i}" for i in range(1000))))
    assert "key19, 980 more: transformers" in told


def test_text_of_a_fork(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = add_words(model(tmp_path, **FORK))
    plain = add_words(model(tmp_path / "plain"))
    texts = []
    for arguments in ([str(directory), "--as", "llama"], [str(plain)]):
        assert cli.invoke(["generate", *arguments, "-p", "w3 w4", "-n", "2", "--backend", "xla-cpu"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != ""
    assert cli.invoke(["fetch", str(directory), "--as", "llama"]) == 0
    fetched = Path(capsys.readouterr().out.strip())
    assert json.loads((fetched / "config.json").read_text())["model_type"] == TINY["llama"]["model_type"]
