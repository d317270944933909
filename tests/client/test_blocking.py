from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from dsh_client.blocking import Client, connect
from dsh_client.errors import CallTimeoutError, ConnectionLostError, DaemonUnavailableError
from dsh_protocol.errors import FrameTooLargeError, OverloadedError
from support.fake_daemon import FakeDaemon

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@pytest.fixture
def daemon() -> Generator[FakeDaemon, None, None]:
    with FakeDaemon() as running:
        yield running


def test_connecting_introduces_the_client(daemon: FakeDaemon) -> None:
    with connect(daemon.path, name="tests"):
        (hello,) = daemon.named("initialize")
    assert hello["protocolVersion"] == 1
    assert hello["client"]["name"] == "tests"


def test_a_call_returns_its_result_and_sends_no_parameter_that_is_none(daemon: FakeDaemon) -> None:
    with connect(daemon.path) as client:
        assert client.call("echo", a=1, b=None) == {"a": 1}


def test_no_daemon_is_told_with_the_path_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnavailableError, match=r"no-such.*dshd serve"):
        connect(tmp_path / "no-such")


def test_the_daemons_error_is_raised_as_its_class(daemon: FakeDaemon) -> None:
    daemon.fault("echo", "refuse", OverloadedError("too much"))
    with connect(daemon.path) as client, pytest.raises(OverloadedError, match="too much"):
        client.call("echo")


@pytest.mark.parametrize("kind", ["lose-call", "lose-reply", "half-reply", "crash"])
def test_a_connection_that_ends_before_the_answer_fails_the_call(
    daemon: FakeDaemon, kind: str
) -> None:
    daemon.fault("echo", kind)
    with connect(daemon.path) as client, pytest.raises(ConnectionLostError):
        client.call("echo", a=1)


def test_the_call_after_a_lost_connection_makes_a_new_one_and_gets_its_own_answer(
    daemon: FakeDaemon,
) -> None:
    daemon.fault("echo", "half-reply")
    with connect(daemon.path) as client:
        with pytest.raises(ConnectionLostError):
            client.call("echo", a=1)
        assert client.call("echo", a=2) == {"a": 2}
    assert daemon.connections == 2


def test_a_late_answer_is_never_given_to_the_next_call(daemon: FakeDaemon) -> None:
    daemon.fault("echo", "silence")
    with connect(daemon.path, timeout=0.05) as client:
        with pytest.raises(CallTimeoutError, match=r"no answer to echo .* within 0\.0\d+ s"):
            client.call("echo", a=1)
        assert client.call("echo", a=2) == {"a": 2}
    assert daemon.connections == 2


def test_an_interrupted_wait_closes_the_connection(daemon: FakeDaemon) -> None:
    main = threading.main_thread().ident
    assert main is not None

    def interrupt(method: str, _params: dict[str, Any]) -> None:
        if method == "echo" and len(daemon.named("echo")) == 1:
            signal.pthread_kill(main, signal.SIGINT)

    daemon.fault("echo", "silence")
    daemon.on_call = interrupt
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job
    try:
        with connect(daemon.path) as client:
            with pytest.raises(KeyboardInterrupt):
                client.call("echo", a=1)
            assert client.call("echo", a=2) == {"a": 2}
    finally:
        signal.signal(signal.SIGINT, before)
    assert daemon.connections == 2


def test_a_line_over_the_limit_is_refused_here_and_the_connection_lives_on(
    daemon: FakeDaemon,
) -> None:
    daemon.max_line_bytes = 1000
    with connect(daemon.path) as client:
        with pytest.raises(FrameTooLargeError):
            client.call("echo", text="x" * 1000)
        assert client.call("echo", a=1) == {"a": 1}
    assert daemon.connections == 1


def test_threads_share_one_connection_and_get_their_own_answers(daemon: FakeDaemon) -> None:
    found: dict[int, Any] = {}
    with connect(daemon.path) as client:

        def work(number: int) -> None:
            for turn in range(20):
                value = number * 100 + turn
                assert client.call("echo", value=value) == {"value": value}
            found[number] = True

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 8
    assert daemon.connections == 1


def test_a_thread_that_waits_is_not_held_up_by_one_that_is_never_answered(
    daemon: FakeDaemon,
) -> None:
    daemon.fault("echo", "silence")
    late: list[BaseException] = []
    with connect(daemon.path, timeout=0.5) as client:

        def wait() -> None:
            try:
                client.call("echo", a=1)
            except CallTimeoutError as error:
                late.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        while not daemon.named("echo"):
            pass
        began = time.monotonic()
        assert client.call("echo", a=2) == {"a": 2}
        assert time.monotonic() - began < 0.4
        thread.join()
    assert len(late) == 1


def test_a_daemon_that_does_not_read_ends_the_call_in_time(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "s")[-100:])
        deaf.listen()
        client = Client(str(tmp_path / "s")[-100:], timeout=0.05)
        with pytest.raises(CallTimeoutError, match="initialize"):
            client.call("echo")


def test_the_blocking_client_loads_no_library_but_the_standard_one() -> None:
    program = (
        "import sys, dsh_client.session;"
        "print([m for m in ('msgspec', 'anyio', 'trio', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
