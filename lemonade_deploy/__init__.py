# SPDX-License-Identifier: Apache-2.0
"""lemonade-deploy: the controller side. Never imported on a host."""

from __future__ import annotations

from importlib.metadata import version

__version__ = version("lemonade-deploy")
