"""What a resume may change, what it refuses by name, and how a change that was allowed is recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from winnow.config import Config, dump
from winnow.errors import ConfigError, RunFolderError
from winnow.hidden_options import HIDDEN
from winnow.state.resume_changes import MAY_CHANGE, Change, compare, recorded, same_evaluation
from winnow.state.run_folder import RunFolder

RUN = Path("runs/a")


def manifest(**changes):
    config = {
        "seed": 0,
        "steps": 100,
        "output": "runs/a",
        "optimizer": {"learning_rate": 1e-4},
        "select": [{"use": "x"}],
    }
    inputs = {"reward.use": {"mine.py": "sha256:1"}, "task.path": {"train.jsonl": "sha256:2", "test.jsonl": "sha256:3"}}
    return {"config": {**config, **changes}, "inputs": inputs, "versions": {"torch": "2.13.0"}, "threads": 1}


def test_every_key_that_differs_is_named_with_every_way_out():
    with pytest.raises(RunFolderError) as error:
        compare(manifest(), manifest(seed=1, optimizer={"learning_rate": 1e-3}, select=[]), run=RUN, step=7)
    said = str(error.value)
    for words in (
        "cannot resume runs/a with another configuration",
        "seed was 0 and is now 1",
        "optimizer.learning_rate was 0.0001 and is now 0.001",
        "select was [{'use': 'x'}] and is now []",
        "put back what it was",
        "another output folder",
        "allow-change seed, allow-change optimizer.learning_rate, allow-change select",
    ):
        assert words in said
    assert "--" not in said, "a flag means nothing to who calls from Python"


def test_a_key_that_only_one_side_has_differs():
    with pytest.raises(RunFolderError, match="extra was None and is now 3"):
        compare(manifest(), manifest(extra=3), run=RUN, step=0)


def test_more_steps_and_other_surroundings_are_changes_and_told():
    new = manifest(steps=200, output="runs/moved", checkpoint={"every": 5})
    new["versions"]["torch"] = "2.11.0"
    new["threads"] = 2
    changes = compare(manifest(), new, run=RUN, step=7)
    assert [change.notice.partition(";")[0] for change in changes] == [
        "steps was 100 and is now 200",
        "checkpoint was None and is now {'every': 5}",
        "versions.torch was '2.13.0' and is now '2.11.0'",
        "threads was 1 and is now 2",
    ]
    assert recorded(changes)[0] == {"step": 7, "key": "steps", "was": 100, "now": 200}


def test_another_gpu_or_driver_is_told():
    old, new = manifest(), manifest()
    old["gpu"] = {"name": "NVIDIA H200", "driver": "580.1", "cuda": "13.0", "cudnn": 91002}
    new["gpu"] = {**old["gpu"], "name": "NVIDIA H100", "driver": "580.2"}
    assert [change.notice.partition(";")[0] for change in compare(old, new, run=RUN, step=7)] == [
        "gpu.name was 'NVIDIA H200' and is now 'NVIDIA H100'",
        "gpu.driver was '580.1' and is now '580.2'",
    ]
    assert "gpu" not in manifest(), "a run on a CPU has none"


@pytest.mark.parametrize("allow", ["optimizer.learning_rate", "optimizer"])
def test_an_allowed_key_may_change_and_no_other_does(allow):
    new = manifest(optimizer={"learning_rate": 1e-3})
    (change,) = compare(manifest(), new, run=RUN, step=40, allow=[allow])
    assert recorded([change]) == [{"step": 40, "key": "optimizer.learning_rate", "was": 1e-4, "now": 1e-3}]
    with pytest.raises(RunFolderError, match="seed was 0 and is now 1; put back"):
        compare(manifest(), {**new, "config": {**new["config"], "seed": 1}}, run=RUN, step=40, allow=[allow])


def test_a_key_that_a_member_declares_may_change_and_is_told():
    before, after = (manifest(rollout={"engine": {"use": "x", "memory": n, "dtype": n}}) for n in (1, 2))
    engine = ["rollout.engine.memory"]
    with pytest.raises(RunFolderError, match=r"rollout\.engine\.dtype was 1 and is now 2; put back"):
        compare(before, after, run=RUN, step=7, may_change=engine)
    after["config"]["rollout"]["engine"]["dtype"] = 1
    (change,) = compare(before, after, run=RUN, step=7, may_change=engine)
    assert change.notice == "rollout.engine.memory was 1 and is now 2"
    with pytest.raises(RunFolderError, match=r"allow-change rollout\.engine\.memory"):
        compare(before, after, run=RUN, step=7)


def test_a_key_that_does_not_exist_cannot_be_allowed():
    with pytest.raises(ConfigError, match=r"allow-change optimizer.learnin_rate: .*did you mean 'optimizer.learning"):
        compare(manifest(), manifest(), run=RUN, step=0, allow=["optimizer.learnin_rate"])


def test_fewer_steps_than_are_done_are_refused_whatever_is_allowed():
    assert len(compare(manifest(), manifest(steps=60), run=RUN, step=60)) == 1
    with pytest.raises(RunFolderError, match=r"steps = 59, but runs/a has done 60 steps.*steps = 60 or more"):
        compare(manifest(), manifest(steps=59), run=RUN, step=60, allow=["steps"])


def test_another_end_of_a_decaying_learning_rate_is_another_run_unless_allowed():
    before, after = (manifest(steps=steps, optimizer={"schedule": "linear"}) for steps in (100, 200))
    with pytest.raises(RunFolderError, match="steps was 100 and is now 200"):
        compare(before, after, run=RUN, step=7)
    assert len(compare(before, after, run=RUN, step=7, allow=["steps"])) == 1


@pytest.mark.parametrize(
    ("key", "files", "said"),
    [
        ("reward.use", {"mine.py": "sha256:9"}, "reward.use: mine.py has changed since the run read it"),
        (
            "task.path",
            {"train.jsonl": "sha256:2", "more.jsonl": "sha256:4"},
            "task.path: test.jsonl is gone, more.jsonl is new since the run read it",
        ),
    ],
)
def test_an_edited_file_is_refused_by_the_key_that_names_it(key, files, said):
    new = manifest()
    new["inputs"][key] = files
    with pytest.raises(RunFolderError) as error:
        compare(manifest(), new, run=RUN, step=7)
    assert said in str(error.value)
    assert f"allow-change {key}" in str(error.value)
    (change,) = compare(manifest(), new, run=RUN, step=7, allow=[key.partition(".")[0]])
    assert (change.key, change.step, change.now) == (key, 7, files)


def test_what_only_one_run_could_read_is_no_change():
    """A model of the hub that is not in this machine's cache yet."""
    new = manifest()
    del new["inputs"]["task.path"]
    assert compare(manifest(), new, run=RUN, step=7) == compare(new, manifest(), run=RUN, step=7) == ()


def test_what_may_change_exists():
    for key in MAY_CHANGE:
        table = dump(Config())
        *tables, last = key.split(".")
        for name in tables:
            table = table[name]
        assert last in table, key


def test_a_file_of_code_named_from_another_folder_is_the_same(tmp_path):
    """By its name beside the configuration, by its place, and not where another file stands there."""
    digest = {"mine.py": "sha256:1"}
    before = located({"reward": {"use": "mine.py:f"}, "select": [{"use": "mine.py:g"}]}, digest, tmp_path)
    place = str(tmp_path / "mine.py")
    same = {"reward": {"use": f"{place}:f"}, "select": [{"use": f"{place}:g"}]}
    after = located(same, {place: "sha256:1"}, tmp_path / "elsewhere")
    assert [c.key for c in compare(before, after, run=tmp_path, step=1)] == ["base"]
    other = located({**same, "reward": {"use": "mine.py:f"}}, {"mine.py": "sha256:2"}, tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match=r"reward\.use: mine\.py has changed since the run read it"):
        compare(before, other, run=tmp_path, step=1)


def located(config, digests, base):
    return {"config": config, "inputs": {"reward.use": digests}, "base": str(base)}


@pytest.mark.parametrize(
    ("keys", "allow", "same"),
    [
        ((), (), True),
        (("steps", "evaluate.every", "threads", "versions.torch"), (), True),
        (("evaluate.problems",), (), False),
        (("optimizer.learning_rate",), ("optimizer",), False),
    ],
)
def test_an_evaluation_holds_until_something_that_it_is_of_changes(keys, allow, same):
    changes = [Change(step=3, key=key, was=1, now=2, notice="") for key in keys]
    assert same_evaluation(changes, allow) is same


def test_changes_add_up_over_resumes(tmp_path):
    with RunFolder.open(tmp_path, resume=False) as folder:
        folder.record(manifest())
    for steps in (200, 300):
        with RunFolder.open(tmp_path, resume=True) as folder:
            new = manifest(steps=steps)
            folder.record(new, recorded(compare(folder.before, new, run=tmp_path, step=7)))
    written = json.loads((tmp_path / "manifest.json").read_text())
    assert written["config"]["steps"] == 300
    assert [(change["was"], change["now"]) for change in written["changes"]] == [(100, 200), (200, 300)]


def test_a_secret_that_an_older_winnow_wrote_is_no_difference_and_is_not_told():
    older = manifest(reward={"use": "mine.py:asks", "api_key": "sk-1"})
    now = manifest(reward={"use": "mine.py:asks", "api_key": HIDDEN})
    assert compare(older, now, run=RUN, step=7) == ()
