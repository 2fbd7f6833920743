# SPDX-License-Identifier: Apache-2.0
"""The burn test's report: Markdown, one HTML page, plots."""
