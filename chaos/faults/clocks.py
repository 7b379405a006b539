"""A wall clock that jumps: a shim around clock_gettime and its kin, for processes that were started with it."""

from __future__ import annotations

import asyncio
import email.utils
import subprocess
import time
from pathlib import Path
from typing import Final

from tandemmq.chaos.faults.failing_disk import compiler
from tandemmq.chaos.faults.fault import Fault, NoEffect, NotHealed, Unsupported, until
from tandemmq.chaos.gauges import SCRAPE_S
from tandemmq.chaos.ports import LOOPBACK

SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* STEPPING_CLOCK names a file with the milliseconds by which the wall clock is ahead. */
static long ahead_ms(void) {
    const char *path = getenv("STEPPING_CLOCK");
    long found = 0;
    FILE *file;
    if (!path || !(file = fopen(path, "r"))) return 0;
    if (fscanf(file, "%ld", &found) != 1) found = 0;
    fclose(file);
    return found;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int code = syscall(SYS_clock_gettime, clock, at);
    if (!code && clock == CLOCK_REALTIME) {
        long ns = at->tv_nsec + ahead_ms() % 1000 * 1000000L;
        at->tv_sec += ahead_ms() / 1000 + ns / 1000000000L;
        at->tv_nsec = ns % 1000000000L;
    }
    return code;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    int code = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return code;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""
SEEN_S: Final = 5.0
CLOSE_S: Final = 30.0  # a busy machine answers late


class SteppingClock:
    """The wall clock of processes started with `env`. Raises Unsupported without a C compiler."""

    def __init__(self, directory: Path) -> None:
        command = compiler()
        if command is None:
            raise Unsupported("needs a C compiler, for the shim around clock_gettime (Debian: gcc)")
        directory.mkdir(parents=True, exist_ok=True)
        source, library = directory / "stepping_clock.c", directory / "stepping_clock.so"
        source.write_text(SOURCE)
        subprocess.run(
            [command, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"],
            check=True, capture_output=True,
        )  # fmt: skip
        self._ahead = directory / "ahead_ms"
        self.put_ahead(0)
        self.env = {"LD_PRELOAD": str(library), "STEPPING_CLOCK": str(self._ahead)}

    def put_ahead(self, ahead_ms: int) -> None:
        """By so much from now on."""
        new = self._ahead.with_suffix(".new")
        new.write_text(str(ahead_ms))
        new.replace(self._ahead)


class ClockJump(Fault):
    """The wall clock of one process jumps; back again when it is over. Monotonic time goes on."""

    kind = "clock"

    def __init__(self, victim: str, clock: SteppingClock, jump_s: float, http_port: int) -> None:
        super().__init__(victim)
        self._clock = clock
        self.jump_s = jump_s
        self._http_port = http_port

    def describe(self) -> str:
        way = "forward" if self.jump_s > 0 else "back"
        return f"the wall clock of {self.story.victim} jumps {way} by {abs(self.jump_s):g} s"

    async def inject(self) -> str:
        self._clock.put_ahead(int(1000 * self.jump_s))
        return await self._shows(self.jump_s, NoEffect("its metrics page still has our time"))

    async def heal(self) -> str:
        self._clock.put_ahead(0)
        return await self._shows(0.0, NotHealed("its metrics page still has another time"))

    async def _shows(self, ahead_s: float, problem: Exception) -> str:
        async def look() -> str | None:
            seen_s = await date_of(self._http_port)
            if seen_s is None or abs(seen_s - time.time() - ahead_s) > min(
                CLOSE_S, max(2.0, abs(self.jump_s) / 2)
            ):
                return None
            return f"its metrics page is dated {seen_s - time.time():+.0f} s from our time"

        return await until(look, SEEN_S, problem)


async def date_of(port: int) -> float | None:
    """Seconds since 1970 by the Date header of a web page on loopback; None without an answer."""
    try:
        async with asyncio.timeout(SCRAPE_S):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(
                    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                head = await reader.readuntil(b"\r\n\r\n")
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return None
    for line in head.decode(errors="replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "date":
            return email.utils.parsedate_to_datetime(value.strip()).timestamp()
    return None
