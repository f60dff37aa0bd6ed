"""The tools of a task of the verifiers library, with stand-ins for its servers (tests/with_verifiers has it)."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from winnow.environments.tool_calls import Call, Malformed
from winnow.environments.verifiers_tools import Tools


def run(coroutine: Any) -> Any:
    """`asyncio.run` in a thread of its own: another test's browser may keep a loop running in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


class State:
    """A pydantic model's part that is used."""

    def __init__(self, total=0):
        self.total = total

    def model_dump_json(self):
        return json.dumps({"total": self.total})

    @classmethod
    def model_validate_json(cls, text):
        return cls(**json.loads(text))


class Server:
    """A toolset: `register` adds its tools, each of which pulls the state, runs, and pushes the state."""

    def __init__(self, name="", log=None):
        self.server_name, self.log, self.state = name, log, State()
        self._state_adapter = SimpleNamespace(
            validate_json=State.model_validate_json, dump_json=lambda state: state.model_dump_json().encode()
        )
        self._exit_stack = contextlib.AsyncExitStack()
        self._exit_stack.callback(lambda: log.append("closed"))

    async def setup(self):
        self.log.append("setup")

    async def setup_task(self, data):
        self.log.append(data)

    def register(self, mcp):
        async def add(number):
            self.state = await self._pull_state()
            before = self._state_adapter.dump_json(self.state)
            if number < 0:
                raise ValueError("only positive numbers")
            self.state.total += number
            await self._push_state(before)
            return [SimpleNamespace(text=str(self.state.total)), SimpleNamespace(text="more")]

        mcp.tools["add"] = add


class MCPServer:
    def __init__(self, name):
        self.name, self.tools = name, {}

    async def list_tools(self):
        return [
            SimpleNamespace(
                name=name, description=None, input_schema={"names": list(inspect.signature(made).parameters)}
            )
            for name, made in self.tools.items()
        ]

    async def call_tool(self, name, arguments):
        return SimpleNamespace(content=await self.tools[name](**arguments))


@pytest.fixture(autouse=True)
def library(monkeypatch):
    for name in ("mcp", "mcp.server", "mcp.server.mcpserver"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["mcp.server.mcpserver"].MCPServer = MCPServer


def test_calls_are_answered_in_order_with_the_state_of_the_trace():
    log, trace = [], SimpleNamespace(state=State(1))
    servers = [Server("count", log), Server("", log)]
    calls = [
        Call("count_add", {"number": 2}, id="a"),
        Call("add", {"number": 3}),
        Call("count_add", {"number": -1}),
        Call("count_add", {"count": 1}),
        Call("none", {}),
        Malformed("not JSON"),
    ]

    async def played():
        async with Tools.serving(servers, SimpleNamespace(data="data"), trace) as tools:
            assert log == ["setup", "data", "setup", "data"]
            return await tools.answers(calls)

    answers = run(played())
    assert log[4:] == ["closed", "closed"]
    assert [answer.text for answer in answers[:2]] == ["3\nmore", "6\nmore"]
    assert trace.state.total == 6
    assert answers[2].text == "error: only positive numbers"
    assert all(answer.text.startswith("error: ") for answer in answers[2:])
    assert [answer.name for answer in answers] == ["count_add", "add", "count_add", "count_add", "none", "error"]
    assert [answer.call_id for answer in answers] == [
        "a",
        "call00001",
        "call00002",
        "call00003",
        "call00004",
        "call00005",
    ]


def test_the_schemas_are_those_of_the_servers():
    (schema,) = run(Tools([Server("count", [])]).schemas())
    assert schema == {
        "type": "function",
        "function": {"name": "count_add", "description": "", "parameters": {"names": ["number"]}},
    }
    assert not Tools([])
    assert Tools([Server("count", [])])
