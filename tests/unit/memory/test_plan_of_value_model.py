"""A value model: advice on its memory, and `check`."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from memory_plans import LORA, planned_with
from published_models import make
from refusals import check_printed_error, refused
from winnow.commands import app
from winnow.errors import ConfigError, DataError
from winnow.memory.parts import rank_advice

GIB = 2**30


SHARDED = {"ranks": {"learner": "sharded"}}


def refusal(form, **keys):
    """Of a card that has next to nothing, and a step so small that what is held counts."""
    few = {"prompts_per_step": 1, "rollouts_per_prompt": 2, "max_new_tokens": 1}
    plan = planned_with(form, device="cuda", memory=GIB, rollout=few, **keys)
    with refused(ConfigError, code="config.memory") as caught:
        plan.check(lambda device: 0)
    return caught.value


def test_advice_for_memory_includes_another_form_or_an_adapter():
    error = refusal("model")
    assert "value model optimizer" in error.problem
    for remedy in ("critic.lora", "critic.form = 'shared'", "critic.optimizer.moments = '8bit'"):
        assert remedy in error.remedy
    assert "critic.lora" not in refusal("model", critic={"lora": LORA}).remedy
    assert "critic" not in str(refusal("shared"))
    assert "ranks.learner" in error.remedy
    assert "ranks.learner" not in refusal("model", critic={"optimizer": {"moments": "8bit"}}).remedy
    assert rank_advice(SimpleNamespace(device="cuda:0", ranks=2)) in refusal("model", ranks_of=2, **SHARDED).remedy


def checked(tmp_path, *arguments, critic='form = "model"'):
    few = 'task = { use = "arithmetic", size = 64 }\ndevice = "cpu"\nverify = { workers = 0 }\n'  # no process of golds
    (tmp_path / "run.toml").write_text(f'{few}advantage = "gae"\n[critic]\n{critic}\n')
    return CliRunner().invoke(app, ["check", str(tmp_path / "run.toml"), *arguments])


def test_check_refuses_to_start_from_a_run_without_a_value_model(tmp_path):
    for name in ("a/exp_avg", "critic/value_head.weight"):  # without one, and with a head on the policy's backbone
        save_file({name: torch.zeros(1)}, tmp_path / "trainer.tensors")
        shown = checked(tmp_path, critic=f'form = "model"\nstart = "{tmp_path}"')
        check_printed_error(shown, tmp_path, code="config.value")
    (tmp_path / "trainer.tensors").write_bytes(b"no tensors")
    check_printed_error(
        checked(tmp_path, critic=f'form = "model"\nstart = "{tmp_path}"'), tmp_path, code="config.value"
    )


def test_check_names_its_parts_and_where_it_is(tmp_path):
    shown = checked(tmp_path, "--ranks", "2").stdout
    assert planned_with("model", ranks_of=2, verify={"workers": 0}).jobs in shown
    for name_and_size in ("value model weights 1.9 MiB", "value model optimizer 3.9 MiB", "forward pass for values"):
        assert name_and_size in shown
    small = checked(tmp_path, "--set=device=cuda", "--memory", "100MiB")
    assert small.exit_code == 2
    assert "cuda:0" in small.stderr
    assert "100 MiB" in small.stderr


def test_a_folder_that_is_no_model_is_named_by_its_key(tmp_path):
    with refused(DataError, tmp_path / "nothing", key="critic.path", code="data.missing"):
        planned_with("model", critic={"path": str(tmp_path / "nothing")})
    shown = checked(tmp_path, critic=f'path = "{tmp_path}/nothing"')
    assert shown.exit_code == 2
    assert shown.stderr.startswith("error (data.missing): critic.path: ")
    with refused(ConfigError, "['nope']", key="critic.lora.targets", code="config.unsupported"):
        planned_with("model", critic={"lora": {"targets": ["nope"]}})


def test_check_refuses_another_vocabulary_and_downloads_no_critic(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where owner/name is no folder
    (tmp_path / "math").mkdir()
    foreign = checked(tmp_path, critic=f'path = "{make("qwen2.5-math", tmp_path / "math")}"')
    assert foreign.exit_code == 2
    assert "critic.path" in foreign.stderr
    assert "vocabulary" in foreign.stderr
    noted = checked(tmp_path, critic='path = "owner/name"')
    assert noted.exit_code == 0
    assert "'owner/name'" in noted.stdout
    assert "memory  " not in noted.stdout
