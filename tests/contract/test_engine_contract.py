"""The contract of engines, checked for every registered engine; what depends on a model's layers, on three
architectures.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from refusals import refused
from winnow.engines.base import Engine, EngineContext, Tolerance
from winnow.engines.process.engine import SecondProcess
from winnow.engines.scripted import Scripted
from winnow.errors import ConfigError, EngineError
from winnow.records import Group, Prompt, Rollout, Sampling
from winnow.registry import members
from winnow.testing import check_engine

CHARACTERS = "0123456789+-=abcdefghijklmnop "
STOP = len(CHARACTERS)
VOCABULARY = STOP + 2
SIZES = dict(
    vocab_size=VOCABULARY + 3,  # an embedding wider than the tokenizer, as padded ones are
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)
ARCHITECTURES = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (partial(Qwen3Config, head_dim=16), Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}
OPTIONS = {"scripted": {"script": lambda prompt, index: "abc+12"[: index + 1]}}
ENGINES = sorted(set(members("engine")) - {"vllm"})  # tests/with_vllm runs the same tests with vllm
MODELS_ONLY = sorted(set(ENGINES) - {"scripted"})


def tokenizer() -> PreTrainedTokenizerFast:
    words = {character: i for i, character in enumerate(CHARACTERS)} | {"<eos>": STOP, "<pad>": STOP + 1}
    characters = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    characters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=characters, eos_token="<eos>", pad_token="<pad>")


MERGES = [("<", "/"), (">", "\n"), (">\n", "\n"), ("a", ">\n"), ("1", "a"), (" ", "b")]


def merging() -> PreTrainedTokenizerFast:
    """A tokenizer with tokens that contain text after a stop string, as real policies have, with characters spelled in
    bytes, and with a second special token.
    """
    pieces = [*"</a>\n 12bcdefghij3456", *("".join(pair) for pair in MERGES), "<0xC3>", "<0xA9>", "<0x3E>"]
    words = {piece: i for i, piece in enumerate([*pieces, "<eos>", "<pad>", "<|end|>"])}
    assert words["<eos>"] == STOP
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=MERGES, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", additional_special_tokens=["<|end|>"]
    )


def tiny(architecture: str, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    config, model = ARCHITECTURES[architecture]
    policy = model(config(**SIZES))
    with torch.no_grad():
        policy.lm_head.weight.mul_(12)  # far from uniform, so that a wrong log-prob shows
    return policy


def of_every_architecture(test: Any) -> Any:
    """For a test of what is computed from a model's layers: others read what becomes of it, alike for all."""
    test.architectures = sorted(ARCHITECTURES)
    return test


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "policy" in metafunc.fixturenames:
        metafunc.parametrize("policy", getattr(metafunc.function, "architectures", ["qwen2"]), indirect=True)


@pytest.fixture
def policy(request: pytest.FixtureRequest) -> torch.nn.Module:
    return tiny(request.param)


def build(
    name: str,
    model: torch.nn.Module | None,
    *,
    at_once: int = 64,
    tokens: Callable[[], PreTrainedTokenizerFast] = tokenizer,
    **options: Any,
) -> Engine:
    context = EngineContext(model=model, tokenizer=tokens(), stop_tokens=(STOP,), max_rollouts_at_once=at_once)
    return members("engine")[name].function(context, **{**OPTIONS.get(name, {}), **options})


def build_merging(name: str) -> Engine:
    """An engine whose tokenizer has merged tokens; most scripts of `scripted` continue after they should end."""
    texts = ["1a>\n2", "c</a>\n\nd", "éa", "2<|end|>b", "b</3", "123"]
    options = {"script": texts} if name == "scripted" else {}
    return build(name, tiny("qwen2"), tokens=merging, **options)


# Slow: its start; test_process.py shows that another process answers as an engine does, and every rollout exactly
SECOND = pytest.param("second process", marks=pytest.mark.slow)


@pytest.fixture(params=[*ENGINES, SECOND], scope="module")
def merging_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "second process":
        engine = SecondProcess(f"{__file__}:build_merging", {"name": "hf"}, timeout_seconds=60)
        yield engine
        engine.close()
    else:
        yield build_merging(request.param)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, policy: torch.nn.Module) -> Engine:
    return build(request.param, policy)


@pytest.fixture(params=MODELS_ONLY)
def sampler(request: pytest.FixtureRequest, policy: torch.nn.Module) -> tuple[str, Engine, torch.nn.Module]:
    return request.param, build(request.param, policy), policy


def prompt(text: str) -> Prompt:
    tokens = np.array(tokenizer().encode(text), dtype=np.int64)
    return Prompt(id=f"id:{text}", tokens=tokens, text=text, answer=None, task="none")


PROMPTS = [prompt(text) for text in ("1+1=", "12+34=", "a", "abc-1234567=", "p p")]
SAMPLING = Sampling(max_new_tokens=12)


def flat(groups: Sequence[Group]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group.rollouts]


def reference(model: torch.nn.Module, prompt: Prompt, rollout: Rollout, temperature: float = 1.0) -> np.ndarray:
    """[L] log-probs of a rollout, teacher-forced alone."""
    sequence = torch.tensor(np.concatenate([prompt.tokens, rollout.tokens]))[None]
    with torch.no_grad():
        logits = model(input_ids=sequence).logits[0, len(prompt.tokens) - 1 : -1].double() / temperature
    return logits.log_softmax(-1).gather(-1, torch.tensor(rollout.tokens)[:, None])[:, 0].numpy()


def check_same(a: Sequence[Rollout], b: Sequence[Rollout]) -> None:
    for one, other in zip(a, b, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_groups_follow_prompts_and_counts(engine: Engine) -> None:
    counts = [3, 0, 1, 7, 2]
    groups = engine.generate(PROMPTS, counts, SAMPLING, seed=(0, 1))
    assert [group.prompt for group in groups] == PROMPTS
    assert [[rollout.index for rollout in group.rollouts] for group in groups] == [list(range(n)) for n in counts]
    assert {rollout.version for rollout in flat(groups)} == {0}
    for rollout in flat(groups):
        assert rollout.tokens.dtype == np.int64
        assert rollout.logprobs.dtype == np.float64
        assert rollout.tokens.shape == rollout.logprobs.shape
        assert 1 <= len(rollout.tokens) <= SAMPLING.max_new_tokens
        assert (rollout.logprobs <= 0).all()
        assert rollout.text == tokenizer().decode(rollout.tokens, skip_special_tokens=True)


def test_an_empty_request_returns_no_rollouts(engine: Engine) -> None:
    assert engine.generate([], [], SAMPLING, seed=(0,)) == []
    assert flat(engine.generate(PROMPTS, [0] * 5, SAMPLING, seed=(0,))) == []


def test_a_stop_token_ends_a_rollout_and_is_kept(engine: Engine) -> None:
    rollouts = flat(engine.generate(PROMPTS, [8] * 5, SAMPLING, seed=(0, 2)))
    assert {rollout.finish for rollout in rollouts} >= {"stop"}
    for rollout in rollouts:
        assert (rollout.finish == "stop") == (rollout.tokens[-1] == STOP)
        assert STOP not in rollout.tokens[:-1]
        assert rollout.finish == "stop" or len(rollout.tokens) == SAMPLING.max_new_tokens


@pytest.mark.parametrize("name", ENGINES)
def test_the_public_check_passes(name: str) -> None:
    check_engine(members("engine")[name].function, **OPTIONS.get(name, {}))


def quiet(self: Scripted, *request: Any, on_rollout: Any = None, **more: Any) -> list[Group]:
    return Scripted.generate(self, *request, **more)


def shortened(self: Scripted, prompts: Any, counts: Sequence[int], *request: Any, **more: Any) -> list[Group]:
    return Scripted.generate(self, prompts, [min(1, count) for count in counts], *request, **more)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"generate": quiet}, "on_rollout"),
        ({"generate": shortened}, "count"),
        ({"load": lambda self, weights, version: None}, "version"),
        ({"logprob_tolerance": Tolerance(mean=1.0, tail=1.0)}, "nats"),
    ],
    ids=["quiet", "shortened", "stale", "untrue"],
)
def test_the_public_check_names_what_is_broken(changes: dict[str, Any], word: str) -> None:
    closed: list[Scripted] = []
    broken = type("Broken", (Scripted,), {**changes, "close": lambda self: closed.append(self)})
    with pytest.raises(AssertionError, match=word):
        check_engine(lambda context: broken(context, OPTIONS["scripted"]["script"]))
    assert closed, "an engine that fails the check is closed"


def test_an_engine_may_be_closed_more_than_once(engine: Engine) -> None:
    engine.generate(PROMPTS[:1], [1], SAMPLING, seed=(0,))
    engine.close()
    engine.close()


def test_a_rollout_of_full_length_finishes_by_length(engine: Engine) -> None:
    rollouts = flat(engine.generate(PROMPTS, [4] * 5, Sampling(max_new_tokens=1), seed=(0, 2)))
    assert {len(rollout.tokens) for rollout in rollouts} == {1}
    assert "length" in {rollout.finish for rollout in rollouts}


def test_stop_string_ends_the_text_and_stays_in_it(engine: Engine) -> None:
    stop = ("+", "12", "c")
    rollouts = flat(engine.generate(PROMPTS, [16] * 5, Sampling(max_new_tokens=12, stop=stop), seed=(0, 3)))
    assert any(rollout.text.endswith(stop) for rollout in rollouts)
    for rollout in rollouts:
        assert not any(end in tokenizer().decode(rollout.tokens[:-1]) for end in stop)
        assert (rollout.finish == "stop") == (rollout.tokens[-1] == STOP or rollout.text.endswith(stop))
        assert rollout.finish == "stop" or len(rollout.tokens) == 12
        assert not any(end in rollout.text[:-1] for end in stop)


def test_stop_strings_may_end_inside_tokens_or_be_special_tokens(merging_engine: Engine) -> None:
    """The tokens are unchanged; the text ends right after the stop string that is complete first."""
    stop, limit, decode = ("a>", "é", "<|end|>"), 12, partial(merging().decode, skip_special_tokens=True)
    ends = (STOP, merging().convert_tokens_to_ids("<|end|>"))
    prompts = [prompt(text) for text in ("1", "2", "3a", "bcd", "=")]
    sampling = Sampling(max_new_tokens=limit, temperature=1.5, stop=stop)
    groups = merging_engine.generate(prompts, [100] * 5, sampling, seed=(0, 3))
    cut, matched = set(), set()
    for rollout in flat(groups):
        before, whole = decode(rollout.tokens[:-1]), decode(rollout.tokens)
        assert not any(text in before for text in stop)
        assert not set(rollout.tokens[:-1].tolist()) & set(ends)
        assert rollout.text == whole[: min((whole.index(s) + len(s) for s in stop if s in whole), default=None)]
        stopped = rollout.tokens[-1] in ends or rollout.text.endswith(stop)
        assert (rollout.finish == "stop") == stopped
        assert stopped or len(rollout.tokens) == limit
        cut |= {whole[len(rollout.text) :]}
        matched |= {text for text in stop if rollout.text.endswith(text)} | {int(rollout.tokens[-1])} & set(ends)
    assert cut >= {"", "\n"}
    assert matched == {"a>", "é", *ends}


def test_a_stop_string_that_could_never_be_found_is_refused(merging_engine: Engine) -> None:
    with refused(ConfigError, "'<|end|>'", key="rollout.stop", code="config.value"):
        merging_engine.generate(PROMPTS[:1], [1], Sampling(max_new_tokens=2, stop=("<|end|>\n",)), seed=(0,))


def test_every_rollout_is_announced_once(engine: Engine) -> None:
    calls: list[tuple[Prompt, Rollout]] = []
    groups = engine.generate(PROMPTS, [4, 0, 2, 1, 3], SAMPLING, seed=(0,), on_rollout=lambda *pair: calls.append(pair))
    expected = {id(rollout): group.prompt for group in groups for rollout in group.rollouts}
    assert len(calls) == len(expected) == 10
    assert {id(rollout): of for of, rollout in calls} == expected


def test_same_seed_same_rollouts(engine: Engine) -> None:
    a, b = (flat(engine.generate(PROMPTS, [4] * 5, SAMPLING, seed=(7, "train", 1))) for _ in range(2))
    for one, other in zip(a, b, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)


@of_every_architecture
def test_order_and_neighbours_do_not_matter(engine: Engine) -> None:
    groups = engine.generate(PROMPTS, [4, 3, 2, 1, 5], SAMPLING, seed=(3,))
    backwards = engine.generate(PROMPTS[::-1], [5, 1, 2, 3, 4], SAMPLING, seed=(3,))[::-1]
    alone = engine.generate(PROMPTS[3:4], [1], SAMPLING, seed=(3,))
    check_same(flat(groups), flat(backwards))
    check_same(groups[3].rollouts, alone[0].rollouts)


def test_more_rollouts_do_not_change_the_first_ones(engine: Engine) -> None:
    few, many = (engine.generate(PROMPTS, [n] * 5, SAMPLING, seed=(3,)) for n in (2, 6))
    check_same(flat(few), [rollout for group in many for rollout in group.rollouts[:2]])


def test_an_inconsistent_request_is_refused(engine: Engine) -> None:
    with refused(EngineError, 2, 1, code="engine.contract"):
        engine.generate(PROMPTS[:2], [1], SAMPLING, seed=(0,))
    with refused(EngineError, "-1", code="engine.contract"):
        engine.generate(PROMPTS[:1], [-1], SAMPLING, seed=(0,))
    with refused(EngineError, key="rollout.stop", code="engine.contract"):
        engine.generate(PROMPTS[:1], [1], Sampling(max_new_tokens=2, stop=("",)), seed=(0,))


def test_a_version_must_grow_and_is_stamped(engine: Engine, policy: torch.nn.Module) -> None:
    engine.load(policy.state_dict(), version=3)
    assert engine.version == 3
    assert flat(engine.generate(PROMPTS, [1] * 5, SAMPLING, seed=(0,)))[0].version == 3
    for stale in (3, 2):
        with refused(EngineError, 3, stale, code="engine.stale_weights"):
            engine.load(policy.state_dict(), version=stale)


Sampler = tuple[str, Engine, torch.nn.Module]


@of_every_architecture
@pytest.mark.parametrize("temperature", [0.6, 1.7])  # 1 is that of greedy ones, and of loaded weights
def test_logprobs_are_the_policy_s(sampler: Sampler, temperature: float) -> None:
    _, engine, model = sampler
    sampling = Sampling(max_new_tokens=12, temperature=temperature)
    for group in engine.generate(PROMPTS, [6] * 5, sampling, seed=(0,)):
        for rollout in group.rollouts:
            expected = reference(model, group.prompt, rollout, temperature)
            np.testing.assert_allclose(
                rollout.logprobs, expected, atol=min(1e-4, engine.logprob_tolerance.tail), rtol=0
            )


@of_every_architecture
def test_a_small_batch_limit_changes_nothing(sampler: Sampler) -> None:
    name, engine, model = sampler
    counts = [5, 3, 0, 6, 4]
    wide = engine.generate(PROMPTS, counts, SAMPLING, seed=(3,))
    narrow = build(name, model, at_once=7).generate(PROMPTS, counts, SAMPLING, seed=(3,))
    check_same(flat(wide), flat(narrow))


def test_other_seed_or_other_prompt_id_other_rollouts(sampler: Sampler) -> None:
    _, engine, _ = sampler
    twin = Prompt(id="twin", tokens=PROMPTS[0].tokens, text=PROMPTS[0].text, answer=None, task="none")
    a, b = engine.generate([PROMPTS[0], twin], [8, 8], SAMPLING, seed=(0,))
    c = engine.generate([PROMPTS[0]], [8], SAMPLING, seed=(1,))[0]
    texts = [tuple(rollout.text for rollout in group.rollouts) for group in (a, b, c)]
    assert len(set(texts)) == 3


def test_first_tokens_follow_the_policy_s_distribution(sampler: Sampler) -> None:
    _, engine, model = sampler
    n = 2000
    group = engine.generate([PROMPTS[1]], [n], Sampling(max_new_tokens=1), seed=(11,))[0]
    with torch.no_grad():
        p = model(input_ids=torch.tensor(PROMPTS[1].tokens)[None]).logits[0, -1].double().softmax(-1).numpy()
    seen = np.bincount([rollout.tokens[0] for rollout in group.rollouts], minlength=len(p))
    common = p * n >= 5
    expected, observed = p[common] * n, seen[common]
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    freedom = int(common.sum())
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)


@of_every_architecture
def test_greedy_takes_the_likeliest_token_with_its_log_prob_at_1(sampler: Sampler) -> None:
    _, engine, model = sampler
    for group in engine.generate(PROMPTS, [2] * 5, Sampling(max_new_tokens=8, temperature=0.0), seed=(0,)):
        first, second = group.rollouts
        np.testing.assert_array_equal(first.tokens, second.tokens)
        np.testing.assert_allclose(first.logprobs, reference(model, group.prompt, first), atol=1e-4)
        sequence = torch.tensor(np.concatenate([group.prompt.tokens, first.tokens]))[None]
        with torch.no_grad():
            likeliest = model(input_ids=sequence).logits[0, len(group.prompt.tokens) - 1 : -1].argmax(-1)
        np.testing.assert_array_equal(likeliest.numpy(), first.tokens)


@pytest.mark.parametrize(
    ("cut", "kept"),
    [
        ({"top_k": 3}, lambda p: np.sort(p)[::-1][:3].sum()),
        ({"min_p": 0.2}, lambda p: p[p >= 0.2 * p.max()].sum()),
        ({"top_p": 0.5}, lambda p: np.cumsum(np.sort(p)[::-1])[np.searchsorted(np.cumsum(np.sort(p)[::-1]), 0.5)]),
    ],
    ids=["top_k", "min_p", "top_p"],
)
def test_logprobs_are_those_after_the_cut(
    sampler: Sampler, cut: dict[str, float], kept: Callable[[np.ndarray], float]
) -> None:
    _, engine, model = sampler
    group = engine.generate([PROMPTS[1]], [40], Sampling(max_new_tokens=1, **cut), seed=(0,))[0]
    with torch.no_grad():
        p = model(input_ids=torch.tensor(PROMPTS[1].tokens)[None]).logits[0, -1].double().softmax(-1).numpy()
    for rollout in group.rollouts:
        np.testing.assert_allclose(np.exp(rollout.logprobs[0]), p[rollout.tokens[0]] / kept(p), atol=1e-5)


@of_every_architecture
def test_sampling_does_not_change_the_policy(sampler: Sampler) -> None:
    _, engine, model = sampler
    before = copy.deepcopy(model.state_dict())
    for mode in (True, False):
        model.train(mode)
        engine.generate(PROMPTS, [2] * 5, SAMPLING, seed=(0,))
        assert model.training is mode
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    model(input_ids=torch.tensor(PROMPTS[0].tokens)[None]).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@of_every_architecture
def test_after_a_load_the_engine_samples_with_the_new_weights(sampler: Sampler) -> None:
    _, engine, model = sampler
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    engine.load(model.state_dict(), version=1)
    group = engine.generate([PROMPTS[1]], [4], SAMPLING, seed=(0,))[0]
    for rollout in group.rollouts:
        np.testing.assert_allclose(rollout.logprobs, reference(model, group.prompt, rollout), atol=1e-4)


def test_foreign_weights_are_refused(sampler: Sampler) -> None:
    _, engine, model = sampler
    with refused(EngineError, "head.weight", code="engine.contract"):
        engine.load({**model.state_dict(), "head.weight": torch.zeros(1)}, version=1)
    assert engine.version == 0


@of_every_architecture
def test_engines_agree_token_by_token(policy: torch.nn.Module) -> None:
    one, *others = (build(name, policy).generate(PROMPTS, [6, 5, 0, 8, 3], SAMPLING, seed=(5,)) for name in MODELS_ONLY)
    for other in others:
        check_same(flat(one), flat(other))
