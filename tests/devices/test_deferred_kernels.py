"""The pretended device runs CUDA C: types, shapes, 16-bit floats to the bit, and a folder of compiled kernels."""

from __future__ import annotations

import ctypes
import tempfile
import threading

import numpy as np
import pytest

from devices import compiled, kernels
from devices.deferred import is_noise, reach
from devices.trials import device

ml_dtypes = pytest.importorskip("ml_dtypes")

DTYPES = [
    *"bool int8 int16 int32 int64 uint8 uint16 uint32 uint64".split(),
    *"float16 bfloat16 float32 float64 complex64 complex128".split(),
]


@pytest.fixture
def cupy():
    with device() as cupy:
        yield cupy


def test_a_kernel_is_queued(cupy):
    add = cupy.ElementwiseKernel("T a, T b", "T c", "c = a + b", "add")
    x = cupy.asarray(np.arange(4.0))
    out = cupy.empty(4)
    assert add(x, x, out) is out and is_noise(reach(out))
    assert out.get().tolist() == [0, 2, 4, 6]
    assert add(x, x).get().tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_copied_to_the_bit(cupy, name):
    random = np.random.default_rng(1)
    dtype = kernels.dtype_named(name)
    host = random.integers(0, 256, 24 * dtype.itemsize).astype("u1")
    host = (host % 2 if name == "bool" else host).view(dtype).reshape(4, 6)
    x = cupy.asarray(host)
    copy = cupy.ElementwiseKernel("T a", "T b", "b = a", "copy")
    named = cupy.ElementwiseKernel(f"{name} a", f"{name} b", "b = a", "copy")
    for kernel in (copy, named):
        assert kernel(x).get().tobytes() == host.tobytes()
        assert kernel(x.T).get().tobytes() == host.T.tobytes()
        out = cupy.zeros((9, 4), dtype)
        kernel(x[::-1, ::2].T, out[1::3])
        assert out.get()[1::3].tobytes() == host[::-1, ::2].T.tobytes()
        assert not out.get()[::3].astype(bool).any()


@pytest.mark.parametrize("name", ["int8", "uint8", "int32", "uint64", "int64"])
def test_integers_wrap(cupy, name):
    info = np.iinfo(name)
    host = np.array([info.max, info.min, 7], name)
    x = cupy.asarray(host)
    kernel = cupy.ElementwiseKernel("T a, T b", "T s, T p", "s = a + b; p = a * b")
    for got, want in zip(kernel(x, x), (host + host, host * host)):
        assert np.array_equal(got.get(), want)


def test_arithmetic_is_rounded_as_numpys(cupy):
    random = np.random.default_rng(2)
    for name, part in (("f4", "f4"), ("f8", "f8"), ("c8", "f4"), ("c16", "f8")):
        a, b, c = random.normal(size=(3, 1000)).astype(part).view(name)
        kernel = cupy.ElementwiseKernel("T a, T b, T c", "T d", "d = a + b + c")
        x, y, z = (cupy.asarray(each) for each in (a, b, c))
        assert np.array_equal(kernel(x, y, z).get(), a + b + c)
        if name[0] == "f":  # a fused multiply-add would round once
            kernel = cupy.ElementwiseKernel("T a, T b, T c", "T d", "d = a * b + c")
            assert np.array_equal(kernel(x, y, z).get(), a * b + c)
            scaled = cupy.ElementwiseKernel("T a, int64 n_", "T d", "d = a / T(n_)")
            assert np.array_equal(scaled(x, 3).get(), a / a.dtype.type(3))


def test_faces_of_cuda(cupy):
    x = cupy.asarray(np.array([1.5, np.nan, -np.inf, -0.0], "f4"))
    source = """
        T once = __fadd_rn(__fmul_rn(a, 2.0f), 1.0f);
        bits = __float_as_uint(once);
        kind = isnan(a) ? 1 : isinf(a) ? 2 : signbit(a) ? 3 : 0;
        least = min((int)i, 2);
        z = complex<float>(a, once);
        back = z.imag();
    """
    kernel = cupy.ElementwiseKernel(
        "T a",
        "uint32 bits, int8 kind, int64 least, complex64 z, T back",
        source,
        "faces",
    )
    bits, kind, least, z, back = (out.get() for out in kernel(x))
    once = np.array([4, np.nan, -np.inf, 1], "f4")
    assert bits[[0, 2, 3]].tolist() == once.view("u4")[[0, 2, 3]].tolist()
    assert kind.tolist() == [0, 1, 2, 3] and least.tolist() == [0, 1, 2, 2]
    assert z.imag.view("u4").tolist() == back.view("u4").tolist() == bits.tolist()
    assert np.array_equal(z.real, x.get(), equal_nan=True)


def test_numbers_and_broadcasting(cupy):
    kernel = cupy.ElementwiseKernel("T a, T b, int64 m", "T c", "c = a * T(m) + b")
    x = cupy.asarray(np.arange(6.0, dtype="f4").reshape(2, 3))
    row = cupy.asarray(np.array([10, 20, 30], "f4"))
    assert kernel(x, 0.5, 2).get().tolist() == [[0.5, 2.5, 4.5], [6.5, 8.5, 10.5]]
    assert kernel(row, x[:, :1], 1).get().tolist() == [[10, 20, 30], [13, 23, 33]]
    scalar = kernel(x[1, 2], np.float32(1), True)
    assert scalar.shape == () and scalar.get() == 6 and scalar.dtype == np.float32
    assert kernel(x[:0], 1, 1).shape == (0, 3)


def test_raw_arrays_index_and_preamble(cupy):
    kernel = cupy.ElementwiseKernel(
        "raw T a, int64 m",
        "T b",
        "b = twice(a[(i + m) % n])",
        "turn",
        preamble="template <typename X> __device__ X twice(X x) { return x + x; }",
    )
    x = cupy.asarray(np.arange(5))
    out = kernel(x, 2, cupy.empty(5, int))
    assert out.get().tolist() == [4, 6, 8, 0, 2]
    only_raw = cupy.ElementwiseKernel("raw T a", "raw T b", "b[n - 1 - i] = a[i]")
    only_raw(x, out, size=5)
    assert out.get().tolist() == [4, 3, 2, 1, 0]
    no_return = cupy.ElementwiseKernel("T a", "T b", "b = a", no_return=True)
    assert no_return(x, out) is None and out.get().tolist() == [0, 1, 2, 3, 4]


def test_what_a_kernel_refuses(cupy):
    make = cupy.ElementwiseKernel
    add = make("T a, T b", "T c", "c = a + b", "add")
    echo = make("float64 a", "float64 b", "b = a")
    x, y = cupy.ones(3), cupy.ones(3, "f4")
    for error, words, use in (
        (TypeError, "Wrong number of arguments", lambda: add(x)),
        (TypeError, "Type is mismatched. b float32 float64", lambda: add(x, y)),
        (TypeError, "must be cupy.ndarray", lambda: add(x, x, 1.0)),
        (ValueError, "Out shape is mismatched", lambda: add(x, x, cupy.empty(1))),
        (TypeError, "T is not determined", lambda: add(1, 2)),
        (ValueError, "Loop size is undecided", lambda: echo(1)),
        (ValueError, "broadcast", lambda: add(x, cupy.ones(2))),
        (TypeError, "cannot take", lambda: add(*[cupy.empty(3, "m8[s]")] * 2)),
        (ValueError, "Invalid parameter", lambda: make("T", "T b", "b = 1")),
        (ValueError, "Reserved name", lambda: make("T n", "T b", "b = n")),
    ):
        with pytest.raises(error, match=words):
            use()
    broken = make("T a", "T b", "b = no_such_thing(a)", "broken")
    with pytest.raises(compiled.CompileException, match="no_such_thing"):
        broken(x)


# ---- 16-bit floats --------------------------------------------------------------------------------


def narrow_floats():
    """All values of both 16-bit floats, the midpoints between them, and their neighbours; random bits."""
    every = np.arange(65536, dtype="u2")
    exact = [every.view(t).astype("f4") for t in (np.float16, ml_dtypes.bfloat16)]
    with np.errstate(all="ignore"):
        middles = [(x[:-1].astype("f8") + x[1:]).astype("f4") / 2 for x in exact]
    around = np.concatenate([*exact, *middles]).view("u4")
    random = np.random.default_rng(3).integers(0, 2**32, 1 << 18, "u4")
    return np.concatenate([around, around + 1, around - 1, random]).view("f4")


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_16_bit_floats_are_numpys_and_ml_dtypes(cupy, name):
    dtype = kernels.dtype_named(name)
    every = np.arange(65536, dtype="u2").view(dtype)
    wide = cupy.ElementwiseKernel("T a", "float32 b", "b = a", "widen")
    narrow = cupy.ElementwiseKernel("float32 a", "T b", "b = T(a)", "narrow")
    with np.errstate(all="ignore"):
        got, want = wide(cupy.asarray(every)).get(), every.astype("f4")
        assert_same_numbers(got, want, "u4")
        floats = narrow_floats()
        out = cupy.empty(floats.size, dtype)
        got, want = narrow(cupy.asarray(floats), out).get(), floats.astype(dtype)
        assert_same_numbers(got, want, "u2")


def assert_same_numbers(got, want, bits):
    """The same bits; a NaN is any NaN."""
    nan = np.isnan(want)
    assert nan.any() and not nan.all()
    assert np.array_equal(np.isnan(got), nan)
    assert np.array_equal(got.view(bits)[~nan], want.view(bits)[~nan])


def test_the_comparison_of_bits_can_fail():
    zeros, nan = np.array([0.0, np.nan], "f4"), np.array([np.nan, 0.0], "f4")
    assert_same_numbers(zeros, zeros.copy(), "u4")
    for wrong in (nan, -zeros, zeros + np.array([1, 0], "f4")):
        with pytest.raises(AssertionError):
            assert_same_numbers(wrong, zeros, "u4")


def test_16_bit_arithmetic_is_in_float32(cupy):
    for name in ("float16", "bfloat16"):
        dtype = kernels.dtype_named(name)
        host = np.array([2048, 1, 1, 1, 3], "f4").astype(dtype)
        x = cupy.asarray(host)
        source = "float sum = a; for (int k = 0; k < 4; ++k) sum += float(b); c = sum"
        kernel = cupy.ElementwiseKernel("T a, T b", "T c", source, "sum")
        want = (host[0].astype("f4") + 4 * host.astype("f4")).astype(dtype)
        assert np.array_equal(kernel(x[:1], x).get(), want)


# ---- the folder of compiled kernels ---------------------------------------------------------------


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    compiled.function.cache_clear()
    monkeypatch.setattr(compiled, "folder", lambda: tmp_path)
    yield tmp_path
    compiled.function.cache_clear()


SOURCE = 'extern "C" void answer(int *x) { *x = 42; }'


def test_what_is_compiled_is_kept(empty_folder, monkeypatch):
    for times in range(2):
        number = ctypes.c_int()
        compiled.function(SOURCE, "answer")(ctypes.byref(number))
        assert number.value == 42
        assert [path.suffix for path in empty_folder.iterdir()] == [".so"]
        compiled.function.cache_clear()  # another process
        monkeypatch.setattr(compiled, "_compile", None)
    monkeypatch.setattr(compiled, "FLAGS", (*compiled.FLAGS, "-O3"))
    with pytest.raises(TypeError):  # that would be another library
        compiled.function(SOURCE, "answer")


def test_several_that_compile_at_the_same_time(empty_folder):
    errors = []

    def compile_it():
        try:
            library = compiled.library_of(SOURCE)
            assert library.exists()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=compile_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(list(empty_folder.iterdir())) == 1


def test_what_cannot_be_compiled_leaves_nothing(empty_folder):
    with pytest.raises(compiled.CompileException):
        compiled.function("no C++", "answer")
    assert not list(empty_folder.iterdir())


def test_only_a_folder_of_ones_own_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    compiled.folder.cache_clear()
    own = compiled.folder()
    assert own.parent == tmp_path and own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o777)  # anybody may have put something there
    compiled.folder.cache_clear()
    assert compiled.folder() != own and compiled.folder().stat().st_mode & 0o77 == 0
    compiled.folder.cache_clear()
