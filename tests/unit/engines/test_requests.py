"""Requests, waves, stop rules and scripts: the parts of engines that need no model."""

from __future__ import annotations

import threading
import time
from array import array
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from refusals import refused
from winnow.engines.base import EngineContext, OnRollout
from winnow.engines.requests import SamplingRequest, pending_rollouts, waves
from winnow.engines.scripted import Script, scripted
from winnow.engines.stopping import StopRule
from winnow.errors import ConfigError, EngineError
from winnow.records import IntArray, Prompt, Rollout, Sampling


def words(*vocabulary: str) -> PreTrainedTokenizerFast:
    """A tokenizer in which every word is a token; token 0 is <eos>."""
    ids = {word: i for i, word in enumerate(("<eos>", *vocabulary))}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def prompt(name: str, length: int = 1) -> Prompt:
    return Prompt(id=name, tokens=np.ones(length, dtype=np.int64), text="", answer=None, task="")


def ends(rule: StopRule, tokens: list[int] | IntArray) -> bool:
    return rule.ends(tokens)


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
    with refused(EngineError, "empty", code="engine.contract"):
        pending_rollouts([prompt("empty", 0)], [1])


def test_only_tokens_that_can_complete_a_stop_are_watched() -> None:
    tokenizer = words("a", "b>", ">b", "c")
    assert StopRule(tokenizer, (0,), 7, ()).watch.tolist() == [True] + [False] * 6
    assert StopRule(tokenizer, (0,), 7, ("ab>", "c")).watch.tolist() == [True, False, True, True, True, False, False]


def test_a_stop_string_may_span_tokens() -> None:
    rule = StopRule(words("a", "b>", ">b", "c"), (0,), 5, ("ab>",))
    assert ends(rule, [4, 1, 2])
    assert not ends(rule, [4, 2])
    assert not ends(rule, [1, 2, 4])
    assert ends(rule, [4, 0])
    assert rule.read(np.array([4, 1, 2])) == ("cab>", True)
    assert rule.read(np.array([4, 2])) == ("cb>", False)
    assert not ends(rule, [])


def test_a_character_spelled_in_bytes_can_be_a_stop() -> None:
    rule = StopRule(words("a", "<0xE2>", "<0x82>", "<0xAC>"), (0,), 5, ("a€",))
    assert rule.watch[4]
    assert [ends(rule, [1, 2, 3, 4][:n]) for n in (1, 2, 3, 4)] == [False, False, False, True]


def spelled(pieces: list[str], decoder: decoders.Decoder, **settings: bool) -> PreTrainedTokenizerFast:
    """A tokenizer of `pieces` with this decoder; its first two tokens are the special <eos> and <|end|>."""
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
def test_a_rollout_ends_at_the_first_token_that_completes_a_stop_string(
    tokenizer: PreTrainedTokenizerFast, stop: tuple[str, ...]
) -> None:
    """Decoding only the end of the text gives the same result as decoding the whole text after every token."""
    rule = StopRule(tokenizer, (0,), len(tokenizer), stop)
    stop_tokens = {0, 1} if "<|end|>" in stop else {0}
    rng, matched = np.random.default_rng(0), 0
    for _ in range(200):
        tokens = rng.integers(rng.integers(3), len(tokenizer), size=24)
        texts = [
            tokenizer.decode(tokens[:n], skip_special_tokens=True, clean_up_tokenization_spaces=False)
            for n in range(len(tokens) + 1)
        ]
        over = next((n for n in range(1, 25) if tokens[n - 1] in stop_tokens or any(s in texts[n] for s in stop)), 24)
        assert next((n for n in range(1, 25) if ends(rule, tokens[:n])), 24) == over
        text, stopped = rule.read(tokens[:over])
        assert stopped == (tokens[over - 1] in stop_tokens or text.endswith(stop))
        whole = texts[over]
        cuts = (whole[:n] for n in range(1, len(whole) + 1) if whole[:n].endswith(stop))
        assert text == next(cuts, whole)
        matched += text.endswith(stop)
    assert matched > 9


def test_a_stop_character_in_byte_tokens_is_found_within_a_run_of_bytes() -> None:
    """A decoder with byte fallback decodes a run of bytes as a whole: one invalid byte makes the whole run invalid."""
    tokenizer = spelled(["a", "<0xE2>", "<0x82>", "<0xAC>", "<0xC3>", "<0xBC>", "<0x41>", "<0xFF>"], FALLBACK)
    rule = StopRule(tokenizer, (0,), len(tokenizer), ("€",))
    a, (u, euro) = 2, ([6, 7], [3, 4, 5])  # "ü" and "€"
    letter, wrong = 8, 9

    def over(tokens: list[int]) -> list[int]:
        return [n for n in range(len(tokens) + 1) if ends(rule, tokens[:n])]

    assert over([*8 * u, *euro]) == [19]
    assert over([wrong, a, *8 * u, *euro]) == [21]
    assert over([wrong, *8 * u, *euro]) == []
    assert over([wrong, 1, *euro]) == over([a, wrong, *9 * [1], *euro]) == []  # special tokens do not end a run
    assert rule.read(np.array([wrong, *u, *euro])) == ("\ufffd" * 6, False)
    assert over([*8 * u, letter, *euro]) == [20]
    assert over([wrong, *8 * u, letter, *euro]) == []  # the last eight bytes alone would decode to "üüA€"


def test_a_stop_string_may_end_inside_a_token() -> None:
    tokenizer = TOKENIZERS["bytes"]
    rule = StopRule(tokenizer, (0,), len(tokenizer), ("</a>",))
    tokens = np.array(tokenizer.convert_tokens_to_ids(["b", "</a", ">ĊĊ"]))
    assert [ends(rule, tokens[:n]) for n in range(4)] == [False, False, False, True]
    assert rule.read(tokens) == ("b</a>", True)


def test_the_stop_string_that_ends_first_ends_the_text() -> None:
    tokenizer = TOKENIZERS["bytes"]
    tokens = np.array(tokenizer.convert_tokens_to_ids(["<", "/a></"]))
    for stop in (("</a></", "/a>"), ("/a>", "</a></")):
        assert StopRule(tokenizer, (0,), len(tokenizer), stop).read(tokens) == ("</a>", True)


@pytest.mark.parametrize(("stop", "token"), [("</a>", ">"), ("</a>", "a>b"), ("é", "Ã"), ("é", "©"), ("\n\n", ">Ċ")])
def test_only_the_end_of_a_long_rollout_is_decoded(stop: str, token: str) -> None:
    """Every token contains the last character of the stop string, or a part of it, and none ends the rollout."""
    tokenizer = TOKENIZERS["bytes"]
    rule = StopRule(tokenizer, (0,), len(tokenizer), (stop,))
    tokens = array("q", 4000 * tokenizer.convert_tokens_to_ids(["<", token]))  # as those of vLLM are kept
    counts: list[int] = []
    decoded = rule._decoded
    rule._decoded = lambda end: counts.append(len(end)) or decoded(end)  # type: ignore[func-returns-value]
    assert rule.watch[tokens[-1]]
    assert not rule.ends(tokens)
    assert max(counts) <= 20


def test_a_stop_string_that_is_a_special_token_is_a_stop_token() -> None:
    tokenizer = TOKENIZERS["bytes"]
    rule = StopRule(tokenizer, (0,), len(tokenizer), ("<|end|>", "</a>"))
    assert (rule.tokens, rule.strings) == ((0, 1), ("</a>",))
    assert ends(rule, [3, 1])
    assert rule.read(np.array([3, 1])) == ("b", True)
    assert not ends(StopRule(tokenizer, (0,), len(tokenizer), ("</a>",)), [3, 1])


@pytest.mark.parametrize(("stop", "special"), [("<|end|>\n", "<|end|>"), ("</a><eos>", "<eos>")])
def test_a_stop_string_that_contains_a_special_token_is_refused(stop: str, special: str) -> None:
    """Texts omit special tokens, so the string would never be found."""
    with refused(ConfigError, repr(stop), repr(special), key="rollout.stop", code="config.value"):
        StopRule(TOKENIZERS["bytes"], (0,), 9, (stop,))


def write(
    script: Script | str | list[str], sampling: Sampling, n: int = 1, stop_tokens: tuple[int, ...] = (0,)
) -> list[Rollout]:
    context = EngineContext(model=None, tokenizer=words(*"abcde "), stop_tokens=stop_tokens, max_rollouts_at_once=1)
    return list(scripted(context, script=script).generate([prompt("p")], [n], sampling, seed=(0,))[0].rollouts)


def test_a_scripted_rollout_of_a_tokenizer_without_a_stop_token_is_its_text() -> None:
    (rollout,) = write(lambda p, i: "abc", Sampling(max_new_tokens=9), stop_tokens=())
    assert (rollout.tokens.tolist(), rollout.text, rollout.finish) == ([1, 2, 3], "abc", "length")


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
    file.write_text("def script(prompt, index):\n    return 'de' * index\n")
    sampling = Sampling(max_new_tokens=9)
    assert [r.text for r in write(lambda p, i: p.id.replace("p", "a") * i, sampling, 3)] == ["", "a", "aa"]
    assert [r.text for r in write(f"{file}:script", sampling, 3)] == ["", "de", "dede"]
    assert [r.text for r in write(["a", "b"], sampling, 3)] == ["a", "b", "a"]
    with refused(ConfigError, key="rollout.engine.script", code="config.value"):
        write([], sampling)


def answer(request: SamplingRequest, texts: list[list[int]]) -> None:
    for pending, tokens in zip(request.rollouts, texts, strict=True):
        request.finish(pending, np.array(tokens), np.zeros(len(tokens)))


def a_request(count: int, on_rollout: OnRollout | None) -> SamplingRequest:
    rule = StopRule(words(*"abc"), (0,), 4, ())
    return SamplingRequest([prompt("p")], [count], rule=rule, version=5, on_rollout=on_rollout)


@pytest.fixture
def all_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text is long enough for the reading thread."""
    monkeypatch.setattr("winnow.engines.requests.SHORT", -1)


def test_short_texts_are_read_at_once_but_never_before_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short text waits while a long one is read."""
    monkeypatch.setattr("winnow.engines.requests.SHORT", 1)
    proceed, seen = threading.Event(), list[tuple[int, bool]]()

    def announce(_: Prompt, rollout: Rollout) -> None:
        if rollout.index == 1:
            assert proceed.wait(20)
        seen.append((rollout.index, threading.current_thread() is threading.main_thread()))

    with a_request(3, announce) as request:
        answer(request, [[1], [1, 1], [1]])
        assert seen == [(0, True)]
        proceed.set()
    assert seen == [(0, True), (1, False), (2, False)]


@pytest.mark.usefixtures("all_long")
def test_one_thread_announces_rollouts_in_the_order_they_finish() -> None:
    announced: list[tuple[int, str, str]] = []

    def on_rollout(_: Prompt, rollout: Rollout) -> None:
        time.sleep(0.002 * (rollout.index % 3))
        announced.append((rollout.index, rollout.text, threading.current_thread().name))

    with a_request(9, on_rollout) as request:
        for n, pending in enumerate(reversed(request.rollouts)):
            request.finish(pending, np.array([1, 2, 3, 0][: n % 5]), np.zeros(n % 5))
    (group,) = request.groups()
    assert [(index, text) for index, text, _ in announced] == [(8 - n, "abc"[: n % 5]) for n in range(9)]
    (thread,) = {name for _, _, name in announced}
    assert thread != threading.current_thread().name
    assert thread not in {alive.name for alive in threading.enumerate()}
    assert [r.index for r in group.rollouts] == list(range(9))
    assert [r.finish for r in group.rollouts] == ["stop" if (8 - n) % 5 == 4 else "length" for n in range(9)]


@pytest.mark.usefixtures("all_long")
def test_an_exception_in_on_rollout_ends_the_request_unchanged() -> None:
    seen: list[int] = []

    class NoReward(Exception):
        pass

    def refuse(_: Prompt, rollout: Rollout) -> None:
        seen.append(rollout.index)
        raise NoReward

    def sample() -> None:
        with a_request(1, refuse) as request:
            for _ in range(60_000):
                answer(request, [[1]])
                time.sleep(0.001)  # a decoding step

    with pytest.raises(NoReward):
        sample()
    assert seen == [0]
    request = a_request(1, refuse)
    answer(request, [[1]])
    with pytest.raises(NoReward):
        request.groups()


@pytest.mark.usefixtures("all_long")
def test_an_exception_in_the_loop_ends_the_announcements_and_the_thread() -> None:
    seen: list[int] = []
    began, end = threading.Event(), threading.Event()

    def wait(_: Prompt, rollout: Rollout) -> None:
        seen.append(rollout.index)
        began.set()
        end.wait(60)

    def sample() -> None:
        with a_request(9, wait) as request:
            answer(request, [[1]] * 9)
            assert began.wait(60)
            threading.Timer(0.05, end.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample()
    assert seen == [0]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("winnow-texts")]
