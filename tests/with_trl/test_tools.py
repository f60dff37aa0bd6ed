"""Tools and environments of TRL under PODSTrainer: n rollouts, each with a state of its own, of which m are kept.

A tiny Qwen2.5 has the chat template for which TRL reads tool calls. What it samples is written here: rollouts with an
odd index call a tool first. So a completion has tokens of the policy, of the tool, and of the policy again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from scripted import settings
from transformers import AutoTokenizer
from trl.chat_template_utils import qwen2_5_chat_template

from published_models import make
from winnow_trl import PODSTrainer

pytestmark = pytest.mark.filterwarnings("ignore")  # of TRL and of what it imports

N, M = 8, 4
CALL = """<tool_call>
{{"name": "add", "arguments": {{"a": {row}, "b": 1}}}}
</tool_call>"""


class Scripted(PODSTrainer):
    """The second turn of a rollout repeats the tool's result; a first turn without a call is "none"."""

    sampled = 0

    def _generate_single_turn(self, prompt_ids: Any, *rest: Any, **more: Any) -> Any:
        texts = self.processing_class.batch_decode(prompt_ids)
        found = [self._turn(row, text) for row, text in enumerate(texts)]
        self.sampled += sum(map(len, found))
        return found, None

    def _turn(self, row: int, text: str) -> list[int]:
        if "<tool_response>" in text:
            said = text.split("<tool_response>")[-1].split("</tool_response>")[0].strip()
        else:
            said = CALL.format(row=row) if row % 2 else "none"
        ids: list[int] = self.processing_class(text=said + "<|im_end|>")["input_ids"]
        return ids


def trainer_of(folder: Any, **more: Any) -> Scripted:
    model = folder / "model"
    model.mkdir()
    make("qwen2.5-instruct", model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = qwen2_5_chat_template
    rows = [{"prompt": [{"role": "user", "content": f"{i} + 1"}], "id": f"p{i}"} for i in range(2)]
    return Scripted(
        model=str(model),
        processing_class=tokenizer,
        args=settings(folder / "run", num_generations=M, per_device_train_batch_size=2 * M, max_completion_length=128),
        train_dataset=Dataset.from_list(rows),
        rollouts_per_prompt=N,
        select="max_reward",
        **more,
    )


def batch_of(trainer: Scripted) -> dict[str, Any]:
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    rows = [dict(row) for row in trainer.train_dataset for _ in range(M)]
    batch: dict[str, Any] = trainer._generate_and_score_completions(rows)
    return batch


def check(trainer: Scripted, batch: dict[str, Any]) -> None:
    """The four rollouts of each prompt that called the tool are kept, and only the policy's tokens are counted."""
    assert trainer._metrics["train"]["budget/generated_tokens"] == [trainer.sampled]
    assert trainer._metrics["train"]["budget/share_kept"] == [0.5]
    texts = trainer.processing_class.batch_decode(batch["completion_ids"], skip_special_tokens=True)
    assert len(texts) == 2 * M
    for row, text in zip([*range(1, N, 2), *range(N + 1, 2 * N, 2)], texts, strict=True):
        assert text.count("<tool_response>") == 1
        assert text.rstrip().endswith(f"assistant\n{row + 1}")
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    assert int(mask.sum()) == int(batch["num_items_in_batch"])
    assert 0 < int(mask.sum()) < int(batch["completion_mask"].sum())
    trained = trainer.processing_class.batch_decode(
        [ids[own] for ids, own in zip(batch["completion_ids"], mask, strict=True)]
    )
    assert not any("tool_response" in text for text in trained)
    credit = batch["advantages"].numpy().reshape(2, M)
    np.testing.assert_allclose(credit.mean(axis=1), 0, atol=1e-6)
    assert (np.diff(credit, axis=1) > 0).all()  # the reward rises with the row


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def last_number(completions: list[Any], **columns: Any) -> list[float]:
    said = [messages[-1]["content"].strip() for messages in completions]
    return [float(text) / 16 if text.isdigit() else 0.0 for text in said]


def test_functions_are_tools(tmp_path):
    trainer = trainer_of(tmp_path, tools=[add], reward_funcs=last_number)
    check(trainer, batch_of(trainer))


class Sums:
    """An environment: its tool keeps a total, which is the reward."""

    def reset(self, **columns: Any) -> None:
        self.total = 0

    def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        self.total += a + b
        return a + b


def test_every_rollout_has_an_environment_of_its_own(tmp_path):
    def total(environments: list[Sums], **columns: Any) -> list[float]:
        assert len({id(one) for one in environments}) == 2 * N
        return [one.total / 16 for one in environments]

    trainer = trainer_of(tmp_path, environment_factory=Sums, reward_funcs=total)
    check(trainer, batch_of(trainer))
