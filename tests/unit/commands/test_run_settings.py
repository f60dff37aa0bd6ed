"""What a model is evaluated with, and that nothing which lies around it is run unasked."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import winnow
from winnow.cli import app
from winnow.commands.run_settings import EVERY, settings_from, settings_of, source_of
from winnow.errors import ConfigError, DataError, RunFolderError
from winnow.training.resolve import resolve_members

PLANTED = """
from pathlib import Path
Path(__file__).with_name("planted").write_text("ran")
def planted(*args, **options):
    return 1.0
"""
TRAINED = {"model": {"path": "base", "lora": {"rank": 2}}, "task": {"use": "jsonl", "path": "x"}, "seed": 7}


def settings_for(model, config=None, keys=None, sets=(), *, trust_run=False):
    """As `winnow eval` finds them for one task."""
    named = "task" in (keys or {}) or any(text.startswith(("task=", "task.")) for text in sets)
    source = source_of(model, config, task_named=named, trust_run=trust_run)
    return settings_from(source, model, keys or {}, sets, trust_run=trust_run), source.base


@pytest.fixture
def run(tmp_path):
    """A run folder that names its files in every way, and whose files show when they were imported."""

    def make(config, *, home="checkpoints", checkpoint="step-000002", **manifest):
        folder = tmp_path / "run"
        (folder / home / checkpoint).mkdir(parents=True)
        for name in ("evil.py", "evil.pyc", "evil"):
            (folder / name).write_text(PLANTED)
        data = {"winnow_run": 1, "base": str(folder), "config": config, **manifest}
        (folder / "manifest.json").write_text(json.dumps(data))
        return folder / home / checkpoint

    return make


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_a_checkpoint_brings_the_configuration_of_its_run(run):
    checkpoint = run(TRAINED)
    config, base = settings_for(str(checkpoint), sets=["evaluate.problems=3", "task.path=y"])
    assert (config.model.path, config.model.lora) == (str(checkpoint), None)
    assert (config.seed, config.task.options, config.evaluate.problems) == (7, {"path": "y"}, 3)
    assert base == checkpoint.parents[1]


def test_a_link_to_a_checkpoint_is_that_checkpoint(run, tmp_path):
    (tmp_path / "latest").symlink_to(run(TRAINED))
    assert settings_for(str(tmp_path / "latest"))[0].seed == 7


def test_every_problem_of_the_test_split_is_asked_unless_told_otherwise(run, tmp_path):
    checkpoint = run({**TRAINED, "evaluate": {"problems": 16, "split": "validation"}})
    (tmp_path / "mine.toml").write_text('task = "gsm8k"\n[evaluate]\nproblems = 16\n')
    for config in (None, tmp_path / "mine.toml"):
        evaluate = settings_for(str(checkpoint), config)[0].evaluate
        assert (evaluate.problems, evaluate.split) == (EVERY, "test")
    asked = settings_for(str(checkpoint), keys={"evaluate": {"problems": 4, "split": "train"}})[0].evaluate
    assert (asked.problems, asked.split) == (4, "train")


def test_a_configuration_by_name_wins_and_gives_its_folder(tmp_path):
    (tmp_path / "mine.toml").write_text("seed = 5\n")
    config, base = settings_for("bundled", tmp_path / "mine.toml")
    assert (config.seed, config.model.path, base) == (5, "bundled", tmp_path)


def test_another_model_needs_a_task(tmp_path):
    config, _ = settings_for("owner/name", sets=["task=gsm8k"])
    assert (config.model.path, config.task.label) == ("owner/name", "gsm8k")
    assert settings_for("bundled")[0].task.label == "arithmetic"
    with pytest.raises(ConfigError, match=r"owner/name is no folder here \(of the hub, then\?\).*name a task"):
        settings_for("owner/name")
    with pytest.raises(ConfigError, match="did you mean 'problems'"):
        settings_for("bundled", sets=["evaluate.problem=3"])
    refused = invoke("eval", "owner/name")
    assert (refused.exit_code, "--task" in refused.stderr) == (2, True)


def test_a_task_by_name_takes_its_options_by_set():
    config, _ = settings_for("owner/name", keys={"task": "gsm8k"}, sets=["task.path=F"])
    assert (config.task.label, config.task.options) == ("gsm8k", {"path": "F"})
    failed = invoke("eval", "bundled", "--task", "gsm8k", "--set", "task.path=./nowhere")
    assert "task.path: there is no file or folder ./nowhere" in failed.stderr


def test_a_folder_that_is_not_there_is_said_first(tmp_path):
    for model in ("./nope", str(tmp_path / "nope"), "nope"):
        with pytest.raises(DataError, match=f"there is no folder {model}"):
            settings_for(model)


def test_what_only_training_calls_is_neither_looked_up_nor_imported(run):
    only = {"loss": "evil.py:planted", "select": ["evil.py:planted"], "advantage": "given_from_python"}
    only |= {"track": ["evil.py:planted", "wandb"]}
    config, _ = settings_for(str(run({**TRAINED, **only, "terms": [{"use": "evil.py:planted", "coefficient": 1.0}]})))
    assert (config.loss.label, config.advantage.label, config.select[0].label) == ("clip", "grpo", "all")
    assert (config.terms, config.track) == ((), ())


def test_a_run_that_probed_is_evaluated(run):
    probed = {"allocate": "gvm", "probe": {"every": 2, "outer_reset": "optimizer"}}
    config, base = settings_for(str(run({**TRAINED, "task": "arithmetic", **probed})))
    assert resolve_members(config, base).source == "none"


CODE = [
    ({"reward": {"use": "evil.py:planted"}}, "reward = '{}/evil.py:planted'"),
    ({"reward": {"parts": [{"use": "r1_zero"}, {"use": "evil.py:planted"}]}}, "reward.parts.1 = '{}/evil.py:planted'"),
    ({"task": {"use": "./evil.py:planted"}}, "task = '{}/evil.py:planted'"),
    ({"rollout": {"engine": {"use": "evil.py:planted"}}}, "rollout.engine = '{}/evil.py:planted'"),
    (
        {"rollout": {"engine": {"use": "scripted", "script": "/x/evil.py:planted"}}},
        "rollout.engine.script = '/x/evil.py:planted'",
    ),
    ({"reward": {"use": "code_tests", "sandbox": "unsafe"}}, "reward.sandbox = 'unsafe'"),
    ({"reward": {"use": "reasoning_gym"}}, "reward = 'reasoning_gym'"),  # of items that another task reads from a file
]


@pytest.mark.parametrize(("named", "shown"), CODE)
def test_code_that_a_run_names_is_shown_and_not_run(run, named, shown):
    checkpoint = run({**TRAINED, **named})
    folder = checkpoint.parents[1]
    refused = invoke("eval", checkpoint)
    assert refused.exit_code == 2
    assert shown.format(folder) in refused.stderr
    assert "--trust-run" in refused.stderr
    with pytest.raises(ConfigError, match="trust_run=True from Python"):
        winnow.evaluate(checkpoint)
    with pytest.raises(ConfigError, match="trust_run=True from Python"):
        winnow.resume(folder, progress=False)
    assert not (folder / "planted").exists()
    settings_for(str(checkpoint), trust_run=True)
    settings_of(folder, {}, trust_run=True)


def test_the_path_shown_is_the_file_that_is_imported(run, tmp_path):
    folder = run({**TRAINED, "reward": {"use": "link/../evil.py:planted"}}).parents[1]
    (tmp_path / "elsewhere" / "inner").mkdir(parents=True)
    (tmp_path / "elsewhere" / "evil.py").write_text(PLANTED)
    (folder / "link").symlink_to(tmp_path / "elsewhere" / "inner")  # .. goes up from there
    refused = invoke("eval", folder / "checkpoints" / "step-000002")
    assert f"reward = '{tmp_path}/elsewhere/evil.py:planted'" in refused.stderr
    (folder / "evil.py").unlink()
    (folder / "evil.py").symlink_to(tmp_path / "elsewhere" / "evil.py")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["config"]["reward"] = {"use": "evil.py:planted"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert (
        f"reward = '{tmp_path}/elsewhere/evil.py:planted'" in invoke("eval", folder / "checkpoints/step-000002").stderr
    )


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        ({"task": {"use": "reasoning_gym", "dataset": "countdown"}}, {}),  # its items are made here
        (TRAINED, {"task": {"use": "jsonl", "path": "mine.jsonl"}}),
    ],
)
def test_a_scorer_of_items_that_are_no_stranger_s_needs_no_trust(run, config, keys):
    checkpoint = run({**TRAINED, **config, "reward": {"use": "reasoning_gym"}})
    assert settings_for(str(checkpoint), keys=keys)[0].reward.use == "reasoning_gym"


def test_what_a_call_names_itself_is_trusted(run, tmp_path, monkeypatch):
    checkpoint = run({**TRAINED, "reward": {"use": "evil.py:planted"}})
    (tmp_path / "mine.py").write_text("def half(prompt, rollout):\n    return 0.5\n")
    monkeypatch.chdir(tmp_path)
    for given in ({"sets": ["reward=mine.py:half"]}, {"keys": {"reward": "mine.py:half"}}, {"keys": {"reward": len}}):
        config, _ = settings_for(str(checkpoint), **given)
        assert config.reward.use in (str(tmp_path / "mine.py:half"), len)
    named = settings_for(str(checkpoint), sets=[f"reward={checkpoint.parents[1]}/evil.py:planted"])[0]
    assert str(named.reward.use).endswith("run/evil.py:planted")
    with pytest.raises(ConfigError, match=r"evil\.py:planted"):  # only where it was said
        settings_for(str(checkpoint), sets=["prompt.system=evil.py:planted"])
    with pytest.raises(ConfigError, match=r"evil\.py:planted"):  # another one of the same name is not the one beside it
        settings_for(str(checkpoint), sets=["evaluate.problems=1"])


@pytest.mark.parametrize("script", ["evil.pyc:planted", "evil:planted", "evil.py/:planted", "evil.py/.:planted"])
def test_a_function_comes_from_a_file_that_can_be_read(run, script, monkeypatch):
    named = {"rollout": {"engine": {"use": "scripted", "script": script}}, "task": {"use": "arithmetic", "size": 8}}
    checkpoint = run({**TRAINED, **named})
    monkeypatch.chdir(checkpoint.parents[1])
    refused = invoke("eval", checkpoint, "--set", "model.path=bundled")
    assert "functions come from a .py file" in refused.stderr
    assert not (checkpoint.parents[1] / "planted").exists()


@pytest.mark.parametrize("place", [{"home": "models"}, {"checkpoint": "model"}, {"checkpoint": "step-2-final"}])
def test_other_folders_are_no_checkpoints(run, place):
    with pytest.raises(ConfigError, match="is not a checkpoint of a run of winnow"):
        settings_for(str(run({**TRAINED, "reward": {"use": "evil.py:planted"}}, **place)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no manifest of a run"),
        ("[]", "no manifest of a run"),
        ('{"winnow_run": 1}', "no manifest of a run"),
        ('{"winnow_run": 999, "config": {}}', "is of format 999"),
        ('{"config": {}}', "no manifest of a run"),
        ("[" * 100_000, "no manifest of a run"),
    ],
)
def test_a_manifest_that_is_none_is_an_error_where_it_is_needed(run, text, said):
    checkpoint = run(TRAINED)
    (checkpoint.parents[1] / "manifest.json").write_text(text)
    with pytest.raises(RunFolderError, match=said):
        settings_for(str(checkpoint))
    assert settings_for(str(checkpoint), keys={"task": "gsm8k"})[0].seed == 0


def test_another_user_s_manifest_is_taken_over_with_trust_alone(run, monkeypatch, capsys):
    checkpoint = run(TRAINED)
    folder = checkpoint.parents[1]
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(checkpoint).st_uid + 1)
    remedy = r"belongs to another user .*trust_run=True from Python.*--trust-run.*chown.*a configuration of your own"
    with pytest.raises(RunFolderError, match=remedy):
        settings_for(str(checkpoint))
    with pytest.raises(RunFolderError, match=remedy):
        winnow.resume(folder)
    assert settings_for(str(checkpoint), trust_run=True)[0].seed == 7
    assert settings_of(folder, {}, trust_run=True)[0].seed == 7
    assert capsys.readouterr().err == ""
    assert settings_for(str(checkpoint), keys={"task": "gsm8k"})[0].seed == 0  # as for a model that is no checkpoint
    assert re.search("note: nothing of the run's settings holds here: .*" + remedy, capsys.readouterr().err)
    assert settings_for(str(checkpoint), keys={"task": "gsm8k"}, trust_run=True)[0].seed == 7


def test_a_manifest_that_is_a_link_or_a_pipe_is_not_read(run, tmp_path):
    checkpoint = run(TRAINED)
    manifest = checkpoint.parents[1] / "manifest.json"
    manifest.rename(tmp_path / "elsewhere.json")
    manifest.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(RunFolderError, match="cannot read"):
        settings_for(str(checkpoint))
    manifest.unlink()
    os.mkfifo(manifest)
    with pytest.raises(ConfigError, match="is not a checkpoint"):
        settings_for(str(checkpoint))
    with pytest.raises(RunFolderError, match="not a regular file"):
        settings_of(checkpoint.parents[1], {})


def test_a_run_folder_or_an_adapter_names_the_model_that_is_meant(run, tmp_path):
    checkpoint = run(TRAINED)
    folder = checkpoint.parents[1]
    (folder / "checkpoints" / "step-000010").mkdir()
    for around in (folder, folder / "checkpoints"):
        with pytest.raises(DataError, match=r"is a run folder.*newest checkpoint is .*step-000010"):
            settings_for(str(around))
    (checkpoint / "config.json").write_text("{}")
    for adapter in (checkpoint / "adapter", tmp_path / "adapter"):
        adapter.mkdir()
        (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(DataError, match=r"is an adapter.*merged into is .*step-000002"):
        settings_for(str(checkpoint / "adapter"))
    with pytest.raises(DataError, match="merge it into its base first"):
        settings_for(str(tmp_path / "adapter"), keys={"task": "gsm8k"})


HOSTILE = """
raise SystemExit("a file beside the model was imported: " + __file__)
"""


def test_python_files_beside_a_model_are_not_imported(tmp_path, tiny_folder):
    """Also where the user stands in the model's folder, and the folder asks for its own classes."""
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny_folder("qwen2").iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    for name in ("tokenizer", "tokenization_x", "modeling_x", "configuration_x", "torch", "numpy", "winnow", "typing"):
        (model / f"{name}.py").write_text(HOSTILE)
    (model / "custom_generate").mkdir()
    (model / "custom_generate" / "generate.py").write_text(HOSTILE)
    for name, key, value in (
        ("config.json", "AutoModelForCausalLM", "modeling_x.Model"),
        ("tokenizer_config.json", "AutoTokenizer", ["tokenizer.T", "tokenizer.T"]),
    ):
        settings = json.loads((model / name).read_text())
        settings["auto_map"] = {key: value, "AutoConfig": "configuration_x.Config"}
        (model / name).write_text(json.dumps(settings))
    call = (
        "from winnow.cli import main; main()"  # what the installed script does; -P: its own folder is not imported from
    )
    few = ("--problems", "1", "--rollouts-per-prompt", "1", "--no-greedy", "--set", "rollout.max_new_tokens=2")
    done = subprocess.run(
        [sys.executable, "-P", "-c", call, "eval", ".", "--task", "arithmetic", *few, "--set", "task.size=2"],
        cwd=model,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(winnow.__file__).parents[1])},
    )
    assert "a file beside the model was imported" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
    assert "task       arithmetic (size = 2), 1 test problems, x 1\n" in done.stdout
