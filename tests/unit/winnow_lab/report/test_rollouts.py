"""The rollouts of the page: their columns, and the text of each token."""

from __future__ import annotations

import json

import numpy as np
import pytest
import report_pages as pages

from winnow_lab.report.html import encoded
from winnow_lab.report.rollouts import TokenPieces, packed, rollout_data

LIMIT, DEMO = 20_000_000, 61_440  # bytes of --limit, and rollouts of the recipe arithmetic


def test_columns_by_hand():
    rollouts = [
        {"kind": "a", "kept": kept, "index": i, "pieces": pieces, "logprobs": logprobs, "parts": {"x": 1.0}}
        for i, (kept, pieces, logprobs) in enumerate(
            [(True, ["1", "2", "1"], [-0.5, None, -0.00004]), (1, None, None), (True, [], []), (1, ["2"], [-2.25])]
        )
    ]
    assert packed(rollouts) == {
        "kind": {"of": ["a"], "at": 0},
        "kept": {"of": [True, 1], "at": [0, 1, 0, 1]},  # equal in Python, and different in JSON
        "index": [0, 1, 2, 3],
        "pieces": {"of": ["1", "2"], "at": [[0, 1, 0], None, [], [1]]},
        "logprobs": [[-5000, None, 0], None, [], [-22500]],
        "parts": {"of": [{"x": 1.0}], "at": 0},
    }


def test_the_browser_unpacks_every_rollout(shown):
    odd = [
        pages.rollout(0, "a b a", values=[0.1, None, 0.3], logprobs=[-0.5, None, -7.125]),
        pages.rollout(1, "", pieces=None, logprobs=None, text="as a \ud800 whole", kind="wrong"),
        pages.rollout(2, "", text=None, parts={"__proto__": 1.0}, extracted=None),
        pages.rollout(3, "b a", text=None, reward=-1.5, parts={}),
    ]
    groups = [odd, odd[:1], odd[1:2], [odd[1]] * 3]
    made = [pages.group(step, "q", of) for step, of in enumerate(groups)]
    opened = shown(pages.data(pages.run(made=made)), "#configuration")
    whole = "({ rollout: r }) => ({ ...r, pieces: r.pieces, logprobs: r.logprobs })"
    read = opened.page.evaluate(f"JSON.stringify(winnow.model.items.map({whole}))")
    assert json.loads(read) == json.loads(json.dumps([rollout for of in groups for rollout in of]))


def test_a_demo_run_fits_in_a_file():
    """Groups like those of the recipe arithmetic: 16 rollouts of 27 tokens at most, few of which are equal."""
    random = np.random.default_rng(0)
    rows = []
    for i in range(16):
        tokens = [str(digit) for digit in random.integers(0, 10, 27)]
        right = bool(random.integers(2))
        rows.append({
            "index": i, "length": 27, "finish": "stop", "kind": "correct" if right else "wrong", "reward": float(right),
            "parts": {"answer": float(right), "format": 1.0}, "extracted": str(random.integers(1000)), "cause": None,
            "detail": "", "seconds": random.random() / 1000, "advantage": random.normal(), "advantages": None,
            "values": None, "weight": random.random() / 1000, "keep": right, "reason": "trained" if right else "left",
            "text": "".join(tokens), "tokens": np.arange(27), "logprobs": -random.exponential(0.2, 27),
            "trainable": None, "turns": None,
        })  # fmt: skip
    group = packed([rollout_data(row, lambda tokens, text: list(text), longest=20_000) for row in rows])
    assert len(encoded(group)) / 16 < LIMIT / DEMO


END = 256  # special


class Bytes:
    """A token is a byte; tokens from 257 on are words."""

    words = (b"</answer", b'">\n', "两".encode()[:2])

    def __len__(self):
        return 257 + len(self.words)

    def decode(self, tokens, skip_special_tokens):
        assert skip_special_tokens
        parts = (bytes([t]) if t < END else b"" if t == END else self.words[t - 257] for t in tokens)
        return b"".join(parts).decode("utf-8", "replace")


class Words:
    """A space is between words, and none before the first, as with SentencePiece."""

    words = ("The", "answer", "is")

    def __len__(self):
        return len(self.words)

    def decode(self, tokens, skip_special_tokens):
        return " ".join(self.words[t] for t in tokens)


def pieces(text, tokens=None, tokenizer=None):
    return TokenPieces(tokenizer or Bytes())(np.array(list(text.encode()) if tokens is None else tokens, int), text)


@pytest.mark.parametrize("text", ["", "abc", "a両é🙂b", "🙂🙂", "\x00\n</script>"])
def test_pieces_join_to_the_text_and_there_is_one_per_token(text):
    made = pieces(text)
    assert made is not None
    assert "".join(made) == text
    assert len(made) == len(text.encode())


def test_the_token_that_completes_a_character_has_it():
    assert pieces("aé") == ["a", "", "é"]
    assert pieces("两", [259, *"两".encode()[2:]]) == ["", "两"]


def test_incomplete_and_invalid_characters_are_replacement_characters():
    assert pieces("a\ufffd", [97, 0xF0, 0x9F]) == ["a", "", "\ufffd"]
    assert pieces("\ufffdab", [0xFF, 97, 98]) == ["", "\ufffda", "b"]


def test_special_tokens_and_tokens_after_a_stop_string_have_no_text():
    assert pieces("ab", [97, 98, END]) == ["a", "b", ""]
    assert pieces('x</answer">', [120, 257, 258]) == ["x", "</answer", '">']
    assert pieces("ab", [97, 98, 120, 120]) == ["a", "b", "", ""]


def test_a_space_before_a_word_belongs_to_it():
    assert pieces("The answer is", [0, 1, 2], Words()) == ["The", " answer", " is"]


def test_tokens_that_do_not_decode_to_the_text_have_no_pieces():
    assert pieces("ab", [97, 99]) is None
    assert pieces("ab", [97]) is None
    assert pieces("ab", [97, 9999]) is None
    assert pieces("ab", [97, -1]) is None
