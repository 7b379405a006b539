/* Where counting begins and ends, said from inside the process that valgrind runs. Nothing of this acts elsewhere. */
#include <valgrind/callgrind.h>

void gate_begin(void) {
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
}

/* What was counted since gate_begin goes into a file of its own, under this name. */
void gate_end(const char* name) {
    CALLGRIND_DUMP_STATS_AT(name);
    CALLGRIND_STOP_INSTRUMENTATION;
}
