# SPDX-License-Identifier: Apache-2.0
"""The simulated repositories: signed, laid out as the real ones, rebuilt only where something is missing."""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from lemonade_deploy.domain import mainline as domain_mainline
from lemonade_deploy.lab import catalog
from lemonade_deploy.lab.services import assembly, debs, keys, repositories, upstream

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("dpkg-deb", "apt-ftparchive", "gpg", "gpgv")),
    reason="needs dpkg-deb, apt-ftparchive, gpg and gpgv",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[assembly.Services, Path]:
    """Everything built once; Debian's packages are stand-ins here, so that no network is needed."""
    cache, www = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("www")
    (www / "github.com").mkdir()
    real = cache / "services" / "real"
    for name in (*catalog.REAL_PPA_PACKAGES, *catalog.REAL_ARCHIVE_PACKAGES):
        debs.build(debs.Deb(name, "1-1", "stand-in"), real)
    return assembly.build(cache, www, lambda _text: None), www


def test_suites_are_signed_by_the_right_key(made: tuple[assembly.Services, Path]) -> None:
    services, www = made
    suites = {
        "repo.radeon.com/amdgpu/30.30/ubuntu": "amd",
        "repo.radeon.com/amdgpu/31.20/ubuntu": "amd",
        "repo.radeon.com/amdgpu/latest/ubuntu": "amd",
        "repo.radeon.com/rocm/apt/7.2": "amd",
        "archive.ubuntu.com/ubuntu": "archive",
        "ppa.launchpadcontent.net/lemonade-team/stable/ubuntu": "ppa",
    }
    for tree, role in suites.items():
        for other in ("amd", "archive", "ppa"):
            ring = services.key_files[other]
            inline = www / tree / "dists/noble/InRelease"
            done = subprocess.run(["gpgv", "--keyring", ring, inline], capture_output=True, check=False)
            assert (done.returncode == 0) == (role == other), (tree, other)
    assert not (www / "repo.radeon.com/amdgpu" / catalog.MISSING_REPOSITORY).exists()


def test_mainline_is_laid_out_and_signed_as_the_real_one(made: tuple[assembly.Services, Path]) -> None:
    services, www = made
    tree = www / "kernel.ubuntu.com/mainline"
    versions = domain_mainline.versions(domain_mainline.folders((tree / "index.html").read_text()))
    assert [version.folder for version in versions] == ["v6.18.37", "v6.18.36", "v6.17.9"]
    failed, good = versions[0], versions[1]
    assert not domain_mainline.succeeded((tree / failed.folder / "index.html").read_text())
    assert not (tree / failed.folder / "amd64").exists()
    assert domain_mainline.succeeded((tree / good.folder / "index.html").read_text())
    folder = tree / good.folder / "amd64"
    for role in ("mainline", "archive"):
        words = [
            "gpgv",
            "--keyring",
            services.key_files[role],
            folder / "CHECKSUMS.gpg",
            folder / "CHECKSUMS",
        ]
        done = subprocess.run(words, capture_output=True, check=False)
        assert (done.returncode == 0) == (role == "mainline")
    sums = domain_mainline.checksums((folder / "CHECKSUMS").read_text())
    assert len(sums) == 8 == len(list(folder.glob("*.deb")))  # two builds of four packages
    for package in domain_mainline.select(good, sums, headers=True):
        assert package.version == catalog.MAINLINE_KERNEL.version
        assert hashlib.sha256((folder / package.file).read_bytes()).hexdigest() == package.sha256


def test_indexes_match_the_pool(made: tuple[assembly.Services, Path]) -> None:
    _, www = made
    tree = www / repositories.ARCHIVE_HOST / "ubuntu"
    text = (tree / "dists/noble/main/binary-amd64/Packages").read_text()
    stanzas = [dict(re.findall(r"^([\w-]+): (.+)$", stanza, re.M)) for stanza in text.strip().split("\n\n")]
    names = {stanza["Package"] for stanza in stanzas}
    assert {"linux-generic-hwe-24.04", "linux-oem-24.04d", "linux-firmware", "libc6-dev"} <= names
    for stanza in stanzas:
        data = (tree / stanza["Filename"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == stanza["SHA256"]
    release = (tree / "dists/noble/Release").read_text()
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert f" {digest} " in release
    assert "Origin: Ubuntu\n" in release


def test_second_build_changes_nothing_and_spoiled_sites_come_back(
    made: tuple[assembly.Services, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    services, www = made
    cache = services.ca_pem.parents[2]
    served = www / "repo.radeon.com/rocm/rocm.gpg.key"
    before = served.stat().st_mtime_ns

    def never(*_: object) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(repositories, "build_sites", never)
    monkeypatch.setattr(upstream, "fetch", never)
    again = assembly.build(cache, www, never)
    assert again == services
    assert served.stat().st_mtime_ns == before
    served.write_text("spoiled")
    (www / ".lab-services").unlink()
    assembly.build(cache, www, never)
    assert served.read_bytes() == services.key_paths["amd"].read_bytes()
    assert (www / "github.com").is_dir()  # of someone else: stays


def test_labs_that_share_a_cache_wait_for_each_other(
    made: tuple[assembly.Services, Path], tmp_path: Path
) -> None:
    services, _ = made
    home = services.ca_pem.parents[1]
    done = threading.Event()

    def other() -> None:
        assembly.build(home.parent, tmp_path / "www", lambda _text: None)
        done.set()

    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=other)
        thread.start()
        assert not done.wait(0.3)
    thread.join(timeout=30)
    assert done.is_set()
    assert (tmp_path / "www/repo.radeon.com/rocm/rocm.gpg.key").is_file()


def test_expired_form_is_the_same_key(made: tuple[assembly.Services, Path]) -> None:
    services, _ = made
    assert services.fingerprints["amd-expired"] == services.fingerprints["amd"]
    with keys.gpg_home() as gpg:
        validity = {}
        for role in ("amd", "amd-expired"):
            shown = subprocess.run(
                [*gpg, "--show-keys", "--with-colons", services.key_paths[role]],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            validity[role] = next(line for line in shown.splitlines() if line.startswith("pub")).split(":")[1]
    assert validity["amd-expired"] == "e"
    assert validity["amd"] != "e"
    for path in services.ca_pem.parents[1].joinpath("keys").glob("*.secret.asc"):
        assert path.stat().st_mode & 0o077 == 0
