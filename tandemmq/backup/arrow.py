"""Backups on what pyarrow opens by URI: s3://, gs://, hdfs://, and others that it gains."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tandemmq.backup.errors import BackupError
from tandemmq.backup.places import CHUNK_BYTES, Listed, Write


class ArrowPlace:
    """A directory of a pyarrow FileSystem. What durable means there is that store's own promise."""

    def __init__(self, uri: str, system: Any = None) -> None:
        """system: use this one, and take `uri` for the path on it. Raises BackupError."""
        self.name = uri
        try:
            from pyarrow import fs  # an extra: backups to directories do without
        except ImportError as problem:
            raise BackupError(f"{uri} needs pyarrow: pip install 'tandemmq[audit]'") from problem
        self._fs = fs
        self._system, self._root = system, uri.rstrip("/")
        if system is None:
            try:
                self._system, self._root = fs.FileSystem.from_uri(
                    uri.replace("s3a://", "s3://", 1).rstrip("/")
                )
            except (ValueError, OSError) as problem:
                raise BackupError(f"cannot open {uri}: {problem}") from problem

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def listing(self, path: str) -> list[Listed]:
        selector = self._fs.FileSelector(self._at(path), allow_not_found=True)
        found = self._system.get_file_info(selector)
        return sorted(
            Listed(each.base_name, each.type == self._fs.FileType.Directory, each.size or 0)
            for each in found
            if not each.base_name.endswith(_UNFINISHED)
        )

    def chunks(self, path: str) -> Iterator[bytes]:
        with self._system.open_input_stream(self._at(path)) as stream:
            while data := stream.read(CHUNK_BYTES):
                yield data

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[Write]:
        target = self._at(path)
        self._system.create_dir(target.rpartition("/")[0], recursive=True)
        stream = self._system.open_output_stream(target)
        try:
            yield stream.write
        except BaseException:
            with contextlib.suppress(OSError):  # the first problem is the one to tell
                stream.close()
                self._system.delete_file(target)
            raise
        stream.close()

    def publish(self, path: str, data: bytes) -> None:
        target = self._at(path)
        if self._system.get_file_info(target).type != self._fs.FileType.NotFound:
            raise FileExistsError(target)
        with self.writing(path + _UNFINISHED) as write:
            write(memoryview(data))
        self._system.move(target + _UNFINISHED, target)

    def remove(self, path: str) -> None:
        self._system.delete_dir(self._at(path))

    @contextlib.contextmanager
    def alone(self, path: str) -> Iterator[bool]:
        yield False  # an object store has no locks: who publishes second is refused


_UNFINISHED = ".unfinished"
