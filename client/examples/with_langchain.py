# ruff: noqa: INP001, T201  an example is a script, and prints
"""LangChain's agent, durable by one line; its fake model needs no network and no key.

pip install . langchain && dshd serve &
python client/examples/with_langchain.py my-session     kill -9 it where you like, and run it again
"""

from __future__ import annotations

import sys
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from dsh_client.adapters.keys import idempotency_key
from dsh_client.adapters.langchain import Dshd


class Clerk(GenericFakeChatModel):
    """Asks for the payment, then tells what came of it."""

    def bind_tools(self, tools: Any, **_options: Any) -> Any:  # noqa: ARG002  LangChain gives them by name
        """Take any tools."""
        return self

    def _generate(self, messages: Any, *args: Any, **options: Any) -> Any:
        last = messages[-1]
        call = {"id": "pay-1", "name": "pay", "args": {"amount": "4.20"}}
        told = AIMessage(f"The tool said: {last.text}") if last.type == "tool" else None
        self.messages = iter([told or AIMessage("", tool_calls=[call])])
        return super()._generate(messages, *args, **options)


def pay(amount: str) -> str:
    """Pay an amount."""
    return f"paid {amount} under {idempotency_key()}"


agent = create_agent(Clerk(messages=iter([])), [pay], middleware=[Dshd(sys.argv[1])])
state = agent.invoke({"messages": [{"role": "user", "content": "Pay for the tea."}]})
print(state["messages"][-1].text)
