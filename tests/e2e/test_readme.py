"""The README is part of the program: its code runs, and its tables name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import winnow.members  # registers every member
from winnow.registry import FAMILIES, members

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_the_reward_of_your_own_runs(tmp_path, monkeypatch, capfd):
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert (tmp_path / "runs" / "short" / "metrics.jsonl").is_file()
    assert "held-out, after 5 steps" in capfd.readouterr().out


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
