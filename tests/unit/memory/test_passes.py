"""Memory of the passes of policy and value model."""

from __future__ import annotations

import pytest

from memory_plans import FORMS, LORA, STEP, of_value_model, part, planned, planned_with, sizes
from winnow.memory.footprint import activation_bytes
from winnow.models.load import load

GIB = 2**30


def parts_of(phase, **keys):
    return {part.name: part.bytes for part in planned(**keys).parts if part.phase == phase}


GVM = {"allocate": "gvm", "rollout": STEP}


def test_a_micro_batch_is_as_large_as_allowed_but_no_larger_than_the_step():
    small = planned(rollout={"prompts_per_step": 1, "rollouts_per_prompt": 4, "max_new_tokens": 30})
    double = planned(rollout={"prompts_per_step": 2, "rollouts_per_prompt": 4, "max_new_tokens": 30})
    assert part(double, "activations").bytes == 2 * part(small, "activations").bytes
    limits = [part(planned(update={"tokens_per_micro_batch": n}), "activations").bytes for n in (1000, 2000)]
    assert limits[1] == 2 * limits[0]


def test_groups_that_dynamic_sampling_adds_are_in_a_micro_batch_too():
    plain, refilled = (
        parts_of(
            "update", rollout={**STEP, "dynamic_sampling_rounds": rounds}, update={"tokens_per_micro_batch": 10**6}
        )
        for rounds in (0, 2)
    )
    assert refilled["activations"] == 3 * plain["activations"]


def test_passes_for_log_probs_are_planned_where_there_are_any(qwen):
    """8 rollouts of 20 + 30 tokens: keys and values of 3 layers x 2 heads x 32, or 240 x 151,936 logits twice. The two
    do not coincide.
    """
    assert parts_of("logprobs", rollout=STEP) == {}
    found = parts_of("logprobs", rollout=STEP, terms=[{"use": "kl", "coefficient": 0.1}])
    model = load("bundled").model.config
    widest = 3 * model.intermediate_size + 4 * model.hidden_size
    assert found == {"forward pass": 400 * 4 * (widest + 3 * 2 * 2 * 32)}
    large = {"rollout": STEP, "model": {"path": str(qwen)}, "terms": [{"use": "kl", "coefficient": 0.1}]}
    assert parts_of("logprobs", **large) == {"logits": 2 * 240 * 151_936 * 4}


def test_checkpointed_layers_keep_no_keys_and_values():
    keys = {"rollout": STEP, "terms": [{"use": "kl", "coefficient": 0.1}]}
    model = load("bundled").model.config
    found = parts_of("logprobs", model={"gradient_checkpointing": "full"}, **keys)
    assert found == {"forward pass": 400 * 4 * (3 * model.intermediate_size + 4 * model.hidden_size)}


def test_a_sharded_pass_is_planned_at_its_worst_moment(qwen):
    """At the start of a small one the embedding of 151,936 x 1,536 and a norm exist twice, and a layer twice. In a
    layer of a large one the embedding exists once, beside 65,536 tokens of three MLP branches and four states.
    """
    keys = {"ranks_of": 2, "ranks": {"learner": "sharded"}, "terms": [{"use": "kl", "coefficient": 0.1}]}
    keys["model"] = {"path": str(qwen), "dtype": "bfloat16", "gradient_checkpointing": "full"}
    root = 2 * (151_936 * 1_536 + 1_536)
    start = parts_of("logprobs", rollout={**STEP, "prompts_per_step": 1}, **keys)
    assert start["weights to unpack"] == root
    rollout = {"prompts_per_step": 64, "rollouts_per_prompt": 16, "max_new_tokens": 1004}
    large = parts_of("logprobs", rollout=rollout, update={"tokens_per_micro_batch": 65_536}, **keys)
    assert large["forward pass"] == 65_536 * (3 * 8_960 + 4 * 1_536) * 2
    assert large["gathered weights"] == start["gathered weights"] > root
    assert "weights to unpack" not in large


@pytest.mark.parametrize(
    ("matrix", "name"), [("embedding", "activations for norms"), ("output_head", "forward pass for norms")]
)
def test_passes_for_gradient_norms_are_planned_for_gvm(matrix, name):
    """Of one rollout's 30 tokens the logits three times; a probe of 1 x 2 prompts x 3 rollouts of 50 tokens."""
    assert parts_of("norms", rollout=STEP) == {}
    assert parts_of("norms", **GVM, probe={"gradient_norm": "none"}) == {}
    found = parts_of("norms", **GVM, probe={"gradient_norm": matrix, "every": 1, "rollouts_per_prompt": 3})
    assert set(found) == {name, "logits for norms"}
    assert found["logits for norms"] == 4 * 30 * 512 * 4
    double = parts_of("norms", **GVM, probe={"gradient_norm": matrix, "every": 2, "rollouts_per_prompt": 3})
    assert double[name] == 2 * found[name]


def test_the_norm_of_a_long_rollout_takes_the_head_s_gradient():
    """[512, 128] in float32, from where 128 multiplications per token are less than a token's with every other."""

    def part(tokens):
        probe = {"gradient_norm": "output_head", "every": 1, "rollouts_per_prompt": 1}
        found = parts_of("norms", allocate="gvm", rollout={**STEP, "max_new_tokens": tokens}, probe=probe)
        return found.get("output layer's gradient for norms", 0)

    assert [part(tokens) for tokens in (128, 129, 1000)] == [0, 512 * 128 * 4, 512 * 128 * 4]


@pytest.mark.parametrize("phase", ["update", "logprobs", "norms"])
def test_of_a_rollout_that_is_cut_the_passes_read_what_is_trained(phase):
    def found(tokens, **update):
        keys = {**GVM, "terms": [{"use": "kl", "coefficient": 0.1}], "update": update}
        return parts_of(phase, **{**keys, "rollout": {**STEP, "max_new_tokens": tokens}})

    assert found(300, max_trained_tokens=30) == found(30) != found(300)


def test_logits_of_a_large_vocabulary_are_bounded(qwen):
    """441 tokens of 151,936 in float32, and the head's gradient twice, whatever the micro-batch; where that is large
    enough, a layer's backward takes more.
    """
    rollout = {"max_new_tokens": 512, "prompts_per_step": 64}
    for tokens in (4096, 8192, 65_536):
        update = {"tokens_per_micro_batch": tokens}
        found = parts_of("update", model={"path": str(qwen), "dtype": "float32"}, rollout=rollout, update=update)
        assert found.get("output layer", 0) == (441 + 2 * 1536) * 151_936 * 4 * (tokens < 65_536)
        assert ("a layer's backward" in found) == (tokens == 65_536)


def test_a_cut_distribution_takes_more_while_sampling():
    plain, cut = (parts_of("generate", evaluate={"top_p": p})["sampling"] for p in (1.0, 0.9))
    assert cut == plain * 40 / 24


@pytest.mark.parametrize("form", FORMS)
def test_values_are_read_once_without_logits(form):
    """8 rollouts of 20 + 30 tokens, on keys and values of 3 layers x 2 heads x 32. A matrix with an adapter has the
    adapter's result in float32, and the sum of both, beside its own result.
    """
    config = load("bundled").model.config
    branches, of_16_bits = {"shared": (3, 6), "adapter": (4, 6), "model": (3, 3)}[form]  # of 4 and of 2 bytes
    widest = branches * config.intermediate_size + 4 * config.hidden_size
    assert sizes(planned_with(form), "values") == {"forward pass for values": 400 * 4 * (widest + 3 * 2 * 2 * 32)}
    widest = of_16_bits * config.intermediate_size + 4 * config.hidden_size
    sixteen = sizes(planned_with(form, model={"dtype": "bfloat16", "lora": LORA}), "values")
    assert sixteen == {
        "forward pass for values": 400 * 2 * (widest + 3 * 2 * 2 * 32),
        "what the value head reads": 400 * 4 * 128,
    }


@pytest.mark.parametrize("how", ["none", "selective", "full"])
def test_its_update_holds_what_a_policy_s_holds_but_no_logits(how):
    model = {"gradient_checkpointing": how}
    plan = planned_with("model", model=model, update={"tokens_per_micro_batch": 100})
    update, policy = sizes(plan, "value update"), sizes(plan, "update")
    assert update["value model activations"] == policy["activations"]
    assert update["value model activations"] == activation_bytes(load("bundled").model, 100, checkpointing=how)
    assert set(update) == {"value model gradients", "value model activations", "a layer's backward"}


def test_the_two_updates_do_not_coincide_and_optimizers_are_always_held():
    plan, alone = planned_with("model"), planned_with()
    updates = [sum(sizes(plan, phase).values()) for phase in ("value update", "update")]
    always = sum(sizes(plan, "always").values())
    assert plan.need("cpu") == always + max(updates)
    beside = sum(of_value_model(plan, "always").values())
    assert always == sum(sizes(alone, "always").values()) + beside
    assert sizes(plan, "update") == sizes(alone, "update")


def test_a_reward_for_staying_near_takes_a_reference_and_its_pass():
    plan = planned_with("model", advantage={"use": "gae", "kl_reward": 0.1})
    assert sizes(plan, "always")["reference"] == sizes(plan, "always")["weights"]
    assert set(sizes(plan, "logprobs")) == {"forward pass"}
