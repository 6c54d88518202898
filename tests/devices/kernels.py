"""CuPy's ``ElementwiseKernel`` with the real CUDA C source.

The operation is put into a loop over the elements, behind ``cuda_shim.h`` which has the faces of CUDA and CuPy,
compiled for the host (:mod:`devices.compiled`), and called when its turn on the stream comes.
"""

from __future__ import annotations

import ctypes
import math
import re
from pathlib import Path

import numpy as np

from devices import compiled
from devices.arrays import launch, memory_of, ndarray

SHIM = Path(__file__).with_name("cuda_shim.h").read_text()
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
        self.dtype = None if len(self.type) == 1 else dtype_named(self.type)

    @property
    def c_type(self):
        return self.type if self.dtype is None else _c_type(self.dtype)


def _params(text, is_const):
    return [_Param(part, is_const) for part in text.split(",") if part.strip()]


def dtype_named(name):
    """A dtype by its name, bfloat16 too."""
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
        self._functions = {}  # by the names of the types

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
            outs = [ndarray(shape, _of(types, param)) for param in self.out_params]
            values += [out._memory for out in outs]
        if all(shape):
            self._launch(shape, types, values, (*args[: self.nin], *outs))
        if self.no_return:
            return None
        return outs[0] if self.nout == 1 and not self.return_tuple else tuple(outs)

    def _types(self, args):
        """The dtype of each type letter."""
        types: dict[str, np.dtype] = {}
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
        held, steps = [], []  # memory, and how to step through it in each dimension
        for param, value, array in zip(self.params, values, arrays):
            step = (0,) * len(shape)
            if not isinstance(array, ndarray):  # a number is the same for all elements
                with np.errstate(all="ignore"):
                    value = np.asarray(value).astype(_of(types, param))
            elif not param.raw:
                value = np.broadcast_to(value, shape)
                step = value.strides
            elif not value.flags.c_contiguous:
                raise ValueError(f"raw {param.name} is not contiguous")
            held.append(value)
            steps.append(step)
        stepped = [k for k, step in enumerate(steps) if any(step)]
        if all(held[k].flags.c_contiguous for k in stepped):  # one long dimension
            shape = (math.prod(shape),)
            steps = [(held[k].itemsize * (k in stepped),) for k in range(len(held))]
        function = self._function(types)
        places = _array(ctypes.c_void_p, [_pointer(value) for value in held])
        sizes = _array(ctypes.c_longlong, shape)
        flat = _array(ctypes.c_longlong, [stride for step in steps for stride in step])

        def run(keep=held):
            function(len(sizes), sizes, places, flat)

        launch(run, f"kernel {self.name}", *arrays)

    def _function(self, types):
        key = tuple(sorted((letter, dtype.name) for letter, dtype in types.items()))
        if key not in self._functions:
            self._functions[key] = compiled.function(self._source(types), "elementwise")
        return self._functions[key]

    def _source(self, types):
        letters = sorted(
            {(p.type, types[p.type]) for p in self.params if p.dtype is None},
            key=lambda pair: pair[0],
        )
        typedefs = [f"typedef {_c_type(dtype)} {letter};" for letter, dtype in letters]
        raws, elements = [], []
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


def _pointer(value):
    return value.__array_interface__["data"][0]


def _array(c_type, values):
    return (c_type * len(values))(*values)
