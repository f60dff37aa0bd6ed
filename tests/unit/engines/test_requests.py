"""Waves, stop rules and scripts: everything about engines that needs no model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from winnow.engines.base import EngineContext
from winnow.engines.requests import pending_rollouts, waves
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
    wanted = pending_rollouts([prompt("long", 9), prompt("short", 2), prompt("none", 5)], [4, 3, 0])
    cut = [[(pending.prompt.id, pending.index) for pending in wave] for wave in waves(wanted, 5)]
    assert cut == [
        [("short", 0), ("short", 1), ("short", 2)],
        [("long", 0), ("long", 1), ("long", 2), ("long", 3)],
    ]
    assert [len(wave) for wave in waves(wanted, 3)] == [2, 2, 3]
    assert waves([], 5) == []


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(EngineError, match="'empty' has no tokens"):
        pending_rollouts([prompt("empty", 0)], [1])


def test_only_tokens_that_can_complete_a_stop_are_watched() -> None:
    tokenizer = words("a", "b>", ">b", "c")
    assert StopRule(tokenizer, (0,), 7, ()).watch.tolist() == [True] + [False] * 6
    assert StopRule(tokenizer, (0,), 7, ("ab>", "c")).watch.tolist() == [True, False, True, True, True, False, False]


def test_a_stop_string_may_span_tokens() -> None:
    rule = StopRule(words("a", "b>", ">b", "c"), (0,), 5, ("ab>",))
    assert rule.ends(np.array([4, 1, 2]))
    assert not rule.ends(np.array([4, 2]))
    assert not rule.ends(np.array([1, 2, 4]))
    assert rule.ends(np.array([4, 0]))
    assert rule.read(np.array([4, 1, 2])) == ("cab>", True)
    assert rule.read(np.array([4, 2])) == ("cb>", False)
    assert not rule.ends(np.array([], dtype=np.int64))


def test_a_character_spelled_in_bytes_can_be_a_stop() -> None:
    rule = StopRule(words("a", "<0xE2>", "<0x82>", "<0xAC>"), (0,), 5, ("a€",))
    assert rule.watch[4]
    assert [rule.ends(np.array([1, 2, 3, 4][:n])) for n in (1, 2, 3, 4)] == [False, False, False, True]


def spelled(pieces: list[str], decoder: decoders.Decoder, **settings: bool) -> PreTrainedTokenizerFast:
    """Tokens that spell `pieces` under a decoder; the first two are the special <eos> and <|end|>."""
    ids = {piece: i for i, piece in enumerate(("<eos>", "<|end|>", *pieces))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<eos>"))
    tokenizer.decoder = decoder
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", additional_special_tokens=["<|end|>"], **settings
    )


LETTERS = ["a", "b", "<", "/", ">", "</a", "a>b", "b><", "/a></"]
FALLBACK = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
TOKENIZERS = {
    # the bytes of é are C3 A9, which byte-level pieces write as Ã and ©; Ċ is a line break, Ġ a space
    "bytes": spelled([*LETTERS, ">Ċ", ">ĊĊ", "Ġ", "Ġb", "Ã", "©", "©Ċ", "a>Ã"], decoders.ByteLevel()),
    "byte fallback": spelled([*LETTERS, ">\n", "▁", "▁b", "<0xC3>", "<0xA9>", "<0x0A>", "<0x3E>", "▁a>"], FALLBACK),
    "tidied": spelled([*LETTERS, " ", "."], decoders.Fuse(), clean_up_tokenization_spaces=True),
}


@pytest.mark.parametrize("stop", [("</a>",), ("é", "bb"), (" b", ">\n"), (" .", "\n\n"), ("a>b</a", "<|end|>", " ")])
@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=list(TOKENIZERS))
def test_a_rollout_ends_with_the_first_token_by_which_its_whole_text_holds_a_stop_string(
    tokenizer: PreTrainedTokenizerFast, stop: tuple[str, ...]
) -> None:
    """The end of the text, decoded alone, must tell as much as the whole text decoded after every token."""
    rule = StopRule(tokenizer, (0,), len(tokenizer), stop)
    stop_tokens = {0, 1} if "<|end|>" in stop else {0}
    rng, found = np.random.default_rng(0), 0
    for _ in range(200):
        tokens = rng.integers(rng.integers(3), len(tokenizer), size=24)
        texts = [
            tokenizer.decode(tokens[:n], skip_special_tokens=True, clean_up_tokenization_spaces=False)
            for n in range(len(tokens) + 1)
        ]
        ends = (n for n in range(1, 25) if tokens[n - 1] in stop_tokens or any(s in texts[n] for s in stop))
        over = next(ends, 24)
        assert next((n for n in range(1, 25) if rule.ends(tokens[:n])), 24) == over
        text, stopped = rule.read(tokens[:over])
        assert stopped == (tokens[over - 1] in stop_tokens or text.endswith(stop))
        whole = texts[over]
        cuts = (whole[:n] for n in range(1, len(whole) + 1) if whole[:n].endswith(stop))
        assert text == next(cuts, whole)
        found += text.endswith(stop)
    assert found > 9


def test_characters_spelled_in_bytes_are_found_among_others_like_them() -> None:
    """A decoder with byte fallback reads a run of bytes as a whole: where one is wrong, all are."""
    tokenizer = spelled(["a", "<0xE2>", "<0x82>", "<0xAC>", "<0xC3>", "<0xBC>", "<0x41>", "<0xFF>"], FALLBACK)
    rule = StopRule(tokenizer, (0,), len(tokenizer), ("€",))
    a, (u, euro) = 2, ([6, 7], [3, 4, 5])  # "ü" and "€"
    letter, wrong = 8, 9

    def ends(tokens: list[int]) -> list[int]:
        return [n for n in range(len(tokens) + 1) if rule.ends(np.array(tokens[:n], dtype=np.int64))]

    assert ends([*8 * u, *euro]) == [19]
    assert ends([wrong, a, *8 * u, *euro]) == [21]
    assert ends([wrong, *8 * u, *euro]) == []
    assert rule.read(np.array([wrong, *u, *euro])) == ("\ufffd" * 6, False)
    assert ends([*8 * u, letter, *euro]) == [20]
    assert ends([wrong, *8 * u, letter, *euro]) == []  # the last eight of these bytes, alone, are "üüA€"


def test_a_stop_string_may_end_inside_a_token() -> None:
    tokenizer = TOKENIZERS["bytes"]
    rule = StopRule(tokenizer, (0,), len(tokenizer), ("</a>",))
    tokens = np.array(tokenizer.convert_tokens_to_ids(["b", "</a", ">ĊĊ"]))
    assert [rule.ends(tokens[:n]) for n in range(4)] == [False, False, False, True]
    assert rule.read(tokens) == ("b</a>", True)


def test_the_stop_string_that_is_complete_first_ends_the_text() -> None:
    tokenizer = TOKENIZERS["bytes"]
    tokens = np.array(tokenizer.convert_tokens_to_ids(["<", "/a></"]))
    for stop in (("</a></", "/a>"), ("/a>", "</a></")):
        assert StopRule(tokenizer, (0,), len(tokenizer), stop).read(tokens) == ("</a>", True)


def test_only_the_end_of_a_long_text_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = TOKENIZERS["bytes"]
    rule = StopRule(tokenizer, (0,), len(tokenizer), ("</a>",))
    decoded: list[int] = []
    decode = tokenizer.decode
    monkeypatch.setattr(
        tokenizer, "decode", lambda tokens, **more: decoded.append(len(tokens)) or decode(tokens, **more)
    )
    more = tokenizer.convert_tokens_to_ids(">")
    assert not rule.ends(np.full(4000, more))
    assert max(decoded) < 20


def test_a_stop_string_that_is_a_special_token_is_a_stop_token() -> None:
    tokenizer = TOKENIZERS["bytes"]
    rule = StopRule(tokenizer, (0,), len(tokenizer), ("<|end|>", "</a>"))
    assert (rule.tokens, rule.strings) == ((0, 1), ("</a>",))
    assert rule.ends(np.array([3, 1]))
    assert rule.read(np.array([3, 1])) == ("b", True)
    assert not StopRule(tokenizer, (0,), len(tokenizer), ("</a>",)).ends(np.array([3, 1]))


@pytest.mark.parametrize("stop", ["<|end|>\n", "</a><eos>"])
def test_a_stop_string_that_holds_a_special_token_is_refused(stop: str) -> None:
    """Texts leave special tokens out, so it would never be found."""
    with pytest.raises(ConfigError, match=r"holds the special token '<.*>'.* alone"):
        StopRule(TOKENIZERS["bytes"], (0,), 9, (stop,))


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
