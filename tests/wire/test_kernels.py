"""The kernels give the bits of NumPy: every half, random bits, every operation, around tiles, in any place."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mpiring.wire.arrays import host
from mpiring.wire.reduce import arithmetic, kernel_code, kernels
from mpiring.wire.reduce.kernels import Form

from wire import reference
from wire.kernel_checks import (
    CASES,
    NUMBERS,
    agree,
    any_bits,
    by_kernel,
    by_numpy,
    check_case,
    check_every_half,
    check_pairs,
    check_places,
    check_rounding,
)
from wire.reference import BFLOAT16

pytestmark = pytest.mark.untraced

needs_llvmlite = pytest.mark.skipif(
    bool(kernels.missing()), reason=f"no kernels here: {kernels.missing()}"
)


@pytest.fixture(autouse=True)
def numpy_does_not_warn():
    with np.errstate(all="ignore"):
        yield


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


# ---- other processors -------------------------------------------------------------------------------

OTHERS = [
    ("aarch64", "generic"),
    ("aarch64", "neoverse-n1"),
    ("x86_64", "haswell"),
    ("x86_64", "sapphirerapids"),
]


def calls_in(machine, cpu, form):
    """The function calls in a kernel for another processor; there is nobody to answer them."""
    from llvmlite import binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple(f"{machine}-unknown-linux-gnu")
    module = binding.parse_assembly(kernel_code.write(form))
    code = target.create_target_machine(cpu=cpu, opt=3).emit_assembly(module)
    return [
        line
        for line in code.splitlines()
        if line.split()[:1] in (["bl"], ["blr"], ["callq"])
    ]


@needs_llvmlite
@pytest.mark.parametrize("machine, cpu", OTHERS)
def test_other_processors_need_no_functions(machine, cpu):
    for dtype, op in product(NUMBERS, ("sum", "max")):
        assert calls_in(machine, cpu, Form(op, (dtype,) * 3, dtype, 2)) == []


@needs_llvmlite
def test_a_processor_without_float16_would_need_some():
    """So the test above can fail, and ``has_float16`` is there for a reason."""
    assert calls_in("x86_64", "x86-64", Form("sum", ("float16",) * 2, "float16"))


@needs_llvmlite
@pytest.mark.parametrize(
    "cpu, dtypes", [("haswell", NUMBERS), ("x86-64", ["bfloat16", "float32", "uint8"])]
)
def test_the_bits_do_not_depend_on_the_processor(monkeypatch, cpu, dtypes):
    """Code for older processors than this one."""
    from llvmlite import binding

    if platform.machine() != "x86_64" or not binding.get_host_cpu_features().get(
        "avx2"
    ):
        pytest.skip("this is no x86-64 processor with AVX2")
    compiler = kernels._compiler()
    monkeypatch.setattr(compiler, "_cpu", {"cpu": cpu, "features": ""})
    for dtype, op in product(dtypes, ("sum", "avg", "max")):
        if op in reference.ops_of(dtype):
            check_case(op, dtype, 3, compiler.compile)


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
        assert host.by_addresses("sum", [piece, piece], [piece], 1) is None
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


@needs_llvmlite
def test_b54_kernels_take_bounded_memory():
    """Of those that nobody has 64 stay; who has one may go on with it, and so may who asks for it again."""
    kernels.find.cache_clear()
    gc.collect()
    before = len(kernels._alive)
    first = Form("sum", ("float32", "float32"), "float32")
    held = kernels.find(first)
    assert held is not None
    ops, dtypes = ("sum", "prod", "min", "max"), ("float32", "float64")
    for op, dtype, many, outs in product(ops, dtypes, (3, 4, 5, 6), (1, 2, 3)):
        assert kernels.find(Form(op, (dtype,) * many, dtype, outs)) is not None
    gc.collect()
    assert len(kernels._alive) <= before + kernels._KEPT + 1
    assert kernels.find(first) is held
    x, y = np.full(50, 8, "f4"), np.ones(50, "f4")
    held(x.ctypes.data, y.ctypes.data, y.ctypes.data, 50)
    assert (y == 9).all()


PROGRAM = """
import sys, types
import numpy as np
{before}
from mpiring.wire.reduce import kernels
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
    advice = "llvmlite is not installed: pip install llvmlite"
    assert told_by("sys.modules['llvmlite'] = None") == f"True False {advice}"


def test_a_llvmlite_that_cannot_do_it():
    fake = (
        "m = types.ModuleType('llvmlite'); m.binding = types.ModuleType('binding'); "
        "sys.modules['llvmlite'] = m; sys.modules['llvmlite.binding'] = m.binding"
    )
    assert told_by(fake).startswith("True True llvmlite cannot compile here: Attribute")
