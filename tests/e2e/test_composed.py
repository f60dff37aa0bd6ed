"""What meets only in a whole run: a reference and its resets, dynamic sampling, an engine's correction, a critic."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import winnow
from logged_groups import read_rollouts
from refusals import refused
from winnow.state.logbook import read_metrics


def run(config, **more):
    return winnow.train(**config, watch=lambda event: None, **more)


KL = {"use": "kl", "coefficient": 0.1}


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_the_reference_is_the_policy_at_the_start(lora, smallest):
    """Before the first update the distance is 0; after it, it is not; and it is measured on every kept rollout."""
    model = {} if lora is None else {"lora": lora}
    result = run(smallest(steps=3, terms=[KL], model=model, optimizer={"learning_rate": 1e-2}))
    rows = [row for row in read_metrics(result.folder) if "loss/kl" in row]
    assert rows[0]["loss/kl"] == pytest.approx(0.0, abs=1e-9)
    assert rows[2]["loss/kl"] > 1e-5
    assert rows[0]["select/trained"] == rows[0]["select/kept"] == 8


def test_any_term_and_any_diagnostic_has_a_metric_of_its_own(smallest, tmp_path):
    """Named by file, twice, like a metric of the ratio, or with signs that no metric's name may have."""
    (tmp_path / "mine.py").write_text(
        "def pull(out, mb):\n    return out.logprobs**2\n\n\n"
        "def ratio(out, mb):\n    return 0 * out.logprobs + 3\n\n\n"
        "def loss(out, mb):\n"
        "    return -mb.advantages * out.logprobs, {'pull': 0 * mb.advantages + 2, 'a: b': mb.weights}\n"
    )
    terms = [{"use": f"{tmp_path}/mine.py:{name}", "coefficient": 0.1} for name in ("pull", "pull", "ratio")]
    result = run(smallest(steps=1, loss=f"{tmp_path}/mine.py:loss", terms=terms))
    (row,) = [row for row in read_metrics(result.folder) if "policy/loss" in row]
    named = {name: value for name, value in row.items() if name.startswith("loss/")}
    assert set(named) == {"loss/pull", "loss/pull_2", "loss/ratio_2", "loss/pull_3", "loss/a__b"}
    assert named["loss/pull"] == named["loss/pull_2"] > 0
    assert (named["loss/ratio_2"], named["loss/pull_3"]) == (3.0, 2.0)
    assert "policy/ratio_mean" not in row


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_a_reset_reference_survives_a_resume(lora, smallest, tmp_path):
    model = {} if lora is None else {"lora": lora}
    config = smallest(
        steps=4,
        terms=[KL],
        model=model,
        allocate="gvm",
        probe={"every": 2, "rollouts_per_prompt": 2, "outer_reset": "both"},
        checkpoint={"every": 3},
        optimizer={"learning_rate": 1e-2},
    )
    whole = run({**config, "output": str(tmp_path / "whole")})
    shutil.copytree(whole.folder, tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "checkpoints" / "step-000004")
    resumed = run({**config, "output": str(tmp_path / "half")}, resume=True)
    for name in ("trainer.tensors", "model.safetensors"):
        assert (whole.model / name).read_bytes() == (resumed.model / name).read_bytes(), name
    distances = [row["loss/kl"] for row in read_metrics(whole.folder) if "loss/kl" in row]
    assert distances[2] == pytest.approx(0.0, abs=1e-9)  # reset at the second window
    assert distances[3] > 1e-6


def test_dynamic_sampling_draws_further_prompts_and_always_returns(smallest, tmp_path):
    """Half of the prompts can never be told apart; two rounds bring more, and flat groups are not kept."""
    (tmp_path / "half.py").write_text(
        "def half(prompt, rollout):\n    return float(rollout.index) if int(prompt.id[-1], 16) % 2 else 0.0\n"
    )
    config = smallest(
        steps=1,
        reward={"use": f"{tmp_path}/half.py:half"},
        rollout={"dynamic_sampling_rounds": 2},
        task={"size": 40, "levels": [2]},
    )
    result = run(config)
    (row, _) = read_metrics(result.folder)
    groups = [entry.group for entry in read_rollouts(result.folder)]
    assert row["dynamic_sampling/groups"] == len(groups) - 4 > 0
    assert row["dynamic_sampling/rounds"] in (1, 2)
    assert len({g.prompt.id for g in groups}) == len(groups)
    for group in groups:
        assert group.keep.any() == (np.ptp(group.rewards) > 0)
    assert row["budget/tokens_generated"] == sum(g.lengths.sum() for g in groups)


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        ({"advantage": {"chunk": 4}, "select": "all"}, False),
        ({"select": {"use": "max_reward", "keep_per_prompt": 4}}, False),
        ({"select": "all"}, True),
    ],
    ids=["chunks", "selection", "neither"],
)
def test_dynamic_sampling_counts_groups_whose_kept_rollouts_have_credit(smallest, tmp_path, keys, kept):
    """Of eight rollouts the first four are right: in chunks of four, or with the best four kept, none has credit."""
    (tmp_path / "first.py").write_text("def first(prompt, rollout):\n    return float(rollout.index < 4)\n")
    config = smallest(
        steps=1,
        reward={"use": f"{tmp_path}/first.py:first"},
        rollout={"dynamic_sampling_rounds": 1, "rollouts_per_prompt": 8},
        **keys,
    )
    result = run(config)
    (row, _) = read_metrics(result.folder)
    assert row.get("dynamic_sampling/groups", 0) == (0 if kept else 4)
    assert {bool(entry.group.keep.any()) for entry in read_rollouts(result.folder)} == {kept}


def test_dynamic_sampling_ends_with_the_task(smallest, tmp_path):
    (tmp_path / "never.py").write_text("def never(prompt, rollout):\n    return 0.0\n")
    config = smallest(
        steps=1,
        reward={"use": f"{tmp_path}/never.py:never"},
        rollout={"dynamic_sampling_rounds": 100},
        task={"size": 10, "levels": [2]},
    )
    (row, _) = read_metrics(run(config).folder)
    assert row["group/count"] == 10
    assert row["budget/updates"] == 0


def test_the_correction_for_the_engine_reaches_the_loss(smallest, tmp_path):
    """An engine that reports log-probs of half the probability: every token counts min(p_old / p_engine, 1.5) = 1.5
    times.
    """
    (tmp_path / "lying.py").write_text(
        "import dataclasses\n\nfrom winnow.engines.native.sampler import Native\n\n\n"
        "def lying(context):\n    return Lying(context)\n\n\n"
        "class Lying(Native):\n"
        "    def generate(self, *args, **kwargs):\n"
        "        return [\n"
        "            dataclasses.replace(g, rollouts=tuple(\n"
        "                dataclasses.replace(r, logprobs=r.logprobs - 0.6931) for r in g.rollouts))\n"
        "            for g in super().generate(*args, **kwargs)\n"
        "        ]\n"
    )
    config = smallest(steps=1, rollout={"engine": f"{tmp_path}/lying.py:lying"}, optimizer={"max_grad_norm": 1e9})
    plain = run(config)
    corrected = run(
        {**config, "output": f"{config['output']}-corrected", "correction": {"use": "token_truncate", "most": 1.5}}
    )
    norms = [read_metrics(r.folder)[0]["policy/grad_norm"] for r in (plain, corrected)]
    assert norms[1] == pytest.approx(1.5 * norms[0], rel=1e-4)
    assert read_metrics(plain.folder)[0]["policy/logprob_gap_mean"] == pytest.approx(0.6931, abs=1e-3)


def test_a_critic_gives_values_that_an_advantage_reads(smallest):
    """A constant critic of 0.5: A = r - 0.5, one number per token."""

    def constant(groups):
        return [[np.full(len(r.tokens), 0.5) for r in g.rollouts] for g in groups]

    def against_values(groups):
        return [
            tuple(k * (reward - v) for reward, v, k in zip(g.rewards, g.values, g.keep, strict=True)) for g in groups
        ]

    result = run(smallest(steps=1, advantage=against_values), critic=constant)
    for entry in read_rollouts(result.folder):
        for rollout, reward, keep, credit in zip(
            entry.group.rollouts, entry.group.rewards, entry.group.keep, entry.group.advantages, strict=True
        ):
            assert credit == pytest.approx(np.full(len(rollout.tokens), keep * (reward - 0.5)))


def test_an_advantage_that_needs_values_needs_a_critic(smallest):
    from winnow.registry import register

    @register("advantage", "needs_a_critic", baseline="values", needs=("values",))
    def needs_a_critic(groups):
        return [np.zeros(len(g.rollouts)) for g in groups]

    with refused(winnow.ConfigError, "needs_a_critic", "values", code="config.combination"):
        run(smallest(advantage="needs_a_critic"))


def test_an_entropy_term_keeps_the_policy_from_sharpening(smallest):
    config = smallest(steps=6, optimizer={"learning_rate": 3e-2})
    sharp = run(config)
    config["output"] += "-broad"
    broad = run({**config, "terms": [{"use": "entropy", "coefficient": 1.0}]})
    last = [read_metrics(r.folder)[5]["policy/entropy"] for r in (sharp, broad)]
    assert last[1] > last[0]


def test_a_group_that_is_always_right_trains_without_a_baseline(smallest, tmp_path):
    """Credit 1 for each: the gradient is not zero. Under a group baseline it is, and every round is used."""
    (tmp_path / "always.py").write_text("def always(prompt, rollout):\n    return 1.0\n")
    config = smallest(steps=1, reward={"use": f"{tmp_path}/always.py:always"}, rollout={"dynamic_sampling_rounds": 1})
    for advantage, groups, trained in (("raft", 4, 8), ("raw", 4, 8), ("grpo", 8, 0)):
        result = run({**config, "advantage": advantage, "output": f"{config['output']}-{advantage}"})
        (row, _) = read_metrics(result.folder)
        assert (row["group/count"], row["select/trained"]) == (groups, trained), advantage


def test_a_prompt_that_was_planned_no_rollouts_asks_for_no_others(smallest, tmp_path):
    """Two prompts get all the rollouts and both carry a signal: nothing is lacking."""

    def two_of_four(stats, budget):
        return np.array([budget // 2, budget // 2, 0, 0])

    (tmp_path / "either.py").write_text("def either(prompt, rollout):\n    return float(rollout.index % 2)\n")
    config = smallest(
        steps=1,
        allocate=two_of_four,
        reward={"use": f"{tmp_path}/either.py:either"},
        rollout={"dynamic_sampling_rounds": 3},
    )
    (row, _) = read_metrics(run(config).folder)
    assert row["budget/rollouts"] == 16
    assert "dynamic_sampling/groups" not in row
