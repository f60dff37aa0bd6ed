r"""Wrong verdicts per 1,000 pairs: the graders `math` and `strict`, and math-verify, on the same pairs.

    python benchmarks/math_wrong_verdicts.py --seed 4391
    python benchmarks/math_wrong_verdicts.py --seed 4391 --before ../before   also `math` of a former tree

There are four sets of pairs: the edits of math_edits.py, the dressings of math_dressings.py, the cases of users
(shared/cases), and tests/fixtures/math_labels.tsv, which a person labelled before a grader was run on it. Edits and
dressings are drawn by a seed that was not used while the grader was corrected (those were 1, 26, 27 and 2611). The
grader was corrected on the cases and on the labelled pairs. math-verify is called as in its documentation: parse a
boxed gold and a boxed answer, then verify. An exception or a timeout of 5 seconds counts as different. Writes
benchmarks/results/<date>_math_wrong_verdicts.json.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import frame
from math_dressings import DRESSINGS, make_dressings
from math_edits import EDITS, make_edits
from math_judge import verdicts
from math_pairs import DATA, Pair, read_golds, read_labels

from winnow.rewards.math_equivalence import algebra, grader, strict

PACKAGES = ("winnow-rl", "math-verify", "latex2sympy2_extended", "sympy", "antlr4-python3-runtime")
CASES = Path(os.environ.get("WINNOW_TEST_CASES", Path(__file__).parents[2] / "shared" / "cases"))
SHOWN = 8  # maximum number of quoted wrong verdicts of each kind
Equal = Callable[[str, str], bool]


def math_verify_equal(answer: str, gold: str) -> bool:
    import math_verify

    try:
        theirs, mine = (math_verify.parse(rf"\boxed{{{text}}}") for text in (gold, answer))
        return bool(math_verify.verify(theirs, mine))
    except Exception:
        return False


GRADERS: Mapping[str, Equal] = {
    "winnow math": grader.equal,
    "winnow strict": strict.equal,
    "math-verify": math_verify_equal,
}


def read_cases(folder: Path = CASES) -> list[Pair]:
    """The wrong verdicts that users reported, as labelled pairs."""
    names = ("math_false_positives", "math_false_negatives")
    lines = [line for name in names for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    return [Pair(row["kind"], row["equal"], row["answer"], row["gold"], "cases") for row in map(json.loads, lines)]


def wrong_verdicts(pairs: Sequence[Pair], found: Sequence[bool]) -> dict[str, Any]:
    """False positives and negatives: counts, rates per 1,000 pairs of that label, counts by kind, and examples."""
    return {
        "false_positives": _share(pairs, found, label=False),
        "false_negatives": _share(pairs, found, label=True),
    }


def _share(pairs: Sequence[Pair], found: Sequence[bool], *, label: bool) -> dict[str, Any]:
    labelled = [(pair, verdict) for pair, verdict in zip(pairs, found, strict=True) if pair.equal is label]
    wrong = [pair for pair, verdict in labelled if verdict is not label]
    by_kind: dict[str, int] = {}
    for pair in wrong:
        by_kind[pair.kind] = by_kind.get(pair.kind, 0) + 1
    return {
        "pairs": len(labelled),
        "wrong": len(wrong),
        "per_1000": round(1000 * len(wrong) / max(1, len(labelled)), 2),
        "by_kind": by_kind,
        "examples": [[pair.kind, pair.gold, pair.answer] for pair in wrong[:SHOWN]],
    }


def main() -> None:
    parser = frame.parser(
        __doc__,
        seed=(4391, "of the edits and dressings"),
        per_kind=(300, "pairs of each kind of edit, at most"),
        per_dressing=(100, "golds of each dressing, at most"),
    )
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with the seven files")
    parser.add_argument("--cases", type=Path, default=CASES, help="the folder with the cases of users")
    parser.add_argument("--before", type=Path, help="a former tree, whose grader `math` judges the same pairs")
    options = frame.parse(parser)
    algebra.warm()
    logging.disable(logging.WARNING)
    golds = read_golds(options.data)
    parts = {
        "cases": read_cases(options.cases),
        "edits": make_edits(golds, options.seed, per_kind=options.per_kind),
        "dressings": make_dressings(golds, options.seed, per_kind=options.per_dressing),
        "labelled_by_hand": read_labels(),
    }
    report: dict[str, Any] = {
        "pairs_by_kind": {
            kind: sum(pair.kind == kind for pair in parts[part])
            for part, kinds in (("edits", EDITS), ("dressings", DRESSINGS))
            for kind in kinds
        }
    }
    for part, pairs in parts.items():
        found = {name: [equal(pair.answer, pair.gold) for pair in pairs] for name, equal in GRADERS.items()}
        if options.before:
            found["winnow math before"] = verdicts(options.before, pairs)
        report[part] = {name: wrong_verdicts(pairs, judged) for name, judged in found.items()}
        for name, wrong in report[part].items():
            print(part, name, {label: (share["wrong"], share["pairs"]) for label, share in wrong.items()})
    frame.finish("math_wrong_verdicts", report, options, packages=PACKAGES)


if __name__ == "__main__":
    main()
