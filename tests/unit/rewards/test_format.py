"""A reward by a regular expression, and the reward of the PODS slides from the command line."""

from __future__ import annotations

import numpy as np
import pytest

from refusals import refused
from winnow.config_file import load
from winnow.errors import ConfigError
from winnow.recipes import recipe_paths
from winnow.records import Prompt, Rollout
from winnow.rewards.compose import make_reward
from winnow.training.resolve import resolve_members, reward_spec

PROMPT = Prompt(id="p", tokens=np.zeros(1, np.int64), text="What is 4 + 6?", answer="10", task="t")
CONFIG = recipe_paths()["arithmetic"]
SLIDE = [("Answer: 10.", 100.0), ("Answer: 0.", 20.0), ("The answer is 10.", 80.0), ("It is 0.", 0.0)]


def of(text):
    return Rollout(index=0, tokens=np.zeros(1, np.int64), logprobs=np.zeros(1), text=text, finish="stop", version=0)


@pytest.mark.parametrize(
    ("options", "text", "reward"),
    [
        ({"pattern": "b+"}, "abba", 1.0),
        ({"pattern": "b+", "whole": True}, "abba", 0.0),
        ({"pattern": "ab+a", "whole": True}, "abba", 1.0),
        ({"pattern": "ab+a", "whole": True}, "abba\n", 0.0),
        ({"pattern": "^b"}, "a\nb", 0.0),
        ({"pattern": "(?m)^b"}, "a\nb", 1.0),
        ({"pattern": "B"}, "abba", 0.0),
        ({"pattern": "(?i)B"}, "abba", 1.0),
        ({"pattern": "a.b"}, "a\nb", 0.0),
        ({"pattern": "(?s)a.b"}, "a\nb", 1.0),
    ],
)
def test_a_part_or_the_whole_of_the_text_matches(options, text, reward):
    outcome = make_reward({"use": "pattern", "options": options})(PROMPT, of(text))
    assert outcome.reward == reward
    assert outcome.kind == ("correct" if reward else "wrong")


@pytest.mark.parametrize("pattern", ["", "(", "[a", "a{2,1}", "(?P<1>a)", "a{99999999999999999999}"])
def test_an_invalid_pattern_is_refused_before_a_run(pattern):
    with refused(ConfigError, key="reward.pattern", code="config.value"):
        make_reward({"use": "pattern", "options": {"pattern": pattern}})


def test_a_pattern_has_to_be_given():
    with refused(ConfigError, key="reward.pattern", code="config.missing_key"):
        make_reward({"use": "pattern"})


@pytest.mark.parametrize(("text", "reward"), SLIDE)
def test_the_reward_of_the_slides_from_the_command_line(text, reward):
    """80 for the right number and 20 for the form "Answer: N.", as one --set."""
    parts = r"""{use="numeric", weight=80}, {use="pattern", pattern='Answer: -?\d+\.', weight=20}"""
    members = resolve_members(load(CONFIG, [f"reward={{parts=[{parts}]}}"]), CONFIG.parent)
    assert make_reward(reward_spec(members.config))(PROMPT, of(text)).reward == reward
