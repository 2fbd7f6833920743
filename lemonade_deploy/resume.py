# SPDX-License-Identifier: Apache-2.0
"""``--reboot`` on this very machine: a one-shot unit that runs the same command after the boot."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from lemonade_deploy.errors import UsageError

UNIT = "lemonade-deploy-resume.service"
UNIT_FOLDER = Path("/etc/systemd/system")
# Set by the unit: a run that was resumed stops at a second reboot, so that a box that never
# gets its proof does not reboot for ever.
RESUMED = "LEMONADE_DEPLOY_RESUMED"

Run = Callable[[Sequence[str], str | None], None]


def check(asks: bool) -> None:
    """Refuse what cannot work after a boot, before anything is done. Raises UsageError."""
    if asks:
        raise UsageError(
            "--reboot with -k, -K or --ask-vault-pass: nobody answers a prompt after the boot.",
            "Use a key, sudo without a password, or --vault-password-file; or reboot by hand.",
        )
    if not Path("/run/systemd/system").is_dir():
        raise UsageError("--reboot needs systemd, and this machine does not run it.")


def unit_text(argv: Sequence[str], folder: Path, user: str) -> str:
    """The unit. It disables itself before it starts and removes itself at its end.

    ``+`` runs these steps as root although the command itself runs as *user*.
    """
    command = " ".join(_quoted(word) for word in (sys.executable, "-m", "lemonade_deploy", *argv))
    return f"""# Written by lemonade-deploy --reboot; gone when it has run.
[Unit]
Description=Go on with lemonade-deploy after the reboot it asked for
Wants=network-online.target
After=network-online.target multi-user.target

[Service]
Type=oneshot
User={user}
WorkingDirectory={str(folder).replace("%", "%%")}
Environment={RESUMED}=1 HOME={pwd.getpwnam(user).pw_dir} PATH={os.environ.get("PATH", os.defpath)}
TimeoutStartSec=infinity
ExecStartPre=+/usr/bin/env systemctl disable --no-reload {UNIT}
ExecStart={command}
ExecStopPost=+/usr/bin/env rm -f {UNIT_FOLDER / UNIT}

[Install]
WantedBy=default.target
"""


def _quoted(word: str) -> str:
    """*word* for systemd: quoted, with its specifiers and variables taken literally."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def _as_root(argv: Sequence[str], stdin: str | None) -> None:
    prefix = [] if os.geteuid() == 0 else ["sudo", "-n"]
    subprocess.run([*prefix, *argv], input=stdin, text=True, check=True, stdout=subprocess.DEVNULL)


def reboot(argv: Sequence[str], folder: Path, run: Run = _as_root) -> None:
    """Install the unit and reboot. In a run that was resumed by it: say so and stay up.

    Raises UsageError when root's part fails; the unit is taken back then.
    """
    if os.environ.get(RESUMED):
        sys.stderr.write(
            "A second reboot is due after the first: not done by itself. Reboot and run again.\n"
        )
        return
    user = pwd.getpwuid(os.geteuid()).pw_name
    try:
        run(["tee", str(UNIT_FOLDER / UNIT)], unit_text(argv, folder, user))
        run(["systemctl", "daemon-reload"], None)
        run(["systemctl", "enable", "--quiet", UNIT], None)
        run(["systemctl", "reboot"], None)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        remove(run)
        raise UsageError(f"--reboot: {error}", "Reboot by hand and run the same command again.") from error


def remove(run: Run = _as_root) -> None:
    """Take the unit back."""
    try:
        run(["rm", "-f", str(UNIT_FOLDER / f"default.target.wants/{UNIT}"), str(UNIT_FOLDER / UNIT)], None)
        run(["systemctl", "daemon-reload"], None)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        sys.stderr.write(f"{UNIT_FOLDER / UNIT} could not be removed: {error}\n")
