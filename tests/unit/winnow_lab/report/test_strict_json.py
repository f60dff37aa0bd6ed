from __future__ import annotations

import json
import math

import pytest

from winnow_lab.report.html import encoded, with_list

HOSTILE = [
    "</script><script>alert(1)</script>", "<!--<script>", "<img src=x onerror=alert(1)>", "&lt;/script&gt;",
    "]]>", "\u2028\u2029", "\ud800 alone \udfff", "\x00\x1b[31m\x7f", "\u202e reversed \u2066",
    "{{data}} {{title}} {{policy}}", '"},{"', "\\u003c/script>", "\ufeff", "é 两 🙂",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_text_can_end_the_element_and_every_text_is_kept(text):
    json_text = encoded({text: [text]})
    assert not set(json_text) & set("<>&")
    assert json_text.isascii()
    assert all(sign.isprintable() for sign in json_text)
    assert json.loads(json_text) == {text: [text]}


def test_numbers_that_are_not_finite_are_null():
    assert encoded({"a": math.nan, "b": [math.inf, -math.inf, 0.5, 3, True, None]}) == (
        '{"a":null,"b":[null,null,0.5,3,true,null]}'
    )


def test_deeply_nested_data_is_cut():
    deep: list = []
    for _ in range(3000):
        deep = [deep]
    assert encoded(deep) == "[" * 20 + '"..."' + "]" * 20


def test_a_list_that_is_already_encoded_is_inserted():
    assert with_list({"a": 1}, "runs", ['{"b":2}', "3"]) == '{"a":1,"runs":[{"b":2},3]}'
    assert with_list({}, "runs", []) == '{"runs":[]}'
