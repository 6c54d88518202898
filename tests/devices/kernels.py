"""CuPy's ``ElementwiseKernel`` with the real CUDA C source, compiled for the host.

The operation is put into a loop over the elements, behind ``cuda_shim.h`` which has the faces of CUDA and CuPy, compiled
by g++ and called when its turn on the stream comes.  Integers wrap, multiplications and additions are not contracted.

A compiled kernel is kept in a folder of the user's, by the hash of its source: a second run compiles nothing, and ranks
that compile the same kernel at the same time each put a whole file in place.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from devices.arrays import empty, launch, memory_of, ndarray

SHIM = Path(__file__).with_name("cuda_shim.h").read_text()
COMPILER = "g++"
FLAGS = (
    "-std=c++17",
    "-O1",
    "-shared",
    "-fPIC",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-w",
)

_C_TYPES = {
    "bool": "bool",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float32": "float",
    "float64": "double",
    "complex64": "thrust::complex<float>",
    "complex128": "thrust::complex<double>",
}


class CompileException(Exception):
    """The compiler's words, and the source."""


def no_compiler():
    """Why kernels cannot be compiled here, or an empty string."""
    if shutil.which(COMPILER):
        return ""
    return f"there is no {COMPILER}, which compiles the kernels of the pretended device"


class _Param:
    """``T x``, ``raw T x``, ``float32 x``: a type's one letter stands for the dtype of what is passed."""

    def __init__(self, text, is_const):
        words = text.split()
        self.raw = words[0] == "raw"
        words = words[self.raw :]
        if len(words) != 2 or not re.fullmatch(r"[A-Za-z_]\w*", words[1]):
            raise ValueError(f"Invalid parameter: {text!r}")
        self.type, self.name = words
        if self.name in ("n", "i") or self.name.startswith("_"):
            raise ValueError(f"Reserved name: {self.name!r}")
        self.is_const = is_const
        self.dtype = None if len(self.type) == 1 else _dtype(self.type)

    @property
    def c_type(self):
        return self.type if self.dtype is None else _c_type(self.dtype)


def _params(text, is_const):
    return [_Param(part, is_const) for part in text.split(",") if part.strip()]


def _dtype(name):
    if name == "bfloat16":
        import ml_dtypes  # NumPy knows the name only after this

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def _c_type(dtype):
    if dtype.name not in _C_TYPES:
        raise TypeError(f"a kernel cannot take {dtype}")
    return _C_TYPES[dtype.name]


class ElementwiseKernel:
    """See CuPy; ``loop_prep`` and ``after_loop`` are the other keywords that it knows."""

    def __init__(
        self,
        in_params,
        out_params,
        operation,
        name="kernel",
        reduce_dims=True,
        preamble="",
        no_return=False,
        return_tuple=False,
        *,
        options=(),
        loop_prep="",
        after_loop="",
    ):
        self.in_params = _params(in_params, True)
        self.out_params = _params(out_params, False)
        self.params = self.in_params + self.out_params
        self.nin, self.nout = len(self.in_params), len(self.out_params)
        self.operation, self.name, self.preamble = operation, name, preamble
        self.no_return, self.return_tuple = no_return, return_tuple
        self._loop_prep, self._after_loop = loop_prep, after_loop

    def __call__(self, *args, size=None, block_size=128):
        if len(args) not in (self.nin, self.nin + self.nout):
            raise TypeError(
                f"Wrong number of arguments for {self.name!r}. It must be either {self.nin} or "
                f"{self.nin + self.nout} (with outputs), but given {len(args)}."
            )
        values = [memory_of(arg) for arg in args]
        types = self._types(args)
        shapes = [
            value.shape
            for param, arg, value in zip(self.params, args, values)
            if isinstance(arg, ndarray) and not param.raw
        ]
        if size is not None:
            if shapes:
                raise ValueError("Specified 'size' can be used only if all of the ndarray are 'raw'.")  # fmt: skip
            shape = (size,)
        elif not shapes:
            raise ValueError("Loop size is undecided.")
        else:
            shape = np.broadcast_shapes(*shapes)
        outs = list(args[self.nin :])
        for param, out in zip(self.out_params, outs):
            if not isinstance(out, ndarray):
                raise TypeError("Output arguments type must be cupy.ndarray")
            if not param.raw and out.shape != shape:
                raise ValueError(f"Out shape is mismatched: {out.shape}, not {shape}")
        if not outs:
            outs = [empty(shape, _of(types, param)) for param in self.out_params]
            values += [out._memory for out in outs]
        if all(shape):
            self._launch(shape, types, values, (*args[: self.nin], *outs))
        if self.no_return:
            return None
        return outs[0] if self.nout == 1 and not self.return_tuple else tuple(outs)

    def _types(self, args):
        """The dtype of each type letter."""
        types = {}
        for param, arg in zip(self.params, args):
            if isinstance(arg, ndarray):
                want = types.setdefault(param.type, arg.dtype)
                want = want if param.dtype is None else param.dtype
                if arg.dtype != want:
                    raise TypeError(
                        f"Type is mismatched. {param.name} {arg.dtype} {want}"
                    )
        for param in self.params:
            if param.dtype is None and param.type not in types:
                raise TypeError(f"{param.type} is not determined: no array has it")
        return types

    def _launch(self, shape, types, values, arrays):
        prepared = []
        for param, value in zip(self.params, values):
            dtype = _of(types, param)
            if not isinstance(value, np.ndarray):
                with np.errstate(all="ignore"):
                    value = np.asarray(value).astype(dtype)
            if not param.raw:
                value = np.broadcast_to(value, shape)
            elif not value.flags.c_contiguous:
                raise ValueError(f"raw {param.name} is not contiguous")
            prepared.append(value)
        function = _compiled(self._source(types))
        looped = [v for p, v in zip(self.params, prepared) if not p.raw]
        if all(v.flags.c_contiguous and v.size for v in looped):
            shape = (int(np.prod(shape, dtype=int)),)
            strides = [(v.itemsize,) for v in prepared]
        else:
            strides = [(0,) * len(shape) if p.raw else v.strides for p, v in zip(self.params, prepared)]  # fmt: skip
        places = (ctypes.c_void_p * len(prepared))(
            *(v.__array_interface__["data"][0] for v in prepared)
        )
        sizes = (ctypes.c_longlong * len(shape))(*shape)
        flat = [stride for each in strides for stride in each]
        steps = (ctypes.c_longlong * len(flat))(*flat)

        def run(keep=prepared):
            function(len(sizes), sizes, places, steps)

        launch(run, f"kernel {self.name}", *arrays)

    def _source(self, types):
        letters = sorted(
            {(p.type, types[p.type]) for p in self.params if p.dtype is None},
            key=lambda pair: pair[0],
        )
        typedefs = [f"typedef {_c_type(dtype)} {letter};" for letter, dtype in letters]
        raws, places, elements = [], [], []
        for k, param in enumerate(self.params):
            const = "const " if param.is_const else ""
            if param.raw:
                raws.append(
                    f"{const}{param.c_type} *{param.name} = ({const}{param.c_type} *)_places[{k}];"
                )
            else:
                elements.append(
                    f"{const}{param.c_type} &{param.name} = *({const}{param.c_type} *)(_at[{k}]);"
                )
        newline = "\n"
        return f"""{SHIM}
{newline.join(typedefs)}
{self.preamble}
extern "C" void elementwise(int _ndim, const long long *_shape, char *const *_places, const long long *_strides) {{
  const int _count = {len(self.params)};
  ptrdiff_t n = 1;
  for (int _d = 0; _d < _ndim; ++_d) n *= _shape[_d];
  {newline.join(raws)}
  {self._loop_prep};
  for (ptrdiff_t i = 0; i < n; ++i) {{
    char *_at[_count];
    for (int _k = 0; _k < _count; ++_k) _at[_k] = _places[_k];
    ptrdiff_t _rest = i;
    for (int _d = _ndim - 1; _d >= 0; --_d) {{
      ptrdiff_t _here = _rest;
      if (_d) {{
        _here = _rest % _shape[_d];
        _rest /= _shape[_d];
      }}
      for (int _k = 0; _k < _count; ++_k) _at[_k] += _here * _strides[_k * _ndim + _d];
    }}
    {newline.join(elements)}
    {self.operation};
  }}
  {self._after_loop};
}}
"""


def _of(types, param):
    return types[param.type] if param.dtype is None else param.dtype


# ---- compiled kernels


@cache
def _compiled(source):
    """The function of a source, from the folder of kernels or else compiled."""
    folder = _folder()
    said = "\n".join((platform.machine(), COMPILER, *FLAGS, source))
    library = folder / f"{hashlib.sha256(said.encode()).hexdigest()[:32]}.so"
    if not library.exists():
        _compile(source, library)
    function = ctypes.CDLL(str(library)).elementwise
    function.restype = None
    return function


def _compile(source, library):
    handle, made = tempfile.mkstemp(suffix=".so", dir=library.parent)
    os.close(handle)
    try:
        result = subprocess.run(
            [COMPILER, *FLAGS, "-x", "c++", "-", "-o", made],
            input=source,
            capture_output=True,
            text=True,
        )
        if result.returncode:
            raise CompileException(f"{result.stderr}\n{source}")
        os.replace(made, library)
    finally:
        Path(made).unlink(missing_ok=True)


@cache
def _folder():
    """Where compiled kernels are kept: the user's own, since what lies there is run."""
    folder = Path(tempfile.gettempdir()) / f"mpiring-kernels-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    others = stat.S_IWGRP | stat.S_IWOTH
    if (
        facts.st_uid != os.getuid()
        or not stat.S_ISDIR(facts.st_mode)
        or facts.st_mode & others
    ):
        return Path(tempfile.mkdtemp(prefix="mpiring-kernels-"))
    return folder
