# SPDX-License-Identifier: Apache-2.0
"""A simulated kernel.ubuntu.com/mainline: pages, packages, and CHECKSUMS signed with a key of the lab's.

Laid out as the real one: a page that lists the versions, a page a version that says how its builds
ended, and a folder an architecture. Which versions there are stands in ``catalog.MAINLINE``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from .. import catalog
from ..catalog import Kernel, MainlineVersion
from ..shell import run
from . import kernels
from .debs import Deb, build
from .keys import Key, gpg_home

HOST = "kernel.ubuntu.com"


def build_mainline(site: Path, key: Key) -> None:
    """Write the whole tree below *site*."""
    tree = site / "mainline"
    for version in catalog.MAINLINE:
        _version(tree / f"v{version.name}", version, key)
    names = [f"v{version.name}/" for version in catalog.MAINLINE]
    _page(tree, "Index of /mainline", [f'<a href="{name}">{name}</a>' for name in ["daily/", *names]])


def _version(folder: Path, version: MainlineVersion, key: Key) -> None:
    folder.mkdir(parents=True)
    architecture = folder / "amd64"
    debs = [path.name for kernel in version.builds for path in _build(architecture, kernel)]
    if not debs:
        failed = "Test amd64/build missing (rc=1, on=amd64, time=0:02:11, log=<a>amd64/log</a>)"
        _page(folder, f"Index of /mainline/v{version.name}", [failed])
        return
    lines = ["Test amd64/build succeeded (rc=0, on=amd64, time=0:09:53, log=<a>amd64/log</a>)"]
    lines += [f'&nbsp;&nbsp;<a href="amd64/{name}">amd64/{name}</a>' for name in sorted(debs)]
    _page(folder, f"Index of /mainline/v{version.name}", lines)
    checksums = architecture / "CHECKSUMS"
    checksums.write_text("".join(_sums(architecture, sorted(debs))), "utf-8")
    sign(checksums, key)


def sign(checksums: Path, key: Key) -> None:
    """Write CHECKSUMS.gpg, a detached signature, beside *checksums*."""
    with gpg_home(key.secret) as gpg:
        signing = [*gpg, "--passphrase", "", "--digest-algo", "SHA512", "--local-user", key.fingerprint]
        output = checksums.with_name("CHECKSUMS.gpg")
        run([*signing, "--armor", "--detach-sign", "--output", output, checksums])


def _build(folder: Path, kernel: Kernel) -> Iterator[Path]:
    for deb in mainline_debs(kernel):
        yield build(deb, folder)


def mainline_debs(kernel: Kernel) -> Iterator[Deb]:
    """The four packages of a mainline build."""
    common = kernel.release.rpartition("-")[0]
    yield from kernels.kernel_debs(
        kernel, unsigned=True, headers_depend=f"linux-headers-{common}, libc6 (>= 2.38)"
    )
    yield Deb(
        f"linux-headers-{common}",
        kernel.version,
        f"simulated Linux kernel headers {common}, the common part",
        architecture="all",
        fields={"Section": "devel"},
    )


def _sums(folder: Path, names: list[str]) -> Iterator[str]:
    yield "# CHECKSUMS of a simulated mainline build\n"
    for title, algorithm in (("Sha1", "sha1"), ("Sha256", "sha256")):
        yield f"# Checksums-{title}:\n"
        for name in names:
            digest = hashlib.new(algorithm, (folder / name).read_bytes(), usedforsecurity=False)
            yield f"{digest.hexdigest()}  {name}\n"


def _page(folder: Path, title: str, lines: list[str]) -> None:
    body = "<br>\n".join(lines)
    text = f"<html><head><title>{title}</title></head>\n<body><h1>{title}</h1>\n{body}<br>\n</body></html>\n"
    (folder / "index.html").write_text(text, "utf-8")
