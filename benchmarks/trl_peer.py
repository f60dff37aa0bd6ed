"""TRL's side: its GRPOTrainer on the same policy, with a clock around each phase and a callback after each step.

TRL's training loop is unchanged. After every optimizer step it calls `Baton`, which stops the clock, lets the other
side use the machine, and restarts the clock. TRL's seconds thus include everything between two steps: loading prompts,
generation, scoring, forward and backward, optimizer, logging.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import trl  # type: ignore[import-not-found]
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl_sides import Measured, Setting, token_hash

from winnow import ranks
from winnow.models.load import load
from winnow.records import Prompt

GENERATE, SCORE, REWARDS, STEP = (
    "_generate_single_turn",
    "_generate_and_score_completions",
    "_calculate_rewards",
    "training_step",
)
After = Callable[[Measured], bool]  # receives the measurements of a TRL step; False ends the training


class Peer:
    """A GRPOTrainer that samples `prompts` in their order, and its clock."""

    def __init__(
        self,
        setting: Setting,
        prompts: Sequence[Prompt],
        folder: Path,
        *,
        micro_batch: int,
        replay: list[list[int]] | None = None,
        reward: Callable[..., list[float]] | None = None,
    ) -> None:
        """`micro_batch` counts completions and divides a step's. With `replay`, these are the completions of every
        step, and nothing is sampled. `reward` is TRL's reward function, by default `token_hash`.
        """
        loaded = load(setting.model, dtype=setting.dtype)
        # transformers gives the embedding of the padding token no gradient, also where it is the end token. winnow
        # trains every token (PolicyModule)
        loaded.model.get_input_embeddings().padding_idx = None
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.trainer: Any = trl.GRPOTrainer(
            model=loaded.model,
            processing_class=loaded.tokenizer,
            reward_funcs=reward or _hashed,
            args=_arguments(setting, folder, micro_batch),
            train_dataset=Dataset.from_dict({"prompt": [p.text for p in prompts], "row": list(range(len(prompts)))}),
        )
        self.trainer.remove_callback(PrinterCallback)
        self._setting = setting
        _check_same_prompts(prompts, loaded.tokenizer)
        if replay is not None:
            self.trainer._generate_single_turn = lambda *arguments, **options: (replay, None)
        for method in (GENERATE, SCORE, REWARDS, STEP):
            self._time(method)

    def run(self, after: After) -> None:
        """Train until `after` returns False."""
        self.trainer.add_callback(Baton(self, after))
        self.trainer.train()

    def generate(self, prompts: Sequence[Prompt]) -> tuple[float, list[list[int]]]:
        """Seconds of the generation alone, and the completions."""
        self.trainer.model.train()
        self.seconds.clear()
        texts = [prompt.text for prompt in prompts for _ in range(self._setting.rollouts)]
        found = self.trainer._generate(texts)[1]
        return self.seconds[GENERATE], found

    def inputs(self, prompts: Sequence[Prompt]) -> dict[str, Any]:
        """The input of its update: sampled (or replayed), scored and given advantages by TRL."""
        self.trainer.model.train()
        self.trainer.current_gradient_accumulation_steps = 1
        rows = [{"prompt": p.text, "row": i} for i, p in enumerate(prompts) for _ in range(self._setting.rollouts)]
        inputs: dict[str, Any] = self.trainer._generate_and_score_completions(rows)
        return inputs

    def measured(self, seconds: float) -> Measured:
        """The step that just ended, by phase."""
        at, logged = self.seconds, self.trainer._metrics["train"]
        phases = {
            "generate": at[GENERATE],
            "rewards": at[REWARDS],
            "prepare": at[SCORE] - at[GENERATE] - at[REWARDS],
            "update": at[STEP] - at[SCORE],
            "optimizer": at["optimizer"],
        }
        length = logged["completions/mean_length"][-1]
        return Measured(
            seconds=seconds,
            phases={**phases, "loop": seconds - sum(phases.values())},
            reward=logged["reward"][-1],
            tokens=length * self._setting.total,
            length_mean=length,
            length_max=logged["completions/max_length"][-1],
            trained=self._setting.total,
        )

    def _time(self, method: str) -> None:
        inner = getattr(self.trainer, method)

        def timed(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return inner(*arguments, **options)
            finally:
                self.seconds[method] += time.perf_counter() - begin
                self.ended = time.perf_counter()

        setattr(self.trainer, method, timed)


class Baton(TrainerCallback):  # type: ignore[misc]
    """Stops TRL's clock at the end of each step, and lets the other side run."""

    def __init__(self, peer: Peer, after: After) -> None:
        self._peer = peer
        self._after = after
        self._since = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._start()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Clipping and the update are between the end of the last backward pass and this call."""
        self._peer.seconds["optimizer"] = time.perf_counter() - self._peer.ended

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        measured = self._peer.measured(time.perf_counter() - self._since)
        control.should_training_stop = not self._after(measured)
        self._start()

    def _start(self) -> None:
        self._peer.seconds.clear()
        self._since = time.perf_counter()


def fastest_micro_batch(
    setting: Setting, prompts: Sequence[Prompt], replay: list[list[int]] | None, folder: Path, among: Sequence[int] = ()
) -> tuple[int, dict[int, float]]:
    """The completions per micro-batch with which TRL's update is fastest, and the seconds of all tried sizes, of which
    a single one needs no trial.
    """
    own = setting.total // ranks.count()
    sizes = sorted({size for size in (among or (16, 32, 64, own)) if own % size == 0})
    if len(sizes) == 1:
        return sizes[0], {}
    found = {size: _update_seconds(setting, prompts, replay, folder, size, steps=4) for size in sizes}
    return min(found, key=lambda size: found[size]), found


def update_of(measured: Measured) -> float:
    """Forward, backward, clipping and optimizer."""
    return measured.phases["update"] + measured.phases.get("optimizer", 0.0)


def _update_seconds(
    setting: Setting, prompts: Sequence[Prompt], replay: list[list[int]] | None, folder: Path, size: int, steps: int
) -> float:
    seen: list[float] = []

    def after(measured: Measured) -> bool:
        seen.append(update_of(measured))
        return len(seen) < steps

    Peer(setting, prompts, folder, micro_batch=size, replay=replay).run(after)
    return min(seen[1:])


def _arguments(setting: Setting, folder: Path, micro_batch: int) -> Any:
    """Every field that matters, including those with default values. One generation per optimizer step."""
    own, rest = divmod(setting.total, ranks.count())  # completions of this rank
    if rest or own % micro_batch:
        raise ValueError(f"a micro-batch of {micro_batch} does not divide the step's {setting.total} completions")
    return trl.GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        fp16=False,
        gradient_checkpointing=False,
        use_vllm=False,
        use_transformers_continuous_batching=False,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=own // micro_batch,
        ddp_find_unused_parameters=False,  # faster, and there are none
        num_generations=setting.rollouts,
        num_iterations=1,
        loss_type="grpo",
        scale_rewards="group",
        epsilon=0.2,
        beta=0.0,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        min_p=None,
        max_completion_length=setting.max_new_tokens,
        generation_kwargs={"min_new_tokens": setting.max_new_tokens} if setting.fixed else None,
        mask_truncated_completions=False,
        shuffle_dataset=False,
        seed=0,
        data_seed=0,
        optim="adamw_torch_fused",
        learning_rate=setting.learning_rate,
        adam_beta1=0.9,
        adam_beta2=0.95,
        adam_epsilon=setting.eps,
        weight_decay=0.0,
        max_grad_norm=1.0,
        lr_scheduler_type="constant",
        max_steps=1_000_000,  # `after` ends the training
        logging_steps=1,
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        log_completions=False,
        torch_compile=False,
        use_liger_kernel=False,
    )


def _hashed(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """`token_hash` as TRL's reward."""
    return [token_hash(tokens) for tokens in completion_ids]


def _check_same_prompts(prompts: Iterable[Prompt], tokenizer: Any) -> None:
    """Check that TRL encodes the texts to the same tokens that winnow's policy reads."""
    for prompt in prompts:
        if tokenizer(text=prompt.text)["input_ids"] != prompt.tokens.tolist():
            raise ValueError(f"TRL would read other tokens than winnow for the prompt {prompt.text!r}")
