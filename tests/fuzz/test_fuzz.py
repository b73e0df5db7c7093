"""The fuzzer itself runs: a fixed number of inputs from a fixed seed, so that a run is the same wherever it is made."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("atheris", reason="atheris has no build for this machine")
sys.path.insert(0, str(Path(__file__).parent))
import fuzz_policies  # pyright: ignore[reportMissingImports]  (found by the line above)

ROOT = Path(__file__).resolve().parents[2]


def fuzz(folder: Path, *options: str, before: str = "") -> "subprocess.CompletedProcess[str]":
    corpus = folder / "corpus"
    corpus.mkdir()
    fuzz_policies.seeds(corpus, ROOT)
    fuzz_policies.dictionary(folder / "words", ROOT)
    target = Path(__file__).with_name("fuzz_policies.py")
    if before:
        target = folder / "broken.py"
        text = Path(__file__).with_name("fuzz_policies.py").read_text()
        target.write_text(text.replace("    _, problems = check_text(", f"    {before}\n    _, problems = check_text("))
    command = [sys.executable, str(target), "-seed=7", "-timeout=20", f"-dict={folder / 'words'}", f"-artifact_prefix={folder}/", *options]
    return subprocess.run([*command, str(corpus)], check=False, capture_output=True, text=True, cwd=folder)


@pytest.mark.timeout(300)
def test_no_input_breaks_what_reads_policies(tmp_path: Path) -> None:
    done = fuzz(tmp_path, "-runs=4000")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Done 4000 runs" in done.stderr


@pytest.mark.timeout(300)
def test_a_fault_would_be_found(tmp_path: Path) -> None:
    done = fuzz(tmp_path, "-runs=4000", before='assert data.count(b"kind") < 6')
    assert done.returncode != 0
    assert "AssertionError" in done.stdout + done.stderr
    assert list(tmp_path.glob("crash-*")), "what broke it is kept"
