"""The control of guess_number.toml and calculator.toml: the same environment, but its reward ignores the answer."""

import zlib

import winnow

PAID = 0.25  # of the rollouts, about as many as the policies solve before training


def by_chance(prompt, reply, rng, *, game: str = "guess_number"):
    """Plays `game`, an environment of winnow, and pays a rollout by a hash of its replies; correct where it was solved.

    A hash repeats itself, as an environment has to, and depends on every token of the replies.
    """
    played = winnow.registry.resolve("environment", game).function(prompt, reply, rng)
    replies = [prompt.id, reply]
    try:
        text = next(played)
        while True:
            reply = yield text
            replies.append(reply)
            text = played.send(reply)
    except StopIteration as end:
        solved = 1.0 in end.value.values()
    paid = zlib.crc32("\n".join(replies).encode()) / 2**32 < PAID
    return winnow.Outcome(reward=float(paid), correct=solved, kind="correct" if solved else "wrong")
