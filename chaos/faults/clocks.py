"""Clocks that jump or drift: a shim around clock_gettime and its kin, for processes that were started with it."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tandemmq.chaos.faults.failing_disk import compiled, compiler
from tandemmq.chaos.faults.fault import Fault, NoEffect, NotHealed, Unsupported, until
from tandemmq.chaos.gauges import page_of
from tandemmq.chaos.processes import ProcessBroken

SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* STEPPING_CLOCK names a file: "ahead_ms ppm since_ns gained_ns". The wall clock is ahead_ms ahead; since since_ns of
   CLOCK_MONOTONIC all clocks run faster by ppm millionths, and before that they had gained gained_ns. Under a drift
   the first look that shows 10 ms of it is written to the file's name with ".seen". */
static struct { long ahead_ms; double ppm; long long since_ns, gained_ns, looked_ns, told_ns; } now_is;

static long long true_ns(clockid_t clock) {
    struct timespec at;
    syscall(SYS_clock_gettime, clock, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static long long gained(long long monotonic_ns) {
    const char *path = getenv("STEPPING_CLOCK");
    FILE *file;
    if (path && monotonic_ns - now_is.looked_ns > 5000000LL && (file = fopen(path, "r"))) {
        long ahead_ms = 0;
        double ppm = 0;
        long long since_ns = 0, gained_ns = 0;
        if (fscanf(file, "%ld %lf %lld %lld", &ahead_ms, &ppm, &since_ns, &gained_ns) >= 1) {
            now_is.ahead_ms = ahead_ms;
            now_is.ppm = ppm;
            now_is.since_ns = since_ns;
            now_is.gained_ns = gained_ns;
        }
        fclose(file);
        now_is.looked_ns = monotonic_ns;
    }
    long long drift = now_is.ppm ? (long long)((monotonic_ns - now_is.since_ns) * now_is.ppm / 1e6) : 0;
    if ((drift > 10000000LL || drift < -10000000LL) && now_is.told_ns != now_is.since_ns && path) {
        char name[4096];
        snprintf(name, sizeof name, "%s.seen", path);
        now_is.told_ns = now_is.since_ns;
        if ((file = fopen(name, "a"))) { fprintf(file, "%lld %lld\n", now_is.since_ns, drift); fclose(file); }
    }
    return now_is.gained_ns + drift;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int code = syscall(SYS_clock_gettime, clock, at);
    if (code || !(clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC || clock == CLOCK_BOOTTIME)) return code;
    long long ns = at->tv_sec * 1000000000LL + at->tv_nsec + gained(true_ns(CLOCK_MONOTONIC));
    if (clock == CLOCK_REALTIME) ns += now_is.ahead_ms * 1000000LL;
    at->tv_sec = ns / 1000000000LL;
    at->tv_nsec = ns % 1000000000LL;
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
DRIFT_S: Final = 20.0  # at 1000 millionths 10 ms take ten of them
CLOSE_S: Final = 30.0  # a busy machine answers late


class SteppingClock:
    """The wall clock of processes started with `env`. Raises Unsupported without a C compiler."""

    def __init__(self, directory: Path) -> None:
        if compiler() is None:
            raise Unsupported("needs a C compiler, for the shim around clock_gettime (Debian: gcc)")
        library = compiled(SOURCE, directory / "stepping_clock.c")
        self._ahead = directory / "ahead_ms"
        self._ahead_ms = 0
        self._ppm, self._since_ns, self._gained_ns = 0, 0, 0
        self._write()
        self.env = {"LD_PRELOAD": str(library), "STEPPING_CLOCK": str(self._ahead)}

    def put_ahead(self, ahead_ms: int) -> None:
        """The wall clock, by so much from now on."""
        self._ahead_ms = ahead_ms
        self._write()

    def drift(self, ppm: int) -> int:
        """All clocks, faster by so many millionths from now on; what they have gained stays: monotonic time does not
        go back. CLOCK_MONOTONIC ns of the change, by which seen_drift_ns() knows it."""
        now_ns = time.monotonic_ns()
        if self._ppm:
            self._gained_ns += (now_ns - self._since_ns) * self._ppm // 1_000_000
        self._ppm, self._since_ns = ppm, now_ns
        self._write()
        return now_ns

    def seen_drift_ns(self, since_ns: int) -> int | None:
        """By how much the process found its clocks off since a change; None: it has not looked, or not yet enough."""
        seen = self._ahead.with_name(self._ahead.name + ".seen")
        for line in seen.read_text().splitlines() if seen.exists() else ():
            began_ns, drift_ns = map(int, line.split())
            if began_ns == since_ns:
                return drift_ns
        return None

    @property
    def gained_ms(self) -> float:
        """By drifts that are over."""
        return self._gained_ns / 1e6

    def _write(self) -> None:
        new = self._ahead.with_suffix(".new")
        new.write_text(f"{self._ahead_ms} {self._ppm} {self._since_ns} {self._gained_ns}")
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


class ClockDrift(Fault):
    """All clocks of one process run fast or slow, as a bad oscillator's; afterwards at the right pace again."""

    kind = "drift"

    def __init__(self, victim: str, clock: SteppingClock, ppm: int) -> None:
        super().__init__(victim)
        assert ppm, "a clock that keeps its pace is no fault"
        self._clock = clock
        self.ppm = ppm

    def describe(self) -> str:
        how = "fast" if self.ppm > 0 else "slow"
        return f"all clocks of {self.story.victim} run {how} by {abs(self.ppm) / 10_000:g} %"

    def told(self) -> Mapping[str, object]:
        return {"ppm": self.ppm}

    async def inject(self) -> str:
        since_ns = self._clock.drift(self.ppm)

        async def seen() -> str | None:
            drift_ns = self._clock.seen_drift_ns(since_ns)
            if drift_ns is None:
                return None
            return f"it asked the time and was {drift_ns / 1e6:+.0f} ms off"

        nobody = NoEffect(f"{self.story.victim} was not seen to be off in {DRIFT_S:g} s")
        return await until(seen, DRIFT_S, nobody)

    async def heal(self) -> str:
        self._clock.drift(0)
        return f"they keep our pace again, {self._clock.gained_ms:+.0f} ms from where they were"


async def date_of(port: int) -> float | None:
    """Seconds since 1970 by the Date header of a metrics page on loopback; None without an answer."""
    try:
        head, _ = await page_of(port)
    except ProcessBroken:
        return None
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "date":
            return email.utils.parsedate_to_datetime(value.strip()).timestamp()
    return None
