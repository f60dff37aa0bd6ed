"""docs/results.md and README's effects are what scripts/results.py makes of the results, and answer every claim."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import json
import math
import re
import tomllib

import numpy as np
import pytest
from doc_pages import REPOSITORY
from scipy.special import stdtrit

SPEC = importlib.util.spec_from_file_location("results_page", REPOSITORY / "scripts" / "results.py")
results_page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(results_page)
words = results_page.words

CLAIMS = words.claims()
FOUND = {claim["sweep"]: words.newest(claim["sweep"]) for claim in CLAIMS}
MEASURED = [claim for claim in CLAIMS if FOUND[claim["sweep"]]]
SECONDARY = [claim for claim in MEASURED if "looks" not in claim]
APPENDIX = dict.fromkeys(["claim_11_weighting", "claim_12_ppo", "claim_13_losses", "claim_13_off_policy"], 3)
MAIN = ("claim_07_allocation_grpo", "claim_07_allocation_raft", "claim_14_tuned")
SEEDS = {**APPENDIX, **dict.fromkeys(MAIN, 8), "claim_02_tuned": 16}  # of each cell of a sweep; 5 of the others
EFFECT = re.compile(
    r"\b(gains?|(?:a|no) loss|loses?|sooner|later|faster|slower|better|worse|no difference|helps?|pays?|saves?)\b"
)


TASK = "arithmetic, 200 seconds"


def by_sweep(claim):
    return claim["sweep"]


TUNED = ["claim_02_tuned", "claim_14_tuned"]  # sweeps whose rates are from one grid


def test_the_claims_are_the_thirteen_without_the_withdrawn_one():
    assert {claim["number"] for claim in CLAIMS} == set(range(2, 15))
    assert [claim["sweep"] for claim in CLAIMS if words.is_tuned(claim)] == TUNED
    assert all("level" in claim for claim in CLAIMS if words.is_tuned(claim))


def test_the_page_and_the_readme_are_made_from_the_results():
    assert results_page.PAGE.read_text(encoding="utf-8") == results_page.page(CLAIMS, FOUND)
    readme = results_page.README.read_text(encoding="utf-8")
    assert readme == results_page.readme(readme, CLAIMS, FOUND)
    assert readme.count(results_page.MARKS[0]) == readme.count(results_page.MARKS[1]) == 1


@pytest.fixture
def timed(tmp_path):
    """A folder with results in equal seconds: two of one day, and an earlier one. Two seeds have other seconds."""
    row = {"baseline": "grpo_8", "group": "pods_32_8", "word": "gain", "mean": 0.0312, "low": 0.01, "high": 0.0524}
    sooner = {"ratio": 1.5, "low": 1.25, "high": 2.0, "bound": "at least"}
    other = {"baseline": "grpo_8", "group": "grpo_32", "word": "undecided", "mean": 0.0, "low": -0.03, "high": 0.03}
    seeds = {"200": [[0, 0, 0.0], [100, 5, 0.2], [200, 9, 0.4]], "201": [[0, 0, 0.0], [50, 2, 0.3], [200, 8, 0.6]]}
    for name, word in (
        ("29_published_arithmetic", "loss"),
        ("30_published_arithmetic", "equal"),
        ("30_published_arithmetic_2", "gain"),
    ):
        result = {
            "seeds": list(seeds),
            "contrasts": [{**row, "word": word, "sooner": sooner}, other],
            "points": {arm: seeds for arm in ("grpo_8", "grpo_32", "pods_32_8")},
        }
        (tmp_path / f"2026-11-{name}.json").write_text(json.dumps(result))
    (tmp_path / "2026-11-30_published_arithmetic_pilots.json").write_text("{}")
    return tmp_path


def test_the_page_leads_with_equal_seconds_if_they_were_measured(timed, tmp_path_factory):
    """The newest result of each task, above the other table, which does not change. Nothing without a result."""
    page = results_page.page(CLAIMS, FOUND, tmp_path_factory.mktemp("none"))
    found = results_page.page(CLAIMS, FOUND, timed)
    top, _, rest = found.partition("## Policies of at most 2.5 million parameters\n\n")
    assert page == "# Results\n\n" + rest
    seeds = "[2 seeds](../benchmarks/results/2026-11-30_published_arithmetic_2.json)"
    arms = "32 sampled, 8 trained | 8 sampled, 8 trained"
    assert [line for line in top.splitlines() if line.startswith("| arith")] == [
        f"| {TASK} | {arms} | **gain** | +3.1 (+1.0 to +5.2), {seeds} | - | - | at least 1.50 (1.25 to 2.00) |",
        f"| {TASK} | 32 sampled, 32 trained | 8 sampled, 8 trained | **undecided** | +0.0 (-3.0 to +3.0), {seeds} | - "
        "| - | - |",
    ]
    assert max(map(len, (line for line in top.splitlines() if not line.startswith("|")))) <= 120


def test_a_word_is_that_of_the_new_seeds_and_equal_may_be_that_of_all(timed):
    """The new seeds have another order. Their gain stands, although all seeds are undecided."""

    def row(group, word, mean):
        return {
            "baseline": "grpo_8",
            "group": group,
            "word": word,
            "mean": mean,
            "low": mean - 0.01,
            "high": mean + 0.01,
        }

    looks = {
        "again": [row("grpo_32", "undecided", 0.0), row("pods_32_8", "gain", 0.02)],
        "joined": [row("pods_32_8", "undecided", 0.025), row("grpo_32", "equal", 0.001)],
    }
    for look, contrasts in looks.items():
        result = {"seeds": ["1", "2", "3"], "contrasts": contrasts, "points": {}}
        (timed / f"2026-11-30_published_arithmetic_{look}.json").write_text(json.dumps(result))
    made = results_page.equal_seconds
    first, second = made.contrasts(timed)
    assert [(of.this, of.word, of.last["mean"]) for of in (first, second)] == [
        ("32 sampled, 32 trained", "equal", 0.001),
        ("32 sampled, 8 trained", "gain", 0.025),
    ]
    assert [of[0]["mean"] for of in second.looks.values()] == [0.0312, 0.02, 0.025]
    (line,) = [line for line in made.table(timed) if "**gain**" in line]
    assert line.count("3 seeds") == 2
    assert "+2.0 (+1.0 to +3.0)" in line


def test_a_ratio_that_bounds_nothing_is_not_shown():
    of = {"ratio": 1.0, "low": 0.9, "high": 1.1, "bound": "none"}
    assert results_page.equal_seconds._sooner({"sooner": of}) == "-"
    assert results_page.equal_seconds._sooner({"sooner": {**of, "bound": "at most"}}) == "at most 1.00 (0.90 to 1.10)"


def test_readme_s_effects_begin_with_equal_seconds_if_they_were_measured(timed, tmp_path_factory):
    written, none = results_page.README.read_text(encoding="utf-8"), tmp_path_factory.mktemp("none")
    readme = results_page.readme(written, CLAIMS, FOUND, none)
    assert "equal seconds" not in readme.partition(results_page.MARKS[0])[2].partition(results_page.MARKS[1])[0]
    found = results_page.readme(readme, CLAIMS, FOUND, timed)
    added = found.removeprefix(readme.partition(results_page.MARKS[0])[0])
    (item,) = re.findall(
        r"(?m)^- \*\*arithmetic, 200 seconds: 32 sampled, 8 trained, instead of 8 .*\n?.*5\.2\)", added
    )
    assert " ".join(item.split()).endswith("instead of 8 sampled, 8 trained**: gain, +3.1 (+1.0 to +5.2)")
    assert results_page.readme(found, CLAIMS, FOUND, timed) == found
    assert results_page.readme(found, CLAIMS, FOUND, none) == readme


def test_the_picture_of_equal_seconds_has_the_means_of_the_seeds(timed, tmp_path):
    """After 100 s, one seed is at 0.2, and the other at 0.4, on its line from 0.3 at 50 s to 0.6 at 200 s."""
    made = results_page.equal_seconds
    made.draw(timed, tmp_path / "picture.svg")
    assert (tmp_path / "picture.svg").stat().st_size > 5000
    ((path,),) = (looks.values() for looks in made.newest(timed).values())
    (panel,) = made.figure({"published_arithmetic": json.loads(path.read_text())}).axes
    assert [line.get_label() for line in panel.lines] == [
        "8 sampled, 8 trained",
        "32 sampled, 32 trained",
        "32 sampled, 8 trained",
    ]
    x, y = panel.lines[0].get_data()
    assert (x[50], y[50], y[-1]) == (100, pytest.approx(0.3), pytest.approx(0.5))


def test_no_word_of_effect_is_written_by_hand():
    """In the comments on claims, and in README's items, outside the places that the script fills."""
    comments = results_page.comments()
    texts = [text for name, of in comments.items() if name.startswith("claim_") for text in of.values()]
    texts += [line for line in comments["readme"]["effects"].splitlines() if line.startswith("- ")]
    left = [re.sub(r"\{[^}]*\}|\([^)]*\)", "", text) for text in texts]
    assert [EFFECT.findall(text) for text in left if EFFECT.search(text)] == []


@pytest.mark.parametrize("claim", CLAIMS, ids=by_sweep)
def test_a_claim_s_sweep_has_its_cells_and_every_cell_a_name(claim):
    sweep = tomllib.loads((REPOSITORY / "configs" / "sweeps" / f"{claim['sweep']}.toml").read_text(encoding="utf-8"))
    pilots = pilot_sweeps(claim)
    assert {label for contrast in claim["contrasts"] for label in contrast} <= sweep["variants"].keys() | {
        label for file in pilots for label in file["variants"]
    }
    for file in pilots:  # an arm that was not run has no cell; the others differ from their pilots in the rate alone
        for label in file["variants"].keys() & sweep["variants"].keys():
            rate = {"optimizer.learning_rate": sweep["variants"][label]["optimizer.learning_rate"]}
            assert file["variants"][label] | rate == sweep["variants"][label]
    assert len(sweep["seeds"]) == SEEDS.get(claim["sweep"], 5)
    assert sweep["variants"].keys() <= results_page.comments()["names"].keys()


def pilot_sweeps(claim):
    paths = [REPOSITORY / "configs" / "sweeps" / f"{name}.toml" for name in claim.get("pilots", [])]
    return [tomllib.loads(path.read_text(encoding="utf-8")) for path in paths]


@pytest.mark.parametrize("claim", MEASURED, ids=by_sweep)
def test_a_measured_claim_has_each_contrast(claim):
    """Of its cells. The page says of the others that they were not run."""
    _, result = FOUND[claim["sweep"]]
    rows = {(row["baseline"], row["group"], row["axis"], row["costs"]): row for row in result["contrasts"]}
    run = [pair for pair in claim["contrasts"] if result["cells"].keys() >= set(pair)]
    assert {(first, second) for first, second, _, _ in rows} == set(map(tuple, run))
    page = results_page.PAGE.read_text(encoding="utf-8")
    for first, second in (pair for pair in claim["contrasts"] if pair not in run):
        assert f"| {results_page.name(second)} | {results_page.name(first)} | not run |" in page
    for row in rows.values():
        assert {len(times) for times in row["times"].values()} == {len(result["cells"][row["baseline"]]["seeds"])}
    assert result["command"]
    assert result["commit"]
    assert (results_page.PICTURES / f"{claim['sweep']}.svg").exists()


@pytest.mark.parametrize("claim", SECONDARY, ids=by_sweep)
def test_every_secondary_word_is_recomputed_from_the_stored_times(claim):
    """By other code than the page's: Student's t of paired log times."""
    _, result = FOUND[claim["sweep"]]
    rows = words.rows(claim, result)
    assert rows
    for row in rows:
        sides = [row.source["times"][side] for side in ("baseline", "group")]
        never = ["never" in times.values() for times in sides]
        at = [filled(result, row.source, side) for side in ("baseline", "group")]
        differences = np.log(at[0]) - np.log(at[1])
        low, high = interval(differences, 0.95)
        near = interval(differences, 0.90)
        expected = "undecided" if words.is_tuned(claim) else "not decided"
        if words.is_tuned(claim):
            if low > 1 and not never[1]:
                expected = "gain"
            elif high < 1 and not never[0]:
                expected = "loss"
            elif low <= 1 <= high and near[0] >= 0.8 and near[1] <= 1.25 and not any(never):
                expected = "equal"
        assert row.decision.word == expected
        assert (row.decision.low, row.decision.high) == pytest.approx((low, high), rel=1e-6)
        printed = f"{row.decision.ratio:.2f} ({low:.2f} to {high:.2f})"
        line = f"| {results_page.name(row.group)} | {results_page.name(row.baseline)} | "
        shown = "" if expected == "not decided" else f"{expected}, "
        (cells,) = (text.partition(line)[2] for text in of_claim(claim).splitlines() if line in text)
        if row.axis != "tokens_trained":
            assert re.search(rf"(^|\| ){shown}(at most |at least )?{re.escape(printed)}", cells)


def of_claim(claim):
    """The part of the page with a claim's intervals: the table of the small policies, or the claim's own section."""
    page = results_page.PAGE.read_text(encoding="utf-8")
    if words.is_tuned(claim):
        rows = page.partition("\n## The papers")[0].rpartition("\n## ")[2].splitlines()
        return "\n".join(row for row in rows if row.endswith(f" {claim['number']} |"))
    return page.partition(f": {claim['question']}\n")[2].partition("\n##")[0]


LEVELS = {8: (0.031006, 0.062011), 12: (0.020754, 0.045103), 16: (0.019969, 0.044565)}  # Pocock's, two-sided


@pytest.mark.parametrize("claim", [claim for claim in MEASURED if "looks" in claim], ids=by_sweep)
def test_every_primary_word_is_recomputed_from_the_stored_times(claim):
    """By other code: the mean variance of the pairs, at the first look that decides, in the registered order."""
    _, result = FOUND[claim["sweep"]]
    primary = {(row.baseline, row.group): row for row in words.rows(claim, result) if row.primary}
    assert list(primary) == list(map(tuple, claim["contrasts"]))
    assert {row.axis for row in primary.values()} == {claim["primary"]}
    at, never = {}, {}
    for row in primary.values():
        assert row.source["level"] == claim["level"]
        for side in ("baseline", "group"):
            of = row.source["times"][side]
            at[row.source[side]] = np.log(filled(result, row.source, side))
            never[row.source[side]] = np.array([of[seed] == "never" for seed in sorted(of, key=int)])
    opened = 0
    for (first, second), row in primary.items():
        for look in (look for look in claim["looks"] if look <= len(at[first])):
            pairs = [(a, b) for a in at for b in at if a < b]
            variance = np.mean([(at[a] - at[b])[:look].var(ddof=1) for a, b in pairs])
            middle = (at[first] - at[second])[:look].mean()
            half = [-stdtrit(2 * (look - 1), p / 2) * math.sqrt(variance / look) for p in LEVELS[look]]
            low, high = math.exp(middle - half[0]), math.exp(middle + half[0])
            near = math.exp(middle - half[1]), math.exp(middle + half[1])
            out = never[first][:look].any(), never[second][:look].any()
            expected = "undecided"
            if low > 1 and look >= opened and not out[1]:
                expected = "gain"
            elif high < 1 and look >= opened and not out[0]:
                expected = "loss"
            elif low <= 1 <= high and near[0] >= 0.8 and near[1] <= 1.25 and not any(out):
                expected = "equal"
            if expected != "undecided":
                break
        opened = look if expected in ("gain", "loss") else math.inf
        assert (row.decision.word, row.decision.seeds) == (expected, look)
        assert (row.decision.low, row.decision.high) == pytest.approx((low, high), rel=1e-4)
        assert f"**{expected}, {results_page.ratio(row)}**" in of_claim(claim)


def filled(result, source, side):
    label, axis = source[side], source["axis"]
    over = result["seconds"][source["costs"]][label] if axis == "seconds" else result["curves"][label][axis]
    times, ends = source["times"][side], source.get("horizon", {}).get(side, {})  # an older result has one end for all
    return np.array(
        [ends.get(seed, over[-1]) if times[seed] == "never" else times[seed] for seed in sorted(times, key=int)]
    )


def interval(differences, share):
    half = stdtrit(len(differences) - 1, (1 + share) / 2) * differences.std(ddof=1) / math.sqrt(len(differences))
    return math.exp(differences.mean() - half), math.exp(differences.mean() + half)


def test_a_seed_that_never_reaches_the_level_has_a_bound_with_an_interval():
    (claim,) = (claim for claim in CLAIMS if claim["sweep"] == "claim_07_allocation_grpo")
    rows = words.rows(claim, FOUND[claim["sweep"]][1])
    (row,) = (row for row in rows if (row.group, row.axis) == ("grpo_gvm", "steps"))
    assert row.decision.word == "not decided"


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if words.is_tuned(claim)], ids=by_sweep)
def test_a_claims_rates_and_level_are_those_of_its_pilots(claim):
    sweeps, chosen, edges = REPOSITORY / "configs" / "sweeps", {}, []
    for name, grid in zip(claim["pilots"], pilot_sweeps(claim), strict=True):
        if not (paths := sorted(words.RESULTS.glob(f"20??-??-??_{name}.json"))):
            continue  # registered, and not measured yet
        pilots = json.loads(paths[-1].read_text(encoding="utf-8"))
        chosen |= pilots["chosen"]
        edges += pilots["at the edge of the grid"]
        rates = grid["grid"]["optimizer.learning_rate"]
        assert pilots["chosen"].keys() <= grid["variants"].keys()
        assert pilots["cells"].keys() >= {f"{a},learning_rate={rate:g}" for a in pilots["chosen"] for rate in rates}
        for cell in pilots["cells"].values():
            assert sorted(map(int, cell["seeds"])) == grid["seeds"] == [100, 101, 102]
            means = [np.mean(curve[1:]) for curve in cell["seeds"].values()]
            assert cell["mean accuracy"] == pytest.approx(np.mean(means), abs=1e-5)
        for arm, rate in pilots["chosen"].items():
            best = max(cell["mean accuracy"] for label, cell in pilots["cells"].items() if label.startswith(f"{arm},"))
            assert pilots["cells"][f"{arm},learning_rate={rate:g}"]["mean accuracy"] == best
        if name == claim["pilots"][0]:
            assert pilots["level"] == claim["level"]
    variants = tomllib.loads((sweeps / f"{claim['sweep']}.toml").read_text(encoding="utf-8"))["variants"]
    assert {arm: keys["optimizer.learning_rate"] for arm, keys in variants.items()} == {
        arm: chosen[arm] for arm in variants
    }
    assert not variants.keys() & set(edges)


def changed(result, **of):
    made = copy.deepcopy(result)
    for cell in made["cells"].values():
        cell.update(copy.deepcopy(of))
    return made


def test_only_a_result_of_the_registered_sweep_is_used(tmp_path, capsys):
    name, result = FOUND["claim_06_statistics"]
    (tmp_path / name).write_text(json.dumps(result))
    faster = {"keys": {**result["cells"]["pods_64_16"]["keys"], "optimizer.learning_rate": 1e-3}}
    sparse = copy.deepcopy(result)
    for curve in sparse["curves"].values():
        curve["steps"] = [2 * step for step in curve["steps"]]
    others = [
        changed(result, steps=[12]),
        changed(result, seeds=["0", "1"]),
        changed(result, **faster),
        sparse,
        {**result, "cells": {"pods_64_16": result["cells"]["pods_64_16"]}},
    ]
    for day, other in enumerate(others, start=1):
        (tmp_path / f"2099-01-0{day}_claim_06_statistics.json").write_text(json.dumps(other))
    assert words.newest("claim_06_statistics", tmp_path) == (name, result)
    assert capsys.readouterr().out.count("is not used") == len(others)
    (tmp_path / "2099-01-09_claim_06_statistics_2.json").write_text(json.dumps(result))
    assert words.newest("claim_06_statistics", tmp_path)[0] == "2099-01-09_claim_06_statistics_2.json"


def test_seconds_of_costs_that_fail_their_check_are_not_on_the_page(tmp_path, monkeypatch):
    _, result = FOUND["claim_02_tuned"]
    monkeypatch.setattr(words, "COSTS", tmp_path)
    costs = {"source": result["costs"]["two_cpu_cores"], "check": {"lowest": 0.91, "highest": 1.09}}
    for check, accepted in ((costs["check"], True), ({"lowest": 0.89, "highest": 1.0}, False), (None, False)):
        (tmp_path / "two_cpu_cores.json").write_text(json.dumps({**costs, "check": check}))
        assert words.accepted(result, "two_cpu_cores") is accepted
    (tmp_path / "two_cpu_cores.json").write_text(json.dumps({**costs, "source": "other curves"}))
    assert not words.accepted(result, "two_cpu_cores")


def test_published_costs_beyond_their_last_point_are_marked():
    (claim,) = (claim for claim in CLAIMS if claim["sweep"] == "claim_10_llama")
    rows = [row for row in words.rows(claim, FOUND[claim["sweep"]][1]) if row.axis == "seconds"]
    assert {row.beyond for row in rows if row.baseline == "grpo_64"} == {("grpo_64",)}
    assert {row.beyond for row in rows if row.baseline == "grpo_16"} == {()}
    assert all(results_page.ratio(row).endswith("†") == bool(row.beyond) for row in rows)


@pytest.mark.parametrize("claim", MEASURED, ids=by_sweep)
def test_only_a_primary_contrast_can_be_advised(claim):
    for row in words.rows(claim, FOUND[claim["sweep"]][1]):
        advice = words.advice(row, FOUND[claim["sweep"]][1])
        assert advice in results_page.GROUPS
        assert advice != "do" or row.primary
        assert row.decision.word not in ("undecided", "not decided") or advice == "no effect shown"
        assert (row.decision.word == "not decided") is not words.is_tuned(claim)


def test_the_first_screen_and_the_readme_have_only_contrasts_with_tuned_rates():
    advised = list(results_page.advised(CLAIMS, FOUND))
    assert {claim["sweep"] for claim, _, _ in advised} <= set(TUNED)
    pairs = [(claim["sweep"], row.baseline, row.group) for claim, row, _ in advised]
    assert len(pairs) == len(set(pairs)) >= 3
    effects = results_page.comments()["readme"]["effects"]
    named = [of.split()[0] for of in re.findall(r"\{(claim_[^}]*)\}", effects)]
    assert named
    assert set(named) <= set(TUNED)
    assert "not decided" not in results_page.filled(effects, CLAIMS, FOUND)


def test_a_claim_with_rates_from_single_pilots_has_intervals_and_no_word():
    (claim,) = (claim for claim in CLAIMS if claim["sweep"] == "claim_03_rollouts")
    result = FOUND[claim["sweep"]][1]
    tuned = words.rows({**claim, "pilots": []}, result)
    for row, was in zip(words.rows(claim, result), tuned, strict=True):
        assert row.decision.word == "not decided"
        assert was.decision.word in ("gain", "loss", "equal", "undecided")
        assert dataclasses.replace(row.decision, word=was.decision.word) == was.decision
    assert {row.decision.word for row in tuned} >= {"gain", "loss"}


def test_a_place_that_names_several_contrasts_gets_the_first_that_was_measured():
    second = "claim_07_allocation_raft raft_16 raft_gvm tokens_generated"
    without = {**FOUND, "claim_14_tuned": None}
    first = "claim_14_tuned raft_16 raft_gvm tokens_generated"
    filled = results_page.filled(f"{{{first} or {second}}}", CLAIMS, without)
    assert filled == results_page.filled(f"{{{second}}}", CLAIMS, FOUND)
    assert filled.startswith("not decided by tokens generated")
    assert results_page.filled(f"{{{first}}}", CLAIMS, without).startswith("not measured")


def test_equal_groups_are_called_different_in_at_most_five_percent_of_draws():
    path = max(words.RESULTS.glob("20??-??-??_false_alarms*.json"))
    result = json.loads(path.read_text(encoding="utf-8"))
    for pipeline, found in result["any gain or loss"].items():
        assert found["mean"] <= 0.05, pipeline
        error = math.sqrt(0.05 * 0.95 / result["settings"]["trials"])
        assert found["highest"] <= 0.05 + 3 * error, pipeline


def test_shared_runs_are_counted_by_seed_and_curve():
    curves = {"a": {"seeds": {"0": [0.1], "1": [0.1]}}, "b": {"seeds": {"0": [0.1], "1": [0.2]}}}
    assert words.shared([{"curves": curves}, {"curves": {"c": curves["a"]}}]) == (3, 6)


def partly_run():
    """(arm of claim 14 that was run, result): the rows and cells of a contrast of claim 2, under that arm's label."""
    result = copy.deepcopy(FOUND["claim_02_tuned"][1])
    of = ("grpo_16", "pods_64_16"), {"steps", "seconds", "tokens_generated"}
    rows = [r for r in result["contrasts"] if (r["baseline"], r["group"]) == of[0] and r["axis"] in of[1]]
    arm = "grpo_8"
    for row in rows:
        row["group"] = arm
        row["times"] = {side: dict(list(at.items())[:8]) for side, at in row["times"].items()}
    for table in (result["cells"], result["curves"], *result["seconds"].values()):
        table[arm] = table.pop("pods_64_16")
        del table["grpo_64"]
    return arm, {**result, "contrasts": rows}


def test_a_claim_that_was_run_in_part_says_which_contrasts_were_not():
    (claim,) = (claim for claim in CLAIMS if claim["sweep"] == "claim_14_tuned")
    arm, result = partly_run()
    found = {"claim_14_tuned": ("a.json", result)}
    rows = words.rows(claim, result)
    assert {(row.baseline, row.group) for row in rows} == {("grpo_16", arm)}
    assert {row.decision.seeds for row in rows} == {8}
    assert all(row.decision.word != "not decided" and not row.primary for row in rows)
    shown = list(results_page.table(claim, rows))
    assert sum("| not run |" in line for line in shown) == len(claim["contrasts"]) - 1
    ((_, first, _),) = results_page.advised([claim], found)
    assert (first.axis, first.costs) == ("seconds", words.THIS_MACHINE)  # the first of the registered axes
