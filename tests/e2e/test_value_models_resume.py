"""Law 6 with a value model: a run that ends at any point goes on to the same bits, and no checkpoint is taken for one
that holds the value model it lacks.
"""

from __future__ import annotations

import functools
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


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Where the runs are that are trained once."""
    return tmp_path_factory.mktemp("value_models")


@pytest.fixture(scope="module")
def trained_in(smallest_in, home):
    """trained_in(FOLDER, FORM, NAME, ...): a run of two steps with a value model of the form, or of none, there."""
    smallest = smallest_in(home)

    def train(folder, form, name, *, critic=None, resume=False, **changes):
        section, model = FORMS[form] if form else (None, {})
        own = {"optimizer": {"learning_rate": 1e-2}} if form and form != "shared" else {}
        table = {"critic": {**section, **own, **(critic or {})}} if form else {}
        base = {"advantage": "gae" if form else "grpo", "output": str(folder / name)}
        config = smallest(**{**base, "checkpoint": {"every": 1, "keep_last": 9}, "model": model, **table, **changes})
        return winnow.train(**config, resume=resume, watch=lambda event: None)

    return train


@pytest.fixture(scope="module")
def whole(trained_in, home):
    """whole(FORM): such a run, which several tests read."""
    return functools.cache(lambda form: trained_in(home, form, str(form)))


@pytest.fixture
def trained(trained_in, tmp_path):
    """trained(FORM, NAME, ...): a run in tmp_path/NAME."""
    return functools.partial(trained_in, tmp_path)


@pytest.fixture
def copied(whole, tmp_path):
    """copied(FORM, NAME, STEPS): a copy of a whole run in tmp_path/NAME, which broke off after so many steps."""

    def copy(form, name, steps=2):
        shutil.copytree(whole(form).folder, tmp_path / name)
        for step in range(steps + 1, 3):
            shutil.rmtree(tmp_path / name / "checkpoints" / f"step-{step:06}")
        return tmp_path / name / "checkpoints" / f"step-{steps:06}"

    return copy


def tensors(run, step=2):
    return load_file(Path(run.folder) / "checkpoints" / f"step-{step:06d}" / "trainer.tensors")


def of_value_model(found):
    return {name: tensor for name, tensor in found.items() if name.startswith("critic/")}


@pytest.mark.parametrize(
    "form",
    # Slow: the optimizer of "model" with the tensors of "adapter", which both go on here
    [pytest.param(form, marks=pytest.mark.slow if form == "model with lora" else ()) for form in FORMS],
)
def test_a_run_goes_on_to_the_bits_of_one_that_did_not_stop(form, whole, copied, trained):
    first = whole(form)
    copied(form, "stopped", steps=1)
    second = trained(form, "stopped", resume=True)
    for name in ("model.safetensors", "trainer.tensors", "trainer.json"):
        assert (first.model / name).read_bytes() == (second.model / name).read_bytes(), name
    for log in ("metrics.jsonl", "rollouts"):
        assert rows(first.folder / log) == rows(second.folder / log), log
    saved, now = (of_value_model(tensors(first, step)) for step in (1, 2))
    head = [name for name in saved if "value_head" in name]
    assert any(saved[name].any() for name in head), "it has learned"
    assert not all(torch.equal(saved[name], now[name]) for name in head), "and goes on"


def without_value_model(checkpoint):
    """Take the value model out of a checkpoint, whose manifest then speaks of what is left."""
    file = checkpoint / "trainer.tensors"
    left = {name: tensor.clone() for name, tensor in load_file(file).items() if not name.startswith("critic/")}
    save_file(left, file)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    data = file.read_bytes()
    manifest["files"][file.name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("form", ["shared", "model"])
def test_a_checkpoint_without_its_value_model_is_refused(form, copied, trained):
    without_value_model(copied(form, "run"))
    with refused(RunFolderError, code="run_folder.other_model"):
        trained(form, "run", steps=3, resume=True)


def test_a_resume_with_another_value_model_or_none_is_refused_by_the_key(copied, trained):
    copied("adapter", "run")
    with refused(RunFolderError, "critic.form", "adapter", "model", code="run_folder.changed"):
        trained("adapter", "run", critic={"form": "model"}, resume=True)
    copied(None, "none")
    with refused(RunFolderError, "critic", None, code="run_folder.changed"):
        trained("model", "none", resume=True)


@pytest.mark.parametrize("form", ["model", "adapter"])
def test_a_value_model_starts_as_that_of_another_run_without_its_moments(form, whole, trained):
    before = whole(form)
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


def test_a_start_from_what_has_no_such_value_model_is_refused(whole, trained, tmp_path):
    none = whole(None)
    with refused(ConfigError, none.model, key="critic.start"):
        trained("model", "run", critic={"start": str(none.model)})
    other = whole("adapter")
    with refused(ConfigError, other.model, key="critic.start"):
        trained("model", "run2", critic={"start": str(other.model)})
    with refused(ConfigError, tmp_path, key="critic.start"):
        trained("model", "run3", critic={"start": str(tmp_path)})
