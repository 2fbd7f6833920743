# SPDX-License-Identifier: Apache-2.0
"""The unit that loads the first wanted model whenever lemond has started: after a reboot, a crash, an update.

lemond itself loads a model at the first request, and that one would wait for minutes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from . import paths
from .change import Change, Command, WriteFile
from .host import Host

UNIT = "lemonade-deploy-warm.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
SCRIPT_FILE = paths.PREFIX + "/bin/lemond-warm"
MODEL_FILE = paths.CONFIG_DIR + "/warm-model"
LAYER = "models"
WAIT = 60  # s until lemond answers
GAVE_UP = 75  # its exit code where its time ran out; lemond may still be at the load

_SCRIPT = """#!/usr/bin/python3 -I
# Written by lemonade-deploy (role models): loads the model that stays warm.
# The API key comes from the environment, which systemd reads out of a file that only root can read.
import http.client, json, os, sys, time, urllib.error, urllib.request

settings = json.load(open("@DEFAULTS@"))
host = settings.get("host", "127.0.0.1")
host = {"0.0.0.0": "127.0.0.1", "::": "::1", "localhost": "127.0.0.1"}.get(host, host)
base = "http://%s:%d" % ("[" + host + "]" if ":" in host else host, settings.get("port", 13305))
model = open("@MODEL@").read().strip()
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(path, body=None, timeout=10.0):
    headers = {"Content-Type": "application/json"}
    if os.environ.get("LEMONADE_API_KEY"):
        headers["Authorization"] = "Bearer " + os.environ["LEMONADE_API_KEY"]
    data = None if body is None else json.dumps(body).encode()
    with opener.open(urllib.request.Request(base + path, data, headers), timeout=timeout) as answer:
        return json.load(answer)


until = time.monotonic() + @WAIT@
while True:
    try:
        ask("/live")
        break
    except (OSError, ValueError, http.client.HTTPException) as error:
        if time.monotonic() > until:
            sys.exit("lemond does not answer at %s: %s" % (base, error))
        time.sleep(0.5)
if ask("/v1/health").get("all_models_loaded"):
    print("a model is loaded already")
    sys.exit()
began = time.monotonic()
print("loading %s; a first load compiles kernels and can take many minutes" % model, flush=True)
try:
    ask("/v1/load", {"model_name": model}, @LIMIT@)
except urllib.error.HTTPError as error:
    sys.exit("%s does not load: %s" % (model, error.read().decode("utf-8", "replace")[:400]))
except (OSError, ValueError, http.client.HTTPException) as error:
    print("%s was not loaded after %d s: %s" % (model, time.monotonic() - began, error), file=sys.stderr)
    sys.exit(@GAVE_UP@)
print("%s is loaded after %.0f s" % (model, time.monotonic() - began))
"""

_UNIT_TEXT = f"""\
# Written by lemonade-deploy (role models): a model is warm again after each start of lemond.
[Unit]
Description=Load the model that stays warm in Lemonade Server
After=lemond.service
PartOf=lemond.service

[Service]
Type=oneshot
ExecStart={SCRIPT_FILE}
EnvironmentFile=-/etc/default/lemond
EnvironmentFile=-{paths.LEMOND_SECRETS}
TimeoutStartSec=infinity
DynamicUser=yes
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictAddressFamilies=AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service

[Install]
WantedBy=lemond.service
"""


def script(limit: int) -> str:
    """The script; ``limit`` in seconds is for one load."""
    text = _SCRIPT.replace("@DEFAULTS@", paths.LEMOND_DEFAULTS).replace("@MODEL@", MODEL_FILE)
    text = text.replace("@GAVE_UP@", str(GAVE_UP))
    return text.replace("@WAIT@", str(WAIT)).replace("@LIMIT@", f"{limit:.1f}")


@dataclass(frozen=True)
class Seen:
    """A load by the unit: when it began (seconds since 1970), how long it took until now (s), how it ended.

    ``unfinished``: neither loaded nor refused. The unit is still at it, or gave up at its own limit, which
    may be an older and shorter one than ours; lemond goes on with it in either case.
    """

    began: float
    seconds: float
    failed: bool = False
    unfinished: bool = False


def await_end(host: Host, timeout: float) -> Seen | None:
    """Wait for a load that the unit is at, *timeout* s at most; None where it is at none.

    Who restarts lemond starts the unit. A load of our own beside it would only repeat what it tries.
    """
    told = _state(host)
    if told.get("ActiveState") != "activating":
        return None
    until = time.monotonic() + timeout
    while told.get("ActiveState") == "activating" and time.monotonic() < until:
        time.sleep(0.3)
        told = _state(host)
    # systemd's clock is the kernel's monotonic one, in microseconds.
    now = time.monotonic()
    start, end = (int(told.get(f"ExecMain{name}TimestampMonotonic") or 0) / 1e6 for name in ("Start", "Exit"))
    began = time.time() - (now - start) if start else time.time()
    if told.get("ActiveState") == "activating":
        return Seen(began, now - start if start else 0.0, unfinished=True)
    gave_up = told.get("ExecMainStatus") == str(GAVE_UP)
    failed = told.get("Result") != "success" and not gave_up
    return Seen(began, max(0.0, end - start), failed, gave_up)


def _state(host: Host) -> dict[str, str]:
    names = "ActiveState,Result,ExecMainStatus,ExecMainStartTimestampMonotonic,ExecMainExitTimestampMonotonic"
    text = host.run(["systemctl", "show", "-p", names, UNIT]).stdout
    return dict(line.partition("=")[::2] for line in text.splitlines())


def plan(host: Host, model: str, limit: int) -> list[Change]:
    """Files and link of the unit. Nothing is started: the role has loaded the model itself."""
    wanted = {
        SCRIPT_FILE: (script(limit), 0o755),
        MODEL_FILE: (model + "\n", 0o644),
        UNIT_FILE: (_UNIT_TEXT, 0o644),
    }
    current = {path: host.read(path) for path in wanted}
    link = f"/etc/systemd/system/lemond.service.wants/{UNIT}"
    different = [path for path, (text, _mode) in wanted.items() if current[path] != text]
    if not different and host.exists(link):
        return []
    operations = [WriteFile(path, *wanted[path]) for path in different]
    enable = (Command(("systemctl", "daemon-reload")), Command(("systemctl", "enable", "-q", UNIT)))
    return [
        Change(
            LAYER,
            "warm-up after a start of lemond",
            "set up",
            f"{UNIT} loads {model}",
            "".join(current[path] or "" for path in different),
            "".join(wanted[path][0] for path in different),
            (*operations, *enable),
        )
    ]
