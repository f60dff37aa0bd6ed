"""`winnow init`: a folder with a configuration and a reward that train as they are."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from winnow.commands.command_line import print_text
from winnow.config_keys import keys
from winnow.errors import ConfigError, WinnowError, near_miss
from winnow.families import FAMILIES
from winnow.recipes import CONFIG, FOLDER, recipe_paths
from winnow.registry import description, resolve
from winnow.state.disk import write_output_folder

DEFAULT = "arithmetic"
PASS_RATE, DRAWS = 0.3, 50  # of the plan before any run
WORTH = 1.1  # times the progress: less is no reason to show other sizes
REWARD = "reward.py"
OWN_FORM = "r1_zero"  # the reward of a recipe whose prompt requests the tags that the written reward reads
WIDTH = 120  # columns of a comment
_BY_KEY = {family.key: family for family in FAMILIES.values()}
_TABLE = re.compile(r"(\[+)\s*([\w.]+)\s*\]+")
_ASSIGNMENT = re.compile(r"(\w+)\s*=\s*(.*)")

_REWARD_TEXT = '''"""The reward of {config}: a function of a prompt and of a rollout, one text that the policy wrote.

To test a change, run this in the folder of this file:

    winnow audit {task} --reward {reward}:reward
"""

import winnow


@winnow.register("reward", "{name}", example=lambda gold: f"</think> <answer>{{gold}}</answer>")
def reward(prompt, rollout):
    """1 if the last answer tag contains the right answer, else 0.

    The reward is the sum of the parts, and the first one decides whether a rollout is correct. Each part is logged
    under its name: add others here, for example "short": -len(rollout.tokens) / 1000.
    """
    before, closed, _ = rollout.text.rpartition("</answer>")
    _, opened, answer = before.rpartition("<answer>")
    gold = str(prompt.answer)  # a .jsonl file may have the number 20 in place of the text "20"
    right = bool(opened and closed) and answer.strip() == gold
    return {{"right": float(right)}}
'''


def init(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="A folder that does not exist yet.")],
    recipe: Annotated[str, typer.Option(help="The recipe to start from: winnow list recipes.")] = "arithmetic",
) -> None:
    """Make a folder with a configuration that explains its keys, and with a reward function. Both train as they are."""
    config = write_project(folder, recipe)
    print_text(f"written    {config}, {folder / REWARD}")
    print_text(f"train it:  {shlex.join(['winnow', 'train', str(config)])}")
    for line in sizes(config):
        print_text(line)


def sizes(config: Path) -> Iterator[str]:
    """What a plan before any run says about the sizes of a step, and the command with the whole plan. The command alone
    for a configuration that no plan is made for, and without its model or data.
    """
    from winnow.algos.size_prior import Prior
    from winnow.core.sizes import options_of
    from winnow.training.first_plan import FirstPlan
    from winnow.training.resolve import resolve_file
    from winnow.training.size_fits import Fits, PlanRequest

    try:
        members = resolve_file(config)
        prior = Prior(PASS_RATE, max(1.0, members.config.rollout.max_new_tokens / 2))
        plan = FirstPlan(Fits(members, None), PlanRequest(), prior, None, DRAWS)
        best, now = plan.best, plan.model.current
        ratio = plan.regret(best)[0] / plan.regret(now)[0]
    except WinnowError:
        pass
    else:
        yield f"its sizes: {now}"
        if best != now and ratio >= WORTH:
            yield f"a plan before any run supposes {ratio:.2f} times the progress per operation with {best}:"
            yield " ".join(["   ", *(f"--set {shlex.quote(option)}" for option in options_of(best))])
    yield f"plan it:   {shlex.join(['winnow', 'plan', str(config)])}"


def write_project(folder: Path, recipe: str = DEFAULT) -> Path:
    """Make `folder` with a configuration, whose path is returned, and a reward, which it names relative to the folder.

    The configuration is the text of the recipe, with the meaning of each key above it, and with the folder's own reward
    and output. Raises ConfigError for an unknown recipe, or name, and for a recipe with an environment in place of a
    reward. Raises DataError for a folder that exists or cannot be written.
    """
    paths = recipe_paths()
    if recipe not in paths:
        raise ConfigError(
            f"there is no recipe {recipe!r}", remedy=near_miss(recipe, paths), key="recipe", code="config.unknown_name"
        )
    if not str(folder).isprintable():  # a line break would end the comment with the command
        raise ConfigError(
            f"{str(folder)!r} contains characters that cannot be printed",
            remedy="choose another name",
            code="config.value",
        )
    path, text = folder / CONFIG, paths[recipe].read_text(encoding="utf-8")
    if "environment" in tomllib.loads(text):
        raise ConfigError(
            f"the recipe {recipe!r} has an environment, and a project starts from a recipe with a reward",
            remedy=f"train it as it is (winnow train {recipe}); docs/environments.md has an environment of your own",
            key="recipe",
            code="config.combination",
        )
    config = "\n".join([*_opening(path, recipe), *_explained(text, path, recipe), ""])
    write_output_folder(folder, {CONFIG: config.encode(), REWARD: _reward_text(folder, text).encode()})
    return path


def _opening(path: Path, recipe: str) -> Iterator[str]:
    yield f"# Made by winnow init from the recipe {recipe}. Every key, with its default: winnow list keys"
    yield f"#     {shlex.join(['winnow', 'train', str(path)])}"
    yield "#"


def _explained(text: str, path: Path, recipe: str) -> Iterator[str]:
    """The lines of a recipe, with comments above the keys, and with the project's output and reward."""
    meanings = {key.name: key.meaning for key in keys()}
    own = tomllib.loads(text)["reward"]["use"] == OWN_FORM
    table, member, opening = "", "", True
    for line in text.splitlines():
        if header := _TABLE.match(line):
            table, member = header[2], ""
        assignment = _ASSIGNMENT.match(line)
        if assignment is None:
            yield line if header else _renamed(line, path, recipe)
            continue
        if opening:
            yield ""
        opening = False
        key, value = assignment.groups()
        if table == "reward" and own:  # its options are those of the recipe's reward
            if key == "use":
                yield from _comment(
                    f"The reward of an answer: a function in {REWARD}, beside this file. Others: winnow list rewards"
                )
                yield f'use = "{REWARD}:reward"'
        elif not table and key == "output":
            yield from _comment(meanings["output"])
            yield f"output = {json.dumps(f'runs/{path.parent.name}', ensure_ascii=False)}"
        else:
            member = json.loads(value.partition(" #")[0]) if key == "use" else member
            yield from _comment(_meaning(table, key, member, meanings))
            if (table, key) == ("reward", "use"):
                yield from _comment(f"{REWARD} has another one, for prompts that request <answer> tags.")
            yield line


def _meaning(table: str, key: str, member: str, meanings: dict[str, str]) -> str:
    """The meaning of a key, or of an option of a member."""
    family = _BY_KEY.get(table)
    if family is not None and key == "use":
        does = description(resolve(family, member, base=FOLDER))
        return f"{meanings[table]} {member}: {does} Others: winnow list {family.plural}"
    names = (f"{table}.{key}" if table else key, f"{table}[].{key}")
    found = next((meanings[name] for name in names if name in meanings), "")
    if found or family is None:
        return found
    return f"An option of {member} (winnow list {family.plural})."


def _renamed(line: str, path: Path, recipe: str) -> str:
    """A comment of the recipe, with this configuration in its commands."""
    quoted = shlex.quote(str(path))
    return re.sub(rf"(winnow (?:train|check)) {recipe}\b", lambda found: f"{found[1]} {quoted}", line)


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _reward_text(folder: Path, recipe: str) -> str:
    """The text of the reward's file. The registered name contains the folder's, as a name is registered once."""
    name = re.sub(r"\W", "_", folder.name)
    task = tomllib.loads(recipe)["task"]["use"]
    return _REWARD_TEXT.format(config=CONFIG, reward=REWARD, task=task, name=f"{name}_reward")
