"""`winnow eval` from the command line: gold answers on the real sets, interruption, two models side by side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import winnow
from chat_templates import render_here
from refusals import check_refusal, refusal_of
from winnow.commands import app
from winnow.rewards.math_equivalence import algebra
from winnow.state.saved_runs import checkpoints

# Writes the gold in the form that the prompt asks for; ends with an error at a problem whose number `stop` holds.
SCRIPT = """
from pathlib import Path
asked = []
def gold(prompt, index):
    asked.append(prompt.id)
    stop = Path(__file__).with_name("stop")
    if stop.exists() and len(asked) > int(stop.read_text()):
        raise RuntimeError("the power is gone")
    answer = prompt.answer[0] if isinstance(prompt.answer, list) else prompt.answer
    if prompt.task == "gsm8k":
        return f"<think>\\nso\\n</think>\\n<answer>\\n{answer}\\n</answer>"
    return "so</think> \\\\boxed{" + str(answer) + "}"
def wrong(prompt, index):
    return "so</think> \\\\boxed{-77}" if index else gold(prompt, index)
"""
SIX = {"gsm8k": 1319, "math500": 500, "minerva_math": 272, "olympiad_bench": 675, "aime24": 30, "amc23": 40}
QUICK = ("--set=device=cpu", "--set=threads=1", "--set=verify.workers=1", "--set=prompt.max_prompt_tokens=100000")


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """Chat templates are rendered here: a fork of this process for each of many commands takes longer than they do."""
    render_here(monkeypatch)


@pytest.fixture
def golds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "golds.py").write_text(SCRIPT)
    return tmp_path


@pytest.fixture
def long_model(tmp_path, monkeypatch):
    """The bundled policy, said to have room for the longest of published questions, which its scripts never read."""
    from winnow.models.folder import settings_folder

    folder = tmp_path / "policy"
    folder.mkdir()
    for file in settings_folder("bundled").iterdir():
        if file.suffix in (".json", ".jinja", ".safetensors"):
            (folder / file.name).write_bytes(file.read_bytes())
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "max_position_embeddings": 200_000}))
    return folder


def evaluate(*arguments, script="gold", status=0):
    engine = f'--set=rollout.engine={{use="scripted", script="golds.py:{script}"}}'
    result = CliRunner().invoke(app, ["eval", *QUICK, engine, *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result


@pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")
@pytest.mark.parametrize(
    "most",
    [5, pytest.param(10_000, marks=pytest.mark.slow)],  # every gold answer: test_math_golds.py verifies them alone
)
def test_gold_answers_are_right_on_all_six_sets(most, golds, long_model, test_data):
    sets = ",".join(f"{name}={test_data}" for name in SIX)
    few = ("--samples", 1, "--no-greedy", "--problems", most)
    if most < 100:  # each set has a process of its own, which imports computer algebra
        few += ("--set=verify.workers=0",)
    result = evaluate(long_model, "--tasks", sets, *few, "--output", "found")
    found = json.loads((golds / "found" / "metrics.json").read_text())
    counts = {name: min(most, count) for name, count in SIX.items()}
    assert {name: one["problems"] for name, one in found["tasks"].items()} == counts
    wrong = [row for name in SIX for row in rows(golds / "found" / f"{name}.jsonl") if not row["correct"]]
    assert [(row["task"], row["prompt_id"], row["detail"]) for row in wrong] == [], "every exception has to be listed"
    assert {one["metrics"]["eval/formatted"] for one in found["tasks"].values()} == {1.0}
    assert found["averages"]["5 average"]["accuracy_sampled"]["mean"] == 1.0
    assert "3 average" in result.stdout


def rows(file: Path):
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def contents(folder: Path):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


@pytest.mark.skipif(not algebra.available(), reason="math-verify is not installed")
def test_an_interrupted_evaluation_goes_on_to_the_same_bytes(golds, long_model, test_data):
    """Parts are of 8 problems here. The second is interrupted, then a line of the third is half written."""
    asked = ("--tasks", f"aime24={test_data},amc23={test_data}", "--samples", 2, "--problems", 16)
    asked += ("--set=rollout.max_rollouts_at_once=4", "--set=verify.workers=0")
    evaluate(long_model, *asked, "--output", "straight")

    asked_before = (16 + 16) * 3  # two sampled and one greedy of each; a part takes 8 x 3
    (golds / "stop").write_text(str(asked_before + 30))
    evaluate(long_model, *asked, "--output", "halves", status=1)
    assert not (golds / "halves" / "metrics.json").exists()
    assert len(rows(golds / "halves" / "aime24.jsonl")) == 24
    missing = evaluate(long_model, *asked, "--output", "elsewhere", "--resume", status=2)
    check_refusal(refusal_of(missing), "elsewhere", code="data.missing")
    with (golds / "halves" / "aime24.jsonl").open("ab") as file:
        file.write(b'{"mode": "sampled", "prom')
    (golds / "stop").unlink()

    refused = evaluate(long_model, *asked, "--output", "halves", status=2)
    check_refusal(refusal_of(refused), "halves")
    other = evaluate(long_model, *asked, "--seed", 1, "--output", "halves", "--resume", status=2)
    check_refusal(refusal_of(other), "halves", "tasks.aime24.config.seed")
    done = evaluate(long_model, *asked, "--output", "halves", "--resume")
    assert re.search(r"aime24\W.*\b24\b", done.stderr)
    assert contents(golds / "halves") == contents(golds / "straight")

    evaluate(long_model, *asked, "--output", "halves", "--resume")  # nothing is left to ask
    assert contents(golds / "halves") == contents(golds / "straight")
    lines = (golds / "halves" / "amc23.jsonl").read_bytes().splitlines(keepends=True)
    (golds / "halves" / "amc23.jsonl").write_bytes(b"".join([*lines[1:], lines[0]]))
    mixed = evaluate(long_model, *asked, "--output", "halves", "--resume", status=2)
    check_refusal(refusal_of(mixed), "amc23.jsonl")


def folders(result):
    """The folders that are named after the results."""
    return re.findall(r"(?m)^(against|written) +(\S+)$", result.stdout)


def test_a_model_that_learned_is_compared_with_its_base(tmp_path, monkeypatch):
    """Both are asked what the run asks; the folder of an evaluation stands for the model that it is of."""
    monkeypatch.chdir(tmp_path)
    small = {"prompts_per_step": 4, "rollouts_per_prompt": 4, "max_new_tokens": 16}
    winnow.train(
        task={"use": "arithmetic", "size": 64}, rollout=small, select="all", steps=1, threads=1, device="cpu",
        evaluate={"problems": 4, "rollouts_per_prompt": 1, "greedy": False}, verify={"workers": 0}, output="run",
        progress=False,
    )  # fmt: skip
    (checkpoint,) = checkpoints(Path("run"))
    few = ["--problems", "6", "--samples", "2", "--greedy", "--set=verify.workers=0"]
    first = CliRunner().invoke(app, ["eval", str(checkpoint), *few, "--compare", "bundled", "--output", "both"])
    assert first.exit_code == 0, first.output
    assert re.search(r"\b6 problems", first.stdout)
    assert folders(first) == [("against", "both/against"), ("written", "both")]
    (sampled, greedy) = json.loads(Path("both/metrics.json").read_text())["comparisons"]
    assert (sampled["metric"], greedy["metric"], sampled["problems"]) == ("accuracy_sampled", "accuracy_greedy", 6)
    base = json.loads(Path("both/against/metrics.json").read_text())["tasks"]["arithmetic"]
    assert (base["model"], base["metrics"]["eval/accuracy_sampled"]) == ("bundled", sampled["other"])
    again = CliRunner().invoke(app, ["eval", str(checkpoint), *few, "--compare", "both/against", "--output", "again"])
    assert again.exit_code == 0, again.output
    assert json.loads(Path("again/metrics.json").read_text())["comparisons"] == [sampled, greedy]
    assert folders(again) == [("against", "both/against"), ("written", "again")]
    other = ["--problems", "5", "--samples", "2", "--seed", "9", "--set=verify.workers=0", "--compare", "both/against"]
    noted = CliRunner().invoke(app, ["eval", str(checkpoint), *other])
    assert folders(noted) == [("against", "both/against")]
    assert re.search(r"arithmetic\W.*both/against\W.*config\.seed\W.*config\.evaluate\.problems", noted.stderr)
    assert re.search(r"\b1 problem", noted.stderr)


def test_a_run_is_evaluated_on_further_tasks(tmp_path):
    """Their test problems, with the prompt and the reward of training; problems that are trained on are said."""

    def problems(name, *numbers):
        rows = ({"question": f"What is {i} + 1?", "answer": str(i + 1)} for i in numbers)
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(tmp_path / name)

    events = []
    own = {"train": problems("train.jsonl", 0, 7, 8, 9), "validation": problems("validation.jsonl", 4, 5)}
    further = {"use": "jsonl", "test": problems("test.jsonl", 0, 1, 2)}
    winnow.train(
        task={"use": "jsonl", **own}, threads=1, device="cpu", select="all", steps=1,
        rollout={"prompts_per_step": 2, "rollouts_per_prompt": 2, "max_new_tokens": 16},
        evaluate={"problems": 2, "rollouts_per_prompt": 1, "tasks": [further, {"use": "arithmetic", "size": 8}]},
        verify={"workers": 0},
        reward=lambda prompt, rollout: {"right": 0.0, "seconds": 1000.0},
        output=str(tmp_path / "run"), progress=False, watch=events.append,
    )  # fmt: skip
    found = [event.metrics for event in events if isinstance(event, winnow.Evaluated)]
    assert len(found) == 2
    for m in found:
        assert {"eval/accuracy_sampled", "eval/jsonl/accuracy_sampled", "eval/arithmetic/accuracy_greedy"} <= set(m)
        assert m["eval/part/seconds"] == 1000  # a part of the reward, no time
        assert 500 > m["eval/seconds"] > m["eval/jsonl/seconds"] + m["eval/arithmetic/seconds"]
    notices = [event.text for event in events if isinstance(event, winnow.Notice)]
    assert any(text.startswith("evaluate.tasks") and "1 of 2" in text and "jsonl" in text for text in notices)


def test_a_problem_that_is_no_json_is_refused_before_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dated.py").write_text(
        "from winnow import Problem\n"
        "def dated(split):\n"
        "    meta = {'days': {1, 2}}\n"
        "    return [Problem(id='p', question='1 + 1?', answer='2', task='dated', meta=meta)]\n"
    )
    result = CliRunner().invoke(app, ["eval", "bundled", "--task", "dated.py:dated", "--output", "found"])
    assert result.exit_code == 2
    check_refusal(refusal_of(result), "p", code="data.malformed")


def test_an_evaluation_resumes_after_its_run_went_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keys = {
        "task": {"use": "arithmetic", "size": 64},
        "rollout": {"prompts_per_step": 4, "rollouts_per_prompt": 4, "max_new_tokens": 16},
        "evaluate": {"problems": 4, "rollouts_per_prompt": 1},
        "verify": {"workers": 0},
        "select": "all",
        "threads": 1,
        "device": "cpu",
        "output": "run",
    }
    saved = str(winnow.train(**keys, steps=1, progress=False).model)
    asked = ["eval", saved, "--problems", "4", "--set=verify.workers=0", "--output", "found"]
    assert CliRunner().invoke(app, asked).exit_code == 0
    winnow.train(**keys, steps=2, resume=True, progress=False)
    again = CliRunner().invoke(app, [*asked, "--resume"])
    assert again.exit_code == 0, again.output
