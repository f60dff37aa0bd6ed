"""Every prompt of a chat template contains its question and its system message, or is refused."""

from __future__ import annotations

import signal

import pytest

from chat_templates import CHATML, LIKE, like, of_bytes, render_here
from refusals import refused
from winnow.errors import DataError
from winnow.records import Message
from winnow.tasks import chat as chat_module
from winnow.tasks.chat import chat_texts, is_written, takes_parts

QUESTIONS = [
    "What is 2 + 3?",
    "  blanks around \n\n",
    "2",
    "",
    " \n",
    'a "quoted" \\boxed{<b>} & c',
    "naïve 😀 \u2028 １２−３",
    "tabs\tand\n\n\nlines",
    "{{ messages }} {% raw %}",
]
BRIEF = "Be brief.\nUse 'quotes' & \"more\"."
HEAD = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
TAIL = "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
OF_PARTS = HEAD + "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}" + TAIL


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    render_here(monkeypatch)


def chat(content):
    """A tokenizer whose template writes every message as this expression of `m`."""
    return of_bytes(f"{HEAD}{{{{ {content} }}}}{TAIL}", CHATML)


@pytest.mark.parametrize("name", LIKE)
@pytest.mark.parametrize("system", [None, BRIEF])
def test_templates_like_the_published_ones_contain_both(name, system):
    texts = chat_texts(QUESTIONS, like(name), system, {})
    assert [question.strip() in text for question, text in zip(QUESTIONS, texts, strict=True)] == [True] * 9
    assert all((BRIEF in text) == (system is not None) for text in texts)
    assert takes_parts(like(name), {}, system=system is not None) is False


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gemma3", "<bos><start_of_turn>user\nBe brief.\n\n2?<end_of_turn>\n<start_of_turn>model\n"),
        ("mistral", "<s>[INST] Be brief.\n\n2?[/INST]"),
        ("phi", "<|system|>Be brief.<|end|><|user|>2?<|end|><|assistant|>"),
        (
            "smollm2",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
)
def test_prompts_by_hand(name, text, monkeypatch):
    monkeypatch.undo()  # in forks
    assert chat_texts(["2?"], like(name), "Be brief.", {}) == [text]


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_a_template_of_parts_gets_parts(system):
    tokenizer = of_bytes(OF_PARTS, CHATML)
    assert takes_parts(tokenizer, {}, system=system is not None) is True
    first = "" if system is None else "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert chat_texts(["2?", " x"], tokenizer, system, {}) == [
        f"{first}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant" for question in ("2?", " x")
    ]


@pytest.mark.parametrize(
    "content",
    [
        "m.content[0].text",
        "m.content | map(attribute='text') | join",
        "raise_exception('parts') if m.content is string else m.content[0].text",
        "m.content[0]['text'] | trim",
    ],
)
def test_other_templates_of_parts_get_parts(content):
    (text,) = chat_texts(["What is 2 + 3?"], chat(content), "Be brief.", {})
    assert text.count("What is 2 + 3?") == text.count("Be brief.") == 1


@pytest.mark.parametrize(
    "content",
    [
        "m.content | trim",
        "m.content.split() | join(' ')",
        "m.content | tojson",
        "m.content | escape",
        "'\\n'.join(m.content.splitlines())",
    ],
)
def test_white_space_and_escapes_are_no_omission(content):
    texts = chat_texts([question for question in QUESTIONS if "\u2028" not in question], chat(content), BRIEF, {})
    assert all("assistant" in text for text in texts)


@pytest.mark.parametrize(
    "content",
    [
        "''",
        "m.role",
        "m.content | length",
        "m.content[:9]",
        "m.content | upper",
        "m.content if m.content is not string",  # a list that would be written as data
        "m.content | tojson if m.content is not string",
        "m.content if m.role != 'user'",
    ],
)
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_a_template_that_omits_the_question_is_refused(content, system):
    with refused(DataError, key="prompt.template", code="data.unfit_model"):
        chat_texts(["2"], chat(content), system, {})


def test_a_question_that_is_elsewhere_in_the_template_is_omitted_all_the_same():
    tokenizer = of_bytes("Cutting knowledge: 2 December 2023. {{ messages[7] }}", CHATML)
    with refused(DataError, key="prompt.template", code="data.unfit_model"):
        chat_texts(["2"], tokenizer, None, {})


@pytest.mark.parametrize(
    "content",
    ["m.content if m.role == 'user'", "raise_exception('no system') if m.role == 'system' else m.content"],
)
def test_a_template_that_omits_or_refuses_the_system_message_is_refused(content):
    with refused(DataError, key="prompt.system", code="data.unfit_model"):
        chat_texts(["2"], chat(content), "Be brief.", {})
    assert len(chat_texts(["2"], chat(content), None, {})) == 1, "the remedy"


def test_a_default_in_the_place_of_the_system_message_is_refused():
    default = "m.content if m.role == 'user' else 'You are helpful.'"
    with refused(DataError, key="prompt.system", code="data.unfit_model"):
        chat_texts(["2"], chat(default), "You are helpful.", {})


def test_one_prompt_without_its_question_is_refused():
    tokenizer = chat("m.content if 'secret' not in m.content else ''")
    assert len(chat_texts(["one", "two"], tokenizer, None, {})) == 2
    with refused(DataError, "'a secret'", key="prompt.template", code="data.unfit_model"):
        chat_texts(["one", "a secret"], tokenizer, None, {})
    with refused(DataError, key="prompt.system", code="data.unfit_model"):
        chat_texts(["one"], tokenizer, "a secret", {})


def test_a_refusal_of_one_prompt_is_an_error():
    tokenizer = chat("raise_exception('odd') if 'odd' in m.content else m.content")
    with refused(DataError, "odd", key="prompt.template", code="data.unfit_model"):
        chat_texts(["one", "odd"], tokenizer, None, {})


@pytest.mark.parametrize(
    ("content", "text", "written"),
    [
        ("a b", "x a\n b y", True),
        ("a b", "ab", True),
        ('"', '\\"', True),
        ("é", "\\u00e9", True),
        ("<", "&lt;", True),
        ("'", "&#39;", True),
        ("a b", "a", False),
        ("a", "A", False),
        ("", "", True),
    ],
)
def test_is_written(content, text, written):
    assert is_written(content, text) is written


@pytest.mark.parametrize("once", [True, False])
def test_a_fork_that_stands_still_is_replaced(tmp_path, monkeypatch, once):
    monkeypatch.undo()  # in forks
    begin, begun = chat_module._child, tmp_path / "begun"

    def stand_still(*arguments):
        if not (once and begun.exists()):
            begun.touch()
            signal.pause()
        begin(*arguments)

    monkeypatch.setattr(chat_module, "_child", stand_still)
    monkeypatch.setattr(chat_module, "STILL_SECONDS", 0.5)
    if once:
        monkeypatch.setattr(chat_module, "FORKS", 1000)  # a busy machine may give a child no time for a second
        assert "2 + 3?" in chat_texts(QUESTIONS[:1], like(next(iter(LIKE))), None, {})[0]
    else:
        with refused(DataError, key="prompt.template", code="data.unfit_model"):
            chat_texts(QUESTIONS[:1], like(next(iter(LIKE))), None, {})


def test_a_refused_conversation_is_named_with_a_remedy_that_can_be_followed():
    turns = "raise_exception('turns') if not loop.first and loop.previtem.role == m.role else m.content"
    earlier = [[], [Message("user", "first")]]
    with refused(DataError, "turns", "'why?'", key="prompt.template", code="data.unfit_model") as caught:
        chat_texts(["one", "why?"], chat(turns), None, {}, earlier)
    assert "r1_zero" not in caught.value.remedy
