# SPDX-License-Identifier: Apache-2.0
"""Overlay layers over the base root, made once a recipe and kept below the cache folder."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path

from . import cgroup
from .host import mount_overlay, unmount
from .network import Network, end_all
from .paths import cache_dir
from .recipes import Recipe, Step, recipes
from .root import base_root
from .say import step
from .services.assembly import Services
from .shell import LabError, run
from .state import exclusive

BUILDER_HOST = 3  # last byte of the address of whoever builds a layer
TRUSTED = "usr/local/share/ca-certificates/lemonade-lab.crt"


def layers(name: str, network: Network, served: Services) -> list[Path]:
    """The layers of a recipe, uppermost first, the base root last; "" is the base root alone.

    The lab's servers must run (packages come from them). Raises LabError with the output's end.
    """
    if not name:
        return [base_root()]
    keys = {role: path.read_bytes() for role, path in served.key_files.items()}
    recipe = recipes(keys)[name]
    lower = layers(recipe.below, network, served)
    done = cache_dir() / "layers" / f"{name}-{_digest(recipe, lower, served)}"
    if not done.is_dir():
        with exclusive(done.parent / f"{name}.lock", f"prepares the state {name!r}"):
            if not done.is_dir():
                with step(f"preparing the state {name!r} with the host's own tools (once)"):
                    _build(recipe, done, lower, network, served)
    return [done / "upper", *lower]


def _digest(recipe: Recipe, lower: list[Path], served: Services) -> str:
    """Digest of what decides a layer: recipe, layers below, what the archives serve, whom it trusts."""
    released = sorted(served.www.glob("*/**/dists/*/Release"))
    content = {
        "recipe": repr(recipe),
        "lower": [str(path) for path in lower],
        "archives": [_without_date(path) for path in released],
        "authority": hashlib.sha256(served.ca_pem.read_bytes()).hexdigest(),
        "code": Path(__file__).read_text(encoding="utf-8"),
    }
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _without_date(release: Path) -> str:
    lines = release.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("Date:"))


def _build(recipe: Recipe, done: Path, lower: list[Path], network: Network, served: Services) -> None:
    done.parent.mkdir(parents=True, exist_ok=True)
    netns = _builder_netns(network)
    network.plug(netns, f"ll{network.number}-build", f"{network.prefix}.{BUILDER_HOST}")
    building = Path(tempfile.mkdtemp(prefix=f".{recipe.name}-", dir=done.parent))
    root = building / "root"
    for part in ("upper", "work", "root", "view"):
        (building / part).mkdir()
    building.chmod(0o755)
    mount_overlay(root, lower, building / "upper", building / "work")
    try:
        _prepare(root, recipe, network, served)
        (building / "view/osrelease").write_text(recipe.running + "\n", encoding="utf-8")
        (building / "view/cmdline").write_text("quiet splash\n", encoding="utf-8")
        for command in recipe.steps:
            _run_inside(building, netns, command)
        _tidy(root)
    finally:
        unmount(root)
        cgroup.remove(netns)
        network.unplug(netns)
    for part in ("work", "root", "view"):
        shutil.rmtree(building / part)
    building.rename(done)


def _builder_netns(network: Network) -> str:
    return f"{network.services_netns}-builder"


def clear(network: Network) -> None:
    """Remove what a preparation left behind that was killed in the middle; idempotent."""
    netns = _builder_netns(network)
    end_all(netns)
    for unfinished in (cache_dir() / "layers").glob(".*-*"):
        recipe = unfinished.name[1:].partition("-")[0]
        with exclusive(unfinished.parent / f"{recipe}.lock", f"prepares the state {recipe!r}"):
            if unfinished.is_dir():
                unmount(unfinished / "root")
                shutil.rmtree(unfinished)
    cgroup.remove(netns)
    network.unplug(netns)


def _prepare(root: Path, recipe: Recipe, network: Network, served: Services) -> None:
    lines = ["127.0.0.1 localhost", *(f"{network.services_address} {name}" for name in served.hostnames)]
    (root / "etc/hosts").write_text("\n".join(lines) + "\n", encoding="utf-8")
    trust = root / TRUSTED
    trust.parent.mkdir(parents=True, exist_ok=True)
    trust.write_bytes(served.ca_pem.read_bytes())
    run(["chroot", root, "update-ca-certificates"])
    for path, content in recipe.files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _run_inside(building: Path, netns: str, command: Step) -> None:
    command_line: list[str] = [
        *("systemd-nspawn", "--quiet", "--keep-unit", "--register=no", "--pipe", "--as-pid2"),
        *("--directory", str(building / "root"), "--machine", "lemonlab-builder"),
        f"--network-namespace-path=/run/netns/{netns}",
        *("--resolv-conf=off", "--timezone=off", "--link-journal=no"),
        f"--bind-ro={building / 'view'}:/run/lemonade-lab",
        *("--setenv=DEBIAN_FRONTEND=noninteractive", "--setenv=LC_ALL=C.UTF-8"),
        *("/bin/sh", "-c", '/usr/lib/lemonade-lab/firmware-view && exec "$@"', "sh", *command.argv),
    ]
    done = run(
        cgroup.inside(netns, command_line),
        check=False,
        env={"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
    )
    if (done.rc != 0) != command.fails:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
        meant = "an error was expected of" if command.fails else "failed:"
        raise LabError(f"layer {building.name}: {meant} `{' '.join(command.argv)}` (code {done.rc}): {tail}")


def _tidy(root: Path) -> None:
    for path in (root / "var/cache/apt/archives").glob("*.deb"):
        path.unlink()
