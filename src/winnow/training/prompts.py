"""The prompts of training and evaluation, rendered from problems, and the sampling settings of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from winnow.config import Config
from winnow.engines.stopping import divide_stops
from winnow.metrics import distinct
from winnow.models.load import describe, load_tokenizer, padding
from winnow.records import Problem, Prompt, Sampling
from winnow.tasks.templates import Rendered, check_context, render_each
from winnow.training.members import Members


class HeldOut(NamedTuple):
    """Prompts to evaluate on."""

    task: str | None  # that of `evaluate.tasks` by the name in its metrics; None: the run's own
    prompts: Rendered


class RunPrompts(NamedTuple):
    """What a run asks, and the tokenizer that says so to its policy."""

    training: Rendered
    held_out: tuple[HeldOut, ...]
    tokenizer: Any

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return max(longest(rendered.prompts) for rendered in (self.training, *(task.prompts for task in self.held_out)))


def run_prompts(members: Members) -> RunPrompts:
    """The problems to train on and those to evaluate on, rendered; no weight is read."""
    training = members.task("train")
    held_out = [(None, held_out_problems(members)), *_of_further_tasks(members)]
    tokenizer = prompt_tokenizer(members.config)
    first, *others = rendered_each(members, [training, *(problems for _, problems in held_out)], tokenizer)
    named = zip((name for name, _ in held_out), others, strict=True)
    return RunPrompts(first, tuple(HeldOut(name, rendered) for name, rendered in named), tokenizer)


def held_out_problems(members: Members) -> Sequence[Problem]:
    """The problems of the run's task to evaluate on."""
    evaluate = members.config.evaluate
    problems: Sequence[Problem] = members.task(evaluate.split)[: evaluate.problems]
    return problems


def _of_further_tasks(members: Members) -> Iterator[tuple[str, Sequence[Problem]]]:
    names = distinct([task.name for task in members.further_tasks], taken=("part",))
    for name, task in zip(names, members.further_tasks, strict=True):
        yield name, task("test")[: members.config.evaluate.problems]


def prompt_tokenizer(config: Config, loaded: Any = None) -> Any:
    """The policy's tokenizer; what the configuration asks of it is checked before any weight is read. A large one takes
    a second to load, so a command loads it once, and gives it back as `loaded` for another configuration.
    """
    check_context(
        max_prompt_tokens=config.prompt.max_prompt_tokens,
        max_new_tokens=config.rollout.max_new_tokens,
        context_tokens=describe(config.model.path).context,
    )
    tokenizer = load_tokenizer(config.model.path) if loaded is None else loaded
    padding(tokenizer, config.model.pad_token)  # a name that is none is refused here
    divide_stops(tokenizer, config.rollout.stop)  # so is a stop string that cannot be
    return tokenizer


def rendered(members: Members, problems: Sequence[Problem], tokenizer: Any) -> Rendered:
    """Problems as prompts of this run."""
    return rendered_each(members, [problems], tokenizer)[0]


def rendered_each(members: Members, lists: Sequence[Sequence[Problem]], tokenizer: Any) -> list[Rendered]:
    """Lists of problems as prompts of this run. A chat template is rendered in one child process for all of them."""
    return render_each(lists, tokenizer, **members.config.prompt.model_dump(), base=members.base)


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
