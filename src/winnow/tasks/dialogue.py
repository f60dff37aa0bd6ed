"""The tokens between two turns of the policy: an environment's text, in the form of the tokenizer's chat template.

A template is rendered once, with marks in the places of the texts. What it writes after the mark of the assistant, up
to the next generation prompt, separates two turns. Tokens that the policy sampled are never rendered or tokenized
again, because a template may change earlier turns: several remove the reasoning of all turns but the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from winnow.errors import DataError
from winnow.records import IntArray
from winnow.tasks.chat import conversation_texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

QUESTION, POLICY, ENVIRONMENT = "winnow first question", "winnow policy turn", "winnow environment turn"  # the marks


@dataclass(frozen=True)
class Dialogue:
    """Makes the tokens of an environment's turn: `before`, the text, and `after`, up to the policy's next token."""

    tokenizer: PreTrainedTokenizerBase
    before: IntArray  # the end of the policy's turn, and the start of the environment's
    after: IntArray  # the end of the environment's turn, and the start of the policy's next

    @classmethod
    def of(
        cls, tokenizer: PreTrainedTokenizerBase, *, system: str | None = None, options: Mapping[str, Any] | None = None
    ) -> Dialogue:
        """The dialogue of a tokenizer's chat template, with its variables `options`.

        Raises DataError for a template that is missing, fails, or does not contain the texts of all turns in order.
        """
        first = [] if system is None else [{"role": "system", "content": system}]
        turns = (("user", QUESTION), ("assistant", POLICY), ("user", ENVIRONMENT))
        conversation = [*first, *({"role": role, "content": text} for role, text in turns)]
        (text,) = conversation_texts([conversation], tokenizer, options or {})
        _, _, rest = text.partition(POLICY)
        before, mark, after = rest.partition(ENVIRONMENT)
        if not mark:
            raise DataError(
                "the tokenizer's chat template does not render a question, an answer and a second message in order",
                remedy="use a model whose template does, or a reward instead of an environment",
                key="environment",
                code="data.unfit_model",
            )
        encoded = tokenizer([before, after], add_special_tokens=False)["input_ids"]
        return cls(tokenizer, *(np.array(tokens, dtype=np.int64) for tokens in encoded))

    def opening(self, last: int) -> IntArray:
        """The tokens of an environment's turn before its text, after the policy's token `last`.

        Where `last` is the token that ends a turn, it is not repeated.
        """
        return self.before[1:] if len(self.before) and self.before[0] == last else self.before

    def tokens(self, text: str, *, last: int) -> IntArray:
        """The tokens of an environment's turn after the policy's token `last`."""
        return self.all_tokens([text], last=[last])[0]

    def all_tokens(self, texts: Sequence[str], *, last: Sequence[int]) -> list[IntArray]:
        """`tokens` of several turns, which takes less time than one by one.

        The names of special tokens in a text are split like any other text, so that an environment cannot write a
        control token.
        """
        if not texts:
            return []
        encoded = self.tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False)
        return [
            np.concatenate([self.opening(token), np.array(ids, dtype=np.int64), self.after])
            for token, ids in zip(last, encoded["input_ids"], strict=True)
        ]
