# SPDX-License-Identifier: Apache-2.0
"""GRUB's menu is never made worse, and what wins over the default is seen."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from driver_box import Box, grub_cfg, menu_id
from grub_box import NEW, OLD, box_of, state_of

from lemonade_deploy.domain import (
    activate_steps,
    activation,
    grub,
    grub_config,
    grub_script,
    initramfs,
    paths,
    trial,
    trial_menu,
)
from lemonade_deploy.domain.activation import Due
from lemonade_deploy.domain.host import CommandFailed, Completed
from lemonade_deploy.domain.proof import ProofWish
from lemonade_deploy.domain.refusal import Refused
from lemonade_deploy.domain.trial_menu import Entries

FILES = (grub.GRUB_CFG, grub.GRUBENV, paths.GRUB_SNIPPET, trial_menu.SCRIPT)


def makes(box: Box, text: str, rc: int = 0) -> Box:
    """grub-mkconfig writes *text*."""

    def wrote(argv: Sequence[str], _env: Mapping[str, str]) -> Completed:
        box.file(argv[-1] if rc == 0 else f"{argv[-1]}.new", text)
        return Completed(tuple(argv), rc, "", "Syntax errors are detected")

    return box.on("grub-mkconfig", do=wrote)


def content(box: Box) -> dict[str, bytes | None]:
    return {path: box.host.read_bytes(path) for path in FILES}


# -- the menu is never made worse ------------------------------------------------------------------

NO_INITRD = grub_cfg(NEW, OLD, initrd=False)
MENUS = {
    "nothing": "set default=0\n",
    "only another kernel": grub_cfg(NEW),
    "without an initrd": NO_INITRD,
}


@pytest.mark.parametrize("menu", MENUS.values(), ids=MENUS)
@pytest.mark.parametrize("step", ["pin", "arm", "initramfs"])
def test_a_menu_that_does_not_boot_the_running_kernel_never_replaces_one_that_does(
    tmp_path: Path, menu: str, step: str
) -> None:
    """10_linux is not executable: grub-mkconfig ends well, with a menu that boots nothing."""
    box = box_of(tmp_path)
    if step == "initramfs":
        box.remove(f"/boot/initrd.img-{NEW}")
        box.on("update-initramfs", do=lambda argv, _env: box.host.write(f"/boot/initrd.img-{argv[-1]}", "x"))
    before = content(box)
    makes(box, menu)
    with pytest.raises(grub.EntryMissing, match="left as it was"):
        if step == "pin":
            trial.pin(box.host, OLD, NEW)
        elif step == "arm":
            trial.arm(box.host, NEW, 900)
        else:
            initramfs.rebuild(box.host)
    assert content(box) == before
    assert not box.host.glob("/boot/grub/*lemonade-deploy*"), "nothing is left lying about"


def test_a_grub_mkconfig_that_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    box = makes(box_of(tmp_path), "menuentry {", rc=1)
    before = content(box)
    with pytest.raises(CommandFailed):
        trial.pin(box.host, OLD, NEW)
    assert content(box) == before
    assert not box.host.glob("/boot/grub/*lemonade-deploy*")


def test_a_promotion_that_cannot_make_the_menu_keeps_the_proven_kernel_as_default(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    trial.arm(box.host, NEW, 900)
    box.kernel(NEW)
    before = content(box)
    makes(box, MENUS["nothing"])
    with pytest.raises(grub.EntryMissing, match="left as it was"):
        trial.promote(box.host, NEW)
    after = content(box)
    assert state_of(box).default_release() == NEW
    assert (after[grub.GRUB_CFG], after[trial_menu.SCRIPT]) == (
        before[grub.GRUB_CFG],
        before[trial_menu.SCRIPT],
    )


def test_the_menus_mode_stays(tmp_path: Path) -> None:
    """0600 where it has a password."""
    box = box_of(tmp_path)
    (tmp_path / grub.GRUB_CFG.lstrip("/")).chmod(0o600)
    grub_config.regenerate(box.host)
    assert (tmp_path / grub.GRUB_CFG.lstrip("/")).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "title", ["Acme -- Linux", "Acme --class x", "it'\\''s --id", "a $menuentry_id_option b", 'q "-- x']
)
def test_a_title_is_never_taken_for_options(tmp_path: Path, title: str) -> None:
    """GRUB_DISTRIBUTOR may hold anything."""
    box = box_of(tmp_path)
    trial_menu.write(box.host, Entries(OLD, trial=NEW))
    entry = (
        "menuentry '{title}, with Linux {release}' --class acme --unrestricted "
        "$menuentry_id_option 'i-{release}' {{\n"
        "\tlinux\t/boot/vmlinuz-{release} root=x ro\n\tinitrd\t/boot/initrd.img-{release}\n}}\n"
    )
    text = box._our_entries("".join(entry.format(title=title, release=release) for release in (NEW, OLD)))
    menu = grub.parse_menu(text)
    assert [(item.id, item.release, item.unrestricted) for item in menu] == [
        (trial_menu.GOOD, OLD, True),
        (trial_menu.TRIAL, NEW, True),
    ]
    assert text.count("menuentry '") == text.count(" --class acme --unrestricted $menuentry_id_option '") == 2
    check = shutil.which("grub-script-check")
    if check:
        subprocess.run([check], input=text, text=True, check=True)


# -- what wins over the default --------------------------------------------------------------------

SOURCED = "if [ -f ${config_directory}/custom.cfg ]; then\n  source ${config_directory}/custom.cfg\nfi\n"
OVERRIDES = [
    "set default=2\n",
    "default=2\n",
    "set default='2'\n",
    'set default="2"\n',
    "if true; then set default=2; fi\n",
    "unset default\n",
    "unset fallback\n",
    "set fallback=\n",
    'set fallback="4"\n',
    "fallback='4'\n",
    "set saved_entry=x\n",
    "set timeout=-1\n",
    "eval $more\n",
    "source /boot/grub/other.cfg\n",
    "read default\n",
    "regexp --set=1:default '(.*)' x\n",
    "load_env --file=/x default\n",
]


@pytest.mark.parametrize("where", ["40_custom", "custom.cfg"])
@pytest.mark.parametrize("line", OVERRIDES)
def test_what_comes_after_the_header_counts(tmp_path: Path, line: str, where: str) -> None:
    box = box_of(tmp_path)
    trial.pin(box.host, OLD, NEW)
    assert trial.pinned(state_of(box), trial_menu.read(box.host), OLD)
    text = str(box.text(grub.GRUB_CFG))
    if where == "40_custom":
        box.file(grub.GRUB_CFG, text + line)
    else:
        box.file(grub.GRUB_CFG, text + SOURCED).file(grub_script.CUSTOM, line)
    assert not trial.pinned(state_of(box), trial_menu.read(box.host), OLD)


@pytest.mark.parametrize(
    "line",
    [
        "# set default=2\n",
        "menuentry 'x' {\n  set default=2\n}\n",
        "set timeout=5\n",
        "insmod part_gpt\n",
        SOURCED,
    ],
)
def test_what_changes_nothing_is_no_reason(tmp_path: Path, line: str) -> None:
    box = box_of(tmp_path)
    trial.pin(box.host, OLD, NEW)
    box.file(grub.GRUB_CFG, str(box.text(grub.GRUB_CFG)) + line)
    assert trial.pinned(state_of(box), trial_menu.read(box.host), OLD)


def test_a_custom_cfg_that_nothing_reads_does_not_count(tmp_path: Path) -> None:
    box = box_of(tmp_path)
    trial.pin(box.host, OLD, NEW)
    box.file(grub_script.CUSTOM, "set default=2\n")
    assert trial.pinned(state_of(box), trial_menu.read(box.host), OLD)


def test_grub_mkconfigs_own_header_is_followed() -> None:
    """Ubuntu's 00_header, shortened."""
    text = (
        'if [ "${next_entry}" ] ; then\n   set default="${next_entry}"\n   set next_entry=\n'
        'else\n   set default="${saved_entry}"\nfi\n'
        'if [ "${prev_saved_entry}" ]; then\n  set saved_entry="${prev_saved_entry}"\n'
        "  save_env saved_entry\nfi\n"
        'function savedefault {\n  if [ -z "${boot_once}" ]; then\n    saved_entry="${chosen}"\n  fi\n}\n'
        "function recordfail {\n  set recordfail=1\n}\n"
        'if [ "${recordfail}" = 1 ] ; then\n  set timeout=30\nelse\n'
        "  if [ x$feature_timeout_style = xy ] ; then\n    set timeout_style=hidden\n"
        "    set timeout=0\n  fi\nfi\n"
    )
    script = grub_script.parse(text)
    assert script.unknown == ()
    assert grub_script.default(script) == "${saved_entry}"
    assert script.values("timeout") == ["30", "0"]


def test_a_boot_that_was_not_the_armed_trial_is_not_promoted(tmp_path: Path) -> None:
    box = box_of(tmp_path, NEW)
    trial.pin(box.host, OLD, NEW)
    due = Due(kernel=NEW, tries=1)
    activation.save(box.host, due)
    wish = ProofWish("in-tree", NEW, None)
    box.file(trial_menu.CMDLINE, "ro quiet\n")
    with pytest.raises(Refused, match="not from its trial entry") as raised:
        activate_steps.confirm(box.host, due, wish)
    assert menu_id(NEW) in raised.value.remedy
    assert state_of(box).default_release() == OLD
    grub.set_default(box.host, NEW)  # what the remedy says
    activate_steps.confirm(box.host, due, wish)
    assert not activation.load(box.host)


def test_a_promotion_that_something_else_overrides_is_told(tmp_path: Path) -> None:
    box = box_of(tmp_path, NEW)
    trial.pin(box.host, OLD, NEW)
    box.file(grub.GRUB_CFG, str(box.text(grub.GRUB_CFG)) + f"set default=gnulinux-{OLD}-advanced\n")
    with pytest.raises(grub.EntryMissing, match="sets `default`"):
        trial.promote(box.host, NEW)
