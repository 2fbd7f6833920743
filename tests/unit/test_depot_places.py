# SPDX-License-Identifier: Apache-2.0
"""Where a host takes a release from: depot, mirror or upstream, and what it says of those passed over."""

from __future__ import annotations

import dataclasses
import socket
import time
from pathlib import Path

import pytest
from bundle_host import Box
from depot_server import TOKEN
from nasty import POLICY, TAG, Nasty, serving

from lemonade_deploy.depot import store
from lemonade_deploy.domain import bundle_sources, depot_index, unzstd
from lemonade_deploy.domain.bundle_sources import Place, places
from lemonade_deploy.domain.lock import Release
from lemonade_deploy.domain.module import Refused

NOWHERE = "http://127.0.0.1:9"  # the discard port: nobody answers


def box_of(tmp_path: Path, *chosen: Place) -> Box:
    box = Box(tmp_path / "host", NOWHERE)
    box.places = chosen
    return box


def test_a_host_takes_the_chunks_and_keeps_no_copy(
    tmp_path: Path, server: Nasty, release: Release, depot: tuple[Path, Place]
) -> None:
    folder, place = depot
    index = store.index_of(folder, release)
    assert index is not None and len(index.chunks) > 2
    server.requests.clear()
    box = box_of(tmp_path, place, Place("upstream", server.url))
    box.run(release)
    box.assert_whole(release)
    assert box.stats.source == f"depot {place.url}"
    assert box.stats.fetched == sum(chunk.size for chunk in index.chunks)
    assert server.requests == []
    assert box.stats.notes == []


def test_a_depot_that_is_away_leads_to_the_mirror_and_is_said(
    tmp_path: Path, server: Nasty, release: Release
) -> None:
    box = box_of(tmp_path, Place("depot", NOWHERE, TOKEN), Place("mirror", server.url))
    box.run(release)
    box.assert_whole(release)
    assert box.stats.source == f"mirror {server.url}"
    assert box.stats.notes[0].startswith(f"depot {NOWHERE} could not be used: ")


@pytest.mark.parametrize("place", ["depot", "mirror"])
def test_a_place_that_never_answers_is_passed_over_soon(
    tmp_path: Path, server: Nasty, release: Release, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(bundle_sources, "KNOCK", 0.2)
    with socket.socket() as silent:  # it takes connections, and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        box = box_of(tmp_path, Place(place, url, TOKEN), Place("upstream", server.url))
        box.policy = dataclasses.replace(POLICY, timeout=120)
        began = time.monotonic()
        box.run(release)
    assert time.monotonic() - began < box.policy.timeout
    box.assert_whole(release)
    assert f"{place} {url} could not be used: " in box.stats.notes[0]
    assert "timed out" in box.stats.notes[0]


def test_a_mirror_without_the_release_is_passed_over(tmp_path: Path, server: Nasty, release: Release) -> None:
    with serving() as empty:
        box = box_of(tmp_path, Place("mirror", empty.url), Place("upstream", server.url))
        box.run(release)
        assert "HTTP 404" in box.stats.notes[0]
        assert len(empty.requests) == 1
    box.assert_whole(release)


def test_no_place_at_all_names_each(tmp_path: Path, release: Release) -> None:
    box = box_of(tmp_path, Place("depot", NOWHERE), Place("mirror", "http://127.0.0.1:10"))
    with pytest.raises(Refused, match=rf"No place has.*depot {NOWHERE}: .*mirror http://127.0.0.1:10: "):
        box.run(release)
    assert box.current is None


def test_a_wrong_token_leads_on(
    tmp_path: Path, server: Nasty, release: Release, depot: tuple[Path, Place]
) -> None:
    wrong = dataclasses.replace(depot[1], token="guessed")
    box = box_of(tmp_path, wrong, Place("upstream", server.url))
    box.run(release)
    assert "HTTP 401" in box.stats.notes[0]


def test_what_a_place_says_comes_with_what_to_do(
    tmp_path: Path, server: Nasty, release: Release, depot: tuple[Path, Place]
) -> None:
    for place, words in (
        (dataclasses.replace(depot[1], token="guessed"), "vllm_rocm_depot_token"),
        (Place("mirror", "ftp://127.0.0.1"), "vllm_rocm_mirrors"),
    ):
        with pytest.raises(Refused) as refusal:
            box_of(tmp_path, place).run(release)
        assert words in refusal.value.remedy


@pytest.mark.parametrize("damage", ["chunk", "exchanged", "index"])
def test_a_damaged_depot_is_never_installed(
    tmp_path: Path, server: Nasty, release: Release, depot: tuple[Path, Place], damage: str
) -> None:
    folder, place = depot
    index = store.index_of(folder, release)
    assert index is not None
    first = folder / TAG / index.chunks[0].name
    if damage == "chunk":
        first.write_bytes(b"x" * index.chunks[0].size)
    elif damage == "exchanged":  # sound chunks and index, of another archive
        chunks = (index.chunks[0], *index.chunks[:1], *index.chunks[2:])
        (folder / TAG / depot_index.NAME).write_text(dataclasses.replace(index, chunks=chunks).text())
    else:
        (folder / TAG / depot_index.NAME).write_text("{}")
    box = box_of(tmp_path, place, Place("upstream", server.url))
    box.run(release)
    box.assert_whole(release)
    assert place.url in box.stats.notes[0]
    assert box.stats.source.startswith("depot" if damage == "index" else "upstream")


def test_without_libzstd_the_releases_own_files_come_from_the_depot(
    tmp_path: Path, release: Release, depot: tuple[Path, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unzstd, "available", lambda: False)
    box = box_of(tmp_path, depot[1])
    box.run(release)
    box.assert_whole(release)
    assert box.stats.fetched == release.size
    assert "no libzstd" in box.stats.notes[0]


def test_a_policy_without_a_place_is_refused() -> None:
    with pytest.raises(Refused, match="vllm_rocm_sources"):
        places(["depot"], "http://up")
    assert [str(p) for p in places(["mirrors", "depot"], "u", ["m1", "m2"], "d", "t")] == [
        "mirror m1",
        "mirror m2",
        "depot d",
    ]
    assert set(bundle_sources.KINDS) == {"depot", "mirrors", "upstream"}
