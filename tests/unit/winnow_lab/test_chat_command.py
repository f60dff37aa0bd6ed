"""`winnow chat`, on the bundled policy and on models with a small context."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig
from typer.testing import CliRunner

from chat_templates import render_here
from published_models import make
from refusals import refused
from winnow.commands import app
from winnow.config import dump
from winnow.config_file import validate
from winnow.errors import ConfigError, DataError
from winnow.models.load import Loaded, load
from winnow.state.manifest import FORMAT, MANIFEST
from winnow_lab.chat import CHAT, Conversation, chat, lines, prompt_of, stops_of


@pytest.fixture(autouse=True)
def _rendered_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each turn takes two forks of this process."""
    render_here(monkeypatch)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """A model with random weights and the chat template of Qwen2.5."""
    return load(str(make("qwen2.5-instruct", tmp_path_factory.mktemp("qwen"))))


def conversation(loaded: Loaded, prompt: Any = CHAT, **changes: Any) -> Conversation:
    return Conversation(loaded, prompt, None, **{"stop": (), "max_new_tokens": 4, "temperature": 1.0, **changes})


def said(loaded: Loaded, *texts: str, **changes: Any) -> tuple[list[str], list[str]]:
    """The replies, and the parts in which they were written."""
    talk, parts = conversation(loaded, **changes), list[str]()
    torch.manual_seed(3)
    return [talk.reply(text, parts.append) for text in texts], parts


def test_a_reply_ends_at_the_stop_strings_of_the_run(qwen: Loaded) -> None:
    (whole,), _ = said(qwen, "one", max_new_tokens=24)
    stop = next(letter for letter in whole[len(whole) // 2 :] if letter.isascii() and letter.isalpha())
    (cut,), parts = said(qwen, "one", max_new_tokens=24, stop=(stop,))
    assert stop in cut
    assert len(cut) < len(whole)
    assert whole.startswith(cut)
    assert "".join(parts) == f"{cut}\n"


def test_the_stop_strings_of_a_checkpoint_are_those_of_its_run(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "step-000001"
    checkpoint.mkdir(parents=True)
    for table, expected in ({"stop": ["</answer>", "", 3]}, ("</answer>",)), ({}, ()), (None, ()):
        (tmp_path / "manifest.json").write_text(json.dumps({"winnow_run": 1, "config": {"rollout": table}}))
        assert stops_of(str(checkpoint)) == expected
    assert stops_of("bundled") == ()


def test_replies_follow_from_the_seed_and_are_written_part_by_part(qwen: Loaded) -> None:
    replies, parts = said(qwen, "one", "two")
    assert (replies, parts) == said(qwen, "one", "two")
    assert "".join(parts) == "".join(f"{reply}\n" for reply in replies)
    assert len(parts) > len(replies)


def test_the_prompt_has_the_system_message_and_the_turns_before(qwen: Loaded) -> None:
    talk = conversation(qwen, {**CHAT, "system": "Be brief."})
    first = talk.reply("one", str)
    text = qwen.tokenizer.decode(talk._rendered("two"))
    places = [text.find(part) for part in ("Be brief.", "user\none", f"assistant\n{first}", "user\ntwo")]
    assert -1 not in places
    assert places == sorted(places)


def test_the_oldest_exchange_is_left_out_if_the_context_is_full(qwen: Loaded) -> None:
    talk = conversation(qwen)
    size = len(talk._rendered("one"))
    settings = qwen.model.config
    before, settings.max_position_embeddings = settings.max_position_embeddings, size + 12
    try:
        for text in ("one", "two", "three"):
            talk.reply(text, str)
        assert [turn.content for turn in talk.turns if turn.role == "user"][-1] == "three"
        assert len(talk.turns) < 6
        with refused(DataError, "max-new-tokens", code="data.empty"):  # and no key of a configuration
            talk.reply("one " * 2 * size, str)
    finally:
        settings.max_position_embeddings = before


def test_a_template_of_one_question_has_no_history(qwen: Loaded) -> None:
    talk = conversation(qwen, {"template": "question_only"})
    talk.reply("one", str)
    assert qwen.tokenizer.decode(talk._rendered("two")) == "two"


def test_a_checkpoint_gets_the_prompt_of_its_run(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "step-000004"
    checkpoint.mkdir(parents=True)
    config = dump(validate({"prompt": {"template": "chat", "system": "One number."}}))
    manifest = {"winnow_run": FORMAT, "changes": [], "config": config, "base": str(tmp_path), "inputs": {}}
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    prompt, base = prompt_of(str(checkpoint), None)
    assert (prompt["template"], prompt["system"], base) == ("chat", "One number.", tmp_path)
    assert prompt_of(str(checkpoint), "Two.")[0]["system"] == "Two."
    assert prompt_of("bundled", None) == (dict(CHAT), None)


def test_a_prompt_of_a_manifest_that_is_no_table_is_not_used(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "step-000004"
    checkpoint.mkdir(parents=True)
    (tmp_path / MANIFEST).write_text(json.dumps({"winnow_run": FORMAT, "config": {"prompt": "chat"}}))
    assert prompt_of(str(checkpoint), None)[0] == dict(CHAT)


def test_a_message_of_another_encoding_is_refused(qwen: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(DataError, "UTF-8", code="data.malformed"):
        conversation(qwen).reply("caf\udce9", str)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8"))
    with refused(DataError, "UTF-8", code="data.malformed"):
        list(lines(prompted=False))


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_beyond_the_generators_is_refused(seed: int) -> None:
    result = CliRunner().invoke(app, ["chat", "bundled", "-m", "x", "--seed", str(seed)])
    assert result.exit_code == 2
    assert "--seed" in result.output


def test_lines_of_standard_input_are_the_turns(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is 2 + 3?\n\nWhat is 4 + 4?\n"))
    chat("bundled", max_new_tokens=16, temperature=0.0, device="cpu", seed=0)
    piped = capsys.readouterr().out
    chat("bundled", ["What is 2 + 3?", "What is 4 + 4?"], max_new_tokens=16, temperature=0.0, device="cpu", seed=0)
    assert piped == capsys.readouterr().out != ""


def test_no_setting_of_the_models_own_changes_a_reply(qwen: Loaded) -> None:
    tokens = torch.tensor([conversation(qwen)._rendered("one")])
    first = int(qwen.model(tokens).logits[0, -1].argmax())
    qwen.model.generation_config = GenerationConfig(suppress_tokens=[first])
    reply = conversation(qwen, max_new_tokens=1, temperature=0.0).reply("one", lambda part: None)
    assert reply == qwen.tokenizer.decode([first], skip_special_tokens=True)


def test_a_system_message_without_a_place_in_the_runs_template_is_refused_first(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "step-000004"
    checkpoint.mkdir(parents=True)
    config = dump(validate({"prompt": {"template": "r1_zero"}}))
    (tmp_path / MANIFEST).write_text(json.dumps({"winnow_run": FORMAT, "config": config}))
    with refused(ConfigError, "--system", "'r1_zero'", key="prompt.system", code="config.combination"):
        chat(str(checkpoint), ["hi"], system="Two.", device="cpu", seed=0)


def test_a_model_without_a_bounded_context_is_refused_before_its_weights(tmp_path: Path) -> None:
    folder = make("qwen2.5-instruct", tmp_path)
    (folder / "config.json").write_text(json.dumps({"model_type": "bloom"}))
    with refused(DataError, folder, key="model.path", code="data.unfit_model"):
        chat(str(folder), ["hi"], device="cpu", seed=0)


def test_a_model_without_a_chat_template_is_refused_before_its_weights(tmp_path: Path) -> None:
    folder = make("llama-3.2", tmp_path)
    (folder / "model.safetensors").unlink()
    with refused(DataError, str(folder), key="MODEL", code="data.unfit_model"):
        chat(str(folder), ["hi"], device="cpu", seed=0)
