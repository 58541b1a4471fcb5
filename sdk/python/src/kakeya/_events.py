"""_events.py - server-sent events: bytes as they come, to what each event says.

An event is lines up to an empty one; its data is what stands behind `data:`.  Comments, which the
server sends while nothing comes, are left out.
"""

from __future__ import annotations


class EventReader:
    """Takes a stream apart, wherever it is cut."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that are complete now."""
        data = self._rest + data
        held = b""
        if b"\r" in data:
            if data.endswith(b"\r"):  # the line feed behind it may be still to come
                data, held = data[:-1], b"\r"
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, rest = data.split(b"\n\n")
        self._rest = rest + held
        return [found for found in map(_data_of, blocks) if found is not None]


def _data_of(block: bytes) -> bytes | None:
    if block.startswith(b"data: ") and b"\n" not in block:  # nearly all of them
        return block[6:]
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
