"""Writes docs/states.md from the table of states in runner/decide.py; a test fails when they differ.

Usage: python docs/make_states.py
"""

from __future__ import annotations

from pathlib import Path

from runner.decide import FINAL, NEXT, State

PATH = Path(__file__).parent / "states.md"
HEAD = """\
# A worker's way through a round

Made from the table `NEXT` in `runner/decide.py` by `python docs/make_states.py`.

A failure of the transport, or of a training command with `train.retries`, leads to another attempt while the
job's policy allows one; every other failure drops the worker for this round. When the round closes (all have
delivered or were dropped, the grace time or the deadline has passed, or the quorum is out of reach), who
is still busy is dropped, whatever its state.

"""


def text() -> str:
    """Return the page."""
    ids = {state: state.name.lower() for state in State}
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{state.value}" as {ids[state]}' for state in State]
    lines.append(f"    [*] --> {ids[State.JOINING]}")
    for (state, said), (then, step) in NEXT.items():
        does = f" / {step.value}" if step is not None else ""
        lines.append(f"    {ids[state]} --> {ids[then]}: {said.value}{does}")
    lines += [f"    {ids[state]} --> [*]" for state in State if state in FINAL]
    return HEAD + "```mermaid\n" + "\n".join(lines) + "\n```\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
