# SPDX-License-Identifier: Apache-2.0
"""Controller side of lemonade_package: shows how far it is."""

from __future__ import annotations

from ansible_collections.lemonade.deploy.plugins.plugin_utils.watched import Watched


class ActionModule(Watched):
    """The module, watched."""

    module = "lemonade_package"
