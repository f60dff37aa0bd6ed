"""Does a second run of TRL confirm what `winnow plan` expects of it?

    python benchmarks/planned_trl.py --folder FOLDER [--steps 30]

Trains TRL's GRPOTrainer on the bundled policy with --rollouts of each of --prompts prompts, plans from its log, and
trains a second run from the same start with the planned sizes and other prompts. The expected shares of flat groups and
tokens of a step are compared with those of the second run at equal progress: the steps of the first, divided by the
predicted ratio of progress per step. The mean reward there has to be that of the first. The same steps of both runs are
compared, too: there the second run is further. Writes benchmarks/results/<date>_planned_trl.json.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import frame

from winnow.algos.step_plan import Setting
from winnow.models.folder import BUNDLED
from winnow.tasks.arithmetic import arithmetic
from winnow.training.size_fits import PlanRequest
from winnow_lab.plan.advice import Range
from winnow_lab.plan.evidence import LogWindow, evidence_of
from winnow_lab.plan.from_log import LogPlan


def right(completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
    texts = [completion[-1]["content"] for completion in completions]
    return [float(text.endswith(f"<answer>{gold}</answer>")) for text, gold in zip(texts, answer, strict=True)]


def main() -> None:
    parser = frame.parser(__doc__, steps=30, rollouts=16, prompts=4, window=20, seed=0)
    parser.add_argument("--folder", required=True, type=Path)
    options = frame.parse(parser)
    first = Setting(options.rollouts, options.rollouts, options.prompts)
    train(options.folder / "first", first, options.steps, options.seed)
    evidence = evidence_of(options.folder / "first", window=options.window)
    plan = LogPlan(evidence, PlanRequest())
    chosen = plan.answers["n"].prediction.setting  # TRL itself trains on all rollouts
    place = plan.settings.index(chosen)
    ratio = plan.answers["n"].per_step.value
    train(options.folder / "second", chosen, options.steps, options.seed + 1)
    windows = {
        "at equal progress": (max(1, round(options.window / ratio)), max(1, round(options.steps / ratio))),
        "at equal steps": (options.window, options.steps),
    }
    report = {
        "first": _measured(evidence),
        "chosen": asdict(chosen),
        "progress": {
            "per_step": asdict(plan.answers["n"].per_step),
            "per_operation": asdict(plan.answers["n"].per_second),
        },
        **{name: _second(plan, place, options.folder, *window) for name, window in windows.items()},
        "unknown": [what for what, _ in plan.unknown()],
    }
    frame.finish("planned_trl", report, options, packages=(*frame.PACKAGES, "trl"), show=("first", "chosen", *windows))


def train(folder: Path, setting: Setting, steps: int, seed: int) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    problems = arithmetic("train", levels=[1, 2, 3], size=4096)
    rows = [{"prompt": [{"role": "user", "content": one.question}], "answer": one.answer} for one in problems]
    trainer = GRPOTrainer(
        model=str(BUNDLED),
        reward_funcs=[right],
        args=GRPOConfig(
            output_dir=str(folder),
            max_steps=steps,
            num_generations=setting.rollouts,
            per_device_train_batch_size=setting.sampled,
            max_completion_length=32,
            learning_rate=1e-4,
            seed=seed,
            logging_steps=1,
            log_completions=True,
            num_completions_to_print=1,
            save_strategy="no",
            report_to="none",
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()
    trainer.save_state()


def _second(plan: LogPlan, place: int, folder: Path, window: int, before: int) -> dict[str, Any]:
    """What was expected of these steps of the second run, and what they were."""
    second = evidence_of(folder / "second", window=window, before=before)
    groups, found = len(plan.evidence.counts) / len(second.counts), _measured(second)
    wanted = plan.expected_of(place, groups=groups)
    return {
        "steps": [int(second.steps[0]), int(second.steps[-1])],
        "mean_reward": _confirmed(wanted.reward, found["mean_reward"]),
        "flat": _confirmed(wanted.flat, found["flat"]),
        "tokens_generated": _confirmed(wanted.generated, found["tokens_generated"]),
        "tokens_trained": _confirmed(wanted.trained, found["tokens_trained"]),
    }


def _measured(evidence: LogWindow) -> dict[str, float]:
    work = evidence.statistics().work
    return {
        "flat": float(evidence.flat.mean()),
        "mean_reward": float((evidence.counts @ evidence.levels.values).sum() / evidence.counts.sum()),
        "tokens_generated": work.tokens_generated,
        "tokens_trained": work.tokens_trained,
        "groups": float(len(evidence.counts)),
    }


def _confirmed(wanted: Range, found: float) -> dict[str, Any]:
    return {**asdict(wanted), "measured": found, "inside": wanted.low <= found <= wanted.high}


if __name__ == "__main__":
    main()
