"""Reductions that NumPy does slowly: 16-bit floats, and any number of operands in one pass over memory.

NumPy adds 16-bit floats one by one, in software, and folds K arrays in K - 1 passes.  Here each operation, with the
dtypes and the number of its operands, has a *kernel* of its own (:mod:`.kernel_code`), which llvmlite makes machine
code of: it is the compiler of Numba, and the ``fast`` extra brings it.  A kernel takes 10 to 20 milliseconds, llvmlite
itself 0.1 s the first time, so that nothing is kept on disk.  Numba would take seconds, need a folder to keep its
results in, and wait for each new NumPy.

Rules:

* the bits are those of :func:`mpiring.wire.reduce.arithmetic.combine`, so that ranks need not agree on who has
  llvmlite;
* the machine code lives as long as somebody has the kernel, whatever is kept here;
* llvmlite is imported when a kernel is first asked for.  Where there is none, or none for this CPU, there is no
  kernel, and NumPy does it.
"""

from __future__ import annotations

import ctypes
import logging
import platform
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

from ..settings.packages import install
from .kernel_code import Form, write

__all__ = ["MOST", "Form", "Kernel", "find", "missing"]

Kernel = Callable[..., None]

MOST = 16  # operands, and outputs: registers and compile time are finite

_log = logging.getLogger(__name__)


# Each holds 0.8 MiB: LLVM's, more than its code.  So many are kept; where more are in use they are made anew, in turns,
# unless somebody else has them.
_KEPT = 64
_alive: WeakValueDictionary[Form, Any] = WeakValueDictionary()


@lru_cache(maxsize=_KEPT)
def find(form: Form) -> Kernel | None:
    """The kernel of a form, made now if need be; None if there is none, so that NumPy has to do it.

    It is called with the addresses of all operands and all outputs, the number of elements, and for an average with
    what to divide by.  Nothing is checked then, and other threads run meanwhile.
    """
    if not form.is_sound or max(len(form.operands), form.outs) > MOST:
        return None
    compiler = _compiler()
    has_float16 = "float16" in (*form.operands, form.out)
    if compiler.missing or (has_float16 and not compiler.has_float16):
        return None
    kernel: Kernel | None = _alive.get(form)
    if kernel is None:
        kernel = _alive[form] = compiler.compile(form)
    return kernel


def missing() -> str:
    """Why there are no kernels here, in words; empty if there are."""
    return _compiler().missing


class _Compiler:
    """LLVM for the CPU of this process.

    Attributes:
        missing: why there is none, in words.
        has_float16: whether the CPU converts float16; else LLVM would call functions that are not there, and end the
            process.
    """

    def __init__(self) -> None:
        self.missing = ""
        self.has_float16 = False
        self._lock = threading.RLock()
        try:
            from llvmlite import binding

            binding.initialize_native_target()
            binding.initialize_native_asmprinter()
            features = binding.get_host_cpu_features()
            target = binding.Target.from_default_triple()
            self._cpu = {
                "cpu": binding.get_host_cpu_name(),
                "features": features.flatten(),
            }
            self._target, self._binding = target, binding
            machine = platform.machine().lower()
            self.has_float16 = machine in ("aarch64", "arm64") or (
                machine in ("x86_64", "amd64") and bool(features.get("f16c"))
            )
            if sys.byteorder != "little":
                self.missing = "the kernels are for little-endian processors"
            else:
                self._compiled(Form("sum", ("float32", "float32"), "float32"))
        except ImportError:
            self.missing = f"llvmlite is not installed: {install('llvmlite')}"
        except Exception as error:  # another llvmlite, or a processor it does not know
            self.missing = f"llvmlite cannot compile here: {error!r}"
        if self.missing:
            _log.info("NumPy reduces: %s", self.missing)

    def compile(self, form: Form) -> Kernel:
        with self._lock:
            engine = self._compiled(form)
        pointers = [ctypes.c_void_p] * (len(form.operands) + form.outs)
        divisors: list[Any] = []
        if form.op == "avg":
            divisors = [ctypes.c_double if form.wide == "float64" else ctypes.c_float]
        function: Any = ctypes.CFUNCTYPE(None, *pointers, ctypes.c_int64, *divisors)(
            engine.get_function_address("kernel")
        )
        function.engine = engine  # the code lives as long as the function
        kernel: Kernel = function
        return kernel

    def _compiled(self, form: Form) -> Any:
        module = self._binding.parse_assembly(write(form))
        module.verify()
        machine = self._target.create_target_machine(**self._cpu, opt=3, jit=True)
        engine = self._binding.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        return engine


@lru_cache(maxsize=1)
def _compiler() -> _Compiler:
    return _Compiler()
