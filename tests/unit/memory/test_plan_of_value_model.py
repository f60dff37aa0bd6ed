"""What a value model takes: a head, an adapter or a model of its own, what trains each, and its passes.

The bundled policy has 509,568 numbers in 38 tensors, its embedding is its output layer, and its hidden states are 128
wide: a value head has 129 numbers in 2 tensors.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from published_models import make
from refusals import refused
from winnow.commands import app
from winnow.config_file import validate
from winnow.errors import ConfigError, DataError
from winnow.memory.footprint import activation_bytes
from winnow.memory.sharded_parts import rank_advice
from winnow.models.load import load
from winnow.models.meta import meta_model
from winnow.training.device_plan import plan_devices
from winnow.training.resolve import resolve_members

GIB = 2**30
NUMBERS, HEAD = 509_568, 129
LORA = {"rank": 2}
STEP = {"prompts_per_step": 2, "rollouts_per_prompt": 4, "max_new_tokens": 30}
FORMS = {"shared": {}, "adapter": {"model": {"lora": LORA}}, "model": {}}


def planned(form=None, *, ranks_of=None, device="cpu", memory=None, critic=None, **keys):
    evaluate = {"problems": 1, "rollouts_per_prompt": 1}
    made = {"rollout": STEP, "evaluate": evaluate, "select": "all", **FORMS.get(form, {}), **keys}
    made = {"advantage": "gae", **made, "critic": {"form": form, **(critic or {})}} if form else made
    members = resolve_members(validate(made), base=Path())
    return plan_devices(members, torch.device(device), longest_prompt=20, memory=memory, planned_ranks=ranks_of)


def sizes(plan, phase):
    return {part.name: part.bytes for part in plan.parts if part.phase == phase}


def ours(plan, phase):
    """Of the value model."""
    return {name: size for name, size in sizes(plan, phase).items() if "value model" in name}


def adapter_numbers(rank):
    """Of all linear layers: three layers of 128 hidden, 4 heads of 32 and 2 of keys and values, and the MLP."""
    wide = load("bundled").model.config.intermediate_size
    widths = [128 + 128, 128 + 64, 128 + 64, 128 + 128, 128 + wide, 128 + wide, wide + 128]
    return 3 * rank * sum(widths)


def test_a_shared_value_head_adds_129_numbers_and_their_optimizer():
    plan, without = planned("shared"), planned()
    always = {"value model weights": 4 * HEAD, "value model moments": 2 * 4 * HEAD + 2 * 4}
    assert ours(plan, "always") == always
    assert ours(plan, "update") == {"value model gradients": 4 * HEAD}
    assert sizes(plan, "value update") == {}
    rest = [part for part in plan.parts if part.phase != "values" and "value model" not in part.name]
    assert rest == list(without.parts)
    assert plan.checkpoint - without.checkpoint == 4 * HEAD + sum(sizes(plan, "always")[name] for name in always) - 516


def test_an_adapter_on_the_policy_s_base_has_its_numbers_and_an_optimizer():
    """Two tensors on each of 7 linear layers of 3 layers."""
    numbers = adapter_numbers(4) + HEAD
    plan, without = planned("adapter", critic={"lora": {"rank": 4}}), planned(model={"lora": LORA})
    assert ours(plan, "always") == {
        "value model weights": 4 * numbers,
        "value model moments": 2 * 4 * numbers + 4 * (2 * 7 * 3 + 2),
    }
    assert ours(plan, "value update")["value model gradients"] == 4 * numbers
    assert ours(plan, "update") == {}
    assert plan.checkpoint - without.checkpoint == 4 * numbers + ours(plan, "always")["value model moments"]
    as_policy = planned("adapter")  # of the policy's rank, where it has none of its own
    assert ours(as_policy, "always")["value model weights"] == 4 * (adapter_numbers(2) + HEAD)
    assert sizes(as_policy, "value update")["value model activations"] == sizes(as_policy, "update")["activations"]


def test_a_model_of_its_own_is_a_second_policy_with_a_head():
    plan, without = planned("model"), planned()
    weights = sizes(without, "always")["weights"]
    moments = 2 * 4 * (NUMBERS + HEAD) + 4 * (38 + 2)
    assert ours(plan, "always") == {"value model weights": weights + 4 * HEAD, "value model moments": moments}
    assert ours(plan, "value update")["value model gradients"] == 4 * (NUMBERS + HEAD)
    assert plan.checkpoint - without.checkpoint == 4 * (NUMBERS + HEAD) + moments


def test_weights_of_16_bits_have_masters_and_the_head_is_float32():
    plan, without = planned("model", model={"dtype": "bfloat16"}), planned(model={"dtype": "bfloat16"})
    always = ours(plan, "always")
    assert always["value model weights"] == sizes(without, "always")["weights"] + 4 * HEAD
    assert always["value model master weights"] == 4 * (NUMBERS + HEAD)
    largest = 2 * 512 * 128  # of the embedding, before it is added to its sum
    assert ours(plan, "value update")["value model gradients"] == 4 * (NUMBERS + HEAD) + largest
    saved = always["value model master weights"] + always["value model moments"]  # what is rounded from them is not
    assert plan.checkpoint - without.checkpoint == saved
    rounded = {"master_weights": False, "stochastic_rounding": True}
    found = planned("model", model={"dtype": "bfloat16"}, critic={"optimizer": rounded})
    assert "value model master weights" not in sizes(found, "always")
    assert sizes(found, "value update")["one value model parameter's rounding"] == 5 * 4 * 512 * 128
    assert ours(planned("shared", model={"dtype": "bfloat16"}), "always")["value model master weights"] == 4 * HEAD


def test_value_model_moments_have_the_bits_of_its_optimizer():
    few = {"optimizer": {"moments": "8bit"}}
    own = ours(planned("model", critic=few), "always")["value model moments"]
    assert own < 2.1 * NUMBERS < sizes(planned("model", critic=few), "always")["optimizer"]
    assert ours(planned("model", **few), "always")["value model moments"] == 8 * (NUMBERS + HEAD) + 4 * 40
    assert ours(planned("shared", **few), "always")["value model moments"] == 8 * HEAD + 4 * 2, "too small for 8 bits"


def test_a_model_with_an_adapter_trains_that_and_keeps_no_masters():
    plan = planned("model", critic={"lora": LORA}, model={"dtype": "bfloat16"})
    numbers = adapter_numbers(2) + HEAD
    weights = sizes(plan, "always")["weights"]
    assert ours(plan, "always") == {
        "value model weights": weights + 4 * numbers,
        "value model moments": 2 * 4 * numbers + 4 * (2 * 7 * 3 + 2),
    }
    assert ours(plan, "value update")["value model gradients"] == 4 * numbers
    assert plan.checkpoint - planned(model={"dtype": "bfloat16"}).checkpoint == 3 * 4 * numbers + 4 * 44


@pytest.mark.parametrize("adapter", [{}, {"lora": LORA}])
def test_a_separate_value_model_has_no_output_layer_and_its_own_shapes(adapter, tmp_path):
    """Qwen2.5-Math, whose embedding is not its output layer, beside the bundled policy."""
    path = str(make("qwen2.5-math", tmp_path))
    model = meta_model(path, dtype="float32")
    kept = sum(p.numel() for p in model.parameters()) - model.get_output_embeddings().weight.numel()
    width = model.config.hidden_size
    found = planned("model", critic={"path": path, **adapter})
    gradients = sizes(found, "value update")["value model gradients"]
    if not adapter:
        assert gradients == 4 * (kept + width + 1)
    tables = sum(b.numel() * b.element_size() for b in model.buffers())
    trained = gradients // 4 if adapter else width + 1
    assert ours(found, "always")["value model weights"] == 4 * (kept + trained) + tables


@pytest.mark.parametrize("form", FORMS)
def test_values_are_read_once_without_logits(form):
    """8 rollouts of 20 + 30 tokens, on keys and values of 3 layers x 2 heads x 32."""
    config = load("bundled").model.config
    widest = 3 * config.intermediate_size + 4 * config.hidden_size
    assert sizes(planned(form), "values") == {"forward pass for values": 400 * 4 * (widest + 3 * 2 * 2 * 32)}
    sixteen = sizes(planned(form, model={"dtype": "bfloat16", "lora": LORA}), "values")
    assert sixteen == {
        "forward pass for values": 400 * 2 * (widest + 3 * 2 * 2 * 32),
        "what the value head reads": 400 * 4 * 128,
    }


@pytest.mark.parametrize("how", ["none", "selective", "full"])
def test_its_update_holds_what_a_policy_s_holds_but_no_logits(how):
    model = {"gradient_checkpointing": how}
    plan = planned("model", model=model, update={"tokens_per_micro_batch": 100})
    update, policy = sizes(plan, "value update"), sizes(plan, "update")
    assert update["value model activations"] == policy["activations"]
    assert update["value model activations"] == activation_bytes(load("bundled").model, 100, checkpointing=how)
    assert set(update) == {"value model gradients", "value model activations", "a layer's backward in it"}


def test_the_two_updates_do_not_coincide_and_optimizers_are_always_held():
    plan, alone = planned("model"), planned()
    updates = [sum(sizes(plan, phase).values()) for phase in ("value update", "update")]
    always = sum(sizes(plan, "always").values())
    assert plan.need("cpu") == always + max(updates)
    beside = sum(ours(plan, "always").values())
    assert always == sum(sizes(alone, "always").values()) + beside
    assert sizes(plan, "update") == sizes(alone, "update")


def test_keys_and_values_make_do_with_what_it_leaves():
    long = {"rollout": {**STEP, "max_new_tokens": 20_000}}
    cards = {form: planned(form, device="cuda", memory=GIB, **long) for form in (None, "model")}
    cache = {form: sizes(plan, "always")["keys and values"] for form, plan in cards.items()}
    assert cards[None].adjusted is not None
    assert cache["model"] < cache[None]


SHARDED = {"ranks": {"learner": "sharded"}}


def test_a_sharded_rank_has_a_share_of_it_and_of_what_trains_it():
    """Two ranks divide all rows but those of the head, of which the first rank has all."""
    plan, whole = planned("model", ranks_of=2, **SHARDED), planned("model", ranks_of=2)
    tables = sizes(whole, "always")["value model weights"] - 4 * (NUMBERS + HEAD)
    share = NUMBERS // 2 + HEAD
    always = sizes(plan, "always")
    assert always["share of the value model"] == 4 * share + tables
    assert always["share of its moments"] == 2 * 4 * share + 4 * 40
    for phase in ("value update", "value sums"):
        assert sizes(plan, phase)["share of the value model gradients"] == 4 * share
    for phase in ("values", "value update"):
        assert sizes(plan, phase)["gathered weights"] == sizes(plan, "update")["gathered weights"]
    assert sizes(plan, "value sums")["gathered value model weights"] == 4 * (512 * 128 + 128)
    assert sizes(plan, "load")["value model weights"] == sizes(whole, "always")["value model weights"]
    assert plan.checkpoint == whole.checkpoint


def test_a_value_adapter_is_sharded_and_copied_for_checkpoints():
    """Every matrix of rank 2 has as many rows on each of two ranks, the head all of its own on the first."""
    plan, numbers = planned("adapter", ranks_of=2, **SHARDED), adapter_numbers(2)
    assert sizes(plan, "always")["share of the value model"] == 4 * (numbers // 2 + HEAD)
    assert sizes(plan, "value update")["gathered weights"] == sizes(plan, "update")["gathered weights"]
    assert plan.writer_bytes("cpu") == sizes(plan, "load")["weights"] + 4 * (numbers + HEAD)


def test_in_16_bits_its_shares_are_the_masters_too():
    keys = {"model": {"dtype": "bfloat16"}, "ranks_of": 2}
    plan, whole = planned("model", **SHARDED, **keys), planned("model", **keys)
    assert sizes(plan, "always")["share of the value model"] == pytest.approx(4 * NUMBERS / 2, rel=0.01)
    assert "value model master weights" not in sizes(plan, "always")
    loaded = sizes(plan, "load")["value model master weights"]
    assert loaded == sizes(whole, "always")["value model master weights"]


@pytest.mark.parametrize(
    ("form", "update", "sums"), [("shared", "update", "sums"), ("model", "value update", "value sums")]
)
def test_replicated_ranks_have_all_of_it_and_sum_its_gradients(form, update, sums):
    one, two = planned(form), planned(form, ranks_of=2)
    assert ours(two, "always") == ours(one, "always")
    assert ours(two, sums)["value model gradients"] == ours(one, update)["value model gradients"]
    assert ours(two, sums)["a bucket of value model gradients"] == ours(one, update)["value model gradients"]


def refusal(form, **keys):
    """Of a card that has next to nothing, and a step so small that what is held counts."""
    few = {"prompts_per_step": 1, "rollouts_per_prompt": 2, "max_new_tokens": 1}
    plan = planned(form, device="cuda", memory=GIB, rollout=few, **keys)
    with refused(ConfigError, code="config.memory") as caught:
        plan.check(lambda device: 0)
    return caught.value


def test_advice_for_memory_includes_another_form_or_an_adapter():
    error = refusal("model")
    assert "value model moments" in error.problem
    for remedy in ("critic.lora", "critic.form = 'shared'", "critic.optimizer.moments = '8bit'"):
        assert remedy in error.remedy
    assert "critic.lora" not in refusal("model", critic={"lora": LORA}).remedy
    assert "critic" not in str(refusal("shared"))
    assert rank_advice(SimpleNamespace(device="cuda:0", ranks=2)) in refusal("model", ranks_of=2, **SHARDED).remedy


def test_a_reward_for_staying_near_takes_a_reference_and_its_pass():
    plan = planned("model", advantage={"use": "gae", "kl_reward": 0.1})
    assert sizes(plan, "always")["reference"] == sizes(plan, "always")["weights"]
    assert "logits" in sizes(plan, "logprobs")


def checked(tmp_path, *arguments, critic='form = "model"'):
    few = 'task = { use = "arithmetic", size = 64 }\ndevice = "cpu"\n'
    (tmp_path / "run.toml").write_text(f'{few}advantage = "gae"\n[critic]\n{critic}\n')
    return CliRunner().invoke(app, ["check", str(tmp_path / "run.toml"), *arguments])


def test_check_names_its_parts_and_where_it_is(tmp_path):
    shown = checked(tmp_path, "--ranks", "2").stdout
    assert planned("model", ranks_of=2).jobs in shown
    for name_and_size in ("value model weights 1.9 MiB", "value model moments 3.9 MiB", "forward pass for values"):
        assert name_and_size in shown
    small = checked(tmp_path, "--set=device=cuda", "--memory", "100MiB")
    assert small.exit_code == 2
    assert "cuda:0" in small.stderr
    assert "100 MiB" in small.stderr


def test_a_folder_that_is_no_model_is_named_by_its_key(tmp_path):
    with refused(DataError, tmp_path / "nothing", key="critic.path", code="data.missing"):
        planned("model", critic={"path": str(tmp_path / "nothing")})
    shown = checked(tmp_path, critic=f'path = "{tmp_path}/nothing"')
    assert shown.exit_code == 2
    assert shown.stderr.startswith("error (data.missing): critic.path: ")
    with refused(ConfigError, "['nope']", key="critic.lora.targets", code="config.unsupported"):
        planned("model", critic={"lora": {"targets": ["nope"]}})


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
