"""Records like those of real runs, for the tests of the reports: one that conforms and several that do not."""

from __future__ import annotations

import copy
import math
import random
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hloracle.reports.record import validate

TOKENS, VOCABULARY = 48, 49152
LAYERS = 30
CELLS = ("oracle/xla-cpu", "oracle/iree-cpu", "emitter/xla-cpu", "emitter/iree-cpu", "emitter/iree-cpu/token")

PROMPTS = [
    ("chat@64", "a chat template's special tokens, in the middle bucket", "What is the capital of France, and why?"),
    ("chat@256", "the same prompt, padded to the largest bucket: the padding must not show", "What is the capital …"),
    ("one-token@32", "the shortest prompt there is: attention over a single key", "The"),
    ("long@128", "past the RoPE tables' first rows, and nearly a full bucket", "The history of computing began " * 6),
    ("non-ascii@64", "byte-level pieces, several tokens for one character", "Où est le café ? 東京 — 🙂"),
    ("capacity@256", "ends in the last cache slot", "It was a bright cold day in April, and the clocks " * 14),
]
# What a layer goes through, in the order of computation, before its output.
KINDS = (
    "input_layernorm self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.q_rope self_attn.k_rope k_cache v_cache "
    "self_attn.scores self_attn.probs self_attn.context self_attn.o_proj post_attention_layernorm mlp.gate_proj "
    "mlp.up_proj mlp.act mlp.down_proj"
).split()
TEXTS = [
    "The capital of France is Paris. It became the capital because it lay on an island in the river Seine, where trade "
    "routes met, and because the kings of France chose to live there from the tenth century onwards.\n\nToday",
    " following is a list of the most common types of sentences in English, with an example of each.\n\n1. The simple "
    "sentence has one clause. 2. The compound sentence has two or more clauses, which are joined by a",
    " with simple tools for counting, such as the abacus, and moved on to machines with wheels and gears. In the "
    "nineteenth century, Charles Babbage designed a machine that could be given a program on punched cards",
    "Le café est à côté de la gare, près du marché. À Tōkyō (東京), on trouve aussi des cafés 🙂 où l'on sert "
    "du thé vert, des gâteaux et du café glacé, tout au long de l'année, même en hiver.",
    "were striking thirteen. Winston Smith, his chin nuzzled into his breast in an effort to escape the vile wind, "
    "slipped quickly through the glass doors of the building, though not quickly enough to prevent a swirl",
]
DECODE = {
    "emitter": "reshape 391, multiply 454, broadcast_in_dim 333, add 272, dot_general 271, reduce 121, dynamic_slice "
    "63, rsqrt 61, reverse 60, dynamic_update_slice 60, constant 38, select 30, maximum 30, subtract 30, exponential "
    "30, divide 30, logistic 30, iota 1, compare 1",
    "oracle": "broadcast_in_dim 937, constant 558, multiply 513, add 306, dot_general 271, reshape 271, slice 180, "
    "reduce 121, divide 121, subtract 90, rsqrt 61, concatenate 60, dynamic_update_slice 60, transpose 60, "
    "exponential 60, select 34, maximum 30, negate 30, compare 5, dynamic_slice 3, iota 1",
}
# Some of a real run's: id, title, figure, what is expected; and why one of them was skipped.
CHECKS = [
    ("gate-zero.xla-cpu", "a+b and dot_general are exact", "0 of 4096 products of 4099 rounded", "0 of 4096 products"),
    ("emitter/iree-cpu.tokens", "tokens equal Hugging Face's", "288 of 288", "288 of 288"),
    ("emitter/iree-cpu.decode-logits", "logits of decode against the float64 truth", "3.43 floors (capacity@256)", "at most 8 floors"),
    ("emitter/iree-cpu.caches", "every slot of both caches against the float64 truth, and slots that must stay, bit for bit", "2.96 floors (v_cache.17, slot 40, chat@64), 60 caches of a layer", "at most 16 floors"),
    ("emitter/iree-cpu.prefill-equals-streaming", "prefill equals streaming the prompt through decode", "0.03 of the limit (non-ascii@64)", "at most 1"),
    ("emitter.census", "operations of each kind are those pinned in census.json", "10 of 10 graphs", "10 of 10 graphs"),
    ("emitter/iree-cpu.streamed-logits", "logits at every position of a sequence, and after its beginnings, against the float64 truth", "2.20 floors (decode, position 31 of stream@64)", "at most 8 floors"),
    ("emitter/iree-cpu.repeats", "the same calls on the same inputs give the same bits", "bit for bit", "bit for bit"),
    ("emitter.weights", "weights: those of each layer's parts, the embedding, the last norm and an untied head", "272", "272"),
    ("emitter.caches-donated", "decode graphs donate both caches", "2 of 2", "2 of 2"),
    ("emitter.caches-in-place", "no copy of a cache in IREE's stream form of decode", "largest copy 4 bytes", "less than 32768 bytes"),
    ("emitter.parse", "every graph parses and verifies", "10 of 10", "10 of 10"),
    ("emitter.probes", "each anchor's computation equals the oracle's on inputs that no prompt reaches", "58 of 58", "58 of 58"),
    ("oracle.census", "operations of each kind are those pinned in census.json", "", ""),
]  # fmt: skip
SKIPPED = "no census is pinned for a model of this kind"


def sample() -> dict[str, Any]:
    """A run that conforms, with values like those of SmolLM2 135M."""
    prompts, tokens = [], {}
    for i, (name, why, text) in enumerate(PROMPTS):
        prompt, bucket = name.split("@")
        truth = _truth(TEXTS[max(i - 1, 0)], seed=i)
        ids = [_id(piece) for piece in _pieces(text)][: int(bucket)]
        fields = {"id": name, "prompt": prompt, "bucket": int(bucket), "why": why, "text": text, "token_ids": ids}
        prompts.append({**fields, "truth": truth})
        cells = {cell: _agreeing(truth, cell, seed=10 * i + j) for j, cell in enumerate(CELLS)}
        tokens[name] = {"agreed": TOKENS, "total": TOKENS, "cells": cells}
    return {
        "schema": "hloracle-report/5",
        "passed": True,
        "verdict": {
            "class": "conforms",
            "anchor": None,
            "operation": None,
            "prompt": None,
            "step": None,
            "explanation": "All that was compared agrees with Hugging Face.",
            "compared": [
                "48 of 48 tokens after each of 6 prompts",
                "logits at each of these steps, and at all 252 positions of 3 sequences",
                "both caches whole",
                "values at 543 anchors",
                "on IREE and XLA",
            ],
            "not_compared": [],
            "evidence": [
                "Hugging Face and the JAX oracle agree on all 6 prompts.",
                "The emitted graph gives the truth's tokens on XLA and on IREE, which share no code generator.",
                "28 of 28 deliberately wrong emitters were caught by the same checks.",
            ],
            "confidence": None,
            "fusion_dependent": False,
        },
        "model": {
            "name": "smollm2-135m-instruct",
            "directory_name": "smollm2-135m-instruct-b179c9523d0e",
            "digest": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            "architecture": "llama",
            "parameters": 134_515_008,
            "config": {
                "num_hidden_layers": LAYERS,
                "hidden_size": 576,
                "num_attention_heads": 9,
                "num_key_value_heads": 3,
                "intermediate_size": 1536,
                "vocab_size": VOCABULARY,
                "rms_norm_eps": 1e-5,
                "rope_theta": 100000.0,
                "tie_word_embeddings": True,
                "hidden_act": "silu",
            },
        },
        "settings": {
            "device": "cpu",
            "precision": "f32",
            "layout": "panels",
            "joined": False,
            "on_device": False,
            "arithmetic": {"truth": "float32 and float64 by PyTorch, no TF32", "device": "float32 of the processor"},
            "builds": {"decode": "plain", "prefill": "packed"},
            "chosen": "untuned",
            "ignored": "",
            "tokens": TOKENS,
            "capacity": 256,
            "buckets": [32, 64, 128, 256],
            "threads": 2,
            "timeout": 600,
            "lean": False,
            "backends": ["iree-cpu", "xla-cpu"],
            "custom_calls": [],
        },
        "prompts": prompts,
        "tokens": tokens,
        "anchors": [_matrix("emitter/iree-cpu", phase, "chat@64", range(10)) for phase in ("prefill", "decode")],
        "floors": [_floor(anchor, seed) for seed, anchor in enumerate(ANCHORS)],
        "localization": None,
        "canary": {
            "anchor": "layers.17.mlp.act",
            "graph": "llama_decode_logits",
            "caught": True,
            "named": "layers.17.mlp.act",
            "detail": "0.001 of its scale was added: 9,120 floors, limit 8",
        },
        "cells": [_cell(cell, j) for j, cell in enumerate(CELLS)],
        "checks": [
            {
                "id": id_,
                "title": title,
                "status": "passed" if figure else "skipped",
                "figure": figure,
                "expected": expected,
                "detail": "" if figure else SKIPPED,
            }
            for id_, title, figure, expected in CHECKS
        ],
        "compiled": _compiled(),
        "graphs": _graphs(),
        "listings": [_listing(source, phase, 0) for phase in ("decode", "prefill") for source in ("oracle", "emitter")],
        "block": _block(0),
        "speed": _speed(),
        "timings": _timings(
            [
                ("checkpoint", 0.04, True, "272 tensors, dequantized from GGUF"),
                ("truth", 0.31, True, "6 prompts, float32 and float64"),
                ("oracle: lower", 9.8, False, "5 graphs"),
                ("emit", 1.4, False, "6 graphs"),
                ("compile: IREE cpu", 41.2, False, "11 graphs"),
                ("compile: XLA cpu", 14.6, False, "10 graphs"),
                ("run: oracle", 33.9, False, "2 cells, 6 prompts"),
                ("run: emitter", 47.5, False, "3 cells, 6 prompts"),
                ("checks", 3.2, False, "14 checks"),
                ("mutants", 0.2, True, "28 mutants"),
            ]
        ),
        "reused": ["checkpoint smollm2-135m-instruct-b179c9523d0e", "truth 3f29c1d0aa71", "mutants 90ab1c77e2d4"],
        "memory": {
            "peak_bytes": 2_913_845_248,
            "processes": [
                {"name": "truth (transformers)", "peak_bytes": 2_913_845_248},
                {"name": "oracle/xla-cpu", "peak_bytes": 1_730_150_400},
                {"name": "emitter/iree-cpu", "peak_bytes": 1_101_004_800},
                {"name": "hloracle", "peak_bytes": 412_090_368},
            ],
        },
        "environment": {
            "hloracle": "0.1.0",
            "commit": "4b68c0c2f1d0e9a7b6c5d4e3f2a1b0c9d8e7f6a5",
            "python": "3.11.7",
            "platform": "Linux-6.1.0-x86_64-with-glibc2.36",
            "cpu": "AMD EPYC 9554 64-Core Processor",
            "cores": 2,
            "memory_bytes": 16_777_216_000,
            "device": None,
            "packages": {
                "jax": "0.10.2",
                "jaxlib": "0.10.2",
                "torch": "2.13.0",
                "transformers": "5.23.0",
                "iree-base-compiler": "3.13.0",
                "iree-base-runtime": "3.13.0",
                "numpy": "2.4.1",
            },
            "date": "2025-11-21T05:12:44+00:00",
        },
        "families": [],
    }


def _compiled() -> list[dict[str, Any]]:
    """For CUDA all graphs, for other targets what a session spends its time in; one of them is refused."""
    graphs = [(source, f"llama_{phase}_{head}") for source, head in (("emitter", "token"), ("oracle", "logits"))
              for phase in ("decode", "prefill_32", "prefill_64")]  # fmt: skip
    wanted = [(source, graph, "cuda", "sm_89") for source, graph in graphs]
    wanted += [
        (*graph, compiler, target)
        for compiler, target in (("rocm", "gfx942"), ("metal-spirv", ""))
        for graph in graphs[:2]
    ]
    message = "error: function 'main_dispatch_544' uses 33024 bytes of shared memory; exceeded the limit of 32768 bytes"
    return [
        {
            "source": source, "graph": graph, "compiler": compiler, "target": target,
            "status": "failed" if (compiler, graph) == ("metal-spirv", "llama_decode_token") else "compiled",
            "message": message if (compiler, graph) == ("metal-spirv", "llama_decode_token") else "",
            "arithmetic": ["fma f32"] if compiler == "cuda" else [], "seconds": 4.1 + 0.3 * i,
        }
        for i, (source, graph, compiler, target) in enumerate(wanted)
    ]  # fmt: skip


def failing_sample() -> dict[str, Any]:
    """A run with a wrong emitter: rotary embeddings at one layer, seen on both backends."""
    record = sample()
    record["passed"] = False
    record["verdict"] |= {
        "class": "emitter-fault",
        "anchor": "layers.3.self_attn.q_rope",
        "operation": "stablehlo.subtract %l3.q_rope_4 at line 214 of llama_prefill_64_logits",
        "prompt": "chat@64",
        "step": 5,
        "explanation": "The emitted graph is wrong from layers.3.self_attn.q_rope on, on XLA and on IREE alike, while "
        "the oracle's graph is right on both.",
        "evidence": [
            "layers.3.self_attn.q_rope is the first anchor over its limit: error 0.83, limit 4.1e-6, prompt chat@64.",
            "Its input, layers.3.self_attn.q_proj, is within its limit: 0.22 of 2.9e-6.",
            "oracle/xla-cpu and oracle/iree-cpu agree with the truth on all 6 prompts.",
        ],
        "confidence": {
            "level": "certain",
            "because": [
                "The same graph is wrong on XLA and on IREE, which share no code generator.",
                "Given the oracle's own inputs, layers.3.self_attn.q_rope alone is wrong by 208,000 floors.",
                "The reproducer shows the fault by itself.",
            ],
        },
    }
    wrong = {0: (5, 6, 11, 19, 20, 33), 1: (5, 11, 40), 3: tuple(range(9, 48, 2)), 4: (17,), 5: (0, 1, 2, 30, 47)}
    for i, steps in wrong.items():
        prompt = record["prompts"][i]
        for cell in CELLS[2:]:
            _disagree(record, prompt["id"], cell, steps)
            entry = record["tokens"][prompt["id"]]["cells"][cell]
            if entry["logit_error"] is not None:
                rng = random.Random(i)
                entry["errors"] = [
                    gap * rng.uniform(0.6, 1.4) if step in steps else min(0.45 * gap, rng.uniform(0.05, 0.3))
                    for step, gap in enumerate(prompt["truth"]["gaps"])
                ]
                entry["logit_error"] = max(entry["errors"])
    record["cells"][4] |= {"seconds": 9.1}
    record["anchors"] = [
        _matrix(cell, phase, "chat@64", range(10), WRONG)
        for cell in ("emitter/iree-cpu", "emitter/xla-cpu")
        for phase in ("prefill", "decode")
    ] + [_matrix("oracle/iree-cpu", "prefill", "chat@64", range(10))]
    record["localization"] = _localization()
    record["listings"] = [
        _listing(source, phase, 3) for phase in ("decode", "prefill") for source in ("oracle", "emitter")
    ]
    record["block"] = _block(3)
    record["speed"] = {"reason": "the graphs are wrong", "context": 0, "tokens": 0, "contenders": []}
    _set_checks(
        record,
        failed={f"{CELLS[3]}.{name}" for name in ("tokens", "decode-logits", "caches")},
        error={"emitter.probes"},
    )
    return record


def near_tie_sample() -> dict[str, Any]:
    """A run that passes although two tokens differ."""
    record = sample()
    record["verdict"] |= {
        "class": "near-tie",
        "prompt": "long@128",
        "step": 21,
        "explanation": "One token differs, where the truth's two best logits are 1.1e-5 apart and the noise is 2.3e-5.",
    }
    record["prompts"][3]["truth"]["gaps"][21] = 1.1e-5
    for cell in CELLS[2:4]:
        _disagree(record, "long@128", cell, (21,))
        record["tokens"]["long@128"]["cells"][cell]["near_ties"] = 1
    return record


def broken_sample() -> dict[str, Any]:
    """A run in which a process died and another gave no numbers."""
    record = sample()
    record["passed"] = False
    record["verdict"] |= {
        "class": "harness-error",
        "explanation": "emitter/iree-cpu gave no result: the process was ended by signal 11 while it compiled "
        "prefill-128.",
        "compared": ["48 of 48 tokens after each of 6 prompts", "logits at each of these steps", "on XLA"],
        "not_compared": [
            "emitter/iree-cpu and emitter/iree-cpu/token: their process died",
            "the anchors: nothing ran after it",
        ],
        "evidence": [],
    }
    for entry in record["tokens"].values():
        del entry["cells"]["emitter/iree-cpu"], entry["cells"]["emitter/iree-cpu/token"]
        entry["agreed"] = 0
    record["tokens"]["chat@64"]["cells"]["emitter/xla-cpu"] |= {
        "logit_error": "NaN",
        "errors": [1e-6] * 7 + ["NaN"] * (TOKENS - 7),
    }
    record["anchors"] = []
    record["canary"] = None
    message = "compile failed: signal 11 (graph kept at ~/.cache/hloracle/kept/prefill-128.mlir)"
    for cell in record["cells"][3:]:
        cell |= {"status": "failed", "message": message, "agreed": 0, "total": 0, "tokens_per_second": None}
    _set_checks(record, failed=set(), error={f"{CELLS[3]}.tokens", "emitter.caches-in-place", "emitter.parse"})
    return record


def token_file_sample() -> dict[str, Any]:
    """A graph that the user brought and that answers with a token: it conforms in what could be compared."""
    record = sample()
    record["model"]["name"] = "./smollm2-135m-instruct"
    record["verdict"] |= {
        "explanation": "Not compared: the logits, for the graph answers with a token. All that was compared agrees with "
        "Hugging Face.",
        "compared": ["48 of 48 tokens after each of 6 prompts", "both caches whole", "on IREE and XLA"],
        "not_compared": ["the logits: the graph answers with a token", "the anchors: the graph does not name them"],
        "evidence": ["file/iree-cpu.tokens: 288 of 288", "file/xla-cpu.tokens: 288 of 288"],
    }
    cells = [cell | {"source": "file", "head": "token"} for cell in record["cells"] if cell["source"] == "emitter"][:2]
    record["cells"] = [cell | {"id": f"file/{cell['backend']}"} for cell in cells]
    for entry in record["tokens"].values():
        token = entry["cells"]["emitter/iree-cpu/token"]
        entry["cells"] = {cell["id"]: copy.deepcopy(token) for cell in record["cells"]}
    graphs = [graph for graph in record["graphs"] if graph["id"] == "emitter/decode/logits"]
    record["graphs"] = [graph | {"id": "file/decode/token", "source": "file", "head": "token"} for graph in graphs]
    listings = [listing for listing in record["listings"] if listing["graph"] == "emitter/decode/logits"]
    record["listings"] = [listing | {"graph": "file/decode/token", "name": "decode"} for listing in listings]
    record["block"]["graph"] = "file/decode/token"
    record["checks"] = [
        check | {"id": check["id"].replace("emitter", "file")}
        for check in record["checks"]
        if check["id"].startswith("emitter") and not check["id"].endswith(("logits", "streaming", "probes", "in-place"))
    ]
    record |= {"anchors": [], "floors": [], "compiled": [], "canary": None}
    record["speed"] = {"reason": "the graph is a file's", "context": 0, "tokens": 0, "contenders": []}
    return record


def invariant_sample() -> dict[str, Any]:
    """A run in which all values are right, and decode does not donate a cache."""
    record = sample()
    record["passed"] = False
    title = "decode graphs donate both caches"
    record["verdict"] |= {
        "class": "invariant-broken",
        "anchor": "v_cache.0",
        "explanation": f"The emitted graph breaks an invariant: {title}. Of what was compared, nothing is wrong.",
        "evidence": ["emitter.caches-donated: 1 of 2 (v_caches is not donated)"],
        "confidence": {
            "level": "certain",
            "because": ["emitter.caches-donated is read from the graph as it is written"],
        },
    }
    for check in record["checks"]:
        if check["id"] == "emitter.caches-donated":
            check |= {"status": "failed", "figure": "1 of 2", "detail": "v_caches is not donated"}
    return record


def unsupported_sample() -> dict[str, Any]:
    """A graph that the user brought and that asks for what no backend here runs."""
    record = token_file_sample()
    record["passed"] = False
    why = "stablehlo.all_reduce runs on no backend here"
    record["verdict"] |= {
        "class": "unsupported",
        "anchor": "layers.0.mlp.down_proj",
        "operation": "stablehlo.all_reduce %l0.mlp at line 117 of decode",
        "explanation": f"Not compared: anything, for {why}.",
        "compared": [],
        "not_compared": [f"all of it: {why}"],
        "evidence": [],
        "confidence": {"level": "certain", "because": ["file.parse is read from the graph as it is written"]},
    }
    return _without_results(record, why, range(len(record["cells"])))


def out_of_memory_sample() -> dict[str, Any]:
    """A run in which one configuration found too little memory."""
    why = "allocating 2.1 GB of 1.9 GB failed"
    record = _without_results(sample(), f"out of memory: {why}", [3])
    record["passed"] = False
    record["verdict"] |= {
        "class": "out-of-memory",
        "explanation": "Not compared: emitter/iree-cpu, which did not have the memory that it needs.",
        "compared": record["verdict"]["compared"][:2],
        "not_compared": [f"emitter/iree-cpu: {why}"],
        "evidence": [],
    }
    _set_checks(record, failed=set(), error={f"{CELLS[3]}.tokens"})
    return record


def timeout_sample() -> dict[str, Any]:
    """A run in which one configuration did not end."""
    record = _without_results(sample(), "did not end within 600 s", [3])
    record["passed"] = False
    record["verdict"] |= {
        "class": "timeout",
        "explanation": "Not compared: emitter/iree-cpu, which did not end within 600 s.",
        "compared": record["verdict"]["compared"][:2],
        "not_compared": ["emitter/iree-cpu: it did not end within 600 s"],
        "evidence": [],
    }
    _set_checks(record, failed=set(), error={f"{CELLS[3]}.tokens"})
    return record


def fault_sample(name: str) -> Callable[[], dict[str, Any]]:
    return lambda: {**(record := failing_sample()), "verdict": {**record["verdict"], "class": name}}


# A record of each class of verdict.
OF_CLASS: dict[str, Callable[[], dict[str, Any]]] = {
    "conforms": sample, "near-tie": near_tie_sample, "reference-fault": fault_sample("reference-fault"),
    "emitter-fault": failing_sample, "compiler-fault": fault_sample("compiler-fault"),
    "device-fault": fault_sample("device-fault"), "invariant-broken": invariant_sample, "unsupported": unsupported_sample,
    "out-of-memory": out_of_memory_sample, "timeout": timeout_sample, "harness-error": broken_sample,
}  # fmt: skip

FAMILIES = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "olmo2", "granite", "cohere",
    "mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss",
)  # fmt: skip


def suite_sample() -> dict[str, Any]:
    """The run of a suite in which all models conform."""
    record = sample()
    real = _family("llama", "smollm2-135m-instruct", 0)
    real |= {"tokens": {"agreed": 1440, "total": 1440}, "matmuls": 211, "weights": 272, "seconds": 71.3}
    real["mutants"] = {"killed": 0, "total": 0, "pinned": False, "reason": "in tiny models"}
    record["families"] = [real, *(_family(name, f"tiny-{name}", i) for i, name in enumerate(FAMILIES, 1))]
    record["verdict"]["explanation"] += f" {len(FAMILIES) + 1} of {len(FAMILIES) + 1} models conform."
    return record


def failing_suite_sample() -> dict[str, Any]:
    """The run of a suite whose own model conforms: one family does not, and the process of another died."""
    record = suite_sample()
    record["passed"] = False
    record["verdict"] |= {
        "class": "emitter-fault",
        "explanation": "smollm2-135m-instruct conforms, but 2 of 16 models do not: tiny-qwen3 (emitter-fault at "
        "layers.0.self_attn.q_norm), tiny-gpt_oss (harness-error).",
        "evidence": [
            "tiny-qwen3, emitter-fault at layers.0.self_attn.q_norm: The emitted graph is wrong on XLA and on IREE alike.",
            *record["verdict"]["evidence"],
        ],
    }
    record["families"][4] |= {
        "verdict": "emitter-fault",
        "anchor": "layers.0.self_attn.q_norm",
        "explanation": "The emitted graph is wrong on XLA and on IREE alike.",
        "passed": False,
        "tokens": {"agreed": 431, "total": 768},
        "worst": {
            "floors": 208_000.0,
            "anchor": "layers.0.self_attn.q_norm",
            "limit": 16.0,
            "cell": "emitter/iree-cpu",
        },
        "mutants": {"killed": 17, "total": 18, "pinned": False, "reason": ""},
        "failed": [
            _failed("emitter/iree-cpu/token.tokens", "tokens equal Hugging Face's", "failed", "79 of 192"),
            _failed(
                "emitter/xla-cpu.decode-logits", "logits of decode against the float64 truth", "failed", "2e+05 floors"
            ),
        ],
        "report": "families/qwen3/report.html",
    }
    died = "judged died (signal SIGSEGV)"
    record["families"][-1] |= {
        "digest": "",
        "verdict": "harness-error",
        "explanation": f"The run gave no answer: {died}.",
        "passed": False,
        "tokens": {"agreed": 0, "total": 0},
        "worst": None,
        "op_kinds": None,
        "matmuls": None,
        "weights": None,
        "failed": [_failed("harness.process", "every process gives an answer", "error", "", died)],
    }
    return record


def _family(architecture: str, model: str, i: int) -> dict[str, Any]:
    return {
        "architecture": architecture,
        "model": model,
        "digest": f"{i:02}" * 32,
        "verdict": "conforms",
        "anchor": None,
        "explanation": "All that was compared agrees with Hugging Face.",
        "not_compared": [],
        "passed": True,
        "tokens": {"agreed": 768, "total": 768},
        "worst": {"floors": 1.2 + i / 7, "anchor": "layers.1.self_attn.probs", "limit": 16.0, "cell": "oracle/xla-cpu"},
        "op_kinds": 18 + i % 5,
        "matmuls": 19 + i,
        "weights": 23 + i,
        "mutants": {"killed": 0, "total": 0, "pinned": False, "reason": "not run"}
        if i % 3
        else {"killed": 12 + i, "total": 12 + i, "pinned": i % 2 == 1, "reason": ""},
        "seconds": 4.1 + i,
        "failed": [],
        "report": "",
    }


def _failed(id: str, title: str, status: str, figure: str, detail: str = "step 0 is 3, not 5") -> dict[str, Any]:
    return {
        "id": id, "title": title, "status": status, "figure": figure, "expected": "as the truth has it", "detail": detail,
    }  # fmt: skip


HOSTILE = "<script>alert(1)</script> \"'&amp; |`*_[x](http://evil.example)</style><img src=x onerror=y> @octocat"
HOSTILE += "\u202egnp.exe\u2066\x00\x07\x1b[31m\x7f\x85\u200b\ud800\ufeff\n\n# heading\n" + "long " * 2000


def hostile_sample() -> dict[str, Any]:
    """A valid record in which every string that may be anything is hostile; ids keep apart by a number."""
    record = copy.deepcopy(failing_sample())
    renamed: dict[str, str] = {}

    def rename(name: str) -> str:
        return renamed.setdefault(name, f"{len(renamed)} {HOSTILE}")

    record["tokens"] = {
        rename(prompt): {**entry, "cells": {rename(cell): value for cell, value in entry["cells"].items()}}
        for prompt, entry in record["tokens"].items()
    }
    for part in ("prompts", "cells", "checks", "graphs"):
        for entry in record[part]:
            entry["id"] = rename(entry["id"])
    for prompt in record["prompts"]:
        prompt |= {"prompt": HOSTILE, "why": HOSTILE, "text": HOSTILE}
        prompt["truth"] |= {"text": HOSTILE, "pieces": [HOSTILE[:60]] * TOKENS}
        for cell in record["tokens"][prompt["id"]]["cells"].values():
            cell |= {"text": HOSTILE, "pieces": [HOSTILE[40:140]] * TOKENS}
    for cell in record["cells"]:
        cell |= {"backend": HOSTILE, "message": HOSTILE}
    for check in record["checks"]:
        check |= {"title": HOSTILE, "figure": HOSTILE, "expected": HOSTILE, "detail": HOSTILE}
    for graph in record["graphs"]:
        graph["scopes"] = {HOSTILE: {HOSTILE: 3}}
    for timing in record["timings"]:
        timing |= {"stage": HOSTILE, "detail": HOSTILE}
    for process in record["memory"]["processes"]:
        process["name"] = HOSTILE
        timing["parts"] = [{"name": HOSTILE, "begin": 0.0, "seconds": 1.0, "reused": False}]
    record["listings"] = [
        listing
        | {"graph": rename(listing["graph"]), "name": HOSTILE, "scopes": [_hostile_scope(layer) for layer in (0, 3)]}
        for listing in record["listings"]
    ]
    for node in record["block"]["nodes"]:
        node |= {"anchor": HOSTILE, "ops": {HOSTILE: 2}, "weights": [HOSTILE] * 2}
    record["block"]["graph"] = rename(record["block"]["graph"])
    record["speed"] = _speed()
    for contender in record["speed"]["contenders"]:
        contender |= {"id": rename(contender["id"]), "title": HOSTILE}
    record["mutant"] = HOSTILE
    record["floors"] = [floor | {"anchor": rename(floor["anchor"])} for floor in record["floors"][:60]]
    for matrix in record["anchors"]:
        matrix |= {"cell": rename(matrix["cell"]), "prompt": rename(matrix["prompt"])}
        matrix |= {"anchors": [rename(a) for a in matrix["anchors"][:60]], "errors": matrix["errors"][:60]}
    localization = record["localization"]
    for key in ("cell", "reason", "prompt", "anchor", "first_accumulated", "first_local"):
        localization[key] = HOSTILE
    localization["notes"] = [HOSTILE] * 3
    localization["errors"] = [error | {"anchor": rename(error["anchor"])} for error in localization["errors"][20:60]]
    localization["operation"] |= dict.fromkeys(("name", "value", "graph", "text", "anchor", "result", "why"), HOSTILE)
    localization["operation"]["operands"] = [HOSTILE] * 2
    harmless = HOSTILE.replace(":", "")  # a path of Windows' begins with a letter and a colon
    localization["reproducer"] |= {"folder": harmless, "files": [harmless] * 2, "command": HOSTILE, "output": HOSTILE}
    record["canary"] |= {"anchor": HOSTILE, "graph": HOSTILE, "named": HOSTILE, "detail": HOSTILE, "caught": False}
    record["verdict"] |= {
        "anchor": HOSTILE,
        "operation": HOSTILE,
        "confidence": {"level": "possible", "because": [HOSTILE] * 3},
        "prompt": rename("chat@64"),
        "explanation": HOSTILE,
        "compared": [HOSTILE] * 3,
        "not_compared": [f"{i} {HOSTILE}" for i in range(2)],
        "evidence": [HOSTILE] * 9,
    }
    record["model"] |= {"directory_name": HOSTILE, "digest": HOSTILE, "architecture": HOSTILE}
    record["model"]["config"] = {HOSTILE: HOSTILE, "list": [HOSTILE], "null": None}
    record["settings"] |= {"device": HOSTILE, "precision": HOSTILE, "layout": HOSTILE}
    record["families"] = failing_suite_sample()["families"][:5]
    for row in record["families"]:
        row |= {"model": rename(row["model"]), "architecture": HOSTILE, "digest": HOSTILE, "explanation": HOSTILE}
        row["worst"] |= {"anchor": HOSTILE, "cell": HOSTILE}
        row["failed"] = [
            dict.fromkeys(check, HOSTILE) | {"id": rename(check["id"]), "status": "error"} for check in row["failed"]
        ]
        if row["mutants"]["reason"]:
            row["mutants"]["reason"] = HOSTILE
    record["families"][4]["anchor"] = HOSTILE
    record["model"]["name"] = record["families"][0]["model"]
    record["reused"] = [HOSTILE]
    record["environment"] |= {
        "hloracle": HOSTILE,
        "python": HOSTILE,
        "platform": HOSTILE,
        "cpu": HOSTILE,
        "commit": HOSTILE,
    }
    record["environment"] |= {"packages": {HOSTILE: HOSTILE}, "date": "2025-11-21T05:12 " + HOSTILE}
    return record


def empty_sample() -> dict[str, Any]:
    """A run that ended before anything was compared, of a model without a tokenizer."""
    record = broken_sample()
    record["verdict"] |= {"compared": [], "not_compared": ["all of it: the process of the truth died"]}
    record |= {
        "anchors": [],
        "floors": [],
        "prompts": [],
        "tokens": {},
        "cells": [],
        "checks": [],
        "graphs": [],
        "listings": [],
        "block": None,
        "speed": {"reason": "the run did not get so far", "context": 0, "tokens": 0, "contenders": []},
        "timings": [],
        "reused": [],
    }
    record["memory"] = {"peak_bytes": 0, "processes": []}
    return record


def without_text(record: dict[str, Any]) -> dict[str, Any]:
    """The same run of a model that has no tokenizer."""
    for prompt in record["prompts"]:
        prompt["text"] = prompt["truth"]["text"] = prompt["truth"]["pieces"] = None
        for cell in record["tokens"][prompt["id"]]["cells"].values():
            cell["text"] = cell["pieces"] = None
    return record


def _id(piece: str) -> int:
    return zlib.crc32(piece.encode()) % VOCABULARY


def _pieces(text: str) -> list[str]:
    """As a byte-pair tokenizer would: a word with the space before it, long ones in two."""
    words = re.findall(r" ?\w{1,9}| ?[^\w\s]|\s", text)
    return words or [text]


def _truth(text: str, seed: int) -> dict[str, Any]:
    pieces = (_pieces(text) * 2)[:TOKENS]
    rng = random.Random(seed)
    gaps = [round(math.exp(rng.gauss(0.6, 1.1)), 4) for _ in pieces]
    return {"tokens": [_id(p) for p in pieces], "pieces": pieces, "text": "".join(pieces), "gaps": gaps}


def _agreeing(truth: dict[str, Any], cell: str, seed: int) -> dict[str, Any]:
    floor = 7.6e-6 * math.exp(random.Random(seed + 99).gauss(0, 0.3))
    measured = not cell.endswith("/token")
    rng = random.Random(seed)
    errors = [floor * rng.uniform(0.6, 3.5) * math.exp(-step / 90) for step in range(TOKENS)]
    return {
        "agreed": TOKENS,
        "total": TOKENS,
        "tokens": list(truth["tokens"]),
        "pieces": list(truth["pieces"]),
        "text": truth["text"],
        "first_mismatch": None,
        "disagreements": 0,
        "near_ties": 0,
        "largest_gap": None,
        "errors": errors if measured else [],
        "logit_error": max(errors) if measured else None,
        "logit_floor": floor if measured else None,
        "logit_limit": 8 * floor if measured else None,
    }


def _disagree(record: dict[str, Any], prompt: str, cell: str, steps: tuple[int, ...]) -> None:
    entry = record["tokens"][prompt]
    compared = entry["cells"][cell]
    others = [" the", " a", ",", " London", "\n", " Lyon", " was", " and then", " unquestionably", "."]
    for step in steps:
        piece = others[(step * 7) % len(others)]
        if piece == compared["pieces"][step]:
            piece = " not"
        compared["pieces"][step] = piece
        compared["tokens"][step] = _id(piece)
    compared["text"] = "".join(compared["pieces"])
    gaps = next(p for p in record["prompts"] if p["id"] == prompt)["truth"]["gaps"]
    compared |= {"agreed": TOKENS - len(steps), "first_mismatch": steps[0], "disagreements": len(steps)}
    compared["largest_gap"] = max(gaps[step] for step in steps)
    entry["agreed"] = min(c["agreed"] for c in entry["cells"].values())
    row = next(c for c in record["cells"] if c["id"] == cell)
    row["agreed"] -= len(steps)


def _cell(name: str, index: int) -> dict[str, Any]:
    source, backend, *token = name.split("/")
    return {
        "id": name,
        "source": source,
        "backend": backend,
        "head": "token" if token else "logits",
        "status": "reused" if index == 0 else "ran",
        "message": "",
        "agreed": TOKENS * len(PROMPTS),
        "total": TOKENS * len(PROMPTS),
        "seconds": (0.1, 18.2, 15.7, 17.4, 14.4)[index],
        "tokens_per_second": (None, 15.8, 18.3, 16.6, 20.1)[index],
        "peak_bytes": (None, 1_210_000_000, 1_730_150_400, 1_101_004_800, 1_098_000_000)[index],
    }


def _name(layer: int, kind: str) -> str:
    return f"{kind}.{layer}" if kind.endswith("cache") else f"layers.{layer}.{kind}".rstrip(".")


ANCHORS = ["embed_tokens", *(_name(layer, kind) for layer in range(LAYERS) for kind in (*KINDS, "")), "norm", "lm_head"]
# How far off each anchor is with a wrong q_rope at layer 3, in floors; those before it are right.
WRONG = dict.fromkeys(ANCHORS[ANCHORS.index("layers.4.input_layernorm") :], 3_000.0) | {
    _name(3, kind): size
    for kind, size in {
        "self_attn.q_rope": 208_000.0,
        "self_attn.scores": 61_000.0,
        "self_attn.probs": 24_000.0,
        "self_attn.context": 9_800.0,
        "self_attn.o_proj": 8_100.0,
        "post_attention_layernorm": 2_100.0,
        "mlp.gate_proj": 1_900.0,
        "mlp.up_proj": 2_050.0,
        "mlp.act": 1_600.0,
        "mlp.down_proj": 1_450.0,
        "": 1_200.0,
    }.items()
}


def _matrix(
    cell: str, phase: str, prompt: str, positions: Sequence[int], wrong: dict[str, float] | None = None
) -> dict[str, Any]:
    """Errors of a few floors, or those of `wrong`; the first position is always right, for RoPE turns nothing there."""
    rng = random.Random(f"{cell} {phase} {prompt}")
    first = 0 if phase == "prefill" else len(positions)
    rows = []
    for anchor in ANCHORS:
        typical = (wrong or {}).get(anchor)
        row = [round(min(1.1 * math.exp(rng.gauss(0, 0.4)), 7.5), 3) for _ in positions]
        if typical is not None:
            row = [r if first + i == 0 else float(f"{typical * rng.uniform(0.3, 1):.3g}") for i, r in enumerate(row)]
        # The head is applied to the last row of a prompt.
        alone = phase == "prefill" and anchor in ("norm", "lm_head")
        rows.append([None] * (len(row) - 1) + row[-1:] if alone else row)
    columns = [first + i for i in positions]
    return {"cell": cell, "phase": phase, "prompt": prompt, "positions": columns, "anchors": ANCHORS[:], "errors": rows}


def _floor(anchor: str, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    scale = round(math.exp(rng.gauss(1, 1.2)), 4)
    relative = float(f"{2e-7 * math.exp(rng.gauss(0, 0.4)):.3g}")
    return {
        "anchor": anchor,
        "scale": scale,
        "noise": float(f"{scale * relative * 1.7:.3g}"),
        "relative": relative,
        "oracle": round(rng.uniform(0.4, 2.4), 3),
        "limit": 16.0 if anchor.endswith("probs") else 8.0,
    }


def _localization() -> dict[str, Any]:
    rng = random.Random(7)
    errors = []
    for phase in ("prefill", "decode"):
        for anchor in ANCHORS:
            local = 208_000.0 if anchor == "layers.3.self_attn.q_rope" else round(rng.uniform(0.2, 2.6), 3)
            accumulated = WRONG.get(anchor, round(rng.uniform(0.5, 3.1), 3))
            error = {"anchor": anchor, "phase": phase, "accumulated": accumulated, "local": local}
            errors.append({**error, "peer": round(rng.uniform(0.2, 2.2), 3)})
    return {
        "cell": "emitter/iree-cpu",
        "reason": "the oracle's graph is right, and this is the one that ships",
        "phase": "prefill",
        "prompt": "chat@64",
        "step": 5,
        "position": 7,
        "anchor": "layers.3.self_attn.q_rope",
        "first_accumulated": "layers.3.self_attn.q_rope",
        "first_local": "layers.3.self_attn.q_rope",
        "errors": errors,
        "operation": {
            "name": "stablehlo.subtract",
            "value": "%l3.q_rope_4",
            "line": 214,
            "graph": "llama_prefill_64_logits",
            "text": "%l3.q_rope_4 = stablehlo.subtract %l3.q_rope_2, %l3.q_rope_3 : tensor<64x9x32xf32>",
            "anchor": "layers.3.self_attn.q_rope",
            "operands": ["tensor<64x9x32xf32>", "tensor<64x9x32xf32>"],
            "result": "tensor<64x9x32xf32>",
            "worst": {"index": [7, 4, 0], "value": -2.718281, "expected": 3.141592},
            "why": "Its operands are within 1.4 floors of the interpreter's on the same inputs; its result is 208,000 "
            "floors off.",
        },
        "fusion_dependent": False,
        "reproducer": {
            "folder": "reproducer",
            "files": ["piece.mlir", "0-l3.q_rope_2.npy", "1-l3.q_rope_3.npy", "expected.npy", "reproduce.sh"],
            "command": "iree-compile piece.mlir --iree-hal-target-device=local "
            "--iree-hal-local-target-device-backends=llvm-cpu -o piece.vmfb && \\\n"
            "iree-run-module --device=local-task --module=piece.vmfb --function=main --input=@0-l3.q_rope_2.npy "
            "--input=@1-l3.q_rope_3.npy --expected_output=@expected.npy --expected_f32_threshold=3.2e-05",
            "shown": True,
            "output": "EXEC @main\n[FAILED] result[0]: element at index 8160 (-2.71828) does not match the expected "
            "(3.14159); expected that the view is equal to contents of a view of 64x9x32xf32\n",
        },
        "notes": ["Decode shows the same fault, from the same anchor on."],
    }


def _census(text: str) -> dict[str, int]:
    return {op: int(n) for op, n in (pair.split() for pair in text.split(", "))}


def _graphs() -> list[dict[str, Any]]:
    graphs = []
    scopes = {
        "embed_tokens": {"dynamic_slice": 1},
        "layers.*.input_layernorm": {"multiply": 90, "broadcast_in_dim": 60, "reduce": 30, "rsqrt": 30, "add": 30},
        **{f"layers.*.self_attn.{p}_proj": {"dot_general": 30} for p in "qkv"},
        "layers.*.self_attn.q_rope": {"multiply": 60, "reshape": 60, "reverse": 30, "add": 30, "broadcast_in_dim": 60},
        "layers.*.mlp.gate_proj": {"dot_general": 30},
        "layers.*.mlp.act": {"logistic": 30, "multiply": 30},
        "norm": {"multiply": 3, "broadcast_in_dim": 2, "reduce": 1, "rsqrt": 1, "add": 1},
        "lm_head": {"dot_general": 1, "reshape": 1},
    }
    oracle_scopes = {
        name: {**{op: n for op, n in ops.items() if op not in ("reverse", "logistic")}, "constant": 30}
        for name, ops in scopes.items()
    }
    for source, head, phase, bucket in [
        ("oracle", "logits", "decode", None),
        ("emitter", "logits", "decode", None),
        ("emitter", "token", "decode", None),
        *[(source, "logits", "prefill", bucket) for source in ("oracle", "emitter") for bucket in (32, 64, 128, 256)],
    ]:
        ops = _census(DECODE[source])
        if head == "token":
            ops = {**ops, "reduce": 123, "iota": 2, "compare": 2, "select": 31, "broadcast_in_dim": 334, "constant": 41}
        if phase == "prefill":
            ops = {**ops, "transpose": ops.get("transpose", 0) + 90, "concatenate": 2, "pad": 60}
            ops.pop("dynamic_update_slice")
        graphs.append(
            {
                "id": f"{source}/{phase}{'' if bucket is None else f'-{bucket}'}/{head}",
                "source": source,
                "phase": phase,
                "head": head,
                "bucket": bucket,
                "ops": ops,
                "op_total": sum(ops.values()),
                "op_kinds": len(ops),
                "weights": 272,
                "flops": 287_590_071 if bucket is None else None,
                "bytes": 553_956_600 if bucket is None else None,
                "digest": f"{zlib.crc32(f'{source} {head} {phase} {bucket}'.encode()):08x}" * 8,
                "text_bytes": {"oracle": 441_312, "emitter": 297_850}[source] + (bucket or 0) * 9,
                "scopes": oracle_scopes if source == "oracle" else scopes,
            }
        )
    return graphs


# Scope -> a line a operation, as `name op operands : type`; `L` is the layer's number.
ORACLE_TEXT = {
    "embed_tokens": ["18 dynamic_slice %arg0, %17, %c_11, sizes = [1, 576] : 1x576xf32"],
    "layers.L.input_layernorm": [
        "19 multiply %18, %18 : 1x576xf32",
        "cst_13 constant dense<0.000000e+00> : f32",
        "20 reduce(%19 init: %cst_13) applies stablehlo.add across dimensions = [1] : 1xf32",
        "22 broadcast_in_dim %cst_14, dims = [] : 1x1xf32",
        "23 divide %21, %22 : 1x1xf32",
        "27 rsqrt %26 : 1x1xf32",
        "28 broadcast_in_dim %27, dims = [0, 1] : 1x576xf32",
        "29 multiply %18, %28 : 1x576xf32",
        "30 multiply %24, %29 : 1x576xf32",
    ],
    "layers.L.self_attn.q_proj": [
        "31 dot_general %30, %arg2, contracting_dims = [1] x [1] : 1x576xf32",
        "32 reshape %31 : 1x9x64xf32",
    ],
    "layers.L.self_attn.q_rope": [
        "37 slice %32 [0:1, 0:9, 0:32] : 1x9x32xf32",
        "38 slice %32 [0:1, 0:9, 32:64] : 1x9x32xf32",
        "42 multiply %37, %41 : 1x9x32xf32",
        "44 multiply %38, %43 : 1x9x32xf32",
        "45 subtract %42, %44 : 1x9x32xf32",
        "50 add %47, %49 : 1x9x32xf32",
        "51 concatenate %45, %50, dim = 2 : 1x9x64xf32",
    ],
    "layers.L.mlp.act": [
        "111 negate %109 : 1x1536xf32",
        "112 exponential %111 : 1x1536xf32",
        "116 divide %114, %115 : 1x1536xf32",
        "117 multiply %109, %116 : 1x1536xf32",
    ],
    "lm_head": ["3091 dot_general %3090, %arg0, contracting_dims = [1] x [1] : 1x49152xf32"],
}
EMITTER_TEXT = {
    "embed_tokens": [
        "embed_tokens.ds dynamic_slice %model.embed_tokens.weight, %token, %c, sizes = [1, 576] : 1x576xf32"
    ],
    "layers.L.input_layernorm": [
        "lL_input_layernorm.mul multiply %embed_tokens.ds, %embed_tokens.ds : 1x576xf32",
        "c3 constant dense<0.0> : f32",
        "lL_input_layernorm.red reduce(%lL_input_layernorm.mul init: %c3) applies stablehlo.add across dimensions = [1] : 1xf32",
        "lL_input_layernorm.mul1 multiply %lL_input_layernorm.red, %c4 : 1xf32",
        "lL_input_layernorm.rsqrt rsqrt %lL_input_layernorm.add : 1xf32",
        "lL_input_layernorm.bc broadcast_in_dim %lL_input_layernorm.rsqrt, dims = [0] : 1x576xf32",
        "lL_input_layernorm.mul2 multiply %embed_tokens.ds, %lL_input_layernorm.bc : 1x576xf32",
        "lL_input_layernorm.mul3 multiply %lL_input_layernorm.mul2, %lL_input_layernorm.bc1 : 1x576xf32",
    ],
    "layers.L.self_attn.q_proj": [
        "lL_self_attn_q_proj.dot dot_general %lL_input_layernorm.mul3, %model.layers.L.self_attn.q_proj.weight, "
        "contracting_dims = [1] x [1] : 1x576xf32",
        "lL_self_attn_q_proj.r reshape %lL_self_attn_q_proj.dot : 1x9x64xf32",
    ],
    "layers.L.self_attn.q_rope": [
        "lL_q_rope reshape %lL_self_attn_q_proj.r : 1x9x2x32xf32",
        "lL_q_rope_1 reverse %lL_q_rope, dims = [2] : 1x9x2x32xf32",
        "lL_q_rope_2 multiply %lL_q_rope, %cos : 1x9x2x32xf32",
        "lL_q_rope_3 multiply %lL_q_rope_1, %sin : 1x9x2x32xf32",
        "lL_q_rope_4 subtract %lL_q_rope_2, %lL_q_rope_3 : 64x9x32xf32",
        "lL_q_rope_5 reshape %lL_q_rope_4 : 1x9x64xf32",
    ],
    "layers.L.mlp.act": [
        "lL_mlp_act.logistic logistic %lL_mlp_gate_proj.dot : 1x1536xf32",
        "lL_mlp_act.mul multiply %lL_mlp_gate_proj.dot, %lL_mlp_act.logistic : 1x1536xf32",
    ],
    "lm_head": [
        "lm_head.dot dot_general %norm.mul3, %model.embed_tokens.weight, contracting_dims = [1] x [1] : 1x49152xf32"
    ],
}


def _listing(source: str, phase: str, layer: int) -> dict[str, Any]:
    """A graph's operations; `layer` stands for all that are alike. The sixth operation of q_rope's is at line 214."""
    scopes = []
    line = 188 if source == "emitter" else 31
    for scope, lines in (EMITTER_TEXT if source == "emitter" else ORACLE_TEXT).items():
        ops = []
        for text in lines:
            value, rest = text.replace("L_", f"{layer}_").replace("layers.L", f"layers.{layer}").split(" ", 1)
            form, _, type_ = rest.rpartition(" : ")
            op = re.split(r"[ (]", form, maxsplit=1)[0]
            full = f"%{value} = stablehlo.{form} : tensor<{type_}>"
            if op == "subtract" and source == "emitter":
                line, full = 214, "%l3.q_rope_4 = stablehlo.subtract %l3.q_rope_2, %l3.q_rope_3 : tensor<64x9x32xf32>"
            ops.append({"op": op, "type": type_, "line": line, "text": full})
            line += 1
        layers = list(range(LAYERS)) if "L" in scope else []
        flops, size = zlib.crc32(scope.encode()) % 10**6, zlib.crc32(scope.encode()) % 10**7
        anchor = scope.replace("L", str(layer))
        scopes.append({"anchor": anchor, "layers": layers, "flops": flops, "bytes": size, "ops": ops})
    bucket = "-64" if phase == "prefill" else ""
    name = f"llama_{phase}{bucket.replace('-', '_')}_logits"
    return {"graph": f"{source}/{phase}{bucket}/logits", "name": name, "scopes": scopes}


def _hostile_scope(layer: int) -> dict[str, Any]:
    ops = [{"op": HOSTILE, "type": HOSTILE, "line": n, "text": HOSTILE} for n in (1, None, 214)]
    return {"anchor": f"layers.{layer}.{HOSTILE}", "layers": [layer], "flops": 10**15, "bytes": 10**13, "ops": ops}


def _block(layer: int) -> dict[str, Any]:
    """A layer of Llama's: what its scopes compute from what."""
    before = "embed_tokens" if layer == 0 else f"layers.{layer - 1}"
    inputs = {
        "input_layernorm": "before",
        **{f"self_attn.{p}_proj": "input_layernorm" for p in "qkv"},
        **{f"self_attn.{p}_rope": f"self_attn.{p}_proj" for p in "qk"},
        "k_cache": "self_attn.k_rope",
        "v_cache": "self_attn.v_proj",
        "self_attn.scores": "self_attn.q_rope k_cache",
        "self_attn.probs": "self_attn.scores",
        "self_attn.context": "self_attn.probs v_cache",
        "self_attn.o_proj": "self_attn.context",
        "sum": "before self_attn.o_proj",
        "post_attention_layernorm": "sum",
        "mlp.gate_proj": "post_attention_layernorm",
        "mlp.up_proj": "post_attention_layernorm",
        "mlp.act": "mlp.gate_proj mlp.up_proj",
        "mlp.down_proj": "mlp.act",
        "": "sum mlp.down_proj",
    }
    nodes = [{"anchor": before, "ops": {}, "weights": []}]
    index = {"before": 0}
    edges = []
    for part, sources in inputs.items():
        index[part] = len(nodes)
        anchor = f"{part}.{layer}" if "cache" in part else f"layers.{layer}.{part}".rstrip(".")
        weights = [f"model.layers.{layer}.{part}.weight"] if part.endswith(("proj", "norm")) else []
        ops = {"dot_general": 1} if part.endswith("proj") else {"add": 1} if part in ("sum", "") else {"multiply": 2}
        nodes.append({"anchor": "" if part == "sum" else anchor, "ops": ops, "weights": weights})
        edges += [[index[name], index[part]] for name in sources.split()]
    return {"graph": "emitter/decode/logits", "layer": layer, "nodes": nodes, "edges": edges}


def _speed() -> dict[str, Any]:
    contenders = [
        ("emitter/iree-cpu/token", "emitter on IREE", 23.2, 612_000_000),
        ("oracle/xla-cpu", "oracle on XLA", 24.2, 1_130_000_000),
        ("transformers", "Hugging Face float32", 54.8, 640_000_000),
    ]
    return {
        "reason": "",
        "context": 16,
        "tokens": 8,
        "contenders": [
            {
                "id": name,
                "title": title,
                "ms_per_token": [round(ms * factor, 3) for factor in (1.0, 0.992, 1.013, 1.004, 0.998)],
                "resident_bytes": size,
            }
            for name, title, ms, size in contenders
        ],
    }


def _timings(stages: Sequence[tuple[str, float, bool, str]]) -> list[dict[str, Any]]:
    """One after another; what is compiled, two at a time."""
    timings: list[dict[str, Any]] = []
    begin = 0.0
    for stage, seconds, reused, detail in stages:
        half = round(seconds / 2, 3)
        parts = [
            {"name": f"{stage}, {part}", "begin": round(begin + late, 3), "seconds": half, "reused": reused}
            for part, late in (("decode", 0.0), ("prefill 64", half / 2), ("prefill 256", half))
            if stage.startswith("compile")
        ]
        timings.append(
            {"stage": stage, "begin": begin, "seconds": seconds, "reused": reused, "detail": detail, "parts": parts}
        )
        begin = round(begin + seconds, 3)
    return timings


def _without_results(record: dict[str, Any], why: str, cells: Sequence[int]) -> dict[str, Any]:
    """The record, in which cells have none, nor has what follows from them."""
    for cell in (record["cells"][i] for i in cells):
        cell |= {"status": "failed", "message": why, "agreed": 0, "total": 0, "tokens_per_second": None}
        for entry in record["tokens"].values():
            del entry["cells"][cell["id"]]
            entry["agreed"] = 0
    record |= {"anchors": [], "canary": None}
    record["speed"] = {"reason": "a cell has no result", "context": 0, "tokens": 0, "contenders": []}
    return record


def _set_checks(record: dict[str, Any], failed: set[str], error: set[str]) -> None:
    for check in record["checks"]:
        if check["id"] in failed:
            tokens = check["id"].endswith(".tokens")
            check |= {"status": "failed", "figure": "248 of 288" if tokens else "2.1e+05 floors (chat@64)"}
            check["detail"] = (
                "the first is chat@64, step 5" if tokens else "the first that is wrong is step 5 of chat@64"
            )
        if check["id"] in error:
            check |= {"status": "error", "figure": "", "detail": "the process that measures this ended with signal 11"}


SAMPLES = [
    sample, failing_sample, near_tie_sample, broken_sample, hostile_sample, empty_sample, suite_sample, failing_suite_sample,
    token_file_sample,
]  # fmt: skip
ALL = [*SAMPLES, lambda: without_text(failing_sample())]


@pytest.mark.parametrize("make", [*SAMPLES, *OF_CLASS.values()])
def test_samples_are_valid(make: Any) -> None:
    record = make()
    validate(record)
    assert record == make()
