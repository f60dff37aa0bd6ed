"""For who asks how close it is, not only whether it is close enough: WINNOW_RANKS_MEASURED names a file for lines."""

from __future__ import annotations

import json
import os


def say(count: int, learner: str, case: str, found: dict[str, float]) -> None:
    if path := os.environ.get("WINNOW_RANKS_MEASURED"):
        with open(path, "a", encoding="utf-8") as file:
            print(json.dumps({"ranks": count, "learner": learner, "case": case, **found}), file=file)
