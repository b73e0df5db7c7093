"""The worked example of docs/how-to/read-a-backtest.md: what the page quotes is what the command prints, over a real Prometheus."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from past_prometheus import PROMETHEUS, PROMTOOL, serving
from PIL import Image
from shunter.app.recording import Recording, save
from shunter.audit.journal import Journal
from shunter.cli.main import execute
from shunter.model.canon import plain
from shunter.model.ids import Epoch, ImageId, Incarnation, NodeId, NoticeId, SlotId, WorkerId
from shunter.model.record import Record, RecordKind
from shunter.model.snapshot import Fleet, Node, Notice, NoticeKind, Slot, Snapshot, Worker, WorkerState
from shunter.model.snapshot import Image as Checkpoint
from test_history import SETTINGS

pytestmark = pytest.mark.skipif(not (PROMETHEUS and PROMTOOL), reason="prometheus and promtool aren't installed")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-a-backtest.md"
BEGIN, LENGTH, GB = 1_790_000_010.0, 7200.0, 10**9
SPAN = ["--since", "2026-09-21T14:13:30", "--until", "2026-09-21T16:13:30", "--snapshot", "fleet.json"]
HOMES = {"d0": "a/0", "d1": "b/0", "d2": "b/1", "p0": "c/0"}


def block(language: str, number: int = 0) -> str:
    """The page's own blocks: the policies that it gives, and the output that it quotes."""
    found = [part.partition("```")[0] for part in PAGE.read_text().split(f"```{language}\n")[1:]]
    return found[number]


def worker(name: str, slot: str | None) -> Worker:
    return Worker(
        id=WorkerId(name),
        role="prefill" if name[0] == "p" else "decode",
        graph="llama",
        engine="vllm",
        state=WorkerState.RUNNING if slot else WorkerState.PARKED,
        node=NodeId(slot[0]) if slot else None,
        slot=SlotId(slot) if slot else None,
        incarnation=Incarnation(0),
        memory=400 * GB,
    )


def fleet() -> Fleet:
    """Three decode workers and a prefill worker on nodes of two slots with eight B200 each, and a prefill worker that is parked."""
    workers = (*(worker(name, slot) for name, slot in HOMES.items()), worker("p1", None))
    held = {slot: WorkerId(name) for name, slot in HOMES.items()}
    nodes = tuple(
        Node(
            id=NodeId(n),
            slots=tuple(Slot(id=SlotId(f"{n}/{k}"), gpus=8, gpu_model="B200", worker=held.get(f"{n}/{k}")) for k in range(2)),
        )
        for n in "abc"
    )
    parked = Checkpoint(
        id=ImageId("image-p1"), worker=WorkerId("p1"), incarnation=Incarnation(0), taken_at=BEGIN - 600, bytes=300 * GB,
        nodes=(NodeId("b"), NodeId("c")), role="prefill", graph="llama", engine="vllm",
    )  # fmt: skip
    return Fleet(nodes=nodes, workers=workers, images=(parked,))


def made() -> dict:
    """Every 15 s. Prefill requests wait from the 60th minute on; how much context d2 holds nobody tells."""

    def series(value) -> list[tuple[float, float]]:
        return [(BEGIN + n * 15 + 0.25, value(n * 15)) for n in range(int(LENGTH / 15))]

    names = ["d0", "d1", "d2", "p0"]
    return {
        "vllm:num_requests_waiting": [({"worker": w}, series(lambda t, w=w: 60.0 if w == "p0" and t >= 3600 else 1.0)) for w in names],
        "vllm:num_requests_running": [({"worker": w}, series(lambda t: 12.0)) for w in names],
        "vllm:kv_cache_usage_perc": [({"worker": w}, series(lambda t: 0.4)) for w in names],
        "shunter_worker_sessions": [({"worker": w}, series(lambda t, n=n: 20.0 + n)) for n, w in enumerate(names)],
        "shunter_worker_kv_tokens": [({"worker": w}, series(lambda t: 1_500_000.0)) for w in names if w != "d2"],
    }


@pytest.fixture(scope="module", name="url")
def url_(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("example"), made()) as url:
        yield url


@pytest.fixture
def here(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "a.yaml").write_text(block("yaml"))
    (tmp_path / "engine.toml").write_text(SETTINGS.format(url=url))
    save(Recording.of(Snapshot(at=BEGIN, fleet=fleet())), tmp_path / "fleet.json")
    (tmp_path / "state").mkdir(mode=0o700)
    notice = Notice(id=NoticeId("spot-1"), kind=NoticeKind.PREEMPTION, node=NodeId("b"), seen_at=BEGIN + 1800, deadline=BEGIN + 1920)
    with Journal(tmp_path / "state" / "audit.db") as journal:
        record = Record(
            at=notice.seen_at, kind=RecordKind.NOTICE, subject="b", what="preemption of b", epoch=Epoch(1), body={"notice": plain(notice)}
        )
        journal.append([record])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_quotes_what_is_printed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["backtest", *SPAN, "--timeline", "drawn.svg"]) == 0
    printed, drawn = capsys.readouterr().out, (here / "drawn.svg").read_text()
    if os.environ.get("SHUNTER_GOLDEN") == "write":
        PAGE.write_text(PAGE.read_text().replace(block("text"), printed))
        PAGE.with_suffix(".svg").write_text(drawn)
    assert block("text") == printed, "SHUNTER_GOLDEN=write writes it into the page"
    assert PAGE.with_suffix(".svg").read_text() == drawn


def test_the_same_picture_for_a_review(here: Path) -> None:
    """The pools' lines are where they are in the SVG: workers of the decode pool that run are one fewer at the end."""
    assert execute(["backtest", *SPAN, "--timeline", "drawn.png"]) == 0
    with Image.open(here / "drawn.png") as image:
        assert image.format == "PNG"
        found = image.convert("RGB")
    running = (0x37, 0x47, 0x4F)

    def highest(x: int) -> int:
        return next(y for y in range(2 * 26, 2 * 78) if found.getpixel((x, y)) == running)

    early, late = highest(2 * 400), highest(2 * 1100)
    assert early < late, "three of three, then two of three"
    assert late - early == pytest.approx(2 * 46 * (1 - 2 / 3) / 1.1, abs=3)
