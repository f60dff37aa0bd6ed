"""What a person gets wrong: one message with the place and the remedy, exit code 2, no model read, nothing lost."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_resume import write_config
from typer.testing import CliRunner

import forked
import winnow
from winnow.cli import app
from winnow.errors import ConfigError, VerifierError
from winnow.state.logbook import read_metrics, read_rollouts
from winnow.state.run_folder import RunFolder


@pytest.fixture
def refused(smallest, tmp_path, monkeypatch) -> Callable[..., str]:
    """`winnow train` on the smallest configuration with some keys replaced: what it says before any weight is read."""

    def launch(*arguments: str, toml: str | None = None, task: dict | None = None, **changes: Any) -> str:
        monkeypatch.setattr("winnow.training.build.load", lambda *a, **k: pytest.fail("a model was loaded"))
        config = smallest(**changes)
        file = write_config(tmp_path / "run.toml", config | ({"task": task} if task else {}))
        if toml is not None:
            file.write_text(toml)
        result = CliRunner().invoke(app, ["train", str(file), *arguments])
        assert result.exit_code == 2, result.output
        assert len(result.stdout.splitlines()) <= 1  # that it loads; what is wrong is on standard error
        return result.stderr

    return launch


@pytest.fixture
def file(tmp_path) -> Callable[..., str]:
    """A file in tmp_path, by its path: file("a.jsonl", line, line ...); what is not text is written as JSON."""

    def write(name: str, *lines: Any) -> str:
        path = tmp_path / name
        path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
        return str(path)

    return write


def assert_says(message: str, *words: str) -> None:
    """All of it, and nothing but the message: no traceback, no warning, no progress bar."""
    for word in words:
        assert word in message
    assert "Traceback" not in message
    assert "Error" not in message, "the name of an exception means nothing to a person"


# Keys and values ------------------------------------------------------------------------------------------------------

KEYS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a misspelt key": (
        {"rollout": {"promts_per_step": 4}},
        ("run.toml, line ", "unknown key 'rollout.promts_per_step'; did you mean 'prompts_per_step'?"),
    ),
    "vLLM on a device that is none": (
        {"rollout": {"engine": {"use": "vllm", "process": "own", "device": "banana"}}},
        ("rollout.engine.device is 'banana': ",),
    ),
    "vLLM on no device at all": (
        {"rollout": {"engine": {"use": "vllm", "tensor_parallel": 0}}},
        ("rollout.engine.tensor_parallel is 0: ",),
    ),
    "vLLM inside, on another device": (
        {"rollout": {"engine": {"use": "vllm", "device": "cuda:1"}}},
        ("rollout.engine.device = 'cuda:1'", "set rollout.engine.process = 'own'"),
    ),
    "vLLM in float64": (
        {"rollout": {"engine": "vllm"}, "model": {"dtype": "float64"}},
        ("model.dtype = 'float64': vLLM samples in float32 or bfloat16",),
    ),
    "vLLM asleep on a CPU": (
        {"rollout": {"engine": {"use": "vllm", "sleep": True}}, "device": "cpu"},
        ("rollout.engine.sleep: vLLM cannot sleep on a CPU",),
    ),
    "an adapter that vLLM would round away": (
        {"rollout": {"engine": {"use": "vllm", "lora": "merged"}}, "model": {"dtype": "bfloat16", "lora": {"rank": 4}}},
        ("rollout.engine.lora = 'merged' under model.dtype = 'bfloat16'", "leave it out, and the adapter is applied"),
    ),
    "an adapter too large for vLLM's kernels": (
        {"rollout": {"engine": "vllm"}, "model": {"dtype": "bfloat16", "lora": {"rank": 512}}},
        ("model.lora.rank = 512: vLLM applies adapters up to rank 256; lower the rank",),
    ),
    "4 bits that would be trained": (
        {"model": {"quantization": "nf4"}},
        ("model.quantization = 'nf4' without model.lora", "set a model.lora, or remove it"),
    ),
    "4 bits in float64": (
        {"model": {"quantization": "nf4", "lora": {"rank": 4}, "dtype": "float64"}},
        ("model.quantization = 'nf4' computes in float32 at most", "set model.dtype = 'float32'"),
    ),
    "4 bits in another precision": (
        {
            "model": {"quantization": "nf4", "lora": {"rank": 4}},
            "rollout": {"engine": {"use": "native", "dtype": "bfloat16"}},
        },
        ("rollout.engine.dtype = 'bfloat16' under model.quantization = 'nf4'", "leave it out"),
    ),
    "8-bit moments of float64": (
        {"model": {"dtype": "float64"}, "optimizer": {"moments": "8bit"}},
        ("optimizer.moments = '8bit' computes in float32 at most",),
    ),
    "less than no memory": (
        {"rollout": {"engine": {"use": "native", "key_value_mb": -5}}},
        ("rollout.engine.key_value_mb is -5: ",),
    ),
    "an empty stop string": (
        {"rollout": {"stop": [""]}},
        ("'rollout.stop.0' is '': string should have at least 1 character",),
    ),
    "a misspelt option": (
        {"select": {"keep_per_promt": 2}},
        ("select.keep_per_promt: the selector 'max_variance' has no such option; did you mean 'keep_per_prompt'?",),
    ),
    "a wrong type": (
        {"steps": "ten"},
        ("run.toml, line 1: 'steps' is 'ten': input should be a valid integer",),
    ),
    "an option of a wrong type": (
        {"select": {"keep_per_prompt": "four"}},
        ("select.keep_per_prompt is 'four': ",),
    ),
    "more kept than sampled": (
        {"select": {"keep_per_prompt": 5}},
        ("select.keep_per_prompt = 5 is above rollout.rollouts_per_prompt = 4", "lower it to at most 4"),
    ),
    "a loss that presumes another advantage": (
        {"loss": "no_baseline", "advantage": "grpo"},
        ("loss = 'no_baseline' presumes advantage = 'raw', but advantage is 'grpo'; set advantage = 'raw'",),
    ),
    "a cut distribution": (
        {"rollout": {"top_p": 0.9}},
        ("rollout.top_p, top_k and min_p must stay off while training", "use them in evaluation"),
    ),
    "a probe under an allocator that has none": (
        {"probe": {"every": 4}},
        ("probe.every = 4 has no effect under allocate = 'uniform'", "remove it, or choose allocate = 'gvm'"),
    ),
    "a probe's size under an allocator that learns from visits": (
        {"allocate": "gvm_online", "weighting": "prompt", "probe": {"rollouts_per_prompt": 4}},
        ("probe.rollouts_per_prompt = 4 has no effect under allocate = 'gvm_online'", "does not probe"),
    ),
    "a memory of visits under an allocator that probes": (
        {"allocate": "gvm", "weighting": "prompt", "probe": {"decay": 0.5}},
        ("probe.decay = 0.5 has no effect under allocate = 'gvm'", "choose allocate = 'gvm_online'"),
    ),
    "a reset where nothing is probed": (
        {"allocate": "gvm_online", "weighting": "prompt", "probe": {"outer_reset": "optimizer"}},
        ("probe.outer_reset = 'optimizer' has no effect under allocate = 'gvm_online'",),
    ),
    "a reset of a reference that nothing is compared with": (
        {"allocate": "gvm", "weighting": "prompt", "probe": {"outer_reset": "both"}},
        ("probe.outer_reset = 'both' restarts the reference policy", "add a KL term, or use 'optimizer'"),
    ),
    "a correction that shrinks every gradient": (
        {"update": {"max_importance": 0.5}},
        ("update.max_importance: 0.5 would also shrink the gradient", "use 1 or more, for example 2, or 0"),
    ),
    "more prompts than there are": (
        {"rollout": {"prompts_per_step": 17}},
        ("rollout.prompts_per_step = 17, but the task has only 16 prompts", "lower it to at most 16"),
    ),
    "no problems": (
        {"task": {"use": "arithmetic", "size": 0}},
        ("task.size is 0: a task needs at least 1 problem",),
    ),
    "more than the context holds": (
        {"rollout": {"max_new_tokens": 1537}},
        ("prompt.max_prompt_tokens (512) + rollout.max_new_tokens (1537) = 2049", "holds 2048", "lower one of them"),
    ),
    "every prompt too long": (
        {"prompt": {"max_prompt_tokens": 2}},
        ("prompts are longer than prompt.max_prompt_tokens = 2; the shortest has ", "raise prompt.max_prompt_tokens"),
    ),
    "a stop string that could never be found": (
        {"rollout": {"stop": ["</answer><|endoftext|>"]}},
        ("rollout.stop: '</answer><|endoftext|>' holds the special token '<|endoftext|>'", "alone, which makes it a"),
    ),
    "no such model": (
        {"model": {"path": "./no/such/folder"}},
        ("model.path: there is no folder './no/such/folder'", "a model folder, or a hub id"),
    ),
}


@pytest.mark.parametrize(("changes", "words"), KEYS.values(), ids=KEYS)
def test_a_key_that_cannot_be(refused, changes, words):
    assert_says(refused(**changes), *words)


SETS = {
    "unknown": ("rollout.promts=4", ("--set rollout.promts=4", "unknown key 'rollout.promts'; known: ")),
    "a wrong type over a good line": ("steps=ten", ("--set steps=ten: 'steps' is 'ten': input should be",)),
    "no value": ("steps", ("--set 'steps': write it as key=value",)),
}


@pytest.mark.parametrize(("assignment", "words"), SETS.values(), ids=SETS)
def test_a_set_that_cannot_be(refused, assignment, words):
    message = refused("--set", assignment)
    assert_says(message, *words)
    assert "line" not in message, "the file is not where the mistake is"


def test_toml_that_is_not(refused):
    assert_says(refused(toml="steps = 3\nseed = \n"), "run.toml: not valid TOML: ", "line 2")


# Members --------------------------------------------------------------------------------------------------------------

MEMBERS = {
    "task": ("task", "split"),
    "reward": ("reward", "prompt, rollout"),
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


@pytest.mark.parametrize(("key", "family"), [(key, family) for key, (family, _) in MEMBERS.items()])
def test_a_name_that_nobody_has(refused, key, family):
    assert_says(refused(**named(key, "nobody")), key, f"no {family} is called 'nobody'; known: ")


@pytest.mark.parametrize(("key", "family", "arguments"), [(key, *more) for key, more in MEMBERS.items()])
def test_a_file_whose_function_takes_the_wrong_arguments(refused, file, key, family, arguments):
    use = file("wrong.py", WRONG) + ":wrong"
    message = refused(**named(key, use))
    assert_says(message, key, f"{use!r}: wrong(one, two, three) does not fit the family {family}: ")
    assert_says(message, f"it must take exactly ({arguments}) by position")


@pytest.mark.parametrize(("key", "arguments"), [(key, arguments) for key, (_, arguments) in MEMBERS.items()])
def test_an_object_that_takes_the_wrong_arguments(smallest, monkeypatch, key, arguments):
    monkeypatch.setattr("winnow.training.build.load", lambda *a, **k: pytest.fail("a model was loaded"))
    for wrong in (lambda one, two, three: 0.0, lambda *anything: 0.0, max):
        with pytest.raises(ConfigError) as error:
            winnow.train(**smallest(**named(key, wrong)), watch=lambda event: None)
        assert_says(str(error.value), key, "does not fit the family", f"exactly ({arguments}) by position")


def test_a_term_goes_through_the_same_checks(refused, file):
    message = refused("--set", 'terms = [{use = "nobody", coefficient = 0.1}]')
    assert_says(message, "terms: no term is called 'nobody'; known: ")
    use = file("wrong.py", WRONG) + ":wrong"
    message = refused("--set", f'terms = [{{use = "{use}", coefficient = 0.1}}]')
    assert_says(message, f"terms: {use!r}: wrong(one, two, three) does not fit", "exactly (out, mb) by position")


def test_a_file_that_is_not_there(refused):
    assert_says(refused(loss="no/such.py:fn"), "loss: 'no/such.py:fn': there is no file ")


# Problems -------------------------------------------------------------------------------------------------------------

GOOD = {"question": "1 + 1?", "answer": "2"}
LINES = {
    "corrupt": ((GOOD, '{"question": "2 + ', GOOD), ("train.jsonl:2: this line is not JSON", "mend or remove it")),
    "no gold": ((GOOD, GOOD, {"question": "2 + 2?"}), ("train.jsonl:3: the field 'answer' is missing",)),
    "an empty gold": (({"question": "2 + 2?", "answer": " "},), ("train.jsonl:1: the field 'answer' is empty",)),
    "nothing": ((), ("there are no train problems in ", "train.jsonl")),
}


@pytest.mark.parametrize(("lines", "words"), LINES.values(), ids=LINES)
def test_problems_that_cannot_be_used(refused, file, lines, words):
    files = {
        "train": file("train.jsonl", *lines),
        "validation": file("validation.jsonl", GOOD | {"question": "held out?"}),
    }
    assert_says(refused(task={"use": "jsonl", **files}), *words)


# Models ---------------------------------------------------------------------------------------------------------------


def test_a_tokenizer_that_cannot_end(refused, tiny_folder, tmp_path):
    folder = Path(shutil.copytree(tiny_folder("qwen2"), tmp_path / "model"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": None}))
    message = refused(model={"path": str(folder)})
    assert_says(message, str(folder), "has no eos token", 'set "eos_token" in ', "tokenizer_config.json")


def test_a_pad_token_that_is_none(refused):
    assert_says(refused(model={"pad_token": "<|nope|>"}), "model.pad_token = '<|nope|>' is no token of ", "name one")


# Run folders ----------------------------------------------------------------------------------------------------------


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_folder_of_another_run(refused, smallest, tmp_path):
    winnow.train(**smallest(steps=1), watch=lambda event: None)
    before = listing(tmp_path / "run")
    assert_says(
        refused(seed=1), f"{tmp_path / 'run'} already holds a run", "step-000001", "resume it", "the key output"
    )
    assert_says(
        refused("--resume", seed=1),
        "cannot resume",
        "seed was 0 and is now 1",
        "put back what it was",
        "allow-change seed",
    )
    assert listing(tmp_path / "run") == before


def go_on(message: str) -> None:
    """Run the command that a refusal ends with."""
    program, *arguments = shlex.split(message.splitlines()[-1].partition(": ")[2])
    assert program == "winnow"
    done = forked.winnow(*arguments)
    assert done.returncode == 0, done.stderr


def test_a_refusal_ends_with_the_command_that_goes_on(refused, smallest, tmp_path):
    winnow.train(**smallest(steps=1), watch=lambda event: None)
    go_on(refused("--set", "steps=2"))
    assert len(read_metrics(tmp_path / "run")) == 3
    go_on(refused("--resume", "--set", "steps=3", seed=1, rollout={"temperature": 0.9}))
    assert len(read_metrics(tmp_path / "run")) == 4
    go_on(refused("--resume", seed=1, steps=1, rollout={"temperature": 0.9}))
    assert "to go on" not in refused("--set", "loss=nonsense")


def test_a_folder_that_is_no_run(refused, file, tmp_path):
    (tmp_path / "run").mkdir()
    file("run/thesis.txt", "years of work")
    assert_says(refused(), f"{tmp_path / 'run'} is not empty and not a winnow run (thesis.txt)", "the key output")
    assert listing(tmp_path / "run") == {"thesis.txt": b"years of work\n"}


def test_a_second_launch_while_the_first_runs(smallest, tmp_path):
    config = write_config(tmp_path / "run.toml", smallest())
    with RunFolder.open(tmp_path / "run", resume=False):
        before = listing(tmp_path / "run")
        second = forked.winnow("train", config)
        assert (second.returncode, second.stdout) == (2, "")
        assert_says(second.stderr, f"{tmp_path / 'run'} is in use by process {os.getpid()} ", "wait for it to end")
        assert second.stderr.count("\n") == 1
        assert listing(tmp_path / "run") == before


def test_a_refused_launch_leaves_the_folder_to_the_next(refused, smallest, tmp_path, monkeypatch):
    """The folder is taken before the problems are read; a mistake in them must not use it up."""
    refused(task={"use": "arithmetic", "size": 0})
    monkeypatch.undo()
    result = winnow.train(**smallest(steps=1), watch=lambda event: None)
    assert result.steps == 1


# Rewards --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, -math.inf, 3e38, "1.0", [1.0]], ids=str)
def test_a_reward_that_is_no_number_stops_the_run_and_is_named(smallest, value):
    """Failed, not wrong: every other verdict, so that the rule of the share decides, and not that of the whole step."""

    def peculiar(prompt, rollout):
        return value if rollout.index % 2 else float(len(rollout.text) % 3)

    config = smallest(steps=9, reward=peculiar, evaluate={"greedy": False})
    with pytest.raises(VerifierError, match=r"the reward 'peculiar' failed on 24 of its last 48 verdicts") as error:
        winnow.train(**config, watch=lambda event: None)
    assert "24 malformed" in str(error.value)
    assert f"the reward 'peculiar' returned {value!r}: " in str(error.value)
    folder = Path(config["output"])
    assert [row["outcome/failed/malformed"] for row in read_metrics(folder)] == [8, 8], "finished steps are kept"
    outcomes = [o for entry in read_rollouts(folder) for o in entry.group.outcomes]
    assert {o.cause for o in outcomes[1::2]} == {"malformed"}


def test_an_engine_whose_package_is_missing_is_refused_before_a_model_is_read(refused, monkeypatch):
    monkeypatch.setattr("winnow.training.resolve.is_installed", lambda package: False)
    message = refused("--set", "rollout.engine=vllm")
    assert_says(message, "rollout.engine = 'vllm'", "not installed here", "winnow-rl[vllm]", "'native'")
