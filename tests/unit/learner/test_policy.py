from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    OPTConfig,
    PreTrainedConfig,
    Qwen2Config,
)
from transformers.modeling_outputs import BaseModelOutputWithPast

from refusals import refused
from winnow.algos.loss import clip, gspo
from winnow.errors import ConfigError
from winnow.learner.learner import compute_logprobs
from winnow.learner.micro_batches import micro_batches
from winnow.learner.model_input import hidden_states, sharing_pays, tokens_shared, tokens_side_by_side
from winnow.learner.policy import Policy
from winnow.learner.policy_module import PRODUCTS
from winnow.models.adapter import add_lora
from winnow.records import Batch, MicroBatch, Prompt, Rollout, TrainingSequence

V = 19
PAD = 0
STOP = 1
FAMILIES = {"qwen2": Qwen2Config, "llama": LlamaConfig}
SMALL = {
    "vocab_size": V,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
PRECISION = {torch.float64: 1e-12, torch.float32: 1e-5}


def build(config: PreTrainedConfig, dtype: torch.dtype) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).to(dtype)
        for parameter in model.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))  # far from a uniform distribution
    return model


def tiny(family: str = "qwen2", dtype: torch.dtype = torch.float64, **options: object) -> nn.Module:
    """A random model. Its norms are torch's own: those of transformers compute in float32 whatever the weights are,
    which would hide any error below 1e-7.
    """
    model = build(FAMILIES[family](**{**SMALL, **options}), dtype)
    for name, norm in list(model.named_modules()):
        if type(norm).__name__.endswith("RMSNorm"):
            parent, _, child = name.rpartition(".")
            own = nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon, dtype=dtype)
            own.weight = norm.weight
            setattr(model.get_submodule(parent), child, own)
    return model


def test_an_adapter_on_the_embedding_learns_the_padding_token() -> None:
    model = add_lora(
        tiny(tie_word_embeddings=False, pad_token_id=5), rank=2, alpha=4.0, targets=["embed_tokens"], seed=0
    )
    for name, parameter in model.named_parameters():
        if "lora_embedding_B" in name:  # it begins at 0, where A has no gradient
            parameter.data.fill_(0.1)
    p, mb = policy(model), micro([row([2, 5], [4, 6])])
    scalar(p.forward(mb).logprobs, mb).backward()
    (a,) = (parameter for name, parameter in p.parameters.items() if "lora_embedding_A" in name)
    assert a.grad is not None
    assert a.grad[:, 5].abs().max() > 0


def policy(model: nn.Module, *, temperature: float = 1.0, **options: object) -> Policy:
    defaults = {"pad_token": PAD, "tokens_per_micro_batch": 64, "chunk_tokens": 7}
    return Policy(model, temperature=temperature, **{**defaults, **options})


def row(
    prompt: Sequence[int],
    completion: Sequence[int],
    *,
    group: int = 0,
    index: int = 0,
    weight: float = 1.0,
    advantage: float = 1.0,
    trainable: Sequence[bool] | None = None,
) -> TrainingSequence:
    return TrainingSequence(
        prompt=Prompt(id=f"p{group}", tokens=np.array(prompt, dtype=np.int64), text="", answer=None, task="t"),
        rollout=Rollout(
            index=index,
            tokens=np.array(completion, dtype=np.int64),
            logprobs=np.full(len(completion), -1.0),
            text="",
            finish="stop",
            version=0,
            trainable=None if trainable is None else np.array(trainable),
        ),
        group=group,
        advantage=advantage,
        weight=weight,
    )


def rows_of_many_lengths() -> list[TrainingSequence]:
    rng = np.random.default_rng(3)
    rows = []
    for i in range(9):
        prompt, completion = rng.integers(2, V, 2 + i % 4), rng.integers(2, V, 1 + (5 * i) % 8)
        rows.append(row(prompt, completion, group=i, weight=0.1 * (i + 1), advantage=(-1.0) ** i * (1 + i)))
    return rows


def micro(rows: Sequence[TrainingSequence], dtype: torch.dtype = torch.float64, tokens: int = 10_000) -> MicroBatch:
    (mb,) = micro_batches(rows, tokens=tokens, device=torch.device("cpu"), dtype=dtype)
    return mb


def batch(rows: Sequence[TrainingSequence], epoch: int = 0) -> Batch:
    return Batch(epoch=epoch, sequences=tuple(rows))


def scalar(logprobs: Tensor, mb: MicroBatch) -> Tensor:
    return -mb.of_trained(mb.weights * mb.advantages * logprobs).sum()


def gradient(p: Policy, rows: Sequence[TrainingSequence], *, tokens: int) -> Tensor:
    """The flat gradient after every micro-batch of the rows."""
    p.model.zero_grad()
    for mb in micro_batches(rows, tokens=tokens, device=p.device, dtype=p.dtype):
        scalar(p.forward(mb).logprobs, mb).backward()
    return flat_gradient(p.model)


def flat_gradient(model: nn.Module) -> Tensor:
    zeros_if_none = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([g.flatten() for g in zeros_if_none]).clone()


def distance(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def plain_logprobs(model: nn.Module, r: TrainingSequence, temperature: float = 1.0) -> Tensor:
    """[L] of one row alone, by the model's own forward: no padding, no chunks, no selection of positions."""
    tokens = torch.tensor([*r.prompt.tokens, *r.rollout.tokens]).unsqueeze(0)
    logprobs = (model(input_ids=tokens).logits[0] / temperature).log_softmax(-1)
    first = len(r.prompt.tokens)
    return torch.stack([logprobs[t - 1, tokens[0, t]] for t in range(first, tokens.shape[1])])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", PRECISION)
def test_any_split_into_micro_batches_gives_the_same_gradient(family: str, dtype: torch.dtype) -> None:
    p, rows = policy(tiny(family, dtype)), rows_of_many_lengths()
    alone, middle, together = (gradient(p, rows, tokens=tokens) for tokens in (1, 30, 10_000))
    assert together.norm() > 1
    assert distance(alone, together) < PRECISION[dtype]
    assert distance(middle, together) < PRECISION[dtype]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_padded_rows_equal_single_rows(family: str, dtype: torch.dtype, temperature: float) -> None:
    model = tiny(family, dtype)
    mb = micro(rows_of_many_lengths(), dtype)
    got = policy(model, temperature=temperature).forward(mb).logprobs
    expected = torch.cat([plain_logprobs(model, r, temperature) for r in mb.sequences])
    torch.testing.assert_close(got, expected, rtol=0, atol=10 * PRECISION[dtype])


@pytest.mark.parametrize("tied", [True, False])
def test_gradient_equals_that_of_single_rows(tied: bool) -> None:
    model = tiny(tie_word_embeddings=tied)
    rows = rows_of_many_lengths()
    got = gradient(policy(model), rows, tokens=50)
    model.zero_grad()
    sum(-r.weight * r.advantage * plain_logprobs(model, r).sum() for r in rows).backward()
    assert distance(got, flat_gradient(model)) < 1e-12


def test_every_completion_is_paired_with_its_own_prompt() -> None:
    model = tiny()
    prompts, completions = ([2, 3, 4], [5, 6, 7]), ([8, 9, 10], [11, 12, 13])
    rows = [row(prompts[g], completions[i], group=g, index=i) for g in (0, 1) for i in (0, 1)]
    mb = micro(rows)
    got = policy(model).forward(mb).logprobs
    for i, r in enumerate(mb.sequences):
        torch.testing.assert_close(got[mb.sequence_index == i], plain_logprobs(model, r), rtol=0, atol=1e-12)
    swapped = plain_logprobs(model, row(prompts[1], completions[0]))
    assert (got[:3] - swapped).abs().max() > 1e-3, "the two prompts must matter for this test to mean anything"


def test_float64_of_the_stock_model_is_as_good_as_its_norms_allow() -> None:
    model = build(Qwen2Config(**SMALL), torch.float64)
    mb = micro(rows_of_many_lengths())
    expected = torch.cat([plain_logprobs(model, r) for r in mb.sequences])
    torch.testing.assert_close(policy(model).forward(mb).logprobs, expected, rtol=0, atol=1e-6)


def test_temperature_by_hand() -> None:
    model = tiny()
    r = row([2, 3], [4])
    logits = model(input_ids=torch.tensor([[2, 3]])).logits[0, -1]
    expected = logits[4] / 0.5 - torch.logsumexp(logits / 0.5, 0)
    got = policy(model, temperature=0.5).forward(micro([r])).logprobs
    torch.testing.assert_close(got, expected.unsqueeze(0))


def test_entropy_only_on_request() -> None:
    model = tiny()
    mb = micro([row([2, 3], [4])])
    assert policy(model).forward(mb).entropy is None
    logits = model(input_ids=torch.tensor([[2, 3]])).logits[0, -1]
    out = policy(model, temperature=2.0).forward(mb, needs={"entropy"})
    assert out.entropy is not None
    torch.testing.assert_close(out.entropy[0], torch.distributions.Categorical(logits=logits / 2).entropy())


@pytest.mark.parametrize("chunk", [1, 5, 4096])
def test_chunks_do_not_change_the_gradient(chunk: int) -> None:
    rows = rows_of_many_lengths()
    model = tiny()
    whole = gradient(policy(model, chunk_tokens=4096), rows, tokens=10_000)
    assert distance(gradient(policy(model, chunk_tokens=chunk), rows, tokens=10_000), whole) < 1e-12


def test_prompt_and_pad_positions_get_no_gradient() -> None:
    model = tiny()
    p = policy(model)
    mb = micro([row([2, 3, 4], [5, 6, 7, 8]), row([9, 10], [11])])
    hidden: list[Tensor] = []

    def watch(module: nn.Module, args: object, output: BaseModelOutputWithPast) -> None:
        output.last_hidden_state.retain_grad()
        hidden.append(output.last_hidden_state)

    model.get_decoder().register_forward_hook(watch)
    scalar(p.forward(mb).logprobs, mb).backward()
    taught = (hidden[0].grad != 0).any(-1)
    assert taught.tolist() == [[False, False, True, True, True, True], [False, True, False, False, False, False]]


def test_pad_token_gets_no_gradient_where_it_pads() -> None:
    model = tiny(tie_word_embeddings=False)
    gradient(policy(model), [row([2, 3, 4], [5, 6, 7, 8]), row([9, 10], [11])], tokens=10_000)
    assert torch.all(model.get_input_embeddings().weight.grad[PAD] == 0)


def test_pad_token_is_an_ordinary_token_where_it_does_not_pad() -> None:
    model = tiny(tie_word_embeddings=False, pad_token_id=PAD, eos_token_id=PAD)
    rows = [row([2, PAD, 4], [5, PAD, 6, PAD]), row([9, 10], [PAD])]
    got = gradient(policy(model, pad_token=PAD), rows, tokens=10_000)
    other_pad = gradient(policy(model, pad_token=17), rows, tokens=10_000)
    model.zero_grad()
    sum(-plain_logprobs(model, r).sum() for r in rows).backward()
    assert torch.any(model.get_input_embeddings().weight.grad[PAD] != 0)
    assert torch.equal(got, other_pad)
    assert distance(got, flat_gradient(model)) < 1e-12


def test_stop_token_is_trained() -> None:
    model = tiny(tie_word_embeddings=False)
    r = row([2, 3], [4, STOP])
    before = plain_logprobs(model, r)[-1].item()
    p = policy(model, pad_token=STOP)
    gradient(p, [r], tokens=10_000)
    assert model.get_output_embeddings().weight.grad[STOP].abs().max() > 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
    assert plain_logprobs(model, r)[-1].item() > before


def test_tokens_that_are_not_trainable_give_no_gradient() -> None:
    model = tiny()
    r = row([2, 3], [4, 5, 6], trainable=[True, False, True])
    got = gradient(policy(model), [r], tokens=10_000)
    model.zero_grad()
    (-plain_logprobs(model, r)[[0, 2]].sum()).backward()
    assert distance(got, flat_gradient(model)) < 1e-12


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="'p0'"):
        policy(tiny()).forward(micro([row([], [4])]))


def test_old_logprobs_are_computed_once_per_batch_before_any_update() -> None:
    """Epochs that are cut into the same batches share a pass."""
    model = tiny()
    p = policy(model, tokens_per_micro_batch=30)
    rows = rows_of_many_lengths()
    fed: list[int] = []
    model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: fed.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    given = [batch(rows), batch(rows, epoch=1), batch(rows[:3], epoch=2), batch(rows[3:][::-1], epoch=2)]
    batches = compute_logprobs(p, given, {"old_logprobs", "entropy"})
    assert sum(fed) == 2 * len(rows)
    expected = {r.key: plain_logprobs(model, r).detach().numpy() for r in rows}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1.0
    for before, after in zip(given, batches, strict=True):
        assert [r.key for r in after.sequences] == [r.key for r in before.sequences]
        for r in after.sequences:
            np.testing.assert_allclose(r.old_logprobs, expected[r.key], atol=1e-12)


@pytest.mark.parametrize("loss", [clip, gspo])
@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_checkpointing": "full"}, {"gradient_checkpointing": "selective"}, {"packed": True}],
    ids=["shared", "padded", "padded, selective", "packed"],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_ratio_of_every_update_starts_at_exactly_1(dtype: torch.dtype, options: dict[str, object], loss) -> None:
    """In 16 bits the log-probs of a token depend on the sequences beside it, by more than the bounds of GSPO."""
    model = tiny(dtype=dtype, hidden_size=64, intermediate_size=160)
    p = policy(model, tokens_per_micro_batch=60, **options)
    rows = [row([2, 3, 4 + i % 5], range(2, 5 + (7 * i) % 11), group=i // 4, index=i % 4) for i in range(16)]
    updates = [batch(rows[:8]), batch(rows[8:]), batch(rows[4:12], epoch=1), batch(rows[12:] + rows[:4], epoch=1)]
    for filled in compute_logprobs(p, updates, {"old_logprobs"}):
        for mb in p.micro_batches(filled.sequences):
            _, seen = loss(p.forward(mb), mb)
            assert (seen["ratio"] == 1).all()
            assert not seen["clip_fraction"].any()


def test_old_logprobs_reach_the_micro_batch_in_token_order() -> None:
    p = policy(tiny())
    (filled,) = compute_logprobs(p, [batch(rows_of_many_lengths())], {"old_logprobs"})
    mb = micro(filled.sequences)
    assert mb.old_logprobs is not None
    torch.testing.assert_close(p.forward(mb).logprobs, mb.old_logprobs, rtol=0, atol=1e-12)


def test_what_is_not_needed_is_not_computed() -> None:
    batches = [batch(rows_of_many_lengths())]
    assert compute_logprobs(policy(tiny()), batches, set()) == batches


def test_dropout_is_off() -> None:
    model = tiny(attention_dropout=0.5).train()
    p, mb = policy(model), micro(rows_of_many_lengths())
    assert torch.equal(p.forward(mb).logprobs, p.forward(mb).logprobs)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("how", ["selective", "full"])
def test_gradient_checkpointing_gives_equal_gradients_and_saves_memory(family: str, adapter: bool, how: str) -> None:
    rows = rows_of_many_lengths()

    def made(**options: object) -> Policy:
        model = tiny(family, attention_dropout=0.5)
        model = add_lora(model, rank=2, alpha=4.0, targets="all-linear", seed=0) if adapter else model
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data.fill_(0.05)
        return policy(model, **options)

    plain, p = made(), made(gradient_checkpointing=how)
    assert torch.equal(gradient(p, rows, tokens=40), gradient(plain, rows, tokens=40))
    assert saved_elements(p, rows) < 0.5 * saved_elements(plain, rows)
    assert not any(module.training for module in p.model.modules()), "an engine's cache would be switched off"


@pytest.mark.parametrize("adapter", [False, True])
def test_selective_checkpointing_computes_no_product_of_weights_twice(adapter: bool) -> None:
    """With full checkpointing each layer's are, but the last, down, whose answer backward does not need; with adapters
    that one too, and every A. An adapter's B is computed again in both, as what it gives takes more memory than time.
    """
    found = {}
    for how in ("none", "selective", "full"):
        model = tiny(hidden_size=64, num_attention_heads=4, intermediate_size=96)
        model = add_lora(model, rank=1, alpha=2.0, targets="all-linear", seed=0) if adapter else model
        p, mb = policy(model, gradient_checkpointing=how, chunk_tokens=4096), micro(rows_of_many_lengths())
        counted = Counter[str]()
        with Products(counted):
            scalar(p.forward(mb).logprobs, mb).backward()
        found[how] = counted
    spared = found["full"] - found["selective"]
    assert spared == {"wide": 2 * (7 + 7) if adapter else 2 * 6}
    assert adapter or found["selective"] == found["none"]


class Products(TorchDispatchMode):
    """Counts products of a matrix of weights by whether they sum over one number, as an adapter's B of rank 1 does."""

    def __init__(self, counted: Counter[str]) -> None:
        super().__init__()
        self.counted = counted

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func in PRODUCTS:
            self.counted["narrow" if args[-1].shape[0] == 1 else "wide"] += 1
        return func(*args, **(kwargs or {}))


def saved_elements(p: Policy, rows: Sequence[TrainingSequence]) -> int:
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        p.forward(micro(rows))
    return sum(saved)


def test_bfloat16_weights_give_float32_logprobs() -> None:
    model = build(Qwen2Config(**SMALL), torch.bfloat16)
    p = policy(model)
    assert p.dtype == torch.float32
    assert p.forward(micro(rows_of_many_lengths(), p.dtype)).logprobs.dtype == torch.float32


def test_weights_are_the_trained_parameters() -> None:
    model = tiny(tie_word_embeddings=True)
    weights = policy(model).weights()
    assert weights.keys() == dict(model.named_parameters()).keys()
    assert not any(w.requires_grad for w in weights.values())
    adapted = policy(add_lora(tiny(), rank=2, alpha=4.0, targets="all-linear", seed=0))
    assert adapted.weights()
    assert all("lora_" in name for name in adapted.weights())


def test_adapters_train_like_the_merged_model() -> None:
    rows = rows_of_many_lengths()
    adapted = add_lora(tiny(), rank=2, alpha=4.0, targets="all-linear", seed=0)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(0.05)
    p = policy(adapted, gradient_checkpointing="full")
    assert distance(gradient(p, rows, tokens=30), gradient(p, rows, tokens=10_000)) < 1e-12
    got = p.forward(micro(rows)).logprobs
    merged = policy(adapted.merge_and_unload()).forward(micro(rows)).logprobs
    torch.testing.assert_close(got, merged, rtol=0, atol=1e-12)


SOFT_CAPPED = Gemma2Config(**{**SMALL, "head_dim": 4, "final_logit_softcapping": 30.0})
SCALED = GraniteConfig(**{**SMALL, "logits_scaling": 8.0})


@pytest.mark.parametrize("config", [SOFT_CAPPED, SCALED], ids=["soft cap", "scale"])
def test_logits_that_are_not_the_output_layers_are_refused(config: PreTrainedConfig) -> None:
    with refused(ConfigError, f"{config.model_type.title()}ForCausalLM", key="model.path", code="config.unsupported"):
        policy(build(config, torch.float32))


def test_a_scale_of_one_is_no_scale() -> None:
    policy(build(GraniteConfig(**{**SMALL, "logits_scaling": 1.0}), torch.float32))


def test_a_model_of_another_make_is_taken() -> None:
    config = GPT2Config(
        vocab_size=V, n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=STOP, eos_token_id=STOP
    )
    model = build(config, torch.float64).train()
    p, mb = policy(model, gradient_checkpointing="full"), micro(rows_of_many_lengths())
    assert torch.equal(p.forward(mb).logprobs, p.forward(mb).logprobs)


def test_checkpointing_a_layer_that_drops_out_by_itself_is_refused() -> None:
    config = OPTConfig(
        vocab_size=V,
        hidden_size=16,
        word_embed_proj_dim=16,
        ffn_dim=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        dropout=0.1,
    )
    with refused(ConfigError, "dropout", key="model.gradient_checkpointing", code="config.unsupported"):
        policy(build(config, torch.float32), gradient_checkpointing="full")


def test_a_batch_keeps_its_place_when_logprobs_are_filled() -> None:
    (after,) = compute_logprobs(policy(tiny()), [batch(rows_of_many_lengths(), epoch=2)], {"old_logprobs"})
    assert after.epoch == 2


def rows_of_groups() -> list[TrainingSequence]:
    """Three prompts of 6, 4 and 3 tokens with 5, 4 and 3 rollouts of 1 to 5 tokens, in no order."""
    rng = np.random.default_rng(4)
    rows = []
    for group, (prompt, rollouts) in enumerate([(6, 5), (4, 4), (3, 3)]):
        first = row(rng.integers(2, V, prompt), [2], group=group)
        for index in range(rollouts):
            another = row([], rng.integers(2, V, 1 + (2 * index + group) % 5), group=group, index=index)
            rows.append(dataclasses.replace(another, prompt=first.prompt, weight=0.1 + index, advantage=1.0 - index))
    return [rows[i] for i in rng.permutation(len(rows))]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("longest", [5, 1])
def test_a_shared_prompt_gives_the_same_hidden_states_and_gradients(family: str, longest: int) -> None:
    model = tiny(family)
    rows = rows_of_groups()
    if longest == 1:
        rows = [dataclasses.replace(r, rollout=row([], [2 + i]).rollout) for i, r in enumerate(rows)]
    assert tokens_shared(rows) < 0.9 * tokens_side_by_side(rows)
    found = []
    for layout in ("padded", "shared"):
        model.zero_grad()
        hidden = hidden_states(model.model, rows, pad_token=PAD, layout=layout)
        hidden.mul(torch.arange(hidden.numel()).view_as(hidden)).sum().backward()
        found.append((hidden, flat_gradient(model)))
    (alone, gradient_alone), (shared, gradient_shared) = found
    assert shared.shape == (sum(len(r.rollout.tokens) for r in rows), 16)
    assert distance(shared, alone) < 1e-13
    assert distance(gradient_shared, gradient_alone) < 1e-12


def tokens_read(p: Policy, rows: Sequence[TrainingSequence]) -> int:
    count = 0

    def add(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        nonlocal count
        count += inputs[0].numel()

    with p.model.get_input_embeddings().register_forward_pre_hook(add), torch.no_grad():
        p.forward(micro(rows, p.dtype))
    return count


def test_a_prompt_is_not_shared_beside_much_longer_completions() -> None:
    """Their attention over a mask costs more than the prompt saves."""

    def group(prompt: int, completion: int) -> list[TrainingSequence]:
        first = row([2] * prompt, [3] * completion)
        return [dataclasses.replace(row([], [3] * completion, index=i), prompt=first.prompt) for i in range(8)]

    sizes = ((300, 256), (300, 300), (300, 301), (20, 256), (100, 257), (8192, 1024), (8192, 1025))
    assert [sharing_pays(group(*pair)) for pair in sizes] == [True, True, False, False, False, True, False]


def test_a_prompt_is_read_once_where_that_saves_a_tenth() -> None:
    rows = rows_of_groups()
    p = policy(tiny(dtype=torch.float32))
    assert tokens_side_by_side(rows) == 12 * (6 + 5)
    assert tokens_shared(rows) == 3 * 6 + 12 * 5
    assert tokens_read(p, rows) == 3 * 6 + 12 * 4  # the last token of a completion is never read
    alone = [r for r in rows if r.rollout.index == 0]
    assert tokens_read(p, alone) == 3 * max(len(r.prompt.tokens) + len(r.rollout.tokens) - 1 for r in alone)


def test_what_needs_the_old_way_keeps_it() -> None:
    rows = rows_of_groups()
    side_by_side = 12 * (6 + 5 - 1)
    assert tokens_read(policy(tiny(dtype=torch.float64)), rows) == side_by_side
    assert tokens_read(policy(tiny(dtype=torch.float32), gradient_checkpointing="full"), rows) == side_by_side
    windowed = tiny(dtype=torch.float32, use_sliding_window=True, sliding_window=8, max_window_layers=0)
    assert tokens_read(policy(windowed), rows) == side_by_side
