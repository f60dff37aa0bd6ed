"""Names of units, generated from pint 0.25.3 by scripts/unit_names.py; not edited by hand.

An entry of UNITS is a unit and its other spellings. The units of PREFIXED take the prefixes too, as names (kilometer)
and as symbols (km).
"""

from __future__ import annotations

UNITS = """
meter: m metre; second: s sec; ampere: A amp; candela: cd candle; gram: g; mole: mol; kelvin: K; atmosphere: atm;
baud: Bd; angstrom: Å; micron; light_year: ly lightyear; astronomical_unit: au; parsec: pc; nautical_mile: nmi;
metric_ton: t tonne; unified_atomic_mass_unit: amu; dalton: Da; grain; carat; minute: min; hour: h hr; day; week;
fortnight; year: yr; month; hectare: ha; liter: l L litre; stere; hertz: Hz; revolutions_per_minute: rpm;
revolutions_per_second: rps; knot: kn; mile_per_hour: mph MPH; kilometer_per_hour: kph KPH; kilometer_per_second: kps;
meter_per_second: mps; foot_per_second: fps; newton: N; dyne: dyn; joule: J; erg; watt_hour: Wh watthour;
electron_volt: eV electronvolt; calorie: cal; british_thermal_unit: Btu BTU; watt: W; volt_ampere: VA; horsepower: hp
hydraulic_horsepower; pascal: Pa; bar; torr; foot_pound: footpound; poise; stokes: St; molar; katal: kat; becquerel:
Bq; curie: Ci; gray: Gy; sievert: Sv; rem; roentgen; lumen: lm; lux: lx; coulomb: C; ampere_hour: Ah; volt: V; ohm: Ω;
siemens: S mho; farad: F; weber: Wb; henry: H; tesla: T; ampere_turn: At; inch: inches; foot: ft feet; yard: yd; mile:
mi; fathom; rod; furlong; league; acre; acre_foot: acre_feet; peck; bushel; fluid_dram: fldr fluidram; fluid_ounce:
floz; pint: liquid_pint; quart: qt liquid_quart; gallon: gal liquid_gallon; teaspoon: tsp; tablespoon: tbsp; cup:
liquid_cup; barrel: bbl; hogshead; ounce: oz; pound: lb; stone; hundredweight: cwt short_hundredweight; ton:
short_ton; slug; poundal: pdl; pennyweight: dwt; troy_ounce: toz ozt; troy_pound: tlb lbt; centipoise: cP
"""
PREFIXED = """
meter gram second ampere kelvin mole liter newton joule watt volt coulomb farad henry tesla siemens ohm weber pascal
hertz bar electron_volt calorie watt_hour becquerel gray sievert lumen lux parsec
"""
PREFIXES = """
tera: T; giga: G; mega: M; kilo: k; hecto: h; deci: d; centi: c; milli: m; micro: µ μ u; nano: n; pico: p; femto: f
"""
