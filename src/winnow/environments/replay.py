"""An environment's answer to a rollout, by replaying its generator from the policy's turns so far.

    def guess(prompt, reply, rng, *, turns=7):
        for left in reversed(range(turns)):
            if reply == prompt.answer:
                return {"found": 1.0}
            if left:
                reply = yield "lower" if int(reply) > int(prompt.answer) else "higher"
        return {"found": 0.0}

A started generator is kept between two turns, by the process that started it, under the number of its episode. It is
replayed only if it is gone: its process has ended, or the run was resumed. A replay starts the generator anew, and
sends it every turn of the policy again. So the turns are the whole state, and a worker that is killed loses nothing.
This needs a generator that repeats itself, and a replay compares its texts with the rollout's. `rng` depends on
the prompt's id alone, so all rollouts of a prompt play one game. So do Python's and numpy's global random numbers, of
which each generator has its own.
"""

from __future__ import annotations

import copy
import dataclasses
import random
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from winnow import seeds
from winnow.errors import INTERRUPTIONS
from winnow.families import ENVIRONMENT, EnvironmentTraits
from winnow.options import Bound, bind
from winnow.records import Finish, Outcome, Problem, Prompt, Reply, Rollout, ToolAnswer
from winnow.registry import resolve_at
from winnow.rewards.outcomes import failure, to_outcome

LONGEST = 2**16  # characters of one text of an environment
OPENING = "environment's opening"  # the field of a prompt's meta with the text that its environment has appended to it
NOT_REPEATED = "does it read a clock, the network, a variable outside the function, or other random numbers than `rng`?"


class OutOfTokens(Exception):
    """Raised inside an environment, at its `yield`, if the rollout has no room for another turn of the policy.

    An environment may catch it and return the reward of an unfinished rollout. Otherwise the rollout is wrong, with the
    reward 0.
    """


class Environment:
    """An environment as a function from a prompt and a rollout to the next text, or to the outcome at the end.

    The rollout's `turns` are its texts so far, the policy's first and last; without them, its text is its only turn.
    `finish` is "length" for a rollout that has no room for another turn. With the number of an `episode`, its generator
    is kept for the next turn, until the rollout ends or `close` is called.

    An exception becomes failed(raised), a MemoryError failed(memory). A text that is no text, is too long or is one too
    many, and texts that differ from the rollout's, become failed(malformed).
    """

    def __init__(self, bound: Bound[EnvironmentTraits], *, max_turns: int, recorded: bool = False) -> None:
        self._bound, self._max_turns, self._recorded = bound, max_turns, recorded
        self._kept: dict[int, _Game] = {}

    def __call__(self, prompt: Prompt, rollout: Rollout, episode: int | None = None) -> Outcome | Reply:
        try:
            return self._answer(prompt, rollout, episode)
        except MemoryError:
            return failure("memory", f"the environment {self._bound.name!r} ran out of memory")
        except INTERRUPTIONS:
            raise
        except BaseException as error:  # CancelledError, GeneratorExit and SystemExit are no Exception
            lines = "".join(traceback.format_exception(error)).rstrip().splitlines()[-6:]
            shown = _readable("\n".join(lines)[-2000:])
            return failure("raised", f"the environment {self._bound.name!r} raised\n{shown}")

    def close(self, episode: int) -> None:
        """Close the generator of a rollout that is given up."""
        if episode in self._kept:
            self._kept.pop(episode).give_up()

    def _answer(self, prompt: Prompt, rollout: Rollout, episode: int | None) -> Outcome | Reply:
        turns = (rollout.text,) if rollout.turns is None else rollout.turns
        game = None if episode is None else self._kept.pop(episode, None)
        if game is not None and not game.goes_on(turns, rollout.finish):
            game.give_up()
            game = None
        game = game or _Game(self._bound, prompt, recorded=self._recorded)
        verdict: Outcome | Reply | None = None
        try:
            verdict = game.play(turns, rollout.finish, self._max_turns)
        finally:
            if episode is not None and isinstance(verdict, Reply):
                self._kept[episode] = game
            else:
                game.close()
        return verdict


def make_environment(
    use: str | Callable[..., Any],
    options: Mapping[str, Any],
    *,
    max_turns: int,
    recorded: bool = False,
    base: Path | None = None,
) -> Environment:
    """The environment `use`: a name, "file.py:function" relative to `base`, or the function.

    `recorded` environments need not repeat themselves. Raises ConfigError for an invalid member.
    """
    bound = bind(resolve_at(ENVIRONMENT.key, ENVIRONMENT, use, base=base), dict(options), key=ENVIRONMENT.key)
    return Environment(bound, max_turns=max_turns, recorded=recorded)


def opened(bound: Bound[EnvironmentTraits], problem: Problem) -> Problem:
    """The problem with the text that its environment appends to the question, if any."""
    opening = bound.traits.opening
    if opening is None:
        return problem
    with _random_of(problem.id):
        text = opening(copy.deepcopy(problem), bound.options)  # which `reset` may change
    if text is None:
        return problem
    question, meta = f"{problem.question}{_readable(text)}", {**problem.meta, OPENING: text}
    return dataclasses.replace(problem, question=question, meta=meta)


class _Game:
    """The generator of one rollout, from its start to its end."""

    def __init__(self, bound: Bound[EnvironmentTraits], prompt: Prompt, *, recorded: bool) -> None:
        self._bound, self._random, self._recorded = bound, _random_of(prompt.id), recorded
        own = dataclasses.replace(prompt, answer=copy.deepcopy(prompt.answer), meta=copy.deepcopy(prompt.meta))
        rng = seeds.generator("environment", prompt.id)
        self._start: Callable[[str], Any] = lambda reply: bound.call(own, reply, rng)
        self._generator: Generator[Any, str, Any] | None = None
        self._turns: list[str | None] = []  # so far, the policy's first and last
        self._text: Any = None  # that it has yielded since

    def goes_on(self, turns: Sequence[str], finish: Finish) -> bool:
        """Whether the next turn of the rollout, or its end without one, follows what has been played."""
        if finish == "length":
            return list(turns) == self._turns
        return list(turns[:-1]) == [*self._turns, _text_of(self._text)]

    def play(self, turns: Sequence[str], finish: Finish, max_turns: int) -> Outcome | Reply:
        """Send the policy's turns that were not sent yet; with the finish "length" also that there is no room."""
        replies = len(turns) // 2 + 1
        try:
            while len(self._turns) < len(turns):
                place = len(self._turns) // 2
                if self._turns and _text_of(self._text) != turns[len(self._turns)]:
                    return self._not_repeated(place)
                self._send(*turns[len(self._turns) : len(self._turns) + 1 + bool(self._turns)])
                if self._generator is None:  # a function without a yield
                    return _ended(self._bound, self._text) if replies == 1 else self._not_repeated(0)
            if finish != "length":
                return _reply(self._bound, self._text, replies, max_turns)
            with self._random:
                cast(Generator[Any, str, Any], self._generator).throw(OutOfTokens())
            name = self._bound.name
            return failure("malformed", f"the environment {name!r} goes on after OutOfTokens: it has to return")
        except StopIteration as end:
            place = len(self._turns) // 2
            return _ended(self._bound, end.value) if place == replies - 1 else self._not_repeated(place)
        except OutOfTokens:
            detail = "the rollout had no room for another turn, and the environment no reward for that"
            return Outcome(reward=0.0, correct=False, kind="wrong", detail=detail)

    def _not_repeated(self, place: int) -> Outcome:
        """The outcome of a replay whose text at a place is another one than the rollout's."""
        what = f"the environment {self._bound.name!r} did not repeat its text {place + 1}"
        if self._recorded:
            return failure("crash", f"the process with this rollout ended between two turns, and {what}")
        return failure("malformed", f"{what}: {NOT_REPEATED}")

    def _send(self, *turns: str) -> None:
        """Send a turn of the policy, after the environment's text before it; raises StopIteration at the end."""
        self._turns += turns
        with self._random:
            if self._generator is not None:
                self._text = self._generator.send(turns[-1])
                return
            self._text = self._start(turns[-1])
            if isinstance(self._text, Generator):
                self._generator = self._text
                self._text = next(self._generator)

    def close(self) -> None:
        """Close the generator. Raises what it raises then."""
        if self._generator is not None:
            with self._random:
                self._generator.close()

    def give_up(self) -> None:
        """Close the generator of a rollout whose verdict is not needed any more, and drop what it raises then."""
        try:
            self.close()
        except INTERRUPTIONS:
            raise
        except BaseException:  # CancelledError, GeneratorExit and SystemExit are no Exception
            pass


class GlobalRandom:
    """The state of Python's and numpy's global random numbers inside an episode; outside, they are as they were."""

    def __init__(self, rng: np.random.Generator) -> None:
        seeds = [int(seed) for seed in rng.integers(2**32, size=2)]
        self._state: Any = (random.Random(seeds[0]).getstate(), np.random.RandomState(seeds[1]).get_state())

    def __enter__(self) -> None:
        self._exchange()

    def __exit__(self, *error: object) -> None:
        self._exchange()

    def _exchange(self) -> None:
        outside = random.getstate(), np.random.get_state()
        random.setstate(self._state[0])
        np.random.set_state(self._state[1])
        self._state = outside


def _random_of(prompt_id: str) -> GlobalRandom:
    return GlobalRandom(seeds.generator("environment", "global random numbers", prompt_id))


def _reply(bound: Bound[EnvironmentTraits], given: Any, turns: int, max_turns: int) -> Outcome | Reply:
    name, text = f"the environment {bound.name!r}", _text_of(given)
    if text is None:
        return failure("malformed", f"{name} yielded a {type(given).__name__} and not a text")
    if len(text) > LONGEST:
        return failure("malformed", f"{name} yielded a text of {len(text):,} characters, and {LONGEST:,} is the limit")
    if turns >= max_turns:
        return failure("malformed", f"{name} goes on after environment.max_turns = {max_turns}")
    answers = [] if isinstance(given, str) else given
    return Reply(
        text=text,
        answers=tuple(
            ToolAnswer(text=_readable(each.text), name=_readable(each.name), call_id=_readable(each.call_id))
            for each in answers
        ),
    )


def _text_of(given: Any) -> str | None:
    """A yielded text, or the answers to tool calls as a text; None for anything else.

    Each answer is between the tags with which the templates of Qwen and Hermes write it.
    """
    if isinstance(given, str):
        return _readable(given)
    if not isinstance(given, list | tuple) or not given or not all(isinstance(each, ToolAnswer) for each in given):
        return None
    return "\n".join(f"<tool_response>\n{_readable(each.text)}\n</tool_response>" for each in given)


def _ended(bound: Bound[EnvironmentTraits], result: Any) -> Outcome:
    if result is None:
        return failure("raised", f"the environment {bound.name!r} returned None")
    return to_outcome(result, name=bound.name, correct_at=float(bound.traits.correct_at))


def _readable(text: str) -> str:
    """The text with "?" for a lone surrogate, which no tokenizer can encode."""
    return text.encode("utf-8", "replace").decode("utf-8")
