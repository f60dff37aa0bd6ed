"""PODSTrainer on the real TRL: it keeps what a step of winnow keeps, and gives it the same advantages."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from peft import LoraConfig
from scripted import (
    EOS,
    LETTERS,
    SEED,
    batch_of,
    completion,
    is_cut,
    prompts,
    reward,
    rollouts_of,
    scripted_reward,
    trainer_of,
)
from trl.trainer import grpo_trainer

from refusals import refused
from winnow.config_file import validate
from winnow.core.select import fill_keep
from winnow.core.step import fill_advantages
from winnow.errors import ConfigError
from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.registry import members
from winnow.state.logbook import read_metrics
from winnow.training.resolve import resolve_members
from winnow_lab.replay.replaying import replay
from winnow_trl import trainer as module

pytestmark = pytest.mark.filterwarnings("ignore")  # of TRL and of what it imports

N = 16
OPTIONS: dict[str, dict[str, Any]] = {"threshold": {"low": 0.25}}
SELECTORS: dict[str, Any] = {
    name: {"use": name, **OPTIONS.get(name, {})}
    for name, entry in members("selector").items()
    if entry.origin == "winnow"
}
CASES = [*SELECTORS.values(), ["finished", "max_variance"]]


def table(link, m):
    """A selector as winnow's configuration names it; the shim gives `keep_per_prompt` the value of m."""
    link = {"use": link} if isinstance(link, str) else link
    sized = members("selector")[link["use"]].traits.size == "exact"
    return {**link, **({"keep_per_prompt": m} if sized else {})}


def groups_of_winnow(prompts):
    """The scripted rollouts as an engine and a verifier of winnow return them."""
    return [
        Group(
            prompt=Prompt(id=f"p{p}", tokens=np.zeros(1, np.int64), text="?", answer="", task="t"),
            rollouts=tuple(rollout(p, i) for i in range(N)),
            outcomes=tuple(outcome(reward(p, i)) for i in range(N)),
        )
        for p in range(prompts)
    ]


def rollout(prompt, index):
    cut = is_cut(prompt, index)
    tokens = np.array(completion(prompt, index, cut=cut))
    finish = "length" if cut else "stop"
    return Rollout(index=index, tokens=tokens, logprobs=np.zeros(len(tokens)), text="", finish=finish, version=0)


def outcome(value):
    return Outcome(reward=value, correct=value >= 1, kind="correct" if value >= 1 else "wrong")


@pytest.mark.parametrize("scale", ["group", "none"])
@pytest.mark.parametrize("select", CASES, ids=str)
def test_equal_rewards_are_selected_and_weighed_as_in_a_step_of_winnow(tmp_path, select, scale):
    links = select if isinstance(select, list) else [select]
    exact = all(members("selector")[table(link, 4)["use"]].traits.size == "exact" for link in links)
    m = 4 if exact or len(links) > 1 else N
    advantage = {"group": "grpo", "none": "dr_grpo"}[scale]
    config = validate({"select": [table(link, m) for link in links], "advantage": advantage, "seed": SEED})
    ours = resolve_members(config, base=tmp_path)
    expected = fill_advantages(ours.advantage, [fill_keep(ours, group, step=0) for group in groups_of_winnow(3)])

    settings = {"num_generations": m, "per_device_train_batch_size": 3 * m, "scale_rewards": scale}
    batch = batch_of(trainer_of(tmp_path, n=N, select=select, count=3, **settings))

    kept = [(p, i) for p, group in enumerate(expected) for i in np.flatnonzero(group.keep)]
    assert rollouts_of(batch) == kept
    assert 0 < len(kept) <= 3 * m
    trained = batch["completion_mask"].any(dim=1).numpy()
    advantages = batch["advantages"].numpy()
    weighed = np.concatenate([group.advantages[group.keep] for group in expected])
    np.testing.assert_allclose(advantages[trained], weighed, atol=1e-6)
    assert np.abs(weighed).max() > 0
    assert not advantages[~trained].any()
    tokens = sum(len(completion(p, i, cut=is_cut(p, i))) for p, i in kept)
    assert int(batch["num_items_in_batch"]) == tokens


def test_the_scale_of_the_batch_is_that_of_the_kept_rewards(tmp_path):
    batch = batch_of(trainer_of(tmp_path, n=N, count=2, scale_rewards="batch"))
    rewards = np.array([reward(p, i) for p, i in rollouts_of(batch)]).reshape(2, 4)
    by_hand = (rewards - rewards.mean(axis=1, keepdims=True)) / (rewards.std(ddof=1) + 1e-4)
    np.testing.assert_allclose(batch["advantages"].numpy(), by_hand.ravel(), atol=1e-6)


def test_n_equal_to_m_without_selection_is_plain_grpo(tmp_path):
    """TRL's own advantages, rows and count of tokens are unchanged."""
    trainer = trainer_of(tmp_path, n=4, select="all")
    ours = batch_of(trainer)
    rows = [dict(row) for row in trainer.train_dataset for _ in range(4)]
    theirs = super(module.PODSTrainer, trainer)._generate_and_score_completions(rows)
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, atol=1e-6, rtol=0)


@pytest.mark.parametrize("lora", [False, True])
def test_every_value_of_a_batch_is_of_the_kept_rows(tmp_path, lora):
    """Old and reference log-probs of a row are those of its own tokens: computed again from the rows alone."""
    trainer = trainer_of(
        tmp_path,
        n=8,
        beta=0.05,
        steps_per_generation=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if lora else None,
    )
    batch = batch_of(trainer)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    with torch.no_grad():
        again, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, mask, batch["completion_ids"].size(1), batch_size=8
        )
    real = batch["completion_mask"].bool()
    assert real.any(dim=1).sum() == 8
    for name in ("old_per_token_logps", "ref_per_token_logps"):  # before an update, the policy is the reference
        torch.testing.assert_close(batch[name][real], again[real], atol=1e-5, rtol=1e-4)


class FakeVLLM:
    """In place of TRL's VLLMGeneration: scripted completions with log-probs that identify them."""

    def sync_weights(self):
        self.synced = True

    def generate(self, prompts, images, num_generations, profiler):
        self.n = num_generations
        found = [completion(row // num_generations, row % num_generations, cut=False) for row in range(len(prompts))]
        return None, found, [[[-0.01 * ids[0]] for _ in ids] for ids in found], None


def test_the_path_through_vllm_cuts_importance_ratios_too(tmp_path):
    trainer = trainer_of(tmp_path, n=8)
    trainer._generate_single_turn = super(type(trainer), trainer)._generate_single_turn  # TRL's own
    trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, FakeVLLM(), -1
    batch = batch_of(trainer)
    assert trainer.vllm_generation.n == 8
    assert trainer.vllm_generation.synced
    assert len(batch["importance_sampling_ratio"]) == 8
    for ids, mask, logprobs in zip(
        batch["completion_ids"], batch["completion_mask"], batch["sampling_per_token_logps"], strict=True
    ):
        expected = torch.full_like(logprobs[mask.bool()], -0.01 * int(ids[0]))
        torch.testing.assert_close(logprobs[mask.bool()], expected)


@pytest.mark.parametrize(("n", "room"), [(8, 16), (16, 32), (6, 12), (5, 10)])
def test_a_vllm_in_the_process_has_room_for_all_rollouts(tmp_path, monkeypatch, n, room):
    """TRL reserves 8 rows: 2 prompts with 4 rollouts each."""
    asked = []
    monkeypatch.setattr(grpo_trainer, "VLLMGeneration", lambda **options: asked.append(options) or FakeVLLM())
    made = grpo_trainer.VLLMGeneration
    trainer_of(tmp_path, n=n, use_vllm=True, vllm_mode="colocate")
    assert [options["max_num_seqs"] for options in asked] == [room]
    assert grpo_trainer.VLLMGeneration is made
    with refused(ConfigError, "rollouts_per_prompt", key="rollouts_per_prompt"):
        trainer_of(tmp_path, n=3, use_vllm=True, vllm_mode="colocate")
    assert len(asked) == 1


def test_a_setting_is_refused_before_a_model_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(grpo_trainer, "create_model_from_path", lambda *given, **more: pytest.fail("loads a model"))
    with refused(ConfigError, key="rollouts_per_prompt", code="config.value"):
        trainer_of(tmp_path, n=3)
    with refused(ConfigError, "best", code="config.unknown_member"):
        trainer_of(tmp_path, n=8, select="best")


def test_tokens_of_the_environment_are_not_generated(tmp_path):
    """`rollout_func` marks them by `env_mask`: here two tokens before the last one."""

    def roll(prompts, trainer):
        found = [completion(int(text.split()[0]), row % 8, cut=False) for row, text in enumerate(prompts)]
        return {
            "prompt_ids": trainer.processing_class(text=prompts)["input_ids"],
            "completion_ids": [[*ids[:-1], 9, 9, ids[-1]] for ids in found],
            "logprobs": [[-1.0] * (len(ids) + 2) for ids in found],
            "env_mask": [[1] * (len(ids) - 1) + [0, 0, 1] for ids in found],
            "seen": [len(ids) for ids in found],  # a column for the rewards
        }

    seen = []

    def by_column(seen_=seen, **columns):
        seen_ += columns["seen"]
        return scripted_reward(columns["prompts"], columns["completion_ids"])

    trainer = trainer_of(tmp_path, n=8, rollout_func=roll, reward_funcs=by_column)
    batch = batch_of(trainer)
    lengths = {(p, i): len(completion(p, i, cut=False)) for p in range(2) for i in range(8)}
    assert trainer._metrics["train"]["budget/generated_tokens"] == [sum(lengths.values())]
    assert seen == list(lengths.values())
    kept = rollouts_of(batch)
    assert len(kept) == 8
    trained = sum(lengths[pair] for pair in kept)
    assert int(batch["num_items_in_batch"]) == trained
    assert trainer._metrics["train"]["budget/trained_tokens"] == [trained]
    assert int((batch["completion_mask"] * batch["tool_mask"]).sum()) == trained


def test_rollouts_without_a_reward_are_never_kept(tmp_path):
    """Of prompt 0 only rollouts 1, 3 and 5 have a reward: one place stays free, and its tokens are masked."""

    def few(prompts, completion_ids, **columns):
        found = scripted_reward(prompts, completion_ids)
        pairs = zip(prompts, completion_ids, strict=True)
        odd = [(ids[0] - LETTERS) in (1, 3, 5) or not text.startswith("0") for text, ids in pairs]
        return [value if judged else None for value, judged in zip(found, odd, strict=True)]

    batch = batch_of(trainer_of(tmp_path, n=8, reward_funcs=few))
    assert [i for p, i in rollouts_of(batch) if p == 0] == [1, 3, 5]
    assert len(rollouts_of(batch)) == 7
    empty = ~batch["completion_mask"].any(dim=1)
    assert batch["advantages"][empty].tolist() == [0.0]


def test_a_step_that_keeps_nothing_changes_no_weight(tmp_path):
    trainer = trainer_of(tmp_path, n=8, select={"use": "threshold", "low": 2.0})
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()
    assert all(torch.equal(old, new) for old, new in zip(before, trainer.model.parameters(), strict=True))
    log = trainer.state.log_history[0]
    assert (log["budget/trained_tokens"], log["budget/share_kept"]) == (0, 0)


def test_a_step_logs_its_budget_and_the_table_of_all_rollouts(tmp_path):
    trainer = trainer_of(tmp_path, n=8, log_completions=True, num_completions_to_print=1)
    trainer.train()
    log = trainer.state.log_history[0]
    table = pq.read_table(tmp_path / "completions" / "completions_00001.parquet").to_pydict()
    kept = np.array(table["kept"])
    rewards, advantages = np.array(table["scripted_reward"]), np.array(table["advantage"])
    assert len(kept) == 16
    assert kept.reshape(2, 8).sum(axis=1).tolist() == [4, 4]
    assert not advantages[~kept].any()
    lengths = np.array([len(completion(p, i, cut=is_cut(p, i))) for p in range(2) for i in range(8)])
    order = [int(text.split()[0]) for text in table["prompt"]][::8]
    lengths = lengths.reshape(2, 8)[order].ravel()
    assert log["budget/generated_tokens"] == lengths.sum()
    assert log["budget/trained_tokens"] == lengths[kept].sum()
    assert log["budget/share_kept"] == 0.5
    by_hand = np.mean([np.var(part[mask]) for part, mask in zip(np.split(rewards, 2), np.split(kept, 2), strict=True)])
    assert log["budget/kept_reward_variance"] == pytest.approx(by_hand)
    assert log["completions/mean_length"] == pytest.approx(lengths.mean())
    assert math.isfinite(log["loss"])


def test_rows_of_an_evaluation_are_not_kept_and_shift_nothing(tmp_path):
    """Train, evaluate, save and replay: 5 steps with evaluations of 8 completions after steps 2, 4 and 5."""
    trainer = trainer_of(
        tmp_path,
        n=8,
        log_completions=True,
        num_completions_to_print=1,
        max_steps=5,
        eval_strategy="steps",
        eval_steps=2,
        eval_dataset=prompts(2),
    )
    trainer.train()
    trainer.save_state()
    for step in range(1, 6):
        table = pq.read_table(tmp_path / "completions" / f"completions_{step:05d}.parquet").to_pydict()
        evaluated = [kept is None for kept in table["kept"]]
        assert evaluated == [False] * 8 + [True] * 8 if step in (2, 4, 5) else not any(evaluated)
        kept, advantages = np.array(table["kept"], dtype=object), np.array(table["advantage"])
        assert not advantages[kept == False].any()  # noqa: E712  (null is neither)
        if not any(evaluated):
            assert kept.reshape(2, 8).sum(axis=1).tolist() == [4, 4]
    found = replay(tmp_path, keep=4)
    assert found.steps == [0, 2]
    assert (found.sampled.rollouts, found.kept_by_run.rollouts) == (32, 16)
    rows = read_metrics(tmp_path)
    assert [row["budget/rollouts"] for row in rows[:5]] == [16] * 5
    assert [row["select/kept"] for row in rows[:5]] == [8] * 5


def test_one_generation_serves_several_updates(tmp_path):
    """The 8 kept rows of two prompts are divided into two batches of 4, each of which is one update."""
    trainer = trainer_of(
        tmp_path,
        n=8,
        steps_per_generation=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
        max_steps=2,
    )
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trained = []
    inner = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: trained.append(inputs) or inner(model, inputs)
    trainer.train()
    assert [len(inputs["completion_ids"]) for inputs in trained] == [4, 4]
    kept = sorted(pair for inputs in trained for pair in rollouts_of(inputs))
    assert len(set(kept)) == 8
    assert [prompt for prompt, _ in kept] == [0] * 4 + [1] * 4
    generated = [
        row["budget/generated_tokens"] for row in trainer.state.log_history if "budget/generated_tokens" in row
    ]
    assert len(generated) == 1
    assert any(not torch.equal(old, new) for old, new in zip(before, trainer.model.parameters(), strict=True))


def test_several_rewards_are_selected_by_their_weighted_sum(tmp_path):
    """reward - 2 * reward: the two highest sums are the two lowest rewards."""
    weights = {"reward_weights": [1.0, -2.0], "num_generations": 2, "per_device_train_batch_size": 2}
    functions = [scripted_reward, lambda **columns: scripted_reward(**columns)]
    trainer = trainer_of(tmp_path, n=8, count=1, select="max_reward", reward_funcs=functions, **weights)
    rewards = [reward(0, i) for _, i in rollouts_of(batch_of(trainer))]
    assert sorted(rewards) == sorted(reward(0, i) for i in range(8))[:2]


def test_evaluation_selects_nothing(tmp_path):
    trainer = trainer_of(tmp_path, n=8)
    trainer.model.eval()
    rows = [dict(row) for row in trainer.train_dataset for _ in range(4)]
    assert len(trainer._generate_and_score_completions(rows)["completion_ids"]) == 8


def test_a_conversation_is_selected_by_the_text_of_its_prompt(tmp_path):
    """Without a column `id`; the completions are messages, and the selector of the user reads their text."""
    seen = []

    def select(group, rng):
        seen.append((group.prompt.id, [rollout.text for rollout in group.rollouts]))
        return np.arange(len(group.rollouts)) < 4

    trainer = trainer_of(tmp_path, n=8, select=select)
    rows = [{"prompt": [{"role": "user", "content": f"{p}"}]} for p in range(2) for _ in range(4)]
    trainer.reward_funcs = [lambda completions, **columns: [float(len(c[0]["content"])) for c in completions]]
    trainer._generate_single_turn = lambda prompt_ids, *rest: ([[30 + i % 8, EOS] for i in range(16)], None)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    batch = trainer._generate_and_score_completions(rows)
    assert batch["completion_ids"][:, 0].tolist() == [30, 31, 32, 33] * 2
    assert [json.loads(name)[0]["content"] for name, _ in seen] == ["0", "1"]
    assert all(text for _, texts in seen for text in texts)


def test_fewer_rollouts_than_are_trained_on_are_refused(tmp_path):
    with refused(ConfigError, "rollouts_per_prompt", 3, key="rollouts_per_prompt", code="config.value"):
        trainer_of(tmp_path, n=3)


def test_a_selector_that_keeps_too_many_is_refused(tmp_path):
    trainer = trainer_of(tmp_path, n=8, select="all")
    with refused(ConfigError, 8, "num_generations", key="select", code="config.combination"):
        batch_of(trainer)


def test_a_sum_of_normalised_rewards_is_refused(tmp_path):
    with refused(ConfigError, "normalize_then_sum", code="config.unsupported"):
        trainer_of(tmp_path, n=8, multi_objective_aggregation="normalize_then_sum")


def test_rows_of_a_process_that_split_a_group_are_refused():
    settings = SimpleNamespace(num_generations=4, per_device_train_batch_size=2, steps_per_generation=3)
    with refused(ConfigError, 6, 4, key="per_device_train_batch_size", code="config.combination"):
        module.check_settings(settings, 8)


def test_a_batch_that_is_not_in_groups_is_refused(tmp_path):
    trainer = trainer_of(tmp_path, n=8)
    trainer.model.train()
    with refused(ConfigError, 8, key="num_generations", code="config.combination"):
        trainer._generate_and_score_completions([{"prompt": f"{i % 2} + 1 ="} for i in range(8)])
    with refused(ConfigError, 8, key="num_generations", code="config.combination"):  # one text with two answers
        trainer._generate_and_score_completions([{"prompt": "1 + 1 =", "id": f"p{i % 2}"} for i in range(8)])


def test_images_are_refused():
    with refused(ConfigError, "pixel_values", code="config.unsupported"):
        module.cut({"pixel_values": torch.zeros(2, 3)}, torch.tensor([0]), total=2)


def test_a_value_that_is_not_per_row_is_refused():
    with refused(ConfigError, "strange", code="config.unsupported"):
        module.cut({"strange": torch.zeros(3)}, torch.tensor([0]), total=2)
