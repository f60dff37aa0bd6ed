"""Imported first: no garbage is collected while forked_imports.py is imported, which would take a second."""

from __future__ import annotations

import gc

gc.disable()
