"""A new user's first hour: the commands of the README on models as they are published."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from chat_templates import render_here
from forked import fork_supervisors
from published_models import NAMES, make
from winnow.commands import app
from winnow.engines.base import EngineContext
from winnow.engines.hf import hf
from winnow.engines.native.engine import native
from winnow.models.load import load
from winnow.recipes import recipe_paths
from winnow.records import Prompt, Sampling
from winnow.state.logbook import read_metrics

GSM8K = recipe_paths()["gsm8k"]
PROBLEMS = "".join(
    json.dumps({"question": f"Ann has {i} eggs and buys {i % 5}. How many?", "answer": f"So many.\n#### {i + i % 5}"})
    + "\n"
    for i in range(40)
)
# A random policy never answers right; that it writes ends of lines is something it can be paid for.
REWARD = '''
def ends_of_lines(prompt, rollout):
    """Share of the characters that end a line or a tag."""
    return sum(c in "\\n>" for c in rollout.text) / max(1, len(rollout.text))
'''
# As a user would make a run of minutes of it; all else is as documented.
SMALL = {
    "device": "cpu",
    "threads": 1,
    "rollout.prompts_per_step": 4,
    "rollout.rollouts_per_prompt": 4,
    "rollout.max_new_tokens": 16,
    "select.keep_per_prompt": 2,
    "optimizer.learning_rate": 0.01,
    "evaluate.problems": 3,
    "evaluate.every": 0,
    "checkpoint.every": 2,
    "verify.workers": 1,
    "verify.timeout_seconds": 60,  # of a machine that may be busy
}


SLOW = pytest.mark.slow  # test_published_models.py trains every arrangement


class Shell:
    """Where the user stands, with a model beside them."""

    def __init__(self, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder)
        monkeypatch.setattr("winnow.models.products.SECONDS", 0.0)  # `check` times products for half a second
        fork_supervisors(monkeypatch)
        render_here(monkeypatch)
        for made in ("model", "data"):
            (folder / made).mkdir()
        self.model = make(name, folder / "model")
        for split in ("train", "test"):
            (folder / "data" / f"gsm8k_{split}.jsonl").write_text(PROBLEMS)
        (folder / "mine.py").write_text(REWARD)
        settings = {**SMALL, "model.path": "model", "task.path": "data"}
        self.sets = [f"--set={key}={value}" for key, value in settings.items()]

    def winnow(self, *arguments: object, code: int = 0) -> str:
        """What a command prints, once it has ended with that exit code."""
        done = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
        assert done.exit_code == code, (done.output, done.exception)
        assert "Traceback" not in done.stderr
        return " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    "name", ["llama-3.2-instruct", pytest.param("qwen2.5", marks=SLOW), pytest.param("qwen3", marks=SLOW)]
)
def test_the_first_hour(name, tmp_path, monkeypatch):
    shell = Shell(tmp_path, name, monkeypatch)
    train = ("train", GSM8K, *shell.sets, f"--set=reward.use={tmp_path}/mine.py:ends_of_lines", "--output=runs/mine")
    run = tmp_path / "runs" / "mine"

    printed = shell.winnow("check", GSM8K, *shell.sets, "--set=verify.workers=0")
    assert "Ann has" in printed, "the first prompt, as the model reads it"
    assert "####" in printed, "the request for the format that the reward reads"
    assert {"cpu", "float32", "native"} <= set(re.findall(r"\w+", printed))
    assert not re.search(r"! [^!]*reward = ", printed), "no advice: the suffix requests what the reward reads"

    printed = shell.winnow(*train, "--set=steps=3")
    assert "runs/mine/checkpoints/step-000003" in printed
    assert updates(run) == [1, 1, 1], "every step taught something"

    assert " step 2 gsm8k-" in shell.winnow("show", "runs/mine", "--worst", 2)
    assert {"3", "48"} <= set(re.findall(r"\d+", shell.winnow("plot", "runs/mine"))), "3 steps, 48 rollouts"
    assert (run / "plot.png").stat().st_size > 10_000

    few = (
        "--problems=3",
        "--rollouts-per-prompt=2",
        "--set=rollout.max_new_tokens=16",
        "--set=device=cpu",
        "--set=verify.workers=1",
    )
    checkpoint = run / "checkpoints" / "step-000003"
    more = ("--config", GSM8K, "--set=task.path=data", "--set=threads=1", f"--json={tmp_path}/eval.json")
    shell.winnow("eval", checkpoint, *more, *few)
    assert accuracy(tmp_path / "eval.json") == 0

    before = {path: path.read_bytes() for path in (run / "rollouts").iterdir()}
    printed = shell.winnow(*train, "--set=steps=4", "--resume")
    assert "runs/mine/checkpoints/step-000004" in printed
    assert updates(run) == [1, 1, 1, 1]
    assert all(path.read_bytes().startswith(data) for path, data in before.items())


def updates(run):
    return [row["budget/updates"] for row in read_metrics(run) if "budget/updates" in row]


def accuracy(file):
    (task,) = json.loads(file.read_text())["tasks"].values()
    return task["metrics"]["eval/accuracy_sampled"]


def test_a_task_and_where_its_problems_are(tmp_path, monkeypatch):
    shell = Shell(tmp_path, "llama-3.2-instruct", monkeypatch)
    few = (
        "--problems=3",
        "--rollouts-per-prompt=2",
        "--set=rollout.max_new_tokens=16",
        "--set=device=cpu",
        "--set=verify.workers=0",
    )
    more = ("--set", "task.path=data", "--set=threads=1", f"--json={tmp_path}/eval.json")
    shell.winnow("eval", "model", "--task", "gsm8k", *more, *few)
    assert accuracy(tmp_path / "eval.json") == 0


# test_engine_contract.py has the stop tokens of every engine
@pytest.mark.parametrize("engine", [native, pytest.param(hf, marks=SLOW)])
@pytest.mark.parametrize("name", NAMES)
def test_a_rollout_ends_at_every_token_that_the_settings_name(name, engine, tmp_path):
    loaded = load(str(make(name, tmp_path)))
    prompt = Prompt(id="p", tokens=np.array(loaded.tokenizer("Ann has")["input_ids"]), text="", answer="", task="t")
    context = EngineContext(
        model=loaded.model, tokenizer=loaded.tokenizer, stop_tokens=loaded.stop_tokens, max_rollouts_at_once=128
    )
    (group,) = engine(context).generate([prompt], [128], Sampling(max_new_tokens=48, temperature=1.0), seed=(0,))
    ended = [int(rollout.tokens[-1]) for rollout in group.rollouts if rollout.finish == "stop"]
    assert set(ended) == set(loaded.stop_tokens)
    assert not any(np.isin(rollout.tokens[:-1], loaded.stop_tokens).any() for rollout in group.rollouts)
