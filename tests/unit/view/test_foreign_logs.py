from __future__ import annotations

import io
import logging
import warnings

from winnow.view.screen import escape_logs


def test_log_records_and_warnings_of_libraries_are_escaped(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # both are put back
    monkeypatch.setattr(logging, "_logRecordFactory", logging.getLogRecordFactory())
    escape_logs()
    out = io.StringIO()
    logger = logging.Logger("library")
    logger.addHandler(logging.StreamHandler(out))
    logger.warning("rope_type %s", "\x1b[31m\u202e")
    assert out.getvalue() == "rope_type \\x1b[31m\\u202e\n"
    assert "\\x1b]52;" in warnings.formatwarning("of \x1b]52;", UserWarning, "file.py", 3)
