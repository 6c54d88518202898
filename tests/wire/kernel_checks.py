"""What shows that kernels have the bits of NumPy: each check raises AssertionError if they have not.

A check takes ``find``, which gives the kernel of a form, so that it can be shown to fail on wrong ones.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from mpiring.wire.arrays import host
from mpiring.wire.reduce import arithmetic, kernel_code, kernels
from mpiring.wire.reduce.kernels import Form

from wire import reference
from wire.reference import HALVES

NUMBERS = sorted(kernel_code.DTYPES)
CASES = [(op, dtype) for dtype in NUMBERS for op in reference.ops_of(dtype)]
WIDE = kernel_code.TILE // 4  # elements in a tile of float32


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
