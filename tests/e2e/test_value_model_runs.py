"""What meets only in a whole run with a value model: adapters that share a base, a policy that is held, a start that is
no longer there, a model of another size.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

import winnow
from refusals import refused
from winnow.errors import ConfigError
from winnow.state.logbook import read_metrics


def run(config, **options):
    return winnow.train(**config, watch=lambda event: None, **options)


def trained_tensors(result):
    saved = load_file(result.model / "trainer.tensors")
    return {name for name in saved if name.startswith("critic/parameter/")}


def test_an_adapter_is_saved_after_a_step_of_its_base_alone(smallest, tmp_path):
    """The reference is the base with every adapter off; peft then leaves all but the policy's frozen."""
    (tmp_path / "late.py").write_text(
        "import numpy as np\n"
        "CALLS = []\n"
        "def none_at_last(group, rng):\n"
        "    CALLS.append(group)\n"
        "    return np.full(len(group.rollouts), len(CALLS) <= 4)\n"
    )
    config = smallest(
        steps=2,
        model={"lora": {"rank": 2, "alpha": 4.0}},
        advantage={"use": "gae", "kl_reward": 0.1},
        critic={"form": "adapter"},
        select=[{"use": f"{tmp_path}/late.py:none_at_last"}],
    )
    result = run(config)
    kept = [row["select/kept"] for row in read_metrics(result.folder) if "select/kept" in row]
    assert kept[0] > 0
    assert kept[1] == 0
    names = trained_tensors(result)
    assert sum("lora_A" in name for name in names) == sum("lora_B" in name for name in names) > 0
    run({**config, "steps": 3}, resume=True)


def test_a_policy_that_is_held_begins_its_schedule_when_it_learns(smallest):
    config = smallest(
        steps=5,
        advantage="gae",
        critic={"form": "model", "pretraining_steps": 2},
        optimizer={"learning_rate": 4e-4, "warmup_steps": 3},
    )
    rows = [row for row in read_metrics(run(config).folder) if "budget/rollouts" in row]
    assert ["policy/learning_rate" in row for row in rows] == [False, False, True, True, True]
    assert [row["policy/learning_rate"] for row in rows[2:]] == pytest.approx([1e-4, 2e-4, 3e-4])
    assert [row["budget/updates"] for row in rows[:2]] == [0, 0]
    assert all(row["critic/updates"] == 1 for row in rows)


def test_a_resume_does_not_ask_for_what_its_value_model_started_as(smallest, tmp_path):
    valued = {"advantage": "gae", "steps": 1}
    first = run(smallest(**valued, critic={"form": "model"}, output=str(tmp_path / "first")))
    config = smallest(**valued, critic={"form": "model", "start": str(first.model)}, output=str(tmp_path / "second"))
    run(config)
    shutil.rmtree(first.folder)
    run({**config, "steps": 2}, resume=True)
    with refused(ConfigError, first.model, key="critic.start"):
        run({**config, "output": str(tmp_path / "third")})


def test_a_value_model_with_fewer_embeddings_than_the_policy_is_refused(smallest, tmp_path):
    """The vocabularies are equal, and the policy's matrix has rows for tokens that stand for nothing."""
    config = smallest(advantage="gae", critic={"form": "model", "path": smallest()["model"]["path"]})
    wider = Path(shutil.copytree(config["critic"]["path"], tmp_path / "wider"))
    settings = json.loads((wider / "config.json").read_text())
    (wider / "config.json").write_text(json.dumps({**settings, "vocab_size": settings["vocab_size"] + 8}))
    with refused(ConfigError, settings["vocab_size"], key="critic.path"):
        run({**config, "model": {**config["model"], "path": str(wider)}})
