r"""Wrong verdicts per 1,000 pairs: the graders `math` and `strict`, and math-verify, on the same pairs.

    python benchmarks/math_wrong_verdicts.py --seed 2611

There are two sets of pairs. One contains the edits of math_edits.py, drawn by a seed that was not used while the grader
was corrected (those were 26 and 27). The other is tests/fixtures/math_labels.tsv, which a person labelled before a
grader was run on it, and on which the grader was then corrected. math-verify is called as in its documentation: parse a
boxed gold and a boxed answer, then verify. An exception or a timeout of 5 seconds counts as different. Writes
benchmarks/results/<date>_math_wrong_verdicts.json.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import frame
from math_edits import EDITS, make_edits
from math_pairs import DATA, Pair, read_golds, read_labels

from winnow.rewards.math_equivalence import algebra, grader, strict

PACKAGES = ("winnow-rl", "math-verify", "latex2sympy2_extended", "sympy", "antlr4-python3-runtime")
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


def wrong_verdicts(pairs: Sequence[Pair], equal: Equal) -> dict[str, Any]:
    """False positives and negatives: counts, rates per 1,000 pairs of that label, counts by kind, and examples."""
    began = time.process_time()
    verdicts = [equal(pair.answer, pair.gold) for pair in pairs]
    return {
        "processor_seconds": round(time.process_time() - began, 1),
        "false_positives": _share(pairs, verdicts, label=False),
        "false_negatives": _share(pairs, verdicts, label=True),
    }


def _share(pairs: Sequence[Pair], verdicts: Sequence[bool], *, label: bool) -> dict[str, Any]:
    labelled = [(pair, verdict) for pair, verdict in zip(pairs, verdicts, strict=True) if pair.equal is label]
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
    parser = frame.parser(__doc__, seed=(2611, "of the edits"), per_kind=(300, "pairs of each kind of edit, at most"))
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with the seven files")
    options = frame.parse(parser)
    algebra.warm()
    logging.disable(logging.WARNING)
    edits = make_edits(read_golds(options.data), options.seed, per_kind=options.per_kind)
    report: dict[str, Any] = {
        "pairs_by_kind": {kind: sum(pair.kind == kind for pair in edits) for kind in EDITS},
        "edits": {name: wrong_verdicts(edits, equal) for name, equal in GRADERS.items()},
        "labelled_by_hand": {name: wrong_verdicts(read_labels(), equal) for name, equal in GRADERS.items()},
    }
    for part in ("edits", "labelled_by_hand"):
        for name, found in report[part].items():
            shares = {label: found[label] for label in ("false_positives", "false_negatives")}
            print(part, name, {label: (share["wrong"], share["per_1000"]) for label, share in shares.items()})
    frame.finish("math_wrong_verdicts", report, options, packages=PACKAGES)


if __name__ == "__main__":
    main()
