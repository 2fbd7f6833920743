# SPDX-License-Identifier: Apache-2.0
"""JUnit's XML form of the verdicts: one test suite a host."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

from lemonade_deploy.verify.verdict import TestResult, Verdict

# Characters that XML 1.0 cannot hold, not even escaped; a journal may carry them.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def document(verdicts: Sequence[Verdict]) -> ET.Element:
    """The element ``testsuites``."""
    root = ET.Element("testsuites", name="lemonade-deploy verify")
    for verdict in verdicts:
        why = verdict.unreachable or verdict.absent
        tests = verdict.tests or [TestResult("connect" if verdict.unreachable else "look", "error", 0.0, why)]
        suite = ET.SubElement(
            root,
            "testsuite",
            name=verdict.host,
            hostname=verdict.host,
            tests=str(len(tests)),
            failures=str(sum(test.outcome == "failed" for test in tests)),
            errors=str(sum(test.outcome == "error" for test in tests)),
            skipped=str(sum(test.outcome == "skipped" for test in tests)),
            time=f"{verdict.seconds:.3f}",
        )
        for test in tests:
            _case(suite, test)
    return root


def _case(suite: ET.Element, test: TestResult) -> None:
    module, _colons, name = test.name.rpartition("::")
    case = ET.SubElement(
        suite, "testcase", classname=module or "verify", name=name, time=f"{test.seconds:.3f}"
    )
    tag = {"failed": "failure", "error": "error", "skipped": "skipped"}.get(test.outcome)
    if tag:
        message = _clean(test.message)
        ET.SubElement(case, tag, message=message.partition("\n")[0]).text = message
    told = test.evidence if test.bad else test.warning
    if told:
        ET.SubElement(case, "system-out").text = _clean(told)


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("�", text)


def write(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Write the file; OSError where that does not work."""
    tree = ET.ElementTree(document(verdicts))
    ET.indent(tree)
    tree.write(path, encoding="utf-8", xml_declaration=True)
