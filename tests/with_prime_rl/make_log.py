"""Write a log as the file monitor of prime-rl does, with the episodes of verifiers and made-up contents.

python tests/with_prime_rl/make_log.py tests/fixtures/prime_rl_run      as the files there were made, by verifiers 0.4.0

prime-rl itself needs a GPU and is not installed: of its code, the paths and the order of the records are written here
again (commit 559b4477, src/prime_rl/monitors/file.py and src/prime_rl/orchestrator/orchestrator.py). Three groups of
four arrive in steps 1 and 2; the second one begins in step 1 and is trained on in step 2; of the third, one episode has
no trace and one trace failed; the fourth, which arrives in step 2, is trained on in no step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.episode import EnvInfo, GroupInfo
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import AgentInfo, Error, ModelCall, Reward, TimeSpan, TraceTask, VersionInfo
from verifiers.v1.types import AssistantMessage, SystemMessage, Usage, UserMessage

BUILD = VersionInfo(version="0.4.0")
ROLLOUTS = 4


def task_of(group: int) -> TraceTask[Any]:
    data = {"idx": group, "prompt": f"What is {group} + 1?", "answer": str(group + 1)}
    return TraceTask.model_validate({"type": "Sum", "data": data, "key": f"key-of-task-{group}"})


def trace_of(group: int, index: int, *, ok: bool = True) -> vf.Trace:
    """Rewards 1 for the right answer (rollouts 0 to group), and 0.5 times the share of its length."""
    right, length = float(index <= group), 3 + index
    answer = AssistantMessage(content=str(group + 1) if right else "?")
    nodes = [
        MessageNode(message=SystemMessage(content="Answer."), timestamp=0.0),
        MessageNode(parent=0, message=UserMessage(content=f"What is {group} + 1?"), timestamp=0.0),
        MessageNode(
            parent=1, message=answer, sampled=True, timestamp=0.0, token_ids=[1] * length, mask=[True] * length
        ),
    ]
    usage = Usage(prompt_tokens=9, completion_tokens=length)
    return vf.Trace(
        id=f"trace-{group}-{index}",
        verifiers=BUILD,
        task=task_of(group),
        agent=AgentInfo.model_validate({"config": {}}),
        nodes=nodes,
        calls=[ModelCall(node=2, finish_reason="stop", usage=usage, time=TimeSpan())],
        rewards={"right": Reward(score=right), "short": Reward(score=length / 8, weight=0.5)}
        if ok
        else {"right": None},
        is_completed=True,
        ok=ok,
        errors=[] if ok else [Error(type="TaskError", message="timed out")],
        timing={"start": 0.0},
    )


def episode_of(group: int, index: int, traces: list[vf.Trace]) -> vf.Episode:
    return vf.Episode(
        id=f"episode-{group}-{index}",
        env=EnvInfo(id="sums", name="sums"),
        task=task_of(group),
        group=GroupInfo(id=f"group-{group}"),
        ok=bool(traces) and all(trace.ok for trace in traces),
        traces=traces,
    )


def credited(group: int, indices: list[int]) -> list[vf.Episode]:
    """Of the group, the episodes that are trained on, with reward minus mean as the credit of each token."""
    traces = [trace_of(group, index) for index in indices]
    mean = sum(trace.reward for trace in traces) / len(traces)
    for trace in traces:
        trace.nodes[2].advantages = [trace.reward - mean] * sum(trace.nodes[2].mask)
    return [episode_of(group, index, [trace]) for index, trace in zip(indices, traces, strict=True)]


def write(folder: Path) -> None:
    whole = {(group, index): [trace_of(group, index)] for group in range(4) for index in range(ROLLOUTS)}
    whole[2, 1], whole[2, 3] = [], [trace_of(2, 3, ok=False)]
    first = [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (0, 3)]
    arrived = {1: first, 2: [own for own in whole if own not in first]}
    trained = {1: credited(0, [0, 1, 2, 3]), 2: [*credited(1, [0, 1, 2, 3]), *credited(2, [0, 2])]}
    rows = []
    for step in (1, 2):
        log_episodes(folder, [episode_of(*own, whole[own]) for own in arrived[step]], step, "all")
        log_episodes(folder, trained[step], step, "effective")
        rows += [
            {"step": step, "time": 0.0, "progress/rollouts": 8, "time/step": 10.0 + step, "off_policy/mean": 0.0},
            {"step": step, "time": 0.0, "optim/lr": 1e-6, "optim/grad_norm": 0.5 * step},
            {"step": step, "time": 0.0, "loss/mean": -0.125, "entropy/all/mean": 1.0 / step},
            {"step": step, "time": 0.0, "time/step": 4.0},
        ]
    rows.append({"step": 3, "time": 0.0, "eval/sums/effective/agent/avg@4": 0.75, "eval/sums/policy_version": 2.0})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def log_episodes(folder: Path, episodes: list[vf.Episode], step: int, subset: str) -> None:
    path = folder / "rollouts" / f"step_{step}" / "train" / subset / "traces.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for episode in episodes:
            file.write(json.dumps(episode.to_record(), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
