# SPDX-License-Identifier: Apache-2.0
"""Two runs on one host, or a run and a process: nothing that is in use is removed, nothing is mistaken."""

from __future__ import annotations

import pytest
from bundle_host import Box, no_check
from nasty import POLICY, TAG, Nasty, bundle_members, publish, tar_gz

from lemonade_deploy.domain import bundle, bundle_install
from lemonade_deploy.domain.bundle_install import Order, Stats
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.lock import Release
from lemonade_deploy.domain.module import Refused
from lemonade_deploy.domain.paths import BUNDLE_ROOT


def start_in(host: Host, tag: str) -> None:
    """A process that runs in a tree."""
    host.write("/proc/4242/maps", f"7f00 r-xp 0 0 0 {BUNDLE_ROOT}/{tag}/bin/python3.14\n")


def test_a_process_that_starts_during_the_lay_down_keeps_its_tree(box: Box, releases: list[Release]) -> None:
    box.run(releases[0])
    box.check = lambda host, _tree, _family: start_in(host, releases[0].tag)
    assert ("old bundles", "remove") in box.run(releases[1], keep=0)
    assert box.place(releases[0].tag, "bin").is_dir()
    assert box.current == releases[1].tag


def test_who_goes_back_during_the_lay_down_keeps_his_tree(box: Box, releases: list[Release]) -> None:
    box.run(releases[0])
    box.run(releases[1])
    # Nor does he wait for the lay-down to end.
    box.check = lambda host, _tree, _family: bundle_install.activate(host, releases[0].tag)
    box.run(releases[2], keep=1)
    assert box.host.listdir(BUNDLE_ROOT) == sorted(["current", releases[0].tag, releases[2].tag])


def test_the_tree_that_current_names_is_not_removed(box: Box, releases: list[Release]) -> None:
    box.run(releases[0])
    bundle_install.remove_tree(releases[0].tag, box.host)
    box.assert_whole(releases[0])


def test_a_tree_that_is_gone_does_not_become_current(box: Box, releases: list[Release]) -> None:
    box.run(releases[0])
    with pytest.raises(Refused, match=f"{releases[1].tag} is gone"):
        bundle_install.activate(box.host, releases[1].tag)
    box.assert_whole(releases[0])


def test_removal_and_swap_wait_for_each_other(
    box: Box, releases: list[Release], monkeypatch: pytest.MonkeyPatch
) -> None:
    box.run(releases[0])
    box.run(releases[1])
    monkeypatch.setattr(bundle_install, "SWITCH_WAIT", 0.0)
    monkeypatch.setattr(bundle_install, "LOCK_WAIT", 0.0)
    with bundle_install._switching(box.host):
        with pytest.raises(Refused, match="switching bundles"):
            bundle_install.activate(box.host, releases[0].tag)
        with pytest.raises(Refused, match="switching bundles"):
            bundle_install.remove_tree(releases[0].tag, box.host)
    with bundle_install._exclusive(box.host), pytest.raises(Refused, match="laying down"):
        bundle_install.remove_tree(releases[0].tag, box.host)
    assert box.place(releases[0].tag, "bin").is_dir()


def test_another_build_under_the_planned_name_is_not_taken_for_ours(box: Box, server: Nasty) -> None:
    first = publish(server, tar_gz(bundle_members(1)))[0]
    bundle_install.lay_down(box.host, Order(first, server.url, POLICY, no_check), TAG, Stats())
    second = publish(server, tar_gz(bundle_members(2)))[0]
    with pytest.raises(Refused, match="another run meanwhile"):
        bundle_install.lay_down(box.host, Order(second, server.url, POLICY, no_check), TAG, Stats())
    tree = bundle.read_tree(box.host, TAG)
    assert tree is not None
    assert tree.archive == first.archive
    stats = Stats()
    bundle_install.lay_down(box.host, Order(first, server.url, POLICY, no_check), TAG, stats)
    assert stats.fetched == 0
