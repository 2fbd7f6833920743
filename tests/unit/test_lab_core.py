# SPDX-License-Identifier: Apache-2.0
"""The lab's housekeeping: profiles dealt out, state, processes, device permissions, the machine's limits."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lemonade_deploy.cli import lab as cli
from lemonade_deploy.lab import cleanup, keys, network, root, shell, state, udev
from lemonade_deploy.lab.network import Network
from lemonade_deploy.lab.profiles import DEFAULT_PROFILE, PROFILES, assign
from lemonade_deploy.lab.recipes import recipes
from lemonade_deploy.lab.shell import LabError, LabUsageError, Process
from lemonade_deploy.lab.state import HostRecord, LabState


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEMONADE_LAB_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LEMONADE_LAB_NUMBER", raising=False)


@pytest.mark.parametrize(
    ("wishes", "existing", "expected"),
    [
        ([], {}, ["strix-halo-dirty"] * 3),
        (["no-gpu"], {}, ["no-gpu"] * 3),
        (["no-gpu", "strix-halo-dark"], {}, ["no-gpu", "strix-halo-dark", "no-gpu"]),
        (["lab2=no-gpu"], {}, ["strix-halo-dirty", "no-gpu", "strix-halo-dirty"]),
        (["no-gpu"], {"lab1": "strix-halo-dark"}, ["strix-halo-dark", "no-gpu", "no-gpu"]),
    ],
)
def test_profiles_are_dealt_out(wishes: list[str], existing: dict[str, str], expected: list[str]) -> None:
    names = ["lab1", "lab2", "lab3"]
    assert assign(names, wishes, existing) == dict(zip(names, expected, strict=True))


@pytest.mark.parametrize(
    ("wishes", "existing", "problem"),
    [
        (["strix-hola"], {}, "no profile 'strix-hola'"),
        (["lab9=no-gpu"], {}, "no such host"),
        (["lab1=no-gpu"], {"lab1": "strix-halo-dark"}, "lab1 stands with profile strix-halo-dark"),
    ],
)
def test_wishes_that_cannot_be(wishes: list[str], existing: dict[str, str], problem: str) -> None:
    with pytest.raises(LabUsageError, match=problem):
        assign(["lab1"], wishes, existing)


def test_every_profile_has_a_recipe() -> None:
    known = recipes({"archive": b"", "amd": b""})
    assert DEFAULT_PROFILE in PROFILES
    assert {profile.recipe for profile in PROFILES.values()} <= set(known)
    assert all(recipe.below in ("", *known) for recipe in known.values())


def test_state_survives_and_indices_are_used_again() -> None:
    with state.locked() as now:
        now.hosts["a"] = HostRecord("a", now.free_index(), "no-gpu", "light")
        now.hosts["b"] = HostRecord("b", now.free_index(), "no-gpu", "light")
        now.services = {"pid": 1, "started": 2}
    again = state.load()
    assert (again.hosts["b"].index, again.services) == (1, {"pid": 1, "started": 2})
    del again.hosts["a"]
    assert again.free_index() == 0


def test_state_is_saved_when_the_work_fails() -> None:
    with pytest.raises(RuntimeError), state.locked() as now:
        now.hosts["a"] = HostRecord("a", 0, "no-gpu", "light")
        raise RuntimeError
    assert "a" in state.load().hosts


def test_a_process_is_told_from_a_later_one_with_its_id() -> None:
    child = subprocess.Popen(["sleep", "60"])
    process = Process.of(child.pid)
    later = Process(child.pid, process.started + 1)
    later.stop()
    assert process.alive()
    process.stop()
    assert not process.alive()
    assert child.wait() != 0


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of the test's own: its sysctl file; `ip` does nothing."""
    value = tmp_path / "max_user_instances"
    value.write_text("128\n")
    monkeypatch.setattr(network, "_sysctl", lambda _name: value)
    monkeypatch.setattr(network, "RUN", tmp_path / "run")
    monkeypatch.setattr(network, "run", lambda *_args, **_options: shell.Completed(0, "", ""))
    return value


def test_sysctls_are_raised_once_said_and_put_back_by_the_last_lab(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Network(7)
    first.bring_up()
    assert machine.read_text() == "4096"
    assert "from 128 to 4096" in capsys.readouterr().err
    monkeypatch.setenv("LEMONADE_LAB_DIR", str(tmp_path / "other"))
    second = Network(8)
    second.bring_up()
    second.take_down()
    assert machine.read_text() == "4096"  # the first lab still needs it
    monkeypatch.setenv("LEMONADE_LAB_DIR", str(tmp_path / "state"))
    first.take_down()
    assert machine.read_text() == "128"


def test_each_state_folder_has_its_own_network(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Network.current().number == 0
    Network.current().bring_up()
    monkeypatch.setenv("LEMONADE_LAB_DIR", str(tmp_path / "other"))
    assert Network.current().number == 1
    with pytest.raises(LabUsageError, match=r"network 0 belongs to the lab in .*state"):
        Network(0).bring_up()
    Network(0).take_down()  # does not touch what belongs to the other
    monkeypatch.setenv("LEMONADE_LAB_NUMBER", "7")
    Network.current().bring_up()
    monkeypatch.delenv("LEMONADE_LAB_NUMBER")
    assert Network.current().number == 7
    with state.locked() as now:  # hosts stand, and the machine was booted anew: nothing is claimed
        now.network = 7
    (network.RUN / "network-7").unlink()
    assert Network.current().number == 7
    monkeypatch.setenv("LEMONADE_LAB_DIR", str(tmp_path / "state"))
    assert Network.current().number == 0


def test_that_every_network_is_taken_is_said(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(network.MOST_LABS):
        monkeypatch.setenv("LEMONADE_LAB_DIR", str(tmp_path / f"lab-{number}"))
        Network.current().bring_up()
    monkeypatch.setenv("LEMONADE_LAB_DIR", str(tmp_path / "one more"))
    with pytest.raises(LabError, match=r"all 10 networks of labs are taken, by .*lab-3.*lab down"):
        Network.current()


def test_names_fit_the_kernel() -> None:
    assert (Network().bridge, Network().services_netns) == ("lemonlab0", "lemonlab-svc")
    other = Network(3)
    record = HostRecord("lab1", 199, "no-gpu", "light")
    assert (other.bridge, other.address(record)) == ("lemonlab3", "10.101.0.215")
    assert len(f"ll{other.number}-{record.index}") <= 15


def test_without_root_or_programs_it_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabUsageError, match="needs root") as caught:
        shell.check_machine()
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shell.shutil, "which", lambda name: None if name == "mmdebstrap" else name)
    with pytest.raises(LabUsageError, match=r"apt-get install mmdebstrap$"):
        shell.check_machine()


def test_known_hosts_name_each_hosts_own_key() -> None:
    now = LabState({name: HostRecord(name, n, "no-gpu", "light") for n, name in enumerate(("a", "b"))})
    keys.write_known_hosts(now, Network())
    first, second = keys.known_hosts().read_text().splitlines()
    assert first.startswith("10.98.0.16,a ssh-ed25519 ")
    assert first.split()[2] == keys.public(keys.host_key("a")).split()[1] != second.split()[2]
    assert "StrictHostKeyChecking=yes" in keys.ssh_options()


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ('SUBSYSTEM=="kfd", GROUP="render", MODE="0666"', (992, 0o666)),
        ('KERNEL=="kfd", GROUP="render"', (992, 0o660)),
        ('SUBSYSTEM=="kfd", GROUP:="video"\nSUBSYSTEM=="kfd", GROUP="render"', (44, 0o660)),
        ('SUBSYSTEM=="kfd", GROUP="nobody-knows"', (0, 0o600)),
        ('SUBSYSTEM=="kfd", ACTION=="remove", GROUP="render"', (0, 0o600)),
        ('SUBSYSTEM!="kfd", GROUP="render"\n# SUBSYSTEM=="kfd", GROUP="render"', (0, 0o600)),
    ],
)
def test_device_permissions_follow_the_rules_on_the_disk(
    tmp_path: Path, rules: str, expected: tuple[int, int]
) -> None:
    for path, text in (("etc/group", "video:x:44:\nrender:x:992:\n"), ("etc/udev/rules.d/1.rules", rules)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert udev.permissions(tmp_path).of("kfd", "kfd") == expected


def test_the_mirror_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    def apt(known: list[str], unfetched: list[str]) -> None:
        def run(argv: list[str]) -> shell.Completed:
            lines = unfetched if "--no-release-info" in argv else known
            return shell.Completed(0, "".join(f"{line}\n" for line in lines), "")

        monkeypatch.setattr(root, "run", run)

    third = "https://vendor.invalid/apt/|Vendor|stable"
    security = "http://m.invalid/debian-security/|Debian|x-security"
    apt([third, security, "http://m.invalid/whatever/|Debian|x"], [])
    assert root.mirror() == "http://m.invalid/whatever/"
    names = [
        line.replace("Debian", "$(ORIGIN)") for line in (third, security, "http://m.invalid/debian/|Debian|x")
    ]
    apt([], names)
    assert root.mirror() == "http://m.invalid/debian/"
    apt([third], names[:2])
    with pytest.raises(shell.LabError, match="LEMONADE_LAB_MIRROR"):
        root.mirror()


def test_old_roots_go_unless_a_host_stands_on_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = tmp_path / "cache/lemonade-deploy/layers"
    for age, name in enumerate(("dirty-new", "dark-only", "dirty-old", ".dirty-x", "x.building")):
        (layers / name).mkdir(parents=True)
        os.utime(layers / name, (1000 - age, 1000 - age))
    cleanup.prune()
    assert sorted(path.name for path in layers.iterdir() if path.is_dir()) == [
        ".dirty-x",
        "dark-only",
        "dirty-new",
        "x.building",
    ]


@pytest.mark.parametrize(
    "argv",
    [["up"], ["list", "--json"], ["exec", "lab1", "--", "true"], ["inventory"], ["reset", "a"], ["down"]],
)
def test_the_command_says_in_one_line_that_it_needs_root(
    argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = CliRunner().invoke(cli.app, argv)
    assert (done.exit_code, done.stdout) == (64, "")
    assert done.stderr.count("\n") == 1
    assert "needs root" in done.stderr


def test_wrong_names_end_with_64_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shell.shutil, "which", lambda name: name)
    for argv in (["up", "--profile", "strix"], ["exec", "lab7", "true"], ["inventory"], ["reset", "lab7"]):
        done = CliRunner().invoke(cli.app, argv)
        assert done.exit_code == 64, argv
    assert not (shell.Path(os.environ["LEMONADE_LAB_DIR"]) / "lab.json").exists()


def test_an_empty_lab_is_one_json_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shell.shutil, "which", lambda name: name)
    document = json.loads(CliRunner().invoke(cli.app, ["list", "--json"]).stdout)
    assert (document["schema"], document["exit_code"], document["hosts"]) == ("lemonade-deploy/lab/1", 0, {})
    assert any("GPU" in item for item in document["simulated"])


def test_purge_keeps_a_cache_that_another_lab_stands_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    layer = f"{tmp_path}/lemonade-deploy/layers/dirty-1"
    host = f"lemonade-lab /var/lib/x overlay rw,lowerdir={layer},upperdir=/u,workdir=/w 0 0\n"
    assert cleanup.used_by_a_lab(host)
    assert not cleanup.used_by_a_lab("overlay / overlay rw,lowerdir=/somewhere/else 0 0\n")
    assert not cleanup.used_by_a_lab(f"/dev/vda {tmp_path}/lemonade-deploy ext4 rw 0 0\n")
