"""An environment whose answers take a random time, other ones in each process: used by runs that are killed."""

import random
import time


def count(prompt, reply, rng, *, turns=3, sleep=0.01, seed=None):
    """Pays even code points, and answers with their number and a number of the prompt's. `seed`: of the times."""
    clock = random.Random(seed)
    start, even = int(rng.integers(1000)), 0
    for turn in range(turns):
        if turn:
            reply = yield f"{start} {even}"
        time.sleep(sleep * clock.random())
        even += sum(ord(c) % 2 == 0 for c in reply)
    return {"even": even / 10, "start": 0.0}
