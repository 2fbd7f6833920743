# SPDX-License-Identifier: Apache-2.0
"""Boxes with something planted for doctor to find: one row a finding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from planted_boxes import due, mes, mes_in_debugfs, passed_through, two_sources, unsigned
from trees import (
    AMD_LINE,
    GOOD_KERNEL,
    GOOD_SIZES,
    OLD_KERNEL,
    OLD_VGPR_SIZES,
    PIN,
    Tree,
    bare,
    dark,
    dirty,
    radeon,
    strix_halo,
)

Build = Callable[[Path], Tree]

# (id, severity, a text that `found` must contain, host)
PLANTED: list[tuple[str, str, str, Build]] = [
    ("no-supported-gpu", "error", "No AMD GPU is on the PCI bus", bare),
    ("no-supported-gpu", "error", "Navi 21 (gfx1030)", lambda r: bare(r).pci(0x73BF)),
    ("gpu-without-driver", "error", "/etc/modprobe.d/blacklist-amdgpu.conf line 2", dark),
    ("gpu-without-driver", "error", "has no amdgpu module", lambda r: bare(r).pci(0x1586)),
    (
        "gpu-without-driver",
        "error",
        "it is bound to vfio-pci",
        lambda r: (
            bare(r).pci(0x1586).link("/sys/bus/pci/devices/0000:c5:00.0/driver", "../../drivers/vfio-pci")
        ),
    ),
    ("gpu-unlisted", "info", "7fff", lambda r: bare(r).pci(0x7FFF)),
    (
        "gpu-mismatch",
        "warning",
        "gfx1100",
        lambda r: strix_halo(r).kfd_gpu(1, 110000, 0x1586, 80, GOOD_SIZES),
    ),
    ("gpu-mismatch", "warning", "KFD node 1", lambda r: bare(r).kfd_gpu(1, 110501, 1, 80, GOOD_SIZES)),
    ("gpu-families-mixed", "info", "Navi 31", lambda r: radeon(r).pci(0x1586, "0000:c4:00.0")),
    (
        "driver-unknown",
        "error",
        "/updates/amdgpu.ko.zst",
        lambda r: strix_halo(r).module(GOOD_KERNEL, "foreign"),
    ),
    ("cwsr-missing", "error", "cwsr_size and ctl_stack_size", lambda r: strix_halo(r, OLD_KERNEL, None)),
    ("cwsr-missing", "info", "cwsr_size", lambda r: radeon(r).kfd_gpu(1, 110000, 0x744C, 192, None)),
    ("cwsr-old-vgpr", "error", "13942784", lambda r: strix_halo(r, OLD_KERNEL, OLD_VGPR_SIZES)),
    ("cwsr-wrong", "error", "1234", lambda r: strix_halo(r, OLD_KERNEL, (1234, 16384))),
    ("cwsr-wrong", "error", "no CU count", lambda r: strix_halo(r).kfd_gpu(1, 110501, 0x1586, 0, GOOD_SIZES)),
    ("cwsr-above-formula", "info", "19189760", lambda r: strix_halo(r, sizes=(19189760, 16384))),
    ("dkms-masks-driver", "error", "6.16.13", dirty),
    ("dkms-inactive", "warning", "1:6.16.13", lambda r: strix_halo(r).dkms_packages()),
    ("dkms-build-failed", "error", "build/make.log", dark),
    (
        "dkms-stale-tree",
        "error",
        "no source/dkms.conf",
        lambda r: strix_halo(r).dkms_packages().dkms(source=False),
    ),
    ("dkms-stale-tree", "error", "no installed package", lambda r: strix_halo(r).dkms()),
    ("dkms-unsigned-secure-boot", "error", "updates/dkms/amdgpu.ko.zst", unsigned),
    ("amdgpu-repo-outdated", "info", "/etc/apt/sources.list.d/amdgpu.list line 1", dirty),
    ("amdgpu-repo-outdated", "info", "30.30, wanted 31.20", lambda r: strix_halo(r).amd_source()),
    (
        "amdgpu-repo-suite",
        "warning",
        "needs jammy",
        lambda r: strix_halo(r).amd_source().distribution("ubuntu", "22.04"),
    ),
    (
        "amdgpu-repo-suite",
        "warning",
        "needs jammy",
        lambda r: dirty(r).distribution("ubuntu", "22.04", "jammy"),
    ),
    ("amdgpu-repo-duplicate", "warning", "rocm.list line 2", two_sources),
    ("amdgpu-repo-duplicate", "warning", "rocm.list line 2", lambda r: two_sources(r).dkms_packages()),
    (
        "amdgpu-repo-duplicate",
        "warning",
        "amd.list line 2",
        lambda r: strix_halo(r).file("/etc/apt/sources.list.d/amd.list", AMD_LINE.format("31.20") * 2),
    ),
    (
        "apt-key-unusable",
        "error",
        "/etc/apt/keyrings/amdrocm.gpg: is not there",
        lambda r: strix_halo(r).file(
            "/etc/apt/sources.list.d/rocm.list",
            "deb [signed-by=/etc/apt/keyrings/amdrocm.gpg] https://repo.amd.com/rocm/packages stable main\n",
        ),
    ),
    (
        "driver-unknown",
        "error",
        "built by DKMS for othergpu/1.0",
        lambda r: strix_halo(r, origin="dkms").file(
            f"/var/lib/dkms/othergpu/1.0/{GOOD_KERNEL}/x86_64/module/amdgpu.ko.zst"
        ),
    ),
    ("driver-unknown", "error", "0000:c5:00.0 is bound to vfio-pci", passed_through),
    ("apt-key-unusable", "error", "/etc/apt/keyrings/rocm.gpg: is not there", dirty),
    (
        "apt-key-unusable",
        "error",
        "cannot be read",
        lambda r: dirty(r).file("/etc/apt/keyrings/rocm.gpg", b"<html>404</html>"),
    ),
    (
        "apt-pin-missing",
        "warning",
        "no pin prefers",
        lambda r: dirty(r).remove("/etc/apt/preferences.d/repo-radeon-pin-600"),
    ),
    (
        "apt-pin-missing",
        "warning",
        "does nothing",
        lambda r: dirty(r).file(
            "/etc/apt/preferences.d/repo-radeon-pin-600", PIN.replace("\n", "\\n") + "\n"
        ),
    ),
    (
        "apt-pin-missing",
        "warning",
        "no pin prefers",
        lambda r: dirty(r).file(
            "/etc/apt/preferences.d/repo-radeon-pin-600",
            PIN.replace("release o=repo.radeon.com", 'origin ""'),
        ),
    ),
    ("dpkg-unfinished", "error", "amdgpu-dkms 1:6.16.13.30300000-2278356.24.04 is half-configured", dark),
    ("dpkg-unfinished", "error", "journal", lambda r: strix_halo(r).file("/var/lib/dpkg/updates/0001", "x")),
    ("amdgpu-blacklisted", "error", "blacklist-amdgpu.conf line 2: blacklist amdgpu", dark),
    (
        "amdgpu-blacklisted",
        "error",
        "line 1: install amdgpu /bin/false",
        lambda r: strix_halo(r).file("/etc/modprobe.d/x.conf", "install amdgpu /bin/false\n"),
    ),
    ("cmdline-trap", "error", "nomodeset", lambda r: strix_halo(r).kernel(GOOD_KERNEL, "quiet nomodeset")),
    (
        "cmdline-trap",
        "error",
        "modprobe.blacklist=radeon,amdgpu",
        lambda r: strix_halo(r).kernel(GOOD_KERNEL, "modprobe.blacklist=radeon,amdgpu"),
    ),
    (
        "cmdline-trap",
        "warning",
        "amdgpu.cwsr_enable=0",
        lambda r: strix_halo(r).kernel(GOOD_KERNEL, "amdgpu.cwsr_enable=0"),
    ),
    (
        "modprobe-option",
        "warning",
        "/etc/modprobe.d/x.conf line 2: options amdgpu gttsize=1 cwsr_enable=0: compute wave",
        lambda r: strix_halo(r).file(
            "/etc/modprobe.d/x.conf", "# x\noptions amdgpu gttsize=1 cwsr_enable=0\n"
        ),
    ),
    (
        "modprobe-option",
        "error",
        "does not set up its hardware",
        lambda r: strix_halo(r).file("/etc/modprobe.d/x.conf", "options amdgpu modeset=0\n"),
    ),
    ("kernel-without-fix", "error", OLD_KERNEL, dirty),
    (
        "kernel-without-fix",
        "warning",
        "6.17.0-1033-oem",
        lambda r: strix_halo(r, "6.17.0-1033-oem", None, "dkms").dkms_packages(),
    ),
    (
        "reboot-pending",
        "warning",
        "srcversion OTHER",
        lambda r: strix_halo(r).file("/sys/module/amdgpu/srcversion", "OTHER\n"),
    ),
    ("reboot-pending", "warning", "the driver was removed", due),
    ("firmware-mes", "error", "0x83", mes),
    ("firmware-mes", "error", "0x83", mes_in_debugfs),
    (
        "firmware-mes",
        "error",
        "/lib/firmware/updates/amdgpu/gc_11_5_1_mes_2.bin outranks",
        lambda r: mes(r).file("/lib/firmware/updates/amdgpu/gc_11_5_1_mes_2.bin"),
    ),
    (
        "firmware-shadow",
        "warning",
        "/lib/firmware/updates/amdgpu",
        lambda r: strix_halo(r).file("/lib/firmware/updates/amdgpu/gc_11_5_1_mes1.bin"),
    ),
    (
        "secure-boot-unsigned-kernel",
        "error",
        "6.18.20-061820-generic",
        lambda r: strix_halo(r, "6.18.20-061820-generic").secure_boot(),
    ),
    ("service-user-no-gpu-access", "error", "not in group video", lambda r: strix_halo(r).users(["render"])),
    (
        "service-user-no-gpu-access",
        "error",
        "/dev/kfd is closed",
        lambda r: strix_halo(r).users().file("/dev/kfd"),
    ),
    (
        "config-overridden",
        "warning",
        "/var/lib/lemonade/config.json line 4: port is 8000, ours is 13305",
        lambda r: strix_halo(r).lemond({"port": 13305, "vllm": {"args": ""}}, {"a": 1, "b": 2, "port": 8000}),
    ),
    (
        "config-overridden",
        "warning",
        'vllm.rocm_bin is "builtin"',
        lambda r: strix_halo(r).lemond(
            {"vllm": {"rocm_bin": "/x"}},
            {"vllm": {"rocm_bin": "builtin"}},
            "/var/lib/lemonade/.cache/lemonade/config.json",
        ),
    ),
    (
        "hsa-override",
        "warning",
        "/etc/environment line 2: HSA_OVERRIDE_GFX_VERSION=11.0.0",
        lambda r: strix_halo(r).file("/etc/environment", "PATH=/bin\nHSA_OVERRIDE_GFX_VERSION=11.0.0\n"),
    ),
    (
        "hsa-override",
        "warning",
        "lemond.service.d/x.conf line 2: HSA_OVERRIDE_GFX_VERSION=11.0.0",
        lambda r: strix_halo(r).file(
            "/etc/systemd/system/lemond.service.d/x.conf",
            '[Service]\nEnvironment="TOKEN=secret" "HSA_OVERRIDE_GFX_VERSION=11.0.0"\n',
        ),
    ),
    (
        "hsa-override",
        "warning",
        "/srv/gpu.env line 1: HSA_OVERRIDE_GFX_VERSION=",
        lambda r: (
            strix_halo(r)
            .file("/run/systemd/system/lemond.service", "[Service]\nEnvironmentFile=-/srv/gpu.env\n")
            .file("/srv/gpu.env", "HSA_OVERRIDE_GFX_VERSION=\n")
        ),
    ),
    (
        "hsa-override",
        "warning",
        "setenv HSA_OVERRIDE_GFX_VERSION 11.0.0",
        lambda r: strix_halo(r).file("/etc/csh.cshrc", "setenv HSA_OVERRIDE_GFX_VERSION 11.0.0\n"),
    ),
    (
        "hsa-override",
        "warning",
        "pam_env.conf line 1",
        lambda r: strix_halo(r).file(
            "/etc/security/pam_env.conf", "HSA_OVERRIDE_GFX_VERSION DEFAULT=11.0.0\n"
        ),
    ),
]
