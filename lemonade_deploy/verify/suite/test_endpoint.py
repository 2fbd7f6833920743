# SPDX-License-Identifier: Apache-2.0
"""The endpoint: where it listens, who may ask, what it says of itself."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from testinfra.host import Host  # type: ignore[import-untyped]

from lemonade_deploy.verify.asking import Api


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def listening(host: Host, port: int, protocol: str = "tcp") -> list[str]:
    """Addresses on which *port* is open, as the kernel says."""
    found = []
    for address in host.socket.get_listening_sockets():
        kind, _slashes, rest = address.partition("://")
        name, _colon, number = rest.rpartition(":")
        if kind == protocol and number == str(port):
            found.append(name or "0.0.0.0")  # noqa: S104
    return found


def test_it_lives_without_a_key(api: Api, daemon: str) -> None:
    reply = api.get("/health" if daemon == "vllm" else "/live", key=False)
    assert reply.status == 200
    assert daemon == "vllm" or reply.json == {"status": "ok"}


def test_it_listens_at_the_configured_port(host: Host, settings: dict[str, Any]) -> None:
    assert listening(host, settings["port"])


def test_strangers_are_kept_out(host: Host, api: Api, settings: dict[str, Any]) -> None:
    """Loopback only, or a key that is demanded."""
    addresses = listening(host, settings["port"])
    if all(ipaddress.ip_address(address.strip("[]")).is_loopback for address in addresses):
        return
    assert api.get("/v1/models", key=False).status == 401, f"open on {addresses} without a key"


def test_health(api: Api, daemon: str) -> None:
    reply = api.get("/health" if daemon == "vllm" else "/v1/health")
    assert reply.status == 200, reply.text
    assert daemon == "vllm" or reply.json["status"] == "ok"


def test_the_served_model_is_listed(api: Api, model: str, daemon: str) -> None:
    names = {entry["id"] for entry in api.get("/v1/models").json["data"]}
    # lemond lists own registrations without their prefix.
    assert model in names or (daemon == "lemond" and model.removeprefix("user.") in names)


def test_a_vllm_model_is_downloaded(host: Host, api: Api, settings: dict[str, Any], daemon: str) -> None:
    if daemon == "vllm":
        name = settings["checkpoint"]
        cached = f"/var/cache/huggingface/hub/models--{name.replace('/', '--')}/snapshots"
        assert host.file(name if name.startswith("/") else cached).is_directory
        return
    models = api.get("/v1/models").json["data"]
    assert [model["id"] for model in models if model["recipe"] == "vllm" and model["downloaded"]]


def test_settings_are_in_effect(api: Api, settings: dict[str, Any], daemon: str) -> None:
    """config.json may override the kit's file: the finding config-overridden. vLLM has no such file."""
    if daemon == "vllm":
        card = api.get("/v1/models").json["data"][0]
        assert (
            settings["ctx_size"] is None
            or card.get("max_model_len", settings["ctx_size"]) == settings["ctx_size"]
        )
        return
    effective = dict(leaves(api.get("/internal/config").json))
    overridden = {key: effective.get(key) for key, value in leaves(settings) if effective.get(key) != value}
    assert not overridden


def test_it_does_not_broadcast(host: Host, api: Api, settings: dict[str, Any], daemon: str) -> None:
    assert not listening(host, settings["port"], "udp")
    assert daemon == "vllm" or api.get("/internal/config").json["broadcast"] is False


def test_a_load_gets_time(api: Api, unit: dict[str, str], daemon: str) -> None:
    """global_timeout 0 is taken without a word and makes every load fail at once.

    vLLM loads while it starts: of a unit of another type systemd would lose its patience.
    """
    if daemon == "vllm":
        assert unit["Type"] == "simple"
        return
    assert api.get("/internal/config").json["global_timeout"] >= 30


def test_no_stranger_reads_where_a_key_is_set(host: Host, api: Api, daemon: str) -> None:
    if not host.file("/etc/lemonade-deploy/lemond.env").exists:
        return
    names = host.check_output("cut -d= -f1 /etc/lemonade-deploy/lemond.env").split()
    if "LEMONADE_API_KEY" in names:
        paths = ["/v1/models"] if daemon == "vllm" else ["/v1/models", "/v1/health", "/internal/config"]
        assert {path: api.get(path, key=False).status for path in paths} == dict.fromkeys(paths, 401)
