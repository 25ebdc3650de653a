"""Speed over a real sshd on loopback, next to OpenSSH's own tools, interleaved in one run.

Usage: python tests/bench/ssh.py [--repeat N]

One file of 256 MB up and down against scp with the same cipher and with its default; and rounds whose command
adds a constant, against a shell script with ssh and scp over one ControlMaster connection a worker.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import trio
import trio_asyncio

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from sshd import Sshd  # noqa: E402 - the tests' server

from runner.hosts import Host, Ssh  # noqa: E402 - after the path
from runner.transports.ssh import Machines  # noqa: E402 - likewise

FILE_BYTES = 256_000_000
CASES = ((4, 1, 6, 0.70), (16, 1, 3, 0.85), (4, 100, 3, 0.80))
"""Workers, MB of params, rounds, target."""
SCRIPT = """
set -e
one() {
  scp -q $O "$D/params.npy" w$1:"$R/$1/params.npy"
  ssh $O w$1 "cd '$R/$1' && ROUNDLOG_PARAMS=params.npy ROUNDLOG_WEIGHTS=weights.npy '$PY' '$STEP'"
  scp -q $O w$1:"$R/$1/weights.npy" "$D/weights-$1.npy"
}
i=0; while [ $i -lt $N ]; do one $i & i=$((i+1)); done
wait
"$PY" -c '
import sys, numpy as np
total = np.load(sys.argv[2])
for path in sys.argv[3:]: total += np.load(path)
np.save(sys.argv[1], total / np.float32(len(sys.argv) - 2))' "$D/params.npy" "$D"/weights-*.npy
"""


def options(server: Sshd, *more: str) -> list[str]:
    hosts = server.folder / "known_hosts"
    hosts.write_text(server.known_hosts())
    given = (
        f"UserKnownHostsFile={hosts}",
        f"IdentityFile={server.key}",
        "IdentitiesOnly=yes",
        "BatchMode=yes",
    )
    return [word for option in (*given, *more) for word in ("-o", option)]


def clocked(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def one_file(server: Sshd, folder: Path, repeat: int) -> None:
    source = folder / "large"
    source.write_bytes(os.urandom(1 << 20) * (FILE_BYTES >> 20))
    size = source.stat().st_size
    fast = options(server, f"Port={server.port}", "Ciphers=aes128-gcm@openssh.com")
    usual = options(server, f"Port={server.port}")
    far = f"{server.address}:{server.home}/large"
    host = Host(
        host=server.address,
        port=server.port,
        key=str(server.key),
        folder=str(server.home),
        host_key=server.host_key,
    )

    async def ours() -> tuple[float, float]:
        async with trio_asyncio.open_loop():
            connection = await Machines(Ssh(), [host], "bench", folder / "keys").connect(0)
            began = time.perf_counter()
            await connection.push(source, "large")
            sent = time.perf_counter()
            await connection.pull("large", folder / "back", max_bytes=size)
            back = time.perf_counter()
            await connection.close(done=True)
            return sent - began, back - sent

    times: dict[str, list[float]] = {name: [] for name in ("up", "down", "scp up", "scp down", "default up")}
    for _ in range(repeat):
        up, down = trio.run(ours)
        times["up"].append(up)
        times["down"].append(down)
        for name, words in (
            ("scp up", ["scp", "-q", *fast, str(source), far]),
            ("scp down", ["scp", "-q", *fast, far, str(folder / "back")]),
            ("default up", ["scp", "-q", *usual, str(source), far]),
        ):
            times[name].append(clocked(lambda words=words: subprocess.run(words, check=True)))
    middle = {name: statistics.median(found) for name, found in times.items()}
    for way in ("up", "down"):
        theirs = middle[f"scp {way}"]
        print(
            f"256 MB {way:<4}  roundlog {middle[way]:5.2f} s  scp, same cipher {theirs:5.2f} s  "
            f"{theirs / middle[way]:4.2f} of its speed (target 0.9)"
        )
    print(f"             scp with its usual cipher, up: {middle['default up']:5.2f} s")


def rounds(server: Sshd, folder: Path, case: tuple[int, int, int, float], repeat: int) -> None:
    workers, megabytes, count, target = case
    array = np.random.default_rng(0).standard_normal(megabytes * 250_000).astype(np.float32)
    np.save(folder / "params.npy", array)
    np.save(folder / "init.npy", array)
    worker = {
        "host": server.address,
        "port": server.port,
        "key": str(server.key),
        "host_key": server.host_key,
    }
    table = "".join(f"{key} = {json.dumps(value)}\n" for key, value in worker.items())
    (folder / "job.toml").write_text(
        f'name = "bench"\nrounds = {count + 1}\n[params]\nfile = "init.npy"\nkeep = 1\n'
        f"[train]\ncommand = [{json.dumps(sys.executable)}, {json.dumps(str(HERE / 'step.py'))}]\n"
        + f"[[worker]]\nfolder = {json.dumps(str(server.home / 'runs'))}\n{table}"
        * workers
    )
    config = folder / "config"
    config.write_text(
        "".join(
            f"Host w{rank}\n  HostName {server.address}\n  Port {server.port}\n"
            f"  ControlMaster auto\n  ControlPath {folder}/c{rank}\n  ControlPersist 60\n"
            for rank in range(workers)
        )
    )
    remote = server.home / "script"
    for rank in range(workers):
        (remote / str(rank)).mkdir(parents=True, exist_ok=True)
    known = " ".join(options(server, f"UserKnownHostsFile={server.folder}/known_hosts"))
    env = {
        **os.environ,
        "O": f"-F {config} {known}",
        "D": str(folder),
        "R": str(remote),
        "N": str(workers),
        "PY": sys.executable,
        "STEP": str(HERE / "step.py"),
    }
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(repeat):
        subprocess.run(["sh", "-c", SCRIPT], check=True, env=env)  # logs in
        theirs += [
            clocked(lambda: subprocess.run(["sh", "-c", SCRIPT], check=True, env=env)) for _ in range(count)
        ]
        for rank in range(workers):
            words = ["ssh", *env["O"].split(), "-O", "exit", f"w{rank}"]
            subprocess.run(words, check=False, capture_output=True)
        program = Path(sys.executable).with_name("runner")
        words = [str(program), "start", "-q", "--runs", str(folder / "runs"), str(folder / "job.toml")]
        log = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
        events = [json.loads(line) for line in Path(log).read_text().splitlines()]
        starts = [e["t"] for e in events if e["kind"] == "round_start"]
        ours += [b - a for a, b in itertools.pairwise(starts[1:])]
    high, low = statistics.median(ours), statistics.median(theirs)
    print(
        f"{workers:>3} x {megabytes:>3} MB  script {low:6.3f} s  runner {high:6.3f} s  "
        f"ratio {high / low:5.2f} (target {target:.2f})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as name:
        server = Sshd(
            Path(name) / "sshd", "MaxStartups 100\nMaxSessions 20\nSubsystem sftp internal-sftp"
        ).start()
        try:
            for part, do in (("file", one_file),):
                (Path(name) / part).mkdir()
                do(server, Path(name) / part, repeat)
            for number, case in enumerate(CASES):
                folder = Path(name) / str(number)
                folder.mkdir()
                rounds(server, folder, case, repeat)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
