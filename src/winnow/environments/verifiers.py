"""Task sets of the verifiers library: its environments lead the policy through a task, and its rewards judge it.

In that library an agent is a program in a sandbox, which reaches the model over HTTP. Here the policy itself is the
agent, and its turns are its messages. So a task is supported that needs texts and tools of its own, in one
conversation; `refuse` and `Unsupported` are about everything else. The library's `Env.run` is a coroutine, and `play`
makes it a generator of texts, like any other environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

import numpy as np

from winnow.environments.replay import GlobalRandom, OutOfTokens
from winnow.environments.tool_calls import AUTO, CallForm, read_calls
from winnow.environments.verifiers_tools import Tools, messages_of
from winnow.errors import ConfigError, conflict
from winnow.records import Outcome, Prompt, ToolAnswer
from winnow.registry import register

T = TypeVar("T")
Shown = str | Sequence[ToolAnswer]  # what the policy reads: a text, or the answers to its calls

REMEDY = "pip install 'winnow-rl[verifiers]'"
NEAR = 1e-9  # a sum of weighted rewards this far below `correct_at` is equal to it


class Unsupported(Exception):
    """What a task set needs and winnow does not have, as a clause: "its tasks need tools"."""


def load(settings: Mapping[str, Any]) -> Any:
    """The library's `Env` for the fields of its `EnvConfig`, such as {"taskset": {"id": "textarena", ...}}.

    The last 8 are kept. Raises what the library raises.
    """
    return _loaded(json.dumps(settings, sort_keys=True))


@functools.lru_cache(maxsize=8)
def _loaded(settings: str) -> Any:
    import verifiers.v1 as vf

    return vf.load_environment(vf.resolve_env_config(json.loads(settings)))


def task_of(environment: Any, data: Mapping[str, Any]) -> Any:
    """The task whose data, as JSON, are `data`."""
    kind = type(environment.taskset).task_type()
    return kind(kind.data_type().model_validate(dict(data)), environment.config.taskset.task)


def refuse(task: Any) -> None:
    """Raise Unsupported for a task that needs more than texts and tools."""
    import verifiers.v1 as vf
    from verifiers.v1.session import hook_boundary
    from verifiers.v1.utils.decorators import discover_decorated

    data = task.data
    stages = (task.setup, task.finalize)  # those of the library do nothing
    own_stages = [each for each in stages if getattr(type(task), each.__name__) is not getattr(vf.Task, each.__name__)]
    needs = {
        "a container": task.NEEDS_CONTAINER or data.image or data.agent_user or data.artifacts or data.skills,
        "tools on a server": [each for each in task.toolsets(task.config) if getattr(each.config, "url", None)],
        "a judge model": task.config.judges,
        "interceptors": discover_decorated(task, "intercept"),
        "stop conditions of single requests": [
            hook for hook in task.hooks("stop") if hook_boundary(hook, allow_trace=True) is not vf.Trace
        ],
        "a runtime": [
            hook for hook in (*own_stages, *task.hooks("metric"), *task.hooks("reward")) if _needs_runtime(hook)
        ],
    }
    for need, present in needs.items():
        if present:
            raise Unsupported(f"its tasks need {need}")


def refuse_environment(environment: Any) -> None:
    """Raise Unsupported for an environment that starts servers, or brings its own program for the agent."""
    import verifiers.v1 as vf
    from verifiers.v1.utils.loaders import default_harness_id

    kind, taskset = type(environment), environment.config.taskset
    if environment.taskset.toolsets(taskset):
        raise Unsupported("its tasks need tools that rollouts share")
    if kind.start is not vf.Env.start or kind.stop is not vf.Env.stop:
        raise Unsupported("its environment starts resources that rollouts share")
    if default_harness_id(taskset.id) != "bash":
        raise Unsupported("it has its own harness")


def tool_schemas(meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools of a problem's task, for a chat template. Raises ConfigError for a problem of another task."""
    if not {"environment", "data"} <= meta.keys():
        raise conflict(
            "environment = 'verifiers' plays problems of the task 'verifiers' alone, and one is of another task",
            remedy="set task.use = 'verifiers', and remove other tasks from evaluate.tasks",
            key="task",
        )
    return _tool_schemas(json.dumps(meta["environment"], sort_keys=True))


@functools.lru_cache(maxsize=8)
def _tool_schemas(settings: str) -> list[dict[str, Any]]:
    environment = _loaded(settings)
    toolsets = type(environment.taskset).task_type().toolsets(environment.config.taskset.task)
    loop = asyncio.new_event_loop()
    try:
        return _complete(loop, Tools(toolsets).schemas()) if toolsets else []
    finally:
        loop.close()


def play(
    environment: Any, task: Any, rng: np.random.Generator, *, call_form: str = AUTO
) -> Generator[Shown, str | None, Any]:
    """An episode of `task`: yields the question, each text of the environment, and the answers to each turn with calls
    of tools. Returns the library's trace.

    It is sent the policy's reply to each text; None instead of a reply means that there is no room for another turn.
    Python's and numpy's global random numbers are seeded from `rng`, and are as before whenever it is suspended. Raises
    Unsupported, and what the library's code raises.
    """
    loop, own = asyncio.new_event_loop(), GlobalRandom(rng)
    line = _Line(loop, call_form)
    episode = loop.create_task(_episode(environment, task, line))
    try:
        while True:
            with own:
                text = line.wait(episode)
            if text is None:
                return episode.result()
            line.answer((yield text))
    finally:
        with own:
            _complete(loop, _end(episode))
            loop.close()


def _warm(options: Mapping[str, Any]) -> None:
    try:
        import verifiers.v1  # noqa: F401  (takes seconds)
    except ImportError as error:
        raise ConfigError(
            "the environment verifiers needs another library", remedy=REMEDY, code="config.not_installed"
        ) from error


@register("environment", warm=_warm, schemas=tool_schemas)
def verifiers(
    prompt: Prompt, reply: str, rng: np.random.Generator, *, correct_at: float = 1.0, call_form: CallForm = AUTO
) -> Generator[Shown, str, Outcome]:
    """The environment of a task set of the verifiers library, for prompts of the task `verifiers`.

    The reward is the sum of the library's weighted rewards, which are the first parts. Its metrics are further parts,
    `metric_NAME`. A rollout is correct if the sum is at least `correct_at`. A rollout without room for another turn
    ends for the library as one at its limit of tokens.
    """
    environment = load(prompt.meta["environment"])
    episode = play(environment, task_of(environment, prompt.meta["data"]), rng, call_form=call_form)
    next(episode)  # the question, which the prompt contains
    answer: str | None = reply
    try:
        while True:
            text = episode.send(answer)
            try:
                answer = yield text
            except OutOfTokens:
                answer = None
    except StopIteration as end:
        return _outcome(end.value, correct_at)
    finally:
        episode.close()


def _outcome(trace: Any, correct_at: float) -> Outcome:
    parts = {name: reward.value for name, reward in trace.rewards.items()}
    reward = math.fsum(parts.values())
    correct = reward >= correct_at - NEAR
    parts |= {f"metric_{name}": value for name, value in trace.metrics.items() if value is not None}
    return Outcome(reward=reward, correct=correct, kind="correct" if correct else "wrong", parts=parts)


async def _episode(environment: Any, task: Any, line: _Line) -> Any:
    """The trace of the environment's only agent, after its hooks `setup`, `run` and `finalize`."""
    import verifiers.v1 as vf

    seats = list[_Seat]()

    def make(name: str, config: Any) -> _Seat:
        seats.append(_Seat(name, config, line))
        return seats[-1]

    agents = vf.Agents(environment.config, make)
    if len(seats) != 1:
        line.refuse(f"its environment has {len(seats)} agents")
    await environment.setup(agents)
    await environment.run(task, agents)
    trace = seats[0].trace
    if trace is None or not trace.num_turns:
        line.refuse("its environment ends before the agent's first turn")
    episode = vf.Episode(env=vf.EnvInfo(id=environment.config.env_id), task=_described(task), ok=True)
    episode.traces.append(trace)
    await environment.finalize(task, episode)
    if not trace.rewards:
        line.refuse("it has no reward")
    return trace


async def _end(episode: asyncio.Task[Any]) -> None:
    """Cancel an episode and the tasks that it has started, and read their exceptions, which asyncio would log."""
    tasks = {episode, *asyncio.all_tasks()} - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


def _complete(loop: asyncio.AbstractEventLoop, step: Coroutine[Any, Any, T]) -> T:
    """The result of `step`, for which `loop` runs: in another thread if this one, as in a notebook, has a loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return loop.run_until_complete(step)
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(loop.run_until_complete, step).result()


class _Line:
    """Where the environment, a coroutine, waits for the policy's turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call_form: str) -> None:
        self.call_form = call_form
        self._loop = loop
        self._asked, self._reply = loop.create_future(), loop.create_future()
        self._refused: Unsupported | None = None

    def refuse(self, clause: str) -> NoReturn:
        """Raise Unsupported, and again out of `wait`, even if the environment catches it."""
        self._refused = self._refused or Unsupported(clause)
        raise self._refused

    async def ask(self, shown: Shown) -> str | None:
        """The policy's reply to a text or to answers; None if there is no room for another turn."""
        if self._asked.done():
            self.refuse("its agent has several conversations at once")
        self._asked.set_result(shown)
        reply: str | None = await self._reply
        return reply

    def wait(self, episode: asyncio.Task[Any]) -> Shown | None:
        """What the policy is to read next; None at the end of the episode."""
        _complete(self._loop, asyncio.wait({episode, self._asked}, return_when=asyncio.FIRST_COMPLETED))
        if self._refused is not None:
            raise self._refused
        shown: Shown | None = None if episode.done() else self._asked.result()
        return shown

    def answer(self, reply: str | None) -> None:
        """End the present `ask`."""
        waiting, self._asked, self._reply = self._reply, self._loop.create_future(), self._loop.create_future()
        waiting.set_result(reply)


class _Seat:
    """The agent of an episode, in the place of the library's `Agent`: the policy, without a harness or a runtime."""

    def __init__(self, name: str, config: Any, line: _Line) -> None:
        self.name, self.config, self.trainable = name, config, True
        self.trace: Any = None
        self._line = line
        if config.harness is not None and config.harness.id != "null":
            line.refuse("its agent has a harness of its own")
        if any((config.max_input_tokens, config.max_output_tokens, config.max_total_tokens)):
            line.refuse("its agent has a limit of tokens: set rollout.max_new_tokens instead")

    def __getattr__(self, name: str) -> NoReturn:
        self._line.refuse(f"its environment uses {name!r} of its agent")

    async def run(self, task: Any, **borrowed: Any) -> Any:
        """The trace of the policy's reply to the task's prompt."""
        async with self.interaction(task, **borrowed) as conversation:
            await conversation.turn()
            conversation.trace.stop("agent_completed")
        return conversation.trace

    @contextlib.asynccontextmanager
    async def interaction(
        self, task: Any, *, on_trace: Callable[[Any], None] | None = None, **borrowed: Any
    ) -> AsyncIterator[_Conversation]:
        """A conversation about the task, scored at its end."""
        import verifiers.v1 as vf
        from verifiers.v1.state import state_cls
        from verifiers.v1.utils.decorators import invoke

        if any(borrowed.values()):
            self._line.refuse("its environment lends its agent tools or a runtime")
        if self.trace is not None:
            self._line.refuse("its agent has more than one conversation")
        try:
            refuse(task)
        except Unsupported as error:
            self._line.refuse(str(error))
        info = vf.AgentInfo(config=self.config, name=self.name, trainable=self.trainable)
        self.trace = trace = vf.Trace(task=_described(task), state=state_cls(type(task))(), agent=info)
        if on_trace is not None:
            on_trace(trace)
        await invoke(task.setup, {"trace": trace, "runtime": None})
        async with Tools.serving(task.toolsets(task.config), task, trace) as tools:
            yield _Conversation(task, trace, self.config.max_turns, self._line, tools)
            trace.stop("user_closed")
            await invoke(task.finalize, {"trace": trace, "runtime": None})
        await task.score(trace)
        trace.ok = True


class _Conversation:
    """The library's `Interaction` with the policy: the environment writes a message, the policy replies.

    A reply with calls of tools is answered, as the library's chat program does, until one has no call.
    """

    def __init__(self, task: Any, trace: Any, max_turns: int | None, line: _Line, tools: Tools) -> None:
        self.trace = trace
        self._data, self._max_turns, self._line, self._tools = task.data, max_turns, line, tools
        self._stops, self._over = task.hooks("stop"), False

    def __getattr__(self, name: str) -> NoReturn:
        self._line.refuse(f"its environment uses {name!r} of a conversation")

    async def turn(self, message: Any = None) -> Any:
        """The policy's reply, as the library's `Segment`; without a message, the reply to the task's prompt."""
        import verifiers.v1 as vf

        opens = not self.trace.nodes
        if self._over or (message is None) != (opens and self._data.prompt is not None):
            raise ValueError("a conversation that is over has no turns, and a task's prompt alone opens it")
        messages = opening(self._data, message) if opens else _messages(message)
        try:
            shown: Shown = text_of(messages)
        except Unsupported as error:
            self._line.refuse(str(error))
        new = list[Any]()
        while not await self._is_stopped() and (reply := await self._line.ask(shown)) is not None:
            self._add(messages)
            calls = read_calls(reply, self._line.call_form) if self._tools else []
            if not calls:
                new.append(vf.AssistantMessage(content=reply))
                self._add(new[-1:], sampled=True)
                return vf.Segment(messages=new)
            shown = await self._tools.answers(calls)
            called, *messages = messages_of(reply, calls, shown)
            self._add([called], sampled=True)
            new += [called, *messages]
        self.trace.stop("max_total_tokens")  # where no other condition has stopped it
        self._over = True
        return vf.Segment(messages=new, terminated=True)

    def _add(self, messages: Sequence[Any], *, sampled: bool = False) -> None:
        import verifiers.v1 as vf

        for each in messages:
            parent = len(self.trace.nodes) - 1 if self.trace.nodes else None
            self.trace.nodes.append(vf.MessageNode(parent=parent, message=each, sampled=sampled))

    async def _is_stopped(self) -> bool:
        """Whether a limit, or a stop condition of the task, ends the conversation before the policy's next turn."""
        import verifiers.v1 as vf
        from verifiers.v1.session import RolloutLimits, call_hook

        limit = RolloutLimits(max_turns=self._max_turns).reached(self.trace)
        if limit is not None:
            self.trace.stop(limit)
        for hook in self._stops:
            if self.trace.stop_condition is None and await call_hook(hook, {vf.Trace: self.trace}):
                self.trace.stop(hook.__name__)
        return self.trace.stop_condition is not None


def opening(data: Any, message: Any = None) -> list[Any]:
    """The messages before the policy's first turn: the system prompt, and the task's prompt or else `message`."""
    import verifiers.v1 as vf

    first = [] if data.system_prompt is None else [vf.SystemMessage(content=data.system_prompt)]
    return [*first, *_messages(data.prompt if message is None else message)]


def text_of(messages: Sequence[Any]) -> str:
    """The messages as one message of the user, as the library does for a program without system messages.

    Raises Unsupported for images, and for messages of an assistant or a tool.
    """
    texts = [[each.content] if isinstance(each.content, str) else each.content for each in messages]
    parts = [[part if isinstance(part, str) else getattr(part, "text", None) for part in text or ()] for text in texts]
    roles = {each.role for each in messages}
    if not roles <= {"system", "user"} or any(part is None for text in parts for part in text):
        raise Unsupported("its prompts contain other messages than texts of the system and the user")
    return "\n\n".join("\n".join(map(str, text)) for text in parts)


def _messages(given: Any) -> list[Any]:
    """A text, or the library's messages, typed or as dictionaries, as a list of typed messages."""
    import verifiers.v1 as vf
    from verifiers.v1.dialects import parse_message

    if isinstance(given, str):
        return [vf.UserMessage(content=given)]
    return [parse_message(each) if isinstance(each, dict) else each for each in given]


def _described(task: Any) -> Any:
    import verifiers.v1 as vf

    return vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)


def _needs_runtime(hook: Callable[..., Any]) -> bool:
    parameter = inspect.signature(hook).parameters.get("runtime")
    return parameter is not None and parameter.default is parameter.empty
