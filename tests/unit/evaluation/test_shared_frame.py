from __future__ import annotations

import pytest

from winnow.evaluation.comparison import Frame


@pytest.mark.parametrize(
    ("prompts", "questions"),
    [
        (["<user>1 + 1?<end>\nGo", "<user>1 + 2?<end>\nGo"], ["1 + 1?", "1 + 2?"]),
        (["Think.\nWhat is a?", "Think.\nWhat is b?"], ["What is a?", "What is b?"]),  # a frame ends with a line
        (["Think.\nQ\nx", "Think.\nQ\nx"], ["Think.\nQ\nx"] * 2),  # one prompt alone
        (["a\n", "a\na\n"], ["a\n", "a"]),  # a prompt that is all frame is never empty
        (["", "\n"], ["", "\n"]),
        (["x", "y"], ["x", "y"]),
    ],
)
def test_a_question_is_the_part_that_prompts_do_not_share(prompts, questions):
    frame = Frame.of(prompts)
    assert [frame.question(prompt) for prompt in prompts] == questions
