# SPDX-License-Identifier: Apache-2.0
"""The depot with hosts: over an air gap with nothing but what was carried, over TLS, and by policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from lemonade_deploy.domain.lock import FILE_NAME
from lemonade_deploy.lab import Lab, servers
from lemonade_deploy.lab.engine.light import RELEASE_BASE
from lemonade_deploy.lab.services import github

from .depot_kit import authority_for, connected, depot_serving, isolate, trust
from .kit import host_of, kit

pytestmark = pytest.mark.lab

HOST = "it-gap"
TAG = f"{RELEASE_BASE}-gfx1151"
KERNEL = "6.18.36"
UNTIL_SERVER = ("--skip-tags", "models,verify")  # models have no place in a depot yet


@dataclass(frozen=True)
class Site:
    """What stands behind the gap: a depot, its lock and an inventory."""

    folder: Path
    depot: Path
    archive: Path

    @property
    def lock(self) -> Path:
        return self.folder / FILE_NAME

    @property
    def inventory(self) -> Path:
        return self.folder / "hosts.yml"

    def packages(self) -> dict[str, Any]:
        content: dict[str, Any] = yaml.safe_load(self.lock.read_text())["packages"]
        return content


@pytest.fixture(scope="module")
def host(lab: Lab) -> str:
    lab.up([HOST], "strix-halo-clean", "light")
    # What the site's installation medium has: the compiler's headers.
    assert lab.exec(HOST, ["sudo", "sh", "-c", "apt-get -q update && apt-get -qy install libc6-dev"]).rc == 0
    return HOST


@pytest.fixture(scope="module")
def carried(lab: Lab, host: str, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Everything fetched where there is a network, carried in one file to where there is none."""
    outside, inside = tmp_path_factory.mktemp("outside"), tmp_path_factory.mktemp("inside")
    lock, depot = str(outside / FILE_NAME), str(outside / "depot")
    place = ("--lock", lock)
    ran = connected(lab, outside, "depot", "lock", RELEASE_BASE, "--gfx", "gfx1151", *place)
    assert ran.rc == 0, ran.stderr
    assert "GitHub's API gives digests for" in ran.stderr
    assert "has no record of it, which says nothing either way" in ran.stderr
    (deb,) = (servers.www() / "ppa.launchpadcontent.net").rglob("lemonade-server_*.deb")
    url = f"https://{deb.relative_to(servers.www())}"
    variables = yaml.safe_load(lab.inventory_path.read_text())["lemonade"]["vars"]
    key = variables["kernel_mainline_key_fingerprint"]
    archive = inside / "carried.tar"
    for words in (
        ("fetch", *place, "--depot", depot),
        ("add-deb", url, *place, "--depot", depot),
        ("add-kernel", KERNEL, "--fingerprint", key, *place, "--depot", depot),
        ("export", str(archive), *place, "--depot", depot),
    ):
        ran = connected(lab, outside, "depot", *words)
        assert ran.rc == 0, ran.stderr
    # From here on without a network: what follows runs with names that lead nowhere.
    there = ("--lock", str(inside / FILE_NAME), "--depot", str(inside / "depot"))
    ran = kit("depot", "import", str(archive), *there)
    assert ran.rc == 0, ran.stderr
    return Site(inside, inside / "depot", archive)


def site_vars(lab: Lab, site: Site, url: str, **more: Any) -> None:
    """An inventory of the gapped host: the lab's connection, and what docs/depot.md says to set."""
    content = yaml.safe_load(lab.inventory_path.read_text())
    content["lemonade"]["hosts"] = {HOST: content["lemonade"]["hosts"][HOST]}
    (deb,) = (path for path in site.packages() if path.startswith("packages/"))
    content["lemonade"]["vars"] |= {
        "vllm_rocm_depot_url": url,
        "vllm_rocm_depot_token": (site.depot / "token").read_text().strip(),
        "vllm_rocm_sources": ["depot"],
        "lemonade_server_source": "deb",
        "lemonade_server_deb": f"{url}/{deb}",
        "lemonade_server_deb_sha256": site.packages()[deb]["sha256"],
        **more,
    }
    site.inventory.write_text(yaml.safe_dump(content))


@pytest.fixture(scope="module")
def served(lab: Lab, carried: Site) -> Iterator[str]:
    """The depot over TLS, with a certificate of the site's own that the host was told to trust."""
    certificate, key = authority_for(f"{lab.network.prefix}.1", carried.folder)
    trust(lab, HOST, certificate)
    isolate(lab, HOST)
    options = ("--tls-cert", str(certificate), "--tls-key", str(key))
    with depot_serving(lab, carried.depot, *options) as (address, port):
        yield f"https://{address}:{port}"


def asked_of_upstream() -> int:
    """How many answers the simulated upstreams have given."""
    return len(servers.access_log().read_text().splitlines())


def test_a_host_without_a_network_converges_from_what_was_carried(
    lab: Lab, carried: Site, served: str
) -> None:
    site_vars(lab, carried, served)
    before = asked_of_upstream()
    ran = kit("site.yml", "-i", str(carried.inventory), *UNTIL_SERVER, "--json")
    host = host_of(ran, HOST)
    assert (ran.rc, host["failure"]) == (0, None)
    assert host["bundle"]["tag"] == TAG
    assert asked_of_upstream() == before
    log = (carried.depot / "serve.log").read_text()
    assert "GET /packages/lemonade-server_" in log
    assert "chunks.json" in log and ".zst HTTP/1.1" in log
    said = lab.exec(HOST, ["curl", "-sS", "--fail", "http://127.0.0.1:13305/api/v1/health"])
    assert json.loads(said.stdout)["status"] == "ok"
    again = kit("site.yml", "-i", str(carried.inventory), *UNTIL_SERVER, "--json")
    assert (again.rc, host_of(again, HOST)["changed"]) == (0, [])


def test_the_kernel_that_was_carried_is_what_a_host_would_take(lab: Lab, carried: Site, served: str) -> None:
    mainline = {
        "kernel_source": "mainline",
        "kernel_version": f"{KERNEL}-061836-generic",
        "kernel_mainline_url": f"{served}/mainline",
        "kernel_mainline_key": f"{served}/mainline/key.asc",
    }
    site_vars(lab, carried, served, **mainline)
    ran = kit("site.yml", "-i", str(carried.inventory), *UNTIL_SERVER, "--check", "--json")
    host = host_of(ran, HOST)
    assert (ran.rc, host["failure"]) == (2, None)
    assert ("kernel", "install") in {(item["layer"], item["action"]) for item in host["changed"]}
    log = (carried.depot / "serve.log").read_text()
    assert f"GET /mainline/v{KERNEL}/amd64/CHECKSUMS.gpg HTTP/1.1" in log


def test_an_authority_that_the_host_does_not_know_is_said(lab: Lab, carried: Site, served: str) -> None:
    lab.exec(
        HOST,
        ["sudo", "sh", "-c", "rm /usr/local/share/ca-certificates/depot.crt; update-ca-certificates --fresh"],
    )
    site_vars(lab, carried, served, vllm_rocm_verify=True)
    break_tree = ["sudo", "rm", "-r", f"/opt/lemonade-deploy/vllm-rocm/{TAG}/lib"]
    assert lab.exec(HOST, break_tree).rc == 0
    ran = kit("site.yml", "-i", str(carried.inventory), "-t", "vllm_rocm", "--json")
    failure = host_of(ran, HOST)["failure"]
    assert "certificate verify failed" in failure["message"].lower()
    assert "trust store" in failure["remedy"]


def test_a_depot_that_is_away_leads_to_a_mirror_and_that_is_said(lab: Lab, carried: Site) -> None:
    with depot_serving(lab, carried.depot) as (address, port):
        url = f"http://{address}:{port}"
        # The first place does not answer, the second lacks the release, the third is the depot again.
        more = {
            "vllm_rocm_sources": ["mirrors", "depot"],
            "vllm_rocm_mirrors": [f"http://{address}:9", f"{url}/mainline"],
        }
        site_vars(lab, carried, url, **more)
        ran = kit("site.yml", "-i", str(carried.inventory), "-t", "vllm_rocm", "--json")
        host = host_of(ran, HOST)
        assert host["failure"] is None, host["failure"]
        assert ran.rc == 0
        warnings = " ".join(ran.stderr.split())
        assert f"mirror http://{address}:9 could not be used" in warnings
        assert f"mirror {url}/mainline could not be used" in warnings


def test_an_unqualified_release_is_told_by_doctor_and_stops_a_run_early(
    lab: Lab, host: str, tmp_path: Path
) -> None:
    """What upstream's tests said stands in the lock beside the inventory."""
    lock = yaml.safe_load((lab.inventory_path.parent / FILE_NAME).read_text())
    lock["releases"][TAG]["qualification"] = "unqualified"
    (tmp_path / FILE_NAME).write_text(yaml.safe_dump(lock))
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(lab.inventory_path.read_text())
    place = ("-i", str(inventory), "-l", HOST, "--json")
    seen = host_of(kit("doctor", *place), HOST)
    assert "bundle-unqualified" in [finding["id"] for finding in seen["findings"]]
    ran = kit("site.yml", *place)
    stopped = host_of(ran, HOST)
    assert (ran.rc, stopped["changed"]) == (1, [])
    assert stopped["failure"]["layer"] == "preflight"
    assert "upstream's own hardware tests call it unqualified" in stopped["failure"]["message"]
    inventory.write_text(inventory.read_text() + f"    vllm_rocm_accept_unqualified: ['{RELEASE_BASE}']\n")
    accepted = kit("site.yml", *place, "--check", "-t", "vllm_rocm")
    assert host_of(accepted, HOST)["failure"] is None


def test_github_that_says_other_digests_stops_the_lock(lab: Lab, tmp_path: Path) -> None:
    site = servers.www() / github.API_HOST
    words = ("depot", "lock", RELEASE_BASE, "--gfx", "gfx1151", "--lock", str(tmp_path / FILE_NAME))
    (site / github.NO_DIGESTS).touch()
    try:
        ran = connected(lab, tmp_path, *words)
        assert (ran.rc, "gives no digests" in ran.stderr) == (0, True), ran.stderr
        (site / github.NO_DIGESTS).unlink()
        name = f"{TAG}-x64.part02-of-05.tar.gz"
        (site / github.OVERRIDE).write_text(json.dumps({name: "1" * 64}))
        ran = connected(lab, tmp_path, *words)
        assert ran.rc == 1
        assert name in ran.stderr and "1" * 64 in ran.stderr
    finally:
        (site / github.NO_DIGESTS).unlink(missing_ok=True)
        (site / github.OVERRIDE).unlink(missing_ok=True)
