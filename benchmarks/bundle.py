# SPDX-License-Identifier: Apache-2.0
"""Laying down the real vLLM bundle (CPU build, AMD's layout) against the machine's limit and two other ways.

On one loop-mounted ext4, from one depot server on the loopback address, in turn:
``lay_down_vs_limit``: ours (stream, verify, unpack) ÷ the slower of reading the archive at the link's rate
and writing the tree with plain ``zstd -dc | tar x``; ``vs_naive``: ours ÷ get_url + cat + unarchive of the
same release, run by Ansible, less the time of a play that does nothing. Static checks are apart.
On a lab host, in turn: ``vs_lemond``: ours ÷ lemond's own POST /v1/install of it (benchmarks._lemond).
All are medians of one call; ``measured`` says of how many runs.

usage: python -m benchmarks.bundle [--runs N] [--without-lemond] [--json]
(root; builds the bundle once: minutes)
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import _lemond
from benchmarks._lay_down import CHECKING, TOKEN
from lemonade_deploy.depot import lock, pack
from lemonade_deploy.domain.lock import Release, document
from lemonade_deploy.lab.engine import release as lab_release
from lemonade_deploy.lab.paths import cache_dir

MIB = 1 << 20
NAIVE_RUNS, LEMOND_RUNS = 2, 2


@contextmanager
def disk(size: int) -> Iterator[Path]:
    """An ext4 of *size* bytes in a sparse file: nobody else writes there."""
    # Below /var/tmp, because the static checks run as nobody, who cannot enter root's home.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        image, mounted = Path(folder, "image"), Path(folder, "disk")
        mounted.mkdir()
        with image.open("wb") as stream:
            stream.truncate(size)
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, mounted], check=True)
        try:
            Path(folder).chmod(0o755)
            yield mounted
        finally:
            subprocess.run(["umount", mounted], check=True)


@contextmanager
def served(depot: Path, address: str = "127.0.0.1") -> Iterator[str]:
    """The depot's own server, in a process of its own."""
    code = (
        "import sys; from pathlib import Path; from lemonade_deploy.depot import serve;"
        f"s = serve.server(Path(sys.argv[1]), ({address!r}, 0), {TOKEN!r});"
        "print(s.server_address[1], flush=True); s.serve_forever()"
    )
    process = subprocess.Popen([sys.executable, "-c", code, depot], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://{address}:{process.stdout.readline().strip()}"
    finally:
        process.terminate()
        process.wait()


def prepare(scratch: Path) -> Release:
    """The lab's vLLM release in a depot: linked, locked, packed."""
    made = lab_release.build(cache_dir(), scratch / "www", "vllm").releases[0]
    source = scratch / "www" / lab_release.DOWNLOADS
    depot = scratch / "depot"
    (depot / made.tag).mkdir(parents=True)
    for path in (source / made.tag).iterdir():
        path.rename(depot / made.tag / path.name)
    # depot.lock reads over HTTP without a token: a plain server of the folder does.
    argv = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(depot), "0"]
    plain = subprocess.Popen([*argv[:1], "-u", *argv[1:]], stdout=subprocess.PIPE, text=True)
    assert plain.stdout is not None
    try:
        port = plain.stdout.readline().split("port ")[1].split(" ")[0]
        release = lock.lock_release(f"http://127.0.0.1:{port}", made.tag, made.family)
    finally:
        plain.terminate()
        plain.wait()
    pack.pack(depot, release)
    (scratch / "lock.json").write_text(json.dumps(document({release.tag: release})))
    return release


def timed(argv: list[str], **options: Any) -> float:
    """Seconds of a command."""
    began = time.monotonic()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    return time.monotonic() - began


def settle(*folders: Path) -> None:
    """Remove, and let the disk come to rest: every contender starts alike. Other disks are not waited for."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["sync", "--file-system", folders[0].parent], check=True)


def ours(mounted: Path, url: str, scratch: Path, watch: bool = False) -> dict[str, Any]:
    """A lay-down into an empty root, and a second run; *watch* adds the peaks of memory and disk."""
    root = mounted / "ours"
    settle(root)
    root.mkdir()
    (root / "run").mkdir()
    argv = [sys.executable, "-m", "benchmarks._lay_down", str(root), url, str(scratch / "lock.json")]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    peak, memory = peaks(process, root, mounted) if watch else (0, 0)
    result: dict[str, Any] = json.loads(process.communicate()[0])
    subprocess.run(["sync", "--file-system", mounted], check=True)
    if watch:
        result["peak_rss_kib"] = max(memory, result["peak_rss_kib"])
        result["extra_disk"] = max(0, peak - used(mounted))
    result["noop"] = timed(argv)
    return result


def peaks(process: subprocess.Popen[str], root: Path, mounted: Path) -> tuple[int, int]:
    """Most bytes in use on the disk, and KiB of memory before the static checks, until the process ends."""
    disk_peak, memory = 0, 0
    while process.poll() is None:
        disk_peak = max(disk_peak, used(mounted))
        if not (root / CHECKING[1:]).exists():
            memory = max(memory, resident_kib(process.pid))
        time.sleep(0.02)
    return disk_peak, memory


def resident_kib(pid: int) -> int:
    """Resident memory of a process and all that it has started, in KiB; shared pages count for each."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        total = int(status.partition("VmRSS:")[2].split()[0])
        children = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except (OSError, IndexError):
        return 0  # it has just ended
    return total + sum(resident_kib(int(child)) for found in children for child in found)


def used(folder: Path) -> int:
    """Bytes in use on a disk."""
    state = os.statvfs(folder)
    return (state.f_blocks - state.f_bfree) * state.f_frsize


def limit(mounted: Path, url: str, release: Release, depot: Path) -> dict[str, float]:
    """Seconds to read the chunks over the link, and to write the tree from them by system tools."""
    names = sorted(path.name for path in (depot / release.tag).glob("*.zst"))
    urls = [f"{url}/{release.tag.replace('+', '%2B')}/{name}" for name in names]
    target = mounted / "limit"
    settle(target)
    target.mkdir()
    link = timed(["curl", "-sSf", "-H", f"Authorization: Bearer {TOKEN}", *urls])
    files = " ".join(f"'{depot / release.tag / name}'" for name in names)
    write = timed(["sh", "-c", f"cat {files} | zstd -dcq | tar -x -C '{target}' --no-same-owner"])
    settle(target)
    return {"link": link, "write": write}


def naive(mounted: Path, url: str, release: Release, scratch: Path) -> float:
    """get_url of each part, cat, unarchive: what a first version of a role does."""
    work = mounted / "naive"
    settle(work)
    work.mkdir()
    tasks: list[dict[str, Any]] = [
        {
            "ansible.builtin.get_url": {
                "url": f"{url}/{release.tag.replace('+', '%2B')}/{asset.name.replace('+', '%2B')}",
                "dest": str(work / f"{number:02d}.part"),
                "checksum": f"sha256:{asset.sha256}",
                "headers": {"Authorization": f"Bearer {TOKEN}"},
            }
        }
        for number, asset in enumerate(release.assets)
    ]
    tasks.append({"ansible.builtin.shell": f"cat {work}/*.part > {work}/all.tar.gz && mkdir {work}/tree"})
    unarchive = {"src": f"{work}/all.tar.gz", "dest": f"{work}/tree", "remote_src": True}
    tasks.append({"ansible.builtin.unarchive": unarchive})
    seconds = play(scratch, tasks) - play(scratch, [{"ansible.builtin.command": "true"} for _ in tasks])
    settle(work)
    return seconds


def play(scratch: Path, tasks: list[dict[str, Any]]) -> float:
    """Seconds of a play on this machine."""
    path = scratch / "play.yml"
    text = json.dumps([{"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}])
    path.write_text(text)
    ansible = str(Path(sys.executable).with_name("ansible-playbook"))
    environment = {**os.environ, "ANSIBLE_PYTHON_INTERPRETER": sys.executable}
    return timed([ansible, "-i", "localhost,", str(path)], env=environment)


def measure(runs: int, with_lemond: bool) -> dict[str, Any]:
    """All runs, and the keys."""
    with tempfile.TemporaryDirectory(dir=cache_dir()) as folder:
        scratch = Path(folder)
        scratch.chmod(0o755)
        release = prepare(scratch)
        assert release.tree is not None
        raw: dict[str, list[Any]] = {"ours": [], "limit": [], "naive": [], "lemond": []}
        with disk(3 * release.tree.size + 2 * release.size) as mounted, served(scratch / "depot") as url:
            # Watching takes a part of the machine: in a run whose time does not count.
            watched = ours(mounted, url, scratch, watch=True)
            for number in range(runs):
                for side in ("limit", "ours") if number % 2 else ("ours", "limit"):
                    if side == "limit":
                        raw[side].append(limit(mounted, url, release, scratch / "depot"))
                    else:
                        raw[side].append(ours(mounted, url, scratch))
                settle(mounted / "ours")
                if number < NAIVE_RUNS:
                    raw["naive"].append(naive(mounted, url, release, scratch))
        if with_lemond:
            raw["lemond"] = _lemond.measure(
                LEMOND_RUNS, release, scratch / "depot", scratch / "lock.json", served
            )
        return summary(release, raw, watched)


def summary(release: Release, raw: dict[str, list[Any]], watched: dict[str, Any]) -> dict[str, Any]:
    """Medians and ratios."""

    def median(key: str) -> float:
        return float(statistics.median(run[key] for run in raw["ours"]))

    floor = statistics.median(max(run.values()) for run in raw["limit"])
    assert release.tree is not None
    return {
        "benchmark": "bundle",
        "bundle": {"tag": release.tag, "archive_bytes": release.size, "tree_bytes": release.tree.size},
        "measured": {key: f"median of {len(found)}" for key, found in raw.items()},
        "lay_down_seconds": round(median("seconds"), 2),
        "limit_seconds": round(floor, 2),
        "naive_seconds": round(statistics.median(raw["naive"]), 2),
        "lay_down_vs_limit": round(median("seconds") / floor, 3),
        "vs_naive": round(median("seconds") / statistics.median(raw["naive"]), 3),
        **against_lemond(raw["lemond"]),
        "static_check_seconds": round(median("static_check_seconds"), 2),
        "peak_rss_mib": round(watched["peak_rss_kib"] / 1024, 1),
        "extra_disk_mib": round(watched["extra_disk"] / MIB, 1),
        "noop_seconds": round(median("noop"), 3),
        "raw": {**raw, "watched": watched},
    }


def against_lemond(runs: list[dict[str, float]]) -> dict[str, float]:
    """The keys of the lab host."""
    if not runs:
        return {}
    ours, theirs = (statistics.median(run[side] for run in runs) for side in ("ours", "lemond"))
    return {
        "lab_lay_down_seconds": round(ours, 2),
        "lab_lemond_seconds": round(theirs, 2),
        "vs_lemond": round(ours / theirs, 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=5, help="of ours and the limit")
    parser.add_argument("--without-lemond", action="store_true", help="no lab host, no vs_lemond")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    told = measure(options.runs, not options.without_lemond)
    if options.json:
        print(json.dumps(told))
        return
    for key, value in told.items():
        if key != "raw":
            print(f"{key} {value}")


if __name__ == "__main__":
    main()
