"""Weights as the arguments of a graph hold them (`reference/model/encodings.py`), and what a graph does with one.

Everything that depends on how a weight is held is in this file. What a product costs is decided by which shapes a compiler
fuses: a float32 weight that is written to memory before it is multiplied costs more than all that its encoding saved.

Legend: T query tokens, N rows (outputs) and K columns (inputs) of a weight; in groups G x g, in panels P = N/16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from hloracle.emitters.builder import Builder, TensorType, Value
from hloracle.reference.model.encodings import PANEL, of_precision

# At most so many groups of one token's product are added lane by lane before they are summed: IREE 3.13 adds up a vector's
# lanes at each step of a sum, a third of the work where a step is a group or two. SmolLM2 135M, ms a step with 1, 2, 3, 4, 6:
# int4 9.9, 9.4, 9.1, 9.0, 9.0; int8 11.0, 10.0, 9.7, 9.7, 9.5; and int4 compiles in 7, 9, 11, 11, 20 s. [8192, 2048] and
# [2048, 8192], 10^9 weights a second with 1, 2, 4, 8: int4 17, 19, 20, 12; int8 16, 17, 19, 9: of 8, some terms are written to
# memory.
HANDS = 4

# The most tokens whose product with quantized weights in panels is a sum. SmolLM2 135M in int4, ms with a sum and with a
# dot_general: a step of 16 rows 114 and 278, of 32 241 and 324; a chunk of 32 tokens 151 and 172, of 64 268 and 232.
FEW = 32
QUANTIZED_PANELS = ("int8.panels", "int4.panels")


def hands_of(groups: int) -> int:
    """How many hands a row's groups are dealt to: the most that all get as many."""
    return max(n for n in range(1, HANDS + 1) if groups % n == 0)


@dataclass(frozen=True)
class Matrix:
    """A weight of this shape in an encoding; `parts` are its arguments, or rows of them."""

    shape: tuple[int, ...]
    encoding: str
    parts: tuple[Value, ...]


@dataclass(frozen=True)
class FusedPart:
    """A weight that is some rows of one that holds several: those from `start` to `limit`."""

    whole: Matrix
    start: int
    limit: int


class MatrixBuilder(Builder):
    """A Builder that also writes products with weights, and looks up their rows. A plain float32 weight is a Value.

    Args:
      gemm: the target of a custom_call that products with plain weights are left to; None for none.
      on_device: what is looked up at a token or a position is looked up by the graph's own operations. IREE reads the starts of
        a `dynamic_slice` back before it launches what needs them: of the processor's own memory that costs nothing, and then
        the layers of a decode can share what is compiled (`layer_numbers`); from a device it makes each step wait.
      compute: what values between modules are held in. Inside of a module sums are float32: it widens what it takes, and
        rounds what it gives.
    """

    def __init__(self, gemm: str | None = None, on_device: bool = False, compute: str = "f32") -> None:
        super().__init__()
        self._gemm, self.on_device, self.compute = gemm, on_device, compute
        self._products: dict[Matrix, tuple[Value, Value]] = {}  # of fused weights: what with, and the product

    def dot_general(
        self,
        lhs: Value,
        rhs: Value,
        contracting_dimensions: tuple[Sequence[int], Sequence[int]],
        batching_dimensions: tuple[Sequence[int], Sequence[int]] = ((), ()),
        result: str = "f32",
    ) -> Value:
        """See `Builder.dot_general`; what is narrower is added up in float32, too."""
        return super().dot_general(lhs, rhs, contracting_dimensions, batching_dimensions, result)

    def product(self, x: Value, weight: Value | Matrix | FusedPart) -> Value:
        """x [T, K], weight [N, K] -> [T, N]"""
        if x.dtype != "f32" and not isinstance(weight, FusedPart):
            return self._narrow_product(x, weight)
        if isinstance(weight, Value) and self._gemm is not None:
            return self.custom_call(self._gemm, (x, weight), TensorType((x.shape[0], weight.shape[0]), "f32"))
        if isinstance(weight, Value):
            return self.dot_general(x, weight, contracting_dimensions=((1,), (1,)))
        if isinstance(weight, FusedPart):
            return self.slice(self._whole(x, weight.whole), (0, weight.start), (x.shape[0], weight.limit))
        return STRATEGIES[weight.encoding].of(x.shape[0]).write(self, x, weight)

    def _narrow_product(self, x: Value, weight: Value | Matrix) -> Value:
        """The same of x in bf16 or f16, summed in float32 and not yet rounded: [T, N] float32.

        Of a weight in rows of the same type, one product of both as they are, which a matrix unit takes; else x is widened.
        """
        if isinstance(weight, Matrix) and weight.encoding == x.dtype:
            return self.dot_general(x, weight.parts[0], contracting_dimensions=((1,), (1,)))
        return self.product(self.as_f32(x), weight)

    def _whole(self, x: Value, weight: Matrix) -> Value:
        """The product with a fused weight, which is written where the first of its parts asks for it."""
        if weight not in self._products:
            self._products[weight] = x, self.product(x, weight)
        asked, y = self._products[weight]
        if asked != x:
            raise ValueError(f"{weight.parts[0].name} is multiplied with {asked.name} and {x.name}, in {self.anchor}")
        return y

    def rows(self, weight: Value | Matrix, indices: Value) -> Value:
        """The rows of a weight [V, ...] at indices [T, 1] -> [T, ...], float32."""
        if isinstance(weight, Value):
            return self.gather_rows(weight, indices)
        if weight.encoding.endswith("panels"):
            shift, mask = (self.constant(n, "i32", indices.shape) for n in (PANEL.bit_length() - 1, PANEL - 1))
            panel, inside = self.shift_right_logical(indices, shift), self.and_(indices, mask)
            at = self.concatenate([panel, inside], 1)  # [T, 2]
            if weight.encoding in QUANTIZED_PANELS:
                found = tuple(self.gather(part, at, (0, part.rank - 1)) for part in weight.parts)
                plain = Matrix((indices.shape[0], weight.shape[1]), of_precision(weight.encoding), found)
                return self.optimization_barrier(self.dense(plain))
            # Without the barrier IREE 3.13 fuses this with the norm that follows, and holds whole rows of eight tokens on the
            # stack: from 1024 columns on that is more than it allows, and it refuses the graph.
            return self.optimization_barrier(self.as_f32(self.gather(weight.parts[0], at, (0, 2))))
        rows = tuple(self.gather_rows(part, indices) for part in weight.parts)
        return self.dense(Matrix((indices.shape[0], *weight.shape[1:]), weight.encoding, rows))

    def row(self, weight: Value | Matrix, index: Value) -> Value:
        """The row of a weight [V, K] at a scalar index -> [1, K], float32."""
        if self.on_device or (isinstance(weight, Matrix) and weight.encoding in QUANTIZED_PANELS):
            return self.rows(weight, self.reshape(index, (1, 1)))
        if isinstance(weight, Matrix) and weight.encoding.endswith("panels"):
            shift, mask = (self.constant(n, "i32") for n in (PANEL.bit_length() - 1, PANEL - 1))
            panel, inside = self.shift_right_logical(index, shift), self.and_(index, mask)
            K = weight.shape[1]
            found = self.dynamic_slice(weight.parts[0], (panel, self.constant(0, "i32"), inside), (1, K, 1))
            return self.as_f32(self.reshape(found, (1, K)))

        def one(part: Value) -> Value:
            zero = self.constant(0, "i32")
            return self.dynamic_slice(part, (index, *[zero] * (part.rank - 1)), (1, *part.shape[1:]))

        if isinstance(weight, Value):
            return one(weight)
        return self.dense(Matrix((1, *weight.shape[1:]), weight.encoding, tuple(map(one, weight.parts))))

    def dense(self, weight: Value | Matrix) -> Value:
        """The weight itself, float32: what `Encoding.decode` gives."""
        if isinstance(weight, Value):
            return weight
        if weight.encoding in QUANTIZED_PANELS:
            whole = self.concatenate(self._halves_of(weight), 2)  # [P, G, g, 16]
            return self.reshape(self.transpose(whole, (0, 3, 1, 2)), weight.shape)
        if weight.encoding in ("int8", "int4"):
            low, high = self._halves_of(weight)
            return self.reshape(self.concatenate([low, high], low.rank - 1), weight.shape)
        (array,) = weight.parts
        if weight.encoding.endswith("panels"):
            array = self.reshape(self.transpose(array, (0, 2, 1)), weight.shape)
        return self.as_f32(array)

    def as_f32(self, x: Value) -> Value:
        """x in float32; nothing is written where it is."""
        return x if x.dtype == "f32" else self.convert(x, "f32")

    def rounded(self, x: Value, dtype: str = "") -> Value:
        """x in this type, or in what the graph computes in; nothing is written where it is."""
        dtype = dtype or self.compute
        return x if x.dtype == dtype else self.convert(x, dtype)

    def _nibbles(self, packed: Value) -> tuple[Value, Value]:
        """The first and the last half of each group: [..., G, g/2] each."""
        low = self.and_(packed, self.constant(15, packed.dtype, packed.shape))
        high = self.shift_right_logical(packed, self.constant(4, packed.dtype, packed.shape))
        return self.as_f32(low), self.as_f32(high)

    def _halves_of(self, weight: Matrix) -> tuple[Value, Value]:
        """The first and the last half of each group of the weight itself: [..., G, g/2] each, or [P, G, g/2, 16]."""
        int8, panels = of_precision(weight.encoding) == "int8", weight.encoding in QUANTIZED_PANELS
        scale = weight.parts[2] if int8 else weight.parts[1]
        if int8:
            low, high = (self.as_f32(part) for part in weight.parts[:2])
        else:
            low, high = self._nibbles(weight.parts[0])
        scale = self._per_group(scale, low, panels)
        low, high = self.multiply(low, scale), self.multiply(high, scale)
        if not int8:
            minimum = self._per_group(weight.parts[2], low, panels)
            low, high = self.add(low, minimum), self.add(high, minimum)
        return low, high

    def _per_group(self, x: Value, like: Value, panels: bool = False) -> Value:
        """x [..., G] broadcast to [..., G, g]; in panels, x [P, G, 16] to [P, G, g, 16]."""
        return self.broadcast_in_dim(x, like.shape, (0, 1, 3) if panels else range(x.rank))

    def _x_halves(self, x: Value, like: Value) -> tuple[Value, Value]:
        """The halves of each group of one token's x [1, K], broadcast to [N, G, g/2] each."""
        _, G, half = like.shape
        grouped = self.reshape(x, (1, G, 2 * half))
        halves = (self.slice(grouped, (0, 0, at), (1, G, at + half)) for at in (0, half))
        low, high = (self.broadcast_in_dim(h, like.shape, (0, 1, 2)) for h in halves)
        return low, high

    def _dealt(self, x: Value, weight: Matrix) -> list[tuple[Value, Matrix]]:
        """One token's x [1, K] and a weight, their groups dealt out in turns: the products of the hands add up to theirs."""
        N, K = weight.shape
        G = weight.parts[0].shape[1]
        hands = hands_of(G)
        if hands == 1:
            return [(x, weight)]

        def hand(part: Value, first: int, hint: str) -> Value:
            rest = part.rank - 2
            return self.slice(part, (0, first, *[0] * rest), part.shape, (1, hands, *[1] * rest), hint)

        grouped = self.reshape(x, (1, G, K // G))
        dealt = []
        for first in range(hands):
            parts = tuple(hand(part, first, part.name.rpartition(".")[2]) for part in weight.parts)
            own = self.reshape(hand(grouped, first, "x"), (1, K // hands))
            dealt.append((own, Matrix((N, K // hands), weight.encoding, parts)))
        return dealt

    def _summed(self, terms: Value, dimensions: tuple[int, ...]) -> Value:
        """The sums over these dimensions as one row, [1, N]."""
        sums = self.reduce(terms, self.constant(0.0, "f32"), dimensions, "add")
        return self.reshape(sums, (1, sums.shape[0] * (sums.shape[1] if sums.rank == 2 else 1)))


# ---- strategies: how x is multiplied with a weight that is held in some way


def dot(b: MatrixBuilder, x: Value, weight: Matrix) -> Value:
    """A product with the float32 weight."""
    return b.product(x, b.dense(weight))


def dot_halves(b: MatrixBuilder, x: Value, weight: Matrix) -> Value:
    """A product with the first halves of all groups, plus one with the last halves: put together, they would be copied."""
    low, high = b._halves_of(weight)  # [N, G, g/2] each
    _, G, half = low.shape
    grouped = b.reshape(x, (x.shape[0], G, 2 * half))
    y = [
        b.dot_general(b.slice(grouped, (0, 0, at), (x.shape[0], G, at + half)), w, contracting_dimensions=((1, 2), (1, 2)))
        for at, w in ((0, low), (half, high))
    ]  # fmt: skip
    return b.add(*y)


def dot_panels(b: MatrixBuilder, x: Value, weight: Matrix) -> Value:
    """A product with all panels at once."""
    y = b.dot_general(x, b.as_f32(weight.parts[0]), contracting_dimensions=((1,), (1,)))  # [T, P, 16]
    return b.reshape(y, (x.shape[0], weight.shape[0]))


def dot_each_panel(b: MatrixBuilder, x: Value, weight: Matrix) -> Value:
    """A batch of products: for one with all panels at once the compiler would transpose the weight, and pack it again."""
    w = b.as_f32(weight.parts[0])  # [P, K, 16]
    T, N = x.shape[0], weight.shape[0]
    x = b.broadcast_in_dim(x, (w.shape[0], *x.shape), (1, 2))
    y = b.dot_general(x, w, contracting_dimensions=((2,), (1,)), batching_dimensions=((0,), (0,)))  # [P, T, 16]
    return b.reshape(b.transpose(y, (1, 0, 2)), (T, N))


def sum_columns(b: MatrixBuilder, x: Value, weight: Matrix) -> Value:
    """One token's x [1, K] with plain rows [N, K] -> [1, N], as a sum over columns."""
    w = b.as_f32(weight.parts[0])  # [N, K]
    return b._summed(b.multiply(w, b.broadcast_in_dim(x, w.shape, (0, 1))), (1,))


def sum_panels(b: MatrixBuilder, x: Value, weight: Matrix) -> Value:
    """One token's x [1, K] with panels [P, K, 16] -> [1, N], as a sum over columns."""
    w = b.as_f32(weight.parts[0])  # [P, K, 16]
    return b._summed(b.multiply(w, b.broadcast_in_dim(x, w.shape, (0, 1))), (1,))


def sum_int8(b: MatrixBuilder, x: Value, weight: Matrix) -> Value:
    """One token's x [1, K] with int8 groups -> [1, N]: terms are scaled after they are multiplied."""

    def terms(x: Value, weight: Matrix) -> Value:
        low, high, scale = (b.as_f32(part) for part in weight.parts)  # [N, G, g/2] twice, [N, G]
        x_low, x_high = b._x_halves(x, low)
        found = b.add(b.multiply(low, x_low), b.multiply(high, x_high))
        return b.multiply(found, b._per_group(scale, found))

    return b._summed(reduce(b.add, [terms(*hand) for hand in b._dealt(x, weight)]), (1, 2))


def sum_int4(b: MatrixBuilder, x: Value, weight: Matrix) -> Value:
    """One token's x [1, K] with int4 groups -> [1, N]: weights are decoded, then multiplied."""

    def terms(x: Value, weight: Matrix) -> Value:
        low, high = b._halves_of(weight)  # [N, G, g/2] each
        x_low, x_high = b._x_halves(x, low)
        return b.add(b.multiply(low, x_low), b.multiply(high, x_high))

    return b._summed(reduce(b.add, [terms(*hand) for hand in b._dealt(x, weight)]), (1, 2))


def dot_group_panels(b: MatrixBuilder, x: Value, weight: Matrix) -> Value:
    """A product with the first halves of all groups in panels, plus one with the last halves."""
    halves = b._halves_of(weight)  # [P, G, g/2, 16] each
    _, G, half, _ = halves[0].shape
    T, N = x.shape[0], weight.shape[0]
    grouped = b.reshape(x, (T, G, 2 * half))
    y = [
        b.dot_general(b.slice(grouped, (0, 0, at), (T, G, at + half)), w, contracting_dimensions=((1, 2), (1, 2)))
        for at, w in zip((0, half), halves, strict=True)
    ]  # [T, P, 16] each
    # Of a sum that is returned and multiplied further IREE 3.13 makes one dispatch with the last product, whose stack is too small.
    return b.reshape(b.optimization_barrier(b.add(*y)), (T, N))


def sum_group_panels(b: MatrixBuilder, x: Value, weight: Matrix) -> Value:
    """A few tokens' x [T, K] with groups in panels -> [T, N]: 16 outputs of all tokens at once.

    With tokens as x's last axis, IREE 3.13 keeps T vectors of 16 sums in registers, decodes 16 weights, and adds a number of x
    times them to each: nothing is decoded twice, written to memory, or added up across a vector. It does so where it moves no
    transpose through reshapes. Four terms are added before the sum takes them: one instruction of an add and a product each.
    """
    halves = b._halves_of(weight)  # [P, G, g/2, 16] each
    P, G, half, _ = halves[0].shape
    T, N = x.shape[0], weight.shape[0]
    quarter = half // 2
    columns = b.reshape(b.transpose(x, (1, 0)), (G, 2 * half, T))
    shape = (P, T, PANEL, G, quarter)

    def term(at: int) -> Value:
        w = b.slice(halves[at // half], (0, 0, at % half, 0), (P, G, at % half + quarter, PANEL))
        part = b.slice(columns, (0, at, 0), (G, at + quarter, T))
        return b.multiply(b.broadcast_in_dim(w, shape, (0, 3, 4, 2)), b.broadcast_in_dim(part, shape, (3, 4, 1)))

    terms = reduce(b.add, map(term, range(0, 2 * half, quarter)))
    y = b.reduce(terms, b.constant(0.0, "f32"), (3, 4), "add")  # [P, T, 16]
    return b.reshape(b.transpose(y, (1, 0, 2)), (T, N))


@dataclass(frozen=True)
class Strategy:
    """A way to write a product. measured: the figures that it was chosen for."""

    write: Callable[[MatrixBuilder, Value, Matrix], Value]
    measured: str


@dataclass(frozen=True)
class Strategies:
    """The strategies of one encoding: for the product of one token, or of at most `few`, and for a prompt's."""

    token: Strategy
    prompt: Strategy
    few: int = 1

    def of(self, tokens: int) -> Strategy:
        """The one for so many tokens."""
        return self.token if tokens <= self.few else self.prompt


# IREE 3.13, llvm-cpu, 2 cores of an Intel Xeon (Sapphire Rapids) that read 32 GB/s. One token: weights of [1536, 576] and
# [576, 1536], in 10^9 of them per second. A prompt: of 256 tokens, in GFLOP/s, with data tiling.
_PROMPT = Strategy(dot, "for shapes that panels do not fit; the float32 weight is written first")
_HALVES = Strategy(dot_halves, "SmolLM2, a prompt of 256: 366 ms, of 32: 81; with the halves put together 423 and 116")
_EACH_PANEL = Strategy(
    dot_each_panel, "222; all panels at once 174 to 195, plain rows 168 to 193, and without data tiling 48, 118 and 140"
)
_PANELS = Strategy(dot_panels, "SmolLM2, a prompt of 256: bf16 370 ms, f16 363; each panel by itself 369 and 378")
_GROUP_PANELS = Strategy(
    sum_group_panels,
    "8 tokens, one thread, 10^9 weights a second: int4 5.9, int8 6.2; of rows, unpacked first, 1.7; plain float32 rows 4.2",
)
_DOT_GROUP_PANELS = Strategy(dot_group_panels, "SmolLM2, a chunk of 256: int4 735 ms, int8 795; in rows 796 and 795")
STRATEGIES: dict[str, Strategies] = {
    "panels": Strategies(
        Strategy(sum_panels, "7.0, 0.88 of the bandwidth; dot_general of plain rows 4.8"), _EACH_PANEL
    ),
    "bf16.panels": Strategies(Strategy(sum_panels, "10.5 to 13; sums of plain rows 4.7"), _PANELS),
    "f16.panels": Strategies(Strategy(sum_panels, "11 to 15; sums of plain rows 4.7"), _PANELS),
    "bf16": Strategies(Strategy(sum_columns, "4.7; for shapes that panels do not fit"), _PROMPT),
    "f16": Strategies(Strategy(sum_columns, "4.7; for shapes that panels do not fit"), _PROMPT),
    "int8": Strategies(
        Strategy(
            sum_int8,
            "21; without hands 18.9, and 17.1 on znver3; with both halves in one array 1.7 and 12.3; in panels 5.8",
        ),
        _HALVES,
    ),
    "int4": Strategies(
        Strategy(
            sum_int4,
            "22; without hands 18.8, and 14 on znver3; with the minimum as a product of its own 11.2; in panels 8",
        ),
        _HALVES,
    ),
    "int8.panels": Strategies(_GROUP_PANELS, _DOT_GROUP_PANELS, FEW),
    "int4.panels": Strategies(_GROUP_PANELS, _DOT_GROUP_PANELS, FEW),
}
