"""What can go wrong in a store. cluster/broker/replies.py maps each class to a response code."""

from __future__ import annotations


class StorageError(Exception):
    """Root of everything the storage package raises on purpose."""


class NotAStore(StorageError):
    """The directory does not hold a store, or holds one with other file sizes. The text names the file."""


class StoreLocked(StorageError):
    """Another process (ours or RocketMQ's) holds the store's lock file."""


class CorruptRecord(StorageError):
    """A record is whole but its bytes are wrong: bad checksum, or lengths that do not add up.

    position  where it starts in the bytes that were read
    size      what its size field claims, if that many bytes are there (a reader may step over); or 0
    """

    def __init__(self, text: str, position: int = 0, size: int = 0) -> None:
        super().__init__(text)
        self.position = position
        self.size = size


class CorruptFile(StorageError):
    """A derived or small file cannot be read, nor can its previous generation."""


class MessageIllegal(StorageError):
    """The caller's message breaks a limit; the text names the value and the limit."""


class BatchMalformed(MessageIllegal):
    """A batch's body does not fall into messages."""


class MessageTooLarge(MessageIllegal):
    """Body, record or batch above maxMessageSize."""


class PropertiesTooLarge(MessageIllegal):
    """Encoded properties above 32,767 bytes."""


class StoreNotWritable(StorageError):
    """Circumstances refuse the write: closed, disk full, a derived file failed, fenced. The text names which."""


class StoreIsFull(StoreNotWritable):
    """Disk usage above diskSpaceWarningLevelRatio, or no space for the next segment."""


class SegmentUnavailable(StorageError):
    """The next CommitLog file could not be made."""


class FlushFailed(StorageError):
    """fdatasync or a write to the log reported an error. Final: what the disk has is not known. The process exits."""
