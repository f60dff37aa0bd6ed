"""The settings of an evaluation, and that no code beside a model is run without the user's consent."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import winnow
from refusals import check_printed_error, refused
from winnow.commands import app
from winnow.errors import ConfigError, DataError, RunFolderError
from winnow.evaluation.evaluate import run_evaluation
from winnow.evaluation.settings import EVERY, evaluation_tasks, settings_from, settings_of, source_of
from winnow.models.folder import BUNDLED
from winnow.state.resume import digest
from winnow.training.resolve import resolve_members

PLANTED = """
from pathlib import Path
Path(__file__).with_name("planted").write_text("ran")
def planted(*args, **options):
    return 1.0
"""
TRAINED = {"model": {"path": "base", "lora": {"rank": 2}}, "task": {"use": "jsonl", "path": "x"}, "seed": 7}


def settings_for(model, config=None, keys=None, sets=(), *, trust_run=False):
    """The settings and the base folder that `winnow eval` uses for one task."""
    named = "task" in (keys or {}) or any(text.startswith(("task=", "task.")) for text in sets)
    source = source_of(model, config, task_named=named, trust_run=trust_run)
    return settings_from(source, keys or {}, sets), source.base


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


def test_the_judge_of_the_call_takes_the_place_of_the_runs(run):
    of = {"task": {"use": "guess_number"}, "environment": {"use": "guess_number"}, "reward": None}
    (one,) = evaluation_tasks(str(run(of)), keys={"reward": "boxed"})
    assert (one.config.reward.use, one.config.environment) == ("boxed", None)


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_a_checkpoint_is_evaluated_with_its_runs_configuration(run):
    checkpoint = run(TRAINED)
    config, base = settings_for(str(checkpoint), sets=["evaluate.problems=3", "task.path=y"])
    assert (config.model.path, config.model.lora) == (str(checkpoint), None)
    assert (config.seed, config.task.options, config.evaluate.problems) == (7, {"path": "y"}, 3)
    assert base == checkpoint.parents[1]


FILES = {"train": "a.jsonl", "test": "b.jsonl", "question": "q"}


@pytest.mark.parametrize(
    ("text", "named", "options"),
    [
        ('[task]\nuse = "jsonl"\ntrain = "a.jsonl"\ntest = "b.jsonl"\nquestion = "q"', "jsonl", FILES),
        (
            '[evaluate]\ntasks = [{ use = "jsonl", train = "a.jsonl", test = "b.jsonl", question = "q" }]',
            "jsonl",
            FILES,
        ),
        ('[task]\nuse = "jsonl"\ntrain = "a.jsonl"\ntest = "b.jsonl"', "jsonl=c.jsonl", {"path": "c.jsonl"}),
        ('[task]\nuse = "jsonl"\ntrain = "a.jsonl"\ntest = "b.jsonl"', "arithmetic", {}),
    ],
)
def test_a_task_named_as_in_the_file_keeps_the_files_options(tmp_path, text, named, options):
    (tmp_path / "mine.toml").write_text(text)
    (one,) = evaluation_tasks("bundled", tmp_path / "mine.toml", [named])
    assert (one.config.task.use, one.config.task.options) == (named.partition("=")[0], options)


def test_a_task_named_as_in_the_run_keeps_the_runs_options(run):
    (one,) = evaluation_tasks(str(run(TRAINED)), None, ["jsonl"])
    assert one.config.task.options == {"path": "x"}


def test_a_link_to_a_checkpoint_is_that_checkpoint(run, tmp_path):
    (tmp_path / "latest").symlink_to(run(TRAINED))
    assert settings_for(str(tmp_path / "latest"))[0].seed == 7


@pytest.mark.parametrize(("option", "value"), [("--split", "tst"), ("--temperature", "-1"), ("--seed", str(2**70))])
@pytest.mark.parametrize("from_file", [True, False])
def test_a_wrong_value_names_its_option_and_not_the_file(run, tmp_path, option, value, from_file):
    (tmp_path / "mine.toml").write_text("seed = 5\n[evaluate]\nsplit = 'train'\ntemperature = 0.5\n")
    own = ("bundled", "--config", tmp_path / "mine.toml") if from_file else (run(TRAINED),)
    result = invoke("eval", *own, option, value)
    check_printed_error(result, option.lstrip("-"), code="config.value")
    assert option in result.stderr
    assert not {"mine.toml", "manifest.json"} & set(re.findall(r"\w+\.\w+", result.stderr))


def test_a_wrong_value_of_the_file_or_an_override_does_not_name_an_option(tmp_path):
    (tmp_path / "mine.toml").write_text("[evaluate]\ntemperature = -1\n")
    result = invoke("eval", "bundled", "--config", tmp_path / "mine.toml")
    check_printed_error(result, tmp_path / "mine.toml", "line 2", code="config.value")
    assert "--temperature" not in result.stderr
    result = invoke("eval", "bundled", "--task", "arithmetic", "--split", "train", "--set", "evaluate.split=tst")
    check_printed_error(result, "evaluate.split=tst", code="config.value")
    assert "--split" not in result.stderr


def test_the_default_is_every_problem_of_the_test_split(run, tmp_path):
    checkpoint = run({**TRAINED, "evaluate": {"problems": 16, "split": "validation"}})
    (tmp_path / "mine.toml").write_text('task = "gsm8k"\n[evaluate]\nproblems = 16\n')
    for config in (None, tmp_path / "mine.toml"):
        evaluate = settings_for(str(checkpoint), config)[0].evaluate
        assert (evaluate.problems, evaluate.split) == (EVERY, "test")
    given = settings_for(str(checkpoint), keys={"evaluate": {"problems": 4, "split": "train"}})[0].evaluate
    assert (given.problems, given.split) == (4, "train")


def test_a_given_configuration_is_used_with_its_folder(tmp_path):
    (tmp_path / "mine.toml").write_text("seed = 5\n")
    config, base = settings_for("bundled", tmp_path / "mine.toml")
    assert (config.seed, config.model.path, base) == (5, "bundled", tmp_path)


def test_another_model_needs_a_task(tmp_path):
    config, _ = settings_for("owner/name", sets=["task=gsm8k"])
    assert (config.model.path, config.task.label) == ("owner/name", "gsm8k")
    assert settings_for("bundled")[0].task.label == "arithmetic"
    with refused(ConfigError, "owner/name", key="task", code="config.missing_key"):
        settings_for("owner/name")
    with refused(ConfigError, "'problems'", key="evaluate.problem", code="config.unknown_key"):
        settings_for("bundled", sets=["evaluate.problem=3"])
    check_printed_error(invoke("eval", "owner/name"), "--task", code="config.missing_key")


def test_a_task_by_name_takes_its_options_by_set():
    config, _ = settings_for("owner/name", keys={"task": "gsm8k"}, sets=["task.path=F"])
    assert (config.task.label, config.task.options) == ("gsm8k", {"path": "F"})
    failed = invoke("eval", "bundled", "--task", "gsm8k", "--set", "task.path=./nowhere")
    check_printed_error(failed, "task.path", "nowhere", code="data.missing")


def test_a_missing_model_folder_is_refused_first(tmp_path):
    for model in ("./nope", str(tmp_path / "nope"), "nope"):
        with refused(DataError, model, code="data.missing"):
            settings_for(model)


def test_another_model_without_weights_is_refused_before_the_first_is_evaluated(tmp_path):
    other = shutil.copytree(BUNDLED, tmp_path / "other", ignore=shutil.ignore_patterns("*.safetensors"))
    with refused(DataError, "model.safetensors", key="model.path", code="data.missing"):
        run_evaluation("bundled", tasks=["arithmetic"], compare=str(other), into=tmp_path / "found", problems=1)
    assert not (tmp_path / "found").exists()


def test_golds_that_the_reward_cannot_read_are_refused_before_the_model(tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    task = {"use": "jsonl", "test": str(tmp_path / "mine.jsonl")}
    with refused(DataError, "mine.jsonl:1", "'code_tests'", key="task", code="data.malformed"):
        run_evaluation("bundled", task=task, reward={"use": "code_tests", "sandbox": "unsafe"}, into=tmp_path / "found")
    assert not (tmp_path / "found").exists()


def test_members_that_only_training_calls_are_not_imported(run):
    only = {"loss": "evil.py:planted", "select": ["evil.py:planted"], "advantage": "given_from_python"}
    only |= {"track": ["evil.py:planted", "wandb"]}
    config, _ = settings_for(str(run({**TRAINED, **only, "terms": [{"use": "evil.py:planted", "coefficient": 1.0}]})))
    assert (config.loss.label, config.advantage.label, config.select[0].label) == ("clip", "grpo", "all")
    assert (config.terms, config.track) == ((), ())


def test_a_run_that_probed_is_evaluated(run):
    probed = {"allocate": "gvm", "probe": {"every": 2, "outer_reset": "optimizer"}}
    config, base = settings_for(str(run({**TRAINED, "task": "arithmetic", **probed})))
    assert resolve_members(config, base).source == "none"


@pytest.mark.parametrize(
    "own",
    [
        {"advantage": "gae", "critic": {"form": "model"}},
        {"plan": {"use": "auto", "keep_per_prompt": [2, 8]}, "rollout": {"rollouts_per_prompt": 16}},
        {"correction": "evil.py:planted"},
        {"rollout": {"ahead": 1}, "correction": {"use": "none"}},
    ],
)
def test_settings_of_training_alone_do_not_prevent_an_evaluation(run, own):
    resolve_members(*settings_for(str(run({**TRAINED, "task": "arithmetic", **own}))))


def test_files_of_further_tasks_matter_only_where_these_are_evaluated(run, tmp_path, monkeypatch):
    config = {**TRAINED, "task": "arithmetic", "evaluate": {"tasks": [{"use": "jsonl", "test": "t.jsonl"}]}}
    checkpoint = run(config, inputs={"evaluate.tasks": {"t.jsonl": "sha256:1"}})
    monkeypatch.chdir(tmp_path)
    for named in ([], ["jsonl"]):
        with refused(DataError, "t.jsonl", key="evaluate.tasks", code="data.changed"):
            evaluation_tasks(str(checkpoint), tasks=named)
    for given in ({"tasks": ["arithmetic"]}, {"further": False}, {"sets": ["evaluate.tasks=[]"]}):
        assert [one.name for one in evaluation_tasks(str(checkpoint), **given)] == ["arithmetic"]


def test_files_of_a_listed_task_that_the_call_does_not_read_do_not_matter(run, tmp_path, monkeypatch):
    lists = [{"use": "jsonl", "test": "gone.jsonl"}, {"use": "math500", "path": "m.jsonl"}]
    (tmp_path / "m.jsonl").write_text("{}\n")
    read = {"gone.jsonl": "sha256:1", "m.jsonl": digest(tmp_path / "m.jsonl")}
    config = {**TRAINED, "task": "arithmetic", "evaluate": {"tasks": lists}}
    checkpoint = str(run(config, inputs={"evaluate.tasks": read}))
    monkeypatch.chdir(tmp_path)
    for given in ({"tasks": ["math500"]}, {"tasks": ["jsonl"], "sets": ["task.test=mine.jsonl"]}):
        assert [one.name for one in evaluation_tasks(checkpoint, **given)] == given["tasks"]
    (tmp_path / "m.jsonl").write_text("{ }\n")
    with refused(DataError, "m.jsonl", key="evaluate.tasks", code="data.changed"):
        evaluation_tasks(checkpoint, tasks=["math500"])


def test_a_task_without_defaults_keeps_the_prompt_and_the_reward_of_the_run(run):
    checkpoint = str(run({**TRAINED, "prompt": {"system": "Think."}, "reward": {"use": "boxed"}}))
    own, gsm8k = evaluation_tasks(checkpoint, None, ["jsonl,gsm8k"], task_defaults=True)
    assert (own.config.prompt.system, own.config.reward.use) == ("Think.", "boxed")
    assert (gsm8k.config.prompt.system == "Think.", gsm8k.config.reward.use) == (False, None)  # it has parts


def test_an_environment_takes_the_place_of_a_declared_reward(tmp_path):
    (tmp_path / "mine.toml").write_text('task = "gsm8k"\n[environment]\nuse = "calculator"\n')
    (played,) = evaluation_tasks("owner/name", tmp_path / "mine.toml")
    assert (played.config.reward, played.config.environment.label) == (None, "calculator")
    (own,) = evaluation_tasks("owner/name", tmp_path / "mine.toml", ["gsm8k"], task_defaults=True)
    assert (own.config.reward is None, own.config.environment) == (False, None)


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
    ({"reward": {"use": "reasoning_gym"}}, "reward = 'reasoning_gym'"),  # its items are from another task's file
]


@pytest.mark.parametrize(("named", "shown"), CODE)
def test_code_that_a_run_names_is_shown_and_not_run(run, named, shown):
    checkpoint = run({**TRAINED, **named})
    folder = checkpoint.parents[1]
    check_printed_error(invoke("eval", checkpoint), shown.format(folder), "trust-run", code="config.untrusted")
    with refused(ConfigError, "trust_run=True", code="config.untrusted"):
        winnow.evaluate(checkpoint)
    with refused(ConfigError, "trust_run=True", code="config.untrusted"):
        winnow.resume(folder, progress=False)
    assert not (folder / "planted").exists()
    settings_for(str(checkpoint), trust_run=True)
    settings_of(folder, {}, trust_run=True)


def test_the_path_shown_is_the_file_that_is_imported(run, tmp_path):
    folder = run({**TRAINED, "reward": {"use": "link/../evil.py:planted"}}).parents[1]
    (tmp_path / "elsewhere" / "inner").mkdir(parents=True)
    (tmp_path / "elsewhere" / "evil.py").write_text(PLANTED)
    (folder / "link").symlink_to(tmp_path / "elsewhere" / "inner")  # its .. is `elsewhere`
    shown = f"reward = '{tmp_path}/elsewhere/evil.py:planted'"
    check_printed_error(invoke("eval", folder / "checkpoints/step-000002"), shown, code="config.untrusted")
    (folder / "evil.py").unlink()
    (folder / "evil.py").symlink_to(tmp_path / "elsewhere" / "evil.py")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["config"]["reward"] = {"use": "evil.py:planted"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    check_printed_error(invoke("eval", folder / "checkpoints/step-000002"), shown, code="config.untrusted")


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        ({"task": {"use": "reasoning_gym", "dataset": "countdown"}}, {}),  # its items are generated here
        (TRAINED, {"task": {"use": "jsonl", "path": "mine.jsonl"}}),
    ],
)
def test_a_scorer_of_the_users_items_needs_no_trust(run, config, keys):
    checkpoint = run({**TRAINED, **config, "reward": {"use": "reasoning_gym"}})
    assert settings_for(str(checkpoint), keys=keys)[0].reward.use == "reasoning_gym"


def test_code_that_the_call_names_is_trusted(run, tmp_path, monkeypatch):
    checkpoint = run({**TRAINED, "reward": {"use": "evil.py:planted"}})
    (tmp_path / "mine.py").write_text("def half(prompt, rollout):\n    return 0.5\n")
    monkeypatch.chdir(tmp_path)
    for given in ({"sets": ["reward=mine.py:half"]}, {"keys": {"reward": "mine.py:half"}}, {"keys": {"reward": len}}):
        config, _ = settings_for(str(checkpoint), **given)
        assert config.reward.use in (str(tmp_path / "mine.py:half"), len)
    named = settings_for(str(checkpoint), sets=[f"reward={checkpoint.parents[1]}/evil.py:planted"])[0]
    assert str(named.reward.use).endswith("run/evil.py:planted")
    with refused(ConfigError, "evil.py:planted", key="reward", code="config.untrusted"):  # named for another key
        settings_for(str(checkpoint), sets=["prompt.system=evil.py:planted"])
    with refused(ConfigError, "evil.py:planted", key="reward", code="config.untrusted"):  # not named
        settings_for(str(checkpoint), sets=["evaluate.problems=1"])


@pytest.mark.parametrize("script", ["evil.pyc:planted", "evil:planted", "evil.py/:planted", "evil.py/.:planted"])
def test_a_function_comes_from_a_file_that_can_be_read(run, script, monkeypatch):
    named = {"rollout": {"engine": {"use": "scripted", "script": script}}, "task": {"use": "arithmetic", "size": 8}}
    checkpoint = run({**TRAINED, **named})
    monkeypatch.chdir(checkpoint.parents[1])
    failed = invoke("eval", checkpoint, "--set", "model.path=bundled")
    check_printed_error(failed, ".py", code="config.user_code")
    assert not (checkpoint.parents[1] / "planted").exists()


@pytest.mark.parametrize("place", [{"home": "models"}, {"checkpoint": "model"}, {"checkpoint": "step-2-final"}])
def test_other_folders_are_not_checkpoints(run, place):
    with refused(ConfigError, key="task", code="config.missing_key"):
        settings_for(str(run({**TRAINED, "reward": {"use": "evil.py:planted"}}, **place)))


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"winnow_run": 1}', '{"winnow_run": 999, "config": {}}', '{"config": {}}', "[" * 100_000],
    ids=range(6),
)
def test_an_unreadable_manifest_is_refused_where_it_is_needed(run, text):
    checkpoint = run(TRAINED)
    manifest = checkpoint.parents[1] / "manifest.json"
    manifest.write_text(text)
    with refused(RunFolderError, manifest, *([999] if "999" in text else []), code="run_folder.unreadable"):
        settings_for(str(checkpoint))
    assert settings_for(str(checkpoint), keys={"task": "gsm8k"})[0].seed == 0


def test_another_user_s_manifest_is_only_used_with_trust(run, monkeypatch, capsys):
    checkpoint = run(TRAINED)
    folder = checkpoint.parents[1]
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(checkpoint).st_uid + 1)
    remedies = ("trust_run=True", "--trust-run", "chown")
    with refused(RunFolderError, folder / "manifest.json", *remedies, code="run_folder.untrusted"):
        settings_for(str(checkpoint))
    with refused(RunFolderError, *remedies, code="run_folder.untrusted"):
        winnow.resume(folder)
    assert settings_for(str(checkpoint), trust_run=True)[0].seed == 7
    assert settings_of(folder, {}, trust_run=True)[0].seed == 7
    assert capsys.readouterr().err == ""
    assert settings_for(str(checkpoint), keys={"task": "gsm8k"})[0].seed == 0  # as for a model without a run
    note = capsys.readouterr().err
    assert note.startswith("note: ")
    assert all(text in note for text in (str(folder), *remedies))
    assert settings_for(str(checkpoint), keys={"task": "gsm8k"}, trust_run=True)[0].seed == 7


def test_a_manifest_that_is_a_link_or_a_pipe_is_not_read(run, tmp_path):
    checkpoint = run(TRAINED)
    manifest = checkpoint.parents[1] / "manifest.json"
    manifest.rename(tmp_path / "elsewhere.json")
    manifest.symlink_to(tmp_path / "elsewhere.json")
    with refused(RunFolderError, manifest, code="run_folder.unreadable"):
        settings_for(str(checkpoint))
    manifest.unlink()
    os.mkfifo(manifest)
    with refused(ConfigError, key="task", code="config.missing_key"):
        settings_for(str(checkpoint))
    with refused(RunFolderError, manifest, code="run_folder.unreadable"):
        settings_of(checkpoint.parents[1], {})


def test_a_run_folder_or_an_adapter_is_refused_with_the_model_to_give(run, tmp_path):
    checkpoint = run(TRAINED)
    folder = checkpoint.parents[1]
    (folder / "checkpoints" / "step-000010").mkdir()
    for around in (folder, folder / "checkpoints"):
        with refused(DataError, around, folder / "checkpoints" / "step-000010", code="data.malformed"):
            settings_for(str(around))
    (checkpoint / "config.json").write_text("{}")
    for adapter in (checkpoint / "adapter", tmp_path / "adapter"):
        adapter.mkdir()
        (adapter / "adapter_config.json").write_text("{}")
    with refused(DataError, checkpoint / "adapter", checkpoint, code="data.malformed"):
        settings_for(str(checkpoint / "adapter"))
    with refused(DataError, tmp_path / "adapter", code="data.malformed"):
        settings_for(str(tmp_path / "adapter"), keys={"task": "gsm8k"})


HOSTILE = """
raise SystemExit("a file beside the model was imported: " + __file__)
"""


@pytest.mark.parametrize(
    "interpreter",
    [
        False,  # this process: it has torch imported, and the one that it starts to judge rewards imports the others
        # Six seconds: it imports torch anew, and only a -P that is missing here lets it find another
        pytest.param(True, marks=pytest.mark.slow),
    ],
)
def test_python_files_beside_a_model_are_not_imported(tmp_path, tiny_folder, monkeypatch, interpreter):
    """Neither in the model's folder as working directory, nor where its settings name classes of its files."""
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
    few = ("--problems", "1", "--rollouts-per-prompt", "1", "--no-greedy", "--set", "rollout.max_new_tokens=2")
    asked = ("eval", ".", "--task", "arithmetic", *few, "--set", "task.size=2")
    if interpreter:
        # As the installed script; -P keeps its folder out of the path of imports.
        done = subprocess.run(
            [sys.executable, "-P", "-c", "from winnow.commands import main; main()", *asked],
            cwd=model,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(winnow.__file__).parents[1])},
        )
        status, printed, errors = done.returncode, done.stdout, done.stderr
    else:
        monkeypatch.chdir(model)
        monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
        result = invoke(*asked)
        status, printed, errors = result.exit_code, result.stdout, result.stderr
    assert "a file beside the model was imported" not in printed + errors
    assert status == 0, errors
    assert "arithmetic" in printed


def test_a_prompt_that_mentions_a_file_is_no_code(run):
    config, _ = settings_for(str(run({**TRAINED, "prompt": {"system": "Complete main.py: code only."}})))
    assert config.prompt.system.startswith("Complete main.py:")


def test_items_of_a_file_that_the_run_lists_need_trust(run):
    lists = {"task": "arithmetic", "evaluate": {"tasks": [{"use": "jsonl", "test": "t.jsonl"}]}}
    checkpoint = str(run({**TRAINED, **lists, "reward": {"use": "reasoning_gym"}}))
    with refused(ConfigError, "reasoning_gym", key="reward", code="config.untrusted"):
        evaluation_tasks(checkpoint, None, ["jsonl"])
    evaluation_tasks(checkpoint, None, ["jsonl=mine.jsonl"])


@pytest.mark.parametrize("given", [["task.question=q"], ["task.train=mine.jsonl"]])
def test_an_option_of_the_runs_task_does_not_make_its_items_trusted(run, given):
    made = {"task": {"use": "jsonl", "train": "t.jsonl", "test": "t.jsonl"}, "reward": {"use": "reasoning_gym"}}
    checkpoint = str(run({**TRAINED, **made}))
    with refused(ConfigError, "reasoning_gym", key="reward", code="config.untrusted"):
        settings_for(checkpoint, sets=given)


@pytest.mark.parametrize(
    ("text", "key", "more"),
    [
        ('prompt = "r1_zero"', "prompt", []),
        ("rollout = 8", "rollout", []),
        ("rollout = 8", "rollout", ["--task-defaults"]),
    ],
)
def test_a_section_that_is_no_table_is_refused_by_its_key(tmp_path, text, key, more):
    (tmp_path / "mine.toml").write_text(f'task = "gsm8k"\n{text}\n')
    result = invoke("eval", "bundled", "--config", tmp_path / "mine.toml", *more)
    check_printed_error(result, key, "line 2", code="config.value")
