"""A real API server for the tests below, where one can be had."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from control_plane import ROOT, ControlPlane, asset, until
from shunter.cluster.access import Access
from shunter.cluster.api import Api

CRDS = sorted((ROOT / "schemas" / "crds").glob("*.shunter.dev.yaml"))
APPLY = "application/apply-patch+yaml"


def needed(name: str) -> Path:
    found = asset(name)
    if found is None:
        pytest.skip(f"no {name}: run scripts/install-apiserver, or set KUBEBUILDER_ASSETS")
    return found


def running(folder: Path, server: str = "kube-apiserver") -> Iterator[ControlPlane]:
    needed("etcd")
    plane = ControlPlane(folder, needed(server))
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def shared_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for all tests that leave it as it was, but for resources of their own."""
    yield from running(tmp_path_factory.mktemp("plane"))


@pytest.fixture(scope="session")
def plane(shared_plane: ControlPlane) -> ControlPlane:
    """The shared one, with our kinds."""
    install(shared_plane)
    return shared_plane


@pytest.fixture
def own_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """One for a test that breaks it."""
    yield from running(tmp_path)


def install(plane: ControlPlane) -> None:
    """Apply our definitions, and wait until the kinds are served."""
    for path in CRDS:
        where = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{path.stem}"
        plane.must("PATCH", f"{where}?fieldManager=test&force=true&fieldValidation=Strict", path.read_bytes(), APPLY)
    for path in CRDS:
        plural = path.name.partition(".")[0]
        until(lambda plural=plural: plane.ask("GET", f"/apis/shunter.dev/v1alpha1/{plural}")[0] == 200, 20, plural)


def admin(plane: ControlPlane) -> Access:
    return Access(server=plane.url, ca=plane.ca, cert=plane.folder / "admin.crt", key=plane.folder / "admin.key")


@pytest.fixture
async def api(plane: ControlPlane) -> AsyncIterator[Api]:
    found = Api(admin(plane))
    yield found
    await found.aclose()
