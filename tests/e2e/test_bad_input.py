"""What a person gets wrong: one message with the place and the remedy, exit code 2, no model read, nothing lost."""

from __future__ import annotations

import itertools
import json
import math
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from test_resume import write_config
from typer.testing import CliRunner

import forked
import winnow
from logged_groups import read_rollouts
from refusals import check_refusal, refusal_of, refused
from winnow.commands import app
from winnow.errors import ConfigError, DataError, VerifierError, WinnowError
from winnow.state.folder import RunFolder
from winnow.state.logbook import read_metrics


@pytest.fixture
def launch(smallest, tmp_path, monkeypatch) -> Callable[..., Result]:
    """`winnow train` on the smallest configuration with some keys replaced, refused before any weight is read."""

    def launched(*arguments: str, toml: str | None = None, task: dict | None = None, **changes: Any) -> Result:
        monkeypatch.setattr("winnow.training.load.load", lambda *a, **k: pytest.fail("a model was loaded"))
        config = smallest(**changes)
        file = write_config(tmp_path / "run.toml", config | ({"task": task} if task else {}))
        if toml is not None:
            file.write_text(toml)
        result = CliRunner().invoke(app, ["train", str(file), *arguments])
        assert result.exit_code == 2, result.output
        assert len(result.stdout.splitlines()) <= 1  # that it loads; what is wrong is on standard error
        assert "Traceback" not in result.stderr
        return result

    return launched


@pytest.fixture
def refusal(launch) -> Callable[..., WinnowError]:
    """The error of such a launch."""
    return lambda *arguments, **changes: refusal_of(launch(*arguments, **changes))


@pytest.fixture
def file(tmp_path) -> Callable[..., str]:
    """A file in tmp_path, by its path: file("a.jsonl", line, line ...); what is not text is written as JSON."""

    def write(name: str, *lines: Any) -> str:
        path = tmp_path / name
        path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
        return str(path)

    return write


# Keys and values ------------------------------------------------------------------------------------------------------

# What is wrong, the code, the key, and what the message names beside the key.
KEYS: dict[str, tuple[dict[str, Any], str, str, tuple[object, ...]]] = {
    "a misspelt key": (
        {"rollout": {"promts_per_step": 4}},
        "config.unknown_key",
        "rollout.promts_per_step",
        ("run.toml, line", "prompts_per_step"),
    ),
    "vLLM on a device that is none": (
        {"rollout": {"engine": {"use": "vllm", "process": "own", "device": "banana"}}},
        "config.value",
        "rollout.engine.device",
        ("banana",),
    ),
    "vLLM on no device at all": (
        {"rollout": {"engine": {"use": "vllm", "tensor_parallel": 0}}},
        "config.value",
        "rollout.engine.tensor_parallel",
        (0,),
    ),
    "vLLM inside, on another device": (
        {"rollout": {"engine": {"use": "vllm", "device": "cuda:1"}}},
        "config.combination",
        "rollout.engine.device",
        ("cuda:1", "rollout.engine.process"),
    ),
    "vLLM in float64": (
        {"rollout": {"engine": "vllm"}, "model": {"dtype": "float64"}},
        "config.combination",
        "model.dtype",
        ("float64", "float32", "bfloat16"),
    ),
    "vLLM asleep on a CPU": (
        {"rollout": {"engine": {"use": "vllm", "sleep": True}}, "device": "cpu"},
        "config.combination",
        "rollout.engine.sleep",
        (),
    ),
    "an adapter that vLLM would round away": (
        {"rollout": {"engine": {"use": "vllm", "lora": "merged"}}, "model": {"dtype": "bfloat16", "lora": {"rank": 4}}},
        "config.combination",
        "rollout.engine.lora",
        ("merged", "model.dtype", "bfloat16"),
    ),
    "an adapter too large for vLLM's kernels": (
        {"rollout": {"engine": "vllm"}, "model": {"dtype": "bfloat16", "lora": {"rank": 512}}},
        "config.combination",
        "model.lora.rank",
        (512, 256),
    ),
    "4 bits that would be trained": (
        {"model": {"quantization": "nf4"}},
        "config.combination",
        "model.quantization",
        ("nf4", "model.lora"),
    ),
    "4 bits in float64": (
        {"model": {"quantization": "nf4", "lora": {"rank": 4}, "dtype": "float64"}},
        "config.combination",
        "model.quantization",
        ("nf4", "model.dtype", "float32"),
    ),
    "4 bits in another precision": (
        {
            "model": {"quantization": "nf4", "lora": {"rank": 4}},
            "rollout": {"engine": {"use": "native", "dtype": "bfloat16"}},
        },
        "config.combination",
        "rollout.engine.dtype",
        ("bfloat16", "model.quantization", "nf4"),
    ),
    "8-bit moments of float64": (
        {"model": {"dtype": "float64"}, "optimizer": {"moments": "8bit"}},
        "config.combination",
        "optimizer.moments",
        ("8bit", "model.dtype", "float64"),
    ),
    "less than no memory": (
        {"rollout": {"engine": {"use": "native", "key_value_mb": -5}}},
        "config.value",
        "rollout.engine.key_value_mb",
        ("-5",),
    ),
    "an empty stop string": ({"rollout": {"stop": [""]}}, "config.value", "rollout.stop.0", ("run.toml, line",)),
    "a misspelt option": (
        {"select": {"keep_per_promt": 2}},
        "config.unknown_key",
        "select.keep_per_promt",
        ("max_variance", "keep_per_prompt"),
    ),
    "a wrong type": ({"steps": "ten"}, "config.value", "steps", ("run.toml, line", "ten")),
    "an option of a wrong type": (
        {"select": {"keep_per_prompt": "four"}},
        "config.value",
        "select.keep_per_prompt",
        ("four",),
    ),
    "more kept than sampled": (
        {"select": {"keep_per_prompt": 5}},
        "config.combination",
        "select.keep_per_prompt",
        (5, "rollout.rollouts_per_prompt", 4),
    ),
    "a loss that presumes another advantage": (
        {"loss": "no_baseline", "advantage": "grpo"},
        "config.combination",
        "loss",
        ("no_baseline", "raw", "grpo"),
    ),
    "a cut distribution": (
        {"rollout": {"top_p": 0.9}},
        "config.combination",
        "rollout.top_p",
        ("run.toml, line", "evaluate.top_p"),
    ),
    "a probe under an allocator that has none": (
        {"probe": {"every": 4}},
        "config.no_effect",
        "probe.every",
        (4, "uniform", "gvm"),
    ),
    "a probe's size under an allocator that learns from visits": (
        {"allocate": "gvm_online", "weighting": "prompt", "probe": {"rollouts_per_prompt": 4}},
        "config.no_effect",
        "probe.rollouts_per_prompt",
        (4, "gvm_online"),
    ),
    "a memory of visits under an allocator that probes": (
        {"allocate": "gvm", "weighting": "prompt", "probe": {"decay": 0.5}},
        "config.no_effect",
        "probe.decay",
        (0.5, "gvm", "gvm_online"),
    ),
    "a reset where nothing is probed": (
        {"allocate": "gvm_online", "weighting": "prompt", "probe": {"outer_reset": "optimizer"}},
        "config.no_effect",
        "probe.outer_reset",
        ("optimizer", "gvm_online"),
    ),
    "a reset of a reference that nothing is compared with": (
        {"allocate": "gvm", "weighting": "prompt", "probe": {"outer_reset": "both"}},
        "config.combination",
        "probe.outer_reset",
        ("both", "optimizer"),
    ),
    "a correction that shrinks every gradient": (
        {"correction": {"use": "token_truncate", "most": 0.5}},
        "config.value",
        "correction.most",
        (0.5,),
    ),
    "more prompts than there are": (
        {"rollout": {"prompts_per_step": 17}},
        "config.combination",
        "rollout.prompts_per_step",
        (17, 16),
    ),
    "no problems": ({"task": {"use": "arithmetic", "size": 0}}, "config.value", "task.size", (0,)),
    "more than the context holds": (
        {"rollout": {"max_new_tokens": 1537}},
        "config.combination",
        "rollout.max_new_tokens",
        ("prompt.max_prompt_tokens", 512, 1537, 2049, 2048),
    ),
    "every prompt too long": ({"prompt": {"max_prompt_tokens": 2}}, "data.empty", "prompt.max_prompt_tokens", (2, 9)),
    "a stop string that could never be found": (
        {"rollout": {"stop": ["</answer><|endoftext|>"]}},
        "config.value",
        "rollout.stop",
        ("<|endoftext|>",),
    ),
    "no such model": ({"model": {"path": "./no/such/folder"}}, "data.missing", "model.path", ("./no/such/folder",)),
}


@pytest.mark.parametrize(("changes", "code", "key", "named"), KEYS.values(), ids=KEYS)
def test_a_key_that_cannot_be(refusal, changes, code, key, named):
    check_refusal(refusal(**changes), key, *named, key=key, code=code)


SETS = {
    "unknown": ("rollout.promts=4", "rollout.promts", "config.unknown_key", ("--set rollout.promts=4",)),
    "a wrong type over a good line": ("steps=ten", "steps", "config.value", ("--set steps=ten",)),
    "no value": ("steps", None, "config.unreadable", ("--set 'steps'",)),
}


@pytest.mark.parametrize(("assignment", "key", "code", "named"), SETS.values(), ids=SETS)
def test_a_set_that_cannot_be(refusal, assignment, key, code, named):
    error = refusal("--set", assignment)
    check_refusal(error, *named, key=key, code=code)
    assert "run.toml" not in str(error), "the file is not where the mistake is"


def test_toml_that_is_not(refusal):
    check_refusal(refusal(toml="steps = 3\nseed = \n"), "run.toml", "line 2", code="config.unreadable")


# Members --------------------------------------------------------------------------------------------------------------

MEMBERS = {
    "task": ("task", "split"),
    "reward": ("reward", "prompt, rollout"),
    "sample": ("sampler", "table, state, rng, count"),
    "allocate": ("allocator", "stats, budget"),
    "select": ("selector", "group, rng"),
    "advantage": ("advantage", "groups"),
    "weighting": ("weighting", "kept"),
    "loss": ("loss", "out, mb"),
    "rollout.engine": ("engine", "context"),
}
WRONG = "def wrong(one, two, three):\n    return 0.0\n"


def named(key: str, use: Any) -> dict[str, Any]:
    """The change that puts a member under a dotted key, without the options of the one before."""
    *table, last = key.split(".")
    return {table[0]: {last: use}} if table else {key: use}


def test_a_name_that_nobody_has(refusal):
    for key, (family, _) in MEMBERS.items():
        check_refusal(refusal(**named(key, "nobody")), family, "nobody", key=key, code="config.unknown_member")
    error = refusal("--set", 'terms = [{use = "nobody", coefficient = 0.1}]')
    check_refusal(error, "term", "nobody", key="terms", code="config.unknown_member")


def test_a_file_whose_function_takes_the_wrong_arguments(refusal, file):
    path = file("wrong.py", WRONG)
    use = path + ":wrong"
    for key, (family, arguments) in MEMBERS.items():
        error = refusal(**named(key, use))
        names = (path, "wrong(one, two, three)", f"family {family}", f"({arguments})")
        check_refusal(error, *names[:1], key=key, code="config.registration")
        assert [name for name in names if name not in str(error)] == []
    error = refusal("--set", f'terms = [{{use = "{use}", coefficient = 0.1}}]')
    check_refusal(error, path, key="terms", code="config.registration")
    assert "(out, mb)" in str(error)


@pytest.mark.parametrize(("key", "arguments"), [(key, arguments) for key, (_, arguments) in MEMBERS.items()])
def test_an_object_that_takes_the_wrong_arguments(smallest, monkeypatch, key, arguments):
    monkeypatch.setattr("winnow.training.load.load", lambda *a, **k: pytest.fail("a model was loaded"))
    for wrong in (lambda one, two, three: 0.0, lambda *anything: 0.0, max):
        with refused(ConfigError, key=key, code="config.registration") as error:
            winnow.train(**smallest(**named(key, wrong)), watch=lambda event: None)
        assert f"({arguments})" in str(error.value)


def test_a_file_that_is_not_there(refusal):
    check_refusal(refusal(loss="no/such.py:fn"), "no/such.py:fn", key="loss", code="config.user_code")


# Problems -------------------------------------------------------------------------------------------------------------

GOOD = {"question": "1 + 1?", "answer": "2"}
LINES = {
    "corrupt": ((GOOD, '{"question": "2 + ', GOOD), "data.malformed", ("train.jsonl:2",)),
    "no gold": ((GOOD, GOOD, {"question": "2 + 2?"}), "data.malformed", ("train.jsonl:3", "answer", "question")),
    "an empty gold": (({"question": "2 + 2?", "answer": " "},), "data.malformed", ("train.jsonl:1", "answer")),
    "nothing": ((), "data.empty", ("train.jsonl",)),
}


@pytest.mark.parametrize(("lines", "code", "named"), LINES.values(), ids=LINES)
def test_problems_that_cannot_be_used(refusal, file, lines, code, named):
    files = {
        "train": file("train.jsonl", *lines),
        "validation": file("validation.jsonl", GOOD | {"question": "held out?"}),
    }
    error = refusal(task={"use": "jsonl", **files})
    assert isinstance(error, DataError)
    check_refusal(error, *named, code=code)


# Models ---------------------------------------------------------------------------------------------------------------


def test_a_tokenizer_that_cannot_end(refusal, tiny_folder, tmp_path):
    folder = Path(shutil.copytree(tiny_folder("qwen2"), tmp_path / "model"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": None}))
    error = refusal(model={"path": str(folder)})
    check_refusal(error, folder, "eos_token", "tokenizer_config.json", code="data.unfit_model")


# Run folders ----------------------------------------------------------------------------------------------------------


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_folder_of_another_run(refusal, smallest, tmp_path):
    winnow.train(**smallest(steps=1), watch=lambda event: None)
    before = listing(tmp_path / "run")
    check_refusal(refusal(seed=1), tmp_path / "run", "step-000001", "output", code="run_folder.taken")
    changed = refusal("--resume", seed=1)
    check_refusal(changed, "seed", 0, 1, "allow-change seed", code="run_folder.changed")
    assert listing(tmp_path / "run") == before


def test_a_refusal_ends_with_the_command_that_goes_on(launch, smallest, tmp_path):
    def continuation(*arguments: str, **changes: Any) -> list[str]:
        """The arguments of the command that a refusal prints last."""
        last = launch(*arguments, **changes).stderr.splitlines()[-1]
        return shlex.split(last[last.index("winnow ") :])[1:]

    winnow.train(**smallest(steps=1), watch=lambda event: None)
    done = forked.winnow(*continuation("--set", "steps=2"))  # a process: here no model may be loaded
    assert done.returncode == 0, done.stderr
    assert len(read_metrics(tmp_path / "run")) == 3
    resumed = continuation("--resume", "--set", "steps=3", seed=1, rollout={"temperature": 0.9})
    allowed = {value for option, value in itertools.pairwise(resumed) if option == "--allow-change"}
    assert allowed == {"seed", "rollout.temperature"}
    fewer = continuation("--resume", "--set", "steps=1")
    assert [value for option, value in itertools.pairwise(fewer) if option == "--set"][-1] == "steps=2"
    assert "winnow train" not in launch("--set", "loss=nonsense").stderr


def test_a_folder_that_is_no_run(refusal, file, tmp_path):
    (tmp_path / "run").mkdir()
    file("run/thesis.txt", "years of work")
    check_refusal(refusal(), tmp_path / "run", "thesis.txt", "output", code="run_folder.foreign")
    assert listing(tmp_path / "run") == {"thesis.txt": b"years of work\n"}


def test_a_second_launch_while_the_first_runs(smallest, tmp_path):
    config = write_config(tmp_path / "run.toml", smallest())
    with RunFolder.open(tmp_path / "run", resume=False):
        before = listing(tmp_path / "run")
        second = forked.winnow("train", config)
        assert (second.returncode, second.stdout) == (2, "")
        assert str(tmp_path / "run") in second.stderr
        assert str(os.getpid()) in second.stderr
        assert second.stderr.count("\n") == 1
        assert listing(tmp_path / "run") == before


def test_a_refused_launch_leaves_the_folder_to_the_next(refusal, smallest, tmp_path, monkeypatch):
    """The folder is taken before the problems are read; a mistake in them must not use it up."""
    refusal(task={"use": "arithmetic", "size": 0})
    monkeypatch.undo()
    result = winnow.train(**smallest(steps=1), watch=lambda event: None)
    assert result.steps == 1


# Rewards --------------------------------------------------------------------------------------------------------------


# One run for a number and one for no number; tests/unit/rewards/test_outcomes.py has each of the others by default.
MORE_VALUES = [pytest.param(value, marks=pytest.mark.slow) for value in (-math.inf, 3e38, "1.0")]


@pytest.mark.parametrize("value", [math.nan, [1.0], *MORE_VALUES], ids=str)
def test_a_reward_that_is_no_number_stops_the_run_and_is_named(smallest, value):
    """Failed, not wrong: every other verdict, so that the rule of the share decides, and not that of the whole step."""

    def peculiar(prompt, rollout):
        return value if rollout.index % 2 else float(len(rollout.text) % 3)

    config = smallest(steps=9, reward=peculiar, evaluate={"greedy": False})
    with refused(VerifierError, "peculiar", 24, 48, "24 malformed", code="verifier.failed") as error:
        winnow.train(**config, watch=lambda event: None)
    assert repr(value) in str(error.value)
    folder = Path(config["output"])
    assert [row["outcome/failed/malformed"] for row in read_metrics(folder)] == [8, 8], "finished steps are kept"
    outcomes = [o for entry in read_rollouts(folder) for o in entry.group.outcomes]
    assert {o.cause for o in outcomes[1::2]} == {"malformed"}


def test_an_engine_without_its_package_is_refused_before_a_model_is_read(refusal, monkeypatch):
    monkeypatch.setattr("winnow.training.resolve.is_installed", lambda package: False)
    error = refusal("--set", "rollout.engine=vllm")
    check_refusal(error, "winnow-rl[vllm", "native", key="rollout.engine", code="config.not_installed")
