"""TRL's GRPOTrainer on all n rollouts and PODSTrainer on m of n, one step each in turn: seconds by phase, and rewards.

    python benchmarks/trl_pods.py                          60 steps of each, and 6 with a reference model
    python benchmarks/trl_pods.py --steps 4 --reference-steps 3 --dirty

Needs TRL (`pip install 'winnow-rl[trl]'`). Both sides learn the default arithmetic from the bundled policy, with the
same prompts in the same order, micro-batches of equally many rows, and one update per generation. Each is a training
of its own in a thread of one process; a callback after each step lets the other side do one. So a busy machine slows
both. The ratio is the median over the steps of the ratio within a pair; the first two pairs warm up.

A reward is the mean over all n rollouts of prompts that were not trained on before (the first epoch is not finished).
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import frame

OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # read when the libraries are imported
ANSWER = re.compile(r"</think> <answer>(.*?)</answer>$")
WARM_UP = 2
WINDOW = 10  # steps of a mean of rewards
PACKAGES = (*frame.PACKAGES, "trl", "accelerate", "datasets")
NOTES = (
    "TRL's rows of a micro-batch are equally many on both sides, so the update has n / m times as many micro-batches "
    "without selection.",
    "phases: generate and rewards are of all n rollouts on both sides; logprobs are old and reference log-probs, of "
    "all n on both sides too; update is forward and backward; rest is everything else of a step.",
)


@dataclass(frozen=True)
class Step:
    """One training step of a side."""

    seconds: float
    phases: dict[str, float]  # they add up to `seconds`
    reward: float
    generated: float  # tokens
    trained: float  # tokens


class Side(threading.Thread):
    """A trainer in a thread, which does a step when it is this side's turn."""

    def __init__(self, name: str, trainer: Any, threads: int) -> None:
        super().__init__(name=name, daemon=True)
        self.trainer, self.threads, self.steps = trainer, threads, list[Step]()
        self.turn = threading.Semaphore(0)
        self.following: Side = self
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._since = 0.0
        for method, phase in PHASES.items():
            self._time(method, phase)
        trainer.add_callback(_callback(self))

    def run(self) -> None:
        import torch

        torch.set_num_threads(self.threads)  # of this thread
        try:
            self.trainer.train()
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # else the other side waits for its turn

    def begin(self) -> None:
        self.turn.acquire()
        self._spent.clear()
        self._since = time.perf_counter()

    def end(self, *, last: bool) -> None:
        seconds, spent = time.perf_counter() - self._since, self._spent
        inner = spent["generate"] + spent["rewards"] + spent["logprobs"]
        phases = {
            "generate": spent["generate"],
            "rewards": spent["rewards"],
            "logprobs": spent["logprobs"],
            "update": spent["step"] - spent["score"],
        }
        log = self.trainer._metrics["train"]
        rows = self.trainer.args.generation_batch_size
        rows *= (
            getattr(self.trainer, "rollouts_per_prompt", self.trainer.num_generations) / self.trainer.num_generations
        )
        generated = log["completions/mean_length"][-1] * rows
        trained = log["budget/trained_tokens"][-1] if "budget/trained_tokens" in log else generated
        assert inner <= seconds
        phases["rest"] = seconds - sum(phases.values())
        self.steps.append(Step(seconds, phases, log["reward"][-1], generated, trained))
        self.following.turn.release()
        if not last:
            self.begin()

    def _time(self, method: str, phase: str) -> None:
        import torch

        inner: Callable[..., Any] = getattr(self.trainer, method)

        def timed(*arguments: Any, **options: Any) -> Any:
            start, graded = time.perf_counter(), torch.is_grad_enabled()
            try:
                return inner(*arguments, **options)
            finally:
                if phase != "logprobs" or not graded:  # with gradients, it is the forward pass of the update
                    self._spent[phase] += time.perf_counter() - start

        setattr(self.trainer, method, timed)


PHASES = {
    "_generate_single_turn": "generate",
    "_calculate_rewards": "rewards",
    "_get_per_token_logps_and_entropies": "logprobs",
    "_generate_and_score_completions": "score",
    "training_step": "step",
}


def _callback(side: Side) -> Any:
    from transformers import TrainerCallback

    class Turns(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            side.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            side.end(last=state.global_step >= state.max_steps)

    return Turns()


def race(options: argparse.Namespace, folder: Path, *, steps: int, beta: float) -> dict[str, list[Step]]:
    """The steps of both sides."""
    sides = [Side(name, _trainer(name, options, folder, steps, beta), options.threads) for name in ("grpo", "pods")]
    for side, following in zip(sides, (*sides[1:], sides[0]), strict=True):
        side.following = following
        side.start()
    sides[0].turn.release()
    for side in sides:
        side.join()
    return {side.name: side.steps for side in sides}


def _trainer(name: str, options: argparse.Namespace, folder: Path, steps: int, beta: float) -> Any:
    from transformers import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from winnow.models.folder import BUNDLED
    from winnow_trl import PODSTrainer

    trained = options.rollouts if name == "grpo" else options.keep
    rows = options.prompts * trained
    micro_batch = min(rows, options.prompts * options.keep)
    args = GRPOConfig(
        output_dir=str(folder / name),
        max_steps=steps,
        num_generations=trained,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=rows // micro_batch,
        max_completion_length=options.max_tokens,
        beta=beta,
        loss_type="grpo",
        learning_rate=1e-4,
        adam_beta2=0.95,
        adam_epsilon=1e-3,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        disable_tqdm=True,
        shuffle_dataset=False,
    )
    given = {"model": str(BUNDLED), "reward_funcs": _right, "args": args, "train_dataset": _questions(options, steps)}
    more = {"rollouts_per_prompt": options.rollouts, "select": "max_variance"}
    trainer = GRPOTrainer(**given) if name == "grpo" else PODSTrainer(**given, **more)
    trainer.remove_callback(PrinterCallback)
    return trainer


def _questions(options: argparse.Namespace, steps: int) -> Any:
    from datasets import Dataset

    from winnow.tasks.arithmetic import arithmetic

    problems = arithmetic("train", levels=[2, 3, 4], size=options.prompts * (steps + 1))
    columns = {
        "prompt": [[{"role": "user", "content": problem.question}] for problem in problems],
        "answer": [problem.answer for problem in problems],
    }
    return Dataset.from_dict(columns)


def _right(completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
    found = [ANSWER.search(completion[-1]["content"]) for completion in completions]
    return [float(match is not None and match[1] == gold) for match, gold in zip(found, answer, strict=True)]


def summary(steps: dict[str, list[Step]]) -> dict[str, Any]:
    """Medians after the warm-up, the ratio of a pair's seconds, and what each side learned."""
    pairs = list(zip(steps["grpo"], steps["pods"], strict=True))[WARM_UP:]
    ratios = [all_rows.seconds / selected.seconds for all_rows, selected in pairs]
    updates = [all_rows.phases["update"] / selected.phases["update"] for all_rows, selected in pairs]
    return {
        "pairs": len(pairs),
        "grpo / pods, seconds of a step": frame.median(ratios, 3),
        "grpo / pods, seconds of the update": frame.median(updates, 3),
        "quartiles of the ratio of a step": [round(q, 3) for q in statistics.quantiles(ratios, n=4)],
        "ratios": [round(ratio, 3) for ratio in ratios],
        **{name: _side(of) for name, of in steps.items()},
    }


def _side(steps: Sequence[Step]) -> dict[str, Any]:
    timed = steps[WARM_UP:]
    rewards = [step.reward for step in steps]
    return {
        "seconds": frame.median([step.seconds for step in timed], 3),
        "phases": {name: frame.median([step.phases[name] for step in timed], 3) for name in timed[0].phases},
        "generated tokens": round(sum(step.generated for step in steps)),
        "trained tokens": round(sum(step.trained for step in steps)),
        "reward, first steps": round(statistics.mean(rewards[:WINDOW]), 4),
        "reward, last steps": round(statistics.mean(rewards[-WINDOW:]), 4),
        "rewards": [round(reward, 4) for reward in rewards],
    }


def main() -> None:
    parser = frame.parser(
        __doc__,
        steps=(60, "of each side"),
        reference_steps=(6, "of each side with beta = 0.04; 0: none"),
        threads=2,
        prompts=(8, "per step"),
        rollouts=(16, "n, per prompt"),
        keep=(4, "m, per prompt"),
        max_tokens=(48, "of a rollout"),
    )
    options = frame.parse(parser)
    if os.environ.get("HF_HUB_OFFLINE") != "1":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **OFFLINE})
    with tempfile.TemporaryDirectory(prefix="winnow-trl-") as name:
        report: dict[str, Any] = {"window": WINDOW, "notes": NOTES}
        report["plain"] = summary(race(options, Path(name), steps=options.steps, beta=0.0))
        if options.reference_steps:
            report["reference"] = summary(race(options, Path(name), steps=options.reference_steps, beta=0.04))
    frame.finish(
        "trl_pods", report, options, packages=PACKAGES, show=("plain", *["reference"] * ("reference" in report))
    )


if __name__ == "__main__":
    main()
