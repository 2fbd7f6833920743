# SPDX-License-Identifier: Apache-2.0
"""Ends ansible-playbook when the command that started it is killed."""

from __future__ import annotations

DOCUMENTATION = r"""
name: tied
type: aggregate
short_description: end with the command that started ansible-playbook
description:
  - C(lemonade-deploy) turns it on for its own runs, and names itself in E(LEMONADE_DEPLOY_PID).
  - A command that is killed (C(kill -9), or no memory) cannot stop its C(ansible-playbook), which could wait
    for results without end afterwards, as nobody reads what it writes.
  - On Linux only (C(PR_SET_PDEATHSIG) of prctl(2)).
author:
  - lemonade-deploy authors (@lemonade-deploy)
requirements:
  - enabled by lemonade-deploy
"""

import ctypes
import os
import signal
import sys

from ansible.plugins.callback import CallbackBase

PARENT = "LEMONADE_DEPLOY_PID"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def _lives(pid: int) -> bool:
    """Whether the command runs: an ansible-playbook that a task of its own started has another parent."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class CallbackModule(CallbackBase):
    """Nothing is told by it: it is only made once, in ansible-playbook's own process."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "lemonade.deploy.tied"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        parent = os.environ.get(PARENT, "")
        if not parent.isdecimal() or not sys.platform.startswith("linux"):
            return
        if os.getppid() == int(parent):
            # SIGTERM: Ansible passes it on to its workers.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent) and not _lives(int(parent)):  # it was killed before the line above
            os.kill(os.getpid(), signal.SIGTERM)
