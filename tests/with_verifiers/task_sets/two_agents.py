"""A task set whose environment has two agents."""

import verifiers.v1 as vf
from repeat_number import RepeatTaskset


class TwoAgentsConfig(vf.EnvConfig):
    first: vf.AgentConfig = vf.AgentConfig(harness=vf.HarnessConfig(id="null"))
    second: vf.AgentConfig = vf.AgentConfig(harness=vf.HarnessConfig(id="null"))


class TwoAgentsEnv(vf.Env[TwoAgentsConfig]):
    async def run(self, task, agents):
        await agents.first.run(task)
        await agents.second.run(task)


class TwoAgentsTaskset(RepeatTaskset):
    pass


__all__ = ["TwoAgentsEnv", "TwoAgentsTaskset"]
