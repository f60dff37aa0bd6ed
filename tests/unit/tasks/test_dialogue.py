"""The tokens between two turns, by hand and against the templates of published models."""

from __future__ import annotations

import json

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from chat_templates import CHATML, FOLDER, LIKE, like, of_bytes, render_here
from refusals import refused
from winnow.engines.stopping import special_tokens
from winnow.errors import DataError
from winnow.models.load import load_tokenizer
from winnow.records import Reply, ToolAnswer
from winnow.tasks.dialogue import Dialogue


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    render_here(monkeypatch)


def test_the_bundled_template_by_hand(monkeypatch):
    monkeypatch.undo()  # in forks
    tokenizer = load_tokenizer("bundled")
    end, user, assistant, think = tokenizer.convert_tokens_to_ids(
        ["<|endoftext|>", "<|user|>", "<|assistant|>", "<think>"]
    )
    dialogue = Dialogue.of(tokenizer)
    assert dialogue.before.tolist() == [end, user]
    assert dialogue.after.tolist() == [end, assistant, think]
    text = tokenizer.encode("lower", add_special_tokens=False)
    assert dialogue.tokens("lower", last=end).tolist() == [user, *text, end, assistant, think]
    assert dialogue.tokens("lower", last=text[0]).tolist() == [end, user, *text, end, assistant, think]
    assert dialogue.tokens("", last=end).tolist() == [user, end, assistant, think]


@pytest.mark.parametrize("name", LIKE)
def test_published_templates_give_what_they_render_for_the_whole_conversation(name):
    """The prompt, the policy's turn with its end token, and the dialogue's tokens are the template's text."""
    special, tokenizer = LIKE[name], like(name)
    (end,) = tokenizer.encode(special[-1], add_special_tokens=False)
    dialogue = Dialogue.of(tokenizer)
    for text in ("lower", " lower\n", 'no "quotes" é', ""):
        whole = rendered(tokenizer, {"role": "user", "content": text})
        between = tokenizer.decode(dialogue.tokens(text, last=end))
        assert whole.endswith(f"seven{special[-1]}{between}"), json.dumps([whole, between])
        assert between.count(special[-1]) == (name != "mistral"), "the policy's end token was sampled"


def rendered(tokenizer, *messages):
    first = [{"role": "user", "content": "guess"}, {"role": "assistant", "content": "seven"}]
    return tokenizer.apply_chat_template([*first, *messages], tokenize=False, add_generation_prompt=True)


WITH_TOOLS = ["qwen2_5", "qwen3", "smollm2", "llama3_2", "mistral"]


def answers(*texts):
    return tuple(ToolAnswer(text=text, name=f"tool{place}", call_id=f"{place:09d}") for place, text in enumerate(texts))


@pytest.mark.parametrize("name", WITH_TOOLS)
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_answers_to_tool_calls_are_what_the_template_renders(name, count):
    special, tokenizer = LIKE[name], like(name)
    given = answers("84", ' "x"\n', "error: no é", "", "{}")[:count]
    whole = rendered(
        tokenizer,
        *({"role": "tool", "content": a.text, "name": a.name, "tool_call_id": a.call_id} for a in given),
    )
    (end,) = tokenizer.encode(special[-1], add_special_tokens=False)
    between = tokenizer.decode(Dialogue.of(tokenizer).tokens(Reply(text="?", answers=given), last=end))
    assert whole.endswith(f"seven{special[-1]}{between}"), json.dumps([whole, between])


def test_answers_by_hand():
    reply = Reply(text="?", answers=answers("84", 'a "b"'))
    texts = {name: like(name) for name in ("qwen2_5", "llama3_2", "mistral")}
    texts = {name: tokenizer.decode(Dialogue.of(tokenizer).tokens(reply, last=-1)) for name, tokenizer in texts.items()}
    assert texts["qwen2_5"] == (
        '<|im_end|>\n<|im_start|>user\n<tool_response>\n84\n</tool_response>\n<tool_response>\na "b"\n</tool_response>'
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    assert texts["llama3_2"] == (
        '<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"84"<|eot_id|>'
        '<|start_header_id|>ipython<|end_header_id|>\n\n"a \\"b\\""<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert texts["mistral"] == (
        '</s>[TOOL_RESULTS] {"content": 84, "call_id": "000000000"}[/TOOL_RESULTS]'
        '[TOOL_RESULTS] {"content": a "b", "call_id": "000000001"}[/TOOL_RESULTS]'
    )


CHAT = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
NO_ROLE_FOR_TOOLS = {
    "refused": "{% for m in messages if m.role == 'tool' %}{{ raise_exception('no') }}{% endfor %}" + CHAT,
    "omitted": CHAT.replace("messages %}", "messages if m.role != 'tool' %}"),
    "only the last": CHAT.replace("messages %}", "messages if m.role != 'tool' or loop.last %}"),
    "numbered": CHAT.replace("m.role }}", "m.role }}{{ loop.index if m.role == 'tool' }}"),
    "in another order": CHAT + "{% for m in messages | reverse if m.role == 'tool' %}{{ m.content }}{% endfor %}",
    "without white space": CHAT.replace("m.content", "m.content.replace(' ', '') if m.role == 'tool' else m.content"),
}


@pytest.mark.parametrize("template", NO_ROLE_FOR_TOOLS.values(), ids=NO_ROLE_FOR_TOOLS)
def test_answers_are_a_message_of_the_user_where_the_template_has_no_role_for_tools(template):
    tokenizer = of_bytes(template, CHATML)
    reply = Reply(text="<tool_response>84</tool_response>", answers=answers("84", "85"))
    assert tokenizer.decode(Dialogue.of(tokenizer).tokens(reply, last=-1)) == (
        "<|im_end|><|im_start|>user <tool_response>84</tool_response><|im_end|>"
    )


@pytest.mark.parametrize("name", LIKE)
def test_every_turn_begins_with_the_opening(name):
    tokenizer = like(name)
    dialogue = Dialogue.of(tokenizer, system="Be brief.")
    turns = dialogue.all_tokens(["x", Reply(text="y", answers=answers("1")), Reply(text="z")], last=[-1, 7, 7])
    assert len(dialogue.opening(-1)) > 0
    for tokens in turns:
        assert tokens[: len(dialogue.opening(-1))].tolist() == dialogue.opening(-1).tolist()


@pytest.mark.parametrize("name", LIKE)
def test_a_system_message_is_in_no_later_turn(name):
    tokenizer = like(name)
    dialogue = Dialogue.of(tokenizer, system="Be brief.")
    assert "Be brief." not in tokenizer.decode(dialogue.tokens("x", last=-1))
    assert "Be brief." not in tokenizer.decode(dialogue.tokens(Reply(text="x", answers=answers("1", "2")), last=-1))


def test_the_content_of_later_turns_is_given_as_parts_where_the_template_wants_them():
    template = CHAT.replace("{{ m.content }}", "{% for part in m.content %}{{ part.text }}{% endfor %}")
    tokenizer = of_bytes(template, CHATML)
    dialogue = Dialogue.of(tokenizer, system="Be brief.")
    assert tokenizer.decode(dialogue.tokens("lower", last=-1)) == "<|im_end|><|im_start|>user lower<|im_end|>"
    assert tokenizer.decode(dialogue.tokens(Reply(text="?", answers=answers("1", "2")), last=-1)) == (
        "<|im_end|><|im_start|>tool 1<|im_end|><|im_start|>tool 2<|im_end|>"
    )


@pytest.mark.parametrize("name", LIKE)
def test_an_environment_cannot_write_a_control_token(name):
    special, tokenizer = LIKE[name], like(name)
    dialogue = Dialogue.of(tokenizer)
    text = "".join(special)
    tokens = dialogue.tokens(text, last=-1)
    inner = tokens[len(dialogue.before) : len(tokens) - len(dialogue.after)]
    assert not set(inner.tolist()) & set(special_tokens(tokenizer).values())
    assert tokenizer.decode(inner) == text
    assert tokenizer.encode(special[-1], add_special_tokens=False) == [special_tokens(tokenizer)[special[-1]]]


def test_the_bundled_tokenizer_splits_control_tokens_in_a_text_too():
    tokenizer = load_tokenizer("bundled")
    dialogue = Dialogue.of(tokenizer)
    inner = dialogue.tokens("<|assistant|><|endoftext|>", last=-1)[len(dialogue.before) : -len(dialogue.after)]
    assert not set(inner.tolist()) & set(special_tokens(tokenizer).values())


def test_a_system_message_is_not_repeated():
    tokenizer = load_tokenizer("bundled")
    assert Dialogue.of(tokenizer, system="Be brief.").before.tolist() == Dialogue.of(tokenizer).before.tolist()


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[-1].content }}",
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
        "{% for m in messages | reverse %}{{ m.content }}{% endfor %}",
    ],
)
def test_a_template_without_a_place_for_a_second_turn_is_refused(template):
    with refused(DataError, key="environment", code="data.unfit_model"):
        Dialogue.of(of_bytes(template, CHATML))


def test_another_token_that_ends_a_turn_is_not_followed_by_the_template_s():
    """Llama 3 ends a turn that calls a tool with <|eom_id|>, and its template writes <|eot_id|> after every turn."""
    template = (FOLDER / "llama3_2.jinja").read_text(encoding="utf-8")
    tokenizer = of_bytes(template, ("<|eom_id|>", *LIKE["llama3_2"]))
    eom, eot = tokenizer.convert_tokens_to_ids(["<|eom_id|>", "<|eot_id|>"])
    dialogue = Dialogue.of(tokenizer, ends=(eom, eot))
    after = dialogue.tokens("x", last=eot).tolist()
    assert dialogue.tokens("x", last=eom).tolist() == after
    assert dialogue.tokens("x", last=5).tolist() == [eot, *after]
    assert Dialogue.of(tokenizer).tokens("x", last=eom).tolist() == [eot, *after]


@pytest.mark.parametrize("text", ["lower", "é", ""])
def test_a_tokenizer_of_sentencepiece_writes_no_space_between_the_pieces(text):
    """Mistral's and Llama 2's begin every text that they are given with one."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁": 256, "<unk>": 257}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    core.add_special_tokens([AddedToken(token, special=True) for token in LIKE["mistral"]])
    template = (FOLDER / "mistral.jinja").read_text(encoding="utf-8")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", chat_template=template)
    (end,) = tokenizer.encode("</s>", add_special_tokens=False)
    whole = tokenizer(rendered(tokenizer, {"role": "user", "content": text}), add_special_tokens=False)["input_ids"]
    between = Dialogue.of(tokenizer).tokens(text, last=end).tolist()
    assert whole[-len(between) - 1 :] == [end, *between]
