/* Latency, CPU time of processes and of the machine. */
#ifndef BENCH_MEASURING_H
#define BENCH_MEASURING_H
#include "blaster.h"

typedef struct { uint64_t on_cpu_ns, wait_ns, tasks; } Schedule;
typedef struct { uint64_t busy_ns, stolen_ns; } Machine;

static uint64_t histogram[64 * 64];

/* ---- latency: buckets of 1/64 of a power of two, nanoseconds ---- */

static void record_latency(uint64_t ns) {
    uint32_t shift = ns < 64 ? 0 : (uint32_t)(63 - __builtin_clzll(ns)) - 5;
    histogram[shift * 64 + (ns >> shift)]++;    /* (ns >> shift) is 32..63 when shift > 0 */
}

static double latency_us(double quantile) {
    uint64_t total = 0, seen = 0;
    for (int i = 0; i < 64 * 64; i++) total += histogram[i];
    if (!total) return 0;
    uint64_t wanted = (uint64_t)(quantile * (double)(total - 1));
    for (int i = 0; i < 64 * 64; i++) {
        seen += histogram[i];
        if (seen > wanted) return (double)(((uint64_t)(i % 64) << (i / 64)) + ((1ULL << (i / 64)) >> 1)) / 1000;
    }
    return 0;
}

/* ---- CPU time: /proc/PID/task/N/schedstat, because /proc/PID/schedstat is one thread's ---- */

static Schedule schedule_of(int pid) {
    Schedule sum = { 0, 0, 0 };
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *directory = opendir(path);
    if (!directory) refuse("process %d is gone", pid);
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (entry->d_name[0] == '.') continue;
        char file[384];
        unsigned long long on_cpu, wait;
        snprintf(file, sizeof file, "/proc/%d/task/%s/schedstat", pid, entry->d_name);
        FILE *stream = fopen(file, "r");
        if (!stream) continue;                  /* the thread ended between readdir and open */
        if (fscanf(stream, "%llu %llu", &on_cpu, &wait) == 2) {
            sum.on_cpu_ns += on_cpu;
            sum.wait_ns += wait;
            sum.tasks++;
        }
        fclose(stream);
    }
    closedir(directory);
    return sum;
}
/* All cores: busy time without what the hypervisor took, and what it took. Ticks of 10 ms. */
static Machine machine_now(void) {
    unsigned long long user, nice, system, idle, iowait, irq, softirq, steal;
    FILE *stream = fopen("/proc/stat", "r");
    if (!stream || fscanf(stream, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &iowait,
                          &irq, &softirq, &steal) != 8)
        refuse("cannot read /proc/stat");
    fclose(stream);
    uint64_t tick_ns = NS / (uint64_t)sysconf(_SC_CLK_TCK);
    return (Machine){ (user + nice + system + irq + softirq) * tick_ns, steal * tick_ns };
}

#endif
