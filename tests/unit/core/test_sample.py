"""One step ahead: the order of plans, requests and weights, the thread, and what a resume needs."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

import winnow
from logged_groups import read_rollouts
from refusals import refused
from winnow.config_file import validate
from winnow.core.progress import Ahead
from winnow.core.sample import StepRequest, take
from winnow.core.saving import Boundary, reached
from winnow.engines.freshness import sampling_version
from winnow.errors import ConfigError, EngineError, RunFolderError, VerifierError
from winnow.records import Group, Prompt, Rollout, Sampling
from winnow.state.history import History
from winnow.state.logbook import read_metrics
from winnow.state.pending import PendingGroups
from winnow.training.resolve import resolve_members

SCRIPT = ["1+2=3", "17", "a", "b"]


def settings(smallest, **changes):
    rollout = {"ahead": 1, "engine": {"use": "scripted", "script": SCRIPT}}
    base = {"correction": "token_truncate", "rollout": rollout, "evaluate": {"every": 2}, "checkpoint": {"every": 1}}
    return smallest(**{**base, **changes})


def train(config, **more):
    return winnow.train(**config, progress=False, **more)


PROMPTS = tuple(Prompt(id=name, tokens=np.array([1]), text=name, answer="", task="t") for name in "abc")


def request_of(step, *, ahead, totals):
    """The request of a step of a run that cuts nothing; `totals` gets the rollouts of each round."""
    run = SimpleNamespace(
        seed=7,
        sampling=Sampling(max_new_tokens=5),
        config=SimpleNamespace(rollout=SimpleNamespace(ahead=ahead)),
        members=SimpleNamespace(cut=SimpleNamespace(traits=SimpleNamespace(cuts=False))),
    )
    history = History([prompt.id for prompt in PROMPTS])
    return StepRequest(run, step, PROMPTS, np.array([2, 0, 3]), history, totals.append, nullcontext)


@pytest.mark.parametrize(("ahead", "version"), [(0, 4), (1, 3)])
def test_each_round_has_seeds_of_its_own_and_the_version_of_the_step(ahead, version):
    totals = []
    request = request_of(4, ahead=ahead, totals=totals)
    first, third = request.round(request.counts), request.round(np.array([1, 0, 0]), number=2, spent=9)
    assert (first.seed, third.seed) == ((7, "rollout", 4), (7, "rollout", 4, "round", 2))
    assert (first.counts, third.counts) == ([2, 0, 3], [1, 0, 0])
    assert (first.version, third.version) == (version, version)
    assert first.prompts is third.prompts is PROMPTS
    assert (totals, first.cut) == ([5, 1], None)


def test_rollouts_that_are_complete_are_taken_once_and_only_by_their_step():
    ahead, request = Ahead(), request_of(4, ahead=1, totals=[])
    rollout = Rollout(index=0, tokens=np.array([1]), logprobs=np.zeros(1), text="", finish="stop", version=3)
    groups = tuple(Group(prompt=prompt, rollouts=(rollout,), outcomes=()) for prompt in PROMPTS)
    ahead.pending = PendingGroups(4, groups)
    assert take(request, ahead) == list(groups)
    assert ahead.pending is None
    ahead.pending = PendingGroups(4, tuple(Group(prompt=PROMPTS[0], rollouts=(rollout,), outcomes=()) for _ in "a"))
    stale = request_of(4, ahead=0, totals=[])
    with refused(EngineError, code="engine.stale_weights"):
        take(stale, ahead)  # version 3 where the configuration names 4


def test_steps_0_and_1_share_version_0():
    assert [sampling_version(step, 1) for step in range(4)] == [0, 0, 1, 2]
    assert [sampling_version(step, 0) for step in range(4)] == [0, 1, 2, 3]


def test_every_rollout_has_the_version_of_the_step_before(smallest, tmp_path):
    train(settings(smallest, steps=4))
    versions = {step: set() for step in range(4)}
    for logged in read_rollouts(tmp_path / "run"):
        versions[logged.step] |= {rollout.version for rollout in logged.group.rollouts}
    assert versions == {0: {0}, 1: {0}, 2: {1}, 3: {2}}


def test_a_step_without_a_next_one_samples_nothing_ahead(smallest, tmp_path):
    train(settings(smallest, steps=3))
    rows = [row for row in read_metrics(tmp_path / "run") if "budget/rollouts" in row]
    assert ["ahead/seconds_sampling" in row for row in rows] == [True, True, False]
    assert ["seconds/generate" in row for row in rows] == [True, False, False]


def test_mismatch_is_measured_beside_evaluations_and_staleness_in_every_step(smallest, tmp_path):
    train(settings(smallest, steps=3))
    rows = read_metrics(tmp_path / "run")
    for name in ("policy/mismatch_kl", "policy/parity_alarm", "budget/mismatch_tokens"):
        assert [row["step"] for row in rows if name in row] == [0, 2, 3]
    steps = [row for row in rows if "budget/rollouts" in row]
    assert ["policy/staleness_kl" in row for row in steps] == [row["budget/updates"] > 0 for row in steps]


def test_ahead_0_has_none_of_its_metrics(smallest, tmp_path):
    config = settings(smallest, steps=2)
    config["rollout"]["ahead"] = 0
    train(config)
    names = {name for row in read_metrics(tmp_path / "run") for name in row}
    assert not {name for name in names if name.startswith(("ahead/", "policy/staleness", "seconds/wait"))}


def test_a_resume_with_another_value_is_refused(smallest):
    config = settings(smallest, steps=2)
    train(config)
    config["rollout"]["ahead"], config["steps"] = 0, 3
    with refused(RunFolderError, key="rollout.ahead", code="run_folder.changed"):
        train(config, resume=True)


def test_a_finished_run_cannot_get_more_steps(smallest):
    config = settings(smallest, steps=2)
    train(config)
    train(config, resume=True)  # nothing is left to do
    with refused(RunFolderError, 2, key="rollout.ahead", code="run_folder.changed"):
        train({**config, "steps": 3}, resume=True)


def test_rollouts_for_a_draw_from_other_prompts_are_refused(smallest, tmp_path):
    """The prompts that were sampled exist still, and the draw that they are of does not."""
    config = settings(smallest, steps=4, checkpoint={"every": 1, "keep_last": 3})
    train(config)
    for step in (3, 4):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{step:06d}", ignore_errors=True)
    config["task"]["train_size"] = 20
    with refused(RunFolderError, 2, key="task", code="run_folder.changed"):
        train(config, resume=True, allow_change=["task.train_size"])


def test_an_engine_that_fails_ahead_ends_the_run_and_a_resume_repeats_the_step(smallest, tmp_path):
    """It fails on its third request of four prompts: that of step 2, which is sampled during step 1."""
    calls = []

    def script(prompt, index):
        calls.append(prompt.id)
        if not failed and len(calls) > 2 * 16 + 60:
            failed.append(True)
            raise EngineError("on purpose", code="engine.failed")
        return SCRIPT[index % 4]

    failed = []
    config = settings(smallest, steps=4, evaluate={"problems": 1, "rollouts_per_prompt": 1, "every": 0})
    config["rollout"]["engine"] = {"use": "scripted", "script": script}
    with refused(EngineError, code="engine.failed"):
        train(config)
    assert failed
    assert train(config, resume=True).steps == 4
    rows = [row["step"] for row in read_metrics(tmp_path / "run") if "budget/rollouts" in row]
    assert rows == [0, 1, 2, 3]


def test_wait_returns_and_raises_what_the_thread_did():
    ahead = Ahead()
    assert not ahead.under_way
    ahead.begin(lambda: threading.current_thread().name)
    assert ahead.under_way
    assert ahead.wait() == "winnow-ahead"
    assert not ahead.under_way

    def fail():
        raise EngineError("on purpose", code="engine.failed")

    ahead.begin(fail)
    with refused(EngineError, code="engine.failed"):
        ahead.wait()


def test_stop_ends_a_thread_at_its_next_rollout():
    ahead, closed = Ahead(), []

    class Engine:
        def close(self):
            closed.append(True)

    rollout = Rollout(index=0, tokens=np.array([1]), logprobs=np.zeros(1), text="", finish="stop", version=0)
    ended = threading.Event()

    def sample():
        try:
            while True:
                ahead.check(rollout)
                time.sleep(0.001)
        finally:
            ended.set()

    ahead.begin(sample)
    ahead.stop(Engine())
    assert (ended.is_set(), closed, ahead.under_way) == (True, [True], False)
    ahead.stop(Engine())
    assert closed == [True]


def resolved(tmp_path, **changes):
    base = {
        "threads": 1,
        "device": "cpu",
        "correction": "token_truncate",
        "rollout": {"ahead": 1, "engine": {"use": "native", "process": "own"}},
    }
    for key, value in changes.items():
        base[key] = {**base[key], **value} if isinstance(value, dict) and isinstance(base.get(key), dict) else value
    return resolve_members(validate({name: of for name, of in base.items() if of is not None}), tmp_path)


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("allocate", {"allocate": "gvm"}),
        ("correction", {"correction": None}),
        ("rollout.ahead", {"rollout": {"engine": "native"}}),
        ("rollout.ahead", {"rollout": {"engine": "auto"}}),
        ("rollout.engine", {"rollout": {"engine": "hf"}}),
        ("threads", {"threads": 0}),
        ("rollout.engine.process", {"rollout": {"engine": {"use": "native", "process": "own", "dtype": "bfloat16"}}}),
        ("rollout.engine.process", {"model": {"lora": {"rank": 2}, "dtype": "bfloat16"}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_compose_is_refused_before_a_model_is_loaded(key, changes, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with refused(ConfigError, key=key, code="config.combination"):
        resolved(tmp_path, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"correction": "none"},
        {"correction": {"old": "engine"}},
        {"rounds": "screening"},
        {"rollout": {"dynamic_sampling_rounds": 2}},
        {"allocate": "gvm_online"},
        {"sample": "greso"},
    ],
)
def test_what_composes_is_accepted(changes, tmp_path):
    assert resolved(tmp_path, **changes).config.rollout.ahead == 1


def test_vllm_needs_a_process_and_on_a_gpu_a_device_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("winnow.engines.vllm.engine._cuda_devices", lambda: 1)
    for engine in ({"use": "vllm"}, {"use": "vllm", "process": "own"}):
        with refused(ConfigError, key="rollout.ahead", code="config.combination"):
            resolved(tmp_path, device="cuda", rollout={"engine": engine})
    monkeypatch.setattr("winnow.engines.vllm.engine._cuda_devices", lambda: 2)
    second = {"use": "vllm", "process": "own", "device": "cuda:1"}
    assert resolved(tmp_path, device="cuda", rollout={"engine": second}).engine.name == "vllm"


def test_a_step_without_an_update_is_repeated_where_the_next_one_is_not_complete():
    run = SimpleNamespace(config=SimpleNamespace(steps=9, rollout=SimpleNamespace(ahead=1)), taken=3)
    progress = SimpleNamespace(written=4, ahead=Ahead())
    before = Boundary(4, 3, History([]), None, {})
    assert reached(run, progress, before) is before
    run.taken = 4
    assert reached(run, progress, before) is None


def test_an_engine_that_fails_ahead_of_a_step_without_an_update_loses_nothing(smallest):
    calls = []

    def script(prompt, index):
        calls.append(prompt.id)
        if len(calls) > 2 * 16 + 60:
            raise EngineError("on purpose", code="engine.failed")
        return SCRIPT[index % 4]

    config = settings(
        smallest,
        steps=4,
        checkpoint={"every": 0},
        reward=lambda prompt, rollout: 0.0,
        evaluate={"problems": 1, "rollouts_per_prompt": 1, "every": 0},
    )
    config["rollout"]["engine"] = {"use": "scripted", "script": script}
    with refused(EngineError, code="engine.failed") as caught:
        train(config)
    assert "are saved in" in "\n".join(caught.value.__notes__)


def test_verdicts_that_failed_ahead_are_given_again_by_a_resume(smallest, tmp_path):
    """The rollouts of version 1 are those of step 2, which are judged during step 1."""
    down = tmp_path / "down"
    down.touch()

    def reward(prompt, rollout):
        if rollout.version == 1 and down.exists():
            raise RuntimeError("the judge is down")
        return float(rollout.index)

    config = settings(smallest, steps=4, reward=reward)
    with refused(VerifierError, code="verifier.failed"):
        train(config)
    down.unlink()
    assert train(config, resume=True).steps == 4
