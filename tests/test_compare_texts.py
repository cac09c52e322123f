"""Base against head: the text of a graph."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
from records import Record

from hloracle.reports.compare.texts import compare_texts


def listing(text: str, layers: int = 0) -> Record:
    """Scopes as `anchor:` lines, each followed by its operations."""
    scopes: list[Record] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.endswith(":"):
            anchor = line[:-1]
            numbers = list(range(layers)) if anchor.startswith(("layers.", "k_cache.")) else []
            scopes.append({"anchor": anchor, "layers": numbers, "flops": 0, "bytes": 0, "ops": []})
        else:
            op = line.split(" = ")[1].split(" ")[0]
            scopes[-1]["ops"].append({"op": op, "type": "4xf32", "line": None, "text": line})
    return {"graph": "g", "name": "g", "scopes": scopes}


BEFORE = """
embed_tokens:
  %0 = dynamic_slice %arg0, %arg9 : tensor<4xf32>
layers.0.input_layernorm:
  %1 = multiply %0, %0 : tensor<4xf32>
  %c = constant dense<0.0> : tensor<f32>
  %2 = reduce(%1 init: %c) : tensor<f32>
  %3 = rsqrt %2 : tensor<f32>
  %4 = multiply %0, %3 : tensor<4xf32>
layers.0.q_proj:
  %5 = dot_general %4, %arg1 : tensor<4xf32>
layers.0.k_proj:
  %6 = dot_general %4, %arg2 : tensor<4xf32>
layers.0:
  %7 = add %5, %6 : tensor<4xf32>
norm:
  %99 = multiply %97, %97 : tensor<4xf32>
"""


def text_diff(*edits: tuple[str, str], before: str = BEFORE) -> Any:
    after = before
    for old, new in edits:
        assert old in after
        after = after.replace(old, new)
    return compare_texts(listing(before, 3), listing(after, 3))


def test_a_text_against_itself() -> None:
    diff = text_diff()
    assert (diff.scopes, diff.renamed, diff.lines) == ((), 0, 10)


def test_a_renumbering_is_no_change() -> None:
    after = BEFORE
    for n in reversed(range(1, 100)):
        after = after.replace(f"%{n} ", f"%{n + 7} ").replace(f"%{n},", f"%{n + 7},").replace(f"%{n})", f"%{n + 7})")
    diff = compare_texts(listing(BEFORE, 3), listing(after.replace("%c ", "%c_3 ").replace("%c)", "%c_3)"), 3))
    assert diff.scopes == ()
    assert diff.renamed == 9


def test_an_inserted_operation_renumbers_and_shows_alone() -> None:
    diff = text_diff(
        ("%4 = multiply %0, %3", "%4 = sqrt %3 : tensor<f32>\n%5 = multiply %0, %4"),
        ("%7 = add %5, %6", "%8 = add %6, %7"),
        ("%6 = dot_general %4", "%7 = dot_general %5"),
        ("%5 = dot_general %4", "%6 = dot_general %5"),
        ("%99 = multiply %97, %97", "%102 = multiply %100, %100"),
    )
    (scope,) = diff.scopes
    assert scope.scope == "layers.*.input_layernorm"
    changed = [(row.mark, row.text.split(" : ")[0]) for row in scope.rows if row.mark != "same"]
    # What reads the new value reads another one than before.
    assert changed == [
        ("gone", "%4 = multiply %0, %3"), ("new", "%4 = sqrt %3"), ("new", "%5 = multiply %0, %4"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("edits", "scopes"),
    [
        (
            [("%4 = multiply %0, %3", "%4 = multiply %1, %3")],
            ["layers.*.input_layernorm"],
        ),  # another value of the scope
        ([("%6 = dot_general %4", "%6 = dot_general %0")], ["layers.*.k_proj"]),  # another scope's value
        ([("%7 = add %5, %6", "%7 = add %6, %5")], ["layers.*"]),  # two values exchanged
        ([("dense<0.0>", "dense<1.0>")], ["layers.*.input_layernorm"]),  # a constant
        ([("rsqrt", "sqrt")], ["layers.*.input_layernorm"]),
        ([("%99 = multiply %97, %97", "%99 = multiply %97, %96")], ["norm"]),  # two unlisted values for one
    ],
)
def test_what_is_read_counts(edits: list[tuple[str, str]], scopes: list[str]) -> None:
    assert [scope.scope for scope in text_diff(*edits).scopes] == scopes


DECODE = """
embed_tokens:
  %embed_tokens.ds = dynamic_slice %embed_tokens.weight, %token
k_cache.0:
  %l0_k_rope = multiply %embed_tokens.ds, %embed_tokens.ds
  %l0_k_cache.dus = dynamic_update_slice %k_cache, %l0_k_rope, %position
  %l0_k_cache.r1 = reshape %l0_k_cache.dus
layers.0.self_attn.scores:
  %l0_scores = dot_general %l0_k_rope, %l0_k_cache.r1
layers.0.self_attn.o_proj:
  %l0_o_proj.dot = dot_general %l0_scores, %layers.0.o_proj.weight
layers.0.mlp.up_proj:
  %l0_up_proj = dot_general %l0.add, %layers.0.up_proj.weight
layers.0:
  %l0.add = add %embed_tokens.ds, %l0_o_proj.dot
norm:
  %norm.mul = multiply %l2.add, %l2.add
"""


@pytest.mark.parametrize(
    ("old", "new", "scope"),
    [
        ("%l0_k_rope, %position", "%l0_k_rope, %l0_scores", "k_cache.*"),  # an argument by what is made
        ("%l0_k_rope, %l0_k_cache.r1", "%l0_k_rope, %k_cache", "layers.*.self_attn.scores"),  # the stale cache
        ("%embed_tokens.ds, %l0_o_proj.dot", "%embed_tokens.ds, %token", "layers.*"),
        ("%l0.add, %layers.0.up_proj.weight", "%l0.add, %l0_scores", "layers.*.mlp.up_proj"),  # a weight
    ],
)
def test_an_argument_is_no_other_name_of_what_is_made(old: str, new: str, scope: str) -> None:
    assert [found.scope for found in text_diff((old, new), before=DECODE).scopes] == [scope]


def test_what_is_gone_is_no_other_name_of_what_is_there() -> None:
    before = "a:\n%1 = sqrt %x\n%2 = rsqrt %x\nb:\n%3 = negate %1"
    after = "a:\n%2 = rsqrt %x\nb:\n%3 = negate %2"
    assert [scope.scope for scope in compare_texts(listing(before), listing(after)).scopes] == ["a", "b"]
    # What is new in its place is shown where it is made.
    after = "a:\n%1 = cbrt %x\n%2 = rsqrt %x\nb:\n%3 = negate %1"
    assert [scope.scope for scope in compare_texts(listing(before), listing(after)).scopes] == ["a"]


def _shown_at(layer: int, *alone: str) -> Record:
    """DECODE's listing with another layer for all, and layer 1 of some scopes listed by itself, with an operation more."""
    found = listing(DECODE.replace("l0", f"l{layer}").replace("s.0", f"s.{layer}").replace("e.0", f"e.{layer}"), 3)
    if layer:  # what it reads of the layer before is not listed
        text = [
            op
            for scope in found["scopes"]
            if "rs." in scope["anchor"] or "e." in scope["anchor"]
            for op in scope["ops"]
        ]
        for op in text:
            op["text"] = (
                op["text"].replace("%embed_tokens.ds", f"%l{layer - 1}.add").replace("%k_cache,", "%l1_k_cache.dus,")
            )
    for scope in [scope for scope in found["scopes"] if scope["anchor"] in alone]:
        scope["layers"] = [0, 2]
        other = copy.deepcopy(scope) | {"anchor": scope["anchor"].replace("0", "1"), "layers": [1]}
        for op in other["ops"]:
            op["text"] = op["text"].replace("l0", "l1").replace("s.0", "s.1").replace("%embed_tokens.ds", "%l0.add")
        other["ops"].append({"op": "negate", "type": "", "line": None, "text": "%l1_more = negate %l1_x"})
        found["scopes"].append(other)
    return found


def test_layers_that_are_not_listed_are_no_change() -> None:
    assert compare_texts(_shown_at(0), _shown_at(2)).scopes == ()
    assert compare_texts(_shown_at(2), _shown_at(0)).scopes == ()
    for alone in ("layers.0.self_attn.scores", "layers.0.self_attn.o_proj", "layers.0.mlp.up_proj"):
        for sides in ((_shown_at(0), _shown_at(0, alone)), (_shown_at(2), _shown_at(0, alone))):
            for base, head in (sides, sides[::-1]):
                (scope,) = compare_texts(base, head).scopes
                assert (scope.layers, scope.gone + scope.new) == ((1,), 1)


def test_weights_that_are_exchanged() -> None:
    diff = text_diff(("%arg1", "%swap"), ("%arg2", "%arg1"), ("%swap", "%arg2"))
    assert [scope.scope for scope in diff.scopes] == ["layers.*.q_proj", "layers.*.k_proj"]
    assert [row.mark for row in diff.scopes[0].rows] == ["gone", "new"]


def test_a_value_that_has_taken_anothers_name() -> None:
    before = "a:\n%1 = add %arg0, %arg0\n%2 = add %arg1, %arg1\n%3 = exponential %1"
    after = "a:\n%2 = add %arg0, %arg0\n%1 = add %arg1, %arg1\n%3 = exponential %1"
    (scope,) = compare_texts(listing(before), listing(after)).scopes
    assert [row.mark for row in scope.rows] == ["same", "same", "other"]


def test_a_constant_is_its_value() -> None:
    before = "a:\n%c = constant 1\n%c1 = constant 1\n%1 = add %arg0, %c\n%2 = add %1, %c1"
    after = "a:\n%c = constant 1\n%c1 = constant 1\n%1 = add %arg0, %c1\n%2 = add %1, %c"
    assert compare_texts(listing(before), listing(after)).scopes == ()


def test_a_constant_that_changed_is_shown_once() -> None:
    (scope,) = text_diff(("dense<0.0>", "dense<1.0>")).scopes
    assert [row.mark for row in scope.rows] == ["same", "gone", "new", "same", "same", "same"]
    before = "a:\n%c = constant 1\n%c1 = constant 2\n%1 = add %c, %c1\n%2 = add %1, %c1"
    (scope,) = compare_texts(listing(before), listing(before.replace("%1, %c1", "%1, %c"))).scopes
    assert [row.text for row in scope.rows if row.mark == "new"] == ["%2 = add %1, %c"]


def test_what_is_put_in_place_of_another_is_shown_once() -> None:
    diff = text_diff(("%1 = multiply %0, %0", "%1 = power %0, %arg9"))
    (scope,) = diff.scopes
    assert [row.mark for row in scope.rows] == ["gone", "new", "same", "same", "same", "same"]


def test_one_layer_that_is_no_longer_like_the_others() -> None:
    before, after = listing(BEFORE, 3), listing(BEFORE, 3)
    scope = next(s for s in after["scopes"] if s["anchor"] == "layers.0.input_layernorm")
    scope["layers"] = [0, 2]
    other = copy.deepcopy(scope) | {"anchor": "layers.1.input_layernorm", "layers": [1]}
    other["ops"][3] = {"op": "sqrt", "type": "f32", "line": 9, "text": "%33 = sqrt %2 : tensor<f32>"}
    other["ops"][4]["text"] = other["ops"][4]["text"].replace("%3", "%33")
    after["scopes"].insert(2, other)
    (diff,) = compare_texts(before, after).scopes
    assert (diff.scope, diff.layers, diff.gone, diff.new) == ("layers.*.input_layernorm", (1,), 1, 1)


def test_scopes_that_come_and_go() -> None:
    head = BEFORE.replace("layers.0.q_proj:\n", "layers.0.q_proj_new:\n")
    diff = compare_texts(listing(BEFORE, 3), listing(head, 3))
    assert {(s.scope, s.gone, s.new) for s in diff.scopes} == {
        ("layers.*.q_proj", 1, 0), ("layers.*.q_proj_new", 0, 1), ("layers.*", 1, 1),
    }  # fmt: skip


def test_long_texts() -> None:
    def of(line: Callable[[int], str]) -> Record:
        return listing("a:\n" + "\n".join(f"%{n} = {line(n)} : tensor<{n % 3}xf32>" for n in range(1, 4000)))

    many = of(lambda n: f"add %{n - 1}, %arg0")
    (scope,) = compare_texts(many, of(lambda n: f"{'subtract' if n == 2000 else 'add'} %{n - 1}, %arg0")).scopes
    assert (scope.gone, scope.new) == (1, 1)
    assert [row.skipped for row in scope.rows if row.mark == "…"] == [1996, 1996]
    (scope,) = compare_texts(many, of(lambda n: f"{'negate' if n % 50 == 0 else 'add'} %{n - 1}, %arg0")).scopes
    assert (scope.gone, scope.new) == (79, 79)
    (scope,) = compare_texts(many, of(lambda n: f"op{n * 7919 % 5003} %arg0")).scopes
    assert scope.reason == "too much differs to be compared line by line: 3,999 and 3,999 operations"


@pytest.mark.parametrize("seed", range(60))
def test_lines_are_aligned_as_well_as_can_be(seed: int) -> None:
    """The longest common subsequence, by the plain recursion over all prefixes."""
    rng = random.Random(seed)
    a, b = ([rng.choice("abc") for _ in range(rng.randrange(12))] for _ in range(2))
    longest = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            longest[i + 1][j + 1] = longest[i][j] + 1 if x == y else max(longest[i][j + 1], longest[i + 1][j])
    before, after = (listing("a:\n" + "\n".join(f"%{i} = {op} %arg0" for i, op in enumerate(ops))) for ops in (a, b))
    diff = compare_texts(before, after)
    gone, new = ([sum(getattr(s, side) for s in diff.scopes)] for side in ("gone", "new"))
    assert (gone, new) == ([len(a) - longest[-1][-1]], [len(b) - longest[-1][-1]])


@pytest.mark.parametrize(
    "text", ["", "%", "% = %", "100 %", "no names at all", '%1:2 = x.y(%a#1) {z = "%q"}', "a = %b = c"]
)
def test_odd_lines(text: str) -> None:
    one = listing("a:\n%0 = add %arg0")
    other = copy.deepcopy(one)
    other["scopes"][0]["ops"].append({"op": "x", "type": "", "line": None, "text": text})
    other["scopes"].append({"anchor": "layers." + "9" * 5000, "layers": [0], "flops": 0, "bytes": 0, "ops": []})
    assert compare_texts(other, other).scopes == ()
    assert len(compare_texts(one, other).scopes) == 1
    assert len(compare_texts(other, one).scopes) == 1
