# SPDX-License-Identifier: Apache-2.0
"""GRUB's menu and environment block, read as GRUB reads them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from driver_box import Box, grub_cfg, menu_id
from hypothesis import given
from hypothesis import strategies as st

from lemonade_deploy.domain import grub, paths, trial
from lemonade_deploy.domain.grub import Grub, Item

NEW, OLD = "7.0.0-31-generic", "6.14.0-37-generic"


def menu() -> list[Item]:
    return grub.parse_menu(grub_cfg(NEW, OLD))


def test_menu_is_a_tree_with_the_kernels_of_its_entries() -> None:
    top = menu()
    assert [(item.submenu, item.release) for item in top] == [(False, NEW), (True, ""), (False, "")]
    advanced = top[1].children
    assert [(item.release, item.recovery, item.initrd) for item in advanced] == [
        (NEW, False, True),
        (NEW, True, True),
        (OLD, False, True),
        (OLD, True, True),
    ]


@pytest.mark.parametrize("release", [NEW, OLD])
def test_the_entry_of_a_kernel_is_the_one_that_names_it(release: str) -> None:
    assert grub.entry_of(menu(), release) == menu_id(release)


def test_there_is_no_entry_for_a_kernel_that_is_not_in_the_menu() -> None:
    assert grub.entry_of(menu(), "6.8.0-1-generic") is None


def test_an_entry_without_an_id_is_named_by_its_titles() -> None:
    text = (
        "submenu 'Advanced > options' {\n menuentry 'Linux " + OLD + "' {\n"
        "  linux /vmlinuz-" + OLD + " ro\n }\n}\n"
    )
    top = grub.parse_menu(text)
    name = grub.entry_of(top, OLD)
    assert name == f"Advanced >> options>Linux {OLD}"
    found = grub.resolve(top, name)
    assert found is not None and found.release == OLD


@pytest.mark.parametrize(
    ("spec", "release"),
    [
        ("0", NEW),
        ("", NEW),
        ("1>2", OLD),
        ("1", NEW),
        (menu_id(OLD), OLD),
        (f"Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux {OLD}", OLD),
        ("no-such-entry", NEW),
        ("1>no-such-entry", NEW),
        ("99", NEW),
    ],
)
def test_a_default_is_resolved_as_grub_does_it(spec: str, release: str) -> None:
    found = grub.resolve(menu(), spec)
    assert found is not None and found.release == release


def test_saved_entry_counts_only_where_the_menu_follows_it() -> None:
    env = {"saved_entry": menu_id(OLD)}
    follows = Grub(tuple(menu()), "${saved_entry}", env, {"GRUB_DEFAULT": "saved"})
    fixed = Grub(tuple(menu()), "0", env, {"GRUB_DEFAULT": "0"})
    assert (follows.default_release(), follows.follows_saved) == (OLD, True)
    assert (fixed.default_release(), fixed.follows_saved) == (NEW, False)
    assert not Grub(
        follows.menu, follows.default, env, {"GRUB_DEFAULT": "saved", "GRUB_SAVEDEFAULT": "true"}
    ).follows_saved


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,12}", fullmatch=True),
        st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126), max_size=40),
        max_size=6,
    )
)
def test_environment_block_round_trip(values: dict[str, str]) -> None:
    data = grub.format_env(values)
    assert len(data) == grub.GRUBENV_BYTES
    assert grub.parse_env(data) == values


def test_an_environment_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="1024"):
        grub.format_env({"saved_entry": "x" * 1024})


@pytest.mark.skipif(shutil.which("grub-editenv") is None, reason="grub-editenv is not installed")
def test_the_block_is_the_one_that_grub_editenv_writes(tmp_path: Path) -> None:
    block = tmp_path / "grubenv"
    subprocess.run(["grub-editenv", block, "create"], check=True)
    subprocess.run(
        ["grub-editenv", block, "set", f"saved_entry={menu_id(OLD)}", "next_entry=a\\b"], check=True
    )
    assert grub.parse_env(block.read_bytes()) == {"saved_entry": menu_id(OLD), "next_entry": "a\\b"}


def test_the_last_setting_wins_as_for_grub_mkconfig(tmp_path: Path) -> None:
    box = Box(tmp_path).kernels(NEW)
    box.file("/etc/default/grub.d/50-cloud.cfg", "GRUB_DEFAULT=2 # why\nexport GRUB_TIMEOUT='5'\n")
    assert grub.settings(box.host)["GRUB_DEFAULT"] == "2"
    box.file(paths.GRUB_SNIPPET, grub.snippet())
    values = grub.settings(box.host)
    assert (values["GRUB_DEFAULT"], values["GRUB_TIMEOUT"]) == ("saved", "5")
    assert "GRUB_CMDLINE_LINUX" not in values, "only a trial may reset itself after a panic"


def test_default_and_one_shot_are_set_by_ids_and_read_back(tmp_path: Path) -> None:
    box = Box(tmp_path).kernels(OLD, NEW)
    trial.pin(box.host, OLD, NEW)
    grub.set_next(box.host, menu_id(NEW), NEW)
    state = grub.read(box.host)
    assert state is not None
    assert (state.default_release(), state.next_release()) == (OLD, NEW)
    grub.clear_next(box.host)
    state = grub.read(box.host)
    assert state is not None and state.next_release() == ""


def test_an_entry_that_does_not_exist_is_never_written(tmp_path: Path) -> None:
    box = Box(tmp_path).kernels(OLD)
    with pytest.raises(grub.EntryMissing, match=NEW):
        grub.set_default(box.host, NEW)
    assert not box.ran("grub-set-default")


def test_a_tool_that_does_not_write_is_noticed(tmp_path: Path) -> None:
    box = Box(tmp_path).kernels(NEW, OLD).on("grub-reboot")
    with pytest.raises(grub.EntryMissing, match="next_entry"):
        grub.set_next(box.host, menu_id(OLD), OLD)
