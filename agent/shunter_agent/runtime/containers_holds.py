"""What stands and waits of a worker in a pod, and the network that it is in: not the agent's to make, to connect or to remove."""

import contextlib
import os
import signal

from shunter_agent.runtime import containers_links as links
from shunter_agent.runtime import holds
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.port import Frozen, Held, Network, Process


class PodNetwork:
    """Implements `port.Network` for a worker in a pod: whoever made the pod has made it, and removes it with the pod."""

    def __init__(self, netns: int) -> None:
        """`netns` is this object's own from here on."""
        self._netns: int | None = netns
        shared = os.stat("/proc/1/ns/net")
        about = os.fstat(netns)
        self.own = (about.st_dev, about.st_ino) != (shared.st_dev, shared.st_ino)

    @property
    def netns(self) -> int | None:
        """The pod's network namespace as a descriptor. None once it was let go of."""
        return self._netns

    def connect(self) -> None:
        """See `port.Network`. A pod is connected all the time, by an address that is no other pod's."""

    def disconnect(self) -> None:
        """See `port.Network`."""

    def elsewhere(self) -> bool:
        """See `port.Network`: its address is this pod's alone, and doesn't go along with the worker."""
        return False

    def destroy(self) -> None:
        """See `port.Network`. Lets go of it."""
        if self._netns is not None:
            os.close(self._netns)
            self._netns = None


class PodFrozen:
    """Implements `port.Frozen`, with the worker's connections with others, whose peers are told when it is released."""

    def __init__(self, inner: Frozen, outside: links.Outside, network: Network) -> None:
        """`outside` is this object's own from here on."""
        self.dump = inner.dump
        self._inner, self._outside, self._network = inner, outside, network

    def alive(self) -> bool:
        """See `port.Frozen`. Of a hold that is found lost the connections are let go of, too: they are the worker's own again."""
        alive = self._inner.alive()
        if not alive:
            self._outside.close()
        return alive

    def thaw(self) -> None:
        """See `port.Frozen`. Raises Unknown SH711."""
        self._outside.close()
        self._inner.thaw()

    def release(self) -> None:
        """See `port.Frozen`. Raises Rejected SH708, Unknown SH707: then no peer hears anything from here."""
        try:
            self._inner.release()
        except BaseException:
            self._outside.close()
            raise
        holds.sweep_lock(self._network, None)  # or the dump's lock would keep the resets back
        self._outside.reset()


class PodHeld:
    """Implements `port.Held`; tells the placeholder that its worker has come."""

    def __init__(self, inner: Held, home: Process) -> None:
        """`home`: the placeholder's process 1."""
        self.process = inner.process
        self._inner, self._home = inner, home

    def resume(self) -> Process:
        """See `port.Held`. Raises Rejected SH702, SH708, of GPUs SH741."""
        copy = self._inner.resume()
        tell(self._home)
        return copy

    def abort(self) -> None:
        """See `port.Held`. Raises Rejected SH708, Unknown SH707."""
        self._inner.abort()


def tell(placeholder: Process) -> None:
    """Its worker runs. To a process 1 that doesn't know the signal it means nothing."""
    with contextlib.suppress(OSError):  # the worker runs, whatever becomes of this
        if processes.find(placeholder):
            os.kill(placeholder.pid, signal.SIGHUP)
