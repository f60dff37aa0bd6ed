"""An environment that answers tool calls, whatever the policy writes."""

from winnow.environments.tool_calls import AUTO, CallForm, read_calls
from winnow.environments.tools import answer_calls


def ask(prompt, reply, rng, *, turns: int = 3, call_form: CallForm = AUTO):
    """Makes two calls for the policy in each turn, of which the second names no tool. Pays even code points."""
    even = 0
    for turn in range(turns):
        if turn:
            made = f'[TOOL_CALLS]length[ARGS]{{"text": "{len(reply)}"}}[TOOL_CALLS]lenght[ARGS]{{"text": ""}}'
            reply = yield answer_calls(read_calls(made, call_form), {"length": lambda text: text})
        even += sum(ord(c) % 2 == 0 for c in reply)
    return {"even": even / 10, "mistral": float(call_form == "mistral")}
