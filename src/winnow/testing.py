"""Public help for tests: a tiny random policy, groups from plain numbers, and the contract of every extension point.

    from winnow.testing import check_selector
    check_selector(my_selector)          # raises AssertionError with the rule that is broken

winnow's tests run the same checks for every registered allocator, selector, advantage, weighting, loss, term and
tracker, and for some tasks and engines.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import inspect
import itertools
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from winnow.algos.advantage import is_flat
from winnow.algos.loss import clip
from winnow.algos.objective import Objective, Term
from winnow.budget.cuts import SampledRound
from winnow.budget.rounds import Counts
from winnow.budget.sampling import PromptTable
from winnow.engines.base import Engine, EngineContext, make_engine
from winnow.errors import INTERRUPTIONS
from winnow.installed import is_installed
from winnow.models.architecture import architecture
from winnow.models.folder import BUNDLED, published_files
from winnow.models.load import DTYPES, Loaded, load_tokenizer, stop_tokens
from winnow.records import (
    FloatArray,
    Group,
    KeptRollouts,
    MicroBatch,
    Outcome,
    PolicyOutput,
    Problem,
    Prompt,
    PromptStats,
    Rollout,
    Sampling,
    TrainingSequence,
)
from winnow.registry import Entry
from winnow.seeds import Rng, generator
from winnow.state.history import packed_values, unpacked_values
from winnow.trackers.interface import ROLLOUT, TrackedRun

RNG = Rng(("contract",))
_EXTREMES = (-1000.0, -95.0, -30.0, 0.0, 30.0, 88.0, 95.0, 1000.0)  # nats; in float32, e^88 is finite and e^89 is not
_PNG = base64.b64decode(  # one white pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="
)


def tiny(arch: str = "qwen2", *, seed: int = 0, dtype: str = "float32", layers: int = 2, hidden: int = 32) -> Loaded:
    """A random policy of about 30 thousand parameters ("qwen2" or "llama") with the bundled policy's tokenizer."""
    tokenizer = load_tokenizer("bundled")
    model = architecture(arch, tokenizer, hidden=hidden, layers=layers, intermediate=2 * hidden, seed=seed)
    model, files = model.to(DTYPES[dtype]), published_files(BUNDLED)
    return Loaded(model=model, tokenizer=tokenizer, stop_tokens=stop_tokens(tokenizer), files=files)


def group_of(
    rewards: Sequence[float],
    *,
    prompt: str = "p",
    keep: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
    indices: Sequence[int] | None = None,
) -> Group:
    """A verified group from its rewards (NaN: the verifier failed); `keep` lists the kept places (None: not filled)."""
    n = len(rewards)
    lengths = [3] * n if lengths is None else lengths
    indices = range(n) if indices is None else indices
    group = Group(
        prompt=Prompt(id=prompt, tokens=np.array([1, 2]), text="?", answer="1", task="testing"),
        rollouts=tuple(_rollout(i, length) for i, length in zip(indices, lengths, strict=True)),
        outcomes=tuple(_outcome(reward) for reward in rewards),
    )
    return group if keep is None else group.fill(keep=np.isin(np.arange(n), list(keep)))


def micro_batch(advantages: Sequence[float], *, old: Sequence[float] | None = None, **fields: Tensor) -> MicroBatch:
    """T tokens with weight 1 as a float64 micro-batch: one sequence, or those of `sequence_index`. `fields` replace
    single fields.
    """
    t = len(advantages)
    index = fields.get("sequence_index", torch.zeros(t, dtype=torch.int64))
    numbers = np.asarray(advantages, dtype=np.float64)
    sequences = [
        TrainingSequence(
            prompt=Prompt(id="p", tokens=np.array([1, 2]), text="?", answer="1", task="testing"),
            rollout=_rollout(place, length),
            group=0,
            advantage=numbers[index.numpy() == place],
            weight=1.0,
        )
        for place, length in enumerate(torch.bincount(index, minlength=1).tolist())
    ]
    defaults: dict[str, Any] = {
        "sequence_index": index,
        "advantages": torch.tensor(advantages, dtype=torch.float64),
        "weights": torch.ones(t, dtype=torch.float64),
        "behaviour_logprobs": torch.zeros(t, dtype=torch.float64),
        "old_logprobs": None if old is None else torch.tensor(old, dtype=torch.float64),
    }
    return MicroBatch(sequences=tuple(sequences), **{**defaults, **fields})


def check_member(entry: Entry[Any], options: Mapping[str, Any] | None = None) -> None:
    """Check a member against the contract of its family, with its declared traits and these options.

    check_member(winnow.registry.resolve("selector", "mine.py:finished"))

    Raises AssertionError with the rule that is broken, and the trait or option that decides it. Options without a
    default must be given, except for keep_per_prompt of an "exact" selector and for a reward's `example_options`.
    """
    check, given, traits = entry.family.check(), dict(options or {}), vars(entry.traits)
    parameters = list(inspect.signature(check).parameters)
    declared = {name: value for name, value in traits.items() if name in parameters[1:]}
    supplied = {
        *given,
        *traits.get("example_options", ()),
        *(("keep_per_prompt",) if traits.get("size") == "exact" else ()),
    }
    missing = [name for name in entry.options if name not in entry.defaults and name not in supplied]
    what = f"the {entry.family.name} {entry.name!r}"
    values = ", ".join(f"{name!r}: ..." for name in missing)
    assert not missing, f"{what} has options without a default: check_member(entry, {{{values}}})"
    bound = entry
    if given:
        function = functools.partial(entry.function, **given)
        vars(function).update(traits=entry.traits, __name__=entry.name)  # which the registry reads
        bound = dataclasses.replace(entry, function=function)
    try:
        check(bound if parameters[0] == "entry" else bound.function, **declared)
    except (AssertionError, *INTERRUPTIONS):
        raise
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__}: {error}{_cure(entry)}") from error


def _cure(entry: Entry[Any]) -> str:
    """The trait that fills a field that is None otherwise; "" if the family has none."""
    if not hasattr(entry.traits, "needs"):
        return ""
    return f"; a field of its arguments that is None must be declared: the trait needs is {tuple(entry.traits.needs)}"


def check_task(task: Callable[[str], Sequence[Problem]]) -> None:
    """Raise AssertionError unless the splits are disjoint, and ids are unique and the same at every call.

    Bind options without a default before this call.
    """
    splits = {split: list(task(split)) for split in ("train", "validation", "test")}
    for split, problems in splits.items():
        ids = [problem.id for problem in problems]
        assert len(set(ids)) == len(ids), f"two {split} problems have one id: give each its own Problem(id=...)"
        assert ids == [problem.id for problem in task(split)], (
            f"{split}: two calls returned different ids; draw with a generator that the split and the options seed"
        )
    seen = [problem.id for problems in splits.values() for problem in problems]
    assert len(set(seen)) == len(seen), "a problem is in two splits: its Problem(id=...) occurs in both"


def check_selector(
    selector: Callable[..., Any], *, keep: int | None = None, size: Literal["exact", "all", "varies"] = "varies"
) -> None:
    """Raise AssertionError unless the masks are [N] bool, the same at every call, and permuted with the rollouts.

    With `keep`, a mask has to keep exactly min(keep, N) rollouts.

    A selector of `size` "exact" with the option `keep_per_prompt` is checked with the value 4.
    """
    if size == "exact" and keep is None and "keep_per_prompt" in inspect.signature(selector).parameters:
        selector, keep = functools.partial(selector, keep_per_prompt=4), 4
    for rewards in _reward_cases():
        group = group_of(rewards)
        mask = np.asarray(selector(group, RNG))
        assert mask.shape == (len(rewards),), (
            f"a selector returns [N] bool, got shape {mask.shape} for N = {len(rewards)}"
        )
        assert mask.dtype == np.bool_, f"a selector returns bool, got {mask.dtype}"
        if keep is not None:
            assert mask.sum() == min(keep, len(rewards)), (
                f"{mask.sum()} of {len(rewards)} kept, {keep} requested: a selector that may keep fewer or more than "
                f"keep_per_prompt declares the trait size='varies', and one that keeps all size='all'"
            )
        assert np.array_equal(mask, selector(group, RNG)), (
            "the same group and rng must give the same mask: draw with rng.uniforms(group.ids)"
        )
        order = generator("permutation", len(rewards)).permutation(len(rewards))
        shuffled = group_of([rewards[i] for i in order], indices=order.tolist())
        assert np.array_equal(selector(shuffled, RNG), mask[order]), (
            "the mask depends on the order of the rollouts: decide ties by rng.uniforms(group.ids)"
        )


def check_advantage(advantage: Callable[..., Any], *, baseline: str | None = None, needs: Sequence[str] = ()) -> None:
    """Raise AssertionError unless each group gets finite numbers, which are 0 where a rollout is not kept.

    With `baseline="group"` they have to be 0 on flat groups and for N = 1.

    With "values" in `needs` the groups have values: NaN for a rollout that is not kept, as no value model reads it.
    """
    groups = [
        group_of([0.0, 1.0, 0.5, 1.0], prompt="mixed", keep=[0, 1, 3]),
        group_of([1.0, 1.0, 1.0], prompt="flat", keep=[0, 1, 2]),
        group_of([0.7], prompt="single", keep=[0]),
        group_of([], prompt="empty", keep=[]),
    ]
    if "values" in needs:
        groups = [group.fill(values=_values(group)) for group in groups]
    credits = list(advantage(groups))
    assert len(credits) == len(groups), f"{len(groups)} groups, {len(credits)} arrays"
    for group, credit in zip(groups, credits, strict=True):
        assert len(credit) == len(group.rollouts), f"{group.prompt.id}: one entry per rollout, got {len(credit)}"
        assert group.keep is not None
        for numbers, kept in zip(credit, group.keep, strict=True):
            assert np.all(np.isfinite(numbers)), f"{group.prompt.id}: {numbers} is not finite"
            assert kept or np.all(np.asarray(numbers) == 0), f"{group.prompt.id}: a rollout not kept got {numbers}"
        if baseline == "group" and is_flat(group.rewards[group.keep]):
            assert all(np.all(np.asarray(a) == 0) for a in credit), (
                f"{group.prompt.id}: all rewards are equal, and not all advantages are 0: with the trait "
                f"baseline='group' they have to be; declare the baseline that it has ('batch', 'values' or 'none')"
            )
    again = list(advantage(groups[::-1]))[::-1]
    if baseline in ("group", "none"):
        for one, other in zip(credits, again, strict=True):
            assert np.array_equal(np.asarray(one), np.asarray(other)), (
                f"a group's advantages depend on the other groups: with the trait baseline={baseline!r} they must "
                f"not; declare baseline='batch'"
            )


def check_tracker(entry: Entry[Any]) -> None:
    """Raise unless the tracker accepts metrics, rollouts, notices, a picture and the end, and its id is a text or None.

    It is checked only where its library is installed. Bind options without a default before this call.
    """
    if entry.traits.requires is not None and not is_installed(entry.traits.requires):
        return
    with tempfile.TemporaryDirectory() as folder:
        run = TrackedRun(
            name="contract", folder=Path(folder), config={"seed": 0, "select": [{"use": "all"}]}, first_step=0
        )
        tracker = entry.function(run)
        assert tracker.id is None or isinstance(tracker.id, str), f"an id is a text or None, not {tracker.id!r}"
        tracker.log(0, {"reward/mean": 0.5, "eval/seconds": math.nan})
        row = dict.fromkeys(ROLLOUT, "a`b\n<b>")
        numbers = {
            "index": 0,
            "reward": 1.0,
            "correct": True,
            "advantage": None,
            "keep": True,
            "length": 3,
            "version": 0,
        }
        tracker.rollouts(0, [{**row, **numbers}])
        tracker.notice(0, "something to read")
        tracker.picture(0, "plot", _PNG)
        tracker.close("finished")


def check_weighting(weighting: Callable[..., Any], *, total: str | None = None) -> None:
    """Raise AssertionError unless the weights are [B] positive numbers that do not depend on the order of sequences.

    With `total="one"` the weights of all tokens have to add up to 1.
    """
    for lengths, group in (([2, 3, 5], [0, 0, 1]), ([1], [0]), ([4, 4, 4, 4], [0, 1, 2, 2])):
        kept = _kept_rollouts(lengths, group)
        weights = np.asarray(weighting(kept))
        assert weights.shape == kept.lengths.shape, f"one weight per sequence, got shape {weights.shape}"
        assert np.all(np.isfinite(weights) & (weights > 0)), f"weights are positive, got {weights}"
        if total == "one":
            assert np.isclose((weights * kept.lengths).sum(), 1.0), (
                f"the weights of all tokens add up to {(weights * kept.lengths).sum():g}, and with the trait "
                f"total='one' they have to add up to 1; declare the total that they have, or none"
            )
        order = np.arange(len(kept.lengths))[::-1]
        turned = _kept_rollouts(kept.lengths[order].tolist(), kept.group[order].tolist())
        assert np.allclose(weighting(turned), weights[order]), "the weights depend on the order of the sequences"


def check_loss(loss: Callable[..., Any], *, policy_gradient: bool | str = False) -> None:
    """Raise AssertionError unless values and diagnostics are [T], and a masked NaN reaches neither loss nor gradient.
    All inputs of a loss are filled.

    With `policy_gradient`, the slope has to be -A at ratio 1. `"positive"` is for a loss without a gradient at other
    advantages: it is checked with positive ones only.
    """
    advantages = [1.0, 0.5, 2.0, 0.25] if policy_gradient == "positive" else [1.0, -0.5, 2.0, 0.25]
    logprobs = torch.tensor([-0.5, -1.0, -2.0, -0.1], dtype=torch.float64, requires_grad=True)
    mb = micro_batch(advantages, old=logprobs.tolist(), ref_logprobs=logprobs.detach() - 0.1)
    values, seen = loss(PolicyOutput(logprobs=logprobs, entropy=-logprobs.detach()), mb)
    assert values.shape == logprobs.shape, f"a loss returns [T], got {tuple(values.shape)}"
    for name, numbers in seen.items():
        assert numbers.shape == logprobs.shape, f"diagnostic {name!r} must be [T], got {tuple(numbers.shape)}"
        assert not numbers.requires_grad, f"diagnostic {name!r} requires grad; detach it"
    (slope,) = torch.autograd.grad(values.sum(), logprobs)
    if policy_gradient:
        assert torch.allclose(slope, -mb.advantages), (
            f"at ratio 1 the slope is {slope.tolist()}, and with the trait policy_gradient={policy_gradient!r} it has "
            f"to be {(-mb.advantages).tolist()}; declare 'positive' if that holds for positive advantages alone, else "
            f"False"
        )
    _check_mask(loss, mb)
    _check_extremes(Objective(loss), "the loss")


def check_correction(correction: Callable[..., Any]) -> None:
    """Raise AssertionError unless the results are [T] importance >= 0 and [T] bool, whether it acted.

    Where policy and engine agree, the importance has to be 1, without acting. Where they differ much, it has to be
    finite, without a gradient, and the same for a rollout whichever rollouts are beside it. With a loss of a clipped
    ratio, value and gradient have to be finite.
    """
    logprobs = torch.tensor([-0.5, -1.0, -2.0, -0.1], dtype=torch.float64, requires_grad=True)
    out = PolicyOutput(logprobs=logprobs)
    agreed = micro_batch([1.0, -0.5, 2.0, 0.25], behaviour_logprobs=logprobs.detach())
    importance, acted = correction(out, agreed)
    assert importance.shape == acted.shape == logprobs.shape, f"a correction returns [T], got {tuple(importance.shape)}"
    assert acted.dtype == torch.bool, f"the second result is bool, got {acted.dtype}"
    assert torch.equal(importance.double(), torch.ones_like(logprobs)), f"no difference, and importance {importance}"
    assert not acted.any(), "the correction acted where policy and engine agree"
    engine = torch.tensor([-90.0, -1.1, -0.2, -0.4], dtype=torch.float64)
    both = micro_batch([1.0] * 4, behaviour_logprobs=engine, sequence_index=torch.tensor([0, 0, 1, 1]))
    importance, _ = correction(out, both)
    assert not importance.requires_grad, "the importance is a factor, not a path of the gradient; detach it"
    assert torch.isfinite(importance).all(), f"importance is finite, got {importance}"
    assert (importance >= 0).all(), f"importance is not negative, got {importance}"
    alone, _ = correction(PolicyOutput(logprobs=logprobs[2:]), micro_batch([1.0] * 2, behaviour_logprobs=engine[2:]))
    assert torch.allclose(importance[2:], alone), "the importance of a rollout depends on its neighbours"
    _check_extremes(Objective(clip, correction=correction), "a loss with the correction")


def check_term(term: Callable[..., Any]) -> None:
    """Raise AssertionError unless the values are [T] finite numbers, and a masked NaN changes neither them nor the
    gradient. All inputs of a term are filled.
    """
    logprobs = torch.tensor([-0.5, -1.0, -2.0, -0.1], dtype=torch.float64, requires_grad=True)
    mb = micro_batch([1.0, -0.5, 2.0, 0.25], ref_logprobs=logprobs.detach() - 0.1)
    values = term(PolicyOutput(logprobs=logprobs, entropy=-logprobs), mb)
    assert values.shape == logprobs.shape, f"a term returns [T], got {tuple(values.shape)}"
    assert torch.isfinite(values).all(), f"a term's values are finite, got {values.tolist()}"
    hole = torch.tensor([False, True, False, False])
    broken = logprobs.detach().masked_fill(hole, float("nan")).requires_grad_()
    out, masked = PolicyOutput(logprobs=broken, entropy=-broken), micro_batch([1.0] * 4, ref_logprobs=broken.detach())
    objective = Objective(lambda out, mb: (torch.zeros_like(out.logprobs), {}), (Term("term", 1.0, term),))
    value = objective(out, dataclasses.replace(masked, trained=torch.tensor([0, 2, 3])))
    (slope,) = torch.autograd.grad(value.total, broken, allow_unused=True)
    assert torch.isfinite(value.total), "a masked NaN reached the term"
    assert slope is None or torch.isfinite(slope).all(), "a masked NaN reached the gradient"
    _check_extremes(objective, "the term")


def check_allocator(allocator: Callable[..., Any]) -> None:
    """Raise AssertionError unless the results are [G] counts >= 0 that add up to the budget, also without statistics.

    Equal statistics have to give equal counts (+-1).
    """
    nan = float("nan")
    for rates in ([nan, nan, nan], [0.0, 0.0, 0.0, 0.0], [0.5] * 7, [0.1, 0.5, 0.9, nan]):
        for budget in (0, 1, 5, 64):
            stats = PromptStats(
                ids=tuple(f"p{i}" for i in range(len(rates))),
                pass_rate=np.array(rates),
                gradient_norm=np.where(np.isnan(rates), nan, 1.0),
                trials=np.where(np.isnan(rates), 0.0, 8.0),
                correct=np.nan_to_num(8.0 * np.array(rates)),
            )
            counts = np.asarray(allocator(stats, budget))
            assert counts.shape == (len(rates),), f"one count per prompt, got shape {counts.shape}"
            assert np.issubdtype(counts.dtype, np.integer), f"counts are integers, got {counts.dtype}"
            assert counts.min() >= 0, f"counts are not negative, got {counts}"
            assert counts.sum() == budget, f"{counts.sum()} rollouts planned from a budget of {budget}"
            if len(set(map(str, rates))) == 1:
                assert np.ptp(counts) <= 1, f"prompts with equal statistics got {counts}"


def check_round(rule: Callable[..., Any]) -> None:
    """Raise AssertionError unless the results are [G] further rollouts >= 0 within the plan.

    Equal prompts have to get equal numbers, and every prompt has to end.
    """
    for rate in (0.0, 0.5, 1.0):
        for planned in (0, 1, 5, 64):
            plan, sampled = np.full(3, planned, dtype=np.int64), np.zeros(3, dtype=np.int64)
            for _ in range(planned + 1):
                correct = np.floor(rate * sampled).astype(np.int64)
                more = np.asarray(rule(Counts(planned=plan, sampled=sampled, correct=correct, wrong=sampled - correct)))
                assert more.shape == (3,), f"one number per prompt, got shape {more.shape}"
                assert np.issubdtype(more.dtype, np.integer), f"numbers are integers, got {more.dtype}"
                assert np.all((more >= 0) & (sampled + more <= plan)), f"{more} more rollouts of a plan of {plan}"
                assert np.ptp(more) == 0, f"equal prompts got {more}"
                sampled = sampled + more
            assert not more.any(), "a prompt ends when all its planned rollouts are sampled, or before"


def check_cut(rule: Callable[..., Any]) -> None:
    """Raise AssertionError unless the results are [R] tokens, each from 0 to the rollout's length.

    They may depend neither on the order of the rollouts, nor on the tokens after a cut.
    """
    for size in (1, 6, 24):
        rng = generator("contract cuts", size)
        lengths, group = rng.integers(0, 40, size), np.arange(size) % 3
        logprobs = [-rng.exponential(size=length) for length in lengths.tolist()]
        for spent in (0, 50):
            ends = np.asarray(rule(SampledRound(lengths=lengths, group=group, spent=spent, logprobs=logprobs)))
            assert ends.shape == (size,), f"one number per rollout, got shape {ends.shape}"
            assert np.issubdtype(ends.dtype, np.integer), f"numbers are integers, got {ends.dtype}"
            assert np.all((ends >= 0) & (ends <= lengths)), f"{ends} tokens of rollouts of {lengths}"
            order = rng.permutation(size)
            other = SampledRound(
                lengths=lengths[order], group=group[order], spent=spent, logprobs=[logprobs[i] for i in order]
            )
            assert np.array_equal(rule(other), ends[order]), "the cuts depend on the order of the rollouts"
            shown = np.minimum(lengths, ends + 1)  # a cut rollout has at least one token more
            seen = [numbers[:length] for numbers, length in zip(logprobs, shown.tolist(), strict=True)]
            again = np.asarray(rule(SampledRound(lengths=shown, group=group, spent=spent, logprobs=seen)))
            assert np.array_equal(again, ends), "the cuts depend on tokens after them"


def check_sampler(sampler: Callable[..., Any], *, wait: int = 64, probability: str = "unknown") -> None:
    """Raise AssertionError unless a draw is different rows of the table, and depends on its arguments alone.

    Its state has to survive JSON. Over 200 steps of 8 out of 40 prompts, each prompt has to be drawn at least once in
    `wait` steps. A third of the prompts is always right, a third never. The default of `wait` is the bound of winnow's
    samplers, whose `patience` is 10 epochs of 5 steps: 12 epochs and two draws. With `probability` "known", each row of
    a draw has to have a probability above 0 and at most 1.
    """
    prompts, count, steps, rates = 40, 8, 200, np.resize([0.0, 0.5, 1.0], 40)
    table, state = PromptTable.empty(prompts, difficulty=np.linspace(0.0, 100.0, prompts)), dict[str, Any]()
    last = np.full(prompts, -1)
    for step in range(steps):
        rows, next_state, *counted = sampler(table, state, _contract_stream, count)
        if probability == "known":
            chances = np.asarray(counted[2] if len(counted) > 2 else None, dtype=np.float64)
            assert chances.shape == (count,), (
                f"with the trait probability='known' a draw has a probability for each of {count} rows, got shape "
                f"{chances.shape}; return it as Drawn.probability, or declare 'equal' or 'unknown'"
            )
            assert np.all((chances > 0) & (chances <= 1)), f"probabilities are above 0 and at most 1, got {chances}"
        rows = np.asarray(rows)
        assert rows.shape == (count,), f"{count} rows, got shape {rows.shape}"
        assert np.issubdtype(rows.dtype, np.integer), f"rows are integers, got {rows.dtype}"
        assert rows.min() >= 0, f"a row is a place in the table, got {rows}"
        assert rows.max() < prompts, f"a row is a place in the table, got {rows}"
        assert len(set(rows.tolist())) == count, f"a prompt is drawn twice: {rows}"
        try:
            packed = packed_values(state)
        except ValueError as error:
            raise AssertionError(f"arrays of a state are [n] numbers, got {error}") from error
        restored = unpacked_values(json.loads(json.dumps(packed, allow_nan=False)))
        again = np.asarray(sampler(table, restored, _contract_stream, count)[0])
        assert np.array_equal(rows, again), f"step {step}: the same table and restored state gave another draw"
        last[rows] = step
        waited = step - last
        assert waited.max() < wait, (
            f"row {int(waited.argmax())} was not drawn in {wait} steps: every prompt has to be; if yours may wait "
            f"longer, call check_sampler(sampler, wait=...)"
        )
        right = generator("contract verdicts", step).random((count, 4)) < rates[rows, None]
        table = table.drawn(rows).observed(rows, np.full(count, 4), right.sum(axis=1))
        state = dict(next_state)


def _contract_stream(name: str, number: int) -> np.random.Generator:
    return generator("contract draws", name, number)


def check_engine(engine: Callable[..., Any], **options: Any) -> None:
    """Raise AssertionError unless groups follow prompts and counts, and `on_rollout` is called once for each rollout.

    Rollouts have to have the version of the weights. The mean gap of their log-probs to the policy's has to be within
    the tolerance that the engine declares. `close` may be called twice.
    """
    loaded = tiny()
    context = EngineContext(
        model=loaded.model, tokenizer=loaded.tokenizer, stop_tokens=loaded.stop_tokens, max_rollouts_at_once=8
    )
    made = make_engine(functools.partial(engine, **options), context, name=getattr(engine, "__name__", repr(engine)))
    with contextlib.closing(made):
        _check_sampling(made, loaded.model)
        made.close()


def _check_sampling(made: Engine, model: Any) -> None:
    prompts = [Prompt(id=f"p{n}", tokens=np.arange(1, n), text="", answer=None, task="testing") for n in (3, 5, 9)]
    made.load(dict(model.named_parameters()), version=1)
    reported: list[Rollout] = []
    groups = made.generate(
        prompts, [4, 0, 7], Sampling(max_new_tokens=6), seed=("contract",), on_rollout=lambda _, r: reported.append(r)
    )
    assert [group.prompt.id for group in groups] == ["p3", "p5", "p9"], "one group per prompt, in prompt order"
    assert [[r.index for r in g.rollouts] for g in groups] == [list(range(n)) for n in (4, 0, 7)], (
        "as many rollouts of a prompt as its count, in index order"
    )
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert sorted(map(id, reported)) == sorted(map(id, rollouts)), "on_rollout is called once for every rollout"
    assert {r.version for r in rollouts} == {made.version} == {1}, (
        "rollouts have the version of the last load: keep the argument `version` of load"
    )
    gaps = np.concatenate([_logprob_gaps(model, g.prompt, r) for g in groups for r in g.rollouts])
    assert gaps.mean() <= made.logprob_tolerance.mean, (
        f"log-probs are off by {gaps.mean():.2g} nats on average, and the engine's logprob_tolerance allows "
        f"{made.logprob_tolerance.mean:.2g}"
    )


@torch.no_grad()
def _logprob_gaps(model: Any, prompt: Prompt, rollout: Rollout) -> FloatArray:
    """[L] |engine's log-prob - policy's| of every token of a rollout."""
    tokens = torch.from_numpy(np.concatenate([prompt.tokens, rollout.tokens]))[None].to(model.device)
    logits = model(input_ids=tokens).logits[0, len(prompt.tokens) - 1 : -1].double()
    logprobs = logits.log_softmax(-1).gather(-1, tokens[0, len(prompt.tokens) :, None])[:, 0]
    gaps: FloatArray = np.abs(rollout.logprobs - logprobs.numpy(force=True))
    return gaps


def _check_mask(loss: Callable[..., Any], mb: MicroBatch) -> None:
    hole = torch.tensor([False, True, False, False])
    nan = float("nan")
    logprobs = torch.tensor([-0.5, nan, -2.0, -0.1], dtype=torch.float64, requires_grad=True)
    advantages, trained = mb.advantages.masked_fill(hole, nan).tolist(), torch.tensor([0, 2, 3])
    others = logprobs.detach()
    masked = micro_batch(advantages, old=others.tolist(), ref_logprobs=others, trained=trained)
    value = Objective(loss)(PolicyOutput(logprobs=logprobs, entropy=-others), masked)
    (slope,) = torch.autograd.grad(value.total, logprobs)
    assert torch.isfinite(value.total), "a masked NaN reached the loss"
    assert torch.isfinite(slope).all(), "a masked NaN reached the gradient"
    assert slope[1] == 0, "a masked token has a gradient"


def _check_extremes(objective: Objective, what: str) -> None:
    """Check that value, diagnostics and gradient are finite in float32, if log-probs differ by up to 1,000 nats.

    Every pair of differences is once the two tokens of a rollout, with a positive and with a negative advantage.
    """
    pairs = [pair for pair in itertools.product(_EXTREMES, repeat=2) for _ in (1, -1)]
    differences = torch.tensor(pairs, dtype=torch.float32).flatten()
    signs = torch.tensor([1.0, 1.0, -1.0, -1.0]).repeat(len(pairs) // 2)
    others = torch.full_like(differences, -1001.0)
    mb = micro_batch(signs.tolist(), sequence_index=torch.arange(len(pairs)).repeat_interleave(2))
    mb = dataclasses.replace(mb, advantages=signs, weights=torch.ones_like(signs), ref_logprobs=others)
    for old, engine in ((others, others), (None, others), (others, differences + others)):
        logprobs = (differences + others).requires_grad_()
        value = objective(
            PolicyOutput(logprobs=logprobs, entropy=-logprobs),
            dataclasses.replace(mb, old_logprobs=old, behaviour_logprobs=engine),
        )
        assert torch.isfinite(value.total), f"{what} is {value.total} at log-ratios of up to 1,000"
        for name, numbers in value.diagnostics.items():
            assert torch.isfinite(numbers.float()).all(), f"{what}: {name!r} is not finite at log-ratios of up to 1,000"
        (slope,) = torch.autograd.grad(value.total, logprobs, allow_unused=True)
        assert slope is None or torch.isfinite(slope).all(), f"the gradient of {what} is not finite at such log-ratios"


def _reward_cases() -> list[list[float]]:
    draw = generator("contract rewards")
    return [
        [],
        [1.0],
        [0.0] * 8,
        [1.0] * 3 + [0.0] * 9,
        draw.normal(size=16).tolist(),
        draw.integers(-1, 2, size=11).astype(float).tolist(),
    ]


def _rollout(index: int, length: int) -> Rollout:
    return Rollout(
        index=index, tokens=np.full(length, 5), logprobs=np.full(length, -1.0), text="", finish="stop", version=0
    )


def _values(group: Group) -> tuple[FloatArray, ...]:
    """N x [L] values of a value model that has read the kept rollouts."""
    assert group.keep is not None
    draw = generator("contract values", group.prompt.id)
    return tuple(
        draw.normal(size=n) * (1.0 if kept else np.nan) for n, kept in zip(group.sizes, group.keep, strict=True)
    )


def _outcome(reward: float) -> Outcome:
    if np.isnan(reward):
        return Outcome(reward=reward, correct=None, kind="failed", cause="raised")
    return Outcome(reward=float(reward), correct=bool(reward >= 1), kind="correct" if reward >= 1 else "wrong")


def _kept_rollouts(lengths: Sequence[int], group: Sequence[int]) -> KeptRollouts:
    groups = max(group) + 1
    ones: FloatArray = np.ones(groups)
    return KeptRollouts(
        planned=groups,
        lengths=np.array(lengths),
        group=np.array(group),
        correct=np.ones(len(lengths), dtype=np.bool_),
        generated=(8 * ones).astype(np.int64),
        valid=(8 * ones).astype(np.int64),
        accepted=(4 * ones).astype(np.int64),
        pass_rate=0.5 * ones,
        max_new_tokens=8,
    )
