# SPDX-License-Identifier: Apache-2.0
"""The domain: pure Python, standard library only, Python 3.10+.

The same files are imported on hosts by our modules
(``ansible_collections.lemonade.deploy.plugins.module_utils``) and on the
controller as ``lemonade_deploy.domain``; inside, they use relative imports only.
"""
