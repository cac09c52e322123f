"""Exports a Hugging Face causal language model through torchax: `forward` without a cache, tokens [1, 64] -> logits.

    python export.py --model DIR --out DIR

Writes one graph in three forms:
  forward.mlir    text, with the names of its arguments as locations
  forward.mlirbc  MLIR bytecode: torchax's `output_format="bytecode"`, a portable artifact of StableHLO
  forward.jax     what torchax's exporter gives by default, a `jax.export.Exported`, serialized

The graph takes the model's state by position: parameters, then buffers, then constants, in the order in which
`torch.export` lists them, as `states[i]`. What the graph does not use is dropped from its arguments and leaves a gap in
these numbers. states.txt lists what each is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from jax import export
from torchax.export import exported_program_to_stablehlo, legalize_stablehlo_to_vhlo
from transformers import AutoModelForCausalLM

LENGTH = 64


class Forward(torch.nn.Module):
    """The model with one argument and one result."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits


def main() -> None:
    parser = argparse.ArgumentParser(description="Exports a Hugging Face model through torchax.")
    parser.add_argument("--model", type=Path, required=True, help="the checkpoint's directory")
    parser.add_argument("--out", type=Path, required=True, help="where the files go")
    options = parser.parse_args()

    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    program = torch.export.export(Forward(model), (torch.zeros(1, LENGTH, dtype=torch.int64),))
    states, exported = exported_program_to_stablehlo(program)

    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "forward.mlir").write_text(exported.mlir_module())
    (options.out / "forward.mlirbc").write_bytes(legalize_stablehlo_to_vhlo(exported.mlir_module()))
    (options.out / "forward.jax").write_bytes(exported.serialize())
    (options.out / "states.txt").write_text(listing(program, states, exported))
    with torch.no_grad():
        np.save(options.out / "logits.npy", Forward(model)(torch.arange(LENGTH)[None]).numpy())


def listing(program: torch.export.ExportedProgram, states: list, exported: export.Exported) -> str:
    """A line for each state: its number, its name in the program, its shape, and its values where they are few."""
    signature = program.graph_signature
    names = [*signature.parameters, *signature.buffers, *signature.lifted_tensor_constants]
    lines = []
    for i, (name, state) in enumerate(zip(names, states, strict=True)):
        dropped = "" if i in exported.module_kept_var_idx else " (dropped: not used)"
        values = f" {state.tolist()}" if name in signature.non_persistent_buffers else ""
        lines.append(f"{i} {name.removeprefix('model.')} {list(state.shape)}{values}{dropped}\n")
    return "".join(lines)


if __name__ == "__main__":
    main()
