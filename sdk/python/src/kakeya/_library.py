"""_library.py - libkakeya: where it is, how it is called, and pointers that are freed once.

What `native.py` builds its objects from.  A call that fails raises what the library said; a pointer is
freed only when nobody uses it.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import functools
import os
import threading
from typing import Any, Callable, Iterator, Sequence

from . import _abi, errors
from ._version import __version__

Path = str | os.PathLike[str]


@functools.lru_cache(maxsize=None)
def _load(path: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(path)
        _abi.declare(library)
    except (OSError, AttributeError) as why:
        raise errors.make("UNAVAILABLE", f"cannot load libkakeya: {why}") from why
    found = library.kk_version().decode()
    if found.split("-")[0].split("+")[0].split(" ")[0] != __version__:
        raise errors.make("UNIMPLEMENTED", f"{path} is libkakeya {found}: this package is made for "
                          f"{__version__}, and the structs of another may differ")
    return library


def load_library(path: Path | None = None) -> ctypes.CDLL:
    """libkakeya: of this path, else of the variable KAKEYA_LIBRARY, else where the system finds it."""
    named = os.fspath(path) if path is not None else os.environ.get("KAKEYA_LIBRARY")
    return _load(named or ctypes.util.find_library("kakeya") or "libkakeya.so.0")


_CODES = {
    _abi.KK_EINVAL: "INVALID_ARGUMENT", _abi.KK_EIO: "INVALID_ARGUMENT",
    _abi.KK_EFORMAT: "INVALID_ARGUMENT", _abi.KK_ENOMEM: "RESOURCE_EXHAUSTED",
    _abi.KK_ECONTEXT: "INVALID_ARGUMENT", _abi.KK_EDEVICE: "INTERNAL",
    _abi.KK_ESTOPPED: "CANCELLED", _abi.KK_EEXIST: "INVALID_ARGUMENT",
    _abi.KK_EBUSY: "INVALID_ARGUMENT", _abi.KK_ENUMERIC: "INTERNAL",
}


def call(library: ctypes.CDLL, name: str, *arguments: Any) -> None:
    """Calls a function whose last argument is a kk_err; raises what it says."""
    err = _abi.kk_err()
    status = getattr(library, name)(*arguments, ctypes.byref(err))
    if status != _abi.KK_OK:
        raise errors.make(_CODES.get(status, "INTERNAL"), err.msg.decode("utf-8", "replace"),
                          code=library.kk_status_name(status).decode())


class Handle:
    """A pointer of the library, which is freed once, and only when nobody uses it."""

    def __init__(self, what: str, pointer: int, free: Callable[[int], None]) -> None:
        self._what = what
        self._pointer: int | None = pointer
        self._free = free
        self._users = 0
        self._lock = threading.Lock()

    @property
    def closed(self) -> bool:
        return self._pointer is None

    def acquire(self, alone: bool = False) -> int:
        with self._lock:
            if self._pointer is None:
                raise errors.SessionClosedError(f"the {self._what} is closed")
            if alone and self._users:
                raise errors.make("ABORTED", f"the {self._what} is in use by another call")
            self._users += 1
            return self._pointer

    def release(self) -> None:
        with self._lock:
            self._users -= 1

    @contextlib.contextmanager
    def use(self, alone: bool = False) -> Iterator[int]:
        pointer = self.acquire(alone)
        try:
            yield pointer
        finally:
            self.release()

    def close(self) -> bool:
        """Frees it; false: it was freed before."""
        with self._lock:
            if self._pointer is None:
                return False
            if self._users:
                raise errors.make("ABORTED", f"the {self._what} is in use and cannot be closed")
            pointer, self._pointer = self._pointer, None
        self._free(pointer)
        return True


def encoded(value: Any) -> Any:
    return os.fsencode(value) if isinstance(value, (str, os.PathLike)) else value


def ids_array(tokens: Sequence[int]) -> Any:
    for token in tokens:
        if not 0 <= token < 1 << 31:
            raise errors.make("INVALID_ARGUMENT", f"{token!r} is no token id", param="tokens")
    return (ctypes.c_int32 * len(tokens))(*tokens)


def plain(struct: ctypes.Structure) -> dict[str, Any]:
    """A struct of numbers and texts as a dictionary."""
    out: dict[str, Any] = {}
    for name, *_ in struct._fields_:
        value = getattr(struct, name)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        elif isinstance(value, ctypes.Array):
            value = list(value)
        out[name] = value
    return out
