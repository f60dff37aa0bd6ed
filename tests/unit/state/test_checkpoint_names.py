from __future__ import annotations

from winnow.state.folder import find, is_checkpoint_path, path_of, paths


def test_only_checkpoints_are_found_in_the_order_of_their_steps(tmp_path):
    for name in ("step-1000000", "step-000020", "step-000003-moved-aside", ".unfinished-step-000004", "notes"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-000009").write_text("a file")
    assert [(step, path.name) for step, path in find(tmp_path)] == [
        (9, "step-000009"),
        (20, "step-000020"),
        (1000000, "step-1000000"),
    ]
    assert paths(tmp_path)[1] == path_of(tmp_path, 20)


def test_without_a_folder_of_checkpoints_there_are_no_paths(tmp_path):
    assert find(tmp_path) == paths(tmp_path) == []
    (tmp_path / "checkpoints").write_text("")
    assert paths(tmp_path) == []


def test_a_path_is_a_checkpoint_by_its_name_and_its_folder(tmp_path):
    assert is_checkpoint_path(path_of(tmp_path, 4))
    assert not is_checkpoint_path(tmp_path / "step-000004")
    assert not is_checkpoint_path(tmp_path / "checkpoints" / "step-000004-final")
