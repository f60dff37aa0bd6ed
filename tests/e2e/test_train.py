"""Whole runs on random policies: from end to end, in both model families."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import winnow
from forked import fork_supervisors
from logged_groups import read_rollouts
from winnow.config_file import validate
from winnow.core.events import AlarmRaised, Ended, Evaluated, Notice, PhaseBegan, RolloutsFinished, Started
from winnow.records import StepReport
from winnow.state.logbook import read_metrics, totals


def run(config, **more):
    events = []
    result = winnow.train(**config, watch=events.append, **more)
    return result, events


@pytest.fixture(scope="module")
def plain(smallest_in, tmp_path_factory):
    """A run of two steps and its events, which several tests read."""
    return run(smallest_in(tmp_path_factory.mktemp("plain"))(steps=2, seed=5))


@pytest.mark.parametrize(("arch", "engine"), [("qwen2", "native"), ("llama", "hf")])
def test_a_policy_learns_what_it_is_rewarded_for(arch, engine, smallest):
    """A random policy writes more even characters after 10 steps: mean reward above the first step's by a clear
    margin.
    """
    config = smallest(
        arch,
        steps=10,
        rollout={"prompts_per_step": 8, "rollouts_per_prompt": 8, "max_new_tokens": 12, "engine": engine},
        select={"use": "max_variance", "keep_per_prompt": 4},
        optimizer={"learning_rate": 3e-2},
    )
    result, _ = run(config)
    rewards = [row["reward/mean"] for row in read_metrics(result.folder) if "reward/mean" in row]
    assert np.mean(rewards[-3:]) > np.mean(rewards[:2]) + 0.1, rewards


def test_events_are_in_order(smallest):
    _, events = run(smallest(steps=2, evaluate={"every": 1}))
    story = [type(e) for e in events if not isinstance(e, Notice | PhaseBegan | RolloutsFinished)]
    assert story == [Started, Evaluated, StepReport, Evaluated, StepReport, Evaluated, Ended]


def test_every_phase_that_is_timed_is_announced_as_it_begins(plain):
    _, events = plain
    story = [
        e.phase if isinstance(e, PhaseBegan) else type(e)
        for e in events
        if not isinstance(e, Notice | RolloutsFinished)
    ]
    step = ["generate", "verify", "select", "select", "logprobs", "save", "update", "sync", StepReport]
    measured = ["evaluate", Evaluated]
    assert story == ["load", Started, *measured, *step, *step, "checkpoint", *measured, Ended]
    reports = [e for e in events if isinstance(e, StepReport)]
    for report in reports:
        timed = {name.removeprefix("seconds/") for name in report.metrics if name.startswith("seconds/")}
        assert timed - {"step"} == {e.phase for e in events if isinstance(e, PhaseBegan) and e.phase in step}
    assert [e.step for e in events if isinstance(e, PhaseBegan) and e.phase == "update"] == [0, 1]


def test_the_model_left_behind_is_a_hugging_face_folder(plain):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    result, _ = plain
    AutoModelForCausalLM.from_pretrained(result.model)
    AutoTokenizer.from_pretrained(result.model)


def test_lora_leaves_a_merged_model_and_resumes_to_the_same_bits(smallest, tmp_path):
    from transformers import AutoModelForCausalLM

    config = smallest(model={"lora": {"rank": 4}}, optimizer={"learning_rate": 1e-2}, checkpoint={"every": 1})
    whole, _ = run({**config, "output": str(tmp_path / "whole")})
    merged = dict(AutoModelForCausalLM.from_pretrained(whole.model).named_parameters())
    base = dict(AutoModelForCausalLM.from_pretrained(config["model"]["path"]).named_parameters())
    moved = {name for name in base if not merged[name].equal(base[name])}
    assert moved
    assert all("_proj" in name for name in moved), moved

    shutil.copytree(whole.folder, tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "checkpoints" / "step-000002")
    resumed, _ = run({**config, "output": str(tmp_path / "half")}, resume=True)
    for name in ("adapter/adapter_model.safetensors", "trainer.tensors", "model.safetensors"):
        assert (whole.model / name).read_bytes() == (resumed.model / name).read_bytes(), name


def test_the_rollout_file_alone_reproduces_keep_and_advantages(plain):
    """Law 3 and the logbook: read the file, apply the rules again, find the logged numbers exactly."""
    from winnow.algos.advantage import grpo
    from winnow.algos.selectors import max_variance
    from winnow.seeds import Rng

    result, _ = plain
    logged = list(read_rollouts(result.folder))
    assert len(logged) == 2 * 4
    for entry in logged:
        bare = winnow.Group(prompt=entry.group.prompt, rollouts=entry.group.rollouts, outcomes=entry.group.outcomes)
        keep = max_variance(bare, Rng((entry.seed, "select", entry.step)), keep_per_prompt=2)
        assert keep.tolist() == entry.group.keep.tolist()
        (advantages,) = grpo([bare.fill(keep=keep)])
        assert advantages.tolist() == entry.group.advantages.tolist()


def test_the_budget_adds_up(plain):
    result, _ = plain
    rows = read_metrics(result.folder)
    sums = totals(rows)
    groups = [entry.group for entry in read_rollouts(result.folder)]
    lengths = [len(r.tokens) for group in groups for r in group.rollouts]
    kept = [len(r.tokens) for group in groups for r, keep in zip(group.rollouts, group.keep, strict=True) if keep]
    assert sums["budget/rollouts"] == len(lengths) == 2 * 16
    assert sums["budget/prompt_tokens"] == sum(len(group.prompt.tokens) for group in groups) > 0  # once per group
    assert sums["budget/tokens_kept"] == sum(kept) < sum(lengths)
    assert sums["budget/tokens_generated"] == sums["budget/tokens_verified"] == sum(lengths)
    assert sums["budget/tokens_trained"] + sums["budget/tokens_wasted"] == sum(lengths)
    phases = {k: v for k, v in sums.items() if k.startswith("seconds/") and k != "seconds/step"}
    assert set(phases) == {
        f"seconds/{p}" for p in ("generate", "verify", "select", "logprobs", "save", "update", "sync")
    }
    assert sum(phases.values()) <= sums["seconds/step"]


def test_what_is_cut_from_training_is_counted(smallest):
    """Rollouts of up to 8 tokens, of which the first 3 are trained: old and reference log-probs, weights and all."""
    config = smallest(update={"max_trained_tokens": 3, "epochs": 2}, terms=[{"use": "kl", "coefficient": 0.1}])
    result, _ = run(config)
    for row in read_metrics(result.folder):
        if "budget/rollouts" not in row:
            continue
        groups = [entry.group for entry in read_rollouts(result.folder, int(row["step"]))]
        kept = [len(r.tokens) for g in groups for r, keep in zip(g.rollouts, g.keep, strict=True) if keep]
        assert row["select/trained"] == len(kept)
        assert row["budget/tokens_trained"] == sum(min(n, 3) for n in kept)
        assert row["budget/tokens_cut"] == sum(max(n - 3, 0) for n in kept) > 0
        assert row["budget/rollouts_cut"] == sum(n > 3 for n in kept)
        assert row["budget/tokens_wasted"] == row["budget/tokens_generated"] - row["budget/tokens_trained"]


@pytest.mark.parametrize(("arch", "how"), [("qwen2", "none"), ("llama", "full")])
def test_a_packed_run_is_a_padded_one(arch, how, smallest, tmp_path):
    """The native engine decodes on the same module, a reference stands beside it, and updates follow each other."""
    keys = {"terms": [{"use": "kl", "coefficient": 0.1}], "model": {"gradient_checkpointing": how}}
    found = {}
    for layout in ("padded", "packed"):
        update = {"layout": layout, "epochs": 2, "tokens_per_micro_batch": 64}
        result, _ = run(smallest(arch, output=str(tmp_path / layout), update=update, **keys))
        found[layout] = [row for row in read_metrics(result.folder) if "budget/rollouts" in row]
    for padded, packed in zip(*found.values(), strict=True):
        assert packed["policy/parity_alarm"] == 0
        for name in ("reward/mean", "policy/loss", "policy/grad_norm", "policy/ratio_mean", "loss/kl"):
            assert packed[name] == pytest.approx(padded[name], rel=1e-3, abs=1e-5), name


def test_rewards_are_logged_over_every_rollout(plain):
    """Not over the kept ones, whose mean is another number (the PODS authors' multi-GPU code logs those)."""
    result, _ = plain
    for row in read_metrics(result.folder)[:2]:
        groups = [entry.group for entry in read_rollouts(result.folder, int(row["step"]))]
        everything = np.concatenate([g.rewards for g in groups])
        kept = np.concatenate([g.rewards[g.keep] for g in groups])
        assert row["reward/mean"] == pytest.approx(everything.mean(), rel=1e-12)
        assert abs(everything.mean() - kept.mean()) > 1e-6, "the test needs a step where the two differ"


def test_failed_verdicts_are_never_kept_and_never_in_a_baseline(smallest, tmp_path, monkeypatch):
    fork_supervisors(monkeypatch)
    (tmp_path / "flaky.py").write_text(
        "def flaky(prompt, rollout):\n"
        "    if rollout.index == 1:\n        raise RuntimeError('no verdict')\n"
        "    return float(rollout.index)\n"
    )
    result, _ = run(
        smallest(steps=1, reward={"use": f"{tmp_path}/flaky.py:flaky"}, verify={"workers": 1, "max_failure_share": 0.5})
    )
    for entry in read_rollouts(result.folder):
        assert entry.reasons[1] == "failed: raised"
        assert not entry.group.keep[1]
        assert sorted(np.flatnonzero(entry.group.keep)) == [0, 3]
        assert entry.group.advantages[[0, 3]] == pytest.approx([-1.5 / (4.5**0.5 + 1e-4), 1.5 / (4.5**0.5 + 1e-4)])
    (row, _) = read_metrics(result.folder)
    assert row["outcome/failed/raised"] == 4
    assert row["reward/mean"] == pytest.approx(5 / 3)


def test_flat_steps_take_no_update_and_an_alarm_says_why(smallest, tmp_path):
    (tmp_path / "never.py").write_text("def never(prompt, rollout):\n    return 0.0\n")
    alarms = {"untrained_steps": 1}
    result, events = run(smallest(steps=2, alarms=alarms, reward={"use": f"{tmp_path}/never.py:never"}))
    (alarm,) = (e.alarm for e in events if isinstance(e, AlarmRaised))  # once, though it holds in both
    assert (alarm.name, alarm.step) == ("nothing_trained", 0)
    assert "4 of 4" in alarm.text
    rows = read_metrics(result.folder)
    assert [row["budget/updates"] for row in rows[:2]] == [0, 0]
    assert rows[0]["budget/tokens_trained"] == 0


def test_two_epochs_of_two_updates(smallest):
    """The ratio is 1 in the first update alone; at this learning rate some tokens are clipped."""
    config = smallest(steps=1, update={"epochs": 2, "updates_per_step": 2}, optimizer={"learning_rate": 3e-2})
    result, _ = run(config)
    (row, _) = read_metrics(result.folder)
    assert row["budget/updates"] == 4
    assert row["policy/ratio_max"] > 1.2
    assert row["policy/clip_fraction"] > 0
    assert row["policy/logprob_gap_max"] < 1e-4  # the engine and the policy agree where the weights are still the same


def test_gsm8k_with_a_policy_that_cannot_do_it(smallest, test_data, tmp_path):
    """On its first 100 problems; test_tasks.py reads all."""
    for name in ("gsm8k_train.jsonl", "gsm8k_test.jsonl"):
        lines = (test_data / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / name).write_text("".join(lines[:100]), encoding="utf-8")
    config = smallest(
        steps=3,
        model={"path": "bundled"},
        task={"use": "gsm8k", "path": str(tmp_path)},
        prompt={"max_prompt_tokens": 512},
        reward={"use": "r1_zero"},
        evaluate={"problems": 4},
    )
    del config["task"]["levels"], config["task"]["size"]
    _, events = run(config)
    (alarm,) = (e.alarm for e in events if isinstance(e, AlarmRaised))
    assert (alarm.name, alarm.step) == ("nothing_trained", 2)
    assert "12 of 12" in alarm.text


def test_everything_toml_says_is_a_keyword_argument(smallest):
    """Functions where names may stand, tables where tables may."""

    def shorter(prompt, rollout):
        return -float(len(rollout.text))

    def lowest(group, rng, *, count: int):
        order = np.argsort(group.rewards, kind="stable")
        return np.isin(np.arange(len(order)), order[:count])

    result, events = run(
        smallest(steps=1, reward=shorter, select=[{"use": lowest, "count": 2}], advantage="dr_grpo", loss="reinforce")
    )
    assert any("verify.workers" in e.text for e in events if isinstance(e, Notice))
    for entry in read_rollouts(result.folder):
        assert entry.group.keep.sum() == 2
    manifest = json.loads((result.folder / "manifest.json").read_text())
    assert manifest["config"]["select"][0]["use"].endswith("lowest (given from Python)")
    assert validate({"loss": "reinforce"}).loss.use == "reinforce"
