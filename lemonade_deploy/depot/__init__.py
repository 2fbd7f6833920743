# SPDX-License-Identifier: Apache-2.0
"""The controller's side of bundles: what is locked, and later fetched and served."""
