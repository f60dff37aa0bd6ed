from __future__ import annotations

import json

import numpy as np

from winnow.state.history import packed, packed_values, unpacked, unpacked_values


def test_numbers_survive_in_every_bit():
    floats = np.array([0.1, -0.0, np.nan, np.inf, 5e-324])
    assert unpacked(packed(floats, "<f8"), "<f8").tobytes() == floats.tobytes()
    small = unpacked(packed(np.array([-1, 2**31 - 1]), "<i4"), "<i4")
    assert (small.tolist(), small.dtype) == ([-1, 2**31 - 1], np.int64)
    assert packed(np.array([1]), "<i4") == "AQAAAA=="  # 01 00 00 00


def test_values_survive_json():
    values = {"n": np.int64(3), "x": 0.5, "text": "a", "rows": np.array([3, 1]), "rates": np.array([np.nan, 1.0])}
    restored = unpacked_values(json.loads(json.dumps(packed_values(values), allow_nan=False)))
    assert (restored["n"], restored["x"], restored["text"]) == (3, 0.5, "a")
    np.testing.assert_array_equal(restored["rows"], [3, 1])
    np.testing.assert_array_equal(restored["rates"], [np.nan, 1.0])
