"""The sizes of a step in a configuration and in a run: which configurations have them, and a run with other sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from winnow.algos.planning import Rule
from winnow.algos.selectors import chain
from winnow.algos.step_plan import Setting
from winnow.budget.selection import kept_size
from winnow.config import Config, Member, SelectSection
from winnow.core.members import Members
from winnow.errors import ConfigError
from winnow.families import ADVANTAGE, SELECTOR
from winnow.options import bind
from winnow.registry import resolve

CREDITS = ("grpo", "dr_grpo", "rloo")
SELECTORS = ("max_variance", "all")
SIZES = ("plan/rollouts", "plan/kept", "plan/prompts")  # the metrics of a setting
REMEDY = "change it in the configuration, or choose n and m manually (docs/spending-the-budget.md)"


def options_of(setting: Setting) -> tuple[str, ...]:
    """The configuration keys with their values, in the syntax of `--set`."""
    if setting.kept >= setting.rollouts:
        select = 'select="all"'
    else:
        select = f'select={{use="max_variance", keep_per_prompt={setting.kept}}}'
    return (
        f"rollout.prompts_per_step={setting.prompts}",
        f"rollout.rollouts_per_prompt={setting.rollouts}",
        select,
    )


def may_start(setting: Setting, config: Config) -> bool:
    """Whether a setting is within the bounds that [plan] gives, as a run that chooses its sizes has to start."""
    plan = config.plan
    ends = (plan.rollouts_per_prompt, plan.keep_per_prompt, plan.prompts_per_step)
    sizes = (setting.rollouts, setting.kept, setting.prompts)
    return all(of is None or of[0] <= size <= of[1] for size, of in zip(sizes, ends, strict=True))


def logged_setting(row: Mapping[str, float]) -> Setting | None:
    """The setting in a row of metrics; None unless the run chooses its sizes itself."""
    sizes = [row.get(name) for name in SIZES]
    return None if None in sizes else Setting(*(int(size) for size in sizes if size is not None))


def resized(members: Members, setting: Setting) -> Members:
    """The members of a supported configuration with the sizes of a setting. Everything in a step reads them there."""
    config = members.config
    rollout = config.rollout.model_copy(
        update={"rollouts_per_prompt": setting.rollouts, "prompts_per_step": setting.prompts}
    )
    config = config.model_copy(update={"rollout": rollout})
    if members.selectors[0].name != "max_variance":
        return dataclasses.replace(members, config=config)
    options = {**members.selectors[0].options, "keep_per_prompt": setting.kept}
    selectors = (bind(members.selectors[0].entry, options, key=SELECTOR.key),)
    select = (SelectSection.model_validate({**config.select[0].model_dump(), "keep_per_prompt": setting.kept}),)
    config = config.model_copy(update={"select": select})
    return dataclasses.replace(members, config=config, selectors=selectors, select=chain(selectors))


def setting_of(config: Config, where: str) -> Setting:
    """The setting of a configuration. Raises ConfigError, which begins with `where`, for an unsupported one.

    Supported are a uniform allocation without dynamic sampling, without a rule of rounds or of cuts, `max_variance` or
    `all` as the only selector, the advantages of CREDITS, and no value model.
    """
    rollout = config.rollout
    _check_supported(config, where)
    n, (selector,) = rollout.rollouts_per_prompt, config.select
    kept = n if selector.use == "all" else kept_size(_option(selector, "keep_per_prompt"), n)
    if kept < 2:
        raise ConfigError(
            f"{where}: {kept} rollout per prompt is trained on, and advantages compare at least two",
            remedy="set select.keep_per_prompt to 2 or more",
            key="select.keep_per_prompt",
            code="config.unsupported",
        )
    return Setting(n, kept, rollout.prompts_per_step)


def rule_of(config: Config) -> Rule:
    """The advantage of a supported configuration, with the defaults of options that are not set."""
    advantage = config.advantage
    options = {**resolve(ADVANTAGE, advantage.use).defaults, **advantage.options}
    return Rule(advantage.use, **options)  # type: ignore[arg-type]


def _option(selector: Member, name: str) -> int | float:
    return {**resolve(SELECTOR, selector.use).defaults, **selector.options}[name]  # type: ignore[no-any-return]


def _check_supported(config: Config, where: str) -> None:
    """Raise ConfigError for the first key whose value a plan does not support; see `setting_of`."""
    rounds, one = config.rollout.dynamic_sampling_rounds, config.select[0]
    for key, problem, supported, unsupported in (
        ("allocate", f"allocate.use = {config.allocate.label!r}", "for 'uniform'", config.allocate.use != "uniform"),
        ("rollout.dynamic_sampling_rounds", f"rollout.dynamic_sampling_rounds = {rounds}", "for 0", rounds > 0),
        ("rounds", f"rounds.use = {config.rounds.label!r}", "for 'single'", config.rounds.use != "single"),
        # The length of a rollout that was cut is not known, and neither is whether it is right
        ("cut", f"cut.use = {config.cut.label!r}", "for 'none'", config.cut.use != "none"),
        ("select", f"{len(config.select)} selectors", "for one", len(config.select) != 1),
        ("select", f"select.use = {one.label!r}", f"for {' or '.join(map(repr, SELECTORS))}", one.use not in SELECTORS),
        ("select.chunk", "select.chunk is set", "for selection among all rollouts of a prompt", one.chunk is not None),
        (
            "advantage",
            f"advantage.use = {config.advantage.label!r}",
            f"for {', '.join(map(repr, CREDITS))}",
            config.advantage.use not in CREDITS,
        ),
        (
            "advantage.chunk",
            "advantage.chunk is set",
            "for comparisons among all kept rollouts of a prompt",
            config.advantage.chunk is not None,
        ),
        ("critic", "there is a value model ([critic])", "without one", config.critic is not None),
    ):
        if unsupported:
            raise ConfigError(
                f"{where}: {problem}, and a plan can only be made {supported}",
                remedy=REMEDY,
                key=key,
                code="config.unsupported",
            )
