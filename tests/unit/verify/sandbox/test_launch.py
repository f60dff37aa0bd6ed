"""Honest programs work, and others end as they should: endings, limits, order, retries, refusal."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from processes import alive, eventually
from refusals import refused
from winnow.verify.sandbox import (
    Limits,
    Program,
    RunResult,
    Sandbox,
    SandboxError,
    choice,
    choose,
    interpreter,
    landlock,
    launch,
)

LIMITS = Limits(cpu_seconds=30, wall_seconds=120.0)  # far beyond what a busy machine needs


@pytest.fixture(params=["bubblewrap", "landlock"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """Without a user of its own for each run, unless bubblewrap needs one: to start a program as another user forks
    this process, which takes longer than the program. Those of test_hostile_programs.py have such users.
    """
    try:
        layers = choose(request.param).layers
    except SandboxError as error:
        if request.param == "landlock" and landlock.version():
            raise  # the kernel has it, so a refusal is winnow's fault
        pytest.skip(str(error))
    return Sandbox(dataclasses.replace(layers, own_user=layers.own_user and layers.bubblewrap is not None))


def run(sandbox: Sandbox, code: str, stdin: bytes = b"", **changes: Any) -> RunResult:
    return sandbox.run(Program(code=code.encode(), stdin=stdin), dataclasses.replace(LIMITS, **changes))


def call(sandbox: Sandbox, code: str, name: str, arguments: str) -> RunResult:
    return sandbox.run(Program(code=code.encode(), function=name, arguments=arguments), LIMITS)


def test_a_program_reads_and_prints(sandbox: Sandbox):
    ended = run(sandbox, "print(sum(map(int, input().split())))", b"20 22\n")
    assert (ended.ending, ended.stdout) == ("finished", b"42\n")


def test_the_main_part_of_a_function_s_file_does_not_run(sandbox: Sandbox):
    code = "def f(x): return x\nif __name__ == '__main__':\n print(f(int(input())))"
    assert call(sandbox, code, "f", "[7]").value == b"7"
    assert run(sandbox, code, b"7\n").stdout == b"7\n"


def test_a_program_that_ends_after_its_cpu_time_is_over_the_limit(sandbox: Sandbox):
    deaf = "import signal, time\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
    ended = run(sandbox, deaf + "while time.process_time() < 1.05: pass\nprint(1)", cpu_seconds=1)
    assert (ended.ending, ended.late) == ("time_limit", False)


def test_it_is_the_python_that_runs_winnow_without_packages(sandbox: Sandbox):
    ended = run(sandbox, "import sys; print(sys.version_info[:3], any('site-packages' in p for p in sys.path))")
    assert ended.stdout.decode() == f"{sys.version_info[:3]} False\n"


def test_much_input_and_output_pass(sandbox: Sandbox):
    ended = run(
        sandbox, "import sys; data = sys.stdin.read(); print(len(data)); print('y' * 900_000)", b"x" * 3_000_000
    )
    assert ended.stdout == b"3000000\n" + b"y" * 900_000 + b"\n"


def test_unread_input_does_not_matter(sandbox: Sandbox):
    assert run(sandbox, "print(1)", b"x" * 3_000_000).stdout == b"1\n"


def test_output_may_be_any_bytes(sandbox: Sandbox):
    code = r"import sys; sys.stdout.buffer.write(bytes(range(256)) + '\u2028'.encode())"
    assert run(sandbox, code).stdout == bytes(range(256)) + "\u2028".encode()


def test_the_usual_library_works(sandbox: Sandbox):
    code = """
import array, bisect, collections, copy, csv, dataclasses, datetime, decimal, enum, fractions, functools, hashlib, heapq
import io, itertools, json, math, operator, random, re, resource, statistics, string, struct, sys, textwrap, threading
import time, typing, unicodedata, uuid, zlib
sys.setrecursionlimit(10**6)
resource.setrlimit(resource.RLIMIT_STACK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
threading.stack_size(2**26)
def deep(n): return 0 if n == 0 else 1 + deep(n - 1)
def main(): print(deep(20_000), datetime.date(2024, 2, 29), decimal.Decimal(1) / 3, random.random() < time.time())
thread = threading.Thread(target=main); thread.start(); thread.join()
@dataclasses.dataclass
class Point:
    x: "int"
print(typing.get_type_hints(Point), __name__)
"""
    ended = run(sandbox, code)
    expected = b"20000 2024-02-29 0.3333333333333333333333333333 True\n{'x': <class 'int'>} __main__\n"
    assert (ended.ending, ended.detail, ended.stdout) == ("finished", "", expected)


def test_hashes_repeat(sandbox: Sandbox):
    assert run(sandbox, "print(hash('x'))").stdout == run(sandbox, "print(hash('x'))").stdout


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("import sys; sys.exit(0)", "finished"),
        ("raise SystemExit", "finished"),
        ("import os; os._exit(0)", "finished"),
        ("import sys; sys.exit(3)", "runtime_error"),
        ("import sys; sys.exit('no')", "runtime_error"),
        ("1 / 0", "runtime_error"),
        ("print(", "compile_error"),
        ("raise MemoryError", "memory_limit"),
        ("import sys; sys.exit(137)", "memory_limit"),  # pretends that it was killed: no failure of the sandbox
        ("import sys; sys.exit(152)", "time_limit"),
        ("import os\nfor h in range(3, 9):\n try: os.write(h, b'sandbox_error\\n')\n except OSError: pass\nos._exit(1)",
         "runtime_error"),
    ],
)  # fmt: skip
def test_endings(sandbox: Sandbox, code: str, ending: str):
    assert run(sandbox, code).ending == ending


def test_the_last_words_are_kept(sandbox: Sandbox):
    assert run(sandbox, "1 / 0").detail.endswith("ZeroDivisionError: division by zero")


def test_a_function_is_called_with_json_and_answers_json(sandbox: Sandbox):
    ended = call(sandbox, "def f(a, b):\n print('noise')\n return {'sum': a + b, 'pair': (a, b)}", "f", "[1, 2.5]")
    assert ended.value == b'{"sum": 3.5, "pair": [1, 2.5]}'


def test_a_method_of_solution_is_called(sandbox: Sandbox):
    code = "class Solution:\n def twice(self, x): return x * 2"
    assert call(sandbox, code, "twice", '["ab"]').value == b'"abab"'


@pytest.mark.parametrize("code", ["def g(): pass", "def f(): return {1, 2}", "def f(): return object()", "f = 3"])
def test_a_function_that_is_none_or_answers_no_json(sandbox: Sandbox, code: str):
    ended = call(sandbox, code, "f", "[]")
    assert (ended.ending, ended.value) == ("runtime_error", None)


def test_at_most_so_many_at_once_and_every_place_once(sandbox: Sandbox):
    code = b"import time; time.sleep(0.1); print(input())"
    programs = [Program(code=code, stdin=b"%d\n" % place) for place in range(6)]
    runs = dict(sandbox.run_all(programs, LIMITS, at_once=3))
    assert {place: run.stdout for place, run in runs.items()} == {place: b"%d\n" % place for place in range(6)}


def test_nothing_outlives_its_deadline(sandbox: Sandbox):
    programs = [Program(code=b"import time; time.sleep(600)")] * 4
    runs = dict(sandbox.run_all(programs, LIMITS, at_once=2, until=time.monotonic() + 0.5))
    assert {place: run.ending for place, run in runs.items()} == {0: "time_limit", 1: "time_limit"}
    assert all(run.late for run in runs.values())


def test_only_the_clock_makes_a_run_late(sandbox: Sandbox):
    """CPU time does not depend on what else the machine does: a program that is over it, above, is not late."""
    asleep = run(sandbox, "import time; time.sleep(600)", wall_seconds=1.0)
    assert (asleep.ending, asleep.late) == ("time_limit", True)
    assert not run(sandbox, "print(1)").late


def test_a_program_without_time_before_the_common_deadline_is_late(sandbox: Sandbox):
    for delay in (0.0, 0.001, 0.005):
        runs = dict(sandbox.run_all([Program(code=b"print(1)")], LIMITS, at_once=1, until=time.monotonic() + delay))
        assert {run.ending for run in runs.values()} <= {"time_limit", "finished"}


def test_closing_the_iterator_ends_what_runs(sandbox: Sandbox):
    programs = [Program(code=b"print(1)"), Program(code=b"import time; time.sleep(600)")]
    before = children()
    runs = sandbox.run_all(programs, LIMITS, at_once=2)
    assert next(runs)[0] == 0
    assert len(children()) == len(before) + 1
    runs.close()
    assert children() == before


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_a_program_dies_with_its_harness(sandbox: Sandbox):
    preference = "bubblewrap" if sandbox.layers.bubblewrap else "landlock"
    code = f"""
import os
from winnow.verify.sandbox import Limits, Program, choose
box = choose({preference!r})
programs = [Program(code=b"print(1)"), Program(code=b"import time; time.sleep(600)")]
runs = box.run_all(programs, Limits(wall_seconds=999), at_once=2)
next(runs)
print(*open(f"/proc/self/task/{{os.getpid()}}/children").read().split(), flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (pid,) = done.stdout.split()
    assert eventually(lambda: not alive(pid))


# the sandbox's own failures


def broken(**changes: Any) -> Sandbox:
    """A sandbox that lacks a layer which it declares."""
    return Sandbox(dataclasses.replace(choose("unsafe").layers, **changes))


def test_a_sandbox_that_does_not_start_is_its_own_failure():
    nowhere = dataclasses.replace(interpreter.own(), executable="/nowhere/python")
    ended = broken(interpreter=nowhere).run(Program(code=b"print(1)"), LIMITS)
    assert ended.ending == "sandbox_error"
    assert "/nowhere/python" in ended.detail


def test_a_lock_that_does_not_close_is_the_sandbox_s_failure():
    if sys.platform != "linux":
        pytest.skip("landlock is Linux's")
    hidden = dataclasses.replace(interpreter.own(), readable=("/nowhere",))
    ended = broken(interpreter=hidden, landlock=1).run(Program(code=b"print(1)"), LIMITS)
    assert ended.ending == "sandbox_error"


def test_a_program_killed_from_outside_is_the_sandbox_s_failure(sandbox: Sandbox):
    if sandbox.layers.bubblewrap:
        pytest.skip("bubblewrap reports its child's signal as an exit status, which a program can forge")
    before = children()

    def kill() -> None:
        while not (new := set(children()) - set(before)):
            time.sleep(0.01)
        time.sleep(1.0)
        os.kill(int(new.pop()), signal.SIGKILL)

    somebody = threading.Thread(target=kill)
    somebody.start()
    program = Program(code=b"import time; time.sleep(600)")
    ((_, ended),) = launch.run_all(sandbox.layers, [program], LIMITS, at_once=1)
    somebody.join()
    assert ended.ending == "sandbox_error"


def test_the_self_test_refuses_what_does_not_hold():
    layers = choose("unsafe").layers
    assert "read a file" in choice.complaint_about(dataclasses.replace(layers, landlock=0, seccomp=True))


def test_canaries_run_again_and_a_broken_sandbox_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choice, "RUNS_BETWEEN_CANARIES", 2)
    leaky = broken(seccomp=True)
    leaky.run(Program(code=b"print(1)"), LIMITS)
    for _ in range(2):  # it stays an error
        with refused(SandboxError, code="verifier.sandbox"):
            leaky.run(Program(code=b"print(1)"), LIMITS)


def test_a_machine_without_any_layer_is_refused_with_every_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choice.bwrap, "available", lambda: None)
    monkeypatch.setattr(choice.landlock, "version", lambda: 0)
    with refused(SandboxError, "bwrap", "landlock", "unsafe", code="verifier.sandbox"):
        choose.__wrapped__("auto")


def test_the_text_of_layers_lists_them():
    assert str(choose("unsafe").layers) == "limits"


def test_the_copied_python_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another user's folder in its place is refused."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(interpreter, "_enterable", lambda folder: True)  # pytest's folders are its user's alone
    home = Path(interpreter.copied().executable).parents[1]
    assert home.parent == tmp_path
    library = next(home.glob("lib/python*/os.py"))
    library.rename(library.with_suffix(".gone"))
    with pytest.raises(FileNotFoundError, match=re.escape(str(home))):
        interpreter.copied()
    library.with_suffix(".gone").rename(library)
    home.chmod(0o777)
    with pytest.raises(PermissionError, match=re.escape(str(home))):
        interpreter.copied()


def test_a_copy_that_another_process_made_meanwhile_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rename = Path.rename

    def late(draft: Path, home: Path) -> None:
        shutil.copytree(draft, home, symlinks=True)
        rename(draft, home)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(interpreter, "_LEFT_OUT", ("[!o]*",))  # of the library os.py and a few others are copied
    monkeypatch.setattr(interpreter, "_enterable", lambda folder: True)
    monkeypatch.setattr(Path, "rename", late)
    assert Path(interpreter.copied().executable).is_file()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs programs as another user")
def test_a_temporary_folder_that_only_its_owner_may_enter_is_no_obstacle(tmp_path: Path):
    """TMPDIR two levels below a folder of mode 0700: the copy of Python is elsewhere, and programs run."""
    private = tmp_path / "private"
    (private / "inside").mkdir(parents=True)
    private.chmod(0o700)
    code = """
from winnow.verify.sandbox import Limits, Program, choose, interpreter
print(interpreter.copied().executable)
print(choose("auto").run(Program(code=b"print(42)"), Limits(cpu_seconds=30, wall_seconds=120)).stdout)
"""
    environment = {**os.environ, "TMPDIR": str(private / "inside")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if landlock.version() == 0:
        pytest.skip("without landlock there may be no sandbox at all")
    assert done.returncode == 0, done.stderr
    where, printed = done.stdout.splitlines()
    assert not where.startswith(str(tmp_path))
    assert printed == r"b'42\n'"
    assert list((private / "inside").iterdir()) == []


def test_without_a_suitable_folder_the_error_names_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tmp_path.chmod(0o700)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(interpreter, "_TEMPORARY", ())
    monkeypatch.setattr(interpreter, "reachable_by_others", lambda own: False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with refused(SandboxError, "TMPDIR", code="verifier.sandbox") as caught:
        choose.__wrapped__("auto")
    assert "bwrap" not in str(caught.value), "installing bubblewrap would not help"
