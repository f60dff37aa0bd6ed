"""Tokens of a tokenizer of bytes, like byte-level BPE, and of one that adds a space before a word."""

from __future__ import annotations

import numpy as np
import pytest

from winnow.commands.report.rollouts import TokenPieces

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
