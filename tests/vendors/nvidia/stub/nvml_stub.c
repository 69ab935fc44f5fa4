/* A libnvidia-ml.so.1 for machines without NVIDIA hardware: NVML's ABI, scripted through a text file.
 *
 * The environment variable XPU_NVML_STUB names the control file; it is read again whenever it was replaced.
 * One instruction per line; a card is named by its slot, which never changes, a MIG device by its number there:
 *
 *   driver TEXT                 the driver's version; 580.65.06 without this line
 *   cards N                     slots 0..N-1 hold a card (at most 64; 8 without this line)
 *   remove I                    slot I is empty: indices of later cards move down
 *   lost I                      the card is still counted, every call on it answers GPU_IS_LOST
 *   minor I M                   the card has minor number M
 *   name I TEXT                 its product name
 *   busid I TEXT                its PCI bus id, or what is none
 *   pciid I ID SUBSYSTEM        its PCI ids (hexadecimal)
 *   memory I BYTES              its memory
 *   capability I MAJOR MINOR    its CUDA compute capability
 *   used I[:J] RESERVED USED    bytes of memory that the driver keeps, and that are in use besides those that processes
 *                               claim by a file; of the card, or of its MIG device J
 *   rates I GPU MEMORY          percent of time in which kernels ran, and in which memory was read or written
 *   video I ENCODER DECODER     percent
 *   power I MILLIWATTS          without this line, and the next three, the card cannot tell
 *   temperature I CELSIUS [MEMORY]
 *   clocks I GRAPHICS SM MEMORY VIDEO   MHz
 *   ecc I CORRECTED UNCORRECTED   memory errors since the driver was loaded
 *   gpm I[:J] SM TENSOR         percent of the card's units, or of those in the GPU instance of its MIG device J
 *   process I[:J] LISTS PID MEMORY   a process; LISTS are letters of the lists that have it, c compute, g graphics,
 *                               m MPS compute; MEMORY in bytes, - for one that the driver cannot tell
 *   sample I PID PERCENT [MICROSECONDS]   utilization of a process, at a Unix time; now without it
 *   energy I MJ                 the energy that it used since the driver was loaded; without this line it cannot tell
 *   fabric I STATE STATUS CLIQUE UUID   its place in a GPU fabric; the UUID as 32 hexadecimal digits
 *   recovery I ACTION           what field 230 says of the card
 *   norecovery                  a driver that does not know field 230
 *   eventtypes MASK             what the driver can report (hexadecimal)
 *   level I J LEVEL             the common ancestor of two cards, as NVML numbers it
 *   nvlinks I J COUNT           active NVLinks between two cards; such a line takes away the recorded links
 *   nvswitch I COUNT            active NVLinks of a card to an NVSwitch; the same
 *   nonvlink                    cards without NVLink
 *   nomig I                     the card does not know MIG
 *   migmode I MODE              MIG mode, 0 or 1
 *   mig I J PROFILE GI CI SLICES MIB SERIAL [SM COPY DEC ENC JPEG OFA]
 *                               MIG device J: NVML's number of its GPU instance profile, its places, the slices
 *                               of its compute instance, its memory, a number in its UUID, and what it has
 *   event SEQ I TYPE DATA [GI CI]   an event, once for every event set made before the line came
 *   fail SYMBOL CODE [I [J]]    the call answers CODE (only for the card in slot I, or for its MIG device J)
 *   hang SYMBOL                 the call does not return while the line is there
 *   segv SYMBOL                 the call kills the process
 *   latency SYMBOL USEC         the call takes so long
 *   trace                       every call appends its name to <control file>.trace
 *
 * Processes also register themselves, by a file in the directory <control file>.processes, which is named by the pid
 * or locked by the process (registered_pid.h). Each of its lines is UUID MEMORY PERCENT: the card or MIG device, the bytes that the process has there, and its
 * utilization now; - for what the driver cannot tell. Such a process is in the compute list for as long as it lives.
 * Its memory is in use on the device, and its utilization the card's.
 *
 * The hardware is that of the recordings in ../recorded_allocations.json; how a driver answers what is asked of a
 * card in an odd way, and with which code, is in ../recorded_driver.json, as a real one did.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "../../stub/registered_pid.h"

#define API __attribute__((visibility("default")))

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15, VERSION_MISMATCH = 25, UNKNOWN = 999
};
enum { SLOTS = 64, INSTANCES = 7, RULES = 64, EVENTS = 1024, LANES = 18, PROCESSES = 1 << 15, GPM_SAMPLES = 256 };
enum { WHOLE = -1 };
/* What a driver keeps of processes for nvmlDeviceGetProcessUtilization. */
enum { SAMPLES = 72 };
enum { SWITCH = SLOTS, NOBODY };
enum { FI_MEMORY_TEMP = 82, FI_RECOVERY_ACTION = 230, VALUE_UNSIGNED_INT = 1 };
enum { COMPUTE = 1, GRAPHICS = 2, MPS = 4 };
enum { GPM_SM = 2, GPM_TENSOR = 5, GPM_METRICS = 477 };
enum { UNTOLD = -1 };

typedef int Ret;
typedef unsigned int u32;
typedef unsigned long long u64;

/* What all handles point to: a card, or with a number a MIG device. Handles of instances are their MIG device's. */
typedef struct { u32 slot; int number; } Gpu;
typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; } PciInfo;
typedef struct { u64 total, free, used; } Memory;
typedef struct { u32 version; u64 total, reserved, free, used; } MemoryV2;
typedef struct { Gpu *device; u64 type, data; u32 gi, ci; } EventData;
typedef struct { u32 field, scope; int64_t timestamp, latency; u32 type; int ret;
                 union { double d; u32 ui; u64 ull; int64_t ll; } value; } FieldValue;
typedef struct { u32 gpu, memory; } Utilization;
typedef struct { u32 pid; u64 memory; u32 gi, ci; } ProcessInfo;
typedef struct { u32 pid; u64 time; u32 sm, mem, enc, dec; } ProcessSample;
typedef struct { u32 version, supported; } GpmSupport;
typedef struct { u32 id; int ret; double value; const char *names[3]; } GpmMetric;
typedef struct { int used; u64 taken; const void *device; double sm, tensor; } GpmSample;
typedef struct { u32 version, count; GpmSample *before, *after; GpmMetric metrics[GPM_METRICS]; } GpmMetricsGet;
typedef struct { u32 sm, copy, decoder, encoder, jpeg, ofa, gi_slices, ci_slices; u64 memory_mb; } Attributes;
typedef struct { u32 start, size; } Placement;
typedef struct { Gpu *device; u32 id, profile; Placement placement; } GiInfo;
typedef struct { Gpu *device, *gi; u32 id, profile; Placement placement; } CiInfo;
typedef struct { u32 id, p2p, slices, instances, sm, copy, decoder, encoder, jpeg, ofa; u64 memory_mb; } GiProfile;
typedef struct { u32 version, id, p2p, slices, instances, sm, copy, decoder, encoder, jpeg, ofa; u64 memory_mb;
                 char name[96]; } GiProfileV2;
typedef struct { u32 id, slices, instances, sm, copy, decoder, encoder, jpeg, ofa; } CiProfile;
typedef struct { u32 version; CiProfile profile; char name[96]; } CiProfileV2;
typedef struct { uint8_t uuid[16]; int status; u32 clique; uint8_t state; } FabricInfo;
typedef struct { u32 version; FabricInfo info; u32 health; } FabricInfoV2;
typedef struct { u32 version; FabricInfo info; u32 health; uint8_t summary; } FabricInfoV3;

_Static_assert(sizeof(PciInfo) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(Memory) == 24, "nvmlMemory_t");
_Static_assert(sizeof(MemoryV2) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(EventData) == 32, "nvmlEventData_t");
_Static_assert(sizeof(FieldValue) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(ProcessInfo) == 24, "nvmlProcessInfo_t");
_Static_assert(sizeof(ProcessSample) == 32, "nvmlProcessUtilizationSample_t");
_Static_assert(sizeof(GpmMetric) == 40, "nvmlGpmMetric_t");
_Static_assert(offsetof(GpmMetricsGet, metrics) == 24, "nvmlGpmMetricsGet_t");
_Static_assert(sizeof(Attributes) == 40 && offsetof(Attributes, memory_mb) == 32, "nvmlDeviceAttributes_t");
_Static_assert(sizeof(GiInfo) == 24 && offsetof(GiInfo, placement) == 16, "nvmlGpuInstanceInfo_t");
_Static_assert(sizeof(CiInfo) == 32 && offsetof(CiInfo, profile) == 20, "nvmlComputeInstanceInfo_t");
_Static_assert(sizeof(GiProfile) == 48 && offsetof(GiProfile, memory_mb) == 40, "nvmlGpuInstanceProfileInfo_t");
_Static_assert(sizeof(GiProfileV2) == 152, "nvmlGpuInstanceProfileInfo_v2_t");
_Static_assert(sizeof(CiProfile) == 36, "nvmlComputeInstanceProfileInfo_t");
_Static_assert(sizeof(CiProfileV2) == 136, "nvmlComputeInstanceProfileInfo_v2_t");
_Static_assert(sizeof(FabricInfo) == 28 && offsetof(FabricInfo, state) == 24, "nvmlGpuFabricInfo_t");
_Static_assert(sizeof(FabricInfoV2) == 36 && offsetof(FabricInfoV2, health) == 32, "nvmlGpuFabricInfo_v2_t");
_Static_assert(sizeof(FabricInfoV3) == 40 && offsetof(FabricInfoV3, summary) == 36, "nvmlGpuFabricInfo_v3_t");

enum Kind { FAIL, HANG, SEGV, LATENCY };
typedef struct { enum Kind kind; char symbol[64]; long value; int slot, number; } Rule;
typedef struct { u64 seq, type, data; u32 slot, gi, ci; } Event;
typedef struct { u32 profile, gi, ci, serial; Attributes has; } Instance;
/* `percent` is the utilization of one that registered itself. */
typedef struct { u32 slot; int number; u32 lists, pid; u64 memory; int percent; } Process;
typedef struct { u32 slot, pid, percent; u64 time; } Sampled;
typedef struct { u64 reserved, used; int has_gpm; double sm, tensor; } Load;
typedef struct { u32 gpu, memory, encoder, decoder; int power, celsius, memory_celsius, clocks[4];
                 int64_t ecc[2]; } Figures;

static struct {
    char driver[32];
    u32 cards, minor[SLOTS], recovery[SLOTS], pci_id[SLOTS], subsystem[SLOTS];
    int removed[SLOTS], lost[SLOTS];
    char name[SLOTS][64];
    char bus_id[SLOTS][32];
    u64 memory[SLOTS], energy[SLOTS];
    int has_energy[SLOTS];
    int capability[SLOTS][2];
    int has_fabric[SLOTS];
    FabricInfo fabric[SLOTS];
    int level[SLOTS][SLOTS];
    u32 links[SLOTS][SLOTS + 1];
    int has_links;
    int no_mig[SLOTS];
    u32 mig_mode[SLOTS];
    Instance instances[SLOTS][INSTANCES];
    Load load[SLOTS][INSTANCES + 1];
    Figures figures[SLOTS];
    u32 process_count, sample_count;
    int no_recovery, no_nvlink, trace;
    u64 event_types;
    Rule rules[RULES];
    int rule_count;
    Event events[EVENTS];
    int event_count;
} script;

typedef struct { int used, news; u64 taken, floor[SLOTS], mask[SLOTS]; } EventSet;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct stat seen;
static int loaded;
static int sessions;
static Gpu gpus[SLOTS], migs[SLOTS][INSTANCES];
static EventSet sets[16];
/* Those of the script, and behind them those that registered themselves. */
static Process processes[PROCESSES];
static Sampled sampled[PROCESSES];
static GpmSample gpm_samples[GPM_SAMPLES];

/* ---- the control file ---- */

static const char *control_path(void)
{
    return getenv("XPU_NVML_STUB");
}

static void reset_script(void)
{
    memset(&script, 0, sizeof script);
    strcpy(script.driver, "580.65.06");
    script.cards = 8;
    script.event_types = 0xC00F;
    for (u32 i = 0; i < SLOTS; i++) {
        gpus[i] = (Gpu){i, WHOLE};
        for (int j = 0; j < INSTANCES; j++)
            migs[i][j] = (Gpu){i, j};
        script.minor[i] = i;
        script.pci_id[i] = 0x233010de;
        script.subsystem[i] = 0x16c110de;
        strcpy(script.name[i], "NVIDIA H100 80GB HBM3");
        script.memory[i] = 85520809984ULL;
        script.figures[i] = (Figures){.power = UNTOLD, .celsius = UNTOLD, .memory_celsius = UNTOLD,
                                      .clocks = {UNTOLD, UNTOLD, UNTOLD, UNTOLD}, .ecc = {UNTOLD, UNTOLD}};
        script.capability[i][0] = 9;
        for (u32 j = 0; j < SLOTS; j++)
            script.level[i][j] = i / 2 == j / 2 ? 10 : i / 4 == j / 4 ? 40 : 50;
    }
}

static void add_rule(enum Kind kind, const char *symbol, long value, int slot, int number)
{
    if (script.rule_count == RULES)
        return;
    Rule *rule = &script.rules[script.rule_count++];
    rule->kind = kind;
    rule->value = value;
    rule->slot = slot;
    rule->number = number;
    snprintf(rule->symbol, sizeof rule->symbol, "%s", symbol);
}

static int parse_mig(const char *line)
{
    Instance it = {0};
    Attributes *has = &it.has;
    u32 slot, number;
    int found = sscanf(line, "mig %u %u %u %u %u %u %llu %u %u %u %u %u %u %u", &slot, &number, &it.profile, &it.gi,
                       &it.ci, &has->ci_slices, &has->memory_mb, &it.serial, &has->sm, &has->copy, &has->decoder,
                       &has->encoder, &has->jpeg, &has->ofa);
    if (found < 8 || slot >= SLOTS || number >= INSTANCES)
        return 0;
    script.instances[slot][number] = it;
    return 1;
}

static int parse_fabric(const char *line)
{
    FabricInfo it = {0};
    u32 slot, state;
    char uuid[33];
    if (sscanf(line, "fabric %u %u %d %u %32s", &slot, &state, &it.status, &it.clique, uuid) != 5 || slot >= SLOTS)
        return 0;
    for (int i = 0; i < 16; i++)
        sscanf(uuid + 2 * i, "%2hhx", &it.uuid[i]);
    it.state = (uint8_t)state;
    script.fabric[slot] = it;
    return script.has_fabric[slot] = 1;
}

/* The device after a line's verb, I or I:J, and what follows it; NULL where the verb is another one. */
static const char *parse_device(const char *line, const char *verb, u32 *slot, int *number)
{
    size_t length = strlen(verb);
    int end = 0;
    *number = WHOLE;
    if (strncmp(line, verb, length) != 0 || sscanf(line + length, " %u%n", slot, &end) != 1 || *slot >= SLOTS)
        return NULL;
    line += length + (size_t)end;
    if (sscanf(line, ":%d%n", number, &end) == 1)
        line += end;
    return *number >= WHOLE && *number < INSTANCES ? line : NULL;
}

static Load *load_of(u32 slot, int number)
{
    return &script.load[slot][number + 1];
}

/* A number of bytes; - is what NVML says where they are not available. */
static u64 parse_memory(const char *text)
{
    return strcmp(text, "-") == 0 ? ~0ULL : strtoull(text, NULL, 10);
}

static void add_process(Process it)
{
    if (script.process_count < PROCESSES)
        processes[script.process_count++] = it;
}

static int parse_process(const char *line)
{
    Process it = {0};
    Sampled one = {0};
    char lists[8], memory[32];
    const char *rest = parse_device(line, "process ", &it.slot, &it.number);
    if (rest != NULL && sscanf(rest, " %7s %u %31s", lists, &it.pid, memory) == 3) {
        it.lists = strchr(lists, 'c') ? COMPUTE : 0;
        it.lists |= strchr(lists, 'g') ? GRAPHICS : 0;
        it.lists |= strchr(lists, 'm') ? MPS : 0;
        it.memory = parse_memory(memory);
        add_process(it);
        return 1;
    }
    int found = sscanf(line, "sample %u %u %u %llu", &one.slot, &one.pid, &one.percent, &one.time);
    if (found < 3 || script.sample_count == PROCESSES)
        return 0;
    sampled[script.sample_count++] = one;
    return 1;
}

static int parse_load(const char *line)
{
    u32 slot;
    int number;
    Load load;
    const char *rest = parse_device(line, "used ", &slot, &number);
    if (rest != NULL && sscanf(rest, " %llu %llu", &load.reserved, &load.used) == 2) {
        load_of(slot, number)->reserved = load.reserved;
        load_of(slot, number)->used = load.used;
        return 1;
    }
    rest = parse_device(line, "gpm ", &slot, &number);
    if (rest == NULL || sscanf(rest, " %lf %lf", &load.sm, &load.tensor) != 2)
        return 0;
    load_of(slot, number)->has_gpm = 1;
    load_of(slot, number)->sm = load.sm;
    load_of(slot, number)->tensor = load.tensor;
    return 1;
}

static int parse_figures(const char *line)
{
    u32 slot;
    int number;
    char verb[16];
    if (sscanf(line, "%15s %u", verb, &slot) != 2 || slot >= SLOTS)
        return 0;
    const char *rest = parse_device(line, verb, &slot, &number);
    Figures *it = &script.figures[slot];
    long long corrected, uncorrected;
    if (strcmp(verb, "rates") == 0)
        return sscanf(rest, " %u %u", &it->gpu, &it->memory) == 2;
    if (strcmp(verb, "video") == 0)
        return sscanf(rest, " %u %u", &it->encoder, &it->decoder) == 2;
    if (strcmp(verb, "power") == 0)
        return sscanf(rest, " %d", &it->power) == 1;
    if (strcmp(verb, "temperature") == 0)
        return sscanf(rest, " %d %d", &it->celsius, &it->memory_celsius) >= 1;
    if (strcmp(verb, "clocks") == 0)
        return sscanf(rest, " %d %d %d %d", it->clocks, it->clocks + 1, it->clocks + 2, it->clocks + 3) == 4;
    if (strcmp(verb, "ecc") != 0 || sscanf(rest, " %lld %lld", &corrected, &uncorrected) != 2)
        return 0;
    it->ecc[0] = corrected;
    it->ecc[1] = uncorrected;
    return 1;
}

static int parse_topology(const char *line)
{
    u32 slot, other, number;
    if (sscanf(line, "level %u %u %u", &slot, &other, &number) == 3 && slot < SLOTS && other < SLOTS)
        script.level[slot][other] = script.level[other][slot] = (int)number;
    else if (sscanf(line, "nvlinks %u %u %u", &slot, &other, &number) == 3 && slot < SLOTS && other < SLOTS)
        script.links[slot][other] = script.links[other][slot] = number;
    else if (sscanf(line, "nvswitch %u %u", &slot, &number) == 2 && slot < SLOTS)
        script.links[slot][SWITCH] = number;
    else
        return 0;
    if (line[0] == 'n')
        script.has_links = 1;
    return 1;
}

static int parse_card(const char *line)
{
    u32 slot, number, other;
    int major, minor;
    u64 bytes;
    char name[64];
    if (sscanf(line, "remove %u", &slot) == 1 && slot < SLOTS)
        script.removed[slot] = 1;
    else if (sscanf(line, "lost %u", &slot) == 1 && slot < SLOTS)
        script.lost[slot] = 1;
    else if (sscanf(line, "minor %u %u", &slot, &number) == 2 && slot < SLOTS)
        script.minor[slot] = number;
    else if (sscanf(line, "recovery %u %u", &slot, &number) == 2 && slot < SLOTS)
        script.recovery[slot] = number;
    else if (sscanf(line, "name %u %63[^\n]", &slot, name) == 2 && slot < SLOTS)
        strcpy(script.name[slot], name);
    else if (sscanf(line, "busid %u %31[^\n]", &slot, name) == 2 && slot < SLOTS)
        strcpy(script.bus_id[slot], name);
    else if (sscanf(line, "pciid %u %x %x", &slot, &number, &other) == 3 && slot < SLOTS) {
        script.pci_id[slot] = number;
        script.subsystem[slot] = other;
    } else if (sscanf(line, "memory %u %llu", &slot, &bytes) == 2 && slot < SLOTS)
        script.memory[slot] = bytes;
    else if (sscanf(line, "energy %u %llu", &slot, &bytes) == 2 && slot < SLOTS) {
        script.energy[slot] = bytes;
        script.has_energy[slot] = 1;
    } else if (sscanf(line, "capability %u %d %d", &slot, &major, &minor) == 3 && slot < SLOTS) {
        script.capability[slot][0] = major;
        script.capability[slot][1] = minor;
    } else if (sscanf(line, "nomig %u", &slot) == 1 && slot < SLOTS)
        script.no_mig[slot] = 1;
    else if (sscanf(line, "migmode %u %u", &slot, &number) == 2 && slot < SLOTS)
        script.mig_mode[slot] = number;
    else
        return 0;
    return 1;
}

static void parse_line(const char *line)
{
    char symbol[64];
    u32 number;
    int only = -1, instance = -1;
    long value;
    Event event = {.gi = 0xFFFFFFFF, .ci = 0xFFFFFFFF};
    if (sscanf(line, "driver %31s", script.driver) == 1)
        return;
    if (sscanf(line, "cards %u", &number) == 1)
        script.cards = number <= SLOTS ? number : SLOTS;
    else if (strcmp(line, "norecovery\n") == 0)
        script.no_recovery = 1;
    else if (strcmp(line, "nonvlink\n") == 0)
        script.no_nvlink = 1;
    else if (strcmp(line, "trace\n") == 0)
        script.trace = 1;
    else if (sscanf(line, "eventtypes %llx", &event.type) == 1)
        script.event_types = event.type;
    else if (sscanf(line, "event %llu %u %llx %llu %u %u", &event.seq, &event.slot, &event.type, &event.data,
                    &event.gi, &event.ci) >= 4) {
        if (event.slot < SLOTS && script.event_count < EVENTS)
            script.events[script.event_count++] = event;
    } else if (sscanf(line, "fail %63s %ld %d %d", symbol, &value, &only, &instance) >= 2)
        add_rule(FAIL, symbol, value, only, instance);
    else if (sscanf(line, "latency %63s %ld", symbol, &value) == 2)
        add_rule(LATENCY, symbol, value, -1, -1);
    else if (sscanf(line, "hang %63s", symbol) == 1)
        add_rule(HANG, symbol, 0, -1, -1);
    else if (sscanf(line, "segv %63s", symbol) == 1)
        add_rule(SEGV, symbol, 0, -1, -1);
    else if (!parse_card(line) && !parse_topology(line) && !parse_mig(line) && !parse_fabric(line)
             && !parse_process(line) && !parse_load(line) && !parse_figures(line)
             && line[0] != '\n' && line[0] != '#')
        fprintf(stderr, "nvml stub: line not understood: %s", line);
}

/* Called with the mutex held. A file that is missing leaves what was read before. */
static void refresh(void)
{
    const char *path = control_path();
    struct stat now;
    if (!loaded)
        reset_script();
    if (path == NULL || stat(path, &now) != 0) {
        loaded = 1;
        return;
    }
    if (loaded && now.st_ino == seen.st_ino && now.st_mtim.tv_sec == seen.st_mtim.tv_sec
        && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return;
    char line[256];
    reset_script();
    fstat(fileno(file), &seen);
    while (fgets(line, sizeof line, file) != NULL)
        parse_line(line);
    fclose(file);
    loaded = 1;
}

static void trace(const char *symbol)
{
    char line[4096 + 8];
    const char *path = control_path();
    if (path == NULL)
        return;
    snprintf(line, sizeof line, "%.4000s.trace", path);
    int file = open(line, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0)
        return;
    int length = snprintf(line, sizeof line, "%s\n", symbol);
    if (write(file, line, (size_t)length) < 0)
        perror("nvml stub: trace");
    close(file);
}

static const Rule *find_rule(enum Kind kind, const char *symbol, int slot, int number)
{
    for (int i = 0; i < script.rule_count; i++) {
        const Rule *rule = &script.rules[i];
        int named = rule->slot < 0 || (rule->slot == slot && (rule->number < 0 || rule->number == number));
        if (rule->kind == kind && strcmp(rule->symbol, symbol) == 0 && named)
            return rule;
    }
    return NULL;
}

static int is_present(u32 slot)
{
    return slot < script.cards && !script.removed[slot];
}

/* Called with the mutex held; the mutex is free while the call hangs, so that other threads go on. */
static Ret scripted(const char *symbol, int slot, int number)
{
    refresh();
    if (script.trace)
        trace(symbol);
    if (find_rule(SEGV, symbol, slot, number) != NULL)
        raise(SIGSEGV);
    const Rule *slow = find_rule(LATENCY, symbol, slot, number);
    if (slow != NULL) {
        useconds_t usec = (useconds_t)slow->value;
        pthread_mutex_unlock(&mutex);
        usleep(usec);
        pthread_mutex_lock(&mutex);
    }
    while (find_rule(HANG, symbol, slot, number) != NULL) {
        pthread_mutex_unlock(&mutex);
        usleep(1000);
        pthread_mutex_lock(&mutex);
        refresh();
    }
    const Rule *fail = find_rule(FAIL, symbol, slot, number);
    return fail == NULL ? SUCCESS : (Ret)fail->value;
}

static Ret enter(const char *symbol)
{
    pthread_mutex_lock(&mutex);
    Ret ret = scripted(symbol, -1, WHOLE);
    if (ret == SUCCESS && sessions == 0)
        ret = UNINITIALIZED;
    return ret;
}

static int is_card(const Gpu *gpu)
{
    return gpu >= gpus && gpu < gpus + SLOTS;
}

static int is_mig(const Gpu *gpu)
{
    return gpu >= migs[0] && gpu < migs[SLOTS];
}

/* What a handle of a MIG device, or of an instance, stands for; NULL when there is nothing. */
static const Instance *instance_of(const Gpu *gpu)
{
    const Instance *it = &script.instances[gpu->slot][gpu->number];
    return script.mig_mode[gpu->slot] && it->has.ci_slices ? it : NULL;
}

static Ret enter_device(const char *symbol, const Gpu *gpu)
{
    pthread_mutex_lock(&mutex);
    if (!is_card(gpu) && !is_mig(gpu))
        return INVALID_ARGUMENT;
    Ret ret = scripted(symbol, (int)gpu->slot, gpu->number);
    if (ret != SUCCESS)
        return ret;
    if (sessions == 0)
        return UNINITIALIZED;
    if (!is_present(gpu->slot))
        return INVALID_ARGUMENT;
    if (script.lost[gpu->slot])
        return GPU_IS_LOST;
    return is_card(gpu) || instance_of(gpu) != NULL ? SUCCESS : INVALID_ARGUMENT;
}

static Ret enter_card(const char *symbol, const Gpu *gpu)
{
    Ret ret = enter_device(symbol, gpu);
    return ret == SUCCESS && !is_card(gpu) ? INVALID_ARGUMENT : ret;
}

static Ret enter_mig(const char *symbol, const Gpu *gpu)
{
    Ret ret = enter_device(symbol, gpu);
    return ret == SUCCESS && !is_mig(gpu) ? INVALID_ARGUMENT : ret;
}

static Ret leave(Ret ret)
{
    pthread_mutex_unlock(&mutex);
    return ret;
}

/* The mutex is held from here to LEAVE. */
#define GO_ON(entered) do { Ret ret_ = entered; if (ret_ != SUCCESS) return leave(ret_); } while (0)
#define ENTER() GO_ON(enter(__func__))
#define ENTER_DEVICE(gpu) GO_ON(enter_device(__func__, gpu))
#define ENTER_CARD(gpu) GO_ON(enter_card(__func__, gpu))
#define ENTER_MIG(gpu) GO_ON(enter_mig(__func__, gpu))
#define LEAVE(ret) return leave(ret)

static Ret put_text(char *out, u32 size, const char *text)
{
    if (strlen(text) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

static void uuid_of(u32 slot, char out[48])
{
    snprintf(out, 48, "GPU-00000000-0000-0000-0000-%012u", slot);
}

/* The UUIDs of MIG devices that follow one another in one place differ in their serial. */
static void mig_uuid_of(const Gpu *gpu, char out[48])
{
    u32 serial = script.instances[gpu->slot][gpu->number].serial;
    snprintf(out, 48, "MIG-00000000-0000-%04x-%04x-%012u", serial, (u32)gpu->number, gpu->slot);
}

static void pci_of(u32 slot, PciInfo *pci)
{
    memset(pci, 0, sizeof *pci);
    pci->bus = slot == SWITCH ? 0xF0 : 0x10 + slot;
    pci->id = slot == SWITCH ? 0x22a310de : script.pci_id[slot];
    pci->subsystem = slot == SWITCH ? 0x16c110de : script.subsystem[slot];
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", pci->bus);
    if (slot < SLOTS && script.bus_id[slot][0])
        strcpy(pci->bus_id, script.bus_id[slot]);
}

/* ---- library and system ---- */

static Ret init(const char *symbol)
{
    pthread_mutex_lock(&mutex);
    Ret ret = scripted(symbol, -1, WHOLE);
    if (ret == SUCCESS)
        sessions++;
    return leave(ret);
}

API Ret nvmlInit_v2(void) { return init(__func__); }
API Ret nvmlInitWithFlags(u32 flags) { (void)flags; return init(__func__); }

API Ret nvmlShutdown(void)
{
    ENTER();
    sessions--;
    LEAVE(SUCCESS);
}

API const char *nvmlErrorString(Ret ret)
{
    switch (ret) {
    case SUCCESS: return "Success";
    case NOT_SUPPORTED: return "Not Supported";
    case GPU_IS_LOST: return "GPU is lost";
    case UNKNOWN: return "Unknown Error";
    default: return "Error of the stub";
    }
}

API Ret nvmlSystemGetDriverVersion(char *out, u32 size) { ENTER(); LEAVE(put_text(out, size, script.driver)); }

API Ret nvmlSystemGetNVMLVersion(char *out, u32 size)
{
    char text[40];
    ENTER();
    snprintf(text, sizeof text, "13.%s", script.driver);
    LEAVE(put_text(out, size, text));
}

API Ret nvmlSystemGetCudaDriverVersion_v2(int *out) { ENTER(); *out = 13000; LEAVE(SUCCESS); }
API Ret nvmlSystemGetCudaDriverVersion(int *out) { ENTER(); *out = 13000; LEAVE(SUCCESS); }

/* ---- cards ---- */

API Ret nvmlDeviceGetCount_v2(u32 *out)
{
    ENTER();
    *out = 0;
    for (u32 slot = 0; slot < SLOTS; slot++)
        *out += (u32)is_present(slot);
    LEAVE(SUCCESS);
}

/* Called with the mutex held, once the card is found: the rest of a look-up by any name. */
static Ret handle_of(const char *symbol, u32 slot, Gpu **out)
{
    const Rule *fail = find_rule(FAIL, symbol, (int)slot, WHOLE);
    if (fail != NULL)
        return (Ret)fail->value;
    if (script.lost[slot])
        return GPU_IS_LOST;
    *out = &gpus[slot];
    return SUCCESS;
}

API Ret nvmlDeviceGetHandleByIndex_v2(u32 index, Gpu **out)
{
    ENTER();
    for (u32 slot = 0; slot < SLOTS; slot++)
        if (is_present(slot) && index-- == 0)
            LEAVE(handle_of(__func__, slot, out));
    LEAVE(INVALID_ARGUMENT);
}

API Ret nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **out)
{
    char mine[48];
    ENTER();
    for (u32 slot = 0; slot < SLOTS; slot++) {
        uuid_of(slot, mine);
        if (is_present(slot) && strcmp(uuid, mine) == 0)
            LEAVE(handle_of(__func__, slot, out));
        for (int number = 0; number < INSTANCES; number++) {
            Gpu *mig = &migs[slot][number];
            mig_uuid_of(mig, mine);
            if (is_present(slot) && instance_of(mig) != NULL && strcmp(uuid, mine) == 0) {
                *out = mig;
                LEAVE(script.lost[slot] ? GPU_IS_LOST : SUCCESS);
            }
        }
    }
    LEAVE(NOT_FOUND);
}

API Ret nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Gpu **out)
{
    PciInfo pci;
    ENTER();
    for (u32 slot = 0; slot < SLOTS; slot++) {
        pci_of(slot, &pci);
        if (is_present(slot) && (strcasecmp(bus_id, pci.bus_id) == 0 || strcasecmp(bus_id, pci.legacy) == 0))
            LEAVE(handle_of(__func__, slot, out));
    }
    LEAVE(NOT_FOUND);
}

API Ret nvmlDeviceGetIndex(Gpu *gpu, u32 *out)
{
    ENTER_CARD(gpu);
    *out = 0;
    for (u32 slot = 0; slot < gpu->slot; slot++)
        *out += (u32)is_present(slot);
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetUUID(Gpu *gpu, char *out, u32 size)
{
    char uuid[48];
    ENTER_DEVICE(gpu);
    if (is_mig(gpu))
        mig_uuid_of(gpu, uuid);
    else
        uuid_of(gpu->slot, uuid);
    LEAVE(put_text(out, size, uuid));
}

/* NVML's numbers of GPU instance profiles (nvmlDeviceGetGpuInstanceProfileInfo), those of an H100 with its ids. */
static const struct { u32 id, slices, instances, memory_mb; const char *suffix; int offered; } PROFILES[] = {
    [0] = {19, 1, 7, 9984, "", 1}, [1] = {14, 2, 3, 20096, "", 1}, [2] = {9, 3, 2, 40448, "", 1},
    [3] = {5, 4, 1, 40448, "", 1}, [4] = {0, 7, 1, 81024, "", 1}, [5] = {1, 8, 1, 81024, "", 0},
    [6] = {2, 6, 1, 60544, "", 0}, [7] = {20, 1, 1, 9984, "+me", 1}, [8] = {21, 2, 1, 20096, "+me", 0},
    [9] = {15, 1, 4, 20096, "", 1}, [10] = {47, 1, 4, 20096, "+gfx", 0}, [11] = {35, 2, 2, 40448, "+gfx", 0},
    [12] = {32, 4, 1, 81024, "+gfx", 0}, [13] = {64, 1, 4, 20096, "-me", 0}, [14] = {65, 2, 2, 40448, "-me", 0},
    [15] = {66, 1, 1, 20096, "+me.all", 0}, [16] = {67, 2, 1, 40448, "+me.all", 0}, [17] = {68, 3, 1, 40448, "+gfx", 0},
};
enum { PROFILE_COUNT = sizeof PROFILES / sizeof *PROFILES };

/* As nvidia-smi writes it: " MIG 1c.2g.20gb+me". */
static void profile_name(const Gpu *gpu, char out[32])
{
    const Instance *it = instance_of(gpu);
    u64 total = script.memory[gpu->slot], gib = (total + (1 << 30) - 1) >> 30;
    u64 eighths = ((it->has.memory_mb << 23) + total - 1) / total;
    u32 slices = PROFILES[it->profile].slices;
    int length = snprintf(out, 32, " MIG ");
    if (it->has.ci_slices != slices)
        length += snprintf(out + length, 32 - (size_t)length, "%uc.", it->has.ci_slices);
    snprintf(out + length, 32 - (size_t)length, "%ug.%llugb%s", slices, (eighths * gib + 4) / 8,
             PROFILES[it->profile].suffix);
}

API Ret nvmlDeviceGetName(Gpu *gpu, char *out, u32 size)
{
    char text[160], profile[32] = "";
    ENTER_DEVICE(gpu);
    if (is_mig(gpu))
        profile_name(gpu, profile);
    snprintf(text, sizeof text, "%s%s", script.name[gpu->slot], profile);
    LEAVE(put_text(out, size, text));
}

API Ret nvmlDeviceGetMinorNumber(Gpu *gpu, u32 *out)
{
    ENTER_CARD(gpu);
    *out = script.minor[gpu->slot];
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetPciInfo_v3(Gpu *gpu, PciInfo *out)
{
    ENTER_CARD(gpu);
    pci_of(gpu->slot, out);
    LEAVE(SUCCESS);
}

static u64 memory_of(const Gpu *gpu)
{
    return is_mig(gpu) ? instance_of(gpu)->has.memory_mb << 20 : script.memory[gpu->slot];
}

/* ---- who uses them ---- */

/* What registered itself in a file of this pid: appends a process for each line, which other calls forget. */
static u32 read_claims(const char *path, u32 pid, u32 count)
{
    char line[160], memory[32], percent[32];
    FILE *file = fopen(path, "re");
    while (file != NULL && count < PROCESSES && fgets(line, sizeof line, file) != NULL) {
        Process it = {.number = WHOLE, .lists = COMPUTE, .pid = pid};
        u32 number, serial;
        if (sscanf(line, "GPU-00000000-0000-0000-0000-%u %31s %31s", &it.slot, memory, percent) != 3) {
            if (sscanf(line, "MIG-00000000-0000-%x-%x-%u %31s %31s", &serial, &number, &it.slot, memory, percent) != 5)
                continue;
            it.number = (int)number;
        }
        it.memory = parse_memory(memory);
        it.percent = strcmp(percent, "-") == 0 ? UNTOLD : atoi(percent);
        processes[count++] = it;
    }
    if (file != NULL)
        fclose(file);
    return count;
}

/* The number of processes in the table, with those that registered themselves and live. */
static u32 gather(void)
{
    char directory[4096 + 16], path[4096 + 300];
    u32 count = script.process_count;
    if (control_path() == NULL)
        return count;
    snprintf(directory, sizeof directory, "%.4000s.processes", control_path());
    DIR *entries = opendir(directory);
    struct dirent *entry;
    while (entries != NULL && (entry = readdir(entries)) != NULL) {
        snprintf(path, sizeof path, "%.4000s/%.255s", directory, entry->d_name);
        u32 pid = registered_pid(path, entry->d_name);
        if (pid != 0 && (kill((pid_t)pid, 0) == 0 || errno != ESRCH))
            count = read_claims(path, pid, count);
    }
    if (entries != NULL)
        closedir(entries);
    return count;
}

static int is_on(const Process *it, const Gpu *gpu)
{
    return it->slot == gpu->slot && it->number == gpu->number;
}

static u64 now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000;
}

static MemoryV2 used_memory(const Gpu *gpu)
{
    const Load *load = load_of(gpu->slot, gpu->number);
    MemoryV2 it = {.total = memory_of(gpu), .reserved = load->reserved, .used = load->used};
    for (u32 i = script.process_count, count = gather(); i < count; i++)
        if (is_on(&processes[i], gpu) && processes[i].memory != ~0ULL)
            it.used += processes[i].memory;
    it.free = it.total - it.reserved - it.used;
    return it;
}

API Ret nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *out)
{
    ENTER_DEVICE(gpu);
    MemoryV2 it = used_memory(gpu);
    *out = (Memory){.total = it.total, .free = it.free, .used = it.reserved + it.used};
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetMemoryInfo_v2(Gpu *gpu, MemoryV2 *out)
{
    ENTER_DEVICE(gpu);
    u32 version = out->version;
    if (version != (sizeof *out | 2u << 24))
        LEAVE(VERSION_MISMATCH);
    *out = used_memory(gpu);
    out->version = version;
    LEAVE(SUCCESS);
}

static Ret list_processes(const Gpu *gpu, u32 list, u32 *count, ProcessInfo *out)
{
    u32 room = out == NULL ? 0 : *count, found = 0;
    const Instance *instance = is_mig(gpu) ? instance_of(gpu) : NULL;
    u32 gi = instance ? instance->gi : 0xFFFFFFFF, ci = instance ? instance->ci : 0xFFFFFFFF;
    for (u32 i = 0, all = gather(); i < all; i++) {
        if (!is_on(&processes[i], gpu) || !(processes[i].lists & list))
            continue;
        if (found++ < room)
            out[found - 1] = (ProcessInfo){processes[i].pid, processes[i].memory, gi, ci};
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define LISTED(list) { ENTER_DEVICE(gpu); LEAVE(list_processes(gpu, list, count, out)); }

API Ret nvmlDeviceGetComputeRunningProcesses_v2(Gpu *gpu, u32 *count, ProcessInfo *out)
LISTED(COMPUTE)

API Ret nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, u32 *count, ProcessInfo *out)
LISTED(COMPUTE)

API Ret nvmlDeviceGetGraphicsRunningProcesses_v2(Gpu *gpu, u32 *count, ProcessInfo *out)
LISTED(GRAPHICS)

API Ret nvmlDeviceGetGraphicsRunningProcesses_v3(Gpu *gpu, u32 *count, ProcessInfo *out)
LISTED(GRAPHICS)

API Ret nvmlDeviceGetMPSComputeRunningProcesses_v2(Gpu *gpu, u32 *count, ProcessInfo *out)
LISTED(MPS)

API Ret nvmlDeviceGetMPSComputeRunningProcesses_v3(Gpu *gpu, u32 *count, ProcessInfo *out)
LISTED(MPS)

static int is_split(const Gpu *gpu)
{
    return is_mig(gpu) || script.mig_mode[gpu->slot];
}

static void add_sample(ProcessSample *out, u32 room, u32 *found, ProcessSample it)
{
    if (*found < room)
        out[*found] = it;
    ++*found;
}

API Ret nvmlDeviceGetProcessUtilization(Gpu *gpu, ProcessSample *out, u32 *count, u64 since)
{
    ENTER_DEVICE(gpu);
    if (is_split(gpu))
        LEAVE(NOT_SUPPORTED);
    u32 room = out == NULL ? 0 : *count, found = 0;
    for (u32 i = 0; i < script.sample_count; i++) {
        u64 time = sampled[i].time ? sampled[i].time : now_us();
        if (sampled[i].slot == gpu->slot && time > since)
            add_sample(out, room, &found, (ProcessSample){sampled[i].pid, time, sampled[i].percent, 0, 0, 0});
    }
    for (u32 i = script.process_count, all = gather(); i < all; i++) {
        u32 percent = (u32)processes[i].percent;
        if (is_on(&processes[i], gpu) && processes[i].percent > 0)
            add_sample(out, room, &found, (ProcessSample){processes[i].pid, now_us(), percent, 0, 0, 0});
    }
    *count = room < SAMPLES && found < SAMPLES ? SAMPLES : found;
    LEAVE(*count > room ? INSUFFICIENT_SIZE : found ? SUCCESS : NOT_FOUND);
}

/* ---- figures of a card ---- */

API Ret nvmlDeviceGetTotalEnergyConsumption(Gpu *gpu, u64 *out)
{
    ENTER_CARD(gpu);
    if (!script.has_energy[gpu->slot])
        LEAVE(NOT_SUPPORTED);
    *out = script.energy[gpu->slot];
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *minor)
{
    ENTER_DEVICE(gpu);
    *major = script.capability[gpu->slot][0];
    *minor = script.capability[gpu->slot][1];
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetArchitecture(Gpu *gpu, u32 *out) { ENTER_DEVICE(gpu); *out = 9; LEAVE(SUCCESS); }
API Ret nvmlDeviceGetBrand(Gpu *gpu, u32 *out) { ENTER_DEVICE(gpu); *out = 2; LEAVE(SUCCESS); }
API Ret nvmlDeviceGetPersistenceMode(Gpu *gpu, u32 *out) { ENTER_DEVICE(gpu); *out = 1; LEAVE(SUCCESS); }

API Ret nvmlDeviceGetNumaNodeId(Gpu *gpu, u32 *out)
{
    ENTER_DEVICE(gpu);
    (void)out;
    LEAVE(NOT_SUPPORTED);
}

API Ret nvmlDeviceGetUtilizationRates(Gpu *gpu, Utilization *out)
{
    ENTER_DEVICE(gpu);
    if (is_split(gpu))
        LEAVE(NOT_SUPPORTED);
    *out = (Utilization){script.figures[gpu->slot].gpu, script.figures[gpu->slot].memory};
    for (u32 i = script.process_count, all = gather(); i < all; i++)
        if (is_on(&processes[i], gpu) && processes[i].percent > 0)
            out->gpu += (u32)processes[i].percent;
    out->gpu = out->gpu > 100 ? 100 : out->gpu;
    LEAVE(SUCCESS);
}

/* Microseconds over which the driver measures. */
enum { VIDEO_PERIOD = 100000 };

API Ret nvmlDeviceGetEncoderUtilization(Gpu *gpu, u32 *out, u32 *period)
{
    ENTER_CARD(gpu);
    if (is_split(gpu))
        LEAVE(NOT_SUPPORTED);
    *out = script.figures[gpu->slot].encoder;
    *period = VIDEO_PERIOD;
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetDecoderUtilization(Gpu *gpu, u32 *out, u32 *period)
{
    ENTER_CARD(gpu);
    if (is_split(gpu))
        LEAVE(NOT_SUPPORTED);
    *out = script.figures[gpu->slot].decoder;
    *period = VIDEO_PERIOD;
    LEAVE(SUCCESS);
}

static Ret put_figure(u32 *out, int figure)
{
    *out = (u32)figure;
    return figure == UNTOLD ? NOT_SUPPORTED : SUCCESS;
}

API Ret nvmlDeviceGetPowerUsage(Gpu *gpu, u32 *out)
{
    ENTER_CARD(gpu);
    LEAVE(put_figure(out, script.figures[gpu->slot].power));
}

API Ret nvmlDeviceGetTemperature(Gpu *gpu, int sensor, u32 *out)
{
    ENTER_CARD(gpu);
    LEAVE(sensor == 0 ? put_figure(out, script.figures[gpu->slot].celsius) : INVALID_ARGUMENT);
}

API Ret nvmlDeviceGetClockInfo(Gpu *gpu, int clock, u32 *out)
{
    ENTER_CARD(gpu);
    LEAVE(clock < 0 || clock > 3 ? INVALID_ARGUMENT : put_figure(out, script.figures[gpu->slot].clocks[clock]));
}

API Ret nvmlDeviceGetTotalEccErrors(Gpu *gpu, int kind, int counter, u64 *out)
{
    ENTER_CARD(gpu);
    if (kind < 0 || kind > 1 || counter != 0)
        LEAVE(INVALID_ARGUMENT);
    *out = (u64)script.figures[gpu->slot].ecc[kind];
    LEAVE(script.figures[gpu->slot].ecc[kind] == UNTOLD ? NOT_SUPPORTED : SUCCESS);
}

API Ret nvmlDeviceGetFieldValues(Gpu *gpu, int count, FieldValue *values)
{
    ENTER_CARD(gpu);
    for (int i = 0; i < count; i++) {
        values[i].ret = INVALID_ARGUMENT;
        values[i].type = VALUE_UNSIGNED_INT;
        if (values[i].field == FI_MEMORY_TEMP)
            values[i].ret = put_figure(&values[i].value.ui, script.figures[gpu->slot].memory_celsius);
        if (values[i].field == FI_RECOVERY_ACTION && !script.no_recovery)
            values[i].ret = put_figure(&values[i].value.ui, (int)script.recovery[gpu->slot]);
    }
    LEAVE(SUCCESS);
}

/* ---- GPM ---- */

static u64 gpm_taken;

static int knows_gpm(u32 slot)
{
    for (int number = WHOLE; number < INSTANCES; number++)
        if (load_of(slot, number)->has_gpm)
            return 1;
    return 0;
}

static int is_gpm_sample(const GpmSample *it)
{
    return it >= gpm_samples && it < gpm_samples + GPM_SAMPLES && it->used;
}

API Ret nvmlGpmQueryDeviceSupport(Gpu *gpu, GpmSupport *out)
{
    ENTER_CARD(gpu);
    if (out->version != 1)
        LEAVE(VERSION_MISMATCH);
    out->supported = (u32)knows_gpm(gpu->slot);
    LEAVE(SUCCESS);
}

API Ret nvmlGpmSampleAlloc(GpmSample **out)
{
    ENTER();
    for (*out = gpm_samples; *out < gpm_samples + GPM_SAMPLES; ++*out) {
        if ((*out)->used)
            continue;
        **out = (GpmSample){.used = 1};
        LEAVE(SUCCESS);
    }
    LEAVE(UNKNOWN);
}

API Ret nvmlGpmSampleFree(GpmSample *it)
{
    ENTER();
    if (!is_gpm_sample(it))
        LEAVE(INVALID_ARGUMENT);
    it->used = 0;
    LEAVE(SUCCESS);
}

static Ret take_gpm(const Gpu *gpu, GpmSample *out)
{
    const Load *load = load_of(gpu->slot, gpu->number);
    if (!load->has_gpm)
        return NOT_SUPPORTED;
    if (!is_gpm_sample(out))
        return INVALID_ARGUMENT;
    *out = (GpmSample){.used = 1, .taken = ++gpm_taken, .device = gpu, .sm = load->sm, .tensor = load->tensor};
    return SUCCESS;
}

API Ret nvmlGpmSampleGet(Gpu *gpu, GpmSample *out) { ENTER_CARD(gpu); LEAVE(take_gpm(gpu, out)); }

API Ret nvmlGpmMigSampleGet(Gpu *gpu, u32 gi, GpmSample *out)
{
    ENTER_CARD(gpu);
    for (int number = 0; number < INSTANCES; number++) {
        const Gpu *mig = &migs[gpu->slot][number];
        if (instance_of(mig) != NULL && instance_of(mig)->gi == gi)
            LEAVE(take_gpm(mig, out));
    }
    LEAVE(NOT_FOUND);
}

/* What was in use between two samples of one device, the older one first. */
API Ret nvmlGpmMetricsGet(GpmMetricsGet *it)
{
    ENTER();
    if (it->version != 1)
        LEAVE(VERSION_MISMATCH);
    const GpmSample *before = it->before, *after = it->after;
    if (!is_gpm_sample(before) || !is_gpm_sample(after) || before->device != after->device || !before->taken
        || before->taken >= after->taken)
        LEAVE(INVALID_ARGUMENT);
    for (u32 i = 0; i < it->count && i < GPM_METRICS; i++) {
        GpmMetric *metric = &it->metrics[i];
        metric->ret = metric->id == GPM_SM || metric->id == GPM_TENSOR ? SUCCESS : NOT_SUPPORTED;
        metric->value = metric->id == GPM_SM ? after->sm : after->tensor;
    }
    LEAVE(SUCCESS);
}

/* ---- how cards reach each other ---- */

API Ret nvmlDeviceGetTopologyCommonAncestor(Gpu *gpu, Gpu *other, int *out)
{
    ENTER_CARD(gpu);
    if (!is_card(other) || !is_present(other->slot))
        LEAVE(INVALID_ARGUMENT);
    if (script.lost[other->slot])
        LEAVE(GPU_IS_LOST);
    if (other == gpu)
        LEAVE(NOT_SUPPORTED);
    *out = script.level[gpu->slot][other->slot];
    LEAVE(SUCCESS);
}

/* Where a link leads: to a slot, to the switch, or nowhere. */
static Ret nvlink(const Gpu *gpu, u32 link, u32 *peer)
{
    if (script.no_nvlink)
        return NOT_SUPPORTED;
    if (link >= LANES)
        return INVALID_ARGUMENT;
    *peer = gpu->slot ^ 1;
    if (!script.has_links)
        return SUCCESS;
    for (*peer = 0; *peer < NOBODY; link -= script.links[gpu->slot][(*peer)++])
        if (link < script.links[gpu->slot][*peer])
            return SUCCESS;
    return SUCCESS;
}

static int is_up(u32 peer)
{
    return peer == SWITCH || (peer < SLOTS && is_present(peer) && !script.lost[peer]);
}

API Ret nvmlDeviceGetNvLinkState(Gpu *gpu, u32 link, u32 *out)
{
    u32 peer = NOBODY;
    ENTER_CARD(gpu);
    Ret ret = nvlink(gpu, link, &peer);
    *out = ret == SUCCESS && is_up(peer);
    LEAVE(ret);
}

API Ret nvmlDeviceGetNvLinkRemotePciInfo_v2(Gpu *gpu, u32 link, PciInfo *out)
{
    u32 peer = NOBODY;
    ENTER_CARD(gpu);
    Ret ret = nvlink(gpu, link, &peer);
    if (ret == SUCCESS && peer == NOBODY)
        LEAVE(NOT_SUPPORTED);
    pci_of(peer, out);
    LEAVE(ret);
}

API Ret nvmlDeviceGetNvLinkRemoteDeviceType(Gpu *gpu, u32 link, u32 *out)
{
    u32 peer = NOBODY;
    ENTER_CARD(gpu);
    Ret ret = nvlink(gpu, link, &peer);
    *out = peer == SWITCH ? 2 : peer == NOBODY ? 255 : 0;
    LEAVE(ret);
}

/* ---- events ---- */

static int in_sets(const EventSet *set)
{
    return set >= sets && set < sets + sizeof sets / sizeof *sets && set->used;
}

static u64 newest_event(void)
{
    u64 newest = 0;
    for (int i = 0; i < script.event_count; i++)
        if (script.events[i].seq > newest)
            newest = script.events[i].seq;
    return newest;
}

/* News of the control file comes through inotify, so that an idle wait costs nothing. */
static int watch_control(void)
{
    char directory[4096];
    const char *path = control_path();
    if (path == NULL)
        return -1;
    snprintf(directory, sizeof directory, "%s", path);
    char *slash = strrchr(directory, '/');
    if (slash == NULL)
        strcpy(directory, ".");
    else
        *slash = '\0';
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (fd >= 0)
        inotify_add_watch(fd, directory, IN_MOVED_TO | IN_CLOSE_WRITE);
    return fd;
}

API Ret nvmlEventSetCreate(EventSet **out)
{
    ENTER();
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        if (sets[i].used)
            continue;
        sets[i] = (EventSet){.used = 1, .news = watch_control(), .taken = newest_event()};
        *out = &sets[i];
        LEAVE(SUCCESS);
    }
    LEAVE(UNKNOWN);
}

API Ret nvmlEventSetFree(EventSet *set)
{
    ENTER();
    if (!in_sets(set))
        LEAVE(INVALID_ARGUMENT);
    if (set->news >= 0)
        close(set->news);
    set->used = 0;
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetSupportedEventTypes(Gpu *gpu, u64 *out)
{
    ENTER_CARD(gpu);
    *out = script.event_types;
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceRegisterEvents(Gpu *gpu, u64 types, EventSet *set)
{
    ENTER_CARD(gpu);
    if (!in_sets(set))
        LEAVE(INVALID_ARGUMENT);
    if (types & ~script.event_types)
        LEAVE(NOT_SUPPORTED);
    set->mask[gpu->slot] |= types;
    set->floor[gpu->slot] = newest_event();
    LEAVE(SUCCESS);
}

/* An event of an empty slot always comes: a driver that names a card which nobody registered. */
static int wants(const EventSet *set, const Event *event)
{
    if (event->seq <= set->taken)
        return 0;
    if (!is_present(event->slot))
        return 1;
    return event->seq > set->floor[event->slot] && (event->type & set->mask[event->slot]) != 0;
}

static int take_event(EventSet *set, EventData *out)
{
    for (int i = 0; i < script.event_count; i++) {
        const Event *event = &script.events[i];
        if (!wants(set, event))
            continue;
        set->taken = event->seq;
        *out = (EventData){&gpus[event->slot], event->type, event->data, event->gi, event->ci};
        return 1;
    }
    return 0;
}

static int watches_lost_card(const EventSet *set)
{
    for (u32 slot = 0; slot < SLOTS; slot++)
        if (set->mask[slot] && script.lost[slot] && is_present(slot))
            return 1;
    return 0;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Called without the mutex. */
static void await_control(int news, int64_t wait_ms)
{
    char buffer[4096];
    struct pollfd watched = {.fd = news, .events = POLLIN, .revents = 0};
    if (poll(&watched, 1, (int)wait_ms) > 0)
        while (read(news, buffer, sizeof buffer) > 0)
            ;
}

API Ret nvmlEventSetWait_v2(EventSet *set, EventData *out, u32 timeout_ms)
{
    int64_t deadline = now_ms() + timeout_ms;
    ENTER();
    while (in_sets(set)) {
        refresh();
        const Rule *fail = find_rule(FAIL, __func__, -1, WHOLE);
        if (fail != NULL)
            LEAVE((Ret)fail->value);
        if (take_event(set, out))
            LEAVE(SUCCESS);
        if (watches_lost_card(set))
            LEAVE(GPU_IS_LOST);
        int64_t left = deadline - now_ms();
        if (left <= 0)
            LEAVE(TIMEOUT);
        int news = set->news;
        pthread_mutex_unlock(&mutex);
        await_control(news, left);
        pthread_mutex_lock(&mutex);
    }
    LEAVE(INVALID_ARGUMENT);
}

/* ---- MIG ---- */

API Ret nvmlDeviceGetMigMode(Gpu *gpu, u32 *now, u32 *next)
{
    ENTER_CARD(gpu);
    if (script.no_mig[gpu->slot])
        LEAVE(NOT_SUPPORTED);
    *now = *next = script.mig_mode[gpu->slot];
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetMaxMigDeviceCount(Gpu *gpu, u32 *out)
{
    ENTER_CARD(gpu);
    *out = script.no_mig[gpu->slot] || !script.mig_mode[gpu->slot] ? 0 : INSTANCES;
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceIsMigDeviceHandle(Gpu *gpu, u32 *out)
{
    ENTER_DEVICE(gpu);
    *out = (u32)is_mig(gpu);
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetMigDeviceHandleByIndex(Gpu *gpu, u32 index, Gpu **out)
{
    ENTER_CARD(gpu);
    if (script.no_mig[gpu->slot])
        LEAVE(NOT_SUPPORTED);
    if (index >= INSTANCES)
        LEAVE(script.mig_mode[gpu->slot] ? INVALID_ARGUMENT : NOT_FOUND);
    const Rule *fail = find_rule(FAIL, __func__, (int)gpu->slot, (int)index);
    if (fail != NULL)
        LEAVE((Ret)fail->value);
    *out = &migs[gpu->slot][index];
    LEAVE(instance_of(*out) == NULL ? NOT_FOUND : SUCCESS);
}

API Ret nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Gpu *mig, Gpu **out)
{
    ENTER_MIG(mig);
    *out = &gpus[mig->slot];
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetAttributes_v2(Gpu *mig, Attributes *out)
{
    ENTER_DEVICE(mig);
    if (is_card(mig))
        LEAVE(NOT_SUPPORTED);
    const Instance *it = instance_of(mig);
    *out = it->has;
    out->gi_slices = PROFILES[it->profile].slices;
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetGpuInstanceId(Gpu *mig, u32 *out)
{
    ENTER_MIG(mig);
    *out = instance_of(mig)->gi;
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetComputeInstanceId(Gpu *mig, u32 *out)
{
    ENTER_MIG(mig);
    *out = instance_of(mig)->ci;
    LEAVE(SUCCESS);
}

API Ret nvmlDeviceGetGpuInstanceById(Gpu *gpu, u32 id, Gpu **out)
{
    ENTER_CARD(gpu);
    for (*out = migs[gpu->slot]; *out < migs[gpu->slot] + INSTANCES; (*out)++)
        if (instance_of(*out) != NULL && instance_of(*out)->gi == id)
            LEAVE(SUCCESS);
    LEAVE(NOT_FOUND);
}

API Ret nvmlGpuInstanceGetInfo(Gpu *gi, GiInfo *out)
{
    ENTER_MIG(gi);
    const Instance *it = instance_of(gi);
    u32 slices = PROFILES[it->profile].slices;
    *out = (GiInfo){&gpus[gi->slot], it->gi, PROFILES[it->profile].id, {(u32)gi->number, slices}};
    LEAVE(SUCCESS);
}

API Ret nvmlGpuInstanceGetComputeInstanceById(Gpu *gi, u32 id, Gpu **out)
{
    ENTER_MIG(gi);
    u32 place = instance_of(gi)->gi;
    for (*out = migs[gi->slot]; *out < migs[gi->slot] + INSTANCES; (*out)++)
        if (instance_of(*out) != NULL && instance_of(*out)->gi == place && instance_of(*out)->ci == id)
            LEAVE(SUCCESS);
    LEAVE(NOT_FOUND);
}

/* NVML's numbers of compute instance profiles by their slices; their ids are the same here. */
static const u32 CI_SLICES[] = {1, 2, 3, 4, 7, 8, 6};
enum { CI_PROFILE_COUNT = sizeof CI_SLICES / sizeof *CI_SLICES };

API Ret nvmlComputeInstanceGetInfo_v2(Gpu *ci, CiInfo *out)
{
    ENTER_MIG(ci);
    const Instance *it = instance_of(ci);
    u32 profile = 0;
    while (profile < CI_PROFILE_COUNT && CI_SLICES[profile] != it->has.ci_slices)
        profile++;
    *out = (CiInfo){&gpus[ci->slot], ci, it->ci, profile, {it->ci, it->has.ci_slices}};
    LEAVE(SUCCESS);
}

/* A card offers what an H100 does, and what it has. */
static Ret gi_profile(const Gpu *gpu, u32 profile, GiProfile *out)
{
    if (profile >= PROFILE_COUNT)
        return INVALID_ARGUMENT;
    int offered = PROFILES[profile].offered;
    u64 memory_mb = PROFILES[profile].memory_mb;
    for (int number = 0; number < INSTANCES; number++) {
        const Instance *it = instance_of(&migs[gpu->slot][number]);
        if (it == NULL || it->profile != profile)
            continue;
        offered = 1;
        memory_mb = it->has.memory_mb;
    }
    if (script.no_mig[gpu->slot] || !offered)
        return NOT_SUPPORTED;
    u32 slices = PROFILES[profile].slices;
    *out = (GiProfile){.id = PROFILES[profile].id, .slices = slices, .instances = PROFILES[profile].instances,
                       .sm = 16 * slices, .copy = slices, .memory_mb = memory_mb};
    return SUCCESS;
}

API Ret nvmlDeviceGetGpuInstanceProfileInfo(Gpu *gpu, u32 profile, GiProfile *out)
{
    ENTER_CARD(gpu);
    LEAVE(gi_profile(gpu, profile, out));
}

API Ret nvmlDeviceGetGpuInstanceProfileInfoV(Gpu *gpu, u32 profile, GiProfileV2 *out)
{
    GiProfile it;
    ENTER_CARD(gpu);
    if (out->version != (sizeof *out | 2u << 24))
        LEAVE(VERSION_MISMATCH);
    Ret ret = gi_profile(gpu, profile, &it);
    if (ret != SUCCESS)
        LEAVE(ret);
    memcpy(&out->id, &it, offsetof(GiProfile, memory_mb));
    out->memory_mb = it.memory_mb;
    snprintf(out->name, sizeof out->name, "MIG %ug%s", it.slices, PROFILES[profile].suffix);
    LEAVE(SUCCESS);
}

static Ret ci_profile(const Gpu *gi, u32 profile, u32 engine, CiProfile *out)
{
    if (profile >= CI_PROFILE_COUNT || engine != 0)
        return INVALID_ARGUMENT;
    u32 slices = CI_SLICES[profile], all = PROFILES[instance_of(gi)->profile].slices;
    if (slices > all)
        return NOT_SUPPORTED;
    *out = (CiProfile){.id = profile, .slices = slices, .instances = all / slices, .sm = 16 * slices, .copy = slices};
    return SUCCESS;
}

API Ret nvmlGpuInstanceGetComputeInstanceProfileInfo(Gpu *gi, u32 profile, u32 engine, CiProfile *out)
{
    ENTER_MIG(gi);
    LEAVE(ci_profile(gi, profile, engine, out));
}

API Ret nvmlGpuInstanceGetComputeInstanceProfileInfoV(Gpu *gi, u32 profile, u32 engine, CiProfileV2 *out)
{
    ENTER_MIG(gi);
    if (out->version != (sizeof *out | 2u << 24))
        LEAVE(VERSION_MISMATCH);
    snprintf(out->name, sizeof out->name, "MIG %uc", profile);
    LEAVE(ci_profile(gi, profile, engine, &out->profile));
}

/* ---- fabric ---- */

static Ret put_fabric(const Gpu *gpu, FabricInfo *out)
{
    if (!script.has_fabric[gpu->slot])
        return NOT_SUPPORTED;
    /* Not the padding: in the versioned structs something else lies there. */
    memcpy(out, &script.fabric[gpu->slot], offsetof(FabricInfo, state) + 1);
    return SUCCESS;
}

API Ret nvmlDeviceGetGpuFabricInfo(Gpu *gpu, FabricInfo *out)
{
    ENTER_CARD(gpu);
    LEAVE(put_fabric(gpu, out));
}

API Ret nvmlDeviceGetGpuFabricInfoV(Gpu *gpu, FabricInfoV2 *out)
{
    ENTER_CARD(gpu);
    if (out->version != (sizeof(FabricInfoV2) | 2u << 24) && out->version != (sizeof(FabricInfoV3) | 3u << 24))
        LEAVE(VERSION_MISMATCH);
    LEAVE(put_fabric(gpu, &out->info));
}

/* ---- for the test that holds our layouts against pynvml's ---- */

API size_t nvml_stub_sizeof(const char *name)
{
#define SIZE(text, type) if (strcmp(name, text) == 0) return sizeof(type)
    SIZE("nvmlPciInfo_t", PciInfo);
    SIZE("c_nvmlMemory_t", Memory);
    SIZE("c_nvmlMemory_v2_t", MemoryV2);
    SIZE("c_nvmlEventData_t", EventData);
    SIZE("c_nvmlFieldValue_t", FieldValue);
    SIZE("c_nvmlUtilization_t", Utilization);
    SIZE("c_nvmlProcessInfo_v3_t", ProcessInfo);
    SIZE("c_nvmlProcessUtilizationSample_t", ProcessSample);
    SIZE("c_nvmlGpmSupport_t", GpmSupport);
    SIZE("c_nvmlGpmMetric_t", GpmMetric);
    SIZE("c_nvmlGpmMetricsGet_t", GpmMetricsGet);
    SIZE("c_nvmlDeviceAttributes", Attributes);
    SIZE("c_nvmlGpuInstanceInfo_t", GiInfo);
    SIZE("c_nvmlComputeInstanceInfo_t", CiInfo);
    SIZE("c_nvmlGpuInstanceProfileInfo_t", GiProfile);
    SIZE("c_nvmlGpuInstanceProfileInfo_v2_t", GiProfileV2);
    SIZE("c_nvmlComputeInstanceProfileInfo_t", CiProfile);
    SIZE("c_nvmlComputeInstanceProfileInfo_v2_t", CiProfileV2);
    SIZE("c_nvmlGpuFabricInfo_t", FabricInfo);
    SIZE("c_nvmlGpuFabricInfo_v2_t", FabricInfoV2);
    SIZE("c_nvmlGpuFabricInfo_v3_t", FabricInfoV3);
    return 0;
}
