"""Small files that one process may read while another one writes them: records and profiles.

Rules: a reader sees all of a file or the one before it, whatever happens to the writer, and never waits.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def read_small(path: Path, most_bytes: int) -> str:
    """The text of a file.

    Raises:
        OSError, ValueError: if it is no ordinary file, is longer than ``most_bytes``, or is no text.
    """
    # Not blocking, so that a pipe of that name holds nobody.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        # Of a directory no file is made, and nobody else would close it then.
        with open(descriptor, "rb", closefd=False) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError("not an ordinary file")
            data = file.read(most_bytes + 1)
    finally:
        os.close(descriptor)
    if len(data) > most_bytes:
        raise ValueError(f"longer than {most_bytes} bytes")
    return data.decode("utf-8")


def write_whole(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file, in place of an older one if there is one.

    Args:
        path: in a directory that is there.
        mode: who may read and write it.

    Raises:
        OSError: the older one, if there is one, is as it was.
    """
    descriptor, name = tempfile.mkstemp(path.suffix, f".{path.stem}-", path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def try_to_write(path: Path) -> None:
    """Find out whether a file can be written; what is there stays as it is, and nothing is made.

    Raises:
        OSError: if it cannot.
    """
    if path.exists():
        with path.open("ab"):
            pass
    else:
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            pass
