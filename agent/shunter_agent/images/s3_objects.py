"""Objects in a bucket of Amazon S3, or of whatever speaks its language (Ceph, MinIO, Google Cloud Storage's XML API, Cloudflare R2)."""

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from shunter.model.errors import Problem, Retry, Stalled

from shunter_agent.images.folder_objects import unreachable
from shunter_agent.images.port import Kept

T = TypeVar("T")
_GONE: Final = ("404", "NoSuchKey", "NotFound")
CONNECTIONS: Final = 16


class S3Objects:
    """Implements `port.Objects`. Credentials come from where boto3 looks for them: environment, files, the machine's own role."""

    def __init__(self, bucket: str, prefix: str = "", *, endpoint: str | None = None, region: str | None = None) -> None:
        """`endpoint` is a URL, None for Amazon's own. Raises Stalled SH823 without boto3 (the extra `s3`)."""
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as error:
            raise Stalled(
                Problem(
                    code="SH823",
                    what="the archive is an object store, and boto3 isn't installed",
                    remedy="Install shunter with the extra `s3`",
                    subject=f"s3://{bucket}",
                )
            ) from error
        self.name = f"s3://{bucket}/{prefix}"
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._errors = (BotoCoreError, ClientError)
        config = Config(
            retries={"mode": "standard", "max_attempts": 4}, max_pool_connections=CONNECTIONS, connect_timeout=10, read_timeout=60
        )
        self._client: Any = boto3.client("s3", endpoint_url=endpoint, region_name=region, config=config)

    def put(self, key: str, data: bytes) -> None:
        """See `port.Objects`. S3 shows an object only once all of it is there."""
        self._ask(lambda: self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data))

    def get(self, key: str) -> bytes | None:
        """See `port.Objects`."""

        def read() -> bytes:
            return bytes(self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)["Body"].read())

        return self._ask(read, gone=True)

    def find(self, key: str) -> Kept | None:
        """See `port.Objects`."""
        found = self._ask(lambda: self._client.head_object(Bucket=self._bucket, Key=self._prefix + key), gone=True)
        return Kept(key, found["LastModified"].timestamp()) if found is not None else None

    def all(self, prefix: str) -> Iterator[Kept]:
        """See `port.Objects`."""
        more: dict[str, str] = {}
        while True:
            asked = {"Bucket": self._bucket, "Prefix": self._prefix + prefix, **more}
            page = self._ask(lambda asked=asked: self._client.list_objects_v2(**asked)) or {}  # type: ignore[misc]
            for found in page.get("Contents", ()):
                yield Kept(found["Key"].removeprefix(self._prefix), found["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, key: str) -> None:
        """See `port.Objects`."""
        self._ask(lambda: self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key))

    def _ask(self, call: Callable[[], T], *, gone: bool = False) -> T | None:
        """None when there is no such object and `gone` is an answer."""
        try:
            return call()
        except self._errors as error:
            answer = getattr(error, "response", {})
            if gone and answer.get("Error", {}).get("Code") in _GONE:
                return None
            raise Retry(unreachable(self.name, str(error))) from error
