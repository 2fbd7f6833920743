# SPDX-License-Identifier: Apache-2.0
"""No page for people has an abbreviation that the glossary leaves unexplained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").glob("*.md")} - {GLOSSARY})
# What everybody who reads these pages uses daily, and names.
EVERYDAY = {
    *(
        "AMD",
        "BIOS",
        "CPU",
        "GB",
        "GPU",
        "HTTP",
        "HTTPS",
        "ID",
        "JSON",
        "LAN",
        "PATH",
        "PCI",
        "PID",
        "SHA",
        "TCP",
    ),
    *("TLS", "UTF", "YAML", "QEMU", "RHEL", "SIGTERM", "SPDX", "SUSE", "DEPOT", "UEFI"),
}


def words(text: str) -> set[str]:
    """Abbreviations in the prose: neither in code nor in links, a plural as its singular."""
    for pattern in (r"```.*?```", r"`[^`\n]*`", r"(?m)^    .*$", r"\]\([^)]*\)", r"U\+[0-9A-F]{4}"):
        text = re.sub(pattern, " ", text, flags=re.DOTALL if "```" in pattern else 0)
    return {word.removesuffix("s") for word in re.findall(r"(?<![\w/.-])[A-Z]{2,}s?(?!\w)", text)}


def explained() -> set[str]:
    rows = re.findall(r"^\| ([^|]+) \|", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)
    return {part for row in rows for part in re.split(r"[,\s]+", row)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_abbreviation_is_explained_and_the_glossary_is_found(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    used = words(text) - EVERYDAY
    assert used <= explained(), used - explained()
    if used - {"API", "CA"}:
        assert "glossary.md" in text
