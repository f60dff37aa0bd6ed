from __future__ import annotations

import time

import pytest

from winnow.rewards.answers import to_fraction
from winnow.rewards.extract import after_reasoning, answer_tag, hashes, last_boxed, last_number, unwrap_box


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"so \boxed{5}.", "5"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\fbox{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{41 + \boxed{1}}", r"41 + \boxed{1}"),
        (r"\boxed{\boxed{1} + 41}", r"\boxed{1} + 41"),
        (r"\boxed{\boxed{1}\boxed{2}}", r"\boxed{1}\boxed{2}"),
        (r"\boxed{\boxed{\frac{1}{2}}}", r"\frac{1}{2}"),
        (r"\boxed{ \fbox{\boxed{x^{2}} } }", "x^{2}"),
        (r"\boxed{{\boxed{5}}}", r"{\boxed{5}}"),
        (r"a } stray \boxed{5}", "5"),
        (r"{ never closed \boxed{5}", "5"),
        (r"\\boxed{5}", "5"),
        (r"\boxed{}", ""),
        (r"\boxed{5}, as asked in \boxed{}", "5"),
        (r"\boxed{} \boxed{5} \boxed{} \boxed{}", "5"),
        (r"\boxed{5} no, \boxed{ }", " "),
        (r"\boxed{5} \boxed{}, no \boxed{", None),
        (r"\boxed{5} no, \boxed{6", None),
        (r"\boxed{5 then \boxed{6}", "6"),
        ("boxed{5}", None),
        (r"so $\boxed 5$.", "5"),
        (r"so \(\boxed12\)", "12"),
        (r"\[ \boxed -3.5 \]", "-3.5"),
        (r"\boxed{4} no, $\boxed 5$", "5"),
        (r"$\boxed 5$ no, \boxed{4}", "4"),
        (r"\boxed{5}, which I \boxed for $x$", "5"),
        (r"$\boxed 5", None),
        (r"$\boxed5 \text{ or } 6$", None),
        (r"$\boxedx$", None),
        ("", None),
    ],
)
def test_the_last_box_is_the_answer_unless_it_never_closes(text: str, box: str | None) -> None:
    assert last_boxed(text) == box


def test_a_gold_loses_its_box_only_if_it_has_one() -> None:
    assert unwrap_box(r"$\boxed{x^{2}}$") == "x^{2}"
    assert unwrap_box("x^{2}") == "x^{2}"


@pytest.mark.timeout(120)  # what is not linear takes hours
def test_boxes_are_found_in_linear_time() -> None:
    assert last_boxed(r"\boxed{" * 100_000) is None
    assert last_boxed(r"\boxed{" * 50_000 + "}" * 50_000) is not None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> 5 </answer>", "5"),
        ("<answer>1</answer> no <answer>2</answer>", "2"),
        ("<answer>cut", "cut"),
        ("no tag", None),
    ],
)
def test_the_last_answer_tag(text: str, answer: str | None) -> None:
    assert answer_tag(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"), [("work\n#### 1,234\n", "1,234"), ("#### 1\n#### 2", "2"), ("####", None), ("#### ", None)]
)
def test_gsm8k_hashes(text: str, answer: str | None) -> None:
    assert hashes(text) == answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("it is 12.", "12"),
        ("1 then -3", "-3"),
        ("x=−3", "-3"),
        ("5-3", "3"),
        ("(4)-3", "3"),
        ("$1,234.50", "1,234.50"),
        ("1,2,3", "3"),
        ("3/4 of it", "3/4"),
        (".5", ".5"),
        ("2e-3", "2e-3"),
        ("version 1.2.3", ".3"),
        ("x = –3", "-3"),
        ("x = ‑3", "-3"),
        ("pages 3–5", "5"),
        ("3 1/2 cups", "3 1/2"),
        ("-3½", "-3 1/2"),
        (r"3\frac{1}{2}", "3 1/2"),
        (r"-\dfrac34", "-3/4"),
        (r"x = \dfrac{-12}{5}", "-12/5"),
        ("1⁄5", "1/5"),
        (r"1{,}000", "1,000"),
        (r"1,\!234,\!567", "1,234,567"),
        (r"1\,000", "1,000"),
        ("1\u202f000", "1,000"),
        ("1'000", "1,000"),
        ("2^{10}", "2^{10}"),
        ("2⁵", "2^{5}"),
        ("10^-3", "10^-3"),
        ("5 cm^2", "5"),
        ("5 cm²", "5"),
        ("x_1 = 7", "7"),
        ("7 = x_{12}", "7"),
        ("_7_", "7"),
        ("90^{\\circ}", "90"),
        ("90°", "90"),
        ("the 5^{th}", "5"),
        ("Rs.500", "500"),
        ("approx.500", "500"),
        ("=.5", ".5"),
        ("$.50", ".50"),
        (r"a loss: -\$5", "-5"),
        ("−€5", "-5"),
        ("10-\\$5", "5"),
        ("3/12.5", "12.5"),
        ("none", None),
    ],
)
def test_the_last_number(text: str, number: str | None) -> None:
    assert last_number(text) == number


@pytest.mark.timeout(120)  # what is not linear takes hours
@pytest.mark.parametrize(
    "part", ["9", "9 ", "1 1/", "x_{", "x_1", r"\frac{1}", "9^{", "9^", ",999", r"\boxed 9", "½", "2⁵ "]
)
def test_numbers_and_boxes_are_read_in_linear_time(part: str) -> None:
    """CPU seconds of 100,000 repetitions; what is linear takes less than half of one."""
    started = time.process_time()
    last_number(part * 100_000)
    last_boxed(part * 100_000)
    assert time.process_time() - started < 10


def test_reasoning_ends_at_its_last_closing_tag() -> None:
    assert after_reasoning("a</think>b</think>c") == "c"
    assert after_reasoning("never closed") == "never closed"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[
            ("1,234", "1234"),
            ("-$5", "-5"),
            ("3/4", "3/4"),
            ("2.50", "5/2"),
            ("1e3", "1000"),
            (".5", "1/2"),
            ("5.", "5"),
        ],
        *[("3 1/2", "7/2"), ("-3½", "-7/2"), ("−5", "-5"), (r"\frac{3}{4}", "3/4"), ("1{,}000", "1000")],
    ],
)
def test_numbers_are_read_exactly(text: str, value: str) -> None:
    assert str(to_fraction(text)) == value


@pytest.mark.parametrize(
    "text", ["", "1/0", "nan", "inf", "1e9999", "9" * 500, "1,23", "--1", "٣", ".", "3 5/2", "3 1", "2^5", "2⁵"]
)
def test_what_is_not_a_number_is_none(text: str) -> None:
    assert to_fraction(text) is None
