# SPDX-License-Identifier: Apache-2.0
"""A real Debian 13 (QEMU) that boots a really newer kernel, and comes back from one that does not work.

The first machine has the newer kernel installed by the roles and stops before the reboot. That state
is kept; from it one machine boots the sound kernel, three others get the same kernel with a fault.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lemonade_deploy.lab.paths import state_dir
from lemonade_deploy.lab.vm import Image, Kernels, Machine, Repository, base_image, newer_kernel, with_fault
from lemonade_deploy.verify import kernel_log

from .kit import Ran, changed, host_of, kit

pytestmark = pytest.mark.lab

LAYERS = "preflight,kernel,gpu_memory,activate"
INSTALLED = "installed"  # the roles' work up to the reboot
FALLBACK_SECONDS = 60  # the shortest deadline that a fault is given here
BOOT_SECONDS = 900
# As amdgpu writes it (ROCm#6139).
PAGE_FAULT = (
    "amdgpu 0000:c5:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:40 vmid:8 pasid:32771)",
    "amdgpu 0000:c5:00.0: amdgpu: GCVM_L2_PROTECTION_FAULT_STATUS:0x00800932",
)


@dataclass
class Story:
    """What became of one machine: the run's host record, and what the guest says afterwards."""

    ran: Ran
    host: dict[str, Any]
    kernel: str
    grubenv: str
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass
class Stage:
    """The older and the newer release, the run that installed the latter, and the stories told from there."""

    old: str
    new: str
    installation: Ran
    stories: dict[str, Future[Story]]

    def story(self, name: str) -> Story:
        """Waits for it; what went wrong in it is raised here."""
        return self.stories[name].result(timeout=2400)


def site(machine: Machine, *more: str) -> Ran:
    """The layers that need a boot, as a user runs them."""
    return kit(
        "site.yml", "-i", str(machine.folder / "hosts.yml"), "-t", LAYERS, "--json", *more, timeout=2400
    )


def told(machine: Machine, ran: Ran, **notes: Any) -> Story:
    """The story's end: which kernel runs, what GRUB will boot."""
    env = machine.demand("grub-editenv /boot/grub/grubenv list")
    return Story(ran, host_of(ran, "vm"), machine.demand("uname -r").strip(), env, notes)


def reinstall(machine: Machine, kernels: Kernels, fault: str) -> None:
    """The newer kernel's package, repacked with a fault, over the sound one."""
    deb = with_fault(kernels, fault)
    machine.copy(deb, f"/tmp/{deb.name}")
    machine.demand(f"dpkg -i /tmp/{deb.name} 2>&1 && depmod {kernels.release}", timeout=600)


def sound(machine: Machine, kernels: Kernels) -> Story:
    """Into the newer kernel, an ordinary reboot, and everything once more."""
    ran = site(machine)
    first = told(machine, ran)
    before = machine.boot_id()
    machine.demand("systemctl reboot")
    machine.wait_for_boot(before, BOOT_SECONDS)
    twice = site(machine)
    for line in PAGE_FAULT:
        machine.demand("cat > /dev/kmsg", stdin=f"<3>{line}\n")
    log = kernel_log.read(lambda command: machine.ssh(command).stdout)
    return told(machine, ran, first=first, twice=twice, log=log)


def panics(machine: Machine, kernels: Kernels) -> Story:
    """A panic in the initramfs."""
    reinstall(machine, kernels, "panics")
    machine.demand(f"update-initramfs -u -k {kernels.release} 2>&1", timeout=900)
    return told(machine, site(machine))


def loses_image(machine: Machine, kernels: Kernels) -> Story:
    """The image is there for whoever looks before the reboot, and gone for GRUB."""
    reinstall(machine, kernels, "loses-image")
    machine.demand("systemctl daemon-reload")
    return told(machine, site(machine))


def no_network(machine: Machine, kernels: Kernels) -> Story:
    """First without the driver of the network card at all, then with one that will not load."""
    reinstall(machine, kernels, "nic-missing")
    refused = told(machine, site(machine))
    reinstall(machine, kernels, "nic-dead")
    return told(machine, site(machine, "-e", f"kernel_confirm_timeout={FALLBACK_SECONDS}"), refused=refused)


STORIES: dict[str, Callable[[Machine, Kernels], Story]] = {
    "sound": sound,
    "no-network": no_network,
    "panics": panics,
    "loses-image": loses_image,
}


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """The newer kernel installed by the roles; then the stories, as many at a time as processors."""
    image, kernels = base_image(), newer_kernel()
    folder = state_dir() / "vm"
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        repository = stack.enter_context(Repository(folder / "repository"))
        repository.publish(kernels.debs())
        first = stack.enter_context(Machine(image, folder / "first"))
        stack.callback(first.remove)
        first.resume()
        first.demand(repository.enrol())
        first.inventory()
        installation = site(first, "-e", "activate_reboot=false")
        first.save(INSTALLED)
        first.stop()  # its disk is copied now
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=os.cpu_count()))
        stage = Stage(image.kernel, kernels.release, installation, {})
        stack.callback(lambda: [story.cancel() for story in stage.stories.values()])
        for name in STORIES:
            stage.stories[name] = pool.submit(_tell, name, image, kernels, folder, first.disk)
        yield stage


def _tell(name: str, image: Image, kernels: Kernels, folder: Path, disk: Path) -> Story:
    machine = Machine(image, folder / name, disk)
    try:
        machine.resume(INSTALLED)
        machine.inventory()
        return STORIES[name](machine, kernels)
    finally:
        machine.remove()


def fell_back(stage: Stage, name: str) -> tuple[Story, str]:
    """What every fault must end in; gives the story and the run's own words."""
    story = stage.story(name)
    failure = story.host["failure"]
    assert story.ran.rc == 1, story.ran.stderr[-3000:]
    assert story.host["status"] == "failed" and failure["layer"] == "activate", failure
    assert story.kernel == story.host["kernel"] == stage.old
    assert "next_entry=lemonade" not in story.grubenv, "the faulty kernel would be booted again"
    assert story.host["rebooted"] is True
    assert stage.new in failure["message"] and failure["remedy"]
    return story, failure["message"]


def test_the_newer_kernel_is_chosen_and_installed_before_the_reboot(stage: Stage) -> None:
    host = host_of(stage.installation, "vm")
    assert stage.installation.rc == 4, stage.installation.stderr[-3000:]
    assert host["kernel"] == stage.old and stage.old.startswith("6.1."), "the older kernel is Debian 12's"
    assert {("kernel", "grub default", "pin"), ("kernel", "kernel", "install")} <= changed(host)


def test_the_newer_kernel_is_booted_proven_and_made_the_default(stage: Stage) -> None:
    story = stage.story("sound")
    first: Story = story.notes["first"]
    assert story.ran.rc == 0, story.ran.stderr[-3000:]
    assert first.kernel == first.host["kernel"] == stage.new
    assert {("activate", "host", "reboot"), ("activate", "grub default", "promote")} <= changed(first.host)
    assert [(gpu["gfx"], gpu["cwsr"]) for gpu in first.host["gpu"]] == [("gfx1151", "ok")]
    assert story.kernel == stage.new, "an ordinary reboot took another kernel"


def test_a_second_run_on_the_newer_kernel_changes_nothing(stage: Stage) -> None:
    twice: Ran = stage.story("sound").notes["twice"]
    assert twice.rc == 0, twice.stderr[-3000:]
    assert changed(host_of(twice, "vm")) == set()


def test_a_page_fault_in_the_kernels_log_is_found(stage: Stage) -> None:
    log: kernel_log.Log = stage.story("sound").notes["log"]
    assert log.readable
    assert kernel_log.faults(log) == list(PAGE_FAULT), log.lines[-5:]


def test_a_kernel_that_panics_falls_back(stage: Stage) -> None:
    _story, message = fell_back(stage, "panics")
    assert "panic" in message.lower(), message


def test_a_kernel_whose_image_is_missing_falls_back(stage: Stage) -> None:
    _story, message = fell_back(stage, "loses-image")
    assert f"/boot/vmlinuz-{stage.new} is not there" in message, message


def test_a_kernel_without_network_falls_back_by_its_own_timer(stage: Stage) -> None:
    _story, message = fell_back(stage, "no-network")
    assert "nobody confirmed it in time" in message, message


def test_a_kernel_without_the_network_cards_driver_is_not_booted(stage: Stage) -> None:
    refused: Story = stage.story("no-network").notes["refused"]
    assert refused.ran.rc == 1
    assert "has no virtio_net, which drives eth0" in refused.host["failure"]["message"]
    assert refused.host["rebooted"] is False and refused.kernel == stage.old
