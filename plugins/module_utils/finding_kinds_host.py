# SPDX-License-Identifier: Apache-2.0
"""What doctor can find about the kernel, the boot, the firmware, the service and the bundle."""

from __future__ import annotations

from .finding_kinds import ERROR, INFO, PLAY, WARNING, Kind

HOST = (
    Kind(
        "kernel-without-fix",
        ERROR,
        "The running kernel does not work for this GPU, by what it shows or by what is known of it.",
        f"{PLAY}: it installs and proves one that does.",
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
        "AMD's table for gfx1151 does not say that this kernel works with this ROCm.",
        "Nothing, while models load and answer. Where they do not: another kernel_version, or another "
        "vllm_rocm_release; docs/kernel.md shows the table.",
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
        "The packages that would bring another kernel are held, as they should be (a warning after 90 days: "
        "the kernel's security updates wait, too).",
        "After 90 days: choose a newer kernel with kernel_version and run again, or set kernel_hold: false.",
    ),
    Kind(
        "reboot-pending",
        WARNING,
        "What is on the disk takes effect at the next boot only.",
        f"{PLAY}, or reboot.",
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
        f"{PLAY}, or `sudo usermod -aG render,video USER` and restart the service.",
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
