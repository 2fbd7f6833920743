# SPDX-License-Identifier: Apache-2.0
"""What a line selects: hosts, tags, inventories. Nothing may silently become "all of them"."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from lemonade_deploy import ansible_env, inventory, patterns, probe_plays
from lemonade_deploy.cli.main import dispatch
from lemonade_deploy.errors import UsageError

HOSTS = "all:\n  hosts:\n    a: {ansible_connection: local}\n    b: {ansible_connection: local}\n"
PLAY = "- hosts: all\n  gather_facts: false\n  tasks:\n    - ansible.builtin.file:\n"
PLAY += "        {path: '{{ playbook_dir }}/touched', state: touch, mode: '0600'}\n      tags: [one]\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "hosts.yml").write_text(HOSTS)
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "nohosts.yml").write_text("- hosts: nowhere\n  tasks: []\n")
    (tmp_path / "empty").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return tmp_path


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What the command says of *argv*, which it must refuse before any host is touched."""
    assert dispatch(list(argv)) == 64
    assert not (folder / "touched").exists()
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(
    "limit",
    ["", " ", ",", ":", " , ", "~[", "!", "&", "~", "!~", "~(", "a[", "]", "a,!", "@empty", "@nix"],
)
def test_a_limit_that_names_nothing_is_refused(
    limit: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(folder, capsys, "play.yml", "-i", "hosts.yml", "-l", limit)
    assert f"-l {limit!r}: " in said
    assert "hosts.yml" not in said, "the inventory is not to blame"


@pytest.mark.parametrize(
    "terms", [["a"], ["a", "b"], ["!a"], ["web*"], ["a[0:1]"], ["~web[0-9]+"], ["&x", "a"], ["::1"]]
)
def test_patterns_that_say_something_pass(terms: list[str]) -> None:
    assert patterns.fault(",".join(terms), terms) == ""


@pytest.mark.parametrize("source", ["", " ", ",", ",,"])
def test_an_inventory_that_names_nothing_is_refused(source: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no inventory"):
        inventory.select([source], tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["-t", ""], "-t: it names no tag"),
        (["-t", " , "], "-t: it names no tag"),
        (["--skip-tags", ""], "--skip-tags: it names no tag"),
        (["-t", "bogus"], "-t bogus: play.yml has no such tag"),
        (["-t", "one,bogus"], "-t bogus"),
        (["-t", "on"], "Did you mean one?"),
        (["--skip-tags", "bogus"], "--skip-tags bogus"),
    ],
)
def test_tags_that_the_playbook_has_not_are_refused(
    argv: list[str], says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(folder, capsys, "play.yml", "-i", "hosts.yml", *argv)


def test_a_layer_of_the_kit_misspelt(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(folder, capsys, "site.yml", "-i", "hosts.yml", "-t", "modles")
    assert "Did you mean models?" in said


def test_a_playbook_for_none_of_the_hosts_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "match none of a, b" in refused(folder, capsys, "nohosts.yml", "-i", "hosts.yml")


@pytest.mark.parametrize("hosts", ["!", "~(", "a[", "&"])
def test_a_playbook_with_a_pattern_that_is_none_is_refused(
    hosts: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "odd.yml").write_text(f"- hosts: '{hosts}'\n  tasks: []\n")
    assert f"odd.yml: hosts: {hosts!r}: " in refused(folder, capsys, "odd.yml", "-i", "hosts.yml")


def test_tags_behind_a_templated_import_are_not_judged(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = (
        "- hosts: a\n  gather_facts: false\n  tasks:\n    - ansible.builtin.import_tasks: '{{ which }}.yml'\n"
    )
    (folder / "more.yml").write_text("- ansible.builtin.debug: {msg: x}\n  tags: [inner]\n")
    (folder / "import.yml").write_text(tasks)
    assert dispatch(["import.yml", "-i", "hosts.yml", "-t", "inner", "-e", "which=more"]) == 0
    (folder / "include.yml").write_text(tasks.replace("import_tasks", "include_tasks"))
    assert dispatch(["include.yml", "-i", "hosts.yml", "-t", "inner", "-e", "which=more"]) == 0


def test_patterns_that_only_a_run_knows_are_not_judged() -> None:
    assert probe_plays.patterns([{"hosts": "{{ where }}"}, {"hosts": "a"}]) == []
    assert probe_plays.patterns([{"hosts": ["a", "b"]}, {"hosts": "c"}]) == ["a,b", "c"]


def test_the_lock_file_in_a_folder_inventory_is_no_inventory(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "inv").mkdir()
    (folder / "inv" / "hosts.yml").write_text(HOSTS)
    (folder / "inv" / "lemonade-deploy.lock").write_text("[bundle]\nfiles = [\n")
    said = refused(folder, capsys, "play.yml", "-i", "inv", "-t", "bogus")
    assert "-t bogus" in said, "the folder was read, the tag was judged"


@pytest.mark.parametrize("section", ["[defaults]\ninventory_ignore_patterns", "[inventory]\nignore_patterns"])
def test_the_users_own_ignored_patterns_stay(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANSIBLE_INVENTORY_IGNORE_REGEX", raising=False)
    (tmp_path / "ansible.cfg").write_text(f"{section} = mine$\n")
    value = ansible_env.environment(tmp_path, tmp_path)["ANSIBLE_INVENTORY_IGNORE_REGEX"]
    assert value == r"mine$,\.lock$"


def test_the_users_own_callbacks_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANSIBLE_CALLBACKS_ENABLED", raising=False)

    def enabled() -> str:
        return ansible_env.environment(tmp_path, tmp_path)["ANSIBLE_CALLBACKS_ENABLED"]

    assert enabled() == "lemonade.deploy.tied"
    (tmp_path / "ansible.cfg").write_text("[defaults]\ncallbacks_enabled = timer\n")
    assert enabled() == "timer,lemonade.deploy.tied"
    monkeypatch.setenv("ANSIBLE_CALLBACKS_ENABLED", "profile_tasks")
    assert enabled() == "profile_tasks,lemonade.deploy.tied"


@pytest.mark.parametrize(
    ("name", "text", "argv", "says"),
    [
        ("vars.yml", "", ["-e", "@vars.yml"], "vars.yml: a file of variables must hold a dictionary"),
        ("vars.yml", "- a\n", ["-e", "@vars.yml"], "vars.yml: a file of variables must hold a dictionary"),
        ("group_vars/all.yml", "a: 1\nb: [\n", [], "group_vars/all.yml:3: YAML parsing failed"),
        ("host_vars/a.yml", "a: 1\n\tb: 2\n", [], "host_vars/a.yml:2: YAML parsing failed"),
    ],
)
def test_a_broken_file_of_variables_is_named_with_its_line(
    name: str,
    text: str,
    argv: list[str],
    says: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    said = refused(folder, capsys, "play.yml", "-i", "hosts.yml", *argv)
    assert says in said
    assert "parse inventory" not in said


def test_a_bundle_that_is_named_by_nothing_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--to: it names no bundle" in refused(folder, capsys, "rollback", "--bundle", "--to", "")


@pytest.mark.parametrize(
    ("name", "says"),
    [("nix/deeper/x.xml", "the folder nix/deeper is not there"), (".", "is a folder"), ("", "is a folder")],
)
def test_a_junit_file_that_cannot_be_is_refused_and_made_nowhere(
    name: str, says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(folder, capsys, "verify", "-i", "hosts.yml", "--junit", name)
    assert not (folder / "nix").exists()
