"""What each of several ranks takes: a share of the policy or all of it, its part of the work, and of a CPU's memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from refusals import refused
from winnow.algos.dealing import in_runs
from winnow.commands import app
from winnow.config_file import validate
from winnow.errors import ConfigError
from winnow.learner.gradient_sums import BUCKET, _buckets
from winnow.memory import shares
from winnow.memory.demand import step_rollouts
from winnow.memory.plan import MemoryPart, MemoryPlan
from winnow.memory.planner import _fit_part
from winnow.memory.sharded_parts import rank_advice
from winnow.training.advice import advice
from winnow.training.budget import budget
from winnow.training.device_plan import plan_devices
from winnow.training.resolve import resolve_members

GIB = 2**30
SHARDED = {"learner": "sharded"}


def planned(count, *, device="cpu", memory=None, **keys):
    members = resolve_members(validate(keys), base=Path())
    return plan_devices(members, torch.device(device), longest_prompt=20, memory=memory, planned_ranks=count)


def parts_of(plan, phase):
    return {part.name: part.bytes for part in plan.parts if part.phase == phase}


class Tiny(nn.Module):
    """An embedding of 10 x 4, two layers of 6 x 4 and 6 numbers, a table of 3 and an output layer of its own."""

    def __init__(self, *, dtype=torch.bfloat16, tied=False):
        super().__init__()
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(num_hidden_layers=2))
        self.embedding = nn.Embedding(10, 4, dtype=dtype)
        self.layers = nn.ModuleList(nn.Linear(4, 6, dtype=dtype) for _ in range(2))
        self.head = nn.Linear(4, 10, bias=False, dtype=dtype)
        if tied:
            self.head.weight = self.embedding.weight
        self.register_buffer("table", torch.zeros(3))

    def get_output_embeddings(self):
        return self.head


# Rows are rounded up: of 4 ranks the first has 3 of 10 rows and 2 of 6.
ROOT, LAYER = 2 * 3 * 4, 2 * 4 + 2


def test_a_share_is_of_rows_and_trained_in_float32():
    model, numbers = Tiny(), ROOT + 2 * LAYER
    assert shares.share_bytes(model, 4) == 4 * numbers + 3 * 4
    assert shares.gradient_share_bytes(model, 4) == 4 * numbers
    assert shares.moment_share_bytes(model, 4) == 2 * 4 * numbers + 4 * 6
    assert shares.frozen_share_bytes(model, 4) == 2 * numbers
    model.embedding.weight.requires_grad_(False)  # as it is, and never updated
    assert shares.share_bytes(model, 4) == 2 * 12 + 4 * (numbers - 12) + 3 * 4
    assert shares.gradient_share_bytes(model, 4) == 4 * (numbers - 12)


def test_the_root_and_two_layers_are_gathered_in_the_computing_precision():
    assert shares.gathered_bytes(Tiny(), 4) == 2 * 4 * (ROOT + 2 * LAYER)
    assert shares.gathered_bytes(Tiny(dtype=torch.float32), 4) == 4 * 4 * (ROOT + 2 * LAYER)
    assert shares.gathered_root_bytes(Tiny(), 4) == 2 * 4 * ROOT
    assert shares.gathered_root_bytes(Tiny(tied=True), 4) == 2 * 4 * ROOT // 2


def test_gradients_before_they_are_scattered():
    """As computed, as they are summed with rows rounded up, and the share; the output layer's waits, as computed."""
    layer, root = 30 * 2 + 4 * LAYER * 4 + LAYER * 4, 80 * 2 + 4 * ROOT * 4 + ROOT * 4
    assert shares.unscattered_bytes(Tiny(), 4) == layer
    assert shares.waiting_bytes(Tiny()) == 40 * 2
    assert shares.unscattered_root_bytes(Tiny(), 4) == root


@pytest.mark.parametrize(("most", "numbers"), [(1000, 140), (70, 70), (69, 64), (40, 30), (29, 0)])
def test_a_bucket_is_a_copy_of_several_gradients(most, numbers, monkeypatch):
    """40, 24, 6, 24, 6 and 40 numbers in their order; one that is alone is summed in place."""
    monkeypatch.setattr(shares, "BUCKET", most)
    monkeypatch.setattr("winnow.learner.gradient_sums.BUCKET", most)
    model = Tiny()
    buckets = _buckets([torch.zeros(p.shape) for p in model.parameters()])
    assert shares.bucket_bytes(model) == 4 * numbers
    assert numbers == max(sum(g.numel() for g in bucket) if len(bucket) > 1 else 0 for bucket in buckets)


def test_a_bucket_is_as_large_as_the_learner_makes_it():
    assert shares.BUCKET == BUCKET


def test_a_replicated_rank_has_all_of_the_policy_and_a_bucket():
    alone, two = planned(1), planned(2)
    for name in ("weights", "optimizer"):
        assert parts_of(two, "always")[name] == parts_of(alone, "always")[name]
    gradients = parts_of(alone, "update")["gradients"]
    assert parts_of(two, "sums") == {"gradients": gradients, "a bucket of gradients": gradients}
    assert parts_of(alone, "sums") == {}
    assert two.checkpoint == alone.checkpoint


def test_a_sharded_rank_has_a_share_and_a_copy_to_decode_on():
    """The bundled policy has 509,568 numbers, all of whose rows two ranks divide evenly, and 35 parameters."""
    terms = {"terms": [{"use": "kl", "coefficient": 0.1}]}
    whole, found = planned(2, **terms), planned(2, ranks=SHARDED, **terms)
    always, weights = parts_of(found, "always"), parts_of(whole, "always")["weights"]
    tables = weights - 4 * 509_568
    assert always["share of the weights"] == 4 * 509_568 // 2 + tables
    assert always["share of the optimizer"] == 2 * 4 * 509_568 // 2 + 4 * 38
    assert always["share of the reference"] == 4 * 509_568 // 2
    assert always["decoding copy"] == weights
    assert parts_of(found, "update")["share of the gradients"] == 4 * 509_568 // 2
    gathered = {phase: parts_of(found, phase)["gathered weights"] for phase in ("update", "logprobs", "sums")}
    assert gathered["update"] == gathered["logprobs"] > gathered["sums"] == 4 * (512 * 128 + 128)
    assert parts_of(found, "logprobs")["gathered weights of the reference"] == gathered["sums"]
    assert found.checkpoint == whole.checkpoint


def test_in_16_bits_the_shares_are_the_masters_and_the_copy_is_not():
    keys = {"model": {"dtype": "bfloat16"}, "device": "cuda", "memory": 80 * GIB}
    whole, found = (parts_of(planned(2, ranks={"learner": how}, **keys), "always") for how in ("replicated", "sharded"))
    assert "master weights" not in found
    assert found["share of the weights"] == pytest.approx(whole["master weights"] / 2, rel=1e-3)
    assert found["decoding copy"] == whole["weights"]
    loaded = parts_of(planned(2, ranks=SHARDED, **keys), "load")
    assert loaded["weights"] == loaded["decoding copy"] == whole["weights"]
    assert loaded["master weights"] == whole["master weights"]


def test_sharded_is_replicated_where_there_is_one_rank():
    assert planned(1, ranks=SHARDED) == planned(1)


@pytest.mark.parametrize(("ranks", "prompts"), [(1, 5), (2, 3), (3, 2), (8, 1)])
def test_a_rank_samples_the_prompts_that_it_is_dealt(ranks, prompts):
    """Per token 3 layers x 2 heads x 32 x 2 x 4 bytes; 4 rollouts of 8 tokens on each prompt of 20."""
    rollout = {"prompts_per_step": 5, "rollouts_per_prompt": 4, "max_new_tokens": 8}
    found = planned(ranks, rollout=rollout, evaluate={"problems": 1, "rollouts_per_prompt": 1})
    assert parts_of(found, "always")["keys and values"] == 3 * 2 * 32 * 2 * 4 * prompts * (20 + 4 * 8)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_no_rank_is_dealt_more_than_is_planned_for(ranks):
    config = validate({"rollout": {"prompts_per_step": 1, "rollouts_per_prompt": 7}})
    for loads in ([9] * 7, [9, 9, 9, 1, 1, 1, 1], [1, 9, 9, 1, 9, 9, 9], [1, 1, 1, 1, 1, 1, 9]):
        most = max(sum(loads[place] for place in part) for part in in_runs(loads, ranks))
        assert most <= 9 * step_rollouts(config, ranks)


ON_TWO = MemoryPlan(
    "policy on cpu",
    (
        MemoryPart("weights", 3 * GIB, "always", "cpu", ("set B",)),
        MemoryPart("activations", GIB, "update", "cpu"),
        MemoryPart("copy", GIB, "always", "cpu", writer=True),
    ),
    ranks=2,
    ranks_here=2,
)


def test_the_ranks_of_a_machine_share_its_memory():
    assert ON_TWO.need_here("cpu") == 9 * GIB
    ON_TWO.check(lambda device: 9 * GIB)
    with refused(ConfigError, "cpu", "9.0 GiB", "4.0 GiB", "8.0 GiB", code="config.memory") as caught:
        ON_TWO.check(lambda device: 8 * GIB)
    fewer_ranks, part_advice = caught.value.remedy.split("; ")
    assert "2" in fewer_ranks
    assert part_advice == "set B"


def test_a_gpu_is_one_rank_s_own_and_the_writer_s_copy_on_the_cpu():
    parts = (MemoryPart("weights", 3 * GIB, "always", "cuda:0"), MemoryPart("copy", GIB, "always", "cpu", writer=True))
    plan = MemoryPlan("", parts, ranks=2, ranks_here=2)
    assert (plan.need_here("cuda:0"), plan.need_here("cpu")) == (3 * GIB, GIB)
    plan.check(lambda device: 3 * GIB)
    with refused(ConfigError, "cpu", "1.0 GiB", "512 MiB", "copy", code="config.memory"):
        plan.check(lambda device: GIB // 2 if device == "cpu" else 3 * GIB)


@pytest.mark.parametrize(("loading", "need"), [(3, 4), (5, 5)])
def test_a_policy_that_is_loaded_whole_may_be_the_worst_moment(loading, need):
    """Before it is divided there are no moments, keys or values."""
    parts = [MemoryPart(name, size, name, "cpu") for name, size in (("load", loading), ("always", 3), ("update", 1))]
    assert MemoryPlan("", tuple(parts)).need("cpu") == need


def test_keys_and_values_do_not_give_way_to_what_is_gone_before_them():
    """Of 100 bytes 80 may be filled: 70 beside weights of 10, whatever was there while they were loaded."""
    cache = MemoryPart("keys and values", 1000, "always", "cuda:0", least=1, takes_rest=True)
    parts = (MemoryPart("load", 90, "load", "cuda:0"), MemoryPart("weights", 10, "always", "cuda:0"), cache)
    assert _fit_part(cache, parts, SimpleNamespace(device_bytes=100, ranks_here=2)).bytes == 70


def test_keys_and_values_take_what_the_others_of_the_machine_leave():
    rollout = {"max_new_tokens": 20_000, "max_rollouts_at_once": 512}
    one, two = (planned(n, rollout=rollout, memory=16 * GIB).need("cpu") for n in (1, 2))
    assert two == pytest.approx(one / 2, rel=1e-3)


def refusal(count, **keys):
    found = planned(count, device="cuda", memory=GIB, **keys)
    with refused(ConfigError, code="config.memory") as caught:
        found.check(lambda device: parts_of(found, "always").get("decoding copy", 0))
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


UNSHARED = [
    ({"model": {"dtype": "bfloat16", "lora": {"rank": 2}, "quantization": "nf4"}}, "model.quantization = 'nf4'"),
    ({"optimizer": {"moments": "8bit"}}, "optimizer.moments = '8bit'"),
    (
        {"model": {"dtype": "bfloat16"}, "optimizer": {"stochastic_rounding": True, "master_weights": False}},
        "optimizer.stochastic_rounding",
    ),
]


@pytest.mark.parametrize(("keys", "named"), UNSHARED)
def test_settings_that_cannot_be_sharded_are_refused_with_several_ranks(keys, named, monkeypatch):
    config = validate({**keys, "ranks": SHARDED})
    resolve_members(config, Path())
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused(ConfigError, named, "ranks.learner = 'sharded'", "ranks.learner = 'replicated'"):
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
    (tmp_path / "run.toml").write_text('task = { use = "arithmetic", size = 64 }\ndevice = "cpu"\n')
    return CliRunner().invoke(app, ["check", str(tmp_path / "run.toml"), *arguments])


def test_check_plans_a_run_of_ranks_that_has_not_begun(tmp_path):
    shown = checked(tmp_path, "--ranks", "3", "--set=ranks.learner=sharded").stdout
    assert planned(3, ranks=SHARDED).jobs in shown
    assert "copy that checkpoints are written from 1.9 MiB" in shown
    assert "11 and 10" in shown  # prompts of a step that a rank is dealt
    refused = checked(tmp_path, "--ranks", "3", "--set=ranks.learner=sharded", "--set=optimizer.moments=8bit")
    assert refused.exit_code == 2
    assert "optimizer.moments" in refused.stderr
    assert checked(tmp_path, "--ranks", "0").exit_code == 2
