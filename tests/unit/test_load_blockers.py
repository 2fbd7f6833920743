# SPDX-License-Identifier: Apache-2.0
"""What keeps amdgpu from loading: read as kmod and GRUB read it, and no run starts with a foreign one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from trees import GOOD_KERNEL, Tree, dark, dirty, radeon, strix_halo

from lemonade_deploy.domain import cmdline_traps, disk, modprobe_conf, preflight
from lemonade_deploy.domain.decision import Wishes
from lemonade_deploy.domain.facts import Facts, read_facts
from lemonade_deploy.domain.kernel_choice import KernelCandidate
from lemonade_deploy.domain.kernels import Forecast
from lemonade_deploy.domain.preflight import Report

HWE = KernelCandidate(GOOD_KERNEL, ("linux-generic-hwe-24.04",), "hwe", Forecast("fixed", "x"))
Build = Callable[[Path], Tree]


@pytest.fixture(autouse=True)
def _plenty_of_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda _host, _path: 500 * disk.GIB)


def look(tree: Tree) -> Report:
    def ask(_facts: Facts, _wishes: Wishes) -> tuple[list[KernelCandidate], list[str]]:
        return [HWE], []

    return preflight.look(tree.host, read_facts(tree.host), Wishes(), ask, 20)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("blacklist amdgpu\n", 1),
        ("blacklist\tamdgpu\n", 1),
        ("\t blacklist \t amdgpu", 1),
        ("blacklist   amdgpu # mine\n", 1),
        ("blacklist amdgpu radeon\n", 1),
        ("# x\n\nblacklist \\\n  amdgpu\n", 3),
        ("black\\\nlist amd\\\ngpu\n", 1),
        ("install amdgpu /bin/false\n", 1),
        ("install amdgpu /usr/bin/logger no\n", 1),
        ("install\tamdgpu\t:", 1),
        ("alias amdgpu off\n", 1),
        ("alias amd* off\n", 1),
    ],
)
def test_lines_that_keep_the_driver_out(tmp_path: Path, text: str, line: int) -> None:
    for folder in ("/etc", "/run", "/usr/local/lib", "/usr/lib"):
        tree = Tree(tmp_path / folder[1:]).file(f"{folder}/modprobe.d/x.conf", text)
        (found,) = modprobe_conf.blacklists(tree.host)
        assert (found.path, found.line) == (f"{folder}/modprobe.d/x.conf", line)
        assert not found.left_over


@pytest.mark.parametrize(
    "text",
    [
        "# blacklist amdgpu\n",
        "# a comment that goes on \\\nblacklist amdgpu\n",
        "blacklist amdgpux\nblacklist xamdgpu\nblacklists amdgpu\n",
        "blacklist amdgpu\r\n",  # kmod takes the carriage return for a part of the name
        "blacklist radeon amdgpu\n",
        "blacklist\n amdgpu\n",
        "install amdgpu\n",  # a syntax error: kmod leaves it out
        "install radeon /bin/false amdgpu\n",
        "install amdgpu /sbin/modprobe --ignore-install amdgpu && /usr/bin/logger here\n",
        "install amdgpu modprobe -i amdgpu $CMDLINE_OPTS\n",
        "alias amdgpu radeon\nalias off amdgpu\n",
        "options amdgpu cwsr_enable=1\nsoftdep amdgpu pre: ttm\n",
    ],
)
def test_lines_that_do_not(tmp_path: Path, text: str) -> None:
    assert modprobe_conf.blacklists(Tree(tmp_path).file("/etc/modprobe.d/x.conf", text).host) == []


def test_a_left_over_hides_nothing_once_it_is_gone(tmp_path: Path) -> None:
    tree = Tree(tmp_path).file(modprobe_conf.AMD_LEFTOVER, "blacklist amdgpu\n")
    tree.file("/usr/lib/modprobe.d/blacklist-amdgpu.conf", "blacklist amdgpu\n")
    found = modprobe_conf.blacklists(tree.host)
    assert [(line.path[:5], line.left_over) for line in found] == [("/etc/", True), ("/usr/", False)]
    tree.file(modprobe_conf.AMD_LEFTOVER, "blacklist amdgpu\noptions amdgpu x=1\n")
    assert [line.left_over for line in modprobe_conf.blacklists(tree.host)] == [True]


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("blacklist   amdgpu # by AMD\n# mine\n", "# mine\n"),
        ("a\nblacklist \\\n amdgpu\nb", "a\nb"),
        ("# x \\\nblacklist amdgpu\n", "# x \\\nblacklist amdgpu\n"),
        ("install amdgpu /bin/false\n", "install amdgpu /bin/false\n"),
        ("blacklist amdgpu", ""),
    ],
)
def test_what_is_lifted_of_the_left_over(text: str, rest: str) -> None:
    assert modprobe_conf.without_blacklist(text) == rest


@pytest.mark.parametrize("build", [dirty, dark, strix_halo, radeon])
@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("/etc/modprobe.d/in.conf", "install amdgpu /bin/false\n", 1),
        ("/etc/modprobe.d/tab.conf", "\nblacklist\tamdgpu\n", 2),
        ("/etc/modprobe.d/zz.conf", "blacklist   amdgpu # mine\n", 1),
        ("/usr/lib/modprobe.d/amd.conf", "blacklist amdgpu\n", 1),
        ("/etc/modprobe.d/blacklist-amdgpu.conf", "x\ninstall amdgpu /bin/true\n", 2),
    ],
)
def test_a_foreign_line_stops_before_anything(
    tmp_path: Path, build: Build, path: str, text: str, line: int
) -> None:
    report = look(build(tmp_path).file(path, text))
    stop = preflight.stop_reason(report)
    assert stop is not None and f"{path} line {line}" in stop.found
    assert stop.remedy == "Remove that line, then run again."
    (found,) = [item for item in report.findings if item.source == path]
    assert (found.id, found.severity, found.remedy) == ("amdgpu-blacklisted", "error", stop.remedy)
    for item in report.findings:
        if item.id == "gpu-without-driver":
            assert item.remedy == stop.remedy


def test_amds_own_line_is_the_runs_to_lift(tmp_path: Path) -> None:
    report = look(dark(tmp_path))
    assert preflight.stop_reason(report) is None
    (found,) = [item for item in report.findings if item.id == "amdgpu-blacklisted"]
    assert "site.yml" in found.remedy
    tree = dark(tmp_path / "b").file(modprobe_conf.AMD_LEFTOVER, "blacklist   amdgpu # left\n")
    assert preflight.stop_reason(look(tree)) is None


@pytest.mark.parametrize("word", ["modprobe.blacklist=radeon,amdgpu", "module_blacklist=amdgpu", "nomodeset"])
@pytest.mark.parametrize(
    ("path", "line", "text"),
    [
        ("/etc/default/grub", 2, 'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX="quiet {}"\n'),
        ("/etc/default/grub", 1, "export GRUB_CMDLINE_LINUX_DEFAULT='{} quiet'\n"),
        ("/etc/default/grub.d/x.cfg", 1, 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {}"\n'),
        ("/etc/kernel/cmdline", 1, "root=/dev/sda1 {}\n"),
    ],
)
def test_a_word_of_the_command_line_stops_too(
    tmp_path: Path, word: str, path: str, line: int, text: str
) -> None:
    # It waits for the next boot …
    waiting = strix_halo(tmp_path / "waiting").file(path, text.format(word))
    # … or is in effect, and its place is known …
    placed = strix_halo(tmp_path / "placed").file(path, text.format(word)).kernel(GOOD_KERNEL, word)
    # … or not.
    typed = strix_halo(tmp_path / "typed").kernel(GOOD_KERNEL, word)
    for tree, place in (
        (waiting, f"{path} line {line}"),
        (placed, f"{path} line {line}"),
        (typed, "/proc/cmdline"),
    ):
        report = look(tree)
        stop = preflight.stop_reason(report)
        assert stop is not None and f"{place} ({word})" in stop.found
        (found,) = [item for item in report.findings if item.id == "cmdline-trap"]
        assert (found.severity, found.remedy) == ("error", stop.remedy)
        assert ("next boot" in found.found) is (tree is waiting)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("grub", '# GRUB_CMDLINE_LINUX="nomodeset"\nGRUB_CMDLINE_LINUX="quiet"\n'),
        ("grub", 'GRUB_CMDLINE_LINUX="nomodeset"\nGRUB_CMDLINE_LINUX="quiet"\n'),
        ("grub", "GRUB_CMDLINE_LINUX_RECOVERY=nomodeset\n"),
        ("grub", 'GRUB_CMDLINE_LINUX="quiet" # nomodeset\n'),
        ("grub.d/x.cfg.old", "GRUB_CMDLINE_LINUX=nomodeset\n"),
        ("grub", 'GRUB_CMDLINE_LINUX="amdgpu.cwsr_enable=0 rd.driver.blacklist=amdgpu"\n'),
    ],
)
def test_words_that_keep_nothing_out(tmp_path: Path, name: str, text: str) -> None:
    report = look(strix_halo(tmp_path).file(f"/etc/default/{name}", text))
    assert preflight.stop_reason(report) is None
    assert {item.severity for item in report.findings} <= {"warning"}


def test_an_override_of_grubs_settings_counts(tmp_path: Path) -> None:
    tree = Tree(tmp_path).file("/etc/default/grub", "GRUB_CMDLINE_LINUX=nomodeset\n")
    tree.file("/etc/default/grub.d/a.cfg", "GRUB_CMDLINE_LINUX=quiet\n")
    assert cmdline_traps.read_traps(tree.host) == []


def test_a_host_without_a_gpu_says_that_first(tmp_path: Path) -> None:
    tree = Tree(tmp_path).distribution().kernel(GOOD_KERNEL, "nomodeset").memory().dpkg({})
    stop = preflight.stop_reason(look(tree))
    assert stop is not None and "No AMD GPU" in stop.found
