from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refusals import refused
from winnow.config_file import validate
from winnow.environments.judging import warm
from winnow.errors import ConfigError, StoppedBySignal
from winnow.records import Outcome, Prompt, Rollout
from winnow.rewards.compose import make_reward
from winnow.rewards.outcomes import failure

PROMPT = Prompt(id="p", tokens=np.zeros(1, np.int64), text="Q<think>", answer="42", task="t")


def rollout(text: str) -> Rollout:
    empty = np.zeros(0)
    return Rollout(index=0, tokens=empty.astype(np.int64), logprobs=empty, text=text, finish="stop", version=0)


RIGHT = rollout("r</think> <answer>42</answer>")
WRONG = rollout("r</think> <answer>41</answer>")
NO_FORMAT = rollout("42")


def exact_text(prompt: Prompt, rollout: Rollout) -> bool:
    return rollout.text == "42"


def length(prompt: Prompt, rollout: Rollout, *, scale: float = 1.0) -> float:
    return scale * len(rollout.text)


def boom(prompt: Prompt, rollout: Rollout) -> float:
    raise KeyError("no such answer")


def leave(prompt: Prompt, rollout: Rollout) -> float:
    raise SystemExit(3)


def cancelled(prompt: Prompt, rollout: Rollout) -> float:
    raise asyncio.CancelledError


def closed(prompt: Prompt, rollout: Rollout) -> float:
    raise GeneratorExit


class Cancels:
    """What a reward returns, and cannot be read as a number."""

    def __float__(self) -> float:
        raise asyncio.CancelledError


def cancels_later(prompt: Prompt, rollout: Rollout) -> Any:
    return Cancels()


def hungry(prompt: Prompt, rollout: Rollout) -> float:
    raise MemoryError


def undecided(prompt: Prompt, rollout: Rollout) -> Outcome:
    return failure("sandbox", "no sandbox here")


def test_a_single_reward_by_name() -> None:
    assert make_reward({"use": "r1_zero"})(PROMPT, RIGHT).reward == 1.0


def test_the_slide_of_100_20_80() -> None:
    """80 for the answer and 20 for the format: both 100, the format alone 20, the answer alone 80."""
    format_first = {"use": "format", "weight": 20}
    score = make_reward({"parts": [{"use": "numeric", "weight": 80}, format_first]})
    assert score(PROMPT, RIGHT).reward == 100.0
    assert score(PROMPT, WRONG).reward == 20.0
    assert score(PROMPT, rollout("</think>42")).reward == 80.0
    assert score(PROMPT, rollout("</think>41")).reward == 0.0


@pytest.mark.parametrize(
    ("shaping", "format_weight", "tags_weight", "right", "wrong"),
    [
        ("if_wrong", 0.1, 0.1, 1.0, 0.2),  # {1} and [0, 0.2]
        ("always", 0.01, 0.01, 1.02, 0.02),
        ("always", 0.1, 0.1, 1.2, 0.2),
        ("always", 1.0, 1.0, 3.0, 2.0),
    ],
)
def test_the_published_reward_mixtures(
    shaping: str, format_weight: float, tags_weight: float, right: float, wrong: float
) -> None:
    score = make_reward(
        {
            "parts": [
                {"use": "numeric"},
                {"use": "format", "weight": format_weight},
                {"use": "tag_count", "weight": tags_weight},
            ],
            "shaping": shaping,
        }
    )
    assert score(PROMPT, RIGHT).reward == pytest.approx(right, abs=1e-12)
    assert score(PROMPT, WRONG).reward == pytest.approx(wrong, abs=1e-12)
    for text in ("", "x" * 200, "<answer>", "r</think> <answer>1</answer>" + "y" * 40):
        assert 0.0 <= score(PROMPT, rollout(text)).reward <= wrong + 1e-12


def test_the_first_part_decides_and_parts_are_logged_unweighted() -> None:
    score = make_reward({"parts": [{"use": "r1_zero", "weight": 80}, {"use": "format", "weight": 20}]})
    outcome = score(PROMPT, WRONG)
    assert (outcome.correct, outcome.kind, outcome.answer) == (False, "wrong", "41")
    assert outcome.parts == {"r1_zero": 0.0, "format": 1.0}
    assert score(PROMPT, NO_FORMAT).kind == "unparsable"
    shaped = make_reward({"parts": [{"use": "r1_zero"}, {"use": "format"}], "shaping": "if_wrong"})
    assert shaped(PROMPT, RIGHT).parts == {"r1_zero": 1.0, "format": 1.0}


def test_a_part_used_twice_has_two_names() -> None:
    score = make_reward({"parts": [{"use": "format"}, {"use": "format", "options": {"strict": True}}]})
    assert score(PROMPT, rollout("r</think> <answer>1</answer>!")).parts == {"format": 0.99, "format_2": 0.0}


def test_a_nameless_function_gets_a_name_that_metrics_can_carry() -> None:
    score = make_reward({"parts": [{"use": "r1_zero"}, {"use": lambda prompt, rollout: 0.5}]})
    assert score(PROMPT, RIGHT).parts == {"r1_zero": 1.0, "_lambda_": 0.5}


def test_a_function_itself_with_options() -> None:
    score = make_reward({"use": length, "options": {"scale": 0.5}})
    assert score(PROMPT, rollout("42")).reward == 1.0
    assert make_reward({"use": exact_text})(PROMPT, rollout("42")).correct is True


def test_a_function_from_a_file_relative_to_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def half(prompt, rollout, *, at=0.5):\n    return at\n", encoding="utf-8")
    score = make_reward({"use": "mine.py:half", "options": {"at": 0.25}}, base=tmp_path)
    assert score(PROMPT, RIGHT).reward == 0.25


def test_correct_at_is_declared_with_the_name(tmp_path: Path) -> None:
    source = (
        "from winnow.registry import register\n"
        "@register('reward', 'half_is_enough_for_this_test', correct_at=0.5)\n"
        "def half(prompt, rollout):\n    'Half of a point.'\n    return 0.5\n"
    )
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    assert make_reward({"use": "mine.py:half"}, base=tmp_path)(PROMPT, RIGHT).correct is True


@pytest.mark.parametrize(
    ("use", "cause", "shown"),
    [
        (boom, "raised", "KeyError: 'no such answer'"),
        (leave, "raised", "SystemExit: 3"),
        (hungry, "memory", "'hungry'"),
        (undecided, "sandbox", "no sandbox here"),
    ],
)
def test_whatever_the_function_does_there_is_an_outcome(use: Any, cause: str, shown: str) -> None:
    outcome = make_reward({"use": use})(PROMPT, RIGHT)
    assert (outcome.kind, outcome.cause) == ("failed", cause)
    assert shown in outcome.detail
    assert math.isnan(outcome.reward)


def test_a_raised_failure_names_the_function_and_its_line() -> None:
    detail = make_reward({"use": boom})(PROMPT, RIGHT).detail
    assert "'boom'" in detail
    assert 'raise KeyError("no such answer")' in detail


@pytest.mark.parametrize("shaping", ["always", "if_wrong"])
def test_any_failed_part_fails_the_whole(shaping: str) -> None:
    score = make_reward({"parts": [{"use": "r1_zero"}, {"use": boom, "weight": 0.0}], "shaping": shaping})
    outcome = score(PROMPT, RIGHT)
    assert (outcome.kind, outcome.cause) == ("failed", "raised")
    assert "'boom'" in outcome.detail.partition(":")[0]


@pytest.mark.parametrize("weight", [math.inf, "1", True, 2e6])
def test_a_weight_is_a_number_of_limited_size(weight: Any) -> None:
    with refused(ConfigError, key="reward.parts.0.weight", code="config.value"):
        validate({"reward": {"parts": [{"use": "r1_zero", "weight": weight}]}})


@pytest.mark.parametrize(
    ("spec", "key", "code", "named"),
    [
        ({"use": "r1_zeor"}, "reward", "config.unknown_member", "'r1_zero'"),
        ({"use": "r1_zero", "options": {"graeder": "math"}}, "reward.graeder", "config.unknown_key", "'grader'"),
        (
            {"parts": [{"use": "format"}, {"use": "numeric", "options": {"x": 1}}]},
            "reward.parts.1.x",
            "config.unknown_key",
            "numeric",
        ),
        (
            {"parts": [{"use": "format"}, {"use": "numeric", "options": {"relative_tolerance": 2}}]},
            "reward.parts.1.relative_tolerance",
            "config.value",
            2,
        ),
    ],
)
def test_mistakes_are_refused_with_their_key(spec: dict[str, Any], key: str, code: str, named: object) -> None:
    with refused(ConfigError, named, key=key, code=code):
        make_reward(spec)


def test_a_reward_of_a_file_is_prepared_as_it_declares(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import winnow\n"
        "seen = []\n"
        "def prepare(options):\n"
        "    seen.append(options['size'] // options['parts'])\n"
        "@winnow.register('reward', 'prepared', warm=prepare)\n"
        "def prepared(prompt, rollout, *, size: int = 6, parts: int = 2):\n"
        "    'Paid once it was prepared.'\n"
        "    return float(seen == [3])\n"
    )
    spec = {"use": "mine.py:prepared", "options": {}}
    score = make_reward(spec, base=tmp_path)
    assert score(PROMPT, RIGHT).reward == 0.0
    warm(spec, base=tmp_path)
    assert score(PROMPT, RIGHT).reward == 1.0
    with refused(ConfigError, "'warm'", "'prepared'", "ZeroDivisionError", "line 4", code="config.user_code"):
        warm({"parts": [{"use": "mine.py:prepared", "options": {"parts": 0}}]}, base=tmp_path)


@pytest.mark.parametrize("raises", [cancelled, closed, cancels_later])
def test_a_base_exception_fails_the_verdict_too(raises: Any) -> None:
    outcome = make_reward({"use": raises})(PROMPT, RIGHT)
    assert outcome.failed


@pytest.mark.parametrize("ending", [KeyboardInterrupt, StoppedBySignal])
def test_an_interruption_of_the_run_is_not_caught(ending: type[BaseException]) -> None:
    def interrupted(prompt: Prompt, rollout: Rollout) -> float:
        raise ending

    with pytest.raises(ending):
        make_reward({"use": interrupted})(PROMPT, RIGHT)
