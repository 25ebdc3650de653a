"""The files of one round: what they are called on the worker, how they travel, how large they may be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runner import wire
from runner.errors import ArrayError, RunError
from runner.job import Command, Wire
from runner.recorder import Recorder
from runner.runfolder import RunFolder
from runner.serverstep import CurrentParams, Delivery
from runner.simtime import in_thread, stop_point
from runner.weights import Checked, check_weights


class RoundFiles:
    """The files of one round.

    Args:
        number: which round.
        params: what is pushed.
        folder: the files of the run.
        given: how files travel.
    """

    def __init__(self, number: int, params: CurrentParams, folder: RunFolder, given: Wire) -> None:
        self._params = params
        self._folder = folder
        self._wire = given
        self._weights = f"weights-{number:04}.{params.form}"
        plain = f"params-{number:04}.{params.form}"
        self.names = {
            "params": wire.sent(plain, given, pushed=True),
            "weights": wire.sent(self._weights, given, pushed=False),
            "metrics": f"metrics-{number:04}.json",
        }
        self.litter = frozenset({*self.names.values(), plain, self._weights})
        """What may lie in a worker's folder afterwards."""
        self.limit = wire.limit(params.specs, given)
        """Bytes above which what is to be pulled can't be honest weights."""
        self._environment = [(f"ROUNDLOG_{what.upper()}", name) for what, name in self.names.items()]
        self._settings = wire.settings(given)
        self._incoming = folder.incoming_folder
        self.pushed = params.path
        self.encode_s: float | None = None
        """Time it took to encode the params, where they travel encoded."""

    @property
    def stale(self) -> frozenset[str]:
        """What must not be there when the training command begins."""
        return self.litter - {self.names["params"]}

    @property
    def pushed_plain_bytes(self) -> int | None:
        """Size of the params, where what is pushed is encoded."""
        return self._params.path.stat().st_size if self._wire.encodes_params else None

    @property
    def pulled_plain_bytes(self) -> int | None:
        """Size of weights, where what is pulled is encoded; they have the arrays of the params."""
        return self._params.path.stat().st_size if self._wire.active else None

    def wrapped(self, command: Command) -> Command:
        """Return the command that runs a training command with these files."""
        return wire.wrapped(command, self._wire)

    def environment(self, folder: str) -> dict[str, str]:
        """Return what a command must know of the files, in a worker's folder."""
        return {**self._settings, **{key: f"{folder}/{name}" for key, name in self._environment}}

    async def encode(self, recorder: Recorder) -> None:
        """Make what is pushed, if it is not the params as they are.

        Raises:
            RunError: it can't be made.
        """
        if not self._wire.encodes_params:
            return
        began = recorder.now_us()
        self.pushed = self._folder.folder / self.names["params"]
        try:
            await in_thread(wire.encode_params, self._params.path, self.pushed, self._wire, stop_point())
        except (ArrayError, OSError) as e:
            raise RunError(f"{self._params.path.name} can't be encoded: {e}") from e
        self.encode_s = (recorder.now_us() - began) / 1e6

    def incoming(self, rank: int) -> Path:
        """Return where a worker's weights lie once they are as the params are."""
        return self._incoming / f"{rank}-{self._weights}"

    def arrived(self, delivery: Delivery) -> Path:
        """Return where a worker's weights arrive: there, unless they are encoded."""
        if not self._wire.active:
            return delivery.path
        return delivery.path.with_name(wire.sent(delivery.path.name, self._wire, pushed=False))

    def check(self, delivery: Delivery, between: Callable[[], object]) -> Checked:
        """Decode weights that arrived, if they are encoded, and let them in.

        Raises:
            ArrayError: they are not what they must be.
            OSError: they can't be written as the params are.
        """
        arrived = self.arrived(delivery)
        if arrived != delivery.path:
            wire.decode_weights(arrived, delivery.path, self._params.path, self._wire, between)
            arrived.unlink()
        return check_weights(delivery.path, self._params.path, between)

    def clear(self, delivery: Delivery) -> None:
        """Delete what was pulled from a worker, unless others handed back the same."""
        if delivery.shared:
            return
        for path in {delivery.path, self.arrived(delivery)}:
            path.unlink(missing_ok=True)

    def clear_pushed(self) -> None:
        """Delete what was made to be pushed."""
        if self.pushed != self._params.path:
            self.pushed.unlink(missing_ok=True)
