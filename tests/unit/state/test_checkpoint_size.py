"""The size of a checkpoint is planned before the first one; its contents are deterministic and do not grow forever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import winnow
from refusals import refused
from winnow.config_file import validate
from winnow.core.events import Started
from winnow.errors import RunFolderError
from winnow.models.adapter import add_lora
from winnow.models.load import load
from winnow.models.save import write_model_folder
from winnow.state.history import unpacked
from winnow.training.budget import plan_devices
from winnow.training.fit import fit
from winnow.training.resolve import resolve_members

LITTLE = {"problems": 1, "rollouts_per_prompt": 1, "greedy": False}  # an evaluation
LORA = {"lora": {"rank": 2, "alpha": 4.0}}
KL = [{"use": "kl", "coefficient": 0.01}]
PROBE = {"every": 1, "rollouts_per_prompt": 2, "gradient_norm": "none", "outer_reset": "both"}


def changes(name):
    return {
        "full": {},
        "tied bfloat16": {"model": {"dtype": "bfloat16"}, "arch": "llama"},
        "adapter": {"model": LORA},
        "adapter in bfloat16": {"model": {**LORA, "dtype": "bfloat16"}},
        "reference that moves": {"terms": KL, "allocate": "gvm", "probe": PROBE},
        "adapter's reference that moves": {"model": LORA, "terms": KL, "allocate": "gvm", "probe": PROBE},
        "reference that stays": {"terms": KL},
        "value head": {"advantage": "gae", "critic": {"form": "shared"}, "model": {"dtype": "bfloat16"}},
        "value model's adapter": {"advantage": "gae", "critic": {"form": "adapter"}, "model": LORA},
        "value model": {"advantage": "gae", "critic": {"form": "model"}, "model": {"dtype": "bfloat16"}},
    }[name]


@pytest.mark.parametrize(
    "name",
    [
        "full",
        "tied bfloat16",
        "adapter",
        "adapter in bfloat16",
        "reference that moves",
        "adapter's reference that moves",
        "reference that stays",
        "value head",
        "value model's adapter",
        "value model",
    ],
)
def test_the_planned_size_of_a_checkpoint_is_that_of_its_tensors(smallest, name):
    steps = 2 if "probe" in changes(name) else 1  # the reference moves between two
    members = resolve_members(validate(smallest(steps=steps, evaluate=LITTLE, **changes(name))), base=Path())
    planned = plan_devices(members, torch.device("cpu")).checkpoint
    model = fit(members).model
    files = list(model.rglob("*tensors"))
    headers = sum(8 + int.from_bytes(path.read_bytes()[:8], "little") for path in files)
    assert planned == sum(path.stat().st_size for path in files) - headers


def test_a_disk_without_space_for_one_checkpoint_is_refused_at_the_start(smallest, tmp_path, monkeypatch):
    """The folder is still new, so with more space the same command runs."""
    events = []
    with monkeypatch.context() as small:
        small.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6 - 1000, 1000))
        with refused(RunFolderError, "0 MB", tmp_path / "run", key="output", code="run_folder.unwritable"):
            winnow.train(**smallest(), watch=events.append)
    assert not any(isinstance(event, Started) for event in events)
    winnow.train(**smallest())


@pytest.mark.parametrize("targets", ["all-linear", ("q_proj", "up_proj", "v_proj", "down_proj", "k_proj", "o_proj")])
def test_the_settings_of_an_adapter_list_its_targets_sorted(tmp_path, targets):
    """The order of a set would depend on PYTHONHASHSEED."""
    loaded = load("bundled", dtype="float32")
    adapted = add_lora(loaded.model, rank=2, alpha=4.0, targets=targets, seed=0)
    write_model_folder(adapted, loaded.files, tmp_path)
    listed = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["target_modules"]
    assert listed == sorted(listed)
    assert len(listed) == (7 if targets == "all-linear" else 6)


@pytest.mark.parametrize(
    ("keys", "remembered"),
    [
        ({}, 0),
        ({"weighting": "unbiased"}, 16),
        ({"allocate": "gvm_online"}, 16),
        ({"sample": "retire"}, 16),
        ({"allocate": "gvm", "weighting": "unbiased", "probe": {"every": 1, "gradient_norm": "none"}}, 0),
    ],
)
def test_results_of_prompts_are_stored_only_where_a_member_reads_them(smallest, keys, remembered):
    """16 problems in four steps of four: each was sampled once."""
    model = winnow.train(**smallest(steps=4, evaluate=LITTLE, **keys)).model
    history = json.loads((model / "trainer.json").read_text())["state"]["history"]
    assert len(unpacked(history["seen"].get("rows", ""), "<i4")) == remembered
    assert len(history["plan"]) == 4
