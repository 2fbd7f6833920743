# SPDX-License-Identifier: Apache-2.0
"""Static checks of a bundle: each part that is taken away turns one of them red."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lemonade_deploy.domain import bundle_check, bundle_layout
from lemonade_deploy.domain.bundle_check import check
from lemonade_deploy.domain.host import Host
from lemonade_deploy.domain.module import Refused

SITE = f"lib/python3.{sys.version_info[1]}/site-packages"
VITAL = {
    "bin/vllm-server": "the launcher is missing",
    f"{SITE}/vllm/_C.abi3.so": "native extension is missing",
    f"{SITE}/vllm/_rocm_C.abi3.so": "ROCm extension is missing",
    f"{SITE}/torch/.kpack/torch_gfx1151.kpack": "PyTorch's code objects for gfx1151 is missing",
    f"{SITE}/_rocm_sdk_libraries/.kpack/blas_gfx1151.kpack": "code objects for gfx1151 is missing",
    f"{SITE}/_rocm_sdk_core/lib/llvm/bin/clang": "the bundled compiler is missing",
}
CLANG = '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho library > "$2"\n'


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A copy of this Python that the user nobody can read (pyenv below /root is not)."""
    skip = shutil.ignore_patterns(
        "site-packages", "dist-packages", "test", "idlelib", "config-*", "__pycache__"
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        copy = Path(folder)
        copy.chmod(0o755)
        shutil.copy(Path(sys.executable).resolve(), copy / "python3")
        shutil.copytree(sysconfig.get_path("stdlib"), copy / "stdlib", ignore=skip, symlinks=True)
        for library in Path(sysconfig.get_config_var("LIBDIR") or "/").glob("libpython3*.so.1.0"):
            shutil.copy(library, copy)
        yield copy


@pytest.fixture
def tree(python: Path) -> Iterator[Path]:
    """A bundle with a Python of its own, in a folder that the user nobody can pass."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder)
        root.chmod(0o755)
        make(root, python)
        yield root


def make(root: Path, python: Path) -> None:
    (root / SITE).mkdir(parents=True)
    for entry in (python / "stdlib").iterdir():
        (root / SITE).parent.joinpath(entry.name).symlink_to(entry)
    (root / "bin").mkdir()
    shutil.copy(python / "python3", root / "bin/python3")
    script = f"""#!/bin/sh
here=$(dirname "$0")
export LD_LIBRARY_PATH={python}
exec "$here/python3" -m vllm.server "$@"
"""
    write(root / "bin/vllm-server", script, 0o755)
    for path in VITAL:
        if not (root / path).exists():
            write(root / path, CLANG if path.endswith("clang") else "x", 0o755)
    # A package wins over a library of the same name, so nothing has to be compiled here.
    write(root / SITE / "vllm/__init__.py", "")
    for name in ("_C", "_rocm_C"):
        write(root / SITE / f"vllm/{name}/__init__.py", "")


def problems(tree: Path) -> str:
    with pytest.raises(Refused) as refused:
        check(Host(), str(tree), "gfx1151")
    return refused.value.found


def test_a_sound_bundle_passes(tree: Path) -> None:
    check(Host(), str(tree), "gfx1151")


@pytest.mark.parametrize("path", VITAL)
def test_a_missing_part_has_its_own_message(tree: Path, path: str) -> None:
    (tree / path).unlink()
    assert VITAL[path] in problems(tree)


@pytest.mark.parametrize("path", list(VITAL)[1:5])
def test_an_empty_part_is_told(tree: Path, path: str) -> None:
    (tree / path).write_text("")
    assert f"is empty ({path})" in problems(tree)


def test_code_objects_of_another_gpu_do_not_count(tree: Path) -> None:
    folder = tree / SITE / "torch/.kpack"
    (folder / "torch_gfx1151.kpack").rename(folder / "torch_gfx1201.kpack")
    assert "PyTorch's code objects for gfx1151" in problems(tree)
    family = [text for text in bundle_layout.missing(str(tree), "gfx120X") if "PyTorch" in text]
    assert family == []


@pytest.mark.parametrize("name", ["_C", "_rocm_C"])
def test_an_extension_that_does_not_import(tree: Path, name: str) -> None:
    text = "raise ImportError('undefined symbol: _ZN3c103hip19getCurrentHIPStreamEa')"
    (tree / SITE / f"vllm/{name}/__init__.py").write_text(text)
    assert f"`import vllm.{name}` fails: ImportError: undefined symbol" in problems(tree)


def test_a_compiler_that_fails(tree: Path) -> None:
    clang = tree / SITE / "_rocm_sdk_core/lib/llvm/bin/clang"
    write(clang, "#!/bin/sh\necho 'unable to execute clang-23' >&2\nexit 1\n", 0o755)
    assert "cannot compile a stub: unable to execute clang-23" in problems(tree)
    write(clang, "#!/bin/sh\nexit 0\n", 0o755)
    assert "it wrote no library" in problems(tree)


def test_headers_that_the_host_lacks_have_a_remedy_of_their_own(tree: Path) -> None:
    clang = tree / SITE / "_rocm_sdk_core/lib/llvm/bin/clang"
    write(clang, "#!/bin/sh\necho \"fatal error: 'stdlib.h' file not found\" >&2\nexit 1\n", 0o755)
    with pytest.raises(Refused) as refused:
        check(Host(), str(tree), "gfx1151")
    assert "keep libc6-dev in vllm_rocm_packages" in refused.value.remedy


def test_a_full_disk_is_not_the_bundles_fault(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clang = tree / SITE / "_rocm_sdk_core/lib/llvm/bin/clang"
    write(clang, "#!/bin/sh\necho 'unable to open output file: No space left on device' >&2\nexit 1\n", 0o755)
    with pytest.raises(Refused) as refused:
        check(Host(), str(tree), "gfx1151")
    assert f"Free some space in {tempfile.gettempdir()}" in refused.value.remedy

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(bundle_check, "_probe", full)
    with pytest.raises(OSError, match="No space") as raised:
        check(Host(), str(tree), "gfx1151")
    assert raised.value.filename.startswith(f"{tempfile.gettempdir()}/lemonade-deploy-check-")


def test_a_launcher_that_fails(tree: Path) -> None:
    write(tree / "bin/vllm-server", "#!/bin/sh\necho 'libamdhip64.so.7: not found' >&2\nexit 127\n", 0o755)
    assert "did not start the bundled Python (exit code 127): libamdhip64.so.7: not found" in problems(tree)


def test_a_launcher_without_its_mode(tree: Path) -> None:
    (tree / "bin/vllm-server").chmod(0o644)
    assert "the launcher is not executable" in problems(tree)


def test_a_launcher_that_takes_the_hosts_python(tree: Path, python: Path) -> None:
    script = (tree / "bin/vllm-server").read_text()
    outside = f"PYTHONHOME={tree} exec {python}/python3"
    write(tree / "bin/vllm-server", script.replace('exec "$here/python3"', outside), 0o755)
    assert f"the launcher started {python}/python3, not the bundled Python" in problems(tree)


def test_a_launcher_that_is_no_way_into_python(tree: Path, python: Path) -> None:
    write(tree / "bin/vllm-server", "#!/bin/sh\nexit 0\n", 0o755)
    for library in python.glob("libpython*"):
        shutil.copy(library, tree / "lib")
    check(Host(), str(tree), "gfx1151")
    (tree / SITE / "vllm/_C/__init__.py").write_text("raise ImportError('broken')")
    assert "`import vllm._C` fails: ImportError: broken" in problems(tree)


def test_nothing_is_left_in_the_tree(tree: Path) -> None:
    before = sorted(tree.rglob("*"))
    check(Host(), str(tree), "gfx1151")
    assert sorted(tree.rglob("*")) == before
