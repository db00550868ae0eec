"""Calling a compiled ``cpu`` kernel: a shared library, its entries called in order on the caller's thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING

from kb.candidate import ResolvedLaunch
from runtime.binding import CValue
from runtime.compile_cpu import SET_THREADS
from runtime.errors import LoadError
from runtime.image import Image

if TYPE_CHECKING:
    import torch


class CpuModule:
    """A loaded library. Raises LoadError when it cannot be loaded or lacks an entry."""

    def __init__(self, image: Image, launches: Sequence[ResolvedLaunch], threads: int) -> None:
        try:
            self._library = ctypes.CDLL(str(image.path))
        except OSError as error:
            raise LoadError(f"the compiled kernel cannot be loaded: {error}") from error
        self._threads = threads
        self._entries = [self._function(launch.entry) for launch in launches]
        self._set_threads = self._function(SET_THREADS)

    def bind(
        self, values: Sequence[CValue], tensors: Mapping[str, torch.Tensor | None], workspace: torch.Tensor | None
    ) -> CpuCall:
        """A call with ``values`` as its arguments; it keeps ``tensors`` and ``workspace`` alive."""
        threads = ctypes.c_int(self._threads)
        return CpuCall(self._entries, tuple(values), lambda: self._set_threads(threads), tensors, workspace)

    def caller(self, types: Sequence[type[CValue]]) -> Callable[..., None]:
        """A function of as many numbers (addresses, sizes) as there are ``types``, for arguments that always change.

        Nothing is checked and nothing is kept alive; binding is for everyone else.
        """
        entries = []
        for entry in self._entries:
            function = self._library[entry.__name__]  # an object of its own, so that its types are no one else's
            function.restype, function.argtypes = None, list(types)
            entries.append(function)
        set_threads, threads, thread = self._set_threads, ctypes.c_int(self._threads), 0

        def call(*values: float) -> None:
            nonlocal thread
            if get_ident() != thread:  # OpenMP keeps the number of threads by calling thread
                set_threads(threads)
                thread = get_ident()
            for entry in entries:
                entry(*values)

        return call

    def _function(self, name: str) -> Callable[..., None]:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise LoadError(f"the source defines no entry '{name}' with extern \"C\"") from None
        function.restype = None
        return function  # type: ignore[no-any-return]


class CpuCall:
    """One bound call. Releases the interpreter lock while the kernel runs."""

    __slots__ = ("_entries", "_set_threads", "_thread", "_values", "tensors", "workspace")

    def __init__(
        self,
        entries: Sequence[Callable[..., None]],
        values: tuple[CValue, ...],
        set_threads: Callable[[], None],
        tensors: Mapping[str, torch.Tensor | None],
        workspace: torch.Tensor | None,
    ) -> None:
        self._entries = tuple(entries)
        self._values = values
        self._set_threads = set_threads
        self._thread = 0
        self.tensors = dict(tensors)
        self.workspace = workspace

    def __call__(self) -> None:
        # OpenMP keeps the number of threads by calling thread.
        if get_ident() != self._thread:
            self._set_threads()
            self._thread = get_ident()
        for entry in self._entries:
            entry(*self._values)
