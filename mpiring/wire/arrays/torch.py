"""torch: tensors on the CPU are seen as NumPy arrays of the same memory, tensors on CUDA as CuPy arrays.

Rules:

* autograd sees no collective: what is read is the tensor's values, and a result has no graph.  A write is as one
  under ``torch.no_grad()``, and the tensor's version counter is told of it, so that a backward pass that needs the
  values of before raises instead of computing with the new ones;
* lazy views (conjugated or negated, no memory holds their values) are inputs by a copy, and cannot be written;
* on CUDA, X is torch's current stream on the tensor's device, and new tensors come from torch's own allocator in
  the order of X.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from ..reduce.arithmetic import DTYPES, Array
from . import foreign
from .cupy import CupyKind
from .host import Kind, as_dtype

_LIBRARY = "torch"


class TorchKind(Kind):
    """torch's tensors on the CPU; one for each tensor.

    Args:
        torch: the module.
    """

    name = "torch"

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self._is_copy = False  # what is seen of the tensor

    def is_array(self, x: object) -> bool:
        return True

    def as_array(self, x: Any) -> Array:
        torch = self.torch
        try:
            tensor = x.detach()
            self._is_copy = tensor.is_conj() or tensor.is_neg()
            if self._is_copy:
                tensor = tensor.resolve_conj().resolve_neg()
            is_bfloat16 = tensor.dtype == torch.bfloat16  # NumPy does not know it
            seen = (tensor.view(torch.int16) if is_bfloat16 else tensor).numpy()
        except (RuntimeError, TypeError) as error:
            _refuse(torch, x, error)
        return seen.view(as_dtype("bfloat16")) if is_bfloat16 else seen

    def is_writeable(self, x: Array) -> bool:
        return not self._is_copy and super().is_writeable(x)

    def new(self, shape: int | tuple[int, ...], dtype: Any) -> tuple[Any, Array]:
        theirs = self.torch.empty(shape, dtype=getattr(self.torch, dtype), device="cpu")
        return theirs, self.as_array(theirs)

    def written(self, theirs: Any) -> None:
        _count_write(self.torch, theirs)


class TorchCudaKind(CupyKind):
    """torch's tensors on CUDA; one for each tensor.

    Args:
        torch: the module.
        cupy: the module.
    """

    name = "torch CUDA"

    def __init__(self, torch: Any, cupy: Any) -> None:
        super().__init__(cupy)
        self.torch = torch
        self._is_copy = False
        self._theirs_in_torch: Any = None  # X, once the kind is bound

    def is_array(self, x: object) -> bool:
        return True

    def as_array(self, x: Any) -> Array:
        name = str(x.dtype).partition(".")[2]
        if name not in DTYPES or x.layout != self.torch.strided or x.is_nested:
            _refuse(self.torch, x, None)
        self._is_copy = x.is_conj() or x.is_neg()
        tensor = x.detach().resolve_conj().resolve_neg()
        dtype = as_dtype(name)
        return foreign.view(
            self.cupy,
            tensor.data_ptr(),
            tuple(tensor.shape),
            dtype,
            tuple(step * dtype.itemsize for step in tensor.stride()),
            tensor,
            tensor.device.index,
        )

    def is_writeable(self, x: Array) -> bool:
        return not self._is_copy and super().is_writeable(x)

    def current_stream(self) -> Any:
        device = self._device.id
        self._theirs_in_torch = self.torch.cuda.current_stream(device)
        return foreign.stream_at(self.cupy, self._theirs_in_torch.cuda_stream)

    def new(self, shape: int | tuple[int, ...], dtype: Any) -> tuple[Any, Array]:
        make = {"dtype": getattr(self.torch, dtype)}
        if self._theirs_in_torch is None:
            theirs = self.torch.empty(shape, device="cuda", **make)
            return theirs, self.as_array(theirs)
        with self.torch.cuda.stream(self._theirs_in_torch):
            device = f"cuda:{self._device.id}"
            theirs = self.torch.empty(shape, device=device, **make)
        self._enter()
        return theirs, self.as_array(theirs)

    def written(self, theirs: Any) -> None:
        _count_write(self.torch, theirs)

    def new_goes_direct(self) -> bool:
        if not (super().new_goes_direct() and self.torch.cuda.is_initialized()):
            return False
        _, array = self.new(1, "uint8")
        return self.goes_direct(array)


def torch_kind(x: Any) -> Kind | None:
    """The kind of a tensor; None if it is none.

    Raises:
        TypeError: for a tensor on CUDA where there is no CuPy.
    """
    torch = sys.modules.get(_LIBRARY)
    if torch is None or not isinstance(x, torch.Tensor):
        return None
    if x.is_cuda:
        version = torch.version.cuda or ""
        return TorchCudaKind(
            torch, foreign.cupy_to_see("a torch tensor on CUDA", version)
        )
    return TorchKind(torch)


def torch_here() -> Kind | None:
    """The kind of tensors on the CPU, None if this process has not imported torch."""
    torch = sys.modules.get(_LIBRARY)
    return None if torch is None else TorchKind(torch)


def torch_cuda_here() -> Kind | None:
    """The kind of tensors on CUDA, None if this process has not imported torch and CuPy."""
    torch, cupy = sys.modules.get(_LIBRARY), sys.modules.get("cupy")
    return None if torch is None or cupy is None else TorchCudaKind(torch, cupy)


def _count_write(torch: Any, tensor: Any) -> None:
    """Tell autograd of a write that it has not seen."""
    increment = getattr(torch.autograd.graph, "increment_version", None)
    if increment is not None:  # an old torch cannot be told
        increment(tensor)


def _refuse(torch: Any, x: Any, error: Exception | None) -> NoReturn:
    """Raise what says why a tensor cannot be seen as memory, and what to do."""
    name = str(x.dtype).partition(".")[2]
    if x.is_nested:
        why = "a nested tensor: pass its parts, x.unbind()"
    elif x.layout != torch.strided:
        why = f"a tensor of layout {x.layout}: pass x.to_dense()"
    elif hasattr(x, "to_local"):
        why = f"a {type(x).__name__}, which several ranks hold: pass x.to_local()"
    elif x.device.type not in ("cpu", "cuda"):
        why = f"a tensor on {x.device}; tensors on cpu and cuda work: pass x.cpu()"
    elif name not in DTYPES:
        why = (
            f"dtype {x.dtype} is not supported; supported: {', '.join(sorted(DTYPES))}"
        )
    else:
        why = (
            f"a {type(x).__name__} has no memory to read: {str(error).splitlines()[0]}"
        )
    raise TypeError(why) from None
