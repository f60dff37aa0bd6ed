"""Run by test_kill_points.py: lives of a run that end at a named point, and what the resumed run leaves.

    python kill_points.py few|writes|phases|under_way|failures|full|few_turns|turns|few_sizes|sizes

Prints a line for each point: its name, the exit status of the struck life, and "equal", or what differs from an
undisturbed run. The few strike one run, each a step or more after the one before, when the harm of that one is in a
checkpoint and in the logs, or in the step that is taken again; only if something differs at its end does each strike a
run of its own.

A life is a fork of this process, which has imported everything and computed nothing. A point is a call of one of
winnow's own functions, which is wrapped in the fork alone: by name, by the file that it writes, and by the number of
calls since a landmark. Nothing sleeps, and no point depends on the speed of the machine: a save that must be
in progress is held by a writer that waits until the training thread ends or waits for it.
"""

from __future__ import annotations

import errno
import functools
import importlib
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import chaos

SECONDS = 300.0  # for a life of one
STRUCK = "step-000002"  # the checkpoint that is written when a life ends, beside or before step 2
EVERYTHING = {
    "checkpoint": {"every": 1, "keep_last": 1},
    "model": {"lora": {"rank": 2, "alpha": 4.0, "targets": ["q_proj"]}},
    "rollout": {"prompts_per_step": 2, "rollouts_per_prompt": 3, "max_new_tokens": 4},
    "terms": [{"use": "kl", "coefficient": 0.05}],
    "allocate": "gvm",
    "weighting": "prompt",
    "select": "all",
    "probe": {"every": 2, "rollouts_per_prompt": 2, "gradient_norm": "none", "outer_reset": "both"},
    "evaluate": {"every": 2, "problems": 1, "rollouts_per_prompt": 1, "greedy": False},
    "task": {"size": 6},
    "update": {"updates_per_step": 2, "tokens_per_micro_batch": 30},
    "verify": {"workers": 0},
    "reward": "even",
    "prompt": {"template": "question_only"},
}
SIZES = {  # the jump is before step 2, and its costs are those of a file
    "checkpoint": {"every": 1, "keep_last": 1},
    "rollout": {"prompts_per_step": 2, "rollouts_per_prompt": 4, "max_new_tokens": 4},
    "select": {"use": "max_variance", "keep_per_prompt": 4},
    "plan": {"use": "auto", "every": 2, "costs": str(Path(__file__).parents[2] / "configs/costs/two_cpu_cores.json")},
    "evaluate": {"every": 2, "problems": 1, "rollouts_per_prompt": 1, "greedy": False},
    "verify": {"workers": 0},
    "reward": "even",
    "prompt": {"template": "question_only"},
}
PLAYED = {  # each turn of the environment takes another time in each life
    "checkpoint": {"every": 1, "keep_last": 1},
    "rollout": {"prompts_per_step": 2, "rollouts_per_prompt": 3, "max_new_tokens": 40},
    "select": {"use": "max_variance", "keep_per_prompt": 2},
    "evaluate": {"every": 2, "problems": 1, "rollouts_per_prompt": 1, "greedy": False},
    "task": {"size": 6},
    "update": {"updates_per_step": 2, "tokens_per_micro_batch": 90},
    "verify": {"workers": 2},
    "environment": {"use": f"{Path(__file__).with_name('slow_game.py')}:count", "max_turn_tokens": 4},
}


@dataclass(frozen=True)
class Point:
    """A call of one of winnow's functions."""

    name: str
    function: str  # "module:attribute", below winnow
    of: str = ""  # in one of its arguments, as text
    call: int = 1  # counted from 1, since the landmark
    since: str = "state.checkpoint:_write"  # the landmark: a function that is called with ...
    landmark: str = STRUCK  # ... this in its arguments
    after: bool = False  # it returns, and then

    def at(self, step: int | None) -> Point:
        """The same point at another step, if one is given."""
        if step is None:
            return self
        there = re.compile(r"\d+$")
        landmark, of = (there.sub(lambda old: f"{step:0{len(old[0])}}", text) for text in (self.landmark, self.of))
        return replace(self, landmark=landmark, of=of)


def written(name: str, function: str, of: str = "", **more: Any) -> Point:
    return Point(name, f"state.{function}", of, **more)


WRITES = [
    written("leftovers cleared", "checkpoint:clear_leftovers", since="state.checkpoint:save", landmark="2"),
    written("room asked for", "checkpoint:_check_room", since="state.checkpoint:save", landmark="2"),
    written("draft begun", "checkpoint:_write", STRUCK),
    Point("adapter begun", "models.save:save_adapter"),
    Point("adapter's weights begun", "models.adapter:write_tensors", "adapter_model"),
    Point("adapter's weights half", "models.tensor_file:_pieces", call=3),
    Point("adapter's weights written", "models.save:save_adapter", after=True),
    Point("model begun", "models.save:_write_weights"),
    Point("model half, in a merge", "models.adapter:_merged", call=4),
    Point("model half, a tensor written", "models.adapter:_merged", call=4, after=True),
    Point("model's weights written", "models.save:_write_weights", after=True),
    Point("model's settings written", "models.save:_write_settings", after=True),
    Point("model's folder written", "learner.learner:write_model_folder", after=True),
    written("moments begun", "checkpoint:write_tensors"),
    written("moments written", "checkpoint:write_tensors", after=True),
    written("state begun", "checkpoint:write_json"),
    written("state a draft", "disk:write_all", after=True),
    written("state written", "checkpoint:write_json", after=True),
    written("model synced", "checkpoint:sync", "model.safetensors", after=True),
    written("moments to be synced", "checkpoint:sync", "trainer.tensors"),
    written("manifest begun", "checkpoint:write_manifest"),
    written("manifest a draft", "disk:write_all", call=2, after=True),
    written("manifest written", "checkpoint:write_manifest", after=True),
    written("folder to be synced", "checkpoint:sync", "adapter"),
    written("draft synced", "checkpoint:_write", STRUCK, after=True),
    written("renamed, not synced", "checkpoint:sync", "checkpoints"),
    written("renamed and synced", "checkpoint:damages", STRUCK, since="state.checkpoint:_publish"),
    written("old ones to be removed", "checkpoint:prune", since="state.checkpoint:_publish"),
    written("old one renamed", "checkpoint:delete", since="state.checkpoint:prune", landmark="2"),
    written("old ones removed", "checkpoint:prune", since="state.checkpoint:_publish", after=True),
    Point("logs synced, no thread yet", "background:BackgroundWork.start", since="core.loop:begin_save", landmark="2"),
    Point(
        "save ended, nobody told",
        "background:BackgroundWork._call",
        since="core.loop:begin_save",
        landmark="2",
        after=True,
    ),
]


def phase(name: str, function: str, **more: Any) -> Point:
    return Point(name, function, **{"since": "core.loop:train_step", "landmark": "2", **more})


def planned(name: str, function: str, **more: Any) -> Point:
    """Between two steps: a plan is made for step 2, at which a window begins."""
    return phase(name, function, **{"since": "core.loop:plan", **more})


PHASES = [
    phase("evaluation begun", "core.loop:evaluate", since="core.loop:begin_save", landmark="2"),
    phase(
        "evaluation logged",
        "state.logbook:Logbook.write_between",
        since="core.loop:begin_save",
        landmark="2",
        after=True,
    ),
    planned("plan begun", "core.loop:plan"),
    planned("moments and reference reset", "learner.learner:Learner.reset", after=True),
    planned("probe sampled", "core.plan:collect", after=True),
    planned("plan made", "core.plan:allocate", after=True),
    planned("plan logged", "state.logbook:Logbook.write_between", after=True),
    phase("sampling begun", "core.sample:collect"),
    phase("sampled and verified", "core.sample:collect", after=True),
    phase("verdicts judged", "verify.verifiers:Verifiers.check_step", after=True),
    phase("half of the groups selected", "core.step:fill_keep", call=2),
    phase("advantages given", "core.step:fill_advantages", after=True),
    phase("batches cut", "core.step:make_batches", after=True),
    phase("log-probs begun", "learner.learner:Learner.compute_logprobs"),
    phase("log-probs taken", "learner.learner:Learner.compute_logprobs", after=True),
    phase("between two micro-batches", "learner.learner:Learner.forward", call=2),
    phase("gradients whole", "learner.learner:Learner.step"),
    phase("between two updates", "learner.learner:Learner.step", after=True),
    phase("second update taken", "learner.learner:Learner.step", call=2, after=True),
    phase("weights handed over", "learner.learner:Learner.weights", after=True),
    phase("metrics described", "core.step:describe", after=True),
    phase("rollouts half written", "state.rollout_files:mark_of"),
    phase("rollouts a draft", "state.rollout_files:write_draft", after=True),
    phase("rollouts written, not listed", "state.log:append", of=".index.jsonl"),
    phase("rollouts logged, metrics not", "state.log:append", of=".index.jsonl", after=True),
    phase("metrics logged", "state.logbook:Logbook.finish", after=True),
]

UNDER_WAY = [  # and the writer of its moments waits. Step 1 begins no window: its first to wait is its first update
    phase("beside an evaluation", "core.loop:evaluate", since="core.loop:begin_save", landmark="2"),
    planned("beside a plan", "core.loop:plan"),
    planned("waited for before a reset", "core.progress:Saving.wait"),
    phase("beside sampling", "core.sample:collect", after=True, landmark="1"),
    phase("beside the selection", "core.step:fill_advantages", landmark="1"),
    phase("beside log-probs", "learner.learner:compute_logprobs", after=True, landmark="1"),
    phase("waited for before an update", "core.progress:Saving.wait", landmark="1"),
]

FULL = [  # of a model that is trained whole, whose own folder is resumed from, and whose reference is a second one
    Point("model half", "models.tensor_file:_pieces", call=3),
    written("moments begun", "checkpoint:write_tensors"),
    written("state begun", "checkpoint:write_json"),
    written("renamed, not synced", "checkpoint:sync", "checkpoints"),
    *(point for point in PHASES if point.name in ("moments and reference reset", "between two updates")),
]
TURN, VERIFY = "training.turns:TurnEngine.", "verify.verifiers:Verifiers."
DIALOGUE, KEPT = "tasks.dialogue:Dialogue.", "engines.native.turns:RunningTurns."
TURNS = [  # of 6 rollouts with 3 turns of the policy each, which native keeps while they are answered
    phase("first turn begun", "engines.native.sampler:Native.generate"),
    phase("first turn half sampled", f"{TURN}_take", call=3),
    phase("first answer requested", f"{VERIFY}request", after=True),
    phase("a turn's end given", f"{KEPT}_give", after=True),
    phase("first answer awaited", f"{VERIFY}answer"),
    phase("first answer there", f"{VERIFY}answer", after=True),
    phase("text to be tokenized", f"{DIALOGUE}all_tokens"),
    phase("text tokenized", f"{DIALOGUE}all_tokens", after=True),
    phase("half of the first answers there", f"{VERIFY}answer", call=3, after=True),
    phase("first answers taken", f"{KEPT}_answer", after=True),
    phase("second turn to be sampled", f"{KEPT}_draw", call=2),
    phase("second turn half sampled", f"{TURN}_take", call=9),
    phase("a second answer requested", f"{VERIFY}request", call=8, after=True),
    phase("a second answer there", f"{VERIFY}answer", call=8, after=True),
    phase("third turn half sampled", f"{TURN}_take", call=15),
    phase("a rollout ended, not stored", f"{VERIFY}settle"),
    phase("a rollout ended and stored", f"{VERIFY}settle", call=2, after=True),
    phase("all turns sampled", "engines.native.sampler:Native.generate", after=True),
    phase("all ended, not replayed", f"{TURN}_check_repeats"),
    Point("replayed", f"{VERIFY}check_repeats", after=True, since="training.fit:build", landmark=""),
]
DECIDING = [
    phase("sizes to be chosen", "core.size_plan:RunSizes.decide", since="core.loop:begin_save", landmark="2"),
    phase("sizes chosen", "core.size_plan:RunSizes.decide", since="core.loop:begin_save", landmark="2", after=True),
    phase("decision written, not synced", "state.decisions:sync", since="core.loop:begin_save", landmark="2"),
    phase(
        "decision synced", "state.decisions:DecisionLog.append", since="core.loop:begin_save", landmark="2", after=True
    ),
    phase("sizes used", "core.sample:collect", after=True),
    phase("a step of these sizes logged", "core.size_plan:RunSizes.add", after=True),
]
FEW_TURNS = {"second turn half sampled": 1, "a rollout ended, not stored": 1}
# A decision that is written is not made again, so what happens while it is made comes first.
FEW_SIZES = {
    "sizes chosen": 2,
    "decision written, not synced": 4,
    "sizes used": 4,
    "a step of these sizes logged": 4,
}
FAILING_WRITES = [
    *(point for point in WRITES if point.name.endswith(("begun", "half", "be synced", "not synced"))),
    written("manifest a draft", "disk:write_all", call=2),
    written("no rename", "checkpoint:_publish"),
    written("last moments", "checkpoint:write_tensors", landmark="step-000003"),
    written("last manifest", "checkpoint:write_manifest", landmark="step-000003"),
    written("log not synced", "log:synced_mark", since="core.loop:begin_save", landmark="2"),
]
FAILING_PHASES = [
    *(point for point in PHASES if point.name.endswith(("begun", "reset", "sampled", "whole", "updates", "over"))),
    phase("rollouts not logged", "state.rollout_files:write_draft"),
    phase("rollouts not listed", "state.log:write_all"),
    phase("metrics not logged", "state.log:write_all", call=2),
]


def wrap(function: str, around: Callable[..., Any]) -> None:
    """`around(original, *arguments)` takes the place of "module:attribute", of a method too."""
    module, _, attribute = function.partition(":")
    *owner, name = attribute.split(".")
    home = functools.reduce(getattr, owner, importlib.import_module(f"winnow.{module}"))
    setattr(home, name, functools.partialmethod(_method, around, getattr(home, name)) if owner else
            functools.partial(around, getattr(home, name)))  # fmt: skip


def _method(self: object, around: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return around(original, self, *args, **kwargs)


def texts(arguments: tuple[object, ...]) -> Iterator[str]:
    """What a point's `of` and `landmark` are looked for in."""
    return (str(argument) for argument in arguments if isinstance(argument, (str, int, Path)))


def tells(arguments: tuple[object, ...], wanted: str) -> bool:
    """A step is told by its number, a file by a part of its path."""
    return not wanted or any(text == wanted or (not wanted.isdigit() and wanted in text) for text in texts(arguments))


def arm(point: Point, strike: Callable[[], None]) -> None:
    """From now on, `strike` is called at the point, once."""
    reached, calls = threading.Event(), 0

    def landmark(original: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        if tells((*arguments, *more.values(), *(getattr(a, "step", None) for a in arguments)), point.landmark):
            reached.set()
        return original(*arguments, **more)

    def passed(original: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += (counts := reached.is_set() and tells(arguments, point.of))
        if counts and calls == point.call and not point.after:
            os.write(1, b"struck\n")
            strike()
        result = original(*arguments, **more)
        if counts and calls == point.call and point.after:
            os.write(1, b"struck\n")
            strike()
        return result

    wrap(point.function, passed)
    wrap(point.since, landmark)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise OSError(errno.ENOSPC, "on purpose: no space left on device")


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def hold(step: str, *, until_asked: bool) -> Callable[[], None]:
    """The writer of the moments after so many steps waits from now on: for ever, or until the training thread, once it
    is struck, waits for the save. What is returned waits, in the training thread, until the writer does.
    """
    held, released, struck = threading.Event(), threading.Event(), threading.Event()

    def slow(original: Callable[..., Any], path: Path, *more: Any) -> Any:
        if f"step-{int(step):06}" in str(path):
            held.set()
            released.wait()
        return original(path, *more)

    def asked(original: Callable[..., Any], *arguments: Any) -> Any:
        if until_asked and struck.is_set():
            released.set()
        return original(*arguments)

    def under_way() -> None:
        held.wait()
        assert not released.is_set()
        struck.set()

    wrap("state.checkpoint:write_tensors", slow)
    wrap("core.progress:Saving.wait", asked)
    return under_way


# One point of each kind, for every run of the suite, and the step at which it strikes the one run: a file half written,
# a rename, a removal, a log, a reset, and a save in progress. Windows begin and evaluations are due at even steps, and
# no save lasts until sampling there. test_resume.py kills between two updates, test_life.py sends signals. The groups
# hold the others.
FEW = {
    "beside sampling: killed": 1,
    "moments and reference reset": 2,
    "rollouts logged, metrics not": 3,
    "beside an evaluation: failed": 4,
    "adapter's weights half": 6,
    "renamed, not synced": 7,
    "old one renamed": 8,
}

# Name, whether it saves beside training, and what its fork does before it, at another step if one is given.
Life = tuple[str, bool, Callable[[int | None], None]]


def struck_at(points: Sequence[Point], act: Callable[[], None], *, background: bool) -> list[Life]:
    return [(point.name, background, lambda step, point=point: arm(point.at(step), act)) for point in points]


def lives(group: str) -> list[Life]:
    """Those of a group. A phase is struck while no save is under way, so that each is struck alone."""
    if group == "few":
        found = {life[0]: life for name in ("writes", "phases", "under_way") for life in lives(name)}
        return [found[name] for name in FEW]
    if group == "writes":
        return struck_at(WRITES, kill, background=True)
    if group == "phases":
        return struck_at(PHASES, kill, background=False)
    if group == "failures":
        return [
            *struck_at(FAILING_WRITES, fail, background=True),
            *struck_at(FAILING_PHASES, fail, background=False),
        ]
    if group == "full":
        return struck_at(FULL, kill, background=True)
    if group in ("sizes", "few_sizes"):
        points = [point for point in DECIDING if group == "sizes" or point.name in FEW_SIZES]
        return struck_at(points, kill, background=False)
    if group in ("turns", "few_turns"):
        points = [point for point in TURNS if group == "turns" or point.name in FEW_TURNS]
        return struck_at(points, kill, background=False)
    return [
        (f"{point.name}: {how}", True, functools.partial(beside, point, act))
        for how, act in {"killed": kill, "failed": fail, "SIGTERM": terminate}.items()
        for point in UNDER_WAY
        if how == "killed" or point.name.endswith(("evaluation", "sampling"))
    ]


def beside(point: Point, act: Callable[[], None], step: int | None) -> None:
    point = point.at(step)
    under_way = hold(point.landmark, until_asked=act is not kill)

    def strike() -> None:
        under_way()
        act()

    arm(point, strike)


def life(home: Path, run: Path, *, background: bool, before: Callable[[], None] = lambda: None) -> int | None:
    """A run from its newest checkpoint on, in a fork. Its status."""

    def live() -> None:
        before()
        chaos.CONFIGS["everything"]["checkpoint"]["background"] = background
        chaos.train("everything", home, run)

    child = chaos.in_child(live, None, run.parent / "log")
    status = chaos.wait(child, SECONDS)
    if status is None:
        os.kill(child, signal.SIGKILL)
        chaos.wait(child, SECONDS)
    return status


def struck(home: Path, folder: Path, calm: dict[str, str], name: str, background: bool, before: Any) -> str:
    """What became of a run that was struck once: one line."""
    folder.mkdir()
    first = life(home, folder / "run", background=background, before=functools.partial(before, None))
    if "struck" not in (folder / "log").read_text():
        return f"{name} | {first} | never struck"
    return f"{name} | {first} | {verdict(home, folder, calm, background=background)}"


def verdict(home: Path, folder: Path, calm: dict[str, str], *, background: bool) -> str:
    """Resume a run to its end, and say what differs from an undisturbed one."""
    status = life(home, folder / "run", background=background)
    if status != 0:
        return f"not resumed ({status}): {(folder / 'log').read_text()[-1500:]}"
    left = chaos.what_is_left(folder / "run")
    differs = sorted(part for part in {*left, *calm} if left.get(part) != calm.get(part))
    return "equal" if not differs else "differs: " + " ".join(differs)


def struck_in_turn(home: Path, calm: dict[str, str], some: Sequence[Life], steps: dict[str, int]) -> Iterator[str]:
    """What became of a run that was struck by each, at its step: a line each."""
    folder = home / "in_turn"
    folder.mkdir()
    ends = []
    for count, (name, background, before) in enumerate(some, start=1):
        at_its_step = functools.partial(before, steps[name])
        ends.append((name, life(home, folder / "run", background=background, before=at_its_step)))
        if (folder / "log").read_text().count("struck\n") < count:
            yield f"{name} | {ends[-1][1]} | never struck: {(folder / 'log').read_text()[-1500:]}"
            return
    found = verdict(home, folder, calm, background=False)
    if found != "equal":  # by which of them?
        yield f"all | {ends} | {found}"
        yield from (struck(home, home / str(number), calm, *each) for number, each in enumerate(some))
        return
    yield from (f"{name} | {status} | equal" for name, status in ends)


def warm_up() -> None:
    """What every life would import and compile anew."""
    import peft.tuners.lora.bnb
    import peft.utils.transformers_weight_conversion  # noqa: F401
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    from transformers.models.qwen2 import modeling_qwen2  # noqa: F401

    import winnow.algos.kl
    import winnow.algos.loss
    import winnow.engines.native.memory  # noqa: F401

    get_checkpoint_conversion_mapping("qwen2")


def main(config: dict[str, Any], some: Sequence[Life], steps: dict[str, int] | None = None) -> None:
    """Live the lives, of runs under these keys, and say what became of each. With `steps`, one run is struck by all."""
    torch.set_num_threads(1)
    warm_up()
    chaos.STEPS, chaos.CONFIGS["everything"] = max(steps.values()) + 1 if steps else 3, config
    with tempfile.TemporaryDirectory(prefix="winnow-points-") as temporary:
        home = Path(temporary)
        chaos.prepare(home)
        (home / "calm").mkdir()
        if life(home, home / "calm" / "run", background=False) != 0:
            sys.exit((home / "calm" / "log").read_text())
        calm = chaos.what_is_left(home / "calm" / "run")
        if steps:
            lines = struck_in_turn(home, calm, some, steps)
        else:
            lines = (struck(home, home / str(number), calm, *each) for number, each in enumerate(some))
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    _, group = sys.argv
    keys = {
        "turns": PLAYED,
        "few_turns": PLAYED,
        "sizes": SIZES,
        "few_sizes": SIZES,
        "full": {**EVERYTHING, "model": {}},
    }.get(group, EVERYTHING)
    main(keys, lives(group), {"few": FEW, "few_turns": FEW_TURNS, "few_sizes": FEW_SIZES}.get(group))
