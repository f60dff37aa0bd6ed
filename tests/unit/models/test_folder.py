from __future__ import annotations

import stat
from pathlib import Path

import pytest

from published_models import NAMES, make
from refusals import refused
from winnow.errors import DataError
from winnow.models.folder import PUBLISHED, published_files, settings_folder, write_published_files
from winnow.models.load import load
from winnow.state.saved_runs import check_is_model

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def test_all_but_weights_settings_and_what_is_not_a_model_s(folder: Path) -> None:
    kept = ["tokenizer.json", "chat_template.jinja", "additional_chat_templates/tool_use.jinja", "merges.txt"]
    left = ["config.json", "model.safetensors", "trainer.json", "manifest.json", "README.md", "tokenizer.py"]
    (folder / "additional_chat_templates").mkdir()
    for name in [*kept, *left]:
        (folder / name).write_bytes(name.encode() + b"\r\n\xff")
    (folder / "vocab.json").mkdir()
    found = published_files(folder)
    assert found == {name: name.encode() + b"\r\n\xff" for name in kept}


def test_links_as_in_the_hub_s_cache_become_files_that_can_be_written(tmp_path: Path) -> None:
    folder, blobs = tmp_path / "cache" / "snapshots" / "0f3a", tmp_path / "cache" / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "blob").write_text("{}")
    (blobs / "blob").chmod(0o444)
    (folder / "tokenizer.json").symlink_to(blobs / "blob")
    (folder / "vocab.json").symlink_to(blobs / "gone")
    made = tmp_path / "made"
    made.mkdir()
    (made / "tokenizer.json").write_text("what a library wrote, and more of it")
    write_published_files(published_files(folder), made)
    assert [file.name for file in made.iterdir()] == ["tokenizer.json"]
    assert not (made / "tokenizer.json").is_symlink()
    assert (made / "tokenizer.json").read_text() == "{}"
    assert (made / "tokenizer.json").stat().st_mode & stat.S_IWUSR


def test_one_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "vocab.json").write_text("{}")

    def fail(path: Path) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", fail)
    with refused(DataError, folder / "vocab.json", "Input/output", key="model.path", code="data.unreadable"):
        published_files(folder)


def test_links_to_other_places_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text("secret")
    (folder / "vocab.txt").symlink_to(tmp_path / "id_rsa")
    with refused(DataError, folder / "vocab.txt", tmp_path / "id_rsa", key="model.path", code="data.unreadable"):
        published_files(folder)


def test_a_file_larger_than_any_tokenizer_is_refused(folder: Path) -> None:
    with (folder / "merges.txt").open("wb") as file:
        file.truncate(2**28 + 1)
    with refused(DataError, folder / "merges.txt", 268435457, key="model.path", code="data.unreadable"):
        published_files(folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_model_brings_its_own(name: str, folder: Path) -> None:
    make(name, folder)
    found = load(str(folder)).files
    assert found == {file.name: file.read_bytes() for file in folder.iterdir() if file.name not in MODEL}


MODEL = ("config.json", "model.safetensors")


def test_six_arrangements_differ_in_what_matters(tmp_path: Path) -> None:
    loaded = {}
    for name in NAMES:
        (tmp_path / name).mkdir()
        loaded[name] = load(str(make(name, tmp_path / name)))
    assert len(loaded) == 6
    several = {name for name, one in loaded.items() if len(one.stop_tokens) > 1}
    wider = {name for name, one in loaded.items() if one.model.config.vocab_size > len(one.tokenizer)}
    untied = {name for name, one in loaded.items() if not one.model.config.tie_word_embeddings}
    no_template = {name for name, one in loaded.items() if not one.tokenizer.chat_template}
    assert several == {"qwen2.5-instruct", "qwen3", "llama-3.2-instruct"}
    assert wider == {"qwen2.5", "qwen2.5-instruct", "qwen2.5-math", "qwen3"}
    assert untied == {"qwen2.5-math"}
    assert no_template == {"llama-3.2"}


def test_the_published_model_is_in_the_folder_that_a_variable_names(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("WINNOW_PUBLISHED", str(tmp_path / "model"))
    named = REPOSITORY / "scripts" / "published-model", tmp_path / "model"  # from any folder the commands work
    with refused(DataError, *named, key="model.path", code="data.missing"):
        settings_folder(PUBLISHED)
    with refused(DataError, "scripts/published-model", code="data.missing"):
        check_is_model(PUBLISHED)
    (tmp_path / "model").mkdir()
    assert settings_folder(PUBLISHED) == tmp_path / "model"
    monkeypatch.delenv("WINNOW_PUBLISHED")
    monkeypatch.setenv("HOME", str(tmp_path))
    with refused(DataError, str(tmp_path / ".cache" / "winnow" / "published"), code="data.missing"):
        settings_folder(PUBLISHED)
