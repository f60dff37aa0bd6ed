"""A run whose environments are classes, chosen by a column of a JSON lines file, with their tools in the prompt."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from test_environments import check_a_resume, configuration, train

from chat_templates import render_here
from forked import fork_supervisors
from winnow.state.logbook import read_rows

WITH_TOOLS = (
    "{% if tools %}<|system|>{{ tools | tojson }}<|endoftext|>{% endif %}"
    "{% for m in messages %}<|{{ 'system' if m.role == 'tool' else m.role }}|>{{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
)
CLASSES = '''
from winnow.environments.tool_class import tool_environment


class Store:
    def reset(self, stock: int) -> str:
        self.stock = stock
        return f" {stock} boxes."

    def move(self, count: int, shelf: str) -> str:
        """Moves boxes.

        Args:
            count: How many
            shelf: To where
        """
        self.stock -= count
        return str(self.stock)

    def get_reward(self, reply):
        return {"stock": self.stock / 100, "length": len(reply) / 100}


class Talk:
    def say(self, text: str) -> str:
        """Says a text.

        Args:
            text: The text
        """
        return text

    def get_reward(self, reply):
        return {"length": sum(ord(c) % 2 for c in reply) / 100}


BOTH = tool_environment({"store": Store, "talk": Talk})
'''


@pytest.fixture(autouse=True)
def in_forks_and_here(monkeypatch):
    """As in test_environments.py."""
    fork_supervisors(monkeypatch)
    render_here(monkeypatch)


def of_classes(smallest, tmp_path):
    (tmp_path / "classes.py").write_text(CLASSES, encoding="utf-8")
    rows = [
        {
            "question": f"Go {place}.",
            "answer": str(place),
            "environment": "talk" if place % 2 else "store",
            "stock": place,
        }
        for place in range(30)
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    config = configuration(smallest, tmp_path)
    folder = Path(shutil.copytree(config["model"]["path"], tmp_path / "model"))
    (folder / "chat_template.jinja").write_text(WITH_TOOLS, encoding="utf-8")
    return config | {
        "model": {"path": str(folder)},
        "task": {"use": "jsonl", "path": str(data)},
        "prompt": {"template": "chat", "max_prompt_tokens": 1500},
        "environment": {"use": f"{tmp_path}/classes.py:BOTH", "max_turn_tokens": 6},
    }


@pytest.mark.slow  # three runs; test_environments.py::test_a_resumed_run_has_the_same_bits resumes a function
def test_a_resumed_run_of_classes_has_the_same_bits(smallest, tmp_path):
    config = of_classes(smallest, tmp_path)
    train(config, tmp_path / "whole", steps=2)
    train(config, tmp_path / "parts", steps=1)
    check_a_resume(tmp_path / "parts", tmp_path / "whole")


def test_each_row_has_the_class_and_the_tools_of_its_column(smallest, tmp_path):
    train(of_classes(smallest, tmp_path), tmp_path / "whole", steps=2)
    parts = set()
    for row in read_rows(tmp_path / "whole" / "rollouts"):
        place = int(row["prompt"].partition("Go ")[2].partition(".")[0])
        assert (f"Go {place}. {place} boxes." in row["prompt"]) == ("Moves boxes." in row["prompt"]) == (place % 2 == 0)
        assert ("Says a text." in row["prompt"]) == (place % 2 == 1)
        assert row["kind"] in ("correct", "wrong")
        parts.add(frozenset(row["parts"]))
        if place % 2 == 0:
            assert row["parts"]["stock"] == place / 100
    assert parts == {frozenset({"stock", "length"}), frozenset({"length"})}
