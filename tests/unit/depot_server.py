# SPDX-License-Identifier: Apache-2.0
"""A depot that is filled and served, for tests of the depot and of hosts that use one."""

from __future__ import annotations

import threading
from pathlib import Path

from nasty import POLICY

from lemonade_deploy.depot import fetch, serve
from lemonade_deploy.domain.lock import Release

TOKEN = "t0ken"


def bring(folder: Path, release: Release) -> None:
    """Fetch all files of a release into the depot at *folder*."""
    for asset in release.assets:
        fetch.fetch(release, asset, asset.url, folder / release.tag, policy=POLICY)


class running:
    """A depot's server in a thread; entered, it gives the address."""

    def __init__(self, folder: Path) -> None:
        self.server = serve.server(folder, ("127.0.0.1", 0), TOKEN)

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __exit__(self, *_error: object) -> None:
        self.server.shutdown()
        self.server.server_close()
