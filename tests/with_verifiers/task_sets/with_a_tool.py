"""A task set whose agent gets two tools, of which one changes the state of the rollout."""

import verifiers.v1 as vf


class Counted(vf.State):
    total: int = 0


class Doubling(vf.Toolset[vf.ToolsetConfig, Counted]):
    async def setup_task(self, task: vf.TaskData) -> None:
        self.start = int(task.prompt.split()[-1].rstrip("."))

    @vf.tool
    def double(self, number: int) -> int:
        """Twice the number."""
        return 2 * number

    @vf.tool
    async def add(self, number: int, times: int = 1) -> str:
        """Add the number to the total, `times` times."""
        if number < 0:
            raise ValueError("only positive numbers")
        self.state.total += number * times
        return f"{self.start} {self.state.total}"


class DoubleConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class Double(vf.Task[vf.TaskData, Counted, DoubleConfig]):
    @classmethod
    def toolsets(cls, config: DoubleConfig) -> list[vf.Toolset]:
        return [Doubling(config.tools)]

    @vf.reward(weight=1.0)
    async def counted(self, trace: vf.Trace) -> float:
        return float(trace.state.total == 42)

    @vf.metric
    async def answers(self, trace: vf.Trace) -> float:
        return float(len(trace.tool_messages))


class DoubleTasksetConfig(vf.TasksetConfig):
    task: DoubleConfig = DoubleConfig()


class DoubleTaskset(vf.Taskset[Double, DoubleTasksetConfig]):
    def load(self) -> list[Double]:
        return [Double(vf.TaskData(idx=place, prompt=f"Double {place}."), self.config.task) for place in range(20)]


__all__ = ["DoubleTaskset"]
