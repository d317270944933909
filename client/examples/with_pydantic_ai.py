# ruff: noqa: INP001, T201  an example is a script, and prints
"""pydantic-ai's agent, durable by one line; its function model needs no network and no key.

pip install . pydantic-ai-slim && dshd serve &
python client/examples/with_pydantic_ai.py my-session     kill -9 it where you like, and run it again
"""

from __future__ import annotations

import sys
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from dsh_client.adapters.keys import idempotency_key
from dsh_client.adapters.pydantic_ai import Dshd


def clerk(messages: list[Any], _info: Any) -> ModelResponse:
    """Ask for the payment, then tell what came of it."""
    last = messages[-1].parts[-1]
    if last.part_kind == "tool-return":
        return ModelResponse(parts=[TextPart(f"The tool said: {last.content}")])
    return ModelResponse(parts=[ToolCallPart("pay", {"amount": "4.20"}, "pay-1")])


def pay(amount: str) -> str:
    """Pay an amount."""
    return f"paid {amount} under {idempotency_key()}"


agent = Agent(FunctionModel(clerk), tools=[pay], capabilities=[Dshd(sys.argv[1])])
print(agent.run_sync("Pay for the tea.").output)
