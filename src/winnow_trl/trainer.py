"""A GRPOTrainer that samples n rollouts of each prompt and trains on m of them.

TRL's `num_generations` is m, so its sampler, `steps_per_generation` and accumulation are unchanged. Only the method
that samples and scores a generation batch is overridden: it repeats each prompt n times, lets TRL sample and score,
and returns the rows that the selector keeps, with advantages over these.

    rows of a process [G * m] -> G prompts, n rows each -> TRL: completions, log-probs, rewards
        -> keep [n] per prompt -> advantages -> rows [G * m]

TRL computes old and reference log-probs of all n rows before it computes rewards, so selection saves forward and
backward passes of the update, and no pass before it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from winnow.algos.plain_groups import Use, plain_group, selector_of
from winnow.errors import ConfigError
from winnow.records import BoolArray, FloatArray, Group
from winnow.seeds import Rng
from winnow_trl.release import TRL, check_class, check_logs, end_tokens, room_in_vllm
from winnow_trl.selection import advantages, fill_keep, kept_rewards, kept_variances, row_id, trained_rows

TRL.check_installed()

from accelerate.utils import gather_object  # noqa: E402  (after the check that TRL, which needs it, is installed)
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

check_class(GRPOTrainer)


@dataclass(frozen=True)
class Scored:
    """What TRL passed to the rewards of a generation batch on this process, and their results on all processes."""

    rows: Sequence[dict[str, Any]]  # [G * n]
    completions: Sequence[Any]  # [G * n] texts, or lists of messages
    tokens: Sequence[Sequence[int]]  # [G * n] x [L], those of tools and environments included
    generated: int  # tokens that the policy sampled
    rewards: Tensor  # [processes * G * n, functions], NaN for None


class PODSTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's GRPOTrainer with `rollouts_per_prompt` (n) rollouts sampled and `num_generations` (m) trained on.

    `select` is a selector of winnow: a name, a table with options (`{"use": "max_variance"}`), a function, or a list of
    these. One with the option `keep_per_prompt` gets m. All other arguments are GRPOTrainer's. A generation batch
    samples n / m times as many rows as TRL's settings give.

    If a selector keeps fewer than m of a prompt, or fewer have a reward, masked rows take the free places: they cost a
    forward pass and have no gradient, and losses that average over rows ("grpo", "dr_grpo", "sapo", "luspo") count
    them. In evaluation nothing is selected, and the column `kept` is null.

    `tools`, `environment_factory` and `rollout_func` are TRL's. A vLLM in the trainer's process gets room for n
    rollouts of each prompt.

    Raises ConfigError if the installed TRL does not fit, where the rows of a process are not whole groups of m,
    where n is below m, and for settings that are not supported: before a model is loaded, if `args` is given.
    """

    num_generations: int  # m; n while TRL samples and scores
    _logs: dict[str, Any]
    _scored: Scored | None

    def __init__(
        self, *args: Any, rollouts_per_prompt: int, select: Use | Sequence[Use] = "max_variance", **kwargs: Any
    ) -> None:
        given = inspect.signature(GRPOTrainer).bind_partial(*args, **kwargs).arguments.get("args")
        settings = GRPOConfig() if given is None else given  # TRL's own differ in the folder alone
        check_settings(settings, rollouts_per_prompt)
        self._select = selector_of(select, keep=settings.num_generations, base=Path.cwd())
        self.rollouts_per_prompt, self._scored, self._generated = rollouts_per_prompt, None, 0
        sizes = {"sampled": rollouts_per_prompt, "trained": settings.num_generations}
        with room_in_vllm(GRPOTrainer, **sizes) if settings.use_vllm else contextlib.nullcontext():
            super().__init__(*args, **kwargs)
        check_logs(self)
        size = self.args.generation_batch_size // self.num_generations * rollouts_per_prompt
        self._logs = {name: _resized(log, size) for name, log in self._logs.items()}

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            evaluated: dict[str, Any] = super()._generate_and_score_completions(inputs)
            self._logs["extra"]["kept"].extend(gather_object([None] * len(inputs)))  # one for every row
            return evaluated
        m, n = self.num_generations, self.rollouts_per_prompt
        _check_rows(inputs, m)
        rows = [dict(row) for row in inputs[::m] for _ in range(n)]  # copies: TRL writes into a row
        self.num_generations, self._scored = n, None
        try:
            output: dict[str, Any] = super()._generate_and_score_completions(rows)
        finally:
            self.num_generations = m
        return self._selected(output, self._take_scored())

    def _take_scored(self) -> Scored:
        """What `_calculate_rewards` was called with in this generation batch."""
        if self._scored is None:
            raise _unsupported("this GRPOTrainer did not compute rewards through _calculate_rewards")
        scored, self._scored = self._scored, None
        return scored

    def _generate(self, prompts: Any) -> Any:
        """TRL's, with a count of the tokens that the policy sampled: neither those of tools nor of an environment."""
        found = super()._generate(prompts)
        tokens, mask = found[1], found[2]
        if mask is not None and list(map(len, mask)) != list(map(len, tokens)):
            raise TRL.unsuitable("_generate returns something else than tokens and their mask at places 1 and 2")
        self._generated = sum(map(len, tokens)) if mask is None else sum(int(sum(row)) for row in mask)
        return found

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Tensor:  # the names are TRL's
        rewards: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._scored = Scored(inputs, completions, completion_ids_list, self._generated, rewards)
        return rewards

    def _selected(self, output: dict[str, Any], scored: Scored) -> dict[str, Any]:
        """The output of TRL with the kept rows alone, their advantages, and the number of their tokens."""
        rng = Rng((self.args.seed, "select", self.state.global_step))
        groups = fill_keep(self._groups(scored), self._select, rng, most=self.num_generations)
        of_all = [reward for some in gather_object([kept_rewards(groups)]) for reward in some]
        credit = advantages(groups, self.scale_rewards, of_all=of_all)
        rows, kept = trained_rows(groups, count=self.num_generations)
        output = cut(output, torch.from_numpy(rows), total=len(scored.rows))
        device = output["advantages"].device
        output["advantages"] = torch.as_tensor(credit[rows], dtype=output["advantages"].dtype, device=device)
        mask = output["completion_mask"] * torch.as_tensor(kept, device=device)[:, None]
        output["completion_mask"] = mask.to(output["completion_mask"].dtype)
        trained = mask if "tool_mask" not in output else mask * output["tool_mask"]
        tokens = self.accelerator.gather(trained.sum()).sum()
        output["num_items_in_batch"] = tokens.clamp(min=1)  # losses divide by it, also if nothing is kept
        self._log_budget(groups, scored, int(tokens))
        self._log_kept(groups, credit)
        return output

    def _groups(self, scored: Scored) -> list[Group]:
        """The rows of this process as groups of n. Functions that returned None are omitted from a row's sum, as in
        TRL; a row without any reward counts as not judged.
        """
        first, n = self.accelerator.process_index * len(scored.rows), self.rollouts_per_prompt
        own = scored.rewards[first : first + len(scored.rows)]
        rewards = (own * self.reward_weights.to(own.device)).nansum(dim=1)
        rewards[torch.isnan(own).all(dim=1)] = torch.nan
        values = rewards.double().cpu().numpy()
        return [self._group(scored, place, values[place : place + n]) for place in range(0, len(values), n)]

    def _group(self, scored: Scored, place: int, rewards: FloatArray) -> Group:
        places, ends = range(place, place + len(rewards)), end_tokens(self)
        tokens = [np.asarray(scored.tokens[i], dtype=np.int64) for i in places]
        return plain_group(
            row_id(scored.rows[place]),
            rewards,
            tokens=tokens,
            texts=[_text(scored.completions[i]) for i in places],
            finished=[bool(len(own)) and int(own[-1]) in ends for own in tokens],
            version=self.state.global_step,
        )

    def _log_budget(self, groups: Sequence[Group], scored: Scored, trained: int) -> None:
        """Add the metrics of a generation batch, over all processes, to those that TRL logs."""
        own = (
            scored.generated,
            len(scored.rows),
            sum(int(np.asarray(group.keep).sum()) for group in groups),
            kept_variances(groups),
        )
        parts = gather_object([own])
        variances = [variance for part in parts for variance in part[3]]
        metrics = self._metrics["train"]
        metrics["budget/generated_tokens"].append(float(sum(part[0] for part in parts)))
        metrics["budget/trained_tokens"].append(float(trained))
        metrics["budget/share_kept"].append(sum(part[2] for part in parts) / sum(part[1] for part in parts))
        metrics["budget/kept_reward_variance"].append(float(np.mean(variances)) if variances else 0.0)

    def _log_kept(self, groups: Sequence[Group], credit: FloatArray) -> None:
        """In the table of completions: a column `kept`, and the advantages that are trained in place of TRL's."""
        keep: BoolArray = np.concatenate([np.asarray(group.keep) for group in groups])
        pairs = gather_object(list(zip(keep.tolist(), credit.tolist(), strict=True)))
        log = self._logs["advantages"]
        for _ in pairs:
            log.pop()
        log.extend(advantage for _, advantage in pairs)
        self._logs["extra"]["kept"].extend(kept for kept, _ in pairs)


def cut(output: dict[str, Any], rows: Tensor, *, total: int) -> dict[str, Any]:
    """The values of a generation batch at `rows`. Each value has one entry for each of `total` rows, or is a scalar.

    Raises ConfigError for a value of another size, and for images, which are not kept by row.
    """
    taken: dict[str, Any] = {}
    for name, value in output.items():
        if isinstance(value, Tensor) and value.ndim == 0:
            taken[name] = value
        elif name in ("pixel_values", "num_images") or not isinstance(value, (Tensor, list)) or len(value) != total:
            raise _unsupported(f"a generation batch has {name!r}, which is not a value per completion")
        else:
            taken[name] = value[rows.to(value.device)] if isinstance(value, Tensor) else [value[i] for i in rows]
    return taken


def check_settings(settings: Any, n: int) -> None:
    """Raise ConfigError for a GRPOConfig with which n rollouts of a prompt cannot be reduced to its m."""
    m = settings.num_generations
    own = settings.per_device_train_batch_size * settings.steps_per_generation
    if not isinstance(n, int) or n < m:
        raise ConfigError(
            f"rollouts_per_prompt = {n!r} rollouts cannot be reduced to num_generations = {m}",
            remedy=f"set rollouts_per_prompt to at least {m}",
            key="rollouts_per_prompt",
            code="config.value",
        )
    if own % m:
        raise ConfigError(
            f"per_device_train_batch_size x steps_per_generation is {own} rows of a process, which are no whole groups "
            f"of num_generations = {m}: the rollouts of a prompt would be on several processes",
            remedy=f"make the product a multiple of {m}",
            key="per_device_train_batch_size",
            code="config.combination",
        )
    if settings.multi_objective_aggregation != "sum_then_normalize":
        raise _unsupported(
            f"multi_objective_aggregation = {settings.multi_objective_aggregation!r}: a selector reads one reward"
        )


def _check_rows(inputs: Sequence[dict[str, Any]], m: int) -> None:
    """Raise ConfigError unless the rows are groups of m with one prompt each."""
    groups = [list(map(row_id, inputs[first : first + m])) for first in range(0, len(inputs), m)]
    if any(len(group) != m or len(set(group)) > 1 for group in groups):
        raise ConfigError(
            f"the {len(inputs)} rows of a process are no whole groups of num_generations = {m}",
            remedy="use TRL's own sampler, and no `split_batches` or `dispatch_batches`",
            key="num_generations",
            code="config.combination",
        )


def _resized(log: Any, size: int) -> Any:
    """An empty log of completions of the same kind with room for `size` of them."""
    return defaultdict(lambda: deque(maxlen=size)) if isinstance(log, dict) else deque(maxlen=size)


def _text(completion: Any) -> str:
    """A completion as text; of messages, the contents of all of them."""
    if isinstance(completion, str):
        return completion
    return "\n".join(str(message.get("content") or "") for message in completion)


def _unsupported(problem: str) -> ConfigError:
    return ConfigError(
        f"PODSTrainer: {problem}",
        remedy="train without it, or use GRPOTrainer",
        code="config.unsupported",
    )
