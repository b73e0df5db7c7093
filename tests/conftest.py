"""Shared rules of all tests: what needs a lab says so, and is skipped outside one with the reason."""

import os
import shutil
import signal
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

CRIU = Path(os.environ.get("SHUNTER_CRIU") or shutil.which("criu", path="/opt/shunter/criu/bin") or "/opt/shunter/criu/bin/criu")


# how long an example takes says more of what else the machine does than of the code: figures are for tests/bench
settings.register_profile("shunter", deadline=None)
settings.load_profile("shunter")


def pytest_configure() -> None:
    """A shell without job control has what it starts in the background ignore Ctrl-C, and so would each program that a test starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    in_lab = os.environ.get("SHUNTER_LAB") == "1"
    for item in items:
        if item.get_closest_marker("lab") and not in_lab:
            item.add_marker(pytest.mark.skip(reason="runs in a lab of its own: scripts/lab (needs root)"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test whose class counts what it has `tried` has that told at the end, also by another process' terminal."""
    report = yield
    tried: Counter[str] | None = getattr(getattr(item, "cls", None), "tried", None)
    if call.when == "call" and tried:
        report.user_properties.append(("tried", ", ".join(f"{count:,} {what}" for what, count in tried.most_common())))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many points were tried, by tests that try more of them than they have cases."""
    for report in (one for reports in terminalreporter.stats.values() for one in reports if isinstance(one, pytest.TestReport)):
        for name, told in report.user_properties:
            if name == "tried":
                terminalreporter.write_line(f"{report.nodeid} tried {told}")


@pytest.fixture(scope="session")
def criu() -> Path:
    """A CRIU that works on this kernel, installed by scripts/install-criu."""
    if not CRIU.exists():
        pytest.skip(f"no CRIU at {CRIU}: run scripts/install-criu as root")
    return CRIU
