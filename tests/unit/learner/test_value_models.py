"""Values of every form are those of each sequence read alone, however sequences are laid out and cut into batches."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from exact_norms import float64_norms
from value_models import FORMS, ValueModels, taught
from winnow.learner.value_model import ValueModel
from winnow.records import Batch

sys.path.insert(0, str(Path(__file__).parents[2] / "ranks"))

from update_cases import sequences

SOME = sequences((3, 2, 1), 7)  # of prompts and completions of several lengths; one token is not trained
LAYOUTS = [("padded", 4096), ("padded", 30), ("shared", 4096), ("packed", 4096), ("packed", 30)]


@pytest.fixture(params=FORMS)
def models(request, tiny_folder):
    """A form's maker: models(layout, tokens per micro-batch)."""
    form = FORMS[request.param]

    def make(layout="padded", tokens=4096):
        base = {"model": {"path": str(tiny_folder("qwen2"))}}
        update = {"layout": "packed" if layout == "packed" else "padded", "tokens_per_micro_batch": tokens}
        made = ValueModels({**form, "model": {**base["model"], **form.get("model", {})}, "update": update})
        made.trained.model.layout = layout
        return made

    with float64_norms():
        yield make


@torch.no_grad()
def alone(made, sequence):
    """[L] by the definition: the head on the state of the token before each completion token, and no other sequence."""
    model = made.trained.model
    tokens = torch.from_numpy(np.concatenate([sequence.prompt.tokens, sequence.rollout.tokens]))[None]
    on = model.active() if isinstance(model, ValueModel) else contextlib.nullcontext()
    with on:
        hidden = model.module.parts.backbone(input_ids=tokens, use_cache=False).last_hidden_state[0]
    before = len(sequence.prompt.tokens) - 1
    head = model.module.value_head
    return (hidden[before : before + len(sequence.rollout.tokens)] @ head.weight[0] + head.bias).numpy()


def gradients(made, batch):
    for mb in made.trained.micro_batches(batch):
        made.trained.backward(made.loss(mb).total)
    found = {name: p.grad.numpy().copy() for name, p in made.parameters.items() if p.grad is not None}
    assert any("layers.0." in name for name in found), "the loss reaches the first layer"
    return found


def relative(found, expected):
    assert found.keys() == expected.keys()
    apart = sum(np.square(found[name] - expected[name]).sum() for name in found)
    return np.sqrt(apart / sum(np.square(array).sum() for array in expected.values()))


def test_a_value_precedes_its_token_in_every_layout(models):
    one = models("padded", 1)  # a sequence per micro-batch
    expected = {sequence.key: alone(one, sequence) for sequence in SOME}
    assert np.std(np.concatenate(list(expected.values()))) > 0.01
    batch = Batch(epoch=0, sequences=tuple(taught(SOME, expected)))
    slope = gradients(one, batch)
    for layout, tokens in LAYOUTS:
        made = models(layout, tokens)
        found = made.trained.values(SOME)
        assert found.keys() == expected.keys()
        for key in expected:
            np.testing.assert_allclose(found[key], expected[key], rtol=0, atol=1e-12, err_msg=f"{layout} {tokens}")
        assert relative(gradients(made, batch), slope) < 1e-12, (layout, tokens)
