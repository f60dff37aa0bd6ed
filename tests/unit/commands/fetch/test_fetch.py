from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

import winnow.commands.fetch
from refusals import refused
from winnow.commands.fetch import Published, data_set_of, fetch_data, fetch_model
from winnow.errors import DataError
from winnow.tasks.mathematics import gsm8k
from winnow.tasks.rows import Record

TOY = Published(hub_id="owner/toy", subset="main")


def read(hub_id, split, *, subset):
    assert (hub_id, subset) == ("owner/toy", "main")
    return [
        Record({"question": f"{split} {i}: 1 + {i} \u2028?", "answer": f"so #### {1 + i}"}, "here") for i in range(20)
    ]


def download(hub_id, *, local_dir, allow_patterns, revision=None):
    folder = Path(local_dir)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "book").write_text("x")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")


def test_the_data_sets_of_winnows_tasks_are_listed():
    assert data_set_of("gsm8k") == Published(hub_id="openai/gsm8k", subset="main")
    assert data_set_of("math500").splits == ("test",)
    assert data_set_of("arithmetic") is None
    assert data_set_of("jsonl") is None
    assert data_set_of("owner/model") is None


def test_splits_become_files_that_the_task_reads(tmp_path):
    lines = fetch_data(TOY, tmp_path / "toy", read=read)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["toy"]
    assert sorted(path.name for path in (tmp_path / "toy").iterdir()) == ["test.jsonl", "train.jsonl"]
    content = (tmp_path / "toy" / "train.jsonl").read_bytes()
    assert lines[0].split()[:3] == [hashlib.sha256(content).hexdigest(), "train.jsonl", "20"]
    assert json.loads(content.splitlines()[0])["question"] == "train 0: 1 + 0 \u2028?"
    assert len(gsm8k("test", path=str(tmp_path / "toy"))) == 20


def test_a_model_is_copied_with_its_digests_and_nothing_else(tmp_path):
    lines = fetch_model("owner/model", tmp_path / "deep" / "model", download=download)
    digest = hashlib.sha256(b"weights").hexdigest()
    assert lines[1].split()[:3] == [digest, "model.safetensors", "7"]
    assert len(lines) == 2
    assert sorted(path.name for path in (tmp_path / "deep" / "model").iterdir()) == ["config.json", "model.safetensors"]


def test_no_pickles_and_no_code_are_requested(tmp_path):
    requested = {}

    def note(hub_id, *, local_dir, allow_patterns, revision):
        requested["patterns"] = allow_patterns
        download(hub_id, local_dir=local_dir, allow_patterns=allow_patterns)

    fetch_model("owner/model", tmp_path / "model", download=note)
    matching = [
        name
        for name in ("model.safetensors", "tokenizer.json", "pytorch_model.bin", "model.pt", "modeling.py")
        if any(Path(name).match(pattern) for pattern in requested["patterns"])
    ]
    assert matching == ["model.safetensors", "tokenizer.json"]


def test_nothing_is_overwritten(tmp_path):
    with refused(DataError, tmp_path, code="data.exists"):
        fetch_data(TOY, tmp_path, read=read)


@pytest.mark.parametrize("error", [ConnectionError("no route"), KeyError("x"), OSError(28, "full")])
def test_a_failed_download_leaves_nothing(tmp_path, error):
    def broken(hub_id, *, local_dir, allow_patterns, revision):
        (Path(local_dir) / "model.safetensors").write_bytes(b"half")
        raise error

    with refused(DataError, "owner/model", code="data.missing"):
        fetch_model("owner/model", tmp_path / "model", download=broken)
    assert list(tmp_path.iterdir()) == []


def test_a_model_of_pickles_is_refused(tmp_path):
    with refused(DataError, "owner/model", "safetensors", code="data.malformed"):
        fetch_model("owner/model", tmp_path / "model", download=lambda *_, **__: None)
    assert list(tmp_path.iterdir()) == []


def test_an_unreadable_data_set_leaves_nothing(tmp_path):
    def broken(hub_id, split, *, subset):
        raise DataError("no network", code="data.unreadable")

    with refused(DataError, code="data.unreadable"):
        winnow.commands.fetch.fetch_data(TOY, tmp_path / "toy", read=broken)
    assert list(tmp_path.iterdir()) == []
