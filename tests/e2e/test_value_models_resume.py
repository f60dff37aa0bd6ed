"""Law 6 with a value model: a run that ends at any point goes on to the same bits, and no checkpoint is taken for one
that holds the value model it lacks.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_resume import rows

import winnow
from forked import python
from refusals import refused
from winnow.errors import ConfigError, RunFolderError

POINTS = Path(__file__).with_name("value_kill_points.py")
LORA = {"lora": {"rank": 2, "alpha": 4.0}}
FORMS = {
    "shared": ({"form": "shared"}, {}),
    "adapter": ({"form": "adapter"}, LORA),
    "model": ({"form": "model"}, {}),
    "model with lora": ({"form": "model", **LORA}, {}),
}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("form", "points", "count"),
    [
        ("model", "few", 3),
        pytest.param("model", "all", 8, marks=pytest.mark.slow),  # of which the few are three
        pytest.param("adapter", "all", 8, marks=pytest.mark.slow),  # test_a_run_goes_on_... resumes every form
    ],
)
def test_a_run_that_is_killed_at_any_point_resumes_to_the_same_bits(form, points, count):
    done = python(POINTS, form, points, timeout=1100)
    assert done.returncode == 0, done.stderr
    lines = [line.split(" | ", maxsplit=2) for line in done.stdout.splitlines()]
    assert [line for line in lines if line[1:] != ["-9", "equal"]] == []
    assert len({name for name, _, _ in lines}) == len(lines) == count


@pytest.fixture
def trained(smallest, tmp_path):
    """trained(FORM, NAME, ...): a run of two steps with a value model of the form, or of none, in tmp_path/NAME."""

    def train(form, name, *, critic=None, resume=False, **changes):
        section, model = FORMS[form] if form else (None, {})
        own = {"optimizer": {"learning_rate": 1e-2}} if form and form != "shared" else {}
        table = {"critic": {**section, **own, **(critic or {})}} if form else {}
        base = {"advantage": "gae" if form else "grpo", "output": str(tmp_path / name)}
        config = smallest(**{**base, "checkpoint": {"every": 1, "keep_last": 9}, "model": model, **table, **changes})
        return winnow.train(**config, resume=resume, watch=lambda event: None)

    return train


def tensors(run, step=2):
    return load_file(Path(run.folder) / "checkpoints" / f"step-{step:06d}" / "trainer.safetensors")


def of_value_model(found):
    return {name: tensor for name, tensor in found.items() if name.startswith("critic/")}


@pytest.mark.parametrize("form", FORMS)
def test_a_run_goes_on_to_the_bits_of_one_that_did_not_stop(form, trained, tmp_path):
    whole = trained(form, "whole", steps=3)
    shutil.copytree(whole.folder, tmp_path / "stopped")
    shutil.rmtree(tmp_path / "stopped" / "checkpoints" / "step-000003")
    second = trained(form, "stopped", steps=3, resume=True)
    for name in ("model.safetensors", "trainer.safetensors", "trainer.json"):
        assert (whole.model / name).read_bytes() == (second.model / name).read_bytes(), name
    for log in ("metrics.jsonl", "rollouts"):
        assert rows(whole.folder / log) == rows(second.folder / log), log
    saved, now = (of_value_model(tensors(whole, step)) for step in (2, 3))
    head = [name for name in saved if "value_head" in name]
    assert any(saved[name].any() for name in head), "it has learned"
    assert not all(torch.equal(saved[name], now[name]) for name in head), "and goes on"


def without_value_model(checkpoint):
    """Take the value model out of a checkpoint, whose manifest then speaks of what is left."""
    file = checkpoint / "trainer.safetensors"
    left = {name: tensor.clone() for name, tensor in load_file(file).items() if not name.startswith("critic/")}
    save_file(left, file)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    data = file.read_bytes()
    manifest["files"][file.name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("form", ["shared", "model"])
def test_a_checkpoint_without_its_value_model_is_refused(form, trained):
    run = trained(form, "run", steps=1)
    without_value_model(run.model)
    with refused(RunFolderError, code="run_folder.other_model"):
        trained(form, "run", steps=2, resume=True)


def test_a_resume_with_another_value_model_or_none_is_refused_by_the_key(trained):
    trained("adapter", "run", steps=1)
    with refused(RunFolderError, "critic.form", "adapter", "model", code="run_folder.changed"):
        trained("adapter", "run", critic={"form": "model"}, resume=True)
    trained(None, "none", steps=1)
    with refused(RunFolderError, "critic", None, code="run_folder.changed"):
        trained("model", "none", resume=True)


@pytest.mark.parametrize("form", ["model", "adapter"])
def test_a_value_model_starts_as_that_of_another_run_without_its_moments(form, trained):
    before = trained(form, "before")
    held = {"start": str(before.model), "pretraining_steps": 1, "optimizer": {"learning_rate": 1e-30}}
    after = trained(form, "after", critic=held, steps=1)
    was, now = of_value_model(tensors(before)), of_value_model(tensors(after, 1))
    parameters = [name for name in was if name.startswith("critic/parameter/")]
    assert parameters
    for name in parameters:
        torch.testing.assert_close(now[name], was[name], rtol=0, atol=1e-12, msg=name)
    moments = [name for name in was if name.endswith("exp_avg_sq")]
    assert moments
    assert not any(torch.equal(now[name], was[name]) for name in moments)


def test_a_start_from_what_has_no_such_value_model_is_refused(trained, tmp_path):
    none = trained(None, "none", steps=1)
    with refused(ConfigError, none.model, key="critic.start"):
        trained("model", "run", critic={"start": str(none.model)})
    other = trained("adapter", "other", steps=1)
    with refused(ConfigError, other.model, key="critic.start"):
        trained("model", "run2", critic={"start": str(other.model)})
    with refused(ConfigError, tmp_path, key="critic.start"):
        trained("model", "run3", critic={"start": str(tmp_path)})
