"""Stock Java clients and servers for what compares ours with them: the demo, campaigns, compatibility tests.

Needs a JDK and Maven where it is used, and nothing of this project.
"""

from tandemmq.java.driver import (
    SERIALIZATIONS,
    Driver,
    DriverError,
    body_of,
    encoded,
    sha_of,
    text_of,
)
from tandemmq.java.stock import (
    NEWEST,
    VERSIONS,
    JavaFailed,
    classpath,
    java_command,
    java_env,
    java_missing,
)

__all__ = [
    "NEWEST",
    "SERIALIZATIONS",
    "VERSIONS",
    "Driver",
    "DriverError",
    "JavaFailed",
    "body_of",
    "classpath",
    "encoded",
    "java_command",
    "java_env",
    "java_missing",
    "sha_of",
    "text_of",
]
