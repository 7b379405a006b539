"""A disk that fails when told to: a shim around fdatasync, fsync and pwrite of files below one directory."""

from __future__ import annotations

import shutil
from pathlib import Path

from tandemmq.chaos.processes import run

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* FAILING_DISK_RULES names a file of lines "call errno delay_ms path_part"; FAILING_DISK_ROOT the directory.
   Each call that a rule hit adds a line to RULES.hits. A pause ends with the rules that ask for it. */
static void pause_ms(int delay_ms, const char *rules, const struct stat *then) {
    struct stat now;
    while (delay_ms > 0 && !stat(rules, &now) && now.st_ino == then->st_ino
           && now.st_mtim.tv_sec == then->st_mtim.tv_sec && now.st_mtim.tv_nsec == then->st_mtim.tv_nsec) {
        int step_ms = delay_ms < 20 ? delay_ms : 20;
        struct timespec step = {0, step_ms * 1000000L};
        nanosleep(&step, NULL);
        delay_ms -= step_ms;
    }
}

static int judged(const char *call, int fd) {
    const char *rules = getenv("FAILING_DISK_RULES"), *root = getenv("FAILING_DISK_ROOT");
    char link[64], path[4096], line[512], name[64], part[256];
    int code, delay_ms, found = 0;
    FILE *file;
    ssize_t size;
    struct stat then = {0};
    if (!rules || !root || !(file = fopen(rules, "r"))) return 0;
    fstat(fileno(file), &then);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size = readlink(link, path, sizeof path - 1);
    path[size < 0 ? 0 : size] = 0;
    while (!found && fgets(line, sizeof line, file)) {
        part[0] = 0;
        if (sscanf(line, "%63s %d %d %255s", name, &code, &delay_ms, part) < 3) continue;
        found = !strcmp(name, call) && !strncmp(path, root, strlen(root)) && strstr(path, part) != NULL;
    }
    fclose(file);
    if (!found) return 0;
    snprintf(line, sizeof line, "%s.hits", rules);
    if ((file = fopen(line, "a"))) { fprintf(file, "%s %s\n", call, path); fclose(file); }
    pause_ms(delay_ms, rules, &then);
    return code;
}

#define REAL(name, ...) ((int (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))
int fdatasync(int fd) {
    int code = judged("fdatasync", fd);
    if (code) { errno = code; return -1; }
    return REAL(fdatasync, int)(fd);
}
int fsync(int fd) {
    int code = judged("fsync", fd);
    if (code) { errno = code; return -1; }
    return REAL(fsync, int)(fd);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    int code = judged("pwrite", fd);
    if (code) { errno = code; return -1; }
    return ((ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite"))(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    int code = judged("pwrite", fd);
    if (code) { errno = code; return -1; }
    return ((ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64"))(fd, data, size, at);
}
"""


def compiler() -> str | None:
    """The C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc")


def compiled(text: str, source: Path) -> Path:
    """A shim for LD_PRELOAD, beside its source. Raises ProcessBroken."""
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(text)
    library = source.with_suffix(".so")
    run(compiler() or "cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl")
    return library


class FailingDisk:
    """Rules for the calls of processes started with `env`; they hold from the moment they are written."""

    def __init__(self, directory: Path, root: Path) -> None:
        library = compiled(SOURCE, directory / "failing_disk.c")
        self.rules = directory / "rules"
        self.env = {
            "LD_PRELOAD": str(library),
            "FAILING_DISK_RULES": str(self.rules),
            "FAILING_DISK_ROOT": str(root.resolve()),
        }

    def set(self, *rules: tuple[str, int, int, str]) -> None:
        """(call, errno or 0, delay_ms, part of the path) each; none: the disk is well."""
        text = "".join(f"{call} {code} {delay_ms} {part}\n" for call, code, delay_ms, part in rules)
        fresh = self.rules.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.rules)

    def hits(self, call: str) -> int:
        """How often a rule for this call was met: a fault without a hit is no evidence."""
        path = self.rules.with_name("rules.hits")
        lines = path.read_text().splitlines() if path.exists() else []
        return sum(line.startswith(call + " ") for line in lines)
