"""A task set whose agent gets a tool."""

import verifiers.v1 as vf


class Doubling(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    def double(self, number: int) -> int:
        """Twice the number."""
        return 2 * number


class DoubleConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class Double(vf.Task[vf.TaskData, vf.State, DoubleConfig]):
    @classmethod
    def toolsets(cls, config: DoubleConfig) -> list[vf.Toolset]:
        return [Doubling(config.tools)]

    @vf.reward(weight=1.0)
    async def doubled(self, trace: vf.Trace) -> float:
        return float(len(trace.tool_messages) > 0)


class DoubleTasksetConfig(vf.TasksetConfig):
    task: DoubleConfig = DoubleConfig()


class DoubleTaskset(vf.Taskset[Double, DoubleTasksetConfig]):
    def load(self) -> list[Double]:
        return [Double(vf.TaskData(idx=0, prompt="Double 21."), self.config.task)]


__all__ = ["DoubleTaskset"]
