"""An agent whose wall clock can be set: `stepped_agent.py CONFIG AHEAD`. The file AHEAD says by how many seconds."""

import asyncio
import os
import sys
import time
from pathlib import Path

from shunter_agent.agent import serve
from shunter_agent.settings import load


def main() -> None:
    """Until SIGTERM."""
    descriptor = os.open(sys.argv[2], os.O_RDONLY)

    def clock() -> float:
        return time.time() + float(os.pread(descriptor, 32, 0) or b"0")

    asyncio.run(serve(load(Path(sys.argv[1])), clock=clock))


if __name__ == "__main__":
    main()
