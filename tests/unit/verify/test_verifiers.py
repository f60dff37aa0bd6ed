"""Real workers that are really killed. A hang takes its limit; every other limit is far above the usual time."""

from __future__ import annotations

import dataclasses
import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forked import fork_supervisors
from processes import alive, eventually
from refusals import refused
from winnow import registry
from winnow.errors import ConfigError, VerifierError
from winnow.records import Group, Outcome, Prompt, Rollout
from winnow.verify import supervisor_client
from winnow.verify.failures import SOCKET_HINT
from winnow.verify.verifiers import Verifiers

HERE = Path(__file__).parent
LIMIT = 2.0
LONG = 120.0  # for what must happen at some time
MEMORY_MB = 64

HOSTILE = {
    "spin": "timeout",
    "deaf": "timeout",
    "delay 60": "timeout",
    "exit 0": "crash",
    "exit 3": "crash",
    "shoot": "crash",
    "segfault": "crash",
    "babble": "crash",
    "raise oh dear": "raised",
    "leave": "raised",
    "none": "raised",
    "nan": "malformed",
    "inf": "malformed",
    "word": "malformed",
    "object": "malformed",
    "false_outcome": "malformed",
}


# A busy task takes the limit of a processor's time, too. test_a_hang_is_killed_at_its_limit has one with 0.3 seconds.
HOSTILE_CASES = [
    pytest.param(text, cause, marks=pytest.mark.slow if text == "spin" else ()) for text, cause in HOSTILE.items()
]
# Their subject is how a supervisor is started, or what it gets from the process that starts it.
STARTED = (
    "test_options_may_be_longer_than_a_command_line",
    "test_workers_need_no_temporary_file",
    "test_workers_are_forks_of_a_process_without_torch",
    "test_a_folder_of_the_import_path_may_have_a_colon",
    "test_a_trainer_may_ignore_the_end_of_its_children",
)


@pytest.fixture(autouse=True)
def forks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisors of the other tests are forks, and not interpreters that import numpy and pydantic again."""
    if request.function.__name__ not in STARTED:
        fork_supervisors(monkeypatch)


def verifiers(use: Any = "misbehaving.py:act", *, workers: int = 1, **changes: Any) -> Verifiers:
    settings = {"timeout_seconds": LIMIT, "memory_mb": MEMORY_MB, "max_failure_share": 1.0, "base": HERE, **changes}
    options = settings.pop("options", {})
    return Verifiers({"use": use, "options": options}, workers=workers, **settings)


@pytest.fixture(scope="module")
def pair() -> Iterator[Verifiers]:
    """Two workers shared by the tests below, so that each also shows that the ones before left them alive."""
    with verifiers(workers=2) as shared:
        yield shared


@pytest.fixture(scope="module")
def patient() -> Iterator[Verifiers]:
    """One worker, shared as well, whose tasks have all the time that they need."""
    with verifiers(timeout_seconds=LONG) as shared:
        yield shared


def group(*texts: str, answer: Any = "4", name: str = "p") -> Group:
    prompt = Prompt(id=name, tokens=np.array([1, 2, 3]), text="2 + 2?", answer=answer, task="t")
    return Group(prompt=prompt, rollouts=tuple(_rollout(i, text) for i, text in enumerate(texts)))


def _rollout(index: int, text: str) -> Rollout:
    tokens = np.arange(30) + index
    return Rollout(index=index, tokens=tokens, logprobs=np.zeros(30), text=text, finish="stop", version=0)


def judged(room: Verifiers, *texts: str, **changes: Any) -> tuple[Outcome, ...]:
    (done,) = room.collect([group(*texts, **changes)])
    room.check_step([done])
    assert done.outcomes is not None
    return done.outcomes


def test_right_and_wrong(pair: Verifiers):
    right, wrong = judged(pair, "4", "5")
    assert (right.reward, right.correct, right.kind) == (1.0, True, "correct")
    assert (wrong.reward, wrong.correct, wrong.kind) == (0.0, False, "wrong")
    assert right.seconds > 0
    assert not right.late


def test_order_is_kept_under_random_delays(pair: Verifiers):
    delays = np.random.default_rng(0).uniform(0, 0.02, size=(4, 10))
    groups = [
        group(
            *[f"delay {delay}" if i % 2 else "4" for i, delay in enumerate(row)],
            answer="4" if n % 2 else "5",
            name=f"p{n}",
        )
        for n, row in enumerate(delays)
    ]
    for prompt, rollout in [(g.prompt, r) for g in groups for r in g.rollouts][::-1]:
        pair.submit(prompt, rollout)
    done = pair.collect(groups)
    assert [g.prompt.id for g in done] == ["p0", "p1", "p2", "p3"]
    for n, g in enumerate(done):
        assert g.correct.tolist() == [i % 2 == 1 or n % 2 == 1 for i in range(10)]


@pytest.mark.parametrize(("text", "cause"), HOSTILE_CASES)
def test_a_hostile_task_fails_alone(pair: Verifiers, text: str, cause: str):
    first, failed, last = judged(pair, "4", text, "5")
    assert (first.kind, last.kind) == ("correct", "wrong")
    assert (failed.kind, failed.cause, failed.correct) == ("failed", cause, None)
    assert np.isnan(failed.reward)
    assert failed.detail
    assert failed.late == (cause == "timeout")


@pytest.mark.parametrize("text", ["hog", "giant"])
def test_memory_has_a_limit(patient: Verifiers, text: str):
    first, failed, last = judged(patient, "4", text, "5")
    assert (first.kind, last.kind) == ("correct", "wrong")
    assert (failed.kind, failed.cause) == ("failed", "memory")
    assert str(MEMORY_MB) in failed.detail.split()


def test_memory_of_imports_is_not_the_reason_for_a_crash(tmp_path: Path):
    (tmp_path / "heavy.py").write_text(
        "import ctypes\nBALLAST = bytes(1) + b'x' * (2 * 64 * 2**20)\n"
        "def crash(prompt, rollout):\n    ctypes.string_at(0)\n"
    )
    one = group("4")
    with verifiers("heavy.py:crash", base=tmp_path, timeout_seconds=LONG) as room:
        (failed,) = room.stream([(one.prompt, one.rollouts[0])])
    assert failed.cause == "crash"


def test_options_may_be_longer_than_a_command_line(tmp_path: Path):
    (tmp_path / "listed.py").write_text("def listed(prompt, rollout, *, words):\n    return rollout.text in words\n")
    words = [f"{number:09}" for number in range(2**15)]
    with verifiers("listed.py:listed", base=tmp_path, timeout_seconds=LONG, options={"words": words}) as room:
        first, last = judged(room, words[-1], "4")
    assert (first.correct, last.correct) == (True, False)


def test_workers_need_no_temporary_file(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    with verifiers(timeout_seconds=LONG) as room:
        assert judged(room, "4")[0].correct


def test_a_hang_is_killed_at_its_limit():
    with verifiers(timeout_seconds=0.3) as room:
        judged(room, "4", "4")  # warm
        hangs = list(room.stream((g.prompt, g.rollouts[0]) for g in map(group, ("spin", "deaf", "delay 60"))))
    assert [hang.cause for hang in hangs] == ["timeout"] * 3
    assert all(0.3 <= hang.seconds < 60 for hang in hangs)


# a cold worker


def test_preparations_of_a_reward_do_not_count_against_a_verdict(tmp_path: Path):
    """Preparing takes longer than the limit, in every new worker; the verdicts themselves take no time."""
    with verifiers("misbehaving.py:prepares_first", timeout_seconds=1.0, options={"seconds": 1.5}) as room:
        outcomes = judged(room, "4", "5", "exit 3", "4")
    assert [o.cause or o.kind for o in outcomes] == ["correct", "wrong", "crash", "correct"]
    assert not any(o.late for o in outcomes)


def test_a_slow_verdict_after_the_preparations_still_has_its_limit(tmp_path: Path):
    with verifiers("misbehaving.py:prepares_first", timeout_seconds=0.5, options={"seconds": 1.0}) as room:
        (slow,) = room.stream((g.prompt, g.rollouts[0]) for g in [group("delay 0.8")])  # 1.8 s cold, 0.8 s warm
    assert (slow.cause, slow.late) == ("timeout", True)
    assert "0.5" in slow.detail.split()


def test_a_reward_that_only_hangs_gets_less_and_less_time_to_prepare():
    with verifiers(timeout_seconds=0.2) as room:
        first, *others = room.stream((g.prompt, g.rollouts[0]) for g in [group("delay 600", name=n) for n in "abc"])
    assert [o.cause for o in (first, *others)] == ["timeout"] * 3
    allowed = [0.2 + 0.2 * warm_up for warm_up in (10, 5, 2.5)]
    assert all(o.seconds >= limit for o, limit in zip((first, *others), allowed, strict=True))
    numbers = [re.findall(r"\d+\.\d+", o.detail) for o in (first, *others)]
    assert numbers == [["0.2", "2.2"], ["0.2", "1.2"], ["0.2", "0.7"]]


def test_an_answer_that_hangs_first_costs_the_others_nothing(tmp_path: Path):
    """The reward's preparations take longer than the limit, and the first worker never returns a verdict."""
    with verifiers("misbehaving.py:prepares_first", timeout_seconds=0.5, options={"seconds": 0.8}) as room:
        outcomes = judged(room, "delay 600", "4", "5", "4")
    assert [o.cause or o.kind for o in outcomes] == ["timeout", "correct", "wrong", "correct"]


# no task waits behind a slow one


def test_no_task_waits_behind_a_slow_one_while_another_worker_idles(tmp_path: Path):
    """The slow verdict is reached only after all the others, so with any of them behind it none ever would be. With
    two workers, below.
    """
    others = [f"mark {tmp_path}/{n}" for n in range(40)]
    slow = f"await {tmp_path} 40"
    with verifiers(workers=4, timeout_seconds=LONG) as room:
        judged(room, *["4"] * 100)  # the workers are quick, so tasks are sent ahead
        outcomes = judged(room, *others[:3], slow, *others[3:])
    assert all(o.correct for o in outcomes)


def test_tasks_behind_a_slow_verdict_are_taken_back_and_its_worker_stays(tmp_path: Path):
    """As above, with two workers: one of them is slow once, and both judge before and after."""
    texts = [*[f"mark {tmp_path}/{n}" for n in range(3)], f"await {tmp_path} 40"]
    texts += [f"mark {tmp_path}/{n}" for n in range(3, 40)]
    with verifiers(workers=2, timeout_seconds=LONG) as room:
        before = {o.reward for o in judged(room, *["pid"] * 100)}
        assert all(o.correct for o in judged(room, *texts))
        after = {o.reward for o in judged(room, *["pid"] * 100)}
    assert len(before) == 2
    assert after <= before


def test_a_worker_that_was_slow_once_loses_nothing():
    """Quick, slow, quick, many times over: every task is judged once for the trainer, in its place."""
    texts = ["delay 0.03" if n % 9 == 0 else str(4 + n % 2) for n in range(120)]
    with verifiers(workers=3, timeout_seconds=LONG) as room:
        outcomes = judged(room, *texts)
    assert [o.correct for o in outcomes] == [n % 9 == 0 or n % 2 == 0 for n in range(120)]


# nonsense in a worker's socket


LINES = [
    "nonsense", "null", "[]", "7", "{}", '{"reward": 1.0}', '"\\ud800"', "[" * 100_000, "1" * 5000, "\0" * 9,
    '{"reward": "1", "correct": true, "kind": "correct"}',
    '{"reward": 1e999, "correct": true, "kind": "correct"}',
    '{"reward": 1, "correct": 1, "kind": "correct"}',
    '{"reward": 1, "correct": true, "kind": "correct", "parts": [1]}',
    '{"reward": 1, "correct": true, "kind": "correct", "parts": {"a": "b"}}',
    '{"reward": 1, "correct": true, "kind": "correct", "detail": 5}',
    '{"reward": 0, "correct": null, "kind": "failed", "cause": "crash"}',
    '{"reward": NaN, "correct": null, "kind": "failed", "cause": "boredom"}',
    '{"reward": 1, "correct": true, "kind": ["correct"]}',
    '{"reward": 1, "correct": true, "kind": "correct", "surprise": 1}',
]  # fmt: skip


def test_a_line_that_a_reward_writes_into_its_socket_fails_one_task(tmp_path: Path):
    """The line has the right ticket, so that the supervisor forwards it as a verdict."""
    texts = ["4"]
    for number, line in enumerate(LINES):
        (tmp_path / f"line {number}").write_text(line)
        texts += [f"forge 1 {tmp_path / f'line {number}'}", "4"]
    with verifiers(timeout_seconds=LONG) as room:
        first, *others = judged(room, *texts)
    assert first.kind == "correct"
    for line, forged, last in zip(LINES, others[::2], others[1::2], strict=True):
        assert (forged.cause, last.kind) == ("crash", "correct"), line
        assert SOCKET_HINT in forged.detail, line


def test_a_reward_that_writes_without_end_fills_no_memory_but_its_worker_s():
    with verifiers(timeout_seconds=LONG) as room:
        before, flood, after = judged(room, "4", "flood", "4")
        one = group("supervisor_mb")
        (memory,) = room.stream([(one.prompt, one.rollouts[0])])
    assert (before.kind, flood.cause, after.kind) == ("correct", "crash", "correct")
    assert SOCKET_HINT in flood.detail
    assert memory.reward < 400  # MB, of 16 MB per line and the imports


def test_a_file_that_writes_into_the_socket_during_import_is_an_error():
    with (
        verifiers("noisy_reward.py:noisy") as room,
        refused(VerifierError, "noisy_reward.py:noisy", 3, code="verifier.crashed"),
    ):
        judged(room, "4")


def test_fifty_hostile_tasks_later_the_workers_live():
    quick = [text for text, cause in HOSTILE.items() if cause != "timeout"]
    texts = [quick[i % len(quick)] if i % 40 else "deaf" for i in range(50)]
    with verifiers(workers=2, timeout_seconds=1.0) as room:
        outcomes = judged(room, *texts, "4")
        assert [o.cause for o in outcomes[:-1]] == [HOSTILE[text] for text in texts]
        assert outcomes[-1].correct
        assert [o.kind for o in judged(room, "4", "5")] == ["correct", "wrong"]


def test_a_crash_that_does_not_repeat_is_no_failure(pair: Verifiers, tmp_path: Path):
    outcomes = judged(pair, "4", f"once {tmp_path / 'mark'}", "4")
    assert [o.kind for o in outcomes] == ["correct"] * 3


def test_a_worker_or_a_supervisor_killed_from_outside_loses_nothing():
    with verifiers("misbehaving.py:modules") as room:
        (before,) = judged(room, "x")
        os.kill(int(str(before.answer).split()[1]), signal.SIGKILL)
        (after,) = judged(room, "x")
        assert after.correct
        assert str(after.answer).split()[1] != str(before.answer).split()[1]
        many = group(*["x"] * 50)
        for rollout in many.rollouts:
            room.submit(many.prompt, rollout)
        os.kill(int(str(before.answer).split()[0]), signal.SIGKILL)
        (done,) = room.collect([many])
    assert done.correct.all()


def test_a_supervisor_that_always_ends_is_given_up():
    with (
        verifiers() as room,
        refused(VerifierError, 3, -9, code="verifier.crashed"),
    ):
        judged(room, "reseat")


def test_a_worker_has_crashed_although_a_child_holds_its_socket(patient: Verifiers):
    crashed, after = judged(patient, "orphan 3", "4")
    assert (crashed.cause, after.kind) == ("crash", "correct")


def test_what_a_reward_started_dies_with_it(pair: Verifiers, tmp_path: Path):
    marker = tmp_path / "grandchild"
    judged(pair, f"breed {marker}", "4")
    assert eventually(lambda: not alive(int(marker.read_text())))


def test_from_other_threads(pair: Verifiers):
    groups = [group(*["4", "5"] * 20, name=f"p{n}") for n in range(4)]
    threads = [
        threading.Thread(target=lambda g=g: [pair.submit(g.prompt, rollout) for rollout in g.rollouts]) for g in groups
    ]
    for thread in threads:
        thread.start()
    done = pair.collect(groups)  # while they are still submitting
    for thread in threads:
        thread.join()
    assert all(g.correct.tolist() == [True, False] * 20 for g in done)


def test_two_collects_at_once(pair: Verifiers):
    done: dict[str, list[bool]] = {}

    def collect(name: str) -> None:
        (g,) = pair.collect([group("4", "delay 0.01", "5", name=name)])
        done[name] = g.correct.tolist()

    threads = [threading.Thread(target=collect, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == {name: [True, True, False] for name in "abcd"}


def test_submit_does_not_wait_and_the_work_continues_meanwhile(tmp_path: Path):
    """The verdicts wait for a file that is written after the submission, and are reached before `collect`."""
    slow = group(*[f"after {tmp_path / 'go'} {tmp_path / str(n)}" for n in range(2)])
    with verifiers(workers=2, timeout_seconds=LONG) as room:
        for rollout in slow.rollouts:
            room.submit(slow.prompt, rollout)
        (tmp_path / "go").touch()
        assert eventually(lambda: len(list(tmp_path.iterdir())) == 3)
        (done,) = room.collect([slow])
    assert done.correct.all()


def test_a_stale_rollout_of_the_same_name_does_not_count(pair: Verifiers):
    stale, fresh = group("4"), group("5")
    pair.submit(stale.prompt, stale.rollouts[0])
    (done,) = pair.collect([fresh])
    assert done.correct.tolist() == [False]


def test_megabyte_texts_and_odd_characters_come_through(pair: Verifiers):
    for text in ("x" * 1_000_000, "\x00\ud800\n\u2028"):
        (outcome, _) = judged(pair, text, "4", answer=text)
        assert outcome.correct


def test_workers_are_forks_of_a_process_without_torch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", sys)  # whatever the trainer has imported
    with verifiers("misbehaving.py:modules", workers=2) as room:
        answers = {tuple(str(o.answer).split()) for o in judged(room, *["x"] * 40)}
    servers, _, torch, hash_seed = (set(column) for column in zip(*answers, strict=True))
    assert len(servers) == 1
    assert int(servers.pop()) != os.getpid()
    assert (torch, hash_seed) == ({"False"}, {"0"})


def test_workers_are_recycled():
    with verifiers("misbehaving.py:modules") as room:
        pids = [str(o.answer).split()[1] for o in judged(room, *["x"] * 2010)]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2000, 10]


def test_close_leaves_no_process():
    room = verifiers("misbehaving.py:modules", workers=2)
    pids = {int(pid) for o in judged(room, *["x"] * 40) for pid in str(o.answer).split()[:2]}
    assert all(map(alive, pids))
    room.close()
    room.close()
    assert eventually(lambda: not any(map(alive, pids)))
    with refused(VerifierError, code="verifier.closed"):
        room.submit(group("4").prompt, group("4").rollouts[0])


def test_unreferenced_verifiers_stop_their_workers():
    room = verifiers("misbehaving.py:modules")
    pids = [int(pid) for pid in str(judged(room, "x")[0].answer).split()[:2]]
    server = weakref.ref(room._runner._server)
    del room
    if server() is not None:  # a collection looks through all that other tests have left
        gc.collect()
    assert eventually(lambda: not any(map(alive, pids)))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a busy process when its parent dies")
def test_a_hanging_worker_ends_with_its_supervisor():
    with verifiers("misbehaving.py:hang_after_first", timeout_seconds=LONG) as room:
        server, worker = map(int, str(judged(room, "x")[0].answer).split()[:2])
        hang = group("delay 600")
        room.submit(hang.prompt, hang.rollouts[0])
        time.sleep(0.1)
        os.kill(server, signal.SIGKILL)
        assert eventually(lambda: not alive(worker))


TRAINER = """
import sys, time
import numpy as np
from winnow.records import Group, Prompt, Rollout
from winnow.verify.verifiers import Verifiers

def group(*texts):
    prompt = Prompt(id="p", tokens=np.array([1]), text="", answer="4", task="t")
    return Group(prompt=prompt, rollouts=tuple(
        Rollout(index=i, tokens=np.array([1]), logprobs=np.zeros(1), text=text, finish="stop", version=0)
        for i, text in enumerate(texts)))

room = Verifiers({{"use": "misbehaving.py:{reward}", "options": {{}}}}, workers=1, timeout_seconds=300.0, memory_mb=64,
                 max_failure_share=1.0)
(done,) = room.collect([group("x")])
print(done.outcomes[0].answer, flush=True)
hang = group("delay 600")
room.submit(hang.prompt, hang.rollouts[0])
{end}
"""


def test_a_killed_trainer_leaves_no_orphans():
    script = TRAINER.format(reward="hang_after_first", end="time.sleep(600)")
    with subprocess.Popen([sys.executable, "-c", script], cwd=HERE, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        server, worker = map(int, trainer.stdout.readline().split()[:2])
        time.sleep(0.1)  # now its worker hangs
        assert alive(worker)
        trainer.kill()
    assert eventually(lambda: not alive(server) and not alive(worker))


def test_an_interpreter_that_ends_takes_its_workers_along():
    script = TRAINER.format(reward="hang_after_first", end="")
    ended = subprocess.run([sys.executable, "-c", script], cwd=HERE, capture_output=True, text=True, timeout=LONG)
    assert (ended.returncode, ended.stderr) == (0, "")
    server, worker = map(int, ended.stdout.split()[:2])
    assert eventually(lambda: not alive(server) and not alive(worker))


def test_a_reward_that_cannot_be_imported_is_a_config_error():
    with (
        verifiers("misbehaving.py:acts") as room,
        refused(ConfigError, "'acts'", "'act'", code="config.user_code"),
    ):
        judged(room, "4")


def test_a_reward_that_winnow_brings_and_a_sum_of_two():
    """The second reads the token ids."""
    parts = [{"use": "r1_zero", "options": {}, "weight": 0.5}, {"use": "misbehaving.py:tokens", "options": {}}]
    settings: dict[str, Any] = {"timeout_seconds": LONG, "memory_mb": 64, "max_failure_share": 1.0, "base": HERE}
    with Verifiers({"parts": parts, "shaping": "always"}, workers=1, **settings) as room:
        right, wrong = judged(room, "so</think> <answer>4</answer>", "four")
    assert (right.kind, right.reward) == ("correct", 0.5 + 435 + 6)
    assert (wrong.correct, wrong.reward) == (False, 465 + 6)


# log-probs


@pytest.mark.parametrize("workers", [0, 1])
def test_log_probs_come_to_a_reward_that_reads_them_bit_for_bit(workers: int):
    one = group("a")
    logprobs = np.random.default_rng(0).normal(size=30)
    rollout = dataclasses.replace(one.rollouts[0], logprobs=logprobs)
    with verifiers("misbehaving.py:mean_logprob", workers=workers, timeout_seconds=LONG) as room:
        (outcome,) = room.stream([(one.prompt, rollout)])
    assert outcome.answer == logprobs.tobytes().hex()
    assert outcome.reward == logprobs.mean()


@pytest.mark.parametrize(
    ("workers", "beside"), [(0, ()), (0, ("misbehaving.py:mean_logprob",)), (1, ("misbehaving.py:mean_logprob",))]
)
def test_a_reward_that_reads_undeclared_log_probs_fails(workers: int, beside: tuple[str, ...]):
    """Also beside a reward that declares them, and in the trainer as in a worker."""
    parts = [{"use": use} for use in ("misbehaving.py:reads_logprobs", *beside)]
    settings: dict[str, Any] = {"timeout_seconds": LONG, "memory_mb": 64, "max_failure_share": 1.0, "base": HERE}
    with Verifiers({"parts": parts}, workers=workers, **settings) as room:
        (outcome,) = room.stream((g.prompt, g.rollouts[0]) for g in [group("4")])
    assert outcome.cause == "raised"
    assert 'reads=("logprobs",)' in outcome.detail


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """For every encoded task, the rollout's index and whether its log-probs were included."""
    encoded: list[tuple[int, bool]] = []
    encode = supervisor_client.encode_task

    def encode_task(prompt: bytes, rollout: Rollout, *, logprobs: bool) -> bytes:
        encoded.append((rollout.index, logprobs))
        return encode(prompt, rollout, logprobs=logprobs)

    monkeypatch.setattr(supervisor_client, "encode_task", encode_task)
    return encoded


def test_log_probs_are_sent_only_where_a_part_reads_them(monkeypatch: pytest.MonkeyPatch):
    encoded = counted(monkeypatch)
    settings: dict[str, Any] = {"timeout_seconds": LONG, "memory_mb": 64, "max_failure_share": 1.0, "base": HERE}
    for uses in (["act", "tokens"], ["act", "mean_logprob"]):
        with Verifiers({"parts": [{"use": f"misbehaving.py:{use}"} for use in uses]}, workers=1, **settings) as room:
            judged(room, "4")
    assert encoded == [(0, False), (0, True)]


# memory


def test_a_task_is_encoded_when_it_is_sent_and_again_for_a_new_supervisor(monkeypatch: pytest.MonkeyPatch):
    """The supervisor may hold two tasks of this size: a third is encoded only once one of them is answered."""
    encoded = counted(monkeypatch)
    monkeypatch.setattr(supervisor_client, "UNANSWERED_BYTES", 1000)
    with verifiers("misbehaving.py:modules", timeout_seconds=LONG) as room:
        server = int(str(judged(room, "x")[0].answer).split()[0])
        os.kill(server, signal.SIGSTOP)
        many = group(*["y" * 600] * 20)
        encoded.clear()
        for rollout in many.rollouts:
            room.submit(many.prompt, rollout)
        assert [index for index, _ in encoded] == [0, 1]
        os.kill(server, signal.SIGKILL)
        (done,) = room.collect([many])
    assert done.correct.all()
    assert sorted(index for index, _ in encoded) == sorted([0, 1, *range(20)])


def test_too_many_failures_stop_the_run():
    with verifiers(max_failure_share=0.05) as room:
        judged(room, "4", *["none"] * 19)
        with refused(VerifierError, "misbehaving.py:act", 21, 23, "raised", code="verifier.failed"):
            judged(room, "4", "none", "raise oh dear", name="q")


def test_a_resumed_run_counts_the_earlier_failures():
    with verifiers(workers=0, max_failure_share=0.05) as first:
        judged(first, "4", *["none"] * 19)
        state = first.state_dict()
    with verifiers(workers=0, max_failure_share=0.05) as second:
        second.load_state_dict(state)
        with refused(VerifierError, 20, 22, code="verifier.failed"):
            judged(second, "4", "none")


def test_without_workers_the_trainer_judges_with_a_notice():
    with verifiers(workers=0) as room:
        (notice,) = room.notices
        assert "verify.workers = 0" in notice
        outcomes = judged(room, "4", "5", "raise oh dear", "leave", "nan", "giant")
    assert [o.cause or o.kind for o in outcomes] == ["correct", "wrong", "raised", "raised", "malformed", "memory"]


def test_a_function_object_runs_in_the_trainer():
    def mine(prompt: Prompt, rollout: Rollout) -> int:
        return os.getpid()

    with verifiers(mine, workers=4) as room:
        (notice,) = room.notices
        assert "'mine'" in notice
        assert "verify.workers = 0" not in notice
        assert judged(room, "4")[0].reward == os.getpid()


def test_a_member_that_only_this_process_has_runs_in_the_trainer(monkeypatch: pytest.MonkeyPatch):
    entry = registry.resolve("reward", lambda prompt, rollout: True)
    monkeypatch.setitem(registry._ENTRIES["reward"], "homemade", entry)
    with verifiers("homemade", workers=1) as room:
        (notice,) = room.notices
        assert "'homemade'" in notice
        assert judged(room, "4")[0].correct


def test_an_option_that_is_not_plain_data_is_a_config_error():
    with refused(ConfigError, "misbehaving.py:needs_option", key="reward", code="config.value"):
        verifiers("misbehaving.py:needs_option", options={"bonus": object()})


def test_named_rewards_have_no_notice(pair: Verifiers):
    assert pair.notices == ()


def test_a_folder_of_the_import_path_may_have_a_colon(tmp_path, monkeypatch):
    folder = tmp_path / "at 20:43"
    folder.mkdir()
    (folder / "beside.py").write_text("ANSWER = '4'\n")
    own = "import beside\ndef mine(prompt, rollout):\n    return rollout.text == beside.ANSWER\n"
    (folder / "mine.py").write_text(own)
    monkeypatch.syspath_prepend(folder)
    with verifiers("mine.py:mine", base=folder, timeout_seconds=LONG) as room:
        assert judged(room, "4")[0].correct


def test_a_trainer_may_ignore_the_end_of_its_children():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with verifiers(timeout_seconds=LONG) as room:
            outcomes = judged(room, "4", "exit 3", "5")
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert [o.cause or o.kind for o in outcomes] == ["correct", "crash", "wrong"]
