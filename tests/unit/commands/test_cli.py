from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from published_models import make
from synthetic_run import write_run
from winnow.cli import app
from winnow.errors import ConfigError, DataError, EngineError, VerifierError

CONFIGS = Path(__file__).parents[3] / "configs"
GSM8K = "".join(
    json.dumps({"question": f"Ann has {i} eggs and buys one. How many has she?", "answer": f"#### {i + 1}"}) + "\n"
    for i in range(40)
)
TORCH_FREE = """
import sys
from typer.testing import CliRunner
from winnow.cli import app
for arguments in {calls!r}:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (arguments, result.output, result.exception)
    assert "torch" not in sys.modules, arguments
"""


CHECK_IS_LIGHT = """
import sys
from typer.testing import CliRunner
from winnow.cli import app
result = CliRunner().invoke(app, {call!r})
assert result.exit_code == 0, (result.output, result.exception)
assert "while sampling" in result.output, result.output
heavy = {{"transformers.modeling_utils", "transformers.generation.utils", "peft", "torch._dynamo"}}
assert heavy.isdisjoint(sys.modules), heavy.intersection(sys.modules)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "toy")


def winnow(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_reading_commands_start_without_torch(run, tmp_path):
    curves = tmp_path / "curves.csv"
    curves.write_text("steps,accuracy\n1,0.5\n")
    kinds = ("selectors", "advantages", "weightings", "rewards", "tasks", "allocators", "engines", "keys", "metrics")
    calls = [
        ["--help"],
        *([command, "--help"] for command in ("train", "eval", "check", "list", "show", "plot", "export", "fetch")),
        ["report", "--help"],
        *(["list", kind] for kind in kinds),
        ["show", str(run)],
        ["plot", str(run), "-o", str(tmp_path / "plot.png")],
        ["export", str(run), "--history"],
        ["compare", str(curves), "-o", str(tmp_path / "compared")],
    ]
    done = subprocess.run([sys.executable, "-c", TORCH_FREE.format(calls=calls)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_check_imports_nothing_that_computes_with_a_model():
    """Its import would take as long as all else that `check` does."""
    values = ["--set", "advantage=gae", "--set", "critic.form=model"]
    code = CHECK_IS_LIGHT.format(call=["check", str(CONFIGS / "arithmetic.toml"), *values])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_command_reads_the_tokenizer_once(monkeypatch, tmp_path):
    read, reader = [], PreTrainedTokenizerFast.from_pretrained

    def counted(path, **options):
        read.append(path)
        return reader(path, **options)

    monkeypatch.setattr(PreTrainedTokenizerFast, "from_pretrained", counted)
    few = ("--set", "task.size=64", "--set", "evaluate.problems=4", "--set", "verify.workers=0")
    assert winnow("check", CONFIGS / "arithmetic.toml", *few).exit_code == 0
    assert len(read) == 1
    few += (
        "--set",
        "rollout.prompts_per_step=2",
        "--set",
        "rollout.max_new_tokens=2",
        "--set",
        "evaluate.greedy=false",
    )
    trained = winnow("train", CONFIGS / "arithmetic.toml", *few, "--set", "steps=1", "--output", tmp_path / "run")
    assert trained.exit_code == 0, trained.output
    assert len(read) == 2


def test_list_knows_singular_and_plural_and_its_own_kinds():
    assert winnow("list", "selector").output == winnow("list", "selectors").output
    assert "max_variance(keep_per_prompt = 4)" in winnow("list", "selectors").output
    assert winnow("list").output.split()[0] == "tasks"


def test_show(run):
    result = winnow("show", run, "--step", 3, "--worst", 1)
    assert result.exit_code == 0
    assert result.output.startswith("step 3  toy-hard")
    assert "\x1b" not in result.output


def test_worst_and_best_exclude_each_other(run):
    result = winnow("show", run, "--worst", 1, "--best", 1)
    assert result.exit_code == 2
    assert "choose one of" in result.output


def test_plot_writes_into_the_run_folder_unless_told_otherwise(run, tmp_path):
    assert winnow("plot", run).exit_code == 0
    assert (run / "plot.png").exists()
    summary = winnow("plot", run, "--summary-only", "-o", tmp_path / "not.png")
    assert summary.output.startswith("reward    0.100 -> 1.000")
    assert not (tmp_path / "not.png").exists()


def test_plot_without_matplotlib_sums_up_and_names_the_extra(tmp_path, monkeypatch):
    run = write_run(tmp_path / "toy")
    for name in {"matplotlib", *(name for name in sys.modules if name.startswith("matplotlib."))}:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("winnow.report.plot", "winnow.report.drawing"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    result = winnow("plot", run)
    assert result.exit_code == 2
    assert result.stdout.startswith("reward    0.100 -> 1.000")
    assert "drawing needs matplotlib (" in result.stderr
    assert "): pip install 'winnow-rl[plot]'; or, on the command line, --summary-only" in result.stderr
    assert not (run / "plot.png").exists()
    assert winnow("plot", run, "--summary-only").exit_code == 0


@pytest.mark.parametrize("target", ["mine.txt", "nothing.txt"])
def test_plot_writes_through_no_link(tmp_path, target):
    run = write_run(tmp_path / "toy")
    (tmp_path / "mine.txt").write_text("mine")
    (run / "plot.png").symlink_to(tmp_path / target)
    result = winnow("plot", run)
    assert result.exit_code == 2
    assert f"{run / 'plot.png'}: plot.png is a symbolic link, where a file belongs; choose another" in result.stderr
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert not (tmp_path / "nothing.txt").exists()
    assert winnow("plot", run, "--output", tmp_path / "own.png").exit_code == 0


def test_a_plot_replaces_an_older_one_and_nothing_that_shares_its_bytes(tmp_path):
    run = write_run(tmp_path / "toy")
    (tmp_path / "mine.txt").write_text("mine")
    (run / "plot.png").hardlink_to(tmp_path / "mine.txt")
    (run / ".plot.png.draft").symlink_to(tmp_path / "mine.txt")
    for _ in range(2):
        assert winnow("plot", run).exit_code == 0
    assert (run / "plot.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert not (run / ".plot.png.draft").is_symlink()


def test_export_to_a_file_and_to_standard_output(run, tmp_path):
    winnow("export", run, "--history", "-o", tmp_path / "training_history.json")
    entries = json.loads((tmp_path / "training_history.json").read_text())
    assert [entry["grpo_step"] for entry in entries] == list(range(1, 11))
    assert json.loads(winnow("export", run, "--history").output) == entries
    assert winnow("export", run).exit_code == 2


def test_check_prints_the_configuration_the_budget_and_advice(tmp_path):
    (tmp_path / "run.toml").write_text('task = "arithmetic"\n')
    result = winnow("check", tmp_path / "run.toml", "--set", "update.updates_per_step=5", "--set", "loss.use=clip")
    assert result.exit_code == 0, result.output
    assert "update.updates_per_step = 5\n" in result.output
    assert "rollouts     32 prompts x 16 = 512 per step" in result.output
    assert "! update.updates_per_step = 5 deals 32 prompts unevenly" in result.output


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("stepz = 3", "line 1: unknown key 'stepz'; did you mean 'steps'?"),
        ('loss = "klip"', "no loss is called 'klip'; did you mean 'clip'?"),
        ('[select]\nuse = "max_variance"\nkeep = 3', "select.keep: the selector 'max_variance' has no such option"),
    ],
)
@pytest.mark.parametrize("command", ["check", "train"])
def test_a_wrong_configuration_is_one_message_and_exit_code_2(tmp_path, command, toml, message):
    (tmp_path / "run.toml").write_text(toml)
    result = winnow(command, tmp_path / "run.toml")
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("evaluate.split=nope", "nope"),
        ("prompt.template=nope", "'nope' is no template"),
        ("task.size=0", "task.size"),
        ("model.path=./nope", "there is no folder './nope'"),
        ("rollout.prompts_per_step=3000", "rollout.prompts_per_step = 3000, but the task has only"),
        ("prompt.max_prompt_tokens=100000", "the model's context holds"),
        ("reward=mine.py", "reward: no reward is called 'mine.py'; a function of a file is named 'mine.py:function'"),
        ('reward.parts=[{use="boxed"}, {use="nope"}]', "reward.parts.1: no reward is called 'nope'"),
        ("select=mine.py", "select: no selector is called 'mine.py'; a function of a file is named 'mine.py:function'"),
    ],
)
def test_check_refuses_what_train_would_before_it_reads_a_weight(tmp_path, assignment, message):
    (tmp_path / "run.toml").write_text('task = "arithmetic"')
    result = winnow("check", tmp_path / "run.toml", "--set", assignment)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_check_needs_no_network(tmp_path):
    (tmp_path / "run.toml").write_text('model = "owner/name"\n[task]\nuse = "gsm8k"\npath = "owner/data"\n')
    result = winnow("check", tmp_path / "run.toml")
    assert result.exit_code == 0, result.output
    assert "note: task.path = 'owner/data' is not on this machine" in result.stdout
    assert "note: model.path = 'owner/name' is not on this machine" in result.stdout


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('model = "owner/name"\n[evaluate]\nsplit = "nope"', "nope"),
        ('model = "./nope"\n[task]\nuse = "gsm8k"\npath = "owner/data"', "there is no folder './nope'"),
        ('[task]\nuse = "gsm8k"\npath = "./nope"', "task.path: there is no file or folder ./nope"),
    ],
)
def test_check_looks_at_what_is_here_where_something_is_on_the_hub(tmp_path, toml, message):
    (tmp_path / "run.toml").write_text(toml)
    result = winnow("check", tmp_path / "run.toml")
    assert result.exit_code == 2
    assert message in result.stderr


def test_check_shows_the_first_prompt_and_where_its_rollouts_end(tmp_path):
    (tmp_path / "run.toml").write_text('task = "arithmetic"\n[rollout]\nstop = ["</answer>", "<|user|>", "\\n\\n"]\n')
    shown = winnow("check", tmp_path / "run.toml").stdout
    assert "             | <|user|>What is " in shown
    assert "?<|endoftext|><|assistant|><think>\nstop         at <|endoftext|> or <|user|>, or as soon as the" in shown
    assert r"as the text ends in '</answer>' or '\n\n'" in shown


ASKED = {
    "the bundled policy was taught the tags": ("bundled", (), None),
    "another was not": ("qwen2.5-instruct", (), "reads an answer by '</think> <answer>' and '</answer>', and the"),
    "nor does a Llama know them": ("llama-3.2-instruct", (), "set prompt.template = 'r1_zero', or choose another"),
    "the template asks": ("qwen2.5", ("prompt.template=r1_zero",), None),
    "the system message asks": (
        "qwen2.5-instruct",
        ("prompt.system=Write <think> why </think> <answer> what </answer>",),
        None,
    ),
    "half of it is not enough": (
        "qwen2.5-instruct",
        ("prompt.system=Write <answer> what </answer>",),
        "the prompt",
    ),
    "a box for nobody": ("qwen2.5-instruct", ("reward=boxed",), r"'boxed' reads an answer by '\boxed', and the prompt"),
    "also of the bundled policy": (
        "bundled",
        ("reward=boxed",),
        r"'boxed' reads an answer by '\boxed', and the prompt",
    ),
    "a box that is asked for": (
        "qwen2.5-instruct",
        ("reward=boxed", r"prompt.system=Put the answer within \boxed{}."),
        None,
    ),
    "one part of several": (
        "qwen2.5",
        ('reward={parts=[{use="gsm8k"}, {use="format"}]}', "prompt.template=question_only"),
        "reward = 'format' reads an answer by '</think>' and '<answer>' and '</answer>'",
    ),
    "no form at all": ("qwen2.5", ("reward=numeric", "prompt.template=question_only"), None),
    "the user's own says nothing": ("qwen2.5", ("reward=mine.py:own", "prompt.template=question_only"), None),
}


@pytest.mark.parametrize(("model", "sets", "warning"), ASKED.values(), ids=ASKED)
def test_check_warns_where_a_reward_s_form_is_asked_for_nowhere(tmp_path, monkeypatch, model, sets, warning):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    path = model if model == "bundled" else make(model, tmp_path / "model")
    (tmp_path / "mine.py").write_text("def own(prompt, rollout):\n    return 1.0\n")
    (tmp_path / "run.toml").write_text('task = { use = "arithmetic", size = 64 }\n')
    result = winnow("check", tmp_path / "run.toml", "--set", f"model.path={path}", *(f"--set={text}" for text in sets))
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.partition("\n! ")[2].split())
    assert (warning in said) if warning else ("reads an answer by" not in said)


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_check_raises_no_false_alarm_for_a_documented_configuration(tmp_path, config):
    (tmp_path / "gsm8k_train.jsonl").write_text(GSM8K)
    (tmp_path / "gsm8k_test.jsonl").write_text(GSM8K)
    small = {"task.size": 64, "evaluate.problems": 8}
    if config.stem == "gsm8k":
        small = {"model.path": make("qwen2.5", tmp_path), "task.path": tmp_path, "rollout.prompts_per_step": 2}
    result = winnow("check", config, *(f"--set={key}={value}" for key, value in small.items()))
    assert result.exit_code == 0, result.output
    assert "reads an answer by" not in " ".join(result.stdout.split())


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A hub's cache with a model in it, and a configuration that names it."""
    import huggingface_hub.constants as hub

    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "hub" / "models--owner--cached"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("1" * 40)
    (model / "snapshots" / ("1" * 40)).mkdir(parents=True)
    (tmp_path / "run.toml").write_text('task = "arithmetic"\nmodel = "owner/cached"\n')
    return make("qwen2.5", model / "snapshots" / ("1" * 40))


def test_check_reads_what_the_hub_s_cache_has_of_a_model(cached, tmp_path):
    (cached / "model.safetensors").unlink()
    result = winnow("check", tmp_path / "run.toml")
    assert result.exit_code == 0, result.output
    assert 'model.path = "owner/cached"' in result.stdout
    assert "<|im_start|>user\n             | What is" in result.stdout
    assert "weights 498 KiB" in result.stdout
    assert "note:" not in result.stdout


def test_check_plans_with_the_settings_alone(cached, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json"):
        (cached / name).unlink()
    shown = " ".join(winnow("check", tmp_path / "run.toml").stdout.split())
    assert "weights 498 KiB" in shown
    assert "note: the tokenizer of model.path = 'owner/cached' is not on this machine" in shown


def test_check_refuses_weights_that_train_would(cached, tmp_path):
    (cached / "model.safetensors").unlink()
    (cached / "model.safetensors.index.json").write_text('{"weight_map": {"a": "pytorch_model.bin"}}')
    result = winnow("check", tmp_path / "run.toml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "index.json names 'pytorch_model.bin': weights are read from *.safetensors files" in result.stderr


def test_check_cannot_compare_with_what_it_cannot_plan(tmp_path, cached):
    result = winnow("check", tmp_path / "run.toml", "--set", "model.path=owner/other", "--memory", "80GiB")
    assert result.exit_code == 2
    assert "note: model.path = 'owner/other' is not on this machine" in result.stdout
    assert "--memory 80GiB: there is no plan to compare it with" in result.stderr


def test_check_takes_no_path_below_a_folder_that_is_here_for_a_hub_id(tmp_path, cached):
    (tmp_path / "models").mkdir()
    result = winnow("check", tmp_path / "run.toml", "--set", "model.path=models/qwen")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "there is no folder 'models/qwen' (models is here, and has no qwen)" in result.stderr
    result = winnow("check", tmp_path / "run.toml", "--set", 'task={use="gsm8k", path="models/gsm8k"}')
    assert (result.exit_code, result.stdout) == (2, "")
    assert "task.path: there is no file or folder models/gsm8k, and it is no hub id" in result.stderr


def test_a_file_of_the_users_own_is_found_beside_the_configuration(tmp_path):
    (tmp_path / "mine.py").write_text("def half(group, rng):\n    'Half of them.'\n    return group.rewards >= 0\n")
    (tmp_path / "run.toml").write_text('select = "mine.py:half"\n')
    result = winnow("check", tmp_path / "run.toml")
    assert result.exit_code == 0, result.output
    assert "mine.py:half" in result.stdout


def test_what_cannot_be_read_is_bad_input(tmp_path):
    for arguments in (("plot", tmp_path), ("export", tmp_path, "--history"), ("check", tmp_path), ("show", "nowhere")):
        result = winnow(*arguments)
        assert (result.exit_code, "cannot read" in result.stderr) == (2, True), arguments
    result = winnow("show", tmp_path)
    assert (result.exit_code, "holds no rollouts" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError, 2), (DataError, 2), (EngineError, 1), (VerifierError, 1), (KeyboardInterrupt, 130)],
)
def test_exit_codes(error, code):
    from winnow.cli import Door

    other = type(app)(cls=Door)

    @other.callback()
    def nothing() -> None: ...

    @other.command()
    def go() -> None:
        raise error("what \x1b[31m happened")

    result = CliRunner().invoke(other, ["go"])
    assert result.exit_code == code
    assert "\x1b" not in result.output
    assert (r"what \x1b[31m happened" in result.stderr) == (code != 130)


def test_eval_refuses_an_output_that_exists_before_it_starts(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    result = winnow("eval", "bundled", "--output", tmp_path)
    assert result.exit_code == 2
    assert "already holds mine.txt; choose another folder" in result.stderr


@pytest.mark.parametrize("place", ["no/folder/x.json", "taken.json", "link.json"])
def test_export_and_score_ask_for_their_output_first(run, tmp_path, place):
    (tmp_path / "taken.json").write_text("mine")
    (tmp_path / "link.json").symlink_to(tmp_path / "nothing.json")
    (tmp_path / "rows.jsonl").write_text("no row that could be scored")
    for arguments in (("export", run, "--history"), ("score", tmp_path / "rows.jsonl", "--reward", "gsm8k")):
        result = winnow(*arguments, "-o", tmp_path / place)
        assert result.exit_code == 2
        assert ("there is no folder" if "/" in place else "already exists") in result.stderr
    assert (tmp_path / "taken.json").read_text() == "mine"
    assert not (tmp_path / "nothing.json").exists()


def test_eval_says_what_to_do_about_a_reward_that_was_a_function(tmp_path):
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000002"
    checkpoint.mkdir(parents=True)
    manifest = {"winnow_run": 1, "config": {"reward": {"use": "short_and_right"}}}
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    result = winnow("eval", checkpoint)
    assert result.exit_code == 2
    assert 'name it anew, reward = "file.py:function"' in result.stderr


def test_fetch_never_overwrites(tmp_path):
    result = winnow("fetch", "gsm8k", tmp_path)
    assert result.exit_code == 2
    assert "already exists" in result.stderr
