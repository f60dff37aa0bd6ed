r"""Conditions joined by "or" and "and", set builders against intervals, and all real numbers."""

from __future__ import annotations

import pytest

from winnow.rewards.math_equivalence import algebra
from winnow.rewards.math_equivalence.grader import equal

pytestmark = pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")

# (gold, answer)
EQUAL = [
    # conditions
    (r"x<1 \text{ or } x>3", r"x > 3 \text{ or } x < 1"), (r"x<1 \text{ or } x>3", "x<1, x>3"),
    (r"x<1 \text{ or } x>3", r"x<1 \lor x>3"), (r"x>1 \text{ and } x<3", "x>1, x<3"),
    ("x>0, y>0", r"x>0 \text{ and } y>0"),
    (r"x=1 \text{ or } x=3", r"x=1 \text{ and } x=3"), (r"x=1 \text{ or } x=3", "3, 1"), (r"x>0 \land y>0", "x>0, y>0"),
    # set builders
    ("(1,4)", r"\{x : 1 < x < 4\}"), (r"\{x : 1 < x < 4\}", "(1,4)"), ("(1,4)", r"\{x \mid 1<x<4\}"),
    ("(1,4]", r"\{x \in \mathbb{R} \mid 1 < x \le 4\}"), (r"[2,\infty)", r"\{x \mid x \geq 2\}"),
    (r"(-\infty,2)", r"\{x | x<2\}"), (r"(-\infty,1)\cup(3,\infty)", r"\{x \mid x<1 \text{ or } x>3\}"),
    (r"(-\infty,2)\cup(2,\infty)", r"\{x : x \neq 2\}"), (r"\{x : x>2\}", r"\{t : t>2\}"),
    ("(1,4)", r"\{x : 4 > x > 1\}"),
    ("(1,4)", r"\{x : x>1 \text{ and } x<4\}"), ("(1,4)", r"\{x : x>1, x<4\}"),
    (r"(\sqrt{2},\pi)", r"\{x : \sqrt2<x<\pi\}"),
    (r"[0,1)", r"\{n \in \mathbb{R} : 0\le n<1\}"),
    (r"\{x \mid x\in\mathbb{R}, x\ne 0\}", r"(-\infty,0)\cup(0,\infty)"),
    (r"\left\{x : 1 < x < 4\right\}", r"\left(1,4\right)"),
    (r"(-\infty,1)\cup(1,2)\cup(2,\infty)", r"\{x: x\ne1, x\ne2\}"),
    # all real numbers
    (r"\text{all real numbers}", r"\mathbb{R}"), (r"(-\infty,\infty)", r"\text{all real numbers}"),
    (r"\text{all real numbers}", r"x \in \mathbb{R}"), (r"\mathbb{R}", r"\text{All real numbers}"),
    (r"\mathbb{R}", "ℝ"),
    (r"\text{all reals}", r"(-\infty,+\infty)"), (r"\text{the set of all real numbers}", r"\mathbb R"),
    (r"\mathbb{R}\setminus\{2\}", r"(-\infty,2)\cup(2,\infty)"),
    (r"\text{all real numbers except } 2", r"\mathbb{R}-\{2\}"),
    (r"\{x \mid x \in \mathbb{R}\}", r"\mathbb{R}"),
    (r"\mathbb{R}\setminus\{1,-1\}", r"(-\infty,-1)\cup(-1,1)\cup(1,\infty)"),
]  # fmt: skip

DIFFERENT = [
    (r"x<1 \text{ or } x>3", r"x<1 \text{ and } x>3"), (r"x<1 \text{ and } x>3", r"x<1 \text{ or } x>3"),
    (r"x>1 \text{ or } x<3", r"x>1, x<3"), ("x>0, y>0", r"x>0 \text{ or } y>0"), (r"x>0 \text{ or } y>0", "x>0, y>0"),
    (r"x=1 \text{ or } y=3", r"x=1 \text{ and } y=3"), (r"x=1, y=3", r"x=1 \text{ or } y=3"),
    ("x<1, x>3", r"x<1 \text{ and } x>3"),
    (r"x<1 \lor x>3", r"x<1 \land x>3"), (r"a \le 1 \text{ or } a \ge 2", r"a \le 1 \text{ and } a \ge 2"),
    (r"x \ne 1 \text{ or } x \ne 2", r"x \ne 1 \text{ and } x \ne 2"),
    ("(1,4)", r"\{x \in \mathbb{Z} : 1 < x < 4\}"), (r"\{x \in \mathbb{Z} : 1 < x < 4\}", "(1,4)"),
    ("(1,4)", r"\{n : 1 < n < 4\}"), ("(1,4)", r"\{x \in \mathbb{N} : 1 < x < 4\}"),
    ("(1,4)", r"\{x \in \mathbb{Q} \mid 1<x<4\}"),
    ("(1,4)", r"\{x : 1 \le x < 4\}"), ("(1,4)", r"\{x : 1 < x < 5\}"), ("(1,4]", r"\{x : 1 < x < 4\}"),
    ("[1,4]", r"\{x : 1 < x < 4\}"),
    ("(1,4)", r"\{x : 1 > x > 4\}"), ("(1,4)", r"\{x : 1 < x > 4\}"), (r"(1,4)", r"\{x : x>1 \text{ or } x<4\}"),
    (r"(2,\infty)", r"\{x : x \ge 2\}"), (r"(2,\infty)", r"\{x : x < 2\}"), (r"(3,4]", r"3 < x \le 4"),
    (r"(1,4)", r"\{1,4\}"),
    (r"\{2,3\}", r"\{x \in \mathbb{Z} : 1 < x < 4, x \text{ prime}\}x"),
    ("(1,4)", r"\{x : 1 < x < 4, x \in \mathbb{Z}\}"),
    ("(1,4)", r"\{x : 1 < x < 4, x \text{ is an integer}\}"), ("(1,4)", r"\{x^2 : 1 < x < 4\}"),
    ("(1,4)", r"\{x : 1 < y < 4\}"),
    ("(1,4)", r"\{(x,y) : 1 < x < 4\}"), (r"\mathbb{R}", r"\mathbb{Q}"),
    (r"\mathbb{R}", r"\text{all rational numbers}"),
    (r"\text{all real numbers}", r"\text{all positive real numbers}"),
    (r"\text{all real numbers}", r"\text{all integers}"),
    (r"\text{all real numbers}", r"(0,\infty)"), (r"\text{all real numbers except } 2", r"\text{all real numbers}"),
    (r"\mathbb{R}\setminus\{2\}", r"\mathbb{R}\setminus\{3\}"), (r"\mathbb{R}", r"\mathbb{R}^2"),
    (r"\mathbb{R}^+", r"\mathbb{R}"),
    (r"\text{no real numbers}", r"\text{all real numbers}"), ("R", r"(-\infty,\infty)"), (r"\mathbb{R}", "R"),
]  # fmt: skip


def test_the_same_set_or_conditions() -> None:
    assert [pair for pair in EQUAL if not equal(pair[1], pair[0])] == []


def test_another_set_or_another_connective() -> None:
    assert [pair for pair in DIFFERENT if equal(pair[1], pair[0])] == []
