"""Who gives a command."""

import os
import pwd
import socket


def who() -> str:
    """The user by the system's word, not the environment's, and the host."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = f"uid {os.getuid()}"
    return f"{name}@{socket.gethostname()}"
