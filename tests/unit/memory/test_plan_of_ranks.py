"""Several ranks: refused settings, advice, and `check`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from memory_plans import planned, sizes
from refusals import refused
from winnow.commands import app
from winnow.config_file import validate
from winnow.errors import ConfigError
from winnow.memory.parts import rank_advice
from winnow.training.advice import advice
from winnow.training.budget import budget
from winnow.training.resolve import resolve_members

GIB = 2**30


SHARDED = {"learner": "sharded"}


def refusal(count, **keys):
    found = planned(ranks_of=count, device="cuda", memory=GIB, **keys)
    with refused(ConfigError, code="config.memory") as caught:
        found.check(lambda device: sizes(found, "always").get("decoding copy", 0))
    return caught.value.remedy


SMALL = {
    "select": "all",
    "rollout": {"prompts_per_step": 1, "rollouts_per_prompt": 2, "max_new_tokens": 1},
    "evaluate": {"problems": 1},
}


def test_advice_for_memory_includes_shares_and_more_ranks():
    assert "ranks.learner = 'sharded'" in refusal(1, **SMALL)
    assert "ranks.learner = 'sharded'" in refusal(2, **SMALL)
    sharded = refusal(2, ranks=SHARDED, **SMALL)
    assert rank_advice(SimpleNamespace(device="cuda:0", ranks=2)) in sharded
    assert "rollout.engine = 'vllm'" in sharded
    assert "ranks.learner" not in refusal(2, optimizer={"moments": "8bit"}, **SMALL)


def test_vllm_merges_no_adapter_of_a_sharded_policy():
    engine = {"use": "vllm", "process": "own", "device": "cuda:2"}
    keys = {"model": {"lora": {"rank": 8}}, "rollout": {**SMALL["rollout"], "engine": engine}, "device": "cuda"}
    replicated = sizes(planned(ranks_of=2, memory=80 * GIB, **{**SMALL, **keys}), "generate")
    assert 0 < replicated["one weight to send"] < 2 * 2**20  # of a policy of 2 MB
    sharded = planned(ranks_of=2, memory=80 * GIB, ranks=SHARDED, **{**SMALL, **keys})
    assert "one weight to send" not in sizes(sharded, "generate")


QWEN_14B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 13_824,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "vocab_size": 152_064,
    "tie_word_embeddings": False,
    "max_position_embeddings": 32_768,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
}


def test_14b_fits_eight_devices_of_80_gib_as_no_rank_loads_it_whole(tmp_path):
    """Of 14.77 billion parameters a rank has an eighth of the masters and moments, 12 bytes each, and of the starts of
    one master in 64. It has a copy of 2 bytes to decode on. Whole, weights and masters would take 6 bytes each.
    """
    (tmp_path / "config.json").write_text(json.dumps(QWEN_14B))
    model = {"path": str(tmp_path), "dtype": "bfloat16", "gradient_checkpointing": "full"}
    keys = {"ranks_of": 8, "device": "cuda", "memory": 80 * GIB, "model": model, "ranks": SHARDED}
    plan = planned(**keys, rollout={"max_new_tokens": 1024}, update={"tokens_per_micro_batch": 8192})
    plan.check(lambda device: 80 * GIB if device.startswith("cuda") else None)
    always = sizes(plan, "always")
    numbers = always["decoding copy"] / 2
    assert numbers == pytest.approx(14.77e9, rel=1e-3)
    shares = always["share of the weights"] + always["share of the optimizer"]
    assert shares == pytest.approx((12 + 4 / 64) * numbers / 8, rel=1e-3)
    assert (6 + 2) * numbers > 80 * GIB
    assert plan.writer_bytes("cpu") == 152_064 * 5120 * (4 + 2)  # an embedding, gathered and rounded


UNSHARED = [
    ({"model": {"dtype": "bfloat16", "lora": {"rank": 2}, "quantization": "nf4"}}, "model.quantization = 'nf4'"),
    ({"optimizer": {"moments": "8bit"}}, "optimizer.moments = '8bit'"),
    (
        {"model": {"dtype": "bfloat16"}, "optimizer": {"stochastic_rounding": True, "master_weights": False}},
        "optimizer.stochastic_rounding",
    ),
    (
        {"critic": {"form": "model", "optimizer": {"moments": "8bit"}}, "advantage": "gae"},
        "critic.optimizer.moments = '8bit'",
    ),
]


@pytest.mark.parametrize(("keys", "named"), UNSHARED)
def test_settings_that_cannot_be_sharded_are_refused_with_several_ranks(keys, named, monkeypatch):
    config = validate({**keys, "ranks": SHARDED})
    resolve_members(config, Path())
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused(
        ConfigError, named, "ranks.learner = 'sharded'", "ranks.learner = 'replicated'", key=named.partition(" ")[0]
    ):
        resolve_members(config, Path())
    resolve_members(validate(keys), Path())


def advised(count, **keys):
    members = resolve_members(validate({"rollout": {"max_rollouts_at_once": 512}, **keys}), Path())
    return list(advice(members, budget(members), count))


@pytest.mark.parametrize(
    ("ranks", "keys", "names"),
    [
        (64, {}, ["rollout.prompts_per_step = 32", "64", "32 ranks"]),
        (33, {}, ["rollout.prompts_per_step = 32", "1 rank ", "at least 33"]),
        (5, {}, ["rollout.prompts_per_step = 32", "5 ranks", "7 and 6", "9%", "30 or 35"]),
        (2, {"checkpoint": {"on_signal": "now"}}, ["checkpoint.on_signal = 'now'", "'step'", "2 ranks"]),
    ],
)
def test_advice_on_the_number_of_ranks(ranks, keys, names):
    (advice_text,) = advised(ranks, **keys)
    assert all(name in advice_text for name in names), advice_text
    assert advised(1, **keys) == []


def test_no_advice_for_equal_shares_of_prompts_or_uneven_counts():
    assert advised(4) == advised(32) == []
    assert advised(5, allocate="gvm_online", weighting="prompt") == []


def checked(tmp_path, *arguments):
    few = 'task = { use = "arithmetic", size = 64 }\ndevice = "cpu"\nverify = { workers = 0 }\n'  # no process of golds
    (tmp_path / "run.toml").write_text(few)
    return CliRunner().invoke(app, ["check", str(tmp_path / "run.toml"), *arguments])


def test_check_plans_a_run_of_ranks_that_has_not_begun(tmp_path):
    shown = checked(tmp_path, "--ranks", "3", "--set=ranks.learner=sharded").stdout
    assert planned(ranks_of=3, ranks=SHARDED, verify={"workers": 0}).jobs in shown
    assert "one tensor of a checkpoint 256 KiB" in shown  # the embedding of 512 x 128 in float32
    assert "11 and 10" in shown  # prompts of a step that a rank is dealt
    refused = checked(tmp_path, "--ranks", "3", "--set=ranks.learner=sharded", "--set=optimizer.moments=8bit")
    assert refused.exit_code == 2
    assert "optimizer.moments" in refused.stderr
    assert checked(tmp_path, "--ranks", "0").exit_code == 2
