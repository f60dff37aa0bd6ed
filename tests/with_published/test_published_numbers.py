"""The published model computes the same numbers in the engine, in the learner and in transformers.

Its layout differs from the bundled policy's: 9 heads attend to 3 key-value heads, the output layer is the embedding of
49,152 tokens, and the token that ends a turn is also the padding, for which transformers computes no gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from torch import nn

from published_rollouts import (
    context,
    engine_logprobs,
    learned,
    plain,
    plain_logprobs,
    plain_model,
    policy,
    prompts,
    sample,
)
from winnow.core.mismatch import percentile_999
from winnow.engines.hf_generate import HuggingFace
from winnow.engines.native.engine import native
from winnow.models.folder import PUBLISHED
from winnow.models.load import Loaded, load, load_tokenizer
from winnow.records import Matrix, TrainingSequence

pytestmark = pytest.mark.published

LIMITS = {"float32": (2e-5, 2e-4), "bfloat16": (0.045, 0.3)}  # of the mean gap, and of its 99.9th percentile
Rows = list[TrainingSequence]


@pytest.fixture(scope="module")
def exact(folder) -> tuple[Loaded, Rows]:
    """The model in float32, and rollouts that the native engine has sampled, one of each prompt."""
    loaded = load(PUBLISHED)
    return loaded, sample(native(context(loaded)), prompts(loaded.tokenizer), 1)


@pytest.fixture(scope="module")
def exact_learned(exact) -> np.ndarray:
    """The learner's log-probs of these rollouts, which two tests compare."""
    return learned(policy(exact[0]), exact[1])


@pytest.fixture(scope="module")
def reference(folder) -> nn.Module:
    """The same weights, loaded by transformers."""
    return plain_model(folder)


@pytest.fixture(scope="module")
def rounded(folder) -> tuple[Loaded, Rows]:
    """Both in bfloat16."""
    loaded = load(PUBLISHED, dtype="bfloat16")
    return loaded, sample(native(context(loaded)), prompts(loaded.tokenizer))


@pytest.fixture(scope="module")
def rounded_learned(rounded) -> np.ndarray:
    """The same in bfloat16."""
    return learned(policy(rounded[0]), rounded[1])


# Slow: test_published_runs.py compares the same in bfloat16, with an adapter. Engine and learner:
# test_an_adapted_run_s_engine_samples_the_trained_policy. Learner and transformers:
# test_a_checkpoint_is_the_base_with_the_adapter_and_loads_in_transformers.
@pytest.fixture(params=["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def sampled(request) -> tuple[str, Loaded, Rows, np.ndarray]:
    """The precision, the model, its rollouts, and the learner's log-probs of them."""
    name = {"float32": "exact", "bfloat16": "rounded"}[request.param]
    return request.param, *request.getfixturevalue(name), request.getfixturevalue(f"{name}_learned")


def check_gap(one: np.ndarray, other: np.ndarray, dtype: str, record) -> None:
    """Log-probs of the same tokens are equal within the limits of the precision."""
    gap, (mean, tail) = np.abs(one - other), LIMITS[dtype]
    assert gap.shape == one.shape == other.shape
    largest = {"p999": percentile_999(gap), "max": float(gap.max())}
    for name, figure in {"tokens": gap.size, "mean": float(gap.mean()), **largest}.items():
        record(name, figure)
    assert gap.mean() <= mean
    assert largest["max" if dtype == "float32" else "p999"] <= tail


def test_the_engine_s_log_probs_are_those_of_the_learner(sampled, record_property):
    dtype, loaded, rows, ours = sampled
    assert {loaded.model.config.num_attention_heads, loaded.model.config.num_key_value_heads} == {9, 3}
    assert len({len(row.prompt.tokens) for row in rows}) > 1  # so that some are padded
    check_gap(engine_logprobs(rows), ours, dtype, record_property)


def test_the_learner_s_log_probs_are_those_of_transformers(sampled, folder, reference, record_property):
    dtype, _, rows, ours = sampled
    model = reference if dtype == "float32" else plain_model(folder, dtype)
    check_gap(ours, plain(model, rows), dtype, record_property)


@pytest.mark.slow  # test_engine_contract.py has the engine, and the two tests above the model
def test_the_engine_of_transformers_agrees_with_the_learner(sampled, record_property):
    dtype, loaded, *_ = sampled
    rows = sample(HuggingFace(context(loaded)), prompts(loaded.tokenizer, 2), 2)
    check_gap(engine_logprobs(rows), learned(policy(loaded), rows), dtype, record_property)


FIRST = 8  # tokens of a rollout whose gradients are computed


@pytest.fixture
def few(exact) -> tuple[Loaded, Rows]:
    """The model in float32, and the first tokens of two of its rollouts, of which one is made to end with the token of
    the padding.
    """
    loaded, rows = exact
    one, other = (dataclasses.replace(row, rollout=row.rollout.up_to(FIRST)) for row in (rows[0], rows[-1]))
    tokens = one.rollout.tokens.copy()
    tokens[-1] = loaded.tokenizer.pad_token_id
    ended = dataclasses.replace(one.rollout, tokens=tokens)
    return loaded, [dataclasses.replace(one, rollout=ended), other]


def gradients(model, rows: Rows) -> dict[str, torch.Tensor]:
    """Of the sum of all log-probs, by parameter, from one backward pass per rollout; they are also cleared."""
    for row in rows:
        plain_logprobs(model, row).sum().backward()
    return cleared(model)


def cleared(model) -> dict[str, torch.Tensor]:
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Of two gradients, relative to the length of the second."""
    assert one.keys() == other.keys()
    return length(one[name] - other[name] for name in other) / length(other.values())


def length(tensors: Iterable[torch.Tensor]) -> float:
    """Of all their numbers as one vector. To copy those of a gradient in float64 would take a second."""
    return sum(tensor.square().sum().item() for tensor in tensors) ** 0.5


def test_the_gradient_is_that_of_transformers_with_one_for_the_padding(few, reference, record_property):
    loaded, rows = few
    model = policy(loaded)
    end = loaded.tokenizer.pad_token_id
    for mb in model.micro_batches(rows):
        model.forward(mb).logprobs.sum().backward()
    ours, expected = cleared(loaded.model), gradients(reference, rows)
    name = "model.embed_tokens.weight"
    assert ours[name].shape[0] == 49_152
    assert "lm_head.weight" not in ours  # one matrix has both roles
    assert reference.get_output_embeddings().weight is reference.get_input_embeddings().weight
    whole, of_end = distance(ours, expected), distance({"end": ours[name][end]}, {"end": expected[name][end]})
    table = reference.get_input_embeddings()
    table.padding_idx = end  # as transformers loads it: only the gradient of this matrix depends on it
    total = torch.stack([plain_logprobs(reference, row).sum() for row in rows]).sum()
    (without,) = torch.autograd.grad(total, table.weight)
    table.padding_idx = None
    padded = length([without - expected[name]]) / length(expected.values())
    for figure in (("gradient", whole), ("row of the padding", of_end), ("without that row", padded)):
        record_property(*figure)
    assert whole <= 1e-5
    assert of_end <= 1e-5
    assert padded > 1e-3


@pytest.mark.parametrize("of", ["embedding", "output_head"])
def test_gvm_s_norms_are_those_of_one_backward_per_rollout(few, reference, of: Matrix, monkeypatch, record_property):
    """The matrix is one. Its role as the output layer alone is that of a copy."""
    loaded, rows = few
    matrix = tied = reference.get_input_embeddings().weight
    if of == "output_head":
        matrix = nn.Parameter(tied.detach().clone())
        monkeypatch.setattr(reference.get_output_embeddings(), "weight", matrix)
    sums = [plain_logprobs(reference, row).sum() for row in rows]
    expected = [torch.autograd.grad(each, matrix)[0].double().norm().item() for each in sums]
    found = policy(loaded).gradient_norms(rows, of=of)
    record_property("relative", float(np.max(np.abs(found / expected - 1))))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_value_head_reads_the_states_that_predict_each_token(few, reference, record_property):
    loaded, rows = few
    critic = policy(loaded, value_head="trained")
    head = critic.value_head
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        head["value_head.weight"].normal_(generator=generator)
        head["value_head.bias"].fill_(0.5)
        (mb,) = critic.micro_batches(rows)
        found = critic.forward(mb, {"values"}).values
        expected = (
            torch.cat([_states(reference.get_decoder(), row) for row in rows]) @ head["value_head.weight"][0] + 0.5
        )
    relative = ((found - expected).norm() / expected.norm()).item()
    record_property("relative", relative)
    assert found.shape == expected.shape
    assert expected.std() > 1
    assert relative <= 1e-5


def _states(backbone, row: TrainingSequence) -> torch.Tensor:
    tokens = torch.from_numpy(np.concatenate([row.prompt.tokens, row.rollout.tokens]))
    return backbone(input_ids=tokens[None]).last_hidden_state[0, len(row.prompt.tokens) - 1 : -1]


def test_a_system_message_takes_the_place_of_the_template_s_own(folder):
    tokenizer = load_tokenizer(PUBLISHED)
    own, default = (prompts(tokenizer, 1, system)[0].text for system in ("Be brief.", None))
    assert own.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    assert default.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert own.count("system") == default.count("system") == 1
    assert own.partition("user\n")[2] == default.partition("user\n")[2]
