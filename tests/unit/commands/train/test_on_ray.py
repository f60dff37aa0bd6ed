"""What `winnow train --ray` refuses before Ray is started, and a mistake that its only rank meets."""

from __future__ import annotations

import pytest

from refusals import refused
from winnow.commands.command_line import BAD_INPUT
from winnow.commands.train.here import TrainingRequest, train_here
from winnow.commands.train.on_ray import launch_on_ray
from winnow.commands.train.rank_end import NOTE, RankEnd
from winnow.errors import ConfigError, RunFolderError


def test_a_mistake_that_the_only_rank_meets_is_a_note_and_no_reason_for_a_restart(tmp_path, monkeypatch):
    monkeypatch.setenv(NOTE, str(tmp_path / "rank-0.json"))
    request = TrainingRequest(tmp_path / "run.toml")
    request.config.write_text("[loss]\nclip_hgih = 0.3\n")
    assert train_here(request, launched=True) == BAD_INPUT, "Ray restarts a rank that raises"
    end = RankEnd.read(tmp_path / "rank-0.json")
    assert end is not None
    assert (end.code, end.begun, end.trace) == (BAD_INPUT, False, "")
    assert "clip_hgih" in end.text
    with refused(ConfigError, key="loss.clip_hgih"):
        train_here(request)


@pytest.mark.parametrize("kind", ["run", "file"])
def test_a_folder_of_another_run_is_refused_before_ray_is_started(tmp_path, kind):
    beside = tmp_path / "mine.ray"
    if kind == "run":
        beside.mkdir()
    kept = beside / "manifest.json" if kind == "run" else beside
    kept.write_text("mine")
    request = TrainingRequest(tmp_path / "run.toml", sets=(f"output={tmp_path / 'mine'}",))
    request.config.write_text("steps = 1\n")
    with refused(RunFolderError, beside, key="output", code="run_folder.foreign"):
        launch_on_ray(request, "local", 2, restarts=0)
    assert kept.read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "named", "key"),
    [
        ('threads = 1\nrollout = { ahead = 1, engine = { use = "native", process = "own" } }\n', (), "correction"),
        ("[loss]\nclip_hgih = 0.3\n", ("line 2",), "loss.clip_hgih"),
    ],
)
def test_a_mistake_is_refused_as_without_ray(tmp_path, monkeypatch, text, named, key):
    monkeypatch.setattr("winnow.commands.train.on_ray._connected", lambda *_: pytest.fail("Ray was started"))
    request = TrainingRequest(tmp_path / "run.toml", sets=(f"output={tmp_path / 'mine'}",))
    request.config.write_text(text)
    with refused(ConfigError, *named, key=key):
        launch_on_ray(request, "local", 2, restarts=0)
