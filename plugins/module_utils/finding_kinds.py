# SPDX-License-Identifier: Apache-2.0
"""Everything doctor can find, in one table: stable ids, what they mean, and what to do.

docs/findings.md is this table for people; a test keeps the two equal.
"""

from __future__ import annotations

from typing import NamedTuple

ERROR = "error"
WARNING = "warning"
INFO = "info"


class Kind(NamedTuple):
    """One kind of finding. ``severity`` is its usual one. ``stops``: preflight does not go on with it."""

    id: str
    severity: str
    meaning: str
    remedy: str
    stops: bool = False


_PLAY = "Run `lemonade-deploy site.yml` on this host"

KINDS = (
    Kind(
        "no-supported-gpu",
        ERROR,
        "PCI shows no AMD GPU that a vLLM bundle is published for.",
        "Use a box with a gfx1150, gfx1151, gfx110X or gfx120X GPU, or leave this host out of the inventory.",
        stops=True,
    ),
    Kind(
        "gpu-without-driver",
        ERROR,
        "PCI shows the GPU, KFD does not: no driver runs it.",
        f"{_PLAY}: it removes what keeps amdgpu from loading and boots a kernel that drives this GPU.",
    ),
    Kind(
        "gpu-unlisted",
        INFO,
        "A GPU of AMD's whose device id the kit does not know; its driver names the ISA.",
        "Nothing to do where the rest is in order; please report the device id.",
    ),
    Kind(
        "gpu-mismatch",
        WARNING,
        "KFD calls the GPU another ISA than its PCI device id says, or shows a node without a device.",
        "Reboot; if it stays, look into `dmesg` for amdgpu's own words.",
    ),
    Kind(
        "gpu-families-mixed",
        INFO,
        "Several GPUs of different families: one bundle serves one family, a discrete GPU comes first.",
        "Nothing to do; the other GPU is not used.",
    ),
    Kind(
        "driver-unknown",
        ERROR,
        "The driver is in a state that fits no known one; the kit does not touch it.",
        "Put the driver in order by hand (remove modules that no package owns), then run again.",
        stops=True,
    ),
    Kind(
        "cwsr-missing",
        ERROR,
        "The loaded driver does not export cwsr_size and ctl_stack_size: ROCm faults on gfx1151.",
        f"{_PLAY}: it removes the DKMS driver and boots a kernel with the fix (6.18.4 or later).",
    ),
    Kind(
        "cwsr-old-vgpr",
        ERROR,
        "The sizes are exported, but computed with too few registers: half of the fix is in this driver.",
        f"{_PLAY}: it boots a kernel that has both halves of the fix.",
    ),
    Kind(
        "cwsr-wrong",
        ERROR,
        "The exported sizes are not what the kernel's formula gives for this GPU.",
        "Boot a kernel of 6.18.4 or later with its own amdgpu; report the numbers if it stays.",
    ),
    Kind(
        "cwsr-above-formula",
        INFO,
        "The exported sizes are larger than the formula's: a newer kernel may save more.",
        "Nothing to do.",
    ),
    Kind(
        "dkms-masks-driver",
        ERROR,
        "AMD's DKMS module runs in place of the kernel's own and does not carry the fix.",
        f"{_PLAY} (amdgpu_driver_policy intree removes it, dkms takes 31.20 or later).",
    ),
    Kind(
        "dkms-inactive",
        WARNING,
        "AMD's DKMS driver is installed and not what runs; the next kernel or initramfs may load it.",
        f"{_PLAY}: it removes the package, or puts it to use under amdgpu_driver_policy dkms.",
    ),
    Kind(
        "dkms-build-failed",
        ERROR,
        "DKMS could not build amdgpu for a kernel; dpkg stops on it at every later run.",
        f"{_PLAY}: it removes the DKMS driver before it touches the kernel.",
    ),
    Kind(
        "dkms-stale-tree",
        ERROR,
        "DKMS keeps a tree without its sources, or that no package owns: its commands fail on it.",
        f"{_PLAY}: it removes exactly this tree.",
    ),
    Kind(
        "dkms-breaks-kernel",
        ERROR,
        "The wanted DKMS driver does not build on a kernel it would be built for: its package would break.",
        "Set amdgpu_driver_repo_version to a release that builds there, or remove that kernel's headers.",
        stops=True,
    ),
    Kind(
        "dkms-unsigned-secure-boot",
        ERROR,
        "Secure Boot is on and the DKMS module carries no signature: the kernel refuses it.",
        "Enrol a machine owner key (`mokutil --import /var/lib/dkms/mok.pub`), or use the in-tree driver.",
    ),
    Kind(
        "amdgpu-repo-outdated",
        ERROR,
        "An apt source names a driver repository older than the wanted one.",
        "Set amdgpu_driver_policy dkms to switch it, or remove the source where the kernel's driver is used.",
    ),
    Kind(
        "amdgpu-repo-suite",
        WARNING,
        "A driver repository's suite is another distribution release's; no driver is installed from it.",
        "Correct the suite in the named line.",
    ),
    Kind(
        "amdgpu-repo-duplicate",
        WARNING,
        "The driver repository is named more than once; no driver is installed from it.",
        "Keep one of the named lines.",
    ),
    Kind(
        "apt-key-unusable",
        ERROR,
        "The key of AMD's repository is missing, damaged, expired or another one: apt refuses it.",
        "Fetch the key again from the repository (rocm/rocm.gpg.key) and compare its fingerprint; a run with "
        "amdgpu_driver_policy dkms does that.",
    ),
    Kind(
        "apt-pin-missing",
        WARNING,
        "AMD's repository is active without a pin that works: the distribution's packages win by version.",
        "Put `Package: *`, `Pin: release o=repo.radeon.com`, `Pin-Priority: 600` in "
        "/etc/apt/preferences.d/repo-radeon-pin-600; a run with amdgpu_driver_policy dkms writes it.",
    ),
    Kind(
        "dpkg-unfinished",
        ERROR,
        "dpkg stopped half-way; every later apt call fails.",
        f"{_PLAY}, or finish it: `sudo dpkg --configure -a`.",
    ),
    Kind(
        "amdgpu-blacklisted",
        ERROR,
        "A modprobe.d line keeps amdgpu from loading. One that a failed DKMS build left is lifted; any "
        "other is somebody's wish, and no run starts with it.",
        f"{_PLAY}; where the line is not AMD's left-over, remove it first.",
    ),
    Kind(
        "cmdline-trap",
        ERROR,
        "A word on the kernel command line, of this boot or the next, stands in the driver's way; no run "
        "starts with one that keeps amdgpu from loading.",
        "Remove it from GRUB_CMDLINE_LINUX in /etc/default/grub, run update-grub, reboot, then run again.",
    ),
    Kind(
        "modprobe-option",
        WARNING,
        "A modprobe.d option of amdgpu hides the CWSR bug, or keeps the driver from its hardware; no run "
        "starts with the latter.",
        "Remove that option, run `sudo update-initramfs -u -k all`, reboot, then run again.",
    ),
    Kind(
        "kernel-without-fix",
        ERROR,
        "The running kernel does not work for this GPU, by what it shows or by what is known of it.",
        f"{_PLAY}: it installs and proves one that does.",
    ),
    Kind(
        "kernel-unproven",
        WARNING,
        "The decided kernel is one that reports conflict on: nothing proven was to be had.",
        "See whether the GPU works with it; name a better kernel with kernel_source or kernel_version.",
    ),
    Kind(
        "kernel-half-memory",
        WARNING,
        "The running kernel carries the fix, but KFD sees half of an APU's memory (Debian's 6.12).",
        "Set kernel_source backports and run again: a newer kernel of Debian's sees all of it.",
    ),
    Kind(
        "kernel-source-refused",
        ERROR,
        "The kernel's source is not to be trusted, or has no meaning on this distribution.",
        "Correct the variables kernel_source and kernel_mainline_*, then run again.",
        stops=True,
    ),
    Kind(
        "rocm-kernel-pair",
        WARNING,
        "AMD's table of kernels and ROCm versions for gfx1151 does not call this pair good.",
        "See whether a model loads; else move kernel or vllm_rocm_release (the table: docs/kernel.md).",
    ),
    Kind(
        "rocm-kernel-refused",
        ERROR,
        "AMD's table of kernels and ROCm versions for gfx1151 says no to this pair.",
        "Take a vllm_rocm_release with ROCm 7.11 or later, or another kernel_version.",
        stops=True,
    ),
    Kind(
        "no-decision",
        ERROR,
        "A kernel is needed and none is to be had, or a variable asks for something impossible.",
        "Correct the named variable, or give the host an apt source that carries a kernel with the fix.",
        stops=True,
    ),
    Kind(
        "boot-no-fallback",
        ERROR,
        "A new kernel is needed, and this host could not fall back from it: no GRUB, or it cannot write.",
        "Install and try the kernel by hand (docs/kernel.md), then run with kernel_source: keep.",
        stops=True,
    ),
    Kind(
        "kernel-hold",
        INFO,
        "The kernel's metapackages are held; its security updates wait (a warning after 90 days).",
        "Choose a newer kernel with kernel_version and run again, or set kernel_hold: false.",
    ),
    Kind(
        "reboot-pending",
        WARNING,
        "What is on the disk takes effect at the next boot only.",
        f"{_PLAY}, or reboot.",
    ),
    Kind(
        "firmware-mes",
        ERROR,
        "MES firmware 0x83 is loaded: it hangs gfx1151 whatever the kernel is.",
        "Update linux-firmware (20260110+), purge amdgpu-dkms-firmware, rebuild the initramfs, reboot.",
    ),
    Kind(
        "firmware-shadow",
        WARNING,
        "/lib/firmware/updates/amdgpu outranks the distribution's firmware and no DKMS package owns it.",
        "If nobody put it there on purpose: `rm -r` it, `update-initramfs -u -k all`, reboot.",
    ),
    Kind(
        "secure-boot-unsigned-kernel",
        ERROR,
        "Secure Boot is on and the kernel in question is an unsigned mainline build.",
        "Take a kernel of the distribution, set up signing, or turn Secure Boot off.",
    ),
    Kind(
        "service-user-no-gpu-access",
        ERROR,
        "The service's user cannot open the GPU: it is not in render and video, or a device is closed to it.",
        f"{_PLAY}, or `sudo usermod -aG render,video USER` and restart the service.",
    ),
    Kind(
        "disk-space",
        ERROR,
        "Too little space for the bundle or for another initrd in /boot.",
        "Free some space, or set preflight_min_disk_gib where less is enough.",
    ),
    Kind(
        "config-overridden",
        WARNING,
        "lemond's config.json holds a setting that outranks the one the kit gives.",
        "Remove the key from config.json (`lemonade config set` wrote it) and restart lemond.",
    ),
    Kind(
        "hsa-override",
        WARNING,
        "HSA_OVERRIDE_GFX_VERSION is set: native builds break on it.",
        "Remove the line and restart the service.",
    ),
    Kind(
        "bundle-known-bad",
        WARNING,
        "The chosen vLLM release is known to fail.",
        "Leave vllm_rocm_release empty for the newest qualified release; a run needs "
        "vllm_rocm_accept_unqualified.",
    ),
    Kind(
        "bundle-unqualified",
        WARNING,
        "The lock file says that upstream's own hardware tests call the chosen vLLM release unqualified.",
        "Leave vllm_rocm_release empty for the newest qualified release; a run needs "
        "vllm_rocm_accept_unqualified.",
    ),
)
