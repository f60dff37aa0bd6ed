"""An option that is named like a secret reaches the function that it is for, and no file that a run leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_resume import write_config
from typer.testing import CliRunner

import winnow
from refusals import check_refusal, refusal_of, refused
from winnow.commands import app
from winnow.errors import ConfigError
from winnow.options import HIDDEN
from winnow.rewards.compose import make_reward
from winnow.state.saved_runs import checkpoints

SECRET, OTHER = "sk-7-every-byte-of-it", "sk-8-of-another-account"
ASKS = '''
def asks(prompt, rollout, *, api_key: str, scale: float = 1.0):
    """A reward that asks a service."""
    assert api_key in ("sk-7-every-byte-of-it", "sk-8-of-another-account")
    return scale * sum(ord(c) % 2 == 0 for c in rollout.text)


def kept(run, *, token: str):
    """A tracker that writes down all that it is given."""
    assert token == "sk-7-every-byte-of-it"
    from pathlib import Path
    Path(__file__).with_name("tracked").write_text(repr(run))
    import winnow
    return winnow.Tracker()
'''


def holding(folder: Path, text: str) -> list[str]:
    """The files below a folder that hold a text."""
    return [path.name for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


@pytest.fixture
def secret_run(smallest: Any, tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(ASKS)
    mine = f"{tmp_path}/mine.py"
    config = smallest(
        steps=1,
        task={"levels": [2]},
        output=str(tmp_path / "out" / "run"),
        reward={"use": f"{mine}:asks", "api_key": SECRET},
        track={"use": f"{mine}:kept", "token": SECRET},
        checkpoint={"every": 1},
    )
    return write_config(tmp_path / "run.toml", config)


def call(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_secret_is_in_no_file_of_a_run_and_is_given_again_to_go_on(secret_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    trained = call("train", secret_run)
    assert trained.exit_code == 0, trained.output
    assert SECRET not in trained.output
    assert not holding(out, SECRET)
    assert SECRET not in (tmp_path / "tracked").read_text()
    manifest = json.loads((out / "run" / "manifest.json").read_text())
    assert manifest["config"]["reward"]["api_key"] == manifest["config"]["track"][0]["token"] == HIDDEN
    assert SECRET not in call("check", secret_run).output

    resumed = call("train", secret_run, "--resume", "--set", "steps=2", "--set", f"reward.api_key={OTHER}")
    assert resumed.exit_code == 0, resumed.output
    assert not [text for text in (SECRET, OTHER) if holding(out, text)]

    (newest,) = checkpoints(out / "run")[-1:]
    alone = call("eval", newest, "--trust-run", "--output", out / "eval")
    assert alone.exit_code == 2
    check_refusal(refusal_of(alone), "reward.api_key")
    few = ("--problems", 2, "--samples", 1, "--json", out / "eval.json", "--output", out / "eval")
    evaluated = call("eval", newest, "--trust-run", "--set", f"reward.api_key={SECRET}", *few)
    assert evaluated.exit_code == 0, evaluated.output
    assert not holding(out, SECRET)
    with refused(ConfigError, "reward.api_key"):
        winnow.resume(out / "run", trust_run=True, steps=3)


def test_what_stands_for_a_secret_is_none(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ASKS)
    part = {"use": "mine.py:asks", "options": {"api_key": HIDDEN}}
    with refused(ConfigError, "reward.parts.1.api_key"):
        make_reward({"parts": [{"use": "r1_zero"}, part]}, base=tmp_path)


def test_a_sweep_launches_its_runs_with_the_secret_and_shows_it_nowhere(secret_run: Path, tmp_path: Path) -> None:
    from winnow_lab.sweep.plan import read_plan

    head = f'config = "{secret_run}"\noutput = "sweep"\nseeds = [1]\n'
    (tmp_path / "sweep.toml").write_text(f'{head}[set]\n"reward.api_key" = "{OTHER}"\n[variants.a]\nselect = "all"\n')
    plan = read_plan(tmp_path / "sweep.toml", {})
    assert OTHER in plan.settings["a"].text
    assert OTHER not in repr(plan.contents)
