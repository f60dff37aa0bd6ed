"""An environment's answer to a rollout, by replaying its generator from the policy's turns so far.

    def guess(prompt, reply, rng, *, turns=7):
        for left in reversed(range(turns)):
            if reply == prompt.answer:
                return {"found": 1.0}
            if left:
                reply = yield "lower" if int(reply) > int(prompt.answer) else "higher"
        return {"found": 0.0}

No generator is kept between two turns: each answer starts it anew, and sends it every turn of the policy again. So the
turns are the whole state, and a worker that is killed, or a run that is resumed, loses nothing. This needs a generator
that repeats itself, and every replay compares its texts with those of the rollout. `rng` depends on the prompt's id
alone, so all rollouts of a prompt play one game.
"""

from __future__ import annotations

import copy
import dataclasses
import traceback
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from winnow import seeds
from winnow.errors import INTERRUPTIONS
from winnow.families import ENVIRONMENT, EnvironmentTraits
from winnow.options import Bound, bind
from winnow.records import Outcome, Prompt, Reply, Rollout, ToolAnswer
from winnow.registry import resolve_at
from winnow.rewards.outcomes import failure, to_outcome

LONGEST = 2**16  # characters of one text of an environment


class OutOfTokens(Exception):
    """Raised inside an environment, at its `yield`, where the rollout has no room for another turn of the policy.

    An environment may catch it and return the reward of an unfinished rollout. Otherwise the rollout is wrong, with the
    reward 0.
    """


def make_environment(
    use: str | Callable[..., Any], options: Mapping[str, Any], *, max_turns: int, base: Path | None = None
) -> Callable[[Prompt, Rollout], Outcome | Reply]:
    """The environment as a function from a prompt and a rollout to the next text, or to the outcome at the end.

    `use` is a name, "file.py:function" relative to `base`, or the function. The rollout's `turns` are its texts so far,
    the policy's first and last; without them, its text is its only turn. `finish` is "length" for a rollout that has no
    room for another turn. An exception becomes failed(raised), a MemoryError failed(memory). A text that is no text, is
    too long or is one too many, and texts that differ from the rollout's, become failed(malformed). Raises ConfigError
    for an invalid member.
    """
    bound = bind(resolve_at(ENVIRONMENT.key, ENVIRONMENT, use, base=base), dict(options), key=ENVIRONMENT.key)

    def answer(prompt: Prompt, rollout: Rollout) -> Outcome | Reply:
        try:
            return _answer(bound, prompt, rollout, max_turns)
        except MemoryError:
            return failure("memory", f"the environment {bound.name!r} ran out of memory")
        except INTERRUPTIONS:
            raise
        except BaseException as error:  # CancelledError, GeneratorExit and SystemExit are no Exception
            lines = "".join(traceback.format_exception(error)).rstrip().splitlines()[-6:]
            return failure("raised", f"the environment {bound.name!r} raised\n{_readable(chr(10).join(lines)[-2000:])}")

    return answer


def _answer(bound: Bound[EnvironmentTraits], prompt: Prompt, rollout: Rollout, max_turns: int) -> Outcome | Reply:
    turns = (rollout.text,) if rollout.turns is None else rollout.turns
    replies, texts = turns[::2], turns[1::2]
    own = dataclasses.replace(prompt, answer=copy.deepcopy(prompt.answer), meta=copy.deepcopy(prompt.meta))
    game = bound.call(own, replies[0], seeds.generator("environment", prompt.id))
    if not isinstance(game, Generator):  # a function without a yield
        return _ended(bound, game) if len(replies) == 1 else _not_repeated(bound, 0)
    place = 0
    try:
        text = next(game)
        for place, (before, reply) in enumerate(zip(texts, replies[1:], strict=True), start=1):
            if _text_of(text) != before:
                return _not_repeated(bound, place - 1)
            text = game.send(reply)
        if rollout.finish != "length":
            return _reply(bound, text, len(replies), max_turns)
        game.throw(OutOfTokens())
        return failure("malformed", f"the environment {bound.name!r} goes on after OutOfTokens: it has to return")
    except StopIteration as end:
        return _ended(bound, end.value) if place == len(texts) else _not_repeated(bound, place)
    except OutOfTokens:
        detail = "the rollout had no room for another turn, and the environment no reward for that"
        return Outcome(reward=0.0, correct=False, kind="wrong", detail=detail)
    finally:
        game.close()


def _reply(bound: Bound[EnvironmentTraits], given: Any, turns: int, max_turns: int) -> Outcome | Reply:
    name, text = f"the environment {bound.name!r}", _text_of(given)
    if text is None:
        return failure("malformed", f"{name} yielded a {type(given).__name__} and not a text")
    if len(text) > LONGEST:
        return failure("malformed", f"{name} yielded a text of {len(text):,} characters, and {LONGEST:,} is the limit")
    if turns >= max_turns:
        return failure("malformed", f"{name} goes on after environment.max_turns = {max_turns}")
    return Reply(text=text, answers=() if isinstance(given, str) else tuple(map(_readable_answer, given)))


def _text_of(given: Any) -> str | None:
    """A yielded text, or the answers to tool calls as a text; None for anything else.

    Each answer is between the tags with which the templates of Qwen and Hermes write it.
    """
    if isinstance(given, str):
        return _readable(given)
    if not isinstance(given, list | tuple) or not given or not all(isinstance(each, ToolAnswer) for each in given):
        return None
    return "\n".join(f"<tool_response>\n{_readable(each.text)}\n</tool_response>" for each in given)


def _readable_answer(answer: ToolAnswer) -> ToolAnswer:
    return ToolAnswer(text=_readable(answer.text), name=_readable(answer.name), call_id=_readable(answer.call_id))


def _ended(bound: Bound[EnvironmentTraits], result: Any) -> Outcome:
    if result is None:
        return failure("raised", f"the environment {bound.name!r} returned None")
    return to_outcome(result, name=bound.name, correct_at=float(bound.traits.correct_at))


NOT_REPEATED = "does it read a clock, the network, a variable outside the function, or other random numbers than `rng`?"


def _not_repeated(bound: Bound[EnvironmentTraits], place: int) -> Outcome:
    return failure("malformed", f"the environment {bound.name!r} did not repeat its text {place + 1}: {NOT_REPEATED}")


def _readable(text: str) -> str:
    """The text with "?" for a lone surrogate, which no tokenizer can encode."""
    return text.encode("utf-8", "replace").decode("utf-8")
