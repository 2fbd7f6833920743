# SPDX-License-Identifier: Apache-2.0
"""lemond's settings: the defaults file we write, what lemond makes of it, and where it is reached.

Layers (config_file.cpp): built-in defaults < /usr/share/lemonade/defaults.json <
$LEMONADE_DEFAULTS_PATH < config.json. We own the third; config.json is lemond's and the user's.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import paths
from .host import Host
from .lemond_overrides import CONFIG_FILES, Override, shown
from .module import Refused

STATE_DIR = "/var/lib/lemonade"  # lemond's home and StateDirectory (sysusers file of the package)
USER_CONFIG = CONFIG_FILES[0]
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 13305  # since v10.1.0 (lemonade commit b25437ca2)


# What lemond is told of a host without internet: it fetches no programs, and asks for no updates.
OFFLINE = {"offline": True, "no_fetch_executables": True}


@dataclass(frozen=True)
class Settings:
    """What lemond shall do. ``global_timeout`` (s) limits each of lemond's two tries to load a model.

    ``extra`` are further keys of lemond's configuration, nested as in its defaults.json.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    ctx_size: int = 4096
    global_timeout: int = 1800
    vllm_args: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


def check(settings: Settings, api_key: str) -> None:
    """Raises Refused for settings that lemond takes without a word and that would hurt."""
    if settings.global_timeout <= 0:
        raise Refused(
            f"lemonade_server_global_timeout is {settings.global_timeout}: every model load would fail.",
            "Give it in seconds, at least as long as a first load may take (1800).",
        )
    if not 0 < settings.port < 65536:
        raise Refused(f"lemonade_server_port {settings.port} is no TCP port.", "Use 1 to 65535.")
    if settings.ctx_size != -1 and settings.ctx_size < 1:
        raise Refused(
            f"lemonade_server_ctx_size {settings.ctx_size} is no number of tokens.", "Use -1 or more than 0."
        )
    if not is_loopback(settings.host) and not api_key:
        raise Refused(
            f"lemonade_server_host {settings.host} opens the server to the network, but no API key is set.",
            "Set lemonade_server_api_key (in a vault) or lemonade_server_api_key_generate, "
            "or bind to 127.0.0.1.",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that binds to *host*."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def document(settings: Settings) -> dict[str, Any]:
    """The defaults file as data. ``vllm.rocm_bin`` is the launcher *file*.

    lemond accepts a folder there, calls it installed, and then every load fails on exec.
    """
    ours: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "broadcast": False,
        "ctx_size": settings.ctx_size,
        "global_timeout": settings.global_timeout,
        "vllm": {"rocm_bin": paths.LAUNCHER, "args": settings.vllm_args},
    }
    return merged(ours, settings.extra)


def merged(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """*base* with *extra* laid over it, section by section."""
    result = dict(base)
    for key, value in extra.items():
        inner = result.get(key)
        result[key] = (
            merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
        )
    return result


def text(settings: Settings) -> str:
    """The defaults file as it stands on disk."""
    return json.dumps(document(settings), indent=2, sort_keys=True) + "\n"


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every setting in a tree."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def findings(
    settings: Settings, effective: Mapping[str, Any], overridden: Sequence[Override] = ()
) -> list[dict[str, str]]:
    """A ``config-overridden`` finding for each setting of ours that lemond does not follow.

    *effective* is the answer of GET /internal/config. What *overridden* (config.json) explains is told in
    preflight's words, so that a run tells it once.
    """
    actual, explained = dict(leaves(effective)), {one.key: one for one in overridden}
    found = []
    for key, wanted in leaves(document(settings)):
        if actual.get(key) == wanted:
            continue
        one = explained.get(key)
        text = f"lemond uses {key} = {shown(key, actual.get(key))}, ours is {shown(key, wanted)}"
        if one is not None:
            text = f"{one.path} line {one.line}: {key} is {one.value}, ours is {one.ours}"
        found.append(
            {
                "id": "config-overridden",
                "severity": "warning",
                "found": text,
                "remedy": f"Remove {key} from lemond's config.json (see `lemonade config`) and restart "
                "lemond, or give the inventory the value you want.",
                "source": one.path if one else paths.LEMOND_DEFAULTS,
            }
        )
    return found


def endpoint(host: str, port: int) -> str:
    """URL under which the machine itself reaches lemond."""
    name = host.strip("[]")
    if name in ("0.0.0.0", "localhost", ""):  # noqa: S104  compared with, not bound to
        name = DEFAULT_HOST
    elif name == "::":
        name = "::1"
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def read_endpoint(host: Host) -> str:
    """The endpoint by the files on the host: config.json wins over our defaults file."""
    name, port = DEFAULT_HOST, DEFAULT_PORT
    for path in (paths.LEMOND_DEFAULTS, USER_CONFIG):
        try:
            stored = json.loads(host.read(path) or "{}")
        except ValueError:
            continue  # lemond sets a broken config.json aside and goes on with the defaults
        told = stored if isinstance(stored, dict) else {}
        if isinstance(told.get("host"), str):
            name = told["host"]
        if str(told.get("port")).isdecimal():
            port = int(told["port"])
    return endpoint(name, port)


# --- secrets -----------------------------------------------------------------

_SECRET_NAME = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD)$", re.IGNORECASE)


def check_unit(unit: str) -> None:
    """Raises Refused for a secret among the variables in the (world-readable) unit file."""
    for name in re.findall(r'^Environment="?([^=\n]*)=', unit, re.MULTILINE):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise Refused(f"lemonade_server_environment: {name!r} is no name of an environment variable.")
        if _SECRET_NAME.search(name):
            raise Refused(
                f"lemonade_server_environment: {name} looks like a secret; anybody can read a unit file.",
                "Use lemonade_server_api_key or lemonade_server_hf_token; others fit in /etc/default/lemond.",
            )


def secrets_text(secrets: Mapping[str, str]) -> str:
    """Environment file (systemd.exec(5)) with the secrets that are set; "" for none."""
    lines = []
    for name, value in sorted(secrets.items()):
        if re.search("[\n\r\0]", value):
            raise Refused(f"The secret {name} contains a line break.", "Give it as one line.")
        if value:
            quoted = re.sub(r'(["\\`$])', r"\\\1", value)
            lines.append(f'{name}="{quoted}"\n')
    return "".join(lines)


def read_secret(host: Host, name: str) -> str:
    """A secret out of the environment file, "" where it is not set."""
    match = re.search(rf'^{name}="(.*)"$', host.read(paths.LEMOND_SECRETS) or "", re.MULTILINE)
    return re.sub(r"\\(.)", r"\1", match[1]) if match else ""


def read_plain(host: Host, path: str, name: str) -> str:
    """A variable of somebody else's environment file (systemd.exec(5)), "" where it is not set."""
    found = re.findall(rf"^\s*{name}=(.*)$", host.read(path) or "", re.MULTILINE)
    value = found[-1].strip() if found else ""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value
