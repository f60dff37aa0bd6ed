"""What a step, a probe and a checkpoint call. Numbers are tested with the learner's parts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from refusals import refused
from winnow.config import Config
from winnow.config_file import validate
from winnow.errors import RunFolderError
from winnow.learner.learner import Learner, make_learner
from winnow.models.adapter import add_lora, load_adapter
from winnow.models.load import load
from winnow.records import Batch, Prompt, Rollout, TrainingSequence

LORA = {"rank": 2, "alpha": 4.0}
NEEDS = {"old_logprobs", "ref_logprobs"}


@pytest.fixture
def config(tiny_folder):
    def made(lora: bool) -> Config:
        path = str(tiny_folder("qwen2"))
        model = {"path": path, "dtype": "float32", **({"lora": LORA} if lora else {})}
        update, optimizer = {"epochs": 2, "updates_per_step": 3}, {"warmup_steps": 1, "schedule": "linear"}
        return validate({"model": model, "steps": 4, "update": update, "optimizer": optimizer})

    return made


def learner(config: Config, *, saved: Path | None = None, needs=NEEDS) -> Learner:
    """As a run makes it."""
    lora = config.model.lora
    loaded = load(config.model.path if saved is None or lora else str(saved))
    if lora is not None:
        loaded = dataclasses.replace(loaded, model=add_lora(loaded.model, **lora.model_dump(), seed=0))
        if saved is not None:
            load_adapter(loaded.model, saved / "adapter")
    return make_learner(config, loaded, needs=needs, resumed=saved is not None)


def batch() -> Batch:
    prompt = Prompt(id="p", tokens=np.array([7, 8]), text="", answer=None, task="t")
    completions = [np.array([5, 6, 1]), np.array([9, 1])]
    sequences = tuple(
        TrainingSequence(
            prompt=prompt,
            rollout=Rollout(
                index=i, tokens=tokens, logprobs=np.full(len(tokens), -1.0), text="", finish="stop", version=0
            ),
            group=0,
            advantage=1.0 - 2.0 * i,
            weight=1.0,
        )
        for i, tokens in enumerate(completions)
    )
    return Batch(epoch=0, sequences=sequences)


def update(of: Learner) -> None:
    for mb in of.micro_batches(batch()):
        of.backward(-(mb.advantages * of.forward(mb).logprobs).sum())
    assert not of.step().skipped


def distance_from_reference(of: Learner) -> float:
    (filled,) = of.compute_logprobs([batch()], NEEDS)
    return max(float(np.abs(s.old_logprobs - s.ref_logprobs).max()) for s in filled.sequences)


def moments(of: Learner) -> list[str]:
    return [name for name in of.state() if name.endswith("/exp_avg")]


@pytest.mark.parametrize("lora", [False, True])
def test_steps_of_a_configuration_become_updates(config, lora: bool) -> None:
    """4 steps of 6 updates: a warm-up of 6, then a line to 0 at 24."""
    of = learner(config(lora))
    rate = config(lora).optimizer.learning_rate
    rates = [of.skip().learning_rate for _ in range(24)]
    assert rates[:7] == pytest.approx([rate * (i + 1) / 7 for i in range(6)] + [rate])
    assert rates[-1] == pytest.approx(rate / 18)
    assert of.taken == 0
    assert of.counts() == {"updates": 24, "not_finite": 0}


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("what", ["none", "optimizer", "reference", "both"])
def test_what_is_reset(config, lora: bool, what) -> None:
    of = learner(config(lora))
    update(of)
    assert moments(of)
    assert distance_from_reference(of) > 0
    of.reset(what)
    assert bool(moments(of)) == (what in ("none", "reference"))
    moved = what in ("reference", "both")
    assert (distance_from_reference(of) == 0) == moved
    assert any(name.startswith("reference/") for name in of.state()) == moved
    assert of.taken == 1


@pytest.mark.parametrize("needs", [set(), {"old_logprobs"}])
def test_without_a_term_that_needs_one_there_is_no_reference(config, needs) -> None:
    of = learner(config(False), needs=needs)
    of.reset("both")
    assert of.state() == {}
    (filled,) = of.compute_logprobs([batch()], NEEDS)
    assert all(s.ref_logprobs is None for s in filled.sequences)


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("reset", ["none", "reference"])
def test_what_is_written_is_what_a_resume_goes_on_from(config, lora: bool, reset, tmp_path: Path) -> None:
    whole = learner(config(lora))
    update(whole)
    whole.reset(reset)
    update(whole)
    whole.write_model(tmp_path / "model", load(config(lora).model.path).files, whole.shares().read)
    save_file({name: value.clone() for name, value in whole.state().items()}, tmp_path / "state")
    resumed = learner(config(lora), saved=tmp_path / "model")
    resumed.restore(load_file(tmp_path / "state"), whole.counts())
    assert distance_from_reference(resumed) == distance_from_reference(whole) > 0
    for of in (whole, resumed):
        update(of)
    assert resumed.counts() == whole.counts()
    for found, expected in ((resumed.weights(), whole.weights()), (resumed.state(), whole.state())):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_the_state_of_other_parameters_is_refused(config) -> None:
    of = learner(config(False))
    update(of)
    with refused(RunFolderError, code="run_folder.other_model"):
        learner(config(True)).restore(of.state(), of.counts())
