"""A pull request on GitHub (or GitHub Enterprise). Its comments are those of an issue with the same number."""

from typing import Final

from shunter.app.forges.http import Api
from shunter.app.forges.port import Comment

ACTIONS: Final = "github-actions[bot]"
"""Who writes with the token of a workflow. Such a token may not ask who it is."""


def headers(token: str) -> dict[str, str]:
    """What goes with each request."""
    return {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}


class GitHub:
    """Pull request `number` of `project` (`owner/name`). `author` is the login that the token writes as; None: ask, and take the
    workflows' own where that isn't answered.
    """

    def __init__(self, api: Api, project: str, number: int, author: str | None = None) -> None:
        self._api, self._number, self._author = api, number, author
        self._repository = f"/repos/{project}"

    def ours(self, mark: str) -> list[Comment]:
        """See `Forge.ours`."""
        author = self._who()
        entries = self._api.all(f"{self._repository}/issues/{self._number}/comments?per_page=100")
        found = [
            Comment(id=entry["id"], body=entry["body"])
            for entry in entries
            if (entry.get("user") or {}).get("login") == author and (entry.get("body") or "").startswith(mark)
        ]
        return sorted(found, key=lambda comment: comment.id)

    def create(self, body: str) -> None:
        """See `Forge.create`."""
        self._api.post(f"{self._repository}/issues/{self._number}/comments", {"body": body})

    def update(self, comment: int, body: str) -> bool:
        """See `Forge.update`."""
        return self._api.put("PATCH", f"{self._repository}/issues/comments/{comment}", {"body": body})

    def delete(self, comment: int) -> None:
        """See `Forge.delete`."""
        self._api.put("DELETE", f"{self._repository}/issues/comments/{comment}", None)

    def _who(self) -> str:
        if self._author is None:
            me = self._api.get("/user", refused=(401, 403, 404))
            self._author = me["login"] if me else ACTIONS
        return self._author
