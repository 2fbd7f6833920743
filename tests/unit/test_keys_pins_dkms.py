# SPDX-License-Identifier: Apache-2.0
"""OpenPGP keys, apt pins, DKMS's tree, modprobe files, the service's user."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import AMD_LINE, DKMS_VERSION, PIN, Tree, bare

from lemonade_deploy.domain import (
    apt_keys,
    apt_pins,
    apt_sources,
    cmdline_traps,
    dkms,
    kernels,
    modprobe_conf,
    openpgp,
)
from lemonade_deploy.domain.service_user import read_access

# Made with `gpg --quick-gen-key` for these tests; its private half is gone. It ends after a year.
KEY = base64.b64decode(
    """
    mDMEaw1h0xYJKwYBBAHaRw8BAQdAxnm+crsxg++gSqK6QYllN+o4nfUCrbNXCmhhchYEoPK0G1Rl
    c3QgPHRlc3RAZXhhbXBsZS5pbnZhbGlkPoiWBBMWCAA+FiEEUHARdsmhOB/fAchCzMJOBuMVLDoF
    AmsNYdMCGwMFCQHhM4AFCwkIBwIGFQoJCAsCBBYCAwECHgECF4AACgkQzMJOBuMVLDqlxgD+Pgft
    Z1kIuMrm0xtHgNE8NtHviuU8ton/dnmwYAsXGyYA/j9H+DIP0hftlBJxTPS/rP4+VfqMfh2n8gmV
    vuGX3kEI
    """
)
FINGERPRINT = "50701176C9A1381FDF01C842CCC24E06E3152C3A"
CREATED = 1796039123
YEAR = 365 * 24 * 3600
AMD_LIST = "/etc/apt/sources.list.d/amdgpu.list"


def armour(data: bytes) -> bytes:
    body = base64.encodebytes(data).decode()
    begin, end = (f"-----{word} PGP PUBLIC KEY BLOCK-----\n" for word in ("BEGIN", "END"))
    return f"{begin}Comment: x\n\n{body}=abcd\n{end}".encode()


@pytest.mark.parametrize("data", [KEY, armour(KEY), armour(KEY).replace(b"\n", b"\r\n")])
def test_fingerprint_and_expiry(data: bytes) -> None:
    (key,) = openpgp.read_keys(data)
    assert key == openpgp.Key(FINGERPRINT, CREATED, CREATED + YEAR)
    assert key.expired(CREATED + YEAR) and not key.expired(CREATED + YEAR - 1)


def test_several_keys_in_a_file() -> None:
    assert len(openpgp.read_keys(KEY + KEY)) == 2


@pytest.mark.parametrize("data", [b"", b"<html>", KEY[:200], b"\xc6\x01", armour(b"\xff\xff")])
def test_what_is_no_key(data: bytes) -> None:
    with pytest.raises(openpgp.Unreadable):
        openpgp.read_keys(data)


@given(st.binary(max_size=80), st.integers(0, len(KEY)))
def test_damage_is_never_more_than_unreadable(noise: bytes, at: int) -> None:
    for data in (noise, KEY[:at] + noise + KEY[at:], b"\x99" + noise, b"\xc6" + noise):
        try:
            openpgp.read_keys(data)
        except openpgp.Unreadable:
            continue


@pytest.mark.skipif(shutil.which("gpg") is None, reason="compares with gpg itself")
def test_agrees_with_gpg(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    path = tmp_path / "key.gpg"
    path.write_bytes(KEY)
    argv = ["gpg", "--homedir", str(home), "--show-keys", "--with-colons", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    fields = {line.split(":")[0]: line.split(":") for line in reversed(done.stdout.splitlines())}
    assert fields["fpr"][9] == FINGERPRINT
    assert (fields["pub"][5], fields["pub"][6]) == (str(CREATED), str(CREATED + YEAR))


@pytest.mark.parametrize(
    ("files", "line", "now", "state"),
    [
        ({"/etc/apt/keyrings/rocm.gpg": KEY}, AMD_LINE.format("31.20"), CREATED, "ok"),
        ({"/etc/apt/keyrings/rocm.gpg": armour(KEY)}, AMD_LINE.format("31.20"), CREATED, "ok"),
        (
            {"/etc/apt/keyrings/rocm.gpg": KEY},
            AMD_LINE.format("31.20"),
            CREATED + YEAR - 3600,
            "expires-soon",
        ),
        ({"/etc/apt/keyrings/rocm.gpg": KEY}, AMD_LINE.format("31.20"), CREATED + YEAR + 1, "expired"),
        ({"/etc/apt/keyrings/rocm.gpg": b""}, AMD_LINE.format("31.20"), CREATED, "unreadable"),
        ({}, AMD_LINE.format("31.20"), CREATED, "missing"),
        # No Signed-By: any of apt's trusted keys.
        (
            {"/etc/apt/trusted.gpg.d/amd.asc": armour(KEY)},
            "deb https://x/amdgpu/31.20/ubuntu noble main\n",
            CREATED,
            "ok",
        ),
        ({}, "deb https://x/amdgpu/31.20/ubuntu noble main\n", CREATED, "missing"),
        (
            {"/etc/apt/trusted.gpg.d/amd.gpg": KEY},
            "deb https://x/amdgpu/31.20/ubuntu noble main\n",
            CREATED + YEAR,
            "expired",
        ),
    ],
)
def test_key_states(tmp_path: Path, files: dict[str, bytes], line: str, now: float, state: str) -> None:
    tree = Tree(tmp_path).file(AMD_LIST, line)
    for path, data in files.items():
        tree.file(path, data)
    (entry,) = apt_sources.driver_entries(apt_sources.read_sources(tree.host))
    judged = apt_keys.entry_key(tree.host, entry, FINGERPRINT.lower(), now)
    assert judged.state == state
    assert judged.usable == (state in ("ok", "expires-soon"))
    other = apt_keys.entry_key(tree.host, entry, "0" * 40, now)
    assert not other.usable


def test_a_key_inside_the_stanza(tmp_path: Path) -> None:
    key = "\n".join(f" {line or '.'}" for line in armour(KEY).decode().splitlines())
    text = "Types: deb\nURIs: https://x/amdgpu/31.20/ubuntu\nSuites: noble\nComponents: main\n"
    text += f"Signed-By:\n{key}\n"
    tree = Tree(tmp_path).file("/etc/apt/sources.list.d/a.sources", text)
    (entry,) = apt_sources.driver_entries(apt_sources.read_sources(tree.host))
    assert apt_keys.entry_key(tree.host, entry, FINGERPRINT, CREATED).state == "ok"


@pytest.mark.parametrize(
    ("text", "works"),
    [
        (PIN, True),
        ("# x\nExplanation: y\nPackage: *\nPin: origin repo.radeon.com\nPin-Priority: 1001\n", True),
        ('Package: *\nPin: origin "repo.radeon.com"\nPin-Priority: 600', True),
        (PIN.replace("600", "400"), False),
        (PIN.replace("600", "six"), False),
        (PIN.replace("repo.radeon.com", "Ubuntu"), False),
        (PIN.replace("*", "rocm"), False),
        (PIN.replace("\n", "\\n"), False),
        ("", False),
    ],
)
def test_repository_pins(tmp_path: Path, text: str, works: bool) -> None:
    tree = Tree(tmp_path).file("/etc/apt/preferences.d/rocm-pin-600", "Package: x\n\n" + text)
    assert (apt_pins.repository_pin(apt_pins.read_pins(tree.host)) is not None) == works
    ignored = Tree(tmp_path / "b").file("/etc/apt/preferences.d/rocm.bak", PIN)
    assert apt_pins.read_pins(ignored.host) == []


def test_own_pin(tmp_path: Path) -> None:
    text = "Package: amdgpu-dkms amdgpu-dkms-firmware\nPin: version *\nPin-Priority: -1\n"
    tree = Tree(tmp_path).file("/etc/apt/preferences.d/lemonade-deploy-amdgpu", text)
    pins = apt_pins.read_pins(tree.host)
    assert apt_pins.own_pin(pins) is not None
    assert apt_pins.repository_pin(pins) is None


def test_dkms_tree(tmp_path: Path) -> None:
    tree = (
        bare(tmp_path)
        .dkms(built=["6.14.0-37-generic"])
        .dkms("6.19.0-1", failed="7.0.0-31-generic", source=False)
    )
    old, new = dkms.read_versions(tree.host)
    assert (old.version, old.built, old.installed, old.broken, old.failed_log) == (
        DKMS_VERSION,
        ("6.14.0-37-generic",),
        ("6.14.0-37-generic",),
        False,
        None,
    )
    assert (new.broken, new.failed_kernel) == (True, "7.0.0-31-generic")
    assert new.failed_why == "kcl.c:1: error: no"
    assert dkms.read_versions(Tree(tmp_path / "none").host) == []


@pytest.mark.parametrize("head", ["DKMS", "DKMS (dkms-3.2.2)"])
def test_both_forms_of_the_log_name_the_kernel(tmp_path: Path, head: str) -> None:
    log = f"/var/lib/dkms/amdgpu/{DKMS_VERSION}/build/make.log"
    text = f"{head} make.log for amdgpu/{DKMS_VERSION} for kernel 7.0.0-31-generic (x86_64)\n"
    (version,) = dkms.read_versions(Tree(tmp_path).file(log, text).host)
    assert (version.failed_kernel, version.failed_why) == ("7.0.0-31-generic", None)
    tree = Tree(tmp_path).dkms(built=["7.0.0-31-generic"])
    assert dkms.read_versions(tree.host)[0].failed_log is None


def test_built_and_not_installed(tmp_path: Path) -> None:
    tree = Tree(tmp_path).dkms().file(f"/var/lib/dkms/amdgpu/{DKMS_VERSION}/k/x86_64/module/amdgpu.ko")
    (version,) = dkms.read_versions(tree.host)
    assert (version.built, version.installed) == (("k",), ())
    tree.file("/lib/modules/k/updates/dkms/amdgpu.ko")
    assert dkms.read_versions(tree.host)[0].installed == ("k",)


def test_an_earlier_modprobe_folder_hides_a_later_one(tmp_path: Path) -> None:
    tree = (
        Tree(tmp_path)
        .file("/usr/lib/modprobe.d/a.conf", "blacklist amdgpu\n")
        .file("/etc/modprobe.d/a.conf", "")
    )
    assert modprobe_conf.blacklists(tree.host) == []
    tree.file("/usr/lib/modprobe.d/b.conf", "x\r\n  blacklist\tamdgpu \n")
    (line,) = modprobe_conf.blacklists(tree.host)
    assert (line.path, line.line) == ("/usr/lib/modprobe.d/b.conf", 2)


def test_command_line_traps() -> None:
    words = (
        "quiet module_blacklist=amdgpu amdgpu.cwsr_enable=1 modprobe.blacklist=radeon amdgpu.cwsr-enable=0"
    )
    assert [trap.word for trap in cmdline_traps.traps(words)] == [
        "module_blacklist=amdgpu",
        "amdgpu.cwsr-enable=0",
    ]


def test_service_user(tmp_path: Path) -> None:
    tree = bare(tmp_path)
    assert not read_access(tree.host, "lemonade").exists
    tree.users(["render"]).file("/dev/kfd").file("/dev/dri/renderD128").file("/dev/dri/card0")
    os.chmod(tmp_path / "dev/kfd", 0o666)
    os.chmod(tmp_path / "dev/dri/renderD128", 0o660)
    access = read_access(tree.host, "lemonade")
    assert (access.exists, access.missing_groups, access.closed) == (
        True,
        ("video",),
        ("/dev/dri/renderD128",),
    )


def test_primary_group_counts(tmp_path: Path) -> None:
    tree = bare(tmp_path).file("/etc/passwd", "lemonade:x:990:101::/:/bin/false\nbroken\n")
    tree.file("/etc/group", "render:x:100:a,lemonade\nvideo:x:101:\nbad:x:y:lemonade\n:::\n")
    assert read_access(tree.host, "lemonade").missing_groups == ()


def test_kernel_sort_order() -> None:
    names = ["6.19.0-061900rc2-generic", "6.19.0-061900-generic", "7.0.0-9-generic", "7.0.0-31-generic"]
    parsed = [kernels.parse(name) for name in names]
    keys = [kernels.sort_key(kernel) for kernel in parsed if kernel]
    assert keys == sorted(keys)
