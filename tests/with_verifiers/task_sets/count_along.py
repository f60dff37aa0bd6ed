"""A task set of several turns: a user names one number after another, and the agent repeats each."""

import verifiers.v1 as vf
from pydantic import Field


class Numbers(vf.TaskData):
    numbers: list[str]


class CountAlong(vf.Task[Numbers, vf.State, vf.TaskConfig]):
    @vf.reward(weight=1.0)
    async def repeated(self, trace: vf.Trace) -> float:
        said = [message.content or "" for message in trace.assistant_messages]
        if len(said) != len(self.data.numbers):
            return 0.0
        return sum(number in text for number, text in zip(self.data.numbers, said, strict=True)) / len(said)


class CountAlongEnv(vf.SingleAgentEnv):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as conversation:
            for number in task.data.numbers:
                turn = await conversation.turn(number)
                if turn.terminated:
                    return


class CountAlongConfig(vf.TasksetConfig):
    numbers: list[str] = Field(default_factory=lambda: ["1", "2"])


class CountAlongTaskset(vf.Taskset[CountAlong, CountAlongConfig]):
    def load(self) -> list[CountAlong]:
        return [CountAlong(Numbers(idx=0, prompt=None, system_prompt="Be brief.", numbers=self.config.numbers))]


__all__ = ["CountAlongEnv", "CountAlongTaskset"]
