"""Weights, optimizer and gradients of the policy and of each form of a value model, whole or as a share.

The bundled policy has 509,568 numbers in 38 tensors, its embedding is its output layer, and its hidden states are 128
wide: a value head has 129 numbers in 2 tensors.
"""

from __future__ import annotations

import pytest

from memory_plans import LORA, of_value_model, part, planned, planned_with, sizes
from published_models import make
from winnow.models.load import load
from winnow.models.meta import meta_model


def test_a_reference_is_planned_for_a_term_that_needs_it():
    kl = {"terms": [{"use": "kl", "coefficient": 0.1}]}
    assert not [p for p in planned().parts if p.name == "reference"]
    assert part(planned(**kl), "reference").bytes == part(planned(), "weights").bytes
    adapted = planned(model={"lora": {"rank": 2}}, **kl)
    assert part(adapted, "reference").bytes == part(adapted, "gradients").bytes


SHARDED = {"learner": "sharded"}


def test_a_replicated_rank_has_all_of_the_policy_and_a_bucket():
    alone, two = planned(ranks_of=1), planned(ranks_of=2)
    for name in ("weights", "optimizer"):
        assert sizes(two, "always")[name] == sizes(alone, "always")[name]
    gradients = sizes(alone, "update")["gradients"]
    assert sizes(two, "sums") == {"gradients": gradients, "a bucket of gradients": gradients}
    assert sizes(alone, "sums") == {}
    assert two.checkpoint == alone.checkpoint


def test_a_sharded_rank_has_a_share_and_a_copy_to_decode_on():
    """The bundled policy has 509,568 numbers, all of whose rows two ranks divide evenly, and 35 parameters."""
    terms = {"terms": [{"use": "kl", "coefficient": 0.1}]}
    whole, found = planned(ranks_of=2, **terms), planned(ranks_of=2, ranks=SHARDED, **terms)
    always, weights = sizes(found, "always"), sizes(whole, "always")["weights"]
    tables = weights - 4 * 509_568
    assert always["share of the weights"] == 4 * 509_568 // 2 + tables
    assert always["share of the optimizer"] == 2 * 4 * 509_568 // 2 + 4 * 38
    assert always["share of the reference"] == 4 * 509_568 // 2
    assert always["decoding copy"] == weights
    assert sizes(found, "update")["share of the gradients"] == 4 * 509_568 // 2
    gathered = {phase: sizes(found, phase)["gathered weights"] for phase in ("update", "logprobs")}
    outside = sizes(found, "logprobs")["gathered weights of the reference"]
    assert gathered["update"] == gathered["logprobs"] > outside == 4 * (512 * 128 + 128)
    assert set(sizes(found, "sums")) == {"share of the gradients", "gradients to be summed"}
    assert found.checkpoint == whole.checkpoint


def test_in_16_bits_the_shares_are_the_masters_and_the_copy_is_not():
    keys = {"model": {"dtype": "bfloat16"}, "device": "cuda", "memory": 80 * 2**30}
    whole, found = (
        sizes(planned(ranks_of=2, ranks={"learner": how}, **keys), "always") for how in ("replicated", "sharded")
    )
    assert "master weights" not in found
    assert found["share of the weights"] == pytest.approx(whole["master weights"] / 2, rel=1e-3)
    assert found["decoding copy"] == whole["weights"]


def test_sharded_is_replicated_where_there_is_one_rank():
    assert planned(ranks_of=1, ranks=SHARDED) == planned(ranks_of=1)


NUMBERS, HEAD = 509_568, 129


def adapter_numbers(rank):
    """Of all linear layers: three layers of 128 hidden, 4 heads of 32 and 2 of keys and values, and the MLP."""
    wide = load("bundled").model.config.intermediate_size
    widths = [128 + 128, 128 + 64, 128 + 64, 128 + 128, 128 + wide, 128 + wide, wide + 128]
    return 3 * rank * sum(widths)


def test_a_shared_value_head_adds_129_numbers_and_their_optimizer():
    plan, without = planned_with("shared"), planned_with()
    always = {"value model weights": 4 * HEAD, "value model optimizer": 2 * 4 * HEAD + 2 * 4}
    assert of_value_model(plan, "always") == always
    assert of_value_model(plan, "update") == {"value model gradients": 4 * HEAD}
    assert sizes(plan, "value update") == {}
    rest = [part for part in plan.parts if part.phase != "values" and "value model" not in part.name]
    assert rest == list(without.parts)
    assert plan.checkpoint - without.checkpoint == 4 * HEAD + sum(sizes(plan, "always")[name] for name in always) - 516


def test_an_adapter_on_the_policy_s_base_has_its_numbers_and_an_optimizer():
    """Two tensors on each of 7 linear layers of 3 layers."""
    numbers = adapter_numbers(4) + HEAD
    plan, without = planned_with("adapter", critic={"lora": {"rank": 4}}), planned_with(model={"lora": LORA})
    assert of_value_model(plan, "always") == {
        "value model weights": 4 * numbers,
        "value model optimizer": 2 * 4 * numbers + 4 * (2 * 7 * 3 + 2),
    }
    assert of_value_model(plan, "value update")["value model gradients"] == 4 * numbers
    assert of_value_model(plan, "update") == {}
    assert plan.checkpoint - without.checkpoint == 4 * numbers + of_value_model(plan, "always")["value model optimizer"]
    as_policy = planned_with("adapter")  # of the policy's rank, where it has none of its own
    assert of_value_model(as_policy, "always")["value model weights"] == 4 * (adapter_numbers(2) + HEAD)
    assert sizes(as_policy, "value update")["value model activations"] == sizes(as_policy, "update")["activations"]


def test_a_model_of_its_own_is_a_second_policy_with_a_head():
    plan, without = planned_with("model"), planned_with()
    weights = sizes(without, "always")["weights"]
    moments = 2 * 4 * (NUMBERS + HEAD) + 4 * (38 + 2)
    assert of_value_model(plan, "always") == {
        "value model weights": weights + 4 * HEAD,
        "value model optimizer": moments,
    }
    assert of_value_model(plan, "value update")["value model gradients"] == 4 * (NUMBERS + HEAD)
    assert plan.checkpoint - without.checkpoint == 4 * (NUMBERS + HEAD) + moments


def test_weights_of_16_bits_have_masters_and_the_head_is_float32():
    plan, without = planned_with("model", model={"dtype": "bfloat16"}), planned_with(model={"dtype": "bfloat16"})
    always = of_value_model(plan, "always")
    assert always["value model weights"] == sizes(without, "always")["weights"] + 4 * HEAD
    assert always["value model master weights"] == 4 * (NUMBERS + HEAD)
    assert of_value_model(plan, "value update")["value model gradients"] == 4 * (NUMBERS + HEAD)
    saved = always["value model master weights"] + always["value model optimizer"]  # what is rounded from them is not
    assert plan.checkpoint - without.checkpoint == saved
    rounded = {"master_weights": False, "stochastic_rounding": True}
    found = planned_with("model", model={"dtype": "bfloat16"}, critic={"optimizer": rounded})
    assert "value model master weights" not in sizes(found, "always")
    after = {"value model gradients": 4 * (NUMBERS + HEAD), "one value model parameter's rounding": 5 * 4 * 512 * 128}
    assert sizes(found, "value sums") == after
    assert (
        of_value_model(planned_with("shared", model={"dtype": "bfloat16"}), "always")["value model master weights"]
        == 4 * HEAD
    )


def test_value_model_moments_have_the_bits_of_its_optimizer():
    few = {"optimizer": {"moments": "8bit"}}
    own = of_value_model(planned_with("model", critic=few), "always")["value model optimizer"]
    assert own < 2.1 * NUMBERS < sizes(planned_with("model", critic=few), "always")["optimizer"]
    assert (
        of_value_model(planned_with("model", **few), "always")["value model optimizer"] == 8 * (NUMBERS + HEAD) + 4 * 40
    )
    assert of_value_model(planned_with("shared", **few), "always")["value model optimizer"] == 8 * HEAD + 4 * 2, (
        "too small for 8 bits"
    )


def test_a_model_with_an_adapter_trains_that_and_keeps_no_masters():
    plan = planned_with("model", critic={"lora": LORA}, model={"dtype": "bfloat16"})
    numbers = adapter_numbers(2) + HEAD
    weights = sizes(plan, "always")["weights"]
    assert of_value_model(plan, "always") == {
        "value model weights": weights + 4 * numbers,
        "value model optimizer": 2 * 4 * numbers + 4 * (2 * 7 * 3 + 2),
    }
    assert of_value_model(plan, "value update")["value model gradients"] == 4 * numbers
    assert plan.checkpoint - planned_with(model={"dtype": "bfloat16"}).checkpoint == 3 * 4 * numbers + 4 * 44


@pytest.mark.parametrize("adapter", [{}, {"lora": LORA}])
def test_a_separate_value_model_has_no_output_layer_and_its_own_shapes(adapter, tmp_path):
    """Qwen2.5-Math, whose embedding is not its output layer, beside the bundled policy."""
    path = str(make("qwen2.5-math", tmp_path))
    model = meta_model(path, dtype="float32")
    kept = sum(p.numel() for p in model.parameters()) - model.get_output_embeddings().weight.numel()
    width = model.config.hidden_size
    found = planned_with("model", critic={"path": path, **adapter})
    gradients = sizes(found, "value update")["value model gradients"]
    if not adapter:
        assert gradients == 4 * (kept + width + 1)
    tables = sum(b.numel() * b.element_size() for b in model.buffers())
    trained = gradients // 4 if adapter else width + 1
    assert of_value_model(found, "always")["value model weights"] == 4 * (kept + trained) + tables


def test_a_sharded_rank_has_a_share_of_it_and_of_what_trains_it():
    """Two ranks divide all rows but those of the head, of which the first rank has all."""
    plan, whole = planned_with("model", ranks_of=2, ranks=SHARDED), planned_with("model", ranks_of=2)
    tables = sizes(whole, "always")["value model weights"] - 4 * (NUMBERS + HEAD)
    share = NUMBERS // 2 + HEAD
    always = sizes(plan, "always")
    assert always["share of the value model weights"] == 4 * share + tables
    assert always["share of the value model optimizer"] == 2 * 4 * share + 4 * 40
    for phase in ("value update", "value sums"):
        assert sizes(plan, phase)["share of the value model gradients"] == 4 * share
    for phase in ("values", "value update"):
        assert sizes(plan, phase)["gathered weights"] == sizes(plan, "update")["gathered weights"]
    assert plan.checkpoint == whole.checkpoint


def test_a_value_adapter_is_sharded():
    """Every matrix of rank 2 has as many rows on each of two ranks, the head all of its own on the first."""
    plan, numbers = planned_with("adapter", ranks_of=2, ranks=SHARDED), adapter_numbers(2)
    assert sizes(plan, "always")["share of the value model weights"] == 4 * (numbers // 2 + HEAD)
    assert sizes(plan, "value update")["gathered weights"] == sizes(plan, "update")["gathered weights"]


def test_in_16_bits_its_shares_are_the_masters_too():
    keys = {"model": {"dtype": "bfloat16"}, "ranks_of": 2}
    plan = planned_with("model", ranks=SHARDED, **keys)
    assert sizes(plan, "always")["share of the value model weights"] == pytest.approx(4 * NUMBERS / 2, rel=0.01)
    assert "value model master weights" not in sizes(plan, "always")


@pytest.mark.parametrize(
    ("form", "update", "sums"), [("shared", "update", "sums"), ("model", "value update", "value sums")]
)
def test_replicated_ranks_have_all_of_it_and_sum_its_gradients(form, update, sums):
    one, two = planned_with(form), planned_with(form, ranks_of=2)
    assert of_value_model(two, "always") == of_value_model(one, "always")
    assert of_value_model(two, sums)["value model gradients"] == of_value_model(one, update)["value model gradients"]
    assert (
        of_value_model(two, sums)["a bucket of value model gradients"]
        == of_value_model(one, update)["value model gradients"]
    )
