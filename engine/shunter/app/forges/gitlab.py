"""A merge request on GitLab. Its comments are called notes."""

from urllib.parse import quote

from shunter.app.forges.http import Api
from shunter.app.forges.port import Comment


def headers(token: str) -> dict[str, str]:
    """What goes with each request."""
    return {"PRIVATE-TOKEN": token}


class GitLab:
    """Merge request `number` (its iid) of `project` (its id, or `group/name`)."""

    def __init__(self, api: Api, project: str, number: int) -> None:
        self._api = api
        self._notes = f"/projects/{quote(project, safe='')}/merge_requests/{number}/notes"
        self._me: int | None = None

    def ours(self, mark: str) -> list[Comment]:
        """See `Forge.ours`."""
        if self._me is None:
            self._me = int(self._api.get("/user")["id"])
        entries = self._api.all(f"{self._notes}?per_page=100&sort=asc&order_by=created_at")
        found = [
            Comment(id=entry["id"], body=entry["body"])
            for entry in entries
            if not entry.get("system") and (entry.get("author") or {}).get("id") == self._me and (entry.get("body") or "").startswith(mark)
        ]
        return sorted(found, key=lambda comment: comment.id)

    def create(self, body: str) -> None:
        """See `Forge.create`."""
        self._api.post(self._notes, {"body": body})

    def update(self, comment: int, body: str) -> bool:
        """See `Forge.update`."""
        return self._api.put("PUT", f"{self._notes}/{comment}", {"body": body})

    def delete(self, comment: int) -> None:
        """See `Forge.delete`."""
        self._api.put("DELETE", f"{self._notes}/{comment}", None)
