"""The frameworks that adapters are judged with, and where each is installed.

The one rule: a framework is judged where it is installed; elsewhere its cases are skipped and say so.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

POINTS = (
    "before-request-1",
    "in-request-1",
    "after-answer-1",
    "before-tool-2",
    "in-tool",
    "after-one-result",
    "after-step",
    "before-request-2",
    "in-request-2",
    "before-end",
    "at-end",
)
"""Where an agent is killed; the third tool has not begun at `before-tool-2`, two run at `after-one-result`."""

FEW_POINTS = ("in-request-1", "before-tool-2", "in-tool", "after-one-result", "after-step")
"""Enough for a second way of running the same adapter."""


class Framework(NamedTuple):
    """How one adapter is put to the test.

    Attributes:
        module: What has to be installed.
        name: As the documentation's table has it.
        modes: Ways of running its agent; the first at every point, the others at a few.
        chain: Options that put the framework's own retries and fallbacks around the model and the tools.
        reissues: Whether it can run calls again before the next request.
        parallel: Whether it runs the tools of one answer side by side.
        points: Where its agent is killed in the first mode.
        told: How the caller learns what stopped the run.
    """

    module: str
    name: str
    modes: tuple[str, ...]
    chain: tuple[str, ...] = ()
    reissues: bool = False
    parallel: bool = True
    points: tuple[str, ...] = POINTS
    told: str = "the error reaches the caller"


FRAMEWORKS = {
    "langgraph": Framework(
        "langchain",
        "LangChain",
        ("sync", "async", "stream", "graph", "nested"),
        ("chain=retries",),
        reissues=True,
    ),
    "pydantic_ai": Framework(
        "pydantic_ai", "pydantic-ai", ("run", "iter", "stream"), ("chain=retries",), reissues=True
    ),
    "openai_agents": Framework("agents", "openai-agents", ("run", "stream")),
    "anthropic": Framework("anthropic", "anthropic", ("loop", "stream", "runner")),
    "openai": Framework(
        "openai.lib.responses_tool_runner",
        "openai",
        ("sync", "async", "stream", "async-stream"),
        parallel=False,
        told="`failure` keeps the error, the SDK raises its own",
    ),
    # its own history is not ours: after a whole step, the fake model of a new process begins anew
    "claude": Framework(
        "claude_agent_sdk",
        "Claude Agent SDK",
        ("query", "stream"),
        parallel=False,
        points=("before-request-1", "in-request-1", "before-tool-1", "in-tool", "after-one-result"),
        told="the run ends with the reason, and `failure` keeps the error",
    ),
}


def is_installed(module: str) -> bool:
    """Whether a module is there, its packages included."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def case(framework: str, *more: str, slow: bool = False) -> ParameterSet:
    module = FRAMEWORKS[framework].module
    missing = pytest.mark.skipif(
        not is_installed(module), reason=f"{module} is not installed here: make adapters"
    )
    marks = (missing, pytest.mark.slow) if slow else missing
    return pytest.param(framework, *more, marks=marks, id="-".join([framework, *more]))
