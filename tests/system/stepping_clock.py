"""A wall clock that steps when told to: a shim around clock_gettime and its kin, for real processes."""

from __future__ import annotations

import subprocess
from pathlib import Path

from failing_disk import compiler

SOURCE = r"""
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


class SteppingClock:
    """The wall clock of processes started with `env`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        source, library = directory / "stepping_clock.c", directory / "stepping_clock.so"
        source.write_text(SOURCE)
        command = compiler()
        assert command is not None
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
