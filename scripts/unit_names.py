#!/usr/bin/env python
"""Write the allow-list of unit names that the grader `math` accepts, from the units of pint.

    python scripts/unit_names.py

pint by itself accepts too much to judge an answer: constants, single letters and English words. This file lists what
is left out, and the result is committed, to be read. So no worker imports pint, and no release of pint changes a
verdict. A test compares the file with the pinned pint. `scripts/reference.py` writes the list into docs/reference.md.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "src" / "winnow" / "rewards" / "math_equivalence" / "unit_names.py"
HEAD = '''"""Names of units, generated from pint {version} by scripts/unit_names.py; not edited by hand.

An entry of UNITS is a unit and its other spellings. The units of PREFIXED take the prefixes too, as names (kilometer)
and as symbols (km).
"""

from __future__ import annotations

'''
# Families of units that are in no answer, and words with another meaning: Greek letters, 5th, 3rd, three fifths.
FAMILIES = re.compile(
    r"\d|H2O|Hg|conventional|international|planck|atomic_unit|imperial|delta|force|refrigeration|cooling|sidereal|tropical"
    r"|common_year|leap_year|gregorian|synodic|survey|thermochemical|scaled|standard_liter|css|tex|magneton|dry_|oil_|beer_"
    r"|constant|^ab(?!erd)|^stat|^US_|^UK_|^sq|^cu(?:bic)?_|_star|x_unit|biot|apothecary|deg|long_|circular|counts_per|squared|avdp"
    r"|bits_per|s_per_(?:inch|centimeter)|avoirdupois|kip"
)
WORDS = """
number_english number_meter jute aberdeen RKM LMH shake svedberg gamma lambda particle quad fifth quarter bag section
count thou buckingham darcy sverdrup clausius reyn rhe entropy_unit enzyme_unit unit_pole therm slinch point pica didot
cicero denier minim gamma_mass eon century millennium decade langley stilb lambert nit peak_sun_hour rads franklin
townsend gilbert rutherford reciprocal_centimeter refractive_index_unit ton_TNT atmosphere_liter sound_pressure_level
square_league board_foot tonne_of_oil_equivalent are decibelwatt decibelmilliwatt decibelmicrowatt quadrillion_Btu
technical_atmosphere rydberg hartree bohr fermi hand chain link shot cables_length faraday barye boiler_horsepower
electrical_horsepower metric_horsepower debye galileo maxwell oersted gauss pixel scruple dram barn gill
"""
# Spellings with another meaning in an answer: times of day, products, constants, ordinal numbers, thousands, millions.
SPELLINGS = """
at am pm in pi rd th nd st a b c d e k u M P G D U B R pk bu gr cp pole perch dot blob jig kt pt ct fur bps
julian_year
"""
KEPT = {"standard_atmosphere": "atmosphere"}  # among the constants of pint
SPELLED = re.compile(r"[A-Za-zÅΩ]+|[a-z]{3,}_[a-z]{3,}")
PREFIXED = """
meter gram second ampere kelvin mole liter newton joule watt volt coulomb farad henry tesla siemens ohm weber pascal
hertz bar electron_volt calorie watt_hour becquerel gray sievert lumen lux parsec
"""
PREFIXES = """
tera giga mega kilo hecto deci centi milli micro nano pico femto
"""


def units(registry: Any) -> dict[str, list[str]]:
    """Each unit of the allow-list with its other spellings, in the order of pint."""
    constants = _constants()
    found: dict[str, list[str]] = {}
    for definition in dict.fromkeys(registry._units.values()):
        name = KEPT.get(definition.name, definition.name)
        dropped = definition.name in constants and definition.name not in KEPT
        if (
            dropped
            or name in WORDS.split()
            or FAMILIES.search(name)
            or not registry.Unit(definition.name).dimensionality
        ):
            continue
        others = [str(definition.symbol), *map(str, definition.aliases)]
        spelled = [other for other in dict.fromkeys(others) if _is_kept(other, name)]
        stem = next((p for p in ("kilo", "centi", "milli", "deci", "femto", "micro") if name.startswith(p)), "")
        if stem and name.removeprefix(stem) in PREFIXED.split():
            continue  # made of prefix and unit
        found[name] = spelled
    return found


def text(version: str, registry: Any) -> str:
    """The file."""
    entries = (f"{name}: {' '.join(others)}".rstrip(": ") for name, others in units(registry).items())
    known = {name: registry._prefixes[name] for name in PREFIXES.split()}
    spelled = {name: [str(prefix.symbol), *map(str, prefix.aliases)] for name, prefix in known.items()}
    prefixes = (f"{name}: {' '.join(s for s in of if s not in ('mu', 'mc'))}" for name, of in spelled.items())
    return "".join(
        (
            HEAD.format(version=version),
            f'UNITS = """\n{textwrap.fill("; ".join(entries), 118)}\n"""\n',
            f'PREFIXED = """\n{textwrap.fill(PREFIXED.strip(), 118)}\n"""\n',
            f'PREFIXES = """\n{textwrap.fill("; ".join(prefixes), 118)}\n"""\n',
        )
    )


def _is_kept(spelling: str, name: str) -> bool:
    known = SPELLED.fullmatch(spelling) and spelling not in SPELLINGS.split() and spelling != name
    return bool(known) and not FAMILIES.search(spelling)


def _constants() -> set[str]:
    import pint

    source = Path(pint.__file__).with_name("constants_en.txt").read_text(encoding="utf-8")
    return {line.partition("=")[0].strip() for line in source.splitlines() if re.match(r"\w+ *=", line)}


def main() -> None:
    import pint

    TARGET.write_text(text(pint.__version__, pint.UnitRegistry()), encoding="utf-8")
    print(f"written: {TARGET.name}")


if __name__ == "__main__":
    main()
