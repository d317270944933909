"""The suite over a running daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conformance.live import LIVE, Running

if TYPE_CHECKING:
    from conformance.cases import Case
    from support.daemon import DaemonProcess


@pytest.mark.parametrize("case", LIVE.cases, ids=[case.name for case in LIVE.cases])
def test_a_daemon_does_what_the_contract_says(case: Case[Running], daemon: DaemonProcess) -> None:
    case.check(daemon)
