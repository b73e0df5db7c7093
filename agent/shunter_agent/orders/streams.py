"""Whether what a worker was doing goes on once it runs elsewhere: by its TCP connections, as the kernel counts what they have moved.

A copy that doesn't run moves nothing, so that this can't be asked before a move is committed (docs/decisions/0007). It is asked after, once
the router was told, and holds nobody up: what is found is told with the operation.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from shunter_agent.node import Node
from shunter_agent.runtime.port import Process

LOOKS: Final = 15
"""The most, as long as some are silent: a worker that has something to say says it in this time, or computes."""
LOOK_S: Final = 0.02


class Streams(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's connections since it was restored: how many it had, how many `moved` bytes, how many had `ended` before any moved."""

    had: int = 0
    moved: int = 0
    ended: int = 0

    def __str__(self) -> str:
        """For people; empty where it had none."""
        if not self.had:
            return ""
        silent = self.had - self.moved - self.ended
        told = f"of {self.had} connections {self.moved} went on"
        told += f", {silent} said nothing yet" if silent else ""
        return told + (f", {self.ended} had ended before anything went over them" if self.ended else "")


def judged(before: Mapping[int, int], most: Mapping[int, int], still: Collection[int]) -> Streams:
    """By inode, bytes that connections had moved before the copy ran, and the most that they were seen to have moved since; `still` are
    there. One that isn't, and moved nothing, ended as far as anybody saw: its peer had hung up, or didn't know it any more.
    """
    moved = {inode for inode, count in before.items() if most.get(inode, count) > count}
    return Streams(had=len(before), moved=len(moved), ended=len(before.keys() - moved - set(still)))


async def remember(node: Node, worker: str, held: Process) -> None:
    """What connections a copy has before it runs. Nobody waits for it: of a copy that is let run before, nothing is known."""
    node.streams.pop(worker, None)
    try:
        found = await node.in_thread(node.runtime.connections, held)
    except OSError as error:  # it was ended
        node.log.info("its connections weren't counted", worker=worker, error=str(error))
        return
    copy = node.held.get(worker)
    if copy is not None and copy.held.process == held:
        node.streams[worker] = found


async def gone_on(node: Node, worker: str, process: Process) -> Streams:
    """What has become of the connections that a copy had; of a worker that never was one here, or was asked about before, nothing."""
    before = node.streams.pop(worker, None)
    if not before:
        return Streams()
    most, found = dict(before), Streams()
    for look in range(LOOKS):
        if look:
            await asyncio.sleep(LOOK_S)
        try:
            now = await node.in_thread(node.runtime.connections, process)
        except OSError:  # it has ended: that is told elsewhere
            return Streams()
        most = {inode: max(count, now.get(inode, 0)) for inode, count in most.items()}
        found = judged(before, most, now.keys())
        if found.moved + found.ended == found.had:
            break
    return found
