"""Which files of a configuration have a digest, by which key, and which edits a digest tells apart."""

from __future__ import annotations

import random

import pytest

from winnow.config_file import validate
from winnow.state.resume import BLOCK, BLOCKS, WHOLE, digest, digests


def test_every_file_that_a_configuration_names_has_a_digest_under_its_key(tmp_path):
    for name in ("a.py", "b.py", "template.txt", "train.jsonl", "test.jsonl"):
        (tmp_path / name).write_text(name)
    (tmp_path / "data").mkdir()
    for name in ("one.jsonl", "two.jsonl", "three.parquet", "README.md"):
        (tmp_path / "data" / name).write_text(name)
    config = validate(
        {
            "task": {"use": "jsonl", "train": str(tmp_path / "train.jsonl"), "path": str(tmp_path / "data")},
            "reward": {"parts": ({"use": "a.py:f"}, {"use": "b.py:f"}, {"use": "length"})},
            "select": ("all", "a.py:chosen"),
            "prompt": {"template": "template.txt"},
        }
    )
    found = digests(config, tmp_path)
    assert {key: sorted(files) for key, files in found.items() if key != "model.path"} == {
        "task.train": [str(tmp_path / "train.jsonl")],
        "task.path": ["one.jsonl", "three.parquet", "two.jsonl"],
        "reward.parts": ["a.py", "b.py"],
        "select": ["a.py"],
        "prompt.template": ["template.txt"],
    }
    assert found["reward.parts"]["a.py"] == found["select"]["a.py"] != found["reward.parts"]["b.py"]
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(found["model.path"])  # the bundled one's


@pytest.mark.parametrize("value", ["no/such", "owner/name", "a" * 5000, "\0", "../../etc/passwd/x"])
def test_a_text_that_is_not_a_file_has_no_digest(value, tmp_path):
    found = digests(validate({"model": {"path": value}, "task": {"use": "jsonl", "path": value}}), tmp_path)
    assert found == {}


def test_one_byte_of_a_small_file_counts(tmp_path):
    file = tmp_path / "f"
    file.write_bytes(b"\0" * 10_000)
    before = digest(file)
    file.write_bytes(b"\0" * 9_999 + b"\1")
    assert digest(file) != before


def test_the_digest_of_a_large_file_is_of_length_ends_and_blocks(tmp_path):
    """A sparse file: 1,024 blocks of 4 KiB, the first at the beginning, the last at the end."""
    size = WHOLE + 10 * BLOCKS * BLOCK
    files = {}

    def sparse(name, *, length=size, at=None):
        with (tmp_path / name).open("wb") as file:
            file.truncate(length)
            if at is not None:
                file.seek(at)
                file.write(b"\1")
        files[name] = digest(tmp_path / name)

    sparse("zeros")
    sparse("longer", length=size + 1)
    sparse("first", at=0)
    sparse("last", at=size - 1)
    sparse("within", at=(size - BLOCK) * 512 // (BLOCKS - 1) + 17)
    sparse("between", at=BLOCK + 1)
    assert files["between"] == files["zeros"], "what the module says is not told apart"
    assert len({files[name] for name in ("zeros", "longer", "first", "last", "within")}) == 5


def test_other_weights_of_a_large_file_have_another_digest(tmp_path):
    """A change of one part in a hundred of the bytes, wherever it lies, covers a block."""
    size = 2 * WHOLE
    rng = random.Random(0)
    before = None
    for _ in range(3):
        with (tmp_path / "f").open("wb") as file:
            file.truncate(size)
            if before is not None:
                file.seek(rng.randrange(size - size // 100))
                file.write(b"\1" * (size // 100))
        found = digest(tmp_path / "f")
        assert found != before
        before = before or found


def test_the_name_of_a_task_is_no_folder(tmp_path, monkeypatch):
    (tmp_path / "math500").mkdir()
    (tmp_path / "math500" / "math500.jsonl").write_text("{}")
    monkeypatch.chdir(tmp_path)
    found = digests(validate({"task": "math500", "evaluate": {"tasks": ["math500"]}}), tmp_path)
    assert not {"evaluate.tasks", "task.use"} & found.keys()


def test_a_model_of_the_hub_is_its_revision_whatever_the_cache_has(tmp_path, monkeypatch):
    folder = tmp_path / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.setattr("winnow.state.resume.is_hub_id", lambda path: True)
    monkeypatch.setattr("winnow.state.resume.cached_folder", lambda path: folder)
    config = validate({"model": {"path": "owner/name"}})
    before = digests(config, tmp_path)
    assert list(before["model.path"]) == ["abc/config.json"]
    (folder / "model.safetensors").write_bytes(b"downloaded later")
    assert digests(config, tmp_path) == before
