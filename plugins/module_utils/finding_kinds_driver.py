# SPDX-License-Identifier: Apache-2.0
"""What doctor can find about the GPU, its driver, where the driver comes from, and what keeps it away."""

from __future__ import annotations

from .finding_kinds import ERROR, INFO, PLAY, WARNING, Kind

DRIVER = (
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
        f"{PLAY}: it removes what keeps amdgpu from loading and boots a kernel that drives this GPU.",
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
        f"{PLAY}: it removes the DKMS driver and boots a kernel with the fix (6.18.4 or later).",
    ),
    Kind(
        "cwsr-old-vgpr",
        ERROR,
        "The sizes are exported, but computed with too few registers: half of the fix is in this driver.",
        f"{PLAY}: it boots a kernel that has both halves of the fix.",
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
        f"{PLAY} (amdgpu_driver_policy intree removes it, dkms takes 31.20 or later).",
    ),
    Kind(
        "dkms-inactive",
        WARNING,
        "AMD's DKMS driver is installed and not what runs; the next kernel or initramfs may load it.",
        f"{PLAY}: it removes the package, or puts it to use under amdgpu_driver_policy dkms.",
    ),
    Kind(
        "dkms-build-failed",
        ERROR,
        "DKMS could not build amdgpu for a kernel; dpkg stops on it at every later run.",
        f"{PLAY}: it removes the DKMS driver before it touches the kernel.",
    ),
    Kind(
        "dkms-stale-tree",
        ERROR,
        "DKMS keeps a tree without its sources, or that no package owns: its commands fail on it.",
        f"{PLAY}: it removes exactly this tree.",
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
        INFO,
        "An apt source names a driver repository older than the wanted one; an error only where the "
        "driver is to come from there (amdgpu_driver_policy dkms).",
        "Nothing: the decided driver does not come from there. The source may be removed.",
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
        f"{PLAY}, or finish it: `sudo dpkg --configure -a`.",
    ),
    Kind(
        "amdgpu-blacklisted",
        ERROR,
        "A modprobe.d line keeps amdgpu from loading. One that a failed DKMS build left is lifted; any "
        "other is somebody's wish, and no run starts with it.",
        f"{PLAY}; where the line is not AMD's left-over, remove it first.",
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
)
