"""The whole page at two widths: nothing overflows, controls have names, and charts have texts."""

from __future__ import annotations

import re

import pytest
import report_pages as pages

VIEWS = ("overview", "rollouts", "metrics", "configuration")
NAMELESS = re.compile(
    r"^\s*- (button|link|textbox|searchbox|combobox|checkbox|spinbutton|listbox|option|img|region|table)(:| \[|$)",
    re.MULTILINE,
)


@pytest.mark.parametrize("width", [1280, 390])
def test_no_view_overflows_and_all_controls_have_names(shown, width):
    opened = shown(pages.data(pages.run("mine"), pages.run("a name that is rather long, of a second run")), width=width)
    for view in VIEWS:
        opened.page.evaluate("view => winnow.place.go({view, mode: 'group'})", view)
        assert opened.overflow() == 0, view
        tree = opened.page.locator("body").aria_snapshot()
        assert not NAMELESS.search(tree), f"{view}: {NAMELESS.search(tree)}"
        assert "- banner" in tree
        assert "- main" in tree
        assert '- navigation "views"' in tree


def test_controls_have_descriptive_names(shown):
    tree = shown(place="#rollouts").page.locator("body").aria_snapshot()
    for line in (
        'button "dark colours"',
        'button "keys"',
        'searchbox "search in texts and prompts"',
        'listbox "rollouts"',
        'button "next rollout (j)"',
        'option "step 0, prompt q0, rollout 0: correct, reward 1, advantage +0.5, 9 tokens, trained"',
        'button "reward 0: 18 rollouts"',
        'combobox "shade by"',
    ):
        assert line in tree


def test_a_phone_shows_either_the_list_or_the_rollout(shown):
    opened = shown(place="#rollouts", width=390)
    assert not opened.page.locator("#reader").is_visible()
    opened.page.locator("#list [role=option]").nth(2).click()
    assert opened.page.locator("#reader").is_visible()
    assert not opened.page.locator("#list").is_visible()
    opened.page.get_by_role("button", name="list").click()
    assert opened.page.locator("#list").is_visible()
    assert opened.page.locator("#list [aria-selected=true]").get_attribute("aria-posinset") == "3"


def test_on_a_phone_keys_open_rollouts_and_arrows_move_in_the_list(shown):
    opened = shown(place="#rollouts", width=390)
    for key, where in (("j", "q0 › rollout 1"), ("n", "q1 › rollout 0")):  # each from rollout 0 of q0
        opened.page.locator("#list").focus()
        opened.page.keyboard.press("ArrowDown")
        opened.page.keyboard.press("ArrowUp")
        assert not opened.page.locator("#reader").is_visible()
        opened.page.keyboard.press(key)
        assert where in opened.texts(".where")[0]
        assert opened.page.locator("#reader").is_visible()
        opened.page.keyboard.press("k")
        assert opened.page.locator("#reader").is_visible()
        opened.page.keyboard.press("Escape")
        assert opened.page.locator("#list").is_visible()


def test_on_a_phone_a_link_opens_a_rollout_and_the_next_one_stays_open(shown):
    opened = shown(place="#rollouts?at=0:1:2:q1", width=390)
    for act in (
        lambda: None,
        lambda: opened.page.get_by_role("button", name="next rollout (j)").click(),
        lambda: opened.page.locator(".strip .chip").first.click(),
    ):
        act()
        assert opened.page.locator("#reader").is_visible()
    opened.page.get_by_role("button", name="list").click()
    assert opened.page.locator("#list").is_visible()


def test_a_chart_has_a_sentence_a_table_and_buttons_for_its_lines(shown):
    opened = shown()
    chart = opened.page.get_by_role(
        "img", name="accuracy over training step. training: from 20% to 60%; held out: from 10% to 50%."
    )
    chart.wait_for()
    opened.page.wait_for_selector(".plot canvas")
    opened.page.get_by_text("values as a table").click()
    table = opened.page.get_by_role("table", name="values of accuracy")
    table.wait_for()
    rows = [row.locator("th, td").all_inner_texts() for row in table.locator("tbody tr").all()]
    assert rows == [["0", "20%", "10%", "30%", "10%"], ["1", "–", "–", "–", "–"], ["2", "60%", "50%", "70%", "50%"]]
    assert opened.texts(".keys .span") == ["shaded: ± 1 s.d.", "shaded: policy held"]
    chart.focus()
    opened.page.keyboard.press("ArrowRight")
    assert opened.texts(".keys .at") == ["training step 0 its rollouts"]
    assert opened.texts(".key .value") == ["20%", "10%"]
    key = opened.page.get_by_role("button", name="held out")
    key.click()
    assert key.get_attribute("aria-pressed") == "false"


def test_a_point_of_a_chart_leads_to_the_rollouts_of_its_step(shown):
    """A click keeps the point while the pointer goes to the link; steps without rollouts have none."""
    opened = shown(pages.data(pages.run(made=list(pages.groups(steps=2)))))
    plot = opened.page.locator(".plot canvas")
    width, height = plot.bounding_box()["width"], plot.bounding_box()["height"]
    plot.click(position={"x": width / 2, "y": height / 2}, force=True)  # step 1 of 0 to 2
    opened.page.locator(".keys .at").get_by_role("link", name="its rollouts").click()
    opened.page.locator(".counter").filter(has_text="12 of 24 rollouts").wait_for()
    assert opened.page.get_by_role("combobox", name="step").input_value() == "1"
    opened.page.go_back()
    opened.page.get_by_role("img", name="accuracy").focus()
    for _ in range(3):
        opened.page.keyboard.press("ArrowRight")
    assert opened.texts(".keys .at") == ["training step 2"]


def test_the_budget_and_the_allocation_have_the_counted_numbers(shown):
    entries = [
        {"step": 0, "prompt_id": str(i), "pass_rate": rate, "count": n}
        for i, (rate, n) in enumerate([(0, 2), (0, 2), (0.5, 8), (0.3, 8), (1, 2)])
    ]
    opened = shown(pages.data(pages.run(allocation=entries, allocation_of=2000, prompts_skipped=3)))
    amounts = [element.text_content() for element in opened.page.locator(".ledger .amount").all()]
    assert amounts == ["1.0k tokens 100%", "1.0k tokens 100%", "250 tokens 25%", "240 tokens 24%", "760 tokens 76%"]
    assert [opened.page.evaluate("i => document.querySelectorAll('.fill')[i].style.width", i) for i in range(5)] == [
        "100%",
        "100%",
        "25%",
        "24%",
        "76%",
    ]
    rows = [row.locator("th, td").all_inner_texts() for row in opened.page.locator(".heat tbody tr").all()]
    assert [row[0] for row in rows] == ["8", "2"]
    heads = opened.texts(".heat thead th")
    assert dict(zip(heads, rows[0], strict=True)) == {"rollouts": "8", "30+": "1", "50+": "1"} | {
        h: "" for h in heads if h not in ("rollouts", "30+", "50+")
    }
    assert (rows[1][1], rows[1][-1]) == ("2", "1")
    (note,) = opened.texts("[aria-label^='allocation of'] .note")
    assert re.findall(r"[\d,]+%?", note) == ["5", "2,000", "27%", "3"]


def test_a_metric_can_be_searched_by_meaning_and_drawn(shown):
    opened = shown(place="#metrics")
    opened.page.get_by_role("searchbox", name="find a metric").fill("minimised")
    assert [row.locator("code").inner_text() for row in opened.page.locator(".metrics tbody tr:visible").all()] == [
        "loss"
    ]
    opened.page.get_by_role("checkbox", name="draw loss").check()
    opened.page.get_by_role("img", name="loss over training step. loss: from 1 to 0.5.").wait_for()
    opened.page.wait_for_url(lambda url: url.endswith("metric=reward%2Fmean%2Closs"))


def test_the_metrics_open_with_the_mean_reward_until_it_is_removed(shown):
    opened = shown(place="#metrics")
    box = opened.page.get_by_role("checkbox", name="draw reward/mean")
    assert box.is_checked()
    assert opened.page.locator(".metrics tbody tr").first.get_attribute("data-name") == "reward/mean"
    assert opened.page.locator(".chart").count() == 1
    box.uncheck()
    assert opened.page.locator(".chart").count() == 0
    place = opened.page.evaluate("winnow.place.address(winnow.place.get())")
    assert shown(place=place).page.locator(".chart").count() == 0
    without = pages.run(metrics={"steps": [0], "columns": {"loss": {"at": None, "y": [1.0]}}})
    assert shown(pages.data(without), "#metrics").page.locator(".chart").count() == 0


def test_the_overview_links_to_the_changes_by_resumes_which_the_configuration_lists(shown):
    keys = [*"abcdef", "<b>a</b>", "a"]
    changes = [{"step": i, "key": key, "was": '"test"', "now": "<b>none</b>"} for i, key in enumerate(keys)]
    opened = shown(pages.data(pages.run(changes=changes), pages.run("unchanged")))
    assert len(opened.texts(".changed")) == 1
    opened.page.get_by_role("link", name="a, b, c, d, e, and 2 more").click()
    opened.page.wait_for_selector("body[data-view=configuration] .changes")
    lines = opened.texts(".changes li")
    assert len(lines) == 8
    assert [part for part in ("step 6", "<b>a</b>", '"test"', "<b>none</b>") if part not in lines[6]] == []


def test_configurations_that_differ_are_marked(shown):
    second = pages.run(
        "yours", config={"seed": 1, "loss": {"clip": 0.2, "use": "clip"}, "select": [{"use": "max_variance"}]}
    )
    opened = shown(pages.data(pages.run(), second), "#configuration")
    assert opened.texts(".differs th") == ["≠ seed"]
    opened.page.get_by_role("checkbox", name="only what differs").check()
    assert opened.page.locator(".configuration tbody tr").count() == 1


def test_a_run_that_is_hidden_leaves_every_chart(shown):
    opened = shown(pages.data(pages.run("mine"), pages.run("yours")))
    assert opened.texts(".chart .key") == ["mine", "yours"] * 2
    opened.page.locator(".runs").get_by_role("button", name="yours", exact=True).click()
    assert opened.texts(".chart .key") == ["mine"] * 2


def test_of_two_runs_a_chart_shows_one_quantity_with_a_colour_for_each_run(shown):
    """And a quantity has the style that it has with one run."""
    of_one = shown(pages.data(pages.run()), "#configuration").page.evaluate("winnow.curves.specs(new Set())")
    assert [[(line["dash"], line["colour"]) for line in spec["lines"]] for spec in of_one] == [
        [("solid", "blue"), ("dashed", "orange")]
    ]
    runs = pages.run("mine"), pages.run("yours")
    of_two = shown(pages.data(*runs), "#configuration").page.evaluate("winnow.curves.specs(new Set())")
    assert [[(line["dash"], line["colour"]) for line in spec["lines"]] for spec in of_two] == [
        [("solid", "blue"), ("solid", "orange")],
        [("dashed", "blue"), ("dashed", "orange")],
    ]
    assert len({spec["title"] for spec in of_two}) == 2


def reward_panel(y2_range, y2_label="mean reward", x_label="training step"):
    """The panel of the page's first chart, with a line on the right scale where it has a label."""
    panel = pages.run()["panels"][0]
    beside = [panel["series"][0] | {"quantity": "mean reward", "y": [1.5, 2, 2.5], "axis": 2}] * (y2_label is not None)
    other = {"series": panel["series"] + beside, "y2_range": y2_range, "y2_label": y2_label, "x_label": x_label}
    return [panel | other]


SCALES = [
    ([reward_panel([-0.03, 1.03]), reward_panel(None)], None),  # the second's rewards are beyond the first's ends
    ([reward_panel(None), reward_panel([-0.03, 1.03])], None),
    ([reward_panel([0, 1]), reward_panel([-2, 0.5])], [-2, 1]),
    ([reward_panel(None, None), reward_panel([0, 1])], [0, 1]),  # the first draws nothing there
]


def test_a_scale_of_several_runs_holds_the_lines_of_all(shown):
    opened = shown(pages.data(*(pages.run(f"run {i}", panels=own) for i, own in enumerate(SCALES[0][0]))))
    for panels, ends in SCALES:
        opened.page.evaluate(
            "all => { all.forEach((own, run) => { winnow.model.runs[run].panels = own; }); winnow.main.redraw(); }",
            panels,
        )
        *others, spec = opened.page.evaluate("winnow.curves.specs(new Set())")
        axes = {line["axis"] for line in spec["lines"]}
        assert (spec["y_range"], spec["y_label"], axes) == (ends, "mean reward", {1})
        assert [other["y_range"] for other in others] == [[0, 1]] * 2


def test_an_axis_of_several_runs_has_the_names_of_all(shown):
    names = ("tokens", "tokens, probes included", "tokens", "hours")
    runs = [pages.run(f"run {i}", panels=reward_panel(None, x_label=name)) for i, name in enumerate(names)]
    spec, *_ = shown(pages.data(*runs), "#configuration").page.evaluate("winnow.curves.specs(new Set())")
    assert spec["x_label"] == "tokens, probes included / hours"


def test_dark_and_light_are_chosen_or_the_systems(shown):
    opened = shown()
    assert opened.page.locator(".comparison").count() == 0  # there is no evaluation to compare
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    light = opened.page.evaluate(paper)
    opened.page.emulate_media(color_scheme="dark")
    dark = opened.page.evaluate(paper)
    assert dark != light
    opened.page.get_by_role("button", name="dark colours").click()
    assert opened.page.evaluate(paper) == light


def test_thousands_of_rollouts_cost_few_elements(shown):
    made = list(pages.groups(steps=10, prompts=25, count=10))
    opened = shown(pages.data(pages.run(made=made)), "#rollouts")
    assert opened.texts(".counter") == ["2,500 rollouts"]
    assert opened.page.locator("#list *").count() < 500
    opened.page.locator("#list").evaluate("list => { list.scrollTop = list.scrollHeight; }")
    opened.page.locator("#list").get_by_role("option", name="step 9, prompt q24, rollout 9").wait_for()
    assert opened.page.locator("#list *").count() < 500


def test_an_empty_run_has_messages_instead_of_views(shown):
    nothing = {
        "headline": [],
        "config": {},
        "panels": [],
        "ledger": [],
        "allocation": [],
        "alarms": [],
        "metrics": {"steps": [], "columns": {}},
        "meanings": {},
        "steps": [],
    }
    opened = shown(pages.data(pages.run(made=[], **nothing)))
    assert opened.texts(".nothing")[0]
    for view in VIEWS[1:]:
        opened.page.evaluate("view => winnow.place.go({view})", view)
    opened.page.evaluate("winnow.place.go({view: 'rollouts'})")
    assert len(opened.texts(".nothing")) == 1


def test_an_alarm_leads_to_the_rollouts_of_its_step(shown):
    opened = shown()
    opened.page.get_by_role("link", name="its rollouts").click()
    opened.page.locator(".counter").filter(has_text="12 of 36 rollouts").wait_for()
    assert opened.page.get_by_role("combobox", name="step").input_value() == "2"
