from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from refusals import refused
from winnow.algos.weighting import accepted, prompt, unbiased
from winnow.core.batches import first_tokens, make_batches
from winnow.errors import ConfigError
from winnow.records import Batch, FloatArray, Group, KeptRollouts, Outcome, Prompt, Rollout


def token_mean(shape: KeptRollouts) -> FloatArray:
    return np.full(len(shape.lengths), 1.0 / shape.lengths.sum())


def outcome(reward: float) -> Outcome:
    if np.isnan(reward):
        return Outcome(reward=reward, correct=None, kind="failed", cause="crash")
    return Outcome(reward=reward, correct=reward == 1.0, kind="correct" if reward == 1.0 else "wrong")


def group(
    name: str,
    lengths: Sequence[int],
    *,
    rewards: Sequence[float] | None = None,
    keep: Sequence[bool] | None = None,
    advantages: Sequence[float] | tuple[FloatArray, ...] | None = None,
    trainable: Sequence[bool] | None = None,
) -> Group:
    """Rollouts of these lengths; `trainable` is the mask of the first."""
    n = len(lengths)
    masks = [None if trainable is None else np.array(trainable), *[None] * (n - 1)]
    rollouts = tuple(
        Rollout(
            index=i,
            tokens=np.arange(length),
            logprobs=np.zeros(length),
            text="",
            finish="stop",
            version=0,
            trainable=mask,
        )
        for i, (length, mask) in enumerate(zip(lengths, masks, strict=True))
    )
    return Group(
        prompt=Prompt(id=name, tokens=np.arange(2), text="", answer=None, task="t"),
        rollouts=rollouts,
        outcomes=tuple(outcome(r) for r in (rewards or [1.0] * n)),
        keep=np.array(keep or [True] * n),
        advantages=advantages if isinstance(advantages, tuple) else np.array(advantages or [1.0] * n),
    )


def cut(groups: Sequence[Group], **changes: object) -> list[Batch]:
    defaults = {
        "weighting": token_mean, "epochs": 1, "updates_per_step": 1, "max_new_tokens": 8, "planned": len(groups),
        "pass_rates": None, "seed": (7, "schedule"),
    }  # fmt: skip
    return make_batches(groups, **{**defaults, **changes})


def members(batches: Sequence[Batch]) -> list[list[str]]:
    """Prompt ids of each batch, each once."""
    return [list(dict.fromkeys(row.prompt.id for row in batch.sequences)) for batch in batches]


def many(n: int = 24) -> list[Group]:
    rng = np.random.default_rng(1)
    return [group(f"p{i}", rng.integers(1, 30, size=4).tolist()) for i in range(n)]


def test_every_epoch_walks_every_kept_rollout_once() -> None:
    groups = many()
    batches = cut(groups, epochs=3, updates_per_step=4)
    assert [b.epoch for b in batches] == [0] * 4 + [1] * 4 + [2] * 4
    for epoch in range(3):
        seen = Counter(row.key for b in batches if b.epoch == epoch for row in b.sequences)
        assert seen == Counter({(g, i): 1 for g in range(24) for i in range(4)})


def test_groups_stay_whole() -> None:
    for epoch in (0, 1):
        homes = [
            name for b in cut(many(), epochs=2, updates_per_step=5) if b.epoch == epoch for name in members([b])[0]
        ]
        assert len(homes) == len(set(homes)) == 24


def tokens(batch: Batch) -> int:
    return sum(len(row.rollout.tokens) for row in batch.sequences)


def test_batches_are_balanced_by_kept_tokens() -> None:
    equal = [group(f"p{i}", [5, 5]) for i in range(8)]
    assert [tokens(b) for b in cut(equal, updates_per_step=4)] == [20, 20, 20, 20]
    assert sorted(tokens(b) for b in cut([group("big", [90]), *equal], updates_per_step=2)) == [80, 90]
    loads = [tokens(b) for b in cut(many(), updates_per_step=4)]
    assert max(loads) - min(loads) < 0.1 * sum(loads) / 4


def test_rollouts_that_are_not_kept_weigh_nothing() -> None:
    unkept = [group(f"u{i}", [500, 5], keep=[False, True]) for i in range(2)]
    kept = [group(f"k{i}", [5]) for i in range(2)]
    assert [tokens(b) for b in cut([*unkept, *kept], updates_per_step=2)] == [10, 10]


@pytest.mark.parametrize("make", [many, lambda: [group(f"p{i}", [5, 5]) for i in range(24)]], ids=["many", "equal"])
def test_every_epoch_is_cut_anew(make: object) -> None:
    batches = cut(make(), epochs=3, updates_per_step=3)
    epochs = [members([b for b in batches if b.epoch == epoch]) for epoch in range(3)]
    partitions = [frozenset(frozenset(part) for part in epoch) for epoch in epochs]
    assert len(set(partitions)) == 3


def test_the_longest_group_is_not_always_trained_first() -> None:
    groups = [group("big", [90]), *(group(f"p{i}", [5]) for i in range(8))]
    first = [members([b])[0] for b in cut(groups, epochs=8, updates_per_step=2)[::2]]
    assert {"big" in part for part in first} == {True, False}


def test_the_cut_follows_the_seed_alone() -> None:
    assert members(cut(many(), updates_per_step=3)) == members(cut(many(), updates_per_step=3))
    other = cut(many(), updates_per_step=3, seed=(8, "schedule"))
    assert members(cut(many(), updates_per_step=3)) != members(other)


def test_weights_see_silent_rollouts_before_they_leave() -> None:
    flat = group("flat", [3, 5], advantages=[0.0, 0.0])
    (batch,) = cut([group("live", [2, 6], advantages=[1.0, -1.0]), flat])
    assert [row.key for row in batch.sequences] == [(0, 0), (0, 1)]
    assert [row.weight for row in batch.sequences] == [1 / 16, 1 / 16]


def test_silent_rows_stay_when_a_term_teaches_them() -> None:
    (batch,) = cut([group("flat", [3, 5], advantages=[0.0, 0.0])], drop_silent=False)
    assert [row.weight for row in batch.sequences] == [1 / 8, 1 / 8]


def weight(batches: Sequence[Batch]) -> float:
    """Of all tokens."""
    return sum(row.weight * len(row.rollout.tokens) for batch in batches for row in batch.sequences)


def test_weights_sum_as_declared_on_average_over_the_batches_of_an_epoch() -> None:
    batches = cut(many(), epochs=2, updates_per_step=3)
    assert [weight([b for b in batches if b.epoch == epoch]) / 3 for epoch in (0, 1)] == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("weighting", [prompt, unbiased, accepted], ids=lambda w: w.__name__)
def test_every_prompt_weighs_the_same_in_whichever_batch_it_falls(weighting: object) -> None:
    """32 prompts of very unequal lengths and counts in 4 updates: batches differ in prompts, prompts not in weight."""
    rng = np.random.default_rng(2)
    longest = np.ceil(rng.lognormal(4.0, 1.0, size=32)).astype(int)
    groups = [
        group(f"p{i}", rng.integers(1, most, size=rng.integers(1, 17), endpoint=True).tolist())
        for i, most in enumerate(longest)
    ]
    batches = cut(groups, weighting=weighting, updates_per_step=4, pass_rates=np.ones(32))
    assert len({len(names) for names in members(batches)}) > 1, "batches of equally many prompts would show nothing"
    rollouts = {position: [r for b in batches for r in b.sequences if r.group == position] for position in range(32)}
    by_tokens = weighting is prompt
    shares = [sum(r.weight * (len(r.rollout.tokens) if by_tokens else 1) for r in rows) for rows in rollouts.values()]
    assert shares == pytest.approx([4 / 32] * 32)


def test_rows_carry_what_belongs_to_them() -> None:
    per_token = (np.array([1.0, 2.0]), np.array([3.0]))
    first, second = group("a", [1, 2, 3], advantages=[0.5, 1.5, 2.5]), group("b", [2, 1], advantages=per_token)
    (batch,) = cut([first, second])
    by_key = {row.key: row for row in batch.sequences}
    assert [by_key[0, i].advantage for i in range(3)] == [0.5, 1.5, 2.5]
    assert by_key[1, 0].advantage.tolist() == [1.0, 2.0]
    for (g, i), row in by_key.items():
        assert row.rollout is (first, second)[g].rollouts[i]
        assert row.prompt is (first, second)[g].prompt


def test_what_the_weighting_sees() -> None:
    seen: list[KeptRollouts] = []

    def spy(shape: KeptRollouts) -> FloatArray:
        seen.append(shape)
        return token_mean(shape)

    groups = [
        group("none kept", [4, 4], keep=[False, False]),
        group("a", [2, 3, 4], rewards=[1.0, 0.0, float("nan")], keep=[True, True, False], trainable=[False, True]),
        group("b", [5, 6], rewards=[1.0, 1.0], keep=[False, True]),
    ]
    rates = np.array([0.1, 0.2, np.nan])
    cut(groups, weighting=spy, updates_per_step=2, max_new_tokens=9, planned=5, pass_rates=rates)
    (shape,) = seen
    assert shape.planned == 5
    assert shape.lengths.tolist() == [1, 3, 6]
    assert shape.group.tolist() == [0, 0, 1]
    assert shape.correct.tolist() == [True, False, True]
    assert shape.generated.tolist() == [3, 2]
    assert shape.valid.tolist() == [2, 2]
    assert shape.accepted.tolist() == [1, 2]
    np.testing.assert_array_equal(shape.pass_rate, [0.2, np.nan])
    assert shape.max_new_tokens == 9


def test_a_rollout_without_anything_to_train_is_no_row() -> None:
    nothing = [group("empty", [0, 3]), group("masked", [2, 3], trainable=[False, False])]
    (batch,) = cut(nothing)
    assert [row.key for row in batch.sequences] == [(0, 1), (1, 1)]
    assert [row.weight for row in batch.sequences] == [1 / 6, 1 / 6]


def test_an_empty_batch_is_still_a_batch() -> None:
    batches = cut([group("only", [3])], epochs=2, updates_per_step=3)
    assert sorted(len(b.sequences) for b in batches) == [0, 0, 0, 0, 1, 1]
    assert len(cut([], updates_per_step=2)) == 2


def test_unknown_pass_rates_are_nan() -> None:
    def spy(shape: KeptRollouts) -> FloatArray:
        assert np.isnan(shape.pass_rate).all()
        return token_mean(shape)

    cut(many(2), weighting=spy)


@pytest.mark.parametrize(
    "bad", [lambda s: np.ones(1), lambda s: np.full(len(s.lengths), np.nan), lambda s: "x", lambda s: [[1], [2, 3]]]
)
def test_a_weighting_that_breaks_its_contract_is_refused(bad: object) -> None:
    with refused(ConfigError, 12, key="weighting", code="config.member_result"):
        cut(many(3), weighting=bad)


def test_groups_must_be_selected_and_credited() -> None:
    bare = group("bare", [1])
    with pytest.raises(ValueError, match="keep"):
        cut([Group(prompt=bare.prompt, rollouts=bare.rollouts, outcomes=bare.outcomes)])
    with pytest.raises(ValueError, match="advantages"):
        cut([Group(prompt=bare.prompt, rollouts=bare.rollouts, outcomes=bare.outcomes, keep=bare.keep)])


def test_only_the_first_tokens_are_trained_and_weighed() -> None:
    """Of 4 sampled of 5, 3 and 2 tokens the first 3: 3 + 3 + 2 = 8 are trained, and the weighting sees those."""
    per_token = (np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([6.0, 7.0, 8.0]), np.array([9.0, 10.0]))
    whole = group("a", [5, 3, 2], advantages=per_token, trainable=[True, False, True, True, True])
    (batch,) = cut([whole], max_trained_tokens=3)
    assert [row.rollout.tokens.tolist() for row in batch.sequences] == [[0, 1, 2, 3], [0, 1, 2], [0, 1]]
    assert [row.rollout.logprobs.shape for row in batch.sequences] == [(4,), (3,), (2,)]
    assert [row.advantage.tolist() for row in batch.sequences] == [[1, 2, 3, 4], [6, 7, 8], [9, 10]]
    assert batch.sequences[0].rollout.trainable.tolist() == [True, False, True, True]
    assert batch.sequences[1].rollout is whole.rollouts[1], "what is not cut is not copied"
    assert [row.weight for row in batch.sequences] == [1 / 8] * 3
    assert [len(r.tokens) for r in whole.rollouts] == [5, 3, 2], "the group keeps them whole"


@pytest.mark.parametrize(
    ("count", "tokens"), [(0, []), (1, [0, 1]), (2, [0, 1, 2]), (3, [0, 1, 2, 3]), (None, [0, 1, 2, 3])]
)
def test_first_tokens_end_with_the_last_of_so_many_sampled_ones(count: int | None, tokens: list[int]) -> None:
    """Of four tokens the second, the third and the fourth were sampled."""
    (whole,) = group("a", [4], trainable=[False, True, True, True]).rollouts
    assert first_tokens(whole, count).tokens.tolist() == tokens


def test_without_a_trained_token_there_is_no_sequence() -> None:
    assert cut([group("a", [3, 2])], max_trained_tokens=0)[0].sequences == ()


def test_values_and_returns_are_cut_with_their_tokens() -> None:
    numbers = (np.array([1.0, 2.0, 3.0]), np.array([4.0]))
    whole = dataclasses.replace(group("a", [3, 1]), values=numbers, returns=tuple(10 * n for n in numbers))
    (batch,) = cut([whole], max_trained_tokens=2)
    assert [row.values.tolist() for row in batch.sequences] == [[1, 2], [4]]
    assert [row.returns.tolist() for row in batch.sequences] == [[10, 20], [40]]


def test_what_would_teach_behind_the_cut_alone_is_silent() -> None:
    late = (np.array([0.0, 0.0, 1.0]), np.array([1.0, 0.0, 0.0]))
    (batch,) = cut([group("a", [3, 3], advantages=late)], max_trained_tokens=2)
    assert [row.rollout.index for row in batch.sequences] == [1]
    unseen = group("b", [3], trainable=[False, True, True], advantages=(np.array([0.0, 0.0, 1.0]),))
    assert cut([unseen], max_trained_tokens=1)[0].sequences == ()


def test_batches_are_balanced_by_what_is_trained() -> None:
    groups = [group("big", [90]), *(group(f"p{i}", [5]) for i in range(3))]
    assert sorted(tokens(b) for b in cut(groups, updates_per_step=2, max_trained_tokens=5)) == [10, 10]
