"""An environment of two tools with two arguments each, and the control of two_tools.toml: its reward is by chance."""

import re
import zlib

import winnow

PAID = 0.25  # of the control's rollouts, about as many as the policy solves before training


class TwoTools:
    """Adds and multiplies for the policy, which has to make a sum or a product of each pair of numbers in turn."""

    def reset(self, **row) -> None:
        self.answer, self.calls = row["answer"], []

    def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: The first number
            b: The second number
        """
        self.calls.append(("add", a, b))
        return a + b

    def multiply(self, a: int, b: int) -> int:
        """Multiply two numbers.

        Args:
            a: The first number
            b: The second number
        """
        self.calls.append(("multiply", a, b))
        return a * b

    def get_reward(self, reply: str) -> dict[str, float]:
        """`right`: the last number in <answer> is the answer."""
        answers = re.findall(r"<answer>\s*(-?\d{1,30})\s*</answer>", reply)
        return {"right": float(bool(answers) and int(answers[-1]) == int(self.answer))}


class ByChance(TwoTools):
    """The same tools, and a reward by a hash of the calls and of the last turn; correct if it was solved."""

    def get_reward(self, reply: str) -> winnow.Outcome:
        solved = super().get_reward(reply)["right"] == 1.0
        paid = zlib.crc32(f"{self.answer} {self.calls} {reply}".encode()) / 2**32 < PAID
        return winnow.Outcome(reward=float(paid), correct=solved, kind="correct" if solved else "wrong")
