"""Arrays of numbers as JSON: their bytes in base64, which a hundred thousand numbers need milliseconds for."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

BYTES = "base64"


def packed(array: Any, dtype: str) -> str:
    """The bytes of an array as text; `dtype` has a byte order, such as "<f8"."""
    return base64.b64encode(np.ascontiguousarray(array, dtype=dtype).tobytes()).decode("ascii")


def unpacked(text: str, dtype: str) -> Any:
    """[n] the numbers of `packed`, as float64 or int64."""
    numbers = np.frombuffer(base64.b64decode(text), dtype=dtype)
    return numbers.astype(np.int64 if np.issubdtype(numbers.dtype, np.integer) else np.float64)


def packed_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping of texts to JSON values and arrays [n] of integers or floats, as JSON."""
    return {name: _packed_value(value) for name, value in values.items()}


def unpacked_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """What was given to `packed_values`."""
    return {
        name: unpacked(value[BYTES], value["dtype"]) if isinstance(value, Mapping) and BYTES in value else value
        for name, value in values.items()
    }


def _packed_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        dtype = "<i8" if np.issubdtype(value.dtype, np.integer) else "<f8"
        return {"dtype": dtype, BYTES: packed(value, dtype)}
    return value.item() if isinstance(value, np.generic) else value
