"""Whole runs over SSH: real servers on loopback, killed, frozen and set up anew."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import COPY, Started, environ, eventually, runner, start, write_job
from sshd import Sshd, make_key
from sshjobs import BUSY, host, job, left_running, wait_for

from runner.hosts import parse_target


def test_two_workers_on_one_host(tmp_path: Path, server: Sshd):
    train = {"command": 'echo "$ROUNDLOG_RANK here"; ' + COPY, "files": ["data"]}
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "shard 0").write_text("x")
    run = start(job(tmp_path, [host(server), host(server)], train=train))
    assert np.load(run.params).tolist() == np.load(tmp_path / "params.npy").tolist()
    assert {e["output_tail"] for e in run.kind("exec", rank=1)} == {"1 here"}
    assert {e["path"] for e in run.kind("push", round=0)} == {"data/shard 0", "params-0000.npy"}
    up = run.one("worker_up", rank=0)
    assert up["address"] == f"ssh:127.0.0.1:{server.port}"
    assert up["facts"]["cpus"] >= 1
    assert abs(up["facts"]["clock_offset_s"]) <= 2
    assert not list((server.home / "work").rglob("*")), "nothing is left after a completed run"
    assert not left_running(run.log.stem)


def test_what_is_kept_and_what_is_private(tmp_path: Path, server: Sshd):
    run = start(job(tmp_path, [host(server)], ssh={"keep": True}))
    folder = server.home / "work" / run.log.stem / "0"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in folder.iterdir()} == {0}


def test_secrets_are_seen_by_the_command_alone(tmp_path: Path, server: Sshd):
    look = 'test ${#TOKEN} = 12 && cat /proc/[0-9]*/cmdline | tr "\\0" " "; ' + COPY
    train = {"command": look, "secrets": ["TOKEN"]}
    run = start(job(tmp_path, [host(server)], train=train), env=environ(TOKEN="s3cr3t-value"))
    output = (run.log.with_suffix("") / "output" / "worker-0.log").read_text()
    assert "sshd" in output
    assert "s3cr3t-value" not in output
    assert "s3cr3t-value" not in run.log.read_text()


def test_names_as_ssh_itself_would_take_them(tmp_path: Path, server: Sshd):
    home = tmp_path / "me"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "known_hosts").write_text(server.known_hosts())
    (home / ".ssh" / "config").write_text(
        f"Host gpu1\n  HostName 127.0.0.1\n  Port {server.port}\n  IdentityFile {server.key}\n"
    )
    (tmp_path / "hosts.txt").write_text(f'# ours\ngpu1 folder="{server.home}/a b" price_per_hour=0.5\n\n')
    path = write_job(tmp_path, workers=None, hosts="hosts.txt")
    run = start(path, env=environ(HOME=str(home), SSH_AUTH_SOCK=None))
    assert run.one("worker_up")["facts"]["price_per_hour"] == 0.5
    assert run.one("worker_up")["address"] == "ssh:gpu1"
    assert run.one("run_end")["status"] == "completed"


@pytest.mark.parametrize(
    ("known", "config", "said"),
    [
        ("", "", "not in known_hosts yet; compare it"),
        ("no such file", "", "add it with: ssh-keyscan -p PORT 127.0.0.1 >> ~/.ssh/known_hosts"),
        ("KNOWN", "  UserKnownHostsFile none\n", "not in known_hosts yet"),
        ("KNOWN", "  UserKnownHostsFile /dev/null\n  StrictHostKeyChecking no\n", "not in known_hosts yet"),
        ("OTHER", "", "is another than known_hosts has of it: the machine was set up anew, or somebody"),
        ("OTHER", "", "only if you know that it is right: ssh-keygen -R '[127.0.0.1]:PORT'"),
    ],
)
def test_a_host_key_that_is_not_known(tmp_path: Path, server: Sshd, known: str, config: str, said: str):
    home = tmp_path / "me"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text(f"Host gpu1\n  HostName 127.0.0.1\n  Port {server.port}\n{config}")
    other = f"[127.0.0.1]:{server.port} {make_key(tmp_path / 'other')}\n"
    lines = {"": "", "KNOWN": server.known_hosts(), "OTHER": other}
    if known in lines:
        (home / ".ssh" / "known_hosts").write_text(lines[known])
    path = job(tmp_path, [{"host": "gpu1", "key": str(server.key)}])
    told = runner("check", path, code=1, env=environ(HOME=str(home), SSH_AUTH_SOCK=None)).stderr
    assert said.replace("PORT", str(server.port)) in told


def test_a_changed_host_key_is_refused(tmp_path: Path, server: Sshd):
    path = job(tmp_path, [host(server, host_key="accept-new")], policy={"round_retries": 0})
    run = start(path)
    assert server.host_key in (run.log.with_suffix("") / "host_keys").read_text()
    (server.folder / "host_key").unlink()
    (server.folder / "host_key.pub").unlink()
    other = host(server)
    server.stop()
    make_key(server.folder / "host_key")
    server.start()
    run = start(job(tmp_path, [other], policy={"round_retries": 0}), code=1)
    assert "is not the one that the job names with host_key" in run.kind("worker_down")[0]["detail"]


def test_only_the_key_that_is_given_is_offered(tmp_path: Path, server: Sshd):
    make_key(tmp_path / "other")
    path = job(tmp_path, [host(server, key="other")], policy={"round_retries": 0})
    run = start(path, code=1)
    assert "doesn't accept the key" in run.kind("worker_down")[0]["detail"]
    assert len(set(re.findall(r"Failed publickey .* (SHA256:\S+)", server.log))) == 1


def test_a_frozen_server_is_noticed(tmp_path: Path, server: Sshd, tmp_path_factory: pytest.TempPathFactory):
    other = Sshd(tmp_path_factory.mktemp("other")).start()
    try:
        hosts = [host(server), host(other)]
        path = job(
            tmp_path,
            hosts,
            train={"command": BUSY + COPY},
            ssh={"lost_s": 1.5},
            policy={"quorum": 1},
            rounds=3,
        )
        with Started(path) as started:
            (log,) = wait_for(started, '"kind":"exec_start"', 4)
            eventually(lambda: list(other.home.rglob("once")), "the silent command")
            other.signal(signal.SIGSTOP)
            eventually(lambda: '"kind":"worker_down"' in log.read_text(), "the loss")
            other.signal(signal.SIGCONT)
            run = started.end()
        down = run.kind("worker_down")[0]
        assert (down["rank"], down["reason"]) == (1, "lost")
        assert run.one("run_end")["status"] == "completed"
    finally:
        other.stop()


def test_a_server_that_dies_and_comes_back(tmp_path: Path, server: Sshd):
    hosts = [host(server), host(server)]
    train = {"command": BUSY + COPY, "files": ["data"]}
    (tmp_path / "data").write_text("sent once")
    with Started(job(tmp_path, hosts, train=train, policy={"quorum": 1}, rounds=3)) as started:
        wait_for(started, '"kind":"exec_start"', 4)
        eventually(lambda: list(server.home.rglob("once")), "training")
        server.stop()
        server.start()
        run = started.end()
    assert run.code == 0
    assert {e["rank"] for e in run.kind("worker_down")} >= {1}
    assert run.kind("round_end")[-1]["survivors"] == 2
    assert run.kind("worker_up")[-1]["facts"].get("left_running", 0) >= 0
    sent = [e["reused"] for e in run.kind("push", path="data", error=None)]
    assert sent[:2] == [0, 0]
    assert sent[2:] == [9] * (len(sent) - 2) != []
    assert not left_running(run.log.stem)


def test_a_folder_that_is_deleted_is_filled_again(tmp_path: Path, server: Sshd):
    gone = '[ $ROUNDLOG_ROUND != 1 ] || [ -e ../../once ] || { touch ../../once; rm -rf "$PWD"; exit 1; }; '
    train = {"command": gone + "cat data; " + COPY, "files": ["data"]}
    (tmp_path / "data").write_text("sent once")
    run = start(job(tmp_path, [host(server)], train=train, rounds=3))
    assert [e["output_tail"] for e in run.kind("exec", error=None)] == ["sent once"] * 3
    assert [e["reused"] for e in run.kind("push", path="data", error=None)] == [0, 0]
    (down,) = run.kind("worker_down")
    assert down["detail"] == "its folder is gone, and all that was sent: somebody deleted it there"


def test_a_jump_host_and_its_death(tmp_path: Path, server: Sshd):
    jump = Sshd(tmp_path / "jump").start()
    try:
        (jump.folder / "authorized_keys").write_text((server.folder / "authorized_keys").read_text())
        far = host(server, jump=f"127.0.0.1:{jump.port}", host_key="accept-new")
        busy = BUSY.replace("!= 1 ] || [ $ROUNDLOG_ROUND", "!= 0 ] || [ $ROUNDLOG_ROUND")
        path = job(
            tmp_path,
            [far, host(server)],
            train={"command": busy + COPY},
            policy={"quorum": 1, "retries": 0},
            rounds=3,
        )
        with Started(path) as started:
            eventually(lambda: list(server.home.rglob("once")), "training")
            jump.stop()
            run = started.end()
    finally:
        jump.stop()
    assert "worker 0 (ssh:127.0.0.1" in run.err
    assert "what it ran may still run there" in run.err
    for pid in left_running(run.log.stem):  # nobody can reach it any more
        os.kill(pid, signal.SIGKILL)
    assert run.code == 0
    assert [e["survivors"] for e in run.kind("round_end")] == [2, 1, 1]
    lost, refused = run.kind("worker_down")
    assert (lost["rank"], lost["reason"]) == (0, "lost")
    where = f"127.0.0.1:{server.port}: by way of 127.0.0.1:{jump.port}"
    assert refused["detail"] == f"{where}: Connection refused"


@pytest.mark.parametrize(
    "startup",
    ["echo chatty; echo more >&2", "false; exit_code_of_mine", "sleep 0.3", "cd /; umask 000; set -u"],
)
def test_start_up_files_of_any_kind(tmp_path: Path, server: Sshd, startup: str):
    (server.home / ".bashrc").write_text(startup + "\n")
    run = start(job(tmp_path, [host(server)], train={"command": "echo fine; " + COPY}, rounds=1))
    assert run.one("exec")["output_tail"] == "fine"
    output = (run.log.with_suffix("") / "output" / "worker-0.log").read_text()
    assert "chatty" not in output


def test_many_workers_against_default_limits(tmp_path: Path, server: Sshd):
    run = start(job(tmp_path, [host(server)] * 24, rounds=1))
    assert run.one("round_end")["survivors"] == 24
    assert not run.kind("worker_down")


def test_a_host_that_does_not_answer_holds_up_nobody(tmp_path: Path, server: Sshd):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        dead = host(server, port=silent.getsockname()[1])
        hosts = [host(server), host(server), dead]
        path = job(tmp_path, hosts, ssh={"connect_s": 2}, policy={"close_at": 2}, rounds=2)
        run = start(path)
    assert run.one("run_end")["status"] == "completed"
    assert all(e["t"] < 1.9 for e in run.kind("exec", round=0))


def test_check_tells_of_every_host(tmp_path: Path, server: Sshd):
    done = runner("check", job(tmp_path, [host(server), host(server)]))
    assert f"127.0.0.1:{server.port}" in done.stdout
    assert "python" in done.stdout
    assert not list((server.home / "work").rglob("*"))
    bad = host(server, port=1)
    done = runner("check", job(tmp_path, [host(server), bad, host(server, user="nobody-here")]), code=1)
    assert "worker 1, 127.0.0.1:1: Connection refused" in done.stderr
    assert "worker 2, nobody-here@127.0.0.1" in done.stderr
    assert runner("check", job(tmp_path, [bad]), "--offline").returncode == 0


def test_check_tells_what_a_host_lacks(tmp_path: Path, server: Sshd):
    path = job(tmp_path, [host(server)], train={"command": ["no-such-program"]})
    assert (
        "train.command: it has no program 'no-such-program' on its PATH"
        in runner("check", path, code=1).stderr
    )
    empty = tmp_path / "python"
    empty.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')  # without what is installed
    empty.chmod(0o755)
    path = job(tmp_path, [host(server)], wire={"pull": "float16", "python": str(empty)})
    assert (
        f"wire.python: {empty} needs NumPy there: ModuleNotFoundError" in runner("check", path, code=1).stderr
    )
    path = job(tmp_path, [host(server)], wire={"pull": "float16", "python": "/no/python"})
    assert "can't start '/no/python': no such program over there" in runner("check", path, code=1).stderr
    path = job(tmp_path, [host(server)], wire={"pull": "float16", "zstd": 3, "python": sys.executable})
    runner("check", path)


def test_a_folder_that_can_not_be_made(tmp_path: Path, server: Sshd):
    path = job(tmp_path, [host(server, folder="/proc/none")], policy={"round_retries": 0})
    run = start(path, code=1)
    detail = run.kind("worker_down")[0]["detail"]
    assert "can't make the worker's folder /proc/none" in detail
    assert "folder = " in detail


def test_a_program_that_can_not_be_executed(tmp_path: Path, server: Sshd):
    (tmp_path / "train.sh").write_text("exit 0\n")
    train = {"command": ["./train.sh"], "files": ["train.sh"]}
    run = start(job(tmp_path, [host(server)], train=train, policy={"round_retries": 0}), code=1)
    assert "it is there but can't be executed" in run.one("exec")["error"]


def test_a_resident_command_over_ssh(tmp_path: Path, server: Sshd):
    (tmp_path / "train.py").write_text(
        "import shutil\nfrom roundlog_rounds import rounds\nprint('started')\n"
        "for r in rounds():\n    shutil.copy(r.params, r.weights)\n    r.report(loss=1.0)\n"
    )
    train = {"command": ["{python}", "train.py"], "files": ["train.py", "{rounds}"], "resident": True}
    run = start(job(tmp_path, [host(server)] * 2, train=train, rounds=4))
    assert len(run.kind("metric")) == 8
    output = (run.log.with_suffix("") / "output" / "worker-0.log").read_text()
    assert output.count("started") == 1
    assert not left_running(run.log.stem)


STAYS = {"command": ["{python}", "train.py"], "files": ["train.py", "{rounds}"], "resident": True}


def test_a_resident_command_whose_connection_is_lost_costs_its_worker_one_round(
    tmp_path: Path, server: Sshd, tmp_path_factory: pytest.TempPathFactory
):
    (tmp_path / "train.py").write_text(
        "import os, pathlib, shutil, time\nfrom roundlog_rounds import rounds\n"
        "for r in rounds():\n"
        "    once = pathlib.Path('../once')\n"
        "    if (os.environ['ROUNDLOG_RANK'], r.round) == ('1', 1) and not once.exists():\n"
        "        once.touch()\n        time.sleep(600)\n"
        "    shutil.copy(r.params, r.weights)\n"
    )
    other = Sshd(tmp_path_factory.mktemp("other")).start()
    try:
        path = job(
            tmp_path,
            [host(server), host(other)],
            train=STAYS,
            rounds=4,
            policy={"quorum": 1, "backoff_s": 0.2},
        )
        with Started(path) as started:
            eventually(lambda: list(other.home.rglob("once")), "training")
            other.stop()
            other.start()
            run = started.end()
    finally:
        other.stop()
    assert run.code == 0, run.err
    down = run.kind("worker_down")
    assert {e["rank"] for e in down} == {1}
    assert down[0]["reason"] == "lost"
    assert [e["survivors"] for e in run.kind("round_end")][-1] == 2
    assert "Traceback" not in run.err
    assert not left_running(run.log.stem)


@pytest.mark.parametrize("wired", [False, True])
def test_a_resident_command_that_can_not_be_started(tmp_path: Path, server: Sshd, wired: bool):
    train = {"command": ["nosuchprogram"], "resident": True}
    wire = {"wire": {"pull": "float16", "python": sys.executable}} if wired else {}
    path = job(tmp_path, [host(server)], train=train, policy={"round_retries": 0}, **wire)
    run = start(path, code=1)
    (failed,) = run.kind("exec")
    assert "nosuchprogram" in failed["error"] + failed["output_tail"]
    assert "Traceback" not in run.err


def test_open_files_stay_as_many(tmp_path: Path, server: Sshd):
    path = job(tmp_path, [host(server)] * 2, rounds=30)
    with Started(path) as started:
        counts: list[int] = []

        def at(kind: int) -> bool:
            return any(
                log.read_text().count('"kind":"round_end"') >= kind for log in started.runs.glob("*.jsonl")
            )

        for rounds in (5, 25):
            eventually(lambda rounds=rounds: at(rounds), f"round {rounds}")
            counts.append(len(list(Path(f"/proc/{started.process.pid}/fd").iterdir())))
        run = started.end()
    assert run.code == 0
    assert abs(counts[1] - counts[0]) <= 2


HOSTS = [
    ("gpu1", {"host": "gpu1"}),
    ("me@gpu1:2222", {"host": "gpu1", "user": "me", "port": 2222}),
    ("::1", {"host": "::1"}),
    ("[::1]:22", {"host": "::1", "port": 22}),
    ("me@fe80::1%eth0", {"host": "fe80::1%eth0", "user": "me"}),
    ("me@[fe80::1]:5", {"host": "fe80::1", "user": "me", "port": 5}),
]


@pytest.mark.parametrize(("text", "parts"), HOSTS)
def test_hosts_as_people_write_them(text: str, parts: dict[str, Any]):
    assert parse_target(text) == parts


def test_mistakes_in_hosts_are_all_told(tmp_path: Path):
    (tmp_path / "hosts.txt").write_text("good\nbad host\nmore port=x\n-oProxyCommand=x\n")
    path = write_job(
        tmp_path,
        hosts="hosts.txt",
        worker=[{"host": "a:1", "port": 2}, {"hots": "b"}, {"host": "c", "port": 0}],
        ssh={"transfers": 0},
    )
    done = runner("check", path, code=2)
    for said in (
        "worker[0].host: port is 2 here and 1 in 'a:1'",
        "worker[1].hots: unknown key (did you mean 'host'?)",
        "worker[2].port: received 0",
        "hosts: hosts.txt:2: 'host' is none of",
        "hosts: hosts.txt:3:",
        "hosts: hosts.txt:4:",
        "workers: received 2 beside listed hosts",
        "ssh.transfers: received 0",
    ):
        assert said in done.stderr, said


def test_ipv6(tmp_path: Path):
    try:
        six = Sshd(tmp_path / "six", address="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    try:
        run = start(job(tmp_path, [host(six.start())]))
        assert run.one("worker_up")["address"] == f"ssh:[::1]:{six.port}"
    finally:
        six.stop()


def test_files_that_travel_encoded_to_a_command_that_stays(tmp_path: Path, server: Sshd):
    (tmp_path / "train.py").write_text(
        "import numpy as np\nfrom roundlog_rounds import rounds\n"
        "for r in rounds():\n"
        "    with open(r.weights, 'wb') as file:\n"
        "        np.save(file, np.load(r.params) + np.float32(1))\n"
    )
    train = {"command": [sys.executable, "train.py"], "files": ["train.py", "{rounds}"], "resident": True}
    wire = {"push": "bfloat16", "pull": "int8", "zstd": 3, "python": sys.executable}
    run = start(job(tmp_path, [host(server)], train=train, wire=wire))
    np.testing.assert_allclose(np.load(run.params), np.load(tmp_path / "params.npy") + 2, atol=0.01)
    assert {e["path"] for e in run.kind("pull", error=None)} >= {"weights-0001.npy.wire"}
    assert not left_running(run.log.stem)
