"""No command lets a terminal act on what a model, a file or a user wrote: every text that it prints is fed with escape
sequences, and nothing below a space but line breaks comes out, no C1 control, and nothing that hides or reorders text.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import unicodedata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from synthetic_run import FAILED, batch, evaluation, group, metrics
from winnow import commands
from winnow.commands import app
from winnow.records import Outcome
from winnow.state.logbook import Logbook

# Colors, the clipboard (OSC 52), a link (OSC 8), the screen cleared by C1, a line and a character overwritten, text
# turned around and hidden, separators; a lone surrogate, which no file name and no TOML holds.
IN_FILES = "\x1b[31m\x1b]52;c;QQ==\x07\x1b]8;;http://x\x1b\\\x9b2J\x90\r\b\x7f\u202e\u2066\u200b\u2028\ufeff"
HOSTILE = f"{IN_FILES}\x00\ud800"
NAME = IN_FILES.replace("/", "")  # of a file
ESCAPED = r"\x1b[31m\x1b]52;c;QQ==\x07"
SPLITS = ("train", "validation", "test")
UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def unsafe(text):
    """What of it a terminal would act on."""
    return {c for c in text if c != "\n" and unicodedata.category(c) in UNSAFE}


def said(*arguments):
    """What a command prints, on both streams; a bug's traceback as `winnow` itself prints it."""
    result = CliRunner().invoke(app, [str(word) for word in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), (result.output, result.exc_info)
    assert unsafe(result.output) == set(), ascii(result.output)
    return result.output


def toml(text):
    """A basic string of TOML, in which every control stands as an escape."""
    return json.dumps(text)[1:-1].replace("\x7f", "\\u007f")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose every text is hostile, its name included."""
    folder = tmp_path_factory.mktemp("runs") / f"run {NAME}"
    folder.mkdir()
    outcomes = (
        Outcome(reward=1.0, correct=True, kind="correct", answer=HOSTILE, parts={HOSTILE: 1.0}, detail=HOSTILE),
        Outcome(reward=0.0, correct=False, kind="wrong", detail=HOSTILE),
        FAILED,
        Outcome(reward=0.0, correct=False, kind="unparsable", detail=HOSTILE),
    )
    asked = group(f"id {HOSTILE}", outcomes, texts=[HOSTILE] * 4, question=HOSTILE)
    log = Logbook(folder, seed=3)
    log.write_between(0, evaluation(0.05, 0.04))
    for step in range(2):
        log.write(step, metrics(step), [asked], [batch([asked])])
    log.write_between(2, evaluation(0.5, 0.5))
    written = {"config": {"model": {"path": HOSTILE}, "loss": {"use": HOSTILE}, "advantage": {"use": HOSTILE}}}
    (folder / "manifest.json").write_text(json.dumps({"winnow_run": 1, "base": HOSTILE, **written}))
    return folder


@pytest.mark.parametrize("how", [[], ["--full"], ["--failed"], ["--dropped"], ["--worst", "1"], ["--prompt", "id"]])
def test_show(run, how):
    assert ESCAPED in said("show", run, *how)


def test_show_of_tokens(run, tmp_path):
    """The pieces of a tokenizer that spells every token as an escape sequence."""
    from winnow.testing import tiny

    tiny("qwen2").tokenizer.save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "tokenizer.json"
    spelled = json.loads(file.read_text())
    known = sorted(spelled["model"]["vocab"], key=spelled["model"]["vocab"].get)
    for place, piece in enumerate(known[:3]):
        spelled["model"]["vocab"][f"{HOSTILE[:-1]}{place}"] = spelled["model"]["vocab"].pop(piece)
    spelled["model"]["merges"] = []
    file.write_text(json.dumps(spelled))
    config = {"model": {"path": str(tmp_path / "model")}}
    (run / "manifest.json").write_text(json.dumps({"winnow_run": 1, "base": HOSTILE, "config": config}))
    assert ESCAPED in said("show", run, "--tokens", "--full")
    assert said("show", run, "--tokens").count(r"\ufeff\x002") == 4  # of each rollout the third token


def test_plot_export_and_what_names_no_run(run, tmp_path):
    assert "\\x1b" in said("plot", run, "--output", tmp_path / f"a{NAME}.png")
    said("plot", run, "--summary-only")
    said("export", run)
    said("export", run, "--history")
    for command in (["plot"], ["show"], ["export", "--history"], ["compare"]):
        assert "\\x1b]8;;" in said(*command, f"no {IN_FILES}")
    with (run / "metrics.jsonl").open("a") as log:
        log.write('{"step": 9')
    assert ESCAPED in said("plot", run, "--summary-only")


def test_compare(run):
    assert ESCAPED in said("compare", f"{IN_FILES}={run}", "--no-plot")


def test_configurations(tmp_path):
    """A key, a value, a table's name, a line that is no TOML, a path; from `check`, `train`, `sweep`, `profile`."""
    bad = {
        "key": f'"{toml(IN_FILES)}" = 1',
        "value": f'task = "{toml(IN_FILES)}"',
        "task": f'task = {{use = "jsonl", path = "{toml(IN_FILES)}"}}',
        "model": f'task = "arithmetic"\nmodel.path = "./{toml(IN_FILES)}"',
        "reward": f'task = "arithmetic"\nreward = "{toml(IN_FILES)}.py:f"',
        "type": f'steps = "{toml(IN_FILES)}"',
        "broken": f"steps = {IN_FILES}",
    }
    for name, text in bad.items():
        file = tmp_path / f"{name} {NAME}.toml"
        file.write_text(text)
        for command in ("check", "train", "profile"):
            assert "\\x1b" in said(command, file), (command, name)
        assert "\\x1b" in said("sweep", file)
    assert ESCAPED in said("check", tmp_path / f"{IN_FILES}.toml")
    assert ESCAPED in said("check", "grpo", "--set", f"task={IN_FILES}")


def test_names_given_by_a_user(tmp_path):
    assert ESCAPED in said("list", IN_FILES)
    assert ESCAPED in said("fetch", f"owner/{IN_FILES}", tmp_path / "d")
    assert ESCAPED in said("eval", f"./{IN_FILES}")
    assert ESCAPED in said("audit", IN_FILES)
    assert ESCAPED in said("score", tmp_path / f"{IN_FILES}.jsonl", "--reward", "gsm8k")


def test_a_task_and_responses_that_are_judged(tmp_path):
    row = {"id": HOSTILE, "question": HOSTILE, "answer": HOSTILE, "response": f"\\boxed{{{HOSTILE}}}"}
    file = tmp_path / "rows.jsonl"
    file.write_text((json.dumps(row) + "\n") * 3)
    (tmp_path / "mine.py").write_text(f"def bad(prompt, rollout):\n    raise ValueError({HOSTILE!r})\n")
    assert ESCAPED in said("score", file, "--reward", "boxed", "--workers", "0")
    assert r"\ufeff\x00\ud800" in said("score", file, "--reward", f"{tmp_path}/mine.py:bad", "--workers", "0")
    of_task = {"question": HOSTILE[:-1], "answer": HOSTILE[:-1]}  # which refuses surrogates
    file.write_text("".join(json.dumps({**of_task, "question": f"{n} {HOSTILE[:-1]}"}) + "\n" for n in range(20)))
    here = ("--set", "verify.workers=0")
    assert ESCAPED in said("audit", "jsonl", "--set", f"task.path={file}", "--reward", "gsm8k", *here)


@pytest.fixture
def hostile(smallest, tmp_path):
    """The smallest run, of problems and rewards that are hostile, in a folder that is."""
    (tmp_path / "mine.py").write_text(
        f"TEXT = {HOSTILE!r}\n"
        f"def one(prompt, rollout):\n    return {{TEXT[:-1]: float(len(rollout.text) % 2)}}\n"
        f"def bad(prompt, rollout):\n    raise ValueError(TEXT)\n"
    )
    for split in SPLITS:
        rows = [{"question": f"{split} {n} {HOSTILE[:-1]}", "answer": HOSTILE[:-1]} for n in range(8)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def written(**changes):
        config = smallest(output=str(tmp_path / f"o {NAME}"), **changes)
        config["task"] = {"use": "jsonl", **{split: str(tmp_path / f"{split}.jsonl") for split in SPLITS}}
        path = tmp_path / "run.toml"
        path.write_text("".join(f"{key} = {inline(value)}\n" for key, value in config.items()))
        return path

    return written


def inline(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(item)}" for key, item in value.items()) + "}"
    return f'"{toml(value)}"' if isinstance(value, str) else json.dumps(value)


def test_a_run_and_an_evaluation(hostile, tmp_path):
    good = hostile(reward={"use": f"{tmp_path}/mine.py:one"})
    for words in (["check", good], ["train", good], ["train", good], ["train", good, "--resume"]):
        assert ESCAPED in said(*words), words
    saved = next(tmp_path.glob("o */checkpoints/*"))
    said("eval", saved, "--trust-run", "--problems", "1", "--output", tmp_path / f"e{NAME}")


def test_a_function_that_raises(hostile, tmp_path):
    assert ESCAPED in said("train", hostile(reward={"use": f"{tmp_path}/mine.py:bad"}))


def test_commands_print_through_one_door():
    """Which escapes whatever they say."""
    modules = {command.module for command in commands.known_commands().values()}
    declarations = [Path(importlib.import_module(module).__file__) for module in sorted(modules)]
    for path in (Path(commands.__file__), *declarations):
        assert not re.search(r"(?<![.\w])(print|echo|secho)\(", path.read_text(encoding="utf-8")), path


def test_a_bug_s_traceback(monkeypatch, capsys):
    def breaks():
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr(commands, "app", breaks)
    monkeypatch.setattr(commands, "escape_logs", lambda: None)  # which would stay
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    with pytest.raises(SystemExit, match="1"):
        commands.main()
    told = capsys.readouterr().err
    assert ESCAPED in told
    assert "Traceback (most recent call last)" in told
    assert unsafe(told) == set()
