"""The tools of a task of the verifiers library, called in this process.

The library starts a server for each `Toolset`, and a program of the agent calls it over HTTP (MCP). Here the server's
functions are called directly, with the rollout's state, and their schemas are those that the server would give.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from winnow.environments.tool_calls import Call, Malformed
from winnow.records import ToolAnswer


class Tools:
    """The tools of one rollout, by the names under which the library's programs give them to a model."""

    def __init__(self, servers: Sequence[Any]) -> None:
        self._servers = [(server.server_name, _registered(server)) for server in servers]

    def __bool__(self) -> bool:
        return bool(self._servers)

    @classmethod
    @contextlib.asynccontextmanager
    async def serving(cls, toolsets: Sequence[Any], task: Any, trace: Any) -> AsyncIterator[Tools]:
        """The tools of a task after their setup, with the state of a trace, until the end of the block."""
        async with contextlib.AsyncExitStack() as stack:
            for server in toolsets:
                server._pull_state = functools.partial(_pull, server, trace)
                server._push_state = functools.partial(_push, server, trace)
                await stack.enter_async_context(server._exit_stack)
                await server.setup()
                await server.setup_task(task.data)
            yield cls(toolsets)

    async def schemas(self) -> list[dict[str, Any]]:
        """The tools for a chat template."""
        return [
            {
                "type": "function",
                "function": {"name": name, "description": tool.description or "", "parameters": tool.input_schema},
            }
            for name, (_, tool) in (await self._by_name()).items()
        ]

    async def answers(self, calls: Sequence[Call | Malformed]) -> tuple[ToolAnswer, ...]:
        """The answers to the calls of a turn, one after another. A failure is answered with its text."""
        known, answers = await self._by_name(), list[ToolAnswer]()
        for place, call in enumerate(calls):
            if isinstance(call, Malformed):
                answers.append(ToolAnswer(text=f"error: {call.reason}", name="error", call_id=f"call{place:05d}"))
                continue
            text = f"error: unknown tool {call.name[:40]!r}"
            if call.name in known:
                server, tool = known[call.name]
                text = await _called(server, tool, call.arguments)
            answers.append(ToolAnswer(text=text, name=call.name[:100], call_id=call.id or f"call{place:05d}"))
        return tuple(answers)

    async def _by_name(self) -> dict[str, tuple[Any, Any]]:
        found = {}
        for prefix, server in self._servers:
            for tool in await server.list_tools():
                found[f"{prefix}_{tool.name}" if prefix else tool.name] = (server, tool)
        return found


def messages_of(reply: str, calls: Sequence[Call | Malformed], answers: Sequence[ToolAnswer]) -> list[Any]:
    """A turn with calls and the answers to it, as the library's messages."""
    import verifiers.v1 as vf
    from verifiers.v1.types import ToolCall

    pairs = [(call, answer) for call, answer in zip(calls, answers, strict=True) if isinstance(call, Call)]
    made = [ToolCall(id=of.call_id, name=call.name, arguments=json.dumps(dict(call.arguments))) for call, of in pairs]
    answered = [vf.ToolMessage(tool_call_id=of.call_id, content=of.text, name=of.name) for _, of in pairs]
    return [vf.AssistantMessage(content=reply, tool_calls=made or None), *answered]


def _registered(server: Any) -> Any:
    from mcp.server.mcpserver import MCPServer

    mcp = MCPServer(server.server_name or type(server).__name__)
    server.register(mcp)
    return mcp


async def _called(server: Any, tool: Any, arguments: Mapping[str, Any]) -> str:
    try:
        result = await server.call_tool(tool.name, dict(arguments))
    except MemoryError:
        raise
    except Exception as error:  # of the tool, or of arguments that do not fit
        return f"error: {error}"
    return "\n".join(str(getattr(part, "text", part)) for part in result.content)


async def _pull(server: Any, trace: Any) -> Any:
    return server._state_adapter.validate_json(trace.state.model_dump_json())


async def _push(server: Any, trace: Any, before: bytes) -> None:
    after = server._state_adapter.dump_json(server.state)
    if after != before:
        trace.state = type(trace.state).model_validate_json(after)
