"""rollout.ahead = 1 on two ranks: the same bits with engines of other speeds, and after SIGKILL of a rank."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import runs
from ranked import CaseError, Group

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
from ahead_lives import ENGINE, POINTS, chaos

from winnow.config_file import validate
from winnow.errors import ConfigError
from winnow.training.resolve import resolve_members

CASE = "ahead_cases:ran"
STEPS = 3
OF_THE_CLOCK = (*chaos.CLOCK, "ahead/seconds", "ranks/seconds_waiting", "ranks/waiting_share", "ranks/slowest")
SLOW = pytest.mark.slow
WRITTEN = "pending rollouts half written"  # by rank 0 alone


def config_of(folder: Path, tiny_folder: Any, name: str, **more: Any) -> dict[str, Any]:
    rollout = {"prompts_per_step": 2, "rollouts_per_prompt": 4, "ahead": 1, "engine": {"use": f"{ENGINE}:slow"}}
    folder.mkdir(exist_ok=True)
    return runs.small(
        folder,
        tiny_folder("qwen2"),
        steps=STEPS,
        output=str(folder / name),
        rollout={**rollout, **more},
        correction="token_truncate",
        checkpoint={"every": 1, "keep_last": 1},
        update={"updates_per_step": 2},
        evaluate={"every": 2, "problems": 2, "rollouts_per_prompt": 2},
        task={"size": 6},
    )


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(chaos, "STEPS", STEPS)
    monkeypatch.setattr(chaos, "CLOCK", OF_THE_CLOCK)
    return chaos.what_is_left


@pytest.fixture
def calm(tmp_path: Path, tiny_folder: Any, two_ranks: Group, left: Any) -> dict[str, str]:
    """What an undisturbed run leaves."""
    config = config_of(tmp_path, tiny_folder, "calm")
    two_ranks.run(CASE, config)
    found: dict[str, str] = left(Path(config["output"]))
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", [(1,), pytest.param(range(2, 11), marks=SLOW)], ids=["one", "nine"])
def test_engines_of_other_speeds_leave_the_same_bits(seeds, tmp_path, tiny_folder, two_ranks, left, calm):
    for seed in seeds:
        config = config_of(tmp_path, tiny_folder, f"slow-{seed}")
        two_ranks.run(CASE, config, sleeps=seed)
        assert left(Path(config["output"])) == calm, seed


@pytest.mark.slow  # 12 runs of two ranks, each resumed
@pytest.mark.timeout(1800)
def test_a_rank_that_is_killed_leaves_a_run_that_resumes_to_the_same_bits(tmp_path, tiny_folder, two_ranks, left, calm):
    for place, point in enumerate(POINTS):
        config = config_of(tmp_path, tiny_folder, f"killed-{place}")
        of_rank = 0 if point.name == WRITTEN else place % 2
        with pytest.raises(CaseError, match=r"ended with -9"):
            two_ranks.run(CASE, config, strike=point.name, of_rank=of_rank)
        two_ranks.run(CASE, config)
        assert left(Path(config["output"])) == calm, point.name


@pytest.mark.parametrize(
    ("key", "changes"),
    [("rollout.dynamic_sampling_rounds", {"dynamic_sampling_rounds": 2}), ("rounds", {})],
)
def test_what_would_need_an_exchange_while_the_policy_is_trained_is_refused(
    key, changes, tmp_path, tiny_folder, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", "2")
    config = config_of(tmp_path, tiny_folder, "refused", **changes)
    rounds = {} if changes else {"rounds": "screening"}
    with pytest.raises(ConfigError) as raised:
        resolve_members(validate({**config, **rounds}), tmp_path)
    assert raised.value.key == key
