"""Calls the functions of a loaded EFML: finds symbols, serialises calls, returns what functions fill."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from agent.vendor_api.backend import LIBRARY_UNUSABLE, BackendUnavailable

from . import abi, signal_dispositions
from .abi import Code, HandleCode
from .library_errors import EfmlError

T = TypeVar("T")

#: No function takes the size of its buffer. Each may write 128 bytes, so this leaves a reserve.
TEXT_ROOM = 4 * abi.TEXT_SIZE


class EfmlCalls:
    """One loaded library with both families of functions, see `abi`.

    A lock serialises the calls of all threads: "EFML has had some thread safety bugs" (DeepEP).
    """

    def __init__(self, library: ctypes.CDLL, prefix: str = "") -> None:
        """`prefix` of the library's functions; empty: look for the known prefixes.

        Raises:
            BackendUnavailable: The library has the functions of neither family.
        """
        self._library = library
        self._prefix = prefix or _prefix(library)
        self._functions: dict[str, Callable[..., Any] | None] = {}
        self._turn = threading.RLock()
        #: The families that are initialised: True for the index family, False for the handle family.
        self._open: set[bool] = set()
        if not self.has("EfmlInit") and not (self.has("efmlInit_v2") or self.has("efmlInit")):
            init = abi.named("EfmlInit", self._prefix)
            text = f"{library._name} has no {init}: it is another library, or 'symbolPrefix' names it"
            raise BackendUnavailable(LIBRARY_UNUSABLE, text)

    def has(self, name: str) -> bool:
        """Whether this build exports a function, by Enflame's name, such as "EfmlGetEventV2"."""
        return self._find(name) is not None

    @property
    def indices(self) -> bool:
        """Whether the index family is initialised, which has UUIDs, events and health."""
        return True in self._open

    @property
    def handles(self) -> bool:
        """Whether the handle family is initialised, which can tell that a card is lost."""
        return False in self._open

    def init(self) -> None:
        """Let the library enumerate the cards, for the first time or again.

        Assumption: the list of cards is fixed between init and shutdown, and a shutdown with a new init
        enumerates again. vllm-gcu does both around every call.

        Raises:
            EfmlError: Neither family starts; with the error of the index family if the build has it.
        """
        with self._turn, signal_dispositions.kept():
            self.close()
            errors = [error for error in (self._start_by_index(), self._start_by_handle()) if error]
            if not self._open:
                raise errors[0]

    def _start_by_index(self) -> EfmlError | None:
        """Start the index family. The argument is `no_driver`; go-eflib passes false to use the driver."""
        if not self.has("EfmlInit"):
            return None
        return self._start("EfmlInit", False)

    def _start_by_handle(self) -> EfmlError | None:
        name = self._first("efmlInit_v2", "efmlInit")
        return self._start(name) if self.has(name) else None

    def _start(self, name: str, *arguments: Any) -> EfmlError | None:
        family = abi.by_index(name)
        self._open.add(family)
        try:
            self._call(name, *arguments)
        except EfmlError as error:
            self._open.discard(family)
            return error
        return None

    def close(self) -> None:
        """Shut down both families. `init` starts them again."""
        with self._turn:
            for name in ("EfmlShutdown", "efmlShutdown"):
                function = self._find(name)
                if function and abi.by_index(name) in self._open:
                    function()
            self._open.clear()

    def error_text(self, name: str, code: int) -> str:
        """The library's text for a code that this function returned; empty if it has none."""
        with self._turn:
            if not abi.by_index(name):
                function = self._find("efmlErrorString")
                words = function(code) if function else None
                return string(words) if words else ""
            function, buffer = self._find("EfmlErrorString"), ctypes.create_string_buffer(TEXT_ROOM)
            if function is None or function(code, buffer) != Code.SUCCESS:
                return ""
            return string(buffer.value)

    def _first(self, *names: str) -> str:
        """The first of these functions that this build exports, or the last name if it exports none."""
        return next((name for name in names if self.has(name)), names[-1])

    def _alternatives(self, *ways: Callable[[], T]) -> T:
        """The result of the first way that this build and this card support.

        Raises:
            EfmlError: A way fails for another reason, or none is supported.
        """
        for way in ways[:-1]:
            try:
                return way()
            except EfmlError as error:
                if not error.unsupported:
                    raise
        return ways[-1]()

    def _find(self, name: str) -> Callable[..., Any] | None:
        if name not in self._functions:
            function = getattr(self._library, abi.named(name, self._prefix), None)
            if function is not None:
                function.argtypes = abi.ARGUMENTS[name]
                function.restype = abi.RESULTS.get(name, ctypes.c_int)
            self._functions[name] = function
        return self._functions[name]

    def _call(self, name: str, *arguments: Any) -> None:
        function = self._find(name)
        by_index = abi.by_index(name)
        missing = EfmlError(name, Code.FUNCTION_NOT_FOUND if by_index else HandleCode.FUNCTION_NOT_FOUND)
        if function is None:
            raise missing
        with self._turn:
            if by_index not in self._open:
                # What a call before init does is not published. If the other family works, let it answer.
                raise missing if self._open else EfmlError(name, Code.UNINITIALIZED)
            code = function(*arguments)
            if code != Code.SUCCESS:
                numbers = [int(value) for value in arguments if isinstance(value, int)]
                raise EfmlError(name, code, self.error_text(name, code), numbers if by_index else ())

    def _number(self, name: str, *arguments: Any, kind: type[Any] = ctypes.c_uint32) -> int:
        return int(self._filled(name, kind(), *arguments).value)

    def _flag(self, name: str, *arguments: Any) -> bool:
        return bool(self._filled(name, ctypes.c_bool(), *arguments).value)

    def _percent(self, name: str, *arguments: Any) -> float:
        return float(self._filled(name, ctypes.c_float(), *arguments).value)

    def _struct(self, name: str, kind: type[ctypes.Structure], *arguments: Any) -> Any:
        return self._filled(name, kind(), *arguments)

    def _filled(self, name: str, target: Any, *arguments: Any) -> Any:
        """Call the function with a pointer to `target` as last argument, and return the filled `target`."""
        self._call(name, *arguments, ctypes.byref(target))
        return target

    def _text(self, name: str, *arguments: Any) -> str:
        buffer = ctypes.create_string_buffer(TEXT_ROOM)
        self._call(name, *arguments, buffer)
        return string(buffer.value)


def _prefix(library: ctypes.CDLL) -> str:
    """The known prefix that the library's functions have; Enflame's if they have none of them."""
    starts = ("EfmlInit", "efmlInit_v2", "efmlInit")
    known = (it for it in abi.PREFIXES if any(hasattr(library, abi.named(start, it)) for start in starts))
    return next(known, abi.PREFIXES[0])


def string(raw: bytes) -> str:
    """The text in a buffer of the library."""
    return raw.decode(errors="replace").strip()
