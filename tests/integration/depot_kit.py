# SPDX-License-Identifier: Apache-2.0
"""The controller beside the lab: once with a way to the simulated upstreams, once with none, and a depot."""

from __future__ import annotations

import datetime
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from lemonade_deploy.lab import Lab, catalog, servers
from lemonade_deploy.lab.engine.release import DOWNLOADS

from .kit import Ran

# Only within the new mount namespace: the machine's own file stays as it is.
_WITH_NAMES = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'


def connected(lab: Lab, folder: Path, *argv: str, timeout: float = 300) -> Ran:
    """``lemonade-deploy ARGV`` on a controller for which the lab's servers are the internet."""
    names = folder / "etc-hosts"
    lines = [f"{lab.network.services_address} {name}" for name in catalog.HOSTNAMES]
    names.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
    authority = folder / "lab-ca.pem"
    shutil.copyfile(servers.make_archives().ca_pem, authority)
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    command = [sys.executable, "-m", "lemonade_deploy", *argv]
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", _WITH_NAMES, "sh", names, *command],
        env={**environment, "SSL_CERT_FILE": str(authority)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def publish_again(tag: str, new: str) -> None:
    """Serve the release *tag* under one more name: the same bytes, as another release."""
    downloads = servers.www() / DOWNLOADS
    (downloads / new).mkdir(exist_ok=True)
    for path in (downloads / tag).iterdir():
        shutil.copyfile(path, downloads / new / path.name.replace(tag, new))


def isolate(lab: Lab, name: str) -> None:
    """Take a host every way to the lab's servers, names and route; a reboot does not bring them back."""
    address = lab.network.services_address
    script = (
        f"sed -i '/^{address} /d' /etc/hosts && "
        "printf '[Unit]\\nDefaultDependencies=no\\nBefore=network-pre.target\\n[Service]\\nType=oneshot\\n"
        f"ExecStart=ip route replace unreachable {address}\\n[Install]\\nWantedBy=sysinit.target\\n'"
        " > /etc/systemd/system/no-upstream.service && systemctl enable --now -q no-upstream.service"
    )
    done = lab.exec(name, ["sudo", "sh", "-c", script])
    assert done.rc == 0, done.stderr
    assert lab.exec(name, ["curl", "-sS", "--max-time", "3", f"http://{address}/"]).rc != 0


def authority_for(address: str, folder: Path) -> tuple[Path, Path]:
    """A certificate for *address* that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a site's own depot")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(1))
        .not_valid_after(now + datetime.timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), False)
        .add_extension(x509.BasicConstraints(True, None), True)
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "depot.pem", folder / "depot.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    private.write_bytes(key.private_bytes(*form))
    return certificate, private


def trust(lab: Lab, name: str, certificate: Path) -> None:
    """Put an authority into a host's trust store, as its administrator would."""
    place = "/usr/local/share/ca-certificates/depot.crt"
    script = f"cat > {place} && update-ca-certificates"
    done = lab.exec(name, ["sudo", "sh", "-c", script], stdin=certificate.read_text())
    assert done.rc == 0, done.stderr


@contextmanager
def depot_serving(lab: Lab, depot: Path, *options: str) -> Iterator[tuple[str, int]]:
    """``depot serve`` on the controller's address in the lab's network; gives address and port."""
    address = f"{lab.network.prefix}.1"
    with socket.socket() as free:
        free.bind((address, 0))
        port = free.getsockname()[1]
    words = ["depot", "serve", "--depot", str(depot), "--bind", address, "--port", str(port), *options]
    with (depot / "serve.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "lemonade_deploy", *words], stderr=log)
    try:
        until = time.monotonic() + 20
        while not _answers(address, port):
            assert process.poll() is None and time.monotonic() < until, (depot / "serve.log").read_text()
            time.sleep(0.05)
        yield address, port
    finally:
        process.terminate()
        process.wait()


def _answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False
