"""What every transport must do with commands; see conformance.py."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from conformance import MB, Site, made
from jobs import eventually_async

from runner.errors import CommandError, ConnectionLostError, TransferError
from runner.output import Output

GIB = 1 << 30


def printed(output: Output) -> str:
    return output.path.read_text(errors="replace")


def peak_bytes() -> int:
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


class Commands:
    """Exec and close."""

    @pytest.mark.trio
    @pytest.mark.parametrize(
        ("command", "code"),
        [
            ("true", 0),
            ("exit 3", 3),
            ("exit 255", 255),
            (("sh", "-c", "exit 7"), 7),
            ("kill -9 $$", -signal.SIGKILL),
            ("kill -SEGV $$", -signal.SIGSEGV),
            ("no-such-program", 127),
        ],
    )
    async def test_exit_codes(self, site: Site, output: Output, command, code: int):
        connection = await site.connect()
        ended = await connection.exec(command, env={}, output=output)
        assert ended.exit_code == code

    @pytest.mark.trio
    async def test_a_list_is_run_as_it_is_and_a_string_by_a_shell(self, site: Site, output: Output):
        connection = await site.connect()
        await connection.exec(("printf", "%s|", "$HOME", "a  b", "'", "", "\u00fc;x"), env={}, output=output)
        assert printed(output) == "$HOME|a  b|'||\u00fc;x|"
        await connection.exec('echo; X="a  b"; echo "$X" | tr a c && ls /dev/null', env={}, output=output)
        assert printed(output).endswith("|\nc  b\n/dev/null\n")

    @pytest.mark.trio
    async def test_environment_and_folder(self, site: Site, output: Output):
        connection = await site.connect()
        env = {"ONE": "a b'\"$x\n\u00fc", "ROUNDLOG_RANK": "3", "EMPTY": ""}
        script = 'printf "%s|%s|%s|%s|" "$ONE" "$ROUNDLOG_RANK" "${EMPTY-unset}" "${PATH:+path}"; pwd -P'
        await connection.exec(script, env=env, output=output)
        assert printed(output) == f"{env['ONE']}|3||path|{connection.folder}\n"
        await connection.exec("echo x > left", env={}, output=output)
        assert site.files() == {"left"}

    @pytest.mark.trio
    async def test_what_can_not_be_started(self, site: Site, output: Output):
        connection = await site.connect()
        site.shell("echo hello > plain; mkdir folder")
        for program in ("no-such-program", "./missing", "./plain", "./folder"):
            with pytest.raises(CommandError, match=re.escape(program)):
                await connection.exec((program,), env={}, output=output)
        with pytest.raises(CommandError):
            await connection.exec("true", env={"A": "x\0y"}, output=output)
        with pytest.raises(CommandError):
            await connection.exec(("true", "x" * (32 << 20)), env={}, output=output)

    @pytest.mark.trio
    async def test_files_to_remove_and_to_expect(self, site: Site, output: Output):
        connection = await site.connect()
        site.shell("echo stale > weights; echo stale > metrics; echo stale > kept; mkdir d; echo x > d/y")
        ended = await connection.exec(
            "cat weights metrics d/y; printf 12345 > weights; : > empty",
            env={},
            output=output,
            remove=["weights", "metrics", "d/y", "never-there", "no/folder"],
            expect=["weights", "metrics", "empty", "no/folder"],
        )
        assert ended.sizes_bytes == {"weights": 5, "empty": 0}
        assert "stale" not in printed(output)
        assert site.files() == {"weights", "empty", "kept"}

    @pytest.mark.trio
    async def test_a_name_to_remove_never_leaves_the_folder(self, site: Site, output: Output):
        connection = await site.connect()
        site.shell("mkdir inner; echo x > outer")
        with pytest.raises(TransferError, match="inside the worker's folder"):
            await connection.exec("true", env={}, output=output, remove=["inner/../outer"])
        assert site.files() == {"outer"}

    @pytest.mark.trio
    @pytest.mark.parametrize("thing", ["mkdir thing", "mkdir -p thing/a/b; echo x > thing/a/b/c"])
    async def test_a_folder_where_a_file_is_to_be_removed(self, site: Site, output: Output, thing: str):
        """Either it goes, or the worker has failed; a worker must not be able to end the run."""
        connection = await site.connect()
        site.shell(thing)
        try:
            await connection.exec("test ! -e thing", env={}, output=output, remove=["thing"])
        except (CommandError, TransferError) as e:
            assert "thing" in str(e)  # noqa: PT017 - one of two good ends
        else:
            assert not site.files()

    @pytest.mark.trio
    async def test_output_keeps_the_order_of_both_streams(self, site: Site, output: Output):
        connection = await site.connect()
        script = 'for i in 1 2 3; do echo "out $i"; echo "err $i" >&2; done; printf "no newline"'
        await connection.exec(script, env={}, output=output)
        assert printed(output) == "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\nno newline"
        assert output.tail() == "no newline"

    @pytest.mark.trio
    async def test_no_output_and_no_input(self, site: Site, output: Output):
        connection = await site.connect()
        with trio.fail_after(10):
            ended = await connection.exec("cat", env={}, output=output)
        assert (ended.exit_code, output.count_bytes, output.tail()) == (0, 0, "")

    @pytest.mark.trio
    async def test_binary_output(self, site: Site, output: Output):
        connection = await site.connect()
        await connection.exec(r"printf '\000\001\377\033[31mred\r\n\200'", env={}, output=output)
        assert output.path.read_bytes() == b"\0\x01\xff\x1b[31mred\r\n\x80"

    @pytest.mark.trio
    async def test_much_output_in_flat_memory(self, site: Site, output: Output):
        connection = await site.connect()
        Path("/proc/self/clear_refs").write_text("5")  # begins the peak anew
        before = peak_bytes()
        with trio.fail_after(60):
            await connection.exec(f"head -c {200 * MB} /dev/zero; echo; echo last", env={}, output=output)
        assert peak_bytes() - before < 48 * MB
        assert output.path.stat().st_size == output.count_bytes == 200 * MB + 6
        assert output.tail() == "last"

    @pytest.mark.trio
    async def test_output_over_its_limit_is_dropped_but_read(self, site: Site, tmp_path: Path):
        connection = await site.connect()
        with Output(tmp_path / "limited.log", 1000) as output, trio.fail_after(60):
            ended = await connection.exec("yes | head -c 20000000; echo end", env={}, output=output)
            assert ended.exit_code == 0
            assert output.count_bytes == 20_000_004
            assert output.tail() == "end"
            kept = printed(output)
        assert kept.startswith("y\ny\n")
        assert "the rest is dropped: over 1000 bytes" in kept
        assert len(kept) < 1100

    @pytest.mark.trio
    async def test_a_child_that_holds_the_output_open_is_not_waited_for(self, site: Site, output: Output):
        connection = await site.connect()
        with trio.fail_after(10):
            ended = await connection.exec("sleep 600 & echo $!", env={}, output=output)
        pid = int(printed(output))
        assert ended.exit_code == 0
        await eventually_async(lambda: not site.alive(pid), "the child's end")

    @pytest.mark.trio
    async def test_a_child_in_a_session_of_its_own_is_dead_after_close(self, site: Site, output: Output):
        connection = await site.connect()
        with trio.fail_after(10):
            await connection.exec(
                "setsid sh -c 'trap \"\" TERM HUP; echo $$ > pid; sleep 600 & wait' & "
                "while ! test -s pid; do :; done",
                env={},
                output=output,
            )
        pid = int(site.read("pid"))
        await connection.close()
        await eventually_async(lambda: not site.alive(pid), "the daemon's end")

    @pytest.mark.trio
    @pytest.mark.parametrize("trap", ["", 'trap "" TERM INT HUP;'], ids=["plain", "ignores SIGTERM"])
    async def test_cancelling_ends_all_of_the_group(self, site: Site, output: Output, trap: str):
        connection = await site.connect()
        script = (
            f"{trap} sh -c 'echo $$ >> pids; sh -c \"echo \\$\\$ >> pids; sleep 600; :\"; :' & "
            "echo $$ >> pids; sleep 600; :"
        )

        def pids() -> list[int]:
            return [int(pid) for pid in site.shell("cat pids 2>/dev/null || true").split()]

        async with trio.open_nursery() as nursery:

            async def run() -> None:
                await connection.exec(script, env={}, output=output)

            nursery.start_soon(run)
            await eventually_async(lambda: len(pids()) == 3, "the start of all three")
            assert all(site.alive(pid) for pid in pids())
            with trio.CancelScope(deadline=trio.current_time() + 10) as scope:
                nursery.cancel_scope.cancel()
        assert not scope.cancelled_caught
        await eventually_async(lambda: not any(site.alive(pid) for pid in pids()), "the end of all three")

    @pytest.mark.trio
    async def test_sigterm_comes_first(self, site: Site, output: Output):
        connection = await site.connect()
        script = "trap 'echo saved > state; exit 0' TERM; echo up > up; while :; do sleep 0.01; done"
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                await connection.exec(script, env={}, output=output)

            nursery.start_soon(run)
            await eventually_async(lambda: "up" in site.files(), "the start")
            nursery.cancel_scope.cancel()
        assert site.read("state") == b"saved\n"

    @pytest.mark.trio
    async def test_cancelled_before_it_begins(self, site: Site, output: Output):
        connection = await site.connect()
        with trio.move_on_after(0) as scope:
            await connection.exec("echo $$ > pid; sleep 600", env={}, output=output)
        assert scope.cancelled_caught
        if "pid" in site.files() and site.read("pid"):
            assert not site.alive(int(site.read("pid")))

    @pytest.mark.trio
    async def test_the_connection_works_on_after_failures(self, site: Site, output: Output):
        connection = await site.connect()
        with pytest.raises(CommandError):
            await connection.exec(("no-such-program",), env={}, output=output)
        with trio.move_on_after(0.1):
            await connection.exec("sleep 600", env={}, output=output)
        ended = await connection.exec("echo fine", env={}, output=output)
        assert ended.exit_code == 0
        assert output.tail() == "fine"

    @pytest.mark.trio
    async def test_files_are_there_after_reconnecting(self, site: Site, output: Output):
        first = await site.connect()
        await first.exec("echo kept > state", env={}, output=output)
        await first.close()
        second = await site.connect()
        await second.exec("cat state", env={}, output=output)
        assert printed(output) == "kept\n"
        assert second.folder == first.folder

    @pytest.mark.trio
    async def test_a_folder_that_is_deleted_is_a_loss(self, site: Site, tmp_path: Path):
        """Else the files that were sent once would be missing from then on."""
        source = made(tmp_path / "source", 1000)
        connection = await site.connect()
        await connection.push(source, "once")
        site.shell('rm -rf "$PWD"')
        with suppress(TransferError, ConnectionLostError):  # a shell that is in it is to be started anew
            await connection.push(source, "params")
        with pytest.raises(ConnectionLostError, match="its folder is gone"):
            await connection.push(source, "params")
        await connection.close()
        again = await site.connect()
        assert (await again.push(source, "once")).reused == 0
        assert site.files() == {"once"}

    @pytest.mark.trio
    async def test_close_touches_no_other_worker(self, site: Site, tmp_path: Path):
        one, ten = await site.connect(1), await site.connect(10)
        with Output(tmp_path / "one.log", GIB) as output:
            await one.exec("true", env={}, output=output)
            async with trio.open_nursery() as nursery:

                async def run() -> None:
                    await ten.exec("echo $$ > pid; sleep 600", env={}, output=output)

                nursery.start_soon(run)
                await eventually_async(lambda: "pid" in site.files(10) and site.read("pid", 10), "the start")
                pid = int(site.read("pid", 10))
                await one.close()
                assert site.alive(pid)
                nursery.cancel_scope.cancel()
        await eventually_async(lambda: not site.alive(pid), "the end")

    @pytest.mark.trio
    async def test_commands_of_several_workers_run_at_once(self, site: Site, tmp_path: Path):
        """Each waits for a mark of all the others: one after the other they would never end."""
        ranks = range(6)
        meeting = tmp_path / "meeting"
        meeting.mkdir()
        script = 'echo x > "$MEETING/$RANK"; until test $(ls "$MEETING" | wc -l) = 6; do sleep 0.01; done'
        codes: dict[int, int] = {}

        async def run(rank: int) -> None:
            connection = await site.connect(rank)
            with Output(tmp_path / f"{rank}.log", GIB) as output:
                env = {"MEETING": os.fspath(meeting), "RANK": str(rank)}
                codes[rank] = (await connection.exec(script, env=env, output=output)).exit_code
            await connection.close()

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for rank in ranks:
                    nursery.start_soon(run, rank)
        assert codes == dict.fromkeys(ranks, 0)
