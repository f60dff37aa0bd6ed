"""Runs of `deterministic = true` where there is no GPU: they are what they are without it, and a resume keeps to it."""

from __future__ import annotations

import json

import torch
from safetensors.torch import load_file

import winnow
from refusals import refused
from winnow.errors import RunFolderError
from winnow.models.device import WORKSPACE, set_deterministic


def weights(folder):
    saved = folder / "checkpoints" / "step-000002"
    return {**load_file(saved / "model.safetensors"), **load_file(saved / "trainer.tensors")}


def test_torch_s_repeatable_algorithms_change_no_bit_on_a_cpu(tmp_path, smallest, monkeypatch):
    monkeypatch.setenv(WORKSPACE, ":4096:8")
    keys = {"update": {"epochs": 2}, "terms": [{"use": "entropy", "coefficient": 0.01}], "allocate": "gvm"}
    winnow.train(**smallest(output=str(tmp_path / "plain"), **keys))
    set_deterministic(torch.device("cuda"), deterministic=True)
    try:
        winnow.train(**smallest(output=str(tmp_path / "told"), deterministic=True, **keys))
        assert torch.are_deterministic_algorithms_enabled(), "every operation of the run was checked by torch"
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False
    plain, told = weights(tmp_path / "plain"), weights(tmp_path / "told")
    assert plain.keys() == told.keys()
    assert all(torch.equal(value, told[name]) for name, value in plain.items())


def test_a_resume_keeps_to_it(tmp_path, smallest):
    winnow.train(**smallest(deterministic=True))
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["config"]["deterministic"] is True
    with refused(RunFolderError, "deterministic", True, False, code="run_folder.changed"):
        winnow.train(**smallest(steps=3), resume=True)
