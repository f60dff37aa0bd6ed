"""Rollouts of several turns, against a plain loop that uses transformers alone, and by hand with scripted turns."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from chat_templates import like, render_here
from refusals import refused
from winnow import seeds
from winnow.algos.objective import Objective
from winnow.config import EnvironmentSection
from winnow.engines.base import EngineContext
from winnow.engines.hf import hf
from winnow.engines.native.engine import native
from winnow.engines.policy_copy import KVCacheSpec
from winnow.engines.scripted import scripted
from winnow.engines.stopping import StopRule
from winnow.errors import VerifierError
from winnow.learner.policy import Policy
from winnow.records import Group, Prompt, Rollout, Sampling, ToolAnswer, TrainingSequence
from winnow.registry import resolve
from winnow.tasks.dialogue import Dialogue
from winnow.testing import tiny
from winnow.training.turns import TurnEngine
from winnow.verify.verifiers import Verifiers

SEED = (3, "rollout", 0)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    render_here(monkeypatch)


def echo(prompt, reply, rng, *, turns=2):
    """Answers each turn with its length, for `turns` turns."""
    total = len(reply)
    for _ in range(turns - 1):
        reply = yield f"{len(reply)}!"
        total += len(reply)
    return {"long": float(total), "other": 0.0}


def game(environment, *, max_turns=8, **options):
    spec = {"environment": environment, "options": options, "max_turns": max_turns}
    return Verifiers(spec, workers=0, timeout_seconds=1.0, memory_mb=1, max_failure_share=1.0)


def context_of(loaded):
    return EngineContext(
        model=loaded.model, tokenizer=loaded.tokenizer, stop_tokens=loaded.stop_tokens, max_rollouts_at_once=8
    )


def prompts_of(tokenizer, *names):
    tokens = np.array(tokenizer.encode("<|user|>Go.<|endoftext|><|assistant|><think>", add_special_tokens=False))
    return [Prompt(id=name, tokens=tokens, text="Go.", answer="1", task="t") for name in names]


WITH_TOOLS = (  # answers to tool calls are turns of <|system|>
    "{% for m in messages %}<|{{ 'system' if m.role == 'tool' else m.role }}|>{{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
)


def turn_engine(engine, environment, tokenizer, *, max_turn_tokens, **options):
    section = EnvironmentSection(use="game", max_turn_tokens=max_turn_tokens)
    return TurnEngine(engine, game(environment, **options), Dialogue.of(tokenizer), section, None)


@torch.no_grad()
def plain_turn(model, tokens, key, *, most, stop):
    """One turn, token by token: the first token whose cumulative probability exceeds the uniform number."""
    uniforms, sampled, logprobs = seeds.uniforms([key], most)[0], [], []
    for uniform in uniforms:
        logits = model(input_ids=torch.tensor([[*tokens, *sampled]])).logits[0, -1].double()
        probabilities = logits.softmax(-1)
        sums = probabilities.cumsum(-1)
        sampled.append(int(torch.searchsorted(sums, uniform * sums[-1], right=True)))
        logprobs.append(float(logits.log_softmax(-1)[sampled[-1]]))
        if sampled[-1] in stop:
            break
    return sampled, logprobs


def plain_game(loaded, prompt, index, *, most):
    """Two turns with a plain loop: tokens, log-probs and mask of the rollout."""
    tokenizer, stop = loaded.tokenizer, loaded.stop_tokens
    start = prompt.tokens.tolist()
    first, first_logprobs = plain_turn(loaded.model, start, (*SEED, prompt.id, index), most=most, stop=stop)
    text = tokenizer.decode(first, skip_special_tokens=True)
    written = "<|user|>" if first[-1] == tokenizer.eos_token_id else "<|endoftext|><|user|>"
    between = [
        *tokenizer.encode(written, add_special_tokens=False),
        *tokenizer.encode(f"{len(text)}!", add_special_tokens=False),
        *tokenizer.encode("<|endoftext|><|assistant|><think>", add_special_tokens=False),
    ]
    key = (*SEED, "turn", 1, f"{prompt.id}#{index}", 0)
    second, second_logprobs = plain_turn(loaded.model, [*start, *first, *between], key, most=most, stop=stop)
    mask = [True] * len(first) + [False] * len(between) + [True] * len(second)
    return [*first, *between, *second], [*first_logprobs, *[0.0] * len(between), *second_logprobs], mask


@pytest.mark.parametrize("engine", [hf, native])
def test_two_turns_equal_a_plain_loop_in_tokens_masks_logprobs_and_gradient(engine):
    loaded = tiny()
    made = turn_engine(engine(context_of(loaded)), echo, loaded.tokenizer, max_turn_tokens=7)
    prompts = prompts_of(loaded.tokenizer, "a", "b")
    groups = made.generate(prompts, [3, 2], Sampling(max_new_tokens=48), seed=SEED)
    assert [[r.index for r in group.rollouts] for group in groups] == [[0, 1, 2], [0, 1]]
    sequences, expected = [], torch.zeros(())
    for group in groups:
        for rollout in group.rollouts:
            tokens, logprobs, mask = plain_game(loaded, group.prompt, rollout.index, most=7)
            assert rollout.tokens.tolist() == tokens
            assert rollout.sampled.tolist() == mask
            np.testing.assert_allclose(rollout.logprobs, logprobs, atol=1e-5)
            advantage = 1.0 if rollout.index else -0.5
            sequences.append(
                TrainingSequence(prompt=group.prompt, rollout=rollout, group=0, advantage=advantage, weight=0.25)
            )
            whole = torch.tensor([[*group.prompt.tokens.tolist(), *tokens]])
            of_tokens = loaded.model(input_ids=whole).logits[0, len(group.prompt.tokens) - 1 : -1].log_softmax(-1)
            own = of_tokens.gather(-1, torch.tensor(tokens)[:, None])[:, 0][torch.tensor(mask)]
            expected = expected - 0.25 * advantage * own.sum()
    expected.backward()
    plain = {name: weight.grad.clone() for name, weight in loaded.model.named_parameters()}
    loaded.model.zero_grad()
    policy = Policy(loaded.model, temperature=1.0, pad_token=loaded.stop_tokens[0], tokens_per_micro_batch=512)
    for mb in policy.micro_batches(sequences):
        Objective(loss=resolve("loss", "reinforce").function)(policy.forward(mb), mb).total.backward()
    for name, weight in loaded.model.named_parameters():
        torch.testing.assert_close(weight.grad, plain[name], rtol=1e-5, atol=1e-5)


def test_a_rollout_does_not_depend_on_its_neighbours():
    loaded = tiny()
    alone, together = [], []
    for kept, names in ((alone, ["b"]), (together, ["a", "b", "c"])):
        made = turn_engine(hf(context_of(loaded)), echo, loaded.tokenizer, max_turn_tokens=6)
        groups = made.generate(
            prompts_of(loaded.tokenizer, *names), [2] * len(names), Sampling(max_new_tokens=40), seed=SEED
        )
        kept += [rollout for group in groups for rollout in group.rollouts if group.prompt.id == "b"]
    assert [r.tokens.tolist() for r in alone] == [r.tokens.tolist() for r in together]


def script(prompt, index):
    """The turn "one" first, and "two" in every later turn."""
    return "two" if "#" in prompt.id else "one"


def played(environment, *, most, max_turn_tokens, **options):
    loaded = tiny()
    made = turn_engine(
        scripted(context_of(loaded), script=script),
        environment,
        loaded.tokenizer,
        max_turn_tokens=max_turn_tokens,
        **options,
    )
    seen = []
    (group,) = made.generate(
        prompts_of(loaded.tokenizer, "a"),
        [2],
        Sampling(max_new_tokens=most),
        seed=SEED,
        on_rollout=lambda prompt, rollout: seen.append((prompt.id, rollout)),
    )
    assert [rollout for _, rollout in seen] == list(group.rollouts), "once for every whole rollout"
    assert {name for name, _ in seen} == {"a"}
    return made, group, loaded.tokenizer


def test_turns_text_mask_and_finish_by_hand():
    _, group, tokenizer = played(echo, most=100, max_turn_tokens=8, turns=3)
    rollout = group.rollouts[0]
    assert rollout.turns == ("one", "3!", "two", "3!", "two")
    assert (rollout.text, rollout.finish) == ("one\ntwo\ntwo", "stop")
    assert tokenizer.decode(rollout.tokens) == (
        "one<|endoftext|><|user|>3!<|endoftext|><|assistant|><think>"
        "two<|endoftext|><|user|>3!<|endoftext|><|assistant|><think>two<|endoftext|>"
    )
    own = tokenizer.decode(rollout.tokens[rollout.sampled])
    assert own == "one<|endoftext|>two<|endoftext|>two<|endoftext|>"
    assert rollout.length == rollout.sampled.sum() == len(tokenizer.encode(own, add_special_tokens=False))


def test_answers_to_tool_calls_are_messages_by_hand():
    def tools(prompt, reply, rng):
        yield [ToolAnswer(text=text, name="f", call_id="c") for text in ("84", "error: no <|user|>")]
        yield "and?"
        return 1.0

    loaded = tiny()
    loaded.tokenizer.chat_template = WITH_TOOLS
    made = turn_engine(scripted(context_of(loaded), script=script), tools, loaded.tokenizer, max_turn_tokens=8)
    (group,) = made.generate(prompts_of(loaded.tokenizer, "a"), [1], Sampling(max_new_tokens=200), seed=SEED)
    (rollout,) = group.rollouts
    answers = "<tool_response>\n84\n</tool_response>\n<tool_response>\nerror: no <|user|>\n</tool_response>"
    assert rollout.turns == ("one", answers, "two", "and?", "two")
    assert loaded.tokenizer.decode(rollout.tokens) == (
        "one<|endoftext|><|system|>84<|endoftext|><|system|>error: no <|user|><|endoftext|><|assistant|><think>"
        "two<|endoftext|><|user|>and?<|endoftext|><|assistant|><think>two<|endoftext|>"
    )
    assert (
        loaded.tokenizer.decode(rollout.tokens[rollout.sampled]) == "one<|endoftext|>two<|endoftext|>two<|endoftext|>"
    )


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ((), 'a[TOOL_CALLS]f[ARGS]{"x": 1}b</think>'),
        (("}",), 'a[TOOL_CALLS]f[ARGS]{"x": 1}'),
        (("f",), "a[TOOL_CALLS]f"),
        (("[ARGS]",), "a[TOOL_CALLS]f[ARGS]"),
    ],
)
def test_an_environment_reads_the_special_tokens_of_a_call_and_no_others(stop, text):
    """The engine's text omits them all."""
    tokenizer = like("mistral")
    sampled = 'a[TOOL_CALLS]f[ARGS]{"x": 1}b</think>[/TOOL_RESULTS]</s>'
    rule = StopRule(tokenizer, (tokenizer.eos_token_id,), len(tokenizer), stop)
    tokens = np.array(tokenizer.encode(sampled, add_special_tokens=False))
    length = next(n for n in range(1, len(tokens) + 1) if rule.ends(tokens[:n]))
    plain, _ = rule.read(tokens[:length])
    rollout = Rollout(index=0, tokens=tokens[:length], logprobs=np.zeros(length), text=plain, finish="stop", version=0)

    class Fixed:
        keeps_turns = False

        def generate(self, prompts, counts, sampling, *, seed, on_rollout=None):
            on_rollout(prompts[0], rollout)
            return [Group(prompt=prompts[0], rollouts=(rollout,))]

    made = turn_engine(Fixed(), lambda prompt, reply, rng: 1.0, tokenizer, max_turn_tokens=100)
    prompt = Prompt(id="a", tokens=np.array([1]), text="?", answer="1", task="t")
    (group,) = made.generate([prompt], [1], Sampling(max_new_tokens=200, stop=stop), seed=SEED)
    assert group.rollouts[0].text == text
    assert group.rollouts[0].tokens.tolist() == tokens[:length].tolist()
    assert "[" not in plain


def test_the_outcome_is_that_of_the_environment():
    made, group, _ = played(echo, most=100, max_turn_tokens=8, turns=3)
    (judged,) = made._verifiers.collect([group])
    assert judged.rewards.tolist() == [9.0, 9.0]


def test_no_turn_begins_without_room_for_a_whole_one():
    """A game of two turns needs the first turn, the environment's and `max_turn_tokens` more."""
    _, group, _ = played(echo, most=100, max_turn_tokens=8)
    first = int(np.flatnonzero(~group.rollouts[0].sampled)[0])
    between = int((~group.rollouts[0].sampled).sum())
    for most, finish, turns in ((first + between + 8, "stop", 3), (first + between + 7, "length", 1)):
        made, group, _ = played(echo, most=most, max_turn_tokens=8)
        assert [(r.finish, len(r.turns)) for r in group.rollouts] == [(finish, turns)] * 2
        assert all(len(r.tokens) <= most for r in group.rollouts)
        (judged,) = made._verifiers.collect([group])
        assert judged.rewards.tolist() == ([6.0, 6.0] if finish == "stop" else [0.0, 0.0])
        assert judged.valid.all()


def test_a_turn_ends_at_its_limit_and_its_end_token_is_then_the_environments():
    _, group, tokenizer = played(echo, most=100, max_turn_tokens=1)
    rollout = group.rollouts[0]
    assert rollout.turns[0] == tokenizer.decode(rollout.tokens[:1])
    assert rollout.tokens[1] == tokenizer.eos_token_id
    assert rollout.sampled[:2].tolist() == [True, False]


def test_an_environment_that_fails_is_a_failed_rollout():
    def broken(prompt, reply, rng):
        reply = yield "fine"
        raise ValueError(reply)

    made, group, _ = played(broken, most=100, max_turn_tokens=8)
    (judged,) = made._verifiers.collect([group])
    assert [outcome.kind for outcome in judged.outcomes] == ["failed", "failed"]
    assert [outcome.cause for outcome in judged.outcomes] == ["raised", "raised"]


def test_a_result_that_does_not_repeat_is_named_in_the_first_request():
    calls = []

    def unsteady(prompt, reply, rng):
        calls.append(reply)
        return float(len(calls))

    with refused(VerifierError, "unsteady", code="verifier.not_repeatable"):
        played(unsteady, most=100, max_turn_tokens=8)


def test_each_kind_of_request_is_checked_in_its_first_request():
    """Of two rollouts, both are played again in the first request of a purpose, and in the first with another task."""
    calls = []

    def steady(prompt, reply, rng):
        calls.append(prompt.task)
        return 1.0

    loaded = tiny()
    made = turn_engine(scripted(context_of(loaded), script=script), steady, loaded.tokenizer, max_turn_tokens=8)
    (prompt,) = prompts_of(loaded.tokenizer, "a")
    other, counted = dataclasses.replace(prompt, task="other"), []
    for prompts, purpose in (
        ([prompt], ("rollout", 0)),
        ([prompt], ("rollout", 1)),
        ([prompt], ("evaluate",)),
        ([other], ("evaluate",)),
        ([prompt, dataclasses.replace(other, id="b")], ("rollout", 2)),
    ):
        calls.clear()
        made.generate(prompts, [2] * len(prompts), Sampling(max_new_tokens=100), seed=(3, *purpose))
        counted.append((calls.count("t"), calls.count("other")))
    assert counted == [(4, 0), (2, 0), (4, 0), (0, 4), (2, 4)]


def test_a_result_that_does_not_repeat_in_evaluations_alone_is_named():
    calls = []

    def unsteady(prompt, reply, rng):
        calls.append(reply)
        return float(len(calls)) if prompt.id == "held out" else 1.0

    loaded = tiny()
    made = turn_engine(scripted(context_of(loaded), script=script), unsteady, loaded.tokenizer, max_turn_tokens=8)
    trained, held_out = prompts_of(loaded.tokenizer, "trained", "held out")
    made.generate([trained], [2], Sampling(max_new_tokens=100), seed=(3, "rollout", 0))
    with refused(VerifierError, "unsteady", code="verifier.not_repeatable"):
        made.generate([held_out], [2], Sampling(max_new_tokens=100), seed=(3, "evaluate"))


def test_everything_else_is_the_inner_engines():
    loaded = tiny()
    inner = scripted(context_of(loaded), script=script)
    made = turn_engine(inner, echo, loaded.tokenizer, max_turn_tokens=4)
    made.load({}, version=5)
    assert (made.version, inner.version) == (5, 5)
    assert made.logprob_tolerance is inner.logprob_tolerance
    assert not hasattr(made, "memory_mib")
    (group,) = made.generate(prompts_of(loaded.tokenizer, "a"), [1], Sampling(max_new_tokens=60), seed=SEED)
    assert group.rollouts[0].version == 5
    (empty,) = made.generate(prompts_of(loaded.tokenizer, "a"), [0], Sampling(max_new_tokens=60), seed=SEED)
    assert dataclasses.replace(empty, prompt=group.prompt).rollouts == ()


class InRounds:
    """An engine that cannot go on with unfinished rollouts."""

    def __init__(self, engine):
        self.generate = engine.generate


def ask_again(prompt, reply, rng, *, turns=5, early=3, long=0, tools=False):
    """Ends after `turns` turns, or at a reply whose length `early` divides; the second text has `long` more words.

    With `tools`, every second text is the answers to one or two calls.
    """
    total = 0
    for turn in range(turns):
        total += len(reply)
        if turn == turns - 1 or len(reply) % early == 0:
            return {"long": float(total)}
        text = f"{rng.integers(100)} {'more ' * long if turn == 1 else ''}{len(reply)}"
        answers = [ToolAnswer(text=text, name="f", call_id="c")] * (1 + len(reply) % 2)
        reply = yield answers if tools and turn % 2 == 0 else text


CASES = {
    "the answer is awaited at once": {"answer_after": 0},
    "the last token is decoded again": {"answer_after": 7},
    "a long text is read": {"long": 80},
    "rows are refilled": {"rows": 2},
    "answers to tool calls": {"tools": True},
    "memory for two rollouts": {"memory": 480, "turns": 8, "early": 40},
}


@pytest.mark.parametrize("case", CASES)
def test_kept_turns_are_those_of_rounds(case):
    options = dict(CASES[case])
    rows, memory, after = options.pop("rows", 8), options.pop("memory", None), options.pop("answer_after", 2)
    loaded = tiny()
    loaded.tokenizer.chat_template = WITH_TOOLS
    context = dataclasses.replace(
        context_of(loaded),
        max_rollouts_at_once=rows,
        cache_bytes=memory and memory * KVCacheSpec.of(loaded.model).bytes_per_token,
    )
    engine, sampled = native(context), []
    for player in (engine, InRounds(engine)):
        section = EnvironmentSection(use="game", max_turn_tokens=9, answer_after=after)
        made = TurnEngine(player, game(ask_again, **options), Dialogue.of(loaded.tokenizer), section, None)
        whole = []
        groups = made.generate(
            prompts_of(loaded.tokenizer, "a", "b", "c"),
            [4, 0, 3],
            Sampling(max_new_tokens=400),
            seed=SEED,
            on_rollout=lambda prompt, rollout, whole=whole: whole.append((prompt.id, rollout)),
        )
        sampled.append([rollout for group in groups for rollout in group.rollouts])
        assert {(name, id(rollout)) for name, rollout in whole} == {
            (group.prompt.id, id(rollout)) for group in groups for rollout in group.rollouts
        }
        assert len(whole) == 7
    for kept, in_rounds in zip(*sampled, strict=True):
        assert (kept.turns, kept.finish, kept.index) == (in_rounds.turns, in_rounds.finish, in_rounds.index)
        assert kept.tokens.tolist() == in_rounds.tokens.tolist()
        assert kept.sampled.tolist() == in_rounds.sampled.tolist()
        np.testing.assert_allclose(kept.logprobs, in_rounds.logprobs, atol=1e-5)
    assert memory or len({len(rollout.turns) for rollout in sampled[0]}) > 2
    assert any(len(rollout.turns) > 5 for rollout in sampled[0])
    if memory:
        assert engine.preemptions
