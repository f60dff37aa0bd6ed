"""Runs in bfloat16: what they leave behind, how they go on, and what they are refused."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import low_precision
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import winnow
from chat_templates import render_here
from refusals import refused
from winnow.config_file import validate
from winnow.errors import ConfigError, RunFolderError
from winnow.state.logbook import read_metrics
from winnow.training.budget import plan_devices
from winnow.training.resolve import resolve_members, with_dtype

ROUNDED = {"dtype": "bfloat16"}
PURE = {"master_weights": False, "stochastic_rounding": True}
WAYS = {"masters": {}, "offset": {"master_offset": True}, "rounded": PURE}


@pytest.fixture(scope="module")
def settings(tiny_folder):
    """settings(FOLDER, ...): a run of a random policy."""

    def made(output: Path, *, steps: int = 2, **optimizer: object) -> dict:
        return low_precision.settings(
            output,
            steps=steps,
            # Random float32 masters are everywhere in their cells; the bundled policy is on float16's grid
            model={"path": "bundled" if "master_offset" in optimizer else str(tiny_folder("qwen2")), **ROUNDED},
            prompt={"template": "question_only"},
            evaluate={"problems": 1, "rollouts_per_prompt": 1, "greedy": False},
            checkpoint={"every": 1, "keep_last": 9},
            optimizer=optimizer,
        )

    return made


def tensors(folder: Path, step: int) -> dict[str, torch.Tensor]:
    saved = folder / "checkpoints" / f"step-{step:06}"
    return {**load_file(saved / "model.safetensors"), **load_file(saved / "trainer.tensors")}


@pytest.fixture(scope="module")
def straight(settings, tmp_path_factory):
    """The folder of a run in either way, which several tests read."""
    folder = tmp_path_factory.mktemp("straight")
    return functools.cache(lambda way: winnow.train(**settings(folder / way, **WAYS[way])).folder)


@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_run_ends_with_the_same_bits(way, settings, straight, tmp_path):
    low_precision.broken_off(straight(way), tmp_path / "resumed", steps=2)
    winnow.train(**settings(tmp_path / "resumed", **WAYS[way]), resume=True)
    low_precision.check_same_bits(tensors(straight(way), 2), tensors(tmp_path / "resumed", 2))
    logged = [
        [{name: row[name] for name in row if name.startswith("policy/move_")} for row in read_metrics(folder)][:2]
        for folder in (straight(way), tmp_path / "resumed")
    ]
    assert logged[0] == logged[1]
    assert [set(row) for row in logged[0]] == [{"policy/move_followed", "policy/move_noise"}] * 2


def test_the_model_folder_is_the_masters_rounded(straight, tiny_folder):
    run = straight("masters")
    model = AutoModelForCausalLM.from_pretrained(run / "checkpoints" / "step-000002", dtype="auto")
    assert model.dtype == torch.bfloat16
    saved, moved = tensors(run, 2), 0
    before = load_file(tiny_folder("qwen2") / "model.safetensors")
    for name, parameter in model.named_parameters():
        master = saved[f"{name}/master"]
        assert master.dtype == torch.float32
        assert torch.equal(master.bfloat16(), parameter)
        moved += int((master != before[name]).sum())
    assert moved > 0.5 * model.num_parameters(), "and not only where a step is larger than a rounding"


def test_the_precision_that_auto_stands_for_is_written_down(settings, tiny_folder, tmp_path):
    keys = settings(tmp_path / "run", steps=1) | {"model": str(tiny_folder("qwen2"))}
    winnow.train(**keys)
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["config"]["model"]["dtype"] == "float32"
    with refused(RunFolderError, "model.dtype", "float32", "bfloat16", code="run_folder.changed"):
        winnow.train(**settings(tmp_path / "run", steps=2), resume=True)


def test_an_evaluation_is_of_the_policy_and_not_of_a_rounded_copy(settings, tmp_path, monkeypatch):
    """Before the first update it is that of a run without a copy. Where there is no room, it is of the copy; each row
    of the log has the bits of what was sampled on.
    """
    render_here(monkeypatch)
    found = {}
    for name, options, room in (("own", {}, True), ("exact", ROUNDED, True), ("copy", ROUNDED, False)):
        monkeypatch.setattr("winnow.training.build.plan_devices", with_room(room=room))
        keys = settings(tmp_path / name, steps=1) | {"model": {"path": "bundled", "dtype": "float32"}, "prompt": {}}
        rollout = {**keys["rollout"], "engine": {"use": "native", **options}}
        evaluate = {"problems": 24, "rollouts_per_prompt": 4}
        result = winnow.train(**{**keys, "rollout": rollout, "evaluate": evaluate})
        found[name] = [row for row in read_metrics(result.folder) if "eval/accuracy_sampled" in row]
    measured = ("eval/accuracy_sampled", "eval/length_mean", "eval/reward_mean", "eval/accuracy_greedy")
    first = {name: [rows[0][key] for key in measured] for name, rows in found.items()}
    assert first["own"] == first["exact"] != first["copy"]
    assert [[row.get("eval/weight_bits") for row in found[name]] for name in found] == [[None] * 2, [32] * 2, [16] * 2]


def with_room(*, room):
    def planned(*arguments, **options):
        return dataclasses.replace(plan_devices(*arguments, **options), exact_evaluation=room)

    return planned


@pytest.mark.parametrize(
    ("device", "cuda", "dtype"),
    [("auto", True, "bfloat16"), ("auto", False, "float32"), ("cpu", True, "float32"), ("cuda", False, "bfloat16")],
)
def test_auto_is_bfloat16_on_cuda_and_float32_elsewhere(device, cuda, dtype):
    assert with_dtype(validate({"device": device}), cuda=cuda).model.dtype == dtype
    named = validate({"device": device, "model": {"dtype": "float64"}})
    assert with_dtype(named, cuda=cuda) is named


@pytest.mark.parametrize(
    ("model", "optimizer", "named"),
    [
        ({"dtype": "bfloat16"}, {"master_weights": False}, ("optimizer.master_weights", "model.dtype", "bfloat16")),
        ({"dtype": "bfloat16"}, {"stochastic_rounding": True}, ("optimizer.master_weights",)),
        ({"dtype": "float32"}, PURE, ("optimizer.stochastic_rounding", "model.dtype", "float32")),
        ({"dtype": "bfloat16", "lora": {}}, PURE, ("optimizer.stochastic_rounding", "lora")),
        ({"dtype": "float32"}, {"master_offset": True}, ("optimizer.master_offset", "bfloat16")),
        ({"dtype": "bfloat16", "lora": {}}, {"master_offset": True}, ("optimizer.master_offset", "lora")),
        ({"dtype": "bfloat16"}, {**PURE, "master_offset": True}, ("optimizer.master_offset", "master_weights")),
    ],
)
def test_what_would_round_updates_away_or_nothing_is_refused(model, optimizer, named):
    config = validate({"device": "cpu", "model": {"path": "bundled", **model}, "optimizer": optimizer})
    with refused(ConfigError, *named):
        resolve_members(config, base=Path())
