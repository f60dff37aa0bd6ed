"""The frame that the benchmarks share, and the scripts and results that are referred to."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import frame

REPOSITORY = Path(__file__).parents[2]


def test_contestants_take_turns_after_they_have_warmed_up():
    calls = []
    runs = {name: lambda seed, name=name: calls.append(name + str(seed)) or seed for name in "ab"}
    turns = frame.paired(2, runs, warm_up=1)
    assert calls == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert [[turn[name][0] for name in "ab"] for turn in turns] == [[1, 1], [2, 2]]
    assert min(seconds for turn in turns for _, seconds in turn.values()) >= 0


def test_the_median_is_that_of_the_ratios_within_a_round():
    assert frame.median_ratio([2.0, 30.0, 9.0], [1.0, 10.0, 9.0]) == 2.0  # of 2, 3 and 1; of the medians it is 1


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A repository with a committed source file, as the frame's own; results go into it."""
    monkeypatch.setattr(frame, "HERE", tmp_path / "benchmarks")
    monkeypatch.setattr(frame, "RESULTS", tmp_path / "benchmarks" / "results")
    monkeypatch.setattr(frame, "MEASURED", ("src", "benchmarks", ":(exclude)benchmarks/results"))
    monkeypatch.setenv(frame.COMMIT, "")  # so that it is as before after the test
    monkeypatch.delenv(frame.COMMIT)
    for folder in ("src", "benchmarks/results", "docs"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file").write_text("1")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (("init", "--quiet"), ("add", "--all"), (*who, "commit", "--quiet", "-m", "1")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    yield tmp_path
    frame._free.cache_clear()


def parsed(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["benchmarks/speed.py", *arguments])
    made = frame.parser(None)
    made.add_argument("--write", action="store_true")
    return frame.parse(made)


@pytest.mark.parametrize("changed", ["src/file", "src/new", "benchmarks/file"])
def test_a_tree_with_uncommitted_changes_is_refused_first(tree, monkeypatch, changed):
    (tree / changed).write_text("2")
    with pytest.raises(SystemExit, match=changed):
        parsed(monkeypatch, "--write")
    with pytest.raises(SystemExit):
        frame.write("speed", {})  # also where a script has parsed nothing
    assert not parsed(monkeypatch).write  # nothing will be written


def test_with_dirty_it_is_measured_and_the_result_is_named_so(tree, monkeypatch):
    (tree / "src" / "file").write_text("2")
    parsed(monkeypatch, "--write", "--dirty")
    (tree / "src" / "file").write_text("1")  # what was measured is the tree at the beginning
    written = frame.write("speed", {})
    assert written.stem.endswith("_speed_dirty")
    assert json.loads(written.read_text())["commit"].endswith(frame.DIRTY)


def test_pages_and_results_may_change_beside_a_measurement(tree, monkeypatch):
    for beside in ("docs/file", "benchmarks/results/new.json", "benchmarks/results/file"):
        (tree / beside).write_text("2")
    parsed(monkeypatch, "--write")
    written = frame.write("speed", {})
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tree, capture_output=True, text=True).stdout.strip()
    assert json.loads(written.read_text())["commit"] == head
    assert written.stem.endswith("_speed")


def test_every_script_that_writes_a_result_examines_the_tree_first():
    texts = {path.name: path.read_text(encoding="utf-8") for path in frame.HERE.glob("*.py") if path.name != "frame.py"}
    writing = {name for name, text in texts.items() if "frame.finish(" in text or "frame.write(" in text}
    assert len(writing) > 12
    begun = {name for name in writing if "frame.parse(" in texts[name] or "frame.begin(" in texts[name]}
    assert writing - begun == {"gpu_lab.py"}  # parts of gpu.py, which does
    assert "frame.begin(" in texts["gpu.py"]


def test_results_of_a_tree_with_uncommitted_changes_are_named_so():
    dirty = {path.stem: str(json.loads(path.read_text()).get("commit")).endswith(frame.DIRTY) for path in stored()}
    assert {stem: bool(re.search(r"_dirty(_\d+)?$", stem)) for stem in dirty} == dirty


def stored():
    results = sorted(frame.RESULTS.glob("*.json"))
    assert len(results) > 20
    return results


def test_a_result_of_another_run_is_not_overwritten(tmp_path, monkeypatch):
    monkeypatch.setenv(frame.COMMIT, "a commit")
    monkeypatch.setattr(frame, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmarks/speed.py", "--rounds", "3"])
    first = frame.write("speed", {"ratio": 1})
    assert frame.write("speed", {"ratio": 2}) == first
    frame._free.cache_clear()  # as in another process
    second = frame.write("speed", {"ratio": 3})
    frame._free.cache_clear()
    assert second.name == f"{first.stem}_2.json"
    assert [json.loads(path.read_text())["ratio"] for path in (first, second)] == [2, 3]
    assert json.loads(first.read_text())["command"] == "python benchmarks/speed.py --rounds 3"


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (str(REPOSITORY / "runs" / "x"), "runs/x"),
        ("/some/where/runs", "runs"),
        ("../../elsewhere/runs", "runs"),
        ("runs/x", "runs/x"),
        ("--rounds", "--rounds"),
    ],
)
def test_a_result_names_no_folder_of_the_machine(tmp_path, monkeypatch, given, written):
    monkeypatch.setenv(frame.COMMIT, "a commit")
    monkeypatch.setattr(frame, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmarks/speed.py", given])
    frame.finish("speed", {}, argparse.Namespace(folder=given, rounds=3))
    frame._free.cache_clear()
    (result,) = (json.loads(path.read_text()) for path in tmp_path.iterdir())
    assert result["command"] == f"python benchmarks/speed.py {written}"
    assert result["settings"] == {"folder": written, "rounds": 3}


def test_no_stored_result_names_a_folder_of_the_machine():
    texts = [path.read_text(encoding="ascii") for path in stored()]
    assert [text for text in texts if re.search(r'\.\./\.\.|[" ]/(tmp|work|home|root)/', text)] == []


def test_scripts_and_results_that_are_referred_to_exist():
    folders = [path for name in ("docs", "scripts", "benchmarks") for path in (REPOSITORY / name).iterdir()]
    texts = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "README.md", *folders) if path.is_file()]
    named = {name for text in texts for name in re.findall(r"benchmarks/[\w*/.-]+\.(?:py|json)", text)}
    assert {"benchmarks/engines.py", "benchmarks/results/2026-11-22_vllm.json"} <= named
    assert {name for name in named if not list(REPOSITORY.glob(name))} == set()


def test_there_are_few_scripts_and_each_has_a_reader():
    """A page, a script or a stored result names it, or another benchmark imports it. The floors only fall."""
    scripts = {path.stem: path.read_text(encoding="utf-8") for path in frame.HERE.glob("*.py")}
    assert len(scripts) <= 35
    assert sum(text.count("\n") for text in scripts.values()) <= 6_550
    readers = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("scripts/*")]
    texts = [path.read_text(encoding="utf-8") for path in readers if path.is_file() and path.name != "CHANGELOG.md"]
    texts += [json.loads(path.read_text()).get("command", "") for path in stored()]
    named = {name for text in texts for name in re.findall(r"benchmarks/(\w+)\.py", text)}
    imports = r"(?m)^\s*(?:import|from) (\w+)"
    named |= {name for own, text in scripts.items() for name in re.findall(imports, text) if name != own}
    assert scripts.keys() - named == set()


def test_every_stored_result_is_cited():
    """By a page or the registered claims. A claim may have results that a later one has replaced."""
    others = ("README.md", "configs/README.md", "benchmarks/README.md", "benchmarks/claims.toml")
    pages = [*REPOSITORY.glob("docs/*.md"), *(REPOSITORY / name for name in others)]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    assert [path.name for path in stored() if path.stem not in text and "_claim_" not in path.stem] == []


def test_the_parts_of_a_plan_share_one_limit():
    """Of a part that weighs 6 and two that weigh 4 the first gets 6 of 14 minutes, and never more than a part takes."""
    import gpu

    plan = gpu.Plan(38.0, {"tests": 6, "memory": 4, "layouts": 4}, gpu.Sizes())
    assert plan.minutes_of("tests", ["memory", "layouts"], 14.0) == pytest.approx(6.0)
    assert plan.minutes_of("tests", ["memory", "layouts"], 38.0) == gpu.PART_MINUTES
    assert plan.minutes_of("layouts", [], 4.0) == 4.0
    assert plan.minutes_of("layouts", [], -1.0) == 0.0
    assert list(gpu._in_turn(["a", "b"])) == [("a", ["b"]), ("b", [])]


def test_a_plan_names_parts_and_ends_within_its_command():
    """The short plan leaves more than a minute of ten for wheels, the model and a measurement that ends late."""
    import gpu

    assert all(plan.shares.keys() <= gpu.PARTS.keys() for plan in gpu.PLANS.values())
    assert gpu.PLANS["all"].shares.keys() == gpu.PARTS.keys()
    short = gpu.PLANS["short"]
    assert short.minutes < 9
    assert list(short.shares) == ["tests", "published", "update", "generation", "resume"]
    assert short.minutes_of("tests", list(short.shares)[1:], short.minutes) == pytest.approx(2, abs=0.15)
    assert short.sizes.shapes == ("1.5B",)
