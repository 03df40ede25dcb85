"""A bucket service on this machine: gcp-storage-emulator, taught to keep to generations."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

BUCKET = "bucket"


class Service:
    """The service, with one bucket.

    Args:
        url: where it listens.
    """

    def __init__(self, url: str) -> None:
        self.environment = {
            "STORAGE_EMULATOR_HOST": url,
            "TENSORSTORE_GCS_HTTP_URL": url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
        }
        self._client = storage.Client(
            "project", AnonymousCredentials(), client_options={"api_endpoint": url}
        )
        self.bucket: Any = self._client.bucket(BUCKET)

    def names(self, prefix: str) -> list[str]:
        """The objects in a folder, by their names there."""
        blobs = self._client.list_blobs(BUCKET, prefix=f"{prefix}/")
        return sorted(blob.name.removeprefix(f"{prefix}/") for blob in blobs)

    def read(self, name: str) -> bytes:
        """An object's content."""
        content: bytes = self.bucket.blob(name).download_as_bytes()
        return content

    def write(self, name: str, content: bytes) -> None:
        """Writes an object."""
        self.bucket.blob(name).upload_from_string(content)

    def download(self, prefix: str, to: Path) -> Path:
        """Copies a folder to the local disk."""
        for name in self.names(prefix):
            file = to / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self.read(f"{prefix}/{name}"))
        return to


@contextlib.contextmanager
def serve() -> Iterator[Service]:
    """Runs the service as a process while inside."""
    with subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield Service(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.kill()


def _main() -> None:
    # Here, as `server` is to find what is put in the place of some of its functions.
    from gcp_storage_emulator.handlers import objects  # noqa: PLC0415

    def keep(handler: Any) -> Any:
        def checked(request: Any, response: Any, storage: Any, *rest: Any, **more: Any) -> Any:
            wanted = request.query.get("ifGenerationMatch")
            if wanted is None:
                return handler(request, response, storage, *rest, **more)
            names = request.query.get("name") or [request.params.get("object_id")]
            name = names[0] or request.data["meta"]["name"]
            found = storage.objects.get(request.params["bucket_name"], {}).get(name)
            if wanted[0] != (found["generation"] if found else "0"):
                response.status = HTTPStatus.PRECONDITION_FAILED
                return None
            return handler(request, response, storage, *rest, **more)

        return checked

    # Requests come one after the other, so nothing comes between a look and a write.
    for name in ("insert", "get", "delete", "download"):
        setattr(objects, name, keep(getattr(objects, name)))
    from gcp_storage_emulator import server  # noqa: PLC0415

    service = server.create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    service.start()
    print(service._api._httpd.server_address[1], flush=True)
    sys.stdin.read()  # until the test ends


if __name__ == "__main__":
    _main()
