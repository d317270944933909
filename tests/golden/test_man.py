"""The manual pages are what the parsers say today, complete, and what `man` can read."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from dsh_client.cli.grammar import of_verbs
from golden import man


@pytest.mark.parametrize("name", man.PAGES)
def test_a_page_is_current(name: str) -> None:
    stored = (man.FOLDER / name).read_text("ascii")
    assert stored == man.PAGES[name](), "run: make man"


@pytest.mark.parametrize("name", man.PAGES)
def test_a_page_can_be_read_without_a_warning(name: str) -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is not installed")
    ended = subprocess.run(
        [groff, "-ww", "-man", "-Tutf8", "-z", str(man.FOLDER / name)],
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_every_verb_and_option_of_dshctl_has_its_place_and_every_verb_an_example() -> None:
    text = (man.FOLDER / "dshctl.1").read_text("ascii")
    for verb in of_verbs():
        assert f".SS dshctl {verb.name}" in text
        assert all(man.escaped(name) in text for option in verb.options for name in option.names)
        assert "example" in verb.epilog, verb.name
        assert f"dshctl {verb.name}" in verb.epilog, verb.name
        assert all(option.text for option in verb.options), verb.name


def test_every_verb_of_dshd_has_its_place() -> None:
    text = (man.FOLDER / "dshd.8").read_text("ascii")
    for name in ("serve", "check\\-config", "install", "verify", "salvage"):
        assert f".SS dshd {name}" in text
    assert "\\-\\-batch\\-window" in text
