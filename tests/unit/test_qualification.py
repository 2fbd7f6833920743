# SPDX-License-Identifier: Apache-2.0
"""Upstream's verdict: read where it answers, kept in the lock, heeded by hosts."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from nasty import POLICY, Nasty, bundle_members, publish, tar_gz

from lemonade_deploy.depot import lock, qualification
from lemonade_deploy.domain.bundle_lock import unqualified
from lemonade_deploy.domain.lock import NO_RECORD, QUALIFIED, UNQUALIFIED, LockError, Release, document, parse
from lemonade_deploy.domain.module import Refused
from lemonade_deploy.domain.releases import KNOWN_BAD

TAG = "vllm0.23.1-rocm7.13.0-gfx1151"


@pytest.fixture
def release(server: Nasty) -> Release:
    return publish(server, tar_gz(bundle_members()), tag=TAG)[0]


def row(**changed: Any) -> dict[str, Any]:
    told = {"tag": "vllm0.23.1-gfx1151", "gfx_target": "gfx1151", "rocm_version": "7.13.0", "qualified": True}
    return {**told, "generated_at": "2026-08-11", "tests": {"passed": 14, "total": 15}, **changed}


def asked(server: Nasty, rows: Any) -> tuple[str, str]:
    server.put("feed", "index.json", json.dumps({"schema_version": 1, "builds": rows}).encode())
    return qualification.ask(TAG, f"{server.url}/feed/index.json", POLICY)


def test_the_newest_row_of_the_very_release_counts(server: Nasty) -> None:
    assert asked(server, [row(), row(qualified=False)]) == (
        QUALIFIED,
        "Upstream's qualification feed calls it qualified (14 of 15 tests, 2026-08-11).",
    )
    assert asked(server, [row(qualified=False), row()])[0] == UNQUALIFIED


@pytest.mark.parametrize(
    "other", [{"gfx_target": "gfx1150"}, {"rocm_version": "7.15.0"}, {"tag": "vllm0.23.10-gfx1151"}]
)
def test_no_record_is_not_unqualified(server: Nasty, other: dict[str, Any]) -> None:
    verdict, said = asked(server, [row(qualified=False, **other)])
    assert verdict == NO_RECORD
    assert "nothing either way" in said


@pytest.mark.parametrize("rows", [None, {}, 7])
def test_a_feed_of_another_shape_is_no_answer(server: Nasty, rows: Any) -> None:
    assert asked(server, rows)[0] == ""


def test_a_feed_that_is_away_is_no_answer(server: Nasty) -> None:
    for url in (f"{server.url}/nowhere", "http://127.0.0.1:9/x"):
        verdict, said = qualification.ask(TAG, url, POLICY)
        assert verdict == ""
        assert url in said


def test_the_lock_keeps_it_and_learns_it_later(release: Release) -> None:
    bad = dataclasses.replace(release, qualification=UNQUALIFIED)
    assert parse(document({TAG: bad}))[TAG].qualification == UNQUALIFIED
    assert lock.merge({TAG: release}, bad)[TAG].qualification == UNQUALIFIED
    assert lock.merge({TAG: bad}, release)[TAG].qualification == UNQUALIFIED
    assert "qualification" not in document({TAG: release})["releases"][TAG]
    with pytest.raises(LockError, match="qualification: expected"):
        parse(document({TAG: dataclasses.replace(release, qualification="maybe")}))


def test_a_host_heeds_it(release: Release) -> None:
    assert unqualified(release, []) == ""
    assert unqualified(dataclasses.replace(release, qualification=NO_RECORD), []) == ""
    bad = dataclasses.replace(release, qualification=UNQUALIFIED)
    with pytest.raises(Refused, match="call it unqualified"):
        unqualified(bad, ["vllm0.23.1"])
    for accepted in (TAG, "vllm0.23.1-rocm7.13.0"):
        assert "accepted" in unqualified(bad, [accepted])


@pytest.mark.parametrize("base", KNOWN_BAD)
def test_known_bad_needs_a_word_even_when_the_feed_is_silent(release: Release, base: str) -> None:
    known = dataclasses.replace(release, tag=f"{base}-gfx1151")
    with pytest.raises(Refused, match="known to fail") as refused:
        unqualified(known, [])
    assert f"[{base}]" in refused.value.remedy
    assert unqualified(known, [base])
