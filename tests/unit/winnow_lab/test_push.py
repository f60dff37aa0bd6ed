"""`winnow push`: the card and the files of a model, and the calls of the hub's library on a stand-in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import winnow_lab.push
from refusals import refused
from synthetic_run import write_run
from winnow.config import dump
from winnow.config_file import validate
from winnow.errors import DataError
from winnow.state.manifest import FORMAT, MANIFEST
from winnow_lab.push import card_of, files_of, publish, push

huggingface_hub = pytest.importorskip("huggingface_hub")
KEYS = {
    "model": {"path": "Qwen/Qwen2.5-0.5B"},
    "reward": {"use": "private/rewards.py:mine"},
    "prompt": {"template": "chat", "system": "One number."},
    "optimizer": {"learning_rate": 3e-6},
}


def checkpoint(run: Path, step: int = 10, **changes: Any) -> Path:
    """A checkpoint of a run of 10 steps, with evaluations before, after 5 and after 10 steps."""
    write_run(run)
    config = dump(validate({**KEYS, **changes, "output": str(run)}))
    manifest = {"winnow_run": FORMAT, "changes": [], "config": config, "base": str(run), "inputs": {}}
    (run / MANIFEST).write_text(json.dumps(manifest))
    folder = run / "checkpoints" / f"step-{step:06}"
    (folder / "adapter").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "trainer.tensors", "trainer.json", MANIFEST):
        (folder / name).write_text("{}")
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    return folder


class Hub:
    """A stand-in for the hub: repositories as {name: {path: content}}."""

    def __init__(self, *existing: str, refuses: bool = False) -> None:
        self.repos: dict[str, dict[str, bytes]] = {name: {"old.txt": b"old"} for name in existing}
        self.private: dict[str, bool] = {}
        self.refuses = refuses

    def repo_exists(self, repo: str) -> bool:
        return repo in self.repos

    def repo_info(self, repo: str) -> Any:
        return SimpleNamespace(private=self.private.get(repo, False))

    def create_repo(self, repo: str, *, private: bool, exist_ok: bool) -> None:
        if self.refuses:
            raise RuntimeError("401: log in")
        self.private[repo] = private
        self.repos.setdefault(repo, {})

    def create_commit(self, repo: str, operations: list[Any], *, commit_message: str) -> Any:
        for operation in operations:
            with operation.as_file() as file:
                self.repos[repo][operation.path_in_repo] = file.read()
        return SimpleNamespace(commit_url=f"hub://{repo}/commit/1")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Hub:
    stand_in: Hub = getattr(request, "param", None) or Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: stand_in)
    return stand_in


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the models in the hub's cache."""
    ids: list[str] = []
    monkeypatch.setattr(winnow_lab.push, "cached_folder", lambda name: Path(name) if name in ids else None)
    return ids


def test_the_model_and_its_card_are_published_without_the_state_of_training(tmp_path: Path, hub: Hub) -> None:
    push(checkpoint(tmp_path / "run"), "me/adder", private=True)
    assert set(hub.repos["me/adder"]) == {"README.md", "config.json", "model.safetensors"}
    assert hub.private == {"me/adder": True}


@pytest.mark.parametrize("hub", [Hub("me/adder")], indirect=True)
def test_a_repository_that_exists_is_changed_only_by_an_update(tmp_path: Path, hub: Hub) -> None:
    model = checkpoint(tmp_path / "run")
    with refused(DataError, "me/adder", "--update", code="data.exists"):
        publish(model, "me/adder", "card", private=False, update=False)
    assert hub.repos["me/adder"] == {"old.txt": b"old"}
    assert publish(model, "me/adder", "card", private=False, update=True) == "hub://me/adder/commit/1"
    assert hub.repos["me/adder"]["README.md"] == b"card"


@pytest.mark.parametrize("hub", [Hub(refuses=True)], indirect=True)
def test_what_the_hub_refuses_is_one_message(tmp_path: Path, hub: Hub) -> None:
    with refused(DataError, "401: log in", "hf auth login", code="data.unwritable"):
        publish(checkpoint(tmp_path / "run"), "me/adder", "card", private=False, update=False)


def test_the_card_states_task_accuracy_budget_and_no_path_of_the_machine(tmp_path: Path, cache: list[str]) -> None:
    cache.append("Qwen/Qwen2.5-0.5B")
    card = card_of(checkpoint(tmp_path / "run"), "me/adder")
    head = card.split("---\n")[1]
    assert 'base_model: "Qwen/Qwen2.5-0.5B"' in head
    assert "# adder\n" in card
    for told in (
        "| task | arithmetic |",
        "| reward | rewards.py:mine |",
        '"One number."',
        "5.0% -> 58.0%",
        "160 rollouts",
    ):
        assert told in card
    assert str(tmp_path) not in card
    assert "private" not in card


def test_the_card_of_an_earlier_checkpoint_has_nothing_of_later_steps(tmp_path: Path) -> None:
    card = card_of(checkpoint(tmp_path / "run", step=5), "me/adder")
    assert "5.0% -> 61.0%" in card
    assert re.search(r"budget +5 steps, 5 updates, 80 rollouts", card)


@pytest.mark.parametrize("base", ["bundled", "a/b", "owner/name"])
def test_a_base_model_in_a_folder_is_not_named_as_one_of_the_hub(
    tmp_path: Path, cache: list[str], monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    """`a/b` was a folder where the run was started; `owner/name` is one here, and in the cache too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    (tmp_path / "a").mkdir()  # a folder that the first part names is no error
    cache.append("owner/name")
    card = card_of(checkpoint(tmp_path / "run", model={"path": base}), "me/adder")
    assert "base_model" not in card


def test_a_model_without_a_run_has_a_card_that_says_how_to_load_it(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("{}")
    card = card_of(tmp_path, "me/plain")
    assert 'from_pretrained("me/plain")' in card
    assert "Trained with" not in card
    assert files_of(tmp_path) == [tmp_path / "model.safetensors"]


def test_a_folder_without_a_model_is_refused(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(DataError, "runs/typo", code="data.missing"):
        push(Path("runs/typo"), "me/adder")
    assert hub.repos == {}


def test_the_card_names_the_adapter_s_rank(tmp_path: Path) -> None:
    model = {"path": "bundled", "dtype": "bfloat16", "lora": {"rank": 8}}
    card = card_of(checkpoint(tmp_path / "run", model=model), "me/adder")
    assert "LoRA 8" in card
    assert "rounded to bfloat16" in card, "the run evaluated other weights"


def test_a_card_of_another_encoding_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "run")
    (folder / "README.md").write_bytes(b"caf\xe9")
    with refused(DataError, "README.md", code="data.unreadable"):
        push(folder, "owner/name", card_only=True)


def test_a_manifest_whose_model_is_no_table_has_a_card(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "run")
    path = tmp_path / "run" / MANIFEST
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "config": {**manifest["config"], "model": "m"}}))
    assert "# name" in card_of(folder, "owner/name")


@pytest.mark.parametrize("hub", [Hub("me/adder")], indirect=True)
def test_a_private_update_of_a_public_repository_uploads_nothing(tmp_path: Path, hub: Hub) -> None:
    with refused(DataError, "public", code="data.exists"):
        publish(checkpoint(tmp_path / "run"), "me/adder", "card", private=True, update=True)
    assert hub.repos["me/adder"] == {"old.txt": b"old"}


def test_the_card_has_no_folder_of_a_members_file(tmp_path: Path) -> None:
    members = {"loss": {"use": "/private/losses.py:mine"}, "sample": {"use": "private/samplers.py:mine"}}
    card = card_of(checkpoint(tmp_path / "run", **members), "me/adder")
    assert "losses.py:mine" in card
    assert "private" not in card
