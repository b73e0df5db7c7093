"""Pods that started from a golden image, once their operations are over: one that serves no more never does so again by itself.

The kubelet starts its container again with what made it idle until it was restored, so that it idles for good: on a GPU, counted by its
controller, and moved by nobody. Its controller makes a native one where it is deleted.

That a pod isn't ready says little: a node that isn't heard of, or something that all pods need, makes all of them unready, and their
processes may serve on. So only those are deleted in which nothing but what waits to be restored can run, on nodes whose kubelets answer,
and one in each pass.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from shunter.cluster.api import Absent, Api, Conflict
from shunter.cluster.dynamo.golden import asleep, outcome, ready
from shunter.cluster.dynamo.words import pods
from shunter.cluster.pods import GRACE_S, Being, WorkerPod
from shunter.model.errors import Rejected, Retry

IDLE_S: Final = 600.0
"""So long one may be not ready, at a stretch, before that is for good. As long as an operation may take for it (see `act.starting`)."""
FAILED_S: Final = 60.0
"""So long where its restore has failed for good: it may have served all the same, and be late with one answer."""
GAP_S: Final = 60.0
"""What nobody looked at for longer isn't one stretch."""


class _Unready(NamedTuple):
    """From when to when (`clock`) it was seen so, each time that it was looked at."""

    since: float
    last: float


class Abandoned:
    """Of one API server. `note` is told the uid of each pod before that is deleted. `clock`: seconds that never go back."""

    def __init__(self, api: Api, note: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._api, self._note, self._clock = api, note, clock
        self._unready: dict[str, _Unready] = {}
        """By uid."""
        self._enough = False
        self._refused: dict[str, None] = {}
        """By uid: those that it was told of that they can't be deleted."""

    async def see_to(self, pod: WorkerPod, still_leads: Callable[[], None], *, heard: bool) -> list[str]:
        """Delete a pod whose operation is over, if nothing will come of it. What was done, in words. Never one that is ready, by what the
        server says when it is deleted. `heard`: its node's kubelet answers, so that what is said of it is so. A refusal is told once, and
        tried again. `still_leads` raises once we don't. Raises as `Api.get` does, and Unknown.
        """
        uid, where = pod.pod.uid, f"{pods(pod.pod.namespace)}/{pod.pod.name}"
        if pod.ready or not heard or pod.being in (Being.ENDING, Being.ENDED):  # one that has ended holds no GPU, and is counted no more
            self._unready.pop(uid, None)
            return []
        idle = self._stretch(uid)
        try:
            found = await self._api.get(where)
        except Absent:
            return []
        meta, seen = found["metadata"], outcome(found)
        if ready(found):
            self._unready.pop(uid, None)
            return []
        failed = seen.state == "failed"
        if meta["uid"] != uid or meta.get("deletionTimestamp") or self._enough or not (failed or asleep(found)):
            return []
        if idle < (FAILED_S if failed else IDLE_S):
            return []
        self._enough = True
        still_leads()
        self._note(uid)
        preconditions = {"uid": uid, "resourceVersion": meta["resourceVersion"]}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": GRACE_S, "preconditions": preconditions}
        try:
            await self._api.delete(where, options)
        except (Absent, Conflict):  # it has changed meanwhile: it may be ready
            return []
        except (Rejected, Retry) as refused:  # what else there is to tidy doesn't wait for that
            new, self._refused[uid] = uid not in self._refused, None
            return [f"couldn't delete the pod {pod.pod} ({uid}), which serves no more: {refused.problem.what}"] if new else []
        why = seen.why if failed else f"it wasn't ready for {IDLE_S:g} s: {seen.why}"
        return [
            f"deleted the pod {pod.pod} ({uid}), which {pod.started_by} had started from a golden image, and which serves no more: {why}"
        ]

    def _stretch(self, uid: str) -> float:
        """For how many seconds it isn't ready, this look included."""
        now, before = self._clock(), self._unready.get(uid)
        since = before.since if before is not None and now - before.last <= GAP_S else now
        self._unready[uid] = _Unready(since, now)
        return now - since

    def begin(self, there: Callable[[str], bool]) -> None:
        """Another pass. Those that aren't `there` any more, by uid, are forgotten."""
        self._enough = False
        self._unready = {uid: seen for uid, seen in self._unready.items() if there(uid)}
        self._refused = {uid: None for uid in self._refused if there(uid)}
