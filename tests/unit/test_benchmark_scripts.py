"""Benchmarks that are run by hand on a quiet machine, here at a size that takes seconds."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import demo
import half_billion
import update_cost

SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 2,
         "num_key_value_heads": 2, "tie_word_embeddings": True, "vocab_size": 600}  # fmt: skip
QUESTIONS = [{"question": f"What is {n} + {n}?", "answer": f"{n} + {n} = {2 * n}\n#### {2 * n}"} for n in range(40)]


@pytest.fixture
def gsm8k(tmp_path):
    for split in ("train", "test"):
        lines = "".join(json.dumps(question) + "\n" for question in QUESTIONS)
        (tmp_path / f"gsm8k_{split}.jsonl").write_text(lines)
    return tmp_path


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("way", half_billion.WAYS)
def test_half_a_billion_in_small(gsm8k, tmp_path, way):
    """Both sides take their steps on the same sequences; winnow trains every rollout."""
    sizes = argparse.Namespace(
        steps=2, prompts=2, rollouts=4, tokens=8, micro_batch_tokens=256, checkpointing="selective", data=str(gsm8k)
    )
    folder = tmp_path / "model"
    folder.mkdir()
    half_billion.write_model(folder, SMALL)
    ours = half_billion.winnow_side(way, folder, sizes)
    (folder / f"winnow_{way}.json").write_text(json.dumps(ours))
    report = half_billion.compared(ours, half_billion.plain_side(way, folder, sizes))
    assert [len(groups) for groups in ours["trained"]] == [2, 2]
    assert ours["trained rollouts"] == [8, 8]
    assert all(np.abs(group["advantages"]).max() > 0 for groups in ours["trained"] for group in groups)
    assert ours["plan"]["need"] >= 4 * ours["parameters"]
    assert set(report["plain / winnow"]) == {"generate", "update", "step"}


def test_plain_updates_follow_the_policy_gradient(tmp_path):
    """An update of plain transformers makes the rollout with the positive advantage likelier than the other."""
    half_billion.write_model(tmp_path, SMALL)
    model = half_billion.plain_model("full", tmp_path)
    optimizer = half_billion.torch.optim.AdamW(model.parameters(), lr=1e-3)
    group = {"prompt": [5, 6, 7], "rollouts": [[8, 9, 10], [11, 12, 13]], "advantages": [1.0, -1.0]}
    before = likelihoods(model, group)
    half_billion.update(model, optimizer, [group])
    after = likelihoods(model, group)
    assert after[0] > before[0]
    assert after[1] < before[1]


def likelihoods(model, group):
    torch, sums = half_billion.torch, []
    for tokens in group["rollouts"]:
        given = torch.tensor([group["prompt"] + tokens])
        logprobs = model(input_ids=given).logits[0, 2:-1].log_softmax(dim=-1)
        sums.append(logprobs.gather(1, torch.tensor(tokens)[:, None]).sum().item())
    return sums


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("technique", ["default", "prompts not shared", "packed", "LoRA"])
def test_dropped_rollouts_are_never_read(technique):
    options = argparse.Namespace(rounds=1, prompts=2, rollouts=8, prompt_tokens=4, tokens=8)
    report = update_cost.cost({**SMALL, "vocab_size": 5000}, update_cost.TECHNIQUES[technique], options)
    assert [point["m"] for point in report["kept"]] == [8, 4, 2, 1]
    for point in report["kept"]:
        assert point["kept rollouts read"] == point["rollouts kept"] == 2 * point["m"]
        assert point["dropped rollouts read"] == 0
        assert point["rollouts dropped"] == 16 - 2 * point["m"]
        rows = 2 * point["m"]
        shared = 2 * 4 + rows * 7
        apart = rows * (4 + 7)
        assert point["tokens read"] == (apart if technique == "prompts not shared" or point["m"] == 1 else shared)


def test_a_rollout_that_is_read_is_seen():
    groups = update_cost.make_groups(5000, argparse.Namespace(prompts=1, rollouts=2, prompt_tokens=3, tokens=4))
    first, second = groups[0].rollouts
    read = [np.array([[1, *second.tokens[:-1]]])]
    assert (update_cost.seen([first], read), update_cost.seen([second], read)) == (0, 1)


def test_a_line_is_fitted_to_kept_tokens():
    kept = [{"kept tokens": tokens, "seconds": 0.5 + 0.002 * tokens} for tokens in (100, 200, 400)]
    assert update_cost.line(kept) == {"milliseconds per kept token": 2.0, "seconds at none": 0.5, "R^2": 1.0}


def test_a_demo_s_evaluations_before_and_after_are_in_its_summary(tmp_path):
    run, sizes = tmp_path / "0", {"eval/accuracy_sampled_sem": 0.1, "eval/accuracy_greedy": 0.5}
    step = {"seconds/step": 2.0, "budget/updates": 1.0, "budget/rollouts": 8.0, "reward/mean": 0.0}
    step |= {"budget/tokens_generated": 32.0, "budget/tokens_trained": 16.0}
    rows = [{"step": at, "eval/accuracy_sampled": at / 4, "eval/seconds": 1.0, **sizes} for at in (0, 2)]
    run.mkdir()
    rows[1:1] = [{"step": at, **step} for at in (0, 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plain = demo.summary(run)
    assert plain["curve"] == {"0": 0.0, "2": 0.5}
    assert (plain["cost"]["steps"], plain["cost"]["seconds/step"], plain["cost"]["budget/tokens_trained"]) == (2, 4, 32)
    assert "after" not in plain

    for folder, accuracy in (("evaluated-0/against", 0.25), ("evaluated-0", 0.75)):
        names = ("accuracy_sampled", "accuracy_greedy")
        task = {
            "problems": 4,
            "rollouts_per_prompt": 2,
            "metrics": {**{f"eval/{name}": accuracy for name in names}, "eval/truncated": 1 - accuracy},
            "intervals": {name: {"low": accuracy - 0.1, "high": accuracy + 0.1} for name in names},
        }
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "metrics.json").write_text(json.dumps({"tasks": {"arithmetic": task}}))
    both = demo.summary(run)
    assert both["before"]["accuracy_sampled"] == {"mean": 0.25, "low": 0.15, "high": 0.35}
    assert both["after"]["accuracy_greedy"] == pytest.approx({"mean": 0.75, "low": 0.65, "high": 0.85})
    assert (both["before"]["truncated"], both["after"]["truncated"]) == (0.75, 0.25)
