"""Ctrl-C, but later."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

# The functions of `signal` turn numbers into enums and back, which takes most of their time; here they are plain.
_plain: Any = sys.modules.get("_signal", signal)
_INT = int(signal.SIGINT)


class uninterrupted:
    """A block that Ctrl-C does not break off half-way: KeyboardInterrupt is raised when the block is done.

    It may be raised between any two steps of the main thread, and in a notebook the memory is used on afterwards. So
    whatever takes several steps to be true again happens in such a block, and waiting outside of one. It costs two
    microseconds, because it takes the place of the signal's handler for that time.
    """

    __slots__ = ("_caught", "_handler")

    def __enter__(self) -> None:
        self._caught: tuple[Any, ...] | None = None
        self._handler: Any = None
        if threading.get_ident() == threading.main_thread().ident:
            handler = _plain.getsignal(_INT)
            if callable(handler):  # else it is ignored, or ends the process at once
                _plain.signal(_INT, self._note)
                self._handler = handler

    def _note(self, *arguments: Any) -> None:
        self._caught = arguments

    def __exit__(self, *_: object) -> None:
        handler = self._handler
        if handler is not None:
            _plain.signal(_INT, handler)
            if self._caught is not None:
                handler(*self._caught)
