"""Hostile texts: none is executed or interpreted, and each is shown as text."""

from __future__ import annotations

import json

import report_pages as pages

from winnow.view.text import sanitize

RAN = "window.ran = true; alert(1)"
OF_OBJECTS = ["__proto__", "constructor"]
HOSTILE = [
    f"<script>{RAN}</script>",
    f"</script><script>{RAN}</script>",
    f"</SCRIPT ><script>{RAN}</script>",
    f"<!--<script>{RAN}",
    f"--><script>{RAN}</script>",
    f"<img src=x onerror='{RAN}'>",
    f"<svg onload='{RAN}'>",
    f"<iframe srcdoc='<script>parent.{RAN}</script>'>",
    f"<a href='javascript:{RAN}'>go</a>",
    "<style>* { display: none }</style>",
    "{{data}} {{policy}} {{title}} ${1+1} {{7*7}}",
    "`${alert(1)}` \\u003cscript\\u003e",
    "\x1b]8;;http://x\x07\x00\x08\x7f\x9b31m",
    "a\u202egnp.exe\u2066\u200b\u2028\u2029b",
    "lone \ud800 and \udc00 halves",
    "word" * 2000,
    "z\u0301\u0489" * 500,
    "\n" * 500,
    "𝕏👩‍👩‍👧\U000e0041" * 50,
    "x" * 20_000,  # several times what is shown of a text, or of its tokens, before it is folded
]


def hostile_run(as_tokens: bool):
    made = []
    for i, text in enumerate(HOSTILE):
        other = (
            {"pieces": [text[k : k + 7] for k in range(0, len(text), 7)], "logprobs": None}
            if as_tokens
            else {"pieces": None, "logprobs": None, "text": text}
        )
        short = text[:300]
        wrong = {"extracted": short, "detail": short, "cause": short, "reason": short, "parts": {short: 1.0, "b": 0.0}}
        made.append(
            pages.group(
                i, short, [pages.rollout(0, "", **other, **wrong)], prompt=text[:3000], answer=short, task=short
            )
        )
    names = [text[:200] for text in HOSTILE]
    metrics = {"steps": [0], "columns": {name: {"at": None, "y": [1.0]} for name in [*names, *OF_OBJECTS]}}
    panel = pages.run()["panels"][0]
    panels = [
        panel
        | {
            "title": name,
            "x_label": name,
            "series": [
                panel["series"][0] | dict.fromkeys(("label", "quantity", "note", "color", "style", "band_label"), name)
            ],
        }
        for name in names
    ]
    return pages.run(
        HOSTILE[0],
        made,
        subtitle=HOSTILE[5],
        config={name: {name: name} for name in names},
        metrics=metrics,
        meanings=dict(zip(names, names, strict=True)),
        panels=panels,
        headline=[{"label": name, "value": name, "detail": name} for name in names],
        alarms=[{"step": 0, "name": name, "text": name} for name in names],
        ledger=[{"label": name, "tokens": 1, "rollouts": 1, "share": 1.0, "note": name} for name in names],
    )


def hostile_evaluation():
    changes = [
        pages.change(text[:300], better=bool(i % 2), question=text, gold=text, other_answer=text, model_answer=text)
        for i, text in enumerate(text[:10_000] for text in HOSTILE)
    ]
    pair = pages.evaluated(task=HOSTILE[0], mode=HOSTILE[5], changes=changes, won=len(changes), lost=len(changes))
    models = {"other": HOSTILE[0], "model": HOSTILE[8]}
    return pair | {"name": HOSTILE[6], "models": models, "notes": [text[:300] for text in HOSTILE]}


def unharmed(opened):
    assert opened.page.evaluate("window.ran") is None
    assert (
        opened.page.locator("#main img, #main iframe, #main style, #main script, #main a:not([href^='#'])").count() == 0
    )
    assert opened.overflow() == 0


def test_no_text_of_a_run_or_an_evaluation_is_executed(shown):
    opened = shown(pages.data(hostile_run(as_tokens=False), evaluations=[hostile_evaluation()]))
    opened.page.evaluate("for (const part of document.querySelectorAll('.comparison details')) part.open = true")
    opened.page.wait_for_function("n => document.querySelectorAll('.changed-problem').length === n", arg=len(HOSTILE))
    for view in ("overview", "metrics", "configuration"):
        opened.page.evaluate("view => winnow.place.go({view})", view)
        unharmed(opened)


def test_no_text_of_a_rollout_is_executed(shown):
    for as_tokens in (False, True):
        opened = shown(pages.data(hostile_run(as_tokens)), "#rollouts")
        for i, text in enumerate(HOSTILE):
            assert opened.texts(".where")[0].startswith(f"step {i} ›")
            if len(text) < 1000:
                assert opened.page.evaluate("winnow.model.textOf(winnow.rollouts.current().rollout)") == json.loads(
                    json.dumps(text)
                )
            opened.page.evaluate(
                "i => winnow.place.go({mode: ['', 'group', 'pair'][i % 3], figures: i % 2 ? '1' : ''})", i
            )
            unharmed(opened)
            opened.page.evaluate("winnow.place.go({mode: '', figures: ''})")
            opened.page.keyboard.press("n")


def test_characters_that_reorder_or_hide_are_visible(shown):
    texts = [HOSTILE[12], HOSTILE[13], HOSTILE[14]]
    made = [
        pages.group(
            0, "p", [pages.rollout(i, "", text=text, pieces=None, logprobs=None) for i, text in enumerate(texts)]
        )
    ]
    opened = shown(pages.data(pages.run(made=made)), "#rollouts")
    seen = []
    for _ in texts:
        seen.append(opened.page.locator(".completion .foreign").text_content())
        opened.page.keyboard.press("j")
    assert seen == [sanitize(text) for text in texts]  # as `winnow show` writes them


def test_a_long_text_is_folded_and_shown_whole_on_request(shown):
    text = "y" * 99_999 + "Z"
    made = [pages.group(0, "p", [pages.rollout(0, "", text=text, pieces=None, logprobs=None)])]
    opened = shown(pages.data(pages.run(made=made)), "#rollouts")
    body = ".completion .foreign"
    assert opened.page.evaluate(f"document.querySelector('{body}').textContent.length") == 6000
    opened.page.get_by_role("button", name="show all (100,000 characters)").click()
    opened.page.locator(body).filter(has_text="Z").wait_for()
    assert opened.page.evaluate(f"document.querySelector('{body}').textContent.length") == 100_000


def test_many_tokens_are_folded_too(shown):
    made = [pages.group(0, "p", [pages.rollout(0, "w " * 4000)])]
    opened = shown(pages.data(pages.run(made=made)), "#rollouts")
    assert opened.page.locator(".token").count() < 1600
    opened.page.get_by_role("button", name="show all (4,001 tokens)").click()
    opened.page.locator(".completion .token[data-i='4000']").wait_for()
