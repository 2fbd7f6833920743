# SPDX-License-Identifier: Apache-2.0
"""Where a kernel is looked for: apt, Debian's backports, mainline; in which order, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from test_kernels import NOBLE, RESOLUTE, TRIXIE, FakeApt, image, ubuntu
from trees import GOOD_SIZES, OLD_KERNEL, Tree, dirty, strix_halo

from lemonade_deploy.domain import backports, kernel_search, kernels, mainline, preflight
from lemonade_deploy.domain.decision import Wishes, decide, needs_kernel
from lemonade_deploy.domain.distribution import Distribution
from lemonade_deploy.domain.facts import read_facts
from lemonade_deploy.domain.fetch import FetchError
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.kernel_choice import (
    AptSource,
    Deb,
    KernelCandidate,
    Mainline,
    Question,
    choose,
)
from lemonade_deploy.domain.kernels import Forecast
from lemonade_deploy.domain.mainline_source import Tampered
from lemonade_deploy.domain.module import Refused

DEB = Deb("linux-image-unsigned-6.18.36-061836-generic", "https://m/x.deb", "0" * 64, 7)
BUILD = KernelCandidate(
    "6.18.36-061836-generic", (DEB.name,), "mainline", Forecast("fixed", "x"), debs=(DEB,)
)
DEBIAN = {
    "linux-image-amd64": "linux-image-6.12.107+deb13-amd64 (= 6.12.107-1)",
    "linux-image-6.12.107+deb13-amd64": "",
}
BACKPORTED = {**DEBIAN, "linux-image-7.1.8+deb13-amd64": ""}
SOURCES = """\
Types: deb
URIs: http://mirror.example/debian
Suites: trixie trixie-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


class PrivateApt(FakeApt):
    """In place of the real one; remembers the planned sources."""

    packages: ClassVar[dict[str, str]] = {}
    planned: ClassVar[dict[str, str] | None] = None
    errors: ClassVar[list[str]] = []

    def __init__(self, _host: Host, *, sources: dict[str, str] | None = None) -> None:
        super().__init__(type(self).packages)
        type(self).planned = sources

    def __enter__(self) -> PrivateApt:
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing is left behind."""

    def update(self) -> list[str]:
        return list(self.errors)


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch) -> type[PrivateApt]:
    """The host's apt; its packages are set by the test."""
    fresh = type("Apt", (PrivateApt,), {"packages": {}, "planned": None, "errors": []})
    monkeypatch.setattr(kernel_search, "PrivateApt", fresh)
    return fresh


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the mainline mirror gives next (an exception is raised); empty: it must not be asked."""
    answers: list[Any] = []

    def find(*_arguments: object) -> KernelCandidate:
        assert answers, "mainline was asked"
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    monkeypatch.setattr(kernel_search.mainline_candidates, "find", find)
    return answers


def search(
    root: Path, distribution: Distribution = NOBLE, source: str = "auto", secure: bool = False, **more: Any
) -> tuple[list[str], list[str]]:
    """(releases in order, problems)."""
    question = Question(distribution, ("gfx1151",), source, signed=secure, **more)
    found, problems = kernel_search.search(Host(str(root)), question, Mainline(), secure_boot=secure)
    return [candidate.release for candidate in found], problems


def test_hwe_of_70_settles_it_without_asking_mainline(
    tmp_path: Path, apt: type[PrivateApt], mirror: list[Any]
) -> None:
    apt.packages = ubuntu("7.0.0-31-generic")
    assert search(tmp_path)[0][0] == "7.0.0-31-generic"
    apt.packages = {
        "linux-generic": "linux-image-generic",
        "linux-image-generic": "linux-image-7.0.0-20-generic",
    }
    assert search(tmp_path, RESOLUTE)[0] == ["7.0.0-20-generic"]


def test_then_mainline_then_oem(tmp_path: Path, apt: type[PrivateApt], mirror: list[Any]) -> None:
    apt.packages = {**ubuntu("6.17.0-22-generic"), **image("6.14.0-1020-oem")}
    mirror.append(BUILD)
    releases, problems = search(tmp_path)
    # 6.14 OEM is fixed, but it gets no updates any more; 6.17 HWE is in nobody's list of good kernels.
    assert releases[:3] == [BUILD.release, "6.14.0-1020-oem", "6.17.0-1033-oem"] and not problems
    assert set(releases[3:]) == {"6.17.0-22-generic", "6.8.0-45-generic"}


@pytest.mark.parametrize(
    "trouble", [FetchError("https://m: timed out."), mainline.Unusable("no build"), OSError("x")]
)
def test_a_mirror_that_fails_leaves_oem_and_is_told(
    tmp_path: Path, apt: type[PrivateApt], mirror: list[Any], trouble: Exception
) -> None:
    apt.packages, apt.errors = ubuntu("6.17.0-22-generic"), ["W: apt's own"]
    mirror.append(trouble)
    releases, problems = search(tmp_path)
    assert releases[0] == "6.17.0-1033-oem"
    assert problems[0] == "W: apt's own" and problems[1].startswith("mainline: ")
    mirror.append(trouble)
    with pytest.raises(Refused, match="No mainline kernel can be taken") as caught:
        search(tmp_path, source="mainline")
    assert "kernel_mainline_url" in caught.value.remedy


def test_a_wrong_signature_stops_even_where_another_source_would_do(
    tmp_path: Path, apt: type[PrivateApt], mirror: list[Any]
) -> None:
    apt.packages = ubuntu("6.17.0-22-generic")
    for source in ("auto", "mainline"):
        mirror.append(Tampered("not signed", "Nothing was changed."))
        with pytest.raises(Tampered):
            search(tmp_path, source=source)


def test_secure_boot_without_signing_leaves_mainline_out_or_refuses_it(
    tmp_path: Path, apt: type[PrivateApt], mirror: list[Any]
) -> None:
    apt.packages = ubuntu("6.17.0-22-generic")
    releases, problems = search(tmp_path, secure=True)
    assert releases[0] == "6.17.0-1033-oem" and "Secure Boot is on" in problems[0]
    with pytest.raises(Refused, match="Secure Boot is on") as caught:
        search(tmp_path, source="mainline", secure=True)
    assert caught.value.kind == "secure-boot-unsigned-kernel"


def test_mainline_by_name_asks_apt_for_no_kernel(
    tmp_path: Path, apt: type[PrivateApt], mirror: list[Any]
) -> None:
    apt.packages = ubuntu("7.0.0-31-generic")
    for distribution in (NOBLE, TRIXIE):
        mirror.append(BUILD)
        assert search(tmp_path, distribution, "mainline")[0] == [BUILD.release]


def test_a_pin_that_apt_has_not_may_be_a_mainline_build(
    tmp_path: Path, apt: type[PrivateApt], mirror: list[Any]
) -> None:
    apt.packages = {**ubuntu("7.0.0-31-generic"), **image("6.18.20-061820-generic")}
    for pin in ("6.18.20", "6.18.20-061820-generic"):
        assert search(tmp_path, version=pin)[0] == ["6.18.20-061820-generic"]
    mirror.append(BUILD)
    assert search(tmp_path, version="6.18.36")[0] == [BUILD.release]
    assert search(tmp_path, source="hwe", version="6.18.36")[0] == []
    # Ubuntu counts its builds: no upstream number means one of them.
    mirror.append(mainline.Unusable("none"))
    assert search(tmp_path, version="7.0.0")[0] == []


def test_jammy_is_not_asked_for_mainline_by_itself(
    tmp_path: Path, apt: type[PrivateApt], mirror: list[Any]
) -> None:
    assert search(tmp_path, Distribution("ubuntu", "22.04", "jammy"))[0] == []


@pytest.mark.parametrize(
    ("distribution", "source", "good"),
    [
        (NOBLE, "hwe", True),
        (NOBLE, "oem", True),
        (NOBLE, "distro", True),
        (NOBLE, "backports", False),
        (TRIXIE, "backports", True),
        (TRIXIE, "distro", True),
        (TRIXIE, "hwe", False),
        (TRIXIE, "oem", False),
        (Distribution("debian", "", "forky"), "backports", False),
    ],
)
def test_a_source_that_the_distribution_has_not_is_refused(
    tmp_path: Path, apt: type[PrivateApt], distribution: Distribution, source: str, good: bool
) -> None:
    if good:
        search(tmp_path, distribution, source)
        return
    with pytest.raises(Refused) as caught:
        search(tmp_path, distribution, source)
    assert caught.value.kind == "kernel-source-refused" and caught.value.remedy


# Debian's backports.


def debian(root: Path, kernel: str = "6.12.43+deb13-amd64", sizes: tuple[int, int] | None = None) -> Tree:
    tree = strix_halo(root, kernel, sizes).distribution("debian", "13", "trixie")
    tree.file("/usr/share/keyrings/debian-archive-keyring.gpg", "x")
    return tree.file("/etc/apt/sources.list.d/debian.sources", SOURCES)


def look_for(tree: Tree, source: str = "auto", version: str = "") -> KernelCandidate:
    question = Question(TRIXIE, ("gfx1151",), source, version)
    found, _problems = kernel_search.search(tree.host, question, Mainline(), secure_boot=False)
    chosen = choose(found, "", accept_unproven=True)
    assert chosen is not None
    return chosen


def test_backports_are_planned_as_a_source_of_ours(tmp_path: Path, apt: type[PrivateApt]) -> None:
    apt.packages = BACKPORTED
    chosen = look_for(debian(tmp_path))
    assert (chosen.release, chosen.source, chosen.target) == (
        "7.1.8+deb13-amd64",
        "backports",
        "trixie-backports",
    )
    assert chosen.packages == ("linux-image-7.1.8+deb13-amd64",)
    source = chosen.apt_source
    assert source is not None and apt.planned == {source.path: source.content}
    assert source.path == "/etc/apt/sources.list.d/lemonade-deploy-backports.sources"
    fields = dict(line.split(": ") for line in source.content.splitlines() if not line.startswith("#"))
    assert fields == {
        "Types": "deb",
        "URIs": "http://mirror.example/debian",
        "Suites": "trixie-backports",
        "Components": "main",
        "Signed-By": "/usr/share/keyrings/debian-archive-keyring.gpg",
    }


@pytest.mark.parametrize("suite", ["trixie-backports", "stable-backports"])
def test_backports_that_are_configured_are_used_as_they_are(
    tmp_path: Path, apt: type[PrivateApt], suite: str
) -> None:
    apt.packages = BACKPORTED
    tree = debian(tmp_path).file("/etc/apt/sources.list", f"deb http://x/debian {suite} main\n")
    chosen = look_for(tree, "backports")
    assert (chosen.target, chosen.apt_source, apt.planned) == (suite, None, None)
    # A disabled line is none.
    tree.file("/etc/apt/sources.list", f"# deb http://x/debian {suite} main\n")
    assert look_for(tree).apt_source is not None


def test_without_an_archive_of_its_own_the_public_one_is_named(tmp_path: Path) -> None:
    target, source = backports.plan(
        debian(tmp_path).remove("/etc/apt/sources.list.d/debian.sources").host, TRIXIE, "auto"
    )
    assert target == "trixie-backports" and source is not None
    assert "URIs: https://deb.debian.org/debian\n" in source.content
    assert "Components: main non-free-firmware\n" in source.content


def test_debians_own_kernel_is_the_last_resort_and_what_distro_names(
    tmp_path: Path, apt: type[PrivateApt]
) -> None:
    apt.packages = DEBIAN
    chosen = look_for(debian(tmp_path))
    assert (chosen.release, chosen.target, chosen.apt_source) == ("6.12.107+deb13-amd64", "", None)
    apt.packages = BACKPORTED
    assert look_for(debian(tmp_path), "distro").packages == ("linux-image-amd64",)
    assert look_for(debian(tmp_path), version="6.12.107").apt_source is None
    assert look_for(debian(tmp_path), version="7.1.8").target == "trixie-backports"


def test_the_decision_carries_the_source(tmp_path: Path) -> None:
    source = AptSource("/etc/apt/sources.list.d/x.sources", "Types: deb\n")
    candidate = KernelCandidate(
        "7.1.8+deb13-amd64",
        ("linux-image-7.1.8+deb13-amd64",),
        "backports",
        Forecast("fixed", "x"),
        (),
        "trixie-backports",
        source,
    )
    kernel = decide(read_facts(debian(tmp_path).host), Wishes(), [candidate]).public()["kernel"]
    assert (kernel["source"], kernel["target"]) == ("backports", "trixie-backports")
    assert kernel["apt_source"] == {"path": source.path, "content": source.content}


def test_a_mainline_build_is_decided_with_its_packages(tmp_path: Path) -> None:
    decided = decide(read_facts(dirty(tmp_path).host), Wishes(), [BUILD])
    assert decided.public()["kernel"]["debs"] == [DEB._asdict()]
    assert decided.kernel.source == "mainline" and "from mainline" in decided.reasons[1]


# Half of the memory.


def findings(tree: Tree, wishes: Wishes, candidates: Sequence[KernelCandidate] = ()) -> list[str]:
    report = preflight.look(
        tree.host, read_facts(tree.host), wishes, lambda *_: (list(candidates), ["mainline: away"]), 20
    )
    return preflight.ids(report.findings)


RELEASE = "vllm0.22.0-rocm7.11.0"


def test_half_of_the_memory_is_told_and_backports_by_name_mend_it(tmp_path: Path) -> None:
    tree = debian(tmp_path, "6.12.107+deb13-amd64", GOOD_SIZES)
    found = read_facts(tree.host)
    assert not needs_kernel(found, Wishes()) and needs_kernel(found, Wishes(kernel_source="backports"))
    # AMD's table counts it among the old kernels as well.
    assert findings(tree, Wishes(release=RELEASE)) == ["kernel-half-memory", "rocm-kernel-pair"]
    candidate = BUILD._replace(release="7.1.8+deb13-amd64", source="backports", debs=())
    wishes = Wishes(kernel_source="backports", release=RELEASE)
    assert decide(found, wishes, [candidate]).kernel.action == "install"
    assert findings(tree, wishes, [candidate]) == []
    # Nothing there: the box works, so it is kept and told.
    assert "kernel-half-memory" in findings(tree, wishes)
    for kernel in ("7.1.8+deb13-amd64", "6.12.90-061290-generic"):
        assert not kernels.halves_memory(kernels.parse(kernel))


def test_an_unproven_kernel_is_taken_in_need_with_a_warning(tmp_path: Path) -> None:
    oem = BUILD._replace(release="6.17.0-1033-oem", source="oem", debs=(), forecast=Forecast("unproven", "x"))
    tree = strix_halo(tmp_path, OLD_KERNEL, None)
    assert "kernel-unproven" in findings(tree, Wishes(release=RELEASE), [oem])
    decided = decide(read_facts(tree.host), Wishes(release=RELEASE), [oem], ["mainline: away"])
    assert "nothing proven was to be had (mainline: away)" in decided.reasons[1]
    assert "kernel-unproven" not in findings(tree, Wishes(release=RELEASE), [oem, BUILD])


def test_a_pin_by_upstreams_number_is_met_by_what_runs(tmp_path: Path) -> None:
    found = read_facts(strix_halo(tmp_path, "6.18.20-061820-generic").host)
    assert not needs_kernel(found, Wishes(kernel_version="6.18.20"))
    assert needs_kernel(found, Wishes(kernel_version="6.18.21"))


# Distributions without a backend.

OS = 'ID={}\nID_LIKE="{}"\nVERSION_ID="{}"\n'


@pytest.mark.parametrize(
    ("name", "like", "kernel", "command"),
    [
        ("fedora", "", "6.17.1-300.fc43.x86_64", "sudo dnf upgrade --refresh 'kernel*'"),
        ("nobara", "fedora", "6.17.1-300.fc43.x86_64", "sudo dnf upgrade --refresh 'kernel*'"),
        ("arch", "", "6.18.3-arch1-1", "sudo pacman -Syu linux"),
        ("cachyos", "arch", "6.18.3-2-cachyos", "sudo pacman -Syu linux"),
        ("opensuse-tumbleweed", "opensuse suse", "6.17.5-1-default", "sudo zypper dup"),
        ("opensuse-leap", "suse opensuse", "6.4.0-150600.23-default", "sudo zypper update kernel-default"),
        ("sles", "suse", "6.12.0-160000.5-default", "sudo zypper update kernel-default"),
        ("rhel", "fedora", "6.12.0-55.el10.x86_64", "sudo dnf upgrade 'kernel*'"),
        ("rocky", "rhel centos fedora", "5.14.0-570.el9.x86_64", "sudo dnf upgrade 'kernel*'"),
        ("void", "", "6.12.1_1", "install a kernel of 6.18.4 or later"),
    ],
)
def test_a_bad_kernel_names_the_distributions_own_command(
    tmp_path: Path, name: str, like: str, kernel: str, command: str
) -> None:
    tree = strix_halo(tmp_path, kernel, None).file("/etc/os-release", OS.format(name, like, "1"))
    with pytest.raises(Refused) as caught:
        decide(read_facts(tree.host), Wishes())
    assert command in caught.value.remedy and name in caught.value.found


@pytest.mark.parametrize(
    ("name", "like", "kernel"),
    [
        ("fedora", "", "6.18.9-200.fc43.x86_64"),
        ("arch", "", "6.18.4-arch1-1"),
        ("opensuse-tumbleweed", "suse", "6.18.5-1-default"),
        ("rhel", "fedora", "6.12.0-124.8.1.el10_1.x86_64"),  # its number says little: the GPU's numbers do
    ],
)
def test_a_good_box_passes_without_apt(tmp_path: Path, name: str, like: str, kernel: str) -> None:
    tree = strix_halo(tmp_path, kernel).file("/etc/os-release", OS.format(name, like, "1"))
    decided = decide(read_facts(tree.host), Wishes())
    assert (decided.kernel.action, decided.kernel.verdict) == ("keep", "fixed")


def test_what_is_unproven_there_stays_with_a_warning(tmp_path: Path) -> None:
    kernel = kernels.parse("6.12.0-124.8.1.el10_1.x86_64")
    assert kernel is not None and kernel.flavour == "enterprise"
    assert kernels.forecast(kernel, "gfx1151").verdict == "unproven"
