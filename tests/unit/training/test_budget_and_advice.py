from __future__ import annotations

from pathlib import Path

import pytest

from winnow.commands.cost import describe
from winnow.config_file import validate
from winnow.memory.plan import MemoryPart, MemoryPlan
from winnow.tasks.templates import Rendered
from winnow.training.advice import LARGE, advice, before_training, faster_decoding
from winnow.training.budget import budget
from winnow.training.prompts import HeldOut
from winnow.training.resolve import resolve_members

HERE = Path()
NO_PROMPTS = Rendered(prompts=[], dropped=0)


def members(**keys):
    """32 prompts x 16 rollouts, 4 kept, 1 update, 256 x 9 evaluation rollouts; limits out of the way."""
    rollout = {"max_rollouts_at_once": 512, **keys.pop("rollout", {})}
    return resolve_members(validate({"rollout": rollout, **keys}), HERE)


def advised(**keys):
    c = members(**keys)
    return list(advice(c, budget(c)))


def test_the_defaults_add_up():
    b = budget(members(steps=100, evaluate={"every": 10}))

    assert (b.prompts, b.rollouts, b.kept, b.updates, b.rows) == (32, 512, 4, 1, 128)
    assert (b.longest_row, b.rows_at_once, b.micro_batches) == (512 + 64, 16384 // 576, 5)
    assert (b.evaluation, b.evaluations) == (256 * 9, 1 + 9 + 1)  # before step 0; steps 10 ... 90; after the last


@pytest.mark.parametrize(
    ("keys", "times"),
    [
        ({"evaluate": {"every_minutes": 30}, "max_hours": 6}, 2 + 11),  # after 0.5 ... 5.5 hours; 6.0 is the end
        ({"evaluate": {"every_minutes": 60, "every": 10}, "max_hours": 1.5}, 2 + 1 + 9),
        ({"evaluate": {"every_minutes": 30}, "max_hours": 0.25}, 2),
        ({"evaluate": {"every_minutes": 30}}, 2 + 99),  # there may be one before every step
        ({"evaluate": {"every_minutes": 1}, "max_hours": 6}, 2 + 99),
    ],
)
def test_evaluations_by_the_minute_are_counted_at_most(keys, times):
    c = members(steps=100, **keys)
    assert budget(c).evaluations == times
    assert f"x at most {times} times" in list(describe(c.config, budget(c)))[-1]


def test_rows_of_the_largest_update():
    b = budget(members(update={"updates_per_step": 5, "epochs": 2}))
    assert (b.updates, b.rows) == (10, 7 * 4)


@pytest.mark.parametrize(
    ("select", "kept"),
    [
        ("all", 16),
        ({"use": "random", "keep_per_prompt": 0.5}, 8),
        ([{"use": "random", "keep_per_prompt": 8}, {"use": "max_variance", "keep_per_prompt": 0.25}], 2),
    ],
)
def test_what_a_chain_of_selectors_keeps(select, kept):
    assert budget(members(select=select)).kept == kept


def test_the_description_walks_the_step():
    c = members(steps=10, rollout={"max_new_tokens": 100})
    lines = list(describe(c.config, budget(c)))

    assert [line.split()[0] for line in lines] == ["rollouts", "kept", "updates", "micro-batch", "evaluation"]
    assert "32 prompts x 16 = 512 per step, up to 51k tokens" in lines[0]
    assert "4 per prompt = 128 rows" in lines[1]
    assert "1 epoch x 1 = 1 per step, each 32 prompts and at most 128 rows; 10 in the run" in lines[2]
    assert lines[4].endswith("2304 rollouts x 2 times; training samples 5120")
    timed = members(steps=10, max_hours=1.5)
    assert list(describe(timed.config, budget(timed)))[4].endswith("at most 5120, and ends after 1.5 hours of it")


@pytest.mark.parametrize(
    ("critic", "said"),
    [
        ({"form": "shared"}, "the kept rollouts, by a head that learns in the policy's updates"),
        (
            {"form": "adapter", "updates_per_step": 3},
            "the kept rollouts, by an adapter on the policy's base: 1 epoch x 3 = 3 per step, before the policy's",
        ),
        (
            {"form": "model", "train_on": "all", "epochs": 2, "pretraining_steps": 20},
            "all verified rollouts, by a model of its own: 2 epochs x 1 = 2 per step, before the policy's; in the "
            "first 20 steps it learns alone",
        ),
    ],
)
def test_a_value_model_is_described_before_the_policy_s_updates(critic, said):
    c = members(advantage="gae", critic=critic, model={"lora": {"rank": 2}})
    lines = list(describe(c.config, budget(c)))
    assert [line.split()[0] for line in lines[1:4]] == ["kept", "values", "updates"]
    assert lines[2] == f"values       of {said}"


def test_dynamic_sampling_may_multiply_what_is_sampled():
    c = members(rollout={"max_new_tokens": 100, "dynamic_sampling_rounds": 4})
    line = next(line for line in describe(c.config, budget(c)) if line.startswith("rollouts"))
    assert "= 512 per step, and at most as many again in each of 4 rounds of dynamic sampling, up to 256k" in line


def test_a_sound_configuration_gets_no_advice():
    assert advised() == []


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"update": {"updates_per_step": 64}}, "update.updates_per_step = 64 > 32 prompts"),
        ({"update": {"updates_per_step": 5}}, "7 or 6 per update; use 4 or 8"),
        ({"select": {"use": "max_variance", "keep_per_prompt": 16}}, "nothing is dropped"),
        ({"select": {"use": "max_variance", "keep_per_prompt": 1}}, "every advantage is 0"),
        (
            {"select": {"use": "random", "keep_per_prompt": 1, "chunk": 4}, "advantage": {"use": "grpo", "chunk": 4}},
            "one rollout is kept per chunk, and 'grpo' compares rollouts of one chunk: every advantage is 0",
        ),
        ({"loss": "reinforce", "update": {"epochs": 2}}, "the weights move 2 times per step"),
        ({"loss": "no_baseline", "advantage": "raw", "update": {"updates_per_step": 2}}, "loss = 'no_baseline' has no"),
        ({"evaluate": {"every": 2}}, "set evaluate.every to 5"),
        ({"update": {"tokens_per_micro_batch": 500}}, "use at least 576"),
        ({"update": {"tokens_per_micro_batch": 500, "max_trained_tokens": 40}}, "use at least 552"),
        ({"update": {"max_trained_tokens": 64}}, "no rollout has more than rollout.max_new_tokens = 64; leave it out"),
        ({"rollout": {"max_rollouts_at_once": 8192}}, "2048 is enough"),
        ({"weighting": "unbiased"}, "before select drops some of the correct ones, and the gradient shrinks"),
        ({"weighting": "unbiased", "select": {"use": "threshold", "high": 0.5}}, "drops some of the correct ones"),
        ({"weighting": "accepted", "select": {"use": "max_reward", "keep_per_prompt": 12}}, "the gradient shrinks"),
        ({"weighting": "accepted"}, "use select = 'all', or weighting = 'prompt'"),
    ],
)
def test_advice_names_the_key_and_the_number_that_fits(keys, sentence):
    (advice,) = advised(**keys)
    assert sentence in advice


@pytest.mark.parametrize(
    "keys",
    [
        {"select": "all"},
        {"loss": "reinforce"},
        {"update": {"updates_per_step": 8, "epochs": 3}},
        {"advantage": "raw", "select": {"use": "random", "keep_per_prompt": 1}},
        {"advantage": {"use": "grpo", "statistics": "group"}, "select": {"use": "random", "keep_per_prompt": 1}},
        {"select": {"use": "random", "keep_per_prompt": 1, "chunk": 4}},
        {"select": {"use": "random", "keep_per_prompt": 2, "chunk": 4}, "advantage": {"use": "grpo", "chunk": 4}},
        {"evaluate": {"every": 5}},
        {"update": {"max_trained_tokens": 63}},
        {"weighting": "unbiased", "select": "all"},
        {"weighting": "accepted", "select": {"use": "threshold", "low": 1.0}},
        {"model": {"dtype": "bfloat16", "lora": {}}},
    ],
)
def test_what_is_meant_is_not_criticised(keys):
    assert advised(**keys) == []


@pytest.mark.parametrize(
    ("keys", "warned"),
    [
        ({"optimizer": {"learning_rate": 1e-4}}, False),  # the bundled policy
        ({"model": "some/model"}, False),
        ({"model": "some/model", "optimizer": {"learning_rate": 2e-5}}, False),
        ({"model": "some/model", "optimizer": {"learning_rate": 2.1e-5}}, True),
        ({"model": {"path": "some/model", "lora": {}}, "optimizer": {"learning_rate": 1e-4}}, False),
    ],
)
def test_large_steps_of_all_weights_of_a_model_of_one_s_own_are_named(keys, warned):
    said = [line for line in advised(**keys) if "optimizer.learning_rate" in line]
    assert len(said) == warned
    started = [
        line
        for line in before_training(members(**keys).config, NO_PROMPTS, [HeldOut(None, NO_PROMPTS)])
        if "optimizer.learning_rate" in line
    ]
    assert started == said


def test_an_allocation_that_shifts_the_objective_is_named():
    def said(**changes):
        return [line for line in advised(**{"allocate": "gvm", **changes}) if "shares of the objective" in line]

    assert len(said(weighting="token")) == 1
    assert said(weighting="prompt") == said(weighting="unbiased") == said(allocate="uniform", weighting="token") == []


def test_a_cut_is_described():
    c = members(rollout={"max_new_tokens": 100}, update={"max_trained_tokens": 40})
    b, lines = budget(c), list(describe(c.config, budget(c)))
    assert lines[2] == "trained      the first 40 tokens of a rollout, which may have 100"
    assert b.longest_row == c.config.prompt.max_prompt_tokens + 40


def test_an_uneven_allocation_has_averages_instead_of_limits():
    c = members(steps=10, allocate="gvm_online", weighting="prompt")
    lines = list(describe(c.config, budget(c)))

    assert "32 prompts x 16 on average, as gvm_online decides" in lines[0]
    assert lines[1].endswith("4 per prompt = 128 rows per step, on average")
    assert "each 32 prompts and 128 rows on average; 10 in the run" in lines[2]
    assert lines[3].endswith("so about 5 per update")
    assert not any("at most" in line for line in lines)


def test_the_rollouts_of_a_probe_come_on_top():
    c = members(steps=10, allocate="gvm", probe={"every": 4, "rollouts_per_prompt": 8}, rollout={"max_new_tokens": 100})
    line, *_ = describe(c.config, budget(c))

    # 4 steps x 32 prompts x 8; three windows for 10 steps of 512: 3 x 1024 / 5120
    assert line.startswith("probe        128 prompts x 8 = 1024 rollouts per window of 4 steps, 60.0% on top")
    assert line.endswith("up to 102k tokens")


def advised_decoding(folder, *, flags="fma avx512_bf16 sse", size=LARGE, device="cpu", **keys):
    cpu = folder / "cpuinfo"
    cpu.write_text(f"processor : 0\nflags : {flags}\n")
    plan = MemoryPlan(jobs="", parts=(MemoryPart("weights", size, "always", device),))
    return list(faster_decoding(members(**keys), plan, cpu))


@pytest.mark.parametrize("flags", ["fma avx512_bf16 sse", "amx_bf16"])
def test_decoding_in_bfloat16_is_advised_where_the_cpu_has_it(tmp_path, flags):
    (sentence,) = advised_decoding(tmp_path, flags=flags)
    assert "rollout.engine = {use = 'native', dtype = 'bfloat16'}" in sentence
    assert "update.max_importance" in sentence


@pytest.mark.parametrize(
    "change",
    [
        {"flags": "fma avx512_bf160 avx512f"},
        {"size": LARGE - 1},
        {"device": "cuda"},
        {"model": {"dtype": "bfloat16"}},
        {"rollout": {"engine": {"use": "native", "dtype": "bfloat16"}}},
        {"rollout": {"engine": "hf"}},
    ],
)
def test_decoding_in_bfloat16_is_not_advised_otherwise(tmp_path, change):
    assert advised_decoding(tmp_path, **change) == []


def test_what_instructions_a_cpu_has_may_not_be_known(tmp_path):
    plan = MemoryPlan(jobs="", parts=(MemoryPart("weights", LARGE, "always", "cpu"),))
    assert list(faster_decoding(members(), plan, tmp_path / "none")) == []
