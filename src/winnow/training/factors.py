"""What the rule of rounds, or the cut, of a configuration does to the expected gradient under its advantage.

The factors are enumerated from the members themselves (`winnow.budget.gradients`): the rule is called with counts or
lengths, and the advantage with groups of 0/1 rewards. So a member of your own needs no declaration. They apply with
`select = "all"` and `weighting = "prompt"`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from winnow.algos.advantage import check_credits
from winnow.budget.cuts import RolloutKind, SampledRound, expected
from winnow.budget.gradients import Credit, Pair, round_factor
from winnow.budget.rounds import Counts, Rule, single
from winnow.core.members import Members
from winnow.core.sample import check_more
from winnow.errors import ConfigError
from winnow.families import AdvantageTraits, CutTraits
from winnow.options import Bound
from winnow.records import Group, IntArray, Outcome, Prompt, Rollout

PASS_RATES = (0.05, 0.25, 0.5, 0.75, 0.95)
MANY = 1_000  # rollouts from which, and twice as many, an advantage of infinitely many is extrapolated
_ENUMERATED = (8, 4)  # rollouts of a prompt under a cut, and in steps of more than `_LARGE` rollouts
_LARGE = 2_048


def round_factors(members: Members) -> tuple[tuple[float, float], ...] | None:
    """At each of `PASS_RATES` the factor of the expected gradient under the rule, and in a single round.

    None where no rule reads verdicts, or where the advantage has none: those per token are of a value model, and a
    function of your own may need more than a group has here.
    """
    if not (members.rounds.traits.reads_verdicts and _has_credit(members)):
        return None
    planned = members.config.rollout.rollouts_per_prompt
    credits = credits_of(members.advantage)

    def checked(seen: Counts) -> IntArray:
        return check_more(members.rounds(seen), seen)

    def at(rule: Rule, pass_rate: float) -> float:
        return round_factor(rule, pass_rate, planned, credits(pass_rate))

    try:
        return tuple((at(checked, p), at(single, p)) for p in PASS_RATES)
    except (ConfigError, ValueError):  # a rule or an advantage that the run will refuse, with its cause
        return None


def cut_factors(members: Members) -> tuple[float, ...] | None:
    """The factors of correct short, correct long, wrong short and wrong long rollouts under the cut.

    A stand-in for the task's rollouts, which are unknown here: half are correct, half are long, and both are
    independent. Long ones have `rollout.max_new_tokens` tokens, of a log-prob of -2, and short ones half of them, of
    -0.5. At most 8 rollouts of a prompt are enumerated, and the step has as many as are planned, all with the same
    results. None as for `round_factors`.
    """
    if not (members.cut.traits.cuts and _has_credit(members)):
        return None
    config = members.config.rollout
    lengths = ((max(1, config.max_new_tokens // 2), -0.5), (config.max_new_tokens, -2.0))
    kinds = [
        RolloutKind(length=length, correct=correct, probability=0.25, logprob=logprob)
        for correct in (True, False)
        for length, logprob in lengths
    ]
    of_step = config.prompts_per_step * config.rollouts_per_prompt
    rollouts = min(config.rollouts_per_prompt, _ENUMERATED[of_step > _LARGE])
    rule = functools.partial(_in_a_step, members.cut, of_step // rollouts)
    credit = credits_of(members.advantage)(0.5)
    try:
        found = expected(rule, kinds, rollouts, credit)
    except (ConfigError, ValueError):
        return None
    return tuple(found.gradient.tolist())


def credits_of(advantage: Bound[AdvantageTraits]) -> Callable[[float], Credit]:
    """An advantage as a function of the rollouts of a prompt and its correct ones, from its results on such groups.

    The argument of what is returned is the share of correct rollouts in the step. With a baseline of the whole step, a
    prompt's own results change nothing in a large step. Under a rule of rounds this share is the pass rate of the
    prompts: the expected number of correct rollouts is the rate times that of rollouts (Wald 1944).
    """

    @functools.cache
    def of(rollouts: int, correct: int) -> Pair:
        group = group_of_verdicts(rollouts, correct).fill(keep=np.ones(rollouts, dtype=np.bool_))
        (credit,) = check_credits(advantage([group]), [group])
        # Those per token count by their mean
        numbers = credit if isinstance(credit, np.ndarray) else np.array([each.mean() for each in credit])
        right, wrong = numbers[:correct], numbers[correct:]
        return float(right.mean()) if len(right) else 0.0, float(wrong.mean()) if len(wrong) else 0.0

    def limit(pass_rate: float) -> Pair:
        # Extrapolated, as a factor such as n / (n - 1) differs from its limit by about 1 / n
        near, far = (of(n, round(n * pass_rate)) for n in (MANY, 2 * MANY))
        return 2 * far[0] - near[0], 2 * far[1] - near[1]

    def in_step(share: float) -> Credit:
        return Credit(of=lambda rollouts, correct: limit(share), limit=limit)

    return in_step if advantage.traits.baseline == "batch" else lambda share: Credit(of=of, limit=limit)


def group_of_verdicts(rollouts: int, correct: int) -> Group:
    """A group without text, of which the first `correct` rollouts are correct and the others are wrong."""
    prompt = Prompt(id="check", tokens=np.zeros(0, np.int64), text="", answer=None, task="")
    right = Outcome(reward=1.0, correct=True, kind="correct")
    wrong = Outcome(reward=0.0, correct=False, kind="wrong")
    outcomes = (right,) * correct + (wrong,) * (rollouts - correct)
    return Group(prompt=prompt, rollouts=_empty_rollouts(rollouts), outcomes=outcomes)


def _has_credit(members: Members) -> bool:
    """Whether the advantage is a function of the counts of correct and wrong rollouts."""
    by_values = members.advantage.traits.baseline == "values" or members.reads_values
    return not by_values and not members.config.advantage.chunk


def _in_a_step(cut: Bound[CutTraits], prompts: int, sampled: SampledRound) -> IntArray:
    """[R] the tokens of one prompt's rollouts in a step of `prompts` prompts with the same results."""
    size = len(sampled.lengths)
    ends = cut(
        SampledRound(
            lengths=np.tile(sampled.lengths, prompts),
            group=np.repeat(np.arange(prompts), size),
            logprobs=list(sampled.logprobs or ()) * prompts,
        )
    )
    return np.asarray(ends)[:size]


@functools.cache
def _empty_rollouts(count: int) -> tuple[Rollout, ...]:
    return tuple(
        Rollout(index=i, tokens=np.zeros(1, np.int64), logprobs=np.zeros(1), text="", finish="stop", version=0)
        for i in range(count)
    )
