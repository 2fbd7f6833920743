# SPDX-License-Identifier: Apache-2.0
"""A mainline kernel's packages: resumed, compared, counted, installed; and Secure Boot."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import nasty
import pytest
from mainline_site import (
    NEWEST,
    Signer,
    box,
    take,
    usual,
)
from nasty import POLICY, Nasty

from lemonade_deploy.domain import (
    kernel_plan,
    kernel_signing,
    mainline,
    mainline_candidates,
    mainline_install,
    paths,
    secure_boot,
)
from lemonade_deploy.domain.fetch import FetchError
from lemonade_deploy.domain.host import Completed, Host
from lemonade_deploy.domain.kernel_choice import Deb
from lemonade_deploy.domain.kernel_plan import KernelWish
from lemonade_deploy.domain.mainline import Unusable
from lemonade_deploy.domain.refusal import Refused

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("dpkg-deb", "gpg", "gpgv")),
    reason="needs dpkg-deb, gpg and gpgv",
)


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


def machine(root: Path, installed: str = "install ok installed") -> tuple[Host, list[tuple[str, ...]]]:
    """A host whose apt-get installs what it is given, and the commands that were run."""
    ran: list[tuple[str, ...]] = []

    def run(
        argv: Sequence[str], _env: Mapping[str, str], _stdin: str | None, _timeout: float | None
    ) -> Completed:
        ran.append(tuple(argv))
        if argv[0] == "apt-get":
            names = [Path(word).name.removesuffix(".deb") for word in argv if word.endswith(".deb")]
            assert all((root / word.lstrip("/")).is_file() for word in argv if word.endswith(".deb"))
            status = "\n".join(
                f"Package: {name}\nStatus: {installed}\nArchitecture: amd64\nVersion: 1\n" for name in names
            )
            place = root / "var/lib/dpkg/status"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(status)
        if argv[0] == "sbsign":
            # 10_linux takes every /boot/vmlinuz-* for a kernel.
            assert not argv[argv.index("--output") + 1].startswith("/boot/vmlinuz-")
            (root / argv[argv.index("--output") + 1].lstrip("/")).write_bytes(b"signed")
        return Completed(tuple(argv), 0, "", "")

    return Host(str(root), runner=run), ran


def test_apt_installs_the_verified_files_and_they_are_read_back(
    tmp_path: Path, server: Nasty, signer: Signer
) -> None:
    site = usual(signer)
    found = take(box(tmp_path), site, site.serve(server))
    host, ran = machine(tmp_path)
    assert mainline_install.install(host, found.debs, NEWEST, "/hold") == [deb.name for deb in found.debs]
    (argv,) = ran
    folder = paths.KERNEL_CACHE
    assert list(argv[-3:]) == ["--reinstall", *(f"{folder}/{deb.name}.deb" for deb in found.debs)]
    assert "DPkg::Path=/hold" in argv and not (tmp_path / folder.lstrip("/")).exists()
    host, _ran = machine(tmp_path, "install ok half-configured")
    with pytest.raises(Refused, match="apt did not install linux-image-unsigned-"):
        mainline_install.install(host, found.debs, NEWEST)


def test_nothing_is_installed_where_one_package_is_not_what_was_signed(
    tmp_path: Path, server: Nasty, signer: Signer
) -> None:
    site = usual(signer)
    found = take(box(tmp_path), site, site.serve(server))
    path = found.debs[1].url.removeprefix(server.url)
    server.files[path] = server.files[path].replace(b"p", b"q")
    host, ran = machine(tmp_path)
    with pytest.raises(Refused):
        mainline_install.install(host, found.debs, NEWEST)
    assert ran == []


def test_under_secure_boot_the_image_is_signed_in_its_place(
    tmp_path: Path, server: Nasty, signer: Signer
) -> None:
    site = usual(signer)
    found = take(box(tmp_path), site, site.serve(server))
    efi(tmp_path, 1)
    (tmp_path / "boot").mkdir()
    image = tmp_path / f"boot/vmlinuz-{NEWEST}"
    image.write_bytes(b"unsigned")
    host, ran = machine(tmp_path)
    mainline_install.install(host, found.debs, NEWEST)
    assert image.read_bytes() == b"signed" and [path.name for path in image.parent.iterdir()] == [image.name]
    assert [argv[0] for argv in ran] == ["apt-get", "sbsign"]


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


def image(certificates: int, wide: bool = True) -> bytes:
    """The head of a kernel's image: MZ, PE, the optional header and its data directories."""
    directories = b"".join(struct.pack("<II", 0, size) for size in (0, 0, 0, 0, certificates, 0))
    optional = (b"\x0b\x02" if wide else b"\x0b\x01").ljust(112 if wide else 96, b"\1") + directories
    return b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x80) + b"\0" * 64 + b"PE\0\0" + b"\1" * 20 + optional


@pytest.mark.parametrize("secure", [0, 1])
@pytest.mark.parametrize(
    ("data", "signed"),
    [
        (image(1), True),
        (image(0x700, wide=False), True),
        (image(0), False),
        (image(0, wide=False), False),
        (image(1)[:200], False),
        (b"", False),
    ],
)
def test_a_plug_pulled_between_apt_and_the_signature_leaves_a_kernel_that_is_installed_anew(
    tmp_path: Path, data: bytes, signed: bool, secure: int
) -> None:
    """The firmware would refuse it, boot after boot."""
    efi(tmp_path, secure)
    own = tmp_path / f"lib/modules/{NEWEST}/kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko.zst"
    for folder in (tmp_path / "boot", own.parent):
        folder.mkdir(parents=True)
    own.touch()
    (tmp_path / f"boot/vmlinuz-{NEWEST}").write_bytes(data)
    wish = KernelWish(NEWEST, (), debs=(Deb("x", "https://m/x.deb", "0" * 64),))
    assert kernel_plan.is_installed(box(tmp_path), wish) == (signed or not secure)
    assert kernel_plan.is_installed(box(tmp_path), replace(wish, debs=())), "the distribution signs its own"
