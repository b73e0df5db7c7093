"""The sender's side of a link, on which a refusal may come at any moment."""

import contextlib
import select
import time
from collections import deque

from shunter.model.errors import Problem, Rejected, Retry

from shunter_agent.images.frames import Again, Answer, Broken, Data, Hello, Link, Listed, Offer, Patch, Ready, Refused, Stored, Wait, Whole


class Talk:
    """Says things, and listens between."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._heard: deque[Answer] = deque()
        self.spoke = time.monotonic()
        """When something was last said (monotonic)."""

    def say(self, header: Hello | Data | Offer | Patch | Listed | Wait | Whole, body: memoryview | bytes = b"") -> None:
        """Send a header and its bytes. Raises Broken, and Rejected or Retry when the other side has refused."""
        while select.select([self._link.socket], [], [], 0)[0]:
            self._hear()  # nothing but answers and a refusal comes before the end
        try:
            self._link.send(header, body)
        except Broken:
            with contextlib.suppress(Broken):
                while True:
                    self._hear()  # a refusal may have come in the meantime, and says more
            raise
        self.spoke = time.monotonic()

    def _hear(self) -> None:
        answer = self._read()
        if not isinstance(answer, Answer):
            raise Broken("the other side answered out of turn")
        self._heard.append(answer)

    def listen(self) -> Ready | Answer | Again | Stored:
        """What the other side says next. Raises as `say` does."""
        return self._heard.popleft() if self._heard else self._read()

    def _read(self) -> Ready | Answer | Again | Stored:
        answer = self._link.from_receiver()
        if isinstance(answer, Refused):
            problem = Problem(code=answer.code, what=answer.what, remedy=answer.remedy)
            raise Retry(problem) if answer.again else Rejected(problem)
        return answer
