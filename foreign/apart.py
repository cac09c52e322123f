"""An adapted graph taken in two, so that each thing its own function is given can be given otherwise.

`given` makes what the function takes beside its weights from the contract's inputs; `own` takes that and gives the
contract's results. One after the other they do what the adapted graph does.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from hloracle.core.abi import Abi, Graph, Tensor
from hloracle.foreign.adapter import FUNCTION
from hloracle.foreign.signature import TYPE

GIVEN, OWN = f"{FUNCTION}_given", f"{FUNCTION}_own"
# The function that `adapter.py` writes: its arguments, and its lines one by one.
_MAIN = re.compile(
    rf"  func\.func public @{FUNCTION}\((?P<arguments>.*)\) -> \((?P<results>.*)\) \{{\n"
    r"(?P<row>.*)\n(?P<inputs>.*)\n(?P<function>.*)\n(?P<contract>.*)\n(?P<end>.*)\n  \}\n"
)
_ARGUMENT = re.compile(r"%arg(\d+)\b")


@dataclass(frozen=True)
class Apart:
    """The two graphs. Neither is one of the contract: their ABIs say the types alone.

    given: of the contract's inputs and the weights in `embeds`, to the function's inputs. own: of the weights in `weights`,
    of the function's inputs, and of the position or the length.
    """

    given: Graph
    own: Graph
    weights: tuple[str, ...]
    embeds: tuple[str, ...]


def apart(graph: Graph) -> Apart:
    """Take an adapted graph in two. Raises ValueError for a graph that is not adapted."""
    main = _MAIN.search(graph.text)
    if not graph.inner or main is None:
        raise ValueError(f"{graph.name} is not adapted to the contract")
    arguments = graph.abi.arguments
    calls = main["inputs"].rpartition(" -> ")[2]
    types = calls.removeprefix("(").removesuffix(")").split(", ")
    names = [f"%inputs#{i}" if len(types) > 1 else "%inputs" for i in range(len(types))]
    taken = [Tensor("tap", f"input {i}", *_shape(type)) for i, type in enumerate(types)]
    weights = [i for i, a in enumerate(arguments) if a.role == "weight"]
    inputs = [i for i, a in enumerate(arguments) if a.role != "weight"]

    own = re.sub(r"%inputs(?:#(\d+))?(?![\w#])", lambda found: f"%input{found[1] or 0}", main["function"])
    held = [i for i in weights if i in _used(own)]
    at = inputs[1]
    end = f"{main['contract']}\n{main['end']}"
    header = [*(f"%arg{i}: {_type(arguments[i])}" for i in held), *(f"%input{i}: {t}" for i, t in enumerate(types))]
    own_text = f"""  func.func public @{OWN}({", ".join([*header, f"%arg{at}: {_type(arguments[at])}"])}) -> ({main["results"]}) {{
{main["row"]}
{own}
{end}
  }}
"""
    looked_up = [i for i in weights if i in _used(main["inputs"])]
    given_text = f"""  func.func public @{GIVEN}({", ".join(f"%arg{i}: {_type(arguments[i])}" for i in (*inputs, *looked_up))}) -> ({", ".join(types)}) {{
{main["row"]}
{main["inputs"]}
    func.return {", ".join(names)} : {", ".join(types)}
  }}
"""

    def of(text: str, function: str, takes: list[Tensor], gives: tuple[Tensor, ...]) -> Graph:
        whole = graph.text[: main.start()] + text + graph.text[main.end() :]
        abi = Abi(graph.abi.phase, tuple(takes), gives, function)
        return dataclasses.replace(graph, text=whole, abi=abi, inner="")

    return Apart(
        of(given_text, GIVEN, [arguments[i] for i in (*inputs, *looked_up)], tuple(taken)),
        of(
            own_text, OWN, [*(arguments[i] for i in held), *taken, arguments[at]],
            tuple(dataclasses.replace(r, aliases=None) for r in graph.abi.results),
        ),
        tuple(arguments[i].name for i in held),
        tuple(arguments[i].name for i in looked_up),
    )  # fmt: skip


def _used(line: str) -> set[int]:
    return {int(i) for i in _ARGUMENT.findall(line)}


def _type(tensor: Tensor) -> str:
    return f"tensor<{'x'.join([*map(str, tensor.shape), tensor.dtype])}>"


def _shape(type: str) -> tuple[tuple[int, ...], str]:
    found = TYPE.fullmatch(type)
    assert found, type
    return tuple(int(n) for n in found[1].split("x") if n), found[2]
