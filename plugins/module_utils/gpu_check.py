# SPDX-License-Identifier: Apache-2.0
"""The script that runs before lemond: is the GPU's device there and usable, are its CWSR numbers right?

Without it a box that booted the wrong kernel shows a lemond that is active, and whose every load fails
with a page fault or a time-out. The text depends on nothing of the host, so that a plan made before a
boot is the plan of after it. Formula and register sizes come from :mod:`.cwsr`.
"""

from __future__ import annotations

from . import cwsr, gfx, kfd

PREFIX = "gpu-check: "  # of the line it says
DEVICE = "/dev/kfd"
WAIT = 30  # s; udev may be slower than the boot

_SCRIPT = """\
#!/bin/sh
# Written by lemonade-deploy (role lemonade_server): ExecStartPre of lemond.service.
# usage: lemond-gpu-check [DEVICE [NODES]]
device=${1:-@DEVICE@}
nodes=${2:-@NODES@}

fail() {
  # One line: `systemctl status` shows ten, and systemd's own come after it.
  echo "@PREFIX@$1 $2" >&2
  exit 1
}

left=@WAIT@
until [ -e "$device" ]; do
  [ "$left" -gt 0 ] || fail "$device is not there: the driver amdgpu has no GPU for compute." \\
    "See what \\`lemonade-deploy doctor\\` says, and \\`journalctl -k -g amdgpu\\`."
  left=$((left - 1))
  sleep 1
done
# Opened for real: its mode says nothing about systemd's list of devices. The class char-kfd is looked up when
# the unit starts; where the driver came only after that, systemd's next try finds it.
(: <> "$device") 2>/dev/null || fail "$(id -un) cannot open $device." \\
  "It needs the group render (\\`ls -l $device\\`), and DeviceAllow=char-kfd in the unit: run site.yml again."

for file in "$nodes"/*/properties; do
  [ -r "$file" ] || continue
  version=0 simds=0 per_cu=0 xcc=1 cwsr= stack=
  while read -r name value; do
    case $name in
      gfx_target_version) version=$value ;;
      simd_count) simds=$value ;;
      simd_per_cu) per_cu=$value ;;
      num_xcc) xcc=$value ;;
      cwsr_size) cwsr=$value ;;
      ctl_stack_size) stack=$value ;;
    esac
  done < "$file"
  case $version in
@CASES@
    *) continue ;;
  esac
  [ -n "$cwsr" ] && [ -n "$stack" ] || fail \\
    "The running kernel $(uname -r) does not export the CWSR sizes ($file)." \\
    "vLLM would fault: boot a kernel with the fix (\\`lemonade-deploy site.yml\\` installs one)."
  [ "$xcc" -gt 0 ] || xcc=1
  [ "$simds" -gt 0 ] && [ "$per_cu" -gt 0 ] || continue
  cus=$((simds / per_cu / xcc))
  want_stack=$(((@HEADER@ + cus * @WAVES@ + @PAGE@ - 1) / @PAGE@ * @PAGE@))
  want=$((want_stack + (cus * bytes + @PAGE@ - 1) / @PAGE@ * @PAGE@))
  [ "$cwsr" -ge "$want" ] && [ "$stack" -ge "$want_stack" ] || fail \\
    "cwsr_size $cwsr, ctl_stack_size $stack: for $cus compute units $want and $want_stack are right." \\
    "vLLM would fault: boot a kernel with the fix (\\`lemonade-deploy site.yml\\` installs one)."
done
exit 0
"""


def script() -> str:
    """The script's text. Judged are the GPUs that cannot work without right numbers."""
    one = {name: cwsr.sizes(name, 1) for name in sorted(cwsr.NEEDS_EXPORT)}
    cases = [
        f"    {gfx.encode(name)}) bytes={sizes.cwsr_size - sizes.ctl_stack_size} ;;"
        for name, sizes in one.items()
    ]
    values = {
        "DEVICE": DEVICE,
        "NODES": kfd.NODES,
        "PREFIX": PREFIX,
        "WAIT": str(WAIT),
        "CASES": "\n".join(cases),
        "HEADER": str(cwsr.CONTROL_HEADER + cwsr.CONTROL_TAIL),
        "WAVES": str(cwsr.WAVES_PER_CU * cwsr.CONTROL_PER_WAVE),
        "PAGE": str(cwsr.PAGE),
    }
    text = _SCRIPT
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text
