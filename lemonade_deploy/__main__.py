# SPDX-License-Identifier: Apache-2.0
"""``python -m lemonade_deploy``."""

from __future__ import annotations

from lemonade_deploy.cli.main import main

if __name__ == "__main__":
    main()
