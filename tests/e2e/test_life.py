"""How a run ends and what it leaves: errors, signals, more or fewer steps, edited inputs. Law 6 holds after each.

Runs without an interruption are compared with several others, so one of each kind serves the whole file.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
from test_resume import rows, write_config
from typer.testing import CliRunner

import winnow
from refusals import check_refusal, refusal_of, refused
from winnow.commands import app
from winnow.config_file import validate
from winnow.core.events import Evaluated, Notice, Started
from winnow.engines.native.engine import native
from winnow.records import StepReport
from winnow.state.logbook import read_metrics

FILES = ("model.safetensors", "trainer.tensors", "trainer.json")


def train(config, **more):
    return winnow.train(**config, watch=more.pop("watch", lambda event: None), **more)


def checkpoints(run):
    return sorted(path.name for path in (Path(run) / "checkpoints").iterdir())


def assert_same(a, b):
    """Two finished runs: parameters, optimizer, state and both logs."""
    for name in FILES:
        assert (a.model / name).read_bytes() == (b.model / name).read_bytes(), name
    for log in ("metrics.jsonl", "rollouts"):
        assert rows(a.folder / log) == rows(b.folder / log), log


def evaluations(run):
    """The lines of metrics.jsonl that are evaluations, by step."""
    lines = [line for line in (run / "metrics.jsonl").read_text().splitlines() if '"eval/' in line]
    return [json.loads(line)["step"] for line in lines], lines


def saved_by(error, steps):
    """An error's note contains the number of the steps that are saved."""
    (note,) = error.__notes__
    return re.search(rf"(?<!\d){steps}(?!\d)", note) is not None


def begins(events):
    """The first step of a run that has these events."""
    (started,) = (event for event in events if isinstance(event, Started))
    return started.first_step


class Trap:
    """Acts at a chosen moment of a chosen step, once."""

    def __init__(self, moment="", act=None, at=2):
        self.moment, self.act, self.at = moment, act, at
        self.step, self.updates = None, 0  # that has sampled, and its updates

    def pass_by(self, moment, step):
        if self.act is not None and (moment, step) == (self.moment, self.at):
            act, self.act = self.act, None
            act()


def members(trap):
    """A loss and an engine that come by the trap: in the evaluation before its step, in the sampling, in the first or
    second update, and when the engine takes over the weights after it.
    """
    from winnow.algos.loss import clip

    def loss(out, mb):
        trap.updates += 1
        trap.pass_by({1: "first update", 2: "second update"}.get(trap.updates), trap.step)
        return clip(out, mb)

    def engine(context):
        made = native(context)
        generate, load = made.generate, made.load

        def generated(*request, seed, **more):
            if seed[1] == "rollout":
                trap.step, trap.updates = made.version, 0
            trap.pass_by({"evaluate": "evaluate", "rollout": "sample"}.get(seed[1]), made.version)
            return generate(*request, seed=seed, **more)

        def loaded(weights, *, version):
            load(weights, version=version)
            trap.pass_by("sync", version - 1)

        made.generate, made.load = generated, loaded
        return made

    return loss, engine


@pytest.fixture(scope="module")
def trapped_in(smallest_in):
    """A configuration of four steps with two updates each, in a folder; without a moment the trap never acts."""

    def in_folder(home):
        smallest = smallest_in(home)

        def configuration(name, moment="", act=None, at=2, **changes):
            loss, engine = members(Trap(moment, act, at))
            base = {
                "steps": 4,
                "output": str(home / name),
                "loss": loss,
                "rollout": {"engine": engine},
                "allocate": "gvm_online",  # so that what training has seen of a prompt is part of the state
                "weighting": "prompt",
                "update": {"updates_per_step": 2},
                "evaluate": {"every": 2, "greedy": False},
            }
            return smallest(**{**base, **changes})

        return configuration

    return in_folder


@pytest.fixture
def trapped(trapped_in, tmp_path):
    return trapped_in(tmp_path)


PROBED = {
    "allocate": "gvm",
    "weighting": "prompt",
    "select": "all",
    "probe": {"every": 2, "rollouts_per_prompt": 2, "outer_reset": "both"},
    "terms": [{"use": "kl", "coefficient": 0.1}],
}


@pytest.fixture(scope="module")
def whole(trapped_in, tmp_path_factory):
    """The result of an uninterrupted run, which saves after every step."""
    every = {"checkpoint": {"every": 1, "keep_last": 9}}
    return train(trapped_in(tmp_path_factory.mktemp("whole"))("run", **every))


@pytest.fixture(scope="module")
def whole_probed(trapped_in, tmp_path_factory):
    """The same of a run that probes and resets."""
    return train(trapped_in(tmp_path_factory.mktemp("probed"))("run", **PROBED))


BROKEN_OFF = (RuntimeError, winnow.ConfigError)  # an engine's error as it was; a loss's with its name and line


def fail():
    raise RuntimeError("on purpose")


@pytest.mark.parametrize(
    ("moment", "saved"),
    [
        pytest.param("evaluate", 2, marks=pytest.mark.slow),  # saved at the same boundary as the first update's
        ("first update", 2),
        ("second update", None),
        ("sync", 3),
    ],
)
def test_intact_weights_are_saved_before_an_error_and_are_resumed(moment, saved, trapped, whole, tmp_path):
    """Of the steps 0 to 3 the third breaks off; no checkpoint is due before the last."""
    with pytest.raises(BROKEN_OFF, match="on purpose") as error:
        train(trapped("broken", moment, fail))
    folder = tmp_path / "broken"
    if saved is None:
        assert not (folder / "checkpoints").exists()
        assert str(folder) not in error.value.__notes__[0]
    else:
        assert checkpoints(folder) == [f"step-00000{saved}"]
        assert saved_by(error.value, saved)
        assert f"{folder}/checkpoints/step-00000{saved}" in error.value.__notes__[0]
        assert "delete" not in error.value.__notes__[0], "it is the only checkpoint"
    begun = []
    resumed = train(trapped("broken"), resume=True, watch=begun.append)
    assert begins(begun) == (saved or 0)
    assert_same(whole, resumed)


# Both are saved at the same boundary; an error while sampling also ends runs of test_hours.py
@pytest.mark.parametrize("moment", [pytest.param("sample", marks=pytest.mark.slow), "first update"])
def test_a_reset_before_an_error_is_repeated_by_the_resume(moment, trapped, whole_probed, tmp_path):
    """Step 2 begins a window, where moments and reference start anew: what is saved then is past that."""
    with pytest.raises(BROKEN_OFF):
        train(trapped("broken", moment, fail, **PROBED))
    assert checkpoints(tmp_path / "broken") == ["step-000002"]
    assert_same(whole_probed, train(trapped("broken", **PROBED), resume=True))


def test_a_verifier_that_fails_costs_no_finished_step(smallest, tmp_path):
    """As from the command line: the reward is a file, and what it waits for is mended outside of it."""
    broken = tmp_path / "broken"
    (tmp_path / "moody.py").write_text(
        f"import os\n\ndef moody(prompt, rollout):\n"
        f"    if rollout.version == 2 and os.path.exists({str(broken)!r}):\n        raise RuntimeError('moody')\n"
        f"    return sum(ord(c) % 2 == 0 for c in rollout.text) / max(1, len(rollout.text))\n"
    )
    reward = {"use": f"{tmp_path}/moody.py:moody"}
    whole = train(smallest(steps=4, reward=reward, output=str(tmp_path / "whole")))
    broken.touch()
    toml = write_config(tmp_path / "run.toml", smallest(steps=4, reward=reward))
    result = CliRunner().invoke(app, ["train", str(toml)])
    assert result.exit_code == 1
    error = refusal_of(result)
    check_refusal(error, "moody", code="verifier.failed")
    assert saved_by(error, 2)
    broken.unlink()
    assert_same(whole, train(smallest(steps=4, reward=reward), resume=True))


def test_a_save_that_fails_does_not_hide_the_error_before_it(trapped):
    config = trapped("broken", "first update", fail)

    def block(event):
        if isinstance(event, StepReport) and event.step == 0:
            (Path(config["output"]) / "checkpoints").write_text("a file where a folder belongs")

    with pytest.raises(BROKEN_OFF, match="on purpose") as error:
        train(config, watch=block)
    assert saved_by(error.value, 2)
    assert (Path(config["output"]) / "checkpoints").is_file()


def test_an_error_saves_beside_the_checkpoints_there_are_and_gives_none_up(trapped):
    """The weights that an error leaves behind may be its cause."""
    config = trapped("broken", "sync", fail, checkpoint={"every": 1, "keep_last": 1})
    with pytest.raises(BROKEN_OFF) as error:
        train(config)
    assert checkpoints(config["output"]) == ["step-000002", "step-000003"]
    assert error.value.__notes__[0].endswith("to continue from step-000002")


def test_checkpoints_are_on_by_default():
    assert validate({}).checkpoint.every == 50


# Signals --------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def hangups_are_not_ignored():
    """Also where the suite runs under nohup."""
    before = signal.getsignal(signal.SIGHUP)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("on_signal", "signals"),  # at a moment of a step, after which so many are done
    [
        ("step", [("evaluate", 2, 2), ("sample", 2, 3), ("second update", 3, 4)]),
        (
            "now",
            [("evaluate", 2, 2), ("sample", 2, 2), ("first update", 2, 2), ("second update", 2, 3), ("sync", 3, 4)],
        ),
    ],
)
def test_a_signal_ends_a_run_at_a_boundary(on_signal, signals, trapped, whole):
    """One run, resumed after each of them: its checkpoints, and what it is in the end, are those of `whole`."""
    checkpoint = {"checkpoint": {"on_signal": on_signal}}
    for count, (moment, step, done) in enumerate(signals):
        number = signal.SIGHUP if moment == "sample" else signal.SIGTERM
        before = signal.getsignal(number)
        act, begun = partial(os.kill, os.getpid(), number), []
        left = train(trapped("left", moment, act, at=step, **checkpoint), resume=count > 0, watch=begun.append)
        assert begins(begun) == (signals[count - 1][2] if count else 0), moment
        assert signal.getsignal(number) is before, moment
        assert (left.interrupted, left.steps, left.model.name) == (True, done, f"step-00000{done}"), moment
        assert checkpoints(left.folder)[-1] == left.model.name
        for name in FILES:
            expected = whole.model.with_name(left.model.name) / name
            assert (left.model / name).read_bytes() == expected.read_bytes(), (moment, name)
    resumed = train(trapped("left", **checkpoint), resume=True)
    assert not resumed.interrupted
    assert_same(whole, resumed)


def test_a_signal_in_the_first_step_saves_nothing_and_the_run_resumes(smallest):
    def at_first(prompt, rollout):
        if not done:
            done.append(1)
            os.kill(os.getpid(), signal.SIGTERM)
        return float(rollout.index)

    done = []
    config = smallest(reward=at_first, checkpoint={"on_signal": "now"})
    left = train(config)
    assert (left.interrupted, left.steps, left.model) == (True, 0, None)
    assert not (left.folder / "checkpoints").exists()
    assert train(config, resume=True).steps == 2


def test_the_first_evaluation_is_kept_unless_it_may_be_of_something_else(smallest):
    class Killed(BaseException):
        pass

    def kill(event):
        if isinstance(event, Evaluated):
            raise Killed

    with pytest.raises(Killed):
        train(smallest(seed=1), watch=kill)
    steps, (line,) = evaluations(Path(smallest()["output"]))
    assert steps == [0]
    with pytest.raises(Killed):
        train(smallest(seed=2), resume=True, allow_change=["seed"], watch=kill)
    (other,) = evaluations(Path(smallest()["output"]))[1]
    assert other != line, "of another seed"
    result = train(smallest(seed=2), resume=True)
    assert evaluations(result.folder)[1][0] == other


def test_a_signal_in_the_last_step_leaves_the_evaluation_to_the_resume(trapped):
    config = trapped("left", "sample", lambda: os.kill(os.getpid(), signal.SIGTERM)) | {"steps": 3}
    left = train(config)
    assert (left.interrupted, left.steps, evaluations(left.folder)[0]) == (True, 3, [0, 2])
    resumed = train(trapped("left") | {"steps": 3}, resume=True)
    assert (resumed.interrupted, resumed.steps, evaluations(left.folder)[0]) == (False, 3, [0, 2, 3])


def test_a_terminal_that_closes_twice_ends_a_run_once(trapped):
    def hang_up():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)

    left = train(trapped("left", "sample", hang_up))
    assert (left.interrupted, left.steps) == (True, 3)


def test_a_signal_that_is_ignored_stays_ignored(trapped):
    """nohup winnow train ..."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        result = train(trapped("left", "sample", lambda: os.kill(os.getpid(), signal.SIGHUP)))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (result.interrupted, result.steps) == (False, 4)


# Steps ----------------------------------------------------------------------------------------------------------------


def test_fewer_steps_than_are_done_are_refused_and_nothing_is_touched(smallest):
    result = train(smallest(steps=3))
    before = {p: p.read_bytes() for p in result.folder.rglob("*") if p.is_file() and p.name != ".lock"}
    with refused(winnow.RunFolderError, 2, 3, key="steps", code="run_folder.changed"):
        train(smallest(steps=2), resume=True)
    assert {p: p.read_bytes() for p in result.folder.rglob("*") if p.is_file() and p.name != ".lock"} == before


@pytest.mark.parametrize("every", [0, 2])
def test_a_finished_run_goes_on_and_keeps_its_last_evaluation(every, smallest, tmp_path):
    evaluate = {"evaluate": {"every": every}}
    short = train(smallest(steps=2, **evaluate))
    steps, lines = evaluations(short.folder)
    assert steps == [0, 2]
    longer = train(smallest(steps=4, **evaluate), resume=True)
    steps, all_lines = evaluations(longer.folder)
    assert steps == [0, 2, 4]
    assert all_lines[:2] == lines, "the same measurement, not a second one"
    if every:
        assert_same(train(smallest(steps=4, output=str(tmp_path / "whole"), **evaluate)), longer)


def test_a_finished_run_that_is_resumed_does_nothing_again(smallest):
    first = train(smallest())
    before = (first.folder / "metrics.jsonl").read_bytes()
    again = train(smallest(), resume=True)
    assert (again.model, again.interrupted) == (first.model, False)
    assert (first.folder / "metrics.jsonl").read_bytes() == before


# Starting again, and changing what a run reads ------------------------------------------------------------------------


def test_a_run_that_died_in_its_first_step_starts_again(smallest, tmp_path):
    trouble = {}

    def reward(prompt, rollout):
        trouble["verdicts"] = trouble.get("verdicts", 0) + 1
        return None if trouble["verdicts"] > 4 else 0.5  # the evaluation before the first step passes

    config = smallest(reward=reward, evaluate={"greedy": False})
    with pytest.raises(winnow.VerifierError) as error:
        train(config)
    folder = Path(config["output"])
    assert len(error.value.__notes__) == 1
    assert not (folder / "checkpoints").exists()
    (folder / "notes.txt").write_text("mine")
    assert evaluations(folder)[0] == [0]
    events = []
    result = train(smallest(optimizer={"learning_rate": 3e-3}), watch=events.append)
    assert any("earlier launch" in e.text for e in events if isinstance(e, Notice))
    assert evaluations(result.folder)[0] == [0, 2], "the evaluation of another configuration is not kept"
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_learning_rate_is_changed_knowingly_or_not_at_all(smallest, tmp_path):
    train(smallest())
    toml = write_config(tmp_path / "more.toml", smallest(steps=3, optimizer={"learning_rate": 3e-3}))
    before = (tmp_path / "run" / "manifest.json").read_bytes()
    result = CliRunner().invoke(app, ["train", str(toml), "--resume"])
    assert result.exit_code == 2
    named = ("optimizer.learning_rate", 0.001, 0.003, "allow-change optimizer.learning_rate")
    check_refusal(refusal_of(result), *named, code="run_folder.changed")
    assert (tmp_path / "run" / "manifest.json").read_bytes() == before
    changed = CliRunner().invoke(app, ["train", str(toml), "--resume", "--allow-change", "optimizer.learning_rate"])
    assert changed.exit_code == 0, changed.stderr
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert {"step": 2, "key": "optimizer.learning_rate", "was": 1e-3, "now": 3e-3} in manifest["changes"]
    assert [row["policy/learning_rate"] for row in read_metrics(tmp_path / "run")[:3]] == [1e-3, 1e-3, 3e-3]


def test_a_change_is_allowed_to_a_resume_alone(smallest):
    with refused(winnow.ConfigError, "allow-change", code="config.combination"):
        train(smallest(), allow_change=["seed"])


def test_a_window_of_the_probe_may_be_changed_in_its_middle(smallest):
    probed = {"allocate": "gvm", "weighting": "prompt", "select": "all"}
    train(smallest(steps=1, probe={"every": 1, "rollouts_per_prompt": 2}, **probed))
    longer = smallest(steps=3, probe={"every": 2, "rollouts_per_prompt": 2}, **probed)
    assert train(longer, resume=True, allow_change=["probe"]).steps == 3


def edit_reward(folder):
    file = folder / "even.py"
    file.write_text(file.read_text().replace("% 2 == 0", "% 2 == 1"))
    return "reward.use"


def edit_task(folder):
    file = folder / "data" / "train.jsonl"
    file.write_text(file.read_text().replace('"answer": "2"', '"answer": "3"', 1))
    return "task.train"


def edit_model(folder):
    file = folder / "model" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    return "model.path"


@pytest.mark.parametrize("lora", [None, {"rank": 2}], ids=["full", "lora"])
def test_an_edited_input_is_refused_by_name_or_allowed_by_it(lora, smallest, tiny_folder, tmp_path):
    shutil.copytree(tiny_folder("qwen2"), tmp_path / "model")
    (tmp_path / "data").mkdir()
    for split, count in (("train", 8), ("validation", 2)):
        lines = [json.dumps({"question": f"{split} {i} + 1?", "answer": "2"}) for i in range(count)]
        (tmp_path / "data" / f"{split}.jsonl").write_text("\n".join(lines) + "\n")

    def config(steps):
        base = smallest(steps=steps, model={"path": str(tmp_path / "model"), "lora": lora})
        data = {split: str(tmp_path / "data" / f"{split}.jsonl") for split in ("train", "validation")}
        return {**base, "task": {"use": "jsonl", **data}}

    manifest = train(config(1)).folder / "manifest.json"
    assert train(config(2), resume=True).steps == 2, "what was not edited is no change"
    keys, before = [], manifest.read_bytes()
    for edit in (edit_reward, edit_task, edit_model):
        key = edit(tmp_path)
        with refused(winnow.RunFolderError, key, f"allow-change {key}", code="run_folder.changed") as error:
            train(config(3), resume=True, allow_change=keys)  # those before it are allowed
        assert not any(f"allow-change {other}" in str(error.value) for other in keys)
        assert manifest.read_bytes() == before
        keys.append(key)
    assert train(config(3), resume=True, allow_change=keys).steps == 3
    changes = {c["key"]: c for c in json.loads(manifest.read_text())["changes"] if c["key"] in keys}
    assert [(changes[key]["step"], changes[key]["was"] != changes[key]["now"]) for key in keys] == [(2, True)] * 3
    assert train(config(4), resume=True).steps == 4, "what was allowed is what the run now is"


# Updates that cannot be taken -----------------------------------------------------------------------------------------


def test_a_loss_that_is_never_finite_leaves_the_last_good_weights(smallest):
    calls = []

    def broken(out, mb):
        calls.append(1)
        return out.logprobs * (float("nan") if len(calls) > 2 else 1.0), {}  # the first call is a check

    config = smallest(steps=9, loss=broken, update={"max_skipped": 3})
    with refused(winnow.UpdateError, 3, "max_skipped", code="update.not_finite") as error:
        train(config)
    assert saved_by(error.value, 4)
    calls.clear()
    good = train(smallest(steps=1, loss=broken, output=config["output"] + "-good"))
    saved = Path(config["output"]) / "checkpoints" / "step-000004"
    assert (saved / "model.safetensors").read_bytes() == (good.model / "model.safetensors").read_bytes()
    with refused(winnow.UpdateError, "step 4", "max_skipped", code="update.not_finite"):
        train(config, resume=True)


def test_a_loss_that_is_sometimes_not_finite_ends_nothing(smallest):
    calls = []

    def moody(out, mb):
        calls.append(1)
        return out.logprobs * (float("nan") if len(calls) % 3 else 1.0), {}

    config = smallest(steps=6, loss=moody, update={"max_skipped": 3})
    assert train(config).steps == 6


def test_a_command_that_a_signal_ends_exits_with_75_and_prints_the_one_that_continues(smallest, tmp_path):
    stop = tmp_path / "stop"
    stop.touch()
    (tmp_path / "stops.py").write_text(
        "import os, pathlib, signal\n\n\ndef stops(prompt, rollout):\n"
        f"    stop = pathlib.Path({str(stop)!r})\n"
        "    if rollout.version == 1 and stop.exists():\n"
        "        stop.unlink()\n        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return float(rollout.index)\n"
    )
    config = smallest(steps=3, reward={"use": f"{tmp_path}/stops.py:stops"}, verify={"workers": 0})
    toml = write_config(tmp_path / "run.toml", config)
    left = CliRunner().invoke(app, ["train", str(toml)])
    assert left.exit_code == 75, left.output
    assert checkpoints(tmp_path / "run") == ["step-000002"]
    last = left.stderr.splitlines()[-1]
    command = shlex.split(last[last.index("winnow ") :])
    assert command == ["winnow", "train", str(toml), "--resume"]
    assert CliRunner().invoke(app, command[1:]).exit_code == 0
    assert checkpoints(tmp_path / "run")[-1] == "step-000003"
