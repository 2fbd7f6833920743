# SPDX-License-Identifier: Apache-2.0
"""What the lab serves to its hosts: signed apt repositories, keys, and an HTTP(S) server for them."""

from __future__ import annotations

from .assembly import Services, build

__all__ = ["Services", "build"]
