from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from winnow.records import Prompt
from winnow.verify import codec
from winnow.verify.codec import EncodedPrompts, encode_prompt


def prompt(name: str, size: int = 100) -> Prompt:
    return Prompt(id=name, tokens=np.zeros(0, np.int64), text="", answer="a" * size, task="", meta={})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts that were encoded."""
    names: list[str] = []

    def noted(one: Prompt) -> bytes:
        names.append(one.id)
        return encode_prompt(one)

    monkeypatch.setattr(codec, "encode_prompt", noted)
    return names


def test_a_prompt_is_encoded_once_for_its_rollouts(made: list[str]) -> None:
    encoded, one = EncodedPrompts(10_000), prompt("a")
    assert encoded(one) == encoded(one) == encode_prompt(one)
    assert made == ["a"]
    encoded(prompt("a"))  # another with its name
    assert made == ["a", "a"]


def test_the_last_used_prompts_are_cached(made: list[str]) -> None:
    a, b, c = (prompt(name, 1_000) for name in "abc")
    encoded = EncodedPrompts(2 * len(encode_prompt(a)))
    for one in (a, b, a, c, a, b):
        encoded(one)
    assert made == ["a", "b", "c", "b"]


def test_bytes_bound_the_cache_but_the_last_prompt_is_always_in_it(made: list[str]) -> None:
    encoded = EncodedPrompts(1_000)
    small, large = prompt("small"), prompt("large", 5_000)
    for one in (small, large, large, small, large):
        encoded(one)
    assert made == ["small", "large", "small", "large"]


def test_a_prompt_that_left_is_not_kept_alive() -> None:
    class Answer(str):
        """A text that can be referred to weakly."""

    encoded = EncodedPrompts(0)
    answer = Answer("42")
    encoded(Prompt(id="a", tokens=np.zeros(0, np.int64), text="", answer=answer, task="", meta={}))
    left = weakref.ref(answer)
    del answer
    encoded(prompt("b"))
    if left() is not None:  # a collection looks through all that other tests have left
        gc.collect()
    assert left() is None
