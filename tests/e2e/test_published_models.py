"""Models as they are published: trained, saved, read by transformers, resumed, and started from again."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import winnow
from chat_templates import render_here
from published_models import NAMES, make
from refusals import refused
from winnow.errors import DataError
from winnow.models.folder import published_files
from winnow.models.load import load
from winnow.records import StepReport
from winnow.state.logbook import read_metrics

QUESTION = "Ann has 4 eggs and buys 3. How many?"
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "all_special_tokens")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of the model of a name, which is made at its first use."""
    return functools.cache(lambda name: make(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    render_here(monkeypatch)


def configuration(smallest: Any, path: Path, **changes: Any) -> dict[str, Any]:
    """Two steps of what a small machine does in a second."""
    asked = {"template": "chat"} if "chat_template" in (path / "tokenizer_config.json").read_text() else {}
    small = {"model": {"path": str(path)}, "prompt": asked or {"template": "question_only"}}
    return smallest(**{"steps": 2, "checkpoint": {"every": 0}, "evaluate": {"problems": 1}, **small, **changes})


def ends(folder: Path) -> Any:
    return GenerationConfig.from_pretrained(folder).eos_token_id


def moved(a: Any, b: Any) -> int:
    """Parameters that differ between two models, of which both have all."""
    first, second = a.state_dict(), b.state_dict()
    assert first.keys() == second.keys()
    return sum(not first[name].equal(second[name]) for name in first)


# Slow: the arrangement of "qwen2.5", with a chat template and settings of sampling as "qwen3" has
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "qwen2.5-instruct" else ()) for name in NAMES]
)
def test_a_published_model_is_trained_saved_reloaded_and_continued(name, published, smallest, tmp_path):
    start = published(name)
    config = configuration(smallest, start)
    saved = winnow.train(**config).model
    rows = [row for row in read_metrics(tmp_path / "run") if "budget/updates" in row]
    assert [row["budget/updates"] for row in rows] == [1, 1]

    # Every file of tokenizer and generation settings, bit by bit, and none beside
    assert published_files(saved) == published_files(start)
    assert {"tokenizer.json", "tokenizer_config.json", "generation_config.json"} <= published_files(saved).keys()

    # As transformers reads it
    before, after = AutoTokenizer.from_pretrained(start), AutoTokenizer.from_pretrained(saved)
    assert type(after) is type(before)
    assert [getattr(after, special) for special in SPECIAL] == [getattr(before, special) for special in SPECIAL]
    assert after.get_vocab() == before.get_vocab()
    assert after.chat_template == before.chat_template
    if before.chat_template:
        messages = [{"role": "user", "content": QUESTION}]
        rendered = [
            t.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) for t in (before, after)
        ]
        assert rendered[0] == rendered[1]
        assert rendered[0].count(QUESTION) == 1
    assert ends(saved) == ends(start) == json.loads((start / "generation_config.json").read_text())["eos_token_id"]

    # The model: all its parameters, of which training moved some, and its settings
    trained, original = AutoModelForCausalLM.from_pretrained(saved), load(str(start)).model
    assert moved(trained, original) > 10
    for key in ("vocab_size", "tie_word_embeddings", "eos_token_id", "bos_token_id", "rope_parameters", "head_dim"):
        assert getattr(trained.config, key, None) == getattr(original.config, key, None), key
    assert trained.config.vocab_size >= len(after)
    tied = trained.get_output_embeddings().weight is trained.get_input_embeddings().weight
    assert tied is trained.config.tie_word_embeddings

    # Resumed, and the start of another run
    further = winnow.train(**config | {"steps": 3}, resume=True).model
    assert published_files(further) == published_files(start)
    assert moved(AutoModelForCausalLM.from_pretrained(further), trained) > 10
    again = configuration(smallest, saved, output=str(tmp_path / "again"), steps=1)
    assert published_files(winnow.train(**again).model) == published_files(start)
    assert load(str(saved)).stop_tokens == load(str(start)).stop_tokens


def test_a_checkpoint_needs_nothing_of_the_folder_of_the_first_model(published, smallest, tmp_path):
    start = shutil.copytree(published("qwen3"), tmp_path / "start")

    def move(event):
        if isinstance(event, StepReport) and start.exists():
            start.rename(tmp_path / "elsewhere")

    saved = winnow.train(**configuration(smallest, start), watch=move).model
    assert not start.exists()
    assert published_files(saved) == published_files(tmp_path / "elsewhere")


def test_a_merged_model_keeps_them_too(published, smallest):
    start = published("llama-3.2-instruct")
    config = configuration(smallest, start) | {"model": {"path": str(start), "lora": {"rank": 2}}}
    saved = winnow.train(**config).model
    assert published_files(saved) == published_files(start)
    further = winnow.train(**config | {"steps": 3}, resume=True).model
    assert published_files(further) == published_files(start)


def test_settings_that_transformers_would_not_write_are_kept(published, smallest, tmp_path):
    """A temperature without sampling is published often, and is one of the things that transformers refuses to save."""
    start = shutil.copytree(published("qwen2.5"), tmp_path / "start")
    settings = json.loads((start / "generation_config.json").read_text()) | {"do_sample": False, "temperature": 0.6}
    (start / "generation_config.json").write_text(json.dumps(settings))
    saved = winnow.train(**configuration(smallest, start, steps=1)).model
    assert json.loads((saved / "generation_config.json").read_text()) == settings


def test_a_base_model_without_a_chat_template_says_which_key_to_set(published, smallest):
    config = configuration(smallest, published("llama-3.2"), prompt={"template": "chat"})
    with refused(DataError, "prompt.template", "r1_zero", "question_only"):
        winnow.train(**config)
