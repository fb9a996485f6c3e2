"""What can go wrong, by what the caller can do about it. Every message says what happened, with which value, and what
to do."""

from __future__ import annotations

import os
import sys
import warnings


class CarmError(Exception):
    """Base class of every error that is not a plain bad argument (those are ValueError)."""


class SchemaError(CarmError, ValueError):
    """Samples do not have the fields, shapes or dtypes that this memory holds."""


class StoreError(CarmError):
    """The store's directory cannot be used: damaged, of a newer format, read-only, or already closed."""


class StoreLocked(StoreError):
    """Another process (or another Store in this one) has the directory open for writing."""


class StoreFull(StoreError):
    """The device has no room and nothing may be evicted. Everything stored before is still there."""


class CorruptRecord(UserWarning):
    """A stored sample did not match its checksum. It is dropped; the rest goes on."""


class CheckpointError(CarmError):
    """A state_dict does not fit the memory or the store it is loaded into."""


class WorkerError(CarmError):
    """The swap worker failed; the message holds its traceback. It has been started again."""


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn about the line of the user's that led here, from however deep in this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
