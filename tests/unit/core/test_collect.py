"""Judged groups as a rank sends them, and as the others rebuild them. tests/ranks has the tests between processes."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import numpy as np
import pytest

from winnow.core.collect import _Sent, gather_groups
from winnow.records import Group, Outcome, Prompt, Rollout


def prompt(name: str) -> Prompt:
    return Prompt(id=name, tokens=np.array([1, 2]), text=name, answer="42", task="t")


def rollout(index: int, logprobs: Sequence[float], **fields: object) -> Rollout:
    tokens = np.arange(len(logprobs)) + 151_000
    others = {"text": f"é{index}", "finish": "stop", "version": 3, **fields}
    return Rollout(index=index, tokens=tokens, logprobs=np.array(logprobs), **others)  # type: ignore[arg-type]


RIGHT = Outcome(reward=1.0, correct=True, kind="correct", parts={"format": 0.5}, seconds=0.25)
FAILED = Outcome(reward=float("nan"), correct=None, kind="failed", cause="timeout", detail="5 s", late=True)


def group(name: str, rollouts: Sequence[Rollout]) -> Group:
    outcomes = tuple(RIGHT if i % 2 == 0 else FAILED for i in range(len(rollouts)))
    return Group(prompt=prompt(name), rollouts=tuple(rollouts), outcomes=outcomes)


def test_every_rank_gets_every_group_in_the_order_of_the_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    first = group("a", [rollout(0, [-0.5, -0.25]), rollout(1, [-1.0], trainable=np.array([False]))])
    second, third = group("b", []), group("c", [rollout(0, [-0.1, -0.2, -0.3], finish="length")])
    sent = [_Sent.of([1, 2], [second, third]), _Sent.of([0], [first])]
    monkeypatch.setattr("winnow.ranks.count", lambda: 2)
    monkeypatch.setattr(
        "winnow.ranks.gather_from_all", lambda item, what: [pickle.loads(pickle.dumps(s)) for s in sent]
    )
    prompts = [prompt(name) for name in "abc"]
    found = gather_groups(prompts, [1, 2], [second, third])
    assert all(g.prompt is p for g, p in zip(found, prompts, strict=True))
    assert [[r.rank for r in g.rollouts] for g in found] == [[1, 1], [], [0]]
    for got, was in zip(found, (first, second, third), strict=True):
        assert [str(o) for o in got.outcomes or ()] == [str(o) for o in was.outcomes or ()]
        for one, other in zip(got.rollouts, was.rollouts, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()
            assert one.tokens.dtype == np.int64
            assert one.logprobs.tolist() == other.logprobs.tolist()  # bit by bit
            assert (one.index, one.text, one.finish, one.version) == (
                other.index, other.text, other.finish, other.version,
            )  # fmt: skip
            assert str(one.trainable) == str(other.trainable)


def test_a_token_is_sent_in_8_bytes_where_float32_keeps_its_logprob() -> None:
    exact = rollout(0, np.float32([-0.1, -0.2]).astype(np.float64).tolist())
    sent = _Sent.of([0], [group("a", [exact])])
    assert (sent.tokens.dtype, sent.logprobs.dtype) == (np.int32, np.float32)
    assert _Sent.of([0], [group("a", [rollout(0, [-0.1, -0.2])])]).logprobs.dtype == np.float64


def test_one_process_keeps_its_groups() -> None:
    own = group("a", [rollout(0, [-0.1])])
    assert gather_groups([prompt("a")], [0], [own])[0] is own
