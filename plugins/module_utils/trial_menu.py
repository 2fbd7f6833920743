# SPDX-License-Identifier: Apache-2.0
"""Our entries at the top of GRUB's menu: the known-good kernel, the one before it, and the trial.

What was tried on real boots (GRUB 2.12): an entry that cannot be loaded (no image, a wrong id) leaves
GRUB at its menu for ever unless ``fallback`` names another one, and ``fallback`` takes an index only.
So the known-good kernel is the *first* entry, which is also what GRUB boots for an id that it does not
find. The trial has an entry of its own, because only the trial may reset itself after a panic and
only the trial carries the mark that the timer on the host looks for.

The entries are not written down: /etc/grub.d/09_lemonade-deploy takes them out of what 10_linux makes
each time grub.cfg is generated, so root, command line and initrd are always those of the real entry.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .grub import ID_PREFIX
from .host import Host

SCRIPT = "/etc/grub.d/09_lemonade-deploy"
GOOD = ID_PREFIX + "good"
PREVIOUS = ID_PREFIX + "previous"
TRIAL = ID_PREFIX + "trial"
MARK = "lemonade_deploy.trial"
CMDLINE = "/proc/cmdline"
# Seconds after a panic until the box resets itself; initramfs-tools obeys it as well (a missing
# root file system then reboots instead of opening a shell). Without it a panic stands for ever.
PANIC_SECONDS = 30
# The same of dracut, which opens an emergency shell otherwise (dracut.cmdline(7); others ignore it).
_DRACUT = "rd.shell=0 rd.emergency=reboot"

_SETTING = re.compile(r"^(good|previous|trial|extra)='([^']*)'$", re.MULTILINE)
_RELEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+~_-]*")

_TEMPLATE = r"""#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Managed by lemonade-deploy (role kernel); written again when a kernel is tried or becomes the default.
# Puts the known-good kernel first and has GRUB fall back to it, and gives a kernel on trial an entry
# whose parameters the others do not have. The entries are copies of those that 10_linux makes.
set -eu
good='@GOOD@'
previous='@PREVIOUS@'
trial='@TRIAL@'
extra='@EXTRA@'
real=$("${0%/*}/10_linux" 2>/dev/null) || exit 0

# copy RELEASE ID TITLE PARAMETERS: the normal entry of a kernel under another id
copy() {
  printf '%s\n' "$real" | awk -v release="$1" -v id="$2" -v title="$3" -v extra="$4" '
    /^[ \t]*menuentry[ \t].*[{][ \t]*$/ {
      # The title is one word of quoted pieces; what looks like an option in it is none.
      options = $0; sub(/^[ \t]*menuentry[ \t]+/, "", options)
      match(options, /^(\047[^\047]*\047|\\.|"(\\.|[^"\\])*"|[^ \t\047"\\])+/)
      options = substr(options, RLENGTH + 1); to = index(options, "$menuentry_id_option")
      options = to ? substr(options, 1, to - 1) : " "
      body = ""; ours = 0; recovery = 0; inside = 1; next
    }
    inside && /^[ \t]*[}][ \t]*$/ {
      inside = 0
      if (ours && !recovery && !done) {
        printf "menuentry \047%s\047%s$menuentry_id_option \047%s\047 {\n%s}\n", title, options, id, body
        done = 1
      }
      next
    }
    inside {
      line = $0
      if ($1 ~ /^linux(efi|16)?$/) {
        parts = split($2, path, "/vmlinuz-")
        ours = (parts == 2 && path[2] == release)
        for (word = 3; word <= NF; word++) if ($word == "recovery" || $word == "single") recovery = 1
        if (extra != "") line = line " " extra
      }
      body = body line "\n"
    }'
}

count=0
fallback=
for kind in good previous trial; do
  case "$kind" in
    good) release=$good; what='known good'; more= ;;
    previous) release=$previous; what='known good before'; more= ;;
    trial) release=$trial; what='on trial'; more=$extra ;;
  esac
  [ -n "$release" ] || continue
  entry=$(copy "$release" "lemonade-deploy-$kind" "Linux $release ($what, lemonade-deploy)" "$more")
  [ -n "$entry" ] || continue
  printf '%s\n' "$entry"
  [ "$kind" = trial ] || fallback="$fallback $count"
  count=$((count + 1))
done
[ -z "$fallback" ] || printf 'set fallback="%s"\n' "${fallback# }"
"""


class Entries(NamedTuple):
    """Kernel releases, "" for none; ``extra``: kernel parameters that only the trial gets."""

    good: str
    previous: str = ""
    trial: str = ""
    extra: str = ""


def trial_parameters(release: str, watchdog: int = 0) -> str:
    """Kernel parameters of a trial boot; *watchdog* in seconds, 0 leaves it alone.

    ``systemd.watchdog_sec`` (systemd 250 and later) arms the hardware watchdog for this one boot only.
    """
    armed = f" systemd.watchdog_sec={watchdog}" if watchdog else ""
    return f"panic={PANIC_SECONDS} {_DRACUT} {MARK}={release}{armed}"


def script(entries: Entries) -> str:
    """Content of :data:`SCRIPT`. Raises ValueError for what is no release."""
    text = _TEMPLATE
    for name in ("good", "previous", "trial"):
        release = getattr(entries, name)
        if release and not _RELEASE.fullmatch(release):
            raise ValueError(f"no kernel release: {release!r}")
        text = text.replace(f"@{name.upper()}@", release)
    if "'" in entries.extra or "\n" in entries.extra:
        raise ValueError(f"no kernel parameters: {entries.extra!r}")
    return text.replace("@EXTRA@", entries.extra)


def read(host: Host) -> Entries | None:
    """What the script on the host says, or None where there is none."""
    text = host.read(SCRIPT)
    if text is None:
        return None
    found = dict(_SETTING.findall(text))
    return Entries(
        found.get("good", ""), found.get("previous", ""), found.get("trial", ""), found.get("extra", "")
    )


def write(host: Host, entries: Entries) -> bool:
    """Put the script on the host; whether it was another one before. grub.cfg is not made anew."""
    wanted = script(entries)
    if host.read(SCRIPT) == wanted:
        return False
    host.write(SCRIPT, wanted, 0o755)
    return True


def marked(host: Host) -> str:
    """Release that the running boot is a trial of, or "" in an ordinary boot."""
    for word in (host.read(CMDLINE) or "").split():
        name, equals, value = word.partition("=")
        if name == MARK and equals:
            return value
    return ""
