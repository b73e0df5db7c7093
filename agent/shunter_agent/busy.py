"""Which images are being read or written here, and by which operations: more than one may have the same image."""

from collections import Counter


class BusyImages:
    """One per agent; for its loop's thread, but for `in`, which any thread may ask."""

    def __init__(self) -> None:
        self._users: dict[str, Counter[str]] = {}

    def __contains__(self, image: str) -> bool:
        return image in self._users

    def __bool__(self) -> bool:
        return bool(self._users)

    def user(self, image: str) -> str | None:
        """An operation that has the image in use, or None."""
        return next(iter(self._users.get(image, ())), None)

    def begin(self, image: str, operation: str) -> None:
        """The operation uses it, until as many `end`s as there were of these."""
        self._users.setdefault(image, Counter())[operation] += 1

    def end(self, image: str, operation: str) -> None:
        """One use is over."""
        users = self._users[image]
        users[operation] -= 1
        if not users[operation]:
            del users[operation]
        if not users:
            del self._users[image]
