"""How much a worker needs where it is restored, beyond its own size. The agents' preflight and the placement reckon alike."""

from typing import Final

DISK_MARGIN: Final = 1.2
"""An image may turn out larger than the memory that was measured before it."""
MEMORY_MARGIN: Final = 1.1
"""What restores a worker needs some memory itself."""
