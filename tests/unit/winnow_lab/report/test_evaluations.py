"""Two models on the same problems: the page's data from folders, and the page in a browser."""

from __future__ import annotations

import json

import pytest
import report_pages as pages

from refusals import refused
from synthetic_run import NASTY, RIGHT, UNREAD, WRONG, group
from winnow.errors import DataError
from winnow.evaluation.folder import rows_of
from winnow_lab.report import data as module
from winnow_lab.report.data import evaluation_data
from winnow_lab.report.evaluations import compare_folders, comparisons_below

CONFIG = {"seed": 3, "model": {"dtype": "auto"}}


def write(folder, outcomes, *, model="m", tasks=("sums",), config=CONFIG, texts=None):
    """A finished evaluation with one sampled and one greedy answer per problem."""
    folder.mkdir(parents=True)
    groups = [group(f"p{i}", (one,), texts=texts or [f"{model} {i}"]) for i, one in enumerate(outcomes)]
    rows = [*rows_of("sampled", groups), *rows_of("greedy", groups)]
    of_task = {"config": config, "rows": len(rows), "dropped": 0}
    settings = {"winnow_evaluation": 1, "tasks": dict.fromkeys(tasks, of_task), "machine": {"model": model}}
    (folder / "settings.json").write_text(json.dumps(settings))
    for task in tasks:
        (folder / f"{task}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "metrics.json").write_text("{}")
    return folder


def test_two_folders_become_the_data_of_the_page(tmp_path):
    own = write(tmp_path / "own", (RIGHT, RIGHT, UNREAD), model="own")
    base = write(tmp_path / "base", (WRONG, RIGHT, RIGHT), model="base", config={**CONFIG, "seed": 4})
    data = evaluation_data("x", compare_folders(own, base))
    assert data["models"] == {"other": "base", "model": "own"}
    assert [(one["mode"], one["problems"], one["won"], one["lost"]) for one in data["comparisons"]] == [
        ("sampled", 3, 1, 1),
        ("greedy", 3, 1, 1),
    ]
    one = data["comparisons"][0]
    assert [(of["category"], of["other"], of["model"]) for of in one["categories"]] == [
        ("correct", 2, 2),
        ("wrong answer", 1, 0),
        ("wrong format", 0, 1),
    ]
    assert [(c["better"], c["id"], c["other_answer"], c["model_answer"]) for c in one["changes"]] == [
        (True, "p0", "base 0", "own 0"),
        (False, "p2", "base 2", "own 2"),
    ]
    assert len(data["notes"]) == 1
    assert "config.seed" in data["notes"][0]


def test_changed_problems_fit_in_the_room_and_long_texts_are_cut(tmp_path, monkeypatch):
    own = write(tmp_path / "own", (RIGHT,) * 30, texts=["x" * 50_000])
    base = write(tmp_path / "base", (WRONG,) * 30, texts=[NASTY])
    monkeypatch.setattr(module, "ROOM", 250_000)
    for one in evaluation_data("x", compare_folders(own, base))["comparisons"]:
        assert (one["won"], len(one["changes"])) == (30, 6)  # 125,000 bytes each, of 20,000 and a little
        assert {len(change["model_answer"]) for change in one["changes"]} < set(range(20_000, 20_100))


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda settings: settings.update(tasks={"other": {}}), "data.mismatch"),
        (lambda settings: settings.update(tasks={}), "data.mismatch"),
        (lambda settings: settings.update(tasks=None), "data.malformed"),
        (lambda settings: settings["tasks"].update(sums=5), "data.malformed"),
        (lambda settings: settings["tasks"]["sums"].update(config=None), "data.malformed"),
        (lambda settings: settings["tasks"]["sums"].update(rows=7), "data.incomplete"),
        (lambda settings: settings.update(winnow_evaluation=2), "data.malformed"),
    ],
)
def test_folders_that_cannot_be_compared_are_refused(tmp_path, spoil, code):
    own, base = write(tmp_path / "own", (RIGHT,)), write(tmp_path / "base", (WRONG,))
    settings = json.loads((base / "settings.json").read_text())
    spoil(settings)
    (base / "settings.json").write_text(json.dumps(settings))
    with refused(DataError, base, code=code):
        compare_folders(own, base)


def test_a_task_whose_name_is_a_path_is_not_read(tmp_path):
    name = "../elsewhere"
    (tmp_path / "elsewhere.jsonl").write_text("")
    folders = [write(tmp_path / each, (RIGHT,), tasks=(name,)) for each in ("own", "base")]
    with refused(DataError, repr(name)[1:-1], code="data.malformed"):
        compare_folders(*folders)


def test_comparisons_below_a_run_are_listed_without_following_links(tmp_path):
    run, outside = tmp_path / "run", write(tmp_path / "outside", (RIGHT,))
    write(outside / "against", (WRONG,))
    for place in ("evals/b", "a"):
        write(run / place, (RIGHT,))
        write(run / place / "against", (WRONG,))
    write(run / "alone", (RIGHT,))
    write(run / "going", (RIGHT,))
    (write(run / "going" / "against", (WRONG,)) / "metrics.json").unlink()
    (run / "linked").symlink_to(outside)
    (run / "more").symlink_to(tmp_path)
    assert comparisons_below(run) == [run / "a", run / "evals" / "b"]


def test_the_page_shows_the_categories_and_changed_problems_in_full(shown):
    opened = shown(pages.data(evaluations=[pages.evaluated()]))
    rows = opened.page.get_by_role("table", name="categories of sums, greedy").locator("tr").all()
    assert [row.locator("th, td").all_inner_texts()[1:] for row in rows[1:]] == [
        ["69 (13.8%)", "205 (41.0%)", "+27.2"],
        ["122 (24.4%)", "170 (34.0%)", "+9.6"],
        ["309 (61.8%)", "125 (25.0%)", "−36.8"],
    ]
    assert opened.page.locator(".changed-problem").count() == 0
    folded = opened.page.locator(".comparison details")
    for i in range(2):
        folded.nth(i).locator("summary").click()
    opened.page.get_by_role("region", name="worse: sums, greedy").get_by_role("article").wait_for()
    problem = opened.page.get_by_role("region", name="better: sums, greedy").get_by_role("article").nth(1)
    assert problem.locator(".foreign").all_inner_texts() == ["what is q3?", "42", "base on q3", "own on q3"]
    assert opened.page.locator(".changed-problem").count() == 3
    assert opened.overflow() == 0
