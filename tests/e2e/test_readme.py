"""The README is part of the program: its code runs, and its tables name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from winnow.config import load
from winnow.members import resolve_members
from winnow.registry import FAMILIES, members
from winnow.state.logbook import read_metrics

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_the_reward_of_your_own_runs(tmp_path, monkeypatch, capfd):
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert (tmp_path / "runs" / "short" / "metrics.jsonl").is_file()
    assert "held-out, after 5 steps" in capfd.readouterr().out
    (last,) = (row for row in read_metrics(tmp_path / "runs" / "short") if row["step"] == 5)
    assert last["eval/accuracy_sampled"] > 0


def test_nothing_is_left_to_fill_in():
    assert "@@" not in README


def test_the_commands_it_shows_are_sound():
    for name, sets in re.findall(r"winnow train (\S+\.toml)((?: --set \S+)*)", README):
        resolve_members(load(REPOSITORY / name, sets.replace("--set", "").split()), base=REPOSITORY / "configs")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_lists_every_member(family):
    (row,) = (line for line in README.splitlines() if line.startswith(f"| {family} |"))
    named = {name.strip() for name in row.split("|")[3].split(",")}
    ours = {name for name, entry in members(family).items() if entry.function.__module__.startswith("winnow.")}
    assert named == ours


def test_every_configuration_is_named():
    for path in (REPOSITORY / "configs").glob("*.toml"):
        assert re.search(rf"\b{path.stem}\b", README), path.name


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (REPOSITORY / target).exists(), target
