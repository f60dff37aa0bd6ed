"""Runs on the published model: an adapter with PPO's value head, all weights in 16 bits, and two ranks with shares."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import winnow
from published_rollouts import SYSTEM, context, learned, plain, policy, prompts, sample
from winnow.core.mismatch import percentile_999
from winnow.engines.native.engine import native
from winnow.models.adapter import add_lora, load_adapter
from winnow.models.folder import PUBLISHED, published_files
from winnow.models.load import load
from winnow.state.logbook import read_metrics

pytestmark = [pytest.mark.published, pytest.mark.timeout(1200)]

LORA = {"rank": 4, "alpha": 8.0}
FORMS: dict[str, dict[str, Any]] = {
    "an adapter and a value head": {
        "model": {"path": PUBLISHED, "dtype": "bfloat16", "lora": LORA},
        "advantage": "gae",
        "critic": {"form": "shared"},
    },
    "all weights, rounded at random": {
        "model": {"path": PUBLISHED, "dtype": "bfloat16"},
        "optimizer": {"learning_rate": 1e-5, "master_weights": False, "stochastic_rounding": True},
    },
}
ADAPTER, WEIGHTS = FORMS
FILES = ("model.safetensors", "trainer.tensors", "trainer.json")
Train = Callable[..., Any]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the runs. It is removed, because each checkpoint has 270 MB or more."""
    folder = tmp_path_factory.mktemp("published")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def train(home: Path, folder: Path, smallest_in) -> Train:
    """train(FORM, NAME): a run of two steps, each with a checkpoint."""

    def run(form: str, name: str, *, resume: bool = False) -> Any:
        shared = {
            "output": str(home / name),
            "prompt": {"template": "chat", "system": SYSTEM, "max_prompt_tokens": 128},
            "evaluate": {"problems": 1, "rollouts_per_prompt": 1},
            "checkpoint": {"every": 1, "keep_last": 9},
        }
        return winnow.train(**smallest_in(home)(**{**shared, **FORMS[form]}), resume=resume, watch=lambda event: None)

    return run


@pytest.fixture(scope="module")
def adapted(train: Train) -> Any:
    return train(ADAPTER, "adapted")


def check_resumed(first: Any, train: Train, form: str) -> None:
    """The run goes on from its first checkpoint, in another folder, to the same files and metrics."""
    stopped = first.folder.with_name("stopped")
    shutil.copytree(first.folder, stopped, ignore=shutil.ignore_patterns("step-000002"))
    second = train(form, stopped.name, resume=True)
    for name in FILES:
        assert (first.model / name).read_bytes() == (second.model / name).read_bytes(), name
    assert rows(first.folder) == rows(second.folder)
    shutil.rmtree(stopped)


def rows(run: Path) -> list[dict[str, str]]:
    """Metrics that do not depend on the clock; as text, because NaN differs from itself."""
    clock = ("seconds/", "eval/seconds", "memory/", "time/")
    return [{k: repr(v) for k, v in row.items() if not k.startswith(clock)} for row in read_metrics(run)]


@pytest.mark.slow  # test_value_models_resume.py resumes such a run of a tiny policy
def test_a_run_resumes_to_the_same_bits(adapted, train):
    check_resumed(adapted, train, ADAPTER)


@pytest.mark.slow  # test_sixteen_bits.py resumes such weights of a tiny policy
def test_a_run_of_all_weights_resumes_to_the_same_bits(train, folder):
    first = train(WEIGHTS, "weights")
    check_resumed(first, train, WEIGHTS)
    trained, start = (load_file(path / "model.safetensors") for path in (first.model, folder))
    assert trained.keys() == start.keys()
    assert not any(trained[name].equal(start[name]) for name in start)


def test_the_value_head_is_trained_from_zero(adapted):
    heads = [
        {name: tensor for name, tensor in load_file(path / "trainer.tensors").items() if "value_head.weight" in name}
        for path in sorted((adapted.folder / "checkpoints").iterdir())
    ]
    for one, other in zip(heads[0].values(), heads[1].values(), strict=True):
        assert one.any()
        assert not one.equal(other)
    steps = [row for row in read_metrics(adapted.folder) if "critic/loss" in row]
    assert len(steps) == 2
    assert all(np.isfinite(row["critic/loss"]) for row in steps)


def test_an_adapted_run_s_engine_samples_the_trained_policy(adapted, record_property):
    steps = [row for row in read_metrics(adapted.folder) if "policy/logprob_gap_mean" in row]
    assert [row["budget/updates"] for row in steps] == [1.0, 1.0]
    for row in steps:
        record_property(f"mean, step {row['step']:.0f}", row["policy/logprob_gap_mean"])
        assert row["policy/logprob_gap_mean"] <= 0.04
        assert row["policy/logprob_gap_p999"] <= 0.3


def test_a_checkpoint_is_the_base_with_the_adapter_and_loads_in_transformers(adapted, folder, record_property):
    merged = load_file(adapted.model / "model.safetensors")
    start = load_file(folder / "model.safetensors")
    assert merged.keys() == start.keys()
    assert {tensor.dtype for tensor in merged.values()} == {torch.bfloat16}
    layers = [name for name in start if name.endswith("_proj.weight")]
    moved = {name for name in start if not merged[name].equal(start[name])}
    assert moved <= {*layers}
    record_property("layers that moved", f"{len(moved)} of {len(layers)}")
    assert moved
    assert published_files(adapted.model) == published_files(folder)

    plainly = AutoModelForCausalLM.from_pretrained(adapted.model).eval()
    assert plainly.get_output_embeddings().weight is plainly.get_input_embeddings().weight
    assert AutoTokenizer.from_pretrained(adapted.model).chat_template
    loaded = load(PUBLISHED, dtype="bfloat16")
    sequences = sample(native(context(loaded)), prompts(loaded.tokenizer, 2), 2)
    with_adapter = add_lora(loaded.model, **LORA, targets="all-linear", seed=0)
    load_adapter(with_adapter, adapted.model / "adapter")
    ours = learned(policy(dataclasses.replace(loaded, model=with_adapter)), sequences)
    gap = np.abs(ours - plain(plainly, sequences))
    for name, figure in (("mean", float(gap.mean())), ("p999", percentile_999(gap))):
        record_property(name, figure)
    assert gap.mean() <= 0.045  # the merged weights are rounded to bfloat16
    assert percentile_999(gap) <= 0.3


SHARED: dict[
    str, Any
] = {  # one step of all weights in float32; a large eps keeps the rounding of a gradient near 0 small
    "steps": 1,
    "threads": 1,
    "device": "cpu",
    "task.size": 8,
    "rollout.prompts_per_step": 2,
    "rollout.rollouts_per_prompt": 4,
    "rollout.max_new_tokens": 8,
    "select.keep_per_prompt": 2,
    "update.tokens_per_micro_batch": 256,
    "optimizer.learning_rate": 1e-3,
    "optimizer.eps": 1e-3,
    "evaluate.every": 0,
    "evaluate.problems": 1,
    "evaluate.rollouts_per_prompt": 1,
    "evaluate.greedy": False,
    "verify.workers": 0,
    "ranks.learner": "sharded",
}


@pytest.mark.slow  # three times the weights; tests/ranks has the shares of tiny policies
def test_two_ranks_with_shares_update_as_one_process(home, folder, smallest_in, record_property):
    smallest_in(home)  # writes the reward
    settings = {**SHARED, "reward": f"{home}/even.py:even"}
    for ranks in (1, 2):
        sets = [f"{key}={json.dumps(value)}" for key, value in {**settings, "output": f"{home}/ranks-{ranks}"}.items()]
        options = [part for each in sets for part in ("--set", each)]
        command = [sys.executable, "-m", "winnow", "train", "smollm2_arithmetic", "--ranks", str(ranks), *options]
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    one, two = (home / f"ranks-{ranks}" for ranks in (1, 2))
    (alone,), (shared,) = ([row for row in read_metrics(run) if "policy/grad_norm" in row] for run in (one, two))
    start, first, second = (load_file(path / "model.safetensors") for path in (folder, last(one), last(two)))
    moved = norm({name: first[name] - start[name].float() for name in start})
    apart = norm({name: second[name] - first[name] for name in start}) / moved
    gradient = abs(shared["policy/grad_norm"] / alone["policy/grad_norm"] - 1)
    record_property("gradient norm, relative", gradient)
    record_property("weights, relative to the update", apart)
    assert (shared["reward/mean"], shared["budget/tokens_trained"]) == (
        alone["reward/mean"],
        alone["budget/tokens_trained"],
    )
    assert gradient <= 1e-5
    assert apart <= 1e-4


def last(run: Path) -> Path:
    return max((run / "checkpoints").iterdir())


def norm(tensors: dict[str, torch.Tensor]) -> float:
    return sum(tensor.double().square().sum().item() for tensor in tensors.values()) ** 0.5
