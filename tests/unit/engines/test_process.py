"""An engine in a second process: the interface of any engine, exact weights, and every way in which it can fail.

The `shared` engine, and that of the trainer that is killed, are processes as a run starts them. The others are forks of
one that has torch imported; `forked_engine` has what differs.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from second_engines import digest

import forked
from forked_engine import fork_engines
from processes import alive, eventually
from refusals import refused
from winnow.engines.base import Tolerance
from winnow.engines.process import lifecycle
from winnow.engines.process.broadcast import GroupBroken, Rendezvous, SentWeights
from winnow.engines.process.child import import_factory, load, measure_memory
from winnow.engines.process.engine import SecondProcess
from winnow.engines.process.messages import Channel, ChannelClosed, Crashed, Done, LoadWeights, Sampled
from winnow.errors import ConfigError, EngineError, WinnowError
from winnow.memory.usage import Gauge
from winnow.metrics import check
from winnow.records import Group, Prompt, Rollout, Sampling

HERE = Path(__file__).parent
SAMPLING = Sampling(max_new_tokens=8)
TOLERANCE = Tolerance(mean=0.25, tail=0.5)
WEIGHTS = {
    "half": torch.randn(5, 3).to(torch.bfloat16),
    "matrix": torch.randn(7, 11).T,  # not contiguous
    "scalar": torch.tensor(3.5, dtype=torch.float64),
    "none": torch.zeros(0, 4),
    "table": torch.randn(64, 64),
}


def prompt(text: str) -> Prompt:
    return Prompt(id=f"id:{text}", tokens=np.array([1, 2]), text=text, answer="4", task="t", meta={"level": 1})


def start(make: str, options: Mapping[str, Any] | None = None, **more: Any) -> SecondProcess:
    return SecondProcess(make, options or {}, **{"timeout_seconds": 120.0, "start_seconds": 240.0, **more})


def start_fake(**more: Any) -> SecondProcess:
    return start("second_engines:fake", {"version": 0}, **more)


def generate(engine: SecondProcess, *texts: str, count: int = 2) -> list[Group]:
    return engine.generate([prompt(text) for text in texts], [count] * len(texts), SAMPLING, seed=("rollout", 1))


def identify(engine: SecondProcess) -> list[str]:
    """Return the engine's pid, its environment variable, and the digest of its weights."""
    return generate(engine, "x", count=1)[0].rollouts[0].text.split()


def gone(pid: int) -> bool:
    """Whether the process has exited and was reaped."""
    return not Path(f"/proc/{pid}").exists()


@pytest.fixture(scope="module")
def shared() -> Iterator[SecondProcess]:
    """One engine for the tests that do not end its process."""
    engine = start_fake(environment={"WINNOW_TEST_DEVICE": "7"})
    yield engine
    engine.close()


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that a test starts are forks."""
    fork_engines(monkeypatch)


@pytest.fixture
def engine(forks: None) -> Iterator[SecondProcess]:
    """An engine for a test that ends its process."""
    engine = start_fake()
    yield engine
    engine.close()


def test_the_engine_runs_in_another_process_with_its_environment(shared: SecondProcess) -> None:
    pid, device, _ = identify(shared)
    assert int(pid) != os.getpid()
    assert alive(int(pid))
    assert device == "7"
    assert shared.logprob_tolerance == TOLERANCE


def test_groups_match_counts_and_each_rollout_is_reported_once(shared: SecondProcess) -> None:
    same = prompt("same")
    prompts, counts = [prompt("a"), same, prompt("none"), same], [3, 1, 0, 2]
    reported: list[tuple[Prompt, Rollout]] = []
    groups = shared.generate(prompts, counts, SAMPLING, seed=(0,), on_rollout=lambda *pair: reported.append(pair))
    assert [group.prompt for group in groups] == prompts
    assert [[rollout.index for rollout in group.rollouts] for group in groups] == [[0, 1, 2], [0], [], [0, 1]]
    expected = {id(rollout): group.prompt for group in groups for rollout in group.rollouts}
    assert {id(rollout): of for of, rollout in reported} == expected
    assert len(reported) == 6
    third = groups[0].rollouts[2]
    assert (third.tokens.dtype, third.logprobs.dtype) == (np.int64, np.float64)
    np.testing.assert_array_equal(third.tokens, [0, 1, 2])
    np.testing.assert_array_equal(third.logprobs, -np.arange(3) / 3)
    assert {rollout.version for group in groups for rollout in group.rollouts} == {shared.version}


def test_weights_arrive_exactly_and_only_when_loaded(shared: SecondProcess) -> None:
    before = identify(shared)[2]
    new = {name: weight.clone() for name, weight in WEIGHTS.items()}
    assert identify(shared)[2] == before
    for changed in ({}, {"table": 2 * new["table"]}, {"more": torch.randn(300, 300)}):
        new |= changed
        shared.load(new, version=shared.version + 1)
        kept = digest(new)
        new["table"].zero_()  # the engine has a copy
        assert identify(shared)[2] == kept
    assert generate(shared, "x")[0].rollouts[0].version == shared.version


def test_memory_is_reported_after_a_load_and_after_sampling(shared: SecondProcess) -> None:
    shared.load(WEIGHTS, version=shared.version + 1)
    generate(shared, "x")
    assert shared.memory_mib.keys() >= {"loaded/cpu/peak_resident", "sampled/cpu/peak_resident"}
    assert shared.memory_mib["sampled/cpu/peak_resident"] >= shared.memory_mib["loaded/cpu/peak_resident"] > 10
    gauge = Gauge()
    gauge.read_engine(shared)
    check(gauge.metrics())
    assert gauge.metrics() == {f"memory/engine/{name}": mib for name, mib in shared.memory_mib.items()}


def test_an_engine_that_reports_its_memory_is_not_measured_again() -> None:
    asleep = SimpleNamespace(memory_mib={"asleep/cuda0/used": 512.0})
    assert measure_memory(asleep, "sampled") == {"asleep/cuda0/used": 512.0}  # type: ignore[arg-type]
    assert set(measure_memory(SimpleNamespace(), "loaded")) >= {"loaded/cpu/peak_resident"}  # type: ignore[arg-type]
    without = Gauge()
    without.read_engine(SimpleNamespace())
    assert without.metrics() == {}


class Counted(dict[str, torch.Tensor]):
    """Weights that record the names that were read."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        super().__init__(weights)
        self.read: list[str] = []

    def __getitem__(self, name: str) -> torch.Tensor:
        self.read.append(name)
        return super().__getitem__(name)

    def values(self) -> Any:
        return (self[name] for name in self)


def test_weights_are_read_once_in_order_and_not_when_refused(shared: SecondProcess) -> None:
    weights = Counted(WEIGHTS)
    with refused(EngineError, shared.version, code="engine.stale_weights"):
        shared.load(weights, version=shared.version)
    assert weights.read == []
    shared.load(weights, version=shared.version + 1)
    assert weights.read == list(WEIGHTS)
    assert identify(shared)[2] == digest(WEIGHTS)


def test_an_engine_may_read_weights_in_another_order_or_in_part(shared: SecondProcess) -> None:
    for wanted in (["table", "half"], [], ["none", "scalar"]):
        shared.load({**WEIGHTS, f"only {' '.join(wanted)}": torch.ones(1)}, version=shared.version + 1)
        assert identify(shared)[2] == digest({name: WEIGHTS[name] for name in wanted})


def test_an_engine_that_refuses_a_load_half_way_accepts_the_next(shared: SecondProcess) -> None:
    for _ in range(2):
        with refused(EngineError, "refuse", code="engine.memory"):
            shared.load({"some": torch.ones(3), "refuse": torch.ones(1), **WEIGHTS}, version=shared.version + 1)
    shared.load(WEIGHTS, version=shared.version + 1)
    assert identify(shared)[2] == digest(WEIGHTS)


def test_an_exception_while_weights_are_read_ends_the_process(engine: SecondProcess) -> None:
    class RankLost(Exception):
        pass

    class Broken(Counted):
        def __getitem__(self, name: str) -> torch.Tensor:
            if name == "scalar":
                raise RankLost
            return super().__getitem__(name)

    pid = int(identify(engine)[0])
    with pytest.raises(RankLost):
        engine.load(Broken(WEIGHTS), version=1)
    assert gone(pid)
    with refused(EngineError, code="engine.failed"):
        generate(engine, "a")


def test_an_engine_killed_during_a_load_is_reported(engine: SecondProcess) -> None:
    pid = int(identify(engine)[0])
    with refused(EngineError, pid, "SIGKILL", "version 1", code="engine.failed") as error:
        engine.load({"die": torch.ones(1), "big": torch.ones(2000, 2000)}, version=1)
    check_later_requests_fail(engine, pid, error.value)


def test_the_process_does_not_inherit_the_variables_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    kept = lifecycle._without_rank(os.environ)
    assert not {"WORLD_SIZE", "LOCAL_RANK"} & kept.keys()
    assert kept["PATH"] == os.environ["PATH"]


def test_an_engine_s_errors_are_raised_unchanged_and_it_continues(shared: SecondProcess) -> None:
    version, pid = shared.version, identify(shared)[0]
    with refused(EngineError, key="prompt", code="engine.memory") as error:
        generate(shared, "a", "refuse")
    assert (error.value.problem, error.value.remedy) == ("prompt 'refuse'", "send another")
    with refused(EngineError, version, code="engine.stale_weights"):
        shared.load(WEIGHTS, version=version)
    assert shared.version == version
    assert identify(shared)[0] == pid


def test_stale_weights_are_an_error(shared: SecondProcess) -> None:
    version = shared.version
    shared.version += 1  # as if a load had been lost
    with refused(EngineError, version, version + 1, code="engine.stale_weights"):
        generate(shared, "a")
    shared.version = version
    assert len(generate(shared, "a")) == 1


def test_an_exception_in_on_rollout_leaves_no_old_rollouts_behind(shared: SecondProcess) -> None:
    def stop(prompt: Prompt, rollout: Rollout) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shared.generate([prompt("a")], [600], SAMPLING, seed=(0,), on_rollout=stop)
    (group,) = generate(shared, "b", count=1)
    assert group.prompt.text == "b"


def test_an_engine_that_omits_rollouts_is_an_error(shared: SecondProcess) -> None:
    with refused(EngineError, "id:lazy", 3, 1, code="engine.contract"):
        generate(shared, "a", "lazy", count=3)
    assert len(generate(shared, "a")) == 1


def test_long_output_of_the_engine_does_not_block_it(shared: SecondProcess) -> None:
    assert len(generate(shared, "print", "print", "print")) == 3


def test_closing_removes_the_temporary_folder(forks: None) -> None:
    engine = start_fake()
    folder = Path(engine._process.folder)
    engine.load(WEIGHTS, version=1)
    assert folder.exists()
    engine.close()
    assert not folder.exists()


def check_later_requests_fail(engine: SecondProcess, pid: int, error: WinnowError) -> None:
    """The process is gone, the error advises a resume, and a later request raises the same error."""
    assert gone(pid)
    assert error.remedy
    with pytest.raises(EngineError) as later:
        engine.load(WEIGHTS, version=9)
    assert (later.value.problem, later.value.code) == (error.problem, error.code)


@pytest.mark.parametrize(("failure", "end"), [("die", "SIGKILL"), ("close", "2 seconds")])
def test_an_engine_that_exits_is_noticed_at_once(
    engine: SecondProcess, failure: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "STOP_SECONDS", 2.0)
    pid = int(identify(engine)[0])
    with refused(EngineError, pid, end, "4 rollouts", "version 0", code="engine.failed") as error:
        generate(engine, "a", failure)
    assert (failure == "die") == ("SIGKILL" in str(error.value))
    check_later_requests_fail(engine, pid, error.value)


def test_the_engine_ignores_a_signal_to_all_processes_of_a_job(engine: SecondProcess) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # an engine that it ends is an error with its name
        os.killpg(int(identify(engine)[0]), number)
        assert len(generate(engine, "a")) == 1


def test_an_exception_in_the_engine_ends_it_and_is_reported(engine: SecondProcess) -> None:
    pid = int(identify(engine)[0])
    with refused(EngineError, pid, "ValueError: fire", "version 1", code="engine.failed") as error:
        engine.load({"fire": torch.ones(1)}, version=1)
    assert "second_engines.py" in error.value.__notes__[0], "the last lines of the traceback"
    check_later_requests_fail(engine, pid, error.value)


def test_an_engine_that_sends_no_reply_is_killed_after_its_limit(forks: None) -> None:
    engine = start_fake(timeout_seconds=2.5)
    pid, begun = int(identify(engine)[0]), time.monotonic()
    with refused(EngineError, pid, "2.5 seconds", "timeout_seconds", code="engine.failed") as error:
        generate(engine, "hang")
    assert time.monotonic() - begun > 2.5
    check_later_requests_fail(engine, pid, error.value)


def test_the_error_of_an_engine_s_factory_is_raised_unchanged(forks: None) -> None:
    with refused(ConfigError, key="rollout.engine.device", code="config.unsupported") as error:
        start(f"{HERE}/second_engines.py:refusing")
    assert (error.value.problem, error.value.remedy) == ("device = 9", "choose 0")


def test_an_engine_that_exits_while_it_is_made_is_reported(forks: None) -> None:
    with refused(EngineError, "status 3", code="engine.failed") as error:
        start("second_engines:exiting")
    assert "loading ..." in error.value.__notes__[0]


@pytest.mark.parametrize("make", ["second_engines:missing", "no_such_module:make", "second_engines", ""])
def test_a_name_without_an_engine_is_a_config_error(make: str) -> None:
    with refused(ConfigError, repr(make), code="config.user_code"):
        import_factory(make)


def test_an_engine_that_is_not_made_in_time_is_killed(forks: None) -> None:
    with refused(EngineError, "0.2 seconds", "start_seconds", code="engine.failed"):
        start("second_engines:slow", start_seconds=0.2)


def test_options_that_cannot_be_pickled_are_a_config_error() -> None:
    with refused(ConfigError, "second_engines:fake", key="rollout.engine", code="config.value"):
        start("second_engines:fake", {"version": lambda: 0})


def test_an_engine_without_references_ends_its_process(forks: None) -> None:
    engine = start_fake()
    pid = int(identify(engine)[0])
    del engine
    gc.collect()
    assert gone(pid)


def train_until_killed(folder: str) -> None:
    """A trainer with an engine, in a fork; the engine is a process as a run starts it."""
    os.environ |= {"WINNOW_TEST_PIDS": f"{folder}/pids", "TMPDIR": folder}
    tempfile.tempdir = None  # found anew
    engine = SecondProcess("second_engines:parental")
    time.sleep(600)
    engine.close()


def test_a_killed_trainer_ends_the_engine_and_what_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    trainer = forked.context().Process(target=train_until_killed, args=(str(tmp_path),))
    trainer.start()
    assert eventually(lambda: (pids.is_file() and len(pids.read_text().split()) == 2) or not trainer.is_alive())
    engine, other = map(int, pids.read_text().split())
    assert alive(engine)
    assert alive(other)
    assert list(tmp_path.glob("winnow-engine-*"))
    trainer.kill()
    assert eventually(lambda: not alive(engine) and not alive(other))
    assert eventually(lambda: not list(tmp_path.glob("winnow-engine-*")))


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel, socket.socket]]:
    """Both ends, and the socket of the second."""
    ours, theirs = socket.socketpair()
    yield Channel(ours), Channel(theirs), theirs
    ours.close()
    theirs.close()


def test_a_channel_carries_whole_messages(channels: tuple[Channel, Channel, socket.socket]) -> None:
    channel, other, end = channels
    channel.send(Done(7, TOLERANCE))
    assert other.receive(1.0) == Done(7, TOLERANCE)
    end.sendall(b"\0\0\0")  # a length not yet whole
    assert channel.receive(0.01) is None
    body = pickle.dumps(Done(8, TOLERANCE))
    end.sendall(len(body).to_bytes(5, "big") + body[:-1])
    assert channel.receive(0.01) is None
    end.sendall(body[-1:])
    assert channel.receive(1.0) == Done(8, TOLERANCE)


def test_a_rollout_is_sent_exactly_in_12_bytes_per_token(channels: tuple[Channel, Channel, socket.socket]) -> None:
    ours, theirs, _ = channels
    tokens = np.arange(8192) + 2**31 - 8192
    logprobs = np.random.default_rng(0).normal(size=8192)
    sent = Rollout(index=3, tokens=tokens, logprobs=logprobs, text="x", finish="stop", version=7)
    assert len(pickle.dumps(Sampled(2, sent))) < 12 * 8192 + 1000
    thread = threading.Thread(target=ours.send, args=(Sampled(2, sent),))  # more than the socket holds
    thread.start()
    message = theirs.receive()
    thread.join()
    got = message.rollout
    assert (message.prompt_index, got.index, got.text, got.finish, got.version) == (2, 3, "x", "stop", 7)
    assert (got.tokens.dtype, got.tokens.tolist()) == (np.int64, tokens.tolist())
    assert got.logprobs.tobytes() == logprobs.tobytes()


def test_a_channel_stops_waiting_at_its_limit_or_when_it_is_closed(
    channels: tuple[Channel, Channel, socket.socket],
) -> None:
    channel, other, _ = channels
    with pytest.raises(TimeoutError):
        other.send(Crashed("x" * 10**7), seconds=0.05)
    other.close()
    with pytest.raises(ChannelClosed):
        channel.receive(1.0)
    with pytest.raises(ChannelClosed):
        channel.send(Done(1, TOLERANCE))
    for use in (lambda: other.receive(1.0), lambda: other.send(Done(1, TOLERANCE))):  # its own end
        with pytest.raises(ChannelClosed):
            use()


def test_a_reader_that_cannot_join_the_trainer_reports_just_that(tmp_path: Path) -> None:
    weights = SentWeights(Rendezvous(file=str(tmp_path / "weights"), members=2, seconds=0.2), 1, ["a", "b"])
    engine = SimpleNamespace(load=lambda weights, version: weights["a"])
    with pytest.raises(GroupBroken):
        load(engine, LoadWeights(weights, 1))  # type: ignore[arg-type]


def test_entries_that_python_ignores_are_not_passed_on(forks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [Path("ignored"), *sys.path])
    engine = start_fake()
    engine.close()
