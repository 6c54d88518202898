"""The kernels give the bits of NumPy: every half, random bits, every operation, around tiles, in any place."""

from __future__ import annotations

import subprocess
import sys
import types
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mpiring.wire import arithmetic, kernel_code, kernels
from mpiring.wire.arrays import host
from mpiring.wire.kernels import Form

from wire import reference
from wire.reference import BFLOAT16, HALVES

needs_llvmlite = pytest.mark.skipif(
    bool(kernels.missing()), reason=f"no kernels here: {kernels.missing()}"
)
NUMBERS = sorted(kernel_code.DTYPES)
CASES = [(op, dtype) for dtype in NUMBERS for op in reference.ops_of(dtype)]
WIDE = kernel_code.TILE // 4  # elements in a tile of float32


@pytest.fixture(autouse=True)
def numpy_does_not_warn():
    with np.errstate(all="ignore"):
        yield


def specials(dtype):
    """NaN, infinity, zeros of both signs, the smallest numbers, and usual ones."""
    small = np.array([1, 3], f"u{dtype.itemsize}").view(dtype)
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.5])
    return np.concatenate([values.astype(dtype), small, -small])


def any_bits(name, count, seed):
    """Random bits, and many of the values that need care."""
    dtype = reference.dtype_of(name)
    random = np.random.default_rng([seed, count])
    bits = random.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)
    if name in reference.FLOATS:
        special = specials(dtype)
        usual = random.standard_normal(count).astype(dtype)
        chosen = random.integers(0, 3, count)
        special = special[random.integers(0, len(special), count)]
        bits = np.where(chosen == 0, bits, np.where(chosen == 1, special, usual))
    return bits.astype(dtype)


def by_kernel(op, operands, outs, size=1, find=kernels.find):
    """As ``host.combine``, but never by NumPy."""
    names = [host.NUMPY.dtype_name(x) for x in (*operands, outs[0])]
    kernel = find(Form(op, tuple(names[:-1]), names[-1], len(outs)))
    assert kernel is not None
    addresses = [x.ctypes.data for x in (*operands, *outs)]
    kernel(*addresses, outs[0].size, *([size] if op == "avg" else []))


def by_numpy(op, operands, outs, size=1):
    arithmetic.combine(np, op, operands, outs, size)


def agree(op, got, want):
    """Whether the bits are equal, but for what promise 3 leaves open: payloads, and the sign of a zero min or max.

    A result of 16 bits leaves nothing open: a rank that has no kernels may compute it too.
    """
    if got.dtype.kind == "f" and got.dtype.itemsize > 2:
        nan = np.isnan(want)
        got, want = np.where(nan, 0, got), np.where(np.isnan(got), 0, want)
        if op in ("min", "max"):
            got, want = got + 0, want + 0
    return reference.same_bits(got, want)


# ---- the checks: each raises AssertionError if the kernels are wrong --------------------------------


def check_every_half(find=kernels.find):
    for dtype in HALVES:
        every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
        for out_dtype, op in product((dtype, np.float32), ("sum", "prod", "avg")):
            got, want = (np.empty(1 << 16, out_dtype) for _ in range(2))
            by_kernel(op, [every], [got], 1, find)
            by_numpy(op, [every], [want], 1)
            assert agree(op, got, want)


def check_rounding(find=kernels.find):
    """Random float32, and the middle between each two neighbours of 16 bits with what is next to it."""
    bits = np.random.default_rng(1).integers(0, 1 << 32, 1 << 17, np.uint32)
    for dtype in HALVES:
        every = np.arange(1 << 16, dtype=np.uint16).view(dtype).astype(np.float32)
        above = np.concatenate([every[1:], every[:1]])
        middle = (every.astype(np.float64) + above).astype(np.float32) / np.float32(2)
        near = [np.nextafter(middle, np.float32(to)) for to in (-np.inf, np.inf)]
        values = np.concatenate([bits.view(np.float32), every, middle, *near])
        for op in ("sum", "avg"):
            got, want = (np.empty(values.size, dtype) for _ in range(2))
            by_kernel(op, [values], [got], 3, find)
            by_numpy(op, [values], [want], 3)
            assert reference.same_bits(got, want)


def check_case(op, dtype, operands, find=kernels.find, count=3 * WIDE + 5):
    """One operation: of contributions, of a sum so far and contributions, rounded and not."""
    wide = arithmetic.accumulator(op, dtype)
    values = [any_bits(dtype, count, r) for r in range(operands)]
    variants = [(values, dtype)]
    if wide != dtype:
        so_far = any_bits(wide, count, 9)
        variants += [(values, wide), ([so_far, *values[1:]], dtype)]
        variants += [([*values[1:], so_far], wide)]
    for (inputs, out), size in product(variants, (1, 3, 7) if op == "avg" else (1,)):
        got, want = (np.empty(count, reference.dtype_of(out)) for _ in range(2))
        by_kernel(op, inputs, [got], size, find)
        by_numpy(op, inputs, [want], size)
        assert agree(op, got, want)


def check_pairs(find=kernels.find):
    """What needs care, with each other."""
    for dtype in reference.FLOATS:
        values = specials(reference.dtype_of(dtype))
        a, b = np.repeat(values, len(values)), np.tile(values, len(values))
        for op in reference.ops_of(dtype):
            got, want = np.empty_like(a), np.empty_like(a)
            by_kernel(op, [a, b], [got], 3, find)
            by_numpy(op, [a, b], [want], 3)
            assert agree(op, got, want)


def check_places(find=kernels.find):
    """Every count around the edges of a tile; at odd addresses, over the operands, and nothing beside."""
    for dtype, op in (("bfloat16", "sum"), ("float16", "avg"), ("float32", "sum")):
        item = reference.dtype_of(dtype)
        for count in (0, 1, 2, WIDE - 1, WIDE, WIDE + 1, 2 * WIDE, 2 * WIDE + 3):
            # Whoever writes beside shall hit nothing else.
            rows = np.full((4, count * item.itemsize + 1024), 0xA5, np.uint8)
            before = rows.copy()
            start, stop = 507, 507 + count * item.itemsize
            *operands, apart = (row[start:stop].view(item) for row in rows)
            for r, operand in enumerate(operands):
                operand[...] = any_bits(dtype, count, r)
            want = np.empty(count, item)
            by_numpy(op, operands, [want], 3)
            by_kernel(op, operands, [*operands, apart], 3, find)
            assert (rows[:, :start] == before[:, :start]).all()
            assert (rows[:, stop:] == before[:, stop:]).all()
            assert all(agree(op, out, want) for out in (*operands, apart))


def check_all(find):
    check_places(find)
    check_pairs(find)
    check_every_half(find)
    check_rounding(find)
    for op, dtype in CASES:
        check_case(op, dtype, 3, find)


# ---- the kernels pass them ------------------------------------------------------------------------


@needs_llvmlite
@pytest.mark.parametrize(
    "check", [check_pairs, check_every_half, check_rounding, check_places]
)
def test_the_kernels_have_the_bits_of_numpy(check):
    check()


@needs_llvmlite
@pytest.mark.parametrize("operands", [1, 2, 3, kernels.MOST])
@pytest.mark.parametrize("op, dtype", CASES)
def test_every_operation(op, dtype, operands):
    check_case(op, dtype, operands)


@needs_llvmlite
@examples(max_examples=60, deadline=None)
@given(
    case=st.sampled_from(CASES),
    operands=st.integers(1, 4),
    tiles=st.integers(0, 3),
    more=st.integers(-2, 2),
)
def test_any_count_around_tiles(case, operands, tiles, more):
    lanes = kernel_code.TILE // reference.dtype_of(case[1]).itemsize
    op, dtype = case
    check_case(op, dtype, operands, count=max(0, tiles * lanes + more))


@needs_llvmlite
def test_bfloat16_keeps_its_smallest_numbers():
    """The CPU's own instruction for this rounding takes them for zero."""
    tiny = np.arange(1, 128, dtype=np.uint16).view(BFLOAT16)
    out = np.empty_like(tiny)
    by_kernel("sum", [tiny, np.zeros_like(tiny)], [out])
    assert reference.same_bits(out, tiny) and (out.astype(np.float64) > 0).all()


@needs_llvmlite
def test_halves_overflow_only_when_they_are_rounded():
    big = np.full(99, 60000, np.float16)
    out = np.empty_like(big)
    by_kernel("avg", [big, big, big], [out], 3)
    assert (out == big).all()
    by_kernel("sum", [big, big, -big], [out])
    assert (out == big).all()
    by_kernel("sum", [big, big], [out])
    assert (out == np.inf).all()


@needs_llvmlite
@pytest.mark.parametrize("op, dtype", CASES)
def test_the_code_says_what_it_must_not_assume(op, dtype):
    """No alignment, no arithmetic but IEEE's."""
    form = Form(op, (dtype,) * 3, dtype, 2)
    lines = kernel_code.write(form).splitlines()
    moves = [line for line in lines if " load " in line or "store " in line]
    assert len(moves) >= 2 * 5
    assert all(line.endswith("align 1") for line in moves)
    words = {word for line in lines for word in line.split()}
    assert not words & {"fast", "contract", "reassoc", "arcp", "nnan", "nsz", "nsw"}
    assert "fma" not in "".join(lines)


# ---- the checks can fail ----------------------------------------------------------------------------

SOURCE = Path(kernel_code.__file__).read_text()
MISTAKES = {
    "rounds ties up": ('self.same("int32", 0x7FFF)', 'self.same("int32", 0x8000)'),
    "rounds odd ones down": (
        'self.same("int32", 0x8000)',
        'self.same("int32", 0x7FFF)',
    ),
    "looks at the wrong bit": ("0x10000)", "0x20000)"),
    "lets NaN of bfloat16 overflow": (
        'return build.select(is_nan, self.same("int32", 0x7FC00000), words)',
        "return words",
    ),
    "keeps the payload of float16": (
        'build.select(is_nan, self.same("int16", 0x7E00), rounded)',
        "rounded",
    ),
    "has another NaN": ("0x7E00", "0x7E01"),
    "folds from the right": (
        "total = tiles[0]",
        "tiles = tiles[::-1]; total = tiles[0]",
    ),
    "has the accumulator on the right": (
        "self.step(total, tile)",
        "self.step(tile, total)",
    ),
    "leaves out an operand": ("for tile in tiles[1:]", "for tile in tiles[2:]"),
    "does not divide": ('if self.form.op == "avg":', 'if self.form.op == "mean":'),
    "multiplies by the reciprocal": (
        "total = self.build.fdiv(total, self.same(self.form.wide, divisor))",
        "one = self.build.fdiv(total.type([1.0] * self.width), self.same(self.form.wide, divisor))\n"
        "            total = self.build.fmul(total, one)",
    ),
    "adds products": ("build.fmul(a, b)", "build.fadd(a, b)"),
    "subtracts integers": ("build.add(a, b)", "build.sub(a, b)"),
    "has signs where there are none": (
        "build.icmp_unsigned if",
        "build.icmp_signed if",
    ),
    "has no signs": ("else build.icmp_signed", "else build.icmp_unsigned"),
    "takes the smaller for the larger": ('op == "min" else', 'op == "max" else'),
    "takes another of equal halves": ('"=" * (wide == "float16")', '""'),
    "takes NaN for a number": ("build.or_(is_first, is_nan)", "is_first"),
    "leaves out the end": ("(tiled, count, 1, single)", "(tiled, tiled, 1, single)"),
    "goes too far": ("(number(0), tiled, lanes", "(number(0), count, lanes"),
    "leaves out tiles": ("start.type(step)", "start.type(2 * step)"),
    "swaps even and odd": (
        "build.or_(low, high)",
        "build.or_(build.shl(low, sixteen), build.lshr(high, sixteen))",
    ),
    "stores to the first output only": ("for out in outs:", "for out in outs[:1]:"),
}


def mutant(old, new):
    """``find`` for kernels written by a changed ``kernel_code``."""
    assert old in SOURCE
    module = types.ModuleType("mpiring.wire.mutant")
    module.__package__ = "mpiring.wire"
    sys.modules[module.__name__] = module
    exec(SOURCE.replace(old, new), module.__dict__)
    made: dict[Form, object] = {}

    def find(form):
        if form not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(kernels, "write", module.write)
                made[form] = kernels._compiler().compile(form)
        return made[form]

    return find


@needs_llvmlite
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_seen(name):
    with pytest.raises(AssertionError):
        check_all(mutant(*MISTAKES[name]))


@needs_llvmlite
def test_without_a_mistake_nothing_is_seen():
    check_all(mutant("align=1", "align=1"))


# ---- with and without kernels -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "op, dtype", [(op, d) for d in reference.DTYPES for op in reference.ops_of(d)]
)
@pytest.mark.parametrize("count", [1, 1001, 20001])
def test_combine_is_the_same_with_and_without(monkeypatch, op, dtype, count):
    """In place of the first operand and in another place, from 1 to more operands than a kernel takes."""
    many = kernels.MOST + 2
    values = [any_bits(dtype, count, r) for r in range(many if count < 9999 else 4)]
    if dtype in ("bool", *reference.COMPLEX):
        values = [reference.varied(dtype, count, r) for r in range(len(values))]

    def results():
        got = []
        for k, size in product((1, 2, 3, len(values)), (1, 3)):
            operands = [value.copy() for value in values[:k]]
            outs = [operands[0], np.empty_like(operands[0])]
            host.combine(op, operands, outs, size)
            host.NUMPY.fold(op, operands, operands[-1])
            host.NUMPY.finish(op, size, operands[-1], operands[-1])
            got += [*outs, operands[-1]]
        return got

    with_kernels = results()
    monkeypatch.setattr(kernels, "find", lambda form: None)
    for a, b in zip(with_kernels, results()):
        assert agree(op, a, b)


@pytest.mark.parametrize(
    "op, dtype",
    [
        ("avg", "float16"),
        ("sum", "bfloat16"),
        ("max", "float16"),
        ("prod", "float32"),
        ("avg", "complex64"),
    ],
)
@pytest.mark.parametrize("operands, outs", [(1, 17), (16, 16), (17, 1), (36, 20)])
def test_more_arrays_than_a_kernel_takes(op, dtype, operands, outs):
    """As on a node of many cores."""
    count = arithmetic.BLOCK_BYTES // 4 + 3
    values = [reference.varied(dtype, count, r) for r in range(operands)]
    want = np.empty_like(values[0])
    by_numpy(op, values, [want], operands)
    places = [*values, *(np.empty_like(want) for _ in range(outs))][:outs]
    host.combine(op, values, places, operands)
    assert all(reference.same_bits(place, want) for place in places)


def test_arrays_that_are_not_flat_are_for_numpy():
    """They never come; but a kernel would read beside them."""
    x = np.arange(64, dtype=np.float16)
    for piece in (x[::2], x.astype(">f2")):
        assert host._kernel("sum", [piece, piece], [piece], 1)[0] is None
        want = (piece + piece).astype(np.float16)
        out = np.empty(piece.size, np.float16)
        host.combine("sum", [piece, piece], [out])
        assert reference.same_bits(out, want)


def test_what_has_no_kernel():
    for form in (
        Form("min", ("bool", "bool"), "bool"),
        Form("prod", ("complex64",) * 2, "complex64"),
        Form("sum", ("int32",), "int8"),
        Form("max", ("float32", "float16"), "float16"),
        Form("sum", ("float16", "bfloat16"), "float32", kernels.MOST + 1),
        Form("sum", ("float32",) * (kernels.MOST + 1), "float32"),
    ):
        assert kernels.find(form) is None


@needs_llvmlite
def test_a_cpu_that_does_not_convert_float16(monkeypatch):
    """LLVM would call a function that is not there, which ends the process."""
    monkeypatch.setattr(kernels._compiler(), "has_float16", False)
    kernels.find.cache_clear()
    try:
        assert kernels.find(Form("sum", ("float16",) * 2, "float16")) is None
        assert kernels.find(Form("sum", ("float16",) * 2, "float32")) is None
        assert kernels.find(Form("sum", ("bfloat16",) * 2, "bfloat16")) is not None
    finally:
        kernels.find.cache_clear()


PROGRAM = """
import sys, types
import numpy as np
{before}
from mpiring.wire import kernels
from mpiring.wire.arrays.host import combine
x, y = np.full(50, 2048, np.float16), np.ones(50, np.float16)
combine("sum", [np.ones(9999, "f4")] * 2, [np.ones(9999, "f4")])
before = "llvmlite" in sys.modules
combine("sum", [x, y, y], [x])
assert (x == 2050).all()
print(before, sys.modules.get("llvmlite") is not None, kernels.missing())
"""


def told_by(before):
    job = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=Path(kernels.__file__).parents[2],
    )
    assert job.stderr == ""
    return job.stdout.strip()


@needs_llvmlite
def test_llvmlite_is_imported_when_it_is_needed():
    assert told_by("") == "False True"


def test_without_llvmlite():
    advice = "llvmlite is not installed: pip install 'mpiring[fast]'"
    assert told_by("sys.modules['llvmlite'] = None") == f"True False {advice}"


def test_a_llvmlite_that_cannot_do_it():
    fake = (
        "m = types.ModuleType('llvmlite'); m.binding = types.ModuleType('binding'); "
        "sys.modules['llvmlite'] = m; sys.modules['llvmlite.binding'] = m.binding"
    )
    assert told_by(fake).startswith("True True llvmlite cannot compile here: Attribute")
