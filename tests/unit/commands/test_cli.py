from __future__ import annotations

import io
import json
import re
import subprocess
import sys

import pytest
import typer
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from golden_files import assert_golden
from published_models import make
from refusals import check_printed_error
from synthetic_run import write_run
from winnow.commands import app
from winnow.commands.check import dry_run
from winnow.commands.command_line import print_text
from winnow.errors import ConfigError, DataError, EngineError, VerifierError
from winnow.installed import is_installed
from winnow.recipes import recipe_paths
from winnow.view.drawing import new_figure

GSM8K = "".join(
    json.dumps({"question": f"Ann has {i} eggs and buys one. How many has she?", "answer": f"#### {i + 1}"}) + "\n"
    for i in range(40)
)
# Runs commands one after the other in one interpreter, and prints which of the named modules each has left imported.
IMPORTS = """
import gc, json, sys
gc.disable()  # to look through what is imported would take a second
from matplotlib.figure import Figure
from typer.testing import CliRunner
from winnow.commands import app
Figure.savefig = lambda *_, **__: None  # a picture is not painted, which imports no more than was
calls, names = json.loads(sys.argv[1])
for arguments in calls:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (arguments, result.output, result.exception)
    print(json.dumps([arguments, sorted(set(names) & set(sys.modules)), result.output]))
"""
# What computes with a model: to import it would double the time of `check`.
HEAVY = ["transformers.modeling_utils", "transformers.generation.utils", "peft", "torch._dynamo"]
FEW = ("--set", "task.size=64", "--set", "evaluate.problems=4", "--set", "verify.workers=0")
# no more problems than a test reads, and no process for their golds
FEW_ARITHMETIC = 'task = { use = "arithmetic", size = 64 }\nverify = { workers = 0 }\n'


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "toy")


def winnow(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def imports(run, tmp_path_factory):
    """Of calls of commands, in this order and in one new interpreter: arguments, imported modules, output."""
    folder = tmp_path_factory.mktemp("imports")
    curves = folder / "curves.csv"
    curves.write_text("steps,accuracy\n1,0.5\n")
    kinds = ("selectors", "advantages", "weightings", "rewards", "tasks", "allocators", "engines", "keys", "metrics")
    kinds += ("recipes",)
    calls = [
        ["--help"],
        *([command, "--help"] for command in ("train", "eval", "check", "list", "show", "plot", "export", "fetch")),
        ["report", "--help"],
        *(["list", kind] for kind in kinds),
        ["show", str(run)],
        ["replay", str(run), "--allocate", "gvm"],
        ["plot", str(run), "-o", str(folder / "plot.png")],
        ["export", str(run), "--history"],
        ["compare", str(curves), "-o", str(folder / "compared")],
        ["check", "arithmetic", *FEW, "--set", "advantage=gae", "--set", "critic.form=model"],
    ]
    code = [sys.executable, "-c", IMPORTS, json.dumps([calls, ["torch", *HEAVY]])]
    done = subprocess.run(code, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_reading_commands_start_without_torch(imports):
    *reading, _ = imports
    assert len(reading) == 25
    assert [(arguments, modules) for arguments, modules, _ in reading if modules] == []


def test_check_imports_nothing_that_computes_with_a_model(imports):
    arguments, modules, output = imports[-1]
    assert arguments[0] == "check"
    assert "weights" in output
    assert set(modules).isdisjoint(HEAVY)


@pytest.fixture
def no_picture(monkeypatch):
    """A picture is empty: what is written where does not depend on what is drawn."""
    monkeypatch.setattr("winnow.run_view.plot.draw", lambda *_, **__: new_figure(1, 1))


def test_a_command_reads_the_tokenizer_once(monkeypatch, tmp_path):
    read, reader = [], PreTrainedTokenizerFast.from_pretrained

    def counted(path, **options):
        read.append(path)
        return reader(path, **options)

    monkeypatch.setattr(PreTrainedTokenizerFast, "from_pretrained", counted)
    assert winnow("check", "arithmetic", *FEW).exit_code == 0
    assert len(read) == 1
    short = ("steps=1", "rollout.prompts_per_step=2", "rollout.max_new_tokens=2", "evaluate.greedy=false")
    few = (*FEW, *(f"--set={one}" for one in (*short, "evaluate.rollouts_per_prompt=2")))
    trained = winnow("train", "arithmetic", *few, "--output", tmp_path / "run")
    assert trained.exit_code == 0, trained.output
    assert len(read) == 2


def test_list_accepts_singular_and_plural_and_lists_its_kinds():
    assert winnow("list", "selector").output == winnow("list", "selectors").output
    assert "max_variance(keep_per_prompt = 4)" in winnow("list", "selectors").output
    assert winnow("list").output.split()[0] == "tasks"


def test_show(run):
    result = winnow("show", run, "--step", 3, "--worst", 1)
    assert result.exit_code == 0
    assert "\nstep 3  toy-hard" in result.output
    assert "\x1b" not in result.output


def test_worst_and_best_exclude_each_other(run):
    result = winnow("show", run, "--worst", 1, "--best", 1)
    assert result.exit_code == 2
    assert "--worst" in result.stderr
    assert "--best" in result.stderr


def test_the_help_of_a_command(monkeypatch):
    """Options, metavars and defaults in one width, without the colours of a terminal."""
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 100)
    monkeypatch.setattr("typer.rich_utils.FORCE_TERMINAL", False)
    shown = CliRunner().invoke(app, ["train", "--help"], env={"NO_COLOR": "1", "TERM": "dumb"})
    assert shown.exit_code == 0
    assert_golden("train_help", shown.output)


def test_every_parameter_of_a_command_has_a_description():
    commands = typer.main.get_command(app).commands
    parameters = [(name, parameter) for name, command in commands.items() for parameter in command.params]
    assert len(parameters) > 100
    assert [(name, parameter.name) for name, parameter in parameters if not parameter.help] == []


def test_plot_writes_into_the_run_folder_by_default(run, tmp_path):
    assert winnow("plot", run).exit_code == 0
    assert (run / "plot.png").exists()
    summary = winnow("plot", run, "--summary-only", "-o", tmp_path / "not.png")
    assert summary.output.split()[:4] == ["reward", "0.100", "->", "1.000"]
    assert not (tmp_path / "not.png").exists()


def test_plot_without_matplotlib_prints_the_summary_and_the_extra(tmp_path, monkeypatch):
    run = write_run(tmp_path / "toy")
    for name in {"matplotlib", *(name for name in sys.modules if name.startswith("matplotlib."))}:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("winnow.run_view.plot", "winnow.view.drawing"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    result = winnow("plot", run)
    assert result.stdout.split()[:4] == ["reward", "0.100", "->", "1.000"]
    check_printed_error(result, "matplotlib", "winnow-rl[plot]", "--summary-only", code="config.not_installed")
    assert not (run / "plot.png").exists()
    assert winnow("plot", run, "--summary-only").exit_code == 0


@pytest.mark.parametrize("target", ["mine.txt", "nothing.txt"])
def test_plot_writes_through_no_link(tmp_path, no_picture, target):
    run = write_run(tmp_path / "toy")
    (tmp_path / "mine.txt").write_text("mine")
    (run / "plot.png").symlink_to(tmp_path / target)
    result = winnow("plot", run)
    check_printed_error(result, run / "plot.png", code="data.unwritable")
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert not (tmp_path / "nothing.txt").exists()
    assert winnow("plot", run, "--output", tmp_path / "own.png").exit_code == 0


def test_a_plot_replaces_an_older_one_and_nothing_that_shares_its_bytes(tmp_path, no_picture):
    run = write_run(tmp_path / "toy")
    (run / "manifest.json").write_text('{"winnow_run": 1, "config": {}}')
    (tmp_path / "mine.txt").write_text("mine")
    (run / "plot.png").hardlink_to(tmp_path / "mine.txt")
    (run / ".plot.png.draft").symlink_to(tmp_path / "mine.txt")
    for _ in range(2):
        assert winnow("plot", run).exit_code == 0
    assert (run / "plot.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert not (run / ".plot.png.draft").is_symlink()


def test_plot_replaces_no_picture_of_another_program(tmp_path, no_picture):
    """Beside a log without the manifest of a run, as in the folder of another trainer."""
    write_run(tmp_path / "toy")
    (tmp_path / "mine").mkdir()
    log, picture = tmp_path / "mine" / "metrics.jsonl", tmp_path / "mine" / "plot.png"
    log.write_bytes((tmp_path / "toy" / "metrics.jsonl").read_bytes())
    picture.write_bytes(b"\x89PNG of mine")
    check_printed_error(winnow("plot", log), picture, code="data.exists")
    assert picture.read_bytes() == b"\x89PNG of mine"
    picture.unlink()
    for _ in range(2):  # the second one replaces the first
        assert winnow("plot", log).exit_code == 0


def test_export_to_a_file_and_to_standard_output(run, tmp_path):
    winnow("export", run, "--history", "-o", tmp_path / "training_history.json")
    entries = json.loads((tmp_path / "training_history.json").read_text())
    assert [entry["grpo_step"] for entry in entries] == list(range(1, 11))
    assert json.loads(winnow("export", run, "--history").output) == entries
    assert winnow("export", run).exit_code == 2


def test_check_prints_the_configuration_the_budget_and_advice(tmp_path):
    (tmp_path / "run.toml").write_text(FEW_ARITHMETIC)
    result = winnow("check", tmp_path / "run.toml", "--set", "update.updates_per_step=5", "--set", "loss.use=clip")
    assert result.exit_code == 0, result.output
    assert "update.updates_per_step = 5\n" in result.output
    assert "32 prompts x 16 = 512 per step" in result.output
    keys = result.output.partition("\n\n")[0].splitlines()
    assert [line for line in keys if line.startswith("rollout.top_p")] == []  # at its default
    (every,) = [int(line.split()[1]) for line in keys if line.startswith("# ")]
    whole = winnow("check", tmp_path / "run.toml", "--set", "update.updates_per_step=5", "--all").output
    whole_keys = whole.partition("\n\n")[0]
    assert (len(whole_keys.splitlines()), "rollout.top_p = 1.0" in whole_keys) == (len(keys) - 1 + every, True)
    few, advice = [line for line in result.output.splitlines() if line.startswith("! ")]
    assert "evaluate.problems = " in few
    assert "update.updates_per_step = 5" in advice


@pytest.mark.parametrize(
    ("toml", "named", "code"),
    [
        ("stepz = 3", ("line 1", "'stepz'", "'steps'"), "config.unknown_key"),
        ('loss = "klip"', ("'klip'", "'clip'"), "config.unknown_member"),
        ('[select]\nuse = "max_variance"\nkeep = 3', ("select.keep", "'max_variance'"), "config.unknown_key"),
    ],
)
@pytest.mark.parametrize("command", ["check", "train"])
def test_a_wrong_configuration_is_one_message_and_exit_code_2(tmp_path, command, toml, named, code):
    (tmp_path / "run.toml").write_text(toml)
    result = winnow(command, tmp_path / "run.toml")
    check_printed_error(result, *named, code=code)
    assert "Traceback" not in result.output
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("assignment", "named", "code"),
    [
        ("evaluate.split=nope", ("nope",), "config.value"),
        ("prompt.template=nope", ("prompt.template", "'nope'"), "config.value"),
        ("task.size=0", ("task.size",), "config.value"),
        ("model.path=./nope", ("model.path", "./nope"), "data.missing"),
        ("rollout.prompts_per_step=3000", ("rollout.prompts_per_step = 3000", 64), "config.combination"),
        ("prompt.max_prompt_tokens=100000", ("prompt.max_prompt_tokens", 100000), "config.combination"),
        ("reward=mine.py", ("reward", "'mine.py'", "mine.py:function"), "config.unknown_member"),
        ('reward.parts=[{use="boxed"}, {use="nope"}]', ("reward.parts.1", "'nope'"), "config.unknown_member"),
        ("select=mine.py", ("select", "'mine.py'", "mine.py:function"), "config.unknown_member"),
    ],
)
def test_check_refuses_what_train_would_before_it_reads_a_weight(tmp_path, assignment, named, code):
    (tmp_path / "run.toml").write_text(FEW_ARITHMETIC)
    result = winnow("check", tmp_path / "run.toml", "--set", assignment)
    check_printed_error(result, *named, code=code)
    assert result.stdout == ""


def notes_of(result):
    """The notes of a report, each on one line."""
    return [" ".join(note.split()) for note in re.findall(r"(?m)^note: .*(?:\n +.*)*", result.stdout)]


@pytest.mark.parametrize("library", [True, False])
def test_check_needs_no_network_but_the_library_that_reads_the_hub(tmp_path, monkeypatch, library):
    monkeypatch.setattr(dry_run, "is_installed", lambda package: library)
    (tmp_path / "run.toml").write_text('model = "owner/name"\n[task]\nuse = "gsm8k"\npath = "owner/data"\n')
    result = winnow("check", tmp_path / "run.toml")
    if library:
        assert result.exit_code == 0, result.output
    else:  # as `train` would
        check_printed_error(result, "owner/data", "winnow-rl[hub]", code="data.not_installed")
    data, model = notes_of(result)
    assert "task.path = 'owner/data'" in data
    assert "model.path = 'owner/name'" in model


@pytest.mark.parametrize(
    ("toml", "named", "code"),
    [
        ('model = "owner/name"\n[evaluate]\nsplit = "nope"', ("nope",), "config.value"),
        (
            'model = "./nope"\n[task]\nuse = "gsm8k"\npath = "owner/data"',
            ("model.path", "./nope"),
            "data.missing",
        ),
        ('[task]\nuse = "gsm8k"\npath = "./nope"', ("task.path", "nope"), "data.missing"),
        ('[task]\nuse = "jsonl"\npath = "owner/data"', ("task.path", "owner/data"), "data.missing"),
    ],
)
def test_check_checks_local_parts_though_others_are_on_the_hub(tmp_path, toml, named, code):
    (tmp_path / "run.toml").write_text(toml)
    check_printed_error(winnow("check", tmp_path / "run.toml"), *named, code=code)


def test_check_shows_the_first_prompt_and_where_its_rollouts_end(tmp_path):
    (tmp_path / "run.toml").write_text(FEW_ARITHMETIC + '[rollout]\nstop = ["</answer>", "<|user|>", "\\n\\n"]\n')
    shown = winnow("check", tmp_path / "run.toml").stdout
    prompt, stop = re.search(r"\| (<\|user\|>What is .*)\n(stop .*)\n", shown).groups()
    assert prompt.endswith("?<|endoftext|><|assistant|><think>")
    assert all(end in stop for end in ("<|endoftext|>", "<|user|>", "'</answer>'", r"'\n\n'"))


TAGS = ("'</think> <answer>'", "'</answer>'", "prompt.template = 'r1_zero'")
REQUESTED = {  # model, overrides, and what the advice names; None: no advice
    "the bundled policy was trained on the tags": ("bundled", (), None),
    "another was not": ("qwen2.5-instruct", (), TAGS),
    "nor was a Llama": ("llama-3.2-instruct", (), TAGS),
    "the template requests them": ("qwen2.5", ("prompt.template=r1_zero",), None),
    "the system message requests them": (
        "qwen2.5-instruct",
        ("prompt.system=Write <think> why </think> <answer> what </answer>",),
        None,
    ),
    "half of it is not enough": ("qwen2.5-instruct", ("prompt.system=Write <answer> what </answer>",), TAGS[:2]),
    "a box is not requested": ("qwen2.5-instruct", ("reward=boxed",), ("'boxed'", r"'\boxed'")),
    "nor from the bundled policy": ("bundled", ("reward=boxed",), ("'boxed'", r"'\boxed'")),
    "a box is requested": (
        "qwen2.5-instruct",
        ("reward=boxed", r"prompt.system=Put the answer within \boxed{}."),
        None,
    ),
    "one part of several": (
        "qwen2.5",
        ('reward={parts=[{use="gsm8k"}, {use="format"}]}', "prompt.template=question_only"),
        ("'format'", "'</think>'", "'<answer>'", "'</answer>'"),
    ),
    "a reward without a format": ("qwen2.5", ("reward=numeric", "prompt.template=question_only"), None),
    "a reward that declares none": ("qwen2.5", ("reward=mine.py:own", "prompt.template=question_only"), None),
}


@pytest.mark.parametrize(("model", "sets", "named"), REQUESTED.values(), ids=REQUESTED)
def test_check_warns_where_the_prompt_does_not_request_the_format(tmp_path, monkeypatch, model, sets, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    path = model if model == "bundled" else make(model, tmp_path / "model")
    (tmp_path / "mine.py").write_text("def own(prompt, rollout):\n    return 1.0\n")
    (tmp_path / "run.toml").write_text(FEW_ARITHMETIC)
    sets = (f"model.path={path}", "verify.workers=0", *sets)
    result = winnow("check", tmp_path / "run.toml", *(f"--set={text}" for text in sets))
    assert result.exit_code == 0, result.output
    about_format = [advice for advice in advice_of(result) if "reward = " in advice and "'" in advice]
    assert [all(name in advice for name in named or ()) for advice in about_format] == [True] * (named is not None)


def advice_of(result):
    """The advice of a report, each on one line."""
    return [" ".join(advice.split()) for advice in re.findall(r"(?m)^! .*(?:\n +.*)*", result.stdout)]


@pytest.mark.parametrize("recipe", recipe_paths())
def test_check_raises_no_false_alarm_for_a_recipe(tmp_path, monkeypatch, recipe):
    (tmp_path / "gsm8k_train.jsonl").write_text(GSM8K)
    (tmp_path / "gsm8k_test.jsonl").write_text(GSM8K)
    small = {"task.size": 64, "evaluate.problems": 8}
    if recipe == "gsm8k":
        small = {"model.path": make("qwen2.5", tmp_path), "task.path": tmp_path, "rollout.prompts_per_step": 2}
    if recipe.startswith("smollm2_"):
        monkeypatch.setenv("WINNOW_PUBLISHED", str(make("qwen2.5-instruct", tmp_path)))
    if recipe == "smollm2_instructions" and not is_installed("if_verifiable"):
        pytest.skip("needs the extra winnow-rl[instructions]")
    small["verify.workers"] = 0  # a process for a few golds costs more than all else
    result = winnow("check", recipe, *(f"--set={key}={value}" for key, value in small.items()))
    assert result.exit_code == 0, result.output
    assert not [advice for advice in advice_of(result) if "reward = " in advice]


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
    (tmp_path / "run.toml").write_text(FEW_ARITHMETIC + 'model = "owner/cached"\n')
    return make("qwen2.5", model / "snapshots" / ("1" * 40))


def test_check_reads_a_model_in_the_cache_of_the_hub(cached, tmp_path):
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
    result = winnow("check", tmp_path / "run.toml")
    assert "weights 498 KiB" in " ".join(result.stdout.split())
    (note,) = notes_of(result)
    assert "tokenizer" in note
    assert "model.path = 'owner/cached'" in note


def test_check_refuses_weights_that_train_would_refuse(cached, tmp_path):
    (cached / "model.safetensors").unlink()
    (cached / "model.safetensors.index.json").write_text('{"weight_map": {"a": "pytorch_model.bin"}}')
    result = winnow("check", tmp_path / "run.toml")
    check_printed_error(result, "pytorch_model.bin", code="data.unfit_model")
    assert result.stdout == ""


def test_check_with_a_memory_refuses_a_model_it_cannot_plan(tmp_path, cached):
    result = winnow("check", tmp_path / "run.toml", "--set", "model.path=owner/other", "--memory", "80GiB")
    check_printed_error(result, "--memory 80GiB", code="data.missing")
    assert "model.path = 'owner/other'" in notes_of(result)[0]


def test_a_path_below_an_existing_folder_is_not_a_hub_id(tmp_path, cached):
    (tmp_path / "models").mkdir()
    result = winnow("check", tmp_path / "run.toml", "--set", "model.path=models/qwen")
    check_printed_error(result, "model.path", "models/qwen", code="data.missing")
    assert result.stdout == ""
    result = winnow("check", tmp_path / "run.toml", "--set", 'task={use="gsm8k", path="models/gsm8k"}')
    check_printed_error(result, "task.path", "models/gsm8k", code="data.missing")
    assert result.stdout == ""


def test_a_user_s_file_is_read_from_the_configuration_s_folder(tmp_path):
    (tmp_path / "mine.py").write_text("def half(group, rng):\n    'Half of them.'\n    return group.rewards >= 0\n")
    (tmp_path / "run.toml").write_text(FEW_ARITHMETIC + 'select = "mine.py:half"\n')
    result = winnow("check", tmp_path / "run.toml")
    assert result.exit_code == 0, result.output
    assert "mine.py:half" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("plot", "."), "data.missing"),
        (("export", ".", "--history"), "data.missing"),
        (("check", "."), "config.unreadable"),
        (("show", "nowhere"), "data.missing"),
        (("show", "."), "data.missing"),
    ],
)
def test_an_unreadable_input_is_bad_input(tmp_path, monkeypatch, arguments, code):
    monkeypatch.chdir(tmp_path)
    check_printed_error(winnow(*arguments), code=code)


@pytest.mark.parametrize(
    "arguments",
    [("plot",), ("export", "--history"), ("report",), ("plan",)],
)
def test_a_run_that_finished_no_step_is_called_empty(tmp_path, arguments):
    (tmp_path / "manifest.json").write_text(json.dumps({"winnow_run": 1, "config": {}}))
    (tmp_path / "checkpoints").mkdir()
    check_printed_error(winnow(*arguments, tmp_path), tmp_path, code="data.empty")


def test_a_run_that_lost_its_log_is_not_called_empty(tmp_path):
    checkpoint = tmp_path / "checkpoints" / "step-000002"
    checkpoint.mkdir(parents=True)
    for folder in (tmp_path, checkpoint):
        (folder / "manifest.json").write_text(json.dumps({"winnow_run": 1, "config": {}}))
        check_printed_error(winnow("plot", folder), folder / "metrics.jsonl", code="data.unreadable")


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError, 2), (DataError, 2), (EngineError, 1), (VerifierError, 1), (KeyboardInterrupt, 130)],
)
def test_exit_codes(error, code):
    from winnow.commands.command_line import CommandGroup

    other = type(app)(cls=CommandGroup)

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
    check_printed_error(winnow("eval", "bundled", "--output", tmp_path), "mine.txt", code="data.exists")


@pytest.mark.parametrize("place", ["no/folder/x.json", "taken.json", "link.json"])
def test_export_score_and_plot_check_their_output_first(run, tmp_path, place):
    (tmp_path / "taken.json").write_text("mine")
    (tmp_path / "link.json").symlink_to(tmp_path / "nothing.json")
    (tmp_path / "rows.jsonl").write_text("no row that could be scored")
    score = ("score", tmp_path / "rows.jsonl", "--reward", "gsm8k")
    for arguments in (("export", run, "--history"), score, ("plot", run)):
        result = winnow(*arguments, "-o", tmp_path / place)
        named, code = ("no/folder", "data.unwritable") if "/" in place else (place, "data.exists")
        check_printed_error(result, tmp_path / named, code=code)
        assert result.stdout == ""
    assert (tmp_path / "taken.json").read_text() == "mine"
    assert not (tmp_path / "nothing.json").exists()


def test_eval_of_a_run_with_a_python_reward_needs_its_file(tmp_path):
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000002"
    checkpoint.mkdir(parents=True)
    manifest = {"winnow_run": 1, "config": {"reward": {"use": "short_and_right"}}}
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    check_printed_error(
        winnow("eval", checkpoint), "'short_and_right'", "file.py:function", code="config.unknown_member"
    )


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_characters_that_the_encoding_lacks_are_escaped(monkeypatch, name):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")  # as `winnow` has it
    monkeypatch.setattr(f"sys.{name}", stream)
    print_text("c\xe4lm", err=name == "stderr")
    assert stream.buffer.getvalue() == b"c\\xe4lm\n"


def test_fetch_never_overwrites(tmp_path):
    check_printed_error(winnow("fetch", "gsm8k", tmp_path), tmp_path, code="data.exists")
