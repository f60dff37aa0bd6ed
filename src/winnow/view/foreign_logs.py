"""Escape the log records and warnings of libraries: transformers logs text from the files of a model."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from winnow.view.text import sanitize


class _Record(logging.LogRecord):
    def getMessage(self) -> str:
        return sanitize(super().getMessage())


def escape_logs() -> None:
    """Escape every log record and warning of this process from now on, whichever handler prints it. Only winnow's
    commands may call this, never a program that imports winnow.
    """
    logging.setLogRecordFactory(_Record)
    formatted = warnings.formatwarning

    def escaped(*args: Any, **more: Any) -> str:
        return sanitize(formatted(*args, **more))

    warnings.formatwarning = escaped
