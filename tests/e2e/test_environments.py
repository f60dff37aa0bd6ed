"""Runs with an environment: the game of the documentation, the same bits however slow it is, and after a resume."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import winnow
from chat_templates import render_here
from forked import fork_supervisors, python
from refusals import refused
from winnow.commands.show import Choice, format_rollouts
from winnow.errors import ConfigError, DataError
from winnow.models.load import load_tokenizer
from winnow.state.logbook import read_rows

REPOSITORY = Path(__file__).parents[2]
KILLED = Path(__file__).with_name("killed.py")

GAME = Path(__file__).with_name("slow_game.py")


def configuration(smallest, folder, **changes):
    given = smallest(
        prompt={"template": "chat"},
        rollout={"max_new_tokens": 60, "prompts_per_step": 3, "rollouts_per_prompt": 4},
        verify={"workers": 1, "timeout_seconds": 5.0},
        **changes,
    )
    del given["reward"]
    return {**given, "environment": {"use": f"{GAME}:count", "max_turn_tokens": 6, "sleep": 0.0}}


def train(config, output, **changes):
    return winnow.train(**{**config, "output": str(output), **changes}, progress=False)


def digests(run, step):
    final = Path(run) / "checkpoints" / f"step-{step:06d}"
    names = ("model.safetensors", "trainer.tensors", "trainer.json")
    return {name: hashlib.sha256((final / name).read_bytes()).hexdigest() for name in names}


def rollouts(run):
    rows = read_rows(Path(run) / "rollouts")
    return [{k: repr(getattr(v, "tolist", lambda v=v: v)()) for k, v in row.items() if k != "seconds"} for row in rows]


@pytest.fixture(scope="module", autouse=True)
def in_forks_and_here():
    """Supervisors are forks, and this process renders chat templates: each takes longer than a step otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        fork_supervisors(patch)
        render_here(patch)
        yield


@pytest.fixture(scope="module")
def played(smallest_in, tmp_path_factory):
    """A configuration, and its runs of one step and of two, by their number; tests read them."""
    folder = tmp_path_factory.mktemp("played")
    config = configuration(smallest_in(folder), folder, task={"levels": [1, 2]})
    return config, {steps: train(config, folder / f"run-{steps}", steps=steps) for steps in (1, 2)}


TEN = pytest.param(range(1, 11), marks=(pytest.mark.slow, pytest.mark.timeout(1200)))


@pytest.mark.parametrize("seeds", [range(1), TEN])
def test_the_same_bits_however_slow_the_environment_is(seeds, played, tmp_path):
    config, runs = played
    for seed in seeds:
        slow = {**config["environment"], "sleep": 0.05, "seed": seed}
        run = tmp_path / f"slow-{seed}"
        train(config, run, environment=slow)
        assert digests(run, 2) == digests(runs[2].folder, 2)
        assert rollouts(run) == rollouts(runs[2].folder)


def test_the_log_has_turns_masks_and_numbers_of_both_kinds_of_tokens(played):
    folder = Path(played[1][1].folder)
    rows = list(read_rows(folder / "rollouts"))
    assert {len(row["turns"]) for row in rows} == {5}
    for row in rows:
        assert row["text"] == "\n".join(row["turns"][::2])
        assert len(row["trainable"]) == len(row["tokens"]) == row["length"] <= 60
        assert (row["logprobs"][~row["trainable"]] == 0).all()
        assert (row["logprobs"][row["trainable"]] < 0).all()
    metrics = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-2])
    own = sum(int(row["trainable"].sum()) for row in rows)
    assert metrics["budget/tokens_generated"] == own
    assert metrics["budget/environment_tokens"] == sum(row["length"] for row in rows) - own
    assert metrics["policy/logprob_gap_max"] < 1e-4, "the policy reads the context in which the engine sampled"
    assert len({row["turns"][1].split()[0] for row in rows}) == 3, "one game for each of the three prompts"
    shown = "\n".join(format_rollouts(folder, Choice(full=True)))
    assert shown.count("environment:") == 2 * len(rows)
    assert shown.count("policy:") == 3 * len(rows)


def check_a_resume(parts, whole):
    """After a second step, a run of one has the bits of one of two."""
    winnow.resume(parts, steps=2, trust_run=True, progress=False)
    assert digests(parts, 2)["model.safetensors"] == digests(whole, 2)["model.safetensors"]
    assert rollouts(parts) == rollouts(whole)


def test_a_resumed_run_has_the_same_bits(played, tmp_path):
    _, runs = played
    check_a_resume(Path(shutil.copytree(runs[1].folder, tmp_path / "parts")), runs[2].folder)


WITH_TOOLS = (  # answers to tool calls are turns of <|system|>
    "{# [TOOL_CALLS] #}{% for m in messages %}<|{{ 'system' if m.role == 'tool' else m.role }}|>{{ m.content }}"
    "<|endoftext|>{% endfor %}{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
)


def tool_calls(smallest, tmp_path):
    """The configuration of runs whose environment answers tool calls."""
    config = configuration(smallest, tmp_path, task={"levels": [1, 2]})
    folder = shutil.copytree(config["model"]["path"], tmp_path / "model")
    (folder / "chat_template.jinja").write_text(WITH_TOOLS, encoding="utf-8")
    config |= {"model": {"path": str(folder)}, "rollout": {**config["rollout"], "max_new_tokens": 300}}
    config["environment"] = {"use": f"{Path(__file__).with_name('tool_game.py')}:ask", "max_turn_tokens": 6}
    return config


def test_answers_to_tool_calls_in_the_form_of_the_chat_template(smallest, tmp_path):
    """In training with a worker, and in an evaluation."""
    config = tool_calls(smallest, tmp_path)
    result = train(config, tmp_path / "whole", steps=1)
    rows = list(read_rows(tmp_path / "whole" / "rollouts"))
    assert {row["parts"]["mistral"] for row in rows} == {1.0}
    tokenizer = load_tokenizer(config["model"]["path"])
    for row in rows:
        first = f"<tool_response>\n{len(row['turns'][0])}\n</tool_response>\n<tool_response>\nerror: "
        assert row["turns"][1].startswith(first)
        given = tokenizer.decode(row["tokens"][~row["trainable"]])
        assert given.count("<|system|>") == 4, "two answers in each of two turns"
        assert f"<|system|>{len(row['turns'][0])}<|endoftext|><|system|>error: there is no tool 'lenght'" in given
    one = winnow.evaluate(str(result.model), problems=2, rollouts_per_prompt=2, trust_run=True, progress=False)
    assert {row["parts"]["mistral"] for row in one.rows} == {1.0}


@pytest.mark.slow  # three runs; test_a_resumed_run_has_the_same_bits resumes an environment whose turns are texts
def test_a_resumed_run_with_tool_calls_has_the_same_bits(smallest, tmp_path):
    config = tool_calls(smallest, tmp_path)
    train(config, tmp_path / "whole", steps=2)
    train(config, tmp_path / "parts", steps=1)
    check_a_resume(tmp_path / "parts", tmp_path / "whole")


def test_a_template_without_a_second_turn_is_refused_before_a_model_is_loaded(smallest, tmp_path):
    config = configuration(smallest, tmp_path)
    folder = shutil.copytree(config["model"]["path"], tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ messages[-1].content }}", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"")
    with refused(DataError, key="environment", code="data.unfit_model"):
        train({**config, "model": {"path": str(folder)}}, tmp_path / "run")


def test_an_evaluation_plays_the_environment(played):
    _, runs = played
    one = winnow.evaluate(str(runs[1].model), problems=3, rollouts_per_prompt=2, trust_run=True, progress=False)
    assert len(one.rows) == 6
    assert all(row["parts"].keys() == {"even", "start"} for row in one.rows)
    assert all(len(row["turns"]) == 5 for row in one.rows)


def test_a_reward_and_an_environment_are_refused(smallest, tmp_path):
    config = configuration(smallest, tmp_path)
    with refused(ConfigError, key="environment", code="config.combination"):
        train(config, tmp_path / "both", reward="boxed")
    with refused(ConfigError, key="prompt.template", code="config.combination"):
        train(config, tmp_path / "plain", prompt={"template": "question_only"})
    with refused(ConfigError, key="environment.max_turn_tokens", code="config.combination"):
        train(config, tmp_path / "short", rollout={"max_new_tokens": 5})
    with refused(ConfigError, key="environment.turn", code="config.unknown_key"):
        train(config, tmp_path / "unknown", environment={**config["environment"], "turn": 3})


def test_the_game_of_the_documentation(smallest, tmp_path, monkeypatch):
    page = (REPOSITORY / "docs" / "environments.md").read_text(encoding="utf-8")
    text = page.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    Path("game.py").write_text(text, encoding="utf-8")
    config = {**configuration(smallest, tmp_path, steps=1), "environment": {"use": "game.py:second_chance"}}
    train(config, tmp_path / "run", environment={**config["environment"], "max_turn_tokens": 6})
    rows = list(read_rows(tmp_path / "run" / "rollouts"))
    assert {row["turns"][1] for row in rows if row["turns"]} == {"No. Try once more."}
    assert {frozenset(row["parts"]) for row in rows} == {frozenset({"right", "late"})}
    assert "game" not in sys.modules
    assert np.isfinite([row["reward"] for row in rows]).all()


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["generate", "update"])
def test_a_killed_run_resumes_to_the_same_bits(moment, smallest, tmp_path):
    from test_resume import write_config

    config = configuration(
        smallest, tmp_path, steps=6, checkpoint={"every": 2}, update={"epochs": 2, "updates_per_step": 2}
    )
    whole = train(config, tmp_path / "whole")
    toml = write_config(tmp_path / "killed.toml", {**config, "output": str(tmp_path / "killed")})
    killed = python(KILLED, moment, toml)
    assert killed.returncode == -9, killed.stderr
    winnow.train(toml, resume=True, progress=False)
    assert digests(tmp_path / "killed", 6) == digests(whole.folder, 6)
