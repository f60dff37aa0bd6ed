"""winnow's side: single steps of one `Run`, which is built as in training."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from trl_sides import Measured, Setting, hash_reward

from winnow.budget.sampling import PromptTable, uniform
from winnow.config_file import validate
from winnow.core.plan import plan
from winnow.core.run import Run
from winnow.core.step import train_step
from winnow.engines.base import Engine, EngineContext, OnRollout, Tolerance
from winnow.engines.native.engine import native
from winnow.records import Group, Prompt, Sampling
from winnow.seeds import SeedName
from winnow.training.build import build
from winnow.training.resolve import resolve_members

MICRO_BATCH_TOKENS = 4096  # as in the recipe arithmetic, for a CPU


class Ours:
    """Steps of one run, one after the other."""

    def __init__(self, setting: Setting, folder: Path, *, replay: Sequence[Group] | None = None) -> None:
        """With `replay`, these are the rollouts of every step, and nothing is sampled."""
        self.setting = setting
        members = resolve_members(validate(_config(setting, replay)), base=Path.cwd())
        path = Path(tempfile.mkdtemp(prefix="winnow-", dir=folder))
        self.built = build(members, folder=path, device=torch.device("cpu"))
        self.run = self.built.run
        self.metrics: dict[str, float] = {}  # those of the last step
        self._step = 0

    def __call__(self) -> Measured:
        """Plan and do the next step, as `fit` does."""
        begin = time.perf_counter()
        plan(self.run, self.built.progress, self._step)
        self.metrics = metrics = train_step(self.run, self.built.progress, self._step).metrics
        seconds = time.perf_counter() - begin
        self._step += 1
        phases = {k.removeprefix("seconds/"): v for k, v in metrics.items() if k.startswith("seconds/")}
        phases.pop("step")
        return Measured(
            seconds=seconds,
            phases={**phases, "log": seconds - sum(phases.values())},
            reward=metrics["reward/mean"],
            tokens=metrics["budget/tokens_generated"],
            length_mean=metrics["rollout/length_mean"],
            length_max=metrics["rollout/length_max"],
            trained=int(metrics["select/trained"]),
        )

    def prompts(self, steps: int = 1) -> list[Prompt]:
        """The prompts of the first steps, in order of sampling."""
        return first_prompts(self.run, steps)

    def sample(self, seed: int) -> list[Group]:
        """Sample the first step's prompts with the current weights."""
        prompts = self.prompts()
        counts = [self.setting.rollouts] * len(prompts)
        return self.run.engine.generate(prompts, counts, self.run.sampling, seed=("benchmark", seed))


def first_prompts(run: Run, steps: int) -> list[Prompt]:
    """What a run draws in its first steps, in order of sampling."""
    state, drawn = dict[str, Any](), list[Prompt]()
    for _ in range(steps):
        table = PromptTable.empty(len(run.prompts.prompts))
        rows, state, *_ = uniform(table, state, run.prompts.stream, run.config.rollout.prompts_per_step)
        drawn += run.prompts.take(rows)
    return drawn


def _config(setting: Setting, replay: Sequence[Group] | None) -> dict[str, Any]:
    """TRL's `grpo` loss as winnow's keys: group-normalised advantages, clip 0.2, equal weights of sequences."""
    rollout: dict[str, Any] = {
        "prompts_per_step": setting.prompts,
        "rollouts_per_prompt": setting.rollouts,
        "max_new_tokens": setting.max_new_tokens,
    }
    if replay is not None:
        rollout["engine"] = {"use": lambda context: Replay(replay)}
    elif setting.fixed:
        rollout["engine"] = {"use": unstoppable}
    keep = {"use": "max_variance", "keep_per_prompt": setting.keep} if setting.keep else {"use": "all"}
    return {
        "device": "cpu",
        "model": {"path": setting.model, "dtype": setting.dtype},
        "task": {"use": "arithmetic", "levels": [2, 3, 4], "size": setting.problems},
        "rollout": rollout,
        "reward": {"use": hash_reward},
        "select": keep,
        "advantage": "grpo",
        "update": {"tokens_per_micro_batch": MICRO_BATCH_TOKENS},
        "weighting": "sequence",
        "loss": "clip",
        "optimizer": {"learning_rate": setting.learning_rate, "betas": (0.9, 0.95), "eps": setting.eps},
        "evaluate": {"problems": 1},
        "verify": {"workers": 0},
    }


def unstoppable(context: EngineContext) -> Engine:
    """The native engine without stop tokens: every rollout has max_new_tokens tokens."""
    return native(dataclasses.replace(context, stop_tokens=()))


class Replay:
    """An engine that returns given rollouts."""

    logprob_tolerance = Tolerance(mean=float("inf"), tail=float("inf"))

    def __init__(self, groups: Sequence[Group]) -> None:
        self.version = 0
        self._groups = {group.prompt.id: group for group in groups}

    def generate(
        self,
        prompts: Sequence[Prompt],
        counts: Sequence[int],
        sampling: Sampling,
        *,
        seed: tuple[SeedName, ...],
        on_rollout: OnRollout | None = None,
    ) -> list[Group]:
        """See `Engine`; only the version is new."""
        return [self._again(prompt) for prompt in prompts]

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Does nothing: the rollouts do not depend on the weights."""
        self.version = version

    def close(self) -> None:
        """See `Engine`."""

    def _again(self, prompt: Prompt) -> Group:
        rollouts = self._groups[prompt.id].rollouts
        return Group(prompt=prompt, rollouts=tuple(dataclasses.replace(r, version=self.version) for r in rollouts))
