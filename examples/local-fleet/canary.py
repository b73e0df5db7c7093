"""Does CRIU really work here? Dump and restore a small process with a socket; exit 0 if it lives on, 1 with the reason if not.

canary.py CRIU      (as root; `criu check` can't tell: it says yes on kernels where no socket can be dumped)
"""

import sys
import tempfile
from pathlib import Path

from shunter.model.errors import ShunterError
from shunter_agent.runtime.criu import CriuRuntime
from shunter_agent.runtime.network import Uplink


def main(criu: Path) -> int:
    """See the module."""
    try:
        with tempfile.TemporaryDirectory(prefix="shunter-canary-") as folder:
            problems = CriuRuntime(criu, Uplink(bridge="", prefix=24)).canary(Path(folder) / "image")
    except ShunterError as error:
        problems = (error.problem,)
    for problem in problems:
        print(f"{problem.code} {problem.what}. {problem.remedy}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
