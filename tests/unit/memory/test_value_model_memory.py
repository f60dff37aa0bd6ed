"""What a value model's tensors take in a step, to the byte of what was planned for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from winnow.config_file import validate
from winnow.core.plan import plan
from winnow.core.step import train_step
from winnow.learner.adamw import MASTER
from winnow.learner.optimizer import Optimizer
from winnow.models.adapter import value_adapter
from winnow.training.budget import plan_devices
from winnow.training.build import build
from winnow.training.resolve import resolve_members

CPU = torch.device("cpu")
LORA = {"lora": {"rank": 2, "alpha": 4.0}}
KINDS = {
    "head": {"critic": {"form": "shared"}},
    "head in bfloat16": {"critic": {"form": "shared"}, "model": {"dtype": "bfloat16"}},
    "adapter": {"critic": {"form": "adapter", "lora": {"rank": 4}}, "model": {**LORA, "dtype": "bfloat16"}},
    "model": {"critic": {"form": "model"}},
    "model in bfloat16": {"critic": {"form": "model"}, "model": {"dtype": "bfloat16"}},
    "model with an adapter": {"critic": {"form": "model", **LORA}},
}


def size(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def held(run):
    """The tensors that are there for the value model alone."""
    policy = run.learner.model
    if run.critic is None:
        return list(policy.value_head.values())
    if run.critic.model.on_policy:
        return [*value_adapter(policy.model).values(), *policy.module.value_head.parameters()]
    module = run.critic.model.module
    return [*module.parameters(), *module.buffers()]


def trained(run):
    """What of it is trained, or the masters of that, by name."""
    weights = (run.learner if run.critic is None else run.critic)._optimizer._adamw._weights
    return {name: p for name, p in weights.items() if run.critic is not None or name.startswith("value_head")}


def trained_by(run):
    """Its moments and masters."""
    state = (run.learner if run.critic is None else run.critic)._optimizer.state()
    own = {name: t for name, t in state.items() if name.rpartition("/")[0] in trained(run)}
    masters = size(t for name, t in own.items() if name.endswith(f"/{MASTER}"))
    return {"value model optimizer": size(own.values()) - masters, "value model master weights": masters}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_value_model_holds_is_what_was_planned_to_the_byte(kind, smallest, tmp_path, monkeypatch):
    """And the gradients of one of its own are gone before the policy's update."""
    members = resolve_members(validate(smallest(advantage="gae", **KINDS[kind])), Path())
    parts = {part.name: part.bytes for part in plan_devices(members, CPU).parts}
    built = build(members, folder=tmp_path / "run", device=CPU)
    run, progress = built.run, built.progress
    step, gradients = Optimizer.step, []

    def noting(optimizer):
        gradients.append(size(p.grad for p in trained(run).values() if p.grad is not None))
        return step(optimizer)

    monkeypatch.setattr(Optimizer, "step", noting)
    try:
        plan(run, progress, 0)
        train_step(run, progress, 0)
        found = {"value model weights": size(held(run)), **trained_by(run)}
    finally:
        built.close()
    assert {name: parts.get(name, 0) for name in found} == found
    of_it = parts["value model gradients"]
    assert gradients == ([of_it] if run.critic is None else [of_it, 0])
