"""Builds the reward of a run from plain data: it binds options, weights parts and catches exceptions.

score = make_reward({"parts": [{"use": "r1_zero", "weight": 80}, {"use": "format", "weight": 20}]})
score(prompt, rollout)  # an Outcome, even if a function inside raises

A reward gets placeholders for undeclared log-probs, and for tokens that were not saved.
"""

from __future__ import annotations

import dataclasses
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from winnow.errors import INTERRUPTIONS, ConfigError
from winnow.families import REWARD, RewardTraits
from winnow.metrics import distinct
from winnow.options import Bound, bind
from winnow.records import FloatArray, IntArray, Outcome, Prompt, Rollout
from winnow.registry import resolve_at
from winnow.rewards.outcomes import failure, to_outcome

_ALLOWED = {"__new__", "__repr__", "__str__", "__format__", "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__"}
Score = Callable[[Prompt, Rollout], Outcome]


class NotRead:
    """Replaces an array: any use raises ConfigError, except printing and copying, and `len` if the length is known."""

    def __init__(self, shown: str, problem: str, remedy: str, *, code: str, length: int | None = None) -> None:
        self._shown, self._problem, self._remedy, self._code, self.length = shown, problem, remedy, code, length

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # optional attributes that copy, pickle and the like look for
            raise AttributeError(name)
        _refuse(self)

    def __repr__(self) -> str:
        return f"<{self._shown}>"


def _refuse(self: NotRead, *_: object, **__: object) -> Any:
    raise ConfigError(self._problem, remedy=self._remedy, code=self._code)


def _length(self: NotRead) -> int:
    return _refuse(self) if self.length is None else self.length


for _name, _method in vars(np.ndarray).items():
    if _name.startswith("__") and callable(_method) and _name not in _ALLOWED:
        setattr(NotRead, _name, _length if _name == "__len__" else _refuse)

NOT_READ = cast(
    FloatArray,
    NotRead(
        "log-probs that were not requested",
        "the reward reads rollout.logprobs without declaring it, so they were not sent to it",
        'register it with @winnow.register("reward", reads=("logprobs",))',
        code="config.registration",
    ),
)


def unsaved_tokens(length: int | None = None) -> IntArray:
    """Replaces the tokens of a response that was saved as text; `length` is their number, if it was saved."""
    return cast(
        IntArray,
        NotRead(
            "tokens that were not saved",
            "this row was saved without the tokens that the reward reads",
            "save them beside the text as 'tokens' (their number as 'length' is enough for len(rollout.tokens)) and "
            "those of the prompt as 'prompt_tokens', or score a run folder or a file of its rollouts, which hold them",
            code="config.member_result",
            length=length,
        ),
    )


def without_logprobs(rollout: Rollout) -> Rollout:
    """The rollout for a reward that does not declare that it reads log-probs."""
    return rollout if rollout.logprobs is NOT_READ else dataclasses.replace(rollout, logprobs=NOT_READ)


def make_reward(spec: Mapping[str, Any], *, base: Path | None = None) -> Score:
    """The reward that `spec` describes, as a function. An exception inside becomes failed(raised), a MemoryError
    failed(memory). Only a KeyboardInterrupt, and the exception by which a signal ends a run, are raised.

    `spec` is that of a validated configuration: {"use": name | "file.py:function" | function, "options": {...}}, or
    {"parts": [{"use", "weight", "options"}, ...], "shaping": "always" | "if_wrong"}: the sum of weight * part.
    The first part decides whether the answer is correct. "if_wrong" adds the other parts only to wrong answers. A part
    that failed fails the whole. Files are relative to `base`. Raises ConfigError for an unknown reward or option.
    """
    if "parts" not in spec:
        return _single(spec, base, "reward")[1]
    bound = [_single(part, base, f"reward.parts.{i}") for i, part in enumerate(spec["parts"])]
    names = distinct(name for name, _ in bound)  # the second `format` is `format_2`
    weights = [float(part.get("weight", 1.0)) for part in spec["parts"]]
    shaping = spec.get("shaping", "always")
    return lambda prompt, rollout: _weigh(names, weights, [score(prompt, rollout) for _, score in bound], shaping)


def _single(spec: Mapping[str, Any], base: Path | None, key: str) -> tuple[str, Score]:
    bound = bind(resolve_at(key, REWARD, spec["use"], base=base), dict(spec.get("options", {})), key=key)
    return bound.name, _total(bound)


def _total(reward: Bound[RewardTraits]) -> Score:
    function, correct_at = reward.call, float(reward.traits.correct_at)
    sees_logprobs = "logprobs" in reward.traits.reads

    def score(prompt: Prompt, rollout: Rollout) -> Outcome:
        try:
            result = function(prompt, rollout if sees_logprobs else without_logprobs(rollout))
            return to_outcome(result, name=reward.name, correct_at=correct_at)  # it calls methods of a user's object
        except MemoryError:
            return failure("memory", f"the reward {reward.name!r} ran out of memory")
        except INTERRUPTIONS:
            raise
        except BaseException as error:  # CancelledError, GeneratorExit and SystemExit are no Exception
            return failure("raised", f"the reward {reward.name!r} raised\n{_last_lines(error)}")

    return score


def _weigh(names: Sequence[str], weights: Sequence[float], outcomes: Sequence[Outcome], shaping: str) -> Outcome:
    for name, outcome in zip(names, outcomes, strict=True):
        if outcome.failed:
            assert outcome.cause is not None, "a failed outcome has a cause"
            return failure(outcome.cause, f"part {name!r}: {outcome.detail}")
    first = outcomes[0]
    counted = 1 if shaping == "if_wrong" and first.correct else len(outcomes)
    terms = [weight * outcome.reward for weight, outcome in zip(weights, outcomes, strict=True)]
    return Outcome(
        reward=math.fsum(terms[:counted]),
        correct=first.correct,
        kind=first.kind,
        parts={name: outcome.reward for name, outcome in zip(names, outcomes, strict=True)},
        answer=first.answer,
        detail=first.detail,
        late=any(outcome.late for outcome in outcomes),
    )


def _last_lines(error: BaseException, lines: int = 6) -> str:
    text = "".join(traceback.format_exception(error)).rstrip()
    return "\n".join(text.splitlines()[-lines:])[-2000:]
