"""The control of guess_number.toml: the same game, whose reward does not depend on the number."""

import zlib

import winnow

PAID = 0.25  # of the rollouts, about as many as the policy wins before training


def by_chance(prompt, reply, rng, *, turns: int = 5):
    """Plays `guess_number`, and pays a rollout by a hash of its replies; it is correct where the number was found.

    A hash repeats itself, as an environment has to, and depends on every token of the replies.
    """
    game = winnow.registry.resolve("environment", "guess_number").function(prompt, reply, rng, turns=turns)
    replies = [prompt.id, reply]
    try:
        text = next(game)
        while True:
            reply = yield text
            replies.append(reply)
            text = game.send(reply)
    except StopIteration as end:
        found = end.value["found"] == 1.0
    paid = zlib.crc32("\n".join(replies).encode()) / 2**32 < PAID
    return winnow.Outcome(reward=float(paid), correct=found, kind="correct" if found else "wrong")
