"""An environment that cannot repeat itself: its record makes a resume exact, and without one the run is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from test_environments import KILLED, configuration, digests, rollouts, train

import winnow
from chat_templates import render_here
from forked import fork_supervisors, python
from refusals import refused
from winnow.errors import DataError, VerifierError
from winnow.state.logbook import read_metrics

GAME = Path(__file__).with_name("chance_game.py")


@pytest.fixture(autouse=True)
def in_forks_and_here(monkeypatch):
    """As in test_environments.py."""
    fork_supervisors(monkeypatch)
    render_here(monkeypatch)


def recorded(smallest, folder, **changes):
    config = configuration(smallest, folder, **{"checkpoint": {"every": 2, "keep_last": 5}, **changes})
    environment = {"use": f"{GAME}:chance", "max_turn_tokens": 6, "recorded": True, "log": str(folder / "asked")}
    return {**config, "evaluate": {"every": 2, "problems": 2, "rollouts_per_prompt": 2}, "environment": environment}


def asked(folder):
    return (folder / "asked").read_text().count("asked")


def measured(run):
    ignored = ("seconds/", "memory/", "time/", "eval/seconds", "eval/training_hours")
    return [{k: v for k, v in row.items() if not k.startswith(ignored)} for row in read_metrics(run)]


def test_a_resume_and_a_new_run_with_the_record_have_its_bits_and_ask_nothing(smallest, tmp_path):
    config = recorded(smallest, tmp_path, checkpoint={"every": 1, "keep_last": 5})
    train(config, tmp_path / "whole", steps=2)
    after, bits, rows = asked(tmp_path), digests(tmp_path / "whole", 2), rollouts(tmp_path / "whole")
    numbers = measured(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole" / "answers", tmp_path / "fed" / "answers")
    train(config, tmp_path / "fed", steps=2)
    assert (digests(tmp_path / "fed", 2), rollouts(tmp_path / "fed")) == (bits, rows)
    assert measured(tmp_path / "fed") == numbers
    shutil.rmtree(tmp_path / "whole" / "checkpoints" / "step-000002")
    winnow.resume(tmp_path / "whole", steps=2, trust_run=True, progress=False)
    assert (digests(tmp_path / "whole", 2), rollouts(tmp_path / "whole")) == (bits, rows)
    assert asked(tmp_path) == after, "neither of them asked the environment"
    train(config, tmp_path / "other", steps=2)
    assert digests(tmp_path / "other", 2) != bits, "the environment gives other answers"


def test_the_record_of_another_conversation_is_refused_with_a_remedy_that_works(smallest, tmp_path):
    config = recorded(smallest, tmp_path)
    train(config, tmp_path / "run", steps=2)
    shutil.copytree(tmp_path / "run" / "answers", tmp_path / "other" / "answers")
    other = {**config, "optimizer": {"learning_rate": 0.05}}
    with refused(DataError, "rollout-000001-000001", key="environment.recorded", code="data.malformed"):
        train(other, tmp_path / "other", steps=2)
    for file in (tmp_path / "other" / "answers").glob("*-00000[12]*"):
        file.unlink()
    winnow.train(**{**other, "output": str(tmp_path / "other"), "steps": 2}, resume=True, progress=False)


def test_without_a_record_it_is_refused(smallest, tmp_path):
    config = recorded(smallest, tmp_path)
    with refused(VerifierError, code="verifier.not_repeatable"):
        train({**config, "environment": {**config["environment"], "recorded": False}}, tmp_path / "run", steps=1)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["generate", "update"])
def test_a_killed_run_has_the_bits_of_a_new_run_with_its_record(moment, smallest, tmp_path):
    from test_resume import write_config

    config = recorded(smallest, tmp_path, steps=6, update={"epochs": 2, "updates_per_step": 2})
    toml = write_config(tmp_path / "killed.toml", {**config, "output": str(tmp_path / "killed")})
    killed = python(KILLED, moment, toml)
    assert killed.returncode == -9, killed.stderr
    winnow.train(toml, resume=True, progress=False)
    shutil.copytree(tmp_path / "killed" / "answers", tmp_path / "fed" / "answers")
    train(config, tmp_path / "fed")
    assert digests(tmp_path / "killed", 6) == digests(tmp_path / "fed", 6)
    assert rollouts(tmp_path / "killed") == rollouts(tmp_path / "fed")


def test_an_outage_is_not_replayed_by_the_resume(smallest, tmp_path):
    down = tmp_path / "down"
    (tmp_path / "remote.py").write_text(
        f"import os\n\ndef remote(prompt, reply, rng):\n    if os.path.exists({str(down)!r}):\n"
        "        raise ConnectionError('down')\n    return {'paid': len(reply) % 7 / 7, 'none': 0.0}\n    yield\n"
    )
    own = {"use": f"{tmp_path}/remote.py:remote", "max_turn_tokens": 6, "recorded": True}
    config = {**recorded(smallest, tmp_path), "environment": own, "output": str(tmp_path / "run"), "steps": 2}
    with refused(VerifierError, code="verifier.failed"):
        winnow.train(**config, progress=False, watch=lambda e: isinstance(e, winnow.StepReport) and down.touch())
    down.unlink()
    assert winnow.train(**config, resume=True, progress=False).steps == 2
