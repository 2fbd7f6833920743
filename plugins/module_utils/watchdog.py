# SPDX-License-Identifier: Apache-2.0
"""A timer that restarts a daemon which runs, has answered, and answers no more.

Neither lemond nor vLLM speaks to systemd's own watchdog (no sd_notify in lemond 2026.39; WatchdogSec would
kill it when it is well). lemond watches its engines by itself; this watches what clients talk to.
"""

from __future__ import annotations

from . import paths, systemd
from .change import Change, Command, Operation, Remove, WriteFile
from .host import Host

LAYER = "lemonade_server"
SERVICE, TIMER = "lemonade-deploy-watchdog.service", "lemonade-deploy-watchdog.timer"
FOLDER = "/etc/systemd/system/"
SCRIPT_FILE = paths.PREFIX + "/bin/lemonade-watchdog"
EVERY = 30  # s

_SCRIPT = """#!/usr/bin/python3 -I
# Written by lemonade-deploy (role lemonade_server): lemonade-watchdog UNIT URL, run by a timer.
#
# Restarts UNIT where URL has answered since its start, and then three times in turn did not. A daemon that is
# late but works (it uses the CPU) is busy, one that has not answered yet is loading: both are left alone.
import http.client, json, os, subprocess, sys, time, urllib.error, urllib.request

TRIES = 3
WORKS = 0.02  # share of one CPU
unit, url = sys.argv[1:3]
store = os.path.join(os.environ.get("RUNTIME_DIRECTORY", "/run"), "watchdog.json")
show = ["systemctl", "show", "-p", "ActiveState,InvocationID,CPUUsageNSec", unit]
told = dict(line.partition("=")[::2] for line in subprocess.check_output(show, text=True).splitlines())
if told["ActiveState"] != "active":
    sys.exit()
now = time.monotonic()
nanoseconds = told["CPUUsageNSec"]  # "[not set]" without accounting
used = int(nanoseconds) / 1e9 if nanoseconds.isdigit() else None
try:
    with open(store) as stream:
        state = json.load(stream)
except (OSError, ValueError):
    state = {}
if state.get("start") != told["InvocationID"]:
    state = {"start": told["InvocationID"], "answered": False, "misses": 0}


def problem():
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5) as reply:
            return "" if reply.status == 200 else "answers HTTP %d" % reply.status
    except urllib.error.HTTPError as error:
        return "answers HTTP %d" % error.code
    except http.client.HTTPException:
        return "speaks no HTTP"
    except OSError as error:
        if isinstance(getattr(error, "reason", error), ConnectionRefusedError):
            return "refuses connections"
    if used is None or state.get("used") is None:
        return ""
    share = (used - state["used"]) / (now - state["now"])
    return "does not answer, and does nothing" if share < WORKS else ""


found = problem()
state["misses"] = state["misses"] + 1 if found and state["answered"] else 0
state["answered"] = state["answered"] or not found
state.update(now=now, used=used)
with open(store, "w") as stream:
    json.dump(state, stream)
if state["misses"] >= TRIES:
    print("<4>%s %s (%s): restarted" % (unit, found, url), flush=True)
    os.unlink(store)
    subprocess.check_call(["systemctl", "restart", unit])
"""

_SERVICE = """\
# Written by lemonade-deploy (role lemonade_server).
[Unit]
Description=Restart {unit} where it answers no more

[Service]
Type=oneshot
ExecStart={script} {unit} {url}
TimeoutStartSec=150
RuntimeDirectory=lemonade-deploy-watchdog
RuntimeDirectoryPreserve=yes
# Its starts are no news; what it does is a warning.
LogLevelMax=notice
CapabilityBoundingSet=
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
"""

_TIMER = f"""\
# Written by lemonade-deploy (role lemonade_server).
[Unit]
Description=Look every {EVERY} s whether the endpoint answers

[Timer]
OnActiveSec={EVERY}
OnUnitActiveSec={EVERY}
AccuracySec=1

[Install]
WantedBy=timers.target
"""


def files(unit: str, url: str) -> dict[str, tuple[str, int]]:
    """Path → text and mode of all three."""
    return {
        SCRIPT_FILE: (_SCRIPT, 0o755),
        FOLDER + SERVICE: (_SERVICE.format(unit=unit, url=url, script=SCRIPT_FILE), 0o644),
        FOLDER + TIMER: (_TIMER, 0o644),
    }


def plan(host: Host, wanted: bool, unit: str, url: str) -> list[Change]:
    """The timer there and running, or gone. *url* is what answers 200 without a key."""
    every = files(unit, url)
    current = {path: host.read(path) for path in every}
    if not wanted:
        if not any(text is not None for text in current.values()):
            return []
        stop = Command(("systemctl", "disable", "--now", "-q", TIMER))
        operations: tuple[Operation, ...] = (stop, *(Remove(path) for path in every), _RELOAD)
        return [Change(LAYER, "watchdog", "remove", TIMER, operations=operations)]
    different = [path for path, (text, _mode) in every.items() if current[path] != text]
    state = systemd.show(host, TIMER)
    if not different and state.enabled == "enabled" and state.active == "active":
        return []
    writes = [WriteFile(path, *every[path]) for path in different]
    return [
        Change(
            LAYER,
            "watchdog",
            "set up",
            f"{TIMER}: {url} every {EVERY} s",
            "".join(current[path] or "" for path in different),
            "".join(every[path][0] for path in different),
            (*writes, _RELOAD, Command(("systemctl", "enable", "--now", "-q", TIMER))),
        )
    ]


_RELOAD = Command(("systemctl", "daemon-reload"))
