"""Changes that a resume may make, those that are refused by key, and the record of allowed ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from refusals import refused
from winnow.config import Config, dump
from winnow.errors import ConfigError, RunFolderError, resume_options
from winnow.state.folder import RunFolder
from winnow.state.resume import MAY_CHANGE, Change, compare, evaluated_since, recorded, same_evaluation

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


def changed(*named, key):
    """The refusal of a change of `key`, which permits it by name."""
    return refused(RunFolderError, RUN, *named, f"allow-change {key}", key=key, code="run_folder.changed")


def differences(changes):
    """(key, before, after) of each change, which its notice contains."""
    for change in changes:
        assert all(text in change.notice for text in (change.key, repr(change.was), repr(change.now)))
    return [(change.key, change.was, change.now) for change in changes]


def test_every_key_that_differs_is_refused_with_every_remedy():
    with changed("0.0001", "0.001", "[{'use': 'x'}]", "[]", key="seed") as error:
        compare(manifest(), manifest(seed=1, optimizer={"learning_rate": 1e-3}, select=[]), run=RUN, step=7)
    for key in ("seed", "optimizer.learning_rate", "select"):
        assert key in error.value.problem
        assert f"allow-change {key}" in error.value.remedy
    assert resume_options(error.value) == {"allow_change": ["seed", "optimizer.learning_rate", "select"]}
    assert "--" not in str(error.value), "a flag of the command line does not apply to a call from Python"


def test_a_key_that_only_one_side_has_differs():
    with changed("None", 3, key="extra"):
        compare(manifest(), manifest(extra=3), run=RUN, step=0)


def test_more_steps_and_other_surroundings_are_permitted_changes():
    new = manifest(steps=200, output="runs/moved", checkpoint={"every": 5})
    new["versions"]["torch"] = "2.11.0"
    new["threads"] = 2
    changes = compare(manifest(), new, run=RUN, step=7)
    assert differences(changes) == [
        ("steps", 100, 200),
        ("checkpoint", None, {"every": 5}),
        ("versions.torch", "2.13.0", "2.11.0"),
        ("threads", 1, 2),
    ]
    assert recorded(changes)[0] == {"step": 7, "key": "steps", "was": 100, "now": 200}


def test_another_gpu_or_driver_is_a_permitted_change():
    old, new = manifest(), manifest()
    old["gpu"] = {"name": "NVIDIA H200", "driver": "580.1", "cuda": "13.0", "cudnn": 91002}
    new["gpu"] = {**old["gpu"], "name": "NVIDIA H100", "driver": "580.2"}
    assert differences(compare(old, new, run=RUN, step=7)) == [
        ("gpu.name", "NVIDIA H200", "NVIDIA H100"),
        ("gpu.driver", "580.1", "580.2"),
    ]
    assert "gpu" not in manifest(), "the manifest of a run on a CPU has no gpu"


@pytest.mark.parametrize("allow", ["optimizer.learning_rate", "optimizer"])
def test_an_allowed_key_may_change_and_no_other(allow):
    new = manifest(optimizer={"learning_rate": 1e-3})
    (change,) = compare(manifest(), new, run=RUN, step=40, allow=[allow])
    assert recorded([change]) == [{"step": 40, "key": "optimizer.learning_rate", "was": 1e-4, "now": 1e-3}]
    with changed(0, 1, key="seed") as error:
        compare(manifest(), {**new, "config": {**new["config"], "seed": 1}}, run=RUN, step=40, allow=[allow])
    assert allow not in str(error.value)


def test_a_key_that_a_member_declares_may_change():
    before, after = (manifest(rollout={"engine": {"use": "x", "memory": n, "dtype": n}}) for n in (1, 2))
    engine = ["rollout.engine.memory"]
    with changed(1, 2, key="rollout.engine.dtype") as error:
        compare(before, after, run=RUN, step=7, may_change=engine)
    assert "memory" not in str(error.value)
    after["config"]["rollout"]["engine"]["dtype"] = 1
    (change,) = compare(before, after, run=RUN, step=7, may_change=engine)
    assert differences([change]) == [("rollout.engine.memory", 1, 2)]
    with changed(1, 2, key="rollout.engine.memory"):
        compare(before, after, run=RUN, step=7)


def test_a_key_that_does_not_exist_cannot_be_allowed():
    wrong = "optimizer.learnin_rate"
    with refused(ConfigError, "'optimizer.learning_rate'", key=wrong, code="config.unknown_key"):
        compare(manifest(), manifest(), run=RUN, step=0, allow=[wrong])


def test_fewer_steps_than_are_done_are_refused_whatever_is_allowed():
    assert len(compare(manifest(), manifest(steps=60), run=RUN, step=60)) == 1
    with refused(RunFolderError, RUN, 59, "steps = 60", key="steps", code="run_folder.changed") as error:
        compare(manifest(), manifest(steps=59), run=RUN, step=60, allow=["steps"])
    assert resume_options(error.value) == {"set": ["steps=60"]}


def test_more_steps_of_a_decaying_learning_rate_must_be_allowed():
    before, after = (manifest(steps=steps, optimizer={"schedule": "linear"}) for steps in (100, 200))
    with changed(100, 200, key="steps"):
        compare(before, after, run=RUN, step=7)
    assert len(compare(before, after, run=RUN, step=7, allow=["steps"])) == 1


@pytest.mark.parametrize(
    ("key", "files", "edited", "unchanged"),
    [
        ("reward.use", {"mine.py": "sha256:9"}, ["mine.py"], []),
        (
            "task.path",
            {"train.jsonl": "sha256:2", "more.jsonl": "sha256:4"},
            ["test.jsonl", "more.jsonl"],
            ["train.jsonl"],
        ),
    ],
)
def test_an_edited_file_is_refused_by_the_key_that_names_it(key, files, edited, unchanged):
    new = manifest()
    new["inputs"][key] = files
    with changed(*edited, key=key) as error:
        compare(manifest(), new, run=RUN, step=7)
    assert not any(name in str(error.value) for name in unchanged)
    (change,) = compare(manifest(), new, run=RUN, step=7, allow=[key.partition(".")[0]])
    assert (change.key, change.step, change.now) == (key, 7, files)


def test_files_that_only_one_run_could_read_are_no_change():
    """A model of the hub, say, that is not in this machine's cache yet."""
    new = manifest()
    del new["inputs"]["task.path"]
    assert compare(manifest(), new, run=RUN, step=7) == compare(new, manifest(), run=RUN, step=7) == ()


def test_every_key_that_may_change_exists():
    for key in MAY_CHANGE:
        table = dump(Config())
        *tables, last = key.split(".")
        for name in tables:
            table = table[name]
        assert last in table, key


def test_a_file_of_code_named_from_another_folder_is_the_same(tmp_path):
    """The name relative to the configuration and the absolute path are equal; another file of that name differs."""
    digest = {"mine.py": "sha256:1"}
    before = located({"reward": {"use": "mine.py:f"}, "select": [{"use": "mine.py:g"}]}, digest, tmp_path)
    place = str(tmp_path / "mine.py")
    same = {"reward": {"use": f"{place}:f"}, "select": [{"use": f"{place}:g"}]}
    after = located(same, {place: "sha256:1"}, tmp_path / "elsewhere")
    assert [c.key for c in compare(before, after, run=tmp_path, step=1)] == ["base"]
    other = located({**same, "reward": {"use": "mine.py:f"}}, {"mine.py": "sha256:2"}, tmp_path / "elsewhere")
    with refused(RunFolderError, "mine.py", key="reward.use", code="run_folder.changed"):
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
def test_an_evaluation_is_valid_until_an_input_of_it_changes(keys, allow, same):
    changes = [Change(step=3, key=key, was=1, now=2, notice="") for key in keys]
    assert same_evaluation(changes, allow) is same


def test_the_page_names_every_key_that_may_change():
    text = (Path(__file__).parents[3] / "docs" / "runs.md").read_text(encoding="utf-8")
    paragraph = text.partition("**What a resume may change**")[2].partition("\n- ")[0]
    assert set(MAY_CHANGE) <= set(re.findall("`([a-z_.]+)`", paragraph))


@pytest.mark.parametrize(
    ("key", "since"),
    [
        ("environment.turns", 7),
        ("rollout.max_new_tokens", 7),
        ("evaluate.split", 7),
        ("evaluate.every", 0),
        ("loss", 0),
    ],
)
def test_evaluations_are_comparable_from_the_last_change_of_what_they_measure(key, since):
    assert evaluated_since([{"key": "task", "step": 0}, {"key": key, "step": 7}]) == since


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
