r"""The words that the grader `math` reads as units: names that come from pint, and ours (money, counted nouns, bytes).

Each word has one meaning, a product of powers: `km` and `kilometres` are kilometer, `mph` is mile hour^-1. Symbols keep
their case, because mW is not MW; longer names do not. `lookup` decides which words are units.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Set

from winnow.rewards.math_equivalence.unit_names import PREFIXED, PREFIXES, UNITS

Powers = Mapping[str, int]  # unit -> exponent

# These need no \text. Other names of one or two letters do, for 12m and 2mg may be products.
BARE = frozenset(("cm", "km", "mm", "kg", "ft", "yd", "lb", "oz", "hr", "ml", "mL", "Hz", "in"))
# What pint has otherwise, or as a number: angles, bytes, revolutions. A degree is named as its sign in units.py.
MORE = """
second: secs; hour: hrs; year: year_old years_old yrs; inch: in; cubic_centimeter: cc; astronomical_unit: AU;
pound_force: lbf; pound_force_per_square_inch: psi; kilometer_per_hour: kmh kmph; kilowatt_hour: kwh; hertz: hz HZ;
unit; degree; degreeC: degree_celsius degrees_celsius; degreeF: degree_fahrenheit degrees_fahrenheit; percent;
radian: rad; revolution: rev turn; decibel: dB; bit; byte; person: persons; kilobyte: kB KB; megabyte: MB;
gigabyte: GB; terabyte: TB; bit_per_second: bps
"""
# Alternatives of a sign or a word are separated by a bar.
MONEY = """
dollar: USD usd buck US_dollar; cent: ¢; penny: pence pennies; euro: EUR €; sterling: GBP £ quid;
pound|sterling: pound pounds; yuan: CNY RMB renminbi 元; yen: JPY; yen|yuan: ¥; rupee: INR ₹ Rs rupees; won: KRW ₩;
ruble: RUB ₽ rouble; franc: CHF; peso: MXN; BRL; krona: SEK kronor; krone: NOK DKK kroner; zloty: PLN; baht: THB;
dong: VND; rupiah: IDR; ringgit: MYR; rand: ZAR; shekel: ILS; dirham: AED; riyal: SAR; naira: NGN; shilling: KES;
taka: BDT; CAD; AUD; NZD; HKD; SGD; TWD
"""
# Left out are words that change the number: dozen, pair, couple, half, third, quarter, score, gross, million.
NOUNS = """
accident adult album animal answer apartment apple arrangement arrow attempt baby bag ball balloon banana basket bead
bean bear bed bee bike bird block blueberry boat book bottle bouquet bowl box boy bracelet branch brick brother bucket
bug building bulb bus bush bushel button cake calorie camper candle candy car card carrot case cat cell chair chapter
cherry chicken child chocolate choice circle city class classroom clip coin color colour column combination container
cookie corner cousin cow crate crayon cupcake customer deer desk dice die digit dime doctor dog doll donut door dot
dress drink driver duck edge egg element employee envelope episode error event face factor family fan farmer feature
fish floor flower fork friend frog function game garden gift girl glass goal goat grade grandchild grape graph group
guest guitar handshake hat head hen hit home horse hotdog house image individual integer invitation item jar job joke
juror kid kitten knight lamp language lap lawn leaf leg lego lemon lesson letter line lion loaf lollipop machine
magazine man marble mark match meal member mention message mistake model monkey mouse move muffin mug necklace
neighbor nickel note notebook number object onion orange orbit order outcome outfit page painting parent part
participant passenger path patient peach peanut pear pen pencil permutation person phone photo piano picture pie piece
pig pill pizza place plane plant plate player plum point polygon possibility post potato present prisoner prize
problem puppy puzzle question rabbit rectangle ribbon ring road robot rock roll room root rope rose row sandwich scarf
school scoop seat section seed segment sheep shelf shell shirt shoe side sister slice sock solution song spoon square
stamp star step stick sticker stone story straw strawberry street student subset suit swap sweater sweet symbol table
tank task teacher team term test ticket tie tile time tire toy train trapezoid tray tree triangle tricycle trip truck
tulip turtle valley value vase vehicle vertex video vote voter walk wall watch watermelon way wheel window winner
woman word worker worm zebra zero
"""
_PLURALS = {"person": "people", "child": "children", "grandchild": "grandchildren", "man": "men", "woman": "women"} | {
    **{"mouse": "mice", "vertex": "vertices", "die": "dice", "leaf": "leaves", "loaf": "loaves", "shelf": "shelves"},
    **{"scarf": "scarves", "sheep": "sheep", "fish": "fish", "deer": "deer"},
}


COUNTED = frozenset(NOUNS.split())
MONEY_NAMES = frozenset(entry.partition(":")[0].strip() for entry in MONEY.split(";"))
_TIMES = frozenset(("am", "pm"))  # of day
# hg, hl and dg are in use, dV and hA are not.
_RARE = {"hecto": ("gram", "liter", "meter", "pascal")} | dict.fromkeys(("deci", "centi"), ("gram", "liter", "meter"))


def lookup(word: str, *, upright: bool) -> Powers | None:
    r"""The unit that a word names; None for another word. `upright` means that \text or \mathrm sets the word."""
    if len(word) > 2:
        return words().get(word) or words().get(word.lower())
    common = words().get(word.lower()) if word.lower() in BARE else None
    if common is not None and words().get(word, common) == common and word != "MM":  # KM, but not Mm or millions
        return common
    return words().get(word) if upright or word in BARE or not word.isascii() else None


def _table(text: str) -> Iterator[list[str]]:
    """The names of an entry, the first of which is the unit; blanks instead of underscores in the others."""
    for entry in text.split(";"):
        name, _, others = entry.strip().partition(":")
        yield [name, *(other.replace("_", " ") for other in (name, *others.split()))]


def _powers(name: str, units: Set[str]) -> Powers:
    """`mile_per_hour` as mile hour^-1, and `watt_hour` as watt hour if both are units."""
    above, _, below = name.partition("_per_")
    parts = above.split("_") if set(above.split("_")) <= units else [above.removesuffix("s") if below else above]
    return dict.fromkeys(parts, 1) | ({below: -1} if below else {})


def _with_prefix(prefix: list[str], words: list[str], powers: Powers) -> Iterator[tuple[str, Powers]]:
    """`kilometer` and `km`: names after the name of the prefix, symbols (of at most three letters) after its symbol."""
    name, _, *symbols = prefix
    first, *others = powers
    scaled = {name + first: 1} | {other: powers[other] for other in others}
    for word in words:
        yield name + word, scaled
        if len(word) <= 3 and (name not in _RARE or first in _RARE[name]):
            yield from ((symbol + word, scaled) for symbol in (*symbols, *(["K"] if name == "kilo" else [])))


def _plural(name: str) -> str:
    if name in _PLURALS:
        return _PLURALS[name]
    if name.endswith("y") and name[-2:-1] not in "aeiou":
        return name[:-1] + "ies"
    return name + ("es" if name.endswith(("s", "x", "z", "ch", "sh", "potato")) else "s")


@functools.cache
def words() -> Mapping[str, Powers]:
    """Every spelling of every unit."""
    measures = [*_table(UNITS), *_table(MORE)]
    prefixes = [*_table(PREFIXES)]
    prefixed = frozenset(PREFIXED.split())
    units = {name for name, *_ in measures} | {prefix[0] + name for name in prefixed for prefix in prefixes}
    found: dict[str, Powers] = {}
    for name, *spelled in measures:
        powers = _powers(name, units)
        found |= dict.fromkeys(spelled, powers)
        for prefix in prefixes if name in prefixed else ():
            found |= _with_prefix(prefix, spelled, powers)
    found |= {word: {name: 1} for name, *spelled in _table(MONEY) for word in spelled}
    found |= {word: {word: 1} for word in NOUNS.split() if word not in found}
    for word in [word for word in found if word in BARE or (len(word) > 2 and word[-1].islower())]:
        found.setdefault(_plural(word), found[word])
    return {word: powers for word, powers in found.items() if word not in _TIMES}
