"""A task set of one turn: the agent repeats a number."""

import verifiers.v1 as vf
from pydantic import Field


class Number(vf.TaskData):
    answer: str


class Repeat(vf.Task[Number]):
    @vf.stop
    async def answered(self, trace: vf.Trace) -> bool:
        return trace.num_turns > 0

    @vf.reward(weight=1.0)
    async def repeated(self, trace: vf.Trace) -> float:
        return float(any(self.data.answer in (one.content or "") for one in trace.assistant_messages))


class RepeatConfig(vf.TasksetConfig):
    numbers: list[str] = Field(default_factory=lambda: ["1"])


class RepeatTaskset(vf.Taskset[Repeat, RepeatConfig]):
    def load(self) -> list[Repeat]:
        return [
            Repeat(Number(idx=i, prompt=f"Repeat {number}", system_prompt="Be brief.", answer=number), self.config.task)
            for i, number in enumerate(self.config.numbers)
        ]


__all__ = ["RepeatTaskset"]
