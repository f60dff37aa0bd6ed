"""The curves of the page in a browser: their axes, averages, files, and the values of the point last pointed at."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
import report_pages as pages

PLACE = "winnow.place.get()"
SEARCHES = [("sample [13]", 18), ("^step 2 prompt 0", 4), ("SAMPLE 1", 9), ("x*", 36), ("zzz", 0), ("sample (", 0)]


def measured(name="mine", *, tokens=(100, 200, 300), held_out=True):
    """Three steps that spent 100, 200 and 300 tokens, and an evaluation after them."""
    columns = {
        "reward/mean": {"at": [0, 1, 2], "y": [0.2, 0.4, 0.6]},
        "budget/tokens_generated": {"at": [0, 1, 2], "y": list(tokens)},
        "budget/tokens_trained": {"at": [0, 1, 2], "y": [10, 20, 30]},
        "seconds/step": {"at": [0, 1, 2], "y": [1.5, 2.5, 4]},
        "loss": {"at": [0, 1, 2], "y": [-1.0, 0, 2]},
    }
    if held_out:
        columns["eval/accuracy_sampled"] = {"at": [0, 3], "y": [0.1, tokens[0] / 1000]}
    return pages.run(name, metrics={"steps": [0, 1, 2, 3], "columns": columns})


def lines(opened, place, name="reward/mean"):
    """{line: (x, y)} and the x axis of the chart of a metric at a place."""
    opened.page.evaluate("place => winnow.place.go(place)", {"view": "metrics", "metric": name, **place})
    return opened.page.evaluate("""() => {
        const at = winnow.place.get();
        const {x, y} = winnow.axes.column(winnow.model.runs[0], at.metric);
        const spec = {title: at.metric, x_label: winnow.axes.STEPS, lines: [{label: 'mine', run: 0, x, y}]};
        const chosen = winnow.axes.chosen(spec, at);
        return [chosen.x_label, chosen.lines[0].x, chosen.lines[0].y, chosen.lines[0].raw ?? null];
    }""")


def test_the_x_axis_counts_what_was_spent_before_a_step(shown):
    opened = shown(pages.data(measured()), "#configuration")
    for axis, x in (("", [0, 1, 2]), ("tokens", [0, 100, 300]), ("seconds", [0, 1.5, 4]), ("weeks", [0, 1, 2])):
        label, at, y, _ = lines(opened, {"x": axis})
        assert (at, y) == (x, [0.2, 0.4, 0.6]), axis
        assert (label == "training step") == (axis not in ("tokens", "seconds")), axis


def test_a_run_that_logs_no_seconds_has_no_place_on_their_axis(shown):
    run = measured()
    del run["metrics"]["columns"]["seconds/step"]
    _, at, _, _ = lines(shown(pages.data(run), "#configuration"), {"x": "seconds"})
    assert at == [None, None, None]


def test_a_line_is_averaged_over_the_last_steps_and_keeps_what_it_was(shown):
    _, _, y, raw = lines(shown(pages.data(measured()), "#configuration"), {"smooth": "2"})
    assert (y, raw) == (pytest.approx([0.2, 0.3, 0.5]), [0.2, 0.4, 0.6])


def test_a_gap_of_a_line_stays_a_gap_and_a_logarithmic_axis_has_the_positive_values_alone(shown):
    evaluate = shown(place="#configuration").page.evaluate
    assert evaluate("winnow.axes.smooth([1, null, 3, 5], 2)") == [1, None, 3, 4]
    assert evaluate("winnow.axes.smooth([1, 2, 3, 10], 3)") == [1, 1.5, 2, 5]
    assert evaluate("winnow.axes.smooth([1, 1e20, 1, 1, 1], 2)") == [1, 5e19, 5e19, 1, 1]
    assert evaluate("winnow.chart.join([{x: [0, 1, 2], y: [-1, 0, 2]}], true)") == [[0, 1, 2], [None, None, 2]]
    ends = "winnow.chart.extent([{axis: 1, y: %s}], 1, [-0.03, 1.03], true)"
    assert evaluate(ends % "[-1, 0.026, 41]") == [0.02, 50]
    assert evaluate(ends % "[0.5, 0.5]") == [0.25, 1]
    assert evaluate(ends % "[-1]") == [0.1, 1]
    assert evaluate(ends.replace("true", "false") % "[5]") == [-0.03, 1.03]


def test_the_controls_set_the_place_and_the_place_the_controls(shown):
    opened = shown(pages.data(measured()), "#overview?x=tokens&smooth=10&log=1")
    page = opened.page
    values = [page.get_by_role("combobox", name=name).input_value() for name in ("x axis", "smoothing")]
    assert (values, page.get_by_role("checkbox", name="logarithmic y axis").is_checked()) == (["tokens", "10"], True)
    assert page.get_by_role("region", name="table of runs").count() == 0  # of one run
    page.get_by_role("combobox", name="x axis").select_option("seconds")
    page.get_by_role("combobox", name="smoothing").select_option("")
    page.get_by_role("checkbox", name="logarithmic y axis").uncheck()
    assert page.evaluate(f"[{PLACE}.x, {PLACE}.smooth, {PLACE}.log]") == ["seconds", "", ""]
    page.get_by_role("img", name="accuracy over seconds of training so far").wait_for()


def test_the_values_of_a_point_stay_when_the_pointer_leaves_and_when_the_chart_is_made_again(shown):
    """The second line was measured at steps 0 and 2: at step 1 it has the value of step 0, and says so."""
    opened = shown()
    page = opened.page
    page.get_by_role("img", name="accuracy").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    values = ["", "10% at 0"]
    assert opened.texts(".key .value") == values
    page.mouse.move(1, 1)
    page.locator(".plot canvas").hover(position={"x": 150, "y": 100}, force=True)
    page.mouse.move(1, 1)
    kept = opened.texts(".keys .at")
    assert kept[0].startswith("training step ")
    page.get_by_role("checkbox", name="logarithmic y axis").check()
    page.wait_for_selector(".plot canvas")
    page.wait_for_function("text => document.querySelector('.keys .at').innerText.trim() === text", arg=kept[0])


def test_a_chart_that_is_replaced_is_ended(shown):
    """uPlot moves a cursor in every chart of a group that was not destroyed. A view that is left keeps its charts."""
    page = shown().page
    charts = "[uPlot.sync('winnow training step').plots.length, document.querySelectorAll('.plot canvas').length]"
    page.wait_for_selector(".plot canvas")
    for change in ("winnow.place.go({smooth: '5'})", "winnow.place.go({smooth: ''})", "winnow.main.redraw()"):
        page.evaluate(change)
        page.wait_for_selector(".plot canvas")
        assert page.evaluate(charts) == [1, 1]
    page.evaluate("winnow.place.go({view: 'rollouts'})")
    assert page.evaluate(charts) == [1, 0]
    page.evaluate("winnow.place.go({view: 'overview'})")
    assert page.evaluate(charts) == [1, 1]


def test_a_chart_is_saved_as_numbers_and_no_text_of_a_run_is_a_formula_of_a_spreadsheet(shown):
    opened = shown()
    with opened.page.expect_download() as waiting:
        opened.page.get_by_role("button", name="save the values of accuracy as CSV").click()
    assert waiting.value.suggested_filename == "accuracy.csv"
    rows = list(csv.reader(io.StringIO(Path(waiting.value.path()).read_text(encoding="utf-8"))))
    assert rows == [
        ["training step", "training", "training: low", "training: high", "held out"],
        ["0", "0.2", "0.1", "0.3", "0.1"],
        ["1", "", "", "", ""],
        ["2", "0.6", "0.5", "0.7", "0.5"],
    ]
    text = opened.page.evaluate("""winnow.save.csv(['=1+1', 'a,"b"'], [['+x', null], [-2, '\\n']])""")
    assert text == '\'=1+1,"a,""b"""\r\n\'+x,\r\n-2,"\n"\r\n'


def test_a_chart_is_saved_as_a_picture_of_the_page_s_colours(shown):
    opened = shown()
    opened.page.wait_for_selector(".plot canvas")
    with opened.page.expect_download() as waiting:
        opened.page.get_by_role("button", name="save the chart accuracy as PNG").click()
    picture = Path(waiting.value.path()).read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    canvas = opened.page.locator(".plot canvas").bounding_box()
    assert (width, height) == (round(canvas["width"]) + 24, round(canvas["height"]) + 24 + 20 * 3)  # two lines


def test_runs_are_sorted_by_any_column(shown):
    best = [measured("b", tokens=(300, 1, 1)), measured("c", tokens=(700, 2, 2)), measured("a", held_out=False)]
    for i, run in enumerate(best):
        run["config"] = {"seed": i, "loss": {"use": "clip"}}
    opened = shown(pages.data(*best))
    table = opened.page.get_by_role("region", name="table of runs")

    def names():
        return [text.strip() for text in table.locator("tbody th").all_inner_texts()]

    assert names() == ["b", "c", "a"]
    for head, first, second in (
        ("held-out accuracy", ["c", "b", "a"], ["b", "c", "a"]),  # what was not measured is last in both
        ("run", ["a", "b", "c"], ["c", "b", "a"]),
        ("tokens sampled", ["c", "a", "b"], ["b", "a", "c"]),
        ("seed", ["a", "c", "b"], ["b", "c", "a"]),
    ):
        button = table.get_by_role("button", name=head, exact=True)
        button.click()
        assert names() == first, head
        button.click()
        assert names() == second, head
    heads = [text.strip() for text in table.locator("thead th").all_inner_texts()]
    assert "loss.use" not in heads  # equal in all runs
    cells = table.locator("tbody tr").first.locator("th, td").all_inner_texts()
    row = dict(zip(heads, [text.strip() for text in cells], strict=True))
    assert (row["run"], row["held-out accuracy"], row["tokens sampled"], row["seconds"]) == ("b", "30%", "302", "8")
    assert opened.page.locator("th[aria-sort=ascending]").count() == 1


def test_the_table_of_runs_has_comparable_evaluations_alone_and_a_dash_for_what_no_step_measured(shown):
    runs = [measured(name, tokens=(50, 1, 1)) for name in "abc"]  # 10% at step 0, 5% at step 3
    runs[1]["held_out_since"], runs[2]["held_out_since"] = 3, None
    for name in ("seconds/step", "seconds/probe"):
        runs[1]["metrics"]["columns"].pop(name, None)
    table = shown(pages.data(*runs)).page.get_by_role("region", name="table of runs")
    heads = [text.strip() for text in table.locator("thead th").all_inner_texts()]
    cells = [row.locator("th, td").all_inner_texts() for row in table.locator("tbody tr").all()]
    assert [row[heads.index("best of it")].strip() for row in cells] == ["10%", "5.0%", "–"]
    assert [row[heads.index("seconds")].strip() for row in cells] == ["8", "–", "8"]


def test_a_search_may_be_a_regular_expression_and_else_every_character_is_literal(shown):
    opened, linked = shown(place="#rollouts?q=sample+%5B13%5D"), shown(place="#rollouts")
    assert opened.texts(".counter") == ["0 of 36 rollouts"]
    opened.page.get_by_role("checkbox", name="regular expression").check()
    search = opened.page.get_by_role("searchbox", name="search in texts and prompts")
    sought = "text => winnow.place.get().q === text"
    for text, found in SEARCHES:
        search.fill(text)
        opened.page.wait_for_function(sought, arg=text)
        assert opened.texts(".counter") == [f"{found} of 36 rollouts"], text
        assert search.get_attribute("aria-invalid") == str(text == "sample (").lower(), text
        place = opened.page.evaluate("winnow.place.address(winnow.place.get())")
        linked.page.evaluate("place => { location.hash = place; }", place)
        linked.page.wait_for_function(sought, arg=text)
        assert linked.texts(".counter") == [f"{found} of 36 rollouts"], text


def test_metrics_are_found_by_a_regular_expression(shown):
    opened = shown(pages.data(measured()), "#metrics")
    opened.page.get_by_role("searchbox", name="find a metric").fill("^(loss|budget/.*trained)$")
    assert opened.page.locator(".metrics tbody tr:visible").count() == 0
    opened.page.get_by_role("checkbox", name="regular expression").check()
    names = [row.locator("code").inner_text() for row in opened.page.locator(".metrics tbody tr:visible").all()]
    assert "loss" not in names  # its row has a meaning behind the name


def test_a_whole_group_wraps_instead_of_scrolling(shown):
    made = list(pages.groups(steps=1, prompts=1, count=12))
    for width, most in ((1280, 3), (390, 1)):
        opened = shown(pages.data(pages.run(made=made)), "#rollouts?mode=group&at=0:0:0:q0", width)
        lefts = opened.page.evaluate(
            "[...document.querySelectorAll('article.column')].map((e) => e.getBoundingClientRect().left)"
        )
        assert (len(lefts), len(set(lefts)) <= most) == (12, True)
        columns = "document.querySelector('.columns')"
        assert opened.page.evaluate(f"{columns}.scrollWidth - {columns}.clientWidth") == 0
