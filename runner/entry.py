"""Where the command ``runner`` begins: early, so that Ctrl-C ends it quietly while the rest is imported."""

from __future__ import annotations

import signal


def main() -> None:
    """Import the command line and run it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from runner.cli import main as run  # noqa: PLC0415 - what takes long comes after

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
