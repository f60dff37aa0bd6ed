"""The page of `winnow report --serve`: steps are fetched when they are chosen, and failures are shown."""

from __future__ import annotations

import json

import pytest
import report_pages as pages

URL = "http://report.test/"


@pytest.fixture
def served(watched):
    """served(place): the page from a server that has steps 0 and 1 of one run, and fails for step 2."""

    def serve(place=""):
        made = list(pages.groups())
        own = pages.run(made=made) | {"groups": []}
        opened = watched()
        html = pages.assemble(pages.data(own, served=True), served=True)

        def answer(route):
            path = route.request.url.removeprefix(URL)
            if path.startswith("runs/0/steps/2"):
                route.fulfill(status=500, body="step 2 cannot be read: <b>torn</b>")
            elif path.startswith("runs/"):
                step = int(path.rsplit("/", 1)[1])
                route.fulfill(
                    content_type="application/json",
                    body=json.dumps({"groups": [pages.as_sent(g) for g in made if g["step"] == step]}),
                )
            else:
                route.fulfill(content_type="text/html", body=html)

        opened.page.route("**/*", answer)
        opened.page.goto(URL + place)
        return opened

    return serve


def test_a_step_is_read_when_it_is_chosen_and_filters_count_rollouts(served):
    opened = served("#rollouts")
    assert len(opened.texts(".nothing")) == 1
    step = opened.page.get_by_role("combobox", name="step")
    step.select_option("1")
    opened.page.locator(".counter").filter(has_text="12 rollouts loaded").wait_for()
    step.select_option("0")
    opened.page.locator(".counter").filter(has_text="12 of 24 rollouts loaded").wait_for()
    step.select_option("")
    opened.page.locator(".counter").filter(has_text="24 rollouts loaded").wait_for()
    assert opened.page.locator("#list [role=option]").first.get_attribute("aria-label").startswith("step 0,")
    assert [url.removeprefix(URL) for url in opened.requests if "runs/" in url] == ["runs/0/steps/1", "runs/0/steps/0"]


def test_a_link_reads_the_step_that_it_names(served):
    opened = served("#rollouts?at=0:1:2:q1")
    opened.page.locator(".where").filter(has_text="step 1 › q1 › rollout 2").wait_for()


def test_an_error_of_the_server_is_shown_as_text(served):
    opened = served("#rollouts?step=2")
    opened.page.get_by_role("alert").wait_for()
    (trouble,) = opened.texts(".trouble")
    assert ("500" in trouble, "step 2 cannot be read: <b>torn</b>" in trouble) == (True, True)
    (error,) = opened.wrong
    assert "500" in error
    opened.wrong.clear()


def test_the_page_follows_its_runs(watched):
    """A newer step is drawn, the place and the rollouts stay, and what is unchanged costs no answer."""
    made = list(pages.groups(steps=1))
    own = pages.run(made=made) | {"groups": []}
    later = json.loads(json.dumps(own))
    later["metrics"]["columns"]["reward/mean"]["y"][-1] = 0.9
    later["steps"].append({"step": 1, "groups": 1, "rollouts": 4, "included": 0})
    opened, state, answers = watched(), {"data": own, "tag": '"a"'}, []

    def answer(route):
        path = route.request.url.removeprefix(URL)
        if path == "data":
            known = route.request.headers.get("if-none-match") == state["tag"]
            answers.append(known)
            text = json.dumps({"runs": [{**state["data"], "groups": []}]})
            route.fulfill(status=304) if known else route.fulfill(
                content_type="application/json", body=text, headers={"ETag": state["tag"]}
            )
        elif path.startswith("runs/"):
            text = json.dumps({"groups": [pages.as_sent(g) for g in made]})
            route.fulfill(content_type="application/json", body=text)
        else:
            route.fulfill(content_type="text/html", body=pages.assemble(pages.data(own, served=True), served=True))

    opened.page.route("**/*", answer)
    opened.page.goto(URL + "#rollouts?step=0")
    opened.page.locator(".counter").filter(has_text="12 rollouts loaded").wait_for()
    now = "winnow.refresh.now()"
    assert [opened.page.evaluate(now) for _ in range(2)] == [False, False]
    assert True in answers
    state.update(data=later, tag='"b"')
    assert opened.page.evaluate(now) is True
    opened.page.locator(".counter").filter(has_text="12 rollouts loaded").wait_for()
    assert "1" in opened.page.get_by_role("combobox", name="step").locator("option").evaluate_all(
        "options => options.map((option) => option.value)"
    )
    opened.page.evaluate("winnow.place.go({view: 'metrics'})")
    opened.page.get_by_role("img", name="reward/mean over training step. reward/mean: from 0.2 to 0.9.").wait_for()
