# SPDX-License-Identifier: Apache-2.0
"""Mainline's pages and lists as texts, and who verifies a signature."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mainline_site import (
    Signer,
    box,
    checksums,
)

from lemonade_deploy.domain import (
    mainline,
    mainline_source,
    signature,
)
from lemonade_deploy.domain.host import Completed, Host
from lemonade_deploy.domain.mainline import Unusable

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("dpkg-deb", "gpg", "gpgv")),
    reason="needs dpkg-deb, gpg and gpgv",
)


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ('<a href="v6.18.20/">v6.18.20/</a> <a href="v6.19-rc1/">', ["v6.18.20", "v6.19-rc1"]),
        ("<a href='v6.18/'>x</a><A HREF=\"./v7.0.1/\">", ["v6.18", "v7.0.1"]),
        ('<a href="?C=N;O=D">Name</a><a href="daily/">', []),
    ],
)
def test_folders_of_the_index(page: str, names: list[str]) -> None:
    assert mainline.folders(page) == names


def test_versions_are_numbers_newest_first() -> None:
    found = mainline.versions(["v6.9.12", "v6.18", "v6.18.4", "v6.18-rc7", "v10.0", "v6.18.20.1", "daily"])
    assert [version.release for version in found] == [
        "10.0.0-100000-generic",
        "6.18.4-061804-generic",
        "6.18.0-061800-generic",
        "6.9.12-060912-generic",
    ]


def test_a_name_with_two_digests_is_no_list() -> None:
    line = "{}  linux-modules-6.18.36-061836-generic_6.18.36-061836.202606191408_amd64.deb\n"
    assert len(mainline.checksums(line.format("a" * 64) * 2)) == 1
    assert not mainline.checksums(line.format("a" * 40))  # SHA-1
    with pytest.raises(Unusable, match="two digests"):
        mainline.checksums(line.format("a" * 64) + line.format("b" * 64))


@given(st.text())
def test_any_text_as_page_or_list(text: str) -> None:
    mainline.versions(mainline.folders(text))
    version = mainline.versions(["v6.18.36"])[0]
    with pytest.raises(Unusable):
        mainline.select(version, mainline.checksums(text), headers=False)


@given(st.dictionaries(st.from_regex(r"linux-[a-z0-9.-]{1,40}\.deb", fullmatch=True), st.binary()))
def test_a_list_is_read_back_as_it_was_made(files: dict[str, bytes]) -> None:
    read = mainline.checksums(checksums(files).decode())
    assert set(read) == set(files)


# Who verifies.


@pytest.mark.parametrize("there", [("gpgv",), ("gpg",), ("sqv",), ()])
def test_each_verifier_of_the_host_will_do(
    tmp_path: Path, signer: Signer, stranger: Signer, there: tuple[str, ...]
) -> None:
    if there and shutil.which(there[0]) is None:
        pytest.skip(f"{there[0]} is not installed")
    inner = box(tmp_path)
    host = Host(
        str(tmp_path),
        runner=lambda argv, env, stdin, timeout: (
            inner.run(argv, check=False, env=env, timeout=timeout)
            if argv[0] in there
            else inner.run(["/no/such/program"], check=False)
        ),
    )
    data = b"text\n"
    good = signature.why_not(host, data, signer.sign(data), signer.key, signer.fingerprint.lower())
    if not there:
        assert "no gpgv, gpg or sqv" in good
        return
    assert good == signature.GOOD
    for bad_data, signed in ((b"texT\n", signer.sign(data)), (data, stranger.sign(data)), (data, b"x")):
        why = signature.why_not(host, bad_data, signed, signer.key, signer.fingerprint)
        assert why.startswith(f"{there[0]} says: ")


@pytest.mark.parametrize("key", [b"", b"<html>", b"\xcd\x03abc", b"\xc6\x01\x07"])
def test_a_key_file_without_a_key_is_told(tmp_path: Path, key: bytes) -> None:
    """A packet that is no key, for example: a user id alone."""
    why = signature.why_not(Host(str(tmp_path)), b"data", b"signature", key, "A" * 40)
    assert why.startswith("the key cannot be read: ")


def test_only_the_pinned_key_counts_among_valid_signatures() -> None:
    def says(*lines: str, rc: int = 0) -> bool:
        done = Completed(("gpgv",), rc, "".join(f"[GNUPG:] {line}\n" for line in lines), "")
        return signature._status_says(done, "A" * 40)

    valid = "VALIDSIG " + "B" * 40 + " 2026-01-01 1 0 4 0 22 10 00 "
    assert says("GOODSIG AA x", valid + "A" * 40)  # by a subkey of it
    assert not says("GOODSIG AA x", valid + "C" * 40)
    assert not says("EXPKEYSIG AA x", valid + "A" * 40)
    assert not says("GOODSIG AA x", valid + "A" * 40, rc=1)
    assert not says("GOODSIG AA x")


def test_local_paths() -> None:
    assert mainline_source.local_path("https://kernel.ubuntu.com/mainline") == ""
    assert mainline_source.local_path("file:///srv/m%20x/") == "/srv/m x"
    assert mainline_source.local_path("/srv/m/") == "/srv/m"
