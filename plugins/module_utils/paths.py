# SPDX-License-Identifier: Apache-2.0
"""Every path the kit owns on a host, in one place."""

from __future__ import annotations

STATE_DIR = "/var/lib/lemonade-deploy"
# What must take effect at the next boot; survives a pulled plug (role activate).
ACTIVATION_DUE = STATE_DIR + "/activation-due.json"
CACHE_DIR = "/var/cache/lemonade-deploy"  # partial downloads
CONFIG_DIR = "/etc/lemonade-deploy"
LEMOND_DEFAULTS = CONFIG_DIR + "/lemond-defaults.json"  # LEMONADE_DEFAULTS_PATH
LEMOND_SECRETS = CONFIG_DIR + "/lemond.env"  # 0600 root:root
PREFIX = "/opt/lemonade-deploy"
BUNDLE_ROOT = PREFIX + "/vllm-rocm"  # <tag>/ folders and the link `current`
BUNDLE_CURRENT = BUNDLE_ROOT + "/current"
LAUNCHER = PREFIX + "/bin/vllm-server"  # vllm.rocm_bin
GPU_CHECK = PREFIX + "/bin/lemond-gpu-check"  # ExecStartPre of lemond
LEMOND_UNIT = "/etc/systemd/system/lemond.service"
VLLM_UNIT = "/etc/systemd/system/lemonade-vllm.service"  # there only where vLLM itself is the daemon
# The files of lemond were written, but lemond has not been restarted since.
LEMOND_RESTART_DUE = STATE_DIR + "/lemond-restart-due"
# Another bundle was made current, but lemond has not been restarted since.
BUNDLE_RESTART_DUE = STATE_DIR + "/bundle-restart-due"
# Debian's backports, where a kernel must come from there and the host knows no such source.
BACKPORTS_SOURCE = "/etc/apt/sources.list.d/lemonade-deploy-backports.sources"
KERNEL_CACHE = CACHE_DIR + "/kernel"  # packages of a mainline build while they are fetched
LEMONADE_SOURCE = "/etc/apt/sources.list.d/lemonade-deploy-lemonade.sources"
LEMONADE_KEY = "/etc/apt/keyrings/lemonade-deploy-lemonade.asc"
# sha256 of the .deb that was installed by path or URL (lemonade_server_source: deb).
LEMONADE_DEB = STATE_DIR + "/lemonade-server.deb.sha256"
APT_PIN = "/etc/apt/preferences.d/lemonade-deploy-amdgpu"
GTT_MODPROBE = "/etc/modprobe.d/lemonade-deploy-gtt.conf"
GRUB_SNIPPET = "/etc/default/grub.d/zz-lemonade-deploy.cfg"  # sourced last by grub-mkconfig
TRIAL_CONFIRMED = "/run/lemonade-deploy/trial-confirmed"  # of this boot: the new kernel stays
KERNEL_HOLD = STATE_DIR + "/kernel-hold.json"  # metapackages held, and since when
KERNEL_KEEP = "/etc/apt/apt.conf.d/90lemonade-deploy-kernels"
PROGRESS = "/run/lemonade-deploy/progress"  # what a module tells while it works
HOLD_DIR = "/run/lemonade-deploy/hold"  # stand-in for update-initramfs while packages change
UDEV_RULES = "/etc/udev/rules.d/70-lemonade-deploy-gpu.rules"

# The only folders that check mode, and a plan, may write below (private apt state
# and the module's own temporary files live there).
CHECK_MODE_MAY_WRITE = ("/run", "/tmp", "/var/log", "~/.ansible")  # noqa: S108
