# SPDX-License-Identifier: Apache-2.0
"""An AnsibleModule for what only its rim is asked."""

from __future__ import annotations

from typing import Any


class Module:
    """Of AnsibleModule what the rim uses; ``said`` is the result."""

    def __init__(self, check_mode: bool = False) -> None:
        self.check_mode = check_mode
        self.said: dict[str, Any] = {}

    def exit_json(self, **kwargs: Any) -> None:
        self.said = kwargs

    def fail_json(self, msg: str, **kwargs: Any) -> None:
        self.said = {"msg": msg, **kwargs}
