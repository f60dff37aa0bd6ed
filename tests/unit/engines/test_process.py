"""An engine in a process of its own: the same door, weights bit by bit, and every way in which it can end."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from second_engines import digest

from winnow.engines.base import Tolerance
from winnow.engines.process import lifecycle
from winnow.engines.process.child import find, memory
from winnow.engines.process.engine import SecondProcess, second_process
from winnow.engines.process.messages import Channel, ChannelClosed, Crashed, Done, Sampled
from winnow.errors import ConfigError, EngineError
from winnow.memory.usage import Gauge
from winnow.metrics import check
from winnow.records import Group, Prompt, Rollout, Sampling

HERE = Path(__file__).parent
SAMPLING = Sampling(max_new_tokens=8)
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
    return second_process(make, options or {}, **{"timeout_seconds": 120.0, "start_seconds": 240.0, **more})


def obedient(**more: Any) -> SecondProcess:
    return start("second_engines:obedient", {"version": 0}, **more)


def generate(engine: SecondProcess, *texts: str, count: int = 2) -> list[Group]:
    return engine.generate([prompt(text) for text in texts], [count] * len(texts), SAMPLING, seed=("rollout", 1))


def who(engine: SecondProcess) -> list[str]:
    """Pid, environment, and digest of the weights of whoever samples."""
    return generate(engine, "x", count=1)[0].rollouts[0].text.split()


def alive(pid: int) -> bool:
    """Neither gone nor a zombie that nobody has buried yet."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")


def gone(pid: int) -> bool:
    """Ended and buried."""
    return subprocess.run(["ps", "-p", str(pid)], capture_output=True).returncode == 1


def eventually(happens: Callable[[], bool], seconds: float = 120.0) -> bool:
    until = time.monotonic() + seconds
    while not (happened := happens()) and time.monotonic() < until:
        time.sleep(0.05)
    return happened


@pytest.fixture(scope="module")
def shared() -> Iterator[SecondProcess]:
    """One engine for the tests that leave it alive."""
    engine = obedient(environment={"WINNOW_TEST_DEVICE": "7"})
    yield engine
    engine.close()


@pytest.fixture
def engine() -> Iterator[SecondProcess]:
    """One engine for a test that ends it."""
    engine = obedient()
    yield engine
    engine.close()


def test_it_lives_elsewhere_with_an_environment_of_its_own(shared: SecondProcess) -> None:
    pid, device, _ = who(shared)
    assert int(pid) != os.getpid()
    assert alive(int(pid))
    assert device == "7"
    assert shared.logprob_tolerance == Tolerance(mean=0.25, tail=0.5)


def test_groups_follow_prompts_and_counts_and_each_rollout_is_announced_once(shared: SecondProcess) -> None:
    same = prompt("same")
    prompts, counts = [prompt("a"), same, prompt("none"), same], [3, 1, 0, 2]
    heard: list[tuple[Prompt, Rollout]] = []
    groups = shared.generate(prompts, counts, SAMPLING, seed=(0,), on_rollout=lambda *pair: heard.append(pair))
    assert [group.prompt for group in groups] == prompts
    assert [[rollout.index for rollout in group.rollouts] for group in groups] == [[0, 1, 2], [0], [], [0, 1]]
    expected = {id(rollout): group.prompt for group in groups for rollout in group.rollouts}
    assert {id(rollout): asked for asked, rollout in heard} == expected
    assert len(heard) == 6
    third = groups[0].rollouts[2]
    assert (third.tokens.dtype, third.logprobs.dtype) == (np.int64, np.float64)
    np.testing.assert_array_equal(third.tokens, [0, 1, 2])
    np.testing.assert_array_equal(third.logprobs, -np.arange(3) / 3)
    assert {rollout.version for group in groups for rollout in group.rollouts} == {shared.version}


def test_weights_arrive_bit_by_bit_and_only_when_loaded(shared: SecondProcess) -> None:
    before = who(shared)[2]
    new = {name: weight.clone() for name, weight in WEIGHTS.items()}
    assert who(shared)[2] == before
    for changed in ({}, {"table": 2 * new["table"]}, {"more": torch.randn(300, 300)}):
        new |= changed
        shared.load(new, version=shared.version + 1)
        kept = digest(new)
        new["table"].zero_()  # the engine has a copy
        assert who(shared)[2] == kept
    assert generate(shared, "x")[0].rollouts[0].version == shared.version


def test_its_memory_is_reported_after_weights_and_after_sampling(shared: SecondProcess) -> None:
    shared.load(WEIGHTS, version=shared.version + 1)
    generate(shared, "x")
    assert shared.memory_mib.keys() >= {"loaded/cpu/peak_resident", "sampled/cpu/peak_resident"}
    assert shared.memory_mib["sampled/cpu/peak_resident"] >= shared.memory_mib["loaded/cpu/peak_resident"] > 10
    gauge = Gauge()
    gauge.of_engine(shared)
    check(gauge.metrics())
    assert gauge.metrics() == {f"memory/engine/{name}": mib for name, mib in shared.memory_mib.items()}


def test_an_engine_that_reports_its_memory_itself_is_not_measured_again() -> None:
    asleep = SimpleNamespace(memory_mib={"asleep/cuda0/used": 512.0})
    assert memory(asleep, "sampled") == {"asleep/cuda0/used": 512.0}  # type: ignore[arg-type]
    assert set(memory(SimpleNamespace(), "loaded")) >= {"loaded/cpu/peak_resident"}  # type: ignore[arg-type]
    without = Gauge()
    without.of_engine(SimpleNamespace())
    assert without.metrics() == {}


class Counted(dict[str, torch.Tensor]):
    """Weights that are gathered when they are read, and write down who was."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        super().__init__(weights)
        self.read: list[str] = []

    def __getitem__(self, name: str) -> torch.Tensor:
        self.read.append(name)
        return super().__getitem__(name)

    def values(self) -> Any:
        return (self[name] for name in self)


def test_each_weight_is_read_once_and_in_order_and_none_where_the_load_is_refused(shared: SecondProcess) -> None:
    weights = Counted(WEIGHTS)
    with pytest.raises(EngineError, match="already has weights"):
        shared.load(weights, version=shared.version)
    assert weights.read == []
    shared.load(weights, version=shared.version + 1)
    assert weights.read == list(WEIGHTS)
    assert who(shared)[2] == digest(WEIGHTS)


def test_an_engine_that_reads_in_another_order_or_not_all_gets_what_it_reads(shared: SecondProcess) -> None:
    for wanted in (["table", "half"], [], ["none", "scalar"]):
        shared.load({**WEIGHTS, f"only {' '.join(wanted)}": torch.ones(1)}, version=shared.version + 1)
        assert who(shared)[2] == digest({name: WEIGHTS[name] for name in wanted})


def test_an_engine_that_refuses_half_way_through_goes_on(shared: SecondProcess) -> None:
    for _ in range(2):
        with pytest.raises(EngineError, match="enough of them"):
            shared.load({"some": torch.ones(3), "refuse": torch.ones(1), **WEIGHTS}, version=shared.version + 1)
    shared.load(WEIGHTS, version=shared.version + 1)
    assert who(shared)[2] == digest(WEIGHTS)


def test_weights_that_cannot_be_gathered_end_the_engine_and_raise_what_they_raised(engine: SecondProcess) -> None:
    class Broken(Counted):
        def __getitem__(self, name: str) -> torch.Tensor:
            if name == "scalar":
                raise KeyError("a rank is gone")
            return super().__getitem__(name)

    pid = int(who(engine)[0])
    with pytest.raises(KeyError, match="a rank is gone"):
        engine.load(Broken(WEIGHTS), version=1)
    assert gone(pid)
    with pytest.raises(EngineError, match="was killed"):
        generate(engine, "a")


def test_an_engine_that_dies_while_it_reads_is_noticed(engine: SecondProcess) -> None:
    pid = int(who(engine)[0])
    with pytest.raises(EngineError, match=r"was killed by SIGKILL.* into taking the weights of version 1") as error:
        engine.load({"die": torch.ones(1), "big": torch.ones(2000, 2000)}, version=1)
    check_it_stays_dead(engine, pid, str(error.value))


def test_it_is_no_rank_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    kept = lifecycle._without_rank(os.environ)
    assert not {"WORLD_SIZE", "LOCAL_RANK"} & kept.keys()
    assert kept["PATH"] == os.environ["PATH"]


def test_refusals_pass_through_and_the_engine_goes_on(shared: SecondProcess) -> None:
    version, pid = shared.version, who(shared)[0]
    with pytest.raises(EngineError, match=r"^no such prompt, please$"):
        generate(shared, "a", "refuse")
    with pytest.raises(EngineError, match=f"already has weights of version {version}"):
        shared.load(WEIGHTS, version=version)
    assert shared.version == version
    assert who(shared)[0] == pid


def test_stale_weights_are_an_error(shared: SecondProcess) -> None:
    version = shared.version
    shared.version += 1  # as if a load had been lost
    with pytest.raises(EngineError, match=f"stale weights: .* has version {version}, .* version {version + 1} were"):
        generate(shared, "a")
    shared.version = version
    assert len(generate(shared, "a")) == 1


def test_an_exception_in_on_rollout_leaves_no_old_rollouts_behind(shared: SecondProcess) -> None:
    def stop(prompt: Prompt, rollout: Rollout) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shared.generate([prompt("a")], [4000], SAMPLING, seed=(0,), on_rollout=stop)
    (group,) = generate(shared, "b", count=1)
    assert group.prompt.text == "b"


def test_an_engine_that_leaves_rollouts_out_is_found_out(shared: SecondProcess) -> None:
    with pytest.raises(EngineError, match=r"prompt 'id:lazy': 3 rollouts were asked for, and the engine announced 1"):
        generate(shared, "a", "lazy", count=3)
    assert len(generate(shared, "a")) == 1


def test_what_the_engine_prints_never_blocks_it(shared: SecondProcess) -> None:
    assert len(generate(shared, "print", "print", "print")) == 3


def test_nothing_is_left_behind() -> None:
    engine = obedient()
    folder = Path(engine._process.folder)
    engine.load(WEIGHTS, version=1)
    assert folder.exists()
    engine.close()
    assert not folder.exists()


def check_it_stays_dead(engine: SecondProcess, pid: int, said: str) -> None:
    assert gone(pid)
    with pytest.raises(EngineError) as again:
        engine.load(WEIGHTS, version=9)
    assert str(again.value) == said


@pytest.mark.parametrize(
    ("deed", "end"),
    [
        ("die", "was killed by SIGKILL, as the system does where memory runs out"),
        ("close", "closed its end of the connection, and had to be killed 2 seconds later"),
    ],
)
def test_an_engine_that_ends_is_noticed_at_once(
    engine: SecondProcess, deed: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "STOP_SECONDS", 2.0)
    pid = int(who(engine)[0])
    with pytest.raises(EngineError) as error:
        generate(engine, "a", deed)
    said = str(error.value)
    assert f"the engine's process ({pid}) {end}, " in said
    assert "seconds into sampling 4 rollouts with the weights of version 0. " in said
    assert "can be resumed" in said
    check_it_stays_dead(engine, pid, said)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_all_processes_of_a_job_is_for_the_trainer_alone(engine: SecondProcess, number: int) -> None:
    os.killpg(int(who(engine)[0]), number)
    assert len(generate(engine, "a")) == 1


def test_an_exception_in_the_engine_ends_it_and_is_told(engine: SecondProcess) -> None:
    pid = int(who(engine)[0])
    with pytest.raises(EngineError) as error:
        engine.load({"fire": torch.ones(1)}, version=1)
    said = str(error.value)
    assert f"({pid}) raised ValueError: the device is on fire, " in said
    assert "seconds into taking the weights of version 1. " in said
    assert "second_engines.py" in said  # the traceback's last lines
    check_it_stays_dead(engine, pid, said)


def test_an_engine_that_says_nothing_is_killed_after_its_limit() -> None:
    engine = obedient(timeout_seconds=2.5)
    pid, begun = int(who(engine)[0]), time.monotonic()
    with pytest.raises(EngineError, match=r"said nothing for 2\.5 seconds and was killed") as error:
        generate(engine, "hang")
    assert time.monotonic() - begun > 2.5
    check_it_stays_dead(engine, pid, str(error.value))


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (f"{HERE}/second_engines.py:unhappy", ConfigError, r"^rollout\.engine\.device = 9: there is no such device$"),
        (
            "second_engines:leaving",
            EngineError,
            r"exited with status 3, .* into making the engine(.|\n)*loading \.\.\.",
        ),
    ],
)
def test_an_engine_that_cannot_be_made_says_why(make: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        start(make)


@pytest.mark.parametrize("make", ["second_engines:missing", "no_such_module:make", "second_engines", ""])
def test_a_name_without_an_engine_is_a_config_error(make: str) -> None:
    with pytest.raises(ConfigError, match=f"'{make}' cannot be imported"):
        find(make)


def test_an_engine_that_is_not_made_in_time_is_killed() -> None:
    with pytest.raises(EngineError, match=r"said nothing for 0\.2 seconds .* into making the engine"):
        start("second_engines:slow", start_seconds=0.2)


def test_options_that_cannot_travel_are_a_config_error() -> None:
    with pytest.raises(ConfigError, match="cannot go to a second process"):
        start("second_engines:obedient", {"version": lambda: 0})


def test_an_engine_that_nobody_holds_ends() -> None:
    engine = obedient()
    pid = int(who(engine)[0])
    del engine
    gc.collect()
    assert gone(pid)


TRAINER = """
import time
from winnow.engines.process.engine import second_process
engine = second_process("second_engines:parental")
print("ready", flush=True)
time.sleep(60)
"""


def test_with_a_killed_trainer_end_the_engine_and_what_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    environment = {**os.environ, "WINNOW_TEST_PIDS": str(pids), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", TRAINER], cwd=HERE, env=environment, stdout=subprocess.PIPE, text=True
    ) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "ready\n"
        engine, other = map(int, pids.read_text().split())
        assert alive(engine)
        assert alive(other)
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
    channel.send(Done(version=7))
    assert other.receive(1.0) == Done(version=7)
    end.sendall(b"\0\0\0")  # a length not yet whole
    assert channel.receive(0.01) is None
    body = pickle.dumps(Done(version=8))
    end.sendall(len(body).to_bytes(5, "big") + body[:-1])
    assert channel.receive(0.01) is None
    end.sendall(body[-1:])
    assert channel.receive(1.0) == Done(version=8)


def test_a_rollout_crosses_bit_for_bit_in_12_bytes_a_token(channels: tuple[Channel, Channel, socket.socket]) -> None:
    ours, theirs, _ = channels
    tokens = np.arange(8192) + 2**31 - 8192
    logprobs = np.random.default_rng(0).normal(size=8192)
    sent = Rollout(index=3, tokens=tokens, logprobs=logprobs, text="x", finish="stop", version=7)
    assert len(pickle.dumps(Sampled(2, sent))) < 12 * 8192 + 1000
    thread = threading.Thread(target=ours.send, args=(Sampled(2, sent),))  # more than the socket holds
    thread.start()
    message = theirs.receive()
    thread.join()
    found = message.rollout
    assert (message.prompt_index, found.index, found.text, found.finish, found.version) == (2, 3, "x", "stop", 7)
    assert (found.tokens.dtype, found.tokens.tolist()) == (np.int64, tokens.tolist())
    assert found.logprobs.tobytes() == logprobs.tobytes()


def test_a_channel_waits_no_longer_than_told_nor_for_nobody(channels: tuple[Channel, Channel, socket.socket]) -> None:
    channel, other, _ = channels
    with pytest.raises(TimeoutError):
        other.send(Crashed("x" * 10**7), seconds=0.05)
    other.close()
    with pytest.raises(ChannelClosed):
        channel.receive(1.0)
    with pytest.raises(ChannelClosed):
        channel.send(Done(version=1))
