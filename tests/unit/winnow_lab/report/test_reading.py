"""Reading rollouts in a browser: filters, search, the keyboard, links, groups and steps side by side."""

from __future__ import annotations

import report_pages as pages

from winnow_lab.report.rollouts import cut

COUNTER = ".counter"
READ = ".completion .foreign"


def names(opened):
    """Accessible names of the rollouts that are listed; the first screen of them."""
    return [row.get_attribute("aria-label") for row in opened.page.locator("[role=option]").all()]


def counted(opened, text):
    """Wait until the counter of listed rollouts has this text."""
    opened.page.locator(COUNTER).filter(has_text=text).wait_for()


def follow(opened, key, value):
    """Go to a place of rollouts by its address."""
    opened.page.evaluate("place => { location.hash = place; }", f"#rollouts?{key}={value}")
    opened.page.wait_for_function("([key, value]) => winnow.place.get()[key] === value", arg=[key, value])


def test_every_filter_lists_the_matching_rollouts(shown):
    opened = shown(place="#rollouts")  # 3 steps of 3 prompts, each with one rollout of every verdict
    page = opened.page
    counted(opened, "36 rollouts")
    page.get_by_role("button", name="✓ correct").or_(page.locator("[data-verdict=correct]")).first.click()
    counted(opened, "9 of 36 rollouts")
    assert all(": correct, reward 1," in name for name in names(opened))
    page.locator("[data-verdict=failed]").click()
    counted(opened, "18 of 36 rollouts")
    page.get_by_role("combobox", name="step").select_option("2")
    counted(opened, "6 of 36 rollouts")
    assert all(name.startswith("step 2,") for name in names(opened))
    page.get_by_text("more filters").click()
    page.get_by_role("combobox", name="kept", exact=True).select_option("no")
    counted(opened, "3 of 36 rollouts")
    assert all(name.endswith("not kept") and ": failed" in name for name in names(opened))
    page.get_by_role("button", name="clear filters").click()
    counted(opened, "36 rollouts")
    page.get_by_role("combobox", name="trained, or why not").select_option("not selected")
    counted(opened, "18 of 36 rollouts")
    page.get_by_role("button", name="clear filters").click()
    page.get_by_role("combobox", name="trained", exact=True).select_option("no")
    counted(opened, "27 of 36 rollouts")
    page.get_by_role("combobox", name="kept", exact=True).select_option("yes")
    counted(opened, "9 of 36 rollouts")
    assert all(name.endswith(", kept, not trained") for name in names(opened))


def test_rollouts_that_were_not_kept_are_last_by_advantage(shown):
    opened = shown(place="#rollouts?step=0&sort=advantage-low")
    listed = names(opened)
    assert ["advantage –" in name for name in listed] == [False] * 6 + [True] * 6
    assert all(name.endswith("not kept") for name in listed[6:])
    opened.page.locator("[role=option]").last.click()
    assert opened.texts(".badges .badge")[1:] == ["not kept", "○ not trained: not selected"]


def test_ranges_and_ends(shown):
    made = [
        pages.rollout(
            i, " ".join(["word"] * (i + 1)), kind="correct", reward=i / 10, finish="length" if i > 7 else "stop"
        )
        for i in range(10)
    ]
    opened = shown(pages.data(pages.run(made=[pages.group(0, "p", made)])), "#rollouts?rmin=0.2&rmax=0.5")
    counted(opened, "4 of 10 rollouts")
    opened.page.get_by_text("more filters").click()
    opened.page.get_by_role("spinbutton", name="tokens, least").fill("5")
    opened.page.keyboard.press("Tab")
    counted(opened, "2 of 10 rollouts")  # words 5 and 6: rollouts 4 and 5
    opened.page.get_by_role("button", name="clear filters").click()
    counted(opened, "10 rollouts")
    opened.page.get_by_role("combobox", name="end", exact=True).select_option("cut")
    counted(opened, "2 of 10 rollouts")
    opened.page.get_by_role("combobox", name="order").select_option("reward-high")
    assert "rollout 9" in names(opened)[0]


def test_a_bar_of_the_histogram_turns_a_filter_on_and_off(shown):
    opened = shown(place="#rollouts")
    opened.page.get_by_role("button", name="reward 1: 9 rollouts").click()
    counted(opened, "9 of 36 rollouts")
    opened.page.get_by_role("button", name="reward 1: 9 rollouts").click()
    counted(opened, "36 rollouts")
    assert opened.texts(".histogram .note") == ["9 rollouts without a reward"]


def test_a_bar_lists_as_many_rollouts_as_its_label(shown):
    """Rewards at the ends of the bins, each of which holds its lower end: a click lists those of one bin alone."""
    rewards = [0.05 * i for i in range(13)] + [0.15, 0.6, 0.42]
    made = [pages.rollout(i, "x", kind="wrong", reward=reward) for i, reward in enumerate(rewards)]
    opened = shown(pages.data(pages.run(made=[pages.group(0, "p", made)])), "#rollouts")
    bars = opened.page.locator(".histogram .bar")
    counts = [int(name.split(": ")[1].split()[0]) for name in bars.evaluate_all("all => all.map((bar) => bar.title)")]
    assert sum(counts) == 16
    for place, count in enumerate(counts):
        if count:
            bars.nth(place).click()
            counted(opened, f"{count} of 16 rollouts")


def test_a_place_that_names_an_object_property_is_ignored(shown):
    opened = shown(place="#rollouts?sort=constructor")
    assert opened.texts(COUNTER) == ["36 rollouts"]
    for key, counter in (("mode", "36 rollouts"), ("shade", "36 rollouts"), ("verdict", "0 of 36 rollouts")):
        follow(opened, key, "constructor")
        assert opened.texts(COUNTER) == [counter], key


def test_problems_of_two_data_sets_may_have_one_id(shown):
    """The same id with another text or another task is another prompt."""
    made = [pages.group(0, "1", [pages.rollout(0, "x")], prompt=prompt, task=task) for prompt, task in
            (("apples?", "gsm"), ("integrate", "math"), ("apples?", "math"))]  # fmt: skip
    opened = shown(pages.data(*(pages.run(f"run {i}", [one]) for i, one in enumerate(made))), "#rollouts")
    assert opened.page.evaluate("winnow.model.items.map((item) => winnow.model.elsewhere(item).length)") == [0, 0, 0]


def test_a_search_has_no_special_characters_and_marks_matches(shown):
    texts = ("f(x) = [a+b]* $1", "FX ab", "no")
    apart = pages.rollout(3, "", pieces=["for", "ty", " two"], logprobs=[-1, -2, -3], length=3)
    made = [pages.group(0, "p", [*(pages.rollout(i, text) for i, text in enumerate(texts)), apart])]
    opened = shown(pages.data(pages.run(made=made)), "#rollouts")
    opened.page.keyboard.press("/")
    opened.page.keyboard.type("[A+b]*")
    counted(opened, "1 of 4 rollouts")
    assert opened.texts(f"{READ} mark") == ["[a+b]*"]
    opened.page.keyboard.press("Escape")
    assert opened.page.evaluate("document.activeElement.id") != "search"
    follow(opened, "q", "rty t")  # over the ends of tokens
    assert opened.texts(f"{READ} mark") == ["r", "ty", "t"]
    assert "".join(opened.page.locator(READ).all_text_contents()) == "forty two"


def where(opened):
    return opened.texts(".where")[0]


def test_keys_select_the_next_rollout_or_group(shown):
    opened = shown(place="#rollouts")
    seen = []
    for key in ("j", "j", "k", "ArrowRight", "ArrowLeft", "n", "n", "p"):
        opened.page.keyboard.press(key)
        seen.append(where(opened).replace(" · 4 in the group", "").removeprefix("step 0 › "))
    assert seen == [f"q{g} › rollout {i}" for g, i in [(0, 1), (0, 2), (0, 1), (0, 2), (0, 1), (1, 0), (2, 0), (1, 0)]]
    opened.page.locator("#list").focus()
    opened.page.keyboard.press("ArrowDown")
    assert "q1 › rollout 1" in where(opened)
    assert opened.page.locator("#list").get_attribute("aria-activedescendant") == opened.page.locator(
        "[aria-selected=true]"
    ).get_attribute("id")
    opened.page.keyboard.press("?")
    assert opened.page.get_by_role("dialog", name="Keys").is_visible()
    opened.page.keyboard.press("j")  # not while the help is open
    opened.page.keyboard.press("Escape")
    assert "q1 › rollout 1" in where(opened)


def test_letters_in_a_text_field_are_no_commands(shown):
    opened = shown(place="#rollouts")
    opened.page.locator("#search").fill("")
    opened.page.locator("#search").press_sequentially("jn1?")
    assert "q0 › rollout 0" in where(opened) or opened.texts(".nothing")
    assert opened.page.evaluate("document.body.dataset.view") == "rollouts"


def test_a_link_leads_back_to_the_same_rollout_and_filters(shown):
    first = shown(place="#rollouts")
    first.page.keyboard.press("n")
    first.page.keyboard.press("j")
    first.page.keyboard.press("g")
    first.page.locator("[data-verdict=wrong]").click()
    first.page.wait_for_url(lambda url: "verdict=wrong" in url and "mode=group" in url)
    place = first.page.evaluate("location.hash")
    again = shown(place=place)
    assert where(again) == where(first)
    assert len(again.texts("article.column")) == 4
    counted(again, "9 of 36 rollouts")
    assert again.page.evaluate("location.hash") == place


def test_the_browsers_back_leads_to_the_view_before(shown):
    opened = shown()
    for view in ("rollouts", "metrics"):
        opened.page.get_by_role("link", name=view, exact=True).click()
    opened.page.go_back()
    opened.page.wait_for_selector("body[data-view=rollouts] #list")


def test_the_facts_of_a_rollout_are_beside_it(shown):
    odd = pages.rollout(
        0,
        "so 42",
        kind="failed",
        parts={"answer": 1.0, "format": -0.5},
        cause="timeout",
        detail="took 9 s",
        reason="failed: timeout",
        kept=False,
        trained=False,
    )
    opened = shown(pages.data(pages.run(made=[pages.group(7, "p7", [odd], prompt="six by seven?")])), "#rollouts")
    facts = dict(zip(opened.texts(".facts dt"), opened.texts(".facts dd"), strict=True))
    assert facts["parts"] == "answer 1, format −0.5"
    assert facts["reward"] == "–"
    assert facts["verifier"] == "failed: timeout"
    assert facts["detail"] == "took 9 s"
    assert facts["answer found"] == facts["expected"] == "42"
    assert opened.texts(".badges .badge") == ["! failed", "not kept", "○ not trained: failed: timeout"]
    assert opened.texts(".prompt .foreign") == ["six by seven?"]


def test_a_token_that_is_focused_or_hovered_shows_its_numbers(shown):
    one = pages.rollout(0, "a b c", logprobs=[0, -0.693, -9], advantages=[0.5, -1, 2], values=[0.1, 0.2, 0.3])
    opened = shown(pages.data(pages.run(made=[pages.group(0, "p", [one])])), "#rollouts")
    tokens = opened.page.locator(f"{READ} .token")
    tokens.nth(0).focus()
    opened.page.keyboard.press("ArrowRight")
    (readout,) = opened.texts(".readout")
    assert [part for part in ("2 of 3", "−0.693", "50%", "advantage −1", "value 0.2") if part not in readout] == []
    tokens.nth(2).hover()
    assert "advantage +2" in opened.texts(".readout")[0]
    assert [tokens.nth(i).get_attribute("class").split()[1] for i in range(3)] == ["level0", "level3", "level8"]
    opened.page.locator("#shade").select_option("advantage")
    assert [tokens.nth(i).get_attribute("class").split()[1] for i in range(3)] == ["more1", "less2", "more4"]
    opened.page.get_by_role("checkbox", name="numbers under tokens").check()
    assert [tokens.nth(i).get_attribute("data-figure") for i in range(3)] == ["+0.5", "−1", "+2"]


def test_the_note_in_a_long_rollout_is_no_token_and_those_after_it_keep_their_places(shown):
    """As rollouts.py writes it: of 1,240 tokens of one character, two at each end are in the file."""
    whole = "x" * 1240
    text = cut(whole, 4)
    pieces = ["x", "x", text[2:-2], "x", "x"]
    numbers = [-0.1, -0.1, None, -0.1, -0.1]
    one = pages.rollout(0, whole, pieces=pieces, logprobs=numbers, length=1240, left_out=1236)
    tokens = shown(pages.data(pages.run(made=[pages.group(0, "p", [one])])), "#rollouts").page.locator(f"{READ} .token")
    assert [i for i in range(5) if "left-out" in tokens.nth(i).get_attribute("class").split()] == [2]
    for place, shown_as in ((1, "token 2 of 1240"), (3, "token 1239 of 1240")):
        tokens.nth(place).hover()
        assert shown_as in tokens.page.locator(".readout").inner_text()


def test_a_rollout_can_be_compared_with_one_of_another_step_or_run(shown):
    runs = [pages.run("mine"), pages.run("yours")]
    opened = shown(pages.data(*runs), "#rollouts?mode=pair&at=0:0:1:q2")
    assert len(opened.texts("article.column")) == 2
    choices = opened.texts("#other option")
    assert len(choices) == 6  # its own group, two more steps, three of the other run
    opened.page.locator("#other").select_option(label=next(text for text in choices if "yours · step 2" in text))
    assert "step 2 prompt 2 sample" in opened.texts("article.column")[1]
    assert "step 0 prompt 2 sample 1" in opened.texts("article.column")[0]


def test_a_link_without_a_matching_rollout_shows_a_message(shown):
    opened = shown(place="#rollouts?at=0:9:0:gone")
    (message,) = opened.texts(".nothing")
    assert "gone" in message
    follow(opened, "q", "zzz")
    (other,) = opened.texts(".nothing")
    assert other != message
    assert other
