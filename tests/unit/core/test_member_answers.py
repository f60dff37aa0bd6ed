"""A wrong result of a user's function is refused, with its family and the result, before it is used."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import winnow
from refusals import refused
from winnow.algos.advantage import check_credits
from winnow.algos.objective import Objective, Term
from winnow.algos.selectors import chain, keep_all, threshold
from winnow.commands import app
from winnow.config_file import validate
from winnow.core.plan import check_counts
from winnow.core.select import carries_signal
from winnow.core.step import scatter
from winnow.engines.sampling import choose, to_host
from winnow.errors import ConfigError, EngineError
from winnow.options import bind
from winnow.records import PolicyOutput, Sampling
from winnow.registry import resolve
from winnow.testing import RNG, group_of, micro_batch
from winnow.training.resolve import resolve_members

OUT = PolicyOutput(logprobs=torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64))
BATCH = micro_batch([1.0, 0.5, -1.0])


def plain(out, mb):
    return -mb.advantages * out.logprobs, {}


def wrong_result(key, *named):
    """A refusal of what a member returned; `named` are its shape, its type, or its values."""
    return refused(ConfigError, *named, key=key, code="config.member_result")


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        (lambda out, mb: -mb.advantages * out.logprobs, ["(3,)"]),
        (lambda out, mb: (out.logprobs.mean(), {}), ["()", 3]),
        (lambda out, mb: (out.logprobs[:, None], {}), ["(3, 1)", 3]),
        (lambda out, mb: (1.0, {}), ["float", 3]),
        (lambda out, mb: (out.logprobs, None), ["tuple"]),
        (lambda out, mb: None, ["NoneType"]),
        (lambda out, mb: (out.logprobs, {"gap": out.logprobs.mean()}), ["'gap'", "()", 3]),
    ],
)
def test_a_loss_returns_a_number_per_token_and_diagnostics(loss, named):
    with wrong_result("loss", *named):
        Objective(loss)(OUT, BATCH)


def test_a_term_returns_a_number_per_token():
    with wrong_result("terms", "'mine'", "()", 3):
        Objective(plain, (Term("mine", 0.1, lambda out, mb: out.logprobs.mean()),))(OUT, BATCH)


def test_a_loss_gets_no_masked_token():
    mb = micro_batch([1.0, 0.5, -1.0], trained=torch.tensor([0, 2]))
    assert Objective(plain)(OUT, mb).total.item() == pytest.approx(1.0 - 3.0)
    with wrong_result("loss", "(3,)", 2):
        Objective(lambda out, mb: (OUT.logprobs, {}))(OUT, mb)


def test_a_ragged_result_is_refused_as_an_object():
    with wrong_result("allocate", "object"):
        check_counts([[1], [2, 3]], 2, 8)
    with wrong_result("select", "object"):
        chain([lambda group, rng: [[True], [True, False]]])(group_of([1.0, 0.0]), RNG)


@pytest.mark.parametrize(
    ("result", "named"),
    [
        (np.ones(3, dtype=bool), ["bool", "(3,)", 4]),
        (np.array([0, 1, 1, 0]), ["int64", "(4,)"]),
        ([0, 2], ["int64", "(2,)"]),
        (True, ["bool", "()"]),
        (None, ["object", "()"]),
    ],
)
def test_a_selector_returns_a_mask(result, named):
    group = group_of([0.0, 1.0, 0.0, 1.0])
    with wrong_result("select", *named):
        chain([keep_all, lambda group, rng: result])(group, RNG)


def test_a_mask_may_be_a_list_and_no_selector_gets_an_empty_group():
    group = group_of([0.0, 1.0])
    assert chain([lambda group, rng: [False, True]])(group, RNG).tolist() == [False, True]

    def never_called(group, rng):
        raise AssertionError(len(group.rollouts))

    none = chain([lambda group, rng: threshold(group, rng, low=2.0), never_called])
    assert none(group, RNG).tolist() == [False, False]


GROUPS = [group_of([0.0, 1.0], prompt="a", lengths=[2, 3]), group_of([1.0], prompt="b"), group_of([], prompt="c")]


@pytest.mark.parametrize(
    ("result", "named"),
    [
        (0.5, ["0.5", 3]),
        (None, ["None", 3]),
        ([np.zeros(2)], [3]),
        ([0.5, [0.0], []], ["0.5", 2, "'a'"]),
        ([np.zeros(3), [0.0], []], [2, "'a'"]),
        ([[0.0, 1.0], [np.nan], []], ["nan", 1, "'b'"]),
        ([[[0.0, 0.0], [1.0, 1.0]], [0.0], []], [2, "'a'"]),
        ([["no", "numbers"], [0.0], []], [2, "'a'"]),
        ([[0.0, [0.0, 0.0, 0.0]], [0.0], []], [2, "'a'"]),
    ],
)
def test_an_advantage_returns_a_number_per_rollout_or_token(result, named):
    with wrong_result("advantage", *named):
        check_credits(result, GROUPS)


def test_plain_lists_and_ragged_sequences_are_advantages():
    per_rollout, per_token, empty = check_credits([[1, -1], [[0.5, 0.5, 0.5]], []], GROUPS)
    assert per_rollout.tolist() == [1.0, -1.0]
    assert [numbers.tolist() for numbers in per_token] == [[0.5, 0.5, 0.5]]
    assert len(empty) == 0
    ragged = check_credits([[np.ones(2), np.zeros(3)], [0.0], ()], GROUPS)[0]
    assert [numbers.tolist() for numbers in scatter(GROUPS[0], ragged)] == [[1.0, 1.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("result", "named"),
    [
        ([2, 2], ["int64", "(2,)", 3, 6]),
        (np.full(3, 2.0), ["float64", "(3,)"]),
        (6, ["int64", "()"]),
        ([-1, 4, 3], [-1, 3, 6]),
        ([3, 3, 3], [9, 3, 6]),
        ([0, 0, 0], [0, 3, 6]),
    ],
)
def test_an_allocator_returns_counts_within_the_budget(result, named):
    with wrong_result("allocate", *named):
        check_counts(result, 3, 6)


def test_counts_may_be_a_list_and_less_than_the_budget():
    assert check_counts([1, 0, 2], 3, 6).tolist() == [1, 0, 2]
    assert check_counts(np.array([2, 2, 2], dtype=np.int32), 3, 6).dtype == np.int64


def carries(rewards, *, keep=None, **advantage):
    """Whether a group carries a signal when all or some of its rollouts are kept."""
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
    for name, signals in expected.items():
        assert [carries(rewards, use=name) for rewards in (right, wrong, mixed, failed)] == signals, name


def test_a_signal_is_an_advantage_of_a_kept_rollout():
    """Flat chunks have no advantage, and neither have equal rewards after the selection, unless all are compared. RAFT
    gives an advantage to right answers alone, whatever the reward.
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
def test_logits_that_are_not_finite_are_refused(bad, temperature, cut):
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, bad, 1.0]])
    if bad < 0:
        logits[1] = bad  # a single -inf is a token that cannot occur
    sampling = Sampling(max_new_tokens=1, temperature=temperature, **cut)
    with refused(EngineError, key="optimizer.learning_rate", code="engine.diverged"):
        to_host(*choose(logits, torch.tensor([0.5, 0.5]).double(), sampling))


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
        ("sampler", "greso", "least", 0.0),
        ("sampler", "mopps", "candidates", 0),
        ("sampler", "cures", "temperature", 0.0),
        ("sampler", "retire", "patience", 0),
        ("advantage", "grpo", "eps", -1e-4),
        ("advantage", "batch", "eps", -1e-4),
        ("weighting", "constant", "tokens", 0),
    ],
)
def test_options_outside_their_range_are_refused_by_key(family, member, option, value):
    with refused(ConfigError, value, key=f"here.{option}", code="config.value"):
        bind(resolve(family, member), {option: value}, key="here")


@pytest.mark.parametrize(
    ("family", "member", "option"),
    [("allocator", "gvm", "maximum"), ("round", "pilot_commit", "pilot"), ("cut", "unlikely", "after")],
)
def test_an_option_of_more_than_64_bits_is_refused_by_key(family, member, option):
    with refused(ConfigError, 2**63, key=f"here.{option}", code="config.combination"):
        bind(resolve(family, member), {option: 2**63}, key="here")


def test_bounds_accept_the_values_of_the_papers():
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
def test_a_run_refuses_a_wrong_result_of_a_function(key, function, smallest):
    with wrong_result(key):
        winnow.train(**smallest(**{key: function}, verify={"workers": 0}), watch=lambda event: None)


def test_a_run_whose_weights_diverge_is_refused(smallest):
    from winnow.engines.native.sampler import Native

    def poisoned(context):
        with torch.no_grad():
            next(context.model.parameters()).fill_(float("nan"))
        return Native(context)

    config = smallest(rollout={"engine": poisoned}, verify={"workers": 0})
    with refused(EngineError, key="optimizer.learning_rate", code="engine.diverged"):
        winnow.train(**config, watch=lambda event: None)


def raising_allocator(stats, budget):
    return np.full(len(stats.ids), budget // 0)


def raising_selector(group, rng):
    return deeper(group.rewards)


def deeper(rewards):
    return rewards[[99]] > 0  # numpy raises; the message has to name this line


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


# key, member, family, the name of the function, names of the exception, the function of the line
RAISING = [
    ("allocate", raising_allocator, "allocator", "raising_allocator", ["ZeroDivisionError"], "raising_allocator"),
    ("select", raising_selector, "selector", "raising_selector", ["IndexError", 99], "deeper"),
    ("select", RaisingSelector(), "selector", "RaisingSelector", ["RuntimeError", "from an object"], "__call__"),
    (
        "advantage",
        raising_advantage,
        "advantage",
        "raising_advantage",
        ["AttributeError", "'rewads'"],
        "(<listcomp>|raising_advantage)",
    ),
    ("weighting", raising_weighting, "weighting", "raising_weighting", ["KeyError: 'no such weight'"], "raising_weigh"),
    ("loss", raising_loss, "loss", "raising_loss", ["RuntimeError"], "raising_loss"),
    ("terms", [{"use": raising_term, "coefficient": 1.0}], "term", "raising_term", ["ValueError"], "raising_term"),
]


@pytest.mark.parametrize(("key", "member", "family", "name", "exception", "function"), RAISING)
def test_a_user_function_that_raises_is_named_with_its_line(key, member, family, name, exception, function, smallest):
    with refused(ConfigError, family, repr(name), *exception, code="config.user_code") as caught:
        winnow.train(**smallest(**{key: member}, verify={"workers": 0}), watch=lambda event: None)
    place = re.search(rf"{re.escape(__file__)}, line (\d+), in {function}", str(caught.value))
    assert place, caught.value
    assert caught.value.__cause__ is not None
    line = Path(__file__).read_text().splitlines()[int(place[1]) - 1]
    assert re.search(r"budget // 0|\[\[99\]\]|rewads|raise |@ out", line)


def test_a_critic_that_raises_is_named(smallest):
    with refused(ConfigError, "critic", "KeyError: 'values'", "raising_critic", code="config.user_code"):
        winnow.train(**smallest(verify={"workers": 0}), critic=raising_critic, watch=lambda event: None)


def test_an_exception_in_a_member_of_winnow_keeps_its_traceback():
    bound = bind(resolve("selector", "max_variance"), {"keep_per_prompt": 2}, key="select")
    with pytest.raises(AttributeError):
        bound(None, RNG)
    own = bind(resolve("selector", raising_selector), {}, key="select")
    with refused(ConfigError, "'raising_selector'", code="config.user_code"):
        own(None, RNG)


def test_a_deliberate_error_of_a_user_function_is_not_changed():
    error = winnow.DataError("these prompts are not mine")

    def refuse(group, rng):
        raise error

    with pytest.raises(winnow.DataError) as caught:
        bind(resolve("selector", refuse), {}, key="select")(None, RNG)
    assert caught.value is error


def test_a_function_of_a_file_that_raises_is_reported_without_traceback(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def half(group, rng):\n    middle = len(group.rollouts) / 2\n    return [][middle]\n"
    )
    (tmp_path / "run.toml").write_text(SMALL_RUN.format(folder=tmp_path))
    result = CliRunner().invoke(app, ["train", str(tmp_path / "run.toml")])
    assert result.exit_code == 1
    printed = " ".join(result.stderr.split())
    assert all(name in printed for name in ("'half'", "TypeError", f"{tmp_path}/mine.py, line 3"))
    assert "Traceback" not in printed


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


def test_an_alias_of_any_family_requires_what_it_presumes(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import winnow\n"
        '@winnow.register("weighting", "by_group", aliases={"by_group_of_raw": {"advantage": "raw"}})\n'
        "def by_group(kept):\n    'Every rollout counts the same.'\n    return 1.0 / kept.lengths\n"
    )
    resolve("weighting", "mine.py:by_group", base=tmp_path)
    resolve_members(validate({"weighting": "by_group_of_raw", "advantage": "raw"}), tmp_path)
    with refused(ConfigError, "'by_group_of_raw'", "'raw'", "'grpo'", key="weighting", code="config.combination"):
        resolve_members(validate({"weighting": "by_group_of_raw"}), tmp_path)


@pytest.mark.parametrize("loss", ["clip", "raft_plus_plus", "cispo", "gspo"])
@pytest.mark.parametrize("side", ["low", "high"])
def test_an_earlier_name_of_a_clip_option_has_the_new_name_as_remedy(loss, side):
    with refused(ConfigError, repr(loss), key=f"loss.{side}", code="config.unknown_key") as caught:
        bind(resolve("loss", loss), {side: 0.2}, key="loss")
    assert f"'clip_{side}'" in caught.value.remedy


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ppo", ['advantage = "gae"', "critic"]),
        ("grpo", ['advantage = "grpo"', 'weighting = "sequence"']),
        ("dr_grpo", ['advantage = "dr_grpo"', 'weighting = "constant"']),
        ("dapo", ["clip_high = 0.28", 'weighting = "token"']),
    ],
)
def test_an_algorithm_named_as_loss_has_its_settings_as_remedy(algorithm, settings):
    with refused(ConfigError, repr(algorithm), code="config.unknown_member") as caught:
        resolve("loss", algorithm)
    assert all(text in caught.value.remedy for text in ("'clip'", *settings))


def test_an_algorithm_named_as_advantage_has_its_settings_as_remedy():
    with refused(ConfigError, "'ppo'", code="config.unknown_member") as caught:
        resolve("advantage", "ppo")
    assert all(text in caught.value.remedy for text in ("'gae'", "critic"))
