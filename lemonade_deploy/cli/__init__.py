# SPDX-License-Identifier: Apache-2.0
"""The command: one file a verb."""
