from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest

from refusals import refused
from synthetic_run import NASTY, RIGHT, WRONG, batch, evaluation, group, metrics, write_run
from winnow.errors import DataError
from winnow.models.folder import BUNDLED
from winnow.run_view.data import open_folder
from winnow.run_view.summary import summary
from winnow.run_view.tokens import tokenizer_of
from winnow.state.logbook import Logbook, read_metrics
from winnow.state.rollout_files import ROLLOUTS, path_of
from winnow_lab.report.data import ReportedRun, report_data
from winnow_lab.report.groups import spread
from winnow_lab.report.headline import headline, ledger
from winnow_lab.report.rollouts import cut, rollout_data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "toy")


def unpacked(group):
    """The rollouts of a group of the page, one by one."""

    def value(column, i):
        if isinstance(column, list):
            return column[i]
        return column["of"][column["at"] if isinstance(column["at"], int) else column["at"][i]]

    return [{name: value(column, i) for name, column in group["rollouts"].items()} for i in range(group["count"])]


def in_file(folder, limit=10**7):
    file = ReportedRun(folder, folder.name).in_file(limit)
    return json.loads(file.text), file.notes


def panel(run, title):
    (titled,) = (panel for panel in run["panels"] if panel["title"] == title)
    return titled


def test_the_page_has_every_rollout_with_its_verdict_and_its_use(folder):
    run, notes = in_file(folder)
    assert run["rollouts"] == {"included": 70, "why": "", "notes": notes, "of": 70}
    assert [(g["step"], g["prompt_id"]) for g in run["groups"][:3]] == [
        (0, "toy-easy"),
        (0, "toy-hard"),
        (1, "toy-easy"),
    ]
    easy, hard = run["groups"][:2]
    assert {k: easy[k] for k in easy if k != "rollouts"} == {
        "step": 0, "prompt_id": "toy-easy", "prompt": "What is 47 + 85?", "answer": "132", "task": "toy", "count": 3,
        "mean_reward": pytest.approx(2 / 3),
    }  # fmt: skip
    assert unpacked(easy)[1] == {
        "index": 1, "length": 3, "finish": "length", "kind": "correct", "reward": 1.0, "parts": {}, "extracted": "132",
        "cause": None, "detail": "", "seconds": 0.0, "advantage": 0.5, "kept": True, "trained": True,
        "reason": "trained", "weight": 0.125,
        "text": "answer 1", "left_out": 0, "pieces": None, "logprobs": None, "advantages": None, "values": None,
        "environment": None,
    }  # fmt: skip
    left = unpacked(easy)[2]
    assert (left["kept"], left["trained"], left["reason"], left["advantage"]) == (False, False, "not selected", None)
    failed = unpacked(hard)[2]
    assert (failed["reward"], failed["reason"], failed["cause"]) == (None, "failed: timeout", "timeout")
    assert unpacked(hard)[0]["text"] == NASTY
    assert hard["mean_reward"] == 0.0
    assert run["steps"][3] == {"step": 3, "groups": 2, "rollouts": 7, "included": 7}
    assert run["allocation"][:2] == [{"pass_rate": 0.666666667, "count": 3}, {"pass_rate": 0, "count": 4}]
    assert len(notes) == 1  # about the missing tokenizer


def test_the_page_has_metrics_with_meanings_and_the_panels_of_plot(folder):
    run, _ = in_file(folder)
    columns = run["metrics"]["columns"]
    assert run["metrics"]["steps"] == list(range(11))
    assert columns["reward/mean"]["at"] == list(range(10))  # the last row is an evaluation alone
    assert columns["reward/mean"]["y"][3] == 0.4
    assert columns["eval/accuracy_greedy"] == {"at": [0, 5, 10], "y": [0.04, 0.7, 0.66]}
    assert set(run["meanings"]) == set(columns)
    assert [panel["title"] for panel in run["panels"]] == [
        "accuracy", "reward", "completion length", "policy loss", "signal", "budget: what the tokens bought", "entropy",
        "gradient norm",
    ]  # fmt: skip
    sampled = run["panels"][0]["series"][1]
    assert (sampled["quantity"], sampled["label"]) == ("held out, sampled", "held out, sampled (± 1 s.e.)")
    assert (sampled["x"], sampled["y"], sampled["error"]) == ([0, 5, 10], [0.05, 0.61, 0.58], [0.02] * 3)


def test_a_limited_file_has_whole_groups_of_evenly_chosen_steps(folder):
    everything = in_file(folder)[0]["groups"]
    size = sum(len(json.dumps(g, separators=(",", ":"))) for g in everything)
    run, _ = in_file(folder, limit=size // 2)
    here = {step["step"]: step["included"] for step in run["steps"] if step["included"]}
    assert sum(here.values()) == run["rollouts"]["included"] == sum(g["count"] for g in run["groups"]) < 70
    assert {0, 9, 4} <= set(here)
    assert sum(len(json.dumps(g, separators=(",", ":"))) for g in run["groups"]) <= size // 2
    assert all(len(unpacked(g)) == g["count"] for g in run["groups"])
    assert re.findall(r"\d+ of \d+", run["rollouts"]["why"]) == [f"{sum(here.values())} of 70", f"{len(here)} of 10"]
    eight = in_file(folder, limit=size * 8 // 10 + 80)[0]["steps"]  # an eighth of it is a step
    assert [step["step"] for step in eight if not step["included"]] == [7, 8]
    assert in_file(folder, limit=0)[0]["groups"] == []


def test_a_group_that_does_not_fit_leaves_room_for_the_others(tmp_path):
    log = Logbook(tmp_path, seed=0)
    for step in range(3):
        long = [group(f"long{i}", (RIGHT,), texts=["x" * 9000]) for i in range(step == 0)]
        groups = [*long, *(group(f"q{i}", (RIGHT, WRONG)) for i in range(3))]
        log.write(step, metrics(step), groups, [batch(groups)])
    run, notes = in_file(tmp_path, limit=8000)
    assert [step["included"] for step in run["steps"]] == [6, 6, 6]
    assert ("18 of 19 " in notes[-1], " 1 or more" in notes[-1]) == (True, True)
    everything, notes = in_file(tmp_path, limit=40_000)
    assert everything["rollouts"]["included"] == 19
    assert len(notes) == 1  # of the tokenizer alone


def test_steps_are_visited_from_the_ends_to_the_middle():
    assert list(spread(9)) == [0, 8, 4, 2, 6, 1, 3, 5, 7]
    assert [list(spread(n)) for n in range(4)] == [[], [0], [0, 1], [0, 2, 1]]
    assert sorted(spread(1000)) == list(range(1000))


@pytest.mark.parametrize(
    ("allocate", "groups"), [({"use": "uniform"}, 0), ("uniform", 0), ({"use": "gvm"}, 20), (None, 20), (5, 20)]
)
def test_a_uniform_allocation_has_no_table(tmp_path, allocate, groups):
    run = write_run(tmp_path / "toy")
    (run / "manifest.json").write_text(json.dumps({"winnow_run": 1, "config": {"allocate": allocate}}))
    assert len(in_file(run)[0]["allocation"]) == groups


def test_a_text_of_a_megabyte_leaves_room_for_the_others(tmp_path):
    log = Logbook(tmp_path, seed=0)
    groups = [group("long", (RIGHT, WRONG), texts=["x" * 10**6, "short"], question="q" * 10**6)]
    log.write(0, metrics(0), groups, [batch(groups)])
    run, _ = in_file(tmp_path, limit=100_000)
    (only,) = run["groups"]
    assert unpacked(only)[0]["text"] == "x" * 10_000 + " [... 980,000 characters left out ...] " + "x" * 10_000
    assert unpacked(only)[0]["left_out"] == 980_000
    assert len(only["prompt"]) < 21_000


def row(text, tokens, **changes):
    numbers = np.arange(len(tokens)) + 0.12345
    return {
        "index": 0, "length": len(tokens), "finish": "stop", "kind": "correct", "reward": 1.0, "weight": 1.0,
        "text": text, "extracted": None, "cause": None, "detail": "", "seconds": 0.0, "advantage": None,
        "parts": {}, "keep": True, "reason": "trained", "tokens": np.array(tokens), "logprobs": numbers,
        "advantages": numbers, "values": None, "trainable": None, "turns": None, **changes,
    }  # fmt: skip


def by_character(tokens, text):
    return list(text) if len(text) == len(tokens) else None


def test_tokens_have_pieces_with_their_numbers_in_three_digits():
    data = rollout_data(row("abc", [1, 2, 3]), by_character, longest=100)
    assert (data["text"], data["pieces"]) == (None, ["a", "b", "c"])
    assert (data["logprobs"], data["values"]) == ([0.123, 1.12, 2.12], None)
    assert data["advantage"] == pytest.approx(1.12345)


def test_a_kept_rollout_need_not_be_trained_and_others_have_no_advantage():
    held = rollout_data(row("ab", [1, 2], reason="not scheduled"), by_character, longest=9)
    assert (held["kept"], held["trained"], held["advantages"]) == (True, False, [0.123, 1.12])
    left = rollout_data(row("ab", [1, 2], reason="flat group", keep=False), by_character, longest=9)
    assert (left["kept"], left["trained"], left["advantage"], left["advantages"]) == (False, False, None, None)
    assert left["logprobs"] == [0.123, 1.12]


def test_the_tokens_at_both_ends_of_a_long_rollout_are_shown():
    data = rollout_data(row("abcdefgh", range(8)), by_character, longest=4)
    assert [*data["pieces"][:2], *data["pieces"][3:]] == ["a", "b", "g", "h"]
    assert " 4 " in data["pieces"][2]
    assert data["logprobs"] == [0.123, 1.12, None, 6.12, 7.12]
    assert data["left_out"] == 4


def test_a_text_without_pieces_is_one_text_or_none():
    assert rollout_data(row("ab", [1]), by_character, longest=9)["text"] == "ab"
    bare = row(None, [1], logprobs=None, advantages=None, advantage=math.nan) | {"tokens": None}
    assert rollout_data(bare, by_character, longest=9)["text"] is None
    assert cut("abc", 3) == "abc"


TURNS = {"turns": ["ab", "more", "c"], "trainable": np.array([True, True, False, False, True])}


def test_turns_are_told_apart_and_only_those_of_the_policy_have_numbers():
    data = rollout_data(row("ab\nc", range(5), **TURNS), by_character, longest=100)
    assert (data["pieces"], data["environment"]) == (["a", "b", "more", "c"], [2])
    assert data["logprobs"] == [0.123, 1.12, None, 4.12]
    assert data["advantages"] == [0.123, 1.12, None, 4.12]
    assert data["advantage"] == pytest.approx(5 / 3 + 0.12345, abs=0.01)  # the environment's tokens have none
    only = {"turns": ["ab"], "trainable": np.array([True, True])}
    assert rollout_data(row("ab", range(2), **only), by_character, longest=100)["environment"] == []


@pytest.mark.parametrize(("pieces", "longest"), [(None, 100), (by_character, 6), (lambda tokens, text: None, 100)])
def test_turns_without_pieces_are_one_text(pieces, longest):
    data = rollout_data(row("ab\nc", range(5), **TURNS), pieces, longest=longest)
    assert (data["pieces"], data["environment"], data["logprobs"]) == (None, None, None)
    assert data["text"].startswith("[po" if longest == 6 else "[policy]\nab\n[environment]\nmore\n[policy]\nc")


def test_metrics_take_only_the_space_of_their_numbers(tmp_path):
    lines = [{"step": i, **metrics(i), f"own/{i}": 1.5} for i in range(400)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run, _ = in_file(tmp_path)
    columns = run["metrics"]["columns"]
    assert columns["own/7"] == {"at": [7], "y": [1.5]}
    assert columns["reward/std"]["at"] is None
    assert len(json.dumps(run["metrics"])) < 160_000  # a table of every row and name is 400 x 430 cells


def test_the_ledger_sums_every_row_and_counts_probes_separately():
    rows = [
        {"step": 0, "eval/seconds": 1.0},
        {"step": 0, **metrics(0, **{"budget/tokens_verified": 900, "budget/tokens_wasted": 750, "outcome/failed": 2})},
        {"step": 1, **metrics(1, **{"budget/tokens_verified": 1000, "budget/tokens_wasted": 750})},
        {"step": 2, "budget/probe_tokens": 300, "budget/probe_rollouts": 8, "budget/probe_prompt_tokens": 40},
        {"step": 2, "eval/seconds": 1.0, "budget/evaluation_tokens": 500, "budget/evaluation_prompt_tokens": 60},
    ]
    rows[4] |= {"budget/mismatch_tokens": 100, "budget/mismatch_prompt_tokens": 20}
    for r in rows[1:3]:
        r.update({"select/kept": 8, "select/trained": 6, "budget/tokens_kept": 300, "budget/prompt_tokens": 100})
    lines = {line["label"]: (line["tokens"], line["rollouts"], line["share"]) for line in ledger(rows)}
    assert lines == {
        "generated": (2000, 32, 1.0),
        "verified": (1900, 30, 0.95),
        "kept": (600, 16, 0.3),
        "trained": (500, 12, 0.25),
        "wasted": (1500, 20, 0.75),
        "probe": (300, 8, 0.15),
        "mismatch": (100, None, 0.05),
        "evaluation": (500, None, 0.25),
        "prompts": (200, None, 0.1),
        "probe prompts": (40, None, 0.02),
        "mismatch prompts": (20, None, 0.01),
        "evaluation prompts": (60, None, 0.03),
    }


def test_tokens_that_trained_the_value_model_alone_have_a_line():
    """One step of the value model alone, one of both in which the value model reads all, one without an update."""
    counts = [(1000, 0, 8), (1000, 250, 8), (1000, 0, 0)]
    rows = [
        {"step": i, **metrics(i, **{
            "budget/tokens_valued": valued, "budget/tokens_trained": trained, "budget/tokens_cut": 0,
            "budget/tokens_wasted": 1000 - trained, "critic/updates": updates})}
        for i, (valued, trained, updates) in enumerate(counts)
    ]  # fmt: skip
    lines = {line["label"]: line["tokens"] for line in ledger(rows)}
    assert (lines["valued"], lines["values only"], lines["wasted"]) == (3000, 1750, 2750)
    assert not {"cut", "probe"} & set(lines)
    details = {line["label"]: line["detail"] for line in headline(rows)}
    assert re.findall(r"[\d,]+\d", details["not trained on"]) == ["2,750", "1,750"]


def test_the_headline_counts_probes_as_sampled_tokens():
    rows = [
        {"step": 0, **metrics(0, **{"budget/tokens_trained": 1000, "budget/tokens_wasted": 0})},
        {"step": 1, "budget/probe_tokens": 1000},
    ]
    sampled, trained, left = (line for line in headline(rows) if "token" in line["label"] or "not" in line["label"])
    assert (sampled["value"], re.findall(r"[\d,]+", sampled["detail"])[:3]) == ("2.0k", ["1,000", "16", "1"])
    assert ("1,000" in trained["detail"], "50.0%" in trained["detail"]) == (True, True)
    assert (left["label"], left["value"]) == ("not trained on", "50.0%")
    assert "1,000 (50.0%)" in left["detail"]


def test_numbers_beyond_any_run_are_ignored(tmp_path):
    huge = dict.fromkeys(("budget/tokens_generated", "budget/tokens_trained", "seconds/step", "reward/mean"), 1e308)
    huge |= dict.fromkeys(("seconds/step", "eval/seconds", "seconds/probe", "budget/updates"), 10**308)
    lines = [{"step": i, **metrics(i, **huge), "eval/accuracy_greedy": 10**308} for i in range(3)]
    lines += [{"step": i, **metrics(i, **{"reward/accuracy": [10**308, 0.5][i % 2]})} for i in range(3, 60)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run, _ = in_file(tmp_path)
    assert run["ledger"][0]["tokens"] == 57_000
    assert panel(run, "budget: what the tokens bought")["x_range"] == [0, 57_000]
    assert next(line["value"] for line in run["headline"] if line["label"] == "training time") == "3:48"
    assert "3:48 training" in summary(read_metrics(tmp_path))


def test_the_headline_has_accuracy_tokens_and_time(folder):
    rows = [
        {"step": 0, **metrics(0, **{"budget/tokens_wasted": 750}), **evaluation(0.05, 0.04)},
        {"step": 1, **evaluation(0.58, 0.66)},
    ]
    assert [(line["label"], line["value"]) for line in headline(rows)] == [
        ("held-out accuracy", "5.0% ± 2.0% → 58.0% ± 2.0%"),
        ("held-out accuracy, greedy", "4.0% → 66.0%"),
        ("tokens generated", "1.0k"),
        ("tokens trained", "250"),
        ("not trained on", "75.0%"),
        ("training time", "0:04"),
    ]
    assert re.findall(r"\d+[%:]\d*", headline(rows)[-1]["detail"]) == ["75%", "25%", "0:12"]
    assert headline([{"step": 0, **metrics(0)}])[0]["value"] == "10.0% → 10.0%"


CHANGES = [
    {"step": 3, "key": "evaluate.split", "was": "test", "now": "train"},
    {"step": 6, "key": "evaluate.every", "was": 5, "now": None},
    {"step": True, "key": "evaluate.problems"}, {"step": 8.0, "key": "task"}, {"step": 10**400, "key": "task"},
    {"step": 9, "key": ["task"]}, {"step": -1, "key": "task"}, "task", None,
]  # fmt: skip


def test_evaluations_are_compared_since_their_last_change(tmp_path):
    lines = [{"step": i, **metrics(i), **evaluation(0.9 if i < 3 else 0.1 + i / 100, 0.2)} for i in range(6)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    manifest = {"winnow_run": 1, "config": {"evaluate": {"split": "train"}}, "changes": CHANGES}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    run, _ = in_file(tmp_path)
    first = run["headline"][0]
    assert (first["label"], first["value"]) == ("accuracy, training split", "13.0% ± 2.0% → 15.0% ± 2.0%")
    assert re.findall(r"(?<![\d.])\d+(?:\.\d+%)?", first["detail"].partition("after")[2]) == [
        "3",
        "5",
        "15.0%",
        "5",
        "3",
    ]
    accuracy, budget = panel(run, "accuracy"), panel(run, "budget: what the tokens bought")
    assert accuracy["series"][1]["x"] == [3, 4, 5]
    assert accuracy["series"][1]["label"] == "training split, sampled (± 1 s.e.), from step 3 on"
    assert budget["y_label"] == "correct, training split (%)"
    assert "held" not in json.dumps([run["headline"], run["panels"]])
    assert run["held_out_since"] is None
    assert run["changes"] == [
        {"step": 3, "key": "evaluate.split", "was": '"test"', "now": '"train"'},
        {"step": 6, "key": "evaluate.every", "was": "5", "now": "none"},
    ]
    assert run["alarms"] == open_folder(tmp_path).alarms() == []  # 90% on other problems is no better past


@pytest.mark.parametrize("changes", [{"step": 1}, 5, "x", None])
def test_a_manifest_may_list_anything_as_changes(tmp_path, changes):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 0, **metrics(0), **evaluation(0.5, 0.5)}) + "\n")
    (tmp_path / "manifest.json").write_text(json.dumps({"winnow_run": 1, "config": {}, "changes": changes}))
    run, _ = in_file(tmp_path)
    assert (run["changes"], run["headline"][0]["value"], run["held_out_since"]) == ([], "50.0% ± 2.0%", 0)


def test_the_headline_has_means_over_prompts():
    rows = [{"step": i, **metrics(i, **{"reward/accuracy": 0.1, "reward/accuracy_of_prompts": 0.6})} for i in range(2)]
    assert headline(rows)[0]["value"] == "60.0% → 60.0%"


def test_without_a_verdict_an_accuracy_is_a_dash():
    rows = [{"step": i, **metrics(i, **{"reward/accuracy": math.nan})} for i in range(3)]
    assert (headline(rows)[0]["label"], headline(rows)[0]["value"]) == ("training accuracy", "–")
    rows[0] |= evaluation(math.nan, math.nan)
    assert [line["value"] for line in headline(rows)[:2]] == ["–", "–"]


def test_the_headline_of_rewards_without_verdicts_has_the_reward():
    rows = [{"step": i, **metrics(i)} for i in range(2)]
    for row in rows:
        del row["reward/accuracy"]
    assert headline(rows)[0] == {"label": "training reward", "value": "0.100 → 0.200", "detail": "no evaluation yet"}


def test_alarms_have_their_steps_by_the_runs_limits(tmp_path):
    flat = {"group/flat": 4, "group/all_wrong": 4, "group/all_correct": 0, "advantage/std": 0.0}
    lines = [{"step": i, **metrics(i, **(flat if 3 <= i < 12 else {}))} for i in range(15)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (alarm,) = (a for a in in_file(tmp_path)[0]["alarms"] if a["name"] == "all_flat")
    assert 3 <= alarm["step"] <= alarm["last"] < 15
    assert alarm["text"]
    for section, listed in (({"off": ["all_flat"]}, False), ({"steps": "x"}, True), (5, True), ({"off": 5}, True)):
        manifest = {"winnow_run": 1, "config": {"alarms": section}}
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        assert any(a["name"] == "all_flat" for a in in_file(tmp_path)[0]["alarms"]) == listed


def test_steps_and_prompts_without_rollouts_are_noted(tmp_path):
    run = write_run(tmp_path / "toy", steps=2)
    (run / "manifest.json").write_text(json.dumps({"winnow_run": 1, "config": {"log": {"every": 5}}}))
    with (run / "metrics.jsonl").open("a") as log:
        log.write(json.dumps({"step": 2, **metrics(2), "budget/prompts_skipped": 4}) + "\n")
    data, notes = in_file(run)
    assert (data["allocation_of"], data["prompts_skipped"]) == (4, 4)
    assert (" 5 " in notes[0], "log.every" in notes[0]) == (True, True)
    assert json.loads(ReportedRun(run, "toy").served())["rollouts"]["notes"] == notes[:1]


def test_a_manifest_that_is_a_pipe_is_not_read(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 0, **metrics(0)}) + "\n")
    os.mkfifo(tmp_path / "manifest.json")
    run, _ = in_file(tmp_path)
    assert (run["subtitle"], run["config"]) == ("", {})


def test_the_tokenizer_of_another_users_run_is_not_loaded(tmp_path, monkeypatch):
    run = write_run(tmp_path / "toy", steps=1)
    (run / "manifest.json").write_text(json.dumps({"winnow_run": 1, "config": {"model": {"path": str(BUNDLED)}}}))
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "step-000001").symlink_to(BUNDLED)
    assert tokenizer_of(run)[0] is not None
    monkeypatch.chdir(run / ROLLOUTS)
    assert tokenizer_of(Path("step-000000.parquet"))[0] is not None
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert tokenizer_of(run)[0] is None
    assert "user" in in_file(run)[1][0]


def test_an_unreadable_file_of_rollouts_is_omitted_with_a_note(tmp_path):
    run = write_run(tmp_path / "toy", steps=3)
    broken = path_of(run / ROLLOUTS, 1)
    broken.write_bytes(broken.read_bytes()[:100])
    data, notes = in_file(run)
    assert [step["step"] for step in data["steps"]] == [0, 2]
    assert any("step 1 " in note and str(broken) in note for note in notes)
    assert data["rollouts"]["notes"] == notes


def test_a_run_without_rollouts_has_a_reason(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 0, **metrics(0)}) + "\n")
    run, _ = in_file(tmp_path)
    assert run["groups"] == []
    assert ("log.rollouts" in run["rollouts"]["why"], "log.every" in run["rollouts"]["why"]) == (True, True)


def test_a_served_run_has_every_step_on_request_also_new_ones(tmp_path):
    run = ReportedRun(write_run(tmp_path / "toy", steps=2), "toy")
    served = json.loads(run.served())
    assert served["groups"] == []
    assert [s["step"] for s in served["steps"]] == [0, 1]
    assert [json.loads(g)["prompt_id"] for g in run.step(1)] == ["toy-easy", "toy-hard"]
    with refused(DataError, run.path, 7, code="data.missing"):
        run.step(7)
    groups = [group("new", (RIGHT, WRONG))]
    Logbook(run.path, seed=3).write(7, metrics(7), groups, [batch(groups)])
    assert [s["step"] for s in json.loads(run.served())["steps"]] == [0, 1, 7]
    assert len(list(run.step(7))) == 1


def test_two_reports_of_a_run_are_the_same_bytes(folder):
    one, two = (ReportedRun(folder, "toy").in_file(10**6)[0] for _ in range(2))
    assert one == two
    assert json.loads(report_data([one], served=False, limit=3, made=None))["limit_bytes"] == 3
