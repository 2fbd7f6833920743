# SPDX-License-Identifier: Apache-2.0
"""The options that verbs share, and the page that ``--help`` prints."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

Inventory = Annotated[list[str] | None, typer.Option("-i", "--inventory", metavar="FILE|HOST,")]
Limit = Annotated[str | None, typer.Option("-l", "--limit", metavar="PATTERN")]
ExtraVars = Annotated[list[str] | None, typer.Option("-e", "--extra-vars", metavar="K=V|@FILE")]
Forks = Annotated[int | None, typer.Option("-f", "--forks", min=1, max=1000)]
AskPass = Annotated[bool, typer.Option("-k", "--ask-pass")]
AskBecomePass = Annotated[bool, typer.Option("-K", "--ask-become-pass")]
VaultId = Annotated[list[str] | None, typer.Option("--vault-id", metavar="ID@FILE|ID@prompt")]
VaultFile = Annotated[list[str] | None, typer.Option("--vault-password-file", metavar="FILE")]
AskVaultPass = Annotated[bool, typer.Option("--ask-vault-pass")]
Verbose = Annotated[int, typer.Option("-v", "--verbose", count=True)]
Json = Annotated[bool, typer.Option("--json")]


class Page(TyperCommand):
    """A command whose help is its docstring as written: a page made by hand fits a screen."""

    def get_help(self, _ctx: Any) -> str:
        """The page."""
        return _page(self.help)

    def format_help(self, _ctx: Any, formatter: Any) -> None:
        """Print the page."""
        formatter.write(_page(self.help) + "\n")


class GroupPage(TyperGroup):
    """The same for a group of commands."""

    def get_help(self, _ctx: Any) -> str:
        """The page."""
        return _page(self.help)

    def format_help(self, _ctx: Any, formatter: Any) -> None:
        """Print the page."""
        formatter.write(_page(self.help) + "\n")


def _page(text: str | None) -> str:
    return (text or "").replace("\b\n", "").strip("\n")
