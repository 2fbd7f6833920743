# SPDX-License-Identifier: Apache-2.0
"""Every ``--help`` fits a screen, names every option and shows two examples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from lemonade_deploy import __version__
from lemonade_deploy.cli.main import app, dispatch, route, verbs
from lemonade_deploy.exits import Exit


def commands() -> Iterator[tuple[str, Any]]:
    """Every command by its words, groups included."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), typer.main.get_group(app))]
    while waiting:
        words, command = waiting.pop()
        yield " ".join(words), command
        waiting.extend(((*words, name), inner) for name, inner in getattr(command, "commands", {}).items())


COMMANDS = dict(commands())


def page(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert dispatch([*words.split(), "--help"]) == Exit.OK
    return capsys.readouterr().out


@pytest.mark.parametrize("words", COMMANDS)
def test_help_fits_a_screen(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = page(words, capsys).rstrip().splitlines()
    assert len(lines) <= 24
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize("words", COMMANDS)
def test_help_names_every_option(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = page(words, capsys)
    for parameter in COMMANDS[words].params:
        options = [option for option in parameter.opts if option.startswith("-")]
        named = [one for one in options if re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", text)]
        assert named or not options, options


@pytest.mark.parametrize("words", COMMANDS)
def test_help_shows_two_examples_that_parse(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    examples = page(words, capsys).partition("Examples:")[2]
    shown = [part.strip() for part in re.split(r"\n|·", examples) if part.strip()]
    assert len(shown) >= 2, examples
    for example in shown:
        argv = re.split(r"\s+", example.removeprefix("lemonade-deploy").strip())
        assert route(argv)[0] in {*verbs(), "ansible"}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["--version"]) == Exit.OK
    assert capsys.readouterr().out == f"lemonade-deploy {__version__}\n"


def test_no_words_at_all_is_wrong_usage_and_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch([]) == Exit.USAGE
    assert "Usage: lemonade-deploy PLAYBOOK" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "routed"),
    [
        (["site.yml", "--check"], ["run", "site.yml", "--check"]),
        (["--check", "site.yml"], ["run", "--check", "site.yml"]),
        (["doctor", "--json"], ["doctor", "--json"]),
        (["run", "site.yml"], ["run", "site.yml"]),
        (["--version"], ["--version"]),
        ([], []),
    ],
)
def test_a_playbook_needs_no_verb(argv: list[str], routed: list[str]) -> None:
    assert route(argv) == routed
