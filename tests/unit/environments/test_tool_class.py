"""Classes whose public methods are tools: typed arguments, schemas, state per rollout, and a class by a field."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Literal

import numpy as np
import pytest

import winnow
from chat_templates import CHATML, like, of_bytes, render_here
from refusals import refused
from winnow.environments.replay import make_environment, opened
from winnow.environments.tool_class import schemas, tool_environment, tool_names
from winnow.errors import ConfigError
from winnow.options import bind
from winnow.records import Problem, Prompt, Reply, Rollout, ToolAnswer
from winnow.registry import resolve
from winnow.tasks.chat import takes_tools
from winnow.tasks.dialogue import Dialogue
from winnow.tasks.templates import render


class Store:
    """Boxes that are moved to shelves."""

    def __init__(self, capacity: int = 10):
        self.capacity, self.done = capacity, False

    def reset(self, stock: int, **row) -> str:
        self.stock, self.moved = stock, {}
        return f" There are {stock} boxes, and room for {self.capacity} on a shelf."

    def move(self, count: int, shelf: Literal["left", "right"], careful: bool = False) -> str:
        """Move boxes to a shelf.

        Args:
            count: The number of boxes
            shelf: The shelf
            careful: Whether nothing may break
        """
        if self.moved.get(shelf, 0) + count > self.capacity:
            raise KeyError("no room")
        self.moved[shelf] = self.moved.get(shelf, 0) + count
        self.stock -= count
        self.done = not self.stock
        return f"{self.stock} left{' and whole' if careful else ''}"

    def close_shop(self) -> None:
        """Close the shop."""
        self.done = True

    def get_reward(self):
        return {"empty": float(self.stock == 0)}

    def _hidden(self, x):
        return x


class Speaker:
    def reset(self) -> None:
        self.heard = []

    def say(self, text: str, times: int) -> str:
        """Say a text.

        Args:
            text: What to say
            times: How often
        """
        self.heard += [text] * times
        return " ".join(self.heard)

    def get_reward(self, reply):
        return float(len(self.heard) + reply.count("!"))


def prompt(meta=None, opening=" There are 5 boxes, and room for 10 on a shelf.", **more):
    meta = {"stock": 5, **({} if opening is None else {"environment's opening": opening}), **(meta or {})}
    return Prompt(id="p", tokens=np.array([1]), text="?", answer="7", task="t", meta=meta, **more)


def play(environment, *replies, at=None, finish="stop", **options):
    """The answers, and the outcome or the last reply; every answer is given twice, kept and replayed."""
    made = make_environment(environment, options, max_turns=9)
    turns, given = [], []
    for place, reply in enumerate(replies):
        turns.append(reply)
        rollout = Rollout(
            index=0, tokens=np.zeros(0, int), logprobs=np.zeros(0), text="", version=0, turns=tuple(turns),
            finish=finish if place == len(replies) - 1 else "stop",
        )  # fmt: skip
        verdict = made(at or prompt(), rollout, 3)
        assert made(at or prompt(), rollout) == verdict
        if not isinstance(verdict, Reply):
            return given, verdict
        given.append(verdict.text)
        turns.append(verdict.text)
    return given, verdict


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def answered(text):
    return f"<tool_response>\n{text}\n</tool_response>"


def test_calls_have_several_typed_arguments_and_the_state_is_the_rollout_s():
    given, outcome = play(
        Store, call("move", count=2, shelf="left", careful=True), "<call>move 2 right</call>", "I am done"
    )
    assert given == [answered("3 left and whole"), "1 left"]
    assert (outcome.reward, outcome.parts, outcome.correct) == (0.0, {"empty": 0.0}, False)
    assert play(Store, call("move", count="5", shelf="left"))[1].reward == 1.0, "a text of digits is a number"
    assert play(Store, "I am done")[1].parts == {"empty": 0.0}


def test_a_rollout_ends_when_the_object_is_done_after_enough_turns_or_without_room():
    assert play(Store, "<call>close_shop</call>")[1].kind == "wrong"
    calls = ["<call>move 1 left</call>"] * 4
    given, outcome = play(Store, *calls, tool_turns=3)
    assert (given, outcome.kind) == (["4 left", "3 left", "2 left"], "wrong")
    _, outcome = play(Speaker, "<call>say a 2</call>", finish="length", at=prompt(opening=None))
    assert outcome.reward == 2.0, "the reward is that of the state"


def test_the_last_turn_is_the_argument_of_get_reward():
    given, outcome = play(Speaker, call("say", text="a b", times=2), "So!!", at=prompt(opening=None))
    assert given == [answered("a b a b")]
    assert outcome.reward == 4.0


@pytest.mark.parametrize(
    ("turn", "says"),
    [
        (call("move", count=11, shelf="left"), "no room"),
        (call("move", count=1, shelf="top"), "shelf"),
        (call("move", count=1.5, shelf="left"), "count"),
        (call("move", count=1), "[careful]"),
        (call("move", count=1, shelf="left", where="x"), "[careful]"),
        (call("lift", count=1), "no tool 'lift'"),
        (call("_hidden", x=1), "no tool '_hidden'"),
        (call("reset", stock=1), "no tool 'reset'"),
        (call("get_reward"), "no tool 'get_reward'"),
        ("<call>move many left</call>", "count"),
        ("<call>move 1</call>", "[careful]"),
        ("<call>close_shop now</call>", "none"),
    ],
)
def test_what_a_tool_refuses_is_answered_with_an_error(turn, says):
    (given,), verdict = play(Store, turn)
    assert isinstance(verdict, Reply)
    assert "error: " in given
    assert says in given


def test_the_last_argument_in_winnows_own_form_is_the_rest_of_the_text():
    class Note:
        def write(self, title: str, text: str) -> str:
            """Write."""
            return f"{title}|{text}"

        def get_reward(self):
            return 1

    assert play(Note, "<call>write day it was  fine</call>", at=prompt(opening=None))[0] == ["day|it was  fine"]


def test_options_are_the_keyword_parameters_of_the_class():
    bound = bind(resolve("environment", Store), {"capacity": 3, "tool_turns": 2}, key="environment")
    assert bound.options == {"capacity": 3, "tool_turns": 2, "call_form": "auto"}
    assert (bound.name, bound.traits.tools) == ("Store", ("close_shop", "move"))
    at = prompt(opening=" There are 5 boxes, and room for 3 on a shelf.")
    assert "no room" in play(Store, "<call>move 4 left</call>", capacity=3, at=at)[0][0]
    with refused(ConfigError, key="environment.capacity", code="config.value"):
        bind(resolve("environment", Store), {"capacity": "many"}, key="environment")
    with refused(ConfigError, key="environment.colour", code="config.unknown_key"):
        bind(resolve("environment", Store), {"colour": "red"}, key="environment")


def test_the_text_of_reset_is_appended_to_the_question_and_has_to_be_the_same_in_a_rollout():
    bound = bind(resolve("environment", Store), {}, key="environment")
    problem = Problem(id="p", question="Move all.", answer=None, task="t", meta={"stock": 5})
    done = opened(bound, problem)
    assert done.question == "Move all. There are 5 boxes, and room for 10 on a shelf."
    at = Prompt(id="p", tokens=np.array([1]), text="?", answer=None, task="t", meta=done.meta)
    assert play(Store, "<call>move 5 left</call>", at=at)[1].reward == 1.0
    assert (
        play(Store, "<call>move 5 left</call>", at=dataclasses.replace(at, meta={"stock": 5}))[1].cause == "malformed"
    )
    silent = bind(resolve("environment", Speaker), {}, key="environment")
    assert opened(silent, problem) is problem


def test_global_random_numbers_are_those_of_the_prompt_in_reset_and_in_a_rollout():
    class Lottery:
        def reset(self) -> str:
            return f" {random.random()} {np.random.random()}"

        def draw(self) -> str:
            """Draw."""
            return str(random.random())

        def get_reward(self):
            return 0

    bound = bind(resolve("environment", Lottery), {}, key="environment")
    random.seed(1)
    before = random.getstate()
    one, two = (opened(bound, Problem(id=name, question="", answer=None, task="t")) for name in ("p", "q"))
    assert one.question != two.question
    assert random.getstate() == before
    at = Prompt(id="p", tokens=np.array([1]), text="?", answer=None, task="t", meta=one.meta)
    given, _ = play(Lottery, "<call>draw</call>", "<call>draw</call>", at=at)
    assert given[0] != given[1]


def test_a_field_of_the_problem_names_its_class():
    environment = tool_environment({"store": Store, "talk": Speaker})
    talk = prompt({"environment": "talk"}, opening=None)
    assert play(environment, call("say", text="a", times=1), "!", at=talk)[1].reward == 2.0
    assert play(environment, "<call>move 5 left</call>", at=prompt({"environment": "store"}))[1].reward == 1.0
    traits = resolve("environment", environment).traits
    assert traits.tools == ("close_shop", "move", "say")
    assert [one["function"]["name"] for one in traits.schemas({"environment": "talk"})] == ["say"]
    with refused(ConfigError, "'shop'", key="environment", code="config.combination"):
        traits.schemas({"environment": "shop"})


def test_the_schemas_have_types_descriptions_and_required_arguments():
    assert tool_names(Store) == ["close_shop", "move"]
    function = schemas(Store)[1]["function"]
    assert function["description"] == "Move boxes to a shelf."
    assert function["parameters"]["required"] == ["count", "shelf"]
    assert function["parameters"]["properties"] == {
        "count": {"type": "integer", "description": "The number of boxes"},
        "shelf": {"type": "string", "enum": ["left", "right"], "description": "The shelf"},
        "careful": {"type": "boolean", "description": "Whether nothing may break"},
    }


def without(**changes):
    return type("Broken", (), {**{name: value for name, value in vars(Speaker).items() if name[0] != "_"}, **changes})


def plain(self, text):
    """Say.

    Args:
        text: What
    """


def bare(self, text: str):
    pass


async def later(self, text: str):
    """Say.

    Args:
        text: What
    """


def test_a_class_that_is_no_environment_is_refused():
    for broken, says in [
        (without(get_reward=None), "get_reward"),
        (without(say=None), "no tool"),
        (without(later=later), "'later'"),
    ]:
        with refused(ConfigError, says, key="environment", code="config.registration"):
            resolve("environment", broken)
    for broken, says in [(without(say=plain), "'say'"), (without(say=bare), "'say'")]:
        with refused(ConfigError, says, f"{__file__}, line", key="environment", code="config.registration"):
            schemas(broken)


def test_a_registered_class_is_a_member_with_its_traits(monkeypatch):
    monkeypatch.setattr("winnow.registry._ENTRIES", {**winnow.registry._ENTRIES, "environment": {}})
    winnow.register("environment", "speaker", correct_at=3.0)(Speaker)
    entry = resolve("environment", "speaker")
    assert (entry.traits.correct_at, entry.traits.tools) == (3.0, ("say",))
    assert resolve("environment", Speaker) is entry
    assert play("speaker", call("say", text="a", times=1), "!", at=prompt(opening=None))[1].correct is False


IN_FRONT = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BEFORE_THE_LAST_QUESTION = (
    "{% for m in messages %}{% if tools and loop.last and m.role == 'user' %}[{{ tools | tojson }}]{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("template", [IN_FRONT, BEFORE_THE_LAST_QUESTION], ids=["in front", "before the last question"])
def test_a_chat_template_describes_the_tools_of_each_problem(template, monkeypatch):
    render_here(monkeypatch)
    tokenizer = of_bytes(template, CHATML)
    problems = [
        Problem(id=str(place), question=f"Go {place}.", answer=None, task="t", meta={"environment": which})
        for place, which in enumerate(["store", "talk", "store"])
    ]
    traits = resolve("environment", tool_environment({"store": Store, "talk": Speaker})).traits
    rendered = render(
        problems, tokenizer, template="chat", max_prompt_tokens=10_000, schemas=lambda one: traits.schemas(one.meta)
    )
    for place, prompt in enumerate(rendered.prompts):
        assert f"Go {place}." in prompt.text
        assert ("Move boxes to a shelf." in prompt.text) == (place != 1)
        assert ("Say a text." in prompt.text) == (place == 1)
    answers = (ToolAnswer(text="7", name="say", call_id="call00000"),)
    dialogues = [Dialogue.of(tokenizer, tools=tools) for tools in (True, False)]
    for reply in (Reply(text="more"), Reply(text="7", answers=answers)):
        turns = [dialogue.tokens(reply, last=-1).tolist() for dialogue in dialogues]
        assert turns[0] == turns[1], "tools are described once, in the prompt"


def test_a_template_without_a_place_for_tools_is_found():
    assert takes_tools(of_bytes(IN_FRONT, CHATML))
    assert not takes_tools(like("qwen2_5"))
    assert not takes_tools(like("mistral"))


def test_a_tool_may_be_called_done_and_get_reward_may_have_other_parameters():
    class Desk:
        def look(self) -> str:
            """Look."""
            return "a key"

        def done(self) -> str:
            """End."""
            return "bye"

        def get_reward(self, reply, scale=2.0, **more):
            return scale * (reply == "a key")

    given, outcome = play(Desk, "<call>look</call>", "a key", at=prompt(opening=None))
    assert (given, outcome.reward) == (["a key"], 2.0)


def test_a_row_that_reset_refuses_is_named():
    bound = bind(resolve("environment", Store), {}, key="environment")
    row = Problem(id="p", question="Go.", answer=None, task="t", where="rows.jsonl:7")
    with refused(ConfigError, "Store", "rows.jsonl:7", "TypeError", code="config.user_code"):
        opened(bound, row)


def test_a_parameter_with_a_name_of_winnows_is_refused():
    class Named(Store):
        def __init__(self, tool_turns: int = 4):
            super().__init__()

    with refused(ConfigError, "'tool_turns'", key="environment", code="config.registration"):
        resolve("environment", Named)


def test_reset_may_change_what_it_gets():
    class Deck:
        def reset(self, cards: list, **row) -> str:
            self.cards = cards
            return f" The first card is {self.cards.pop()}."

        def draw(self) -> str:
            """Draw."""
            return str(self.cards.pop())

        def get_reward(self):
            return 1

    bound = bind(resolve("environment", Deck), {}, key="environment")
    done = opened(bound, Problem(id="p", question="Go.", answer=None, task="t", meta={"cards": [3, 5, 7]}))
    assert (done.question, done.meta["cards"]) == ("Go. The first card is 7.", [3, 5, 7])
    at = Prompt(id="p", tokens=np.array([1]), text="?", answer=None, task="t", meta=done.meta)
    assert play(Deck, "<call>draw</call>", at=at)[0] == ["5"]
