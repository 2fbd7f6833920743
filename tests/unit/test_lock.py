# SPDX-License-Identifier: Apache-2.0
"""The lock file: what is read back, and which mistakes are named how."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from lemonade_deploy.domain.assets import asset_url, parse_partcount, part_names
from lemonade_deploy.domain.bundle_lock import locked_release
from lemonade_deploy.domain.lock import SCHEMA, Asset, LockError, Release, TreeInfo, document, parse
from lemonade_deploy.domain.module import Refused

TAG = "vllm0.25.2.dev0+rocm7-rocm7.15.0-gfx1151"
RELEASE = Release(
    TAG,
    "gfx1151",
    (Asset(f"{TAG}-x64.tar.gz", 12, "a" * 64, "https://example/x"), Asset("b.tar.gz", 3, "b" * 64)),
    TreeInfo("c" * 64, 99, 7),
    "2026-01-01T00:00:00Z",
    "https://example",
)


def test_what_is_written_is_read_back() -> None:
    assert parse(document({TAG: RELEASE}), "x.lock") == {TAG: RELEASE}


def test_the_archive_digest_depends_on_every_asset_and_on_their_order() -> None:
    first, second = RELEASE.assets
    digests = {
        Release(TAG, "gfx1151", assets).archive
        for assets in ((first, second), (second, first), (first,), (Asset(first.name, 13, "a" * 64), second))
    }
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("schema",), "lemonade-deploy/lock/2", "schema: expected"),
        (("releases",), [], "releases: expected a mapping, found a list"),
        (("extra",), 1, "extra: is not a key"),
        (("releases", TAG, "family"), None, "family: expected a text, found nothing"),
        (("releases", TAG, "assets"), [], "assets: is empty"),
        (("releases", TAG, "assets", 0, "sha256"), "A" * 64, r"assets\[0\].sha256: expected 64 hexadecimal"),
        (("releases", TAG, "assets", 0, "sha256"), 5, r"sha256: expected a text, found a whole number \(5\)"),
        (("releases", TAG, "assets", 0, "size"), "12", "size: expected a whole number"),
        (("releases", TAG, "assets", 0, "size"), True, "size: expected a whole number, found true or false"),
        (("releases", TAG, "assets", 0, "size"), 0, "size: expected a number above 0"),
        (("releases", TAG, "assets", 1, "name"), "../x", "name: expected a plain file name"),
        (("releases", TAG, "assets", 1, "name"), f"{TAG}-x64.tar.gz", "assets: names one asset twice"),
        (("releases", TAG, "assets", 1, "sah256"), "x", "sah256: is not a key"),
        (("releases", TAG, "tree", "digest"), "x", "tree.digest: expected"),
        (("releases", "a/b"), {}, "is not a release tag"),
    ],
)
def test_a_mistake_is_named_with_file_and_key(path: tuple[Any, ...], value: Any, said: str) -> None:
    content: Any = copy.deepcopy(document({TAG: RELEASE}))
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(LockError, match=said) as error:
        parse(content, "my.lock")
    assert str(error.value).startswith("my.lock: ")


@pytest.mark.parametrize("content", [None, "text", [], {}])
def test_what_is_no_lock_at_all(content: Any) -> None:
    with pytest.raises(LockError, match=r"^my\.lock: "):
        parse(content, "my.lock")


def test_a_missing_file_or_entry_says_the_command_that_helps() -> None:
    command = "lemonade-deploy depot lock vllm0.25.2.dev0+rocm7-rocm7.15.0 --gfx gfx1151 -i inv.yml"
    for lock in (None, {"schema": SCHEMA, "releases": {}}):
        with pytest.raises(Refused) as refused:
            locked_release(lock, "my.lock", TAG, "gfx1151", "inv.yml")
        assert "my.lock" in refused.value.found
        assert TAG in refused.value.found
        assert command in refused.value.remedy


def test_an_entry_for_another_family_is_refused() -> None:
    with pytest.raises(Refused, match="is gfx1151, this host's GPU needs gfx120X"):
        locked_release(document({TAG: RELEASE}), "my.lock", TAG, "gfx120X")
    assert locked_release(document({TAG: RELEASE}), "my.lock", TAG, "gfx1151") == RELEASE


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2\n", 2),
        (" 99 ", 99),
        ("1", 1),
        ("0", None),
        ("100", None),
        ("", None),
        ("2 parts", None),
        ("-1", None),
    ],
)
def test_partcount(text: str, number: int | None) -> None:
    assert parse_partcount(text) == number


def test_names_and_addresses() -> None:
    assert part_names("t", 12)[9] == "t-x64.part10-of-12.tar.gz"
    assert asset_url("https://h/d/", "a+b", "a+b-x64.tar.gz") == "https://h/d/a%2Bb/a%2Bb-x64.tar.gz"
