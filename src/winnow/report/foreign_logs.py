"""What libraries log and warn of, made harmless: transformers repeats what stands in the files of a model."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from winnow.report.text import safe


class _Record(logging.LogRecord):
    def getMessage(self) -> str:
        return safe(super().getMessage())


def escape_logs() -> None:
    """From now on every log record and warning of this process is escaped, whoever prints it: for a process that is
    winnow's own, never for one that imports it.
    """
    logging.setLogRecordFactory(_Record)
    formatted = warnings.formatwarning

    def escaped(*args: Any, **more: Any) -> str:
        return safe(formatted(*args, **more))

    warnings.formatwarning = escaped
