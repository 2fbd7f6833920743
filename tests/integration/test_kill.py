# SPDX-License-Identifier: Apache-2.0
"""Pulled plugs: the host dies, the controller dies, the disk is full. Never half a bundle, always a way on.

Two releases with the same bytes stand for the old bundle and the new one. The lab's release server is
slowed down, so that a kill hits the transfer, too.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lemonade_deploy.depot import lockfile
from lemonade_deploy.domain.lock import FILE_NAME, Release
from lemonade_deploy.domain.manifest import of_tree
from lemonade_deploy.domain.paths import BUNDLE_CURRENT, BUNDLE_ROOT, CACHE_DIR
from lemonade_deploy.lab import Lab, servers
from lemonade_deploy.lab.engine.light import RELEASE_BASE
from lemonade_deploy.lab.services.faults import Fault
from lemonade_deploy.lab.services.faults import write as plan_faults

from .depot_kit import connected, publish_again
from .kit import Ran, host_of, kit

pytestmark = pytest.mark.lab

HOST, OTHER = "it-kill", "it-kill2"
OLD = f"{RELEASE_BASE}-gfx1151"
NEW_BASE = RELEASE_BASE.replace("vllm0.0.0", "vllm0.0.1")
NEW = f"{NEW_BASE}-gfx1151"
RATE = 25_000_000  # bytes a second and connection: the bundle takes some 1.5 s
FEW, MANY = 2, 50
SEED = int(os.environ.get("LEMONADE_TEST_SEED", "1"))


class Site:
    """Two hosts that serve the old bundle, and the lock with the new one."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.lock = lab, folder / FILE_NAME
        self.releases: dict[str, Release] = lockfile.read(self.lock)

    def words(self, base: str, *more: str) -> tuple[str, ...]:
        """The command that makes the release *base* current."""
        told = ("-e", f"vllm_rocm_release={base}", "-e", f"vllm_rocm_lock_file={self.lock}")
        return ("site.yml", "-i", str(self.lab.inventory_path), *told, "-l", HOST, *more, "--json")

    def converge(self, base: str, *more: str) -> dict[str, Any]:
        ran = kit(*self.words(base, "-t", "vllm_rocm", *more))
        host = host_of(ran, HOST)
        assert (ran.rc, host["failure"]) == (0, None), host["failure"]
        return host

    def upper(self, path: str, host: str = HOST) -> Path:
        """A file of the host, seen from outside: it may be down."""
        return self.lab.host(host).folder / "upper" / path.lstrip("/")

    @property
    def current(self) -> str:
        return os.readlink(self.upper(BUNDLE_CURRENT))

    def assert_old_or_new(self) -> None:
        """What has a name is whole to the last byte; one of them is current."""
        names = {path.name for path in self.upper(BUNDLE_ROOT).iterdir() if path.is_dir()}
        for name in names - {"current"}:
            if name.endswith(".partial"):
                continue
            tree = self.releases[name].tree
            assert tree is not None
            assert of_tree(str(self.upper(f"{BUNDLE_ROOT}/{name}"))).digest() == tree.digest
        assert self.current in (OLD, NEW)
        assert self.current in names

    def assert_done(self) -> None:
        """The new one is current and whole, nothing unfinished is left, lemond serves from it."""
        self.assert_old_or_new()
        assert self.current == NEW
        left = {path.name for path in self.upper(BUNDLE_ROOT).iterdir()}
        assert not [name for name in left if name.endswith(".partial")], left
        said = self.lab.exec(HOST, ["curl", "-sS", "--fail", "http://127.0.0.1:13305/live"])
        assert said.rc == 0, said.stderr

    def assert_settled(self) -> None:
        """One more run finds nothing to do."""
        again = kit(*self.words(NEW_BASE, "-t", "vllm_rocm"))
        assert (again.rc, host_of(again, HOST)["changed"]) == (0, [])

    def go_back(self) -> None:
        """The old bundle is current again, and nothing of the new one is there."""
        root = BUNDLE_ROOT
        script = f"ln -sfn {OLD} {root}/current && rm -rf {root}/{NEW} && systemctl restart lemond"
        assert self.lab.exec(HOST, ["sudo", "sh", "-c", script]).rc == 0


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("kill")
    lab.up_all({HOST: "strix-halo-clean", OTHER: "strix-halo-clean"}, "light")
    publish_again(OLD, NEW)
    lock = str(folder / FILE_NAME)
    for base in (RELEASE_BASE, NEW_BASE):
        ran = connected(lab, folder, "depot", "lock", base, "--gfx", "gfx1151", "--lock", lock)
        assert ran.rc == 0, ran.stderr
    made = Site(lab, folder)
    told = ("-e", f"vllm_rocm_lock_file={lock}", "--skip-tags", "models,verify", "--json")
    ran = kit("site.yml", "-i", str(lab.inventory_path), *told, "-l", f"{HOST},{OTHER}")
    assert ran.rc == 0, ran.stdout + ran.stderr
    return made


@pytest.fixture
def slow_server() -> Any:
    """The release server sends as slowly as a long line does."""
    plan_faults(servers.www(), [Fault("github.com", "*.tar.gz", rate=RATE)])
    yield
    plan_faults(servers.www(), [])


def start(words: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """A controller in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "lemonade_deploy", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def moments(kills: int, chance: random.Random) -> list[float]:
    """How far each run comes before it is killed, spread evenly: share of the transfer; above 1: the swap."""
    return [(number + chance.random()) / kills * 1.2 for number in range(kills)]


def arrived_bytes(parts: Path) -> int:
    """Size of the parts that are there; the run may take them away while they are looked at."""
    found = 0
    for path in parts.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            found += path.stat().st_size
    return found


def wait_for(site: Site, process: subprocess.Popen[bytes], moment: float, chance: random.Random) -> None:
    """Until the host is so far: parts that have arrived, else the swap and a little more."""
    release, until = site.releases[NEW], time.monotonic() + 120
    parts, staging = site.upper(f"{CACHE_DIR}/{NEW}"), site.upper(f"{BUNDLE_ROOT}/{NEW}.partial")
    while process.poll() is None and site.current == OLD:
        arrived = arrived_bytes(parts) if staging.exists() else -1
        if arrived >= moment * release.size:
            return
        assert time.monotonic() < until
        time.sleep(0.005)
    time.sleep(chance.uniform(0, 1))


@pytest.mark.parametrize("kills", [FEW, pytest.param(MANY, marks=pytest.mark.full)])
def test_the_plug_of_a_host_is_pulled(site: Site, slow_server: None, kills: int) -> None:
    chance, machine = random.Random(SEED), site.lab.host(HOST)
    states = []
    for moment in moments(kills, chance):
        site.go_back()
        process = start(site.words(NEW_BASE, "-t", "vllm_rocm"))
        wait_for(site, process, moment, chance)
        machine.power_off()
        site.assert_old_or_new()
        states.append((site.current, site.upper(f"{BUNDLE_ROOT}/{NEW}").exists()))
        # The controller notices: it ends by itself, and not well, unless it was done.
        assert process.wait(120) in (0, 1)
        machine.power_on()
        machine.wait_ready()
        site.assert_old_or_new()
        site.converge(NEW_BASE)
        site.assert_done()
        print(f"killed at {moment:.2f}: {states[-1]}", flush=True)
    site.assert_settled()
    assert (OLD, False) in states, states  # at least one hit the transfer


@pytest.mark.parametrize("kills", [FEW, pytest.param(MANY, marks=pytest.mark.full)])
def test_the_controller_is_killed(site: Site, slow_server: None, kills: int) -> None:
    """kill -9 of the command alone, and of everything that it has started, in turn; then at once again."""
    chance = random.Random(SEED + 1)
    for number, moment in enumerate(moments(kills, chance)):
        site.go_back()
        process = start(site.words(NEW_BASE, "-t", "vllm_rocm"))
        wait_for(site, process, moment, chance)
        if number % 2:
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        site.converge(NEW_BASE)
        site.assert_done()
        print(f"killed at {moment:.2f}", flush=True)
    site.assert_settled()


def rolled(site: Site, *more: str) -> Ran:
    inventory = str(site.lab.inventory_path)
    return kit("rollback", "--bundle", "-i", inventory, "-l", f"{HOST},{OTHER}", *more, "--json")


def test_a_fleet_goes_back_and_who_cannot_says_so(site: Site) -> None:
    site.converge(NEW_BASE)
    planned = rolled(site, "--check")
    assert host_of(planned, HOST)["bundle"]["tag"] == OLD
    ran = rolled(site, "--max-failed", "1")
    done, stuck = host_of(ran, HOST), host_of(ran, OTHER)
    assert ran.rc == 3
    assert (done["status"], done["bundle"]["tag"]) == ("changed", OLD)
    assert site.current == OLD
    assert site.lab.exec(HOST, ["curl", "-sS", "--fail", "http://127.0.0.1:13305/live"]).rc == 0
    assert stuck["status"] == "failed"
    assert f"There is no previous bundle to go back to below {BUNDLE_ROOT}" in stuck["failure"]["message"]
    assert f"there: {OLD} (current)" in stuck["failure"]["message"]
    assert "vllm_rocm_release" in stuck["failure"]["remedy"]
    assert rolled(site).rc == 1
    assert site.current == OLD  # asked again it stays


def test_a_full_disk_is_told_and_the_old_bundle_serves(site: Site) -> None:
    """The bundles' folder is a disk of its own, too small for two."""
    root, small = BUNDLE_ROOT, "/var/small"
    size = sum(release.tree.size for release in site.releases.values() if release.tree) // 2
    script = (
        f"systemctl stop lemond; mkdir -p {small} && "
        f"mount -t tmpfs -o size={size + (300 << 20)} none {small} "
        f"&& cp -a {root}/. {small}/ && rm -rf {small}/{NEW} && ln -sfn {OLD} {small}/current "
        f"&& mount --bind {small} {root} && systemctl start lemond"
    )
    done = site.lab.exec(HOST, ["sudo", "sh", "-c", script])
    assert done.rc == 0, done.stderr
    back = f"systemctl stop lemond; umount {root} {small}; systemctl start lemond"
    try:
        ran = kit(*site.words(NEW_BASE, "-t", "vllm_rocm", "-e", "preflight_min_disk_gib=0"))
        failure = host_of(ran, HOST)["failure"]
        assert ran.rc == 1
        assert f"Not enough disk for release {NEW}: its tree needs " in failure["message"]
        assert "MiB are free (missing: " in failure["message"]
        link = site.lab.exec(HOST, ["readlink", f"{root}/current"]).stdout.strip()
        assert link == OLD
        assert site.lab.exec(HOST, ["curl", "-sS", "--fail", "http://127.0.0.1:13305/live"]).rc == 0
        launched = site.lab.exec(HOST, ["/opt/lemonade-deploy/bin/vllm-server", "--help"])
        assert launched.rc == 0, launched.stderr
    finally:
        assert site.lab.exec(HOST, ["sudo", "sh", "-c", back]).rc == 0
