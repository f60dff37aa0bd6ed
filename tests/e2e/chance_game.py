"""An environment that gives no answer twice, and logs how often it is started."""

import os
from pathlib import Path


def chance(prompt, reply, rng, *, turns=3, log=""):
    """Answers with random numbers of the system, and pays by them."""
    if log:
        with Path(log).open("a") as file:
            file.write("asked\n")
    total = 0
    for _ in range(turns - 1):
        total += os.urandom(1)[0]
        reply = yield str(total)
    return {"paid": (total + len(reply)) % 7 / 7, "none": 0.0}
