from __future__ import annotations

import math

import pytest

from refusals import refused
from winnow.errors import ConfigError
from winnow.view.text import (
    format_accuracies,
    format_count,
    format_decimal,
    format_duration,
    parse_bytes,
    quote,
    sanitize,
    shorten,
    wrap,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GiB", 80 * 2**30), ("80 gb", 80 * 10**9), (" 1.5GiB ", 3 * 2**29), ("512MiB", 2**29), ("1.5 kb", 1500)],
)
def test_sizes_as_a_person_writes_them(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "80", "GiB", "80G", "5 apples", "-1GiB", "1e3GiB", "80KiB", "８0GiB", "1.GiB"])
def test_text_that_is_not_a_size_is_refused(text):
    with refused(ConfigError, repr(text), "GiB", "MB", "kB", code="config.value"):
        parse_bytes(text)


def test_characters_that_a_terminal_would_act_on_are_escaped():
    assert sanitize("a\x1b[31mb\r\x07\x9b\x00") == r"a\x1b[31mb\r\x07\x9b\x00"
    assert sanitize("\u202eevil\u200b \ud800 \u2028") == r"\u202eevil\u200b \ud800 \u2028"


def test_letters_signs_and_line_breaks_stay():
    assert sanitize("naïve 数 √2 ± 🌾\nnext [bold]") == "naïve 数 √2 ± 🌾\nnext [bold]"


def test_a_long_text_has_the_number_of_omitted_characters_instead():
    assert shorten("abcdefgh", 8) == "abcdefgh"
    assert shorten("a" * 50 + "b" * 50, 20) == "a" * 10 + " [... 80 characters ...] " + "b" * 10


def test_every_line_of_foreign_text_is_after_a_bar():
    assert quote("one\n\x1btwo", limit=None, indent="  ") == "  | one\n  | \\x1btwo"


def test_sentences_are_broken_at_80_columns():
    assert all(len(line) <= 80 for line in wrap("word " * 60).splitlines())


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0:00"), (4.4, "0:04"), (59.6, "1:00"), (750, "12:30"), (3723, "1:02:03"), (1e308, "?"), (math.nan, "?")],
)
def test_durations(seconds, shown):
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (950, "950"), (3400, "3.4k"), (9960, "10k"), (12e6, "12M"), (2.5e9, "2.5G"), (-1e308, "-1.0e+308")],
)
def test_large_numbers(number, shown):
    assert format_count(number) == shown


def test_an_evaluation_in_a_line():
    both = {"eval/accuracy_sampled": 0.441, "eval/accuracy_sampled_sem": 0.02, "eval/accuracy_greedy": 0.5}
    assert format_accuracies(both) == "sampled 44.1% ± 2.0%, greedy 50.0%"
    assert (
        format_accuracies({"eval/accuracy_sampled": 1.0, "eval/accuracy_sampled_sem": float("nan")}) == "sampled 100.0%"
    )
    assert "%" not in format_accuracies({})
    assert [f"{bits}" in format_accuracies({**both, "eval/weight_bits": float(bits)}) for bits in (16, 32)] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0.25, "+0.250"), (-99_999, "-99999.000"), (1.54e31, "+1.5e+31"), (math.inf, "+inf"), (math.nan, "+nan")],
)
def test_a_number_of_any_size_is_short(number, shown):
    assert format_decimal(number, sign="+") == shown
    assert format_decimal(-0.555, digits=2) == "-0.56"
