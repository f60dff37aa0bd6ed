"""The prompts of training and evaluation, rendered from problems, and the sampling settings of both."""

from __future__ import annotations

from collections.abc import Sequence

from winnow.config import Config
from winnow.engines.stopping import divide_stops
from winnow.models.load import describe, load_tokenizer, padding
from winnow.records import Problem, Prompt, Sampling
from winnow.tasks.templates import Rendered, check_context, render
from winnow.training.members import Members


def training_prompts(members: Members) -> Rendered:
    """The problems to train on, rendered; no weight is read."""
    return _rendered(members, members.task("train"))


def held_out_prompts(members: Members) -> Rendered:
    """The problems to evaluate on, rendered; no weight is read."""
    evaluate = members.config.evaluate
    return _rendered(members, members.task(evaluate.split)[: evaluate.problems])


def longest(prompts: Sequence[Prompt]) -> int:
    """Tokens of the longest prompt."""
    return max(len(prompt.tokens) for prompt in prompts)


def training_sampling(config: Config) -> Sampling:
    """The distribution that the policy's log-probs are of: the whole vocabulary, at the training temperature."""
    rollout = config.rollout
    return Sampling(max_new_tokens=rollout.max_new_tokens, temperature=rollout.temperature, stop=rollout.stop)


def evaluation_sampling(config: Config) -> Sampling:
    """As in training unless `evaluate` differs. The distribution may be cut, as nothing is learned from it."""
    evaluate, rollout = config.evaluate, config.rollout
    return Sampling(
        max_new_tokens=rollout.max_new_tokens,
        temperature=evaluate.temperature or rollout.temperature,
        top_p=evaluate.top_p,
        top_k=evaluate.top_k,
        min_p=evaluate.min_p,
        stop=rollout.stop,
    )


def _rendered(members: Members, problems: Sequence[Problem]) -> Rendered:
    config = members.config
    check_context(
        max_prompt_tokens=config.prompt.max_prompt_tokens,
        max_new_tokens=config.rollout.max_new_tokens,
        context_tokens=describe(config.model.path).context,
    )
    tokenizer = load_tokenizer(config.model.path)
    padding(tokenizer, config.model.pad_token)  # a name that is none is refused before any weight is read
    divide_stops(tokenizer, config.rollout.stop)  # so is a stop string that cannot be
    return render(problems, tokenizer, **config.prompt.model_dump(), base=members.base)
