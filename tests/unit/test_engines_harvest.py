"""Waves, stop rules and scripts: everything about engines that needs no model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from winnow.engines.base import EngineContext
from winnow.engines.harvest import slots, waves
from winnow.engines.scripted import Script, scripted
from winnow.engines.stopping import StopRule
from winnow.errors import ConfigError, EngineError
from winnow.records import Prompt, Rollout, Sampling


def words(*vocabulary: str) -> PreTrainedTokenizerFast:
    """Every token is itself; token 0 is <eos>."""
    ids = {word: i for i, word in enumerate(("<eos>", *vocabulary))}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def prompt(name: str, length: int = 1) -> Prompt:
    return Prompt(id=name, tokens=np.ones(length, dtype=np.int64), text="", answer=None, task="")


def test_waves_are_few_equally_full_and_sorted_by_prompt_length() -> None:
    wanted = slots([prompt("long", 9), prompt("short", 2), prompt("none", 5)], [4, 3, 0])
    cut = [[(slot.prompt.id, slot.index) for slot in wave] for wave in waves(wanted, 5)]
    assert cut == [
        [("short", 0), ("short", 1), ("short", 2)],
        [("long", 0), ("long", 1), ("long", 2), ("long", 3)],
    ]
    assert [len(wave) for wave in waves(wanted, 3)] == [2, 2, 3]
    assert waves([], 5) == []


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(EngineError, match="'empty' has no tokens"):
        slots([prompt("empty", 0)], [1])


def test_only_tokens_that_can_complete_a_stop_are_watched() -> None:
    tokenizer = words("a", "b>", ">b", "c")
    assert StopRule(tokenizer, (0,), 7, ()).watch.tolist() == [True] + [False] * 6
    assert StopRule(tokenizer, (0,), 7, ("ab>", "c")).watch.tolist() == [True, False, True, False, True, False, False]


def test_a_stop_string_may_span_tokens() -> None:
    rule = StopRule(words("a", "b>", ">b", "c"), (0,), 5, ("ab>",))
    assert rule.ends(np.array([4, 1, 2]))
    assert not rule.ends(np.array([4, 2]))
    assert not rule.ends(np.array([1, 2, 4]))
    assert rule.ends(np.array([4, 0]))
    assert not rule.ends(np.array([], dtype=np.int64))


def test_a_character_spelled_in_bytes_can_be_a_stop() -> None:
    rule = StopRule(words("a", "<0xE2>", "<0x82>", "<0xAC>"), (0,), 5, ("a€",))
    assert rule.watch[4]
    assert [rule.ends(np.array([1, 2, 3, 4][:n])) for n in (1, 2, 3, 4)] == [False, False, False, True]


def write(script: Script | str | list[str], sampling: Sampling, n: int = 1) -> list[Rollout]:
    context = EngineContext(model=None, tokenizer=words(*"abcde "), stop_tokens=(0,), max_rollouts_at_once=1)
    return list(scripted(context, script=script).generate([prompt("p")], [n], sampling, seed=(0,))[0].rollouts)


def test_a_scripted_rollout_is_the_text_and_a_stop_token() -> None:
    (rollout,) = write(lambda p, i: "abc", Sampling(max_new_tokens=9))
    assert rollout.tokens.tolist() == [1, 2, 3, 0]
    assert rollout.logprobs.tolist() == [0, 0, 0, 0]
    assert (rollout.text, rollout.finish) == ("abc", "stop")


@pytest.mark.parametrize(
    ("limit", "stop", "text", "finish", "length"),
    [
        (3, (), "abc", "length", 3),
        (4, (), "abc", "stop", 4),
        (9, ("b",), "ab", "stop", 2),
        (2, ("b",), "ab", "stop", 2),
        (9, ("bc",), "abc", "stop", 3),
        (1, ("b",), "a", "length", 1),
    ],
)
def test_a_scripted_rollout_ends_where_a_model_s_would(
    limit: int, stop: tuple[str, ...], text: str, finish: str, length: int
) -> None:
    (rollout,) = write(lambda p, i: "abc", Sampling(max_new_tokens=limit, stop=stop))
    assert (rollout.text, rollout.finish, len(rollout.tokens)) == (text, finish, length)


def test_a_script_is_a_function_a_file_or_a_list(tmp_path: Path) -> None:
    file = tmp_path / "story.py"
    file.write_text("def tell(prompt, index):\n    return 'de' * index\n")
    sampling = Sampling(max_new_tokens=9)
    assert [r.text for r in write(lambda p, i: p.id.replace("p", "a") * i, sampling, 3)] == ["", "a", "aa"]
    assert [r.text for r in write(f"{file}:tell", sampling, 3)] == ["", "de", "dede"]
    assert [r.text for r in write(["a", "b"], sampling, 3)] == ["a", "b", "a"]
    with pytest.raises(ConfigError, match="empty list"):
        write([], sampling)
