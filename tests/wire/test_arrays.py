"""Arrays of every shape that a user may pass: what is seen flat, what is refused, what overlaps."""

from __future__ import annotations

import decimal
import sys
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from mpiring.wire.arrays import (
    KINDS,
    NUMPY,
    Kind,
    kind_code,
    kind_named,
    kind_of,
    kinds_here,
    needed_for,
)

from wire import reference
from wire.ranks import Ranks
from wire.reference import same_bits

BASE = np.arange(48.0).reshape(4, 6, 2)


def unaligned(x):
    raw = np.zeros(x.nbytes + 1, np.uint8)
    view = raw[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    assert not view.flags.aligned
    return view


class Odd(np.ndarray):
    """A subclass that must not be asked."""

    def __array_finalize__(self, obj):
        pass


# name -> array; all of them float64
VIEWS = {
    "contiguous": BASE,
    "Fortran order": np.asfortranarray(BASE),
    "transposed": BASE.T,
    "strided": BASE[:, 1::2],
    "negative strides": BASE[::-1, :, ::-1],
    "0-d": np.array(2.5),
    "0-d view": np.broadcast_to(BASE[1, 1, 1], ()),
    "empty": BASE[:0],
    "empty in the middle": np.empty((3, 0, 2)),
    "one element": BASE[2:3, 3:4, :1],
    "unaligned": unaligned(BASE),
    "big-endian": BASE.astype(">f8"),
    "little-endian": BASE.astype("<f8"),
    "big-endian, strided": BASE.astype(">f8")[::2],
    "broadcast": np.broadcast_to(BASE[0, 0], (3, 2)),
    "sliding window": np.lib.stride_tricks.sliding_window_view(BASE.ravel(), 3),
    "subclass": BASE.view(Odd),
    "matrix": np.asmatrix(BASE[0]),
    "field of a structure": np.array([(1, 2.5), (3, 4.5)], [("a", "i2"), ("b", "f8")])[
        "b"
    ],
    "memory map": None,
}


@pytest.fixture(params=VIEWS)
def view(request, tmp_path):
    if request.param == "memory map":
        x = np.memmap(tmp_path / "array", "f8", "w+", shape=(5, 2))
        x[...] = BASE[0, :5]
        return x
    return VIEWS[request.param]


def read_only(x):
    x = x.view()
    x.flags.writeable = False
    return x


# ---- seen flat ------------------------------------------------------------------------------------


def test_flat(view):
    kind = kind_of(view)
    array = kind.as_array(view)
    assert kind is NUMPY and type(array) is np.ndarray
    flat = kind.flat(array)
    assert same_bits(flat, np.array(view, "f8").ravel())
    assert flat.flags.c_contiguous and flat.flags.aligned and flat.dtype.isnative
    shares = flat.size > 0 and np.shares_memory(flat, array)
    assert shares == (kind.is_flat(array) and flat.size > 0)
    copy = kind.copied(array)
    assert same_bits(copy, flat) and not np.shares_memory(copy, array)
    # Packing copies only what is not flat already.
    already = array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative
    assert kind.is_flat(array) == already


@pytest.mark.parametrize("size", [1, 3])
def test_allreduce_of_a_view(view, size):
    xs = [view, *(np.array(view, "f8", subok=False) * 8.0**r for r in range(1, size))]
    before = np.array(view)
    factor = sum(8.0**r for r in range(size))
    for result in Ranks(size, 1, None).call("allreduce", lambda r: (xs[r],)):
        assert same_bits(result, np.asarray(before, "f8") * factor)
        assert result.shape == view.shape
    assert np.array_equal(np.array(view), before)


@pytest.mark.parametrize("size", [1, 3])
def test_a_view_in_place(view, size):
    x = np.asanyarray(view)
    if not NUMPY.is_writeable(x):
        x = read_only(x)
        results = Ranks(size).call("allreduce", lambda r: (x, "sum", x))
        assert {type(error) for error in results} == {ValueError}
        return
    layouts = [like(x) for _ in range(size)]
    for r, layout in enumerate(layouts):
        layout[...] = np.asarray(x) * 8.0**r
    results = Ranks(size, 1, None).call(
        "allreduce", lambda r: (layouts[r], "sum", layouts[r])
    )
    factor = sum(8.0**r for r in range(size))
    for result, layout in zip(results, layouts):
        assert result is layout
        assert np.array_equal(np.asarray(result), np.asarray(x) * factor)


def like(x):
    """An array of the same type, strides and byte order, in memory of its own."""
    low, high = np.lib.array_utils.byte_bounds(x)
    raw = np.zeros(high - low + 64, np.uint8)
    start = x.__array_interface__["data"][0] - low if x.size else 0
    shift = 0 if x.flags.aligned else 1
    view = np.ndarray(x.shape, x.dtype, raw, start + shift, x.strides)
    return view.view(type(x)) if isinstance(x, (Odd, np.matrix)) else view


def test_columns_in_place_leave_the_others_alone():
    """B04."""
    o = np.arange(24.0).reshape(4, 6)
    arrays = [o * (r + 1) for r in range(3)]
    columns = [a[:, 1::2] for a in arrays]
    results = Ranks(3, 1, None).call(
        "allreduce", lambda r: (columns[r], "sum", columns[r])
    )
    for r, (array, column, result) in enumerate(zip(arrays, columns, results)):
        assert result is column
        assert (array[:, 1::2] == 6 * o[:, 1::2]).all()
        assert (array[:, ::2] == (r + 1) * o[:, ::2]).all()


# ---- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number, dtype",
    [
        (3, "int64"),
        (2.5, "float64"),
        (1 + 2j, "complex128"),
        (np.float32(1.5), "float32"),
        (np.uint8(200), "uint8"),
        (ml_dtypes.bfloat16(1.5), "bfloat16"),
    ],
)
def test_numbers_are_0d_arrays(number, dtype):
    for result in Ranks(2, 1, None).call("allreduce", lambda r: (number,)):
        assert result.shape == () and result.dtype.name == dtype
        assert result == np.asarray(number) + np.asarray(number)


def test_a_bool_is_a_number():
    for result in Ranks(2).call("allreduce", lambda r: (r == 0, "max")):
        assert same_bits(result, np.array(True))


# ---- refused --------------------------------------------------------------------------------------

REFUSED = {
    "list": ([1.0, 2.0], "list is no array mpiring knows: pass np.asarray"),
    "tuple": ((1.0,), "tuple is no array mpiring knows: pass np.asarray"),
    "string": ("text", "builtins.str is no array"),
    "bytes": (b"text", "builtins.bytes is no array"),
    "bytearray": (bytearray(4), "bytearray is no array"),
    "None": (None, "NoneType is no array"),
    "dict": ({"w": 1}, "dict is no array"),
    "decimal": (decimal.Decimal(1), "decimal.Decimal is no array"),
    "fraction": (Fraction(1), "fractions.Fraction is no array"),
    "large integer": (2**70, "dtype object is not supported"),
    "masked": (np.ma.array([1.0], mask=[True]), "masked array .* pass x.filled"),
    "object": (np.array([None]), "dtype object is not supported; supported: bfloat16"),
    "text": (np.array(["abc"]), "dtype <U3 is not supported"),
    "numpy string": (np.str_("abc"), "is not supported"),
    "date": (np.array(["2020-01-01"], "M8[D]"), "dtype datetime64.* is not supported"),
    "duration": (np.array([1], "m8[s]"), "dtype timedelta64.* is not supported"),
    "structure": (np.zeros(2, "f4,f4"), "is not supported"),
    "longdouble": (np.zeros(2, "longdouble"), "is not supported"),
    "void": (np.zeros(2, "V4"), "is not supported"),
    "float8": (np.zeros(2, ml_dtypes.float8_e4m3fn), "float8_e4m3fn is not supported"),
    "int4": (np.zeros(2, ml_dtypes.int4), "int4 is not supported"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    x, words = REFUSED[name]
    with pytest.raises(TypeError, match=words):
        kind = kind_of(x)
        kind.dtype_name(kind.as_array(x))
    results = Ranks(2).call("allreduce", lambda r: (x if r == 1 else 1.0,))
    assert {type(error) for error in results} == {TypeError}
    assert all("rank 1" in str(error) for error in results)


def test_every_name_of_a_dtype_is_known():
    for code in "?bBhHiIlLqQefdFD":
        x = np.zeros(2, code)
        assert NUMPY.dtype_name(x) in reference.DTYPES
        assert NUMPY.dtype_name(x.astype(x.dtype.newbyteorder())) == NUMPY.dtype_name(x)
    assert NUMPY.dtype_name(np.zeros(1, ml_dtypes.bfloat16)) == "bfloat16"
    for name in reference.DTYPES:
        assert NUMPY.itemsize(name) == reference.dtype_of(name).itemsize
        assert NUMPY.empty(3, name).dtype == reference.dtype_of(name)


def test_a_kind_by_name(monkeypatch):
    assert kind_named("numpy") is NUMPY
    for name, library in (
        ("cupy", "cupy"),
        ("torch", "torch"),
        ("torch CUDA", "torch and cupy"),
        ("jax", "jax"),
        ("jax CUDA", "jax and cupy"),
        ("numba", "numba.cuda and cupy"),
        ("nolib", "nolib"),
        ("nolib CUDA", "nolib CUDA"),
    ):
        for module in ("cupy", "torch", "jax", "numba.cuda"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        words = (
            f"another rank has {name} arrays, and this one has not imported {library}"
        )
        with pytest.raises(TypeError, match=f"{words}$"):
            kind_named(name)
    assert kinds_here() == ("numpy",)


def test_a_kind_has_a_place_for_other_ranks():
    """A byte says a kind, and a bit of a byte that a rank can make it."""
    assert len(KINDS) <= 8 and len(set(KINDS)) == len(KINDS)
    assert kind_code(NUMPY) == 0 and needed_for("numpy") == "numpy"
    unknown = Kind()
    unknown.name = "nolib"
    assert KINDS[kind_code(unknown)] == "another" and needed_for("another") == ""


# ---- outputs --------------------------------------------------------------------------------------


def test_out_may_be_strided_or_of_another_byte_order():
    for out in (
        np.zeros(10)[::2],
        np.zeros(5, ">f8"),
        np.zeros((5, 1), order="F")[:, 0],
    ):
        outs = [out, like(out)]
        results = Ranks(2, 1, None).call(
            "allreduce", lambda r: (np.arange(5.0), "sum", outs[r])
        )
        for result, given_out in zip(results, outs):
            assert result is given_out and result.tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize(
    "out",
    [
        read_only(np.zeros(3)),
        np.broadcast_to(np.zeros(1), 3),
        np.lib.stride_tricks.as_strided(np.zeros(1), (3,), (0,)),
        np.lib.stride_tricks.as_strided(np.zeros(2), (3,), (4,)),
        np.frombuffer(bytes(24)),
        np.ma.zeros(3),
    ],
    ids=[
        "read-only",
        "broadcast",
        "stride 0",
        "stride below itemsize",
        "bytes",
        "masked",
    ],
)
def test_out_that_cannot_be_written(out):
    results = Ranks(2).call(
        "allreduce", lambda r: (np.ones(3), "sum", out if r else None)
    )
    expected = TypeError if isinstance(out, np.ma.MaskedArray) else ValueError
    assert {type(error) for error in results} == {expected}
    assert all("rank 1" in str(error) for error in results)


def test_views_that_slicing_makes_have_places_of_their_own():
    for x in (*VIEWS.values(), BASE[1:, ::3].transpose(2, 0, 1), BASE[::-2, 1:2, ::-1]):
        if x is not None and x.flags.writeable:
            assert NUMPY.is_writeable(x)
    for strides in ((8, 8), (16, 8), (8, 40)):  # 2 x 3 of float64
        x = np.lib.stride_tricks.as_strided(np.zeros(99), (2, 3), strides)
        assert NUMPY.is_writeable(x) == (strides == (8, 40))
    x = np.lib.stride_tricks.as_strided(np.zeros(99), (3, 2), (16, 8))
    assert NUMPY.is_writeable(x)


# ---- overlaps -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["allreduce", "reduce_scatter", "allgather"])
@pytest.mark.parametrize("path", ["ring", "direct"])
def test_out_overlaps_x_at_every_offset(name, path):
    """The right answer, at every offset and with every stride; never a wrong one (promise 1)."""
    size, count = 2, 6
    for offset in range(13):
        for step in (1, 2, -1):
            buffers = [np.arange(60.0) + 100 * r for r in range(size)]
            xs = [buffer[6:12] for buffer in buffers]
            originals = [x.copy() for x in xs]
            length = {"allreduce": count, "reduce_scatter": count // size}.get(
                name, 2 * count
            )
            reach = slice(offset, offset + length * abs(step))
            outs = [buffer[reach][::step] for buffer in buffers]
            arguments = (path,) if name == "allgather" else ("sum", "ring", path)

            def given_to(r):
                head, *tail = arguments
                return (
                    (xs[r], outs[r], head)
                    if not tail
                    else (xs[r], head, outs[r], *tail)
                )

            results = Ranks(size, offset, None).call(name, given_to)
            total = sum(originals)
            for r, (result, out) in enumerate(zip(results, outs)):
                want = {
                    "allreduce": total,
                    "reduce_scatter": total[3 * r : 3 * r + 3],
                    "allgather": np.concatenate(originals),
                }[name]
                assert result is out and result.tolist() == want.tolist()


@examples(max_examples=150)
@given(
    starts=st.tuples(*[st.integers(0, 9)] * 2),
    steps=st.tuples(*[st.sampled_from([1, 2, 3, -1, -2])] * 2),
)
def test_overlaps_is_never_a_wrong_no(starts, steps):
    buffer = np.zeros(40)
    a, b = (buffer[s : s + 20][::step][:6] for s, step in zip(starts, steps))
    if np.shares_memory(a, b):
        assert NUMPY.overlaps(a, b)


def test_the_same_memory():
    x = np.zeros(8)
    assert NUMPY.same_memory(x, x[:]) and NUMPY.same_memory(x[2:4], x[2:4])
    assert not NUMPY.same_memory(x, x[:4]) and not NUMPY.same_memory(x[1:5], x[:4])
    assert not NUMPY.same_memory(x, x.copy())
