"""A save that is written beside training holds what the boundary was, and is over before anything of it changes."""

from __future__ import annotations

import json
import threading

import pytest
from test_resume import rows

import winnow
from winnow.core.events import Notice
from winnow.core.progress import Saving
from winnow.engines.native.sampler import Native
from winnow.learner.learner import Learner
from winnow.state import checkpoint
from winnow.state.folder import LockedFolder

LORA = {
    "model": {"lora": {"rank": 2, "alpha": 4.0, "targets": ["q_proj"]}},
    "terms": [{"use": "kl", "coefficient": 0.05}],
    "allocate": "gvm",
    "weighting": "prompt",
    "select": "all",
    "probe": {"every": 2, "rollouts_per_prompt": 2, "gradient_norm": "none", "outer_reset": "both"},
}
FULL = {"allocate": "gvm_online", "weighting": "prompt"}


@pytest.fixture
def runs(smallest, tmp_path):
    """Runs of a few steps that save after each; runs("name", **changes)."""

    def train(name, watch=lambda event: None, resume=False, **changes):
        base = {"steps": 4, "output": str(tmp_path / name), "checkpoint": {"every": 1, "keep_last": 9}}
        base |= {"verify": {"workers": 0}, "update": {"updates_per_step": 2}, "evaluate": {"every": 2}}
        return winnow.train(**smallest(**{**base, **changes}), watch=watch, resume=resume)

    return train


@pytest.fixture
def held(monkeypatch):
    """The writer of the moments waits until the training thread waits for it. What changes them notes whether a save is
    under way.
    """
    writing, asked, noted = threading.Event(), threading.Event(), []
    write, wait, step, reset = checkpoint.write_tensors, Saving.wait, Learner.step, Learner.reset

    def slow(path, *more):
        if threading.current_thread().name == "winnow-save":
            writing.set()
            asked.wait(20)  # not for ever: a training thread that fails waits for this one to end
        digest = write(path, *more)
        writing.clear()
        return digest

    def waited(self):
        asked.set()
        wait(self)
        asked.clear()

    monkeypatch.setattr(checkpoint, "write_tensors", slow)
    monkeypatch.setattr(Saving, "wait", waited)
    monkeypatch.setattr(Learner, "step", lambda self: noted.append(("step", writing.is_set())) or step(self))
    monkeypatch.setattr(Learner, "reset", lambda self, w: noted.append(("reset", writing.is_set())) or reset(self, w))
    yield noted
    asked.set()


def test_nothing_changes_while_a_save_is_in_progress(runs, held, monkeypatch):
    """Each checkpoint is what a run that waits for its saves leaves."""
    before = runs("still", steps=3, **LORA, checkpoint={"every": 1, "keep_last": 9, "background": False})
    held.clear()
    beside = []
    generate = Native.generate
    monkeypatch.setattr(Native, "generate", lambda *a, **k: beside.append(_under_way()) or generate(*a, **k))
    after = runs("beside", steps=3, **LORA)
    assert any(beside), "else nothing was beside"
    assert {what for what, _ in held} == {"step", "reset"}
    assert not any(under_way for _, under_way in held)
    assert_same_checkpoints(before.folder, after.folder, 3)


def test_a_full_model_is_saved_beside_training_as_it_was(runs, held):
    before = runs("still", steps=3, **FULL, checkpoint={"every": 1, "keep_last": 9, "background": False})
    assert_same_checkpoints(before.folder, runs("beside", steps=3, **FULL).folder, 3)
    assert not any(under_way for _, under_way in held)


def _under_way():
    return any(thread.name == "winnow-save" for thread in threading.enumerate())


def assert_same_checkpoints(one, other, count):
    """Every file of every checkpoint but its manifest, which says how long the logs were, clock and all."""
    folders = sorted((one / "checkpoints").iterdir())
    assert [f.name for f in folders] == [f"step-{step:06d}" for step in range(1, count + 1)]
    for folder in folders:
        files = [f.relative_to(folder) for f in folder.rglob("*") if f.is_file() and f.name != "manifest.json"]
        for name in files:
            assert (folder / name).read_bytes() == (other / "checkpoints" / folder.name / name).read_bytes(), name
    for log in ("metrics.jsonl", "rollouts"):
        assert rows(one / log) == rows(other / log)


def test_a_save_that_fails_beside_training_is_reported_once(runs, monkeypatch):
    write, events = checkpoint.write_tensors, []

    def full(path, *more):
        if "step-000002" in str(path):
            raise OSError(28, "No space left on device")
        return write(path, *more)

    monkeypatch.setattr(checkpoint, "write_tensors", full)
    result = runs("run", watch=events.append, **FULL)
    missing = str(result.folder / "checkpoints" / "step-000002")
    assert len([e for e in events if isinstance(e, Notice) and missing in e.text]) == 1
    assert [p.name for p in sorted((result.folder / "checkpoints").iterdir())] == [f"step-00000{i}" for i in (1, 3, 4)]


def test_a_bug_in_a_save_ends_the_run_and_intact_weights_are_saved(runs, monkeypatch):
    write = checkpoint.write_tensors

    def broken(path, *more):
        if threading.current_thread().name == "winnow-save" and "step-000002" in str(path):
            raise ZeroDivisionError("a bug")
        return write(path, *more)

    monkeypatch.setattr(checkpoint, "write_tensors", broken)
    with pytest.raises(ZeroDivisionError, match="a bug") as error:
        runs("run", **FULL)
    assert "checkpoints/step-000002" in error.value.__notes__[0]


def test_an_interrupted_run_ends_its_save_before_it_unlocks_its_folder(runs, held, monkeypatch):
    """By a second Ctrl-C, for which nothing is saved: another process may take the folder as soon as it is left."""
    generate, close, left = Native.generate, LockedFolder.close, []

    def unlocked(self):
        left.append(sorted(path.name for path in (self.path / "checkpoints").iterdir()))
        close(self)

    def interrupted(*arguments, seed, **more):
        if seed[1:] == ("rollout", 2):
            assert _under_way()
            raise KeyboardInterrupt
        return generate(*arguments, seed=seed, **more)

    monkeypatch.setattr(Native, "generate", interrupted)
    monkeypatch.setattr(LockedFolder, "close", unlocked)
    with pytest.raises(KeyboardInterrupt):
        runs("run", **FULL)
    assert left == [["step-000001", "step-000002"]]


def test_each_file_is_hashed_once_per_save_and_once_per_resume(runs, monkeypatch):
    read, sha256 = [], checkpoint._sha256
    monkeypatch.setattr(checkpoint, "_sha256", lambda path: read.append(path.name) or sha256(path))
    once = {**FULL, "checkpoint": {"every": 0}}
    files = json.loads((runs("run", **once).model / "manifest.json").read_text())["files"]
    assert sorted(read) == sorted(set(files) - {"model.safetensors", "trainer.tensors"})
    read.clear()
    runs("run", **once, resume=True)
    assert sorted(read) == sorted(files), "the save at its end knows the checkpoint that the resume has verified"
