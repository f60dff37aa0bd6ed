"""Every kind of edit on a small module, by hand."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from mutant_edits import CannotApply, mutated

MODULE = '''\
import math

from tools import clip, log, register

LIMIT = 3


@register("shape", size=3)
def area(width, height, *, scale=3):
    """The area, 3 times: width * height."""
    if width < 0 or height < 0:  # no ü, no width < 0
        raise ValueError("ü")
    total = 0
    for side in (width, height):
        total += side
        if side > 9:
            total = clip(side, 9)
    parts = [part for part in (width, height) if part]
    while total > 10 and parts:
        total = total - 1
    log(total)
    log(math.floor(total), level=1)
    return total * scale


class Box:
    depth = 2

    def volume(self, side):
        """Of the box."""
        return side * self.depth

    def twice(self, side):
        def inner(value):
            return value if value else 2

        return inner(side) + inner(side)
'''


def lines(name, *edits):
    """The lines of the module that edits change, before and after."""
    before, after = MODULE.splitlines(), mutated(MODULE, name, edits).splitlines()
    old, new = [line.strip() for line in before if line not in after], [x.strip() for x in after if x not in before]
    return old, new


def change(name, **edit):
    (old,), (new,) = lines(name, edit)
    return old, new


def test_a_statement_becomes_pass():
    assert change("area", drop="raise") == ('raise ValueError("ü")', "pass")
    assert change("area", drop="call", holding="floor") == ("log(math.floor(total), level=1)", "pass")
    old, new = lines("area", {"drop": "for"})
    assert len(old) == 4
    assert new == ["pass"]


def test_a_statement_becomes_others_at_its_indentation():
    after = mutated(MODULE, "area", [{"replace": "call", "holding": "level", "by": "log(1)\nif total:\n    OLD"}])
    assert "    log(1)\n    if total:\n        log(math.floor(total), level=1)\n    return" in after


@pytest.mark.parametrize(
    ("edit", "new"),
    [
        ({"negate": "while"}, "while (not (total > 10 and parts)):"),
        ({"negate": "if", "holding": "9"}, "if (not (side > 9)):"),
        ({"negate": "filter"}, "parts = [part for part in (width, height) if (not (part))]"),
        ({"value": "while", "by": "OLD and side"}, "while ((total > 10 and parts) and side):"),
        ({"value": "for", "by": "()"}, "for side in (()):"),
        ({"value": "return", "by": "None"}, "return (None)"),
        ({"value": "keyword", "holding": "level", "by": "2"}, "log(math.floor(total), level=(2))"),
        ({"value": "assignment", "holding": "- 1", "by": "0"}, "total = (0)"),
    ],
)
def test_a_condition_or_a_value_becomes_another(edit, new):
    assert change("area", **edit)[1] == new


def test_an_operator_becomes_another():
    assert change("area", operator="-", by="+")[1] == "total = ((total) + (1))"
    assert change("area", operator="+", by="-")[1] == "total -= (side)"
    assert change("area", operator="and", by="or")[1] == "while ((total > 10) or (parts)):"
    assert (
        change("area", operator="<", which="2 of 2", by="<=")[1]
        == "if width < 0 or ((height) <= (0)):  # no ü, no width < 0"
    )


def test_a_constant_becomes_another_and_no_decorator_or_docstring_counts():
    assert change("area", constant="3", by="4")[1] == "def area(width, height, *, scale=(4)):"
    assert change("area", constant="10", by="11")[1] == "while total > (11) and parts:"
    with pytest.raises(CannotApply):
        change("area", constant="10.0", by="11.0")  # of another type
    with pytest.raises(CannotApply):
        change("Box.volume", constant="'Of the box.'", by="''")


def test_arguments_change_places_and_calls_become_their_argument():
    assert change("area", swap="clip")[1] == "total = clip(9, side)"
    assert change("area", unwrap="floor")[1] == "log((total), level=1)"
    assert change("area", unwrap="log", holding="level")[1] == "(math.floor(total))"


def test_a_function_returns_at_once_and_keeps_its_docstring():
    after = mutated(MODULE, "Box.volume", [{"returns": "side + 1"}])
    assert ast.get_docstring(ast.parse(after).body[-1].body[1]) == "Of the box."
    assert "        return (side + 1)\n        return side * self.depth\n" in after


def test_a_pattern_ignores_blanks_comments_docstrings_and_quotes():
    assert change("area", find="width<0", by="width < 1")[1] == "if width < 1 or height < 0:  # no ü, no width < 0"
    assert change("area", find="( 'ü' )", by="()")[1] == "raise ValueError()"
    wide = MODULE.replace(
        "log(math.floor(total), level=1)", "log(\n        math.floor(  # low\n            total,\n        ),\n    )"
    )
    assert "floor(-total)" in mutated(wide, "area", [{"find": "(total)", "which": "2 of 2", "by": "(-total)"}])


def test_a_place_is_a_function_a_method_a_class_or_a_variable():
    assert change("LIMIT", constant="3", by="4")[1] == "LIMIT = (4)"
    assert change("Box", constant="2", which="1 of 2", by="4")[1] == "depth = (4)"
    assert change("Box.depth", value="assignment", by="OLD + 1")[1] == "depth = ((2) + 1)"
    assert change("Box.twice.inner", negate="ternary")[1] == "return value if (not (value)) else 2"


def test_several_edits_are_made_one_after_the_other():
    edits = {"drop": "call", "holding": "floor"}, {"drop": "call"}
    with pytest.raises(CannotApply):
        lines("area", edits[1])
    assert (
        mutated(MODULE, "Box.twice", [{"find": "+", "by": "-"}, {"operator": "-", "by": "*"}]).count(" * (inner") == 1
    )


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("no_such", {"drop": "if"}),
        ("Box.no_such", {"drop": "if"}),
        ("area", {"drop": "if"}),  # there are two
        ("area", {"drop": "if", "which": "1 of 3"}),
        ("area", {"drop": "if", "which": "3 of 2"}),
        ("area", {"drop": "if", "which": "2"}),
        ("area", {"drop": "assert"}),
        ("area", {"drop": "loop"}),
        ("area", {"find": "width < 0", "by": "side < 0", "holding": "height"}),
        ("area", {"find": "width * height", "by": ""}),  # two identifiers
        ("area", {"find": " ", "by": "1"}),
        ("area", {"constant": "total", "by": "4"}),
        ("area", {"constant": 3, "by": "4"}),
        ("area", {"drop": "raise", "by": "pass"}),
        ("area", {"value": "while"}),
        ("area", {"drop": "raise", "negate": "while"}),
        ("area", {"holding": "total"}),
        ("area", {"value": "while", "by": "OLD +"}),  # no Python
        ("area", {"value": "while", "by": "forgotten"}),  # nothing has this name
        ("area", {"value": "while", "by": "OLD"}),  # no change
        ("LIMIT", {"returns": "3"}),
    ],
)
def test_what_is_not_there_not_unique_or_no_edit_is_refused(name, edit):
    with pytest.raises(CannotApply):
        mutated(MODULE, name, [edit])


def test_a_name_that_is_defined_twice_is_refused():
    with pytest.raises(CannotApply):
        mutated(MODULE + "\n\ndef area():\n    return 1\n", "area", [{"drop": "return"}])


def test_other_names_comments_and_layout_break_no_edit():
    other = MODULE.replace("total", "amount").replace("parts", "sides").replace("# no ü", "#").replace('"ü"', "'other'")
    other = other.replace(
        "    for side in (width, height):\n", "\n    for side in (\n        width,\n        height,\n    ):\n"
    )
    for edit in (
        {"drop": "call", "holding": "floor"},
        {"negate": "while"},
        {"find": "width < 0", "by": "width < 1"},
        {"operator": "-", "by": "+"},
        {"value": "for", "by": "()"},
        {"drop": "if", "which": "2 of 2"},
    ):
        assert mutated(other, "area", [edit]) != other
