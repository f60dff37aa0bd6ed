"""What README.md and docs/*.md name in code exists: options of commands, keys, metrics, members, files."""

from __future__ import annotations

import dataclasses
import re

import pytest
import typer
from doc_pages import PAGES, REPOSITORY, codes

import winnow
from winnow.alarms.rules import ALARMS
from winnow.commands import app
from winnow.commands.list import keys
from winnow.config import Config
from winnow.errors import CODES
from winnow.families import FAMILIES
from winnow.metrics import METRICS
from winnow.registry import members

COMMANDS = typer.main.get_command(app).commands
LISTED = {key.name.replace("[]", "") for key in keys()}
MEMBERS = {f"{key.name.replace('[]', '')}.use" for key in keys() if "member" in key.type}
OPTIONS = {
    f"{family.key}.{option}"
    for family in FAMILIES.values()
    for entry in members(family.name).values()
    if entry.origin == "winnow"
    for option in entry.options
}
PARTS = {option.replace("reward.", "reward.parts.") for option in OPTIONS}
NAMES = LISTED | MEMBERS | OPTIONS | PARTS
KEYS = NAMES | {name.rpartition(".")[0] for name in NAMES}  # a table, too
FIELDS = {
    f"{record.__name__.lower()}.{field.name}"
    for record in (winnow.Rollout, winnow.Prompt, winnow.Group)
    for field in dataclasses.fields(record)
}
# Whose names are another program's: the page, and the names, which that program's own page or column is about.
OTHERS = {"docs/from-trl.md", "docs/from-verl.md"}
OTHERS_NAMES = re.compile(
    r"algorithm\.|actor_rollout_ref\.|trainer\.|data\.|kl_ctrl\."
    r"|critic\.(cliprange_value|ppo_epochs|ppo_mini_batch_size)|critic/(vf_)?explained_var$"
)


def options_of(command):
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_are_named_have_the_options_they_are_named_with(page):
    for code in codes(page):
        if not (named := re.match(r"winnow ([a-z]+)\b(.*)", code)):
            continue
        assert named[1] in COMMANDS, code
        known = options_of(COMMANDS[named[1]])
        assert set(re.findall(r"(?<=\s)--[a-z][a-z-]*", named[2])) <= known, code


@pytest.mark.parametrize("page", [page for page in PAGES if page not in OTHERS | {"docs/design.md"}])
def test_keys_that_are_named_exist(page):
    """Of design.md the same shape may be a module, or a function of one."""
    named = {
        re.sub(r"\.\d+(?=\.)", "", name)
        for code in codes(page)
        for name in re.findall(r"^[a-z]+(?:\.[a-z0-9_]+)+(?= = |=|$)", code)
        if name.partition(".")[0] in Config.model_fields and not OTHERS_NAMES.match(name)
    }
    files = {name for name in named if name.endswith((".json", ".py", ".safetensors"))}
    assert not sorted(named - KEYS - FIELDS - files - set(CODES))


def metric(name):
    """Whether a metric may have that name; `{part}` and `...` stand for any."""
    shapes = (re.sub(r"\\\{\w+\\\}", r"[^/]+", re.escape(known)) for known in METRICS)
    return any(re.fullmatch(shape, name.replace("...", "x")) for shape in shapes) or name in METRICS


@pytest.mark.parametrize("page", [page for page in PAGES if page not in OTHERS])
def test_metrics_that_are_named_exist(page):
    first = {known.partition("/")[0] for known in METRICS}
    named = {
        code
        for code in codes(page)
        if re.fullmatch(r"[a-z_]+(?:/[a-z0-9_{}]+)+", code) and code.partition("/")[0] in first - {"memory", "eval"}
    }
    folders = {name for name in named if (REPOSITORY / "src" / "winnow" / name).exists()}
    assert not {name for name in named - folders if not metric(name) and not OTHERS_NAMES.match(name)}


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page):
    top = ("src", "tests", "benchmarks", "configs", "scripts", "examples")
    named = {code for code in codes(page) if re.fullmatch(rf"({'|'.join(top)})/[\w./-]+\w", code)}
    if page in OTHERS:
        named = {name for name in named if name.startswith("configs/")}
    assert not [name for name in named if not (REPOSITORY / name).exists()]


def test_the_reference_names_every_key_metric_member_and_option():
    page = PAGES["docs/reference.md"]
    sections = dict(re.findall(r"(?ms)^## (.*?)\n(.*?)(?=^## |\Z)", page))
    rows = {title: set(re.findall(r"(?m)^\| `([^`]+)` \|", text)) for title, text in sections.items()}
    assert rows["Configuration keys"] == {key.name for key in keys()}
    assert rows["Metrics"] == set(METRICS)
    assert rows["Alarms"] == {kind.name for kind in ALARMS}
    for family in FAMILIES.values():
        section = page.partition(f"\n### {family.name}\n")[2].partition("\n### ")[0]
        for name, entry in members(family.name).items():
            if entry.origin == "winnow" and name == entry.name:
                (signature,) = re.findall(rf"(?m)^{name}\((.*)\)$", section)
                said = re.findall(r"(?:^|, )([a-z_]+)(?= = |,|$)", signature)
                assert sorted(entry.options) == sorted(said)
