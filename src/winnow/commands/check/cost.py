"""The costs of a configuration as text, in the order of a step."""

from __future__ import annotations

import math
from collections.abc import Iterator

from winnow.config import Config, trained_tokens
from winnow.training.budget import Budget, per_update
from winnow.training.first_prompt import FirstPrompt
from winnow.view.text import format_count, format_percent, quote

SHOWN = 3000  # characters of the first prompt


def first_prompt_lines(first: FirstPrompt) -> Iterator[str]:
    """The prompt as the policy reads it, behind a bar, and what ends its rollouts."""
    yield f"{'prompt':<13}{first.prompt.id}, {len(first.prompt.tokens)} tokens, as the policy reads it:"
    yield quote(first.prompt.text, limit=SHOWN, indent=" " * 13)
    strings = f", or as soon as the text ends in {' or '.join(map(repr, first.strings))}" if first.strings else ""
    yield f"{'stop':<13}at {' or '.join(first.stops)}{strings}"


def describe(config: Config, b: Budget) -> Iterator[str]:
    """The budget as text, in the order of a step.

    Numbers are limits where every prompt gets the same number of rollouts; otherwise they are averages.
    """
    uniform = config.allocate.label == "uniform"
    yield from _about_probe(config, b)
    yield _about_rollouts(config, b, uniform)
    bound = "at most" if uniform else "on average"
    yield f"kept         {b.kept} per prompt{_chunks(config)} = {b.prompts * b.kept} rows per step, {bound}"
    if trained_tokens(config) < config.rollout.max_new_tokens:
        first, most = trained_tokens(config), config.rollout.max_new_tokens
        yield f"trained      the first {first} tokens of a rollout, which may have {most}"
    yield from _about_values(config)
    yield _per_step(config, b, f"at most {b.rows} rows" if uniform else f"{b.rows} rows on average")
    yield (
        f"micro-batch  {config.update.tokens_per_micro_batch} tokens: {b.rows_at_once} rows of {b.longest_row} "
        f"(the longest), so {'at most' if uniform else 'about'} {b.micro_batches} per update"
    )
    yield _about_evaluation(config, b)


def _about_values(config: Config) -> Iterator[str]:
    """The rollouts for which a value model returns values, and the updates that train it."""
    critic = config.critic
    if critic is None:
        return
    read = f"values       of {'all verified' if critic.train_on == 'all' else 'the kept'} rollouts, by"
    if critic.form == "shared":
        yield f"{read} a head that is trained in the policy's updates"
        return
    form = "an adapter on the policy's base" if critic.form == "adapter" else "a separate model"
    epochs, each, steps = critic.epochs, critic.epochs * critic.updates_per_step, critic.pretraining_steps
    alone = f"; in the first {'step' if steps == 1 else f'{steps} steps'} only it is trained" if steps else ""
    yield (
        f"{read} {form}: {epochs} epoch{'s' * (epochs > 1)} x {critic.updates_per_step} = {each} per step, before the "
        f"policy's{alone}"
    )


def _chunks(config: Config) -> str:
    """What selectors with a chunk keep of each chunk: ", 32 of each 128"."""
    chunks = [(s.options.get("keep_per_prompt", "a number"), s.chunk) for s in config.select if s.chunk]
    return "".join(f", {keep} of each {chunk}" for keep, chunk in chunks)


def _about_evaluation(config: Config, b: Budget) -> str:
    hours = config.max_hours
    times = f"{'at most ' if config.evaluate.every_minutes else ''}{b.evaluations} times"
    ends = f", and stops after {hours:g} hours of training" if hours else ""
    training = f"{'at most ' if hours else ''}{b.rollouts * config.steps}"
    return f"evaluation   {b.evaluation} rollouts x {times}; training samples {training}{ends}"


def _about_probe(config: Config, b: Budget) -> Iterator[str]:
    if b.probe:
        probe, rollout = config.probe, config.rollout
        # The last window is probed whole, even if the run has fewer steps left.
        windows = math.ceil(config.steps / probe.every)
        share = windows * b.probe / (config.steps * b.rollouts)
        yield (
            f"probe        {b.prompts * probe.every} prompts x {probe.rollouts_per_prompt} = {b.probe} rollouts per "
            f"window of {probe.every} steps, {format_percent(share)} on top of the run's own; "
            f"up to {format_count(b.probe * rollout.max_new_tokens)} tokens"
        )


def _about_rollouts(config: Config, b: Budget, uniform: bool) -> str:
    rollout = config.rollout
    each = "" if uniform else f" on average, as {config.allocate.label} decides"
    rounds = rollout.dynamic_sampling_rounds
    plural = "s" * (rounds > 1)
    more = f", and at most as many again in each of {rounds} round{plural} of dynamic sampling" if rounds else ""
    return (
        f"rollouts     {b.prompts} prompts x {rollout.rollouts_per_prompt}{each} = {b.rollouts} per step{more}, "
        f"up to {format_count(b.rollouts * (1 + rounds) * rollout.max_new_tokens)} tokens"
    )


def _per_step(config: Config, b: Budget, rows: str) -> str:
    update = config.update
    return (
        f"updates      {update.epochs} epoch{'s' * (update.epochs > 1)} x {update.updates_per_step} = {b.updates} per "
        f"step, each {per_update(config, b)} prompts and {rows}; {b.updates * config.steps} in the run"
    )
