"""The prompts of training and evaluation, rendered from problems.

The first prompt is also described: what ends its rollouts, and the tags in the policy's vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from winnow.config import Config
from winnow.core.members import Members
from winnow.engines.stopping import special_tokens, split_stops
from winnow.environments.replay import opened
from winnow.environments.tool_calls import AUTO, form_of
from winnow.families import ENVIRONMENT
from winnow.metrics import distinct
from winnow.models.load import describe, load_tokenizer, model_stop_tokens
from winnow.options import bind
from winnow.records import Problem, Prompt
from winnow.rewards.format import TAGS
from winnow.tasks.chat import Tools, takes_tools
from winnow.tasks.dialogue import Dialogue
from winnow.tasks.templates import Rendered, check_context, render_each
from winnow.training.gold_check import check_form, sample_of

TAG = re.compile(r"</?\w+>")


class RunPrompts(NamedTuple):
    """The rendered prompts of a run, the policy's tokenizer, and with an environment the form of its turns."""

    training: Rendered
    held_out: Mapping[str | None, Rendered]  # by the task of `evaluate.tasks`; None: the run's task
    tokenizer: Any
    dialogue: Dialogue | None
    sample: tuple[Problem, ...]  # training problems whose golds are tried before the first step

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        every = (self.training, *self.held_out.values())
        return max(len(prompt.tokens) for rendered in every for prompt in rendered.prompts)


def run_prompts(members: Members) -> RunPrompts:
    """The problems to train on and those to evaluate on, rendered. Reads no weights."""
    training = members.task("train")
    held_out = evaluated_problems(members)
    for problems in held_out.values():
        check_form(members, problems)
    tokenizer = prompt_tokenizer(members.config)
    first, *others = render_lists(members, [training, *held_out.values()], tokenizer)
    rendered = dict(zip(held_out, others, strict=True))
    dialogue = dialogue_of(members, tokenizer, training[0])
    return RunPrompts(first, rendered, tokenizer, dialogue, sample_of(training, members.config.seed))


def evaluated_problems(members: Members) -> dict[str | None, Sequence[Problem]]:
    """The problems of an evaluation, by the name of the task in `evaluate.tasks`; None: the run's own task."""
    evaluate = members.config.evaluate
    names = distinct([task.name for task in members.further_tasks], taken=("part",))
    further = [task("test")[: evaluate.problems] for task in members.further_tasks]
    return {None: members.task(evaluate.split)[: evaluate.problems], **dict(zip(names, further, strict=True))}


def prompt_tokenizer(config: Config, loaded: Any = None) -> Any:
    """The policy's tokenizer, checked against the configuration before any weights are read.

    A large one takes a second to load. A command that needs it again, for another configuration, passes it as `loaded`.
    """
    check_context(
        max_prompt_tokens=config.prompt.max_prompt_tokens,
        max_new_tokens=config.rollout.max_new_tokens,
        context_tokens=describe(config.model.path).context,
    )
    tokenizer = load_tokenizer(config.model.path) if loaded is None else loaded
    split_stops(tokenizer, config.rollout.stop)  # raises for a stop string that cannot occur
    return tokenizer


def dialogue_of(members: Members, tokenizer: Any, problem: Problem) -> Dialogue | None:
    """The form of an environment's turns, after a prompt like that of `problem`; None without an environment.

    Raises DataError for a tokenizer whose chat template has no second turn.
    """
    prompt = members.config.prompt
    if members.environment is None:
        return None
    tools = bool(schemas_of(members, problem))
    ends = model_stop_tokens(members.config.model.path, tokenizer)
    return Dialogue.of(tokenizer, system=prompt.system, options=prompt.template_options, tools=tools, ends=ends)


def schemas_of(members: Members, problem: Problem) -> Tools:
    """The schemas of the tools of a problem's environment, for a chat template; none without an environment."""
    environment = members.environment
    if environment is None or environment.traits.schemas is None:
        return ()
    return environment.traits.schemas(problem.meta)


def omitted_tools(members: Members, tokenizer: Any, problem: Problem) -> tuple[str, ...]:
    """A notice where the tokenizer's chat template does not describe the tools of a problem's environment."""
    tools = schemas_of(members, problem)
    if not tools or takes_tools(tokenizer):
        return ()
    names = ", ".join(tool["function"]["name"] for tool in tools)
    return (
        f"the chat template has no place for tools, so no prompt describes {names}: describe them in prompt.system, or "
        f"train a policy that has learned their calls",
    )


def with_call_form(members: Members, tokenizer: Any) -> Members:
    """The members, with the form of tool calls that fits the tokenizer's chat template.

    An environment with the option `call_form` gets it, unless the configuration sets another form than "auto".
    """
    environment, section = members.environment, members.config.environment
    if environment is None or section is None or environment.options.get("call_form") != AUTO:
        return members
    options = {**section.options, "call_form": form_of(tokenizer.get_chat_template())}
    return dataclasses.replace(
        members,
        environment=bind(environment.entry, options, key=ENVIRONMENT.key),
        reward={**members.reward, "options": options},
    )


def render_lists(members: Members, lists: Sequence[Sequence[Problem]], tokenizer: Any) -> list[Rendered]:
    """Lists of problems as prompts of this run. A chat template is rendered in one child process for all of them.

    An environment may complete the questions, and gives the schemas of its tools to the template.
    """
    if members.environment is not None:
        lists = [[opened(members.environment, problem) for problem in problems] for problems in lists]
    schemas = functools.partial(schemas_of, members)
    return render_each(lists, tokenizer, **members.config.prompt.model_dump(), base=members.base, schemas=schemas)


@dataclass(frozen=True)
class FirstPrompt:
    """One prompt of a run."""

    prompt: Prompt
    stops: tuple[str, ...]  # tokens that end a rollout
    strings: tuple[str, ...]  # texts that end a rollout
    known: frozenset[str]  # tags that are single tokens, so the policy was trained to write them
    omitted: tuple[str, ...]  # tags of rewards that are special tokens, which the text of a rollout omits

    @classmethod
    def of(cls, prompt: Prompt, tokenizer: Any, config: Config) -> FirstPrompt:
        """The first prompt with its stops. Reads the settings of the configured model, and no weights."""
        named, strings = split_stops(tokenizer, config.rollout.stop)
        tokens = sorted({*model_stop_tokens(config.model.path, tokenizer), *named})
        stops = (tokenizer.convert_ids_to_tokens(token) or f"token {token}" for token in tokens)
        tags = {token.content for token in tokenizer.added_tokens_decoder.values() if TAG.fullmatch(token.content)}
        special = special_tokens(tokenizer)
        omitted = tuple(tag for tag in TAGS if tag in special)
        return cls(prompt, tuple(stops), strings, frozenset(tags - special.keys()), omitted)
