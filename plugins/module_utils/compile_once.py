# SPDX-License-Identifier: Apache-2.0
"""Have Python compile each of our files in a module's payload once: every module imports this first.

Ansible sends a module as a zip of sources. The import machinery asks of each where it stands
(``get_filename``), and zipimport compiles the source to answer, then compiles it again to run it:
https://github.com/python/cpython/issues/141276, open in Python 3.15. That was an eighth of preflight's
CPU time on a host where nothing is to be done. A payload that is no zip is left alone.
"""

from __future__ import annotations

import sys
import zipimport


class OnceImporter(zipimport.zipimporter):
    """Answers where a source stands without compiling it. For a folder of sources only: no bytecode."""

    def get_filename(self, fullname: str) -> str:
        """Path of *fullname* within the zip; the import machinery asks for what it has found there."""
        if self.is_package(fullname):
            return super().get_filename(fullname)
        return f"{self.archive}/{self.prefix}{fullname.rpartition('.')[2]}.py"


_folder = __file__.rpartition("/")[0]
if isinstance(sys.path_importer_cache.get(_folder), zipimport.zipimporter):
    sys.path_importer_cache[_folder] = OnceImporter(_folder)
