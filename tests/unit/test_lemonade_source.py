# SPDX-License-Identifier: Apache-2.0
"""Where lemonade-server comes from, and the PPA's key that is only taken by its fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lemonade_deploy.domain import lemonade_source as source
from lemonade_deploy.domain import openpgp, paths
from lemonade_deploy.domain.distribution import Distribution
from lemonade_deploy.domain.host import Completed, Host
from lemonade_deploy.domain.module import Refused

NOBLE = Distribution("ubuntu", "24.04", "noble")
TRIXIE = Distribution("debian", "13", "trixie")
FRESH = source.Current(False, NOBLE, candidate=False)


def names(current: source.Current, desired: source.Desired) -> list[str]:
    return [f"{change.object}: {change.action}" for change in source.plan(current, desired)]


def test_auto_prefers_the_hosts_own_apt() -> None:
    assert names(replace(FRESH, candidate=True), source.Desired()) == ["package lemonade-server: install"]


def test_auto_adds_the_ppa_on_ubuntu() -> None:
    assert names(FRESH, source.Desired()) == [
        "apt key lemonade: write",
        "apt source lemonade: write",
        "package lemonade-server: install",
    ]


def test_an_installed_package_is_left_alone() -> None:
    assert names(replace(FRESH, installed=True, candidate=None), source.Desired()) == []


def test_a_source_of_an_earlier_run_is_kept_up() -> None:
    text = source.source_text(source.Desired(), "noble")
    current = source.Current(True, NOBLE, text, ("A" * 40,))
    assert names(current, source.Desired()) == []
    assert names(replace(current, source_text="Suites: jammy\n"), source.Desired()) == [
        "apt source lemonade: write"
    ]
    assert names(current, source.Desired(fingerprint="B" * 40)) == ["apt key lemonade: write"]


def test_no_ppa_on_debian() -> None:
    with pytest.raises(Refused, match="lemonade_server_source=deb"):
        source.plan(replace(FRESH, distribution=TRIXIE), source.Desired())


def test_distro_means_distro() -> None:
    with pytest.raises(Refused, match="have no lemonade-server"):
        source.plan(FRESH, source.Desired(source="distro"))


def test_a_deb_needs_its_digest() -> None:
    with pytest.raises(Refused, match="deb_sha256"):
        source.plan(FRESH, source.Desired(source="deb", deb="/root/a.deb"))


def test_a_deb_is_installed_once() -> None:
    desired = source.Desired(source="deb", deb="/root/a.deb", deb_sha256="AB" * 32)
    assert names(FRESH, desired) == ["package lemonade-server: install"]
    done = replace(FRESH, installed=True, deb_sha256="ab" * 32)
    assert names(done, desired) == []


def test_source_is_bound_to_its_key() -> None:
    text = source.source_text(source.Desired(ppa_url="https://mirror.example/"), "resolute")
    assert f"Signed-By: {paths.LEMONADE_KEY}\n" in text
    assert "URIs: https://mirror.example/lemonade-team/stable/ubuntu\n" in text
    assert "Suites: resolute\n" in text


# A public key packet (tag 6) of version 4; only its bytes count for the fingerprint.
BODY = b"\x04" + b"\0\0\0\x01" + b"\x16" + b"lemonade"
KEY = bytes([0xC6, len(BODY)]) + BODY
FINGERPRINT = openpgp.read_keys(KEY)[0].fingerprint


def test_the_fixtures_fingerprint_is_right() -> None:
    assert hashlib.sha1(b"\x99" + len(BODY).to_bytes(2, "big") + BODY).hexdigest().upper() == FINGERPRINT


def test_the_key_is_stored_only_with_the_wanted_fingerprint(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    asked: list[str] = []

    def fetch(url: str) -> bytes:
        asked.append(url)
        return KEY

    with pytest.raises(Refused, match="instead of"):
        source.fetch_key(host, source.Desired(fingerprint="F" * 40), fetch)
    assert not host.exists(paths.LEMONADE_KEY)
    source.fetch_key(host, source.Desired(fingerprint=f"0x{FINGERPRINT.lower()}"), fetch)
    assert host.read_bytes(paths.LEMONADE_KEY) == KEY
    assert asked[-1].endswith(f"search=0x{FINGERPRINT}")


def test_without_a_fingerprint_launchpad_is_asked(tmp_path: Path) -> None:
    def fetch(url: str) -> bytes:
        if "launchpad" in url:
            assert url.endswith("/~lemonade-team/+archive/ubuntu/stable")
            return json.dumps({"signing_key_fingerprint": FINGERPRINT}).encode()
        return KEY

    host = Host(str(tmp_path))
    source.fetch_key(host, source.Desired(), fetch)
    assert host.exists(paths.LEMONADE_KEY)


def test_two_keys_in_one_answer_are_refused(tmp_path: Path) -> None:
    """An answer that carries the wanted key and another one would make apt trust both."""
    other = KEY[:-1] + b"!"
    with pytest.raises(Refused, match="instead of"):
        source.fetch_key(
            Host(str(tmp_path)), source.Desired(fingerprint=FINGERPRINT), lambda _url: KEY + other
        )


def test_plain_http_is_refused() -> None:
    with pytest.raises(Refused, match="https"):
        source.download("http://keyserver.example/key")


class Recorder:
    """Commands of the host that are run."""

    def __init__(self) -> None:
        self.argv: list[tuple[str, ...]] = []

    def __call__(
        self, argv: Sequence[str], env: Mapping[str, str], stdin: str | None, timeout: float | None
    ) -> Completed:
        self.argv.append(tuple(argv))
        return Completed(tuple(argv), 0, "", "")


MASK = "/run/systemd/system/lemond.service"


def test_the_packages_start_is_held_back_only_while_it_installs(tmp_path: Path) -> None:
    host = Host(str(tmp_path), Recorder())
    with source.start_held_back(host):
        assert host.readlink(MASK) == "/dev/null"
    assert not host.exists(MASK)


def test_the_hold_is_removed_when_the_installation_fails(tmp_path: Path) -> None:
    host = Host(str(tmp_path), Recorder())
    with pytest.raises(KeyboardInterrupt), source.start_held_back(host):
        raise KeyboardInterrupt
    assert not host.exists(MASK)


def test_our_own_unit_is_not_held_back(tmp_path: Path) -> None:
    host = Host(str(tmp_path), Recorder())
    host.write(paths.LEMOND_UNIT, "ours")
    with source.start_held_back(host):
        assert not host.exists(MASK)


def test_a_deb_with_another_digest_is_not_installed(tmp_path: Path) -> None:
    run = Recorder()
    host = Host(str(tmp_path), run)
    host.write("/root/a.deb", b"deb")
    (tmp_path / "var/tmp").mkdir(parents=True)
    with pytest.raises(Refused, match="SHA-256"):
        source.install_deb(host, source.Desired("deb", "/root/a.deb", "0" * 64))
    assert run.argv == []
    assert list((tmp_path / "var/tmp").iterdir()) == []
