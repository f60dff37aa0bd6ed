"""Tool calls in the forms of several models, by hand; malformed ones, and hostile texts."""

from __future__ import annotations

import json
import time

import pytest

from chat_templates import FOLDER, LIKE
from winnow.environments.tool_calls import FORMS, MOST, Call, Malformed, form_of, read_calls

ONE, TWO = Call("add", {"a": 1, "b": [2]}), Call("search", {"query": "{x} </tool_call> é"})
BAD = "malformed"


def of(call, key="arguments", **more):
    return json.dumps({"name": call.name, key: call.arguments, **more})


def tags(*calls):
    return "".join(f"<tool_call>\n{call if isinstance(call, str) else of(call)}\n</tool_call>" for call in calls)


READ = {  # form, text: the calls
    ("hermes", tags(ONE)): [ONE],
    ("hermes", f"I need both. {tags(ONE, TWO, ONE)} Then I go on."): [ONE, TWO, ONE],
    ("hermes", f"<think>add or search?</think>\n\n{tags(TWO)}"): [TWO],
    ("hermes", f"add or search?</think>\n\n{tags(TWO)}"): [TWO],
    ("hermes", tags(of(ONE, "parameters"))): [ONE],
    ("hermes", tags('{"type": "function", "function": {"name": "add", "arguments": {}}, "id": "7"}')): [
        Call("add", {}, id="7")
    ],
    ("hermes", f"{tags(ONE)}<call>search a b</call>{tags(TWO)}"): [
        ONE,
        Call("search", {"text": "a b"}, own=True),
        TWO,
    ],
    ("hermes", "<tool_call>" + of(Call("f", {"x": "<think><tool_call>"})) + "</tool_call>"): [
        Call("f", {"x": "<think><tool_call>"})
    ],
    ("llama3", of(ONE, "parameters")): [ONE],
    ("llama3", f"<|python_tag|>{of(ONE, 'parameters')}"): [ONE],
    ("llama3", f"{of(ONE, 'parameters')}; {of(TWO)};{of(ONE)}"): [ONE, TWO, ONE],
    ("llama3", f"{of(ONE, 'parameters')}\n{of(TWO)}, {of(ONE)}"): [ONE, TWO, ONE],
    ("llama3", f'\n {{ "type" : "function", {of(ONE, "parameters")[1:]}'): [ONE],
    ("llama3", f"I add. {of(ONE, 'parameters')} I search. {of(TWO)}"): [ONE, TWO],
    ("llama3", f"hm</think>\n{of(ONE, 'parameters')}"): [ONE],
    ("llama3", '{"answer": {"name": "x"}}'): [],
    ("llama3", 'The set {1, 2} and {"name": "Bob", "age": 3}'): [],
    ("mistral", f"[TOOL_CALLS] [{of(ONE, id='abcdefghi')}, {of(TWO)}]"): [
        Call("add", ONE.arguments, id="abcdefghi"),
        TWO,
    ],
    ("mistral", f"I add.[TOOL_CALLS]{of(ONE)}"): [ONE],
    ("mistral", '[TOOL_CALLS]add[ARGS]{"a": 1, "b": [2]}[TOOL_CALLS]f.g-1[ARGS]{}'): [ONE, Call("f.g-1", {})],
    ("mistral", '[TOOL_CALLS]add{"a": 1, "b": [2]}'): [ONE],
    ("mistral", "[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{}g[ARGS]{}"): [Call("f", {}, id="a1b2c3d4e"), Call("g", {})],
    ("mistral", tags(ONE)): [],
    ("auto", f"{tags(ONE)}<call>f</call>"): [ONE, Call("f", {"text": ""}, own=True)],
    ("auto", "12 * 7 is 84</think> <answer>84</answer>"): [],
    ("llama3", "<call>calculator 12 * 7</call>"): [Call("calculator", {"text": "12 * 7"}, own=True)],
}


@pytest.mark.parametrize(("form", "text"), READ)
def test_calls_by_hand(form, text):
    assert read_calls(text, form) == READ[form, text]


NOT_READ = {  # form, text: None for every call that is not read
    ("hermes", "<tool_call>" + of(ONE)): [None],
    ("hermes", f"<tool_call>{of(ONE)} {tags(TWO)}"): [None, TWO],
    ("hermes", f"<tool_call>{of(ONE)[:-5]}"): [None],
    ("hermes", tags(of(ONE)[:-1], TWO)): [None, TWO],
    ("hermes", tags(of(ONE) + "}", TWO)): [None, TWO],
    ("hermes", "<tool_call> <tool_call>" + of(ONE) + "</tool_call>"): [None, ONE],
    ("hermes", tags("", "add(1)", "[1]", "null", '"add"', "{'name': 'add'}")): [None] * 6,
    ("hermes", tags('{"name": "add"}', '{"arguments": {}}', '{"name": "", "arguments": {}}')): [None] * 3,
    ("hermes", tags('{"name": 1, "arguments": {}}', '{"name": "f", "arguments": "{}"}')): [None] * 2,
    ("hermes", tags('{"name": "f", "arguments": [1]}', '{"name": "f", "arguments": null}')): [None] * 2,
    ("hermes", tags('{"name": "f", "arguments": {}, "parameters": {}}')): [None],
    ("hermes", f"<think>{tags(ONE)}</think>{tags(TWO)}"): [None, TWO],
    ("hermes", f"{tags(ONE)} {tags(ONE)}</think>{tags(TWO)}"): [None, None, TWO],
    ("hermes", f"<think>{tags(ONE)}"): [None],
    ("hermes", f"<think>a <tool_call> b</think>{tags(TWO)}<think>{tags(ONE)}</think>"): [None, TWO, None],
    ("hermes", "<think><call>f 1</call></think><call>"): [None, None],
    ("hermes", "<call> </call><call>f 1<call>f</call>"): [None, None, Call("f", {"text": ""}, own=True)],
    ("llama3", of(ONE, "parameters")[:-1]): [None],
    ("llama3", "<|python_tag|>print(1)"): [None],
    ("llama3", f"<|python_tag|>{of(ONE)[:-1]}"): [None],
    ("llama3", f"{of(ONE)}; {of(TWO)[:-1]}"): [ONE, None],
    ("llama3", '{"name": "f", "parameters": "x"}'): [None],
    ("llama3", f"<|python_tag|> 1; {{}}; {of(ONE)}"): [None, None, ONE],
    ("llama3", '<|python_tag|> {"name": "f", "parameters": {x}}'): [None],
    ("llama3", '{"function": "f", "parameters": {}}'): [None],
    ("llama3", f"<think>{of(ONE)}</think>{of(TWO)}"): [None, TWO],
    ("mistral", "[TOOL_CALLS]"): [None],
    ("mistral", "[TOOL_CALLS] []"): [None],
    ("mistral", f"[TOOL_CALLS] [{of(ONE)}"): [None],
    ("mistral", f"[TOOL_CALLS] [{of(ONE)}, 1, {of(TWO)}]"): [ONE, None, TWO],
    ("mistral", '[TOOL_CALLS]add[ARGS]{"a"[TOOL_CALLS]add[ARGS][1]'): [None, None],
    ("mistral", f"<think>[TOOL_CALLS]{of(ONE)}</think>[TOOL_CALLS]{of(TWO)}"): [None, TWO],
}


@pytest.mark.parametrize(("form", "text"), NOT_READ)
def test_every_call_that_is_not_read_is_returned_in_its_place(form, text):
    read = [None if isinstance(call, Malformed) else call for call in read_calls(text, form)]
    assert read == NOT_READ[form, text]
    assert all(call.reason for call in read_calls(text, form) if isinstance(call, Malformed))


@pytest.mark.parametrize(
    ("form", "many"),
    [
        ("hermes", lambda n: tags(*[ONE] * n)),
        ("hermes", lambda n: "<call>f 1</call>" * n),
        ("hermes", lambda n: tags(ONE) + "<tool_call>" * (n - 1)),
        ("llama3", lambda n: "; ".join([of(ONE)] * n)),
        ("llama3", lambda n: f"<|python_tag|>{of(ONE)}" * n),
        ("mistral", lambda n: f"[TOOL_CALLS] [{', '.join([of(ONE)] * n)}]"),
        ("mistral", lambda n: "[TOOL_CALLS]" + "f[ARGS]{}" * n),
    ],
)
def test_the_calls_of_a_turn_are_bounded(form, many):
    assert len(read_calls(many(MOST), form)) == MOST
    for count in (MOST + 1, 1000):
        calls = read_calls(many(count), form)
        assert calls[:-1] == read_calls(many(MOST), form)
        assert isinstance(calls[-1], Malformed)
        assert str(MOST) in calls[-1].reason
    thought = read_calls(many(1000) + "</think>", form)
    assert len(thought) == MOST + 1
    assert all(isinstance(call, Malformed) for call in thought)


HOSTILE = [
    *("{", "[", "<tool_call>", "<call>", "[TOOL_CALLS]", "<|python_tag|>", "</tool_call>", "<think>", "</think>", "\\"),
    *('<tool_call>{"name":', '{"name": "f", "parameters": ', '{"name": "', "[TOOL_CALLS]f", "[TOOL_CALLS]f{}", "f{}"),
    *('<tool_call>["', '{ "name" : "f" , ', "</think>{ ", " ", "\ud800", "<tool_call>[[", '[TOOL_CALLS][{"name":'),
]


@pytest.mark.parametrize("form", FORMS)
def test_hostile_texts_take_time_in_proportion_to_their_length(form):
    """CPU seconds of 5,000 repetitions; a quadratic reader takes many."""
    for text in HOSTILE:
        for opening in ("", "<tool_call>", "<|python_tag|>", "[TOOL_CALLS]", '{"name": "f", "parameters": {"x": '):
            started = time.process_time()
            assert len(read_calls(opening + text * 5_000, form)) <= MOST + 1
            assert time.process_time() - started < 5, (opening, text)


def test_brackets_that_are_nested_100000_times_are_malformed():
    (call,) = read_calls(tags("[" * 100_000), "hermes")
    (other,) = read_calls('[TOOL_CALLS]f[ARGS]{"x": ' + '{"x": ' * 100_000, "mistral")
    assert isinstance(call, Malformed)
    assert isinstance(other, Malformed)


def test_an_integer_of_many_digits_is_malformed():
    (call,) = read_calls(tags('{"name": "f", "arguments": {"x": ' + "9" * 10_000 + "}}"), "hermes")
    assert isinstance(call, Malformed)


@pytest.mark.parametrize("name", LIKE)
def test_the_form_is_that_of_the_template(name):
    forms = {"llama3_2": "llama3", "mistral": "mistral"}
    assert form_of((FOLDER / f"{name}.jinja").read_text(encoding="utf-8")) == forms.get(name, "hermes")


def test_every_form_reads_its_own_marks_and_no_other_form_does():
    texts = {"hermes": tags(ONE), "llama3": of(ONE), "mistral": f"[TOOL_CALLS]{of(ONE)}"}
    assert texts.keys() == FORMS.keys()
    assert [name for name in FORMS if read_calls(texts["hermes"], name) == [ONE]] == ["llama3", "hermes"]
    assert [name for name in FORMS if read_calls("[TOOL_CALLS]f{}", name)] == ["mistral"]
    assert [name for name in FORMS if read_calls(of(ONE), name)] == ["llama3"]
