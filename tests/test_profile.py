"""`hloracle profile`: rows add up, a weight's name is never a wrong one, and a tool that fails is one line."""

from __future__ import annotations

import io
import json
import re
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nightly import nightly
from rich.console import Console

from hloracle.backends import iree
from hloracle.bench import profile, show
from hloracle.bench.profile import Asked, dispatches, inputs, kind_of, run_profile, run_tool, tool_path, weights_read
from hloracle.cli import main as cli
from hloracle.conformance.context import Progress
from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.core.errors import InputError, ToolchainError
from hloracle.production.choice import production_graphs, untuned
from hloracle.reference.fixtures.named import resolve
from hloracle.reference.model.checkpoint import open_checkpoint
from hloracle.reference.model.contract import GraphSpec
from hloracle.reference.model.encodings import PRECISIONS

DECODE = Asked("tiny-llama", "decode", "f32", 32, 64, 2)


def function_row(name: str, count: int, ns: int, tiles: int) -> str:
    """As iree-profile 3.13 prints it, without the keys that are not read."""
    return json.dumps({
        "type": "statistics_row", "row_type": "host_execution_function", "time_domain": "iree_host_time_ns",
        "function_name": name, "sample_count": count, "total_duration_ns": ns, "tile_duration_sum_ns": tiles,
    })  # fmt: skip


ROWS = "\n".join([
    '{"type":"statistics_summary","row_count":6,"dropped_record_count":0}',
    '{"type":"statistics_row","row_type":"queue_host_operation","event_name":"alloca","sample_count":30,"total_duration_ns":5}',
    function_row("main_dispatch_6_reduction_576x6x16_f32xf32xi8xf32", 20, 800_000, 1_200_000),
    function_row("main_dispatch_24_reduction_576x6x16_f32xf32xi8xf32", 20, 400_000, 600_000),
    function_row("main_dispatch_19_reduction_576x6x16_f32xf32xi8xf32", 10, 600_000, 1_200_000),
    function_row("main_dispatch_2_slow_memcpy", 40, 200_000, 0),
])  # fmt: skip
READS = {
    "main_dispatch_6_reduction_576x6x16_f32xf32xi8xf32": ["q_proj"],
    "main_dispatch_24_reduction_576x6x16_f32xf32xi8xf32": ["q_proj"],
    "main_dispatch_19_reduction_576x6x16_f32xf32xi8xf32": ["o_proj"],
}


def test_rows_of_one_shape_and_weight_are_one() -> None:
    assert dispatches(ROWS, 10, READS) == [
        {
            "kind": "reduction_576x6x16", "weights": ["q_proj"], "count": 4.0, "ms": 0.12, "us": 30.0, "share": 0.6,
            "workers": 1.5,
        },
        {
            "kind": "reduction_576x6x16", "weights": ["o_proj"], "count": 1.0, "ms": 0.06, "us": 60.0, "share": 0.3,
            "workers": 2.0,
        },
        {"kind": "slow_memcpy", "weights": [], "count": 4.0, "ms": 0.02, "us": 5.0, "share": 0.1, "workers": 0.0},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("main_dispatch_12_reduction_96x16x576_f32", "reduction_96x16x576"),
        ("main_dispatch_546_reduction_49152x6x16_f32xf32xi8xbf16xi32", "reduction_49152x6x16"),
        ("main_dispatch_14_softmax_3x1x3x512xf32_dispatch_tensor_store", "softmax_3x1x3x512"),
        ("main_dispatch_29_slow_memcpy", "slow_memcpy"),
        ("main$async_dispatch_0_elementwise_18x16_i8xf32xf32", "elementwise_18x16"),
        ("_encoding_4_encode_84x96xf32_to_84x96xf32", "encode_84x96_to_84x96"),
        ("main_dispatch_3", "main_dispatch_3"),
        ("other", "other"),
    ],
)
def test_a_kind_has_no_number_and_no_element_types(name: str, kind: str) -> None:
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "lists no dispatch"),
        ('{"type":"statistics_summary","row_count":0,"dropped_record_count":0}', "lists no dispatch"),
        ('{"type":"statistics_summary","row_count":0,"dropped_record_count":7}', "7 records were dropped"),
        ('{"type":"statistics_summary"}', "cannot be read"),
        ("not JSON", "cannot be read"),
        ("[]", "cannot be read"),
        ("null", "cannot be read"),
        ('{"row_type":"host_execution_function"}', "cannot be read"),
        (function_row("main_dispatch_0", 1, 5, 5).replace(": 1,", ': "many",'), "cannot be read"),
        (function_row("main_dispatch_0", 1, 5, 5).replace('"main_dispatch_0"', "null"), "cannot be read"),
        (function_row("main_dispatch_0", 1, 0, 0), "lists no dispatch"),
    ],
)
def test_what_the_profiler_must_not_say(text: str, words: str) -> None:
    with pytest.raises(ToolchainError, match=words):
        dispatches(text, 10, {})


# ---- inputs, and the names of weights


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_argument_has_an_input_of_its_form(phase: str, precision: str) -> None:
    asked = Asked("tiny-llama", phase, precision, 32, 64, 2)
    checkpoint = open_checkpoint(resolve("tiny-llama", precision=precision))
    bucket = 32 if phase == "prefill" else 0
    (graph,) = production_graphs(checkpoint, precision, untuned(), [GraphSpec(phase, "token", 64, bucket)])
    flags = inputs(graph, asked)
    whole = {"token": 5, "position": 32, "tokens": 5, "length": 32}
    for argument, flag in zip(graph.abi.arguments, flags, strict=True):
        match = re.fullmatch(r"--input=((?:\d+x)*)(f32|bf16|f16|i8|i32)=(5|32|1|0\.01)", flag)
        assert match, flag
        assert match[1] == "".join(f"{n}x" for n in argument.shape)
        assert argument.dtype.removeprefix("u") == match[2]
        assert float(match[3]) == whole.get(argument.role, 0.01 if "f" in match[2] else 1)


STREAM = """
      func.func @main_dispatch_0(%arg0: !stream.binding) {
  util.func private @main_other(%arg0: !hal.buffer_view) {
    %0 = stream.tensor.import on(#a<@d>) %arg0 : !hal.buffer_view -> tensor<4xf32> in !stream.resource<external>{%c16}
  util.func public @main(%arg0: !hal.buffer_view, %arg1: !hal.buffer_view, %arg2: !hal.buffer_view) {
    %0 = stream.tensor.import on(#a<@d>) %arg1 : !hal.buffer_view -> tensor<4xf32> in !stream.resource<external>{%c16}
    %1 = stream.tensor.import on(#a<@d>) %arg0 : !hal.buffer_view -> tensor<4xf32> in !stream.resource<external>{%c16}
    %2 = stream.tensor.import on(#a<@d>) %arg2 : !hal.buffer_view -> tensor<i32> in !stream.resource<external>{%c4}
    %4 = stream.cmd.execute on(#a<@d>) with(%2 as %arg3: !stream.resource<external>{%c4}, %1 as %arg4: !stream.resource<external>{%c4}) {
      stream.cmd.dispatch @main_dispatch_0::@main_dispatch_0_copy[%5](%c0 : i32) {
        ro %arg3[%c0 for %c4] : !stream.resource<external>{%c4},
        wo %arg9[%c0 for %c4] : !stream.resource<transient>{%c4}
      }
    %6 = stream.cmd.execute on(#a<@d>) with(%0 as %arg3: !stream.resource<external>{%c4}, %1 as %arg4: !stream.resource<external>{%c4}) {
      stream.cmd.dispatch @main_dispatch_1::@main_dispatch_1_product {
        ro %arg3[%c0 for %c4] : !stream.resource<external>{%c4},
        ro %arg3[%c0 for %c4] : !stream.resource<external>{%c4},
        ro %arg4[%c0 for %c4] : !stream.resource<external>{%c4}
"""


def test_names_follow_the_values_and_not_the_numbers() -> None:
    weights = [Tensor("weight", f"model.layers.3.{name}.weight", (4,), "f32") for name in ("norm", "self_attn.q_proj")]
    abi = Abi("decode", (*weights, Tensor("token", "token", (), "i32")), ())
    assert weights_read(STREAM, Graph("g", "", abi)) == {"main_dispatch_1_product": ["q_proj", "norm"]}
    assert weights_read("of another form", Graph("g", "", abi)) == {}


def test_a_step_reads_every_weight() -> None:
    """Of the graph that runs: each product has its weight's name, and its shape."""
    checkpoint = open_checkpoint(resolve("tiny-llama"))
    (graph,) = production_graphs(checkpoint, "f32", untuned(), [GraphSpec("decode", "token", 64, 0)])
    reads = weights_read(iree.compile_to_stream(graph), graph)
    named = {part for parts in reads.values() for part in parts}
    weights = {w.weight.removesuffix(".weight").rpartition(".")[2] for w in graph.abi.weights}
    assert named == weights | {"k_cache", "v_cache"}
    shapes = {tuple(parts): kind_of(name) for name, parts in reads.items()}
    assert shapes["down_proj",] == "matvec_like_84x112"


# ---- the tools


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of tools that a test writes."""
    from iree._runtime import libs

    monkeypatch.setattr(libs, "library_path", str(tmp_path))
    return tmp_path


def test_tools_are_there_without_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "iree-profile" in run_tool("iree-profile", ["--help"])
    assert tool_path("iree-benchmark-module").is_file()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("kill -SEGV $$", "run failed: iree-benchmark-module ended with signal SIGSEGV: no message"),
        (
            "echo first >&2; echo 'x.cc:3: error: no such device' >&2; echo last >&2; exit 1",
            "status 1: x.cc:3: error: no",
        ),
        ("echo last >&2; exit 3", "status 3: last"),
        ("sleep 60", "took more than 0.2 s"),
        ("echo '{}'", "cannot be read"),
        ("echo no", "cannot be read"),
        ("""echo '{"benchmarks": []}'""", "cannot be read"),
        (
            """echo '{"benchmarks": [{"run_type": "iteration", "error_occurred": true, "error_message": "lost"}]}'""",
            "lost",
        ),
    ],
)
def test_a_tool_that_fails_is_one_line(
    script: str, words: str, tools: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profile, "TOOL_SECONDS", 0.2 if "sleep" in script else 60)
    monkeypatch.setattr(profile, "Reader", lambda threads: SimpleNamespace(bandwidth=lambda: 1e10))
    tool(tools, "iree-benchmark-module", script)
    assert cli.invoke(["profile", "tiny-llama", "--capacity", "64"]) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert words in told.err
    assert told.err.count("\n") == 1


def test_a_tool_that_is_not_there_or_cannot_be_run(tools: Path) -> None:
    with pytest.raises(InputError, match="no such file; pip install"):
        run_tool("iree-profile", [])
    (tools / "iree-profile").write_text("#!/bin/sh\n")
    with pytest.raises(ToolchainError, match="profile failed: iree-profile cannot be run"):
        run_tool("iree-profile", [])


# ---- the whole


@pytest.mark.parametrize(
    ("phase", "precision"), [nightly("decode", "bf16"), ("decode", "int4"), nightly("prefill", "int8")]
)
def test_the_whole(
    phase: str, precision: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile, "SECONDS", 0.02)
    command = [
        "profile",
        "tiny-llama",
        "--phase",
        phase,
        "--precision",
        precision,
        "--length",
        "32",
        "--capacity",
        "64",
    ]
    assert cli.invoke([*command, "--threads", "2", "--json"]) == 0
    told = capfd.readouterr()
    assert told.err == ""
    found = json.loads(told.out)
    rows = found["dispatches"]
    assert sum(row["ms"] for row in rows) == pytest.approx(found["dispatch_ms"], abs=0.001)
    assert found["dispatch_ms"] > 0
    assert sum(row["share"] for row in rows) == pytest.approx(1, abs=0.01)
    assert rows == sorted(rows, key=lambda row: -row["ms"])
    assert all(row["count"] >= 1 and row["count"] == int(row["count"]) for row in rows), "so many in every step"
    assert len(found["ms"]) == profile.REPETITIONS
    assert all(ms > 0 for ms in (*found["ms"], found["profiled_ms"], found["bandwidth"], found["read_bytes"]))
    assert (found["position"], found["length"]) == ((32, None) if phase == "decode" else (None, 32))
    if phase == "decode":
        (down,) = (row for row in rows if row["weights"] == ["down_proj"])
        assert down["count"] == 3, "a layer has one"
    text = shown(found)
    assert f"{rows[0]['kind']}" in text
    assert ("a step at position 32 takes" if phase == "decode" else "a prompt of 32 takes") in text


def shown(found: dict[str, Any], width: int = 120) -> str:
    out = io.StringIO()
    show.print_profile(found, Console(file=out, width=width))
    return out.getvalue()


def test_what_takes_little_is_summed_up() -> None:
    def row(kind: str, ms: float) -> dict[str, Any]:
        return {"kind": kind, "weights": [], "count": 2.0, "ms": ms, "us": 1.0, "share": ms / 10, "workers": None}

    found = {
        "phase": "decode", "position": 32, "precision": "f32", "compute": "f32", "model": "m", "capacity": 64, "threads": 2,
        "choice": "[rows]", "ignored": "a [file] was ignored", "ms": [1.0, 2.0, 3.0], "median": 2.0, "profiled_ms": 2.5,
        "dispatch_ms": 10.0, "bandwidth": 1e10, "read_bytes": 5_000_000,
        "dispatches": [row("large", 9.84), row("small", 0.09), row("smaller", 0.07)],
        "environment": {"cpu": "c", "packages": {"iree-base-compiler": "3.13.0"}},
    }  # fmt: skip
    text = shown(found)
    assert "small " not in text
    assert re.search(r"2 other kinds +4 +0\.16 +2%", text)
    assert "the weights' 5.0 MB in 0.50 ms" in text
    assert "a [file] was ignored" in text
    assert "[rows]" in text
    assert "m, f32, 64 cache slots" in text
    assert "m, computed in bf16, 64 cache slots" in shown(found | {"compute": "bf16"})
    found["dispatches"] = [row("large", 10.0)]
    assert "other kinds" not in shown(found)
    assert max(len(line) for line in shown(found, 60).splitlines()) <= 60


def test_what_cannot_be_profiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="--length: is 128, more than the 64 cache slots; raise --capacity"):
        run_profile(Asked("tiny-llama", "prefill", "f32", 128, 64, 2), Progress())
    with pytest.raises(InputError, match="no such model"):
        run_profile(Asked("no-such", "decode", "f32", 32, 64, 2), Progress())
    monkeypatch.setattr(profile, "free_bytes", lambda: 1000)
    with pytest.raises(InputError, match="tiny-llama: its weights take"):
        run_profile(DECODE, Progress())


def test_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["profile", "--help"]) == 0
    assert "dispatches" in capfd.readouterr().out
    assert cli.invoke(["profile", "tiny-llama", "--phase", "both"]) == 2
