"""The memory plan beside torch's tracker, operations and exchanged bytes beside formulas, for a rehearsed update."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from refusals import refused
from winnow import ranks
from winnow.commands import app
from winnow.commands.check.proof import prove
from winnow.commands.check.rehearsal import full_batch, rehearsal
from winnow.config_file import validate
from winnow.errors import ConfigError
from winnow.training.budget import demand_of, log_probs_needed
from winnow.training.resolve import resolve_members

H, INTER, LAYERS, HEADS, KEYS, V = 256, 768, 2, 8, 2, 65_536
PROMPT, ROW = 8, 256  # tokens of the longest prompt, and with its completion
SHAPE = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": H,
    "intermediate_size": INTER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEYS,
    "vocab_size": V,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
}
STEP = {
    "select": "all",
    "prompt": {"max_prompt_tokens": PROMPT},
    "rollout": {"prompts_per_step": 64, "rollouts_per_prompt": 16, "max_new_tokens": ROW - PROMPT},
    "update": {"tokens_per_micro_batch": 8 * ROW, "updates_per_step": 2},
    "ranks": {"learner": "sharded"},
}
MATRICES = LAYERS * (2 * H * H + 2 * H * (H // HEADS * KEYS) + 3 * H * INTER)  # numbers in the layers' matrices
ROOT = 2 * V * H + H  # numbers outside the layers
NUMBERS = MATRICES + LAYERS * (2 * H + H + 2 * (H // HEADS * KEYS)) + ROOT  # norms and biases too


def demand(folder, number, **keys):
    """What rank 0 of `number` demands, with the policy's needs."""
    (folder / "config.json").write_text(json.dumps(SHAPE))
    config = copy.deepcopy({**STEP, **keys})
    config.setdefault("model", {})["path"] = str(folder)
    members = resolve_members(validate(config), base=Path())
    made = demand_of(members, torch.device("cpu"), longest_prompt=PROMPT, planned_ranks=number)
    return made, log_probs_needed(members)


def proved(folder, number, **keys):
    made, needs = demand(folder, number, **keys)
    return prove(made, needs=needs)


def differ(found):
    """Parts of the plan that differ from what the tracker found by more than 5%."""
    assert {"parameters", "moments", "update: gradients", "update: activations", "update: peak"} <= {
        row.name for row in found.rows
    }
    assert all(row.tracked > 0 for row in found.rows)
    return {row.name: row.ratio for row in found.rows if not 0.95 <= row.ratio <= 1.05}


@pytest.mark.parametrize(
    ("number", "keys"),
    [
        pytest.param(
            1,
            {"model": {"dtype": "bfloat16", "lora": {"rank": 8}}, "terms": [{"use": "kl", "coefficient": 0.1}]},
            id="adapter",
        ),
        pytest.param(
            8,
            {"model": {"dtype": "bfloat16", "lora": {"rank": 8}, "gradient_checkpointing": "selective"}},
            id="checkpointed adapter",
            marks=pytest.mark.slow,  # the adapter is above, and shares of 8 ranks are below
        ),
    ],
)
def test_an_adapter_s_parts_are_what_torch_tracks(number, keys, tmp_path):
    found = proved(tmp_path, number, **keys)
    assert found.tracker == ("MemTracker" if number == 1 else "FSDPMemTracker")
    assert "value update: peak" not in {row.name for row in found.rows}
    assert differ(found) == {}


def check_exchanged(found):
    """A sharded policy. In bfloat16: the layers' weights twice and the others once. In float32: all gradients, and the
    masters.
    """
    assert found.tracker == "FSDPMemTracker"
    passes = {each.name: each for each in found.passes}
    update = passes["update"]
    assert update.gathered == 2 * (2 * NUMBERS - ROOT)
    assert (update.scattered, update.reduced) == (4 * NUMBERS, 0)
    assert passes["old log-probs"].gathered == 2 * NUMBERS


def test_a_value_model_s_parts_are_what_torch_tracks(tmp_path):
    """Sharded, as the policy beside it, whose passes exchange what FSDP2 does."""
    model = {"dtype": "bfloat16", "gradient_checkpointing": "selective"}
    found = proved(tmp_path, 8, model=model, advantage="gae", critic={"form": "model"})
    assert "value update: peak" in {row.name for row in found.rows}
    assert differ(found) == {}
    check_exchanged(found)


@pytest.mark.slow  # a sharded policy is above, for 8 ranks; test_footprint.py measures activations of "full"
def test_a_sharded_pass_has_the_parts_and_exchanges_what_fsdp2_does(tmp_path):
    found = proved(tmp_path, 4, model={"dtype": "bfloat16", "gradient_checkpointing": "full"})
    assert "value update: peak" not in {row.name for row in found.rows}
    assert differ(found) == {}
    check_exchanged(found)


def test_without_masters_the_parts_and_the_operations(tmp_path):
    """6 operations per number of the matrices and token, and those of attention. 8 rows of 256 tokens, of which the
    last predicts nothing. The head's logits are computed twice. Attention takes 2 products of [S, S] forward and 5
    backward.
    """
    rounding = {"master_weights": False, "stochastic_rounding": True}
    update = proved(tmp_path, 1, model={"dtype": "bfloat16"}, optimizer=rounding)
    assert update.tracker == "MemTracker"
    assert differ(update) == {}
    tokens, completions, attention = 8 * (ROW - 1), 8 * (ROW - PROMPT), LAYERS * 8 * 2 * (ROW - 1) ** 2 * H
    passes = {each.name: each for each in update.passes}
    found = passes["update"]
    assert found.tokens == tokens
    by_hand = 6 * MATRICES * tokens + 8 * V * H * completions + 7 * attention
    assert found.operations == pytest.approx(by_hand, rel=0.02)
    forward = 2 * MATRICES * tokens + 2 * V * H * completions + 2 * attention
    assert passes["old log-probs"].operations == pytest.approx(forward, rel=0.02)
    assert (found.gathered, found.scattered, found.reduced) == (0, 0, 0)
    prefill = passes["prefill"]
    assert prefill.tokens == 8 * PROMPT
    by_hand = 2 * MATRICES * 8 * PROMPT + 2 * V * H * 8 + 4 * LAYERS * 8 * PROMPT**2 * H
    assert prefill.operations == pytest.approx(by_hand, rel=0.02)
    assert "probe" not in passes


def test_operations_of_a_probe(tmp_path):
    """A forward pass, and back to the embedding without the parameters' gradients: 4 per number of the layers, and of
    the head for each completion token. Attention takes 2 products forward and 5 backward.
    """
    (found,) = [each for each in proved(tmp_path, 1, allocate="gvm").passes if each.name == "probe"]
    tokens, completions, attention = 8 * (ROW - 1), 8 * (ROW - PROMPT), LAYERS * 8 * 2 * (ROW - 1) ** 2 * H
    by_hand = 4 * (MATRICES * tokens + V * H * completions) + 7 * attention
    assert found.operations == pytest.approx(by_hand, rel=0.02)


def test_a_rehearsal_ends_without_a_group_and_within_its_time(tmp_path):
    made, needs = demand(tmp_path, 4)
    with refused(ConfigError, code="config.unsupported"):
        prove(made, needs=needs, limit=0.0)
    assert ranks.count() == 1
    assert not torch.distributed.is_initialized()


def test_simulated_ranks_all_have_this_rank_s_items():
    with ranks.simulated(3):
        assert (ranks.rank(), ranks.count()) == (0, 3)
        assert ranks.gather_from_all("a") == ["a", "a", "a"]
    assert ranks.count() == 1


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"optimizer": {"moments": "8bit"}}, "optimizer.moments"),
        ({"advantage": "gae", "critic": {"optimizer": {"moments": "8bit"}}}, "critic.optimizer.moments"),
        ({"model": {"dtype": "bfloat16", "lora": {"rank": 2}, "quantization": "nf4"}}, "model.quantization"),
    ],
)
def test_kernels_that_need_numbers_are_refused(keys, named, tmp_path):
    made, needs = demand(tmp_path, 1, **keys)
    with refused(ConfigError, named, code="config.unsupported"), rehearsal(made, needs=needs):
        pass


@pytest.mark.parametrize(("tokens", "rows", "length"), [(1000, 10, 100), (950, 10, 95), (40, 1, 40), (199, 2, 99)])
def test_a_full_micro_batch_has_rows_of_one_length(tokens, rows, length):
    config = validate({"rollout": {"max_new_tokens": 60}})
    batch = full_batch(config, prompt_tokens=40, tokens=tokens, number=3)
    lengths = [len(s.prompt.tokens) + len(s.rollout.tokens) for s in batch.sequences]
    assert lengths == [length] * 3 * rows


def test_check_prints_the_proof(tmp_path):
    (tmp_path / "run.toml").write_text(
        'task = { use = "arithmetic", size = 64 }\ndevice = "cpu"\nupdate.tokens_per_micro_batch = 600\n'
        "verify.workers = 0\n"
    )
    shown = CliRunner().invoke(app, ["check", str(tmp_path / "run.toml"), "--prove"])
    assert shown.exit_code == 0
    assert "MemTracker" in shown.stdout
    assert "update: activations" in shown.stdout
    assert CliRunner().invoke(app, ["check", str(tmp_path / "run.toml"), "--prove", "--prove-minutes=0"]).exit_code == 2
