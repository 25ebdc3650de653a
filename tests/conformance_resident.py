"""What every transport must do with commands that stay; see conformance.py.

A fault must cost its round alone, and be told by the events as that of a command that is started each round.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from conformance import Site
from conformance_exec import printed
from jobs import eventually_async

from runner.connection import Connection, Ended
from runner.errors import CommandError, ConnectionLostError, WorkerError
from runner.output import Output
from runner.recorder import Recorder
from runner.resident import Resident
from runner.traced import TracedConnection

ROUND = 'if [ $r = 1 ]; then echo working on $r; @FAULT@; fi; echo $r > "weights-$r"'
ENDS = f"r=$ROUNDLOG_ROUND; {ROUND}"
STAYS = (
    'while read -r line; do r=${line#*"round\\": "}; r=${r%%,*}; '
    f'{ROUND}; printf \'\\nroundlog:{{"round": %d, "metrics": {{"loss": 1}}}}\\n\' $r; done; echo over > over'
)
EVER = "while :; do sleep 600; done"


def asked(round: int) -> dict[str, str]:
    """Return the environment of a round."""
    names = {f"ROUNDLOG_{name}": f"{name.lower()}-{round}" for name in ("PARAMS", "WEIGHTS", "METRICS")}
    return {"ROUNDLOG_ROUND": str(round), **names}


@asynccontextmanager
async def resident(site: Site, rank: int = 0) -> AsyncIterator[Resident]:
    """Connect to a worker whose commands stay, and close it in the end."""
    async with trio.open_nursery() as nursery:
        connection = Resident(await site.connect(rank), nursery)
        try:
            yield connection
        finally:
            await connection.close()


class Stays:
    """A worker whose commands stay; they have a fault in round 1."""

    def __init__(self, connection: Resident, output: Output, script: str) -> None:
        self.connection = connection
        self._output = output
        self._script = script

    async def ask(self, round: int, limit_s: float = 30) -> Ended | None:
        """Ask for a round; return None if it took too long."""
        with trio.move_on_after(limit_s):
            return await self.connection.exec(self._script, env=asked(round), output=self._output)
        return None


@asynccontextmanager
async def staying(site: Site, output: Output, fault: str = ":", after: str = ":") -> AsyncIterator[Stays]:
    """Connect to a worker; `after` is what its command does when it has answered in round 1."""
    script = STAYS.replace("@FAULT@", fault).replace("; done", f"; [ $r != 1 ] || {{ {after}; }}; done")
    async with resident(site) as connection:
        yield Stays(connection, output, script)


Told = list[dict[str, Any]]


class Residents:
    """Commands that stay."""

    @pytest.mark.trio
    async def test_it_is_started_once_and_asked_often(self, site: Site, output: Output):
        async with staying(site, output, "echo $$ > pid") as stays:
            for number in range(4):
                assert await stays.ask(number) == Ended(None, None, {"loss": 1})
                assert site.read(f"weights-{number}") == b"%d\n" % number
            assert printed(output).split() == ["working", "on", "1"]
        assert "over" in site.files(), "it could leave by itself"
        assert not site.alive(int(site.read("pid")))

    @pytest.mark.trio
    @pytest.mark.parametrize(
        ("fault", "limits", "error"),
        [
            ("kill -9 $$", {}, "ended by signal 9"),
            (EVER, {"timeout_s": 0.3}, "timed out after 300 ms"),
            (EVER, {"idle_s": 0.3}, "printed nothing for 300 ms"),
            ("sleep 600 & exit 4", {}, "exit code 4"),
            ("(sleep 600; echo late) & :", {}, None),
            ("printf 'no newline'; exit 5", {}, "exit code 5"),
        ],
    )
    async def test_a_fault_is_told_as_that_of_a_command_that_is_started(  # noqa: PLR0917 - as given
        self,
        site: Site,
        output: Output,
        recorder_at: Callable[..., Recorder],
        fault: str,
        limits: dict[str, float],
        error: str | None,
    ):
        events: Told = []
        recorder = recorder_at(listeners=[Collects(events)])

        async def rounds(connection: Connection, script: str) -> Told:
            events.clear()
            for number in range(3):
                traced = TracedConnection(connection, recorder, round=number, rank=0)
                output.begin(f"round {number}")
                with suppress(WorkerError), trio.fail_after(30):
                    await traced.exec(script, env=asked(number), output=output, **limits)
                output.end()
            kept = (
                "kind",
                "round",
                "exit_code",
                "output_tail",
                "output_bytes",
                "attempt",
                "error",
                "injected",
            )
            # one that stays has no exit code where it did well
            return [{name: e.get(name) or None for name in kept} for e in events]

        async with resident(site, 0) as stays:
            of_one_that_stays = await rounds(stays, STAYS.replace("@FAULT@", fault))
        ends = await site.connect(1)
        of_one_that_ends = await rounds(ends, ENDS.replace("@FAULT@", fault))
        await ends.close()
        assert of_one_that_stays == of_one_that_ends
        errors = [e["error"] for e in of_one_that_stays if e["kind"] == "exec"]
        assert (errors[0], errors[2]) == (None, None)
        assert (errors[1] or "").startswith(error or "")
        assert (errors[1] is None) == (error is None)

    @pytest.mark.trio
    @pytest.mark.parametrize(
        ("answer", "said"),
        [
            ("printf '\\nroundlog:garbage\\n'", "'garbage'"),
            ("printf '\\nroundlog:{\"round\": 0}\\n'", "'{\"round\": 0}'"),
            ("printf '\\nroundlog:'; head -c 3000000 /dev/zero", "more than 1048576 bytes"),
        ],
        ids=["garbage", "another round", "without end"],
    )
    async def test_an_answer_that_makes_no_sense(self, site: Site, output: Output, answer: str, said: str):
        async with staying(site, output, f"echo $$ > pid; {answer}; {EVER}") as stays:
            await stays.ask(0)
            with pytest.raises(CommandError, match="asked for round 1 and answered") as caught:
                await stays.ask(1)
            assert said in str(caught.value)
            assert not site.alive(int(site.read("pid")))
            assert await stays.ask(2) is not None

    @pytest.mark.trio
    async def test_an_answer_in_pieces_and_much_output_before_it(self, site: Site, output: Output):
        fault = "head -c 5000000 /dev/zero; printf '\\nround'; sleep 0.05; printf 'log:x\\nroundlo'"
        async with staying(site, output, fault) as stays:
            with pytest.raises(CommandError, match="answered 'x'"):
                await stays.ask(1)
        assert output.count_bytes >= 5_000_000

    @pytest.mark.trio
    async def test_one_that_dies_between_rounds_is_started_again(self, site: Site, output: Output):
        async with staying(site, output, "echo $$ > pid", "kill -9 $$") as stays:
            for number in range(2):
                await stays.ask(number)
            await eventually_async(lambda: not site.alive(int(site.read("pid"))), "its end")
            await eventually_async(stays.connection._gone.is_set, "the news of it")
            assert await stays.ask(2) is not None

    @pytest.mark.trio
    async def test_files_travel_beside_it(self, site: Site, output: Output, tmp_path: Path):
        source = tmp_path / "source"
        source.write_bytes(b"x" * 100_000)
        async with staying(site, output, "cmp params-0 params-1") as stays:
            for number in range(3):
                await stays.connection.push(source, f"params-{number}")
                await stays.ask(number)
                await stays.connection.pull(f"weights-{number}", tmp_path / "weights", max_bytes=10)
                assert (tmp_path / "weights").read_text() == f"{number}\n"
        assert "differ" not in printed(output)

    @pytest.mark.trio
    async def test_what_can_not_be_started(self, site: Site, output: Output):
        async with resident(site) as connection:
            for _ in range(2):
                with pytest.raises(CommandError, match="no-such-program"):
                    await connection.exec(("no-such-program",), env=asked(0), output=output)

    @pytest.mark.trio
    async def test_close_ends_one_that_will_not_leave(self, site: Site, output: Output):
        fault = f"trap '' TERM HUP; ({EVER}) & echo $! $$ > pids"
        async with staying(site, output, fault, EVER) as stays:
            await stays.ask(1)
            pids = [int(pid) for pid in site.read("pids").split()]
            assert all(map(site.alive, pids))
            with trio.fail_after(10):
                await stays.connection.close()
        await eventually_async(lambda: not any(map(site.alive, pids)), "the end of both")


class ResidentsFarAway:
    """Commands that stay behind a connection that can be lost."""

    @pytest.mark.trio
    @pytest.mark.parametrize("between", [False, True], ids=["in a round", "between rounds"])
    async def test_a_connection_that_is_lost(self, site: Site, output: Output, between: bool):
        assert site.cut is not None
        async with staying(site, output, f"echo $$ > pid; {EVER}") as stays:
            await stays.ask(0)
            if between:
                await site.cut(stays.connection._connection)
                await eventually_async(stays.connection._gone.is_set, "the news of it")
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    with pytest.raises(ConnectionLostError):
                        await stays.ask(1)

                nursery.start_soon(ask)
                if not between:
                    await eventually_async(lambda: "pid" in site.files() and site.read("pid"), "the start")
                    await site.cut(stays.connection._connection)
        async with staying(site, output) as again:
            assert between or not site.alive(int(site.read("pid")))
            assert await again.ask(2) is not None


class Collects:
    """Keeps the events it hears."""

    def __init__(self, events: Told) -> None:
        self.events = events

    def __call__(self, event: dict[str, Any]) -> None:
        self.events.append(json.loads(json.dumps(event)))

    def close(self) -> None:
        """Do nothing."""
