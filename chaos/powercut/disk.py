"""A disk below one directory: what of the files there would survive a power cut right now.

The real files are in the page cache, so to say; beside them this keeps what was synced. Rules, those of ext4, XFS and
every other journal of metadata:

* A file's bytes are on the disk once it was synced. Whatever was written since is there, or not, by the sector.
* Names appear and go, and ftruncate takes effect, directory by directory, in the order of the calls or in none: see
  Names. (A length that comes from writing is there or not, like the bytes.)
* A name leads to what the disk has of that file, be it nothing (XFS after a rename without fsync).
* Where the length of a file came from writing and its bytes did not arrive, there are zeros, or what other files had in
  these blocks before (ext4 with data=writeback).

Nothing of storage is replaced: writes through descriptors, mappings and compiled code all show in the files. Only calls
that sync, or change names, are listened to.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import functools
import os
import random
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

SECTOR_BYTES: Final = 512
PAGE_BYTES: Final = 4096
CALLS: Final = (
    "open",
    "replace",
    "rename",
    "link",
    "unlink",
    "mkdir",
    "rmdir",
    "fsync",
    "fdatasync",
    "ftruncate",
)
#: calls that take a name away from a file, and at which place of their arguments
TAKES_NAME: Final = {"unlink": 0, "replace": 1, "rename": 1}
#: how many paths, before everything else, a call is given; the others are given a descriptor
PATHS: Final = {
    "open": 1,
    "replace": 2,
    "rename": 2,
    "link": 2,
    "unlink": 1,
    "mkdir": 1,
    "rmdir": 1,
}

DIRECTORY: Final = -1
STALE: Final = (
    b"\xda\xa3\x20\xa7stale blocks of a file that is gone " * 16
)  # begins as a record may

open_file: Final = os.open  # a Disk listens to these names of os, and uses the calls behind them
write_file: Final = os.write
close_file: Final = os.close
read_file: Final = os.read
make_directory: Final = os.mkdir

Entry = tuple[int, int]  # inode, and the length that ftruncate gave it or DIRECTORY
Listing = dict[str, Entry]
Change = dict[str, Entry | None]  # of names, by one call; None: the name went


class Names(enum.Enum):
    """What is known of the names in a directory that was not synced since."""

    IN_ORDER = (
        "in order"  # up to any one of the changes: a journal of metadata, as ext4's and XFS's
    )
    ANY_ORDER = "in any order"  # each change came about or not: all that POSIX promises


class _Directory:
    """Names: those on the disk, each change since, and those of the last look.

    inodes, lengths_set  by which the last look may say at once that nothing changed since
    """

    def __init__(self) -> None:
        self.durable: Listing = {}
        self.changes: list[Change] = []
        self.seen: Listing = {}
        self.inodes: dict[str, int] = {}
        self.lengths_set = 0

    def look(self, listing: Listing, *, one_call: bool) -> None:
        """Note what changed since the last look. one_call: a single call did it, so it is there as a whole."""
        if listing == self.seen:
            return
        change: Change = {name: None for name in self.seen if name not in listing}
        for name, entry in listing.items():
            if self.seen.get(name) != entry:
                change[name] = entry
        if one_call:
            self.changes.append(change)
        else:
            self.changes += [{name: entry} for name, entry in change.items()]
        self.seen = listing

    def sync(self) -> None:
        self.durable = self.seen
        self.changes = []

    def after(self, names: Names, careless: float, rng: random.Random) -> Listing:
        """The names after a power cut. careless: how likely it is that all changes came about."""
        if not self.changes or rng.random() < careless:
            return self.seen
        if names is Names.IN_ORDER:
            kept = self.changes[: rng.randrange(len(self.changes) + 1)]
        else:
            share = rng.random()
            kept = [change for change in self.changes if rng.random() < share]
        listing = dict(self.durable)
        for change in kept:
            for name, entry in change.items():
                if entry is None:
                    listing.pop(name, None)
                else:
                    listing[name] = entry
        return listing


class Moment(NamedTuple):
    """What one moment's files hold: the power may be cut there more than once."""

    base: int  # inode
    written: dict[int, bytes]


class Disk:
    """What is durable below `base`: all that is there when it is entered, and then what is synced. Listens while it is
    entered. A second one may be entered from the first one's on_call, which hears nothing meanwhile.

    on_call  called before each call that is listened to, and nowhere else: a good moment to cut the power
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self._base = str(base)
        self.on_call: Callable[[], None] | None = None
        self._synced: dict[int, bytes] = {}
        self._nameless: dict[int, bytes] = {}  # what files held when they lost a name
        self._lengths: dict[int, int] = {}
        self._lengths_set = 0  # how often
        self._directories: dict[int, _Directory] = {}
        self._calls: dict[str, Callable[..., Any]] = {}
        self._deaf = False

    def __enter__(self) -> Self:
        self.begin()
        for name in CALLS:
            self._calls[name] = getattr(os, name)
            setattr(os, name, self.hearing(name, self._calls[name]))
        return self

    def begin(self) -> None:
        """All that is there is on the disk from now on."""
        self._deaf = False
        self._look(one_call=True)
        for directory in self._directories.values():
            directory.sync()
        self._synced.update(self.moment().written)

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        for name, call in self._calls.items():
            setattr(os, name, call)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """What is called meanwhile is not heard: it is done to other files."""
        before, self._deaf = self._deaf, True
        try:
            yield
        finally:
            self._deaf = before

    def hearing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """One of CALLS as this disk listens to it."""
        taken = TAKES_NAME.get(name)

        @functools.wraps(call)
        def listening(*arguments: Any, **options: Any) -> Any:
            if self._deaf or (name == "open" and not arguments[1] & os.O_CREAT):
                return call(*arguments, **options)
            self._deaf = True
            try:
                around = self._around(name, arguments, options)
                self._look(one_call=False, at=around)
                if self.on_call is not None:
                    self.on_call()
                if taken is not None:
                    self._note_nameless(arguments[taken])
                done = call(*arguments, **options)
                if name in ("fsync", "fdatasync"):
                    self._note_sync(arguments[0])
                    return done  # no name is another for it
                if name == "ftruncate":
                    self._lengths[os.fstat(arguments[0]).st_ino] = arguments[1]
                    self._lengths_set += 1
                self._look(one_call=True, at=around)
                return done
            finally:
                self._deaf = False

        return listening

    def _note_sync(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            self._synced[found.st_ino] = _content_of(descriptor, found.st_size)
        elif found.st_ino in self._directories:
            self._directories[found.st_ino].sync()

    def _note_nameless(self, path: str | Path) -> None:
        """The name may come back, and then leads to any of the bytes that were there."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return
        if stat.S_ISREG(found.st_mode):
            self._nameless[found.st_ino] = content(str(path))

    def _around(
        self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> set[str] | None:
        """The directories whose names a call may change, or speaks for; None: any below the base.

        A look at a directory costs a server that runs on this disk more than its call does."""
        if options:
            return None  # a path may begin at a descriptor
        if name in PATHS:
            around = {os.fspath(each).rpartition("/")[0] for each in arguments[: PATHS[name]]}
        else:
            found = os.fstat(arguments[0])
            regular = stat.S_ISREG(found.st_mode)
            if regular and name != "ftruncate":
                return set()  # its bytes are vouched for, and no name is
            if found.st_nlink > 1 and regular:
                return None
            path = os.readlink(f"/proc/self/fd/{arguments[0]}")
            around = {path.rpartition("/")[0] if regular else path}
        return around if all(map(self._has, around)) else None

    def _has(self, directory: str) -> bool:
        return directory == self._base or directory.startswith(f"{self._base}/")

    def _look(self, *, one_call: bool, at: set[str] | None = None) -> None:
        """Note every directory whose names are others than at the last look: those, or all below the base."""
        for directory in self._below() if at is None else sorted(at):
            try:
                with os.scandir(directory) as entries:
                    found = list(entries)
            except FileNotFoundError:
                if at is None:
                    raise
                continue  # the call that is about to fail says so itself
            inode = os.stat(directory).st_ino
            known = self._directories.get(inode)
            if known is None:
                known = self._directories[inode] = _Directory()
            inodes = {entry.name: entry.inode() for entry in found}
            if inodes == known.inodes and known.lengths_set == self._lengths_set:
                continue
            known.inodes, known.lengths_set = inodes, self._lengths_set
            listing: Listing = {}
            for entry in found:
                length = self._lengths.get(entry.inode(), 0)
                if entry.is_dir(follow_symlinks=False):
                    length = DIRECTORY
                listing[entry.name] = (entry.inode(), length)
            known.look(listing, one_call=one_call)

    def _below(self) -> list[str]:
        """The base, and every directory in it."""
        found = [self._base]
        for directory in found:  # it grows meanwhile
            with os.scandir(directory) as entries:
                found += [each.path for each in entries if each.is_dir(follow_symlinks=False)]
        return found

    def moment(self) -> Moment:
        """All that the files hold now."""
        written = dict(self._nameless)
        for directory in self._below():
            with os.scandir(directory) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        written[entry.inode()] = content(entry.path)
        return Moment(os.stat(self.base).st_ino, written)

    def synced(self, path: Path) -> bytes:
        """What of a file is on the disk for certain."""
        return self._synced.get(os.stat(path).st_ino, b"")

    def cut_power(
        self,
        rng: random.Random,
        target: Path,
        moment: Moment | None = None,
        names: Names = Names.IN_ORDER,
    ) -> None:
        """Make below `target`, a new directory, what the disk may have if power fails now."""
        moment = moment or self.moment()
        # how much of what was not asked for came about, and how blocks look that were never written
        careless, unwritten = rng.random(), rng.choice((b"\0", b"\0", STALE))
        chosen: dict[int, bytes] = {}
        left = [(moment.base, str(target))]
        while left:
            directory, path = left.pop()
            make_directory(path)
            known = self._directories.get(directory)
            listing = known.after(names, careless, rng) if known is not None else {}
            for name, (inode, length) in listing.items():
                if length == DIRECTORY:
                    left.append((inode, f"{path}/{name}"))
                    continue
                if inode not in chosen:
                    durable = self._synced.get(inode, b"").ljust(length, b"\0")
                    fill = b"\0" if inode in self._lengths else unwritten
                    written = moment.written.get(inode, durable)
                    chosen[inode] = mixed(durable, written, rng, fill)
                _write(f"{path}/{name}", chosen[inode])


def content(path: str) -> bytes:
    """Of a whole file."""
    descriptor = open_file(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size + 1  # memory for more would be asked for each time
        pieces = []
        while piece := read_file(descriptor, size):
            pieces.append(piece)
            if len(piece) < size:
                break
        return b"".join(pieces)
    finally:
        close_file(descriptor)


def _content_of(descriptor: int, size: int) -> bytes:
    """Of a file that is open, be it only for writing."""
    try:
        data = os.pread(descriptor, size + 1, 0)
    except OSError as problem:
        if problem.errno != errno.EBADF:
            raise
        return content(f"/proc/self/fd/{descriptor}")
    return data if len(data) == size else content(f"/proc/self/fd/{descriptor}")


def _write(path: str, data: bytes) -> None:
    descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        while data:
            data = data[write_file(descriptor, data) :]
    finally:
        close_file(descriptor)


def mixed(durable: bytes, written: bytes, rng: random.Random, unwritten: bytes = b"\0") -> bytes:
    """Some of the sectors that were written since the last sync, and one length or the other.

    unwritten   what blocks that only the length covers are filled with, over and over
    """
    if durable == written:
        return written
    size = len(rng.choice((durable, written)))
    style = rng.random()
    reach = max(len(durable), len(written))
    fill = (unwritten * (reach // len(unwritten) + 1))[:reach]
    old = durable + fill[len(durable) :]
    new = written.ljust(reach, b"\0")
    if style < 0.2:
        return old[:size]
    if style < 0.35:
        return new[:size]
    unit = rng.choice((SECTOR_BYTES, PAGE_BYTES))
    share = rng.random()
    pieces = []
    edge = rng.randrange(reach + 1)
    for at in range(0, reach, unit):
        fresh = at < edge if style < 0.6 else rng.random() < share
        pieces.append((new if fresh else old)[at : at + unit])
    return b"".join(pieces)[:size]
