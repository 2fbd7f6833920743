# SPDX-License-Identifier: Apache-2.0
"""Mainline kernels: which build is taken, what is believed of a mirror, and how the packages come in."""

from __future__ import annotations

import shutil
from pathlib import Path
from queue import Queue

import nasty
import pytest
from mainline_site import (
    NEWEST,
    OLDER,
    STAMP,
    STRIX,
    FakeApt,
    Signer,
    Site,
    box,
    debs,
    take,
    usual,
)
from nasty import Nasty

from lemonade_deploy.domain import (
    driver_releases,
    mainline_install,
)
from lemonade_deploy.domain.fetch import FetchError
from lemonade_deploy.domain.mainline import Unusable
from lemonade_deploy.domain.mainline_source import Tampered

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("dpkg-deb", "gpg", "gpgv")),
    reason="needs dpkg-deb, gpg and gpgv",
)


def test_the_newest_good_build_is_taken_and_nothing_big_is_fetched(
    tmp_path: Path, server: Nasty, signer: Signer
) -> None:
    big = debs("6.18.36", payload=b"x" * 30_000_000)
    site = usual(signer).version("6.18.36", {**debs("6.18.36", OLDER), **big})
    apt = FakeApt(tmp_path)
    found = take(box(tmp_path), site, site.serve(server, "v7.9-rc2", "daily"), apt=apt)
    names = ("linux-image-unsigned-6.18.36-061836-generic", "linux-modules-6.18.36-061836-generic")
    assert (found.release, found.packages, found.source) == (NEWEST, names, "mainline")
    assert found.forecast.verdict == "fixed"
    # One stamp for all: the newest of the two builds in the folder.
    assert all(f"061836.{STAMP}_" in deb.url for deb in found.debs)
    files = {name.rpartition("/")[2]: data for name, data in big.items()}
    assert [deb.size for deb in found.debs] == [len(files[deb.url.rpartition("/")[2]]) for deb in found.debs]
    assert apt.asked == [list(names)]
    assert not any(path.is_file() for path in tmp_path.rglob("*"))  # nothing is left behind
    asked = [path for path, _range in server.requests]
    assert "/mainline/v6.18.37/amd64/CHECKSUMS" not in asked and "/mainline/v6.18.20/" not in asked


def test_of_a_package_only_its_first_bytes_are_read(tmp_path: Path, server: Nasty, signer: Signer) -> None:
    site = usual(signer)
    url, hung_up = site.serve(server), Queue[bool]()

    def patient(handler: nasty.Handler, body: bytes, _start: int) -> None:
        """The first bytes, and then none until the client goes away."""
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: 70 << 10])
        handler.wfile.flush()
        handler.connection.settimeout(60)
        try:
            hung_up.put(handler.connection.recv(1) == b"")
        except ConnectionResetError:  # it had not read all of what was sent
            hung_up.put(True)
        handler.close_connection = True

    (path,) = (path for path in server.files if "unsigned-6.18.36" in path and STAMP in path)
    server.moves[path] = [patient]
    found = take(box(tmp_path), site, url)
    assert found.release == NEWEST
    assert hung_up.get(timeout=60)  # the server's thread may learn of it a moment later


def test_a_large_control_archive_is_read_to_its_end(tmp_path: Path, server: Nasty, signer: Signer) -> None:
    packages = debs("6.18.36", control=300_000)
    site = Site(signer).version("6.18.36", packages)
    assert take(box(tmp_path), site, site.serve(server)).release == NEWEST
    cut = {name: data[:200_000] for name, data in packages.items()}
    site = Site(signer).version("6.18.36", cut)
    with pytest.raises(Unusable, match="is cut off"):
        take(box(tmp_path), site, site.serve(server))


@pytest.mark.parametrize("form", ["{}", "file://{}", "{}/"])
def test_a_folder_on_the_host_is_as_good_as_the_web(tmp_path: Path, signer: Signer, form: str) -> None:
    site = usual(signer)
    site.lay(tmp_path / "srv/mainline 100%?#")
    (tmp_path / "srv/key.asc").write_bytes(signer.key)
    url = form.format("/srv/mainline%20100%25%3F%23" if "file" in form else "/srv/mainline 100%?#")
    found = take(box(tmp_path), site, url, key="/srv/key.asc")
    assert found.release == NEWEST and all(deb.url.startswith("file:///srv/") for deb in found.debs)
    (files := mainline_install.fetch(box(tmp_path), found.debs))
    assert [Path(f"{tmp_path}{path}").stat().st_size for path in files] == [deb.size for deb in found.debs]


def test_a_version_can_be_pinned_in_both_forms(tmp_path: Path, server: Nasty, signer: Signer) -> None:
    site = usual(signer)
    url = site.serve(server)
    for pin in ("6.18.20", "6.18.20-061820-generic"):
        found = take(box(tmp_path), site, url, STRIX._replace(version=pin))
        assert found.release == "6.18.20-061820-generic"
    with pytest.raises(Unusable, match=r"has not 6\.18\.99; .* are 6\.18\.36, 6\.18\.20"):
        take(box(tmp_path), site, url, STRIX._replace(version="6.18.99"))
    # A pin is judged as any kernel: the choice refuses what is bad.
    assert take(box(tmp_path), site, url, STRIX._replace(version="6.17.9")).forecast.verdict == "bad"
    with pytest.raises(Unusable, match=r"6\.18\.37: the amd64 build of v6\.18\.37 has not succeeded"):
        take(box(tmp_path), site, url, STRIX._replace(version="6.18.37"))


def test_under_dkms_the_newest_kernel_is_one_it_builds_on_and_headers_come_along(
    tmp_path: Path, server: Nasty, signer: Signer
) -> None:
    site = usual(signer).version("7.1.2")
    question = STRIX._replace(under_dkms=True, dkms=driver_releases.release("31.20"))
    found = take(box(tmp_path), site, site.serve(server), question)
    assert found.release == NEWEST
    assert found.packages[2:] == ("linux-headers-6.18.36-061836-generic", "linux-headers-6.18.36-061836")


def test_another_dkms_module_needs_headers_and_says_so_where_they_cannot_be_had(
    tmp_path: Path, server: Nasty, signer: Signer
) -> None:
    site = usual(signer)
    url = site.serve(server)
    for path in ("var/lib/dkms/r8125/9.015/source", "var/lib/dkms/amdgpu/6.16.13/source"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "var/lib/dkms/mok.key").touch()
    assert len(take(box(tmp_path), site, url).debs) == 4
    with pytest.raises(Unusable, match=r"libc6 \(>= 2\.38\).*needed by the DKMS modules r8125\)"):
        take(box(tmp_path), site, url, apt=FakeApt(tmp_path, ["headers"]))


def test_a_build_that_apt_cannot_install_or_that_removes_something_is_passed_over(
    tmp_path: Path, server: Nasty, signer: Signer
) -> None:
    site = usual(signer)
    url = site.serve(server)
    assert take(box(tmp_path), site, url, apt=FakeApt(tmp_path, ["6.18.36"])).release.startswith("6.18.20-")
    with pytest.raises(Unusable, match="would remove zfs-dkms"):
        take(box(tmp_path), site, url, apt=FakeApt(tmp_path, removes=["zfs-dkms"]))


def test_a_host_whose_packages_are_broken_is_repaired_first(
    tmp_path: Path, server: Nasty, signer: Signer
) -> None:
    site, apt = usual(signer), FakeApt(tmp_path)
    apt.unsound = True
    assert take(box(tmp_path), site, site.serve(server), apt=apt).release == NEWEST


def test_a_signature_of_somebody_else_is_an_alarm(
    tmp_path: Path, server: Nasty, signer: Signer, stranger: Signer
) -> None:
    site = usual(signer).version("6.18.36", signer=stranger)
    with pytest.raises(Tampered, match=f"is not signed by {signer.fingerprint}") as caught:
        take(box(tmp_path), site, site.serve(server))
    assert caught.value.kind == "kernel-source-refused" and "Nothing was changed" in caught.value.remedy


def test_a_changed_list_and_a_missing_signature_are_alarms(
    tmp_path: Path, server: Nasty, signer: Signer
) -> None:
    site = usual(signer)
    path = "v6.18.36/amd64/CHECKSUMS"
    site.files[path] = site.files[path].replace(b"linux-image", b"linux-imagf")
    with pytest.raises(Tampered, match="gpgv says"):
        take(box(tmp_path), site, site.serve(server))
    del site.files[f"{path}.gpg"], server.files[f"/mainline/{path}.gpg"]
    with pytest.raises(Tampered, match="has no signature"):
        take(box(tmp_path), site, site.serve(server))


def test_the_keyservers_answer_must_be_the_pinned_key(
    tmp_path: Path, server: Nasty, signer: Signer, stranger: Signer
) -> None:
    site = usual(signer)
    url = site.serve(server)
    server.files["/key.asc"] = stranger.key
    with pytest.raises(Tampered, match=f"holds {stranger.fingerprint}, not {signer.fingerprint}"):
        take(box(tmp_path), site, url)
    # A keyring with more keys is fine, and only the pinned one counts.
    server.files["/key.asc"] = stranger.key + signer.key
    assert take(box(tmp_path), site, url).release == NEWEST
    site.version("6.18.36", signer=stranger).serve(server)
    server.files["/key.asc"] = stranger.key + signer.key
    with pytest.raises(Tampered):
        take(box(tmp_path), site, url)
    server.files["/key.asc"] = b"<html>No results found</html>"
    with pytest.raises(Tampered, match="the key cannot be read"):
        take(box(tmp_path), site, url)
    with pytest.raises(Unusable, match=r"the signing key .* is not at /no/such/key"):
        take(box(tmp_path), site, url, key="/no/such/key")


def test_an_expired_key_does_not_count(tmp_path: Path, server: Nasty) -> None:
    old = Signer.make("2025-02-01")
    try:
        site = Site(old).version("6.18.36")
        with pytest.raises(Tampered, match="is not signed by"):
            take(box(tmp_path), site, site.serve(server))
    finally:
        shutil.rmtree(old.home)


def test_without_a_line_for_a_package_the_build_is_not_taken(
    tmp_path: Path, server: Nasty, signer: Signer
) -> None:
    whole = debs("6.18.36")
    listed = {name: data for name, data in whole.items() if "modules" not in name}
    site = usual(signer).version("6.18.36", whole, listed=listed)
    url = site.serve(server)
    assert take(box(tmp_path), site, url).release.startswith("6.18.20-")
    with pytest.raises(Unusable, match=f"newest build .*{STAMP}.* has no linux-modules-6.18.36"):
        take(box(tmp_path), site, url, STRIX._replace(version="6.18.36"))


def test_an_unfinished_newest_build_is_not_completed_from_an_older_one(
    tmp_path: Path, server: Nasty, signer: Signer
) -> None:
    newer = {name: data for name, data in debs("6.18.36").items() if "image" in name}
    site = Site(signer).version("6.18.36", {**debs("6.18.36", OLDER), **newer})
    with pytest.raises(Unusable, match="has no linux-modules"):
        take(box(tmp_path), site, site.serve(server))


def test_a_server_that_is_away_or_has_no_tree_is_told(tmp_path: Path, server: Nasty, signer: Signer) -> None:
    site = usual(signer)
    with pytest.raises(Unusable, match="HTTP 404"):
        take(box(tmp_path), site, f"{server.url}/mainline")
    site.serve(server)
    server.moves["/mainline/v6.18.36/amd64/CHECKSUMS"] = [nasty.status(403)]
    with pytest.raises(FetchError, match="HTTP 403"):
        take(box(tmp_path), site, f"{server.url}/mainline")
    with pytest.raises(Unusable, match="is no folder on this host"):
        take(box(tmp_path), site, "/srv/nothing", key="/k")


def test_a_page_in_place_of_a_package_is_no_package(tmp_path: Path, server: Nasty, signer: Signer) -> None:
    site = usual(signer)
    url = site.serve(server)
    for path in list(server.files):
        if "6.18.36" in path and path.endswith(".deb"):
            server.files[path] = b"<html>captive portal</html>"
    assert take(box(tmp_path), site, url).release.startswith("6.18.20-")
