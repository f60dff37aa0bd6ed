"""Episodes of the verifiers library with the policy as their agent, on a stand-in for the library."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

import fake_verifiers as vf
from refusals import refused
from winnow.environments.judging import warm
from winnow.environments.replay import make_environment
from winnow.environments.verifiers import Unsupported, load, play, refuse, refuse_environment, task_of
from winnow.errors import ConfigError
from winnow.records import Outcome, Prompt, Reply, Rollout
from winnow.registry import resolve

SETTINGS = {"taskset": {"id": "fake"}}
PROMPT = Prompt(
    id="p", tokens=np.array([1]), text="?", answer=None, task="verifiers",
    meta={"environment": SETTINGS, "data": {"prompt": "Say yes.", "answer": "yes"}},
)  # fmt: skip


def test_a_problem_of_another_task_is_refused():
    with refused(ConfigError, key="task", code="config.combination"):
        resolve("environment", "verifiers").traits.schemas({"level": 2})


class Echo(vf.Task):
    @vf.reward(weight=0.75)
    async def said(self, trace):
        return float(self.data.answer in trace.replies)

    @vf.reward(weight=0.25)
    async def short(self, trace):
        await asyncio.sleep(0)
        return float(len(trace.replies[-1]) < 4)


class Twice(vf.Env):
    """Asks again, up to three times, with a number that only Python's global random numbers determine."""

    async def run(self, task, agents):
        async with agents.agent.interaction(task) as conversation:
            segment = await conversation.turn()
            for _ in range(2):
                if segment.terminated or segment.messages[0].content == "yes":
                    break
                segment = await conversation.turn(f"Again: {random.randrange(10**9)}.")
        conversation.trace.record_reward("turns", conversation.trace.num_turns)


def task(kind=Echo, **data):
    return kind(vf.Data(**{"prompt": "Say yes.", "answer": "yes", **data}))


@pytest.fixture
def installed(monkeypatch):
    """Installs the stand-in with an environment of some class."""
    load_cache = load.__globals__["_loaded"]
    load_cache.cache_clear()

    def install(kind=vf.Env, tasks=None):
        environment = kind([task()] if tasks is None else tasks)
        vf.install(monkeypatch, environment)
        return environment

    yield install
    load_cache.cache_clear()


def rollout(*turns, finish="stop"):
    none = np.zeros(0)
    return Rollout(index=0, tokens=none.astype(int), logprobs=none, text="", finish=finish, version=0, turns=turns)


def episode(environment, of=None, seed=0):
    return play(environment, of or environment.taskset.tasks[0], np.random.default_rng(seed))


def finished(game):
    """The trace of an episode that ends now."""
    with pytest.raises(StopIteration) as end:
        game.send("yes")
    return end.value.value


def test_a_single_turn_has_the_weighted_rewards_as_parts(installed):
    installed()
    answer = make_environment("verifiers", {}, max_turns=4)
    assert answer(PROMPT, rollout("yes")) == Outcome(
        reward=1.0, correct=True, kind="correct", parts={"said": 0.75, "short": 0.25}
    )
    assert answer(PROMPT, rollout("maybe")).parts == {"said": 0.0, "short": 0.0}
    low = make_environment("verifiers", {"correct_at": 0.25}, max_turns=4)
    assert low(PROMPT, rollout("no")) == Outcome(
        reward=0.25, correct=True, kind="correct", parts={"said": 0.0, "short": 0.25}
    )


def test_several_turns_are_replayed_with_the_same_random_numbers(installed):
    installed(Twice)
    answer = make_environment("verifiers", {}, max_turns=4)
    before = random.getstate()
    first = answer(PROMPT, rollout("no"))
    assert isinstance(first, Reply)
    second = answer(PROMPT, rollout("no", first.text, "no"))
    assert isinstance(second, Reply)
    assert second.text != first.text
    last = answer(PROMPT, rollout("no", first.text, "no", second.text, "yes"))
    assert isinstance(last, Outcome)
    assert last.parts == {"said": 0.75, "short": 0.25, "turns": 3.0}
    assert random.getstate() == before
    assert answer(PROMPT, rollout("no", "Again: 1.", "yes")).cause == "malformed"


def test_episodes_are_played_beside_a_loop_that_runs_in_the_same_thread(installed):
    environment = installed(Twice)

    def texts():
        game = episode(environment)
        return [next(game), game.send("no"), game.send("no")], finished(game).num_turns

    async def in_a_notebook():
        return texts()

    with ThreadPoolExecutor(1) as thread:  # this thread may run the loop of a browser's tests
        assert thread.submit(asyncio.run, in_a_notebook()).result() == thread.submit(texts).result()


def test_no_room_for_another_turn_ends_the_conversation_for_the_library(installed):
    environment = installed(Twice)
    answer = make_environment("verifiers", {}, max_turns=4)
    assert answer(PROMPT, rollout("no", finish="length")).parts == {"said": 0.0, "short": 0.25, "turns": 1.0}
    game = episode(environment)
    assert next(game) == "Say yes."
    game.send("no")
    with pytest.raises(StopIteration) as end:
        game.send(None)
    trace = end.value.value
    assert (trace.stop_condition, trace.replies, trace.ok) == ("max_total_tokens", ["no"], True)


def test_the_question_has_the_system_prompt_and_the_trace_all_messages(installed):
    environment = installed(
        tasks=[task(system_prompt="Be brief.", prompt=[vf.Message("Say"), {"role": "user", "content": "yes."}])]
    )
    game = episode(environment)
    assert next(game) == "Be brief.\n\nSay\n\nyes."
    trace = finished(game)
    assert [(node.message.role, node.parent, node.sampled) for node in trace.nodes] == [
        ("system", None, False), ("user", 0, False), ("user", 1, False), ("assistant", 2, True),
    ]  # fmt: skip
    assert trace.stop_condition == "agent_completed"


def test_the_environment_opens_the_conversation_of_a_task_without_a_prompt(installed):
    class Opens(vf.Env):
        async def run(self, task, agents):
            async with agents.agent.interaction(task) as conversation:
                await conversation.turn("Hello.")

    environment = installed(Opens, [task(prompt=None)])
    game = episode(environment)
    assert next(game) == "Hello."
    assert finished(game).replies == ["yes"]


def test_a_stop_condition_and_the_agents_limit_end_the_conversation(installed):
    class Stops(Echo):
        @vf.stop
        async def enough(self, trace):
            return trace.num_turns == 1

    environment = installed(Twice, [task(Stops)])
    game = episode(environment)
    next(game)
    assert finished(game).num_turns == 1
    game = episode(environment)
    next(game)
    with pytest.raises(StopIteration) as end:
        game.send("no")
    assert end.value.value.stop_condition == "enough"
    limited = type("Limited", (Twice,), {"agent": SimpleNamespace(**{**vars(vf.Env.agent), "max_turns": 2})})
    game = episode(limited([task()]))
    next(game)
    game.send("no")
    with pytest.raises(StopIteration) as end:
        game.send("no")
    assert end.value.value.stop_condition == "max_turns"


def test_hooks_run_in_order_and_finalize_reads_the_trace(installed):
    order = []

    class Hooked(Echo):
        async def setup(self, trace):
            order.append("task setup")

        async def finalize(self, trace):
            order.append(f"task finalize {trace.num_turns}")

    class Env(vf.Env):
        async def setup(self, agents):
            order.append("setup")
            agents.agent.trainable = False

        async def finalize(self, task, episode):
            order.append(f"finalize {len(episode.traces)}")

    game = episode(installed(Env, [task(Hooked)]))
    next(game)
    assert finished(game).agent.trainable is False
    assert order == ["setup", "task setup", "task finalize 1", "finalize 1"]


class NeedsRuntime(Echo):
    @vf.reward
    async def runs(self, trace, runtime):
        return 1.0


class NeedsRuntimeBefore(Echo):
    async def setup(self, runtime):
        return None


class MayUseRuntime(Echo):
    @vf.metric
    async def runs(self, trace, runtime=None):
        return 1.0


class Contained(Echo):
    NEEDS_CONTAINER = True


class WithServedTools(Echo):
    def toolsets(self, config):
        return [SimpleNamespace(config=SimpleNamespace(url="http://tools"))]


class WithTools(Echo):
    def toolsets(self, config):
        return [SimpleNamespace(config=SimpleNamespace(url=None))]


class Intercepted(Echo):
    @vf.intercept
    async def rewrite(self, response):
        return response


class StopsRequests(Echo):
    @vf.stop
    async def guard(self, request):
        return False


@pytest.mark.parametrize(
    "kind", [NeedsRuntime, NeedsRuntimeBefore, Contained, WithServedTools, Intercepted, StopsRequests]
)
def test_a_task_that_needs_more_than_texts_is_refused(installed, kind):
    installed()
    with pytest.raises(Unsupported):
        refuse(task(kind))


def test_data_that_need_more_than_texts_are_refused(installed):
    installed()
    for field in ("image", "agent_user"):
        with pytest.raises(Unsupported):
            refuse(task(**{field: "name"}))
    judged = task()
    judged.config = SimpleNamespace(judges=["judge"])
    with pytest.raises(Unsupported):
        refuse(judged)
    refuse(task())
    refuse(task(MayUseRuntime))
    refuse(task(WithTools))


class Two(vf.Env):
    agents = ("one", "two")


class None_(vf.Env):
    async def run(self, task, agents):
        return None


class Again(vf.Env):
    async def run(self, task, agents):
        await agents.agent.run(task)
        await agents.agent.run(task)


class AtOnce(vf.Env):
    async def run(self, task, agents):
        await asyncio.gather(agents.agent.run(task), agents.agent.run(task), return_exceptions=True)


class Provisions(vf.Env):
    async def run(self, task, agents):
        async with agents.agent.provision(task):
            pass


class Steers(vf.Env):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as conversation:
            await conversation.steer("left")


class Lends(vf.Env):
    async def run(self, task, agents):
        await agents.agent.run(task, tools={"search": "server"})


class OwnHarness(vf.Env):
    agent = SimpleNamespace(**{**vars(vf.Env.agent), "harness": SimpleNamespace(id="codex")})


class LimitOfTokens(vf.Env):
    agent = SimpleNamespace(**{**vars(vf.Env.agent), "max_total_tokens": 10})


def played(environment):
    """The first messages to the policy, whose replies are "yes"."""
    game = episode(environment)
    return [game.send(reply) for reply in (None, "yes", "yes")]


REFUSED = [Two, None_, Again, AtOnce, Provisions, Steers, Lends, OwnHarness, LimitOfTokens]


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_an_environment_that_needs_more_than_one_conversation_is_refused(installed, kind):
    with pytest.raises(Unsupported):
        played(installed(kind))


def test_a_task_without_a_reward_and_an_image_are_refused(installed):
    game = episode(installed(tasks=[task(vf.Task)]))
    next(game)
    with pytest.raises(Unsupported):
        game.send("yes")
    image = [vf.Message([SimpleNamespace(type="image_url")])]
    with pytest.raises(Unsupported):
        next(episode(installed(tasks=[task(prompt=image)])))


def test_shared_servers_and_a_harness_of_the_task_set_are_refused(installed, monkeypatch):
    refuse_environment(installed())

    class Starts(vf.Env):
        async def start(self):
            return None

    with pytest.raises(Unsupported):
        refuse_environment(installed(Starts))
    environment = installed()
    monkeypatch.setattr(type(environment.taskset), "toolsets", lambda self, config: ["server"])
    with pytest.raises(Unsupported):
        refuse_environment(environment)
    environment = installed()
    monkeypatch.setattr("verifiers.v1.utils.loaders.default_harness_id", lambda taskset: "its own")
    with pytest.raises(Unsupported):
        refuse_environment(environment)


def test_wrong_turns_and_exceptions_of_the_library_are_raised(installed):
    class Wrong(vf.Env):
        async def run(self, task, agents):
            async with agents.agent.interaction(task) as conversation:
                await conversation.turn("before the prompt")

    with pytest.raises(ValueError, match="conversation"):
        next(episode(installed(Wrong)))

    class Breaks(Echo):
        @vf.reward
        async def breaks(self, trace):
            raise ZeroDivisionError

    installed(tasks=[task(Breaks)])
    assert make_environment("verifiers", {}, max_turns=4)(PROMPT, rollout("yes")).cause == "raised"


def test_an_episode_that_is_given_up_closes_the_conversation(installed):
    closed = []

    class Careful(vf.Env):
        async def run(self, task, agents):
            try:
                await agents.agent.run(task)
            finally:
                closed.append(True)

    game = episode(installed(Careful))
    next(game)
    game.close()
    assert closed == [True]


def test_tasks_that_an_episode_has_started_end_with_it(installed, caplog):
    ended = []

    async def watched(fails):
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(fails)
            if fails:
                raise ZeroDivisionError

    class Watches(vf.Env):
        async def run(self, task, agents):
            self.watching = [asyncio.create_task(watched(fails)) for fails in (False, True)]
            await agents.agent.run(task)

    for finish in (finished, lambda game: game.close()):
        game = episode(installed(Watches))
        next(game)
        finish(game)
        assert sorted(ended) == [False, True]
        ended.clear()
    gc.collect()
    assert not caplog.records


def test_a_task_is_rebuilt_from_its_data(installed):
    environment = installed()
    rebuilt = task_of(environment, {"prompt": "Say yes.", "answer": "yes"})
    assert (type(rebuilt), rebuilt.data) == (Echo, task().data)
    assert load(SETTINGS) is load(SETTINGS) is environment


def test_workers_import_the_library_before_they_are_forked(installed, monkeypatch):
    installed()
    warm({"environment": "verifiers", "options": {}, "max_turns": 4})
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    with refused(ConfigError, key=None, code="config.not_installed"):
        warm({"environment": "verifiers", "options": {}, "max_turns": 4})
    assert resolve("environment", "verifiers").traits.warm is not None
