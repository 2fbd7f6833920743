# SPDX-License-Identifier: Apache-2.0
"""The mark that another bundle is current and the daemon has not been restarted since.

A restart first takes the mark aside: one that another run sets meanwhile, for a swap that this restart may
have come too early for, stays. What was taken aside goes when the daemon answers, so a killed restart is due.
"""

from __future__ import annotations

import contextlib
import os

from . import paths
from .change import Call, Remove, WriteFile
from .host import Host

SET = WriteFile(paths.BUNDLE_RESTART_DUE, "")
_BEGUN = paths.BUNDLE_RESTART_DUE + ".begun"


def due(host: Host) -> bool:
    """Whether a bundle was swapped and no restart has come to its end since."""
    return host.exists(paths.BUNDLE_RESTART_DUE) or host.exists(_BEGUN)


def _take(host: Host) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.replace(host.path(paths.BUNDLE_RESTART_DUE), host.path(_BEGUN))


TAKE = Call(_take)  # right before a restart
SETTLE = Remove(_BEGUN)  # when the daemon answers after it
