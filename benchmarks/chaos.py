"""Kill training at random moments, resume it, and compare its files with those of an uninterrupted run.

    scripts/chaos --kills 100

There are four small configurations: GRPO with PODS and an evaluation every other step; GVM with windows that contain a
checkpoint; LoRA with a KL term and a moving reference; and a recorded environment that gives no answer twice. A fifth
samples in a second process; it starts slowly, and is one run in thirteen. Each is run twice without interruption, the
recorded one for the second time with the record of the first. A killed run of it is compared with a new run that is
given its record. Then it is run repeatedly, each time in a new folder: killed
with SIGKILL, resumed, and sometimes killed again, until it is finished. Model, adapter, optimizer and state must be
equal in every byte, and both logs in every row, except for times and memory use. After a kill no process that the
trainer started may remain.

Half of the moments are times: a random share of the uninterrupted run's seconds. The others are named: the call of or
the return from a function of winnow, or a system call in state/. They are chosen by module, then by function, then by
occurrence, so that short operations are hit too: writing, publishing and removing checkpoints, appending to and
truncating logs, sampling, verifying, probing, evaluating, updating and building.

Processes are forked from this one, which has imported everything and computed nothing. With --write it writes
benchmarks/results/<date>_chaos.json. The exit code is 1 if anything differs.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import frame
import torch

import winnow
from winnow.config_file import validate
from winnow.state.folder import ANSWERS
from winnow.state.logbook import read_rows
from winnow.testing import tiny
from winnow.training.fit import fit
from winnow.training.resolve import resolve_members

SOURCE = Path(winnow.__file__).parent
SECOND = Path(__file__).parents[1] / "tests" / "e2e" / "second_engine.py"
MARKER = "WINNOW_CHAOS"  # in the environment of every process that a trainer starts
STEPS = 5
SHARE_OF_STATE = 0.5  # share of the named moments in state/, where a kill can leave an unfinished file
SHARE_KILLED_AGAIN = 0.3
PATIENCE_SECONDS = 600.0  # for a run of a few seconds; a slower machine gives no verdict
GONE_SECONDS = 60.0
WHERE = "where.json"  # beside the policy: keys for its device and precision
CLOCK = ("seconds/", "memory/", "eval/seconds")

REWARD = '''
def even(prompt, rollout):
    """Share of characters with an even code point."""
    return sum(ord(c) % 2 == 0 for c in rollout.text) / max(1, len(rollout.text))


def often_right(prompt, rollout):
    """Right where the number of characters with an even code point is even."""
    return float(sum(ord(c) % 2 == 0 for c in rollout.text) % 2 == 0)
'''

ENVIRONMENT = '''
import os


def chance(prompt, reply, rng, *, turns=3):
    """Answers with random numbers of the system, and pays by them."""
    total = 0
    for turn in range(turns - 1):
        total += os.urandom(1)[0]
        reply = yield str(total)
    return {"paid": (total + len(reply)) % 7 / 7}
'''

CONFIGS: dict[str, dict[str, Any]] = {
    "grpo_pods": {
        "checkpoint": {"every": 1, "keep_last": 2},
        "update": {"epochs": 2, "updates_per_step": 2},
        "evaluate": {"every": 2},
        "optimizer": {"schedule": "cosine", "warmup_steps": 2, "learning_rate": 1e-3},
        "select": {"use": "max_variance", "keep_per_prompt": 2},
        "reward": "even",
    },
    "gvm_window": {
        "checkpoint": {"every": 2, "keep_last": 1},
        "allocate": "gvm",
        "weighting": "unbiased",
        "probe": {"every": 3, "rollouts_per_prompt": 4, "outer_reset": "optimizer"},
        "select": "all",
        "reward": "often_right",
    },
    "lora_kl": {
        "checkpoint": {"every": 2, "keep_last": 2},
        "model": {"lora": {"rank": 2, "alpha": 4.0}},
        "terms": [{"use": "kl", "coefficient": 0.05}],
        "allocate": "gvm",
        "probe": {"every": 2, "rollouts_per_prompt": 2, "gradient_norm": "none", "outer_reset": "both"},
        "evaluate": {"every": 3},
        "select": {"use": "max_variance", "keep_per_prompt": 2},
        "reward": "even",
    },
    "recorded": {  # an environment that gives no answer twice; the record takes its place in a resumed run
        "checkpoint": {"every": 2, "keep_last": 2},
        "evaluate": {"every": 2},
        "prompt": {"template": "chat"},
        "rollout": {"max_new_tokens": 60},
        "select": {"use": "max_variance", "keep_per_prompt": 2},
        "environment": {"use": "chance", "max_turn_tokens": 6, "recorded": True},
    },
    "second_process": {
        "checkpoint": {"every": 2, "keep_last": 2},
        "rollout": {"engine": {"use": f"{SECOND}:second", "timeout_seconds": PATIENCE_SECONDS}},
        "select": {"use": "max_variance", "keep_per_prompt": 2},
        "reward": "even",
    },
}
ROTATION = [*["grpo_pods", "gvm_window", "lora_kl", "recorded"] * 3, "second_process"]


@dataclass(frozen=True)
class Moment:
    """When to kill: at an occurrence of an event, or after a number of seconds."""

    event: str = ""
    occurrence: int = 1
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.event} #{self.occurrence}" if self.event else f"after {self.seconds:.2f} s"


@dataclass(frozen=True)
class Undisturbed:
    """An uninterrupted run: its files, its events, and its duration."""

    left: dict[str, str]
    events: Counter[str]
    seconds: float


@dataclass
class Trial:
    """One run, killed at least once unless it finished first, and resumed to its end."""

    config: str
    kills: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)
    trouble: str = ""  # if a resumed run did not finish

    @property
    def equal(self) -> bool:
        return not (self.orphans or self.differs or self.trouble)


def configuration(name: str, home: Path, output: Path) -> dict[str, Any]:
    """The smallest complete run of its kind. Its time limits are too long to be reached on any machine."""
    own = dict(CONFIGS[name])
    base: dict[str, Any] = {
        "steps": STEPS,
        "output": str(output),
        "threads": 1,
        **json.loads((home / WHERE).read_text()),
        "task": {"use": "arithmetic", "levels": [1], "size": 12},
        "rollout": {"prompts_per_step": 3, "rollouts_per_prompt": 4, "max_new_tokens": 6},
        "evaluate": {"problems": 2, "rollouts_per_prompt": 2},
        "optimizer": {"learning_rate": 1e-3},
        "verify": {"timeout_seconds": PATIENCE_SECONDS},
    }
    if "reward" in own:
        own["reward"] = {"use": f"{home / 'reward.py'}:{own['reward']}"}
    if "environment" in own and ".py:" not in own["environment"]["use"]:
        own["environment"] = {**own["environment"], "use": f"{home / 'environment.py'}:{own['environment']['use']}"}
    own["model"] = {"path": str(home / "policy"), **base.pop("model", {}), **own.get("model", {})}
    if "engine" in own.get("rollout", {}):  # the second process loads the policy again
        engine = {**own["rollout"]["engine"], "folder": str(home / "policy")}
        own["rollout"] = {**own["rollout"], "engine": engine}
    return {**base, **{k: {**base[k], **v} if k in base and isinstance(v, dict) else v for k, v in own.items()}}


def train(name: str, home: Path, output: Path) -> None:
    """Run one process of a run, from its newest checkpoint if there is one."""
    members = resolve_members(validate(configuration(name, home, output)), base=home)
    fit(members, resume=(output / "manifest.json").exists())


def named(frame: FrameType, event: str, argument: Any) -> str | None:
    """The profiler's event as a kind of moment; None for code outside winnow."""
    function = function_of(frame.f_code)
    if function is None:
        return None
    if event in ("call", "return"):
        return f"{function} {event}"
    return f"{function} {event[2:]} of {argument.__name__}" if function.startswith("state.") else None


@functools.cache
def function_of(code: CodeType) -> str | None:
    """ "module:function" of winnow's code."""
    path = Path(code.co_filename)
    if not path.is_relative_to(SOURCE):
        return None
    module = path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", ".")
    return f"{module}:{code.co_qualname}"


def in_child(life: Callable[[], None], watch: Callable[[str], None] | None, log: Path) -> int:
    """Fork, and run one process there, with each event passed to `watch`. Returns the process."""
    child = os.fork()
    if child:
        return child
    try:
        with log.open("ab", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ[MARKER] = str(log)
        if watch is not None:
            sys.setprofile(lambda *about: watch(kind) if (kind := named(*about)) else None)
        life()
        sys.setprofile(None)
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


def wait(child: int, seconds: float) -> int | None:
    """Its exit status as in `Popen.returncode`; None if it still runs after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(min(0.005, max(0.0, deadline - time.monotonic())))


def undisturbed(name: str, home: Path, folder: Path) -> Undisturbed:
    """Run twice to the end, once with its events counted. Raises RuntimeError if that fails, or the results differ."""
    events: Counter[str] = Counter()

    def counted() -> None:
        train(name, home, folder / "counted" / "run")
        sys.setprofile(None)
        (folder / "events.json").write_text(json.dumps(events))

    def lived(run: str, life: Callable[[], None], watch: Callable[[str], None] | None) -> float:
        (folder / run).mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        status = wait(in_child(life, watch, folder / "log"), PATIENCE_SECONDS)
        if status != 0:
            log = (folder / "log").read_text()[-2000:]
            raise RuntimeError(f"{name} does not run undisturbed (status {status}):\n{log}")
        return time.monotonic() - begin

    lived("counted", counted, lambda kind: events.update((kind,)))
    give_record(folder / "counted" / "run", folder / "plain" / "run")
    seconds = lived("plain", lambda: train(name, home, folder / "plain" / "run"), None)
    left, other = what_is_left(folder / "plain" / "run"), what_is_left(folder / "counted" / "run")
    if left != other:
        raise RuntimeError(f"{name} leaves other bytes at a second undisturbed run: nothing can be compared")
    return Undisturbed(left, Counter(json.loads((folder / "events.json").read_text())), seconds)


def give_record(run: Path, new: Path) -> None:
    """Begin a new run with the answers that another one has recorded, if any."""
    if (run / ANSWERS).is_dir():
        shutil.copytree(run / ANSWERS, new / ANSWERS)


def choose(rng: random.Random, calm: Undisturbed, *, timed: bool) -> Moment:
    """A random moment of a run: a time, or an event chosen by module, function and occurrence."""
    if timed:
        return Moment(seconds=rng.uniform(0.0, calm.seconds))
    of_state = rng.random() < SHARE_OF_STATE
    modules: dict[str, list[str]] = collections.defaultdict(list)
    for event in calm.events:
        module = event.partition(":")[0]
        if module.startswith("state.") == of_state:
            modules[module].append(event)
    event = rng.choice(sorted(modules[rng.choice(sorted(modules))]))
    return Moment(event, rng.randint(1, calm.events[event]))


def killed(name: str, home: Path, folder: Path, moment: Moment | None) -> int | None:
    """Run one process, and kill it at the moment if it reaches that. Returns its exit status."""
    left = moment.occurrence if moment else 0

    def strike(kind: str) -> None:
        nonlocal left
        if moment and kind == moment.event:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    timed = moment is not None and not moment.event
    child = in_child(
        lambda: train(name, home, folder / "run"), strike if moment and not timed else None, folder / "log"
    )
    status = wait(child, moment.seconds if moment and timed else PATIENCE_SECONDS)
    if status is not None:
        return status
    os.kill(child, signal.SIGKILL)
    status = wait(child, PATIENCE_SECONDS)
    return status if timed else None


def orphans(log: Path) -> list[str]:
    """Command lines of processes that a killed trainer started and that still run after a minute."""
    deadline = time.monotonic() + GONE_SECONDS
    while (alive := list(_marked(log))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return alive


def _marked(log: Path) -> Iterator[str]:
    wanted = f"{MARKER}={log}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                yield (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has exited, or belongs to another user
            continue


def what_is_left(run: Path) -> dict[str, str]:
    """SHA-256 of every file of the final checkpoint, and of both logs without times."""
    final = run / "checkpoints" / f"step-{STEPS:06d}"
    files = {
        path.relative_to(final).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(final.rglob("*"))
        if path.is_file()
        and path != final / "manifest.json"  # it contains the length of the logs, which depends on the times
    }
    logs = {name: hashlib.sha256(rows(run / name)).hexdigest() for name in ("metrics.jsonl", "rollouts")}
    return {**files, **logs, "folder": " ".join(sorted(path.name for path in final.parent.iterdir()))}


def rows(log: Path) -> bytes:
    """The rows of a log, in order, without values that differ between any two runs."""
    if log.name == "rollouts":
        kept = ({name: value for name, value in row.items() if name != "seconds"} for row in read_rows(log))
        return "\n".join(json.dumps(row, default=lambda array: array.tolist()) for row in kept).encode()
    out = []
    for line in log.read_bytes().splitlines():
        row = {key: value for key, value in json.loads(line).items() if not key.startswith(CLOCK)}
        out.append(json.dumps(row, sort_keys=True))
    return "\n".join(out).encode()


def trial(
    name: str, home: Path, folder: Path, calm: Undisturbed, rng: random.Random, moments: Sequence[Moment]
) -> Trial:
    """A new run, killed at each moment in turn, then resumed to its end."""
    result = Trial(name)
    for moment in [*moments, None]:
        status = killed(name, home, folder, moment)
        result.orphans += orphans(folder / "log")
        if status == -signal.SIGKILL and moment is not None:
            result.kills.append(str(moment))
        elif status != 0:
            result.trouble = f"ended with {status}: {(folder / 'log').read_text()[-2000:]}"
            return result
    left, expected = what_is_left(folder / "run"), calm.left
    if (folder / "run" / ANSWERS).is_dir():  # it has answers of its own
        give_record(folder / "run", folder / "fed" / "run")
        status = killed(name, home, folder / "fed", None)
        if status != 0:
            result.trouble = f"with its record: ended with {status}: {(folder / 'fed' / 'log').read_text()[-2000:]}"
            return result
        expected = what_is_left(folder / "fed" / "run")
    result.differs = sorted(name for name in {*left, *expected} if left.get(name) != expected.get(name))
    return result


def prepare(home: Path) -> None:
    """Make a policy and its rewards in a fork, because this process must not compute before it forks others."""
    if wait(in_child(lambda: make(home, {"device": "cpu"}), None, home / "log"), PATIENCE_SECONDS) != 0:
        raise RuntimeError((home / "log").read_text())


def make(home: Path, where: Mapping[str, Any]) -> None:
    """A policy, its rewards, and keys of every configuration."""
    loaded = tiny("qwen2")
    loaded.model.save_pretrained(home / "policy")
    loaded.tokenizer.save_pretrained(home / "policy")
    (home / "reward.py").write_text(REWARD)
    (home / "environment.py").write_text(ENVIRONMENT)
    (home / WHERE).write_text(json.dumps(where))


def run(home: Path, *, kills: int, seed: int, names: Sequence[str], timed: bool) -> Iterator[tuple[Trial, float]]:
    """Make trials until `kills` processes were killed, one configuration after the other."""
    prepare(home)
    calm = {name: undisturbed(name, home, home / name) for name in dict.fromkeys(names)}
    rng, done, number = random.Random(seed), 0, 0
    while done < kills:
        name = names[number % len(names)]
        folder = home / f"{number:04d}_{name}"
        folder.mkdir()
        count = min(kills - done, 1 + (rng.random() < SHARE_KILLED_AGAIN))
        clocks = [timed and (number + place) % 2 == 1 for place in range(count)]
        moments = [choose(rng, calm[name], timed=clock) for clock in clocks]
        begin = time.monotonic()
        result = trial(name, home, folder, calm[name], rng, moments)
        yield result, time.monotonic() - begin
        done, number = done + len(result.kills), number + 1


def report(trials: Sequence[Trial], seed: int) -> dict[str, Any]:
    kills = [(t, kill) for t in trials for kill in t.kills]
    by_event = {kill.partition(" #")[0] for _, kill in kills if "#" in kill}
    return {
        "seed": seed,
        "kills": len(kills),
        "kills_equal": sum(t.equal for t, _ in kills),
        "runs": len(trials),
        "runs_equal": sum(t.equal for t in trials),
        "kinds_of_moment": len(by_event) + any("#" not in kill for _, kill in kills),
        "orphans": sum(len(t.orphans) for t in trials),
        "per_configuration": {
            name: {"kills": sum(t.config == name for t, _ in kills), "runs": sum(t.config == name for t in trials)}
            for name in dict.fromkeys(t.config for t in trials)
        },
        "modules": dict(
            Counter(kill.partition(":")[0] if "#" in kill else "(time)" for _, kill in kills).most_common()
        ),
        "moments": sorted(kill for _, kill in kills),
        "unequal": [vars(t) for t in trials if not t.equal],
    }


def main() -> int:
    parser = frame.parser(__doc__, kills=100, seed=0)
    parser.add_argument("--configs", nargs="+", choices=list(CONFIGS), default=ROTATION)
    parser.add_argument(
        "--named-only", action="store_true", help="only named moments, which do not depend on the machine's speed"
    )
    parser.add_argument("--write", action="store_true", help="write a dated result")
    arguments = frame.parse(parser)
    torch.set_num_threads(1)
    trials = []
    with tempfile.TemporaryDirectory(prefix="winnow-chaos-") as home:
        options = {"kills": arguments.kills, "seed": arguments.seed, "timed": not arguments.named_only}
        for result, seconds in run(Path(home), names=arguments.configs, **options):
            trials.append(result)
            verdict = "equal" if result.equal else "UNEQUAL"
            print(f"{result.config:10}  {verdict:7}  {seconds:5.1f} s  {'; '.join(result.kills)}", flush=True)
            for trouble in (*result.orphans, *result.differs, *([result.trouble] if result.trouble else [])):
                print(f"    {trouble}", flush=True)
    found = report(trials, arguments.seed)
    kinds = found["kinds_of_moment"]
    print(f"{found['kills_equal']} of {found['kills']} kills, {kinds} kinds of moment, ended in equal bytes")
    if arguments.write:
        frame.finish("chaos", found, packages=(*frame.PACKAGES, "peft", "safetensors"))
    return 0 if all(result.equal for result in trials) else 1


if __name__ == "__main__":
    sys.exit(main())
