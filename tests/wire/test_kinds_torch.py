"""What torch's tensors have that others have not: autograd, lazy views, layouts, dtypes of their own."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest

from mpiring.wire.arrays import KINDS, kind_code, kind_of
from mpiring.wire.collectives import rooted
from mpiring.wire.ring.messages import Message, exchange
from mpiring.wire.transport.device import Carriage
from mpiring.wire.transport.local import LocalNetwork
from mpiring.wire.transport.position import Position

from wire.libraries import TORCH, check, need
from wire.ranks import Ranks

need(TORCH)


@pytest.fixture
def torch():
    return TORCH.xp


def allreduce(xs, outs=None):
    outs = outs or [None] * len(xs)
    return Ranks(len(xs)).call("allreduce", lambda r: (xs[r], "sum", outs[r]))


def broadcast(xs, root=0):
    return Ranks(len(xs)).run(
        lambda r, c: rooted.broadcast(c, xs[r], root, "auto", Position())
    )


def refused(x, kind=TypeError):
    """What an all-reduce says to ``x`` on rank 1, on every rank."""
    good = TORCH.asarray(np.ones(3, "f4"))
    results = allreduce([good, x])
    assert {type(error) for error in results} == {kind}
    assert all("allreduce: rank 1: " in str(error) for error in results)
    return str(results[0])


# ---- autograd --------------------------------------------------------------------------------------


def test_a_result_has_no_graph(torch):
    w = torch.ones(3, requires_grad=True)
    for result in allreduce([w * 2, w * 4]):
        assert result.tolist() == [6, 6, 6]
        assert not result.requires_grad and result.grad_fn is None


def test_parameters_are_filled_and_stay_parameters(torch):
    parameters = [torch.nn.Parameter(torch.full((2,), r + 1.0)) for r in range(2)]
    for p, result in zip(parameters, broadcast(parameters, root=1)):
        assert result is p and p.requires_grad and p.is_leaf
        assert p.tolist() == [2, 2]
    for p, result in zip(parameters, allreduce(parameters, parameters)):
        assert result is p and p.tolist() == [4, 4]


def test_autograd_hears_of_a_write(torch):
    """A backward pass that needs the values of before raises, as after any in-place operation."""
    w = torch.ones(3, requires_grad=True)
    saved = [torch.full((3,), 8.0**r) for r in range(2)]
    loss = (w * saved[0]).sum()  # its gradient by w is saved[0]
    allreduce(saved, saved)
    assert saved[0].tolist() == [9, 9, 9]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("what", ["allreduce", "broadcast from it", "send"])
def test_autograd_hears_of_no_write_where_there_is_none(torch, what):
    w = torch.ones(3, requires_grad=True)
    saved = torch.full((3,), 8.0)
    loss = (w * saved).sum()
    if what == "allreduce":
        allreduce([saved, saved])
    elif what == "broadcast from it":
        assert broadcast([saved, None])[0] is saved
    else:
        network = LocalNetwork(1)
        out = torch.zeros(3)
        calls = [Message(True, saved, 0, 0), Message(False, out, 0, 0)]
        network.run([exchange(Carriage(network.transports[0], "direct"), calls)])
        assert out.tolist() == [8, 8, 8]
    loss.backward()
    assert w.grad is not None and w.grad.tolist() == [8, 8, 8]


def test_inference_mode(torch):
    with torch.inference_mode():
        xs = [torch.full((2,), 8.0**r) for r in range(2)]
        for result, x in zip(allreduce(xs, xs), xs):
            assert result is x and x.tolist() == [9, 9]
        assert allreduce(xs)[0].is_inference()


def test_new_tensors_are_where_x_is_whatever_the_defaults(torch):
    xs = [torch.full((2,), 8.0**r) for r in range(2)]
    with torch.device("meta"):
        results = allreduce(xs)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        results += allreduce(xs)
    finally:
        torch.set_default_dtype(before)
    for result in results:
        assert result.device.type == "cpu" and result.dtype == torch.float32
        assert result.tolist() == [9, 9]


# ---- views -----------------------------------------------------------------------------------------


def lazy_views(torch):
    x = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    return {"conjugated": x.conj(), "negated": x.conj().imag}


@pytest.mark.parametrize("name", ["conjugated", "negated"])
def test_lazy_views_are_inputs_and_no_outputs(torch, name):
    view = lazy_views(torch)[name]
    assert view.is_conj() or view.is_neg()
    want = view.resolve_conj().resolve_neg()
    other = torch.zeros_like(want)
    for result in allreduce([view, other]):
        check(TORCH, result, want.numpy())
    for result in broadcast([view, None]):
        check(TORCH, result, want.numpy())
    for results in (
        allreduce([want, want], [None, view]),
        allreduce([view, view], [None, view]),
        broadcast([want, view]),
    ):
        assert {type(error) for error in results} == {ValueError}
        assert all("rank 1" in str(error) for error in results)
    assert view.resolve_conj().resolve_neg().equal(want)


def test_a_tensor_whose_elements_share_memory(torch):
    out = torch.zeros(1).expand(3)
    x = torch.ones(3)
    assert {type(e) for e in allreduce([x, x], [None, out])} == {ValueError}
    for result in allreduce([x, out]):
        assert result.tolist() == [1, 1, 1]


def test_views_of_every_kind(torch):
    base = torch.arange(24.0).reshape(2, 3, 4)
    for view in (
        base.permute(2, 0, 1),
        base[:, 1],
        base[..., ::3],
        base.unfold(2, 2, 1),
        base.diagonal(),
        base[1, 2, 3],
        base.to(memory_format=torch.contiguous_format).mT,
    ):
        for result in allreduce([view, torch.zeros(view.shape)]):
            check(TORCH, result, view.numpy().copy())
            assert result.is_contiguous()


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_channels_last_in_place(torch, dtype):
    dtype = getattr(torch, dtype)
    make = {"dtype": dtype, "memory_format": torch.channels_last}
    xs = [torch.full((2, 3, 2, 2), 8.0**r).to(**make) for r in range(3)]
    strides = xs[0].stride()
    for result, x in zip(allreduce(xs, xs), xs):
        assert result is x and x.stride() == strides
        assert x.unique().tolist() == [73] and x.dtype == dtype


# ---- refused ---------------------------------------------------------------------------------------

REFUSED = {
    "sparse": (lambda t: t.eye(3).to_sparse(), "layout torch.sparse_coo: pass x.to_d"),
    "CSR": (lambda t: t.eye(3).to_sparse_csr(), "layout torch.sparse_csr: pass x.to_"),
    "nested": (
        lambda t: t.nested.nested_tensor([t.ones(2), t.ones(3)], layout=t.jagged),
        "a nested tensor: pass its parts, x.unbind",
    ),
    "old nested": (
        lambda t: t.nested.nested_tensor([t.ones(2), t.ones(3)]),
        "a nested tensor: pass its parts, x.unbind",
    ),
    "meta": (
        lambda t: t.ones(3, device="meta"),
        "a tensor on meta; tensors on cpu and cuda work: pass x.cpu()",
    ),
    "quantized": (
        lambda t: t.quantize_per_tensor(t.ones(3), 0.1, 0, t.quint8),
        "dtype torch.quint8 is not supported; supported: bfloat16, bool",
    ),
    "float8": (
        lambda t: t.ones(3).to(t.float8_e4m3fn),
        "dtype torch.float8_e4m3fn is not supported; supported: bfloat16, bool",
    ),
    "complex32": (
        lambda t: t.ones(3, dtype=t.complex32),
        "dtype torch.complex32 is not supported",
    ),
    "distributed": (
        lambda t: t.ones(3).as_subclass(distributed(t)),
        "a Distributed, which several ranks hold: pass x.to_local()",
    ),
    "no storage": (lambda t: fake(t), "a FakeTensor has no memory to read: "),
    "all zero": (
        lambda t: t._efficientzerotensor(3),
        "a Tensor has no memory to read:  ?Cannot convert a ZeroTensor",
    ),
}


def distributed(torch):
    """A class like DTensor, which needs a process group."""

    def detach(self):
        raise RuntimeError("not for you")

    methods = {"to_local": lambda self: self, "detach": detach}
    return type("Distributed", (torch.Tensor,), methods)


def fake(torch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(3)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(torch, name):
    make, words = REFUSED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are experimental
        x = make(torch)
        with pytest.raises(TypeError, match=words):
            kind_of(x).as_array(x)
        assert len(refused(x).splitlines()) == 1


def test_inside_a_function_transform(torch):
    def loss(x):
        with pytest.raises(TypeError, match="a Tensor has no memory to read"):
            kind_of(x).as_array(x)
        return x.sum()

    torch.func.grad(loss)(torch.ones(3))


def test_a_tensor_on_cuda_needs_cupy(torch, monkeypatch):
    """With a CUDA version, as a torch for CUDA has it."""

    x = torch.ones(3).as_subclass(type("OnCuda", (torch.Tensor,), {"is_cuda": True}))
    monkeypatch.setitem(sys.modules, "cupy", None)
    for version, advice in (
        ("13.0", "pip install 'cupy-cuda13x[ctk]'"),
        ("12.8", "pip install 'cupy-cuda12x[ctk]'"),
        (None, "pip install 'cupy-cuda12x[ctk]' or pip install 'cupy-cuda13x[ctk]'"),
    ):
        monkeypatch.setattr(torch.version, "cuda", version)
        assert refused(x).endswith(f"tensor on CUDA is reduced by CuPy: {advice}")


def test_bfloat16_needs_ml_dtypes(torch, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    x = torch.ones(3, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="pip install ml_dtypes"):
        kind_of(x).as_array(x)


def test_the_kinds_name(torch):
    assert KINDS[kind_code(kind_of(torch.ones(3)))] == "torch"
