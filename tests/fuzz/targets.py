"""What is fuzzed: files that are right, the command that reads them, and how they are spoilt."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuzz import formats, samples, spoil, trees, words
from fuzz.case import Case, is_special
from fuzz.spoil import Spoiler

Files = dict[str, Spoiler]


@dataclass(frozen=True)
class Target:
    """One kind of input.

    samples: cases that are right; made once, in a process of its own. spoilers: what spoils which file, by its name.
    sample_statuses: what a command says of a sample. statuses: and of a spoilt one. outputs: patterns of files that it writes.
    told: a pattern of words of somebody else's errors, which may be quoted. listed: what each of several lines with status 2
      may begin with. spoil_case: what spoils more than files.
    """

    name: str
    samples: Callable[[], Sequence[Case]]
    spoilers: Files
    statuses: tuple[int, ...] = (0, 2)
    sample_statuses: tuple[int, ...] = (0,)
    outputs: tuple[str, ...] = ()
    told: str = ""
    listed: str = ""
    spoil_case: Callable[[random.Random, Case], Case] | None = None

    def spoilt(self, rng: random.Random, case: Case) -> Case:
        """A case that is spoilt once."""
        if self.spoil_case and (not self.spoilers or rng.random() < 0.5):
            return self.spoil_case(rng, case)
        name = rng.choice([name for name in self.spoilers if name in case.files] or sorted(case.files))
        if is_special(case.files[name]):
            return case
        spoiler = spoil.whole_file if rng.random() < 0.02 else self.spoilers.get(name, spoil.any_bytes)
        if len(case.files[name]) > spoil.LARGEST:
            spoiler = spoil.any_bytes
        try:
            return case.with_file(name, spoiler(rng, case.files[name]))
        except Exception:  # it has been spoilt so far that it has no form any more
            return case.with_file(name, spoil.any_bytes(rng, case.files[name]))


JSON, TOML, TEXT, MLIR = trees.json_text, trees.toml_text, spoil.text, formats.mlir
BINARY = spoil.any_bytes
ANY = ("*",)  # what the words of a command line name
NUMPY = r"\(Cannot parse header: "  # of an array, which NumPy quotes

TARGETS = (
    Target("config", samples.configs, {"model/config.json": JSON}, outputs=("out.mlir", "out.abi.json"), told=r"transformers (cannot load it|fails on it) \("),
    Target("weights", samples.weights, {"model/model.safetensors": formats.safetensors}),
    Target("index", samples.sharded, {"model/model.safetensors.index.json": JSON, "model/model-00001-of-00002.safetensors": formats.safetensors}),
    Target("abi", samples.own_graphs, {"decode.abi.json": JSON}),
    Target("abi-toml", samples.foreign_graphs, {"abi.toml": TOML}),
    Target("graph", samples.own_graphs, {"decode.mlir": MLIR}),
    Target("foreign-graph", samples.foreign_graphs, {"step.mlir": MLIR}),
    Target("bytecode", samples.bytecode, {"step.mlir": BINARY}),
    Target("project", samples.projects, {"hloracle.toml": TOML}),
    Target("records", samples.records, {"base.json": JSON, "head.json": JSON}, (0, 1, 2), (0, 1), ("*.html", "*.md", "out/*")),
    Target("comment", samples.archives, {"records.zip": formats.archive}, outputs=("comment.md",)),
    Target("history", samples.histories, {"store.jsonl": spoil.one_of(TEXT, trees.json_lines)}, outputs=("*.html", "store.jsonl", "nothing-there")),
    Target("matrix", samples.matrices, {"MATRIX.toml": TOML}),
    Target("fleet", samples.fleets, {"fleet.json": JSON, "report.json": JSON}, outputs=("store.jsonl", "nothing-there")),
    Target("reproducer", samples.reproducers, {"case/reproducer.json": JSON, "case/subgraph.mlir": MLIR, "case/0-x.npy": formats.npy}, told=NUMPY),
    Target("arrays", samples.arrays, {"x.npy": formats.npy, "y.npy": formats.npy}, told=NUMPY),
    Target("tests-of-operations", samples.operation_tests, {"test.mlir": MLIR}, listed="malformed "),
    Target("operations", samples.own_operations, {"decode.mlir": MLIR}),
    Target("commands", samples.commands, {"tool.toml": TOML}),
    Target("gguf", samples.ggufs, {"model.gguf": formats.gguf}, told=r"transformers cannot read it \(", outputs=("out.mlir", "out.abi.json")),
    Target("tokenizer", samples.tokenizers, {"model/tokenizer.json": JSON, "model/tokenizer_config.json": JSON, "model/generation_config.json": JSON, "model/chat_template.jinja": TEXT}, told=r"its (tokenizer|chat template) (fails|does not load) \("),
    Target("prompts", samples.prompts, {}, spoil_case=words.prompt),
    Target("command-lines", samples.command_lines, {}, (0, 1, 2), outputs=ANY, listed="malformed ", spoil_case=words.arguments),
    Target("environment", samples.environments, {}, outputs=ANY, spoil_case=words.environment),
    Target("known-faults", samples.known_faults, {"known.toml": TOML}),
)  # fmt: skip
BY_NAME = {target.name: target for target in TARGETS}
