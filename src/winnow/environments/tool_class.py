"""An environment from a class, whose public methods are the tools that the policy calls.

    class Store:
        def reset(self, stock: int, **columns) -> str:
            self.stock = stock
            return f"There are {stock} boxes."  # is appended to the question

        def move(self, count: int, shelf: str) -> str:
            "Moves boxes. Args: ..., as Google's style guide has it"
            if count > self.stock:
                raise ValueError("there are not so many boxes")
            self.stock -= count
            return f"{self.stock} boxes are left"

        def get_reward(self) -> float:
            return float(self.stock == 0)

TRL's `environment_factory` takes such classes. Each rollout has an object of its own. The annotations and docstrings of
its methods become the schemas in the chat template.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import typing
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from winnow.bounds import AtLeastOne
from winnow.environments.replay import OPENING, OutOfTokens
from winnow.environments.tool_calls import AUTO, CallForm, read_calls
from winnow.environments.tools import answer_calls
from winnow.errors import ConfigError, conflict
from winnow.families import EnvironmentTraits
from winnow.records import Problem, Prompt, ToolAnswer
from winnow.rewards.outcomes import failure
from winnow.user_code import with_named_errors

OWN = ("reset", "get_reward", "close")  # public methods that are no tools
COLUMN = "environment"  # of a row that names its class

Schema = Mapping[str, Any]
Game = Generator[str | Sequence[ToolAnswer], str, Any]


def tool_environment(
    classes: type | Mapping[str, type], *, column: str = COLUMN, correct_at: float = 1.0
) -> Callable[..., Game]:
    """The environment of a class, or of several, of which the field `column` of a problem's meta names one.

    A rollout begins with `reset`, which gets the fields of the problem's meta that it has parameters for, and `answer`.
    A text that it returns is appended to the question. The tools are all other public methods, except `close`, which is
    called at the end. An exception of a tool is answered with its text. The rollout ends with the first turn without a
    call, after `tool_turns` turns with calls, with an attribute `done` that is true, or without room for another turn.
    Then `get_reward` returns what a reward returns, and it gets the policy's last turn if it has a parameter. A rollout
    of at least `correct_at` is correct.

    The keyword parameters of a single class's `__init__` are options. Raises ConfigError for a class without
    `get_reward` or tools, and for a tool that is a coroutine.
    """
    by_name = cast(dict[str | None, type], {None: classes} if isinstance(classes, type) else dict(classes))
    for each in by_name.values():
        _check(each)

    def of(meta: Mapping[str, Any]) -> type:
        if None in by_name:
            return by_name[None]
        if meta.get(column) in by_name:
            return by_name[meta[column]]
        raise conflict(
            f"the field {column!r} of a problem is {meta.get(column)!r}, and the environments are "
            f"{', '.join(map(repr, by_name))}",
            remedy=f"set the field {column!r} of every problem to one of them",
            key="environment",
        )

    def play(
        prompt: Prompt,
        reply: str,
        rng: np.random.Generator,
        *,
        tool_turns: AtLeastOne = 8,
        call_form: CallForm = AUTO,
        **options: Any,
    ) -> Game:
        return _play(of(prompt.meta)(**options), prompt, reply, tool_turns, call_form)

    first = next(iter(by_name.values()))
    _describe(play, first, with_options=None in by_name)
    play.traits = EnvironmentTraits(  # type: ignore[attr-defined]  # read by the registry
        correct_at=correct_at,
        tools=tuple(dict.fromkeys(name for each in by_name.values() for name in tool_names(each))),
        schemas=lambda meta: schemas(of(meta)),
        opening=lambda problem, options: _opening(
            of(problem.meta),
            problem,
            {name: options[name] for name in options if name not in ("tool_turns", "call_form")},
        ),
    )
    return play


@functools.cache  # the registry finds a registered class by its member
def of_class(given: type) -> Callable[..., Game]:
    """The environment of a single class."""
    return tool_environment(given)


def tool_names(of: type) -> list[str]:
    """The names of a class's tools, in the order of the alphabet."""
    methods = inspect.getmembers(of, predicate=inspect.isfunction)
    return [name for name, _ in methods if not name.startswith("_") and name not in OWN]


@functools.cache  # every problem of a class has the same
def schemas(of: type) -> Sequence[Schema]:
    """The schemas of a class's tools for a chat template.

    Raises ConfigError for a tool that lacks an annotation, a docstring, or the description of an argument in it.
    """
    from transformers.utils import get_json_schema  # takes a second

    found = list[Schema]()
    for name in tool_names(of):
        function = getattr(of, name)
        is_static = isinstance(inspect.getattr_static(of, name), staticmethod)
        try:
            found.append(get_json_schema(function if is_static else types.MethodType(function, of)))
        except Exception as error:  # it raises its own types, and those of the annotations
            code = function.__code__
            raise ConfigError(
                f"the tool {name!r} of {of.__name__} ({code.co_filename}, line {code.co_firstlineno}) has no schema: "
                f"{error}",
                remedy="annotate its arguments, and give it a docstring with a line for each of them under 'Args:'",
                key="environment",
                code="config.registration",
            ) from error
    return found


def _play(game: Any, prompt: Prompt, reply: str, tool_turns: int, call_form: str) -> Game:
    tools = {name: getattr(game, name) for name in tool_names(type(game))}
    try:
        text = _reset(game, prompt.answer, prompt.meta)
        if text != prompt.meta.get(OPENING):
            return failure("malformed", f"reset returned another text than for the prompt: {str(text)[:200]!r}")
        for _ in range(tool_turns):
            calls = read_calls(reply, call_form)
            if not calls:
                break
            answers = answer_calls(calls, tools, refusal=Exception)
            if "done" not in tools and getattr(game, "done", False):
                break
            try:
                reply = yield answers
            except OutOfTokens:
                break
        parameters = inspect.signature(game.get_reward).parameters.values()
        takes = any(each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD) for each in parameters)
        return game.get_reward(*[reply] * takes)
    finally:
        if hasattr(game, "close"):
            game.close()


def _opening(of: type, problem: Problem, options: Mapping[str, Any]) -> str | None:
    """The text of `reset` for a problem; None for a class whose `reset` is annotated to return None."""
    reset = getattr(of, "reset", None)
    if reset is None or reset.__annotations__.get("return", "") in (None, "None"):
        return None
    what = f"the environment {of.__name__!r} (for {problem.where or problem.id})"
    return cast(str | None, with_named_errors(what, reset, _opened)(of, problem, options))


def _opened(of: type, problem: Problem, options: Mapping[str, Any]) -> str | None:
    game = of(**options)
    try:
        return _reset(game, problem.answer, problem.meta)
    finally:
        if hasattr(game, "close"):
            game.close()


def _reset(game: Any, answer: Any, meta: Mapping[str, Any]) -> str | None:
    if not hasattr(game, "reset"):
        return None
    columns = {**meta, "answer": answer}
    columns.pop(OPENING, None)
    parameters = inspect.signature(game.reset).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        columns = {name: value for name, value in columns.items() if name in parameters}
    text = game.reset(**columns)
    return None if text is None else str(text)


def _check(of: type) -> None:
    names = tool_names(of)
    coroutines = [name for name in names if inspect.iscoroutinefunction(getattr(of, name))]
    if not callable(getattr(of, "get_reward", None)):
        problem = "no method get_reward"
        remedy = "define get_reward(self), or get_reward(self, reply) for the last turn"
    elif not names:
        problem, remedy = "no tool", "define a public method, with annotations and a docstring, for each tool"
    elif coroutines:
        problem, remedy = f"a tool that is a coroutine, {coroutines[0]!r}", "call asyncio.run in a plain method"
    else:
        return
    raise ConfigError(
        f"the environment {of.__name__} has {problem}", remedy=remedy, key="environment", code="config.registration"
    )


def _describe(play: Callable[..., Any], of: type, *, with_options: bool) -> None:
    """Give `play` the name of a class and, as options, the keyword parameters of its `__init__`."""
    fixed = inspect.signature(play)
    parameters = [parameter for parameter in fixed.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    hints = typing.get_type_hints(play, include_extras=True)
    if with_options and of.__init__ is not object.__init__:  # type: ignore[misc]
        own = list(inspect.signature(of).parameters.values())
        own = [each for each in own if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        if taken := {each.name for each in parameters} & {each.name for each in own}:
            raise ConfigError(
                f"__init__ of the environment {of.__name__} has a parameter {min(taken)!r}, a name of winnow's",
                remedy="rename the parameter",
                key="environment",
                code="config.registration",
            )
        parameters += [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        with contextlib.suppress(NameError, TypeError):  # a name only for type checkers: any value is accepted
            hints = {**typing.get_type_hints(of.__init__, include_extras=True), **hints}  # type: ignore[misc]
    play.__signature__ = fixed.replace(parameters=parameters, return_annotation=fixed.empty)  # type: ignore[attr-defined]
    play.__annotations__ = hints
    play.__name__, play.__qualname__, play.__doc__ = of.__name__, of.__qualname__, of.__doc__
    play.__module__ = of.__module__
