# SPDX-License-Identifier: Apache-2.0
"""Mainline kernels: which build is taken, what is believed of a mirror, and how the packages come in."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nasty
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mainline_site import OLDER, STAMP, FakeApt, Signer, Site, box, checksums, debs
from nasty import POLICY, Nasty, serving

from lemonade_deploy.domain import (
    driver_releases,
    kernel_signing,
    mainline,
    mainline_candidates,
    mainline_install,
    mainline_source,
    paths,
    secure_boot,
    signature,
)
from lemonade_deploy.domain.distribution import Distribution
from lemonade_deploy.domain.fetch import FetchError
from lemonade_deploy.domain.host import Completed, Host
from lemonade_deploy.domain.kernel_choice import KernelCandidate, Mainline, Question
from lemonade_deploy.domain.mainline import Unusable
from lemonade_deploy.domain.mainline_source import Tampered
from lemonade_deploy.domain.refusal import Refused

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("dpkg-deb", "gpg", "gpgv")),
    reason="needs dpkg-deb, gpg and gpgv",
)
NOBLE = Distribution("ubuntu", "24.04", "noble")
STRIX = Question(NOBLE, ("gfx1151",), "mainline")
NEWEST = "6.18.36-061836-generic"


@pytest.fixture(scope="session")
def signer() -> Iterator[Signer]:
    """The pinned key."""
    made = Signer.make()
    yield made
    shutil.rmtree(made.home)


@pytest.fixture(scope="session")
def stranger() -> Iterator[Signer]:
    """Somebody else's key."""
    made = Signer.make()
    yield made
    shutil.rmtree(made.home)


@pytest.fixture
def server() -> Iterator[Nasty]:
    """A server that can misbehave."""
    with serving() as running:
        yield running


def usual(signer: Signer) -> Site:
    """A version that is too old, one built twice, one that failed, and a release candidate."""
    site = Site(signer).version("6.17.9").version("6.18.20")
    return site.version("6.18.36", {**debs("6.18.36", OLDER), **debs("6.18.36")}).failed("6.18.37")


def settings(site: Site, url: str, key: str = "") -> Mainline:
    address = url.partition("/mainline")[0]
    return Mainline(url, site.signer.fingerprint, key or f"{address}/key.asc")


def take(
    host: Host, site: Site, url: str, question: Question = STRIX, apt: FakeApt | None = None, key: str = ""
) -> KernelCandidate:
    return mainline_candidates.find(
        host,
        question,
        settings(site, url, key),
        apt or FakeApt(Path(host.root)),  # type: ignore[arg-type]
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
    url, hung_up = site.serve(server), []

    def patient(handler: nasty.Handler, body: bytes, _start: int) -> None:
        """The first bytes, and then none until the client goes away."""
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: 70 << 10])
        handler.wfile.flush()
        handler.connection.settimeout(10)
        hung_up.append(handler.connection.recv(1) == b"")
        handler.close_connection = True

    (path,) = (path for path in server.files if "unsigned-6.18.36" in path and STAMP in path)
    server.moves[path] = [patient]
    found = take(box(tmp_path), site, url)
    assert (found.release, hung_up) == (NEWEST, [True])


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
    site.lay(tmp_path / "srv/mainline dir")
    (tmp_path / "srv/key.asc").write_bytes(signer.key)
    url = form.format("/srv/mainline dir" if "file" not in form else "/srv/mainline%20dir")
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
    with pytest.raises(Unusable, match=r"has not 6\.18\.99; its newest are 6\.18\.37, 6\.18\.36"):
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
    site = Site(old).version("6.18.36")
    with pytest.raises(Tampered, match="is not signed by"):
        take(box(tmp_path), site, site.serve(server))
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


# The packages themselves.


def cached(root: Path) -> list[str]:
    folder = root / paths.KERNEL_CACHE.lstrip("/")
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_packages_go_on_where_they_broke_also_in_a_later_run(
    tmp_path: Path, server: Nasty, signer: Signer
) -> None:
    site = usual(signer)
    found = take(box(tmp_path), site, site.serve(server))
    path = found.debs[0].url.removeprefix(server.url)
    server.requests.clear()
    server.moves[path] = [nasty.cut(50_000), nasty.status(403)]
    with pytest.raises(FetchError):
        mainline_install.fetch(box(tmp_path), found.debs, POLICY)
    assert cached(tmp_path) == [f"{found.debs[0].name}.deb.part"]
    files = mainline_install.fetch(box(tmp_path), found.debs, POLICY)
    assert [part for asked, part in server.requests if asked == path] == [
        None,
        "bytes=50000-",
        "bytes=50000-",
    ]
    assert [Path(f"{tmp_path}{file}").read_bytes() for file in files] == [
        server.files[deb.url.removeprefix(server.url)] for deb in found.debs
    ]
    # What is there and right is not fetched again.
    server.requests.clear()
    assert mainline_install.fetch(box(tmp_path), found.debs, POLICY) == files and not server.requests


def test_a_changed_package_is_refused_and_not_kept(tmp_path: Path, server: Nasty, signer: Signer) -> None:
    site = usual(signer)
    found = take(box(tmp_path), site, site.serve(server))
    path = found.debs[1].url.removeprefix(server.url)
    server.files[path] = server.files[path].replace(b"p", b"q")
    with pytest.raises(Refused, match="is not the file that the signed CHECKSUMS names") as caught:
        mainline_install.fetch(box(tmp_path), found.debs, POLICY)
    assert caught.value.kind == "kernel-source-refused"
    assert cached(tmp_path) == [f"{found.debs[0].name}.deb"]


def test_a_left_over_of_another_build_is_begun_anew(tmp_path: Path, server: Nasty, signer: Signer) -> None:
    site = usual(signer)
    found = take(box(tmp_path), site, site.serve(server))
    part = tmp_path / paths.KERNEL_CACHE.lstrip("/") / f"{found.debs[0].name}.deb.part"
    part.parent.mkdir(parents=True)
    for left in (b"other" * 100, b"z" * found.debs[0].size, b"z" * (found.debs[0].size + 7)):
        part.write_bytes(left)
        file, *_rest = mainline_install.fetch(box(tmp_path), found.debs, POLICY)
        assert Path(f"{tmp_path}{file}").stat().st_size == found.debs[0].size
        Path(f"{tmp_path}{file}").unlink()


def test_room_is_asked_for_before_anything_is_fetched(
    tmp_path: Path, server: Nasty, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = usual(signer)
    found = take(box(tmp_path), site, site.serve(server))
    monkeypatch.setattr(mainline_install.disk, "free_bytes", lambda _host, _path: 1_000_000)
    with pytest.raises(Refused, match="has 0 MiB free, the kernel's packages need 1 MiB"):
        mainline_install.demand_room(box(tmp_path), found.debs)


@pytest.mark.parametrize(
    ("wanted", "verified", "good"),
    [
        (["a", "b"], ["a", "b"], True),
        (["a", "b"], ["b", "a"], True),
        (["a", "b"], ["a"], False),
        (["a", "b"], [], False),
        (["a", "b"], ["a", "a"], False),
        (["a"], ["a", "b"], False),
        (["a", "b"], ["a", "b", "b"], False),
    ],
)
def test_as_many_are_verified_as_are_wanted(wanted: list[str], verified: list[str], good: bool) -> None:
    if good:
        mainline.demand_counted(wanted, verified)
        return
    with pytest.raises(Unusable, match=f"{len(verified)} of {len(wanted)} packages were verified"):
        mainline.demand_counted(wanted, verified)


# Secure Boot.


def efi(root: Path, secure: int) -> None:
    place = root / secure_boot.EFIVAR.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(bytes((6, 0, 0, 0, secure)))


def test_secure_boot_takes_no_unsigned_kernel_unless_signing_is_set_up(tmp_path: Path) -> None:
    host = box(tmp_path)
    mainline_candidates.demand_bootable(host, secure_boot=False)
    with pytest.raises(Refused, match=r"signing is not set up .*MOK-Kernel\.priv, .*sbsign") as caught:
        mainline_candidates.demand_bootable(host, secure_boot=True)
    assert caught.value.kind == "secure-boot-unsigned-kernel"
    # Ubuntu's own MOK.priv is for modules only.
    folder = tmp_path / kernel_signing.FOLDER.lstrip("/")
    folder.mkdir(parents=True)
    for name in ("MOK.priv", "MOK.pem"):
        (folder / name).write_text("x")
    assert "MOK-Kernel.priv" in kernel_signing.lacks(host)
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x"]
    made = [*request, "-keyout", str(folder / "MOK-Kernel.priv"), "-out", str(folder / "MOK-Kernel.pem")]
    subprocess.run(made, capture_output=True, check=True)
    sbsign = tmp_path / "usr/bin/sbsign"
    sbsign.parent.mkdir(parents=True)
    sbsign.touch()
    assert "is not enrolled" in kernel_signing.lacks(host)
    der = subprocess.run(
        ["openssl", "x509", "-in", str(folder / "MOK-Kernel.pem"), "-outform", "DER"],
        capture_output=True,
        check=True,
    ).stdout
    enrolled = tmp_path / kernel_signing.ENROLLED.lstrip("/")
    enrolled.parent.mkdir(parents=True, exist_ok=True)
    enrolled.write_bytes(b"\x06\0\0\0" + b"\xa1" * 44 + der)
    assert kernel_signing.lacks(host) == ""
    mainline_candidates.demand_bootable(host, secure_boot=True)
    (folder / "MOK-Kernel.pem").write_text("no certificate")
    assert "is no certificate" in kernel_signing.lacks(host)


# Pages and lists, as texts.


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
