"""The tokens between two turns, by hand and against the templates of published models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from refusals import refused
from winnow.engines.stopping import special_tokens
from winnow.errors import DataError
from winnow.models.load import load_tokenizer
from winnow.tasks.dialogue import Dialogue

TEMPLATES = Path(__file__).parents[2] / "fixtures" / "chat_templates"
CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
PUBLISHED = {"qwen2_5": CHATML, "qwen2_5_math": CHATML, "qwen3": CHATML, "llama3_2": LLAMA}


def byte_tokenizer(template, special):
    """A tokenizer of bytes with these special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={character: place for place, character in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True) for token in special])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token=special[0], chat_template=template)


def test_the_bundled_template_by_hand():
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


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_templates_give_what_they_render_for_the_whole_conversation(name):
    """The prompt, the policy's turn with its end token, and the dialogue's tokens are the template's text."""
    special = PUBLISHED[name]
    tokenizer = byte_tokenizer((TEMPLATES / f"{name}.jinja").read_text(), special)
    messages = [{"role": "user", "content": "guess"}, {"role": "assistant", "content": "seven"}]
    messages.append({"role": "user", "content": "lower"})
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    (end,) = tokenizer.encode(special[-1], add_special_tokens=False)
    between = tokenizer.decode(Dialogue.of(tokenizer).tokens("lower", last=end))
    assert whole.endswith(f"seven{special[-1]}{between}"), json.dumps([whole, between])
    assert between.count(special[-1]) == 1, "the end of the environment's turn; that of the policy was sampled"


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_environment_cannot_write_a_control_token(name):
    special = PUBLISHED[name]
    tokenizer = byte_tokenizer((TEMPLATES / f"{name}.jinja").read_text(), special)
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
        Dialogue.of(byte_tokenizer(template, CHATML))
