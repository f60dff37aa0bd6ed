r"""Units of the `math` grader: omitted, spelled otherwise, exchanged, and words that are none."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest

from winnow.rewards.math_equivalence import algebra
from winnow.rewards.math_equivalence.grader import equal
from winnow.rewards.math_equivalence.latex import tidy
from winnow.rewards.math_equivalence.units import units_of

pytestmark = pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")
CASES = Path(os.environ.get("WINNOW_TEST_CASES", Path(__file__).parents[4] / ".." / "shared" / "cases"))

# Spellings of 12 of one unit: each equals each other, 12, and no spelling of another line.
SAME = {
    "m": (r"12 \text{ m}", r"12\,\mathrm{m}", r"12\mathrm{~m}", r"12\text{ metres}", "12 meters", r"\text{12 m}"),
    "km": ("12 km", "12km", r"12 \text{ km}", r"12 \text{ kilometers}", "12 KM"),
    "cm^2": (
        "12 cm^2", r"12 \text{ cm}^2", r"12 \mathrm{cm}^{2}", "12 square centimeters", r"12 \text{ sq. cm}",
        "12 cm²",
    ),
    "m^2": (r"12 \text{ m}^2", r"12 \text{ sq m}", r"12\mathrm{m^2}", r"12 \text{ square meters}"),
    "m^3": (r"12 \text{ m}^3", r"12 \text{ cubic meters}", r"12 \text{ m³}"),
    "m/s": (
        r"12 \text{ m/s}", r"12 \frac{\text{m}}{\text{s}}", "12 meters per second", r"12\,\mathrm{m\,s^{-1}}",
        r"12 \text{ m s}^{-1}", r"12 \mathrm{m} \cdot \mathrm{s}^{-1}", r"12 \text{ m}/\text{s}",
        r"12 \text{ meters/second}",
    ),
    "m/s^2": (
        r"12 \text{ m/s}^2", r"12 \mathrm{m/s^2}", "12 meters per second squared", "12 meters per second per second",
    ),
    "km/h": ("12 km/h", r"12 \text{ km/h}", "12 kph", "12 kilometers per hour"),
    "mph": ("12 mph", "12 MPH", r"12 \text{ miles per hour}", "12 miles/hour"),
    "s": (r"12 \text{ s}", "12 seconds", r"12 \text{ sec}"),
    "1/s": (r"12 \text{ s}^{-1}", r"12 \mathrm{s^{-1}}", "12 per second"),
    "min": ("12 minutes", r"12 \text{ min}"),
    "years": ("12 years", "12 years old", r"12 \text{ yrs}"),
    "in": ("12 in", "12 inches", r"12 \text{ in.}"),
    "mW": (r"12 \text{ mW}", "12 milliwatts"),
    "MW": (r"12 \text{ MW}", "12 megawatts"),
    "rpm": ("12 rpm", "12 revolutions per minute"),
    "Hz": ("12 Hz", "12 hertz"),
    "mg": (r"12 \text{ mg}", "12 milligrams"),
    "Mg": (r"12 \text{ Mg}", "12 megagrams"),
    "N m": (r"12 \text{ N m}", r"12 \text{ N}\cdot\text{m}", "12 newton-meters"),
    "J": (r"12 \text{ J}", "12 joules"),
    "J/(kg K)": (r"12 \text{ J/(kg K)}", r"12 \mathrm{J\,kg^{-1}\,K^{-1}}"),
    "kWh": ("12 kWh", "12 kilowatt hours", "12 kilowatt-hours"),
    "light years": ("12 light years", r"12 \text{ ly}"),
    "um": (r"12\,\mu\mathrm{m}", "12 micrometers"),
    "ohm": (r"12 \mathrm{~\Omega}", "12 ohms"),
    "dollar": (r"\$12", "12 dollars", "USD 12", "12 USD", r"US\$12"),
    "dollar/h": (r"\$12 \text{ per hour}", "12 dollars per hour", r"\$12/\text{hour}"),
    "HKD": (r"HK\$12", "12 HKD"),
    "cent": ("12 cents", "12¢"),
    "euro": ("€12", "12 €", "12 euros", "EUR 12"),
    "sterling": ("£12", r"\pounds 12", "12 GBP"),
    "yuan": ("12 yuan", r"12 \text{ RMB}", "12元"),
    "rupee": ("₹12", "Rs. 12", "12 rupees"),
    "apples": ("12 apples", "12 (apples)", r"12 \text{ apple}", "12 Apples"),
    "people": ("12 people", "12 persons"),
    "people per km^2": ("12 people per square kilometer", r"12 \text{ people/km}^2"),
    "units": ("12 units", r"12 \text{ units}"),
    "square units": ("12 square units", r"12 \text{ units}^2", "12 sq. units"),
    "points": ("12 points", r"12 \text{ points}"),
    "ways": ("12 ways",),
    "GB": (r"12 \text{ GB}", "12 gigabytes"),
}  # fmt: skip

OTHER_VALUES = [
    ("3 apples and 4 pears", "4 pears and 3 apples"),
    (r"\frac{3}{4}", r"\frac{3}{4} \text{ m}"), (r"2\sqrt{3}", r"2\sqrt{3} \text{ cm}^2"),
    (r"4\pi", r"4\pi \text{ m}^2"), ("x", r"x \text{ m}"), ("2x+1", r"2x+1 \text{ apples}"), ("-7", r"-7 \text{ K}"),
    ("5500000", "5.5 million dollars"), ("(3, 4)", r"(3 \text{ m}, 4 \text{ m})"), ("3, 4", "3 cm and 4 cm"),
    ("500000", r".5 \text{ million}"),
    ("[2, 5]", r"[2, 5] \text{ s}"), ("5", r"v = 5 \text{ m/s}"), (r"v = 5 \text{ m/s}", "5"),
    (r"\frac{3}{4}", r"\text{€}\frac{3}{4}"), ("£12", "12 pounds"), ("12 lb", "12 pounds"), ("¥12", "12 yuan"),
    ("¥12", "12 yen"), (r"8 \text{ m}", r"5 \text{ m} + 3 \text{ m}"),
    (r"3 \text{ h } 20 \text{ min}", "3 hours and 20 minutes"),
    (r"3 \text{ m } 20 \text{ cm}", "3 meters, 20 centimeters"),
]  # fmt: skip

# A name of one or two letters is a product unless \text or \mathrm sets it; constants and other words are no units.
NO_UNITS = [
    "12m", "12 m", "12 m/s", "12 N", "12 J", "12 ms", "2mg", "12 nm", "3cd", "2 mol/l x", "12k", r"12 \text{ k}",
    r"12 \text{ M}", r"12 \text{ MM}", r"2\mathrm{e}", "12e", "12i", r"12\mathrm{i}", r"12\pi", "12 pi", "12c",
    r"12 \text{ c}", "4x", "12x", "12C", "12 at", r"12 \text{ at}", "12 am", r"12 \text{ am}", "12 pm",
    r"12 \text{ pm}", "12 a.m.", "12 in base 7", r"12 \text{ in total of}", "12 dozen", "12 pairs", "12 quarters",
    "12 thirds", "12 hundred", "12 lambda", "12 gamma", "12th", r"12\text{th}", "12 as", "12!", "12 or 13",
    r"12 \text{ and } 13", "I have 12 apples", "12 m 3", "12 mod 5", "12 factorial", "12 squared",
    r"(12 \text{ m})^2", r"12 \text{ m} \times 3", r"\sqrt{12 \text{ m}}", r"12_{\text{m}}", r"12^{\text{m}}",
    r"12 \text{ m}_1", r"12\mathrm{d}x", r"12\mathrm{C}3", "m 12", "apples 12", "12 apples 3", "12 km 5", "12/cm",
    r"\frac{12}{cm}", "12 zorks", "12 avogadro", "12 particles per", r"12 \lambda", r"12 \Omega",
]  # fmt: skip

DIFFERENT = [
    ("A", "A polygon"), ("A", "A mile"), ("B", "B students"), ("I", "I minutes"),
    ("0.5", ".5 million"), ("1/2000000", "1/2 million"),
    (r"1 \text{ km}", r"1000 \text{ m}"), ("120 minutes", "2 hours"), (r"60 \text{ rpm}", "1 Hz"),
    (r"60 \text{ rpm}", r"6.28 \text{ Hz}"), (r"12 \text{ N m}", r"12 \text{ J}"), ("100 cents", "1 dollar"),
    (r"3 \text{ cm}, 4 \text{ m}", r"3 \text{ m}, 4 \text{ cm}"),
    (r"(3 \text{ cm}, 4 \text{ m})", r"(3 \text{ m}, 4 \text{ cm})"),
    (r"(3 \text{ cm}, 4 \text{ m})", r"(3 \text{ cm}, 4 \text{ cm})"),
    (r"2\sqrt{3} \text{ cm}, 4 \text{ m}", r"4 \text{ cm}, 2\sqrt{3} \text{ m}"),
    ("3 apples and 4 pears", "4 apples and 3 pears"), ("3 apples and 4 pears", "4, 3"),
    (r"(5 \text{ m})^2", r"25 \text{ m}"), (r"5 \text{ m} + 3 \text{ s}", r"8 \text{ m}"),
    (r"5 \text{ m} + 3 \text{ s}", "8"), (r"5 \text{ m} \times 3 \text{ m}", r"15 \text{ m}"), ("£12", "12 lb"),
    ("¥12", "¥13"), ("3 points", "3 people"), (r"12 \text{ m}", r"13 \text{ m}"), (r"12 \text{ m}", "13"),
    (r"5 \text{ h } 30 \text{ min}", r"5.5 \text{ h}"), ("12 A", r"12 \text{ V}"),
    (r"12 \text{ s}", r"12 \text{ S}"), ("x km", "x mi"), (r"12 \text{ m}", "24 m/2 s"),
]  # fmt: skip


@pytest.mark.parametrize("unit", SAME)
def test_a_unit_may_be_omitted_and_spelled_in_several_ways(unit: str) -> None:
    texts = (*SAME[unit], "12")
    assert [pair for pair in itertools.permutations(texts, 2) if not equal(*pair)] == []
    assert len({units_of(tidy(text)) for text in SAME[unit]}) == 1


def test_every_unit_is_another() -> None:
    firsts = [text for texts in SAME.values() for text in (texts[0], texts[-1])]
    of = {text: unit for unit, texts in SAME.items() for text in texts}
    pairs = [(a, b) for a, b in itertools.permutations(firsts, 2) if of[a] != of[b]]
    assert len(pairs) > 6_000
    assert [pair for pair in pairs if equal(*pair)] == []


@pytest.mark.parametrize(("gold", "answer"), OTHER_VALUES)
def test_units_of_other_values(gold: str, answer: str) -> None:
    assert equal(answer, gold)


@pytest.mark.parametrize("text", NO_UNITS)
def test_what_is_no_unit_is_part_of_the_answer(text: str) -> None:
    assert not equal(text, "12")
    assert not equal("12", text)
    assert equal(text, text)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_units_are_not_converted_or_exchanged(one: str, other: str) -> None:
    assert not equal(one, other)
    assert not equal(other, one)


def test_a_letter_with_and_without_text_is_the_same_text() -> None:
    assert equal("12m", r"12 \text{ m}")
    assert equal("12 m/s", r"12 \text{ m/s}")
    assert not equal("12 m", "12 meters")


def test_the_cases_of_this_kind() -> None:
    path = CASES / "math_false_negatives.jsonl"
    if not path.is_file():
        pytest.skip(f"no {path}: set WINNOW_TEST_CASES to a folder with it")
    cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    cases = [case for case in cases if case["kind"] == "unit that is not in the list"]
    assert len(cases) == 5
    assert [case for case in cases if not equal(case["answer"], case["gold"])] == []
