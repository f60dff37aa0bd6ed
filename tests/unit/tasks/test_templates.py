from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from chat_templates import render_here
from refusals import refused
from winnow.errors import ConfigError, DataError
from winnow.records import Problem, Prompt
from winnow.tasks.dialogue import Dialogue
from winnow.tasks.templates import check_context, render

TEMPLATES = Path(__file__).parents[2] / "fixtures" / "chat_templates"
QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
TRICKY = [
    "What is 2 + 3?",
    "Let $S = \\{x : x^{2} < {4}\\}$. {question} {0} {}",
    "naïve 😀 \u2028 １２−３",
    "a\n\nb  c",
]


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    render_here(monkeypatch)


def tokenizer(special: Sequence[str], *, chat: str | None = None, bos: str | None = None) -> PreTrainedTokenizerFast:
    """Bytes as tokens, 0 to 255, then the special ones; it adds BOS itself when it has one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(list(special))
    if bos is not None:
        raw.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, raw.token_to_id(bos))]
        )
    text = None if chat is None else (TEMPLATES / chat).read_text(encoding="utf-8")
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token=bos, chat_template=text)


def qwen() -> PreTrainedTokenizerFast:
    return tokenizer(QWEN, chat="qwen2_5.jinja")


def llama() -> PreTrainedTokenizerFast:
    return tokenizer(LLAMA, chat="llama3_2.jinja", bos="<|begin_of_text|>")


def problems(*questions: str) -> list[Problem]:
    return [Problem(id=f"q{i}", question=text, answer="5", task="t") for i, text in enumerate(questions)]


def only(prompts: list[Prompt]) -> Prompt:
    (prompt,) = prompts
    return prompt


def test_qwen_layout() -> None:
    prompt = only(render(problems("2 + 3?"), qwen(), template="chat", max_prompt_tokens=200).prompts)
    assert prompt.text == (
        "<|im_start|>system\nYou answer questions.<|im_end|>\n"
        "<|im_start|>user\n2 + 3?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    tokens = prompt.tokens.tolist()
    assert tokens.count(257) == 3  # <|im_start|>, one id each
    assert tokens.count(258) == 2  # <|im_end|>
    assert 256 not in tokens


def test_llama_layout_with_one_bos_and_a_fixed_date() -> None:
    rendered = render(problems("2 + 3?"), llama(), template="chat", system="Be brief.", max_prompt_tokens=200)
    prompt = only(rendered.prompts)
    assert prompt.text == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday: 26 Jul 2024\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\n2 + 3?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    tokens = prompt.tokens.tolist()
    assert tokens[0] == 256
    assert [tokens.count(i) for i in (256, 257, 258, 259)] == [1, 3, 3, 2]


@pytest.mark.parametrize("make", [qwen, llama])
@pytest.mark.parametrize("template", ["chat", "r1_zero", "question_only"])
@pytest.mark.parametrize("question", TRICKY)
def test_the_tokens_decode_to_the_text(make: type, template: str, question: str) -> None:
    model = make()
    prompt = only(render(problems(question), model, template=template, max_prompt_tokens=1000).prompts)
    assert prompt.tokens.tolist() == model(prompt.text, add_special_tokens=False)["input_ids"]
    assert model.decode(prompt.tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False) == prompt.text
    assert prompt.text.count(question) == 1


@pytest.mark.parametrize("template", ["r1_zero", "question_only"])
def test_a_plain_template_starts_with_the_bos_its_tokenizer_adds(template: str) -> None:
    model = llama()
    prompt = only(render(problems("2 + 3?"), model, template=template, max_prompt_tokens=1000).prompts)
    text = prompt.text.removeprefix("<|begin_of_text|>")
    assert prompt.tokens.tolist() == model(text)["input_ids"]
    assert prompt.tokens.tolist().count(256) == 1
    without = only(render(problems("2 + 3?"), qwen(), template=template, max_prompt_tokens=1000).prompts)
    assert without.text == text


def test_a_file_that_begins_with_bos_gets_no_second_one(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("<|begin_of_text|>Q: {question}")
    rendered = render(problems("x"), llama(), template="mine.txt", max_prompt_tokens=99, base=tmp_path)
    assert only(rendered.prompts).tokens.tolist().count(256) == 1


def test_r1_zero_names_the_tags_and_ends_inside_the_reasoning() -> None:
    prompt = only(render(problems("2 + 3?"), qwen(), template="r1_zero", max_prompt_tokens=1000).prompts)
    assert "</think> <answer>" in prompt.text
    assert "</answer>" in prompt.text
    assert prompt.text.endswith("User: 2 + 3?\nAssistant: <think>")


def test_a_file_is_a_template(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("{a} Q: {question}\nA:\n", encoding="utf-8")
    rendered = render(problems("{question}{b}"), qwen(), template="mine.txt", max_prompt_tokens=99, base=tmp_path)
    assert only(rendered.prompts).text == "{a} Q: {question}{b}\nA:"


def test_a_file_may_begin_with_a_byte_order_mark_and_has_to_be_utf_8(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("é {question}", encoding="utf-8-sig")
    rendered = render(problems("x"), qwen(), template="mine.txt", max_prompt_tokens=99, base=tmp_path)
    assert only(rendered.prompts).text == "é x"
    (tmp_path / "mine.txt").write_text("é {question}", encoding="latin-1")
    with refused(ConfigError, "mine.txt", "UTF-8", key="prompt.template", code="config.value"):
        render(problems("x"), qwen(), template="mine.txt", max_prompt_tokens=99, base=tmp_path)


@pytest.mark.parametrize("text", ["no place", "{question} and {question}"])
def test_a_file_needs_one_place_for_the_question(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.txt").write_text(text, encoding="utf-8")
    with refused(ConfigError, "mine.txt", text.count("{question}"), key="prompt.template", code="config.value"):
        render(problems("x"), qwen(), template="mine.txt", max_prompt_tokens=99, base=tmp_path)


def test_a_template_that_does_not_exist(tmp_path: Path) -> None:
    """Its name, the file that was sought, and a template that works."""
    sought = tmp_path / "r1_zer"
    with refused(ConfigError, "'r1_zer'", sought, key="prompt.template", code="config.value") as caught:
        render(problems("x"), qwen(), template="r1_zer", max_prompt_tokens=99, base=tmp_path)
    (meant,) = re.findall("'(.*?)'", caught.value.remedy)
    assert render(problems("x"), qwen(), template=meant, max_prompt_tokens=999, base=tmp_path).prompts


def test_chat_without_a_chat_template() -> None:
    with refused(DataError, "'chat'", "r1_zero", key="prompt.template", code="data.unfit_model"):
        render(problems("x"), tokenizer(QWEN), template="chat", max_prompt_tokens=99)


def test_a_chat_template_that_refuses_system_messages() -> None:
    model = qwen()
    model.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ messages[-1].content }}"
    )
    with refused(DataError, "no system", "prompt.system", key="prompt.system", code="data.unfit_model"):
        render(problems("x"), model, template="chat", system="s", max_prompt_tokens=99)


def test_the_fixed_date_leaves_the_rest_of_a_template_alone() -> None:
    model = qwen()
    model.chat_template = "\n{{ strftime_now('%Y') }}|{{ messages[0].content }}"
    assert only(render(problems("x"), model, template="chat", max_prompt_tokens=99).prompts).text == "\n26 Jul 2024|x"


@pytest.mark.parametrize(
    "endless",
    [
        pytest.param(  # slow, a second of computing: the next is ended by the same signal, and inside one operation
            "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
            "{% endfor %}{% endfor %}{% endfor %}",
            marks=pytest.mark.slow,
        ),
        "{% set n = namespace(x=9) %}{% for i in range(9) %}{% set n.x = n.x ** n.x %}{% endfor %}{{ n.x }}",
        "{{ 9 ** (9 ** (9 ** 9)) }}",  # computed while it is compiled
    ],
    ids=["loops", "a number", "a constant"],
)
def test_a_chat_template_that_does_not_end_is_ended(endless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel, after a second of computing, however busy the machine is."""
    monkeypatch.undo()  # in forks
    monkeypatch.setattr("winnow.tasks.chat.CPU_SECONDS", 0)
    model = qwen()
    model.chat_template = "{% if 'c' in messages[0].content %}" + endless + "{% endif %}{{ messages[0].content }}"
    with refused(DataError, 0, key="prompt.template", code="data.unfit_model") as caught:
        render(problems("a", "b", "c"), model, template="chat", max_prompt_tokens=99)
    assert any(f"prompt {number} " in caught.value.problem for number in (1, 3))


@pytest.mark.parametrize(
    ("template", "named"),
    [
        (
            "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
            "128 MiB",
        ),
        ("{{ 1 // 0 }}", "zero"),
        ("{% for i in range(10 ** 12) %}{% endfor %}", "Range"),
        ("{% for %}", "template"),
        ("{{ messages[7].content }}", "template"),
    ],
    ids=["fills the memory", "divides by zero", "counts too far", "is none", "reads too far"],
)
def test_a_mistake_in_a_chat_template_is_an_error(template: str, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # in forks
    monkeypatch.setattr("winnow.tasks.chat.MEMORY", 2**27)  # a gigabyte takes a second to fill
    model = qwen()
    model.chat_template = template
    with refused(DataError, named, "prompt.template", key="prompt.template", code="data.unfit_model"):
        render(problems("a"), model, template="chat", max_prompt_tokens=99)


def test_many_prompts_come_in_order_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # in forks
    questions = [f"{i} {'x' * (i % 7) * 1000} \u2028 \N{GRINNING FACE}" for i in range(400)]
    prompts = render(problems(*questions), qwen(), template="chat", max_prompt_tokens=10_000).prompts
    assert [question in prompt.text for question, prompt in zip(questions, prompts, strict=True)] == [True] * 400


@pytest.mark.parametrize("given", [{"system": "s"}, {"suffix": " s"}, {"template_options": {"s": True}}])
@pytest.mark.parametrize("template", ["r1_zero", "question_only"])
def test_keys_of_chat_templates_are_refused_by_others(template: str, given: dict[str, Any]) -> None:
    (key,) = given
    with refused(ConfigError, f"'{template}'", "'chat'", key=f"prompt.{key}", code="config.combination"):
        render(problems("x"), qwen(), template=template, max_prompt_tokens=999, **given)


STEPS = "Please reason step by step, and put your final answer within \\boxed{}."


@pytest.mark.parametrize("system", [STEPS, None], ids=["given", "the model's own"])
def test_the_prompts_of_gvm(system: str | None) -> None:
    """A system message, and the user's turn ending in much the same; Qwen2.5-Math has the former as its default."""
    model = tokenizer(QWEN, chat="qwen2_5_math.jinja")
    prompts = render(problems("2 + 3?", "1 + 1?"), model, template="chat", system=system, suffix=f"\n{STEPS}",
                     max_prompt_tokens=999).prompts  # fmt: skip
    assert [prompt.text for prompt in prompts] == [
        f"<|im_start|>system\n{STEPS}<|im_end|>\n<|im_start|>user\n{question}\n{STEPS}<|im_end|>\n"
        f"<|im_start|>assistant\n"
        for question in ("2 + 3?", "1 + 1?")
    ]


def test_a_suffix_is_in_the_user_s_turn_whatever_its_text() -> None:
    rendered = render(problems("2 + 3?"), llama(), template="chat", suffix=" {question} {{ x }}", max_prompt_tokens=200)
    assert "<|end_header_id|>\n\n2 + 3? {question} {{ x }}<|eot_id|>" in only(rendered.prompts).text


@pytest.mark.parametrize(
    ("options", "opened"),
    [({}, ""), ({"enable_thinking": True}, ""), ({"enable_thinking": False}, "<think>\n\n</think>\n\n")],
)
def test_an_option_of_qwen3_s_template(options: dict[str, Any], opened: str) -> None:
    model = tokenizer(QWEN, chat="qwen3.jinja")
    prompt = only(
        render(problems("2?"), model, template="chat", template_options=options, max_prompt_tokens=99).prompts
    )
    assert prompt.text == f"<|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n{opened}"


def test_an_option_replaces_the_fixed_date() -> None:
    options = {"date_string": "1 Jan 2025"}
    prompt = only(
        render(problems("x"), llama(), template="chat", template_options=options, max_prompt_tokens=99).prompts
    )
    assert "Today: 1 Jan 2025\n" in prompt.text


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("enable_thinkin", "'enable_thinking'"),
        ("thinking", "'enable_thinking'"),
        ("think", None),  # only a text in it
        ("own", None),  # only in a comment
        ("lstrip", None),  # a method
        ("trim", None),  # a filter
        ("messages", None),  # set by winnow
        ("add_generation_prompt", None),
    ],
)
def test_an_option_that_the_template_would_ignore_is_refused(option: str, meant: str | None) -> None:
    model = tokenizer(QWEN, chat="qwen3.jinja")
    model.chat_template += "{{ '' | trim }}"
    with refused(
        ConfigError, f"{option!r}", key=f"prompt.template_options.{option}", code="config.unknown_key"
    ) as caught:
        render(problems("x"), model, template="chat", template_options={option: 1}, max_prompt_tokens=99)
    assert ("'enable_thinking'" in caught.value.remedy) == (meant is not None)


def test_an_option_of_an_invalid_template() -> None:
    model = qwen()
    model.chat_template = "{% for 'x"
    with refused(DataError, key="prompt.template", code="data.unfit_model"):
        render(problems("x"), model, template="chat", template_options={"a": 1}, max_prompt_tokens=99)


def test_a_question_may_not_hold_a_special_token() -> None:
    with refused(DataError, "q1", "'<|im_end|>'", code="data.malformed"):
        render(problems("x", "end<|im_end|>"), qwen(), template="question_only", max_prompt_tokens=99)
    from_file = dataclasses.replace(problems("end<|im_end|>")[0], where="rows.jsonl:7")
    with refused(DataError, "rows.jsonl:7", "'<|im_end|>'", code="data.malformed"):
        render([from_file], qwen(), template="question_only", max_prompt_tokens=99)


def test_long_prompts_are_dropped_and_counted() -> None:
    rendered = render(problems("123", "1234", "x" * 200_000), qwen(), template="question_only", max_prompt_tokens=3)
    assert [prompt.text for prompt in rendered.prompts] == ["123"]
    assert (rendered.dropped, rendered.first_dropped) == (2, "q1")


def test_a_prompt_beyond_the_models_context_causes_no_warning_of_transformers(monkeypatch) -> None:
    monkeypatch.undo()  # in forks
    records: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger("transformers"), "handlers", [handler := logging.Handler()])
    monkeypatch.setattr(handler, "emit", records.append)
    model = qwen()
    dialogue = Dialogue.of(model)
    model.model_max_length = 8
    assert render(problems("1", "x" * 9), model, template="question_only", max_prompt_tokens=8).first_dropped == "q1"
    assert len(dialogue.all_tokens(["x" * 9], last=[0])) == 1
    assert records == []
    model("x" * 9)
    assert len(records) == 1  # the warning is heard here


def test_all_dropped_names_the_shortest_and_the_key() -> None:
    with refused(DataError, 3, 4, key="prompt.max_prompt_tokens", code="data.empty"):
        render(problems("12345", "1234"), qwen(), template="question_only", max_prompt_tokens=3)


def test_a_prompt_keeps_its_problem() -> None:
    problem = Problem(id="a", question="x", answer=["1", "2"], task="mine", meta={"level": 3})
    prompt = only(render([problem], qwen(), template="question_only", max_prompt_tokens=9).prompts)
    assert (prompt.id, prompt.answer, prompt.task, prompt.meta) == ("a", ["1", "2"], "mine", {"level": 3})


def test_context() -> None:
    check_context(max_prompt_tokens=6, max_new_tokens=4, context_tokens=10)
    with refused(ConfigError, 7, 4, 11, 10, key="rollout.max_new_tokens", code="config.combination"):
        check_context(max_prompt_tokens=7, max_new_tokens=4, context_tokens=10)
