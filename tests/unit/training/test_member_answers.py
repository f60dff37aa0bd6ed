"""What a user's own function gets wrong is said by family, with what came back, before it does harm."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import winnow
from winnow.algos.advantage import check_credits
from winnow.algos.objective import Objective, Term
from winnow.algos.selection import chain, keep_all, threshold
from winnow.cli import app
from winnow.config_file import validate
from winnow.engines.sampling import choose
from winnow.errors import ConfigError, EngineError
from winnow.options import bind
from winnow.records import PolicyOutput, Sampling
from winnow.registry import resolve
from winnow.testing import RNG, group_of, micro_batch
from winnow.training.probe import check_counts
from winnow.training.resolve import resolve_members
from winnow.training.step import carries_signal, scatter

OUT = PolicyOutput(logprobs=torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64))
BATCH = micro_batch([1.0, 0.5, -1.0])


def plain(out, mb):
    return -mb.advantages * out.logprobs, {}


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda out, mb: -mb.advantages * out.logprobs, r"loss gave a tensor of shape \(3,\); it must return two"),
        (lambda out, mb: (out.logprobs.mean(), {}), r"loss gave a tensor of shape \(\) for 3 tokens"),
        (lambda out, mb: (out.logprobs[:, None], {}), r"loss gave a tensor of shape \(3, 1\) for 3 tokens"),
        (lambda out, mb: (1.0, {}), "loss gave a float for 3 tokens"),
        (lambda out, mb: (out.logprobs, None), "loss gave a tuple; it must return two things"),
        (lambda out, mb: None, "loss gave a NoneType"),
        (lambda out, mb: (out.logprobs, {"gap": out.logprobs.mean()}), "loss's diagnostic 'gap' gave a tensor"),
    ],
)
def test_a_loss_gives_a_number_per_token_and_diagnostics(loss, said):
    with pytest.raises(ConfigError, match=said):
        Objective(loss)(OUT, BATCH)


def test_a_term_gives_a_number_per_token():
    with pytest.raises(ConfigError, match=r"term 'mine' gave a tensor of shape \(\) for 3 tokens"):
        Objective(plain, (Term("mine", 0.1, lambda out, mb: out.logprobs.mean()),))(OUT, BATCH)


def test_a_masked_token_is_none_of_a_loss_s():
    mb = micro_batch([1.0, 0.5, -1.0], mask=torch.tensor([True, False, True]))
    assert Objective(plain)(OUT, mb).total.item() == pytest.approx(1.0 - 3.0)
    with pytest.raises(ConfigError, match="for 2 tokens"):
        Objective(lambda out, mb: (OUT.logprobs, {}))(OUT, mb)


def test_what_no_array_can_be_made_of_is_said():
    with pytest.raises(ConfigError, match="the allocator gave object of shape"):
        check_counts([[1], [2, 3]], 2, 8)
    with pytest.raises(ConfigError, match="the selector gave object of shape"):
        chain([lambda group, rng: [[True], [True, False]]])(group_of([1.0, 0.0]), RNG)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (np.ones(3, dtype=bool), r"bool of shape \(3,\) for 4 rollouts"),
        (np.array([0, 1, 1, 0]), r"int64 of shape \(4,\)"),
        ([0, 2], r"int64 of shape \(2,\)"),
        (True, r"bool of shape \(\)"),
        (None, r"object of shape \(\)"),
    ],
)
def test_a_selector_gives_a_mask(answer, said):
    group = group_of([0.0, 1.0, 0.0, 1.0])
    with pytest.raises(ConfigError, match=f"selector gave {said}.*one bool per rollout"):
        chain([keep_all, lambda group, rng: answer])(group, RNG)


def test_a_mask_may_be_a_list_and_nothing_left_asks_nobody():
    group = group_of([0.0, 1.0])
    assert chain([lambda group, rng: [False, True]])(group, RNG).tolist() == [False, True]

    def never_asked(group, rng):
        raise AssertionError(len(group.rollouts))

    none = chain([lambda group, rng: threshold(group, rng, low=2.0), never_asked])
    assert none(group, RNG).tolist() == [False, False]


GROUPS = [group_of([0.0, 1.0], prompt="a", lengths=[2, 3]), group_of([1.0], prompt="b"), group_of([], prompt="c")]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (0.5, "0.5 for 3 groups"),
        (None, "None for 3 groups"),
        ([np.zeros(2)], "for 3 groups; it must return one array for each"),
        ([0.5, [0.0], []], "0.5 for the 2 rollouts of 'a'"),
        ([np.zeros(3), [0.0], []], "for the 2 rollouts of 'a'"),
        ([[0.0, 1.0], [np.nan], []], "for the 1 rollouts of 'b'; it must return one finite number"),
        ([[[0.0, 0.0], [1.0, 1.0]], [0.0], []], "for the 2 rollouts of 'a'"),
        ([["no", "numbers"], [0.0], []], "for the 2 rollouts of 'a'"),
        ([[0.0, [0.0, 0.0, 0.0]], [0.0], []], "for the 2 rollouts of 'a'"),
    ],
)
def test_an_advantage_gives_a_number_per_rollout_or_token(answer, said):
    with pytest.raises(ConfigError, match=said):
        check_credits(answer, GROUPS)


def test_plain_lists_and_ragged_sequences_are_advantages():
    per_rollout, per_token, empty = check_credits([[1, -1], [[0.5, 0.5, 0.5]], []], GROUPS)
    assert per_rollout.tolist() == [1.0, -1.0]
    assert [numbers.tolist() for numbers in per_token] == [[0.5, 0.5, 0.5]]
    assert len(empty) == 0
    ragged = check_credits([[np.ones(2), np.zeros(3)], [0.0], ()], GROUPS)[0]
    assert [numbers.tolist() for numbers in scatter(GROUPS[0], ragged)] == [[1.0, 1.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([2, 2], r"int64 of shape \(2,\) for 3 prompts and a budget of 6"),
        (np.full(3, 2.0), r"float64 of shape \(3,\)"),
        (6, r"int64 of shape \(\)"),
        ([-1, 4, 3], "a count of -1"),
        ([3, 3, 3], "9 rollouts in all"),
        ([0, 0, 0], "0 rollouts in all"),
    ],
)
def test_an_allocator_gives_counts_that_the_budget_pays_for(answer, said):
    with pytest.raises(ConfigError, match=f"allocator gave {said}"):
        check_counts(answer, 3, 6)


def test_counts_may_be_a_list_and_less_than_the_budget():
    assert check_counts([1, 0, 2], 3, 6).tolist() == [1, 0, 2]
    assert check_counts(np.array([2, 2, 2], dtype=np.int32), 3, 6).dtype == np.int64


def carries(rewards, *, keep=None, **advantage):
    """Whether a group carries a signal, of which all or some rollouts are kept."""
    group = group_of(rewards)
    mask = np.ones(len(rewards), dtype=bool) if keep is None else np.array(keep, dtype=bool)
    critic = {"critic": {}} if advantage["use"] == "gae" else {}
    members = resolve_members(validate({"advantage": advantage, **critic}), Path.cwd())
    return carries_signal(group.fill(keep=mask & group.valid), members.advantage)


def test_a_signal_depends_on_the_baseline():
    right, wrong, mixed, failed = [1.0, 1.0], [0.0, 0.0], [0.0, 1.0], [1.0, float("nan")]
    expected = {
        "grpo": [False, False, True, False],
        "rloo": [False, False, True, False],
        "raw": [True, False, True, True],
        "batch": [True, False, True, True],
        "gae": [True, True, True, True],
    }
    for name, found in expected.items():
        assert [carries(rewards, use=name) for rewards in (right, wrong, mixed, failed)] == found, name


def test_a_signal_is_in_the_credit_of_what_is_kept():
    """Flat chunks give no credit, nor do rewards that are alike after the selection, unless all rewards are compared;
    and RAFT credits right answers, whatever else is paid for.
    """
    halves = [1.0] * 4 + [0.0] * 4
    assert carries(halves, use="grpo")
    assert not carries(halves, use="grpo", chunk=4)
    assert carries([*halves[:7], 1.0], use="grpo", chunk=4)
    assert not carries(halves, keep=[1] * 4 + [0] * 4, use="grpo")
    assert carries(halves, keep=[1] * 4 + [0] * 4, use="grpo", statistics="group")
    assert not carries([0.1, 0.1], use="raft")
    assert not carries([1.0, 0.1], keep=[False, True], use="raft")
    assert carries([1.0, 0.1], use="raft")
    for name in ("gae", "batch", "raw", "grpo"):
        assert not carries(halves, keep=[0] * 8, use=name), name


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("cut", [{}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_diverged_weights_are_named_where_they_are_first_seen(bad, temperature, cut):
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, bad, 1.0]])
    if bad < 0:
        logits[1] = bad  # a single -inf is a token that cannot be
    with pytest.raises(EngineError, match=r"logits are not finite.*lower optimizer\.learning_rate"):
        choose(logits, torch.tensor([0.5, 0.5]).double(), Sampling(max_new_tokens=1, temperature=temperature, **cut))


@pytest.mark.parametrize(
    ("family", "member", "option", "value"),
    [
        ("loss", "clip", "clip_low", -0.1),
        ("loss", "clip", "dual", 1.0),
        ("loss", "raft_plus_plus", "clip_high", -0.1),
        ("loss", "cispo", "clip_high", -1),
        ("loss", "gspo", "clip_low", -1e-4),
        ("allocator", "gvm", "alpha", -1e-3),
        ("allocator", "gvm_online", "alpha", -1e-3),
        ("advantage", "grpo", "eps", -1e-4),
        ("advantage", "batch", "eps", -1e-4),
        ("weighting", "constant", "tokens", 0),
    ],
)
def test_options_outside_their_range_are_refused_by_key(family, member, option, value):
    with pytest.raises(ConfigError, match=rf"here\.{option} is {value}: input should be greater than"):
        bind(resolve(family, member), {option: value}, key="here")


def test_bounds_admit_what_the_papers_use():
    bind(resolve("loss", "clip"), {"clip_low": 0.2, "clip_high": 0.28, "dual": 3}, key="loss")
    bind(resolve("loss", "clip"), {"clip_low": 0, "clip_high": 0, "dual": None}, key="loss")
    bind(resolve("allocator", "gvm"), {"alpha": 0}, key="allocate")
    bind(resolve("advantage", "grpo"), {"eps": 0}, key="advantage")
    bind(resolve("weighting", "constant"), {"tokens": None}, key="weighting")


def mistaken_loss(out, mb):
    return -mb.advantages * out.logprobs


def mistaken_advantage(groups):
    return [group.rewards.mean() for group in groups]


def mistaken_selector(group, rng):
    return [0, 1]


def mistaken_allocator(stats, budget):
    return np.full(len(stats.ids), budget)


@pytest.mark.parametrize(
    ("key", "function"),
    [
        ("loss", mistaken_loss),
        ("advantage", mistaken_advantage),
        ("select", mistaken_selector),
        ("allocate", mistaken_allocator),
    ],
)
def test_a_run_says_which_function_was_mistaken(key, function, smallest):
    family = {"select": "selector", "allocate": "allocator"}.get(key, key)
    with pytest.raises(ConfigError, match=f"the {family} gave"):
        winnow.train(**smallest(**{key: function}, verify={"workers": 0}), watch=lambda event: None)


def test_a_run_whose_weights_diverge_says_so(smallest):
    from winnow.engines.native.sampler import Native

    def poisoned(context):
        with torch.no_grad():
            next(context.model.parameters()).fill_(float("nan"))
        return Native(context)

    config = smallest(rollout={"engine": poisoned}, verify={"workers": 0})
    with pytest.raises(EngineError, match="its weights have diverged"):
        winnow.train(**config, watch=lambda event: None)


def raising_allocator(stats, budget):
    return np.full(len(stats.ids), budget // 0)


def raising_selector(group, rng):
    return deeper(group.rewards)


def deeper(rewards):
    return rewards[[99]] > 0  # numpy raises; this line is what the user can mend


def raising_advantage(groups):
    return [group.rewads for group in groups]


def raising_weighting(shape):
    raise KeyError("no such weight")


def raising_loss(out, mb):
    return -mb.advantages @ out.logprobs[:-1], {}


def raising_term(out, mb):
    raise ValueError


def raising_critic(groups):
    return {}["values"]


class RaisingSelector:
    def __call__(self, group, rng):
        raise RuntimeError("from an object")


RAISING = [
    (
        "allocate",
        raising_allocator,
        "allocator",
        "raising_allocator",
        "ZeroDivisionError: integer",
        "in raising_allocator",
    ),
    ("select", raising_selector, "selector", "raising_selector", "IndexError: index 99", "in deeper"),
    ("select", RaisingSelector(), "selector", "RaisingSelector", "RuntimeError: from an object", "in __call__"),
    (
        "advantage",
        raising_advantage,
        "advantage",
        "raising_advantage",
        "AttributeError: ",
        "in (<listcomp>|raising_advantage)",
    ),
    (
        "weighting",
        raising_weighting,
        "weighting",
        "raising_weighting",
        "KeyError: 'no such weight'",
        "in raising_weigh",
    ),
    ("loss", raising_loss, "loss", "raising_loss", "RuntimeError: ", "in raising_loss"),
    (
        "terms",
        [{"use": raising_term, "coefficient": 1.0}],
        "term",
        "raising_term",
        "ValueError",
        "in raising_term",
    ),
]


@pytest.mark.parametrize(("key", "member", "family", "name", "said", "place"), RAISING)
def test_a_function_of_the_user_s_that_raises_is_named_with_its_line(key, member, family, name, said, place, smallest):
    with pytest.raises(ConfigError) as caught:
        winnow.train(**smallest(**{key: member}, verify={"workers": 0}), watch=lambda event: None)
    message = str(caught.value)
    assert message.startswith(f"the {family} {name!r} raised {said}")
    assert re.search(rf"\({re.escape(__file__)}, line \d+, {place}", message), message
    assert caught.value.__cause__ is not None
    number = int(re.search(r"line (\d+)", message)[1])
    assert re.search(r"budget // 0|\[\[99\]\]|rewads|raise |@ out", Path(__file__).read_text().splitlines()[number - 1])


def test_a_critic_that_raises_is_named(smallest):
    with pytest.raises(ConfigError, match=r"the critic raised KeyError: 'values' \(.*, in raising_critic\)"):
        winnow.train(**smallest(verify={"workers": 0}), critic=raising_critic, watch=lambda event: None)


def test_what_winnow_brings_keeps_its_traceback():
    bound = bind(resolve("selector", "max_variance"), {"keep_per_prompt": 2}, key="select")
    with pytest.raises(AttributeError):
        bound(None, RNG)
    own = bind(resolve("selector", raising_selector), {}, key="select")
    with pytest.raises(ConfigError, match="raising_selector"):
        own(None, RNG)


def test_a_deliberate_error_of_the_user_s_stays_as_it_is():
    def refuse(group, rng):
        raise winnow.DataError("these prompts are not mine")

    with pytest.raises(winnow.DataError, match=r"^these prompts are not mine$"):
        bind(resolve("selector", refuse), {}, key="select")(None, RNG)


def test_a_file_s_function_that_raises_is_a_message_on_the_command_line(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def half(group, rng):\n    middle = len(group.rollouts) / 2\n    return [][middle]\n"
    )
    (tmp_path / "run.toml").write_text(SMALL_RUN.format(folder=tmp_path))
    result = CliRunner().invoke(app, ["train", str(tmp_path / "run.toml")])
    assert result.exit_code == 1
    assert "the selector 'half' raised TypeError: list indices" in result.stderr
    assert f"({tmp_path}/mine.py, line 3, in half)" in result.stderr
    assert "Traceback" not in result.stderr


SMALL_RUN = """
steps = 1
threads = 1
device = "cpu"
output = "{folder}/run"
select = "mine.py:half"
task = {{use = "arithmetic", levels = [1], size = 8}}
rollout = {{prompts_per_step = 2, rollouts_per_prompt = 2, max_new_tokens = 4}}
evaluate = {{problems = 1, rollouts_per_prompt = 1}}
verify = {{workers = 0}}
"""


def test_an_alias_of_any_family_is_held_to_what_it_presumes(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import winnow\n"
        '@winnow.register("weighting", "by_group", aliases={"by_group_of_raw": {"advantage": "raw"}})\n'
        "def by_group(kept):\n    'Every rollout counts the same.'\n    return 1.0 / kept.lengths\n"
    )
    resolve("weighting", "mine.py:by_group", base=tmp_path)
    resolve_members(validate({"weighting": "by_group_of_raw", "advantage": "raw"}), tmp_path)
    with pytest.raises(ConfigError, match=r"weighting = 'by_group_of_raw' presumes advantage = 'raw', .* is 'grpo'"):
        resolve_members(validate({"weighting": "by_group_of_raw"}), tmp_path)


@pytest.mark.parametrize("loss", ["clip", "raft_plus_plus", "cispo", "gspo"])
@pytest.mark.parametrize("side", ["low", "high"])
def test_the_earlier_names_of_the_clip_lead_to_its_names(loss, side):
    expected = f"loss.{side}: the loss '{loss}' has no such option; did you mean 'clip_{side}'"
    with pytest.raises(ConfigError, match=expected):
        bind(resolve("loss", loss), {side: 0.2}, key="loss")


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ("ppo", "PPO's clipped policy loss, with advantage = 'gae' and a [critic], which is the value model"),
        ("grpo", "GRPO's, with advantage = 'grpo'; its KL to a reference is one of the `terms`"),
        ("dr_grpo", "Dr. GRPO's, with advantage = 'dr_grpo' and weighting = 'constant'"),
        ("dapo", "DAPO's, with clip_high = 0.28 and weighting = 'token'"),
    ],
)
def test_an_algorithm_leads_to_its_clipped_loss(algorithm, said):
    with pytest.raises(ConfigError, match=re.escape(f"no loss is called {algorithm!r}; 'clip' is {said}")):
        resolve("loss", algorithm)


def test_an_algorithm_leads_to_its_advantage():
    with pytest.raises(ConfigError, match=r"no advantage is called 'ppo'; 'gae' is PPO's, with a \[critic\]"):
        resolve("advantage", "ppo")
