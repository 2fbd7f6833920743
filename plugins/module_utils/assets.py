# SPDX-License-Identifier: Apache-2.0
"""Names and addresses of a bundle's assets.

Sources: lemonade src/cpp/server/backends/vllm_server.cpp (repository, tag, `-x64`),
backend_utils.cpp (partcount, two-digit 1-based parts), vllm-rocm build-vllm-rocm.yml
(`split -b 1900M`); 0.19.x used 0-based `.part00.tar.gz` without a partcount.
"""

from __future__ import annotations

import re
from urllib.parse import quote

BASE_URL = "https://github.com/lemonade-sdk/vllm-rocm/releases/download"
MAX_PARTS = 99
_COUNT = re.compile(r"\s*([0-9]{1,2})\s*")


def stem(tag: str) -> str:
    """What every asset's name of *tag* begins with."""
    return f"{tag}-x64"


def partcount_name(tag: str) -> str:
    """The asset that says how many parts there are (one line, 1..99)."""
    return f"{stem(tag)}.partcount"


def single_name(tag: str) -> str:
    """The asset of a release that was not split."""
    return f"{stem(tag)}.tar.gz"


def part_names(tag: str, count: int) -> list[str]:
    """The parts of a split release, in order."""
    return [f"{stem(tag)}.part{number:02d}-of-{count:02d}.tar.gz" for number in range(1, count + 1)]


def old_part_name(tag: str, number: int) -> str:
    """Part *number* (0-based) in the naming of vllm0.19.x."""
    return f"{stem(tag)}.part{number:02d}.tar.gz"


def parse_partcount(text: str) -> int | None:
    """The number in a partcount file, or None where it is not one of 1..99."""
    found = _COUNT.fullmatch(text)
    number = int(found[1]) if found else 0
    return number if 1 <= number <= MAX_PARTS else None


def asset_url(base_url: str, tag: str, name: str) -> str:
    """Where an asset is; nightly tags hold a `+`, which some servers read as a blank."""
    return f"{base_url.rstrip('/')}/{quote(tag, safe='')}/{quote(name, safe='')}"
