"""What a reduction kernel does, written down as LLVM's intermediate code.

A kernel is a loop over tiles: load the tile from every operand, widen, combine from left to right, divide, round, and
store the result to every output.  A tile is a vector of :data:`TILE` bytes of accumulator; what is left at the end of
the arrays is done by the same code with vectors of one element.

Rules (promises 3 and 4: the bits of :func:`mpiring.wire.reduce.arithmetic.combine`):

* 16-bit floats add and multiply in float32 and are rounded once, to the nearest, ties to even;
* no fast-math flag and no fused multiply-add: LLVM contracts nothing that it is not told to;
* a NaN that is rounded to 16 bits becomes *the* NaN, positive and quiet: which payload a sum of two has, compilers
  choose;
* min and max keep the left operand if it is NaN, else the right one unless the left is smaller or larger; of float16,
  as NumPy has it, the left one also if the two are equal, which shows in zeros;
* a tile is read from all operands before it is written anywhere, so that an output may be any of the operands;
* nothing is taken to be aligned.

A bfloat16 is the upper half of a float32, so that integers widen and round it; what CPUs have for it flushes small
numbers to zero.  Where all is bfloat16, two of them are one word, and nothing has to be moved between lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from .arithmetic import HALVES, accumulator

# Bytes of accumulator: two of AVX-512's registers, four of AVX2's, eight of SSE's or NEON's.
TILE = 128

_BITS = {f"{u}int{bits}": bits for u in ("", "u") for bits in (8, 16, 32, 64)}
_BITS |= {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}
DTYPES = frozenset(_BITS)


class Form(NamedTuple):
    """What a kernel is made for.

    Attributes:
        op: of :data:`mpiring.wire.reduce.arithmetic.OPS`; an ``"avg"`` divides at the end.
        operands: their dtypes by name, from left to right: that of ``out``, or what it accumulates in.
        out: the dtype of the outputs.
        outs: how many outputs.
    """

    op: str
    operands: tuple[str, ...]
    out: str
    outs: int = 1

    @property
    def wide(self) -> str:
        """The dtype to combine in."""
        return accumulator(self.op, self.out)

    @property
    def is_sound(self) -> bool:
        """Whether there is code for it."""
        dtypes = {*self.operands, self.out}
        wide = {accumulator(self.op, dtype) for dtype in dtypes}
        return dtypes <= DTYPES and wide == {self.wide}


def write(form: Form) -> str:
    """The function ``kernel(operand, ..., out, ..., count, divisor)``, the divisor for an average only.

    Operands and outputs are addresses.  Needs llvmlite.
    """
    from llvmlite import ir

    pointers = [ir.PointerType()] * (len(form.operands) + form.outs)
    number = ir.IntType(64)
    divisors = [_type(ir, form.wide)] if form.op == "avg" else []
    signature = ir.FunctionType(ir.VoidType(), [*pointers, number, *divisors])
    function = ir.Function(ir.Module("mpiring"), signature, "kernel")
    operands = function.args[: len(form.operands)]
    outs = function.args[len(form.operands) : len(pointers)]
    count = function.args[len(pointers)]

    build = ir.IRBuilder(function.append_basic_block("entry"))
    lanes = TILE * 8 // _BITS[form.wide]
    tiled = build.and_(count, number(-lanes))
    is_words = {form.out, *form.operands} == {"bfloat16"} and form.wide == "float32"
    whole = (_Words if is_words else _Tile)(ir, build, form, lanes)
    single = _Tile(ir, build, form, 1)
    loops = ((number(0), tiled, lanes, whole), (tiled, count, 1, single))
    for start, stop, width, tile in loops:
        with _loop(ir, build, start, stop, width) as index:
            total = tile.result(operands, index, function.args[-1])
            for out in outs:
                build.store(total, tile.place(form.out, out, index), align=1)
    build.ret_void()
    return str(function.module)


class _Tile:
    """Writes down what is done with ``width`` elements at once."""

    def __init__(self, ir: Any, build: Any, form: Form, width: int) -> None:
        self.ir = ir
        self.build = build
        self.form = form
        self.width = width

    def result(self, operands: Sequence[Any], index: Any, divisor: Any) -> Any:
        """The operands' elements from ``index`` on, combined and finished, as they are stored."""
        form = self.form
        # Loaded before anything is stored.
        tiles = [
            self.widened(dtype, self.load(dtype, operand, index))
            for dtype, operand in zip(form.operands, operands)
        ]
        total = self.total(tiles, divisor)
        return total if form.out == form.wide else self.narrowed(total)

    def total(self, tiles: Sequence[Any], divisor: Any) -> Any:
        """Wide tiles combined from left to right, and divided."""
        total = tiles[0]
        for tile in tiles[1:]:
            total = self.step(total, tile)
        if self.form.op == "avg":
            total = self.build.fdiv(total, self.same(self.form.wide, divisor))
        return total

    def step(self, a: Any, b: Any) -> Any:
        """``a op b``"""
        build, wide = self.build, self.form.wide
        op = "sum" if self.form.op == "avg" else self.form.op
        if wide in ("float32", "float64") and op in ("sum", "prod"):
            return build.fadd(a, b) if op == "sum" else build.fmul(a, b)
        if op in ("sum", "prod"):
            return build.add(a, b) if op == "sum" else build.mul(a, b)
        sign = "<" if op == "min" else ">"
        if "int" in wide:
            compare = build.icmp_unsigned if wide[0] == "u" else build.icmp_signed
            return build.select(compare(sign, a, b), a, b)
        # 16-bit floats are compared as float32, and chosen as they are.
        x, y = (self.as_float(v) for v in (a, b)) if wide in HALVES else (a, b)
        is_first = build.fcmp_ordered(sign + "=" * (wide == "float16"), x, y)
        is_nan = build.fcmp_unordered("uno", x, x)
        return build.select(build.or_(is_first, is_nan), a, b)

    def load(self, dtype: str, address: Any, index: Any) -> Any:
        place = self.place(dtype, address, index)
        return self.build.load(place, align=1, typ=self.vector(_type(self.ir, dtype)))

    def place(self, dtype: str, address: Any, index: Any) -> Any:
        """The address of the element at ``index``."""
        kind = _type(self.ir, dtype)
        return self.build.gep(address, [index], source_etype=kind)

    def widened(self, dtype: str, x: Any) -> Any:
        return x if dtype == self.form.wide else self.as_float(x, dtype)

    def as_float(self, x: Any, dtype: str = "") -> Any:
        """16-bit floats in float32, which has them all."""
        ir, build = self.ir, self.build
        if (dtype or self.form.wide) == "float16":
            halves = build.bitcast(x, self.vector(ir.HalfType()))
            return build.fpext(halves, self.vector(ir.FloatType()))
        words = build.zext(x, self.vector(ir.IntType(32)))
        words = build.shl(words, self.same("int32", 16))
        return build.bitcast(words, self.vector(ir.FloatType()))

    def narrowed(self, x: Any) -> Any:
        """float32 rounded to the 16-bit float of the outputs."""
        ir, build = self.ir, self.build
        bits = self.vector(ir.IntType(16))
        if self.form.out == "bfloat16":
            upper = build.lshr(self.rounded(x), self.same("int32", 16))
            return build.trunc(upper, bits)
        is_nan = build.fcmp_unordered("uno", x, x)
        halves = build.fptrunc(x, self.vector(ir.HalfType()))
        rounded = build.bitcast(halves, bits)
        return build.select(is_nan, self.same("int16", 0x7E00), rounded)

    def rounded(self, x: Any) -> Any:
        """float32 as words whose upper halves are it as bfloat16; the lower ones are what is left over."""
        ir, build = self.ir, self.build
        words = build.bitcast(x, self.vector(ir.IntType(32)))
        # One more in the upper half if the lower one is over its middle, or on it and the upper one is odd.
        last = build.and_(words, self.same("int32", 0x10000))
        is_odd = build.icmp_unsigned("!=", last, self.same("int32", 0))
        words = build.add(
            words,
            build.select(
                is_odd, self.same("int32", 0x8000), self.same("int32", 0x7FFF)
            ),
        )
        is_nan = build.fcmp_unordered("uno", x, x)
        return build.select(is_nan, self.same("int32", 0x7FC00000), words)

    def same(self, dtype: str, x: Any) -> Any:
        """A tile of equal elements: an integer, or a value of that dtype."""
        ir, build = self.ir, self.build
        kind = _type(ir, dtype)
        if isinstance(x, int):
            return self.vector(kind)([x] * self.width)
        first = build.insert_element(
            self.vector(kind)(ir.Undefined), x, ir.IntType(32)(0)
        )
        everywhere = ir.VectorType(ir.IntType(32), self.width)([0] * self.width)
        return build.shuffle_vector(first, first, everywhere)

    def vector(self, kind: Any) -> Any:
        return self.ir.VectorType(kind, self.width)


class _Words(_Tile):
    """The same where all is bfloat16: words of two, of which the even and the odd ones are combined apart."""

    def __init__(self, ir: Any, build: Any, form: Form, width: int) -> None:
        super().__init__(ir, build, form, width // 2)

    def result(self, operands: Sequence[Any], index: Any, divisor: Any) -> Any:
        build, floats = self.build, self.vector(self.ir.FloatType())
        sixteen, upper = self.same("int32", 16), self.same("int32", 0xFFFF0000)
        words = [
            build.load(
                self.place("bfloat16", operand, index),
                align=1,
                typ=self.vector(self.ir.IntType(32)),
            )
            for operand in operands
        ]
        even = [build.bitcast(build.shl(word, sixteen), floats) for word in words]
        odd = [build.bitcast(build.and_(word, upper), floats) for word in words]
        low = build.lshr(self.rounded(self.total(even, divisor)), sixteen)
        high = build.and_(self.rounded(self.total(odd, divisor)), upper)
        return build.or_(low, high)


def _type(ir: Any, dtype: str) -> Any:
    """How an element of that dtype is in memory."""
    if dtype in ("float32", "float64"):
        return ir.FloatType() if dtype == "float32" else ir.DoubleType()
    return ir.IntType(_BITS[dtype])


@contextmanager
def _loop(ir: Any, build: Any, start: Any, stop: Any, step: int) -> Iterator[Any]:
    """What is written inside is done for each index from ``start`` below ``stop``."""
    before = build.block
    test, body, after = (build.append_basic_block() for _ in range(3))
    build.branch(test)
    build.position_at_end(test)
    index = build.phi(start.type)
    index.add_incoming(start, before)
    build.cbranch(build.icmp_signed("<", index, stop), body, after)
    build.position_at_end(body)
    yield index
    index.add_incoming(build.add(index, start.type(step)), build.block)
    build.branch(test)
    build.position_at_end(after)
