/* The processes on a node's cards: those that the script names, and those that registered themselves. Included once
 * after control.h, by a stub that defines has_uuid, as declared below. Lines that are understood here:
 *
 *   process I PID BYTES [PERCENT [SLICE [COUNT]]]   a process on the card in slot I: its memory, its part of the
 *                               compute (-1: unknown), the slice that it uses (-1: none). With COUNT so many
 *                               processes, whose numbers follow PID
 *   registry DIRECTORY          where processes register; without this line <control file>.processes
 *
 * A process registers by a file in that directory, which is named by its pid or locked by it (registered_pid.h) and
 * has, with blanks between them, the UUID of a card or of a slice, bytes, and percent; - for a figure that is unknown.
 * It is on the card for as long as the file is there and, without a pid for a name, locked.
 */
#include <dirent.h>
#include "registered_pid.h"

enum { SCRIPTED = 2048, LISTED = 16384 };
typedef struct { unsigned slot, pid, count; unsigned long long memory; float percent; int slice; } Process;

static struct { char registry[4001]; unsigned count; Process scripted[SCRIPTED]; } known;
static Process listed[LISTED];
static unsigned listed_count;

/* Whether the card, or a slice on it, has this UUID; *slice becomes the number of the slice. */
static int has_uuid(unsigned slot, const char *uuid, int *slice);

static void reset_processes(void)
{
    memset(&known, 0, sizeof known);
}

static int parse_process(const char *line)
{
    Process it = {.percent = -1, .slice = NOBODY, .count = 1};
    if (sscanf(line, "registry %4000[^\n]", known.registry) == 1)
        return 1;
    if (sscanf(line, "process %u %u %llu %f %d %u", &it.slot, &it.pid, &it.memory, &it.percent, &it.slice, &it.count) < 3)
        return 0;
    if (known.count == SCRIPTED)
        fprintf(stderr, STUB " stub: more than %d processes\n", SCRIPTED);
    else
        known.scripted[known.count++] = it;
    return 1;
}

static void list_process(const Process *it)
{
    for (unsigned more = 0; more < it->count && listed_count < LISTED; more++) {
        listed[listed_count] = *it;
        listed[listed_count++].pid += more;
    }
}

static void list_registered(const char *directory, const char *name, unsigned slots)
{
    char path[8400], uuid[96], memory[32];
    Process it = {.percent = -1, .count = 1};
    snprintf(path, sizeof path, "%s/%.255s", directory, name);
    it.pid = registered_pid(path, name);
    FILE *file = it.pid ? fopen(path, "re") : NULL;
    if (file == NULL)
        return;
    int found = fscanf(file, "%95s %31s %f", uuid, memory, &it.percent);
    it.memory = found < 2 || memory[0] == '-' ? ~0ULL : strtoull(memory, NULL, 10);
    if (found >= 2)
        for (it.slot = 0; it.slot < slots; it.slot++) {
            it.slice = NOBODY;
            if (has_uuid(it.slot, uuid, &it.slice))
                list_process(&it);
        }
    fclose(file);
}

/* Fill `listed` with all processes now. Called with the mutex held. */
__attribute__((unused)) static void list_processes(unsigned slots)
{
    char beside[PATH_ROOM];
    const char *directory = known.registry[0] ? known.registry : path_with(".processes", beside);
    listed_count = 0;
    for (unsigned i = 0; i < known.count; i++)
        list_process(&known.scripted[i]);
    DIR *registry = opendir(directory);
    if (registry == NULL)
        return;
    for (struct dirent *it = readdir(registry); it != NULL; it = readdir(registry))
        list_registered(directory, it->d_name, slots);
    closedir(registry);
}
