# SPDX-License-Identifier: Apache-2.0
"""Before a run: the inventory, the passwords, and going on after a boot."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from lemonade_deploy import inventory, resume, vault
from lemonade_deploy.errors import UsageError


class TestInventory:
    """Which hosts a run is about."""

    @pytest.fixture(autouse=True)
    def no_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("ANSIBLE_CONFIG", "ANSIBLE_INVENTORY"):
            monkeypatch.delenv(name, raising=False)

    def test_given(self, tmp_path: Path) -> None:
        (tmp_path / "hosts.yml").touch()
        chosen = inventory.select(["hosts.yml", "a,b,"], tmp_path, tmp_path)
        assert chosen.sources == (str(tmp_path / "hosts.yml"), "a,b,")

    def test_named_by_ansible_cfg(self, tmp_path: Path) -> None:
        (tmp_path / "inv").mkdir()
        (tmp_path / "inventory").mkdir()
        (tmp_path / "ansible.cfg").write_text("[defaults]\ninventory = inv\n")
        chosen = inventory.select([], tmp_path, tmp_path)
        assert chosen.sources == (str(tmp_path / "inv"),)
        assert "ansible.cfg" in chosen.said

    def test_found_here(self, tmp_path: Path) -> None:
        (tmp_path / "inventory").mkdir()
        assert inventory.select([], tmp_path, tmp_path).sources == (str(tmp_path / "inventory"),)

    def test_this_machine(self, tmp_path: Path) -> None:
        chosen = inventory.select([], tmp_path, tmp_path)
        assert chosen.this_machine
        (host,) = yaml.safe_load(Path(chosen.sources[0]).read_text())["all"]["hosts"].values()
        assert host["ansible_connection"] == "local"
        assert host["vllm_rocm_lock_file"] == str(tmp_path / "lemonade-deploy.lock")

    def test_what_everybody_could_have_put_there_is_not_taken_by_itself(self, tmp_path: Path) -> None:
        (tmp_path / "inventory").touch()
        (tmp_path / "ansible.cfg").write_text("[defaults]\ninventory = evil\n")
        tmp_path.chmod(0o777)
        with pytest.raises(UsageError, match="written by everybody"):
            inventory.select([], tmp_path, tmp_path)
        assert inventory.select(["inventory"], tmp_path, tmp_path).sources == (str(tmp_path / "inventory"),)

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"nix\.yml"):
            inventory.select(["nix.yml"], tmp_path, tmp_path)
        (tmp_path / "ansible.cfg").write_text("[defaults]\ninventory = gone\n")
        with pytest.raises(UsageError, match="gone"):
            inventory.select([], tmp_path, tmp_path)

    def test_a_broken_ansible_cfg_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "ansible.cfg").write_text("inventory = inv\n")
        with pytest.raises(UsageError, match=r"ansible\.cfg"):
            inventory.select([], tmp_path, tmp_path)


class TestPasswords:
    """Asked once, handed on without argv."""

    def test_vault(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        made = vault.prepare(
            ["prod@prompt", "lab@file"], ["file"], True, tmp_path, tmp_path, lambda prompt: "s3cret"
        )
        assert "s3cret" not in " ".join(made.arguments())
        path = Path(made.ids[0].partition("@")[2])
        assert path.read_text() == "s3cret\n"
        assert path.stat().st_mode & 0o077 == 0
        assert made.ids[1] == f"lab@{tmp_path / 'file'}"
        assert len(made.password_files) == 2

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="nix"):
            vault.prepare([], ["nix"], False, tmp_path, tmp_path)

    def test_ssh_and_sudo(self) -> None:
        made = vault.ask_passwords(True, True, lambda prompt: "s3cret")
        assert made.arguments == ("--ask-pass", "--ask-become-pass")
        assert "s3cret" not in repr(made)
        assert len(made.prompts) == 2


class TestResume:
    """The one-shot unit of --reboot."""

    def test_unit(self) -> None:
        text = resume.unit_text(["site.yml", "-e", 'a="50%" $x', "--reboot"], Path("/srv/my kit"), "root")
        start = next(line for line in text.splitlines() if line.startswith("ExecStart="))
        assert start.endswith(' "-m" "lemonade_deploy" "site.yml" "-e" "a=\\"50%%\\" $$x" "--reboot"')
        assert "Type=oneshot" in text
        assert "WorkingDirectory=/srv/my kit" in text
        assert f"ExecStartPre=+/usr/bin/env systemctl disable --no-reload {resume.UNIT}" in text
        assert f"ExecStopPost=+/usr/bin/env rm -f {resume.UNIT_FOLDER / resume.UNIT}" in text
        assert f"{resume.RESUMED}=1" in text

    def test_systemd_reads_it(self, tmp_path: Path) -> None:
        path = tmp_path / resume.UNIT
        path.write_text(resume.unit_text(["site.yml", "--reboot"], Path("/tmp"), "root"))
        try:
            done = subprocess.run(
                ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            return  # no systemd here: the lines above are all that can be checked
        assert resume.UNIT not in done.stderr, done.stderr

    def test_reboot_installs_then_reboots(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(resume.RESUMED, raising=False)
        ran: list[list[str]] = []
        resume.reboot(["site.yml", "--reboot"], Path("/tmp"), lambda argv, stdin: ran.append([*argv]))
        assert [argv[:2] for argv in ran] == [
            ["tee", str(resume.UNIT_FOLDER / resume.UNIT)],
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable"],
            ["systemctl", "reboot"],
        ]

    def test_a_failed_reboot_takes_the_unit_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(resume.RESUMED, raising=False)
        ran: list[list[str]] = []

        def run(argv: Any, stdin: str | None) -> None:
            ran.append([*argv])
            if list(argv) == ["systemctl", "reboot"]:
                raise subprocess.CalledProcessError(1, argv)

        with pytest.raises(UsageError):
            resume.reboot(["site.yml"], Path("/tmp"), run)
        assert any(argv[:2] == ["rm", "-f"] and str(resume.UNIT_FOLDER / resume.UNIT) in argv for argv in ran)

    def test_a_resumed_run_does_not_reboot_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(resume.RESUMED, "1")
        resume.reboot(["site.yml"], Path("/tmp"), lambda argv, stdin: pytest.fail("it ran " + " ".join(argv)))

    def test_prompts_after_a_boot_are_refused(self) -> None:
        with pytest.raises(UsageError, match="prompt"):
            resume.check(True)
