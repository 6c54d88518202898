"""C++ functions from source, compiled by g++ once.

Integers wrap, multiplications and additions are not contracted.  What was compiled is kept in a folder of the user's,
by the hash of its source: a second run compiles nothing, and ranks that compile the same source at the same time each
put a whole file in place.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path

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


_own: list[tempfile.TemporaryDirectory] = []  # removed when the process ends


class CompileException(Exception):
    """The compiler's words, and the source."""


def no_compiler():
    """Why nothing can be compiled here, or an empty string."""
    if shutil.which(COMPILER):
        return ""
    return f"there is no {COMPILER}, which compiles the kernels of the pretended device"


@cache
def function(source, name):
    """The function of that name (``extern "C" void``) in a source."""
    loaded = getattr(ctypes.CDLL(str(library_of(source))), name)
    loaded.restype = None
    return loaded


def library_of(source):
    """The file of a compiled source, from the folder or else made."""
    said = "\n".join((platform.machine(), COMPILER, *FLAGS, source))
    library = folder() / f"{hashlib.sha256(said.encode()).hexdigest()[:32]}.so"
    if not library.exists():
        _compile(source, library)
    return library


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
def folder():
    """Where what was compiled is kept: the user's own, since it is run; if that is not safe, this process's own."""
    kept = Path(tempfile.gettempdir()) / f"mpiring-kernels-{os.getuid()}"
    kept.mkdir(mode=0o700, exist_ok=True)
    facts = kept.lstat()
    others = stat.S_IWGRP | stat.S_IWOTH
    if (
        facts.st_uid != os.getuid()
        or not stat.S_ISDIR(facts.st_mode)
        or facts.st_mode & others
    ):
        _own.append(tempfile.TemporaryDirectory(prefix="mpiring-kernels-"))
        return Path(_own[-1].name)
    return kept
