"""A stand-in for the parts of the verifiers library that winnow uses, for tests where it is not installed.

`install(monkeypatch, environment)` puts it into `sys.modules`, with `environment` as the one that settings describe.
tests/with_verifiers uses the library itself.
"""

import contextlib
import functools
import inspect
import sys
from dataclasses import asdict, dataclass, field, fields, replace
from types import ModuleType, SimpleNamespace


def reward(function=None, *, weight=1.0):
    def mark(marked):
        marked.reward, marked.weight = True, weight
        return marked

    return mark if function is None else mark(function)


def marker(name):
    def mark(marked):
        setattr(marked, name, True)
        return marked

    return mark


stop, metric, intercept = map(marker, ("stop", "metric", "intercept"))


@dataclass(frozen=True)
class Message:
    content: object
    role: str = "user"


@dataclass(frozen=True)
class Data:
    prompt: object = None
    answer: str | None = None
    idx: int | None = None
    system_prompt: str | None = None
    image: str | None = None
    agent_user: str | None = None
    artifacts: tuple = ()
    skills: tuple = ()

    def model_dump(self, *, mode, exclude_defaults):
        assert (mode, exclude_defaults) == ("json", True)
        return {each.name: asdict(self)[each.name] for each in fields(self) if getattr(self, each.name) != each.default}

    @classmethod
    def model_validate(cls, values):
        return cls(**values)


class Task:
    NEEDS_CONTAINER = False
    key = hash = "key"

    def __init__(self, data, config=None):
        self.data, self.config = data, config or SimpleNamespace(judges=[])

    @classmethod
    def data_type(cls):
        return Data

    def toolsets(self, config):
        return []

    async def setup(self, trace, runtime):
        return None

    async def finalize(self, trace, runtime):
        return None

    def hooks(self, kind):
        return discover_decorated(self, kind)

    async def score(self, trace):
        for hook in self.hooks("metric"):
            trace.metrics[hook.__name__] = await hook(trace)
        for hook in self.hooks("reward"):
            trace.record_reward(hook.__name__, await hook(trace), hook.weight)


@dataclass
class Trace:
    task: object
    state: object
    agent: object
    nodes: list = field(default_factory=list)
    rewards: dict = field(default_factory=dict)
    metrics: dict = field(default_factory=dict)
    stop_condition: str | None = None
    ok: bool = False

    @property
    def num_turns(self):
        return len(self.replies)

    @property
    def replies(self):
        return [node.message.content for node in self.nodes if node.sampled]

    def stop(self, condition):
        self.stop_condition = self.stop_condition or condition

    def record_reward(self, name, value, weight=1.0):
        self.rewards[name] = SimpleNamespace(value=value * weight)


class Taskset:
    bounded = True

    def __init__(self, tasks):
        self.tasks = tasks

    def __iter__(self):
        for index, task in enumerate(self.tasks):
            yield type(task)(replace(task.data, idx=index), task.config)

    def task_type(self=None):
        return Task

    def toolsets(self, config):
        return []


class Env:
    """With `tasks` of one class; the names of its agents are those of `agents`."""

    agents = ("agent",)
    agent = SimpleNamespace(
        harness=None, max_turns=None, max_input_tokens=None, max_output_tokens=None, max_total_tokens=None
    )

    def __init__(self, tasks):
        kind = type("Tasks", (Taskset,), {"task_type": lambda self=None: type(tasks[0])})
        self.taskset = kind(tasks)
        config = SimpleNamespace(id="fake", task=tasks[0].config)
        self.config = SimpleNamespace(taskset=config, env_id="fake", agents=dict.fromkeys(self.agents, self.agent))

    async def setup(self, agents):
        return None

    async def run(self, task, agents):
        await agents.agent.run(task)

    async def finalize(self, task, episode):
        return None

    async def start(self):
        return None

    async def stop(self):
        return None


def agents(config, make):
    return SimpleNamespace(**{name: make(name, each) for name, each in config.agents.items()})


def discover_decorated(task, kind):
    names = [name for name in dir(type(task)) if hasattr(getattr(type(task), name), kind)]
    return [getattr(task, name) for name in names]


def invoke(hook, given):
    return hook(**{name: given[name] for name in inspect.signature(hook).parameters})


def limits(max_turns):
    def reached(trace):
        return "max_turns" if max_turns is not None and trace.num_turns >= max_turns else None

    return SimpleNamespace(reached=reached)


async def call_hook(hook, given):
    return await hook(given[Trace])


def record(**fields):
    return SimpleNamespace(**fields)


def hook_boundary(hook, *, allow_trace):
    return Trace if "trace" in inspect.signature(hook).parameters else object


def install(monkeypatch, environment):
    """Settings are refused unless their task set is "fake"."""

    def resolve(settings):
        with contextlib.suppress(KeyError):
            if settings["taskset"]["id"] == "fake":
                return settings
        raise ModuleNotFoundError("no such task set")

    modules = {
        "verifiers": {},
        "verifiers.v1": {
            "AgentInfo": record,
            "Agents": agents,
            "AssistantMessage": functools.partial(Message, role="assistant"),
            "Env": Env,
            "EnvInfo": record,
            "Episode": lambda **fields: record(traces=[], **fields),
            "MessageNode": record,
            "Segment": lambda messages, terminated=False: record(messages=messages, terminated=terminated),
            "SystemMessage": functools.partial(Message, role="system"),
            "Task": Task,
            "Trace": Trace,
            "TraceTask": record,
            "UserMessage": Message,
            "load_environment": lambda settings: environment,
            "resolve_env_config": resolve,
        },
        "verifiers.v1.dialects": {"parse_message": lambda raw: Message(raw["content"], raw["role"])},
        "verifiers.v1.session": {"RolloutLimits": limits, "call_hook": call_hook, "hook_boundary": hook_boundary},
        "verifiers.v1.state": {"state_cls": lambda kind: SimpleNamespace},
        "verifiers.v1.utils": {},
        "verifiers.v1.utils.decorators": {"discover_decorated": discover_decorated, "invoke": invoke},
        "verifiers.v1.utils.loaders": {"default_harness_id": lambda taskset: "bash"},
    }
    for name, members in modules.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
