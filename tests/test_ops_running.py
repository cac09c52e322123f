"""Cases on backends that are wrong, crash or hang in some operation, and what is said of that."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from hloracle.backends.named import chosen
from hloracle.backends.session import Executable
from hloracle.backends.xla import XlaCpu
from hloracle.cli.main import invoke
from hloracle.core.abi import Graph
from hloracle.core.errors import InputError, ToolchainError
from hloracle.ops.case import Case, Expected
from hloracle.ops.known import KNOWN, Fault, read_faults, state
from hloracle.ops.outcome import Ended, Outcome, of_error
from hloracle.ops.running import How, Ran, run
from hloracle.ops.running_carrier import CARRIERS, IN_FILES, joined, read, unfit
from hloracle.ops.running_read import signature
from hloracle.ops.suite import cases, forms
from hloracle.reports.ops.record import OpsRecord, to_json

# What is computed instead: of each operation another one of its signature.
FAULTS = {
    "add": "subtract", "multiply": "add", "maximum": "minimum", "negate": "abs", "floor": "ceil", "sine": "cosine",
    "and": "or", "shift_left": "xor", "exponential": "tanh", "rsqrt": "sqrt",
}  # fmt: skip


class Falsified(XlaCpu):
    """XLA with a fault in each of ten operations."""

    name, family, quick = "falsified", "falsified", True

    def __init__(self, threads: int) -> None:
        super().__init__()

    def load(self, graph: Graph) -> Executable:
        pattern = r"stablehlo\.(" + "|".join(FAULTS) + r")(?= %)"
        text = re.sub(pattern, lambda found: f"stablehlo.{FAULTS[found[1]]}", graph.text)
        return super().load(dataclasses.replace(graph, text=text))


class Fragile(Falsified):
    """XLA that crashes on one operation, hangs on another, refuses a third and fails to run a fourth."""

    name = "fragile"

    def load(self, graph: Graph) -> Executable:
        if "stablehlo.floor" in graph.text:
            os.kill(os.getpid(), signal.SIGKILL)
        if "stablehlo.ceil" in graph.text:
            time.sleep(600)
        if "stablehlo.tan " in graph.text:
            raise ToolchainError("compile", "error: failed to legalize operation 'stablehlo.tan'")
        if "stablehlo.cbrt" in graph.text:
            raise ToolchainError("compile", "error: custom op 'stablehlo.cbrt' is unknown")
        executable = XlaCpu.load(self, graph)
        if "stablehlo.sqrt" in graph.text:

            def fails(arguments: Sequence[object]) -> Sequence[object]:
                raise ToolchainError("run", "INVALID_ARGUMENT: no")

            return fails
        return executable


class Spoilt(Falsified):
    """XLA that crashes on the module after one with a floor."""

    name = "spoilt"
    spoilt = False

    def load(self, graph: Graph) -> Executable:
        if self.spoilt:
            os.kill(os.getpid(), signal.SIGKILL)
        self.spoilt = "stablehlo.floor" in graph.text
        return XlaCpu.load(self, graph)


class Jealous(Falsified):
    """XLA that is wrong in modules of several cases alone."""

    name = "jealous"

    def load(self, graph: Graph) -> Executable:
        return Falsified.load(self, graph) if "case1_main" in graph.text else XlaCpu.load(self, graph)


def tried(backend: Callable[[int], object], names: Sequence[str], **how: object) -> dict[str, Outcome]:
    found = run([*cases(names)], *chosen([backend]), How(**how))  # type: ignore[arg-type]
    return {outcome.case: outcome for outcome in found.outcomes}


def test_a_fault_in_each_of_ten_operations_is_found() -> None:
    names = [f"{operation}/{dtype}/hidden" for operation in FAULTS for dtype in ("f32", "i32")]
    found = tried(Falsified, [*names, "subtract/f32/hidden", "divide/f32/hidden"])
    wrong = {outcome.operation for outcome in found.values() if outcome.result == "wrong"}
    assert wrong == {f"stablehlo.{operation}" for operation in FAULTS}
    assert found["subtract/f32/hidden"].result == found["divide/f32/hidden"].result == "exact"
    for outcome in found.values():
        assert outcome.passed == (not outcome.words)


def test_nothing_of_one_case_reaches_another() -> None:
    names = [f"{one}/f32/scalar" for one in ("abs", "floor", "negate", "ceil", "tan", "sqrt", "cbrt", "sign")]
    found = {case.partition("/")[0]: o for case, o in tried(Fragile, names, seconds=20.0).items()}
    assert {name: o.result for name, o in found.items()} == {
        "abs": "exact", "floor": "crash", "negate": "exact", "ceil": "hang", "tan": "does-not-compile", "sqrt": "fails",
        "cbrt": "unsupported", "sign": "exact",
    }  # fmt: skip
    assert "SIGKILL" in found["floor"].words
    assert "within 20 s" in found["ceil"].words
    assert [o.failed for o in found.values()].count(False) == 4  # what is unsupported is no failure


def test_who_crashes_because_of_another_case_is_asked_again() -> None:
    found = tried(Spoilt, ["floor/f32/scalar", "abs/f32/scalar", "sign/f32/scalar"], batch=1)
    assert [o.result for o in found.values()] == ["exact"] * 3


def test_what_is_wrong_among_others_alone_says_so() -> None:
    found = tried(Jealous, ["add/f32/hidden", "divide/f32/hidden"])
    outcome = found["add/f32/hidden"]
    assert outcome.result == "wrong"
    assert outcome.beside == ("divide/f32/hidden",)
    assert outcome.words.startswith("right by itself, and wrong in one module with 1 others: ")
    assert all(o.passed for o in tried(Jealous, ["add/f32/hidden", "divide/f32/hidden"], batch=1).values())


@pytest.mark.parametrize(
    ("found", "lasting"),
    [
        (Outcome("a", "b", "exact"), True),
        (Outcome("a", "b", "wrong"), True),
        (Outcome("a", "b", "crash", words="x ended without an answer (signal SIGSEGV)"), True),
        (Outcome("a", "b", "crash", words="x ended without an answer (signal SIGKILL)"), False),
        (Outcome("a", "b", "crash", words="x ended without an answer (signal SIGTERM)"), False),
        (Outcome("a", "b", "hang"), False),
        (Outcome("a", "b", "skipped"), False),
        (Outcome("a", "b", "wrong", beside=("c",)), False),
    ],
)
def test_what_depends_on_the_machine_or_on_other_cases_is_not_kept(found: Outcome, lasting: bool) -> None:
    assert found.lasting == lasting


def test_a_hang_is_tried_again() -> None:
    names = ["ceil/f32/scalar"]
    (choice,) = (dataclasses.replace(c, identity="fragile of a test") for c in chosen([Fragile]))
    for _ in range(2):
        found = run([*cases(names)], choice, How(seconds=5.0))
        assert [o.result for o in found.outcomes] == ["hang"]
        assert not found.reused


def test_a_variable_that_the_worker_gets_is_another_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    (choice,) = chosen(["xla"])
    names = ["abs/f32/scalar"]
    run([*cases(names)], choice, How())
    assert run([*cases(names)], choice, How()).reused == 1
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    assert run([*cases(names)], choice, How()).reused == 0


def test_a_backend_that_cannot_be_opened_is_bad_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert invoke(["ops", "abs", "--backend", "worker:false", "--out", str(tmp_path)]) == 2
    assert "backend worker:false: cannot be opened" in capsys.readouterr().err


# ---- types


@pytest.mark.parametrize("dtype", [*CARRIERS])
def test_a_type_that_no_runtime_takes_goes_in_and_out(dtype: str) -> None:
    type = f"tensor<3x{dtype}>"
    text = f"func.func @main(%a: {type}) -> {type} {{\n  return %a : {type}\n}}\n"
    from hloracle.semantics.numbers import own_type

    own = own_type(dtype)
    values = np.array([1 - 2j, 0, 4j] if own.kind == "c" else [1, 0, 1]).astype(own)
    part = read(Case("a", "", text, (values,), (Expected(values),)))
    assert not unfit(part)
    together = joined([part, part])
    assert dtype not in {a.dtype for a in (*together.graph.abi.arguments, *together.graph.abi.results)}
    for results in together.apart([*together.inputs.values()]):
        assert results[0].dtype == own
        assert results[0].tobytes() == values.tobytes()


def test_functions_are_renamed_whatever_their_names_and_their_modules_attributes_are() -> None:
    text = """module @jit_f attributes {mhlo.frontend_attributes = {a = "b"}} {
      func.func @main(%a: tensor<2xi32>) -> tensor<2xi32> {
        %0 = call @"my inputs"(%a) : (tensor<2xi32>) -> tensor<2xi32>
        %1 = stablehlo.composite "acme.same" %0 {decomposition = @case0_main} : (tensor<2xi32>) -> tensor<2xi32>
        return %1 : tensor<2xi32>
      }
      func.func private @"my inputs"(%a: tensor<2xi32>) -> tensor<2xi32> {
        return %a : tensor<2xi32>
      }
      func.func private @case0_main(%a: tensor<2xi32>) -> tensor<2xi32> {
        return %a : tensor<2xi32>
      }
    }"""
    values = np.array([1, 2], np.int32)
    part = read(Case("a", "", text, (values,), (Expected(values),)))
    together = joined([part, part])
    main, others = together.graph.text.split("func.func private", 1)
    assert "frontend_attributes" not in together.graph.text
    assert 'call @"case0_my inputs"' in others
    assert "decomposition = @case1_case0_main" in others
    assert main.count("call @case") == 2
    assert len(signature(together.graph.text)[1]) == 2  # it parses


def test_a_case_alone_is_given_as_it_is() -> None:
    (case,) = cases(["add/f32/hidden"])
    assert joined([read(case)]).graph.text == case.text
    (narrow,) = cases(["add/bf16/hidden"])
    assert joined([read(narrow)]).graph.text == narrow.text
    assert "stablehlo.convert" in joined([read(narrow)], IN_FILES).graph.text


def test_what_no_runtime_can_be_given_is_skipped_with_the_reason() -> None:
    text = "func.func @main(%a: !stablehlo.token) -> !stablehlo.token {\n  return %a : !stablehlo.token\n}\n"
    case = Case("token", "stablehlo.after_all", text, (np.zeros(()),), (Expected(np.zeros(())),))
    (outcome,) = run([case], *chosen(["xla"]), How()).outcomes
    assert outcome.result == "skipped"
    assert "!stablehlo.token" in outcome.words
    assert not outcome.passed
    assert not outcome.failed


# ---- errors


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (ToolchainError("compile", "x.mlir:1:2: error: custom op 'stablehlo.new' is unknown"), "unsupported"),
        (ToolchainError("compile", "error: unregistered operation 'stablehlo.new' found"), "unsupported"),
        (ToolchainError("compile", "error: failed to legalize operation 'math.cbrt'"), "does-not-compile"),
        (ToolchainError("compile", "iree-compile ended with exit status -11 and no message"), "crash"),
        (ToolchainError("compile", "Please report issues to https://example.org and include the backtrace"), "crash"),
        (ToolchainError("run", "INVALID_ARGUMENT"), "fails"),
        (Ended("crash", "x ended without an answer (signal SIGABRT)"), "crash"),
        (Ended("crash", "x ended without an answer (signal SIGABRT): Unsupported op: y"), "unsupported"),
        (Ended("hang", "it did not end"), "hang"),
        (Ended("hang", "it did not end: Unsupported op: y"), "hang"),
        (Ended("crash", "signal SIGSEGV: warning: unknown attribute 'z'"), "crash"),
        (ToolchainError("compile", f"error: unknown attribute 'z'\n{'x' * 500}\nStack dump: y"), "crash"),
    ],
)
def test_errors_are_told_apart(error: ToolchainError | Ended, result: str) -> None:
    assert of_error(error)[0] == result


def test_words_name_no_file_of_this_machine() -> None:
    error = ToolchainError("compile", "/home/me/.cache/hloracle/x/3f.mlir:3:10: error: no\n  more")
    assert of_error(error)[1] == "3:10: error: no more"


# ---- what is known


def fault(**more: object) -> Fault:
    given = {
        "cases": ("add/f32/*",),
        "family": "iree",
        "versions": ">=3.12,<3.14",
        "result": ("wrong",),
        "reason": "r",
        "link": "",
    }
    return Fault(**{**given, **more})  # type: ignore[arg-type]


def outcome(result: str, ulp: float | None = None, case: str = "add/f32/a") -> Outcome:
    return Outcome(case, "stablehlo.add", result, ulp)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "version", "means"),
    [
        (outcome("wrong"), "3.13.0", "known"),
        (outcome("wrong"), "3.14.0", "new-failure"),
        (outcome("wrong"), "3.13.0rc1", "known"),
        (outcome("wrong"), "", "new-failure"),
        (outcome("crash"), "3.13.0", "new-failure"),
        (outcome("exact"), "3.13.0", "new-pass"),
        (outcome("exact"), "3.14.0", "pass"),
        (outcome("within", 2), "3.13.0", "new-pass"),
        (outcome("unsupported"), "3.13.0", "open"),
        (outcome("skipped"), "3.13.0", "open"),
        (outcome("wrong", case="add/bf16/a"), "3.13.0", "new-failure"),
    ],
)
def test_states(found: Outcome, version: str, means: str) -> None:
    assert state(found, "iree", version, [fault()])[0] == means


def test_a_fault_that_becomes_worse_is_new() -> None:
    assert state(outcome("wrong", 5), "iree", "3.13.0", [fault(ulp=8)])[0] == "known"
    assert state(outcome("wrong", 9), "iree", "3.13.0", [fault(ulp=8)])[0] == "new-failure"


def test_a_fault_that_shows_sometimes_may_pass() -> None:
    shy = fault(result=("wrong", "crash"), sometimes=True)
    states = [state(outcome(result), "iree", "3.13.0", [shy])[0] for result in ("wrong", "crash", "exact", "hang")]
    assert states == ["known", "known", "pass", "new-failure"]


def test_another_family_is_not_concerned() -> None:
    assert state(outcome("wrong"), "xla", "3.13.0", [fault()])[0] == "new-failure"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[[fault", "is not TOML"),
        ("x = 1", "has something else than [[fault]]"),
        ('[[fault]]\ncases = "a"\nfamily = "iree"\nresult = "wrong"', "lacks reason"),
        (
            '[[fault]]\ncases = "a"\nfamily = "iree"\nresult = "wrong"\nreason = "r"\nmore = 1',
            "has the unknown key 'more'",
        ),
        ('[[fault]]\ncases = "a"\nfamily = "iree"\nresult = "odd"\nreason = "r"', "has the result 'odd'"),
        (
            '[[fault]]\ncases = "a"\nfamily = "iree"\nresult = "wrong"\nreason = "r"\nversions = "3"',
            "has the versions '3'",
        ),
        ('[[fault]]\ncases = 3\nfamily = "iree"\nresult = "wrong"\nreason = "r"', "has a value that is no text"),
        ('[[fault]]\ncases = "a"\nfamily = "iree"\nresult = "wrong"\nreason = "r"\nulp = "1"', "has the ulp '1'"),
    ],
)
def test_a_list_that_is_wrong_gets_one_line(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(text)
    with pytest.raises(InputError, match=re.escape(what)):
        read_faults(tmp_path / "known.toml")


def test_each_pattern_of_the_list_names_a_case() -> None:
    import fnmatch

    names = [id for id, *_ in forms()]
    for known in read_faults(KNOWN):
        for pattern in known.cases:
            assert fnmatch.filter(names, pattern), pattern


# ---- the command line

ADD = ("ops", "add/i1/hidden", "and/i1/hidden", "--backend", "xla", "--jobs", "1")
LISTED = '[[fault]]\ncases = "{}"\nfamily = "xla"\nresult = "wrong"\nreason = "it was wrong"\nlink = "a page"\n'


def test_all_right_ends_with_0_and_a_new_pass_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert invoke([*ADD, *out]) == 0
    printed = capsys.readouterr().out
    assert "stablehlo.add" in printed
    assert "1/1" in printed
    assert "0 new failures" in printed
    record = json.loads((tmp_path / "out" / "ops.json").read_text())
    assert [row["outcomes"][0]["state"] for row in record["rows"]] == ["pass", "pass"]
    (tmp_path / "known.toml").write_text(LISTED.format("add/i1/*"))
    assert invoke([*ADD, *out, "--known", str(tmp_path / "known.toml")]) == 1
    printed = capsys.readouterr().out
    assert "new pass add/i1/hidden on xla-cpu" in printed
    assert "remove it from the list of known faults" in printed
    assert "2 from the cache" in printed


def test_json_is_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([*ADD, "--json", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out == (tmp_path / "ops.json").read_text()


def test_the_cases_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["ops", "add/i1", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {row["operation"] for row in listed} == {"stablehlo.add"}


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["nothing"], "is no operation that there are cases of"),
        (["add", "--backend", "nothing"], "is no backend"),
        (["add", "--known", "nowhere.toml"], "no such file"),
        (["add", "--batch", "0"], "--batch"),
        (["add", "--timeout", "0"], "--timeout"),
        (["add", "--of", "nowhere.mlir"], "no such file"),
        (["add", "--device", "nothing"], "nothing"),
    ],
)
def test_bad_input_gets_one_line(arguments: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["ops", *arguments]) == 2
    error = capsys.readouterr().err
    assert what in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("operation", "name", "files"),
    [
        ("add/f32/hidden", "xla-cpu", {"subgraph.mlir", "expected.npy", "reproduce.sh", "compare.py"}),
        ("compare/f32/EQ/hidden", "stablehlo", {"subgraph.mlir", "expected.npy", "reproduce.sh"}),
    ],
)
def test_a_failure_gets_a_folder_that_shows_it(operation: str, name: str, files: set[str], tmp_path: Path) -> None:
    """The interpreter's has what is expected in the result's own type, which may be a boolean."""
    from hloracle.ops.reproducing import Wanted, folders_of, reproduce

    def spoilt(value: np.ndarray) -> np.ndarray:
        at = np.arange(value.size).reshape(value.shape) == 7
        return value ^ at if value.dtype == bool else value + at

    (case,) = cases([operation])
    wrong = dataclasses.replace(
        case, expected=tuple(dataclasses.replace(e, value=spoilt(e.value)) for e in case.expected)
    )
    (choice,) = chosen([name])
    (found,) = run([wrong], choice, How(reuse=False)).outcomes
    assert found.result == "wrong"
    written, _ = reproduce([Wanted(wrong, found)], choice, tmp_path, 1, 60.0, lambda: None)
    folder = tmp_path / folders_of(name, [wrong.id])[wrong.id]
    assert written[name, wrong.id]["shown"]
    assert files <= {p.name for p in folder.iterdir()}


def test_who_crashes_because_of_another_case_is_reproduced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hloracle.ops import reproducing

    monkeypatch.setattr(reproducing._Writing, "_replayed", lambda self: True)
    wanted = [
        reproducing.Wanted(
            dataclasses.replace(case, expected=tuple(dataclasses.replace(e, value=e.value + 1) for e in case.expected)),
            Outcome(case.id, case.operation, "wrong"),
        )
        for case in cases(["floor/f32/scalar", "sign/f32/scalar"])
    ]
    written, missing = reproducing.reproduce(wanted, *chosen([Spoilt]), tmp_path, 1, 60.0, lambda: None)
    assert len(written) == 2
    assert not missing


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0])
def test_an_element_is_shown_that_no_tolerance_tells(value: float, tmp_path: Path) -> None:
    from hloracle.ops.reproducing import Wanted, reproduce

    text = "func.func @main(%a: tensor<3xbf16>) -> tensor<3xbf16> {\n  %0 = stablehlo.abs %a : tensor<3xbf16>\n  return %0 : tensor<3xbf16>\n}\n"
    import ml_dtypes

    given = np.array([1, 2, 0], ml_dtypes.bfloat16)
    case = Case(
        "a", "stablehlo.abs", text, (given,), (Expected(np.array([1, 2, value]), 0.0, dtype="bf16", signed=True),)
    )
    (choice,) = chosen(["xla"])
    (found,) = run([case], choice, How(reuse=False)).outcomes
    assert found.result == "wrong"
    written, _ = reproduce([Wanted(case, found)], choice, tmp_path, 1, 60.0, lambda: None)
    assert written["xla-cpu", "a"]["shown"]


def test_folders_of_reproducers_are_short_and_apart() -> None:
    from hloracle.ops.reproducing import LONGEST, folders_of

    names = ["col/a/b.mlir", "col/a-b.mlir", "col/A-B.mlir", "add/f32/hidden", "d" * 300, "é" * 90]
    folders = [folder.rpartition("/")[2] for folder in folders_of("xla-cpu", names).values()]
    assert folders[3] == "add-f32-hidden"
    assert len({folder.casefold() for folder in folders}) == len(names)
    assert max(len(folder.encode()) for folder in folders) <= LONGEST + 9


WRONG = """func.func @main() {
  %0 = stablehlo.constant dense<[1, 2, 3]> : tensor<3xi32>
  %1 = stablehlo.multiply %0, %0 : tensor<3xi32>
  check.expect_eq_const %1, dense<[1, 4, 8]> : tensor<3xi32>
  return
}
"""


def test_a_reproducer_that_cannot_be_written_costs_only_itself(tmp_path: Path) -> None:
    tests, out = tmp_path / "tests", tmp_path / "out"
    (tests / "a").mkdir(parents=True)
    for name in ("first.mlir", "a/second.mlir", "a-second.mlir"):
        (tests / name).write_text(WRONG)
    from hloracle.ops.reproducing import folders_of

    cases = [str(tests / name) for name in ("a/second.mlir", "a-second.mlir", "first.mlir")]
    taken = out / folders_of("xla-cpu", cases)[cases[2]]
    taken.mkdir(parents=True)
    (taken / "mine.txt").write_text("it is no reproducer's")
    assert invoke(["ops", str(tests), "--backend", "xla", "--jobs", "1", "--out", str(out)]) == 1
    found = json.loads((out / "ops.json").read_text())
    outcomes = {Path(row["case"]).name: row["outcomes"][0] for row in found["rows"]}
    assert outcomes["first.mlir"]["reproducer"] is None
    assert "could not be written" in outcomes["first.mlir"]["unwritten"]
    shown = [outcomes[name]["reproducer"] for name in ("second.mlir", "a-second.mlir")]
    assert all(one["shown"] for one in shown)
    assert shown[0]["folder"] != shown[1]["folder"]
    assert invoke(["ops", str(tests), "--backend", "xla", "--reproducers", "none", "--out", str(out)]) == 1
    assert [path.name for path in (out / "reproducers" / "xla-cpu").iterdir()] == [taken.name]


def test_why_a_check_has_no_reproducer(tmp_path: Path) -> None:
    path = tmp_path / "nan.mlir"
    path.write_text(WRONG.replace("i32", "f32").replace("[1, 4, 8]", "0x7FC00000").replace("[1, 2, 3]", "0x7FC00000"))
    assert invoke(["ops", str(path), "--backend", "xla", "--jobs", "1", "--out", str(tmp_path)]) == 1
    (row,) = json.loads((tmp_path / "ops.json").read_text())["rows"]
    assert row["outcomes"][0]["reproducer"] is None
    assert "its check" in row["outcomes"][0]["unwritten"]
    assert "No reproducer: <bdi>its check" in (tmp_path / "ops.html").read_text()


def test_malformed_files_are_told_of_in_a_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "right.mlir").write_text(WRONG)
    (tmp_path / "malformed.mlir").write_text("nothing")
    assert invoke(["ops", str(tmp_path), "--list", "--json"]) == 2
    printed = capsys.readouterr()
    assert [Path(row["case"]).name for row in json.loads(printed.out)] == ["right.mlir"]
    assert "malformed" in printed.err
    assert "does not parse" in printed.err


# ---- the record


def record(words: str = "result 0[3] is 1.0 instead of 2.0") -> OpsRecord:
    """One of a run on two backends, with all that a page shows."""
    from hloracle.ops.running_record import Found, record_of
    from hloracle.reports.ops.record import Reproducer

    names = [
        ("add/f32/a", "stablehlo.add"),
        ("add/f32/b", "stablehlo.add"),
        ("sine/f32/a", "stablehlo.sine"),
        ("sort/i4/a", "stablehlo.sort"),
    ]
    made = [Case(id, operation, "", (), (), words, words) for id, operation in names]
    results = (("exact", "wrong", "within", "skipped"), ("wrong", "crash", "exact", "unsupported"))
    ran = []
    for choice, outcomes in zip(chosen(["xla", "iree"]), results, strict=True):
        one = Ran(choice, {"version": "3.13.0"}, seconds=1.5, reused=2)
        for (id, operation), result in zip(names, outcomes, strict=True):
            passed = result in ("exact", "within")
            off = {"exact": 0.5, "within": 2.25, "wrong": float("inf")}.get(result)
            one.outcomes.append(Outcome(id, operation, result, off, off, None, "" if passed else words, (words,)))  # type: ignore[arg-type]
        ran.append(one)
    faults = [fault(cases=("add/f32/a",), reason=words, link=words), fault(cases=("sine/*",), reason=words)]
    shown = Reproducer(folder="reproducers/a", command=words, shown=True)
    malformed = [InputError(words, words, words)]
    return record_of(Found(made, ran, faults, malformed, {("iree-cpu", "add/f32/b"): shown}))


def test_the_record_says_what_is_new() -> None:
    found = record()
    states = {(row["case"], o["backend"]): o["state"] for row in found["rows"] for o in row["outcomes"]}
    assert states["add/f32/a", "iree-cpu"] == "known"
    assert states["add/f32/b", "xla-cpu"] == states["add/f32/b", "iree-cpu"] == "new-failure"
    assert states["sine/f32/a", "iree-cpu"] == "new-pass"
    assert states["sort/i4/a", "xla-cpu"] == "open"
    assert not found["passed"]
    assert json.loads(to_json(found)) == found


def test_who_tries_nothing_passes_nothing() -> None:
    """As where a backend gets no memory for any case."""
    from hloracle.ops.running_record import Found, record_of

    case = Case("add/f32/a", "stablehlo.add", "", (), (), "", "")

    def passed(*results: str) -> bool:
        one = Ran(chosen(["xla"])[0], {"version": "1"})
        one.outcomes += [
            Outcome(case.id, case.operation, result, words="no", starved=result == "skipped") for result in results
        ]  # type: ignore[arg-type]
        return bool(record_of(Found([case], [one], []))["passed"])

    assert [passed("skipped"), passed("unsupported"), passed("exact")] == [False, True, True]


def test_the_record_is_of_its_schema() -> None:
    from hloracle.core.typed import problem
    from hloracle.reports.ops import record as form

    assert problem(form.OpsRecord, record()) == ""
    assert form.SCHEMA_FILE.read_text("utf-8") == form.schema(), "python -m hloracle.reports.ops.record"


def test_the_page_has_all_of_it() -> None:
    from page_text import Page, stands_alone, told

    from hloracle.reports.ops.page import render

    source = render(record())
    stands_alone(source)
    told(source)
    text = Page(source).text
    for words in (
        "2 new failures",
        "1 new pass",
        "New passes",
        "Known faults",
        "Not tried",
        "Malformed tests",
        "shows the fault",
    ):
        assert words in text


def test_a_page_of_skipped_cases_says_that_nothing_was_tried(tmp_path: Path) -> None:
    path = tmp_path / "nothing.mlir"
    path.write_text("func.func @main() {\n  return\n}\n")
    assert invoke(["ops", str(path), "--backend", "xla", "--jobs", "1", "--out", str(tmp_path)]) == 0
    source = (tmp_path / "ops.html").read_text()
    assert "Nothing was tried" in source
    assert "All right" not in source
    assert 'class="verdict pass"' not in source
