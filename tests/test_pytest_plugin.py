"""The pytest plugin, in sessions of its own; most have a library that answers at once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stand_in

import hloracle
from hloracle import pytest_plugin
from hloracle.cli import main as cli

pytest_plugins = ("pytester",)

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "pytest.md").read_text("utf-8")
(EXAMPLE,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
Inner = Callable[..., pytest.RunResult]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins are named: whether the environment has our entry point, or others, makes no difference."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def inner(alone: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Inner:
    """Runs a test file in a session with the plugin and the stand-in."""
    for name, value in stand_in.API.items():
        monkeypatch.setitem(vars(hloracle), name, value)

    def run(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=source)
        return pytester.runpytest_inprocess("-p", "hloracle.pytest_plugin", "--strict-markers", *arguments)

    return run


def asked(pytester: pytest.Pytester, folder: str = "out/pytest/test_it.py--test_it") -> dict[str, Any]:
    """What the library was asked for the report in a folder."""
    return dict(json.loads((pytester.path / folder / "report.json").read_text()))


# ---- the plugin and everyone else


def test_costs_a_session_nothing() -> None:
    heavy = {"numpy", "jax", "jaxlib", "torch", "transformers", "iree", "pydantic", "rich"}
    code = f"import sys, hloracle.pytest_plugin; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_is_found_by_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"hloracle": pytest_plugin.__name__}


def test_a_suite_without_it_is_as_it_was(inner: Inner, pytester: pytest.Pytester) -> None:
    inner("def test_it(): import hloracle").assert_outcomes(passed=1)
    assert sorted(path.name for path in pytester.path.iterdir() if not path.name.startswith((".", "_"))) == [
        "test_it.py"
    ]


def test_says_what_there_is(inner: Inner) -> None:
    inner("", "--markers").stdout.fnmatch_lines("@pytest.mark.hloracle(model=..., tokens=..., ...): what the fixture*")
    inner("", "--fixtures").stdout.fnmatch_lines(["hloracle -- *pytest_plugin.py:*", "*Checks graphs and sources*"])
    inner("", "--help").stdout.fnmatch_lines(["*--hloracle-out=FOLDER*", "*hloracle_out (string):*"])


def test_the_stand_in_is_like_the_library() -> None:
    assert list(stand_in.StandInVerdict.__annotations__) == list(hloracle.Verdict.__annotations__)
    for name in ("data", "passed", "save", "verdict"):
        assert name in {*dir(hloracle.Record), *hloracle.Record.__annotations__}
    assert "out" in hloracle.Options.__annotations__


# ---- what comes of a test


def test_a_graph_that_conforms(inner: Inner, pytester: pytest.Pytester) -> None:
    inner("""
        def test_it(hloracle):
            record = hloracle.check("decode.mlir", model="tiny-llama", abi="mine.json", backends=["xla-cpu"])
            assert record.passed and record.verdict.class_ == "conforms"
    """).assert_outcomes(passed=1)
    folder = pytester.path / "out" / "pytest" / "test_it.py--test_it"
    assert sorted(path.name for path in folder.iterdir()) == sorted(stand_in.FILES)
    assert asked(pytester) == {
        "called": "check", "graphs": ["decode.mlir"], "model": "tiny-llama", "abi": "mine.json", "backends": ["xla-cpu"],
        "out": str(folder),
    }  # fmt: skip


def test_a_run(inner: Inner, pytester: pytest.Pytester) -> None:
    inner("def test_it(hloracle): hloracle.run('tiny-llama', ['mine'], tokens=8)").assert_outcomes(passed=1)
    found = asked(pytester)
    del found["out"]
    assert found == {"called": "run", "graphs": [], "model": "tiny-llama", "sources": ["mine"], "tokens": 8}


def test_the_project_of_the_root_directory(inner: Inner, pytester: pytest.Pytester) -> None:
    """It may name the model; the bundled emitter is not held to it."""
    path = pytester.path / "hloracle.toml"
    path.write_text('model = "tiny-llama"')
    (pytester.path / "elsewhere").mkdir()
    inner("""
        def test_check(hloracle, monkeypatch):
            monkeypatch.chdir("elsewhere")
            hloracle.check("decode.mlir")

        def test_mine(hloracle):
            hloracle.run("tiny-llama", ["mine"])

        def test_ours(hloracle):
            hloracle.run("tiny-llama", ["emitter"])
            hloracle.run("tiny-llama")

        def test_named(hloracle):
            hloracle.check("decode.mlir", model="tiny-llama", project="another.toml")
    """).assert_outcomes(passed=4)
    found = {name: asked(pytester, f"out/pytest/test_it.py--test_{name}").get("project") for name in
             ("check", "mine", "ours", "named")}  # fmt: skip
    assert found == {"check": str(path), "mine": str(path), "ours": None, "named": "another.toml"}


def test_a_graph_that_is_wrong(inner: Inner, pytester: pytest.Pytester) -> None:
    result = inner("""
        def test_it(hloracle):
            hloracle.check("wrong.mlir", model="tiny-llama")
    """)
    result.assert_outcomes(failed=1)
    report = "out/pytest/test_it.py--test_it/report.html"
    result.stdout.fnmatch_lines(
        [
            ">*hloracle.check(*wrong.mlir*",
            f"E       NonConforming: emitter-fault: {stand_in.WRONG}",
            "E       first wrong at layers.0.input_layernorm",
            "E       operation: stablehlo.sqrt %0 at line 59 of wrong",
            "E       how sure: certain: the file's graph is wrong on iree-cpu and xla-cpu alike; it is wrong by itself",
            f"E       report: {report}",
            "*test_it.py:2: NonConforming",
            "FAILED test_it.py::test_it - NonConforming: emitter-fault: The graph is wrong*",
        ]
    )
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")
    assert (pytester.path / report).is_file()


def test_nothing_known_is_no_pass(inner: Inner) -> None:
    result = inner("def test_it(hloracle): hloracle.check('unknown.mlir', model='tiny-llama')")
    result.assert_outcomes(failed=1)
    lines = [line.removeprefix("E ").strip() for line in result.outlines if line.startswith("E ")]
    assert lines[0] == "NonConforming: harness-error: The comparison is incomplete."
    assert [line.partition(" ")[0] for line in lines[1:]] == ["report:"], "no line for what is not known"


def test_a_fault_can_be_expected(inner: Inner) -> None:
    inner("""
        import pytest

        def test_it(hloracle):
            with pytest.raises(AssertionError, match="layers.0.input_layernorm"):
                hloracle.check("wrong.mlir", model="tiny-llama")
    """).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("check('missing.mlir', model='tiny-llama')", "missing.mlir: no such file; name a graph"),
        ("check('decode.mlir')", "no model is named: give model=..., or mark the test with hloracle(model=...)"),
        (
            "check('decode.mlir', model='tiny-llama', out='here')",
            "out: is the test's own folder; leave it out, and name another place with --hloracle-out",
        ),
        ("run(sources=[])", "no model is named: give model=..., or mark the test with hloracle(model=...)"),
    ],
)
def test_what_cannot_be_used(inner: Inner, call: str, line: str) -> None:
    result = inner(f"def test_it(hloracle):\n    hloracle.{call}\n")
    result.assert_outcomes(failed=1)
    assert [found for found in result.outlines if found.startswith("E ")] == [f"E       Failed: {line}"]
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


# ---- the marker


MARKED = """
    import pytest

    pytestmark = pytest.mark.hloracle(model="of-module", tokens=1, threads=1)

    @pytest.mark.hloracle(tokens=2, precision="bf16")
    class TestIt:
        @pytest.mark.hloracle(precision="int4")
        def test_check(self, hloracle):
            hloracle.check("decode.mlir", timeout=5)

        def test_run(self, hloracle):
            hloracle.run(threads=3)

    def test_model(hloracle):
        hloracle.run("of-call")
"""


def test_the_nearest_marker_counts(inner: Inner, pytester: pytest.Pytester) -> None:
    inner(MARKED).assert_outcomes(passed=3)
    found = {
        name: asked(pytester, f"out/pytest/test_it.py--{name}")
        for name in ("TestIt--test_check", "TestIt--test_run", "test_model")
    }
    keys = ("model", "tokens", "threads", "precision", "timeout")
    assert {name: [settings.get(key) for key in keys] for name, settings in found.items()} == {
        "TestIt--test_check": ["of-module", 2, 1, "int4", 5],
        "TestIt--test_run": ["of-module", 2, 3, "bf16", None],
        "test_model": ["of-call", 1, 1, None, None],
    }


def test_each_function_takes_of_a_marker_what_it_knows(inner: Inner, pytester: pytest.Pytester) -> None:
    inner("""
        import pytest

        pytestmark = pytest.mark.hloracle(model="tiny-llama", capacity=64, rounds=1, abi="a.json", nonsense=1)

        def test_check(hloracle):
            hloracle.check("decode.mlir", layout="rows")

        def test_run(hloracle):
            hloracle.run()
    """).assert_outcomes(passed=2)
    check, run = (asked(pytester, f"out/pytest/test_it.py--test_{name}") for name in ("check", "run"))
    assert {"capacity", "rounds"} & {*check} == set()
    assert (check["abi"], check["layout"], check["nonsense"]) == ("a.json", "rows", 1), "which the library refuses"
    assert (run["capacity"], run["rounds"], run["nonsense"], "abi" in run) == (64, 1, 1, False)


def test_the_fixture_gives_the_rest_of_the_package(inner: Inner) -> None:
    inner("""
        import pytest

        def test_it(hloracle):
            assert hloracle.Graph.__name__ == "Graph"
            with pytest.raises(hloracle.InputError):
                hloracle.emit('tiny-nobody')
            with pytest.raises(AttributeError, match="has no attribute 'prove'"):
                hloracle.prove
    """).assert_outcomes(passed=1)


def test_the_marker_takes_keywords(inner: Inner) -> None:
    result = inner("""
        import pytest

        @pytest.mark.hloracle("tiny-llama")
        def test_it(hloracle):
            hloracle.check("decode.mlir")
    """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines("E*the marker hloracle takes keywords alone*")


# ---- reports


SOURCE = "def test_it(hloracle): hloracle.check('decode.mlir', model='tiny-llama')"


def test_where_reports_go(inner: Inner, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nhloracle_out = of/ini\n")
    folder = pytester.mkdir("elsewhere")
    inner(SOURCE).assert_outcomes(passed=1)
    assert (pytester.path / "of/ini/test_it.py--test_it/report.html").is_file()
    pytester.chdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        inner(SOURCE, "..", "--hloracle-out", "given").assert_outcomes(passed=1)
    assert (folder / "given/test_it.py--test_it/report.html").is_file()


def test_each_call_has_a_folder(inner: Inner, pytester: pytest.Pytester) -> None:
    inner("""
        def test_it(hloracle):
            for graph in "first", "second", "third":
                hloracle.check(graph, model="tiny-llama")
    """).assert_outcomes(passed=1)
    folders = [f"out/pytest/test_it.py--test_it{more}" for more in ("", "/2", "/3")]
    assert [asked(pytester, folder)["graphs"] for folder in folders] == [["first"], ["second"], ["third"]]


def test_no_earlier_report_stays_where_a_call_cannot_be_judged(inner: Inner, pytester: pytest.Pytester) -> None:
    inner(SOURCE).assert_outcomes(passed=1)
    inner(SOURCE.replace("decode", "missing")).assert_outcomes(failed=1)
    assert list((pytester.path / "out/pytest/test_it.py--test_it").iterdir()) == []


def test_folders_are_apart_and_safe() -> None:
    assert pytest_plugin.folder_name("tests/test_it.py::TestIt::test_it") == "tests-test_it.py--TestIt--test_it"
    tests = [
        "a/b.py::test_it", "a-b.py::test_it", "a/b.py::test_it[x/y]", "a/b.py::test_it[x-y]", "a/b.py::test_it[x y]",
        "a/b.py::test_it[é]", "a/b.py::test_it[è]", "../b.py::test_it", "b.py::test_it", f"b.py::test_it[{'x' * 300}]",
        f"b.py::test_it[{'x' * 301}]", "b.py::test_it[$(id)]", "b.py::test_it[..]", "b.py::test_it[\n]",
    ]  # fmt: skip
    names = [pytest_plugin.folder_name(test) for test in tests]
    assert len({*names}) == len(tests)
    for name in names:
        assert re.fullmatch(r"\w[\w.-]{,140}", name, re.ASCII), name


def test_junit(inner: Inner, pytester: pytest.Pytester) -> None:
    inner(f"{SOURCE}\ndef test_wrong(hloracle): hloracle.check('wrong', model='tiny-llama')", "--junitxml", "junit.xml")
    right, wrong = ET.parse(pytester.path / "junit.xml").iter("testcase")
    assert [{p.get("name"): p.get("value") for p in case.iter("property")} for case in (right, wrong)] == [
        {"hloracle-verdict": "conforms", "hloracle-report": "out/pytest/test_it.py--test_it/report.html"},
        {
            "hloracle-verdict": "emitter-fault",
            "hloracle-anchor": "layers.0.input_layernorm",
            "hloracle-report": "out/pytest/test_it.py--test_wrong/report.html",
        },
    ]
    assert right.find("failure") is None
    failure = wrong.find("failure")
    assert failure is not None
    assert "operation: stablehlo.sqrt" in str(failure.get("message"))


@pytest.mark.usefixtures("alone")
def test_side_by_side(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nimport stand_in; stand_in.install()"
    )
    pytester.makepyfile(
        test_it="""
        import os
        import pytest

        @pytest.mark.parametrize("n", range(4))
        def test_it(hloracle, n):
            assert os.environ["PYTEST_XDIST_WORKER"]
            hloracle.check(f"{'wrong' if n == 3 else 'decode'}{n}.mlir", model="tiny-llama")
    """
    )
    plugins = ("-p", "hloracle.pytest_plugin", "-p", "xdist")
    result = pytester.runpytest_subprocess(*plugins, "-n", "2", "--hloracle-out", "given", "--junitxml", "junit.xml")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines("E*first wrong at layers.0.input_layernorm")
    graphs = [json.loads(path.read_text())["graphs"] for path in pytester.path.glob("given/*/report.json")]
    assert sorted(graphs) == [["decode0.mlir"], ["decode1.mlir"], ["decode2.mlir"], ["wrong3.mlir"]]
    assert len(list(ET.parse(pytester.path / "junit.xml").iter("property"))) == 4 * 2 + 1


# ---- docs/pytest.md


def test_the_example_of_the_page(inner: Inner, pytester: pytest.Pytester) -> None:
    inner(EXAMPLE).assert_outcomes(passed=2)
    assert asked(pytester, "out/pytest/test_it.py--test_session")["tokens"] == 16
    result = inner(EXAMPLE.replace('"decode.mlir")', '"wrong.mlir")', 1))
    result.assert_outcomes(passed=1, failed=1)
    shown = re.findall(
        r"^E +([\w ]+)", re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0], re.MULTILINE
    )
    said = [line.removeprefix("E ").strip() for line in result.outlines if line.startswith("E ")]
    assert len(said) == len(shown)
    assert all(line.startswith(start.strip()) for line, start in zip(said, shown, strict=True))


@pytest.mark.nightly
@pytest.mark.usefixtures("alone")
def test_the_library_itself(pytester: pytest.Pytester) -> None:
    for phase in ("prefill", "decode"):
        path = str(pytester.path / f"{phase}.mlir")
        assert cli.invoke(["emit", "tiny-llama", "--phase", phase, "--capacity", "128", "-o", path]) == 0
    (pytester.path / "wrong.mlir").write_text(
        (pytester.path / "decode.mlir").read_text().replace("stablehlo.rsqrt", "stablehlo.sqrt", 1)
    )
    (pytester.path / "wrong.abi.json").write_text((pytester.path / "decode.abi.json").read_text())
    pytester.makepyfile(test_it=f"{EXAMPLE}\n\ndef test_wrong(hloracle):\n    hloracle.check('wrong.mlir')\n")
    result = pytester.runpytest_subprocess("-p", "hloracle.pytest_plugin")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E * NonConforming: emitter-fault: * wrong on XLA and on IREE alike*",
            "E * first wrong at layers.0.input_layernorm",
            "E * operation: stablehlo.sqrt *",
            "E * how sure: certain: *",
            "E * report: out/pytest/test_it.py--test_wrong/report.html",
        ]
    )
    for name in ("decode", "session", "wrong"):
        folder = pytester.path / "out" / "pytest" / f"test_it.py--test_{name}"
        assert all((folder / file).is_file() for file in stand_in.FILES)
        assert (folder / "reproducer").is_dir() == (name == "wrong")
