from __future__ import annotations

import json
import math
import resource
import time
from dataclasses import replace

import numpy as np
import pytest

from logged_groups import outcome_of, read_rollouts
from refusals import refused
from winnow.errors import DataError, RunFolderError
from winnow.records import Batch, Group, Outcome, Prompt, Rollout, TrainingSequence
from winnow.state.log import prompt_of, rollout_of
from winnow.state.logbook import Logbook, read_metrics, read_rows, totals
from winnow.state.rollout_files import files_by_step

RIGHT = Outcome(
    reward=1.0, correct=True, kind="correct", parts={"answer": 1.0, "format": 0.1 + 0.2}, answer="2", seconds=1e-4
)
WRONG = Outcome(reward=1 / 3, correct=False, kind="wrong", answer="3")
FAILED = Outcome(reward=math.nan, correct=None, kind="failed", cause="timeout", detail="5.0 s")


def rollout(index, *, text="2", length=3, logprob=-1 / 3):
    return Rollout(
        index=index,
        tokens=np.arange(length) + 7,
        logprobs=np.full(length, logprob),
        text=text,
        finish="stop",
        version=4,
    )


def group(name="a", *, outcomes=(RIGHT, WRONG, FAILED, WRONG), keep=None, advantages=None, **fields):
    count = len(outcomes)
    rollouts = fields.pop("rollouts", tuple(rollout(i) for i in range(count)))
    prompt = Prompt(id=name, tokens=np.array([1, 2]), text="1+1=", answer="2", task="toy", meta={"level": 1}, **fields)
    bare = Group(prompt=prompt, rollouts=rollouts, outcomes=outcomes)
    keep = np.array([not o.failed for o in outcomes]) if keep is None else np.array(keep)
    return bare.fill(keep=keep, advantages=np.zeros(count) if advantages is None else advantages)


def batch(*rows, epoch=0):
    """rows: (group position, group, rollout position, weight)"""
    made = tuple(
        TrainingSequence(prompt=g.prompt, rollout=g.rollouts[i], group=place, advantage=1.0, weight=weight)
        for place, g, i, weight in rows
    )
    return Batch(epoch=epoch, sequences=made)


def stored(rollout, keep):
    """What the log holds of log-probs: float32, of a rollout that is not kept rounded to float16."""
    return rollout.logprobs.astype(np.float32 if keep else np.float16).astype(np.float64)


def plain(g):
    """Every number of a group, NaN made comparable."""
    rollouts = [
        (
            r.index,
            r.tokens.tolist(),
            stored(r, keep).tolist(),
            r.text,
            r.finish,
            r.version,
            None if r.trainable is None else r.trainable.tolist(),
        )
        for r, keep in zip(g.rollouts, g.keep, strict=True)
    ]
    prompt = (g.prompt.id, g.prompt.tokens.tolist(), g.prompt.text, g.prompt.answer, g.prompt.task, g.prompt.meta)
    return prompt, rollouts, repr(g.outcomes), g.keep.tolist(), [np.asarray(a).tolist() for a in g.advantages]


def test_a_step_is_read_back_exactly(tmp_path):
    thirds = group("a", advantages=np.array([2 / 3, -1 / 3, 0.0, -0.1]))
    per_token = group(
        "b", outcomes=(RIGHT, WRONG), advantages=(np.array([0.1, 0.2, 0.3]), np.array([-1e-17, 0.0, 5e-324]))
    )
    log = Logbook(tmp_path, seed=11)
    log.write(3, {}, [group("other step")], [])
    log.write(4, {}, [thirds, per_token], [batch((0, thirds, 0, 0.7), (1, per_token, 1, 1 / 7))])

    first, second = read_rollouts(tmp_path, step=4)

    assert plain(first.group) == plain(thirds)
    assert plain(second.group) == plain(per_token)
    assert (first.step, first.seed) == (4, 11)
    assert first.weights == (0.7, None, None, None)
    assert second.weights == (None, 1 / 7)
    assert isinstance(second.group.advantages, tuple)
    assert len(list(read_rollouts(tmp_path / "rollouts"))) == 3
    assert len(list(read_rollouts(tmp_path / "rollouts" / "step-000004.parquet"))) == 2


def test_values_and_returns_are_read_back_in_float32(tmp_path):
    """Those of a rollout that no value model has read are NaN, as they were; where it has read none, there are none."""
    unread = np.full(3, np.nan)
    values = (np.array([0.1, 0.2, np.nan]), unread, unread, np.array([-1e-3, 1e300, 0.0]))
    valued = group("a").fill(values=values, returns=(np.full(3, 1 / 3), unread, unread, np.zeros(3)))
    untaught = group("b").fill(values=(np.full(3, 0.5),) * 4)
    log = Logbook(tmp_path, seed=0)
    log.write(0, {}, [valued, untaught, group("c")], [])

    first, second, third = (entry.group for entry in read_rollouts(tmp_path))

    for read, original in zip((*first.values, *first.returns), (*valued.values, *valued.returns), strict=True):
        assert read.dtype == np.float64
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(read, original.astype(np.float32))
    assert [v.tolist() for v in second.values] == [[0.5] * 3] * 4
    assert second.returns is third.values is third.returns is None
    rows = list(read_rows(tmp_path))
    assert [row["values"] is None for row in rows] == [False, True, True, False] + [False] * 4 + [True] * 4
    assert [row["returns"] is None for row in rows] == [False, True, True, False] + [True] * 8


def test_trainable_masks_and_any_text_are_read_back(tmp_path):
    text = 'lone \ud800 surrogate, NUL \0, \u2028, "quotes", \U0001f33e, \x1b[31m, \u202e, line\r\nbreaks'
    odd = Rollout(
        index=5, tokens=np.array([1, 2]), logprobs=np.array([-0.1, -np.inf]), text=text, finish="stop", version=0,
        trainable=np.array([True, False]),
    )  # fmt: skip
    wrong = replace(WRONG, answer="\udfff", detail=text, parts={"\ud800": 1.0})
    original = group("\udc80", outcomes=(wrong, WRONG), rollouts=(odd, replace(odd, text="plain", trainable=None)))
    original = replace(original, prompt=replace(original.prompt, meta={"\ud800": "\ud800"}, answer=["\ud800"]))
    Logbook(tmp_path, seed=0).write(0, {}, [original], [])

    (read,) = read_rollouts(tmp_path)

    assert plain(read.group) == plain(original)
    assert [r.text for r in read.group.rollouts] == [text, "plain"]
    assert read.group.rollouts[1].trainable is None
    assert read.group.rollouts[0].trainable.tolist() == [True, False]
    assert read.group.rollouts[0].logprobs.tolist() == [np.float32(-0.1), -np.inf]


def test_the_reason_of_a_replaced_flat_group_is_flat_group(tmp_path):
    nothing = [False] * 3
    groups = [
        group(outcomes=outcomes, keep=nothing, advantages=np.zeros(3))
        for outcomes in ((RIGHT, RIGHT, FAILED), (RIGHT, WRONG, WRONG))
    ]
    Logbook(tmp_path, seed=0).write(0, {}, groups, [])
    reasons = [row["reason"] for row in read_rows(tmp_path)]
    assert reasons == ["flat group", "flat group", "failed: timeout", *["not selected"] * 3]


def test_every_row_has_the_reason_why_it_was_or_was_not_trained_on(tmp_path):
    g = group(
        outcomes=(RIGHT, WRONG, FAILED, RIGHT, RIGHT),
        keep=[True, False, False, True, True],
        advantages=np.array([1.0, 0.0, 0.0, 0.0, 2.0]),
    )
    Logbook(tmp_path, seed=0).write(0, {}, [g], [batch((0, g, 0, 0.5)), batch((0, g, 0, 0.25), epoch=1)])

    rows = list(read_rows(tmp_path))

    assert [row["reason"] for row in rows] == [
        "trained",
        "not selected",
        "failed: timeout",
        "zero advantage",
        "not scheduled",
    ]
    assert [row["weight"] for row in rows] == [0.5, None, None, None, None]
    assert [row["index"] for row in rows] == [0, 1, 2, 3, 4]
    assert {row["count"] for row in rows} == {5}


def test_where_only_kept_rollouts_are_logged_the_others_have_their_numbers(tmp_path):
    g = group(advantages=np.array([1 / 3, -1 / 3, 0.0, 0.0]), keep=[True, True, False, False])
    g = g.fill(values=(np.full(3, 0.5),) * 4, returns=(np.ones(3),) * 4)
    Logbook(tmp_path / "all", seed=0).write(0, {}, [g], [])
    Logbook(tmp_path / "kept", seed=0, rollouts="kept").write(0, {}, [g], [])

    whole, bare = (list(read_rows(tmp_path / name)) for name in ("all", "kept"))

    per_token = ("text", "tokens", "logprobs", "values", "returns", "trainable")
    for kept, a, b in zip(g.keep, whole, bare, strict=True):
        assert [b[name] is None for name in per_token] == ([False] * 5 + [True] if kept else [True] * 6)
        left_out = () if kept else per_token
        assert repr({k: v for k, v in a.items() if k not in left_out}) == repr(
            {k: v for k, v in b.items() if k not in left_out}
        )
    with pytest.raises(ValueError, match=r"log\.rollouts"):
        list(read_rollouts(tmp_path / "kept"))


def test_some_steps_or_none_have_rollouts_and_every_step_has_metrics(tmp_path):
    for name, keys in {"every": {"every": 3}, "none": {"rollouts": "none"}}.items():
        log = Logbook(tmp_path / name, seed=0, **keys)
        (tmp_path / name).mkdir()
        for step in range(7):
            log.write(step, {"reward/mean": 0.5}, [group()], [])
        assert len(read_metrics(tmp_path / name)) == 7
    assert list(files_by_step(tmp_path / "every" / "rollouts")) == [0, 3, 6]
    assert [p.name for p in (tmp_path / "none").iterdir()] == ["metrics.jsonl"]


def test_what_is_logged_may_change_at_a_resume(tmp_path):
    for step, rollouts in enumerate(("all", "none", "kept")):
        log = Logbook(tmp_path, seed=0, rollouts=rollouts)
        log.truncate_from(step)
        log.write(step, {"reward/mean": 0.5}, [group()], [])
    assert logged_steps(tmp_path) == ([0, 1, 2], [0, 2])
    marks = log.sync(3)
    Logbook(tmp_path, seed=0, marks=marks).check()


def test_a_single_row_contains_its_prompt_rollout_and_outcome(tmp_path):
    original = group()
    Logbook(tmp_path, seed=0).write(0, {}, [original], [])
    *_, last = read_rows(tmp_path)

    rebuilt = Group(prompt=prompt_of(last), rollouts=(rollout_of(last),), outcomes=(outcome_of(last),))

    assert plain(rebuilt.fill(keep=np.array([True]), advantages=np.zeros(1))) == plain(original.take([3]))


def test_the_file_alone_reproduces_credit(tmp_path):
    rewards = np.array([0.1, 0.7, 0.30000000000000004])
    outcomes = tuple(Outcome(reward=r, correct=r > 0.5, kind="correct" if r > 0.5 else "wrong") for r in rewards)
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    Logbook(tmp_path, seed=0).write(0, {}, [group(outcomes=outcomes, advantages=advantages)], [])

    (read,) = read_rollouts(tmp_path)
    r = read.group.rewards

    np.testing.assert_array_equal((r - r.mean()) / (r.std() + 1e-4), read.group.advantages)


def test_metrics_and_evaluations_of_a_step_become_one_row(tmp_path):
    log = Logbook(tmp_path, seed=0)
    log.write_between(0, {"eval/accuracy_greedy": 0.25})
    report = log.write(0, {"reward/mean": 0.1 + 0.2, "budget/rollouts": 8, "reward/std": np.float64(0.5)}, [], [])
    log.write(1, {"policy/loss": math.nan, "policy/grad_norm": math.inf}, [], [])

    first, second = read_metrics(tmp_path)

    assert report.metrics == {"reward/mean": 0.30000000000000004, "budget/rollouts": 8, "reward/std": 0.5}
    assert first == {"step": 0, "eval/accuracy_greedy": 0.25, **report.metrics}
    assert second["step"] == 1
    assert math.isnan(second["policy/loss"])
    assert math.isnan(second["policy/grad_norm"])
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)


def test_an_unexplained_metric_writes_nothing(tmp_path):
    log = Logbook(tmp_path, seed=0)
    with pytest.raises(KeyError, match="reward/maen"):
        log.write(0, {"reward/maen": 1.0}, [group()], [])
    log.close()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_numpy_scalars_from_user_code_are_written_as_numbers(tmp_path):
    outcome = Outcome(reward=np.float32(0.5), correct=np.True_, kind="correct", parts={"a": np.float32("nan")})
    Logbook(tmp_path, seed=0).write(0, {"budget/rollouts": np.int64(4)}, [group(outcomes=(outcome,))], [])

    (row,) = read_rows(tmp_path)

    assert (row["reward"], row["correct"], row["parts"]) == (0.5, True, {"a": None})
    assert math.isnan(outcome_of(row).parts["a"])
    assert read_metrics(tmp_path) == [{"step": 0, "budget/rollouts": 4}]


def test_a_group_must_be_filled(tmp_path):
    g = group()
    bare = Group(prompt=g.prompt, rollouts=g.rollouts, outcomes=g.outcomes)
    with pytest.raises(ValueError, match="'a'"):
        Logbook(tmp_path, seed=0).write(0, {}, [bare], [])


def logged_steps(folder):
    files = files_by_step(folder / "rollouts")
    rollouts = sorted({row["step"] for path in files.values() for row in read_rows(path)})
    return [int(row["step"]) for row in read_metrics(folder)], rollouts


def three_steps(folder):
    log = Logbook(folder, seed=0)
    for step in range(3):
        log.write_between(step, {"eval/accuracy_greedy": 0.5})
        log.write(step, {"reward/mean": step / 3}, [group("a"), group("b")], [])
    return log


def test_a_step_that_was_begun_is_logged_once_it_is_finished(tmp_path):
    whole, parts = Logbook(tmp_path / "whole", seed=0), Logbook(tmp_path / "parts", seed=0)
    whole.write(0, {"reward/mean": 0.5}, [group("a"), group("b")], [batch((0, group("a"), 0, 0.5))])

    parts.begin(0, [group("a"), group("b")], [batch((0, group("a"), 0, 0.5))])
    assert files_by_step(tmp_path / "parts" / "rollouts") == {}
    report = parts.finish(0, {"reward/mean": 0.5})

    assert (report.step, report.metrics) == (0, {"reward/mean": 0.5})
    for name in ("metrics.jsonl", "rollouts/step-000000.parquet", "rollouts/.index.jsonl"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("end", [lambda log: log.close(), lambda log: log.sync(1), lambda log: log.truncate_from(1)])
def test_nothing_remains_of_a_step_that_was_begun_and_did_not_end(tmp_path, end):
    log = Logbook(tmp_path, seed=0)
    log.write(0, {"reward/mean": 0.5}, [group("a")], [])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    log.begin(1, [group("b")], [])
    end(log)

    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    log.write(1, {"reward/mean": 0.5}, [group("c")], [])
    assert [row["prompt_id"] for row in read_rows(tmp_path, 1)] == ["c"] * 4


def test_rollouts_that_cannot_be_written_are_reported_when_their_step_ends(tmp_path):
    log = Logbook(tmp_path, seed=0)
    (tmp_path / "rollouts").write_text("mine")

    log.begin(0, [group("a")], [])
    with refused(RunFolderError, "rollouts", code="run_folder.unwritable"):
        log.finish(0, {"reward/mean": 0.5})

    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_resume_removes_the_step_and_everything_after(tmp_path):
    log = three_steps(tmp_path)
    log.truncate_from(2)
    assert logged_steps(tmp_path) == ([0, 1], [0, 1])
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    log.truncate_from(2)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    log.truncate_from(0)
    assert logged_steps(tmp_path) == ([], [])


def test_a_torn_last_line_is_skipped_by_readers_and_cut_on_resume(tmp_path):
    log = three_steps(tmp_path)
    for name in ("metrics.jsonl", "rollouts/.index.jsonl"):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:-20])
    (tmp_path / "rollouts" / ".step-000003.parquet.draft").write_bytes(b"PAR1 half")

    assert [len(row) for row in read_metrics(tmp_path)] == [3, 3, 2]
    assert len(list(read_rows(tmp_path))) == 24

    log.truncate_from(3)
    assert not list((tmp_path / "rollouts").glob("*.draft"))
    log.write(3, {"reward/mean": 1.0}, [], [])
    assert logged_steps(tmp_path)[0] == [0, 1, 2, 3]


def test_in_a_new_folder_nothing_is_removed(tmp_path):
    Logbook(tmp_path, seed=0).truncate_from(0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["not json", '["step",1]', '{"loss":1}'])
def test_a_damaged_row_is_named_by_file_and_line(tmp_path, damage):
    three_steps(tmp_path)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text().replace('{"step":1,"eval/accuracy_greedy":0.5}', damage))
    with refused(DataError, f"{path}, line 3", code="data.malformed"):
        read_metrics(tmp_path)
    with refused(DataError, f"{path}, line 3", code="data.malformed"):
        Logbook(tmp_path, seed=0).truncate_from(3)


def test_a_missing_log_is_refused_by_its_path(tmp_path):
    with refused(DataError, tmp_path / "metrics.jsonl", code="data.unreadable"):
        read_metrics(tmp_path / "metrics.jsonl")
    with refused(DataError, tmp_path / "nothing", code="data.unreadable"):
        list(read_rollouts(tmp_path / "nothing"))
    for read in (read_metrics, lambda folder: list(read_rollouts(folder))):  # no run at all
        with refused(DataError, tmp_path, "metrics.jsonl", code="data.missing"):
            read(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with refused(DataError, tmp_path, "log.rollouts", code="data.missing"):
        list(read_rollouts(tmp_path))


def test_a_refusing_disk_stops_the_run_and_leaves_whole_rows(tmp_path):
    log = three_steps(tmp_path)
    before = {p: p.read_bytes() for p in (tmp_path / "rollouts").iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with refused(RunFolderError, "step-000003.parquet", "File too large", code="run_folder.unwritable"):
            log.write(3, {"reward/mean": 1.0}, [group()], [])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {p: p.read_bytes() for p in (tmp_path / "rollouts").iterdir()} == before
    assert logged_steps(tmp_path)[0] == [0, 1, 2]


def test_totals_add_up_what_a_run_cost():
    rows = [
        {"step": 0, "budget/rollouts": 8, "budget/tokens_wasted": 30, "seconds/generate": 0.5, "reward/mean": 1.0},
        {"step": 1, "budget/rollouts": 4, "budget/tokens_wasted": 10, "seconds/generate": math.nan},
        {"step": 2, "eval/seconds": 2.0, "eval/accuracy_greedy": 1.0},
    ]
    assert totals(rows) == {
        "steps": 2,
        "budget/rollouts": 12,
        "budget/tokens_wasted": 40,
        "seconds/generate": 0.5,
        "eval/seconds": 2.0,
    }


def test_a_large_step_is_written_without_delay(tmp_path):
    """512 rollouts of 30 tokens: not many times the CPU time that json takes for their log-probs alone."""
    rng = np.random.default_rng(0)
    rollouts = tuple(
        replace(rollout(i, text="word " * 30, length=30), logprobs=rng.standard_normal(30)) for i in range(16)
    )
    groups = [group(str(g), outcomes=(RIGHT, WRONG) * 8, rollouts=rollouts) for g in range(32)]
    log = Logbook(tmp_path, seed=0)
    ours, theirs = [], []
    for step in range(5):
        start = time.process_time()
        log.write(step, {"reward/mean": 0.5}, groups, [])
        written = time.process_time()
        json.dumps([r.logprobs.tolist() for g in groups for r in g.rollouts])
        ours.append(written - start)
        theirs.append(time.process_time() - written)
    assert min(ours) < 15 * min(theirs)  # twice, where it was measured
