# SPDX-License-Identifier: Apache-2.0
"""``lemonade-deploy verify``: a testinfra suite (suite/) and what runs it on many hosts."""
