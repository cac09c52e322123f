"""A project's file: what it may say, how a mistake in it is told, and each of its rules as one that holds and one that fails."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jax._src.lib.mlir.dialects import hlo

import hloracle
from hloracle.cli import main as cli
from hloracle.conformance.checks.check import Check
from hloracle.conformance.checks.of_graphs import graph_checks
from hloracle.conformance.checks.of_rules import RULES, names, refuse_misfits
from hloracle.conformance.graphs.facts import GraphFacts, inspect
from hloracle.conformance.project.file import (
    DTYPES,
    NAME,
    OPERATIONS,
    PHASES,
    Bound,
    Project,
    bundled,
    find_project,
    read_project,
)
from hloracle.conformance.project.form import SCHEMA_FILE, schema
from hloracle.core.abi import INPUTS, Abi, Graph
from hloracle.core.child import alone
from hloracle.core.errors import InputError
from hloracle.emitters.model import emit
from hloracle.reference.fixtures.tiny import TINY
from hloracle.reference.model.registry import FAMILIES, from_hf
from hloracle.reports.record import load

CONFIG = from_hf(TINY["llama"])
Inspected = tuple[Graph, GraphFacts]
Change = Callable[[Graph], Graph]


def written(folder: Path, text: str) -> Path:
    path = folder / NAME
    path.write_text(text, "utf-8")
    return path


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str], Project]:
    return lambda text: read_project(written(tmp_path, text))


@pytest.fixture(scope="module")
def graphs() -> dict[str, Graph]:
    return {"decode": emit(CONFIG, "decode", "logits", 64), "prefill": emit(CONFIG, "prefill", "logits", 64, 32)}


def facts(graph: Graph) -> Inspected:
    return graph, inspect(graph)


def stated(project: Project, *judged: Inspected) -> dict[str, Check]:
    """What is checked because the project states it, by kind."""
    found = graph_checks("file", list(judged), CONFIG, "", project.rules)
    assert len({c.id for c in found}) == len(found)
    return {c.kind: c for c in found if c.kind in RULES}


# ---- the file


def test_a_whole_file(read: Callable[[str], Project], tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    found = read("""
        model = "checkpoint"
        abi = ["decode.abi.json", "prefill.abi.json"]
        [invariants]
        operations.forbidden = ["custom_call", "rng"]
        custom_calls = ["gemm"]
        dtypes = ["f32", "i32", "i1"]
        largest_constant = 1024
        tables = "rope"
        [invariants.decode]
        aliasing = { k_cache = "k_cache", 2 = 33 }
        counts.add = "<= 9 * L"
        counts.total = ">=1"
        counts.kinds = 20
    """)
    whole, decode = found.rules
    assert (found.model, found.abi) == (
        str(tmp_path / "checkpoint"), (tmp_path / "decode.abi.json", tmp_path / "prefill.abi.json")
    )  # fmt: skip
    assert (whole.phase, whole.forbidden, whole.allowed) == ("", ("custom_call", "rng"), None)
    assert (whole.custom_calls, whole.dtypes, whole.tables) == (("gemm",), ("f32", "i32", "i1"), True)
    assert whole.largest_constant == Bound("invariants.largest_constant", "<=", "1024")
    assert (decode.phase, decode.custom_calls, decode.dtypes, decode.tables) == ("decode", None, None, False)
    assert decode.aliasing == {"k_cache": "k_cache", "2": "33"}
    assert list(decode.counts.values()) == [
        Bound("invariants.decode.counts.add", "<=", "9 * L"), Bound("invariants.decode.counts.total", ">=", "1"),
        Bound("invariants.decode.counts.kinds", "", "20"),
    ]  # fmt: skip


def test_a_file_may_say_little(read: Callable[[str], Project], tmp_path: Path) -> None:
    found = read('model = "tiny-llama"')
    assert found == Project(tmp_path / NAME, "tiny-llama")
    assert read('model = "no/such"').model == str(tmp_path / "no/such")
    for odd in ("~nobody-of-that-name", "x" * 5000):
        assert read(f'model = "{odd}"').model == odd
    assert read('abi = "mine.abi.toml"').abi == (tmp_path / "mine.abi.toml",)
    assert [r.phase for r in read("[invariants]\n[invariants.prefill]\ndtypes = []").rules] == ["prefill"]


def test_it_is_found_in_the_working_directory(tmp_path: Path) -> None:
    assert find_project(None, tmp_path) is None
    path = written(tmp_path, 'model = "tiny-llama"')
    assert find_project(None, tmp_path) == find_project(path, tmp_path / "elsewhere") == read_project(path)
    with pytest.raises(InputError, match=r"none\.toml: no such file; name the project's hloracle\.toml with --project"):
        find_project(tmp_path / "none.toml", tmp_path)


MISTAKES = [
    ("model = ", "is not TOML"),
    ("modle = 'x'", "the file has an unknown key 'modle'; did you mean 'model'?"),
    ("[invariant]", "the file has an unknown key 'invariant'; did you mean 'invariants'?"),
    ("[invariants.decoding]", "invariants has an unknown key 'decoding'; did you mean 'decode'?"),
    ("[invariants.decode.decode]", "invariants.decode has an unknown key 'decode'; there are aliasing, counts"),
    ("invariants.operations.alowed = []", "invariants.operations has an unknown key 'alowed'; did you mean 'allowed'?"),
    ("model = 3", "model: Input should be a valid string; write it as docs/project-file.md says"),
    ("abi = [1]", "abi[0]: Input should be a valid string"),
    ("invariants = 3", "invariants: Input should be a valid dictionary"),
    ("invariants.dtypes = 'f32'", "invariants.dtypes: Input should be a valid list, not 'f32'"),
    ("invariants.tables = 'sin'", "invariants.tables: Input should be 'rope', not 'sin'"),
    ("invariants.largest_constant = 1.5", "invariants.largest_constant: Input should be a valid integer or a valid string"),
    ("invariants.largest_constant = -1", "invariants.largest_constant: Input should be greater than or equal to 0"),
    ("invariants.largest_constant = '>= 3'", "invariants.largest_constant is '>= 3'; give the most that there may be"),
    ("invariants.counts.add = -1", "invariants.counts.add: Input should be greater than or equal to 0"),
    ("invariants.counts.add = true", "invariants.counts.add: Input should be a valid"),
    ("invariants.counts.add = 'L +'", "invariants.counts.add: 'L +' is no arithmetic"),
    ("invariants.counts.add = '< 3'", "invariants.counts.add: '< 3' is no arithmetic"),
    ("invariants.counts.add = ''", "invariants.counts.add: '' is no arithmetic"),
    ("invariants.counts.add = 'max(L, 3)'", "'max(L, 3)' is no arithmetic"),
    ("invariants.counts.add = 'L if K else N'", "is no arithmetic of numbers, names, + - * / // %, parentheses and sqrt"),
    ("invariants.counts.adds = 1", "invariants.counts: 'adds' is no operation of StableHLO; did you mean 'add'?"),
    ("invariants.operations.allowed = ['custom-call']", "'custom-call' is no operation of StableHLO; did you mean 'custom_call'?"),
    ("invariants.operations = {}", "invariants.operations has 0 keys; write `allowed` or `forbidden`"),
    ("invariants.operations = {allowed = [], forbidden = []}", "invariants.operations has 2 keys"),
    ("invariants.dtypes = ['float32']", "invariants.dtypes: 'float32' is no dtype"),
    ("invariants.aliasing.k_cache = -1", "invariants.aliasing.k_cache: Input should be greater than or equal to 0"),
    ("invariants.aliasing = {0 = 1, 1 = 1}", "invariants.aliasing names '1' twice; give each argument to one result"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), MISTAKES)
def test_mistakes(text: str, words: str, read: Callable[[str], Project], tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert str(caught.value).startswith(f"{tmp_path / NAME}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


MISFITS = [
    ("num_layers", "invariants.decode.counts.add: 'num_layers' is unknown; did you mean 'num_hidden_layers'?"),
    ("zzz", "invariants.decode.counts.add: 'zzz' is unknown; there are D, "),
    ("L / 2", "invariants.decode.counts.add: 'L / 2' is 1.5, no whole number"),
    ("L / (L - 3)", "cannot be computed"),
    ("<= L - 4", "invariants.decode.counts.add: 'L - 4' is -1 for this model; write a formula that gives 0 or more"),
    ("norm_eps", "no whole number"),
    ("1e400", "write a formula that gives a whole number"),
]


@pytest.mark.parametrize(("formula", "words"), MISFITS)
def test_formulas_that_fit_no_model(
    formula: str, words: str, read: Callable[[str], Project], graphs: dict[str, Graph]
) -> None:
    project = read(f'invariants.decode.counts.add = "{formula}"')
    with pytest.raises(InputError) as caught:
        refuse_misfits(project, graphs.values(), CONFIG)
    assert NAME in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_formula_of_another_phase_is_held_to_its_names(
    read: Callable[[str], Project], graphs: dict[str, Graph]
) -> None:
    refuse_misfits(read('invariants.prefill.counts.add = "L / 2"'), [graphs["decode"]], CONFIG)
    with pytest.raises(InputError, match="'layers' is unknown"):
        refuse_misfits(read('invariants.prefill.counts.add = "layers"'), [graphs["decode"]], CONFIG)


def test_what_formulas_may_name(graphs: dict[str, Graph]) -> None:
    decode, prefill = (names(graph, CONFIG) for graph in (graphs["decode"], graphs["prefill"]))
    assert {k: decode[k] for k in "LNKDEFVST"} == {
        "L": 3, "N": 6, "K": 2, "D": 16, "E": 84, "F": 112, "V": 257, "S": 64, "T": 1
    }  # fmt: skip
    assert (prefill["S"], prefill["T"]) == (64, 32)
    assert (decode["num_hidden_layers"], decode["hidden_size"], decode["num_experts"]) == (3, 84, 0)
    assert (decode["products"], decode["weights"], decode["mechanisms"], decode["picks_token"]) == (28, 30, 0, 0)
    assert names(emit(CONFIG, "decode", "token", 64), CONFIG)["picks_token"] == 1
    for family in FAMILIES:
        config = from_hf(TINY[family])
        found = names(emit(config, "decode", "logits", 64), config)
        assert all(isinstance(value, int | float) and not isinstance(value, bool) for value in found.values())
        assert (found["num_experts"] > 0) == (config.experts is not None)


def test_the_schema_is_that_of_the_types() -> None:
    assert SCHEMA_FILE.read_text("utf-8") == schema()


def test_what_may_be_named_is_what_there_is() -> None:
    known = {getattr(one, "OPERATION_NAME", "") for one in vars(hlo).values()} - {""}
    assert known == {f"stablehlo.{name}" for name in OPERATIONS}
    assert len(set(DTYPES)) == len(DTYPES)
    assert {*PHASES} == {*INPUTS}


# ---- the rules


def insert(*lines: str) -> Change:
    """Adds operations to the end of the function."""
    return replace("    func.return", "".join(f"    {line}\n" for line in lines) + "    func.return")


def replace(old: str, new: str) -> Change:
    def change(graph: Graph) -> Graph:
        assert old in graph.text
        return dataclasses.replace(graph, text=graph.text.replace(old, new, 1))

    return change


def donates(**aliases: int | None) -> Change:
    """The function's results take over these arguments, and the ABI says so."""

    def change(graph: Graph) -> Graph:
        results = tuple(dataclasses.replace(r, aliases=aliases.get(r.name)) for r in graph.abi.results)
        text = re.sub(r" \{tf\.aliasing_output = \d : i32\}", "", graph.text)
        for i, result in enumerate(results):
            if result.aliases is not None:
                name = graph.abi.arguments[result.aliases].name
                text = re.sub(rf"(%{name}: tensor<[^>]*>)", rf"\1 {{tf.aliasing_output = {i} : i32}}", text, count=1)
        return dataclasses.replace(graph, text=text, abi=dataclasses.replace(graph.abi, results=results))

    return change


SINE = '%new_s = stablehlo.sine %lm_head.dot : tensor<1x257xf32> loc("lm_head")'
CALL = "%new_c = stablehlo.custom_call @magic(%lm_head.dot) : (tensor<1x257xf32>) -> tensor<1x257xf32>"
HALF = "%new_h = stablehlo.convert %lm_head.dot : (tensor<1x257xf32>) -> tensor<1x257xbf16>"
MANY = "%new_m = stablehlo.iota dim = 0 : tensor<9xi32>"
TABLE = "%new_t = stablehlo.constant dense<[1, 2, 3]> : tensor<3xi64>"
SPLAT = "%new_t = stablehlo.constant dense<1> : tensor<3000xi64>"
LLAMA = (
    "add broadcast_in_dim compare constant divide dot_general dynamic_slice dynamic_update_slice exponential iota logistic "
    "maximum multiply reduce reshape return reverse rsqrt select subtract"
).split()
BOTH = '{ k_cache = "k_cache", v_cache = "v_cache" }'

# What is stated, a graph that holds to it, one that does not, the check, and what it says of the latter.
RULED: dict[str, tuple[str, Change | None, Change, str, str]] = {
    "allowed": (f"operations.allowed = {LLAMA}", None, insert(SINE), "operations",
                "llama_decode_logits: stablehlo.sine %new_s at line LINE, in lm_head"),
    "forbidden": ("operations.forbidden = ['sine']", insert(HALF), insert(SINE), "operations",
                  "stablehlo.sine %new_s at line LINE, in lm_head"),
    "custom calls": ("custom_calls = []", None, insert(CALL), "custom-calls", "stablehlo.custom_call @magic %new_c at line LINE"),
    "a custom call": ("custom_calls = ['magic']", insert(CALL), insert(CALL.replace("magic", "tragic")), "custom-calls",
                      "stablehlo.custom_call @tragic %new_c at line LINE"),
    "dtypes": ("dtypes = ['f32', 'i32', 'i1']", None, insert(HALF), "dtypes", "bf16 of stablehlo.convert %new_h at line LINE"),
    "dtypes of arguments": ("dtypes = ['f32', 'i32', 'i1']", insert(SINE), replace("%position: tensor<i32>",
                            "%position: tensor<i32>, %more: tensor<i64>"), "dtypes", "i64 of argument 32 at line 2"),
    "constants": ("largest_constant = 2", replace("dense<", "dense<"), insert(TABLE), "constants",
                  "3 elements, more than 2: stablehlo.constant %new_t at line LINE"),
    "constants of one number": ("largest_constant = 'S * D'", insert(SPLAT), insert(
                                SPLAT.replace("dense<1>", f"dense<{list(range(3000))}>")), "constants",
                                "3000 elements, more than 1024: stablehlo.constant %new_t at line LINE"),
    "aliasing": (f"aliasing = {BOTH}", None, donates(k_cache=32), "aliasing",
                 "llama_decode_logits: result v_cache takes over nothing, not argument v_cache"),
    "aliasing by number": ("aliasing = { 1 = 32, v_cache = 33 }", None, donates(k_cache=33, v_cache=32), "aliasing",
                           "result 1 takes over argument v_cache, not argument 32"),
    "aliasing of nothing": ("aliasing = { 1 = 32 }", None, donates(), "aliasing", "takes over nothing"),
    "counts": ("counts = { dot_general = '9 * L + 1', iota = '<= 2' }", None, insert(MANY), "counts",
               "llama_decode_logits has 3 iota instead of at most 2, the first at stablehlo.iota"),
    "counts of none": ("counts.sine = 0", insert(HALF), insert(SINE), "counts",
                       "has 1 sine instead of 0, the first at stablehlo.sine %new_s at line LINE, in lm_head"),
    "too few": ("counts.logistic = '>= L'", insert(SINE), replace("stablehlo.logistic", "stablehlo.tanh"), "counts",
                "has 2 logistic instead of at least 3"),
    "in all": ("counts.total = '<= 332'", None, insert(SINE, MANY), "counts", "operations instead of at most"),
    "kinds": ("counts.kinds = '<= 20'", insert(MANY), insert(SINE), "op-kinds", "has 21; the rarest are stablehlo.compare"),
    "products": ("counts.products = '9 * num_hidden_layers + 1'", insert(SINE), replace("%lm_head.dot = ",
                 "%again = stablehlo.dot_general %a1, %a2, contracting_dims = [1] x [1] : (tensor<1x84xf32>, "
                 "tensor<257x84xf32>) -> tensor<1x257xf32>\n    %lm_head.dot = "), "matmuls", "has 29"),
    "weights": ("counts.weights = '9 * L + 3'", insert(SINE), lambda graph: dataclasses.replace(graph, abi=dataclasses.replace(
                graph.abi, arguments=graph.abi.arguments[1:])), "weights", "has 29"),
    "tables": ("tables = 'rope'", insert(TABLE), lambda graph: dataclasses.replace(graph, text=re.sub(
               r'dense<"0x[0-9A-F]+">', "dense<0.5>", graph.text)), "tables", "has no table"),
}  # fmt: skip


def with_operands(graph: Graph) -> Graph:
    """The names that stand in a product above are those of the head's own operands."""
    found = re.search(r"%lm_head\.dot = stablehlo\.dot_general (%\S+), (%\S+),", graph.text)
    assert found
    return dataclasses.replace(graph, text=graph.text.replace("%a1", found[1]).replace("%a2", found[2]))


@pytest.mark.parametrize(("text", "right", "wrong", "kind", "words"), RULED.values(), ids=RULED)
def test_a_rule(
    text: str, right: Change | None, wrong: Change, kind: str, words: str,
    read: Callable[[str], Project], graphs: dict[str, Graph],
) -> None:  # fmt: skip
    decode = graphs["decode"]
    project = read(f"[invariants.decode]\n{text}\n".replace("= 332", f"= {inspect(decode).total + 1}"))
    if kind == "constants" and "2" in text:
        decode = dataclasses.replace(decode, text=re.sub(r'dense<"0x[0-9A-F]+">', "dense<0.5>", decode.text))
    refuse_misfits(project, [decode], CONFIG)
    holds = stated(project, facts(right(decode) if right else decode))[kind]
    assert (holds.status, holds.detail, holds.anchor, holds.operation) == ("passed", "", "", "")
    assert holds.figure
    assert holds.limit
    graph = with_operands(wrong(decode))
    parsed = facts(graph)
    assert not parsed[1].error
    broken = stated(project, parsed)[kind]
    line = next((i for i, line in enumerate(graph.text.splitlines(), 1) if re.match(r" *%new_. = ", line)), 0)
    assert broken.status == "failed"
    assert words.replace("LINE", str(line)) in broken.detail
    if " %" in words and "first" not in words:
        assert re.fullmatch(r".*stablehlo\.\w+ .* at line \d+ of llama_decode_logits", broken.operation)


def test_the_place_of_what_breaks_a_rule(read: Callable[[str], Project], graphs: dict[str, Graph]) -> None:
    project = read("invariants.operations.forbidden = ['sine']\ninvariants.counts.sine = 0")
    found = stated(project, facts(insert(SINE)(graphs["decode"])))
    line = next(i for i, line in enumerate(insert(SINE)(graphs["decode"]).text.splitlines(), 1) if "%new_s = " in line)
    for kind in ("operations", "counts"):
        assert found[kind].anchor == "lm_head"
        assert found[kind].operation == f"stablehlo.sine %new_s at line {line} of llama_decode_logits"


def test_the_layer_that_is_not_like_the_others(read: Callable[[str], Project], graphs: dict[str, Graph]) -> None:
    """Of too many operations of a kind none is the wrong one, but a layer may be."""
    text = graphs["decode"].text
    line = next(n for n in text.splitlines() if "logistic" in n and "layers.1.mlp" in n)
    graph = replace(line, line + "\n" + line.replace(line.split()[0], "%once_more", 1))(graphs["decode"])
    found = stated(read('invariants.counts.logistic = "L"'), facts(graph))["counts"]
    assert (found.status, found.anchor, found.operation) == ("failed", "layers.1.mlp.act", "")


def test_rules_of_all_and_of_one_phase_hold_together(read: Callable[[str], Project], graphs: dict[str, Graph]) -> None:
    project = read("""
        invariants.dtypes = ["f32", "i32", "i1", "bf16"]
        invariants.decode.dtypes = ["f32", "i32", "i1"]
    """)
    half = {phase: facts(insert(HALF)(graph)) for phase, graph in graphs.items()}
    plain = {phase: facts(graph) for phase, graph in graphs.items()}
    assert stated(project, plain["decode"], half["prefill"])["dtypes"].status == "passed"
    found = stated(project, half["decode"], plain["prefill"])["dtypes"]
    assert (found.status, found.figure, found.limit) == ("failed", "bf16", "none")
    assert "llama_prefill" not in found.detail


def test_what_no_graph_is_about_is_skipped(read: Callable[[str], Project], graphs: dict[str, Graph]) -> None:
    project = read("invariants.decode.dtypes = ['f32']\ninvariants.decode.counts.kinds = 3")
    found = stated(project, facts(graphs["prefill"]))
    for kind in ("dtypes", "op-kinds"):
        assert (found[kind].status, found[kind].detail) == ("skipped", "no graph is judged that it is about: decode")


def test_aliases_that_are_not_there(read: Callable[[str], Project], graphs: dict[str, Graph]) -> None:
    project = read("invariants.decode.aliasing = { kcache = 'k_cache', v_cache = 'cache' }")
    found = stated(project, facts(graphs["decode"]))["aliasing"]
    assert found.figure == "0 of 2 results"
    assert "has no result 'kcache', the nearest is k_cache" in found.detail
    assert "has no argument 'cache', the nearest is" in found.detail
    assert found.operation == "result kcache of llama_decode_logits"


def test_a_source_with_counts_is_held_to_both(read: Callable[[str], Project], graphs: dict[str, Graph]) -> None:
    project = read("invariants.counts.kinds = '<= 19'\ninvariants.counts.add = 3")
    judged = [facts(graph) for graph in graphs.values()]
    found = {c.kind: c for c in graph_checks("mine", judged, CONFIG, "emitter", project.rules)}
    assert {found[kind].status for kind in ("census", "matmuls", "weights", "tables")} == {"passed"}
    assert {found[kind].status for kind in ("op-kinds", "counts")} == {"failed"}


def test_what_a_source_with_counts_lacks(read: Callable[[str], Project], graphs: dict[str, Graph]) -> None:
    """It has a decode graph, whatever else its project states of prefill."""
    project = read("invariants.counts.kinds = '<= 30'\ninvariants.decode.dtypes = []")
    found = {c.kind: c for c in graph_checks("mine", [facts(graphs["prefill"])], CONFIG, "emitter", project.rules)}
    assert (found["op-kinds"].status, found["op-kinds"].figure) == ("failed", "no graph")
    assert found["dtypes"].status == "skipped"


def test_without_a_file_nothing_is_asked(graphs: dict[str, Graph]) -> None:
    found = graph_checks("file", [facts(graphs["decode"])], CONFIG, "")
    assert {c.kind for c in found if c.kind in RULES} == {"matmuls", "weights", "op-kinds", "tables"}
    assert {c.status for c in found if c.kind in RULES} == {"skipped"}


def test_ours_are_written_in_such_files() -> None:
    whole, decode = bundled("emitter")
    assert (*whole.counts, whole.tables) == ("products", "weights", True)
    assert decode.counts["kinds"].formula == "20 + mechanisms + picks_token"
    assert bundled("oracle") == bundled("somebody") == (dataclasses.replace(whole),)


# ---- a whole run


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a graph, its ABI and a project's file."""
    monkeypatch.chdir(tmp_path)
    emit(CONFIG, "decode", "logits", 64).save("graph.mlir")
    Path("graph.abi.json").rename("mine.abi.json")
    written(tmp_path, 'model = "tiny-llama"\nabi = "mine.abi.json"\n[invariants]\noperations.forbidden = ["sine"]\n')
    return tmp_path


def judged(*more: str) -> tuple[int, dict[str, Any]]:
    with alone():
        status = cli.invoke(["check", "graph.mlir", "--tokens", "2", "--backend", "xla-cpu", *more])
    return status, load(Path("out/report.json"))


def test_check_takes_what_the_file_says(project: Path) -> None:
    status, record = judged()
    (found,) = (c for c in record["checks"] if c["kind"] == "operations")
    assert (status, record["verdict"]["class"], record["model"]["name"]) == (0, "conforms", "tiny-llama")
    assert (found["id"], found["status"]) == ("file.operations", "passed")
    graph = Path("graph.mlir")
    wrong = insert(SINE.replace(' loc("lm_head")', ""))(
        Graph("graph", graph.read_text(), Abi.from_file("mine.abi.json"))
    )
    graph.write_text(wrong.text)
    status, record = judged()
    verdict = record["verdict"]
    assert (status, verdict["class"], verdict["confidence"]["level"]) == (1, "invariant-broken", "certain")
    assert "the graph breaks an invariant: no operation of a kind that the project rules out" in verdict["explanation"]
    assert verdict["operation"].startswith("stablehlo.sine %new_s at line ")
    assert verdict["anchor"] is None


def test_what_is_given_comes_before_what_the_file_says(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for more, words in (
        (("--abi", "none.json"), "none.json: "), (("--model", "none"), "'none': no such model"),
        (("--project", "none.toml"), "none.toml: no such file"),
    ):  # fmt: skip
        assert cli.invoke(["check", "graph.mlir", *more]) == 2
        assert words in capfd.readouterr().err


def test_a_mistake_in_it_is_one_line(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for text, words in (
        ("[invariants]\ndtypes = ['f33']", "hloracle.toml: invariants.dtypes: 'f33' is no dtype; did you mean 'f32'?"),
        ("model = 'tiny-llama'\nabi = 'mine.abi.json'\ninvariants.counts.add = 'X'", "invariants.counts.add: 'X' is unknown"),
        ("abi = 'mine.abi.json'", "hloracle.toml: has no `model`; name it with --model, or as `model` in hloracle.toml"),
    ):  # fmt: skip
        written(project, text)
        assert cli.invoke(["check", "graph.mlir"]) == 2
        error = capfd.readouterr().err
        assert words in error
        assert error.count("\n") == 1


def test_a_run_of_the_bundled_emitter_takes_no_file(project: Path) -> None:
    with pytest.raises(InputError, match="project: has no effect on the bundled emitter"):
        hloracle.run("tiny-llama", project=project / NAME)
